//! The rules of merging, table by table.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::compare::compare;
use super::manager::{ManagedFieldsEntry, Manager, ManagerOperation};
use super::merge::{merge, without};
use super::set::Set;
use super::typed::{fault, reconciled, to_set, with_named};
use super::update::{ApplyFault, ApplyRequest, VersionedObject, applied, updated};
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::schema::{MergeType, Schema};

fn schema() -> Schema {
    Schema::compile(&json!({
        "type": "object",
        "properties": {
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": {
                "type": "object",
                "properties": {
                    "n": {"type": "integer"},
                    "s": {"type": "string"},
                    "atomic": {"type": "array", "items": {"type": "string"}},
                    "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                    "ports": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["port", "protocol"],
                        "items": {"type": "object", "properties": {
                            "port": {"type": "integer"},
                            "protocol": {"type": "string", "default": "TCP"},
                            "name": {"type": "string"},
                        }},
                    },
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                    "whole": {"type": "object", "x-kubernetes-map-type": "atomic",
                        "additionalProperties": {"type": "string"}},
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "either": {"x-kubernetes-int-or-string": true},
                },
            },
        },
    }))
    .unwrap()
}

fn set(value: &Value) -> Set {
    serde_json::from_value(value.clone()).unwrap()
}

fn text(set: &Set) -> Value {
    set.to_value()
}

fn spec(value: Value) -> Value {
    json!({ "spec": value })
}

#[test]
fn values_have_the_paths_that_their_schema_says() {
    let schema = schema();
    let kind = MergeType::root(&schema);
    for (value, wanted) in [
        (json!({"n": 1, "s": "x"}), json!({"f:n": {}, "f:s": {}})),
        (json!({"atomic": ["a"], "whole": {"a": "b"}}), json!({"f:atomic": {}, "f:whole": {}})),
        (json!({"set": ["a", "b", "a"]}), json!({"f:set": {"v:\"a\"": {}, "v:\"b\"": {}}})),
        (
            json!({"ports": [{"port": 1, "name": "x"}]}),
            json!({"f:ports": {"k:{\"port\":1,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:name": {}}}}),
        ),
        (json!({"labels": {"a": "b"}}), json!({"f:labels": {"f:a": {}}})),
        (json!({"labels": {}}), json!({"f:labels": {}})),
        (json!({"labels": null}), json!({"f:labels": {}})),
        (json!({"free": {"a": {"b": [1], "c": {}}}}), json!({"f:free": {"f:a": {".": {}, "f:b": {}, "f:c": {}}}})),
        (json!({"either": "x"}), json!({"f:either": {}})),
    ] {
        assert_eq!(text(&to_set(kind, &spec(value.clone()))), json!({ "f:spec": wanted }), "{value}");
    }
}

#[test]
fn differences_are_named() {
    let schema = schema();
    let kind = MergeType::root(&schema);
    let nothing = json!({});
    for (old, new, removed, modified, added) in [
        (json!({"n": 1}), json!({"n": 1.0}), &nothing, &nothing, &nothing),
        (json!({"n": 1}), json!({"n": 2}), &nothing, &json!({"f:n": {}}), &nothing),
        (json!({"n": 1}), json!({"s": "x"}), &json!({"f:n": {}}), &nothing, &json!({"f:s": {}})),
        (
            json!({"labels": {"a": "1", "b": "1"}}),
            json!({"labels": {"a": "2"}}),
            &json!({"f:labels": {"f:b": {}}}),
            &json!({"f:labels": {"f:a": {}}}),
            &nothing,
        ),
        (json!({}), json!({"labels": {"a": "2"}}), &nothing, &nothing, &json!({"f:labels": {".": {}, "f:a": {}}})),
        (json!({"whole": {"a": "1"}}), json!({"whole": {"a": "2"}}), &nothing, &json!({"f:whole": {}}), &nothing),
        (json!({"atomic": ["a"]}), json!({"atomic": ["b"]}), &nothing, &json!({"f:atomic": {}}), &nothing),
        (
            json!({"set": ["a", "b"]}),
            json!({"set": ["b", "c"]}),
            &json!({"f:set": {"v:\"a\"": {}}}),
            &nothing,
            &json!({"f:set": {"v:\"c\"": {}}}),
        ),
        (
            json!({"ports": [{"port": 1, "name": "x"}, {"port": 2}]}),
            json!({"ports": [{"port": 2, "name": "y"}, {"port": 1, "name": "z"}]}),
            &nothing,
            &json!({"f:ports": {"k:{\"port\":1,\"protocol\":\"TCP\"}": {"f:name": {}}}}),
            &json!({"f:ports": {"k:{\"port\":2,\"protocol\":\"TCP\"}": {"f:name": {}}}}),
        ),
        (
            json!({"free": {"a": 1}}),
            json!({"free": {"a": {"b": 1}}}),
            &nothing,
            &json!({"f:free": {"f:a": {}}}),
            &json!({"f:free": {"f:a": {"f:b": {}}}}),
        ),
        (
            json!({"set": ["a", "a"]}),
            json!({"set": ["a"]}),
            &json!({"f:set": {"v:\"a\"": {}}}),
            &nothing,
            &json!({"f:set": {"v:\"a\"": {}}}),
        ),
        (json!({"labels": {}}), json!({"labels": null}), &nothing, &json!({"f:labels": {}}), &nothing),
    ] {
        let found = compare(kind, &spec(old.clone()), &spec(new.clone()));
        let below = |found: &Set| text(found).get("f:spec").cloned().unwrap_or_else(|| json!({}));
        assert_eq!(
            (&below(&found.removed), &below(&found.modified), &below(&found.added)),
            (removed, modified, added),
            "{old} {new}"
        );
    }
}

