//! What a Machine's `status.providerStatus` says of its node, as it is published. Pure.
//!
//! What `cluster::machine_api` notes of the host stands in the same place, and stays.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::machine_spec::MachineWish;
use crate::api::lcm::{ANNOTATION_GRACEFUL_REBOOT, HostInfo, LCMCluster, LCMMachine, LCMMachineStatus, NodeState};
use crate::api::metal3::{BareMetalHost, ProvisioningState};
use crate::release::words::public;
use crate::runtime::conditions;

/// State of a machine whose host does not run what it is to run yet.
const PROVISION: &str = "Provision";

/// What was found out about a Machine's node.
#[derive(Debug, Default)]
pub struct FoundMachine<'a> {
    /// What the nodes of its cluster are told.
    pub cluster: Option<&'a LCMCluster>,
    /// What its agent is told, and what it tells.
    pub lcm: Option<&'a LCMMachine>,
    /// Its host.
    pub host: Option<&'a BareMetalHost>,
    /// What the Machine says; none while that makes no sense.
    pub wish: Option<&'a MachineWish>,
    /// Why nothing is made of it.
    pub fault: Option<&'a str>,
}

/// The status, of what was noted before.
pub fn report(before: Option<&Value>, found: &FoundMachine<'_>, now: Timestamp) -> Value {
    let mut all = before.and_then(Value::as_object).cloned().unwrap_or_default();
    let status = found.lcm.and_then(|lcm| lcm.status.as_ref());
    let instance = instance(found.host);
    let counted = [kubelet(found, status), lcm(found, status), instance.1];
    // A machine that waits for a reboot, or is held, does its work.
    let ready = counted.iter().all(|condition| condition["ready"] == true);
    let others = [maintenance(found, status), graceful_reboot(found, status), reboot(found, status)];
    let old = before.map_or(&Value::Null, |before| &before["conditions"]);
    let conditions: Vec<Value> = counted.into_iter().chain(others).map(|one| timed(old, one, now)).collect();
    let is_provisioned = instance.0["ready"] == true;
    let state = status.and_then(|status| status.state).filter(|_| is_provisioned);
    let ours = json!({
        "status": state.map_or(json!(PROVISION), |state| json!(state)),
        "ready": ready,
        "conditions": conditions,
        "providerInstanceState": instance.0,
        "maintenance": status.is_some_and(|status| status.maintenance),
        "delete": found.wish.is_some_and(|wish| wish.delete),
    });
    all.extend(ours.as_object().cloned().unwrap_or_default());
    let mut set = |field: &str, value: Option<Value>| match value {
        Some(value) => _ = all.insert(field.to_owned(), value),
        None => _ = all.remove(field),
    };
    set("hardware", found.host.and_then(hardware));
    set("upgradeIndex", found.wish.and_then(|wish| wish.upgrade_index).map(Value::from));
    let info = status.and_then(|status| status.host_info.as_ref());
    let asked = found.lcm.is_some_and(|lcm| lcm.spec.reboot_required);
    let reason = |info: &HostInfo| match (asked, info.reboot_reason.as_str()) {
        (true, "") => "the release requires it".to_owned(),
        (_, reason) => reason.to_owned(),
    };
    set("reboot", info.map(|info| json!({"required": asked || info.reboot_required, "reason": reason(info)})));
    let phase = status.map(|status| status.prepare_deletion_phase.as_str()).filter(|phase| !phase.is_empty());
    set("prepareDeletionPhase", phase.map(Value::from));
    let address = status.and_then(|status| status.addresses.iter().find(|address| address.type_ == "InternalIP"));
    set("privateIp", address.map(|address| json!(address.address)));
    all.into()
}

fn condition(type_: &str, ready: bool, message: impl Into<String>) -> Value {
    because(type_, ready, if ready { "Ready" } else { "NotReady" }, message)
}

fn because(type_: &str, ready: bool, reason: &str, message: impl Into<String>) -> Value {
    // Whoever may view a Machine may not read what scripts print.
    json!({"type": type_, "ready": ready, "reason": reason, "message": public(&message.into())})
}

/// A condition with the time since when it is so.
fn timed(old: &Value, mut new: Value, now: Timestamp) -> Value {
    let mut all = old.as_array().into_iter().flatten();
    let before = all.find(|one| one["type"] == new["type"] && one["ready"] == new["ready"]);
    let since = before.map(|one| one["lastTransitionTime"].clone()).filter(Value::is_string);
    new["lastTransitionTime"] = since.unwrap_or_else(|| json!(Time(conditions::whole(now))));
    new
}

