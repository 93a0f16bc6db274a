//! Runs as whole processes: a program that stands in for Ansible where only processes are tried, and the real one.
//!
//! The supervisor is this test program again, with the test [`supervisor_process`], as the appliance's is `slipway`.

mod ansible;
mod crash;
mod ends;
mod inspected;
mod sshd;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::folder::{PLAN, PRIVATE, SCRATCH};
use super::*;

/// Whatever takes longer is stuck.
const DEADLINE: Duration = Duration::from_secs(120);

/// In the folder of all runs: the effect after which whoever brings it about is killed, once.
const CRASH: &str = "crash";

/// A supervisor, when it is started in a run's folder.
#[tokio::test]
async fn supervisor_process() {
    if Path::new(PLAN).exists() {
        let folder = std::env::current_dir().unwrap();
        supervise(&folder, |effect| crash_at(Path::new(".."), effect)).await.unwrap();
    }
}

/// Ends this process as a crash would, if it is to.
fn crash_at(root: &Path, effect: CrashPoint) {
    let file = root.join(CRASH);
    if fs::read_to_string(&file).is_ok_and(|at| at == format!("{effect:?}")) {
        fs::remove_file(&file).unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    }
}

pub(in crate::kubespray) fn supervisor() -> RunSupervisor {
    let name = module_path!().split_once("::").unwrap().1;
    let arguments = ["--exact".into(), format!("{name}::supervisor_process").into(), "--nocapture".into()];
    RunSupervisor { program: std::env::current_exe().unwrap(), arguments: arguments.into() }
}

/// A folder for runs, and beside it a checkout and an environment.
pub(in crate::kubespray) struct Place {
    pub(in crate::kubespray) top: tempfile::TempDir,
}

impl Place {
    /// With a program in place of Ansible: a shell script, in a run's folder `scratch`.
    fn with_program(script: &str) -> Self {
        let place = Self::with_tree("- hosts: all\n");
        let bin = place.environment().join("bin");
        fs::create_dir_all(&bin).unwrap();
        for name in ["python3", "ansible-playbook"] {
            fs::write(bin.join(name), format!("#!/bin/sh\n{script}")).unwrap();
            fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        place
    }

    /// With a checkout like kubespray's, whose playbooks are all this one.
    pub(in crate::kubespray) fn with_tree(playbook: &str) -> Self {
        let place = Self { top: tempfile::tempdir().unwrap() };
        let tree = place.tree();
        fs::create_dir_all(tree.join("meta")).unwrap();
        for name in Playbook::FILES {
            fs::write(tree.join(name), playbook).unwrap();
        }
        fs::write(tree.join("meta/runtime.yml"), "---\nrequires_ansible: '>=2.16.0'\n").unwrap();
        fs::write(tree.join("galaxy.yml"), "version: 2.99.0\n").unwrap();
        fs::write(tree.join("requirements.txt"), "").unwrap();
        // As kubespray's own has it, and what is overridden: facts of all clusters in one place, no host keys, a hundred attempts.
        let settings = format!(
            "[ssh_connection]\nssh_args = -o ControlMaster=auto -o ControlPersist=30m -o ConnectionAttempts=100 -o UserKnownHostsFile=/dev/null\n\
             [defaults]\nhost_key_checking = False\ngathering = smart\nfact_caching = jsonfile\nfact_caching_connection = {}\n\
             fact_caching_timeout = 86400\ncallbacks_enabled = profile_tasks\ndisplay_skipped_hosts = no\n\
             inventory_ignore_extensions = ~, .orig, .bak, .ini, .cfg, .retry, .pyc, .pyo, .creds, .gpg\n",
            place.facts_of_all().display()
        );
        fs::write(tree.join("ansible.cfg"), settings).unwrap();
        place
    }

    /// Where the checkout's `ansible.cfg` wants facts kept, for all clusters.
    fn facts_of_all(&self) -> PathBuf {
        self.top.path().join("facts-of-all")
    }

    pub(in crate::kubespray) fn tree(&self) -> PathBuf {
        self.top.path().join("kubespray")
    }

    pub(in crate::kubespray) fn environment(&self) -> PathBuf {
        self.top.path().join("venv")
    }

    fn root(&self) -> PathBuf {
        self.top.path().join("runs")
    }

    pub(in crate::kubespray) fn runs(&self) -> Runs {
        Runs::open(&self.root(), supervisor()).unwrap()
    }

    pub(in crate::kubespray) fn installation(&self) -> Installation {
        let hidden = vec![self.root()];
        Installation { tree: self.tree(), environment: self.environment(), mirrors: Mirrors::default(), hidden }
    }

    /// To the end, whoever looks after it.
    pub(in crate::kubespray) async fn to_its_end(&self, id: &RunId) -> RunStatus {
        tokio::time::timeout(DEADLINE, self.runs().follow(id, |_| {})).await.expect("in time").unwrap()
    }

    /// Until a file of the run is there.
    async fn until(&self, id: &RunId, name: &str) -> PathBuf {
        let file = self.root().join(id.as_str()).join(name);
        let there = async {
            while !file.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, there).await.unwrap_or_else(|_| panic!("no {}", file.display()));
        file
    }

    /// How often the program was started.
    fn starts(&self, id: &RunId) -> usize {
        fs::read_to_string(self.root().join(id.as_str()).join("artifacts/starts"))
            .map_or(0, |text| text.lines().count())
    }

    /// Nothing is left of a run that only a running one needs.
    fn assert_tidy(&self, id: &RunId) {
        let folder = self.root().join(id.as_str());
        assert!(!folder.join(PRIVATE).exists() && !folder.join(SCRATCH).exists(), "keys are removed");
        assert_eq!(super::processes::members(&folder), Vec::<i32>::new(), "nothing of it runs");
    }
}

pub(in crate::kubespray) fn request(id: &str) -> RunRequest {
    RunRequest {
        id: id.parse().unwrap(),
        playbook: Playbook::Cluster,
        inventory: "all:\n  hosts:\n    one: {ansible_connection: local, ansible_become: false}\n".into(),
        vars: RunVars::default(),
        limit: Vec::new(),
        expected: vec!["one".into()],
        user: None,
        ssh_key: Some("a key of some length".into()),
        host_keys: HostKeys::FirstContact,
        secrets: Vec::new(),
        bounds: RunLimits::default(),
        owner: None,
        requester: None,
    }
}

/// A program that counts its starts and tells of a good end.
const GOOD: &str = r#"echo started >> ../artifacts/starts
echo 'PLAY [all]'
echo '{"event":"sums","host":"one","ok":1,"changed":0,"failures":0,"unreachable":0}' >> "$SLIPWAY_EVENTS"
echo '{"event":"end","hosts":1}' >> "$SLIPWAY_EVENTS"
"#;
