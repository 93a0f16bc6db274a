//! Meta data of a machine. Pure.

use std::collections::BTreeMap;

use super::machine::{DataMachine, DataRenderError};
use super::pools::{PoolAddresses, of};
use crate::api::infrastructure::data::v1beta2::MetaData;
use crate::image::configdrive::MAX_DOCUMENT;

/// The meta data: texts by key. What comes later here counts more.
///
/// # Errors
///
/// When something that it is made of is not there.
pub(super) fn render(
    meta: &MetaData,
    index: i32,
    machine: &DataMachine,
    addresses: &PoolAddresses,
) -> Result<BTreeMap<String, String>, DataRenderError> {
    let mut data = MetaDataEntries::default();
    for entry in &meta.from_host_interfaces {
        let mac = match entry.from_boot_mac {
            Some(true) => machine
                .boot_mac
                .clone()
                .ok_or_else(|| DataRenderError::NoBootMac(entry.key.clone(), machine.host.name.clone()))?,
            _ => machine.mac_of(&entry.interface)?,
        };
        data.insert(entry.key.clone(), mac)?;
    }
    for entry in &meta.ip_addresses_from_pool {
        data.insert(entry.key.clone(), of(addresses, &entry.name)?.address.to_string())?;
    }
    for entry in &meta.prefixes_from_pool {
        data.insert(entry.key.clone(), of(addresses, &entry.name)?.prefix.unwrap_or_default().to_string())?;
    }
    for entry in &meta.gateways_from_pool {
        data.insert(entry.key.clone(), of(addresses, &entry.name)?.gateway.clone().unwrap_or_default())?;
    }
    for entry in &meta.dns_servers_from_pool {
        data.insert(entry.key.clone(), of(addresses, &entry.name)?.dns_servers.join(","))?;
    }
    for entry in &meta.indexes {
        let step = entry.step.filter(|step| *step != 0).unwrap_or(1);
        let number = i64::from(entry.offset.unwrap_or_default()) + i64::from(index) * i64::from(step);
        data.insert(entry.key.clone(), format!("{}{number}{}", entry.prefix, entry.suffix))?;
    }
    for entry in &meta.namespaces {
        data.insert(entry.key.clone(), machine.namespace.clone())?;
    }
    for entry in &meta.object_names {
        data.insert(entry.key.clone(), machine.object(entry.object).name.clone())?;
    }
    for entry in &meta.from_labels {
        let label = machine.object(entry.object).labels.get(&entry.label);
        data.insert(entry.key.clone(), label.cloned().unwrap_or_default())?;
    }
    for entry in &meta.from_annotations {
        data.insert(entry.key.clone(), machine.annotation(entry.object, &entry.annotation))?;
    }
    for entry in &meta.strings {
        data.insert(entry.key.clone(), entry.value.clone())?;
    }
    data.insert("providerid".to_owned(), machine.provider_id())?;
    Ok(data.texts)
}

/// Texts by key. One that is said again and again costs nothing to write, and much to keep.
#[derive(Default)]
struct MetaDataEntries {
    texts: BTreeMap<String, String>,
    bytes: usize,
}

