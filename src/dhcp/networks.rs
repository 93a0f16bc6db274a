//! The networks of `slipway.toml` as objects of the kind `Network`: how they are served, how full they are, and whether another
//! server is there. Read-only.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use tokio_util::sync::CancellationToken;

use super::leases::{Leases, NetworkLeases, unix_now};
use crate::api::slipway::{Network, NetworkSpec, NetworkStatus};
use crate::config::{NetworkConfig, NetworkMode};
use crate::runtime::{ViewError, Views};

/// How often it is looked whether a view is out of date. How full a pool is changes all the time.
const LOOK: Duration = Duration::from_secs(10);

/// Shows the networks until told to stop.
pub(super) async fn publish(
    networks: Vec<NetworkConfig>,
    leases: Leases,
    views: Views<Network>,
    shutdown: CancellationToken,
) {
    let networks = named(networks);
    let mut shown: HashMap<String, Network> = HashMap::new();
    let (mut tidied, mut failing) = (false, false);
    loop {
        let round = async {
            if !tidied {
                tidy(&networks, &views).await?;
                tidied = true;
            }
            for (name, config) in &networks {
                let served = leases.networks().iter().find(|served| served.config.name == config.name);
                let view = view(name, config, served, shown.get(name));
                if shown.get(name) != Some(&view) {
                    views.put(&view).await?;
                    shown.insert(name.clone(), view);
                }
            }
            Ok::<_, ViewError>(())
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            done = round => {
                if let Err(error) = &done
                    && !failing
                {
                    tracing::warn!(%error, "networks cannot be shown as Network objects; that is tried again");
                }
                failing = done.is_err();
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// Removes views of networks that the configuration has no more: whoever led before may have had another one.
async fn tidy(networks: &[(String, NetworkConfig)], views: &Views<Network>) -> Result<(), ViewError> {
    for view in views.left().await? {
        let name = view.name_any();
        if !networks.iter().any(|(known, _)| *known == name) {
            views.remove(&name).await?;
        }
    }
    Ok(())
}

/// The networks by the names of their objects: of two that would have the same one, the second has its number in it.
fn named(networks: Vec<NetworkConfig>) -> Vec<(String, NetworkConfig)> {
    let mut named: Vec<(String, NetworkConfig)> = Vec::new();
    for (number, config) in networks.into_iter().enumerate() {
        let name = object_name(&config.name);
        let taken = named.iter().any(|(other, _)| *other == name);
        named.push((if taken { format!("{name}.{number}") } else { name }, config));
    }
    named
}

/// A network's name as an object may have it: in lower case, with a hyphen for whatever cannot be in a name.
fn object_name(name: &str) -> String {
    let plain = name.chars().map(|char| if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { '-' });
    let plain: String = plain.take(63).collect();
    let plain = plain.trim_matches('-');
    if plain.is_empty() { "network".into() } else { plain.to_owned() }
}

fn view(name: &str, config: &NetworkConfig, served: Option<&NetworkLeases>, before: Option<&Network>) -> Network {
    let text = |address: std::net::Ipv4Addr| address.to_string();
    let spec = NetworkSpec {
        network: config.name.clone(),
        interface: config.interface.clone(),
        subnet: config.subnet.to_string(),
        mode: mode(config.mode).into(),
        pool: config.pool.iter().map(|range| format!("{}-{}", range.first, range.last)).collect(),
        server: config.server.or_else(|| served?.server()).map(text),
        router: config.router.map(text),
        dns: config.dns.iter().copied().map(text).collect(),
        relays: config.relays.iter().copied().map(text).collect(),
        discovery: config.discovery,
        lease_seconds: i64::try_from(config.lease.0.as_secs()).unwrap_or(i64::MAX),
    };
    let usage = served.map(|served| served.table().usage());
    let count = |number: Option<u64>| number.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
    let others = served.map(|served| served.others.seen(unix_now())).unwrap_or_default();
    let alone = if others.is_empty() {
        ("True", "NoOtherServer", String::new())
    } else {
        let named: Vec<_> = others.into_iter().map(text).collect();
        (
            "False",
            "OtherServerChosen",
            format!(
                "machines said within the last hour that they chose the DHCP server {}: stop it, or set mode = \"proxy\"",
                named.join(", ")
            ),
        )
    };
    let mut conditions = vec![("Ready", ("True", "Served", String::new()))];
    match config.mode {
        NetworkMode::Authoritative => conditions.push(("OnlyServer", alone)),
        NetworkMode::Off => conditions[0].1 = ("False", "Off", "the network is named only: DHCP answers nobody".into()),
        NetworkMode::Reservations | NetworkMode::Proxy => {}
    }
    let status = NetworkStatus {
        pool_addresses: count(usage.map(|usage| usage.pool)),
        leased: count(usage.map(|usage| usage.used)),
        declined: count(usage.map(|usage| usage.declined)),
        conditions: conditions.into_iter().map(|(kind, told)| condition(kind, told, before)).collect(),
    };
    let mut network = Network::new(name, spec);
    network.status = Some(status);
    network
}

/// The condition; its time is that of the former one as long as it says the same.
fn condition(kind: &str, (status, reason, message): (&str, &str, String), before: Option<&Network>) -> Condition {
    let before = before.and_then(|network| network.status.as_ref()).map_or(&[][..], |status| &status.conditions);
    let same = before.iter().find(|condition| condition.type_ == kind && condition.status == status);
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    Condition {
        type_: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message,
        last_transition_time: same.map_or(Time(now), |same| same.last_transition_time.clone()),
        observed_generation: None,
    }
}

fn mode(mode: NetworkMode) -> &'static str {
    match mode {
        NetworkMode::Authoritative => "authoritative",
        NetworkMode::Reservations => "reservations",
        NetworkMode::Proxy => "proxy",
        NetworkMode::Off => "off",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_a_network_makes_one_of_an_object() {
        for (name, wanted) in
            [("lab", "lab"), ("Floor 2/East", "floor-2-east"), ("_x_", "x"), ("Ä", "network"), ("", "network")]
        {
            assert_eq!(object_name(name), wanted);
        }
        assert_eq!(object_name(&"a".repeat(100)).len(), 63);
    }

    #[test]
    fn conditions_keep_their_time_while_they_say_the_same() {
        let config: NetworkConfig =
            toml::from_str("name = 'a'\ninterface = 'e0'\nsubnet = '10.0.0.0/24'\nmode = 'off'").unwrap();
        let mut first = view("a", &config, None, None);
        let status = first.status.as_mut().unwrap();
        assert_eq!((status.conditions.len(), status.conditions[0].status.as_str(), status.leased), (1, "False", None));
        status.conditions[0].last_transition_time = Time(Timestamp::UNIX_EPOCH);
        assert_eq!(view("a", &config, None, Some(&first)), first);
        let served = view("a", &NetworkConfig { mode: NetworkMode::Authoritative, ..config }, None, Some(&first));
        let conditions = served.status.unwrap().conditions;
        assert!(conditions.len() == 2 && conditions[0].last_transition_time.0 > Timestamp::UNIX_EPOCH);
    }
}
