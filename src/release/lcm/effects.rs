//! What is written for the machines of a cluster: their Secrets, requests to drain them, steps, and what is said of them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use serde_json::{Map, Value, json};

use super::admission::ACCOUNT;
use super::clusters::{ClusterLook, Fault, Keeper};
use super::deployments::{self, DeploymentMachine};
use super::leave::{self, COMPLETED, FAILED, Leaver, MachineDeparture, STARTED, may_leave};
use super::locks;
use super::material::Material;
use super::order::{MachineTurn, Reboot};
use super::said;
use super::steps::{PHASES, of_phase};
use super::survey::Machine;
use crate::api::lcm::{
    ANNOTATION_GRACEFUL_REBOOT, ANNOTATION_WAS_DEPLOYED, ANNOTATION_WAS_READY, CONDITION_LEAVING, LCMClusterState,
    LCMClusterStateSpec, LCMMachine, LCMMachineSpec, LCMMachineStatus, MachineRole, MaintenanceScope, NodeState,
    REASON_HELD, Request,
};
use crate::cluster::workload::{self, secret_name};
use crate::runtime::changes::{change, change_status, delete, difference, unless_gone};
use crate::runtime::conditions::{ConditionVerdict, clear, find, set};
use crate::runtime::{Conflict, owners};

/// What of a machine's spec is kept here, beside its steps.
fn fill(one: &Machine, look: &ClusterLook<'_>, begins: bool) -> LCMMachineSpec {
    let (cluster, view) = (&look.cluster.spec, &one.view);
    let mut spec = view.spec.clone();
    spec.ssh_authorized_keys.clone_from(&cluster.ssh_authorized_keys);
    if one.member.held {
        return spec;
    }
    spec.role = Some(one.member.role);
    spec.agent_config.clone_from(&cluster.agent_config);
    if begins || spec.release.is_empty() || one.member.deploy.handed && one.member.reconfigure.handed {
        spec.release.clone_from(&cluster.release);
    }
    if spec.service_account.is_empty() {
        spec.service_account = format!("{ACCOUNT}{}", one.member.name);
    }
    if begins && one.reboots {
        spec.reboot_required = true;
    } else if rebooted(one) {
        spec.reboot_required = false;
    }
    spec.lcm_type.clone_from(&cluster.lcm_type);
    spec.deployment_secret_name = deployments::name(&one.member.name);
    spec.kubeconfig_secret_name = secret_name(&look.cluster.name_any());
    spec
}

/// Which phases a machine is to have of the release: those that it has, and those whose turn it is.
fn takes(one: &Machine, turn: &MachineTurn) -> [bool; 3] {
    let member = &one.member;
    if member.held || member.leaving {
        return [false; 3];
    }
    [
        turn.prepare || member.prepare.handed,
        turn.deploy || member.deploy.handed,
        turn.reconfigure || member.reconfigure.handed,
    ]
}

/// Whether it was rebooted as it was asked to.
fn rebooted(one: &Machine) -> bool {
    let reboot = one.view.status.reboot.as_ref();
    one.member.reboot == Reboot::None && reboot.is_some_and(|reboot| reboot.completed && reboot.requested_at.is_some())
}

/// Annotations that a machine is to get, or to lose.
fn marks(one: &Machine) -> Map<String, Value> {
    let mut marks = Map::new();
    let through = one.member.ready && one.state == NodeState::Ready && one.member.role != MachineRole::Bastion;
    if one.member.was_deployed && !one.view.has(ANNOTATION_WAS_DEPLOYED) {
        marks.insert(ANNOTATION_WAS_DEPLOYED.into(), "true".into());
    }
    if through && one.member.was_deployed && !one.view.has(ANNOTATION_WAS_READY) {
        marks.insert(ANNOTATION_WAS_READY.into(), "true".into());
    }
    if rebooted(one) && one.view.has(ANNOTATION_GRACEFUL_REBOOT) {
        marks.insert(ANNOTATION_GRACEFUL_REBOOT.into(), Value::Null);
    }
    marks
}

