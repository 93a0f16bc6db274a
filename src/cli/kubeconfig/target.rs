//! The kubeconfig that is merged into: where it is, whose it is, and how it is written.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use nix::unistd::geteuid;
use serde_json::Value;

use super::merge;
use crate::cli::local::as_user;
use crate::pki::users::{self, FileOwner};

/// Longest kubeconfig that is read, in bytes.
const FILE_MAX: u64 = 8 << 20;

/// A kubeconfig that may not be there yet.
#[derive(Debug)]
pub(super) struct KubeconfigTarget {
    file: PathBuf,
    /// Whose rights are used; none: those of this process.
    owner: Option<FileOwner>,
}

impl KubeconfigTarget {
    /// The file that is named, or the one that kubectl would write.
    pub(super) fn find(named: Option<&Path>) -> anyhow::Result<Self> {
        let by_environment = std::env::var_os("KUBECONFIG").as_deref().and_then(first_of);
        if let Some(file) = named.map(Path::to_owned).or(by_environment) {
            let owner = owner_of(&file).filter(|owner| geteuid().is_root() && owner.user != 0);
            return Ok(Self { file, owner });
        }
        let caller = std::env::var("SUDO_UID").ok().filter(|_| geteuid().is_root());
        let (home, owner) = match caller.and_then(|user| user.parse().ok()).filter(|user| *user != 0) {
            Some(user) => {
                let (home, owner) =
                    users::home(user).context("who called sudo is not in /etc/passwd: name the file, --merge FILE")?;
                (Some(home), Some(owner))
            }
            None => (std::env::home_dir(), None),
        };
        let home =
            home.filter(|home| home.is_absolute()).context("there is no home folder: name the file, --merge FILE")?;
        let file = home.join(".kube/config");
        let owner = owner.or_else(|| owner_of(&file).filter(|owner| geteuid().is_root() && owner.user != 0));
        Ok(Self { file, owner })
    }

    /// Does this with the rights of whom the file belongs to: root, whom somebody has write into a folder of his own, is led
    /// nowhere that he could not go himself.
    pub(super) fn as_owner<T>(&self, work: impl FnOnce() -> T) -> anyhow::Result<T> {
        as_user(self.owner, work)
    }

    /// What is in it.
    pub(super) fn read(&self) -> anyhow::Result<Value> {
        let (mut text, shown) = (String::new(), || self.file.display().to_string());
        match File::open(&self.file) {
            Ok(file) => {
                file.take(FILE_MAX + 1).read_to_string(&mut text).with_context(shown)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(shown),
        }
        ensure!(text.len() as u64 <= FILE_MAX, "{}: longer than {} MiB", shown(), FILE_MAX >> 20);
        merge::parse(&text).with_context(shown)
    }

    /// Reads it, and writes what becomes of it: whole or not at all, and while no kubectl writes it. The file that was written,
    /// and what else `change` says.
    pub(super) fn update<T>(
        &self,
        change: impl FnOnce(Value) -> anyhow::Result<(Value, T)>,
    ) -> anyhow::Result<(PathBuf, T)> {
        let folder = self.file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let in_folder = || folder.display().to_string();
        DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(in_folder)?;
        // Where a link leads to is written, not the link.
        let file = fs::canonicalize(&self.file).unwrap_or_else(|_| self.file.clone());
        let _lock = KubeconfigLock::of(&file)?;
        let (value, said) = change(self.read()?)?;
        write(&file, merge::print(&value)?.as_bytes()).with_context(|| file.display().to_string())?;
        Ok((file, said))
    }
}

fn write(file: &Path, text: &[u8]) -> anyhow::Result<()> {
    let folder = file.parent().context("it is no file")?;
    let mut new = tempfile::Builder::new()
        .prefix(".kubeconfig-")
        .permissions(fs::Permissions::from_mode(0o600))
        .tempfile_in(folder)?;
    new.write_all(text)?;
    new.as_file().sync_all()?;
    new.persist(file)?;
    File::open(folder)?.sync_all()?;
    Ok(())
}

/// The file beside it by which kubectl keeps others out while it writes.
struct KubeconfigLock(PathBuf);

impl KubeconfigLock {
    fn of(file: &Path) -> anyhow::Result<Self> {
        let mut name = file.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => Ok(Self(path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                bail!(
                    "{} is there: another program writes the kubeconfig; if none does, remove that file",
                    path.display()
                )
            }
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }
}

impl Drop for KubeconfigLock {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

/// The file of a list of kubeconfigs that kubectl writes: the first that is there, else the last.
fn first_of(list: &OsStr) -> Option<PathBuf> {
    let files: Vec<PathBuf> = std::env::split_paths(list).filter(|file| !file.as_os_str().is_empty()).collect();
    files.iter().find(|file| file.exists()).or(files.last()).cloned()
}

/// Whose a file is; of one that is not there, whose the folder is that it will be in.
fn owner_of(file: &Path) -> Option<FileOwner> {
    let found = file.ancestors().find_map(|at| {
        let at = if at.as_os_str().is_empty() { Path::new(".") } else { at };
        fs::symlink_metadata(at).ok()
    })?;
    Some(FileOwner { user: found.uid(), group: found.gid() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_list_the_first_that_is_there_is_written_else_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let list = std::env::join_paths([at("a"), at("b"), at("c")]).unwrap();
        assert_eq!(first_of(&list), Some(at("c")));
        fs::write(at("b"), "").unwrap();
        assert_eq!(first_of(&list), Some(at("b")));
        assert_eq!(first_of(OsStr::new("")), None);
    }

    #[test]
    fn a_file_is_written_whole_for_its_owner_alone_through_a_link_and_by_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().join("real");
        fs::write(&real, "current-context: a\n").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&real, folder.path().join("link")).unwrap();
        let target = KubeconfigTarget { file: folder.path().join("link"), owner: None };
        let (file, ()) = target
            .update(|mut value| {
                value["more"] = 1.into();
                // Somebody else comes in between.
                let error = target.update(|value| Ok((value, ()))).unwrap_err().to_string();
                assert!(error.contains("real.lock is there"), "{error}");
                Ok((value, ()))
            })
            .unwrap();
        assert_eq!(file, fs::canonicalize(&real).unwrap());
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(target.read().unwrap(), serde_json::json!({"current-context": "a", "more": 1}));
        // A change that fails leaves the file, and no lock.
        assert!(target.update(|_| -> anyhow::Result<(Value, ())> { bail!("no") }).is_err());
        let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["link", "real"]);
    }

    #[test]
    fn a_missing_folder_is_made_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let target = KubeconfigTarget { file: folder.path().join("home/.kube/config"), owner: None };
        target.update(|value| Ok((value, ()))).unwrap();
        assert_eq!(fs::metadata(folder.path().join("home/.kube")).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
