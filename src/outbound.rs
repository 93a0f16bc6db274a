//! Outbound policy: where the appliance may connect to when somebody else chose the address, as an image's URL or a BMC's.
//!
//! The appliance stands where its users do not: on its own loopback, beside the metadata service of its cloud, with an
//! address that its own boot scripts trust. So an address is judged after its name was resolved, where the connection is
//! made, and what is special to this box is refused unless the configuration names it. Other networks are the
//! firewall's affair.
//!
//! [`judge`] decides. [`Guard`] asks it with the addresses that this box has now. A [`client`] asks the guard for each name; what
//! it resolves not at all, a literal address, is for [`Guard::url`], of the first URL and of every redirect. A client is for one
//! port: a redirect to another needs one of its own.

pub mod client;
mod names;
mod route;

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ipnetwork::IpNetwork;
use reqwest::Url;
use serde::Deserialize;

use crate::live::Live;

pub use names::{for_namespace, lookup};

/// One entry of a list in the configuration: `172.22.0.1`, `127.0.0.1:8000`, `[::1]:8000`, `10.0.0.0/8`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Allowed {
    network: IpNetwork,
    /// None: every port.
    port: Option<u16>,
}

impl Allowed {
    fn covers(&self, address: IpAddr, port: u16) -> bool {
        self.network.contains(address) && self.port.is_none_or(|only| only == port)
    }

    /// Whether it is one address, and no network.
    fn is_single(&self) -> bool {
        let bits = if self.network.is_ipv4() { 32 } else { 128 };
        self.network.prefix() == bits
    }
}

impl FromStr for Allowed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self { network: address.ip().to_canonical().into(), port: Some(address.port()) });
        }
        let plain = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let network = match plain.parse::<IpAddr>() {
            Ok(address) => address.to_canonical().into(),
            Err(_) => plain.parse::<IpNetwork>().map_err(|_| {
                format!("{text:?} is no address: write 172.22.0.1, 127.0.0.1:8000, [::1]:8000 or 10.0.0.0/8")
            })?,
        };
        Ok(Self { network, port: None })
    }
}

impl TryFrom<String> for Allowed {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// Why an address is special to this box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// 0.0.0.0/8 and `::`, which lead to this box.
    Unspecified,
    /// 127.0.0.0/8 and `::1`.
    Loopback,
    /// 169.254.0.0/16 and fe80::/10; clouds have their metadata services there.
    LinkLocal,
    /// 224.0.0.0/4 and ff00::/8.
    Multicast,
    /// 240.0.0.0/4, with the broadcast address.
    Broadcast,
    /// Where clouds serve what they know of the box, beside link-local addresses: fd00:ec2::/32 (AWS), fd20:ce::254
    /// (Google), 100.100.100.200 (Alibaba), 168.63.129.16 (Azure), 192.0.0.192 (Oracle).
    Metadata,
    /// 64:ff9b:1::/48, which a site's own translator leads to IPv4 (RFC 8215).
    Translated,
    /// An address of one of the appliance's own interfaces, or another one that its kernel delivers to the box itself.
    Own,
    /// The kernel does not tell which addresses are the appliance's own.
    Unknown,
    /// Any other, where only what the list names is connected to.
    Unlisted,
}

impl fmt::Display for Special {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "an unspecified address",
            Self::Loopback => "a loopback address",
            Self::LinkLocal => "a link-local address",
            Self::Multicast => "a multicast address",
            Self::Broadcast => "a broadcast or reserved address",
            Self::Metadata => "an address of a cloud's metadata service",
            Self::Translated => "an address that a translator leads to an IPv4 address",
            Self::Own => "an address of the appliance itself",
            Self::Unknown => "possibly an address of the appliance itself (its own cannot be read)",
            Self::Unlisted => "an address that is not listed",
        })
    }
}

/// Whether the appliance connects to an address, given its own addresses and the list of the configuration.
///
/// # Errors
///
/// What is special about it, where the list does not name it. The IPv6 forms of an IPv4 address are judged as that
/// address: mapped (RFC 4291 section 2.5.5.2), compatible (2.5.5.1), translated (RFC 2765 section 2.1), NAT64 (RFC 6052),
/// 6to4 (RFC 3056). Of a site's own NAT64 prefix within 64:ff9b:1::/48 (RFC 8215) nobody can tell from an address how long
/// it is, hence not where the IPv4 address stands (RFC 6052 section 2.2): all of them are refused.
pub fn judge(address: SocketAddr, own: &[IpAddr], allow: &[Allowed]) -> Result<(), Special> {
    let ip = address.ip().to_canonical();
    if allow.iter().any(|entry| entry.covers(ip, address.port())) {
        return Ok(());
    }
    let embedded = match ip {
        IpAddr::V6(ip) => embedded(ip).map(IpAddr::V4),
        IpAddr::V4(_) => None,
    };
    [Some(ip), embedded].into_iter().flatten().find_map(|ip| special(ip, own)).map_or(Ok(()), Err)
}

