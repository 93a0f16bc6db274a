//! One step of a field path: a field, an entry of a list known by its keys or by its value, or a place in a list.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value};

use super::go;

/// A step of a path, ordered as upstream orders them: fields, keyed entries, values, places.
#[derive(Clone, Debug)]
pub enum Element {
    /// `f:name`
    Field(Box<str>),
    /// `k:{"type":"Ready"}`, sorted by key
    Key(Box<[(Box<str>, Value)]>),
    /// `v:"text"`
    Value(Box<Value>),
    /// `i:3`
    Index(i64),
}

impl Element {
    /// The step to a field.
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// Reads the form that `fieldsV1` has; `None` for kinds of steps that are not known, which are skipped.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        let Some((kind, rest)) = text.split_once(':') else { return Err(format!("missing colon: {text}")) };
        let json = |text: &str| serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
        Ok(Some(match kind {
            "f" => Self::Field(rest.into()),
            "v" => Self::Value(Box::new(json(rest)?)),
            "i" => Self::Index(rest.parse().map_err(|_| format!("not a number: {rest}"))?),
            "k" => match json(rest)? {
                // A map's entries come sorted.
                Value::Object(map) => Self::Key(map.into_iter().map(|(key, value)| (key.into(), value)).collect()),
                _ => return Err(format!("not an object: {rest}")),
            },
            _ => return Ok(None),
        }))
    }

    /// The form that `fieldsV1` has.
    pub fn text(&self) -> String {
        match self {
            Self::Field(name) => ["f:", name].concat(),
            Self::Key(pairs) => {
                let map: Map<String, Value> =
                    pairs.iter().map(|(key, value)| (String::from(&**key), value.clone())).collect();
                format!("k:{}", Value::Object(map))
            }
            Self::Value(value) => format!("v:{value}"),
            Self::Index(place) => format!("i:{place}"),
        }
    }

    /// About how many bytes of text it has.
    pub fn length(&self) -> usize {
        match self {
            Self::Field(name) => name.len(),
            Self::Key(pairs) => pairs.iter().map(|(key, value)| key.len() + length_of(value)).sum(),
            Self::Value(value) => length_of(value),
            Self::Index(_) => 0,
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

/// As messages show it: `.spec`, `[type="Ready"]`, `[="x"]`, `[3]`.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(pairs) => {
                let shown: Vec<String> =
                    pairs.iter().map(|(key, value)| format!("{key}={}", go::path_value(value))).collect();
                write!(f, "[{}]", shown.join(","))
            }
            Self::Value(value) => write!(f, "[={}]", go::path_value(value)),
            Self::Index(place) => write!(f, "[{place}]"),
        }
    }
}

impl Ord for Element {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                let pairs = a.iter().zip(b.iter());
                pairs
                    .map(|(a, b)| a.0.cmp(&b.0).then_with(|| compare(&a.1, &b.1)))
                    .find(|order| order.is_ne())
                    .unwrap_or_else(|| a.len().cmp(&b.len()))
            }
            (Self::Value(a), Self::Value(b)) => compare(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Element {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Element {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Element {}

/// Orders values: numbers (1 is 1.0), texts, flags, lists, maps, null.
fn compare(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            // JSON has no NaN.
            _ => a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0)),
        },
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let differing = a.iter().zip(b).map(|(a, b)| compare(a, b)).find(|order| order.is_ne());
            differing.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let pairs = a.iter().zip(b);
            let differing =
                pairs.map(|(a, b)| a.0.cmp(b.0).then_with(|| compare(a.1, b.1))).find(|order| order.is_ne());
            differing.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

fn length_of(value: &Value) -> usize {
    value.as_str().map_or_else(|| value.to_string().len(), str::len)
}

/// Whether two values are the same to a client: 1 is 1.0.
pub fn same(a: &Value, b: &Value) -> bool {
    a == b || compare(a, b).is_eq()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn steps_are_read_written_and_shown() {
        for (text, shown) in [
            ("f:spec", ".spec"),
            ("f:a:b/c", ".a:b/c"),
            (r#"k:{"port":80,"protocol":"TCP"}"#, r#"[port=80,protocol="TCP"]"#),
            (r#"v:"a""#, r#"[="a"]"#),
            ("v:1.5", "[=1.5]"),
            ("v:true", "[=true]"),
            ("i:-3", "[-3]"),
        ] {
            let element = Element::parse(text).unwrap().unwrap();
            assert_eq!((element.text().as_str(), element.to_string().as_str()), (text, shown));
        }
        assert_eq!(Element::parse("z:new").unwrap(), None);
        for bad in ["", "spec", "v:{", "k:[]", "k:1", "i:x"] {
            assert!(Element::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn steps_are_ordered_as_upstream_orders_them() {
        let texts =
            ["f:a", "f:b", r#"k:{"n":"a"}"#, r#"k:{"n":"b"}"#, "v:1", "v:2.5", r#"v:"a""#, "v:true", "i:0", "i:2"];
        let elements: Vec<Element> = texts.iter().map(|text| Element::parse(text).unwrap().unwrap()).collect();
        for (a, low) in elements.iter().enumerate() {
            for (b, high) in elements.iter().enumerate() {
                assert_eq!(low.cmp(high), a.cmp(&b), "{low} {high}");
            }
        }
        assert!(same(&json!({"a": [1]}), &json!({"a": [1.0]})) && !same(&json!(1), &json!("1")));
    }
}
