//! The table of what is published.
//!
//! It is made anew when Images change, and swapped. Who serves takes from it what he needs for an answer, and lets go of it before
//! he waits for anybody: so however slowly answers are taken, and however many wait for their turn, former tables go.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::{Arc, PoisonError, RwLock};

use crate::image::archive::ArchivedFile;
use crate::protocol::ImageManifest;

/// What is published, for those who serve it. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Published(Arc<RwLock<Option<Arc<PublishedTable>>>>);

impl Published {
    /// What is published now; `None` while nobody knows.
    pub fn table(&self) -> Option<Arc<PublishedTable>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, table: Option<PublishedTable>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = table.map(Arc::new);
    }
}

/// Repositories and packages.
#[derive(Debug, Default)]
pub struct PublishedTable {
    pub(super) repositories: BTreeMap<String, Repository>,
    pub(super) packages: BTreeMap<String, Arc<Shelf>>,
}

/// A repository, with what all Images publish of it.
#[derive(Debug, Default)]
pub struct Repository {
    pub(super) tags: BTreeMap<String, TagEntry>,
    pub(super) blobs: HashMap<Arc<str>, LibraryEntry>,
}

/// What a tag stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TagEntry {
    pub digest: String,
    /// The Image that has it.
    pub of: Arc<str>,
}

/// Where something is in the library.
#[derive(Clone, Debug)]
pub struct LibraryEntry {
    /// Of the image that has it.
    pub manifest: Arc<ImageManifest>,
    /// Its first byte there.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// Of a manifest or an index.
    pub media_type: Option<Arc<str>>,
}

/// The files of one Image, the same in each table while it is published.
#[derive(Debug)]
pub struct Shelf {
    pub(super) manifest: Arc<ImageManifest>,
    /// By path.
    pub(super) files: BTreeMap<String, ArchivedFile>,
}

impl PublishedTable {
    /// A repository by its name.
    pub fn repository(&self, name: &str) -> Option<&Repository> {
        self.repositories.get(name)
    }

    /// The files of an Image by its name.
    pub fn packages(&self, name: &str) -> Option<&Arc<Shelf>> {
        self.packages.get(name)
    }

    /// Names of Images whose files are published, after one, in order.
    pub fn names_after(&self, last: &str) -> impl Iterator<Item = &str> {
        self.packages.range::<str, _>((Excluded(last), Unbounded)).map(|(name, _)| name.as_str())
    }
}

impl Repository {
    /// The digest that a tag stands for.
    pub fn digest(&self, tag: &str) -> Option<&str> {
        self.tags.get(tag).map(|name| name.digest.as_str())
    }

    /// Tags after one, in order.
    pub fn tags_after<'t>(&'t self, last: &'t str) -> impl Iterator<Item = &'t str> {
        self.tags.range::<str, _>((Excluded(last), Unbounded)).map(|(tag, _)| tag.as_str())
    }

    /// A blob, manifest or index that its names lead to.
    pub fn blob(&self, digest: &str) -> Option<&LibraryEntry> {
        self.blobs.get(digest)
    }
}

impl Shelf {
    /// The first file of a folder from a path on: what its path has behind the folder's, which is empty or ends with a slash.
    pub fn first_in<'s>(&'s self, folder: &str, from: &str) -> Option<(&'s str, &'s ArchivedFile)> {
        let (path, place) = self.files.range::<str, _>((Included(from), Unbounded)).next()?;
        path.strip_prefix(folder).map(|rest| (rest, place))
    }

    /// A file by its path, and the SHA-256 of its content.
    pub fn file(&self, path: &str) -> Option<(LibraryEntry, String)> {
        let ArchivedFile { offset, size, sha256 } = self.files.get(path)?;
        let found = LibraryEntry { manifest: self.manifest.clone(), offset: *offset, size: *size, media_type: None };
        Some((found, sha256.clone()))
    }
}
