//! Backup and restore of the store: everything at one revision, and a store made of that.

use std::sync::Arc;

use super::disk::{Database, NotAnew};
use super::files::OpenRefusal;
use super::generation_files::NewFiles;
use super::group::{TreeName, WriteGroup};
use super::record::{self, ObjectIdentity};
use super::types::TableItem;
use super::{Object, Store, StoreOpenError, StoreOptions};

/// Everything that is on disk, at one revision. Holds the objects as the store does: packed, and shared with it.
pub struct Snapshot {
    /// The store's revision.
    pub revision: u64,
    /// Objects in order of resource, namespace and name.
    pub objects: Vec<Arc<Object>>,
    /// Tables in order of their names, with their entries in order of key.
    pub tables: Vec<(String, Vec<TableItem>)>,
}

impl Store {
    /// Everything but the resources that `skips` names: those that are in memory only.
    ///
    /// All of it is of one moment.
    pub fn snapshot(&self, skips: impl Fn(&str) -> bool) -> Snapshot {
        // One guard: no group of changes comes between two resources.
        let index = self.shared.read();
        let mut resources: Vec<_> = index.resources().keys().filter(|name| !skips(name)).collect();
        resources.sort_unstable();
        let tables = index.tables().iter().map(|(name, entries)| {
            let entries = entries.iter().map(|(key, value)| (key.clone(), value.clone()));
            (name.to_string(), entries.collect())
        });
        Snapshot {
            revision: index.revision(),
            objects: resources.iter().flat_map(|name| index.list(name, None)).collect(),
            tables: tables.collect(),
        }
    }
}

/// A store that is being made of a snapshot. Nothing reads it before [`NewStore::finish`].
pub struct NewStore {
    options: StoreOptions,
    disk: Database,
    files: NewFiles,
    /// Revisions up to this one count as given.
    revision: u64,
}

impl NewStore {
    /// Makes the database.
    ///
    /// # Errors
    ///
    /// [`StoreOpenError`] when the folder holds a database already or cannot be written.
    pub fn create(options: StoreOptions) -> Result<Self, StoreOpenError> {
        let fail = |reason: String| StoreOpenError { path: options.path.clone(), reason };
        let (disk, loaded) = Database::open(&options).map_err(fail)?;
        if loaded.index.revision() > 0 || loaded.index.disk_bytes() > 0 {
            return Err(fail("there is a database already".into()));
        }
        let files = disk.begin_rewriting().map_err(fail)?;
        Ok(Self { disk, files, revision: 0, options })
    }

    /// Adds an object as it is, with its revision.
    ///
    /// # Errors
    ///
    /// [`StoreOpenError`] when the disk refuses.
    pub fn object(&mut self, object: &Object) -> Result<(), StoreOpenError> {
        self.revision = self.revision.max(object.revision);
        let tree = TreeName::Objects(Arc::clone(&object.resource));
        let record = record::encode(object, self.disk.sealer());
        self.add(&tree, &ObjectIdentity::of(object).key(), &record)
    }

    /// Adds an entry of a table.
    ///
    /// # Errors
    ///
    /// [`StoreOpenError`] when the disk refuses.
    pub fn entry(&mut self, table: &str, key: &[u8], value: &[u8]) -> Result<(), StoreOpenError> {
        self.add(&TreeName::Table(table.into()), key, value)
    }

    /// Puts the rest on disk and closes the database, whose next revision will be above `revision`. Whoever watches one of
    /// these resources from an earlier one will be told that it is gone.
    ///
    /// # Errors
    ///
    /// [`StoreOpenError`] when the disk refuses.
    pub fn finish(
        mut self,
        revision: u64,
        resources: impl IntoIterator<Item = Arc<str>>,
    ) -> Result<(), StoreOpenError> {
        let mut group = WriteGroup::default();
        let revision = self.revision.max(revision);
        group.reserve(revision);
        for resource in resources {
            group.trimmed(&resource, revision);
        }
        let mut meta = self.disk.meta().clone();
        meta.extend(group.numbers().filter_map(|(key, value)| Some((key.clone(), value.clone()?.into()))));
        for (key, value) in meta {
            self.add(&TreeName::Meta, &key, &value)?;
        }
        let Self { options, mut disk, files, .. } = self;
        files
            .end()
            .map_err(OpenRefusal::said)
            .and_then(|base| base.finish(&WriteGroup::default()).map_err(OpenRefusal::said))
            .and_then(|new| disk.turn_to(new).map_err(|(NotAnew::Given(reason) | NotAnew::Torn(reason))| reason))
            .and_then(|()| disk.settle())
            .map_err(|reason| StoreOpenError { path: options.path, reason })
    }

    /// Adds an object with a record that cannot be read.
    #[cfg(test)]
    pub(crate) fn damaged(&mut self, resource: &str, namespace: &str, name: &str) {
        let identity = ObjectIdentity { resource: resource.into(), namespace: namespace.into(), name: name.into() };
        let object = Object::new(resource.into(), namespace.into(), name.into(), 7, "{}".as_bytes()).unwrap();
        let mut record = record::encode(&object, self.disk.sealer());
        record.pop();
        self.add(&TreeName::Objects(resource.into()), &identity.key(), &record).unwrap();
    }

    fn add(&mut self, tree: &TreeName, key: &[u8], value: &[u8]) -> Result<(), StoreOpenError> {
        self.files.base.entry(&tree.name(), key, value).map_err(|error| StoreOpenError {
            path: self.options.path.clone(),
            reason: format!("cannot write the base: {error}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::store::{Expect, Mutation};

    fn change(resource: &str, name: &str) -> Mutation {
        let value = Some(json!({ "metadata": { "name": name } }));
        Mutation { resource: resource.into(), namespace: "n".into(), name: name.into(), expect: Expect::Absent, value }
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
        let taken = old.snapshot(|resource| resource == "x/views");
        assert_eq!(taken.revision, 2);
        assert_eq!(taken.objects.iter().map(|object| &*object.resource).collect::<Vec<_>>(), ["/secrets"]);
        let mut new = NewStore::create(options("new")).unwrap();
        new.object(&taken.objects[0]).unwrap();
        for (table, entries) in &taken.tables {
            for (key, value) in entries {
                new.entry(table, key, value).unwrap();
            }
        }
        new.finish(100, ["/secrets".into(), "/configmaps".into()]).unwrap();
        assert!(NewStore::create(options("new")).is_err(), "there is one");
        let new = Store::open(options("new")).unwrap();
        let (before, after) = (old.get("/secrets", "n", "a").unwrap(), new.get("/secrets", "n", "a").unwrap());
        assert_eq!((before.revision, before.json()), (after.revision, after.json()));
        assert_eq!(new.table("t").unwrap().scan(), [(Bytes::from_static(b"k"), Bytes::from_static(b"v"))]);
        for resource in ["/secrets", "/configmaps"] {
            assert!(new.watch(resource, 99).is_err() && new.watch(resource, 100).is_ok(), "{resource}");
        }
        assert_eq!(new.write(change("/secrets", "b")).await.unwrap().revision, 101);
    }
}
