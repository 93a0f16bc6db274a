//! `spec.bmc.address`: which protocol, which endpoint, and what the driver can do.
//!
//! The form is `scheme[+http|+https]://host[:port]/path[?query]`, as Metal3 publishes it. No scheme means IPMI.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::api::is_dns_label;

/// Longest address that is read.
const MAX_LEN: usize = 1024;

/// Port of IPMI over LAN (RMCP).
pub const IPMI_PORT: u16 = 623;

/// Why an address cannot be used. The text never repeats the address: it may hold a password put there by mistake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Nothing there.
    #[error("bmc.address is empty")]
    Empty,
    /// Too long to be an address.
    #[error("bmc.address is longer than {MAX_LEN} characters")]
    TooLong,
    /// White space or control characters.
    #[error("bmc.address contains white space or control characters")]
    Blank,
    /// A scheme that no driver has.
    #[error("unknown BMC scheme {scheme:?}: write one of {}", scheme_list())]
    UnknownScheme {
        /// What was written.
        scheme: String,
    },
    /// A scheme that earlier releases of Metal3 had.
    #[error("the BMC scheme {scheme:?} was removed: write {instead}")]
    RemovedScheme {
        /// What was written.
        scheme: String,
        /// What to write.
        instead: &'static str,
    },
    /// `+something` that is not a transport of this driver.
    #[error("the BMC scheme {scheme:?} does not take the transport {transport:?}")]
    Transport {
        /// The scheme.
        scheme: String,
        /// After the `+`.
        transport: String,
    },
    /// User name or password in the address.
    #[error(
        "bmc.address contains user information: put user and password into the Secret that bmc.credentialsName names"
    )]
    UserInfo,
    /// No host.
    #[error("bmc.address names no host")]
    NoHost,
    /// Neither an IP address nor a DNS name.
    #[error("{host:?} is neither an IP address nor a DNS name (lower-case letters, digits, `-` and `.`)")]
    Host {
        /// What was written.
        host: String,
    },
    /// IPv6 without brackets.
    #[error("an IPv6 address needs brackets: [{host}]")]
    Brackets {
        /// What was written.
        host: String,
    },
    /// Not 1 to 65535.
    #[error("{port:?} is not a port (1 to 65535)")]
    Port {
        /// What was written.
        port: String,
    },
    /// A path where none belongs, or one that is not a path.
    #[error("{0}")]
    Path(&'static str),
    /// Not an IPMI privilege level.
    #[error("privilegelevel is {0:?}: write USER, OPERATOR or ADMINISTRATOR")]
    Privilege(String),
}

fn scheme_list() -> String {
    let mut all: Vec<&str> = SCHEMES.iter().map(|(name, _)| *name).collect();
    all.sort_unstable();
    all.join(", ")
}

/// How a machine is driven; the scheme of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Driver {
    /// IPMI 2.0.
    Ipmi,
    /// IPMI 2.0 of a virtual machine.
    Libvirt,
    /// Redfish, network boot.
    Redfish,
    /// Redfish on HPE iLO 5, network boot.
    Ilo5Redfish,
    /// Redfish on Dell iDRAC, network boot.
    IdracRedfish,
    /// Redfish, virtual media.
    RedfishVirtualMedia,
    /// Redfish on HPE iLO 5, virtual media.
    Ilo5VirtualMedia,
    /// Redfish on Dell iDRAC, virtual media.
    IdracVirtualMedia,
    /// Redfish, UEFI HTTP boot by URL.
    RedfishUefiHttp,
}

const SCHEMES: [(&str, Driver); 9] = [
    ("ipmi", Driver::Ipmi),
    ("libvirt", Driver::Libvirt),
    ("redfish", Driver::Redfish),
    ("ilo5-redfish", Driver::Ilo5Redfish),
    ("idrac-redfish", Driver::IdracRedfish),
    ("redfish-virtualmedia", Driver::RedfishVirtualMedia),
    ("ilo5-virtualmedia", Driver::Ilo5VirtualMedia),
    ("idrac-virtualmedia", Driver::IdracVirtualMedia),
    ("redfish-uefihttp", Driver::RedfishUefiHttp),
];

/// Schemes that Metal3 once had, with what serves the same machines now.
const REMOVED: [(&str, &str); 6] = [
    ("ilo4", "ipmi:// (iLO 4 speaks IPMI; switch on \"IPMI/DCMI over LAN\")"),
    ("ilo4-virtualmedia", "ipmi:// (iLO 4 speaks IPMI; it boots from the network then)"),
    ("ilo5", "ilo5-redfish://"),
    ("irmc", "redfish:// or ipmi://"),
    ("ibmc", "redfish://"),
    ("idrac", "idrac-redfish://"),
];

/// How the deploy ramdisk reaches the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootInterface {
    /// DHCP and iPXE.
    #[default]
    Pxe,
    /// A virtual CD.
    VirtualMedia,
    /// A URL that the firmware loads.
    UefiHttp,
}

