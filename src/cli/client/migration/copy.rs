//! Planning a move: which hosts can be moved, and what arrives at the other end.
//!
//! At every moment at most one server acts on a machine: the host here is detached before it is copied, the copy is
//! paused until the host here is gone.

use serde_json::{Map, Value, json};

use crate::api::metal3::{ANNOTATION_DETACHED, ANNOTATION_PAUSED, ANNOTATION_STATUS};
use crate::api::slipway::ANNOTATION_MOVED_TO;

/// Beginning of what [`ANNOTATION_PAUSED`] holds on a copy; the UID of the original follows.
const COPY_OF: &str = "slipway host move, copy of ";
/// What [`ANNOTATION_DETACHED`] holds on a host that is being moved. The key is not looked at.
const LEAVING: &str = r#"{"moving":true}"#;
/// The same for a host whose state does not allow to detach it: nothing was done to its machine yet.
const LEAVING_BY_FORCE: &str = r#"{"force":true,"moving":true}"#;

/// States in which nothing is on the machine that would be missed.
const BEFORE_USE: [&str; 5] = ["", "unmanaged", "registering", "inspecting", "preparing"];

/// What is left to do for a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyTask {
    /// All of it, detached with this annotation first.
    Detach(&'static str),
    /// All of it. The host is left alone as it is.
    Copy,
    /// The host here is about to be gone, and its copy complete.
    AwaitGone,
    /// The host here is gone, its copy still paused.
    Release,
}

/// What is to be done, from the host here and the one of that name there.
///
/// # Errors
///
/// Why the host cannot be moved. `Ok(None)`: it is on neither side.
pub(super) fn task(here: Option<&Value>, there: Option<&Value>) -> Result<Option<CopyTask>, String> {
    match (here, there) {
        (None, None) => Ok(None),
        (None, Some(copy)) if original(copy).is_some() => Ok(Some(CopyTask::Release)),
        (None, Some(_)) => Err("is not here, and there is a host of that name at the destination".into()),
        (Some(host), Some(copy)) if uid(host) == uid(copy) => Err("is to go where it is".into()),
        (Some(host), Some(copy)) if original(copy) != Some(uid(host)) => {
            Err("cannot be moved: there is another host of that name at the destination".into())
        }
        (Some(host), Some(_)) if deleted(host) => Ok(Some(CopyTask::AwaitGone)),
        (Some(host), _) => leave(host).map(Some),
    }
}

fn leave(host: &Value) -> Result<CopyTask, String> {
    if deleted(host) {
        return Err("is being deleted".into());
    }
    let mut owners = host["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    if owners.any(|owner| owner["controller"] == true && owner["kind"] == "BareMetalHostInventory") {
        // Once the host here is gone, it would be made anew, and two servers would act on one machine.
        return Err("is made of its BareMetalHostInventory, which would make it anew: take its metadata.ownerReferences off and \
                    delete the inventory, then move it"
            .into());
    }
    if annotation(host, ANNOTATION_PAUSED).is_some() {
        return Err(format!("is paused: remove the annotation {ANNOTATION_PAUSED}. Moving detaches it by itself"));
    }
    if is_detached(host) {
        return Ok(CopyTask::Copy);
    }
    match state(host) {
        "unmanaged" => Ok(CopyTask::Copy),
        "" | "registering" => Ok(CopyTask::Detach(LEAVING_BY_FORCE)),
        "available" | "ready" | "provisioned" | "externally provisioned" => Ok(CopyTask::Detach(LEAVING)),
        other => Err(format!("is {other}: move it when that is over")),
    }
}

/// Whether the host is left alone by its server, so that it can be copied and deleted.
pub(super) fn is_detached(host: &Value) -> bool {
    host["status"]["operationalStatus"] == "detached" && annotation(host, ANNOTATION_DETACHED).is_some()
}

/// Whether a host that was copied may be deleted here without touching its machine.
pub(super) fn may_go(host: &Value) -> bool {
    is_detached(host) || state(host) == "unmanaged"
}

/// UID of the host that this one is a copy of, when it still waits for that one to go.
pub(super) fn original(host: &Value) -> Option<&str> {
    annotation(host, ANNOTATION_PAUSED)?.strip_prefix(COPY_OF)
}

