//! Labels and annotations of hosts that Slipway writes or goes by.

/// On a BareMetalHost that reported itself: [`DISCOVERED_PENDING`] until the operator accepts it.
pub const ANNOTATION_DISCOVERED: &str = "slipway.dev/discovered";
/// Value of [`ANNOTATION_DISCOVERED`]: nothing is done with the machine before the annotation is removed.
pub const DISCOVERED_PENDING: &str = "pending";
/// On a BareMetalHost that reported itself: which boot of its machine did.
pub const ANNOTATION_VISIT: &str = "slipway.dev/discovery-visit";
/// On a BareMetalHost: further MAC addresses of unknown machines that turned out to be this one, with commas. They
/// are not asked again, and get nothing that is the host's.
pub const ANNOTATION_REPORTED: &str = "slipway.dev/reported-macs";
/// On a BareMetalHost: how its installed system is started for the first time, `kexec` or `firmware`, whatever
/// `host.first_boot` of the configuration says.
pub const ANNOTATION_FIRST_BOOT: &str = "slipway.dev/first-boot";
/// On a BareMetalHost that is moved: its copy, as `namespace/name/UID`. What it was registered with becomes the copy's when it
/// goes. Only who may write the host can say so.
pub const ANNOTATION_MOVED_TO: &str = "slipway.dev/moved-to";
/// On a BareMetalHost: name of the network of the configuration that its machine boots from. Counts before what was seen, for
/// machines that were moved or are not inspected.
pub const ANNOTATION_NETWORK: &str = "slipway.dev/network";
