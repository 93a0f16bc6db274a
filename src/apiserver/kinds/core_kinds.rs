//! Rules and columns of the Kubernetes core kinds Namespace, Secret, ConfigMap and Lease.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::apiserver::answers::columns::PrinterColumn;
use crate::apiserver::answers::status::{FieldError, FieldFault};

/// Bytes that the values of one Secret or ConfigMap may have together.
const DATA_MAX: usize = 1024 * 1024;

/// Label that upstream keeps on every namespace.
const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";

pub(super) fn namespace_columns() -> Vec<PrinterColumn> {
    let status = PrinterColumn::cell("Status", "string", 0, |object, _| object["status"]["phase"].clone());
    vec![PrinterColumn::name(), status, PrinterColumn::age()]
}

pub(super) fn secret_columns() -> Vec<PrinterColumn> {
    let kind = PrinterColumn::cell("Type", "string", 0, |object, _| object["type"].clone());
    let data = PrinterColumn::cell("Data", "string", 0, |object, _| entries(&object["data"]).into());
    vec![PrinterColumn::name(), kind, data, PrinterColumn::age()]
}

pub(super) fn config_map_columns() -> Vec<PrinterColumn> {
    let data = PrinterColumn::cell("Data", "string", 0, |object, _| {
        (entries(&object["data"]) + entries(&object["binaryData"])).into()
    });
    vec![PrinterColumn::name(), data, PrinterColumn::age()]
}