/// Whether it is held where it is to be, and not where it is not.
fn maintenance(found: &FoundMachine<'_>, status: Option<&LCMMachineStatus>) -> Value {
    let type_ = "Maintenance";
    let is_asked = found.lcm.is_some_and(|lcm| lcm.spec.maintenance)
        || found.cluster.is_some_and(|cluster| cluster.spec.maintenance);
    match (is_asked, status.is_some_and(|status| status.maintenance)) {
        (false, false) => because(type_, true, "NotInMaintenance", ""),
        (true, true) => because(type_, true, "InMaintenance", "Nothing changes on it but keys"),
        (true, false) => because(type_, false, "Entering", "Waiting for its steps that are under way"),
        (false, true) => because(type_, false, "Leaving", "Waiting for its cluster to be looked at"),
    }
}

/// Whether it has rebooted as it was asked to, drained before.
fn graceful_reboot(found: &FoundMachine<'_>, status: Option<&LCMMachineStatus>) -> Value {
    let type_ = "GracefulReboot";
    if !found.lcm.is_some_and(|lcm| lcm.annotations().contains_key(ANNOTATION_GRACEFUL_REBOOT)) {
        return because(type_, true, "NotRequested", "");
    }
    let reboot = status.and_then(|status| status.reboot.clone()).unwrap_or_default();
    let waits = status.and_then(|status| conditions::find(&status.conditions, "Ready"));
    let waits = waits.map(|ready| ready.message.as_str()).filter(|message| !message.is_empty());
    match reboot.requested_at {
        _ if !reboot.error_message.is_empty() => because(type_, false, "Failed", reboot.error_message),
        Some(_) if reboot.completed => because(type_, false, "Completing", waits.unwrap_or("It has rebooted")),
        Some(_) => because(type_, false, "InProgress", waits.unwrap_or("It reboots")),
        None => because(type_, false, "Waiting", waits.unwrap_or("Waiting for its turn")),
    }
}

/// Whether it needs no reboot.
fn reboot(found: &FoundMachine<'_>, status: Option<&LCMMachineStatus>) -> Value {
    let type_ = "Reboot";
    let info = status.and_then(|status| status.host_info.as_ref()).filter(|info| info.reboot_required);
    match (found.lcm.is_some_and(|lcm| lcm.spec.reboot_required), info) {
        (true, _) => because(type_, false, "RequiredByRelease", "It reboots for its release when its turn comes"),
        (false, Some(info)) => {
            let why =
                if info.reboot_reason.is_empty() { "its system asks for it" } else { info.reboot_reason.as_str() };
            because(type_, false, "RequiredBySystem", format!("{why}: make a GracefulRebootRequest"))
        }
        (false, None) => because(type_, true, "NotRequired", ""),
    }
}

/// Whether the node is one of the cluster, and takes pods.
fn kubelet(found: &FoundMachine<'_>, status: Option<&LCMMachineStatus>) -> Value {
    let type_ = "Kubelet";
    let Some(status) = status.filter(|_| found.lcm.is_some()) else {
        return condition(type_, false, "Not deployed yet");
    };
    if !status.kubernetes_cordon_drain_error.is_empty() {
        return condition(type_, false, status.kubernetes_cordon_drain_error.clone());
    }
    if !status.kubernetes_cordon_drain.is_empty() {
        return condition(type_, false, format!("The node is {}", status.kubernetes_cordon_drain));
    }
    match conditions::find(&status.conditions, "Deployed") {
        Some(deployed) if deployed.status == "True" => condition(type_, true, ""),
        Some(deployed) => condition(type_, false, deployed.message.clone()),
        None => condition(type_, false, "Not deployed yet"),
    }
}

fn lcm(found: &FoundMachine<'_>, status: Option<&LCMMachineStatus>) -> Value {
    let type_ = "LCM";
    if let Some(fault) = found.fault {
        return condition(type_, false, fault);
    }
    match status.and_then(|status| status.state) {
        None => condition(type_, false, "The agent was not heard yet"),
        Some(NodeState::Ready) => condition(type_, true, ""),
        Some(state) => {
            let ready = status.and_then(|status| conditions::find(&status.conditions, "Ready"));
            let message = ready.map(|ready| ready.message.clone()).filter(|message| !message.is_empty());
            condition(type_, false, message.unwrap_or_else(|| format!("{state:?}")))
        }
    }
}

