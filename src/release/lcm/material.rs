//! What kubeadm needs of a cluster: its certificates, and the kubeconfig of its administrator.
//!
//! They are Secrets of the cluster, as those of Cluster API's clusters are. One of the same name that is somebody else's is never taken
//! over: nothing is handed out, and the cluster says whose it is.

use std::collections::BTreeMap;
use std::time::SystemTime;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::SECRET_TYPE;
use crate::api::lcm::{ANNOTATION_CLUSTER_NAME, ANNOTATION_SECRET_TYPE, LCMCluster};
use crate::cluster::certificates::{
    CertificateError, CertificatePurpose, ClusterCertificates, hashes, kubeconfig, needed, provide, read,
};
use crate::cluster::workload::secret_name;
use crate::runtime::{Conflict, owners};

/// Keys of the kubeconfig in its Secret: as Cluster API has it, and as Mirantis Container Cloud has it.
const KEYS: [&str; 2] = ["value", "admin.conf"];

/// What a cluster's machines are made nodes with.
#[derive(Clone, Default)]
pub(super) struct Material {
    /// Digest of the public key of its authority, as kubeadm wants it.
    pub ca_hash: String,
    /// Files of the control plane, by their names.
    pub files: BTreeMap<String, String>,
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Material").finish_non_exhaustive()
    }
}

/// Why it cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum MaterialError {
    /// A certificate.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A Secret of that name is somebody else's.
    #[error("the Secret {0:?} is not this cluster's: {1}; delete it, or give the cluster another name")]
    Strange(String, String),
    /// A kubeconfig cannot be made.
    #[error("the kubeconfig cannot be made: {0}")]
    Kubeconfig(String),
}

impl Conflict for MaterialError {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Certificate(error) if error.is_conflict())
    }
}

impl From<kube::Error> for MaterialError {
    fn from(error: kube::Error) -> Self {
        Self::Certificate(error.into())
    }
}

/// Whose a Secret is, where it is not the cluster's. One that belongs to nobody is what a user brought.
fn stranger(secret: &Secret, cluster: &LCMCluster) -> Option<String> {
    let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
    let owner = secret.owner_references().iter().find(|owner| owner.uid != uid);
    if let Some(owner) = owner {
        return Some(format!("it belongs to the {} {:?}", owner.kind, owner.name));
    }
    let name = cluster.name_any();
    let other = secret.labels().get(LABEL_CLUSTER).or_else(|| secret.annotations().get(ANNOTATION_CLUSTER_NAME));
    other.filter(|other| **other != name).map(|other| format!("it is of the cluster {other:?}"))
}

/// Reads what a cluster's machines need, and makes what is not there yet; none of the certificates once the cluster was begun, for its
/// nodes have others. `endpoint` is host and port of its API server, where that is known.
pub(super) async fn material(
    client: &Client,
    cluster: &LCMCluster,
    initialized: bool,
    endpoint: Option<&str>,
) -> Result<Material, MaterialError> {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let secrets = Api::<Secret>::namespaced(client.clone(), &namespace);
    for purpose in needed(None) {
        let secret = purpose.secret(&name);
        if let Some(reason) = secrets.get_opt(&secret).await?.and_then(|found| stranger(&found, cluster)) {
            return Err(MaterialError::Strange(secret, reason));
        }
    }
    let place = ClusterCertificates { namespace: &namespace, cluster: &name };
    let all = if initialized {
        read(client, place, &needed(None), None).await?
    } else {
        provide(client, place, &owners::owner(cluster, true), None).await?
    };
    let authority = all.of(CertificatePurpose::Ca).cloned().unwrap_or_default();
    let ca_hash = hashes(&authority.certificate)
        .map_err(|reason| CertificateError::Bad { name: CertificatePurpose::Ca.secret(&name), reason })?;
    let files = all.files(None).into_iter().filter_map(|file| {
        // `etcd/ca.crt` has a name of its own, for keys of a Secret have no folders.
        let name = file.path.strip_prefix("/etc/kubernetes/pki/")?.replace('/', "-");
        Some((name, file.content.to_owned()))
    });
    let material = Material { ca_hash: ca_hash.into_iter().next().unwrap_or_default(), files: files.collect() };
    if let Some(endpoint) = endpoint {
        let server = format!("https://{endpoint}");
        keep_kubeconfig(&secrets, cluster, &server, |now| kubeconfig::make(&name, &server, &authority, now)).await?;
    }
    Ok(material)
}

