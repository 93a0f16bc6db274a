//! Merge strategy of a schema: which parts are one whole, and what makes entries of a list the same.
//!
//! This is the reading of `x-kubernetes-list-type`, `x-kubernetes-list-map-keys`, `x-kubernetes-map-type`,
//! `x-kubernetes-preserve-unknown-fields`, and of `x-kubernetes-patch-strategy` with its merge key for the core kinds
//! (Kubernetes API concepts, "Merge strategy").

use serde_json::Value;

use super::{ListType, Schema, SchemaFormat, SchemaType as JsonType};

/// Deepest that a schema is followed through `allOf`.
const WRAPPED_MAX: usize = 8;

/// What is known of a value.
#[derive(Clone, Copy, Debug)]
pub enum MergeType<'s> {
    /// A schema says it; with the flag, fields that it does not declare are kept.
    Declared(&'s Schema, bool),
    /// Nothing is known: maps are merged, lists are replaced.
    Deduced,
}

/// How one value is to be looked at.
#[derive(Clone, Copy, Debug)]
pub enum Atom<'s> {
    /// A plain value.
    Scalar(Scalar),
    /// A list.
    List(ListTopology<'s>),
    /// A map or an object.
    Map(Map<'s>),
}

/// Plain values that a schema allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// Whole or not.
    Numeric,
    /// Text.
    Text,
    /// A flag.
    Flag,
    /// Any of them.
    Any,
}

/// What makes entries of a list the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Relation<'s> {
    /// The list is one whole.
    Atomic,
    /// Their value.
    Set,
    /// Their values of these fields.
    Keys(&'s [String]),
}

/// A list.
#[derive(Clone, Copy, Debug)]
pub struct ListTopology<'s> {
    /// What makes entries the same.
    pub relation: Relation<'s>,
    /// What each entry is.
    pub item: MergeType<'s>,
}

/// A map or an object.
#[derive(Clone, Copy, Debug)]
pub struct Map<'s> {
    /// Whether it is one whole.
    pub atomic: bool,
    schema: Option<&'s Schema>,
    keep: bool,
}

impl<'s> MergeType<'s> {
    /// The type of a whole object.
    pub fn root(schema: &'s Schema) -> Self {
        Self::Declared(schema, false)
    }

    /// How to look at a value of this type; where a type allows several, the value decides.
    pub fn atom(self, value: Option<&Value>) -> Atom<'s> {
        let Self::Declared(schema, keep) = self else { return deduced(value) };
        let schema = unwrapped(schema);
        let keep = keep || schema.preserve_unknown;
        let list = || Atom::List(ListTopology { relation: schema.relation(), item: schema.item(keep) });
        let map = || Atom::Map(Map { atomic: schema.atomic_map, schema: Some(schema), keep });
        if schema.int_or_string {
            return Atom::Scalar(Scalar::Any);
        }
        match schema.kind {
            Some(JsonType::Object) => map(),
            Some(JsonType::Array) => list(),
            Some(JsonType::Integer | JsonType::Number) => Atom::Scalar(Scalar::Numeric),
            Some(JsonType::Boolean) => Atom::Scalar(Scalar::Flag),
            Some(JsonType::String) => match schema.format {
                None | Some(SchemaFormat::Byte) => Atom::Scalar(Scalar::Text),
                Some(_) => Atom::Scalar(Scalar::Any),
            },
            None => match value {
                Some(Value::Array(_)) => list(),
                Some(Value::Object(_) | Value::Null) | None => map(),
                Some(_) => Atom::Scalar(Scalar::Any),
            },
        }
    }
}

fn deduced(value: Option<&Value>) -> Atom<'static> {
    match value {
        Some(Value::Array(_)) => Atom::List(ListTopology { relation: Relation::Atomic, item: MergeType::Deduced }),
        Some(Value::Object(_) | Value::Null) | None => Atom::Map(Map { atomic: false, schema: None, keep: true }),
        Some(_) => Atom::Scalar(Scalar::Any),
    }
}

/// A schema that only refers to another one stands for that one.
fn unwrapped(mut schema: &Schema) -> &Schema {
    for _ in 0..WRAPPED_MAX {
        match schema.all_of.as_slice() {
            [only] if schema.kind.is_none() && schema.properties.is_empty() => schema = only,
            _ => break,
        }
    }
    schema
}

impl Schema {
    fn relation(&self) -> Relation<'_> {
        match if self.list == ListType::Atomic { &self.merge } else { &self.list } {
            ListType::Set => Relation::Set,
            ListType::Map(keys) if !keys.is_empty() => Relation::Keys(keys),
            ListType::Atomic | ListType::Map(_) => Relation::Atomic,
        }
    }

    fn item(&self, keep: bool) -> MergeType<'_> {
        self.items.as_deref().map_or(MergeType::Deduced, |items| MergeType::Declared(items, keep))
    }

    /// Reads `x-kubernetes-patch-strategy` and `x-kubernetes-patch-merge-key`.
    pub(super) fn read_merge(source: &serde_json::Map<String, Value>) -> ListType {
        let merges = source
            .get("x-kubernetes-patch-strategy")
            .and_then(Value::as_str)
            .is_some_and(|strategy| strategy.split(',').any(|one| one == "merge"));
        match source.get("x-kubernetes-patch-merge-key").and_then(Value::as_str) {
            Some(key) if merges => ListType::Map(vec![key.to_owned()]),
            None if merges => ListType::Set,
            _ => ListType::Atomic,
        }
    }
}

impl<'s> ListTopology<'s> {
    /// What the schema puts for a key that an entry leaves out.
    pub fn key_default(&self, key: &str) -> Option<&'s Value> {
        match self.item {
            MergeType::Declared(schema, _) => unwrapped(schema).properties.get(key)?.default.as_ref(),
            MergeType::Deduced => None,
        }
    }
}

impl<'s> Map<'s> {
    /// The type of a field that is declared by name.
    pub fn named(&self, name: &str) -> Option<MergeType<'s>> {
        let schema = self.schema?;
        schema.properties.get(name).map(|property| MergeType::Declared(property, self.keep))
    }

    /// The type of other fields; `None` when there may be none.
    pub fn others(&self) -> Option<MergeType<'s>> {
        let Some(schema) = self.schema else { return Some(MergeType::Deduced) };
        match &schema.additional {
            Some(additional) => Some(MergeType::Declared(additional, self.keep)),
            None if schema.any_additional || self.keep || schema.properties.is_empty() => Some(MergeType::Deduced),
            None => None,
        }
    }

    /// The type of a field, be it declared or not.
    pub fn field(&self, name: &str) -> MergeType<'s> {
        self.named(name).or_else(|| self.others()).unwrap_or(MergeType::Deduced)
    }

    /// Whether nothing at all is declared.
    pub fn is_deduced(&self) -> bool {
        self.schema.is_none()
    }
}
