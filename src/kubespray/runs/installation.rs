//! The kubespray checkout and the virtual environment that the configuration names, and whether they fit.
//!
//! kubespray pins what it runs with: packages in `requirements.txt`, and a window of ansible-core in `meta/runtime.yml` and
//! `playbooks/ansible_version.yml`. Distributions' Ansible hardly ever is in that window, so each checkout has an environment of
//! its own ([kubespray's docs](https://github.com/kubernetes-sigs/kubespray/blob/master/docs/ansible/ansible.md)). All is
//! read from files; nothing is run.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::mirrors::Mirrors;
use super::request::{PATH, Playbook};
use super::versions::{ParsedVersion, Specifier, normalised, requirements};
use crate::config::KubesprayConfig;
use crate::files;

/// Longest file of a checkout that is looked at, in bytes.
const FILE_MAX: u64 = 256 << 10;
/// Most entries of a folder of packages that are looked at.
const PACKAGES_MAX: usize = 20_000;
/// Files and folders of a checkout, or of an environment, that are looked at for who may write them.
const LOOKED_AT: usize = 200_000;
/// Bits of a file's mode by which others than its owner may write it.
const OTHERS_WRITE: u32 = 0o022;
/// Bit of a folder's mode by which others may not take away what is not theirs.
const STICKY: u32 = 0o1000;

/// A kubespray checkout and a virtual environment for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// Folder of the checkout, with `cluster.yml`.
    pub tree: PathBuf,
    /// Folder of the virtual environment, with `bin/ansible-playbook`.
    pub environment: PathBuf,
    /// Where nodes get what they need.
    pub mirrors: Mirrors,
    /// Files and folders of the box that runs do not see.
    pub hidden: Vec<PathBuf>,
}

/// What was found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Of kubespray, as its `galaxy.yml` has it; empty where it does not say.
    pub kubespray: String,
    /// Of ansible-core.
    pub ansible_core: String,
    /// Of ansible-core as kubespray wants it.
    pub wanted: String,
    /// Of Python, as `pyvenv.cfg` has it; empty where it does not say.
    pub python: String,
    /// Of the packages that kubespray wants.
    pub packages: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Runtime {
    requires_ansible: Option<String>,
}

#[derive(Deserialize)]
struct Galaxy {
    version: Option<Value>,
}

impl Installation {
    /// What the configuration names; `None` where it names none.
    pub fn of(config: &KubesprayConfig) -> Option<Self> {
        let (tree, environment) = (config.path.clone()?, config.ansible.clone()?);
        Some(Self { tree, environment, mirrors: Mirrors::of(config), hidden: Vec::new() })
    }

    /// Runs do not see these files and folders.
    pub fn hiding(self, hidden: Vec<PathBuf>) -> Self {
        Self { hidden, ..self }
    }

    /// The programs that runs start: Python, and Ansible's script.
    pub fn programs(&self) -> (PathBuf, PathBuf) {
        (self.environment.join("bin/python3"), self.environment.join("bin/ansible-playbook"))
    }

