//! `slipway.dev/v1alpha1`: what Slipway shows and keeps beside the published kinds.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MacAddress;
use super::metal3::{AutomatedCleaningMode, ChecksumType, HardwareDetails, RootDeviceHints};

/// An operating system image in the library. Cluster-scoped.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slipway.dev",
    version = "v1alpha1",
    kind = "Image",
    plural = "images",
    singular = "image",
    shortname = "img",
    status = "ImageStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"Where the import stands"}"#,
    printcolumn = r#"{"name":"Percent","type":"integer","jsonPath":".status.percent","description":"How much of the source has been read"}"#,
    printcolumn = r#"{"name":"Size","type":"integer","jsonPath":".status.virtualSize","description":"Bytes on a disk"}"#,
    printcolumn = r#"{"name":"Stored","type":"integer","jsonPath":".status.storedSize","description":"Bytes in the library","priority":1}"#,
    printcolumn = r#"{"name":"Published","type":"date","jsonPath":".status.publishedSince","description":"How long its content has been served without a login","priority":1}"#,
    printcolumn = r#"{"name":"Hosts","type":"integer","jsonPath":".status.hosts","description":"Hosts that name it"}"#,
    printcolumn = r#"{"name":"Namespaces","type":"string","jsonPath":".status.namespaces","description":"Namespaces of these hosts","priority":1}"#,
    printcolumn = r#"{"name":"URL","type":"string","jsonPath":".spec.url","description":"Source","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ImageSpec {
    /// Source: `http`, `https`, `file` below the appliance's `image.file_folder`, or `upload:FILE` for what is sent to it.
    pub url: String,
    /// Checksum of the source file as published, or the URL of a file of checksums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Algorithm of the checksum; by its length when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum_type: Option<ChecksumType>,
    /// `raw`, `qcow2` or `live-iso` of a disk; `oci` of an archive of container images, `packages` of an archive of files for
    /// nodes. Possibly compressed. `raw` or `qcow2` is found out when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Of an archive: whether its content is served to everybody who reaches boot HTTP, without a login. Another value has nothing
    /// imported anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<bool>,
}

/// Where an import stands.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    /// Where the import stands.
    #[serde(default)]
    pub phase: ImagePhase,
    /// 0 to 100, of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
    /// SHA-256 of the manifest: the image's identity in the library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Bytes on a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_size: Option<i64>,
    /// Bytes in the library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_size: Option<i64>,
    /// What the content of the source was taken for: `raw`, `qcow2`, `live-iso`, `oci` or `packages`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// SHA-256 of the source file as it was read, before anything was unpacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Of an archive: what is in it, a part of it where it is much.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<ImageContent>,
    /// Of an archive: names of container images, or files, that are in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_count: Option<i64>,
    /// Since when its content is served without a login; unset while it is not. Of two that have one name, it stays with the one
    /// that is served already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_since: Option<Time>,
    /// Hash of what the spec says of the source, of which the content is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_hash: Option<String>,
    /// Why it failed, or is not published, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `metadata.generation` that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Failed attempts since the spec changed.
    #[serde(default)]
    pub fail_count: i64,
    /// Hosts that name it now. 0 when Slipway made it for hosts and none names it any more: it stays until its room is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<i64>,
    /// Namespaces of these hosts, up to eight of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
}

/// Something in an archive.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ImageContent {
    /// `REPOSITORY:TAG` of a container image, without its registry; the path of a file.
    pub name: String,
    /// Its digest, `sha256:` and hex digits.
    pub digest: String,
    /// Its bytes; of a container image with all that it names and the archive has.
    pub size: i64,
}

/// Where an import stands.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImagePhase {
    /// Not begun.
    #[default]
    Pending,
    /// Being read, checked and cut into chunks.
    Importing,
    /// In the library, checked.
    Ready,
    /// Given up until the spec changes or the next try.
    Failed,
}

