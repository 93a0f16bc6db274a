//! Lengths of time, as the file has them.

use std::time::Duration;

use serde::Deserialize;

/// Longest length of time, in hours: ten years. Whatever is reckoned with it stays a time.
const SPAN_MAX_HOURS: u64 = 10 * 8760;

/// A length of time, written `90s`, `15m`, `1h 30m`; at most ten years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub Duration);

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let fail = || format!("{text:?} is not a length of time: write 90s, 15m or 1h");
        let span: jiff::SignedDuration = text.parse().map_err(|_| fail())?;
        let span = Duration::try_from(span).ok().filter(|span| !span.is_zero()).ok_or_else(fail)?;
        if span > Duration::from_secs(SPAN_MAX_HOURS * 3600) {
            return Err(format!("{text:?} is too long: {SPAN_MAX_HOURS}h at most"));
        }
        Ok(Self(span))
    }
}

impl std::fmt::Display for Span {
    /// As it is written in the file.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match jiff::SignedDuration::try_from(self.0) {
            Ok(span) => write!(f, "{span:#}"),
            Err(_) => write!(f, "{:?}", self.0),
        }
    }
}