/// The host as it is, and the condition of that.
fn instance(host: Option<&BareMetalHost>) -> (Value, Value) {
    let type_ = "ProviderInstance";
    let Some(host) = host else {
        let state = json!({"id": "", "state": "", "ready": false});
        return (state, condition(type_, false, "No host yet"));
    };
    let status = host.status.clone().unwrap_or_default();
    let state = status.provisioning.state;
    let ready = matches!(state, ProvisioningState::Provisioned | ProvisioningState::ExternallyProvisioned);
    let name = host.metadata.name.clone().unwrap_or_default();
    let id = format!("{}/{name}", host.metadata.namespace.clone().unwrap_or_default());
    let message = if ready { String::new() } else { format!("BareMetalHost {name} is {}", state.as_str()) };
    (json!({"id": id, "state": state.as_str(), "ready": ready}), condition(type_, ready, message))
}

/// What the host has in it, in the published words.
fn hardware(host: &BareMetalHost) -> Option<Value> {
    /// Disks that are told.
    const DISKS: usize = 50;
    let hardware = host.status.as_ref()?.hardware.as_ref()?;
    let all = json!(hardware);
    let gib = |bytes: &Value| bytes.as_f64().map(|bytes| (bytes / f64::from(1u32 << 30)).round());
    let storage: Vec<Value> = all["storage"]
        .as_array()
        .into_iter()
        .flatten()
        .take(DISKS)
        .map(|disk| {
            let mut told = Map::new();
            told.insert("name".into(), disk["name"].clone());
            told.extend(gib(&disk["sizeBytes"]).map(|size| ("size".to_owned(), json!(size))));
            told.extend(disk.get("type").map(|type_| ("type".to_owned(), type_.clone())));
            told.into()
        })
        .collect();
    let ram = all["ramMebibytes"].as_f64().map(|mebibytes| (mebibytes / 1024.0).round());
    Some(json!({"cpu": all["cpu"]["count"], "ram": ram, "storage": storage}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(status: Value) -> LCMMachine {
        serde_json::from_value(json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMMachine",
            "metadata": {"name": "m"}, "spec": {}, "status": status}))
        .unwrap()
    }

    fn host(state: &str) -> BareMetalHost {
        serde_json::from_value(json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": "h", "namespace": "rack"}, "spec": {"online": true},
            "status": {"provisioning": {"state": state}, "hardware": {"cpu": {"count": 8}, "ramMebibytes": 16384,
                "storage": [{"name": "/dev/sda", "sizeBytes": 107374182400_i64, "type": "SSD"}]}}}))
        .unwrap()
    }

    #[test]
    fn a_machine_says_what_its_host_and_its_agent_say() {
        let deployed = json!({"type": "Deployed", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let whole = machine(
            json!({"state": "Ready", "conditions": [deployed], "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
            "hostInfo": {"rebootRequired": true, "rebootReason": "kernel"}}),
        );
        let early = machine(json!({"state": "Prepare"}));
        let drained =
            machine(json!({"state": "Ready", "conditions": [deployed], "kubernetesCordonDrain": "cordondraining"}));
        for (lcm, state, wanted) in [
            (None, None, ("Provision", false)),
            (Some(&whole), Some("provisioning"), ("Provision", false)),
            (Some(&early), Some("provisioned"), ("Prepare", false)),
            (Some(&whole), Some("provisioned"), ("Ready", true)),
            (Some(&drained), Some("provisioned"), ("Ready", false)),
        ] {
            let host = state.map(host);
            let found = FoundMachine { lcm, host: host.as_ref(), ..FoundMachine::default() };
            let status = report(None, &found, Timestamp::UNIX_EPOCH);
            assert_eq!((status["status"].as_str().unwrap(), status["ready"] == true), wanted, "{status}");
        }
        let host = host("provisioned");
        let before =
            json!({"userData": "u", "provisioned": true, "privateIp": "10.0.0.9", "prepareDeletionPhase": "started"});
        let found = FoundMachine { lcm: Some(&whole), host: Some(&host), ..FoundMachine::default() };
        let status = report(Some(&before), &found, Timestamp::UNIX_EPOCH);
        assert_eq!((&status["userData"], &status["provisioned"]), (&json!("u"), &json!(true)), "the host's part stays");
        assert_eq!((&status["privateIp"], status.get("prepareDeletionPhase")), (&json!("10.0.0.7"), None));
        assert_eq!(status["reboot"], json!({"required": true, "reason": "kernel"}));
        assert_eq!(status["providerInstanceState"], json!({"id": "rack/h", "state": "provisioned", "ready": true}));
        let hardware = json!({"cpu": 8, "ram": 16.0, "storage": [{"name": "/dev/sda", "size": 100.0, "type": "SSD"}]});
        assert_eq!(status["hardware"], hardware);
        let found = FoundMachine { fault: Some("the name is taken"), ..FoundMachine::default() };
        let fault = report(None, &found, Timestamp::UNIX_EPOCH);
        assert_eq!(fault["conditions"][1]["message"], "the name is taken");
    }

    #[test]
    fn what_a_script_printed_is_not_in_a_machine() {
        let failed = "step kubeadm failed with exit code 1 (attempt 2): token s3cret was refused";
        let of = |type_: &str| {
            json!({"type": type_, "status": "False", "reason": "Failed", "message": failed,
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let lcm = machine(json!({"state": "Deploy", "conditions": [of("Deployed"), of("Ready")]}));
        let status = report(None, &FoundMachine { lcm: Some(&lcm), ..FoundMachine::default() }, Timestamp::UNIX_EPOCH);
        for at in [0, 1] {
            let message = status["conditions"][at]["message"].as_str().unwrap();
            assert!(message.starts_with("step kubeadm failed with exit code 1 (attempt 2)"), "{message}");
        }
        assert!(!status.to_string().contains("s3cret"), "{status}");
    }

    #[test]
    fn a_machine_that_is_held_or_reboots_says_since_when_and_why() {
        let told = |spec: Value, annotations: Value, status: Value| -> LCMMachine {
            serde_json::from_value(json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMMachine",
                "metadata": {"name": "m", "annotations": annotations}, "spec": spec, "status": status}))
            .unwrap()
        };
        let (none, graceful) = (json!({}), json!({ANNOTATION_GRACEFUL_REBOOT: "true"}));
        let asked = |change: Value| {
            let mut reboot = json!({"requestedAt": "2026-01-01T00:00:00Z"});
            json_patch::merge(&mut reboot, &change);
            json!({ "reboot": reboot })
        };
        let needs = json!({"hostInfo": {"rebootRequired": true, "rebootReason": "linux-image-6.8"}});
        for (lcm, wanted) in [
            (told(none.clone(), none.clone(), none.clone()), ["NotInMaintenance", "NotRequested", "NotRequired"]),
            (
                told(json!({"maintenance": true}), none.clone(), none.clone()),
                ["Entering", "NotRequested", "NotRequired"],
            ),
            (
                told(json!({"maintenance": true}), none.clone(), json!({"maintenance": true})),
                ["InMaintenance", "NotRequested", "NotRequired"],
            ),
            (
                told(none.clone(), none.clone(), json!({"maintenance": true})),
                ["Leaving", "NotRequested", "NotRequired"],
            ),
            (told(none.clone(), graceful.clone(), none.clone()), ["NotInMaintenance", "Waiting", "NotRequired"]),
            (
                told(none.clone(), graceful.clone(), asked(none.clone())),
                ["NotInMaintenance", "InProgress", "NotRequired"],
            ),
            (
                told(none.clone(), graceful.clone(), asked(json!({"errorMessage": "it does not come up"}))),
                ["NotInMaintenance", "Failed", "NotRequired"],
            ),
            (
                told(json!({"rebootRequired": true}), none.clone(), none.clone()),
                ["NotInMaintenance", "NotRequested", "RequiredByRelease"],
            ),
            (told(none.clone(), none.clone(), needs), ["NotInMaintenance", "NotRequested", "RequiredBySystem"]),
        ] {
            let found = FoundMachine { lcm: Some(&lcm), ..FoundMachine::default() };
            let status = report(None, &found, Timestamp::UNIX_EPOCH);
            let said = [3, 4, 5].map(|at| status["conditions"][at]["reason"].as_str().unwrap());
            assert_eq!(said, wanted, "{status}");
            let later = report(Some(&status), &found, Timestamp::from_second(60).unwrap());
            assert_eq!(later, status, "what says the same is as old as it was");
            let other = report(Some(&status), &FoundMachine::default(), Timestamp::from_second(60).unwrap());
            let turned = status["conditions"][3]["ready"] != other["conditions"][3]["ready"];
            let time = if turned { "1970-01-01T00:01:00Z" } else { "1970-01-01T00:00:00Z" };
            assert_eq!(other["conditions"][3]["lastTransitionTime"], time);
        }
    }
}
