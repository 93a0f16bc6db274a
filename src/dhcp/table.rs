//! The leases of one network: who has which address until when. Pure; time is a parameter.
//!
//! Every address of the network is in one of these states:
//!
//! | state | ends with | then |
//! |---|---|---|
//! | free | | |
//! | offered | the client's request, or the offer's hold | free, or what it was before |
//! | bound | release, or the lease | released, expired |
//! | released, expired | another client needs it and nothing else is free, or [`REMEMBER`] | free |
//! | declined | [`QUARANTINE`], or a known machine needs it and nothing else is left | free |
//!
//! A guest, that is a machine that is not known, gets an address only as long as more are free than those that are kept for
//! known machines ([`LeaseTable::guests_may_take`]).
//!
//! A known machine's address is never given to another one, also when its lease is over. Addresses that nobody had go
//! first, then those whose lease ended longest ago, so that a client that returns mostly finds its own.

mod pool;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::Ipv4Addr;

use crate::api::MacAddress;
use crate::config::AddressRange;

use super::client::{ClientKey, LeaseClient};
use super::shares::PoolShares;

/// Seconds an offer is held for its client. Firmware collects offers for some seconds before it requests one.
pub const OFFER_HOLD: u64 = 60;
/// Seconds a declined address is not given to anybody.
pub const QUARANTINE: u64 = 600;
/// Seconds an ended lease of an unknown client is remembered.
pub const REMEMBER: u64 = 7 * 86_400;
/// Offers looked at when a known machine needs the address of one.
const OFFERS_LOOKED_AT: usize = 256;
/// Addresses of a pool that count, however large it is: strangers who take one after the other fill no more of the memory.
const MOST_COUNTED: usize = 1 << 17;
/// Ended leases that are found free beyond those that are asked for, so that the next packets need not look again.
const FOUND_BEYOND: usize = 1024;
/// Known machines of which the UUID is remembered.
const MOST_MACHINES: usize = 1 << 16;

/// State of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Offered, not requested yet; in memory only.
    Offered,
    /// In use.
    Bound,
    /// Given back.
    Released,
    /// The lease ended; the client may return.
    Expired,
    /// The client found another machine using the address.
    Declined,
}

/// An address and its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub address: Ipv4Addr,
    /// The client.
    pub client: LeaseClient,
    /// State.
    pub state: LeaseState,
    /// When the state began to end: seconds since 1970.
    pub ends: u64,
    /// Host name that the client sent.
    pub hostname: Option<Box<str>>,
    /// Whether there is a record on disk.
    pub stored: bool,
}

/// A lease and when [`LeaseTable::advance`] looks at it next.
#[derive(Debug)]
struct LeaseEntry {
    lease: Lease,
    alarm: u64,
}

/// Ended leases that are free. Looked for once in a second, because every packet of a stranger asks when the pool is short.
#[derive(Debug)]
struct FreeAddresses {
    free: BTreeSet<(u64, u32)>,
    /// What ended since then and was not looked at.
    new: Vec<(u64, u32)>,
    /// Whether there are no others.
    all: bool,
}

/// Who is known: has a reservation, or is the boot address of a registered host.
pub type IsKnown<'a> = &'a dyn Fn(MacAddress) -> bool;

/// How many addresses a network has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Addresses of the pool, without those that are never given from it.
    pub pool: u64,
    /// Addresses that are offered or leased.
    pub used: u64,
    /// Addresses that are not given out, because somebody uses them who did not get them here.
    pub declined: u64,
}

