//! Memory shared by request bodies of agents, and who gives way when it is used up.
//!
//! Whoever sends half a body and then nothing would keep its room for as long as a body may take. So of those that are not
//! worked on yet one gives way to who holds less: of the group (a namespace, or an address) that holds most the one that holds
//! most, and of these the oldest. A body that is worked on is soon done with, and keeps its room until then.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Bodies that one sender may have here at once. An agent has three; of an address there may be several, where programs play
/// machines.
pub(super) const OF_ONE: usize = 64;

/// Whose a body is: a namespace and a host of it, or an address twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sender {
    /// Who shares with others.
    pub group: String,
    /// One of the group.
    pub one: String,
}

/// So many bytes, and who has them. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub(super) struct BodyBudget {
    most: usize,
    // std's lock: held for a look, never across an await.
    table: Arc<Mutex<BodyTable>>,
}

#[derive(Debug, Default)]
struct BodyTable {
    held: usize,
    bodies: BTreeMap<u64, HeldBody>,
    senders: HashMap<Sender, Sums>,
    groups: HashMap<String, Sums>,
    last: u64,
}

/// What somebody has here.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    bodies: usize,
    bytes: usize,
}

#[derive(Debug)]
struct HeldBody {
    sender: Sender,
    bytes: usize,
    /// Whether all of it is there.
    whole: bool,
    /// Ends one that is not worked on yet.
    waiting: Option<CancellationToken>,
}

/// No room, and nobody who gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BudgetFull;

/// The room of one body, until it is dropped.
#[derive(Debug)]
pub(super) struct BodyPlace {
    room: BodyBudget,
    number: u64,
    pushed_out: CancellationToken,
}

impl BodyBudget {
    /// Room for so many bytes.
    pub fn new(most: usize) -> Self {
        Self { most, table: Arc::default() }
    }

    /// A place for a body that begins to arrive.
    pub fn enter(&self, sender: Sender) -> Result<BodyPlace, BudgetFull> {
        let mut table = self.table();
        if table.senders.get(&sender).is_some_and(|sums| sums.bodies >= OF_ONE) {
            // Its own oldest one goes that has not come by now.
            let own = table.bodies.iter().find(|(_, held)| held.sender == sender && !held.whole);
            let own = own.map(|(number, _)| *number).ok_or(BudgetFull)?;
            table.push_out(own);
        }
        table.last += 1;
        let (number, pushed_out) = (table.last, CancellationToken::new());
        table.senders.entry(sender.clone()).or_default().bodies += 1;
        table.groups.entry(sender.group.clone()).or_default().bodies += 1;
        table.bodies.insert(number, HeldBody { sender, bytes: 0, whole: false, waiting: Some(pushed_out.clone()) });
        drop(table);
        Ok(BodyPlace { room: self.clone(), number, pushed_out })
    }

    /// Bytes that nobody has.
    #[cfg(test)]
    pub fn left(&self) -> usize {
        self.most - self.table().held
    }

    fn table(&self) -> MutexGuard<'_, BodyTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BodyPlace {
    /// Takes so many bytes more.
    pub fn take(&self, more: usize) -> Result<(), BudgetFull> {
        let mut table = self.room.table();
        while table.held.saturating_add(more) > self.room.most {
            let other = table.gives_way(self.number, more).ok_or(BudgetFull)?;
            table.push_out(other);
        }
        table.add(self.number, more)
    }

    /// Ends when another one has its room.
    pub async fn pushed_out(&self) {
        self.pushed_out.cancelled().await;
    }

    /// All of it is there, and waits for its turn.
    pub fn is_whole(&self) -> Result<(), BudgetFull> {
        self.room.table().bodies.get_mut(&self.number).ok_or(BudgetFull)?.whole = true;
        Ok(())
    }

    /// It is worked on: nobody has its room before that is done.
    pub fn begins(&self) -> Result<(), BudgetFull> {
        let mut table = self.room.table();
        let held = table.bodies.get_mut(&self.number).ok_or(BudgetFull)?;
        (held.whole, held.waiting) = (true, None);
        Ok(())
    }
}

impl Drop for BodyPlace {
    fn drop(&mut self) {
        self.room.table().remove(self.number);
    }
}

impl BodyTable {
    fn add(&mut self, number: u64, more: usize) -> Result<(), BudgetFull> {
        let held = self.bodies.get_mut(&number).ok_or(BudgetFull)?;
        held.bytes += more;
        if let Some(sums) = self.senders.get_mut(&held.sender) {
            sums.bytes += more;
        }
        if let Some(sums) = self.groups.get_mut(&held.sender.group) {
            sums.bytes += more;
        }
        self.held += more;
        Ok(())
    }

