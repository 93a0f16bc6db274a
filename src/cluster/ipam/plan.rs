//! What is to be done about a pool, as its claims and addresses are. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use super::allocation::{Allocator, Given, Refusal};
use super::groups::{Address, Claim, Id, Told};
use super::ranges;
use crate::api::ipam::metal3::IPPoolSpec;

/// One thing that is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The claim gets this address.
    Give(Claim, Given),
    /// The claim has its address' object, of this name, and is to hear of it.
    Tell(Claim, String),
    /// The claim gets none.
    Refuse(Claim, Refusal),
    /// The claim goes, and with it these objects.
    Release(Claim, Vec<Address>),
    /// Its claim seems to be gone, whoever made it go.
    Orphan(Address),
    /// Its claim has heard of another address: two processes gave it one each.
    Surplus(Address),
}

/// What is to be done, and whose the addresses are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// In any order.
    pub steps: Vec<Step>,
    /// Addresses by claim, as the pool's status has them.
    pub allocations: BTreeMap<String, String>,
}

impl Plan {
    /// Leaves so many steps: what answers a claim first, before what only tells it again. False when that is not all.
    pub fn keep(&mut self, most: usize) -> bool {
        self.steps.sort_by_key(|step| matches!(step, Step::Tell(..)));
        let is_all = self.steps.len() <= most;
        self.steps.truncate(most);
        is_all
    }
}

/// Plans for a pool. `closed` says why it gives nothing now; of `foreign` addresses the names are somebody else's.
pub(super) fn plan(
    spec: &IPPoolSpec,
    closed: Option<&str>,
    mut claims: Vec<Claim>,
    addresses: Vec<Address>,
    foreign: &BTreeSet<IpAddr>,
    draw: &mut dyn FnMut(u128) -> u128,
) -> Plan {
    // The first come are the first served, whatever the order in which they are known.
    claims.sort_by(|one, other| (one.created, &one.id).cmp(&(other.created, &other.id)));
    let used = addresses.iter().filter_map(|one| ranges::address(&one.address));
    let mut allocator = Allocator::new(spec, used.chain(foreign.iter().copied()).collect());
    let mut plan = Plan { steps: Vec::new(), allocations: allocations(&addresses) };
    let known: HashSet<Id> = claims.iter().map(|claim| claim.id.clone()).collect();
    let mut by_claim: HashMap<Id, Vec<Address>> = HashMap::new();
    for address in addresses {
        let of = (address.id.0, address.claim.clone());
        if !known.contains(&of) && address.held {
            plan.steps.push(Step::Orphan(address.clone()));
        }
        by_claim.entry(of).or_default().push(address);
    }
    for claim in claims {
        let its = by_claim.remove(&claim.id).unwrap_or_default();
        if claim.deleted {
            // Who else holds it may still use the address.
            if claim.held && !claim.in_use {
                plan.steps.push(Step::Release(claim, its));
            }
            continue;
        }
        // One that is told of already stays, should there be several.
        let told = |address: &&Address| claim.told == Told::Address(address.id.1.clone());
        if let Some(address) = its.iter().find(told).or_else(|| its.first()) {
            let name = address.id.1.clone();
            if claim.told != Told::Address(name.clone()) || !claim.held {
                plan.steps.push(Step::Tell(claim, name));
            } else {
                let others = its.iter().filter(|other| other.held && other.id.1 != name);
                plan.steps.extend(others.cloned().map(Step::Surplus));
            }
            continue;
        }
        let answer = match closed {
            Some(why) => Err(Refusal::NotReady(why.to_owned())),
            None => allocator.allocate(&claim.id.1, claim.wants.as_deref(), draw),
        };
        match answer {
            Ok(given) => plan.steps.push(Step::Give(claim, given)),
            Err(refusal) if is_told(&claim.told, &refusal) => {}
            Err(refusal) => plan.steps.push(Step::Refuse(claim, refusal)),
        }
    }
    plan
}

/// Whether a claim has heard of a refusal.
fn is_told(told: &Told, refusal: &Refusal) -> bool {
    match (told, Told::refused(refusal)) {
        // Metal3's claims have no word for it.
        (Told::Refused(word, message), Told::Refused(reason, wanted)) => {
            *message == wanted && (word.is_empty() || *word == reason)
        }
        _ => false,
    }
}

