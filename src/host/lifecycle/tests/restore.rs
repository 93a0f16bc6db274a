//! docs/design/host.md, "Status from another site": what a host brings along.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use super::*;
use crate::api::metal3::{ANNOTATION_HARDWARE_DETAILS, ANNOTATION_STATUS, Cpu, InspectionMode};

fn provisioned_elsewhere() -> serde_json::Value {
    json!({
        "operationalStatus": "OK", "errorMessage": "", "poweredOn": true, "errorCount": 0,
        "provisioning": { "state": "provisioned", "ID": "node-of-another-site", "image": { "url": "http://x/a.qcow2" } },
        "goodCredentials": { "credentials": { "name": "s", "namespace": "ns" }, "credentialsVersion": "77" },
        "hardware": { "hostname": "from the status" }
    })
}

#[test]
fn a_restored_host_is_adopted_and_its_machine_is_left_alone() {
    let mut model = Model::with_image("http://x/a.qcow2");
    model.power = PowerState::On;
    model.annotate(ANNOTATION_STATUS, &provisioned_elsewhere().to_string());
    let (reason, _) = model.settle();
    assert_eq!(model.states, ["provisioned"], "no other state was ever visible");
    assert_eq!(reason, "powered on, as asked");
    assert_eq!(model.bmc, ["read"]);
    assert!(!model.annotated(ANNOTATION_STATUS));
    let status = model.status();
    assert_eq!(status.provisioning.id, "uid");
    assert_eq!(status.good_credentials.credentials_version.as_deref(), Some("1"));
    assert_eq!(status.hardware.map(|hardware| hardware.hostname).as_deref(), Some("from the status"));
    let intent = model.intent.as_ref().expect("an intent");
    assert_eq!((intent.spec.target, intent.spec.disks_clean), (BootTarget::Disk, false));
    for _ in 0..5 {
        model.now += Duration::from_secs(60);
        model.power_known = false;
        model.settle();
    }
    assert!(model.bmc.iter().all(|asked| *asked == "read"), "{:?}", model.bmc);
}

#[test]
fn what_is_restored() {
    // HardwareData wins over the status.
    let mut known = Model::with_image("http://x/a.qcow2");
    known.power = PowerState::On;
    known.hardware = Some(HardwareDetails { hostname: "from HardwareData".into(), ..HardwareDetails::default() });
    known.annotate(ANNOTATION_STATUS, &provisioned_elsewhere().to_string());
    known.settle();
    assert_eq!(known.status().hardware.expect("hardware").hostname, "from HardwareData");

    // Where its machine is, DHCP says, and not whoever brings it along: inventories go by it.
    let mut elsewhere = Model::with_image("http://x/a.qcow2");
    elsewhere.power = PowerState::On;
    let mut text = provisioned_elsewhere();
    text["addresses"] = json!([{ "address": "10.0.0.5", "macAddress": "52:54:00:00:00:09", "network": "rack" }]);
    elsewhere.annotate(ANNOTATION_STATUS, &text.to_string());
    elsewhere.settle();
    assert_eq!((elsewhere.state(), elsewhere.status().addresses), ("provisioned", Vec::new()));

    // A host that has a status keeps it.
    let mut old = Model::in_state("available");
    old.annotate(ANNOTATION_STATUS, &provisioned_elsewhere().to_string());
    old.settle();
    assert_eq!(old.state(), "available");
    assert!(!old.annotated(ANNOTATION_STATUS));

    // The old name of a state is understood.
    let mut ready = Model::new();
    let mut status = provisioned_elsewhere();
    status["provisioning"] = json!({ "state": "ready", "ID": "x" });
    ready.annotate(ANNOTATION_STATUS, &status.to_string());
    ready.settle();
    assert_eq!(ready.states, ["available"]);

    // What cannot be read stops everything: as a new host its disks would be wiped.
    for text in ["{", r#"{"provisioning":{"state":"sleeping"}}"#] {
        let mut broken = Model::with_image("http://x/a.qcow2");
        broken.annotate(ANNOTATION_STATUS, text);
        let (reason, until) = broken.settle();
        assert!(reason.contains(ANNOTATION_STATUS), "{reason}");
        assert_eq!(until, broken.now + RARE_POLL);
        assert_eq!((broken.state(), broken.events.as_slice()), ("", &["InvalidAnnotationValue"][..]));
        assert!(broken.bmc.is_empty() && broken.intent.is_none());
        // And yet it can be deleted.
        broken.delete();
        broken.run_until("gone");
        assert!(broken.bmc.is_empty());
    }

    // Nothing to restore.
    for text in ["", "{}"] {
        let mut empty = Model::new();
        empty.annotate(ANNOTATION_STATUS, text);
        empty.run_until("available");
        assert!(!empty.annotated(ANNOTATION_STATUS));
    }
}