/// A DHCP lease, read-only. Cluster-scoped, named by its address.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slipway.dev",
    version = "v1alpha1",
    kind = "DHCPLease",
    plural = "dhcpleases",
    singular = "dhcplease",
    shortname = "dl",
    derive = "PartialEq",
    selectable = ".spec.macAddress",
    selectable = ".spec.address",
    selectable = ".spec.host",
    selectable = ".spec.hostname",
    selectable = ".spec.network",
    selectable = ".spec.state",
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".spec.address","description":"Leased address"}"#,
    printcolumn = r#"{"name":"MAC","type":"string","jsonPath":".spec.macAddress","description":"Hardware address"}"#,
    printcolumn = r#"{"name":"State","type":"string","jsonPath":".spec.state","description":"State of the lease"}"#,
    printcolumn = r#"{"name":"Host","type":"string","jsonPath":".spec.host","description":"Known host"}"#,
    printcolumn = r#"{"name":"Hostname","type":"string","jsonPath":".spec.hostname","description":"Name the client gave","priority":1}"#,
    printcolumn = r#"{"name":"Expires","type":"string","jsonPath":".spec.expires","description":"When it ends"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DHCPLeaseSpec {
    /// The address.
    pub address: String,
    /// Hardware address of the client, in lower case with colons.
    pub mac_address: String,
    /// Client identifier (option 61), hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Name of the network in `slipway.toml`.
    pub network: String,
    /// `bound`, `declined`, `released` or `expired`.
    pub state: String,
    /// `namespace/name` of the known host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Host name that the client sent (option 12).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// When the lease ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
}

/// A network that DHCP serves, as `[[network]]` of the configuration says it. Cluster-scoped.
///
/// Those of the configuration are shown by this kind, too, and can only be changed there.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slipway.dev",
    version = "v1alpha1",
    kind = "Network",
    plural = "networks",
    singular = "network",
    status = "NetworkStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Subnet","type":"string","jsonPath":".spec.subnet","description":"Its addresses"}"#,
    printcolumn = r#"{"name":"Interface","type":"string","jsonPath":".spec.interface","description":"Interface it is on"}"#,
    printcolumn = r#"{"name":"Mode","type":"string","jsonPath":".spec.mode","description":"How DHCP behaves there"}"#,
    printcolumn = r#"{"name":"Pool","type":"integer","jsonPath":".status.poolAddresses","description":"Addresses of the pool"}"#,
    printcolumn = r#"{"name":"Leased","type":"integer","jsonPath":".status.leased","description":"Addresses that are offered or leased, reservations among them"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status","description":"Whether it is served"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","description":"Why it is served or not"}"#,
    printcolumn = r#"{"name":"Only Server","type":"string","jsonPath":".status.conditions[?(@.type==\"OnlyServer\")].status","description":"Whether no other DHCP server was seen there"}"#,
    printcolumn = r#"{"name":"Declined","type":"integer","jsonPath":".status.declined","description":"Addresses that somebody uses who did not get them here","priority":1}"#,
    printcolumn = r#"{"name":"Not Renewed","type":"integer","jsonPath":".status.notRenewed","description":"Leases that machines still have and that will not be renewed","priority":1}"#,
    printcolumn = r#"{"name":"Server","type":"string","jsonPath":".status.server","description":"Address of the appliance there","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","description":"What is wrong","priority":1}"#,
    printcolumn = r#"{"name":"Other Servers","type":"string","jsonPath":".status.conditions[?(@.type==\"OnlyServer\")].message","description":"Which other servers","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSpec {
    /// Of a network in `slipway.toml` its name there, which may be none that an object can have. Empty for others: they are
    /// called as their object is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// Interface it is on, or on which its relays' messages arrive.
    #[schemars(length(min = 1, max = 15))]
    pub interface: String,
    /// Its addresses, as `172.22.0.0/24`.
    #[schemars(regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}$"))]
    pub subnet: String,
    /// `authoritative`, `reservations`, `proxy` or `off`.
    #[serde(default = "authoritative")]
    #[schemars(regex(pattern = r"^(authoritative|reservations|proxy|off)$"))]
    pub mode: String,
    /// Ranges for machines without a reservation, as `172.22.0.100-172.22.0.199`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub pool: Vec<String>,
    /// Address of the appliance there; found on the interface when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Default router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<String>,
    /// DNS servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 63))]
    pub dns: Vec<String>,
    /// NTP servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 63))]
    pub ntp: Vec<String>,
    /// Domain name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub domain: Option<String>,
    /// The only relays that are heard; any when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub relays: Vec<String>,
    /// Whether unknown machines report themselves.
    #[serde(default)]
    pub discovery: bool,
    /// Whether a boot script goes to a machine only when the network card that answers at its address is the host's.
    #[serde(default = "yes")]
    pub check_cards: bool,
    /// How long a lease holds, in seconds.
    #[serde(default = "lease_seconds")]
    #[schemars(range(min = 60, max = 4_294_967_294_i64))]
    pub lease_seconds: i64,
    /// How long a lease of a machine holds that is neither a BareMetalHost nor has a reservation, in seconds; never longer than
    /// `leaseSeconds`.
    #[serde(default = "unknown_lease_seconds")]
    #[schemars(range(min = 60, max = 4_294_967_294_i64))]
    pub unknown_lease_seconds: i64,
}

