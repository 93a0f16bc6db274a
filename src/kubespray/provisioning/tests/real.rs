//! A checkout of kubespray, where `$SLIPWAY_KUBESPRAY` names one and `$ANSIBLE_VENV` has what it wants: what it says of inventories and
//! variables that are made here. No machine is connected to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::super::cluster_inventory::{NodePlace, cluster_inventory};
use super::super::wanted::{read, tests::object};
use crate::ansible::Reachable;
use crate::config::KubesprayConfig;
use crate::kubespray::runs::Mirrors;
use crate::needs;

/// Says what kubespray would download, on this box.
const DOWNLOADS: &str = "
- hosts: cp-1
  gather_facts: false
  connection: local
  vars: {ansible_become: false, ansible_python_interpreter: '{{ ansible_playbook_python }}'}
  tasks:
    - ansible.builtin.setup: {gather_subset: min}
    - ansible.builtin.import_role: {name: kubespray_defaults}
    - ansible.builtin.debug: {msg: \"{{ lookup('vars', item) }}\"}
      loop: [kubelet_download_url, containerd_download_url, helm_download_url, gvisor_runsc_download_url]
";

struct Checkout {
    tree: PathBuf,
    environment: PathBuf,
    folder: tempfile::TempDir,
}

impl Checkout {
    fn new() -> Self {
        let tree = std::env::var_os("SLIPWAY_KUBESPRAY").expect("it names a checkout").into();
        let environment = needs::ansible().expect("and this what it wants");
        Self { tree, environment, folder: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn play(&self, playbook: &Path, inventory: &str, vars: &Value, further: &[&str]) -> Output {
        let (inventory, vars) = (self.write("hosts.yaml", inventory), self.write("vars.json", &vars.to_string()));
        Command::new(self.environment.join("bin/ansible-playbook"))
            .arg("--inventory")
            .arg(inventory)
            .arg("--extra-vars")
            .arg(format!("@{}", vars.display()))
            .args(further)
            .arg(playbook)
            .current_dir(&self.tree)
            .env("ANSIBLE_CONFIG", self.tree.join("ansible.cfg"))
            .env("ANSIBLE_ROLES_PATH", self.tree.join("roles"))
            .env("ANSIBLE_CACHE_PLUGIN_CONNECTION", self.folder.path().join("facts"))
            .output()
            .unwrap()
    }
}

fn inventory() -> String {
    let spec = json!({"masters": [{"cp-1": {"cpu": 1}}, {"cp-2": {"cpu": 1}}, {"cp-3": {"cpu": 1}}],
        "workers": [{"w-1": {"cpu": 1}}, {"cp-2": null}], "PodSubnet": "10.233.64.0/18"});
    let cluster = read(&object(spec)).unwrap();
    let places: Vec<_> = (1..).map(|number| format!("192.0.2.{number}")).take(cluster.nodes.len()).collect();
    let place = |address: &String| NodePlace { address: Reachable::new(address).unwrap(), has_user: true };
    let places: Vec<_> = cluster.nodes.iter().zip(places.iter().map(place)).collect();
    cluster_inventory(&cluster, &places).unwrap().yaml()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
#[ignore = "needs a checkout of kubespray, which $SLIPWAY_KUBESPRAY names"]
fn kubesprays_own_checks_pass_over_our_inventory_and_fail_over_a_wrong_one() {
    let checkout = Checkout::new();
    let checks = checkout.tree.join("playbooks/boilerplate.yml");
    let output = checkout.play(&checks, &inventory(), &json!({}), &[]);
    assert!(output.status.success(), "{}", said(&output));
    // They are checks.
    let wrong = inventory().replace("10.233.64.0/18", "10.233.0.0/18");
    let output = checkout.play(&checks, &wrong, &json!({}), &[]);
    assert!(
        !output.status.success() && said(&output).contains("kube_pods_subnet cannot be the same"),
        "{}",
        said(&output)
    );
}

/// The plays of `ansible-playbook --list-hosts`: what each goes over, as the playbook says it, and which hosts these are.
fn plays(text: &str) -> Vec<(String, Vec<String>)> {
    let mut plays: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("  play #").filter(|(before, _)| before.is_empty()) {
            let over = rest.split_once('(').and_then(|(_, rest)| rest.split_once(')')).unwrap_or_default().0;
            plays.push((over.to_owned(), Vec::new()));
        } else if let (Some(host), Some((_, hosts))) = (line.strip_prefix("      "), plays.last_mut()) {
            hosts.push(host.trim().to_owned());
        }
    }
    plays.iter_mut().for_each(|(_, hosts)| hosts.sort());
    plays
}

#[test]
#[ignore = "needs a checkout of kubespray, which $SLIPWAY_KUBESPRAY names"]
fn each_play_goes_over_the_hosts_that_it_is_meant_for() {
    let checkout = Checkout::new();
    let masters = &["cp-1", "cp-2", "cp-3"][..];
    let all = &["cp-1", "cp-2", "cp-3", "w-1"][..];
    let first = &["cp-1"][..];
    let whole = &[
        ("k8s_cluster", all),
        ("kube_control_plane", masters),
        ("etcd:kube_control_plane:_kubespray_needs_etcd", masters),
        ("kube_node", &["cp-2", "w-1"][..]),
    ][..];
    let one = json!({"node": "w-1", "skip_confirmation": true});
    for (playbook, vars, further, wanted) in [
        ("cluster.yml", json!({}), &[][..], whole),
        ("upgrade-cluster.yml", json!({}), &[], whole),
        (
            "reset.yml",
            json!({"reset_confirmation": true, "skip_confirmation": true}),
            &[],
            &[("etcd:k8s_cluster:calico_rr", all)],
        ),
        // Of those that are there already only what all are told is done.
        (
            "scale.yml",
            json!({}),
            &["--limit", "w-1,localhost"],
            &[("k8s_cluster", &["w-1"][..]), ("kube_node", &["w-1"])],
        ),
        ("remove-node.yml", one, &[], &[("w-1", &["w-1"][..])]),
    ] {
        let list = [&["--list-hosts"], further].concat();
        let output = checkout.play(&checkout.tree.join(playbook), &inventory(), &vars, &list);
        assert!(output.status.success(), "{playbook}: {}", said(&output));
        let plays = plays(&said(&output));
        for (over, hosts) in wanted {
            let of_it: Vec<_> = plays.iter().filter(|(pattern, _)| pattern == over).collect();
            assert!(!of_it.is_empty(), "{playbook}: no play goes over {over}: {plays:?}");
            assert!(of_it.iter().all(|(_, found)| found == hosts), "{playbook}: {over}: {of_it:?}");
        }
        let firsts = plays.iter().filter(|(pattern, _)| pattern == "kube_control_plane[0]");
        assert!(firsts.into_iter().all(|(_, found)| found == first || found.is_empty()), "{playbook}: {plays:?}");
        // No play has hosts beside those of the inventory.
        let known = |host: &String| all.contains(&host.as_str()) || host == "localhost";
        assert!(plays.iter().flat_map(|(_, hosts)| hosts).all(known), "{playbook}: {plays:?}");
    }
}

#[test]
#[ignore = "needs a checkout of kubespray, which $SLIPWAY_KUBESPRAY names"]
fn what_is_downloaded_comes_from_the_site() {
    let checkout = Checkout::new();
    let (registry, files) = ("http://192.0.2.9", "http://192.0.2.9/packages/ks");
    let config =
        KubesprayConfig { registry: Some(registry.into()), files: Some(files.into()), ..KubesprayConfig::default() };
    let vars: Value = Mirrors::of(&config).vars().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let play = checkout.write("downloads.yml", DOWNLOADS);
    let output = checkout.play(&play, &inventory(), &vars, &[]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    for part in [
        "dl.k8s.io/release/v",
        "github.com/containerd/containerd/releases",
        "get.helm.sh/helm-v",
        "storage.googleapis.com/gvisor/",
    ] {
        assert!(text.contains(&format!("\"msg\": \"{files}/{part}")), "{part}: {text}");
    }
    // The role that tells containerd knows the variable, and its template the parts of it.
    let role = checkout.tree.join("roles/container-engine/containerd");
    let tasks = fs::read_to_string(role.join("tasks/main.yml")).unwrap();
    assert!(tasks.contains("loop: \"{{ containerd_registries_mirrors }}\""), "{tasks}");
    let template = fs::read_to_string(role.join("templates/hosts.toml.j2")).unwrap();
    let mirror = &vars["containerd_registries_mirrors"][0];
    for part in mirror.as_object().unwrap().keys().filter(|part| *part != "mirrors") {
        assert!(template.contains(&format!("item.{part}")), "{part}: {template}");
    }
    for part in mirror["mirrors"][0].as_object().unwrap().keys() {
        assert!(template.contains(&format!("mirror.{part}")), "{part}: {template}");
    }
}
