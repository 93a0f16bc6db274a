//! Which machine begins a cluster: one at a time, as a ConfigMap says.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::runtime::owners;

/// Key of what the ConfigMap says.
const INFORMATION: &str = "lock-information";

/// What came of asking for the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitLock {
    /// The machine has it.
    Held,
    /// Another machine has it.
    Of(String),
    /// Nobody can tell who has it.
    Unreadable(String),
}

fn name(cluster: &Cluster) -> String {
    format!("{}-lock", cluster.name_any())
}

fn locks(client: &Client, cluster: &Cluster) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), &cluster.namespace().unwrap_or_default())
}

/// The machine that a ConfigMap names.
fn holder(lock: &ConfigMap) -> Option<String> {
    let text = lock.data.as_ref()?.get(INFORMATION)?;
    let said: Value = serde_json::from_str(text).ok()?;
    Some(said["machineName"].as_str()?.to_owned()).filter(|name| !name.is_empty())
}

/// Asks for the lock of a cluster. That of a machine that is gone is taken away, for whoever asks next.
///
/// # Errors
///
/// What the API says.
pub async fn take(client: &Client, cluster: &Cluster, machine: &str) -> Result<InitLock, kube::Error> {
    let (locks, name) = (locks(client, cluster), name(cluster));
    let Some(lock) = locks.get_opt(&name).await? else {
        let lock = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some([(LABEL_CLUSTER.to_owned(), cluster.name_any())].into()),
                owner_references: Some(vec![owners::owner(cluster, false)]),
                ..ObjectMeta::default()
            },
            data: Some([(INFORMATION.to_owned(), json!({"machineName": machine}).to_string())].into()),
            ..ConfigMap::default()
        };
        return match locks.create(&PostParams::default(), &lock).await {
            Ok(_) => Ok(InitLock::Held),
            Err(kube::Error::Api(error)) if error.is_already_exists() => Ok(InitLock::Of("another one".to_owned())),
            Err(error) => Err(error),
        };
    };
    let Some(holder) = holder(&lock) else { return Ok(InitLock::Unreadable(name)) };
    if holder == machine {
        return Ok(InitLock::Held);
    }
    let machines = Api::<Machine>::namespaced(client.clone(), &cluster.namespace().unwrap_or_default());
    if machines.get_opt(&holder).await?.is_none() {
        delete(&locks, &lock).await?;
    }
    Ok(InitLock::Of(holder))
}

/// Gives the lock of a cluster back, if it is there; with a machine only when it is this one's.
///
/// # Errors
///
/// What the API says.
pub async fn release(client: &Client, cluster: &Cluster, of: Option<&str>) -> Result<(), kube::Error> {
    let locks = locks(client, cluster);
    let Some(lock) = locks.get_opt(&name(cluster)).await? else { return Ok(()) };
    // One that names nobody is no lock.
    match holder(&lock) {
        Some(holder) if of.is_none_or(|machine| holder == machine) => delete(&locks, &lock).await,
        _ => Ok(()),
    }
}

async fn delete(locks: &Api<ConfigMap>, lock: &ConfigMap) -> Result<(), kube::Error> {
    let preconditions = Preconditions { uid: lock.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match locks.delete(&lock.name_any(), &params).await {
        Err(kube::Error::Api(error)) if error.is_not_found() || error.is_conflict() => Ok(()),
        deleted => deleted.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_names_its_machine() {
        let lock = |text: Option<&str>| ConfigMap {
            data: text.map(|text| [(INFORMATION.to_owned(), text.to_owned())].into()),
            ..ConfigMap::default()
        };
        for (text, wanted) in [
            (Some(r#"{"machineName":"m-1"}"#), Some("m-1")),
            (Some(r#"{"machineName":""}"#), None),
            (Some(r#"{"machineName":1}"#), None),
            (Some("x"), None),
            (None, None),
        ] {
            assert_eq!(holder(&lock(text)).as_deref(), wanted, "{text:?}");
        }
    }
}
