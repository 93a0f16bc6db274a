//! What is known of claims and data, by template and by machine: kept by one watch of each kind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::{Resource, ResourceExt};

use super::plan::{DataClaim, IndexedData};
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::v1beta2::Cluster;
use crate::api::infrastructure::data::v1beta2::{Metal3Data, Metal3DataClaim};
use crate::api::infrastructure::v1beta2::{Metal3Machine, Metal3Reference};
use crate::api::infrastructure::{self, data::FINALIZER_CLAIM};
use crate::api::ipam::metal3::IPClaim;
use crate::api::ipam::v1beta2::IPAddressClaim;
use crate::cluster::contract::pause;
use crate::runtime::{Grouped, ObjectKey, Wakes, WatchChange, Watches, key, objects, owners};

/// Whose claims of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum AddressClaims {
    /// Metal3's.
    Metal3,
    /// Cluster API's.
    Contract,
}

/// Claims and data of all templates. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct DataIndex(Arc<Mutex<DataState>>);

#[derive(Default)]
struct DataState {
    claims: Grouped<DataClaim>,
    data: Grouped<IndexedData>,
    /// Data by its Metal3Machine, and whether it is ready.
    of_machine: Grouped<bool>,
    /// Claims of addresses by their data.
    addresses: HashMap<AddressClaims, Grouped<()>>,
    /// The templates of claims, by the claims' cluster.
    of_cluster: Grouped<ObjectKey>,
    /// Whether clusters are paused.
    clusters: HashMap<ObjectKey, bool>,
    /// Kinds that were not listed yet.
    awaited: usize,
}

/// Who is looked at when something changes.
#[derive(Clone)]
pub(super) struct WakeTargets {
    /// Templates.
    pub templates: Wakes,
    /// Data.
    pub data: Wakes,
}

/// The template that is referred to from a namespace; none of another namespace.
pub(super) fn template_of(namespace: &str, reference: Option<&Metal3Reference>) -> Option<ObjectKey> {
    let reference = reference.filter(|reference| !reference.name.is_empty())?;
    let other = reference.namespace.as_deref().unwrap_or_default();
    (other.is_empty() || other == namespace).then(|| (namespace.to_owned(), reference.name.clone()))
}

/// What counts of a claim.
pub(super) fn claim(object: &Metal3DataClaim) -> DataClaim {
    let status = object.status.clone().unwrap_or_default();
    DataClaim {
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        created: object.creation_timestamp().map(|time| time.0),
        machine: owners::of_kind(&object.metadata, infrastructure::GROUP, "Metal3Machine").cloned(),
        cluster: object.labels().get(LABEL_CLUSTER).cloned(),
        paused: pause::is_annotated(object),
        held: objects::is_held(object, FINALIZER_CLAIM),
        deleted: object.metadata.deletion_timestamp.is_some(),
        rendered: status.rendered_data.map(|data| data.name),
        error: status.error_message,
    }
}

fn data(object: &Metal3Data) -> Option<(ObjectKey, IndexedData)> {
    let template = template_of(&key(object).0, object.spec.template.as_ref())?;
    let claim = object.spec.claim.as_ref().map(|claim| claim.name.clone()).unwrap_or_default();
    let claim_uid = owners::of_kind(&object.metadata, infrastructure::GROUP, "Metal3DataClaim");
    let claim_uid = claim_uid.map(|owner| owner.uid.clone());
    Some((
        template,
        IndexedData { name: object.name_any(), index: object.spec.index.unwrap_or_default(), claim, claim_uid },
    ))
}

impl DataIndex {
    /// Follows everything, and has those looked at whom a change concerns.
    pub fn follow(&self, watches: &mut Watches, woken: &WakeTargets) {
        self.follow_claims(watches, woken.templates.clone());
        self.follow_data(watches, woken.templates.clone());
        self.follow_addresses::<IPClaim>(watches, AddressClaims::Metal3, woken);
        self.follow_addresses::<IPAddressClaim>(watches, AddressClaims::Contract, woken);
        self.follow_machines(watches, woken.data.clone());
        self.follow_clusters(watches, woken.templates.clone());
    }

