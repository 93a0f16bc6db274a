//! The objects of reservations: those of the configuration are written, and the status of all says what came of them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use jiff::Timestamp;
use kube::Client;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::judge::ReservationVerdict;
use super::{Reservations, is_of_file};
use crate::api::MacAddress;
use crate::api::slipway::{RESERVATION_OF_FILE, Reservation, ReservationSpec, ReservationStatus};
use crate::apiserver::{AdmissionRequest, FieldError};
use crate::config::NetworkMode;
use crate::dhcp::mirror::{self, Mirror, MirrorWrite};
use crate::dhcp::publish::expiry;
use crate::dhcp::table::LeaseState;
use crate::runtime::SupervisedTask;
use crate::runtime::conditions::{self, Truth};

/// Reservations of the configuration are changed there.
///
/// # Errors
///
/// When somebody changes one here.
pub fn admit(request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    let name = request.object["metadata"]["name"].as_str().unwrap_or_default();
    if !is_of_file(name) || request.identity.is_in_process() {
        return Ok(());
    }
    let detail = format!(
        "names that begin with {RESERVATION_OF_FILE:?} are of reservations in slipway.toml: change it there, and restart Slipway"
    );
    Err(vec![FieldError::forbidden("metadata.name", detail)])
}

/// Whose an address is now that is reserved for another machine.
type AddressInUse = Option<(MacAddress, Option<Timestamp>)>;

/// What a status says.
fn status(verdict: &ReservationVerdict, of_file: bool, in_use: AddressInUse) -> (String, bool, &'static str, String) {
    match (verdict, in_use) {
        (ReservationVerdict::Fault { reason, message }, _) => (String::new(), false, *reason, message.clone()),
        (ReservationVerdict::InForce { network, mac, address, .. }, Some((holder, until))) => {
            let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
            let message = format!(
                "{address} is leased to {holder}{until}: that machine gets another address when it asks again, and {mac} this one after that"
            );
            (network.clone(), false, "AddressInUse", message)
        }
        (ReservationVerdict::InForce { network, mode: NetworkMode::Proxy | NetworkMode::Off, .. }, None) => {
            let message = format!(
                "another server gives the addresses of network {network}: this says only that the machine may be there"
            );
            (network.clone(), true, "OtherServer", message)
        }
        (ReservationVerdict::InForce { network, .. }, None) => {
            (network.clone(), true, if of_file { "InConfiguration" } else { "InForce" }, String::new())
        }
    }
}

/// The status with this condition; its time is that of the former one as long as it says the same.
fn with_condition(
    object: &Reservation,
    (network, ready, reason, message): (String, bool, &str, String),
    now: Timestamp,
) -> ReservationStatus {
    let before = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let truth = if ready { Truth::True } else { Truth::False };
    let verdict = conditions::ConditionVerdict { truth, reason: reason.to_owned(), message };
    let condition = conditions::after(before, conditions::made("Ready", &verdict, object.metadata.generation, now));
    ReservationStatus { network, conditions: vec![condition] }
}

impl Reservations {
    /// The reservations of the configuration, by the names of their objects.
    fn of_file(&self) -> BTreeMap<String, (ReservationSpec, ReservationVerdict)> {
        let all = self
            .0
            .networks
            .file()
            .iter()
            .flat_map(|network| network.reservations.iter().map(move |one| (network, one)));
        let named = all.map(|(network, one)| {
            let spec = ReservationSpec {
                mac_address: one.mac.to_string(),
                address: one.address.to_string(),
                hostname: one.hostname.clone(),
            };
            let (mac, address) = (one.mac, one.address);
            let verdict =
                ReservationVerdict::InForce { network: network.name.clone(), mac, address, mode: network.mode };
            (format!("{RESERVATION_OF_FILE}{address}"), (spec, verdict))
        });
        named.collect()
    }

