//! What a decision brings about.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::Api;
use serde_json::json;

use super::budget::ReconcileBudget;
use super::etcd::EtcdMembers;
use super::fault::ControlPlaneFault;
use super::plan::{ControlPlaneAction, ControlPlaneDecision, EtcdMember, Handover, RemediationRefusal, WellState};
use super::scope::{ControlPlaneScope, Owned};
use super::status::OWNER_REMEDIATED;
use super::{inside, make};
use crate::api::cluster::v1beta2::Machine;
use crate::api::control_plane::ANNOTATION_REMEDIATING;
use crate::api::control_plane::v1beta2::KubeadmControlPlane;
use crate::cluster::contract::{FoundObject, KubeVersion, ReferencedObjects};
use crate::cluster::workload::Workload;
use crate::runtime::changes::change;
use crate::runtime::conditions::{self, ConditionVerdict, Severity, older, set_old};
use crate::runtime::throttle::MessageThrottle;
use crate::runtime::{Note, events};

/// Who tells events.
const COMPONENT: &str = "slipway-control-plane";

/// With what is acted.
pub(super) struct Hands<'a> {
    pub(super) objects: &'a ReferencedObjects,
    pub(super) scope: &'a ControlPlaneScope,
    pub(super) version: KubeVersion,
    /// What machines run on.
    pub(super) template: &'a Result<FoundObject, String>,
    pub(super) workload: Option<&'a Workload>,
    pub(super) members: Option<&'a Arc<dyn EtcdMembers>>,
    /// For what is asked of the cluster.
    pub(super) budget: ReconcileBudget,
}

/// Does what was decided. Whether something was done that brings about another look by itself.
///
/// # Errors
///
/// Why it could not be done; it is decided anew then.
pub(super) async fn act(hands: &Hands<'_>, decision: &ControlPlaneDecision) -> Result<bool, ControlPlaneFault> {
    let Hands { objects, scope, .. } = hands;
    if decision.rolling_out
        && matches!(decision.action, ControlPlaneAction::Join { .. } | ControlPlaneAction::Delete { .. })
    {
        let workload =
            hands.workload.ok_or_else(|| ControlPlaneFault::Inside("the cluster cannot be reached".into()))?;
        let prepare = inside::prepare(workload, &scope.spec, hands.version, scope.etcd_managed());
        let prepared = hands.budget.within(prepare).await;
        prepared.map_err(|error| ControlPlaneFault::Inside(format!("the upgrade cannot be prepared: {error}")))?;
    }
    match &decision.action {
        ControlPlaneAction::Wait(message) => {
            tracing::debug!(control_plane = %crate::log::named(&scope.namespace(), &scope.plane.name_any()), reason = message, "a control plane waits");
            return Ok(false);
        }
        ControlPlaneAction::Settle => return Ok(false),
        ControlPlaneAction::Initialize { failure_domain } => create(hands, false, failure_domain.clone()).await?,
        ControlPlaneAction::Join { failure_domain } => create(hands, true, failure_domain.clone()).await?,
        ControlPlaneAction::Delete { machine, handover } => {
            hand_over(hands, handover.as_ref()).await?;
            let owned = named(scope, machine)?;
            make::delete(objects, &owned.machine).await?;
            tell(hands, "SuccessfulDelete", format!("Deleted machine {machine}"), false).await;
        }
        ControlPlaneAction::Replace { remediation, handover } => {
            // Noted first: whoever comes back after a crash goes on with this one.
            note(hands, Some(&remediation.written())).await?;
            hand_over(hands, handover.as_ref()).await?;
            let owned = named(scope, &remediation.machine)?;
            make::delete(objects, &owned.machine).await?;
            let message =
                format!("Deleted machine {}, which is unhealthy: another one takes its place", remediation.machine);
            tell(hands, "MachineRemediated", message, true).await;
            let deleting = RemediationRefusal {
                machine: remediation.machine.clone(),
                reason: "MachineDeleting",
                message: "The Machine is being deleted".into(),
            };
            say(objects, scope, &deleting).await?;
        }
        ControlPlaneAction::RemoveMember(member) => {
            remove(hands, member).await?;
            let message = format!("Removed member {} of etcd, which belongs to no machine", member.name);
            tell(hands, "EtcdMemberRemoved", message, true).await;
        }
        ControlPlaneAction::Release { machine, handover, member } => {
            hand_over(hands, handover.as_ref()).await?;
            let owned = named(scope, machine)?;
            if let Some(member) = member {
                remove(hands, member).await?;
                tell(
                    hands,
                    "EtcdMemberRemoved",
                    format!("Removed the member of etcd of machine {machine}, which goes"),
                    false,
                )
                .await;
            }
            make::release(objects, &owned.machine).await?;
        }
    }
    Ok(true)
}

