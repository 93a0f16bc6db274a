//! The folder of keys: private, written by one at a time, each file whole or not at all, and of the right owner.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::PkiError;
use super::users::{self, FileOwner};
use crate::files;

/// How long others may have the folder. To make keys takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest file of keys and certificates, in bytes. Who may write there may not hold up root's commands.
pub const FILE_MAX: u64 = 64 << 10;
/// Longest text in the lock file that is looked at, in bytes.
const HOLDER_MAX: u64 = 200;

/// A folder of keys.
#[derive(Debug)]
pub struct KeyFolder {
    path: PathBuf,
    /// Whom new files are given to.
    heir: Option<FileOwner>,
}

fn owner_of(path: &Path) -> Option<FileOwner> {
    fs::metadata(path).ok().map(|about| FileOwner { user: about.uid(), group: about.gid() })
}

impl KeyFolder {
    /// A folder that may not be there yet. It lies in the data folder.
    pub fn at(path: &Path) -> Self {
        let data = path.parent().filter(|data| data.exists()).and_then(owner_of);
        let heir = users::heir(nix::unistd::geteuid().as_raw(), data, users::service());
        Self { path: path.to_owned(), heir }
    }

    /// Where it is, or a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes the folder, and those above it that are missing, for its owner alone; closes one that is open to others.
    pub fn make_private(&self) -> Result<(), PkiError> {
        let missing: Vec<&Path> = self.path.ancestors().take_while(|folder| !folder.exists()).collect();
        for folder in missing.into_iter().rev() {
            match fs::DirBuilder::new().mode(0o700).create(folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(self.fail(folder, error)),
                _ => self.give(folder)?,
            }
            // A power cut would otherwise take it with all that was synced in it.
            let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let synced = File::open(parent).and_then(|parent| parent.sync_all());
            synced.map_err(|error| self.fail(parent, error))?;
        }
        let about = fs::metadata(&self.path).map_err(|error| self.fail(&self.path, error))?;
        if about.mode() & 0o077 != 0 {
            let closed = fs::set_permissions(&self.path, fs::Permissions::from_mode(0o700));
            let folder = self.path.display();
            match closed {
                Ok(()) => tracing::warn!(%folder, "the folder of keys was open to other users: it is closed now"),
                Err(error) => {
                    tracing::warn!(%folder, %error, "cannot close the folder of keys to other users: change its mode")
                }
            }
        }
        Ok(())
    }

    /// Waits for the folder and keeps others out for as long as the answer lives.
    pub fn lock(&self) -> Result<File, PkiError> {
        self.lock_within(PATIENCE)
    }

