//! Exit codes and error output of commands.

use std::fmt::Display;

use super::client::refusal;
use crate::log::escaped_lines;

/// A failure that is not simply printed with exit code 1.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandFailure {
    /// The command line makes no sense: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// What failed was said already, item by item.
    #[error("some of it failed")]
    Reported,
}

/// The command line makes no sense.
pub(super) fn usage(message: impl Into<String>) -> anyhow::Error {
    CommandFailure::Usage(message.into()).into()
}

/// Says what failed. Messages hold what others wrote (names, what a server or an object says): nothing of it rules the terminal.
pub(super) fn complain(what: impl Display) {
    eprintln!("slipway: {}", plain(&what.to_string()));
}

/// A text of lines without anything that a terminal would obey.
pub(super) fn plain(text: &str) -> String {
    String::from_utf8_lossy(&escaped_lines(text.as_bytes())).into_owned()
}

/// An error with its causes; many errors say their cause themselves, and once is enough. What the API refused is said as
/// [`refusal`] says it.
pub(super) fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let (said, last) = match cause.downcast_ref() {
            Some(kube::Error::Api(status)) => (refusal(status), true),
            _ => (cause.to_string(), false),
        };
        if text.is_empty() {
            text = said;
        } else if !text.contains(&said) {
            text += &format!(": {said}");
        }
        if last {
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_rules_no_terminal() {
        assert_eq!(plain("no \u{1b}[2Jhost\u{9b}m\n* a: \u{202e}b"), "no \\u001b[2Jhost\\u009bm\n* a: \\u202eb");
    }
}
