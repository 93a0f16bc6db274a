//! Which address of a pool a claim gets. Pure.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::ranges::{AddressBounds, address, bounds, next};
use crate::api::ipam::metal3::{AllocationStrategy, IPPoolSpec, IPRange};

/// An address with what a machine must know to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    /// The address.
    pub address: IpAddr,
    /// Length of the network's prefix; 0 when the pool says none.
    pub prefix: i64,
    /// Router.
    pub gateway: Option<String>,
    /// Name servers.
    pub dns_servers: Vec<String>,
}

/// Why a claim gets no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AllocationRefusal {
    /// All are in use, or kept for others.
    #[error("Exhausted IP Pools")]
    Exhausted,
    /// As many are in use as one pool gives, whatever its ranges have.
    #[error(
        "the IPPool has {USED_MAX} addresses in use, and one pool gives no more: use another pool for further claims"
    )]
    Full,
    /// What is kept for it is in no range.
    #[error("Pre-allocated IP out of bounds")]
    OutOfBounds,
    /// What is kept for it is in use.
    #[error("Pre-allocated IP {0} is in use")]
    InUse(IpAddr),
    /// What it asks for is in use, kept for another, or in no range.
    #[error("Requested IP not available")]
    Unavailable,
    /// It asks for another one than is kept for it.
    #[error("PreAllocation and requested ip address are conflicting")]
    Conflicting,
    /// It asks for what is no address.
    #[error("Invalid ipAddress annotation {0:?}: not a valid IP address")]
    Invalid(String),
    /// The name of its object is another's.
    #[error("an IPAddress with the name for {0} is there, and of another claim or pool")]
    Unnamed(IpAddr),
    /// The pool gives nothing now.
    #[error("{0}")]
    NotReady(String),
}

impl AllocationRefusal {
    /// In one word, as the condition Ready has it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Exhausted | Self::Full => "PoolExhausted",
            Self::NotReady(_) => "PoolNotReady",
            _ => "AllocationFailed",
        }
    }
}

/// Addresses of one pool that are in use at once: its status names all of them.
pub(super) const USED_MAX: usize = 4096;
/// Name servers of a pool, or of one of its ranges: every address has them all.
pub(super) const DNS_SERVERS_MAX: usize = 64;

/// A pool, and what of it is taken.
pub(super) struct Allocator<'p> {
    spec: &'p IPPoolSpec,
    ranges: Vec<FreeRange<'p>>,
    /// In use.
    used: BTreeSet<IpAddr>,
    /// In use, or kept for claims by their names.
    taken: BTreeSet<IpAddr>,
    kept: HashMap<&'p str, IpAddr>,
}

/// A range that gives something.
struct FreeRange<'p> {
    bounds: AddressBounds,
    of: &'p IPRange,
    /// Below this nothing is free: none is given back while claims are answered.
    from: IpAddr,
    /// Whether any may be free.
    open: bool,
}

impl<'p> Allocator<'p> {
    /// The pool, of which so many addresses are in use.
    pub fn new(spec: &'p IPPoolSpec, used: BTreeSet<IpAddr>) -> Self {
        let spans = spec.pools.iter().filter_map(|of| {
            let bounds = bounds(of).ok().flatten()?;
            Some(FreeRange { bounds, of, from: bounds.first, open: true })
        });
        let kept = spec.pre_allocations.iter().filter_map(|(claim, text)| Some((claim.as_str(), address(text)?)));
        let kept: HashMap<&str, IpAddr> = kept.collect();
        let taken = used.iter().copied().chain(kept.values().copied()).collect();
        Self { spec, ranges: spans.collect(), used, taken, kept }
    }

    /// An address for a claim of this name, which may ask for one. `draw` gives a number below its argument.
    ///
    /// # Errors
    ///
    /// When there is none for it.
    pub fn allocate(
        &mut self,
        claim: &str,
        wanted: Option<&str>,
        draw: &mut dyn FnMut(u128) -> u128,
    ) -> Result<Given, AllocationRefusal> {
        let invalid = |text: &str| AllocationRefusal::Invalid(text.chars().take(64).collect());
        let wanted = wanted.map(|text| address(text).ok_or_else(|| invalid(text))).transpose()?;
        let kept = self.kept.get(claim).copied();
        let (address, at) = match (kept, wanted) {
            (Some(kept), Some(wanted)) if kept != wanted => return Err(AllocationRefusal::Conflicting),
            (Some(kept), _) => match self.span_of(kept) {
                None => return Err(AllocationRefusal::OutOfBounds),
                Some(_) if self.used.contains(&kept) => return Err(AllocationRefusal::InUse(kept)),
                Some(at) => (kept, at),
            },
            (None, Some(wanted)) => match self.span_of(wanted) {
                Some(at) if !self.taken.contains(&wanted) => (wanted, at),
                _ => return Err(AllocationRefusal::Unavailable),
            },
            (None, None) if self.used.len() >= USED_MAX => return Err(AllocationRefusal::Full),
            (None, None) => self.any(draw).ok_or(AllocationRefusal::Exhausted)?,
        };
        self.used.insert(address);
        self.taken.insert(address);
        Ok(self.given(address, at))
    }

