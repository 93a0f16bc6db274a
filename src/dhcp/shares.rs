//! Fair shares of a pool that is nearly used up, among the namespaces of known hosts. Pure.

use std::collections::{HashMap, HashSet};

/// Leases of one pool that the registered hosts of each namespace have.
#[derive(Debug, Default)]
pub struct PoolShares {
    /// When they were counted, seconds since 1970.
    at: Option<u64>,
    held: HashMap<String, usize>,
    /// Namespaces for which nobody had an address to give up in this second.
    in_vain: HashSet<String>,
}

impl PoolShares {
    /// Counts. `namespaces` are those that have registered hosts, `holders` names a namespace for each of its leases.
    pub fn count(
        now: u64,
        namespaces: impl IntoIterator<Item = String>,
        holders: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Self {
        let mut held: HashMap<String, usize> = namespaces.into_iter().map(|namespace| (namespace, 0)).collect();
        for namespace in holders {
            match held.get_mut(namespace.as_ref()) {
                Some(leases) => *leases += 1,
                None => drop(held.insert(namespace.as_ref().to_owned(), 1)),
            }
        }
        Self { at: Some(now), held, in_vain: HashSet::new() }
    }

    /// Whether they were counted in this second; what was given since then is in them.
    pub fn are_current(&self, now: u64) -> bool {
        self.at == Some(now)
    }

    fn of(&self, namespace: &str) -> usize {
        self.held.get(namespace).copied().unwrap_or_default()
    }

    /// A host of the namespace got an address.
    pub fn add(&mut self, namespace: &str) {
        if let Some(leases) = self.held.get_mut(namespace) {
            *leases = leases.saturating_add(1);
        }
    }

    /// A host of the namespace lost its address.
    pub fn remove(&mut self, namespace: &str) {
        if let Some(leases) = self.held.get_mut(namespace) {
            *leases = leases.saturating_sub(1);
        }
    }

    /// How many addresses must be left after a host of this namespace takes one, when so many are kept for known machines:
    /// an equal part of those for each namespace that has fewer than this one. Beside that the last of several is for a
    /// namespace that has none, perhaps one without hosts yet.
    pub fn left_for_others(&self, namespace: &str, kept: usize) -> usize {
        let own = self.of(namespace);
        let fewer = self.held.values().filter(|leases| **leases < own).count();
        let parts = kept.saturating_mul(fewer).div_ceil(self.held.len().max(1));
        parts.max(usize::from(own > 0 && kept > 1))
    }

    /// Whether it is worth to look for an address that another namespace gives up to this one: all that ended are looked at.
    pub fn may_look(&self, namespace: &str) -> bool {
        !self.in_vain.contains(namespace)
    }

    /// There is none in this second.
    pub fn looked_in_vain(&mut self, namespace: &str) {
        self.in_vain.insert(namespace.to_owned());
    }

    /// Whether the first namespace has more leases than the second.
    pub fn has_more(&self, first: &str, second: &str) -> bool {
        self.of(first) > self.of(second)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(held: &[(&str, usize)]) -> PoolShares {
        let holders = held.iter().flat_map(|(name, leases)| std::iter::repeat_n(*name, *leases));
        PoolShares::count(7, held.iter().map(|(name, _)| (*name).to_owned()), holders)
    }

    #[test]
    fn each_namespace_leaves_a_part_for_those_that_have_fewer() {
        type Held = &'static [(&'static str, usize)];
        let rows: [(Held, usize, usize); 10] = [
            // One namespace has all of the pool, but for the last of several kept addresses.
            (&[("a", 0)], 10, 0),
            (&[("a", 1)], 1, 0),
            (&[("a", 90)], 10, 1),
            (&[("a", 90), ("b", 0)], 10, 5),
            (&[("a", 90), ("b", 0)], 1, 1),
            (&[("a", 90), ("b", 3), ("c", 0)], 10, 7),
            (&[("a", 3), ("b", 90), ("c", 0)], 10, 4),
            (&[("a", 0), ("b", 90), ("c", 3)], 10, 0),
            (&[("a", 5), ("b", 5)], 10, 1),
            (&[("b", 90)], 10, 0),
        ];
        for (held, kept, wanted) in rows {
            assert_eq!(shares(held).left_for_others("a", kept), wanted, "{held:?} {kept}");
        }
        let mut shares = shares(&[("a", 2), ("b", 1)]);
        assert!(shares.are_current(7) && !shares.are_current(8));
        assert!(shares.has_more("a", "b") && !shares.has_more("b", "a") && shares.has_more("a", "c"));
        shares.remove("a");
        assert!(!shares.has_more("a", "b"));
        shares.add("b");
        assert!(shares.has_more("b", "a"));
    }

    proptest! {
        /// In whatever order they ask: each of several namespaces gets its part of what is kept, whoever began with the
        /// rest of the pool, or as much as it wants of it.
        #[test]
        fn nobody_takes_anothers_part(
            kept in 1_usize..40, rich in 1_usize..200, others in 1_usize..5, order in proptest::collection::vec(0_usize..6, 0..400),
        ) {
            let names = ["rich", "b", "c", "d", "e", "f"];
            let mut held = vec![(names[0], rich)];
            held.extend(names[1..=others].iter().map(|name| (*name, 0)));
            let mut shares = shares(&held);
            let mut left = kept;
            let mut got = [0; 6];
            // At last the others come, one after the other and again, as often as anybody is given something.
            let last = (1..=others).flat_map(|which| std::iter::repeat_n(which, kept));
            let last = std::iter::repeat_n(last, kept).flatten();
            for which in order.into_iter().filter(|which| *which <= others).chain(last) {
                if left > shares.left_for_others(names[which], kept) {
                    left -= 1;
                    got[which] += 1;
                    shares.add(names[which]);
                }
            }
            if kept >= 2 * (others + 1) {
                for which in 1..=others {
                    let part = (kept / (others + 1)).min(rich);
                    prop_assert!(got[which] + 1 >= part, "{which} got {got:?} of {kept} with {rich}");
                }
            }
            prop_assert!(got[1..].iter().sum::<usize>() >= 1);
        }
    }
}