async fn create(hands: &Hands<'_>, joins: bool, failure_domain: Option<String>) -> Result<(), ControlPlaneFault> {
    let Hands { objects, scope, version, .. } = hands;
    let template = hands.template.as_ref().map_err(|reason| ControlPlaneFault::Inside(reason.clone()))?;
    let name = make::machine(objects, scope, template, *version, joins, failure_domain).await?;
    let how = if joins { "which joins" } else { "with which the control plane begins" };
    tell(hands, "SuccessfulCreate", format!("Created machine {name}, {how}"), false).await;
    if scope.plane.annotations().contains_key(ANNOTATION_REMEDIATING) {
        note(hands, None).await?;
    }
    Ok(())
}

/// Logs what was done for a control plane, and stores it as an event.
async fn tell(hands: &Hands<'_>, reason: &'static str, message: String, warning: bool) {
    let note = Note { reason, message, warning };
    events::tell(hands.objects.client(), COMPONENT, &hands.scope.plane, &note).await;
}

/// Notes a replacement at the control plane, or that it is done.
async fn note(hands: &Hands<'_>, text: Option<&str>) -> Result<(), ControlPlaneFault> {
    let planes = Api::<KubeadmControlPlane>::namespaced(hands.objects.client().clone(), &hands.scope.namespace());
    let patch = json!({"metadata": {"annotations": {ANNOTATION_REMEDIATING: text}}});
    let name = hands.scope.plane.name_any();
    planes.patch_metadata(&name, &kube::api::PatchParams::default(), &kube::api::Patch::Merge(patch)).await?;
    Ok(())
}

/// Takes the note away that a replacement is under way.
///
/// # Errors
///
/// What the API says.
pub(super) async fn forget(
    objects: &ReferencedObjects,
    plane: &KubeadmControlPlane,
) -> Result<KubeadmControlPlane, ControlPlaneFault> {
    let planes =
        Api::<KubeadmControlPlane>::namespaced(objects.client().clone(), &plane.namespace().unwrap_or_default());
    Ok(change(&planes, plane, json!({"metadata": {"annotations": {ANNOTATION_REMEDIATING: null}}})).await?)
}

fn members<'h>(hands: &'h Hands<'_>) -> Result<&'h Arc<dyn EtcdMembers>, ControlPlaneFault> {
    hands.members.ok_or_else(|| ControlPlaneFault::Inside("etcd cannot be reached".into()))
}

fn named<'s>(scope: &'s ControlPlaneScope, name: &str) -> Result<&'s Owned, ControlPlaneFault> {
    let found = scope.owned.iter().find(|owned| owned.name() == name);
    found.ok_or_else(|| ControlPlaneFault::Inside(format!("there is no Machine {name}")))
}

/// Nodes at which etcd may be asked, without these: those first whose member is well.
fn nodes(scope: &ControlPlaneScope, without: &[&str]) -> Vec<String> {
    let mut owned: Vec<&Owned> =
        scope.owned.iter().filter(|owned| owned.machine.metadata.deletion_timestamp.is_none()).collect();
    owned.sort_by_key(|owned| super::health::states(&owned.parts()).etcd_member != WellState::True);
    let nodes = owned.into_iter().filter_map(Owned::node);
    nodes.filter(|node| !without.contains(&node.as_str())).collect()
}

/// Removes a member of etcd, asked at another one.
async fn remove(hands: &Hands<'_>, member: &EtcdMember) -> Result<(), ControlPlaneFault> {
    let nodes = nodes(hands.scope, &[&member.name]);
    hands.budget.within(members(hands)?.remove(member.id, &nodes)).await.map_err(ControlPlaneFault::Inside)
}

/// Hands the lead of etcd to the first that takes it.
async fn hand_over(hands: &Hands<'_>, handover: Option<&Handover>) -> Result<(), ControlPlaneFault> {
    let Some(Handover { from, to }) = handover else { return Ok(()) };
    let mut reason = "nobody could take it".to_owned();
    for heir in to {
        match hands.budget.within(members(hands)?.hand_over(from, heir)).await {
            Ok(()) => {
                let plane = crate::log::named(&hands.scope.namespace(), &hands.scope.plane.name_any()).to_string();
                tracing::info!(plane, from, to = heir, "handed on the lead of etcd");
                return Ok(());
            }
            Err(error) => reason = format!("{heir}: {error}"),
        }
    }
    Err(ControlPlaneFault::Inside(format!("the lead of etcd stays with {from}: {reason}")))
}

