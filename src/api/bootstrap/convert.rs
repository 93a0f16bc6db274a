//! Between `bootstrap.cluster.x-k8s.io/v1beta1` and `/v1beta2`. Pure.
//!
//! What one version cannot say is not its business: whoever stores objects finds it by going there and back. How kubeadm makes a
//! node is said by objects of other groups, too, so that part can be changed by itself.

use serde_json::{Map, Value, json};

use crate::api::cluster::convert::{CONDITIONS, duration, seconds};
use crate::api::conversion::{Moves, alter, at, newer, older};

const OLD: &str = "bootstrap.cluster.x-k8s.io/v1beta1";
const NEW: &str = "bootstrap.cluster.x-k8s.io/v1beta2";

const CONFIG: Moves = &[
    CONDITIONS[0],
    CONDITIONS[1],
    CONDITIONS[2],
    CONDITIONS[3],
    ("status.ready", "status.initialization.dataSecretCreated"),
];

/// Arguments of programs: a map in v1beta1, a list in v1beta2.
const ARGS: [&str; 6] = [
    "clusterConfiguration.apiServer.extraArgs",
    "clusterConfiguration.controllerManager.extraArgs",
    "clusterConfiguration.scheduler.extraArgs",
    "clusterConfiguration.etcd.local.extraArgs",
    "initConfiguration.nodeRegistration.kubeletExtraArgs",
    "joinConfiguration.nodeRegistration.kubeletExtraArgs",
];
/// Fields of v1beta1 that v1beta2 no longer has.
const GONE: [&str; 10] = [
    "useExperimentalRetryJoin",
    "clusterConfiguration.apiVersion",
    "clusterConfiguration.kind",
    "clusterConfiguration.networking",
    "clusterConfiguration.kubernetesVersion",
    "clusterConfiguration.clusterName",
    "initConfiguration.apiVersion",
    "initConfiguration.kind",
    "joinConfiguration.apiVersion",
    "joinConfiguration.kind",
];
const COMPONENT_TIMEOUT: &str = "controlPlaneComponentHealthCheckSeconds";
const TLS_TIMEOUT: &str = "tlsBootstrapSeconds";

/// A KubeadmConfig of v1beta1 in v1beta2.
pub fn config_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, CONFIG);
    config_spec_to_storage(&mut new, "spec");
    new
}

/// A KubeadmConfig of v1beta2 in v1beta1.
pub fn config_from_storage(new: &Value) -> Value {
    let mut old = older(new, OLD, CONFIG);
    config_spec_from_storage(&mut old, "spec");
    old
}

/// A KubeadmConfigTemplate of v1beta1 in v1beta2.
pub fn template_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, &[]);
    config_spec_to_storage(&mut new, "spec.template.spec");
    new
}

/// A KubeadmConfigTemplate of v1beta2 in v1beta1.
pub fn template_from_storage(new: &Value) -> Value {
    let mut old = older(new, OLD, &[]);
    config_spec_from_storage(&mut old, "spec.template.spec");
    old
}

/// A KubeadmConfig that says nothing is one of a node that joins as it is told.
pub fn complete_config(config: &mut Value) {
    if let Value::Object(config) = config {
        config.entry("spec").or_insert_with(|| json!({}));
    }
}

/// What kubeadm is to make, at a path of an object: from v1beta1 to v1beta2.
pub fn config_spec_to_storage(object: &mut Value, path: &str) {
    alter(object, path, |spec| spec.is_object().then(|| spec_to_storage(spec.clone())));
}

/// What kubeadm is to make, at a path of an object: from v1beta2 to v1beta1.
pub fn config_spec_from_storage(object: &mut Value, path: &str) {
    alter(object, path, |spec| spec.is_object().then(|| spec_from_storage(spec.clone())));
}

fn spec_to_storage(mut spec: Value) -> Value {
    for path in ARGS {
        alter(&mut spec, path, args_to_storage);
    }
    let component = take(&mut spec, "clusterConfiguration.apiServer.timeoutForControlPlane");
    let component = component.and_then(|text| seconds(text.as_str()?));
    let tls = take(&mut spec, "joinConfiguration.discovery.timeout").and_then(|text| seconds(text.as_str()?));
    if let Some(component) = component {
        put(&mut spec, &["initConfiguration", "timeouts", COMPONENT_TIMEOUT], component.into());
        put(&mut spec, &["joinConfiguration", "timeouts", COMPONENT_TIMEOUT], component.into());
    }
    if let Some(tls) = tls {
        put(&mut spec, &["joinConfiguration", "timeouts", TLS_TIMEOUT], tls.into());
    }
    alter(&mut spec, "initConfiguration.bootstrapTokens", |tokens| {
        each(tokens, |token| {
            if let Some(seconds) = token.remove("ttl").and_then(|ttl| seconds(ttl.as_str()?)) {
                token.insert("ttlSeconds".into(), seconds.into());
            }
        })
    });
    alter(&mut spec, "diskSetup.partitions", |partitions| {
        each(partitions, |partition| {
            let has_layout = partition.get("diskLayout").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
            if has_layout && partition.get("layout") == Some(&Value::Bool(false)) {
                partition.remove("layout");
            }
        })
    });
    for path in GONE {
        take(&mut spec, path);
    }
    if let Value::Object(spec) = &mut spec {
        drop_empty(spec);
    }
    spec
}

