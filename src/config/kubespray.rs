//! `[kubespray]`: the checkout whose playbooks are run, and the Ansible that runs them.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::Span;

/// `[kubespray]`
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields, default)]
pub struct KubesprayConfig {
    /// Folder of a kubespray checkout; unset: no playbook is run.
    pub path: Option<PathBuf>,
    /// Folder of a virtual environment with the Ansible that this checkout wants.
    pub ansible: Option<PathBuf>,
    /// How long a run may last; a minute to a week.
    pub timeout: Span,
    /// How long a host may take to answer; 5 seconds to an hour.
    pub host_timeout: Span,
    /// Hosts at once, each with a process; 1 to 100.
    pub forks: u16,
    /// Runs of Provisionings at once, of a namespace half of them; 1 to 16.
    pub runs: u16,
    /// URL of the registry that nodes get all container images from; unset: from those that they are named after.
    pub registry: Option<String>,
    /// URL of the folder that nodes get files from, with a folder for each server; unset: from these servers.
    pub files: Option<String>,
}

impl Default for KubesprayConfig {
    fn default() -> Self {
        Self {
            path: None,
            ansible: None,
            timeout: Span(Duration::from_secs(4 * 3600)),
            host_timeout: Span(Duration::from_secs(60)),
            forks: 10,
            runs: 2,
            registry: None,
            files: None,
        }
    }
}

impl KubesprayConfig {
    /// What is wrong with it, one line for each fault.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (name, folder) in [("path", &self.path), ("ansible", &self.ansible)] {
            if let Some(folder) = folder.as_ref().filter(|folder| !folder.is_absolute()) {
                faults.push(format!("kubespray.{name} {folder:?} must be an absolute path"));
            }
        }
        if self.path.is_some() != self.ansible.is_some() {
            faults.push(
                "kubespray.path and kubespray.ansible: both are needed, a checkout and a virtual environment".into(),
            );
        }
        let seconds = Duration::from_secs;
        if !(seconds(60)..=seconds(7 * 24 * 3600)).contains(&self.timeout.0) {
            faults.push("kubespray.timeout must be 1m to 168h".into());
        }
        if !(seconds(5)..=seconds(3600)).contains(&self.host_timeout.0) {
            faults.push("kubespray.host_timeout must be 5s to 1h".into());
        }
        if !(1..=100).contains(&self.forks) {
            faults.push("kubespray.forks must be 1 to 100".into());
        }
        if !(1..=16).contains(&self.runs) {
            faults.push("kubespray.runs must be 1 to 16".into());
        }
        if self.registry.as_ref().is_some_and(|url| !is_url(url, false)) {
            faults.push(
                "kubespray.registry must be http://HOST or https://HOST, with a port or without, and no path".into(),
            );
        }
        if self.files.as_ref().is_some_and(|url| !is_url(url, true)) {
            faults.push("kubespray.files must be http://HOST/PATH or https://HOST/PATH of letters, digits, and -._~/ in the path".into());
        }
        faults
    }
}

/// Whether something is a URL that Ansible, a shell and containerd's configuration read as it is.
fn is_url(text: &str, may_have_path: bool) -> bool {
    let Ok(uri) = text.parse::<http::Uri>() else { return false };
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-._~/:[]".contains(char);
    matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.authority().is_some_and(|authority| !authority.as_str().contains('@') && !authority.host().is_empty())
        && text.chars().all(is_plain)
        && (may_have_path || matches!(uri.path(), "" | "/"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    #[test]
    fn a_checkout_needs_its_ansible() {
        for (text, wanted) in [
            ("", None),
            ("path = '/k'\nansible = '/a'", None),
            ("path = '/k'", Some("both are needed")),
            ("ansible = '/a'", Some("both are needed")),
            ("path = 'k'\nansible = '/a'", Some("kubespray.path \"k\" must be an absolute")),
            ("path = '/k'\nansible = 'a'", Some("kubespray.ansible \"a\" must be an absolute")),
            ("timeout = '59s'", Some("kubespray.timeout must be 1m to 168h")),
            ("host_timeout = '2h'", Some("kubespray.host_timeout must be 5s to 1h")),
            ("forks = 0", Some("kubespray.forks must be 1 to 100")),
            ("registry = 'http://10.0.0.1:5000/'\nfiles = 'https://files.site/packages/ks'", None),
            ("registry = 'http://10.0.0.1/v2'", Some("kubespray.registry must be http://HOST")),
            ("registry = '10.0.0.1:5000'", Some("kubespray.registry must be http://HOST")),
            ("files = 'file:///etc'", Some("kubespray.files must be http://HOST/PATH")),
            ("files = 'http://u:p@10.0.0.1/x'", Some("kubespray.files must be http://HOST/PATH")),
            ("files = 'http://10.0.0.1/{{ x }}'", Some("kubespray.files must be http://HOST/PATH")),
            ("files = 'http://10.0.0.1/?a=b'", Some("kubespray.files must be http://HOST/PATH")),
        ] {
            match (Config::parse(&format!("[kubespray]\n{text}"), Path::new("x.toml")), wanted) {
                (Ok(_), None) => {}
                (Err(error), Some(part)) if error.to_string().contains(part) => {}
                (result, _) => panic!("{text}: {:?}", result.err()),
            }
        }
    }
}
