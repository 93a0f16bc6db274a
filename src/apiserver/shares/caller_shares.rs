//! Fair shares: a bounded quantity that callers share, so that none of them takes it all.
//!
//! A quarter is kept for callers who have little. A caller is a user; whoever may make service accounts makes as many as
//! they like, so those of a namespace are one. Not so those of [`PEOPLE`], which only administrators make, each for somebody
//! else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Namespace of the service accounts of `slipway token create`.
pub(crate) const PEOPLE: &str = "slipway-system";

/// How much there is, and who has it.
#[derive(Clone)]
pub(in crate::apiserver) struct CallerShares {
    most: usize,
    // std's lock: held for a few sums only.
    taken: Arc<Mutex<TakenByCallers>>,
}

#[derive(Default)]
struct TakenByCallers {
    all: usize,
    callers: HashMap<String, usize>,
}

/// What one request of a caller has, until it is dropped.
pub(in crate::apiserver) struct CallerShare {
    of: CallerShares,
    caller: String,
    amount: usize,
}

impl CallerShares {
    /// Of so much.
    pub(in crate::apiserver) fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// So much of it for a user, when there is.
    pub(in crate::apiserver) fn take(&self, user: &str, amount: usize) -> Option<CallerShare> {
        let mut share = CallerShare { of: self.clone(), caller: caller(user).to_owned(), amount: 0 };
        share.grow(amount).then_some(share)
    }

    /// How much is taken.
    pub(in crate::apiserver) fn taken(&self) -> usize {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).all
    }

    /// Whether a caller who has `own` of `all` may have so much more.
    fn may_have(&self, all: usize, own: usize, more: usize) -> bool {
        let (kept, little) = (self.most / 4, (self.most / 40).max(1));
        let after = all.saturating_add(more);
        after <= self.most - kept || (after <= self.most && own.saturating_add(more) <= little)
    }
}

impl CallerShare {
    /// Takes more, or nothing when that is too much.
    #[must_use]
    pub(in crate::apiserver) fn grow(&mut self, more: usize) -> bool {
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.callers.get(&self.caller).copied().unwrap_or_default();
        if !self.of.may_have(taken.all, own, more) {
            return false;
        }
        if more > 0 {
            taken.all += more;
            *taken.callers.entry(self.caller.clone()).or_default() += more;
            self.amount += more;
        }
        true
    }
}

impl Drop for CallerShare {
    fn drop(&mut self) {
        if self.amount == 0 {
            return;
        }
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= self.amount;
        if let Some(own) = taken.callers.get_mut(&self.caller) {
            *own -= self.amount;
            if *own == 0 {
                taken.callers.remove(&self.caller);
            }
        }
    }
}

/// As whom a user counts.
pub(in crate::apiserver) fn caller(user: &str) -> &str {
    let prefix = "system:serviceaccount:";
    match user.strip_prefix(prefix).and_then(|rest| rest.split_once(':')) {
        Some((namespace, _)) if namespace != PEOPLE => &user[..prefix.len() + namespace.len()],
        _ => user,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 400;

    #[test]
    fn nobody_has_it_all() {
        let shares = CallerShares::new(MOST);
        let take = |user: &str| shares.take(user, 1);
        let greedy: Vec<_> = std::iter::from_fn(|| take("greedy")).collect();
        assert_eq!(greedy.len(), MOST * 3 / 4);
        // Many accounts of one namespace are no more than one caller.
        let accounts: Vec<_> = (0..MOST).map_while(|i| take(&format!("system:serviceaccount:rack:a{i}"))).collect();
        assert_eq!(accounts.len(), MOST / 40);
        let others: Vec<_> = (0..9).flat_map(|i| (0..MOST / 40).map(move |_| format!("user {i}"))).collect();
        let others: Vec<_> = others.iter().map(|user| take(user)).collect();
        assert!(others.iter().all(Option::is_some), "the share of the others");
        assert!(take("late").is_none(), "there are {MOST} in all");
        drop(others);
        assert!(take("greedy").is_none() && take("late").is_some());
        drop((greedy, accounts));
        let taken = shares.taken.lock().expect("unpoisoned");
        assert!(taken.all == 0 && taken.callers.is_empty());
    }

    #[test]
    fn a_share_grows_as_far_as_there_is_something() {
        let shares = CallerShares::new(MOST);
        let mut one = shares.take("one", 200).unwrap();
        assert!(one.grow(100) && !one.grow(1) && shares.taken() == 300);
        let mut other = shares.take("other", 0).unwrap();
        assert!(other.grow(10) && !other.grow(1), "little is what is kept for others");
        assert!(shares.take("third", 11).is_none() && shares.take("third", 10).is_some());
        drop(one);
        assert!(other.grow(1) && shares.taken() == 11);
        assert!(shares.take("third", usize::MAX).is_none());
    }

    #[test]
    fn service_accounts_count_by_namespace() {
        for (user, counted) in [
            ("slipway-admin", "slipway-admin"),
            ("system:serviceaccount:rack:bot", "system:serviceaccount:rack"),
            ("system:serviceaccount:rack:other", "system:serviceaccount:rack"),
            ("system:serviceaccount:", "system:serviceaccount:"),
            ("system:serviceaccount:slipway-system:ci", "system:serviceaccount:slipway-system:ci"),
            ("system:serviceaccount:slipway-system2:ci", "system:serviceaccount:slipway-system2"),
            ("", ""),
        ] {
            assert_eq!(caller(user), counted, "{user}");
        }
    }
}
