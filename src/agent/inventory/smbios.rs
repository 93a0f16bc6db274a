//! SMBIOS (DMTF DSP0134): maker, firmware and memory of the machine, from the table that the kernel exports.

use std::net::Ipv4Addr;
use std::path::Path;

use crate::api::metal3::{HardwareBios, HardwareSystemVendor};

/// Largest table read, in bytes.
const MAX_TABLE: usize = 1 << 20;

/// What the table says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Smbios {
    /// Type 0.
    pub bios: HardwareBios,
    /// Type 1.
    pub system: HardwareSystemVendor,
    /// Sum of the memory devices (type 17) in MiB; 0 when there are none.
    pub memory_mebibytes: i64,
    /// Whether there is a BMC with IPMI (type 38).
    pub ipmi: bool,
    /// Whether the BMC says of itself that it speaks Redfish (type 42), with its address as it gives it.
    pub redfish: Option<Option<Ipv4Addr>>,
}

impl Smbios {
    /// Reads `sys/firmware/dmi/tables/DMI`. What a machine does not have stays empty.
    pub fn read(root: &Path) -> Self {
        match std::fs::read(root.join("sys/firmware/dmi/tables/DMI")) {
            Ok(table) => Self::parse(&table[..table.len().min(MAX_TABLE)]),
            Err(error) => {
                tracing::debug!(%error, "there is no SMBIOS table");
                Self::default()
            }
        }
    }

    /// Reads a structure table (section 6). A table that is cut off counts up to there.
    pub fn parse(table: &[u8]) -> Self {
        let mut found = Self::default();
        let mut rest = table;
        while let Some((structure, after)) = Structure::split(rest) {
            match structure.kind {
                0 => {
                    found.bios = HardwareBios {
                        vendor: structure.string(0x04),
                        version: structure.string(0x05),
                        date: structure.string(0x08),
                    };
                }
                1 => {
                    found.system = HardwareSystemVendor {
                        manufacturer: structure.string(0x04),
                        product_name: structure.string(0x05),
                        serial_number: structure.string(0x07),
                    };
                }
                17 => found.memory_mebibytes += structure.memory_kibibytes() / 1024,
                38 => found.ipmi = true,
                42 => found.redfish = structure.redfish_service().or(found.redfish),
                127 => break,
                _ => {}
            }
            rest = after;
        }
        found
    }
}

struct Structure<'a> {
    kind: u8,
    formatted: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Structure<'a> {
    /// The first structure of a table, and what comes after it.
    fn split(table: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let length = usize::from(*table.get(1)?);
        if length < 4 {
            return None;
        }
        let formatted = table.get(..length)?;
        let tail = &table[length..];
        // The strings end with two zero bytes, also when there are none.
        let end = tail.windows(2).position(|pair| pair == [0, 0])?;
        Some((Self { kind: formatted[0], formatted, strings: &tail[..end] }, &tail[end + 2..]))
    }

    /// The string that the byte at `offset` numbers; empty when there is none. Space around it is taken off.
    fn string(&self, offset: usize) -> String {
        let number = self.formatted.get(offset).copied().map_or(0, usize::from);
        let Some(index) = number.checked_sub(1) else { return String::new() };
        let bytes = self.strings.split(|byte| *byte == 0).nth(index).unwrap_or_default();
        String::from_utf8_lossy(bytes)
            .chars()
            .filter(|character| !character.is_control())
            .collect::<String>()
            .trim()
            .into()
    }

    fn word(&self, offset: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.formatted.get(offset..offset + 2)?.try_into().ok()?))
    }

    /// The Redfish service of a management controller host interface (section 7.43, DSP0270 section 8): whether it has
    /// one, and where.
    fn redfish_service(&self) -> Option<Option<Ipv4Addr>> {
        const REDFISH_OVER_IP: u8 = 4;
        // In the protocol's data: UUID, host's address (type, format, address, mask), then the service's.
        const FORMAT: usize = 16 + 2 + 32 + 1;
        const IPV4: u8 = 1;
        let specific = usize::from(*self.formatted.get(5)?);
        let mut rest = self.formatted.get(7 + specific..)?;
        while let [kind, length, tail @ ..] = rest {
            let data = tail.get(..usize::from(*length))?;
            if *kind == REDFISH_OVER_IP {
                let address = data.get(FORMAT + 1..FORMAT + 5).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
                let known = data.get(FORMAT) == Some(&IPV4);
                return Some(address.filter(|_| known).map(Ipv4Addr::from));
            }
            rest = &tail[data.len()..];
        }
        None
    }

    /// Size of a memory device (section 7.18) in KiB; empty sockets and unknown sizes count as 0.
    fn memory_kibibytes(&self) -> i64 {
        match self.word(0x0c) {
            None | Some(0 | 0xffff) => 0,
            // The size is in the extended field, in MiB.
            Some(0x7fff) => {
                let extended = self.formatted.get(0x1c..0x20).and_then(|bytes| bytes.try_into().ok());
                i64::from(u32::from_le_bytes(extended.unwrap_or_default()) & 0x7fff_ffff) * 1024
            }
            Some(size) if size & 0x8000 != 0 => i64::from(size & 0x7fff),
            Some(size) => i64::from(size) * 1024,
        }
    }
}

