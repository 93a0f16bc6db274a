//! Bodies: JSON, YAML and protobuf, bounded in size, time and depth.

use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

pub(in crate::apiserver) use super::json_values::count_values;
use super::protobuf;
use crate::apiserver::answers::status::{ApiError, shorten};
use crate::apiserver::schema::FieldPath;
use crate::apiserver::shares::inflight::{InflightPermit, too_many};

/// Largest body in bytes, as etcd-backed servers have it.
pub(in crate::apiserver) const BODY_MAX: usize = 3 * 1024 * 1024;
/// A body must be there after this time; less than a request may take, so that there is time to say so.
const BODY_DEADLINE: Duration = Duration::from_secs(50);
/// Deepest nesting of an object that is stored; less than what JSON readers take.
pub(in crate::apiserver) const DEPTH_MAX: usize = 100;
/// Duplicate fields reported for one body.
const DUPLICATES_MAX: usize = 16;

/// Reads a body within its bounds of size and time, as far as there is room for it.
pub(super) async fn read_body(body: Body, room: &mut InflightPermit) -> Result<Bytes, ApiError> {
    tokio::time::timeout(BODY_DEADLINE, gather(body, room)).await.unwrap_or_else(|_| {
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", "the body did not arrive in time"))
    })
}

/// In one piece from the beginning: a client may send a byte at a time, each of which would take a hundred.
async fn gather(body: Body, room: &mut InflightPermit) -> Result<Bytes, ApiError> {
    let mut frames = Limited::new(body, BODY_MAX);
    let mut whole = Vec::new();
    while let Some(frame) = frames.frame().await {
        let frame = frame.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "RequestEntityTooLarge",
                format!("Request entity too large: limit is {BODY_MAX}"),
            ),
            None => ApiError::bad_request("the body was cut off"),
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if room.as_mut().is_some_and(|room| !room.grow(data.len())) {
            return Err(too_many());
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.into())
}

/// Most JSON values of an object: a megabyte of them takes a hundred in memory.
pub(in crate::apiserver) const VALUES_MAX: usize = 100_000;

/// Refuses JSON of more values than are taken, before they are made.
pub(in crate::apiserver) fn check_count(json: &[u8]) -> Result<(), ApiError> {
    // Two values have a byte between them.
    let can_be_too_many = json.len() / 2 >= VALUES_MAX;
    if can_be_too_many && count_values(json) > VALUES_MAX { Err(too_many_values()) } else { Ok(()) }
}

fn too_many_values() -> ApiError {
    ApiError::bad_request(format!("the object has too many values: at most {VALUES_MAX} are taken"))
}

/// Refuses an object of more values than are taken.
pub(in crate::apiserver) fn check_values(value: &Value) -> Result<(), ApiError> {
    fn rest(value: &Value, left: usize) -> Option<usize> {
        let left = left.checked_sub(1)?;
        match value {
            Value::Array(entries) => entries.iter().try_fold(left, |left, entry| rest(entry, left)),
            Value::Object(map) => map.values().try_fold(left, |left, entry| rest(entry, left)),
            _ => Some(left),
        }
    }
    rest(value, VALUES_MAX).map(drop).ok_or_else(too_many_values)
}

/// A body's value and the fields that occurred twice in it.
#[derive(Debug, PartialEq)]
pub(in crate::apiserver) struct Parsed {
    pub value: Value,
    pub duplicates: Vec<String>,
}

/// The media type without parameters, in lower case; JSON when there is none.
pub(in crate::apiserver) fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media.is_empty() { "application/json".into() } else { media }
}

/// Reads an object's body by its content type.
pub(in crate::apiserver) fn parse_body(headers: &HeaderMap, body: &[u8]) -> Result<Parsed, ApiError> {
    match content_type(headers).as_str() {
        "application/json" => parse_json(body),
        "application/yaml" => parse_yaml(body),
        protobuf::MEDIA => Ok(Parsed { value: protobuf::parse(body)?, duplicates: Vec::new() }),
        _ => {
            Err(ApiError::unsupported_media("application/json, application/yaml, application/vnd.kubernetes.protobuf"))
        }
    }
}

/// Reads what this process wrote itself: in its JSON nothing occurs twice.
pub(in crate::apiserver) fn parse_own(headers: &HeaderMap, body: &[u8]) -> Result<Parsed, ApiError> {
    if content_type(headers) != "application/json" {
        return parse_body(headers, body);
    }
    let value = serde_json::from_slice(body).map_err(unrecognized)?;
    Ok(Parsed { value, duplicates: Vec::new() })
}

/// Reads JSON. Nesting is bounded by the reader.
pub(in crate::apiserver) fn parse_json(body: &[u8]) -> Result<Parsed, ApiError> {
    check_count(body)?;
    serde_json::from_slice(body).map_err(unrecognized)
}

fn unrecognized(error: serde_json::Error) -> ApiError {
    ApiError::bad_request(format!("the object provided is unrecognized: {error}"))
}

/// Reads one YAML document.
pub(in crate::apiserver) fn parse_yaml(body: &[u8]) -> Result<Parsed, ApiError> {
    read_yaml(body, serde_saphyr::options::DuplicateKeyPolicy::LastWins).map_err(|error| {
        ApiError::bad_request(format!("error converting YAML to JSON: {}", shorten(&error.to_string(), 256)))
    })
}

