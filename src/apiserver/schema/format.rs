//! Formats of texts that are checked, as upstream does. Others are hints for people. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine;

/// A format that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SchemaFormat {
    Byte,
    Cidr,
    Date,
    DateTime,
    /// A [`SchemaFormat::DateTime`] that [`jiff::Timestamp`] holds, too.
    Instant,
    Duration,
    Email,
    Hostname,
    Ipv4,
    Ipv6,
    Mac,
    Uri,
    Uuid,
}

const NAMES: [(&str, SchemaFormat); 12] = [
    ("byte", SchemaFormat::Byte),
    ("cidr", SchemaFormat::Cidr),
    ("date", SchemaFormat::Date),
    ("date-time", SchemaFormat::DateTime),
    ("duration", SchemaFormat::Duration),
    ("email", SchemaFormat::Email),
    ("hostname", SchemaFormat::Hostname),
    ("ipv4", SchemaFormat::Ipv4),
    ("ipv6", SchemaFormat::Ipv6),
    ("mac", SchemaFormat::Mac),
    ("uri", SchemaFormat::Uri),
    ("uuid", SchemaFormat::Uuid),
];

impl SchemaFormat {
    pub(super) fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    pub(super) fn name(self) -> &'static str {
        if self == Self::Instant {
            return "date-time, before 9999-12-30T22:00:01Z";
        }
        NAMES.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }

    /// Whether a text has the format.
    pub(super) fn holds(self, text: &str) -> bool {
        match self {
            Self::Byte => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
            Self::Cidr => text.contains('/') && text.parse::<ipnetwork::IpNetwork>().is_ok(),
            Self::Date => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
            Self::DateTime => is_date_time(text),
            Self::Instant => is_date_time(text) && text.parse::<jiff::Timestamp>().is_ok(),
            Self::Duration => is_duration(text),
            Self::Email => text.rsplit_once('@').is_some_and(|(user, host)| {
                !user.is_empty() && !host.is_empty() && !text.contains(char::is_whitespace) && !user.contains('@')
            }),
            Self::Hostname => is_hostname(text),
            Self::Ipv4 => text.parse::<Ipv4Addr>().is_ok(),
            Self::Ipv6 => text.parse::<Ipv6Addr>().is_ok(),
            Self::Mac => is_mac(text),
            Self::Uri => is_uri(text),
            Self::Uuid => uuid::Uuid::try_parse(text).is_ok(),
        }
    }
}

/// RFC 3339, section 5.6, in the years 0 to 9999. [`jiff::Timestamp`] ends a day before they do.
fn is_date_time(text: &str) -> bool {
    let Some((date, time)) = text.split_once(['T', 't']) else { return false };
    let Some(at) = time.find(['Z', 'z', '+', '-']) else { return false };
    let (clock, zone) = time.split_at(at);
    let has = |text: &str, at: &[usize]| at.iter().all(|at| text.as_bytes().get(*at) == Some(&b':'));
    let offset = |zone: &str| {
        let zone = zone.strip_prefix(['+', '-']).unwrap_or(zone);
        zone.len() == 5 && has(zone, &[2]) && zone.parse::<jiff::civil::Time>().is_ok()
    };
    SchemaFormat::Date.holds(date)
        && clock.len() >= "00:00:00".len()
        && has(clock, &[2, 5])
        && !clock[6..].starts_with("60")
        && clock.parse::<jiff::civil::Time>().is_ok()
        && (zone.eq_ignore_ascii_case("z") || offset(zone))
}

/// A duration as Go writes it (`1h30m`), or in words (`2 days`).
pub(super) fn is_duration(text: &str) -> bool {
    const UNITS: [&str; 26] = [
        "ns", "nano", "nanos", "us", "µs", "micro", "micros", "ms", "milli", "millis", "s", "sec", "secs", "second",
        "seconds", "m", "min", "minute", "minutes", "h", "hour", "hours", "d", "day", "days", "week",
    ];
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        if rest[..number].parse::<f64>().is_err() {
            return false;
        }
        let after = rest[number..].trim_start_matches(' ');
        let unit = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
        if !UNITS.contains(&&after[..unit]) && !matches!(&after[..unit], "hr" | "hrs" | "w" | "wk" | "weeks") {
            return false;
        }
        rest = &after[unit..];
    }
    true
}

