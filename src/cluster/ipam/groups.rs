//! The two groups whose claims get addresses of Metal3's pools: what of their objects counts, and how answers are written.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::allocation::{AllocationRefusal, Given};
use crate::api::ipam::metal3::{self, IPAddress, IPAddressSpec, IPClaim, IPPool};
use crate::api::ipam::{self, ANNOTATION_ADDRESS, CONDITION_READY, v1beta2};
use crate::api::metal3::ObjectReference;
use crate::runtime::conditions::{self, ConditionVerdict, Severity};
use crate::runtime::{ObjectKey, key, objects};

/// Most characters of a message that are kept.
const MESSAGE_MAX: usize = 1000;
/// An address is no longer text than this.
const ADDRESS_MAX: usize = 64;

/// A group of claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum PoolGroup {
    /// `ipam.metal3.io`
    Metal3,
    /// `ipam.cluster.x-k8s.io`
    Contract,
}

/// Which object of a namespace: its group and its name.
pub(super) type Id = (PoolGroup, String);

/// What is said to a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ClaimMessage {
    /// Nothing yet, or not all of it.
    #[default]
    Nothing,
    /// Name of its address' object.
    Address(String),
    /// Reason and message.
    Refused(String, String),
}

impl ClaimMessage {
    /// That it gets nothing, and why.
    pub fn refused(refusal: &AllocationRefusal) -> Self {
        Self::Refused(refusal.reason().to_owned(), refusal.to_string().chars().take(MESSAGE_MAX).collect())
    }
}

/// What counts of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressClaim {
    /// Group and name.
    pub id: Id,
    /// Its object's UID.
    pub uid: String,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// The address that it asks for.
    pub wants: Option<String>,
    /// Whether it is held for its address.
    pub held: bool,
    /// Whether others hold it.
    pub in_use: bool,
    /// Whether it is to go.
    pub deleted: bool,
    /// What its status says.
    pub told: ClaimMessage,
}

/// What counts of an address' object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PoolAddress {
    /// Group and name.
    pub id: Id,
    /// The address, as its object has it.
    pub address: String,
    /// Name of its claim.
    pub claim: String,
    /// Whether it was given here.
    pub held: bool,
}

/// What a claim refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refers {
    /// To a pool that is no business of this room's.
    Elsewhere,
    /// To one of another namespace.
    Abroad,
    /// To this one.
    Pool(ObjectKey),
}

/// The kinds of a group.
pub(super) trait Kinds: Send + Sync + 'static {
    /// Claims.
    type Claim: IpamObject;
    /// Addresses.
    type Address: IpamObject;
    /// The group.
    const GROUP: PoolGroup;
    /// Finalizer of claims that have an address.
    const CLAIM_FINALIZER: &'static str;
    /// Finalizer of addresses.
    const ADDRESS_FINALIZER: &'static str;

    /// Which pool a claim is for.
    fn claimed(claim: &Self::Claim) -> Refers;
    /// Which pool an address is of, the address, and the name of its claim.
    fn of(address: &Self::Address) -> (Refers, String, String);
    /// What a claim's status says.
    fn told(claim: &Self::Claim) -> ClaimMessage;
    /// What a claim's status is to say.
    fn tell(claim: &Self::Claim, told: &ClaimMessage, now: Timestamp) -> Value;
    /// The object that stands for an address.
    fn address(pool: &IPPool, claim: &str, given: &Given) -> Self::Address;
}

/// A kind of objects in namespaces.
pub(super) trait IpamObject:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
}

impl<T> IpamObject for T where
    T: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize
        + Send
        + Sync
        + 'static
{
}

