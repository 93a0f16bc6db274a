//! What is done about the Secrets of a cluster, look by look.
//!
//! The certificates of a cluster whose control plane is a KubeadmControlPlane are made for that; those of others are for whoever
//! begins the cluster to make. The kubeconfig is made once the cluster has an address, for the control plane or, where none is
//! named, for the Cluster. One that belongs to neither is a user's, and stays as it is.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::Action;
use serde_json::json;

use super::kubeconfig;
use super::pair::CertificatePurpose;
use super::secrets::{self, CertificateError, ClusterCertificates};
use crate::api::bootstrap::v1beta2::ClusterConfiguration;
use crate::api::cluster::v1beta2::{Cluster, ContractReference};
use crate::cluster::contract::{FoundObject, ReferenceError, ReferencedObjects, fields, pause};
use crate::runtime::{Conflict, Note, Reconcile, Slim, events, key, owners};

/// Who tells events.
const COMPONENT: &str = "slipway-certificates";
const GROUP: &str = "controlplane.cluster.x-k8s.io";
const KIND: &str = "KubeadmControlPlane";
/// Key of the kubeconfig in its Secret.
const VALUE: &str = "value";
/// Longest time until a cluster's Secrets are looked at again: nobody tells of one that was deleted.
const LONGEST: Duration = Duration::from_secs(600);

/// Why something could not be done; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificatesFault {
    /// Certificates cannot be had.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The control plane cannot be had.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}

impl Conflict for CertificatesFault {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Certificate(error) => error.is_conflict(),
            Self::Reference(error) => error.is_conflict(),
        }
    }
}

impl From<kube::Error> for CertificatesFault {
    fn from(error: kube::Error) -> Self {
        Self::Certificate(error.into())
    }
}

/// Keeps the Secrets of clusters.
pub(super) struct CertificatesReconciler {
    pub(super) objects: ReferencedObjects,
    /// What is waited for is looked at so often.
    pub(super) pause: Duration,
}

impl Reconcile for CertificatesReconciler {
    type Object = Slim<Cluster>;
    type Error = CertificatesFault;

    const NAME: &'static str = "cluster-certificates";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(120));

    fn retry_after(&self) -> Duration {
        self.pause.min(Duration::from_secs(5))
    }

    async fn reconcile(&self, known: Arc<Slim<Cluster>>) -> Result<Action, CertificatesFault> {
        let (namespace, name) = key(known.as_ref());
        let clusters = Api::<Cluster>::namespaced(self.objects.client().clone(), &namespace);
        let Some(cluster) = clusters.get_opt(&name).await? else { return Ok(Action::await_change()) };
        let goes = cluster.metadata.deletion_timestamp.is_some();
        if goes || pause::is_paused(Some(&cluster), &cluster) || !is_provisioned(&cluster) {
            return Ok(Action::await_change());
        }
        let done = self.look(&cluster, &namespace).await;
        if let Err(CertificatesFault::Certificate(
            error @ (CertificateError::Bad { .. } | CertificateError::Missing(_)),
        )) = &done
        {
            let note = Note { reason: "CertificatesNotAvailable", message: error.to_string(), warning: true };
            events::tell(self.objects.client(), COMPONENT, &cluster, &note).await;
            return Ok(Action::requeue(self.pause.saturating_mul(4)));
        }
        done
    }
}

fn is_provisioned(cluster: &Cluster) -> bool {
    let done = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
    done.and_then(|done| done.infrastructure_provisioned) == Some(true)
}

fn is_initialized(cluster: &Cluster) -> bool {
    let done = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
    done.and_then(|done| done.control_plane_initialized) == Some(true)
}

/// Whether a control plane is of the kind that is kept by kubeadm.
fn is_kubeadm(reference: &ContractReference) -> bool {
    reference.api_group == GROUP && reference.kind == KIND
}