/// Metadata services of clouds that are not at link-local addresses: Alibaba's, Azure's, Oracle's.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];

fn special(ip: IpAddr, own: &[IpAddr]) -> Option<Special> {
    let by_range = match ip {
        IpAddr::V4(ip) if ip.octets()[0] == 0 => Some(Special::Unspecified),
        IpAddr::V4(ip) if ip.is_link_local() => Some(Special::LinkLocal),
        IpAddr::V4(ip) if ip.octets()[0] >= 240 => Some(Special::Broadcast),
        IpAddr::V4(ip) if METADATA_V4.contains(&ip) => Some(Special::Metadata),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(Special::LinkLocal),
        IpAddr::V6(ip) => match ip.segments() {
            [0xfd00, 0xec2, ..] | [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254] => Some(Special::Metadata),
            [0x64, 0xff9b, 1, ..] => Some(Special::Translated),
            _ => None,
        },
        IpAddr::V4(_) => None,
    };
    let is_own = || own.iter().any(|own| own.to_canonical() == ip);
    by_range
        .or_else(|| ip.is_unspecified().then_some(Special::Unspecified))
        .or_else(|| ip.is_loopback().then_some(Special::Loopback))
        .or_else(|| ip.is_multicast().then_some(Special::Multicast))
        .or_else(|| is_own().then_some(Special::Own))
}

/// The IPv4 address that an IPv6 address leads to by a gateway or a tunnel.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let quad = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match ip.segments() {
        // `::` and `::1` are IPv6's own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => Some(quad(high, low)),
        _ => None,
    }
}

/// One form of an address: the IPv4 address that an IPv6 address stands for or leads to, where there is one.
pub fn plain(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => embedded(ip).map_or(IpAddr::V6(ip), IpAddr::V4),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// So long the addresses of this box are believed to be the same: asking the kernel takes as long as a small request.
const OWN_FOR: Duration = Duration::from_secs(1);

/// The addresses of this box's interfaces, as they were within the last second.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn own_addresses() -> io::Result<Arc<[IpAddr]>> {
    static KNOWN: Mutex<Option<(Instant, Arc<[IpAddr]>)>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*known {
        Some((at, own)) if at.elapsed() < OWN_FOR => Ok(own.clone()),
        _ => {
            let own = read_own_addresses()?;
            *known = Some((Instant::now(), own.clone()));
            Ok(own)
        }
    }
}

fn read_own_addresses() -> io::Result<Arc<[IpAddr]>> {
    let addresses = nix::ifaddrs::getifaddrs()?.filter_map(|entry| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    });
    Ok(addresses.collect())
}

/// An address that the appliance does not connect to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{address} is {special}; the appliance connects to it only when {key} in slipway.toml names it", .name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default())]
pub struct ForbiddenAddress {
    /// The name that led there.
    pub name: Option<String>,
    /// The address.
    pub address: IpAddr,
    /// What it is.
    pub special: Special,
    /// The list of the configuration that could name it.
    key: &'static str,
}

/// The refusal among the causes of an error of reqwest.
pub fn refusal<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a ForbiddenAddress> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref() {
            return Some(refused);
        }
        // An I/O error is not the source of what it holds, it stands for it.
        let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause = held.map(|held| held as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

/// A text that is a URL, or was meant to be one, for messages: no user, no password, no query, no fragment.
pub fn masked(text: &str) -> String {
    let plain = text.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = plain.split_once("://").map_or(("", plain), |(scheme, rest)| (scheme, rest));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // The last one: a password may hold another, unescaped.
    let host = authority.rsplit('@').next().unwrap_or_default();
    let separator = if scheme.is_empty() { "" } else { "://" };
    let port = host.rsplit(']').next().unwrap_or_default().rsplit_once(':').map_or("", |(_, port)| port);
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        // The first half of a password that holds what ends an authority.
        return format!("{scheme}{separator}...");
    }
    format!("{scheme}{separator}{host}{path}")
}

/// Judges by a list of the configuration and this box's addresses. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Guard {
    key: &'static str,
    allow: Live<Vec<Allowed>>,
    /// Whether nothing is connected to but what the list names.
    only: bool,
}

