//! What the host of a Machine of a cluster runs, and when it may be let go: what `cluster::machine_api` asks.
//!
//! A host is told nothing before the agent on it could report: account, rights, LCMMachine and user data are there then. It is let go
//! once its node has left the cluster, or after a time in any case.

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;

use super::machine_spec::{self, DeletionPolicy};
use crate::api::infrastructure::v1beta2::MachineImage;
use crate::api::lcm::{ANNOTATION_WAS_DEPLOYED, CONDITION_LEAVING, LCMCluster, LCMMachine, NodeState, REASON_HELD};
use crate::api::machine_api::{Cluster, Machine};
use crate::api::metal3::SecretReference;
use crate::cluster::machine_api::{HostDeparture, Preparation, Prepared, Preparer};
use crate::release::catalogue::join::distribution;
use crate::release::catalogue::known::Releases;
use crate::release::keep::is_of;
use crate::release::names;
use crate::release::wish::shape;
use crate::runtime::conditions::find;
use crate::runtime::owners;

/// How long a Machine waits for a Cluster that it names and that is not there: both may be made at once. Then it is of no cluster.
const CLUSTER_WAIT: SignedDuration = SignedDuration::from_secs(60);
/// How long a node has to leave its cluster, with its wait for those that leave before it.
const LEAVE_WAIT: SignedDuration = SignedDuration::from_mins(60);
/// How long a node is deleted in its cluster that is not drained: the cluster is asked once, and has seconds to answer.
const FORCED_WAIT: SignedDuration = SignedDuration::from_mins(1);
/// `status.prepareDeletionPhase` once a node has left, or is not waited for any more.
const OVER: [&str; 2] = ["completed", "failed"];

/// Makes Machines nodes of clusters with releases.
#[derive(Clone)]
pub struct NodePreparer {
    releases: Releases,
}

impl NodePreparer {
    /// By these releases.
    pub fn new(releases: Releases) -> Self {
        Self { releases }
    }

    async fn preparation(&self, client: &Client, machine: &Machine) -> Result<Preparation, kube::Error> {
        let Some(cluster) = machine_spec::cluster_of(machine) else { return Ok(Preparation::Own) };
        let namespace = machine.namespace().unwrap_or_default();
        let Some(found) = Api::<Cluster>::namespaced(client.clone(), &namespace).get_opt(cluster).await? else {
            return Ok(without_cluster(machine, cluster, Timestamp::now()));
        };
        if !shape::is_ours(&found.spec) {
            return Ok(Preparation::Own);
        }
        if found.metadata.deletion_timestamp.is_some() {
            let reason = format!("The Cluster {cluster} is being deleted: delete the Machine, too");
            return Ok(Preparation::Wait("ClusterDeleted", reason));
        }
        let (name, owner) = (machine.name_any(), owners::owner(machine, true));
        let agent = names::agent(&name);
        let lcm = Api::<LCMMachine>::namespaced(client.clone(), &namespace).get_opt(&name).await?;
        let lcm = lcm.filter(|lcm| is_of(lcm, &owner) && lcm.spec.cluster_name == cluster);
        let has_account = there::<ServiceAccount>(client, &namespace, &agent, machine).await?
            && there::<Role>(client, &namespace, &agent, machine).await?
            && there::<RoleBinding>(client, &namespace, &agent, machine).await?;
        let user_data = names::user_data(&name);
        let has_data = there::<Secret>(client, &namespace, &user_data, machine).await?;
        let (Some(lcm), true, true) = (lcm, has_account, has_data) else {
            return Ok(Preparation::Wait("WaitingForAgent", waits(machine)));
        };
        let clusters = Api::<LCMCluster>::namespaced(client.clone(), &namespace);
        let told = clusters.get_opt(cluster).await?.filter(|told| is_of(told, &owners::owner(&found, true)));
        let release = told.and_then(|told| self.releases.of(&told.spec.release).release);
        let Some(release) = release else {
            return Ok(Preparation::Wait("WaitingForAgent", waits(machine)));
        };
        let id = Some(lcm.spec.distribution.as_str());
        let image = distribution(&release, id).ok().and_then(|system| system.image.clone());
        let image = image.map(|image| {
            let checksum = Some(image.checksum).filter(|checksum| !checksum.is_empty());
            MachineImage { url: image.url, checksum, ..MachineImage::default() }
        });
        let user_data = SecretReference { name: Some(user_data), namespace: Some(namespace) };
        Ok(Preparation::Ready(Prepared { image, user_data, fields: machine_spec::FIELDS }))
    }

