//! Admission of TFTP requests: which become transfers.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use crate::ration::{Rank, RankShares};

/// Transfers at once, over all clients; who is not known has [a share](RankShares) of them. A request beyond it takes the
/// place of the oldest transfer that its client never answered; else one of the address that has most, if that has more than
/// the newcomer will have. When there is none it is dropped, and firmware asks again after some seconds.
pub const MAX_TRANSFERS: usize = 352;
/// Transfers at once for one address. A machine has a few network ports; nothing boots more than that at once.
pub const MAX_PER_ADDRESS: usize = 16;

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferAdmission {
    /// A new transfer. It is in the table.
    Start,
    /// The client repeats the request of a transfer that it has not answered yet: send the first packet again.
    Repeat,
    /// The client begins anew from the port of a transfer that was under way: end that one. The new one is in the table.
    Replace,
    /// A new transfer in the place of this one, which nobody answered: end that one. The new one is in the table.
    InPlaceOf(u64),
    /// Too many transfers.
    Busy(Busy),
}

/// Which bound was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// [`MAX_TRANSFERS`].
    #[error(
        "{MAX_TRANSFERS} transfers at once are the limit, and three quarters of them that of machines that are not known"
    )]
    Server,
    /// [`MAX_PER_ADDRESS`].
    #[error("{MAX_PER_ADDRESS} transfers at once are the limit of one address")]
    Address,
}

/// Transfers by client.
#[derive(Debug, Default)]
pub struct TransferTable {
    clients: HashMap<SocketAddr, TransferEntry>,
    addresses: HashMap<IpAddr, usize>,
    shares: RankShares,
    last: u64,
}

#[derive(Debug)]
struct TransferEntry {
    id: u64,
    request: Box<[u8]>,
    rank: Rank,
}

impl TransferTable {
    /// Judges a request. `answered` says whether the client of a transfer has answered in it.
    pub fn admit(
        &mut self,
        client: SocketAddr,
        request: &[u8],
        rank: Rank,
        answered: impl Fn(u64) -> bool,
    ) -> TransferAdmission {
        // The appliance itself is no better than what it knows.
        let rank = rank.max(Rank::Known);
        if let Some(entry) = self.clients.get_mut(&client) {
            if !answered(entry.id) && *entry.request == *request {
                return TransferAdmission::Repeat;
            }
            self.last += 1;
            *entry = TransferEntry { id: self.last, request: request.into(), rank: entry.rank };
            return TransferAdmission::Replace;
        }
        let busy = if self.addresses.get(&client.ip()).is_some_and(|count| *count >= MAX_PER_ADDRESS) {
            Some(Busy::Address)
        } else {
            (!self.shares.may_take(rank, MAX_TRANSFERS)).then_some(Busy::Server)
        };
        let mut admission = TransferAdmission::Start;
        if let Some(busy) = busy {
            let Some((other, id)) = self.gives_way(client, rank, busy, answered) else {
                return TransferAdmission::Busy(busy);
            };
            self.finish(other, id);
            admission = TransferAdmission::InPlaceOf(id);
        }
        *self.addresses.entry(client.ip()).or_default() += 1;
        self.shares.add(rank);
        self.last += 1;
        self.clients.insert(client, TransferEntry { id: self.last, request: request.into(), rank });
        admission
    }

    /// The transfer that gives way: the oldest that nobody answered, of strangers first, never of somebody better known.
    /// Whoever is there answers at once; a sender that was made up never does. Else, when it is not the newcomer's address that
    /// has too many, one of whoever has most, be it answered: else a few addresses would have all, as slowly as they like.
    fn gives_way(
        &self,
        client: SocketAddr,
        rank: Rank,
        busy: Busy,
        answered: impl Fn(u64) -> bool,
    ) -> Option<(SocketAddr, u64)> {
        let has = |address: IpAddr| self.addresses.get(&address).copied().unwrap_or_default();
        let own = has(client.ip());
        let judged = self.clients.iter().filter_map(|(other, entry)| {
            let (theirs, silent) = (has(other.ip()), !answered(entry.id));
            let may = match busy {
                Busy::Address => silent && other.ip() == client.ip(),
                Busy::Server => entry.rank >= rank && (silent || theirs > own + 1),
            };
            // Of those who answered who has most, of the others just the oldest.
            let most = if silent { 0 } else { theirs };
            may.then_some(((silent, entry.rank, most, Reverse(entry.id)), *other))
        });
        judged.max().map(|((.., Reverse(id)), other)| (other, id))
    }