impl Guard {
    /// `key` is the list's name in the configuration, for messages: `image.allow`.
    pub fn new(key: &'static str, allow: impl Into<Live<Vec<Allowed>>>) -> Self {
        Self { key, allow: allow.into(), only: false }
    }

    /// One that connects to what the list names and to nothing else. What is special to this box is to be named by its own
    /// address: a network that it happens to be in does not name it.
    pub fn only(key: &'static str, allow: impl Into<Live<Vec<Allowed>>>) -> Self {
        Self { only: true, ..Self::new(key, allow) }
    }

    /// Judges one address and port.
    ///
    /// # Errors
    ///
    /// When the appliance does not connect to it.
    pub fn judge(&self, address: SocketAddr) -> Result<(), ForbiddenAddress> {
        self.judge_as(None, address)
    }

    fn judge_as(&self, name: Option<&str>, address: SocketAddr) -> Result<(), ForbiddenAddress> {
        let mut allow = self.allow.get();
        let mut listed = true;
        if self.only {
            listed = allow.iter().any(|entry| entry.covers(address.ip().to_canonical(), address.port()));
            allow = Arc::new(allow.iter().filter(|entry| entry.is_single()).cloned().collect());
        }
        let judged = match own_addresses() {
            _ if !listed => Err(Special::Unlisted),
            Ok(own) => judge(address, &own, &allow).and_then(|()| match route::is_local(plain(address.ip())) {
                Ok(false) => Ok(()),
                Ok(true) => judge(address, &[address.ip(), plain(address.ip())], &allow),
                Err(_) => judge(address, &[address.ip()], &allow).map_err(|_| Special::Unknown),
            }),
            // Without them everything could be this box; what the list names is still known.
            Err(_) => judge(address, &[address.ip()], &allow).map_err(|_| Special::Unknown),
        };
        let name = || name.map(str::to_owned);
        judged.map_err(|special| ForbiddenAddress {
            name: name(),
            address: address.ip().to_canonical(),
            special,
            key: self.key,
        })
    }

    /// Judges a URL whose host is a literal address. One with a name is for [`Self::resolve`] to judge.
    ///
    /// # Errors
    ///
    /// When the appliance does not connect to it.
    pub fn url(&self, url: &Url) -> Result<(), ForbiddenAddress> {
        // Url knows every spelling of an address: 127.1, 0x7f000001, 2130706433.
        let host = url.host_str().unwrap_or_default();
        let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let Ok(ip) = plain.parse() else { return Ok(()) };
        self.judge(SocketAddr::new(ip, url.port_or_known_default().unwrap_or_default()))
    }

