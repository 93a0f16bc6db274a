//! How a cluster gets from release to release by groups and plans, and what somebody might try who may write less than a Cluster.

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::site::{Site, cluster, machine, path};
use crate::api::kaas::{ClusterUpdatePlan, GracefulRebootRequest, UpdateGroup, UpdatePlanState};
use crate::api::lcm::{ANNOTATION_GRACEFUL_REBOOT as GRACEFUL, LCMCluster, LCMMachine};
use crate::api::machine_api::{Cluster, Machine};
use crate::release::names::LABEL_CLUSTER;

const PLAN: &str = "edge-2.0.0-25.2";

/// A cluster whose nodes have the first release.
async fn begun() -> Site {
    let site = Site::new().await;
    site.releases().await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.says("edge", "Provider", "Provided", "").await;
    site.change::<LCMCluster>("edge", json!({"status": {"release": "mosk-1"}})).await;
    site.there(PLAN, "is made", |_: &ClusterUpdatePlan| true).await;
    site
}

/// The steps of the plan, of which these are said to begin.
async fn steps(site: &Site, commence: &[&str]) -> Value {
    let mut plan: ClusterUpdatePlan = site.get(PLAN).await.unwrap();
    plan.spec.steps.iter_mut().for_each(|step| step.commence = commence.contains(&step.id.as_str()));
    json!({"spec": {"steps": plan.spec.steps}})
}

async fn commence(site: &Site, ids: &[&str]) {
    site.change::<ClusterUpdatePlan>(PLAN, steps(site, ids).await).await;
}

/// Says how far nodes are, as whoever looks after them does: machines and updated ones, by group.
async fn nodes(site: &Site, release: &str, groups: &[(&str, i32, i32)]) {
    let generation = site.get::<LCMCluster>("edge").await.unwrap().metadata.generation;
    let groups: Vec<Value> = groups
        .iter()
        .map(|(name, machines, updated)| json!({"name": name, "machines": machines, "updated": updated, "underWay": 0}))
        .collect();
    let status = json!({"release": release, "observedGeneration": generation, "updateGroups": groups});
    site.change::<LCMCluster>("edge", json!({ "status": status })).await;
}

fn paused(lcm: &LCMCluster) -> Vec<(&str, bool)> {
    lcm.spec.update_groups.iter().map(|group| (group.name.as_str(), !group.paused.is_empty())).collect()
}

async fn plan_says(site: &Site, state: UpdatePlanState, reason: &str, words: &str) -> ClusterUpdatePlan {
    let said = |plan: &ClusterUpdatePlan| {
        let status = plan.status.clone().unwrap_or_default();
        let one = status.conditions.iter().find(|one| one.type_ == "Completed");
        status.status == state && one.is_some_and(|one| one.reason == reason && one.message.contains(words))
    };
    site.there(PLAN, &format!("is {state:?}, {reason}: {words}"), said).await
}

