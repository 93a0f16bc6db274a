//! Whose import runs next. Some run at once; who waits is served by whose it is: the first in line of those who have
//! least under way. One namespace that asks for a hundred images keeps nobody else's waiting behind them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// The places. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) struct Turns {
    places: usize,
    line: Arc<Mutex<Line>>,
}

#[derive(Default)]
struct Line {
    running: HashMap<String, usize>,
    count: usize,
    waiting: VecDeque<(String, oneshot::Sender<Turn>)>,
}

/// A place, until it is dropped.
pub(super) struct Turn {
    turns: Turns,
    owner: String,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut line = self.turns.lock();
        line.count -= 1;
        if let Some(running) = line.running.get_mut(&self.owner) {
            *running -= 1;
            if *running == 0 {
                line.running.remove(&self.owner);
            }
        }
        drop(line);
        self.turns.serve();
    }
}

impl Turns {
    pub(super) fn new(places: usize) -> Self {
        Self { places: places.max(1), line: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        // Only counts and the line change under it, in whole steps.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place at once, when one is free and nobody waits.
    pub(super) fn try_enter(&self, owner: &str) -> Option<Turn> {
        let mut line = self.lock();
        line.waiting.retain(|(_, turn)| !turn.is_closed());
        let free = line.count < self.places && line.waiting.is_empty();
        free.then(|| self.seat(&mut line, owner.to_owned()))
    }

    /// Waits for a place. Who stops waiting leaves the line.
    pub(super) async fn enter(&self, owner: &str) -> Turn {
        loop {
            let (send, turn) = oneshot::channel();
            self.lock().waiting.push_back((owner.to_owned(), send));
            self.serve();
            if let Ok(turn) = turn.await {
                return turn;
            }
        }
    }

    /// Whether somebody waits for a place.
    pub(super) fn others_wait(&self) -> bool {
        self.lock().waiting.iter().any(|(_, turn)| !turn.is_closed())
    }

    fn seat(&self, line: &mut Line, owner: String) -> Turn {
        line.count += 1;
        *line.running.entry(owner.clone()).or_default() += 1;
        Turn { turns: self.clone(), owner }
    }

    /// Gives away what is free.
    fn serve(&self) {
        loop {
            let mut line = self.lock();
            line.waiting.retain(|(_, turn)| !turn.is_closed());
            if line.count >= self.places {
                return;
            }
            let has = |owner: &str| line.running.get(owner).copied().unwrap_or_default();
            let first = line.waiting.iter().enumerate().map(|(at, (owner, _))| (has(owner), at)).min();
            let Some((owner, send)) = first.and_then(|(_, at)| line.waiting.remove(at)) else { return };
            let turn = self.seat(&mut line, owner);
            drop(line);
            // Who has gone meanwhile gives it back by this, and it comes round again.
            drop(send.send(turn));
        }
    }
}

/// What a source must bring at least while others wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeastRate {
    /// Bytes per second.
    pub(super) bytes: u64,
    /// It is looked at after each such time.
    pub(super) over: Duration,
}

/// How fast a source is.
pub(super) struct Pace {
    least: LeastRate,
    looked: (Instant, u64),
}

impl Pace {
    pub(super) fn new(least: LeastRate, now: Instant) -> Self {
        Self { least, looked: (now, 0) }
    }

    /// Whether it brought too little since the last look, which is this long ago at least.
    pub(super) fn is_slow(&mut self, now: Instant, read: u64) -> bool {
        let (since, before) = self.looked;
        let passed = now.saturating_duration_since(since);
        if passed < self.least.over {
            return false;
        }
        self.looked = (now, read);
        let expected = u128::from(self.least.bytes) * passed.as_millis() / 1000;
        u128::from(read.saturating_sub(before)) < expected
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_next_is_of_those_who_have_least_and_who_left_is_passed_over() {
        let turns = Turns::new(2);
        let first = turns.try_enter("drip").expect("free");
        let second = turns.try_enter("drip").expect("free");
        assert!(turns.try_enter("drip").is_none() && !turns.others_wait());
        let mut drips: Vec<_> = (0..100).map(|_| Box::pin(turns.enter("drip"))).collect();
        assert!(drips.iter_mut().all(|waiting| waiting.as_mut().now_or_never().is_none()));
        let mut honest = Box::pin(turns.enter("honest"));
        assert!(honest.as_mut().now_or_never().is_none() && turns.others_wait());
        drop(first);
        let honest = honest.as_mut().now_or_never().expect("it is the first, though it came last");
        assert!(drips[0].as_mut().now_or_never().is_none());
        // Whoever goes while it waits costs nobody a place.
        drips.drain(..99);
        drop(second);
        let last = drips[0].as_mut().now_or_never().expect("the one that still waits");
        drop((honest, last));
        assert!(!turns.others_wait() && turns.try_enter("x").is_some());
    }

    #[test]
    fn a_place_that_was_given_to_somebody_who_left_comes_round() {
        let turns = Turns::new(1);
        let turn = turns.try_enter("a").expect("free");
        let mut gone = Box::pin(turns.enter("b"));
        assert!(gone.as_mut().now_or_never().is_none());
        drop(turn);
        // It was given, and never taken.
        assert!(turns.try_enter("c").is_none());
        drop(gone);
        assert!(turns.try_enter("c").is_some());
    }

    #[test]
    fn a_pace_is_judged_over_its_time() {
        let least = LeastRate { bytes: 1000, over: Duration::from_secs(60) };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut pace = Pace::new(least, start);
        let looks =
            [(59, 0, false), (60, 60_000, false), (119, 60_000, false), (120, 119_999, true), (185, 184_999, false)];
        for (seconds, read, slow) in looks {
            assert_eq!(pace.is_slow(at(seconds), read), slow, "{seconds}");
        }
    }
}
