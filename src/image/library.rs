//! The image library on disk, and when an image counts as there.
//!
//! | path | what |
//! |---|---|
//! | `chunks/ab/ab…` | one zstd frame; the name is the SHA-256 of the file |
//! | `manifests/<digest>.json` | a [`ImageManifest`]; the name is the SHA-256 of the file |
//! | `tmp/` | files that are being written |
//! | `uploads/` | what is sent to the appliance, see [`super::upload`]; it counts as content until it is imported |
//!
//! **Order.** Chunks are written under a temporary name and renamed. Before a manifest is put in place the
//! whole file system is synchronised (`syncfs`, one call instead of thousands of `fsync`), then the manifest
//! is written, synchronised and renamed, then its folder is synchronised. So a manifest on disk means that
//! every chunk it names is on disk.
//!
//! **Start.** A chunk that no manifest names is what an interrupted import left, and may be cut short by a
//! power failure: it is removed. A manifest that does not match its name, does not parse, or names a chunk that
//! is gone is removed as well, and the image counts as not imported. One that cannot be read at the moment (a fault of the
//! disk, too many open files) stays, and is read when its image is asked for; no chunk is removed then, for it may name it.
//!
//! **Counting.** Every distinct chunk of a manifest, and every chunk an import under way has stored or found,
//! counts one use. A chunk's file goes when its last use goes, under the same lock that hands out uses, so an
//! import never relies on a chunk that is being removed.
//!
//! **Locks.** What is in memory has a lock that is held for moments, for those who serve take it. Whoever changes files
//! holds another one over that, and takes it first.

mod chunk_names;
mod reading;
mod state;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use chunk_names::ChunkNames;
use sha2::{Digest, Sha256};
use state::LibraryState;

use super::fetch::SourceFetcher;
use super::source::Sources;
use super::upload::Uploads;
use super::{Imported, MAX_CHUNKS, MAX_VIRTUAL_SIZE, Scarce, hex, unhex};
use crate::disk_space::DiskSpace;
use crate::protocol::{CHUNK_SIZE, Chunk, ImageManifest};

/// Room that must stay free beside the library, in bytes: the database lives there too.
pub(super) const RESERVE: u64 = 128 << 20;
/// Inodes that must stay free beside it, each chunk being a file; of a small file system an eighth.
const INODES_RESERVE: u64 = 8192;
/// Chunks that are looked up in one go.
const LOOKED_UP: usize = 4096;

type ChunkName = [u8; 32];

/// The library. Cheap to clone.
#[derive(Clone)]
pub struct Library {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    folder: PathBuf,
    pub(super) fetcher: SourceFetcher,
    pub(super) sources: Arc<Sources>,
    /// Held while files of chunks and manifests are put in place, removed, and counted.
    files: Mutex<()>,
    /// Held while a manifest is read: of a large one there is one copy, however many ask for it.
    reading: Mutex<()>,
    state: Mutex<LibraryState>,
    chunk_names: ChunkNames,
    pub(super) uploads: Uploads,
    opened: Instant,
    temporary: AtomicU64,
}

/// How full the library is, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LibrarySpace {
    /// What the file system has free.
    pub(super) free: u64,
    /// Of that, what may be written.
    pub(super) above_reserve: u64,
    /// What may be written until the library is as large as it may be.
    pub(super) below_limit: u64,
    /// What is in the library, imports under way included.
    pub(super) stored: u64,
    /// What was sent to the appliance beside it, and is not imported.
    pub(super) uploads: u64,
    /// Chunks that are in the library, imports under way included.
    pub(super) parts: usize,
    /// Chunks that may be added.
    pub(super) chunks: usize,
    /// Inodes that may be taken; `None` where the file system makes them as it needs them.
    pub(super) inodes: Option<u64>,
}

/// What may be taken of a file system with so many inodes, of which so many are free.
fn above_reserve(all: u64, free: u64) -> Option<u64> {
    (all > 0).then(|| free.saturating_sub(INODES_RESERVE.min(all / 8)))
}

