//! Ranges of addresses. Pure.
//!
//! A range may have more addresses than there is memory, so only its ends are looked at, and the addresses in use.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

use crate::api::ipam::metal3::IPRange;

/// Most addresses of a range from which one is drawn at random.
const DRAWN_MAX: u128 = i64::MAX as u128;

/// Why a range is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RangeError {
    /// It says nothing.
    #[error("pool entry must specify at least one of start, end, or subnet")]
    Empty,
    /// An end of it is no address.
    #[error("invalid {0} IP {1:?}")]
    Address(&'static str, String),
    /// Its subnet is none.
    #[error("invalid Subnet {0:?}")]
    Subnet(String),
    /// It goes backwards.
    #[error("end IP {1} is before start IP {0}")]
    Backwards(IpAddr, IpAddr),
    /// IPv4 and IPv6 together.
    #[error("start, end and subnet must be of one IP version")]
    Versions,
}

/// The first and the last address of a range, both of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressBounds {
    pub first: IpAddr,
    pub last: IpAddr,
}

/// An address, as a text has it. IPv4 in IPv6's clothes is IPv4.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// Which addresses a range gives; none when it begins nowhere, or outside of its subnet.
///
/// # Errors
///
/// When it cannot be understood.
pub(super) fn bounds(range: &IPRange) -> Result<Option<AddressBounds>, RangeError> {
    let read = |what, text: &Option<String>| {
        let read =
            |text: &String| address(text).ok_or_else(|| RangeError::Address(what, text.chars().take(64).collect()));
        text.as_ref().map(read).transpose()
    };
    let (start, end) = (read("Start", &range.start)?, read("End", &range.end)?);
    let subnet = range.subnet.as_ref().map(|text| {
        let read = if text.contains('/') { text.parse::<IpNetwork>().ok() } else { None };
        read.ok_or_else(|| RangeError::Subnet(text.chars().take(64).collect()))
    });
    let subnet = subnet.transpose()?;
    let versions = [start.map(|at| at.is_ipv6()), end.map(|at| at.is_ipv6()), subnet.map(|net| net.is_ipv6())];
    let mut versions = versions.into_iter().flatten();
    let Some(v6) = versions.next() else { return Err(RangeError::Empty) };
    if versions.any(|other| other != v6) {
        return Err(RangeError::Versions);
    }
    if let (Some(start), Some(end)) = (start, end)
        && end < start
    {
        return Err(RangeError::Backwards(start, end));
    }
    // Without a start the first one is behind the address that the subnet is written with.
    let Some(first) = start.or_else(|| subnet.and_then(|net| next(net.ip()))) else { return Ok(None) };
    let highest = if v6 { Ipv6Addr::from(u128::MAX).into() } else { Ipv4Addr::from(u32::MAX).into() };
    let last = end.unwrap_or(highest).min(subnet.map_or(highest, |net| net.broadcast()));
    let begins_inside = subnet.is_none_or(|net| net.contains(first));
    Ok(Some(AddressBounds { first, last }).filter(|bounds| begins_inside && bounds.first <= bounds.last))
}

impl AddressBounds {
    /// Whether an address is one of the range's.
    pub fn contains(&self, address: IpAddr) -> bool {
        // Addresses of IPv4 come before those of IPv6.
        self.first <= address && address <= self.last
    }

    /// The lowest address from `from` on that is not taken.
    pub fn free_from(&self, from: IpAddr, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let mut candidate = from.max(self.first);
        if candidate > self.last {
            return None;
        }
        for other in taken.range(candidate..=self.last) {
            if *other > candidate {
                break;
            }
            candidate = next(candidate).filter(|next| *next <= self.last)?;
        }
        Some(candidate)
    }

    /// Whether one may be drawn from it at random: from more addresses than that nobody draws.
    pub fn may_be_drawn_from(&self) -> bool {
        number(self.last) - number(self.first) < DRAWN_MAX
    }

    /// One of the free addresses. `draw` gives a number below its argument.
    pub fn drawn(&self, taken: &BTreeSet<IpAddr>, draw: &mut dyn FnMut(u128) -> u128) -> Option<IpAddr> {
        if !self.may_be_drawn_from() {
            return None;
        }
        let size = number(self.last) - number(self.first) + 1;
        let offset = draw(size).min(size - 1);
        let from = of_number(number(self.first) + offset, self.first.is_ipv6());
        self.free_from(from, taken).or_else(|| self.free_from(self.first, taken))
    }
}

/// The address behind this one.
pub(super) fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => u32::from(v4).checked_add(1).map(|number| Ipv4Addr::from(number).into()),
        IpAddr::V6(v6) => u128::from(v6).checked_add(1).map(|number| Ipv6Addr::from(number).into()),
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

