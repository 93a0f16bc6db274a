//! Machines of a cluster that get another release together.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Machines of a cluster that get another release together. It is of the cluster in its label `cluster.sigs.k8s.io/cluster-name`, and a
/// Machine is of the group in its own label `kaas.mirantis.com/update-group`.
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[kube(
    group = "kaas.mirantis.com",
    version = "v1alpha1",
    kind = "UpdateGroup",
    plural = "updategroups",
    singular = "updategroup",
    namespaced,
    derive = "PartialEq",
    printcolumn = r#"{"name":"Cluster","type":"string","jsonPath":".metadata.labels.cluster\\.sigs\\.k8s\\.io/cluster-name","description":"Cluster whose machines it is about"}"#,
    printcolumn = r#"{"name":"Index","type":"integer","jsonPath":".spec.index","description":"Its place in the order"}"#,
    printcolumn = r#"{"name":"Concurrent","type":"integer","jsonPath":".spec.concurrentUpdates","description":"Machines that are updated at once"}"#,
    printcolumn = r#"{"name":"Reboot","type":"boolean","jsonPath":".spec.rebootIfUpdateRequires","description":"Whether machines reboot for a release that requires it"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Time since creation"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct UpdateGroupSpec {
    /// Its place in the order: lower ones come first, equal ones at the same time. The control plane comes before all of them.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 10000))]
    pub index: i32,
    /// Machines of it that are drained and updated at once. Those of the control plane change one by one, whatever it says.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 500))]
    pub concurrent_updates: i32,
    /// Whether its machines are rebooted for a release that requires it, while they are drained.
    #[serde(default)]
    pub reboot_if_update_requires: bool,
}

fn one() -> i32 {
    1
}

impl Default for UpdateGroupSpec {
    fn default() -> Self {
        Self { index: one(), concurrent_updates: one(), reboot_if_update_requires: false }
    }
}

/// Name of the group of a cluster's workers that are of no other one.
pub fn default_group(cluster: &str) -> String {
    format!("{cluster}-default")
}

/// Name of the group of a cluster's control plane.
pub fn control_group(cluster: &str) -> String {
    format!("{cluster}-control")
}
