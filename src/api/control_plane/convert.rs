//! Between `controlplane.cluster.x-k8s.io/v1beta1` and `/v1beta2`. Pure.
//!
//! What one version cannot say is not its business: whoever stores objects finds it by going there and back.

use serde_json::{Map, Value, json};

use crate::api::bootstrap::convert::{config_spec_from_storage, config_spec_to_storage};
use crate::api::cluster::convert::{CONDITIONS, duration, seconds};
use crate::api::conversion::{Moves, alter, at, newer, older};

const OLD: &str = "controlplane.cluster.x-k8s.io/v1beta1";
const NEW: &str = "controlplane.cluster.x-k8s.io/v1beta2";

/// Moves of what a control plane and a template of one have alike, below a path.
macro_rules! spec_moves {
    ($spec:literal $(, $more:expr)*) => {
        &[
            $($more,)*
            (concat!($spec, ".machineTemplate.taints"), concat!($spec, ".machineTemplate.spec.taints")),
            (
                concat!($spec, ".machineTemplate.nodeDrainTimeout"),
                concat!($spec, ".machineTemplate.spec.deletion.nodeDrainTimeoutSeconds"),
            ),
            (
                concat!($spec, ".machineTemplate.nodeVolumeDetachTimeout"),
                concat!($spec, ".machineTemplate.spec.deletion.nodeVolumeDetachTimeoutSeconds"),
            ),
            (
                concat!($spec, ".machineTemplate.nodeDeletionTimeout"),
                concat!($spec, ".machineTemplate.spec.deletion.nodeDeletionTimeoutSeconds"),
            ),
            (concat!($spec, ".rolloutBefore"), concat!($spec, ".rollout.before")),
            (concat!($spec, ".rolloutAfter"), concat!($spec, ".rollout.after")),
            (concat!($spec, ".rolloutStrategy"), concat!($spec, ".rollout.strategy")),
            (concat!($spec, ".remediationStrategy"), concat!($spec, ".remediation")),
            (concat!($spec, ".remediation.retryPeriod"), concat!($spec, ".remediation.retryPeriodSeconds")),
            (concat!($spec, ".remediation.minHealthyPeriod"), concat!($spec, ".remediation.minHealthyPeriodSeconds")),
            (concat!($spec, ".machineNamingStrategy"), concat!($spec, ".machineNaming")),
        ]
    };
}

const CONTROL_PLANE: Moves = spec_moves!(
    "spec",
    CONDITIONS[0],
    CONDITIONS[1],
    CONDITIONS[2],
    CONDITIONS[3],
    ("status.readyReplicas", "status.deprecated.v1beta1.readyReplicas"),
    ("status.updatedReplicas", "status.deprecated.v1beta1.updatedReplicas"),
    ("status.unavailableReplicas", "status.deprecated.v1beta1.unavailableReplicas"),
    ("status.v1beta2.readyReplicas", "status.readyReplicas"),
    ("status.v1beta2.availableReplicas", "status.availableReplicas"),
    ("status.v1beta2.upToDateReplicas", "status.upToDateReplicas"),
    ("status.initialized", "status.initialization.controlPlaneInitialized"),
    ("status.lastRemediation.timestamp", "status.lastRemediation.time"),
    ("spec.machineTemplate.infrastructureRef", "spec.machineTemplate.spec.infrastructureRef"),
    ("spec.machineTemplate.readinessGates", "spec.machineTemplate.spec.readinessGates")
);

const TEMPLATE: Moves = spec_moves!("spec.template.spec");

/// Durations in v1beta1, numbers of seconds in v1beta2.
const TIMES: [(&str, &str); 5] = [
    ("machineTemplate.nodeDrainTimeout", "machineTemplate.spec.deletion.nodeDrainTimeoutSeconds"),
    ("machineTemplate.nodeVolumeDetachTimeout", "machineTemplate.spec.deletion.nodeVolumeDetachTimeoutSeconds"),
    ("machineTemplate.nodeDeletionTimeout", "machineTemplate.spec.deletion.nodeDeletionTimeoutSeconds"),
    ("remediationStrategy.retryPeriod", "remediation.retryPeriodSeconds"),
    ("remediationStrategy.minHealthyPeriod", "remediation.minHealthyPeriodSeconds"),
];

