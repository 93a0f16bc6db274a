//! Parts of the library's images, unpacked, for whoever serves them without a login: live ISOs and what is published.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::image::Library;
use crate::protocol::{CHUNK_SIZE, Chunk, ImageManifest};
use crate::ration::Rank;

/// Bytes that are sent at once, and that wait for a client that takes none.
pub(super) const PIECE: u64 = 256 << 10;
/// Chunks that are kept unpacked for all of one rank: whoever reads an ISO asks for small parts of one, again and again.
const KEPT_CHUNKS: usize = 16;
/// The same for strangers.
const KEPT_FOR_STRANGERS: usize = 4;
/// Chunks that are unpacked at once for all of one rank, whoever asks for how many: each takes a processor.
const AT_ONCE: usize = 2;
/// The same for strangers.
const AT_ONCE_FOR_STRANGERS: usize = 1;
static ZEROS: [u8; PIECE as usize] = [0; PIECE as usize];

/// What is read of images. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) struct ImageReader {
    library: Library,
    chunks: Arc<ChunkCache>,
}

impl ImageReader {
    /// Of a library.
    pub(super) fn new(library: Library) -> Self {
        Self { library, chunks: Arc::default() }
    }

    /// The library.
    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    /// The bytes of this part, in pieces of at most so many bytes, for somebody of this rank.
    pub(super) fn read(
        &self,
        rank: Rank,
        manifest: Arc<ImageManifest>,
        part: Range<u64>,
        most: u64,
        peer: Option<SocketAddr>,
    ) -> impl futures::Stream<Item = io::Result<Bytes>> + Send + use<> {
        let parts = self.clone();
        futures::stream::try_unfold(part.start, move |at| {
            let (parts, manifest, end) = (parts.clone(), manifest.clone(), part.end);
            async move {
                if at >= end {
                    return Ok(None);
                }
                let read = parts.piece(rank, &manifest, at, end, most).await;
                let bytes = read.inspect_err(|error| cannot_be_read(peer, error))?;
                let next = at + bytes.len() as u64;
                Ok(Some((bytes, next)))
            }
        })
    }

    /// The bytes from here to the end of the chunk or the hole that they are in, at most to `end` and no more than `most`. At least
    /// one.
    pub(super) async fn piece(
        &self,
        rank: Rank,
        manifest: &ImageManifest,
        at: u64,
        end: u64,
        most: u64,
    ) -> io::Result<Bytes> {
        let end = end.min(at.saturating_add(most));
        let after = manifest.chunks.partition_point(|chunk| chunk.offset <= at);
        let within = after.checked_sub(1).and_then(|index| manifest.chunks.get(index));
        let Some(chunk) = within.filter(|chunk| at < chunk.offset + u64::from(chunk.length)) else {
            let next = manifest.chunks.get(after).map_or(end, |chunk| chunk.offset.min(end));
            let length = usize::try_from(next - at).map_err(io::Error::other)?;
            return Ok(Bytes::from_static(&ZEROS[..length.min(ZEROS.len())]));
        };
        let plain = self.chunks.get(rank, &self.library, chunk).await?;
        let last = (chunk.offset + u64::from(chunk.length)).min(end);
        let skip = usize::try_from(at - chunk.offset).map_err(io::Error::other)?;
        let until = usize::try_from(last - chunk.offset).map_err(io::Error::other)?;
        if most >= CHUNK_SIZE {
            return Ok(plain.slice(skip..until));
        }
        // A copy: who takes nothing keeps no more than this.
        Ok(Bytes::copy_from_slice(&plain[skip..until]))
    }
}

/// Chunks that were unpacked, by the rank of who asked: nobody waits for who is known less, or loses to him what is kept.
struct ChunkCache {
    known: UnpackedChunks,
    untold: UnpackedChunks,
    strangers: UnpackedChunks,
}

