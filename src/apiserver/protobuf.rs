//! Bodies in Kubernetes' protobuf encoding, in which Go clients send core kinds (`kubectl create namespace`).
//!
//! Only reading: answers are JSON, which the same clients take. The fields are those of the published `.proto` files;
//! fields that are not listed are skipped, as any protobuf reader does.

use base64::Engine;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::status::ApiError;

/// Media type.
pub(super) const MEDIA: &str = "application/vnd.kubernetes.protobuf";
/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";
/// Fields in one body.
const FIELDS_MAX: usize = 100_000;

/// Type of a field.
#[derive(Clone, Copy)]
enum Type {
    Text,
    Int,
    Bool,
    Time,
    MicroTime,
    Message(&'static [Field]),
    /// Map of texts.
    TextMap,
    /// Map of bytes, base64 in JSON.
    BytesMap,
}

/// How often a field occurs, and what its zero means.
#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// Always written by Go; its zero means that it is not set.
    Plain,
    /// Written only when it is set (a pointer in Go).
    Pointer,
    /// A list.
    List,
}

struct Field {
    number: u64,
    name: &'static str,
    kind: Type,
    rule: Rule,
}

const fn plain(number: u64, name: &'static str, kind: Type) -> Field {
    Field { number, name, kind, rule: Rule::Plain }
}

const fn pointer(number: u64, name: &'static str, kind: Type) -> Field {
    Field { number, name, kind, rule: Rule::Pointer }
}

const fn list(number: u64, name: &'static str, kind: Type) -> Field {
    Field { number, name, kind, rule: Rule::List }
}

const OWNER: &[Field] = &[
    plain(1, "kind", Type::Text),
    plain(3, "name", Type::Text),
    plain(4, "uid", Type::Text),
    plain(5, "apiVersion", Type::Text),
    pointer(6, "controller", Type::Bool),
    pointer(7, "blockOwnerDeletion", Type::Bool),
];

const META: &[Field] = &[
    plain(1, "name", Type::Text),
    plain(2, "generateName", Type::Text),
    plain(3, "namespace", Type::Text),
    plain(5, "uid", Type::Text),
    plain(6, "resourceVersion", Type::Text),
    plain(7, "generation", Type::Int),
    plain(8, "creationTimestamp", Type::Time),
    pointer(9, "deletionTimestamp", Type::Time),
    pointer(10, "deletionGracePeriodSeconds", Type::Int),
    plain(11, "labels", Type::TextMap),
    plain(12, "annotations", Type::TextMap),
    list(13, "ownerReferences", Type::Message(OWNER)),
    list(14, "finalizers", Type::Text),
];

const NAMESPACE: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(2, "spec", Type::Message(&[list(1, "finalizers", Type::Text)])),
    plain(3, "status", Type::Message(&[plain(1, "phase", Type::Text)])),
];

const SECRET: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(2, "data", Type::BytesMap),
    plain(3, "type", Type::Text),
    plain(4, "stringData", Type::TextMap),
    pointer(5, "immutable", Type::Bool),
];

const CONFIG_MAP: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(2, "data", Type::TextMap),
    plain(3, "binaryData", Type::BytesMap),
    pointer(4, "immutable", Type::Bool),
];

const REFERENCE: &[Field] = &[
    plain(1, "kind", Type::Text),
    plain(2, "namespace", Type::Text),
    plain(3, "name", Type::Text),
    plain(4, "uid", Type::Text),
    plain(5, "apiVersion", Type::Text),
    plain(6, "resourceVersion", Type::Text),
    plain(7, "fieldPath", Type::Text),
];
const SOURCE: &[Field] = &[plain(1, "component", Type::Text), plain(2, "host", Type::Text)];
const SERIES: &[Field] = &[plain(1, "count", Type::Int), plain(2, "lastObservedTime", Type::MicroTime)];

const EVENT: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(2, "involvedObject", Type::Message(REFERENCE)),
    plain(3, "reason", Type::Text),
    plain(4, "message", Type::Text),
    plain(5, "source", Type::Message(SOURCE)),
    plain(6, "firstTimestamp", Type::Time),
    plain(7, "lastTimestamp", Type::Time),
    plain(8, "count", Type::Int),
    plain(9, "type", Type::Text),
    plain(10, "eventTime", Type::MicroTime),
    pointer(11, "series", Type::Message(SERIES)),
    plain(12, "action", Type::Text),
    pointer(13, "related", Type::Message(REFERENCE)),
    plain(14, "reportingComponent", Type::Text),
    plain(15, "reportingInstance", Type::Text),
];

const NEW_EVENT: &[Field] = &[
    plain(1, "metadata", Type::Message(META)),
    plain(2, "eventTime", Type::MicroTime),
    pointer(3, "series", Type::Message(SERIES)),
    plain(4, "reportingController", Type::Text),
    plain(5, "reportingInstance", Type::Text),
    plain(6, "action", Type::Text),
    plain(7, "reason", Type::Text),
    plain(8, "regarding", Type::Message(REFERENCE)),
    pointer(9, "related", Type::Message(REFERENCE)),
    plain(10, "note", Type::Text),
    plain(11, "type", Type::Text),
    plain(12, "deprecatedSource", Type::Message(SOURCE)),
    plain(13, "deprecatedFirstTimestamp", Type::Time),
    plain(14, "deprecatedLastTimestamp", Type::Time),
    plain(15, "deprecatedCount", Type::Int),
];

