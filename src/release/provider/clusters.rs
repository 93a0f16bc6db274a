//! What is done about a Cluster, look by look: it is judged, what it is made of is made, and it says how far it is.
//!
//! It goes once its Machines are gone, which are their users' to delete; what was made of it is its own, and goes with it.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::accounts;
use super::cluster_status::{self, FoundCluster};
use super::desired::{self, ClusterInputs};
use super::iam;
use super::machine_spec;
use super::reach::Reach;
use crate::api::kaas::{ClusterUpdatePlan, GracefulRebootRequest, PublicKey};
use crate::api::lcm::{HelmBundle, LCMCluster};
use crate::api::machine_api::{Cluster, Machine};
use crate::log::named;
use crate::release::catalogue::join as catalogue;
use crate::release::catalogue::known::{Offer, Releases};
use crate::release::keep::{self, KeepError};
use crate::release::names::{COMPONENT, FINALIZER, LABEL_CLUSTER, PAUSED, READY};
use crate::release::updates::groups as update_groups;
use crate::release::updates::histories;
use crate::release::updates::plan;
use crate::release::updates::plans;
use crate::release::wish::judge;
use crate::release::wish::shape::{self, ClusterWish};
use crate::runtime::changes::write_status;
use crate::runtime::conditions::{self, ConditionVerdict};
use crate::runtime::{Cache, Conflict, Mention, Note, Reconcile, Slim, events, key, objects, owners, run};

/// After an error.
const RETRY: Duration = Duration::from_secs(2);
/// How often what is waited for is looked at that changes unseen.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Machines that a message names.
const TOLD: usize = 5;
/// Machines that are asked for when a cluster goes.
const PAGE: u32 = 20;

/// Looks at Clusters.
pub struct Clusters {
    client: Client,
    releases: Releases,
    reach: Reach,
    /// Machines, by the cluster that they name.
    machines: Cache<Slim<Machine>>,
}

/// A look cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// What is made cannot be.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// This program cannot be read.
    #[error("the appliance's own program cannot be read: {0}")]
    Program(#[from] std::io::Error),
}

impl Conflict for ClusterError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Keep(error) => error.is_conflict(),
            Self::Program(_) => false,
        }
    }
}

/// What was made of a Cluster.
#[derive(Default)]
struct Made {
    provided: Option<ConditionVerdict>,
    lcm: Option<LCMCluster>,
    bundle: Option<HelmBundle>,
    charts: Option<String>,
    plans: Vec<ClusterUpdatePlan>,
}

/// The machines that name a cluster.
pub fn of_cluster(namespace: &str, cluster: &str) -> Mention {
    Mention::new("Cluster", namespace, cluster)
}

impl Clusters {
    /// Nothing is looked at yet.
    pub fn new(client: Client, releases: Releases, reach: Reach, machines: Cache<Slim<Machine>>) -> Self {
        Self { client, releases, reach, machines }
    }

    /// Looks at Clusters until the shutdown.
    pub async fn run(self, cache: Cache<Slim<Cluster>>, shutdown: CancellationToken) {
        run(Arc::new(self), &cache, stream::empty(), shutdown).await;
    }

