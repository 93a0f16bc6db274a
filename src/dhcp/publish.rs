//! Shows leases as DHCPLease objects, behind the packets' back: changes are collected and published in batches.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::api::MacAddress;
use crate::api::slipway::{DHCPLease, DHCPLeaseSpec, LABEL_HOST, LABEL_HOST_NAMESPACE, LABEL_NETWORK};
use crate::apiserver::is_label_value;
use crate::boot::HostIndex;
use crate::hex::hex;
use crate::runtime::{ClusterScopedViews, SupervisedTask, ViewError};

use super::leases::Leases;
use super::network_leases::NetworkLeases;
use super::table::{Lease, LeaseState};

/// Time between batches.
const PERIOD: Duration = Duration::from_millis(250);
/// Views of one batch: at most 1,000 a second, so that a storm of leases leaves the machine to DHCP.
const BATCH: usize = 250;
/// Views handed to the store at once; more would make leases wait behind them.
const AT_ONCE: usize = 32;

/// Rounds of publishing after which it is looked again whose cards the leases are of.
const LOOK_FOR_HOSTS: u32 = 20;

/// Who writes the views in an API server that is not the embedded one.
pub(super) const MANAGER: &str = "slipway-dhcp";

/// Where leases are shown as DHCPLease objects. The leases themselves are always on this appliance's own disk.
pub type LeaseViews = ClusterScopedViews<DHCPLease>;

/// Removes views that nobody keeps current any more: of our networks, expired, and not among our leases.
async fn tidy(views: &LeaseViews, leases: &Leases) -> Result<(), ViewError> {
    let networks = leases.networks().iter().map(|network| network.name.to_string()).collect::<Vec<_>>();
    let left = views.left().await?;
    leases.learn_of_others(&left);
    for view in left.iter().filter(|view| abandoned(&view.spec, &networks, Timestamp::now())) {
        let ours =
            view.spec.address.parse().ok().and_then(|address| leases.with_lease(address, |_, lease| lease.stored));
        if ours != Some(true) {
            views.remove(&view.spec.address).await?;
        }
    }
    Ok(())
}

/// Whether a view is of a lease that ended long enough ago that no appliance can still know it as held.
fn abandoned(view: &DHCPLeaseSpec, networks: &[String], now: Timestamp) -> bool {
    let ended = view.expires.as_ref().is_none_or(|expires| expires.0 < now);
    ended && networks.contains(&view.network)
}

/// State as the view names it.
pub(super) fn state_name(lease: &Lease) -> &'static str {
    match lease.state {
        LeaseState::Bound => "bound",
        LeaseState::Declined => "declined",
        LeaseState::Released => "released",
        LeaseState::Expired => "expired",
        LeaseState::Offered => "offered",
    }
}

/// Seconds since 1970 as a time.
pub(super) fn expiry(ends: u64) -> Option<Timestamp> {
    Timestamp::from_second(i64::try_from(ends).ok()?).ok()
}

/// The view of a lease; offers have none.
fn spec(network: &NetworkLeases, lease: &Lease) -> Option<DHCPLeaseSpec> {
    if !lease.stored {
        return None;
    }
    // Somebody who has a former lease offered again has not come back yet.
    let state = if lease.state == LeaseState::Offered { "expired" } else { state_name(lease) };
    Some(DHCPLeaseSpec {
        address: lease.address.to_string(),
        mac_address: lease.client.mac.to_string(),
        client_id: lease.client.id.as_deref().map(hex),
        network: network.name.to_string(),
        state: state.to_owned(),
        host: None,
        hostname: lease.hostname.as_deref().map(str::to_owned),
        expires: expiry(lease.ends).map(Time),
    })
}

/// Labels of the view, for selectors. What no label's value may be is left out; a field selector finds that as well.
fn labels(spec: &DHCPLeaseSpec) -> BTreeMap<String, String> {
    let (namespace, host) = spec.host.as_deref().and_then(|host| host.split_once('/')).unwrap_or_default();
    let all = [(LABEL_NETWORK, spec.network.as_str()), (LABEL_HOST_NAMESPACE, namespace), (LABEL_HOST, host)];
    let good = all.into_iter().filter(|(_, value)| !value.is_empty() && is_label_value(value));
    good.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// What a view says of who has the address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ShownHolder {
    mac: MacAddress,
    bound: bool,
    /// `namespace/name`
    host: Option<String>,
}

