//! The search for other DHCP servers: now and then the appliance asks on each wire where it should be alone, as a machine would, and
//! whoever answers is another server.
//!
//! It never requests what it is offered, and this appliance's own server does not hear it. Frames are sent and heard beside the
//! system's sockets, so a DHCP client on the box is not disturbed. What comes back is anybody's word, so what is read is bounded.

mod message;
mod socket;

use std::collections::{BTreeMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use self::message::{ProbeOffer, discover};
use self::socket::ProbeSocket;
use super::interface::interfaces;
use super::leases::{Leases, unix_now};
use super::network_leases::NetworkLeases;
use crate::api::MacAddress;
use crate::config::NetworkMode;
use crate::runtime::tasks::SupervisedTask;

pub use self::message::own_card;

/// How long answers are waited for: a server may look by ICMP first who uses the address, for three seconds as a rule.
const PATIENCE: Duration = Duration::from_secs(6);
/// When the question is asked again: one may be lost.
const AGAIN: Duration = Duration::from_secs(2);
/// Answers that are heard in one search of a wire.
const MOST_HEARD: usize = 256;
/// Seconds that a server is remembered beyond the next two searches.
const GRACE: u64 = 60;

/// Searches on every wire where this appliance should be the only server, and remembers for so many seconds who answered.
///
/// # Errors
///
/// On which interface that could not be done, and why.
pub async fn find_servers(leases: &Leases, keep: u64) -> Result<(), String> {
    let wires = wires(leases).into_iter().collect();
    search(wires, keep).await
}

/// The networks of each interface that this appliance is on itself, and alone.
fn wires(leases: &Leases) -> BTreeMap<String, Vec<Arc<NetworkLeases>>> {
    let mut wires: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for network in leases.networks().iter() {
        let config = network.config();
        let is_here = network.server().is_some_and(|server| network.subnet.contains(server));
        if config.mode == NetworkMode::Authoritative && is_here && network.fault().is_none() {
            wires.entry(config.interface.clone()).or_default().push(Arc::clone(network));
        }
    }
    wires
}

async fn search(wires: Vec<(String, Vec<Arc<NetworkLeases>>)>, keep: u64) -> Result<(), String> {
    let searches = wires.into_iter().map(|(interface, networks)| async move {
        let heard = ask(&interface).await.map_err(|error| format!("{interface}: {error}"))?;
        for (server, (card, offered)) in heard {
            note(&networks, server, card, offered, keep);
        }
        Ok(())
    });
    let faults: Vec<String> = join_all(searches).await.into_iter().filter_map(Result::err).collect();
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}

fn note(networks: &[Arc<NetworkLeases>], server: Ipv4Addr, card: MacAddress, offered: Ipv4Addr, keep: u64) {
    for network in networks {
        if network.others.offered(unix_now(), server, card, keep) {
            tracing::warn!(
                network = %network.name, %server, %card, %offered,
                "another DHCP server answers here: it answered this appliance's own DHCPDISCOVER; stop that server, or set mode = \"proxy\""
            );
        }
    }
}

/// Who answers on a wire: each server with its card and an address that it offered.
async fn ask(interface: &str) -> std::io::Result<BTreeMap<Ipv4Addr, (MacAddress, Ipv4Addr)>> {
    let mut heard = BTreeMap::new();
    let Some(socket) = ProbeSocket::open(interface)? else { return Ok(heard) };
    let own: HashSet<MacAddress> = interfaces()?.values().filter_map(|interface| interface.mac()).collect();
    let xid = rand::random();
    let (begun, mut left) = (Instant::now(), MOST_HEARD);
    let (again, end) = (begun + AGAIN, begun + PATIENCE);
    let question = discover(socket.card(), xid);
    socket.send(&question)?;
    let mut asked_again = false;
    while left > 0 {
        let until = if asked_again { end } else { again };
        match timeout_at(until, socket.readable()).await {
            Ok(readable) => readable?,
            Err(_) if asked_again => break,
            Err(_) => {
                socket.send(&question)?;
                asked_again = true;
                continue;
            }
        }
        for ProbeOffer { card, server, offered } in socket.hear(xid) {
            left = left.saturating_sub(1);
            if !own.contains(&card) && heard.len() < super::other_servers::MOST {
                heard.entry(server).or_insert((card, offered));
            }
        }
    }
    Ok(heard)
}

/// Searches at the start, each time that a wire comes, and after each pause, until told to stop.
pub(super) async fn run(leases: Leases, pause: Duration, task: SupervisedTask, stop: CancellationToken) {
    let keep = pause.as_secs().saturating_mul(2).saturating_add(GRACE);
    let mut served = leases.set().served();
    let mut known: HashSet<String> = HashSet::new();
    let mut next = Instant::now() + pause;
    while !stop.is_cancelled() {
        let due = Instant::now() >= next;
        let wires = wires(&leases);
        known.retain(|interface| wires.contains_key(interface));
        let asked: Vec<_> = wires.into_iter().filter(|(interface, _)| due || !known.contains(interface)).collect();
        known.extend(asked.iter().map(|(interface, _)| interface.clone()));
        if due {
            next = Instant::now() + pause;
        }
        if !asked.is_empty() {
            let run = task.run(search(asked, keep));
            tokio::select! {
                () = stop.cancelled() => return,
                // Its result is known where tasks are shown.
                done = run => if let Err(error) = done {
                    tracing::debug!(%error, "cannot look for other DHCP servers");
                },
            }
            task.next_in(next.saturating_duration_since(Instant::now()));
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep_until(next) => {}
            _ = served.changed() => {}
        }
    }
}
