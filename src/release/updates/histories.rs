//! Histories of clusters and machines, written: each is its Cluster's or its Machine's by UID, and goes with it.
//!
//! An upgrade that begins is a history of its own, by the name of the release. What had not ended before it is given up; of those that
//! were, the newest are kept.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::stages::{self, FoundStage};
use crate::api::kaas::{
    ClusterDeploymentStatus, ClusterUpgradeStatus, MachineDeploymentStatus, MachineUpgradeStatus, StageHistory,
};
use crate::api::lcm::{LCMCluster, LCMMachine};
use crate::api::machine_api::{Cluster, Machine};
use crate::release::keep::is_of;
use crate::release::names::{LABEL_CLUSTER, LABEL_HISTORY_OF};
use crate::runtime::changes::{change, delete, unless_gone};
use crate::runtime::{Conflict, owners};

/// Upgrades of a cluster or of a machine that are kept, the one that is under way with them.
const KEPT: usize = 10;
/// Upgrades that are looked at when one begins: more than there can be.
const LOOKED_AT: u32 = 100;
/// Longest name of an object.
const NAME_MAX: usize = 253;

/// A kind of histories.
trait History:
    StageHistory + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned
{
}

impl<K> History for K where
    K: StageHistory
        + Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
{
}

/// Whose histories are written.
struct Histories<'a> {
    client: &'a Client,
    namespace: &'a str,
    cluster: &'a str,
    owner: OwnerReference,
}

impl Histories<'_> {
    fn api<K: History>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Writes down how far something is that happens once.
    async fn once<K: History>(&self, new: K, found: Vec<FoundStage>) -> Result<(), kube::Error> {
        let api = self.api::<K>();
        match api.get_opt(&new.name_any()).await? {
            Some(old) if is_of(&old, &self.owner) => self.advance(&api, &old, found).await,
            // One of before goes, which is not told of: it is looked at again when something happens.
            Some(_) => Ok(()),
            // When it happened nobody saw.
            None if stages::is_over(&found) => Ok(()),
            None => self.create(&api, new, found).await,
        }
    }

    /// Writes down how far an upgrade is; `begins` says that it is to be, and not over.
    async fn each<K: History>(&self, new: K, begins: bool, found: Vec<FoundStage>) -> Result<(), kube::Error> {
        let (api, name) = (self.api::<K>(), new.name_any());
        if name.len() > NAME_MAX {
            return Ok(());
        }
        let old = api.get_opt(&name).await?;
        match &old {
            Some(old) if !is_of(old, &self.owner) => return Ok(()),
            Some(old) if !stages::is_ended(old.stages()) => return self.advance(&api, old, found).await,
            _ if !begins => return Ok(()),
            _ => {}
        }
        self.make_room(&api, &name, new.release()).await?;
        // The same once more.
        if let Some(old) = &old {
            delete(&api, old).await?;
        }
        self.create(&api, new, found).await
    }

    /// Gives up what has not ended, and deletes the oldest.
    async fn make_room<K: History>(&self, api: &Api<K>, name: &str, release: &str) -> Result<(), kube::Error> {
        let labels = format!("{LABEL_HISTORY_OF}={}", self.owner.uid);
        let params = ListParams { limit: Some(LOOKED_AT), ..ListParams::default().labels(&labels) };
        let mut others = api.list(&params).await?.items;
        others.retain(|one| is_of(one, &self.owner) && one.name_any() != name);
        others.sort_by_key(|one| one.meta().creation_timestamp.as_ref().map(|time| time.0));
        let excess = (others.len() + 1).saturating_sub(KEPT);
        for old in others.drain(..excess) {
            delete(api, &old).await?;
        }
        for old in others.iter().filter(|one| !stages::is_ended(one.stages())) {
            let message = format!("given up: {release} is to follow");
            let stages = stages::given_up(old.stages(), &message, Timestamp::now());
            unless_gone(change(api, old, json!({ "stages": stages })).await)?;
        }
        Ok(())
    }

    async fn advance<K: History>(&self, api: &Api<K>, old: &K, found: Vec<FoundStage>) -> Result<(), kube::Error> {
        let new = stages::advance(old.stages(), found, Timestamp::now());
        if new != old.stages() && old.meta().deletion_timestamp.is_none() {
            unless_gone(change(api, old, json!({ "stages": new })).await)?;
        }
        Ok(())
    }

    async fn create<K: History>(&self, api: &Api<K>, mut new: K, found: Vec<FoundStage>) -> Result<(), kube::Error> {
        *new.stages_mut() = stages::advance(&[], found, Timestamp::now());
        let labels = [(LABEL_CLUSTER, self.cluster), (LABEL_HISTORY_OF, self.owner.uid.as_str())];
        let meta = new.meta_mut();
        meta.namespace = Some(self.namespace.to_owned());
        meta.owner_references = Some(vec![self.owner.clone()]);
        meta.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        match api.create(&PostParams::default(), &new).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            made => made.map(drop),
        }
    }
}

/// What nobody waits for: somebody wrote or deleted a history in between, and the next look sees that.
fn unless_conflict(written: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match written {
        Err(error) if error.is_conflict() => Ok(()),
        written => written,
    }
}

/// Writes down how far a cluster is; with the conditions of its Cluster.
///
/// # Errors
///
/// What the API says.
pub async fn of_cluster(
    client: &Client,
    cluster: &Cluster,
    conditions: &[Condition],
    (lcm, has_bundle): (&LCMCluster, bool),
) -> Result<(), kube::Error> {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let owner = owners::owner(cluster, true);
    let histories = Histories { client, namespace: &namespace, cluster: &name, owner };
    let target = &lcm.spec.release;
    let made = ClusterDeploymentStatus::new(&name, target);
    unless_conflict(histories.once(made, stages::deployment(conditions, lcm, has_bundle)).await)?;
    let has = lcm.status.as_ref().map_or("", |status| status.release.as_str());
    if has.is_empty() || target.is_empty() {
        return Ok(());
    }
    let new = ClusterUpgradeStatus::new(&format!("{name}-{target}"), has, target);
    unless_conflict(histories.each(new, has != target, stages::upgrade(&name, lcm)).await)
}

/// Writes down how far a machine is; with what its `status.providerStatus` says.
///
/// # Errors
///
/// What the API says.
pub async fn of_machine(
    client: &Client,
    machine: &Machine,
    told: &Value,
    (cluster, lcm): (&LCMCluster, &LCMMachine),
) -> Result<(), kube::Error> {
    let (namespace, name) = (machine.namespace().unwrap_or_default(), machine.name_any());
    let (cluster_name, owner) = (cluster.name_any(), owners::owner(machine, true));
    let histories = Histories { client, namespace: &namespace, cluster: &cluster_name, owner };
    let target = &cluster.spec.release;
    let made = MachineDeploymentStatus::new(&name, target);
    unless_conflict(histories.once(made, stages::machine_deployment(told, lcm)).await)?;
    let has = lcm.status.as_ref().map_or("", |status| status.release.as_str());
    if has.is_empty() || target.is_empty() {
        return Ok(());
    }
    let new = MachineUpgradeStatus::new(&format!("{name}-{target}"), has, target);
    unless_conflict(histories.each(new, has != target, stages::machine_upgrade(cluster, lcm)).await)
}
