//! Rules for changes of releases: what they are does not change, one KaaSRelease is active, and what is used stays.
//!
//! What is used is looked up in the store at that moment. Of two changes at one moment neither sees the other one: who goes by releases
//! says what is missing, and [`active`](super::join::active) says when two are active.

use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::users::{ReleaseUser, of, some, unsupported, users};
use super::{ANNOTATION_FORCE, KAAS_RELEASES, cluster_release as content, join, kaas_release as kaas_content};
use crate::api::kaas::{ClusterRelease, KaaSRelease, LABEL_ACTIVE};
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};
use crate::store::Store;

/// What is said to who changes a spec.
const FIXED: &str = "a release never changes once it is made: make a new one, under another name";

/// Rules for a ClusterRelease.
pub(super) fn cluster_release(store: &Store, request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    let faults = match (request.operation, read::<ClusterRelease>(request.object)) {
        // What cannot be read is left to the schema; it may go.
        (_, None) => Vec::new(),
        (AdmissionOperation::Create, Some(release)) => content::faults(&release.spec),
        (AdmissionOperation::Update, _) => fixed(request),
        (AdmissionOperation::Delete, Some(release)) => {
            let active = kaas_releases(store).into_iter().filter(join::is_active);
            used(&release.name_any(), &live_users(store), &active.collect::<Vec<_>>())
        }
    };
    told(faults)
}

/// Rules for a KaaSRelease.
pub(super) fn kaas_release(store: &Store, request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    let Some(release) = read::<KaaSRelease>(request.object) else { return Ok(()) };
    let mut faults = match request.operation {
        AdmissionOperation::Create => kaas_content::faults(&release.spec),
        AdmissionOperation::Update => fixed(request),
        AdmissionOperation::Delete if join::is_active(&release) => vec![FieldError::forbidden(
            "metadata.labels",
            "it is the active one: activate another one first (`slipway release activate NAME`), or take its label off",
        )],
        AdmissionOperation::Delete => Vec::new(),
    };
    let was_active = request.old.is_some_and(|old| old["metadata"]["labels"][LABEL_ACTIVE] == "true");
    if request.operation != AdmissionOperation::Delete && !was_active && join::is_active(&release) {
        faults.extend(activation(&release, &kaas_releases(store), &live_users(store)));
    }
    told(faults)
}

