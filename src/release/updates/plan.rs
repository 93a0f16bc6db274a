//! ClusterUpdatePlans: which there are to be of a cluster, what they say, and how far they are. Pure.
//!
//! A plan is of a Cluster by its owner reference. While nodes go to a release because a plan said so, the plan says which groups may:
//! `LCMCluster.spec.updatePlan` names it. A release that was set on the Cluster itself goes to all of them, and the plan shows how far.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::api::kaas::{
    ClusterUpdatePlan, ClusterUpdatePlanSpec, ClusterUpdatePlanStatus, MAX_PLAN_STEPS, UpdatePlanDuration,
    UpdatePlanImpact, UpdatePlanState, UpdatePlanStep, UpdatePlanStepStatus, control_group,
};
use crate::api::lcm::{LCMCluster, LcmUpdateGroup, LcmUpdateGroupStatus};
use crate::release::words::public;
use crate::runtime::conditions::{ConditionVerdict, set, whole};

/// The step of the control plane.
pub const CONTROLLERS: &str = "k8s-controllers";
/// What the step of a group of workers begins with.
const WORKERS: &str = "k8s-workers-";
/// The condition of a plan.
pub const COMPLETED: &str = "Completed";

/// The name of a cluster's plan to a version: `+` is none of the letters that names have.
pub fn name(cluster: &str, version: &str) -> String {
    format!("{cluster}-{}", version.replace('+', "-").to_lowercase())
}

/// The step that a group's machines are updated in.
pub fn step_of(cluster: &str, group: &str) -> String {
    if group == control_group(cluster) { CONTROLLERS.to_owned() } else { format!("{WORKERS}{group}") }
}

/// What a plan of these groups says. Which steps may begin stays as it is.
pub fn wanted(
    cluster: &str,
    (source, target): (&str, &str),
    release_notes: &str,
    groups: &[LcmUpdateGroup],
    old: Option<&ClusterUpdatePlanSpec>,
) -> ClusterUpdatePlanSpec {
    let commence = |id: &str| old.is_some_and(|old| old.steps.iter().any(|step| step.id == id && step.commence));
    let impact = |users: &str, workloads: &str, info: &str| {
        Some(UpdatePlanImpact { users: users.into(), workloads: workloads.into(), info: vec![info.into()] })
    };
    let duration = || {
        Some(UpdatePlanDuration {
            estimated: String::new(),
            info: vec!["a drain lasts as long as the pods' own grace periods and disruption budgets make it".into()],
        })
    };
    let control = control_group(cluster);
    let mut steps = vec![UpdatePlanStep {
        id: CONTROLLERS.into(),
        name: "Control plane".into(),
        description: "Every machine of the control plane gets the release, one by one, drained before".into(),
        constraints: Vec::new(),
        impact: impact("minor", "minor", "the API server of a cluster with one manager does not answer meanwhile"),
        duration: duration(),
        granularity: "machine".into(),
        commence: commence(CONTROLLERS),
    }];
    let workers = groups.iter().filter(|group| group.name != control).take(MAX_PLAN_STEPS - 1);
    steps.extend(workers.map(|group| {
        let id = step_of(cluster, &group.name);
        UpdatePlanStep {
            name: format!("Workers of {}", group.name),
            description: format!(
                "Every worker of the update group gets the release, {} at once, drained before",
                group.concurrent_updates.max(1)
            ),
            constraints: vec!["the control plane and groups of a lower index have the release".into()],
            impact: impact("none", "major", "pods move to other workers"),
            duration: duration(),
            granularity: "machine".into(),
            commence: commence(&id),
            id,
        }
    }));
    ClusterUpdatePlanSpec {
        cluster: cluster.to_owned(),
        source: source.to_owned(),
        target: target.to_owned(),
        release_notes: release_notes.to_owned(),
        steps,
    }
}

/// Whether a plan's first step may begin.
pub fn is_commenced(plan: &ClusterUpdatePlan) -> bool {
    plan.spec.steps.first().is_some_and(|step| step.commence)
}

/// How far a plan was last.
pub fn state(plan: &ClusterUpdatePlan) -> UpdatePlanState {
    plan.status.as_ref().map(|status| status.status).unwrap_or_default()
}

/// Whether a plan is kept of a cluster that has one release, and names another one: one to a release that may follow, and the last one.
pub fn is_kept(plan: &ClusterUpdatePlan, has: &str, names: &str, available: &[&str]) -> bool {
    let ClusterUpdatePlanSpec { source, target, .. } = &plan.spec;
    target == has || source == has && (target == names || available.contains(&target.as_str()))
}

/// Why a group may not begin with the release of the plan that governs.
pub fn paused(cluster: &str, governs: &str, plan: Option<&ClusterUpdatePlan>, group: &str) -> Option<String> {
    if governs.is_empty() {
        return None;
    }
    let id = step_of(cluster, group);
    let step = plan.and_then(|plan| plan.spec.steps.iter().find(|step| step.id == id));
    if step.is_some_and(|step| step.commence) {
        return None;
    }
    Some(format!("waits for the step {id} of the ClusterUpdatePlan {governs}: set its commence to true to go on"))
}

/// What a plan's status follows from.
pub struct PlanFacts<'a> {
    /// What nodes are told, and how far they are.
    pub lcm: &'a LCMCluster,
    /// Why the Cluster is not told of the plan's release, though it is to begin.
    pub refusal: Option<&'a str>,
}

