//! What somebody in another namespace writes about addresses, and what it does to a host.

use super::*;
use crate::api::metal3::{ANNOTATION_HARDWARE_DETAILS, ANNOTATION_STATUS, InspectionMode};

#[tokio::test]
async fn what_another_namespace_says_of_addresses_holds_up_nobody() {
    let site = Site::idle().await;
    site.reconcile().await;
    let metadata = ObjectMeta { name: Some("tenant".into()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::<Namespace>::all(site.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let hosts = Api::<BareMetalHost>::namespaced(site.client.clone(), "tenant");
    let create = async |name: &str, change: &dyn Fn(&mut BareMetalHost)| {
        let mut host = site.host();
        host.metadata.name = Some(name.into());
        host.spec.inspection_mode = Some(InspectionMode::Disabled);
        change(&mut host);
        hosts.create(&PostParams::default(), &host).await.unwrap();
        site.until("it was looked at", async || hosts.get(name).await.unwrap().status.is_some()).await;
    };
    let error = async |name: &str| hosts.get(name).await.unwrap().status.unwrap_or_default().error_message;
    // There before the victim: without a BMC; with its BMC and no credentials; with its card, from two annotations.
    create("bare", &|host| host.spec.bmc = None).await;
    create("named", &|_| {}).await;
    let nics = json!({ "nics": [{ "name": "eth0", "mac": "02:00:00:00:00:01" }] }).to_string();
    create("cards", &|host| {
        host.spec.bmc = None;
        host.spec.boot_mac_address = Some("02:00:00:00:00:66".into());
        host.annotations_mut().insert(ANNOTATION_HARDWARE_DETAILS.into(), nics.clone());
    })
    .await;
    create("restored", &|host| {
        let hardware = serde_json::from_str(&nics).unwrap();
        let state = ProvisioningState::Provisioned;
        let status = BareMetalHostStatus {
            provisioning: ProvisionStatus { state, id: "elsewhere".into(), ..ProvisionStatus::default() },
            hardware: Some(hardware),
            ..BareMetalHostStatus::default()
        };
        host.annotations_mut().insert(ANNOTATION_STATUS.into(), serde_json::to_string(&status).unwrap());
    })
    .await;

    site.create(&site.host()).await;
    site.until("it is inspected", async || site.status().await.provisioning.state == ProvisioningState::Inspecting)
        .await;
    site.until("its machine is started", async || site.machine.is_on()).await;

    // And after it, with credentials that are good.
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "bmc" },
        "stringData": { "username": "admin", "password": "secret" } });
    let secrets = Api::<Secret>::namespaced(site.client.clone(), "tenant");
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    create("late", &|_| {}).await;
    site.until("it is refused, and told no name", async || {
        error("late").await.ends_with("is already that of a BareMetalHost in another namespace: correct one of the two")
    })
    .await;
    let status = site.status().await;
    assert_eq!((status.error_type, status.error_message.as_str()), (None, ""));
    assert_eq!(status.provisioning.state, ProvisioningState::Inspecting);
}