    async fn look(&self, cluster: Cluster) -> Result<Action, ClusterError> {
        let namespace = cluster.namespace().unwrap_or_default();
        let clusters = Api::<Cluster>::namespaced(self.client.clone(), &namespace);
        if cluster.metadata.deletion_timestamp.is_some() {
            return self.release(&clusters, &cluster).await;
        }
        if !shape::is_ours(&cluster.spec) || PAUSED.iter().any(|paused| cluster.annotations().contains_key(*paused)) {
            return Ok(Action::await_change());
        }
        let cluster = objects::hold(&clusters, cluster, FINALIZER).await?;
        let (wish, fault) = match shape::read(&cluster) {
            Ok(wish) => (wish.unwrap_or_default(), None),
            Err(fault) => {
                (ClusterWish::default(), Some(ConditionVerdict::no("InvalidConfiguration", fault.to_string())))
            }
        };
        let offer = self.releases.of(&wish.release);
        let mut made = Made::default();
        let done = match fault {
            Some(fault) => {
                made.provided = Some(fault);
                self.present(&cluster, &mut made).await
            }
            None => self.make_with_plans(&cluster, &wish, &offer, &mut made).await,
        };
        if let Err(error) = &done {
            if error.is_conflict() {
                return done.map(|()| Action::await_change());
            }
            made.provided = Some(told(error));
        }
        let requests = Api::<GracefulRebootRequest>::namespaced(self.client.clone(), &namespace);
        let reboot = requests.get_opt(&cluster.name_any()).await?;
        let found = FoundCluster {
            provided: made.provided.unwrap_or_else(|| ConditionVerdict::yes("Provided")),
            offer: &offer,
            host: &wish.host,
            lcm: made.lcm.as_ref(),
            bundle: made.bundle.as_ref(),
            charts: made.charts,
            machines: self.machines.count_mentioning(&of_cluster(&namespace, &cluster.name_any())),
            reboot: reboot.as_ref(),
        };
        let is_provided = found.provided.is_true();
        let status = cluster_status::report(&cluster, &found, Timestamp::now());
        write_status(&clusters, &cluster, cluster.status.as_ref(), &status).await?;
        if let Some(lcm) = &made.lcm {
            let known = (lcm, made.bundle.is_some());
            histories::of_cluster(&self.client, &cluster, &status.conditions, known).await?;
        }
        match done {
            // It waits for somebody, and says so; a look at once would see the same.
            Err(ClusterError::Keep(KeepError::Taken { .. } | KeepError::Leaving { .. })) | Ok(()) => {
                Ok(if is_provided { Action::await_change() } else { Action::requeue(LOOK_AGAIN) })
            }
            Err(error) => Err(error),
        }
    }

    /// What is there of a Cluster that makes no sense now.
    async fn present(&self, cluster: &Cluster, made: &mut Made) -> Result<(), ClusterError> {
        let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
        let owner = owners::owner(cluster, true);
        made.lcm = keep::own(&Api::namespaced(self.client.clone(), &namespace), &name, &owner).await?;
        made.bundle = keep::own(&Api::namespaced(self.client.clone(), &namespace), &name, &owner).await?;
        Ok(())
    }

    /// Makes what a Cluster is made of, and plans of what may follow.
    async fn make_with_plans(
        &self,
        cluster: &Cluster,
        wish: &ClusterWish,
        offer: &Offer,
        made: &mut Made,
    ) -> Result<(), ClusterError> {
        self.make(cluster, wish, offer, made).await?;
        let Some(lcm) = &made.lcm else { return Ok(()) };
        let known = (offer, &self.releases);
        Ok(plans::keep(&self.client, (cluster, wish), lcm, &made.plans, known).await?)
    }

