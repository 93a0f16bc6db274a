//! The log: a line for each event, on standard error or in systemd's journal.
//!
//! Two things hold of every line, whoever writes it and whatever stands in it:
//!
//! - What came from outside cannot look like another line or rule a terminal: control characters and the marks that
//!   turn the direction of text are escaped ([`escape`]).
//! - Nobody fills the log. A line that says who brought it about, in a field `peer`, `host` or `mac`, is rationed by him
//!   ([`ration`]); what was left out is told in one line.

use std::{fmt, io};

use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{JsonFields, format};
use tracing_subscriber::layer::{Filter, SubscriberExt};

use crate::config::LogFormat;

mod background;
mod escape;
mod journal;
mod level;
mod ration;

pub use background::{LogWriter, in_background};
pub use escape::{clean, escape_all, escaped, escaped_lines, is_safe};
pub use journal::{JournalSocket, SystemdJournal, has_stderr};
pub use level::{LevelHandle, adjustable, filter};
pub use ration::Ration;

use escape::Escaped;

/// What the log calls an object: `namespace/name`, or the name alone of one that is in no namespace.
pub fn named<'a>(namespace: &'a str, name: &'a str) -> impl fmt::Display + 'a {
    struct LoggedObject<'a>(&'a str, &'a str);
    impl fmt::Display for LoggedObject<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match *self {
                Self("", name) => f.write_str(name),
                Self(namespace, name) => write!(f, "{namespace}/{name}"),
            }
        }
    }
    LoggedObject(namespace, name)
}

/// What writes the log to standard error, as JSON or else as text. `colours` are for terminals, and for text only.
pub fn subscriber<W>(
    filter: impl Layer<Registry> + Send + Sync,
    format_of: LogFormat,
    colours: bool,
    writer: W,
    ration: Ration,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let registry = tracing_subscriber::registry().with(filter);
    let shown = shown(ration);
    let lines = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(writer);
    match format_of {
        LogFormat::Auto | LogFormat::Text | LogFormat::Journal => {
            let lines = lines.event_format(Escaped::text(format().with_ansi(colours), colours));
            Box::new(registry.with(lines.with_filter(shown)))
        }
        LogFormat::Json => {
            let lines = lines.with_ansi(false).event_format(Escaped::json(format().json()));
            Box::new(registry.with(lines.fmt_fields(JsonFields::new()).with_filter(shown)))
        }
    }
}

/// What writes the log to the journal.
pub fn to_journal<W>(
    filter: impl Layer<Registry> + Send + Sync,
    journal: SystemdJournal<W>,
    ration: Ration,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: io::Write + Clone + Send + Sync + 'static,
{
    Box::new(tracing_subscriber::registry().with(filter).with(journal.with_filter(shown(ration))))
}

/// Which lines there are. No spans: they are the libraries' own (kube's controllers open one around all that they do), and
/// an event names what it is about itself. Nor what kube warns of an answer that it cannot read, which is all of that answer: the
/// error that it returns is told by who asked.
fn shown<S: Subscriber>(ration: Ration) -> impl Filter<S> + Send + Sync + 'static {
    let is_an_answer = |metadata: &Metadata<'_>| metadata.target() == "kube_client::client";
    ration.and(filter_fn(move |metadata| metadata.is_event() && !is_an_answer(metadata)))
}

#[cfg(test)]
pub(crate) mod tests;