    /// Number of the client's present transfer.
    pub fn id(&self, client: SocketAddr) -> Option<u64> {
        self.clients.get(&client).map(|entry| entry.id)
    }

    /// A transfer is over. Returns whether it was the client's present one.
    pub fn finish(&mut self, client: SocketAddr, id: u64) -> bool {
        if self.id(client) != Some(id) {
            return false;
        }
        if let Some(entry) = self.clients.remove(&client) {
            self.shares.remove(entry.rank);
        }
        if let Some(count) = self.addresses.get_mut(&client.ip()) {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&client.ip());
            }
        }
        true
    }

    /// Transfers in the table.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }
}

/// At most so many of something in each interval of time.
#[derive(Debug)]
pub struct RateLimit<T> {
    most: u32,
    used: u32,
    suppressed: u64,
    interval: Option<T>,
}

impl<T: Copy + Eq + Hash> RateLimit<T> {
    /// `most` in each interval.
    pub fn new(most: u32) -> Self {
        Self { most, used: 0, suppressed: 0, interval: None }
    }

    /// Takes one. `Some(n)` when there was one left; `n` were refused since the last that was granted.
    pub fn try_take(&mut self, interval: T) -> Option<u64> {
        if self.interval != Some(interval) {
            self.interval = Some(interval);
            self.used = 0;
        }
        if self.used == self.most {
            self.suppressed += 1;
            return None;
        }
        self.used += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(host: u8, port: u16) -> SocketAddr {
        ([10, 0, 0, host], port).into()
    }

    const ALL: fn(u64) -> bool = |_| true;
    const NONE: fn(u64) -> bool = |_| false;

    #[test]
    fn the_same_port_again_repeats_or_replaces() {
        let mut table = TransferTable::default();
        let admit = |table: &mut TransferTable, request: &[u8], answered: fn(u64) -> bool| {
            table.admit(client(1, 7), request, Rank::Known, answered)
        };
        assert_eq!(admit(&mut table, b"a", NONE), TransferAdmission::Start);
        let first = table.id(client(1, 7)).expect("in the table");
        assert_eq!(admit(&mut table, b"a", NONE), TransferAdmission::Repeat);
        assert_eq!(admit(&mut table, b"b", NONE), TransferAdmission::Replace);
        assert_eq!(admit(&mut table, b"b", ALL), TransferAdmission::Replace);
        assert!(!table.finish(client(1, 7), first), "the old one's end leaves the new one in");
        let id = table.id(client(1, 7)).expect("in the table");
        assert!(table.finish(client(1, 7), id));
        assert!(table.is_empty() && table.addresses.is_empty() && table.shares.taken() == 0);
    }

    #[test]
    fn one_address_cannot_take_all_and_all_cannot_take_more() {
        let mut table = TransferTable::default();
        let admit = |table: &mut TransferTable, host, port| table.admit(client(host, port), b"a", Rank::Known, ALL);
        for port in 0..MAX_PER_ADDRESS as u16 {
            assert_eq!(admit(&mut table, 1, port + 1), TransferAdmission::Start);
        }
        assert_eq!(admit(&mut table, 1, 999), TransferAdmission::Busy(Busy::Address));
        let mut port = 0;
        while table.len() < MAX_TRANSFERS {
            port += 1;
            assert_eq!(admit(&mut table, 2 + (port % 250) as u8, port), TransferAdmission::Start);
        }
        assert_eq!(admit(&mut table, 0, 1), TransferAdmission::InPlaceOf(1), "of who has most");
        let id = table.id(client(3, 1)).expect("in the table");
        assert!(table.finish(client(3, 1), id));
        assert_eq!(admit(&mut table, 0, 2), TransferAdmission::Start);
    }

    #[test]
    fn who_never_answered_gives_way_the_oldest_first_and_strangers_before_others() {
        let mut table = TransferTable::default();
        let mut ids = Vec::new();
        let quarter = RankShares::of_strangers(MAX_TRANSFERS);
        for number in 0..quarter as u16 {
            let who = client((number % 250) as u8, number + 1);
            assert_eq!(table.admit(who, b"a", Rank::Stranger, NONE), TransferAdmission::Start);
            ids.extend(table.id(who));
        }
        // Strangers' share is full: of them the oldest without an answer goes.
        let heard = |answered: &'static [usize], ids: &[u64]| {
            let answered: Vec<u64> = answered.iter().map(|index| ids[*index]).collect();
            move |id: u64| answered.contains(&id)
        };
        let newcomer = client(251, 1);
        assert_eq!(
            table.admit(newcomer, b"a", Rank::Stranger, heard(&[0, 1], &ids)),
            TransferAdmission::InPlaceOf(ids[2]),
            "the first two have answered"
        );
        assert_eq!(table.admit(client(252, 1), b"a", Rank::Stranger, ALL), TransferAdmission::Busy(Busy::Server));
        // The known take what is theirs without anybody's leaving, and in the end strangers' places.
        let mut taken = 0;
        while table.len() < MAX_TRANSFERS {
            let who = client((taken % 250) as u8, 5000 + taken);
            assert_eq!(table.admit(who, b"a", Rank::Known, NONE), TransferAdmission::Start);
            taken += 1;
        }
        let last = table.admit(client(254, 1), b"a", Rank::Known, heard(&[0], &ids));
        assert_eq!(last, TransferAdmission::InPlaceOf(ids[1]), "a stranger's, before the known");
        // Of one address only its own give way.
        let mut table = TransferTable::default();
        for port in 1..=MAX_PER_ADDRESS as u16 {
            table.admit(client(1, port), b"a", Rank::Known, NONE);
        }
        table.admit(client(2, 1), b"a", Rank::Stranger, NONE);
        let oldest = table.id(client(1, 1)).expect("in the table");
        assert_eq!(table.admit(client(1, 99), b"a", Rank::Known, NONE), TransferAdmission::InPlaceOf(oldest));
        assert_eq!(table.admit(client(1, 100), b"a", Rank::Known, ALL), TransferAdmission::Busy(Busy::Address));
    }