    fn span_of(&self, address: IpAddr) -> Option<usize> {
        self.ranges.iter().position(|span| span.bounds.contains(address))
    }

    fn any(&mut self, draw: &mut dyn FnMut(u128) -> u128) -> Option<(IpAddr, usize)> {
        let strategy = self.spec.allocation_strategy.unwrap_or_default();
        for (at, span) in self.ranges.iter_mut().enumerate().filter(|(_, span)| span.open) {
            let free = match strategy {
                AllocationStrategy::Random => span.bounds.drawn(&self.taken, draw),
                AllocationStrategy::Sequential => span.bounds.free_from(span.from, &self.taken),
            };
            if let Some(free) = free {
                span.from = next(free).filter(|_| strategy == AllocationStrategy::Sequential).unwrap_or(span.from);
                return Some((free, at));
            }
            span.open = false;
        }
        None
    }

    fn given(&self, address: IpAddr, at: usize) -> Given {
        let (pool, range) = (self.spec, self.ranges.get(at).map(|span| span.of));
        let prefix = range.map(|range| range.prefix).filter(|prefix| *prefix != 0).unwrap_or(pool.prefix);
        let gateway = range.and_then(|range| range.gateway.clone()).or_else(|| pool.gateway.clone());
        let servers = range.map(|range| &range.dns_servers).filter(|servers| !servers.is_empty());
        let servers = servers.unwrap_or(&pool.dns_servers).iter();
        Given { address, prefix, gateway, dns_servers: servers.take(DNS_SERVERS_MAX).cloned().collect() }
    }
}

