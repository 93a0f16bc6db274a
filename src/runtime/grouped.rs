//! What is known of objects, by what they belong to, and by what they mention.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use super::watches::ObjectKey;

/// Values by the name of an object, in groups: claims by their pool, parts by their whole. An object is in one group at most, and
/// its group need not be there.
#[derive(Debug)]
pub struct Grouped<T> {
    groups: HashMap<ObjectKey, BTreeMap<String, T>>,
    /// In which group an object is, by which it is found when it goes.
    places: HashMap<ObjectKey, ObjectKey>,
}

impl<T> Default for Grouped<T> {
    fn default() -> Self {
        Self { groups: HashMap::new(), places: HashMap::new() }
    }
}

impl<T: PartialEq> Grouped<T> {
    /// Takes note of what an object is now and of its group, which is in the object's namespace; nothing when it is gone. Says which
    /// groups that changes.
    pub fn put(&mut self, object: &ObjectKey, now: Option<(ObjectKey, T)>) -> [Option<ObjectKey>; 2] {
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
    pub fn of(&self, group: &ObjectKey) -> impl Iterator<Item = (&String, &T)> {
        self.groups.get(group).into_iter().flatten()
    }

    /// The groups that something belongs to.
    pub fn groups(&self) -> impl Iterator<Item = &ObjectKey> {
        self.groups.keys()
    }
}

/// What an object says of another: that it is of a cluster, made from a template, for a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mention {
    /// What is mentioned, as what: usually a kind.
    what: &'static str,
    /// Its namespace and name.
    of: ObjectKey,
}

impl Mention {
    /// The object of this namespace and name, as `what`; without a name, everything of the namespace.
    pub fn new(what: &'static str, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { what, of: (namespace.into(), name.into()) }
    }
}

/// Objects by what they mention, so that nobody looks through all objects for those whom a change concerns.
#[derive(Debug, Default)]
pub struct Mentions {
    by: HashMap<Mention, BTreeSet<ObjectKey>>,
    /// What each object mentions, by which it is found when it goes.
    of: HashMap<ObjectKey, Vec<Mention>>,
}

impl Mentions {
    /// Takes note of what an object mentions now; nothing when it is gone.
    pub fn put(&mut self, object: &ObjectKey, now: Vec<Mention>) {
        if self.of.get(object).map(Vec::as_slice).unwrap_or_default() == now {
            return;
        }
        for before in self.of.remove(object).unwrap_or_default() {
            if let Some(all) = self.by.get_mut(&before) {
                all.remove(object);
                if all.is_empty() {
                    self.by.remove(&before);
                }
            }
        }
        if now.is_empty() {
            return;
        }
        for mention in &now {
            self.by.entry(mention.clone()).or_default().insert(object.clone());
        }
        self.of.insert(object.clone(), now);
    }

    /// The objects that mention something, in the order of their names.
    pub fn of(&self, mention: &Mention) -> impl Iterator<Item = &ObjectKey> {
        self.by.get(mention).into_iter().flatten()
    }

    /// The same, of those that come after one.
    pub fn after(&self, mention: &Mention, last: Option<&ObjectKey>) -> impl Iterator<Item = &ObjectKey> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.by.get(mention);
        all.into_iter().flat_map(move |all| all.range::<ObjectKey, _>((from, Bound::Unbounded)))
    }

    /// How many objects mention something. None is looked at.
    pub fn count(&self, mention: &Mention) -> usize {
        self.by.get(mention).map_or(0, BTreeSet::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_are_found_that_mention_something() {
        let (cluster, other) = (Mention::new("Cluster", "rack", "c"), Mention::new("Cluster", "rack", "d"));
        let template = Mention::new("Template", "rack", "c");
        let mut known = Mentions::default();
        known.put(&key("a"), vec![cluster.clone(), template.clone()]);
        known.put(&key("b"), vec![cluster.clone()]);
        known.put(&("hall".into(), "a".into()), vec![Mention::new("Cluster", "hall", "c")]);
        let names = |known: &Mentions, of: &Mention| known.of(of).map(|key| key.1.clone()).collect::<Vec<_>>();
        assert_eq!(
            (names(&known, &cluster), names(&known, &template)),
            (vec!["a".into(), "b".into()], vec!["a".into()])
        );
        known.put(&key("a"), vec![other.clone()]);
        assert_eq!((names(&known, &cluster), names(&known, &other)), (vec!["b".into()], vec!["a".into()]));
        known.put(&key("c"), vec![cluster.clone()]);
        let after = |last: &str| known.after(&cluster, Some(&key(last))).map(|key| key.1.as_str()).collect::<Vec<_>>();
        assert_eq!((after("a"), after("b"), after("c")), (vec!["b", "c"], vec!["c"], vec![]));
        assert_eq!((known.after(&cluster, None).count(), known.count(&cluster), known.count(&template)), (2, 2, 0));
        known.put(&key("c"), Vec::new());
        assert_eq!(known.of(&template).count(), 0);
        known.put(&key("a"), Vec::new());
        known.put(&key("b"), Vec::new());
        known.put(&key("b"), Vec::new());
        assert_eq!((known.by.len(), known.of.len()), (1, 1), "the other namespace's is left");
    }

    fn key(name: &str) -> ObjectKey {
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
