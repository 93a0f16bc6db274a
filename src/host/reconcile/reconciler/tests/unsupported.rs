//! Tests of unsupported fields on stored hosts.
//!
//! A host that asks for what is not done, stored where nothing judged it: by an earlier version, or by a Kubernetes API
//! server.

use super::*;
use crate::api::metal3::{BootMode, ErrorType, OperationalStatus};

#[tokio::test]
async fn a_host_that_asks_for_too_much_says_so_ends_with_its_correction_and_can_be_deleted() {
    let site = Site::idle().await;
    site.reconcile().await;
    let mut host = site.host();
    host.spec.boot_mode = Some(BootMode::UEFISecureBoot);
    site.create(&host).await;
    site.until("it is said", async || site.status().await.error_type == Some(ErrorType::Registration)).await;
    let status = site.status().await;
    assert!(status.error_message.contains("spec.bootMode \"UEFISecureBoot\": Secure Boot is not supported yet"));
    assert_eq!(status.operational_status, OperationalStatus::Error);
    assert_eq!(status.provisioning.state, ProvisioningState::Registering);
    assert!(site.machine.boots().is_empty(), "nothing is begun");
    let told = |kind: &str| status.conditions.iter().find(|one| one.type_ == kind).map(|one| one.message.clone());
    assert_eq!(told("Ready"), Some(status.error_message.clone()), "kubectl wait and describe show it");
    site.patch(json!({ "spec": { "bootMode": "UEFI" } })).await;
    site.until("it goes on", async || site.status().await.provisioning.state == ProvisioningState::Inspecting).await;
    assert_eq!(site.status().await.error_type, None);
}

#[tokio::test]
async fn a_host_that_is_too_large_says_so_and_is_read_no_further_than_its_bound() {
    let site = Site::idle().await;
    site.reconcile().await;
    let mut host = site.host();
    host.spec.taints = vec![json!({ "key": "a", "effect": "NoSchedule" }); 20_000];
    site.create(&host).await;
    let said = "spec.taints: more than 100 taints, or 1000 values in them, are not supported";
    site.until("it is said", async || site.status().await.error_message.contains(said)).await;
    assert!(site.machine.boots().is_empty(), "nothing is begun");
    assert_eq!(site.get().await.spec.taints.len(), 101);
    let stored = site.client.request::<serde_json::Value>(
        http::Request::get("/apis/metal3.io/v1alpha1/namespaces/rack/baremetalhosts/h").body(Vec::new()).unwrap(),
    );
    let stored = stored.await.unwrap()["spec"]["taints"].as_array().unwrap().len();
    assert_eq!(stored, 20_000, "its status was written and nothing else");
    site.patch(json!({ "spec": { "taints": null } })).await;
    site.until("it goes on", async || site.status().await.provisioning.state == ProvisioningState::Inspecting).await;
}
