//! What a Network object says, as the configuration would say it, and back; and what may be written over the API.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ipnetwork::Ipv4Network;
use serde_json::Value;

use crate::api::slipway::NetworkSpec;
use crate::apiserver::{AdmissionOperation, AdmissionRequest, AdmissionRules, FieldError};
use crate::config::{AddressRange, NetworkConfig, NetworkMode, Span};

/// Longest value that a message repeats, in characters.
const SHORT: usize = 64;
/// Longest name of a network: leases and metrics have it as a label.
const LONGEST_NAME: usize = 63;
/// Longest domain name (RFC 1035, 2.3.4).
const LONGEST_DOMAIN: usize = 253;
/// Longest lease: the longest that DHCP can say is for ever.
const LONGEST_LEASE: i64 = u32::MAX as i64 - 1;

/// The interface whose machines are programs of this one.
const LOOPBACK: &str = "lo";

/// What is wrong with a key of the spec.
pub type NetworkSpecFault = (&'static str, String);

/// The network that an object wants.
///
/// # Errors
///
/// In what it contradicts itself.
pub fn config_of(name: &str, spec: &NetworkSpec) -> Result<NetworkConfig, Vec<NetworkSpecFault>> {
    let mut faults = Vec::new();
    let subnet = match spec.subnet.parse::<Ipv4Network>() {
        Ok(subnet) if subnet.ip() == subnet.network() => {
            if is_of_no_machines(subnet, &spec.interface) {
                faults.push(("subnet", format!("{subnet} has addresses that are no machine's: loopback or multicast")));
            }
            Some(subnet)
        }
        Ok(subnet) => {
            faults.push(("subnet", format!("{subnet} is an address: write {}/{}", subnet.network(), subnet.prefix())));
            None
        }
        Err(_) => {
            faults.push(("subnet", format!("{:?} is no subnet: write 172.22.0.0/24", short(&spec.subnet))));
            None
        }
    };
    let mode = mode_of(&spec.mode);
    if mode.is_none() {
        faults.push(("mode", "authoritative, reservations, proxy or off".to_owned()));
    }
    let mut pool = Vec::new();
    for text in &spec.pool {
        match AddressRange::try_from(short(text)) {
            Ok(range) => pool.push(range),
            Err(fault) => faults.push(("pool", fault)),
        }
    }
    let mut one = |key: &'static str, text: &str| match text.parse::<Ipv4Addr>() {
        Ok(address) => Some(address),
        Err(_) => {
            faults.push((key, format!("{:?} is no IPv4 address", short(text))));
            None
        }
    };
    let mut all = |key, texts: &[String]| texts.iter().filter_map(|text| one(key, text)).collect::<Vec<_>>();
    let (dns, ntp, relays) = (all("dns", &spec.dns), all("ntp", &spec.ntp), all("relays", &spec.relays));
    let server = spec.server.as_deref().and_then(|text| one("server", text));
    let router = spec.router.as_deref().and_then(|text| one("router", text));
    if spec.domain.as_deref().is_some_and(|domain| !is_domain(domain)) {
        faults.push(("domain", "letters, digits, dots and hyphens, at most 253".to_owned()));
    }
    let mut seconds = |key, seconds: i64| match seconds {
        60..=LONGEST_LEASE => Span(Duration::from_secs(seconds.unsigned_abs())),
        _ => {
            faults.push((key, format!("60 to {LONGEST_LEASE} seconds")));
            Span(Duration::from_secs(60))
        }
    };
    let lease = seconds("leaseSeconds", spec.lease_seconds);
    let unknown_lease = seconds("unknownLeaseSeconds", spec.unknown_lease_seconds);
    let (Some(subnet), Some(mode)) = (subnet, mode) else { return Err(faults) };
    let config = NetworkConfig {
        name: name.to_owned(),
        interface: spec.interface.clone(),
        subnet,
        pool,
        mode,
        discovery: spec.discovery,
        lease,
        unknown_lease,
        check_cards: spec.check_cards,
        server,
        router,
        dns,
        ntp,
        domain: spec.domain.clone(),
        relays,
        reservations: Vec::new(),
    };
    faults.extend(config.contradictions());
    if faults.is_empty() { Ok(config) } else { Err(faults) }
}

/// What the object of a network of the configuration says.
pub fn spec_of(config: &NetworkConfig) -> NetworkSpec {
    let text = |address: Ipv4Addr| address.to_string();
    let seconds = |span: Span| i64::try_from(span.0.as_secs()).unwrap_or(LONGEST_LEASE).min(LONGEST_LEASE);
    NetworkSpec {
        network: config.name.clone(),
        interface: config.interface.clone(),
        subnet: config.subnet.to_string(),
        mode: mode_name(config.mode).into(),
        pool: config.pool.iter().map(|range| format!("{}-{}", range.first, range.last)).collect(),
        server: config.server.map(text),
        router: config.router.map(text),
        dns: config.dns.iter().copied().map(text).collect(),
        ntp: config.ntp.iter().copied().map(text).collect(),
        domain: config.domain.clone(),
        relays: config.relays.iter().copied().map(text).collect(),
        discovery: config.discovery,
        check_cards: config.check_cards,
        lease_seconds: seconds(config.lease),
        unknown_lease_seconds: seconds(config.unknown_lease),
    }
}

