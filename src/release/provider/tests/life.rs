//! What a cluster goes through: upgrades, maintenance, faults and their end, deletion.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::site::{Site, cluster, machine, noted, of};
use crate::api::kaas::{KaaSRelease, PublicKey};
use crate::api::lcm::{HelmBundle, LCMCluster, LCMMachine};
use crate::api::machine_api::{Cluster, Machine};
use crate::api::metal3::BareMetalHost;

fn value(change: serde_json::Value) -> serde_json::Value {
    json!({"spec": {"providerSpec": {"value": change}}})
}

async fn refused(site: &Site, patch: serde_json::Value, wanted: &str) {
    let refused = site.try_change::<Cluster>("edge", patch).await;
    assert!(
        matches!(&refused, Err(kube::Error::Api(status)) if status.message.contains(wanted)),
        "{wanted}: {refused:?}"
    );
}

#[tokio::test]
async fn an_upgrade_goes_along_the_path_and_nowhere_else() {
    let site = Site::new().await;
    site.releases().await;
    let unknown = site.try_create::<Cluster>(cluster("edge", json!({"release": "mosk-9"}))).await;
    assert!(
        matches!(&unknown, Err(kube::Error::Api(status)) if status.message.contains("slipway release list")),
        "{unknown:?}"
    );
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.says("edge", "Provider", "Provided", "").await;
    site.change::<LCMCluster>("edge", json!({"status": {"release": "mosk-1"}})).await;
    site.change::<Cluster>("edge", value(json!({"release": "mosk-2"}))).await;
    let told =
        |lcm: &LCMCluster| lcm.spec.release == "mosk-2" && lcm.spec.machine_types["control"][0].version == "2.0.0+25.2";
    site.there("edge", "is told the second release", told).await;
    refused(&site, value(json!({"release": "mosk-1"})), "mosk-1 may not follow mosk-2").await;
    site.says("edge", "Kubernetes", "WaitingForControlPlane", "").await;
    site.change::<LCMCluster>("edge", json!({"status": {"release": "mosk-2"}})).await;
    let upgraded = |cluster: &Cluster| {
        let status = cluster.status.as_ref().and_then(|status| status.provider_status.clone()).unwrap_or_default();
        let refs = &status["releaseRefs"];
        refs["current"]["name"] == "mosk-2" && refs["previous"]["name"] == "mosk-1" && refs["available"] == json!([])
    };
    site.there("edge", "has the second release", upgraded).await;
}

#[tokio::test]
async fn what_rules_did_not_stop_is_judged_again() {
    let site = Site::new().await;
    site.releases().await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.says("edge", "Provider", "Provided", "").await;
    // Nothing is active: a cluster that is there goes on.
    let kaas = Api::<KaaSRelease>::all(site.client.clone());
    let label =
        |active: serde_json::Value| Patch::Merge(json!({"metadata": {"labels": {"kaas.mirantis.com/active": active}}}));
    kaas.patch("kaas-2-30-0", &PatchParams::default(), &label(json!(null))).await.unwrap();
    refused(&site, value(json!({"release": "mosk-2"})), "no KaaSRelease is active").await;
    let new = site.try_create::<Cluster>(cluster("other", json!({}))).await;
    assert!(new.is_err(), "{new:?}");
    site.change::<Cluster>("edge", value(json!({"maxWorkerUpgradeCount": 3}))).await;
    site.there("edge", "is told so", |lcm: &LCMCluster| lcm.spec.max_worker_upgrade_count == Some(3)).await;
    kaas.patch("kaas-2-30-0", &PatchParams::default(), &label(json!("true"))).await.unwrap();
    // What its nodes have stays, whoever changes what they were told.
    // A look that had begun before puts it back.
    let told = async {
        loop {
            site.change::<LCMCluster>("edge", json!({"spec": {"externalEndpoint": {"host": "192.0.2.99"}}})).await;
            let says = site.says("edge", "Provider", "InvalidChange", "in their certificates");
            if tokio::time::timeout(Duration::from_millis(500), says).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), told).await.expect("whoever changes it is told");
    site.change::<LCMCluster>("edge", json!({"spec": {"externalEndpoint": {"host": "192.0.2.5"}}})).await;
    site.says("edge", "Provider", "Provided", "").await;
}

