//! An appliance with machines, and a node of one of them.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, CustomResourceExt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use slipway::api::lcm::LCMMachine;
use tokio::process::{Child, Command};

use crate::process::{Appliance, DEADLINE, program, until};

/// Namespace of all machines.
pub const NAMESPACE: &str = "rack";

/// An appliance whose administrator makes machines by hand.
pub struct Site {
    pub appliance: Appliance,
    pub admin: Client,
}

impl Site {
    pub async fn new(more: &str) -> Self {
        slipway::appliance::install_tls_provider();
        let appliance = Appliance::with(more).await;
        let admin = appliance.client().await;
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(NAMESPACE.into()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        Api::all(admin.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let machines = Api::<LCMMachine>::namespaced(admin.clone(), NAMESPACE);
        if machines.list(&Default::default()).await.is_err() {
            let crds = Api::<CustomResourceDefinition>::all(admin.clone());
            crds.create(&PostParams::default(), &LCMMachine::crd()).await.unwrap();
            until("the kind is served", async || machines.list(&Default::default()).await.ok()).await;
        }
        Self { appliance, admin }
    }

    pub fn machines(&self) -> Api<LCMMachine> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    /// A machine with its account, and its node.
    pub async fn node(&self, name: &str) -> Node {
        let machine: LCMMachine = serde_json::from_value(json!({
            "apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMMachine", "metadata": {"name": name}, "spec": {},
        }))
        .unwrap();
        self.machines().create(&PostParams::default(), &machine).await.unwrap();
        let token = self.account(name).await;
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let node = Node {
            name: name.to_owned(),
            machines: self.machines(),
            top: folder.path().canonicalize().unwrap(),
            _folder: folder,
        };
        let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
        node.write("root/etc/passwd", &format!("root:x:{uid}:{gid}:root:/root:/bin/bash\n"));
        std::fs::create_dir_all(node.path("root/root")).unwrap();
        node.write("token", &token);
        let ca = std::fs::read_to_string(self.appliance.data().join("pki/ca.crt")).unwrap();
        let config = json!({
            "server": format!("https://{}", self.appliance.address), "caCertificate": ca, "namespace": NAMESPACE,
            "name": name, "tokenFile": node.path("token"), "stateFolder": node.path("state"),
            "runFolder": node.path("run"), "root": node.path("root"), "rebootCommand": ["/bin/false"],
            "pauses": {"heartbeat": 5000, "retryLeast": 200, "retryMost": 1000, "callLeast": 50, "callMost": 1000,
                "grace": 500, "trial": 20000},
        });
        node.write("node.json", &config.to_string());
        node
    }

    /// The account of a machine, with the rights that docs/design/release.md gives it; its token.
    async fn account(&self, name: &str) -> String {
        let account = format!("lcm-{name}");
        let metadata = ObjectMeta { name: Some(account.clone()), ..ObjectMeta::default() };
        let create = PostParams::default();
        let accounts = Api::<ServiceAccount>::namespaced(self.admin.clone(), NAMESPACE);
        let made = ServiceAccount { metadata: metadata.clone(), ..ServiceAccount::default() };
        accounts.create(&create, &made).await.unwrap();
        let rule = |group: &str, resource: &str, of: &str, verbs: &[&str]| PolicyRule {
            api_groups: Some(vec![group.into()]),
            resources: Some(vec![resource.into()]),
            resource_names: Some(vec![of.into()]),
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            ..PolicyRule::default()
        };
        let lcm = "lcm.mirantis.com";
        let role = Role {
            metadata: metadata.clone(),
            rules: Some(vec![
                rule(lcm, "lcmmachines", name, &["get", "list", "watch"]),
                rule(lcm, "lcmmachines/status", name, &["get", "patch"]),
                rule(lcm, "lcmmachines/deployment", name, &["get"]),
                rule("", "serviceaccounts/token", &account, &["create"]),
            ]),
        };
        Api::<Role>::namespaced(self.admin.clone(), NAMESPACE).create(&create, &role).await.unwrap();
        let binding = RoleBinding {
            metadata,
            role_ref: RoleRef {
                api_group: "rbac.authorization.k8s.io".into(),
                kind: "Role".into(),
                name: account.clone(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".into(),
                name: account.clone(),
                namespace: Some(NAMESPACE.into()),
                ..Subject::default()
            }]),
        };
        Api::<RoleBinding>::namespaced(self.admin.clone(), NAMESPACE).create(&create, &binding).await.unwrap();
        let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": 86400}});
        let request = http::Request::post(format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"))
            .header("content-type", "application/json")
            .body(asked.to_string().into_bytes())
            .unwrap();
        let answer: Value = self.admin.request(request).await.unwrap();
        answer["status"]["token"].as_str().unwrap().to_owned()
    }
}

/// A node: a folder with what it is and has.
pub struct Node {
    pub name: String,
    machines: Api<LCMMachine>,
    top: PathBuf,
    _folder: tempfile::TempDir,
}

impl Node {
    pub fn path(&self, name: &str) -> PathBuf {
        self.top.join(name)
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Changes its configuration.
    pub fn set(&self, field: &str, value: Value) {
        let mut config: Value = serde_json::from_str(&self.read("node.json")).unwrap();
        config[field] = value;
        self.write("node.json", &config.to_string());
    }

    /// Merges into the spec, as `lcm` would.
    pub async fn write_spec(&self, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.machines.patch(&self.name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Its status; null while the appliance is away.
    pub async fn status(&self) -> Value {
        let machine = self.machines.get(&self.name).await;
        machine.map_or(Value::Null, |machine| serde_json::to_value(machine.status).unwrap())
    }

    /// Waits until a step is done.
    pub async fn done(&self, step: &str) {
        until(&format!("{step} is done"), async || {
            (self.status().await["stateItemStatuses"][step]["exitCode"] == 0).then_some(())
        })
        .await;
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg("node").arg("--config").arg(self.path("node.json"));
        self.quiet(&mut command);
        command
    }

    fn quiet(&self, command: &mut Command) {
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
    }

    /// Its agent.
    pub fn start(&self) -> NodeAgent {
        self.start_program(&program())
    }

    /// Its agent, of another program.
    pub fn start_program(&self, program: &Path) -> NodeAgent {
        NodeAgent(self.command(program).spawn().unwrap())
    }

    /// Its agent, whose state is on a file system of this size; none where there can be none.
    pub async fn start_on_a_small_disk(&self, size: &str) -> Option<NodeAgent> {
        std::fs::create_dir_all(self.path("state")).unwrap();
        let script = "mount -t tmpfs -o size=$1 small \"$0\" && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--user", "--map-root-user", "sh", "-c", script]);
        command.arg(self.path("state")).arg(size).arg(program());
        command.arg("node").arg("--config").arg(self.path("node.json"));
        self.quiet(&mut command);
        let mut agent = NodeAgent(command.spawn().unwrap());
        tokio::select! {
            _ = agent.0.wait() => None,
            () = until("it runs", async || self.path("run/contact.json").exists().then_some(())) => Some(agent),
        }
    }

    /// A command of the agent's, to its end.
    pub async fn slipway(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(program());
        command.arg("node").args(arguments).arg("--config").arg(self.path("node.json")).kill_on_drop(true);
        tokio::time::timeout(DEADLINE, command.output()).await.expect("the command ends").unwrap()
    }
}

/// The process of an agent.
pub struct NodeAgent(Child);

impl NodeAgent {
    pub fn pid(&self) -> u32 {
        self.0.id().unwrap()
    }

    /// Ends it.
    pub async fn end(mut self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.pid()).unwrap()), signal).unwrap();
        let status = tokio::time::timeout(DEADLINE, self.0.wait()).await.expect("it ends").unwrap();
        assert_eq!(status.success(), signal == Signal::SIGTERM, "{status}");
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self) {
        tokio::time::timeout(DEADLINE, self.0.wait()).await.expect("it ends").unwrap();
    }

    /// What it takes, as the kernel says it.
    pub fn memory(&self) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let lines = text.lines().filter(|line| ["VmRSS", "RssAnon", "RssFile"].iter().any(|key| line.starts_with(key)));
        lines.collect::<Vec<_>>().join(", ")
    }

    /// A path, as it is in the agent's own file systems.
    pub fn inside(&self, path: &Path) -> PathBuf {
        Path::new("/proc").join(self.pid().to_string()).join("root").join(path.strip_prefix("/").unwrap())
    }
}

/// A step of bash.
pub fn bash(name: &str, phase: &str, script: &str) -> Value {
    json!({"name": name, "runner": "bash", "phase": phase, "params": {"script": script}})
}

/// A script that writes a line.
pub fn line(path: &Path) -> String {
    format!("echo x >> {}", path.display())
}
