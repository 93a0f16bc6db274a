//! `controlplane.cluster.x-k8s.io`: control planes that kubeadm makes, as Cluster API publishes them, in both of their versions.
//!
//! What is alike in the two versions stands here; each has a file of its own, and [`convert`] says how one becomes the other.

pub mod convert;
pub mod v1beta1;
pub mod v1beta2;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The API group.
pub const GROUP: &str = "controlplane.cluster.x-k8s.io";
/// Finalizer of a KubeadmControlPlane.
pub const FINALIZER: &str = "kubeadm.controlplane.cluster.x-k8s.io";
/// Annotation of a control plane whose CoreDNS is somebody else's.
pub const ANNOTATION_SKIP_COREDNS: &str = "controlplane.cluster.x-k8s.io/skip-coredns";
/// Annotation of a control plane whose kube-proxy is somebody else's.
pub const ANNOTATION_SKIP_KUBE_PROXY: &str = "controlplane.cluster.x-k8s.io/skip-kube-proxy";
/// Annotation of a control plane of which an unhealthy machine was deleted, and whose replacement is not there yet.
pub const ANNOTATION_REMEDIATING: &str = "controlplane.cluster.x-k8s.io/remediation-in-progress";
/// Annotation of a machine that replaces an unhealthy one.
pub const ANNOTATION_REMEDIATION_FOR: &str = "controlplane.cluster.x-k8s.io/remediation-for";
/// Annotation that keeps a machine which is being deleted until its member of etcd has left.
pub const ANNOTATION_CLEANUP_HOOK: &str = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/kcp-cleanup";

/// How machines are replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RolloutStrategyType {
    /// One after the other.
    #[default]
    RollingUpdate,
}

/// How machines are replaced one after the other.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneRollingUpdate {
    /// Machines that may be there beyond those wished for: 1, or 0 where at least three are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
}

/// How the machines are named.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct ControlPlaneMachineNaming {
    /// A name with `{{ .cluster.name }}`, `{{ .kubeadmControlPlane.name }}` and `{{ .random }}`, the last of which must be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub template: Option<String>,
}
