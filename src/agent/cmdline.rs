//! Parameters of the kernel command line.

use std::net::IpAddr;

use reqwest::Url;
use secrecy::SecretString;

use crate::api::MacAddress;
use crate::protocol::{CMDLINE_CA, CMDLINE_MAC, CMDLINE_SERVER, CMDLINE_TOKEN};

/// What this boot is for.
#[derive(Clone, Debug)]
pub struct BootParameters {
    /// `https://address:port` of the appliance; the host is an IP address, there is no resolver in the ramdisk.
    pub server: Url,
    /// SHA-256 of the DER of the appliance's CA certificate.
    pub ca: [u8; 32],
    /// Boot token, good for one session.
    pub token: SecretString,
    /// Interface that the firmware booted from, when it is known.
    pub mac: Option<MacAddress>,
}

/// The kernel command line cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BootError {
    /// A key is absent or empty.
    #[error("the kernel command line has no {0}=; this ramdisk must be started by the appliance's boot script")]
    Missing(&'static str),
    /// The server is not an https URL with an IP address.
    #[error("slipway.server={0:?} on the kernel command line must be https:// with an IP address")]
    Server(String),
    /// The pin is not a SHA-256.
    #[error("slipway.ca on the kernel command line must be 64 hex digits")]
    Ca,
}

impl BootParameters {
    /// Reads `/proc/cmdline`. Where a key stands more than once the last one holds. A MAC address that cannot
    /// be read (iPXE leaves the variable empty on some firmware) counts as unknown.
    ///
    /// # Errors
    /// [`BootError`] names the key that is missing or wrong.
    pub fn parse(cmdline: &str) -> Result<Self, BootError> {
        let value = |key: &'static str| {
            words(cmdline)
                .into_iter()
                .rev()
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
                .filter(|value| !value.is_empty())
        };
        let required = |key| value(key).ok_or(BootError::Missing(key));
        let token = required(CMDLINE_TOKEN)?;
        let server = required(CMDLINE_SERVER)?;
        let wrong = || BootError::Server(server.chars().take(100).collect());
        let url: Url = server.parse().map_err(|_| wrong())?;
        if url.scheme() != "https" || host_address(&url).is_none() {
            return Err(wrong());
        }
        let ca = parse_sha256(&required(CMDLINE_CA)?).ok_or(BootError::Ca)?;
        let mac = value(CMDLINE_MAC).and_then(|mac| mac.parse().ok());
        Ok(Self { server: url, ca, token: token.into(), mac })
    }

    /// Address of the appliance.
    pub fn address(&self) -> Option<IpAddr> {
        host_address(&self.server)
    }
}

fn host_address(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// 64 hex digits, in either case.
fn parse_sha256(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Words of a command line; double quotes keep spaces together, as in the kernel's own parser.
fn words(cmdline: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    for character in cmdline.chars() {
        match character {
            '"' => quoted = !quoted,
            character if character.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            character => word.push(character),
        }
    }
    words.push(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;

    const CA: &str = "00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00FF";

    #[test]
    fn reads_the_keys_in_any_order_and_the_last_one_holds() {
        let boot = BootParameters::parse(&format!(
            "console=ttyS0 \"dyndbg=file a b\" slipway.token=old slipway.mac=52:54:00:12:34:56 slipway.ca={CA} \
             slipway.server=https://172.22.0.1:8443 slipway.token=new-token quiet\n"
        ))
        .unwrap();
        assert_eq!(boot.token.expose_secret(), "new-token");
        assert_eq!(boot.address(), Some("172.22.0.1".parse().unwrap()));
        assert_eq!(boot.mac, Some("52:54:00:12:34:56".parse().unwrap()));
        assert_eq!((boot.ca[0], boot.ca[31]), (0, 255));
    }

    #[test]
    fn an_address_of_ip_version_six_and_no_mac_will_do() {
        let boot = BootParameters::parse(&format!(
            "slipway.token=t slipway.mac= slipway.ca={CA} slipway.server=https://[fd00::1]:8443"
        ))
        .unwrap();
        assert_eq!(boot.address(), Some("fd00::1".parse().unwrap()));
        assert_eq!(boot.mac, None);
    }

    #[test]
    fn each_fault_is_named() {
        let parse = |text: &str| BootParameters::parse(text).map(|_| ()).unwrap_err();
        assert_eq!(parse("quiet"), BootError::Missing(CMDLINE_TOKEN));
        assert_eq!(parse("slipway.token="), BootError::Missing(CMDLINE_TOKEN));
        assert_eq!(parse("slipway.token=t"), BootError::Missing(CMDLINE_SERVER));
        for server in ["http://172.22.0.1", "https://appliance:8443", "172.22.0.1:8443", "é"] {
            assert_eq!(parse(&format!("slipway.token=t slipway.server={server}")), BootError::Server(server.into()));
        }
        let server = "slipway.token=t slipway.server=https://172.22.0.1";
        assert_eq!(parse(server), BootError::Missing(CMDLINE_CA));
        for ca in ["00", &"é".repeat(32), &CA.replace("00", "0g")] {
            assert_eq!(parse(&format!("{server} slipway.ca={ca}")), BootError::Ca, "{ca}");
        }
    }
}
