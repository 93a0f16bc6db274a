//! The pool of a lease table: what it draws from, and what is kept out of it.

use std::net::Ipv4Addr;

use super::{LeaseTable, MOST_COUNTED, PoolShares};
use crate::config::AddressRange;

impl LeaseTable {
    /// Draws from this pool from now on, keeps these addresses out of it for good and those that are reserved, and keeps a tenth of
    /// it free of guests. The leases stay: one outside of the pool until it is over, and nobody renews it. Looks at all of them.
    pub fn draw_from(
        &mut self,
        pool: Vec<AddressRange>,
        never_given: impl IntoIterator<Item = Ipv4Addr>,
        reserved: impl IntoIterator<Item = Ipv4Addr>,
    ) {
        self.pool = pool;
        self.fixed = never_given.into_iter().map(Ipv4Addr::to_bits).collect();
        self.excluded = self.fixed.clone();
        // Whatever is free is found anew.
        self.cursor = (0, 0);
        self.freed.clear();
        self.in_freed.clear();
        self.with_lease = self.leases.values().filter(|entry| self.in_pool(entry.lease.address)).count();
        (self.left, self.shares) = (None, PoolShares::default());
        self.keep_from_guests();
        self.set_reserved(reserved);
    }

    /// Keeps a tenth of the pool, at least one address of at least two, free of guests: whatever those take, a known
    /// machine that comes for the first time gets an address.
    pub fn keep_from_guests(&mut self) {
        let size = self.count().min(MOST_COUNTED);
        self.keeps = true;
        self.size = size;
        self.kept = if size > 1 { (size / 10).max(1) } else { 0 };
    }

    /// Addresses of the pool.
    fn count(&self) -> usize {
        let mut ranges: Vec<_> =
            self.pool.iter().map(|range| (u64::from(range.first.to_bits()), u64::from(range.last.to_bits()))).collect();
        ranges.sort_unstable();
        let (mut size, mut next) = (0, 0);
        for (first, last) in ranges {
            // What two ranges share counts once.
            let first = first.max(next);
            size += (last + 1).saturating_sub(first);
            next = next.max(last + 1);
        }
        let in_range = |number: &&u32| self.pool.iter().any(|range| range.contains(Ipv4Addr::from_bits(**number)));
        let excluded = self.excluded.iter().filter(in_range).count();
        usize::try_from(size).unwrap_or(usize::MAX).saturating_sub(excluded)
    }

    /// Keeps an address out of the pool.
    pub fn exclude(&mut self, address: Ipv4Addr) {
        self.fixed.insert(address.to_bits());
        if self.excluded.insert(address.to_bits()) && self.kept > 0 {
            self.keep_from_guests();
        }
    }

    /// Keeps these addresses out of the pool, too, and no longer others that were kept out so before. A lease that somebody has
    /// of one stays until it is over or its machine asks again. Looks at all leases.
    pub fn set_reserved(&mut self, reserved: impl IntoIterator<Item = Ipv4Addr>) {
        let mut excluded = self.fixed.clone();
        excluded.extend(reserved.into_iter().map(Ipv4Addr::to_bits));
        let before = std::mem::replace(&mut self.excluded, excluded);
        if before == self.excluded {
            return;
        }
        for number in before.difference(&self.excluded) {
            // The cursor may have passed it.
            let free = self.in_pool(Ipv4Addr::from_bits(*number)) && !self.leases.contains_key(number);
            if free && self.in_freed.insert(*number) {
                self.freed.push_back(*number);
            }
        }
        self.with_lease = self.leases.values().filter(|entry| self.in_pool(entry.lease.address)).count();
        (self.left, self.shares) = (None, PoolShares::default());
        if self.keeps {
            self.keep_from_guests();
        }
    }
}
