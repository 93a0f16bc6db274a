//! Times in sentences, told by how far away they are: `next try in 14m` is read sooner than a time in UTC.

use std::sync::LazyLock;

use jiff::Timestamp;
use regex::{Captures, Regex};

/// A time of RFC 3339 in UTC, with the preposition before it.
static TIME: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?:\b(at|until|since) )?\b(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z)").expect("an expression")
});

/// The sentence with each time of it as it is from now.
pub(super) fn relative(text: &str, now: Timestamp) -> String {
    let each = |found: &Captures<'_>| {
        let Ok(time) = found[2].parse::<Timestamp>() else { return found[0].to_owned() };
        let seconds = time.duration_since(now).as_secs();
        let far = length(seconds.unsigned_abs());
        match (found.get(1).map(|word| word.as_str()), seconds < 0) {
            (Some("until"), false) => format!("for {far} more"),
            (Some("until"), true) => format!("until {far} ago"),
            (Some("since"), _) => format!("for {far}"),
            (_, false) => format!("in {far}"),
            (_, true) => format!("{far} ago"),
        }
    };
    TIME.replace_all(text, each).into_owned()
}

/// A time with how far away it is: for fields that are nothing but a time.
pub(super) fn with_distance(text: &str, now: Timestamp) -> Option<String> {
    let is_all = |found: &Captures<'_>| found.get(2).is_some_and(|time| time.as_str() == text);
    TIME.captures(text).filter(is_all)?;
    Some(format!("{text} ({})", relative(text, now)))
}

/// A time by nothing but its distance: `in 14m`, `4d ago`.
pub(in crate::cli) fn from_now(time: Timestamp, now: Timestamp) -> String {
    relative(&time.to_string(), now)
}

/// `45s`, `14m`, `2h5m`, `3d`.
fn length(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        // To the nearest: what was made for thirty days is good for thirty days a moment later.
        _ => format!("{}d", (seconds + 43_200) / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_from_now() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        for (text, wanted) in [
            ("next try at 2026-01-01T12:14:30Z: no answer", "next try in 14m: no answer"),
            (
                "the machine was powered on at 2026-01-01T11:59:00Z and has until 2026-01-01T12:15:00Z for its agent",
                "the machine was powered on 60s ago and has for 15m more for its agent",
            ),
            ("silent since 2026-01-01T09:55:00.5Z", "silent for 2h4m"),
            (
                "the deadline of its wait, 2025-12-28T12:00:00Z, has passed",
                "the deadline of its wait, 4d ago, has passed",
            ),
            ("nothing at all", "nothing at all"),
            ("at 2026-99-99T99:99:99Z", "at 2026-99-99T99:99:99Z"),
        ] {
            assert_eq!(relative(text, now), wanted);
        }
        assert_eq!(with_distance("2026-01-01T11:50:00Z", now).as_deref(), Some("2026-01-01T11:50:00Z (10m ago)"));
        for (time, wanted) in [
            ("2026-01-31T12:00:00Z", "in 30d"),
            ("2026-01-31T11:59:59Z", "in 30d"),
            ("2026-01-30T23:59:59Z", "in 29d"),
            ("2026-01-03T11:59:59Z", "in 47h59m"),
        ] {
            assert_eq!(from_now(time.parse().unwrap(), now), wanted);
        }
        assert_eq!(from_now("2026-01-01T11:50:00.25Z".parse().unwrap(), now), "9m ago");
        assert_eq!(with_distance("at 2026-01-01T11:50:00Z", now), None);
    }
}
