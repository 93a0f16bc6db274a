//! What a machine needs of a host's hardware, by annotations.
//!
//! Metal3 has no fields for it, so its published schema stays: annotations of the Metal3Machine say it, or those of the
//! Metal3MachineTemplate that it was made from.

use std::collections::BTreeMap;
use std::fmt;

use crate::api::metal3::HardwareDetails;

/// Logical processors.
pub const MIN_CPUS: &str = "slipway.dev/min-cpus";
/// Memory, as `64Gi`.
pub const MIN_MEMORY: &str = "slipway.dev/min-memory";
/// Size of a disk, as `480G`.
pub const MIN_DISK: &str = "slipway.dev/min-disk";
/// Disks, of that size where one is said.
pub const MIN_DISKS: &str = "slipway.dev/min-disks";
/// Network interfaces, of the speed that is said.
pub const MIN_NICS: &str = "slipway.dev/min-nics";
/// Speed of a network interface in Gbit/s.
pub const MIN_NIC_SPEED: &str = "slipway.dev/min-nic-speed";

/// Letters of an annotation that a message shows.
const SHOWN: usize = 63;
const MEBIBYTE: u64 = 1 << 20;

/// What a machine needs at least; zero is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Needs {
    cpus: u64,
    memory: u64,
    disk: u64,
    disks: u64,
    nics: u64,
    nic_speed: u64,
}

/// An annotation that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("annotation {key}: {value:?} is not {wants}")]
pub struct NeedFault {
    key: &'static str,
    value: String,
    wants: &'static str,
}

impl Needs {
    /// As the annotations of a machine say, or else those of its template.
    ///
    /// # Errors
    ///
    /// When one makes no sense.
    pub fn new(machine: &BTreeMap<String, String>, template: &BTreeMap<String, String>) -> Result<Self, NeedFault> {
        let read = |key: &'static str, wants, parse: fn(&str) -> Option<u64>| {
            let Some(text) = machine.get(key).or_else(|| template.get(key)) else { return Ok(0) };
            let fault = || NeedFault { key, value: text.chars().take(SHOWN).collect(), wants };
            parse(text.trim()).ok_or_else(fault)
        };
        let number = |key| read(key, "a whole number", |text| text.parse().ok());
        let size = |key| read(key, "a size as 64Gi or 480G", quantity);
        Ok(Self {
            cpus: number(MIN_CPUS)?,
            memory: size(MIN_MEMORY)?,
            disk: size(MIN_DISK)?,
            disks: number(MIN_DISKS)?,
            nics: number(MIN_NICS)?,
            nic_speed: number(MIN_NIC_SPEED)?,
        })
    }

    /// So many processors and bytes of memory.
    pub fn of(cpus: u64, memory: u64) -> Self {
        Self { cpus, memory, ..Self::default() }
    }

    /// What counts first where hosts are scarce: memory in bytes, then processors.
    pub fn size(&self) -> (u64, u64) {
        (self.memory, self.cpus)
    }

    /// The first thing that a host has too little of; hardware that nobody knows is too little of anything.
    pub fn lack(&self, hardware: Option<&Capacity>) -> Option<HardwareLack> {
        if *self == Self::default() {
            return None;
        }
        let Some(hardware) = hardware else { return Some(HardwareLack::Unknown) };
        if hardware.cpus < self.cpus {
            return Some(HardwareLack::Cpus { has: hardware.cpus, needs: self.cpus });
        }
        if hardware.memory < self.memory {
            return Some(HardwareLack::Memory { has: hardware.memory, needs: self.memory });
        }
        let disks = count(&hardware.disks, self.disk);
        let needs = if self.disk > 0 { self.disks.max(1) } else { self.disks };
        if disks < needs {
            return Some(HardwareLack::Disks { has: disks, needs, of: self.disk });
        }
        let nics = count(&hardware.nics, self.nic_speed);
        let needs = if self.nic_speed > 0 { self.nics.max(1) } else { self.nics };
        (nics < needs).then_some(HardwareLack::Nics { has: nics, needs, of: self.nic_speed })
    }
}

