//! Each verb for each kind of host.

use super::super::super::held::PAUSED_BY_CLUSTER_API;
use super::*;

/// A host in this state, on and without an image.
fn host(state: &str) -> Value {
    json!({
        "metadata": { "name": "h", "namespace": "ns", "annotations": {}, "labels": {} },
        "spec": { "online": true, "bmc": { "address": "ipmi://10.0.0.5", "credentialsName": "s" } },
        "status": { "operationalStatus": "OK", "poweredOn": true, "provisioning": { "state": state } },
    })
}

/// The same with a merge patch.
fn with(mut host: Value, patch: Value) -> Value {
    json_patch::merge(&mut host, &patch);
    host
}

fn annotated(state: &str, key: &str, value: &str) -> Value {
    with(host(state), annotate(key, value.into()))
}

fn image() -> Verb {
    Verb::Deploy(DeployRequest { image: json!({ "url": "http://u:p@x/i", "checksum": null }), secrets: vec![DATA[0]] })
}

fn label(set: &[(&str, &str)], remove: &[&str], overwrite: bool) -> Verb {
    let set = set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Verb::Label { set, remove: remove.iter().map(|key| (*key).to_owned()).collect(), overwrite }
}

const ON: Verb = Verb::Power { on: true };
const OFF: Verb = Verb::Power { on: false };
const REBOOT: Verb = Verb::Reboot { hard: false, force: false };
const DETACH: Verb = Verb::Detach { force: false };

