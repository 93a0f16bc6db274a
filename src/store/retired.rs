//! Memory of objects that the store has let go of, and that somebody still holds.
//!
//! What is there and the history have bounds of their own. A former self that is in neither costs memory for as long as a
//! list that shows it is under way, so what such objects take is counted until they are dropped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// What they take together. Clones count the same.
#[derive(Clone, Debug, Default)]
pub struct Retired(Arc<AtomicUsize>);

impl Retired {
    /// What they take, in bytes.
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// An object's mark that the store has let go of it, which counts it until it is dropped.
#[derive(Debug, Default)]
pub(super) struct RetiredMark(OnceLock<(Retired, usize)>);

impl RetiredMark {
    /// Counts this many bytes from now on. A second mark counts nothing.
    pub fn set(&self, retired: &Retired, bytes: usize) {
        if self.0.set((retired.clone(), bytes)).is_ok() {
            retired.0.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// What it counts, in bytes.
    pub fn bytes(&self) -> usize {
        self.0.get().map_or(0, |(_, bytes)| *bytes)
    }
}

impl Drop for RetiredMark {
    fn drop(&mut self) {
        if let Some((retired, bytes)) = self.0.get() {
            retired.0.fetch_sub(*bytes, Ordering::Relaxed);
        }
    }
}