/// A KubeadmControlPlane of v1beta1 in v1beta2.
pub fn control_plane_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, CONTROL_PLANE);
    spec_to_storage(&mut new, "spec");
    alter(&mut new, "spec.machineTemplate.spec.infrastructureRef", |reference| {
        let group = reference.get("apiVersion")?.as_str()?.split_once('/')?.0;
        Some(json!({"apiGroup": group, "kind": reference.get("kind")?, "name": reference.get("name")?}))
    });
    // It follows from the replicas.
    if let Some(Value::Object(status)) = new.get_mut("status") {
        status.remove("ready");
    }
    new
}

/// A KubeadmControlPlane of v1beta2 in v1beta1.
pub fn control_plane_from_storage(new: &Value) -> Value {
    let mut old = older(new, OLD, CONTROL_PLANE);
    spec_from_storage(&mut old, "spec");
    let namespace = old["metadata"].get("namespace").cloned();
    alter(&mut old, "spec.machineTemplate.infrastructureRef", |reference| {
        let version = format!("{}/v1beta1", reference.get("apiGroup")?.as_str()?);
        let mut old = json!({"apiVersion": version, "kind": reference.get("kind")?, "name": reference.get("name")?});
        if let Some(namespace) = &namespace {
            old["namespace"] = namespace.clone();
        }
        Some(old)
    });
    let ready = at(&old, "status.readyReplicas").and_then(Value::as_i64).map(|replicas| replicas > 0);
    if let (Some(Value::Object(status)), Some(ready)) = (old.get_mut("status"), ready) {
        status.insert("ready".into(), ready.into());
    }
    old
}

/// A KubeadmControlPlaneTemplate of v1beta1 in v1beta2.
pub fn template_to_storage(old: &Value) -> Value {
    let mut new = newer(old, NEW, TEMPLATE);
    spec_to_storage(&mut new, "spec.template.spec");
    drop_empty(&mut new, "spec.template", "metadata");
    new
}

/// A KubeadmControlPlaneTemplate of v1beta2 in v1beta1.
pub fn template_from_storage(new: &Value) -> Value {
    let mut old = older(new, OLD, TEMPLATE);
    spec_from_storage(&mut old, "spec.template.spec");
    old
}

fn spec_to_storage(object: &mut Value, spec: &str) {
    config_spec_to_storage(object, &format!("{spec}.kubeadmConfigSpec"));
    for (_, new) in TIMES {
        alter(object, &format!("{spec}.{new}"), |text| Some(seconds(text.as_str()?)?.into()));
    }
    alter(object, &format!("{spec}.rollout.strategy"), |strategy| {
        let mut strategy = strategy.as_object()?.clone();
        strategy.entry("type").or_insert_with(|| "RollingUpdate".into());
        Some(strategy.into())
    });
    // The newer version has no word for nothing.
    for (place, name) in [
        ("rollout", "before"),
        ("rollout.strategy", "rollingUpdate"),
        ("machineTemplate", "metadata"),
        ("", "machineTemplate"),
        ("", "rollout"),
        ("", "remediation"),
        ("", "machineNaming"),
        ("", "kubeadmConfigSpec"),
    ] {
        let place = if place.is_empty() { spec.to_owned() } else { format!("{spec}.{place}") };
        drop_empty(object, &place, name);
    }
}

fn spec_from_storage(object: &mut Value, spec: &str) {
    for (old, _) in TIMES {
        alter(object, &format!("{spec}.{old}"), |seconds| Some(duration(seconds.as_u64()?).into()));
    }
    drop_empty(object, &format!("{spec}.machineTemplate"), "spec");
    // The older version requires it.
    alter(object, spec, |spec| {
        let mut spec = spec.as_object()?.clone();
        spec.entry("kubeadmConfigSpec").or_insert_with(|| json!({}));
        Some(spec.into())
    });
    config_spec_from_storage(object, &format!("{spec}.kubeadmConfigSpec"));
}

