//! Shows leases as DHCPLease objects, behind the packets' back: changes are collected and published in batches.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::api::slipway::DHCPLeaseSpec;
use crate::boot::HostIndex;
use crate::config::NetworkConfig;
use crate::store::{Change, Expect, WriteError};

use super::leases::Leases;
use super::table::{Lease, LeaseState};

/// Resource of the views.
const RESOURCE: &str = "slipway.dev/dhcpleases";
/// Time between batches.
const PERIOD: Duration = Duration::from_millis(250);
/// Views of one batch: at most 1,000 a second, so that a storm of leases leaves the machine to DHCP.
const BATCH: usize = 250;
/// Views handed to the store at once; more would make leases wait behind them.
const AT_ONCE: usize = 32;

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
pub(super) async fn run(leases: Leases, hosts: HostIndex, shutdown: CancellationToken) {
    let resource: Arc<str> = RESOURCE.into();
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
                let results = join_all(group.iter().map(|address| publish(&leases, &hosts, &resource, *address))).await;
                for (address, result) in group.iter().zip(results) {
                    let Err(error) = result else { continue };
                    leases.networks()[index].table().mark_changed(*address);
                    if !failing {
                        tracing::warn!(%address, %error, "DHCPLease objects cannot be published; tried again");
                    }
                    failing = true;
                }
            }
        }
    }
}

async fn publish(leases: &Leases, hosts: &HostIndex, resource: &Arc<str>, address: Ipv4Addr) -> Result<(), WriteError> {
    let name = address.to_string();
    let view = leases.with_lease(address, |config, lease| spec(config, lease).map(|spec| (spec, lease.client.mac)));
    let value = view.flatten().map(|(mut spec, mac)| {
        spec.host = hosts.by_mac(mac).map(|host| format!("{}/{}", host.namespace, host.name));
        let former = leases.store().get(resource, "", &name);
        object(&name, &spec, former.as_ref().map(|object| object.value()).as_ref())
    });
    let removes = value.is_none();
    let change = Change { resource: resource.clone(), namespace: String::new(), name, expect: Expect::Any, value };
    match leases.store().publish(change).await {
        Err(WriteError::NotFound) if removes => Ok(()),
        other => other.map(|_| ()),
    }
}

/// The object; it keeps the identity of its former self.
fn object(name: &str, spec: &DHCPLeaseSpec, former: Option<&Value>) -> Value {
    let kept = |field: &str| former.and_then(|value| value.pointer(&format!("/metadata/{field}")).cloned());
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    json!({
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "DHCPLease",
        "metadata": {
            "name": name,
            "uid": kept("uid").unwrap_or_else(|| uuid::Uuid::new_v4().to_string().into()),
            "creationTimestamp": kept("creationTimestamp").unwrap_or_else(|| now.to_string().into()),
        },
        "spec": spec,
    })
}
