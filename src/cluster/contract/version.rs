//! Versions of Kubernetes. Pure.

use std::fmt;
use std::str::FromStr;

/// A version of Kubernetes, as `v1.35.2`. What follows the three numbers says which build it is, and counts for nothing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubeVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub patch: u32,
}

impl FromStr for KubeVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text.strip_prefix('v').unwrap_or(text);
        let plain = plain.split(['-', '+']).next().unwrap_or_default();
        let mut numbers = plain.split('.').map(|number| {
            let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            number.parse::<u32>().ok().filter(|_| digits)
        });
        match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
            (Some(Some(major)), Some(Some(minor)), Some(Some(patch)), None) => Ok(Self { major, minor, patch }),
            _ => Err(format!("{text:?} is no version of Kubernetes, such as v1.35.2")),
        }
    }
}

impl fmt::Display for KubeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        let read = |text: &str| text.parse::<KubeVersion>();
        for (text, wanted) in [("v1.35.2", "v1.35.2"), ("1.9.0", "v1.9.0"), ("v1.36.0-rc.1+x", "v1.36.0")] {
            assert_eq!(read(text).map(|version| version.to_string()).as_deref(), Ok(wanted));
        }
        assert!(read("v1.9.9").unwrap() < read("v1.10.0").unwrap());
        for text in ["", "v1", "v1.35", "1.35.x", "v1.35.2.1", "v+1.2.3", "v1.-2.3", "v1.99999999999.0"] {
            assert!(read(text).unwrap_err().contains("v1.35.2"), "{text}");
        }
    }
}
