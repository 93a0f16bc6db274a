//! Parts of kubeadm's configuration that are alike in both versions.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Algorithm of keys and certificates.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncryptionAlgorithm {
    /// ECDSA with P-256.
    #[serde(rename = "ECDSA-P256")]
    EcdsaP256,
    /// ECDSA with P-384.
    #[serde(rename = "ECDSA-P384")]
    EcdsaP384,
    /// RSA with 2048 bits.
    #[serde(rename = "RSA-2048")]
    Rsa2048,
    /// RSA with 3072 bits.
    #[serde(rename = "RSA-3072")]
    Rsa3072,
    /// RSA with 4096 bits.
    #[serde(rename = "RSA-4096")]
    Rsa4096,
}

/// When images are pulled.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImagePullPolicy {
    /// Each time.
    Always,
    /// When they are not there.
    #[default]
    IfNotPresent,
    /// Not at all.
    Never,
}

/// Where an API server of a node listens.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LocalApiEndpoint {
    /// Address that it tells others; that of the default route when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 39))]
    pub advertise_address: Option<String>,
    /// Its port; 6443 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub bind_port: Option<i32>,
}

/// A folder of patches for what kubeadm makes.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Patches {
    /// The folder; its files are named `TARGET[SUFFIX][+TYPE].yaml` or `.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub directory: Option<String>,
}

/// A file or folder of the node in a component's container.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HostPathMount {
    /// Name of the volume.
    #[schemars(length(min = 1, max = 512))]
    pub name: String,
    /// Path on the node.
    #[schemars(length(min = 1, max = 512))]
    pub host_path: String,
    /// Path in the container.
    #[schemars(length(min = 1, max = 512))]
    pub mount_path: String,
    /// Whether the container may only read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// What it is to be, as of a volume `hostPath`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_type: Option<String>,
}

/// An image's registry and tag.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ImageMeta {
    /// Registry and path before the image's name; that of the cluster when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image_repository: Option<String>,
    /// Tag; kubeadm's own choice when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub image_tag: Option<String>,
}

/// An etcd that runs elsewhere.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ExternalEtcd {
    /// Its members.
    #[schemars(length(max = 50), inner(length(min = 1, max = 512)))]
    pub endpoints: Vec<String>,
    /// File on the node with its certificate authority.
    #[schemars(length(min = 1, max = 512))]
    pub ca_file: String,
    /// File on the node with the certificate of its client.
    #[schemars(length(min = 1, max = 512))]
    pub cert_file: String,
    /// File on the node with the key of its client.
    #[schemars(length(min = 1, max = 512))]
    pub key_file: String,
}

/// A cluster is found by a token.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapTokenDiscovery {
    /// The token; made when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub token: Option<String>,
    /// Address and port of the API server; that of the Cluster when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub api_server_endpoint: Option<String>,
    /// What the cluster's authority must be: `sha256:` and the digest of its public key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 512)))]
    pub ca_cert_hashes: Vec<String>,
    /// Whether any authority is believed.
    #[serde(default, rename = "unsafeSkipCAVerification", skip_serializing_if = "Option::is_none")]
    pub unsafe_skip_ca_verification: Option<bool>,
}

/// A cluster is found by a kubeconfig.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FileDiscovery {
    /// File on the node, or a URL.
    #[schemars(length(min = 1, max = 512))]
    pub kube_config_path: String,
    /// What is written to that file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_config: Option<FileDiscoveryKubeConfig>,
}

/// What a kubeconfig for finding the cluster holds.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct FileDiscoveryKubeConfig {
    /// The cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<KubeConfigCluster>,
    /// Who the node is there.
    pub user: KubeConfigUser,
}

/// The cluster in a kubeconfig.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KubeConfigCluster {
    /// URL of its API server; that of the Cluster when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub server: Option<String>,
    /// Name in its certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub tls_server_name: Option<String>,
    /// Whether any certificate is believed.
    #[serde(default, rename = "insecureSkipTLSVerify", skip_serializing_if = "Option::is_none")]
    pub insecure_skip_tls_verify: Option<bool>,
    /// Its authorities in PEM, as base64; that of the Cluster when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 51200), extend("format" = "byte"))]
    pub certificate_authority_data: Option<String>,
    /// Proxy on the way there.
    #[serde(default, rename = "proxyURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub proxy_url: Option<String>,
}

/// The user in a kubeconfig.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KubeConfigUser {
    /// A plugin of kubectl's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_provider: Option<KubeConfigAuthProvider>,
    /// A program that says who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<KubeConfigAuthExec>,
}

/// A plugin of kubectl's that says who the user is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct KubeConfigAuthProvider {
    /// Its name.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Its settings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
}

/// A program on the node that says who the user is.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct KubeConfigAuthExec {
    /// The program.
    #[schemars(length(min = 1, max = 1024))]
    pub command: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 1, max = 512)))]
    pub args: Vec<String>,
    /// Its environment, beside that of whoever calls it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub env: Vec<KubeConfigAuthExecEnv>,
    /// Version of what is said between the two; `client.authentication.k8s.io/v1` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub api_version: Option<String>,
    /// Whether the program is told of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provide_cluster_info: Option<bool>,
}

/// A variable of a program's environment.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct KubeConfigAuthExecEnv {
    /// Its name.
    #[schemars(length(min = 1, max = 512))]
    pub name: String,
    /// Its value.
    #[schemars(length(min = 1, max = 512))]
    pub value: String,
}
