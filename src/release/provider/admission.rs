//! What Clusters, and Machines of clusters with releases, must be before they are stored, beyond what their schemas say.
//!
//! What a stored object breaks already does not stop another change of it, and nothing stops its deletion. Objects of other providers
//! are not judged. Releases and clusters are looked up in the store at that moment.

use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::machine_spec;
use super::{CLUSTERS, desired};
use crate::api::kaas::PublicKey;
use crate::api::lcm::LCMMachine;
use crate::api::machine_api::{Cluster, Machine};
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};
use crate::release::catalogue::known::Offer;
use crate::release::keep;
use crate::release::names::{LABEL_CLUSTER, LABEL_CONTROL_PLANE};
use crate::release::wish::judge;
use crate::release::wish::shape::{self, ClusterWish, PATH};
use crate::runtime::owners;
use crate::store::Store;

/// LCMMachines by group and plural.
const LCM_MACHINES: &str = "lcm.mirantis.com/lcmmachines";

/// Rules for a change of a Cluster.
///
/// # Errors
///
/// The first rule that it breaks.
pub fn cluster(store: &Store, request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let Some(new) = typed::<Cluster>(request.object) else { return Ok(()) };
    let old = request.old.and_then(typed::<Cluster>);
    one(judge_cluster(&new, old.as_ref(), |release| Offer::of_store(store, release)))
}

/// Rules for a change of a PublicKey.
///
/// # Errors
///
/// When it is no line of `authorized_keys`.
pub fn public_key(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    let Some(key) = typed::<PublicKey>(request.object).filter(|_| request.operation != AdmissionOperation::Delete)
    else {
        return Ok(());
    };
    let stays = request.old.and_then(typed::<PublicKey>).is_some_and(|old| old.spec == key.spec);
    let fault = desired::key_fault(&key.spec.public_key).filter(|_| !stays);
    one(fault.map(|reason| FieldError::forbidden("spec.publicKey", reason)))
}

fn judge_cluster(new: &Cluster, old: Option<&Cluster>, offer: impl Fn(&str) -> Offer) -> Option<FieldError> {
    if old.is_some_and(|old| old.spec == new.spec) {
        return None;
    }
    if let Some(old) = old
        && shape::is_ours(&old.spec) != shape::is_ours(&new.spec)
        && old.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty())
    {
        return Some(FieldError::forbidden(
            format!("{PATH}.apiVersion"),
            "a Cluster that is held cannot become another provider's",
        ));
    }
    let wish = match shape::read(new) {
        Ok(Some(wish)) => wish,
        Ok(None) => return None,
        Err(fault) => return Some(FieldError::forbidden(fault.field, fault.reason)),
    };
    let before = old.and_then(|old| shape::read(old).ok().flatten());
    if let Some(before) = &before {
        if let Some(field) = judge::held_by_maintenance(before, &wish) {
            let reason = "in maintenance only publicKeys change: set maintenance to false, and change it then";
            return Some(FieldError::forbidden(path_of(field), reason));
        }
        if let Some(field) = judge::fixed(before, &wish) {
            let reason = "the cluster's nodes have it in their certificates: another one needs another Cluster";
            return Some(FieldError::forbidden(path_of(field), reason));
        }
    }
    let offer = offer(&wish.release);
    let judged = judge_release(&wish, before.as_ref(), old, &offer).and_then(|()| match &before {
        // What a release does not have any more is said in the status.
        Some(before) if before.charts == wish.charts && before.release == wish.release => Ok(()),
        _ => judge::overrides(&wish, &offer),
    });
    judged.err().map(|refusal| FieldError::forbidden(path_of(refusal.field), refusal.message))
}

fn judge_release(
    wish: &ClusterWish,
    before: Option<&ClusterWish>,
    old: Option<&Cluster>,
    offer: &Offer,
) -> Result<(), judge::Refusal> {
    let Some(before) = before else { return judge::release(wish, offer) };
    if before.release == wish.release {
        return Ok(());
    }
    judge::release(wish, offer)?;
    // While it is upgraded some nodes have the release of before.
    let status = old.and_then(|old| old.status.as_ref()).and_then(|status| status.provider_status.as_ref());
    let current = status.and_then(|status| status["releaseRefs"]["current"]["name"].as_str()).unwrap_or_default();
    judge::upgrade(wish, [before.release.as_str(), current], offer)
}

