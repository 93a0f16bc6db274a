//! Definitions that are written over those of built-in kinds: what they have beyond these is added.
//!
//! Upstream's controllers bring the definitions of their own release, which may be newer than Slipway's types. What they
//! would store in fields that are new there is kept then, and nobody here reads it. What Slipway defines stays as it is:
//! an addition is a field that is not there yet, of a version that is served, and nothing that has to be compiled.

use serde_json::{Map, Value, json};

use super::super::objects::meta;
use super::names::{BUILT_IN, is_built_in};
use crate::api::definitions;
use crate::store::json_len;

/// Group of Slipway's own kinds, which nobody else defines.
const OWN_GROUP: &str = "slipway.dev";
/// Annotation of a definition that has such additions: they stay over a restart.
const EXTENDED: &str = "slipway.dev/extended";
/// Bytes of text that the additions to one kind may have: more than twice what the largest kind has itself.
const ADDED_MAX: usize = 64 << 10;
/// Keywords that are compiled: the additions are not checked by them.
const COMPILED: [&str; 2] = ["pattern", "x-kubernetes-validations"];
/// Fields of every object, which a schema does not define.
const OF_EVERY_OBJECT: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// The spec of a built-in kind as the binary brings it; `None` when there is none of this name.
pub(super) fn built_in_spec(name: &str) -> Option<Value> {
    let definition = definitions::written().remove(name)?;
    let mut definition = serde_json::to_value(definition).ok()?;
    complete_spec(&mut definition);
    Some(definition["spec"].take())
}

/// Fills in what a definition may leave out of its spec.
pub(super) fn complete_spec(definition: &mut Value) {
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(Value::Object(names)) = spec.get_mut("names") {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let empty = |names: &Map<String, Value>, field: &str| {
            names.get(field).and_then(Value::as_str).is_none_or(str::is_empty)
        };
        if empty(names, "singular") {
            names.insert("singular".into(), kind.to_lowercase().into());
        }
        if empty(names, "listKind") && !kind.is_empty() {
            names.insert("listKind".into(), format!("{kind}List").into());
        }
    }
    let conversion = spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    if let Some(Value::Object(service)) = conversion.pointer_mut("/webhook/clientConfig/service") {
        service.entry("port").or_insert_with(|| 443.into());
    }
    if spec.get("preserveUnknownFields") == Some(&Value::Bool(false)) {
        spec.remove("preserveUnknownFields");
    }
}

/// A built-in kind's spec with what another one has beyond it. As it is, when that is too much, or of a kind that is
/// Slipway's own.
pub(super) fn extended(built_in: &Value, by: &Value) -> Value {
    let mut spec = built_in.clone();
    if spec["group"] == OWN_GROUP || spec["group"] != by["group"] {
        return spec;
    }
    let given = by["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    for version in spec["versions"].as_array_mut().into_iter().flatten() {
        let Some(other) = given.iter().find(|other| other["name"] == version["name"]) else { continue };
        let pointer = "/schema/openAPIV3Schema";
        if let (Some(own), Some(other)) = (version.pointer_mut(pointer), other.pointer(pointer)) {
            add(own, other, &OF_EVERY_OBJECT);
        }
    }
    let added = json_len(&spec).saturating_sub(json_len(built_in));
    if added > ADDED_MAX { built_in.clone() } else { spec }
}

/// Adds the fields that a schema does not have; `but` these.
fn add(own: &mut Value, other: &Value, but: &[&str]) {
    if let (Some(Value::Object(own)), Some(Value::Object(other))) = (own.get_mut("properties"), other.get("properties"))
    {
        for (name, schema) in other.iter().filter(|(name, _)| !but.contains(&name.as_str())) {
            match own.get_mut(name) {
                Some(own) => add(own, schema, &[]),
                None => {
                    let mut schema = uncompiled(schema);
                    // Nothing is filled into what Slipway writes: many defaults would leave no room for it. Within the
                    // field they count, which only those write who know it.
                    if let Some(schema) = schema.as_object_mut() {
                        schema.remove("default");
                    }
                    own.insert(name.clone(), schema);
                }
            }
        }
    }
    for inner in ["items", "additionalProperties"] {
        if let (Some(own), Some(other)) = (own.get_mut(inner), other.get(inner)) {
            add(own, other, &[]);
        }
    }
}

/// A schema without what would be compiled. A property may be called as a keyword is.
fn uncompiled(schema: &Value) -> Value {
    let Value::Object(map) = schema else { return schema.clone() };
    let mut kept = Map::new();
    for (keyword, value) in map.iter().filter(|(keyword, _)| !COMPILED.contains(&keyword.as_str())) {
        let value = match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                properties.iter().map(|(name, schema)| (name.clone(), uncompiled(schema))).collect()
            }
            ("items" | "additionalProperties" | "not", schema) => uncompiled(schema),
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => schemas.iter().map(uncompiled).collect(),
            _ => value.clone(),
        };
        kept.insert(keyword.clone(), value);
    }
    Value::Object(kept)
}

/// Puts the marks of a built-in kind's definition where a client left them out, and tells whether it has more fields.
pub(super) fn mark(new: &mut Value, old: &Value) {
    let extended = if new["spec"] == old["spec"] {
        is_extended(old)
    } else {
        let name = old["metadata"]["name"].as_str().unwrap_or_default();
        built_in_spec(name).is_some_and(|built_in| built_in != new["spec"])
    };
    set_marks(new, extended);
}

