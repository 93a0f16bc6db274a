//! Settings that a reload of the configuration changes under those who hold them.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// A setting of the running process. All clones are the same.
pub struct Live<T>(Arc<RwLock<Arc<T>>>);

impl<T> Live<T> {
    /// What holds now. Whoever needs it for one decision asks once.
    pub fn get(&self) -> Arc<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on this holds.
    pub fn set(&self, value: impl Into<Arc<T>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = value.into();
    }
}

impl<T> Clone for Live<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> From<T> for Live<T> {
    fn from(value: T) -> Self {
        Arc::new(value).into()
    }
}

impl<T> From<Arc<T>> for Live<T> {
    fn from(value: Arc<T>) -> Self {
        Self(Arc::new(RwLock::new(value)))
    }
}

impl<T: Default> Default for Live<T> {
    fn default() -> Self {
        T::default().into()
    }
}

impl<T: fmt::Debug> fmt::Debug for Live<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_holder_has_what_was_set_last() {
        let live = Live::from(1);
        let held = live.clone();
        let before = held.get();
        live.set(2);
        assert_eq!((*before, *held.get()), (1, 2));
    }
}
