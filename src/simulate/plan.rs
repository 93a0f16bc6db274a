//! Options of a run.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::api::metal3::{BareMetalHostSpec, BootMode};
use crate::bmc::{BmcAddress, BootInterface};
use crate::boot::Firmware;

/// A run.
#[derive(Clone, Debug)]
pub struct SimulationPlan {
    /// Machines.
    pub machines: usize,
    /// What decides every chance.
    pub seed: u64,
    /// What their BMCs speak.
    pub bmc: BmcKind,
    /// Address of all BMCs, each at a port of its own; none: each at an address of 127.81.0.0/16.
    pub bmc_address: Option<IpAddr>,
    /// How machines come to their ramdisk; none: in every way, in turn.
    pub boot: Option<BootMethod>,
    /// How long things take.
    pub delays: Delays,
    /// What goes wrong.
    pub faults: FaultRates,
    /// What is fetched of boot files and images.
    pub download: SimulatedDownload,
    /// How far the hosts are to come.
    pub until: Goal,
    /// How long that may take in all.
    pub deadline: Duration,
    /// Where the hosts are made.
    pub namespace: String,
    /// URL of the image, instead of one that the simulator serves.
    pub image: Option<String>,
    /// Manifests of hosts to be used instead of made-up ones.
    pub hosts: Option<PathBuf>,
    /// Whether what was made stays.
    pub keep: bool,
    /// Whether machines go on when all have arrived, until the run is stopped or its deadline is over.
    pub stay: bool,
    /// The appliance.
    pub appliance: Appliance,
}

/// Which appliance.
#[derive(Clone, Debug)]
pub enum Appliance {
    /// One of its own, in a process of its own with a folder that ends with it.
    Own {
        /// Where its settings come from, those apart that make it a trial: folder, addresses, networks.
        config: Option<PathBuf>,
    },
    /// One that runs already.
    Running {
        /// How to reach its API.
        kubeconfig: Option<PathBuf>,
        /// Context of the kubeconfig.
        context: Option<String>,
        /// The relay's address: one of this machine, in a subnet that the appliance serves.
        relay: Ipv4Addr,
        /// Where its DHCP server listens.
        dhcp: SocketAddrV4,
        /// Port where its TFTP server listens.
        tftp_port: u16,
    },
}

/// How a machine comes to its ramdisk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BootMethod {
    /// UEFI firmware asks DHCP and fetches iPXE by TFTP
    UefiPxe,
    /// BIOS: the network card's ROM asks DHCP and fetches iPXE by TFTP
    BiosPxe,
    /// UEFI firmware asks DHCP and fetches iPXE by HTTP
    UefiHttp,
    /// From a virtual CD that is read over HTTP, without DHCP where the address is fixed; Redfish only
    VirtualMedia,
    /// UEFI firmware boots from a URL that its BMC was given; Redfish only
    BootUrl,
    /// iPXE is in the machine already
    Ipxe,
}

impl BootMethod {
    /// Whether only Redfish can order it.
    pub fn needs_redfish(self) -> bool {
        matches!(self, Self::VirtualMedia | Self::BootUrl)
    }

    /// The firmware that goes it.
    pub fn firmware(self) -> Firmware {
        match self {
            Self::BiosPxe => Firmware::Bios,
            Self::UefiPxe | Self::UefiHttp | Self::VirtualMedia | Self::BootUrl | Self::Ipxe => Firmware::UefiX64,
        }
    }
}

impl SimulationPlan {
    /// Whether a machine's BMC speaks Redfish, and how it comes to its ramdisk. A host that says so itself, by the
    /// scheme of its BMC's address or its boot mode, is taken at its word.
    pub fn ways(&self, number: usize, host: &BareMetalHostSpec) -> (bool, BootMethod) {
        let said = host.bmc.as_ref().and_then(|bmc| BmcAddress::parse(&bmc.address).ok());
        let (redfish, turn) = match self.bmc {
            BmcKind::Redfish => (true, number),
            BmcKind::Ipmi => (false, number),
            BmcKind::Mixed => {
                let said = said.as_ref().map(|address| address.driver.is_redfish());
                (said.unwrap_or(number.is_multiple_of(2)), number / 2)
            }
        };
        let legacy = host.boot_mode == Some(BootMode::Legacy);
        let way = match (self.boot, said.map(|address| address.capabilities().boot)) {
            (Some(way), _) => way,
            (None, Some(BootInterface::VirtualMedia)) => BootMethod::VirtualMedia,
            (None, Some(BootInterface::UefiHttp)) => BootMethod::BootUrl,
            (None, Some(BootInterface::Pxe)) if legacy => BootMethod::BiosPxe,
            (None, Some(BootInterface::Pxe)) => BootMethod::UefiPxe,
            (None, None) if redfish => {
                [BootMethod::VirtualMedia, BootMethod::UefiHttp, BootMethod::BootUrl, BootMethod::UefiPxe][turn % 4]
            }
            (None, None) => [BootMethod::UefiPxe, BootMethod::BiosPxe][turn % 2],
        };
        (redfish || way.needs_redfish(), way)
    }
}

/// What BMCs speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum BmcKind {
    /// Redfish over plain HTTP.
    Redfish,
    /// IPMI 2.0.
    Ipmi,
    /// Redfish and IPMI in turn; for hosts from a file what their BMC address says.
    #[default]
    Mixed,
}

