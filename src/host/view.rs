//! Hosts as this process keeps them: what is looked at across hosts, and none of what makes them large. A decision
//! about one host reads it whole.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};

use super::discovery::rules;
use super::machine;
use crate::api::MacAddress;
use crate::api::metal3::{BareMetalHost, HardwareSystemVendor, Image, OperationalStatus, ProvisioningState};
use crate::api::slipway::{ANNOTATION_DISCOVERED, DISCOVERED_PENDING};

/// A BareMetalHost without most of it.
#[derive(Clone, Debug, Deserialize)]
pub struct HostView {
    #[serde(deserialize_with = "slim")]
    metadata: ObjectMeta,
    spec: SpecView,
    #[serde(default)]
    status: StatusView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecView {
    #[serde(default)]
    bmc: Option<BmcView>,
    #[serde(default, rename = "bootMACAddress")]
    boot_mac_address: Option<String>,
    #[serde(default)]
    image: Option<Image>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BmcView {
    #[serde(default)]
    address: String,
    #[serde(default)]
    credentials_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusView {
    #[serde(default)]
    operational_status: OperationalStatus,
    #[serde(default)]
    provisioning: ProvisioningView,
    #[serde(default)]
    hardware: HardwareView,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ProvisioningView {
    #[serde(default)]
    state: ProvisioningState,
    #[serde(default, rename = "ID")]
    id: String,
}

/// What tells a machine from another, by its hardware.
#[derive(Clone, Debug, Default)]
struct HardwareView {
    /// Who made it and its serial number, when that is one.
    board: Option<String>,
    /// MAC addresses of its cards.
    macs: Vec<MacAddress>,
}

/// More cards than any machine has.
const MAX_CARDS: usize = 256;

impl<'de> Deserialize<'de> for HardwareView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Hardware {
            #[serde(default)]
            system_vendor: Option<HardwareSystemVendor>,
            #[serde(default)]
            nics: Vec<Card>,
        }
        #[derive(Deserialize)]
        struct Card {
            #[serde(default)]
            mac: String,
        }
        let hardware = Option::<Hardware>::deserialize(deserializer)?.unwrap_or_default();
        let mut macs: Vec<MacAddress> = hardware.nics.iter().filter_map(|card| card.mac.parse().ok()).collect();
        macs.sort_unstable();
        macs.dedup();
        macs.truncate(MAX_CARDS);
        macs.shrink_to_fit();
        Ok(Self { board: hardware.system_vendor.as_ref().and_then(identity), macs })
    }
}

/// The same for the same machine only: maker and serial number.
pub(super) fn identity(vendor: &HardwareSystemVendor) -> Option<String> {
    let serial = rules::worth(&vendor.serial_number)?;
    Some(format!("{}/{serial}", vendor.manufacturer.trim()).to_lowercase())
}

/// Field managers and annotations are often larger than all the rest.
fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut meta = ObjectMeta::deserialize(deserializer)?;
    meta.managed_fields = None;
    let waits = meta.annotations.take().and_then(|mut all| all.remove_entry(ANNOTATION_DISCOVERED));
    meta.annotations = waits.map(|waits| [waits].into());
    meta.labels = None;
    Ok(meta)
}

impl HostView {
    /// `spec.bootMACAddress`
    pub fn boot_mac_address(&self) -> Option<&str> {
        self.spec.boot_mac_address.as_deref()
    }

    /// `spec.image`
    pub fn image(&self) -> Option<&Image> {
        self.spec.image.as_ref()
    }

    /// `spec.bmc.address`
    pub fn bmc_address(&self) -> Option<&str> {
        self.spec.bmc.as_ref().map(|bmc| bmc.address.as_str())
    }

    /// `spec.bmc.credentialsName`
    pub fn credentials_name(&self) -> Option<&str> {
        self.spec.bmc.as_ref().map(|bmc| bmc.credentials_name.as_str())
    }

    /// Maker and serial number of the machine, when they tell it from another.
    pub fn board(&self) -> Option<&str> {
        self.status.hardware.board.as_deref()
    }

    /// The MAC addresses of its machine: the boot address, then those that inspection found.
    pub fn macs(&self) -> impl Iterator<Item = MacAddress> {
        let boot: Option<MacAddress> = self.boot_mac_address().and_then(|mac| mac.parse().ok());
        let cards = self.status.hardware.macs.iter().copied();
        boot.into_iter().chain(cards.filter(move |mac| Some(*mac) != boot))
    }

