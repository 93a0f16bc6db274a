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
    let raw = [field(6, &moment), field(10, &moment), field(11, &[vec![8, 3], field(2, &moment)].concat())].concat();
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

/// Length in front of bytes, under a field's number.
fn delimited(number: u64, content: &[u8]) -> Vec<u8> {
    [number_of(number << 3 | 2), number_of(content.len() as u64), content.to_vec()].concat()
}

fn number_of(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    bytes.push(u8::try_from(value).unwrap());
    bytes
}

/// Writes an object as Go does: what is not set is written all the same, unless it is a pointer or a list.
fn encode(object: &Value, fields: &[ProtobufField]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        let value = &object[field.name];
        match (field.kind, field.rule) {
            (ProtobufType::Map(kind), _) => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    let entry = [delimited(1, key.as_bytes()), encode_one(2, value, *kind)].concat();
                    bytes.extend(delimited(field.number, &entry));
                }
            }
            // What it holds is among the fields of the one that it is in.
            (kind @ ProtobufType::Inline(_), _) => bytes.extend(encode_one(field.number, object, kind)),
            (kind, FieldRule::List) => {
                for value in value.as_array().into_iter().flatten() {
                    bytes.extend(encode_one(field.number, value, kind));
                }
            }
            (_, FieldRule::Pointer) if object.get(field.name).is_none() => {}
            (kind, _) => bytes.extend(encode_one(field.number, value, kind)),
        }
    }
    bytes
}

fn encode_one(number: u64, value: &Value, kind: ProtobufType) -> Vec<u8> {
    let text = value.as_str().unwrap_or_default();
    match kind {
        ProtobufType::Text => delimited(number, text.as_bytes()),
        ProtobufType::Bytes => delimited(number, &base64::engine::general_purpose::STANDARD.decode(text).unwrap()),
        ProtobufType::Int | ProtobufType::Bool => {
            let value = value.as_i64().unwrap_or_else(|| i64::from(value == &Value::Bool(true)));
            [number_of(number << 3), number_of(value.cast_unsigned())].concat()
        }
        ProtobufType::Double => [number_of(number << 3 | 1), value.as_f64().unwrap().to_le_bytes().to_vec()].concat(),
        ProtobufType::Json => delimited(number, &delimited(1, value.to_string().as_bytes())),
        ProtobufType::Message(fields) | ProtobufType::Inline(fields) => delimited(number, &encode(value, fields)),
        ProtobufType::Schema => delimited(number, &encode(value, definition::SCHEMA)),
        ProtobufType::Either(fields) => {
            let name = match value {
                Value::Array(_) => fields[0].name,
                Value::Bool(_) => "allows",
                _ => "schema",
            };
            delimited(number, &encode(&json!({ name: value }), fields))
        }
        ProtobufType::Time | ProtobufType::MicroTime => match text.parse::<Timestamp>() {
            Ok(time) => delimited(number, &[vec![8], number_of(time.as_second().cast_unsigned())].concat()),
            Err(_) => delimited(number, b""),
        },
        ProtobufType::Map(_) => panic!("a map is no one value"),
    }
}

