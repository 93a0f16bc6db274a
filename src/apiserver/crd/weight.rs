//! Memory accounting of definitions.
//!
//! What a definition takes of the memory for as long as it is there: its schemas, compiled, and the documents made of
//! them. Reckoned from its text, so that it is known before anything is made. Pure.
//!
//! The numbers are those of the parts as they are compiled on a 64-bit machine, with what the allocator adds, each at its
//! dearest: a definition of 19,000 texts, reckoned at 14.5 MB, was measured to take 11.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::super::schema::Schema;
use crate::store::json_len;

/// What all definitions of users may take of the memory, in bytes: 320 MiB. Some hundred definitions as operators bring
/// them, with 150,000 nodes in all, are reckoned at about two thirds of that.
pub(super) const ALL_MAX: usize = 320 << 20;

/// A definition, however small: its names, its place in the tables, its history.
const DEFINITION: usize = 16 << 10;
/// A served version, however small: its table of columns, its paths in the documents, a schema of metadata of its own.
const VERSION: usize = 48 << 10;
/// A node of a schema, with its name and its place in the node above.
const NODE: usize = 640;
/// The table of a node that has properties.
const PROPERTIES: usize = 384;
/// Nodes of the fields that an embedded object has.
const EMBEDDED: usize = 3;
/// Places that a list of nodes has at least.
const LIST_MIN: usize = 4;
/// A byte of the text of a schema: in the registry, and in documents of both versions in their forms, of which some are
/// packed.
const TEXT: usize = 4;
/// A byte of the rest of a version, as columns and paths.
const REST: usize = 32;
/// A rule, and a byte of its text.
const RULE: usize = 4 << 10;
const RULE_TEXT: usize = 100;
/// A JSON value; a text beside its bytes; an object beside what is in it.
const VALUE: usize = 32;
const STRING: usize = 16;
const OBJECT: usize = 640;
/// Copies of the names of a definition beside those of each version.
const NAMES: usize = 3;

/// What a definition takes, in bytes.
pub(super) fn of(definition: &Value) -> usize {
    let spec = &definition["spec"];
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let served: Vec<&Value> = versions.iter().filter(|version| version["served"] == true).collect();
    let names = value(&spec["names"]) * (served.len() + NAMES);
    let mut patterns = HashSet::new();
    let versions: usize = served.into_iter().map(|one| version(one, &mut patterns)).sum();
    // One that cannot be compiled is refused with its definition.
    let patterns: usize = patterns.into_iter().filter_map(|text| Schema::pattern_weight(text).ok()).sum();
    DEFINITION + value(&definition["status"]) + names + versions + patterns
}

fn version<'v>(version: &'v Value, patterns: &mut HashSet<&'v str>) -> usize {
    let schema = &version["schema"]["openAPIV3Schema"];
    let text = json_len(schema);
    let rest = json_len(version).saturating_sub(text);
    VERSION + text * TEXT + rest * REST + node(schema, patterns)
}

/// A node of a schema with all below it, compiled.
fn node<'v>(schema: &'v Value, patterns: &mut HashSet<&'v str>) -> usize {
    let Some(map) = schema.as_object() else { return NODE };
    let mut weight = NODE;
    for (keyword, source) in map {
        weight += match keyword.as_str() {
            "properties" => match source.as_object() {
                Some(properties) => {
                    PROPERTIES + properties.iter().map(|(name, one)| name.len() + node(one, patterns)).sum::<usize>()
                }
                None => 0,
            },
            "items" | "not" | "additionalProperties" => node(source, patterns),
            "allOf" | "anyOf" | "oneOf" => {
                let nodes = source.as_array().map(Vec::as_slice).unwrap_or_default();
                // A list that is filled bit by bit has room for up to twice as many.
                let spare = nodes.len().max(LIST_MIN.saturating_sub(nodes.len()));
                spare * NODE + nodes.iter().map(|one| node(one, patterns)).sum::<usize>()
            }
            "default" | "enum" | "required" | "x-kubernetes-list-map-keys" => value(source),
            "x-kubernetes-validations" => {
                source.as_array().into_iter().flatten().map(|rule| RULE + RULE_TEXT * json_len(rule)).sum()
            }
            "x-kubernetes-embedded-resource" => EMBEDDED * NODE + PROPERTIES,
            "pattern" => {
                patterns.extend(source.as_str());
                0
            }
            _ => 0,
        };
    }
    weight
}

