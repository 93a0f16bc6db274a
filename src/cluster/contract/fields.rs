//! What an object of another room says, in the shape of either version of the contract. Pure.
//!
//! The newer shape counts where it is there. Providers write what they like: whatever is too long, or of another type, is as if it
//! were not there.

use serde_json::Value;

use crate::api::cluster::{
    AddressType, ApiEndpoint, CLUSTER_VERSIONS_MAX, FailureDomain, MachineAddress, ReplicaCounts, VersionCount,
};
use crate::runtime::conditions::{ConditionVerdict, Truth};

/// Longest text that is taken over.
const TEXT_MAX: usize = 512;
/// Longest message that is taken over.
const MESSAGE_MAX: usize = 4096;
/// Addresses of a machine, and failure domains of a cluster, at most.
const LIST_MAX: usize = 100;

/// What an infrastructure cluster, an infrastructure machine says of itself: whether it is there.
pub fn is_provisioned(object: &Value) -> bool {
    flag(object, "/status/initialization/provisioned", "/status/ready")
}

/// The Secret with the user data, once it is there.
pub fn data_secret(object: &Value) -> Option<String> {
    let made = flag(object, "/status/initialization/dataSecretCreated", "/status/ready");
    text(object, "/status/dataSecretName").filter(|name| made && name.len() <= 253)
}

/// Whether the control plane's API server has answered once.
pub fn is_initialized(object: &Value) -> bool {
    flag(object, "/status/initialization/controlPlaneInitialized", "/status/initialized")
}

/// Where a cluster's API server is reached; `None` until both host and port are known.
pub fn endpoint(object: &Value) -> Option<ApiEndpoint> {
    let host = text(object, "/spec/controlPlaneEndpoint/host")?;
    let port = object.pointer("/spec/controlPlaneEndpoint/port")?.as_i64()?;
    let port = i32::try_from(port).ok().filter(|port| (1..=65535).contains(port))?;
    Some(ApiEndpoint { host, port: Some(port) })
}

/// Where a cluster's machines may be: a list, or a map by name.
pub fn failure_domains(object: &Value) -> Vec<FailureDomain> {
    let domain = |name: &str, domain: &Value| {
        let attributes = domain["attributes"].as_object().into_iter().flatten().take(LIST_MAX);
        let attributes = attributes.filter_map(|(key, value)| Some((key.clone(), short(value.as_str()?)?)));
        Some(FailureDomain {
            name: short(name)?,
            control_plane: domain["controlPlane"].as_bool(),
            attributes: attributes.collect(),
        })
    };
    let mut domains: Vec<FailureDomain> = match object.pointer("/status/failureDomains") {
        Some(Value::Array(list)) => {
            list.iter().filter_map(|one| domain(one["name"].as_str()?, one)).take(LIST_MAX).collect()
        }
        Some(Value::Object(map)) => map.iter().filter_map(|(name, one)| domain(name, one)).take(LIST_MAX).collect(),
        _ => Vec::new(),
    };
    domains.sort_by(|one, other| one.name.cmp(&other.name));
    domains.dedup_by(|one, other| one.name == other.name);
    domains.retain(|domain| domain.name.len() <= 256);
    domains
}

/// Identity of a machine at its provider.
pub fn provider_id(object: &Value) -> Option<String> {
    text(object, "/spec/providerID")
}

/// Addresses of a machine.
pub fn addresses(object: &Value) -> Vec<MachineAddress> {
    let list = object.pointer("/status/addresses").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let address = |one: &Value| {
        let type_: AddressType = serde_json::from_value(one["type"].clone()).ok()?;
        let address = short(one["address"].as_str()?).filter(|address| address.len() <= 256)?;
        Some(MachineAddress { type_, address })
    };
    list.iter().filter_map(address).take(LIST_MAX).collect()
}

/// Where a machine is.
pub fn failure_domain(object: &Value) -> Option<String> {
    let domain = text(object, "/status/failureDomain").or_else(|| text(object, "/spec/failureDomain"));
    domain.filter(|domain| domain.len() <= 256)
}

