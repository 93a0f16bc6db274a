//! Strategic merge patch.
//!
//! Kubernetes' strategic merge patch: a merge patch that knows which lists are sets or have a key, with the directives
//! `$patch`, `$retainKeys`, `$deleteFromPrimitiveList/…` and `$setElementOrder/…`. Pure.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::apiserver::answers::status::{ApiError, shorten};
use crate::apiserver::schema::{Atom, ListTopology, MergeType, Relation};

type PatchFields = Map<String, Value>;

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

fn wrong(path: &str, reason: impl AsRef<str>) -> ApiError {
    ApiError::bad_request(format!("strategic merge patch: {}: {}", shorten(path, 256), reason.as_ref()))
}

/// Merges a patch into a whole object.
pub(in crate::apiserver) fn merge(object: &mut Value, patch: &Value, kind: MergeType<'_>) -> Result<(), ApiError> {
    merge_at(object, patch, kind, "")
}

fn merge_at(object: &mut Value, patch: &Value, kind: MergeType<'_>, path: &str) -> Result<(), ApiError> {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return Ok(());
    };
    match directive(patch, path)? {
        Directive::Replace => {
            let plain = patch.iter().filter(|(key, _)| *key != PATCH);
            *object = Value::Object(plain.map(|(key, value)| (key.clone(), value.clone())).collect());
            return Ok(());
        }
        Directive::Delete => {
            *object = Value::Object(PatchFields::new());
            return Ok(());
        }
        Directive::Merge => {}
    }
    if !object.is_object() {
        *object = Value::Object(PatchFields::new());
    }
    let Some(map) = object.as_object_mut() else { return Ok(()) };
    if let Some(retain) = patch.get(RETAIN_KEYS) {
        let keys = retain.as_array().ok_or_else(|| wrong(path, "$retainKeys is a list"))?;
        let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
        if let Some(lost) = patch.keys().find(|key| !key.starts_with('$') && !keys.contains(key.as_str())) {
            return Err(wrong(path, format!("{lost:?} is set but not in $retainKeys")));
        }
        map.retain(|key, _| keys.contains(key.as_str()));
    }
    for (key, change) in patch {
        if let Some(name) = key.strip_prefix(DELETE_FROM) {
            let gone = change.as_array().ok_or_else(|| wrong(path, "$deleteFromPrimitiveList is a list"))?;
            if let Some(Value::Array(entries)) = map.get_mut(name) {
                check_lengths(entries, gone, path)?;
                entries.retain(|entry| !gone.contains(entry));
            }
        } else if let Some(name) = key.strip_prefix(ORDER)
            && !change.is_array()
        {
            return Err(wrong(path, format!("$setElementOrder of {name:?} is a list")));
        }
    }
    let fields = match kind.atom(Some(&Value::Object(PatchFields::new()))) {
        Atom::Map(fields) => Some(fields),
        _ => None,
    };
    for (key, change) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        let at = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let kind = fields.map_or(MergeType::Deduced, |fields| fields.field(key));
        match change {
            Value::Null => {
                map.remove(key);
            }
            Value::Object(inner) if matches!(directive(inner, &at)?, Directive::Delete) => {
                map.remove(key);
            }
            Value::Object(_) => merge_at(map.entry(key.clone()).or_insert(Value::Null), change, kind, &at)?,
            Value::Array(changes) => {
                merge_list(map.entry(key.clone()).or_insert(Value::Null), changes, kind, &at)?;
            }
            plain => {
                map.insert(key.clone(), plain.clone());
            }
        }
    }
    for (key, order) in patch {
        if let (Some(name), Value::Array(order)) = (key.strip_prefix(ORDER), order)
            && let Some(Value::Array(entries)) = map.get_mut(name)
        {
            let kind = fields.map_or(MergeType::Deduced, |fields| fields.field(name));
            check_lengths(entries, order, path)?;
            reorder(entries, order, &relation(kind));
        }
    }
    Ok(())
}

enum Directive {
    Merge,
    Replace,
    Delete,
}

