//! Taking a backup: everything at one revision, as text, into a file that is whole or not there.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use jiff::Timestamp;

use super::format::{BackupWriter, FILE_MAX, FORMAT, Header};
use super::seal::{Seal, Sealing};
use crate::pki;
use crate::store::{Snapshot, Store};

/// Beginning of the name of a file that is being written.
pub const UNFINISHED: &str = ".slipway-backup-";

/// Where a backup comes from. Cheap to clone.
#[derive(Clone)]
pub struct BackupSource {
    store: Store,
    pki: PathBuf,
    config: Arc<str>,
    /// Resources that are in memory only.
    views: Arc<HashSet<String>>,
}

impl BackupSource {
    /// A store, the folder of its certificates, the text of the configuration, and the resources (`<group>/<plural>`) that
    /// are in memory only.
    pub fn new(store: Store, pki: PathBuf, config: &str, views: HashSet<String>) -> Self {
        Self { store, pki, config: config.into(), views: Arc::new(views) }
    }

    /// SHA-256 of the CA's certificate, in hex.
    ///
    /// # Errors
    ///
    /// When the keys cannot be read.
    pub fn ca(&self) -> anyhow::Result<String> {
        Ok(crate::hex::hex(&pki::read_kept(&self.pki)?.fingerprint()))
    }

    /// Everything at one revision.
    ///
    /// # Errors
    ///
    /// When the store or a key cannot be read.
    pub fn take(&self, now: Timestamp) -> anyhow::Result<BackupContent> {
        let snapshot = self.store.snapshot(|resource| self.views.contains(resource));
        for (resource, namespace, name) in self.store.unreadable() {
            tracing::error!(%resource, object = %crate::log::named(&namespace, &name), "an object is damaged: the backup does not have it");
        }
        let kept = pki::read_kept(&self.pki)?;
        let ca = kept.fingerprint();
        let mut files: Vec<(String, String)> =
            kept.files().map(|(name, text)| (format!("pki/{name}"), text.to_owned())).collect();
        if self.config.len() <= FILE_MAX {
            files.push(("slipway.toml".into(), self.config.to_string()));
        } else {
            tracing::warn!("the configuration file is too large for a backup: the backup does not have it");
        }
        let count = |number: usize| number as u64;
        let header = Header {
            slipway_backup: FORMAT,
            made_by: env!("CARGO_PKG_VERSION").into(),
            time: now,
            ca: crate::hex::hex(&ca),
            revision: snapshot.revision,
            objects: count(snapshot.objects.len()),
            entries: count(snapshot.tables.iter().map(|(_, entries)| entries.len()).sum()),
            files: count(files.len()),
        };
        Ok(BackupContent { header, snapshot, files })
    }
}

/// What goes into a backup.
pub struct BackupContent {
    /// Its first line.
    pub header: Header,
    snapshot: Snapshot,
    files: Vec<(String, String)>,
}

impl BackupContent {
    /// Length of its text, in bytes, without what frames the lines.
    pub fn size(&self) -> u64 {
        let objects = self.snapshot.objects.iter().map(|object| object.json_len());
        let entries = self.snapshot.tables.iter().flat_map(|(_, entries)| entries);
        let entries = entries.map(|(key, value)| key.len() + value.len());
        objects.chain(entries).map(|length| length as u64).sum()
    }

    /// Writes it as text; `each` is told before every line how many there were, and may stop it.
    ///
    /// # Errors
    ///
    /// Those of the writer, and those of `each`.
    pub fn write<W: Write>(self, out: W, mut each: impl FnMut(u64) -> io::Result<()>) -> io::Result<W> {
        let mut writer = BackupWriter::new(out, &self.header)?;
        let mut lines = 0;
        let mut next = || {
            lines += 1;
            each(lines)
        };
        // As they go: what was written meanwhile needs no memory any more.
        for object in self.snapshot.objects {
            next()?;
            writer.object(&object)?;
        }
        for (table, entries) in &self.snapshot.tables {
            for (key, value) in entries {
                next()?;
                writer.entry(table, key, value)?;
            }
        }
        for (name, text) in &self.files {
            next()?;
            writer.file(name, text)?;
        }
        writer.finish()
    }
}

/// A file of mode 0600 that gets its name once it is whole and on disk; one of that name is never replaced.
pub struct NewFile {
    path: PathBuf,
    file: tempfile::NamedTempFile,
}

impl NewFile {
    /// Begins it beside where it will be.
    ///
    /// # Errors
    ///
    /// When there is such a file already, or the folder cannot be written.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        if path.symlink_metadata().is_ok() {
            bail!("{} is there already: give another name, or remove it", path.display());
        }
        let folder = folder_of(path);
        let file = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempfile_in(folder)
            .with_context(|| format!("cannot write to {}", folder.display()))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Gives it its name.
    ///
    /// # Errors
    ///
    /// When the disk refuses, or a file of that name came meanwhile.
    pub fn keep(self) -> anyhow::Result<()> {
        let Self { path, file } = self;
        let what = || path.display().to_string();
        file.as_file().sync_all().with_context(what)?;
        file.persist_noclobber(&path).map_err(|error| error.error).with_context(what)?;
        File::open(folder_of(&path)).and_then(|folder| folder.sync_all()).with_context(what)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Writes a backup into a new file. Its length in bytes.
///
/// # Errors
///
/// When it cannot be taken or written; there is no file then.
pub fn write_file(
    content: BackupContent,
    path: &Path,
    seal: &Seal,
    each: impl FnMut(u64) -> io::Result<()>,
) -> anyhow::Result<u64> {
    let file = NewFile::create(path)?;
    let what = || format!("cannot write {}", path.display());
    let sealing = Sealing::new(BufWriter::new(file), seal).with_context(what)?;
    let sealing = content.write(sealing, each).with_context(what)?;
    let file = sealing.finish().and_then(|out| out.into_inner().map_err(io::IntoInnerError::into_error));
    let file = file.with_context(what)?;
    let size = file.file.as_file().metadata().with_context(what)?.len();
    file.keep()?;
    Ok(size)
}

/// Removes what a process that was killed left unfinished in a folder, when it is older than a day, or as far in the future.
///
/// # Errors
///
/// When the folder cannot be read; a file that cannot be removed stays.
pub fn sweep(folder: &Path, now: std::time::SystemTime) -> io::Result<()> {
    const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let unfinished = entry.file_name().to_str().is_some_and(|name| name.starts_with(UNFINISHED));
        let changed = entry.metadata().and_then(|about| about.modified()).ok();
        // What is of the future was written when the clock was wrong.
        let age = changed.map(|at| now.duration_since(at).unwrap_or_else(|error| error.duration()));
        if unfinished && age.is_some_and(|age| age > DAY) {
            fs::remove_file(entry.path()).ok();
        }
    }
    Ok(())
}