fn authoritative() -> String {
    "authoritative".into()
}

fn yes() -> bool {
    true
}

fn lease_seconds() -> i64 {
    3600
}

fn unknown_lease_seconds() -> i64 {
    300
}

/// How a network is doing.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// Address of the appliance there, from which it is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Addresses of the pool, without those that are never given from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_addresses: Option<i64>,
    /// Addresses that are offered or leased, reservations among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased: Option<i64>,
    /// Addresses that somebody uses who did not get them here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declined: Option<i64>,
    /// Leases that machines still have and that will not be renewed: the pool was made smaller, or the subnet is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_renewed: Option<i64>,
    /// `Ready`: whether it is served. `OnlyServer`: whether no other DHCP server was seen there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Whose reservation an address is, as `[[network.reservation]]` of the configuration says it. Cluster-scoped.
///
/// Those of the configuration are shown by this kind, too, under names that begin with `slipway.toml-`.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slipway.dev",
    version = "v1alpha1",
    kind = "Reservation",
    plural = "reservations",
    singular = "reservation",
    shortname = "rsv",
    status = "ReservationStatus",
    derive = "PartialEq",
    selectable = ".spec.macAddress",
    selectable = ".spec.address",
    selectable = ".spec.hostname",
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".spec.address","description":"Reserved address"}"#,
    printcolumn = r#"{"name":"MAC","type":"string","jsonPath":".spec.macAddress","description":"Hardware address it is for"}"#,
    printcolumn = r#"{"name":"Network","type":"string","jsonPath":".status.network","description":"Network of the address"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status","description":"Whether the machine has the address, or gets it when it asks"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","description":"Why it is ready or not"}"#,
    printcolumn = r#"{"name":"Hostname","type":"string","jsonPath":".spec.hostname","description":"Name the machine is told","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","description":"What is wrong","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ReservationSpec {
    /// Hardware address, six hex pairs with `:`.
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}$"))]
    pub mac_address: String,
    /// Its IPv4 address, of a network; inside or outside the pool.
    #[schemars(regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$"))]
    pub address: String,
    /// Host name handed out (option 12).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,251}[a-zA-Z0-9])?$"))]
    pub hostname: Option<String>,
}

/// What became of a reservation.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ReservationStatus {
    /// Name of the network that the address is of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// `Ready`: whether it is in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// With this begin the names of the reservations of `slipway.toml`; their address follows.
pub const RESERVATION_OF_FILE: &str = "slipway.toml-";

/// On a DHCPLease: name of the network, where a label's value may be that.
pub const LABEL_NETWORK: &str = "slipway.dev/network";
/// On a DHCPLease: namespace of the known host.
pub const LABEL_HOST_NAMESPACE: &str = "slipway.dev/host-namespace";
/// On a DHCPLease: name of the known host, where a label's value may be that.
pub const LABEL_HOST: &str = "slipway.dev/host";

