//! Disks of the node: choosing, writing, partitioning and erasing them, and making firmware boot them.
//!
//! | file | idea |
//! |---|---|
//! | [`hints`] | which disk is the root disk: a pure function |
//! | [`device`] | one block device (or file, in tests): reads, writes, zeros, discards |
//! | [`write`] | an image from its chunks, verified, with bounded memory |
//! | [`gpt`] | GUID partition table: read, fitted to the disk, written twice |
//! | [`mbr`] | DOS partition table |
//! | [`config`] | the partition with the config drive |
//! | [`erase`] | metadata erase |
//! | [`bootentry`] | UEFI boot entries through efivarfs |

pub mod bootentry;
pub mod config;
pub mod device;
pub mod erase;
pub mod gpt;
pub mod hints;
pub mod mbr;
pub mod write;

use std::io;
use std::path::{Path, PathBuf};

use crate::api::metal3::Storage;

/// Why something was not done to a disk. Each message names the disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The device, or a file of the firmware, answered with an error.
    #[error("{}: {what}: {source}", .path.display())]
    Io {
        /// The device or file.
        path: PathBuf,
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The image does not fit. Nothing was written.
    #[error("{}: the image needs {needed} bytes, the disk has {have}: use a smaller image or another disk", .path.display())]
    TooSmall {
        /// The disk.
        path: PathBuf,
        /// Bytes of the image.
        needed: u64,
        /// Bytes of the disk.
        have: u64,
    },
    /// The image's description makes no sense. Nothing was written.
    #[error("the image's manifest is damaged: {0}")]
    Manifest(String),
    /// The appliance did not give a chunk.
    #[error("{}: writing the image stopped: {reason}", .path.display())]
    Source {
        /// The disk.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The partition table cannot be used.
    #[error("{}: {reason}", .path.display())]
    Table {
        /// The disk.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// Some disks were not erased; one reason each.
    #[error("not erased: {}", .0.join("; "))]
    Erase(Vec<String>),
    /// A task of this program ended without an answer.
    #[error("{0}")]
    Task(String),
}

impl DiskError {
    fn io(path: &Path, what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { path: path.into(), what: what.into(), source: source.into() }
    }

    fn table(path: &Path, reason: impl Into<String>) -> Self {
        Self::Table { path: path.into(), reason: reason.into() }
    }
}

/// The kernel's device of a disk: `/dev/sda`, not a link below `/dev/disk`, which needs udev.
pub fn device_path(disk: &Storage) -> PathBuf {
    let mut names = disk.alternate_names.iter().chain([&disk.name]);
    names.find(|name| !name.starts_with("/dev/disk/")).unwrap_or(&disk.name).into()
}

#[cfg(test)]
mod tests;
