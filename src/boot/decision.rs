//! The boot decision: what a machine boots, as a pure function of client, host and intent.

use std::fmt;
use std::sync::Arc;

use crate::api::MacAddress;
use crate::api::slipway::BootTarget;
use crate::bmc::BootInterface;

use super::{BootHost, IndexedIntent};

/// Firmware of a client, from DHCP option 93 (RFC 4578 section 2.1 and the IANA "Processor Architecture Types").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Firmware {
    /// 0: x86 BIOS.
    Bios,
    /// 7 and 9: x86-64 UEFI, PXE.
    UefiX64,
    /// 16: x86-64 UEFI, HTTP boot.
    UefiX64Http,
    /// 11: 64-bit ARM UEFI, PXE.
    UefiArm64,
    /// 19: 64-bit ARM UEFI, HTTP boot.
    UefiArm64Http,
    /// Anything else; nothing of ours runs there.
    Other(u16),
}

impl Firmware {
    /// The firmware with this architecture type.
    pub fn from_type(number: u16) -> Self {
        match number {
            0 => Self::Bios,
            7 | 9 => Self::UefiX64,
            16 => Self::UefiX64Http,
            11 => Self::UefiArm64,
            19 => Self::UefiArm64Http,
            other => Self::Other(other),
        }
    }

    /// Its architecture type.
    pub fn number(self) -> u16 {
        match self {
            Self::Bios => 0,
            Self::UefiX64 => 7,
            Self::UefiX64Http => 16,
            Self::UefiArm64 => 11,
            Self::UefiArm64Http => 19,
            Self::Other(number) => number,
        }
    }

    /// Whether it is UEFI firmware.
    pub fn is_uefi(self) -> bool {
        matches!(self, Self::UefiX64 | Self::UefiX64Http | Self::UefiArm64 | Self::UefiArm64Http)
    }

    /// Whether Slipway has a ramdisk and boot programs for it.
    pub fn is_supported(self) -> bool {
        matches!(self, Self::Bios | Self::UefiX64 | Self::UefiX64Http)
    }
}

impl fmt::Display for Firmware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bios => f.write_str("BIOS"),
            Self::UefiX64 => f.write_str("UEFI x86-64"),
            Self::UefiX64Http => f.write_str("UEFI x86-64 HTTP boot"),
            Self::UefiArm64 => f.write_str("UEFI arm64"),
            Self::UefiArm64Http => f.write_str("UEFI arm64 HTTP boot"),
            Self::Other(number) => write!(f, "architecture type {number}"),
        }
    }
}

/// Which program is asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientKind {
    /// The firmware's PXE client (option 60 `PXEClient`).
    Pxe,
    /// The firmware's HTTP boot client (option 60 `HTTPClient`).
    HttpBoot,
    /// iPXE (option 77 `iPXE`, or option 175).
    Ipxe,
    /// An operating system or our ramdisk: it wants an address, nothing to boot.
    System,
}

/// A machine that asks what to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootClient {
    /// Hardware address it asks with.
    pub mac: MacAddress,
    /// Its firmware.
    pub firmware: Firmware,
    /// The program that asks.
    pub kind: ClientKind,
}

/// What to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkBoot {
    /// Nothing from the network.
    LocalDisk,
    /// Slipway's ramdisk, for this intent.
    Ramdisk {
        /// Generation of the boot intent.
        generation: i64,
    },
    /// Slipway's ramdisk, for a machine that no host has: it reports itself and does nothing else.
    Discovery,
    /// An ISO of the image library, from the network.
    LiveIso {
        /// Generation of the boot intent.
        generation: i64,
        /// Its digest.
        digest: Arc<str>,
    },
}

/// What is done about a machine that no host has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UnknownMachine {
    /// Nothing.
    #[default]
    Ignored,
    /// It may report itself.
    Discovered,
    /// It may not: as many discovered hosts as are allowed wait to be accepted or inspected.
    TooMany(usize),
    /// It did, and is another address of this host, `namespace/name`.
    Reported(String),
}

