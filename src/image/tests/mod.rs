//! Imports of real files through real sockets.

mod archives;
mod faults;
mod formats;
mod guard;
mod library;
mod server;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::fetch::{SourceFetcher, Timing};
use super::{ImportError, Imported, Library, Sources, hex};
use crate::api::slipway::ImageSpec;

const MIB: usize = 1 << 20;

/// A library in a new folder, with short waits.
fn library() -> (tempfile::TempDir, Library) {
    library_of(Sources::of_tests())
}

fn library_of(sources: Sources) -> (tempfile::TempDir, Library) {
    let folder = tempfile::tempdir().expect("folder");
    let timing = Timing {
        connect: Duration::from_secs(5),
        stall: Duration::from_millis(400),
        pause: Duration::from_millis(1),
        attempts: 3,
    };
    let fetcher = SourceFetcher::with_timing(sources, timing).expect("client");
    let library = Library::with_fetcher(folder.path().join("images"), fetcher).expect("library");
    (folder, library)
}

fn spec(url: impl Into<String>) -> ImageSpec {
    ImageSpec { url: url.into(), ..ImageSpec::default() }
}

async fn import(library: &Library, spec: &ImageSpec) -> Result<Imported, ImportError> {
    tokio::time::timeout(Duration::from_secs(60), library.import(spec, |_| {})).await.expect("in time")
}

/// A disk with data, repeats, holes and an odd end.
fn disk(mib: usize, seed: u8) -> Vec<u8> {
    let mut disk = vec![0; mib * MIB + 3 * 512];
    for (number, block) in disk.chunks_mut(64 << 10).enumerate() {
        match number % 40 {
            // Half of every second chunk is incompressible, some repeats, the rest is empty.
            0..4 => {
                let mut hash = Sha256::digest([seed, number as u8, (number >> 8) as u8]);
                for part in block.chunks_mut(32) {
                    part.copy_from_slice(&hash[..part.len()]);
                    hash = Sha256::digest(hash);
                }
            }
            16 => block.fill(seed),
            20 => block[1000..2000].fill(9),
            _ => {}
        }
    }
    let end = disk.len();
    disk[end - 7..].fill(3);
    disk
}

/// Puts a disk together again as a node does.
fn assemble(library: &Library, digest: &str) -> Vec<u8> {
    let manifest = library.manifest(digest).expect("manifest");
    let mut disk = vec![0; manifest.virtual_size as usize];
    let mut end = 0;
    for chunk in &manifest.chunks {
        assert!(chunk.offset >= end && chunk.offset.is_multiple_of(MIB as u64), "{chunk:?}");
        end = chunk.offset + u64::from(chunk.length);
        let stored = std::fs::read(library.chunk_file(&chunk.sha256).expect("chunk")).expect("chunk");
        assert_eq!(stored.len(), chunk.stored as usize);
        assert_eq!(hex(&Sha256::digest(&stored)), chunk.sha256);
        let data = zstd::bulk::decompress(&stored, chunk.length as usize).expect("zstd");
        assert!(data.iter().any(|b| *b != 0), "a chunk of zeros is stored");
        disk[chunk.offset as usize..end as usize].copy_from_slice(&data);
    }
    disk
}

fn run(program: &str, args: &[&str]) {
    let out = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn file_url(path: &Path) -> String {
    format!("file://{}", path.display())
}

fn sha256(data: &[u8]) -> String {
    hex(&Sha256::digest(data))
}

/// Files below a folder.
fn files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).expect("folder").map(|e| e.expect("entry").path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}