fn spec_from_storage(mut spec: Value) -> Value {
    for path in ARGS {
        alter(&mut spec, path, args_from_storage);
    }
    let timeout = |spec: &Value, of: &str, name: &str| at(spec, &format!("{of}.timeouts.{name}"))?.as_u64();
    let component = timeout(&spec, "initConfiguration", COMPONENT_TIMEOUT);
    let tls = timeout(&spec, "joinConfiguration", TLS_TIMEOUT);
    take(&mut spec, "initConfiguration.timeouts");
    take(&mut spec, "joinConfiguration.timeouts");
    if let Some(component) = component {
        put(&mut spec, &["clusterConfiguration", "apiServer", "timeoutForControlPlane"], duration(component).into());
    }
    if let Some(tls) = tls {
        put(&mut spec, &["joinConfiguration", "discovery", "timeout"], duration(tls).into());
    }
    alter(&mut spec, "initConfiguration.bootstrapTokens", |tokens| {
        each(tokens, |token| {
            if let Some(seconds) = token.remove("ttlSeconds").and_then(|seconds| seconds.as_u64()) {
                token.insert("ttl".into(), duration(seconds).into());
            }
        })
    });
    alter(&mut spec, "diskSetup.partitions", |partitions| {
        each(partitions, |partition| {
            partition.entry("layout").or_insert(Value::Bool(false));
        })
    });
    for part in ["initConfiguration", "joinConfiguration"] {
        if at(&spec, part).and_then(Value::as_object).is_some_and(Map::is_empty) {
            take(&mut spec, part);
        }
    }
    spec
}

/// The same list with each object in it changed.
fn each(list: &Value, change: impl Fn(&mut Map<String, Value>)) -> Option<Value> {
    let mut list = list.as_array()?.clone();
    list.iter_mut().filter_map(Value::as_object_mut).for_each(change);
    Some(list.into())
}

/// By name, as a map has them.
fn args_to_storage(args: &Value) -> Option<Value> {
    let list = args.as_object()?.iter().map(|(name, value)| json!({"name": name, "value": value}));
    Some(list.collect())
}

/// Of several with the same name the last one.
fn args_from_storage(args: &Value) -> Option<Value> {
    let map = args.as_array()?.iter().map(|arg| {
        let value = arg.get("value").cloned().unwrap_or_else(|| "".into());
        Some((arg.get("name")?.as_str()?.to_owned(), value))
    });
    map.collect::<Option<Map<String, Value>>>().map(Value::Object)
}

fn take(root: &mut Value, path: &str) -> Option<Value> {
    let (parent, last) = match path.rsplit_once('.') {
        Some((parent, last)) => (parent.split('.').try_fold(root, |place, name| place.get_mut(name))?, last),
        None => (root, path),
    };
    parent.as_object_mut()?.remove(last)
}

fn put(root: &mut Value, path: &[&str], value: Value) {
    let mut place = root;
    for name in path {
        let Value::Object(map) = place else { return };
        place = map.entry(*name).or_insert_with(|| json!({}));
    }
    *place = value;
}

