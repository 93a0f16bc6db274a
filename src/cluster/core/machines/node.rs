//! What a machine's node is to have of it: annotations, labels and taints. Pure.
//!
//! What was taken from the machine before is written down in annotations of the node, so that it goes when the machine has it no
//! more, and whatever others gave the node stays.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use crate::api::cluster::keys::{
    NODE_CLUSTER, NODE_LABELS, NODE_MACHINE, NODE_NAMESPACE, NODE_OWNER_KIND, NODE_OWNER_NAME, NODE_TAINTS,
    TAINT_OUTDATED, TAINT_UNINITIALIZED,
};
use crate::api::cluster::v1beta2::Machine;
use crate::runtime::owners;

/// Whether a label of a machine is one for its node.
pub(super) fn is_for_nodes(label: &str) -> bool {
    let Some((domain, _)) = label.split_once('/') else { return false };
    let within = |own: &str| domain == own || domain.strip_suffix(own).is_some_and(|front| front.ends_with('.'));
    domain == "node-role.kubernetes.io" || within("node-restriction.kubernetes.io") || within("node.cluster.x-k8s.io")
}

/// What is to be changed of a node, as a merge patch; `None` when it is as it should be.
pub(super) fn patch(machine: &Machine, node: &Node, outdated: bool) -> Option<Value> {
    let labels: BTreeMap<&str, &str> = machine
        .labels()
        .iter()
        .filter(|(key, _)| is_for_nodes(key))
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    let mut annotations = annotations(machine);
    annotations.insert(NODE_LABELS, labels.keys().copied().collect::<Vec<_>>().join(","));
    let (taints, of_machine) = taints(machine, node, outdated);
    annotations.insert(NODE_TAINTS, of_machine);
    let mut metadata = Map::new();
    let changed = changed(labels.iter().map(|(key, value)| (*key, *value)), node.labels());
    let mut changed_labels = changed;
    for gone in known(node, NODE_LABELS).filter(|key| !labels.contains_key(key) && node.labels().contains_key(*key)) {
        changed_labels.insert(gone.to_owned(), Value::Null);
    }
    if !changed_labels.is_empty() {
        metadata.insert("labels".into(), changed_labels.into());
    }
    let mut changed = self::changed(annotations.iter().map(|(key, value)| (*key, value.as_str())), node.annotations());
    for key in [NODE_OWNER_KIND, NODE_OWNER_NAME] {
        if !annotations.contains_key(key) && node.annotations().contains_key(key) {
            changed.insert(key.to_owned(), Value::Null);
        }
    }
    if !changed.is_empty() {
        metadata.insert("annotations".into(), changed.into());
    }
    let mut patch = Map::new();
    if !metadata.is_empty() {
        patch.insert("metadata".into(), metadata.into());
    }
    if let Some(taints) = taints {
        patch.insert("spec".into(), json!({ "taints": taints }));
    }
    (!patch.is_empty()).then(|| patch.into())
}

fn annotations(machine: &Machine) -> BTreeMap<&'static str, String> {
    let mut all = BTreeMap::from([
        (NODE_CLUSTER, machine.spec.cluster_name.clone()),
        (NODE_NAMESPACE, machine.namespace().unwrap_or_default()),
        (NODE_MACHINE, machine.name_any()),
    ]);
    if let Some(owner) = owners::controller(&machine.metadata) {
        all.insert(NODE_OWNER_KIND, owner.kind.clone());
        all.insert(NODE_OWNER_NAME, owner.name.clone());
    }
    all
}

fn changed<'a>(
    wanted: impl Iterator<Item = (&'a str, &'a str)>,
    there: &BTreeMap<String, String>,
) -> Map<String, Value> {
    wanted
        .filter(|(key, value)| there.get(*key).map(String::as_str) != Some(*value))
        .map(|(key, value)| (key.to_owned(), Value::from(value)))
        .collect()
}

/// What an annotation of a node lists.
fn known<'n>(node: &'n Node, annotation: &str) -> impl Iterator<Item = &'n str> {
    let listed = node.annotations().get(annotation).map(String::as_str).unwrap_or_default();
    listed.split(',').filter(|entry| !entry.is_empty())
}