    /// Resolves a name, and judges each of its addresses with this port; gives those that are fine.
    ///
    /// # Errors
    ///
    /// When the name has no address, or only such that the appliance does not connect to ([`refusal`] finds which).
    pub async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found = lookup(name, port).await?;
        let (mut fine, mut refused) = (Vec::new(), None);
        for address in found {
            match self.judge_as(Some(name), address) {
                Ok(()) => fine.push(address),
                Err(reason) => refused = Some(reason),
            }
        }
        match refused {
            Some(refused) if fine.is_empty() => Err(io::Error::new(io::ErrorKind::PermissionDenied, refused)),
            _ => Ok(fine),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderValue;

    use super::client::{ClientSettings, OutboundClient};
    use super::*;

    fn allowed(entries: &[&str]) -> Vec<Allowed> {
        entries.iter().map(|entry| entry.parse().expect("an entry")).collect()
    }

    #[test]
    fn a_guard_of_a_list_alone_connects_to_nothing_else() {
        let networks = ["10.0.0.0/8", "127.0.0.0/8", "127.0.0.7:8443", "2001:db8::/32"];
        let guard = Guard::only("api.webhooks.allow", allowed(&networks));
        for (address, wanted) in [
            ("10.1.2.3:443", Ok(())),
            ("[::ffff:10.1.2.3]:443", Ok(())),
            ("[2001:db8::7]:443", Ok(())),
            ("192.0.2.7:443", Err(Special::Unlisted)),
            ("[64:ff9b::a01:203]:443", Err(Special::Unlisted)),
            ("169.254.169.254:443", Err(Special::Unlisted)),
            // A network names no address of this box.
            ("127.0.0.1:8443", Err(Special::Loopback)),
            ("127.0.0.7:443", Err(Special::Loopback)),
            ("127.0.0.7:8443", Ok(())),
        ] {
            let judged = guard.judge(address.parse().expect("an address")).map_err(|refused| refused.special);
            assert_eq!(judged, wanted, "{address}");
        }
        let none = Guard::only("api.webhooks.allow", Vec::new());
        let refused = none.judge("192.0.2.7:443".parse().expect("an address")).unwrap_err().to_string();
        assert!(refused.contains("not listed") && refused.contains("api.webhooks.allow"), "{refused}");
    }

    #[test]
    fn what_is_special_to_this_box_is_refused_unless_the_list_names_it() {
        let own: Vec<IpAddr> = ["172.22.0.1", "2001:db8::1"].iter().map(|ip| ip.parse().expect("an address")).collect();
        let none: &[&str] = &[];
        let table: &[(&str, &[&str], Result<(), Special>)] = &[
            ("192.0.2.7:80", none, Ok(())),
            ("10.0.0.1:443", none, Ok(())),
            ("[2001:db8::2]:80", none, Ok(())),
            ("172.22.0.2:80", none, Ok(())),
            ("172.22.0.1:80", none, Err(Special::Own)),
            ("[2001:db8::1]:80", none, Err(Special::Own)),
            ("[::ffff:172.22.0.1]:80", none, Err(Special::Own)),
            ("127.0.0.1:80", none, Err(Special::Loopback)),
            ("127.255.3.2:80", none, Err(Special::Loopback)),
            ("[::1]:80", none, Err(Special::Loopback)),
            ("[::ffff:127.0.0.1]:80", none, Err(Special::Loopback)),
            ("[::127.0.0.1]:80", none, Err(Special::Loopback)),
            ("[64:ff9b::7f00:1]:80", none, Err(Special::Loopback)),
            ("[64:ff9b::a00:1]:80", none, Ok(())),
            ("[2002:7f00:1::1]:80", none, Err(Special::Loopback)),
            ("0.0.0.0:80", none, Err(Special::Unspecified)),
            ("0.1.2.3:80", none, Err(Special::Unspecified)),
            ("[::]:80", none, Err(Special::Unspecified)),
            ("[::ffff:0.0.0.0]:80", none, Err(Special::Unspecified)),
            ("169.254.169.254:80", none, Err(Special::LinkLocal)),
            ("[::ffff:169.254.169.254]:80", none, Err(Special::LinkLocal)),
            ("[fe80::1]:80", none, Err(Special::LinkLocal)),
            ("[febf::1]:80", none, Err(Special::LinkLocal)),
            ("224.0.0.1:80", none, Err(Special::Multicast)),
            ("[ff02::1]:80", none, Err(Special::Multicast)),
            ("[fd00:ec2::254]:80", none, Err(Special::Metadata)),
            ("[fd00:ec2::23]:80", none, Err(Special::Metadata)),
            ("[fd00:ec3::254]:80", none, Ok(())),
            ("[fd20:ce::254]:80", none, Err(Special::Metadata)),
            ("[fd20:ce::253]:80", none, Ok(())),
            ("100.100.100.200:80", none, Err(Special::Metadata)),
            ("[::ffff:100.100.100.200]:80", none, Err(Special::Metadata)),
            ("100.100.100.201:80", none, Ok(())),
            ("168.63.129.16:80", none, Err(Special::Metadata)),
            ("192.0.0.192:80", none, Err(Special::Metadata)),
            ("100.100.100.200:80", &["100.100.100.200"], Ok(())),
            ("[64:ff9b:1::7f00:1]:80", none, Err(Special::Translated)),
            ("[64:ff9b:1:a9fe:a9:fe00::]:80", none, Err(Special::Translated)),
            ("[64:ff9b:1:ffff::a00:1]:80", none, Err(Special::Translated)),
            ("[64:ff9b:2::a00:1]:80", none, Ok(())),
            ("[64:ff9b:1::a00:1]:80", &["64:ff9b:1::/96"], Ok(())),
            ("[::ffff:0:127.0.0.1]:80", none, Err(Special::Loopback)),
            ("[::ffff:0:10.0.0.1]:80", none, Ok(())),
            ("255.255.255.255:80", none, Err(Special::Broadcast)),
            ("240.0.0.1:80", none, Err(Special::Broadcast)),
            ("172.22.0.1:80", &["172.22.0.1"], Ok(())),
            ("[::ffff:172.22.0.1]:80", &["172.22.0.1"], Ok(())),
            ("172.22.0.1:80", &["::ffff:172.22.0.1"], Ok(())),
            ("172.22.0.1:80", &["172.22.0.0/24"], Ok(())),
            ("172.22.0.1:80", &["10.0.0.0/8"], Err(Special::Own)),
            ("127.0.0.1:8000", &["127.0.0.1:8000"], Ok(())),
            ("127.0.0.1:8001", &["127.0.0.1:8000"], Err(Special::Loopback)),
            ("[::1]:8000", &["[::1]:8000"], Ok(())),
            ("[::1]:8001", &["[::1]:8000"], Err(Special::Loopback)),
            ("[::1]:8001", &["[::1]"], Ok(())),
            ("[::1]:8001", &["::1"], Ok(())),
            // The way through a gateway is another one than the address itself.
            ("[64:ff9b::7f00:1]:80", &["127.0.0.1"], Err(Special::Loopback)),
        ];
        for (address, allow, expected) in table {
            let judged = judge(address.parse().expect("an address"), &own, &allowed(allow));
            assert_eq!(judged, *expected, "{address} with {allow:?}");
        }
    }

    #[test]
    fn an_entry_that_is_no_address_says_what_one_is() {
        for text in ["localhost", "127.0.0.1:", "10.0.0.0/33", "", "127.0.0.1:99999", "*"] {
            let reason = text.parse::<Allowed>().expect_err(text);
            assert!(reason.contains("172.22.0.1") && reason.contains(&format!("{text:?}")), "{reason}");
        }
    }

    #[test]
    fn every_spelling_of_a_literal_host_is_judged() {
        let guard = Guard::new("image.allow", Vec::new());
        for text in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f.0.0.1/",
            "http://017700000001/",
            "http://[::1]/",
            "http://[::ffff:7f00:1]/",
            "http://127.0.0.1./",
            "http://%31%32%37.0.0.1/",
            "https://user:secret@127.0.0.1:443/",
        ] {
            let refused = guard.url(&Url::parse(text).expect(text)).expect_err(text);
            assert_eq!(refused.special, Special::Loopback, "{text}");
        }
        let message = guard.url(&Url::parse("http://127.1:81/").expect("a URL")).expect_err("loopback").to_string();
        assert_eq!(
            message,
            "127.0.0.1 is a loopback address; the appliance connects to it only when image.allow in slipway.toml names it"
        );
    }

