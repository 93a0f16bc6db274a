//! Writing an image to a disk, chunk by chunk.
//!
//! Some chunks are under way at a time; each is fetched, verified, unpacked, compared with what the disk holds
//! and written only when that differs. Nothing is unpacked before its SHA-256 is right. Memory is bounded by the
//! number under way, whatever the image's size.
//!
//! **Order.** The start of the disk and its last MiB are zeroed first and the start is written last, so a disk
//! whose writing was interrupted has no partition table and boots nothing, not half an operating system. Writing
//! again repeats what is missing and leaves alone what is there.

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::DiskError;
use super::device::{BlockDevice, Buffer};
use super::gpt;
use crate::protocol::{CHUNK_SIZE, Chunk, ImageManifest};

/// Zeroed at the end of the disk, and after the image: old backup partition tables and RAID superblocks.
const REMNANTS: u64 = 1 << 20;
/// The first look at what the disk holds; most differences show there.
const FIRST_LOOK: usize = 4096;
/// Bytes compared at once.
const LOOK: usize = 256 << 10;
/// After this many differences in a row only every 64th piece is compared, until one is equal again.
const GIVE_UP_COMPARING: u32 = 16;
/// Longest piece that is zeroed at once.
const HOLE: u64 = 64 << 20;
/// Shortest time between two calls of the progress function.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// A chunk that is wrong this often is wrong where it comes from.
const MAX_DAMAGED: u32 = 3;

/// Where chunks come from.
#[async_trait]
pub trait ChunkSource: Send + Sync {
    /// The stored bytes of a chunk, as they came; they are verified here.
    async fn chunk(&self, sha256: &str) -> Result<Bytes, SourceError>;
}

/// Why a chunk did not come.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    /// What happened.
    pub message: String,
    /// Asking again is useless: the session has ended, or the image is gone.
    pub fatal: bool,
}

/// How hard is tried.
#[derive(Debug, Clone, Copy)]
pub struct WriteOptions {
    /// Chunks under way at a time; each needs up to 3 MiB.
    pub in_flight: usize,
    /// Times a chunk is asked for.
    pub attempts: u32,
    /// Before the second time; doubles up to 20 s.
    pub pause: Duration,
}

impl Default for WriteOptions {
    /// Six chunks; somewhat over two minutes without an answer, time for the appliance to start again.
    fn default() -> Self {
        Self { in_flight: 6, attempts: 12, pause: Duration::from_millis(500) }
    }
}

/// How far the writing is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteProgress {
    /// Bytes of the disk that are as they should be.
    pub done: u64,
    /// Bytes of the image on the disk.
    pub total: u64,
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteSummary {
    /// Bytes of the image on the disk.
    pub total: u64,
    /// Bytes fetched.
    pub fetched: u64,
    /// Bytes written.
    pub written: u64,
    /// Bytes that were there already.
    pub unchanged: u64,
    /// Bytes zeroed because no chunk covers them.
    pub zeroed: u64,
}

/// Writes an image, moves the backup partition table to the end of the disk, and lets the kernel see it.
///
/// `progress` is called at most four times a second and once at the end.
pub async fn write_image(
    source: Arc<dyn ChunkSource>,
    manifest: &ImageManifest,
    disk: &Path,
    progress: impl Fn(WriteProgress) + Send + Sync,
) -> Result<WriteSummary, DiskError> {
    let summary = write_exact(source, manifest, disk, WriteOptions::default(), progress).await?;
    let path = disk.to_owned();
    blocking(move || {
        let disk = BlockDevice::open(&path)?;
        gpt::fit_to_disk(&disk)?;
        disk.sync()?;
        disk.reread_partitions();
        Ok(())
    })
    .await?;
    Ok(summary)
}

