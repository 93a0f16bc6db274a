//! The host directory: what this process knows of all hosts, kept by one watch of each kind.

pub(in crate::host) mod at_rest;
pub mod boot_index_feeder;
pub(in crate::host) mod conflicts;
pub(in crate::host) mod equal_images;
pub(in crate::host) mod host_view;
pub mod image_requesters;
pub(in crate::host) mod interrupts;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use self::at_rest::AtRest;
use self::boot_index_feeder::Intents;
use self::conflicts::ConflictIndex;
use self::equal_images::EqualImages;
use self::host_view::{HostView, short_proof};
use self::image_requesters::ImageRequesters;
use self::interrupts::Interrupts;
use crate::api::MacAddress;
use crate::api::metal3::{BareMetalHost, HardwareData};
use crate::api::slipway::{BootIntent, Image, ImageSpec, ImageStatus};
use crate::boot::HostIndex;
use crate::image::identity::proofs;
use crate::runtime::{Cache, ObjectKey, Slim, WatchChange, Watches, key};

/// All hosts, as this process knows them. Cheap to clone.
#[derive(Clone)]
pub struct Directory {
    /// By MAC address, for DHCP and boot.
    pub index: HostIndex,
    /// What they are to boot.
    pub intents: Intents,
    /// Whether all hosts and what they are to boot were listed.
    pub ready: watch::Receiver<bool>,
    /// Who wants which image.
    pub requesters: ImageRequesters,
    pub(in crate::host) equal: EqualImages,
    pub(in crate::host) conflicts: Arc<ConflictIndex>,
    pub(in crate::host) cache: Cache<HostView>,
    pub(in crate::host) at_rest: AtRest,
    pub(in crate::host) interrupts: Interrupts,
}

impl Directory {
    /// Empty, until the watches run.
    pub fn new(watches: &mut Watches) -> Self {
        let (index, intents) = (HostIndex::default(), Intents::default());
        // In this order: who is woken finds everything else up to date.
        let ready = boot_index_feeder::follow(watches, index.clone(), intents.clone());
        let conflicts = Arc::new(ConflictIndex::new(index.clone()));
        let told = conflicts.clone();
        watches.observe(move |change: &WatchChange<'_, BareMetalHost>| match change {
            WatchChange::Put(host) => told.take(&WatchChange::Put(&HostView::from(*host))),
            WatchChange::Gone(key) => told.take(&WatchChange::Gone(key)),
            WatchChange::Listed => told.take(&WatchChange::Listed),
        });
        let requesters = ImageRequesters::new(watches);
        let equal = EqualImages::new(watches, requesters.clone());
        let interrupts = Interrupts::follow(watches);
        let cache = Cache::new(watches, |host: &BareMetalHost| HostView::from(host));
        let at_rest = AtRest::default();
        // These have the names of their hosts.
        wake::<BootIntent>(watches, &cache, |cache, key| cache.wakes().wake(key.clone()));
        let rest = at_rest.clone();
        wake::<Slim<HardwareData>>(watches, &cache, move |cache, key| {
            rest.end(key);
            cache.wakes().wake(key.clone());
        });
        wake_for_images(watches, &cache, at_rest.clone());
        let rest = at_rest.clone();
        wake::<Slim<Secret>>(watches, &cache, move |cache, (namespace, name)| {
            let is_its = |host: &HostView| {
                host.credentials_name() == Some(name.as_str()) && host.namespace().as_ref() == Some(namespace)
            };
            wake_where(cache, &rest, is_its);
        });
        Self { index, intents, ready, requesters, equal, conflicts, cache, at_rest, interrupts }
    }

    /// Has the host looked at that has a card with this address.
    pub(in crate::host) fn waking_by_mac(&self) -> impl Fn(MacAddress) + Send + Sync + use<> {
        let (index, cache, at_rest) = (self.index.clone(), self.cache.clone(), self.at_rest.clone());
        move |mac| {
            if let Some(host) = index.by_mac(mac) {
                let key = (host.namespace.clone(), host.name.clone());
                at_rest.end(&key);
                cache.wakes().wake(key);
            }
        }
    }

    /// With watches of its own, when everything is listed.
    #[cfg(test)]
    pub async fn start(client: &kube::Client, shutdown: &tokio_util::sync::CancellationToken) -> Self {
        let mut watches = Watches::default();
        let directory = Self::new(&mut watches);
        tokio::spawn(watches.run(client.clone(), shutdown.clone()));
        directory.ready.clone().wait_for(|ready| *ready).await.expect("the watches run");
        directory
    }
}

