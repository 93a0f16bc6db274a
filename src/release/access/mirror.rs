//! What of an inventory its BareMetalHost has, and what the inventory says of the host. Pure.
//!
//! Machines write into a host, too: what it runs, whose it is, and that it is on. Only what an inventory has is the inventory's, and power is
//! its while nobody has the host. Labels and annotations that went over are noted on the host, so that those that go are taken back.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use crate::api::kaas::{BareMetalHostInventory, BareMetalHostInventoryStatus, InventoryProvisioning};
use crate::api::metal3::{ANNOTATION_DETACHED, ANNOTATION_PAUSED, BareMetalHost, BareMetalHostSpec, BmcDetails};
use crate::runtime::changes::difference;
use crate::runtime::conditions::{self, ConditionVerdict};

/// What the name of the Secret with a host's credentials has behind that of the host.
pub const HOST_SECRET_SUFFIX: &str = "-bmhi-bmc";
/// Annotation of a host: which of its labels and annotations are its inventory's.
const ANNOTATION_MIRRORED: &str = "kaas.mirantis.com/mirrored-keys";
/// Annotations that go over.
const ANNOTATIONS: [&str; 3] =
    ["host.dnsmasqs.metal3.io/address", "inspect.metal3.io/hardwaredetails-storage-sort-term", ANNOTATION_DETACHED];
/// Labels of these domains, and of those below, are for controllers and do not go over.
const DOMAINS: [&str; 5] = ["k8s.io", "kubernetes.io", "metal3.io", "slipway.dev", "x-k8s.io"];

/// There is a login for the host's management controller.
pub const CREDENTIALS: &str = "Credentials";
/// The host is as the inventory says.
pub const MIRRORED: &str = "Mirrored";
/// Both hold, and the host has no fault.
pub const READY: &str = "Ready";

/// The Secret with a host's credentials.
pub fn host_secret(name: &str) -> String {
    format!("{name}{HOST_SECRET_SUFFIX}")
}