/// Name of the object that stands for an address.
pub(super) fn address_name(prefix: &str, address: IpAddr) -> String {
    format!("{prefix}-{}", address.to_string().replace([':', '.'], "-")).trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn pool(value: Value) -> IPPoolSpec {
        serde_json::from_value(value).unwrap()
    }

    fn two_ranges() -> IPPoolSpec {
        pool(json!({
            "namePrefix": "p", "prefix": 24, "gateway": "10.0.0.1", "dnsServers": ["10.0.0.2"],
            "pools": [
                {"start": "10.0.0.10", "end": "10.0.0.11"},
                {"subnet": "10.1.0.0/30", "prefix": 30, "gateway": "10.1.0.1", "dnsServers": ["10.1.0.2"]},
            ],
            "preAllocations": {"kept": "10.0.0.11", "far": "10.9.9.9"},
        }))
    }

    fn none(_: u128) -> u128 {
        panic!("nothing is drawn")
    }

    #[test]
    fn claims_get_the_lowest_free_address_with_what_its_range_says() {
        let pool = two_ranges();
        let mut allocator = Allocator::new(&pool, BTreeSet::new());
        let mut ask = |claim: &str, wanted: Option<&str>| {
            let given = allocator.allocate(claim, wanted, &mut none).map_err(|refusal| refusal.to_string())?;
            Ok::<_, String>((
                given.address.to_string(),
                given.prefix,
                given.gateway.unwrap(),
                given.dns_servers.join(","),
            ))
        };
        let of_first = |address: &str| Ok((address.to_owned(), 24, "10.0.0.1".to_owned(), "10.0.0.2".to_owned()));
        let of_second = |address: &str| Ok((address.to_owned(), 30, "10.1.0.1".to_owned(), "10.1.0.2".to_owned()));
        let refused = |text: &str| Err(text.to_owned());
        let rows = [
            ("a", None, of_first("10.0.0.10")),
            // The next one is kept for another claim.
            ("b", None, of_second("10.1.0.1")),
            ("c", Some("10.0.0.10"), refused("Requested IP not available")),
            ("c", Some("10.0.0.11"), refused("Requested IP not available")),
            ("c", Some("10.7.0.1"), refused("Requested IP not available")),
            ("c", Some("host"), refused("Invalid ipAddress annotation \"host\": not a valid IP address")),
            ("c", Some("10.1.0.3"), of_second("10.1.0.3")),
            ("kept", Some("10.1.0.2"), refused("PreAllocation and requested ip address are conflicting")),
            ("kept", Some("10.0.0.11"), of_first("10.0.0.11")),
            ("kept", None, refused("Pre-allocated IP 10.0.0.11 is in use")),
            ("far", None, refused("Pre-allocated IP out of bounds")),
            ("d", None, of_second("10.1.0.2")),
            ("e", None, refused("Exhausted IP Pools")),
        ];
        for (claim, wanted, answer) in rows {
            assert_eq!(ask(claim, wanted), answer, "{claim} {wanted:?}");
        }
    }

    #[test]
    fn gaps_are_filled_and_what_is_no_range_gives_nothing() {
        let pool = pool(json!({"namePrefix": "p", "pools": [
            {"start": "x"}, {"end": "10.0.0.1"}, {"start": "fd00::1", "end": "fd00::3"}]}));
        let used = ["fd00::1", "fd00::3", "10.0.0.9"].map(|text| text.parse().unwrap());
        let mut allocator = Allocator::new(&pool, BTreeSet::from(used));
        let given = allocator.allocate("a", None, &mut none).unwrap();
        let wanted = Given { address: "fd00::2".parse().unwrap(), prefix: 0, gateway: None, dns_servers: vec![] };
        assert_eq!(given, wanted);
        assert_eq!(allocator.allocate("b", None, &mut none), Err(AllocationRefusal::Exhausted));
        assert_eq!(AllocationRefusal::Exhausted.reason(), "PoolExhausted");
        assert_eq!(AllocationRefusal::Unavailable.reason(), "AllocationFailed");
    }

    #[test]
    fn a_pool_that_gives_no_more_says_so_and_not_that_its_ranges_are_used_up() {
        let servers: Vec<String> = (0..100).map(|last| format!("10.9.0.{last}")).collect();
        let pool = pool(json!({"namePrefix": "p", "pools": [{"subnet": "10.0.0.0/8"}], "dnsServers": servers}));
        let used = |many: u32| (0..many).map(|at| IpAddr::from((0x0a01_0000 + at).to_be_bytes())).collect();
        let most = u32::try_from(USED_MAX).unwrap();
        let last = Allocator::new(&pool, used(most - 1)).allocate("a", None, &mut none).unwrap();
        assert_eq!(last.dns_servers.len(), DNS_SERVERS_MAX);
        let full = Allocator::new(&pool, used(most)).allocate("a", None, &mut none).unwrap_err();
        assert_eq!((&full, full.reason()), (&AllocationRefusal::Full, "PoolExhausted"));
        assert!(full.to_string().contains("4096 addresses in use"), "{full}");
    }

    #[test]
    fn names_have_no_signs_that_names_cannot_have() {
        let rows = [("10.0.0.7", "p-10-0-0-7"), ("fd00::5", "p-fd00--5"), ("fd00::", "p-fd00")];
        for (address, name) in rows {
            assert_eq!(address_name("p", address.parse().unwrap()), name);
        }
    }

    proptest! {
        #[test]
        fn no_address_is_given_twice(
            ranges in prop::collection::vec((0..200_u8, 0..40_u8, any::<bool>()), 0..4),
            used in prop::collection::btree_set(any::<u8>(), 0..40),
            kept in prop::collection::btree_map("[a-e]", any::<u8>(), 0..4),
            claims in prop::collection::vec(("[a-h]", prop::option::of(any::<u8>())), 0..60),
            random in any::<bool>(),
        ) {
            let at = |last: u8| format!("10.0.0.{last}");
            let pools: Vec<Value> = ranges.iter().map(|(start, length, whole)| match whole {
                true => json!({"subnet": format!("10.0.0.{start}/26")}),
                false => json!({"start": at(*start), "end": at(start.saturating_add(*length))}),
            }).collect();
            let kept: HashMap<String, String> = kept.into_iter().map(|(claim, last)| (claim, at(last))).collect();
            let strategy = if random { "random" } else { "sequential" };
            let pool = pool(json!({"namePrefix": "p", "pools": pools, "preAllocations": kept, "allocationStrategy": strategy}));
            let mut used: BTreeSet<IpAddr> = used.into_iter().map(|last| at(last).parse().unwrap()).collect();
            let mut allocator = Allocator::new(&pool, used.clone());
            for (step, (claim, wanted)) in claims.iter().enumerate() {
                let wanted = wanted.map(at);
                let given = allocator.allocate(claim, wanted.as_deref(), &mut |below| step as u128 % below);
                let Ok(given) = given else { continue };
                let inside = pool.pools.iter().filter_map(|range| bounds(range).ok().flatten());
                prop_assert!(inside.into_iter().any(|bounds| bounds.contains(given.address)));
                let owner = kept.iter().find(|(_, address)| **address == given.address.to_string());
                let others = kept.iter().any(|(other, address)| other != claim && *address == given.address.to_string());
                prop_assert!(!others || owner.is_some_and(|_| kept.get(claim) == Some(&given.address.to_string())));
                prop_assert!(used.insert(given.address), "{} twice", given.address);
            }
        }
    }
}