/// Reads a configuration to apply: YAML, which most clients write as JSON.
pub(in crate::apiserver) fn parse_config(body: &[u8]) -> Result<Parsed, ApiError> {
    let looks_like_json = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let parsed = if looks_like_json { parse_json(body).or_else(|_| parse_yaml(body)) } else { parse_yaml(body) };
    parsed.map_err(|error| ApiError { message: format!("error decoding YAML: {}", error.message), ..error })
}

/// Says as upstream's strict reader where the first of two equal keys of a YAML document is repeated.
pub(in crate::apiserver) fn duplicate_in_yaml(body: &[u8]) -> Option<String> {
    let error = read_yaml(body, serde_saphyr::options::DuplicateKeyPolicy::Error).err()?;
    match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key, location } => Some(format!(
            "error converting YAML to JSON: yaml: unmarshal errors:\n  line {}: key {:?} already set in map",
            location.line(),
            shorten(key.as_deref().unwrap_or_default(), 64)
        )),
        _ => None,
    }
}

fn read_yaml(
    body: &[u8],
    duplicates: serde_saphyr::options::DuplicateKeyPolicy,
) -> Result<Parsed, serde_saphyr::Error> {
    // Far below the reader's own limits, which are meant for files that one trusts.
    let mut budget = serde_saphyr::Budget::default();
    budget.max_reader_input_bytes = Some(BODY_MAX);
    budget.max_depth = DEPTH_MAX;
    budget.max_nodes = VALUES_MAX;
    budget.max_aliases = 100;
    budget.max_anchors = 100;
    let options = serde_saphyr::options! { budget: Some(budget), with_snippet: false, duplicate_keys: duplicates };
    serde_saphyr::from_slice_with_options(body, options)
}

impl<'de> serde::Deserialize<'de> for Parsed {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let duplicates = RefCell::new(Vec::new());
        let value = Noting { duplicates: &duplicates, path: FieldPath::Top }.deserialize(deserializer)?;
        Ok(Self { value, duplicates: duplicates.into_inner() })
    }
}

/// Whether a value nests deeper than what is stored.
pub(in crate::apiserver) fn too_deep(value: &Value) -> bool {
    fn deeper(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(entries) => left == 0 || entries.iter().any(|entry| deeper(entry, left - 1)),
            Value::Object(map) => left == 0 || map.values().any(|entry| deeper(entry, left - 1)),
            _ => false,
        }
    }
    deeper(value, DEPTH_MAX)
}

/// Reads a value and notes fields that occur twice; the last one counts.
#[derive(Clone, Copy)]
struct Noting<'n> {
    duplicates: &'n RefCell<Vec<String>>,
    path: FieldPath<'n>,
}

impl<'de> DeserializeSeed<'de> for Noting<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Noting<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        serde_json::Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        loop {
            // The path is only built where it is needed: a list's own path stands for its entries.
            match seq.next_element_seed(self)? {
                Some(entry) => entries.push(entry),
                None => return Ok(Value::Array(entries)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if key.len() > 4096 {
                return Err(A::Error::custom("a field name is too long"));
            }
            let path = FieldPath::Field(&self.path, &key);
            let value = access.next_value_seed(Noting { duplicates: self.duplicates, path })?;
            if map.contains_key(&key) {
                let mut duplicates = self.duplicates.borrow_mut();
                if duplicates.len() < DUPLICATES_MAX {
                    duplicates.push(shorten(&path.text(), 256));
                }
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bodies_are_bounded_and_duplicates_noted() {
        let parsed = parse_json(br#"{"a": {"b": 1, "b": 2}, "l": [{"x": 1, "x": 1}], "a.b/c": {"d": 1.5, "d": null}}"#);
        let parsed = parsed.unwrap();
        assert_eq!(parsed.value, json!({"a": {"b": 2}, "l": [{"x": 1}], "a.b/c": {"d": null}}));
        assert_eq!(parsed.duplicates, ["a.b", "l.x", "a.b/c.d"]);
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        for bad in [deep.as_bytes(), b"{", b"{} {}", b"\xff", b"", br#"{"a": 1e999}"#] {
            assert!(parse_json(bad).is_err());
        }
        let shallow: Value = serde_json::from_str(&format!("{}1{}", "[".repeat(99), "]".repeat(99))).unwrap();
        assert!(!too_deep(&shallow));
        let deep: Value = serde_json::from_str(&format!("{}1{}", "[".repeat(110), "]".repeat(110))).unwrap();
        assert!(too_deep(&deep));
    }

    #[test]
    fn yaml_is_read_as_kubectl_reads_it() {
        let parsed = parse_yaml(b"a: no\nb: '1'\nc: {d: [1, 2]}\n").unwrap();
        assert_eq!(parsed.value, json!({"a": false, "b": "1", "c": {"d": [1, 2]}}));
        let bomb = format!("a: &a [x,x,x,x,x,x,x,x,x]\n{}", {
            let mut text = String::new();
            let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
            for pair in names.windows(2) {
                let list = vec![format!("*{}", pair[0]); 9].join(",");
                text.push_str(&format!("{}: &{} [{list}]\n", pair[1], pair[1]));
            }
            text
        });
        let deep = format!("{}1{}", "[".repeat(2000), "]".repeat(2000));
        assert_eq!(parse_yaml(b"a: {b: 1, b: 2}\n").unwrap().duplicates, ["a.b"]);
        assert!(duplicate_in_yaml(b"a: 1\na: 2\n").unwrap().ends_with("line 2: key \"a\" already set in map"));
        for bad in ["a: [", &bomb, &deep, "a: 1\n---\nb: 2\n"] {
            assert!(parse_yaml(bad.as_bytes()).is_err(), "{}", shorten(bad, 40));
        }
    }
}
