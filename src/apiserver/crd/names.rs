//! Names of definitions: which are accepted, and the conditions that say so. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::super::kinds::registry::ResourceRegistry;
use super::super::kinds::resource::ServedResource;
use super::super::objects::meta;

/// Owner of the names of built-in kinds. No definition can be called so, not even one that is named as the kind itself.
const BUILT_IN_KIND: &str = "built in";

/// Annotation of the definitions that the server writes for its own kinds.
pub(super) const BUILT_IN: &str = "slipway.dev/built-in";

/// Whether it is the definition of a kind that is built in.
pub(super) fn is_built_in(definition: &Value) -> bool {
    definition["metadata"]["annotations"][BUILT_IN] == "true"
}

/// Names that the built-in kinds of a group have.
fn built_in<'r>(registry: &'r ResourceRegistry, group: &'r str) -> impl Iterator<Item = &'r Arc<ServedResource>> {
    registry.all().iter().filter(move |resource| resource.custom.is_none() && resource.group == group)
}

/// Whether objects of the kind are served.
pub(super) fn is_established(definition: &Value) -> bool {
    has_condition(definition, "Established")
}

fn has_condition(definition: &Value, kind: &str) -> bool {
    let conditions = definition["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == kind && one["status"] == "True")
}

/// Names in use in a group, each with the definition that has it. Plurals, singulars and short names are one set,
/// kinds and kinds of lists another, as clients look them up.
#[derive(Default)]
struct Used {
    resources: HashMap<String, String>,
    kinds: HashMap<String, String>,
}

impl Used {
    fn add(&mut self, owner: &str, names: &Value) {
        for name in resource_names(names) {
            self.resources.entry(name.to_owned()).or_insert_with(|| owner.to_owned());
        }
        for name in ["kind", "listKind"].iter().filter_map(|field| text(names, field)) {
            self.kinds.entry(name.to_owned()).or_insert_with(|| owner.to_owned());
        }
    }
}

fn text<'v>(value: &'v Value, field: &str) -> Option<&'v str> {
    value[field].as_str().filter(|text| !text.is_empty())
}

fn resource_names(names: &Value) -> impl Iterator<Item = &str> {
    let short = names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str);
    ["plural", "singular"].into_iter().filter_map(|field| text(names, field)).chain(short)
}

/// What the definitions must become; each with its index. Empty when they are as they should be.
///
/// Names of built-in kinds stay with these. Names that were accepted once stay with their owner. Among new ones the older
/// definition comes first.
pub(super) fn settle(definitions: &[&Value], registry: &ResourceRegistry, now: Time) -> Vec<(usize, Value)> {
    let mut used: HashMap<&str, Used> = HashMap::new();
    let groups: HashSet<&str> = definitions.iter().filter_map(|one| one["spec"]["group"].as_str()).collect();
    for group in groups {
        let mine = used.entry(group).or_default();
        for resource in built_in(registry, group) {
            mine.add(
                BUILT_IN_KIND,
                &json!({"plural": resource.plural, "singular": resource.singular, "kind": resource.kind,
                    "listKind": resource.list_kind, "shortNames": resource.short_names}),
            );
        }
    }
    for one in definitions {
        used.entry(group_of(one)).or_default().add(name_of(one), &one["status"]["acceptedNames"]);
    }
    let mut order: Vec<usize> = (0..definitions.len()).collect();
    order.sort_by_key(|index| {
        let metadata = &definitions[*index]["metadata"];
        let field = |name: &str| metadata[name].as_str().unwrap_or_default();
        (!is_established(definitions[*index]), field("creationTimestamp"), field("name"))
    });
    let mut changes = Vec::new();
    for index in order {
        let before = definitions[index];
        let mine = used.entry(group_of(before)).or_default();
        let mut after = before.clone();
        settle_one(&mut after, mine, now.clone());
        mine.add(name_of(before), &after["status"]["acceptedNames"]);
        if after != *before {
            changes.push((index, after));
        }
    }
    changes
}

fn name_of(definition: &Value) -> &str {
    definition["metadata"]["name"].as_str().unwrap_or_default()
}

