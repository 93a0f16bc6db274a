//! The controller of pools: gives their addresses to claims, and takes them back.
//!
//! One look at a pool answers all of its claims, so that no two of them are thought about at once. Nothing is believed of what was
//! begun before: an address is in use when its object is there, whoever stored it and wherever this program was when it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use rand::Rng;
use serde_json::{Map, Value, json};

use super::allocation::AllocationRefusal;
use super::effects::{ClaimOutcome, IpamWriter};
use super::groups::{ClaimMessage, ClusterApiGroup, Kinds, Metal3IpamGroup, PoolGroup};
use super::index::IpamIndex;
use super::plan::{IpamPlan, IpamStep, plan};
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::v1beta2::Cluster;
use crate::api::ipam::metal3::{FINALIZER_POOL, IPPool};
use crate::cluster::contract::pause;
use crate::runtime::objects::ControllerMarks;
use crate::runtime::{ObjectKey, Reconcile, Slim, changes, key, objects, owners};

/// Label that says whose provider it is.
const LABEL_PROVIDER: &str = "cluster.x-k8s.io/provider";
/// Its value.
const PROVIDER: &str = "ipam-metal3";
/// Claims of a pool that are written for at once.
const AT_ONCE: usize = 16;
/// Claims of a pool that are answered at once; then others of its namespace have their turn.
const IN_ONE_LOOK: usize = 512;
/// How soon it goes on with the next ones: what is known of the first has arrived by then, or arrives meanwhile.
const GO_ON: Duration = Duration::from_millis(50);
/// So often in one look another address is tried whose name is somebody else's.
const ROUNDS: usize = 64;
/// How soon it is tried again after an error.
const RETRY: Duration = Duration::from_secs(1);

/// Gives the addresses of pools.
pub(super) struct Pools {
    /// The API.
    pub client: Client,
    /// What is known of claims and addresses.
    pub index: IpamIndex,
}

impl Reconcile for Pools {
    type Object = Slim<IPPool>;
    type Error = kube::Error;

    const NAME: &'static str = "ippool";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(600));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, pool: Arc<Slim<IPPool>>) -> Result<Action, kube::Error> {
        let place = key(pool.as_ref());
        let pools = Api::<IPPool>::namespaced(self.client.clone(), &place.0);
        let Some(pool) = pools.get_opt(&place.1).await? else { return Ok(Action::await_change()) };
        let cluster = self.cluster(&pool).await?;
        if pause::is_paused(cluster.as_ref(), &pool) {
            return Ok(Action::await_change());
        }
        let closed = closed(&pool, cluster.as_ref());
        let pool = match claimed(&pool, cluster.as_ref()) {
            Some(patch) => changes::change(&pools, &pool, patch).await?,
            None => pool,
        };
        let Some(PoolOutcome { allocations, failed, is_all }) = self.answer(&pool, &place, closed.as_deref()).await
        else {
            // What is missing wakes it.
            return Ok(Action::await_change());
        };
        if let Some(status) = status(&pool, &allocations, Timestamp::now()) {
            pools.patch_status(&place.1, &PatchParams::default(), &Patch::Merge(status)).await?;
        }
        if pool.metadata.deletion_timestamp.is_some() && allocations.is_empty() {
            self.let_go(&pools, &place).await?;
        }
        // One claim that cannot be written for keeps nothing from the others.
        match failed {
            Some(failed) => Err(failed),
            None if is_all => Ok(Action::await_change()),
            None => Ok(Action::requeue(GO_ON)),
        }
    }
}

/// What came of a look at a pool's claims.
struct PoolOutcome {
    /// Whose the addresses were.
    allocations: BTreeMap<String, String>,
    /// What failed first.
    failed: Option<kube::Error>,
    /// Whether all claims had their turn.
    is_all: bool,
}

impl Pools {
    async fn cluster(&self, pool: &IPPool) -> Result<Option<Cluster>, kube::Error> {
        let Some(name) = pool.spec.cluster_name.as_deref().filter(|name| !name.is_empty()) else { return Ok(None) };
        Api::<Cluster>::namespaced(self.client.clone(), &pool.namespace().unwrap_or_default()).get_opt(name).await
    }

