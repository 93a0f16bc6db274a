//! Stages that clusters and machines go through: which there are, and how far each is. Pure.
//!
//! Names and order are the published ones, of what is done here. A stage is over when what it names is so and all before it are over;
//! then it stays so. So the times of a history are in order.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use serde_json::Value;

use crate::api::kaas::{LcmStage, StageState, control_group};
use crate::api::lcm::{
    ANNOTATION_GRACEFUL_REBOOT, CONDITION_LOCKS, LCMCluster, LCMMachine, LOCKS_ACTIVE, LOCKS_ASKED, LOCKS_INACTIVE,
    LOCKS_NOT_ASKED, LcmUpdateGroupStatus,
};
use crate::release::names::READY;
use crate::release::words::public;
use crate::runtime::conditions::{find, is_true, whole};

/// What was found out about a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundStage {
    name: &'static str,
    state: StageState,
    message: String,
}

/// The history with what was found out now; a time is that of the last change of a stage's state.
pub fn advance(old: &[LcmStage], found: Vec<FoundStage>, now: Timestamp) -> Vec<LcmStage> {
    let mut are_over = true;
    let one = |FoundStage { name, state, message }| {
        let before = old.iter().find(|one| one.name == name);
        let (state, message) = match before {
            Some(before) if before.success => return before.clone(),
            _ if state == StageState::Success && !are_over => (StageState::NotStarted, String::new()),
            _ => (state, message),
        };
        let since = before.filter(|one| one.status == state).and_then(|one| one.timestamp.clone());
        let success = state == StageState::Success;
        are_over &= success;
        let timestamp = since.or_else(|| Some(Time(whole(now))));
        LcmStage { name: name.to_owned(), status: state, success, message, timestamp }
    };
    found.into_iter().map(one).collect()
}

/// The history of what something else came before the end of.
pub fn given_up(old: &[LcmStage], message: &str, now: Timestamp) -> Vec<LcmStage> {
    let one = |stage: &LcmStage| match stage.success {
        true => stage.clone(),
        false => LcmStage {
            status: StageState::Fail,
            message: message.to_owned(),
            timestamp: Some(Time(whole(now))),
            ..stage.clone()
        },
    };
    old.iter().map(one).collect()
}

/// Whether nothing is added to a history any more: every stage is over, or it was given up.
pub fn is_ended(stages: &[LcmStage]) -> bool {
    !stages.is_empty() && stages.iter().all(|stage| matches!(stage.status, StageState::Success | StageState::Fail))
}

/// Whether all of it is so already.
pub fn is_over(found: &[FoundStage]) -> bool {
    found.iter().all(|stage| stage.state == StageState::Success)
}

fn stage(name: &'static str, state: StageState, message: &str) -> FoundStage {
    FoundStage { name, state, message: public(message) }
}

fn over(name: &'static str) -> FoundStage {
    stage(name, StageState::Success, "")
}

/// A stage that is over, or has begun, or has not.
fn so_far(name: &'static str, is_over: bool, has_begun: bool, message: &str) -> FoundStage {
    match (is_over, has_begun) {
        (true, _) => over(name),
        (false, true) => stage(name, StageState::InProgress, message),
        (false, false) => stage(name, StageState::NotStarted, message),
    }
}

/// What a condition of an LCMMachine says of a stage that is over once it holds.
fn of_phase(name: &'static str, condition: Option<&Condition>) -> FoundStage {
    match condition {
        Some(one) if one.status == "True" => over(name),
        Some(one) if one.reason == "Failed" => stage(name, StageState::Fail, &one.message),
        Some(one) if one.reason == "Waiting" => stage(name, StageState::NotStarted, &one.message),
        Some(one) => stage(name, StageState::InProgress, &one.message),
        None => stage(name, StageState::NotStarted, ""),
    }
}

fn said<'c>(conditions: &'c [Condition], type_: &str) -> &'c str {
    find(conditions, type_).map_or("", |one| one.message.as_str())
}

