//! What ClusterUpdatePlans and UpdateGroups must be before they are stored.
//!
//! A plan is made by the appliance, which writes a Cluster because of it. So whoever says that a step may begin, or may not, must be
//! allowed to write that Cluster; and a plan in progress stays, for without it nobody would know which steps may begin.

use serde_json::Value;

use crate::api::kaas::{ClusterUpdatePlan, UpdateGroup, UpdatePlanState, control_group};
use crate::api::machine_api;
use crate::apiserver::auth::Attributes;
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};
use crate::release::names::LABEL_CLUSTER;

/// Rules for a change of a ClusterUpdatePlan.
///
/// # Errors
///
/// The first rule that it breaks.
pub fn plan(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.identity.is_in_process() {
        return Ok(());
    }
    let may = |namespace: &str, cluster: &str| {
        let wanted = |verb| Attributes {
            verb,
            group: machine_api::GROUP,
            resource: "clusters",
            namespace,
            name: cluster,
            ..Attributes::default()
        };
        request.rights.allow(&wanted("update")) || request.rights.allow(&wanted("patch"))
    };
    judge(request.operation, request.status, request.object, request.old, may).map_or(Ok(()), |error| Err(vec![error]))
}

fn judge(
    operation: AdmissionOperation,
    status: bool,
    new: &Value,
    old: Option<&Value>,
    may_write: impl Fn(&str, &str) -> bool,
) -> Option<FieldError> {
    if status {
        return Some(FieldError::forbidden("status", "the appliance writes it"));
    }
    let Some(before) = old.and_then(typed) else {
        let reason = "the appliance makes the plans of a Cluster: one for each release that may follow";
        return (operation == AdmissionOperation::Create).then(|| FieldError::forbidden("spec", reason));
    };
    let state = |id: &str| {
        let steps = before.status.iter().flat_map(|status| &status.steps);
        steps.filter(|step| step.id == id).map(|step| step.status).next().unwrap_or_default()
    };
    if operation == AdmissionOperation::Delete {
        let is_open = before.status.as_ref().is_some_and(|status| status.status == UpdatePlanState::InProgress);
        let reason = "it is in progress, and says which steps may begin: it goes with its Cluster, or once another release follows";
        return is_open.then(|| FieldError::forbidden("metadata.name", reason));
    }
    let now = typed(new)?;
    let mut same = now.spec.clone();
    let mut changed = Vec::new();
    for (step, old) in same.steps.iter_mut().zip(&before.spec.steps) {
        if step.id == old.id && step.commence != old.commence {
            changed.push(old.id.clone());
            step.commence = old.commence;
        }
    }
    if same != before.spec {
        return Some(FieldError::forbidden(
            "spec",
            "of a plan only commence of its steps changes: it is made of the releases",
        ));
    }
    let owners = |one: &ClusterUpdatePlan| one.metadata.owner_references.clone();
    let cluster =
        |one: &ClusterUpdatePlan| one.metadata.labels.as_ref().and_then(|all| all.get(LABEL_CLUSTER)).cloned();
    if owners(&now) != owners(&before) || cluster(&now) != cluster(&before) {
        return Some(FieldError::forbidden("metadata", "a plan stays its Cluster's"));
    }
    for id in changed {
        let field = format!("spec.steps[{id}].commence");
        if !may_write(now.metadata.namespace.as_deref().unwrap_or_default(), &before.spec.cluster) {
            let reason = "the Cluster is changed by it: whoever sets it must be allowed to update that";
            return Some(FieldError::forbidden(field, reason));
        }
        if before.spec.steps.iter().any(|step| step.id == id && step.commence)
            && state(&id) != UpdatePlanState::NotStarted
        {
            let reason = "the step has begun: to pause, leave commence of the next one false";
            return Some(FieldError::forbidden(field, reason));
        }
    }
    None
}

fn typed(value: &Value) -> Option<ClusterUpdatePlan> {
    serde_json::from_value(value.clone()).ok()
}