/// Says at a machine why it is not replaced, or that it is.
///
/// # Errors
///
/// What the API says.
pub(super) async fn say(
    objects: &ReferencedObjects,
    scope: &ControlPlaneScope,
    refusal: &RemediationRefusal,
) -> Result<(), ControlPlaneFault> {
    let owned = named(scope, &refusal.machine)?;
    let verdict = ConditionVerdict::no(refusal.reason, refusal.message.clone());
    let known = conditions::find(owned.conditions(), OWNER_REMEDIATED).map(ConditionVerdict::of);
    if known.as_ref() == Some(&verdict) {
        return Ok(());
    }
    // It was written meanwhile: as it is now.
    let machines = Api::<Machine>::namespaced(objects.client().clone(), &scope.namespace());
    let Some(machine) = machines.get_opt(&refusal.machine).await? else { return Ok(()) };
    // What is said here is nobody else's text.
    let at_once = MessageThrottle::new(Duration::ZERO);
    let generation = machine.metadata.generation;
    change_conditions(objects, &at_once, &machine, |all| set(all, OWNER_REMEDIATED, &verdict, generation)).await?;
    Ok(())
}

/// Changes what a machine's conditions say, in both of their shapes. How long that waits, where only messages are new.
///
/// # Errors
///
/// What the API says.
pub(super) async fn change_conditions(
    objects: &ReferencedObjects,
    throttle: &MessageThrottle,
    machine: &Machine,
    alter: impl FnOnce(&mut Both),
) -> Result<Option<Duration>, ControlPlaneFault> {
    let mut status = machine.status.clone().unwrap_or_default();
    let mut both =
        Both { new: std::mem::take(&mut status.conditions), old: std::mem::take(older(&mut status.deprecated)) };
    alter(&mut both);
    status.conditions = both.new;
    *older(&mut status.deprecated) = both.old;
    if status.deprecated == Some(crate::api::cluster::DeprecatedStatus { v1beta1: Some(Default::default()) })
        && machine.status.as_ref().is_none_or(|before| before.deprecated.is_none())
    {
        status.deprecated = None;
    }
    let machines = Api::<Machine>::namespaced(objects.client().clone(), &machine.namespace().unwrap_or_default());
    Ok(throttle.write_status(&machines, machine, machine.status.as_ref(), &status).await?)
}

/// A machine's conditions.
pub(super) struct Both {
    pub(super) new: Vec<Condition>,
    pub(super) old: Vec<crate::api::cluster::OldCondition>,
}

/// Sets a condition that has only the newer shape.
pub(super) fn set_new(all: &mut Both, type_: &'static str, verdict: &ConditionVerdict, generation: Option<i64>) {
    conditions::set(&mut all.new, type_, verdict, generation, Timestamp::now());
    // It was written in both before.
    conditions::clear_old(&mut all.old, type_);
}

/// Sets a condition in both of its shapes.
pub(super) fn set(all: &mut Both, type_: &'static str, verdict: &ConditionVerdict, generation: Option<i64>) {
    let now = Timestamp::now();
    conditions::set(&mut all.new, type_, verdict, generation, now);
    set_old(&mut all.old, type_, verdict, Severity::Warning, now);
}

/// Takes a condition away in both of its shapes.
pub(super) fn clear(all: &mut Both, type_: &str) {
    conditions::clear(&mut all.new, type_);
    conditions::clear_old(&mut all.old, type_);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_in_the_older_shape_too_goes_from_there() {
        let mut all = Both { new: Vec::new(), old: Vec::new() };
        let set_yes = |all: &mut Both, type_| set(all, type_, &ConditionVerdict::yes("Set"), None);
        set_yes(&mut all, "Other");
        set_yes(&mut all, "NodeKubeadmLabelsAndTaintsSet");
        set_new(&mut all, "NodeKubeadmLabelsAndTaintsSet", &ConditionVerdict::yes("Set"), None);
        let old: Vec<&str> = all.old.iter().map(|condition| condition.type_.as_str()).collect();
        assert_eq!((all.new.len(), old.as_slice()), (2, &["Other"][..]));
    }
}