/// How far a cluster is that is made; with the conditions of its Cluster.
pub fn deployment(conditions: &[Condition], lcm: &LCMCluster, has_bundle: bool) -> Vec<FoundStage> {
    let status = lcm.status.clone().unwrap_or_default();
    let holds = |type_: &str| is_true(conditions, type_);
    let has_reason = |type_: &str, reasons: &[&str]| {
        find(conditions, type_).is_some_and(|one| one.status != "True" && reasons.contains(&one.reason.as_str()))
    };
    let has_machines = !has_reason("Nodes", &["NoMachines"]);
    let nodes = Some(said(&status.conditions, "NodesReady")).filter(|said| !said.is_empty());
    let nodes = nodes.unwrap_or_else(|| said(conditions, "Nodes"));
    let stuck = status.lcm_operation_stuck && has_machines;
    let is_begun = holds("LoadBalancer");
    let provided = match find(conditions, "Provider") {
        Some(one) if one.status != "True" && !["Error", "WaitingForDeletion"].contains(&one.reason.as_str()) => {
            stage("IAM objects created", StageState::Fail, &one.message)
        }
        condition => {
            let message = condition.map_or("", |one| one.message.as_str());
            so_far("IAM objects created", holds("Provider"), true, message)
        }
    };
    let bundle = if !has_bundle && has_reason("Helm", &["InvalidCharts"]) {
        stage("HelmBundle created", StageState::Fail, said(conditions, "Helm"))
    } else {
        so_far("HelmBundle created", has_bundle, false, "")
    };
    let api = if !is_begun && stuck {
        stage("Kubernetes API started", StageState::Fail, nodes)
    } else {
        so_far("Kubernetes API started", is_begun, has_machines, said(conditions, "LoadBalancer"))
    };
    // Without charts there is none.
    let is_helm_there = status.helm_controller_deployed || holds("Helm");
    let machines = if stuck {
        stage("All machines of the cluster are ready", StageState::Fail, nodes)
    } else {
        so_far("All machines of the cluster are ready", holds("Nodes"), has_machines, nodes)
    };
    vec![
        provided,
        bundle,
        api,
        so_far("Helm-controller deployed", is_helm_there, is_begun, said(conditions, "Helm")),
        machines,
        so_far("Cluster is ready", holds(READY), holds("Nodes"), said(conditions, READY)),
    ]
}

/// Whether applications were asked to let go, and whether they have; `is_past` says that it was gone on with.
fn handshake([asked, inactive]: [&'static str; 2], is_past: bool, locks: Option<&Condition>) -> [FoundStage; 2] {
    let reason = locks.map_or(LOCKS_NOT_ASKED, |one| one.reason.as_str());
    let message = locks.map_or("", |one| one.message.as_str());
    let is_asked = [LOCKS_ACTIVE, LOCKS_INACTIVE].contains(&reason);
    [
        so_far(asked, is_past || is_asked, reason == LOCKS_ASKED, message),
        so_far(inactive, is_past || reason == LOCKS_INACTIVE, is_asked, message),
    ]
}

/// How far a cluster is with its next release.
pub fn upgrade(cluster: &str, lcm: &LCMCluster) -> Vec<FoundStage> {
    let status = lcm.status.clone().unwrap_or_default();
    let has = status.release == lcm.spec.release;
    // What was found out for what nodes were told before is of the release before.
    let is_fresh = status.observed_generation == lcm.metadata.generation;
    let control = control_group(cluster);
    let group = |name: &'static str, is_of: &dyn Fn(&str) -> bool| {
        let all: Vec<&LcmUpdateGroupStatus> = status.update_groups.iter().filter(|one| is_of(&one.name)).collect();
        let sum = |count: fn(&LcmUpdateGroupStatus) -> i32| all.iter().map(|one| i64::from(count(one))).sum::<i64>();
        let (machines, updated, under_way) =
            (sum(|one| one.machines), sum(|one| one.updated), sum(|one| one.under_way));
        let message =
            all.iter().map(|one| one.message.as_str()).find(|message| !message.is_empty()).unwrap_or_default();
        match () {
            () if has => over(name),
            () if !is_fresh || all.is_empty() => stage(name, StageState::NotStarted, ""),
            () if updated >= machines => over(name),
            () if status.lcm_operation_stuck && under_way > 0 => stage(name, StageState::Fail, message),
            () => so_far(name, false, updated + under_way > 0, message),
        }
    };
    let any = is_fresh && status.update_groups.iter().any(|one| one.updated + one.under_way > 0);
    let message = if any { said(&status.conditions, "NodesReady") } else { "" };
    let locks = find(&status.conditions, CONDITION_LOCKS).filter(|_| is_fresh);
    // Of a cluster that its steps make whatever they make nobody is asked, and it has no such condition.
    let is_past = has || locks.is_none() && any;
    let [requested, inactive] =
        handshake(["Requested cluster maintenance", "Cluster workload locks are inactive"], is_past, locks);
    let is_asked = locks.is_some_and(|one| one.reason != LOCKS_NOT_ASKED);
    vec![
        requested,
        inactive,
        group("Control plane nodes upgraded", &|name| name == control),
        group("Worker nodes upgraded", &|name| name != control),
        so_far("All machines of the cluster upgraded", has, any, message),
        so_far("Cluster maintenance request removed", has && !is_asked, has, ""),
    ]
}