/// On a BareMetalHost that reported itself: [`DISCOVERED_PENDING`] until the operator accepts it.
pub const ANNOTATION_DISCOVERED: &str = "slipway.dev/discovered";
/// Value of [`ANNOTATION_DISCOVERED`]: nothing is done with the machine before the annotation is removed.
pub const DISCOVERED_PENDING: &str = "pending";
/// On a BareMetalHost that reported itself: which boot of its machine did.
pub const ANNOTATION_VISIT: &str = "slipway.dev/discovery-visit";
/// On a BareMetalHost: further MAC addresses of unknown machines that turned out to be this one, with commas. They
/// are not asked again, and get nothing that is the host's.
pub const ANNOTATION_REPORTED: &str = "slipway.dev/reported-macs";

/// On a BootIntent: its host lives, so that neither a namespace's end nor anybody else takes the intent from under it.
pub const FINALIZER_INTENT: &str = "slipway.dev/host";

/// On a BareMetalHost: how its installed system is started for the first time, `kexec` or `firmware`, whatever
/// `host.first_boot` of the configuration says.
pub const ANNOTATION_FIRST_BOOT: &str = "slipway.dev/first-boot";

/// What a host is to boot next, and what its agent is to do: the boot intent. Same name and namespace as its
/// BareMetalHost. Written by the host's reconciler (spec) and by the agent's session (status).
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "slipway.dev",
    version = "v1alpha1",
    kind = "BootIntent",
    plural = "bootintents",
    singular = "bootintent",
    namespaced,
    status = "BootIntentStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Generation","type":"integer","jsonPath":".spec.generation","description":"Counts the boots asked for"}"#,
    printcolumn = r#"{"name":"Target","type":"string","jsonPath":".spec.target","description":"What is to boot"}"#,
    printcolumn = r#"{"name":"Step","type":"string","jsonPath":".status.progress.step","description":"Step under way"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.progress.phase","description":"Phase of the step"}"#,
    printcolumn = r#"{"name":"Percent","type":"integer","jsonPath":".status.progress.percent","description":"How far the step is"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct BootIntentSpec {
    /// Rises by one with every boot asked for. Tokens, sessions and steps of another generation are refused.
    pub generation: i64,
    /// What the machine boots.
    pub target: BootTarget,
    /// What the agent does, in order. Grows while the agent stays up.
    #[serde(default)]
    pub steps: Vec<IntentStep>,
    /// The operation that this boot serves, as `inspect@<start>`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub operation: String,
    /// When the machine was powered on for it; unset until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// When the machine, off and set up for this boot, was about to be powered on. If it is on although `started` is
    /// unset, it was powered on for this boot and nobody came to note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub powering_on: Option<Time>,
    /// For `live-iso`: digest in the library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_iso: Option<String>,
    /// Whether every disk was wiped since something was last written to one.
    #[serde(default)]
    pub disks_clean: bool,
    /// `metadata.generation` of the host when the operation was last begun; a newer one ends a back-off.
    #[serde(default)]
    pub host_generation: i64,
}

/// On a BareMetalHost that is moved: its copy, as `namespace/name/UID`. What it was registered with becomes the copy's when it
/// goes. Only who may write the host can say so.
pub const ANNOTATION_MOVED_TO: &str = "slipway.dev/moved-to";

/// On a BareMetalHost: name of the network of the configuration that its machine boots from. Counts before what was seen, for
/// machines that were moved or are not inspected.
pub const ANNOTATION_NETWORK: &str = "slipway.dev/network";
/// On a BootIntent: what its host was registered with, a [`Registration`] as JSON. Missing only in intents of versions that
/// did not keep it.
pub const ANNOTATION_REGISTRATION: &str = "slipway.dev/registration";

