//! What clusters and machines went through, stage by stage, and who may write it.

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::ResourceExt;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};

use super::site::{NAMESPACE, Object, Site, cluster, machine, of, path};
use crate::api::kaas::{
    ClusterDeploymentStatus, ClusterUpgradeStatus, LcmStage, MachineDeploymentStatus, MachineUpgradeStatus,
    StageHistory, StageState,
};
use crate::api::lcm::{LCMCluster, LCMMachine};
use crate::api::machine_api::{Cluster, Machine};
use crate::api::metal3::BareMetalHost;
use crate::release::names::{LABEL_CLUSTER, LABEL_HISTORY_OF};
use crate::release::updates::histories;

const KAAS: &str = "kaas.mirantis.com/v1alpha1";

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn yes(types: &[&str]) -> Value {
    types.iter().map(|type_| condition(type_, "True", "Yes", "")).collect()
}

fn stage<'s>(history: &'s impl StageHistory, name: &str) -> &'s LcmStage {
    history.stages().iter().find(|stage| stage.name == name).unwrap_or_else(|| panic!("{name}: {:?}", history.stages()))
}

/// Waits until every stage is over; their times are in order.
async fn over<K: Object + StageHistory>(site: &Site, name: &str) -> K {
    let history = site
        .there(name, "is over", |one: &K| one.stages().len() > 1 && one.stages().iter().all(|stage| stage.success))
        .await;
    let times: Vec<_> = history.stages().iter().map(|stage| stage.timestamp.as_ref().unwrap().0).collect();
    assert!(times.is_sorted(), "{times:?}");
    history
}

/// A cluster of one manager that is made, played by whoever looks after hosts and nodes.
async fn made() -> Site {
    let site = Site::new().await;
    site.releases().await;
    let off = json!([{"name": "stacklight", "enabled": false}, {"name": "ingress", "enabled": false}]);
    site.create::<Cluster>(cluster("edge", json!({ "helmReleases": off }))).await;
    let begun = site.there("edge", "is begun", |one: &ClusterDeploymentStatus| one.stages().len() == 6).await;
    assert_eq!(begun.release, "mosk-1");
    site.free("m", of("m")).await;
    site.create::<Machine>(machine("m", "edge", true, json!({}))).await;
    site.there("m", "is told what to run", |host: &BareMetalHost| host.spec.image.is_some()).await;
    let waits = |one: &MachineDeploymentStatus| {
        let stage = stage(one, "Provider instance ready");
        stage.status == StageState::InProgress && stage.message.contains("BareMetalHost m is")
    };
    site.there("m", "waits for its host", waits).await;
    site.state("m", "provisioned").await;
    let done = yes(&["AgentHeard", "Prepared", "Deployed", "Reconfigured", "Ready"]);
    let status = json!({"state": "Ready", "release": "mosk-1", "agentVersion": "1", "conditions": done});
    site.change::<LCMMachine>("m", json!({"spec": {"release": "mosk-1"}, "status": status})).await;
    let generation = site.get::<LCMCluster>("edge").await.unwrap().metadata.generation;
    let status = json!({"release": "mosk-1", "requestedNodes": 1, "readyNodes": 1, "observedGeneration": generation,
        "conditions": yes(&["ControlPlaneInitialized", "NodesReady"])});
    site.change::<LCMCluster>("edge", json!({ "status": status })).await;
    site
}

/// Says how far the control plane is, as whoever looks after it does.
async fn control(site: &Site, change: Value) {
    let generation = site.get::<LCMCluster>("edge").await.unwrap().metadata.generation;
    let mut status = json!({"observedGeneration": generation});
    json_patch::merge(&mut status, &change);
    site.change::<LCMCluster>("edge", json!({ "status": status })).await;
}

