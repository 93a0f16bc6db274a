//! Revocation of client certificates: the series that are still good.
//!
//! Every client certificate names its series in its subject (`OU`), and the file `client-series` has the one that counts.
//! A new series ends every certificate of the one before, whoever has it. Nothing is compared with a clock, so this works
//! on a box whose clock is wrong, and there is no list that grows. The server reads the file again every second.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use super::PkiError;
use super::files::{FILE_MAX, KeyFolder};
use crate::files;

/// Name of the file.
pub(super) const FILE: &str = "client-series";
/// What stands before the id in a certificate.
const PREFIX: &str = "slipway:";

/// The series that counts now. Cheap to clone; all clones agree.
#[derive(Clone, Debug)]
pub struct Series {
    path: PathBuf,
    // std's lock: held for a look-up only.
    current: Arc<RwLock<Option<String>>>,
}

impl Series {
    /// Whether a certificate with this organizational unit is of it. One of another series may be of a new one, which nobody
    /// has read yet: the file is read again for it, a few dozen bytes.
    pub fn accepts(&self, unit: Option<&str>) -> bool {
        let Some(unit) = unit.filter(|unit| unit.starts_with(PREFIX)) else { return false };
        let is_current = || self.current.read().unwrap_or_else(PoisonError::into_inner).as_deref() == Some(unit);
        if is_current() {
            return true;
        }
        // What cannot be read is told by `follow`.
        next(files::read_text(&self.path, FILE_MAX)).is_ok_and(|next| {
            self.take(next);
            is_current()
        })
    }

    fn take(&self, next: Option<String>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if *current != next {
            let file = self.path.display();
            tracing::warn!(%file, "all client certificates made so far were revoked");
            *current = next;
        }
    }

    /// The organizational unit of its certificates.
    pub(super) fn unit(&self) -> String {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    /// Reads the file again. To be called every second, so that another series counts soon.
    ///
    /// # Errors
    ///
    /// When it cannot be read: out of file descriptors, say. Nobody is locked out for that.
    pub async fn look(&self) -> io::Result<()> {
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || files::read_text(&path, FILE_MAX)).await;
        match next(read.unwrap_or_else(|error| Err(io::Error::other(error)))) {
            Ok(next) => {
                self.take(next);
                Ok(())
            }
            Err(error) => {
                let file = self.path.display();
                tracing::warn!(%file, %error, "cannot read the series of client certificates");
                Err(error)
            }
        }
    }

    /// That of a folder; `None` when it has none yet.
    pub(super) fn read(folder: &KeyFolder) -> Result<Option<Self>, PkiError> {
        let read = folder.read_replaceable(FILE)?.and_then(|text| unit(&text));
        Ok(read.map(|unit| Self::new(&folder.file(FILE), unit)))
    }

    /// A new one, in the place of the one before. The folder is locked.
    pub(super) fn begin(folder: &KeyFolder) -> Result<Self, PkiError> {
        let id = uuid::Uuid::new_v4().to_string();
        folder.write(FILE, &format!("{id}\n"), 0o600)?;
        Ok(Self::new(&folder.file(FILE), format!("{PREFIX}{id}")))
    }

    fn new(path: &Path, unit: String) -> Self {
        Self { path: path.to_owned(), current: Arc::new(RwLock::new(Some(unit))) }
    }
}

/// The organizational unit that a file's text stands for.
pub(super) fn unit(text: &str) -> Option<String> {
    text.trim().parse::<uuid::Uuid>().ok().map(|id| format!("{PREFIX}{id}"))
}

/// What counts after the file was read. Without a file, or with one that says nothing, no certificate does.
fn next(read: io::Result<String>) -> io::Result<Option<String>> {
    match read {
        Ok(text) => Ok(unit(&text)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_file_says_counts() {
        let id = "6a2f41a3-c54c-4ea8-8e0c-1f0a5b6d7e8f";
        let failed = |kind| Err(io::Error::from(kind));
        for (read, wanted) in [
            (Ok(format!("{id}\n")), Some(Some(format!("slipway:{id}")))),
            (Ok(String::new()), Some(None)),
            (Ok("junk".to_owned()), Some(None)),
            (failed(io::ErrorKind::NotFound), Some(None)),
            // What is known stays when it cannot be read.
            (failed(io::ErrorKind::PermissionDenied), None),
            (failed(io::ErrorKind::Other), None),
        ] {
            let about = format!("{read:?}");
            assert_eq!(next(read).ok(), wanted, "{about}");
        }
    }

    #[test]
    fn one_series_counts_and_no_certificate_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::at(folder.path());
        assert!(Series::read(&keys).unwrap().is_none());
        let first = Series::begin(&keys).unwrap();
        let again = Series::read(&keys).unwrap().unwrap();
        assert!(again.accepts(Some(&first.unit())) && !again.accepts(None) && !again.accepts(Some("")));
        let second = Series::begin(&keys).unwrap();
        // Who has not read of it yet does so when its first certificate comes, and not for one of the series before.
        assert!(again.accepts(Some(&second.unit())) && !again.accepts(Some(&first.unit())));
        assert!(!second.accepts(Some(&first.unit())) && second.accepts(Some(&second.unit())));
        std::fs::remove_file(folder.path().join(FILE)).unwrap();
        *second.current.write().unwrap() = None;
        assert!(!second.accepts(None) && !second.accepts(Some("")) && !second.accepts(Some(&first.unit())));
    }
}
