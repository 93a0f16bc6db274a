//! A cluster and all that belongs to it as a tree, with how each is: pure.

use serde_json::Value;

use crate::cli::client::relative::relative;
use jiff::Timestamp;

/// A line of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeLine {
    /// With what joins it to its parent.
    pub name: String,
    /// `True`, `False`, `Unknown`, or empty where it does not say.
    pub ready: String,
    pub reason: String,
    pub since: String,
    pub message: String,
}

impl TreeLine {
    pub(super) fn cells(self) -> Vec<String> {
        vec![self.name, self.ready, self.reason, self.since, self.message]
    }
}

/// The headings of [`TreeLine::cells`].
pub(super) const HEADINGS: [&str; 5] = ["NAME", "READY", "REASON", "SINCE", "MESSAGE"];

/// The tree of a cluster. `all` is everything that may belong to it.
pub(super) fn lines(cluster: &Value, all: &[Value], now: Timestamp) -> Vec<TreeLine> {
    let mut lines = vec![line(String::new(), cluster, now)];
    let children = top(cluster, all);
    below(&children, all, "", now, &mut lines, 0);
    lines
}

/// What stands right below the cluster.
fn top<'o>(cluster: &Value, all: &'o [Value]) -> Vec<&'o Value> {
    let named = |pointer: &str| {
        let reference = cluster.pointer(pointer)?;
        all.iter().find(|object| object["kind"] == reference["kind"] && name(object) == text(reference, "/name"))
    };
    let fixed: Vec<&Value> =
        ["/spec/infrastructureRef", "/spec/controlPlaneRef"].iter().filter_map(|pointer| named(pointer)).collect();
    let mut rest: Vec<&Value> = all
        .iter()
        .filter(|object| object["kind"] == "MachineDeployment" || is_alone(object))
        .filter(|object| text(object, "/spec/clusterName") == name(cluster))
        .collect();
    rest.sort_by_key(|object| (order(object), name(object).to_owned()));
    fixed.into_iter().chain(rest).collect()
}

/// Whether a machine or a set of machines belongs to nothing but the cluster.
fn is_alone(object: &Value) -> bool {
    let is_kind = |kind: &str| object["kind"] == kind;
    let owners = object["metadata"]["ownerReferences"].as_array();
    let keepers = ["KubeadmControlPlane", "MachineSet", "MachineDeployment"];
    let kept = owners.into_iter().flatten().any(|owner| keepers.iter().any(|kind| owner["kind"] == *kind));
    (is_kind("Machine") || is_kind("MachineSet")) && !kept
}

/// The deepest that objects are below each other: a circle of owners ends.
const DEPTH: usize = 8;

fn below(children: &[&Value], all: &[Value], front: &str, now: Timestamp, lines: &mut Vec<TreeLine>, depth: usize) {
    for (index, child) in children.iter().enumerate() {
        let last = index + 1 == children.len();
        lines.push(line(format!("{front}{}", if last { "└─" } else { "├─" }), child, now));
        if depth < DEPTH {
            let front = format!("{front}{}", if last { "  " } else { "│ " });
            below(&belonging(child, all), all, &front, now, lines, depth + 1);
        }
    }
}

/// What belongs to an object: what names it as its owner, and of a machine what it names.
fn belonging<'o>(parent: &Value, all: &'o [Value]) -> Vec<&'o Value> {
    let uid = &parent["metadata"]["uid"];
    let is_owned = |object: &Value| {
        let owners = object["metadata"]["ownerReferences"].as_array();
        owners.into_iter().flatten().any(|owner| owner["uid"] == *uid)
    };
    let is_shown = |object: &Value| match parent["kind"].as_str() {
        Some("KubeadmControlPlane" | "MachineSet") => object["kind"] == "Machine",
        Some("MachineDeployment") => object["kind"] == "MachineSet" && !is_empty(object),
        Some("Machine") => matches!(object["kind"].as_str(), Some("KubeadmConfig" | "Metal3Machine")),
        _ => false,
    };
    let mut found: Vec<&Value> = all.iter().filter(|object| is_shown(object) && is_owned(object)).collect();
    if parent["kind"] == "Metal3Machine" {
        found.extend(all.iter().filter(|object| consumes(object, parent)));
    }
    found.sort_by_key(|object| (order(object), name(object).to_owned()));
    found
}

/// Whether a host is this machine's.
fn consumes(host: &Value, machine: &Value) -> bool {
    let consumer = &host["spec"]["consumerRef"];
    host["kind"] == "BareMetalHost" && consumer["kind"] == "Metal3Machine" && text(consumer, "/name") == name(machine)
}

/// Whether a set of an older revision has no machine any more.
fn is_empty(set: &Value) -> bool {
    let count = |pointer: &str| set.pointer(pointer).and_then(Value::as_i64);
    count("/spec/replicas") == Some(0) && count("/status/replicas").unwrap_or_default() == 0
}

fn order(object: &Value) -> usize {
    let kinds = ["MachineDeployment", "MachineSet", "Machine", "KubeadmConfig", "Metal3Machine", "BareMetalHost"];
    kinds.iter().position(|kind| object["kind"] == *kind).unwrap_or(kinds.len())
}

