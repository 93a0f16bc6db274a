//! Real partition tables on files, and on loop devices where the test runs as root.

mod boot;
mod erase;
mod tables;
mod write;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::write::{ChunkSource, SourceError};
use crate::protocol::{Chunk, ImageManifest};

const MIB: usize = 1 << 20;

/// A disk to test on: a file, or a loop device over it that goes when this does.
struct TestDisk {
    path: PathBuf,
    file: PathBuf,
    looped: bool,
    _folder: tempfile::TempDir,
}

impl Drop for TestDisk {
    fn drop(&mut self) {
        if self.looped {
            // Nothing more can be done when it fails while a test is ending.
            let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
        }
    }
}

impl TestDisk {
    /// A plain file full of junk.
    fn file(mib: usize) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("disk");
        fs::write(&file, junk(mib * MIB, 99)).expect("written");
        Self { path: file.clone(), file, looped: false, _folder: folder }
    }

    /// A loop device; `None` where there can be none, which is said.
    fn looped(mib: usize, sector: u32) -> Option<Self> {
        if !crate::needs::root() || !crate::needs::program("losetup") {
            return None;
        }
        let mut disk = Self::file(mib);
        let sector = sector.to_string();
        let out = Command::new("losetup")
            .args(["--show", "-f", "-P", "-b", &sector])
            .arg(&disk.file)
            .output()
            .expect("losetup");
        if !out.status.success() {
            crate::needs::lacks(&format!("no loop device: {}", String::from_utf8_lossy(&out.stderr)));
            return None;
        }
        disk.path = String::from_utf8_lossy(&out.stdout).trim().into();
        disk.looped = true;
        Some(disk)
    }

    /// A file, and a loop device where that is possible.
    fn both(mib: usize) -> Vec<Self> {
        [Some(Self::file(mib)), Self::looped(mib, 512)].into_iter().flatten().collect()
    }

    /// What the disk holds.
    fn content(&self) -> Vec<u8> {
        fs::read(&self.path).expect("disk")
    }
}

/// Bytes that do not compress and do not repeat.
fn junk(length: usize, seed: u8) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(seed) << 32;
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(length);
    out
}

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {text}");
    text
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Chunks in memory, which can come damaged or not at all.
#[derive(Default)]
struct Memory {
    chunks: HashMap<String, Bytes>,
    asked: AtomicUsize,
    /// What the nth question is answered with instead.
    faults: HashMap<usize, Fault>,
}

#[derive(Clone)]
enum Fault {
    Damaged,
    Short,
    Gone,
    Fatal,
}

#[async_trait]
impl ChunkSource for Memory {
    async fn chunk(&self, sha256: &str) -> Result<Bytes, SourceError> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let data = self.chunks[sha256].clone();
        let error = |message: &str, fatal| Err(SourceError { message: message.into(), fatal });
        match self.faults.get(&number) {
            None => Ok(data),
            Some(Fault::Damaged) => {
                let mut bad = data.to_vec();
                bad[data.len() / 2] ^= 1;
                Ok(bad.into())
            }
            Some(Fault::Short) => Ok(data.slice(1..)),
            Some(Fault::Gone) => error("connection reset", false),
            Some(Fault::Fatal) => error("the session has ended", true),
        }
    }
}

/// Cuts an image as the library does.
fn image(content: &[u8]) -> (Memory, ImageManifest) {
    let mut source = Memory::default();
    let mut chunks = Vec::new();
    for (number, data) in content.chunks(MIB).enumerate() {
        if data.iter().any(|b| *b != 0) {
            let stored = zstd::bulk::compress(data, 1).expect("zstd");
            let sha256 = hex(&Sha256::digest(&stored));
            chunks.push(Chunk {
                offset: (number * MIB) as u64,
                length: data.len() as u32,
                sha256: sha256.clone(),
                stored: stored.len() as u32,
            });
            source.chunks.insert(sha256, stored.into());
        }
    }
    (source, ImageManifest { virtual_size: content.len() as u64, chunks, catalog: None })
}

fn shared(source: Memory) -> (Arc<Memory>, Arc<dyn ChunkSource>) {
    let source = Arc::new(source);
    (source.clone(), source)
}
