//! Servers as their owners describe them, and who logs in to their management controllers.
//!
//! A [`BareMetalHostCredential`] has a user, and says in which Secret the password is. A password that is written into it goes into a
//! Secret of its own before it is stored: that is done by the API server, for each kind that says so
//! ([`FieldSealing`](crate::api::FieldSealing)). Here it is said whether there is one (`credentials`, `password`).
//!
//! A [`BareMetalHostInventory`] becomes a BareMetalHost of the same name (`inventories`): what is in it goes over, and what others change
//! of that is written anew (`mirror`). User and password go into a Secret of the host's own, which stays as long as the host, so that one
//! can be let go whose credential is gone.
//!
//! All that is made belongs to its inventory by UID; a BareMetalHost or a Secret that is somebody else's is never taken.

mod admission;
mod credentials;
mod inventories;
mod mirror;
mod password;
#[cfg(test)]
mod tests;
mod waking;

use std::sync::Arc;

use self::credentials::CredentialReports;
use self::inventories::Inventories;
use crate::api::kaas::{BareMetalHostCredential, BareMetalHostInventory, SEALED_PASSWORDS};
use crate::api::{Declared, StoragePolicy};
use crate::apiserver::AdmissionRules;
use crate::module::{Acting, Life, Module, Service, service};
use crate::runtime::{Cache, Slim, Watches};

/// Inventories by group and plural.
const INVENTORIES: &str = "kaas.mirantis.com/baremetalhostinventories";
/// What is kept of one of either kind in memory beside its object, in bytes, roughly.
const MEMORY: usize = 1 << 10;

/// BareMetalHostCredential and BareMetalHostInventory. Where another API server keeps the objects nothing acts on them, so there are no
/// rights.
pub fn module() -> Module {
    Module {
        kinds: vec![
            Declared::one::<BareMetalHostCredential>(StoragePolicy::Durable)
                .sealed_by(&SEALED_PASSWORDS)
                .costing(MEMORY),
            Declared::one::<BareMetalHostInventory>(StoragePolicy::Durable).costing(MEMORY),
        ],
        rights: &[],
    }
}

/// Acts on credentials and inventories.
pub struct AccessLife {
    credentials: Cache<Slim<BareMetalHostCredential>>,
    inventories: Cache<Slim<BareMetalHostInventory>>,
}

impl AccessLife {
    /// Nothing is known yet, until the watches run.
    pub fn new(watches: &mut Watches) -> Self {
        let (credentials, inventories) = waking::watched(watches);
        Self { credentials, inventories }
    }
}

impl Life for AccessLife {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        vec![(INVENTORIES, Arc::new(admission::inventory))]
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let (client, stop) = (acting.client.clone(), acting.stop.clone());
        let credentials = CredentialReports::new(client.clone()).run(self.credentials.clone(), stop.clone());
        let inventories = Inventories::new(client).run(self.inventories.clone(), stop);
        Ok(vec![service("credentials of hosts", credentials), service("inventory of hosts", inventories)])
    }
}
