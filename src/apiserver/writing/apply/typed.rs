//! Values seen through their schema: which paths a value has, and whether it may be merged at all.

use std::collections::BTreeSet;

use serde_json::Value;

use super::element::Element;
use super::go;
use super::set::Set;
use crate::apiserver::schema::{Atom, ListTopology, Map, MergeType, Relation, Scalar};

/// Faults reported for one value.
const FAULTS_MAX: usize = 16;

/// What makes an entry of a list that is no whole the same as another one.
pub fn element_of(list: &ListTopology<'_>, entry: &Value) -> Result<Element, String> {
    match list.relation {
        Relation::Atomic => Err("invalid indexing of non-associative list".into()),
        Relation::Set => match entry {
            Value::Object(_) => Err("associative list without keys has an element that's a map type".into()),
            Value::Array(_) => Err("not supported: associative list with lists as elements".into()),
            Value::Null => Err("associative list without keys has an element that's an explicit null".into()),
            plain => Ok(Element::Value(Box::new(plain.clone()))),
        },
        Relation::Keys(names) => {
            let map = match entry {
                Value::Object(map) => map,
                Value::Null => return Err("associative list with keys may not have a null element".into()),
                _ => return Err("associative list with keys may not have non-map elements".into()),
            };
            let mut pairs: Vec<(Box<str>, Value)> = names
                .iter()
                .filter_map(|name| {
                    let value = map.get(name).or_else(|| list.key_default(name))?;
                    Some((name.as_str().into(), value.clone()))
                })
                .collect();
            if pairs.is_empty() {
                return Err(format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have \
                     default values for any key fields)",
                    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" ")
                ));
            }
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            Ok(Element::Key(pairs.into()))
        }
    }
}

/// The entries of a list with what makes each the same; entries that have no identity are left out.
pub fn elements<'v>(list: &ListTopology<'_>, entries: &'v [Value]) -> Vec<(Element, &'v Value)> {
    entries.iter().filter_map(|entry| element_of(list, entry).ok().map(|element| (element, entry))).collect()
}

/// The paths that a value has.
pub fn to_set(kind: MergeType<'_>, value: &Value) -> Set {
    below(kind, value).1
}

/// Whether the value's own path is one of them, and the longer ones.
fn below(kind: MergeType<'_>, value: &Value) -> (bool, Set) {
    match kind.atom(Some(value)) {
        Atom::Scalar(_) => (true, Set::default()),
        Atom::List(ListTopology { relation: Relation::Atomic, .. }) | Atom::Map(Map { atomic: true, .. }) => {
            (true, Set::default())
        }
        Atom::List(list) => {
            let Value::Array(entries) = value else { return (false, Set::default()) };
            let mut sorted = elements(&list, entries);
            sorted.sort_by(|a, b| a.0.cmp(&b.0));
            let mut set = Set::default();
            for group in sorted.chunk_by(|a, b| a.0 == b.0) {
                match group {
                    [(element, entry)] => set.push(element.clone(), true, below(list.item, entry).1),
                    // Of twins nobody can own a part.
                    [(element, _), ..] => set.push(element.clone(), true, Set::default()),
                    [] => {}
                }
            }
            (false, set)
        }
        Atom::Map(map) => {
            let Value::Object(fields) = value else { return (false, Set::default()) };
            let mut set = Set::default();
            for (name, child) in fields {
                let (own, deeper) = below(map.field(name), child);
                let empty = child.is_null() || child.as_object().is_some_and(serde_json::Map::is_empty);
                let member = own || empty || map.named(name).is_none();
                set.push(Element::field(name), member, deeper);
            }
            (false, set)
        }
    }
}

/// Why a value is none of its type, in upstream's words; `None` when it is. Twins in lists are a fault in what
/// is applied, not in what is there.
pub fn fault(kind: MergeType<'_>, value: &Value, twins_allowed: bool) -> Option<String> {
    let mut faults = Vec::new();
    check(kind, value, twins_allowed, &mut String::new(), &mut faults);
    match faults.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("errors:\n  {}", many.join("\n  "))),
    }
}

