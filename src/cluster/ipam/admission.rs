//! What pools, claims and addresses must be before they are stored, beyond what their schemas say. Pure.

use std::collections::HashMap;
use std::net::IpAddr;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::allocation::DNS_SERVERS_MAX;
use super::ranges::{AddressBounds, address, bounds};
use crate::api::ipam::ANNOTATION_ADDRESS;
use crate::api::ipam::metal3::{AllocationStrategy, IPAddressSpec, IPClaimSpec, IPPoolSpec, IPPoolStatus};
use crate::api::ipam::v1beta2;
use crate::api::metal3::ObjectReference;
use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};

/// Ranges of one pool.
const RANGES_MAX: usize = 256;
/// Addresses of one pool that are kept for claims by their names.
const KEPT_MAX: usize = 4096;
/// Faults that are told at once.
const ERRORS_MAX: usize = 64;
const NO_ADDRESS: &str = "is not a valid IP address";
const FIXED: &str = "cannot be modified";

/// Rules of a kind: what is wrong with an object, and with what changed of it.
type IpamRules = fn(&Value, Option<&Value>) -> Vec<FieldError>;

/// The rules of each kind, by `<group>/<plural>`.
pub(super) const RULES: [(&str, IpamRules); 5] = [
    ("ipam.metal3.io/ippools", pool),
    ("ipam.metal3.io/ipclaims", claim),
    ("ipam.metal3.io/ipaddresses", address_object),
    ("ipam.cluster.x-k8s.io/ipaddressclaims", contract_claim),
    ("ipam.cluster.x-k8s.io/ipaddresses", contract_address),
];

