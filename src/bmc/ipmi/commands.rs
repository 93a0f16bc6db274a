//! The commands that are used: request bytes and checked answers (chapters 20, 22 and 28).

use std::fmt;

use crate::bmc::{BootDevice, FirmwareMode, PowerState};

/// Network function of chassis commands.
pub const CHASSIS: u8 = 0x00;
/// Network function of application commands.
pub const APP: u8 = 0x06;

/// Command numbers.
pub mod cmd {
    /// Get Device ID (application).
    pub const GET_DEVICE_ID: u8 = 0x01;
    /// Get Channel Authentication Capabilities (application).
    pub const GET_AUTH_CAPABILITIES: u8 = 0x38;
    /// Set Session Privilege Level (application).
    pub const SET_PRIVILEGE: u8 = 0x3b;
    /// Close Session (application).
    pub const CLOSE_SESSION: u8 = 0x3c;
    /// Get Channel Cipher Suites (application).
    pub const GET_CIPHER_SUITES: u8 = 0x54;
    /// Get Chassis Status (chassis).
    pub const CHASSIS_STATUS: u8 = 0x01;
    /// Chassis Control (chassis).
    pub const CHASSIS_CONTROL: u8 = 0x02;
    /// Set System Boot Options (chassis).
    pub const SET_BOOT_OPTIONS: u8 = 0x08;
    /// Get System Boot Options (chassis).
    pub const GET_BOOT_OPTIONS: u8 = 0x09;
}

/// Channel "the one this comes in on".
pub const THIS_CHANNEL: u8 = 0x0e;

/// Chassis Control (table 28-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Control {
    /// Off at once.
    Off = 0,
    /// On.
    On = 1,
    /// Off, then on.
    Cycle = 2,
    /// Hard reset.
    Reset = 3,
    /// Soft shutdown through ACPI.
    Soft = 5,
}

/// The answer is shorter than the command's table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} with too few bytes")]
pub struct TooShort(pub &'static str);

/// Text of a completion code (table 5-2, and those of boot options).
pub fn completion_text(code: u8) -> String {
    let text = match code {
        0x80 => "parameter not supported",
        0x81 => "in use, or privilege level not available for this user",
        0x82 => "parameter is read-only, or level exceeds the user's limit",
        0xc0 => "busy",
        0xc1 => "invalid command",
        0xc2 => "command invalid for this LUN",
        0xc3 => "timeout",
        0xc4 => "out of space",
        0xc5 => "reservation cancelled",
        0xc6 => "request data truncated",
        0xc7 => "wrong request length",
        0xc8 => "request too long",
        0xc9 => "parameter out of range",
        0xca => "cannot return that many bytes",
        0xcb => "not present",
        0xcc => "invalid data field",
        0xcd => "command illegal for this sensor or record",
        0xce => "response could not be provided",
        0xcf => "duplicated request",
        0xd0..=0xd2 => "controller is updating or starting",
        0xd3 => "destination unavailable",
        0xd4 => "insufficient privilege level",
        0xd5 => "not possible in the present state",
        0xd6 => "disabled",
        0xff => "unspecified error",
        _ => "unknown",
    };
    format!("completion code {code:02x}h, {text}")
}

/// Get Channel Authentication Capabilities (section 22.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthCapabilities {
    /// RMCP+ sessions are possible.
    pub ipmi_2: bool,
    /// A key K_G is set.
    pub kg_set: bool,
}

impl AuthCapabilities {
    /// Reads the data after the completion code.
    pub fn parse(data: &[u8]) -> Result<Self, TooShort> {
        let &[_, support, status, extended, ..] = data else {
            return Err(TooShort("Get Channel Authentication Capabilities"));
        };
        Ok(Self { ipmi_2: support & 0x80 != 0 && extended & 0x02 != 0, kg_set: status & 0x20 != 0 })
    }
}

/// Numbers of the cipher suites in the records of Get Channel Cipher Suites (section 22.15.2). Garbage ends the list.
pub fn cipher_suites(records: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = records;
    loop {
        rest = match rest {
            [0xc0, id, tail @ ..] => {
                out.push(*id);
                tail
            }
            // OEM suites; their numbers are the vendor's own.
            [0xc1, _, _, _, _, tail @ ..] => tail,
            _ => return out,
        };
        // The algorithms of the suite.
        while let [0x00..=0xbf, tail @ ..] = rest {
            rest = tail;
        }
    }
}

/// Get Device ID (section 20.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId {
    /// IANA enterprise number, 20 bits.
    pub manufacturer_id: u32,
    /// Product.
    pub product_id: u16,
    /// Firmware revision, major.
    pub firmware_major: u8,
    /// Firmware revision, minor, as two BCD digits.
    pub firmware_minor: u8,
}

impl DeviceId {
    /// Reads the data after the completion code.
    pub fn parse(data: &[u8]) -> Result<Self, TooShort> {
        let &[_, _, major, minor, _, _, m0, m1, m2, p0, p1, ..] = data else { return Err(TooShort("Get Device ID")) };
        Ok(Self {
            manufacturer_id: u32::from_le_bytes([m0, m1, m2 & 0x0f, 0]),
            product_id: u16::from_le_bytes([p0, p1]),
            firmware_major: major & 0x7f,
            firmware_minor: minor,
        })
    }
}

/// Power from Get Chassis Status (section 28.2).
pub fn power(data: &[u8]) -> Result<PowerState, TooShort> {
    let &[state, _, _, ..] = data else { return Err(TooShort("Get Chassis Status")) };
    Ok(if state & 1 != 0 { PowerState::On } else { PowerState::Off })
}

