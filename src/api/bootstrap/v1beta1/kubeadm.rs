//! kubeadm's configuration, as v1beta1 has it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bootstrap::kubeadm::{
    BootstrapTokenDiscovery, EncryptionAlgorithm, ExternalEtcd, FileDiscovery, HostPathMount, ImageMeta,
    ImagePullPolicy, LocalApiEndpoint, Patches,
};

/// kubeadm's configuration of a cluster. What the Cluster and the Machine say is not repeated here.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfiguration {
    /// `kubeadm.k8s.io` and a version; without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Name of this part; without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// etcd; on the nodes of the control plane when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<KubeadmEtcd>,
    /// Networks inside the cluster; as the Cluster says when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networking: Option<Networking>,
    /// Version of Kubernetes; as the Machine says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub kubernetes_version: Option<String>,
    /// Name of the cluster; that of the Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: Option<String>,
    /// Where the control plane is reached, with or without a port; as the Cluster says when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub control_plane_endpoint: Option<String>,
    /// The API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_server: Option<KubeadmApiServer>,
    /// The controller manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_manager: Option<Component>,
    /// The scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Component>,
    /// The DNS server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<ImageMeta>,
    /// Folder of the certificates; `/etc/kubernetes/pki` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub certificates_dir: Option<String>,
    /// Registry and path of the images; `registry.k8s.io` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image_repository: Option<String>,
    /// Features of kubeadm.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    /// Days for which the certificates that kubeadm makes are good; 365 when unset. From Kubernetes 1.31.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1095))]
    pub certificate_validity_period_days: Option<i32>,
    /// Days for which the authorities are good that are made here; 3650 when unset.
    #[serde(default, rename = "caCertificateValidityPeriodDays", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 36500))]
    pub ca_certificate_validity_period_days: Option<i32>,
    /// Algorithm of keys and certificates. From Kubernetes 1.31; P-384 from 1.34.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption_algorithm: Option<EncryptionAlgorithm>,
}

/// Networks inside a cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Networking {
    /// Where the addresses of services come from, joined by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub service_subnet: Option<String>,
    /// Where the addresses of pods come from, joined by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub pod_subnet: Option<String>,
    /// Domain of the services' names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub dns_domain: Option<String>,
}

/// Settings of the API server.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KubeadmApiServer {
    /// Arguments, without the dashes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_args: BTreeMap<String, String>,
    /// Files and folders of the node in its container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub extra_volumes: Vec<HostPathMount>,
    /// Variables of its environment. From Kubernetes 1.31.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub extra_envs: Option<Vec<EnvVar>>,
    /// Further names and addresses in its certificate.
    #[serde(default, rename = "certSANs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 253)))]
    pub cert_sans: Vec<String>,
    /// How long kubeadm waits for it, as `4m0s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_for_control_plane: Option<String>,
}

/// Settings of the controller manager or the scheduler.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// Arguments, without the dashes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_args: BTreeMap<String, String>,
    /// Files and folders of the node in its container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub extra_volumes: Vec<HostPathMount>,
    /// Variables of its environment. From Kubernetes 1.31.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub extra_envs: Option<Vec<EnvVar>>,
}

/// Where etcd is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct KubeadmEtcd {
    /// On the nodes of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalEtcd>,
    /// Elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalEtcd>,
}

/// An etcd on the nodes of the control plane.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LocalEtcd {
    /// Registry and path before the image's name; that of the cluster when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image_repository: Option<String>,
    /// Tag of the image; kubeadm's own choice when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub image_tag: Option<String>,
    /// Folder of its data; `/var/lib/etcd` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub data_dir: Option<String>,
    /// Arguments, without the dashes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_args: BTreeMap<String, String>,
    /// Variables of its environment. From Kubernetes 1.31.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub extra_envs: Option<Vec<EnvVar>>,
    /// Further names and addresses in its certificate as a server.
    #[serde(default, rename = "serverCertSANs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 253)))]
    pub server_cert_sans: Vec<String>,
    /// Further names and addresses in its certificate for the other members.
    #[serde(default, rename = "peerCertSANs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 253)))]
    pub peer_cert_sans: Vec<String>,
}

/// The node that begins a cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InitConfiguration {
    /// `kubeadm.k8s.io` and a version; without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Name of this part; without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Tokens that are made for nodes that join.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub bootstrap_tokens: Vec<BootstrapToken>,
    /// How the node registers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_registration: Option<NodeRegistration>,
    /// Where its API server listens.
    #[serde(default, rename = "localAPIEndpoint", skip_serializing_if = "Option::is_none")]
    pub local_api_endpoint: Option<LocalApiEndpoint>,
    /// Phases that are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50), inner(length(min = 1, max = 256)))]
    pub skip_phases: Vec<String>,
    /// Patches for what kubeadm makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patches: Option<Patches>,
}

/// A node that joins a cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct JoinConfiguration {
    /// `kubeadm.k8s.io` and a version; without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Name of this part; without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// How the node registers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_registration: Option<NodeRegistration>,
    /// File with the cluster's authority; `/etc/kubernetes/pki/ca.crt` when unset.
    #[serde(default, rename = "caCertPath", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub ca_cert_path: Option<String>,
    /// How the cluster is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<JoinDiscovery>,
    /// That the node is one of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<JoinControlPlane>,
    /// Phases that are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50), inner(length(min = 1, max = 256)))]
    pub skip_phases: Vec<String>,
    /// Patches for what kubeadm makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patches: Option<Patches>,
}

/// A node that joins a control plane.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct JoinControlPlane {
    /// Where its API server listens.
    #[serde(default, rename = "localAPIEndpoint", skip_serializing_if = "Option::is_none")]
    pub local_api_endpoint: Option<LocalApiEndpoint>,
}

/// How a node that joins finds its cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct JoinDiscovery {
    /// By a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_token: Option<BootstrapTokenDiscovery>,
    /// By a kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileDiscovery>,
    /// Token that the node asks for its certificate with; that of `bootstrapToken` when unset.
    #[serde(default, rename = "tlsBootstrapToken", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub tls_bootstrap_token: Option<String>,
    /// How long the node waits for its certificate, as `5m0s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// How a node registers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeRegistration {
    /// Name of the node; its host name when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,
    /// Socket of the container runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub cri_socket: Option<String>,
    /// Taints; none when empty, and kubeadm's own choice when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub taints: Option<Vec<Taint>>,
    /// Arguments of the kubelet, without the dashes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kubelet_extra_args: BTreeMap<String, String>,
    /// Checks whose failure is no error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50), inner(length(min = 1, max = 512)))]
    pub ignore_preflight_errors: Vec<String>,
    /// When images are pulled; `IfNotPresent` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Whether images are pulled one after the other. From Kubernetes 1.31.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_serial: Option<bool>,
}

/// A token that nodes join with.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapToken {
    /// The token: six characters, a dot and sixteen.
    #[schemars(length(min = 1, max = 23))]
    pub token: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub description: Option<String>,
    /// How long it is good, as `24h0m0s`; a day when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// What it can be used for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 256)))]
    pub usages: Vec<String>,
    /// Groups of whoever has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 256)))]
    pub groups: Vec<String>,
}