/// A fault that nobody will mend, in one word and for people. Only the older version of the contract has such.
pub fn failure(object: &Value) -> Option<(String, String)> {
    let old = |name: &str| {
        let newer = object.pointer(&format!("/status/deprecated/v1beta1/{name}"));
        let text = object["status"].get(name).or(newer)?.as_str()?;
        Some(text.chars().take(MESSAGE_MAX).collect::<String>()).filter(|text| !text.is_empty())
    };
    let (reason, message) = (old("failureReason"), old("failureMessage"));
    (reason.is_some() || message.is_some()).then(|| (reason.unwrap_or_default(), message.unwrap_or_default()))
}

/// How many machines a control plane has.
pub fn replicas(object: &Value) -> ReplicaCounts {
    let number = |path: &str| object.pointer(path)?.as_i64().and_then(|number| i32::try_from(number).ok());
    ReplicaCounts {
        desired_replicas: number("/spec/replicas"),
        replicas: number("/status/replicas"),
        up_to_date_replicas: number("/status/upToDateReplicas").or_else(|| number("/status/updatedReplicas")),
        ready_replicas: number("/status/readyReplicas"),
        available_replicas: number("/status/availableReplicas"),
        versions: versions(object),
    }
}

/// How many machines of a control plane have which version, each version once.
fn versions(object: &Value) -> Vec<VersionCount> {
    let list = object.pointer("/status/versions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let one = |one: &Value| {
        let version = one["version"].as_str().filter(|version| (1..=256).contains(&version.len()))?;
        let replicas = one["replicas"].as_i64().and_then(|number| i32::try_from(number).ok());
        Some(VersionCount { version: version.to_owned(), replicas: replicas.filter(|number| *number > 0) })
    };
    let mut versions: Vec<VersionCount> = Vec::new();
    for one in list.iter().take(CLUSTER_VERSIONS_MAX).filter_map(one) {
        if !versions.iter().any(|other| other.version == one.version) {
            versions.push(one);
        }
    }
    versions
}

/// What a condition of an object says, of whichever shape it is.
pub fn condition(object: &Value, type_: &str) -> Option<ConditionVerdict> {
    let list = object.pointer("/status/conditions")?.as_array()?;
    let found = list.iter().take(LIST_MAX).find(|condition| condition["type"] == type_)?;
    let text = |name: &str| found[name].as_str().unwrap_or_default().chars().take(MESSAGE_MAX).collect::<String>();
    Some(ConditionVerdict { truth: Truth::read(&text("status")), reason: text("reason"), message: text("message") })
}

/// Where the newer field is not there the older one counts.
fn flag(object: &Value, newer: &str, older: &str) -> bool {
    object.pointer(newer).or_else(|| object.pointer(older)).and_then(Value::as_bool).unwrap_or(false)
}

fn text(object: &Value, path: &str) -> Option<String> {
    short(object.pointer(path)?.as_str()?)
}