impl MetaDataEntries {
    fn insert(&mut self, key: String, text: String) -> Result<(), DataRenderError> {
        self.bytes = self.bytes.saturating_add(key.len() + text.len());
        if self.bytes > MAX_DOCUMENT {
            return Err(DataRenderError::Large(self.bytes, MAX_DOCUMENT));
        }
        self.texts.insert(key, text);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::super::machine::Facts;
    use super::super::pools::Allocated;
    use super::*;

    pub(in crate::cluster::data) fn machine() -> DataMachine {
        let facts = |name: &str| Facts {
            name: name.into(),
            labels: [("label".into(), format!("label of {name}"))].into(),
            annotations: [("mac".into(), "52:54:00:00:00:09".into()), ("note".into(), format!("note of {name}"))]
                .into(),
        };
        DataMachine {
            namespace: "rack".into(),
            cluster: "c".into(),
            machine: facts("machine-0"),
            metal3: facts("metal3-0"),
            host: facts("host-0"),
            boot_mac: Some("52:54:00:00:00:01".into()),
            nics: Some(vec![("eno1".into(), "52:54:00:00:00:01".into()), ("eno2".into(), "52:54:00:00:00:02".into())]),
        }
    }

    pub(in crate::cluster::data) fn addresses() -> PoolAddresses {
        let v4 = Allocated {
            address: "10.0.0.5".parse().unwrap(),
            prefix: Some(24),
            gateway: Some("10.0.0.1".into()),
            dns_servers: vec!["10.0.0.2".into(), "10.0.0.3".into()],
        };
        let v6 = Allocated {
            address: "fd00::5".parse().unwrap(),
            prefix: Some(64),
            gateway: Some("fd00::1".into()),
            dns_servers: vec!["fd00::2".into()],
        };
        let bare = Allocated { address: "10.9.0.5".parse().unwrap(), prefix: None, gateway: None, dns_servers: vec![] };
        [("v4".to_owned(), v4), ("v6".to_owned(), v6), ("bare".to_owned(), bare)].into()
    }

    fn rendered(meta: Value) -> Result<Value, String> {
        let meta = serde_json::from_value(meta).unwrap();
        let data = render(&meta, 3, &machine(), &addresses()).map_err(|error| error.to_string())?;
        let mut data = json!(data);
        assert_eq!(data["providerid"], "rack/host-0/metal3-0");
        data.as_object_mut().unwrap().remove("providerid");
        Ok(data)
    }

    #[test]
    fn every_field_is_rendered() {
        let object = |key: &str, object: &str| json!([{"key": key, "object": object}]);
        let rows = [
            (json!({}), json!({})),
            (
                json!({"strings": [{"key": "a", "value": "true"}, {"key": "b", "value": ""}]}),
                json!({"a": "true", "b": ""}),
            ),
            (json!({"objectNames": object("a", "machine")}), json!({"a": "machine-0"})),
            (json!({"objectNames": object("a", "metal3machine")}), json!({"a": "metal3-0"})),
            (json!({"objectNames": object("a", "baremetalhost")}), json!({"a": "host-0"})),
            (json!({"indexes": [{"key": "a"}]}), json!({"a": "3"})),
            (json!({"indexes": [{"key": "a", "step": 0}]}), json!({"a": "3"})),
            (
                json!({"indexes": [{"key": "a", "offset": 10, "step": 2, "prefix": "node-", "suffix": ".lab"}]}),
                json!({"a": "node-16.lab"}),
            ),
            (
                json!({"indexes": [{"key": "a", "offset": 2_147_483_647, "step": 2_147_483_647}]}),
                json!({"a": "8589934588"}),
            ),
            (json!({"namespaces": [{"key": "a"}]}), json!({"a": "rack"})),
            (
                json!({"ipAddressesFromPool": [{"key": "a", "name": "v4"}, {"key": "b", "name": "v6"}]}),
                json!({"a": "10.0.0.5", "b": "fd00::5"}),
            ),
            (
                json!({"prefixesFromPool": [{"key": "a", "name": "v4"}, {"key": "b", "name": "bare"}]}),
                json!({"a": "24", "b": "0"}),
            ),
            (
                json!({"gatewaysFromPool": [{"key": "a", "name": "v6"}, {"key": "b", "name": "bare"}]}),
                json!({"a": "fd00::1", "b": ""}),
            ),
            (json!({"dnsServersFromPool": [{"key": "a", "name": "v4"}]}), json!({"a": "10.0.0.2,10.0.0.3"})),
            (json!({"fromHostInterfaces": [{"key": "a", "interface": "eno2"}]}), json!({"a": "52:54:00:00:00:02"})),
            (json!({"fromHostInterfaces": [{"key": "a", "fromBootMAC": true}]}), json!({"a": "52:54:00:00:00:01"})),
            (
                json!({"fromLabels": [{"key": "a", "object": "machine", "label": "label"}, {"key": "b", "object": "machine", "label": "x"}]}),
                json!({"a": "label of machine-0", "b": ""}),
            ),
            (
                json!({"fromAnnotations": [{"key": "a", "object": "baremetalhost", "annotation": "note"}]}),
                json!({"a": "note of host-0"}),
            ),
            // What is said by the template itself counts most.
            (json!({"strings": [{"key": "a", "value": "text"}], "namespaces": [{"key": "a"}]}), json!({"a": "text"})),
        ];
        for (meta, wanted) in rows {
            assert_eq!(rendered(meta.clone()), Ok(wanted), "{meta}");
        }
    }

    #[test]
    fn what_is_not_there_is_said() {
        let rows = [
            (json!({"fromHostInterfaces": [{"key": "a", "interface": "eno9"}]}), "NIC name not found eno9"),
            (json!({"ipAddressesFromPool": [{"key": "a", "name": "x"}]}), "there is no address of the pool x"),
        ];
        for (meta, wanted) in rows {
            assert_eq!(rendered(meta), Err(wanted.to_owned()));
        }
        let meta: MetaData =
            serde_json::from_value(json!({"fromHostInterfaces": [{"key": "a", "interface": "eno1"}]})).unwrap();
        let uninspected = DataMachine { nics: None, ..machine() };
        let error = render(&meta, 0, &uninspected, &addresses()).unwrap_err();
        assert_eq!(error.to_string(), "NICs list not populated: the BareMetalHost host-0 was not inspected yet");
        let meta: MetaData =
            serde_json::from_value(json!({"fromHostInterfaces": [{"key": "a", "fromBootMAC": true}]})).unwrap();
        let unknown = DataMachine { boot_mac: None, ..machine() };
        let error = render(&meta, 0, &unknown, &addresses()).unwrap_err();
        assert_eq!(error.to_string(), "metadata key \"a\": spec.bootMACAddress of the BareMetalHost host-0 is empty");
    }

    #[test]
    fn a_large_annotation_is_not_repeated_without_end() {
        let mut machine = machine();
        machine.host.annotations.insert("large".into(), "x".repeat(60_000));
        let entry = |at: usize| json!({"key": format!("key {at}"), "object": "baremetalhost", "annotation": "large"});
        let of = |entries: usize| {
            let entries: Vec<Value> = (0..entries).map(entry).collect();
            let meta: MetaData = serde_json::from_value(json!({"fromAnnotations": entries})).unwrap();
            render(&meta, 0, &machine, &addresses())
        };
        assert!(of(1).is_ok());
        assert!(matches!(of(10_000), Err(DataRenderError::Large(..))));
    }
}