/// What a driver can do of what Slipway uses; admission rules read this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// `bootMACAddress` is mandatory.
    pub needs_mac: bool,
    /// How the ramdisk boots.
    pub boot: BootInterface,
    /// Inspection through the BMC alone.
    pub fast_inspection: bool,
}

impl Driver {
    /// The scheme as written in an address.
    pub fn scheme(self) -> &'static str {
        SCHEMES.iter().find(|(_, d)| *d == self).map_or("ipmi", |(name, _)| name)
    }

    /// Whether it is Redfish; otherwise IPMI.
    pub fn is_redfish(self) -> bool {
        !matches!(self, Self::Ipmi | Self::Libvirt)
    }

    /// What it can do.
    pub fn capabilities(self) -> Capabilities {
        let redfish = self.is_redfish();
        let boot = match self {
            Self::RedfishVirtualMedia | Self::Ilo5VirtualMedia | Self::IdracVirtualMedia => BootInterface::VirtualMedia,
            Self::RedfishUefiHttp => BootInterface::UefiHttp,
            _ => BootInterface::Pxe,
        };
        Capabilities { needs_mac: self == Self::Libvirt, boot, fast_inspection: redfish }
    }
}

/// Host of a BMC.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BmcHost {
    /// An IP address.
    Ip(IpAddr),
    /// A DNS name, lower case.
    Name(String),
}

impl fmt::Display for BmcHost {
    /// As in a URL: IPv6 in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            Self::Ip(IpAddr::V4(ip)) => write!(f, "{ip}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Privilege level of an IPMI session (IPMI 2.0, table 13-15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Privilege {
    /// May read.
    User = 2,
    /// May change power and boot flags.
    Operator = 3,
    /// May do everything.
    Administrator = 4,
}

/// What the protocol needs besides host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BmcEndpoint {
    /// IPMI over UDP.
    Ipmi {
        /// Privilege level of the session.
        privilege: Privilege,
    },
    /// Redfish over HTTP.
    Redfish {
        /// HTTPS.
        tls: bool,
        /// Path of the system, without a slash at the end; none means the BMC's only system.
        system: Option<String>,
    },
}

/// A checked `spec.bmc.address`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BmcAddress {
    /// The scheme's driver.
    pub driver: Driver,
    /// Host.
    pub host: BmcHost,
    /// Port, with the protocol's default filled in.
    pub port: u16,
    /// The rest.
    pub endpoint: BmcEndpoint,
}

impl BmcAddress {
    /// Reads an address. Query keys that are not known are ignored, as Metal3 does.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        if text.len() > MAX_LEN {
            return Err(AddressError::TooLong);
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(AddressError::Blank);
        }
        let (scheme, rest) = split_scheme(text);
        let scheme = scheme.to_ascii_lowercase();
        let (name, transport) = match scheme.split_once('+') {
            Some((name, transport)) => (name, Some(transport)),
            None => (scheme.as_str(), None),
        };
        if let Some((_, instead)) = REMOVED.iter().find(|(removed, _)| *removed == name) {
            return Err(AddressError::RemovedScheme { scheme: name.into(), instead });
        }
        let Some((_, driver)) = SCHEMES.iter().find(|(known, _)| *known == name) else {
            return Err(AddressError::UnknownScheme { scheme: shorten(name) });
        };
        let tls = match (driver.is_redfish(), transport) {
            (true, None | Some("https")) | (false, None) => true,
            (true, Some("http")) => false,
            (_, Some(other)) => {
                return Err(AddressError::Transport { scheme: name.into(), transport: shorten(other) });
            }
        };

        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if authority.contains('@') {
            return Err(AddressError::UserInfo);
        }
        let (host, port) = split_authority(authority)?;
        if driver.is_redfish() {
            let default = if tls { 443 } else { 80 };
            let endpoint = BmcEndpoint::Redfish { tls, system: system_path(path)? };
            Ok(Self { driver: *driver, host, port: port.unwrap_or(default), endpoint })
        } else {
            if !matches!(path, "" | "/") {
                return Err(AddressError::Path("an IPMI address has no path"));
            }
            let endpoint = BmcEndpoint::Ipmi { privilege: privilege(query)? };
            Ok(Self { driver: *driver, host, port: port.unwrap_or(IPMI_PORT), endpoint })
        }
    }

    /// `host:port`, as errors and logs name the BMC.
    pub fn peer(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// What the driver can do.
    pub fn capabilities(&self) -> Capabilities {
        self.driver.capabilities()
    }

    /// `https://host[:port]` of a Redfish service; none for IPMI.
    pub fn base_url(&self) -> Option<String> {
        match self.endpoint {
            BmcEndpoint::Redfish { tls: true, .. } if self.port == 443 => Some(format!("https://{}", self.host)),
            BmcEndpoint::Redfish { tls: true, .. } => Some(format!("https://{}:{}", self.host, self.port)),
            BmcEndpoint::Redfish { tls: false, .. } if self.port == 80 => Some(format!("http://{}", self.host)),
            BmcEndpoint::Redfish { tls: false, .. } => Some(format!("http://{}:{}", self.host, self.port)),
            BmcEndpoint::Ipmi { .. } => None,
        }
    }
}

