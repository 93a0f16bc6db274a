//! What is kept of credentials and inventories, and which of them are looked at when something else changes.

use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;

use super::mirror::HOST_SECRET_SUFFIX;
use crate::api::kaas::{BareMetalHostCredential, BareMetalHostInventory};
use crate::api::metal3::BareMetalHost;
use crate::runtime::wake::on_change;
use crate::runtime::{Cache, Mention, Slim, Watches, key, owners};

/// Credentials and inventories. None yet, until the watches run.
pub fn watched(watches: &mut Watches) -> (Cache<Slim<BareMetalHostCredential>>, Cache<Slim<BareMetalHostInventory>>) {
    let credentials: Cache<Slim<BareMetalHostCredential>> =
        Cache::indexed(watches, |one: &BareMetalHostCredential| Slim::from(one), secret_of);
    let inventories: Cache<Slim<BareMetalHostInventory>> =
        Cache::indexed(watches, |one: &BareMetalHostInventory| Slim::from(one), credential_of);
    // A password that is another one leaves its credential as it is.
    let (theirs, hosts) = (credentials.clone(), inventories.clone());
    let version = |secret: &Slim<Secret>| (secret.uid(), secret.resource_version());
    on_change(watches, version, move |(namespace, name), _| {
        let named = of_secret(namespace, name);
        theirs.wake_mentioning(&named);
        for credential in theirs.mentioning(&named) {
            hosts.wake_mentioning(&of_credential(namespace, &credential.name_any()));
        }
        if let Some(host) = name.strip_suffix(HOST_SECRET_SUFFIX) {
            hosts.wakes().wake((namespace.clone(), host.to_owned()));
        }
    });
    let hosts = inventories.clone();
    let asked = |one: &BareMetalHostCredential| (one.uid(), one.metadata.generation);
    on_change(watches, asked, move |(namespace, name), _| hosts.wake_mentioning(&of_credential(namespace, name)));
    let hosts = inventories.clone();
    on_change(watches, facts_of, move |key, _| hosts.wakes().wake(key.clone()));
    (credentials, inventories)
}

fn secret_of(credential: &BareMetalHostCredential) -> Vec<Mention> {
    let (namespace, _) = key(credential);
    let secret = credential.spec.password.secret.as_ref();
    secret.map(|secret| of_secret(&namespace, &secret.name)).into_iter().collect()
}

fn credential_of(inventory: &BareMetalHostInventory) -> Vec<Mention> {
    let (namespace, _) = key(inventory);
    let bmc = inventory.spec.bmc.as_ref();
    bmc.map(|bmc| of_credential(&namespace, &bmc.bmh_credentials_name)).into_iter().collect()
}

fn of_secret(namespace: &str, name: &str) -> Mention {
    Mention::new("Secret", namespace, name)
}

fn of_credential(namespace: &str, name: &str) -> Mention {
    Mention::new("BareMetalHostCredential", namespace, name)
}

/// What of a host concerns the inventory of its name. Of one that has none, whether it is there.
fn facts_of(host: &BareMetalHost) -> u64 {
    let mut hasher = DefaultHasher::new();
    let meta = &host.metadata;
    (meta.uid.as_ref(), meta.deletion_timestamp.is_some()).hash(&mut hasher);
    if owners::controller(meta).is_some_and(|owner| owner.kind == "BareMetalHostInventory") {
        (&meta.labels, &meta.annotations, meta.generation).hash(&mut hasher);
        if let Some(status) = &host.status {
            (status.powered_on, status.error_count, &status.error_message).hash(&mut hasher);
            let rest = json!([
                status.operational_status,
                status.error_type,
                status.provisioning.state,
                status.provisioning.id,
                status.hardware_profile
            ]);
            rest.to_string().hash(&mut hasher);
        }
    }
    hasher.finish()
}