/// The body that a Go client sends of an object.
pub(in crate::apiserver) fn whole(object: &Value) -> Vec<u8> {
    let (api_version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let raw = encode(object, fields_of(api_version, kind).unwrap());
    let type_meta = [delimited(1, api_version.as_bytes()), delimited(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), delimited(1, &type_meta), delimited(2, &raw)].concat()
}

/// The definition of a large kind, with a schema that has what they seldom have.
fn definition() -> Value {
    let kinds = crate::modules::kinds();
    let hosts = kinds.iter().find(|kind| kind.crd.spec.names.plural == "baremetalhosts").unwrap();
    let mut definition = serde_json::to_value(&hosts.crd).unwrap();
    definition["metadata"]["managedFields"] = json!([{"manager": "m", "operation": "Update",
        "apiVersion": "apiextensions.k8s.io/v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:group": {}}}}]);
    definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"caBundle": "YQ==", "service": {"namespace": "n", "name": "s", "path": "/c", "port": 443}}}});
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["odd"] = json!({
        "type": "object", "maximum": 0.5, "minimum": -3, "multipleOf": 2, "enum": [null, {"a": [1, "x"]}, 1.5],
        "items": {"type": "string"}, "additionalProperties": false, "nullable": true, "default": {"a": {}},
        "dependencies": {"a": ["b"], "c": {"type": "string"}}, "additionalItems": {"type": "integer"},
        "patternProperties": {"^a": {"items": [{"type": "string"}, {"type": "integer"}]}}, "$ref": "#/x",
        "x-kubernetes-validations": [{"rule": "self == oldSelf", "optionalOldSelf": true, "reason": "FieldValueInvalid"}],
        "x-kubernetes-list-map-keys": ["a"], "x-kubernetes-preserve-unknown-fields": false,
    });
    whole_numbers(&mut definition);
    definition
}

/// As Go writes doubles in JSON.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => *value = double(number.as_f64().unwrap()).unwrap(),
        Value::Array(entries) => entries.iter_mut().for_each(whole_numbers),
        Value::Object(map) => map.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

#[test]
fn a_definition_comes_out_as_its_json() {
    let mut wanted = definition();
    let mut read = parse(&whole(&wanted)).unwrap();
    // No pointer in Go, so that it is there whatever is in it.
    wanted["status"] = json!({"acceptedNames": {"kind": "", "plural": ""}});
    // A key whose value is not set is one that is there: JSON has it too.
    if let Some(created) = wanted["metadata"].get("creationTimestamp") {
        read["metadata"]["creationTimestamp"] = created.clone();
    }
    assert_eq!(read, wanted);
}

#[test]
fn a_lease_comes_out_as_its_json() {
    let wanted = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 15, "leaseTransitions": 0,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:01.000000Z"}});
    assert_eq!(parse(&whole(&wanted)).unwrap(), wanted);
}

#[test]
fn a_configuration_of_webhooks_comes_out_as_its_json() {
    let selector = json!({"matchLabels": {"a": "b"}});
    let wanted = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
    "metadata": {"name": "m"}, "webhooks": [{
        "name": "a.example.org", "sideEffects": "None", "timeoutSeconds": 5, "reinvocationPolicy": "IfNeeded",
        "clientConfig": {"url": "https://a", "caBundle": "/wA="}, "admissionReviewVersions": ["v1"],
        "objectSelector": selector, "matchConditions": [{"name": "c", "expression": "true"}],
        "rules": [{"operations": ["CREATE"], "apiGroups": ["*"], "apiVersions": ["v1"], "resources": ["a"],
            "scope": "*"}],
    }]});
    assert_eq!(parse(&whole(&wanted)).unwrap(), wanted);
}