impl Keeper {
    /// Does what is to be done for each machine. When the first of the tokens is to be made anew. One whose write fails keeps no other
    /// one waiting; the first fault is told.
    pub(super) async fn act(
        &self,
        look: &mut ClusterLook<'_>,
        material: Option<&Material>,
        reason: Option<&str>,
    ) -> Result<Option<Timestamp>, Fault> {
        let (mut next, mut fault): (Option<Timestamp>, Option<Fault>) = (None, self.maintain(look).await.err());
        let leaves = self.leaves(look);
        for (at, leave) in leaves.into_iter().enumerate() {
            match self.one(look, at, leave, (material, reason)).await {
                Ok(token) => next = next.into_iter().chain(token).min(),
                Err(error) => {
                    // A conflict only asks for another look.
                    if fault.as_ref().is_none_or(Conflict::is_conflict) {
                        fault = Some(error);
                    }
                }
            }
        }
        fault.map_or(Ok(next), Err)
    }

    /// What is done about each machine that is to leave.
    fn leaves(&self, look: &ClusterLook<'_>) -> Vec<Option<MachineDeparture>> {
        let mut members = look.survey.members();
        let mut leaves = Vec::new();
        for (at, one) in look.survey.machines.iter().enumerate() {
            if !one.view.spec.prepare_deletion {
                leaves.push(None);
                continue;
            }
            let status = &one.view.status;
            let held = one.request.as_deref().and_then(locks::held);
            let leave = leave::decide(&Leaver {
                phase: &status.prepare_deletion_phase,
                is_node: look.survey.kubeadm
                    && look.survey.rules.initialized
                    && one.member.is_in()
                    && one.member.role != MachineRole::Bastion,
                may: may_leave(&members[at], &members),
                seen: &one.seen,
                drain: one.member.drain,
                forced: one.view.spec.force_deletion,
                locked: held.is_some(),
                message: held.as_deref().unwrap_or(&status.kubernetes_cordon_drain_error),
                since: find(&status.conditions, CONDITION_LEAVING)
                    .filter(|one| one.status == "True")
                    .map(|one| one.last_transition_time.0),
                patience: self.times.patience,
                now: look.now,
            });
            members[at].leaving |= matches!(leave, MachineDeparture::Start | MachineDeparture::Delete(_));
            leaves.push(Some(leave));
        }
        leaves
    }

    async fn one(
        &self,
        look: &mut ClusterLook<'_>,
        at: usize,
        mut leave: Option<MachineDeparture>,
        (material, reason): (Option<&Material>, Option<&str>),
    ) -> Result<Option<Timestamp>, Fault> {
        let mut token = None;
        let kubeadm = look.survey.kubeadm;
        // Nothing becomes a node without what it needs for that.
        let secret = match reason {
            Some(reason) if kubeadm => Err(reason.to_owned()),
            _ => match self.secret(look, at, material).await {
                Ok(next) => {
                    token = next;
                    Ok(())
                }
                Err(error) if error.is_conflict() => return Err(error),
                Err(error) => Err(error.to_string()),
            },
        };
        let turn = &mut look.turns[at];
        if let Err(reason) = secret {
            if turn.deploy {
                (turn.deploy, turn.reconfigure) = (false, false);
            }
            turn.waits = Some(reason);
        }
        if let Some(MachineDeparture::Wait(reason) | MachineDeparture::Drain(reason) | MachineDeparture::Hold(reason)) =
            &leave
        {
            turn.waits = Some(format!("is to leave the cluster: {reason}"));
        }
        let (one, turn) = (&look.survey.machines[at], &look.turns[at]);
        self.request(look, one, turn, leave.as_ref()).await?;
        let gone = match &leave {
            Some(MachineDeparture::Delete(node)) => Some(node.as_str()),
            // Its host goes now, and what ran there is to run elsewhere.
            Some(MachineDeparture::Fail(_)) => one.seen.name(),
            _ => None,
        };
        if let (Some(node), Some(workload)) = (gone, &look.workload) {
            let deleted = Api::<Node>::all(workload.client().clone()).delete(node, &DeleteParams::default()).await;
            match unless_gone(deleted) {
                Ok(_) => tracing::info!(
                    namespace = look.namespace,
                    machine = one.member.name,
                    node,
                    "a machine left its cluster"
                ),
                // It was to go without a wait: one try is what there is.
                Err(error) if one.view.spec.force_deletion => {
                    leave = Some(leave::stays(&format!("node {node}"), &workload::said(&error)));
                }
                Err(error) => return Err(error.into()),
            }
            workload.node_changed().await;
        }
        self.write(look, one, turn, leave.as_ref()).await?;
        Ok(token)
    }