pub(super) fn service_columns() -> Vec<PrinterColumn> {
    let text = |name, priority, cell| PrinterColumn::cell(name, "string", priority, cell);
    vec![
        PrinterColumn::name(),
        text("Type", 0, |object, _| object["spec"]["type"].clone()),
        text("Cluster-IP", 0, |object, _| object["spec"]["clusterIP"].clone()),
        text("External-IP", 0, |object, _| object["spec"]["externalName"].clone()),
        text("Port(s)", 0, |object, _| {
            let ports = object["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
            let ports: Vec<String> = ports.iter().map(|port| port["port"].to_string()).collect();
            ports.join(",").into()
        }),
        PrinterColumn::age(),
    ]
}

pub(super) fn lease_columns() -> Vec<PrinterColumn> {
    let holder = PrinterColumn::cell("Holder", "string", 0, |object, _| {
        object["spec"]["holderIdentity"].as_str().unwrap_or_default().into()
    });
    vec![PrinterColumn::name(), holder, PrinterColumn::age()]
}

/// Gives columns that show a field of the kind that field's description.
pub(in crate::apiserver) fn describe(columns: &mut [PrinterColumn], schema: &Value) {
    let fields = [
        ("Data", "data"),
        ("Type", "type"),
        ("Holder", "spec/properties/holderIdentity"),
        ("Status", "status/properties/phase"),
    ];
    for column in columns.iter_mut().filter(|column| column.description.is_empty()) {
        let field = fields.iter().find(|(name, _)| *name == column.name);
        let text = field.and_then(|(_, field)| schema.pointer(&format!("/properties/{field}/description"))?.as_str());
        column.description = text.unwrap_or_default().to_owned();
    }
}

/// The rules of `coordination.k8s.io/v1` LeaseSpec.
pub(super) fn prepare_lease(new: &mut Value, _: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &new["spec"];
    if let Some(seconds) = spec["leaseDurationSeconds"].as_i64().filter(|seconds| *seconds <= 0) {
        errors.push(FieldError::invalid("spec.leaseDurationSeconds", &seconds.into(), "must be greater than 0"));
    }
    if let Some(transitions) = spec["leaseTransitions"].as_i64().filter(|transitions| *transitions < 0) {
        let rule = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.leaseTransitions", &transitions.into(), rule));
    }
}

fn entries(map: &Value) -> usize {
    map.as_object().map_or(0, Map::len)
}

pub(super) fn prepare_namespace(new: &mut Value, old: Option<&Value>, _: &mut Vec<FieldError>) {
    let name = new["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let labels = &mut new["metadata"]["labels"];
    if !labels.is_object() {
        *labels = json!({});
    }
    labels[NAMESPACE_LABEL] = name.into();
    new["spec"] = old.map_or_else(|| json!({"finalizers": ["kubernetes"]}), |old| old["spec"].clone());
    if new["status"].get("phase").is_none() {
        new["status"] = old.map_or_else(|| json!({"phase": "Active"}), |old| old["status"].clone());
    }
}

pub(super) fn prepare_secret(new: &mut Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let Some(map) = new.as_object_mut() else { return };
    if let Some(Value::Object(plain)) = map.remove("stringData")
        && !plain.is_empty()
    {
        let data = map.entry("data").or_insert_with(|| json!({}));
        for (key, value) in plain {
            if let Some(text) = value.as_str() {
                data[key] = STANDARD.encode(text).into();
            }
        }
    }
    map.entry("type").or_insert_with(|| "Opaque".into());
    crate::apiserver::auth::accounts::check_secret(new, errors);
    let Some(map) = new.as_object_mut() else { return };
    check_data(map.get("data"), "data", true, errors);
    let required: &[&str] = match map.get("type").and_then(Value::as_str) {
        Some("kubernetes.io/tls") => &["tls.crt", "tls.key"],
        Some("kubernetes.io/dockerconfigjson") => &[".dockerconfigjson"],
        Some("kubernetes.io/dockercfg") => &[".dockercfg"],
        Some("kubernetes.io/ssh-auth") => &["ssh-privatekey"],
        _ => &[],
    };
    let has = |key: &str| map.get("data").and_then(|data| data.get(key)).is_some();
    for key in required.iter().filter(|key| !has(key)) {
        errors.push(FieldError::required(format!("data[{key}]"), ""));
    }
    let basic = ["username", "password"];
    if map.get("type").is_some_and(|kind| kind == "kubernetes.io/basic-auth") && !basic.into_iter().any(has) {
        // One of them is enough.
        errors.extend(basic.map(|key| FieldError::required(format!("data[{key}]"), "")));
    }
    if let Some(key) = required.iter().find(|key| key.starts_with(".docker"))
        && let Some(text) = map.get("data").and_then(|data| data[key].as_str())
        && !STANDARD.decode(text).is_ok_and(|json| serde_json::from_slice::<serde::de::IgnoredAny>(&json).is_ok())
    {
        errors.push(FieldError::invalid(format!("data[{key}]"), &"<secret contents redacted>".into(), "not JSON"));
    }
    if let Some(old) = old {
        if old["type"] != new["type"] {
            errors.push(FieldError::invalid("type", &new["type"], "field is immutable"));
        }
        check_immutable(new, old, &["data"], errors);
    }
}

pub(super) fn prepare_config_map(new: &mut Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    check_data(new.get("data"), "data", false, errors);
    check_data(new.get("binaryData"), "binaryData", true, errors);
    if let (Some(Value::Object(text)), Some(Value::Object(binary))) = (new.get("data"), new.get("binaryData")) {
        for key in text.keys().filter(|key| binary.contains_key(*key)) {
            errors.push(FieldError::invalid(
                format!("data[{key}]"),
                &key.as_str().into(),
                "duplicate of key present in binaryData",
            ));
        }
    }
    if let Some(old) = old {
        check_immutable(new, old, &["data", "binaryData"], errors);
    }
}

/// Once `immutable` is set, it stays, and the data too.
fn check_immutable(new: &Value, old: &Value, fields: &[&str], errors: &mut Vec<FieldError>) {
    if old["immutable"] != true {
        return;
    }
    for field in fields.iter().chain(&["immutable"]) {
        if old.get(*field) != new.get(*field) {
            errors.push(FieldError::forbidden(*field, "field is immutable when `immutable` is set"));
        }
    }
}

fn check_data(data: Option<&Value>, path: &str, encoded: bool, errors: &mut Vec<FieldError>) {
    let Some(Value::Object(data)) = data else { return };
    let mut total = 0;
    for (key, value) in data {
        for fault in crate::apiserver::objects::names::config_key(key) {
            let path = format!("{path}[{}]", crate::apiserver::answers::status::shorten(key, 64));
            errors.push(FieldError::invalid(path, &key.as_str().into(), fault));
        }
        let length = value.as_str().map_or(0, str::len);
        total += if encoded { length / 4 * 3 } else { length };
    }
    if total > DATA_MAX {
        errors.push(FieldError::new(FieldFault::TooLong, path, format!("may not be more than {DATA_MAX} bytes")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(prepare: super::super::resource::Prepare, new: &mut Value, old: Option<&Value>) -> Vec<String> {
        let mut errors = Vec::new();
        prepare(new, old, &mut errors);
        errors.into_iter().map(|error| error.path).collect()
    }

    #[test]
    fn plain_text_is_folded_into_a_secret() {
        let mut secret = json!({"data": {"a": "YQ==", "b": "Yg=="}, "stringData": {"b": "new", "c": "c"}});
        assert!(faults(prepare_secret, &mut secret, None).is_empty());
        assert_eq!(secret, json!({"data": {"a": "YQ==", "b": "bmV3", "c": "Yw=="}, "type": "Opaque"}));
    }

    #[test]
    fn a_secret_has_what_its_type_says() {
        for (kind, data, wanted) in [
            ("basic-auth", json!({"x": "eA=="}), vec!["data[username]", "data[password]"]),
            ("basic-auth", json!({"username": "eA=="}), vec![]),
            ("dockercfg", json!({}), vec!["data[.dockercfg]"]),
            ("dockercfg", json!({".dockercfg": "e30="}), vec![]),
            ("dockerconfigjson", json!({".dockerconfigjson": "eA=="}), vec!["data[.dockerconfigjson]"]),
            ("ssh-auth", json!({}), vec!["data[ssh-privatekey]"]),
            ("tls", json!({"tls.crt": "eA=="}), vec!["data[tls.key]"]),
        ] {
            let mut secret = json!({"type": format!("kubernetes.io/{kind}"), "data": data});
            assert_eq!(faults(prepare_secret, &mut secret, None), wanted, "{secret}");
        }
    }

    #[test]
    fn a_lease_lasts_and_counts_up() {
        for (spec, wanted) in [
            (json!({"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 0}), vec![]),
            (json!({"leaseDurationSeconds": 0}), vec!["spec.leaseDurationSeconds"]),
            (json!({"leaseDurationSeconds": 1, "leaseTransitions": -1}), vec!["spec.leaseTransitions"]),
        ] {
            assert_eq!(faults(prepare_lease, &mut json!({ "spec": spec }), None), wanted, "{spec}");
        }
    }

    #[test]
    fn immutable_data_stays() {
        let old = json!({"type": "Opaque", "immutable": true, "data": {"a": "YQ=="}});
        for (new, wanted) in [
            (old.clone(), vec![]),
            (json!({"type": "Opaque", "immutable": true, "data": {"a": "Yg=="}}), vec!["data"]),
            (json!({"type": "Opaque", "data": {"a": "YQ=="}}), vec!["immutable"]),
            (json!({"type": "other", "immutable": true, "data": {"a": "YQ=="}}), vec!["type"]),
        ] {
            assert_eq!(faults(prepare_secret, &mut new.clone(), Some(&old)), wanted, "{new}");
        }
        let mut map = json!({"data": {"a": "x"}, "binaryData": {"a": "YQ=="}});
        assert_eq!(faults(prepare_config_map, &mut map, None), ["data[a]"]);
    }

    #[test]
    fn keys_and_sizes_are_bounded() {
        for key in ["", ".", "..", "..x", "a/b", "a b", "é", &"x".repeat(254)] {
            let mut map = json!({"data": {key: "x"}});
            assert_eq!(faults(prepare_config_map, &mut map, None).len(), 1, "{key:?}");
        }
        let mut map = json!({"data": {"a": "x".repeat(DATA_MAX + 1)}});
        assert_eq!(faults(prepare_config_map, &mut map, None), ["data"]);
    }
}
