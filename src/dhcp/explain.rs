//! `slipway debug dhcp`: what DHCP does for a machine, in sentences.

use std::fmt::Write;

use crate::api::MacAddress;
use crate::boot::{BootClient, BootHost, ClientKind, Firmware, NetworkBoot, UnknownMachine, decide};
use crate::config::{NetworkConfig, NetworkMode};

use super::publish::{expiry, state_name};
use super::recent_messages::RecentMessage;
use super::reserved::ReservedAddress;
use super::table::LeaseTable;

/// What is true of the machine on one network, a sentence to a line.
pub(super) fn network(
    mac: MacAddress,
    config: &NetworkConfig,
    reservation: Option<&ReservedAddress>,
    table: &LeaseTable,
    host: Option<&BootHost>,
    unknown: &UnknownMachine,
    fault: Option<&str>,
) -> String {
    let is_host = host.is_some();
    let mut text = format!("network {} ({} on {}):\n", config.name, config.subnet, config.interface);
    let mut line = |sentence: std::fmt::Arguments<'_>| {
        // Writing to a String does not fail.
        writeln!(text, "  - {sentence}").ok();
    };
    if let Some(fault) = fault {
        line(format_args!("it is not served: {fault}"));
    }
    match config.mode {
        NetworkMode::Authoritative => line(format_args!("mode authoritative: every machine is answered")),
        NetworkMode::Reservations if reservation.is_some() || is_host => {
            line(format_args!("mode reservations: the machine is known, so it is answered"));
        }
        NetworkMode::Reservations => {
            line(format_args!("mode reservations: the machine has no reservation and is no known host: no answer"));
        }
        NetworkMode::Proxy => line(format_args!("mode proxy: boot information only, another server gives addresses")),
        NetworkMode::Off => line(format_args!("mode off: nothing is answered")),
    }
    match (reservation, is_host) {
        (Some(reservation), _) => line(format_args!("{} is reserved for it", reservation.address)),
        (None, _) if table.pool_is_empty() => {
            line(format_args!("it has no reservation and the network has no pool: it gets no address"));
        }
        (None, true) => line(format_args!("it has no reservation; its first address from the pool stays its own")),
        (None, false) => line(format_args!("it has no reservation and is unknown; it gets an address from the pool")),
    }
    match table.of_mac(mac) {
        Some(lease) => {
            let ends = expiry(lease.ends).map_or_else(|| "an unknown time".to_owned(), |time| time.to_string());
            line(format_args!("its lease: {}, {}, end {ends}", lease.address, state_name(lease)));
        }
        None => line(format_args!("it has no lease")),
    }
    if config.mode != NetworkMode::Off {
        boot(mac, host, unknown, &mut line);
    }
    text
}

/// What firmware and iPXE are told to boot.
fn boot(
    mac: MacAddress,
    host: Option<&BootHost>,
    unknown: &UnknownMachine,
    line: &mut impl FnMut(std::fmt::Arguments<'_>),
) {
    let asks = |kind| decide(&BootClient { mac, firmware: Firmware::UefiX64, kind }, host, unknown);
    let mut decision = asks(ClientKind::Pxe);
    let reason = decision.reasons.pop().unwrap_or_default();
    match decision.boot {
        NetworkBoot::LocalDisk => line(format_args!("its firmware is told nothing to boot: {reason}")),
        NetworkBoot::Ramdisk { .. } | NetworkBoot::Discovery | NetworkBoot::LiveIso { .. } => line(format_args!(
            "its firmware is told to boot undionly.kpxe (BIOS), snponly.efi (UEFI) or ipxe.efi (UEFI HTTP boot): {reason}"
        )),
    }
    line(format_args!("iPXE is told to fetch its script, which `slipway debug boot {mac}` explains"));
}

/// The last messages and what came of them.
pub(super) fn messages(recent: &[RecentMessage]) -> String {
    if recent.is_empty() {
        return "no message of it has arrived since Slipway started: look at cabling, VLAN and relay\n".into();
    }
    let mut text = "its last messages:\n".to_owned();
    for RecentMessage { at, network, kind, disposition } in recent {
        let at = expiry(*at).map_or_else(String::new, |time| time.to_string());
        writeln!(text, "  - {at} {network}: {kind:?}: {disposition}").ok();
    }
    text
}

/// Everything about the machine.
pub(super) fn machine(mac: MacAddress, host: Option<&BootHost>, networks: Vec<String>) -> String {
    let who = match host {
        Some(host) => format!("{mac} belongs to BareMetalHost {}/{}\n", host.namespace, host.name),
        None => format!("no BareMetalHost has the MAC address {mac}\n"),
    };
    if networks.is_empty() {
        return format!(
            "{who}there is no network: neither a [[network]] in slipway.toml nor a Network object in force\n"
        );
    }
    who + &networks.concat()
}