/// What to boot, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootDecision {
    /// What to boot.
    pub boot: NetworkBoot,
    /// One sentence for each thing that was looked at, in order; the last one decided.
    pub reasons: Vec<String>,
}

/// Decides what a client boots. The answer to a finished machine is its local disk, and so it is to an unknown one,
/// unless `unknown` lets it report itself.
pub fn decide(client: &BootClient, host: Option<&BootHost>, unknown: &UnknownMachine) -> BootDecision {
    let mut reasons = Vec::new();
    let boot = choose(client, host, unknown, &mut reasons);
    BootDecision { boot, reasons }
}

/// The decision as text, for `slipway debug boot`. Holds no secret.
pub fn explain(client: &BootClient, host: Option<&BootHost>, unknown: &UnknownMachine) -> String {
    let decision = decide(client, host, unknown);
    let asks = match client.kind {
        ClientKind::Pxe => "the firmware's PXE client",
        ClientKind::HttpBoot => "the firmware's HTTP boot client",
        ClientKind::Ipxe => "iPXE",
        ClientKind::System => "a running system",
    };
    let mut text = format!("{} asks: {asks}, {}\n", client.mac, client.firmware);
    for reason in &decision.reasons {
        text.push_str("  - ");
        text.push_str(reason);
        text.push('\n');
    }
    match decision.boot {
        NetworkBoot::LocalDisk => text.push_str("it boots: its local disk\n"),
        NetworkBoot::Ramdisk { generation } => {
            text.push_str(&format!("it boots: Slipway's ramdisk, boot intent {generation}\n"));
        }
        NetworkBoot::Discovery => text.push_str("it boots: Slipway's ramdisk, to report itself\n"),
        NetworkBoot::LiveIso { generation, digest } => {
            text.push_str(&format!("it boots: the live ISO {digest}, boot intent {generation}\n"));
        }
    }
    text
}

fn choose(
    client: &BootClient,
    host: Option<&BootHost>,
    unknown: &UnknownMachine,
    reasons: &mut Vec<String>,
) -> NetworkBoot {
    let Some(host) = host else { return decide_unknown(client, unknown, reasons) };
    reasons.push(format!("{} belongs to BareMetalHost {}/{}", client.mac, host.namespace, host.name));
    if client.kind == ClientKind::System {
        reasons.push("the client is a running system and asks for an address only".into());
        return NetworkBoot::LocalDisk;
    }
    let Some(IndexedIntent { generation, target, session_open, live_iso }) = host.intent.clone() else {
        reasons.push(match host.discovery.waiting {
            true => "it reported itself and waits to be accepted: local disk".into(),
            false => "it has no boot intent: local disk".into(),
        });
        return NetworkBoot::LocalDisk;
    };
    match target {
        BootTarget::Disk => {
            reasons.push(format!("boot intent {generation} is its local disk"));
            NetworkBoot::LocalDisk
        }
        // Its ticket is a secret that its BMC alone was told; a script by the MAC address would go to anybody.
        BootTarget::Ramdisk if host.boot_interface != BootInterface::Pxe => {
            let way = if host.boot_interface == BootInterface::UefiHttp { "by a URL" } else { "from a virtual CD" };
            reasons.push(format!(
                "boot intent {generation} is the ramdisk, which its BMC makes it boot {way}: from the network it has its local disk"
            ));
            NetworkBoot::LocalDisk
        }
        BootTarget::Ramdisk if session_open => {
            reasons.push(format!(
                "boot intent {generation} is the ramdisk, and its one session was opened already: local disk until the next intent"
            ));
            NetworkBoot::LocalDisk
        }
        BootTarget::Ramdisk if !client.firmware.is_supported() => {
            reasons.push(format!("boot intent {generation} is the ramdisk, but there is none for {}", client.firmware));
            NetworkBoot::LocalDisk
        }
        BootTarget::Ramdisk if host.ownership.paused => {
            reasons.push(format!("boot intent {generation} is the ramdisk, but the host is paused: local disk"));
            NetworkBoot::LocalDisk
        }
        BootTarget::Ramdisk => {
            reasons.push(format!("boot intent {generation} is the ramdisk"));
            NetworkBoot::Ramdisk { generation }
        }
        BootTarget::LiveIso => match live_iso {
            Some(digest) if client.firmware.is_supported() => {
                reasons.push(format!("boot intent {generation} is a live ISO, at each of its boots"));
                NetworkBoot::LiveIso { generation, digest }
            }
            Some(_) => {
                reasons.push(format!(
                    "boot intent {generation} is a live ISO, but nothing loads one on {}",
                    client.firmware
                ));
                NetworkBoot::LocalDisk
            }
            None => {
                reasons.push(format!("boot intent {generation} is a live ISO that the library does not have yet"));
                NetworkBoot::LocalDisk
            }
        },
    }
}