/// Whether a kubeconfig that was made here is to be made anew. What a user brought stays.
fn is_stale(found: &Secret, cluster: &LCMCluster, server: &str, now: SystemTime) -> bool {
    let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
    if !owners::is_owned(&found.metadata, uid) {
        return false;
    }
    let text = |key: &str| found.data.as_ref().and_then(|data| data.get(key));
    let Some(value) = text(KEYS[0]) else { return true };
    if text(KEYS[1]) != Some(value) {
        return true;
    }
    match kubeconfig::renewal(&cluster.name_any(), &value.0) {
        Ok((renew, leads)) => renew <= now || leads != server,
        Err(_) => true,
    }
}

async fn keep_kubeconfig(
    secrets: &Api<Secret>,
    cluster: &LCMCluster,
    server: &str,
    make: impl Fn(SystemTime) -> Result<String, String>,
) -> Result<(), MaterialError> {
    let (name, now) = (secret_name(&cluster.name_any()), SystemTime::now());
    let found = secrets.get_opt(&name).await?;
    if let Some(reason) = found.as_ref().and_then(|found| stranger(found, cluster)) {
        return Err(MaterialError::Strange(name, reason));
    }
    if found.as_ref().is_some_and(|found| !is_stale(found, cluster, server, now)) {
        return Ok(());
    }
    let text = ByteString(make(now).map_err(MaterialError::Kubeconfig)?.into_bytes());
    let data: BTreeMap<String, ByteString> = KEYS.map(|key| (key.to_owned(), text.clone())).into();
    match found {
        Some(found) => {
            let patch = json!({"metadata": {"resourceVersion": found.resource_version()}, "data": data});
            secrets.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        None => {
            let metadata = meta(cluster, &name, "kubeconfig", owners::owner(cluster, true));
            let secret = Secret { metadata, type_: Some(SECRET_TYPE.into()), data: Some(data), ..Secret::default() };
            secrets.create(&PostParams::default(), &secret).await?;
        }
    }
    tracing::info!(
        namespace = secrets.namespace().unwrap_or_default(),
        secret = name,
        "made the kubeconfig of a cluster"
    );
    Ok(())
}

/// Metadata of a Secret of a cluster.
pub(super) fn meta(
    cluster: &LCMCluster,
    name: &str,
    type_: &str,
    owner: k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference,
) -> ObjectMeta {
    let text = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: cluster.namespace(),
        labels: Some([text(LABEL_CLUSTER, &cluster.name_any())].into()),
        annotations: Some(
            [text(ANNOTATION_SECRET_TYPE, type_), text(ANNOTATION_CLUSTER_NAME, &cluster.name_any())].into(),
        ),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn cluster() -> LCMCluster {
        let mut cluster = LCMCluster::new("c", Default::default());
        cluster.metadata.uid = Some("1".into());
        cluster
    }

    fn secret(metadata: Value) -> Secret {
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn secrets_of_others_are_not_taken_over() {
        let owner = |uid: &str| json!([{"apiVersion": "x/v1", "kind": "KubeadmControlPlane", "name": "p", "uid": uid}]);
        for (metadata, wanted) in [
            (json!({}), None),
            (json!({"ownerReferences": owner("1")}), None),
            (json!({"labels": {LABEL_CLUSTER: "c"}}), None),
            (json!({"ownerReferences": owner("2")}), Some("KubeadmControlPlane \"p\"")),
            (json!({"labels": {LABEL_CLUSTER: "d"}}), Some("cluster \"d\"")),
            (json!({"annotations": {ANNOTATION_CLUSTER_NAME: "d"}}), Some("cluster \"d\"")),
        ] {
            let reason = stranger(&secret(metadata.clone()), &cluster());
            match wanted {
                None => assert_eq!(reason, None, "{metadata}"),
                Some(part) => {
                    assert!(reason.as_ref().is_some_and(|reason| reason.contains(part)), "{metadata}: {reason:?}")
                }
            }
        }
    }

    #[test]
    fn a_kubeconfig_is_made_anew_when_it_leads_elsewhere_or_ends() {
        let now = SystemTime::now();
        let owned =
            || json!({"ownerReferences": [{"apiVersion": "x/v1", "kind": "LCMCluster", "name": "c", "uid": "1"}]});
        assert!(is_stale(&secret(owned()), &cluster(), "https://a", now));
        assert!(!is_stale(&secret(json!({})), &cluster(), "https://a", now), "a user's own");
    }
}
