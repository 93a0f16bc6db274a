//! Atomic files: each appears whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::build::{RamdiskError, SummaryFile};
use crate::hex::hex;

/// Where the files go.
pub struct OutputFolder<'a>(pub &'a Path);

/// A file that is whole on disk under another name.
pub struct PreparedFile {
    name: &'static str,
    unfinished: UnfinishedFile,
    facts: SummaryFile,
}

/// Removes a file unless it got its name.
struct UnfinishedFile(Option<PathBuf>);

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // What cannot be removed is overwritten by the next build.
            let _removed = fs::remove_file(path);
        }
    }
}

impl OutputFolder<'_> {
    /// Writes a file under another name, whole and on disk.
    pub fn prepare(
        &self,
        name: &'static str,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<PreparedFile, RamdiskError> {
        let path = self.0.join(format!(".{name}.new"));
        let unfinished = UnfinishedFile(Some(path.clone()));
        let made = (|| {
            let mut hashing = Hashing { out: BufWriter::new(File::create(&path)?), hash: Sha256::new(), size: 0 };
            write(&mut hashing)?;
            let file = hashing.out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            let sha256 = hex(&hashing.hash.finalize());
            Ok(SummaryFile { size: hashing.size, sha256 })
        })();
        match made {
            Ok(facts) => Ok(PreparedFile { name, unfinished, facts }),
            Err(source) => Err(RamdiskError::Io { path, source }),
        }
    }

    /// Gives a file its name, in the place of a former one. Returns the name.
    pub fn commit(&self, mut file: PreparedFile) -> Result<(&'static str, SummaryFile), RamdiskError> {
        let path = self.0.join(file.name);
        if let Some(unfinished) = &file.unfinished.0 {
            fs::rename(unfinished, &path).map_err(|source| RamdiskError::Io { path, source })?;
            file.unfinished.0 = None;
        }
        self.sync()?;
        Ok((file.name, file.facts))
    }

    /// Removes a file, if it is there.
    pub fn remove(&self, name: &str) -> Result<(), RamdiskError> {
        let path = self.0.join(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(RamdiskError::Io { path, source }),
            _ => self.sync(),
        }
    }

    fn sync(&self) -> Result<(), RamdiskError> {
        File::open(self.0)
            .and_then(|folder| folder.sync_all())
            .map_err(|source| RamdiskError::Io { path: self.0.into(), source })
    }
}

struct Hashing {
    out: BufWriter<File>,
    hash: Sha256,
    size: u64,
}

impl Write for Hashing {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.out.write_all(data)?;
        self.hash.update(data);
        self.size += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
