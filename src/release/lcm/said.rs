//! What is said of a machine and of its cluster: states, conditions and counts. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};

use super::groups;
use super::locks;
use super::nodes::SeenNode;
use super::order::{Drain, MachineTurn, Reboot, Work};
use super::survey::{INITIALIZED, Machine, Survey, is_kubeadm};
use super::view::AGENT_HEARD;
use crate::api::lcm::{
    CONDITION_LOCKS, LCMCluster, LCMClusterState, LCMClusterStatus, LCMMachineStatus, MachineRole, NodeState,
    RebootStatus,
};
use crate::runtime::conditions::{ConditionVerdict, all, set, whole};

/// Tries of a step after which somebody should look at it.
const STUCK_AFTER: i32 = 3;

/// What is said of whether a machine's agent is heard.
fn heard(one: &Machine) -> ConditionVerdict {
    let last = one.view.status.last_heard.as_ref();
    if one.member.silent {
        let since = last.map(|time| time.0.to_string()).unwrap_or_default();
        let reason = format!(
            "was not heard since {since}: see whether the machine runs, its agent does, and reaches the appliance"
        );
        return ConditionVerdict::no("Silent", reason);
    }
    if one.member.heard || last.is_some() {
        return ConditionVerdict::yes("Heard");
    }
    ConditionVerdict::no(
        "NotHeardYet",
        "its agent was not heard yet: it is once the machine is installed and has an address",
    )
}

/// What is said of the steps of a phase.
fn phase(one: &Machine, work: Work, [yes, no]: [&str; 2], turn: &MachineTurn) -> ConditionVerdict {
    if work.handed && work.done {
        return ConditionVerdict::yes(yes);
    }
    if !work.handed {
        return ConditionVerdict::no(
            "Waiting",
            turn.waits.clone().unwrap_or_else(|| "its turn has not come".to_owned()),
        );
    }
    match &one.member.fault {
        Some(fault) => ConditionVerdict::no("Failed", fault.clone()),
        None => ConditionVerdict::no(no, working(one)),
    }
}

fn working(one: &Machine) -> String {
    one.view.working.as_ref().map_or_else(String::new, |step| format!("works off step {step}"))
}

fn ready(one: &Machine, turn: &MachineTurn) -> ConditionVerdict {
    let waits = turn.waits.clone().unwrap_or_default();
    let node = |reason: &str| ConditionVerdict::no("WaitingForNode", reason);
    match one.state {
        NodeState::Uninitialized => ConditionVerdict::no("Uninitialized", "its agent has reported no address yet"),
        NodeState::Pending | NodeState::Prepare if turn.waits.is_some() && one.member.fault.is_none() => {
            ConditionVerdict::no("Waiting", waits)
        }
        NodeState::Ready if one.member.ready => ConditionVerdict { message: waits, ..ConditionVerdict::yes("Ready") },
        NodeState::Reboot => {
            ConditionVerdict::no("Reboot", if waits.is_empty() { "is to be rebooted".to_owned() } else { waits })
        }
        NodeState::Ready => match &one.seen {
            _ if one.member.silent => ConditionVerdict::unknown("Silent", "its agent is not heard"),
            SeenNode::Unready(name) => node(&format!("node {name} of the cluster is not Ready")),
            SeenNode::Unknown(reason) => node(reason),
            _ => node("it has no node in the cluster yet"),
        },
        state => match &one.member.fault {
            Some(fault) => ConditionVerdict::no("Failed", fault.clone()),
            None => ConditionVerdict::no(&format!("{state:?}"), if waits.is_empty() { working(one) } else { waits }),
        },
    }
}

/// What a machine's status is to be; of what its agent writes nothing is changed.
pub(super) fn machine(one: &Machine, turn: &MachineTurn, cluster: &LCMCluster, now: Timestamp) -> LCMMachineStatus {
    let (view, member) = (&one.view, &one.member);
    let mut status = view.status.clone();
    let generation = view.metadata_generation();
    status.state = Some(one.state);
    for (type_, verdict) in [
        (AGENT_HEARD, heard(one)),
        ("Prepared", phase(one, member.prepare, ["Prepared", "Preparing"], turn)),
        ("Deployed", phase(one, member.deploy, ["Deployed", "Deploying"], turn)),
        ("Reconfigured", phase(one, member.reconfigure, ["Reconfigured", "Reconfiguring"], turn)),
        ("Ready", ready(one, turn)),
    ] {
        set(&mut status.conditions, type_, &verdict, generation, now);
    }
    if is_kubeadm(cluster) {
        let verdict = locks::verdict(one.request.as_deref(), &cluster.spec.release);
        set(&mut status.conditions, CONDITION_LOCKS, &verdict, generation, now);
    }
    let current = [member.prepare, member.deploy, member.reconfigure].iter().all(|work| work.handed && work.done);
    if current && member.ready && one.state == NodeState::Ready {
        status.release.clone_from(&cluster.spec.release);
    }
    status.maintenance =
        member.held && !matches!(one.state, NodeState::Deploy | NodeState::Upgrade | NodeState::Reconfigure);
    let (word, error) = match member.drain {
        Drain::None => ("", String::new()),
        Drain::Asked => (
            "cordondraining",
            one.request.as_ref().and_then(|one| Some(one.status.as_ref()?.message.clone())).unwrap_or_default(),
        ),
        Drain::Done => ("cordondrained", String::new()),
        Drain::Undoing => ("uncordoning", String::new()),
    };
    word.clone_into(&mut status.kubernetes_cordon_drain);
    status.kubernetes_cordon_drain_error = error;
    reboot(one, turn, &mut status, now);
    status
}

