//! Kinds in two versions: stored in one, served in both, and nothing is lost on the way. Pure.
//!
//! A kind brings two functions, one from the stored shape to the served one and one back. Neither need be perfect: what
//! the other version cannot say is found by going there and back, and is kept in an annotation of the object that
//! lacks it, as Cluster API does (`cluster.x-k8s.io/conversion-data`). It is put back when the object returns, unless
//! the client changed what it belongs to.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::ServedVersion;

/// Annotation of a served object: what of the stored one its version cannot say.
const OF_STORED: &str = "slipway.dev/conversion-data";
/// Annotation of a stored object: what of the served version it cannot say. The version follows.
const OF_SERVED: &str = "slipway.dev/conversion-data-";

/// One place that did not survive the way there and back.
#[derive(Debug, Deserialize, Serialize)]
struct Lost {
    /// Names of fields, from the root.
    path: Vec<String>,
    /// What came back; nothing when the field was gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    back: Option<Value>,
    /// What there was; nothing when the field was made up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    was: Option<Value>,
}

/// The served form of a stored object.
pub(in crate::apiserver) fn from_stored(stored: &Value, version: &ServedVersion) -> Value {
    let mut stored = stored.clone();
    let kept = take(&mut stored, &format!("{OF_SERVED}{}", version.version));
    let mut served = (version.from_storage)(&stored);
    restore(&mut served, &kept);
    let lost = lost(&stored, &(version.to_storage)(&served));
    put(&mut served, OF_STORED, &lost);
    served
}

/// The stored form of a served object.
pub(in crate::apiserver) fn to_stored(mut served: Value, version: &ServedVersion) -> Value {
    let kept = take(&mut served, OF_STORED);
    let mut stored = (version.to_storage)(&served);
    restore(&mut stored, &kept);
    let lost = lost(&served, &(version.from_storage)(&stored));
    put(&mut stored, &format!("{OF_SERVED}{}", version.version), &lost);
    stored
}

/// Takes an annotation away and reads it. One that cannot be read (a client wrote it) keeps nothing.
fn take(object: &mut Value, annotation: &str) -> Vec<Lost> {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return Vec::new() };
    let Some(Value::Object(annotations)) = metadata.get_mut("annotations") else { return Vec::new() };
    let text = annotations.remove(annotation);
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    text.and_then(|text| serde_json::from_str(text.as_str()?).ok()).unwrap_or_default()
}

fn put(object: &mut Value, annotation: &str, lost: &[Lost]) {
    if lost.is_empty() {
        return;
    }
    if let (Ok(text), Some(root)) = (serde_json::to_string(lost), object.as_object_mut()) {
        let metadata = root.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if metadata["annotations"].is_null() {
            metadata["annotations"] = Value::Object(Map::new());
        }
        metadata["annotations"][annotation] = text.into();
    }
}

/// Whether a field of an object is the same in all versions.
fn is_same_in_all(field: &str) -> bool {
    matches!(field, "apiVersion" | "kind" | "metadata")
}

/// The stored form of an object that a client writes, in which nothing is changed that the request does not write: what was lost
/// is said by the client. `live` is the stored form of before, `None` for a new one.
pub(in crate::apiserver) fn to_stored_over(
    served: Value,
    version: &ServedVersion,
    live: Option<&Value>,
    is_status: bool,
) -> Value {
    let mut stored = to_stored(served, version);
    let Some(fields) = stored.as_object_mut() else { return stored };
    let is_of_before = |name: &str| !is_same_in_all(name) && (name == "status") != is_status;
    fields.retain(|name, _| !is_of_before(name));
    let live = live.and_then(Value::as_object).into_iter().flatten();
    fields.extend(live.filter(|(name, _)| is_of_before(name)).map(|(name, was)| (name.clone(), was.clone())));
    stored
}

/// Whether the object says what was lost of it. Whoever wrote it, that was judged by nobody.
pub(in crate::apiserver) fn brings_back(served: &Value) -> bool {
    !served["metadata"]["annotations"][OF_STORED].is_null()
}

/// Where two values differ. Metadata is the same in all versions.
fn lost(was: &Value, back: &Value) -> Vec<Lost> {
    let mut found = Vec::new();
    if let (Value::Object(was), Value::Object(back)) = (was, back) {
        let fields = was.keys().chain(back.keys().filter(|name| !was.contains_key(*name)));
        for name in fields.filter(|name| !is_same_in_all(name)) {
            compare(was.get(name), back.get(name), &mut vec![name.clone()], &mut found);
        }
    }
    found
}

