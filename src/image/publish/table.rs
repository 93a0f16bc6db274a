//! The table of what is published.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use crate::image::archive::ArchivedFile;
use crate::protocol::Manifest;

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
    pub(super) packages: BTreeMap<String, Shelf>,
}

/// A repository, with what all Images publish of it.
#[derive(Debug, Default)]
pub struct Repository {
    pub(super) tags: BTreeMap<String, Name>,
    pub(super) blobs: HashMap<String, Found>,
}

/// What a tag stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub digest: String,
    /// The Image that has it.
    pub of: Arc<str>,
}

/// Where something is in the library.
#[derive(Clone, Debug)]
pub struct Found {
    /// Of the image that has it.
    pub manifest: Arc<Manifest>,
    /// Its first byte there.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// Of a manifest or an index.
    pub media_type: Option<Arc<str>>,
}

/// The files of one Image.
#[derive(Debug)]
pub struct Shelf {
    pub(super) manifest: Arc<Manifest>,
    /// By path.
    pub files: BTreeMap<String, ArchivedFile>,
}

impl PublishedTable {
    /// A repository by its name.
    pub fn repository(&self, name: &str) -> Option<&Repository> {
        self.repositories.get(name)
    }

    /// The files of an Image by its name.
    pub fn packages(&self, name: &str) -> Option<&Shelf> {
        self.packages.get(name)
    }

    /// Names of Images whose files are published, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.packages.keys().map(String::as_str)
    }
}

impl Repository {
    /// The digest that a tag stands for.
    pub fn digest(&self, tag: &str) -> Option<&str> {
        self.tags.get(tag).map(|name| name.digest.as_str())
    }

    /// Tags after one, in order.
    pub fn tags_after<'t>(&'t self, last: &'t str) -> impl Iterator<Item = &'t str> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.tags.range::<str, _>((Excluded(last), Unbounded)).map(|(tag, _)| tag.as_str())
    }

    /// A blob, manifest or index that its names lead to.
    pub fn blob(&self, digest: &str) -> Option<&Found> {
        self.blobs.get(digest)
    }
}

impl Shelf {
    /// A file by its path.
    pub fn file(&self, path: &str) -> Option<(Found, &ArchivedFile)> {
        let place = self.files.get(path)?;
        let ArchivedFile { offset, size, .. } = *place;
        Some((Found { manifest: self.manifest.clone(), offset, size, media_type: None }, place))
    }
}