const DELETE_OPTIONS: &[Field] = &[
    pointer(1, "gracePeriodSeconds", Type::Int),
    pointer(
        2,
        "preconditions",
        Type::Message(&[pointer(1, "uid", Type::Text), pointer(2, "resourceVersion", Type::Text)]),
    ),
    pointer(3, "orphanDependents", Type::Bool),
    pointer(4, "propagationPolicy", Type::Text),
    list(5, "dryRun", Type::Text),
];

/// `runtime.Unknown`: what kind of object, and the object.
const TYPE_META: &[Field] = &[plain(1, "apiVersion", Type::Text), plain(2, "kind", Type::Text)];

mod access;

/// Why a body cannot be read.
type Fault = &'static str;

/// Reads a body.
pub(super) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    decode(body).map_err(|fault| ApiError::bad_request(format!("the protobuf body cannot be read: {fault}")))
}

fn decode(body: &[u8]) -> Result<Value, Fault> {
    let mut rest = body.strip_prefix(MAGIC).ok_or("it does not begin as it should")?;
    let (mut type_meta, mut raw) = (Map::new(), &[][..]);
    let mut budget = FIELDS_MAX;
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, Wire::Bytes(bytes)) => type_meta = message(bytes, TYPE_META, &mut budget)?,
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let text = |key: &str| type_meta.get(key).and_then(Value::as_str).unwrap_or_default();
    let fields = match (text("apiVersion"), text("kind")) {
        ("v1", "Namespace") => NAMESPACE,
        ("v1", "Secret") => SECRET,
        ("v1", "ConfigMap") => CONFIG_MAP,
        ("v1", "Event") => EVENT,
        ("events.k8s.io/v1", "Event") => NEW_EVENT,
        (_, "DeleteOptions") => DELETE_OPTIONS,
        ("v1", "ServiceAccount") => access::ACCOUNT,
        ("rbac.authorization.k8s.io/v1", kind) => access::role_kind(kind)?,
        ("authorization.k8s.io/v1" | "authentication.k8s.io/v1", kind) => access::review(kind)?,
        _ => return Err("it is of a kind that is not served as protobuf"),
    };
    let mut object = message(raw, fields, &mut budget)?;
    object.extend(type_meta);
    Ok(Value::Object(object))
}

/// A field as it is on the wire.
enum Wire<'b> {
    Varint(u64),
    Bytes(&'b [u8]),
    Fixed,
}

fn varint(rest: &mut &[u8]) -> Result<u64, Fault> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = rest.split_first().ok_or("it is cut off")?;
        *rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number is too long")
}

fn take<'b>(rest: &mut &'b [u8], length: u64) -> Result<&'b [u8], Fault> {
    let length = usize::try_from(length).map_err(|_| "it is cut off")?;
    let (head, tail) = rest.split_at_checked(length).ok_or("it is cut off")?;
    *rest = tail;
    Ok(head)
}

fn next<'b>(rest: &mut &'b [u8]) -> Result<(u64, Wire<'b>), Fault> {
    let key = varint(rest)?;
    let wire = match key & 7 {
        0 => Wire::Varint(varint(rest)?),
        1 => take(rest, 8).map(|_| Wire::Fixed)?,
        2 => {
            let length = varint(rest)?;
            Wire::Bytes(take(rest, length)?)
        }
        5 => take(rest, 4).map(|_| Wire::Fixed)?,
        _ => return Err("a field has an unknown wire type"),
    };
    Ok((key >> 3, wire))
}

fn message(bytes: &[u8], fields: &'static [Field], budget: &mut usize) -> Result<Map<String, Value>, Fault> {
    let mut map = Map::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        *budget = budget.checked_sub(1).ok_or("it has too many fields")?;
        let (number, wire) = next(&mut rest)?;
        let Some(field) = fields.iter().find(|field| field.number == number) else { continue };
        if let (Type::TextMap | Type::BytesMap, Wire::Bytes(bytes)) = (field.kind, &wire) {
            let (key, value) = entry(bytes, matches!(field.kind, Type::BytesMap))?;
            let entries = map.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
            entries[key] = value;
            continue;
        }
        let value = scalar(field.kind, &wire, budget)?;
        match field.rule {
            Rule::List => {
                let entries = map.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(entries) = entries {
                    entries.push(value);
                }
            }
            Rule::Plain if is_zero(&value) => {}
            Rule::Plain | Rule::Pointer => {
                map.insert(field.name.into(), value);
            }
        }
    }
    Ok(map)
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Array(_) => false,
    }
}

fn text(bytes: &[u8]) -> Result<Value, Fault> {
    std::str::from_utf8(bytes).map(Value::from).map_err(|_| "a text is not UTF-8")
}