fn path_of(field: &str) -> String {
    if field == "clusterNetwork" { "spec.clusterNetwork".into() } else { format!("{PATH}.{field}") }
}

/// Rules for a change of a Machine that is of a cluster with a release.
///
/// # Errors
///
/// The first rule that it breaks.
pub fn machine(store: &Store, request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.status || request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    let Some(new) = typed::<Machine>(request.object) else { return Ok(()) };
    let old = request.old.and_then(typed::<Machine>);
    let is_known = old.as_ref().is_some_and(|old| {
        let (namespace, name) = (old.metadata.namespace.as_deref().unwrap_or_default(), old.name_any());
        let lcm = store.get(LCM_MACHINES, namespace, &name).and_then(|stored| typed::<LCMMachine>(&stored.value()));
        lcm.is_some_and(|lcm| keep::is_of(&lcm, &owners::owner(old, true)))
    });
    one(judge_machine(&new, old.as_ref(), is_known, |namespace, name| {
        let cluster: Cluster = typed(&store.get(CLUSTERS, namespace, name)?.value())?;
        let wish = shape::read(&cluster).ok().flatten()?;
        Some(Offer::of_store(store, &wish.release))
    }))
}

fn judge_machine(
    new: &Machine,
    old: Option<&Machine>,
    is_known: bool,
    offer: impl Fn(&str, &str) -> Option<Offer>,
) -> Option<FieldError> {
    let label = |machine: &Machine, key: &str| machine.metadata.labels.as_ref().and_then(|all| all.get(key)).cloned();
    if let Some(old) = old
        && machine_spec::cluster_of(old).is_some()
        && (is_known || old.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty()))
    {
        let of_plane = |machine: &Machine| label(machine, LABEL_CONTROL_PLANE).is_some();
        let changed = if label(old, LABEL_CLUSTER) != label(new, LABEL_CLUSTER) {
            Some((LABEL_CLUSTER, "a Machine that its cluster knows stays in it: delete it, and make another one"))
        } else if of_plane(old) != of_plane(new) {
            Some((
                LABEL_CONTROL_PLANE,
                "a Machine that its cluster knows stays what it is in it: delete it, and make another one",
            ))
        } else {
            None
        };
        if let Some((key, reason)) = changed {
            return Some(FieldError::forbidden(format!("metadata.labels[{key}]"), reason));
        }
    }
    let cluster = machine_spec::cluster_of(new)?;
    let annotations = |machine: &Machine| machine.metadata.annotations.clone();
    if old.is_some_and(|old| {
        old.spec == new.spec && annotations(old) == annotations(new) && machine_spec::cluster_of(old) == Some(cluster)
    }) {
        return None;
    }
    let wish = match machine_spec::read(new) {
        Ok(wish) => wish,
        Err(fault) => return Some(FieldError::forbidden(fault.field, fault.reason)),
    };
    if let Some(before) = old.and_then(|old| machine_spec::read(old).ok())
        && (new.metadata.deletion_timestamp.is_some() || before.delete)
        && wish.deletion_policy < before.deletion_policy
    {
        let reason = "a Machine that goes already is let go sooner, not later: graceful, unsafe, forced";
        return Some(FieldError::forbidden(format!("{PATH}.deletionPolicy"), reason));
    }
    // Without its Cluster nobody knows; the controller does then.
    let release = offer(new.metadata.namespace.as_deref().unwrap_or_default(), cluster)?.release?;
    if let Some((key, value)) = machine_spec::forbidden_label(&wish, &release.spec.allowed_node_labels) {
        let reason = format!("{key}={value} is not in allowedNodeLabels of the cluster's release");
        return Some(FieldError::forbidden(format!("{PATH}.nodeLabels"), reason));
    }
    if let Some(asked) = &wish.distribution
        && let Err(fault) = crate::release::catalogue::join::distribution(&release, Some(asked))
    {
        return Some(FieldError::forbidden(format!("{PATH}.distribution"), fault.to_string()));
    }
    None
}