    /// Whether it reported itself and waits to be accepted: what it says of itself is nobody's word but its own.
    pub fn waits(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(ANNOTATION_DISCOVERED)).is_some_and(|value| value == DISCOVERED_PENDING)
    }

    /// Whether this host was registered with the machine that it names now.
    pub fn is_registered(&self) -> bool {
        let (uid, id) = (self.metadata.uid.as_deref().unwrap_or_default(), &self.status.provisioning.id);
        machine::registered(uid, id, self.status.operational_status)
    }

    /// Whether it takes one of the places for hosts that are inspected, written or cleaned.
    pub fn takes_place(&self) -> bool {
        machine::is_busy(self.status.operational_status, self.status.provisioning.state)
            && !self.spec.bmc.as_ref().is_some_and(|bmc| machine::is_exempt(&bmc.address))
    }
}

impl Resource for HostView {
    type DynamicType = ();
    type Scope = <BareMetalHost as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        BareMetalHost::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        BareMetalHost::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        BareMetalHost::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        BareMetalHost::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_view_has_what_is_asked_for_and_nothing_large() {
        let whole = json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": { "name": "h", "namespace": "rack", "uid": "u", "labels": { "a": "b" },
                "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{}" },
                "managedFields": [{ "manager": "m", "operation": "Update" }] },
            "spec": { "online": true, "bootMACAddress": "02:00:00:00:00:01", "image": { "url": "http://x/i" },
                "bmc": { "address": "ipmi://10.0.0.1", "credentialsName": "s" } },
            "status": { "operationalStatus": "OK", "provisioning": { "state": "inspecting", "ID": "" },
                "hardware": { "hostname": "large", "nics": [{ "mac": "02:00:00:00:00:02", "ip": "10.0.0.1" },
                    { "mac": "02:00:00:00:00:01" }, { "mac": "02:00:00:00:00:02" }, { "mac": "none" }, {}], "systemVendor": { "manufacturer": "Maker", "serialNumber": " S1 " } } }
        });
        let view: HostView = serde_json::from_value(whole).unwrap();
        assert_eq!(view.boot_mac_address(), Some("02:00:00:00:00:01"));
        assert_eq!(view.credentials_name(), Some("s"));
        assert_eq!(view.image().map(|image| image.url.as_str()), Some("http://x/i"));
        assert!(view.takes_place());
        assert_eq!(view.board(), Some("maker/s1"));
        let macs: Vec<String> = view.macs().map(|mac| mac.to_string()).collect();
        assert_eq!(macs, ["02:00:00:00:00:01", "02:00:00:00:00:02"]);
        assert!(!view.is_registered() && !view.waits());
        let waiting = json!({ "metadata": { "annotations": { ANNOTATION_DISCOVERED: DISCOVERED_PENDING, "a": "b" } }, "spec": {} });
        let waiting: HostView = serde_json::from_value(waiting).unwrap();
        assert!(waiting.waits() && waiting.metadata.annotations.as_ref().is_some_and(|kept| kept.len() == 1));
        let filler = json!({ "metadata": {}, "spec": {}, "status": { "hardware": {
            "systemVendor": { "manufacturer": "Maker", "serialNumber": "To be filled by O.E.M." } } } });
        assert_eq!(serde_json::from_value::<HostView>(filler).unwrap().board(), None);
        let bmc = json!({ "address": "redfish-virtualmedia://10.0.0.1/redfish/v1/Systems/1", "credentialsName": "s" });
        let by_media = json!({ "metadata": {}, "spec": { "bmc": bmc },
            "status": { "operationalStatus": "OK", "provisioning": { "state": "inspecting", "ID": "" } } });
        assert!(!serde_json::from_value::<HostView>(by_media).unwrap().takes_place());
        let kept = serde_json::to_value(&view.metadata).unwrap();
        assert_eq!(kept, json!({ "name": "h", "namespace": "rack", "uid": "u" }));
        let bare: HostView = serde_json::from_value(json!({ "metadata": {}, "spec": {} })).unwrap();
        assert!(!bare.takes_place() && bare.image().is_none());
    }
}
