//! The image library's index in memory.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::ChunkName;
use crate::image::{Imported, unhex};
use crate::protocol::ImageManifest;

/// Manifests kept in memory after use.
const CACHED_MANIFESTS: usize = 4;

/// The images and chunks that are there.
#[derive(Default)]
pub(super) struct LibraryState {
    pub images: BTreeMap<String, Imported>,
    /// Those whose manifests could not be read at the start.
    pub unread: HashSet<String>,
    /// Each chunk that is used.
    pub chunks: HashMap<ChunkName, Uses>,
    /// Bytes of the chunks.
    pub stored: u64,
    /// When images were put in place, of those that were since the start.
    pub placed: HashMap<String, Instant>,
    /// When manifests were read last for somebody else.
    pub read: HashMap<String, Instant>,
    /// Manifests read last, newest first.
    cache: VecDeque<(String, Arc<ImageManifest>)>,
    /// Manifests that somebody has.
    held: HashMap<String, Weak<ImageManifest>>,
}

/// Uses of a chunk.
#[derive(Clone, Copy, Default)]
pub(super) struct Uses {
    /// By manifests and by imports under way.
    pub count: u32,
    /// When it was read last for somebody else: seconds since the library was opened, and one.
    pub read: Option<NonZeroU32>,
}

impl LibraryState {
    /// Nothing when there is no such image, and no manifest when it has to be read.
    pub fn manifest(&mut self, digest: &str) -> Option<Option<Arc<ImageManifest>>> {
        if !self.images.contains_key(digest) {
            return None;
        }
        let found = self.held.get(digest).and_then(Weak::upgrade);
        if let Some(found) = &found {
            self.keep(digest, found);
        }
        Some(found)
    }

    /// Keeps a manifest that was read.
    pub fn keep(&mut self, digest: &str, manifest: &Arc<ImageManifest>) {
        self.cache.retain(|(name, _)| name != digest);
        self.cache.push_front((digest.to_owned(), manifest.clone()));
        self.cache.truncate(CACHED_MANIFESTS);
        self.held.retain(|_, held| held.strong_count() > 0);
        self.held.insert(digest.to_owned(), Arc::downgrade(manifest));
    }

    /// Whether an image is there, and was put in place so long ago.
    pub fn is_settled(&self, digest: &str, time: Duration) -> bool {
        self.images.contains_key(digest) && self.placed.get(digest).is_none_or(|at| at.elapsed() >= time)
    }

    /// Forgets an image, but not its chunks.
    pub fn forget(&mut self, digest: &str) {
        self.images.remove(digest);
        self.placed.remove(digest);
        self.cache.retain(|(name, _)| name != digest);
        self.held.remove(digest);
        self.read.remove(digest);
    }

    /// Gives a use of a chunk back; whether it was the last one.
    pub fn give_back(&mut self, name: &ChunkName) -> bool {
        let Some(uses) = self.chunks.get_mut(name) else { return false };
        uses.count -= 1;
        let last = uses.count == 0;
        if last {
            self.chunks.remove(name);
        }
        last
    }

    /// Adds an image, and a use of each of its chunks.
    pub fn add(&mut self, digest: String, manifest: &ImageManifest) {
        self.unread.remove(&digest);
        if self.images.contains_key(&digest) {
            return;
        }
        let mut seen = HashSet::new();
        let mut stored_size = 0;
        for chunk in &manifest.chunks {
            if let Some(name) = unhex(&chunk.sha256)
                && seen.insert(name)
            {
                let uses = &mut self.chunks.entry(name).or_default().count;
                *uses += 1;
                // What the import has stored is counted already.
                self.stored += if *uses == 1 { u64::from(chunk.stored) } else { 0 };
                stored_size += u64::from(chunk.stored);
            }
        }
        let (virtual_size, parts) = (manifest.virtual_size, seen.len() as u64);
        self.images.insert(digest.clone(), Imported { digest, virtual_size, stored_size, parts });
    }
}