/// What a host was registered with, and when: its BMC let the appliance in. Empty while it was not registered.
///
/// It is kept with the boot intent, which only Slipway writes: who may write hosts, or their status, cannot claim to have been
/// registered with something else.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Registration {
    /// `spec.bootMACAddress` of the host; empty without one.
    #[serde(default, rename = "bootMACAddress", skip_serializing_if = "String::is_empty")]
    pub boot_mac_address: String,
    /// `spec.bmc.address` of the host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bmc_address: String,
    /// Unix time in milliseconds; 0 while it is not registered.
    #[serde(default)]
    pub since: i64,
    /// Taken over from the host that this one is a copy of: until then, Unix time in milliseconds, it counts although no BMC
    /// let the appliance in for this host yet. 0 otherwise.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub until: i64,
    /// Network cards that its machine's agent reported, by MAC address, each with when it did so first: Unix time in
    /// milliseconds. At most [`Registration::MAX_CARDS`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cards: BTreeMap<String, i64>,
    /// Network of the configuration that its machine reported itself from in the last inspection, or called from first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Registration {
    /// More network cards than a machine boots from.
    pub const MAX_CARDS: usize = 32;

    /// Whether it is of a host that names this boot address and this BMC.
    pub fn fits(&self, boot_mac: Option<MacAddress>, bmc_address: &str) -> bool {
        self.has_mac(boot_mac) && self.has_bmc(bmc_address)
    }

    /// Whether it is of a host that names this boot address, or none.
    pub fn has_mac(&self, boot_mac: Option<MacAddress>) -> bool {
        self.since > 0 && self.boot_mac_address.parse().ok() == boot_mac
    }

    /// Whether it is of a host that names this BMC.
    pub fn has_bmc(&self, address: &str) -> bool {
        self.since > 0 && self.bmc_address == address
    }

    /// Whether it counts at this time, Unix time in milliseconds. `registered`: whether the host was registered by itself.
    pub fn counts(&self, registered: bool, now: i64) -> bool {
        self.since > 0 && (self.until == 0 || registered || now < self.until)
    }

    /// With the cards and the network of the last inspection; cards that were known keep their time.
    #[must_use]
    pub fn with_report(mut self, intent: &BootIntent) -> Self {
        let reported = intent.reported_cards();
        let network = intent.status.as_ref().and_then(|status| status.session.as_ref()).map(|session| &session.network);
        if let Some(network) = network.filter(|_| reported.is_some() || self.network.is_empty()) {
            self.network.clone_from(network);
        }
        if let Some((cards, at)) = reported {
            let since = |mac: &MacAddress| self.cards.get(&mac.to_string()).copied().unwrap_or(at);
            self.cards = cards.iter().take(Self::MAX_CARDS).map(|mac| (mac.to_string(), since(mac))).collect();
        }
        self
    }
}

impl BootIntent {
    /// What its host was registered with; none where that was not kept, or cannot be read.
    pub fn registration(&self) -> Option<Registration> {
        serde_json::from_str(self.metadata.annotations.as_ref()?.get(ANNOTATION_REGISTRATION)?).ok()
    }

    /// The network cards that the machine's agent reported in an inspection of this boot, and when, Unix time in milliseconds.
    /// Only what was reported to the appliance counts: whoever may write hosts can write any cards into them.
    fn reported_cards(&self) -> Option<(Vec<MacAddress>, i64)> {
        let status = self.status.as_ref()?;
        let inspects =
            |id: &String| self.spec.steps.iter().any(|step| step.id == *id && step.action == StepAction::Inspect);
        let result = status.results.iter().find(|result| result.succeeded && inspects(&result.id))?;
        // It is written in seconds: who was registered in this one was so before.
        let at = result.finished.as_ref()?.0.as_second().saturating_add(1).saturating_mul(1000);
        let nics = &status.inventory.as_ref()?.nics;
        Some((nics.iter().filter_map(|nic| nic.mac.parse().ok()).collect(), at))
    }

    /// Whether the machine is to say in this boot what it is.
    pub fn inspects(&self) -> bool {
        self.spec.steps.iter().any(|step| step.action == StepAction::Inspect)
    }