/// What counts of a claim.
pub(super) fn claim<K: Kinds>(object: &K::Claim) -> AddressClaim {
    let finalizers = object.finalizers();
    let wants = object.annotations().get(ANNOTATION_ADDRESS).filter(|text| !text.is_empty());
    AddressClaim {
        id: (K::GROUP, object.name_any()),
        uid: object.uid().unwrap_or_default(),
        created: object.creation_timestamp().map(|time| time.0),
        wants: wants.map(|text| text.chars().take(ADDRESS_MAX).collect()),
        held: finalizers.iter().any(|name| name == K::CLAIM_FINALIZER),
        in_use: finalizers.iter().any(|name| name != K::CLAIM_FINALIZER),
        deleted: object.meta().deletion_timestamp.is_some(),
        told: K::told(object),
    }
}

/// What counts of an address' object.
pub(super) fn address<K: Kinds>(object: &K::Address) -> (Refers, PoolAddress) {
    let (of, text, claim) = K::of(object);
    let held = objects::is_held(object, K::ADDRESS_FINALIZER);
    let address = text.chars().take(ADDRESS_MAX).collect();
    (of, PoolAddress { id: (K::GROUP, object.name_any()), address, claim, held })
}

/// The object that stands for an address, held and owned: it goes with its claim, and not before its pool.
pub(super) fn address_object<K: Kinds>(pool: &IPPool, claim: &K::Claim, name: &str, given: &Given) -> K::Address {
    let mut object = K::address(pool, &claim.name_any(), given);
    *object.meta_mut() = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: pool.namespace(),
        labels: claim.meta().labels.clone(),
        finalizers: Some(vec![K::ADDRESS_FINALIZER.to_owned()]),
        owner_references: Some([pool.owner_ref(&()), claim.owner_ref(&())].into_iter().flatten().collect()),
        ..ObjectMeta::default()
    };
    object
}

/// `ipam.metal3.io`
pub(super) struct Metal3IpamGroup;

impl Kinds for Metal3IpamGroup {
    type Claim = IPClaim;
    type Address = IPAddress;
    const GROUP: PoolGroup = PoolGroup::Metal3;
    const CLAIM_FINALIZER: &'static str = metal3::FINALIZER_CLAIM;
    const ADDRESS_FINALIZER: &'static str = metal3::FINALIZER_ADDRESS;

    fn claimed(claim: &IPClaim) -> Refers {
        refers(&key(claim).0, &claim.spec.pool)
    }

    fn of(address: &IPAddress) -> (Refers, String, String) {
        let claim = address.spec.claim.name.clone().unwrap_or_default();
        (refers(&key(address).0, &address.spec.pool), address.spec.address.clone(), claim)
    }

    fn told(claim: &IPClaim) -> ClaimMessage {
        let status = claim.status.clone().unwrap_or_default();
        match (status.address.and_then(|address| address.name), status.error_message) {
            (Some(name), None) => ClaimMessage::Address(name),
            (None, Some(message)) => ClaimMessage::Refused(String::new(), message),
            _ => ClaimMessage::Nothing,
        }
    }

    fn tell(claim: &IPClaim, told: &ClaimMessage, _: Timestamp) -> Value {
        match told {
            ClaimMessage::Nothing => json!({"address": null, "errorMessage": null}),
            ClaimMessage::Address(name) => json!({
                "address": {"name": name, "namespace": claim.namespace()},
                "errorMessage": null,
            }),
            ClaimMessage::Refused(_, message) => json!({"address": null, "errorMessage": message}),
        }
    }

    fn address(pool: &IPPool, claim: &str, given: &Given) -> IPAddress {
        let reference =
            |name: String| ObjectReference { name: Some(name), namespace: pool.namespace(), ..Default::default() };
        let spec = IPAddressSpec {
            claim: reference(claim.to_owned()),
            pool: reference(pool.name_any()),
            prefix: given.prefix,
            gateway: given.gateway.clone(),
            address: given.address.to_string(),
            dns_servers: given.dns_servers.clone(),
        };
        IPAddress::new("", spec)
    }
}

