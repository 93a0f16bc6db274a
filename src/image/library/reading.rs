//! What is kept: manifests, and, unpacked, single chunks and parts of an image. Blocks on the disk.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use sha2::{Digest, Sha256};

use super::{Inner, Library, at, damaged, is_lost};
use crate::image::unhex;
use crate::protocol::{CHUNK_SIZE, Chunk, ImageManifest};

impl Library {
    /// The manifest with this digest; `None` when there is no such image, or it cannot be read.
    pub fn manifest(&self, digest: &str) -> Option<Arc<ImageManifest>> {
        self.find(digest).unwrap_or_else(|error| {
            tracing::error!(digest, %error, "cannot read a manifest of the image library");
            None
        })
    }

    /// The manifest with this digest; `None` when there is no such image.
    ///
    /// # Errors
    ///
    /// When it is damaged, or cannot be read at the moment.
    pub(in crate::image) fn find(&self, digest: &str) -> io::Result<Option<Arc<ImageManifest>>> {
        if let Some(found) = self.inner.known(digest) {
            return Ok(found);
        }
        let _one = self.inner.reading.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have read it meanwhile.
        if let Some(found) = self.inner.known(digest) {
            return Ok(found);
        }
        let was_unread = self.inner.lock().unread.contains(digest);
        // Its chunks get their uses while nobody removes any.
        let _files = was_unread.then(|| self.inner.lock_files());
        let read = self.inner.read_manifest(digest);
        let mut state = self.inner.lock();
        match read {
            Ok(manifest) => {
                let manifest = Arc::new(manifest);
                if was_unread {
                    state.add(digest.to_owned(), &manifest);
                }
                // It may have gone meanwhile.
                if !state.images.contains_key(digest) {
                    return Ok(None);
                }
                state.keep(digest, &manifest);
                Ok(Some(manifest))
            }
            Err(error) => {
                if is_lost(&error) {
                    state.unread.remove(digest);
                }
                if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) }
            }
        }
    }

    /// Whether an image is there with every chunk in its full length. Reads no chunk.
    ///
    /// # Errors
    ///
    /// When nobody can say at the moment: a look at a file fails, and not because it is gone or damaged.
    pub fn holds(&self, digest: &str) -> io::Result<bool> {
        match self.find(digest).and_then(|found| found.map_or(Ok(false), |manifest| self.inner.has_chunks(&manifest))) {
            Err(error) if is_lost(&error) => Ok(false),
            looked => looked,
        }
    }

    /// The bytes of a chunk that some image has.
    ///
    /// # Errors
    ///
    /// When it is gone or damaged.
    pub fn unpacked(&self, chunk: &Chunk) -> io::Result<Vec<u8>> {
        // Notes that it is read, so that its image does not give way to others.
        self.chunk_file(&chunk.sha256).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "a chunk is missing"))?;
        self.inner.unpacked(chunk)
    }
}

impl Library {
    /// Whether there is a chunk or an image of this name.
    pub(in crate::image) fn has(&self, name: &str) -> bool {
        let state = self.inner.lock();
        state.images.contains_key(name) || unhex(name).is_some_and(|chunk| state.chunks.contains_key(&chunk))
    }

    /// The bytes of a chunk as they are stored; `None` where no image has it.
    ///
    /// # Errors
    ///
    /// When it is gone or damaged.
    pub(in crate::image) fn stored_chunk(&self, sha256: &str) -> io::Result<Option<Vec<u8>>> {
        // Notes that it is read, so that its image does not give way to others.
        let Some(path) = self.chunk_file(sha256) else { return Ok(None) };
        unhex(sha256).map(|name| self.inner.read_checked(&path, &name)).transpose()
    }

    /// The bytes of a manifest; `None` where there is no such image.
    ///
    /// # Errors
    ///
    /// When it is gone or damaged.
    pub(in crate::image) fn stored_manifest(&self, digest: &str) -> io::Result<Option<Vec<u8>>> {
        let Some(path) = self.manifest_file(digest) else { return Ok(None) };
        unhex(digest).map(|name| self.inner.read_checked(&path, &name)).transpose()
    }
}

