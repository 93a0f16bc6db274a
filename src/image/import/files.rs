//! The import of an archive: its files into chunks, and the catalog behind them.

use std::cell::RefCell;
use std::io::{self, Read};

use super::{ImportJob, ImportedContent};
use crate::image::archive::{
    ArchiveError, ArchiveFault, ArchiveMember, ArchiveMembers, ArchiveReader, Catalog, Unkept, images, packages,
};
use crate::image::chunks::{self, Stored};
use crate::image::formats::{DiskLayout, Outer};
use crate::image::{ImportError, MAX_VIRTUAL_SIZE};
use crate::protocol::{CHUNK_SIZE, Chunk, ImageManifest};

/// Bytes read between two looks at the brake.
const BRAKE_EVERY: u64 = 1 << 20;

/// Counts what is unpacked, also what nothing is kept of.
struct UnpackMeter<'a, R> {
    job: &'a ImportJob,
    source: R,
    outer: Outer,
    read: u64,
    /// Why it gave up.
    refused: &'a RefCell<Option<ImportError>>,
}

impl<R> UnpackMeter<'_, R> {
    fn judge(&self, before: u64) -> Result<(), ImportError> {
        if before / BRAKE_EVERY != self.read / BRAKE_EVERY {
            self.job.brake.pass()?;
        }
        let most = self.job.inner.sources.max_unpacked;
        if self.read > most && self.outer != Outer::None {
            return Err(self.job.over_limit(self.outer, most));
        }
        if self.read > MAX_VIRTUAL_SIZE { Err(self.job.too_large()) } else { Ok(()) }
    }
}

impl<R: Read> Read for UnpackMeter<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        let before = self.read;
        self.read += count as u64;
        match self.judge(before) {
            Ok(()) => Ok(count),
            Err(error) => {
                *self.refused.borrow_mut() = Some(error);
                Err(io::Error::other("given up"))
            }
        }
    }
}

impl ImportJob {
    /// Stores the files of an archive.
    pub(super) fn files(&self, source: &mut impl Read, outer: Outer) -> Result<(ArchiveMembers, Stored), ImportError> {
        let refused = RefCell::default();
        let told = |broken| match (broken, refused.take()) {
            (_, Some(error)) => error,
            (ArchiveError::Fault(fault), None) => self.fault(&fault),
            (ArchiveError::Read(error), None) => match outer {
                Outer::None => self.damaged("tar", &error),
                outer => self.damaged(outer.name(), &error),
            },
        };
        let mut archive = tar::Archive::new(UnpackMeter { job: self, source, outer, read: 0, refused: &refused });
        let mut entries = ArchiveReader::new(&mut archive).map_err(|error| told(error.into()))?;
        let stored =
            chunks::store(&self.inner, self.upload, &self.parts, |buffer| entries.next(buffer).map_err(&told))?;
        let members = entries.finish().map_err(told)?;
        Ok((members, stored))
    }

    fn fault(&self, fault: &ArchiveFault) -> ImportError {
        ImportError::lasting(format!("{}: {fault}", self.at))
    }

    /// Finds out what is in an archive whose files are stored, and stores that behind them. What is of no use goes.
    pub(super) fn catalogued(
        &self,
        layout: DiskLayout,
        members: &ArchiveMembers,
        stored: Stored,
    ) -> Result<ImportedContent, ImportError> {
        let read = |member: &ArchiveMember| {
            let part = member.offset..member.offset.saturating_add(member.size);
            let read = self.inner.part(&stored.chunks, &part);
            read.map_err(|error| ImportError::passing(format!("{}: what was stored cannot be read: {error}", self.at)))
        };
        let catalogued = match layout {
            DiskLayout::Oci => images(members, &read),
            _ => packages(members).map_err(Unkept::from),
        };
        let catalogued = catalogued.map_err(|unkept| match unkept {
            Unkept::Fault(fault) => self.fault(&fault),
            Unkept::Unread(error) => error,
        })?;
        let bytes = catalogued.catalog.to_bytes().map_err(|fault| self.fault(&fault))?;
        let start = catalogued.made.iter().map(|made| made.len() as u64).fold(members.end, u64::saturating_add);
        let virtual_size = start.saturating_add(bytes.len() as u64);
        let behind = self.behind(members.end, catalogued.made.into_iter().chain([bytes]))?;
        let mut chunks = kept(&stored.chunks, &catalogued.catalog);
        chunks.extend_from_slice(&behind.chunks);
        let manifest = ImageManifest { virtual_size, chunks, catalog: Some(start) };
        Ok(ImportedContent { manifest, contents: Some(catalogued.catalog.shown()), _stored: vec![stored, behind] })
    }

    /// Stores what was made here, from an offset on.
    fn behind(&self, mut end: u64, all: impl Iterator<Item = Vec<u8>>) -> Result<Stored, ImportError> {
        let pieces: Vec<Vec<u8>> =
            all.flat_map(|bytes| bytes.chunks(CHUNK_SIZE as usize).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect();
        let mut pieces = pieces.into_iter();
        chunks::store(&self.inner, self.upload, &self.parts, |buffer| {
            let Some(piece) = pieces.next() else { return Ok(None) };
            let offset = end;
            end += piece.len() as u64;
            buffer.extend_from_slice(&piece);
            Ok(Some(offset))
        })
    }
}

/// The chunks of what a catalog names. Each is of one file.
fn kept(chunks: &[Chunk], catalog: &Catalog) -> Vec<Chunk> {
    let mut parts: Vec<(u64, u64)> = match catalog {
        Catalog::Oci { blobs, .. } => blobs.values().map(|blob| (blob.offset, blob.size)).collect(),
        Catalog::Packages { files } => files.values().map(|file| (file.offset, file.size)).collect(),
    };
    parts.sort_unstable();
    let is_kept = |chunk: &&Chunk| {
        let after = parts.partition_point(|(offset, _)| *offset <= chunk.offset);
        // Files without content share their offset with the next one.
        after.checked_sub(1).and_then(|at| parts.get(at)).is_some_and(|(offset, size)| chunk.offset - offset < *size)
    };
    chunks.iter().filter(is_kept).cloned().collect()
}