#[tokio::test]
async fn a_cluster_that_is_made_and_upgraded_leaves_its_history() {
    let site = made().await;
    let of_cluster: ClusterDeploymentStatus = over(&site, "edge").await;
    let of_machine: MachineDeploymentStatus = over(&site, "m").await;
    let (edge, m) = (site.get::<Cluster>("edge").await.unwrap(), site.get::<Machine>("m").await.unwrap());
    assert_eq!(
        (of_cluster.owner_references()[0].uid.clone(), of_machine.owner_references()[0].uid.clone()),
        (edge.uid().unwrap(), m.uid().unwrap())
    );
    assert_eq!(
        (of_machine.labels()[LABEL_CLUSTER].as_str(), of_machine.labels()[LABEL_HISTORY_OF].as_str()),
        ("edge", m.uid().unwrap().as_str())
    );
    assert!(site.get::<ClusterUpgradeStatus>("edge-mosk-1").await.is_none());

    site.change::<Cluster>("edge", json!({"spec": {"providerSpec": {"value": {"release": "mosk-2"}}}})).await;
    let begun = site.there("edge-mosk-2", "is begun", |_: &ClusterUpgradeStatus| true).await;
    assert_eq!((begun.from_release.as_str(), begun.to_release.as_str()), ("mosk-1", "mosk-2"));
    let begun = site.there("m-mosk-2", "is begun", |_: &MachineUpgradeStatus| true).await;
    assert_eq!((begun.from_release.as_str(), begun.to_release.as_str()), ("mosk-1", "mosk-2"));
    // Conditions that nodes have of the release before say nothing of this one.
    assert!(begun.stages.iter().all(|stage| !stage.success), "{begun:?}");

    // The manager fails.
    let sentence = "step kubeadm failed with exit code 1 (attempt 3)";
    let printed = format!("{sentence}: token s3cret was refused");
    let failed =
        json!([condition("Prepared", "True", "Prepared", ""), condition("Deployed", "False", "Failed", &printed)]);
    site.change::<LCMMachine>(
        "m",
        json!({"spec": {"release": "mosk-2"}, "status": {"state": "Upgrade", "conditions": failed}}),
    )
    .await;
    let group = |updated: i32, message: &str| {
        json!([{"name": "edge-control", "machines": 1, "updated": updated, "underWay": 1 - updated, "message": message},
            {"name": "edge-default", "machines": 0, "updated": 0, "underWay": 0}])
    };
    let message = format!("manager m does not get on: {printed}; no other manager is touched");
    control(
        &site,
        json!({"release": "mosk-1", "readyNodes": 0, "lcmOperationStuck": true, "updateGroups": group(0, &message)}),
    )
    .await;
    let fails = |one: &MachineUpgradeStatus| stage(one, "Deploy phase done").status == StageState::Fail;
    let history = site.there("m-mosk-2", "says that it fails", fails).await;
    let said = &stage(&history, "Deploy phase done").message;
    assert!(said.contains(sentence) && !said.contains("s3cret"), "{said}");
    let fails = |one: &ClusterUpgradeStatus| stage(one, "Control plane nodes upgraded").status == StageState::Fail;
    let history = site.there("edge-mosk-2", "says that it fails", fails).await;
    let said = &stage(&history, "Control plane nodes upgraded").message;
    assert!(said.contains(&format!("manager m does not get on: {sentence}")) && !said.contains("s3cret"), "{said}");

    // Somebody mends it.
    let done = yes(&["AgentHeard", "Prepared", "Deployed", "Reconfigured", "Ready"]);
    site.change::<LCMMachine>("m", json!({"status": {"state": "Ready", "release": "mosk-2", "conditions": done}}))
        .await;
    control(
        &site,
        json!({"release": "mosk-2", "readyNodes": 1, "lcmOperationStuck": false, "updateGroups": group(1, "")}),
    )
    .await;
    over::<ClusterUpgradeStatus>(&site, "edge-mosk-2").await;
    over::<MachineUpgradeStatus>(&site, "m-mosk-2").await;
    assert_eq!(site.get::<ClusterDeploymentStatus>("edge").await.unwrap(), of_cluster, "what happened stays");
    assert_eq!(site.get::<MachineDeploymentStatus>("m").await.unwrap(), of_machine);

    // They go with what they are of.
    site.change::<LCMMachine>("m", json!({"status": {"prepareDeletionPhase": "completed"}})).await;
    site.delete::<Machine>("m").await;
    site.there("m", "is told to deprovision", |host: &BareMetalHost| host.spec.image.is_none()).await;
    site.state("m", "available").await;
    site.gone::<MachineDeploymentStatus>("m").await;
    site.gone::<MachineUpgradeStatus>("m-mosk-2").await;
    site.delete::<Cluster>("edge").await;
    site.gone::<ClusterDeploymentStatus>("edge").await;
    site.gone::<ClusterUpgradeStatus>("edge-mosk-2").await;
}

/// A cluster that goes from one release to another one, as nodes are told.
fn on_its_way(from: &str, to: &str) -> LCMCluster {
    serde_json::from_value(json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMCluster",
        "metadata": {"name": "far", "generation": 1}, "spec": {"release": to},
        "status": {"release": from, "observedGeneration": 1}}))
    .unwrap()
}