/// Marks the definition of a built-in kind.
pub(super) fn set_marks(definition: &mut Value, extended: bool) {
    let annotations = &mut definition["metadata"]["annotations"];
    annotations[BUILT_IN] = "true".into();
    if extended {
        annotations[EXTENDED] = "true".into();
    } else if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove(EXTENDED);
    }
}

/// Whether it is the definition of a built-in kind with fields that were added.
pub(super) fn is_extended(definition: &Value) -> bool {
    is_built_in(definition) && definition["metadata"]["annotations"][EXTENDED] == "true"
}

/// What Slipway owns of the definition of a built-in kind: the mark. Of the rest nobody has to take anything away from it who
/// applies the definition that upstream publishes.
pub(super) fn own_fields() -> Value {
    json!([{
        "manager": "slipway", "operation": "Update", "apiVersion": "apiextensions.k8s.io/v1", "time": meta::now(),
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:annotations": {format!("f:{BUILT_IN}"): {}}}},
    }])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(schema: &Value) -> Value {
        json!({"group": "metal3.io", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"}, "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
        ]})
    }

    #[test]
    fn fields_are_added_and_nothing_else_changes() {
        let object = |properties: Value| json!({"type": "object", "properties": properties});
        let own = object(json!({
            "metadata": {"type": "object"},
            "spec": {"type": "object", "required": ["a"], "properties": {
                "a": {"type": "string", "pattern": "^x$"},
                "list": {"type": "array", "items": object(json!({"b": {"type": "string"}}))},
                "map": {"type": "object", "additionalProperties": object(json!({"b": {"type": "string"}}))},
                "closed": {"type": "object"},
            }},
        }));
        let new = json!({"type": "string"});
        for (what, by, path, wanted) in [
            (
                "a field, with the defaults within it only",
                object(json!({"spec": object(json!({"n": {"type": "object", "default": {}, "properties": {
                    "m": {"type": "string", "default": "x"}}}}))})),
                "/properties/spec/properties/n",
                object(json!({"m": {"type": "string", "default": "x"}})),
            ),
            (
                "a field",
                object(json!({"spec": object(json!({"n": new}))})),
                "/properties/spec/properties/n",
                new.clone(),
            ),
            (
                "a part",
                object(json!({"status": object(json!({"n": new}))})),
                "/properties/status",
                object(json!({"n": new})),
            ),
            (
                "of an entry",
                object(json!({"spec": object(json!({"list": {"type": "array", "items": object(json!({"n": new}))}}))})),
                "/properties/spec/properties/list/items/properties/n",
                new.clone(),
            ),
            (
                "of a value",
                object(json!({"spec": object(json!({"map": {"additionalProperties": object(json!({"n": new}))}}))})),
                "/properties/spec/properties/map/additionalProperties/properties/n",
                new.clone(),
            ),
            (
                "without its rules, but with a field that is called so",
                object(
                    json!({"spec": object(json!({"n": {"type": "object", "x-kubernetes-validations": [{"rule": "false"}],
                    "properties": {"pattern": {"type": "string", "pattern": "("}}}}))}),
                ),
                "/properties/spec/properties/n",
                object(json!({"pattern": {"type": "string"}})),
            ),
        ] {
            let mut found = extended(&spec(&own), &spec(&by));
            let schema = &mut found["versions"][0]["schema"]["openAPIV3Schema"];
            assert_eq!(schema.pointer(path), Some(&wanted), "{what}");
            let (parent, name) = path.rsplit_once('/').unwrap();
            schema.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name);
            assert_eq!(found, spec(&own), "{what}: nothing else");
        }
        let mut others = spec(
            &json!({"type": "object", "required": ["status"], "x-kubernetes-preserve-unknown-fields": true,
            "properties": {
                "metadata": object(json!({"n": new})),
                "spec": {"type": "string", "required": ["z"], "x-kubernetes-validations": [{"rule": "false"}], "properties": {
                    "a": {"type": "integer", "properties": {"n": new}},
                    "list": {"type": "array", "maxItems": 0},
                    "closed": object(json!({"n": new})),
                }},
            }}),
        );
        others["names"] = json!({"plural": "things", "kind": "Other", "shortNames": ["secrets"]});
        others["scope"] = "Cluster".into();
        others["conversion"] = json!({"strategy": "Webhook"});
        others["versions"][0]["subresources"] = json!({"status": {}, "scale": {}});
        others["versions"].as_array_mut().unwrap().push(json!({"name": "v2", "served": true, "storage": false}));
        assert_eq!(extended(&spec(&own), &others), spec(&own));
        // Too much is nothing, and Slipway's own kinds are nobody else's.
        let much = json!({"type": "object", "description": "x".repeat(ADDED_MAX)});
        assert_eq!(extended(&spec(&own), &spec(&object(json!({ "status": much })))), spec(&own));
        let mut ours = spec(&own);
        ours["group"] = OWN_GROUP.into();
        let mut theirs = spec(&object(json!({"status": new})));
        theirs["group"] = OWN_GROUP.into();
        assert_eq!(extended(&ours, &theirs), ours);
    }

    #[test]
    fn any_form_of_a_definition_is_only_passed_over() {
        let own = built_in_spec("baremetalhosts.metal3.io").unwrap();
        for odd in [json!(null), json!([]), json!("x"), json!({"properties": []}), json!({"properties": {"spec": 5}})] {
            assert_eq!(extended(&own, &odd), own);
            let mut by = own.clone();
            by["versions"][0]["schema"]["openAPIV3Schema"] = odd.clone();
            assert_eq!(extended(&own, &by), own, "{odd}");
        }
        assert_eq!(extended(&own, &own), own);
        assert!(built_in_spec("clusterroles.rbac.authorization.k8s.io").is_none());
    }
}
