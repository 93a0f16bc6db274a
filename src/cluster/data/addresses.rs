//! The addresses that a machine's data is made of: one claim for each pool, and what came of it.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::index::{AddressClaims, DataIndex};
use super::pools::{Allocated, Pool, PoolAddresses};
use crate::api::infrastructure::data::FINALIZER_DATA;
use crate::api::infrastructure::data::v1beta2::Metal3Data;
use crate::api::ipam::CONDITION_READY;
use crate::api::ipam::metal3::{IPAddress, IPClaim, IPClaimSpec};
use crate::api::ipam::v1beta2::{self, IPAddressClaim};
use crate::api::metal3::ObjectReference;
use crate::runtime::{key, objects, owners};

/// Name servers of an address that are used.
const DNS_SERVERS_MAX: usize = 64;

/// Claims of one group.
trait ClaimGroup: Send + Sync + 'static {
    type Claim: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static;
    const OF: AddressClaims;

    fn new(metadata: ObjectMeta, pool: &str, of: &Pool) -> Self::Claim;

    /// The name of its address' object, or else why it has none, which is empty while nobody said.
    fn answer(claim: &Self::Claim) -> Result<String, String>;

    /// An address, when it is the claim's.
    fn read(
        client: &Client,
        claim: &Self::Claim,
        name: &str,
    ) -> impl Future<Output = Result<Option<Allocated>, kube::Error>> + Send;
}

/// Of Metal3's pools.
struct Metal3PoolClaims;

impl ClaimGroup for Metal3PoolClaims {
    type Claim = IPClaim;
    const OF: AddressClaims = AddressClaims::Metal3;

    fn new(metadata: ObjectMeta, pool: &str, _: &Pool) -> IPClaim {
        let namespace = metadata.namespace.clone();
        let pool = ObjectReference { name: Some(pool.to_owned()), namespace, ..ObjectReference::default() };
        IPClaim { metadata, spec: IPClaimSpec { pool }, status: None }
    }

    fn answer(claim: &IPClaim) -> Result<String, String> {
        let status = claim.status.clone().unwrap_or_default();
        let name = status.address.and_then(|address| address.name).filter(|_| status.error_message.is_none());
        name.ok_or_else(|| status.error_message.unwrap_or_default())
    }

    async fn read(client: &Client, claim: &IPClaim, name: &str) -> Result<Option<Allocated>, kube::Error> {
        let (namespace, claim) = key(claim);
        let found = Api::<IPAddress>::namespaced(client.clone(), &namespace).get_opt(name).await?;
        Ok(found.map(|found| found.spec).filter(|spec| spec.claim.name.as_ref() == Some(&claim)).and_then(|spec| {
            Some(Allocated {
                address: spec.address.parse().ok()?,
                prefix: Some(spec.prefix),
                gateway: spec.gateway,
                dns_servers: spec.dns_servers.into_iter().take(DNS_SERVERS_MAX).collect(),
            })
        }))
    }
}

/// Of any other's.
struct ClusterApiClaims;

impl ClaimGroup for ClusterApiClaims {
    type Claim = IPAddressClaim;
    const OF: AddressClaims = AddressClaims::Contract;

    fn new(metadata: ObjectMeta, pool: &str, of: &Pool) -> IPAddressClaim {
        let pool_ref =
            v1beta2::PoolReference { api_group: of.group.clone(), kind: of.kind.clone(), name: pool.to_owned() };
        let spec = v1beta2::IPAddressClaimSpec { cluster_name: None, pool_ref };
        IPAddressClaim { metadata, spec, status: None }
    }

    fn answer(claim: &IPAddressClaim) -> Result<String, String> {
        let status = claim.status.clone().unwrap_or_default();
        let ready = status.conditions.into_iter().find(|condition| condition.type_ == CONDITION_READY);
        let reason = ready.filter(|ready| ready.status == "False").map(|ready| ready.message).unwrap_or_default();
        status.address_ref.map(|address| address.name).ok_or(reason)
    }

    async fn read(client: &Client, claim: &IPAddressClaim, name: &str) -> Result<Option<Allocated>, kube::Error> {
        let (namespace, claim) = key(claim);
        let found = Api::<v1beta2::IPAddress>::namespaced(client.clone(), &namespace).get_opt(name).await?;
        Ok(found.map(|found| found.spec).filter(|spec| spec.claim_ref.name == claim).and_then(|spec| {
            Some(Allocated {
                address: spec.address.parse().ok()?,
                prefix: Some(spec.prefix.into()),
                gateway: spec.gateway,
                dns_servers: Vec::new(),
            })
        }))
    }
}

