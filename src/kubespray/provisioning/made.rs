//! What is made for a Provisioning: the Secret with its SSH key, the one with its user data, the ConfigMap with its inventory.
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
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::cluster_inventory::USER;
use super::ssh_key::{NoKey, generate};
use crate::ansible::Inventory;
use crate::api::bpa::Provisioning;
use crate::cluster::contract::owners;

/// Type of Secrets with an SSH key, and its keys.
const SSH_TYPE: &str = "kubernetes.io/ssh-auth";
const PRIVATE: &str = "ssh-privatekey";
const PUBLIC: &str = "ssh-publickey";
/// Key of user data in its Secret.
const USER_DATA: &str = "userData";

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
    #[error("the Secret {0} has no {PUBLIC}")]
    Spoilt(String),
    /// No randomness.
    #[error(transparent)]
    Key(#[from] NoKey),
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
    public.filter(|key| !key.is_empty() && key.len() < 1024 && !key.contains('\n')).ok_or(MadeError::Spoilt(name))
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