/// `scheme://rest`, `scheme:rest` when it is a known scheme, else IPMI.
fn split_scheme(text: &str) -> (&str, &str) {
    if let Some((scheme, rest)) = text.split_once("://") {
        return (scheme, rest);
    }
    // `ipmi:host:port` is a scheme; `host:623` is not.
    if let Some((first, rest)) = text.split_once(':') {
        let name = first.split('+').next().unwrap_or(first);
        let known = |list: &str| list.eq_ignore_ascii_case(name);
        let is_scheme = SCHEMES.iter().any(|(s, _)| known(s)) || REMOVED.iter().any(|(s, _)| known(s));
        if is_scheme && !(rest.chars().all(|c| c.is_ascii_digit()) && rest.len() <= 5) {
            return (first, rest);
        }
    }
    ("ipmi", text)
}

fn split_authority(authority: &str) -> Result<(BmcHost, Option<u16>), AddressError> {
    if authority.is_empty() {
        return Err(AddressError::NoHost);
    }
    if let Some(inner) = authority.strip_prefix('[') {
        let bad = || AddressError::Host { host: shorten(authority) };
        let (ip, after) = inner.split_once(']').ok_or_else(bad)?;
        let ip: Ipv6Addr = ip.parse().map_err(|_| bad())?;
        let port = match after {
            "" => None,
            _ => Some(parse_port(after.strip_prefix(':').ok_or_else(bad)?)?),
        };
        return Ok((BmcHost::Ip(IpAddr::V6(ip).to_canonical()), port));
    }
    if authority.parse::<Ipv6Addr>().is_ok() {
        return Err(AddressError::Brackets { host: authority.into() });
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(parse_port(port)?)),
        None => (authority, None),
    };
    if host.is_empty() {
        return Err(AddressError::NoHost);
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok((BmcHost::Ip(ip), port));
    }
    let name = host.to_ascii_lowercase();
    if is_number(name.rsplit('.').next().unwrap_or_default()) || !is_dns_name(&name) {
        return Err(AddressError::Host { host: shorten(host) });
    }
    Ok((BmcHost::Name(name), port))
}

/// No name ends so (RFC 1123 section 2.1), and resolvers take it for an IPv4 address in another form: 0x0a090101, 10.2305.
fn is_number(label: &str) -> bool {
    let digits = label.strip_prefix("0x").unwrap_or(label);
    let hexadecimal = digits.len() < label.len() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    hexadecimal || !label.is_empty() && label.bytes().all(|b| b.is_ascii_digit())
}

/// RFC 1123 host name: labels of 1 to 63 letters, digits and `-`, at most 253 in all.
fn is_dns_name(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_dns_label)
}

fn parse_port(text: &str) -> Result<u16, AddressError> {
    let port = if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None };
    port.filter(|p| *p != 0).ok_or_else(|| AddressError::Port { port: shorten(text) })
}

fn system_path(path: &str) -> Result<Option<String>, AddressError> {
    let path = decoded(path);
    let path = path.trim_end_matches('/');
    if matches!(path, "" | "/redfish" | "/redfish/v1") {
        return Ok(None);
    }
    if path.split('/').any(|part| matches!(part, "." | "..")) || path.contains("//") {
        return Err(AddressError::Path("the path of a Redfish address is not that of a system"));
    }
    if !path.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`')) {
        return Err(AddressError::Path("the path of a Redfish address holds characters that a URL cannot have"));
    }
    Ok(Some(path.into()))
}

/// The path with `%31` and the like written out, where that changes nothing (RFC 3986 section 6.2.2.2): one path is one
/// text, so that a system is known by it.
fn decoded(path: &str) -> String {
    let mut parts = path.split('%');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..2).filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        match byte.filter(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(byte)) {
            Some(byte) => {
                out.push(char::from(byte));
                out.push_str(&part[2..]);
            }
            None => {
                out.push('%');
                out.push_str(part);
            }
        }
    }
    out
}

fn privilege(query: &str) -> Result<Privilege, AddressError> {
    let value = query.split('&').find_map(|pair| match pair.split_once('=') {
        Some((key, value)) if key.eq_ignore_ascii_case("privilegelevel") => Some(value),
        _ => None,
    });
    match value.map(str::to_ascii_uppercase).as_deref() {
        None | Some("" | "ADMINISTRATOR" | "ADMIN") => Ok(Privilege::Administrator),
        Some("OPERATOR") => Ok(Privilege::Operator),
        Some("USER") => Ok(Privilege::User),
        Some(other) => Err(AddressError::Privilege(shorten(other))),
    }
}

/// Enough of a wrong word to find it again.
fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}
