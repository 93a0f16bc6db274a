//! A fair queue among flows.
//!
//! Flows wait for something that is scarce. The flow that has least goes first, and within a flow the one that has waited
//! longest.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Those who wait, by flow. One that waits twice keeps the first turn.
pub(super) struct FairQueue<P, K> {
    /// By their numbers. No flow is kept of which nobody waits.
    flows: HashMap<P, BTreeMap<u64, K>>,
    numbers: HashMap<K, (P, u64)>,
    last: u64,
}

impl<P, K> Default for FairQueue<P, K> {
    fn default() -> Self {
        Self { flows: HashMap::new(), numbers: HashMap::new(), last: 0 }
    }
}

impl<P: Eq + Hash + Clone, K: Eq + Hash + Clone> FairQueue<P, K> {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Waits from now on; who waits already for the same flow keeps its turn.
    pub(super) fn wait(&mut self, flow: &P, who: &K) {
        if self.numbers.get(who).is_some_and(|(former, _)| former == flow) {
            return;
        }
        self.leave(who);
        self.last += 1;
        self.flows.entry(flow.clone()).or_default().insert(self.last, who.clone());
        self.numbers.insert(who.clone(), (flow.clone(), self.last));
    }

    /// Waits no more.
    pub(super) fn leave(&mut self, who: &K) {
        let Some((flow, number)) = self.numbers.remove(who) else { return };
        if let Some(waiting) = self.flows.get_mut(&flow) {
            waiting.remove(&number);
            if waiting.is_empty() {
                self.flows.remove(&flow);
            }
        }
    }

    /// Takes out whose turn it is. `has` says how much a flow has already; none, when it may have no more.
    pub(super) fn next(&mut self, has: impl Fn(&P) -> Option<usize>) -> Option<(P, K)> {
        let first = |(flow, waiting): (&P, &BTreeMap<u64, K>)| {
            let (number, who) = waiting.first_key_value()?;
            Some((has(flow)?, *number, flow.clone(), who.clone()))
        };
        let all = self.flows.iter().filter_map(first);
        let (_, _, flow, who) = all.min_by_key(|(has, number, _, _)| (*has, *number))?;
        self.leave(&who);
        Some((flow, who))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which those that wait get something, when flows have so much.
    fn order(waiting: &[(char, u8)], have: &[(char, usize)], most: usize) -> Vec<(char, u8)> {
        let mut queue = FairQueue::default();
        for (flow, who) in waiting {
            queue.wait(flow, who);
        }
        let mut have: HashMap<char, usize> = have.iter().copied().collect();
        let mut order = Vec::new();
        while let Some((flow, who)) =
            queue.next(|flow| Some(have.get(flow).copied().unwrap_or(0)).filter(|has| *has < most))
        {
            *have.entry(flow).or_default() += 1;
            order.push((flow, who));
        }
        order
    }

    #[test]
    fn who_has_least_goes_first_and_of_those_who_waited_longest() {
        type Who = &'static [(char, u8)];
        type Have = &'static [(char, usize)];
        let rows: [(Who, Have, usize, Who); 6] = [
            (&[('a', 1), ('a', 2), ('b', 3)], &[], 9, &[('a', 1), ('b', 3), ('a', 2)]),
            (&[('a', 1), ('a', 2), ('b', 3)], &[('a', 1)], 9, &[('b', 3), ('a', 1), ('a', 2)]),
            (&[('a', 1), ('b', 2), ('b', 3)], &[('a', 2)], 9, &[('b', 2), ('b', 3), ('a', 1)]),
            (&[('a', 1), ('b', 2)], &[('a', 9)], 9, &[('b', 2)]),
            // Waiting again loses no turn; going over to another flow does.
            (&[('a', 1), ('a', 2), ('a', 1)], &[], 9, &[('a', 1), ('a', 2)]),
            (&[('a', 1), ('a', 2), ('b', 1)], &[('b', 1)], 9, &[('a', 2), ('b', 1)]),
        ];
        for (waiting, have, most, wanted) in rows {
            assert_eq!(order(waiting, have, most), wanted, "{waiting:?} {have:?}");
        }
    }

    #[test]
    fn nothing_is_left_of_those_who_left() {
        let mut queue = FairQueue::default();
        for who in 0..9 {
            queue.wait(&(who % 2), &who);
        }
        (0..9).for_each(|who| queue.leave(&who));
        queue.leave(&77);
        assert!(queue.len() == 0 && queue.flows.is_empty() && queue.next(|_| Some(0)).is_none());
    }
}