#[tokio::test]
async fn a_plan_goes_step_by_step_and_pauses_where_nobody_says_more() {
    let site = begun().await;
    let group = json!({"metadata": {"name": "db", "labels": {LABEL_CLUSTER: "edge"}}, "spec": {"index": 2, "concurrentUpdates": 3}});
    site.create::<UpdateGroup>(group).await;
    let three = |plan: &ClusterUpdatePlan| {
        let ids: Vec<&str> = plan.spec.steps.iter().map(|step| step.id.as_str()).collect();
        ids == ["k8s-controllers", "k8s-workers-edge-default", "k8s-workers-db"]
    };
    let plan = site.there(PLAN, "has a step for each group", three).await;
    assert_eq!((plan.spec.source.as_str(), plan.spec.target.as_str()), ("mosk-1", "mosk-2"));
    plan_says(&site, UpdatePlanState::NotStarted, "NotStarted", "set commence of the step k8s-controllers").await;
    let lcm: LCMCluster = site.get("edge").await.unwrap();
    assert_eq!(paused(&lcm), [("edge-control", false), ("edge-default", false), ("db", false)]);
    assert_eq!(lcm.spec.update_groups[2].concurrent_updates, 3);

    commence(&site, &["k8s-controllers"]).await;
    let governed = |lcm: &LCMCluster| lcm.spec.release == "mosk-2" && lcm.spec.update_plan == PLAN;
    let lcm = site.there("edge", "goes to the release of the plan", governed).await;
    assert_eq!(paused(&lcm), [("edge-control", false), ("edge-default", true), ("db", true)]);
    let wanted = |cluster: &Cluster| cluster.spec.provider_spec.value.as_ref().unwrap()["release"] == "mosk-2";
    site.there("edge", "names the release", wanted).await;
    nodes(&site, "mosk-1", &[("edge-control", 1, 0), ("edge-default", 2, 0), ("db", 1, 0)]).await;
    plan_says(&site, UpdatePlanState::InProgress, "InProgress", "k8s-controllers: 0 of 1").await;
    nodes(&site, "mosk-1", &[("edge-control", 1, 1), ("edge-default", 2, 0), ("db", 1, 0)]).await;
    plan_says(&site, UpdatePlanState::InProgress, "Paused", "k8s-workers-edge-default: is paused: set commence").await;

    // What has begun is not taken back, and the plan stays; it goes on when somebody says so.
    let admin = token(&site, "admin", json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])).await;
    let none = ("application/merge-patch+json", steps(&site, &[]).await);
    let back = site.ask(&admin, "PATCH", &plan_path(PLAN), Some(none)).await;
    assert!(back.0 == 422 && back.1["message"].as_str().unwrap().contains("the step has begun"), "{back:?}");
    let gone = site.ask(&admin, "DELETE", &plan_path(PLAN), None).await;
    assert!(gone.0 == 422 && gone.1["message"].as_str().unwrap().contains("it is in progress"), "{gone:?}");
    commence(&site, &["k8s-controllers", "k8s-workers-edge-default"]).await;
    site.there("edge", "lets the next group go", |lcm: &LCMCluster| {
        paused(lcm) == [("edge-control", false), ("edge-default", false), ("db", true)]
    })
    .await;
    nodes(&site, "mosk-1", &[("edge-control", 1, 1), ("edge-default", 2, 2), ("db", 1, 0)]).await;
    plan_says(&site, UpdatePlanState::InProgress, "Paused", "k8s-workers-db").await;
    commence(&site, &["k8s-controllers", "k8s-workers-edge-default", "k8s-workers-db"]).await;
    nodes(&site, "mosk-2", &[("edge-control", 1, 1), ("edge-default", 2, 2), ("db", 1, 1)]).await;
    let over = plan_says(&site, UpdatePlanState::Completed, "Completed", "").await.status.unwrap();
    assert!(over.started_at.is_some() && over.completed_at.is_some());
    assert!(over.steps.iter().all(|step| step.status == UpdatePlanState::Completed && !step.duration.is_empty()));
}

#[tokio::test]
async fn a_release_that_is_set_on_the_cluster_goes_to_all_and_the_plan_shows_how_far() {
    let site = begun().await;
    site.change::<Cluster>("edge", json!({"spec": {"providerSpec": {"value": {"release": "mosk-2"}}}})).await;
    let lcm = site.there("edge", "goes there", |lcm: &LCMCluster| lcm.spec.release == "mosk-2").await;
    assert!(lcm.spec.update_plan.is_empty() && paused(&lcm).iter().all(|(_, paused)| !paused), "{lcm:?}");
    nodes(&site, "mosk-1", &[("edge-control", 1, 1), ("edge-default", 2, 1)]).await;
    plan_says(&site, UpdatePlanState::InProgress, "InProgress", "k8s-workers-edge-default: 1 of 2").await;
    // Saying so now changes nothing: nothing waits for it.
    commence(&site, &["k8s-controllers"]).await;
    nodes(&site, "mosk-2", &[("edge-control", 1, 1), ("edge-default", 2, 2)]).await;
    plan_says(&site, UpdatePlanState::Completed, "Completed", "").await;
    assert!(site.get::<LCMCluster>("edge").await.unwrap().spec.update_plan.is_empty());
}

#[tokio::test]
async fn a_pause_outlasts_what_it_is_written_in() {
    let site = begun().await;
    commence(&site, &["k8s-controllers"]).await;
    let governed = |lcm: &LCMCluster| lcm.spec.update_plan == PLAN && paused(lcm).contains(&("edge-default", true));
    let first = site.there("edge", "is paused", governed).await;
    site.delete::<LCMCluster>("edge").await;
    site.there("edge", "is made again, and paused", |lcm: &LCMCluster| lcm.uid() != first.uid() && governed(lcm)).await;
    nodes(&site, "mosk-1", &[("edge-control", 1, 1), ("edge-default", 2, 0)]).await;
    plan_says(&site, UpdatePlanState::InProgress, "Paused", "").await;
    // The appliance itself may take a plan away: it is made again, and nothing goes on by itself.
    let before: ClusterUpdatePlan = site.get(PLAN).await.unwrap();
    site.delete::<ClusterUpdatePlan>(PLAN).await;
    site.there(PLAN, "is made again", |plan: &ClusterUpdatePlan| plan.uid() != before.uid()).await;
    assert!(governed(&site.get("edge").await.unwrap()));
}

