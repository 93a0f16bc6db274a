//! A slim copy of each host in memory.
//!
//! Hosts as this process keeps them: what is looked at across hosts, and none of what makes them large. A decision
//! about one host reads it whole.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

use crate::api::MacAddress;
use crate::api::metal3::{BareMetalHost, HardwareSystemVendor, OperationalStatus, ProvisioningState};
use crate::api::slipway::{ANNOTATION_DISCOVERED, DISCOVERED_PENDING};
use crate::host::discovery::rules;
use crate::host::lifecycle;
use crate::image::identity::proof;
use crate::runtime::essence;

/// A BareMetalHost without most of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "BareMetalHost")]
pub struct HostView {
    metadata: ObjectMeta,
    bmc: Option<BmcView>,
    boot_mac: Option<MacAddress>,
    /// Name of the library's Image for it; none without a URL.
    image_name: Option<String>,
    /// The beginning of the checksum by which equal content is known.
    image_proof: Option<u64>,
    operational_status: OperationalStatus,
    state: ProvisioningState,
    /// Who made it and its serial number, when that is one.
    board: Option<String>,
}

#[derive(Clone, Debug)]
struct BmcView {
    address: String,
    credentials_name: String,
}

/// More bytes than the address of a BMC, or the name of an object, may have.
const MAX_TEXT: usize = 2048;

/// Texts that no host can be used with are not kept: nothing that a user writes makes a view large.
fn short(text: &str) -> String {
    if text.len() > MAX_TEXT { String::new() } else { text.to_owned() }
}

impl From<BareMetalHost> for HostView {
    fn from(host: BareMetalHost) -> Self {
        Self::from(&host)
    }
}

impl From<&BareMetalHost> for HostView {
    fn from(host: &BareMetalHost) -> Self {
        let spec = &host.spec;
        let image = spec.image.as_ref().filter(|image| !image.url.is_empty());
        let bmc = spec.bmc.as_ref();
        let status = host.status.as_ref();
        let vendor = status.and_then(|status| status.hardware.as_ref()?.system_vendor.as_ref());
        Self {
            metadata: slim(&host.metadata),
            bmc: bmc
                .map(|bmc| BmcView { address: short(&bmc.address), credentials_name: short(&bmc.credentials_name) }),
            boot_mac: spec.boot_mac_address.as_deref().and_then(|mac| mac.parse().ok()),
            image_name: image.map(lifecycle::image_name),
            image_proof: image
                .and_then(|image| proof(image.checksum.as_deref(), image.checksum_type))
                .and_then(|proof| short_proof(&proof)),
            operational_status: status.map(|status| status.operational_status).unwrap_or_default(),
            state: status.map(|status| status.provisioning.state).unwrap_or_default(),
            board: vendor.and_then(identity).filter(|board| board.len() <= MAX_TEXT),
        }
    }
}

/// The first 64 bits of a checksum in hex: enough to look at few hosts too many.
pub(super) fn short_proof(proof: &str) -> Option<u64> {
    u64::from_str_radix(proof.get(..16)?, 16).ok()
}

/// The same for the same machine only: maker and serial number.
pub(in crate::host) fn identity(vendor: &HardwareSystemVendor) -> Option<String> {
    let serial = rules::worth(&vendor.serial_number)?;
    Some(format!("{}/{serial}", vendor.manufacturer.trim()).to_lowercase())
}

/// Field managers, annotations and the like are often larger than all the rest.
fn slim(whole: &ObjectMeta) -> ObjectMeta {
    let all = whole.annotations.as_ref();
    let has = |key: &str, fits: fn(&str) -> bool| all.and_then(|all| all.get(key)).is_some_and(|value| fits(value));
    let mut kept = BTreeMap::new();
    if has(ANNOTATION_DISCOVERED, |value| value == DISCOVERED_PENDING) {
        kept.insert(ANNOTATION_DISCOVERED.to_owned(), DISCOVERED_PENDING.to_owned());
    }
    ObjectMeta { annotations: (!kept.is_empty()).then_some(kept), ..essence(whole) }
}

