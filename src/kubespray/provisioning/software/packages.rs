//! Which packages each node is to have. Pure.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::api::bpa::NodeProgress;
use crate::api::bpa::software::{Package, Software};
use crate::hex::hex;

/// Letters of a package's name and of its version.
const LETTERS: usize = 128;

/// A package, and the version that it is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WantedPackage {
    name: String,
    version: Option<String>,
}

/// The packages of masters and of workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    masters: Vec<WantedPackage>,
    workers: Vec<WantedPackage>,
}

/// By node its packages as apt takes them: `NAME` or `NAME=VERSION`.
pub type ByNode = BTreeMap<String, Vec<String>>;

/// Reads a spec.
///
/// # Errors
///
/// Everything that is wrong with it: where, and why.
pub fn read(object: &Software) -> Result<Lists, Vec<(String, String)>> {
    let mut faults = Vec::new();
    let mut list = |field: &str, packages: &[Package]| {
        let mut list: Vec<WantedPackage> = Vec::new();
        for (at, package) in packages.iter().enumerate() {
            let path = format!("spec.{field}[{at}]");
            match one(package) {
                Ok(one) if list.iter().any(|other| other.name == one.name) => {
                    faults.push((path, format!("{} is there twice", one.name)));
                }
                Ok(one) => list.push(one),
                Err(reason) => faults.push((path, reason)),
            }
        }
        list
    };
    let masters = list("masterSoftware", &object.spec.master_software);
    let workers = list("workerSoftware", &object.spec.worker_software);
    if faults.is_empty() { Ok(Lists { masters, workers }) } else { Err(faults) }
}

fn one(package: &Package) -> Result<WantedPackage, String> {
    let (name, version) = match package {
        Package::Name(name) => (name, None),
        Package::Versioned(map) => {
            let mut entries = map.iter();
            let (Some((name, said)), None) = (entries.next(), entries.next()) else {
                return Err("is no map of one package, by its name".into());
            };
            (name, said.as_ref().and_then(|said| said.version.clone()))
        }
    };
    if !is_name(name) {
        return Err(format!("{:?} is no name of a Debian package (Debian Policy, 5.6.1)", short(name)));
    }
    if let Some(version) = version.as_ref().filter(|version| !is_version(version)) {
        return Err(format!("{:?} is no version of a Debian package (Debian Policy, 5.6.12)", short(version)));
    }
    Ok(WantedPackage { name: name.clone(), version })
}

fn short(text: &str) -> String {
    super::short(text, LETTERS)
}

/// <https://www.debian.org/doc/debian-policy/ch-controlfields.html#source>. So it is no option, no path and no template.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (2..=LETTERS).contains(&text.len())
        && is_plain(text.as_bytes()[0])
        && text.bytes().all(|byte| is_plain(byte) || b"+-.".contains(&byte))
}

/// <https://www.debian.org/doc/debian-policy/ch-controlfields.html#version>.
fn is_version(text: &str) -> bool {
    (1..=LETTERS).contains(&text.len())
        && text.as_bytes()[0].is_ascii_digit()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+~:-".contains(&byte))
}

impl Lists {
    /// What each of the nodes that are installed is to have; nodes that are to have nothing are not in it.
    ///
    /// # Errors
    ///
    /// When a node that is both is to have two versions of something.
    pub fn by_node(&self, nodes: &[NodeProgress], installed: &[String]) -> Result<ByNode, String> {
        let mut all = ByNode::new();
        for node in nodes.iter().filter(|node| installed.contains(&node.name)) {
            let has = |role: &str| node.roles.iter().any(|one| one == role);
            let lists = [(has("master"), &self.masters), (has("worker"), &self.workers)];
            let mut own: BTreeMap<&str, Option<&str>> = BTreeMap::new();
            for package in lists.into_iter().filter(|(is, _)| *is).flat_map(|(_, list)| list) {
                let version = package.version.as_deref();
                let before = own.get(package.name.as_str()).copied().flatten();
                if let (Some(before), Some(version)) = (before, version)
                    && before != version
                {
                    return Err(format!(
                        "{} is master and worker, and is to have {} {before} and {version}",
                        node.name, package.name
                    ));
                }
                own.insert(&package.name, version.or(before));
            }
            let word = |(name, version): (&str, Option<&str>)| match version {
                Some(version) => format!("{name}={version}"),
                None => name.to_owned(),
            };
            if !own.is_empty() {
                all.insert(node.name.clone(), own.into_iter().map(word).collect());
            }
        }
        Ok(all)
    }
}