    fn follow_claims(&self, watches: &mut Watches, templates: Wakes) {
        let index = self.listed_later();
        watches.observe(move |change: &WatchChange<'_, Metal3DataClaim>| match change {
            WatchChange::Put(object) => {
                let place = key(*object);
                let template = template_of(&place.0, object.spec.template.as_ref());
                let claim = claim(object);
                let cluster = claim.cluster.clone().map(|cluster| (place.0.clone(), cluster));
                index.lock().of_cluster.put(&place, cluster.zip(template.clone()));
                index.put(&templates, |known| known.claims.put(&place, template.map(|of| (of, claim))));
            }
            WatchChange::Gone(place) => {
                index.lock().of_cluster.put(place, None);
                index.put(&templates, |known| known.claims.put(place, None));
            }
            WatchChange::Listed => index.listed(&templates, 0),
        });
    }

    fn follow_data(&self, watches: &mut Watches, templates: Wakes) {
        let index = self.listed_later();
        watches.observe(move |change: &WatchChange<'_, Metal3Data>| match change {
            WatchChange::Put(object) => {
                index.put(&templates, |known| known.data.put(&key(*object), data(object)));
                let machine = owners::of_kind(&object.metadata, infrastructure::GROUP, "Metal3Machine");
                let place = key(*object);
                let ready = object.status.as_ref().and_then(|status| status.ready) == Some(true);
                let of = machine.map(|machine| ((place.0.clone(), machine.name.clone()), ready));
                index.lock().of_machine.put(&place, of);
            }
            WatchChange::Gone(place) => {
                index.put(&templates, |known| known.data.put(place, None));
                index.lock().of_machine.put(place, None);
            }
            WatchChange::Listed => index.listed(&templates, 1),
        });
    }

    fn follow_addresses<K>(&self, watches: &mut Watches, of: AddressClaims, woken: &WakeTargets)
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
    {
        let (index, WakeTargets { templates, data: woken }) = (self.listed_later(), woken.clone());
        watches.observe(move |change: &WatchChange<'_, K>| match change {
            WatchChange::Put(object) => {
                let place = key(*object);
                let owner = owners::of_kind(object.meta(), infrastructure::GROUP, "Metal3Data");
                let owner = owner.map(|owner| (place.0.clone(), owner.name.clone()));
                index.lock().addresses.entry(of).or_default().put(&place, owner.clone().map(|owner| (owner, ())));
                // Each change of it may be what is waited for.
                owner.into_iter().for_each(|owner| woken.wake(owner));
            }
            WatchChange::Gone(place) => {
                index.put(&woken, |known| known.addresses.entry(of).or_default().put(place, None));
            }
            WatchChange::Listed => index.listed(&templates, 2 + of as usize),
        });
    }

    fn follow_machines(&self, watches: &mut Watches, woken: Wakes) {
        let index = self.clone();
        watches.observe(move |change: &WatchChange<'_, Metal3Machine>| {
            let WatchChange::Put(object) = change else { return };
            let place = key(*object);
            let known = index.lock();
            let waiting = known.of_machine.of(&place).filter(|(_, ready)| !**ready);
            waiting.for_each(|(name, _)| woken.wake((place.0.clone(), name.clone())));
        });
    }

    fn follow_clusters(&self, watches: &mut Watches, templates: Wakes) {
        let index = self.clone();
        watches.observe(move |change: &WatchChange<'_, Cluster>| match change {
            WatchChange::Put(cluster) => {
                let (place, paused) = (key(*cluster), cluster.spec.paused == Some(true));
                let mut known = index.lock();
                if known.clusters.insert(place.clone(), paused) == Some(true) && !paused {
                    known.of_cluster.of(&place).for_each(|(_, template)| templates.wake(template.clone()));
                }
            }
            WatchChange::Gone(place) => drop(index.lock().clusters.remove(*place)),
            WatchChange::Listed => {}
        });
    }

    /// Claims and data of a template; `None` as long as not everything was listed.
    pub fn of(&self, template: &ObjectKey) -> Option<(Vec<DataClaim>, Vec<IndexedData>)> {
        let known = self.lock();
        let claims = known.claims.of(template).map(|(_, claim)| claim.clone());
        let data = known.data.of(template).map(|(_, data)| data.clone());
        (known.awaited == 0).then(|| (claims.collect(), data.collect()))
    }

    /// Whether a cluster is paused.
    pub fn is_paused(&self, cluster: &ObjectKey) -> bool {
        self.lock().clusters.get(cluster).copied().unwrap_or_default()
    }

    /// The names of claims of addresses that were made for data; `None` as long as not everything was listed.
    pub fn addresses_of(&self, data: &ObjectKey, of: AddressClaims) -> Option<Vec<String>> {
        let known = self.lock();
        let claims = known.addresses.get(&of).into_iter().flat_map(|claims| claims.of(data));
        (known.awaited == 0).then(|| claims.map(|(name, ())| name.clone()).collect())
    }

    /// The names of a template's claims.
    pub fn claims_of(&self, template: &ObjectKey) -> Vec<String> {
        self.lock().claims.of(template).map(|(name, _)| name.clone()).collect()
    }

    /// Takes note of data that was just stored: the watch tells it later, and until then its index must not be given again.
    pub fn stored(&self, object: &Metal3Data) {
        self.lock().data.put(&key(object), data(object));
    }

    /// Takes note of a claim of addresses that was just stored for data.
    pub fn stored_address(&self, claim: &ObjectKey, data: &ObjectKey, of: AddressClaims) {
        self.lock().addresses.entry(of).or_default().put(claim, Some((data.clone(), ())));
    }

    fn lock(&self) -> MutexGuard<'_, DataState> {
        // Nothing in it can panic between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listed_later(&self) -> Self {
        let mut known = self.lock();
        // A bit for each kind.
        known.awaited = (known.awaited << 1) | 1;
        drop(known);
        self.clone()
    }

    fn put(&self, wakes: &Wakes, put: impl FnOnce(&mut DataState) -> [Option<ObjectKey>; 2]) {
        let concerned = put(&mut self.lock());
        concerned.into_iter().flatten().for_each(|key| wakes.wake(key));
    }

    fn listed(&self, woken: &Wakes, kind: usize) {
        let mut known = self.lock();
        known.awaited &= !(1 << kind);
        if known.awaited == 0 {
            known.claims.groups().chain(known.data.groups()).for_each(|template| woken.wake(template.clone()));
        }
    }
}
