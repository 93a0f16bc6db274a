//! Hosts as this process keeps them: what is looked at across hosts, and none of what makes them large. A decision
//! about one host reads it whole.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};

use super::discovery::rules;
use super::machine;
use crate::api::MacAddress;
use crate::api::metal3::{
    ANNOTATION_DETACHED, BareMetalHost, HardwareSystemVendor, Image, OperationalStatus, ProvisioningState,
};
use crate::api::slipway::{ANNOTATION_DISCOVERED, DISCOVERED_PENDING};
use crate::engine::slim::essence;

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
    #[serde(default, rename = "bootMACAddress", deserialize_with = "mac")]
    boot_mac: Option<MacAddress>,
    /// Name of the library's Image for it; none without a URL.
    #[serde(default, rename = "image", deserialize_with = "image_name")]
    image_name: Option<String>,
}

fn mac<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MacAddress>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.and_then(|text| text.parse().ok()))
}

fn image_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let image = Option::<Image>::deserialize(deserializer)?.filter(|image| !image.url.is_empty());
    Ok(image.map(|image| machine::image_name(&image)))
}

/// Texts that no host can be used with are not kept: nothing that a user writes makes a view large.
fn short<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let mut text = String::deserialize(deserializer)?;
    if text.len() > MAX_TEXT {
        text.clear();
    }
    text.shrink_to_fit();
    Ok(text)
}

/// More bytes than the address of a BMC, or the name of an object, may have.
const MAX_TEXT: usize = 2048;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BmcView {
    #[serde(default, deserialize_with = "short")]
    address: String,
    #[serde(default, deserialize_with = "short")]
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
    #[serde(default, rename = "ID", deserialize_with = "short")]
    id: String,
}

/// What tells a machine from another, by its hardware.
#[derive(Clone, Debug, Default)]
struct HardwareView {
    /// Who made it and its serial number, when that is one.
    board: Option<String>,
}

impl<'de> Deserialize<'de> for HardwareView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Hardware {
            #[serde(default)]
            system_vendor: Option<HardwareSystemVendor>,
        }
        let hardware = Option::<Hardware>::deserialize(deserializer)?.unwrap_or_default();
        let board = hardware.system_vendor.as_ref().and_then(identity);
        Ok(Self { board: board.filter(|board| board.len() <= MAX_TEXT) })
    }
}

/// The same for the same machine only: maker and serial number.
pub(super) fn identity(vendor: &HardwareSystemVendor) -> Option<String> {
    let serial = rules::worth(&vendor.serial_number)?;
    Some(format!("{}/{serial}", vendor.manufacturer.trim()).to_lowercase())
}

/// Field managers, annotations and the like are often larger than all the rest.
fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut whole = ObjectMeta::deserialize(deserializer)?;
    let mut all = whole.annotations.take().unwrap_or_default();
    let waits = all.remove_entry(ANNOTATION_DISCOVERED).filter(|(_, value)| value == DISCOVERED_PENDING);
    let moves = all.remove_entry(ANNOTATION_DETACHED).filter(|(_, value)| machine::moves_by(value));
    // What else the value says is not asked for.
    let moves = moves.map(|(key, _)| (key, String::new()));
    let kept: BTreeMap<_, _> = waits.into_iter().chain(moves).collect();
    Ok(ObjectMeta { annotations: (!kept.is_empty()).then_some(kept), ..essence(whole) })
}

impl HostView {
    /// `spec.bootMACAddress`, when it is one.
    pub fn boot_mac(&self) -> Option<MacAddress> {
        self.spec.boot_mac
    }

    /// Name of the library's Image for `spec.image`.
    pub fn image_name(&self) -> Option<&str> {
        self.spec.image_name.as_deref()
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

    /// Whether it reported itself and waits to be accepted: what it says of itself is nobody's word but its own.
    pub fn waits(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(ANNOTATION_DISCOVERED)).is_some_and(|value| value == DISCOVERED_PENDING)
    }

    /// Whether its status says that it is registered. With what, its intent's `Registration` says.
    pub fn says_registered(&self) -> bool {
        let (uid, id) = (self.metadata.uid.as_deref().unwrap_or_default(), &self.status.provisioning.id);
        let kept = self.metadata.annotations.as_ref();
        let moves = kept.is_some_and(|kept| kept.contains_key(ANNOTATION_DETACHED));
        machine::registered(uid, id, self.status.operational_status, moves)
    }

    /// Whether its machine runs what it was provisioned with.
    pub fn is_provisioned(&self) -> bool {
        self.status.provisioning.state == ProvisioningState::Provisioned
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
        assert_eq!(view.boot_mac(), Some(MacAddress([2, 0, 0, 0, 0, 1])));
        assert_eq!(view.credentials_name(), Some("s"));
        let image = Image { url: "http://x/i".into(), ..Image::default() };
        assert_eq!(view.image_name(), Some(machine::image_name(&image).as_str()));
        assert!(view.takes_place());
        assert_eq!(view.board(), Some("maker/s1"));
        assert!(!view.says_registered() && !view.waits());
        let waiting = json!({ "metadata": { "annotations": { ANNOTATION_DISCOVERED: DISCOVERED_PENDING, "a": "b" } }, "spec": {} });
        let waiting: HostView = serde_json::from_value(waiting).unwrap();
        assert!(waiting.waits() && waiting.metadata.annotations.as_ref().is_some_and(|kept| kept.len() == 1));
        let detached = |value: &str| {
            let host = json!({ "metadata": { "uid": "u", "annotations": { ANNOTATION_DETACHED: value } }, "spec": { "online": true },
                "status": { "operationalStatus": "detached", "provisioning": { "ID": "u" } } });
            let whole: BareMetalHost = serde_json::from_value(host.clone()).unwrap();
            let view: HostView = serde_json::from_value(host).unwrap();
            assert_eq!(view.says_registered(), machine::says_registered(&whole), "{value}");
            view.says_registered()
        };
        assert_eq!([r#"{"force":true,"moving":true}"#, "", "{}", "moving"].map(detached), [true, false, false, false]);
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
        assert!(!bare.takes_place() && bare.image_name().is_none());
    }

    #[test]
    fn nothing_that_a_user_writes_makes_a_view_large() {
        let much = "A".repeat(1 << 20);
        let whole = json!({
            "metadata": { "name": "h", "namespace": "rack", "uid": "u", "labels": { "a": much },
                "annotations": { ANNOTATION_DISCOVERED: much, "b": much }, "finalizers": [much],
                "ownerReferences": [{ "apiVersion": much, "kind": "K", "name": much, "uid": "u" }],
                "generateName": much, "selfLink": much },
            "spec": { "bootMACAddress": much, "image": { "url": format!("http://x/{much}"), "checksum": much },
                "bmc": { "address": much, "credentialsName": much }, "description": much },
            "status": { "provisioning": { "state": "inspecting", "ID": much },
                "hardware": { "systemVendor": { "manufacturer": much, "serialNumber": "S1" } } }
        });
        let view: HostView = serde_json::from_value(whole).unwrap();
        let kept = format!("{view:?}");
        assert!(kept.len() < 2000, "{} bytes", kept.len());
    }
}
