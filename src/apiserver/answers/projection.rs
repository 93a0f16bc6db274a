//! Partial JSON parsing: reads of an object's text only what columns look at.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::columns::{CellSource, PrinterColumn};

/// The members that the columns of a table look at.
#[derive(Debug, PartialEq)]
pub(super) struct Projection(Branch);

/// A part of an object.
#[derive(Debug, Default, PartialEq)]
struct Branch {
    /// All of it is wanted.
    whole: bool,
    members: Vec<(String, Branch)>,
}

impl Branch {
    fn want<'p>(&mut self, mut path: impl Iterator<Item = &'p str>) {
        let Some(first) = path.next() else {
            self.whole = true;
            return;
        };
        let at = match self.members.iter().position(|(name, _)| name == first) {
            Some(at) => at,
            None => {
                self.members.push((first.to_owned(), Self::default()));
                self.members.len() - 1
            }
        };
        self.members[at].1.want(path);
    }
}

impl Projection {
    pub(in crate::apiserver) fn new(columns: &[PrinterColumn]) -> Self {
        let mut root = Branch::default();
        for column in columns {
            match &column.source {
                CellSource::Name => root.want(["metadata", "name"].into_iter()),
                CellSource::Age => root.want(["metadata", "creationTimestamp"].into_iter()),
                CellSource::Path(path) => root.want(path.fields()),
                // It may look anywhere.
                CellSource::Cell(_) => root.want(std::iter::empty()),
            }
        }
        Self(root)
    }

    /// The object of this text with these members; others are left out.
    pub(in crate::apiserver) fn pick(&self, json: &[u8]) -> Value {
        let mut reader = serde_json::Deserializer::from_slice(json);
        // The text was read when the object was made.
        self.0.deserialize(&mut reader).unwrap_or_default()
    }
}

impl<'de> DeserializeSeed<'de> for &Branch {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.whole { serde::Deserialize::deserialize(deserializer) } else { deserializer.deserialize_any(self) }
    }
}

impl<'de> Visitor<'de> for &Branch {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Value, M::Error> {
        let mut picked = serde_json::Map::new();
        while let Some(found) = map.next_key_seed(ProjectionKey(&self.members))? {
            match found {
                Some((name, branch)) => {
                    picked.insert(name.clone(), map.next_value_seed(branch)?);
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Value::Object(picked))
    }

    // Paths lead through objects only: whatever else is there has no such member.
    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Value, S::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }

    fn visit_str<E>(self, _: &str) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

/// Finds a key among the wanted ones.
struct ProjectionKey<'b>(&'b [(String, Branch)]);

impl<'b, 'de> DeserializeSeed<'de> for ProjectionKey<'b> {
    type Value = Option<&'b (String, Branch)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl<'b> Visitor<'_> for ProjectionKey<'b> {
    type Value = Option<&'b (String, Branch)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|(name, _)| name == key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonpath::Path;
    use serde_json::json;

    #[test]
    fn only_what_columns_look_at_is_parsed() {
        let value = json!({
            "kind": "K", "metadata": {"name": "a", "creationTimestamp": "t", "labels": {"x": "y"}},
            "spec": {"image": {"url": "u", "more": [1]}, "other": 1, "list": [{"a": 1}, {"a": 2}]},
            "status": "odd",
        });
        let json = value.to_string();
        let column = |path: &str| PrinterColumn {
            source: CellSource::Path(Path::parse_plain(path).unwrap()),
            ..PrinterColumn::name()
        };
        let columns = [
            PrinterColumn::name(),
            column(".spec.image.url"),
            column(".spec.list[1].a"),
            column(".status.state.deeper"),
            column(".spec.other.deeper"),
            column(".none"),
        ];
        let picked = Projection::new(&columns).pick(json.as_bytes());
        let wanted = json!({
            "metadata": {"name": "a"}, "status": null,
            "spec": {"image": {"url": "u"}, "other": null, "list": [{"a": 1}, {"a": 2}]},
        });
        assert_eq!(picked, wanted);
        let now = jiff::Timestamp::UNIX_EPOCH;
        assert_eq!(
            super::super::columns::cells(&columns, &picked, now),
            super::super::columns::cells(&columns, &value, now)
        );
        let whole = [PrinterColumn::name(), PrinterColumn::cell("X", "string", 0, |_, _| Value::Null)];
        assert_eq!(Projection::new(&whole).pick(json.as_bytes()), value);
    }
}
