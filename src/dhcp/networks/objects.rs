//! The objects of networks: those of the configuration are written, and the status of all says how they are served, how full they
//! are, and whether another server is there.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::Client;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::judge::NetworkVerdict;
use super::spec::{named, spec_of};
use super::{NetworkDirectory, is_of_file};
use crate::api::slipway::{Network, NetworkStatus};
use crate::config::{NetworkConfig, NetworkMode};
use crate::dhcp::leases::unix_now;
use crate::dhcp::mirror::{self, Mirror, MirrorWrite};
use crate::dhcp::network_leases::NetworkLeases;
use crate::runtime::SupervisedTask;
use crate::runtime::conditions::{self, ConditionVerdict as Told};

/// What a network's status says.
#[derive(Debug, Default)]
struct ReportedStatus {
    server: Option<Ipv4Addr>,
    pool: Option<u64>,
    leased: Option<u64>,
    declined: Option<u64>,
    not_renewed: usize,
    conditions: Vec<(&'static str, Told)>,
}

/// What is said of a network in force. `served` is none where it is not to be served; `former` are leases of a network that had its name
/// before.
fn said(config: &NetworkConfig, served: Option<&NetworkLeases>, former: usize) -> ReportedStatus {
    let usage = served.map(|served| served.table().usage());
    let reserved = served.map(|served| served.reserved.get());
    let outside = served.map_or(0, |served| {
        let owner = |address| reserved.as_ref().and_then(|reserved| reserved.owner(address));
        served.table().not_renewed(owner)
    });
    let server = served.and_then(NetworkLeases::server);
    let ready = match (config.mode, served.and_then(NetworkLeases::fault), server) {
        (NetworkMode::Off, ..) => Told::no("Off", "the network is named only: DHCP answers nobody"),
        (_, Some(fault), _) => Told::no(fault.reason, fault.message),
        (_, None, None) => Told::no("Pending", "DHCP does not listen there yet"),
        (_, None, Some(_)) => Told::yes("Served"),
    };
    let mut conditions = vec![("Ready", ready)];
    if let Some(served) = served {
        conditions.extend(served.others.condition(unix_now(), config.mode).map(|told| ("OnlyServer", told)));
    }
    ReportedStatus {
        server,
        pool: usage.map(|usage| usage.pool),
        leased: usage.map(|usage| usage.used),
        declined: usage.map(|usage| usage.declined),
        not_renewed: outside + former,
        conditions,
    }
}

/// The status; a condition's time is that of the former one as long as it says the same.
fn status(object: &Network, said: ReportedStatus, now: Timestamp) -> NetworkStatus {
    let before = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let count = |number: Option<u64>| number.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
    let condition = |(kind, told): (&str, Told)| {
        conditions::after(before, conditions::made(kind, &told, object.metadata.generation, now))
    };
    NetworkStatus {
        server: said.server.map(|server| server.to_string()),
        pool_addresses: count(said.pool),
        leased: count(said.leased),
        declined: count(said.declined),
        not_renewed: (said.not_renewed > 0).then(|| i64::try_from(said.not_renewed).unwrap_or(i64::MAX)),
        conditions: said.conditions.into_iter().map(condition).collect(),
    }
}

impl Mirror for NetworkDirectory {
    type Object = Network;

