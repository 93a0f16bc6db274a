//! Eviction: which images give way when there is no room for another one.
//!
//! First go those that hosts named once and none names now. Then every namespace has a share of what hosts' images may
//! take: as much as every other one that wants images. An image counts for the namespaces that name it, in equal parts.
//! Who would stay within its share has images of those who are over theirs give way; who would not has to wait. So
//! nobody gives way again to whom it had to make room for.
//!
//! What is scarce are bytes, or parts: a library of many small parts has no inodes left, or as many parts as it may have,
//! long before its bytes are used up. Shares are of what is lacking.
//!
//! What somebody made by hand never gives way, and neither does what is being read.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use super::turns::ImageRequester;

/// What takes room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpaceHolder {
    /// Who wants it.
    pub(super) requesters: Vec<ImageRequester>,
    /// What it has of what is scarce.
    pub(super) amount: u64,
    /// When it was used last.
    pub(super) used: SystemTime,
    pub(super) tie: Tie,
}

/// How bad it is to lose an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tie {
    /// All hosts that name it are provisioned.
    Idle,
    /// A host that is not provisioned names it, or a boot intent does, or it is being imported.
    Needed,
    /// It is being read.
    Read,
}

/// Who wants room.
#[derive(Clone, Debug)]
pub(super) struct SpaceRequest {
    pub(super) requesters: Vec<ImageRequester>,
    /// What it will take in all of what is scarce.
    pub(super) amount: u64,
    /// How much is missing for it.
    pub(super) lacking: u64,
}

/// Why nothing gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionRefusal {
    /// What may give way would not be enough.
    Full,
    /// The requester would have more than its share.
    OverShare {
        /// What it would have.
        would: u64,
        /// What its share is.
        share: u64,
    },
}

/// What gives way, by its number in `held`. `total` is what the library has room for, full or not.
pub(super) fn give_way(
    held: &[SpaceHolder],
    request: &SpaceRequest,
    total: u64,
) -> Result<Vec<usize>, EvictionRefusal> {
    let mut plan = EvictionPlan { held, chosen: Vec::new(), freed: 0 };
    let mut unwanted = plan.may_go(|one| one.requesters.iter().all(|requester| *requester == ImageRequester::LeftOver));
    unwanted.sort_by_key(|at| (held[*at].tie, held[*at].used));
    let mut unwanted = unwanted.into_iter();
    let named = request.requesters.iter().any(|requester| *requester != ImageRequester::LeftOver);
    while named && plan.freed < request.lacking {
        let Some(at) = unwanted.next() else { break };
        plan.choose(at);
    }
    if plan.freed >= request.lacking {
        return Ok(plan.chosen);
    }
    let share = share(held, request, total);
    within(held, request, share)?;
    while plan.freed < request.lacking {
        let charges = plan.charges();
        let over = |requester: &ImageRequester| charges.get(requester).is_some_and(|charge| *charge > share);
        let candidates =
            plan.may_go(|one| !one.requesters.contains(&ImageRequester::ByHand) && one.requesters.iter().any(&over));
        let most =
            |one: &SpaceHolder| one.requesters.iter().filter_map(|requester| charges.get(requester)).max().copied();
        let order = |at: &usize| {
            let one = &held[*at];
            (one.tie, !one.requesters.iter().all(&over), Reverse(most(one)), one.used)
        };
        let Some(at) = candidates.into_iter().min_by_key(order) else { return Err(EvictionRefusal::Full) };
        plan.choose(at);
    }
    Ok(plan.chosen)
}

struct EvictionPlan<'a> {
    held: &'a [SpaceHolder],
    chosen: Vec<usize>,
    freed: u64,
}

