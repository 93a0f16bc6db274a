//! How a machine goes: others that hold it, its node drained and without volumes, what it runs on, its user data, its node.
//!
//! It always ends. What waits for a cluster that does not answer waits only so long; what waits for others, or for pods that a
//! disruption budget keeps, does so as long as they want, and says for what.

use std::sync::PoisonError;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::runtime::controller::Action;
use tokio::time::Instant;
use tracing::info;

use super::status::MachineNode;
use super::{MachineParts, MachineReconciler};
use crate::api::cluster::MachineDeletionStatus;
use crate::api::cluster::keys::{
    ANNOTATION_NO_DRAIN, ANNOTATION_NO_VOLUME_WAIT, FINALIZER_MACHINE, LABEL_CONTROL_PLANE, PRE_DRAIN_HOOK,
    PRE_TERMINATE_HOOK,
};
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::cluster::core::kit::{CoreFault, of_cluster};
use crate::cluster::core::seen::{NamedObject, ReferenceRole};
use crate::cluster::workload::{Workload, WorkloadError, drain};
use crate::log::named;
use crate::runtime::conditions::{ConditionVerdict, whole};
use crate::runtime::{objects, owners};

/// Pods and volumes of which a message speaks.
const TOLD: usize = 5;

/// Others that hold a machine: the annotations that begin so.
fn hooks(machine: &Machine, front: &str) -> Vec<String> {
    machine.annotations().keys().filter(|key| key.starts_with(front)).take(20).cloned().collect()
}

/// Whether so many seconds have passed since then. Without a number, or with 0, they never do.
fn is_over(since: Option<&Time>, seconds: Option<i32>, now: Timestamp) -> bool {
    let seconds = seconds.filter(|seconds| *seconds > 0).map(i64::from);
    matches!((since, seconds), (Some(since), Some(seconds)) if now.duration_since(since.0).as_secs() >= seconds)
}

/// Whether the node is still to be drained, by what the machine and its infrastructure say.
fn drains(machine: &Machine, deletion: &MachineDeletionStatus, stands: bool, now: Timestamp) -> bool {
    let seconds = machine.spec.deletion.as_ref().and_then(|deletion| deletion.node_drain_timeout_seconds);
    stands
        && deletion.wait_for_pre_terminate_hook_start_time.is_none()
        && !machine.annotations().contains_key(ANNOTATION_NO_DRAIN)
        && !is_over(deletion.node_drain_start_time.as_ref(), seconds, now)
}

/// Whether its volumes are still to be waited for.
fn detaches(machine: &Machine, deletion: &MachineDeletionStatus, stands: bool, now: Timestamp) -> bool {
    let seconds = machine.spec.deletion.as_ref().and_then(|deletion| deletion.node_volume_detach_timeout_seconds);
    stands
        && deletion.wait_for_pre_terminate_hook_start_time.is_none()
        && !machine.annotations().contains_key(ANNOTATION_NO_VOLUME_WAIT)
        && !is_over(deletion.wait_for_node_volume_detach_start_time.as_ref(), seconds, now)
}

/// Why a node is left as it is; `None` when it is to be drained and deleted.
fn left_alone(cluster: Option<&Cluster>, plane_goes: bool, external: bool, planes: usize) -> Option<&'static str> {
    match cluster {
        None => Some("the cluster is gone"),
        Some(cluster) if cluster.metadata.deletion_timestamp.is_some() => Some("the cluster is being deleted"),
        Some(_) if plane_goes => Some("the control plane is being deleted"),
        Some(_) if !external && planes == 0 => Some("no other machine of the control plane is left"),
        Some(_) => None,
    }
}

/// What a machine waits for: so it is said, and looked at again.
type MachineDeletionWait = Result<Option<ConditionVerdict>, CoreFault>;

fn waits(reason: &str, message: String) -> MachineDeletionWait {
    Ok(Some(ConditionVerdict { message, ..ConditionVerdict::yes(reason) }))
}

impl MachineReconciler {
    pub(super) async fn delete(
        &self,
        api: &Api<Machine>,
        mut machine: Machine,
        cluster: Option<&Cluster>,
    ) -> Result<Action, CoreFault> {
        if !objects::is_held(&machine, FINALIZER_MACHINE) {
            return Ok(Action::await_change());
        }
        let before = machine.status.clone();
        let parts = self.parts(&machine).await?;
        let (waits, node) = self.go(&mut machine, cluster, &parts).await?;
        let Some(waits) = waits else {
            let uid = machine.uid().unwrap_or_default();
            self.silent.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
            objects::release(api, &machine, FINALIZER_MACHINE).await?;
            let namespace = machine.namespace().unwrap_or_default();
            info!(machine = %named(&namespace, &machine.name_any()), "a machine of a cluster is gone");
            return Ok(Action::await_change());
        };
        // What has begun meanwhile is in the machine at hand, and not yet stored.
        self.say(api, &machine, before.as_ref(), cluster, &parts, (node, Some(waits))).await?;
        Ok(Action::requeue(self.kit.pause))
    }

