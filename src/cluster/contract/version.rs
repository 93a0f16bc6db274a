//! Versions of Kubernetes. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::api::cluster::v1beta2::Machine;
use crate::api::cluster::{VERSIONS_MAX, VersionCount};

/// Longest version that is counted, in letters: kubelets say what they like.
const LETTERS_MAX: usize = 256;

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

/// The version that a machine has: what its kubelet says, or else what is wished for.
pub fn version_of(machine: &Machine) -> Option<&str> {
    let info = machine.status.as_ref().and_then(|status| status.node_info.as_ref());
    let said = info.map(|info| info.kubelet_version.as_str()).filter(|version| !version.is_empty());
    said.or(machine.spec.version.as_deref())
}

/// How many machines have each version, the oldest first.
pub fn count_versions<'v>(versions: impl IntoIterator<Item = &'v str>) -> Vec<VersionCount> {
    let mut counts: BTreeMap<(Option<KubeVersion>, &str), i32> = BTreeMap::new();
    let fits = |version: &&str| !version.is_empty() && version.chars().count() <= LETTERS_MAX;
    for version in versions.into_iter().filter(fits) {
        *counts.entry((version.parse().ok(), version)).or_default() += 1;
    }
    let counts = counts.into_iter().take(VERSIONS_MAX);
    counts.map(|((_, version), count)| VersionCount { version: version.to_owned(), replicas: Some(count) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_counted_the_oldest_first() {
        let of = |versions: &[&str]| -> Vec<(String, i32)> {
            let counted = count_versions(versions.iter().copied());
            counted.into_iter().map(|one| (one.version, one.replicas.unwrap())).collect()
        };
        let counted = of(&["v1.10.0", "", "v1.9.0", "v1.10.0", &"x".repeat(LETTERS_MAX + 1)]);
        assert_eq!(counted, [("v1.9.0".to_owned(), 1), ("v1.10.0".to_owned(), 2)]);
        let many: Vec<String> = (0..=VERSIONS_MAX).map(|patch| format!("v1.35.{patch}")).collect();
        assert_eq!(of(&many.iter().map(String::as_str).collect::<Vec<_>>()).len(), VERSIONS_MAX);
    }

    #[test]
    fn a_machine_has_the_version_that_its_kubelet_says() {
        let mut machine = Machine::new("m", Default::default());
        assert_eq!(version_of(&machine), None);
        machine.spec.version = Some("v1.36.0".into());
        assert_eq!(version_of(&machine), Some("v1.36.0"));
        let info = machine.status.get_or_insert_default().node_info.get_or_insert_default();
        assert_eq!(info.kubelet_version, "");
        info.kubelet_version = "v1.35.0".into();
        assert_eq!(version_of(&machine), Some("v1.35.0"));
        machine.status.as_mut().unwrap().node_info.as_mut().unwrap().kubelet_version.clear();
        assert_eq!(version_of(&machine), Some("v1.36.0"));
    }

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