fn reboot(one: &Machine, turn: &MachineTurn, status: &mut LCMMachineStatus, now: Timestamp) {
    let required = one.view.spec.reboot_required || one.view.has(crate::api::lcm::ANNOTATION_GRACEFUL_REBOOT);
    if turn.reboot {
        status.reboot = Some(RebootStatus { requested_at: Some(Time(whole(now))), ..RebootStatus::default() });
    } else if one.member.reboot == Reboot::None && !required && status.reboot.as_ref().is_some_and(|one| one.completed)
    {
        // It is over, so that the next one is asked for anew.
        status.reboot = None;
    }
}

/// What a cluster's status is to be; with what is asked of its applications.
pub(super) fn cluster(
    cluster: &LCMCluster,
    (survey, asked): (&Survey, Option<&LCMClusterState>),
    turns: &[MachineTurn],
    material: Option<&str>,
    now: Timestamp,
) -> LCMClusterStatus {
    let mut status = cluster.status.clone().unwrap_or_default();
    let nodes: Vec<(&Machine, &MachineTurn)> = survey
        .machines
        .iter()
        .zip(turns)
        .filter(|(one, _)| one.member.role != MachineRole::Bastion && !one.member.leaving)
        .collect();
    let is_ready = |one: &Machine| one.member.ready && one.state == NodeState::Ready;
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    status.requested_nodes = count(nodes.len());
    status.ready_nodes = count(nodes.iter().filter(|(one, _)| is_ready(one)).count());
    let has_release = |one: &&Machine| one.view.status.release == cluster.spec.release;
    if !nodes.is_empty() && nodes.iter().all(|(one, _)| has_release(one)) {
        status.release.clone_from(&cluster.spec.release);
    }
    let waits = |at: usize| turns.get(at).and_then(|turn| turn.waits.as_deref());
    status.update_groups = groups::progress(&cluster.name_any(), &cluster.spec.release, survey, waits);
    status.maintenance = cluster.spec.maintenance && nodes.iter().all(|(one, _)| one.view.status.maintenance);
    let stuck = |one: &Machine| {
        one.view.failed.as_ref().is_some_and(|failed| failed.attempt >= STUCK_AFTER)
            || one.member.fault.is_some() && one.member.silent
    };
    status.lcm_operation_stuck = nodes.iter().any(|(one, _)| stuck(one));
    status.observed_generation = cluster.metadata.generation;
    let none = || ConditionVerdict::no("NoMachines", "the cluster has no machines yet");
    let prepared = all(
        nodes.iter().map(|(one, turn)| {
            let verdict = phase(one, one.member.prepare, ["Prepared", "Preparing"], turn);
            (one.member.name.as_str(), Some(verdict))
        }),
        ["Prepared", "Preparing", "Unknown"],
    );
    let reachable = nodes.iter().any(|(one, _)| one.member.role == MachineRole::Control && one.member.was_deployed);
    let initialized = match (survey.rules.initialized, survey.fault.as_deref().or(material)) {
        (true, _) if reachable || !survey.kubeadm => ConditionVerdict::yes("Initialized"),
        (true, _) => ConditionVerdict {
            message: "none of the managers that were deployed is left".into(),
            ..ConditionVerdict::yes("Initialized")
        },
        (false, Some(reason)) => ConditionVerdict::no("NotPossible", reason),
        (false, None) => ConditionVerdict::no("WaitingForManager", "no manager has begun the cluster yet"),
    };
    let ready = all(
        nodes.iter().map(|(one, turn)| {
            let behind = || {
                ConditionVerdict::no("Behind", turn.waits.clone().unwrap_or_else(|| "has another release".to_owned()))
            };
            let verdict = ready(one, turn);
            let verdict = if verdict.is_true() && !has_release(one) { behind() } else { verdict };
            (one.member.name.as_str(), Some(verdict))
        }),
        ["NodesReady", "NodesNotReady", "Unknown"],
    );
    for (type_, verdict) in [
        ("Prepared", if nodes.is_empty() { none() } else { prepared }),
        (INITIALIZED, initialized),
        ("NodesReady", if nodes.is_empty() { none() } else { ready }),
    ] {
        set(&mut status.conditions, type_, &verdict, cluster.metadata.generation, now);
    }
    if survey.kubeadm {
        let verdict = locks::verdict(asked, &cluster.spec.release);
        set(&mut status.conditions, CONDITION_LOCKS, &verdict, cluster.metadata.generation, now);
    }
    status
}

impl super::view::LcmMachineView {
    fn metadata_generation(&self) -> Option<i64> {
        self.meta().generation
    }
}
