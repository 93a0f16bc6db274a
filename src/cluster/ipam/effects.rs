//! What is written for claims: their addresses, and what is said to them. Each may be done twice, and be cut off anywhere.

use jiff::Timestamp;
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, Resource, ResourceExt};

use super::allocation::{Given, address_name};
use super::groups::{
    self, AddressClaim, ClaimMessage, ClusterApiGroup, Kinds, Metal3IpamGroup, PoolAddress, PoolGroup, address_object,
};
use super::index::IpamIndex;
use crate::api::ipam::metal3::IPPool;
use crate::runtime::{changes, objects};

/// What came of a claim's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimOutcome {
    /// It is as it was to be.
    Yes,
    /// The claim is not any more what it was taken for; its change is on its way here.
    Changed,
    /// An object with the address' name is there, and is not the claim's.
    NameTaken,
}

/// Writes for the claims of a namespace.
pub(super) struct IpamWriter<'a, K: Kinds> {
    claims: Api<K::Claim>,
    addresses: Api<K::Address>,
    client: &'a Client,
    namespace: &'a str,
    index: &'a IpamIndex,
}

impl<'a, K: Kinds> IpamWriter<'a, K> {
    /// In this namespace.
    pub fn new(client: &'a Client, namespace: &'a str, index: &'a IpamIndex) -> Self {
        Self {
            claims: Api::namespaced(client.clone(), namespace),
            addresses: Api::namespaced(client.clone(), namespace),
            client,
            namespace,
            index,
        }
    }

    /// Gives an address: holds the claim, stores the address' object, and tells the claim, in this order. The object's name
    /// says which address it is, so that the API server itself stores no second one.
    pub async fn give(&self, pool: &IPPool, claim: &AddressClaim, given: &Given) -> Result<ClaimOutcome, kube::Error> {
        let Some(object) = self.hold(claim).await? else { return Ok(ClaimOutcome::Changed) };
        let name = address_name(&pool.spec.name_prefix, given.address);
        if self.is_of_the_other_group(&name).await? {
            return Ok(ClaimOutcome::NameTaken);
        }
        let address = address_object::<K>(pool, &object, &name, given);
        match self.addresses.create(&PostParams::default(), &address).await {
            Ok(stored) => self.index.stored::<K>(&stored),
            Err(kube::Error::Api(error)) if error.is_already_exists() => {
                let Some(there) = self.addresses.get_opt(&name).await? else { return Ok(ClaimOutcome::Changed) };
                self.index.stored::<K>(&there);
                let (of, _, owner) = K::of(&there);
                if owner != claim.id.1 || of != K::claimed(&object) {
                    return Ok(ClaimOutcome::NameTaken);
                }
            }
            Err(error) => return Err(error),
        }
        self.say(&object, &ClaimMessage::Address(name)).await
    }

    /// Tells a claim.
    pub async fn tell(&self, claim: &AddressClaim, told: &ClaimMessage) -> Result<ClaimOutcome, kube::Error> {
        let held = match told {
            ClaimMessage::Address(_) => self.hold(claim).await?,
            _ => self.read(claim).await?,
        };
        match held {
            Some(object) => self.say(&object, told).await,
            None => Ok(ClaimOutcome::Changed),
        }
    }

    /// Gives a claim's addresses back, and then lets it go.
    pub async fn release(&self, claim: &AddressClaim, addresses: &[PoolAddress]) -> Result<ClaimOutcome, kube::Error> {
        for address in addresses {
            self.give_back(&address.id.1, Some(&claim.id.1)).await?;
        }
        if let Some(object) = self.claims.get_opt(&claim.id.1).await?.filter(|object| is_it(object, claim)) {
            objects::release(&self.claims, &object, K::CLAIM_FINALIZER).await?;
        }
        Ok(ClaimOutcome::Yes)
    }

