//! Who is looked at when a host changes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::rack::RackHost;
use crate::api::bpa::Provisioning;
use crate::api::metal3::BareMetalHost;
use crate::runtime::{Cache, Mention, ObjectKey, Slim, WatchChange, Watches, key};

/// Has Provisionings looked at when a host of their namespace changes in what concerns them.
pub(super) fn hosts(watches: &mut Watches, provisionings: &Cache<Slim<Provisioning>>) {
    let all = provisionings.clone();
    let mut known: HashMap<ObjectKey, u64> = HashMap::new();
    watches.observe::<BareMetalHost>(move |change: &WatchChange<'_, BareMetalHost>| {
        let changed = match change {
            WatchChange::Put(host) => {
                let (key, facts) = (key(*host), facts(&RackHost::from(*host)));
                (known.insert(key.clone(), facts) != Some(facts)).then_some(key)
            }
            WatchChange::Gone(key) => known.remove(*key).map(|_| (*key).clone()),
            WatchChange::Listed => None,
        };
        if let Some((namespace, _)) = changed {
            all.wake_mentioning(&hosts_of(&namespace));
        }
    });
}

/// The hosts of a namespace, which each of its Provisionings may want.
pub(super) fn hosts_of(namespace: &str) -> Mention {
    Mention::new("Provisioning of hosts", namespace, "")
}

/// What of a host concerns a Provisioning. A host that is at work changes each second, and most of that does not.
fn facts(host: &RackHost) -> u64 {
    let mut hasher = DefaultHasher::new();
    let view = &host.view;
    (&host.seat, &host.user_data, &host.leases, host.boot, &host.cards, &view.labels, &view.error).hash(&mut hasher);
    (view.state.as_str(), view.has_image, view.metadata.deletion_timestamp.is_some()).hash(&mut hasher);
    format!("{:?} {:?} {:?}", view.consumer, view.barred, view.capacity).hash(&mut hasher);
    hasher.finish()
}
