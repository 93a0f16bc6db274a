//! Chunking: cuts a disk into chunks, compresses and stores them, on some threads and in bounded memory.
//!
//! A fixed set of buffers goes round: the caller fills one, a worker leaves out zeros, compresses the rest and
//! stores it, and gives the buffer back. What is stored depends on the content alone, so the same disk always
//! gives the same manifest.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use sha2::{Digest, Sha256};

use super::library::{Inner, RESERVE};
use super::{ImportError, MAX_CHUNKS, Scarce, SpaceLack, hex};
use crate::protocol::{CHUNK_SIZE, Chunk};

/// Level 3 unpacks as fast as level 1 and is within 5 % of level 6 on operating system images.
const ZSTD_LEVEL: i32 = 3;
/// Most threads that compress for one import.
const MAX_WORKERS: usize = 4;
/// Chunks stored between two looks at the free room.
const ROOM_EVERY: usize = 8;

/// Chunks in the library that stay there while this lives.
pub(super) struct Stored {
    pub(super) chunks: Vec<Chunk>,
    _held: Arc<HeldChunks>,
}

struct HeldChunks {
    inner: Arc<Inner>,
    /// Bytes that were sent, of what is stored.
    upload: u64,
    names: Mutex<HashSet<[u8; 32]>>,
    /// How many those are, for others.
    parts: Arc<AtomicU64>,
}

impl Drop for HeldChunks {
    fn drop(&mut self) {
        self.inner.release(std::mem::take(&mut *self.names.lock().unwrap_or_else(PoisonError::into_inner)));
        self.parts.store(0, Ordering::Relaxed);
    }
}

/// Fails when there is no room for `need` more bytes. `upload` bytes that were sent are what becomes of them, and count once.
pub(super) fn check_room(inner: &Inner, need: u64, upload: u64) -> Result<(), ImportError> {
    let folder = inner.folder().display();
    let space = inner.space_beside(upload).map_err(|e| ImportError::passing(format!("{folder}: {e}")))?;
    if space.chunks == 0 {
        let message = format!(
            "no room in the image library: its images have {} parts of a MiB already, however little is in them, which \
             is all that it keeps; remove images",
            inner.sources.max_chunks
        );
        let lack = Some(SpaceLack { of: Scarce::Parts, room: 0, needed: need.div_ceil(CHUNK_SIZE).max(1) });
        return Err(ImportError { lack, ..ImportError::passing(message) });
    }
    if space.inodes == Some(0) {
        let message = format!(
            "no room in {folder}: each MiB of an image is a file, and what inodes its file system has left must stay free; \
             remove images, or use a file system with more inodes"
        );
        let lack = Some(SpaceLack { of: Scarce::Parts, room: 0, needed: need.div_ceil(CHUNK_SIZE).max(1) });
        return Err(ImportError { lack, ..ImportError::passing(message) });
    }
    if space.room() >= need {
        return Ok(());
    }
    let needed = (need >> 20).max(1);
    let message = if space.below_limit < space.above_reserve {
        format!(
            "no room in the image library: about {needed} MiB are needed, and it has {} MiB of the {} MiB of \
             image.max_library_gib, with {} MiB that were sent and are not imported; remove images or raise the limit",
            space.stored.saturating_add(space.uploads) >> 20,
            inner.sources.max_library >> 20,
            space.uploads >> 20
        )
    } else {
        format!(
            "no room in {folder}: about {needed} MiB are needed, {} MiB are free and {} MiB of them must stay free; \
             remove images or enlarge the file system",
            space.free >> 20,
            RESERVE >> 20
        )
    };
    let lack = Some(SpaceLack { of: Scarce::Bytes, room: space.room(), needed: need });
    Err(ImportError { lack, ..ImportError::passing(message) })
}