/// How long things take; each a fifth more or less.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delays {
    /// An answer of a BMC.
    pub bmc: Duration,
    /// Power on and off.
    pub power: Duration,
    /// From power-on to the first DHCP message.
    pub firmware: Duration,
    /// From the boot script to the agent's first call.
    pub ramdisk: Duration,
    /// Each step of the agent.
    pub step: Duration,
}

/// What goes wrong how often; each from 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// Answers of BMCs.
    pub bmc_failures: f64,
    /// Writes that BMCs answer as done and do not do.
    pub bmc_lies: f64,
    /// Packets.
    pub packet_loss: f64,
    /// Boots that never come out of the firmware.
    pub stuck: f64,
    /// Images during whose writing the power fails.
    pub power_loss: f64,
}

/// What is fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SimulatedDownload {
    /// Nothing; only asks whether it is there.
    Head,
    /// The first 64 KiB of kernel, initrd and what comes by HTTP, one chunk in sixteen.
    #[default]
    Sample,
    /// Everything; nothing is kept.
    All,
}

/// How far hosts are to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Goal {
    /// Inspected and cleaned.
    Available,
    /// Installed with their image.
    #[default]
    Provisioned,
    /// Then deprovisioned again.
    Deprovisioned,
    /// Then deprovisioned and deleted.
    Deleted,
}

impl Goal {
    /// As the command line has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Provisioned => "provisioned",
            Self::Deprovisioned => "deprovisioned",
            Self::Deleted => "deleted",
        }
    }
}

/// A probability, written `1%` or `0.01`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probability(pub f64);

impl FromStr for Probability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fail = || format!("{text:?} is not a share: write 1% or 0.01");
        let (digits, unit) = match text.strip_suffix('%') {
            Some(digits) => (digits, 100.0),
            None => (text, 1.0),
        };
        let share: f64 = digits.trim().parse::<f64>().map_err(|_| fail())? / unit;
        if (0.0..=1.0).contains(&share) { Ok(Self(share)) } else { Err(fail()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::metal3::BmcDetails;

    fn plan(bmc: BmcKind, boot: Option<BootMethod>) -> SimulationPlan {
        SimulationPlan {
            machines: 1,
            seed: 1,
            bmc,
            bmc_address: None,
            boot,
            delays: Delays::default(),
            faults: FaultRates::default(),
            download: SimulatedDownload::default(),
            until: Goal::default(),
            deadline: Duration::from_secs(1),
            namespace: String::new(),
            image: None,
            hosts: None,
            keep: false,
            stay: false,
            appliance: Appliance::Own { config: None },
        }
    }

    #[test]
    fn a_mixed_rack_goes_every_way_and_none_that_its_bmc_cannot_order() {
        let made_up = BareMetalHostSpec::default();
        let mixed = plan(BmcKind::Mixed, None);
        let ways: Vec<_> = (1..=8).map(|number| mixed.ways(number, &made_up)).collect();
        for way in [
            BootMethod::UefiPxe,
            BootMethod::BiosPxe,
            BootMethod::UefiHttp,
            BootMethod::VirtualMedia,
            BootMethod::BootUrl,
        ] {
            assert!(ways.iter().any(|(_, gone)| *gone == way), "{way:?}: {ways:?}");
        }
        assert_eq!(ways.iter().filter(|(redfish, _)| *redfish).count(), 4);
        assert!(ways.iter().all(|(redfish, way)| *redfish || !way.needs_redfish()));
        let ipmi = plan(BmcKind::Ipmi, None);
        assert!((1..=8).all(|number| !ipmi.ways(number, &made_up).1.needs_redfish()));
        let all = plan(BmcKind::Mixed, Some(BootMethod::VirtualMedia));
        assert!((1..=3).all(|number| all.ways(number, &made_up) == (true, BootMethod::VirtualMedia)));
        let host = |address: &str, boot_mode| BareMetalHostSpec {
            bmc: Some(BmcDetails { address: address.into(), ..BmcDetails::default() }),
            boot_mode,
            ..BareMetalHostSpec::default()
        };
        for (address, mode, way, redfish) in [
            ("idrac-virtualmedia://10.0.0.1/redfish/v1/Systems/1", None, BootMethod::VirtualMedia, true),
            ("redfish-uefihttp://10.0.0.1/redfish/v1/Systems/1", None, BootMethod::BootUrl, true),
            ("ipmi://10.0.0.1", Some(BootMode::Legacy), BootMethod::BiosPxe, false),
            ("redfish://10.0.0.1/redfish/v1/Systems/1", None, BootMethod::UefiPxe, true),
        ] {
            for number in 1..=2 {
                assert_eq!(mixed.ways(number, &host(address, mode)), (redfish, way), "{address}");
            }
        }
    }

    #[test]
    fn shares_are_percents_or_parts() {
        for (text, share) in [("1%", 0.01), ("0.5 %", 0.005), ("0.25", 0.25), ("0", 0.0), ("100%", 1.0)] {
            assert_eq!(text.parse(), Ok(Probability(share)), "{text}");
        }
        for text in ["", "%", "101%", "-1%", "2", "one", "nan", "inf"] {
            assert!(text.parse::<Probability>().is_err(), "{text}");
        }
    }
}