/// Labels that go over.
pub fn labels(inventory: &BareMetalHostInventory) -> BTreeMap<String, String> {
    let all = inventory.labels().iter().filter(|(key, _)| is_mirrored(key));
    all.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn is_mirrored(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    !DOMAINS.iter().any(|one| domain.strip_suffix(one).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

/// Annotations that go over.
pub fn annotations(inventory: &BareMetalHostInventory) -> BTreeMap<String, String> {
    let all = inventory.annotations().iter().filter(|(key, _)| ANNOTATIONS.contains(&key.as_str()));
    all.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// What a new host is to be.
pub fn spec(inventory: &BareMetalHostInventory) -> BareMetalHostSpec {
    let wanted = &inventory.spec;
    BareMetalHostSpec {
        online: wanted.online,
        bmc: wanted.bmc.as_ref().map(|bmc| BmcDetails {
            address: bmc.address.clone(),
            credentials_name: host_secret(&inventory.name_any()),
            disable_certificate_verification: bmc.disable_certificate_verification,
        }),
        boot_mac_address: wanted.boot_mac_address.clone(),
        boot_mode: wanted.boot_mode,
        hardware_profile: wanted.hardware_profile.clone(),
        ..BareMetalHostSpec::default()
    }
}

/// A new host.
pub fn made(inventory: &BareMetalHostInventory, owner: &OwnerReference) -> BareMetalHost {
    let (labels, mut annotations) = (labels(inventory), annotations(inventory));
    annotations.insert(ANNOTATION_MIRRORED.into(), noted(&labels, &annotations));
    let mut host = BareMetalHost::new(&inventory.name_any(), spec(inventory));
    host.metadata.namespace = inventory.namespace();
    host.metadata.labels = Some(labels);
    host.metadata.annotations = Some(annotations);
    host.metadata.owner_references = Some(vec![owner.clone()]);
    host
}

fn noted(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> String {
    let annotations = annotations.keys().filter(|key| *key != ANNOTATION_MIRRORED);
    json!({"labels": labels.keys().collect::<Vec<_>>(), "annotations": annotations.collect::<Vec<_>>()}).to_string()
}

/// What makes its host what an inventory says, as a merge patch; none when it is.
pub fn changes(inventory: &BareMetalHostInventory, host: &BareMetalHost) -> Option<Value> {
    let (labels, mut annotations) = (labels(inventory), annotations(inventory));
    let before: Value = host
        .annotations()
        .get(ANNOTATION_MIRRORED)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    annotations.insert(ANNOTATION_MIRRORED.into(), noted(&labels, &annotations));
    let mut metadata = Map::new();
    let mut of_map = |field: &str, wanted: &BTreeMap<String, String>, found: &BTreeMap<String, String>| {
        let mut changed: Map<String, Value> = wanted
            .iter()
            .filter(|(key, value)| found.get(*key) != Some(value))
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        let were = before[field].as_array().into_iter().flatten().filter_map(Value::as_str);
        // Somebody may have written something else there.
        let ours = were.filter(|key| if field == "labels" { is_mirrored(key) } else { ANNOTATIONS.contains(key) });
        for gone in ours.filter(|key| !wanted.contains_key(*key) && found.contains_key(*key)) {
            changed.insert(gone.to_owned(), Value::Null);
        }
        if !changed.is_empty() {
            metadata.insert(field.to_owned(), changed.into());
        }
    };
    of_map("labels", &labels, host.labels());
    of_map("annotations", &annotations, host.annotations());

    let (wanted, is) = (json!(spec(inventory)), json!(host.spec));
    let mut spec = Map::new();
    let is_free = host.spec.consumer_ref.is_none();
    for field in ["bmc", "bootMode", "hardwareProfile", "online", "bootMACAddress"] {
        let is_its = match field {
            "online" => is_free,
            // Which one was found, its host knows.
            "bootMACAddress" => {
                let (new, old) = (&inventory.spec.boot_mac_address, &host.spec.boot_mac_address);
                new.as_ref().is_some_and(|new| !old.as_ref().is_some_and(|old| old.eq_ignore_ascii_case(new)))
            }
            _ => true,
        };
        if is_its && let Some(change) = difference(&is[field], &wanted[field]) {
            spec.insert(field.to_owned(), change);
        }
    }
    let mut patch = Map::new();
    for (part, changed) in [("metadata", metadata), ("spec", spec)] {
        if !changed.is_empty() {
            patch.insert(part.to_owned(), changed.into());
        }
    }
    (!patch.is_empty()).then(|| patch.into())
}

/// What is said of an inventory: of its host, of the login to it, and whether it is as it should be.
pub fn report(
    inventory: &BareMetalHostInventory,
    host: Option<&BareMetalHost>,
    credentials: &ConditionVerdict,
    mirrored: &ConditionVerdict,
    now: Timestamp,
) -> BareMetalHostInventoryStatus {
    let before = inventory.status.clone().unwrap_or_default();
    let generation = inventory.metadata.generation;
    let host = host.and_then(|host| host.status.clone()).unwrap_or_default();
    let fault = host.error_type.map(|_| ConditionVerdict::no("HostError", host.error_message.clone()));
    let first = [credentials, mirrored].into_iter().find(|verdict| !verdict.is_true()).cloned();
    let ready = first.or(fault).unwrap_or_else(|| ConditionVerdict::yes("Ready"));
    let mut conditions = before.conditions;
    for (type_, verdict) in [(CREDENTIALS, credentials), (MIRRORED, mirrored), (READY, &ready)] {
        conditions::set(&mut conditions, type_, verdict, generation, now);
    }
    BareMetalHostInventoryStatus {
        operational_status: host.operational_status,
        error_type: host.error_type,
        error_message: host.error_message,
        error_count: host.error_count,
        powered_on: host.powered_on,
        provisioning: InventoryProvisioning { state: host.provisioning.state, id: host.provisioning.id },
        hardware_profile: host.hardware_profile,
        observed_generation: generation,
        conditions,
    }
}

/// Why an inventory that goes is there still.
pub fn going(host: &BareMetalHost) -> ConditionVerdict {
    let status = host.status.clone().unwrap_or_default();
    let mut message =
        format!("Waiting for its BareMetalHost to be let go, which is {:?}", status.provisioning.state.as_str());
    if !status.error_message.is_empty() {
        message = format!("{message}: {}", status.error_message);
    }
    if host.annotations().contains_key(ANNOTATION_PAUSED) {
        message = format!("{message}. It is paused: take its annotation {ANNOTATION_PAUSED} off");
    }
    ConditionVerdict::no("Deleting", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory(spec: Value, metadata: Value) -> BareMetalHostInventory {
        let mut all = json!({"name": "a", "namespace": "rack", "uid": "1"});
        json_patch::merge(&mut all, &metadata);
        serde_json::from_value(json!({
            "apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "BareMetalHostInventory", "metadata": all, "spec": spec,
        }))
        .unwrap()
    }

    fn host_of(inventory: &BareMetalHostInventory, change: Value) -> BareMetalHost {
        let owner = crate::runtime::owners::owner(inventory, true);
        let mut host = json!(made(inventory, &owner));
        json_patch::merge(&mut host, &change);
        serde_json::from_value(host).unwrap()
    }

    #[test]
    fn what_an_inventory_has_its_host_has_and_what_others_write_beside_stays() {
        let bmc = json!({"address": "ipmi://192.0.2.1", "bmhCredentialsName": "c"});
        let one = inventory(
            json!({"online": true, "bmc": bmc, "bootMACAddress": "52:54:00:00:00:01", "bootMode": "legacy"}),
            json!({"labels": {"kaas.mirantis.com/baremetalhost-id": "a", "cluster.x-k8s.io/cluster-name": "no", "metal3.io/x": "no"},
                "annotations": {"baremetalhost.metal3.io/detached": "", "reboot.metal3.io": ""}}),
        );
        let plain = host_of(&one, json!({}));
        assert_eq!(json!(plain.spec.bmc), json!({"address": "ipmi://192.0.2.1", "credentialsName": "a-bmhi-bmc"}));
        assert_eq!(json!(plain.metadata.labels), json!({"kaas.mirantis.com/baremetalhost-id": "a"}));
        let keys = json!(plain.metadata.annotations).as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys, ["baremetalhost.metal3.io/detached", ANNOTATION_MIRRORED]);
        for (change, patch) in [
            (json!({}), None),
            // Not the inventory's.
            (
                json!({"spec": {"image": {"url": "http://x"}, "consumerRef": {"name": "m"}, "online": false},
                    "metadata": {"labels": {"own": "1"}, "annotations": {"reboot.metal3.io": ""}}}),
                None,
            ),
            (json!({"spec": {"bootMACAddress": "52:54:00:00:00:01"}}), None),
            (json!({"spec": {"online": false}}), Some(json!({"spec": {"online": true}}))),
            (json!({"spec": {"bootMode": "UEFI"}}), Some(json!({"spec": {"bootMode": "legacy"}}))),
            (json!({"spec": {"hardwareProfile": "x"}}), Some(json!({"spec": {"hardwareProfile": null}}))),
            (
                json!({"spec": {"bmc": {"credentialsName": "other", "disableCertificateVerification": true}}}),
                Some(
                    json!({"spec": {"bmc": {"credentialsName": "a-bmhi-bmc", "disableCertificateVerification": null}}}),
                ),
            ),
            (
                json!({"metadata": {"labels": {"kaas.mirantis.com/baremetalhost-id": "b"}}}),
                Some(json!({"metadata": {"labels": {"kaas.mirantis.com/baremetalhost-id": "a"}}})),
            ),
        ] {
            assert_eq!(changes(&one, &host_of(&one, change.clone())), patch, "{change}");
        }
    }

    #[test]
    fn what_an_inventory_has_no_more_is_taken_back() {
        let one = inventory(
            json!({"online": true}),
            json!({"labels": {"a": "1", "b": "2"}, "annotations": {"baremetalhost.metal3.io/detached": ""}}),
        );
        let host = host_of(&one, json!({"metadata": {"labels": {"own": "1"}}}));
        let less = inventory(json!({"online": true}), json!({"labels": {"b": "2"}}));
        let mut patched = json!(host);
        json_patch::merge(&mut patched, &changes(&less, &host).unwrap());
        assert_eq!(patched["metadata"]["labels"], json!({"b": "2", "own": "1"}));
        assert!(patched["metadata"]["annotations"].get("baremetalhost.metal3.io/detached").is_none());
        assert_eq!(changes(&less, &serde_json::from_value(patched).unwrap()), None);
        // Whoever writes the note himself takes nothing away that an inventory could not have put there.
        let note =
            json!({"labels": ["cluster.x-k8s.io/cluster-name"], "annotations": ["baremetalhost.metal3.io/paused"]})
                .to_string();
        let odd = host_of(
            &less,
            json!({"metadata": {"labels": {"cluster.x-k8s.io/cluster-name": "c"},
                "annotations": {"baremetalhost.metal3.io/paused": "", ANNOTATION_MIRRORED: note}}}),
        );
        let patch = changes(&less, &odd).unwrap().to_string();
        assert!(!patch.contains("null"), "{patch}");
    }

    #[test]
    fn an_inventory_says_what_its_host_says() {
        let one = inventory(json!({"online": true}), json!({}));
        let (yes, no) = (ConditionVerdict::yes("Mirrored"), ConditionVerdict::no("NameTaken", "taken"));
        let failed = host_of(
            &one,
            json!({"status": {"operationalStatus": "error", "errorType": "registration error", "errorMessage": "no answer",
                "errorCount": 2, "poweredOn": true, "provisioning": {"state": "registering", "ID": "7"}}}),
        );
        let now = Timestamp::UNIX_EPOCH;
        for (host, mirrored, reason, message) in [
            (None, &no, "NameTaken", "taken"),
            (Some(&failed), &yes, "HostError", "no answer"),
            (None, &yes, "Ready", ""),
        ] {
            let status = report(&one, host, &yes, mirrored, now);
            let ready = conditions::find(&status.conditions, READY).unwrap();
            assert_eq!((ready.reason.as_str(), ready.message.as_str()), (reason, message));
        }
        let status = json!(report(&one, Some(&failed), &yes, &yes, now));
        for (field, wanted) in [
            ("operationalStatus", json!("error")),
            ("errorType", json!("registration error")),
            ("errorCount", json!(2)),
            ("poweredOn", json!(true)),
            ("provisioning", json!({"state": "registering", "ID": "7"})),
        ] {
            assert_eq!(status[field], wanted, "{field}");
        }
    }
}
