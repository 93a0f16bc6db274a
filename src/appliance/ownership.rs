//! File ownership of the data folder: files of another user are named before anything is opened.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use nix::unistd::{AccessFlags, eaccess, geteuid};

use crate::config::DataDir;
use crate::pki::users;

/// Files that are named; the rest is counted.
const NAMED: usize = 5;
/// Entries of one folder that are looked at.
const ENTRIES_MAX: usize = 10_000;

/// A file that this process cannot use, because it is another user's.
#[derive(Debug, PartialEq, Eq)]
struct Foreign {
    path: PathBuf,
    owner: u32,
}

/// Refuses to go on with files that this process cannot use.
///
/// # Errors
///
/// When there are some: whose they are, and the command that mends it.
pub(super) fn check(data: &DataDir) -> anyhow::Result<()> {
    let mut found = Vec::new();
    look_at(&data.0, &mut found);
    for folder in [data.pki(), data.db(), data.logs(), data.images()] {
        look_at(&folder, &mut found);
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten().take(ENTRIES_MAX) {
            look_at(&entry.path(), &mut found);
        }
    }
    match told(&data.0, &found, &users::name(geteuid().as_raw()), users::name) {
        None => Ok(()),
        Some(text) => bail!("{text}"),
    }
}

fn look_at(path: &Path, found: &mut Vec<Foreign>) {
    // What is not there is made, and what cannot be looked at is told by the folder that it is in.
    let Ok(about) = fs::symlink_metadata(path) else { return };
    let mut wanted = AccessFlags::R_OK | AccessFlags::W_OK;
    if about.is_dir() {
        wanted |= AccessFlags::X_OK;
    }
    if about.uid() != geteuid().as_raw() && !about.is_symlink() && eaccess(path, wanted).is_err() {
        found.push(Foreign { path: path.to_owned(), owner: about.uid() });
    }
}

/// What is said of these files, when there are any.
fn told(data: &Path, found: &[Foreign], me: &str, name: impl Fn(u32) -> String) -> Option<String> {
    if found.is_empty() {
        return None;
    }
    let mut named: Vec<String> =
        found.iter().take(NAMED).map(|one| format!("{} belongs to {}", one.path.display(), name(one.owner))).collect();
    if found.len() > NAMED {
        named.push(format!("and {} more", found.len() - NAMED));
    }
    let data = data.display();
    Some(format!(
        "slipway is run by {me} and cannot use what other users made in its data folder: {}. Mend it with: sudo chown -R {me}: {data}",
        named.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_files_are_named_with_what_mends_it() {
        let found = |count: u32| (0..count).map(|n| Foreign { path: format!("/d/pki/{n}").into(), owner: n }).collect();
        let told = |found: Vec<Foreign>| told(Path::new("/d"), &found, "slipway", |user| format!("user{user}"));
        assert_eq!(told(found(0)), None);
        assert_eq!(
            told(found(2)).unwrap(),
            "slipway is run by slipway and cannot use what other users made in its data folder: /d/pki/0 belongs to \
             user0, /d/pki/1 belongs to user1. Mend it with: sudo chown -R slipway: /d"
        );
        assert!(told(found(9)).unwrap().contains("/d/pki/4 belongs to user4, and 4 more. Mend"));
    }

    #[test]
    fn what_is_mine_is_no_matter() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir(folder.path().join("data"));
        check(&data).unwrap();
        fs::create_dir_all(data.pki()).unwrap();
        fs::write(data.pki().join("ca.key"), "x").unwrap();
        check(&data).unwrap();
    }
}
