//! A cache of compiled patterns and rules, shared for as long as they are in use.
//!
//! What texts were made into, each made once for as long as somebody has it: the definitions of one operator repeat a few
//! hundreds of times. What cannot be made is kept in the same way, so that it is not tried again and again.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// Places in the table after which those that nobody uses are looked for.
pub(super) const SWEEP_FROM: usize = 256;

/// What became of a text.
pub(super) type InternOutcome<T, E> = Result<Arc<T>, Arc<E>>;

/// A table of what is in use. To be a static.
pub(super) struct Interner<T, E>(LazyLock<Mutex<InternTable<T, E>>>);

struct InternTable<T, E> {
    by_text: HashMap<Box<str>, Result<Weak<T>, Weak<E>>>,
    sweep_at: usize,
}

impl<T, E> Interner<T, E> {
    pub const fn new() -> Self {
        Self(LazyLock::new(|| Mutex::new(InternTable { by_text: HashMap::new(), sweep_at: 0 })))
    }

    // std's lock: held for map operations only.
    fn table(&self) -> MutexGuard<'_, InternTable<T, E>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What somebody has of this text.
    pub fn get(&self, text: &str) -> Option<InternOutcome<T, E>> {
        match self.table().by_text.get(text)? {
            Ok(made) => made.upgrade().map(Ok),
            Err(reason) => reason.upgrade().map(Err),
        }
    }

    /// What somebody has of this text, or what is made of it now.
    pub fn get_or_make(&self, text: &str, make: impl FnOnce() -> Result<T, E>) -> InternOutcome<T, E> {
        if let Some(known) = self.get(text) {
            return known;
        }
        let outcome = make().map(Arc::new).map_err(Arc::new);
        let mut table = self.table();
        if table.by_text.len() >= table.sweep_at.max(SWEEP_FROM) {
            table.by_text.retain(|_, one| match one {
                Ok(made) => made.strong_count() > 0,
                Err(reason) => reason.strong_count() > 0,
            });
            table.sweep_at = table.by_text.len() * 2;
            table.by_text.shrink_to(SWEEP_FROM);
        }
        let weak = outcome.as_ref().map(Arc::downgrade).map_err(Arc::downgrade);
        table.by_text.insert(text.into(), weak);
        outcome
    }

    /// Texts in the table that begin so.
    #[cfg(test)]
    pub fn count(&self, beginning: &str) -> usize {
        self.table().by_text.keys().filter(|text| text.starts_with(beginning)).count()
    }
}