fn directive(patch: &PatchFields, path: &str) -> Result<Directive, ApiError> {
    match patch.get(PATCH).map(|value| value.as_str().unwrap_or_default()) {
        None | Some("merge") => Ok(Directive::Merge),
        Some("replace") => Ok(Directive::Replace),
        Some("delete") => Ok(Directive::Delete),
        Some(other) => Err(wrong(path, format!("unknown $patch directive {:?}", shorten(other, 32)))),
    }
}

/// What makes the entries of a list the same.
enum MergeKey {
    /// Nothing: the list is replaced.
    Nothing,
    /// Their value.
    Value,
    /// Their value of a field.
    Key(String),
}

fn relation(kind: MergeType<'_>) -> MergeKey {
    match kind.atom(Some(&Value::Array(Vec::new()))) {
        Atom::List(ListTopology { relation: Relation::Set, .. }) => MergeKey::Value,
        Atom::List(ListTopology { relation: Relation::Keys([key]), .. }) => MergeKey::Key(key.clone()),
        _ => MergeKey::Nothing,
    }
}

/// Comparisons that one list may cost.
const COMPARED_MAX: usize = 10_000_000;

/// Each entry of the one is compared with those of the other.
fn check_lengths(entries: &[Value], others: &[Value], path: &str) -> Result<(), ApiError> {
    if entries.len().saturating_mul(others.len()) > COMPARED_MAX {
        return Err(wrong(path, "the lists are too long to be merged"));
    }
    Ok(())
}

