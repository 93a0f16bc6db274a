//! `[image]`.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::{IMPORTS_MAX, MAX_LIBRARY_GIB, MAX_UNPACKED_GIB};
use crate::outbound::Allowed;

/// `[image]`
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct ImageConfig {
    /// Imports at once.
    pub imports: usize,
    /// PEM file of further CAs for https sources, beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Addresses that are special to this box, from which images may be fetched all the same.
    pub allow: Vec<Allowed>,
    /// The folder that `file://` URLs of Images lead to; unset: no file is read.
    pub file_folder: Option<PathBuf>,
    /// Most that a compressed image has once it is unpacked, in GiB.
    pub max_unpacked_gib: u64,
    /// Most that the library takes, in GiB; unset: all that the file system has but 128 MiB.
    pub max_library_gib: Option<u64>,
}

impl Default for ImageConfig {
    fn default() -> Self {
        Self {
            imports: 2,
            ca_file: None,
            allow: Vec::new(),
            file_folder: None,
            max_unpacked_gib: 256,
            max_library_gib: None,
        }
    }
}

impl ImageConfig {
    pub(super) fn faults(&self, data_dir: &Path) -> Vec<String> {
        let mut faults = Vec::new();
        if !(1..=IMPORTS_MAX).contains(&self.imports) {
            faults.push(format!("image.imports must be 1 to {IMPORTS_MAX}"));
        }
        if !(1..=MAX_UNPACKED_GIB).contains(&self.max_unpacked_gib) {
            faults.push(format!("image.max_unpacked_gib must be 1 to {MAX_UNPACKED_GIB}"));
        }
        if self.max_library_gib.is_some_and(|most| !(1..=MAX_LIBRARY_GIB).contains(&most)) {
            faults.push(format!("image.max_library_gib must be 1 to {MAX_LIBRARY_GIB}"));
        }
        if let Some(folder) = &self.file_folder {
            let plain = folder.components().all(|part| !matches!(part, Component::ParentDir));
            if !folder.is_absolute() || !plain {
                faults.push(format!("image.file_folder {folder:?} must be an absolute path without .."));
            } else if folder.parent().is_none() {
                faults.push("image.file_folder must not be /: name a folder that holds images only".into());
            } else if folder.starts_with(data_dir) {
                faults.push(format!("image.file_folder {folder:?} must not be in data_dir, which holds the keys"));
            }
        }
        faults
    }
}