/// Writes an image and nothing else: afterwards the disk reads as the image from its start to the image's end,
/// and old partition tables behind that are gone.
pub async fn write_exact(
    source: Arc<dyn ChunkSource>,
    manifest: &ImageManifest,
    disk: &Path,
    options: WriteOptions,
    progress: impl Fn(WriteProgress) + Send + Sync,
) -> Result<WriteSummary, DiskError> {
    let pieces = plan(manifest)?;
    let path = disk.to_owned();
    let total = manifest.virtual_size;
    let writer = blocking(move || DiskWriter::begin(&path, total)).await?;
    let writer = Arc::new(writer);
    let report = WriteReporter { progress, total, done: AtomicU64::new(0), said: Mutex::new(None) };
    // What is at the start comes last; see above.
    let (start, rest): (Vec<_>, Vec<_>) = pieces.into_iter().partition(|piece| piece.offset() == 0);
    for (part, in_flight) in [(rest, options.in_flight.max(1)), (start, 1)] {
        futures::stream::iter(part.into_iter().enumerate().map(Ok))
            .try_for_each_concurrent(in_flight, |(number, piece)| {
                let (source, writer, report) = (&source, &writer, &report);
                async move {
                    let length = piece.length();
                    piece.apply(number, source, writer, options).await?;
                    report.add(length);
                    Ok::<_, DiskError>(())
                }
            })
            .await?;
        let writer = writer.clone();
        blocking(move || writer.disk.sync()).await?;
    }
    report.end();
    Ok(writer.summary())
}

/// One thing to do.
#[derive(Debug, Clone)]
enum WritePiece {
    Data(Chunk),
    Hole { offset: u64, length: u64 },
}

/// The pieces that cover the image, by rising offset.
fn plan(manifest: &ImageManifest) -> Result<Vec<WritePiece>, DiskError> {
    let size = manifest.virtual_size;
    let fail = |reason: String| Err(DiskError::Manifest(reason));
    if size == 0 || !size.is_multiple_of(512) {
        return fail(format!("a disk of {size} bytes"));
    }
    let mut pieces = Vec::with_capacity(manifest.chunks.len() * 2);
    let mut end = 0;
    let hole = |from: u64, to: u64, pieces: &mut Vec<WritePiece>| {
        let mut at = from;
        while at < to {
            let length = (to - at).min(HOLE);
            pieces.push(WritePiece::Hole { offset: at, length });
            at += length;
        }
    };
    for chunk in &manifest.chunks {
        let (offset, length) = (chunk.offset, u64::from(chunk.length));
        let next = offset.checked_add(length).filter(|next| *next <= size);
        let sector = offset.is_multiple_of(512) && length.is_multiple_of(512);
        let Some(next) = next.filter(|_| offset >= end && sector && (1..=CHUNK_SIZE).contains(&length)) else {
            return fail(format!("the chunk at {offset} does not fit"));
        };
        // zstd never makes more than this of incompressible data.
        if u64::from(chunk.stored) > length + length / 128 + 1024 {
            return fail(format!("the chunk at {offset} is stored in {} bytes", chunk.stored));
        }
        hole(end, offset, &mut pieces);
        pieces.push(WritePiece::Data(chunk.clone()));
        end = next;
    }
    hole(end, size, &mut pieces);
    Ok(pieces)
}

impl WritePiece {
    fn offset(&self) -> u64 {
        match self {
            Self::Data(chunk) => chunk.offset,
            Self::Hole { offset, .. } => *offset,
        }
    }

    fn length(&self) -> u64 {
        match self {
            Self::Data(chunk) => u64::from(chunk.length),
            Self::Hole { length, .. } => *length,
        }
    }

    async fn apply(
        self,
        number: usize,
        source: &Arc<dyn ChunkSource>,
        writer: &Arc<DiskWriter>,
        options: WriteOptions,
    ) -> Result<(), DiskError> {
        let writer = writer.clone();
        match self {
            Self::Hole { offset, length } => blocking(move || writer.zero(offset, length)).await,
            Self::Data(chunk) => {
                let stored = fetch(source, &chunk, writer.disk.path(), options).await?;
                blocking(move || writer.data(number, &chunk, &stored)).await
            }
        }
    }
}