fn check(kind: MergeType<'_>, value: &Value, twins: bool, path: &mut String, faults: &mut Vec<String>) {
    if faults.len() >= FAULTS_MAX {
        return;
    }
    let note = |faults: &mut Vec<String>, path: &str, text: String| {
        faults.push(if path.is_empty() { text } else { format!("{path}: {text}") });
    };
    match kind.atom(Some(value)) {
        Atom::Scalar(scalar) => {
            let pointer = || format!("&value.valueUnstructured{{Value:{}}}", go::syntax(value));
            let text = match (scalar, value) {
                (_, Value::Null)
                | (Scalar::Numeric, Value::Number(_))
                | (Scalar::Text, Value::String(_))
                | (Scalar::Flag, Value::Bool(_))
                | (Scalar::Any, Value::Number(_) | Value::String(_) | Value::Bool(_)) => return,
                (Scalar::Numeric, _) => format!("expected numeric (int or float), got {}", go::type_name(value)),
                (Scalar::Text, _) => format!("expected string, got {}", pointer()),
                (Scalar::Flag, _) => format!("expected boolean, got &{{{}}}", go::plain(value)),
                (Scalar::Any, _) => format!("expected any scalar, got &{{{}}}", go::plain(value)),
            };
            note(faults, path, text);
        }
        Atom::List(list) => {
            let entries = match value {
                Value::Array(entries) => entries,
                Value::Null => return,
                _ => return note(faults, path, format!("expected list, got &{{{}}}", go::plain(value))),
            };
            let mut seen = BTreeSet::new();
            for (index, entry) in entries.iter().enumerate() {
                let element = match list.relation {
                    Relation::Atomic => Element::Index(i64::try_from(index).unwrap_or(i64::MAX)),
                    _ => match element_of(&list, entry) {
                        Ok(element) => element,
                        Err(text) => return note(faults, path, format!("element {index}: {text}")),
                    },
                };
                let length = path.len();
                path.push_str(&element.to_string());
                if list.relation != Relation::Atomic && !seen.insert(element) && !twins {
                    let shown = path.split_off(length);
                    note(faults, path, format!("duplicate entries for key {shown}"));
                    path.push_str(&shown);
                }
                check(list.item, entry, twins, path, faults);
                path.truncate(length);
            }
        }
        Atom::Map(map) => {
            let fields = match value {
                Value::Object(fields) => fields,
                Value::Null => return,
                _ => return note(faults, path, format!("expected map, got &{{{}}}", go::plain(value))),
            };
            for (name, child) in fields {
                let length = path.len();
                path.push('.');
                path.push_str(name);
                match map.named(name).or_else(|| map.others()) {
                    Some(kind) => check(kind, child, twins, path, faults),
                    None => note(faults, path, "field not declared in schema".into()),
                }
                path.truncate(length);
            }
        }
    }
}

/// The set with each declared field that is on the way to a member made a member too.
pub fn with_named(kind: MergeType<'_>, set: &Set) -> Set {
    let atoms = (kind.atom(None), kind.atom(Some(&Value::Array(Vec::new()))));
    set.map(|node| match (&node.element, atoms) {
        (Element::Field(name), (Atom::Map(map), _)) => {
            let deeper = with_named(map.field(name), &node.below);
            (node.member || (map.named(name).is_some() && !node.below.is_empty()), deeper)
        }
        (Element::Key(_), (_, Atom::List(list))) => (node.member, with_named(list.item, &node.below)),
        _ => (node.member, with_named(MergeType::Deduced, &node.below)),
    })
}

/// The set as the schema of today has it: where a list or a map became one whole, its parts become that whole.
/// `None` when nothing changes.
pub fn reconciled(kind: MergeType<'_>, set: &Set) -> Option<Set> {
    let (whole, deeper) = fold(kind, set, false)?;
    // A whole object is never one leaf.
    (!whole).then_some(deeper)
}

/// Whether the path itself becomes the member, and what stays below; `None` when nothing changes.
fn fold(kind: MergeType<'_>, set: &Set, leaf: bool) -> Option<(bool, Set)> {
    if leaf || set.nodes().is_empty() {
        return None;
    }
    let lists = set.nodes().iter().any(|node| !matches!(node.element, Element::Field(_)));
    let sample = if lists { Value::Array(Vec::new()) } else { Value::Object(serde_json::Map::new()) };
    let of = |element: &Element| match (kind.atom(Some(&sample)), element) {
        (Atom::Map(map), Element::Field(name)) => map.named(name).or_else(|| map.others()),
        (Atom::List(list), Element::Key(_) | Element::Value(_)) => Some(list.item),
        _ => None,
    };
    match kind.atom(Some(&sample)) {
        Atom::List(ListTopology { relation: Relation::Atomic, .. }) | Atom::Map(Map { atomic: true, .. }) => {
            return Some((true, Set::default()));
        }
        Atom::Map(map) if map.is_deduced() => return None,
        Atom::Scalar(_) => return None,
        Atom::List(_) | Atom::Map(_) => {}
    }
    let mut changed = false;
    let folded = set.map(|node| {
        let leaf = node.member && node.below.nodes().is_empty();
        match of(&node.element).and_then(|kind| fold(kind, &node.below, leaf)) {
            Some((whole, deeper)) => {
                changed = true;
                (node.member || whole, deeper)
            }
            None => (node.member, node.below.clone()),
        }
    });
    changed.then_some((false, folded))
}
