//! MAC addresses: how they are written and read.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ethernet hardware address. Written in lower case with colons; read with colons, hyphens or none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddress(pub [u8; 6]);

/// The text is not an Ethernet address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a MAC address: write six hex pairs as 52:54:00:12:34:56")]
pub struct MacAddressError(String);

impl MacAddress {
    /// Whether who made it up answers for nobody else having it, too (IEEE 802, the U/L bit): the network cards that BMCs show
    /// their machines by USB have the same one in every machine of a make.
    pub fn is_local(self) -> bool {
        self.0[0] & 2 != 0
    }

    /// Six pairs with hyphens, as iPXE's `${mac:hexhyp}` writes it.
    pub fn hyphenated(self) -> String {
        self.to_string().replace(':', "-")
    }
}

impl FromStr for MacAddress {
    type Err = MacAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || MacAddressError(text.chars().take(40).collect());
        let separator = match text.as_bytes().get(2) {
            Some(b':') => ":",
            Some(b'-') => "-",
            _ => "",
        };
        let expected = if separator.is_empty() { 12 } else { 17 };
        if text.len() != expected || !text.is_ascii() {
            return Err(fail());
        }
        let step = 2 + separator.len();
        let mut bytes = [0; 6];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let start = index * step;
            let digits = &text[start..start + 2];
            if !digits.bytes().all(|b| b.is_ascii_hexdigit())
                || (index > 0 && &text[start - separator.len()..start] != separator)
            {
                return Err(fail());
            }
            *byte = u8::from_str_radix(digits, 16).map_err(|_| fail())?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for MacAddress {
    type Error = MacAddressError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<MacAddress> for String {
    fn from(mac: MacAddress) -> Self {
        mac.to_string()
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_usual_spelling_and_refuses_the_rest() {
        let mac = MacAddress([0x52, 0x54, 0, 0x12, 0xab, 0xff]);
        for text in ["52:54:00:12:ab:ff", "52-54-00-12-AB-FF", "52540012abff"] {
            assert_eq!(text.parse(), Ok(mac), "{text}");
        }
        for text in [
            "",
            "52:54:00:12:ab",
            "52:54:00-12:ab:ff",
            "52:54:00:12:ab:fg",
            "+2:54:00:12:ab:ff",
            "5254:0012:abff",
            "é2:54:00:12:ab:f",
        ] {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
        assert_eq!(mac.hyphenated(), "52-54-00-12-ab-ff");
    }
}
