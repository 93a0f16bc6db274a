//! What is made for a Provisioning: Secrets with its SSH key, its user data and the cluster's kubeconfig, ConfigMaps with its inventory
//! and the keys of its hosts.
//!
//! They are the object's own and go with it. What is there under such a name and is not its own is left alone and not read: whoever
//! may write a Provisioning is not by that somebody who may read Secrets.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ByteString, NamespaceResourceScope};
use kube::api::{Api, PostParams};
use kube::{Client, Resource, ResourceExt};
use secrecy::SecretString;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::cluster_inventory::USER;
use super::ssh_key::{NoKey, generate, is_public};
use crate::ansible::Inventory;
use crate::api::bpa::Provisioning;
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::SECRET_TYPE;
use crate::cluster::workload;
use crate::runtime::{Conflict, owners};

/// Type of Secrets with an SSH key, and its keys.
const SSH_TYPE: &str = "kubernetes.io/ssh-auth";
const PRIVATE: &str = "ssh-privatekey";
const PUBLIC: &str = "ssh-publickey";
/// Key of user data in its Secret.
const USER_DATA: &str = "userData";
/// Key of a kubeconfig in its Secret, as Cluster API has it.
const VALUE: &str = "value";
/// Key of host keys in their ConfigMap.
const KNOWN_HOSTS: &str = "known_hosts";
/// Longest private key that is handed on, in bytes.
const PRIVATE_MAX: usize = 32 << 10;

/// Something cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MadeError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// Somebody else has the name.
    #[error("the {kind} {name} is there already and is not this object's: it is neither read nor changed")]
    Foreign {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
    },
    /// What was made here does not hold what it did.
    #[error("the Secret {secret} has no {key} that can be used")]
    Spoilt {
        /// The Secret.
        secret: String,
        /// Its key.
        key: &'static str,
    },
    /// No randomness.
    #[error(transparent)]
    Key(#[from] NoKey),
}

impl Conflict for MadeError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Foreign { .. } | Self::Spoilt { .. } | Self::Key(_) => false,
        }
    }
}

/// Name of the Secret with the SSH key.
pub fn ssh_key_name(owner: &str) -> String {
    format!("{owner}-ssh-key")
}

/// Name of the Secret with the user data.
pub fn user_data_name(owner: &str) -> String {
    format!("{owner}-user-data")
}

/// Name of the ConfigMap with the inventory.
pub fn inventory_name(owner: &str) -> String {
    format!("{owner}-inventory")
}

/// The public key, of a key pair that is made once.
///
/// # Errors
///
/// When there is none.
pub async fn ssh_key(client: &Client, owner: &Provisioning) -> Result<String, MadeError> {
    let namespace = owner.namespace().unwrap_or_default();
    let name = ssh_key_name(&owner.name_any());
    let secrets = Api::<Secret>::namespaced(client.clone(), &namespace);
    let secret = match secrets.get_opt(&name).await? {
        Some(secret) => own(secret, owner)?,
        None => {
            let key = generate(&format!("slipway:{namespace}/{}", owner.name_any()))?;
            let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
            let data = BTreeMap::from([(PRIVATE.into(), bytes(&key.private)), (PUBLIC.into(), bytes(&key.public))]);
            let metadata = metadata(name.clone(), owner);
            let secret = Secret { metadata, data: Some(data), type_: Some(SSH_TYPE.into()), ..Secret::default() };
            secrets.create(&PostParams::default(), &secret).await?
        }
    };
    let public = secret.data.as_ref().and_then(|data| String::from_utf8(data.get(PUBLIC)?.0.clone()).ok());
    public.filter(|key| is_public(key)).ok_or(MadeError::Spoilt { secret: name, key: PUBLIC })
}

/// The private key.
///
/// # Errors
///
/// When there is none.
pub async fn private_key(client: &Client, owner: &Provisioning) -> Result<SecretString, MadeError> {
    let name = ssh_key_name(&owner.name_any());
    let secrets = Api::<Secret>::namespaced(client.clone(), &owner.namespace().unwrap_or_default());
    let spoilt = || MadeError::Spoilt { secret: name.clone(), key: PRIVATE };
    let secret = own(secrets.get_opt(&name).await?.ok_or_else(spoilt)?, owner)?;
    let data = secret.data.and_then(|mut data| data.remove(PRIVATE)).ok_or_else(spoilt)?;
    let is_key = data.0.len() <= PRIVATE_MAX && data.0.starts_with(b"-----BEGIN ");
    let text = String::from_utf8(data.0).ok().filter(|text| is_key && !text.contains('\0'));
    text.map(SecretString::from).ok_or_else(spoilt)
}

/// The cluster's kubeconfig, as Cluster API keeps one.
///
/// # Errors
///
/// When it cannot be kept.
pub async fn kubeconfig(client: &Client, owner: &Provisioning, text: String) -> Result<(), MadeError> {
    let mut metadata = metadata(workload::secret_name(&owner.name_any()), owner);
    // A label is no longer than this, and a cluster of Cluster API has no longer name.
    let label = Some(owner.name_any()).filter(|name| name.len() <= 63);
    metadata.labels = label.map(|name| BTreeMap::from([(LABEL_CLUSTER.into(), name)]));
    let secret = Secret {
        metadata,
        data: Some(BTreeMap::from([(VALUE.into(), ByteString(text.into_bytes()))])),
        type_: Some(SECRET_TYPE.into()),
        ..Secret::default()
    };
    keep(client, owner, secret, |kept, wanted| kept.data == wanted.data, |kept, wanted| kept.data = wanted.data).await
}