    /// Whether it is of the host with this UID. A host of the same name that was made anew begins with an intent of its
    /// own; one that nobody owns was made by hand, and is the host's of its name.
    pub fn is_of(&self, uid: &str) -> bool {
        let owners = self.metadata.owner_references.as_deref().unwrap_or_default();
        owners.iter().find(|owner| owner.controller == Some(true)).is_none_or(|owner| owner.uid == uid)
    }
}

/// What a machine boots.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum BootTarget {
    /// Its own disk.
    #[default]
    Disk,
    /// Slipway's ramdisk.
    Ramdisk,
    /// An ISO that is not written anywhere, at each power-on.
    #[serde(rename = "live-iso")]
    LiveIso,
}

/// One step of an intent. Secrets are not here: they are read when the agent fetches the step.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct IntentStep {
    /// Unique within the intent: `<generation>.<number>`.
    pub id: String,
    /// What to do.
    pub action: StepAction,
    /// The operation it belongs to. After a failed step none of the same operation follows.
    #[serde(default)]
    pub operation: String,
    /// For `write-image`: digest in the library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// For `write-image`: which disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_device_hints: Option<RootDeviceHints>,
    /// For `erase`: what is erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erase: Option<AutomatedCleaningMode>,
}

/// What an agent can do.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum StepAction {
    /// Report the hardware.
    #[default]
    Inspect,
    /// Wipe disks.
    Erase,
    /// Write an image to the root disk.
    WriteImage,
    /// Add the config drive to the root disk.
    WriteConfigDrive,
    /// Make the firmware boot the root disk.
    SetBootEntry,
    /// Start the installed system, without the firmware where that can be.
    Kexec,
    /// Start again through the firmware.
    Reboot,
    /// Power off.
    PowerOff,
    /// Send the node's log.
    CollectLogs,
}

/// As it is written: its name in JSON.
impl fmt::Display for StepAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl StepAction {
    /// What an agent does then, for people.
    pub fn doing(self) -> &'static str {
        match self {
            Self::Inspect => "inspecting the hardware",
            Self::Erase => "erasing the disks",
            Self::WriteImage => "writing the image",
            Self::WriteConfigDrive => "writing the config drive",
            Self::SetBootEntry => "setting the boot entry",
            Self::Kexec => "starting the installed system",
            Self::Reboot => "starting again",
            Self::PowerOff => "powering off",
            Self::CollectLogs => "sending its log",
        }
    }
}

/// What the agent's session said.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BootIntentStatus {
    /// The session of the current generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionStatus>,
    /// The step under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<StepProgress>,
    /// Steps that ended.
    #[serde(default)]
    pub results: Vec<StepResult>,
    /// The hardware, from the last `inspect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inventory: Option<HardwareDetails>,
    /// Last lines of the node's log, kept when a step fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
}

/// The agent's session.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SessionStatus {
    /// Generation of the intent it was opened for.
    pub generation: i64,
    /// Nonce of the boot token that opened it; that token opens nothing again.
    pub token_nonce: String,
    /// Address it came from.
    pub address: String,
    /// When it was opened.
    pub opened: Option<Time>,
    /// When the agent was last heard, to within some seconds.
    pub last_seen: Option<Time>,
    /// Whether it made a call after it was opened. Until then the machine may open it again: the answer may be lost.
    #[serde(default)]
    pub used: bool,
    /// Network cards that the machine may answer by beside the host's: those that it said it has, where nobody else says which
    /// it has, since it was not inspected yet or is to be inspected anew.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cards: Vec<String>,
    /// Network of the configuration that its boot script was asked from; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub network: String,
}

/// How far the step under way is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StepProgress {
    /// Step id.
    pub step: String,
    /// What it is doing, in a word or two.
    pub phase: String,
    /// 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<i64>,
    /// Bytes done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_done: Option<i64>,
    /// Bytes in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_total: Option<i64>,
    /// Bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<i64>,
    /// For the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the phase began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// How a step ended.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StepResult {
    /// Step id.
    pub id: String,
    /// Whether it did what it was to do.
    pub succeeded: bool,
    /// For the operator; the reason when it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Time>,
}
