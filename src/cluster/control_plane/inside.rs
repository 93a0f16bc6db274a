//! The cluster that was made, as its API server shows it, and what is changed in it.
//!
//! Every request has its bounds ([`Workload`]); what is read and unchanged is not written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Container, Node, NodeSpec, NodeStatus, Pod, PodStatus, Secret};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::etcd::{EtcdMembers, SYSTEM};
use super::health::{ClusterReport, NODE_LABEL, PODS};
use super::upgrade::{self, CoreDnsKept};
use crate::cluster::contract::KubeVersion;
use crate::cluster::workload::{Forward, Workload, said};

/// ConfigMap in which kubeadm keeps what it was told.
const KUBEADM_CONFIG: &str = "kubeadm-config";
const CLUSTER_CONFIGURATION: &str = "ClusterConfiguration";
/// Pods of control planes have this label.
const CONTROL_PLANE_PODS: &str = "tier=control-plane";
/// Pods that are looked at.
const PODS_MAX: u32 = 80;
/// Taints, conditions and containers that are looked at.
const LISTED: usize = 32;
/// How long a look at a certificate may take.
const HANDSHAKE: Duration = Duration::from_secs(15);
/// kubeadm makes this binding itself from this minor version on.
const BINDING_UNTIL: (u32, u32) = (1, 38);

/// Whether kubeadm has begun the cluster: it leaves what it was told behind.
///
/// # Errors
///
/// When the cluster does not answer.
pub(super) async fn is_begun(workload: &Workload) -> Result<bool, String> {
    let maps = Api::<ConfigMap>::namespaced(workload.client().clone(), SYSTEM);
    Ok(maps.get_opt(KUBEADM_CONFIG).await.map_err(|error| said(&error))?.is_some())
}

/// Looks at nodes, the pods on them, and etcd.
///
/// # Errors
///
/// When the cluster does not answer.
pub(super) async fn look(
    workload: &Workload,
    nodes: &[String],
    members: Option<Result<Arc<dyn EtcdMembers>, String>>,
) -> Result<ClusterReport, String> {
    let mut found = BTreeMap::new();
    for name in nodes {
        let node = workload.node(name).await.map_err(|error| error.to_string())?;
        found.extend(node.map(|node| (name.clone(), bare_node(node))));
    }
    let params = ListParams::default().labels(CONTROL_PLANE_PODS).limit(PODS_MAX);
    let pods = Api::<Pod>::namespaced(workload.client().clone(), SYSTEM).list(&params).await;
    let of_nodes = |name: &str| {
        PODS.iter().any(|(_, pod)| {
            name.strip_prefix(pod).and_then(|rest| rest.strip_prefix('-')).is_some_and(|node| found.contains_key(node))
        })
    };
    let pods = pods.map_err(|error| said(&error))?.items.into_iter();
    let pods = pods.map(|pod| (pod.name_any(), pod)).filter(|(name, _)| of_nodes(name));
    let pods: BTreeMap<String, Pod> = pods.map(|(name, pod)| (name, bare_pod(pod))).collect();
    let alive: Vec<String> = nodes.iter().filter(|name| found.contains_key(*name)).cloned().collect();
    let etcd = match members {
        None => None,
        Some(Err(reason)) => Some(Err(reason)),
        Some(Ok(_)) if alive.is_empty() => Some(Err("no Machine has a Node yet".into())),
        Some(Ok(members)) => Some(members.look(&alive).await),
    };
    Ok(ClusterReport { nodes: found, pods, etcd })
}

/// What of a node is looked at: a cluster may put much into each. Lists are made anew, for one that is only filtered keeps its room.
fn bare_node(node: Node) -> Node {
    let labels = node.metadata.labels.and_then(|mut all| all.remove_entry(NODE_LABEL)).map(|one| [one].into());
    let mut taints = Vec::new();
    taints.extend(node.spec.and_then(|spec| spec.taints).into_iter().flatten().take(LISTED));
    let mut conditions = Vec::new();
    let all = node.status.and_then(|status| status.conditions).into_iter().flatten();
    conditions.extend(all.filter(|one| one.type_ == "Ready").take(1));
    Node {
        metadata: ObjectMeta { name: node.metadata.name, labels, ..ObjectMeta::default() },
        spec: Some(NodeSpec { taints: Some(taints), ..NodeSpec::default() }),
        status: Some(NodeStatus { conditions: Some(conditions), ..NodeStatus::default() }),
    }
}

