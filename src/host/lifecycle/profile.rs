//! `spec.hardwareProfile` (docs/design/host.md, "Hardware profile"): a deprecated name for where the root disk is.

use super::{AfterStore, Decider};
use crate::api::metal3::{BareMetalHostSpec, ErrorType, RootDeviceHints};

/// The profile of a host that names none.
const DEFAULT: &str = "unknown";
/// The profile of one that names none and whose BMC is a test rig's.
const LIBVIRT: &str = "libvirt";

/// The names, as upstream knows them.
const NAMES: [&str; 6] = [DEFAULT, LIBVIRT, "dell", "dell-raid", "openstack", "empty"];

/// The host's profile.
///
/// # Errors
///
/// In words, when it names one that there is not.
pub(super) fn name(spec: &BareMetalHostSpec) -> Result<&'static str, String> {
    match asked(spec) {
        None => {
            let address = spec.bmc.as_ref().map(|bmc| bmc.address.as_str()).unwrap_or_default();
            Ok(if address.starts_with(LIBVIRT) { LIBVIRT } else { DEFAULT })
        }
        Some(asked) => NAMES.into_iter().find(|name| *name == asked).ok_or_else(|| {
            format!(
                "no hardware profile named {asked:?}: remove spec.hardwareProfile and write spec.rootDeviceHints, or name one of {}",
                NAMES.join(", ")
            )
        }),
    }
}

/// Where the root disk is to be: by the hints, else by the profile that the host names itself. `unknown` says nothing,
/// named or not: upstream takes `/dev/sda` for it, which not every machine has.
pub(super) fn root_device_hints(spec: &BareMetalHostSpec) -> Option<RootDeviceHints> {
    let device = |name: &str| RootDeviceHints { device_name: Some(name.to_owned()), ..RootDeviceHints::default() };
    let hctl = |address: &str| RootDeviceHints { hctl: Some(address.to_owned()), ..RootDeviceHints::default() };
    spec.root_device_hints.clone().or_else(|| {
        Some(match asked(spec)? {
            LIBVIRT => device("/dev/vda"),
            "dell" => hctl("0:0:0:0"),
            "dell-raid" => hctl("0:2:0:0"),
            "openstack" => device("/dev/vdb"),
            _ => return None,
        })
    })
}

fn asked(spec: &BareMetalHostSpec) -> Option<&str> {
    spec.hardware_profile.as_deref().filter(|name| !name.is_empty())
}

impl Decider<'_> {
    /// A name that means nothing must not be taken for "any disk".
    pub(super) fn match_profile(&mut self) -> Option<AfterStore> {
        if self.deleting() {
            return None;
        }
        match name(&self.observed.host.spec) {
            Ok(name) if self.status.hardware_profile.as_deref() == Some(name) => None,
            Ok(name) => {
                self.status.hardware_profile = Some(name.to_owned());
                self.note("ProfileSet", format!("Hardware profile set: {name}"));
                None
            }
            // Said once: nothing but another spec changes it.
            Err(reason) if self.failed_to_register_for(&reason) => Some(self.poll(reason)),
            Err(reason) => Some(self.failed(ErrorType::Registration, &reason)),
        }
    }

    fn failed_to_register_for(&self, reason: &str) -> bool {
        self.status.error_type == Some(ErrorType::Registration) && self.status.error_message == reason
    }
}
