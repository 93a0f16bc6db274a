//! Machines that sets have, and that are not known yet: what was made a moment ago must not be made again.
//!
//! What is known of machines comes by a watch, which may be behind. So the names of those that were made are kept here until they are
//! known, and until then each is asked for by its name. Where nothing is kept all machines are looked through once: the first time,
//! for who acted here before may have made some; and after a look that did not come to its end.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::runtime::ObjectKey;

/// Machines that are asked for by name in a look. Rather than more, all are looked through once more.
const ASKED: usize = 64;

/// The names, by the set's, with the set's UID.
#[derive(Default)]
pub(super) struct UnseenMachines(Mutex<HashMap<ObjectKey, (String, BTreeSet<String>)>>);

/// How it is found out which machines there are besides those that are known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UnseenQuery {
    /// By these names.
    Names(BTreeSet<String>),
    /// By looking through all.
    All,
}

impl UnseenMachines {
    /// What is to be asked about a set, of whose machines these are known. What is kept of it is not kept any more: only a look
    /// that comes to its end says what there is.
    pub(super) fn take(&self, set: &ObjectKey, uid: &str, known: &HashSet<&str>) -> UnseenQuery {
        match self.lock().remove(set) {
            Some((of, mut names)) if of == uid => {
                names.retain(|name| !known.contains(name.as_str()));
                if names.len() <= ASKED { UnseenQuery::Names(names) } else { UnseenQuery::All }
            }
            _ => UnseenQuery::All,
        }
    }

    /// Keeps the names of a set's machines that were not known at the end of a look.
    pub(super) fn keep(&self, set: ObjectKey, uid: &str, names: BTreeSet<String>) {
        self.lock().insert(set, (uid.to_owned(), names));
    }

    /// A set is gone.
    pub(super) fn forget(&self, set: &ObjectKey) {
        self.lock().remove(set);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, (String, BTreeSet<String>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_asked_for_until_it_is_known() {
        let (unseen, set) = (UnseenMachines::default(), ("rack".to_owned(), "w".to_owned()));
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let none = HashSet::new();
        assert_eq!(unseen.take(&set, "1", &none), UnseenQuery::All, "who acted before may have made some");
        unseen.keep(set.clone(), "1", names(&["a", "b"]));
        assert_eq!(unseen.take(&set, "1", &HashSet::from(["b", "c"])), UnseenQuery::Names(names(&["a"])));
        assert_eq!(unseen.take(&set, "1", &none), UnseenQuery::All, "the look did not come to its end");
        unseen.keep(set.clone(), "1", names(&[]));
        assert_eq!(unseen.take(&set, "2", &none), UnseenQuery::All, "another set of the same name");
        let many: BTreeSet<String> = (0..=ASKED).map(|number| number.to_string()).collect();
        unseen.keep(set.clone(), "1", many);
        assert_eq!(unseen.take(&set, "1", &HashSet::from(["0"])).names(), Some(ASKED));
        unseen.keep(set.clone(), "1", (0..=ASKED).map(|number| number.to_string()).collect());
        assert_eq!(unseen.take(&set, "1", &none).names(), None);
        unseen.keep(set.clone(), "1", names(&["a"]));
        unseen.forget(&set);
        assert_eq!(unseen.take(&set, "1", &none), UnseenQuery::All);
    }

    impl UnseenQuery {
        fn names(&self) -> Option<usize> {
            match self {
                Self::Names(names) => Some(names.len()),
                Self::All => None,
            }
        }
    }
}
