//! Pausing and cancelling an import that runs in a thread of its own.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::ImportError;

/// The brake of one import. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub(super) struct Brake(Arc<(Mutex<BrakeState>, Condvar)>);

#[derive(Default)]
struct BrakeState {
    held: bool,
    ended: bool,
}

impl Brake {
    fn set(&self, change: impl FnOnce(&mut BrakeState)) {
        let (state, changed) = &*self.0;
        change(&mut state.lock().unwrap_or_else(PoisonError::into_inner));
        changed.notify_all();
    }

    /// Holds the import up at its next chunk, until [`Self::let_go`].
    pub(super) fn hold(&self) {
        self.set(|state| state.held = true);
    }

    /// Lets the import go on.
    pub(super) fn let_go(&self) {
        self.set(|state| state.held = false);
    }

    /// Ends the import at its next chunk when this is dropped, also while it is held up.
    pub(super) fn end_on_drop(&self) -> Ends {
        Ends(self.clone())
    }

    /// For the import: blocks while it is held up.
    ///
    /// # Errors
    ///
    /// When it is to end.
    pub(super) fn pass(&self) -> Result<(), ImportError> {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.held && !state.ended {
            state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended { Err(ImportError::passing("the import was given up")) } else { Ok(()) }
    }
}

/// See [`Brake::end_on_drop`].
pub(super) struct Ends(Brake);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.set(|state| state.ended = true);
    }
}