    /// Makes what a Cluster is made of, or says why it does not.
    async fn make(
        &self,
        cluster: &Cluster,
        wish: &ClusterWish,
        offer: &Offer,
        made: &mut Made,
    ) -> Result<(), ClusterError> {
        self.present(cluster, made).await?;
        let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
        let owner = owners::owner(cluster, true);
        made.plans = plans::stored(&self.client, cluster).await?;
        if let Some(lcm) = &made.lcm
            && plans::begin(&self.client, (cluster, wish), lcm, &made.plans, &self.releases).await?
        {
            return Ok(());
        }
        let (keys, missing) = self.keys(&namespace, wish).await?;
        if let Some(missing) = missing {
            made.provided = Some(ConditionVerdict::no("InvalidPublicKey", missing));
        }
        let clusters = Api::<LCMCluster>::namespaced(self.client.clone(), &namespace);
        let is_new = made.lcm.is_none();
        let judged = judged(wish, offer, made.lcm.as_ref());
        if let (Some(present), true) = (&made.lcm, judged.is_err() || wish.maintenance) {
            // Nothing changes but keys, and that it is so.
            let spec = desired::held(&present.spec, wish.maintenance, &keys);
            made.lcm = Some(
                keep::keep(
                    &clusters,
                    &LCMCluster { spec, ..LCMCluster::new(&name, <_>::default()) },
                    &owner,
                    &["spec"],
                )
                .await?,
            );
            if let Err(refusal) = judged {
                made.provided = Some(ConditionVerdict::no(refusal.0, refusal.1));
            }
            return Ok(());
        }
        if let Err((reason, message)) = judged {
            made.provided = Some(ConditionVerdict::no(reason, message));
            return Ok(());
        }
        let Some(release) = &offer.release else { return Ok(()) };
        let sha256 = self.reach.program.sha256().await?;
        let (appliance, agent) = match (self.reach.endpoint(), self.reach.agent(sha256)) {
            (Ok(appliance), Ok(agent)) => (appliance, agent),
            (Err(nowhere), _) | (_, Err(nowhere)) => {
                made.provided = Some(ConditionVerdict::no("NoAddress", nowhere.to_string()));
                return Ok(());
            }
        };
        let reboot = reboots(wish, offer, made.lcm.as_ref());
        let mut groups = update_groups::stored(&self.client, &namespace, &name).await?;
        update_groups::provide(&self.client, cluster, wish.max_worker_upgrade_count, &mut groups).await?;
        if groups.len() > update_groups::MOST {
            let message = format!("it has more than {} UpdateGroups: delete some", update_groups::MOST);
            made.provided = Some(ConditionVerdict::no("TooManyGroups", message));
            return Ok(());
        }
        let plan = plans::governing(wish, made.lcm.as_ref(), &made.plans);
        let governs = made.plans.iter().find(|one| one.name_any() == plan);
        let groups = update_groups::told(&groups, |group| plan::paused(&name, &plan, governs, group));
        let around = ClusterInputs { appliance, agent, keys, reboot, groups, plan };
        let spec = desired::lcm_cluster(&name, wish, release, &around);
        accounts::provide(&self.client, &namespace, &accounts::helm(&name), &owner).await?;
        iam::provide(&self.client, &namespace, &name, &owner).await?;
        made.lcm = Some(
            keep::keep(&clusters, &LCMCluster { spec, ..LCMCluster::new(&name, <_>::default()) }, &owner, &["spec"])
                .await?,
        );
        match desired::helm_bundle(wish, release) {
            Ok(spec) => {
                let bundles = Api::<HelmBundle>::namespaced(self.client.clone(), &namespace);
                let wanted = HelmBundle { spec, ..HelmBundle::new(&name, <_>::default()) };
                made.bundle = Some(keep::keep(&bundles, &wanted, &owner, &["spec"]).await?);
            }
            Err(fault) => made.charts = Some(fault.to_string()),
        }
        if is_new {
            info!(cluster = %named(&namespace, &name), release = wish.release, "a cluster is made of a release");
            self.tell(cluster, "ClusterProvided", format!("Made of the release {}", wish.release), false).await;
            if !wish.idle.is_empty() {
                let message = format!("Without effect here: {} of providerSpec.value", wish.idle.join(", "));
                self.tell(cluster, "FieldsWithoutEffect", message, true).await;
            }
        }
        Ok(())
    }

    /// Keys that open the cluster's nodes, and which of those that it names is none.
    async fn keys(&self, namespace: &str, wish: &ClusterWish) -> Result<(Vec<String>, Option<String>), kube::Error> {
        let api = Api::<PublicKey>::namespaced(self.client.clone(), namespace);
        let (mut keys, mut faults) = (Vec::new(), Vec::new());
        for name in &wish.public_keys {
            let Some(found) = api.get_opt(name).await? else {
                faults.push(format!("there is no PublicKey {name:?} in this namespace"));
                continue;
            };
            match desired::key_fault(&found.spec.public_key) {
                None => keys.push(found.spec.public_key.trim().to_owned()),
                Some(reason) => faults.push(format!("spec.publicKey of the PublicKey {name:?} {reason}")),
            }
        }
        let told = faults.iter().take(TOLD).cloned().collect::<Vec<_>>().join("; ");
        Ok((keys, (!faults.is_empty()).then_some(told)))
    }