fn refers(namespace: &str, pool: &ObjectReference) -> Refers {
    let name = pool.name.clone().unwrap_or_default();
    match pool.namespace.as_deref().unwrap_or_default() {
        _ if name.is_empty() => Refers::Elsewhere,
        other if !other.is_empty() && other != namespace => Refers::Abroad,
        _ => Refers::Pool((namespace.to_owned(), name)),
    }
}

/// `ipam.cluster.x-k8s.io`
pub(super) struct ClusterApiGroup;

impl Kinds for ClusterApiGroup {
    type Claim = v1beta2::IPAddressClaim;
    type Address = v1beta2::IPAddress;
    const GROUP: PoolGroup = PoolGroup::Contract;
    const CLAIM_FINALIZER: &'static str = ipam::FINALIZER_CLAIM;
    const ADDRESS_FINALIZER: &'static str = ipam::FINALIZER_ADDRESS;

    fn claimed(claim: &Self::Claim) -> Refers {
        of_metal3(&key(claim).0, &claim.spec.pool_ref)
    }

    fn of(address: &Self::Address) -> (Refers, String, String) {
        let (pool, claim) = (&address.spec.pool_ref, address.spec.claim_ref.name.clone());
        (of_metal3(&key(address).0, pool), address.spec.address.clone(), claim)
    }

    fn told(claim: &Self::Claim) -> ClaimMessage {
        let status = claim.status.clone().unwrap_or_default();
        let ready = status.conditions.into_iter().find(|condition| condition.type_ == CONDITION_READY);
        match (status.address_ref, ready) {
            (Some(address), Some(ready)) if ready.status == "True" => ClaimMessage::Address(address.name),
            (None, Some(ready)) if ready.status == "False" => ClaimMessage::Refused(ready.reason, ready.message),
            _ => ClaimMessage::Nothing,
        }
    }

    fn tell(claim: &Self::Claim, told: &ClaimMessage, now: Timestamp) -> Value {
        let verdict = match told {
            ClaimMessage::Nothing => ConditionVerdict::unknown("NotYetAllocated", ""),
            ClaimMessage::Address(_) => ConditionVerdict::yes("Ready"),
            ClaimMessage::Refused(reason, message) => ConditionVerdict::no(reason, message),
        };
        let known = claim.status.clone().unwrap_or_default();
        let mut conditions = known.conditions;
        conditions::set(&mut conditions, CONDITION_READY, &verdict, claim.metadata.generation, now);
        // As clients of v1beta1 know it.
        let mut old = known.deprecated.and_then(|deprecated| deprecated.v1beta1).unwrap_or_default().conditions;
        conditions::set_old(&mut old, CONDITION_READY, &verdict, Severity::Error, now);
        let address = match told {
            ClaimMessage::Address(name) => json!({"name": name}),
            _ => Value::Null,
        };
        json!({"addressRef": address, "conditions": conditions, "deprecated": {"v1beta1": {"conditions": old}}})
    }

    fn address(pool: &IPPool, claim: &str, given: &Given) -> Self::Address {
        let spec = v1beta2::IPAddressSpec {
            claim_ref: v1beta2::NameReference { name: claim.to_owned() },
            pool_ref: v1beta2::PoolReference {
                api_group: metal3::GROUP.to_owned(),
                kind: IPPool::kind(&()).into_owned(),
                name: pool.name_any(),
            },
            address: given.address.to_string(),
            prefix: i32::try_from(given.prefix).unwrap_or_default().clamp(0, 128),
            gateway: given.gateway.clone(),
        };
        Self::Address::new("", spec)
    }
}