fn count(parts: &[u64], least: u64) -> u64 {
    parts.iter().filter(|part| **part >= least).count().try_into().unwrap_or(u64::MAX)
}

/// A number with one of Kubernetes' suffixes, in whole.
pub fn quantity(text: &str) -> Option<u64> {
    let digits = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, suffix) = (text.get(..digits)?, text.get(digits..)?);
    let factor: u64 = match suffix {
        "" => 1,
        "k" => 1000,
        "M" => 1000_u64.pow(2),
        "G" => 1000_u64.pow(3),
        "T" => 1000_u64.pow(4),
        "P" => 1000_u64.pow(5),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let mut total = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    if !fraction.is_empty() {
        let (part, scale) = (fraction.parse::<u64>().ok()?, 10_u64.checked_pow(fraction.len().try_into().ok()?)?);
        total = total.checked_add(u64::try_from(u128::from(part) * u128::from(factor) / u128::from(scale)).ok()?)?;
    }
    Some(total)
}

/// What of a host's hardware counts for a choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Logical processors.
    pub cpus: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of each disk.
    pub disks: Vec<u64>,
    /// Gbit/s of each network interface.
    pub nics: Vec<u64>,
}

impl From<&HardwareDetails> for Capacity {
    fn from(hardware: &HardwareDetails) -> Self {
        let number = |value: i64| u64::try_from(value).unwrap_or_default();
        // One with two addresses is there twice.
        let mut nics = BTreeMap::new();
        for nic in &hardware.nics {
            let speed = nics.entry((&nic.name, &nic.mac)).or_default();
            *speed = number(nic.speed_gbps).max(*speed);
        }
        Self {
            cpus: number(hardware.cpu.as_ref().map_or(0, |cpu| cpu.count)),
            memory: number(hardware.ram_mebibytes).saturating_mul(MEBIBYTE),
            disks: hardware.storage.iter().map(|disk| number(disk.size_bytes)).collect(),
            nics: nics.into_values().collect(),
        }
    }
}

/// What a host has too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HardwareLack {
    /// Nobody knows.
    Unknown,
    /// Processors.
    Cpus {
        /// What it has.
        has: u64,
        /// What is needed.
        needs: u64,
    },
    /// Bytes of memory.
    Memory {
        /// What it has.
        has: u64,
        /// What is needed.
        needs: u64,
    },
    /// Disks of a size.
    Disks {
        /// What it has.
        has: u64,
        /// What is needed.
        needs: u64,
        /// Bytes that each must have.
        of: u64,
    },
    /// Network interfaces of a speed.
    Nics {
        /// What it has.
        has: u64,
        /// What is needed.
        needs: u64,
        /// Gbit/s that each must have.
        of: u64,
    },
}

impl HardwareLack {
    /// What is needed, the same for every host.
    pub fn needed(&self) -> String {
        match self {
            Self::Unknown => "hardware that is known".into(),
            Self::Cpus { needs, .. } => format!("{needs} processors"),
            Self::Memory { needs, .. } => format!("{} MiB of memory", needs.div_ceil(MEBIBYTE)),
            Self::Disks { needs, of: 0, .. } => format!("{needs} disks"),
            Self::Disks { needs, of, .. } => format!("{needs} disks of {} MiB", of.div_ceil(MEBIBYTE)),
            Self::Nics { needs, of: 0, .. } => format!("{needs} network interfaces"),
            Self::Nics { needs, of, .. } => format!("{needs} network interfaces of {of} Gbit/s"),
        }
    }
}