    async fn leaving(&self, client: &Client, machine: &Machine) -> Result<HostDeparture, kube::Error> {
        let Some(cluster) = machine_spec::cluster_of(machine) else { return Ok(HostDeparture::Go) };
        let namespace = machine.namespace().unwrap_or_default();
        let machines = Api::<LCMMachine>::namespaced(client.clone(), &namespace);
        let lcm = machines.get_opt(&machine.name_any()).await?.filter(|lcm| is_of(lcm, &owners::owner(machine, true)));
        let Some(lcm) = lcm else { return Ok(HostDeparture::Go) };
        let found = Api::<Cluster>::namespaced(client.clone(), &namespace).get_opt(cluster).await?;
        // With the cluster goes what ran on the node, too.
        if found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()) {
            return Ok(HostDeparture::Go);
        }
        // What makes no sense asks for nothing but the usual.
        let policy = machine_spec::read(machine).map(|wish| wish.deletion_policy).unwrap_or_default();
        let since = machine.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        match leave(policy, &lcm, since, Timestamp::now()) {
            LeavingStep::Go => Ok(HostDeparture::Go),
            LeavingStep::Ask(reason) => {
                let spec = json!({"prepareDeletion": true, "forceDeletion": policy != DeletionPolicy::Graceful});
                let patch = json!({"metadata": {"resourceVersion": lcm.resource_version()}, "spec": spec});
                machines.patch(&lcm.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
                Ok(HostDeparture::Wait(reason))
            }
            LeavingStep::Wait(reason) => Ok(HostDeparture::Wait(reason)),
        }
    }
}

impl Preparer for NodePreparer {
    fn prepare<'a>(
        &'a self,
        client: &'a Client,
        machine: &'a Machine,
    ) -> BoxFuture<'a, Result<Preparation, kube::Error>> {
        self.preparation(client, machine).boxed()
    }

    fn leave<'a>(
        &'a self,
        client: &'a Client,
        machine: &'a Machine,
    ) -> BoxFuture<'a, Result<HostDeparture, kube::Error>> {
        self.leaving(client, machine).boxed()
    }
}

/// Whether something of a Machine's own has this name.
async fn there<K>(client: &Client, namespace: &str, name: &str, machine: &Machine) -> Result<bool, kube::Error>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let found = Api::<K>::namespaced(client.clone(), namespace).get_metadata_opt(name).await?;
    Ok(found.is_some_and(|found| {
        is_of(&found, &owners::owner(machine, true)) && found.metadata.deletion_timestamp.is_none()
    }))
}

/// What a Machine is to run that names a cluster which is not there.
fn without_cluster(machine: &Machine, cluster: &str, now: Timestamp) -> Preparation {
    let made = machine.metadata.creation_timestamp.as_ref().map(|time| time.0);
    if made.is_some_and(|made| now.duration_since(made) < CLUSTER_WAIT) {
        return Preparation::Wait(
            "WaitingForCluster",
            format!("Waiting a minute for the Cluster {cluster:?}, which is not there"),
        );
    }
    Preparation::Own
}

/// What is waited for, as the Machine's status has it.
fn waits(machine: &Machine) -> String {
    let noted = machine.status.as_ref().and_then(|status| status.provider_status.as_ref());
    let conditions = noted.and_then(|noted| noted["conditions"].as_array());
    let lcm = conditions.and_then(|all| all.iter().find(|condition| condition["type"] == "LCM"));
    let reason = lcm.and_then(|lcm| lcm["message"].as_str()).filter(|reason| !reason.is_empty());
    match reason {
        Some(reason) => format!("Waiting for the agent's account and user data: {reason}"),
        None => "Waiting for the agent's account and user data".to_owned(),
    }
}

/// What is to be done about a node that leaves.
#[derive(Debug, PartialEq, Eq)]
enum LeavingStep {
    /// Its host is let go.
    Go,
    /// It is to be told to leave: for what is waited then.
    Ask(String),
    /// It was told.
    Wait(String),
}