    /// Who gives way to one that wants so many bytes more: only who holds more than that one will.
    fn gives_way(&self, number: u64, more: usize) -> Option<u64> {
        let sender = &self.bodies.get(&number)?.sender;
        let of = |sender: &Sender| {
            let group = self.groups.get(&sender.group).copied().unwrap_or_default().bytes;
            (group, self.senders.get(sender).copied().unwrap_or_default().bytes)
        };
        let own = of(sender);
        let others = self.bodies.iter().filter(|(other, held)| **other != number && held.waiting.is_some());
        let judged = others.filter_map(|(other, held)| {
            let theirs = of(&held.sender);
            let may = if held.sender == *sender {
                true
            } else if held.sender.group == sender.group {
                theirs.1 > own.1 + more
            } else {
                theirs.0 > own.0 + more
            };
            (may && held.bytes > 0).then_some((theirs, Reverse(*other)))
        });
        judged.max().map(|(_, Reverse(other))| other)
    }

    fn push_out(&mut self, number: u64) {
        if let Some(token) = self.remove(number).and_then(|held| held.waiting) {
            token.cancel();
        }
    }

    fn remove(&mut self, number: u64) -> Option<HeldBody> {
        let held = self.bodies.remove(&number)?;
        self.held -= held.bytes;
        let less = |sums: &mut Sums| {
            sums.bodies -= 1;
            sums.bytes -= held.bytes;
            sums.bodies == 0
        };
        if self.senders.get_mut(&held.sender).is_some_and(less) {
            self.senders.remove(&held.sender);
        }
        let less = |sums: &mut Sums| {
            sums.bodies -= 1;
            sums.bytes -= held.bytes;
            sums.bodies == 0
        };
        if self.groups.get_mut(&held.sender.group).is_some_and(less) {
            self.groups.remove(&held.sender.group);
        }
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(group: &str, one: &str) -> Sender {
        Sender { group: group.into(), one: one.into() }
    }

    #[test]
    fn who_holds_most_gives_way_and_nobody_to_who_would_hold_as_much() {
        let room = BodyBudget::new(100);
        let enter = |group: &str, one: &str, bytes: usize| {
            let place = room.enter(sender(group, one)).expect("a place");
            place.take(bytes).map(|()| place)
        };
        let gone = |place: &BodyPlace| place.pushed_out.is_cancelled();
        let (a, b) = (enter("x", "a", 40).expect("room"), enter("x", "b", 40).expect("room"));
        let c = enter("y", "c", 20).expect("room");
        assert_eq!(
            enter("x", "d", 40).err(),
            Some(BudgetFull),
            "its group has more than others already, and it as much as a"
        );
        let d = enter("y", "d", 20).expect("x has 80, y will have 40");
        assert!(gone(&a) && !gone(&b) && !gone(&c), "the oldest of who has most");
        assert_eq!((a.take(1), a.begins()), (Err(BudgetFull), Err(BudgetFull)), "it is over");
        assert_eq!(room.left(), 20);
        drop(a);
        assert_eq!(room.left(), 20, "once");
        let e = enter("z", "e", 20).expect("room");
        // Of one's own the oldest goes; what is there is done with first.
        b.begins().expect("there");
        let more = enter("y", "c", 20).expect("its own");
        assert!(gone(&c) && !gone(&b));
        assert_eq!(enter("w", "w", 45).err(), Some(BudgetFull), "nobody has as much");
        drop((b, d, e, more));
        assert_eq!(room.left(), 100);
        let table = room.table();
        assert!(table.bodies.is_empty() && table.senders.is_empty() && table.groups.is_empty());
    }

    #[test]
    fn one_sender_has_a_few_bodies_and_the_oldest_that_is_not_there_goes() {
        let room = BodyBudget::new(100);
        let mut places: Vec<_> = (0..OF_ONE).map(|_| room.enter(sender("x", "a")).expect("a place")).collect();
        places[0].begins().expect("there");
        places.push(room.enter(sender("x", "a")).expect("the second one's"));
        let gone: Vec<_> = places.iter().map(|place| place.pushed_out.is_cancelled()).collect();
        assert_eq!(gone.iter().position(|gone| *gone), Some(1));
        assert_eq!(gone.iter().filter(|gone| **gone).count(), 1);
        room.enter(sender("x", "b")).expect("another's");
        // But for the one that is over.
        assert_eq!(places.iter().filter(|place| place.begins().is_ok()).count(), OF_ONE);
        assert_eq!(room.enter(sender("x", "a")).err(), Some(BudgetFull), "all are worked on");
    }
}
