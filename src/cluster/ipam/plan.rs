//! What is to be done about a pool, as its claims and addresses are. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use super::allocation::{AllocationRefusal, Allocator, Given};
use super::groups::{AddressClaim, ClaimMessage, Id, PoolAddress};
use super::ranges;
use crate::api::ipam::metal3::IPPoolSpec;

/// One thing that is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IpamStep {
    /// The claim gets this address.
    Give(AddressClaim, Given),
    /// The claim has its address' object, of this name, and is to hear of it.
    Tell(AddressClaim, String),
    /// The claim gets none.
    Refuse(AddressClaim, AllocationRefusal),
    /// The claim goes, and with it these objects.
    Release(AddressClaim, Vec<PoolAddress>),
    /// Its claim seems to be gone, whoever made it go.
    Orphan(PoolAddress),
    /// Its claim has heard of another address: two processes gave it one each.
    Surplus(PoolAddress),
}

/// What is to be done, and whose the addresses are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct IpamPlan {
    /// In any order.
    pub steps: Vec<IpamStep>,
    /// Addresses by claim, as the pool's status has them.
    pub allocations: BTreeMap<String, String>,
}

impl IpamPlan {
    /// Leaves so many steps: what answers a claim first, before what only tells it again. False when that is not all.
    pub fn keep(&mut self, most: usize) -> bool {
        self.steps.sort_by_key(|step| matches!(step, IpamStep::Tell(..)));
        let is_all = self.steps.len() <= most;
        self.steps.truncate(most);
        is_all
    }
}

/// Plans for a pool. `closed` says why it gives nothing now; of `foreign` addresses the names are somebody else's.
pub(super) fn plan(
    spec: &IPPoolSpec,
    closed: Option<&str>,
    mut claims: Vec<AddressClaim>,
    addresses: Vec<PoolAddress>,
    foreign: &BTreeSet<IpAddr>,
    draw: &mut dyn FnMut(u128) -> u128,
) -> IpamPlan {
    // The first come are the first served, whatever the order in which they are known.
    claims.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
    let used = addresses.iter().filter_map(|one| ranges::address(&one.address));
    let mut allocator = Allocator::new(spec, used.chain(foreign.iter().copied()).collect());
    let mut plan = IpamPlan { steps: Vec::new(), allocations: allocations(&addresses) };
    let known: HashSet<Id> = claims.iter().map(|claim| claim.id.clone()).collect();
    let mut by_claim: HashMap<Id, Vec<PoolAddress>> = HashMap::new();
    for address in addresses {
        let of = (address.id.0, address.claim.clone());
        if !known.contains(&of) && address.held {
            plan.steps.push(IpamStep::Orphan(address.clone()));
        }
        by_claim.entry(of).or_default().push(address);
    }
    for claim in claims {
        let its = by_claim.remove(&claim.id).unwrap_or_default();
        if claim.deleted {
            // Who else holds it may still use the address.
            if claim.held && !claim.in_use {
                plan.steps.push(IpamStep::Release(claim, its));
            }
            continue;
        }
        // One that is told of already stays, should there be several.
        let told = |address: &&PoolAddress| claim.told == ClaimMessage::Address(address.id.1.clone());
        if let Some(address) = its.iter().find(told).or_else(|| its.first()) {
            let name = address.id.1.clone();
            if claim.told != ClaimMessage::Address(name.clone()) || !claim.held {
                plan.steps.push(IpamStep::Tell(claim, name));
            } else {
                let others = its.iter().filter(|other| other.held && other.id.1 != name);
                plan.steps.extend(others.cloned().map(IpamStep::Surplus));
            }
            continue;
        }
        let answer = match closed {
            Some(reason) => Err(AllocationRefusal::NotReady(reason.to_owned())),
            None => allocator.allocate(&claim.id.1, claim.wants.as_deref(), draw),
        };
        match answer {
            Ok(given) => plan.steps.push(IpamStep::Give(claim, given)),
            Err(refusal) if is_told(&claim.told, &refusal) => {}
            Err(refusal) => plan.steps.push(IpamStep::Refuse(claim, refusal)),
        }
    }
    plan
}