    /// Lets a Cluster go that has no Machines any more.
    async fn release(&self, clusters: &Api<Cluster>, cluster: &Cluster) -> Result<Action, ClusterError> {
        if !objects::is_held(cluster, FINALIZER) {
            return Ok(Action::await_change());
        }
        let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
        let left = self.machines_of(&namespace, &name).await?;
        if left.is_empty() {
            objects::release(clusters, cluster, FINALIZER).await?;
            info!(cluster = %named(&namespace, &name), "a cluster of a release goes");
            return Ok(Action::await_change());
        }
        let mut status = cluster.status.clone().unwrap_or_default();
        let more = if left.len() > TOLD { " and others" } else { "" };
        let some = left.iter().take(TOLD).map(String::as_str).collect::<Vec<_>>().join(", ");
        let reason = format!(
            "Waiting for its Machines to be deleted: {some}{more} (`slipway delete machines.cluster.k8s.io -l {LABEL_CLUSTER}={name}`)"
        );
        let (verdict, now) = (ConditionVerdict::no("MachinesLeft", reason), Timestamp::now());
        conditions::set(&mut status.conditions, READY, &verdict, cluster.metadata.generation, now);
        write_status(clusters, cluster, cluster.status.as_ref(), &status).await?;
        Ok(Action::requeue(LOOK_AGAIN))
    }

    /// Some of the machines that a cluster has, as the API has them now.
    async fn machines_of(&self, namespace: &str, cluster: &str) -> Result<Vec<String>, kube::Error> {
        // A name that is too long for a label is in none.
        if cluster.len() > 63 {
            return Ok(Vec::new());
        }
        let machines = Api::<Machine>::namespaced(self.client.clone(), namespace);
        let params =
            ListParams { limit: Some(PAGE), ..ListParams::default().labels(&format!("{LABEL_CLUSTER}={cluster}")) };
        let found = machines.list(&params).await?.items;
        Ok(found.iter().filter(|one| machine_spec::cluster_of(one).is_some()).map(ResourceExt::name_any).collect())
    }

    async fn tell(&self, cluster: &Cluster, reason: &'static str, message: String, warning: bool) {
        events::tell(&self.client, COMPONENT, cluster, &Note { reason, message, warning }).await;
    }
}

/// What a fault says.
fn told(error: &ClusterError) -> ConditionVerdict {
    let reason = match error {
        ClusterError::Keep(KeepError::Taken { .. }) => "NameTaken",
        ClusterError::Keep(KeepError::Leaving { .. }) => "WaitingForDeletion",
        _ => "Error",
    };
    ConditionVerdict::no(reason, error.to_string())
}

/// Whether a cluster may be as it wants: the word for why not, and what to do.
fn judged(wish: &ClusterWish, offer: &Offer, present: Option<&LCMCluster>) -> Result<(), (&'static str, String)> {
    let refused = |refusal: judge::Refusal| (refusal.reason, refusal.message);
    let Some(present) = present else { return judge::release(wish, offer).map_err(refused) };
    if let Some(endpoint) = &present.spec.external_endpoint
        && endpoint.host != wish.host
    {
        let reason =
            format!("loadBalancerHost was {:?}, which the cluster's nodes have in their certificates", endpoint.host);
        return Err(("InvalidChange", reason));
    }
    let networks = (&present.spec.pods_cidr, &present.spec.services_cidr);
    if networks != (&wish.networks.pods, &wish.networks.services) {
        let reason =
            format!("the networks were {} for pods and {} for services, which nodes have", networks.0, networks.1);
        return Err(("InvalidChange", reason));
    }
    if present.spec.release == wish.release {
        // A release that is supported no more goes on, and says so; one that is gone has nothing to be made of.
        return match &offer.release {
            Some(_) => Ok(()),
            None => judge::release(wish, offer).map_err(refused),
        };
    }
    judge::release(wish, offer).map_err(refused)?;
    let has = present.status.as_ref().map_or("", |status| status.release.as_str());
    judge::upgrade(wish, [present.spec.release.as_str(), has], offer).map_err(refused)
}

/// Whether nodes are rebooted for the release that they go to, or for the one that they went to.
fn reboots(wish: &ClusterWish, offer: &Offer, present: Option<&LCMCluster>) -> bool {
    let Some(present) = present else { return false };
    if present.spec.release == wish.release {
        return present.spec.nodes_reboot_required;
    }
    let Ok(kaas) = &offer.kaas else { return false };
    let upgrades = catalogue::available_upgrades(kaas, &present.spec.release);
    upgrades.iter().any(|target| target.name == wish.release && target.reboot_required)
}