pub(super) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub(super) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn line(front: String, object: &Value, now: Timestamp) -> TreeLine {
    let kind = text(object, "/kind");
    let mut told = TreeLine {
        name: format!("{front}{kind}/{}", name(object)),
        ready: String::new(),
        reason: String::new(),
        since: String::new(),
        message: String::new(),
    };
    if kind == "BareMetalHost" {
        let state = text(object, "/status/provisioning/state");
        let error = text(object, "/status/errorMessage");
        told.ready = if state == "provisioned" && error.is_empty() { "True" } else { "False" }.to_owned();
        told.reason = state.to_owned();
        told.message = error.to_owned();
    } else if let Some(condition) = condition(object, &WHOLE) {
        told.ready = text(condition, "/status").to_owned();
        let is_well = told.ready == "True";
        if !is_well {
            told.reason = text(condition, "/reason").to_owned();
            told.message = text(condition, "/message").split_whitespace().collect::<Vec<_>>().join(" ");
        }
        told.since = relative(text(condition, "/lastTransitionTime"), now);
    }
    if !text(object, "/metadata/deletionTimestamp").is_empty() {
        told.reason = "Deleting".to_owned();
    }
    let count = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64);
    if let Some(wanted) = count("/spec/replicas") {
        told.name += &format!(" ({}/{wanted})", count("/status/readyReplicas").unwrap_or_default());
    }
    told
}

/// Conditions that say most of an object as a whole, best first.
const WHOLE: [&str; 3] = ["Ready", "Available", "DataSecretAvailable"];

/// The first of these conditions that an object has.
pub(super) fn condition<'o>(object: &'o Value, types: &[&str]) -> Option<&'o Value> {
    let all = object["status"]["conditions"].as_array()?;
    types.iter().find_map(|kind| all.iter().find(|one| one["type"] == *kind))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(kind: &str, name: &str, owner: Option<&str>, ready: &str) -> Value {
        let owners: Vec<Value> =
            owner.into_iter().map(|uid| json!({"uid": uid, "kind": uid.split('/').next()})).collect();
        json!({
            "kind": kind,
            "metadata": {"name": name, "uid": format!("{kind}/{name}"), "ownerReferences": owners},
            "spec": {"clusterName": "prod"},
            "status": {"conditions": [{"type": "Ready", "status": ready, "reason": "Because", "message": "of\nthis"}]},
        })
    }

    #[test]
    fn a_cluster_is_a_tree_of_what_belongs_to_it() {
        let mut cluster = object("Cluster", "prod", None, "True");
        cluster["spec"] = json!({
            "infrastructureRef": {"kind": "Metal3Cluster", "name": "prod"},
            "controlPlaneRef": {"kind": "KubeadmControlPlane", "name": "cp"},
        });
        let mut host = object("BareMetalHost", "web-1", None, "");
        host["spec"]["consumerRef"] = json!({"kind": "Metal3Machine", "name": "m3m-a"});
        host["status"] = json!({"provisioning": {"state": "provisioning"}});
        let mut old = object("MachineSet", "old", Some("MachineDeployment/md"), "True");
        old["spec"]["replicas"] = 0.into();
        let mut deployment = object("MachineDeployment", "md", None, "False");
        deployment["spec"]["replicas"] = 2.into();
        deployment["status"]["readyReplicas"] = 1.into();
        let all = [
            object("Machine", "b", Some("MachineSet/new"), "True"),
            host,
            object("Metal3Cluster", "prod", None, "True"),
            object("KubeadmControlPlane", "cp", None, "True"),
            object("Machine", "a", Some("KubeadmControlPlane/cp"), "False"),
            object("Metal3Machine", "m3m-a", Some("Machine/a"), "False"),
            object("KubeadmConfig", "kc-a", Some("Machine/a"), "True"),
            deployment,
            object("MachineSet", "new", Some("MachineDeployment/md"), "True"),
            old,
            object("Machine", "alone", None, "True"),
        ];
        let lines = lines(&cluster, &all, Timestamp::UNIX_EPOCH);
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "Cluster/prod",
                "├─Metal3Cluster/prod",
                "├─KubeadmControlPlane/cp",
                "│ └─Machine/a",
                "│   ├─KubeadmConfig/kc-a",
                "│   └─Metal3Machine/m3m-a",
                "│     └─BareMetalHost/web-1",
                "├─MachineDeployment/md (1/2)",
                "│ └─MachineSet/new",
                "│   └─Machine/b",
                "└─Machine/alone",
            ]
        );
        let machine = &lines[3];
        assert_eq!((&*machine.ready, &*machine.reason, &*machine.message), ("False", "Because", "of this"));
        assert_eq!((&*lines[6].ready, &*lines[6].reason), ("False", "provisioning"));
        assert_eq!((&*lines[0].reason, &*lines[0].message), ("", ""));
    }

    #[test]
    fn a_circle_of_owners_ends() {
        let mut one = object("MachineSet", "x", Some("MachineSet/x"), "True");
        one["spec"]["replicas"] = 1.into();
        let cluster = object("Cluster", "prod", None, "True");
        assert!(lines(&cluster, &[one], Timestamp::UNIX_EPOCH).len() <= DEPTH + 3);
    }
}
