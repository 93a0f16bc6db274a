//! Bodies in Kubernetes' protobuf encoding, in which Go clients send core kinds (`kubectl create namespace`).
//!
//! Only reading: answers are JSON, which the same clients take. The fields are those of the published `.proto` files;
//! fields that are not listed are skipped, as any protobuf reader does.

use base64::Engine;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::body::{self, DEPTH_MAX};
use crate::apiserver::answers::status::ApiError;

mod access;
mod definition;
mod hooks;
mod objects;

/// Media type.
pub(super) const MEDIA: &str = "application/vnd.kubernetes.protobuf";
/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";
/// Values in one body. Fields that are not set, of which Go writes many, are none.
const FIELDS_MAX: usize = body::VALUES_MAX;

/// Type of a field.
#[derive(Clone, Copy)]
enum ProtobufType {
    Text,
    Int,
    Bool,
    Time,
    MicroTime,
    /// Base64 in JSON.
    Bytes,
    Double,
    /// JSON as text, in the first field of a message.
    Json,
    Message(&'static [ProtobufField]),
    /// A message whose fields JSON has among those of the one that it is in.
    Inline(&'static [ProtobufField]),
    /// A message with a schema, which may hold others.
    Schema,
    /// A message of which JSON shows one field: the first of these that is there.
    Either(&'static [ProtobufField]),
    /// By names.
    Map(&'static ProtobufType),
}

/// How often a field occurs, and what its zero means.
#[derive(Clone, Copy, PartialEq)]
enum FieldRule {
    /// Always written by Go; its zero means that it is not set.
    Plain,
    /// Always written by Go, in JSON too.
    Required,
    /// Written only when it is set (a pointer in Go).
    Pointer,
    /// A list.
    List,
}

struct ProtobufField {
    number: u64,
    name: &'static str,
    kind: ProtobufType,
    rule: FieldRule,
}

const fn plain(number: u64, name: &'static str, kind: ProtobufType) -> ProtobufField {
    ProtobufField { number, name, kind, rule: FieldRule::Plain }
}

const fn required(number: u64, name: &'static str, kind: ProtobufType) -> ProtobufField {
    ProtobufField { number, name, kind, rule: FieldRule::Required }
}

const fn pointer(number: u64, name: &'static str, kind: ProtobufType) -> ProtobufField {
    ProtobufField { number, name, kind, rule: FieldRule::Pointer }
}

const fn list(number: u64, name: &'static str, kind: ProtobufType) -> ProtobufField {
    ProtobufField { number, name, kind, rule: FieldRule::List }
}

/// `runtime.Unknown`: what kind of object, and the object.
const TYPE_META: &[ProtobufField] = &[plain(1, "apiVersion", ProtobufType::Text), plain(2, "kind", ProtobufType::Text)];

/// Why a body cannot be read.
type ProtobufFault = &'static str;

/// Reads a body.
pub(in crate::apiserver) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    decode(body).map_err(|fault| ApiError::bad_request(format!("the protobuf body cannot be read: {fault}")))
}

fn decode(body: &[u8]) -> Result<Value, ProtobufFault> {
    let mut rest = body.strip_prefix(MAGIC).ok_or("it does not begin as it should")?;
    let (mut type_meta, mut raw) = (Map::new(), &[][..]);
    let mut left = Left { values: FIELDS_MAX, depth: DEPTH_MAX };
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, WireValue::Bytes(bytes)) => type_meta = message(bytes, TYPE_META, &mut left)?,
            (2, WireValue::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let text = |key: &str| type_meta.get(key).and_then(Value::as_str).unwrap_or_default();
    let fields = fields_of(text("apiVersion"), text("kind")).ok_or("it is of a kind that is not served as protobuf")?;
    let mut object = message(raw, fields, &mut left)?;
    object.extend(type_meta);
    Ok(Value::Object(object))
}

/// Fields of a kind.
fn fields_of(api_version: &str, kind: &str) -> Option<&'static [ProtobufField]> {
    Some(match (api_version, kind) {
        (_, "DeleteOptions") => objects::DELETE_OPTIONS,
        ("v1", "Namespace") => objects::NAMESPACE,
        ("v1", "Secret") => objects::SECRET,
        ("v1", "ConfigMap") => objects::CONFIG_MAP,
        ("v1", "Event") => objects::EVENT,
        ("v1", "ServiceAccount") => access::ACCOUNT,
        ("events.k8s.io/v1", "Event") => objects::NEW_EVENT,
        ("coordination.k8s.io/v1", "Lease") => objects::LEASE,
        ("autoscaling/v1", "Scale") => objects::SCALE,
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => definition::DEFINITION,
        ("admissionregistration.k8s.io/v1", kind) => return hooks::configuration(kind),
        ("rbac.authorization.k8s.io/v1", kind) => return access::role_kind(kind),
        ("authorization.k8s.io/v1" | "authentication.k8s.io/v1", kind) => return access::review(kind),
        _ => return None,
    })
}

/// What a body may still have.
struct Left {
    values: usize,
    /// Messages within each other.
    depth: usize,
}

impl Left {
    fn take(&mut self, values: usize) -> Result<(), ProtobufFault> {
        self.values = self.values.checked_sub(values).ok_or("it has too many fields")?;
        Ok(())
    }
}

/// A field as it is on the wire.
enum WireValue<'b> {
    Varint(u64),
    Bytes(&'b [u8]),
    Fixed(u64),
    Fixed32,
}

fn varint(rest: &mut &[u8]) -> Result<u64, ProtobufFault> {
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

fn take<'b>(rest: &mut &'b [u8], length: u64) -> Result<&'b [u8], ProtobufFault> {
    let length = usize::try_from(length).map_err(|_| "it is cut off")?;
    let (head, tail) = rest.split_at_checked(length).ok_or("it is cut off")?;
    *rest = tail;
    Ok(head)
}

fn next<'b>(rest: &mut &'b [u8]) -> Result<(u64, WireValue<'b>), ProtobufFault> {
    let key = varint(rest)?;
    let wire = match key & 7 {
        0 => WireValue::Varint(varint(rest)?),
        1 => {
            let bytes = take(rest, 8)?.try_into().map_err(|_| "it is cut off")?;
            WireValue::Fixed(u64::from_le_bytes(bytes))
        }
        2 => {
            let length = varint(rest)?;
            WireValue::Bytes(take(rest, length)?)
        }
        5 => take(rest, 4).map(|_| WireValue::Fixed32)?,
        _ => return Err("a field has an unknown wire type"),
    };
    Ok((key >> 3, wire))
}