/// Fetches and verifies a chunk.
async fn fetch(
    source: &Arc<dyn ChunkSource>,
    chunk: &Chunk,
    disk: &Path,
    options: WriteOptions,
) -> Result<Bytes, DiskError> {
    let stop = |reason: String| DiskError::Source { path: disk.into(), reason };
    let mut damaged = 0;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let failure = match source.chunk(&chunk.sha256).await {
            Ok(stored) => {
                let name = chunk.sha256.clone();
                let right = stored.len() == chunk.stored as usize;
                let (stored, right) = blocking(move || {
                    let right = right && Sha256::digest(&stored).iter().eq(unhex(&name).iter());
                    Ok((stored, right))
                })
                .await?;
                if right {
                    return Ok(stored);
                }
                damaged += 1;
                if damaged >= MAX_DAMAGED {
                    return Err(stop(format!(
                        "chunk {} is damaged in the appliance's image library; import the image again",
                        chunk.sha256
                    )));
                }
                "it came damaged".to_owned()
            }
            Err(error) if error.fatal => return Err(stop(error.message)),
            Err(error) => error.message,
        };
        if attempt >= options.attempts.max(1) {
            return Err(stop(format!("chunk {} did not come in {attempt} attempts: {failure}", chunk.sha256)));
        }
        tracing::warn!(chunk = chunk.sha256, attempt, reason = %failure, "a chunk of the image did not arrive whole: it is asked for again");
        sleep((options.pause * 2_u32.saturating_pow(attempt - 1)).min(Duration::from_secs(20))).await;
    }
}

/// The bytes of hex digits; short when they are none, so that nothing equals them.
fn unhex(text: &str) -> Vec<u8> {
    let digits = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok());
    text.as_bytes().chunks(2).map_while(digits).collect()
}

/// What one chunk's work needs, used again and again.
struct Workspace {
    data: Buffer,
    look: Buffer,
    unpacker: zstd::bulk::Decompressor<'static>,
}

struct DiskWriter {
    disk: BlockDevice,
    size: u64,
    spaces: Mutex<Vec<Workspace>>,
    /// Differences in a row.
    differing: AtomicU32,
    fetched: AtomicU64,
    written: AtomicU64,
    unchanged: AtomicU64,
    zeroed: AtomicU64,
}

impl DiskWriter {
    /// Opens the disk and takes away what could boot or be mistaken for a partition table.
    fn begin(path: &Path, size: u64) -> Result<Self, DiskError> {
        let disk = BlockDevice::open(path)?;
        let have = disk.size();
        if have < size {
            return Err(DiskError::TooSmall { path: path.into(), needed: size, have });
        }
        disk.zero(0, CHUNK_SIZE.min(size / 512 * 512))?;
        let tail = have.saturating_sub(REMNANTS) / disk.sector() * disk.sector();
        disk.zero(tail.max(size.next_multiple_of(disk.sector())), REMNANTS + disk.sector())?;
        let after = size.next_multiple_of(disk.sector());
        if after < tail {
            disk.zero(after, REMNANTS.min(tail - after))?;
            disk.discard(after + REMNANTS, tail.saturating_sub(after + REMNANTS));
        }
        disk.sync()?;
        Ok(Self {
            disk,
            size,
            spaces: Mutex::default(),
            differing: AtomicU32::new(0),
            fetched: AtomicU64::new(0),
            written: AtomicU64::new(0),
            unchanged: AtomicU64::new(0),
            zeroed: AtomicU64::new(0),
        })
    }

    fn summary(&self) -> WriteSummary {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        WriteSummary {
            total: self.size,
            fetched: get(&self.fetched),
            written: get(&self.written),
            unchanged: get(&self.unchanged),
            zeroed: get(&self.zeroed),
        }
    }