    /// One round: what is waited for, or nothing when nothing holds the machine any more; and what was seen of its node.
    async fn go(
        &self,
        machine: &mut Machine,
        cluster: Option<&Cluster>,
        parts: &MachineParts,
    ) -> Result<(Option<ConditionVerdict>, MachineNode), CoreFault> {
        let now = Timestamp::now();
        let start = |time: &mut Option<Time>| _ = time.get_or_insert(Time(whole(now)));
        let mut deletion = machine.status.as_ref().and_then(|status| status.deletion.clone()).unwrap_or_default();
        let keep = |machine: &mut Machine, deletion: &MachineDeletionStatus| {
            if *deletion != MachineDeletionStatus::default() {
                machine.status.get_or_insert_default().deletion = Some(deletion.clone());
            }
        };
        let alone = self.why_left_alone(machine, cluster).await?;
        let (mut found, mut seen) = (None, MachineNode::NotYet(alone.unwrap_or("nobody looked").to_owned()));
        if alone.is_none() {
            (found, seen) = self.look(machine).await;
        }
        let uid = machine.uid().unwrap_or_default();
        let stands = matches!(&parts.infrastructure, NamedObject::There(found) if !found.is_deleted());
        if alone.is_none() && (machine_has_node(machine) || found.is_some()) {
            let holders = hooks(machine, PRE_DRAIN_HOOK);
            if !holders.is_empty() {
                start(&mut deletion.wait_for_pre_drain_hook_start_time);
                keep(machine, &deletion);
                return Ok((waits("WaitingForPreDrainHook", holders.join(", "))?, seen));
            }
            if drains(machine, &deletion, stands, now) {
                start(&mut deletion.node_drain_start_time);
                keep(machine, &deletion);
                let waiting = match (&found, &seen) {
                    (Some((workload, node)), _) => drain::drain(workload.client(), node, now).await,
                    (None, MachineNode::Unreachable(message)) => Err(WorkloadError::Silent { reason: message.clone() }),
                    // It is gone already.
                    (None, _) => Ok(Vec::new()),
                };
                if let Some(waiting) = self.patient(&uid, waiting) {
                    return Ok((waits("DrainingNode", told(&waiting))?, seen));
                }
            }
            if detaches(machine, &deletion, stands, now) {
                start(&mut deletion.wait_for_node_volume_detach_start_time);
                keep(machine, &deletion);
                let waiting = match (&found, &seen) {
                    // Whatever is on it, nobody detaches it.
                    (Some((_, node)), _) if drain::is_silent(node) => Ok(Vec::new()),
                    (Some((workload, node)), _) => drain::volumes(workload.client(), node, now).await,
                    (None, MachineNode::Unreachable(message)) => Err(WorkloadError::Silent { reason: message.clone() }),
                    (None, _) => Ok(Vec::new()),
                };
                if let Some(waiting) = self.patient(&uid, waiting) {
                    return Ok((waits("WaitingForVolumeDetach", told(&waiting))?, seen));
                }
            }
        }
        let owner = owners::owner(&*machine, true);
        let holders = hooks(machine, PRE_TERMINATE_HOOK);
        if !holders.is_empty() {
            start(&mut deletion.wait_for_pre_terminate_hook_start_time);
            keep(machine, &deletion);
            return Ok((waits("WaitingForPreTerminateHook", holders.join(", "))?, seen));
        }
        for (named, reason) in [
            (&parts.infrastructure, "WaitingForInfrastructureDeletion"),
            (&parts.bootstrap, "WaitingForBootstrapDeletion"),
        ] {
            if let Some(found) = named.own(&owner) {
                self.kit.objects.delete(found).await?;
                let what = format!("{} {:?}", found.resource.kind, found.object.name_any());
                return Ok((waits(reason, what)?, seen));
            }
        }
        if alone.is_none() {
            let deleted = match (&found, &seen) {
                (Some((workload, node)), _) => delete_node(workload, node).await.map(|()| Vec::new()),
                (None, MachineNode::Unreachable(message)) => Err(WorkloadError::Silent { reason: message.clone() }),
                (None, _) => Ok(Vec::new()),
            };
            let seconds = machine.spec.deletion.as_ref().and_then(|deletion| deletion.node_deletion_timeout_seconds);
            let over = is_over(machine.metadata.deletion_timestamp.as_ref(), seconds.or(Some(10)), now);
            if let Some(waiting) = self.patient(&uid, deleted)
                && !(over && self.has_tried(&uid))
            {
                return Ok((waits("DeletingNode", told(&waiting))?, seen));
            }
        }
        Ok((None, seen))
    }

