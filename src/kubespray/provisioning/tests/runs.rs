//! Runs of Provisionings: the real Ansible, playbooks on connections to this box, in a checkout like kubespray's.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::installer::run_id;
use super::super::login::{LoginError, Opener};
use super::*;
use crate::api::bpa::software::Software;
use crate::api::bpa::{ANNOTATION_CANCEL, ANNOTATION_RUN, LABEL_SSH_LOGIN, ProvisioningStatus};
use crate::cluster::workload::played_tests::Played;
use crate::kubespray::runs::tests::{Place, request, supervisor};
use crate::kubespray::runs::{RunOwner, RunRequest, RunVerdict, Runs};
use crate::needs;

/// What a play says that is done here instead of on a node.
const HERE: &str = "gather_facts: false\n  vars: {ansible_connection: local, ansible_become: false}\n  tasks:\n";
const NOTHING: &str = "    - {name: nothing, ansible.builtin.command: 'true', changed_when: false}\n";

fn play(hosts: &str, tasks: &str) -> String {
    format!("- hosts: {hosts}\n  {HERE}{tasks}")
}

/// An appliance with kubespray whose playbooks are these.
struct Rack {
    site: Site,
    place: Place,
    /// The API server of the cluster `edge`.
    played: Played,
}

impl Rack {
    /// `None` where there is no Ansible.
    async fn new(playbook: &str) -> Option<Self> {
        let environment = needs::ansible()?;
        let place = Place::with_tree(playbook);
        symlink(environment, place.environment()).unwrap();
        // Where a run may write: it makes no files beside its own.
        for name in ["starts", "facts", "removed"] {
            fs::write(place.top.path().join(name), "").unwrap();
        }
        let site = Site::with_controllers(0).await;
        site.runs.set(place.runs()).unwrap();
        let played = Played::default();
        site.workloads.play(NAMESPACE, "edge", played.client());
        Some(Self { site, place, played })
    }

    fn installer(&self) -> Arc<Installer> {
        let runs = Runs::open(&self.place.top.path().join("runs"), supervisor()).unwrap();
        Arc::new(Installer::new(runs, self.place.installation(), RunLimits::default(), 4).unwrap().answered(true))
    }

    fn control(&self) -> CancellationToken {
        self.site.control(Some(self.installer()))
    }

    fn write(&self, playbook: &str) {
        for name in ["cluster.yml", "scale.yml"] {
            fs::write(self.place.tree().join(name), playbook).unwrap();
        }
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.place.top.path().join(name)).unwrap_or_default()
    }

    fn top(&self) -> &Path {
        self.place.top.path()
    }

    /// A host that runs a system, at an address.
    async fn host(&self, number: u8) {
        let name = format!("h{number}");
        self.site.free(NAMESPACE, &name, number).await;
        let leased = json!([{"address": format!("10.0.0.{number}"), "macAddress": format!("52:54:00:00:00:{number:02x}"), "network": "n"}]);
        let status = json!({"provisioning": {"state": "provisioned"}, "addresses": leased});
        self.site.set(NAMESPACE, &name, status).await;
    }

    /// A cluster of a master and a worker whose hosts are there.
    async fn cluster(&self, name: &str) -> Provisioning {
        for number in [1, 2] {
            self.host(number).await;
        }
        let spec = json!({"masters": [node(1, "cp-1")], "workers": [node(2, "w-1")]});
        self.site.provisioning(name, spec).await.unwrap()
    }

    async fn status(&self, what: &str, met: impl Fn(&ProvisioningStatus) -> bool) -> ProvisioningStatus {
        let so = |one: Option<&Provisioning>| one.and_then(|one| one.status.as_ref()).is_some_and(&met);
        self.site.until("edge", what, so).await.unwrap().status.unwrap()
    }

    async fn annotate(&self, asked: &str) {
        let patch = json!({"metadata": {"annotations": {ANNOTATION_RUN: asked}}});
        let api = self.site.api::<Provisioning>();
        api.patch("edge", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
}

fn node(number: u8, name: &str) -> Value {
    json!({name: {"mac-address": format!("52:54:00:00:00:{number:02x}")}})
}

fn condition<'s>(status: &'s ProvisioningStatus, type_: &str) -> (&'s str, &'s str, &'s str) {
    let found = status.conditions.iter().find(|one| one.type_ == type_).unwrap();
    (&found.status, &found.reason, &found.message)
}