fn told(faults: Vec<FieldError>) -> Result<(), Vec<FieldError>> {
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

fn read<T: DeserializeOwned>(object: &Value) -> Option<T> {
    serde_json::from_value(object.clone()).ok()
}

/// Labels and annotations may change.
fn fixed(request: &AdmissionRequest<'_>) -> Vec<FieldError> {
    let same = request.old.is_some_and(|old| old["spec"] == request.object["spec"]);
    if same { Vec::new() } else { vec![FieldError::forbidden("spec", FIXED)] }
}

/// Why a KaaSRelease may not become the active one.
fn activation(release: &KaaSRelease, all: &[KaaSRelease], users: &[ReleaseUser]) -> Vec<FieldError> {
    let name = release.name_any();
    if let Some(other) = all.iter().find(|other| other.name_any() != name && join::is_active(other)) {
        let reason = format!(
            "{} is active, and only one may be: `slipway release activate {name}` switches over",
            other.name_any()
        );
        return vec![FieldError::forbidden("metadata.labels", reason)];
    }
    if release.annotations().get(ANNOTATION_FORCE).is_some_and(|value| value == "true") {
        return Vec::new();
    }
    let left = unsupported(users, release);
    if left.is_empty() {
        return Vec::new();
    }
    let reason = format!(
        "it does not support what these clusters run: {}. Upgrade them first, or `slipway release activate {name} --force`",
        some(&left)
    );
    vec![FieldError::forbidden("metadata.labels", reason)]
}

/// Why a ClusterRelease may not go.
fn used(name: &str, users: &[ReleaseUser], active: &[KaaSRelease]) -> Vec<FieldError> {
    let clusters = of(users, name);
    if !clusters.is_empty() {
        return vec![FieldError::forbidden("metadata.name", format!("it is used by {}", some(&clusters)))];
    }
    let management = active.iter().find(|kaas| kaas.spec.cluster_release == name);
    management
        .map(|kaas| {
            let reason = format!("the active KaaSRelease {} names it as spec.clusterRelease", kaas.name_any());
            FieldError::forbidden("metadata.name", reason)
        })
        .into_iter()
        .collect()
}

fn kaas_releases(store: &Store) -> Vec<KaaSRelease> {
    objects(store, KAAS_RELEASES).iter().filter_map(read).collect()
}

fn live_users(store: &Store) -> Vec<ReleaseUser> {
    users(&objects(store, "cluster.k8s.io/clusters"), &objects(store, "lcm.mirantis.com/lcmclusters"))
}

fn objects(store: &Store, resource: &str) -> Vec<Value> {
    store.list(resource, None).objects.iter().map(|object| object.value()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kaas(name: &str, active: bool, supported: &[&str], management: &str) -> KaaSRelease {
        let list: Vec<Value> = supported
            .iter()
            .enumerate()
            .map(|(at, name)| json!({ "name": name, "version": format!("1.0.{at}") }))
            .collect();
        let labels = if active { json!({ LABEL_ACTIVE: "true" }) } else { json!({}) };
        let spec = json!({"version": "1.0.0", "clusterRelease": management, "supportedClusterReleases": list});
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": spec})).unwrap()
    }

    fn user(release: &str, cluster: &str) -> ReleaseUser {
        ReleaseUser { release: release.into(), cluster: cluster.into(), provider: "baremetal".into() }
    }

    #[test]
    fn one_is_active_and_supports_what_runs() {
        let (one, two) = (kaas("one", true, &["a"], ""), kaas("two", true, &["a", "b"], ""));
        let off = kaas("off", false, &[], "");
        let mut forced = one.clone();
        forced.annotations_mut().insert(ANNOTATION_FORCE.into(), "true".into());
        type Row<'a> = (&'a KaaSRelease, Vec<KaaSRelease>, Vec<ReleaseUser>, Option<&'a str>);
        let rows: [Row<'_>; 6] = [
            (&one, vec![], vec![], None),
            (&one, vec![one.clone(), off.clone()], vec![user("a", "ns/x")], None),
            (&one, vec![off.clone()], vec![user("b", "ns/x"), user("a", "ns/y")], Some("run: ns/x (b). Upgrade")),
            (
                &two,
                vec![one.clone()],
                vec![],
                Some("one is active, and only one may be: `slipway release activate two`"),
            ),
            (&forced, vec![off], vec![user("b", "ns/x")], None),
            (&forced, vec![two.clone()], vec![], Some("two is active")),
        ];
        for (release, all, users, said) in rows {
            let found = activation(release, &all, &users);
            match said {
                None => assert!(found.is_empty(), "{found:?}"),
                Some(said) => assert!(found.len() == 1 && found[0].message.contains(said), "{found:?}"),
            }
        }
    }

    #[test]
    fn what_is_used_stays() {
        let active = [kaas("k", true, &["free"], "management")];
        let many: Vec<ReleaseUser> = (0..11).map(|at| user("many", &format!("ns/c{at}"))).collect();
        for (name, users, said) in [
            ("a", vec![user("a", "ns/x")], Some("it is used by ns/x")),
            ("b", vec![user("a", "ns/x")], None),
            ("free", vec![], None),
            ("management", vec![], Some("KaaSRelease k names it")),
            ("many", many, Some("ns/c7 and 3 more")),
        ] {
            let found = used(name, &users, &active);
            assert_eq!(found.len(), usize::from(said.is_some()), "{name}: {found:?}");
            assert!(said.is_none_or(|said| found[0].message.contains(said)), "{name}: {found:?}");
        }
    }
}
