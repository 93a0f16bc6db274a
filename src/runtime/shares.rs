//! How many objects of one namespace are looked at at once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The shortest pause of who has no place.
const PAUSE: Duration = Duration::from_millis(500);
/// How much longer the pause is for each that was sent away before: all of them together come again some hundred times a second.
const LONGER: Duration = Duration::from_millis(2);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);

/// The places of each namespace.
pub(super) struct Shares {
    /// Of one namespace; 0 where there are as many as are wanted.
    most: u16,
    // std's lock: held for a look, never across an await.
    taken: Mutex<HashMap<String, Taken>>,
}

#[derive(Default)]
struct Taken {
    places: u16,
    /// How often somebody was sent away since there was nobody.
    sent_away: u32,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Share<'s> {
    of: Option<(&'s Shares, String)>,
}

impl Shares {
    pub(super) fn new(most: u16) -> Self {
        Self { most, taken: Mutex::default() }
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<String, Taken>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place of a namespace; how long to stay away where it has none left.
    pub(super) fn take(&self, namespace: &str) -> Result<Share<'_>, Duration> {
        if self.most == 0 {
            return Ok(Share { of: None });
        }
        let mut all = self.taken();
        let taken = all.entry(namespace.to_owned()).or_default();
        if taken.places < self.most {
            taken.places += 1;
            taken.sent_away = taken.sent_away.saturating_sub(1);
            return Ok(Share { of: Some((self, namespace.to_owned())) });
        }
        let pause = PAUSE.saturating_add(LONGER.saturating_mul(taken.sent_away)).min(LONGEST);
        taken.sent_away = taken.sent_away.saturating_add(1);
        Err(pause)
    }
}

impl std::fmt::Debug for Shares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shares").field("most", &self.most).finish_non_exhaustive()
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let Some((shares, namespace)) = self.of.take() else { return };
        let mut all = shares.taken();
        if let Some(taken) = all.get_mut(&namespace) {
            taken.places = taken.places.saturating_sub(1);
            if taken.places == 0 {
                all.remove(&namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_many_leaves_places_for_the_others_and_comes_again_the_later_the_more_he_has() {
        let shares = Shares::new(2);
        let held = [shares.take("many").unwrap(), shares.take("many").unwrap()];
        let pauses: Vec<Duration> = (0..100_000).map(|_| shares.take("many").unwrap_err()).collect();
        assert!(pauses.is_sorted());
        assert_eq!((pauses[0], *pauses.last().unwrap()), (PAUSE, LONGEST));
        let other = shares.take("other").unwrap();
        drop(held);
        let _again = shares.take("many").unwrap();
        drop(other);
        assert_eq!(shares.taken().keys().collect::<Vec<_>>(), ["many"], "what nobody has is forgotten");
    }

    #[test]
    fn without_shares_there_are_as_many_places_as_are_wanted() {
        let shares = Shares::new(0);
        let held: Vec<_> = (0..1000).map(|_| shares.take("n").unwrap()).collect();
        assert!(shares.taken().is_empty());
        drop(held);
    }
}
