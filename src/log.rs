//! The log: a line for each event, on standard error.
//!
//! Two things hold of every line, whoever writes it and whatever stands in it:
//!
//! - What came from outside cannot look like another line or rule a terminal: control characters and the marks that
//!   turn the direction of text are escaped ([`escape`]).
//! - Nobody fills the log. A line that says who brought it about, in a field `peer`, `host` or `mac`, is rationed by him
//!   ([`ration`]); what was left out is told in one line.

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{JsonFields, format};
use tracing_subscriber::layer::SubscriberExt;

use crate::config::LogFormat;

mod escape;
mod ration;

pub use escape::{clean, escape_all, escaped, escaped_lines, is_safe};
pub use ration::Ration;

use escape::Escaped;

/// What writes the log. `colours` are for terminals, and for text only.
pub fn subscriber<W>(
    filter: EnvFilter,
    format_of: LogFormat,
    colours: bool,
    writer: W,
    ration: Ration,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(writer);
    match format_of {
        LogFormat::Text => {
            let lines = lines.event_format(Escaped::text(format().with_ansi(colours), colours));
            Box::new(registry.with(lines.with_filter(ration)))
        }
        LogFormat::Json => {
            let lines = lines.with_ansi(false).event_format(Escaped::json(format().json()));
            Box::new(registry.with(lines.fmt_fields(JsonFields::new()).with_filter(ration)))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
