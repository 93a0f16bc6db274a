//! What a Machine of a cluster with a release says beyond its host: labels of its node, its place in the order, how it goes. Pure.
//!
//! `cluster::machine_api` reads what says which host it gets, and sees that a value has no other fields than these.

use serde::Deserialize;

use crate::api::kaas::AllowedNodeLabel;
use crate::api::machine_api::Machine;
use crate::release::names::{ANNOTATION_CIDR, ANNOTATION_INTERFACE, API_VERSION, LABEL_CLUSTER, MACHINE_KIND};
use crate::release::wish::shape::PATH;

/// Fields of a value that have an effect on Machines of clusters with releases, and on no others.
pub const FIELDS: &[&str] = &["delete", "deletionPolicy", "distribution", "maintenance", "nodeLabels", "upgradeIndex"];
/// Most labels of a node.
const LABELS_MAX: usize = 100;
/// Letters of a fault that are shown.
const SHOWN: usize = 500;

/// How a machine leaves its cluster.
#[derive(Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum DeletionPolicy {
    /// Its node is drained and taken out first.
    #[default]
    Graceful,
    /// Its host goes at once.
    Unsafe,
    /// The same, and nothing is waited for but the host.
    Forced,
}

/// What a Machine wants of its node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineWish {
    /// Its system, by its id in the release.
    pub distribution: Option<String>,
    /// Labels of its node.
    pub node_labels: Vec<(String, String)>,
    /// Its place in the order; lower ones come first.
    pub upgrade_index: Option<i32>,
    /// Whether nothing is changed on it but keys.
    pub maintenance: bool,
    /// Whether it is to go.
    pub delete: bool,
    /// How it goes.
    pub deletion_policy: DeletionPolicy,
    /// Interface of its node's address in the cluster.
    pub interface: String,
    /// Network of that address.
    pub cidr: String,
}

/// Why a Machine makes no sense: the field and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct MachineFault {
    /// The field.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
struct RefusedMachineSpec {
    #[serde(default)]
    distribution: Option<String>,
    #[serde(default)]
    node_labels: Option<Vec<WireLabel>>,
    #[serde(default)]
    upgrade_index: Option<i32>,
    #[serde(default)]
    maintenance: Option<bool>,
    #[serde(default)]
    delete: Option<bool>,
    #[serde(default)]
    deletion_policy: Option<DeletionPolicy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with key and value")]
struct WireLabel {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

/// The cluster that a Machine of this provider names. Whether there is one is another question.
pub fn cluster_of(machine: &Machine) -> Option<&str> {
    let value = machine.spec.provider_spec.value.as_ref()?;
    let text = |field: &str| value.get(field).and_then(serde_json::Value::as_str);
    if text("apiVersion") != Some(API_VERSION) || text("kind") != Some(MACHINE_KIND) {
        return None;
    }
    let name = machine.metadata.labels.as_ref()?.get(LABEL_CLUSTER)?;
    // It becomes part of a path.
    crate::release::wish::shape::is_name(name).then_some(name.as_str())
}

/// What a Machine wants of its node.
///
/// # Errors
///
/// Why it makes no sense.
pub fn read(machine: &Machine) -> Result<MachineWish, MachineFault> {
    let fault = |field: &str, reason: String| MachineFault { field: format!("{PATH}.{field}"), reason };
    let Some(value) = &machine.spec.provider_spec.value else { return Ok(MachineWish::default()) };
    let wire = RefusedMachineSpec::deserialize(value).map_err(|error| {
        let reason = error.to_string().chars().take(SHOWN).collect();
        MachineFault { field: PATH.into(), reason }
    })?;
    let labels = wire.node_labels.unwrap_or_default();
    if labels.len() > LABELS_MAX {
        return Err(fault("nodeLabels", format!("has more than {LABELS_MAX} entries")));
    }
    for (at, label) in labels.iter().enumerate() {
        // They stand in one text, with commas between them.
        let bad = |text: &str| text.chars().any(|c| !(c.is_ascii_alphanumeric() || "-_./".contains(c)));
        if label.key.is_empty() || bad(&label.key) || bad(&label.value) {
            return Err(fault(&format!("nodeLabels[{at}]"), "must be a label: a key and a value".into()));
        }
    }
    let annotation = |name: &str| machine.metadata.annotations.as_ref().and_then(|all| all.get(name)).cloned();
    let (interface, cidr) =
        (annotation(ANNOTATION_INTERFACE).unwrap_or_default(), annotation(ANNOTATION_CIDR).unwrap_or_default());
    let own = |name: &str, reason: &str| MachineFault {
        field: format!("metadata.annotations[{name}]"),
        reason: reason.into(),
    };
    // The kernel's bound, and its own taboos.
    if interface.len() > 15 || interface.chars().any(|c| c.is_whitespace() || c.is_control() || c == '/') {
        return Err(own(ANNOTATION_INTERFACE, "must be the name of a network interface"));
    }
    if !(cidr.is_empty() || cidr.contains('/') && cidr.parse::<ipnetwork::IpNetwork>().is_ok()) {
        return Err(own(ANNOTATION_CIDR, "must be a network, as 10.20.0.0/24"));
    }
    Ok(MachineWish {
        distribution: wire.distribution.filter(|id| !id.is_empty()),
        node_labels: labels.into_iter().map(|label| (label.key, label.value)).collect(),
        upgrade_index: wire.upgrade_index,
        maintenance: wire.maintenance.unwrap_or_default(),
        delete: wire.delete.unwrap_or_default(),
        deletion_policy: wire.deletion_policy.unwrap_or_default(),
        interface,
        cidr,
    })
}

/// The first label that a release does not allow. A key without a value allows each.
pub fn forbidden_label<'w>(wish: &'w MachineWish, allowed: &[AllowedNodeLabel]) -> Option<&'w (String, String)> {
    let allows = |one: &AllowedNodeLabel, value: &str| one.value.is_empty() || one.value == value;
    wish.node_labels.iter().find(|(key, value)| !allowed.iter().any(|one| one.key == *key && allows(one, value)))
}