impl EvictionPlan<'_> {
    fn choose(&mut self, at: usize) {
        self.freed = self.freed.saturating_add(self.held[at].amount);
        self.chosen.push(at);
    }

    /// What is left of these, and is not being read.
    fn may_go(&self, which: impl Fn(&SpaceHolder) -> bool) -> Vec<usize> {
        let is_left = |at: &usize| !self.chosen.contains(at);
        let all = self.held.iter().enumerate();
        all.filter(|(_, one)| one.tie != Tie::Read && which(one)).map(|(at, _)| at).filter(is_left).collect()
    }

    /// What counts for each namespace.
    fn charges(&self) -> BTreeMap<&ImageRequester, u64> {
        let left = self.held.iter().enumerate().filter(|(at, _)| !self.chosen.contains(at));
        charges(left.map(|(_, one)| one))
    }
}

fn charges<'a>(held: impl Iterator<Item = &'a SpaceHolder>) -> BTreeMap<&'a ImageRequester, u64> {
    let mut charges = BTreeMap::new();
    for one in held {
        let part = one.amount / (one.requesters.len() as u64).max(1);
        for requester in one.requesters.iter().filter(|requester| matches!(requester, ImageRequester::Namespace(_))) {
            let charge = charges.entry(requester).or_insert(0_u64);
            *charge = charge.saturating_add(part);
        }
    }
    charges
}

/// What each may have of the room that images made by hand leave.
fn share(held: &[SpaceHolder], request: &SpaceRequest, total: u64) -> u64 {
    let by_hand: u64 =
        held.iter().filter(|one| one.requesters.contains(&ImageRequester::ByHand)).map(|one| one.amount).sum();
    let all = held
        .iter()
        .flat_map(|one| &one.requesters)
        .filter(|requester| matches!(requester, ImageRequester::Namespace(_)));
    let requesters: BTreeSet<&ImageRequester> = all.chain(&request.requesters).collect();
    total.saturating_sub(by_hand) / (requesters.len() as u64).max(1)
}