fn group_of(definition: &Value) -> &str {
    definition["spec"]["group"].as_str().unwrap_or_default()
}

fn settle_one(definition: &mut Value, used: &Used, now: Time) {
    let wanted = definition["spec"]["names"].clone();
    let owner = name_of(definition).to_owned();
    let mut accepted = definition["status"]["acceptedNames"].clone();
    if !accepted.is_object() {
        accepted = json!({"plural": "", "kind": ""});
    }
    let taken = |set: &HashMap<String, String>, name: &str| set.get(name).is_some_and(|other| *other != owner);
    let mut conflicts: Vec<(&str, String)> = Vec::new();
    let built_in = is_built_in(definition);
    // A status may be of an older version, or written by somebody: the only plural that it gives is the definition's own, and
    // none that a built-in kind has. Objects are found by it.
    let plural = text(&accepted, "plural").unwrap_or_default().to_owned();
    let of_built_in = used.resources.get(&plural).is_some_and(|owner| owner == BUILT_IN_KIND);
    if !built_in && (wanted["plural"] != plural || of_built_in) {
        accepted["plural"] = "".into();
    }
    for (field, reason) in [
        ("plural", "PluralConflict"),
        ("singular", "SingularConflict"),
        ("kind", "KindConflict"),
        ("listKind", "ListKindConflict"),
    ] {
        let Some(name) = text(&wanted, field) else { continue };
        let set = if field.ends_with("ind") { &used.kinds } else { &used.resources };
        if taken(set, name) && !built_in {
            conflicts.push((reason, format!("{name:?} is already in use")));
        } else {
            accepted[field] = name.into();
        }
    }
    let short: Vec<&str> = wanted["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let lost: Vec<&&str> = short.iter().filter(|name| taken(&used.resources, name) && !built_in).collect();
    if lost.is_empty() {
        set_or_remove(&mut accepted, "shortNames", &wanted["shortNames"]);
    } else {
        conflicts.insert(0, ("ShortNamesConflict", format!("{:?} is already in use", lost[0])));
    }
    set_or_remove(&mut accepted, "categories", &wanted["categories"]);
    if !definition["status"].is_object() {
        definition["status"] = json!({});
    }
    let found = text(&accepted, "plural").is_some();
    definition["status"]["acceptedNames"] = accepted;
    let fine = conflicts.is_empty();
    let (reason, message) = conflicts.into_iter().last().unwrap_or(("NoConflicts", "no conflicts found".to_owned()));
    let status = if fine { "True" } else { "False" };
    meta::set_condition(
        definition,
        meta::StatusCondition { kind: "NamesAccepted", status, reason, message: &message },
        now.clone(),
    );
    // Once established, a kind stays so whatever names it wishes for later, unless its objects were never its own.
    if is_established(definition) && found {
        return;
    }
    let established = if fine {
        meta::StatusCondition {
            kind: "Established",
            status: "True",
            reason: "InitialNamesAccepted",
            message: "the initial names have been accepted",
        }
    } else {
        meta::StatusCondition {
            kind: "Established",
            status: "False",
            reason: "NotAccepted",
            message: "not all names are accepted",
        }
    };
    meta::set_condition(definition, established, now);
}

fn set_or_remove(names: &mut Value, field: &str, value: &Value) {
    if let Some(map) = names.as_object_mut() {
        if value.is_null() {
            map.remove(field);
        } else {
            map.insert(field.into(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(name: &str, created: &str, names: &Value) -> Value {
        json!({"metadata": {"name": name, "creationTimestamp": created},
            "spec": {"group": name.split_once('.').unwrap().1, "names": names}})
    }

    fn settled(definitions: &mut [Value], registry: &ResourceRegistry) {
        let now = crate::apiserver::objects::meta::now();
        let refs: Vec<&Value> = definitions.iter().collect();
        let changes = settle(&refs, registry, now.clone());
        for (index, value) in changes {
            definitions[index] = value;
        }
        let refs: Vec<&Value> = definitions.iter().collect();
        assert!(settle(&refs, registry, now).is_empty(), "a second look changes nothing");
    }

    fn condition<'d>(definition: &'d Value, kind: &str) -> (&'d str, &'d str) {
        let all = definition["status"]["conditions"].as_array().unwrap();
        let one = all.iter().find(|one| one["type"] == kind).unwrap();
        (one["status"].as_str().unwrap(), one["reason"].as_str().unwrap())
    }

    #[test]
    fn the_first_to_ask_for_a_name_has_it() {
        let registry = crate::apiserver::kinds::built_in::registry(&crate::modules::kinds()).unwrap();
        let names = |plural: &str, kind: &str, short: &[&str]| {
            json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind,
                "listKind": format!("{kind}List"), "shortNames": short})
        };
        let mut all = [
            definition("widgets.example.org", "2026-01-02T00:00:00Z", &names("widgets", "Widget", &["w"])),
            definition("wheels.example.org", "2026-01-01T00:00:00Z", &names("wheels", "Wheel", &["w"])),
            definition("others.example.org", "2026-01-03T00:00:00Z", &names("others", "Wheel", &[])),
            definition("elsewhere.example.com", "2026-01-03T00:00:00Z", &names("elsewhere", "Wheel", &["w"])),
            definition("hosts.metal3.io", "2026-01-01T00:00:00Z", &names("hosts", "BareMetalHost", &[])),
            definition("bmhs.metal3.io", "2026-01-01T00:00:00Z", &names("bmhs", "Machine", &["bmh"])),
        ];
        settled(&mut all, &registry);
        for (index, accepted, reason) in [
            (0, false, "ShortNamesConflict"),
            (1, true, "NoConflicts"),
            (2, false, "ListKindConflict"),
            (3, true, "NoConflicts"),
            (4, false, "ListKindConflict"),
            (5, false, "ShortNamesConflict"),
        ] {
            let status = if accepted { "True" } else { "False" };
            assert_eq!(condition(&all[index], "NamesAccepted"), (status, reason), "{}", all[index]);
            assert_eq!(is_established(&all[index]), accepted, "{}", all[index]);
        }
        // The one that had to wait gets the name when its owner is gone.
        let mut rest = [all[0].clone()];
        settled(&mut rest, &registry);
        assert_eq!(condition(&rest[0], "Established"), ("True", "InitialNamesAccepted"));
        assert_eq!(rest[0]["status"]["acceptedNames"]["shortNames"], json!(["w"]));
        // A newcomer takes nothing from one that is established.
        let mut both = [
            definition("wheels.example.org", "2020-01-01T00:00:00Z", &names("wheels", "Wheel", &["w"])),
            rest[0].clone(),
        ];
        settled(&mut both, &registry);
        assert_eq!(condition(&both[0], "NamesAccepted"), ("False", "ShortNamesConflict"));
    }

    #[test]
    fn names_of_built_in_kinds_are_not_to_be_had() {
        let registry = crate::apiserver::kinds::built_in::registry(&crate::modules::kinds()).unwrap();
        let names =
            |plural: &str, kind: &str| json!({"plural": plural, "kind": kind, "listKind": format!("{kind}List")});
        let held = |plural: &str| {
            json!({"acceptedNames": names(plural, "Own"), "conditions": [
                {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": ""},
                {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": ""},
            ]})
        };
        let group = "rbac.authorization.k8s.io";
        for (plural, status, established) in [
            // As the kind itself is called: new, and as a version that let it pass has left it.
            ("clusterroles", Value::Null, false),
            ("clusterroles", held("clusterroles"), false),
            ("clusterrole", held("clusterrole"), false),
            // A name of its own, and a status that speaks of another.
            ("widgets", Value::Null, true),
            ("widgets", held("widgets"), true),
            ("widgets", held("clusterroles"), true),
        ] {
            let mut one = [definition(&format!("{plural}.{group}"), "2026-01-01T00:00:00Z", &names(plural, "Own"))];
            if !status.is_null() {
                one[0]["status"] = status.clone();
            }
            settled(&mut one, &registry);
            assert_eq!(is_established(&one[0]), established, "{plural} with {status}: {}", one[0]);
            let accepted = if established { plural } else { "" };
            assert_eq!(one[0]["status"]["acceptedNames"]["plural"], accepted, "{plural} with {status}");
        }
    }
}