    /// What is there, and whether it fits.
    ///
    /// # Errors
    ///
    /// All that is wrong, a line for each fault, which names file, package and versions.
    pub fn inspect(&self) -> Result<Versions, Vec<String>> {
        let mut faults = Vec::new();
        for hidden in
            self.hidden.iter().filter(|hidden| hidden.starts_with(&self.tree) || hidden.starts_with(&self.environment))
        {
            faults.push(format!("{} is in what runs read: put checkout and environment elsewhere", hidden.display()));
        }
        if !PATH.split(':').any(|folder| Path::new(folder).join("ssh").is_file()) {
            faults.push("ssh is not on this box, by which nodes are reached: apt-get install openssh-client".into());
        }
        let wanted = self.wanted(&mut faults);
        let installed = self.installed(&mut faults);
        let core = installed.get("ansible-core").cloned().unwrap_or_default();
        if core.is_empty() {
            // Without any package that is said already.
            if !installed.is_empty() {
                faults.push(format!("{} has no ansible-core: {}", self.environment.display(), self.advice()));
            }
        } else if let Some(window) = wanted.iter().find(|window| !holds(window, &core)) {
            let environment = self.environment.display();
            faults.push(format!("{environment} has ansible-core {core}, kubespray wants {window}: {}", self.advice()));
        }
        let mut packages = BTreeMap::new();
        let text = self.text("requirements.txt").unwrap_or_default();
        for (name, specifier) in requirements(&text).into_iter().filter(|_| !installed.is_empty()) {
            match installed.get(&name) {
                None => {
                    faults.push(format!("{} has no {name}, kubespray wants {specifier}", self.environment.display()))
                }
                Some(version) if !holds(&specifier, version) => faults.push(format!(
                    "{} has {name} {version}, kubespray wants {specifier}: {}",
                    self.environment.display(),
                    self.advice()
                )),
                Some(version) => drop(packages.insert(name, version.clone())),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let said = wanted.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut wanted = String::new();
        for (at, one) in said.iter().enumerate().filter(|(at, one)| !said[..*at].contains(one)) {
            write!(wanted, "{}{one}", if at == 0 { "" } else { ", " }).ok();
        }
        let (kubespray, python) = (self.version(), self.python());
        Ok(Versions { kubespray, ansible_core: core, wanted, python, packages })
    }

    fn advice(&self) -> String {
        let (environment, tree) = (self.environment.display(), self.tree.display());
        format!("python3 -m venv {environment} && {environment}/bin/pip install -r {tree}/requirements.txt")
    }

    fn text(&self, name: &str) -> io::Result<String> {
        files::read_text(&self.tree.join(name), FILE_MAX)
    }

    /// What the checkout wants of ansible-core.
    fn wanted(&self, faults: &mut Vec<String>) -> Vec<Specifier> {
        let mut wanted = Vec::new();
        for file in Playbook::FILES.iter().copied().chain(["ansible.cfg"]) {
            if let Err(error) = files::open(&self.tree.join(file)) {
                faults.push(format!("{} is no kubespray: {file}: {error}", self.tree.display()));
                return wanted;
            }
        }
        faults.extend(at_risk(&self.tree, nix::unistd::geteuid().as_raw()));
        let runtime = self.text("meta/runtime.yml").ok();
        let runtime: Option<Runtime> = runtime.and_then(|text| serde_saphyr::from_str(&text).ok());
        wanted.extend(runtime.and_then(|runtime| Specifier::parse(&runtime.requires_ansible?)));
        let asserted = self.text("playbooks/ansible_version.yml").ok();
        wanted.extend(asserted.and_then(|text| asserted_window(&text)));
        if wanted.is_empty() {
            faults.push(format!(
                "{} does not say which ansible-core it wants, in meta/runtime.yml or playbooks/ansible_version.yml",
                self.tree.display()
            ));
        }
        wanted
    }

    /// The packages of the environment by their normalised names.
    fn installed(&self, faults: &mut Vec<String>) -> BTreeMap<String, String> {
        let (python, ansible) = self.programs();
        for program in [&python, &ansible] {
            match fs::metadata(program) {
                Ok(about) if about.is_file() && about.permissions().mode() & 0o111 != 0 => {}
                Ok(_) => faults.push(format!("{} is no program", program.display())),
                Err(error) => faults.push(format!(
                    "{} is no virtual environment with Ansible: {}: {error}: {}",
                    self.environment.display(),
                    program.strip_prefix(&self.environment).unwrap_or(program).display(),
                    self.advice()
                )),
            }
        }
        if !faults.is_empty() && fs::metadata(&ansible).is_err() {
            return BTreeMap::new();
        }
        faults.extend(at_risk(&self.environment, nix::unistd::geteuid().as_raw()));
        let mut found = BTreeMap::new();
        for folder in entries(&self.environment.join("lib")) {
            for package in entries(&folder.join("site-packages")) {
                let name =
                    package.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".dist-info"));
                if let Some((name, version)) = name.and_then(|name| name.split_once('-')) {
                    found.insert(normalised(name), version.to_owned());
                }
            }
        }
        if found.is_empty() {
            faults.push(format!("{} has no packages: {}", self.environment.display(), self.advice()));
        }
        found
    }