impl fmt::Display for HardwareLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => write!(f, "not inspected"),
            Self::Memory { has, .. } => write!(f, "{}", has / MEBIBYTE),
            Self::Cpus { has, .. } | Self::Disks { has, .. } | Self::Nics { has, .. } => write!(f, "{has}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::metal3::{Cpu, Nic, Storage};

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn sizes_have_suffixes() {
        let rows: &[(&str, Option<u64>)] = &[
            ("0", Some(0)),
            ("480", Some(480)),
            ("480G", Some(480_000_000_000)),
            ("64Gi", Some(64 << 30)),
            ("1.5Ti", Some(3 << 39)),
            ("2k", Some(2000)),
            ("", None),
            ("Gi", None),
            ("1.5.2G", None),
            ("1g", None),
            ("-1", None),
            ("99999999P", None),
            ("1.00000000000000000000000000001G", None),
        ];
        for (text, bytes) in rows {
            assert_eq!(quantity(text), *bytes, "{text}");
        }
    }

    #[test]
    fn hardware_is_held_against_needs() {
        let nic = |name: &str, speed| Nic { name: name.into(), mac: name.into(), speed_gbps: speed, ..Nic::default() };
        let disk = |gigabytes: i64| Storage { size_bytes: gigabytes * 1_000_000_000, ..Storage::default() };
        let hardware = Capacity::from(&HardwareDetails {
            cpu: Some(Cpu { count: 8, ..Cpu::default() }),
            ram_mebibytes: 65536,
            storage: vec![disk(480), disk(480), disk(2000)],
            nics: vec![nic("eno1", 10), nic("eno1", 10), nic("eno2", 25), nic("eno3", -1)],
            ..HardwareDetails::default()
        });
        type Row<'a> = (&'a [(&'a str, &'a str)], Option<HardwareLack>);
        let rows: &[Row<'_>] = &[
            (&[], None),
            (&[(MIN_CPUS, "8")], None),
            (&[(MIN_CPUS, "9")], Some(HardwareLack::Cpus { has: 8, needs: 9 })),
            (&[(MIN_MEMORY, "64Gi")], None),
            (&[(MIN_MEMORY, "65Gi")], Some(HardwareLack::Memory { has: 64 << 30, needs: 65 << 30 })),
            (&[(MIN_DISK, "2T")], None),
            (&[(MIN_DISK, "3T")], Some(HardwareLack::Disks { has: 0, needs: 1, of: 3_000_000_000_000 })),
            (&[(MIN_DISKS, "3")], None),
            (
                &[(MIN_DISK, "1T"), (MIN_DISKS, "2")],
                Some(HardwareLack::Disks { has: 1, needs: 2, of: 1_000_000_000_000 }),
            ),
            (&[(MIN_NICS, "3")], None),
            (&[(MIN_NICS, "4")], Some(HardwareLack::Nics { has: 3, needs: 4, of: 0 })),
            (&[(MIN_NIC_SPEED, "25")], None),
            (&[(MIN_NIC_SPEED, "10"), (MIN_NICS, "2")], None),
            (&[(MIN_NIC_SPEED, "25"), (MIN_NICS, "2")], Some(HardwareLack::Nics { has: 1, needs: 2, of: 25 })),
        ];
        for (given, lack) in rows {
            let needs = Needs::new(&annotations(given), &BTreeMap::new()).expect("needs");
            assert_eq!(needs.lack(Some(&hardware)), *lack, "{given:?}");
            assert_eq!(needs.lack(None), (!given.is_empty()).then_some(HardwareLack::Unknown), "{given:?}");
        }
    }

    #[test]
    fn the_machine_counts_more_than_its_template() {
        let (machine, template) = (annotations(&[(MIN_CPUS, "2")]), annotations(&[(MIN_CPUS, "9"), (MIN_NICS, "1")]));
        let needs = Needs::new(&machine, &template).unwrap();
        assert_eq!((needs.cpus, needs.nics), (2, 1));
        for (key, value, said) in [(MIN_CPUS, "many", "a whole number"), (MIN_MEMORY, "64GB", "a size")] {
            let fault = Needs::new(&annotations(&[(key, value)]), &BTreeMap::new()).unwrap_err().to_string();
            assert!(fault.contains(key) && fault.contains(said), "{fault}");
        }
    }
}
