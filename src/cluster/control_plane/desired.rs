//! What a machine of a control plane should be. Pure.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::admission::is_etcd_managed;
use crate::api::cluster::keys::{LABEL_CONTROL_PLANE, LABEL_CONTROL_PLANE_NAME};
use crate::api::cluster::v1beta2::{MachineDeletion, MachineSpec};
use crate::api::cluster::{ConditionGate, LABEL_CLUSTER};
use crate::api::control_plane::v1beta2::KubeadmControlPlaneSpec;
use crate::cluster::contract::{KubeVersion, named_by};

/// Name of a machine where nobody says otherwise.
const NAMES: &str = "{{ .kubeadmControlPlane.name }}-{{ .random }}";
/// Feature of kubeadm by which a kubelet talks to the API server beside it, and the versions that have it as a gate.
const LOCAL_MODE: (&str, u32, u32) = ("ControlPlaneKubeletLocalMode", 31, 36);
/// Longest value of a label.
const LABEL_MAX: usize = 63;

/// A new machine's name.
///
/// # Errors
///
/// When the template of names is none.
pub(super) fn name(spec: &KubeadmControlPlaneSpec, cluster: &str, plane: &str) -> Result<String, String> {
    let template = spec.machine_naming.as_ref().and_then(|naming| naming.template.as_deref()).unwrap_or(NAMES);
    named_by(template, &[(".cluster.name", cluster), (".kubeadmControlPlane.name", plane)])
}

/// Labels of everything that is made for a machine.
pub(super) fn labels(spec: &KubeadmControlPlaneSpec, cluster: &str, plane: &str) -> BTreeMap<String, String> {
    let of_template = spec.machine_template.metadata.as_ref().map(|metadata| metadata.labels.clone());
    let mut labels = of_template.unwrap_or_default();
    labels.insert(LABEL_CLUSTER.to_owned(), cluster.to_owned());
    labels.insert(LABEL_CONTROL_PLANE.to_owned(), String::new());
    labels.insert(LABEL_CONTROL_PLANE_NAME.to_owned(), label_value(plane));
    labels
}

/// Annotations of everything that is made for a machine.
pub(super) fn annotations(spec: &KubeadmControlPlaneSpec) -> BTreeMap<String, String> {
    spec.machine_template.metadata.as_ref().map(|metadata| metadata.annotations.clone()).unwrap_or_default()
}

/// A name as the value of a label: what is too long is told by its hash.
pub(super) fn label_value(name: &str) -> String {
    use base64::Engine;
    if name.len() <= LABEL_MAX {
        return name.to_owned();
    }
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte));
    let hash = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(hash.to_be_bytes());
    format!("hash_{hash}_z")
}

/// Puts into a machine what changes without another machine in its place.
pub(super) fn in_place(machine: &mut MachineSpec, spec: &KubeadmControlPlaneSpec, etcd_managed: bool) {
    let wanted = spec.machine_template.spec.deletion.clone().unwrap_or_default();
    let before = machine.deletion.clone().unwrap_or_default();
    let deletion = MachineDeletion {
        node_drain_timeout_seconds: wanted.node_drain_timeout_seconds,
        node_volume_detach_timeout_seconds: wanted.node_volume_detach_timeout_seconds,
        // The machine's own default stays.
        node_deletion_timeout_seconds: wanted.node_deletion_timeout_seconds.or(before.node_deletion_timeout_seconds),
    };
    machine.deletion = (deletion != MachineDeletion::default()).then_some(deletion);
    machine.taints.clone_from(&spec.machine_template.spec.taints);
    machine.readiness_gates = gates(spec, etcd_managed);
}

/// Conditions that count for a machine's `Ready`: those that the control plane sets, and the user's.
fn gates(spec: &KubeadmControlPlaneSpec, etcd_managed: bool) -> Vec<ConditionGate> {
    let mut types = vec![
        "NodeKubeadmLabelsAndTaintsSet",
        "APIServerPodHealthy",
        "ControllerManagerPodHealthy",
        "SchedulerPodHealthy",
    ];
    if etcd_managed {
        types.extend(["EtcdPodHealthy", "EtcdMemberHealthy"]);
    }
    let ours = types.into_iter().map(|type_| ConditionGate { condition_type: type_.to_owned(), polarity: None });
    let mut gates: Vec<ConditionGate> = ours.collect();
    for gate in &spec.machine_template.spec.readiness_gates {
        if !gates.iter().any(|known| known.condition_type == gate.condition_type) {
            gates.push(gate.clone());
        }
    }
    gates
}