/// Whatever a schema knows is read: nothing that a Go client sends is lost without a word.
#[test]
fn every_field_of_every_kind_is_read() {
    // Who somebody else is beyond groups is asked by no rule, and no client sends what a server answers.
    const LEFT: [&str; 4] = ["selfLink", "extra", "fieldSelector", "labelSelector"];
    fn flat(field: &'static ProtobufField) -> Vec<&'static ProtobufField> {
        match field.kind {
            ProtobufType::Inline(fields) => fields.iter().collect(),
            _ => vec![field],
        }
    }
    let documents = crate::apiserver::kinds::core_schemas::documents();
    // Looked at once: it refers to itself.
    let mut schemas = false;
    fn compare(
        documents: &crate::apiserver::kinds::core_schemas::SchemaDocuments,
        schema: &Value,
        kind: ProtobufType,
        path: &str,
        schemas: &mut bool,
    ) {
        let reference = schema.pointer("/allOf/0/$ref").or(schema.get("$ref")).and_then(Value::as_str);
        let schema = match reference.and_then(|name| name.rsplit('/').next()) {
            Some(name) => &documents[name],
            None => schema,
        };
        match kind {
            ProtobufType::Map(kind) => compare(documents, &schema["additionalProperties"], *kind, path, schemas),
            ProtobufType::Schema if !*schemas => {
                *schemas = true;
                compare(documents, schema, ProtobufType::Message(definition::SCHEMA), path, schemas);
            }
            ProtobufType::Message(fields) => {
                let fields: Vec<&ProtobufField> = fields.iter().flat_map(flat).collect();
                let Some(properties) = schema["properties"].as_object() else { return };
                for name in properties.keys().filter(|name| !["apiVersion", "kind"].contains(&name.as_str())) {
                    let field = fields.iter().find(|field| field.name == name);
                    let is_answer = name == "status" && path.contains("Review") || path.contains("TokenRequest");
                    assert!(field.is_some() || is_answer || LEFT.contains(&&**name), "{path}.{name} is not read");
                }
                for field in fields {
                    let Some(schema) = properties.get(field.name) else {
                        // Fields of another kind of the same form, or of a newer version.
                        continue;
                    };
                    let schema = if field.rule == FieldRule::List { &schema["items"] } else { schema };
                    compare(documents, schema, field.kind, &format!("{path}.{}", field.name), schemas);
                }
            }
            _ => {}
        }
    }
    let registry = crate::apiserver::kinds::built_in::registry(&[]).unwrap();
    let mut checked = 0;
    // Services are there to be listed only.
    for resource in registry.all().iter().filter(|resource| resource.plural != "services") {
        let fields = fields_of(&resource.api_version(), &resource.kind);
        let fields = fields.unwrap_or_else(|| panic!("{} is not read", resource.kind));
        let schema = &documents[&resource.schema_name()];
        compare(&documents, schema, ProtobufType::Message(fields), &resource.kind, &mut schemas);
        checked += 1;
    }
    assert!(checked > 15, "{checked}");
}

#[test]
fn bodies_are_bounded() {
    // Schemas within schemas, as deep as a body can hold.
    let nested = |levels: usize| {
        let mut schema = Vec::new();
        for _ in 0..levels {
            schema = delimited(28, &schema);
        }
        let version = delimited(4, &delimited(1, &schema));
        let raw = delimited(2, &delimited(7, &version));
        let type_meta = [delimited(1, b"apiextensions.k8s.io/v1"), delimited(2, b"CustomResourceDefinition")].concat();
        [MAGIC.to_vec(), delimited(1, &type_meta), delimited(2, &raw)].concat()
    };
    assert!(parse(&nested(80)).is_ok());
    assert!(parse(&nested(200)).unwrap_err().message.contains("nested too deeply"));
    assert!(parse(&nested(200_000)).is_err());
    // Values beyond what is taken, as fields, as entries of a map, and within JSON.
    let many = "x".repeat(FIELDS_MAX + 1);
    let fields: Vec<u8> = many.bytes().flat_map(|byte| delimited(14, &[byte])).collect();
    let entries: Vec<u8> = many.bytes().flat_map(|_| delimited(11, b"")).collect();
    let json = delimited(17, &delimited(7, &delimited(1, format!("[{}1]", "1,".repeat(FIELDS_MAX)).as_bytes())));
    for meta in [fields, entries, json] {
        let type_meta = [delimited(1, b"v1"), delimited(2, b"ConfigMap")].concat();
        let raw = delimited(1, &meta);
        let body = [MAGIC.to_vec(), delimited(1, &type_meta), delimited(2, &raw)].concat();
        assert!(parse(&body).unwrap_err().message.contains("too many fields"));
    }
}

proptest::proptest! {
    /// A definition with bytes changed by chance is read or refused.
    #[test]
    fn damaged_definitions_never_panic(changes in proptest::collection::vec((0_usize..1 << 20, proptest::num::u8::ANY), 1..8)) {
        static WHOLE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| whole(&definition()));
        let mut damaged = WHOLE.clone();
        for (at, byte) in changes {
            let length = damaged.len();
            damaged[at % length] = byte;
        }
        parse(&damaged).ok();
    }
}