fn agent(lcm: &LCMMachine) -> FoundStage {
    const NAME: &str = "Agent upgraded";
    let status = lcm.status.clone().unwrap_or_default();
    let replaces = status.lcm_agent_upgrade_status.unwrap_or_default();
    match () {
        () if !replaces.error.is_empty() => stage(NAME, StageState::Fail, &replaces.error),
        () if replaces.started_at.is_some() && replaces.finished_at.is_none() => {
            stage(NAME, StageState::InProgress, "")
        }
        () if status.agent_version.is_empty() => {
            stage(NAME, StageState::NotStarted, said(&status.conditions, "AgentHeard"))
        }
        () => over(NAME),
    }
}

/// Whether it is a machine's turn to be deployed.
fn turn(conditions: &[Condition], has_come: bool) -> FoundStage {
    let waits = find(conditions, "Deployed").filter(|one| one.reason == "Waiting");
    let is_prepared = is_true(conditions, "Prepared");
    so_far("Previous machines are deployed", has_come, is_prepared, waits.map_or("", |one| one.message.as_str()))
}

/// How far a machine is that becomes a node; with what its Machine says of its host.
pub fn machine_deployment(told: &Value, lcm: &LCMMachine) -> Vec<FoundStage> {
    const INSTANCE: &str = "Provider instance ready";
    let instance = &told["providerInstanceState"];
    let has_host = instance["id"].as_str().is_some_and(|id| !id.is_empty());
    let mut about = told["conditions"].as_array().into_iter().flatten();
    let message = about.find(|one| one["type"] == "ProviderInstance").and_then(|one| one["message"].as_str());
    let conditions = lcm.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let has_come = find(conditions, "Deployed").is_some_and(|one| one.reason != "Waiting");
    vec![
        so_far(INSTANCE, instance["ready"] == true, has_host, message.unwrap_or_default()),
        agent(lcm),
        of_phase("Prepare phase done", find(conditions, "Prepared")),
        turn(conditions, has_come),
        of_phase("Deploy phase done", find(conditions, "Deployed")),
        of_phase("Reconfigure phase done", find(conditions, "Reconfigured")),
    ]
}

/// How far a machine is with the release that its cluster goes to.
pub fn machine_upgrade(cluster: &LCMCluster, lcm: &LCMMachine) -> Vec<FoundStage> {
    let status = lcm.status.clone().unwrap_or_default();
    let target = &cluster.spec.release;
    let has = status.release == *target;
    // Conditions are of the release before until the cluster was looked at, and steps until they are handed out.
    let observed = cluster.status.as_ref().and_then(|status| status.observed_generation);
    let is_fresh = has || observed == cluster.metadata.generation;
    let has_steps = is_fresh && (has || lcm.spec.release == *target);
    let conditions = if is_fresh { status.conditions.as_slice() } else { &[] };
    // It may be drained for something else.
    let is_for_it = is_fresh && !lcm.annotations().contains_key(ANNOTATION_GRACEFUL_REBOOT);
    let drain = if is_for_it { status.kubernetes_cordon_drain.as_str() } else { "" };
    let phase = |name, type_| match has {
        true => over(name),
        false => of_phase(name, find(conditions, type_).filter(|_| has_steps)),
    };
    let reboot = status.reboot.clone().unwrap_or_default();
    let is_rebooting = lcm.spec.reboot_required || reboot.requested_at.is_some() && !reboot.completed;
    let has_all = has_steps && is_true(conditions, "Deployed") && is_true(conditions, "Reconfigured");
    let reboot = if !reboot.error_message.is_empty() && !reboot.completed && has_all && !has {
        stage("Reboot done", StageState::Fail, &reboot.error_message)
    } else {
        let waits = said(conditions, READY);
        so_far("Reboot done", has || has_all && !is_rebooting, has_all, if has_all { waits } else { "" })
    };
    let prepared = match has {
        true => over("Prepare phase done"),
        false => of_phase("Prepare phase done", find(conditions, "Prepared")),
    };
    let is_drained = has_steps || drain == "cordondrained";
    let locks = find(conditions, CONDITION_LOCKS).filter(|_| is_for_it);
    let [requested, inactive] =
        handshake(["Node maintenance requested", "Node workload locks inactive"], is_drained, locks);
    let drains = !drain.is_empty() && inactive.state == StageState::Success;
    vec![
        prepared,
        turn(conditions, has_steps || !drain.is_empty()),
        requested,
        inactive,
        so_far("Kubernetes drained", is_drained, drains, &status.kubernetes_cordon_drain_error),
        phase("Deploy phase done", "Deployed"),
        phase("Reconfigure phase done", "Reconfigured"),
        reboot,
        so_far("Machine Upgraded", has, has_all, if has_all { said(conditions, READY) } else { "" }),
        so_far("Kubernetes uncordoned", has && drain.is_empty(), drain == "uncordoning", ""),
        so_far("Node maintenance request removed", has && drain.is_empty(), drain == "uncordoning", ""),
    ]
}

#[cfg(test)]
mod tests;