fn compare(was: Option<&Value>, back: Option<&Value>, path: &mut Vec<String>, found: &mut Vec<Lost>) {
    if was == back {
        return;
    }
    if let (Some(Value::Object(was)), Some(Value::Object(back))) = (was, back) {
        for name in was.keys().chain(back.keys().filter(|name| !was.contains_key(*name))) {
            path.push(name.clone());
            compare(was.get(name), back.get(name), path, found);
            path.pop();
        }
        return;
    }
    found.push(Lost { path: path.clone(), back: back.cloned(), was: was.cloned() });
}

/// Comparisons of entries of lists that one object may cost: what was lost is said by an annotation, which anybody may write.
const COMPARED_MAX: usize = 1_000_000;

/// Puts back what was lost, where what came back is still as it came.
fn restore(object: &mut Value, kept: &[Lost]) {
    let mut left = COMPARED_MAX;
    for lost in kept {
        // A client may have written it: what an object is, whose and where, is nobody's to say here.
        if lost.path.first().is_none_or(|top| is_same_in_all(top)) {
            continue;
        }
        let Some((last, parents)) = lost.path.split_last() else { continue };
        let mut place = Some(&mut *object);
        for name in parents {
            place = place.and_then(|place| place.get_mut(name));
        }
        // What it belonged to is gone: so is this.
        let Some(Value::Object(place)) = place else { continue };
        if place.get(last) == lost.back.as_ref() {
            match &lost.was {
                Some(was) => place.insert(last.clone(), was.clone()),
                None => place.remove(last),
            };
        } else if let (Some(Value::Array(now)), Some(Value::Array(back)), Some(Value::Array(was))) =
            (place.get_mut(last), &lost.back, &lost.was)
            && back.len() == was.len()
        {
            let Some(rest) = left.checked_sub(now.len().saturating_mul(back.len() + was.len())) else { continue };
            left = rest;
            // Entries that the client left alone, wherever they stand now.
            for entry in now {
                if let Some(index) = back.iter().position(|one| one == entry) {
                    let like = was.iter().find(|one| covers(one, entry));
                    *entry = like.unwrap_or(&was[index]).clone();
                }
            }
        }
    }
}