/// Publishes what changed, until told to stop. Each batch is a run of the task.
pub(super) async fn run(
    leases: Leases,
    hosts: HostIndex,
    views: LeaseViews,
    task: SupervisedTask,
    shutdown: CancellationToken,
) {
    tokio::select! {
        () = shutdown.cancelled() => return,
        tidied = tidy(&views, &leases) => if let Err(error) = tidied {
            tracing::warn!(%error, "cannot remove old DHCPLease objects");
        },
    }
    let mut publisher = Publisher { leases, hosts, views, shown: HashMap::new(), failing: false };
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut round = 0_u32;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = period.tick() => {}
        }
        round = (round + 1) % LOOK_FOR_HOSTS;
        if round == 0 {
            note_other_hosts(&publisher.leases, &publisher.hosts, &publisher.shown);
        }
        let run = task.begin();
        match publisher.round().await {
            Ok(0) => run.forget(),
            published => run.end(published.map(drop)),
        }
    }
}

/// Who publishes leases, and what is published.
struct Publisher {
    leases: Leases,
    hosts: HostIndex,
    views: LeaseViews,
    shown: HashMap<Ipv4Addr, ShownHolder>,
    /// Whether it was said that something cannot be published.
    failing: bool,
}

impl Publisher {
    /// Publishes what changed, and says of how many leases; or why one of them could not be published.
    async fn round(&mut self) -> Result<usize, ViewError> {
        let Self { leases, hosts, views, shown, failing } = self;
        let (mut count, mut failed) = (0, None);
        for address in leases.set().take_changed() {
            count += 1;
            // Of a network that went: what nobody has is shown no longer.
            if publish(leases, hosts, views, address).await.is_ok() {
                tell(leases, shown, address, None);
            }
        }
        let networks = leases.networks();
        for network in networks.iter().chain(&leases.ending()) {
            let changed = network.table().take_changed(BATCH);
            count += changed.len();
            for group in changed.chunks(AT_ONCE) {
                let results = join_all(group.iter().map(|address| publish(leases, hosts, views, *address))).await;
                for (address, result) in group.iter().zip(results) {
                    match result {
                        Ok(now) => tell(leases, shown, *address, now),
                        Err(error) => {
                            network.table().mark_changed(*address);
                            if !*failing {
                                tracing::warn!(%address, %error, "cannot publish DHCPLease objects: trying again");
                            }
                            *failing = true;
                            failed = Some(error);
                        }
                    }
                }
            }
        }
        failed.map_or(Ok(count), Err)
    }
}

/// Has the views written anew whose card is another host's by now: hosts come, go, and get further cards.
fn note_other_hosts(leases: &Leases, hosts: &HostIndex, shown: &HashMap<Ipv4Addr, ShownHolder>) {
    let is_other = |one: &ShownHolder| match (hosts.by_mac(one.mac), &one.host) {
        (Some(host), Some(shown)) => shown.split_once('/') != Some((host.namespace.as_str(), host.name.as_str())),
        (host, shown) => host.is_some() != shown.is_some(),
    };
    for (address, _) in shown.iter().filter(|(_, one)| is_other(one)) {
        let networks = leases.networks();
        if let Some(network) = networks.iter().find(|network| network.subnet.contains(*address)) {
            network.table().mark_changed(*address);
        }
    }
}

/// Remembers what is shown of an address, and tells of machines that have it since, or no more. A renewal is no news.
fn tell(leases: &Leases, shown: &mut HashMap<Ipv4Addr, ShownHolder>, address: Ipv4Addr, now: Option<ShownHolder>) {
    let holder = |shown: Option<&ShownHolder>| shown.filter(|one| one.bound).map(|one| one.mac);
    let after = holder(now.as_ref());
    let before = match now {
        Some(now) => shown.insert(address, now),
        None => shown.remove(&address),
    };
    let before = holder(before.as_ref());
    if before != after {
        before.into_iter().chain(after).for_each(|mac| leases.address_changed(mac));
    }
}