/// The leases of one network.
#[derive(Debug, Default)]
pub struct LeaseTable {
    pool: Vec<AddressRange>,
    /// Addresses of the pool, as far as they count; 0 when nobody counted.
    size: usize,
    /// Addresses of the pool that must stay free of guests.
    kept: usize,
    /// Addresses of the pool that have a lease in whatever state.
    with_lease: usize,
    /// Never given from the pool: reservations, the server, the router.
    excluded: HashSet<u32>,
    /// Of these, those that are so for good.
    fixed: HashSet<u32>,
    /// Whether a part of the pool is kept for known machines.
    keeps: bool,
    leases: HashMap<u32, LeaseEntry>,
    by_client: HashMap<ClientKey, u32>,
    /// The address each machine had last, whatever its client identifier was.
    by_mac: HashMap<MacAddress, u32>,
    /// When something happens to a lease by itself.
    timers: BTreeSet<(u64, u32)>,
    /// Released and expired leases, the oldest first.
    ended: BTreeSet<(u64, u32)>,
    /// Declined addresses, the one first whose quarantine ends first.
    declined: BTreeSet<(u64, u32)>,
    /// Addresses behind the cursor that became free, and the same as a set: each is there once.
    freed: VecDeque<u32>,
    in_freed: HashSet<u32>,
    /// Ended leases of the pool that nobody needs, as far as they were looked for.
    left: Option<FreeAddresses>,
    /// The range, and the number in it, that was never given yet.
    cursor: (usize, u64),
    /// Addresses whose public view is out of date.
    changed: HashSet<u32>,
    /// UUID each known machine showed last.
    machines: HashMap<MacAddress, [u8; 16]>,
    /// What each namespace has of the pool.
    shares: PoolShares,
    now: u64,
}

impl LeaseTable {
    /// An empty table that draws from these ranges.
    #[cfg(test)]
    pub fn new(pool: Vec<AddressRange>) -> Self {
        Self { pool, ..Self::default() }
    }

    /// Whether there are free addresses beside those that are kept for known machines.
    pub fn guests_may_take(&mut self, known: IsKnown<'_>) -> bool {
        self.kept == 0 || !self.is_short(known)
    }

    /// Whether no address is left beside those that are kept for known machines.
    pub fn is_short(&mut self, known: IsKnown<'_>) -> bool {
        !self.has_left(self.kept + 1, known)
    }

    /// Whether so many addresses of the pool are nobody's.
    fn has_left(&mut self, wanted: usize, known: IsKnown<'_>) -> bool {
        let never_given = self.size.saturating_sub(self.with_lease);
        match wanted.checked_sub(never_given) {
            None | Some(0) => true,
            Some(missing) => self.left(missing, known).len() >= missing,
        }
    }

    /// Ended leases of the pool that nobody needs; so many, if there are.
    fn left(&mut self, wanted: usize, known: IsKnown<'_>) -> &BTreeSet<(u64, u32)> {
        let is_free = |table: &Self, (_, number): &(u64, u32)| {
            table.in_pool(Ipv4Addr::from_bits(*number)) && table.is_free(*number, known)
        };
        let mut left = match self.left.take() {
            Some(left) if left.all || left.free.len() >= wanted => left,
            _ => {
                let most = wanted.saturating_add(FOUND_BEYOND);
                let free: BTreeSet<_> =
                    self.ended.iter().filter(|one| is_free(self, one)).take(most).copied().collect();
                FreeAddresses { all: free.len() < most, free, new: Vec::new() }
            }
        };
        for one in std::mem::take(&mut left.new) {
            if self.ended.contains(&one) && is_free(self, &one) {
                left.free.insert(one);
            }
        }
        &self.left.insert(left).free
    }

    /// Whether a registered host of a namespace may take an address that is nobody's. [`LeaseTable::share`] comes before.
    pub fn namespace_may_take(&mut self, namespace: &str, known: IsKnown<'_>) -> bool {
        let for_others = self.shares.left_for_others(namespace, self.kept);
        for_others == 0 || self.has_left(for_others + 1, known)
    }

