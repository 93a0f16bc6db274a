//! What a machine of a control plane was told: what of its KubeadmConfig is looked at.
//!
//! A KubeadmConfig may be large, and parsed it is some times that. A look goes through all machines, so of each only this is kept.

use serde_json::Value;

use super::desired;
use super::health::NODE_LABEL;
use crate::cluster::contract::KubeVersion;

/// Where API servers listen when nothing else is said.
const PORT: u16 = 6443;

/// What counts of a KubeadmConfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ToldConfig {
    /// It says what would be said now.
    pub(super) is_current: bool,
    /// The node has no taint of control planes.
    pub(super) is_untainted: bool,
    /// Where the machine's API server listens.
    pub(super) port: u16,
}

impl ToldConfig {
    /// Of a KubeadmConfig's spec; `plane` is the spec of the control plane.
    pub(super) fn new(told: &Value, plane: &Value) -> Self {
        let version = plane["version"].as_str().and_then(|version| version.parse::<KubeVersion>().ok());
        let taints = ["initConfiguration", "joinConfiguration"]
            .into_iter()
            .find_map(|kind| told.get(kind)?.pointer("/nodeRegistration/taints")?.as_array());
        let port = [
            "/initConfiguration/localAPIEndpoint/bindPort",
            "/joinConfiguration/controlPlane/localAPIEndpoint/bindPort",
        ]
        .into_iter()
        .find_map(|path| told.pointer(path)?.as_u64());
        Self {
            is_current: version.is_none_or(|version| desired::is_current(told, plane, version)),
            is_untainted: taints.is_some_and(|taints| !taints.iter().any(|taint| taint["key"] == NODE_LABEL)),
            port: port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0).unwrap_or(PORT),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_counts_is_kept() {
        let taint = |key: &str| json!({"nodeRegistration": {"taints": [{"key": key}]}});
        let init = |port: Value| json!({"initConfiguration": {"localAPIEndpoint": {"bindPort": port}}});
        let joined = json!({"joinConfiguration": {"controlPlane": {"localAPIEndpoint": {"bindPort": 7443}}}});
        for (told, is_untainted, port) in [
            (json!({}), false, 6443),
            (json!({"initConfiguration": taint(NODE_LABEL)}), false, 6443),
            (json!({"joinConfiguration": taint("other")}), true, 6443),
            (json!({"initConfiguration": {"nodeRegistration": {"taints": []}}}), true, 6443),
            (init(json!(7443)), false, 7443),
            (init(json!(0)), false, 6443),
            (init(json!(70000)), false, 6443),
            (joined, false, 7443),
        ] {
            let found = ToldConfig::new(&told, &json!({"version": "none"}));
            assert_eq!(found, ToldConfig { is_current: true, is_untainted, port }, "{told}");
        }
        let plane = json!({"version": "v1.34.0", "kubeadmConfigSpec": {"files": [{"path": "/x", "content": "y"}]}});
        let told = desired::config(&plane, "v1.34.0".parse().unwrap(), true);
        assert!(ToldConfig::new(&told, &plane).is_current);
        assert!(!ToldConfig::new(&json!({"files": []}), &plane).is_current);
    }
}
