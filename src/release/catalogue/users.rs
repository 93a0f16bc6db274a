//! Which clusters use which release. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::join::{PROVIDER, supported};
use crate::api::kaas::{KaaSRelease, LABEL_PROVIDER};

/// Users that a message names.
const SHOWN: usize = 8;

/// A cluster that runs a release, or is to run it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReleaseUser {
    /// ClusterRelease, by its name.
    pub release: String,
    /// `namespace/name`.
    pub cluster: String,
    /// Who provides its machines.
    pub provider: String,
}

/// What is used, of objects as the API has them: Clusters of `cluster.k8s.io` and LCMClusters. An object that cannot be read uses nothing.
pub fn users<'a>(
    clusters: impl IntoIterator<Item = &'a Value>,
    lcm_clusters: impl IntoIterator<Item = &'a Value>,
) -> Vec<ReleaseUser> {
    let mut providers = BTreeMap::new();
    let mut found = BTreeSet::new();
    for object in clusters {
        let provider = object["metadata"]["labels"][LABEL_PROVIDER].as_str().unwrap_or(PROVIDER).to_owned();
        providers.insert(place(object), provider);
        found.extend(named(object, "/spec/providerSpec/value/release"));
    }
    for object in lcm_clusters {
        found.extend(["/spec/release", "/status/release"].into_iter().filter_map(|field| named(object, field)));
    }
    let provider = |cluster: &String| providers.get(cluster).cloned().unwrap_or_else(|| PROVIDER.to_owned());
    let user = |(release, cluster): (String, String)| ReleaseUser { provider: provider(&cluster), release, cluster };
    found.into_iter().map(user).collect()
}

fn place(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

fn named(object: &Value, field: &str) -> Option<(String, String)> {
    let release = object.pointer(field)?.as_str().filter(|name| !name.is_empty())?;
    Some((release.to_owned(), place(object)))
}

/// Clusters that use a release.
pub fn of(users: &[ReleaseUser], release: &str) -> Vec<String> {
    users.iter().filter(|user| user.release == release).map(|user| user.cluster.clone()).collect()
}

/// Clusters that use what a KaaSRelease does not support, each with its release.
pub fn unsupported(users: &[ReleaseUser], kaas: &KaaSRelease) -> Vec<String> {
    let unsupported = users.iter().filter(|user| !supported(kaas, &user.release, &user.provider));
    unsupported.map(|user| format!("{} ({})", user.cluster, user.release)).collect()
}

/// Some of them, and how many more there are.
pub fn some(users: &[String]) -> String {
    let shown = users[..users.len().min(SHOWN)].join(", ");
    match users.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
