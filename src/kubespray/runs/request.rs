//! What is asked for: a playbook over an inventory, with its variables, key and bounds. Checked before anything is written.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::vars::RunVars;
use crate::config::KubesprayConfig;

/// Where programs are that runs start on this box: ssh, sudo.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Longest name of a run.
const ID_MAX: usize = 40;
/// Most bytes of an inventory: thousands of hosts.
const INVENTORY_MAX: usize = 8 << 20;
/// Most bytes of a key, and of each secret.
const KEY_MAX: usize = 64 << 10;
/// Most bytes of a `known_hosts`.
const KNOWN_HOSTS_MAX: usize = 4 << 20;
/// Most hosts that a run is limited to, or expected of it.
const HOSTS_MAX: usize = 5000;
/// Longest name of a host (RFC 1123, section 2.1).
pub(super) const HOST_MAX: usize = 253;
/// Most secrets that are looked for in output.
const SECRETS_MAX: usize = 200;

/// The name of a run, which is that of its folder: small letters, digits and hyphens, 40 at most.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunId(String);

impl RunId {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RunId {
    type Err = RequestFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let within = (1..=ID_MAX).contains(&text.len());
        let right = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let good = within && text.bytes().all(right) && !text.starts_with('-') && !text.ends_with('-');
        if good { Ok(Self(text.to_owned())) } else { Err(RequestFault::Id(text.chars().take(ID_MAX).collect())) }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A playbook of kubespray.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Playbook {
    /// Install, or bring to what the inventory says.
    Cluster,
    /// Add workers.
    Scale,
    /// Drain nodes, reset them and take them out of the cluster.
    RemoveNode {
        /// Their names in the inventory; at least one.
        nodes: Vec<String>,
    },
    /// Upgrade, one control plane after the other, then the workers.
    UpgradeCluster,
    /// Take the cluster away from its nodes.
    Reset,
    /// Install packages on its nodes: a playbook of our own, for which the variable `slipway_packages` has a list for each node.
    Packages,
}

impl Playbook {
    /// The files of all of them.
    pub(super) const FILES: [&str; 5] =
        ["cluster.yml", "scale.yml", "remove-node.yml", "upgrade-cluster.yml", "reset.yml"];

    /// Its file, in the checkout if it is kubespray's.
    pub fn file(&self) -> &'static str {
        match self {
            Self::Cluster => "cluster.yml",
            Self::Scale => "scale.yml",
            Self::RemoveNode { .. } => "remove-node.yml",
            Self::UpgradeCluster => "upgrade-cluster.yml",
            Self::Reset => "reset.yml",
            Self::Packages => "packages.yml",
        }
    }

    /// What it wants to know, and the answers to what it would ask a person for. Ansible takes `-e a=true` for a string, which
    /// kubespray refuses; so they are JSON.
    pub(super) fn vars(&self) -> Vec<(&'static str, Value)> {
        match self {
            Self::Cluster | Self::Scale | Self::Packages => Vec::new(),
            Self::RemoveNode { nodes } => vec![("node", json!(nodes.join(","))), ("skip_confirmation", json!(true))],
            Self::UpgradeCluster => {
                vec![("upgrade_node_confirm", json!(false)), ("upgrade_node_post_upgrade_confirm", json!(false))]
            }
            Self::Reset => vec![("reset_confirmation", json!(true)), ("skip_confirmation", json!(true))],
        }
    }
}

/// The object of the API that a run is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunOwner {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Which one of that name.
    pub uid: String,
}

/// How hosts are known to be who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostKeys {
    /// By these lines of a `known_hosts` (sshd(8)). A host that is none of them is not connected to.
    Known(String),
    /// A host that is in these lines by them, as [`Self::Known`]; another one's first key is believed, and kept in the run's folder.
    Recorded(String),
    /// The first key that a host has is believed, and kept in the run's folder.
    FirstContact,
}

/// How long and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// The whole run; then it is ended. A minute to a week.
    pub whole: Duration,
    /// How long a host may take to answer; then it counts as unreachable. 5 seconds to an hour.
    pub answer: Duration,
    /// Hosts at once; 1 to 100. Each is a process.
    pub forks: u16,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self::of(&KubesprayConfig::default())
    }
}