    /// Keeps the Secret of a machine's deployment, for as long as the machine is not ready, and when it changes.
    async fn secret(
        &self,
        look: &ClusterLook<'_>,
        at: usize,
        material: Option<&Material>,
    ) -> Result<Option<Timestamp>, Fault> {
        let (one, turn) = (&look.survey.machines[at], &look.turns[at]);
        let was_ready = one.view.has(ANNOTATION_WAS_READY);
        if one.member.leaving || was_ready && !turn.deploy {
            return Ok(None);
        }
        let becomes = turn.deploy || one.member.deploy.handed;
        let joins = look.survey.kubeadm
            && becomes
            && !one.first
            && !was_ready
            && !one.member.ready
            && one.member.role != MachineRole::Bastion;
        let workload = match &look.workload {
            _ if !joins => None,
            Some(workload) => Some(workload.clone()),
            None => Some(self.workloads.get(&self.client, look.namespace, &look.cluster.name_any()).await?),
        };
        let uid = one.view.uid().unwrap_or_default();
        let whose = DeploymentMachine {
            cluster: look.cluster,
            name: &one.member.name,
            uid: &uid,
            role: one.member.role,
            material,
            joins: workload.as_ref(),
        };
        Ok(deployments::keep(&self.client, &whose, look.now).await?)
    }

    /// Asks for a drain, or takes that back.
    async fn request(
        &self,
        look: &ClusterLook<'_>,
        one: &Machine,
        turn: &MachineTurn,
        leave: Option<&MachineDeparture>,
    ) -> Result<(), Fault> {
        use MachineDeparture::{Drain, Hold, Start};
        let api = Api::<LCMClusterState>::namespaced(self.client.clone(), look.namespace);
        let leaves = matches!(leave, Some(Start | Drain(_) | Hold(_)));
        let wanted = if leaves { Some(true) } else { turn.drain };
        let scope = if leaves { MaintenanceScope::Deletion } else { one.scope };
        let release =
            if scope == MaintenanceScope::Deletion { String::new() } else { look.cluster.spec.release.clone() };
        let is_over = |one: &LCMClusterState| one.spec.value == "false" && locks::is_answered(one);
        match (&one.request, wanted) {
            (Some(request), None | Some(false)) if is_over(request) => Ok(delete(&api, request.as_ref()).await?),
            (Some(request), Some(false)) if request.spec.value != "false" => {
                change(&api, request.as_ref(), json!({"spec": {"value": "false"}})).await?;
                Ok(())
            }
            // What stands is for what is about to happen, and for the release that the cluster is to have by now.
            (Some(request), Some(true) | None)
                if (leaves || !one.member.leaving)
                    && (request.spec.value == "true" || wanted.is_some())
                    && (request.spec.value != "true" || !locks::is_enough(&request.spec, scope, &release)) =>
            {
                let spec = json!({"value": "true", "scope": scope, "release": release});
                change(&api, request.as_ref(), json!({ "spec": spec })).await?;
                Ok(())
            }
            (None, Some(true)) => {
                let Some(node) = one.seen.name() else { return Ok(()) };
                let name = locks::drain_name(&one.member.name);
                let mut owner = LCMMachine::new(&one.member.name, LCMMachineSpec::default());
                owner.metadata.uid = one.view.uid();
                let spec = LCMClusterStateSpec {
                    cluster_name: look.cluster.name_any(),
                    request: Request::CordonDrain,
                    arg: node.to_owned(),
                    value: "true".to_owned(),
                    release,
                    scope: Some(scope),
                };
                self.make_request(look.namespace, &name, owners::owner(&owner, false), spec).await
            }
            _ => Ok(()),
        }
    }