/// A key of a host, as ssh notes it.
fn host_key() -> String {
    let blob = [&[0, 0, 0, 11], b"ssh-ed25519".as_slice(), &[0, 0, 0, 32], &[7; 32]].concat();
    format!("ssh-ed25519 {}", STANDARD.encode(blob))
}

/// A task that leaves a kubeconfig whose user is this.
fn kubeconfig(rack: &Path, user: &str) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    let authority = STANDARD.encode(authority.pem());
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: 'https://10.0.0.1:6443', certificate-authority-data: {authority}}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]\n"
    );
    let file = rack.join("admin.conf");
    fs::write(&file, text).unwrap();
    let copy = format!("{{src: {}, dest: '{{{{ artifacts_dir }}}}/admin.conf', mode: '0600'}}", file.display());
    play("kube_control_plane", &format!("    - {{name: kubeconfig, ansible.builtin.copy: {copy}}}\n"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_is_installed_then_grows_and_its_kubeconfig_and_host_keys_are_kept() {
    let Some(rack) = Rack::new("").await else { return };
    let contact = format!(
        "    - {{name: contact, ansible.builtin.shell: 'echo {{{{ ip }}}} {} >> {{{{ artifacts_dir }}}}/../known_hosts', throttle: 1}}\n",
        host_key()
    );
    let truth = "    - {name: truth, ansible.builtin.assert: {that: kubeconfig_localhost is boolean}}\n";
    rack.write(&(play("all", &(contact + truth)) + &kubeconfig(rack.top(), "token: t")));
    fs::create_dir_all(rack.place.tree().join("playbooks")).unwrap();
    let facts = format!(
        "    - {{name: facts, ansible.builtin.shell: 'echo {{{{ inventory_hostname }}}} >> {}/facts', throttle: 1}}\n",
        rack.top().display()
    );
    fs::write(rack.place.tree().join("playbooks/facts.yml"), play("all", &facts)).unwrap();
    rack.control();
    let object = rack.cluster("edge").await;
    rack.site.says("edge", "Ready", "its kubeconfig is in the Secret edge-kubeconfig").await;
    // What the cluster says of its nodes is followed.
    rack.played.node("cp-1", "");
    let said = |text: &'static str| move |status: &ProvisioningStatus| condition(status, "NodesReady").2.contains(text);
    rack.status("says that w-1 is no node", said("w-1 is no Node of the cluster")).await;
    rack.played.fall_silent(Some("no route"));
    rack.played.node("w-1", "");
    let silent = rack.status("says that nobody answers", said("no route")).await;
    assert_eq!((condition(&silent, "NodesReady").0, silent.phase.as_str()), ("Unknown", "Ready"));
    rack.played.fall_silent(None);
    let are_ready = |status: &ProvisioningStatus| condition(status, "NodesReady").0 == "True";
    let status = rack.status("has nodes that are ready", are_ready).await;
    assert!(status.conditions.iter().all(|one| one.status == "True"), "{:?}", status.conditions);
    assert!(status.nodes.iter().all(|node| node.node_ready.as_deref() == Some("True")), "{:?}", status.nodes);
    let run = status.run.as_ref().unwrap();
    assert_eq!((run.number, run.playbook.as_str(), run.state.as_str()), (1, "cluster", "Succeeded"));
    assert_eq!((run.hosts_ok, run.hosts_failed, run.percent), (2, 0, Some(100)));
    assert_eq!(status.installed, ["cp-1", "w-1"]);
    assert_eq!(status.observed_generation, object.metadata.generation);
    for node in &status.nodes {
        let tasks = node.tasks.as_ref().unwrap();
        assert!(tasks.ok >= 2 && tasks.changed >= 1 && (tasks.failed, tasks.unreachable) == (0, 0), "{node:?}");
    }
    // Kept in a Secret, it lies nowhere else.
    let left = rack.place.runs().folder(&run_id(&object.uid().unwrap(), 1).unwrap()).join("artifacts/admin.conf");
    rack.site.until::<Provisioning>("edge", "has no kubeconfig in plain", |_| !left.exists()).await;
    let secret: Secret =
        rack.site.until("edge-kubeconfig", "is there", |one: Option<&Secret>| one.is_some()).await.unwrap();
    assert_eq!(secret.type_.as_deref(), Some("cluster.x-k8s.io/secret"));
    assert_eq!(Some(&secret.owner_references()[0].uid), object.uid().as_ref());
    assert!(text(&secret, "value").contains("https://10.0.0.1:6443"));
    let keys = |map: &ConfigMap| map.data.as_ref().unwrap()["known_hosts"].clone();
    let map: ConfigMap =
        rack.site.until("edge-known-hosts", "is there", |one: Option<&ConfigMap>| one.is_some()).await.unwrap();
    assert_eq!(keys(&map).lines().count(), 2, "{}", keys(&map));

    // One more worker: only it is touched, when all are known.
    rack.host(3).await;
    let more = json!({"spec": {"workers": [node(2, "w-1"), node(3, "w-2")]}});
    rack.site.api::<Provisioning>().patch("edge", &PatchParams::default(), &Patch::Merge(more)).await.unwrap();
    let status = rack.status("has w-2", |status| status.installed.len() == 3 && status.phase == "Ready").await;
    let run = status.run.as_ref().unwrap();
    assert_eq!((run.number, run.playbook.as_str(), run.hosts_ok), (2, "scale", 1));
    let mut known: Vec<_> = rack.file("facts").lines().map(str::to_owned).collect();
    known.sort();
    assert_eq!(known, ["cp-1", "w-1", "w-2"]);
    let runs = rack.place.runs();
    let id = run_id(&object.uid().unwrap(), 2).unwrap();
    assert_eq!(runs.status(&id).unwrap().progress.hosts.keys().collect::<Vec<_>>(), ["w-2"]);
    assert_eq!(runs.status(&id).unwrap().owner.unwrap().name, "edge");
    // What the first one learned it was given.
    assert_eq!(runs.known_hosts(&id).unwrap().lines().count(), 3);
    rack.site
        .until("edge-known-hosts", "has w-2's key", |map: Option<&ConfigMap>| keys(map.unwrap()).lines().count() == 3)
        .await;

    // An upgrade goes over all of them.
    fs::write(rack.place.tree().join("upgrade-cluster.yml"), play("k8s_cluster", NOTHING)).unwrap();
    rack.annotate("upgrade-cluster/1").await;
    let status = rack.status("is upgraded", |status| {
        status.phase == "Ready" && status.run.as_ref().is_some_and(|run| run.playbook == "upgrade-cluster")
    });
    let status = status.await;
    assert_eq!(status.run.as_ref().map(|run| (run.number, run.hosts_ok)), Some((3, 3)));
    // It left no kubeconfig: the one that is kept holds.
    assert_eq!(
        (condition(&status, "KubeconfigKept").0, status.kubeconfig.as_deref()),
        ("True", Some("edge-kubeconfig"))
    );

    let masters = json!({"spec": {"masters": [node(1, "cp-1"), node(4, "cp-2"), node(5, "cp-3")]}});
    let patched = rack.site.api::<Provisioning>().patch("edge", &PatchParams::default(), &Patch::Merge(masters)).await;
    assert!(refused(patched).contains("cp-2 is a new master"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_failed_is_told_without_secrets_and_is_repeated_when_somebody_asks() {
    let key = "{{ lookup(\"file\", artifacts_dir + \"/../private/id\").splitlines()[1] }}";
    let fails = format!(
        "    - {{name: count, ansible.builtin.shell: 'echo x >> {{{{ artifacts_dir }}}}/../../../starts'}}\n\
         \x20   - {{name: preflight, ansible.builtin.fail: {{msg: 'disk of {{{{ inventory_hostname }}}} too small {key}'}}, when: inventory_hostname == 'w-1'}}\n"
    );
    let Some(rack) = Rack::new("").await else { return };
    rack.write(&play("all", &fails));
    let first = rack.control();
    let object = rack.cluster("edge").await;
    let failed = rack.site.says("edge", "Failed", "w-1: preflight: disk of w-1 too small").await;
    let status = failed.status.clone().unwrap();
    let run = status.run.as_ref().unwrap();
    let failure = run.failure.as_ref().unwrap();
    assert_eq!((failure.host.as_str(), failure.task.as_str()), ("w-1", "preflight"));
    assert_eq!((run.state.as_str(), run.hosts_ok, run.hosts_failed), ("Failed", 1, 1));
    assert_eq!(condition(&status, "Installed").1, "Failed");
    let secret: Secret =
        rack.site.until("edge-ssh-key", "is there", |one: Option<&Secret>| one.is_some()).await.unwrap();
    let private = text(&secret, "ssh-privatekey");
    assert!(failure.message.contains("***"), "{failure:?}");
    assert!(
        private
            .lines()
            .filter(|line| line.len() > 10 && !line.starts_with('-'))
            .all(|line| !json!(failed).to_string().contains(line))
    );
    // What Ansible printed is read through the API, of this object and of no other of its name.
    let log = async |name: &str, query: &str| {
        let path = format!("/apis/bpa.akraino.org/v1alpha1/namespaces/{NAMESPACE}/provisionings/{name}/log{query}");
        rack.site.client.request_text(http::Request::get(path).body(Vec::new()).unwrap()).await
    };
    for query in ["", "?follow=true"] {
        let text = log("edge", query).await.unwrap();
        assert!(text.contains("PLAY RECAP") && text.contains("disk of w-1 too small ***"), "{text}");
    }
    rack.site.provisioning("other", json!({"masters": [{"m": {"cpu": 64}}]})).await.unwrap();
    for (name, query) in [("edge", "?previous=true"), ("other", ""), ("nobody", "")] {
        assert!(matches!(log(name, query).await, Err(kube::Error::Api(status)) if status.code == 404), "{name}{query}");
    }
    // Another controller does not repeat it either; who asks for it does.
    first.cancel();
    rack.control();
    rack.write(&play("all", NOTHING));
    rack.annotate("no-such/1").await;
    rack.site.says("edge", "Failed", "is no playbook and a word").await;
    assert_eq!(rack.place.runs().list().unwrap().len(), 1);
    rack.annotate("cluster/1").await;
    let status = rack.site.says("edge", "Ready", "no kubeconfig is kept").await.status.unwrap();
    assert_eq!(status.run.as_ref().map(|run| run.number), Some(2));
    assert_eq!(condition(&status, "KubeconfigKept").1, "Missing");
    let ids = [1, 2].map(|number| run_id(&object.uid().unwrap(), number).unwrap());
    let mut listed = rack.place.runs().list().unwrap();
    listed.sort();
    assert!(ids.iter().all(|id| listed.contains(id)) && listed.len() == 2, "{listed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_is_found_again_by_whoever_comes_after_and_is_begun_once() {
    let Some(rack) = Rack::new("").await else { return };
    let top = rack.top().display();
    let waits = format!(
        "    - {{name: wait, ansible.builtin.shell: 'echo x >> {top}/starts; while ! test -e {top}/go; do sleep 0.1; done', when: inventory_hostname == 'cp-1'}}\n"
    );
    rack.write(&play("all", &waits));
    let first = rack.control();
    rack.cluster("edge").await;
    let under_way =
        rack.status("is under way", |status| status.run.as_ref().is_some_and(|run| run.task == "wait")).await;
    let path = format!("/apis/bpa.akraino.org/v1alpha1/namespaces/{NAMESPACE}/provisionings/edge/log?follow=true");
    let client = rack.site.client.clone();
    let followed =
        tokio::spawn(
            async move { client.request_text(http::Request::get(path).body(Vec::new()).unwrap()).await.unwrap() },
        );
    assert_eq!((under_way.phase.as_str(), condition(&under_way, "Installed").1), ("Installing", "Running"));
    first.cancel();
    let (second, third) = (rack.control(), rack.control());
    let begun = async {
        while rack.file("starts").is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await
        }
    };
    tokio::time::timeout(Duration::from_secs(120), begun).await.unwrap();
    second.cancel();
    third.cancel();
    // It ends while nobody is there.
    fs::write(rack.top().join("go"), "").unwrap();
    let id = rack.place.runs().list().unwrap().remove(0);
    assert_eq!(rack.place.to_its_end(&id).await.verdict, Some(RunVerdict::Succeeded));
    rack.control();
    rack.site.says("edge", "Ready", id.as_str()).await;
    // Who followed it has all of it.
    let text = tokio::time::timeout(Duration::from_secs(120), followed).await.unwrap().unwrap();
    assert!(text.contains("TASK [wait]") && text.contains("PLAY RECAP"), "{text}");
    assert_eq!((rack.file("starts").lines().count(), rack.place.runs().list().unwrap().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_was_noted_and_not_begun_is_begun_under_its_name() {
    let Some(rack) = Rack::new("").await else { return };
    // Ansible itself ends well where no host matches.
    rack.write(&play("nowhere", NOTHING));
    let object = rack.cluster("edge").await;
    let uid = object.uid().unwrap();
    let appliance = rack.installer().appliance().to_owned();
    let run = json!({"number": 7, "id": "p-other", "playbook": "cluster", "appliance": appliance, "state": "Starting"});
    let patch = json!({"status": {"phase": "Installing", "run": run}});
    rack.site.api::<Provisioning>().patch_status("edge", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    rack.control();
    rack.site.says("edge", "Failed", "no host of the inventory was in any play").await;
    assert_eq!(rack.place.runs().list().unwrap(), [run_id(&uid, 7).unwrap()]);
    // Of one that was seen to run and is not there, nobody knows how it ended; it is not begun anew.
    rack.place.runs().remove(&run_id(&uid, 7).unwrap()).unwrap();
    let patch = json!({"status": {"run": {"state": "Running"}}});
    rack.site.api::<Provisioning>().patch_status("edge", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    let lost = rack.site.says("edge", "Failed", "is lost").await.status.unwrap();
    assert_eq!(condition(&lost, "Installed").1, "Lost");
    assert!(rack.place.runs().list().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_deleted_cluster_has_its_run_ended_before_its_hosts_are_let_go() {
    let Some(rack) = Rack::new("").await else { return };
    rack.write(&play("all", "    - {name: wait, ansible.builtin.command: sleep 600}\n"));
    rack.control();
    rack.cluster("edge").await;
    rack.status("is under way", |status| status.run.as_ref().is_some_and(|run| run.task == "wait")).await;
    let id = rack.place.runs().list().unwrap().remove(0);
    rack.site.api::<Provisioning>().delete("edge", &DeleteParams::background()).await.unwrap();
    let host = rack.site.host("h1", "is let go", |host| host.spec.consumer_ref.is_none()).await;
    assert!(!host.annotations().contains_key("bpa.akraino.org/node"));
    assert_eq!(rack.place.runs().status(&id).unwrap().verdict, Some(RunVerdict::Cancelled));
    rack.site.until("edge", "is gone", |one: Option<&Provisioning>| one.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_is_cancelled_by_its_name_and_what_is_cancelled_is_not_repeated() {
    let Some(rack) = Rack::new("").await else { return };
    rack.write(&play("all", "    - {name: wait, ansible.builtin.command: sleep 600}\n"));
    rack.control();
    rack.cluster("edge").await;
    let status = rack.status("is under way", |status| status.run.as_ref().is_some_and(|run| run.task == "wait")).await;
    let cancel = async |id: &str| {
        let patch = json!({"metadata": {"annotations": {ANNOTATION_CANCEL: id}}});
        let api = rack.site.api::<Provisioning>();
        api.patch("edge", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    let id = status.run.unwrap().id;
    cancel(&id).await;
    let status = rack.site.says("edge", "Failed", "was cancelled. It is not repeated by itself").await.status.unwrap();
    assert_eq!(condition(&status, "Installed").1, "Cancelled");
    assert_eq!(status.run.unwrap().number, 1);
    assert_eq!(rack.place.runs().list().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_checkout_that_cannot_be_used_is_waited_for_until_it_is_mended() {
    let Some(rack) = Rack::new("").await else { return };
    rack.write(&play("all", NOTHING));
    let runtime = rack.place.tree().join("meta/runtime.yml");
    fs::write(&runtime, "requires_ansible: '>=99'\n").unwrap();
    let first = rack.control();
    rack.cluster("edge").await;
    rack.site.says("edge", "InventoryReady", "cannot be run on this appliance").await;
    assert!(rack.place.runs().list().unwrap().is_empty());
    fs::write(&runtime, "requires_ansible: '>=2.16.0'\n").unwrap();
    // It looks again after a minute, and at its start.
    first.cancel();
    rack.control();
    rack.site.says("edge", "Ready", "no kubeconfig is kept").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_kubeconfig_that_runs_programs_is_refused_and_a_secret_of_others_is_left() {
    let Some(rack) = Rack::new("").await else { return };
    rack.write(
        &(play("all", NOTHING)
            + &kubeconfig(rack.top(), "exec: {command: sh, apiVersion: client.authentication.k8s.io/v1}")),
    );
    rack.control();
    rack.cluster("edge").await;
    let status = rack.site.says("edge", "Ready", "no kubeconfig is kept").await.status.unwrap();
    let (is, reason, message) = condition(&status, "KubeconfigKept");
    assert!((is, reason) == ("False", "Refused") && message.contains("exec"), "{message}");
    assert_eq!(rack.site.api::<Secret>().get_opt("edge-kubeconfig").await.unwrap(), None);
    // A good one, and somebody's Secret in its place.
    let foreign = json!({"metadata": {"name": "edge-kubeconfig"}, "stringData": {"value": "theirs"}});
    let foreign: Secret = rack.site.create_in(NAMESPACE, foreign).await.unwrap();
    rack.write(&(play("all", NOTHING) + &kubeconfig(rack.top(), "token: t")));
    rack.annotate("cluster/2").await;
    let status = rack
        .status("has a second run", |status| {
            status.run.as_ref().is_some_and(|run| run.number == 2 && run.state == "Succeeded")
        })
        .await;
    let (is, reason, message) = condition(&status, "KubeconfigKept");
    assert!((is, reason) == ("False", "NotKept") && message.contains("is not this object's"), "{message}");
    assert_eq!(rack.site.api::<Secret>().get("edge-kubeconfig").await.unwrap(), foreign);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_whose_object_is_gone_is_ended() {
    let Some(rack) = Rack::new("").await else { return };
    rack.write(&play("all", "    - {name: wait, ansible.builtin.command: sleep 600}\n"));
    let owner = RunOwner { namespace: NAMESPACE.into(), name: "edge".into(), uid: "another".into() };
    let request = RunRequest { owner: Some(owner), ..request("gone") };
    let installer = rack.installer();
    installer.begin(&request).await.unwrap();
    // Of the same name, and another one.
    rack.site.provisioning("edge", json!({"masters": [node(1, "cp-1")]})).await.unwrap();
    installer.look_after(rack.site.client.clone()).await.unwrap();
    assert_eq!(rack.place.to_its_end(&request.id).await.verdict, Some(RunVerdict::Cancelled));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_softwares_log_is_that_of_runs_that_it_asked_for() {
    let Some(rack) = Rack::new("").await else { return };
    let of = |uid: Option<String>, name: &str| RunOwner {
        namespace: NAMESPACE.into(),
        name: name.into(),
        uid: uid.unwrap_or_default(),
    };
    let edge = of(rack.cluster("edge").await.uid(), "edge");
    let mut softwares = Vec::new();
    for name in ["tools", "other"] {
        let object = json!({"metadata": {"name": name}, "spec": {"masterSoftware": ["jq"]}});
        let software: Software = rack.site.create_in(NAMESPACE, object).await.unwrap();
        softwares.push(of(software.uid(), name));
    }
    let task = |word: &str| play("all", &format!("    - {{name: say, ansible.builtin.debug: {{msg: {word}}}}}\n"));
    for (id, word, requester) in [("p-1", "installed", None), ("p-2", "packages", Some(softwares[0].clone()))] {
        rack.write(&task(word));
        let request = RunRequest { owner: Some(edge.clone()), requester, ..request(id) };
        rack.installer().begin(&request).await.unwrap();
        assert_eq!(rack.place.to_its_end(&request.id).await.verdict, Some(RunVerdict::Succeeded));
    }
    let log = async |path: &str| {
        let path = format!("/apis/bpa.akraino.org/v1alpha1/namespaces/{NAMESPACE}/{path}");
        rack.site.client.request_text(http::Request::get(path).body(Vec::new()).unwrap()).await
    };
    // Of the cluster both are, one after the other.
    for (path, word) in [
        ("softwares/tools/log?follow=true", "packages"),
        ("provisionings/edge/log", "packages"),
        ("provisionings/edge/log?previous=true", "installed"),
    ] {
        let text = log(path).await.unwrap();
        assert!(text.contains(word), "{path}: {text}");
    }
    for path in ["softwares/tools/log?previous=true", "softwares/other/log", "softwares/edge/log"] {
        assert!(matches!(log(path).await, Err(kube::Error::Api(status)) if status.code == 404), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_worker_that_is_taken_out_of_the_spec_leaves_the_cluster_and_then_its_host_is_let_go() {
    let Some(rack) = Rack::new("").await else { return };
    rack.write(&play("all", NOTHING));
    let removes = |task: &str| {
        let noted = "{{ node }} {{ inventory_hostname }} {{ reset_nodes | default(true) }} {{ groups[\"kube_node\"] | join(\"+\") }}";
        let note = format!(
            "    - {{name: note, ansible.builtin.shell: 'echo {noted} >> {}/removed'}}\n",
            rack.top().display()
        );
        fs::write(rack.place.tree().join("remove-node.yml"), play("'{{ node }}'", &(note + task))).unwrap();
    };
    removes("    - {name: drain, ansible.builtin.fail: {msg: 'a disruption budget'}}\n");
    rack.control();
    rack.host(3).await;
    rack.cluster("edge").await;
    let workers = async |workers: Value| {
        let patch = json!({"spec": {"workers": workers}});
        rack.site.api::<Provisioning>().patch("edge", &PatchParams::default(), &Patch::Merge(patch)).await
    };
    workers(json!([node(2, "w-1"), node(3, "w-2")])).await.unwrap();
    rack.status("has both workers", |status| status.installed.len() == 3 && status.phase == "Ready").await;
    assert!(refused(workers(json!([])).await).contains("the last worker stays"));
    assert!(refused(workers(json!([node(2, "w-1"), node(4, "w-2")])).await).contains("remove it"));

    workers(json!([node(2, "w-1")])).await.unwrap();
    let failed = rack.site.says("edge", "Failed", "a disruption budget").await.status.unwrap();
    assert!(failed.message.contains("--playbook remove-node-ungraceful"), "{}", failed.message);
    assert_eq!(failed.run.as_ref().map(|run| run.playbook.as_str()), Some("remove-node"));
    // Until it is out of the cluster the host is its node, and the node is told of.
    let host = rack.site.api::<BareMetalHost>().get("h3").await.unwrap();
    assert!(host.spec.consumer_ref.is_some() && failed.nodes.iter().any(|node| node.name == "w-2"));
    assert_eq!(failed.installed.len(), 3);

    removes("");
    rack.annotate("remove-node/1").await;
    rack.site.host("h3", "is let go", |host| host.spec.consumer_ref.is_none()).await;
    let status = rack.status("is two again", |status| status.phase == "Ready" && status.nodes.len() == 2).await;
    assert_eq!(status.installed, ["cp-1", "w-1"]);
    assert_eq!(rack.file("removed"), "w-2 w-2 True w-1+w-2\n".repeat(2));
    // It comes again, as another machine, and is dead then: nothing is asked of it.
    rack.host(4).await;
    workers(json!([node(2, "w-1"), node(4, "w-2")])).await.unwrap();
    rack.status("has w-2 again", |status| status.installed.len() == 3 && status.phase == "Ready").await;
    rack.site.set(NAMESPACE, "h4", json!({"errorMessage": "no power", "addresses": []})).await;
    let patch = json!({"metadata": {"annotations": {ANNOTATION_RUN: "remove-node-ungraceful/1"}}, "spec": {"workers": [node(2, "w-1")]}});
    rack.site.api::<Provisioning>().patch("edge", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    rack.status("is two once more", |status| status.phase == "Ready" && status.installed.len() == 2).await;
    rack.site.host("h4", "is let go", |host| host.spec.consumer_ref.is_none()).await;
    assert!(rack.file("removed").ends_with("w-2 w-2 False w-1+w-2\n"), "{}", rack.file("removed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn machines_that_do_not_answer_yet_are_waited_for() {
    let Some(rack) = Rack::new("").await else { return };
    rack.write(&play("all", NOTHING));
    let runs = Runs::open(&rack.top().join("runs"), supervisor()).unwrap();
    let silent = Installer::new(runs, rack.place.installation(), RunLimits::default(), 4).unwrap().answered(false);
    let first = rack.site.control(Some(Arc::new(silent)));
    rack.cluster("edge").await;
    let waits = rack.site.says("edge", "InventoryReady", "cp-1, w-1 do not answer SSH yet").await.status.unwrap();
    assert!(waits.run.is_none() && rack.place.runs().list().unwrap().is_empty());
    // Who asks for a run is told by the run.
    rack.annotate("cluster/1").await;
    rack.site.says("edge", "Ready", "installed by run").await;
    first.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn machines_of_others_are_opened_once_by_the_login_that_the_object_names() {
    let Some(rack) = Rack::new("").await else { return };
    rack.write(&play("all", NOTHING));
    let tried = Arc::new(Mutex::new(Vec::new()));
    let known = tried.clone();
    let opener: Opener = Arc::new(move |address, login, _, _, _| {
        let is_right = login.is("right-one");
        known.lock().unwrap().push((address.to_string(), is_right));
        let opened = match is_right {
            true => Ok(format!("{address} {}\n", host_key())),
            false => Err(LoginError::Refused("root is not let in: Permission denied".into())),
        };
        Box::pin(std::future::ready(opened))
    });
    let runs = Runs::open(&rack.top().join("runs"), supervisor()).unwrap();
    let installer = Installer::new(runs, rack.place.installation(), RunLimits::default(), 4).unwrap().answered(true);
    rack.site.control(Some(Arc::new(installer.opened_by(opener))));
    for number in [1, 2] {
        rack.host(number).await;
    }
    let spec = json!({"masters": [node(1, "cp-1")], "workers": [node(2, "w-1")], "credentialsName": "site-login"});
    rack.site.provisioning("edge", spec).await.unwrap();
    rack.site.says("edge", "InventoryReady", "there is no Secret site-login").await;
    let data = json!({"username": "root", "password": "wrong-one"});
    let secret = json!({"metadata": {"name": "site-login"}, "type": "kubernetes.io/basic-auth", "stringData": data});
    rack.site.create_in::<Secret>(NAMESPACE, secret).await.unwrap();
    // Nobody who may not read a Secret has it sent somewhere.
    rack.site.says("edge", "InventoryReady", "the Secret site-login is not meant for this").await;
    assert!(tried.lock().unwrap().is_empty());
    let change = async |patch: Value| {
        let api = rack.site.api::<Secret>();
        api.patch("site-login", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    change(json!({"metadata": {"labels": {LABEL_SSH_LOGIN: "true"}}})).await;
    rack.site
        .says("edge", "InventoryReady", "w-1: root is not let in: Permission denied. Mend the Secret site-login")
        .await;
    change(json!({"stringData": {"password": "right-one"}})).await;
    let status = rack.site.says("edge", "Ready", "installed by run").await.status.unwrap();
    let mut tried = tried.lock().unwrap().clone();
    tried.sort();
    let each = [("10.0.0.1", false), ("10.0.0.1", true), ("10.0.0.2", false), ("10.0.0.2", true)];
    assert_eq!(tried, each.map(|(address, is_right)| (address.to_owned(), is_right)));
    let inventory = status.hosts_yaml.as_ref().unwrap();
    assert_eq!(inventory.matches("\"ansible_user\": \"kubespray\"").count(), 2, "{inventory}");
    assert!(!json!(status).to_string().contains("-one"));
    let keys = |map: Option<&ConfigMap>| map.unwrap().data.as_ref().unwrap()["known_hosts"].lines().count();
    rack.site.until("edge-known-hosts", "has both", |map| keys(map) == 2).await;
}
