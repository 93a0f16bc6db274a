//! The files of a generation: its base and its journal, being made, whole, and removed.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use super::base::{self, Base, BaseWriter};
use super::content::StoreContent;
use super::files::{OpenRefusal, sync_folders};
use super::frames;
use super::generation::BASE;
use super::group::WriteGroup;
use super::journal::StoreJournal;
use super::witness::Statement;

const UNFINISHED: &str = "base.new";
const JOURNAL: &str = "journal";

/// The files of a generation that is being made.
pub(super) struct NewFiles {
    folder: PathBuf,
    /// What is to be in it.
    pub base: BaseWriter,
}

impl NewFiles {
    /// Begins a generation in that folder; what was there is no more.
    pub fn begin(folder: PathBuf) -> io::Result<Self> {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        DirBuilder::new().mode(0o700).create(&folder)?;
        let base = BaseWriter::create(&folder.join(UNFINISHED))?;
        Ok(Self { folder, base })
    }

    /// Ends the base; what is in it is on disk when this returns.
    pub fn end(self) -> Result<NewBase, OpenRefusal> {
        let Self { folder, base } = self;
        let base = base.finish().map_err(|error| OpenRefusal::io("write the base", &error))?;
        Ok(NewBase { folder, base })
    }
}

/// The base of a generation that is being made. It has no name yet.
pub(super) struct NewBase {
    folder: PathBuf,
    base: Base,
}

impl NewBase {
    /// Begins its journal with what was changed since. All of it is on disk when this returns. The base gets its name last:
    /// without one, it was not finished.
    pub fn finish(self, since: &WriteGroup) -> Result<GenerationFiles, OpenRefusal> {
        let Self { folder, base } = self;
        let mut journal = StoreJournal::create(&folder.join(JOURNAL), base.digest)?;
        if !since.is_empty() {
            let since = since.encode().map_err(|error| OpenRefusal::io("encode the changes since", &error))?;
            journal.append(&since).map_err(|error| OpenRefusal::Other(format!("cannot write its journal: {error}")))?;
        }
        fs::rename(folder.join(UNFINISHED), folder.join(BASE))
            .and_then(|()| sync_folders(&folder))
            .map_err(|error| OpenRefusal::io("name the base", &error))?;
        Ok(GenerationFiles { folder, base, journal })
    }
}

/// The files of a generation.
pub(super) struct GenerationFiles {
    folder: PathBuf,
    base: Base,
    /// What was changed since the base was written.
    pub journal: StoreJournal,
}

impl GenerationFiles {
    /// Opens them and reads all of it. `seen` is where the journal was at least.
    pub fn open(folder: PathBuf, seen: Option<Statement>) -> Result<(Self, StoreContent), OpenRefusal> {
        // sled asserts what it believes of its files, so damage can also be a panic.
        catch_unwind(AssertUnwindSafe(|| {
            let mut content = StoreContent::default();
            let base = base::read(&folder.join(BASE), |tree, key, value| content.put(tree, key, Some(value)))?;
            let journal = StoreJournal::open(&folder.join(JOURNAL), base.digest, |mark, mut group| {
                if seen.is_some_and(|seen| seen.mark.sequence == mark.sequence && seen.mark != mark) {
                    return Err("it is not the one that its witness saw".to_owned());
                }
                if group.is_empty() {
                    return Ok(());
                }
                frames::read(&mut group, |tree, key, value| content.put(tree, key, value))
                    .map_err(|error| format!("a group of its journal cannot be read: {error}"))
            })?;
            Self { folder, base, journal }.compare(seen).map(|files| (files, content))
        }))
        .unwrap_or_else(|_| Err("sled gave up reading it".into()))
    }

    /// Refuses a journal that does not reach as far as it did.
    fn compare(self, seen: Option<Statement>) -> Result<Self, OpenRefusal> {
        let here = self.journal.mark().sequence;
        match seen {
            Some(Statement { mark, revision, .. }) if mark.sequence > here => {
                Err(format!("its newest {} writes are missing (up to revision {revision})", mark.sequence - here)
                    .into())
            }
            _ => Ok(self),
        }
    }

    /// Bytes that they take of the disk.
    pub fn bytes(&self) -> u64 {
        self.base.bytes + self.journal.disk_bytes()
    }

    /// Closes and removes them.
    pub fn remove(self) -> io::Result<()> {
        let Self { folder, journal, .. } = self;
        drop(journal);
        fs::remove_dir_all(folder)
    }
}
