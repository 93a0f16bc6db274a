//! The command line and the environment of a run: a pure function of what is asked for and where.
//!
//! Nothing of the appliance's environment is in it, and no secret: those are in files of the run's folder. What kubespray's
//! `ansible.cfg` sets is overridden where it does not fit: facts of all clusters in `/tmp`, a hundred tries to connect, host keys
//! that nobody checks ([settings](https://docs.ansible.com/ansible-core/2.18/reference_appendices/config.html)).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::folder::{
    ARTIFACTS, CACHE_PLUGINS, CREDENTIALS, EVENTS, INVENTORY, KEY, KNOWN_HOSTS, PLUGINS, SCRATCH, SECRETS, VARS,
};
use super::installation::Installation;
use super::request::{HostKeys, PATH, Playbook, RunOwner, RunRequest};
use super::vars::RunVars;

/// By this variable all processes of a run are known, however they were started: its value is the run's folder.
pub(super) const MARK: &str = "SLIPWAY_KUBESPRAY_RUN";
/// The name of our callback plugin, which is that of its file.
pub(super) const PLUGIN: &str = "slipway_events";
/// The one that keeps facts of nodes, and of what they say only facts.
pub(super) const FACTS_PLUGIN: &str = "slipway_facts";
/// The playbook that gathers what is to be known of all nodes, in the checkout.
const FACTS: &str = "playbooks/facts.yml";
/// What a supervisor does: a command and its bounds. Without secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SupervisorPlan {
    /// The playbook's file.
    pub playbook: String,
    /// The program, and its arguments.
    pub command: Vec<String>,
    /// What is run before it, if anything is: how that ends does not matter.
    #[serde(default)]
    pub before: Vec<String>,
    /// All of its environment.
    pub environment: BTreeMap<String, String>,
    /// Seconds that it may last.
    pub seconds: u64,
    /// Hosts that must have been reached.
    pub expected: Vec<String>,
    /// The object that it is of.
    #[serde(default)]
    pub owner: Option<RunOwner>,
    /// The object that asked for it, where that is another one.
    #[serde(default, rename = "asker")]
    pub requester: Option<RunOwner>,
    /// What of the box its processes do not see.
    #[serde(default)]
    pub hidden: Vec<PathBuf>,
    /// What of that they see all the same.
    #[serde(default)]
    pub shown: Vec<PathBuf>,
}

/// A path as text. Those that are none are refused before ([`utf8`]).
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Whether paths can be written in a plan, and mean in Ansible's settings what they are: lists are divided by colons.
pub(super) fn utf8(path: &Path) -> bool {
    path.to_str().is_some_and(|text| !text.contains([':', '\n', '%', '$', '{', '"']) && path.is_absolute())
}

/// What is to be done for a request, in this folder.
pub(super) fn plan(installation: &Installation, folder: &Path, request: &RunRequest) -> SupervisorPlan {
    let (python, ansible) = installation.programs();
    let mut command = vec![
        text(&python),
        text(&ansible),
        "--inventory".into(),
        text(&folder.join(INVENTORY)),
        "--extra-vars".into(),
        format!("@{}", text(&folder.join(VARS))),
        "--become".into(),
    ];
    let mut before = Vec::new();
    if !request.limit.is_empty() {
        let mut limit = request.limit.join(",");
        if request.playbook == Playbook::Scale {
            // As kubespray has it for new workers: it wants to know all nodes, and downloads on this box.
            before.clone_from(&command);
            before.push(text(&installation.tree.join(FACTS)));
            limit += ",localhost";
        }
        command.extend(["--limit".into(), limit]);
    }
    let above = if request.playbook == Playbook::Packages { folder } else { &installation.tree };
    command.push(text(&above.join(request.playbook.file())));
    SupervisorPlan {
        playbook: request.playbook.file().to_owned(),
        command,
        before,
        environment: environment(installation, folder, request),
        seconds: request.bounds.whole.as_secs(),
        expected: request.expected.clone(),
        owner: request.owner.clone(),
        requester: request.requester.clone(),
        hidden: installation.hidden.clone(),
        shown: vec![installation.tree.clone(), installation.environment.clone()],
    }
}

/// The variables of a run: what the site has, below what was asked for, below what the playbook and the folder say.
pub(super) fn vars(installation: &Installation, folder: &Path, request: &RunRequest) -> Map<String, Value> {
    let of_folder = [
        ("artifacts_dir", json!(text(&folder.join(ARTIFACTS)))),
        ("credentials_dir", json!(text(&folder.join(CREDENTIALS)))),
    ];
    let site = RunVars::default().with(installation.mirrors.vars());
    site.below(&request.vars).with(of_folder).with(request.playbook.vars()).as_map().clone()
}

