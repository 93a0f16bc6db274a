//! `cluster.k8s.io`: Machines of the Machine API that ask for a host of bare metal.
//!
//! A Machine says in `spec.providerSpec.value` which hosts it may have and what they are to run (`shape`). It gets a host of its
//! namespace by the same rules as a Metal3Machine ([`hosts`](super::hosts)), has it run the image, and lets it go when it goes
//! (`machines`). It needs no Cluster; whoever makes Machines nodes of one has a say in what a host runs and when it goes
//! ([`Preparer`]). Machines of other providers are left alone: their `providerSpec.value` is of another API
//! group, and whoever knows that group acts on them.

mod admission;
mod draft;
mod machines;
mod names;
mod preparer;
mod shape;
#[cfg(test)]
mod tests;
mod view;

use std::sync::Arc;

pub use self::preparer::{HostDeparture, Preparation, Prepared, Preparer};

use self::machines::{HostClaims, PAUSE};
use self::view::ClaimView;
use super::hosts::{HostPool, MachineKind, waking};
use crate::api::infrastructure::v1beta2::MachineImage;
use crate::api::machine_api::Machine;
use crate::api::{Declared, StoragePolicy};
use crate::apiserver::AdmissionRules;
use crate::module::{Acting, Life, Module, Right, Service, service};
use crate::runtime::{Cache, Watches};

/// Group and plural.
const MACHINES: &str = "cluster.k8s.io/machines";
/// What is kept of a Machine in memory beside its object, in bytes, roughly.
const MACHINE_MEMORY: usize = 1 << 10;

/// Machine.
pub fn module() -> Module {
    Module {
        kinds: vec![Declared::one::<Machine>(StoragePolicy::Durable).costing(MACHINE_MEMORY).kept_parsed()],
        rights: RIGHTS,
    }
}

const RIGHTS: &[Right] = &[
    Right {
        group: "cluster.k8s.io",
        resources: &["machines", "machines/status"],
        verbs: &["get", "list", "watch", "patch"],
        reason: "Machines of the Machine API.",
    },
    Right {
        group: "metal3.io",
        resources: &["baremetalhosts", "hardwaredata"],
        verbs: &["get", "list", "watch", "patch"],
        reason: "Machines take hosts, and let them go.",
    },
    Right { group: "", resources: &["secrets"], verbs: &["get"], reason: "Whether a Machine's user data is there." },
    Right { group: "", resources: &["events"], verbs: &["get", "create", "update", "patch"], reason: "" },
];

/// Acts on Machines.
pub struct MachineApi {
    /// None where others act.
    caches: Option<(Cache<ClaimView>, HostPool)>,
    /// What Machines run that need not say it.
    default_image: Option<MachineImage>,
    /// Makes them nodes, where somebody does.
    preparer: Option<Arc<dyn Preparer>>,
}

impl MachineApi {
    /// Acts where there are hosts to choose from; the rules of the API are the same.
    pub fn new(watches: &mut Watches, hosts: Option<HostPool>, default_image: Option<MachineImage>) -> Self {
        Self { caches: hosts.map(|hosts| (watched(watches, &hosts), hosts)), default_image, preparer: None }
    }

    /// Asks this one what Machines of clusters are to run.
    #[must_use]
    pub fn prepared_by(self, preparer: Arc<dyn Preparer>) -> Self {
        Self { preparer: Some(preparer), ..self }
    }
}

/// None yet, until the watches run. Hosts are watched already.
fn watched(watches: &mut Watches, hosts: &HostPool) -> Cache<ClaimView> {
    let machines = Cache::indexed(watches, |object: &Machine| ClaimView::from(object), ClaimView::mentions);
    waking::machines(watches, &machines, MachineKind::MachineApi);
    hosts.wake_by(MachineKind::MachineApi, machines.wakes().clone());
    machines
}

impl Life for MachineApi {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        vec![(MACHINES, Arc::new(admission::machine))]
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let Some((machines, hosts)) = self.caches.clone() else { return Ok(Vec::new()) };
        let claims = HostClaims::new(acting.client.clone(), hosts, self.default_image.clone(), PAUSE);
        let claims = claims.prepared_by(self.preparer.clone());
        Ok(vec![service("Machines of cluster.k8s.io", claims.run(machines, acting.stop.clone()))])
    }
}