/// Whether one of those who ask stays within its share.
fn within(held: &[SpaceHolder], request: &SpaceRequest, share: u64) -> Result<(), EvictionRefusal> {
    let charges = charges(held.iter());
    let part = request.amount / (request.requesters.len() as u64).max(1);
    let would = |requester: &ImageRequester| match requester {
        // The administrator's own affair.
        ImageRequester::ByHand => Some(0),
        ImageRequester::Namespace(_) => Some(charges.get(requester).copied().unwrap_or_default().saturating_add(part)),
        ImageRequester::LeftOver => None,
    };
    match request.requesters.iter().filter_map(would).min() {
        None => Err(EvictionRefusal::Full),
        Some(would) if would > share => Err(EvictionRefusal::OverShare { would, share }),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// `a b` are two namespaces; `-` is what was made by hand, `.` what is left over.
    fn requesters(text: &str) -> Vec<ImageRequester> {
        let of = |word: &str| match word {
            "-" => ImageRequester::ByHand,
            "." => ImageRequester::LeftOver,
            name => ImageRequester::Namespace(name.to_owned()),
        };
        text.split(' ').map(of).collect()
    }

    #[test]
    fn what_nobody_names_goes_first_and_then_what_is_beyond_a_share() {
        use Tie::{Idle, Needed, Read};
        type All = &'static [(&'static str, u64, u64, Tie)];
        let over = |would, share| Err(EvictionRefusal::OverShare { would, share });
        type Row = (All, &'static str, u64, u64, Result<&'static [usize], EvictionRefusal>);
        let table: &[Row] = &[
            // Of 100: who wants how much, and how much is missing.
            (&[], "a", 50, 10, Err(EvictionRefusal::Full)),
            // What nobody names: the oldest first, what is needed last, what is read never; whoever asks.
            (&[(".", 30, 9, Idle), (".", 30, 5, Idle), ("b", 30, 1, Idle)], "a", 50, 20, Ok(&[1])),
            (&[(".", 30, 9, Idle), (".", 30, 5, Idle), ("b", 30, 1, Idle)], "a", 50, 40, Ok(&[1, 0])),
            (&[(".", 30, 1, Needed), (".", 30, 5, Idle), ("b", 30, 1, Idle)], "a", 50, 20, Ok(&[1])),
            (&[("a", 70, 1, Idle), (".", 30, 1, Idle)], "a", 30, 30, Ok(&[1])),
            (&[(".", 100, 1, Idle)], "-", 50, 50, Ok(&[0])),
            (&[(".", 100, 1, Read)], "a", 50, 50, Err(EvictionRefusal::Full)),
            (&[(".", 100, 1, Idle)], ".", 50, 50, Err(EvictionRefusal::Full)),
            // One alone has all of it, and nobody's gives way.
            (&[("a", 50, 1, Idle), ("a", 50, 2, Idle)], "a", 50, 50, over(150, 100)),
            // Over the share of two: the oldest that no host needs first.
            (&[("e", 30, 2, Idle), ("e", 30, 1, Idle), ("e", 30, 3, Idle)], "v", 40, 30, Ok(&[1])),
            (&[("e", 30, 2, Needed), ("e", 30, 1, Needed), ("e", 30, 3, Idle)], "v", 40, 40, Ok(&[2, 1])),
            (&[("e", 30, 2, Read), ("e", 30, 1, Needed), ("e", 30, 3, Read)], "v", 40, 30, Ok(&[1])),
            (&[("e", 50, 2, Read), ("e", 50, 1, Read)], "v", 40, 40, Err(EvictionRefusal::Full)),
            // Only until it has no more than its share.
            (&[("e", 60, 1, Idle), ("e", 20, 2, Idle), ("e", 20, 3, Idle)], "v", 50, 70, Err(EvictionRefusal::Full)),
            (&[("e", 60, 1, Idle), ("v", 40, 2, Idle)], "v", 11, 11, over(51, 50)),
            (&[("e", 60, 1, Idle), ("v", 40, 2, Idle)], "e", 11, 11, over(71, 50)),
            (&[("e", 60, 1, Idle), ("v", 40, 2, Idle)], "v", 10, 10, Ok(&[0])),
            (&[("e", 50, 1, Idle), ("v", 50, 2, Idle)], "e v", 10, 10, over(55, 50)),
            // Who holds most gives way first.
            (&[("e", 40, 1, Idle), ("f", 50, 2, Idle), ("v", 10, 3, Idle)], "v", 10, 10, Ok(&[1])),
            // By hand: never gives way, and is nobody's share.
            (&[("-", 60, 1, Idle), ("e", 30, 2, Idle), ("v", 10, 3, Idle)], "v", 10, 10, Ok(&[1])),
            (&[("-", 60, 1, Idle), ("e", 20, 2, Idle), ("v", 20, 3, Idle)], "v", 10, 10, over(30, 20)),
            (&[("- e", 100, 1, Idle)], "v", 10, 10, over(10, 0)),
            (&[("e", 100, 1, Idle)], "-", 90, 50, Ok(&[0])),
            // What is shared counts in parts: who names it with many others makes nothing of it undroppable, and what
            // another below its share names as well goes last.
            (&[("e x", 50, 1, Idle), ("e y", 50, 2, Idle)], "v", 20, 20, Ok(&[0])),
            (&[("e v", 40, 1, Idle), ("e", 60, 2, Idle)], "v", 20, 20, Ok(&[1])),
        ];
        for (all, who, amount, lacking, expected) in table {
            let held: Vec<_> = all
                .iter()
                .map(|(of, amount, used, tie)| SpaceHolder {
                    requesters: requesters(of),
                    amount: *amount,
                    used: SystemTime::UNIX_EPOCH + Duration::from_secs(*used),
                    tie: *tie,
                })
                .collect();
            let request = SpaceRequest { requesters: requesters(who), amount: *amount, lacking: *lacking };
            let expected = expected.map(<[usize]>::to_vec);
            assert_eq!(give_way(&held, &request, 100), expected, "{all:?} {request:?}");
        }
    }
}