/// v1beta2 has no empty objects and lists, but where they say something: no taints, and that a node joins the control plane.
fn drop_empty(map: &mut Map<String, Value>) {
    map.retain(|name, value| {
        if let Value::Object(inner) = value {
            drop_empty(inner);
        }
        match value {
            Value::Object(inner) => !inner.is_empty() || name == "controlPlane",
            Value::Array(list) => !list.is_empty() || name == "taints",
            _ => true,
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old() -> Value {
        json!({
            "apiVersion": OLD, "kind": "KubeadmConfig", "metadata": {"name": "n"},
            "spec": {
                "clusterConfiguration": {
                    "apiServer": {"extraArgs": {"b": "2", "a": "1"}, "certSANs": ["x"], "timeoutForControlPlane": "20m0s"},
                    "etcd": {"local": {"extraArgs": {"c": ""}}},
                },
                "initConfiguration": {
                    "nodeRegistration": {"kubeletExtraArgs": {"v": "4"}, "taints": []},
                    "bootstrapTokens": [{"token": "abcdef.0123456789abcdef", "ttl": "1h0m0s"}, {"token": "b"}],
                },
                "joinConfiguration": {"controlPlane": {}, "discovery": {"timeout": "5m0s"}},
                "diskSetup": {"partitions": [
                    {"device": "/dev/sda", "layout": true}, {"device": "/dev/sdb", "layout": false, "diskLayout": [{"percentage": 50}]},
                ]},
                "format": "cloud-config",
            },
            "status": {"ready": true, "dataSecretName": "n", "conditions": [{"type": "Ready"}],
                "v1beta2": {"conditions": [{"type": "Paused"}]}},
        })
    }

    fn new() -> Value {
        json!({
            "apiVersion": NEW, "kind": "KubeadmConfig", "metadata": {"name": "n"},
            "spec": {
                "clusterConfiguration": {
                    "apiServer": {"extraArgs": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}], "certSANs": ["x"]},
                    "etcd": {"local": {"extraArgs": [{"name": "c", "value": ""}]}},
                },
                "initConfiguration": {
                    "nodeRegistration": {"kubeletExtraArgs": [{"name": "v", "value": "4"}], "taints": []},
                    "bootstrapTokens": [{"token": "abcdef.0123456789abcdef", "ttlSeconds": 3600}, {"token": "b"}],
                    "timeouts": {"controlPlaneComponentHealthCheckSeconds": 1200},
                },
                "joinConfiguration": {"controlPlane": {},
                    "timeouts": {"controlPlaneComponentHealthCheckSeconds": 1200, "tlsBootstrapSeconds": 300}},
                "diskSetup": {"partitions": [
                    {"device": "/dev/sda", "layout": true}, {"device": "/dev/sdb", "diskLayout": [{"percentage": 50}]},
                ]},
                "format": "cloud-config",
            },
            "status": {"initialization": {"dataSecretCreated": true}, "dataSecretName": "n",
                "conditions": [{"type": "Paused"}], "deprecated": {"v1beta1": {"conditions": [{"type": "Ready"}]}}},
        })
    }

    #[test]
    fn a_config_in_both_versions() {
        assert_eq!(config_to_storage(&old()), new());
        let mut back = config_from_storage(&new());
        assert_eq!(back["spec"]["joinConfiguration"]["discovery"].take(), json!({"timeout": "5m0s"}));
        let mut wanted = old();
        wanted["spec"]["joinConfiguration"]["discovery"].take();
        assert_eq!(back, wanted);
        let template = |version: &str, object: &Value| json!({"apiVersion": version, "spec": {"template": {"spec": object["spec"]}}});
        assert_eq!(template_to_storage(&template(OLD, &old())), template(NEW, &new()));
        assert_eq!(template_to_storage(&template_from_storage(&template(NEW, &new()))), template(NEW, &new()));
    }

    #[test]
    fn what_v1beta2_does_not_have_is_left_out() {
        let given = json!({"spec": {
            "useExperimentalRetryJoin": true, "files": [], "users": [{"name": "x"}], "ntp": {}, "mounts": [],
            "clusterConfiguration": {"apiVersion": "kubeadm.k8s.io/v1beta3", "kind": "ClusterConfiguration", "clusterName": "c",
                "kubernetesVersion": "v1.35.0", "networking": {"podSubnet": "10.0.0.0/8"}, "apiServer": {"extraArgs": {}}},
            "initConfiguration": {"localAPIEndpoint": {}, "nodeRegistration": {}},
            "joinConfiguration": {"kind": "JoinConfiguration", "controlPlane": {"localAPIEndpoint": {}}},
        }});
        let wanted = json!({"users": [{"name": "x"}], "joinConfiguration": {"controlPlane": {}}});
        assert_eq!(config_to_storage(&given)["spec"], wanted);
    }

    #[test]
    fn odd_shapes_stay_what_they_are() {
        for spec in [
            json!(null),
            json!([1]),
            json!({"clusterConfiguration": 1, "initConfiguration": [1], "diskSetup": {"partitions": {"a": 1}}}),
            json!({"clusterConfiguration": {"apiServer": {"extraArgs": [1], "certSANs": 7}}}),
        ] {
            let given = json!({"apiVersion": OLD, "spec": spec});
            assert_eq!(config_to_storage(&given)["spec"], given["spec"]);
        }
        let mut config = json!({"kind": "KubeadmConfig"});
        complete_config(&mut config);
        assert_eq!(config["spec"], json!({}));
    }
}
