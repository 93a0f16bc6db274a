//! The image library: import once, check, keep as content-addressed chunks, serve.
//!
//! | file | idea |
//! |---|---|
//! | [`Importing`] | what it brings into the house: its kind and its controller |
//! | `admission` | what an Image must be before it is stored |
//! | `library` | what is on disk, and when it counts as there |
//! | [`identity`] | by what a host's image is found in the library |
//! | [`scheme`] | `slipway://NAME` and `upload:FILE` |
//! | `source` | where images may come from |
//! | [`upload`] | images that are sent to the appliance in pieces |
//! | `fetch` | bytes of a source, resumed when a connection drops |
//! | `checksum` | published checksums: bare hashes and files of sums |
//! | `formats` | what a file is by its first bytes; outer compression |
//! | `qcow2` | reader of QEMU's image format |
//! | `chunks` | cuts, compresses and stores, with bounded memory |
//! | `import` | the whole way from a URL to a manifest |
//! | [`archive`] | archives of container images and packages: what is in them |
//! | [`publish`] | which archives are served without a login, and under which names |
//! | [`serve`] | chunks and manifests over HTTP |
//! | `turns` | whose import runs next |
//! | [`demand`] | who wants an image |
//! | `room` | which images give way when there is no room |
//! | `brake` | holds an import up, or ends it, while it unpacks |
//! | [`controller`] | keeps the library as the Image objects want it |
//! | [`configdrive`] | ISO 9660 file systems labelled `config-2` |

use std::fmt;

use crate::api::slipway::ImageContent;
use crate::hex::hex;
use crate::log::clean;

mod admission;
pub mod archive;
mod bpa;
pub mod configdrive;
pub mod controller;
pub mod demand;
pub mod identity;
mod life;
pub mod publish;
pub mod scheme;
pub mod serve;
pub mod upload;

mod brake;
pub mod checksum;
mod chunks;
mod fetch;
mod formats;
mod import;
pub(crate) mod iso9660;
mod library;
mod qcow2;
mod room;
mod source;
mod turns;

pub use fetch::{USER_AGENT_NAME, check_ca_file};
pub use formats::is_archive;
pub(crate) use iso9660::is_iso;
pub use library::{GarbageCollected, Library};
pub use life::{Importing, module};
pub use source::{SourceFault, Sources, URL_MAX, check_host_source, web_url};

/// Largest virtual size of an image, in bytes (16 TiB).
pub const MAX_VIRTUAL_SIZE: u64 = 16 << 40;
/// Most chunks that hold data: 256 GiB of it. Bounds the manifest that a node must hold in memory.
pub const MAX_CHUNKS: usize = 1 << 18;

/// Most chunks of all images together: 4 TiB of data, each part of it counted once. About 100 bytes of memory for each.
pub const MAX_LIBRARY_CHUNKS: usize = 1 << 22;
/// Largest live ISO, in bytes (16 GiB). Everybody on the network may ask for one that a host boots, so its manifest is in
/// memory for whoever does.
pub const MAX_LIVE_ISO: u64 = 16 << 30;

/// How far an import is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportProgress {
    /// Bytes of the source read.
    pub read: u64,
    /// Bytes of the source, when it says so.
    pub total: Option<u64>,
    /// Whether the source was read to its end.
    pub ended: bool,
}

/// An image in the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// SHA-256 of the manifest's JSON, hex.
    pub digest: String,
    /// Bytes on a disk, a multiple of 512; of an archive those of its content.
    pub virtual_size: u64,
    /// Bytes of its chunks, each counted once.
    pub stored_size: u64,
    /// Its chunks, each counted once.
    pub parts: u64,
}

/// What the source of an image was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRead {
    /// SHA-256 of the file as it was read, before anything was unpacked: lower-case hex.
    pub sha256: String,
    /// What its content was taken for: `raw`, `qcow2`, `live-iso`, `oci` or `packages`.
    pub format: &'static str,
    /// Of an archive: what is in it, a part of it where it is much, and how much it is.
    pub contents: Option<(Vec<ImageContent>, i64)>,
}

/// Why an image was not imported.
///
/// `retry` is set where the cause can go away by itself or by a repair elsewhere: no connection, a time-out,
/// status 5xx, 401, 403, 404, 408 and 429 (the file may be published later), a file that changed while it was
/// read, no room in the library, a mismatch against a published file of sums. It is not set where only a new
/// spec can help: a wrong scheme or URL, a format that is not read, a damaged image, a mismatch against a
/// checksum in the spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ImportError {
    /// For the operator: what is wrong with which URL, and what to do.
    pub message: String,
    /// Whether trying again can help without a change of the spec.
    pub retry: bool,
    /// Set when the library had too little room, and nothing else was wrong.
    pub lack: Option<SpaceLack>,
}

/// How much room there was, and was needed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceLack {
    /// What there was too little of.
    pub of: Scarce,
    /// How much could be written.
    pub room: u64,
    /// How much was to be written; more.
    pub needed: u64,
}

/// What a library runs out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scarce {
    /// Bytes.
    Bytes,
    /// Parts of a MiB, each of which is a file, however little is in it.
    Parts,
}

impl ImportError {
    fn lasting(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), retry: false, lack: None }
    }

    fn passing(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), retry: true, lack: None }
    }
}

/// The 32 bytes of 64 lower-case hex digits.
fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(out)
}

#[cfg(test)]
mod tests;
