//! Names that mean only themselves to Ansible, and addresses of other machines.

use std::fmt;
use std::net::IpAddr;

/// Letters of a host's name: a BareMetalHost's, a dot and a namespace's.
const LONGEST_HOST: usize = 253 + 1 + 63;
/// Letters of a group's name: those that a label makes are the longest.
const LONGEST_GROUP: usize = 512;
/// Letters of a comment, and of a name in a message.
const SHOWN: usize = 300;

/// What Ansible means by these is not a host of that name: the machine that it runs on, whatever its address, all, or the rest.
const RESERVED: [&str; 4] = ["localhost", "127.0.0.1", "all", "ungrouped"];

/// Why something cannot be a name in an inventory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    /// Ansible means something else by it.
    #[error("{0} means something else to Ansible")]
    Reserved(String),
    /// Ansible, or kubespray, takes no such name, or takes it for a pattern.
    #[error("{0:?} is no name for Ansible")]
    Malformed(String),
}

/// What Ansible calls `inventory_hostname`: parts of small letters, digits and `-`, with dots between them (RFC 1123).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InventoryHostname(String);

impl InventoryHostname {
    /// The name as it is.
    ///
    /// # Errors
    ///
    /// When Ansible would take it for something else.
    pub fn new(name: &str) -> Result<Self, NameFault> {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let part = |part: &str| {
            let bytes = part.as_bytes();
            bytes.iter().all(|byte| inner(*byte) || *byte == b'-')
                && bytes.first().is_some_and(|byte| inner(*byte))
                && bytes.last().is_some_and(|byte| inner(*byte))
        };
        if RESERVED.contains(&name) {
            return Err(NameFault::Reserved(shown(name)));
        }
        if name.len() > LONGEST_HOST || !name.split('.').all(part) {
            return Err(NameFault::Malformed(shown(name)));
        }
        Ok(Self(name.to_owned()))
    }

    /// As Ansible reads it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A group's name: letters, digits and `_`, not beginning with a digit.
///
/// <https://docs.ansible.com/ansible/latest/inventory_guide/intro_inventory.html>
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupName(String);

impl GroupName {
    /// The name as it is.
    ///
    /// # Errors
    ///
    /// When Ansible would take it for something else.
    pub fn new(name: &str) -> Result<Self, NameFault> {
        if RESERVED.contains(&name) {
            return Err(NameFault::Reserved(shown(name)));
        }
        let fits = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !fits || name.is_empty() || name.len() > LONGEST_GROUP || name.as_bytes()[0].is_ascii_digit() {
            return Err(NameFault::Malformed(shown(name)));
        }
        Ok(Self(name.to_owned()))
    }

    /// `PREFIX_text`, with `_` for whatever a group's name cannot have. Different texts may make one name.
    ///
    /// # Errors
    ///
    /// When it would be too long.
    pub fn folded(prefix: &str, text: &str) -> Result<Self, NameFault> {
        let fold = |char: char| if char.is_ascii_alphanumeric() { char } else { '_' };
        Self::new(&format!("{prefix}_{}", text.chars().map(fold).collect::<String>()))
    }

    /// As Ansible reads it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InventoryHostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The address of another machine, that ssh can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reachable(IpAddr);

/// Why there is no machine to reach at an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReachableFault {
    /// It is not an address.
    #[error("{0:?} is no IP address")]
    Malformed(String),
    /// Whoever runs Ansible would reach itself, everybody, nobody, or need to know through which card.
    #[error("no other machine is reached at {0}")]
    Nobody(IpAddr),
}

impl Reachable {
    /// An address as it is written, IPv4 or IPv6.
    ///
    /// # Errors
    ///
    /// When no other machine can be reached at it.
    pub fn new(text: &str) -> Result<Self, ReachableFault> {
        let address: IpAddr = text.parse().map_err(|_| ReachableFault::Malformed(shown(text)))?;
        // An IPv4 address in IPv6's clothes is what it is.
        let address = address.to_canonical();
        let nobody = address.is_loopback()
            || address.is_unspecified()
            || address.is_multicast()
            || match address {
                IpAddr::V4(v4) => v4.is_broadcast() || v4.is_link_local() || v4.octets()[0] == 0,
                IpAddr::V6(v6) => v6.is_unicast_link_local(),
            };
        if nobody { Err(ReachableFault::Nobody(address)) } else { Ok(Self(address)) }
    }