/// Whether the host of a node may be let go that goes since then.
fn leave(policy: DeletionPolicy, lcm: &LCMMachine, since: Option<Timestamp>, now: Timestamp) -> LeavingStep {
    let status = lcm.status.clone().unwrap_or_default();
    let was_deployed = lcm.annotations().contains_key(ANNOTATION_WAS_DEPLOYED)
        || matches!(
            status.state,
            Some(
                NodeState::Deploy | NodeState::Upgrade | NodeState::Reconfigure | NodeState::Reboot | NodeState::Ready
            )
        );
    if !was_deployed || OVER.contains(&status.prepare_deletion_phase.as_str()) {
        return LeavingStep::Go;
    }
    if policy != DeletionPolicy::Graceful {
        let reason = "its node is deleted in the cluster, which has a minute to answer".to_owned();
        let is_over = since.is_some_and(|since| now.duration_since(since) >= FORCED_WAIT);
        return match lcm.spec.force_deletion {
            false => LeavingStep::Ask(reason),
            true if is_over => LeavingStep::Go,
            true => LeavingStep::Wait(reason),
        };
    }
    let leaving = find(&status.conditions, CONDITION_LEAVING);
    // Whom applications held begins to be drained only then.
    let since = since.max(leaving.map(|one| one.last_transition_time.0));
    let is_held = leaving.is_some_and(|one| one.reason == REASON_HELD);
    if !is_held && since.is_some_and(|since| now.duration_since(since) >= LEAVE_WAIT) {
        return LeavingStep::Go;
    }
    let phase = match status.prepare_deletion_phase.as_str() {
        "" => "its node was told to leave the cluster".to_owned(),
        phase => format!("leaving the cluster has {phase}"),
    };
    let error = &status.kubernetes_cordon_drain_error;
    let error = if error.is_empty() { String::new() } else { format!(": {error}") };
    let end = if is_held {
        "then, or at once".to_owned()
    } else {
        format!("after {} minutes in any case, or at once", LEAVE_WAIT.as_mins())
    };
    let reason = format!("{phase}{error}; the host is let go {end} with deletionPolicy unsafe");
    if lcm.spec.prepare_deletion { LeavingStep::Wait(reason) } else { LeavingStep::Ask(reason) }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn lcm(change: Value) -> LCMMachine {
        let mut lcm = json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMMachine", "metadata": {"name": "m"}, "spec": {}});
        json_patch::merge(&mut lcm, &change);
        serde_json::from_value(lcm).unwrap()
    }

    #[test]
    fn a_node_leaves_first_and_is_waited_for_so_long() {
        let at = |minutes: i64| Timestamp::from_second(minutes * 60).unwrap();
        let told = |phase: &str| {
            lcm(json!({"spec": {"prepareDeletion": true}, "status": {"state": "Ready", "prepareDeletionPhase": phase}}))
        };
        let ready = || lcm(json!({"status": {"state": "Ready"}}));
        let leaving = |status: &str, reason: &str, minutes: i64| {
            let condition = json!({"type": CONDITION_LEAVING, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": at(minutes).to_string()});
            let spec = json!({"prepareDeletion": true});
            let status = json!({"state": "Ready", "prepareDeletionPhase": "started", "conditions": [condition]});
            lcm(json!({"spec": spec, "status": status}))
        };
        let forced = |phase: &str| {
            let spec = json!({"prepareDeletion": true, "forceDeletion": true});
            lcm(json!({"spec": spec, "status": {"state": "Ready", "prepareDeletionPhase": phase}}))
        };
        let rows: Vec<(DeletionPolicy, LCMMachine, i64, &str)> = vec![
            (DeletionPolicy::Graceful, ready(), 0, "ask"),
            (DeletionPolicy::Graceful, told(""), 1, "wait"),
            (DeletionPolicy::Graceful, told("started"), 1, "wait"),
            (DeletionPolicy::Graceful, told("failed"), 1, "go"),
            (DeletionPolicy::Graceful, told("completed"), 1, "go"),
            // It ends.
            (DeletionPolicy::Graceful, told("started"), 59, "wait"),
            (DeletionPolicy::Graceful, told("started"), 60, "go"),
            (DeletionPolicy::Graceful, ready(), 61, "go"),
            // Applications hold it: no time ends that, and the hour of the drain begins afterwards.
            (DeletionPolicy::Graceful, leaving("False", REASON_HELD, 5), 600, "wait"),
            (DeletionPolicy::Graceful, leaving("True", "Draining", 90), 149, "wait"),
            (DeletionPolicy::Graceful, leaving("True", "Draining", 90), 150, "go"),
            // Without a drain its node goes first, where the cluster answers within a minute.
            (DeletionPolicy::Unsafe, ready(), 0, "ask"),
            (DeletionPolicy::Unsafe, leaving("False", REASON_HELD, 5), 600, "ask"),
            (DeletionPolicy::Forced, told("started"), 0, "ask"),
            (DeletionPolicy::Unsafe, forced(""), 0, "wait"),
            (DeletionPolicy::Forced, forced(""), 1, "go"),
            (DeletionPolicy::Forced, forced("completed"), 0, "go"),
            (DeletionPolicy::Unsafe, forced("failed"), 0, "go"),
            (DeletionPolicy::Unsafe, lcm(json!({})), 0, "go"),
            // It never was a node.
            (DeletionPolicy::Graceful, lcm(json!({})), 0, "go"),
            (DeletionPolicy::Graceful, lcm(json!({"status": {"state": "Prepare"}})), 0, "go"),
            (
                DeletionPolicy::Graceful,
                lcm(
                    json!({"metadata": {"annotations": {ANNOTATION_WAS_DEPLOYED: "true"}}, "status": {"state": "Prepare"}}),
                ),
                0,
                "ask",
            ),
        ];
        for (policy, lcm, minutes, wanted) in rows {
            let word = match leave(policy, &lcm, Some(at(0)), at(minutes)) {
                LeavingStep::Go => "go",
                LeavingStep::Ask(_) => "ask",
                LeavingStep::Wait(reason) => {
                    assert!(reason.contains("unsafe") || reason.contains("a minute"), "{reason}");
                    "wait"
                }
            };
            assert_eq!(word, wanted, "{policy:?} {minutes} {:?}", lcm.status);
        }
    }

    #[test]
    fn a_cluster_that_is_not_there_is_waited_for_a_minute() {
        let machine: Machine =
            serde_json::from_value(json!({"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"providerSpec": {}}}))
            .unwrap();
        let at = |time: &str| without_cluster(&machine, "edge", time.parse().unwrap());
        assert!(matches!(at("2026-01-01T00:00:59Z"), Preparation::Wait("WaitingForCluster", _)));
        assert_eq!(at("2026-01-01T00:01:00Z"), Preparation::Own);
    }
}
