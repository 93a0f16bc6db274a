//! `/metrics` as Prometheus reads it, whichever server answers the scrape. What there is to count each room knows itself.

use std::fmt;
use std::sync::Arc;

use http::{HeaderValue, Response, header};
use prometheus_client::registry::Registry;

mod process;

/// Media type of the text format of OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Names what a room counts, for a scrape.
pub type RegisterMetrics = Arc<dyn Fn(&mut Registry) + Send + Sync>;

/// The answer to a scrape: what is registered, and this process.
///
/// # Errors
/// When a metric cannot be written as text.
pub fn answer(mut registry: Registry) -> Result<Response<String>, fmt::Error> {
    let mut answer = Response::new(String::new());
    registry.register_collector(Box::new(process::Process::read()));
    prometheus_client::encoding::text::encode(answer.body_mut(), &registry)?;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
    Ok(answer)
}

/// What a scrape would show of this.
#[cfg(test)]
pub(crate) fn shown(register: impl FnOnce(&mut Registry)) -> String {
    let mut registry = Registry::default();
    register(&mut registry);
    answer(registry).expect("text").into_body()
}
