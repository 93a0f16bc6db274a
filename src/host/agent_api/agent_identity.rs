//! Proof that an agent runs on the host's machine.
//!
//! Whether the machine that opens a session is the host's. A boot token reaches a machine by its BMC's address or by the
//! network, and both can be another machine's by a slip; its MAC addresses tell.

use std::collections::BTreeSet;

use crate::api::MacAddress;
use crate::api::metal3::BareMetalHost;
use crate::api::slipway::BootIntent;
use crate::boot::BootHost;
use crate::protocol::OpenSession;

/// More addresses than any machine has.
const MAX_ADDRESSES: usize = 256;
/// Addresses that a reason names.
const NAMED: usize = 8;

/// The machine's addresses, as it says.
pub(super) fn addresses(call: &OpenSession) -> BTreeSet<MacAddress> {
    call.mac_addresses.iter().filter_map(|text| text.parse().ok()).take(MAX_ADDRESSES).collect()
}

/// Why a machine with these addresses is not the host's: it lacks the boot address, or else everything that inspection
/// found. A host that is to be inspected may have got another machine since.
pub(super) fn another(host: &BareMetalHost, intent: &BootIntent, own: &BTreeSet<MacAddress>) -> Option<String> {
    let has = shown(own);
    if let Some(boot) = host.spec.boot_mac_address.as_deref() {
        let there = boot.parse().is_ok_and(|boot| own.contains(&boot));
        return (!there).then(|| {
            format!(
                "this is another machine than the host's: spec.bootMACAddress is {boot}, and the machine has {has}. Is spec.bmc.address the address of the host's own BMC?"
            )
        });
    }
    let hardware = host.status.as_ref().and_then(|status| status.hardware.as_ref())?;
    let known: BTreeSet<MacAddress> = hardware.nics.iter().filter_map(|nic| nic.mac.parse().ok()).collect();
    (!intent.inspects() && !known.is_empty() && known.is_disjoint(own)).then(|| {
        format!(
            "this is another machine than the one that was inspected: that had {}, and this has {has}. Is spec.bmc.address right? If the machine was exchanged, set spec.bootMACAddress or inspect the host again",
            shown(&known)
        )
    })
}

/// The network cards that a host's machine may answer by beside those that the host has. Of one that was not inspected yet, or
/// is inspected anew, they are known from its own word alone; it answers by any of them (arp(7), arp_ignore).
pub(super) fn further_cards(host: &BootHost, intent: &BootIntent, call: &OpenSession) -> Vec<MacAddress> {
    if intent.inspects() || !host.was_inspected() { addresses(call).into_iter().collect() } else { Vec::new() }
}

/// Why a machine is nobody's: another host has one of its addresses as its boot address. It is named to its own namespace only.
pub(super) fn contested(mac: MacAddress, rival: &BootHost, namespace: &str) -> String {
    let whose = match rival.namespace == namespace {
        true => format!("BareMetalHost {}/{}", rival.namespace, rival.name),
        false => "a BareMetalHost in another namespace".to_owned(),
    };
    format!(
        "the machine has the MAC address {mac}, which is the boot address of {whose}: one of the two hosts names the wrong address or BMC"
    )
}

/// At most some of them, for a line.
pub(super) fn shown(addresses: &BTreeSet<MacAddress>) -> String {
    let some: Vec<String> = addresses.iter().take(NAMED).map(ToString::to_string).collect();
    match some.as_slice() {
        [] => "no network card".to_owned(),
        some if addresses.len() > NAMED => format!("{} and {} more", some.join(", "), addresses.len() - NAMED),
        some => some.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::metal3::{BareMetalHostSpec, BareMetalHostStatus, HardwareDetails, Nic};
    use crate::api::slipway::{BootIntentSpec, IntentStep};

    fn mac(last: u8) -> MacAddress {
        MacAddress([2, 0, 0, 0, 0, last])
    }

    #[test]
    fn a_machine_is_the_hosts_by_its_boot_address_or_by_what_was_inspected() {
        use crate::api::slipway::StepAction::{self, Erase, Inspect, WriteImage};
        // boot address, inspected, what is to be done, the machine's own, whether it is the host's
        type Row = (Option<u8>, &'static [u8], &'static [StepAction], &'static [u8], bool);
        let rows: [Row; 13] = [
            (Some(1), &[], &[Inspect], &[1], true),
            (Some(1), &[], &[Inspect], &[9, 1], true),
            (Some(1), &[], &[Inspect], &[9], false),
            (Some(1), &[], &[Inspect], &[], false),
            (Some(1), &[1, 2], &[WriteImage], &[2], false),
            (Some(1), &[2], &[WriteImage], &[1], true),
            (None, &[], &[Inspect], &[9], true),
            (None, &[], &[Erase], &[], true),
            (None, &[1, 2], &[Erase], &[2, 3], true),
            (None, &[1, 2], &[Erase], &[3, 4], false),
            (None, &[1, 2], &[WriteImage], &[], false),
            (None, &[1, 2], &[Inspect], &[3], true),
            (None, &[1, 2], &[Inspect, Erase], &[3], true),
        ];
        for (boot, inspected, actions, own, expected) in rows {
            let boot_mac_address = boot.map(|last| mac(last).to_string().to_uppercase());
            let spec = BareMetalHostSpec { boot_mac_address, ..BareMetalHostSpec::default() };
            let mut host = BareMetalHost::new("h", spec);
            let nics = inspected.iter().map(|last| Nic { mac: mac(*last).to_string(), ..Nic::default() }).collect();
            let hardware = HardwareDetails { nics, ..HardwareDetails::default() };
            host.status = Some(BareMetalHostStatus { hardware: Some(hardware), ..BareMetalHostStatus::default() });
            let steps = actions.iter().map(|action| IntentStep { action: *action, ..IntentStep::default() }).collect();
            let intent = BootIntent::new("h", BootIntentSpec { steps, ..BootIntentSpec::default() });
            let refused = another(&host, &intent, &own.iter().map(|last| mac(*last)).collect());
            assert_eq!(refused.is_none(), expected, "{boot:?} {inspected:?} {actions:?} {own:?}: {refused:?}");
        }
    }

    #[test]
    fn a_machine_may_say_anything() {
        let many: Vec<String> =
            (0..=255).flat_map(|a| (0..8).map(move |b| format!("02:00:00:00:{b:02x}:{a:02x}"))).collect();
        let mac_addresses = [vec![String::new(), "x".repeat(100_000), "02:00:00:00:00:0é".into()], many].concat();
        let (token, version, uuid) = (String::new(), String::new(), String::new());
        let call = OpenSession { token, version, mac_addresses, uuid, uefi: true };
        let own = addresses(&call);
        assert_eq!(own.len(), MAX_ADDRESSES);
        let boot_mac_address = Some("04:00:00:00:00:01".into());
        let host = BareMetalHost::new("h", BareMetalHostSpec { boot_mac_address, ..BareMetalHostSpec::default() });
        let reason = another(&host, &BootIntent::new("h", BootIntentSpec::default()), &own).expect("refused");
        assert!(reason.len() < 500 && reason.contains("02:00:00:00:00:00, "), "{reason}");
    }
}
