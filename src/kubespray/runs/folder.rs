//! The folder of a run: its files, written so that each is whole on disk or not there, and readable by its user alone.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::command::{FACTS_PLUGIN, PLUGIN, SupervisorPlan};
use super::events::PLUGIN_TEXT;
pub(super) use super::removal::remove;
use super::request::{HostKeys, Playbook, RunRequest};
use super::state::{RunEnd, RunFiles, Started};
use crate::files;

/// The playbook that installs packages.
/// So old is what nobody makes or removes any more.
const LEFT_FOR: Duration = Duration::from_secs(3600);
/// Longest file that is kept among the artifacts of an object's run, in bytes.
const ARTIFACT_KEPT: u64 = 1 << 20;
const PACKAGES: &str = include_str!("packages.yml");
const FACTS_PLUGIN_TEXT: &str = include_str!("slipway_facts.py");
pub(super) const PLAN: &str = "plan.json";
pub(super) const LOCK: &str = "lock";
pub(super) const STARTED: &str = "started.json";
pub(super) const ENDED: &str = "ended.json";
pub(super) const CANCELLED: &str = "cancelled";
pub(super) const EVENTS: &str = "events.jsonl";
pub(super) const LOG: &str = "log";
pub(super) const KNOWN_HOSTS: &str = "known_hosts";
pub(super) const PLUGINS: &str = "plugins";
pub(super) const CACHE_PLUGINS: &str = "cache_plugins";
/// What playbooks leave for whoever asked for the run.
pub(super) const ARTIFACTS: &str = "artifacts";
/// Passwords that kubespray makes up.
pub(super) const CREDENTIALS: &str = "credentials";
/// What only a run needs, and is secret; removed at its end.
pub(super) const PRIVATE: &str = "private";
pub(super) const INVENTORY: &str = "private/inventory";
pub(super) const VARS: &str = "private/vars.json";
pub(super) const KEY: &str = "private/id";
pub(super) const SECRETS: &str = "private/secrets.json";
/// What only a run needs; removed at its end.
pub(super) const SCRATCH: &str = "scratch";
/// Longest file of a run's state, in bytes; a plan may name thousands of hosts.
const STATE_MAX: u64 = 4 << 20;

/// Makes a folder for its owner alone.
pub(super) fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Whatever was done in a folder is on disk.
pub(super) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A new file for its owner alone, on disk but for its name.
fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// A file, whole and on disk with its name when this returns.
pub(super) fn write(folder: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let (path, part) = (folder.join(name), folder.join(format!("{name}.part")));
    // One that a crash left.
    remove_file(&part)?;
    write_new(&part, content)?;
    fs::rename(&part, &path)?;
    sync(folder)
}

/// Removes a file, if it is there.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(super) fn write_json(folder: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    write(folder, name, &serde_json::to_vec(value)?)
}