fn owner(plane: &FoundObject) -> OwnerReference {
    OwnerReference {
        api_version: plane.resource.api_version.clone(),
        kind: plane.resource.kind.clone(),
        name: plane.object.name_any(),
        uid: plane.object.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// kubeadm's configuration of the cluster, as a control plane says it.
fn configuration(plane: &FoundObject) -> Option<ClusterConfiguration> {
    let part = &plane.data()["spec"]["kubeadmConfigSpec"]["clusterConfiguration"];
    serde_json::from_value(part.clone()).ok()
}

/// What is to be done about a kubeconfig.
#[derive(Debug, PartialEq, Eq)]
enum KubeconfigStep {
    /// It is to be made.
    Make,
    /// It is to be made anew, with this server.
    Renew(String),
    /// It is to be looked at again after this time.
    Later(Duration),
    /// It is a user's.
    Leave,
}

fn decide(secret: Option<&Secret>, cluster: &str, owner: &OwnerReference, now: SystemTime) -> KubeconfigStep {
    let Some(secret) = secret else { return KubeconfigStep::Make };
    let controller = owners::controller(&secret.metadata);
    let is_ours = match owner.controller {
        Some(true) => controller.is_some_and(|controller| controller.uid == owner.uid),
        _ => controller.is_none() && owners::is_owned(&secret.metadata, &owner.uid),
    };
    let text = secret.data.as_ref().and_then(|data| data.get(VALUE)).filter(|_| is_ours);
    let Some(text) = text else { return KubeconfigStep::Leave };
    // What somebody wrote into it by hand is theirs to mend.
    let Ok((renew, server)) = kubeconfig::renewal(cluster, &text.0) else { return KubeconfigStep::Leave };
    match renew.duration_since(now) {
        Ok(left) if !left.is_zero() => KubeconfigStep::Later(left.min(LONGEST)),
        _ => KubeconfigStep::Renew(server),
    }
}

impl CertificatesReconciler {
    async fn look(&self, cluster: &Cluster, namespace: &str) -> Result<Action, CertificatesFault> {
        let (client, name) = (self.objects.client(), cluster.name_any());
        let place = ClusterCertificates { namespace, cluster: &name };
        let owner = match &cluster.spec.control_plane_ref {
            None => owners::owner(cluster, false),
            Some(reference) if !is_kubeadm(reference) => return Ok(Action::await_change()),
            Some(reference) => {
                let plane = self.objects.get(namespace, reference).await?.filter(|plane| !plane.is_deleted());
                let Some(plane) = plane else { return Ok(Action::requeue(self.pause)) };
                let (owner, config) = (owner(&plane), configuration(&plane));
                if is_initialized(cluster) {
                    // New ones would be others than those that the nodes have.
                    secrets::read(client, place, &secrets::needed(config.as_ref()), config.as_ref()).await?;
                } else {
                    secrets::provide(client, place, &owner, config.as_ref()).await?;
                }
                owner
            }
        };
        self.kubeconfig(cluster, place, &owner).await
    }

    async fn kubeconfig(
        &self,
        cluster: &Cluster,
        place: ClusterCertificates<'_>,
        owner: &OwnerReference,
    ) -> Result<Action, CertificatesFault> {
        let (client, secret) = (self.objects.client(), format!("{}-kubeconfig", place.cluster));
        let secrets = Api::<Secret>::namespaced(client.clone(), place.namespace);
        let known = secrets.get_opt(&secret).await?;
        let now = SystemTime::now();
        let server = match decide(known.as_ref(), place.cluster, owner, now) {
            KubeconfigStep::Leave => return Ok(Action::requeue(LONGEST)),
            KubeconfigStep::Later(left) => return Ok(Action::requeue(left)),
            KubeconfigStep::Renew(server) => server,
            KubeconfigStep::Make => {
                let endpoint = serde_json::to_value(cluster).ok().and_then(|cluster| fields::endpoint(&cluster));
                let Some((host, port)) = endpoint.and_then(|endpoint| Some((endpoint.host, endpoint.port?))) else {
                    return Ok(Action::await_change());
                };
                let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
                format!("https://{host}:{port}")
            }
        };
        let authority = match secrets::read(client, place, &[CertificatePurpose::Ca], None).await {
            Ok(all) => all.of(CertificatePurpose::Ca).cloned().unwrap_or_default(),
            // Whoever begins the cluster makes it.
            Err(error) if error.is_missing() && known.is_none() => return Ok(Action::requeue(self.pause)),
            Err(error) => return Err(error.into()),
        };
        let text = kubeconfig::make(place.cluster, &server, &authority, now)
            .map_err(|reason| CertificateError::Unmade { name: secret.clone(), reason })?;
        let value = ByteString(text.into_bytes());
        match known {
            None => secrets::create(client, place, &secret, owner, [(VALUE.to_owned(), value)].into()).await?,
            Some(known) => {
                let patch = json!({"metadata": {"resourceVersion": known.resource_version()}, "data": {VALUE: value}});
                secrets.patch(&secret, &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
        }
        tracing::info!(namespace = place.namespace, secret, "made the kubeconfig of a cluster");
        Ok(Action::requeue(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::super::pair::{self, PairRequest};
    use super::*;

    fn owner(uid: &str, controller: bool) -> OwnerReference {
        OwnerReference { uid: uid.into(), controller: controller.then_some(true), ..OwnerReference::default() }
    }

    #[test]
    fn a_kubeconfig_is_renewed_in_time_and_a_users_is_left_alone() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let day = Duration::from_secs(24 * 3600);
        let ca = pair::make(CertificatePurpose::Ca, PairRequest::default(), now).unwrap();
        let text = kubeconfig::make("c", "https://10.0.0.1:6443", &ca, now).unwrap();
        let secret = |owners: Vec<OwnerReference>, text: &str| Secret {
            metadata: ObjectMeta { owner_references: Some(owners), ..ObjectMeta::default() },
            data: Some([(VALUE.to_owned(), ByteString(text.as_bytes().to_vec()))].into()),
            ..Secret::default()
        };
        let (plane, cluster) = (owner("plane", true), owner("cluster", false));
        let ours = secret(vec![plane.clone()], &text);
        assert_eq!(decide(None, "c", &plane, now), KubeconfigStep::Make);
        assert_eq!(decide(Some(&ours), "c", &plane, now), KubeconfigStep::Later(LONGEST));
        let minute = Duration::from_secs(60);
        assert_eq!(decide(Some(&ours), "c", &plane, now + day * 365 / 2 - minute), KubeconfigStep::Later(minute));
        let renew = KubeconfigStep::Renew("https://10.0.0.1:6443".into());
        assert_eq!(decide(Some(&ours), "c", &plane, now + day * 183), renew);
        assert_eq!(decide(Some(&secret(vec![cluster.clone()], &text)), "c", &cluster, now + day * 183), renew);
        for (secret, of) in [
            (secret(Vec::new(), &text), &plane),
            (secret(vec![owner("other", true)], &text), &plane),
            (secret(vec![owner("plane", false)], &text), &plane),
            (secret(vec![owner("other", true), cluster.clone()], &text), &cluster),
            (secret(vec![plane.clone()], "current-context: mine"), &plane),
            (Secret { data: None, ..ours.clone() }, &plane),
        ] {
            assert_eq!(decide(Some(&secret), "c", of, now + day * 300), KubeconfigStep::Leave, "{:?}", secret.metadata);
        }
    }
}
