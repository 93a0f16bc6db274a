//! What templates, claims and data must be before they are stored, beyond what their schemas say. Pure.

use serde_json::{Value, json};

use super::plan::data_name;
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};

const FIXED: &str = "cannot be modified";

/// Rules of a kind: what is wrong with an object, and with what changed of it. They read both versions.
type DataRules = fn(&Value, Option<&Value>) -> Vec<FieldError>;

/// The rules of each kind, by `<group>/<plural>`.
pub(super) const RULES: [(&str, DataRules); 3] = [
    ("infrastructure.cluster.x-k8s.io/metal3datatemplates", template),
    ("infrastructure.cluster.x-k8s.io/metal3dataclaims", claim),
    ("infrastructure.cluster.x-k8s.io/metal3datas", data),
];

/// Asks the rules of a kind. Who deletes or reports a status is not judged, nor who leaves the spec as it is.
///
/// # Errors
///
/// Every rule that the change breaks.
pub(super) fn admit(rules: DataRules, request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    let same = request.old.is_some_and(|old| old["spec"] == request.object["spec"]);
    if request.status || request.operation == AdmissionOperation::Delete || same {
        return Ok(());
    }
    let errors = rules(request.object, request.old);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn list<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

fn template(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &new["spec"];
    if let Some(before) = old.map(|old| &old["spec"]) {
        for part in ["metaData", "networkData"] {
            if before[part] != spec[part] {
                errors.push(FieldError::invalid(format!("spec.{part}"), &spec[part], FIXED));
            }
        }
        return errors;
    }
    for (at, entry) in list(spec, "/metaData/fromHostInterfaces").iter().enumerate() {
        let path = format!("spec.metaData.fromHostInterfaces[{at}].interface");
        match (entry["fromBootMAC"] == true, text(entry, "interface")) {
            (false, "") => {
                errors.push(FieldError::required(path, "interface must be specified when fromBootMAC is false"))
            }
            (true, interface) if !interface.is_empty() => {
                let reason = "interface must be empty when fromBootMAC is true";
                errors.push(FieldError::invalid(path, &json!(interface), reason));
            }
            _ => {}
        }
    }
    for (kind, v6) in [("ipv4", false), ("ipv6", true), ("ipv4DHCP", false), ("ipv6DHCP", true), ("ipv6SLAAC", true)] {
        for (at, network) in list(spec, &format!("/networkData/networks/{kind}")).iter().enumerate() {
            let path = format!("spec.networkData.networks.{kind}[{at}]");
            let named = [
                &network["fromPoolRef"]["name"],
                &network["ipAddressFromIPPool"],
                &network["fromPoolAnnotation"]["object"],
            ];
            let is_static = matches!(kind, "ipv4" | "ipv6");
            if is_static && named.iter().all(|name| name.as_str().unwrap_or_default().is_empty()) {
                let path = format!("{path}.fromPoolRef.name");
                errors.push(FieldError::required(path, "fromPoolRef needs to contain a reference to an IPPool"));
            }
            for (route_at, route) in list(network, "/routes").iter().enumerate() {
                routes(route, v6, &format!("{path}.routes[{route_at}]"), &mut errors);
            }
        }
    }
    errors
}

fn routes(route: &Value, v6: bool, path: &str, errors: &mut Vec<FieldError>) {
    let version = if v6 { 6 } else { 4 };
    let mut address = |path: String, text: &str| {
        if !text.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_ipv6() == v6) {
            errors.push(FieldError::invalid(path, &json!(text), format!("is no IPv{version} address")));
        }
    };
    address(format!("{path}.network"), text(route, "network"));
    let gateway = text(&route["gateway"], "string");
    if !gateway.is_empty() {
        address(format!("{path}.gateway.string"), gateway);
    }
    for (at, server) in list(route, "/services/dns").iter().enumerate() {
        address(format!("{path}.services.dns[{at}]"), server.as_str().unwrap_or_default());
    }
    if route["prefix"].as_i64().is_some_and(|prefix| !v6 && prefix > 32) {
        errors.push(FieldError::invalid(format!("{path}.prefix"), &route["prefix"], "should be at most 32"));
    }
}

fn claim(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let template = &new["spec"]["template"];
    if let Some(before) = old.map(|old| &old["spec"]["template"]) {
        if !is_same(before, template) {
            errors.push(FieldError::invalid("spec.template", template, FIXED));
        }
    } else if text(template, "name").is_empty() {
        errors.push(FieldError::invalid("spec.template.name", &template["name"], "must be set"));
    }
    let namespace = text(template, "namespace");
    if !namespace.is_empty() && namespace != text(&new["metadata"], "namespace") {
        let reason =
            "must be empty or match the Metal3DataClaim namespace; cross-namespace template references are not allowed";
        errors.push(FieldError::invalid("spec.template.namespace", &json!(namespace), reason));
    }
    errors
}

fn data(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &new["spec"];
    if let Some(before) = old.map(|old| &old["spec"]) {
        if before["index"].as_i64().unwrap_or_default() != spec["index"].as_i64().unwrap_or_default() {
            errors.push(FieldError::invalid("spec.index", &spec["index"], FIXED));
        }
        for part in ["template", "claim"] {
            if !is_same(&before[part], &spec[part]) {
                errors.push(FieldError::invalid(format!("spec.{part}"), &spec[part], FIXED));
            }
        }
        return errors;
    }
    let index = spec["index"].as_i64().and_then(|index| i32::try_from(index).ok());
    if let (Some(index), name) = (index, text(&spec["template"], "name"))
        && !name.is_empty()
        && data_name(name, index) != text(&new["metadata"], "name")
    {
        let reason = "should follow the convention <Metal3Template Name>-<index>";
        errors.push(FieldError::invalid("name", &new["metadata"]["name"], reason));
    }
    errors
}