fn message(
    bytes: &[u8],
    fields: &'static [ProtobufField],
    left: &mut Left,
) -> Result<Map<String, Value>, ProtobufFault> {
    left.depth = left.depth.checked_sub(1).ok_or("it is nested too deeply")?;
    let mut map = Map::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (number, wire) = next(&mut rest)?;
        let Some(field) = fields.iter().find(|field| field.number == number) else { continue };
        if let (ProtobufType::Map(kind), WireValue::Bytes(bytes)) = (field.kind, &wire) {
            left.take(1)?;
            let (key, value) = entry(bytes, *kind, left)?;
            let entries = map.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
            entries[key] = value;
            continue;
        }
        if let (ProtobufType::Inline(fields), WireValue::Bytes(bytes)) = (field.kind, &wire) {
            map.extend(message(bytes, fields, left)?);
            continue;
        }
        let value = scalar(field.kind, &wire, left)?;
        match field.rule {
            FieldRule::Plain if is_zero(&value) => continue,
            FieldRule::List => {
                let entries = map.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(entries) = entries {
                    entries.push(value);
                }
            }
            FieldRule::Plain | FieldRule::Required | FieldRule::Pointer => {
                map.insert(field.name.into(), value);
            }
        }
        left.take(1)?;
    }
    left.depth += 1;
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