    /// Gives an address back whose claim is gone. It is only believed to be gone when the API says so.
    pub async fn give_back_orphan(&self, address: &PoolAddress) -> Result<ClaimOutcome, kube::Error> {
        if self.claims.get_opt(&address.claim).await?.is_some() {
            return Ok(ClaimOutcome::Changed);
        }
        self.give_back(&address.id.1, None).await?;
        Ok(ClaimOutcome::Yes)
    }

    /// Gives an address back of which its claim was never told: it has another one. A process that was killed may have stored it after
    /// the next one had listed what there is. The claim only has another one when the API says so.
    pub async fn give_back_surplus(&self, address: &PoolAddress) -> Result<ClaimOutcome, kube::Error> {
        let Some(claim) = self.claims.get_opt(&address.claim).await? else { return Ok(ClaimOutcome::Changed) };
        match K::told(&claim) {
            ClaimMessage::Address(name) if name != address.id.1 => {
                self.give_back(&address.id.1, Some(&address.claim)).await?
            }
            _ => return Ok(ClaimOutcome::Changed),
        }
        Ok(ClaimOutcome::Yes)
    }

    /// Of this claim, or of whichever had it. That it was given here is said by its finalizer: the reference to an owner that is
    /// gone is taken away by the garbage collector, sooner or later.
    async fn give_back(&self, name: &str, claim: Option<&str>) -> Result<(), kube::Error> {
        let Some(object) = self.addresses.get_opt(name).await? else { return Ok(()) };
        let its = match claim {
            Some(claim) => K::of(&object).2 == claim,
            None => groups::address::<K>(&object).1.held,
        };
        if !its {
            return Ok(());
        }
        objects::release(&self.addresses, &object, K::ADDRESS_FINALIZER).await?;
        let this = DeleteParams {
            preconditions: Some(kube::api::Preconditions { uid: object.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        match self.addresses.delete(name, &this).await {
            // Another one of its name is none of the claim's.
            Err(kube::Error::Api(error)) if error.is_not_found() || error.is_conflict() => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    /// The claim, when it is still the one that was looked at.
    async fn read(&self, claim: &AddressClaim) -> Result<Option<K::Claim>, kube::Error> {
        let object = self.claims.get_opt(&claim.id.1).await?;
        Ok(object.filter(|object| is_it(object, claim) && object.meta().deletion_timestamp.is_none()))
    }

    /// The claim, held.
    async fn hold(&self, claim: &AddressClaim) -> Result<Option<K::Claim>, kube::Error> {
        let Some(object) = self.read(claim).await? else { return Ok(None) };
        changes::unless_gone(objects::hold(&self.claims, object, K::CLAIM_FINALIZER).await)
    }

    async fn say(&self, claim: &K::Claim, told: &ClaimMessage) -> Result<ClaimOutcome, kube::Error> {
        let status = K::tell(claim, told, Timestamp::now());
        let said = changes::change_status(&self.claims, claim, status).await?;
        Ok(if said.is_some() { ClaimOutcome::Yes } else { ClaimOutcome::Changed })
    }

    /// Objects of the two groups have names apart, and addresses are given to both.
    async fn is_of_the_other_group(&self, name: &str) -> Result<bool, kube::Error> {
        Ok(match K::GROUP {
            PoolGroup::Metal3 => {
                IpamWriter::<ClusterApiGroup>::new(self.client, self.namespace, self.index).knows(name).await?
            }
            PoolGroup::Contract => {
                IpamWriter::<Metal3IpamGroup>::new(self.client, self.namespace, self.index).knows(name).await?
            }
        })
    }

    async fn knows(&self, name: &str) -> Result<bool, kube::Error> {
        let there = self.addresses.get_opt(name).await?;
        there.iter().for_each(|object| self.index.stored::<K>(object));
        Ok(there.is_some())
    }
}

fn is_it(object: &impl ResourceExt, claim: &AddressClaim) -> bool {
    object.uid().unwrap_or_default() == claim.uid
}