impl PlanFacts<'_> {
    /// How far a group is; none while that is not found out for what nodes are told now.
    fn group(&self, name: &str) -> Option<&LcmUpdateGroupStatus> {
        let status = self.lcm.status.as_ref()?;
        let is_fresh = status.observed_generation == self.lcm.metadata.generation;
        status.update_groups.iter().find(|group| is_fresh && group.name == name)
    }
}

/// How far a plan is.
pub fn status(plan: &ClusterUpdatePlan, facts: &PlanFacts<'_>, now: Timestamp) -> ClusterUpdatePlanStatus {
    let old = plan.status.clone().unwrap_or_default();
    if old.status == UpdatePlanState::Completed {
        return old;
    }
    let target = &plan.spec.target;
    let has = facts.lcm.status.as_ref().map_or("", |status| status.release.as_str());
    let state = match () {
        () if has == target => UpdatePlanState::Completed,
        () if facts.lcm.spec.release == *target => UpdatePlanState::InProgress,
        () => UpdatePlanState::NotStarted,
    };
    let steps = steps(plan, &old, state, facts, now);
    let verdict = verdict(plan, state, &steps, facts);
    let time = || Some(Time(whole(now)));
    let mut new = ClusterUpdatePlanStatus { status: state, steps, ..old };
    if state != UpdatePlanState::NotStarted && new.started_at.is_none() {
        new.started_at = time();
    }
    if state == UpdatePlanState::Completed {
        new.completed_at = time();
    }
    set(&mut new.conditions, COMPLETED, &verdict, plan.metadata.generation, now);
    new
}

fn steps(
    plan: &ClusterUpdatePlan,
    old: &ClusterUpdatePlanStatus,
    state: UpdatePlanState,
    facts: &PlanFacts<'_>,
    now: Timestamp,
) -> Vec<UpdatePlanStepStatus> {
    let cluster = &plan.spec.cluster;
    let governs = facts.lcm.spec.update_plan == plan.name_any();
    let mut are_before_done = true;
    let mut all = Vec::new();
    for step in &plan.spec.steps {
        let mut one = old.steps.iter().find(|one| one.id == step.id).cloned().unwrap_or_default();
        (one.id, one.name) = (step.id.clone(), step.name.clone());
        let group = step.id.strip_prefix(WORKERS).map_or_else(|| control_group(cluster), ToOwned::to_owned);
        let (is, message) = match (state, facts.group(&group)) {
            (UpdatePlanState::NotStarted, _) => (state, String::new()),
            (UpdatePlanState::Completed, _) => (state, String::new()),
            _ if one.status == UpdatePlanState::Completed => (one.status, String::new()),
            // What was found out is of before.
            (UpdatePlanState::InProgress, None) => (one.status, one.message.clone()),
            (UpdatePlanState::InProgress, Some(group)) => {
                one_of_group(group, !governs || step.commence, are_before_done)
            }
        };
        if is != UpdatePlanState::NotStarted && one.started_at.is_none() {
            one.started_at = Some(Time(whole(now)));
        }
        if is == UpdatePlanState::Completed && one.status != is {
            let took = one.started_at.as_ref().map_or(SignedDuration::ZERO, |since| whole(now).duration_since(since.0));
            one.duration = format!("{}s", took.as_secs().max(0));
        }
        (one.status, one.message) = (is, message);
        are_before_done &= is == UpdatePlanState::Completed;
        all.push(one);
    }
    all
}

fn one_of_group(group: &LcmUpdateGroupStatus, may: bool, are_before_done: bool) -> (UpdatePlanState, String) {
    let has_begun = group.under_way > 0 || group.updated > 0;
    if group.updated >= group.machines && (has_begun || may && are_before_done) {
        return (UpdatePlanState::Completed, String::new());
    }
    let message = if group.message.is_empty() { String::new() } else { format!("; {}", public(&group.message)) };
    if has_begun || may && are_before_done {
        let said = format!("{} of {} machines have it{message}", group.updated, group.machines);
        return (UpdatePlanState::InProgress, said);
    }
    let said = if !may && are_before_done { "is paused: set commence of this step to true to go on" } else { "" };
    (UpdatePlanState::NotStarted, said.to_owned())
}

fn verdict(
    plan: &ClusterUpdatePlan,
    state: UpdatePlanState,
    steps: &[UpdatePlanStepStatus],
    facts: &PlanFacts<'_>,
) -> ConditionVerdict {
    match state {
        UpdatePlanState::Completed => ConditionVerdict::yes("Completed"),
        UpdatePlanState::NotStarted => match facts.refusal {
            Some(reason) => ConditionVerdict::no("NotPossible", reason),
            None if is_commenced(plan) => ConditionVerdict::no("Starting", "the Cluster is told of the release"),
            None => ConditionVerdict::no(
                "NotStarted",
                format!("set commence of the step {CONTROLLERS} to true to begin; each further step waits for its own"),
            ),
        },
        UpdatePlanState::InProgress => {
            let open = steps.iter().find(|step| step.status != UpdatePlanState::Completed);
            let Some(open) = open else {
                return ConditionVerdict::no("InProgress", "waits until every machine of the cluster is ready");
            };
            let reason = if open.status == UpdatePlanState::NotStarted { "Paused" } else { "InProgress" };
            let message = if open.message.is_empty() { "its machines are looked at" } else { open.message.as_str() };
            ConditionVerdict::no(reason, format!("step {}: {message}", open.id))
        }
    }
}

#[cfg(test)]
mod tests;