#[test]
fn configurations_are_laid_over_objects() {
    let schema = schema();
    let kind = MergeType::root(&schema);
    let ports = |of: &[(u8, &str)]| json!({"ports": of.iter().map(|(port, name)| json!({"port": port, "name": name})).collect::<Vec<_>>()});
    for (live, config, wanted) in [
        (json!({"n": 1, "s": "x"}), json!({"n": 2}), json!({"n": 2, "s": "x"})),
        (json!({"labels": {"a": "1"}}), json!({"labels": {"b": "2"}}), json!({"labels": {"a": "1", "b": "2"}})),
        (json!({"labels": {"a": "1"}}), json!({"labels": {}}), json!({"labels": {"a": "1"}})),
        (json!({"labels": {"a": "1"}}), json!({"labels": null}), json!({"labels": {"a": "1"}})),
        (json!({"whole": {"a": "1"}}), json!({"whole": {"b": "2"}}), json!({"whole": {"b": "2"}})),
        (json!({"atomic": ["a", "b"]}), json!({"atomic": ["c"]}), json!({"atomic": ["c"]})),
        (json!({"set": ["a", "b", "c"]}), json!({"set": ["c", "x", "a"]}), json!({"set": ["b", "c", "x", "a"]})),
        (json!({"set": ["a", "b"]}), json!({"set": ["x"]}), json!({"set": ["a", "b", "x"]})),
        (json!({"set": ["a", "b", "c", "d"]}), json!({"set": ["b", "d"]}), json!({"set": ["a", "b", "c", "d"]})),
        (ports(&[(1, "x"), (2, "y")]), ports(&[(2, "z"), (3, "w")]), ports(&[(1, "x"), (2, "z"), (3, "w")])),
        (json!({"free": {"a": [1, 2], "b": 1}}), json!({"free": {"a": [3]}}), json!({"free": {"a": [3], "b": 1}})),
        (json!({"free": {"a": 1}}), json!({"free": {"a": {"b": 1}}}), json!({"free": {"a": {"b": 1}}})),
    ] {
        let merged = merge(kind, &spec(live.clone()), &spec(config.clone()));
        assert_eq!(merged, spec(wanted), "{live} {config}");
    }
    let kept = without(
        kind,
        &spec(json!({"labels": {"a": "1", "b": "2"}, "set": ["a", "b"], "whole": {"a": "1"}})),
        &set(&json!({"f:spec": {"f:labels": {"f:a": {}}, "f:set": {"v:\"a\"": {}}, "f:whole": {"f:a": {}}}})),
    );
    assert_eq!(kept, spec(json!({"labels": {"b": "2"}, "set": ["b"], "whole": {"a": "1"}})));
}