/// A run that is asked for.
pub struct RunRequest {
    /// Its name. The same name is the same run.
    pub id: RunId,
    /// What is run.
    pub playbook: Playbook,
    /// The inventory as text, in YAML or INI. Its values say what is run on the appliance (see [`RunVars`]); whoever makes it of
    /// what users wrote judges those.
    pub inventory: String,
    /// Further variables.
    pub vars: RunVars,
    /// Only these hosts; empty: all.
    pub limit: Vec<String>,
    /// Hosts that must have been reached for the run to have succeeded; with none of them, any one.
    pub expected: Vec<String>,
    /// Who Ansible is on hosts whose inventory does not say.
    pub user: Option<String>,
    /// The private key that it has there, as ssh reads it, without a passphrase.
    pub ssh_key: Option<SecretString>,
    /// How hosts are known.
    pub host_keys: HostKeys,
    /// What is replaced by `***` in output and messages. The key is.
    pub secrets: Vec<SecretString>,
    /// How long and how much.
    pub bounds: RunLimits,
    /// The object that it is of; none where a person asks for it.
    pub owner: Option<RunOwner>,
    /// The object that asks for it, where that is another one.
    pub requester: Option<RunOwner>,
}

/// Why something cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    /// The run's name is none.
    #[error("{0:?} is no name of a run: small letters, digits and hyphens within, at most {ID_MAX}")]
    Id(String),
    /// A name of a host is none, or a pattern.
    #[error("{0:?} is no name of a host")]
    Host(String),
    /// A user's name is none.
    #[error("{0:?} is no name of a user")]
    User(String),
    /// Nodes are to be removed, and none is named.
    #[error("remove-node removes nodes that are named, and none is")]
    NoNodes,
    /// Something is longer than it may be.
    #[error("{what} is longer than {most} bytes")]
    Long {
        /// What.
        what: &'static str,
        /// How long it may be.
        most: usize,
    },
    /// Too many of something.
    #[error("more than {most} {what}")]
    Many {
        /// What.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
    /// Nothing is in the inventory.
    #[error("the inventory is empty")]
    Empty,
    /// A bound is out of its range.
    #[error("{0}")]
    Bounds(&'static str),
}

impl RunRequest {
    /// Whether it can be run as it is.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong with it.
    pub fn check(&self) -> Result<(), RequestFault> {
        let nodes = match &self.playbook {
            Playbook::RemoveNode { nodes } if nodes.is_empty() => return Err(RequestFault::NoNodes),
            Playbook::RemoveNode { nodes } => nodes.as_slice(),
            _ => &[],
        };
        for (what, names) in [
            ("nodes", nodes),
            ("hosts in a limit", self.limit.as_slice()),
            ("expected hosts", self.expected.as_slice()),
        ] {
            if names.len() > HOSTS_MAX {
                return Err(RequestFault::Many { what, most: HOSTS_MAX });
            }
            if let Some(name) = names.iter().find(|name| !is_host(name)) {
                return Err(RequestFault::Host(name.chars().take(HOST_MAX).collect()));
            }
        }
        if let Some(user) = self.user.as_ref().filter(|user| !is_user(user)) {
            return Err(RequestFault::User(user.chars().take(40).collect()));
        }
        if self.inventory.trim().is_empty() {
            return Err(RequestFault::Empty);
        }
        let known = match &self.host_keys {
            HostKeys::Known(text) | HostKeys::Recorded(text) => text.len(),
            HostKeys::FirstContact => 0,
        };
        let key = self.ssh_key.as_ref().map_or(0, |key| key.expose_secret().len());
        let secret = self.secrets.iter().map(|secret| secret.expose_secret().len()).max().unwrap_or(0);
        for (what, long, most) in [
            ("the inventory", self.inventory.len(), INVENTORY_MAX),
            ("known_hosts", known, KNOWN_HOSTS_MAX),
            ("the key", key, KEY_MAX),
            ("a secret", secret, KEY_MAX),
        ] {
            if long > most {
                return Err(RequestFault::Long { what, most });
            }
        }
        if self.secrets.len() > SECRETS_MAX {
            return Err(RequestFault::Many { what: "secrets", most: SECRETS_MAX });
        }
        self.bounds.check()
    }
}

impl RunLimits {
    /// Those of the configuration.
    pub fn of(config: &KubesprayConfig) -> Self {
        Self { whole: config.timeout.0, answer: config.host_timeout.0, forks: config.forks }
    }

    fn check(&self) -> Result<(), RequestFault> {
        let seconds = Duration::from_secs;
        if !(seconds(60)..=seconds(7 * 24 * 3600)).contains(&self.whole) {
            return Err(RequestFault::Bounds("a run lasts a minute to a week"));
        }
        if !(seconds(5)..=seconds(3600)).contains(&self.answer) {
            return Err(RequestFault::Bounds("a host has 5 seconds to an hour to answer"));
        }
        if !(1..=100).contains(&self.forks) {
            return Err(RequestFault::Bounds("1 to 100 hosts at once"));
        }
        Ok(())
    }
}

/// Whether it is one host's name: no pattern of Ansible's (`all`, `a:b`, `!a`, `a*`), no list, no option.
fn is_host(name: &str) -> bool {
    let right = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    let reserved = ["all", "ungrouped"].contains(&name);
    name.len() <= HOST_MAX
        && name.bytes().all(right)
        && ends(name.bytes().next())
        && ends(name.bytes().last())
        && !reserved
}

fn is_user(name: &str) -> bool {
    let right = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    (1..=32).contains(&name.len()) && name.bytes().all(right) && !name.starts_with(['-', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> RunRequest {
        RunRequest {
            id: "a-1".parse().unwrap(),
            playbook: Playbook::Cluster,
            inventory: "all: {hosts: {a: }}".into(),
            vars: RunVars::default(),
            limit: Vec::new(),
            expected: Vec::new(),
            user: None,
            ssh_key: None,
            host_keys: HostKeys::FirstContact,
            secrets: Vec::new(),
            bounds: RunLimits::default(),
            owner: None,
            requester: None,
        }
    }

    #[test]
    fn a_name_of_a_run_leads_nowhere() {
        for good in ["a", "a-1", "0", &"a".repeat(ID_MAX)] {
            assert_eq!(good.parse::<RunId>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "a/b", "../a", "A", "a_b", "-a", "a-", "a b", "a\0", &"a".repeat(ID_MAX + 1)] {
            assert!(bad.parse::<RunId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        type Change = fn(&mut RunRequest);
        let rows: &[(Change, Option<&str>)] = &[
            (|_| {}, None),
            (|r| r.limit = vec!["w-1.example".into(), "10.0.0.1".into()], None),
            (|r| r.limit = vec!["all".into()], Some("no name of a host")),
            (|r| r.limit = vec!["a:b".into()], Some("no name of a host")),
            (|r| r.limit = vec!["@/etc/shadow".into()], Some("no name of a host")),
            (|r| r.limit = vec!["--become".into()], Some("no name of a host")),
            (|r| r.limit = vec![String::new()], Some("no name of a host")),
            (|r| r.expected = vec!["a".into(); HOSTS_MAX + 1], Some("more than 5000 expected hosts")),
            (|r| r.playbook = Playbook::RemoveNode { nodes: vec![] }, Some("none is")),
            (|r| r.playbook = Playbook::RemoveNode { nodes: vec!["a,b".into()] }, Some("no name of a host")),
            (|r| r.user = Some("-oProxyCommand=id".into()), Some("no name of a user")),
            (|r| r.user = Some("provision".into()), None),
            (|r| r.inventory = " \n".into(), Some("empty")),
            (|r| r.inventory = "x".repeat(INVENTORY_MAX + 1), Some("the inventory is longer")),
            (|r| r.ssh_key = Some("x".repeat(KEY_MAX + 1).into()), Some("the key is longer")),
            (|r| r.host_keys = HostKeys::Known("x".repeat(KNOWN_HOSTS_MAX + 1)), Some("known_hosts is longer")),
            (|r| r.secrets = vec!["x".into(); SECRETS_MAX + 1], Some("more than 200 secrets")),
            (|r| r.bounds.whole = Duration::from_secs(59), Some("a minute to a week")),
            (|r| r.bounds.answer = Duration::ZERO, Some("5 seconds to an hour")),
            (|r| r.bounds.forks = 101, Some("1 to 100")),
        ];
        for (number, (change, wanted)) in rows.iter().enumerate() {
            let mut request = request();
            change(&mut request);
            match (request.check(), wanted) {
                (Ok(()), None) => {}
                (Err(fault), Some(part)) => assert!(fault.to_string().contains(part), "{number}: {fault}"),
                (found, _) => panic!("{number}: {found:?}, wanted {wanted:?}"),
            }
        }
    }

    #[test]
    fn what_would_ask_a_person_is_answered() {
        let remove = Playbook::RemoveNode { nodes: vec!["a".into(), "b".into()] };
        let rows = [
            (Playbook::Cluster, "cluster.yml", json!({})),
            (Playbook::Scale, "scale.yml", json!({})),
            (remove, "remove-node.yml", json!({"node": "a,b", "skip_confirmation": true})),
            (
                Playbook::UpgradeCluster,
                "upgrade-cluster.yml",
                json!({"upgrade_node_confirm": false, "upgrade_node_post_upgrade_confirm": false}),
            ),
            (Playbook::Reset, "reset.yml", json!({"reset_confirmation": true, "skip_confirmation": true})),
        ];
        for ((playbook, file, vars), known) in rows.into_iter().zip(Playbook::FILES) {
            assert_eq!(playbook.file(), file);
            assert!(Playbook::FILES.contains(&file), "{known}");
            let said = RunVars::default().with(playbook.vars());
            assert_eq!(Value::Object(said.as_map().clone()), vars, "{file}");
        }
    }
}
