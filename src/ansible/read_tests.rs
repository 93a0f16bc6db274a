//! Both renderings, read by Ansible itself.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::*;
use crate::needs;

/// Texts that a shell, Python or YAML takes for something else.
const TRAPS: [&str; 41] = [
    "",
    " ",
    "a b",
    " a ",
    "a=b",
    "a#b",
    "# a",
    ";a",
    "'",
    "\"",
    "\\",
    "\\n",
    "'\"'\"'",
    "a'b\"c\\d",
    "0",
    "-1",
    "010",
    "0x1f",
    "1e3",
    "1_000",
    "1.5",
    "12:34:56",
    "12:34:56:12:34:56",
    "True",
    "true",
    "yes",
    "off",
    "None",
    "null",
    "~",
    "...",
    "[1]",
    "{}",
    "{\"a\": 1}",
    "(1,)",
    "a\nb",
    "a\r\n[all:vars]\nansible_connection=local",
    "a\u{2028}b\u{85}c",
    "ä\u{1f980}",
    "!unsafe x",
    "2001:db8::1",
];

fn list(program: &Path, folder: &Path, file: &str, text: &str) -> Value {
    fs::write(folder.join(file), text).unwrap();
    let out = Command::new(program)
        .args(["-i", file, "--list"])
        .current_dir(folder)
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .env("HOME", folder)
        .env("LC_ALL", "C.UTF-8")
        .env("ANSIBLE_LOCAL_TEMP", folder)
        // Anything that is not read as it should be is an error.
        .env("ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !said.contains("WARNING"), "{said}\n{text}");
    serde_json::from_slice(&out.stdout).unwrap()
}

/// As Ansible reads both, which must be the same.
fn read(program: &Path, inventory: &Inventory) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let mut ini = list(program, folder.path(), "hosts", &inventory.ini());
    let mut yaml = list(program, folder.path(), "hosts.yaml", &inventory.yaml());
    // A group that is below another one is said to be right below `all`, too, in YAML only: it is there either way.
    for read in [&mut ini, &mut yaml] {
        read["all"].as_object_mut().map(|all| all.remove("children"));
    }
    assert_eq!(ini, yaml, "{}\n{}", inventory.ini(), inventory.yaml());
    yaml
}

fn host(name: &str) -> InventoryHostname {
    InventoryHostname::new(name).expect(name)
}

fn group(name: &str) -> GroupName {
    GroupName::new(name).expect(name)
}

fn text(text: &str) -> Variable {
    UnsafeText::new(text).expect(text).into()
}

#[test]
fn ansible_reads_texts_as_they_are() {
    let Some(environment) = needs::ansible() else { return };
    let program = environment.join("bin/ansible-inventory");
    let mut inventory = Inventory::default();
    for (number, trap) in TRAPS.iter().enumerate() {
        inventory.host(host(&format!("h{number}")), Vars::from([("trap", text(trap))])).unwrap();
    }
    let all = TRAPS.map(|trap| (UnsafeText::new(trap).unwrap(), text(trap)));
    inventory.var("map", Variable::Map(all.into()));
    inventory.var("list", Variable::List(vec![Variable::Flag(true), Variable::Flag(false), Variable::Number(-7)]));
    inventory.var("trap", text("12:34:56"));
    inventory.comment("nothing\n[all:vars]\nansible_connection=local\u{2028}[evil]\u{85}x ansible_connection=local");
    let read = read(&program, &inventory);
    let vars = |host: &str| &read["_meta"]["hostvars"][host];
    for (number, trap) in TRAPS.iter().enumerate() {
        assert_eq!(vars(&format!("h{number}"))["trap"], json!(trap), "h{number}");
    }
    let all: serde_json::Map<_, _> = TRAPS.map(|trap| (trap.to_owned(), json!(trap))).into_iter().collect();
    assert_eq!(vars("h0")["map"], json!(all));
    assert_eq!(vars("h0")["list"], json!([true, false, -7]));
    assert!(!read.to_string().contains("evil") && vars("h0").get("ansible_connection").is_none(), "{read}");
}

#[test]
fn ansible_reads_names_and_groups_as_they_are() {
    let Some(environment) = needs::ansible() else { return };
    let program = environment.join("bin/ansible-inventory");
    let mut inventory = Inventory::default();
    let names = ["w-10", "w-1", "0", "010", "1e3", "0x1f", "true", "null", "no", "10.0.0.1", "a.b"];
    for name in names {
        let address = Reachable::new("2001:db8::1").unwrap().to_string();
        inventory.host(host(name), Vars::from([("ansible_host", text(&address))])).unwrap();
    }
    for name in names {
        inventory.member(group("kube_node"), &host(name)).unwrap();
    }
    // The order is the group's own, not that of all.
    for name in ["w-1", "w-10"] {
        inventory.member(group("kube_control_plane"), &host(name)).unwrap();
    }
    inventory.child(group("k8s_cluster"), group("kube_node")).unwrap();
    inventory.child(group("k8s_cluster"), group("kube_control_plane")).unwrap();
    inventory.child(group("etcd"), group("kube_control_plane")).unwrap();
    inventory.check().unwrap();
    let read = read(&program, &inventory);
    assert_eq!(read["kube_node"]["hosts"], json!(names));
    assert_eq!(read["kube_control_plane"]["hosts"], json!(["w-1", "w-10"]));
    assert_eq!(read["k8s_cluster"]["children"], json!(["kube_control_plane", "kube_node"]));
    assert_eq!(read["etcd"], json!({"children": ["kube_control_plane"]}));
    for name in names {
        assert_eq!(read["_meta"]["hostvars"][name], json!({"ansible_host": "2001:db8::1"}), "{name}");
    }
}

#[test]
fn ansible_reads_an_inventory_of_nobody() {
    let Some(environment) = needs::ansible() else { return };
    let program = environment.join("bin/ansible-inventory");
    let mut inventory = Inventory::default();
    inventory.comment("web-1: no address is leased to it");
    let read = read(&program, &inventory);
    assert_eq!(read["_meta"]["hostvars"], json!({}));
}