fn environment(installation: &Installation, folder: &Path, request: &RunRequest) -> BTreeMap<String, String> {
    let bin = installation.environment.join("bin");
    let scratch = |name: &str| text(&folder.join(SCRATCH).join(name));
    let seconds = request.bounds.answer.as_secs();
    let mut set: BTreeMap<&str, String> = BTreeMap::from([
        (MARK, text(folder)),
        ("PATH", format!("{}:{PATH}", text(&bin))),
        ("VIRTUAL_ENV", text(&installation.environment)),
        ("HOME", scratch("home")),
        ("TMPDIR", scratch("tmp")),
        // Ansible refuses a locale that is not UTF-8.
        ("LANG", "C.UTF-8".into()),
        ("LC_ALL", "C.UTF-8".into()),
        ("PYTHONUNBUFFERED", "1".into()),
        // The checkout and the environment stay as they are.
        ("PYTHONDONTWRITEBYTECODE", "1".into()),
        ("PYTHONNOUSERSITE", "1".into()),
        ("ANSIBLE_CONFIG", text(&installation.tree.join("ansible.cfg"))),
        ("ANSIBLE_HOME", scratch("home/.ansible")),
        ("ANSIBLE_LOCAL_TEMP", scratch("tmp")),
        // As `~`, but on this box the run's own: with `~` Ansible looks up whose home it is.
        ("ANSIBLE_REMOTE_TMP", "$HOME/.ansible/tmp".into()),
        ("ANSIBLE_CACHE_PLUGINS", text(&folder.join(CACHE_PLUGINS))),
        ("ANSIBLE_CACHE_PLUGIN", FACTS_PLUGIN.into()),
        ("ANSIBLE_CACHE_PLUGIN_CONNECTION", scratch("facts")),
        ("ANSIBLE_CACHE_PLUGIN_TIMEOUT", "0".into()),
        ("ANSIBLE_RETRY_FILES_ENABLED", "False".into()),
        ("ANSIBLE_NOCOLOR", "True".into()),
        ("ANSIBLE_DISPLAY_ARGS_TO_STDOUT", "False".into()),
        // Other plugins of inventories run programs and evaluate templates.
        ("ANSIBLE_INVENTORY_ENABLED", "yaml,ini".into()),
        ("ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED", "True".into()),
        ("ANSIBLE_CALLBACK_PLUGINS", text(&folder.join(PLUGINS))),
        ("ANSIBLE_CALLBACKS_ENABLED", PLUGIN.into()),
        ("ANSIBLE_STDOUT_CALLBACK", "default".into()),
        ("ANSIBLE_FORKS", request.bounds.forks.to_string()),
        ("ANSIBLE_TIMEOUT", seconds.to_string()),
        ("ANSIBLE_SSH_RETRIES", "2".into()),
        ("ANSIBLE_HOST_KEY_CHECKING", "True".into()),
        ("ANSIBLE_SSH_ARGS", ssh_arguments(folder, seconds, &request.host_keys)),
        ("SLIPWAY_EVENTS", text(&folder.join(EVENTS))),
        ("SLIPWAY_SECRETS", text(&folder.join(SECRETS))),
    ]);
    if request.ssh_key.is_some() {
        set.insert("ANSIBLE_PRIVATE_KEY_FILE", text(&folder.join(KEY)));
    }
    if let Some(user) = &request.user {
        set.insert("ANSIBLE_REMOTE_USER", user.clone());
    }
    set.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// How ssh connects ([ssh_config(5)](https://man.openbsd.org/ssh_config)): by the run's own files and nobody's configuration or
/// agent, with an end for hosts that fall silent.
fn ssh_arguments(folder: &Path, seconds: u64, host_keys: &HostKeys) -> String {
    let known: PathBuf = folder.join(KNOWN_HOSTS);
    let strict = match host_keys {
        HostKeys::Known(_) => "yes",
        HostKeys::FirstContact | HostKeys::Recorded(_) => "accept-new",
    };
    let options = [
        "ConnectionAttempts=1".to_owned(),
        format!("ConnectTimeout={seconds}"),
        format!("ServerAliveInterval={}", (seconds / 4).clamp(5, 60)),
        "ServerAliveCountMax=4".into(),
        "BatchMode=yes".into(),
        "IdentityAgent=none".into(),
        "ForwardAgent=no".into(),
        "GlobalKnownHostsFile=/dev/null".into(),
        format!("UserKnownHostsFile={}", text(&known)),
        format!("StrictHostKeyChecking={strict}"),
        // A shared connection has a socket, by which a process of another run could command the node: nothing but the user's name protects it.
        "ControlMaster=no".into(),
        "ControlPath=none".into(),
    ];
    let quoted = options.into_iter().map(|option| format!("-o \"{option}\"")).collect::<Vec<_>>();
    format!("-F /dev/null {}", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use super::super::mirrors::Mirrors;
    use super::super::request::{Playbook, RunLimits};
    use super::*;

    fn installation() -> Installation {
        let mirrors = Mirrors { registry: None, files: Some("http://10.0.0.1/f".into()) };
        Installation { tree: "/opt/ks".into(), environment: "/opt/venv".into(), mirrors, hidden: vec!["/d".into()] }
    }

    fn request() -> RunRequest {
        RunRequest {
            id: "a-1".parse().unwrap(),
            playbook: Playbook::Scale,
            inventory: "x".into(),
            vars: RunVars::default().with([("artifacts_dir", json!("/elsewhere")), ("kube_version", json!("1.35.4"))]),
            limit: vec!["w-1".into(), "w-2".into()],
            expected: vec!["w-1".into()],
            user: Some("provision".into()),
            ssh_key: Some("a secret key".into()),
            host_keys: HostKeys::Known("a known host".into()),
            secrets: vec!["another secret".into()],
            bounds: RunLimits::default(),
            owner: None,
            requester: None,
        }
    }

    fn made(folder: &str, request: &RunRequest) -> SupervisorPlan {
        plan(&installation(), Path::new(folder), request)
    }

    #[test]
    fn the_command_line_is_the_playbook_with_files_of_the_run() {
        let plan = made("/data/kubespray/a-1", &request());
        assert_eq!(
            plan.command.join(" "),
            "/opt/venv/bin/python3 /opt/venv/bin/ansible-playbook --inventory /data/kubespray/a-1/private/inventory \
             --extra-vars @/data/kubespray/a-1/private/vars.json --become --limit w-1,w-2,localhost /opt/ks/scale.yml"
        );
        assert!(plan.before.join(" ").ends_with("vars.json --become /opt/ks/playbooks/facts.yml"), "{:?}", plan.before);
        assert_eq!((plan.seconds, plan.expected.as_slice()), (4 * 3600, ["w-1".to_owned()].as_slice()));
        let everybody = made("/data/kubespray/a-1", &RunRequest { limit: Vec::new(), ..request() });
        assert!(!everybody.command.iter().any(|argument| argument == "--limit") && everybody.before.is_empty());
    }

    #[test]
    fn no_secret_and_nothing_of_the_appliance_is_in_a_plan() {
        let text = serde_json::to_string(&made("/data/kubespray/a-1", &request())).unwrap();
        for secret in ["a secret key", "another secret", "a known host", "1.35.4"] {
            assert!(!text.contains(secret), "{secret}");
        }
        for own in ["CARGO", "SLIPWAY_CONFIG", "SSH_AUTH_SOCK", "http_proxy"] {
            assert!(!text.contains(own), "{own}");
        }
    }

    #[test]
    fn what_kubespray_sets_wrongly_for_this_is_overridden() {
        let plan = made("/data/kubespray/a-1", &request());
        let ssh = &plan.environment["ANSIBLE_SSH_ARGS"];
        for part in [
            "-F /dev/null",
            "\"ConnectTimeout=60\"",
            "\"ConnectionAttempts=1\"",
            "\"StrictHostKeyChecking=yes\"",
            "\"UserKnownHostsFile=/data/kubespray/a-1/known_hosts\"",
            "\"ControlMaster=no\"",
        ] {
            assert!(ssh.contains(part), "{part} in {ssh}");
        }
        assert_eq!(plan.environment["ANSIBLE_CACHE_PLUGIN_CONNECTION"], "/data/kubespray/a-1/scratch/facts");
        assert_eq!(plan.environment["ANSIBLE_CALLBACKS_ENABLED"], PLUGIN);
        let first = RunRequest { host_keys: HostKeys::FirstContact, user: None, ssh_key: None, ..request() };
        let plan = made("/data/kubespray/a-1", &first);
        assert!(plan.environment["ANSIBLE_SSH_ARGS"].contains("\"StrictHostKeyChecking=accept-new\""));
        assert!(!plan.environment.contains_key("ANSIBLE_PRIVATE_KEY_FILE"));
    }

    #[test]
    fn the_folders_and_the_playbooks_variables_go_before_others() {
        let folder = Path::new("/d/a");
        let remove = Playbook::RemoveNode { nodes: vec!["w-2".into()] };
        let own = request().vars.with([("github_url", json!("http://elsewhere"))]);
        let vars = vars(&installation(), folder, &RunRequest { playbook: remove, vars: own, ..request() });
        assert_eq!(
            Value::Object(vars),
            json!({
                "dl_k8s_io_url": "http://10.0.0.1/f/dl.k8s.io", "get_helm_url": "http://10.0.0.1/f/get.helm.sh",
                "storage_googleapis_url": "http://10.0.0.1/f/storage.googleapis.com", "github_url": "http://elsewhere",
                "artifacts_dir": "/d/a/artifacts", "credentials_dir": "/d/a/credentials",
                "kube_version": "1.35.4", "node": "w-2", "skip_confirmation": true,
            })
        );
    }

    #[test]
    fn a_path_that_a_setting_would_read_otherwise_is_none() {
        for (path, good) in [
            ("/a/b-c_d.e", true),
            ("/a b", true),
            ("a", false),
            ("/a:b", false),
            ("/a%b", false),
            ("/{{a}}", false),
            ("/a$b", false),
        ] {
            assert_eq!(utf8(Path::new(path)), good, "{path}");
        }
    }
}