    async fn write(
        &self,
        look: &ClusterLook<'_>,
        one: &Machine,
        turn: &MachineTurn,
        leave: Option<&MachineDeparture>,
    ) -> Result<(), Fault> {
        let api = Api::<LCMMachine>::namespaced(self.client.clone(), look.namespace);
        let takes = takes(one, turn);
        let spec = fill(one, look, turn.deploy || turn.reconfigure);
        let marks = marks(one);
        let is_same = (0..3).all(|at| !takes[at] || one.view.prints[at] == one.wanted.prints[at]);
        let mut status = said::machine(one, turn, look.cluster, look.now);
        left(&mut status, leave, look.now);
        if look.survey.kubeadm && !one.first && takes[1] && !one.view.has(ANNOTATION_WAS_READY) {
            status.token_secret = deployments::name(&one.member.name);
        }
        let mut version = one.view.resource_version();
        if !is_same || spec != one.view.spec || !marks.is_empty() {
            let Some(stored) = api.get_opt(&one.member.name).await? else { return Ok(()) };
            // Decided of another version: what has changed meanwhile has it looked at again.
            if stored.uid() != one.view.uid() {
                return Ok(());
            }
            let mut new = LCMMachineSpec { state_items: stored.spec.state_items.clone(), ..spec };
            new.state_items = PHASES
                .iter()
                .enumerate()
                .flat_map(|(at, phase)| {
                    of_phase(if takes[at] { &one.wanted.items } else { &stored.spec.state_items }, *phase)
                })
                .cloned()
                .collect();
            let before = LCMMachineSpec { state_items: Vec::new(), ..stored.spec.clone() };
            if before != one.view.spec {
                return Err(kube::Error::Api(conflict()).into());
            }
            let patch = difference(&json!(stored.spec), &json!(new)).unwrap_or_else(|| json!({}));
            let changed = change(&api, &stored, json!({"metadata": {"annotations": marks}, "spec": patch})).await?;
            if turn.acts() {
                tracing::info!(
                    namespace = look.namespace,
                    machine = one.member.name,
                    release = look.cluster.spec.release,
                    does = turn.does(),
                    "it is a machine's turn"
                );
            }
            version = changed.resource_version();
        }
        let mut at_hand = LCMMachine::new(&one.member.name, LCMMachineSpec::default());
        at_hand.metadata.resource_version = version;
        if let Some(patch) = difference(&json!(one.view.status), &json!(status)) {
            change_status(&api, &at_hand, patch).await?;
        }
        Ok(())
    }
}

fn conflict() -> Box<kube::core::Status> {
    kube::core::Status::failure("the machine changed meanwhile", "Conflict").with_code(409).boxed()
}

/// Says how far a machine is that is to leave.
fn left(status: &mut LCMMachineStatus, leave: Option<&MachineDeparture>, now: Timestamp) {
    let Some(leave) = leave else {
        status.prepare_deletion_phase.clear();
        clear(&mut status.conditions, CONDITION_LEAVING);
        return;
    };
    let (phase, verdict) = match leave {
        MachineDeparture::Wait(reason) => {
            (status.prepare_deletion_phase.clone(), ConditionVerdict::no("Waiting", reason.clone()))
        }
        MachineDeparture::Start => (STARTED.to_owned(), ConditionVerdict::yes("Draining")),
        MachineDeparture::Drain(reason) => {
            (STARTED.to_owned(), ConditionVerdict { message: reason.clone(), ..ConditionVerdict::yes("Draining") })
        }
        MachineDeparture::Hold(reason) => (STARTED.to_owned(), ConditionVerdict::no(REASON_HELD, reason.clone())),
        MachineDeparture::Delete(_) => (COMPLETED.to_owned(), ConditionVerdict::yes("Left")),
        MachineDeparture::Complete if status.prepare_deletion_phase == FAILED => return,
        MachineDeparture::Complete => (COMPLETED.to_owned(), ConditionVerdict::yes("Left")),
        MachineDeparture::Fail(reason) => {
            status.kubernetes_cordon_drain_error.clone_from(reason);
            (FAILED.to_owned(), ConditionVerdict { message: reason.clone(), ..ConditionVerdict::yes("Failed") })
        }
    };
    status.prepare_deletion_phase = phase;
    set(&mut status.conditions, CONDITION_LEAVING, &verdict, None, now);
}
