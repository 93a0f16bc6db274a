//! The controller of Machine: owns its bootstrap and infrastructure objects, takes over what they say, finds its node and keeps it as
//! the machine is, and deletes in order.

mod delete;
mod node;
mod status;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::Action;
use serde_json::{Map, json};
use tokio::time::Instant;

use self::status::{MachineNode, MachineStatusInput};
use super::kit::{CoreFault, Kit};
use super::seen::{NamedObject, ReferenceRole};
use crate::api::cluster::keys::{
    ANNOTATION_EXPIRY, ANNOTATION_REVISION, FINALIZER_MACHINE, LABEL_CONTROL_PLANE, LABEL_DEPLOYMENT,
};
use crate::api::cluster::v1beta2::{Cluster, Machine, MachineStatus};
use crate::api::cluster::{GROUP, LABEL_CLUSTER};
use crate::api::control_plane;
use crate::cluster::contract::{fields, pause};
use crate::cluster::workload::{Workload, WorkloadError};
use crate::runtime::changes::{change, write_status};
use crate::runtime::conditions::{self, ConditionVerdict};
use crate::runtime::objects::ControllerMarks;
use crate::runtime::{Reconcile, key, objects, owners};

/// How much less often a machine that runs and is well is looked at.
const RUNNING: u32 = 4;

/// Keeps Machines.
pub(super) struct MachineReconciler {
    pub kit: Kit,
    /// Since when the cluster of a machine that goes does not answer, by the machine's UID.
    silent: Mutex<HashMap<String, Instant>>,
}

impl MachineReconciler {
    pub(super) fn new(kit: Kit) -> Self {
        Self { kit, silent: Mutex::default() }
    }
}

/// What a machine names, as it was found.
struct MachineParts {
    bootstrap: NamedObject,
    infrastructure: NamedObject,
}

impl Reconcile for MachineReconciler {
    type Object = Machine;
    type Error = CoreFault;

    const NAME: &'static str = "machine";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(super::kit::LOOK_MAX);

    fn retry_after(&self) -> Duration {
        self.kit.pause
    }

    async fn reconcile(&self, known: Arc<Machine>) -> Result<Action, CoreFault> {
        let Self { kit, .. } = self;
        let (namespace, name) = key(known.as_ref());
        let api = kit.api::<Machine>(&namespace);
        let Some(machine) = api.get_opt(&name).await? else { return Ok(Action::await_change()) };
        let clusters = kit.api::<Cluster>(&namespace);
        let cluster = match kit.caches.clusters.get(&(namespace.clone(), machine.spec.cluster_name.clone())) {
            Some(cluster) => Some(cluster),
            None => clusters.get_opt(&machine.spec.cluster_name).await?.map(Arc::new),
        };
        let cluster = cluster.as_deref();
        if pause::rests(&api, &machine, cluster, |status| &mut status.conditions).await? {
            return Ok(Action::await_change());
        }
        if machine.metadata.deletion_timestamp.is_some() {
            return self.delete(&api, machine, cluster).await;
        }
        // It is woken when its cluster comes to be.
        let Some(cluster) = cluster else { return Ok(Action::requeue(kit.pause * RUNNING)) };
        if cluster.metadata.deletion_timestamp.is_some() && machine.finalizers().is_empty() {
            return Ok(Action::requeue(kit.pause));
        }
        let machine = hold(&api, machine, cluster).await?;
        let parts = self.parts(&machine).await?;
        let owner = owners::owner(&machine, true);
        let label = [(LABEL_CLUSTER, machine.spec.cluster_name.as_str())];
        let makers = makers(&machine);
        let parts = MachineParts {
            bootstrap: parts.bootstrap.adopt(&kit.objects, &owner, &label, &makers).await?,
            infrastructure: parts.infrastructure.adopt(&kit.objects, &owner, &label, &makers).await?,
        };
        let machine = take_over(&api, machine, &parts).await?;
        let node = self.node(&machine, cluster).await;
        let status = self.say(&api, &machine, machine.status.as_ref(), Some(cluster), &parts, (node, None)).await?;
        Ok(Action::requeue(next_look(&machine, &status, kit.pause)))
    }
}