/// A file of a run's state; `None` when it is not there.
pub(super) fn read_json<T: DeserializeOwned>(folder: &Path, name: &str) -> io::Result<Option<T>> {
    match files::read(&folder.join(name), STATE_MAX) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes all that a run needs into a new folder. It is on disk then, but for the folder's name.
pub(super) fn fill(
    at: &Path,
    plan: &SupervisorPlan,
    vars: &Map<String, Value>,
    request: &RunRequest,
) -> io::Result<()> {
    for name in [PRIVATE, SCRATCH, PLUGINS, CACHE_PLUGINS, ARTIFACTS, CREDENTIALS] {
        make(&at.join(name))?;
    }
    for name in ["home", "tmp", "facts"] {
        make(&at.join(SCRATCH).join(name))?;
    }
    let known = match &request.host_keys {
        HostKeys::Known(text) | HostKeys::Recorded(text) => text.as_str(),
        HostKeys::FirstContact => "",
    };
    let secrets: Vec<&str> = request.secrets.iter().chain(&request.ssh_key).map(ExposeSecret::expose_secret).collect();
    write_new(&at.join(INVENTORY), request.inventory.as_bytes())?;
    write_new(&at.join(VARS), &serde_json::to_vec(vars)?)?;
    write_new(&at.join(SECRETS), &serde_json::to_vec(&secrets)?)?;
    write_new(&at.join(KNOWN_HOSTS), known.as_bytes())?;
    write_new(&at.join(PLUGINS).join(format!("{PLUGIN}.py")), PLUGIN_TEXT.as_bytes())?;
    write_new(&at.join(CACHE_PLUGINS).join(format!("{FACTS_PLUGIN}.py")), FACTS_PLUGIN_TEXT.as_bytes())?;
    write_new(&at.join(EVENTS), b"")?;
    write_new(&at.join(LOG), b"")?;
    write_new(&at.join(LOCK), b"")?;
    if let Some(key) = &request.ssh_key {
        write_new(&at.join(KEY), &as_ssh_reads_it(key))?;
    }
    if request.playbook == Playbook::Packages {
        write_new(&at.join(request.playbook.file()), PACKAGES.as_bytes())?;
    }
    write_new(&at.join(PLAN), &serde_json::to_vec(plan)?)?;
    [PRIVATE, SCRATCH, PLUGINS].iter().try_for_each(|name| sync(&at.join(name)))?;
    sync(at)
}

/// OpenSSH refuses a key whose last line does not end.
fn as_ssh_reads_it(key: &SecretString) -> Vec<u8> {
    let mut text = key.expose_secret().as_bytes().to_vec();
    if !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    text
}

/// Whether all that is in a folder is more than so many bytes, or than so many files and folders.
pub(super) fn is_larger(folder: &Path, bytes: u64, files: usize) -> bool {
    let (mut left, mut sum, mut seen) = (vec![folder.to_owned()], 0_u64, 0_usize);
    while let Some(at) = left.pop() {
        let entries = match fs::read_dir(at) {
            Ok(entries) => entries,
            // So deep that it has no name any more.
            Err(error) if Errno::from_raw(error.raw_os_error().unwrap_or_default()) == Errno::ENAMETOOLONG => {
                return true;
            }
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            // Not what a link leads to.
            let Ok(about) = entry.metadata() else { continue };
            seen += 1;
            sum = sum.saturating_add(about.len());
            if seen > files || sum > bytes {
                return true;
            }
            if about.is_dir() {
                left.push(entry.path());
            }
        }
    }
    false
}

/// Removes what was half made, or half removed, when its maker was killed, and who is long gone.
pub(super) fn remove_leftovers(root: &Path, now: SystemTime) -> io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".") && entry.file_type()?.is_dir();
        let made = entry.metadata().and_then(|about| about.modified());
        let is_old = made.is_ok_and(|made| now.duration_since(made).is_ok_and(|age| age > LEFT_FOR));
        if is_hidden && is_old {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Of the run of an object nothing is left that nobody reads: what is kept of it is read within bounds.
pub(super) fn shorten(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder.join(ARTIFACTS))? {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_dir() {
            remove(&entry.path())?;
        } else if about.len() > ARTIFACT_KEPT {
            remove_file(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes keys, variables and whatever else only a running run needs.
pub(super) fn tidy(folder: &Path) -> io::Result<()> {
    for name in [PRIVATE, SCRATCH] {
        remove(&folder.join(name))?;
    }
    sync(folder)
}

/// A lock of the whole file for its holder alone. It belongs to the open file (`F_OFD_SETLK` in fcntl(2)), and is gone with it.
fn whole_file() -> libc::flock {
    let whence = i16::try_from(libc::SEEK_SET).unwrap_or_default();
    let kind = i16::try_from(libc::F_WRLCK).unwrap_or_default();
    libc::flock { l_type: kind, l_whence: whence, l_start: 0, l_len: 0, l_pid: 0 }
}

fn lock_file(folder: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(folder.join(LOCK))
}

/// The lock of a run's supervisor; `None` when somebody has it. It lasts as long as the process, or this.
pub(super) fn lock(folder: &Path) -> io::Result<Option<File>> {
    let file = lock_file(folder)?;
    match fcntl(&file, FcntlArg::F_OFD_SETLK(&whole_file())) {
        Ok(_) => Ok(Some(file)),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a supervisor has the lock. To ask takes nothing from anybody, and who only may read the file is none.
fn is_locked(folder: &Path) -> io::Result<bool> {
    let mut held = whole_file();
    held.l_type = i16::try_from(libc::F_RDLCK).unwrap_or_default();
    fcntl(lock_file(folder)?, FcntlArg::F_OFD_GETLK(&mut held))?;
    Ok(i32::from(held.l_type) != libc::F_UNLCK)
}

/// What is known of a run. Its processes are counted by `members`, where that matters.
pub(super) fn look(folder: &Path, members: impl FnOnce() -> usize) -> io::Result<RunFiles> {
    // First: a supervisor that ends between this and what follows has noted its end.
    let supervised = is_locked(folder)?;
    let started: Option<Started> = read_json(folder, STARTED)?;
    let ended: Option<RunEnd> = read_json(folder, ENDED)?;
    let cancelled = folder.join(CANCELLED).exists();
    let alone = started.is_some() && ended.is_none() && !supervised;
    Ok(RunFiles { started, ended, cancelled, supervised, members: if alone { members() } else { 0 } })
}

/// The secrets of a run.
pub(super) fn secrets(folder: &Path) -> io::Result<Vec<String>> {
    Ok(read_json(folder, SECRETS)?.unwrap_or_default())
}

/// The folder that a run is made in before it has its name.
pub(super) fn unfinished(root: &Path, id: &str) -> PathBuf {
    root.join(format!(".{id}.new"))
}

/// Where a run is removed to before it is removed.
pub(super) fn removed(root: &Path, id: &str) -> PathBuf {
    root.join(format!(".{id}.old"))
}
