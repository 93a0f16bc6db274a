//! Softwares with the real Ansible, apt, dpkg and SSH: a node is a chroot over this box's own files, in a mount namespace of its own, so that
//! what is installed there is nowhere else. `kubectl` there is a stand-in, which notes what it is asked for.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Map, Value};

use super::*;
use crate::kubespray::provisioning::ssh_key;
use crate::kubespray::provisioning::tests::{NAMESPACE, Site};
use crate::kubespray::runs::tests::{Place as Checkout, supervisor};
use crate::kubespray::runs::{RunLimits, Runs};
use crate::needs;
use crate::runtime::{Watches, run};

/// How long anything may take here.
const DEADLINE: Duration = Duration::from_secs(180);

/// A node.
struct Node {
    folder: tempfile::TempDir,
    port: u16,
    server: Child,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

/// A package of nothing, in this version.
fn package(folder: &Path, name: &str, version: &str) -> String {
    let top = folder.join(format!("{name}-{version}"));
    fs::create_dir_all(top.join("DEBIAN")).unwrap();
    let control = format!(
        "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: nothing\n"
    );
    fs::write(top.join("DEBIAN/control"), &control).unwrap();
    let file = folder.join(format!("{name}_{version}_all.deb"));
    let built = Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&top).arg(&file).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let content = fs::read(&file).unwrap();
    let sum: String = sha2::Digest::finalize(sha2::Digest::chain_update(sha2::Sha256::default(), &content))
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!(
        "{control}Filename: ./{}\nSize: {}\nSHA256: {sum}\n\n",
        file.file_name().unwrap().to_str().unwrap(),
        content.len()
    )
}

impl Node {
    async fn start(authorized: &str) -> Option<Self> {
        let programs = ["ssh", "/usr/sbin/sshd", "unshare", "dpkg-deb", "apt-get"];
        if !needs::root() || !programs.iter().all(|program| needs::program(program)) {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display().to_string();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let archive = folder.path().join("archive");
        fs::create_dir(&archive).unwrap();
        let packages = [("slipway-one", "1.0"), ("slipway-one", "2.0"), ("slipway-two", "5:1~rc1")];
        let index: String = packages.iter().map(|(name, version)| package(&archive, name, version)).collect();
        fs::write(archive.join("Packages"), index).unwrap();
        fs::write(folder.path().join("authorized"), authorized).unwrap();
        let config = format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey /node/host\nAuthorizedKeysFile /node/authorized\nPidFile none\nStrictModes no\n\
             UsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n"
        );
        fs::write(folder.path().join("config"), config).unwrap();
        let kubectl = "#!/bin/sh\necho \"$@\" >>/node/kubectl.log\n\
            case \"$*\" in *\" drain \"*) [ ! -e /node/budget ] || { echo a disruption budget >&2; exit 1; };; *\" get \"*) cat /node/kept 2>/dev/null || printf /;; esac\nexit 0\n";
        fs::write(folder.path().join("kubectl"), kubectl).unwrap();
        let start = format!(
            "set -eu; umask 022; mount --make-rprivate /; ssh-keygen -q -t ed25519 -N '' -C '' -f {at}/host; mkdir {at}/top {at}/root; \
             mount -t tmpfs tmpfs {at}/top; mkdir {at}/top/up {at}/top/work; \
             mount -t overlay overlay -o lowerdir=/,upperdir={at}/top/up,workdir={at}/top/work {at}/root; \
             mkdir -p {at}/root/node; mount --bind {at} {at}/root/node; mount --rbind /dev {at}/root/dev; mount --bind /proc {at}/root/proc; \
             cd {at}/root; rm -rf etc/apt/sources.list etc/apt/sources.list.d etc/apt/apt.conf.d var/lib/apt/lists; mkdir -p etc/apt/apt.conf.d var/lib/apt/lists/partial run/sshd; \
             echo 'deb [trusted=yes] file:/node/archive ./' >etc/apt/sources.list; install -m 755 node/kubectl usr/local/bin/kubectl; \
             exec chroot . /usr/sbin/sshd -D -e -f /node/config"
        );
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &start]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut node = Self { port, server: command.spawn().unwrap(), folder };
        let listens = async {
            while !node.log().contains("Server listening") {
                assert!(node.server.try_wait().unwrap().is_none(), "{}", node.log());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, listens).await.expect("it listens");
        Some(node)
    }

