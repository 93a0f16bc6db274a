//! An inventory and its host, from their making to their end.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::site::AccessSite;
use crate::api::kaas::{BareMetalHostCredential, BareMetalHostInventory};
use crate::api::metal3::BareMetalHost;

const BMC: &str = "redfish://192.0.2.9/redfish/v1/Systems/1";

fn inventory(name: &str, credential: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"kaas.mirantis.com/baremetalhost-id": name}},
        "spec": {"online": true, "bootMACAddress": "52:54:00:00:00:01",
            "bmc": {"address": BMC, "bmhCredentialsName": credential}},
    })
}

fn bmc_of(host: &BareMetalHost) -> Value {
    json!(host.spec.bmc)
}

#[tokio::test]
async fn a_server_that_is_described_becomes_a_host_and_stays_as_described() {
    let site = AccessSite::new().await;
    site.create::<BareMetalHostInventory>(inventory("a", "c")).await;
    site.says("a", "Credentials", "NoCredential", "no BareMetalHostCredential \"c\"").await;
    site.says("a", "Mirrored", "WaitingForCredentials", "").await;
    assert!(site.get::<BareMetalHost>("a").await.is_none());
    site.credential("c", json!({"value": "s3cret"})).await;
    let valid = |one: &BareMetalHostCredential| one.status.as_ref().is_some_and(|status| status.valid);
    site.there("c", "is valid", valid).await;
    let host = site.there("a", "is made", |_: &BareMetalHost| true).await;
    assert_eq!(bmc_of(&host), json!({"address": BMC, "credentialsName": "a-bmhi-bmc"}));
    assert_eq!(host.labels()["kaas.mirantis.com/baremetalhost-id"], "a");
    let one = site.says("a", "Mirrored", "Mirrored", "").await;
    assert_eq!(host.owner_references()[0].uid, one.uid().unwrap());
    site.logs_in("a", "s3cret").await;

    // What others change of it is written anew, and what is theirs stays.
    let foreign = json!({"metadata": {"labels": {"kaas.mirantis.com/baremetalhost-id": "b", "own": "1"}},
        "spec": {"online": false, "bmc": {"address": "ipmi://192.0.2.77"}, "description": "mine"}});
    site.change::<BareMetalHost>("a", foreign).await;
    let restored = |host: &BareMetalHost| {
        host.spec.online
            && bmc_of(host)["address"] == BMC
            && host.labels()["kaas.mirantis.com/baremetalhost-id"] == "a"
            && host.labels()["own"] == "1"
            && host.spec.description.as_deref() == Some("mine")
    };
    site.there("a", "is as described again", restored).await;
    site.change::<BareMetalHostInventory>("a", json!({"spec": {"online": false, "bootMode": "legacy"}})).await;
    site.there("a", "follows", |host: &BareMetalHost| !host.spec.online && host.spec.boot_mode.is_some()).await;
    // Once somebody has it, he says whether it is on.
    let taken = json!({"spec": {"consumerRef": {"kind": "Machine", "name": "m"}, "online": true}});
    site.change::<BareMetalHost>("a", taken).await;
    site.change::<BareMetalHostInventory>("a", json!({"metadata": {"labels": {"more": "1"}}})).await;
    site.there("a", "keeps its power", |host: &BareMetalHost| host.labels().contains_key("more") && host.spec.online)
        .await;

    // What the host says, it says.
    let status = json!({"status": {"provisioning": {"state": "available", "ID": "7"}, "operationalStatus": "OK", "poweredOn": true}});
    site.change::<BareMetalHost>("a", status).await;
    let said = site.says("a", "Ready", "Ready", "").await;
    let known = |one: &BareMetalHostInventory| {
        let status = json!(one.status);
        status["provisioning"] == json!({"state": "available", "ID": "7"}) && status["poweredOn"] == true
    };
    site.there("a", "says so", known).await;
    assert!(said.status.unwrap().observed_generation.is_some());
    let failed = json!({"status": {"operationalStatus": "error", "errorType": "power management error", "errorMessage": "no answer"}});
    site.change::<BareMetalHost>("a", failed).await;
    site.says("a", "Ready", "HostError", "no answer").await;
}

#[tokio::test]
async fn another_password_reaches_the_host_wherever_it_is_kept() {
    let site = AccessSite::new().await;
    site.credential("c", json!({"value": "first"})).await;
    site.create::<BareMetalHostInventory>(inventory("a", "c")).await;
    site.logs_in("a", "first").await;
    site.change::<BareMetalHostCredential>("c", json!({"spec": {"password": {"value": "second"}}})).await;
    site.logs_in("a", "second").await;
    // In a Secret of somebody's own.
    site.change::<BareMetalHostCredential>(
        "c",
        json!({"spec": {"password": {"secret": {"name": "own", "key": "pw"}}}}),
    )
    .await;
    site.says("a", "Credentials", "NoSecret", "no Secret \"own\"").await;
    site.gone::<Secret>("c-bmhc-passwords").await;
    assert_eq!(site.login("a").await.unwrap().1, "second", "until there is another one");
    site.create::<Secret>(json!({"metadata": {"name": "own"}, "stringData": {"pw": "third"}})).await;
    site.logs_in("a", "third").await;
    site.change::<Secret>("own", json!({"stringData": {"pw": "fourth"}})).await;
    site.logs_in("a", "fourth").await;
    // What others write into the host's own is put right.
    site.change::<Secret>("a-bmhi-bmc", json!({"stringData": {"password": "evil"}})).await;
    site.logs_in("a", "fourth").await;
    // Without its credential a host goes on with what it has.
    site.delete::<BareMetalHostCredential>("c").await;
    site.says("a", "Credentials", "NoCredential", "").await;
    assert_eq!(site.login("a").await.unwrap().1, "fourth");
}

