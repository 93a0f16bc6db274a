//! `metadata`: which fields are the server's, which the client's, and what the client's may be.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use rand::Rng;
use serde_json::{Value, json};

use super::names;
use crate::apiserver::answers::status::{ApiError, CAUSES_MAX, FieldError, FieldFault};
use crate::apiserver::kinds::resource::ServedResource;
use crate::runtime::conditions;

/// Bytes of all annotations together.
pub(in crate::apiserver) const ANNOTATIONS_MAX: usize = 256 * 1024;
/// Finalizers of an object. Each is read, compared and told of at every turn, and nobody needs more than a few.
const FINALIZERS_MAX: usize = 256;
/// Finalizer of `propagationPolicy: Orphan`.
pub(in crate::apiserver) const ORPHAN: &str = "orphan";
/// Finalizer of `propagationPolicy: Foreground`.
pub(in crate::apiserver) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizers of core kinds that need no domain.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", ORPHAN, FOREGROUND];
/// Owners of an object. Each is looked for whenever one of them goes.
const OWNERS_MAX: usize = 256;
/// Letters of generated names: no vowels, nothing that looks like another.
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Letters added to `generateName`.
const NAME_RANDOM: usize = 5;
/// Longest prefix that `generateName` may have.
const NAME_PREFIX_MAX: usize = 63 - NAME_RANDOM;

/// Now, to the second, as metadata keeps time.
pub(in crate::apiserver) fn now() -> Time {
    Time(conditions::whole(Timestamp::now()))
}

/// Reads `metadata`.
pub(in crate::apiserver) fn read(object: &Value) -> Result<ObjectMeta, ApiError> {
    match object.get("metadata") {
        None | Some(Value::Null) => Ok(ObjectMeta::default()),
        Some(metadata) => serde::Deserialize::deserialize(metadata)
            .map_err(|error| ApiError::bad_request(format!("metadata cannot be read: {error}"))),
    }
}

/// Writes `metadata` back.
pub(in crate::apiserver) fn write(object: &mut Value, meta: &ObjectMeta) -> Result<(), ApiError> {
    object["metadata"] =
        serde_json::to_value(meta).map_err(|error| ApiError::internal(format!("metadata: {error}")))?;
    Ok(())
}

/// A name from `generateName`.
pub(in crate::apiserver) fn generate_name(prefix: &str) -> String {
    let mut name: String = prefix.chars().take(NAME_PREFIX_MAX).collect();
    let mut random = rand::rng();
    for _ in 0..NAME_RANDOM {
        name.push(char::from(NAME_LETTERS[random.random_range(0..NAME_LETTERS.len())]));
    }
    name
}

/// Fields that the server sets on a new object.
pub(in crate::apiserver) fn set_new(meta: &mut ObjectMeta, resource: &ServedResource) {
    meta.uid = Some(uuid::Uuid::new_v4().to_string());
    meta.creation_timestamp = Some(now());
    meta.generation = resource.counts_generation().then_some(1);
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
    drop_unkept(meta);
}

/// Fields that the server keeps on a changed object.
pub(in crate::apiserver) fn set_kept(meta: &mut ObjectMeta, old: &ObjectMeta) {
    meta.uid.clone_from(&old.uid);
    meta.creation_timestamp.clone_from(&old.creation_timestamp);
    meta.generation = old.generation;
    meta.deletion_timestamp.clone_from(&old.deletion_timestamp);
    meta.deletion_grace_period_seconds = old.deletion_grace_period_seconds;
    if meta.generate_name.is_none() {
        meta.generate_name.clone_from(&old.generate_name);
    }
    drop_unkept(meta);
}

/// Managers are kept beside the metadata (`managed_fields`); the store sets the revision.
fn drop_unkept(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    meta.self_link = None;
    meta.resource_version = None;
    for list in [&mut meta.finalizers] {
        if list.as_ref().is_some_and(Vec::is_empty) {
            *list = None;
        }
    }
    if meta.owner_references.as_ref().is_some_and(Vec::is_empty) {
        meta.owner_references = None;
    }
    for map in [&mut meta.labels, &mut meta.annotations] {
        if map.as_ref().is_some_and(|map| map.is_empty()) {
            *map = None;
        }
    }
}

/// What is wrong with the client's part.
pub(in crate::apiserver) fn validate(
    resource: &ServedResource,
    meta: &ObjectMeta,
    old: Option<&ObjectMeta>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = meta.name.as_deref().unwrap_or_default();
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else if old.is_none() {
        let faults = if &*resource.storage == "/namespaces" {
            names::label(name)
        } else if resource.group == crate::apiserver::auth::GROUP {
            crate::apiserver::auth::kinds::path_segment_fault(name).into_iter().map(Into::into).collect()
        } else {
            names::subdomain(name)
        };
        tell(&mut errors, "metadata.name", name, faults);
    }
    validate_labels(texts(meta.labels.as_ref()), "metadata.labels", &mut errors);
    validate_annotations(texts(meta.annotations.as_ref()), "metadata.annotations", &mut errors);
    validate_finalizers(resource, meta, old, &mut errors);
    let owners_before = old.and_then(|old| old.owner_references.as_ref()).map_or(0, Vec::len);
    validate_owners(meta.owner_references.as_deref().unwrap_or_default(), owners_before, &mut errors);
    errors
}