    /// Counts the shares of the namespaces, once in a second. `count` is given the machines that have a lease of the pool in
    /// whatever state.
    pub fn share(&mut self, now: u64, count: impl FnOnce(&mut dyn Iterator<Item = MacAddress>) -> PoolShares) {
        if self.shares.are_current(now) {
            return;
        }
        let mut holders = self.leases.iter().filter_map(|(number, LeaseEntry { lease, .. })| {
            let mac = lease.client.mac;
            let has = self.by_mac.get(&mac) == Some(number) && self.in_pool(lease.address);
            has.then_some(mac)
        });
        self.shares = count(&mut holders);
    }

    /// The shares as they were counted last.
    pub fn shares(&mut self) -> &mut PoolShares {
        &mut self.shares
    }

    /// The address of the pool that was left longest ago by a known machine whose claim of it gives way.
    pub fn find_claimed(&self, gives_way: impl Fn(&PoolShares, MacAddress) -> bool) -> Option<Ipv4Addr> {
        let claimed = self.ended.iter().map(|(_, number)| *number).find(|number| {
            let is_claim = |lease: &Lease| {
                self.by_mac.get(&lease.client.mac) == Some(number) && gives_way(&self.shares, lease.client.mac)
            };
            self.in_pool(Ipv4Addr::from_bits(*number)) && self.at(*number).is_some_and(is_claim)
        });
        claimed.map(Ipv4Addr::from_bits)
    }

    /// Addresses of the pool that known machines left and that are kept for them.
    pub fn claims(&self, known: IsKnown<'_>) -> Vec<(Ipv4Addr, MacAddress)> {
        let claims = self.ended.iter().filter_map(|(_, number)| {
            let lease = self.at(*number).filter(|lease| self.in_pool(lease.address) && self.is_kept(lease, known))?;
            Some((lease.address, lease.client.mac))
        });
        claims.collect()
    }

    /// Ends a machine's claim of an address that it left. Whether there was a record on disk, when it still had the claim.
    pub fn end_claim(&mut self, address: Ipv4Addr, mac: MacAddress) -> Option<bool> {
        let ended = |lease: &Lease| matches!(lease.state, LeaseState::Released | LeaseState::Expired);
        self.get(address).filter(|lease| lease.client.mac == mac && ended(lease))?;
        Some(self.remove(address))
    }

    /// Lets leases of machines that are known no more end like a stranger's, so many seconds from now, when the pool is
    /// short. The machine believes in a longer one and asks again at half of it; until somebody needs the address it is given
    /// it again.
    pub fn cut_short(&mut self, now: u64, lasts: u64, known: IsKnown<'_>) -> usize {
        let ends = now.saturating_add(lasts);
        if !self.is_short(known) {
            return 0;
        }
        let long = |lease: &Lease| {
            lease.state == LeaseState::Bound && lease.client.known && lease.ends > ends && !known(lease.client.mac)
        };
        let leases = self.leases.values().map(|entry| &entry.lease).filter(|lease| long(lease));
        let cut: Vec<_> = leases.map(|lease| Lease { ends, ..lease.clone() }).collect();
        let number = cut.len();
        cut.into_iter().for_each(|lease| self.put(lease));
        number
    }

    /// The leases, in an order in which putting them elsewhere leaves each machine the address that it had last.
    pub fn leases(&self) -> Vec<Lease> {
        let mut leases: Vec<_> = self.leases.values().map(|entry| entry.lease.clone()).collect();
        leases.sort_by_key(|lease| self.by_mac.get(&lease.client.mac) == Some(&lease.address.to_bits()));
        leases
    }

    /// How many addresses machines have now.
    pub fn bound(&self) -> usize {
        self.leases.values().filter(|entry| entry.lease.state == LeaseState::Bound).count()
    }

    /// How many leases that machines have will not be renewed: those outside of the pool that are not reserved for them either.
    pub fn not_renewed(&self, reserved_for: impl Fn(Ipv4Addr) -> Option<MacAddress>) -> usize {
        let ends = |lease: &&Lease| {
            lease.state == LeaseState::Bound
                && match reserved_for(lease.address) {
                    Some(owner) => owner != lease.client.mac,
                    None => !self.in_pool(lease.address),
                }
        };
        self.leases.values().map(|entry| &entry.lease).filter(ends).count()
    }

