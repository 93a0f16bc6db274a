//! Networks as objects: those that are made over the API come into force while the appliance serves, and those of `slipway.toml` are
//! shown beside them.
//!
//! An object counts as the administrator's word, exactly as the file's: the right to write it is of the whole cluster. What is in
//! force is judged anew after each change, in every process, whether it acts or not: boot goes by it, too.

mod judge;
mod objects;
mod site;
mod spec;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use tokio::sync::Notify;

use self::judge::{EffectiveNetworks, NetworkVerdict, WantedNetwork, judge};
use super::interface::interfaces;
use super::leases::Leases;
use crate::api::slipway::Network;
use crate::apiserver::{AdmissionOperation, AdmissionRequest, AdmissionRules, FieldError};
use crate::config::NetworkConfig;
use crate::runtime::{WatchChange, Watches};

pub(super) use self::judge::NetworkJudgement;
pub use site::Site;

/// The networks of configuration and API. Cheap to clone.
#[derive(Clone)]
pub struct NetworkDirectory(Arc<Inner>);

struct Inner {
    /// Those of the configuration.
    file: Vec<NetworkConfig>,
    site: Site,
    leases: Leases,
    // std's lock: held for map operations, never across an await.
    known: Mutex<NetworkState>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct NetworkState {
    objects: HashMap<String, Network>,
    verdicts: HashMap<String, NetworkVerdict>,
    /// Their interfaces that were there when they were judged.
    present: BTreeSet<String>,
    listed: bool,
}

impl NetworkDirectory {
    /// Those of the configuration; those of the API as the watches tell, once they are judged.
    pub fn new(file: &[NetworkConfig], leases: Leases, watches: &mut Watches) -> Self {
        let (file, site, known, changed) = (file.to_vec(), Site::of(file), Mutex::default(), Arc::default());
        let networks = Self(Arc::new(Inner { file, site, leases, known, changed }));
        let told = networks.clone();
        watches.observe(move |change: &WatchChange<'_, Network>| told.take(change));
        networks
    }

    fn known(&self) -> MutexGuard<'_, NetworkState> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, change: &WatchChange<'_, Network>) {
        let mut known = self.known();
        let tells = match change {
            WatchChange::Put(object) => {
                let mut object = Network::clone(object);
                object.metadata.managed_fields = None;
                object.metadata.annotations = None;
                let before = known.objects.insert(object.name_any(), object.clone());
                // The status is written here: nothing is judged anew for it.
                before.is_none_or(|before| before.spec != object.spec || before.metadata.uid != object.metadata.uid)
            }
            WatchChange::Gone((_, name)) => known.objects.remove(name).is_some(),
            WatchChange::Listed => {
                known.listed = true;
                true
            }
        };
        drop(known);
        if tells {
            self.0.changed.notify_one();
        }
    }

    /// Those of the configuration.
    pub(super) fn file(&self) -> &[NetworkConfig] {
        &self.0.file
    }

    /// What other rooms go by.
    pub fn site(&self) -> &Site {
        &self.0.site
    }

    /// Their leases.
    pub(super) fn leases(&self) -> &Leases {
        &self.0.leases
    }

    /// Told when they are to be judged anew.
    pub(super) fn changed(&self) -> &Arc<Notify> {
        &self.0.changed
    }

    /// Whether those of the API are known.
    pub(super) fn are_listed(&self) -> bool {
        self.known().listed
    }

    /// Judges what is there.
    pub(super) fn judge(&self) -> Vec<NetworkJudgement> {
        let mut known = self.known();
        let present = known.interfaces();
        let wanted = known.objects.values().filter(|object| !is_of_file(object)).map(|object| wanted(object, &present));
        let EffectiveNetworks { in_force, verdicts } = judge(&self.0.file, wanted);
        (known.verdicts, known.present) = (verdicts, present);
        in_force
    }

    /// Whether an interface of theirs came or went since they were judged.
    pub(super) fn are_elsewhere(&self) -> bool {
        let known = self.known();
        known.interfaces() != known.present
    }

    /// What may be written over the API.
    pub(super) fn admission(&self) -> AdmissionRules {
        let (spec, networks) = (spec::admission(&self.0.file), self.clone());
        Arc::new(move |request: &AdmissionRequest<'_>| {
            let more = request.operation == AdmissionOperation::Create && !request.identity.is_in_process();
            if more && networks.of_api() >= judge::MOST {
                let detail = format!("there are {} Networks already, which are as many as there may be", judge::MOST);
                return Err(vec![FieldError::forbidden("metadata.name", detail)]);
            }
            spec(request)
        })
    }

    /// How many objects there are that do not show a network of the configuration.
    fn of_api(&self) -> usize {
        self.known().objects.values().filter(|object| !is_of_file(object)).count()
    }
}

impl NetworkState {
    /// Interfaces of those of the API that are there.
    fn interfaces(&self) -> BTreeSet<String> {
        let named: BTreeSet<&String> =
            self.objects.values().filter(|object| !is_of_file(object)).map(|object| &object.spec.interface).collect();
        if named.is_empty() {
            return BTreeSet::new();
        }
        interfaces().unwrap_or_default().into_keys().filter(|name| named.contains(name)).collect()
    }
}

/// Whether an object shows a network of the configuration.
fn is_of_file(object: &Network) -> bool {
    !object.spec.network.is_empty()
}

fn wanted(object: &Network, present: &BTreeSet<String>) -> WantedNetwork {
    let name = object.name_any();
    WantedNetwork {
        present: present.contains(&object.spec.interface),
        created: object.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        config: spec::config_of(&name, &object.spec).map_err(|faults| {
            let faults = faults.into_iter().map(|(key, fault)| format!("spec.{key}: {fault}"));
            faults.collect::<Vec<_>>().join("; ")
        }),
        name,
    }
}