/// The taints of a node, if they are to be others, and those that are the machine's from now on.
fn taints(machine: &Machine, node: &Node, outdated: bool) -> (Option<Vec<Taint>>, String) {
    let before = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let mut taints = before.clone();
    taints.retain(|taint| taint.key != TAINT_UNINITIALIZED);
    let begun = node.annotations().contains_key(NODE_TAINTS);
    let id = |key: &str, effect: &str| format!("{key}:{effect}");
    let mut own: Vec<String> = Vec::new();
    let mut kept: Vec<String> = Vec::new();
    for wanted in &machine.spec.taints {
        let always = wanted.propagation != "OnInitialization";
        let list = if always { &mut own } else { &mut kept };
        list.push(id(&wanted.key, &wanted.effect));
        if !always && begun {
            continue;
        }
        put(&mut taints, &wanted.key, &wanted.effect, wanted.value.as_deref());
    }
    for gone in known(node, NODE_TAINTS).filter(|entry| !own.iter().chain(&kept).any(|other| other == entry)) {
        taints.retain(|taint| id(&taint.key, &taint.effect) != gone);
    }
    taints.retain(|taint| taint.key != TAINT_OUTDATED || outdated);
    if outdated {
        put(&mut taints, TAINT_OUTDATED, "PreferNoSchedule", None);
    }
    own.sort_unstable();
    own.dedup();
    ((taints != before).then_some(taints), own.join(","))
}

fn put(taints: &mut Vec<Taint>, key: &str, effect: &str, value: Option<&str>) {
    let value = value.map(str::to_owned);
    match taints.iter_mut().find(|taint| taint.key == key && taint.effect == effect) {
        Some(taint) if taint.value == value => {}
        Some(taint) => taint.value = value,
        None => {
            taints.push(Taint { key: key.to_owned(), effect: effect.to_owned(), value, ..Taint::default() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster::v1beta2::MachineTaint;

    fn taint(key: &str, propagation: &str) -> MachineTaint {
        let (effect, propagation) = ("NoSchedule".to_owned(), propagation.to_owned());
        MachineTaint { key: key.to_owned(), value: None, effect, propagation }
    }

    fn machine(labels: &[(&str, &str)], taints: Vec<MachineTaint>) -> Machine {
        let mut machine = Machine::new("m", Default::default());
        machine.metadata.namespace = Some("rack".into());
        machine.metadata.labels = Some(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        machine.spec.cluster_name = "c".into();
        machine.spec.taints = taints;
        machine
    }

    fn patched(node: &Node, patch: &Value) -> Node {
        let mut value = serde_json::to_value(node).unwrap();
        json_patch::merge(&mut value, patch);
        serde_json::from_value(value).unwrap()
    }

    fn keys(node: &Node) -> Vec<&str> {
        node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).map(|taint| taint.key.as_str()).collect()
    }

    #[test]
    fn only_some_labels_are_for_nodes() {
        for (label, wanted) in [
            ("node-role.kubernetes.io/worker", true),
            ("x.node-role.kubernetes.io/worker", false),
            ("node-restriction.kubernetes.io/a", true),
            ("x.node-restriction.kubernetes.io/a", true),
            ("xnode-restriction.kubernetes.io/a", false),
            ("node.cluster.x-k8s.io/a", true),
            ("a.node.cluster.x-k8s.io/a", true),
            ("kubernetes.io/hostname", false),
            ("plain", false),
        ] {
            assert_eq!(is_for_nodes(label), wanted, "{label}");
        }
    }

    #[test]
    fn a_node_has_what_its_machine_has_and_keeps_what_is_others() {
        let role = "node-role.kubernetes.io/worker";
        let mut node = Node::default();
        node.metadata.labels = Some([("own".to_owned(), "1".to_owned())].into());
        node.spec.get_or_insert_default().taints = Some(vec![
            Taint { key: TAINT_UNINITIALIZED.into(), effect: "NoSchedule".into(), ..Taint::default() },
            Taint { key: "others".into(), effect: "NoSchedule".into(), ..Taint::default() },
        ]);
        let with =
            machine(&[(role, ""), ("other", "x")], vec![taint("always", "Always"), taint("once", "OnInitialization")]);
        let node = patched(&node, &patch(&with, &node, false).unwrap());
        assert_eq!(node.labels().keys().collect::<Vec<_>>(), [role, "own"]);
        assert_eq!(keys(&node), ["others", "always", "once"]);
        assert_eq!(
            (node.annotations()[NODE_LABELS].as_str(), node.annotations()[NODE_TAINTS].as_str()),
            (role, "always:NoSchedule")
        );
        assert_eq!((node.annotations()[NODE_MACHINE].as_str(), node.annotations()[NODE_CLUSTER].as_str()), ("m", "c"));
        assert_eq!(patch(&with, &node, false), None, "nothing is written twice");
        // What somebody took away comes back, but for what is there at the beginning only.
        let mut bare = node.clone();
        bare.spec.get_or_insert_default().taints = None;
        assert_eq!(keys(&patched(&bare, &patch(&with, &bare, false).unwrap())), ["always"]);
        // What the machine has no more goes.
        let without = machine(&[], Vec::new());
        let node = patched(&node, &patch(&without, &node, true).unwrap());
        assert_eq!(node.labels().keys().collect::<Vec<_>>(), ["own"]);
        assert_eq!(keys(&node), ["others", "once", TAINT_OUTDATED]);
        let node = patched(&node, &patch(&without, &node, false).unwrap());
        assert_eq!(keys(&node), ["others", "once"]);
    }
}
