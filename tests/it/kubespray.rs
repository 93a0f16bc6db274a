//! `slipway kubespray`: a run from the command line, with a program in place of Ansible. What the real one does in a run is tried in
//! `src/kubespray/runs/tests`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const PLAYBOOKS: [&str; 5] = ["cluster.yml", "scale.yml", "remove-node.yml", "upgrade-cluster.yml", "reset.yml"];

/// Counts its starts, prints, and tells of a host that failed where the folder has a file `fail`.
const PROGRAM: &str = r#"#!/bin/sh
echo started >> ../artifacts/starts
echo "TASK [install]"
failures=0
if [ -e ../../../fail ]; then
  failures=1
  echo '{"event":"host","host":"one","result":"failed","task":"install","message":"no room"}' >> "$SLIPWAY_EVENTS"
fi
echo '{"event":"sums","host":"one","ok":1,"changed":1,"failures":'$failures',"unreachable":0}' >> "$SLIPWAY_EVENTS"
echo '{"event":"end","hosts":1}' >> "$SLIPWAY_EVENTS"
exit $((failures * 2))
"#;

/// A configuration with a checkout and an environment beside it.
fn place() -> tempfile::TempDir {
    let top = tempfile::tempdir().unwrap();
    let at = |name: &str| top.path().join(name);
    for folder in ["data", "tree/meta", "venv/bin", "venv/lib/python3.11/site-packages/ansible_core-2.18.19.dist-info"]
    {
        fs::create_dir_all(at(folder)).unwrap();
    }
    fs::set_permissions(at("data"), fs::Permissions::from_mode(0o700)).unwrap();
    PLAYBOOKS.iter().chain(&["ansible.cfg"]).for_each(|name| fs::write(at("tree").join(name), "").unwrap());
    fs::write(at("tree/galaxy.yml"), "version: 2.31.0\n").unwrap();
    fs::write(at("tree/meta/runtime.yml"), "requires_ansible: '>=2.18.0,<2.19.0'\n").unwrap();
    for name in ["python3", "ansible-playbook"] {
        fs::write(at("venv/bin").join(name), PROGRAM).unwrap();
        fs::set_permissions(at("venv/bin").join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::write(at("hosts.yaml"), "all: {hosts: {one: }}\n").unwrap();
    let text =
        format!("data_dir = {:?}\n[kubespray]\npath = {:?}\nansible = {:?}\n", at("data"), at("tree"), at("venv"));
    fs::write(at("slipway.toml"), text).unwrap();
    top
}

fn slipway(top: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command.args(arguments).env("SLIPWAY_CONFIG", top.join("slipway.toml")).current_dir(top).output().unwrap()
}

fn said(output: &Output, code: i32) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
    format!("{out}{err}")
}

#[test]
fn versions_are_named_and_those_that_do_not_fit_are_faults() {
    let top = place();
    let good = said(&slipway(top.path(), &["kubespray", "check"]), 0);
    assert!(
        good.contains("kubespray 2.31.0 in") && good.contains("ansible-core 2.18.19 (wanted: >=2.18.0,<2.19.0)"),
        "{good}"
    );
    said(&slipway(top.path(), &["check-config"]), 0);
    fs::write(top.path().join("tree/meta/runtime.yml"), "requires_ansible: '>=2.19'\n").unwrap();
    let fault = "has ansible-core 2.18.19, kubespray wants >=2.19: python3 -m venv";
    let run = ["kubespray", "run", "--playbook", "cluster", "--inventory", "hosts.yaml"];
    for arguments in [["kubespray", "check"].as_slice(), &["check-config"], &run] {
        let bad = said(&slipway(top.path(), arguments), 1);
        assert!(bad.contains(fault), "{arguments:?}: {bad}");
    }
    let bare = top.path().join("bare.toml");
    fs::write(&bare, format!("data_dir = {:?}\n", top.path().join("data"))).unwrap();
    let none = said(&slipway(top.path(), &["kubespray", "check", "--config", "bare.toml"]), 1);
    assert!(none.contains("names no kubespray"), "{none}");
}

#[test]
fn a_run_is_followed_listed_and_read() {
    let top = place();
    let run = ["kubespray", "run", "--playbook", "cluster", "--inventory", "hosts.yaml", "--id", "a-1"];
    let done = said(&slipway(top.path(), &run), 0);
    assert!(done.contains("run a-1 succeeded") && done.contains("one "), "{done}");
    // The same name is the same run.
    said(&slipway(top.path(), &run), 0);
    let folder = top.path().join("data/kubespray/a-1");
    assert_eq!(fs::read_to_string(folder.join("artifacts/starts")).unwrap(), "started\n");
    assert!(!folder.join("private").exists());
    let listed = said(&slipway(top.path(), &["kubespray", "list"]), 0);
    assert!(listed.contains("a-1") && listed.contains("cluster.yml") && listed.contains("succeeded"), "{listed}");
    assert_eq!(said(&slipway(top.path(), &["kubespray", "log", "a-1", "--follow"]), 0), "TASK [install]\n");
    let cancelled = said(&slipway(top.path(), &["kubespray", "cancel", "a-1"]), 0);
    assert!(cancelled.contains("had succeeded before"), "{cancelled}");
}

#[test]
fn a_run_that_failed_says_on_which_task_of_which_host() {
    let top = place();
    fs::write(top.path().join("data/fail"), "").unwrap();
    let run =
        ["kubespray", "run", "--playbook", "remove-node", "--node", "w-3", "--inventory", "hosts.yaml", "--id", "b"];
    let failed = said(&slipway(top.path(), &run), 1);
    assert!(failed.contains("one: install: no room") && failed.contains("failed on 1 of 1 hosts"), "{failed}");
    let rows: [(&[&str], i32, &str); 5] = [
        (&["kubespray", "log", "nobody"], 1, "there is no run nobody"),
        (&["kubespray", "log", "../b"], 1, "no name of a run"),
        (&["kubespray", "run", "--playbook", "remove-node", "--inventory", "hosts.yaml"], 1, "none is"),
        (
            &["kubespray", "run", "--playbook", "cluster", "--node", "w-3", "--inventory", "hosts.yaml"],
            2,
            "--node is for",
        ),
        (
            &["kubespray", "run", "--playbook", "cluster", "--inventory", "hosts.yaml", "--limit", "all"],
            1,
            "no name of a host",
        ),
    ];
    for (arguments, code, part) in rows {
        let text = said(&slipway(top.path(), arguments), code);
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
}