#[tokio::test]
async fn of_many_upgrades_the_newest_are_kept_and_one_is_under_way() {
    let site = Site::new().await;
    // Another provider's, so that only what is done here is.
    let others = json!({"metadata": {"name": "far"}, "spec": {"providerSpec": {"value": {"apiVersion": "other/v1"}}}});
    let far: Cluster = site.create(others).await;
    let goes = async |from: &str, to: &str| {
        histories::of_cluster(&site.client, &far, &[], (&on_its_way(from, to), true)).await.unwrap();
    };
    for at in 1..=13 {
        goes(&format!("r{}", at - 1), &format!("r{at}")).await;
    }
    let kept = site.api::<ClusterUpgradeStatus>().list(&ListParams::default()).await.unwrap().items;
    assert_eq!(kept.len(), 10);
    let open: Vec<&str> = kept
        .iter()
        .filter(|one| one.stages.iter().any(|stage| stage.status == StageState::NotStarted))
        .map(|one| one.to_release.as_str())
        .collect();
    assert_eq!(open, ["r13"]);
    let before: ClusterUpgradeStatus = site.get("far-r12").await.unwrap();
    assert!(before.stages.iter().all(|stage| stage.message == "given up: r13 is to follow"), "{before:?}");
    // One that is over, and the same release once more.
    goes("r13", "r13").await;
    let first: ClusterUpgradeStatus = site.get("far-r13").await.unwrap();
    assert!(first.stages.iter().all(|stage| stage.success), "{first:?}");
    goes("r13", "r13").await;
    assert_eq!(site.get::<ClusterUpgradeStatus>("far-r13").await.unwrap(), first);
    goes("r13", "r14").await;
    goes("r14", "r13").await;
    let again: ClusterUpgradeStatus = site.get("far-r13").await.unwrap();
    assert_ne!(again.uid(), first.uid());
    assert!(again.from_release == "r14" && again.stages.iter().all(|stage| !stage.success), "{again:?}");
    // Of another Cluster of this name nothing is taken.
    let mut other = far.clone();
    other.metadata.uid = Some("somebody-else".into());
    histories::of_cluster(&site.client, &other, &[], (&on_its_way("r1", "r13"), true)).await.unwrap();
    assert_eq!(site.get::<ClusterUpgradeStatus>("far-r13").await.unwrap(), again);
}

#[tokio::test]
async fn a_history_is_read_by_who_may_view_and_written_by_nobody() {
    let site = Site::new().await;
    site.releases().await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    let before = site.there("edge", "is begun", |_: &ClusterDeploymentStatus| true).await;
    let kinds =
        ["clusterdeploymentstatuses", "clusterupgradestatuses", "machinedeploymentstatuses", "machineupgradestatuses"];
    let forged = |kind: &str| {
        json!({"apiVersion": KAAS, "kind": kind, "metadata": {"name": "x", "ownerReferences": before.owner_references()},
            "stages": [{"name": "Cluster is ready", "status": "Success", "success": true}]})
    };
    for (role, writes) in [("view", 403), ("edit", 403), ("admin", 403), ("cluster-admin", 405)] {
        site.create::<ServiceAccount>(json!({"metadata": {"name": role}})).await;
        site.create::<RoleBinding>(json!({
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": role, "namespace": NAMESPACE}],
        }))
        .await;
        let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
        let made = site.api::<ServiceAccount>().create_token_request(role, &PostParams::default(), &request).await;
        let token = made.unwrap().status.unwrap().token;
        for (plural, kind) in kinds.iter().zip([
            "ClusterDeploymentStatus",
            "ClusterUpgradeStatus",
            "MachineDeploymentStatus",
            "MachineUpgradeStatus",
        ]) {
            let all = path(KAAS, plural, "");
            assert_eq!(site.ask(&token, "GET", &all, None).await.0, 200, "{role} {plural}");
            let (code, said) = site.ask(&token, "POST", &all, Some(("application/json", forged(kind)))).await;
            assert_eq!(code, writes, "{role} {plural}: {said}");
        }
        let one = path(KAAS, kinds[0], "/edge");
        let (code, read) = site.ask(&token, "GET", &one, None).await;
        assert!(code == 200 && read["release"] == "mosk-1" && read["stages"][0]["name"].is_string(), "{read}");
        let change = json!({"stages": [], "metadata": {"ownerReferences": null}});
        let (code, said) = site.ask(&token, "PATCH", &one, Some(("application/merge-patch+json", change))).await;
        assert_eq!(code, writes, "{role}: {said}");
        if role != "cluster-admin" {
            assert_eq!(site.ask(&token, "DELETE", &one, None).await.0, 403, "{role}");
        }
    }
    let now = site.get::<ClusterDeploymentStatus>("edge").await.unwrap();
    assert_eq!((now.uid(), now.owner_references()), (before.uid(), before.owner_references()));
}