/// The same of a pod.
fn bare_pod(pod: Pod) -> Pod {
    let status = pod.status.map(|status| {
        let (mut conditions, mut containers) = (Vec::new(), Vec::new());
        conditions.extend(status.conditions.into_iter().flatten().take(LISTED));
        containers.extend(status.container_statuses.into_iter().flatten().take(LISTED));
        PodStatus {
            phase: status.phase,
            conditions: Some(conditions),
            container_statuses: Some(containers),
            ..PodStatus::default()
        }
    });
    Pod { metadata: ObjectMeta { name: pod.metadata.name, ..ObjectMeta::default() }, status, ..Pod::default() }
}

/// Has kubeadm's next machine find what it needs: its configuration of the wanted version, and the rights that it counts on.
///
/// # Errors
///
/// When the cluster does not answer, or what is there cannot be changed.
pub(super) async fn prepare(
    workload: &Workload,
    spec: &Value,
    version: KubeVersion,
    managed: bool,
) -> Result<(), String> {
    bind_kubelet_client(workload.client(), version).await?;
    // Nodes that join go by this, and not by what their KubeadmConfig says of the cluster.
    let mut config = spec["kubeadmConfigSpec"].clone();
    super::desired::add_gates(&mut config, version);
    let config = &config["clusterConfiguration"];
    let text = spec["version"].as_str().unwrap_or_default();
    configure(workload.client(), |before| upgrade::cluster_configuration(before, text, config, managed)).await
}

/// Changes kubeadm's configuration.
async fn configure(client: &Client, change: impl Fn(&str) -> Result<Option<String>, String>) -> Result<(), String> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), SYSTEM);
    let map = maps.get(KUBEADM_CONFIG).await.map_err(|error| said(&error))?;
    let before = map.data.as_ref().and_then(|data| data.get(CLUSTER_CONFIGURATION));
    let before = before.ok_or_else(|| format!("the ConfigMap {KUBEADM_CONFIG} has no {CLUSTER_CONFIGURATION}"))?;
    let Some(after) = change(before)? else { return Ok(()) };
    let patch = json!({
        "metadata": {"resourceVersion": map.resource_version()}, "data": {CLUSTER_CONFIGURATION: after},
    });
    let patched = maps.patch(KUBEADM_CONFIG, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.map(drop).map_err(|error| said(&error))
}

/// The API server's client of kubelets has its rights by a binding, since kubeadm 1.37.
async fn bind_kubelet_client(client: &Client, version: KubeVersion) -> Result<(), String> {
    if (version.major, version.minor) >= BINDING_UNTIL {
        return Ok(());
    }
    let name = "kubeadm:apiserver-kubelet-client";
    let bindings = Api::<ClusterRoleBinding>::all(client.clone());
    if bindings.get_opt(name).await.map_err(|error| said(&error))?.is_some() {
        return Ok(());
    }
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "kube-apiserver-kubelet-client"}],
    });
    let binding: ClusterRoleBinding = serde_json::from_value(binding).map_err(|error| error.to_string())?;
    match bindings.create(&PostParams::default(), &binding).await {
        Err(kube::Error::Api(error)) if error.is_already_exists() => Ok(()),
        created => created.map(drop).map_err(|error| said(&error)),
    }
}

/// Brings kube-proxy to the version of the control plane, where it is kubeadm's. One that is not there is well.
///
/// # Errors
///
/// When the cluster does not answer.
pub(super) async fn update_kube_proxy(workload: &Workload, spec: &Value) -> Result<(), String> {
    const NAME: &str = "kube-proxy";
    let sets = Api::<DaemonSet>::namespaced(workload.client().clone(), SYSTEM);
    let Some(set) = sets.get_opt(NAME).await.map_err(|error| said(&error))? else { return Ok(()) };
    let pods = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let Some(image) = pods.and_then(|pods| image_of(&pods.containers, NAME)) else { return Ok(()) };
    let repository = spec.pointer("/kubeadmConfigSpec/clusterConfiguration/imageRepository").and_then(Value::as_str);
    let version = spec["version"].as_str().unwrap_or_default();
    let Some(image) = upgrade::kube_proxy(image, version, repository.filter(|text| !text.is_empty())) else {
        return Ok(());
    };
    let patched = sets.patch(NAME, &PatchParams::default(), &Patch::Strategic(images(NAME, &image))).await;
    patched.map(drop).map_err(|error| said(&error))
}

