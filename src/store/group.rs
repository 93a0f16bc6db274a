//! Write groups: changes that go to disk together.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use super::Object;
use super::TableEntry;
use super::frames::FrameWriter;
use super::record::{self, FormerRecord, ObjectIdentity};
use super::seal::Sealer;

/// Name of the tree of numbers.
pub(super) const META: &str = "meta";

/// Name of the tree of events.
pub(super) const LOG: &str = "log";

const OBJECT_TREE: &str = "object:";
const TABLE_TREE: &str = "table:";

/// A tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TreeName {
    /// Numbers.
    Meta,
    /// Events.
    Log,
    /// Objects of a resource.
    Objects(Arc<str>),
    /// A table.
    Table(Arc<str>),
}

impl TreeName {
    /// As it is on disk.
    pub fn name(&self) -> Cow<'static, str> {
        match self {
            Self::Meta => META.into(),
            Self::Log => LOG.into(),
            Self::Objects(resource) => format!("{OBJECT_TREE}{resource}").into(),
            Self::Table(table) => format!("{TABLE_TREE}{table}").into(),
        }
    }

    /// Inverse of [`Self::name`].
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            META => Some(Self::Meta),
            LOG => Some(Self::Log),
            _ => match name.strip_prefix(OBJECT_TREE) {
                Some(resource) => Some(Self::Objects(resource.into())),
                None => name.strip_prefix(TABLE_TREE).map(|table| Self::Table(table.into())),
            },
        }
    }
}

/// Keys of the `meta` tree.
pub(super) mod key {
    pub const REVISION: &[u8] = b"revision";
    pub const RESERVED: &[u8] = b"reserved";
    pub const SEAL: &[u8] = b"seal";
    pub const TRIMMED: &[u8] = b"trimmed\0";
    pub const MEMORY: &[u8] = b"memory\0";

    /// The key of such a number of one resource.
    pub fn of(prefix: &[u8], resource: &str) -> Vec<u8> {
        [prefix, resource.as_bytes()].concat()
    }
}

/// New values of one tree by key; `None` removes.
pub(super) type TreeChanges = HashMap<Vec<u8>, Option<Vec<u8>>>;

/// Changes of entries. Of two changes of one entry, the later one counts.
#[derive(Default)]
pub(super) struct WriteGroup {
    trees: BTreeMap<TreeName, TreeChanges>,
}

impl WriteGroup {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// Adds later changes.
    pub fn add(&mut self, later: &Self) {
        for (tree, entries) in &later.trees {
            let all = self.trees.entry(tree.clone()).or_default();
            all.extend(entries.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
    }

    /// Changes of numbers.
    pub fn numbers(&self) -> impl Iterator<Item = (&Vec<u8>, &Option<Vec<u8>>)> {
        self.trees.get(&TreeName::Meta).into_iter().flatten()
    }

    /// All changes as frames.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut frames = FrameWriter::new(Vec::new());
        for (tree, entries) in &self.trees {
            let name = tree.name();
            for (key, value) in entries {
                frames.entry(&name, key, value.as_deref())?;
            }
        }
        frames.end()
    }

    /// An entry as it is to be.
    pub fn entry(&mut self, tree: TreeName, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.trees.entry(tree).or_default().insert(key, value);
    }

    /// An object's new self (or its end). Says what it takes, in bytes.
    pub fn object(&mut self, identity: &ObjectIdentity, object: Option<&Object>, sealer: &Sealer) -> usize {
        let value = object.map(|object| record::encode(object, sealer));
        let size = value.as_ref().map_or(0, Vec::len);
        self.entry(TreeName::Objects(Arc::clone(&identity.resource)), identity.key(), value);
        size
    }

    /// An event. Says what it takes, in bytes.
    pub fn event(&mut self, identity: &ObjectIdentity, revision: u64, former: &FormerRecord, sealer: &Sealer) -> usize {
        let event = record::encode_event(identity, revision, former, sealer);
        let size = event.len();
        self.entry(TreeName::Log, revision.to_be_bytes().into(), Some(event));
        self.revision(revision);
        size
    }

    /// The newest revision.
    pub fn revision(&mut self, revision: u64) {
        self.number(key::REVISION, revision);
    }

    /// Events of the resource up to this revision are no longer kept.
    pub fn trimmed(&mut self, resource: &str, revision: u64) {
        self.number(&key::of(key::TRIMMED, resource), revision);
    }

    /// Revisions up to this one may be given to objects in memory.
    pub fn reserve(&mut self, revision: u64) {
        self.number(key::RESERVED, revision);
    }

    /// The resource has objects in memory.
    pub fn in_memory(&mut self, resource: &str) {
        self.number(&key::of(key::MEMORY, resource), 1);
    }

    /// What tells the key that seals secrets.
    pub fn seal(&mut self, check: Vec<u8>) {
        self.entry(TreeName::Meta, key::SEAL.to_vec(), Some(check));
    }

    /// Entries of a table. Of two for one key, the later one counts.
    pub fn entries(&mut self, table: &Arc<str>, entries: &[TableEntry]) {
        let tree = self.trees.entry(TreeName::Table(Arc::clone(table))).or_default();
        tree.extend(entries.iter().map(|(key, value)| (key.to_vec(), value.as_ref().map(|value| value.to_vec()))));
    }

    fn number(&mut self, key: &[u8], value: u64) {
        self.entry(TreeName::Meta, key.to_vec(), Some(value.to_be_bytes().into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_trees_come_back() {
        for tree in [TreeName::Meta, TreeName::Log, TreeName::Objects("/secrets".into()), TreeName::Table("t".into())] {
            assert_eq!(TreeName::parse(&tree.name()), Some(tree));
        }
        assert_eq!(TreeName::parse("other"), None);
    }
}
