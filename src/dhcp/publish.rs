//! Shows leases as DHCPLease objects, behind the packets' back: changes are collected and published in batches.

use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::api::slipway::{DHCPLease, DHCPLeaseSpec};
use crate::boot::HostIndex;
use crate::config::NetworkConfig;
use crate::runtime::{ViewError, Views};

use super::leases::Leases;
use super::table::{Lease, LeaseState};

/// Time between batches.
const PERIOD: Duration = Duration::from_millis(250);
/// Views of one batch: at most 1,000 a second, so that a storm of leases leaves the machine to DHCP.
const BATCH: usize = 250;
/// Views handed to the store at once; more would make leases wait behind them.
const AT_ONCE: usize = 32;

/// Who writes the views in an API server that is not the embedded one.
pub(super) const MANAGER: &str = "slipway-dhcp";

/// Where leases are shown as DHCPLease objects. The leases themselves are always on this appliance's own disk.
pub type LeaseViews = Views<DHCPLease>;

/// Removes views that nobody keeps current any more: of our networks, expired, and not among our leases.
async fn tidy(views: &LeaseViews, leases: &Leases) -> Result<(), ViewError> {
    let networks = leases.networks().iter().map(|network| network.config.name.as_str()).collect::<Vec<_>>();
    for view in views.left().await?.iter().filter(|view| abandoned(&view.spec, &networks, Timestamp::now())) {
        let ours =
            view.spec.address.parse().ok().and_then(|address| leases.with_lease(address, |_, lease| lease.stored));
        if ours != Some(true) {
            views.remove(&view.spec.address).await?;
        }
    }
    Ok(())
}

/// Whether a view is of a lease that ended long enough ago that no appliance can still know it as held.
fn abandoned(view: &DHCPLeaseSpec, networks: &[&str], now: Timestamp) -> bool {
    let ended = view.expires.as_ref().is_none_or(|expires| expires.0 < now);
    ended && networks.contains(&view.network.as_str())
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
fn spec(config: &NetworkConfig, lease: &Lease) -> Option<DHCPLeaseSpec> {
    if !lease.stored {
        return None;
    }
    // Somebody who has a former lease offered again has not come back yet.
    let state = if lease.state == LeaseState::Offered { "expired" } else { state_name(lease) };
    let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(DHCPLeaseSpec {
        address: lease.address.to_string(),
        mac_address: lease.client.mac.to_string(),
        client_id: lease.client.id.as_deref().map(hex),
        network: config.name.clone(),
        state: state.to_owned(),
        host: None,
        hostname: lease.hostname.as_deref().map(str::to_owned),
        expires: expiry(lease.ends).map(Time),
    })
}

/// Publishes what changed, until told to stop.
pub(super) async fn run(leases: Leases, hosts: HostIndex, views: LeaseViews, shutdown: CancellationToken) {
    tokio::select! {
        () = shutdown.cancelled() => return,
        tidied = tidy(&views, &leases) => if let Err(error) = tidied {
            tracing::warn!(%error, "cannot remove old DHCPLease objects");
        },
    }
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = period.tick() => {}
        }
        for index in 0..leases.networks().len() {
            let changed = leases.networks()[index].table().take_changed(BATCH);
            for group in changed.chunks(AT_ONCE) {
                let results = join_all(group.iter().map(|address| publish(&leases, &hosts, &views, *address))).await;
                for (address, result) in group.iter().zip(results) {
                    let Err(error) = result else { continue };
                    leases.networks()[index].table().mark_changed(*address);
                    if !failing {
                        tracing::warn!(%address, %error, "cannot publish DHCPLease objects: trying again");
                    }
                    failing = true;
                }
            }
        }
    }
}

async fn publish(leases: &Leases, hosts: &HostIndex, views: &LeaseViews, address: Ipv4Addr) -> Result<(), ViewError> {
    let view = leases.with_lease(address, |config, lease| spec(config, lease).map(|spec| (spec, lease.client.mac)));
    let spec = view.flatten().map(|(mut spec, mac)| {
        spec.host = hosts.by_mac(mac).map(|host| format!("{}/{}", host.namespace, host.name));
        spec
    });
    match spec {
        Some(spec) => views.put(&DHCPLease::new(&address.to_string(), spec)).await,
        None => views.remove(&address.to_string()).await,
    }
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
            assert_eq!(abandoned(&view, &["a"], now), wanted, "{view:?}");
        }
    }
}