impl HostView {
    /// `spec.bootMACAddress`, when it is one.
    pub fn boot_mac(&self) -> Option<MacAddress> {
        self.boot_mac
    }

    /// Name of the library's Image for `spec.image`.
    pub fn image_name(&self) -> Option<&str> {
        self.image_name.as_deref()
    }

    /// The beginning of the checksum of `spec.image` by which equal content is known, see [`short_proof`].
    pub fn image_proof(&self) -> Option<u64> {
        self.image_proof
    }

    /// `spec.bmc.address`
    pub fn bmc_address(&self) -> Option<&str> {
        self.bmc.as_ref().map(|bmc| bmc.address.as_str())
    }

    /// `spec.bmc.credentialsName`
    pub fn credentials_name(&self) -> Option<&str> {
        self.bmc.as_ref().map(|bmc| bmc.credentials_name.as_str())
    }

    /// Maker and serial number of the machine, when they tell it from another.
    pub fn board(&self) -> Option<&str> {
        self.board.as_deref()
    }

    /// Whether it reported itself and waits to be accepted: what it says of itself is nobody's word but its own.
    pub fn waits(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(ANNOTATION_DISCOVERED)).is_some_and(|value| value == DISCOVERED_PENDING)
    }

    /// Whether its machine runs what it was provisioned with.
    pub fn is_provisioned(&self) -> bool {
        self.state == ProvisioningState::Provisioned
    }

    /// Whether it takes one of the places for hosts that are inspected, written or cleaned.
    pub fn takes_place(&self) -> bool {
        lifecycle::is_busy(self.operational_status, self.state)
            && !self.bmc.as_ref().is_some_and(|bmc| lifecycle::is_exempt(&bmc.address))
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
    use serde_json::{Value, json};

    use super::*;
    use crate::api::metal3::HostImage;

    fn view(mut host: Value) -> HostView {
        host["spec"]["online"] = json!(true);
        HostView::from(&serde_json::from_value::<BareMetalHost>(host).expect("a host"))
    }

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
        let view = self::view(whole);
        assert_eq!(view.boot_mac(), Some(MacAddress([2, 0, 0, 0, 0, 1])));
        assert_eq!(view.credentials_name(), Some("s"));
        let image = HostImage { url: "http://x/i".into(), ..HostImage::default() };
        assert_eq!(view.image_name(), Some(lifecycle::image_name(&image).as_str()));
        assert!(view.takes_place());
        assert_eq!(view.board(), Some("maker/s1"));
        assert!(!view.waits());
        let waiting = json!({ "metadata": { "annotations": { ANNOTATION_DISCOVERED: DISCOVERED_PENDING, "a": "b" } }, "spec": {} });
        let waiting = self::view(waiting);
        assert!(waiting.waits() && waiting.metadata.annotations.as_ref().is_some_and(|kept| kept.len() == 1));
        let filler = json!({ "metadata": {}, "spec": {}, "status": { "hardware": {
            "systemVendor": { "manufacturer": "Maker", "serialNumber": "To be filled by O.E.M." } } } });
        assert_eq!(self::view(filler).board(), None);
        let bmc = json!({ "address": "redfish-virtualmedia://10.0.0.1/redfish/v1/Systems/1", "credentialsName": "s" });
        let by_media = json!({ "metadata": {}, "spec": { "bmc": bmc },
            "status": { "operationalStatus": "OK", "provisioning": { "state": "inspecting", "ID": "" } } });
        assert!(!self::view(by_media).takes_place());
        let kept = serde_json::to_value(&view.metadata).unwrap();
        assert_eq!(kept, json!({ "name": "h", "namespace": "rack", "uid": "u" }));
        let bare = self::view(json!({ "metadata": {}, "spec": {} }));
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
        let view = self::view(whole);
        let kept = format!("{view:?}");
        assert!(kept.len() < 2000, "{} bytes", kept.len());
    }
}