/// What of a decision is compared: the change, or the beginning of a word about it.
enum Wanted {
    Patch(Value, &'static str),
    So(&'static str),
    No(&'static str),
}

use Wanted::{No, Patch, So};

fn online(online: bool) -> Value {
    json!({ "spec": { "online": online } })
}

#[test]
fn a_verb_changes_what_it_can_and_says_why_not_else() {
    let off = |state: &str| with(host(state), json!({ "spec": { "online": false }, "status": { "poweredOn": false } }));
    let installed = |state: &str| with(host(state), json!({ "spec": { "image": { "url": "http://u:p@x/i" } } }));
    let taken = json!({ "spec": { "consumerRef": { "kind": "Metal3Machine", "name": "m" } } });
    let given = json!({ "spec": { "image": { "url": "http://x/i" }, "userData": { "name": "h-user-data" },
        "networkData": { "name": "mine" } } });
    let rows = vec![
        (ON, off("available"), Patch(online(true), "is to be powered on")),
        (
            ON,
            with(off("available"), json!({ "spec": { "image": { "url": "http://u:p@x/i" } } })),
            Patch(online(true), "is to be powered on, and provisioned with the image http://x/i"),
        ),
        (ON, host("provisioned"), So("is powered on")),
        (ON, with(host("provisioned"), json!({ "status": { "poweredOn": false } })), So("is to be powered on")),
        (OFF, host("provisioned"), Patch(online(false), "is to be powered off")),
        (OFF, host("inspecting"), Patch(online(false), "is to be powered off once it is no longer inspecting")),
        (OFF, off("available"), So("is powered off")),
        (OFF, with(host("provisioned"), json!({ "spec": { "disablePowerOff": true } })), No("is never powered off")),
        (ON, with(off("unmanaged"), json!({ "spec": { "bmc": null } })), No("names no BMC")),
        (ON, annotated("unmanaged", ANNOTATION_DISCOVERED, DISCOVERED_PENDING), No("waits to be accepted")),
        (ON, annotated("provisioned", ANNOTATION_DETACHED, ""), No("is detached, so its machine is left alone")),
        (
            ON,
            annotated("provisioned", ANNOTATION_PAUSED, ""),
            No("is paused, so nothing is done with it: `slipway host unpause h`"),
        ),
        (ON, with(host("provisioned"), json!({ "metadata": { "deletionTimestamp": "t" } })), No("is being deleted")),
        (REBOOT, host("provisioned"), Patch(annotate(ANNOTATION_REBOOT, "".into()), "is to be rebooted")),
        (REBOOT, host("externally provisioned"), Patch(annotate(ANNOTATION_REBOOT, "".into()), "is to be rebooted")),
        (
            Verb::Reboot { hard: true, force: false },
            host("provisioned"),
            Patch(annotate(ANNOTATION_REBOOT, r#"{"mode":"hard"}"#.into()), "is to be rebooted"),
        ),
        (
            Verb::Reboot { hard: true, force: true },
            host("inspecting"),
            Patch(annotate(ANNOTATION_REBOOT, r#"{"force":true,"mode":"hard"}"#.into()), "is to be rebooted"),
        ),
        (REBOOT, host("inspecting"), No("is inspecting: a reboot is for an installed system")),
        (REBOOT, annotated("provisioned", ANNOTATION_REBOOT, ""), So("is to be rebooted")),
        (
            REBOOT,
            annotated("provisioned", "reboot.metal3.io/fence", ""),
            No("is held off by the annotation reboot.metal3.io/fence"),
        ),
        (REBOOT, off("provisioned"), No("is to be off")),
        (Verb::Inspect, host("available"), Patch(annotate(ANNOTATION_INSPECT, "".into()), "is to be inspected")),
        (Verb::Inspect, annotated("available", ANNOTATION_INSPECT, ""), So("is to be inspected")),
        (Verb::Inspect, host("inspecting"), So("is being inspected")),
        (
            Verb::Inspect,
            host("provisioned"),
            No("is provisioned: only an available host is inspected again; release it first"),
        ),
        (Verb::Inspect, host("externally provisioned"), No("is externally provisioned: only an available host")),
        (Verb::Inspect, installed("available"), No("is about to be provisioned")),
        (
            Verb::Inspect,
            with(host("available"), json!({ "spec": { "inspectionMode": "disabled" } })),
            No("is not inspected"),
        ),
        (DETACH, host("provisioned"), Patch(annotate(ANNOTATION_DETACHED, "".into()), "is to be detached")),
        (
            DETACH,
            host("provisioning"),
            Patch(
                annotate(ANNOTATION_DETACHED, "".into()),
                "is to be detached once it is no longer provisioning; --force does it at once",
            ),
        ),
        (
            Verb::Detach { force: true },
            host("provisioning"),
            Patch(annotate(ANNOTATION_DETACHED, r#"{"force":true}"#.into()), "is to be detached at once"),
        ),
        (DETACH, annotated("provisioning", ANNOTATION_DETACHED, ""), So("is to be detached")),
        (
            Verb::Detach { force: true },
            annotated("provisioning", ANNOTATION_DETACHED, ""),
            Patch(annotate(ANNOTATION_DETACHED, r#"{"force":true}"#.into()), "is to be detached at once"),
        ),
        (
            DETACH,
            with(
                annotated("provisioned", ANNOTATION_DETACHED, ""),
                json!({ "status": { "operationalStatus": "detached" } }),
            ),
            So("is detached"),
        ),
        (
            Verb::Attach,
            annotated("provisioned", ANNOTATION_DETACHED, ""),
            Patch(annotate(ANNOTATION_DETACHED, Value::Null), "is to be attached"),
        ),
        (Verb::Attach, host("provisioned"), So("is not detached")),
        (
            Verb::Attach,
            with(annotated("provisioned", ANNOTATION_DETACHED, ""), annotate(ANNOTATION_MOVED_TO, "b/h/u".into())),
            No("is being moved to b/h/u"),
        ),
        (
            Verb::Pause,
            host("provisioned"),
            Patch(annotate(ANNOTATION_PAUSED, "slipway host pause".into()), "is paused"),
        ),
        (Verb::Pause, annotated("provisioned", ANNOTATION_PAUSED, "x"), So("is paused")),
        (
            Verb::Unpause,
            annotated("provisioned", ANNOTATION_PAUSED, "x"),
            Patch(annotate(ANNOTATION_PAUSED, Value::Null), "is no longer paused"),
        ),
        (Verb::Unpause, host("provisioned"), So("is not paused")),
        (
            Verb::Unpause,
            annotated("provisioned", ANNOTATION_PAUSED, "slipway restore of x"),
            No("stays paused: a restore paused it"),
        ),
        (
            Verb::Unpause,
            annotated("provisioned", ANNOTATION_PAUSED, "slipway host move, copy of u"),
            No("stays paused: it is the copy"),
        ),
        (
            Verb::Unpause,
            annotated("provisioned", ANNOTATION_PAUSED, PAUSED_BY_CLUSTER_API),
            No("stays paused: Cluster API"),
        ),
        (
            label(&[("a", "1")], &["b"], false),
            host(""),
            Patch(json!({ "metadata": { "labels": { "a": "1" } } }), "is labelled"),
        ),
        (
            label(&[("a", "1")], &[], false),
            with(host(""), json!({ "metadata": { "labels": { "a": "1" } } })),
            So("has these labels"),
        ),
        (
            label(&[("a", "2")], &[], false),
            with(host(""), json!({ "metadata": { "labels": { "a": "1" } } })),
            No("has the label a=1 already"),
        ),
        (
            label(&[("a", "2")], &["b"], true),
            with(host(""), json!({ "metadata": { "labels": { "a": "1", "b": "1" } } })),
            Patch(json!({ "metadata": { "labels": { "a": "2", "b": null } } }), "is labelled"),
        ),
        (
            image(),
            host("available"),
            Patch(
                json!({ "spec": { "online": true, "image": { "url": "http://u:p@x/i", "checksum": null },
                "userData": { "name": "h-user-data", "namespace": "ns" } } }),
                "is to be provisioned with http://x/i",
            ),
        ),
        (image(), installed("provisioned"), No("has the image http://x/i already: `slipway host release h` first")),
        (
            image(),
            with(host("deprovisioning"), json!({ "status": { "provisioning": { "image": { "url": "http://x/i" } } } })),
            No("has the image http://x/i already"),
        ),
        (
            image(),
            with(host("provisioned"), json!({ "spec": { "customDeploy": { "method": "boot-disk" } } })),
            No("has the method boot-disk already"),
        ),
        (
            image(),
            with(host("externally provisioned"), json!({ "spec": { "externallyProvisioned": true } })),
            No("keeps the system that runs on it"),
        ),
        (image(), with(host("available"), taken.clone()), No("is used by Metal3Machine m")),
        (
            Verb::Release,
            with(installed("provisioned"), given),
            Patch(
                json!({ "spec": { "image": null, "customDeploy": null, "userData": null } }),
                "is to be released: ITS DISKS ARE ERASED",
            ),
        ),
        (
            Verb::Release,
            with(installed("provisioned"), json!({ "spec": { "automatedCleaningMode": "disabled" } })),
            Patch(json!({ "spec": { "image": null, "customDeploy": null } }), "is to be released: its disks are kept"),
        ),
        (
            Verb::Release,
            installed("available"),
            Patch(json!({ "spec": { "image": null, "customDeploy": null } }), "is to be released: nothing was written"),
        ),
        (Verb::Release, host("available"), So("has no image")),
        (Verb::Release, with(installed("provisioned"), taken), No("is used by Metal3Machine m")),
        (
            Verb::Release,
            with(host("externally provisioned"), json!({ "spec": { "externallyProvisioned": true } })),
            No("runs a system that Slipway did not install"),
        ),
    ];
    for (verb, host, wanted) in rows {
        let decision = decide(&verb, &host);
        let row = format!("{verb:?} for {host}: {decision:?}");
        match (decision, wanted) {
            (Change(patch, said), Patch(wanted, word)) => {
                assert_eq!(patch, wanted, "{row}");
                assert!(said.starts_with(word), "{row}");
            }
            (Already(said), So(word)) => assert_eq!(said, word, "{row}"),
            (Refused(reason), No(word)) => assert!(reason.starts_with(word), "{row}"),
            _ => panic!("{row}"),
        }
    }
}

#[test]
fn a_host_is_where_it_should_be_only_when_it_is() {
    let off = json!({ "spec": { "online": false }, "status": { "poweredOn": false } });
    let given = json!({ "status": { "provisioning": { "image": { "url": "http://u:p@x/i" } } } });
    let detached = json!({ "status": { "operationalStatus": "detached" } });
    let rows = vec![
        (ON, host("provisioned"), true),
        (ON, with(host("provisioned"), json!({ "status": { "poweredOn": false } })), false),
        (OFF, host("provisioned"), false),
        (OFF, with(host("provisioned"), off), true),
        (REBOOT, annotated("provisioned", ANNOTATION_REBOOT, ""), false),
        (REBOOT, with(host("provisioned"), json!({ "status": { "poweredOn": false } })), false),
        (REBOOT, host("provisioned"), true),
        (Verb::Inspect, annotated("available", ANNOTATION_INSPECT, ""), false),
        (Verb::Inspect, host("inspecting"), false),
        (Verb::Inspect, host("available"), true),
        (DETACH, annotated("provisioned", ANNOTATION_DETACHED, ""), false),
        (DETACH, with(host("provisioned"), detached.clone()), true),
        (Verb::Attach, with(host("provisioned"), detached), false),
        (Verb::Attach, host("provisioned"), true),
        (image(), host("available"), false),
        (image(), host("provisioned"), false),
        (image(), with(host("provisioned"), given.clone()), true),
        (Verb::Release, with(host("deprovisioning"), given), false),
        (Verb::Release, host("available"), true),
    ];
    for (verb, host, wanted) in rows {
        assert_eq!(reached(&verb, &host), wanted, "{verb:?} for {host}");
    }
}