    fn lock_within(&self, patience: Duration) -> Result<File, PkiError> {
        let path = self.file(".lock");
        let made = !path.exists();
        // Nothing is waited for in what is no file: a pipe has no text of whoever has it.
        let flags = nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_NOCTTY;
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600).custom_flags(flags.bits());
        let opened = options.open(&path);
        let mut lock = opened.map_err(|error| self.fail(&path, error))?;
        if made {
            self.give(&path)?;
        }
        let end = Instant::now() + patience;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {
                    let mut text = String::new();
                    // What is in the file only helps to find out.
                    (&mut lock).take(HOLDER_MAX).read_to_string(&mut text).ok();
                    return Err(PkiError::Locked { path, holder: holder(&text) });
                }
                Err(TryLockError::Error(error)) => return Err(self.fail(&path, error)),
            }
        }
        let command =
            std::env::args().nth(1).filter(|word| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'));
        let text = format!("{} slipway {}\n", std::process::id(), command.unwrap_or_default());
        // So that others can say who has it. Without this it works all the same.
        lock.set_len(0).and_then(|()| lock.write_all(text.as_bytes())).ok();
        Ok(lock)
    }

    /// The text of a file; `None` when there is none.
    pub fn read(&self, name: &str) -> Result<Option<String>, PkiError> {
        let path = self.file(name);
        match files::read_text(&path, FILE_MAX) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.fail(&path, error)),
        }
    }

    /// [`Self::read`], of a file that is made anew when it is damaged: one that is no text at all is as if it were not there.
    pub fn read_replaceable(&self, name: &str) -> Result<Option<String>, PkiError> {
        match self.read(name) {
            Err(PkiError::File { path, source }) if source.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(file = %path.display(), "is damaged: it is made anew");
                Ok(None)
            }
            read => read,
        }
    }

    /// Writes a file, whole or not at all.
    pub fn write(&self, name: &str, text: &str, mode: u32) -> Result<(), PkiError> {
        let path = self.file(name);
        let failed = |error| self.fail(&path, error);
        let temporary = self.file(&format!("{name}.new"));
        fs::remove_file(&temporary).or_else(ignore_missing).map_err(failed)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        self.give(&temporary)?;
        fs::rename(&temporary, &path).map_err(failed)?;
        File::open(&self.path).and_then(|folder| folder.sync_all()).map_err(failed)
    }

    /// Removes a file; whether there was one.
    pub fn remove(&self, name: &str) -> Result<bool, PkiError> {
        let path = self.file(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.fail(&path, error)),
        }
    }

    /// An error about a file; who may not use it is told whose it is and what to do.
    fn fail(&self, path: &Path, source: io::Error) -> PkiError {
        if source.kind() == io::ErrorKind::PermissionDenied {
            let me = nix::unistd::geteuid().as_raw();
            // What is in a folder that I may not enter cannot be looked at: then it is the folder that matters.
            let found = path.ancestors().find_map(|at| owner_of(at).map(|owner| (at, owner.user)));
            let data = self.path.parent().unwrap_or(&self.path);
            if let Some((at, user)) = found.filter(|(_, user)| *user != me) {
                let advice =
                    users::advice(me, owner_of(data).map(|owner| owner.user), user, &data.display().to_string());
                return PkiError::Owner { path: at.to_owned(), advice };
            }
        }
        PkiError::File { path: path.to_owned(), source }
    }

    fn give(&self, path: &Path) -> Result<(), PkiError> {
        let Some(heir) = self.heir else { return Ok(()) };
        std::os::unix::fs::lchown(path, Some(heir.user), Some(heir.group)).map_err(|error| self.fail(path, error))
    }
}

/// Who says in the lock file that it has it, as `process 5 (slipway serve)`.
fn holder(text: &str) -> String {
    let shown = |text: &str| text.chars().filter(|letter| !letter.is_control()).collect::<String>();
    match text.trim().split_once(' ') {
        Some((process, command)) if process.parse::<u32>().is_ok() => {
            format!("process {process} ({})", shown(command))
        }
        _ => "another process".to_owned(),
    }
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_and_its_holder_named() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::at(&folder.path().join("pki"));
        keys.make_private().unwrap();
        let held = keys.lock().unwrap();
        let error = KeyFolder::at(&folder.path().join("pki")).lock_within(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains(&format!("process {} (slipway", std::process::id())), "{error}");
        drop(held);
        keys.lock_within(Duration::ZERO).unwrap();
        for (text, wanted) in [
            ("12 slipway serve\n", "process 12 (slipway serve)"),
            ("12 \u{1b}[31mx\n", "process 12 ([31mx)"),
            ("", "another process"),
            ("x y", "another process"),
        ] {
            assert_eq!(holder(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn what_has_no_end_or_no_writer_is_no_file_of_keys() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::at(&folder.path().join("pki"));
        keys.make_private().unwrap();
        std::os::unix::fs::symlink("/dev/zero", keys.file("device")).unwrap();
        nix::unistd::mkfifo(&keys.file("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(keys.file("long"), vec![b'a'; FILE_MAX as usize + 1]).unwrap();
        for (name, wanted) in
            [("device", "not a regular file"), ("pipe", "not a regular file"), ("long", "longer than")]
        {
            let error = keys.read(name).unwrap_err();
            let text = format!("{error:?}");
            assert!(text.contains(wanted), "{name}: {text}");
        }
        assert!(keys.read("missing").unwrap().is_none());
        // Nor does a pipe in the place of the lock hold anybody up.
        nix::unistd::mkfifo(&keys.file(".lock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let held = keys.lock_within(Duration::ZERO).unwrap();
        keys.lock_within(Duration::ZERO).unwrap_err();
        drop(held);
    }

    #[test]
    fn a_folder_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/data/pki");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        for _ in 0..2 {
            KeyFolder::at(&path).make_private().unwrap();
            for made in [&folder.path().join("a"), &folder.path().join("a/data"), &path] {
                assert_eq!(mode(made), 0o700, "{}", made.display());
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}
