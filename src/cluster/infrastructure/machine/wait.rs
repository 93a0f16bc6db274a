//! What a Metal3Machine waits for before it takes a host. Pure.

use kube::ResourceExt;

use crate::api::cluster::keys::{LABEL_CONTROL_PLANE, LABEL_DEPLOYMENT};
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::api::infrastructure::v1beta2::{Metal3Cluster, Metal3Machine};
use crate::api::metal3::SecretReference;
use crate::cluster::infrastructure::names::CONTROL_PLANE_GROUP;
use crate::runtime::conditions::{self, ConditionVerdict, Severity};
use crate::runtime::owners;

/// Letters of a label's value, at most.
const LABEL_MOST: usize = 63;

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineWait {
    /// The Machine that it is for.
    Machine,
    /// The Cluster of that Machine.
    Cluster(String),
    /// What the Cluster runs on.
    Infrastructure(String),
    /// The Metal3Cluster of the Cluster.
    Metal3Cluster(String),
    /// The Secret with the user data.
    Bootstrap,
    /// That very Secret.
    Secret(String),
    /// Something in the spec that cannot be done.
    Spec(String),
}

impl MachineWait {
    /// What its condition says, in both shapes.
    pub fn verdicts(&self) -> (ConditionVerdict, ConditionVerdict, Severity) {
        let (reason, old, message) = match self {
            Self::Machine => (
                "WaitingForMetal3MachineOwnerRef",
                "WaitingForM3MachineOwnerRef",
                "Waiting for a Machine to own this object".to_owned(),
            ),
            Self::Cluster(name) => (
                "WaitingForClusterInfrastructureReady",
                "WaitingForClusterInfrastructure",
                format!("Waiting for the Cluster {name:?}, which is not there"),
            ),
            Self::Infrastructure(name) => (
                "WaitingForClusterInfrastructureReady",
                "WaitingForClusterInfrastructure",
                format!("Waiting for the infrastructure of the Cluster {name:?}"),
            ),
            Self::Metal3Cluster(name) => (
                "WaitingforMetal3Cluster",
                "WaitingforMetal3Cluster",
                format!("Waiting for the Metal3Cluster {name:?}, which is not there"),
            ),
            Self::Bootstrap => (
                "WaitingForBootstrapData",
                "WaitingForBootstrapReady",
                "Waiting for the user data of the Machine".to_owned(),
            ),
            Self::Secret(name) => (
                "WaitingForBootstrapData",
                "WaitingForBootstrapReady",
                format!("Waiting for the Secret {name:?} with the user data, which is not there"),
            ),
            Self::Spec(message) => ("InvalidConfiguration", "AssociateBMHFailed", message.clone()),
        };
        let severity = if matches!(self, Self::Spec(_)) { Severity::Error } else { Severity::Info };
        (ConditionVerdict::no(reason, message.clone()), ConditionVerdict::no(old, message), severity)
    }
}

/// The Secret with the user data, once nothing is waited for any more.
pub fn user_data(
    machine: &Metal3Machine,
    owner: &Machine,
    cluster: Option<&Cluster>,
    metal3_cluster: Option<&Metal3Cluster>,
) -> Result<SecretReference, MachineWait> {
    let Some(cluster) = cluster else { return Err(MachineWait::Cluster(owner.spec.cluster_name.clone())) };
    if !is_ready(cluster) {
        return Err(MachineWait::Infrastructure(cluster.name_any()));
    }
    if metal3_cluster.is_none() {
        let reference = cluster.spec.infrastructure_ref.as_ref();
        return Err(MachineWait::Metal3Cluster(reference.map(|one| one.name.clone()).unwrap_or_default()));
    }
    let bootstrap = owner.spec.bootstrap.data_secret_name.clone().filter(|name| !name.is_empty());
    let Some(bootstrap) = bootstrap else { return Err(MachineWait::Bootstrap) };
    let namespace = machine.namespace();
    match own(machine, "userData", machine.spec.user_data.as_ref())? {
        Some(own) => Ok(own),
        None => Ok(SecretReference { name: Some(bootstrap), namespace }),
    }
}

fn is_ready(cluster: &Cluster) -> bool {
    let status = cluster.status.as_ref();
    let initialization = status.and_then(|status| status.initialization.as_ref());
    let old = status.and_then(|status| status.deprecated.as_ref()?.v1beta1.as_ref());
    let old = old
        .is_some_and(|old| old.conditions.iter().any(|one| one.type_ == "InfrastructureReady" && one.status == "True"));
    initialization.and_then(|one| one.infrastructure_provisioned) == Some(true)
        || old
        || status.is_some_and(|status| conditions::is_true(&status.conditions, "InfrastructureReady"))
}

