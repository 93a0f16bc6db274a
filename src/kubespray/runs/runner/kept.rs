//! What runs leave: their logs, kubeconfigs and host keys, and how long that is kept.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};

use secrecy::SecretString;

use super::super::folder::{self, ARTIFACTS, CREDENTIALS, KNOWN_HOSTS, LOG};
use super::super::request::{RunId, RunOwner};
use super::super::state::judge;
use super::{LogPart, Runs, RunsError, failed};
use crate::files;

/// Most bytes of a log that are read at once.
const LOG_PART_MAX: usize = 1 << 20;
/// Longest text that a playbook of our own leaves, in bytes.
const ARTIFACT_MAX: u64 = 256 << 10;
/// The kubeconfig that kubespray leaves among the artifacts.
const KUBECONFIG: &str = "admin.conf";
/// Most bytes of a kubeconfig: that of kubespray has 6000.
const KUBECONFIG_MAX: u64 = 256 << 10;
/// Most bytes of the keys of a run's hosts.
const KNOWN_HOSTS_MAX: u64 = 4 << 20;
/// Runs of one object that are kept when they are over, and of all objects of a namespace.
const KEPT_OF_OBJECT: usize = 3;
const KEPT_OF_NAMESPACE: usize = 12;

impl Runs {
    /// The log from this byte on, at most a mebibyte of it.
    ///
    /// # Errors
    ///
    /// When there is no such run, or its log cannot be read.
    pub fn log(&self, id: &RunId, from: u64) -> Result<LogPart, RunsError> {
        // First: what was printed before an end is there then.
        let over = judge(&self.found(id)?).0.is_over();
        let read = || -> io::Result<(u64, Vec<u8>)> {
            let mut file = files::open(&self.folder(id).join(LOG))?;
            let from = from.min(file.metadata()?.len());
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.take(LOG_PART_MAX as u64).read_to_end(&mut bytes)?;
            Ok((from, bytes))
        };
        let (from, bytes) = read().map_err(failed(id, "read its log"))?;
        let (next, last) = (from + bytes.len() as u64, over && bytes.len() < LOG_PART_MAX);
        Ok(LogPart { bytes, next, last })
    }