/// A JSON value as it is kept.
pub(in crate::apiserver) fn value(source: &Value) -> usize {
    let inner = match source {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => STRING + text.len(),
        Value::Array(entries) => LIST_MIN * VALUE + entries.iter().map(value).sum::<usize>(),
        Value::Object(map) => object(map),
    };
    VALUE + inner
}

fn object(map: &Map<String, Value>) -> usize {
    OBJECT + map.iter().map(|(name, one)| VALUE + STRING + name.len() + value(one)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(schema: &Value) -> Value {
        json!({"spec": {"group": "example.org", "names": {"plural": "widgets", "kind": "Widget"}, "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
            {"name": "v0", "served": false, "storage": false, "schema": {"openAPIV3Schema": schema}},
        ]}})
    }

    #[test]
    fn each_part_of_a_definition_weighs() {
        let empty = of(&definition(&json!({})));
        assert!((64 << 10..80 << 10).contains(&empty), "{empty}");
        let more = |schema: &Value| of(&definition(schema)) - empty;
        let texts: Map<_, _> = (0..1000).map(|one| (format!("a{one}"), json!({"type": "string"}))).collect();
        let pattern = |text: &str| json!({"type": "string", "pattern": text});
        for (schema, least, most) in [
            (json!({ "properties": texts }), 1000 * NODE, 1000 * (NODE + 200)),
            (json!({"description": "x".repeat(100_000)}), 400_000, 401_000),
            (json!({"enum": vec![1; 10_000]}), 10_000 * VALUE, 10_000 * 50),
            (json!({"default": vec![json!({}); 10_000]}), 10_000 * OBJECT, 10_000 * (OBJECT + 50)),
            (json!({"required": vec!["a"; 10_000]}), 10_000 * 40, 10_000 * 80),
            (json!({"anyOf": vec![json!({}); 1000]}), 2000 * 512, 2000 * 700),
            (json!({"not": {"allOf": [{}]}}), 4 * 512, 6 * 700),
            (json!({"items": {"additionalProperties": {"x-kubernetes-embedded-resource": true}}}), 5 * 512, 8 * 700),
            (json!({"x-kubernetes-validations": vec![json!({"rule": "self.a"}); 50]}), 50 * RULE, 50 * 2 * RULE),
            (json!({"items": pattern(r"^\w{20}$")}), 1 << 20, 2 << 20),
            (json!({"items": pattern(r"^\w{20}$"), "not": pattern(r"^\w{20}$")}), 1 << 20, 2 << 20),
        ] {
            let found = more(&schema);
            assert!((least..=most).contains(&found), "{found} is not {least} to {most}: {schema:.100}");
        }
        // What each version has of its own.
        let mut named = definition(&json!({}));
        named["spec"]["names"]["shortNames"] = json!(vec!["a"; 10_000]);
        assert!(of(&named) > empty + 4 * 10_000 * 40);
        named["spec"]["versions"][0]["additionalPrinterColumns"] = json!([{"jsonPath": ".a".repeat(250)}]);
        assert!(of(&named) > empty + 4 * 10_000 * 40 + 500 * REST);
    }

    #[test]
    fn a_cluster_of_operators_fits() {
        // As published: a fifth of the nodes have properties, and every second a text.
        let leaf = |words: &str| json!({"type": "string", "description": words});
        let words = "What this field is for, said in about as many words as operators say it. ".repeat(2);
        let node = |words: &str| {
            json!({"type": "object", "properties": {
            "name": leaf(words), "namespace": leaf(""), "count": leaf(words), "mode": leaf("")}})
        };
        let fields: Map<_, _> = (0..300).map(|one| (format!("field{one}"), node(&words))).collect();
        let one = of(&definition(&json!({"type": "object", "properties": fields})));
        assert!(one * 100 < ALL_MAX / 10 * 7, "{one}");
    }

    #[test]
    fn a_node_is_no_larger_than_is_reckoned() {
        assert!(size_of::<Schema>() + 128 <= NODE, "{}", size_of::<Schema>());
    }
}