fn of_metal3(namespace: &str, pool: &v1beta2::PoolReference) -> Refers {
    match (pool.api_group.as_str(), pool.kind.as_str()) {
        (metal3::GROUP, "IPPool") if !pool.name.is_empty() => Refers::Pool((namespace.to_owned(), pool.name.clone())),
        _ => Refers::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads_back<K: Kinds>(mut claim: Value) {
        let now = Timestamp::UNIX_EPOCH;
        let object = |value: &Value| serde_json::from_value::<K::Claim>(value.clone()).unwrap();
        let refused = ClaimMessage::refused(&AllocationRefusal::Exhausted);
        for told in [ClaimMessage::Address("p-1".into()), refused, ClaimMessage::Address("p-2".into())] {
            let status = K::tell(&object(&claim), &told, now);
            json_patch::merge(&mut claim["status"], &status);
            let read = K::told(&object(&claim));
            let same = match (&read, &told) {
                // One group has a word for it, the other has none.
                (ClaimMessage::Refused(_, message), ClaimMessage::Refused(_, wanted)) => message == wanted,
                (read, told) => read == told,
            };
            assert!(same, "{read:?} {told:?}");
        }
    }

    #[test]
    fn what_was_told_is_read_back() {
        reads_back::<Metal3IpamGroup>(
            json!({"metadata": {"name": "c", "namespace": "rack"}, "spec": {"pool": {"name": "p"}}}),
        );
        reads_back::<ClusterApiGroup>(json!({"metadata": {"name": "c", "namespace": "rack"},
            "spec": {"poolRef": {"apiGroup": "ipam.metal3.io", "kind": "IPPool", "name": "p"}},
            "status": {"conditions": [{"type": "Other", "status": "True", "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}));
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_does_and_others_stay() {
        let claim = json!({"metadata": {"name": "c", "namespace": "rack"},
        "spec": {"poolRef": {"apiGroup": "ipam.metal3.io", "kind": "IPPool", "name": "p"}},
        "status": {"conditions": [
            {"type": "Other", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Ready", "status": "False", "reason": "R", "message": "", "lastTransitionTime": "2026-01-02T00:00:00Z"},
        ]}});
        let claim = serde_json::from_value(claim).unwrap();
        let now: Timestamp = "2026-02-02T00:00:00Z".parse().unwrap();
        let status = ClusterApiGroup::tell(&claim, &ClaimMessage::refused(&AllocationRefusal::Exhausted), now);
        assert_eq!(status["conditions"][0]["type"], "Other");
        assert_eq!(status["conditions"][1]["lastTransitionTime"], "2026-01-02T00:00:00Z");
        assert_eq!(status["conditions"][1]["reason"], "PoolExhausted");
        assert_eq!(status["deprecated"]["v1beta1"]["conditions"][0]["message"], "Exhausted IP Pools");
        let status = ClusterApiGroup::tell(&claim, &ClaimMessage::Address("a".into()), now);
        assert_eq!(status["conditions"][1]["lastTransitionTime"], "2026-02-02T00:00:00Z");
        assert_eq!(status["addressRef"]["name"], "a");
    }

    #[test]
    fn claims_are_for_pools_of_their_own_namespace() {
        let pool = |namespace: Option<&str>, name: &str| ObjectReference {
            name: Some(name.into()),
            namespace: namespace.map(Into::into),
            ..Default::default()
        };
        let here = Refers::Pool(("rack".into(), "p".into()));
        assert_eq!(refers("rack", &pool(None, "p")), here);
        assert_eq!(refers("rack", &pool(Some("rack"), "p")), here);
        assert_eq!(refers("rack", &pool(Some("other"), "p")), Refers::Abroad);
        assert_eq!(refers("rack", &pool(None, "")), Refers::Elsewhere);
        let typed = |group: &str, kind: &str| v1beta2::PoolReference {
            api_group: group.into(),
            kind: kind.into(),
            name: "p".into(),
        };
        assert_eq!(of_metal3("rack", &typed("ipam.metal3.io", "IPPool")), here);
        assert_eq!(of_metal3("rack", &typed("ipam.metal3.io", "Other")), Refers::Elsewhere);
        assert_eq!(of_metal3("rack", &typed("ipam.example.org", "IPPool")), Refers::Elsewhere);
    }
}