#[tokio::test]
async fn what_is_somebody_elses_is_not_taken() {
    let site = AccessSite::new().await;
    site.credential("c", json!({"value": "s3cret"})).await;
    let theirs: BareMetalHost = site.create(json!({"metadata": {"name": "a"}, "spec": {"online": false}})).await;
    site.create::<BareMetalHostInventory>(inventory("a", "c")).await;
    site.says("a", "Mirrored", "NameTaken", "the BareMetalHost \"a\" is not of the BareMetalHostInventory a").await;
    site.says("a", "Ready", "NameTaken", "").await;
    assert_eq!(site.get::<BareMetalHost>("a").await.unwrap().resource_version(), theirs.resource_version());
    // It goes, and that of somebody else stays.
    site.delete::<BareMetalHostInventory>("a").await;
    site.gone::<BareMetalHostInventory>("a").await;
    assert_eq!(site.get::<BareMetalHost>("a").await.unwrap().resource_version(), theirs.resource_version());
    // A Secret of the name that the host's would have.
    site.create::<Secret>(
        json!({"metadata": {"name": "b-bmhi-bmc"}, "stringData": {"username": "u", "password": "p"}}),
    )
    .await;
    site.create::<BareMetalHostInventory>(inventory("b", "c")).await;
    site.says("b", "Credentials", "NameTaken", "the Secret \"b-bmhi-bmc\" is not of").await;
    assert!(site.get::<BareMetalHost>("b").await.is_none(), "no host logs in with what somebody else chose");
    assert_eq!(site.login("b").await.unwrap(), ("u".into(), "p".into()));
    site.delete::<Secret>("b-bmhi-bmc").await;
    site.there("b", "is made", |_: &BareMetalHost| true).await;
    site.logs_in("b", "s3cret").await;
    // What its host could not be is refused.
    let refused = site.try_create::<BareMetalHostInventory>(inventory("d", "../c")).await;
    assert!(
        matches!(&refused, Err(kube::Error::Api(status)) if status.message.contains("spec.bmc.bmhCredentialsName")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn an_inventory_goes_with_its_host_and_says_what_it_waits_for() {
    let site = AccessSite::new().await;
    site.credential("c", json!({"value": "s3cret"})).await;
    site.create::<BareMetalHostInventory>(inventory("a", "c")).await;
    let host = site.there("a", "is made", |_: &BareMetalHost| true).await;
    // As the host's own controller holds it.
    let held = json!({"metadata": {"finalizers": ["baremetalhost.metal3.io"], "annotations": {"baremetalhost.metal3.io/paused": ""}},
        "spec": {"consumerRef": {"kind": "Machine", "name": "m"}}});
    site.change::<BareMetalHost>("a", held).await;
    site.change::<BareMetalHost>("a", json!({"status": {"provisioning": {"state": "deprovisioning"}}})).await;
    site.delete::<BareMetalHostInventory>("a").await;
    site.there("a", "goes", |host: &BareMetalHost| host.metadata.deletion_timestamp.is_some()).await;
    site.says("a", "Mirrored", "Deleting", "is \"deprovisioning\". It is paused").await;
    // Detached while it goes.
    let detached = json!({"metadata": {"annotations": {"baremetalhost.metal3.io/detached": ""}}});
    site.change::<BareMetalHostInventory>("a", detached).await;
    let is_detached = |host: &BareMetalHost| host.annotations().contains_key("baremetalhost.metal3.io/detached");
    site.there("a", "is detached", is_detached).await;
    assert!(site.login("a").await.is_some(), "the host is let go with its credentials");
    site.change::<BareMetalHost>("a", json!({"metadata": {"finalizers": null}})).await;
    site.gone::<BareMetalHost>("a").await;
    site.gone::<BareMetalHostInventory>("a").await;
    site.gone::<Secret>("a-bmhi-bmc").await;
    // The same again is another one.
    site.create::<BareMetalHostInventory>(inventory("a", "c")).await;
    let again = site.there("a", "is made again", |one: &BareMetalHost| one.uid() != host.uid()).await;
    // One that somebody deletes is made anew.
    site.delete::<BareMetalHost>("a").await;
    site.there("a", "is made anew", |one: &BareMetalHost| one.uid() != again.uid()).await;
    // With its credential gone it goes all the same.
    site.delete::<BareMetalHostCredential>("c").await;
    site.gone::<Secret>("c-bmhc-passwords").await;
    site.delete::<BareMetalHostInventory>("a").await;
    site.gone::<BareMetalHostInventory>("a").await;
}