fn of_number(number: u128, v6: bool) -> IpAddr {
    match u32::try_from(number) {
        Ok(number) if !v6 => Ipv4Addr::from(number).into(),
        _ => Ipv6Addr::from(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: &str, end: &str, subnet: &str) -> IPRange {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        IPRange { start: text(start), end: text(end), subnet: text(subnet), ..IPRange::default() }
    }

    #[test]
    fn a_range_has_the_ends_that_it_says() {
        let rows = [
            ("10.0.0.5", "10.0.0.9", "", Some(("10.0.0.5", "10.0.0.9"))),
            ("10.0.0.5", "10.0.0.5", "", Some(("10.0.0.5", "10.0.0.5"))),
            // The network's own address is not given, the broadcast address is the last one.
            ("", "", "10.0.0.0/24", Some(("10.0.0.1", "10.0.0.255"))),
            ("", "", "10.0.0.9/24", Some(("10.0.0.10", "10.0.0.255"))),
            ("", "10.0.0.9", "10.0.0.0/24", Some(("10.0.0.1", "10.0.0.9"))),
            ("10.0.0.5", "", "10.0.0.0/24", Some(("10.0.0.5", "10.0.0.255"))),
            ("10.0.0.5", "10.0.1.9", "10.0.0.0/24", Some(("10.0.0.5", "10.0.0.255"))),
            ("10.0.0.5", "10.0.0.9", "10.0.0.0/24", Some(("10.0.0.5", "10.0.0.9"))),
            ("10.0.0.5", "", "", Some(("10.0.0.5", "255.255.255.255"))),
            ("", "", "10.0.0.7/32", None),
            ("10.0.1.5", "", "10.0.0.0/24", None),
            ("9.0.1.5", "", "10.0.0.0/24", None),
            ("", "10.0.0.9", "", None),
            ("", "", "255.255.255.255/0", None),
            ("fd00::5", "fd00::ff", "", Some(("fd00::5", "fd00::ff"))),
            ("", "", "fd00::/64", Some(("fd00::1", "fd00::ffff:ffff:ffff:ffff"))),
            ("fd00::5", "", "", Some(("fd00::5", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))),
            ("::ffff:10.0.0.5", "10.0.0.9", "", Some(("10.0.0.5", "10.0.0.9"))),
        ];
        for (start, end, subnet, wanted) in rows {
            let wanted = wanted.map(|(first, last)| (first.parse().unwrap(), last.parse().unwrap()));
            let got = bounds(&range(start, end, subnet)).unwrap().map(|bounds| (bounds.first, bounds.last));
            assert_eq!(got, wanted, "{start} {end} {subnet}");
        }
        let faults = [
            ("", "", "", "pool entry must specify at least one of start, end, or subnet"),
            ("10.0.0", "", "", "invalid Start IP \"10.0.0\""),
            ("", "x", "", "invalid End IP \"x\""),
            ("", "", "10.0.0.0", "invalid Subnet \"10.0.0.0\""),
            ("", "", "10.0.0.0/33", "invalid Subnet \"10.0.0.0/33\""),
            ("10.0.0.9", "10.0.0.5", "", "end IP 10.0.0.5 is before start IP 10.0.0.9"),
            ("10.0.0.9", "fd00::1", "", "start, end and subnet must be of one IP version"),
            ("10.0.0.9", "", "fd00::/64", "start, end and subnet must be of one IP version"),
        ];
        for (start, end, subnet, wanted) in faults {
            assert_eq!(bounds(&range(start, end, subnet)).unwrap_err().to_string(), wanted);
        }
    }

    #[test]
    fn the_lowest_free_address_is_found_however_large_a_range_is() {
        let whole = bounds(&range("", "", "fd00::/8")).unwrap().unwrap();
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut taken = BTreeSet::new();
        for wanted in ["fd00::1", "fd00::2", "fd00::3"] {
            let free = whole.free_from(whole.first, &taken).unwrap();
            assert_eq!(free, at(wanted));
            taken.insert(free);
        }
        taken.remove(&at("fd00::2"));
        assert_eq!(whole.free_from(whole.first, &taken), Some(at("fd00::2")));
        assert_eq!(whole.free_from(at("fd00::3"), &taken), Some(at("fd00::4")));

        let end = bounds(&range("255.255.255.254", "", "")).unwrap().unwrap();
        let taken = BTreeSet::from([at("255.255.255.254"), at("255.255.255.255"), at("fd00::1")]);
        assert_eq!(end.free_from(end.first, &taken), None);
        assert_eq!(end.free_from(at("fd00::1"), &taken), None, "of another version");
        assert!(!whole.contains(at("10.0.0.1")) && whole.contains(at("fdff::1")));
    }

    #[test]
    fn what_is_drawn_is_free() {
        let few = bounds(&range("10.0.0.1", "10.0.0.4", "")).unwrap().unwrap();
        let mut taken = BTreeSet::new();
        for (number, wanted) in [(2, "10.0.0.3"), (2, "10.0.0.4"), (3, "10.0.0.1"), (99, "10.0.0.2")] {
            let drawn = few.drawn(&taken, &mut |_| number).unwrap();
            assert_eq!(drawn, wanted.parse::<IpAddr>().unwrap());
            taken.insert(drawn);
        }
        assert_eq!(few.drawn(&taken, &mut |_| 0), None);
        let many = bounds(&range("", "", "::/0")).unwrap().unwrap();
        assert_eq!(many.drawn(&taken, &mut |_| 0), None);
    }
}