/// Whether a claim has heard of a refusal.
fn is_told(told: &ClaimMessage, refusal: &AllocationRefusal) -> bool {
    match (told, ClaimMessage::refused(refusal)) {
        // Metal3's claims have no word for it.
        (ClaimMessage::Refused(word, message), ClaimMessage::Refused(reason, wanted)) => {
            *message == wanted && (word.is_empty() || *word == reason)
        }
        _ => false,
    }
}

/// Whose the addresses are. Where claims of both groups have one name, the entry of the second has its kind, too.
fn allocations(addresses: &[PoolAddress]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut sorted: Vec<&PoolAddress> = addresses.iter().collect();
    sorted.sort_by(|one, other| one.id.cmp(&other.id));
    for PoolAddress { id: (_, name), address, claim, .. } in sorted {
        let free = if all.contains_key(claim) { format!("{claim}/{name}") } else { claim.clone() };
        all.insert(free, address.clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::groups::PoolGroup;
    use super::*;

    fn spec() -> IPPoolSpec {
        serde_json::from_value(json!({"namePrefix": "p", "pools": [{"start": "10.0.0.1", "end": "10.0.0.3"}]})).unwrap()
    }

    fn claim(name: &str) -> AddressClaim {
        AddressClaim {
            id: (PoolGroup::Metal3, name.into()),
            uid: name.into(),
            created: None,
            wants: None,
            held: true,
            in_use: false,
            deleted: false,
            told: ClaimMessage::Nothing,
        }
    }

    fn address(last: u8, claim: &str) -> PoolAddress {
        PoolAddress {
            id: (PoolGroup::Metal3, format!("p-10-0-0-{last}")),
            address: format!("10.0.0.{last}"),
            claim: claim.into(),
            held: true,
        }
    }

    #[test]
    fn claims_that_have_no_answer_come_before_those_that_are_told_again() {
        let claims = [claim("told"), claim("a"), claim("b")];
        let addresses = [address(1, "told")];
        let mut plan = plan(&spec(), None, claims.to_vec(), addresses.to_vec(), &BTreeSet::new(), &mut |_| 0);
        assert!(plan.keep(3) && plan.steps.len() == 3);
        assert!(matches!(plan.steps.last(), Some(IpamStep::Tell(told, _)) if told.id.1 == "told"));
        assert!(!plan.keep(2) && plan.steps.iter().all(|step| matches!(step, IpamStep::Give(..))));
    }

    fn planned(closed: Option<&str>, claims: &[AddressClaim], addresses: &[PoolAddress]) -> Vec<String> {
        let plan = plan(&spec(), closed, claims.to_vec(), addresses.to_vec(), &BTreeSet::new(), &mut |_| 0);
        let words = plan.steps.iter().map(|step| match step {
            IpamStep::Give(claim, given) => format!("{} gets {}", claim.id.1, given.address),
            IpamStep::Tell(claim, name) => format!("{} has {name}", claim.id.1),
            IpamStep::Refuse(claim, refusal) => format!("{} gets none: {refusal}", claim.id.1),
            IpamStep::Release(claim, its) => format!("{} leaves {}", claim.id.1, its.len()),
            IpamStep::Orphan(address) => format!("{} is nobody's", address.address),
            IpamStep::Surplus(address) => format!("{} is one too many", address.address),
        });
        words.collect()
    }

    #[test]
    fn every_claim_is_brought_to_where_it_belongs() {
        let told = |name: &str, told: ClaimMessage| AddressClaim { told, ..claim(name) };
        let deleted = |name: &str| AddressClaim { deleted: true, ..claim(name) };
        let full = ClaimMessage::refused(&AllocationRefusal::Exhausted);
        let named = ClaimMessage::Address("p-10-0-0-1".into());
        type Row = (Option<&'static str>, Vec<AddressClaim>, Vec<PoolAddress>, Vec<&'static str>);
        let rows: Vec<Row> = vec![
            (None, vec![claim("b"), claim("a")], vec![], vec!["a gets 10.0.0.1", "b gets 10.0.0.2"]),
            // Killed after the address was written, and before the claim heard of it.
            (None, vec![claim("a")], vec![address(2, "a")], vec!["a has p-10-0-0-2"]),
            (None, vec![told("a", named.clone())], vec![address(1, "a")], vec![]),
            (
                None,
                vec![AddressClaim { held: false, ..told("a", named.clone()) }],
                vec![address(1, "a")],
                vec!["a has p-10-0-0-1"],
            ),
            // Two processes gave it one each; which of the two it has is what it was told.
            (
                None,
                vec![told("a", named.clone())],
                vec![address(1, "a"), address(3, "a")],
                vec!["10.0.0.3 is one too many"],
            ),
            (None, vec![claim("a")], vec![address(1, "a"), address(3, "a")], vec!["a has p-10-0-0-1"]),
            (
                None,
                vec![told("a", named.clone())],
                vec![address(1, "a"), PoolAddress { held: false, ..address(3, "a") }],
                vec![],
            ),
            // What it was told is gone.
            (None, vec![told("a", named.clone())], vec![], vec!["a gets 10.0.0.1"]),
            (None, vec![told("a", full.clone())], vec![], vec!["a gets 10.0.0.1"]),
            (
                None,
                vec![claim("a"), claim("b"), claim("c"), claim("d"), told("e", full)],
                vec![],
                vec!["a gets 10.0.0.1", "b gets 10.0.0.2", "c gets 10.0.0.3", "d gets none: Exhausted IP Pools"],
            ),
            (None, vec![deleted("a")], vec![address(1, "a")], vec!["a leaves 1"]),
            (None, vec![deleted("a")], vec![], vec!["a leaves 0"]),
            (None, vec![AddressClaim { held: false, ..deleted("a") }], vec![], vec![]),
            (None, vec![AddressClaim { in_use: true, ..deleted("a") }], vec![address(1, "a")], vec![]),
            // Its address is not another's until it is gone.
            (None, vec![deleted("a"), claim("b")], vec![address(1, "a")], vec!["a leaves 1", "b gets 10.0.0.2"]),
            (None, vec![], vec![address(1, "gone")], vec!["10.0.0.1 is nobody's"]),
            (None, vec![], vec![PoolAddress { held: false, ..address(1, "made by hand") }], vec![]),
            (
                Some("the pool is being deleted"),
                vec![claim("a"), claim("b"), deleted("c")],
                vec![address(1, "a"), address(2, "c")],
                vec!["a has p-10-0-0-1", "b gets none: the pool is being deleted", "c leaves 1"],
            ),
        ];
        for (closed, claims, addresses, wanted) in rows {
            assert_eq!(planned(closed, &claims, &addresses), wanted, "{claims:?} {addresses:?}");
        }
    }

    #[test]
    fn who_came_first_is_served_first() {
        let at = |name: &str, second: i64| AddressClaim {
            created: Some(jiff::Timestamp::from_second(second).unwrap()),
            ..claim(name)
        };
        assert_eq!(planned(None, &[at("a", 9), at("b", 1)], &[]), ["b gets 10.0.0.1", "a gets 10.0.0.2"]);
    }

    #[test]
    fn names_of_others_are_passed_over() {
        let foreign = BTreeSet::from(["10.0.0.1".parse().unwrap()]);
        let plan = plan(&spec(), None, vec![claim("a")], vec![], &foreign, &mut |_| 0);
        assert!(
            matches!(&plan.steps[..], [IpamStep::Give(_, given)] if given.address.to_string() == "10.0.0.2"),
            "{plan:?}"
        );
    }

    #[test]
    fn claims_of_one_name_in_both_groups_are_two() {
        let other = AddressClaim { id: (PoolGroup::Contract, "a".into()), ..claim("a") };
        let contract = PoolAddress { id: (PoolGroup::Contract, "p-10-0-0-2".into()), ..address(2, "a") };
        assert_eq!(planned(None, &[claim("a"), other.clone()], &[]), ["a gets 10.0.0.1", "a gets 10.0.0.2"]);
        let plan =
            plan(&spec(), None, vec![claim("a"), other], vec![address(1, "a"), contract], &BTreeSet::new(), &mut |_| 0);
        let wanted = [("a", "10.0.0.1"), ("a/p-10-0-0-2", "10.0.0.2")];
        assert_eq!(plan.allocations, wanted.map(|(claim, address)| (claim.to_owned(), address.to_owned())).into());
    }
}
