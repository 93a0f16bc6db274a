//! What is kept, unpacked: single chunks, and parts of an image. Blocks on the disk.

use std::fs;
use std::io;
use std::ops::Range;

use super::{Inner, Library, at, damaged};
use crate::image::unhex;
use crate::protocol::{CHUNK_SIZE, Chunk};

impl Library {
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

impl Inner {
    /// The bytes of a chunk, which the caller knows to be there.
    pub(in crate::image) fn unpacked(&self, chunk: &Chunk) -> io::Result<Vec<u8>> {
        let name = unhex(&chunk.sha256).ok_or_else(|| io::Error::other("a chunk has no name"))?;
        let path = self.chunk_path(&name);
        let length = usize::try_from(chunk.length.min(CHUNK_SIZE as u32)).map_err(io::Error::other)?;
        let stored = fs::read(&path).map_err(|error| at(&path, error))?;
        let plain = zstd::bulk::decompress(&stored, length).map_err(|error| at(&path, error))?;
        if plain.len() as u64 != u64::from(chunk.length) {
            return Err(damaged(&path, &format!("it has {} bytes", plain.len())));
        }
        Ok(plain)
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