/// RFC 1034, with letters of either case.
fn is_hostname(text: &str) -> bool {
    let label = |label: &str| {
        let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = label.as_bytes();
        bytes.len() <= 63
            && ends(bytes.first())
            && ends(bytes.last())
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
    };
    text.len() <= 255 && text.split('.').all(label)
}

/// 48, 64 or 160 bits, in pairs of digits after colons or dashes, or in fours after dots.
fn is_mac(text: &str) -> bool {
    [(':', 2), ('-', 2), ('.', 4)].into_iter().any(|(separator, width)| {
        let parts: Vec<&str> = text.split(separator).collect();
        let digits = |part: &&str| part.len() == width && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        matches!(parts.len() * width / 2, 6 | 8 | 20) && parts.iter().all(digits)
    })
}

/// A path, or a scheme and what it wants.
fn is_uri(text: &str) -> bool {
    let scheme = text.split_once(':').is_some_and(|(scheme, rest)| {
        !rest.is_empty()
            && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    });
    (text.starts_with('/') || scheme) && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_their_format_or_not() {
        for (format, good, bad) in [
            ("byte", &["YQ==", ""][..], &["*"][..]),
            ("cidr", &["10.0.0.0/8", "fd00::/8"], &["10.0.0.0", "x/8"]),
            ("date", &["2026-02-28"], &["2026-02-30", "2026-2-1"]),
            (
                "date-time",
                &[
                    "2026-02-28T01:02:03Z",
                    "2026-02-28T01:02:03.5+02:00",
                    "2026-02-28t01:02:03z",
                    "9999-12-31T23:59:59Z",
                    "0000-01-01T00:00:00-14:00",
                ],
                &[
                    "2026-02-28",
                    "tomorrow",
                    "2026-02-28T01:02Z",
                    "2026-02-28T01:02:03",
                    "2026-02-28T24:00:00Z",
                    "2026-02-30T01:02:03Z",
                    "2026-02-28T01:02:60Z",
                    "2026-02-28T01:02:03+2",
                    "-009999-01-02T01:59:59Z",
                    "2026-02-28T01:02:03Zé",
                    "2026-02-28T01:02:é3Z",
                ],
            ),
            ("duration", &["1h30m", "0", "1.5s", "2 days", "-3ms"], &["", "h", "5", "5x", "1h-2m"]),
            ("email", &["a@b.c"], &["a", "@b", "a@", "a b@c"]),
            ("hostname", &["a.b-c", "A1"], &["", "-a", "a..b", "_"]),
            ("ipv4", &["10.0.0.1"], &["10.0.0", "::1"]),
            ("ipv6", &["::1"], &["10.0.0.1"]),
            ("mac", &["52:54:00:00:00:01", "52-54-00-00-00-01", "5254.0000.0001"], &["52:54", "zz:54:00:00:00:01"]),
            ("uri", &["https://a/b", "/a", "urn:x"], &["a", "", "a b:c", ":x"]),
            ("uuid", &["b19441c9-e479-4db0-b26d-986b03932f5e"], &["b19441c9"]),
        ] {
            let format = SchemaFormat::named(format).unwrap();
            for text in good {
                assert!(format.holds(text), "{} {text}", format.name());
            }
            for text in bad {
                assert!(!format.holds(text), "{} {text}", format.name());
            }
        }
        assert_eq!(SchemaFormat::named("password"), None);
    }

    #[test]
    fn an_instant_is_a_date_that_controllers_can_read() {
        for (text, is_date, is_instant) in [
            ("2026-02-28t01:02:03.5+02:00", true, true),
            ("0000-01-01T00:00:00-14:00", true, true),
            ("9999-12-30T22:00:00Z", true, true),
            ("9999-12-30T23:00:00Z", true, false),
            ("9999-12-31T00:00:00+02:00", true, true),
            ("9999-12-31T23:59:59Z", true, false),
            // What `jiff` reads beside RFC 3339.
            ("2026-02-28T01:02:03+02:00[Europe/Paris]", false, false),
            ("2026-02-28 01:02:03Z", false, false),
        ] {
            assert_eq!(SchemaFormat::DateTime.holds(text), is_date, "{text}");
            assert_eq!(SchemaFormat::Instant.holds(text), is_instant, "{text}");
            let read = serde_json::from_value::<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>(text.into());
            assert!(read.is_ok() || !is_instant, "{text}: {read:?}");
        }
    }
}