/// Boot flags, boot option parameter 5 (table 28-14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootFlags {
    /// The flags are in force.
    pub valid: bool,
    /// For all boots, not only the next.
    pub persistent: bool,
    /// For UEFI.
    pub uefi: bool,
    /// Byte 2 without its first and last two bits: the device selector, shifted as it is sent.
    pub selector: u8,
}

/// Device selector of the network.
pub const SELECT_PXE: u8 = 0x04;
/// Device selector of the CD drive, 0101b.
pub const SELECT_CD: u8 = 0x14;
/// Device selector of the first disk.
pub const SELECT_DISK: u8 = 0x08;

impl BootFlags {
    /// Once, from this device.
    pub fn once(device: BootDevice, mode: FirmwareMode, uefi_disk: Option<u8>) -> Self {
        let uefi = mode == FirmwareMode::Uefi;
        let selector = match device {
            BootDevice::Pxe => SELECT_PXE,
            BootDevice::Cd => SELECT_CD,
            BootDevice::Disk if uefi => uefi_disk.unwrap_or(SELECT_DISK),
            // The controller refuses a URL before it comes to this.
            BootDevice::Disk | BootDevice::UefiHttp => SELECT_DISK,
        };
        Self { valid: true, persistent: false, uefi, selector: selector & 0x3c }
    }

    /// Data of Set System Boot Options.
    pub fn encode(self) -> [u8; 6] {
        let first = u8::from(self.valid) << 7 | u8::from(self.persistent) << 6 | u8::from(self.uefi) << 5;
        [5, first, self.selector, 0, 0, 0]
    }

    /// Reads the data after the completion code of Get System Boot Options.
    pub fn parse(data: &[u8]) -> Result<Self, TooShort> {
        let &[_, _, first, second, ..] = data else { return Err(TooShort("Get System Boot Options")) };
        Ok(Self {
            valid: first & 0x80 != 0,
            persistent: first & 0x40 != 0,
            uefi: first & 0x20 != 0,
            selector: second & 0x3c,
        })
    }
}

impl fmt::Display for BootFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.selector {
            0 => f.write_str("no boot device")?,
            SELECT_PXE => f.write_str("network")?,
            SELECT_DISK => f.write_str("disk")?,
            SELECT_CD => f.write_str("CD")?,
            other => write!(f, "boot device selector {other:#04x}")?,
        }
        let mode = if self.uefi { "UEFI" } else { "BIOS" };
        let often = if self.persistent { "always" } else { "once" };
        write!(f, ", {mode}, {often}")?;
        if self.valid { Ok(()) } else { f.write_str(", not valid") }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn boot_flags_are_those_of_the_specification() {
        use {BootDevice::*, FirmwareMode::*};
        for (device, mode, quirk, want) in [
            (Pxe, Bios, None, [5, 0x80, 0x04, 0, 0, 0]),
            (Pxe, Uefi, Some(0x24), [5, 0xa0, 0x04, 0, 0, 0]),
            (Disk, Bios, Some(0x24), [5, 0x80, 0x08, 0, 0, 0]),
            (Disk, Uefi, None, [5, 0xa0, 0x08, 0, 0, 0]),
            (Disk, Uefi, Some(0x24), [5, 0xa0, 0x24, 0, 0, 0]),
        ] {
            let flags = BootFlags::once(device, mode, quirk);
            assert_eq!(flags.encode(), want);
            let mut answer = vec![1];
            answer.extend(want);
            assert_eq!(BootFlags::parse(&answer), Ok(flags));
        }
        let old = BootFlags::parse(&[1, 5, 0x40, 0x04, 0, 0, 0]).unwrap();
        assert_eq!(old.to_string(), "network, BIOS, always, not valid");
    }

    #[test]
    fn records_of_cipher_suites() {
        // Suites 3 and 17 with an OEM suite between them.
        let records = [0xc0, 3, 1, 0x41, 0x81, 0xc1, 9, 1, 2, 3, 0x40, 0xc0, 17, 3, 0x44, 0x81];
        assert_eq!(cipher_suites(&records), [3, 17]);
        assert_eq!(cipher_suites(&[]), Vec::<u8>::new());
        assert_eq!(cipher_suites(&[0xc0]), Vec::<u8>::new());
        assert_eq!(cipher_suites(&[0xc0, 3, 1, 0xff, 0xc0, 17]), [3]);
    }

    #[test]
    fn device_id_of_ipmi_sim() {
        let data = [0, 3, 9, 8, 2, 0x9f, 0x91, 0x12, 0, 0x02, 0x0f, 0, 0, 0, 0];
        let want = DeviceId { manufacturer_id: 4753, product_id: 3842, firmware_major: 9, firmware_minor: 8 };
        assert_eq!(DeviceId::parse(&data), Ok(want));
    }

    proptest! {
        #[test]
        fn no_answer_panics(data in proptest::collection::vec(any::<u8>(), 0..64)) {
            cipher_suites(&data);
            prop_assert_eq!(power(&data).is_ok(), data.len() >= 3);
            prop_assert_eq!(DeviceId::parse(&data).is_ok(), data.len() >= 11);
            prop_assert_eq!(BootFlags::parse(&data).is_ok(), data.len() >= 4);
            prop_assert_eq!(AuthCapabilities::parse(&data).is_ok(), data.len() >= 4);
        }
    }
}