/// Whether any of it is multicast, reserved, of no network, or loopback on another interface than that.
fn is_of_no_machines(subnet: Ipv4Network, interface: &str) -> bool {
    let loopback = (interface != LOOPBACK).then_some(([127, 0, 0, 0], 8));
    let none = [([0, 0, 0, 0], 8), ([224, 0, 0, 0], 3)].into_iter().chain(loopback);
    none.filter_map(|(at, prefix)| Ipv4Network::new(at.into(), prefix).ok()).any(|one| one.overlaps(subnet))
}

fn short(text: &str) -> String {
    text.chars().take(SHORT).collect()
}

fn is_domain(text: &str) -> bool {
    let label = |label: &str| {
        let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = label.as_bytes();
        end(bytes.first())
            && end(bytes.last())
            && bytes.len() <= 63
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
    };
    text.len() <= LONGEST_DOMAIN && text.split('.').all(label)
}

fn mode_of(text: &str) -> Option<NetworkMode> {
    let all = [NetworkMode::Authoritative, NetworkMode::Reservations, NetworkMode::Proxy, NetworkMode::Off];
    all.into_iter().find(|mode| mode_name(*mode) == text)
}

fn mode_name(mode: NetworkMode) -> &'static str {
    match mode {
        NetworkMode::Authoritative => "authoritative",
        NetworkMode::Reservations => "reservations",
        NetworkMode::Proxy => "proxy",
        NetworkMode::Off => "off",
    }
}

/// The networks of the configuration by the names of their objects: of two that would have the same one, the second has its number in
/// it.
pub fn named(networks: &[NetworkConfig]) -> Vec<(String, &NetworkConfig)> {
    let mut named: Vec<(String, &NetworkConfig)> = Vec::new();
    for (number, config) in networks.iter().enumerate() {
        let name = object_name(&config.name);
        let taken = named.iter().any(|(other, _)| *other == name);
        named.push((if taken { format!("{name}.{number}") } else { name }, config));
    }
    named
}

/// A network's name as an object may have it: in lower case, with a hyphen for whatever cannot be in a name.
fn object_name(name: &str) -> String {
    let plain = name.chars().map(|char| if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { '-' });
    let plain: String = plain.take(LONGEST_NAME).collect();
    let plain = plain.trim_matches('-');
    if plain.is_empty() { "network".into() } else { plain.to_owned() }
}

