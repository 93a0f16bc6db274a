//! ClusterUpdatePlans, written: the plans of a cluster are made and kept, and a cluster is told of the release whose plan is to begin.

use jiff::Timestamp;
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::plan::{self, PlanFacts};
use crate::api::kaas::{ClusterUpdatePlan, ClusterUpdatePlanSpec, UpdatePlanState};
use crate::api::lcm::LCMCluster;
use crate::api::machine_api::Cluster;
use crate::release::catalogue::join::available_upgrades;
use crate::release::catalogue::known::{Offer, Releases};
use crate::release::keep::is_of;
use crate::release::names::{COMPONENT, LABEL_CLUSTER};
use crate::release::wish::judge;
use crate::release::wish::shape::ClusterWish;
use crate::runtime::changes::{change, delete, difference, write_status};
use crate::runtime::{Note, events, owners};

/// Plans of a cluster that are looked at: one for each release that may follow, of which a KaaSRelease names a hundred.
const MOST: u32 = 200;
/// Letters of release notes.
const NOTES_MAX: usize = 2000;

/// The plans that were made for a cluster.
///
/// # Errors
///
/// What the API says.
pub async fn stored(client: &Client, cluster: &Cluster) -> Result<Vec<ClusterUpdatePlan>, kube::Error> {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let labels = format!("{LABEL_CLUSTER}={name}");
    let params = ListParams { limit: Some(MOST), ..ListParams::default().labels(&labels) };
    let mut found = Api::<ClusterUpdatePlan>::namespaced(client.clone(), &namespace).list(&params).await?.items;
    let owner = owners::owner(cluster, true);
    found.retain(|plan| is_of(plan, &owner) && plan.spec.cluster == name && plan.metadata.deletion_timestamp.is_none());
    Ok(found)
}

/// The plan that says which groups may get the release that a Cluster names; empty where all may.
pub fn governing(wish: &ClusterWish, present: Option<&LCMCluster>, plans: &[ClusterUpdatePlan]) -> String {
    let has = present.and_then(|present| present.status.as_ref()).map_or("", |status| status.release.as_str());
    match present {
        // Nobody goes anywhere.
        Some(_) if has == wish.release => String::new(),
        Some(present) if present.spec.release == wish.release => present.spec.update_plan.clone(),
        _ => {
            let is_it = |plan: &&ClusterUpdatePlan| {
                plan.spec.target == wish.release
                    && plan::is_commenced(plan)
                    && plan::state(plan) != UpdatePlanState::Completed
            };
            plans.iter().find(is_it).map(ResourceExt::name_any).unwrap_or_default()
        }
    }
}

/// Why the Cluster is not told of the release of a plan that is to begin; none where it has been, or where that is not asked.
fn refusal(plan: &ClusterUpdatePlan, wish: &ClusterWish, lcm: &LCMCluster, offer: &Offer) -> Option<String> {
    let ClusterUpdatePlanSpec { source, target, .. } = &plan.spec;
    if wish.release != *source {
        return Some(format!("the Cluster goes to {} now, and this plan begins at {source}", wish.release));
    }
    if wish.maintenance {
        return Some("the Cluster is in maintenance: set its maintenance to false, and it begins".to_owned());
    }
    let target = ClusterWish { release: target.clone(), ..wish.clone() };
    let has = lcm.status.as_ref().map_or("", |status| status.release.as_str());
    let judged = judge::release(&target, offer)
        .and_then(|()| judge::upgrade(&target, [wish.release.as_str(), lcm.spec.release.as_str(), has], offer))
        .and_then(|()| judge::overrides(&target, offer));
    judged.err().map(|refusal| refusal.message)
}

fn is_to_begin(plan: &ClusterUpdatePlan, wish: &ClusterWish, lcm: &LCMCluster) -> bool {
    let target = &plan.spec.target;
    plan::is_commenced(plan)
        && plan::state(plan) == UpdatePlanState::NotStarted
        && wish.release != *target
        && lcm.spec.release != *target
}

/// Tells a Cluster of the release of the plan that is to begin. Whether it did: the Cluster is to be looked at anew then.
///
/// Who set `commence` might have written the Cluster: the API has seen to that.
///
/// # Errors
///
/// What the API says.
pub async fn begin(
    client: &Client,
    (cluster, wish): (&Cluster, &ClusterWish),
    lcm: &LCMCluster,
    plans: &[ClusterUpdatePlan],
    releases: &Releases,
) -> Result<bool, kube::Error> {
    let may = |plan: &&ClusterUpdatePlan| {
        is_to_begin(plan, wish, lcm) && refusal(plan, wish, lcm, &releases.of(&plan.spec.target)).is_none()
    };
    let Some(plan) = plans.iter().find(may) else { return Ok(false) };
    let api = Api::<Cluster>::namespaced(client.clone(), &cluster.namespace().unwrap_or_default());
    let target = &plan.spec.target;
    change(&api, cluster, json!({"spec": {"providerSpec": {"value": {"release": target}}}})).await?;
    let message = format!("The ClusterUpdatePlan {} begins: the cluster goes to {target}", plan.name_any());
    events::tell(client, COMPONENT, cluster, &Note { reason: "UpdateCommenced", message, warning: false }).await;
    Ok(true)
}

