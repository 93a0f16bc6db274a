//! What is known of claims and addresses, by pool: kept by one watch of each kind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::groups::{self, AddressClaim, Kinds, PoolAddress, PoolGroup, Refers};
use crate::runtime::{Grouped, ObjectKey, Wakes, WatchChange, Watches, key};

/// Claims and addresses of all pools. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct IpamIndex(Arc<Mutex<IpamState>>);

#[derive(Default)]
struct IpamState {
    claims: HashMap<PoolGroup, Grouped<AddressClaim>>,
    addresses: HashMap<PoolGroup, Grouped<PoolAddress>>,
    /// Kinds that were not listed yet.
    awaited: usize,
}

/// What is known of a pool, which need not be there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OfPool {
    /// Claims.
    pub claims: Vec<AddressClaim>,
    /// Addresses.
    pub addresses: Vec<PoolAddress>,
}

impl IpamIndex {
    /// Follows the claims of a group, and has the pools looked at that they are for.
    pub fn follow_claims<K: Kinds>(&self, watches: &mut Watches, pools: Wakes) {
        let index = self.listed_later();
        let mut listed = false;
        watches.observe(move |change: &WatchChange<'_, K::Claim>| match change {
            WatchChange::Put(object) => {
                let of = match K::claimed(object) {
                    Refers::Pool(pool) => Some((pool, groups::claim::<K>(object))),
                    _ => None,
                };
                index.put(&pools, |known| known.claims.entry(K::GROUP).or_default().put(&key(*object), of));
            }
            WatchChange::Gone(key) => {
                index.put(&pools, |known| known.claims.entry(K::GROUP).or_default().put(key, None))
            }
            WatchChange::Listed => index.listed(&mut listed, &pools),
        });
    }

    /// Follows the addresses of a group, and has the pools looked at that they are of.
    pub fn follow_addresses<K: Kinds>(&self, watches: &mut Watches, pools: Wakes) {
        let index = self.listed_later();
        let mut listed = false;
        watches.observe(move |change: &WatchChange<'_, K::Address>| match change {
            WatchChange::Put(object) => {
                let of = of::<K>(object);
                index.put(&pools, |known| known.addresses.entry(K::GROUP).or_default().put(&key(*object), of));
            }
            WatchChange::Gone(key) => {
                index.put(&pools, |known| known.addresses.entry(K::GROUP).or_default().put(key, None))
            }
            WatchChange::Listed => index.listed(&mut listed, &pools),
        });
    }

    /// What is known of a pool; `None` as long as not everything was listed.
    pub fn of(&self, pool: &ObjectKey) -> Option<OfPool> {
        let known = self.lock();
        (known.awaited == 0).then(|| OfPool {
            claims: known.claims.values().flat_map(|claims| claims.of(pool)).map(|(_, claim)| claim.clone()).collect(),
            addresses: known.addresses.values().flat_map(|all| all.of(pool)).map(|(_, one)| one.clone()).collect(),
        })
    }

    /// Takes note of an address that was just stored: the watch tells it later, and until then it must not be given again.
    pub fn stored<K: Kinds>(&self, object: &K::Address) {
        self.lock().addresses.entry(K::GROUP).or_default().put(&key(object), of::<K>(object));
    }

    /// The addresses of one claim of a pool; `None` as long as not everything was listed.
    pub fn of_claim(&self, pool: &ObjectKey, (group, claim): (PoolGroup, &str)) -> Option<Vec<PoolAddress>> {
        let known = self.lock();
        let all = known.addresses.get(&group).into_iter().flat_map(|all| all.of(pool)).map(|(_, one)| one);
        let its = all.filter(|one| one.claim == claim).cloned().collect();
        (known.awaited == 0).then_some(its)
    }

    /// The names of a pool's claims of a group.
    pub fn claims_of(&self, pool: &ObjectKey, group: PoolGroup) -> Vec<String> {
        let known = self.lock();
        let claims = known.claims.get(&group);
        claims.into_iter().flat_map(|claims| claims.of(pool)).map(|(name, _)| name.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, IpamState> {
        // Nothing in it can panic between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listed_later(&self) -> Self {
        self.lock().awaited += 1;
        self.clone()
    }

    fn put(&self, pools: &Wakes, put: impl FnOnce(&mut IpamState) -> [Option<ObjectKey>; 2]) {
        let concerned = put(&mut self.lock());
        concerned.into_iter().flatten().for_each(|pool| pools.wake(pool));
    }

    fn listed(&self, before: &mut bool, pools: &Wakes) {
        if std::mem::replace(before, true) {
            return;
        }
        let mut known = self.lock();
        known.awaited = known.awaited.saturating_sub(1);
        if known.awaited == 0 {
            let with_claims = known.claims.values().flat_map(Grouped::groups);
            let with_addresses = known.addresses.values().flat_map(Grouped::groups);
            with_claims.chain(with_addresses).for_each(|pool| pools.wake(pool.clone()));
        }
    }
}

fn of<K: Kinds>(object: &K::Address) -> Option<(ObjectKey, PoolAddress)> {
    match groups::address::<K>(object) {
        (Refers::Pool(pool), address) => Some((pool, address)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_before_everything_was_listed() {
        let (index, pool) = (IpamIndex::default(), ("rack".to_owned(), "p".to_owned()));
        let (one, other) = (index.listed_later(), index.listed_later());
        let (mut first, mut second) = (false, false);
        one.listed(&mut first, &Wakes::default());
        one.listed(&mut first, &Wakes::default());
        assert_eq!(index.of(&pool), None);
        other.listed(&mut second, &Wakes::default());
        assert_eq!(index.of(&pool), Some(OfPool::default()));
    }
}