/// Whose the addresses are. Where claims of both groups have one name, the entry of the second has its kind, too.
fn allocations(addresses: &[Address]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut sorted: Vec<&Address> = addresses.iter().collect();
    sorted.sort_by(|one, other| one.id.cmp(&other.id));
    for Address { id: (_, name), address, claim, .. } in sorted {
        let free = if all.contains_key(claim) { format!("{claim}/{name}") } else { claim.clone() };
        all.insert(free, address.clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::groups::Group;
    use super::*;

    fn spec() -> IPPoolSpec {
        serde_json::from_value(json!({"namePrefix": "p", "pools": [{"start": "10.0.0.1", "end": "10.0.0.3"}]})).unwrap()
    }

    fn claim(name: &str) -> Claim {
        Claim {
            id: (Group::Metal3, name.into()),
            uid: name.into(),
            created: None,
            wants: None,
            held: true,
            in_use: false,
            deleted: false,
            told: Told::Nothing,
        }
    }

    fn address(last: u8, claim: &str) -> Address {
        Address {
            id: (Group::Metal3, format!("p-10-0-0-{last}")),
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
        assert!(matches!(plan.steps.last(), Some(Step::Tell(told, _)) if told.id.1 == "told"));
        assert!(!plan.keep(2) && plan.steps.iter().all(|step| matches!(step, Step::Give(..))));
    }

    fn planned(closed: Option<&str>, claims: &[Claim], addresses: &[Address]) -> Vec<String> {
        let plan = plan(&spec(), closed, claims.to_vec(), addresses.to_vec(), &BTreeSet::new(), &mut |_| 0);
        let words = plan.steps.iter().map(|step| match step {
            Step::Give(claim, given) => format!("{} gets {}", claim.id.1, given.address),
            Step::Tell(claim, name) => format!("{} has {name}", claim.id.1),
            Step::Refuse(claim, refusal) => format!("{} gets none: {refusal}", claim.id.1),
            Step::Release(claim, its) => format!("{} leaves {}", claim.id.1, its.len()),
            Step::Orphan(address) => format!("{} is nobody's", address.address),
            Step::Surplus(address) => format!("{} is one too many", address.address),
        });
        words.collect()
    }

    #[test]
    fn every_claim_is_brought_to_where_it_belongs() {
        let told = |name: &str, told: Told| Claim { told, ..claim(name) };
        let deleted = |name: &str| Claim { deleted: true, ..claim(name) };
        let full = Told::refused(&Refusal::Exhausted);
        let named = Told::Address("p-10-0-0-1".into());
        type Row = (Option<&'static str>, Vec<Claim>, Vec<Address>, Vec<&'static str>);
        let rows: Vec<Row> = vec![
            (None, vec![claim("b"), claim("a")], vec![], vec!["a gets 10.0.0.1", "b gets 10.0.0.2"]),
            // Killed after the address was written, and before the claim heard of it.
            (None, vec![claim("a")], vec![address(2, "a")], vec!["a has p-10-0-0-2"]),
            (None, vec![told("a", named.clone())], vec![address(1, "a")], vec![]),
            (
                None,
                vec![Claim { held: false, ..told("a", named.clone()) }],
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
                vec![address(1, "a"), Address { held: false, ..address(3, "a") }],
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
            (None, vec![Claim { held: false, ..deleted("a") }], vec![], vec![]),
            (None, vec![Claim { in_use: true, ..deleted("a") }], vec![address(1, "a")], vec![]),
            // Its address is not another's until it is gone.
            (None, vec![deleted("a"), claim("b")], vec![address(1, "a")], vec!["a leaves 1", "b gets 10.0.0.2"]),
            (None, vec![], vec![address(1, "gone")], vec!["10.0.0.1 is nobody's"]),
            (None, vec![], vec![Address { held: false, ..address(1, "made by hand") }], vec![]),
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
        let at = |name: &str, second: i64| Claim {
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
            matches!(&plan.steps[..], [Step::Give(_, given)] if given.address.to_string() == "10.0.0.2"),
            "{plan:?}"
        );
    }

    #[test]
    fn claims_of_one_name_in_both_groups_are_two() {
        let other = Claim { id: (Group::Contract, "a".into()), ..claim("a") };
        let contract = Address { id: (Group::Contract, "p-10-0-0-2".into()), ..address(2, "a") };
        assert_eq!(planned(None, &[claim("a"), other.clone()], &[]), ["a gets 10.0.0.1", "a gets 10.0.0.2"]);
        let plan =
            plan(&spec(), None, vec![claim("a"), other], vec![address(1, "a"), contract], &BTreeSet::new(), &mut |_| 0);
        let wanted = [("a", "10.0.0.1"), ("a/p-10-0-0-2", "10.0.0.2")];
        assert_eq!(plan.allocations, wanted.map(|(claim, address)| (claim.to_owned(), address.to_owned())).into());
    }
}