    /// Brings claims to where they belong, as many as have their turn in one look; `None` before anything is known.
    async fn answer(&self, pool: &IPPool, place: &ObjectKey, closed: Option<&str>) -> Option<PoolOutcome> {
        let mut foreign = BTreeSet::new();
        for round in 0.. {
            let known = self.index.of(place)?;
            let mut draw = |below: u128| rand::rng().random_range(0..below.max(1));
            let mut plan = plan(&pool.spec, closed, known.claims, known.addresses, &foreign, &mut draw);
            let is_all = plan.keep(IN_ONE_LOOK);
            let IpamPlan { steps, allocations } = plan;
            // Told of it, a claim is not thought about again in this look.
            let last = round == ROUNDS;
            let mut taken: Vec<IpAddr> = Vec::new();
            let mut error = None;
            let mut steps =
                stream::iter(steps).map(|step| self.do_step(pool, place, step, last)).buffer_unordered(AT_ONCE);
            while let Some(done) = steps.next().await {
                match done {
                    Ok(name_taken) => taken.extend(name_taken),
                    Err(failed) => error = error.or(Some(failed)),
                }
            }
            if taken.is_empty() || last || error.is_some() {
                return Some(PoolOutcome { allocations, failed: error, is_all });
            }
            foreign.extend(taken);
        }
        None
    }

    /// The address, when its name is somebody else's.
    async fn do_step(
        &self,
        pool: &IPPool,
        place: &ObjectKey,
        step: IpamStep,
        last: bool,
    ) -> Result<Option<IpAddr>, kube::Error> {
        let group = match &step {
            IpamStep::Give(claim, _)
            | IpamStep::Tell(claim, _)
            | IpamStep::Refuse(claim, _)
            | IpamStep::Release(claim, _) => claim.id.0,
            IpamStep::Orphan(address) | IpamStep::Surplus(address) => address.id.0,
        };
        match group {
            PoolGroup::Metal3 => {
                write(&IpamWriter::<Metal3IpamGroup>::new(&self.client, &place.0, &self.index), pool, step, last).await
            }
            PoolGroup::Contract => {
                write(&IpamWriter::<ClusterApiGroup>::new(&self.client, &place.0, &self.index), pool, step, last).await
            }
        }
    }

    /// Lets a pool go of which no address is in use, by what the API says now.
    async fn let_go(&self, pools: &Api<IPPool>, place: &ObjectKey) -> Result<(), kube::Error> {
        let Some(known) = self.index.of(place) else { return Ok(()) };
        if !known.addresses.is_empty() {
            return Ok(());
        }
        match pools.get_opt(&place.1).await? {
            Some(pool) => objects::release(pools, &pool, FINALIZER_POOL).await,
            None => Ok(()),
        }
    }
}

async fn write<K: Kinds>(
    writer: &IpamWriter<'_, K>,
    pool: &IPPool,
    step: IpamStep,
    last: bool,
) -> Result<Option<IpAddr>, kube::Error> {
    match step {
        IpamStep::Give(claim, given) => {
            let done = match writer.give(pool, &claim, &given).await {
                // A name that the API refuses, as of a prefix that no name begins with, is not better the next time.
                Err(kube::Error::Api(error)) if error.is_invalid() => {
                    let reason = format!("Failed to create associated IPAddress object: {}", error.message);
                    writer
                        .tell(
                            &claim,
                            &ClaimMessage::Refused("AllocationFailed".into(), reason.chars().take(1000).collect()),
                        )
                        .await?
                }
                done => done?,
            };
            let taken = done == ClaimOutcome::NameTaken;
            if taken && (last || pool.spec.pre_allocations.contains_key(&claim.id.1) || claim.wants.is_some()) {
                writer.tell(&claim, &ClaimMessage::refused(&AllocationRefusal::Unnamed(given.address))).await?;
                return Ok(None);
            }
            return Ok(Some(given.address).filter(|_| taken));
        }
        IpamStep::Tell(claim, name) => writer.tell(&claim, &ClaimMessage::Address(name)).await?,
        IpamStep::Refuse(claim, refusal) => writer.tell(&claim, &ClaimMessage::refused(&refusal)).await?,
        IpamStep::Release(claim, addresses) => writer.release(&claim, &addresses).await?,
        IpamStep::Orphan(address) => writer.give_back_orphan(&address).await?,
        IpamStep::Surplus(address) => writer.give_back_surplus(&address).await?,
    };
    Ok(None)
}