/// Who made what a machine names before there was a machine, by UID: the set or the control plane that controls this very machine. It
/// owns that until the machine does, so that it goes where no machine comes of it; from then on it goes with the machine.
fn makers(machine: &Machine) -> Vec<&str> {
    let makes = |owner: &&OwnerReference| match owners::group_of(&owner.api_version) {
        GROUP => owner.kind == "MachineSet",
        group => group == control_plane::GROUP,
    };
    owners::controller(&machine.metadata).filter(makes).map(|owner| owner.uid.as_str()).into_iter().collect()
}

/// When a machine is looked at again without a change.
fn next_look(machine: &Machine, status: &MachineStatus, pause: Duration) -> Duration {
    let well = status.phase.as_deref() == Some("Running") && conditions::is_true(&status.conditions, "NodeHealthy");
    let pause = if well { pause * RUNNING } else { pause };
    match status::until_available(machine, &status.conditions, Timestamp::now()) {
        Some(seconds @ 1..) => pause.min(Duration::from_secs(seconds.unsigned_abs())),
        _ => pause,
    }
}

/// A machine that is held by its finalizer, has the label of its cluster, and an owner.
async fn hold(api: &Api<Machine>, machine: Machine, cluster: &Cluster) -> Result<Machine, CoreFault> {
    // One of a set or a control plane goes with that.
    let owner = owners::owner(cluster, false);
    let owners = owners::with(&machine.metadata, &owner).filter(|_| owners::controller(&machine.metadata).is_none());
    let of = machine.spec.cluster_name.clone();
    let labels = [(LABEL_CLUSTER, of.as_str())];
    Ok(objects::mark(api, machine, &ControllerMarks { finalizer: Some(FINALIZER_MACHINE), labels: &labels, owners })
        .await?)
}

/// Takes over what others find out: the Secret with the user data, and the identity at the provider.
async fn take_over(api: &Api<Machine>, machine: Machine, parts: &MachineParts) -> Result<Machine, CoreFault> {
    let mut spec = Map::new();
    let secret = parts.bootstrap.data().and_then(fields::data_secret);
    if machine.spec.bootstrap.data_secret_name.is_none()
        && let Some(secret) = secret
    {
        spec.insert("bootstrap".into(), json!({ "dataSecretName": secret }));
    }
    let infrastructure = parts.infrastructure.data().filter(|object| fields::is_provisioned(object));
    let provided = infrastructure.and_then(fields::provider_id);
    if provided.is_some() && machine.spec.provider_id != provided {
        spec.insert("providerID".into(), json!(provided));
    }
    if spec.is_empty() {
        return Ok(machine);
    }
    Ok(change(api, &machine, json!({ "spec": spec })).await?)
}

/// When the certificates of a control plane machine end, as whoever made them says.
fn expiry(machine: &Machine, bootstrap: &NamedObject) -> Option<Timestamp> {
    let own = machine.annotations().get(ANNOTATION_EXPIRY);
    let text = own.or_else(|| match bootstrap {
        NamedObject::There(found) => found.object.annotations().get(ANNOTATION_EXPIRY),
        _ => None,
    });
    text.filter(|_| machine.labels().contains_key(LABEL_CONTROL_PLANE))?.parse().ok()
}

impl MachineReconciler {
    async fn parts(&self, machine: &Machine) -> Result<MachineParts, CoreFault> {
        let namespace = machine.namespace().unwrap_or_default();
        let objects = &self.kit.objects;
        Ok(MachineParts {
            bootstrap: NamedObject::find(
                objects,
                &namespace,
                ReferenceRole::Bootstrap,
                machine.spec.bootstrap.config_ref.as_ref(),
            )
            .await?,
            infrastructure: NamedObject::find(
                objects,
                &namespace,
                ReferenceRole::Infrastructure,
                Some(&machine.spec.infrastructure_ref),
            )
            .await?,
        })
    }

    async fn workload(&self, machine: &Machine) -> Result<Workload, WorkloadError> {
        let namespace = machine.namespace().unwrap_or_default();
        self.kit.workloads.get(&self.kit.client, &namespace, &machine.spec.cluster_name).await
    }

