//! Leases that are written together, and the answers that wait for them.

use super::leases::{CommitError, Leases};
use super::outcome::LeaseWrite;
use super::socket::Outgoing;

/// Answers that may leave, and the next group commit: leases to write with the answers that wait for them.
#[derive(Default)]
pub(super) struct WriteBatch {
    pub ready: Vec<Outgoing>,
    pub writes: Vec<LeaseWrite>,
    pub waiting: Vec<Outgoing>,
}

impl WriteBatch {
    /// Writes what was collected.
    pub fn write(&mut self, leases: &Leases) -> impl Future<Output = CommitResult> + Send + 'static {
        let (writes, answers) = (std::mem::take(&mut self.writes), std::mem::take(&mut self.waiting));
        let leases = leases.clone();
        async move { CommitResult { result: leases.commit(writes).await, answers } }
    }
}

/// A write that ended, and the answers that waited for it.
pub(super) struct CommitResult {
    pub result: Result<(), CommitError>,
    pub answers: Vec<Outgoing>,
}
