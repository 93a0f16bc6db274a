//! kubeadm's configuration, as v1beta2 has it.

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
#[schemars(extend("minProperties" = 1))]
pub struct ClusterConfiguration {
    /// etcd; on the nodes of the control plane when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<KubeadmEtcd>,
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
    #[schemars(extend("minProperties" = 1))]
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

/// Settings of the API server.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct KubeadmApiServer {
    /// Arguments, without the dashes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "args")]
    pub extra_args: Vec<Arg>,
    /// Files and folders of the node in its container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub extra_volumes: Vec<HostPathMount>,
    /// Variables of its environment. From Kubernetes 1.31.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100))]
    pub extra_envs: Option<Vec<EnvVar>>,
    /// Further names and addresses in its certificate.
    #[serde(default, rename = "certSANs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 253)))]
    pub cert_sans: Vec<String>,
}

/// Settings of the controller manager or the scheduler.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct Component {
    /// Arguments, without the dashes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "args")]
    pub extra_args: Vec<Arg>,
    /// Files and folders of the node in its container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub extra_volumes: Vec<HostPathMount>,
    /// Variables of its environment. From Kubernetes 1.31.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100))]
    pub extra_envs: Option<Vec<EnvVar>>,
}

/// An argument of a program.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Arg {
    /// Name, without the dashes.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Value.
    #[schemars(length(max = 1024))]
    pub value: String,
}

/// Where etcd is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("minProperties" = 1))]
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
#[schemars(extend("minProperties" = 1))]
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "args")]
    pub extra_args: Vec<Arg>,
    /// Variables of its environment. From Kubernetes 1.31.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100))]
    pub extra_envs: Option<Vec<EnvVar>>,
    /// Further names and addresses in its certificate as a server.
    #[serde(default, rename = "serverCertSANs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 253)))]
    pub server_cert_sans: Vec<String>,
    /// Further names and addresses in its certificate for the other members.
    #[serde(default, rename = "peerCertSANs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 253)))]
    pub peer_cert_sans: Vec<String>,
}

/// The node that begins a cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct InitConfiguration {
    /// Tokens that are made for nodes that join.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100))]
    pub bootstrap_tokens: Vec<BootstrapToken>,
    /// How the node registers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_registration: Option<NodeRegistration>,
    /// Where its API server listens.
    #[serde(default, rename = "localAPIEndpoint", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub local_api_endpoint: Option<LocalApiEndpoint>,
    /// Phases that are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 50), inner(length(min = 1, max = 256)))]
    pub skip_phases: Vec<String>,
    /// Patches for what kubeadm makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub patches: Option<Patches>,
    /// How long kubeadm waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<KubeadmTimeouts>,
}

/// A node that joins a cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct JoinConfiguration {
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
    #[schemars(length(min = 1, max = 50), inner(length(min = 1, max = 256)))]
    pub skip_phases: Vec<String>,
    /// Patches for what kubeadm makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub patches: Option<Patches>,
    /// How long kubeadm waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<KubeadmTimeouts>,
}

/// A node that joins a control plane.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct JoinControlPlane {
    /// Where its API server listens.
    #[serde(default, rename = "localAPIEndpoint", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub local_api_endpoint: Option<LocalApiEndpoint>,
}

/// How a node that joins finds its cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct JoinDiscovery {
    /// By a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minProperties" = 1))]
    pub bootstrap_token: Option<BootstrapTokenDiscovery>,
    /// By a kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileDiscovery>,
    /// Token that the node asks for its certificate with; that of `bootstrapToken` when unset.
    #[serde(default, rename = "tlsBootstrapToken", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub tls_bootstrap_token: Option<String>,
}

/// How a node registers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "args")]
    pub kubelet_extra_args: Vec<Arg>,
    /// Checks whose failure is no error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 50), inner(length(min = 1, max = 512)))]
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
    /// Seconds that it is good for; a day when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds: Option<i32>,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// What it can be used for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 256)))]
    pub usages: Vec<String>,
    /// Groups of whoever has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 100), inner(length(min = 1, max = 256)))]
    pub groups: Vec<String>,
}

/// How long kubeadm waits, in seconds.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub struct KubeadmTimeouts {
    /// For a component of the control plane; 240 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub control_plane_component_health_check_seconds: Option<i32>,
    /// For the kubelet; 240 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub kubelet_health_check_seconds: Option<i32>,
    /// For an answer of the API server; 60 when unset.
    #[serde(default, rename = "kubernetesAPICallSeconds", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub kubernetes_api_call_seconds: Option<i32>,
    /// For an answer of etcd; 120 when unset.
    #[serde(default, rename = "etcdAPICallSeconds", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub etcd_api_call_seconds: Option<i32>,
    /// For the kubelet's certificate; 300 when unset.
    #[serde(default, rename = "tlsBootstrapSeconds", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub tls_bootstrap_seconds: Option<i32>,
    /// For the cluster to be found; 300 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub discovery_seconds: Option<i32>,
}

/// Arguments as a list by name and value. A name is there once.
fn args(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": generator.subschema_for::<Arg>(),
        "minItems": 1,
        "maxItems": 100,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name", "value"],
        "x-kubernetes-validations": [{
            "rule": "self.all(x, self.exists_one(y, x.name == y.name))",
            "message": "extraArgs name must be unique",
        }],
    })
}