    fn log(&self) -> String {
        self.file("log")
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }

    /// What kubectl was asked for since the last time, without its kubeconfig.
    fn asked(&self) -> Vec<String> {
        let said = self.file("kubectl.log");
        self.write("kubectl.log", "");
        said.lines().map(|line| line.replace("--kubeconfig /etc/kubernetes/admin.conf ", "")).collect()
    }
}

/// A cluster that is ready, of two nodes, and who looks at its Softwares.
struct Rack {
    site: Site,
    nodes: [Node; 2],
    checkout: Checkout,
    of: Provisioning,
    inventory: String,
}

impl Rack {
    async fn new() -> Option<Self> {
        let environment = needs::ansible()?;
        let key = ssh_key::generate("x").unwrap();
        let nodes = [Node::start(&key.public).await?, Node::start(&key.public).await?];
        let checkout = Checkout::with_tree("");
        std::os::unix::fs::symlink(&environment, checkout.environment()).unwrap();
        let site = Site::with_controllers(0).await;
        let spec = json!({"masters": [{"cp-1": {"cpu": 1}}], "workers": [{"w-1": {"cpu": 1}}]});
        let of = site.provisioning("edge", spec).await.unwrap();
        // As the keeper of Provisionings left it.
        let python = environment.join("bin/python3");
        let host = |node: &Node| json!({"ansible_host": "127.0.0.1", "ansible_port": node.port, "ansible_python_interpreter": python});
        let hosts = json!({"all": {"hosts": {"cp-1": host(&nodes[0]), "w-1": host(&nodes[1])},
            "children": {"kube_control_plane": {"hosts": {"cp-1": {}}}, "kube_node": {"hosts": {"w-1": {}}}}}});
        let status = json!({"phase": "Ready", "installed": ["cp-1", "w-1"], "hostsYaml": "made",
            "nodes": [{"name": "cp-1", "roles": ["master"]}, {"name": "w-1", "roles": ["worker"]}]});
        let api = site.api::<Provisioning>();
        let of = api
            .patch_status(&of.name_any(), &PatchParams::default(), &Patch::Merge(json!({ "status": status })))
            .await
            .unwrap();
        made::ssh_key(&site.client, &of).await.unwrap();
        let secret = json!({"stringData": {"ssh-privatekey": *key.private, "ssh-publickey": key.public}});
        site.api::<Secret>().patch("edge-ssh-key", &PatchParams::default(), &Patch::Merge(secret)).await.unwrap();
        let rack = Self { site, nodes, checkout, of, inventory: hosts.to_string() };
        rack.control();
        Some(rack)
    }

    fn control(&self) {
        let mut vars = Map::new();
        // Here root is let in, and nobody else is there.
        vars.insert("ansible_user".into(), "root".into());
        vars.insert("ansible_become".into(), false.into());
        look_after(&self.site, &self.checkout, vars, Some(self.inventory.clone()));
    }

    async fn software(&self, name: &str, spec: Value) {
        let object = json!({"metadata": {"name": name, "labels": {"cluster": "edge"}}, "spec": spec});
        self.site.create_in::<Software>(NAMESPACE, object).await.unwrap();
    }

    async fn says(&self, name: &str, phase: &str, text: &str) -> SoftwareStatus {
        let so = |one: Option<&Software>| {
            one.and_then(|one| one.status.as_ref())
                .is_some_and(|status| status.phase == phase && status.message.contains(text))
        };
        self.site.until(name, &format!("{phase}: {text}"), so).await.unwrap().status.unwrap()
    }

