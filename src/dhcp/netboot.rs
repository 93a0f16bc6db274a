//! Boot options of a DHCP answer.

use std::net::Ipv4Addr;

use dhcproto::v4::{DhcpOption, OptionCode, UnknownOption};

use crate::boot::{BootClient, BootDecision, ClientKind, Firmware, NetworkBoot};
use crate::config::NetworkMode;

use super::network::ServedNetwork;
use super::packet::{DhcpRequest, code};

/// PXE_DISCOVERY_CONTROL = 8: take the boot file of this answer, look for no boot servers, show no menu
/// (PXE specification 2.1, table 2-1), and the end of the vendor options.
const DISCOVERY_CONTROL: [u8; 4] = [6, 1, 8, 255];

/// Boot information for one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netboot {
    /// Boot file: a name for TFTP, or a URL.
    pub file: String,
    /// Where TFTP is, for `siaddr` and option 66.
    pub server: Ipv4Addr,
    /// Vendor class of the answer: what makes firmware take it for itself.
    pub class: Option<&'static str>,
    /// Whether the answer carries PXE's vendor options.
    pub pxe: bool,
}

/// The boot information that follows from the decision; `None` when the client is to find nothing here.
pub fn answer(client: &BootClient, decision: &BootDecision, network: &ServedNetwork) -> Option<Netboot> {
    let proxy = network.mode == NetworkMode::Proxy;
    let netboot = |file, class, pxe| Some(Netboot { file, server: network.server, class, pxe });
    match (client.kind, &decision.boot) {
        (ClientKind::System, _) => None,
        // iPXE always gets the script, which says what is decided by the time it is fetched. It takes a proxy's
        // answer only when that is marked as PXE.
        (ClientKind::Ipxe, _) => netboot(script_url(client, network), proxy.then_some("PXEClient"), false),
        (_, NetworkBoot::LocalDisk) => None,
        (ClientKind::Pxe, NetworkBoot::Ramdisk { .. } | NetworkBoot::Discovery | NetworkBoot::LiveIso { .. }) => {
            netboot(pxe_program(client.firmware)?.to_owned(), Some("PXEClient"), true)
        }
        (ClientKind::HttpBoot, NetworkBoot::Ramdisk { .. } | NetworkBoot::Discovery | NetworkBoot::LiveIso { .. }) => {
            netboot(format!("{}/boot/files/ipxe.efi", network.http()), Some("HTTPClient"), false)
        }
    }
}

/// The network boot program for firmware.
fn pxe_program(firmware: Firmware) -> Option<&'static str> {
    match firmware {
        Firmware::Bios => Some("undionly.kpxe"),
        Firmware::UefiX64 | Firmware::UefiX64Http => Some("snponly.efi"),
        Firmware::UefiArm64 | Firmware::UefiArm64Http | Firmware::Other(_) => None,
    }
}

fn script_url(client: &BootClient, network: &ServedNetwork) -> String {
    let arch = if client.firmware.is_uefi() { "uefi" } else { "bios" };
    format!("{}/boot/ipxe?mac={}&arch={arch}", network.http(), client.mac.hyphenated())
}

impl Netboot {
    /// The options that carry it. Those that only repeat the header are left to what the client asked for.
    pub(super) fn options(&self, request: &DhcpRequest<'_>) -> Vec<DhcpOption> {
        let mut options = Vec::new();
        options.extend(self.class.map(|class| DhcpOption::ClassIdentifier(class.as_bytes().to_vec())));
        options.push(DhcpOption::BootfileName(self.file.clone().into_bytes()));
        if self.pxe {
            options.push(DhcpOption::VendorExtensions(DISCOVERY_CONTROL.to_vec()));
        }
        options.push(DhcpOption::TFTPServerName(self.server.to_string().into_bytes()));
        // PXE 2.1 section 2.2.1 and RFC 4578 section 2.3 want it back.
        if let Some(id) = request.get(code::MACHINE_ID).filter(|id| id.len() <= 255) {
            let option = UnknownOption::new(OptionCode::Unknown(code::MACHINE_ID), id.into_owned());
            options.push(DhcpOption::Unknown(option));
        }
        options
    }
}
