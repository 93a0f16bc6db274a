//! What is asked for.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Machines.
    pub machines: usize,
    /// What decides every chance.
    pub seed: u64,
    /// What their BMCs speak.
    pub bmc: BmcKind,
    /// Address of all BMCs, each at a port of its own; none: each at an address of 127.81.0.0/16.
    pub bmc_address: Option<IpAddr>,
    /// How long things take.
    pub delays: Delays,
    /// What goes wrong.
    pub faults: Faults,
    /// What is fetched of boot files and images.
    pub download: Download,
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
    },
}

/// What BMCs speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum BmcKind {
    /// Redfish over plain HTTP.
    Redfish,
    /// IPMI 2.0.
    Ipmi,
    /// Redfish and IPMI in turn.
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
pub struct Faults {
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
pub enum Download {
    /// Nothing: whether it is there.
    Head,
    /// The first 64 KiB of boot files, one chunk in sixteen.
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
    /// With their image.
    #[default]
    Provisioned,
    /// Then without it again.
    Deprovisioned,
    /// Then deleted.
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
pub struct Share(pub f64);

impl FromStr for Share {
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

    #[test]
    fn shares_are_percents_or_parts() {
        for (text, share) in [("1%", 0.01), ("0.5 %", 0.005), ("0.25", 0.25), ("0", 0.0), ("100%", 1.0)] {
            assert_eq!(text.parse(), Ok(Share(share)), "{text}");
        }
        for text in ["", "%", "101%", "-1%", "2", "one", "nan", "inf"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}