/// Has hosts looked at that rest or do not.
fn wake_where(cache: &Cache<HostView>, at_rest: &AtRest, wanted: impl Fn(&HostView) -> bool) {
    let wanted = |host: &HostView| {
        let wanted = wanted(host);
        if wanted {
            at_rest.end(&key(host));
        }
        wanted
    };
    cache.wake_where(wanted);
}

/// Has hosts looked at when their Image changes in what they go by, or one is there that has the same content.
fn wake_for_images(watches: &mut Watches, cache: &Cache<HostView>, at_rest: AtRest) {
    let cache = cache.clone();
    let mut known = HashMap::new();
    watches.observe(move |change: &WatchChange<'_, Image>| {
        let (name, now) = match change {
            WatchChange::Put(image) => (image.name_any(), Some(essence(image))),
            WatchChange::Gone((_, name)) => (name.clone(), None),
            WatchChange::Listed => return,
        };
        let before = match &now {
            Some(now) => known.insert(name.clone(), now.clone()),
            None => known.remove(&name),
        };
        if before != now {
            let equal: Vec<u64> = match change {
                WatchChange::Put(image) => proofs(image).iter().filter_map(|proof| short_proof(proof)).collect(),
                WatchChange::Gone(_) | WatchChange::Listed => Vec::new(),
            };
            let is_equal = |host: &HostView| host.image_proof().is_some_and(|proof| equal.contains(&proof));
            wake_where(&cache, &at_rest, |host| host.image_name() == Some(name.as_str()) || is_equal(host));
        }
    });
}

/// So many hosts that name an Image are looked at for each percent of its import; more, for ten at once: each look reads the
/// host and all around it, and writes how far the import is.
const FEW: i64 = 50;

/// What hosts go by of an Image. Who names it is none of that: or each host that names an Image would have all the others
/// looked at that do.
fn essence(image: &Image) -> (ImageSpec, Option<ImageStatus>) {
    let status = image.status.clone().map(|status| {
        let step = if status.hosts.is_some_and(|hosts| hosts > FEW) { 10 } else { 1 };
        let percent = status.percent.map(|percent| percent - percent % step);
        ImageStatus { hosts: None, namespaces: Vec::new(), percent, ..status }
    });
    (image.spec.clone(), status)
}

/// Has hosts looked at when an object of this kind is there, changes or goes. That it is there counts too: what was left behind
/// while nobody watched, or came between two listings, is found by it.
fn wake<K>(
    watches: &mut Watches,
    cache: &Cache<HostView>,
    hosts: impl Fn(&Cache<HostView>, &ObjectKey) + Send + 'static,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let cache = cache.clone();
    watches.observe(move |change: &WatchChange<'_, K>| match change {
        WatchChange::Put(object) => hosts(&cache, &key(*object)),
        WatchChange::Gone(key) => hosts(&cache, key),
        WatchChange::Listed => {}
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::slipway::ImagePhase;

    #[test]
    fn who_names_an_image_is_no_news_to_hosts() {
        let image = |change: fn(&mut ImageStatus)| {
            let mut image = Image::new("i", ImageSpec { url: "http://x/i".into(), ..ImageSpec::default() });
            change(image.status.insert(ImageStatus::default()));
            essence(&image)
        };
        let before = image(|_| {});
        assert_eq!(before, image(|status| (status.hosts, status.namespaces) = (Some(7), vec!["a".into()])));
        assert_ne!(before, image(|status| status.phase = ImagePhase::Ready));
        assert_ne!(before, image(|status| status.percent = Some(7)));
        assert_ne!(image(|status| status.percent = Some(6)), image(|status| status.percent = Some(7)));
        let at_36 = image(|status| (status.hosts, status.percent) = (Some(700), Some(36)));
        assert_eq!(at_36, image(|status| (status.hosts, status.percent) = (Some(700), Some(39))));
        assert_ne!(at_36, image(|status| (status.hosts, status.percent) = (Some(700), Some(40))));
        assert_ne!(before.0, essence(&Image::new("i", ImageSpec::default())).0);
    }
}