    /// Whether another machine has an address.
    fn in_use(&self, mac: MacAddress, address: Ipv4Addr) -> AddressInUse {
        let holder = self.0.networks.leases().with_lease(address, |_, lease| {
            let anothers = lease.state == LeaseState::Bound && lease.client.mac != mac;
            anothers.then(|| (lease.client.mac, expiry(lease.ends)))
        });
        holder.flatten()
    }
}

impl Mirror for Reservations {
    type Object = Reservation;

    fn due(&self, now: Timestamp) -> Vec<MirrorWrite<Reservation>> {
        let of_file = self.of_file();
        let known = self.known();
        let mut writes = Vec::new();
        for (name, (spec, _)) in &of_file {
            if known.objects.get(name).is_none_or(|object| object.spec != *spec) {
                writes.push(MirrorWrite::Spec(Reservation::new(name, spec.clone())));
            }
        }
        for (name, object) in &known.objects {
            let verdict =
                if is_of_file(name) { of_file.get(name).map(|(_, verdict)| verdict) } else { known.verdicts.get(name) };
            let Some(verdict) = verdict else {
                if is_of_file(name) {
                    writes.push(MirrorWrite::Gone(name.clone()));
                }
                continue;
            };
            let in_use = match verdict {
                ReservationVerdict::InForce { mac, address, .. } => self.in_use(*mac, *address),
                ReservationVerdict::Fault { .. } => None,
            };
            let status = with_condition(object, status(verdict, is_of_file(name), in_use), now);
            if object.status.as_ref() != Some(&status) {
                let fields = json!({ "network": status.network, "conditions": status.conditions });
                writes.push(MirrorWrite::Status(name.clone(), fields));
            }
        }
        writes
    }
}

impl Reservations {
    /// Keeps the objects until told to stop, from the first time that they are judged.
    pub(in crate::dhcp) async fn keep(self, client: Client, task: SupervisedTask, shutdown: CancellationToken) {
        let mut judged = self.0.judged.subscribe();
        tokio::select! {
            () = shutdown.cancelled() => return,
            // The sender is in `self`.
            _ = judged.wait_for(|judged| *judged > 0) => {}
        }
        mirror::keep(&self, client, task, mirror::changes(judged), shutdown).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);

    #[test]
    fn the_condition_says_what_came_of_it_and_since_when() {
        let address = Ipv4Addr::new(10, 0, 0, 5);
        let good = |mode| ReservationVerdict::InForce { network: "a".into(), mac: MAC, address, mode };
        let bad = ReservationVerdict::Fault { reason: "NoNetwork", message: "no".into() };
        let other = Some((MacAddress([2, 0, 0, 0, 0, 2]), None));
        for (verdict, of_file, in_use, wanted) in [
            (good(NetworkMode::Authoritative), false, None, ("a", true, "InForce", "")),
            (good(NetworkMode::Authoritative), true, None, ("a", true, "InConfiguration", "")),
            (good(NetworkMode::Off), false, None, ("a", true, "OtherServer", "another server gives")),
            (
                good(NetworkMode::Reservations),
                false,
                other,
                ("a", false, "AddressInUse", "10.0.0.5 is leased to 02:00:00:00:00:02"),
            ),
            (bad, false, None, ("", false, "NoNetwork", "no")),
        ] {
            let (network, ready, reason, message) = status(&verdict, of_file, in_use);
            assert_eq!((network.as_str(), ready, reason), (wanted.0, wanted.1, wanted.2));
            assert!(message.starts_with(wanted.3), "{message}");
        }
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut object = Reservation::new("r", ReservationSpec::default());
        let mut say = |ready, second| {
            object.status = Some(with_condition(&object, (String::new(), ready, "X", String::new()), at(second)));
            object.status.as_ref().unwrap().conditions[0].last_transition_time.0.as_second()
        };
        assert_eq!([say(false, 1), say(false, 2), say(true, 3), say(true, 4), say(false, 5)], [1, 1, 3, 3, 5]);
    }
}
