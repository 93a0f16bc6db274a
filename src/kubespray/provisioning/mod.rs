//! `bpa.akraino.org` Provisionings: which hosts are a cluster's nodes, and the inventory with which kubespray makes it.
//!
//! What is asked for is read and checked ([`wanted`]); each node gets a host ([`seats`]), which is claimed ([`claim`]) as machines
//! of Cluster API claim theirs; when all of them run and have addresses, the inventory is made ([`cluster_inventory`]).

mod admission;
mod claim;
mod cluster_inventory;
mod controller;
mod made;
mod progress;
mod rack;
mod seats;
mod ssh_key;
#[cfg(test)]
mod tests;
mod waking;
mod wanted;

use std::sync::Arc;

use self::controller::Provisionings;
use crate::api::bpa::Provisioning;
use crate::api::{Declared, StoragePolicy};
use crate::apiserver::Admission;
use crate::module::{Acting, KEEPS, Life, Module, Right, Service, service};
use crate::runtime::{Cache, Slim, Watches, run};

/// What is kept of a Provisioning in memory beside its object, in bytes, roughly.
const MEMORY: usize = 1 << 10;

/// Provisionings. Software, which installs packages on nodes, is not served: nobody acts on it.
pub fn module() -> Module {
    Module {
        kinds: vec![Declared::one::<Provisioning>(StoragePolicy::Durable).costing(MEMORY).kept_parsed()],
        rights: RIGHTS,
    }
}

const RIGHTS: &[Right] = &[
    Right {
        group: "bpa.akraino.org",
        resources: &["provisionings", "provisionings/status", "provisionings/finalizers"],
        verbs: KEEPS,
        why: "",
    },
    Right {
        group: "metal3.io",
        resources: &["baremetalhosts"],
        verbs: &["get", "list", "watch", "patch"],
        why: "Clusters of kubespray take hosts, and let them go.",
    },
    Right {
        group: "",
        resources: &["secrets", "configmaps"],
        verbs: &["get", "create", "update"],
        why: "The SSH key of a cluster of kubespray, the user data of its hosts, and its inventory.",
    },
    Right { group: "", resources: &["events"], verbs: &["get", "create", "update", "patch"], why: "" },
];

/// Acts on Provisionings.
pub struct ProvisioningAgent {
    provisionings: Cache<Slim<Provisioning>>,
}

impl ProvisioningAgent {
    /// Nothing is known until the watches run.
    pub fn new(watches: &mut Watches) -> Self {
        let wants =
            |object: &Provisioning| vec![waking::hosts_of(object.metadata.namespace.as_deref().unwrap_or_default())];
        let provisionings = Cache::indexed(watches, |object: &Provisioning| Slim::from(object), wants);
        waking::hosts(watches, &provisionings);
        Self { provisionings }
    }
}

impl Life for ProvisioningAgent {
    fn admission(&self) -> Vec<(&'static str, Admission)> {
        vec![("bpa.akraino.org/provisionings", Arc::new(admission::provisioning))]
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let (provisionings, client, stop) = (self.provisionings.clone(), acting.client.clone(), acting.stop.clone());
        let keeper = Arc::new(Provisionings::new(client));
        let run = async move { run(keeper, &provisionings, futures::stream::empty(), stop).await };
        Ok(vec![service("Provisionings", run)])
    }
}