#[test]
fn faults_are_worded_as_upstream_words_them() {
    let schema = schema();
    let kind = MergeType::root(&schema);
    for (value, wanted) in [
        (json!({"n": 1, "free": {"any": [{"x": null}]}, "s": null}), None),
        (json!({"what": 1}), Some(".spec.what: field not declared in schema")),
        (json!({"n": "x"}), Some(".spec.n: expected numeric (int or float), got string")),
        (
            json!({"s": {"a": 1}}),
            Some(".spec.s: expected string, got &value.valueUnstructured{Value:map[string]interface {}{\"a\":1}}"),
        ),
        (json!({"labels": "x"}), Some(".spec.labels: expected map, got &{x}")),
        (json!({"atomic": 1}), Some(".spec.atomic: expected list, got &{1}")),
        (json!({"atomic": ["a", 1]}), Some(".spec.atomic[1]: expected string, got &value.valueUnstructured{Value:1}")),
        (json!({"set": ["a", "a"]}), Some(".spec.set: duplicate entries for key [=\"a\"]")),
        (
            json!({"set": [null]}),
            Some(".spec.set: element 0: associative list without keys has an element that's an explicit null"),
        ),
        (
            json!({"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}),
            Some(".spec.ports: duplicate entries for key [port=1,protocol=\"TCP\"]"),
        ),
        (
            json!({"ports": ["x"]}),
            Some(".spec.ports: element 0: associative list with keys may not have non-map elements"),
        ),
        (
            json!({"n": "x", "what": 1}),
            Some(
                "errors:\n  .spec.n: expected numeric (int or float), got string\n  .spec.what: field not declared in schema",
            ),
        ),
    ] {
        assert_eq!(fault(kind, &spec(value.clone()), false).as_deref(), wanted, "{value}");
    }
    assert_eq!(fault(kind, &spec(json!({"set": ["a", "a"]})), true), None);
}

#[test]
fn sets_follow_the_schema() {
    let schema = schema();
    let kind = MergeType::root(&schema);
    let named = with_named(kind, &set(&json!({"f:spec": {"f:labels": {"f:a": {}}, "f:free": {"f:a": {"f:b": {}}}}})));
    assert_eq!(
        text(&named),
        json!({"f:spec": {".": {}, "f:labels": {".": {}, "f:a": {}}, "f:free": {".": {}, "f:a": {"f:b": {}}}}})
    );
    // What became one whole is owned as one.
    let old = set(&json!({"f:spec": {"f:whole": {".": {}, "f:a": {}}, "f:atomic": {"v:\"a\"": {}}, "f:n": {}}}));
    let new = json!({"f:spec": {"f:whole": {}, "f:atomic": {}, "f:n": {}}});
    assert_eq!(reconciled(kind, &old).map(|set| text(&set)), Some(new.clone()));
    assert_eq!(reconciled(kind, &set(&new)), None);
    assert_eq!(reconciled(kind, &set(&json!({"f:spec": {"f:free": {"f:a": {"f:b": {}}}}}))), None);
}

/// A rig for the rules: one object, some managers.
struct Rules {
    schema: Schema,
    live: Value,
    managers: Vec<ManagedFieldsEntry>,
    clock: i64,
}

impl Rules {
    fn new() -> Self {
        Self { schema: schema(), live: json!({}), managers: Vec::new(), clock: 0 }
    }

    fn with<R>(&self, call: impl FnOnce(&VersionedObject<'_>) -> R) -> R {
        // A version that is gone, and one that calls `n` differently.
        let convert = |value: &Value, version: &str| -> Option<(Value, Arc<ServedResource>)> {
            assert_ne!(version, "v1", "nothing to convert");
            drop(value.clone());
            None
        };
        call(&VersionedObject { api_version: "v1", schema: &self.schema, convert: &convert, reset: &Set::default() })
    }

    fn now(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp::from_second(self.clock).unwrap()
    }

    fn write(&mut self, name: &str, value: Value) {
        let (now, new) = (self.now(), spec(value));
        self.managers = self.with(|types| updated(types, &self.live, &new, self.managers.clone(), name, "", now));
        self.live = new;
    }

    fn apply(&mut self, name: &str, force: bool, config: Value) -> Result<(), Vec<String>> {
        let (now, config) = (self.now(), spec(config));
        let manager = Manager {
            name: name.into(),
            operation: ManagerOperation::Apply,
            api_version: "v1".into(),
            subresource: String::new(),
        };
        let outcome = self.with(|types| {
            let empty = json!({});
            let request = ApplyRequest {
                live: &self.live,
                empty: &empty,
                config: &config,
                managers: &self.managers,
                manager: &manager,
                force,
            };
            applied(types, &request, now)
        });
        match outcome {
            Ok(outcome) => {
                self.managers = outcome.managers;
                self.live = outcome.object.unwrap_or_else(|| self.live.clone());
                Ok(())
            }
            Err(ApplyFault::Conflicts(conflicts)) => {
                Err(conflicts.iter().map(|one| format!("{} {}", one.manager.name, one.field())).collect())
            }
            Err(ApplyFault::Type { reason, .. }) => panic!("{reason}"),
        }
    }

    fn owned(&self, name: &str) -> Value {
        self.managers
            .iter()
            .find(|entry| entry.manager.name == name)
            .map_or(Value::Null, |entry| text(&entry.fields)["f:spec"].clone())
    }
}

#[test]
fn the_last_writer_owns_and_the_applier_is_told() {
    let mut rules = Rules::new();
    rules.write("w", json!({"n": 1, "s": "x"}));
    assert_eq!(rules.owned("w"), json!({".": {}, "f:n": {}, "f:s": {}}));
    assert_eq!(rules.apply("a", false, json!({"n": 1})), Ok(()), "the same value is shared");
    assert_eq!(rules.apply("a", false, json!({"n": 2})), Err(vec!["w .spec.n".into()]));
    assert_eq!(rules.apply("a", true, json!({"n": 2})), Ok(()));
    assert_eq!((rules.owned("a"), rules.owned("w")), (json!({"f:n": {}}), json!({".": {}, "f:s": {}})));
    // A write takes without asking, and what it removes nobody owns.
    rules.write("w", json!({"n": 3, "s": "x"}));
    assert_eq!(rules.owned("a"), Value::Null);
    rules.write("v", json!({"n": 3}));
    assert_eq!(rules.owned("w"), json!({".": {}, "f:n": {}}));
}

#[test]
fn what_is_no_longer_applied_goes_unless_it_is_shared() {
    let mut rules = Rules::new();
    let ports = |list: &[u8]| json!({"ports": list.iter().map(|port| json!({"port": port})).collect::<Vec<_>>()});
    rules.apply("a", false, ports(&[1, 2])).unwrap();
    rules.apply("b", false, ports(&[2, 3])).unwrap();
    rules.apply("a", false, ports(&[4])).unwrap();
    assert_eq!(rules.live, spec(json!({"ports": [{"port": 2}, {"port": 3}, {"port": 4}]})));
    rules.apply("a", false, json!({"n": 1})).unwrap();
    assert_eq!(rules.live, spec(json!({"n": 1, "ports": [{"port": 2}, {"port": 3}]})));
    // An entry goes as a whole, with what another one only added to it.
    rules.apply("a", false, ports(&[9])).unwrap();
    let mut now = rules.live["spec"].clone();
    now["ports"][2]["name"] = "mine".into();
    rules.write("w", now);
    rules.apply("a", false, json!({"s": "x"})).unwrap();
    assert_eq!(rules.live, spec(json!({"s": "x", "ports": [{"port": 2}, {"port": 3}]})));
}

#[test]
fn managers_of_versions_that_are_gone_are_forgotten() {
    let mut rules = Rules::new();
    rules.apply("a", false, json!({"n": 1, "s": "x"})).unwrap();
    rules.managers[0].manager.api_version = "v0".into();
    rules.apply("b", false, json!({"n": 2})).unwrap();
    assert_eq!((rules.owned("a"), rules.live["spec"].clone()), (Value::Null, json!({"n": 2, "s": "x"})));
}

#[test]
fn sets_know_whether_they_meet_and_cover_others() {
    let set = |paths: &[&[&str]]| Set::of_fields(paths);
    let all = set(&[&["spec"], &["spec", "a"], &["spec", "b", "c"]]);
    for (other, meets, covers) in [
        (set(&[]), false, true),
        (set(&[&["spec"]]), true, true),
        (set(&[&["spec", "a"], &["spec", "b", "c"]]), true, true),
        // On the way to a member, and none.
        (set(&[&["spec", "b"]]), false, false),
        (set(&[&["spec", "a"], &["status"]]), true, false),
        (set(&[&["spec", "b", "c", "d"]]), false, false),
    ] {
        assert_eq!((all.meets(&other), all.covers(&other)), (meets, covers), "{other:?}");
        assert_eq!(
            (all.meets(&other), all.covers(&other)),
            (!all.intersection(&other).is_empty(), other.difference(&all).is_empty())
        );
    }
}