/// An address of each pool, or what is waited for.
///
/// # Errors
///
/// What the API says.
pub(super) async fn of(
    client: &Client,
    index: &DataIndex,
    data: &Metal3Data,
    pools: &BTreeMap<String, Pool>,
) -> Result<Result<PoolAddresses, String>, kube::Error> {
    let (mut addresses, mut waits) = (PoolAddresses::new(), Vec::new());
    // All are asked for before any is waited for.
    for (name, pool) in pools {
        let one = match pool.is_metal3() {
            true => of_pool::<Metal3PoolClaims>(client, index, data, name, pool).await?,
            false => of_pool::<ClusterApiClaims>(client, index, data, name, pool).await?,
        };
        match one {
            Ok(address) => drop(addresses.insert(name.clone(), address)),
            Err(reason) => waits.push(reason),
        }
    }
    Ok(if waits.is_empty() { Ok(addresses) } else { Err(waits.join("; ")) })
}

async fn of_pool<C: ClaimGroup>(
    client: &Client,
    index: &DataIndex,
    data: &Metal3Data,
    pool: &str,
    of: &Pool,
) -> Result<Result<Allocated, String>, kube::Error> {
    let place = key(data);
    let claims = Api::<C::Claim>::namespaced(client.clone(), &place.0);
    let name = format!("{}-{pool}", place.1);
    let claim = match claims.get_opt(&name).await? {
        Some(claim) => claim,
        None => {
            let metadata = ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(place.0.clone()),
                labels: data.metadata.labels.clone(),
                finalizers: Some(vec![FINALIZER_DATA.to_owned()]),
                owner_references: Some(vec![owners::owner(data, true)]),
                ..ObjectMeta::default()
            };
            let stored = claims.create(&PostParams::default(), &C::new(metadata, pool, of)).await?;
            index.stored_address(&key(&stored), &place, C::OF);
            stored
        }
    };
    if !owners::is_owned(claim.meta(), &data.uid().unwrap_or_default()) {
        // Of data that had this name before: when it goes, nobody else lets it go.
        if claim.meta().deletion_timestamp.is_some() {
            objects::release(&claims, &claim, FINALIZER_DATA).await?;
        }
        return Ok(Err(format!("the claim {name} of the pool {pool} is not this data's: it must go first")));
    }
    if claim.meta().deletion_timestamp.is_some() {
        return Ok(Err(format!("the claim {name} of the pool {pool} is being deleted")));
    }
    let address = match C::answer(&claim) {
        Ok(address) => address,
        Err(reason) if reason.is_empty() => return Ok(Err(format!("waiting for an address of the pool {pool}"))),
        Err(reason) => return Ok(Err(format!("IP Allocation for {pool} failed : {reason}"))),
    };
    let read = C::read(client, &claim, &address).await?;
    Ok(read.ok_or_else(|| format!("waiting for the address {address} of the pool {pool}")))
}

/// Gives all addresses of data back; false before it is known which there are.
///
/// # Errors
///
/// What the API says.
pub(super) async fn give_back(client: &Client, index: &DataIndex, data: &Metal3Data) -> Result<bool, kube::Error> {
    let known =
        (index.addresses_of(&key(data), Metal3PoolClaims::OF), index.addresses_of(&key(data), ClusterApiClaims::OF));
    let (Some(metal3), Some(contract)) = known else { return Ok(false) };
    release::<Metal3PoolClaims>(client, data, metal3).await?;
    release::<ClusterApiClaims>(client, data, contract).await?;
    Ok(true)
}

async fn release<C: ClaimGroup>(client: &Client, data: &Metal3Data, names: Vec<String>) -> Result<(), kube::Error> {
    let claims = Api::<C::Claim>::namespaced(client.clone(), &key(data).0);
    for name in names {
        let Some(claim) = claims.get_opt(&name).await? else { continue };
        if !owners::is_owned(claim.meta(), &data.uid().unwrap_or_default()) {
            continue;
        }
        objects::release(&claims, &claim, FINALIZER_DATA).await?;
        match claims.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(error)) if error.is_not_found() => {}
            deleted => drop(deleted?),
        }
    }
    Ok(())
}