/// Labels as a parameter of a step has them.
pub fn label_text(wish: &MachineWish) -> String {
    wish.node_labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn machine(change: Value) -> Machine {
        let mut machine = json!({
            "apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m", "labels": {LABEL_CLUSTER: "edge"}},
            "spec": {"providerSpec": {"value": {"apiVersion": API_VERSION, "kind": MACHINE_KIND}}},
        });
        json_patch::merge(&mut machine, &change);
        serde_json::from_value(machine).unwrap()
    }

    fn valued(change: Value) -> Machine {
        machine(json!({"spec": {"providerSpec": {"value": change}}}))
    }

    #[test]
    fn only_machines_of_this_provider_name_a_cluster() {
        for (machine, wanted) in [
            (machine(json!({})), Some("edge")),
            (machine(json!({"metadata": {"labels": null}})), None),
            (machine(json!({"metadata": {"labels": {LABEL_CLUSTER: "a/../b"}}})), None),
            (valued(json!({"apiVersion": "baremetal.cluster.k8s.io/v1alpha1"})), None),
            (valued(json!({"kind": "Other"})), None),
        ] {
            assert_eq!(cluster_of(&machine), wanted);
        }
    }

    #[test]
    fn what_a_machine_wants_is_read_strictly() {
        let whole = json!({"distribution": "ubuntu/jammy", "nodeLabels": [{"key": "stacklight", "value": "enabled"}],
            "upgradeIndex": 1, "maintenance": true, "delete": false, "deletionPolicy": "unsafe"});
        let mut made = valued(whole);
        made.metadata.annotations = Some(
            [
                (ANNOTATION_INTERFACE.to_owned(), "eth1".to_owned()),
                (ANNOTATION_CIDR.to_owned(), "10.0.0.0/8".to_owned()),
            ]
            .into(),
        );
        let wanted = MachineWish {
            distribution: Some("ubuntu/jammy".into()),
            node_labels: vec![("stacklight".into(), "enabled".into())],
            upgrade_index: Some(1),
            maintenance: true,
            delete: false,
            deletion_policy: DeletionPolicy::Unsafe,
            interface: "eth1".into(),
            cidr: "10.0.0.0/8".into(),
        };
        assert_eq!(read(&made), Ok(wanted.clone()));
        assert_eq!(label_text(&wanted), "stacklight=enabled");
        assert_eq!(read(&machine(json!({}))), Ok(MachineWish::default()));
        for (machine, field) in [
            (valued(json!({"deletionPolicy": "never"})), "unknown variant"),
            (valued(json!({"upgradeIndex": "one"})), "expected i32"),
            (valued(json!({"nodeLabels": [{"key": "a,b", "value": "c"}]})), "nodeLabels[0]"),
            (valued(json!({"nodeLabels": [{"key": "", "value": "c"}]})), "nodeLabels[0]"),
            (valued(json!({"nodeLabels": [{"key": "a", "odd": "c"}]})), "unknown field"),
            (machine(json!({"metadata": {"annotations": {ANNOTATION_INTERFACE: "a b"}}})), "node-interface"),
            (machine(json!({"metadata": {"annotations": {ANNOTATION_CIDR: "10.0.0.1"}}})), "node-cidr"),
        ] {
            let said = read(&machine).unwrap_err().to_string();
            assert!(said.contains(field), "{said}");
        }
    }

    #[test]
    fn labels_are_those_that_the_release_allows() {
        let allowed =
            [AllowedNodeLabel { key: "stacklight".into(), value: "enabled".into(), display_name: String::new() }];
        for (key, value, is_allowed) in
            [("stacklight", "enabled", true), ("stacklight", "off", false), ("other", "", false)]
        {
            let wish = MachineWish { node_labels: vec![(key.into(), value.into())], ..MachineWish::default() };
            assert_eq!(forbidden_label(&wish, &allowed).is_none(), is_allowed, "{key}={value}");
        }
        assert!(DeletionPolicy::Graceful < DeletionPolicy::Unsafe && DeletionPolicy::Unsafe < DeletionPolicy::Forced);
    }

    #[test]
    fn a_label_is_allowed_with_its_value_or_with_each() {
        let allowed =
            |key: &str, value: &str| AllowedNodeLabel { key: key.into(), value: value.into(), ..<_>::default() };
        let all = [allowed("role", "db"), allowed("team", "")];
        for (key, value, is_allowed) in [
            ("role", "db", true),
            ("role", "web", false),
            ("team", "a", true),
            ("team", "", true),
            ("other", "", false),
        ] {
            let labels = vec![(key.to_owned(), value.to_owned())];
            let wish = MachineWish { node_labels: labels, ..MachineWish::default() };
            assert_eq!(forbidden_label(&wish, &all).is_none(), is_allowed, "{key}={value}");
        }
    }
}