    /// The machine's node, which has of the machine what it should have.
    async fn node(&self, machine: &Machine, cluster: &Cluster) -> MachineNode {
        let done = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
        let Some(id) = machine.spec.provider_id.as_deref() else {
            return MachineNode::NotYet("the machine has no provider ID yet".to_owned());
        };
        let asked = async {
            let workload = self.workload(machine).await?;
            let nodes = workload.nodes().await?;
            let Some(node) = nodes.provided(id)?.cloned() else { return Ok(None) };
            let Some(mut patch) = node::patch(machine, &node, self.is_outdated(machine)) else {
                return Ok(Some(Node::clone(&node)));
            };
            patch["metadata"]["resourceVersion"] = json!(node.resource_version());
            let api = Api::<Node>::all(workload.client().clone());
            let patched = api.patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
            workload.node_changed().await;
            match patched {
                // It changes all the time, and the cluster may have rules of its own: that it answers counts.
                Err(kube::Error::Api(error)) => {
                    tracing::debug!(%error, node = node.name_any(), "a node keeps what it has for now");
                    Ok::<_, WorkloadError>(Some(Node::clone(&node)))
                }
                patched => Ok(Some(patched?)),
            }
        };
        let initialized = done.and_then(|done| done.control_plane_initialized) == Some(true);
        match asked.await {
            Ok(Some(node)) => MachineNode::There(Box::new(node)),
            Ok(None) => MachineNode::Missing,
            Err(error @ (WorkloadError::Ambiguous { .. } | WorkloadError::TooMany { .. })) => {
                MachineNode::NotYet(error.to_string())
            }
            Err(_) if !initialized => MachineNode::NotYet("the control plane is not there yet".to_owned()),
            Err(error) => MachineNode::Unreachable(error.to_string()),
        }
    }

    /// Whether the machine is of an older revision of its deployment.
    fn is_outdated(&self, machine: &Machine) -> bool {
        let namespace = machine.namespace().unwrap_or_default();
        let revision = |annotations: &std::collections::BTreeMap<String, String>| {
            annotations.get(ANNOTATION_REVISION).and_then(|text| text.parse::<i64>().ok())
        };
        let caches = &self.kit.caches;
        let set = owners::of_kind(&machine.metadata, GROUP, "MachineSet")
            .and_then(|owner| caches.sets.get(&(namespace.clone(), owner.name.clone())));
        let deployment = machine
            .labels()
            .get(LABEL_DEPLOYMENT)
            .and_then(|name| caches.deployments.get(&(namespace.clone(), name.clone())));
        let older = |one: Option<i64>, than: Option<i64>| matches!((one, than), (Some(one), Some(than)) if one < than);
        match (set, deployment) {
            (Some(set), Some(deployment)) => older(revision(set.annotations()), revision(deployment.annotations())),
            _ => false,
        }
    }

    async fn say(
        &self,
        api: &Api<Machine>,
        machine: &Machine,
        stored: Option<&MachineStatus>,
        cluster: Option<&Cluster>,
        parts: &MachineParts,
        (node, deleting): (MachineNode, Option<ConditionVerdict>),
    ) -> Result<MachineStatus, CoreFault> {
        let infrastructure = parts.infrastructure.data();
        let view = MachineStatusInput {
            machine,
            cluster,
            bootstrap: parts.bootstrap.seen(&["Ready"], |object| fields::data_secret(object).is_some()),
            infrastructure: parts.infrastructure.seen(&["Ready"], fields::is_provisioned),
            addresses: infrastructure.map(fields::addresses),
            failure_domain: infrastructure.and_then(fields::failure_domain),
            expiry: expiry(machine, &parts.bootstrap),
            node,
            deleting,
        };
        let status = status::status(&view, Timestamp::now());
        write_status(api, machine, stored, &status).await?;
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_machine_that_is_well_is_looked_at_seldom() {
        let machine = Machine::new("m", Default::default());
        for (phase, healthy, wanted) in
            [("Running", "True", 60), ("Running", "Unknown", 15), ("Running", "False", 15), ("Provisioned", "True", 15)]
        {
            let status = json!({"phase": phase, "conditions": [{"type": "NodeHealthy", "status": healthy, "reason": "Played",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
            let status: MachineStatus = serde_json::from_value(status).unwrap();
            let next = next_look(&machine, &status, Duration::from_secs(15));
            assert_eq!(next, Duration::from_secs(wanted), "{phase} {healthy}");
        }
    }
}