/// Stores a disk, of which `upload` bytes were sent to the appliance, and counts its `parts`. `next` fills the buffer, which comes empty, with at most [`CHUNK_SIZE`] bytes and gives their
/// offset; `None` is the end. Offsets rise.
pub(super) fn store(
    inner: &Arc<Inner>,
    upload: u64,
    parts: &Arc<AtomicU64>,
    mut next: impl FnMut(&mut Vec<u8>) -> Result<Option<u64>, ImportError>,
) -> Result<Stored, ImportError> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(MAX_WORKERS);
    let held = Arc::new(HeldChunks { inner: inner.clone(), upload, names: Mutex::default(), parts: parts.clone() });
    let (give, empty) = mpsc::channel::<Vec<u8>>();
    let (send, full) = mpsc::channel::<(u64, Vec<u8>)>();
    let full = Mutex::new(full);
    let done = Mutex::new((Vec::new(), None::<ImportError>));
    let count = AtomicUsize::new(0);
    // One is filled while the others are worked on.
    for _ in 0..=workers {
        // The receiver lives in this function.
        let _ = give.send(Vec::with_capacity(CHUNK_SIZE as usize));
    }
    let outcome = thread::scope(|scope| {
        for _ in 0..workers {
            let (give, full, done, count, held) = (give.clone(), &full, &done, &count, &held);
            scope.spawn(move || {
                let mut packer = zstd::bulk::Compressor::new(ZSTD_LEVEL);
                loop {
                    let work = full.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((offset, data)) = work else { break };
                    let result = match &mut packer {
                        Ok(packer) => one(held, packer, count, offset, &data),
                        Err(error) => Err(ImportError::passing(format!("zstd: {error}"))),
                    };
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    match result {
                        Ok(chunk) => done.0.extend(chunk),
                        Err(error) => done.1 = Some(error),
                    }
                    drop(done);
                    // Fails only when the caller has ended.
                    let _ = give.send(data);
                }
            });
        }
        // With this end gone, a receive fails when every worker is: none waits for ever.
        drop(give);
        let send = send;
        loop {
            let Ok(mut buffer) = empty.recv() else {
                return Err(ImportError::passing("the threads that compress ended early"));
            };
            if done.lock().unwrap_or_else(PoisonError::into_inner).1.is_some() {
                return Ok(());
            }
            buffer.clear();
            let Some(offset) = next(&mut buffer)? else { return Ok(()) };
            if send.send((offset, buffer)).is_err() {
                return Ok(());
            }
        }
    });
    let (mut chunks, failed) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    // The first cause counts: a worker's failure ends the reading.
    if let Some(error) = failed {
        return Err(error);
    }
    outcome?;
    chunks.sort_by_key(|chunk: &Chunk| chunk.offset);
    Ok(Stored { chunks, _held: held })
}

fn one(
    held: &HeldChunks,
    packer: &mut zstd::bulk::Compressor<'_>,
    count: &AtomicUsize,
    offset: u64,
    data: &[u8],
) -> Result<Option<Chunk>, ImportError> {
    if is_zero(data) {
        return Ok(None);
    }
    let number = count.fetch_add(1, Ordering::Relaxed);
    if number >= MAX_CHUNKS {
        let limit = (MAX_CHUNKS as u64 * CHUNK_SIZE) >> 30;
        return Err(ImportError::lasting(format!("the image holds more than {limit} GiB of data")));
    }
    if number.is_multiple_of(ROOM_EVERY) {
        check_room(&held.inner, ROOM_EVERY as u64 * CHUNK_SIZE, held.upload)?;
    }
    let packed = packer.compress(data).map_err(|e| ImportError::passing(format!("zstd: {e}")))?;
    let name: [u8; 32] = Sha256::digest(&packed).into();
    if held.names.lock().unwrap_or_else(PoisonError::into_inner).insert(name) {
        if let Err(error) = held.inner.store(&name, &packed) {
            // The use was given back already.
            held.names.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
            return Err(ImportError::passing(format!("a chunk cannot be stored: {error}")));
        }
        held.parts.fetch_add(1, Ordering::Relaxed);
    }
    let (length, stored) = (data.len() as u32, packed.len() as u32);
    Ok(Some(Chunk { offset, length, sha256: hex(&name), stored }))
}

/// Whether there is nothing but zeros. Looks at blocks, so that the compiler uses wide registers.
pub(super) fn is_zero(data: &[u8]) -> bool {
    data.chunks(4096).all(|block| block.iter().fold(0, |all, byte| all | byte) == 0)
}
