//! User data of a machine: what it is made of.

use kube::ResourceExt;

use super::contents;
use super::controller::{KubeadmConfigReconciler, KubeadmConfigScope};
use super::fault::BootstrapFault;
use super::render::kubeadm::{self, ClusterFacts};
use super::render::{KubeadmCommand, NodeFile, UserData};
use super::status::{BootstrapCondition, BootstrapFindings};
use crate::api::cluster::ClusterNetwork;
use crate::api::cluster::v1beta2::Cluster;
use crate::cluster::certificates::{self, Certificates, needed};
use crate::cluster::contract::{KubeVersion, fields};
use crate::runtime::owners;

/// User data of the machine that begins the cluster.
pub(super) async fn init(
    keeper: &KubeadmConfigReconciler,
    scope: &KubeadmConfigScope,
    findings: &mut BootstrapFindings,
) -> Result<Vec<u8>, BootstrapFault> {
    let spec = &scope.config.spec;
    let config = spec.cluster_configuration.as_ref();
    let certificates = if scope.cluster.spec.control_plane_ref.is_some() {
        keeper.certificates(scope, &needed(config), findings).await?
    } else {
        // Nobody else makes them.
        let owner = owners::owner(&scope.config, true);
        certificates::provide(keeper.client(), scope.place(), &owner, config).await?
    };
    findings.certificates = Some(BootstrapCondition::available());
    let facts = facts(&scope.cluster, scope.version()?);
    let init = spec.init_configuration.clone().unwrap_or_default();
    let documents = kubeadm::init(&facts, &config.cloned().unwrap_or_default(), &init)?;
    render(keeper, scope, KubeadmCommand::Init, documents, Some(&certificates), Vec::new()).await
}

/// The user data, with the files and users that the spec names.
pub(super) async fn render(
    keeper: &KubeadmConfigReconciler,
    scope: &KubeadmConfigScope,
    command: KubeadmCommand,
    kubeadm: String,
    certificates: Option<&Certificates>,
    more: Vec<NodeFile>,
) -> Result<Vec<u8>, BootstrapFault> {
    let (client, spec) = (keeper.client(), &scope.config.spec);
    let mut files = Vec::new();
    for file in certificates.into_iter().flat_map(|all| all.files(spec.cluster_configuration.as_ref())) {
        files.push(NodeFile::of_root(&file.path, file.permissions, file.content));
    }
    let version = match spec.files.iter().any(contents::is_template) {
        true => control_plane_version(keeper, scope).await?,
        false => None,
    };
    files.extend(contents::files(client, &scope.namespace, &spec.files, version.as_deref()).await?);
    files.extend(more);
    let users = contents::users(client, &scope.namespace, &spec.users).await?;
    Ok(UserData { command, kubeadm, files, users, spec }.render()?)
}

/// The version that the cluster's control plane is to have.
async fn control_plane_version(
    keeper: &KubeadmConfigReconciler,
    scope: &KubeadmConfigScope,
) -> Result<Option<String>, BootstrapFault> {
    let Some(reference) = &scope.cluster.spec.control_plane_ref else { return Ok(None) };
    let found = keeper.objects.get(&scope.namespace, reference).await?;
    let version = found.and_then(|found| found.data()["spec"]["version"].as_str().map(str::to_owned));
    let version = version.map(|version| version.parse::<KubeVersion>()).transpose();
    let version = version.map_err(|reason| BootstrapFault::spec("spec.files", reason))?;
    Ok(version.map(|version| version.to_string()))
}

/// What the Cluster says of itself.
fn facts(cluster: &Cluster, version: &str) -> ClusterFacts {
    let network = cluster.spec.cluster_network.clone().unwrap_or_default();
    let ClusterNetwork { services, pods, service_domain, .. } = network;
    let ranges =
        |ranges: Option<crate::api::cluster::NetworkRanges>| ranges.map(|all| all.cidr_blocks).unwrap_or_default();
    ClusterFacts {
        name: cluster.name_any(),
        version: version.to_owned(),
        endpoint: endpoint(cluster),
        dns_domain: service_domain,
        services: ranges(services),
        pods: ranges(pods),
    }
}

/// Host and port of the cluster's API server, once somebody has said them.
pub(super) fn endpoint(cluster: &Cluster) -> Option<String> {
    let endpoint = serde_json::to_value(cluster).ok().and_then(|cluster| fields::endpoint(&cluster))?;
    let port = endpoint.port?;
    let is_v6 = endpoint.host.contains(':') && !endpoint.host.starts_with('[');
    Some(if is_v6 { format!("[{}]:{port}", endpoint.host) } else { format!("{}:{port}", endpoint.host) })
}