/// Whether two references are of one object.
fn is_same(one: &Value, other: &Value) -> bool {
    text(one, "name") == text(other, "name") && text(one, "namespace") == text(other, "namespace")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of each fault the path, when its message ends as wanted.
    fn assert_faults(rules: DataRules, new: &Value, old: Option<&Value>, wanted: &[(&str, &str)]) {
        let faults = rules(new, old);
        assert_eq!(faults.len(), wanted.len(), "{new}: {faults:?}");
        for (fault, (path, end)) in faults.iter().zip(wanted) {
            assert!(fault.path == *path && fault.message.ends_with(end), "{fault:?} is not {path}: {end}");
        }
    }

    #[test]
    fn templates_make_sense_and_stay_as_they_are() {
        let of = |spec: Value| json!({"spec": spec});
        let route = |route: Value| json!({"networkData": {"networks": {"ipv4DHCP": [{"routes": [route]}]}}});
        let rows: Vec<(Value, Vec<(&str, &str)>)> = vec![
            (json!({}), vec![]),
            (
                json!({"metaData": {"fromHostInterfaces": [{"key": "a", "interface": "eno1"}, {"key": "b", "fromBootMAC": true}]}}),
                vec![],
            ),
            (
                json!({"metaData": {"fromHostInterfaces": [{"key": "a"}, {"key": "b", "fromBootMAC": true, "interface": "eno1"}]}}),
                vec![
                    (
                        "spec.metaData.fromHostInterfaces[0].interface",
                        "interface must be specified when fromBootMAC is false",
                    ),
                    (
                        "spec.metaData.fromHostInterfaces[1].interface",
                        "interface must be empty when fromBootMAC is true",
                    ),
                ],
            ),
            (
                json!({"networkData": {"networks": {
                "ipv4": [{"ipAddressFromIPPool": "p"}, {"fromPoolRef": {"name": "p"}}, {"fromPoolAnnotation": {"object": "machine"}}],
                "ipv6": [{}], "ipv6SLAAC": [{}]}}}),
                vec![(
                    "spec.networkData.networks.ipv6[0].fromPoolRef.name",
                    "fromPoolRef needs to contain a reference to an IPPool",
                )],
            ),
            (
                route(
                    json!({"network": "10.0.0.0", "prefix": 8, "gateway": {"string": "10.0.0.1"}, "services": {"dns": ["8.8.8.8"]}}),
                ),
                vec![],
            ),
            (
                route(
                    json!({"network": "::", "prefix": 33, "gateway": {"string": "fd00::1"}, "services": {"dns": ["x"]}}),
                ),
                vec![
                    ("spec.networkData.networks.ipv4DHCP[0].routes[0].network", "is no IPv4 address"),
                    ("spec.networkData.networks.ipv4DHCP[0].routes[0].gateway.string", "is no IPv4 address"),
                    ("spec.networkData.networks.ipv4DHCP[0].routes[0].services.dns[0]", "is no IPv4 address"),
                    ("spec.networkData.networks.ipv4DHCP[0].routes[0].prefix", "should be at most 32"),
                ],
            ),
        ];
        for (spec, wanted) in rows {
            assert_faults(template, &of(spec), None, &wanted);
        }
        let before = of(json!({"clusterName": "c", "metaData": {"strings": []}}));
        assert_faults(template, &of(json!({"clusterName": "d", "metaData": {"strings": []}})), Some(&before), &[]);
        let wanted = [("spec.metaData", FIXED), ("spec.networkData", FIXED)];
        assert_faults(template, &of(json!({"networkData": {}})), Some(&before), &wanted);
    }

    #[test]
    fn references_do_not_change() {
        let of =
            |template: Value| json!({"metadata": {"name": "c", "namespace": "rack"}, "spec": {"template": template}});
        let first = of(json!({"name": "t"}));
        assert_faults(claim, &first, None, &[]);
        assert_faults(claim, &of(json!({"name": "t", "namespace": "rack"})), None, &[]);
        assert_faults(claim, &of(json!({})), None, &[("spec.template.name", "must be set")]);
        let abroad = of(json!({"name": "t", "namespace": "other"}));
        assert_faults(
            claim,
            &abroad,
            None,
            &[("spec.template.namespace", "cross-namespace template references are not allowed")],
        );
        assert_faults(claim, &of(json!({"name": "u"})), Some(&first), &[("spec.template", FIXED)]);

        let of = |name: &str, index: i32, template: &str, claim: &str| {
            json!({"metadata": {"name": name},
            "spec": {"index": index, "template": {"name": template}, "claim": {"name": claim}}})
        };
        assert_faults(data, &of("t-3", 3, "t", "c"), None, &[]);
        assert_faults(
            data,
            &of("t-4", 3, "t", "c"),
            None,
            &[("name", "should follow the convention <Metal3Template Name>-<index>")],
        );
        let changed = of("t-3", 4, "u", "d");
        let wanted = [("spec.index", FIXED), ("spec.template", FIXED), ("spec.claim", FIXED)];
        assert_faults(data, &changed, Some(&of("t-3", 3, "t", "c")), &wanted);
        let noted =
            json!({"spec": {"index": 3, "metaData": {"name": "x"}, "template": {"name": "t"}, "claim": {"name": "c"}}});
        assert_faults(data, &noted, Some(&of("t-3", 3, "t", "c")), &[]);
    }
}