#[test]
fn a_restored_host_whose_machine_is_anothers_says_so_and_stays() {
    let mut model = Model::with_image("http://x/a.qcow2");
    model.power = PowerState::On;
    model.mac_owner = Some("ns/first".into());
    model.annotate(ANNOTATION_STATUS, &provisioned_elsewhere().to_string());
    model.settle();
    let status = model.status();
    assert_eq!((model.state(), status.error_type), ("provisioned", Some(ErrorType::ProvisionedRegistration)));
    assert!(status.error_message.contains("ns/first"), "{}", status.error_message);
    assert_eq!(model.bmc, ["read"]);
    model.mac_owner = None;
    model.now += model.settings.retry.0;
    model.settle();
    assert_eq!(model.status().error_type, None);
}

#[test]
fn hardware_from_outside() {
    let hardware = json!({ "hostname": "given", "cpu": { "arch": "x86_64", "count": 4 } }).to_string();
    let mut model = Model::new();
    model.host.spec.inspection_mode = Some(InspectionMode::Disabled);
    model.annotate(ANNOTATION_HARDWARE_DETAILS, &hardware);
    model.run_until("available");
    assert_eq!(model.status().hardware.expect("hardware").hostname, "given");
    assert_eq!(model.hardware.as_ref().expect("HardwareData").hostname, "given");
    assert_eq!(model.host.spec.architecture.as_deref(), Some("x86_64"));
    assert!(!model.annotated(ANNOTATION_HARDWARE_DETAILS));
    for event in ["UpdateHardwareDetails", "RemoveAnnotation"] {
        assert_eq!(model.events.iter().filter(|seen| **seen == event).count(), 1, "{event}");
    }

    let brought = |hostname: &str| HardwareDetails { hostname: hostname.to_owned(), ..HardwareDetails::default() };
    let mut stored = Model::new();
    stored.host.spec.inspection_mode = Some(InspectionMode::Disabled);
    stored.hardware = Some(brought("stored"));
    stored.run_until("available");
    assert_eq!(stored.status().hardware.expect("hardware").hostname, "stored");
    assert_eq!(stored.events.iter().filter(|seen| **seen == "UpdateHardwareDetails").count(), 1);
    // What is shown stays: another object is not the machine's.
    stored.hardware = Some(brought("other"));
    stored.settle();
    assert_eq!(stored.status().hardware.expect("hardware").hostname, "stored");

    let mut inspected = Model::new();
    inspected.annotate(ANNOTATION_HARDWARE_DETAILS, &hardware);
    inspected.run_until("available");
    assert_eq!(inspected.status().hardware.expect("hardware").hostname, "h", "inspection is on, so it counts");

    let mut wrong = Model::new();
    wrong.host.spec.inspection_mode = Some(InspectionMode::Disabled);
    wrong.annotate(ANNOTATION_HARDWARE_DETAILS, "[]");
    wrong.run_until("available");
    assert!(wrong.events.contains(&"InvalidAnnotationValue"));
    assert!(!wrong.annotated(ANNOTATION_HARDWARE_DETAILS));
}

#[test]
fn the_architecture_comes_from_the_hardware_unless_it_is_given() {
    let found = |arch: &str| {
        let cpu = Some(Cpu { arch: arch.into(), ..Cpu::default() });
        Some(HardwareDetails { cpu, ..HardwareDetails::default() })
    };
    for (given, hardware, expected) in [
        (None, found("x86_64"), Some("x86_64")),
        (Some(""), found("x86_64"), Some("x86_64")),
        (Some("aarch64"), found("x86_64"), Some("aarch64")),
        (None, found("aarch64"), None),
        (None, found(""), None),
        (None, None, None),
    ] {
        let mut model = Model::in_state("available");
        model.hardware = hardware;
        model.host.spec.architecture = given.map(str::to_owned);
        model.settle();
        assert_eq!(model.host.spec.architecture.as_deref(), expected);
    }
}

#[test]
fn a_host_made_anew_takes_nothing_over_from_its_namesakes_intent() {
    let owner = |uid: &str| OwnerReference { uid: uid.into(), controller: Some(true), ..OwnerReference::default() };
    for (owners, forgotten) in [(vec![owner("former")], true), (vec![owner("uid")], false), (vec![], false)] {
        let mut model = Model::in_state("available");
        let mut left = model.intent.take().expect("an intent");
        assert!(left.spec.disks_clean);
        left.metadata.owner_references = Some(owners);
        let mut model = Model::new();
        model.intent = Some(left);
        model.host.spec.inspection_mode = Some(InspectionMode::Disabled);
        model.run_until("available");
        assert_eq!(model.wipes, usize::from(forgotten), "its own disks are wiped before anything is written to one");
    }
}