    fn space(&self) -> Result<Workspace, DiskError> {
        let kept = self.spaces.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.map_or_else(
            || {
                let unpacker = zstd::bulk::Decompressor::new().map_err(|e| DiskError::Task(format!("zstd: {e}")))?;
                Ok(Workspace { data: Buffer::new(CHUNK_SIZE as usize), look: Buffer::new(LOOK), unpacker })
            },
            Ok,
        )
    }

    fn keep(&self, space: Workspace) {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner).push(space);
    }

    /// Unpacks and writes a verified chunk.
    fn data(&self, number: usize, chunk: &Chunk, stored: &[u8]) -> Result<(), DiskError> {
        let length = chunk.length as usize;
        let mut space = self.space()?;
        let unpacked = space.unpacker.decompress_to_buffer(stored, &mut space.data[..length]);
        if !matches!(unpacked, Ok(count) if count == length) {
            return Err(DiskError::Manifest(format!("chunk {} does not unpack to {length} bytes", chunk.sha256)));
        }
        self.fetched.fetch_add(stored.len() as u64, Ordering::Relaxed);
        if self.worth_comparing(number) && self.holds(chunk.offset, length, &mut space)? {
            self.differing.store(0, Ordering::Relaxed);
            self.unchanged.fetch_add(length as u64, Ordering::Relaxed);
        } else {
            self.differing.fetch_add(1, Ordering::Relaxed);
            self.disk.write_bulk(chunk.offset, length, &space.data)?;
            self.written.fetch_add(length as u64, Ordering::Relaxed);
        }
        self.keep(space);
        Ok(())
    }

    fn worth_comparing(&self, number: usize) -> bool {
        self.differing.load(Ordering::Relaxed) < GIVE_UP_COMPARING || number.is_multiple_of(64)
    }

    /// Whether the disk holds the unpacked data already.
    fn holds(&self, offset: u64, length: usize, space: &mut Workspace) -> Result<bool, DiskError> {
        let mut at = 0;
        while at < length {
            let count = if at == 0 { FIRST_LOOK } else { LOOK - at % LOOK }.min(length - at);
            self.disk.read_bulk(offset + at as u64, count, &mut space.look)?;
            if space.look[..count] != space.data[at..at + count] {
                return Ok(false);
            }
            at += count;
        }
        Ok(true)
    }

    fn zero(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        let (mut at, end) = (offset, offset + length);
        self.zeroed.fetch_add(length, Ordering::Relaxed);
        if self.disk.zeroes_are_cheap() {
            return self.disk.zero(at, end - at);
        }
        // The device would have to be sent every zero; reading costs no more, and a disk that was erased or is
        // new holds them already.
        let mut space = self.space()?;
        while at < end {
            let count = (end - at).min(CHUNK_SIZE);
            space.data[..count as usize].fill(0);
            let number = (at / CHUNK_SIZE) as usize;
            if self.worth_comparing(number) && self.holds(at, count as usize, &mut space)? {
                self.differing.store(0, Ordering::Relaxed);
            } else {
                self.differing.fetch_add(1, Ordering::Relaxed);
                self.disk.zero(at, count)?;
            }
            at += count;
        }
        self.keep(space);
        Ok(())
    }
}

struct WriteReporter<F> {
    progress: F,
    total: u64,
    done: AtomicU64,
    said: Mutex<Option<Instant>>,
}

impl<F: Fn(WriteProgress)> WriteReporter<F> {
    fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_none_or(|at| at.elapsed() >= PROGRESS_EVERY) {
            *said = Some(Instant::now());
            (self.progress)(WriteProgress { done, total: self.total });
        }
    }

    fn end(&self) {
        (self.progress)(WriteProgress { done: self.total, total: self.total });
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DiskError> + Send + 'static,
) -> Result<T, DiskError> {
    spawn_blocking(work).await.unwrap_or_else(|e| Err(DiskError::Task(format!("writing to the disk: {e}"))))
}