/// Tells one wish from another.
pub fn hash(packages: &ByNode) -> String {
    let text = serde_json::to_vec(packages).unwrap_or_default();
    hex(&Sha256::digest(text)[..8])
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub fn software(spec: &Value) -> Software {
        let object = json!({"apiVersion": "bpa.akraino.org/v1alpha1", "kind": "Software",
            "metadata": {"name": "s", "namespace": "default", "labels": {"cluster": "edge"}}, "spec": spec});
        serde_json::from_value(object).expect("a Software")
    }

    pub fn node(name: &str, roles: &[&str]) -> NodeProgress {
        let roles = roles.iter().map(|role| (*role).to_owned()).collect();
        NodeProgress { name: name.into(), roles, ..NodeProgress::default() }
    }

    #[test]
    fn each_node_has_the_packages_of_its_roles() {
        let spec = json!({"masterSoftware": ["htop", {"jq": {"version": "1.6-2.1"}}], "workerSoftware": ["curl", "htop", {"jq": null}, {"tmux": {}}]});
        let lists = read(&software(&spec)).unwrap();
        let nodes = [
            node("m", &["master"]),
            node("w", &["worker"]),
            node("b", &["master", "worker"]),
            node("new", &["worker"]),
        ];
        let installed = ["m", "w", "b"].map(str::to_owned);
        let all = lists.by_node(&nodes, &installed).unwrap();
        assert_eq!(
            json!(all),
            json!({"m": ["htop", "jq=1.6-2.1"], "w": ["curl", "htop", "jq", "tmux"], "b": ["curl", "htop", "jq=1.6-2.1", "tmux"]})
        );
        assert_eq!(hash(&all), hash(&all.clone()));
        assert_ne!(hash(&all), hash(&lists.by_node(&nodes, &installed[..1]).unwrap()));
        let none = read(&software(&json!({}))).unwrap();
        assert!(none.by_node(&nodes, &installed).unwrap().is_empty());
        let spec = json!({"masterSoftware": [{"jq": {"version": "1"}}], "workerSoftware": [{"jq": {"version": "2"}}]});
        let reason = read(&software(&spec)).unwrap().by_node(&nodes, &installed).unwrap_err();
        assert_eq!(reason, "b is master and worker, and is to have jq 1 and 2");
    }

    #[test]
    fn what_is_no_package_is_refused() {
        for (package, wanted) in [
            (json!("-o"), "no name"),
            (json!("a"), "no name"),
            (json!("Htop"), "no name"),
            (json!("a=1"), "no name"),
            (json!("../a.deb"), "no name"),
            (json!("{{ x }}"), "no name"),
            (json!("a b"), "no name"),
            (json!({"jq": {"version": "{{ 1 }}"}}), "no version"),
            (json!({"jq": {"version": ""}}), "no version"),
            (json!({"jq": {"version": "*"}}), "no version"),
            (json!({"jq": {}, "htop": {}}), "no map of one"),
            (json!({}), "no map of one"),
        ] {
            let faults = read(&software(&json!({"workerSoftware": ["htop", package]}))).unwrap_err();
            assert!(faults[0].0 == "spec.workerSoftware[1]" && faults[0].1.contains(wanted), "{faults:?}");
        }
        let twice = read(&software(&json!({"masterSoftware": ["jq", {"jq": {"version": "1"}}]}))).unwrap_err();
        assert_eq!(twice[0].1, "jq is there twice");
    }
}