async fn publish(
    leases: &Leases,
    hosts: &HostIndex,
    views: &LeaseViews,
    address: Ipv4Addr,
) -> Result<Option<ShownHolder>, ViewError> {
    let read = |network: &NetworkLeases, lease: &Lease| {
        spec(network, lease).map(|spec| (spec, lease.client.mac, lease.state == LeaseState::Bound))
    };
    let Some((mut spec, mac, bound)) = leases.with_lease(address, read).flatten() else {
        views.remove(&address.to_string()).await?;
        return Ok(None);
    };
    spec.host = hosts.by_mac(mac).map(|host| format!("{}/{}", host.namespace, host.name));
    let shown = ShownHolder { mac, bound, host: spec.host.clone() };
    let mut view = DHCPLease::new(&address.to_string(), spec);
    view.metadata.labels = Some(labels(&view.spec)).filter(|labels| !labels.is_empty());
    views.put(&view).await?;
    Ok(Some(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ended_on_our_networks_is_abandoned() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let view = |network: &str, expires: Option<&str>| DHCPLeaseSpec {
            network: network.into(),
            expires: expires.map(|at| Time(at.parse().unwrap())),
            ..DHCPLeaseSpec::default()
        };
        for (view, wanted) in [
            (view("a", Some("2025-12-31T23:59:59Z")), true),
            (view("a", None), true),
            // Perhaps of the appliance that led before.
            (view("a", Some("2026-01-01T00:00:01Z")), false),
            (view("b", Some("2025-12-31T23:59:59Z")), false),
        ] {
            assert_eq!(abandoned(&view, &["a".into()], now), wanted, "{view:?}");
        }
    }

    #[test]
    fn labels_are_what_a_label_may_be() {
        let labels = |network: &str, host: Option<&str>| {
            let spec =
                DHCPLeaseSpec { network: network.into(), host: host.map(str::to_owned), ..DHCPLeaseSpec::default() };
            labels(&spec).into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
        };
        let long = "h".repeat(64);
        for (network, host, wanted) in [
            ("lab", None, "slipway.dev/network=lab"),
            (
                "lab",
                Some("rack/web-1"),
                "slipway.dev/host=web-1 slipway.dev/host-namespace=rack slipway.dev/network=lab",
            ),
            ("Floor 2", Some("rack/web-1"), "slipway.dev/host=web-1 slipway.dev/host-namespace=rack"),
            ("", Some(&format!("rack/{long}")), "slipway.dev/host-namespace=rack"),
        ] {
            assert_eq!(labels(network, host), wanted);
        }
    }

    #[tokio::test]
    async fn a_machine_is_told_of_when_it_has_another_address_and_not_when_it_renews() {
        let folder = tempfile::tempdir().unwrap();
        let (path, key_file) = (folder.path().join("db"), folder.path().join("key"));
        let store = crate::store::Store::open(crate::store::StoreOptions { path, key_file, history: 10 }).unwrap();
        let leases = Leases::load(&store, &[]).unwrap();
        let (tells, told) = std::sync::mpsc::channel();
        leases.tell_of_changes(move |mac| tells.send(mac.0[5]).unwrap());
        let mut known = HashMap::new();
        let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
        let shown = |last, bound| Some(ShownHolder { mac: mac(last), bound, host: None });
        for (now, wanted) in [
            (shown(1, true), &[1][..]),
            (shown(1, true), &[]),
            (Some(ShownHolder { mac: mac(1), bound: true, host: Some("rack/h".into()) }), &[]),
            (shown(1, false), &[1]),
            (shown(2, true), &[2]),
            (shown(3, true), &[2, 3]),
            (None, &[3]),
            (None, &[]),
        ] {
            tell(&leases, &mut known, [10, 0, 0, 1].into(), now.clone());
            assert_eq!(told.try_iter().collect::<Vec<_>>(), wanted, "{now:?}");
        }
        assert!(known.is_empty());
    }
}