    fn due(&self, now: Timestamp) -> Vec<MirrorWrite<Network>> {
        let file: HashMap<_, _> = named(self.file()).into_iter().collect();
        let served = self.leases().networks();
        let mut former: HashMap<String, usize> = HashMap::new();
        for ending in self.leases().ending() {
            *former.entry(ending.name.to_string()).or_default() += ending.table().bound();
        }
        let known = self.known();
        let mut writes = Vec::new();
        for (name, config) in &file {
            let spec = spec_of(config);
            if known.objects.get(name).is_none_or(|object| is_of_file(object) && object.spec != spec) {
                writes.push(MirrorWrite::Spec(Network::new(name, spec)));
            }
        }
        for (name, object) in &known.objects {
            let former = former.get(name).copied().unwrap_or_default();
            let in_force = |config: &NetworkConfig| {
                let served = served.iter().find(|served| *served.name == *config.name);
                said(config, served.map(AsRef::as_ref), former)
            };
            let said = match (is_of_file(object), file.get(name), known.verdicts.get(name)) {
                (true, Some(config), _) => in_force(config),
                (true, None, _) => {
                    writes.push(MirrorWrite::Gone(name.clone()));
                    continue;
                }
                (false, _, Some(NetworkVerdict::InForce)) => match super::spec::config_of(name, &object.spec) {
                    Ok(config) => in_force(&config),
                    // It changed a moment ago, and is judged again.
                    Err(_) => continue,
                },
                (false, _, Some(NetworkVerdict::Fault { reason, message })) => ReportedStatus {
                    not_renewed: former,
                    conditions: vec![("Ready", Told::no(reason, message))],
                    ..ReportedStatus::default()
                },
                (false, _, None) => continue,
            };
            let status = status(object, said, now);
            if object.status.as_ref() != Some(&status) {
                let fields = json!({
                    "server": status.server,
                    "poolAddresses": status.pool_addresses,
                    "leased": status.leased,
                    "declined": status.declined,
                    "notRenewed": status.not_renewed,
                    "conditions": status.conditions,
                });
                writes.push(MirrorWrite::Status(name.clone(), fields));
            }
        }
        writes
    }
}

impl NetworkDirectory {
    /// Keeps the objects until told to stop, from the first time that they are judged.
    pub(in crate::dhcp) async fn keep(
        self,
        mut judged: watch::Receiver<u64>,
        client: Client,
        task: SupervisedTask,
        shutdown: CancellationToken,
    ) {
        let served = mirror::changes(self.leases().set().served());
        tokio::select! {
            () = shutdown.cancelled() => return,
            listed = judged.wait_for(|judged| *judged > 0) => if listed.is_err() { return },
        }
        let wakes = stream::select(mirror::changes(judged).boxed(), served.boxed());
        mirror::keep(&self, client, task, wakes, shutdown).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::slipway::NetworkSpec;

    fn config(mode: &str) -> NetworkConfig {
        toml::from_str(&format!("name = 'a'\ninterface = 'e0'\nsubnet = '10.0.0.0/24'\nmode = '{mode}'")).unwrap()
    }

    fn served(mode: &str) -> NetworkLeases {
        NetworkLeases::new(&config(mode), crate::dhcp::reserved::Reserved::default(), false)
    }

    fn ready(said: &ReportedStatus) -> (&'static str, &str) {
        let (_, told) = said.conditions.iter().find(|(kind, _)| *kind == "Ready").unwrap();
        (told.truth.word(), &told.reason)
    }

    #[test]
    fn a_status_says_whether_and_from_where_it_is_served() {
        assert_eq!(ready(&said(&config("off"), None, 0)), ("False", "Off"));
        let network = served("authoritative");
        assert_eq!(ready(&said(&network.config(), Some(&network), 0)), ("False", "Pending"));
        network.not_served(crate::dhcp::network_leases::ServingFault { reason: "NoInterface", message: "no".into() });
        assert_eq!(ready(&said(&network.config(), Some(&network), 0)), ("False", "NoInterface"));
        network.serve_from([10, 0, 0, 1].into());
        let found = said(&network.config(), Some(&network), 3);
        assert_eq!((ready(&found), found.server), (("True", "Served"), Some([10, 0, 0, 1].into())));
        assert_eq!((found.not_renewed, found.conditions.len()), (3, 2));
        let beside = served("proxy");
        beside.serve_from([10, 0, 0, 1].into());
        assert_eq!(ready(&said(&beside.config(), Some(&beside), 0)), ("True", "Served"));
    }

    #[test]
    fn conditions_keep_their_time_while_they_say_the_same() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut object = Network::new("a", NetworkSpec::default());
        let mut say = |mode: &str, second| {
            let network = served(mode);
            network.serve_from([10, 0, 0, 1].into());
            let served = (mode != "off").then_some(&network);
            object.status = Some(status(&object, said(&config(mode), served, 0), at(second)));
            let conditions = &object.status.as_ref().unwrap().conditions;
            (conditions.len(), conditions[0].last_transition_time.0.as_second())
        };
        let times = [say("off", 1), say("off", 2), say("authoritative", 3), say("authoritative", 4), say("off", 5)];
        assert_eq!(times, [(1, 1), (1, 1), (2, 3), (2, 3), (1, 5)]);
    }
}