/// Takes a member away that is an object without members.
fn drop_empty(object: &mut Value, place: &str, name: &str) {
    alter(object, place, |place| {
        let mut place = place.as_object()?.clone();
        let empty = place.get(name) == Some(&Value::Object(Map::new()));
        empty.then(|| place.remove(name))?;
        Some(place.into())
    });
}

/// What is filled in of a control plane, in either version: one machine, a `v` before the version, one after the other.
pub fn complete_control_plane(object: &mut Value) {
    let old = object["apiVersion"] == OLD;
    alter(object, "spec.version", |version| {
        let version = version.as_str().filter(|version| version.starts_with(|first: char| first.is_ascii_digit()))?;
        Some(format!("v{version}").into())
    });
    alter(object, "spec", |spec| {
        let mut spec = spec.as_object()?.clone();
        spec.entry("replicas").or_insert_with(|| 1.into());
        let strategy = if old {
            spec.entry("rolloutStrategy").or_insert_with(|| json!({}))
        } else {
            spec.entry("rollout")
                .or_insert_with(|| json!({}))
                .as_object_mut()?
                .entry("strategy")
                .or_insert_with(|| json!({}))
        };
        let strategy = strategy.as_object_mut()?;
        strategy.entry("type").or_insert_with(|| "RollingUpdate".into());
        let update = strategy.entry("rollingUpdate").or_insert_with(|| json!({})).as_object_mut()?;
        update.entry("maxSurge").or_insert_with(|| 1.into());
        Some(spec.into())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_plane_in_both_versions() {
        let old = json!({
            "apiVersion": OLD, "kind": "KubeadmControlPlane", "metadata": {"name": "c", "namespace": "rack"},
            "spec": {
                "replicas": 3, "version": "v1.34.0",
                "machineTemplate": {
                    "metadata": {"labels": {"a": "b"}},
                    "infrastructureRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
                        "kind": "Metal3MachineTemplate", "name": "c", "namespace": "rack"},
                    "readinessGates": [{"conditionType": "Fine"}], "nodeDrainTimeout": "1m30s", "nodeDeletionTimeout": "10s",
                    "taints": [{"key": "k", "effect": "NoSchedule", "propagation": "Always"}],
                },
                "kubeadmConfigSpec": {},
                "rolloutBefore": {"certificatesExpiryDays": 21}, "rolloutAfter": "2027-01-01T00:00:00Z",
                "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}},
                "remediationStrategy": {"maxRetry": 3, "retryPeriod": "1m0s", "minHealthyPeriod": "2h0m0s"},
                "machineNamingStrategy": {"template": "{{ .cluster.name }}-{{ .random }}"},
            },
            "status": {
                "initialized": true, "ready": true, "replicas": 3, "readyReplicas": 2, "updatedReplicas": 1,
                "unavailableReplicas": 1, "version": "v1.33.0", "failureReason": "Oops",
                "conditions": [{"type": "Ready", "status": "True"}],
                "lastRemediation": {"machine": "c-1", "timestamp": "2027-01-01T00:00:00Z", "retryCount": 1},
                "v1beta2": {"conditions": [{"type": "Available", "status": "True"}], "readyReplicas": 1,
                    "availableReplicas": 0, "upToDateReplicas": 2},
            },
        });
        let new = json!({
            "apiVersion": NEW, "kind": "KubeadmControlPlane", "metadata": {"name": "c", "namespace": "rack"},
            "spec": {
                "replicas": 3, "version": "v1.34.0",
                "machineTemplate": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {
                        "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io",
                            "kind": "Metal3MachineTemplate", "name": "c"},
                        "readinessGates": [{"conditionType": "Fine"}],
                        "deletion": {"nodeDrainTimeoutSeconds": 90, "nodeDeletionTimeoutSeconds": 10},
                        "taints": [{"key": "k", "effect": "NoSchedule", "propagation": "Always"}],
                    },
                },
                "rollout": {
                    "before": {"certificatesExpiryDays": 21}, "after": "2027-01-01T00:00:00Z",
                    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0}},
                },
                "remediation": {"maxRetry": 3, "retryPeriodSeconds": 60, "minHealthyPeriodSeconds": 7200},
                "machineNaming": {"template": "{{ .cluster.name }}-{{ .random }}"},
            },
            "status": {
                "initialization": {"controlPlaneInitialized": true}, "replicas": 3, "readyReplicas": 1,
                "availableReplicas": 0, "upToDateReplicas": 2, "version": "v1.33.0",
                "conditions": [{"type": "Available", "status": "True"}],
                "lastRemediation": {"machine": "c-1", "time": "2027-01-01T00:00:00Z", "retryCount": 1},
                "deprecated": {"v1beta1": {"readyReplicas": 2, "updatedReplicas": 1, "unavailableReplicas": 1,
                    "failureReason": "Oops", "conditions": [{"type": "Ready", "status": "True"}]}},
            },
        });
        assert_eq!(control_plane_to_storage(&old), new);
        assert_eq!(control_plane_from_storage(&new), old);
    }

    #[test]
    fn what_kubeadm_is_told_is_changed_too() {
        let args = |args: Value| json!({"clusterConfiguration": {"apiServer": {"extraArgs": args}}});
        let old = json!({"apiVersion": OLD, "metadata": {}, "spec": {"kubeadmConfigSpec": args(json!({"v": "2"}))}});
        let new = control_plane_to_storage(&old);
        assert_eq!(new["spec"]["kubeadmConfigSpec"], args(json!([{"name": "v", "value": "2"}])));
        assert_eq!(control_plane_from_storage(&new), old);
    }

    #[test]
    fn a_template_in_both_versions() {
        let old = json!({
            "apiVersion": OLD, "kind": "KubeadmControlPlaneTemplate", "metadata": {"name": "c"},
            "spec": {"template": {"spec": {
                "kubeadmConfigSpec": {}, "machineTemplate": {"nodeVolumeDetachTimeout": "5s"},
                "rolloutStrategy": {"type": "RollingUpdate"}, "remediationStrategy": {"retryPeriod": "0s"},
            }}},
        });
        let new = json!({
            "apiVersion": NEW, "kind": "KubeadmControlPlaneTemplate", "metadata": {"name": "c"},
            "spec": {"template": {"spec": {
                "machineTemplate": {"spec": {"deletion": {"nodeVolumeDetachTimeoutSeconds": 5}}},
                "rollout": {"strategy": {"type": "RollingUpdate"}}, "remediation": {"retryPeriodSeconds": 0},
            }}},
        });
        assert_eq!(template_to_storage(&old), new);
        assert_eq!(template_from_storage(&new), old);
        // What says nothing has no place in the newer version.
        let given = json!({"apiVersion": OLD, "spec": {"template": {"metadata": {}, "spec": {"kubeadmConfigSpec": {},
            "machineTemplate": {"metadata": {}}, "rolloutBefore": {}, "rolloutStrategy": {"rollingUpdate": {}},
            "remediationStrategy": {}, "machineNamingStrategy": {}}}}});
        let wanted = json!({"apiVersion": NEW, "spec": {"template": {"spec": {
            "rollout": {"strategy": {"type": "RollingUpdate"}}}}}});
        assert_eq!(template_to_storage(&given), wanted);
    }

    #[test]
    fn what_is_left_out_is_filled_in() {
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}});
        let mut new = json!({"apiVersion": NEW, "spec": {"version": "1.34.0"}});
        complete_control_plane(&mut new);
        assert_eq!(new["spec"], json!({"version": "v1.34.0", "replicas": 1, "rollout": {"strategy": strategy}}));
        let mut old = json!({"apiVersion": OLD, "spec": {"version": "v1.34.0", "replicas": 3}});
        complete_control_plane(&mut old);
        assert_eq!(old["spec"], json!({"version": "v1.34.0", "replicas": 3, "rolloutStrategy": strategy}));
        let said = json!({"apiVersion": NEW, "spec": {"version": "x", "replicas": 5,
            "rollout": {"strategy": {"type": "Other", "rollingUpdate": {"maxSurge": 0}}}}});
        let mut kept = said.clone();
        complete_control_plane(&mut kept);
        assert_eq!(kept, said);
        for odd in [json!({"spec": 1}), json!({"apiVersion": NEW, "spec": {"rollout": 1, "version": 2}}), json!([])] {
            let mut object = odd.clone();
            complete_control_plane(&mut object);
            assert_eq!(object, odd);
        }
    }
}