fn decide_unknown(client: &BootClient, unknown: &UnknownMachine, reasons: &mut Vec<String>) -> NetworkBoot {
    let nobody = format!("no BareMetalHost has the MAC address {}", client.mac);
    match unknown {
        UnknownMachine::Ignored => reasons.push(format!("{nobody}: local disk")),
        UnknownMachine::TooMany(limit) => {
            reasons.push(nobody);
            reasons.push(format!(
                "{limit} discovered hosts wait to be accepted or inspected, which is discovery.limit: local disk until one is through or deleted"
            ));
        }
        UnknownMachine::Reported(host) => {
            reasons.push(nobody);
            reasons.push(format!("it reported itself before and is another address of {host}: local disk"));
        }
        UnknownMachine::Discovered if client.kind == ClientKind::System => {
            reasons.push(nobody);
            reasons.push("the client is a running system and asks for an address only".into());
        }
        UnknownMachine::Discovered if !client.firmware.is_supported() => {
            reasons.push(nobody);
            reasons.push(format!("discovery is on, but there is no ramdisk for {}", client.firmware));
        }
        UnknownMachine::Discovered => {
            reasons.push(nobody);
            reasons.push("discovery is on in its network: the ramdisk, to report itself".into());
            return NetworkBoot::Discovery;
        }
    }
    NetworkBoot::LocalDisk
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(intent: Option<IndexedIntent>) -> BootHost {
        BootHost {
            namespace: "default".into(),
            created: 0,
            ownership: Default::default(),
            name: "web-1".into(),
            uid: "u".into(),
            macs: vec![MacAddress([2, 0, 0, 0, 0, 1])],
            intent,
            boot_interface: Default::default(),
            discovery: Default::default(),
        }
    }

    #[test]
    fn an_explanation_says_who_why_and_what() {
        let client =
            BootClient { mac: MacAddress([2, 0, 0, 0, 0, 1]), firmware: Firmware::UefiX64, kind: ClientKind::Ipxe };
        let intent = IndexedIntent { generation: 7, target: BootTarget::Ramdisk, session_open: false, live_iso: None };
        insta::assert_snapshot!(explain(&client, Some(&host(Some(intent))), &UnknownMachine::Discovered), @r"
        02:00:00:00:00:01 asks: iPXE, UEFI x86-64
          - 02:00:00:00:00:01 belongs to BareMetalHost default/web-1
          - boot intent 7 is the ramdisk
        it boots: Slipway's ramdisk, boot intent 7
        ");
    }

    #[test]
    fn the_local_disk_unless_an_unopened_ramdisk_intent_says_otherwise() {
        let intent = |target, session_open| {
            let live_iso = (target == BootTarget::LiveIso).then(|| "d1".into());
            Some(IndexedIntent { generation: 7, target, session_open, live_iso })
        };
        let ramdisk = NetworkBoot::Ramdisk { generation: 7 };
        let rows = [
            (None, ClientKind::Pxe, Firmware::Bios, NetworkBoot::LocalDisk, "no BareMetalHost"),
            (Some(host(None)), ClientKind::Ipxe, Firmware::Bios, NetworkBoot::LocalDisk, "no boot intent"),
            (
                Some(host(intent(BootTarget::Disk, false))),
                ClientKind::Ipxe,
                Firmware::Bios,
                NetworkBoot::LocalDisk,
                "is its local disk",
            ),
            (
                Some(host(intent(BootTarget::Ramdisk, true))),
                ClientKind::Ipxe,
                Firmware::Bios,
                NetworkBoot::LocalDisk,
                "opened already",
            ),
            (
                Some(host(intent(BootTarget::Ramdisk, false))),
                ClientKind::System,
                Firmware::Bios,
                NetworkBoot::LocalDisk,
                "address only",
            ),
            (
                Some(host(intent(BootTarget::Ramdisk, false))),
                ClientKind::Pxe,
                Firmware::UefiArm64,
                NetworkBoot::LocalDisk,
                "none for UEFI arm64",
            ),
            (
                Some(host(intent(BootTarget::Ramdisk, false))),
                ClientKind::Pxe,
                Firmware::UefiX64,
                ramdisk.clone(),
                "is the ramdisk",
            ),
            (
                Some(host(intent(BootTarget::Ramdisk, false))),
                ClientKind::HttpBoot,
                Firmware::UefiX64Http,
                ramdisk.clone(),
                "is the ramdisk",
            ),
            (
                Some(host(intent(BootTarget::Ramdisk, false))),
                ClientKind::Ipxe,
                Firmware::Bios,
                ramdisk,
                "is the ramdisk",
            ),
            (
                Some(host(intent(BootTarget::LiveIso, false))),
                ClientKind::Ipxe,
                Firmware::UefiX64,
                NetworkBoot::LiveIso { generation: 7, digest: "d1".into() },
                "is a live ISO",
            ),
            (
                Some(host(intent(BootTarget::LiveIso, false))),
                ClientKind::Ipxe,
                Firmware::UefiArm64,
                NetworkBoot::LocalDisk,
                "nothing loads one on UEFI arm64",
            ),
        ];
        for (host, kind, firmware, boot, reason) in rows {
            let client = BootClient { mac: MacAddress([2, 0, 0, 0, 0, 1]), firmware, kind };
            let decision = decide(&client, host.as_ref(), &UnknownMachine::Ignored);
            assert_eq!(decision.boot, boot, "{kind:?} {firmware:?} {host:?}");
            let last = decision.reasons.last().expect("a reason");
            assert!(last.contains(reason), "{last}");
        }
    }

    #[test]
    fn a_paused_host_gets_no_ramdisk_and_its_live_system_starts_on() {
        let client =
            BootClient { mac: MacAddress([2, 0, 0, 0, 0, 1]), firmware: Firmware::UefiX64, kind: ClientKind::Ipxe };
        for (target, paused, boot) in [
            (BootTarget::Ramdisk, false, NetworkBoot::Ramdisk { generation: 7 }),
            (BootTarget::Ramdisk, true, NetworkBoot::LocalDisk),
            (BootTarget::LiveIso, true, NetworkBoot::LiveIso { generation: 7, digest: "d1".into() }),
            (BootTarget::Disk, true, NetworkBoot::LocalDisk),
        ] {
            let intent = IndexedIntent { generation: 7, target, session_open: false, live_iso: Some("d1".into()) };
            let mut host = host(Some(intent));
            host.ownership.paused = paused;
            assert_eq!(decide(&client, Some(&host), &UnknownMachine::Ignored).boot, boot, "{target:?} {paused}");
        }
    }

    #[test]
    fn what_boots_from_a_medium_gets_no_ramdisk_from_the_network() {
        for (way, reason) in [(BootInterface::VirtualMedia, "from a virtual CD"), (BootInterface::UefiHttp, "by a URL")]
        {
            for kind in [ClientKind::Pxe, ClientKind::HttpBoot, ClientKind::Ipxe] {
                let intent = |target, live_iso| IndexedIntent { generation: 7, target, session_open: false, live_iso };
                let client = BootClient { mac: MacAddress([2, 0, 0, 0, 0, 1]), firmware: Firmware::UefiX64, kind };
                let medium = BootHost { boot_interface: way, ..host(Some(intent(BootTarget::Ramdisk, None))) };
                let decision = decide(&client, Some(&medium), &UnknownMachine::Discovered);
                assert_eq!(decision.boot, NetworkBoot::LocalDisk, "{way:?} {kind:?}");
                assert!(decision.reasons.concat().contains(reason), "{:?}", decision.reasons);
                // A live ISO is no secret, and there is no token with it.
                let live =
                    BootHost { boot_interface: way, ..host(Some(intent(BootTarget::LiveIso, Some("d1".into())))) };
                let decision = decide(&client, Some(&live), &UnknownMachine::Discovered);
                assert_eq!(
                    decision.boot,
                    NetworkBoot::LiveIso { generation: 7, digest: "d1".into() },
                    "{way:?} {kind:?}"
                );
            }
        }
    }

    #[test]
    fn a_stranger_reports_itself_where_discovery_is_on_and_otherwise_keeps_its_disk() {
        let rows = [
            (UnknownMachine::Ignored, ClientKind::Ipxe, Firmware::UefiX64, NetworkBoot::LocalDisk, "no BareMetalHost"),
            (
                UnknownMachine::Discovered,
                ClientKind::Ipxe,
                Firmware::UefiX64,
                NetworkBoot::Discovery,
                "to report itself",
            ),
            (UnknownMachine::Discovered, ClientKind::Pxe, Firmware::Bios, NetworkBoot::Discovery, "to report itself"),
            (UnknownMachine::Discovered, ClientKind::System, Firmware::Bios, NetworkBoot::LocalDisk, "address only"),
            (
                UnknownMachine::Discovered,
                ClientKind::Pxe,
                Firmware::UefiArm64,
                NetworkBoot::LocalDisk,
                "no ramdisk for UEFI arm64",
            ),
            (
                UnknownMachine::TooMany(7),
                ClientKind::Ipxe,
                Firmware::Bios,
                NetworkBoot::LocalDisk,
                "7 discovered hosts wait",
            ),
            (
                UnknownMachine::Reported("a/b".into()),
                ClientKind::Ipxe,
                Firmware::Bios,
                NetworkBoot::LocalDisk,
                "address of a/b",
            ),
        ];
        for (unknown, kind, firmware, boot, reason) in rows {
            let client = BootClient { mac: MacAddress([2, 0, 0, 0, 0, 1]), firmware, kind };
            let reasons = decide(&client, None, &unknown);
            assert_eq!(reasons.boot, boot, "{kind:?} {firmware:?} {unknown:?}");
            assert!(reasons.reasons.concat().contains(reason), "{:?}", reasons.reasons);
            // Never a machine that is somebody's.
            let known = decide(&client, Some(&host(None)), &unknown);
            assert_eq!(known.boot, NetworkBoot::LocalDisk);
        }
        let mut waiting = host(None);
        waiting.discovery.waiting = true;
        let client = BootClient { mac: waiting.macs[0], firmware: Firmware::Bios, kind: ClientKind::Ipxe };
        let decision = decide(&client, Some(&waiting), &UnknownMachine::Discovered);
        assert_eq!(decision.boot, NetworkBoot::LocalDisk);
        assert!(decision.reasons.concat().contains("waits to be accepted"), "{:?}", decision.reasons);
    }
}