    async fn why_left_alone(
        &self,
        machine: &Machine,
        cluster: Option<&Cluster>,
    ) -> Result<Option<&'static str>, CoreFault> {
        let namespace = machine.namespace().unwrap_or_default();
        let reference = cluster.and_then(|cluster| cluster.spec.control_plane_ref.as_ref());
        let plane = NamedObject::find(&self.kit.objects, &namespace, ReferenceRole::ControlPlane, reference).await?;
        let goes = matches!(&plane, NamedObject::There(found) if found.is_deleted());
        let external = plane.data().and_then(|object| object.pointer("/status/externalManagedControlPlane")?.as_bool());
        let of = (namespace, machine.spec.cluster_name.clone());
        let planes = self.kit.caches.machines.mentioning(&of_cluster(&of));
        let planes = planes.iter().filter(|other| {
            other.metadata.deletion_timestamp.is_none() && other.labels().contains_key(LABEL_CONTROL_PLANE)
        });
        Ok(left_alone(cluster, goes, external == Some(true), planes.count()))
    }

    /// The node as it is now, and the cluster that has it.
    async fn look(&self, machine: &Machine) -> (Option<(Workload, Node)>, MachineNode) {
        let asked = async {
            let workload = self.workload(machine).await?;
            let name =
                machine.status.as_ref().and_then(|status| status.node_ref.as_ref()).map(|node| node.name.clone());
            let name = match (name, &machine.spec.provider_id) {
                (Some(name), _) => Some(name),
                (None, Some(id)) => workload.nodes().await?.provided(id)?.map(|node| node.name_any()),
                (None, None) => None,
            };
            let Some(name) = name else { return Ok(None) };
            // Of a machine that came after this one on the same host it may have the name.
            let node = workload.node(&name).await?.filter(|node| is_own(machine, node));
            Ok::<_, WorkloadError>(node.map(|node| (workload, node)))
        };
        match asked.await {
            Ok(Some((workload, node))) => {
                let seen = MachineNode::There(Box::new(node.clone()));
                (Some((workload, node)), seen)
            }
            Ok(None) => (None, MachineNode::Missing),
            Err(error) => (None, MachineNode::Unreachable(error.to_string())),
        }
    }

    /// Whether the cluster was asked for long enough, though the machine's own time may be over: it is when its drain took long.
    /// A virtual address moves meanwhile, when the node that goes had it.
    fn has_tried(&self, uid: &str) -> bool {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.get(uid).is_none_or(|since| since.elapsed() >= self.kit.patience / 5)
    }

    /// What is waited for; nothing when the cluster has not answered for too long.
    fn patient(&self, uid: &str, waiting: Result<Vec<String>, WorkloadError>) -> Option<Vec<String>> {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        match waiting {
            Ok(waiting) => {
                silent.remove(uid);
                Some(waiting).filter(|waiting| !waiting.is_empty())
            }
            Err(error) => {
                let since = *silent.entry(uid.to_owned()).or_insert_with(Instant::now);
                (since.elapsed() < self.kit.patience).then(|| vec![error.to_string()])
            }
        }
    }
}

fn machine_has_node(machine: &Machine) -> bool {
    machine.status.as_ref().is_some_and(|status| status.node_ref.is_some())
}

fn told(waiting: &[String]) -> String {
    let more = waiting.len().saturating_sub(TOLD);
    let few = waiting.iter().take(TOLD).cloned().collect::<Vec<_>>().join("; ");
    if more == 0 { few } else { format!("{few}; and {more} more") }
}

/// Whether a node says nothing else than that it is the machine.
fn is_own(machine: &Machine, node: &Node) -> bool {
    let says = node.spec.as_ref().and_then(|spec| spec.provider_id.as_ref());
    says.is_none() || machine.spec.provider_id.is_none() || says == machine.spec.provider_id.as_ref()
}