    /// Whether there is no pool: known machines only, each with a reservation.
    pub fn pool_is_empty(&self) -> bool {
        self.pool.is_empty()
    }

    /// How many addresses there are, and are taken.
    pub fn usage(&self) -> PoolUsage {
        let pool = self.pool.iter().map(|range| u64::from(range.last.to_bits() - range.first.to_bits()) + 1).sum();
        let excluded = self
            .excluded
            .iter()
            .filter(|number| self.pool.iter().any(|range| range.contains(Ipv4Addr::from_bits(**number))));
        let count = |length: usize| length as u64;
        PoolUsage {
            pool: u64::saturating_sub(pool, count(excluded.count())),
            used: count(self.leases.len()).saturating_sub(count(self.ended.len() + self.declined.len())),
            declined: count(self.declined.len()),
        }
    }

    /// Whether an address may be given from the pool at all.
    pub fn in_pool(&self, address: Ipv4Addr) -> bool {
        self.pool.iter().any(|range| range.contains(address)) && !self.excluded.contains(&address.to_bits())
    }

    /// The lease of an address.
    pub fn get(&self, address: Ipv4Addr) -> Option<&Lease> {
        self.at(address.to_bits())
    }

    fn at(&self, number: u32) -> Option<&Lease> {
        self.leases.get(&number).map(|entry| &entry.lease)
    }

    /// The lease a machine had last.
    pub fn of_mac(&self, mac: MacAddress) -> Option<&Lease> {
        self.at(*self.by_mac.get(&mac)?)
    }

    /// The lease of a client, whatever its state.
    pub fn of_client(&self, client: &LeaseClient) -> Option<&Lease> {
        if client.known {
            return self.of_mac(client.mac);
        }
        let by_key = self.by_client.get(&client.key()).and_then(|number| self.at(*number));
        // A machine that was known when it got its lease keeps it when its host is deleted.
        by_key.or_else(|| self.of_mac(client.mac).filter(|lease| lease.client.known))
    }

    /// Whether a lease is this client's.
    pub fn is_of(lease: &Lease, client: &LeaseClient) -> bool {
        let by_mac = client.known || lease.client.known;
        lease.state != LeaseState::Declined
            && if by_mac { lease.client.mac == client.mac } else { lease.client.key() == client.key() }
    }

    /// Whether nobody needs the address: no lease, or one that is over and not a known machine's.
    fn is_free(&self, number: u32, known: IsKnown<'_>) -> bool {
        self.at(number).is_none_or(|lease| {
            matches!(lease.state, LeaseState::Released | LeaseState::Expired) && !self.is_kept(lease, known)
        })
    }

    /// Whether an ended lease is kept for its known machine.
    fn is_kept(&self, lease: &Lease, known: IsKnown<'_>) -> bool {
        self.by_mac.get(&lease.client.mac) == Some(&lease.address.to_bits()) && known(lease.client.mac)
    }

    /// Whether a pool address may be given to a client that has no lease on it.
    pub fn may_take(&self, address: Ipv4Addr, known: IsKnown<'_>) -> bool {
        self.in_pool(address) && self.is_free(address.to_bits(), known)
    }

    /// Finds an address in the pool: the wished one when it is free, then one that nobody had, then the one that was
    /// left longest ago. A known machine may also have the address of an offer to an unknown client, and when there is
    /// nothing else the one that was declined longest ago: anybody can decline in its name.
    pub fn find(&mut self, wish: Option<Ipv4Addr>, client: &LeaseClient, known: IsKnown<'_>) -> Option<Ipv4Addr> {
        if let Some(address) = wish.filter(|address| self.may_take(*address, known)) {
            return Some(address);
        }
        // Beyond what counts, what others left goes first.
        if self.size == 0 || self.with_lease < self.size || known(client.mac) {
            while let Some(number) = self.freed.front().copied() {
                let address = Ipv4Addr::from_bits(number);
                if !self.leases.contains_key(&number) && self.in_pool(address) {
                    // Stays at hand until it is really given.
                    return Some(address);
                }
                self.freed.pop_front();
                self.in_freed.remove(&number);
            }
            if let Some(number) = self.fresh() {
                return Some(Ipv4Addr::from_bits(number));
            }
        }
        let oldest = self.left(1, known).first().map(|(_, number)| *number);
        // It may be a known machine's since it was found.
        let left = oldest.filter(|number| self.is_free(*number, known));
        left.map(Ipv4Addr::from_bits).or_else(|| self.find_for_known(client, known))
    }