/// Whether a value says all that the other does: on the way back entries may come in another order.
fn covers(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, part)| whole.get(name).is_some_and(|whole| covers(whole, part)))
        }
        (whole, part) => whole == part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const V1BETA1: ServedVersion = ServedVersion { version: "v1beta1", from_storage, to_storage };

    /// Parts of `cluster.x-k8s.io` Cluster in which v1beta1 and v1beta2 differ, as upstream publishes them.
    fn from_storage(stored: &Value) -> Value {
        let mut served = stored.clone();
        served["apiVersion"] = "cluster.x-k8s.io/v1beta1".into();
        if let Some(reference) = served["spec"].get_mut("infrastructureRef").and_then(Value::as_object_mut)
            && let Some(group) = reference.remove("apiGroup")
        {
            reference.insert("apiVersion".into(), format!("{}/v1beta1", group.as_str().unwrap_or_default()).into());
        }
        if let Some(status) = served.get_mut("status").and_then(Value::as_object_mut) {
            if let Some(done) = status.remove("initialization") {
                status.insert("infrastructureReady".into(), (done["infrastructureProvisioned"] == true).into());
            }
            if let Some(Value::Array(domains)) = status.remove("failureDomains") {
                let domains: Map<String, Value> = domains
                    .iter()
                    .map(|one| {
                        let name = one["name"].as_str().unwrap_or_default().to_owned();
                        (name, json!({"controlPlane": one["controlPlane"] == true}))
                    })
                    .collect();
                status.insert("failureDomains".into(), domains.into());
            }
            status.remove("workers");
        }
        served
    }

    fn to_storage(served: &Value) -> Value {
        let mut stored = served.clone();
        stored["apiVersion"] = "cluster.x-k8s.io/v1beta2".into();
        if let Some(reference) = stored["spec"].get_mut("infrastructureRef").and_then(Value::as_object_mut) {
            if let Some(version) = reference.remove("apiVersion") {
                let group = version.as_str().and_then(|text| text.split_once('/')).map_or("", |(group, _)| group);
                reference.insert("apiGroup".into(), group.into());
            }
            reference.remove("namespace");
        }
        if let Some(status) = stored.get_mut("status").and_then(Value::as_object_mut) {
            if let Some(ready) = status.remove("infrastructureReady") {
                status.insert("initialization".into(), json!({ "infrastructureProvisioned": ready }));
            }
            if let Some(Value::Object(domains)) = status.remove("failureDomains") {
                let domains: Vec<Value> = domains
                    .iter()
                    .map(|(name, one)| json!({"name": name, "controlPlane": one["controlPlane"]}))
                    .collect();
                status.insert("failureDomains".into(), domains.into());
            }
            status.remove("failureReason");
        }
        stored
    }

    fn serve(stored: &Value) -> Value {
        from_stored(stored, &V1BETA1)
    }

    fn store(served: Value) -> Value {
        to_stored(served, &V1BETA1)
    }

    fn new_cluster() -> Value {
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "c"},
            "spec": {"infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "M", "name": "m"}},
            "status": {
                "initialization": {"infrastructureProvisioned": true, "controlPlaneInitialized": true},
                "failureDomains": [
                    {"name": "z", "controlPlane": true, "attributes": {"rack": "1"}},
                    {"name": "a", "controlPlane": false},
                ],
                "workers": {"desired": 3},
            },
        })
    }

    fn old_cluster() -> Value {
        json!({
            "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster",
            "metadata": {"name": "c", "annotations": {"mine": "x"}},
            "spec": {"infrastructureRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "M",
                "name": "m", "namespace": "rack"}},
            "status": {"infrastructureReady": true, "failureReason": "Oops", "failureDomains": {"a": {"controlPlane": true}}},
        })
    }

    #[test]
    fn what_an_annotation_says_of_long_lists_is_not_looked_through() {
        let entries = |from: usize| (from..from + 3000).map(|one| json!({ "n": one })).collect::<Value>();
        let kept =
            |from: usize| Lost { path: vec!["l".into()], back: Some(entries(from)), was: Some(entries(from + 1)) };
        let mut object = json!({"l": entries(0)});
        let was = object.clone();
        restore(&mut object, &[kept(1), kept(2), kept(3)]);
        assert_eq!(object, was);
    }

    #[test]
    fn both_ways_there_and_back_keep_everything() {
        let served = serve(&new_cluster());
        assert_eq!(served["status"]["infrastructureReady"], true);
        assert_eq!(served["status"]["failureDomains"]["z"]["controlPlane"], true);
        assert_eq!(store(served), new_cluster());
        let stored = store(old_cluster());
        assert_eq!(stored["spec"]["infrastructureRef"]["apiGroup"], "infrastructure.cluster.x-k8s.io");
        assert!(stored["status"].get("failureReason").is_none());
        assert_eq!(serve(&stored), old_cluster());
    }

    #[test]
    fn what_a_client_changes_is_changed_and_the_rest_is_kept() {
        let mut served = serve(&new_cluster());
        served["spec"]["paused"] = true.into();
        served["status"]["infrastructureReady"] = false.into();
        let stored = store(served);
        assert_eq!(stored["spec"]["paused"], true);
        assert_eq!(stored["status"]["initialization"]["infrastructureProvisioned"], false);
        assert_eq!(stored["status"]["initialization"]["controlPlaneInitialized"], true);
        assert_eq!(stored["status"]["workers"], json!({"desired": 3}));
        // A domain goes, another comes: the one that stays keeps its attributes.
        let mut served = serve(&new_cluster());
        served["status"]["failureDomains"] = json!({"z": {"controlPlane": true}, "n": {"controlPlane": false}});
        let stored = store(served);
        let domains = stored["status"]["failureDomains"].as_array().unwrap();
        assert!(domains.contains(&json!({"name": "z", "controlPlane": true, "attributes": {"rack": "1"}})), "{stored}");
        assert!(domains.contains(&json!({"name": "n", "controlPlane": false})), "{stored}");
        assert!(!stored.to_string().contains("\"a\""), "{stored}");
        // What belonged to something that is gone is gone.
        let mut served = serve(&new_cluster());
        served.as_object_mut().unwrap().remove("status");
        assert!(store(served).get("status").is_none());
    }

    #[test]
    fn a_forged_annotation_does_no_harm() {
        for text in ["", "x", "[]", "[{\"path\":[]}]", "[{\"path\":[\"spec\",\"none\",\"deep\"],\"was\":1}]", "{}"] {
            let mut served = old_cluster();
            served["metadata"]["annotations"][OF_STORED] = text.into();
            let stored = store(served);
            assert!(stored["metadata"]["annotations"].get(OF_STORED).is_none(), "{text}");
            assert_eq!(serve(&stored), old_cluster(), "{text}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Even functions that lose nearly everything lose nothing.
        #[test]
        fn any_object_survives(spec in any_json(), status in any_json()) {
            let nothing = |value: &Value| json!({"apiVersion": "x", "kind": value["kind"], "metadata": value["metadata"]});
            let version = ServedVersion { version: "v", from_storage: nothing, to_storage: nothing };
            let stored = json!({"apiVersion": "x", "kind": "K", "metadata": {"name": "n"}, "spec": spec, "status": status});
            let served = from_stored(&stored, &version);
            prop_assert_eq!(to_stored(served, &version), stored);
        }
    }
}
