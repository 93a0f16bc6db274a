//! Imports: the whole way from a URL to a manifest.
//!
//! A task reads the source; a blocking thread hashes it, unpacks it and hands it to [`super::chunks`]. A raw
//! disk passes straight through. A qcow2 needs random access: it is spooled into an unnamed file of the library
//! first, and its checksum is verified before it is looked at. Files of an archive are stored as they come; what is of use, its
//! index says only then.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::Url;
use tokio::sync::mpsc;

use super::archive::ArchiveMembers;
use super::brake::Brake;
use super::checksum::{Expected, SourceHasher};
use super::chunks::{self, Stored, check_room};
use super::fetch::{SourceFetcher, shown};
use super::formats::{DiskLayout, HEAD, Outer, fill, wants_memory};
use super::iso9660::{ISO_MAGIC, is_iso};
use super::library::{Inner, Library};
use super::qcow2::Qcow2;
use super::upload::WholeUpload;
use super::{ImportError, ImportProgress, Imported, MAX_LIVE_ISO, MAX_VIRTUAL_SIZE, SourceRead};
use crate::api::slipway::ImageContent;
use crate::api::slipway::ImageSpec;
use crate::protocol::{CHUNK_SIZE, ImageManifest};

/// Pieces of the source, up to 256 KiB each, between its reader and the thread that unpacks it.
const QUEUE: usize = 32;
/// Shortest time between two calls of the progress function.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Bytes spooled between two looks at the free room. What all imports write in between is little of what must stay free.
const ROOM_EVERY: u64 = 8 << 20;
/// Disks are made of whole sectors.
const SECTOR: u64 = 512;

enum SourcePiece {
    Data(Bytes),
    /// The source was read to its end; without it, the reader failed or was dropped.
    End,
}

impl Library {
    /// Imports an image; returns once every chunk and the manifest are on disk and the checksum holds.
    ///
    /// `progress` is called at most four times a second and once at the end. Dropping the future ends the
    /// import and removes what it stored.
    pub async fn import(
        &self,
        spec: &ImageSpec,
        progress: impl Fn(ImportProgress) + Send + Sync + 'static,
    ) -> Result<Imported, ImportError> {
        self.import_with(spec, None, progress, Brake::default(), Arc::default()).await.map(|(imported, _)| imported)
    }

    /// [`Self::import`] of what was sent to the appliance, where it was, and with a brake for what goes on while nobody polls the
    /// future. `parts` is how many parts it has in the library.
    pub(super) async fn import_with(
        &self,
        spec: &ImageSpec,
        upload: Option<WholeUpload>,
        progress: impl Fn(ImportProgress) + Send + Sync + 'static,
        brake: Brake,
        parts: Arc<AtomicU64>,
    ) -> Result<(Imported, SourceRead), ImportError> {
        let _ends = brake.end_on_drop();
        // What does not parse is not repeated: it may hold a password.
        let url: Url = spec.url.trim().parse().map_err(|e| ImportError::lasting(format!("the image's URL: {e}")))?;
        let at = shown(&url);
        let layout =
            DiskLayout::wanted(spec.format.as_deref()).map_err(|e| ImportError::lasting(format!("{at}: {e}")))?;
        let fetcher = &self.inner.fetcher;
        let expected = Expected::of(fetcher, spec, &url).await?;
        let upload_bytes = upload.as_ref().map_or(0, |upload| upload.bytes);
        let (mut source, sent) = match upload {
            Some(WholeUpload { file, bytes, sha256 }) => (SourceFetcher::of_upload(file, bytes, &url), Some(sha256)),
            None => (fetcher.open(&url).await?, None),
        };
        let total = source.total();

        let (send, pieces) = mpsc::channel(QUEUE);
        let hasher = SourceHasher::new(expected.as_ref().map(|e| e.algorithm));
        let inner = self.inner.clone();
        let work = tokio::task::spawn_blocking(move || {
            let reader = SourceReader { pieces, current: Bytes::new(), ended: false, hasher };
            let (upload, unpacking_failed) = (upload_bytes, Cell::new(false));
            ImportJob { inner, at, layout, total, expected, sent, upload, brake, parts, unpacking_failed }.run(reader)
        });
        let feed = async {
            let mut said = None::<Instant>;
            let report = |read, ended| progress(ImportProgress { read, total, ended });
            while let Some(piece) = source.next().await? {
                // The other side closes when it has failed; its reason is the one to tell.
                if send.send(SourcePiece::Data(piece)).await.is_err() {
                    return Ok(());
                }
                if said.is_none_or(|at| at.elapsed() >= PROGRESS_EVERY) {
                    report(source.read(), false);
                    said = Some(Instant::now());
                }
            }
            report(source.read(), true);
            let _ = send.send(SourcePiece::End).await;
            Ok(())
        };
        let fed: Result<(), ImportError> = feed.await;
        drop(send);
        let done = work.await.map_err(|e| ImportError::passing(format!("{}: {e}", source.shown())))?;
        fed.and(done)
    }
}

