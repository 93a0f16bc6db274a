//! The releases that there are, kept in memory: every cluster and each of its machines is looked at by them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;

use super::join::{self, NoActive};
use super::{CLUSTER_RELEASES, KAAS_RELEASES};
use crate::api::kaas::{ClusterRelease, KaaSRelease};
use crate::runtime::{WatchChange, Watches};
use crate::store::Store;

/// Releases, as they were last told of. Cheap to clone.
#[derive(Clone, Default)]
pub struct Releases(Arc<Mutex<KnownReleases>>);

#[derive(Default)]
struct KnownReleases {
    kaas: BTreeMap<String, Arc<KaaSRelease>>,
    clusters: BTreeMap<String, Arc<ClusterRelease>>,
}

impl Releases {
    /// None, until the watches run.
    pub fn new(watches: &mut Watches) -> Self {
        let releases = Self::default();
        let known = releases.clone();
        watches.observe(move |change: &WatchChange<'_, KaaSRelease>| match change {
            WatchChange::Put(release) => _ = known.lock().kaas.insert(release.name_any(), Arc::new((*release).clone())),
            WatchChange::Gone((_, name)) => _ = known.lock().kaas.remove(name),
            WatchChange::Listed => {}
        });
        let known = releases.clone();
        watches.observe(move |change: &WatchChange<'_, ClusterRelease>| match change {
            WatchChange::Put(release) => {
                _ = known.lock().clusters.insert(release.name_any(), Arc::new((*release).clone()))
            }
            WatchChange::Gone((_, name)) => _ = known.lock().clusters.remove(name),
            WatchChange::Listed => {}
        });
        releases
    }

    fn lock(&self) -> MutexGuard<'_, KnownReleases> {
        // Nothing in it can panic between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that concern a cluster: the active KaaSRelease, and this ClusterRelease.
    pub fn of(&self, release: &str) -> Offer {
        let known = self.lock();
        let active = join::active(known.kaas.values().map(|kaas| &**kaas)).map(ResourceExt::name_any);
        // It is in there, for that is where it comes from.
        let kaas = active.and_then(|name| known.kaas.get(&name).cloned().ok_or(NoActive::None));
        Offer { kaas, release: known.clusters.get(release).cloned() }
    }
}

/// What a cluster that names a release is judged by.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The active KaaSRelease, or why there is none.
    pub kaas: Result<Arc<KaaSRelease>, NoActive>,
    /// The ClusterRelease that it names.
    pub release: Option<Arc<ClusterRelease>>,
}

impl Offer {
    /// As the store has it at this moment. What cannot be read is not there.
    pub fn of_store(store: &Store, release: &str) -> Self {
        let all = store.list(KAAS_RELEASES, None).objects;
        let all: Vec<KaaSRelease> =
            all.iter().filter_map(|object| serde_json::from_value(object.value()).ok()).collect();
        let release = store.get(CLUSTER_RELEASES, "", release);
        let release = release.and_then(|object| serde_json::from_value(object.value()).ok()).map(Arc::new);
        let kaas = join::active(&all).map(|kaas| Arc::new(kaas.clone()));
        Self { kaas, release }
    }
}