/// Gives CoreDNS the image that the control plane says, where it is kubeadm's. Its Corefile stays as it is.
///
/// # Errors
///
/// When the cluster does not answer, or CoreDNS has to stay as it is.
pub(super) async fn update_coredns(workload: &Workload, spec: &Value) -> Result<(), String> {
    const NAME: &str = "coredns";
    let config = &spec["kubeadmConfigSpec"]["clusterConfiguration"];
    if !config.is_object() {
        return Ok(());
    }
    let deployments = Api::<Deployment>::namespaced(workload.client().clone(), SYSTEM);
    let Some(deployment) = deployments.get_opt(NAME).await.map_err(|error| said(&error))? else { return Ok(()) };
    let pods = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let Some(image) = pods.and_then(|pods| image_of(&pods.containers, NAME)) else { return Ok(()) };
    let repository = config["imageRepository"].as_str().filter(|text| !text.is_empty());
    let image = match upgrade::coredns(image, repository, &config["dns"]) {
        Ok(image) => image,
        Err(CoreDnsKept::Same) => return Ok(()),
        Err(CoreDnsKept::Refused(reason)) => return Err(format!("CoreDNS stays as it is: {reason}")),
    };
    configure(workload.client(), |before| upgrade::dns_configuration(before, config)).await?;
    let patched = deployments.patch(NAME, &PatchParams::default(), &Patch::Strategic(images(NAME, &image))).await;
    patched.map(drop).map_err(|error| said(&error))
}

fn image_of<'c>(containers: &'c [Container], name: &str) -> Option<&'c str> {
    containers.iter().find(|container| container.name == name)?.image.as_deref()
}

fn images(container: &str, image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": container, "image": image}]}}}})
}

/// When the certificate of the API server on a node ends.
///
/// # Errors
///
/// When it cannot be reached, or shows a certificate of another CA.
pub(super) async fn certificate_end(
    client: &Client,
    workload: &Workload,
    cluster: (&str, &str),
    node: &str,
    port: u16,
) -> Result<Timestamp, String> {
    let work = async {
        let name = format!("{}-ca", cluster.1);
        let secret =
            Api::<Secret>::namespaced(client.clone(), cluster.0).get(&name).await.map_err(|error| said(&error))?;
        let pem =
            secret.data.as_ref().and_then(|data| data.get("tls.crt")).ok_or("the cluster's CA has no certificate")?;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem.0).flatten() {
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        let provider = rustls::crypto::ring::default_provider();
        let tls = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tunnel = workload.tunnel().ok_or("the cluster cannot be tunnelled to")?;
        let pods = Api::<Pod>::namespaced(tunnel, SYSTEM);
        let pod = format!("kube-apiserver-{node}");
        let mut ports = Forward(pods.portforward(&pod, &[port]).await.map_err(|error| said(&error))?);
        let stream = ports.0.take_stream(port).ok_or("the tunnel has no stream")?;
        // kubeadm puts this name into the certificate of each API server.
        let name = ServerName::try_from("kubernetes").map_err(|error| error.to_string())?;
        let stream =
            TlsConnector::from(Arc::new(tls)).connect(name, stream).await.map_err(|error| error.to_string())?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        ends(chain.first().ok_or("the API server shows no certificate")?)
    };
    timeout(HANDSHAKE, work).await.unwrap_or_else(|_| Err(format!("no answer within {} s", HANDSHAKE.as_secs())))
}

fn ends(certificate: &CertificateDer<'_>) -> Result<Timestamp, String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|error| error.to_string())?;
    Timestamp::from_second(parsed.validity().not_after.timestamp()).map_err(|error| error.to_string())
}