    /// What a known machine may have when nothing is free: the address of an offer to an unknown client, else the one that was
    /// declined longest ago.
    pub fn find_for_known(&self, client: &LeaseClient, known: IsKnown<'_>) -> Option<Ipv4Addr> {
        if !known(client.mac) {
            return None;
        }
        let in_pool = |number: &u32| self.in_pool(Ipv4Addr::from_bits(*number));
        let is_strangers =
            |lease: &Lease| lease.state == LeaseState::Offered && !lease.stored && !known(lease.client.mac);
        let mut offers = self.timers.iter().take(OFFERS_LOOKED_AT).map(|(_, number)| *number).filter(in_pool);
        let offered = offers.find(|number| self.at(*number).is_some_and(is_strangers));
        let declined = || self.declined.iter().map(|(_, number)| *number).find(in_pool);
        offered.or_else(declined).map(Ipv4Addr::from_bits)
    }

    /// Notes of addresses that became free.
    #[cfg(test)]
    pub fn noted_free(&self) -> usize {
        self.freed.len()
    }

    /// The next address that nobody had. The cursor stays on it until it is given.
    fn fresh(&mut self) -> Option<u32> {
        loop {
            let range = self.pool.get(self.cursor.0)?;
            let (first, last) = (u64::from(range.first.to_bits()), u64::from(range.last.to_bits()));
            let number = first + self.cursor.1;
            if number > last {
                self.cursor = (self.cursor.0 + 1, 0);
                continue;
            }
            let number = u32::try_from(number).ok()?;
            if !self.excluded.contains(&number) && !self.leases.contains_key(&number) {
                return Some(number);
            }
            self.cursor.1 += 1;
        }
    }

    /// Puts a lease in the place of what was there.
    pub fn put(&mut self, lease: Lease) {
        let number = lease.address.to_bits();
        let had_view = self.unlink(number);
        if lease.state != LeaseState::Declined {
            self.by_client.insert(lease.client.key(), number);
            self.by_mac.insert(lease.client.mac, number);
        }
        let over = matches!(lease.state, LeaseState::Released | LeaseState::Expired);
        if over {
            self.ended.insert((lease.ends, number));
            if let Some(left) = &mut self.left {
                left.new.push((lease.ends, number));
            }
        }
        if lease.state == LeaseState::Declined {
            self.declined.insert((lease.ends, number));
        }
        let alarm = if over { lease.ends.saturating_add(REMEMBER) } else { lease.ends };
        self.timers.insert((alarm, number));
        if lease.stored || had_view {
            self.changed.insert(number);
        }
        let in_pool = self.in_pool(lease.address);
        if self.leases.insert(number, LeaseEntry { lease, alarm }).is_none() {
            self.with_lease += usize::from(in_pool);
        }
    }

    /// Forgets the lease of an address; the address is free. Tells whether there was a record on disk.
    pub fn remove(&mut self, address: Ipv4Addr) -> bool {
        let number = address.to_bits();
        let stored = self.unlink(number);
        if self.leases.remove(&number).is_some() && self.in_pool(address) {
            self.with_lease = self.with_lease.saturating_sub(1);
            if self.in_freed.insert(number) {
                self.freed.push_back(number);
            }
        }
        if stored {
            self.changed.insert(number);
        }
        stored
    }

