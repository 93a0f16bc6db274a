//! Between v1beta1 and v1beta2 of data for machines. Pure.
//!
//! What one version cannot say is not its business: whoever stores objects finds it by going there and back.

use serde_json::{Map, Value, json};

use crate::api::conversion::{Moves, alter, newer, older};
use crate::api::infrastructure::convert::reference_to_storage;

const OLD: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
const NEW: &str = "infrastructure.cluster.x-k8s.io/v1beta2";

const TEMPLATE: Moves = &[
    ("spec.metaData.ipAddressesFromIPPool", "spec.metaData.ipAddressesFromPool"),
    ("spec.metaData.prefixesFromIPPool", "spec.metaData.prefixesFromPool"),
    ("spec.metaData.gatewaysFromIPPool", "spec.metaData.gatewaysFromPool"),
    ("spec.metaData.dnsServersFromIPPool", "spec.metaData.dnsServersFromPool"),
];
const BONDS: &str = "spec.networkData.links.bonds";
const INDEXES: &str = "status.indexes";

/// A Metal3DataTemplate of v1beta1 in v1beta2.
pub fn template_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, TEMPLATE);
    drop_template_reference(&mut new);
    alter(&mut new, BONDS, |bonds| each(bonds, "parameters", parameters_to_storage));
    alter(&mut new, INDEXES, |indexes| {
        let entries = indexes.as_object()?.iter().map(|(name, index)| json!({"name": name, "index": index}));
        let mut entries: Vec<Value> = entries.collect();
        entries.sort_by_key(|entry| entry["index"].as_i64());
        Some(entries.into())
    });
    new
}

/// A Metal3DataTemplate of v1beta2 in v1beta1.
pub fn template_from_storage(new: &Value) -> Value {
    let mut old = older(new, OLD, TEMPLATE);
    alter(&mut old, BONDS, |bonds| each(bonds, "parameters", |list| named(list, "value")));
    alter(&mut old, INDEXES, |list| named(list, "index"));
    old
}

/// A Metal3DataClaim of v1beta1 in v1beta2.
pub fn claim_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, &[]);
    alter(&mut new, "spec.template", reference_to_storage);
    alter(&mut new, "status.renderedData", reference_to_storage);
    new
}

/// A Metal3DataClaim of v1beta2 in v1beta1.
pub fn claim_from_storage(new: &Value) -> Value {
    older(new, OLD, &[])
}

/// A Metal3Data of v1beta1 in v1beta2.
pub fn data_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, &[]);
    drop_template_reference(&mut new);
    alter(&mut new, "spec.claim", reference_to_storage);
    alter(&mut new, "spec.template", reference_to_storage);
    new
}

/// A Metal3Data of v1beta2 in v1beta1.
pub fn data_from_storage(new: &Value) -> Value {
    older(new, OLD, &[])
}

fn drop_template_reference(object: &mut Value) {
    if let Some(Value::Object(spec)) = object.get_mut("spec") {
        spec.remove("templateReference");
    }
}

/// The list, with a field of each entry changed.
fn each(list: &Value, field: &str, change: impl Fn(&Value) -> Option<Value>) -> Option<Value> {
    let mut list = list.as_array()?.clone();
    list.iter_mut().for_each(|entry| alter(entry, field, &change));
    Some(list.into())
}

/// A map as a list of names and values.
fn parameters_to_storage(map: &Value) -> Option<Value> {
    let entries = map.as_object()?.iter().map(|(name, value)| json!({"name": name, "value": value}));
    Some(entries.collect())
}

/// A list of names and values as a map. It must say no name twice, and nothing besides.
fn named(list: &Value, value: &str) -> Option<Value> {
    let mut map = Map::new();
    for entry in list.as_array()? {
        let name = entry.get("name")?.as_str()?.to_owned();
        map.insert(name, entry.get(value).cloned().unwrap_or_default());
    }
    Some(map.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_in_both_versions() {
        let old = json!({
            "apiVersion": OLD, "kind": "Metal3DataTemplate", "metadata": {"name": "t"},
            "spec": {
                "clusterName": "c",
                "metaData": {
                    "strings": [{"key": "a", "value": "b"}],
                    "ipAddressesFromIPPool": [{"key": "ip", "name": "p"}],
                    "prefixesFromIPPool": [{"key": "prefix", "name": "p"}],
                    "gatewaysFromIPPool": [{"key": "gateway", "name": "p"}],
                    "dnsServersFromIPPool": [{"key": "dns", "name": "p"}],
                },
                "networkData": {"links": {"bonds": [{"id": "bond0", "parameters": {"miimon": 100, "lacp_rate": "fast"}}, {"id": "bond1"}]}},
            },
            "status": {"indexes": {"m-0": 0, "a-1": 1}},
        });
        let new = json!({
            "apiVersion": NEW, "kind": "Metal3DataTemplate", "metadata": {"name": "t"},
            "spec": {
                "clusterName": "c",
                "metaData": {
                    "strings": [{"key": "a", "value": "b"}],
                    "ipAddressesFromPool": [{"key": "ip", "name": "p"}],
                    "prefixesFromPool": [{"key": "prefix", "name": "p"}],
                    "gatewaysFromPool": [{"key": "gateway", "name": "p"}],
                    "dnsServersFromPool": [{"key": "dns", "name": "p"}],
                },
                "networkData": {"links": {"bonds": [{"id": "bond0", "parameters": [
                    {"name": "lacp_rate", "value": "fast"}, {"name": "miimon", "value": 100}]}, {"id": "bond1"}]}},
            },
            "status": {"indexes": [{"name": "m-0", "index": 0}, {"name": "a-1", "index": 1}]},
        });
        assert_eq!(template_to_storage(&old), new);
        assert_eq!(template_from_storage(&new), old);
        let given = json!({"spec": {"templateReference": "x", "clusterName": "c"}});
        assert_eq!(template_to_storage(&given)["spec"], json!({"clusterName": "c"}));
    }

    #[test]
    fn claims_and_data_refer_by_name() {
        let old = json!({"kind": "Metal3DataTemplate", "name": "t", "namespace": "rack", "uid": "7"});
        let new = json!({"name": "t", "namespace": "rack"});
        let claim = |version: &str, reference: &Value| {
            json!({"apiVersion": version, "spec": {"template": reference},
            "status": {"renderedData": reference}})
        };
        assert_eq!(claim_to_storage(&claim(OLD, &old)), claim(NEW, &new));
        assert_eq!(claim_from_storage(&claim(NEW, &new)), claim(OLD, &new));
        let data = |version: &str, reference: &Value| {
            json!({"apiVersion": version, "spec": {"index": 1, "template": reference,
            "claim": reference}, "status": {"ready": true}})
        };
        assert_eq!(data_to_storage(&data(OLD, &old)), data(NEW, &new));
        assert_eq!(data_from_storage(&data(NEW, &new)), data(OLD, &new));
    }
}