fn texts(map: Option<&BTreeMap<String, String>>) -> impl Iterator<Item = (&str, &str)> {
    map.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()))
}

/// What is wrong with labels.
pub(in crate::apiserver) fn validate_labels<'m>(
    labels: impl Iterator<Item = (&'m str, &'m str)>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    for (key, value) in labels {
        tell(errors, path, key, names::qualified(key));
        tell(errors, path, value, names::label_value(value));
    }
}

/// What is wrong with annotations.
pub(in crate::apiserver) fn validate_annotations<'m>(
    annotations: impl Iterator<Item = (&'m str, &'m str)>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let mut total = 0;
    for (key, value) in annotations {
        total += key.len() + value.len();
        tell(errors, path, key, names::qualified(&key.to_lowercase()));
    }
    if total > ANNOTATIONS_MAX {
        let limit = format!("may not be more than {ANNOTATIONS_MAX} bytes");
        errors.push(FieldError::new(FieldFault::TooLong, path, limit));
    }
}

/// Adds what a rule found in a value, as long as there are not more faults than are told.
fn tell(errors: &mut Vec<FieldError>, path: &str, value: &str, faults: names::NameFaults) {
    if errors.len() >= CAUSES_MAX {
        return;
    }
    errors.extend(faults.into_iter().map(|fault| FieldError::invalid(path, &value.into(), fault)));
}

fn validate_finalizers(
    resource: &ServedResource,
    meta: &ObjectMeta,
    old: Option<&ObjectMeta>,
    errors: &mut Vec<FieldError>,
) {
    let finalizers = meta.finalizers.as_deref().unwrap_or_default();
    let before = old.and_then(|old| old.finalizers.as_ref()).map_or(0, Vec::len);
    if finalizers.len() > FINALIZERS_MAX.max(before) {
        let limit = format!("must have at most {FINALIZERS_MAX} items");
        errors.push(FieldError::new(FieldFault::TooMany, "metadata.finalizers", limit));
        return;
    }
    for (index, finalizer) in finalizers.iter().enumerate() {
        tell(errors, "metadata.finalizers", finalizer, names::qualified(finalizer));
        if resource.group.is_empty() && !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer.as_str()) {
            let rule = "name is neither a standard finalizer name nor is it fully qualified";
            tell(errors, &format!("metadata.finalizers[{index}]"), finalizer, vec![rule.into()]);
        }
    }
    if finalizers.iter().any(|one| one == ORPHAN) && finalizers.iter().any(|one| one == FOREGROUND) {
        errors.push(FieldError::forbidden(
            "metadata.finalizers",
            format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set"),
        ));
    }
    if let Some(old) = old.filter(|old| old.deletion_timestamp.is_some()) {
        let before: HashSet<&String> = old.finalizers.iter().flatten().collect();
        let added: Vec<&String> = finalizers.iter().filter(|one| !before.contains(*one)).take(CAUSES_MAX).collect();
        if !added.is_empty() {
            errors.push(FieldError::forbidden(
                "metadata.finalizers",
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(", ")
                ),
            ));
        }
    }
}

fn validate_owners(owners: &[OwnerReference], before: usize, errors: &mut Vec<FieldError>) {
    if owners.len() > OWNERS_MAX.max(before) {
        let limit = format!("must have at most {OWNERS_MAX} items");
        errors.push(FieldError::new(FieldFault::TooMany, "metadata.ownerReferences", limit));
    }
    for owner in owners {
        let fields =
            [("apiVersion", &owner.api_version), ("kind", &owner.kind), ("name", &owner.name), ("uid", &owner.uid)];
        for (field, _) in fields.iter().filter(|(_, value)| value.is_empty()) {
            if errors.len() >= CAUSES_MAX {
                return;
            }
            let path = format!("metadata.ownerReferences.{field}");
            errors.push(FieldError::invalid(path, &"".into(), "must not be empty"));
        }
    }
    if owners.iter().filter(|owner| owner.controller == Some(true)).count() > 1 {
        errors.push(FieldError::new(
            FieldFault::Invalid,
            "metadata.ownerReferences",
            "Only one reference can have Controller set to true",
        ));
    }
}

/// A condition of a status.
pub(in crate::apiserver) struct StatusCondition<'c> {
    pub kind: &'c str,
    pub status: &'c str,
    pub reason: &'c str,
    pub message: &'c str,
}

