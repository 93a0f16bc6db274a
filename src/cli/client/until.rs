//! Waiting for objects: a condition is looked at after every change, never by the clock.

use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use super::connect::ClientSession;
use super::errors::ApiRequestError;
use super::request;
use super::types::ServedType;

/// Pause before a broken watch is made again.
const PAUSE: Duration = Duration::from_millis(500);

/// What an object is at the moment: `None` when it is not there.
pub(super) type PolledObject<'o> = Option<&'o Value>;

/// One object to wait for.
pub(super) struct Awaited<'a> {
    pub of: &'a ServedType,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// How waiting ended.
#[derive(Debug, PartialEq)]
pub(super) enum WaitEnd<T> {
    /// The condition holds.
    Done(T),
    /// The time is up.
    TimedOut,
}

impl ClientSession {
    /// Waits until `done` has an answer for the object.
    pub(super) async fn until<T>(
        &self,
        awaited: &Awaited<'_>,
        deadline: Instant,
        mut done: impl FnMut(PolledObject<'_>) -> Option<T>,
    ) -> Result<WaitEnd<T>, ApiRequestError> {
        let path = awaited.of.path(Some(awaited.namespace), None);
        let fields = format!("metadata.name={}", awaited.name);
        let waiting = async {
            loop {
                let list = self.get(&path, &[("fieldSelector", &fields)], request::JSON).await?;
                let object = list["items"].as_array().and_then(|items| items.first());
                if let Some(answer) = done(object) {
                    return Ok(answer);
                }
                let revision = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
                let query = [("fieldSelector", fields.as_str()), ("resourceVersion", revision)];
                let events = match self.watch(&path, &query, request::JSON).await {
                    Err(error) if error.is_expired() => continue,
                    events => events?,
                };
                let mut events = std::pin::pin!(events);
                while let Some(Ok(event)) = events.next().await {
                    let answer = match event["type"].as_str() {
                        Some("BOOKMARK") => None,
                        Some("DELETED") => done(None),
                        _ => done(Some(&event["object"])),
                    };
                    if let Some(answer) = answer {
                        return Ok(answer);
                    }
                }
                // It ended or broke: the object is read again, which fails when there is no server.
                sleep(PAUSE).await;
            }
        };
        match timeout_at(deadline, waiting).await {
            Ok(answer) => answer.map(WaitEnd::Done),
            Err(_) => Ok(WaitEnd::TimedOut),
        }
    }
}

/// A length of time on the command line: `90s`, `5m`, `0` for not waiting at all; a negative one for a week.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
    let fail = || format!("{text:?} is not a length of time: write 90s, 5m or 1h");
    if text.starts_with('-') {
        return Ok(WEEK);
    }
    if text.chars().all(|char| char.is_ascii_digit()) && !text.is_empty() {
        return text.parse().map(Duration::from_secs).map_err(|_| fail());
    }
    let span: jiff::SignedDuration = text.parse().map_err(|_| fail())?;
    Duration::try_from(span).map_err(|_| fail())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_kubectl_reads_them() {
        for (text, seconds) in [("90s", 90), ("5m", 300), ("1h30m", 5400), ("0", 0), ("45", 45), ("-1s", 7 * 24 * 3600)]
        {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert!(duration("soon").is_err());
    }
}