/// What kubeadm is told on a machine that begins a cluster, or joins one. `spec` is a control plane's.
pub(super) fn config(spec: &Value, version: KubeVersion, joins: bool) -> Value {
    let mut config = match &spec["kubeadmConfigSpec"] {
        Value::Object(map) => map.clone(),
        _ => Map::new(),
    };
    if joins {
        config.remove("initConfiguration");
        // That it joins is seen by this.
        let join = config.entry("joinConfiguration").or_insert_with(|| json!({}));
        if let Value::Object(join) = join {
            join.entry("controlPlane").or_insert_with(|| json!({}));
        }
    } else {
        config.remove("joinConfiguration");
    }
    let mut config = Value::Object(config);
    add_gates(&mut config, version);
    config
}

/// Adds the feature gates that kubeadm of a version is to have, where nobody says otherwise, to what kubeadm is told.
pub(super) fn add_gates(config: &mut Value, version: KubeVersion) {
    let (gate, from, until) = LOCAL_MODE;
    if (version.major, version.minor) < (1, from) || (version.major, version.minor) >= (1, until) {
        return;
    }
    let Some(config) = config.as_object_mut() else { return };
    let cluster = config.entry("clusterConfiguration").or_insert_with(|| json!({}));
    let gates = cluster.as_object_mut().map(|cluster| cluster.entry("featureGates").or_insert_with(|| json!({})));
    if let Some(Value::Object(gates)) = gates {
        gates.entry(gate).or_insert(Value::Bool(true));
    }
}

/// Whether a machine was told what it would be told now. What is done about a running cluster does not count, nor how the machine
/// found it.
pub(super) fn is_current(told: &Value, spec: &Value, version: KubeVersion) -> bool {
    let began = told.pointer("/joinConfiguration/controlPlane").is_none();
    if comparable(told, began) == comparable(&config(spec, version, true), false) {
        return true;
    }
    // Who begins a cluster and who joins it may be told different things.
    began && comparable(told, false) == comparable(&config(spec, version, false), false)
}

/// What counts of what a machine was told. What was said to one that began a cluster becomes what would be said to one that joins
/// (`as_joining`).
fn comparable(told: &Value, as_joining: bool) -> Value {
    let mut told = told.clone();
    if as_joining {
        let init = told.as_object_mut().and_then(|told| told.remove("initConfiguration")).unwrap_or_default();
        let mut join = Map::new();
        for field in ["timeouts", "patches", "skipPhases", "nodeRegistration"] {
            if let Some(value) = init.get(field) {
                join.insert(field.into(), value.clone());
            }
        }
        if let Some(endpoint) = init.get("localAPIEndpoint") {
            join.insert("controlPlane".into(), json!({"localAPIEndpoint": endpoint}));
        }
        told["joinConfiguration"] = join.into();
    }
    for path in [
        // The same for a cluster's whole life, and filled in later.
        "clusterConfiguration.controlPlaneEndpoint",
        // Changed where it runs.
        "clusterConfiguration.dns",
        "joinConfiguration.discovery",
        "joinConfiguration.caCertPath",
        "joinConfiguration.timeouts.controlPlaneComponentHealthCheckSeconds",
        "initConfiguration.timeouts.controlPlaneComponentHealthCheckSeconds",
    ] {
        remove(&mut told, path);
    }
    if told["format"] == "cloud-config" {
        remove(&mut told, "format");
    }
    drop_empty(&mut told, false);
    told
}

fn remove(root: &mut Value, path: &str) {
    let (place, name) = path.rsplit_once('.').unwrap_or(("", path));
    let place = place.split('.').filter(|part| !part.is_empty()).try_fold(root, |place, name| place.get_mut(name));
    if let Some(Value::Object(place)) = place {
        place.remove(name);
    }
}

/// Takes away what says nothing. No taints at all are something else than those of kubeadm.
fn drop_empty(value: &mut Value, kept: bool) -> bool {
    match value {
        Value::Object(map) => {
            let names: Vec<String> = map.keys().cloned().collect();
            for name in names {
                if map.get_mut(&name).is_some_and(|member| drop_empty(member, name == "taints")) {
                    map.remove(&name);
                }
            }
            map.is_empty()
        }
        Value::Array(list) => {
            list.iter_mut().for_each(|item| {
                drop_empty(item, true);
            });
            list.is_empty() && !kept
        }
        Value::Null => true,
        _ => false,
    }
}