/// Networks of the configuration are changed there, and none of the API has such a name or contradicts itself.
pub fn admission(file: &[NetworkConfig]) -> AdmissionRules {
    let names = named(file).into_iter().flat_map(|(name, config)| [name, config.name.clone()]);
    let names: BTreeSet<String> = names.collect();
    Arc::new(move |request: &AdmissionRequest<'_>| admit(&names, request))
}

fn admit(names: &BTreeSet<String>, request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    if request.identity.is_in_process() {
        return Ok(());
    }
    let name = request.object["metadata"]["name"].as_str().unwrap_or_default();
    let is_shown = |object: &Value| object["spec"]["network"].as_str().is_some_and(|network| !network.is_empty());
    // An object of before the file had the name is somebody's own, and can go.
    let of_file = match request.old {
        Some(old) => is_shown(old),
        None => request.operation == AdmissionOperation::Create || is_shown(request.object),
    };
    if names.contains(name) && of_file {
        let detail = format!(
            "{name} is a [[network]] of slipway.toml: change it there, and restart Slipway (on SIGHUP its log says what the file has anew)"
        );
        return Err(vec![FieldError::forbidden("metadata.name", detail)]);
    }
    if request.operation == AdmissionOperation::Delete || request.status {
        return Ok(());
    }
    if is_shown(request.object) {
        let detail = "only objects that show a [[network]] of slipway.toml have it: leave it out";
        return Err(vec![FieldError::forbidden("spec.network", detail)]);
    }
    let mut faults = Vec::new();
    if name.len() > LONGEST_NAME {
        let detail = format!("a network's name has at most {LONGEST_NAME} characters");
        faults.push(FieldError::invalid("metadata.name", &request.object["metadata"]["name"], detail));
    }
    let spec = serde_json::from_value::<NetworkSpec>(request.object["spec"].clone())
        .map_err(|error| vec![FieldError::invalid("spec", &Value::Null, error.to_string())])?;
    for (key, fault) in config_of(name, &spec).err().unwrap_or_default() {
        let key = match key {
            "lease" => "leaseSeconds",
            "unknown_lease" => "unknownLeaseSeconds",
            other => other,
        };
        faults.push(FieldError::invalid(format!("spec.{key}"), &request.object["spec"][key], fault));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(more: Value) -> NetworkSpec {
        let mut spec = json!({
            "interface": "eth1", "subnet": "10.0.0.0/24", "pool": ["10.0.0.100-10.0.0.199"], "router": "10.0.0.1",
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn an_object_says_what_the_file_would_say() {
        let text = "name = 'rack'\ninterface = 'eth1'\nsubnet = '10.0.0.0/24'\npool = ['10.0.0.100-10.0.0.199']\n\
                    router = '10.0.0.1'\ndns = ['10.0.0.2']\nntp = ['10.0.0.3']\ndomain = 'rack.example'\n\
                    relays = ['10.9.0.1']\nserver = '10.0.0.4'\nmode = 'reservations'\ndiscovery = true\n\
                    lease = '2h'\nunknown_lease = '2m'\ncheck_cards = false";
        let file: NetworkConfig = toml::from_str(text).unwrap();
        assert_eq!(config_of("rack", &spec_of(&file)).unwrap(), file);
        // And what it leaves out is as what the file leaves out.
        let short: NetworkConfig = toml::from_str("name = 'x'\ninterface = 'e'\nsubnet = '10.0.0.0/24'").unwrap();
        let least = serde_json::from_value(json!({"interface": "e", "subnet": "10.0.0.0/24"})).unwrap();
        assert_eq!(config_of("x", &least).unwrap(), short);
    }

    #[test]
    fn every_contradiction_is_named_with_its_key() {
        for (more, key, wanted) in [
            (json!({}), "", ""),
            (json!({"subnet": "10.0.0.7/24"}), "subnet", "is an address: write 10.0.0.0/24"),
            (json!({"subnet": "10.0.0/24"}), "subnet", "is no subnet"),
            (json!({"subnet": "10.0.0.0/31"}), "subnet", "a prefix of 8 to 30"),
            (json!({"subnet": "127.0.0.0/24"}), "subnet", "no machine's"),
            (json!({"subnet": "127.0.0.0/24", "interface": "lo", "pool": [], "router": null}), "", ""),
            (json!({"subnet": "224.0.0.0/24"}), "subnet", "no machine's"),
            (json!({"subnet": "255.255.255.0/24"}), "subnet", "no machine's"),
            (json!({"subnet": "0.0.0.0/8"}), "subnet", "no machine's"),
            (json!({"mode": "on"}), "mode", "authoritative"),
            (json!({"pool": ["10.0.0.9"]}), "pool", "is not an address range"),
            (json!({"pool": ["10.0.0.9-10.0.0.5"]}), "pool", "is not an address range"),
            (json!({"pool": ["10.0.1.5-10.0.1.9"]}), "pool", "10.0.1.5 is not a host address of 10.0.0.0/24"),
            (json!({"pool": ["10.0.0.5-10.0.0.9", "10.0.0.9-10.0.0.20"]}), "pool", "overlap"),
            (json!({"router": "10.0.1.1"}), "router", "router 10.0.1.1 is not a host address"),
            (json!({"router": "here"}), "router", "\"here\" is no IPv4 address"),
            (json!({"server": "10.0.0.255"}), "server", "is not a host address"),
            (json!({"dns": ["1.1.1.1", "::1"]}), "dns", "is no IPv4 address"),
            (json!({"ntp": ["x"]}), "ntp", "is no IPv4 address"),
            (json!({"relays": ["255.255.255.255"]}), "relays", "is no address of a machine"),
            (json!({"domain": "a..b"}), "domain", "letters"),
            (json!({"domain": "a\nb"}), "domain", "letters"),
            (json!({"leaseSeconds": 59}), "leaseSeconds", "60 to"),
            (json!({"leaseSeconds": -1}), "leaseSeconds", "60 to"),
            (json!({"unknownLeaseSeconds": 4_294_967_295_i64}), "unknownLeaseSeconds", "60 to"),
            (json!({"mode": "off", "discovery": true}), "discovery", "a mode other than off"),
            (json!({"interface": ""}), "interface", "1 to 15 characters"),
        ] {
            let faults = config_of("x", &spec(more.clone())).err().unwrap_or_default();
            let found = faults.iter().any(|(at, fault)| *at == key && fault.contains(wanted));
            assert!(if key.is_empty() { faults.is_empty() } else { found }, "{more}: {faults:?}");
        }
        let long = "9".repeat(10_000);
        let faults = config_of("x", &spec(json!({"subnet": long, "pool": [long], "dns": [long]}))).unwrap_err();
        assert!(faults.len() == 3 && faults.iter().all(|(_, fault)| fault.len() < 200), "{faults:?}");
    }

    #[test]
    fn every_name_of_a_network_makes_one_of_an_object() {
        for (name, wanted) in
            [("lab", "lab"), ("Floor 2/East", "floor-2-east"), ("_x_", "x"), ("Ä", "network"), ("", "network")]
        {
            assert_eq!(object_name(name), wanted);
        }
        assert_eq!(object_name(&"a".repeat(100)).len(), 63);
    }
}