    #[tokio::test]
    async fn a_name_is_judged_by_its_addresses_and_the_client_says_why() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let guard = Guard::new("bmc.allow", Vec::new());
        let client = move |guard: &Guard| {
            let tls = rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth();
            OutboundClient::new(ClientSettings {
                guard: Some(guard.clone()),
                port,
                addresses: Vec::new(),
                tls,
                connect_timeout: Duration::from_secs(10),
                proxies: None,
                keep: Duration::ZERO,
                user_agent: HeaderValue::from_static("test"),
                most: 1 << 20,
            })
        };
        let url = format!("http://localhost:{port}/");
        let url: Url = url.parse().expect("a URL");
        let get = async |client: OutboundClient, url: &Url| {
            let answer = client.send(http::Method::GET, url, http::HeaderMap::new(), bytes::Bytes::new(), None).await;
            answer.map(drop)
        };
        let error = get(client(&guard), &url).await.expect_err("loopback");
        let refused = refusal(&error).expect("a refusal");
        assert_eq!((refused.name.as_deref(), refused.special), (Some("localhost"), Special::Loopback));
        assert!(refused.to_string().contains("bmc.allow"), "{refused}");
        // A name that the list names is connected to.
        let open = Guard::new("bmc.allow", allowed(&[&format!("127.0.0.1:{port}"), &format!("[::1]:{port}")]));
        let asked = tokio::spawn(async move { get(client(&open), &url).await });
        let (_, peer) = listener.accept().await.expect("a connection");
        assert!(peer.ip().is_loopback());
        asked.abort();
    }

    #[test]
    fn a_masked_url_shows_where_and_no_secret() {
        for (text, shown) in [
            ("http://x/i.raw", "http://x/i.raw"),
            ("https://user:secret@x:8443/i.raw?X-Amz-Signature=secret#secret", "https://x:8443/i.raw"),
            ("ipmi://admin:se@cret@10.0.0.1:623", "ipmi://10.0.0.1:623"),
            ("admin:secret@10.0.0.1", "10.0.0.1"),
            ("redfish://a:secret@", "redfish://"),
            ("ipmi://admin:se/cret@10.0.0.1", "ipmi://..."),
            ("http://admin:se?cret@x/i", "http://..."),
            ("redfish://[2001:db8::1]:443/redfish/v1", "redfish://[2001:db8::1]:443/redfish/v1"),
            ("http://x?secret", "http://x"),
            ("file:///etc/passwd", "file:///etc/passwd"),
            ("", ""),
        ] {
            assert_eq!(masked(text), shown, "{text}");
        }
    }

    #[test]
    fn this_box_knows_its_own_addresses() {
        assert!(own_addresses().expect("addresses").contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
}