async fn delete_node(workload: &Workload, node: &Node) -> Result<(), WorkloadError> {
    let api = Api::<Node>::all(workload.client().clone());
    let preconditions = Some(Preconditions { uid: node.uid(), ..Preconditions::default() });
    let deleted = api.delete(&node.name_any(), &DeleteParams { preconditions, ..DeleteParams::default() }).await;
    workload.node_changed().await;
    match deleted {
        // It is gone, and at most another one has its name.
        Err(kube::Error::Api(error)) if error.is_not_found() || error.is_conflict() => Ok(()),
        deleted => deleted.map(drop).map_err(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster::v1beta2::MachineDeletion;

    fn machine(annotations: &[&str], drain: Option<i32>) -> Machine {
        let mut machine = Machine::new("m", Default::default());
        machine.metadata.annotations = Some(annotations.iter().map(|key| ((*key).to_owned(), String::new())).collect());
        machine.spec.deletion = Some(MachineDeletion {
            node_drain_timeout_seconds: drain,
            node_volume_detach_timeout_seconds: drain,
            ..MachineDeletion::default()
        });
        machine
    }

    #[test]
    fn a_node_of_the_next_machine_is_not_this_ones() {
        let mut machine = machine(&[], None);
        let node = |id: Option<&str>| {
            let spec =
                k8s_openapi::api::core::v1::NodeSpec { provider_id: id.map(str::to_owned), ..Default::default() };
            Node { spec: Some(spec), ..Node::default() }
        };
        assert!(is_own(&machine, &node(Some("metal3://n/h/a"))));
        machine.spec.provider_id = Some("metal3://n/h/a".into());
        for (id, own) in [(Some("metal3://n/h/a"), true), (None, true), (Some("metal3://n/h/b"), false)] {
            assert_eq!(is_own(&machine, &node(id)), own, "{id:?}");
        }
    }

    #[test]
    fn a_drain_ends_when_its_time_is_over() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let begun = MachineDeletionStatus {
            node_drain_start_time: Some(Time(at(100))),
            wait_for_node_volume_detach_start_time: Some(Time(at(100))),
            ..MachineDeletionStatus::default()
        };
        let hooked =
            MachineDeletionStatus { wait_for_pre_terminate_hook_start_time: Some(Time(at(100))), ..begun.clone() };
        type Row<'a> = (&'a [&'a str], Option<i32>, &'a MachineDeletionStatus, bool, i64, (bool, bool));
        let rows: [Row<'_>; 9] = [
            (&[], None, &MachineDeletionStatus::default(), true, 100, (true, true)),
            (&[], Some(60), &MachineDeletionStatus::default(), true, 999, (true, true)),
            (&[], Some(60), &begun, true, 159, (true, true)),
            (&[], Some(60), &begun, true, 160, (false, false)),
            (&[], Some(0), &begun, true, 99_999, (true, true)),
            (&[], None, &begun, false, 100, (false, false)),
            (&[ANNOTATION_NO_DRAIN], None, &begun, true, 100, (false, true)),
            (&[ANNOTATION_NO_VOLUME_WAIT], None, &begun, true, 100, (true, false)),
            (&[], None, &hooked, true, 100, (false, false)),
        ];
        for (annotations, seconds, deletion, stands, second, wanted) in rows {
            let machine = machine(annotations, seconds);
            let is = (drains(&machine, deletion, stands, at(second)), detaches(&machine, deletion, stands, at(second)));
            assert_eq!(is, wanted, "{annotations:?} {seconds:?} {second}");
        }
    }

    #[test]
    fn a_node_is_left_alone_where_nothing_is_left_for_it() {
        let cluster = Cluster::new("c", Default::default());
        let mut going = cluster.clone();
        going.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let rows = [
            (None, false, false, 3, true),
            (Some(&going), false, false, 3, true),
            (Some(&cluster), true, false, 3, true),
            (Some(&cluster), false, false, 0, true),
            (Some(&cluster), false, true, 0, false),
            (Some(&cluster), false, false, 1, false),
        ];
        for (cluster, goes, external, planes, wanted) in rows {
            assert_eq!(left_alone(cluster, goes, external, planes).is_some(), wanted, "{goes} {external} {planes}");
        }
    }

    #[test]
    fn who_holds_a_machine_is_named() {
        let hook = format!("{PRE_DRAIN_HOOK}/mine");
        let machine = machine(&[&hook, "other"], None);
        assert_eq!(hooks(&machine, PRE_DRAIN_HOOK), [hook]);
        assert!(hooks(&machine, PRE_TERMINATE_HOOK).is_empty());
        let many: Vec<String> = (0..8).map(|number| number.to_string()).collect();
        assert_eq!(told(&many), "0; 1; 2; 3; 4; and 3 more");
    }
}