/// Why a machine is not what it would be made as now: nothing when it is. `cloned` is what its infrastructure was made from, `told`
/// what kubeadm was told; what is not known does not count.
pub(super) fn outdated(
    spec: &Value,
    machine_version: Option<&str>,
    cloned: Option<(&str, &str)>,
    is_current: Option<bool>,
) -> Vec<String> {
    let mut reason = Vec::new();
    let wanted = spec["version"].as_str().unwrap_or_default();
    if let Some(version) = machine_version.filter(|version| *version != wanted) {
        reason.push(format!("Version {version}, {wanted} required"));
    }
    if is_current == Some(false) {
        reason.push("KubeadmConfig is not up-to-date".into());
    }
    let template = &spec["machineTemplate"]["spec"]["infrastructureRef"];
    let text = |field: &str| template[field].as_str().unwrap_or_default();
    let (kind, group) = (text("kind"), text("apiGroup"));
    if let Some((name, origin)) = cloned
        && (name != text("name") || origin != format!("{kind}.{group}"))
    {
        reason.push(format!("{} is not up-to-date", kind.strip_suffix("Template").unwrap_or(kind)));
    }
    reason
}

/// Whether etcd runs on the machines.
pub(super) fn etcd_managed(spec: &Value) -> bool {
    is_etcd_managed(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster::TemplateMeta;
    use crate::api::control_plane::v1beta2::{
        ControlPlaneMachineDeletion, ControlPlaneMachineTemplateSpec, MachineTemplate,
    };

    fn version(text: &str) -> KubeVersion {
        text.parse().unwrap()
    }

    fn spec(config: Value) -> Value {
        json!({
            "version": "v1.34.0", "kubeadmConfigSpec": config,
            "machineTemplate": {"spec": {"infrastructureRef": {"kind": "Metal3MachineTemplate", "name": "t",
                "apiGroup": "infrastructure.cluster.x-k8s.io"}}},
        })
    }

    #[test]
    fn a_machine_is_told_how_to_begin_or_how_to_join() {
        let given = spec(json!({
            "initConfiguration": {"nodeRegistration": {"name": "a"}}, "joinConfiguration": {"skipPhases": ["x"]},
            "files": [{"path": "/x"}],
        }));
        let gates = json!({"featureGates": {"ControlPlaneKubeletLocalMode": true}});
        assert_eq!(
            config(&given, version("v1.34.0"), false),
            json!({
                "initConfiguration": {"nodeRegistration": {"name": "a"}}, "clusterConfiguration": gates, "files": [{"path": "/x"}],
            })
        );
        assert_eq!(
            config(&given, version("v1.34.0"), true),
            json!({
                "joinConfiguration": {"skipPhases": ["x"], "controlPlane": {}}, "clusterConfiguration": gates, "files": [{"path": "/x"}],
            })
        );
        for (of, has) in [("v1.30.9", false), ("v1.31.0", true), ("v1.35.9", true), ("v1.36.0", false)] {
            let told = config(&spec(json!({})), version(of), false);
            assert_eq!(told.pointer("/clusterConfiguration/featureGates").is_some(), has, "{of}");
        }
        let off = json!({"clusterConfiguration": {"featureGates": {"ControlPlaneKubeletLocalMode": false}}});
        assert_eq!(config(&spec(off.clone()), version("v1.34.0"), false), off);
    }

    #[test]
    fn what_would_be_said_again_is_current() {
        let both = |value: Value| json!({"initConfiguration": value, "joinConfiguration": value});
        let registered = |name: &str| both(json!({"nodeRegistration": {"name": name}}));
        let at = version("v1.34.0");
        let begun = |given: Value| config(&spec(given), at, false);
        let joined = |given: Value| config(&spec(given), at, true);
        let with = |mut value: Value, path: &str, to: Value| {
            *value.pointer_mut(path).unwrap() = to;
            value
        };
        let rows = vec![
            ("the same", joined(registered("a")), registered("a"), true),
            ("another one", joined(registered("a")), registered("b"), false),
            ("one that began", begun(registered("a")), registered("a"), true),
            ("one that began otherwise", begun(registered("a")), registered("b"), false),
            (
                "who begins is told something else than who joins",
                begun(json!({"initConfiguration": {"skipPhases": ["x"]}, "joinConfiguration": {"skipPhases": ["y"]}})),
                json!({"initConfiguration": {"skipPhases": ["x"]}, "joinConfiguration": {"skipPhases": ["z"]}}),
                true,
            ),
            (
                "how it joined",
                with(
                    joined(json!({"joinConfiguration": {"discovery": {}}})),
                    "/joinConfiguration/discovery",
                    json!({"bootstrapToken": {"token": "x"}}),
                ),
                json!({}),
                true,
            ),
            (
                "what was filled in",
                with(
                    begun(json!({"clusterConfiguration": {"controlPlaneEndpoint": ""}})),
                    "/clusterConfiguration/controlPlaneEndpoint",
                    json!("10.0.0.1:6443"),
                ),
                json!({}),
                true,
            ),
            ("CoreDNS", joined(json!({"clusterConfiguration": {"dns": {"imageTag": "v1"}}})), json!({}), true),
            (
                "what says nothing",
                joined(json!({"files": [], "ntp": {}, "users": null, "format": "cloud-config"})),
                json!({}),
                true,
            ),
            ("a file", joined(json!({"files": [{"path": "/a"}]})), json!({}), false),
            (
                "no taints are not those of kubeadm",
                joined(both(json!({"nodeRegistration": {"taints": []}}))),
                both(json!({"nodeRegistration": {}})),
                false,
            ),
            (
                "the order of arguments",
                joined(json!({"clusterConfiguration": {"apiServer": {"extraArgs": [{"name": "a"}, {"name": "b"}]}}})),
                json!({"clusterConfiguration": {"apiServer": {"extraArgs": [{"name": "b"}, {"name": "a"}]}}}),
                false,
            ),
        ];
        for (what, told, given, wanted) in rows {
            assert_eq!(is_current(&told, &spec(given), at), wanted, "{what}");
        }
    }

    #[test]
    fn machines_are_outdated_for_a_reason() {
        let given = spec(json!({}));
        let origin = "Metal3MachineTemplate.infrastructure.cluster.x-k8s.io";
        let rows = [
            (Some("v1.34.0"), Some(("t", origin)), Some(true), 0),
            (Some("v1.33.0"), Some(("t", origin)), Some(true), 1),
            (Some("v1.34.0"), Some(("u", origin)), Some(true), 1),
            (Some("v1.34.0"), Some(("t", "OtherTemplate.infrastructure.cluster.x-k8s.io")), Some(true), 1),
            (None, None, None, 0),
            (Some("v1.33.0"), Some(("u", origin)), Some(false), 3),
        ];
        for (version, cloned, current, wanted) in rows {
            let reason = outdated(&given, version, cloned, current);
            assert_eq!(reason.len(), wanted, "{reason:?}");
        }
    }

    #[test]
    fn machines_have_the_labels_of_their_control_plane() {
        let metadata =
            TemplateMeta { labels: [("a".into(), "b".into())].into(), annotations: [("c".into(), "d".into())].into() };
        let spec = KubeadmControlPlaneSpec {
            machine_template: MachineTemplate { metadata: Some(metadata), ..MachineTemplate::default() },
            ..KubeadmControlPlaneSpec::default()
        };
        let found = labels(&spec, "one", "plane");
        let wanted =
            [("a", "b"), (LABEL_CLUSTER, "one"), (LABEL_CONTROL_PLANE, ""), (LABEL_CONTROL_PLANE_NAME, "plane")];
        assert_eq!(found, wanted.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        assert_eq!(annotations(&spec), [("c".to_owned(), "d".to_owned())].into());
        let long = label_value(&"a".repeat(64));
        assert!(long.starts_with("hash_") && long.ends_with("_z") && long.len() <= LABEL_MAX, "{long}");
        assert!(name(&spec, "one", "plane").unwrap().starts_with("plane-"));
    }

    #[test]
    fn what_changes_in_place_is_put_into_machines() {
        let deletion = ControlPlaneMachineDeletion {
            node_drain_timeout_seconds: Some(5),
            ..ControlPlaneMachineDeletion::default()
        };
        let gate = |type_: &str| ConditionGate { condition_type: type_.to_owned(), polarity: None };
        let template = ControlPlaneMachineTemplateSpec {
            deletion: Some(deletion),
            readiness_gates: vec![gate("Fine"), gate("EtcdPodHealthy")],
            ..ControlPlaneMachineTemplateSpec::default()
        };
        let spec = KubeadmControlPlaneSpec {
            machine_template: MachineTemplate { metadata: None, spec: template },
            ..KubeadmControlPlaneSpec::default()
        };
        let kept = MachineDeletion { node_deletion_timeout_seconds: Some(10), ..MachineDeletion::default() };
        let mut machine = MachineSpec { deletion: Some(kept), ..MachineSpec::default() };
        in_place(&mut machine, &spec, true);
        let deletion = machine.deletion.clone().unwrap();
        assert_eq!((deletion.node_drain_timeout_seconds, deletion.node_deletion_timeout_seconds), (Some(5), Some(10)));
        assert_eq!(machine.readiness_gates.len(), 7);
        in_place(&mut machine, &spec, false);
        assert_eq!(machine.readiness_gates.len(), 6);
    }
}