    /// Takes an address out of every index but `leases`. Tells whether its lease had a record on disk.
    fn unlink(&mut self, number: u32) -> bool {
        let Some(LeaseEntry { lease: old, alarm }) = self.leases.get(&number) else { return false };
        let key = old.client.key();
        if self.by_client.get(&key) == Some(&number) {
            self.by_client.remove(&key);
        }
        if self.by_mac.get(&old.client.mac) == Some(&number) {
            self.by_mac.remove(&old.client.mac);
        }
        self.timers.remove(&(*alarm, number));
        self.ended.remove(&(old.ends, number));
        if let Some(left) = &mut self.left {
            left.free.remove(&(old.ends, number));
        }
        self.declined.remove(&(old.ends, number));
        old.stored
    }

    /// Lets time pass: offers lapse, leases expire, quarantine ends, old leases are forgotten. Returns the addresses
    /// whose record on disk is to go.
    pub fn advance(&mut self, now: u64, known: IsKnown<'_>) -> Vec<Ipv4Addr> {
        let mut gone = Vec::new();
        if now == self.now {
            return gone;
        }
        self.now = now;
        self.left = None;
        while let Some(&(when, number)) = self.timers.first().filter(|(when, _)| *when <= now) {
            let Some(lease) = self.at(number).cloned() else {
                self.timers.remove(&(when, number));
                continue;
            };
            match lease.state {
                LeaseState::Bound => self.put(Lease { state: LeaseState::Expired, ..lease }),
                LeaseState::Offered if lease.stored => self.put(Lease { state: LeaseState::Expired, ..lease }),
                LeaseState::Released | LeaseState::Expired if self.is_kept(&lease, known) => {
                    self.timers.remove(&(when, number));
                    let alarm = now.saturating_add(REMEMBER);
                    self.timers.insert((alarm, number));
                    if let Some(entry) = self.leases.get_mut(&number) {
                        entry.alarm = alarm;
                    }
                }
                LeaseState::Offered | LeaseState::Declined | LeaseState::Released | LeaseState::Expired => {
                    if self.remove(lease.address) {
                        gone.push(lease.address);
                    }
                }
            }
        }
        gone
    }

    /// The time of day jumped by so many seconds: all leases last as long as before. Returns those that have a record on disk.
    pub fn shift(&mut self, by: i64) -> Vec<Lease> {
        // In this order the address that a machine had last stays that one.
        let shifted =
            self.leases().into_iter().map(|lease| Lease { ends: lease.ends.saturating_add_signed(by), ..lease });
        let stored: Vec<_> = shifted.inspect(|lease| self.put(lease.clone())).filter(|lease| lease.stored).collect();
        self.now = self.now.saturating_add_signed(by);
        (self.left, self.shares) = (None, PoolShares::default());
        stored
    }

    /// Remembers the UUID a known machine shows. Returns the one it showed before when that is another machine's.
    pub fn record_uuid(&mut self, mac: MacAddress, uuid: [u8; 16]) -> Option<[u8; 16]> {
        if self.machines.len() >= MOST_MACHINES && !self.machines.contains_key(&mac) {
            // Hosts come and go: duplicates show again.
            self.machines.clear();
        }
        self.machines.insert(mac, uuid).filter(|before| !super::client::same_machine(*before, uuid))
    }

    /// Addresses whose public view is out of date, at most so many; they count as up to date from now on.
    pub fn take_changed(&mut self, limit: usize) -> Vec<Ipv4Addr> {
        let numbers: Vec<u32> = self.changed.iter().take(limit).copied().collect();
        for number in &numbers {
            self.changed.remove(number);
        }
        numbers.into_iter().map(Ipv4Addr::from_bits).collect()
    }

    /// Notes again that an address's public view is out of date.
    pub fn mark_changed(&mut self, address: Ipv4Addr) {
        self.changed.insert(address.to_bits());
    }
}

#[cfg(test)]
mod tests;