fn scalar(kind: Type, wire: &Wire<'_>, budget: &mut usize) -> Result<Value, Fault> {
    match (kind, wire) {
        (Type::Text, Wire::Bytes(bytes)) => text(bytes),
        (Type::Int, Wire::Varint(number)) => Ok(number.cast_signed().into()),
        (Type::Bool, Wire::Varint(number)) => Ok((*number != 0).into()),
        (Type::Message(fields), Wire::Bytes(bytes)) => message(bytes, fields, budget).map(Value::Object),
        (Type::Time, Wire::Bytes(bytes)) => time(bytes, false),
        (Type::MicroTime, Wire::Bytes(bytes)) => time(bytes, true),
        _ => Err("a field has the wrong wire type"),
    }
}

/// Seconds (1) and nanoseconds (2); nothing at all is no time.
fn time(bytes: &[u8], micro: bool) -> Result<Value, Fault> {
    let (mut seconds, mut nanoseconds, mut rest) = (0_i64, 0_i64, bytes);
    if rest.is_empty() {
        return Ok(Value::Null);
    }
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, Wire::Varint(number)) => seconds = number.cast_signed(),
            (2, Wire::Varint(number)) => nanoseconds = number.cast_signed(),
            _ => {}
        }
    }
    let nanoseconds = i32::try_from(nanoseconds).map_err(|_| "a time is out of range")?;
    let time = Timestamp::new(seconds, if micro { nanoseconds } else { 0 }).map_err(|_| "a time is out of range")?;
    Ok(if micro { format!("{time:.6}") } else { time.to_string() }.into())
}

/// One entry of a map: key (1) and value (2).
fn entry(bytes: &[u8], encoded: bool) -> Result<(String, Value), Fault> {
    let (mut key, mut value, mut rest) = (&[][..], &[][..], bytes);
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, Wire::Bytes(bytes)) => key = bytes,
            (2, Wire::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    let key = std::str::from_utf8(key).map_err(|_| "a key is not UTF-8")?.to_owned();
    let value = if encoded { base64::engine::general_purpose::STANDARD.encode(value).into() } else { text(value)? };
    Ok((key, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        bytes.extend_from_slice(content);
        bytes
    }

    fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let type_meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), field(1, &type_meta), field(2, raw), field(3, b""), field(4, b"")].concat()
    }

    fn secret() -> Vec<u8> {
        // As Go writes it: empty texts, a zero generation and an empty creation time are there.
        let meta = [
            field(1, b"s"),
            field(2, b""),
            vec![7 << 3, 0],
            field(8, b""),
            field(11, &[field(1, b"app"), field(2, b"")].concat()),
            field(14, b"x/y"),
        ];
        let data = [field(1, b"key"), field(2, &[0xff, 0])].concat();
        let raw = [field(1, &meta.concat()), field(2, &data), field(3, b"Opaque"), vec![5 << 3, 0]].concat();
        body("v1", "Secret", &raw)
    }

    #[test]
    fn a_secret_comes_out_as_its_json() {
        let wanted = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": false, "data": {"key": "/wA="},
            "metadata": {"name": "s", "labels": {"app": ""}, "finalizers": ["x/y"]},
        });
        assert_eq!(parse(&secret()).unwrap(), wanted);
    }

    #[test]
    fn times_and_options_are_read() {
        let moment = [8, 0x80, 0xa4, 0xe8, 0xca, 0x06, 16, 0xe8, 0x07];
        let raw =
            [field(6, &moment), field(10, &moment), field(11, &[vec![8, 3], field(2, &moment)].concat())].concat();
        let event = parse(&body("v1", "Event", &raw)).unwrap();
        let whole: Timestamp = event["firstTimestamp"].as_str().unwrap().parse().unwrap();
        let exact: Timestamp = event["eventTime"].as_str().unwrap().parse().unwrap();
        assert_eq!(exact.duration_since(whole).as_nanos(), 1000);
        assert_eq!(event["series"], json!({"count": 3, "lastObservedTime": event["eventTime"]}));
        let raw = [field(2, &field(1, b"u")), field(4, b"Orphan"), field(5, b"All")].concat();
        let wanted = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "u"},
            "propagationPolicy": "Orphan", "dryRun": ["All"]});
        assert_eq!(parse(&body("v1", "DeleteOptions", &raw)).unwrap(), wanted);
    }

    #[test]
    fn damaged_bodies_are_errors() {
        let whole = secret();
        let head = body("v1", "Secret", b"").len() - 6;
        for length in 0..whole.len() {
            // Cut between two fields of the envelope it is shorter but sound; everywhere else it is an error.
            let sound = length == head || length == whole.len() - 4 || length == whole.len() - 2;
            assert_eq!(parse(&whole[..length]).is_ok(), sound, "{length}");
        }
        for index in 0..whole.len() {
            for byte in [0, 0x7f, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[index] = byte;
                parse(&damaged).ok();
            }
        }
        for bad in [&b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"[..], b"{}", b"", &body("v1", "Pod", b"")] {
            assert!(parse(bad).is_err());
        }
    }
}