fn merge_list(list: &mut Value, changes: &[Value], kind: MergeType<'_>, path: &str) -> Result<(), ApiError> {
    let plain = || changes.iter().filter(|change| change.get(PATCH).is_none()).cloned().collect::<Vec<_>>();
    let same = relation(kind);
    let replaces = |change: &Value| change.get(PATCH).is_some_and(|directive| directive == "replace");
    let Value::Array(entries) = list else {
        *list = Value::Array(plain());
        return Ok(());
    };
    if !matches!(same, MergeKey::Nothing)
        && (entries.len() + changes.len()).saturating_mul(changes.len()) > COMPARED_MAX
    {
        return Err(wrong(path, "the lists are too long to be merged"));
    }
    match same {
        MergeKey::Nothing => *entries = plain(),
        MergeKey::Value => {
            for change in changes {
                if !entries.contains(change) {
                    entries.push(change.clone());
                }
            }
        }
        MergeKey::Key(_) if changes.iter().any(replaces) => *entries = plain(),
        MergeKey::Key(name) => {
            let item = match kind.atom(Some(&Value::Array(Vec::new()))) {
                Atom::List(list) => list.item,
                _ => MergeType::Deduced,
            };
            for change in changes {
                let fields = change.as_object().ok_or_else(|| wrong(path, "an entry is no object"))?;
                let key =
                    fields.get(&name).ok_or_else(|| wrong(path, format!("an entry lacks its merge key {name:?}")))?;
                let found = entries.iter().position(|entry| entry.get(&name) == Some(key));
                match (directive(fields, path)?, found.and_then(|at| entries.get_mut(at))) {
                    (Directive::Delete, _) => entries.retain(|entry| entry.get(&name) != Some(key)),
                    (_, Some(entry)) => merge_at(entry, change, item, path)?,
                    (_, None) => {
                        let mut entry = change.clone();
                        if let Some(fields) = entry.as_object_mut() {
                            fields.remove(PATCH);
                        }
                        entries.push(entry);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Puts entries into the order that the client wants; those it does not name keep their place before what followed.
fn reorder(entries: &mut Vec<Value>, order: &[Value], same: &MergeKey) {
    let identity = |entry: &Value| match same {
        MergeKey::Key(name) => entry.get(name).cloned().unwrap_or(Value::Null),
        MergeKey::Value | MergeKey::Nothing => entry.clone(),
    };
    if matches!(same, MergeKey::Nothing) {
        return;
    }
    let order: Vec<Value> = order.iter().map(identity).collect();
    let mut named: Vec<(usize, usize, Value)> = Vec::new();
    let mut others: Vec<(usize, Value)> = Vec::new();
    for (was, entry) in entries.drain(..).enumerate() {
        let wanted = identity(&entry);
        match order.iter().position(|one| *one == wanted) {
            Some(place) => named.push((place, was, entry)),
            None => others.push((was, entry)),
        }
    }
    named.sort_by_key(|(place, ..)| *place);
    let mut others = others.into_iter().peekable();
    for (_, was, entry) in named {
        while let Some((_, other)) = others.next_if(|(before, _)| *before < was) {
            entries.push(other);
        }
        entries.push(entry);
    }
    entries.extend(others.map(|(_, entry)| entry));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn merged(mut object: Value, patch: &Value) -> Result<Value, ApiError> {
        let registry = crate::apiserver::kinds::built_in::registry(&[]).unwrap();
        let secrets = registry.find("", "v1", "secrets").unwrap();
        merge(&mut object, patch, MergeType::root(&secrets.schema))?;
        Ok(object)
    }

    #[test]
    fn the_directives_do_what_they_say() {
        let object = json!({"metadata": {"finalizers": ["a", "b"],
            "ownerReferences": [{"uid": "1", "name": "x"}, {"uid": "2"}]},
            "data": {"a": "1", "b": "2"}, "list": [1]});
        for (patch, pointer, wanted) in [
            (json!({"data": {"a": null}}), "/data", json!({"b": "2"})),
            (json!({"data": {"$patch": "replace", "z": "0"}}), "/data", json!({"z": "0"})),
            (json!({"data": {"$patch": "merge", "z": "0"}}), "/data", json!({"a": "1", "b": "2", "z": "0"})),
            (json!({"data": {"$retainKeys": ["b", "c"], "c": "3"}}), "/data", json!({"b": "2", "c": "3"})),
            (json!({"list": [2]}), "/list", json!([2])),
            (json!({"metadata": {"finalizers": ["c"]}}), "/metadata/finalizers", json!(["a", "b", "c"])),
            (
                json!({"metadata": {"finalizers": ["c"], "$setElementOrder/finalizers": ["c", "a"]}}),
                "/metadata/finalizers",
                json!(["b", "c", "a"]),
            ),
            (json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}), "/metadata/finalizers", json!(["b"])),
            (
                json!({"metadata": {"ownerReferences": [{"uid": "1", "name": "y"}, {"uid": "3"}],
                    "$setElementOrder/ownerReferences": [{"uid": "3"}, {"uid": "1"}]}}),
                "/metadata/ownerReferences",
                json!([{"uid": "2"}, {"uid": "3"}, {"uid": "1", "name": "y"}]),
            ),
            (
                json!({"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}]}}),
                "/metadata/ownerReferences",
                json!([{"uid": "2"}]),
            ),
            (
                json!({"metadata": {"ownerReferences": [{"$patch": "replace"}, {"uid": "4"}]}}),
                "/metadata/ownerReferences",
                json!([{"uid": "4"}]),
            ),
        ] {
            let result = merged(object.clone(), &patch).unwrap();
            assert_eq!(result.pointer(pointer), Some(&wanted), "{patch}");
        }
        let gone = merged(object.clone(), &json!({"data": {"$patch": "delete"}})).unwrap();
        assert!(gone.get("data").is_none());
        assert_eq!(merged(object, &json!({"$patch": "replace", "a": 1})).unwrap(), json!({"a": 1}));
    }

    #[test]
    fn wrong_directives_are_refused() {
        for patch in [
            json!({"metadata": {"ownerReferences": [{"name": "x"}]}}),
            json!({"metadata": {"ownerReferences": ["x"]}}),
            json!({"a": {"$patch": "explode"}}),
            json!({"a": {"$patch": 1}}),
            json!({"$retainKeys": 1}),
            json!({"$retainKeys": ["a"], "b": 1}),
            json!({"$deleteFromPrimitiveList/a": 1}),
            json!({"$setElementOrder/a": 1}),
        ] {
            let error = merged(json!({"metadata": {"ownerReferences": [{"uid": "1"}]}}), &patch).unwrap_err();
            assert_eq!(error.code, 400, "{patch}");
        }
    }
}