impl LibrarySpace {
    /// What may still be written.
    pub(super) fn room(&self) -> u64 {
        self.above_reserve.min(self.below_limit)
    }

    /// Parts that may still be written.
    pub(super) fn parts_room(&self) -> u64 {
        self.inodes.unwrap_or(u64::MAX).min(self.chunks as u64)
    }

    /// What may still be written of what is scarce.
    pub(super) fn room_of(&self, what: Scarce) -> u64 {
        match what {
            Scarce::Bytes => self.room(),
            Scarce::Parts => self.parts_room(),
        }
    }

    /// What the library has of what is scarce, and has room for.
    pub(super) fn total_of(&self, what: Scarce) -> u64 {
        let stored = match what {
            Scarce::Bytes => self.stored,
            Scarce::Parts => self.parts as u64,
        };
        stored.saturating_add(self.room_of(what))
    }
}

/// What a collection removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GarbageCollected {
    /// Images.
    pub images: usize,
    /// Chunks.
    pub chunks: usize,
    /// Bytes of those chunks.
    pub bytes: u64,
}

impl Library {
    /// Opens or creates the library in a folder, removing what an interrupted import left.
    ///
    /// `sources` says where images may come from. Fails when the folder cannot be made, read or written, or the file
    /// of further CAs holds no certificate.
    pub fn open(folder: PathBuf, sources: Sources) -> io::Result<Self> {
        Self::with_fetcher(folder, SourceFetcher::new(sources)?)
    }

    pub(super) fn with_fetcher(folder: PathBuf, fetcher: SourceFetcher) -> io::Result<Self> {
        for part in ["chunks", "manifests", "tmp"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).map_err(|e| at(&path, e))?;
        }
        let sources = fetcher.sources();
        let uploads = folder.join("uploads");
        let uploads = Uploads::open(uploads.clone()).map_err(|e| at(&uploads, e))?;
        let inner = Inner {
            folder,
            fetcher,
            sources,
            files: Mutex::default(),
            reading: Mutex::default(),
            state: Mutex::default(),
            chunk_names: ChunkNames::default(),
            uploads,
            opened: Instant::now(),
            temporary: AtomicU64::new(0),
        };
        inner.sweep()?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The file of a manifest, exactly the bytes that the digest is of; `None` when there is no such image.
    pub fn manifest_file(&self, digest: &str) -> Option<PathBuf> {
        let mut state = self.inner.lock();
        if !state.images.contains_key(digest) {
            return None;
        }
        state.read.insert(digest.to_owned(), Instant::now());
        drop(state);
        let path = self.inner.manifest_path(digest);
        // Kept with the file, so that a restart does not forget it.
        let noted = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        if let Err(error) = noted {
            tracing::debug!(digest, %error, "cannot note that an image is used");
        }
        Some(path)
    }

    /// The file of a chunk; `None` when the name is not 64 lower-case hex digits or no image has the chunk.
    pub fn chunk_file(&self, sha256: &str) -> Option<PathBuf> {
        let name = unhex(sha256)?;
        let now = u32::try_from(self.inner.opened.elapsed().as_secs()).unwrap_or(u32::MAX).saturating_add(1);
        self.inner.lock().chunks.get_mut(&name)?.read = NonZeroU32::new(now);
        Some(self.inner.chunk_path(&name))
    }