/// Has the plans of a cluster be those that there are to be, and each say how far it is.
///
/// # Errors
///
/// What the API says.
pub async fn keep(
    client: &Client,
    (cluster, wish): (&Cluster, &ClusterWish),
    lcm: &LCMCluster,
    plans: &[ClusterUpdatePlan],
    (offer, releases): (&Offer, &Releases),
) -> Result<(), kube::Error> {
    let Ok(kaas) = &offer.kaas else { return Ok(()) };
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let api = Api::<ClusterUpdatePlan>::namespaced(client.clone(), &namespace);
    let has = lcm.status.as_ref().map(|status| status.release.as_str()).filter(|release| !release.is_empty());
    let has = has.unwrap_or(&lcm.spec.release);
    let targets = available_upgrades(kaas, has);
    let available: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
    for plan in plans.iter().filter(|plan| !plan::is_kept(plan, has, &lcm.spec.release, &available)) {
        delete(&api, plan).await?;
    }
    for target in &targets {
        let plan_name = plan::name(&name, &target.version);
        if plans.iter().any(|plan| plan.name_any() == plan_name) {
            continue;
        }
        let release = releases.of(&target.name).release;
        let notes = release.map(|release| release.spec.description.chars().take(NOTES_MAX).collect::<String>());
        let notes = notes.unwrap_or_default();
        let spec = plan::wanted(&name, (has, &target.name), &notes, &lcm.spec.update_groups, None);
        let mut made = ClusterUpdatePlan::new(&plan_name, spec);
        made.metadata.namespace = Some(namespace.clone());
        made.metadata.labels = Some([(LABEL_CLUSTER.to_owned(), name.clone())].into());
        made.metadata.owner_references = Some(vec![owners::owner(cluster, true)]);
        match api.create(&PostParams::default(), &made).await {
            // One of before goes, which has this looked at again; or somebody's own has the name.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            made => write(&api, &made?, (wish, lcm), releases).await?,
        }
    }
    for plan in plans.iter().filter(|plan| plan::is_kept(plan, has, &lcm.spec.release, &available)) {
        let spec = &plan.spec;
        let path = (spec.source.as_str(), spec.target.as_str());
        let wanted = plan::wanted(&name, path, &spec.release_notes, &lcm.spec.update_groups, Some(spec));
        let is_open = plan::state(plan) != UpdatePlanState::Completed;
        let patch = difference(&json!(spec), &json!(wanted)).filter(|_| is_open);
        let plan = match patch {
            Some(patch) => &change(&api, plan, json!({ "spec": patch })).await?,
            None => plan,
        };
        write(&api, plan, (wish, lcm), releases).await?;
    }
    Ok(())
}

async fn write(
    api: &Api<ClusterUpdatePlan>,
    plan: &ClusterUpdatePlan,
    (wish, lcm): (&ClusterWish, &LCMCluster),
    releases: &Releases,
) -> Result<(), kube::Error> {
    let refusal =
        is_to_begin(plan, wish, lcm).then(|| refusal(plan, wish, lcm, &releases.of(&plan.spec.target))).flatten();
    let facts = PlanFacts { lcm, refusal: refusal.as_deref() };
    let status = plan::status(plan, &facts, Timestamp::now());
    write_status(api, plan, plan.status.as_ref(), &status).await.map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_plan_by_which_a_cluster_was_told_governs_until_all_nodes_have_the_release() {
        let wish = |release: &str| ClusterWish { release: release.into(), ..ClusterWish::default() };
        let lcm = |spec: Value, has: &str| -> LCMCluster {
            serde_json::from_value(json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMCluster",
                "metadata": {"name": "c"}, "spec": spec, "status": {"release": has}}))
            .unwrap()
        };
        let plan = |commence: bool, state: &str| -> ClusterUpdatePlan {
            serde_json::from_value(json!({"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "ClusterUpdatePlan",
                "metadata": {"name": "c-2"}, "spec": {"cluster": "c", "source": "r1", "target": "r2",
                "steps": [{"id": "k8s-controllers", "commence": commence}]}, "status": {"status": state}}))
            .unwrap()
        };
        let (direct, governed) = (json!({"release": "r2"}), json!({"release": "r2", "updatePlan": "c-2"}));
        let old = json!({"release": "r1"});
        for (lcm, plan, wanted) in [
            (Some(lcm(old.clone(), "r1")), plan(true, "NotStarted"), "c-2"),
            (Some(lcm(old, "r1")), plan(false, "NotStarted"), ""),
            (Some(lcm(direct, "r1")), plan(true, "InProgress"), ""),
            (Some(lcm(governed.clone(), "r1")), plan(false, "NotStarted"), "c-2"),
            (Some(lcm(governed, "r2")), plan(true, "InProgress"), ""),
            // What nodes were told was lost.
            (None, plan(true, "InProgress"), "c-2"),
            (None, plan(true, "Completed"), ""),
            (None, plan(false, "NotStarted"), ""),
        ] {
            assert_eq!(governing(&wish("r2"), lcm.as_ref(), std::slice::from_ref(&plan)), wanted, "{lcm:?} {plan:?}");
        }
    }
}
