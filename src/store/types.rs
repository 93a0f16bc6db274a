//! Requests to the store, and its answers.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::object::Object;

/// Largest JSON text of one object, in bytes: 1 MiB.
pub const OBJECT_LIMIT: usize = 1 << 20;

/// Longest `namespace` plus `name` of an object, and longest key of a table entry, in bytes.
pub const KEY_LIMIT: usize = 1024;

/// How to open a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Folder of the database.
    pub path: PathBuf,
    /// File of the key that seals secrets at rest; made on first use, mode 0600. Outside the database.
    pub key_file: PathBuf,
    /// Events kept for watches, for each resource. At least 1.
    pub history: usize,
}

/// A key, and what is put there (`Some`) or that it is removed (`None`).
pub type TableEntry = (Bytes, Option<Bytes>);

/// A key, and what is there.
pub type TableItem = (Bytes, Bytes);

/// What must hold for a change to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The object does not exist.
    Absent,
    /// The object exists with this revision.
    Revision(u64),
    /// The object exists.
    Present,
    /// Anything. (Deleting what does not exist is [`StoreWriteError::NotFound`] all the same.)
    Any,
}

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// `<group>/<plural>`.
    pub resource: Arc<str>,
    /// Empty when cluster-scoped.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// What must hold.
    pub expect: Expect,
    /// The new object, whose `metadata.resourceVersion` the store sets; `None` deletes.
    pub value: Option<Value>,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum StoreWriteError {
    /// The object exists already.
    #[error("already exists")]
    Exists,
    /// The object does not exist.
    #[error("not found")]
    NotFound,
    /// The object has another revision.
    #[error("has revision {actual}, expected {expected}")]
    Conflict {
        /// Revision asked for.
        expected: u64,
        /// Revision it has.
        actual: u64,
    },
    /// The value is too large to keep.
    #[error("{size} bytes are more than the {limit} that an object may have")]
    TooLarge {
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// The change has no form that can be kept: a NUL byte in a name, a value or metadata that is not a JSON object, or
    /// one nested too deeply to be read back, or a resource whose objects are kept otherwise.
    #[error("cannot be stored: {0}")]
    Malformed(&'static str),
    /// The disk is nearly full: only what gives room back, or needs no more, is written.
    #[error("the disk of the appliance is full: nothing can be made or grow until something is deleted")]
    Full,
    /// What is there takes as much memory as it may: only what gives room back, or needs no more, is written.
    #[error(
        "the {whose} take the {limit} MiB of memory that they may: nothing can be made or grow until some are deleted"
    )]
    Crowded {
        /// Which objects.
        whose: String,
        /// What they may take, in MiB.
        limit: usize,
    },
    /// There are as many as there may be: only what leaves no more of them is written.
    #[error("there may be {most} {what} in all: no more can be made until some are deleted")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
    /// The disk refused; the store is read-only until restarted. Also after [`Store::close`].
    #[error("the store cannot write: {0}")]
    Failed(String),
}

/// The store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the store in {path}: {reason}")]
pub struct StoreOpenError {
    /// The folder.
    pub path: PathBuf,
    /// Why, and what to do.
    pub reason: String,
}

/// Objects at one revision, in order of namespace and name.
pub struct ObjectListing {
    /// The objects.
    pub objects: Vec<Arc<Object>>,
    /// The store's revision they are at.
    pub revision: u64,
}

/// What happened to an object.
#[derive(Clone, Debug)]
pub enum StoreEvent {
    /// It is new.
    Added(Arc<Object>),
    /// It changed; with its former self, so that selectors can tell leaving from changing.
    Modified {
        /// Now.
        object: Arc<Object>,
        /// Before.
        previous: Arc<Object>,
    },
    /// It is gone; the object is its last self with the revision of the deletion.
    Deleted(Arc<Object>),
}

impl StoreEvent {
    /// The object as this event left it; for a deletion, its last self.
    pub fn object(&self) -> &Arc<Object> {
        match self {
            Self::Added(object) | Self::Modified { object, .. } | Self::Deleted(object) => object,
        }
    }
}

/// Events were asked for that are no longer kept, or a watcher fell too far behind (HTTP 410).
#[derive(Debug, thiserror::Error)]
#[error("too old resource version: {asked} (oldest kept: {oldest})")]
pub struct Gone {
    /// Revision asked for.
    pub asked: u64,
    /// Oldest that can be had.
    pub oldest: u64,
}
