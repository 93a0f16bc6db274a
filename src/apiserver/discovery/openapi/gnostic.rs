//! OpenAPI v2 in protobuf, as gnostic defines it (`openapiv2/OpenAPIv2.proto`) and kubectl asks for it. Pure.
//!
//! Values that the format keeps as any (enums, vendor extensions) are written as YAML, of which JSON is a part.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::v2::{self, SwaggerDocument};

/// A message being written.
#[derive(Default)]
struct ProtobufMessage(Vec<u8>);

impl ProtobufMessage {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn bytes(&mut self, field: u64, content: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(content.len() as u64);
        self.0.extend_from_slice(content);
    }

    fn message(&mut self, field: u64, content: Self) {
        self.bytes(field, &content.0);
    }

    /// Nothing when there is no text, as protobuf leaves out what is empty.
    fn text(&mut self, field: u64, value: &Value) {
        if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
            self.bytes(field, text.as_bytes());
        }
    }

    fn texts(&mut self, field: u64, value: &Value) {
        value.as_array().into_iter().flatten().for_each(|one| self.text(field, one));
    }

    fn flag(&mut self, field: u64, value: &Value) {
        if value == true {
            self.varint(field << 3);
            self.varint(1);
        }
    }

    fn whole(&mut self, field: u64, value: &Value) {
        if let Some(number) = value.as_u64().filter(|number| *number > 0) {
            self.varint(field << 3);
            self.varint(number);
        }
    }

    fn double(&mut self, field: u64, value: &Value) {
        if let Some(number) = value.as_f64().filter(|number| *number != 0.0) {
            self.varint(field << 3 | 1);
            self.0.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// The message with these parts.
fn with(build: impl FnOnce(&mut ProtobufMessage)) -> ProtobufMessage {
    let mut message = ProtobufMessage::default();
    build(&mut message);
    message
}

/// A name and what it names.
fn named(name: &str, value: ProtobufMessage) -> ProtobufMessage {
    with(|message| {
        message.bytes(1, name.as_bytes());
        message.message(2, value);
    })
}

/// `Any`, as YAML.
fn any(value: &Value) -> ProtobufMessage {
    with(|message| message.bytes(2, format!("{value}\n").as_bytes()))
}

fn extensions(message: &mut ProtobufMessage, field: u64, map: &Map<String, Value>) {
    for (name, value) in map.iter().filter(|(name, _)| name.starts_with("x-")) {
        message.message(field, named(name, any(value)));
    }
}

/// `Document`
#[derive(Default)]
pub(super) struct Protobuf {
    paths: ProtobufMessage,
    definitions: ProtobufMessage,
    names: BTreeSet<String>,
}

impl SwaggerDocument for Protobuf {
    fn path(&mut self, path: &str, item: &Value) {
        self.paths.message(2, named(path, path_item(item)));
    }

    fn definition(&mut self, name: &str, source: &Value) {
        if self.names.insert(name.to_owned()) {
            self.definitions.message(1, named(name, schema(source)));
        }
    }

    fn finish(self) -> Vec<u8> {
        let info = with(|info| {
            info.bytes(1, v2::TITLE.as_bytes());
            info.bytes(2, v2::VERSION.as_bytes());
        });
        with(|message| {
            message.bytes(1, v2::SWAGGER.as_bytes());
            message.message(2, info);
            message.message(8, self.paths);
            message.message(9, self.definitions);
        })
        .0
    }
}

fn path_item(item: &Value) -> ProtobufMessage {
    with(|message| {
        for (field, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
            if let Some(source) = item.get(method).and_then(Value::as_object) {
                message.message(field, operation(source));
            }
        }
        item["parameters"].as_array().into_iter().flatten().for_each(|one| message.message(9, parameter(one)));
    })
}

fn operation(source: &Map<String, Value>) -> ProtobufMessage {
    let field = |name: &str| source.get(name).unwrap_or(&Value::Null);
    let responses = with(|responses| {
        for (code, answer) in field("responses").as_object().into_iter().flatten() {
            let response = with(|response| {
                response.text(1, &answer["description"]);
                response.message(2, with(|item| item.message(1, schema(&answer["schema"]))));
            });
            responses.message(1, named(code, with(|value| value.message(1, response))));
        }
    });
    with(|message| {
        message.text(3, field("description"));
        message.text(5, field("operationId"));
        message.texts(6, field("produces"));
        message.texts(7, field("consumes"));
        field("parameters").as_array().into_iter().flatten().for_each(|one| message.message(8, parameter(one)));
        message.message(9, responses);
        extensions(message, 13, source);
    })
}

fn parameter(source: &Value) -> ProtobufMessage {
    let inner = with(|inner| {
        if source["in"] == "body" {
            let body = with(|body| {
                body.text(2, &source["name"]);
                body.text(3, &source["in"]);
                body.flag(4, &source["required"]);
                body.message(5, schema(&source["schema"]));
            });
            return inner.message(1, body);
        }
        let in_path = source["in"] == "path";
        let (kind, unique) = if in_path { (5, 19) } else { (6, 20) };
        let simple = with(|simple| {
            simple.flag(1, &source["required"]);
            simple.text(2, &source["in"]);
            simple.text(3, &source["description"]);
            simple.text(4, &source["name"]);
            simple.text(kind, &source["type"]);
            simple.flag(unique, &source["uniqueItems"]);
        });
        inner.message(2, with(|other| other.message(if in_path { 4 } else { 3 }, simple)));
    });
    with(|item| item.message(1, inner))
}

fn schema(source: &Value) -> ProtobufMessage {
    let Some(map) = source.as_object() else { return ProtobufMessage::default() };
    let field = |name: &str| map.get(name).unwrap_or(&Value::Null);
    with(|message| {
        message.text(1, field("$ref"));
        message.text(2, field("format"));
        message.text(3, field("title"));
        message.text(4, field("description"));
        message.double(6, field("multipleOf"));
        message.double(7, field("maximum"));
        message.flag(8, field("exclusiveMaximum"));
        message.double(9, field("minimum"));
        message.flag(10, field("exclusiveMinimum"));
        message.whole(11, field("maxLength"));
        message.whole(12, field("minLength"));
        message.text(13, field("pattern"));
        message.whole(14, field("maxItems"));
        message.whole(15, field("minItems"));
        message.flag(16, field("uniqueItems"));
        message.whole(17, field("maxProperties"));
        message.whole(18, field("minProperties"));
        message.texts(19, field("required"));
        field("enum").as_array().into_iter().flatten().for_each(|one| message.message(20, any(one)));
        if let Some(values) = map.get("additionalProperties") {
            message.message(21, with(|item| item.message(1, schema(values))));
        }
        if let Some(kind) = map.get("type") {
            message.message(22, with(|item| item.text(1, kind)));
        }
        if let Some(items) = map.get("items") {
            message.message(23, with(|item| item.message(1, schema(items))));
        }
        if let Some(Value::Object(properties)) = map.get("properties") {
            let all = with(|all| properties.iter().for_each(|(name, one)| all.message(1, named(name, schema(one)))));
            message.message(25, all);
        }
        extensions(message, 31, map);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_bytes_are_those_of_protobuf() {
        let number = with(|message| message.whole(11, &json!(300)));
        assert_eq!(number.0, [0x58, 0xac, 0x02]);
        let mut small = Protobuf::default();
        for kind in ["string", "object"] {
            small.definition("a", &json!({"type": kind, "enum": ["x"], "x-k": true}));
        }
        let version = format!("\x12{}{}", char::from(u8::try_from(v2::VERSION.len()).unwrap()), v2::VERSION);
        let info = format!("\x0a\x07Slipway{version}");
        let mut wanted = format!("\x0a\x032.0\x12{}{info}", char::from(u8::try_from(info.len()).unwrap())).into_bytes();
        wanted.extend_from_slice(
            b"\x42\x00\x4a\x2c\x0a\x2a\x0a\x01a\x12\x25\
            \xa2\x01\x06\x12\x04\"x\"\n\xb2\x01\x08\x0a\x06string\xfa\x01\x0e\x0a\x03x-k\x12\x07\x12\x05true\n",
        );
        let small = small.finish();
        assert_eq!(small, wanted);
    }
}