/// The host as it arrives: paused, its status in the annotation from which it is restored. The hardware stays out of it
/// where its HardwareData comes along.
pub(super) fn host(host: &Value, namespace: &str, with_hardware_data: bool) -> Value {
    let mut copy = plain(host, namespace);
    let mut annotations = copy["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    annotations.remove(ANNOTATION_STATUS);
    annotations.remove(ANNOTATION_MOVED_TO);
    let ours = annotation(host, ANNOTATION_DETACHED).is_some_and(|value| [LEAVING, LEAVING_BY_FORCE].contains(&value));
    if ours {
        annotations.remove(ANNOTATION_DETACHED);
    }
    if let Some(mut status) = host["status"].as_object().cloned().filter(|_| !state(host).is_empty()) {
        // These are found out anew.
        for field in ["progress", "addresses", "conditions"] {
            status.remove(field);
        }
        if with_hardware_data {
            status.remove("hardware");
        }
        if ours {
            let failed = status.get("errorType").and_then(Value::as_str).is_some_and(|kind| !kind.is_empty());
            status.insert("operationalStatus".into(), if failed { "error" } else { "OK" }.into());
        }
        annotations.insert(ANNOTATION_STATUS.into(), Value::Object(status).to_string().into());
    }
    annotations.insert(ANNOTATION_PAUSED.into(), format!("{COPY_OF}{}", uid(host)).into());
    copy["metadata"]["annotations"] = Value::Object(annotations);
    copy
}

/// An object of a host, as it arrives: owned by the copy.
pub(super) fn belonging(object: &Value, namespace: &str, owner: &Value) -> Value {
    let mut copy = plain(object, namespace);
    let controller = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let mut reference = json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
    });
    if controller.into_iter().any(|owner| owner["controller"] == true) {
        reference["controller"] = true.into();
    }
    copy["metadata"]["ownerReferences"] = json!([reference]);
    copy
}

/// An object without what only its server knows, and without status and owners.
pub(super) fn plain(object: &Value, namespace: &str) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".into(), object["metadata"]["name"].clone());
    metadata.insert("namespace".into(), namespace.into());
    for field in ["labels", "annotations"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata.insert(field.into(), value.clone());
        }
    }
    let mut copy = object.clone();
    if let Some(fields) = copy.as_object_mut() {
        fields.remove("status");
        fields.insert("metadata".into(), Value::Object(metadata));
    }
    copy
}