fn one(fault: Option<FieldError>) -> Result<(), Vec<FieldError>> {
    fault.map_or(Ok(()), |fault| Err(vec![fault]))
}

/// An object of another form is refused by its schema.
fn typed<T: DeserializeOwned>(object: &Value) -> Option<T> {
    serde_json::from_value(object.clone()).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::release::names::{API_VERSION, CLUSTER_KIND, MACHINE_KIND};

    fn offer(name: &str) -> Offer {
        let kaas = json!({"metadata": {"name": "k"}, "spec": {"version": "1.0.0", "supportedClusterReleases": [
            {"name": "r1", "version": "1.0.0", "availableUpgrades": [{"version": "2.0.0"}]}, {"name": "r2", "version": "2.0.0"},
        ]}});
        let release = json!({"metadata": {"name": name}, "spec": {"version": "1.0.0",
            "allowedNodeLabels": [{"key": "role", "value": "db"}], "allowedDistributions": [{"id": "ubuntu/noble"}]}});
        let release = ["r1", "r2"].contains(&name).then(|| Arc::new(serde_json::from_value(release).unwrap()));
        Offer { kaas: Ok(Arc::new(serde_json::from_value(kaas).unwrap())), release }
    }

    fn cluster(change: Value) -> Cluster {
        let mut cluster = json!({
            "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "c", "namespace": "rack"},
            "spec": {
                "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/16"]}, "pods": {"cidrBlocks": ["10.244.0.0/16"]}},
                "providerSpec": {"value": {"apiVersion": API_VERSION, "kind": CLUSTER_KIND, "release": "r1", "loadBalancerHost": "192.0.2.5"}},
            },
        });
        json_patch::merge(&mut cluster, &change);
        serde_json::from_value(cluster).unwrap()
    }

    fn valued(change: Value) -> Cluster {
        cluster(json!({"spec": {"providerSpec": {"value": change}}}))
    }

    #[test]
    fn a_cluster_is_what_its_release_lets_it_be() {
        let upgrading = |release: &str| {
            let refs = json!({"releaseRefs": {"current": {"name": "r1"}}});
            let mut cluster = valued(json!({"release": release}));
            cluster.status = serde_json::from_value(json!({"providerStatus": refs})).unwrap();
            cluster
        };
        let other = || cluster(json!({"spec": {"providerSpec": {"value": {"apiVersion": "aws/v1"}}}}));
        let held = |mut cluster: Cluster| {
            cluster.metadata.finalizers = Some(vec!["f".into()]);
            cluster
        };
        let rows: Vec<(Cluster, Option<Cluster>, &str)> = vec![
            (valued(json!({})), None, ""),
            (valued(json!({"release": "r9"})), None, "there is no ClusterRelease"),
            (valued(json!({"odd": 1})), None, "no such field"),
            (valued(json!({"helmReleases": [{"name": "x"}]})), None, "no Helm release"),
            (cluster(json!({"spec": {"clusterNetwork": null}})), None, "must name a network"),
            (other(), None, ""),
            (valued(json!({"release": "r2"})), Some(valued(json!({}))), ""),
            (valued(json!({})), Some(valued(json!({"release": "r2"}))), "r1 may not follow r2"),
            // It goes to the second one, and back there is no way.
            (valued(json!({})), Some(upgrading("r2")), "r1 may not follow r2"),
            // A release that is gone since stops nothing else.
            (valued(json!({"release": "r9", "maxWorkerUpgradeCount": 2})), Some(valued(json!({"release": "r9"}))), ""),
            (
                valued(json!({"maintenance": true, "publicKeys": [{"name": "k"}]})),
                Some(valued(json!({"maintenance": true}))),
                "",
            ),
            (
                valued(json!({"maintenance": true, "release": "r2"})),
                Some(valued(json!({"maintenance": true}))),
                "in maintenance",
            ),
            (valued(json!({"loadBalancerHost": "192.0.2.6"})), Some(valued(json!({}))), "certificates"),
            (held(other()), Some(held(valued(json!({})))), "another provider's"),
        ];
        for (new, old, wanted) in rows {
            let said = judge_cluster(&new, old.as_ref(), offer).map(|error| format!("{error:?}"));
            assert_eq!(said.is_none(), wanted.is_empty(), "{said:?} {wanted}");
            assert!(said.as_deref().unwrap_or_default().contains(wanted), "{said:?} {wanted}");
        }
    }

    #[test]
    fn a_machine_is_what_its_cluster_lets_it_be() {
        let machine = |value: Value, meta: Value| -> Machine {
            let mut machine = json!({
                "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine",
                "metadata": {"name": "m", "namespace": "rack", "labels": {LABEL_CLUSTER: "c"}},
                "spec": {"providerSpec": {"value": {"apiVersion": API_VERSION, "kind": MACHINE_KIND}}},
            });
            json_patch::merge(&mut machine["spec"]["providerSpec"]["value"], &value);
            json_patch::merge(&mut machine["metadata"], &meta);
            serde_json::from_value(machine).unwrap()
        };
        let plain = || machine(json!({}), json!({}));
        let held = json!({"finalizers": ["f"]});
        let goes = json!({"finalizers": ["f"], "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let rows: Vec<(Machine, Option<Machine>, &str)> = vec![
            (plain(), None, ""),
            (machine(json!({"nodeLabels": [{"key": "role", "value": "db"}]}), json!({})), None, ""),
            (machine(json!({"nodeLabels": [{"key": "role", "value": "web"}]}), json!({})), None, "allowedNodeLabels"),
            (machine(json!({"distribution": "Ubuntu/Noble"}), json!({})), None, ""),
            (machine(json!({"distribution": "debian"}), json!({})), None, "no distribution"),
            (machine(json!({"deletionPolicy": "never"}), json!({})), None, "unknown variant"),
            (
                machine(json!({}), json!({"finalizers": ["f"], "labels": {LABEL_CLUSTER: "d"}})),
                Some(machine(json!({}), held.clone())),
                "stays in it",
            ),
            (machine(json!({}), json!({"labels": {LABEL_CLUSTER: "d"}})), Some(plain()), ""),
            (
                machine(json!({}), json!({"finalizers": ["f"], "labels": {LABEL_CONTROL_PLANE: ""}})),
                Some(machine(json!({}), held)),
                "stays what it is",
            ),
            (machine(json!({"deletionPolicy": "unsafe"}), goes.clone()), Some(machine(json!({}), goes.clone())), ""),
            (
                machine(json!({"delete": true, "deletionPolicy": "graceful"}), json!({})),
                Some(machine(json!({"delete": true, "deletionPolicy": "unsafe"}), json!({}))),
                "sooner, not later",
            ),
            (
                machine(json!({"deletionPolicy": "graceful"}), goes.clone()),
                Some(machine(json!({"deletionPolicy": "forced"}), goes)),
                "sooner, not later",
            ),
        ];
        for (new, old, wanted) in rows {
            let said = judge_machine(&new, old.as_ref(), false, |_, name| (name == "c").then(|| offer("r1")));
            let said = said.map(|error| format!("{error:?}"));
            assert_eq!(said.is_none(), wanted.is_empty(), "{said:?} {wanted}");
            assert!(said.as_deref().unwrap_or_default().contains(wanted), "{said:?} {wanted}");
        }
        // Its agent is told already.
        for labels in [json!({LABEL_CLUSTER: "d"}), json!({LABEL_CONTROL_PLANE: ""})] {
            let moved = machine(json!({}), json!({ "labels": labels }));
            let said = judge_machine(&moved, Some(&plain()), true, |_, _| None);
            assert!(said.is_some_and(|error| format!("{error:?}").contains("that its cluster knows")), "{labels}");
        }
    }
}