    async fn change(&self, name: &str, patch: Value) {
        self.site.api::<Software>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    fn folders(&self) -> Vec<PathBuf> {
        fs::read_dir(self.checkout.top.path().join("runs"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect()
    }
}

/// A controller of Softwares.
fn look_after(site: &Site, checkout: &Checkout, vars: Map<String, Value>, inventory: Option<String>) {
    let runs = Runs::open(&checkout.top.path().join("runs"), supervisor()).unwrap();
    let installer = Installer::new(runs, checkout.installation(), RunLimits::default(), 4).unwrap();
    let client = site.client.clone();
    let keeper = Arc::new(Provisionings::new(client.clone(), Some(Arc::new(installer)), site.workloads.clone()));
    let softwares = Arc::new(Softwares::new(keeper).played(Duration::from_millis(100), vars, inventory));
    let mut watches = Watches::default();
    let cache = crate::runtime::Cache::new(&mut watches, |object: &Software| Slim::from(object));
    let stop = site.shutdown.clone();
    tokio::spawn(watches.run(client, stop.clone()));
    tokio::spawn(async move { run(softwares, &cache, futures::stream::empty(), stop).await });
}

/// What is asked for of a node to which nothing is done.
fn looked(name: &str) -> Vec<String> {
    vec![format!(
        "get node {name} --output jsonpath={{.spec.unschedulable}}/{{.metadata.annotations.bpa\\.akraino\\.org/drained}}"
    )]
}

fn drained(name: &str) -> Vec<String> {
    let get = looked(name).remove(0);
    vec![
        get,
        format!("annotate --overwrite node {name} bpa.akraino.org/drained=true"),
        format!("drain {name} --ignore-daemonsets --delete-emptydir-data --timeout=300s"),
        format!("uncordon {name}"),
        format!("annotate node {name} bpa.akraino.org/drained-"),
    ]
}

/// Whoever may write a status has nothing run on the appliance by that.
#[tokio::test]
async fn an_inventory_that_somebody_wrote_into_a_status_is_not_run() {
    let (site, checkout) = (Site::with_controllers(0).await, Checkout::with_tree(""));
    let of = site.provisioning("edge", json!({"masters": [{"cp-1": {"cpu": 1}}]})).await.unwrap();
    let hosts = json!({"all": {"hosts": {"cp-1": {"ansible_connection": "local"}}, "children": {"kube_control_plane": {"hosts": {"cp-1": {}}}}}});
    let status = json!({"phase": "Ready", "installed": ["cp-1"], "hostsYaml": hosts.to_string(),
        "nodes": [{"name": "cp-1", "roles": ["master"]}]});
    let patch = Patch::Merge(json!({ "status": status }));
    site.api::<Provisioning>().patch_status("edge", &PatchParams::default(), &patch).await.unwrap();
    made::ssh_key(&site.client, &of).await.unwrap();
    look_after(&site, &checkout, Map::new(), None);
    let object =
        json!({"metadata": {"name": "tools", "labels": {"cluster": "edge"}}, "spec": {"masterSoftware": ["jq"]}});
    site.create_in::<Software>(NAMESPACE, object).await.unwrap();
    let waits = |one: Option<&Software>| {
        let status = one.and_then(|one| one.status.as_ref());
        status.is_some_and(|status| status.message.contains("Provisioning edge: node cp-1 has no host"))
    };
    let waits = site.until("tools", "waits for hosts", waits).await.unwrap();
    assert!(waits.status.unwrap().run.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "two nodes and some ten runs of Ansible over SSH want the machine for themselves: cargo test -- --ignored software"]
async fn packages_come_to_one_node_after_the_other_and_what_changed_is_told() {
    let Some(rack) = Rack::new().await else { return };
    let one = |version: &str| json!({"slipway-one": {"version": version}});
    rack.software("tools", json!({"masterSoftware": [one("1.0")], "workerSoftware": [one("1.0"), "slipway-two"]}))
        .await;
    let status = rack.says("tools", "Current", "3 packages changed on 2 nodes").await;
    let change =
        |name: &str, before: Option<&str>, after: &str| json!({"name": name, "before": before, "after": after});
    let told = |status: &SoftwareStatus| {
        let mut told = json!(status.nodes);
        for change in told
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .flat_map(|node| node["changed"].as_array_mut().into_iter().flatten())
        {
            change.as_object_mut().unwrap().entry("before").or_insert(Value::Null);
        }
        told
    };
    assert_eq!(
        told(&status),
        json!([{"name": "cp-1", "state": "Changed", "changed": [change("slipway-one", None, "1.0")]},
            {"name": "w-1", "state": "Changed", "changed": [change("slipway-one", None, "1.0"), change("slipway-two", None, "5:1~rc1")]}])
    );
    // Both were drained, by way of the first master.
    assert_eq!(rack.nodes[0].asked(), [drained("cp-1"), drained("w-1")].concat());
    assert!(rack.nodes[1].asked().is_empty());
    assert_eq!(status.cluster.as_deref(), Some("edge"));
    let run = status.run.unwrap();
    assert_eq!((run.number, run.state.as_str(), run.hosts_ok), (1, "Succeeded", 2));

    // Another version on the worker only: the master is left alone. A node that somebody keeps free stays so.
    rack.nodes[0].write("kept", "true/");
    rack.change("tools", json!({"spec": {"workerSoftware": [one("2.0"), "slipway-two"]}})).await;
    let status = rack.says("tools", "Current", "1 packages changed on w-1").await;
    assert_eq!(told(&status)[1]["changed"], json!([change("slipway-one", Some("1.0"), "2.0")]));
    assert_eq!(told(&status)[0]["state"], "Unchanged");
    let kept = [looked("cp-1"), looked("w-1"), vec![drained("w-1").remove(2)]].concat();
    assert_eq!(rack.nodes[0].asked(), kept);

    // What is not to be had is told, nothing is drained for it, and it is not tried again and again.
    rack.change("tools", json!({"spec": {"masterSoftware": [one("9.9")]}})).await;
    let failed = rack.says("tools", "Failed", "It is not repeated by itself").await;
    let failure = failed.run.as_ref().unwrap().failure.as_ref().unwrap();
    assert_eq!(failure.host, "cp-1");
    assert!(failure.message.contains("slipway-one=9.9"), "{failure:?}");
    assert!(rack.nodes[0].asked().is_empty());
    let runs = rack.folders().len();

    // A pod that may not go keeps its node, which has pods again.
    rack.nodes[0].write("kept", "/");
    rack.nodes[0].write("budget", "");
    rack.change("tools", json!({"spec": {"masterSoftware": [one("2.0")]}})).await;
    let failed = rack.says("tools", "Failed", "a disruption budget").await;
    assert_eq!(failed.nodes.iter().map(|node| node.state.as_str()).collect::<Vec<_>>(), ["Unknown", "Unknown"]);
    assert_eq!(rack.nodes[0].asked(), drained("cp-1"));
    assert_eq!(rack.folders().len(), runs + 1, "the one before was not repeated");
    // An earlier run broke off when it had drained the node.
    rack.nodes[0].write("kept", "true/true");
    fs::remove_file(rack.nodes[0].folder.path().join("budget")).unwrap();
    rack.change("tools", json!({"metadata": {"annotations": {"bpa.akraino.org/run": "again"}}})).await;
    rack.says("tools", "Current", "1 packages changed on cp-1").await;
    let nothing = [looked("w-1"), drained("w-1").split_off(3)].concat();
    assert_eq!(rack.nodes[0].asked(), [drained("cp-1"), nothing].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "two nodes and some ten runs of Ansible over SSH want the machine for themselves: cargo test -- --ignored software"]
async fn two_at_once_wait_for_each_other_and_a_node_that_vanishes_is_told() {
    let Some(mut rack) = Rack::new().await else { return };
    rack.software("one", json!({"workerSoftware": ["slipway-one"]})).await;
    rack.software("two", json!({"workerSoftware": ["slipway-two"]})).await;
    for name in ["one", "two"] {
        rack.says(name, "Current", "1 packages changed on w-1").await;
    }
    // Each was drained whole, and not one within the other.
    assert_eq!(rack.nodes[0].asked(), [drained("w-1"), drained("w-1")].concat());
    let wrong = rack
        .site
        .create_in::<Software>(NAMESPACE, json!({"metadata": {"name": "x"}, "spec": {"masterSoftware": ["-o"]}}))
        .await;
    assert!(wrong.is_err(), "{wrong:?}");
    // The machine is gone.
    rack.nodes[1].server.kill().unwrap();
    rack.nodes[1].server.wait().unwrap();
    rack.software("three", json!({"workerSoftware": ["slipway-one", "slipway-two"]})).await;
    let failed = rack.says("three", "Failed", "It is not repeated by itself").await;
    assert_eq!(failed.run.unwrap().failure.unwrap().host, "w-1");
    rack.site.api::<Software>().delete("three", &DeleteParams::default()).await.unwrap();
    rack.site.until("three", "is gone", |one: Option<&Software>| one.is_none()).await;
    assert_eq!(rack.of.name_any(), "edge");
}