    #[test]
    fn a_few_addresses_that_answer_slowly_keep_nobody_out() {
        let mut table = TransferTable::default();
        let admit = |table: &mut TransferTable, host, port, rank| table.admit(client(host, port), b"a", rank, ALL);
        let quarter = RankShares::of_strangers(MAX_TRANSFERS) as u16;
        for number in 0..quarter {
            assert_eq!(admit(&mut table, (number % 6) as u8, number + 1, Rank::Stranger), TransferAdmission::Start);
        }
        let has =
            |table: &TransferTable, host: u8| table.addresses.get(&client(host, 1).ip()).copied().unwrap_or_default();
        for host in 100..120 {
            let before = (0..6).map(|host| has(&table, host)).max();
            let TransferAdmission::InPlaceOf(_) = admit(&mut table, host, 1, Rank::Stranger) else { panic!("{host}") };
            assert!(
                (0..6).map(|host| has(&table, host)).sum::<usize>() + 1 + usize::from(host - 100)
                    == usize::from(quarter)
            );
            assert!((0..6).map(|host| has(&table, host)).max() <= before, "one of who has most");
        }
        assert!((0..6).all(|host| has(&table, host) >= 10), "each keeps as much as the others");
        // Of a better known one nothing is taken, and nothing by who would have as much.
        let mut table = TransferTable::default();
        for number in 0..MAX_TRANSFERS as u16 {
            assert_eq!(admit(&mut table, (number % 176) as u8, number + 1, Rank::Known), TransferAdmission::Start);
        }
        assert_eq!(admit(&mut table, 200, 1, Rank::Stranger), TransferAdmission::Busy(Busy::Server));
        assert_eq!(admit(&mut table, 1, 999, Rank::Known), TransferAdmission::Busy(Busy::Server));
        let TransferAdmission::InPlaceOf(_) = admit(&mut table, 200, 1, Rank::Known) else { panic!("others have two") };
    }

    #[test]
    fn a_ration_counts_what_it_refused() {
        let mut limit = RateLimit::new(2);
        let taken: Vec<_> = [1, 1, 1, 1, 2, 2].into_iter().map(|interval| limit.try_take(interval)).collect();
        assert_eq!(taken, [Some(0), Some(0), None, None, Some(2), Some(0)]);
    }
}