/// Physical memory in MiB: the sum of the memory devices, or what the kernel has, rounded up to the next 64 MiB to
/// make good for what the kernel and the firmware keep to themselves.
pub fn memory(smbios: &Smbios, meminfo: &str) -> i64 {
    if smbios.memory_mebibytes > 0 {
        return smbios.memory_mebibytes;
    }
    let kibibytes = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_ascii_whitespace().next()?.parse::<i64>().ok())
        .unwrap_or(0);
    (kibibytes / 1024).checked_add(63).map_or(0, |mebibytes| mebibytes / 64 * 64)
}

/// The machine's UUID, as firmware and iPXE write it; empty when unknown.
pub fn uuid(root: &Path) -> String {
    std::fs::read_to_string(root.join("sys/class/dmi/id/product_uuid"))
        .map(|text| text.trim().to_ascii_lowercase())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn structure(kind: u8, fields: &[u8], strings: &[&str]) -> Vec<u8> {
        let mut bytes = vec![kind, 4 + fields.len() as u8, 0, 0];
        bytes.extend_from_slice(fields);
        for string in strings {
            bytes.extend_from_slice(string.as_bytes());
            bytes.push(0);
        }
        bytes.push(0);
        if strings.is_empty() {
            bytes.push(0);
        }
        bytes
    }

    fn memory_device(size: u16, extended: u32) -> Vec<u8> {
        let mut fields = [0; 0x24];
        fields[8..10].copy_from_slice(&size.to_le_bytes());
        fields[24..28].copy_from_slice(&extended.to_le_bytes());
        structure(17, &fields, &["DIMM A1"])
    }

    fn table() -> Vec<u8> {
        [
            structure(0, &[1, 2, 0, 0xe8, 3, 0xff], &["Dell Inc.", "2.19.1", "06/14/2023"]),
            structure(1, &[1, 2, 3, 4], &["Dell Inc.", "PowerEdge R640 ", "Not Specified", "7XKQ2M3"]),
            structure(4, &[], &[]),
            memory_device(16384, 0),
            memory_device(0x7fff, 65536),
            memory_device(0x8000 | 512, 0),
            memory_device(0, 0),
            memory_device(0xffff, 0),
            structure(127, &[], &[]),
            structure(1, &[1, 1, 1, 1], &["after the end"]),
        ]
        .concat()
    }

    #[test]
    fn reads_maker_firmware_and_memory() {
        let smbios = Smbios::parse(&table());
        assert_eq!(smbios.bios.vendor, "Dell Inc.");
        assert_eq!(smbios.bios.version, "2.19.1");
        assert_eq!(smbios.bios.date, "06/14/2023");
        assert_eq!(smbios.system.product_name, "PowerEdge R640");
        assert_eq!(smbios.system.serial_number, "7XKQ2M3");
        assert_eq!(smbios.memory_mebibytes, 16384 + 65536);
    }

    #[test]
    fn a_bmc_says_what_it_speaks() {
        assert!(Smbios::parse(&structure(38, &[1; 14], &[])).ipmi);
        let interface = |records: &[u8]| {
            let specific = [2, 0xaa, 0xbb];
            Smbios::parse(&structure(42, &[&[0x40][..], &specific, &[1], records].concat(), &[])).redfish
        };
        let record = |format: u8, address: [u8; 4]| {
            let mut data = vec![0; 91];
            data[51] = format;
            data[52..56].copy_from_slice(&address);
            [&[4, 91][..], &data].concat()
        };
        assert_eq!(interface(&record(1, [10, 0, 0, 9])), Some(Some(Ipv4Addr::new(10, 0, 0, 9))));
        assert_eq!(interface(&record(2, [10, 0, 0, 9])), Some(None), "IP version 6");
        assert_eq!(interface(&[4, 0]), Some(None));
        assert_eq!(interface(&[2, 1, 7, 4, 0]), Some(None), "behind another protocol");
        for none in [&[][..], &[2, 1, 7], &[4, 9, 1]] {
            assert_eq!(interface(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_table_cut_at_any_byte_counts_up_to_there() {
        let whole = table();
        for length in 0..whole.len() {
            let smbios = Smbios::parse(&whole[..length]);
            assert!(["", "Dell Inc."].contains(&smbios.system.manufacturer.as_str()));
        }
        assert_eq!(Smbios::parse(&[1, 2, 0, 0, 0, 0]), Smbios::default(), "a length that cannot be");
        assert_eq!(Smbios::parse(&structure(1, &[9, 0, 0, 7], &["one"])), Smbios::default(), "no such strings");
    }

    #[test]
    fn without_a_table_memory_is_what_the_kernel_has_rounded_up() {
        let none = Smbios::default();
        assert_eq!(memory(&none, "MemFree: 1 kB\nMemTotal:         472384 kB\n"), 512);
        assert_eq!(memory(&none, "MemTotal: many kB"), 0);
        assert_eq!(memory(&none, &format!("MemTotal: {} kB", i64::MAX)), i64::MAX / 1024 / 64 * 64 + 64);
        assert_eq!(memory(&Smbios { memory_mebibytes: 4096, ..none }, "MemTotal: 1 kB"), 4096);
    }

    proptest::proptest! {
        #[test]
        fn no_table_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            Smbios::parse(&bytes);
        }
    }
}