/// Sets a condition; the time of the last transition stays while the status does.
pub(in crate::apiserver) fn set_condition(object: &mut Value, condition: StatusCondition<'_>, now: Time) {
    let entry = json!({
        "type": condition.kind,
        "status": condition.status,
        "lastTransitionTime": now,
        "reason": condition.reason,
        "message": condition.message,
    });
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    let conditions = &mut object["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    if let Value::Array(conditions) = conditions {
        conditions::put(conditions, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::is_dns_label;
    use serde_json::json;

    #[test]
    fn owners_are_few_and_those_that_are_there_can_go() {
        let registry = crate::apiserver::kinds::built_in::registry(&[]).unwrap();
        let secrets = registry.find("", "v1", "secrets").unwrap();
        let of = |count: usize| {
            let one = |one: usize| json!({"apiVersion": "v1", "kind": "Secret", "name": "o", "uid": one.to_string()});
            let owners: Vec<Value> = (0..count).map(one).collect();
            read(&json!({"metadata": {"name": "n", "ownerReferences": owners}})).unwrap()
        };
        for (count, before, fits) in
            [(256, None, true), (257, None, false), (300, Some(256), false), (9999, Some(10_000), true)]
        {
            assert_eq!(validate(secrets, &of(count), before.map(of).as_ref()).is_empty(), fits, "{count} {before:?}");
        }
    }

    #[test]
    fn the_clients_part_is_checked() {
        let registry = crate::apiserver::kinds::built_in::registry(&[]).unwrap();
        let secrets = registry.find("", "v1", "secrets").unwrap();
        let namespaces = registry.find("", "v1", "namespaces").unwrap();
        let owner = json!({"apiVersion": "v1", "kind": "Secret", "name": "o", "uid": "u", "controller": true});
        for (resource, metadata, wanted) in [
            (secrets, json!({"name": "a.b"}), vec![]),
            (namespaces, json!({"name": "a.b"}), vec!["metadata.name"]),
            (secrets, json!({}), vec!["metadata.name"]),
            (secrets, json!({"name": "A"}), vec!["metadata.name"]),
            (secrets, json!({"name": "a", "labels": {"a b": "c"}}), vec!["metadata.labels"]),
            (secrets, json!({"name": "a", "labels": {"a": "c d"}}), vec!["metadata.labels"]),
            (secrets, json!({"name": "a", "annotations": {"a/b/c": ""}}), vec!["metadata.annotations"]),
            (secrets, json!({"name": "a", "annotations": {"a": "x".repeat(300_000)}}), vec!["metadata.annotations"]),
            (secrets, json!({"name": "a", "finalizers": ["a.b/x y"]}), vec!["metadata.finalizers"]),
            (secrets, json!({"name": "a", "finalizers": ["x"]}), vec!["metadata.finalizers[0]"]),
            (secrets, json!({"name": "a", "finalizers": [ORPHAN, FOREGROUND]}), vec!["metadata.finalizers"]),
            (secrets, json!({"name": "a", "ownerReferences": [owner]}), vec![]),
            (secrets, json!({"name": "a", "ownerReferences": [owner, owner]}), vec!["metadata.ownerReferences"]),
        ] {
            let meta = read(&json!({ "metadata": metadata })).unwrap();
            let found: Vec<String> = validate(resource, &meta, None).into_iter().map(|error| error.path).collect();
            assert_eq!(found, wanted, "{metadata}");
        }
        assert!(read(&json!({"metadata": {"labels": 1}})).is_err());
        assert!(read(&json!({"metadata": []})).is_err() || read(&json!({"metadata": "x"})).is_err());
    }

    #[test]
    fn no_finalizer_joins_a_dying_object() {
        let registry = crate::apiserver::kinds::built_in::registry(&[]).unwrap();
        let secrets = registry.find("", "v1", "secrets").unwrap();
        let old = ObjectMeta {
            deletion_timestamp: Some(now()),
            finalizers: Some(vec!["a.b/a".into()]),
            ..Default::default()
        };
        let with = |finalizers: &[&str]| ObjectMeta {
            name: Some("n".into()),
            finalizers: Some(finalizers.iter().map(|one| (*one).to_owned()).collect()),
            ..Default::default()
        };
        assert!(validate(secrets, &with(&["a.b/a"]), Some(&old)).is_empty());
        assert_eq!(validate(secrets, &with(&["a.b/a", "a.b/b"]), Some(&old)).len(), 1);
    }

    #[test]
    fn finalizers_are_few_and_those_that_are_there_can_go() {
        let registry = crate::apiserver::kinds::built_in::registry(&[]).unwrap();
        let secrets = registry.find("", "v1", "secrets").unwrap();
        let of = |count: usize| ObjectMeta {
            name: Some("n".into()),
            finalizers: Some((0..count).map(|one| format!("a.b/{one}")).collect()),
            ..Default::default()
        };
        for (count, before, fits) in [(256, None, true), (257, None, false), (300, Some(256), false)] {
            assert_eq!(validate(secrets, &of(count), before.map(of).as_ref()).is_empty(), fits, "{count} {before:?}");
        }
        // As an earlier version took them.
        assert!(validate(secrets, &of(9999), Some(&of(10_000))).is_empty());
    }

    #[test]
    fn generated_names_are_valid_and_short() {
        for prefix in ["host-", &"x".repeat(200)] {
            let name = generate_name(prefix);
            assert!(name.len() <= 63 && is_dns_label(&name), "{name}");
        }
    }
}