/// Reads and hashes the pieces.
struct SourceReader {
    pieces: mpsc::Receiver<SourcePiece>,
    current: Bytes,
    ended: bool,
    hasher: SourceHasher,
}

impl Read for SourceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() && !self.ended {
            match self.pieces.blocking_recv() {
                Some(SourcePiece::Data(piece)) => {
                    self.hasher.update(&piece);
                    self.current = piece;
                }
                Some(SourcePiece::End) => self.ended = true,
                None => return Err(io::Error::new(io::ErrorKind::BrokenPipe, "reading the source was given up")),
            }
        }
        let count = buffer.len().min(self.current.len());
        buffer[..count].copy_from_slice(&self.current.split_to(count));
        Ok(count)
    }
}

struct ImportJob {
    inner: Arc<Inner>,
    at: String,
    layout: Option<DiskLayout>,
    total: Option<u64>,
    expected: Option<Expected>,
    /// SHA-256 of what was sent to the appliance.
    sent: Option<String>,
    /// Bytes that were sent to it: they are in the library already.
    upload: u64,
    brake: Brake,
    /// Parts that it has in the library.
    parts: Arc<AtomicU64>,
    unpacking_failed: Cell<bool>,
}

impl ImportJob {
    fn run(self, mut reader: SourceReader) -> Result<(Imported, SourceRead), ImportError> {
        let mut head = vec![0; 16];
        let got = fill(&mut reader, &mut head).map_err(|e| self.damaged("", &e))?;
        head.truncate(got);
        if head.is_empty() {
            return Err(ImportError::lasting(format!("{}: the file is empty", self.at)));
        }
        let outer = Outer::of(&head);
        let unpacked = {
            let source = io::Cursor::new(head).chain(&mut reader);
            outer.decoder(source).map_err(|e| self.damaged(outer.name(), &e)).and_then(|mut source| {
                let mut head = vec![0; HEAD];
                let got = fill(&mut source, &mut head).map_err(|e| self.damaged(outer.name(), &e))?;
                head.truncate(got);
                let layout = DiskLayout::of(&head, self.layout)
                    .map_err(|e| ImportError::lasting(format!("{}: {e}", self.at)))?;
                self.room_for(layout, outer)?;
                let mut disk = io::Cursor::new(head).chain(source);
                let unpacked = match layout {
                    DiskLayout::Raw => self.raw(&mut disk, outer, false).map(UnpackedSource::Stored),
                    DiskLayout::Iso => self.raw(&mut disk, outer, true).map(UnpackedSource::Stored),
                    DiskLayout::Qcow2 => self.spool(&mut disk, outer).map(UnpackedSource::Spooled),
                    DiskLayout::Oci | DiskLayout::Packages => self
                        .files(&mut disk, outer)
                        .map(|(members, stored)| UnpackedSource::Files(layout, members, stored)),
                };
                unpacked.map(|unpacked| (unpacked, layout.name()))
            })
        };
        let (unpacked, format) = match unpacked {
            Ok(unpacked) => unpacked,
            // A file that is not what was published is the better explanation of one that does not unpack.
            Err(error) if self.unpacking_failed.get() && self.expected.is_some() => {
                return Err(self.verify(reader).err().unwrap_or(error));
            }
            Err(error) => return Err(error),
        };
        let sha256 = self.verify(reader)?;
        let kept = match unpacked {
            UnpackedSource::Stored(disk) => ImportedContent::from(disk),
            UnpackedSource::Spooled(file) => ImportedContent::from(self.qcow2(file)?),
            UnpackedSource::Files(layout, members, stored) => self.catalogued(layout, &members, stored)?,
        };
        let imported = self.inner.commit(&kept.manifest);
        let imported = imported.map_err(|e| ImportError::passing(format!("{}: not stored: {e}", self.at)))?;
        Ok((imported, SourceRead { sha256, format, contents: kept.contents }))
    }

