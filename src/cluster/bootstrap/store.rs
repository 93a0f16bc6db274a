//! The Secret with the user data of a machine.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::controller::KubeadmConfigScope;
use super::fault::BootstrapFault;
use super::status::{BootstrapCondition, BootstrapFindings};
use crate::api::bootstrap::GROUP;
use crate::api::bootstrap::v1beta2::KubeadmConfig;
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::SECRET_TYPE;
use crate::runtime::owners;

/// Whether a Secret may be that of this KubeadmConfig: it is already, or it is of one of the same name that is gone, or one that
/// nobody has any more.
fn is_its(secret: &Secret, config: &KubeadmConfig) -> bool {
    if secret.type_.as_deref() != Some(SECRET_TYPE) {
        return false;
    }
    match owners::controller(&secret.metadata) {
        Some(owner) => {
            let same = (owners::group_of(&owner.api_version), owner.kind.as_str(), owner.name.as_str());
            same == (GROUP, "KubeadmConfig", config.name_any().as_str())
        }
        // A cluster's own Secrets are of this type, too.
        None => secret.data.as_ref().is_some_and(|data| data.contains_key("value") && data.contains_key("format")),
    }
}

/// Puts user data into its Secret. It is made anew when a look was cut off before it was said that it is there.
///
/// # Errors
///
/// What the API says; when the name is that of somebody else's Secret.
pub(super) async fn store(
    client: &Client,
    scope: &KubeadmConfigScope,
    content: &[u8],
    findings: &mut BootstrapFindings,
) -> Result<(), BootstrapFault> {
    let (config, name) = (&scope.config, scope.config.name_any());
    let secrets = Api::<Secret>::namespaced(client.clone(), &scope.namespace);
    let format = config.spec.format.unwrap_or_default().word();
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(scope.namespace.clone()),
            labels: Some([(LABEL_CLUSTER.to_owned(), scope.cluster.name_any())].into()),
            owner_references: Some(vec![owners::owner(config, true)]),
            ..ObjectMeta::default()
        },
        data: Some(
            [
                ("value".to_owned(), ByteString(content.to_vec())),
                ("format".to_owned(), ByteString(format.as_bytes().to_vec())),
            ]
            .into(),
        ),
        type_: Some(SECRET_TYPE.to_owned()),
        ..Secret::default()
    };
    match secrets.get_opt(&name).await? {
        None => drop(secrets.create(&PostParams::default(), &secret).await?),
        Some(known) if is_its(&known, config) => {
            let mut secret = secret;
            secret.metadata.resource_version = known.resource_version();
            secrets.replace(&name, &PostParams::default(), &secret).await?;
        }
        Some(_) => return Err(BootstrapFault::Taken(name)),
    }
    tracing::info!(namespace = scope.namespace, secret = name, format, "made the user data of a machine");
    findings.data = Some(BootstrapCondition::available());
    findings.secret = Some(name);
    Ok(())
}

/// The Secret goes with its KubeadmConfig, also with one that was brought here from elsewhere.
///
/// # Errors
///
/// What the API says.
pub(super) async fn own(client: &Client, scope: &KubeadmConfigScope) -> Result<(), BootstrapFault> {
    let (config, name) = (&scope.config, scope.config.name_any());
    let secrets = Api::<Secret>::namespaced(client.clone(), &scope.namespace);
    let Some(secret) = secrets.get_metadata_opt(&name).await? else { return Ok(()) };
    let owner = owners::owner(config, true);
    if owners::is_owned(&secret.metadata, &owner.uid) {
        return Ok(());
    }
    let Some(secret) = secrets.get_opt(&name).await? else { return Ok(()) };
    let Some(all) = owners::with(&secret.metadata, &owner).filter(|_| is_its(&secret, config)) else { return Ok(()) };
    let patch = json!({"metadata": {"resourceVersion": secret.resource_version(), "ownerReferences": all}});
    secrets.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}