/// A Secret that the machine itself names: it is in the machine's namespace, or nobody reads it.
pub fn own(
    machine: &Metal3Machine,
    field: &str,
    reference: Option<&SecretReference>,
) -> Result<Option<SecretReference>, MachineWait> {
    let namespace = machine.namespace();
    let Some(SecretReference { name: Some(name), namespace: other }) = reference else { return Ok(None) };
    if other.as_ref().is_some_and(|other| !other.is_empty() && Some(other) != namespace.as_ref()) {
        return Err(MachineWait::Spec(format!("spec.{field} names a Secret of another namespace, which is not read")));
    }
    Ok(Some(SecretReference { name: Some(name.clone()), namespace }))
}

/// For whom the host of a machine is kept: its control plane, or its deployment.
pub fn reuse(owner: &Machine) -> Option<String> {
    let name = if owner.labels().contains_key(LABEL_CONTROL_PLANE) {
        let all = owner.metadata.owner_references.as_deref().unwrap_or_default();
        let keeper = all.iter().find(|one| owners::group_of(&one.api_version) == CONTROL_PLANE_GROUP)?;
        format!("cp-{}", keeper.name)
    } else {
        format!("md-{}", owner.labels().get(LABEL_DEPLOYMENT)?)
    };
    // Whoever has a longer one has no label to keep hosts by.
    (name.len() <= LABEL_MOST).then_some(name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(base: Value, change: Value) -> T {
        let mut object = base;
        json_patch::merge(&mut object, &change);
        serde_json::from_value(object).expect("an object")
    }

    fn machine(change: Value) -> Metal3Machine {
        let base = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3Machine",
            "metadata": {"name": "m", "namespace": "rack"}, "spec": {}});
        read(base, change)
    }

    fn owner(change: Value) -> Machine {
        let base = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": "m", "namespace": "rack"},
            "spec": {"clusterName": "c", "bootstrap": {"dataSecretName": "data"},
                "infrastructureRef": {"kind": "Metal3Machine", "name": "m", "apiGroup": "infrastructure.cluster.x-k8s.io"}}});
        read(base, change)
    }

    fn cluster(change: Value) -> Cluster {
        let base = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c", "namespace": "rack"},
            "spec": {"infrastructureRef": {"kind": "Metal3Cluster", "name": "m3c", "apiGroup": "infrastructure.cluster.x-k8s.io"}},
            "status": {"initialization": {"infrastructureProvisioned": true}}});
        read(base, change)
    }

    #[test]
    fn everything_has_its_turn() {
        let there = Metal3Cluster::new("m3c", Default::default());
        let ready = || cluster(json!({}));
        let wait = |owner: Machine, cluster: Option<Cluster>, metal3: Option<&Metal3Cluster>| {
            user_data(&machine(json!({})), &owner, cluster.as_ref(), metal3)
        };
        let unready = cluster(json!({"status": null}));
        let by_condition = cluster(json!({"status": {"initialization": null, "conditions": [{
            "type": "InfrastructureReady", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}));
        assert_eq!(wait(owner(json!({})), None, None), Err(MachineWait::Cluster("c".into())));
        assert_eq!(wait(owner(json!({})), Some(unready), None), Err(MachineWait::Infrastructure("c".into())));
        assert_eq!(wait(owner(json!({})), Some(ready()), None), Err(MachineWait::Metal3Cluster("m3c".into())));
        let bare = owner(json!({"spec": {"bootstrap": {"dataSecretName": null}}}));
        assert_eq!(wait(bare, Some(ready()), Some(&there)), Err(MachineWait::Bootstrap));
        let data = SecretReference { name: Some("data".into()), namespace: Some("rack".into()) };
        assert_eq!(wait(owner(json!({})), Some(ready()), Some(&there)), Ok(data.clone()));
        assert_eq!(wait(owner(json!({})), Some(by_condition), Some(&there)), Ok(data));
        let given = |namespace: Value| {
            let machine = machine(json!({"spec": {"userData": {"name": "own", "namespace": namespace}}}));
            user_data(&machine, &owner(json!({})), Some(&ready()), Some(&there))
        };
        let own = SecretReference { name: Some("own".into()), namespace: Some("rack".into()) };
        assert_eq!(given(Value::Null), Ok(own.clone()));
        assert_eq!(given(json!("rack")), Ok(own));
        assert!(
            matches!(given(json!("kube-system")), Err(MachineWait::Spec(reason)) if reason.contains("another namespace"))
        );
    }

    #[test]
    fn hosts_are_kept_for_control_planes_and_deployments() {
        let keeper = json!([{"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane", "name": "kcp", "uid": "u"}]);
        let control = owner(json!({"metadata": {"labels": {LABEL_CONTROL_PLANE: ""}, "ownerReferences": keeper}}));
        assert_eq!(reuse(&control).as_deref(), Some("cp-kcp"));
        let worker = |name: &str| owner(json!({"metadata": {"labels": {LABEL_DEPLOYMENT: name}}}));
        assert_eq!(reuse(&worker("w")).as_deref(), Some("md-w"));
        assert_eq!(reuse(&worker(&"w".repeat(61))), None);
        assert_eq!(reuse(&owner(json!({}))), None);
    }
}
