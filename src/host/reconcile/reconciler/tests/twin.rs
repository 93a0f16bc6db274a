//! Tests of two hosts whose hardware has one serial number.

use k8s_openapi::api::core::v1::Event;

use super::*;
use crate::api::metal3::{ANNOTATION_HARDWARE_DETAILS, InspectionMode};
use crate::config::Span;

async fn create(site: &Site, name: &str, mac: &str, address: &str) -> BareMetalHost {
    let mut host = site.host();
    host.metadata.name = Some(name.into());
    host.spec.boot_mac_address = Some(mac.into());
    host.spec.bmc.as_mut().unwrap().address = address.into();
    host.spec.externally_provisioned = true;
    host.spec.inspection_mode = Some(InspectionMode::Disabled);
    let hardware = json!({ "systemVendor": { "manufacturer": "Maker", "serialNumber": "S1" }, "hostname": name });
    host.annotations_mut().insert(ANNOTATION_HARDWARE_DETAILS.into(), hardware.to_string());
    site.create(&host).await
}

#[tokio::test]
async fn the_later_one_is_told_and_nothing_is_held_up() {
    let mut site = Site::idle().await;
    let settings = HostConfig { power_poll: Span(Duration::from_millis(100)), ..HostConfig::default() };
    site.reconcile_with(settings, BmcSettings { poll: Duration::from_millis(20), ..BmcSettings::default() }).await;
    let first = create(&site, "h", "02:00:00:00:00:01", &site.bmc).await;
    // A creation time has seconds: the second one must be younger.
    let made = first.creation_timestamp().unwrap().0;
    site.until("the next second", async || Timestamp::now() > made + Duration::from_secs(1)).await;
    let machine = Arc::new(SimulatedMachine::new(SimulatedProfile::default()));
    let own = std::mem::replace(&mut site.machine, machine.clone());
    site.redfish(RedfishOptions::default()).await;
    create(&site, "twin", "02:00:00:00:00:02", &site.bmc).await;

    let hosts = site.api::<BareMetalHost>();
    let status = async |name: &str| hosts.get(name).await.unwrap().status.unwrap_or_default();
    let told = async |name: &str| {
        let conditions = status(name).await.conditions;
        conditions.into_iter().find(|condition| condition.type_ == "HardwareUnique")
    };
    site.until("the later one is told", async || told("twin").await.is_some()).await;
    let condition = told("twin").await.unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "DuplicateSerialNumber"));
    assert!(condition.message.contains("BareMetalHost rack/h"), "{}", condition.message);
    site.until("it goes on all the same", async || {
        let state = status("twin").await.provisioning.state;
        state == ProvisioningState::ExternallyProvisioned && machine.is_on() && own.is_on()
    })
    .await;
    assert!(told("h").await.is_none(), "the first one has nothing to do with it");

    // It was looked at many times since, and told once.
    let patch = Patch::Merge(json!({ "spec": { "online": false } }));
    hosts.patch("twin", &PatchParams::default(), &patch).await.unwrap();
    site.until("it is looked at", async || !machine.is_on() && !status("twin").await.powered_on).await;
    let events = site.api::<Event>().list(&Default::default()).await.unwrap();
    let counts: Vec<_> = events
        .iter()
        .filter(|event| event.reason.as_deref() == Some("DuplicateSerialNumber"))
        .map(|event| (event.involved_object.name.clone().unwrap_or_default(), event.count))
        .collect();
    assert_eq!(counts, [("twin".to_owned(), Some(1))]);

    site.annotate(ANNOTATION_DETACHED, Some("")).await;
    site.delete().await;
    site.until_gone().await;
    site.until("it is the only one", async || told("twin").await.is_none()).await;
}