/// Name of the ConfigMap with the keys of hosts.
pub fn known_hosts_name(owner: &str) -> String {
    format!("{owner}-known-hosts")
}

/// The keys of hosts that were kept; empty where none were.
///
/// # Errors
///
/// When they cannot be read.
pub async fn known_hosts(client: &Client, owner: &Provisioning) -> Result<String, MadeError> {
    let name = known_hosts_name(&owner.name_any());
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &owner.namespace().unwrap_or_default());
    let Some(map) = maps.get_opt(&name).await? else { return Ok(String::new()) };
    Ok(own(map, owner)?.data.and_then(|mut data| data.remove(KNOWN_HOSTS)).unwrap_or_default())
}

/// Keeps the keys of hosts.
///
/// # Errors
///
/// When they cannot be kept.
pub async fn keep_known_hosts(client: &Client, owner: &Provisioning, text: String) -> Result<(), MadeError> {
    let map = ConfigMap {
        metadata: metadata(known_hosts_name(&owner.name_any()), owner),
        data: Some(BTreeMap::from([(KNOWN_HOSTS.into(), text)])),
        ..ConfigMap::default()
    };
    keep(client, owner, map, |kept, wanted| kept.data == wanted.data, |kept, wanted| kept.data = wanted.data).await
}

/// The user data of hosts: a user whom the key lets in, and who may become root.
///
/// # Errors
///
/// When it cannot be kept.
pub async fn user_data(client: &Client, owner: &Provisioning, public: &str) -> Result<(), MadeError> {
    let secret = Secret {
        metadata: metadata(user_data_name(&owner.name_any()), owner),
        data: Some(BTreeMap::from([(USER_DATA.into(), ByteString(cloud_config(public).into_bytes()))])),
        ..Secret::default()
    };
    keep(client, owner, secret, |kept, wanted| kept.data == wanted.data, |kept, wanted| kept.data = wanted.data).await
}

/// JSON is YAML, so a key cannot be anything but a text.
fn cloud_config(public: &str) -> String {
    let user = json!({"name": USER, "gecos": USER, "shell": "/bin/bash", "lock_passwd": true,
        "sudo": "ALL=(ALL) NOPASSWD:ALL", "ssh_authorized_keys": [public]});
    format!("#cloud-config\n{}\n", json!({"users": ["default", user]}))
}

/// The inventory, in both languages.
///
/// # Errors
///
/// When it cannot be kept.
pub async fn inventory(client: &Client, owner: &Provisioning, inventory: &Inventory) -> Result<(), MadeError> {
    let data = BTreeMap::from([("hosts.ini".into(), inventory.ini()), ("hosts.yaml".into(), inventory.yaml())]);
    let map = ConfigMap {
        metadata: metadata(inventory_name(&owner.name_any()), owner),
        data: Some(data),
        ..ConfigMap::default()
    };
    keep(client, owner, map, |kept, wanted| kept.data == wanted.data, |kept, wanted| kept.data = wanted.data).await
}

fn metadata(name: String, owner: &Provisioning) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: owner.namespace(),
        owner_references: Some(vec![owners::owner(owner, true)]),
        ..ObjectMeta::default()
    }
}

/// Makes an object, or has the one that is there say the same.
async fn keep<K>(
    client: &Client,
    owner: &Provisioning,
    wanted: K,
    is_same: impl Fn(&K, &K) -> bool,
    set: impl Fn(&mut K, K),
) -> Result<(), MadeError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
{
    let api = Api::<K>::namespaced(client.clone(), &owner.namespace().unwrap_or_default());
    let name = wanted.name_any();
    let Some(kept) = api.get_opt(&name).await? else {
        return Ok(api.create(&PostParams::default(), &wanted).await.map(drop)?);
    };
    let mut kept = own(kept, owner)?;
    if !is_same(&kept, &wanted) {
        set(&mut kept, wanted);
        // Of the version that was read.
        api.replace(&name, &PostParams::default(), &kept).await?;
    }
    Ok(())
}

/// An object that is there, if it is this one's.
fn own<K: Resource<DynamicType = ()>>(object: K, owner: &Provisioning) -> Result<K, MadeError> {
    let uid = owner.uid();
    if object.owner_references().iter().any(|one| Some(&one.uid) == uid.as_ref()) {
        return Ok(object);
    }
    Err(MadeError::Foreign { kind: K::kind(&()).into_owned(), name: object.name_any() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_is_one_user_with_the_key() {
        let text = cloud_config("ssh-ed25519 AAAA a\nruncmd: [evil]");
        let (head, body) = text.split_once('\n').unwrap();
        assert_eq!(head, "#cloud-config");
        let read: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(read["users"][1]["ssh_authorized_keys"], json!(["ssh-ed25519 AAAA a\nruncmd: [evil]"]));
        assert_eq!((read.as_object().unwrap().len(), body.lines().count()), (1, 1));
    }
}