fn text(bytes: &[u8]) -> Result<Value, ProtobufFault> {
    std::str::from_utf8(bytes).map(Value::from).map_err(|_| "a text is not UTF-8")
}

fn scalar(kind: ProtobufType, wire: &WireValue<'_>, left: &mut Left) -> Result<Value, ProtobufFault> {
    match (kind, wire) {
        (ProtobufType::Text, WireValue::Bytes(bytes)) => text(bytes),
        (ProtobufType::Bytes, WireValue::Bytes(bytes)) => {
            Ok(base64::engine::general_purpose::STANDARD.encode(bytes).into())
        }
        (ProtobufType::Int, WireValue::Varint(number)) => Ok(number.cast_signed().into()),
        (ProtobufType::Bool, WireValue::Varint(number)) => Ok((*number != 0).into()),
        (ProtobufType::Double, WireValue::Fixed(bits)) => double(f64::from_bits(*bits)),
        (ProtobufType::Message(fields), WireValue::Bytes(bytes)) => message(bytes, fields, left).map(Value::Object),
        (ProtobufType::Schema, WireValue::Bytes(bytes)) => message(bytes, definition::SCHEMA, left).map(Value::Object),
        (ProtobufType::Either(fields), WireValue::Bytes(bytes)) => {
            let mut read = message(bytes, fields, left)?;
            Ok(fields.iter().find_map(|field| read.remove(field.name)).unwrap_or_default())
        }
        (ProtobufType::Json, WireValue::Bytes(bytes)) => json(bytes, left),
        (ProtobufType::Time, WireValue::Bytes(bytes)) => time(bytes, false),
        (ProtobufType::MicroTime, WireValue::Bytes(bytes)) => time(bytes, true),
        _ => Err("a field has the wrong wire type"),
    }
}

/// A whole number is written as one, as Go does in JSON.
fn double(number: f64) -> Result<Value, ProtobufFault> {
    /// From here on a double no longer has every whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() < EXACT {
        return Ok((number as i64).into());
    }
    serde_json::Number::from_f64(number).map(Value::Number).ok_or("a number is not finite")
}

/// JSON as text (1).
fn json(bytes: &[u8], left: &mut Left) -> Result<Value, ProtobufFault> {
    let (mut raw, mut rest) = (&[][..], bytes);
    while !rest.is_empty() {
        if let (1, WireValue::Bytes(bytes)) = next(&mut rest)? {
            raw = bytes;
        }
    }
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    left.take(body::count_values(raw))?;
    serde_json::from_slice(raw).map_err(|_| "a field should be JSON and is not")
}

/// Seconds (1) and nanoseconds (2); nothing at all is no time.
fn time(bytes: &[u8], micro: bool) -> Result<Value, ProtobufFault> {
    let (mut seconds, mut nanoseconds, mut rest) = (0_i64, 0_i64, bytes);
    if rest.is_empty() {
        return Ok(Value::Null);
    }
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, WireValue::Varint(number)) => seconds = number.cast_signed(),
            (2, WireValue::Varint(number)) => nanoseconds = number.cast_signed(),
            _ => {}
        }
    }
    let nanoseconds = i32::try_from(nanoseconds).map_err(|_| "a time is out of range")?;
    let time = Timestamp::new(seconds, if micro { nanoseconds } else { 0 }).map_err(|_| "a time is out of range")?;
    Ok(if micro { format!("{time:.6}") } else { time.to_string() }.into())
}

/// One entry of a map: key (1) and value (2).
fn entry(bytes: &[u8], kind: ProtobufType, left: &mut Left) -> Result<(String, Value), ProtobufFault> {
    let (mut key, mut value, mut rest) = (&[][..], &[][..], bytes);
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, WireValue::Bytes(bytes)) => key = bytes,
            (2, WireValue::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    let key = std::str::from_utf8(key).map_err(|_| "a key is not UTF-8")?.to_owned();
    Ok((key, scalar(kind, &WireValue::Bytes(value), left)?))
}

#[cfg(test)]
pub(in crate::apiserver) mod tests;