    /// The administrator's kubeconfig, where the run made one (`kubeconfig_localhost`).
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is longer than 256 KiB.
    pub fn kubeconfig(&self, id: &RunId) -> Result<Option<SecretString>, RunsError> {
        let file = self.folder(id).join(ARTIFACTS).join(KUBECONFIG);
        // A playbook could have made a link to what is not the cluster's.
        let text = files::open_itself(&file).and_then(|file| files::within(file, KUBECONFIG_MAX));
        match text.and_then(|text| String::from_utf8(text).map_err(io::Error::other)) {
            Ok(text) => Ok(Some(text.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(id, "read its kubeconfig")(error)),
        }
    }

    /// A small text that a playbook of our own left, if it is there and one: nodes say what is in it.
    pub fn artifact(&self, id: &RunId, name: &str) -> Option<String> {
        let file = self.folder(id).join(ARTIFACTS).join(name);
        let text = files::open_itself(&file).and_then(|file| files::within(file, ARTIFACT_MAX)).ok()?;
        String::from_utf8(text).ok()
    }

    /// Removes what a run that is over left of secrets in plain: passwords that kubespray made up and, when it is kept elsewhere, the
    /// kubeconfig. A run that is not there has none.
    ///
    /// # Errors
    ///
    /// When they are there and cannot be removed.
    pub fn forget_secrets(&self, id: &RunId, with_kubeconfig: bool) -> Result<(), RunsError> {
        let of_run = self.folder(id);
        if with_kubeconfig {
            let kubeconfig = of_run.join(ARTIFACTS).join(KUBECONFIG);
            folder::remove_file(&kubeconfig).map_err(failed(id, "remove its kubeconfig"))?;
        }
        folder::remove(&of_run.join(CREDENTIALS)).map_err(failed(id, "remove its passwords"))
    }

    /// The keys of hosts that it knows, with those that it was given; empty when there are none.
    ///
    /// # Errors
    ///
    /// When they cannot be read, or are longer than four mebibytes.
    pub fn known_hosts(&self, id: &RunId) -> Result<String, RunsError> {
        match files::read(&self.folder(id).join(KNOWN_HOSTS), KNOWN_HOSTS_MAX) {
            Ok(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(failed(id, "read the keys of its hosts")(error)),
        }
    }

    /// Removes a run that is over, with all that it left.
    ///
    /// # Errors
    ///
    /// When it is under way, or cannot be removed.
    pub fn remove(&self, id: &RunId) -> Result<(), RunsError> {
        if !judge(&self.found(id)?).0.is_over() {
            return Err(RunsError::UnderWay(id.clone()));
        }
        let remove = || -> io::Result<()> {
            let old = folder::removed(&self.root, id.as_str());
            folder::remove(&old)?;
            // At once: half a folder would be a run that was never started.
            fs::rename(self.folder(id), &old)?;
            folder::sync(&self.root)?;
            folder::remove(&old)
        };
        remove().map_err(failed(id, "remove it"))
    }

    /// Removes those that are over but the last `keep`, by when they were started. Those of objects have a share of it each.
    ///
    /// # Errors
    ///
    /// When one cannot be read or removed.
    pub fn prune(&self, keep: usize) -> Result<(), RunsError> {
        let mut over = Vec::new();
        for id in self.list()? {
            // What cannot be read holds up no other.
            let Ok(found) = self.found(&id) else { continue };
            if judge(&found).0.is_over() {
                let owner = self.owner(&id);
                over.push((found.started.map(|started| started.at), id, owner));
            }
        }
        over.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
        let owners: Vec<_> = over.iter().map(|(_, _, owner)| owner.as_ref()).collect();
        let old = too_many(&owners, keep);
        over.iter().zip(old).filter(|(_, old)| *old).try_for_each(|((_, id, _), _)| self.remove(id))
    }
}

/// Which of runs that are over are to be removed, the oldest first: an object keeps few, a namespace not many, and a person's are
/// not removed for those of objects.
fn too_many(owners: &[Option<&RunOwner>], keep: usize) -> Vec<bool> {
    let (mut of_object, mut of_namespace) = (HashMap::new(), HashMap::new());
    let (mut of_objects, mut of_people) = (0, 0);
    // The newest are counted first.
    let mut old: Vec<bool> = owners
        .iter()
        .rev()
        .map(|owner| match owner {
            None => one_more(&mut of_people) > keep,
            Some(owner) => {
                let own = one_more(of_object.entry(&owner.uid).or_default()) > KEPT_OF_OBJECT;
                let near = !own && one_more(of_namespace.entry(&owner.namespace).or_default()) > KEPT_OF_NAMESPACE;
                own || near || one_more(&mut of_objects) > keep
            }
        })
        .collect();
    old.reverse();
    old
}

fn one_more(count: &mut usize) -> usize {
    *count += 1;
    *count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_and_a_namespace_keep_few_and_people_theirs() {
        let owner =
            |namespace: &str, uid: &str| RunOwner { namespace: namespace.into(), name: "n".into(), uid: uid.into() };
        let (one, many) = (owner("a", "one"), (0..20).map(|uid| owner("b", &uid.to_string())).collect::<Vec<_>>());
        let mut owners = vec![None, Some(&one), Some(&one), Some(&one), Some(&one)];
        owners.extend(many.iter().map(Some));
        let old = too_many(&owners, 50);
        // The oldest of four of one object, and of twenty of a namespace the first eight.
        let gone: Vec<usize> = old.iter().enumerate().filter(|(_, old)| **old).map(|(at, _)| at).collect();
        assert_eq!(gone, [1, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert!(too_many(&[None, None, None], 2) == [true, false, false]);
        assert!(too_many(&[None, Some(&one)], 0) == [true, true]);
    }
}