    /// The address.
    pub fn address(self) -> IpAddr {
        self.0
    }
}

impl fmt::Display for Reachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A bounded line of printable ASCII. Python ends a line at more characters than `\n`, so nothing else may be in a comment.
pub(super) fn shown(text: &str) -> String {
    let plain = |char: char| if char == ' ' || char.is_ascii_graphic() { char } else { '?' };
    text.chars().take(SHOWN).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_named_as_rfc_1123_says_and_mean_only_themselves() {
        for name in ["a", "web-1", "web-1.rack", "0", "1e3", "0x10", "true", "null", "10.0.0.1", "a--b"] {
            assert_eq!(InventoryHostname::new(name).map(|name| name.to_string()).as_deref(), Ok(name));
        }
        let long = "a".repeat(LONGEST_HOST + 1);
        for name in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "-a",
            "a-",
            "A",
            "a_b",
            "a b",
            "a:22",
            "web[1:3]",
            "a,b",
            "!a",
            "&a",
            "~a",
            "*",
            "a=b",
            "a#b",
            "[all]",
            "a\n[all:vars]",
            "a\u{2028}b",
            "ä",
            "{{x}}",
            "::1",
            &long,
        ] {
            assert!(matches!(InventoryHostname::new(name), Err(NameFault::Malformed(_))), "{name}");
        }
        for name in RESERVED {
            assert_eq!(InventoryHostname::new(name), Err(NameFault::Reserved(name.into())));
        }
    }

    #[test]
    fn groups_are_named_as_variables_are() {
        for name in ["a", "_", "kube_node", "A9"] {
            assert_eq!(GroupName::new(name).map(|name| name.to_string()).as_deref(), Ok(name));
        }
        for name in ["", "9a", "kube-node", "a:vars", "a:children", "a]\n[b", "a.b", "all", "ungrouped", "ä"] {
            assert!(GroupName::new(name).is_err(), "{name}");
        }
        let folded = |text: &str| GroupName::folded("label", text).map(|name| name.to_string());
        assert_eq!(folded("topology.kubernetes.io/zone_a-1").as_deref(), Ok("label_topology_kubernetes_io_zone_a_1"));
        assert_eq!(folded("]\n[all:vars").as_deref(), Ok("label____all_vars"));
        assert!(folded(&"a".repeat(LONGEST_GROUP)).is_err());
    }

    #[test]
    fn an_address_is_another_machines() {
        for (text, wanted) in [
            ("192.0.2.1", "192.0.2.1"),
            ("2001:DB8::1", "2001:db8::1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("fd00::1", "fd00::1"),
        ] {
            assert_eq!(Reachable::new(text).map(|address| address.to_string()).as_deref(), Ok(wanted));
        }
        for text in [
            "",
            "web-1",
            "192.0.2.1 -o ProxyCommand=x",
            "192.0.2",
            "192.0.2.1:22",
            "[2001:db8::1]",
            "fe80::1%eth0",
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "255.255.255.255",
            "224.0.0.1",
            "ff02::1",
            "169.254.1.1",
            "fe80::1",
        ] {
            assert!(Reachable::new(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_comment_is_one_line() {
        let ends = "a\nb\rc\u{b}d\u{c}e\u{1c}f\u{85}g\u{2028}h\u{2029}i\u{0}";
        assert_eq!(shown(ends), "a?b?c?d?e?f?g?h?i?");
        assert_eq!(shown(&"x".repeat(9999)).len(), SHOWN);
    }
}
