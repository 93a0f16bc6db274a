//! Who may have a connection to boot HTTP, and who gives way when there are too many.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio_util::sync::CancellationToken;

use crate::ration::{Rank, Shares};

/// Connections at once from one address. iPXE opens one or two.
pub(super) const MAX_OF_AN_ADDRESS: usize = 64;

/// Connections. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) struct Guests(Arc<Inner>);

struct Inner {
    places: usize,
    // std's lock: held for a look, never across an await.
    table: Mutex<Table>,
    freed: Arc<Notify>,
}

#[derive(Default)]
struct Table {
    addresses: HashMap<IpAddr, usize>,
    shares: Shares,
    /// Those whose next request has not come yet, the one that waits longest first.
    idle: BTreeMap<u64, Idle>,
    last: u64,
}

struct Idle {
    rank: Rank,
    gone: Arc<AtomicBool>,
    end: CancellationToken,
}

/// A connection that is counted until the last clone is dropped.
#[derive(Clone)]
pub(super) struct Guest(Arc<Seat>);

struct Seat {
    guests: Guests,
    address: IpAddr,
    rank: Rank,
    /// Whether its place was given to another.
    gone: Arc<AtomicBool>,
    end: CancellationToken,
    /// Its number among the idle.
    idle: Mutex<Option<u64>>,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// [`MAX_OF_AN_ADDRESS`].
    #[error("there are {MAX_OF_AN_ADDRESS} from this address")]
    Address,
    /// The share of this rank.
    #[error("too many are busy, and this machine is not known")]
    Places,
}

impl Guests {
    /// As many places, none taken.
    pub fn new(places: usize) -> Self {
        Self(Arc::new(Inner { places, table: Mutex::default(), freed: Arc::default() }))
    }

    /// Done when a place becomes free after this call.
    pub fn freed(&self) -> OwnedNotified {
        self.0.freed.clone().notified_owned()
    }

    /// A place for a connection, which `end` ends. When there is none, the place of one that has not sent its request for
    /// longest, of strangers first, never of somebody better known.
    pub fn enter(&self, address: IpAddr, rank: Rank, end: &CancellationToken) -> Result<Guest, Full> {
        // The appliance itself is no better than what it knows.
        let rank = rank.max(Rank::Known);
        let mut table = self.table();
        if table.addresses.get(&address).is_some_and(|count| *count >= MAX_OF_AN_ADDRESS) {
            return Err(Full::Address);
        }
        if !table.shares.may_take(rank, self.0.places) {
            let others = table.idle.iter().filter(|(_, other)| other.rank >= rank);
            let longest = others.max_by_key(|(number, other)| (other.rank, Reverse(**number)));
            let number = longest.map(|(number, _)| *number).ok_or(Full::Places)?;
            if let Some(other) = table.idle.remove(&number) {
                other.gone.store(true, Ordering::Relaxed);
                table.shares.remove(other.rank);
                other.end.cancel();
            }
        }
        *table.addresses.entry(address).or_default() += 1;
        table.shares.add(rank);
        drop(table);
        let (guests, gone, end, idle) = (self.clone(), Arc::default(), end.clone(), Mutex::default());
        let guest = Guest(Arc::new(Seat { guests, address, rank, gone, end, idle }));
        guest.0.becomes_idle();
        Ok(guest)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    fn number(&self) -> MutexGuard<'_, Option<u64>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn becomes_idle(&self) {
        let mut table = self.guests.table();
        if self.gone.load(Ordering::Relaxed) {
            return;
        }
        table.last += 1;
        let number = table.last;
        table.idle.insert(number, Idle { rank: self.rank, gone: self.gone.clone(), end: self.end.clone() });
        *self.number() = Some(number);
    }

    fn is_busy(&self) {
        let mut table = self.guests.table();
        if let Some(number) = self.number().take() {
            table.idle.remove(&number);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.is_busy();
        let mut table = self.guests.table();
        if !self.gone.load(Ordering::Relaxed) {
            table.shares.remove(self.rank);
        }
        if let Some(count) = table.addresses.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                table.addresses.remove(&self.address);
            }
        }
        drop(table);
        self.guests.0.freed.notify_waiters();
    }
}

impl Guest {
    /// Its request's head has come.
    pub fn asks(&self) -> Asked {
        self.0.is_busy();
        Asked(self.0.clone())
    }
}

/// A request that is answered; when it is dropped, the connection waits for the next one.
pub(super) struct Asked(Arc<Seat>);

impl Asked {
    /// The answer, which is under way until its body is sent.
    pub fn until_sent(self, answer: Response) -> Response {
        answer.map(|body| Body::new(Sent { body, _asked: self }))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.becomes_idle();
    }
}

struct Sent {
    body: Body,
    _asked: Asked,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(guests: &Guests, last: u8, rank: Rank) -> Result<(Guest, CancellationToken), Full> {
        let end = CancellationToken::new();
        guests.enter([10, 0, 0, last].into(), rank, &end).map(|guest| (guest, end))
    }

    #[test]
    fn connections_are_counted_by_address() {
        let guests = Guests::new(1000);
        let mut some: Vec<_> = (0..MAX_OF_AN_ADDRESS).map(|_| enter(&guests, 1, Rank::Known).expect("room")).collect();
        assert_eq!(enter(&guests, 1, Rank::Known).err(), Some(Full::Address));
        assert!(enter(&guests, 2, Rank::Known).is_ok());
        some.pop();
        assert!(enter(&guests, 1, Rank::Known).is_ok());
        drop(some);
        let table = guests.table();
        assert!(table.addresses.is_empty() && table.idle.is_empty() && table.shares.taken() == 0);
    }

    #[test]
    fn who_has_not_asked_for_longest_gives_way_to_who_is_as_well_known() {
        let guests = Guests::new(8);
        let busy = enter(&guests, 1, Rank::Stranger).expect("room");
        let asked = busy.0.asks();
        let idle = enter(&guests, 2, Rank::Stranger).expect("room");
        // Strangers' quarter is full.
        let third = enter(&guests, 3, Rank::Stranger).expect("in the place of the idle one");
        assert!(idle.1.is_cancelled() && !busy.1.is_cancelled());
        let third_asked = third.0.asks();
        assert_eq!(enter(&guests, 4, Rank::Stranger).err(), Some(Full::Places), "both are busy");
        // Between two requests it gives way again.
        drop(third_asked);
        let fourth = enter(&guests, 4, Rank::Stranger).expect("room");
        assert!(third.1.is_cancelled());
        // The known take all the rest, then the strangers' who do not ask, then their own.
        let known: Vec<_> = (10..16).map(|last| enter(&guests, last, Rank::Known).expect("room")).collect();
        assert!(!fourth.1.is_cancelled());
        let _one = enter(&guests, 20, Rank::Known).expect("the stranger's place");
        assert!(fourth.1.is_cancelled() && known.iter().all(|one| !one.1.is_cancelled()));
        let _other = enter(&guests, 21, Rank::Known).expect("the place of the first");
        assert!(known[0].1.is_cancelled() && !busy.1.is_cancelled());
        drop((idle, third, fourth));
        assert_eq!(guests.table().shares.taken(), 8, "who lost a place gives none back");
        drop(asked);
    }
}
