//! Laying one value over another, and taking paths out of a value.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map as Fields, Value};

use super::element::Element;
use super::set::Set;
use super::typed::{element_of, elements};
use crate::apiserver::schema::{Atom, ListTopology, Map, MergeType, Relation};

/// The first value with the second laid over it.
pub fn merge(kind: MergeType<'_>, under: &Value, over: &Value) -> Value {
    both(kind, under, over)
}

fn both(kind: MergeType<'_>, under: &Value, over: &Value) -> Value {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(entries) => entries.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    if empty(over) && empty(under) {
        return over.clone();
    }
    match kind.atom(Some(over)) {
        Atom::Map(map) if !map.atomic => match (under, over) {
            (Value::Object(under), Value::Object(over)) => Value::Object(maps(&map, under, over)),
            // Null over a map merges nothing into it.
            (Value::Object(_), Value::Null) => under.clone(),
            _ => over.clone(),
        },
        Atom::List(list) if list.relation != Relation::Atomic => match (under, over) {
            (Value::Array(under), Value::Array(over)) => Value::Array(lists(&list, under, over)),
            (Value::Array(_), Value::Null) => under.clone(),
            _ => over.clone(),
        },
        Atom::Scalar(_) | Atom::List(_) | Atom::Map(_) => over.clone(),
    }
}

fn maps(map: &Map<'_>, under: &Fields<String, Value>, over: &Fields<String, Value>) -> Fields<String, Value> {
    let mut out = under.clone();
    for (name, child) in over {
        let merged = match under.get(name) {
            Some(below) => both(map.field(name), below, child),
            None => child.clone(),
        };
        out.insert(name.clone(), merged);
    }
    out
}

/// Entries of both, each in its own list's order; what only the first has stays before what follows it there, unless
/// the second's order says otherwise.
fn lists(list: &ListTopology<'_>, under: &[Value], over: &[Value]) -> Vec<Value> {
    let (left, right) = (elements(list, under), elements(list, over));
    let mut of_left: BTreeMap<&Element, Option<&Value>> = BTreeMap::new();
    for (element, entry) in &left {
        // Twins are replaced as a whole.
        of_left.entry(element).and_modify(|twin| *twin = None).or_insert(Some(entry));
    }
    let in_right: BTreeSet<&Element> = right.iter().map(|(element, _)| element).collect();
    let mut shared = right.iter().map(|(element, _)| element).filter(|element| of_left.contains_key(element));
    let mut next_shared = shared.next();
    let mut merged: BTreeSet<&Element> = BTreeSet::new();
    let mut out = Vec::with_capacity(left.len().max(right.len()));
    let together = |element: &Element, entry: &Value| match of_left.get(element) {
        Some(Some(below)) => both(list.item, below, entry),
        _ => entry.clone(),
    };
    let (mut l, mut r) = (0, 0);
    loop {
        if let (Some((element, _)), Some((wanted, entry))) = (left.get(l), right.get(r)) {
            if element == wanted {
                merged.insert(wanted);
                out.push(together(wanted, entry));
                (l, r) = (l + 1, r + 1);
                next_shared = shared.next();
                continue;
            }
            if in_right.contains(element) && next_shared.is_some_and(|next| next != element) {
                // It comes later, where the second list has it.
                l += 1;
                continue;
            }
        }
        if let Some((element, entry)) = left.get(l) {
            if !in_right.contains(element) {
                out.push((*entry).clone());
                l += 1;
                continue;
            }
            if merged.contains(element) {
                l += 1;
            }
        }
        if let Some((element, entry)) = right.get(r) {
            merged.insert(element);
            out.push(together(element, entry));
            r += 1;
            if next_shared == Some(element) {
                next_shared = shared.next();
            }
        } else if l >= left.len() {
            return out;
        }
    }
}

/// The value without these paths.
pub fn without(kind: MergeType<'_>, value: &Value, paths: &Set) -> Value {
    if paths.nodes().is_empty() {
        return value.clone();
    }
    match (kind.atom(Some(value)), value) {
        (Atom::Map(map), Value::Object(fields)) if !map.atomic => {
            let kept = fields.iter().filter_map(|(name, child)| match paths.node(&Element::field(name)) {
                Some(node) if node.member => None,
                Some(node) => Some((name.clone(), without(map.field(name), child, &node.below))),
                None => Some((name.clone(), child.clone())),
            });
            Value::Object(kept.collect())
        }
        (Atom::List(list), Value::Array(entries)) if list.relation != Relation::Atomic => {
            let kept = entries.iter().filter_map(|entry| {
                match element_of(&list, entry).ok().and_then(|element| paths.node(&element)) {
                    Some(node) if node.member => None,
                    Some(node) => Some(without(list.item, entry, &node.below)),
                    None => Some(entry.clone()),
                }
            });
            Value::Array(kept.collect())
        }
        _ => value.clone(),
    }
}
