//! What an operator wants to know of an object before its fields, for `describe`: pure.

use jiff::Timestamp;
use serde_json::Value;

use super::relative::relative;
use super::types::ServedType;
use crate::cli::image::{size, source};

/// Lines, each with its label; none for kinds that say enough by their fields.
pub(super) fn lines(of: &ServedType, object: &Value, now: Timestamp) -> Vec<(&'static str, String)> {
    let all = match (of.group.as_str(), of.kind.as_str()) {
        ("cluster.x-k8s.io", "Cluster") => cluster(object),
        ("bpa.akraino.org", "Provisioning") => provisioning(object),
        ("slipway.dev", "Image") => image(object),
        _ => Vec::new(),
    };
    all.into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(label, value)| (label, relative(&value, now)))
        .collect()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

/// What a condition says, unless it is true.
fn unless_true<'a>(object: &'a Value, kind: &str) -> &'a str {
    let all = object["status"]["conditions"].as_array();
    let found = all.into_iter().flatten().find(|condition| condition["type"] == kind && condition["status"] != "True");
    found.map(|condition| text(condition, "/message")).unwrap_or_default()
}

fn cluster(object: &Value) -> Vec<(&'static str, String)> {
    let (name, namespace) = (text(object, "/metadata/name"), text(object, "/metadata/namespace"));
    let machines = |part: &str| {
        let wanted = number(object, &format!("/status/{part}/desiredReplicas"));
        let ready = number(object, &format!("/status/{part}/readyReplicas")).unwrap_or_default();
        wanted.map(|wanted| format!("{ready} of {wanted} machines ready")).unwrap_or_default()
    };
    let host = text(object, "/spec/controlPlaneEndpoint/host");
    let endpoint = match number(object, "/spec/controlPlaneEndpoint/port") {
        Some(port) if !host.is_empty() => format!("{host}:{port}"),
        _ => host.to_owned(),
    };
    let paused = if object["spec"]["paused"] == true { "yes: nothing is done about it (spec.paused)" } else { "" };
    vec![
        ("Phase", text(object, "/status/phase").to_owned()),
        ("Paused", paused.to_owned()),
        ("Control Plane", machines("controlPlane")),
        ("Workers", machines("workers")),
        ("Endpoint", endpoint),
        ("Waits For", unless_true(object, "Available").to_owned()),
        ("See Also", format!("slipway cluster status {name} -n {namespace}")),
    ]
}

fn provisioning(object: &Value) -> Vec<(&'static str, String)> {
    let (ready, wanted) = (number(object, "/status/nodesReady"), number(object, "/status/nodesWanted"));
    let nodes = wanted.map(|wanted| format!("{} of {wanted} ready", ready.unwrap_or_default())).unwrap_or_default();
    let run = match text(object, "/status/run/id") {
        "" => String::new(),
        id => format!("{id} ({})", text(object, "/status/run/playbook")),
    };
    vec![
        ("Phase", text(object, "/status/phase").to_owned()),
        ("Nodes", nodes),
        ("Last Run", run),
        ("Message", text(object, "/status/message").to_owned()),
    ]
}

fn image(object: &Value) -> Vec<(&'static str, String)> {
    let bytes = |pointer: &str| number(object, pointer).map(size).unwrap_or_default();
    let (whole, stored) = (bytes("/status/virtualSize"), bytes("/status/storedSize"));
    let sizes = match (whole.is_empty(), stored.is_empty()) {
        (false, false) => format!("{whole}, {stored} in the library"),
        _ => whole + &stored,
    };
    let format = [text(object, "/status/format"), text(object, "/spec/format")].into_iter().find(|it| !it.is_empty());
    let hosts = number(object, "/status/hosts").map(|hosts| match hosts {
        0 => "no host".to_owned(),
        1 => "1 host (`slipway image list` names it)".to_owned(),
        hosts => format!("{hosts} hosts (`slipway image list` names them)"),
    });
    vec![
        ("State", state(object)),
        ("Size", sizes),
        ("Format", format.unwrap_or_default().to_owned()),
        ("Source", source(text(object, "/spec/url"))),
        ("SHA-256", text(object, "/status/sha256").to_owned()),
        ("Used By", hosts.unwrap_or_default()),
        ("Message", text(object, "/status/message").to_owned()),
    ]
}

/// `Ready`, `Importing 40%`
pub(super) fn state(image: &Value) -> String {
    let phase = text(image, "/status/phase");
    match number(image, "/status/percent").filter(|_| phase == "Importing") {
        Some(percent) => format!("{phase} {percent}%"),
        None => phase.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(group: &str, kind: &str, object: Value) -> String {
        let of = ServedType { group: group.into(), kind: kind.into(), ..ServedType::default() };
        let lines = lines(&of, &object, Timestamp::UNIX_EPOCH);
        lines.iter().map(|(label, value)| format!("{label}: {value}\n")).collect()
    }

    #[test]
    fn each_kind_says_first_how_it_is() {
        let cluster = json!({ "metadata": { "name": "demo", "namespace": "rack" },
            "spec": { "controlPlaneEndpoint": { "host": "10.0.0.9", "port": 6443 } },
            "status": { "phase": "Provisioned", "controlPlane": { "desiredReplicas": 3, "readyReplicas": 1 },
                "workers": { "desiredReplicas": 2 },
                "conditions": [{ "type": "Available", "status": "False", "message": "* x: no" }] } });
        insta::assert_snapshot!(said("cluster.x-k8s.io", "Cluster", cluster), @r"
        Phase: Provisioned
        Control Plane: 1 of 3 machines ready
        Workers: 0 of 2 machines ready
        Endpoint: 10.0.0.9:6443
        Waits For: * x: no
        See Also: slipway cluster status demo -n rack
        ");
        let edge = json!({ "status": { "phase": "Choosing", "nodesWanted": 3, "message": "cp-1: none is free" } });
        insta::assert_snapshot!(said("bpa.akraino.org", "Provisioning", edge), @r"
        Phase: Choosing
        Nodes: 0 of 3 ready
        Message: cp-1: none is free
        ");
        let image = json!({ "spec": { "url": "http://u:p@x/i.raw" }, "status": { "phase": "Importing", "percent": 40,
            "virtualSize": 8_388_608, "format": "raw", "hosts": 2, "message": "" } });
        insta::assert_snapshot!(said("slipway.dev", "Image", image), @r"
        State: Importing 40%
        Size: 8.3 MB
        Format: raw
        Source: http://x/i.raw
        Used By: 2 hosts (`slipway image list` names them)
        ");
        assert_eq!(said("", "Secret", json!({})), "");
    }
}
