//! What is known of objects, by what they belong to.

use std::collections::{BTreeMap, HashMap};

use super::watches::Key;

/// Values by the name of an object, in groups: claims by their pool, parts by their whole. An object is in one group at most, and
/// its group need not be there.
#[derive(Debug)]
pub struct Grouped<T> {
    groups: HashMap<Key, BTreeMap<String, T>>,
    /// In which group an object is, by which it is found when it goes.
    places: HashMap<Key, Key>,
}

impl<T> Default for Grouped<T> {
    fn default() -> Self {
        Self { groups: HashMap::new(), places: HashMap::new() }
    }
}

impl<T: PartialEq> Grouped<T> {
    /// Takes note of what an object is now and of its group, which is in the object's namespace; nothing when it is gone. Says which
    /// groups that changes.
    pub fn put(&mut self, object: &Key, now: Option<(Key, T)>) -> [Option<Key>; 2] {
        let mut changed = [None, None];
        let before = self.places.get(object).cloned();
        if let Some(before) = before.filter(|before| now.as_ref().is_none_or(|(group, _)| group != before)) {
            self.places.remove(object);
            if let Some(group) = self.groups.get_mut(&before) {
                group.remove(&object.1);
                if group.is_empty() {
                    self.groups.remove(&before);
                }
            }
            changed[0] = Some(before);
        }
        if let Some((group, value)) = now {
            let known = self.groups.entry(group.clone()).or_default();
            if known.get(&object.1) != Some(&value) {
                known.insert(object.1.clone(), value);
                changed[1] = Some(group.clone());
            }
            self.places.insert(object.clone(), group);
        }
        changed
    }

    /// What belongs to a group, by name.
    pub fn of(&self, group: &Key) -> impl Iterator<Item = (&String, &T)> {
        self.groups.get(group).into_iter().flatten()
    }

    /// The groups that something belongs to.
    pub fn groups(&self) -> impl Iterator<Item = &Key> {
        self.groups.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("rack".into(), name.into())
    }

    #[test]
    fn an_object_is_in_one_group_and_only_changes_are_told() {
        let mut known = Grouped::default();
        let mut put = |now: Option<(&str, u8)>| known.put(&key("a"), now.map(|(group, value)| (key(group), value)));
        assert_eq!(put(None), [None, None]);
        assert_eq!(put(Some(("p", 1))), [None, Some(key("p"))]);
        assert_eq!(put(Some(("p", 1))), [None, None]);
        assert_eq!(put(Some(("p", 2))), [None, Some(key("p"))]);
        assert_eq!(put(Some(("q", 2))), [Some(key("p")), Some(key("q"))]);
        assert_eq!(known.of(&key("q")).collect::<Vec<_>>(), [(&"a".to_owned(), &2)]);
        assert_eq!(known.of(&key("p")).count(), 0);
        assert_eq!(known.put(&key("a"), None), [Some(key("q")), None]);
        assert!(known.groups.is_empty() && known.places.is_empty());
    }
}