/// Rules for a change of an UpdateGroup.
///
/// # Errors
///
/// When it says of a control plane what does not hold.
pub fn group(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.operation == AdmissionOperation::Delete {
        return Ok(());
    }
    match serde_json::from_value::<UpdateGroup>(request.object.clone()).ok().and_then(|group| judge_group(&group)) {
        Some(error) => Err(vec![error]),
        None => Ok(()),
    }
}

fn judge_group(group: &UpdateGroup) -> Option<FieldError> {
    let meta = &group.metadata;
    let cluster = meta.labels.as_ref().and_then(|all| all.get(LABEL_CLUSTER))?;
    let is_control = meta.name.as_deref() == Some(control_group(cluster).as_str());
    (is_control && group.spec.concurrent_updates != 1).then(|| {
        FieldError::forbidden("spec.concurrentUpdates", "machines of a control plane change one by one: it is 1 here")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(change: Value) -> Value {
        let mut plan = json!({"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "ClusterUpdatePlan",
            "metadata": {"name": "c-2", "namespace": "n", "labels": {LABEL_CLUSTER: "c"}},
            "spec": {"cluster": "c", "source": "r1", "target": "r2", "steps": [
                {"id": "k8s-controllers", "commence": true}, {"id": "k8s-workers-a", "commence": false}]},
            "status": {"status": "InProgress", "steps": [{"id": "k8s-controllers", "status": "InProgress"}]}});
        json_patch::merge(&mut plan, &change);
        plan
    }

    fn steps(first: bool, second: bool) -> Value {
        json!({"spec": {"steps": [{"id": "k8s-controllers", "commence": first}, {"id": "k8s-workers-a", "commence": second}]}})
    }

    #[test]
    fn of_a_plan_only_commence_changes_and_only_by_who_may_write_the_cluster() {
        use AdmissionOperation::{Create, Delete, Update};
        let whole = || Some(plan(json!({})));
        let started = json!({"status": {"status": "NotStarted", "steps": []}});
        for (operation, status, new, old, may, wanted) in [
            (Create, false, plan(json!({})), None, true, "the appliance makes"),
            (Update, true, plan(json!({})), whole(), true, "the appliance writes it"),
            (Update, false, plan(json!({"metadata": {"labels": {"mine": "yes"}}})), whole(), false, ""),
            (Update, false, plan(steps(true, true)), whole(), true, ""),
            (Update, false, plan(steps(true, true)), whole(), false, "must be allowed to update that"),
            (Update, false, plan(steps(false, false)), whole(), true, "the step has begun"),
            (Update, false, plan(steps(false, false)), Some(plan(started.clone())), true, ""),
            (Update, false, plan(steps(false, false)), Some(plan(started.clone())), false, "must be allowed"),
            (Update, false, plan(json!({"spec": {"target": "r3"}})), whole(), true, "only commence"),
            (Update, false, plan(json!({"spec": {"cluster": "d"}})), whole(), true, "only commence"),
            (Update, false, plan(json!({"spec": {"steps": []}})), whole(), true, "only commence"),
            (
                Update,
                false,
                plan(json!({"metadata": {"labels": {LABEL_CLUSTER: "d"}}})),
                whole(),
                true,
                "its Cluster's",
            ),
            (Delete, false, plan(json!({})), whole(), true, "in progress"),
            (Delete, false, plan(started.clone()), Some(plan(started)), false, ""),
        ] {
            let said = judge(operation, status, &new, old.as_ref(), |namespace, cluster| {
                assert_eq!((namespace, cluster), ("n", "c"));
                may
            });
            let said = said.map(|error| format!("{error:?}")).unwrap_or_default();
            assert!(said.contains(wanted) && said.is_empty() == wanted.is_empty(), "{operation:?} {new}: {said}");
        }
    }

    #[test]
    fn a_control_plane_changes_one_by_one() {
        for (name, count, is_fine) in [("c-control", 1, true), ("c-control", 2, false), ("c-default", 5, true)] {
            let group = json!({"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "UpdateGroup",
                "metadata": {"name": name, "labels": {LABEL_CLUSTER: "c"}}, "spec": {"concurrentUpdates": count}});
            assert_eq!(judge_group(&serde_json::from_value(group).unwrap()).is_none(), is_fine, "{name} {count}");
        }
    }
}
