//! The machine's BMC as it is seen from inside: by IPMI, and by what the firmware says of it.

use std::net::Ipv4Addr;
use std::path::Path;

use super::ipmi::{self, Lan};
use super::smbios::Smbios;
use crate::protocol::FoundBmc;

/// The BMC; `None` when nothing speaks of one.
pub fn read(root: &Path) -> Option<FoundBmc> {
    let smbios = Smbios::read(root);
    let mut device = ipmi::Device::open(root);
    if smbios.ipmi && device.is_none() {
        tracing::info!("SMBIOS describes a BMC with IPMI, but the kernel has no device for it");
    }
    let lan = device.as_mut().and_then(|device| {
        let lan = ipmi::lan(&mut |function, command, data| device.ask(function, command, data));
        lan.inspect_err(|error| tracing::warn!(%error, "cannot read the BMC's address")).ok().flatten()
    });
    found(&smbios, device.is_some(), lan)
}

fn found(smbios: &Smbios, device: bool, lan: Option<Lan>) -> Option<FoundBmc> {
    let ipmi = smbios.ipmi || device;
    if !ipmi && smbios.redfish.is_none() {
        return None;
    }
    // A host interface often has an address that means something to this machine only.
    let told = smbios.redfish.flatten().filter(|address| reachable(*address));
    let address = lan.and_then(|lan| lan.address).or(told);
    Some(FoundBmc {
        address: address.map_or_else(String::new, |address| address.to_string()),
        mac: lan.and_then(|lan| lan.mac).map_or_else(String::new, |mac| mac.to_string()),
        ipmi,
        redfish: smbios.redfish.is_some(),
    })
}

fn reachable(address: Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_link_local() && !address.is_loopback() && !address.is_broadcast()
}

/// A few words for the console.
pub fn summary(bmc: &FoundBmc) -> String {
    let speaks = match (bmc.ipmi, bmc.redfish) {
        (true, true) => "IPMI and Redfish",
        (false, true) => "Redfish",
        _ => "IPMI",
    };
    match bmc.address.as_str() {
        "" => format!("a BMC ({speaks}) that does not tell its address"),
        address => format!("a BMC ({speaks}) at {address}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::MacAddress;

    #[test]
    fn the_lan_channel_goes_before_what_the_firmware_says() {
        let lan = |address| Some(Lan { address, mac: Some(MacAddress([2, 0, 0, 0, 0, 1])) });
        let ip = |last| Some(Ipv4Addr::new(10, 0, 0, last));
        let rows = [
            (false, None, false, None, None),
            (true, None, false, None, Some("a BMC (IPMI) that does not tell its address")),
            (false, None, true, lan(ip(5)), Some("a BMC (IPMI) at 10.0.0.5")),
            (true, Some(ip(6)), true, lan(ip(5)), Some("a BMC (IPMI and Redfish) at 10.0.0.5")),
            (false, Some(ip(6)), false, None, Some("a BMC (Redfish) at 10.0.0.6")),
            (
                false,
                Some(Some(Ipv4Addr::new(169, 254, 1, 1))),
                false,
                None,
                Some("a BMC (Redfish) that does not tell its address"),
            ),
            (true, Some(None), true, lan(None), Some("a BMC (IPMI and Redfish) that does not tell its address")),
        ];
        for (ipmi, redfish, device, lan, wanted) in rows {
            let smbios = Smbios { ipmi, redfish, ..Smbios::default() };
            assert_eq!(found(&smbios, device, lan).as_ref().map(summary).as_deref(), wanted);
        }
    }
}
