//! What of the box's files a run may reach: a node that has something run here, by a fault of Ansible or of a playbook, finds neither the
//! appliance's keys and database nor what other runs have.
//!
//! The kernel holds it, for Ansible and all that it starts, by Landlock (landlock(7), Linux 5.13 and later; signals since 6.12). By it
//! the processes of a run cannot trace those of the appliance either, and do not see their memory. Where a kernel has none, runs have
//! what their user has.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};

use super::folder::{ARTIFACTS, CREDENTIALS, EVENTS, KNOWN_HOSTS, SCRATCH};

/// The newest interface of the kernel that is asked for. An older one holds less.
const INTERFACE: ABI = ABI::V6;
/// Where every program may write. Not `/proc`: there root would set the kernel.
const SHARED: [&str; 3] = ["/dev", "/tmp", "/var/tmp"];

/// Whether this kernel confines what is started.
pub fn is_confined() -> bool {
    matches!(empty(), Ok(Some(_)))
}

fn handled() -> Result<Ruleset, RulesetError> {
    Ruleset::default().handle_access(AccessFs::from_all(INTERFACE))?.scope(Scope::from_all(INTERFACE))
}

fn empty() -> io::Result<Option<OwnedFd>> {
    Ok(handled().and_then(Ruleset::create).map_err(io::Error::other)?.into())
}

/// The rules for a run in this folder: all is read but what is `hidden`, where only `shown` and the run's own is there; written is what
/// the run makes, and where every program writes. `None` where the kernel has no such rules.
///
/// # Errors
///
/// When the kernel refuses them.
pub(super) fn rules(folder: &Path, hidden: &[PathBuf], shown: &[PathBuf]) -> io::Result<Option<OwnedFd>> {
    let (read, all) = (AccessFs::from_read(INTERFACE), AccessFs::from_all(INTERFACE));
    // What is shown is read only, wherever it is.
    let seen = visible(Path::new("/"), &[hidden, shown].concat());
    let is_shared = |path: &&PathBuf| SHARED.iter().any(|shared| path.starts_with(shared));
    let shared = seen.iter().filter(is_shared).cloned();
    let own = [SCRATCH, ARTIFACTS, CREDENTIALS, EVENTS, KNOWN_HOSTS].map(|name| folder.join(name));
    let written: Vec<PathBuf> = shared.chain(own).collect();
    let read_only: Vec<PathBuf> = seen.iter().chain(shown).cloned().chain([folder.to_owned()]).collect();
    let made = || {
        let rules = handled()?.create()?;
        let rules = rules.add_rules(path_beneath_rules(&read_only, read))?;
        rules.add_rules(path_beneath_rules(&written, all))
    };
    Ok(made().map_err(io::Error::other)?.into())
}

/// All that is below a folder but what is hidden: whole folders where nothing in them is. Links are left out, for what they lead to is
/// there by its own name.
fn visible(top: &Path, hidden: &[PathBuf]) -> Vec<PathBuf> {
    let hidden: Vec<PathBuf> = hidden.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
    let (mut found, mut folders) = (Vec::new(), vec![top.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) || hidden.contains(&path) {
                continue;
            }
            let has_hidden = hidden.iter().any(|one| one.starts_with(&path));
            if has_hidden { &mut folders } else { &mut found }.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_seen_but_what_is_hidden_and_links_to_it() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().canonicalize().unwrap().join(name);
        for folder in ["etc/slipway", "etc/ssl", "var/lib/slipway/db", "var/lib/dpkg", "usr/bin"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("etc/slipway/slipway.toml"), "").unwrap();
        fs::write(at("etc/slipway/other"), "").unwrap();
        std::os::unix::fs::symlink(at("var/lib/slipway"), at("srv")).unwrap();
        std::os::unix::fs::symlink(at(""), at("var/lib/all")).unwrap();
        std::os::unix::fs::symlink(at("etc/slipway/slipway.toml"), at("var/config")).unwrap();
        let seen = |hidden: &[&str]| {
            let hidden: Vec<_> = hidden.iter().map(|name| at(name)).collect();
            let mut seen = visible(&at(""), &hidden);
            seen.sort();
            let names = seen.iter().map(|path| path.strip_prefix(at("")).unwrap().to_str().unwrap().to_owned());
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(seen(&[]), "etc usr var");
        // By whichever name it is hidden; what is not there is nothing.
        let hidden = ["srv", "var/config", "nothing"];
        assert_eq!(seen(&hidden), "etc/slipway/other etc/ssl usr var/lib/dpkg");
    }
}