impl Inner {
    /// What is known of a manifest without reading it: that there is none, or itself.
    fn known(&self, digest: &str) -> Option<Option<Arc<ImageManifest>>> {
        let mut state = self.lock();
        match state.manifest(digest) {
            None if state.unread.contains(digest) => None,
            None => Some(None),
            Some(found) => found.map(Some),
        }
    }

    fn has_chunks(&self, manifest: &ImageManifest) -> io::Result<bool> {
        for chunk in &manifest.chunks {
            let Some(name) = unhex(&chunk.sha256) else { return Ok(false) };
            let path = self.chunk_path(&name);
            let meta = fs::metadata(&path).map_err(|error| at(&path, error))?;
            if meta.len() != u64::from(chunk.stored) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The bytes of a chunk, which the caller knows to be there.
    pub(in crate::image) fn unpacked(&self, chunk: &Chunk) -> io::Result<Vec<u8>> {
        let name = unhex(&chunk.sha256).ok_or_else(|| io::Error::other("a chunk has no name"))?;
        let path = self.chunk_path(&name);
        let length = usize::try_from(chunk.length.min(CHUNK_SIZE as u32)).map_err(io::Error::other)?;
        let stored = self.read_checked(&path, &name)?;
        let plain = zstd::bulk::decompress(&stored, length).map_err(|error| damaged(&path, &error.to_string()))?;
        if plain.len() as u64 != u64::from(chunk.length) {
            return Err(damaged(&path, &format!("it has {} bytes", plain.len())));
        }
        Ok(plain)
    }

    /// What is in a file with this name, as it was written.
    fn read_checked(&self, path: &Path, name: &[u8]) -> io::Result<Vec<u8>> {
        let mut stored = Vec::new();
        let file = File::open(path).and_then(|mut file| file.read_to_end(&mut stored).map(|_| file));
        let file = file.map_err(|error| at(path, error))?;
        if Sha256::digest(&stored)[..] != *name {
            // Its length may be right. Without the file its image counts as one whose content is lost, and an import writes it again.
            self.discard(path, &file);
            return Err(damaged(path, "it is not what was written; it is removed"));
        }
        Ok(stored)
    }

    /// Removes a file that was found damaged in this open one. One that an import put in its place since is another file, as long as
    /// this one is open.
    fn discard(&self, path: &Path, file: &File) {
        let _files = self.lock_files();
        let id = |about: Metadata| (about.dev(), about.ino());
        let is_it = file.metadata().is_ok_and(|read| fs::metadata(path).is_ok_and(|there| id(there) == id(read)));
        if is_it && let Err(error) = fs::remove_file(path) {
            tracing::warn!(path = %path.display(), %error, "cannot remove a damaged chunk");
        }
    }

    /// A part of what these chunks hold, by rising offset. What no chunk covers reads as zeros.
    pub(in crate::image) fn part(&self, chunks: &[Chunk], part: &Range<u64>) -> io::Result<Vec<u8>> {
        let length = usize::try_from(part.end.saturating_sub(part.start)).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        let first = chunks.partition_point(|chunk| chunk.offset + u64::from(chunk.length) <= part.start);
        for chunk in chunks.iter().skip(first).take_while(|chunk| chunk.offset < part.end) {
            let plain = self.unpacked(chunk)?;
            let (from, to) = (chunk.offset.max(part.start), (chunk.offset + u64::from(chunk.length)).min(part.end));
            let place = |at: u64, base: u64| usize::try_from(at - base).map_err(io::Error::other);
            let wanted = plain.get(place(from, chunk.offset)?..place(to, chunk.offset)?);
            let target = bytes.get_mut(place(from, part.start)?..place(to, part.start)?);
            if let (Some(wanted), Some(target)) = (wanted, target) {
                target.copy_from_slice(wanted);
            }
        }
        Ok(bytes)
    }
}