/// Why a pool gives no addresses now.
fn closed(pool: &IPPool, cluster: Option<&Cluster>) -> Option<String> {
    if pool.metadata.deletion_timestamp.is_some() {
        return Some(format!("the IPPool {} is being deleted", pool.name_any()));
    }
    let name = pool.spec.cluster_name.as_deref().filter(|name| !name.is_empty())?;
    cluster.is_none().then(|| format!("the IPPool {} waits for its Cluster {name}", pool.name_any()))
}

/// What is to be changed of a pool's metadata before anything of it is given: it is held, and belongs to its cluster.
fn claimed(pool: &IPPool, cluster: Option<&Cluster>) -> Option<Value> {
    if pool.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let named = pool.spec.cluster_name.iter();
    let labels: Vec<_> = named.flat_map(|name| [(LABEL_CLUSTER, name.as_str()), (LABEL_PROVIDER, PROVIDER)]).collect();
    let owners = cluster.and_then(|cluster| owners::with(&pool.metadata, &owners::owner(cluster, false)));
    ControllerMarks { finalizer: Some(FINALIZER_POOL), labels: &labels, owners }.missing(pool)
}

/// What is to be changed of a pool's status.
fn status(pool: &IPPool, allocations: &BTreeMap<String, String>, now: Timestamp) -> Option<Value> {
    let known = pool.status.clone().unwrap_or_default().indexes;
    // A merge leaves alone what is not named, so what is gone must be named.
    let gone = known.keys().filter(|claim| !allocations.contains_key(*claim)).map(|claim| (claim.clone(), Value::Null));
    let new = allocations.iter().filter(|(claim, address)| known.get(*claim) != Some(address));
    let changed: Map<String, Value> = gone.chain(new.map(|(claim, address)| (claim.clone(), json!(address)))).collect();
    (!changed.is_empty()).then(|| json!({"status": {"indexes": changed, "lastUpdated": now}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(value: Value) -> IPPool {
        let mut pool = json!({"metadata": {"name": "p", "namespace": "rack", "resourceVersion": "7"}, "spec": {"namePrefix": "p"}});
        json_patch::merge(&mut pool, &value);
        serde_json::from_value(pool).unwrap()
    }

    fn cluster() -> Cluster {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "rack", "uid": "u"}, "spec": {}})).unwrap()
    }

    #[test]
    fn a_pool_is_held_and_belongs_to_its_cluster() {
        let wanted = json!({"metadata": {"finalizers": ["ippool.ipam.metal3.io"]}});
        assert_eq!(claimed(&pool(json!({})), None), Some(wanted));
        let mut of_cluster = json!({"spec": {"clusterName": "c"}});
        let change = claimed(&pool(of_cluster.clone()), Some(&cluster())).unwrap();
        assert_eq!(change["metadata"]["labels"], json!({LABEL_CLUSTER: "c", LABEL_PROVIDER: PROVIDER}));
        assert_eq!(change["metadata"]["ownerReferences"][0]["uid"], "u");
        json_patch::merge(&mut of_cluster, &change);
        assert_eq!(claimed(&pool(of_cluster), Some(&cluster())), None);
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(claimed(&pool(going.clone()), None), None);
        assert_eq!(closed(&pool(going), None).unwrap(), "the IPPool p is being deleted");
        let waiting = pool(json!({"spec": {"clusterName": "c"}}));
        assert_eq!(closed(&waiting, None).unwrap(), "the IPPool p waits for its Cluster c");
        assert_eq!(closed(&waiting, Some(&cluster())), None);
        assert_eq!(closed(&pool(json!({})), None), None);
    }

    #[test]
    fn only_what_changed_of_a_status_is_written() {
        let known = pool(json!({"status": {"indexes": {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}}}));
        let now = [("a", "10.0.0.1"), ("b", "10.0.0.9"), ("d", "10.0.0.4")];
        let now = now.map(|(claim, address)| (claim.to_owned(), address.to_owned())).into();
        let change = status(&known, &now, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(change["status"]["indexes"], json!({"b": "10.0.0.9", "c": null, "d": "10.0.0.4"}));
        let same = known.status.as_ref().unwrap().indexes.clone();
        assert_eq!(status(&known, &same, Timestamp::UNIX_EPOCH), None);
    }
}
