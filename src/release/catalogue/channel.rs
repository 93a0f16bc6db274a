//! Channels: a folder of releases with an index that has their checksums (`index.yaml`). Pure.
//!
//! ```yaml
//! apiVersion: kaas.mirantis.com/v1alpha1
//! kind: Index
//! kaasReleases:
//!   - {version: 1.0.0, path: releases/kaas/1.0.0.yaml, sha256: …}
//! clusterReleases:
//!   - {version: 1.34.3+1, path: releases/cluster/1.34.3+1.yaml, sha256: …}
//! ```

use std::collections::BTreeSet;

use kube::ResourceExt;
use semver::Version;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::faults::is_sha256;
use super::{cluster_release, kaas_release};
use crate::api::kaas::{ClusterRelease, GROUP, KaaSRelease};
use crate::apiserver::FieldError;
use crate::hex::hex;

/// Name of the index in its folder.
pub const INDEX: &str = "index.yaml";
/// Longest index, in bytes.
pub const INDEX_MAX: u64 = 1 << 20;
/// Longest release, in bytes: an object of the API has 1 MiB at most, and YAML is not much longer.
pub const RELEASE_MAX: u64 = 2 << 20;
/// Releases of a channel.
const RELEASES_MAX: usize = 1000;
/// Longest path of a file, in bytes.
const PATH_MAX: usize = 512;
/// Faults of a release that a message names.
const FAULTS_MAX: usize = 5;

/// The index of a channel.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ChannelIndex {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    /// KaaSReleases.
    #[serde(default)]
    pub kaas_releases: Vec<ChannelEntry>,
    /// ClusterReleases.
    #[serde(default)]
    pub cluster_releases: Vec<ChannelEntry>,
}

/// A release of a channel.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelEntry {
    /// Its version.
    pub version: String,
    /// Its file, from where the index is.
    pub path: String,
    /// SHA-256 of the file.
    pub sha256: String,
}

/// What is wrong with a channel.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ChannelFault(String);

fn fault<T>(reason: impl Into<String>) -> Result<T, ChannelFault> {
    Err(ChannelFault(reason.into()))
}

impl ChannelIndex {
    /// Reads an index. Everything that it names is below its own folder.
    ///
    /// # Errors
    /// When it is none, or names what it may not.
    pub fn parse(text: &[u8]) -> Result<Self, ChannelFault> {
        let read: Result<Self, ChannelFault> = yaml(text);
        let index = read.map_err(|reason| ChannelFault(format!("{INDEX}: {reason}")))?;
        if index.kind != "Index" || index.api_version.split_once('/').is_none_or(|(group, _)| group != GROUP) {
            return fault(format!("{INDEX} is no Index of {GROUP}/v1alpha1"));
        }
        let count = index.entries().count();
        if count == 0 || count > RELEASES_MAX {
            return fault(format!("{INDEX} has {count} releases: a channel has 1 to {RELEASES_MAX}"));
        }
        let mut paths = BTreeSet::new();
        for entry in index.entries() {
            if !is_below(&entry.path) {
                return fault(format!("{INDEX}: the path {:?} is not one below the index", entry.path));
            }
            if !paths.insert(&entry.path) {
                return fault(format!("{INDEX}: the path {:?} is named twice", entry.path));
            }
            if !is_sha256(&entry.sha256) {
                return fault(format!("{INDEX}: {}: sha256 is no SHA-256: 64 small hexadecimal digits", entry.path));
            }
            if let Err(reason) = Version::parse(&entry.version) {
                return fault(format!("{INDEX}: {}: version {:?}: {reason}", entry.path, entry.version));
            }
        }
        Ok(index)
    }

    /// All releases.
    pub fn entries(&self) -> impl Iterator<Item = &ChannelEntry> {
        self.cluster_releases.iter().chain(&self.kaas_releases)
    }
}

/// Whether a path stays below where it begins, whatever reads it: a folder, a URL or an archive.
fn is_below(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    let parts = path.split('/');
    !path.is_empty()
        && path.len() <= PATH_MAX
        && parts.into_iter().all(|part| !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain))
}

impl ChannelEntry {
    /// Whether this is the file that the index means.
    ///
    /// # Errors
    /// When its checksum is another one.
    pub fn check(&self, content: &[u8]) -> Result<(), ChannelFault> {
        let found = hex(&Sha256::digest(content));
        if found == self.sha256 {
            return Ok(());
        }
        let path = &self.path;
        fault(format!("{path} has the SHA-256 {found}, and {INDEX} says {}: it was changed or cut short", self.sha256))
    }

    /// The ClusterRelease of a file that was checked.
    ///
    /// # Errors
    /// When it is none, or not the one that the index means.
    pub fn cluster_release(&self, content: &[u8]) -> Result<ClusterRelease, ChannelFault> {
        let release: ClusterRelease = self.object(content, "ClusterRelease")?;
        self.judged(&release, &release.spec.version, &cluster_release::faults(&release.spec))?;
        Ok(release)
    }