#[tokio::test]
async fn a_plan_that_may_not_begin_says_why() {
    let site = begun().await;
    site.change::<Cluster>("edge", json!({"spec": {"providerSpec": {"value": {"maintenance": true}}}})).await;
    site.there("edge", "is in maintenance", |lcm: &LCMCluster| lcm.spec.maintenance).await;
    commence(&site, &["k8s-controllers"]).await;
    plan_says(&site, UpdatePlanState::NotStarted, "NotPossible", "in maintenance").await;
    site.change::<Cluster>("edge", json!({"spec": {"providerSpec": {"value": {"maintenance": false}}}})).await;
    site.there("edge", "goes there afterwards", |lcm: &LCMCluster| lcm.spec.release == "mosk-2").await;
}

#[tokio::test]
async fn default_groups_are_their_users_and_a_machine_says_which_is_its_own() {
    let site = begun().await;
    site.change::<UpdateGroup>("edge-default", json!({"spec": {"concurrentUpdates": 7}})).await;
    site.there("edge", "goes by it", |lcm: &LCMCluster| lcm.spec.update_groups[1].concurrent_updates == 7).await;
    let many = json!({"spec": {"concurrentUpdates": 2}});
    assert!(site.try_change::<UpdateGroup>("edge-control", many).await.is_err(), "managers change one by one");
    site.delete::<UpdateGroup>("edge-default").await;
    site.there("edge", "has it again", |lcm: &LCMCluster| {
        lcm.spec.update_groups.get(1).is_some_and(|group| group.concurrent_updates == 1)
    })
    .await;
    let mut one = machine("w", "edge", false, json!({}));
    one["metadata"]["labels"]["kaas.mirantis.com/update-group"] = json!("db");
    site.create::<Machine>(one).await;
    site.there("w", "is of its group", |lcm: &LCMMachine| lcm.spec.update_group == "db").await;
    // A group of another cluster is none of this one's.
    site.create::<UpdateGroup>(json!({"metadata": {"name": "far", "labels": {LABEL_CLUSTER: "other"}}, "spec": {}}))
        .await;
    site.create::<UpdateGroup>(json!({"metadata": {"name": "db", "labels": {LABEL_CLUSTER: "edge"}}, "spec": {}}))
        .await;
    let names = |lcm: &LCMCluster| {
        lcm.spec.update_groups.iter().map(|group| group.name.as_str()).eq(["db", "edge-control", "edge-default"])
    };
    site.there("edge", "has its own groups", names).await;
    site.delete::<Cluster>("edge").await;
    site.delete::<Machine>("w").await;
    site.gone::<Cluster>("edge").await;
    site.gone::<ClusterUpdatePlan>(PLAN).await;
    site.gone::<UpdateGroup>("edge-default").await;
}

fn plan_path(name: &str) -> String {
    path("kaas.mirantis.com/v1alpha1", "clusterupdateplans", &format!("/{name}"))
}

/// A token of an account that may do this with these resources.
async fn token(site: &Site, name: &str, rules: Value) -> String {
    site.create::<ServiceAccount>(json!({"metadata": {"name": name}})).await;
    site.create::<Role>(json!({"metadata": {"name": name}, "rules": rules})).await;
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": super::site::NAMESPACE}]});
    site.create::<RoleBinding>(binding).await;
    let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
    let made = site.api::<ServiceAccount>().create_token_request(name, &PostParams::default(), &request).await.unwrap();
    made.status.unwrap().token
}

#[tokio::test]
async fn who_may_write_plans_and_no_cluster_upgrades_none() {
    let site = begun().await;
    let rule = |group: &str, resource: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": ["*"]});
    let plans =
        || [rule("kaas.mirantis.com", "clusterupdateplans"), rule("kaas.mirantis.com", "clusterupdateplans/status")];
    let less = token(&site, "less", json!(plans())).await;
    let type_ = "application/merge-patch+json";
    let said = async |token: &str, method: &str, path: &str, body: Option<Value>, wanted: &str| {
        let (code, answer) = site.ask(token, method, path, body.map(|body| (type_, body))).await;
        assert!(
            code == 422 && answer["message"].as_str().unwrap_or_default().contains(wanted),
            "{wanted}: {code} {answer}"
        );
    };
    let one = plan_path(PLAN);
    said(&less, "PATCH", &one, Some(steps(&site, &["k8s-controllers"]).await), "must be allowed to update").await;
    said(&less, "PATCH", &one, Some(json!({"spec": {"target": "mosk-9"}})), "only commence").await;
    said(&less, "PATCH", &format!("{one}/status"), Some(json!({"status": {"status": "Completed"}})), "writes it").await;
    let plan: ClusterUpdatePlan = site.get(PLAN).await.unwrap();
    let mut own = json!(plan);
    own["metadata"] =
        json!({"name": "own", "labels": {LABEL_CLUSTER: "edge"}, "ownerReferences": plan.metadata.owner_references});
    own["spec"]["steps"][0]["commence"] = json!(true);
    let all = path("kaas.mirantis.com/v1alpha1", "clusterupdateplans", "");
    let (code, answer) = site.ask(&less, "POST", &all, Some(("application/json", own))).await;
    assert!(code == 422 && answer.to_string().contains("the appliance makes"), "{code} {answer}");
    let lcm: LCMCluster = site.get("edge").await.unwrap();
    assert_eq!(lcm.spec.release, "mosk-1");

    let mut rules = plans().to_vec();
    rules.push(json!({"apiGroups": ["cluster.k8s.io"], "resources": ["clusters"], "resourceNames": ["edge"], "verbs": ["patch"]}));
    let more = token(&site, "more", json!(rules)).await;
    let body = steps(&site, &["k8s-controllers"]).await;
    let (code, answer) = site.ask(&more, "PATCH", &one, Some((type_, body))).await;
    assert_eq!(code, 200, "{answer}");
    site.there("edge", "goes there", |lcm: &LCMCluster| lcm.spec.release == "mosk-2").await;
    // Who may not write the Cluster does not free what is paused.
    let freed = steps(&site, &["k8s-controllers", "k8s-workers-edge-default"]).await;
    said(&less, "PATCH", &one, Some(freed), "must be allowed to update").await;
}