    /// When an image was put in place, or its manifest was read last by a node.
    pub(super) fn used(&self, digest: &str) -> SystemTime {
        let file = fs::metadata(self.inner.manifest_path(digest));
        file.and_then(|meta| meta.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Whether any part of an image was read for somebody during the last `time`.
    pub(super) fn is_read(&self, digest: &str, time: Duration) -> bool {
        let Some(manifest) = self.manifest(digest) else { return false };
        if self.inner.lock().read.get(digest).is_some_and(|at| at.elapsed() < time) {
            return true;
        }
        let now = self.inner.opened.elapsed();
        let recent = |read: NonZeroU32| now.saturating_sub(Duration::from_secs(u64::from(read.get()) - 1)) < time;
        // Those who serve have their turn in between.
        manifest.chunks.chunks(LOOKED_UP).any(|some| {
            let some: Vec<ChunkName> = some.iter().filter_map(|chunk| unhex(&chunk.sha256)).collect();
            let state = self.inner.lock();
            some.iter().any(|name| state.chunks.get(name).and_then(|uses| uses.read).is_some_and(recent))
        })
    }

    /// How full it is.
    pub(super) fn space(&self) -> io::Result<LibrarySpace> {
        self.inner.space_beside(0)
    }

    /// How full it is beside an upload of so many bytes.
    pub(super) fn space_beside(&self, upload: u64) -> io::Result<LibrarySpace> {
        self.inner.space_beside(upload)
    }

    /// Parts of an image, each counted once; none when it is not there.
    pub(super) fn parts(&self, digest: &str) -> u64 {
        self.inner.lock().images.get(digest).map_or(0, |image| image.parts)
    }

    /// Whether there is such an image. Looks at no file.
    pub(super) fn knows(&self, digest: &str) -> bool {
        self.inner.lock().images.contains_key(digest)
    }

    /// Most bytes that a disk has once it is unpacked.
    pub(super) fn most_unpacked(&self) -> u64 {
        self.inner.sources.max_unpacked
    }

    /// Every image, by digest.
    pub fn list(&self) -> Vec<Imported> {
        self.inner.lock().images.values().cloned().collect()
    }

    /// Removes an image and the chunks that only it has. Whether there was one.
    pub fn remove(&self, digest: &str) -> io::Result<bool> {
        self.inner.forget(digest, Duration::ZERO).map(|gone| gone.is_some())
    }

    /// Removes every image whose digest is not in `keep`, but for those that were put in place during the last `settled`:
    /// who imported them may not have said so yet.
    pub fn collect(&self, keep: &HashSet<String>, settled: Duration) -> io::Result<GarbageCollected> {
        let mut sum = GarbageCollected::default();
        for image in self.list() {
            if !keep.contains(&image.digest)
                && let Some(gone) = self.inner.forget(&image.digest, settled)?
            {
                sum.images += 1;
                sum.chunks += gone.chunks;
                sum.bytes += gone.bytes;
            }
        }
        Ok(sum)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, LibraryState> {
        // The state is changed only by single inserts and removals, so a panic elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_files(&self) -> MutexGuard<'_, ()> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chunk_path(&self, name: &ChunkName) -> PathBuf {
        let text = hex(name);
        self.folder.join("chunks").join(&text[..2]).join(text)
    }

    fn manifest_path(&self, digest: &str) -> PathBuf {
        self.folder.join("manifests").join(format!("{digest}.json"))
    }

    /// The folder, for messages.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A name in `tmp/` that nothing else uses.
    pub(super) fn temporary_path(&self) -> PathBuf {
        self.folder.join("tmp").join(self.temporary.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// How full the library and its file system are beside an upload of so many bytes, which becomes content.
    pub(super) fn space_beside(&self, upload: u64) -> io::Result<LibrarySpace> {
        let uploads = self.uploads.bytes().saturating_sub(upload);
        let DiskSpace { free, inodes: all_inodes, free_inodes, .. } = DiskSpace::at(&self.folder)?;
        let state = self.lock();
        let (stored, parts) = (state.stored, state.chunks.len());
        drop(state);
        let chunks = self.sources.max_chunks.saturating_sub(parts);
        let below_limit = self.sources.max_library.saturating_sub(stored).saturating_sub(uploads);
        let inodes = above_reserve(all_inodes, free_inodes);
        let above_reserve = free.saturating_sub(RESERVE);
        Ok(LibrarySpace { free, above_reserve, below_limit, stored, uploads, parts, chunks, inodes })
    }

    fn read_manifest(&self, digest: &str) -> io::Result<ImageManifest> {
        let path = self.manifest_path(digest);
        let text = fs::read(&path).map_err(|e| at(&path, e))?;
        if hex(&Sha256::digest(&text)) != digest {
            return Err(damaged(&path, "its content does not match its name"));
        }
        let manifest: ImageManifest = serde_json::from_slice(&text).map_err(|e| damaged(&path, &e.to_string()))?;
        check_manifest(&manifest).map_err(|e| damaged(&path, &e))?;
        Ok(manifest)
    }

    /// Brings the folder to what the manifests say.
    fn sweep(&self) -> io::Result<()> {
        for entry in list(&self.folder.join("tmp"))? {
            fs::remove_file(&entry).map_err(|e| at(&entry, e))?;
        }
        let mut present = HashSet::new();
        for folder in list(&self.folder.join("chunks"))? {
            for file in list(&folder)? {
                match file.file_name().and_then(|n| n.to_str()).and_then(unhex) {
                    Some(name) if self.chunk_path(&name) == file => _ = present.insert(name),
                    _ => fs::remove_file(&file).map_err(|e| at(&file, e))?,
                }
            }
        }
        let mut state = self.lock();
        for file in list(&self.folder.join("manifests"))? {
            let digest = file.file_stem().and_then(|n| n.to_str()).unwrap_or_default();
            let manifest = self.read_manifest(digest).and_then(|manifest| {
                let missing = names(&manifest).find(|name| !present.contains(name));
                missing.map_or(Ok(manifest), |name| Err(damaged(&file, &format!("chunk {} is gone", hex(&name)))))
            });
            match manifest {
                Ok(manifest) => state.add(digest.to_owned(), &manifest),
                Err(error) if !is_lost(&error) => {
                    tracing::error!(file = %file.display(), %error, "a manifest of the image library cannot be read at the moment");
                    state.unread.insert(digest.to_owned());
                }
                Err(error) => {
                    tracing::warn!(file = %file.display(), %error, "an image is not whole: it has to be imported again");
                    fs::remove_file(&file).map_err(|e| at(&file, e))?;
                }
            }
        }
        if !state.unread.is_empty() {
            return Ok(());
        }
        let mut removed = 0;
        for name in present.iter().filter(|name| !state.chunks.contains_key(*name)) {
            let path = self.chunk_path(name);
            fs::remove_file(&path).map_err(|e| at(&path, e))?;
            removed += 1;
        }
        if removed > 0 {
            tracing::info!(chunks = removed, "removed what an interrupted import left in the image library");
        }
        Ok(())
    }

    /// Takes one use of a chunk, storing it unless it is there. The use is given back by [`Self::release`].
    pub(super) fn store(&self, name: &ChunkName, stored: &[u8]) -> io::Result<()> {
        let path = self.chunk_path(name);
        let known = self.take(name);
        // One that is damaged is written again.
        if known && fs::read(&path).is_ok_and(|there| there == stored) {
            return Ok(());
        }
        let temporary = self.temporary_path();
        let write = || {
            fs::write(&temporary, stored)?;
            fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
            // Whoever finds the former file damaged does not remove this one for it.
            let _files = self.lock_files();
            fs::rename(&temporary, &path)
        };
        let written = write();
        if written.is_ok() && !known {
            self.lock().stored += stored.len() as u64;
        }
        written.map_err(|error| {
            // What is left is swept at the next start.
            let _ = fs::remove_file(&temporary);
            self.release([*name]);
            at(&path, error)
        })
    }

    /// Counts a use; whether the chunk had one. Its file may be cut short all the same, and is written again then.
    fn take(&self, name: &ChunkName) -> bool {
        // A chunk that has no use any more has no file either, once this is there.
        let _files = self.lock_files();
        let mut state = self.lock();
        let uses = &mut state.chunks.entry(*name).or_default().count;
        *uses += 1;
        *uses > 1
    }

    /// Gives uses back; a chunk's file goes with its last use.
    pub(super) fn release(&self, names: impl IntoIterator<Item = ChunkName>) -> GarbageCollected {
        let mut gone = GarbageCollected::default();
        for name in names {
            let _files = self.lock_files();
            if !self.lock().give_back(&name) {
                continue;
            }
            let path = self.chunk_path(&name);
            let length = fs::metadata(&path).map_or(0, |meta| meta.len());
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "cannot remove an unused chunk");
            }
            let mut state = self.lock();
            state.stored = state.stored.saturating_sub(length);
            gone.bytes += length;
            gone.chunks += 1;
        }
        gone
    }

    /// Makes an image durable. The caller holds one use of each of its chunks, and keeps it to give it back.
    pub(super) fn commit(&self, manifest: &ImageManifest) -> io::Result<Imported> {
        let text = serde_json::to_vec(manifest)?;
        let digest = hex(&Sha256::digest(&text));
        let folder = self.folder.join("manifests");
        let (temporary, path) = (self.temporary_path(), self.manifest_path(&digest));
        let root = File::open(&self.folder)?;
        nix::unistd::syncfs(root.as_fd()).map_err(|e| at(&self.folder, e.into()))?;
        let mut file = File::create(&temporary)?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(|e| at(&temporary, e))?;
        let _files = self.lock_files();
        fs::rename(&temporary, &path).map_err(|e| at(&path, e))?;
        File::open(&folder).and_then(|f| f.sync_all()).map_err(|e| at(&folder, e))?;
        let mut state = self.lock();
        state.placed.insert(digest.clone(), Instant::now());
        state.add(digest.clone(), manifest);
        Ok(state.images[&digest].clone())
    }

    /// Removes an image, unless it was put in place later than so long ago.
    fn forget(&self, digest: &str, settled: Duration) -> io::Result<Option<GarbageCollected>> {
        let files = self.lock_files();
        if !self.lock().is_settled(digest, settled) {
            return Ok(None);
        }
        let manifest = self.read_manifest(digest);
        let path = self.manifest_path(digest);
        // The manifest goes first: a manifest without chunks must never be found after a crash.
        fs::remove_file(&path).map_err(|e| at(&path, e))?;
        let folder = self.folder.join("manifests");
        File::open(&folder).and_then(|f| f.sync_all()).map_err(|e| at(&folder, e))?;
        self.lock().forget(digest);
        drop(files);
        Ok(Some(match manifest {
            Ok(manifest) => self.release(names(&manifest).collect::<HashSet<_>>()),
            // Its chunks stay until the next start, which removes what no manifest names.
            Err(error) => {
                tracing::warn!(digest, %error, "removed an image whose manifest cannot be read");
                GarbageCollected::default()
            }
        }))
    }
}

/// Names of the chunks, with repeats.
fn names(manifest: &ImageManifest) -> impl Iterator<Item = ChunkName> {
    manifest.chunks.iter().filter_map(|chunk| unhex(&chunk.sha256))
}

/// What a manifest must be for anything to be done with it.
fn check_manifest(manifest: &ImageManifest) -> Result<(), String> {
    let catalog = manifest.catalog.unwrap_or_default();
    if manifest.virtual_size > MAX_VIRTUAL_SIZE || manifest.chunks.len() > MAX_CHUNKS || catalog > manifest.virtual_size
    {
        return Err("it is larger than any image may be".into());
    }
    let mut end = 0;
    for Chunk { offset, length, sha256, .. } in &manifest.chunks {
        let length = u64::from(*length);
        let next = offset.checked_add(length).filter(|next| *next <= manifest.virtual_size);
        let fits = *offset >= end && length > 0 && length <= CHUNK_SIZE && unhex(sha256).is_some();
        end = next.filter(|_| fits).ok_or_else(|| format!("chunk at {offset} does not fit"))?;
    }
    Ok(())
}

fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|e| at(folder, e))?;
    entries.map(|entry| entry.map(|e| e.path()).map_err(|e| at(folder, e))).collect()
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Whether something is gone or damaged, and not only out of reach at the moment.
pub(super) fn is_lost(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
}

fn damaged(path: &Path, reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {reason}", path.display()))
}
