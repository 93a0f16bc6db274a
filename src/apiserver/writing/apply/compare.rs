//! What differs between two values of a type, path by path.

use serde_json::Value;

use super::element::{Element, same};
use super::set::Set;
use super::typed::elements;
use crate::apiserver::schema::{Atom, ListTopology, Map, MergeType, Relation};

/// Paths that differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldComparison {
    /// In the first only.
    pub removed: Set,
    /// In both, and not the same.
    pub modified: Set,
    /// In the second only.
    pub added: Set,
}

impl FieldComparison {
    /// Without these paths and what is below them.
    #[must_use]
    pub fn without(self, paths: &Set) -> Self {
        if paths.is_empty() {
            return self;
        }
        Self {
            removed: self.removed.without(paths),
            modified: self.modified.without(paths),
            added: self.added.without(paths),
        }
    }

    /// Paths that the second sets.
    pub fn set(&self) -> Set {
        self.modified.union(&self.added)
    }

    fn put(&mut self, element: &Element, found: ComparedValue) {
        let ComparedValue { own, below } = found;
        self.removed.push(element.clone(), own == Some(FieldChange::Removed), below.removed);
        self.modified.push(element.clone(), own == Some(FieldChange::Modified), below.modified);
        self.added.push(element.clone(), own == Some(FieldChange::Added), below.added);
    }

    fn sort(&mut self) {
        for set in [&mut self.removed, &mut self.modified, &mut self.added] {
            set.sort();
        }
    }

    fn union(self, other: &Self) -> Self {
        Self {
            removed: self.removed.union(&other.removed),
            modified: self.modified.union(&other.modified),
            added: self.added.union(&other.added),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum FieldChange {
    Removed,
    Modified,
    Added,
}

/// What happened to a value itself and below it.
#[derive(Default)]
struct ComparedValue {
    own: Option<FieldChange>,
    below: FieldComparison,
}

/// Compares two whole objects.
pub fn compare(kind: MergeType<'_>, old: &Value, new: &Value) -> FieldComparison {
    walk(kind, Some(old), Some(new)).below
}

fn walk(kind: MergeType<'_>, old: Option<&Value>, new: Option<&Value>) -> ComparedValue {
    let (before, after) = (kind.atom(old), kind.atom(new));
    match (old, new) {
        (Some(_), None) => in_atom(before, old, new),
        (None, _) => in_atom(after, old, new),
        _ if std::mem::discriminant(&before) == std::mem::discriminant(&after) => in_atom(after, old, new),
        // The value became one of another type: the old parts go, the new ones come.
        _ => {
            let (gone, come) = (in_atom(before, old, new), in_atom(after, old, new));
            ComparedValue { own: gone.own.or(come.own), below: gone.below.union(&come.below) }
        }
    }
}

fn in_atom(atom: Atom<'_>, old: Option<&Value>, new: Option<&Value>) -> ComparedValue {
    let whole = match atom {
        Atom::Scalar(_) => true,
        Atom::List(ListTopology { relation: Relation::Atomic, .. }) | Atom::Map(Map { atomic: true, .. }) => true,
        // Two empty ones are compared as they are: null is not the same as empty.
        Atom::List(_) => entries_of(old).is_empty() && entries_of(new).is_empty(),
        Atom::Map(_) => [old, new].iter().all(|side| fields_of(*side).is_none_or(serde_json::Map::is_empty)),
    };
    let own = match (old, new) {
        (Some(_), None) => Some(FieldChange::Removed),
        (None, _) => Some(FieldChange::Added),
        (Some(old), Some(new)) => (whole && !same(old, new)).then_some(FieldChange::Modified),
    };
    let below = match atom {
        _ if whole => FieldComparison::default(),
        Atom::List(list) => in_list(&list, entries_of(old), entries_of(new)),
        Atom::Map(map) => in_map(&map, fields_of(old), fields_of(new)),
        Atom::Scalar(_) => FieldComparison::default(),
    };
    ComparedValue { own, below }
}

type ObjectFields = serde_json::Map<String, Value>;

fn fields_of(value: Option<&Value>) -> Option<&ObjectFields> {
    value.and_then(Value::as_object)
}

fn entries_of(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn in_map(map: &Map<'_>, old: Option<&ObjectFields>, new: Option<&ObjectFields>) -> FieldComparison {
    let mut found = FieldComparison::default();
    for (name, child) in old.into_iter().flatten() {
        let now = new.and_then(|new| new.get(name));
        // Most of an object stays as it is.
        if now.is_some_and(|now| now == child) {
            continue;
        }
        found.put(&Element::field(name), walk(map.field(name), Some(child), now));
    }
    for (name, child) in new.into_iter().flatten() {
        if old.is_none_or(|old| !old.contains_key(name)) {
            found.put(&Element::field(name), walk(map.field(name), None, Some(child)));
        }
    }
    found.sort();
    found
}

fn in_list(list: &ListTopology<'_>, old: &[Value], new: &[Value]) -> FieldComparison {
    let mut sides: Vec<(Element, &Value, bool)> = Vec::with_capacity(old.len() + new.len());
    sides.extend(elements(list, old).into_iter().map(|(element, entry)| (element, entry, false)));
    sides.extend(elements(list, new).into_iter().map(|(element, entry)| (element, entry, true)));
    // Stable: of the same element the old ones come first, each side in its order.
    sides.sort_by(|a, b| a.0.cmp(&b.0));
    let mut found = FieldComparison::default();
    for group in sides.chunk_by(|a, b| a.0 == b.0) {
        let Some((element, ..)) = group.first() else { continue };
        let (before, after) = group.split_at(group.partition_point(|(_, _, new)| !new));
        let one = |side: &[(Element, &Value, bool)], own| {
            match side {
                [] => ComparedValue::default(),
                [(_, entry, true), ..] => walk(list.item, None, Some(entry)),
                [(_, entry, false), ..] => walk(list.item, Some(entry), None),
            }
            .or(own)
        };
        match (before, after) {
            ([] | [_], [] | [_]) => {
                let (old, new) = (before.first().map(|side| side.1), after.first().map(|side| side.1));
                found.put(element, walk(list.item, old, new));
            }
            // Twins are one whole.
            ([_, _, ..], [_, _, ..]) => {
                let equal =
                    before.len() == after.len() && before.iter().zip(after).all(|(old, new)| same(old.1, new.1));
                if !equal {
                    found.put(element, ComparedValue { own: Some(FieldChange::Modified), ..ComparedValue::default() });
                }
            }
            ([_, _, ..], _) => {
                if !after.is_empty() {
                    found.put(element, one(after, None));
                }
                found.put(element, one(&[], Some(FieldChange::Removed)));
            }
            (_, [_, _, ..]) => {
                if !before.is_empty() {
                    found.put(element, one(before, None));
                }
                found.put(element, one(&[], Some(FieldChange::Added)));
            }
        }
    }
    found.sort();
    found
}

impl ComparedValue {
    fn or(mut self, own: Option<FieldChange>) -> Self {
        self.own = self.own.or(own);
        self
    }
}