impl Default for ChunkCache {
    fn default() -> Self {
        Self {
            known: UnpackedChunks::new(AT_ONCE, KEPT_CHUNKS),
            untold: UnpackedChunks::new(AT_ONCE, KEPT_CHUNKS),
            strangers: UnpackedChunks::new(AT_ONCE_FOR_STRANGERS, KEPT_FOR_STRANGERS),
        }
    }
}

impl ChunkCache {
    fn of(&self, rank: Rank) -> &UnpackedChunks {
        match rank {
            Rank::Own | Rank::Known => &self.known,
            Rank::Untold => &self.untold,
            Rank::Stranger => &self.strangers,
        }
    }

    /// A chunk, unpacked. What is kept for others is used too, and stays theirs.
    async fn get(&self, rank: Rank, library: &Library, chunk: &Chunk) -> io::Result<Bytes> {
        let mut all = [&self.known, &self.untold, &self.strangers].into_iter();
        match all.find_map(|unpacked| unpacked.kept(&chunk.sha256)) {
            Some(bytes) => Ok(bytes),
            None => self.of(rank).get(library, chunk).await,
        }
    }
}

/// The chunks that were unpacked last, under the names that they have in the library.
struct UnpackedChunks {
    turns: Semaphore,
    most: usize,
    // std's lock: held for a look, never across an await.
    kept: Mutex<VecDeque<(String, Bytes)>>,
}

impl UnpackedChunks {
    fn new(at_once: usize, most: usize) -> Self {
        Self { turns: Semaphore::new(at_once), most, kept: Mutex::default() }
    }

    fn kept(&self, name: &str) -> Option<Bytes> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == name)?;
        let found = kept.remove(at)?;
        let bytes = found.1.clone();
        kept.push_front(found);
        Some(bytes)
    }

    fn keep(&self, name: &str, bytes: &Bytes) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(self.most - 1);
        kept.push_front((name.to_owned(), bytes.clone()));
    }

    async fn get(&self, library: &Library, chunk: &Chunk) -> io::Result<Bytes> {
        let _turn = self.turns.acquire().await.map_err(io::Error::other)?;
        // Others may have asked for the same.
        if let Some(bytes) = self.kept(&chunk.sha256) {
            return Ok(bytes);
        }
        let (library, wanted) = (library.clone(), chunk.clone());
        let bytes = tokio::task::spawn_blocking(move || library.unpacked(&wanted)).await;
        let bytes = Bytes::from(bytes.map_err(io::Error::other).flatten()?);
        self.keep(&chunk.sha256, &bytes);
        Ok(bytes)
    }
}

/// Says that a part cannot be read.
pub(super) fn cannot_be_read(peer: Option<SocketAddr>, error: &io::Error) {
    warn!(peer = peer.map(tracing::field::display), %error, "cannot read a part of an image from the library");
}

/// What is asked for of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestedRange {
    /// All of it.
    Whole,
    /// From one byte up to another.
    Part(Range<u64>),
    /// None of its bytes.
    Outside,
}

/// One range of bytes (RFC 9110 section 14.1.2). What is malformed, or asks for several, is answered with the whole.
pub(super) fn range(text: &str, total: u64) -> RequestedRange {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return RequestedRange::Whole;
    };
    let part = match (first.trim(), last.trim()) {
        ("", length) => match length.parse::<u64>() {
            Ok(length) => total.saturating_sub(length)..total,
            Err(_) => return RequestedRange::Whole,
        },
        (first, "") => match first.parse() {
            Ok(first) => first..total,
            Err(_) => return RequestedRange::Whole,
        },
        (first, last) => match (first.parse::<u64>(), last.parse::<u64>()) {
            (Ok(first), Ok(last)) if first <= last => first..last.saturating_add(1).min(total),
            _ => return RequestedRange::Whole,
        },
    };
    if part.start >= part.end { RequestedRange::Outside } else { RequestedRange::Part(part) }
}

#[cfg(test)]
mod tests;
