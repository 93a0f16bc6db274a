//! The controller of claims that no pool answers: what they refer to is not there, or is not in their namespace.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use kube::runtime::controller::Action;

use super::allocation::AllocationRefusal;
use super::effects::{ClaimOutcome, IpamWriter};
use super::groups::{self, ClaimMessage, Kinds, PoolAddress, PoolGroup, Refers};
use super::index::IpamIndex;
use crate::api::ipam::metal3::IPPool;
use crate::runtime::{Reconcile, Slim, key};

/// Tells claims why they wait, and lets those go that are deleted.
pub(super) struct StrayAddressClaims<K> {
    client: Client,
    index: IpamIndex,
    of: PhantomData<fn() -> K>,
}

impl<K> StrayAddressClaims<K> {
    /// Of one group.
    pub fn new(client: Client, index: IpamIndex) -> Self {
        Self { client, index, of: PhantomData }
    }
}

impl<K: Kinds> Reconcile for StrayAddressClaims<K> {
    type Object = Slim<K::Claim>;
    type Error = kube::Error;

    const NAME: &'static str = match K::GROUP {
        PoolGroup::Metal3 => "ipclaim",
        PoolGroup::Contract => "ipaddressclaim",
    };
    // All claims of a pool that is gone are woken at once.
    const AT_ONCE: u16 = 32;
    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(300));

    fn retry_after(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn reconcile(&self, claim: Arc<Slim<K::Claim>>) -> Result<Action, kube::Error> {
        let (namespace, name) = key(claim.as_ref());
        let claims = Api::<K::Claim>::namespaced(self.client.clone(), &namespace);
        let Some(object) = claims.get_opt(&name).await? else { return Ok(Action::await_change()) };
        let (reason, addresses): (String, Vec<PoolAddress>) = match K::claimed(&object) {
            Refers::Elsewhere => return Ok(Action::await_change()),
            Refers::Abroad => ("a claim has an address of an IPPool of its own namespace only".into(), Vec::new()),
            Refers::Pool(place) => {
                let pools = Api::<IPPool>::namespaced(self.client.clone(), &namespace);
                if pools.get_opt(&place.1).await?.is_some() {
                    return Ok(Action::await_change());
                }
                let its = self.index.of_claim(&place, (K::GROUP, &name));
                let Some(its) = its else { return Ok(Action::requeue(self.retry_after())) };
                (format!("there is no IPPool {}", place.1), its)
            }
        };
        let claim = groups::claim::<K>(&object);
        let writer = IpamWriter::<K>::new(&self.client, &namespace, &self.index);
        let told = ClaimMessage::refused(&AllocationRefusal::NotReady(reason));
        let same = match (&claim.told, &told) {
            (ClaimMessage::Refused(_, message), ClaimMessage::Refused(_, wanted)) => message == wanted,
            _ => false,
        };
        let done = match (claim.deleted, claim.held && !claim.in_use) {
            (true, true) => writer.release(&claim, &addresses).await?,
            // Its address stays its own, whatever became of the pool.
            (false, _) if addresses.is_empty() && !same => writer.tell(&claim, &told).await?,
            _ => ClaimOutcome::Yes,
        };
        Ok(if done == ClaimOutcome::Yes { Action::await_change() } else { Action::requeue(self.retry_after()) })
    }
}
