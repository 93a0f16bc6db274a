//! How many objects are looked at at once, of one namespace and of all together.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Places of all namespaces together.
const OF_ALL: u16 = 128;
/// The part of these, the last ones, which is for namespaces that have few.
const PART_KEPT: u16 = 4;
/// With how many places a namespace has no longer few.
const FEW: u16 = 2;
/// The shortest pause of who has no place.
const PAUSE: Duration = Duration::from_millis(500);
/// How much longer the pause is for each that was sent away before: all of them together come again some hundred times a second.
const LONGER: Duration = Duration::from_millis(2);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);

/// The places of each namespace.
pub(super) struct NamespaceShares {
    /// Of one namespace; 0 where there are as many as are wanted, also of all together.
    most: u16,
    /// Of all together.
    of_all: u16,
    // std's lock: held for a look, never across an await.
    taken: Mutex<TakenShares>,
}

#[derive(Default)]
struct TakenShares {
    all: u16,
    /// Those that have places.
    namespaces: HashMap<String, NamespaceShare>,
    /// How often one of a namespace without a place was sent away.
    sent_away: u32,
}

#[derive(Default)]
struct NamespaceShare {
    places: u16,
    /// How often somebody was sent away since there was nobody.
    sent_away: u32,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct SharePermit<'s> {
    of: Option<(&'s NamespaceShares, String)>,
}

/// Whether a namespace that has `own` of `all` places that are taken of `of_all`, and may have `most`, may have one more.
fn may_take(most: u16, own: u16, all: u16, of_all: u16) -> bool {
    own < most && (all < of_all - of_all / PART_KEPT || (all < of_all && own < FEW))
}

/// How long to stay away, and that one more does.
fn sent_away(before: &mut u32) -> Duration {
    let pause = PAUSE.saturating_add(LONGER.saturating_mul(*before)).min(LONGEST);
    *before = before.saturating_add(1);
    pause
}

impl NamespaceShares {
    /// Of `most` of a namespace, and of `of_all` together; 0 of these are as many as usual.
    pub(super) fn new(most: u16, of_all: u16) -> Self {
        let of_all = if of_all == 0 { OF_ALL } else { of_all };
        Self { most, of_all, taken: Mutex::default() }
    }

    fn taken(&self) -> MutexGuard<'_, TakenShares> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place of a namespace; how long to stay away where there is none for it.
    pub(super) fn take(&self, namespace: &str) -> Result<SharePermit<'_>, Duration> {
        if self.most == 0 {
            return Ok(SharePermit { of: None });
        }
        let taken = &mut *self.taken();
        let own = taken.namespaces.get(namespace).map_or(0, |held| held.places);
        if !may_take(self.most, own, taken.all, self.of_all) {
            // Nothing is kept of a namespace that has no place: there may be very many.
            let held = taken.namespaces.get_mut(namespace).map(|held| &mut held.sent_away);
            return Err(sent_away(held.unwrap_or(&mut taken.sent_away)));
        }
        taken.all += 1;
        let held = taken.namespaces.entry(namespace.to_owned()).or_default();
        let before = if own == 0 { &mut taken.sent_away } else { &mut held.sent_away };
        *before = before.saturating_sub(1);
        held.places += 1;
        Ok(SharePermit { of: Some((self, namespace.to_owned())) })
    }
}

impl std::fmt::Debug for NamespaceShares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shares").field("most", &self.most).finish_non_exhaustive()
    }
}

impl Drop for SharePermit<'_> {
    fn drop(&mut self) {
        let Some((shares, namespace)) = self.of.take() else { return };
        let mut taken = shares.taken();
        taken.all = taken.all.saturating_sub(1);
        if let Some(held) = taken.namespaces.get_mut(&namespace) {
            held.places = held.places.saturating_sub(1);
            if held.places == 0 {
                taken.namespaces.remove(&namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_quarter_is_for_namespaces_that_have_few() {
        for (most, own, all, may) in [
            (16, 0, 0, true),
            (16, 15, 95, true),
            (16, 16, 16, false),
            (4, 3, 3, true),
            (4, 4, 4, false),
            // All but the last quarter is taken.
            (16, 15, 96, false),
            (16, 2, 96, false),
            (16, 1, 96, true),
            (16, 0, 127, true),
            (1, 0, 127, true),
            (1, 1, 96, false),
            // Everything is.
            (16, 0, 128, false),
            (16, 15, 128, false),
        ] {
            assert_eq!(may_take(most, own, all, OF_ALL), may, "{own} of {all}, at most {most}");
        }
    }

    #[test]
    fn a_small_namespace_gets_on_while_ten_others_take_all_that_they_can() {
        let shares = &NamespaceShares::new(16, 0);
        let large: Vec<String> = (0..10).map(|number| format!("large-{number}")).collect();
        let held: Vec<_> = large.iter().flat_map(|name| (0..100).map(move |_| shares.take(name))).flatten().collect();
        assert_eq!(held.len(), 6 * 16 + 4 * 2);
        for _ in 0..100 {
            let one = shares.take("small").unwrap();
            let _two = shares.take("small").unwrap();
            shares.take("small").unwrap_err();
            drop(one);
        }
        // However many there are, all together have no more, and whoever waits without a place is not remembered.
        let more: Vec<String> = (0..1000).map(|number| format!("more-{number}")).collect();
        let also: Vec<_> = more.iter().flat_map(|name| shares.take(name)).collect();
        assert_eq!(held.len() + also.len(), usize::from(OF_ALL));
        let pauses: Vec<Duration> = (0..1000).map(|_| shares.take("new").unwrap_err()).collect();
        assert!(pauses.is_sorted() && pauses.iter().all(|pause| (PAUSE..=LONGEST).contains(pause)));
        assert_eq!(shares.taken().namespaces.len(), 10 + also.len());
        drop((held, also));
        let taken = shares.taken();
        assert_eq!((taken.all, taken.namespaces.len()), (0, 0));
    }

    #[test]
    fn whoever_has_many_leaves_places_for_the_others_and_comes_again_the_later_the_more_he_has() {
        let shares = NamespaceShares::new(2, 0);
        let held = [shares.take("many").unwrap(), shares.take("many").unwrap()];
        let pauses: Vec<Duration> = (0..100_000).map(|_| shares.take("many").unwrap_err()).collect();
        assert!(pauses.is_sorted());
        assert_eq!((pauses[0], *pauses.last().unwrap()), (PAUSE, LONGEST));
        let other = shares.take("other").unwrap();
        drop(held);
        let _again = shares.take("many").unwrap();
        drop(other);
        assert_eq!(shares.taken().namespaces.keys().collect::<Vec<_>>(), ["many"], "what nobody has is forgotten");
    }

    #[test]
    fn without_shares_there_are_as_many_places_as_are_wanted() {
        let shares = NamespaceShares::new(0, 0);
        let held: Vec<_> = (0..1000).map(|_| shares.take("n").unwrap()).collect();
        assert!(shares.taken().namespaces.is_empty());
        drop(held);
    }
}