#[tokio::test]
async fn a_release_that_was_changed_by_hand_is_told_and_not_gone_along_with() {
    let site = Site::new().await;
    site.releases().await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.says("edge", "Provider", "Provided", "").await;
    // Past the Cluster and its upgrade path; a look that had begun before puts it back.
    let told = async {
        loop {
            site.change::<LCMCluster>("edge", json!({"spec": {"release": "mosk-2"}})).await;
            let says = site.says("edge", "Provider", "NotInUpgradePath", "mosk-1 may not follow mosk-2");
            if tokio::time::timeout(Duration::from_millis(500), says).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), told).await.expect("whoever changes it is told");
    let lcm: LCMCluster = site.get("edge").await.unwrap();
    assert_eq!(lcm.spec.machine_types["control"][0].version, "1.0.0+25.1", "nodes get no steps of it");
    site.change::<LCMCluster>("edge", json!({"spec": {"release": "mosk-1"}})).await;
    site.says("edge", "Provider", "Provided", "").await;
}

#[tokio::test]
async fn in_maintenance_only_keys_change() {
    let site = Site::new().await;
    site.releases().await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.says("edge", "Provider", "Provided", "").await;
    site.change::<Cluster>("edge", value(json!({"maintenance": true}))).await;
    site.there("edge", "is in maintenance", |lcm: &LCMCluster| lcm.spec.maintenance).await;
    refused(&site, value(json!({"release": "mosk-2"})), "in maintenance").await;
    refused(&site, value(json!({"helmReleases": []})), "in maintenance").await;
    site.create::<PublicKey>(json!({"metadata": {"name": "second"}, "spec": {"publicKey": "ssh-ed25519 BBBB second"}}))
        .await;
    site.change::<Cluster>("edge", value(json!({"publicKeys": [{"name": "second"}]}))).await;
    let second = |lcm: &LCMCluster| lcm.spec.ssh_authorized_keys == ["ssh-ed25519 BBBB second"];
    site.there("edge", "has the second key", second).await;
    // A key that changes is another one on every node.
    site.change::<PublicKey>("second", json!({"spec": {"publicKey": "ssh-ed25519 CCCC third"}})).await;
    let third = |lcm: &LCMCluster| lcm.spec.ssh_authorized_keys == ["ssh-ed25519 CCCC third"];
    site.there("edge", "has the third key", third).await;
    let lines = site.try_change::<PublicKey>("second", json!({"spec": {"publicKey": "a\nssh-ed25519 EEEE eve"}})).await;
    assert!(
        matches!(&lines, Err(kube::Error::Api(status)) if status.message.contains("more than one line")),
        "{lines:?}"
    );
    site.delete::<PublicKey>("second").await;
    site.says("edge", "Provider", "InvalidPublicKey", "there is no PublicKey \"second\"").await;
    site.there("edge", "has no key that is gone", |lcm: &LCMCluster| lcm.spec.ssh_authorized_keys.is_empty()).await;
    site.change::<Cluster>("edge", value(json!({"maintenance": false, "publicKeys": [{"name": "ops-key"}]}))).await;
    site.there("edge", "is in maintenance no more", |lcm: &LCMCluster| !lcm.spec.maintenance).await;
}

#[tokio::test]
async fn charts_that_a_release_has_no_more_are_told_and_stop_nothing_else() {
    let site = Site::new().await;
    site.releases().await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.says("edge", "Provider", "Provided", "").await;
    refused(&site, value(json!({"helmReleases": [{"name": "other"}]})), "no Helm release \"other\"").await;
    refused(&site, value(json!({"helmReleases": [{"name": "stacklight", "enabled": false}]})), "disable both or none")
        .await;
    let off = json!([{"name": "stacklight", "enabled": false}, {"name": "ingress", "enabled": false}]);
    site.change::<Cluster>("edge", value(json!({ "helmReleases": off }))).await;
    site.there("edge", "has no charts", |bundle: &HelmBundle| bundle.spec.releases.is_empty()).await;
    site.says("edge", "Helm", "NoCharts", "").await;
}