#[tokio::test]
async fn a_cluster_reboots_machine_by_machine_and_the_request_goes() {
    let site = begun().await;
    let healthy = json!({"type": "ControlPlaneInitialized", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    for name in ["m", "n"] {
        site.create::<Machine>(machine(name, "edge", name == "m", json!({}))).await;
        site.there(name, "is made", |_: &LCMMachine| true).await;
    }
    let request = || json!({"metadata": {"name": "edge"}, "spec": {}});
    site.create::<GracefulRebootRequest>(request()).await;
    let says = async |reason: &'static str, words: &'static str| {
        let said = move |request: &GracefulRebootRequest| {
            let all = request.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            all.iter().any(|one| one.reason == reason && one.message.contains(words))
        };
        site.there("edge", &format!("{reason}: {words}"), said).await
    };
    says("NotReady", "the Cluster is not Ready").await;
    assert!(!marked(&site, "m").await);
    let off = json!([{"name": "stacklight", "enabled": false}, {"name": "ingress", "enabled": false}]);
    site.change::<Cluster>("edge", json!({"spec": {"providerSpec": {"value": {"helmReleases": off}}}})).await;
    site.change::<LCMCluster>("edge", json!({"status": {"readyNodes": 2, "conditions": [healthy]}})).await;
    for name in ["m", "n"] {
        site.there(name, "is to reboot", |lcm: &LCMMachine| lcm.annotations().contains_key(GRACEFUL)).await;
    }
    let asked = json!({"status": {"reboot": {"requestedAt": "2026-01-01T00:00:00Z"}}});
    site.change::<LCMMachine>("m", asked).await;
    says("InProgress", "n is to reboot").await;
    // It is taken back: who has begun goes on, and who has not need not.
    site.delete::<GracefulRebootRequest>("edge").await;
    site.gone::<GracefulRebootRequest>("edge").await;
    assert!(marked(&site, "m").await && !marked(&site, "n").await);
    let over = async |name: &str| {
        site.change::<LCMMachine>(name, json!({"metadata": {"annotations": {GRACEFUL: null}}})).await;
        site.change::<LCMMachine>(name, json!({"status": {"reboot": null}})).await;
    };
    over("m").await;
    // Another request, of one machine: it goes when that has rebooted.
    let one = json!({"metadata": {"name": "edge"}, "spec": {"machines": ["n"]}});
    site.create::<GracefulRebootRequest>(one).await;
    site.there("n", "is to reboot", |lcm: &LCMMachine| lcm.annotations().contains_key(GRACEFUL)).await;
    assert!(!marked(&site, "m").await);
    over("n").await;
    site.gone::<GracefulRebootRequest>("edge").await;
    assert!(!marked(&site, "n").await, "once for a request");
    // One of no cluster says so, and is no burden.
    site.create::<GracefulRebootRequest>(json!({"metadata": {"name": "nowhere"}, "spec": {}})).await;
    let none = |request: &GracefulRebootRequest| {
        request.status.as_ref().is_some_and(|status| status.conditions[0].reason == "NoCluster")
    };
    site.there("nowhere", "says that there is no cluster", none).await;
    site.delete::<GracefulRebootRequest>("nowhere").await;
    site.gone::<GracefulRebootRequest>("nowhere").await;
}

async fn marked(site: &Site, machine: &str) -> bool {
    site.get::<LCMMachine>(machine).await.unwrap().annotations().contains_key(GRACEFUL)
}
