//! A machine that joins a cluster: how it finds it, and its user data.

use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::controller::{KubeadmConfigReconciler, KubeadmConfigScope};
use super::data;
use super::fault::BootstrapFault;
use super::render::{KubeadmCommand, NodeFile, kubeadm};
use super::status::{BootstrapCondition, BootstrapFindings};
use super::{store, token};
use crate::api::bootstrap::kubeadm::{BootstrapTokenDiscovery, FileDiscovery};
use crate::api::bootstrap::v1beta2::{JoinConfiguration, KubeadmConfig};
use crate::api::cluster::keys::{LABEL_CONTROL_PLANE, TAINT_UNINITIALIZED};
use crate::cluster::certificates::{CertificatePurpose, Certificates, hashes, needed};

/// The token that a KubeadmConfig's node joins with.
pub(super) fn token(config: &KubeadmConfig) -> Option<&str> {
    config.spec.join_configuration.as_ref()?.discovery.as_ref()?.bootstrap_token.as_ref()?.token.as_deref()
}

/// Makes the user data of a machine that joins. After which time it is looked at again; nothing where a change brings that about.
pub(super) async fn join(
    keeper: &KubeadmConfigReconciler,
    scope: &mut KubeadmConfigScope,
    findings: &mut BootstrapFindings,
) -> Result<Option<Duration>, BootstrapFault> {
    let is_control_plane = scope.machine.labels().contains_key(LABEL_CONTROL_PLANE);
    let given = scope.config.spec.join_configuration.clone().unwrap_or_default();
    if !is_control_plane && given.control_plane.is_some() {
        let reason = "it is there, but the Machine is none of the control plane";
        return Err(BootstrapFault::spec("spec.joinConfiguration.controlPlane", reason));
    }
    let purposes = if is_control_plane {
        needed(scope.config.spec.cluster_configuration.as_ref())
    } else {
        vec![CertificatePurpose::Ca]
    };
    let certificates = keeper.certificates(scope, &purposes, findings).await?;
    let Some(endpoint) = data::endpoint(&scope.cluster) else {
        findings.data = Some(BootstrapCondition::waits(
            "WaitingForControlPlaneAvailable",
            "Waiting for spec.controlPlaneEndpoint of the cluster",
        ));
        return Ok(Some(keeper.times.pause));
    };
    let mut more = Vec::new();
    let file = given.discovery.as_ref().and_then(|discovery| discovery.file.as_ref());
    if let Some(file) = file {
        more.extend(discovery_file(file, &endpoint, &certificates)?);
    } else {
        discover(keeper, scope, &endpoint, &certificates).await?;
    }
    let configuration = scope.config.spec.join_configuration.clone().unwrap_or_default();
    let configuration = completed(configuration, is_control_plane);
    let documents = kubeadm::join(scope.version()?, &configuration)?;
    let files = is_control_plane.then_some(&certificates);
    let made = data::render(keeper, scope, KubeadmCommand::Join, documents, files, more).await?;
    store::store(keeper.client(), scope, &made, findings).await?;
    Ok(token(&scope.config).map(|_| keeper.times.token))
}

/// What a node joins as: one of the control plane, or a worker on which nothing runs until its labels are right.
fn completed(mut join: JoinConfiguration, is_control_plane: bool) -> JoinConfiguration {
    if is_control_plane {
        join.control_plane.get_or_insert_default();
        return join;
    }
    let taints = join.node_registration.get_or_insert_default().taints.get_or_insert_default();
    if !taints.iter().any(|taint| taint.key == TAINT_UNINITIALIZED) {
        let key = TAINT_UNINITIALIZED.to_owned();
        taints.push(Taint { key, effect: "NoSchedule".to_owned(), ..Taint::default() });
    }
    join
}