fn short(text: &str) -> Option<String> {
    (!text.is_empty() && text.len() <= TEXT_MAX).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_versions_of_the_contract_are_read() {
        for (object, wanted) in [
            (json!({"status": {"ready": true}}), true),
            (json!({"status": {"initialization": {"provisioned": true}}}), true),
            (json!({"status": {"initialization": {"provisioned": false}, "ready": true}}), false),
            (json!({"status": {"initialization": {}, "ready": true}}), true),
            (json!({"status": {"ready": "true"}}), false),
            (json!({}), false),
        ] {
            assert_eq!(is_provisioned(&object), wanted, "{object}");
        }
        for (object, wanted) in [
            (json!({"status": {"ready": true, "dataSecretName": "s"}}), Some("s")),
            (json!({"status": {"initialization": {"dataSecretCreated": true}, "dataSecretName": "s"}}), Some("s")),
            (json!({"status": {"dataSecretName": "s"}}), None),
            (json!({"status": {"ready": true}}), None),
        ] {
            assert_eq!(data_secret(&object).as_deref(), wanted, "{object}");
        }
        assert!(is_initialized(&json!({"status": {"initialized": true}})));
        assert!(is_initialized(&json!({"status": {"initialization": {"controlPlaneInitialized": true}}})));
    }

    #[test]
    fn an_endpoint_has_a_host_and_a_port() {
        let of = |endpoint: Value| super::endpoint(&json!({"spec": {"controlPlaneEndpoint": endpoint}}));
        let fine = ApiEndpoint { host: "10.0.0.1".into(), port: Some(6443) };
        assert_eq!(of(json!({"host": "10.0.0.1", "port": 6443})), Some(fine));
        for bad in [
            json!({"host": "10.0.0.1"}),
            json!({"host": "", "port": 6443}),
            json!({"host": "x", "port": 0}),
            json!({"host": "x", "port": 65536}),
            json!({"host": "x".repeat(600), "port": 1}),
            json!(null),
        ] {
            assert_eq!(of(bad.clone()), None, "{bad}");
        }
    }

    #[test]
    fn failure_domains_are_a_list_or_a_map() {
        let list = json!({"status": {"failureDomains": [{"name": "b"}, {"name": "a", "controlPlane": true}]}});
        let map = json!({"status": {"failureDomains": {"a": {"controlPlane": true}, "b": {}}}});
        let domains = failure_domains(&list);
        assert_eq!(domains, failure_domains(&map));
        assert_eq!((domains[0].name.as_str(), domains[0].control_plane), ("a", Some(true)));
        let many: Vec<Value> = (0..1000).map(|number| json!({"name": number.to_string()})).collect();
        assert_eq!(failure_domains(&json!({"status": {"failureDomains": many}})).len(), LIST_MAX);
    }

    #[test]
    fn a_machine_is_read_and_what_is_no_address_is_left_out() {
        let machine = json!({
            "spec": {"providerID": "metal3://1", "failureDomain": "old"},
            "status": {"failureDomain": "new", "addresses": [
                {"type": "InternalIP", "address": "10.0.0.7"}, {"type": "Odd", "address": "x"}, {"type": "Hostname"}, 7,
            ]},
        });
        assert_eq!(provider_id(&machine).as_deref(), Some("metal3://1"));
        assert_eq!(failure_domain(&machine).as_deref(), Some("new"));
        let wanted = MachineAddress { type_: AddressType::InternalIP, address: "10.0.0.7".into() };
        assert_eq!(addresses(&machine), [wanted]);
    }

    #[test]
    fn failures_and_conditions_are_read() {
        let old = json!({"status": {"failureReason": "Broken", "failureMessage": "the disk is"}});
        let new = json!({"status": {"deprecated": {"v1beta1": {"failureMessage": "the disk is"}}}});
        assert_eq!(failure(&old), Some(("Broken".into(), "the disk is".into())));
        assert_eq!(failure(&new), Some((String::new(), "the disk is".into())));
        assert_eq!(failure(&json!({"status": {"failureReason": ""}})), None);
        let object = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Why"}]}});
        assert_eq!(condition(&object, "Ready"), Some(ConditionVerdict::no("Why", "")));
        assert_eq!(condition(&object, "Other"), None);
        let counted = json!({"spec": {"replicas": 3}, "status": {"replicas": 2, "updatedReplicas": 1}});
        let counted = replicas(&counted);
        assert_eq!(
            (counted.desired_replicas, counted.replicas, counted.up_to_date_replicas),
            (Some(3), Some(2), Some(1))
        );
        let long = "x".repeat(257);
        let counted = json!({"status": {"versions": [{"version": "v1.35.0", "replicas": 2}, {"version": "v1.36.0", "replicas": 0},
            {"version": "v1.35.0", "replicas": 1}, {"version": long}, {"version": ""}, {"version": 7}, "v1.37.0"]}});
        let one = |version: &str, replicas| VersionCount { version: version.into(), replicas };
        assert_eq!(replicas(&counted).versions, [one("v1.35.0", Some(2)), one("v1.36.0", None)]);
        assert_eq!(replicas(&json!({"status": {"versions": {"version": "v1.35.0"}}})).versions, []);
    }
}