/// Names of the Secrets that a host refers to, each once.
pub(super) fn secrets(host: &Value) -> Vec<&str> {
    let paths = [
        "/spec/bmc/credentialsName",
        "/spec/userData/name",
        "/spec/metaData/name",
        "/spec/networkData/name",
        "/spec/preprovisioningNetworkDataName",
    ];
    let named = paths.iter().filter_map(|path| host.pointer(path).and_then(Value::as_str));
    let mut names: Vec<&str> = named.filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Why an object must not be made a new host: its file says that there is something on the machine. A new host has no
/// status, whatever its file says.
pub(in super::super) fn would_be_wiped(object: &Value) -> Option<String> {
    let is_host = object["kind"] == "BareMetalHost"
        && object["apiVersion"].as_str().is_some_and(|version| version.starts_with("metal3.io/"));
    let restored = annotation(object, ANNOTATION_STATUS).is_some_and(|text| !text.is_empty());
    let kept = object["spec"]["externallyProvisioned"] == true;
    let state = state(object);
    (is_host && !restored && !kept && !BEFORE_USE.contains(&state)).then(|| {
        format!(
            "its file says that it is {state}, and a new host starts without a status: its disks would be erased. \
             `slipway host move` takes a host with its status to another server; to begin anew take `status` out of the file"
        )
    })
}

pub(super) fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

fn deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn state(host: &Value) -> &str {
    host["status"]["provisioning"]["state"].as_str().unwrap_or_default()
}

fn annotation<'o>(object: &'o Value, key: &str) -> Option<&'o str> {
    object["metadata"]["annotations"].get(key)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::admission::annotations;

    fn host_in(state: &str) -> Value {
        json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {
                "name": "h", "namespace": "rack", "uid": "u-1", "resourceVersion": "7", "generation": 3,
                "labels": {"row": "a"}, "annotations": {"example.org/x": "y"}, "finalizers": ["baremetalhost.metal3.io"],
                "managedFields": [{}], "ownerReferences": [{"uid": "o"}],
            },
            "spec": {"online": true, "bmc": {"address": "ipmi://10.0.0.5", "credentialsName": "bmc"},
                "userData": {"name": "u"}, "networkData": {"name": "u"}, "metaData": {"name": ""}},
            "status": {
                "provisioning": {"state": state, "ID": "u-1"}, "operationalStatus": "OK", "errorMessage": "", "errorCount": 0,
                "poweredOn": true, "hardware": {"hostname": "h"}, "progress": {"phase": "x"}, "addresses": [{"address": "10.0.0.5"}],
                "conditions": [{"type": "Ready"}], "lastUpdated": "2026-01-01T00:00:00Z",
                "goodCredentials": {}, "triedCredentials": {}, "operationHistory": {},
            },
        })
    }

    fn annotated(mut host: Value, key: &str, value: &str) -> Value {
        host["metadata"]["annotations"][key] = value.into();
        host
    }

    fn detached(host: Value, value: &str) -> Value {
        let mut host = annotated(host, ANNOTATION_DETACHED, value);
        host["status"]["operationalStatus"] = "detached".into();
        host
    }

    fn deleting(mut host: Value) -> Value {
        host["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        host
    }

    /// As the server there shows a copy.
    fn stored(mut copy: Value) -> Value {
        copy["metadata"]["uid"] = "u-2".into();
        copy
    }

    #[test]
    fn hosts_at_rest_are_moved_and_half_done_moves_are_finished() {
        let rest = |state: &str| Some(host_in(state));
        let copy = || Some(stored(host(&host_in("provisioned"), "rack", true)));
        let mut foreign = stored(host_in("provisioned"));
        foreign["metadata"]["annotations"] = json!({ ANNOTATION_PAUSED: "by me" });
        let mut described = host_in("available");
        described["metadata"]["ownerReferences"] =
            json!([{"kind": "BareMetalHostInventory", "controller": true, "uid": "o"}]);
        let of_other = annotated(stored(host_in("available")), ANNOTATION_PAUSED, &format!("{COPY_OF}u-9"));
        for (here, there, wanted) in [
            (None, None, Ok(None)),
            (rest("available"), None, Ok(Some(CopyTask::Detach(LEAVING)))),
            (rest("provisioned"), None, Ok(Some(CopyTask::Detach(LEAVING)))),
            (rest("externally provisioned"), None, Ok(Some(CopyTask::Detach(LEAVING)))),
            (rest("registering"), None, Ok(Some(CopyTask::Detach(LEAVING_BY_FORCE)))),
            (rest(""), None, Ok(Some(CopyTask::Detach(LEAVING_BY_FORCE)))),
            (rest("unmanaged"), None, Ok(Some(CopyTask::Copy))),
            (Some(detached(host_in("provisioned"), "")), None, Ok(Some(CopyTask::Copy))),
            (rest("inspecting"), None, Err("is inspecting: move it when that is over")),
            (rest("preparing"), None, Err("is preparing")),
            (rest("provisioning"), None, Err("is provisioning")),
            (rest("deprovisioning"), None, Err("is deprovisioning")),
            (Some(annotated(host_in("provisioned"), ANNOTATION_PAUSED, "")), None, Err("is paused")),
            (Some(deleting(host_in("provisioned"))), None, Err("is being deleted")),
            (Some(described), None, Err("is made of its BareMetalHostInventory")),
            (rest("provisioned"), rest("provisioned"), Err("is to go where it is")),
            (rest("provisioned"), Some(foreign.clone()), Err("another host of that name")),
            (rest("provisioned"), Some(of_other), Err("another host of that name")),
            (None, Some(foreign), Err("is not here")),
            // What an earlier move left.
            (Some(detached(host_in("provisioned"), LEAVING)), copy(), Ok(Some(CopyTask::Copy))),
            (rest("provisioned"), copy(), Ok(Some(CopyTask::Detach(LEAVING)))),
            (Some(deleting(detached(host_in("provisioned"), LEAVING))), copy(), Ok(Some(CopyTask::AwaitGone))),
            (None, copy(), Ok(Some(CopyTask::Release))),
        ] {
            let shown = format!("{here:?} {there:?}");
            match (task(here.as_ref(), there.as_ref()), wanted) {
                (Err(said), Err(wanted)) => assert!(said.contains(wanted), "{said}: {shown}"),
                (found, wanted) => assert_eq!(found, wanted.map_err(str::to_owned), "{shown}"),
            }
        }
    }

    #[test]
    fn the_status_goes_along_and_what_belongs_to_the_server_stays() {
        let status = |copy: &Value| -> Value {
            let text = annotation(copy, ANNOTATION_STATUS).expect("there");
            annotations::status(text).expect("admitted");
            serde_json::from_str(text).expect("json")
        };
        // An earlier try was broken off after it was copied.
        let leaving = annotated(detached(host_in("provisioned"), LEAVING), ANNOTATION_MOVED_TO, "other/h/u-2");
        let copy = host(&leaving, "other", true);
        assert_eq!(copy["spec"], leaving["spec"]);
        assert_eq!(copy.get("status"), None);
        let mut metadata = copy["metadata"].clone();
        metadata["annotations"].as_object_mut().expect("map").remove(ANNOTATION_STATUS);
        assert_eq!(
            metadata,
            json!({"name": "h", "namespace": "other", "labels": {"row": "a"},
                "annotations": {"example.org/x": "y", ANNOTATION_PAUSED: "slipway host move, copy of u-1"}})
        );
        let restored = status(&copy);
        assert_eq!(
            (&restored["operationalStatus"], &restored["provisioning"]["state"]),
            (&json!("OK"), &json!("provisioned"))
        );
        for gone in ["progress", "addresses", "conditions", "hardware"] {
            assert_eq!(restored.get(gone), None, "{gone}");
        }
        assert_eq!(status(&host(&leaving, "rack", false))["hardware"]["hostname"], "h");

        // Who detached it by hand finds it detached.
        let by_hand = host(&detached(host_in("provisioned"), ""), "rack", true);
        assert_eq!(annotation(&by_hand, ANNOTATION_DETACHED), Some(""));
        assert_eq!(status(&by_hand)["operationalStatus"], "detached");
        let mut broken = detached(host_in("registering"), LEAVING_BY_FORCE);
        broken["status"]["errorType"] = "registration error".into();
        assert_eq!(status(&host(&broken, "rack", true))["operationalStatus"], "error");
        // A host that nobody looked at yet has nothing to take along.
        assert_eq!(annotation(&host(&host_in(""), "rack", true), ANNOTATION_STATUS), None);
    }

    #[test]
    fn what_belongs_to_a_host_belongs_to_its_copy() {
        let owner = stored(host(&host_in("available"), "other", true));
        let data = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "HardwareData", "spec": {"hardware": {}}, "status": {},
            "metadata": {"name": "h", "namespace": "rack", "uid": "d", "finalizers": ["f"],
                "ownerReferences": [{"uid": "u-1", "controller": true}]}});
        let copy = belonging(&data, "other", &owner);
        let reference = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "name": "h", "uid": "u-2", "controller": true});
        assert_eq!(copy["metadata"], json!({"name": "h", "namespace": "other", "ownerReferences": [reference]}));
        assert_eq!((copy.get("status"), &copy["spec"]), (None, &data["spec"]));
        assert_eq!(secrets(&host_in("available")), ["bmc", "u"]);
        assert!(secrets(&json!({"spec": {}})).is_empty());
    }

    #[test]
    fn only_a_host_that_is_left_alone_may_go() {
        assert!(!may_go(&host_in("provisioned")));
        assert!(!may_go(&annotated(host_in("provisioned"), ANNOTATION_DETACHED, LEAVING)), "not detached yet");
        let mut back = detached(host_in("provisioned"), LEAVING);
        back["metadata"]["annotations"].as_object_mut().expect("map").remove(ANNOTATION_DETACHED);
        assert!(!may_go(&back), "about to come back");
        assert!(may_go(&detached(host_in("provisioned"), LEAVING)));
        assert!(may_go(&host_in("unmanaged")));
    }

    #[test]
    fn a_file_with_a_status_makes_no_new_host() {
        let external = |mut host: Value| {
            host["spec"]["externallyProvisioned"] = true.into();
            host
        };
        for (object, refused) in [
            (host_in("provisioned"), true),
            (host_in("available"), true),
            (host_in("deprovisioning"), true),
            (host_in("registering"), false),
            (host_in("preparing"), false),
            (host_in("unmanaged"), false),
            (host_in(""), false),
            (external(host_in("externally provisioned")), false),
            (annotated(host_in("provisioned"), ANNOTATION_STATUS, "{}"), false),
            (annotated(host_in("provisioned"), ANNOTATION_STATUS, ""), true),
            (json!({"apiVersion": "v1", "kind": "Pod", "status": {"provisioning": {"state": "x"}}}), false),
        ] {
            assert_eq!(would_be_wiped(&object).is_some(), refused, "{object}");
        }
    }
}