/// Completes how the cluster is found by a token, and sees to it that the token is in the cluster. What is found is kept in the spec
/// before the token is made: after a crash it is the same one.
async fn discover(
    keeper: &KubeadmConfigReconciler,
    scope: &mut KubeadmConfigScope,
    endpoint: &str,
    certificates: &Certificates,
) -> Result<(), BootstrapFault> {
    let discovery = scope.config.spec.join_configuration.as_ref().and_then(|join| join.discovery.as_ref());
    let given = discovery.and_then(|discovery| discovery.bootstrap_token.clone()).unwrap_or_default();
    let wanted = found_by_token(given.clone(), endpoint, certificates)?;
    if wanted != given {
        let configs = Api::<KubeadmConfig>::namespaced(keeper.client().clone(), &scope.namespace);
        let patch = json!({
            "metadata": {"resourceVersion": scope.config.resource_version()},
            "spec": {"joinConfiguration": {"discovery": {"bootstrapToken": wanted}}},
        });
        let name = scope.config.name_any();
        scope.config = configs.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    let place = scope.place();
    let workload = keeper.workloads.get(keeper.client(), place.namespace, place.cluster).await?;
    let token = wanted.token.unwrap_or_default();
    Ok(token::ensure(workload.client(), &token, token::SHORT, jiff::Timestamp::now()).await?)
}

fn found_by_token(
    mut discovery: BootstrapTokenDiscovery,
    endpoint: &str,
    certificates: &Certificates,
) -> Result<BootstrapTokenDiscovery, BootstrapFault> {
    let skips = discovery.unsafe_skip_ca_verification == Some(true);
    if discovery.ca_cert_hashes.is_empty() && !skips {
        let authority =
            certificates.of(CertificatePurpose::Ca).map(|pair| pair.certificate.as_str()).unwrap_or_default();
        discovery.ca_cert_hashes =
            hashes(authority).map_err(|reason| BootstrapFault::spec("spec.joinConfiguration.discovery", reason))?;
    }
    discovery.api_server_endpoint.get_or_insert_with(|| endpoint.to_owned());
    discovery.token.get_or_insert_with(token::fresh);
    Ok(discovery)
}

/// The kubeconfig by which a node finds the cluster, if the spec says what is in it.
fn discovery_file(
    file: &FileDiscovery,
    endpoint: &str,
    certificates: &Certificates,
) -> Result<Option<NodeFile>, BootstrapFault> {
    use base64::Engine;
    let Some(config) = &file.kube_config else { return Ok(None) };
    let mut cluster = json!(config.cluster.clone().unwrap_or_default());
    for (own, known) in [
        ("tlsServerName", "tls-server-name"),
        ("insecureSkipTLSVerify", "insecure-skip-tls-verify"),
        ("certificateAuthorityData", "certificate-authority-data"),
        ("proxyURL", "proxy-url"),
    ] {
        if let Some(value) = cluster.as_object_mut().and_then(|cluster| cluster.remove(own)) {
            cluster[known] = value;
        }
    }
    if cluster["server"].is_null() {
        cluster["server"] = format!("https://{endpoint}").into();
    }
    if cluster["certificate-authority-data"].is_null() {
        let authority =
            certificates.of(CertificatePurpose::Ca).map(|pair| pair.certificate.as_str()).unwrap_or_default();
        cluster["certificate-authority-data"] = base64::engine::general_purpose::STANDARD.encode(authority).into();
    }
    let mut user = json!({});
    if let Some(provider) = &config.user.auth_provider {
        user["auth-provider"] = json!(provider);
    }
    if let Some(exec) = &config.user.exec {
        let mut exec = json!(exec);
        if exec["apiVersion"].is_null() {
            exec["apiVersion"] = "client.authentication.k8s.io/v1".into();
        }
        exec["interactiveMode"] = "Never".into();
        user["exec"] = exec;
    }
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "default",
        "clusters": [{"name": "default", "cluster": cluster}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
        "users": [{"name": "default", "user": user}],
    });
    let text = serde_saphyr::to_string(&kubeconfig)
        .map_err(|error| BootstrapFault::spec("spec.joinConfiguration.discovery.file.kubeConfig", error.to_string()))?;
    Ok(Some(NodeFile::of_root(&file.kube_config_path, "0640", text)))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn nodes_join_as_what_they_are() {
        let plane = completed(JoinConfiguration::default(), true);
        assert_eq!(serde_json::to_value(&plane).unwrap(), json!({"controlPlane": {}}));
        let given: JoinConfiguration =
            serde_json::from_value(json!({"nodeRegistration": {"taints": [{"key": "own", "effect": "NoExecute"}]}}))
                .unwrap();
        let worker = completed(given, false);
        let taints = worker.node_registration.clone().unwrap().taints.unwrap();
        assert_eq!(taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), ["own", TAINT_UNINITIALIZED]);
        assert_eq!(completed(worker.clone(), false), worker);
    }

    #[test]
    fn what_users_say_of_the_discovery_stays() {
        let none = Certificates::default();
        let given: BootstrapTokenDiscovery = serde_json::from_value(
            json!({"token": "abcdef.0123456789abcdef", "apiServerEndpoint": "other:1", "caCertHashes": ["sha256:x"]}),
        )
        .unwrap();
        assert_eq!(found_by_token(given.clone(), "10.0.0.1:6443", &none).unwrap(), given);
        let made = found_by_token(BootstrapTokenDiscovery::default(), "10.0.0.1:6443", &none).unwrap();
        assert_eq!(made.api_server_endpoint.as_deref(), Some("10.0.0.1:6443"));
        assert!(super::super::admission::is_token(&made.token.unwrap()));
    }

    #[test]
    fn a_kubeconfig_for_the_discovery_is_completed() {
        let file: FileDiscovery = serde_json::from_value(json!({"kubeConfigPath": "/k", "kubeConfig": {
            "cluster": {"tlsServerName": "c.test"}, "user": {"exec": {"command": "login", "args": ["-x"]}},
        }}))
        .unwrap();
        let made = discovery_file(&file, "10.0.0.1:6443", &Certificates::default()).unwrap().unwrap();
        let text: Value = serde_saphyr::from_str(std::str::from_utf8(&made.content).unwrap()).unwrap();
        assert_eq!(
            text["clusters"][0]["cluster"],
            json!({"server": "https://10.0.0.1:6443", "tls-server-name": "c.test", "certificate-authority-data": ""})
        );
        assert_eq!(
            text["users"][0]["user"]["exec"],
            json!({"command": "login", "args": ["-x"], "apiVersion": "client.authentication.k8s.io/v1",
                "interactiveMode": "Never"})
        );
        let bare: FileDiscovery = serde_json::from_value(json!({"kubeConfigPath": "/k"})).unwrap();
        assert_eq!(discovery_file(&bare, "x:1", &Certificates::default()).unwrap(), None);
    }
}