    /// The KaaSRelease of a file that was checked.
    ///
    /// # Errors
    /// When it is none, or not the one that the index means.
    pub fn kaas_release(&self, content: &[u8]) -> Result<KaaSRelease, ChannelFault> {
        let release: KaaSRelease = self.object(content, "KaaSRelease")?;
        self.judged(&release, &release.spec.version, &kaas_release::faults(&release.spec))?;
        Ok(release)
    }

    fn object<T: DeserializeOwned>(&self, content: &[u8], kind: &str) -> Result<T, ChannelFault> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head {
            #[serde(default)]
            api_version: String,
            #[serde(default)]
            kind: String,
        }
        let named = |reason: ChannelFault| ChannelFault(format!("{}: {reason}", self.path));
        let head: Head = yaml(content).map_err(named)?;
        if head.kind != kind || head.api_version != format!("{GROUP}/v1alpha1") {
            return fault(format!("{} is no {kind} of {GROUP}/v1alpha1", self.path));
        }
        yaml(content).map_err(named)
    }

    fn judged(&self, release: &impl ResourceExt, version: &str, faults: &[FieldError]) -> Result<(), ChannelFault> {
        let path = &self.path;
        if release.meta().name.as_deref().unwrap_or_default().is_empty() {
            return fault(format!("{path}: metadata.name is missing"));
        }
        if version != self.version {
            return fault(format!("{path} has the version {version:?}, and {INDEX} says {:?}", self.version));
        }
        if faults.is_empty() {
            return Ok(());
        }
        let shown: Vec<String> =
            faults.iter().take(FAULTS_MAX).map(|fault| format!("{}: {}", fault.path, fault.message)).collect();
        fault(format!("{path}: {}", shown.join("; ")))
    }
}

/// One document of YAML.
fn yaml<T: DeserializeOwned>(content: &[u8]) -> Result<T, ChannelFault> {
    let Ok(text) = str::from_utf8(content) else { return fault("is no text in UTF-8") };
    serde_saphyr::from_str(text).map_err(|reason| ChannelFault(reason.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUM: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn index(entries: &str) -> String {
        format!("apiVersion: kaas.mirantis.com/v1alpha1\nkind: Index\n{entries}")
    }

    fn one(path: &str) -> String {
        index(&format!("clusterReleases:\n- {{version: 1.0.0+1, path: \"{path}\", sha256: {SUM}}}\n"))
    }

    #[test]
    fn an_index_names_what_is_below_it() {
        let read = ChannelIndex::parse(one("releases/cluster/1.0.0+1.yaml").as_bytes()).unwrap();
        assert_eq!(read.entries().count(), 1);
        for path in [
            "/etc/shadow",
            "../x",
            "a/../../x",
            "a//b",
            "./a",
            "a/",
            "",
            "http://x/y",
            "a%2f..%2fb",
            "a\\b",
            "a b",
            "a?b",
        ] {
            let refused = ChannelIndex::parse(one(path).as_bytes()).unwrap_err().to_string();
            assert!(refused.contains("is not one below the index") || path.contains('\\'), "{path}: {refused}");
        }
        for (text, said) in [
            ("kind: Index\n".to_owned(), "is no Index"),
            ("apiVersion: kaas.mirantis.com/v1alpha1\nkind: List\n".to_owned(), "is no Index"),
            (index(""), "has 0 releases"),
            (one("a").replace(SUM, "abc"), "sha256 is no SHA-256"),
            (one("a").replace("1.0.0+1", "one"), "version \"one\""),
            (one("a") + "kaasReleases:\n- {version: 1.0.0, path: a, sha256: " + SUM + "}\n", "named twice"),
            ("a: [".to_owned(), "index.yaml: "),
        ] {
            let refused = ChannelIndex::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(said), "{text}: {refused}");
        }
        assert!(ChannelIndex::parse(&[0xff, 0xfe]).unwrap_err().to_string().contains("UTF-8"));
    }

    #[test]
    fn a_file_is_the_one_that_the_index_means() {
        let text = "apiVersion: kaas.mirantis.com/v1alpha1\nkind: ClusterRelease\nmetadata: {name: a}\n\
                    spec: {version: 1.0.0, lcmType: byo}\n";
        let sha256 = hex(&Sha256::digest(text.as_bytes()));
        let entry = ChannelEntry { version: "1.0.0".into(), path: "a.yaml".into(), sha256 };
        entry.check(text.as_bytes()).unwrap();
        assert_eq!(entry.cluster_release(text.as_bytes()).unwrap().name_any(), "a");
        let refused = entry.check(&text.as_bytes()[..40]).unwrap_err().to_string();
        assert!(refused.starts_with("a.yaml has the SHA-256 "), "{refused}");
        for (from, to, said) in [
            ("version: 1.0.0", "version: 1.0.1", "index.yaml says \"1.0.0\""),
            ("ClusterRelease", "Secret", "is no ClusterRelease"),
            ("{name: a}", "{}", "metadata.name is missing"),
            ("byo", "k0s", "spec.lcmType: "),
            ("v1alpha1", "v1", "is no ClusterRelease"),
        ] {
            let refused = entry.cluster_release(text.replace(from, to).as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(said), "{to}: {refused}");
        }
        assert!(entry.kaas_release(text.as_bytes()).unwrap_err().to_string().contains("is no KaaSRelease"));
    }
}