/// Asks the rules of a kind. Who deletes or reports a status is not judged, nor a change that leaves the object as wrong as
/// it is: it must be possible to take a finalizer off.
///
/// # Errors
///
/// Every rule that the change breaks.
pub(super) fn admit(rules: IpamRules, request: &AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> {
    let same =
        request.old.is_some_and(|old| old["spec"] == request.object["spec"] && wanted(old) == wanted(request.object));
    if request.status || request.operation == AdmissionOperation::Delete || same {
        return Ok(());
    }
    let errors = rules(request.object, request.old);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn wanted(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][ANNOTATION_ADDRESS].as_str().filter(|text| !text.is_empty())
}

fn spec<T: DeserializeOwned>(object: &Value) -> Option<T> {
    serde_json::from_value(object["spec"].clone()).ok()
}

fn pool(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    // What cannot be read is left to the schema.
    let Some(now) = spec::<IPPoolSpec>(new) else { return Vec::new() };
    let mut errors = Vec::new();
    if let Some(before) = old.and_then(spec::<IPPoolSpec>) {
        if before.name_prefix != now.name_prefix {
            errors.push(FieldError::invalid("spec.namePrefix", &json!(now.name_prefix), FIXED));
        }
        let strategy = |spec: &IPPoolSpec| spec.allocation_strategy.unwrap_or_default();
        if strategy(&before) != strategy(&now) {
            let value = json!(now.allocation_strategy);
            errors.push(FieldError::invalid("spec.allocationStrategy", &value, "cannot be modified after creation"));
        }
    }
    // All that follows, and each answer to a claim, takes as long as there is much of these.
    let mut count = |field: String, count: usize, most: usize| {
        if count > most {
            errors.push(FieldError::invalid(field, &json!(count), format!("has {count} entries, and may have {most}")));
        }
    };
    count("spec.pools".into(), now.pools.len(), RANGES_MAX);
    count("spec.preAllocations".into(), now.pre_allocations.len(), KEPT_MAX);
    count("spec.dnsServers".into(), now.dns_servers.len(), DNS_SERVERS_MAX);
    for (at, range) in now.pools.iter().enumerate().take(RANGES_MAX) {
        count(format!("spec.pools[{at}].dnsServers"), range.dns_servers.len(), DNS_SERVERS_MAX);
    }
    errors.truncate(ERRORS_MAX);
    if !errors.is_empty() {
        return errors;
    }
    let mut text = |path: String, text: &str| {
        if address(text).is_none() {
            errors.push(FieldError::invalid(path, &json!(text), NO_ADDRESS));
        }
    };
    now.gateway.iter().for_each(|gateway| text("spec.gateway".into(), gateway));
    for (at, server) in now.dns_servers.iter().enumerate() {
        text(format!("spec.dnsServers[{at}]"), server);
    }
    for (at, range) in now.pools.iter().enumerate() {
        range.gateway.iter().for_each(|gateway| text(format!("spec.pools[{at}].gateway"), gateway));
        for (server_at, server) in range.dns_servers.iter().enumerate() {
            text(format!("spec.pools[{at}].dnsServers[{server_at}]"), server);
        }
    }
    let mut spans: Vec<AddressBounds> = Vec::new();
    for (at, range) in now.pools.iter().enumerate() {
        let path = || format!("spec.pools[{at}]");
        match bounds(range) {
            Err(fault) => errors.push(FieldError::invalid(path(), &json!(range), fault.to_string())),
            Ok(span) => {
                let endless = range.start.is_some() && range.end.is_none() && range.subnet.is_none();
                let undrawn = endless || span.is_some_and(|span| !span.may_be_drawn_from());
                if now.allocation_strategy == Some(AllocationStrategy::Random) && undrawn {
                    let reason =
                        "cannot be used with allocationStrategy \"random\": it has no end, or too many addresses";
                    errors.push(FieldError::invalid(path(), &json!(range), reason));
                }
                spans.extend(span);
            }
        }
    }
    kept(&now, &spans, &mut errors);
    let status = old.and_then(|old| serde_json::from_value::<IPPoolStatus>(old["status"].clone()).ok());
    let in_use = status.unwrap_or_default().indexes;
    for text in in_use.values().filter(|text| !inside(text, &spans)) {
        errors.push(FieldError::invalid("spec.pools", &json!(text), "is in use but out of bounds of the pools given"));
    }
    errors.truncate(ERRORS_MAX);
    errors
}

/// What is kept for claims must be addresses of the ranges, each for one.
fn kept(pool: &IPPoolSpec, spans: &[AddressBounds], errors: &mut Vec<FieldError>) {
    let mut owners: HashMap<IpAddr, &str> = HashMap::new();
    for (claim, text) in &pool.pre_allocations {
        let path = format!("spec.preAllocations.{claim}");
        let Some(kept) = address(text) else {
            errors.push(FieldError::invalid(path, &json!(text), NO_ADDRESS));
            continue;
        };
        if let Some(other) = owners.insert(kept, claim) {
            let reason = format!("IP address is already pre-allocated to claim {other:?}");
            errors.push(FieldError::invalid(path, &json!(text), reason));
        }
        if !spans.iter().any(|span| span.contains(kept)) {
            errors.push(FieldError::invalid(
                "spec.preAllocations",
                &json!(text),
                "is out of bounds of the pools given",
            ));
        }
    }
}

fn inside(text: &str, spans: &[AddressBounds]) -> bool {
    address(text).is_some_and(|address| spans.iter().any(|span| span.contains(address)))
}

fn wish(object: &Value, errors: &mut Vec<FieldError>) {
    if let Some(text) = wanted(object)
        && address(text).is_none()
    {
        let path = format!("metadata.annotations.{ANNOTATION_ADDRESS}");
        errors.push(FieldError::invalid(path, &json!(text), NO_ADDRESS));
    }
}

fn claim(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    wish(new, &mut errors);
    let Some(now) = spec::<IPClaimSpec>(new) else { return errors };
    match old.and_then(spec::<IPClaimSpec>) {
        Some(before) => fixed("spec.pool", &before.pool, &now.pool, &mut errors),
        None => named("spec.pool.name", &now.pool, &mut errors),
    }
    errors
}

fn address_object(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(now) = spec::<IPAddressSpec>(new) else { return errors };
    let servers = now.dns_servers.len();
    if servers > DNS_SERVERS_MAX {
        let reason = format!("has {servers} entries, and may have {DNS_SERVERS_MAX}");
        errors.push(FieldError::invalid("spec.dnsServers", &json!(servers), reason));
    }
    if let Some(before) = old.and_then(spec::<IPAddressSpec>) {
        if before.address != now.address {
            errors.push(FieldError::invalid("spec.address", &json!(now.address), FIXED));
        }
        fixed("spec.pool", &before.pool, &now.pool, &mut errors);
        fixed("spec.claim", &before.claim, &now.claim, &mut errors);
    } else {
        named("spec.pool.name", &now.pool, &mut errors);
        named("spec.claim.name", &now.claim, &mut errors);
        if address(&now.address).is_none() {
            errors.push(FieldError::invalid("spec.address", &json!(now.address), NO_ADDRESS));
        }
    }
    errors
}

fn named(path: &str, reference: &ObjectReference, errors: &mut Vec<FieldError>) {
    if reference.name.as_deref().unwrap_or_default().is_empty() {
        errors.push(FieldError::invalid(path, &json!(reference.name), "cannot be empty"));
    }
}

fn fixed(path: &str, before: &ObjectReference, now: &ObjectReference, errors: &mut Vec<FieldError>) {
    if (&before.name, &before.namespace, &before.kind) != (&now.name, &now.namespace, &now.kind) {
        errors.push(FieldError::invalid(path, &json!(now), FIXED));
    }
}

fn contract_claim(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    wish(new, &mut errors);
    // In whichever version.
    if old.is_some_and(|old| old["spec"] != new["spec"]) {
        errors.push(FieldError::forbidden("spec", "IPAddressClaim spec is immutable"));
    }
    errors
}

fn contract_address(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(now) = spec::<v1beta2::IPAddressSpec>(new) else { return errors };
    if old.is_some_and(|old| old["spec"] != new["spec"]) {
        errors.push(FieldError::forbidden("spec", "IPAddress spec is immutable"));
    }
    let read = address(&now.address);
    if read.is_none() {
        errors.push(FieldError::invalid("spec.address", &json!(now.address), NO_ADDRESS));
    }
    if read.is_some_and(|read| read.is_ipv4() && now.prefix > 32) {
        errors.push(FieldError::invalid("spec.prefix", &json!(now.prefix), "prefix is too large for an IPv4 address"));
    }
    if let Some(gateway) = &now.gateway
        && address(gateway).is_none()
    {
        errors.push(FieldError::invalid("spec.gateway", &json!(gateway), NO_ADDRESS));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of each fault the path, and the detail without the value.
    fn faults(rules: IpamRules, new: &Value, old: Option<&Value>) -> Vec<String> {
        let detail = |message: &str| {
            let rest = message.strip_prefix("Invalid value: ").or_else(|| message.strip_prefix("Forbidden: "));
            let rest = rest.unwrap_or(message);
            let mut shown = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            let after =
                shown.next().filter(Result::is_ok).and_then(|_| rest.get(shown.byte_offset()..)).unwrap_or(rest);
            after.trim_start_matches(": ").to_owned()
        };
        rules(new, old).iter().map(|error| format!("{}: {}", error.path, detail(&error.message))).collect()
    }

    fn pool_of(pools: Value, more: Value) -> Value {
        let mut spec = json!({"namePrefix": "p", "pools": pools});
        json_patch::merge(&mut spec, &more);
        json!({"spec": spec})
    }

    #[test]
    fn so_many_name_servers_and_no_more() {
        let servers = |many: usize| json!(vec!["10.0.0.2"; many]);
        let range = |many: usize| json!([{"start": "10.0.0.1", "dnsServers": servers(many)}]);
        let most = DNS_SERVERS_MAX;
        assert!(faults(pool, &pool_of(range(most), json!({"dnsServers": servers(most)})), None).is_empty());
        let found = faults(pool, &pool_of(range(most + 1), json!({"dnsServers": servers(most + 1)})), None);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|fault| fault.contains("has 65 entries, and may have 64")), "{found:?}");
    }

    #[test]
    fn pools_are_in_order() {
        let range = json!([{"start": "10.0.0.1", "end": "10.0.0.9"}]);
        let rows: Vec<(Value, Value, Vec<&str>)> = vec![
            (range.clone(), json!({"preAllocations": {"a": "10.0.0.5"}, "gateway": "10.0.0.1"}), vec![]),
            (json!([{"subnet": "10.0.0.0/24"}, {"start": "fd00::1"}]), json!({}), vec![]),
            (
                json!([{}]),
                json!({}),
                vec!["spec.pools[0]: pool entry must specify at least one of start, end, or subnet"],
            ),
            (
                json!([{"start": "10.0.0.9", "end": "10.0.0.1"}]),
                json!({}),
                vec!["spec.pools[0]: end IP 10.0.0.1 is before start IP 10.0.0.9"],
            ),
            (
                json!([{"subnet": "10.0.0.0/24", "gateway": ":", "dnsServers": ["x"]}]),
                json!({"dnsServers": ["1"], "gateway": "y"}),
                vec![
                    "spec.gateway: is not a valid IP address",
                    "spec.dnsServers[0]: is not a valid IP address",
                    "spec.pools[0].gateway: is not a valid IP address",
                    "spec.pools[0].dnsServers[0]: is not a valid IP address",
                ],
            ),
            (
                range.clone(),
                json!({"preAllocations": {"a": "10.0.0.10"}}),
                vec!["spec.preAllocations: is out of bounds of the pools given"],
            ),
            (
                range.clone(),
                json!({"preAllocations": {"a": "no"}}),
                vec!["spec.preAllocations.a: is not a valid IP address"],
            ),
            (
                range.clone(),
                json!({"preAllocations": {"a": "10.0.0.5", "b": "10.0.0.5"}}),
                vec!["spec.preAllocations.b: IP address is already pre-allocated to claim \"a\""],
            ),
            (
                json!([{"start": "10.0.0.9"}]),
                json!({"allocationStrategy": "random"}),
                vec![
                    "spec.pools[0]: cannot be used with allocationStrategy \"random\": it has no end, or too many addresses",
                ],
            ),
            (
                json!([{"subnet": "fd00::/64"}]),
                json!({"allocationStrategy": "random"}),
                vec![
                    "spec.pools[0]: cannot be used with allocationStrategy \"random\": it has no end, or too many addresses",
                ],
            ),
            (json!([{"subnet": "fd00::/96"}]), json!({"allocationStrategy": "random"}), vec![]),
        ];
        for (pools, more, wanted) in rows {
            let object = pool_of(pools, more);
            assert_eq!(faults(pool, &object, None), wanted, "{object}");
        }
    }

    #[test]
    fn a_pool_is_bounded() {
        let many = |count: usize| vec![json!({"start": "10.0.0.1", "end": "10.0.0.1"}); count];
        assert!(faults(pool, &pool_of(json!(many(RANGES_MAX)), json!({})), None).is_empty());
        let told = faults(pool, &pool_of(json!(many(RANGES_MAX + 1)), json!({})), None);
        assert!(told.len() == 1 && told[0].contains("may have 256"), "{told:?}");
        let kept: serde_json::Map<String, Value> =
            (0..=KEPT_MAX).map(|at| (at.to_string(), json!("nowhere"))).collect();
        let told = faults(pool, &pool_of(json!(many(1)), json!({ "preAllocations": kept })), None);
        assert!(told.len() == 1 && told[0].contains("may have 4096"), "{told:?}");
        let kept: serde_json::Map<String, Value> = (0..KEPT_MAX).map(|at| (at.to_string(), json!("nowhere"))).collect();
        let told = faults(pool, &pool_of(json!(many(1)), json!({ "preAllocations": kept })), None);
        assert_eq!(told.len(), ERRORS_MAX);
    }

    #[test]
    fn what_is_in_use_stays_in_a_pool() {
        let mut old = pool_of(json!([{"subnet": "10.0.0.0/24"}]), json!({}));
        old["status"] = json!({"indexes": {"a": "10.0.0.9"}});
        let smaller = pool_of(json!([{"start": "10.0.0.10", "end": "10.0.0.20"}]), json!({}));
        assert_eq!(faults(pool, &smaller, Some(&old)), ["spec.pools: is in use but out of bounds of the pools given"]);
        let larger = pool_of(json!([{"subnet": "10.0.0.0/16"}]), json!({}));
        assert_eq!(faults(pool, &larger, Some(&old)), [""; 0]);
        let renamed =
            pool_of(json!([{"subnet": "10.0.0.0/24"}]), json!({"namePrefix": "q", "allocationStrategy": "random"}));
        assert_eq!(
            faults(pool, &renamed, Some(&old)),
            ["spec.namePrefix: cannot be modified", "spec.allocationStrategy: cannot be modified after creation"]
        );
        let same = pool_of(json!([{"subnet": "10.0.0.0/24"}]), json!({"allocationStrategy": "sequential"}));
        assert_eq!(faults(pool, &same, Some(&old)), [""; 0]);
    }

    #[test]
    fn references_do_not_change() {
        let claim_of =
            |pool: Value, wish: &str| json!({"metadata": {"annotations": {"ipAddress": wish}}, "spec": {"pool": pool}});
        let first = claim_of(json!({"name": "p"}), "");
        assert_eq!(faults(claim, &first, None), [""; 0]);
        assert_eq!(
            faults(claim, &claim_of(json!({}), "x"), None),
            ["metadata.annotations.ipAddress: is not a valid IP address", "spec.pool.name: cannot be empty"]
        );
        assert_eq!(
            faults(claim, &claim_of(json!({"name": "q"}), "10.0.0.1"), Some(&first)),
            ["spec.pool: cannot be modified"]
        );
        assert_eq!(faults(claim, &claim_of(json!({"name": "p", "uid": "7"}), ""), Some(&first)), [""; 0]);

        let one = json!({"spec": {"address": "10.0.0.1", "pool": {"name": "p"}, "claim": {"name": "c"}, "prefix": 24}});
        let other =
            json!({"spec": {"address": "10.0.0.2", "pool": {"name": "q"}, "claim": {"name": "d"}, "prefix": 16}});
        assert_eq!(faults(address_object, &one, None), [""; 0]);
        assert_eq!(
            faults(address_object, &other, Some(&one)),
            ["spec.address: cannot be modified", "spec.pool: cannot be modified", "spec.claim: cannot be modified"]
        );
        let empty = json!({"spec": {"address": "", "pool": {}, "claim": {}}});
        assert_eq!(
            faults(address_object, &empty, None),
            [
                "spec.pool.name: cannot be empty",
                "spec.claim.name: cannot be empty",
                "spec.address: is not a valid IP address"
            ]
        );

        let claim_of = |pool: &str| json!({"spec": {"poolRef": {"apiGroup": "g", "kind": "K", "name": pool}}});
        assert_eq!(faults(contract_claim, &claim_of("p"), None), [""; 0]);
        assert_eq!(
            faults(contract_claim, &claim_of("q"), Some(&claim_of("p"))),
            ["spec: IPAddressClaim spec is immutable"]
        );
        let of = |address: &str, prefix: i32, gateway: &str| {
            json!({"spec": {"address": address, "prefix": prefix, "gateway": gateway,
            "claimRef": {"name": "c"}, "poolRef": {"apiGroup": "g", "kind": "K", "name": "p"}}})
        };
        assert_eq!(faults(contract_address, &of("10.0.0.1", 24, "10.0.0.254"), None), [""; 0]);
        assert_eq!(
            faults(contract_address, &of("10.0.0.1", 33, "x"), None),
            ["spec.prefix: prefix is too large for an IPv4 address", "spec.gateway: is not a valid IP address"]
        );
        assert_eq!(
            faults(contract_address, &of("fd00::1", 64, "fd00::2"), Some(&of("fd00::1", 65, "fd00::2"))),
            ["spec: IPAddress spec is immutable"]
        );
    }
}