    fn version(&self) -> String {
        let galaxy: Option<Galaxy> = self.text("galaxy.yml").ok().and_then(|text| serde_saphyr::from_str(&text).ok());
        galaxy.and_then(|galaxy| plain(&galaxy.version?)).unwrap_or_default()
    }

    fn python(&self) -> String {
        let text = files::read_text(&self.environment.join("pyvenv.cfg"), FILE_MAX).unwrap_or_default();
        let keys = text.lines().filter_map(|line| line.split_once('='));
        let version = keys.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == "version");
        version.map(|(_, value)| value.to_owned()).unwrap_or_default()
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().take(PACKAGES_MAX).map(|entry| entry.path()).collect()
}

/// Whether somebody else than root and this user may change a folder, what is above it or anything in it: runs would run that.
fn at_risk(folder: &Path, me: u32) -> Option<String> {
    // Where a link leads is what is run.
    let real = fs::canonicalize(folder).ok()?;
    let above = real.ancestors().skip(1).find_map(|path| changeable(path, me, true));
    above.or_else(|| {
        let (mut left, mut seen) = (vec![real.clone()], 0);
        while let Some(path) = left.pop() {
            if let Some(fault) = changeable(&path, me, false) {
                return Some(fault);
            }
            seen += 1;
            if seen > LOOKED_AT {
                return Some(format!("{} has more than {LOOKED_AT} files: is it the right folder?", folder.display()));
            }
            if fs::symlink_metadata(&path).is_ok_and(|about| about.is_dir()) {
                left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
            }
        }
        None
    })
}

fn changeable(path: &Path, me: u32, is_above: bool) -> Option<String> {
    let about = fs::symlink_metadata(path).ok().filter(|about| !about.is_symlink())?;
    let (shown, mode) = (path.display(), about.permissions().mode());
    if ![0, me].contains(&about.uid()) {
        return Some(format!("{shown} belongs to the user {}, and runs would run it: chown -R root", about.uid()));
    }
    let is_shared = is_above && mode & STICKY != 0;
    let open = mode & OTHERS_WRITE != 0 && !is_shared;
    open.then(|| format!("{shown} may be written by others than its owner, and runs would run it: chmod -R go-w"))
}

fn holds(wanted: &Specifier, version: &str) -> bool {
    ParsedVersion::parse(version).is_some_and(|version| wanted.holds(&version))
}

/// The window that the playbook `ansible_version.yml` asserts.
fn asserted_window(text: &str) -> Option<Specifier> {
    let plays: Vec<Value> = serde_saphyr::from_str(text).ok()?;
    let vars =
        plays.iter().find_map(|play| play.get("vars").filter(|vars| vars.get("minimal_ansible_version").is_some()))?;
    let value = |name: &str| plain(vars.get(name)?);
    Specifier::window(&value("minimal_ansible_version")?, &value("maximal_ansible_version")?)
}

/// A version that YAML may take for a number.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_the_playbook_is_read() {
        let play = |least: &str, below: &str| {
            format!(
                "---\n- name: a\n  hosts: all\n  vars:\n    minimal_ansible_version: {least}\n    maximal_ansible_version: {below}\n"
            )
        };
        for (text, wanted) in [
            (play("2.18.0", "2.19.0"), Some(">=2.18.0,<2.19.0")),
            (play("2.5", "'3'"), Some(">=2.5,<3")),
            (play("x", "2.19.0"), None),
            ("- hosts: all\n".to_owned(), None),
            ("just: this".to_owned(), None),
            ("[[[[".to_owned(), None),
        ] {
            assert_eq!(asserted_window(&text).map(|window| window.to_string()).as_deref(), wanted, "{text}");
        }
    }
}
