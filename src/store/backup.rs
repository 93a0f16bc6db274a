//! What backup and restore need of the inside: everything at one revision, and a store made of that.

use std::sync::Arc;

use bytes::Bytes;

use super::disk::Disk;
use super::group::{Group, TreeName};
use super::record::Identity;
use super::{Object, OpenError, Store, StoreOptions, WriteError};

/// Bytes of objects and entries that go to disk together.
const GROUP_BYTES: usize = 4 << 20;

/// Everything that is on disk, at one revision. Holds the objects as the store does: packed, and shared with it.
pub struct Snapshot {
    /// The store's revision.
    pub revision: u64,
    /// Objects in order of resource, namespace and name.
    pub objects: Vec<Arc<Object>>,
    /// Tables in order of their names, with their entries in order of key.
    pub tables: Vec<(String, Vec<(Bytes, Bytes)>)>,
}

impl Store {
    /// Everything but the resources that `skips` names: those that are in memory only.
    ///
    /// All objects are of one moment. A table may have entries of a moment later.
    ///
    /// # Errors
    ///
    /// [`WriteError::Failed`] when a table cannot be read or the store is closed.
    pub fn snapshot(&self, skips: impl Fn(&str) -> bool) -> Result<Snapshot, WriteError> {
        let (revision, objects) = {
            // One guard: no group of changes comes between two resources.
            let index = self.shared.read();
            let mut resources: Vec<_> = index.counts().into_iter().map(|(name, _)| name).collect();
            resources.retain(|name| !skips(name));
            resources.sort_unstable();
            (index.revision(), resources.iter().flat_map(|name| index.list(name, None)).collect())
        };
        let tables = self.table_names()?.into_iter().map(|name| {
            let entries = self.table(&name)?.scan()?;
            Ok((name, entries))
        });
        Ok(Snapshot { revision, objects, tables: tables.collect::<Result<_, WriteError>>()? })
    }

    /// Names of the tables, in order.
    fn table_names(&self) -> Result<Vec<String>, WriteError> {
        let reader = self.shared.reader();
        let Some(reader) = reader.as_ref() else { return Err(self.shared.write_error()) };
        let tables = reader.trees().into_iter().filter_map(|name| match TreeName::parse(&name) {
            Some(TreeName::Table(name)) => Some(name.to_string()),
            _ => None,
        });
        Ok(tables.collect())
    }
}

/// A store that is being made of a snapshot. Nothing reads it before [`NewStore::finish`].
pub struct NewStore {
    options: StoreOptions,
    disk: Disk,
    group: Group,
    bytes: usize,
    /// Revisions up to this one count as given.
    revision: u64,
}

impl NewStore {
    /// Makes the database.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when the folder holds a database already or cannot be written.
    pub fn create(options: StoreOptions) -> Result<Self, OpenError> {
        let fail = |reason: String| OpenError { path: options.path.clone(), reason };
        let (disk, loaded) = Disk::open(&options).map_err(fail)?;
        if loaded.index.revision() > 0 {
            return Err(fail("there is a database already".into()));
        }
        Ok(Self { disk, group: Group::default(), bytes: 0, revision: 0, options })
    }

    /// Adds an object as it is, with its revision.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when the disk refuses.
    pub fn object(&mut self, object: &Object) -> Result<(), OpenError> {
        self.group.object(&Identity::of(object), Some(object), self.disk.sealer());
        self.revision = self.revision.max(object.revision);
        self.added(object.json_len())
    }

    /// Adds an entry of a table.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when the disk refuses.
    pub fn entry(&mut self, table: &str, key: Bytes, value: Bytes) -> Result<(), OpenError> {
        let size = key.len() + value.len();
        self.group.entries(&table.into(), vec![(key, Some(value))]);
        self.added(size)
    }

    /// Puts the rest on disk and closes the database, whose next revision will be above `revision`. Whoever watches one of
    /// these resources from an earlier one will be told that it is gone.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when the disk refuses.
    pub fn finish(mut self, revision: u64, resources: impl IntoIterator<Item = Arc<str>>) -> Result<(), OpenError> {
        self.revision = self.revision.max(revision);
        for resource in resources {
            self.group.trimmed(&resource, self.revision);
        }
        self.commit()?;
        self.disk.settle().map_err(|reason| OpenError { path: self.options.path.clone(), reason })
    }

    fn added(&mut self, bytes: usize) -> Result<(), OpenError> {
        self.bytes += bytes;
        if self.bytes < GROUP_BYTES { Ok(()) } else { self.commit() }
    }

    fn commit(&mut self) -> Result<(), OpenError> {
        self.bytes = 0;
        let mut group = std::mem::take(&mut self.group);
        group.reserve(self.revision);
        self.disk.commit(group, self.revision).map_err(|reason| OpenError { path: self.options.path.clone(), reason })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::{Change, Expect};

    fn change(resource: &str, name: &str) -> Change {
        let value = Some(json!({ "metadata": { "name": name } }));
        Change { resource: resource.into(), namespace: "n".into(), name: name.into(), expect: Expect::Absent, value }
    }

    #[tokio::test]
    async fn a_snapshot_has_what_is_on_disk_and_a_new_store_goes_on_above_it() {
        let folder = tempfile::tempdir().unwrap();
        let options = |name: &str| StoreOptions {
            path: folder.path().join(name),
            key_file: folder.path().join(format!("{name}.key")),
            history: 10,
        };
        let old = Store::open(options("old")).unwrap();
        old.write(change("/secrets", "a")).await.unwrap();
        old.publish(change("x/views", "a")).await.unwrap();
        old.table("t").unwrap().write(Bytes::from_static(b"k"), Some(Bytes::from_static(b"v"))).await.unwrap();
        let taken = old.snapshot(|resource| resource == "x/views").unwrap();
        assert_eq!(taken.revision, 2);
        assert_eq!(taken.objects.iter().map(|object| &*object.resource).collect::<Vec<_>>(), ["/secrets"]);
        let mut new = NewStore::create(options("new")).unwrap();
        new.object(&taken.objects[0]).unwrap();
        for (table, entries) in &taken.tables {
            for (key, value) in entries {
                new.entry(table, key.clone(), value.clone()).unwrap();
            }
        }
        new.finish(100, ["/secrets".into(), "/configmaps".into()]).unwrap();
        assert!(NewStore::create(options("new")).is_err(), "there is one");
        let new = Store::open(options("new")).unwrap();
        let (before, after) = (old.get("/secrets", "n", "a").unwrap(), new.get("/secrets", "n", "a").unwrap());
        assert_eq!((before.revision, before.json()), (after.revision, after.json()));
        assert_eq!(new.table("t").unwrap().scan().unwrap(), [(Bytes::from_static(b"k"), Bytes::from_static(b"v"))]);
        for resource in ["/secrets", "/configmaps"] {
            assert!(new.watch(resource, 99).is_err() && new.watch(resource, 100).is_ok(), "{resource}");
        }
        assert_eq!(new.write(change("/secrets", "b")).await.unwrap().revision, 101);
    }
}