impl Reconcile for Clusters {
    type Object = Slim<Cluster>;
    type Error = ClusterError;

    const NAME: &'static str = "provider-cluster";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(120));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, known: Arc<Slim<Cluster>>) -> Result<Action, ClusterError> {
        let (namespace, name) = key(known.as_ref());
        match Api::<Cluster>::namespaced(self.client.clone(), &namespace).get_opt(&name).await? {
            Some(cluster) => self.look(cluster).await,
            None => Ok(Action::await_change()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::release::wish::network::Networks;

    fn offer(release: &str) -> Offer {
        let kaas = json!({"metadata": {"name": "k"}, "spec": {"version": "2.30.0", "supportedClusterReleases": [
            {"name": "r1", "version": "1.0.0", "availableUpgrades": [{"version": "2.0.0", "rebootRequired": true}]},
            {"name": "r2", "version": "2.0.0", "availableUpgrades": [{"version": "3.0.0"}]},
            {"name": "r3", "version": "3.0.0"},
        ]}});
        let release = json!({"metadata": {"name": release}, "spec": {"version": "1.0.0"}});
        Offer {
            kaas: Ok(Arc::new(serde_json::from_value(kaas).unwrap())),
            release: Some(Arc::new(serde_json::from_value(release).unwrap())),
        }
    }

    fn lcm(change: Value) -> LCMCluster {
        let mut lcm = json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMCluster", "metadata": {"name": "c"},
            "spec": {"release": "r1", "podsCIDR": "10.244.0.0/16", "externalEndpoint": {"host": "h", "port": 6443}}});
        json_patch::merge(&mut lcm, &change);
        serde_json::from_value(lcm).unwrap()
    }

    #[test]
    fn a_cluster_is_judged_by_what_its_nodes_are_told() {
        let wish = |release: &str, host: &str| ClusterWish {
            release: release.into(),
            host: host.into(),
            networks: Networks { pods: "10.244.0.0/16".into(), ..Networks::default() },
            ..ClusterWish::default()
        };
        let gone = Offer { release: None, ..offer("r1") };
        for (wish, offer, present, wanted) in [
            (wish("r1", "h"), offer("r1"), None, None),
            (wish("r9", "h"), offer("r9"), None, Some("UnsupportedRelease")),
            (wish("r1", "h"), offer("r1"), Some(lcm(json!({}))), None),
            (wish("r2", "h"), offer("r2"), Some(lcm(json!({}))), None),
            (wish("r3", "h"), offer("r3"), Some(lcm(json!({}))), Some("NotInUpgradePath")),
            // Some nodes have the first release still.
            (
                wish("r3", "h"),
                offer("r3"),
                Some(lcm(json!({"spec": {"release": "r2"}, "status": {"release": "r1"}}))),
                Some("NotInUpgradePath"),
            ),
            (
                wish("r3", "h"),
                offer("r3"),
                Some(lcm(json!({"spec": {"release": "r2"}, "status": {"release": "r2"}}))),
                None,
            ),
            (wish("r1", "g"), offer("r1"), Some(lcm(json!({}))), Some("InvalidChange")),
            (
                wish("r1", "h"),
                offer("r1"),
                Some(lcm(json!({"spec": {"podsCIDR": "10.0.0.0/16"}}))),
                Some("InvalidChange"),
            ),
            (wish("r1", "h"), gone, Some(lcm(json!({}))), Some("UnknownRelease")),
        ] {
            let said = judged(&wish, &offer, present.as_ref());
            assert_eq!(said.as_ref().err().map(|(reason, _)| *reason), wanted, "{wish:?}: {said:?}");
        }
        assert!(reboots(&wish("r2", "h"), &offer("r2"), Some(&lcm(json!({})))));
        assert!(!reboots(&wish("r1", "h"), &offer("r1"), Some(&lcm(json!({})))));
        assert!(reboots(&wish("r1", "h"), &offer("r1"), Some(&lcm(json!({"spec": {"nodesRebootRequired": true}})))));
    }
}
