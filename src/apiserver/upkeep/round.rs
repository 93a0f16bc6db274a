//! A round of work that nobody asks for: how long it goes on, and what becomes of each object.

use std::time::Duration;

use tokio::time::Instant;

use crate::apiserver::answers::status::ApiError;

/// How long a round of one kind takes before the next kind of work has its turn: whoever has made much of it keeps nobody waiting.
pub(super) const SLICE: Duration = Duration::from_millis(250);
/// How long a round works before it is others' turn.
const TURN: Duration = Duration::from_millis(1);

/// What became of an object that is to go, or to change.
#[derive(Debug, PartialEq)]
pub(in crate::apiserver) enum SweepOutcome {
    /// It is gone, or another one has its name; or it is changed.
    Done,
    /// Finalizers hold it.
    Held,
    /// Somebody else wrote it meanwhile.
    Changed,
    /// It may not be; why.
    Refused(String),
    /// The disk is full.
    NoRoom,
}

/// One round of the sweeper's work.
pub(in crate::apiserver) struct SweepRound {
    began: Instant,
    turn: Instant,
    /// Why what needs room is not done in this round any more.
    pub(super) no_room: Option<ApiError>,
}

impl Default for SweepRound {
    fn default() -> Self {
        Self { began: Instant::now(), turn: Instant::now(), no_room: None }
    }
}

impl SweepRound {
    /// Leaves the processor to others now and then.
    pub(in crate::apiserver) async fn yield_now(&mut self) {
        if self.turn.elapsed() >= TURN {
            tokio::task::yield_now().await;
            self.turn = Instant::now();
        }
    }

    /// Whether it is the turn of other work of the sweeper. What is left is done in the next round.
    pub(in crate::apiserver) fn is_over(&self) -> bool {
        self.began.elapsed() >= SLICE
    }

    /// Whether something was not done because the disk is full.
    pub(super) fn lacks_room(&self) -> bool {
        self.no_room.is_some()
    }

    /// Whether all was done that could be.
    pub(in crate::apiserver) fn end(self) -> Result<(), ApiError> {
        self.no_room.map_or(Ok(()), Err)
    }

    pub(super) fn is_full(&mut self, error: ApiError) -> SweepOutcome {
        self.no_room = Some(error);
        SweepOutcome::NoRoom
    }
}

/// All of them, beginning with any: where a round ends before all had their turn, it is not always the same that have it.
pub(in crate::apiserver) fn from_anywhere<T>(all: &[T]) -> impl Iterator<Item = &T> {
    let first = if all.is_empty() { 0 } else { rand::random_range(0..all.len()) };
    all[first..].iter().chain(&all[..first])
}