#[tokio::test]
async fn a_machine_waits_for_what_it_needs_and_says_for_what() {
    let site = Site::new().await;
    site.releases().await;
    site.free("m", of("m")).await;
    // Its cluster comes after it.
    site.create::<Machine>(machine("m", "edge", true, json!({"userData": {"name": "later"}}))).await;
    let waits = |reason: &'static str| {
        move |machine: &Machine| {
            let conditions = machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            conditions.iter().any(|one| one.type_ == "Ready" && one.reason.as_deref() == Some(reason))
        }
    };
    site.there("m", "waits for its cluster", waits("WaitingForCluster")).await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.machine_says("m", "waiting for the Secret \"later\"").await;
    site.there("m", "waits for its agent", waits("WaitingForAgent")).await;
    let host: BareMetalHost = site.get("m").await.unwrap();
    assert!(host.spec.image.is_none() && host.spec.consumer_ref.is_none(), "{}", json!(host.spec));
    site.create::<Secret>(json!({"metadata": {"name": "later"}, "stringData": {"value": "#!/bin/sh\n"}})).await;
    site.there("m", "is told what to run", |host: &BareMetalHost| host.spec.image.is_some()).await;
    // What it cannot have is said.
    let labels = json!({"nodeLabels": [{"key": "gpu", "value": "yes"}]});
    let refused = site.try_create::<Machine>(machine("n", "edge", false, labels)).await;
    assert!(
        matches!(&refused, Err(kube::Error::Api(status)) if status.message.contains("allowedNodeLabels")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_machine_that_says_delete_goes_and_need_not_be_drained() {
    let site = Site::new().await;
    site.releases().await;
    site.free("m", of("m")).await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.create::<Machine>(machine("m", "edge", true, json!({}))).await;
    site.there("m", "is told what to run", |host: &BareMetalHost| host.spec.image.is_some()).await;
    site.state("m", "provisioned").await;
    site.change::<LCMMachine>("m", json!({"status": {"state": "Ready"}})).await;
    site.there("m", "runs", |machine: &Machine| noted(machine)["provisioned"] == true).await;
    site.change::<Machine>("m", value(json!({"delete": true}))).await;
    site.there("m", "is told to leave", |lcm: &LCMMachine| lcm.spec.prepare_deletion).await;
    let later = site.try_change::<Machine>("m", value(json!({"deletionPolicy": "unsafe"}))).await;
    assert!(later.is_ok(), "{later:?}");
    // Its node goes first, undrained.
    site.there("m", "is told not to be drained", |lcm: &LCMMachine| lcm.spec.force_deletion).await;
    site.change::<LCMMachine>("m", json!({"status": {"prepareDeletionPhase": "completed"}})).await;
    site.there("m", "is told to deprovision", |host: &BareMetalHost| host.spec.image.is_none()).await;
    site.state("m", "available").await;
    site.gone::<Machine>("m").await;
    site.gone::<LCMMachine>("m").await;
}

#[tokio::test]
async fn a_cluster_goes_after_its_machines_and_takes_what_is_its_own() {
    let site = Site::new().await;
    site.releases().await;
    site.free("m", of("m")).await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.create::<Machine>(machine("m", "edge", true, json!({}))).await;
    site.there("m", "is told what to run", |host: &BareMetalHost| host.spec.image.is_some()).await;
    site.change::<LCMMachine>("m", json!({"status": {"state": "Ready"}})).await;
    site.delete::<Cluster>("edge").await;
    site.says("edge", "Ready", "MachinesLeft", "Waiting for its Machines to be deleted: m").await;
    assert!(site.get::<LCMCluster>("edge").await.is_some());
    // With the cluster goes what runs on its nodes: nothing is drained.
    site.delete::<Machine>("m").await;
    site.there("m", "is told to deprovision", |host: &BareMetalHost| host.spec.image.is_none()).await;
    site.state("m", "available").await;
    site.gone::<Machine>("m").await;
    site.gone::<Cluster>("edge").await;
    site.gone::<LCMCluster>("edge").await;
    site.gone::<HelmBundle>("edge").await;
    site.gone::<ServiceAccount>("helm-edge").await;
    site.gone::<Role>("helm-edge").await;
    site.gone::<RoleBinding>("helm-edge").await;
    site.gone::<LCMMachine>("m").await;
    site.gone::<ServiceAccount>("lcm-m").await;
    // Keys, hosts and credentials are their users'.
    assert!(site.get::<PublicKey>("ops-key").await.is_some() && site.get::<Secret>("m-bmc").await.is_some());
    // The same names again are another cluster.
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.says("edge", "Provider", "Provided", "").await;
}

#[tokio::test]
async fn what_is_taken_away_is_made_again() {
    let site = Site::new().await;
    site.releases().await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.says("edge", "Provider", "Provided", "").await;
    let first: LCMCluster = site.get("edge").await.unwrap();
    site.delete::<LCMCluster>("edge").await;
    let again = |lcm: &LCMCluster| lcm.uid() != first.uid() && lcm.spec == first.spec;
    site.there("edge", "is made again", again).await;
}

#[tokio::test]
async fn what_is_as_it_should_be_is_not_written_again() {
    let site = Site::new().await;
    site.releases().await;
    site.free("m", of("m")).await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.create::<Machine>(machine("m", "edge", false, json!({}))).await;
    site.there("m", "is told what to run", |host: &BareMetalHost| host.spec.image.is_some()).await;
    let versions = async || {
        let mut all = vec![site.get::<HelmBundle>("edge").await.and_then(|bundle| bundle.resource_version())];
        all.push(site.get::<Secret>("m-lcm-user-data").await.and_then(|secret| secret.resource_version()));
        for name in ["helm-edge", "lcm-m"] {
            all.push(site.get::<ServiceAccount>(name).await.and_then(|account| account.resource_version()));
            all.push(site.get::<Role>(name).await.and_then(|role| role.resource_version()));
            all.push(site.get::<RoleBinding>(name).await.and_then(|binding| binding.resource_version()));
        }
        all
    };
    let before = versions().await;
    site.change::<Cluster>("edge", value(json!({"maxWorkerUpgradeCount": 2}))).await;
    site.there("edge", "is told so", |lcm: &LCMCluster| lcm.spec.max_worker_upgrade_count == Some(2)).await;
    site.change::<Machine>("m", value(json!({"upgradeIndex": 7}))).await;
    let index = |lcm: &LCMMachine| lcm.annotations().get("lcm.mirantis.com/index").is_some_and(|index| index == "7");
    site.there("m", "is told its place", index).await;
    // A second look at both has come past all of it.
    site.change::<Cluster>("edge", value(json!({"maxWorkerUpgradeCount": 3}))).await;
    site.there("edge", "is told so", |lcm: &LCMCluster| lcm.spec.max_worker_upgrade_count == Some(3)).await;
    site.change::<Machine>("m", value(json!({"upgradeIndex": null}))).await;
    let none = |lcm: &LCMMachine| !lcm.annotations().contains_key("lcm.mirantis.com/index");
    site.there("m", "has no place", none).await;
    assert_eq!(versions().await, before);
    assert!(before.iter().all(Option::is_some), "{before:?}");
}

#[tokio::test]
async fn a_machine_of_a_cluster_that_goes_is_told_nothing() {
    let site = Site::new().await;
    site.releases().await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.create::<Machine>(machine("m", "edge", true, json!({}))).await;
    site.there("m-lcm-user-data", "is made", |_: &Secret| true).await;
    site.delete::<Cluster>("edge").await;
    site.says("edge", "Ready", "MachinesLeft", "m").await;
    // A host comes too late.
    site.free("m", of("m")).await;
    let waits = |machine: &Machine| {
        let conditions = machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions.iter().any(|one| one.reason.as_deref() == Some("ClusterDeleted"))
    };
    site.there("m", "waits for its end", waits).await;
    let host: BareMetalHost = site.get("m").await.unwrap();
    assert!(host.spec.image.is_none() && host.spec.consumer_ref.is_none(), "{}", json!(host.spec));
    site.delete::<Machine>("m").await;
    site.gone::<Machine>("m").await;
    site.gone::<Cluster>("edge").await;
}