    fn damaged(&self, outer: &str, error: &io::Error) -> ImportError {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return ImportError::passing(format!("{}: {error}", self.at));
        }
        self.unpacking_failed.set(true);
        if wants_memory(error) {
            return ImportError::lasting(format!(
                "{}: unpacking its {outer} data takes more memory than it may: publish it with xz -9, zstd -19 or less, \
                 and without --long",
                self.at
            ));
        }
        ImportError::lasting(format!("{}: the {outer} data is damaged or cut short: {error}", self.at))
    }

    /// Early and rough; the exact look is taken while writing.
    fn room_for(&self, layout: DiskLayout, outer: Outer) -> Result<(), ImportError> {
        let total = self.total.unwrap_or(0);
        if layout == DiskLayout::Iso && total > MAX_LIVE_ISO {
            return Err(self.too_large_for_iso());
        }
        check_room(
            &self.inner,
            match (layout, outer) {
                // Its files are packed already, and what is not may be small.
                (DiskLayout::Oci | DiskLayout::Packages, _) => 0,
                // Chunks take about as much as what is published; a qcow2 is spooled besides.
                (DiskLayout::Qcow2, _) => total.saturating_mul(2),
                (DiskLayout::Raw | DiskLayout::Iso, Outer::None) => 0,
                (DiskLayout::Raw | DiskLayout::Iso, _) => total,
            },
            self.upload,
        )
    }

    /// Reads what is left and compares the checksum; the SHA-256 of all.
    fn verify(&self, mut reader: SourceReader) -> Result<String, ImportError> {
        io::copy(&mut reader, &mut io::sink()).map_err(|e| self.damaged("", &e))?;
        let hashes = reader.hasher.finish();
        if let (Some(expected), Some(hash)) = (&self.expected, &hashes.wanted) {
            expected.check(&self.at, hash)?;
        }
        if self.sent.as_ref().is_some_and(|sent| *sent != hashes.sha256) {
            let message = "what came is not what was sent: the file changed while it was sent; send it again";
            return Err(ImportError::lasting(format!("{}: {message}", self.at)));
        }
        Ok(hashes.sha256)
    }

    fn raw(&self, disk: &mut impl Read, outer: Outer, iso: bool) -> Result<(u64, Stored), ImportError> {
        let mut size = 0;
        let most = self.inner.sources.max_unpacked;
        let stored = chunks::store(&self.inner, self.upload, &self.parts, |buffer| {
            self.brake.pass()?;
            let offset = size;
            let read = disk.by_ref().take(CHUNK_SIZE).read_to_end(buffer);
            read.map_err(|e| self.damaged(outer.name(), &e))?;
            size += buffer.len() as u64;
            if size > MAX_VIRTUAL_SIZE {
                return Err(self.too_large());
            }
            if iso && size > MAX_LIVE_ISO {
                return Err(self.too_large_for_iso());
            }
            if size > most && outer != Outer::None {
                return Err(self.over_limit(outer, most));
            }
            if iso && offset == 0 && !is_iso(buffer) {
                return Err(ImportError::lasting(format!(
                    "{}: a live-iso must be an ISO 9660 image, and this file has no CD001 at byte {}",
                    self.at, ISO_MAGIC.0
                )));
            }
            if buffer.is_empty() {
                return Ok(None);
            }
            buffer.resize(buffer.len().next_multiple_of(SECTOR as usize), 0);
            Ok(Some(offset))
        })?;
        Ok((size.next_multiple_of(SECTOR), stored))
    }

    fn over_limit(&self, outer: Outer, most: u64) -> ImportError {
        ImportError::lasting(format!(
            "{}: unpacked from {} it has more than the {} GiB of image.max_unpacked_gib: publish it with less, or raise the limit in slipway.toml",
            self.at,
            outer.name(),
            most >> 30
        ))
    }

    fn too_large(&self) -> ImportError {
        ImportError::lasting(format!("{}: the disk is larger than {} TiB", self.at, MAX_VIRTUAL_SIZE >> 40))
    }

    fn too_large_for_iso(&self) -> ImportError {
        ImportError::lasting(format!(
            "{}: a live-iso has at most {} GiB, and this file more",
            self.at,
            MAX_LIVE_ISO >> 30
        ))
    }

    fn spool(&self, source: &mut impl Read, outer: Outer) -> Result<File, ImportError> {
        let fail = |e: io::Error| ImportError::passing(format!("{}: spooling: {e}", self.inner.folder().display()));
        let path = self.inner.temporary_path();
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).map_err(fail)?;
        // Nameless from here on, so that it goes with the process whatever happens.
        fs::remove_file(&path).map_err(fail)?;
        let mut buffer = vec![0; CHUNK_SIZE as usize];
        let mut written = 0;
        loop {
            self.brake.pass()?;
            let count = fill(source, &mut buffer).map_err(|e| self.damaged(outer.name(), &e))?;
            if count == 0 {
                return Ok(file);
            }
            if outer != Outer::None && written > self.inner.sources.max_unpacked {
                return Err(self.over_limit(outer, self.inner.sources.max_unpacked));
            }
            if written % ROOM_EVERY == 0 {
                check_room(&self.inner, ROOM_EVERY, self.upload)?;
            }
            file.write_all(&buffer[..count]).map_err(fail)?;
            written += count as u64;
        }
    }

    fn qcow2(&self, file: File) -> Result<(u64, Stored), ImportError> {
        let fail = |e: super::qcow2::Qcow2Error| ImportError::lasting(format!("{}: {e}", self.at));
        let mut image = Qcow2::open(file).map_err(fail)?;
        let size = image.virtual_size();
        let mut at = 0;
        let stored = chunks::store(&self.inner, self.upload, &self.parts, |buffer| {
            loop {
                self.brake.pass()?;
                let data = image.next_data(at).map_err(fail)?;
                if data >= size {
                    return Ok(None);
                }
                let offset = data / CHUNK_SIZE * CHUNK_SIZE;
                at = offset + CHUNK_SIZE;
                buffer.resize((size - offset).min(CHUNK_SIZE) as usize, 0);
                if image.read_at(offset, buffer).map_err(fail)? {
                    buffer.resize(buffer.len().next_multiple_of(SECTOR as usize), 0);
                    return Ok(Some(offset));
                }
                buffer.clear();
            }
        })?;
        Ok((size.next_multiple_of(SECTOR), stored))
    }
}

enum UnpackedSource {
    Stored((u64, Stored)),
    Spooled(File),
    Files(DiskLayout, ArchiveMembers, Stored),
}

/// What becomes an image.
struct ImportedContent {
    manifest: ImageManifest,
    contents: Option<(Vec<ImageContent>, i64)>,
    /// Keeps the chunks until the manifest does.
    _stored: Vec<Stored>,
}

impl From<(u64, Stored)> for ImportedContent {
    fn from((virtual_size, stored): (u64, Stored)) -> Self {
        let manifest = ImageManifest { virtual_size, chunks: stored.chunks.clone(), catalog: None };
        Self { manifest, contents: None, _stored: vec![stored] }
    }
}

mod files;
