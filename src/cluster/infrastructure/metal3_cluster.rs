//! Metal3Cluster: what a cluster of bare metal runs on is there as soon as somebody says where its API server is reached.
//!
//! Nothing is made. The object stays until none of its machines is left. Of several in a namespace with one endpoint the first has
//! it: machines of two clusters would answer at one address.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, ListParams};
use kube::runtime::controller::Action;
use kube::{Client, Resource, ResourceExt};
use tokio_util::sync::CancellationToken;

use super::names::FINALIZER_CLUSTER;
use super::waking::{claims, endpoint_of, has};
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::api::cluster::{GROUP, LABEL_CLUSTER};
use crate::api::infrastructure::v1beta2::{
    InfrastructureInitialization, Metal3Cluster, Metal3ClusterStatus, Metal3Machine,
};
use crate::cluster::contract::pause;
use crate::runtime::changes::write_status;
use crate::runtime::conditions::{ConditionVerdict, Severity, find, older, set, set_old, summary, whole};
use crate::runtime::{Cache, Reconcile, Slim, key, objects, owners, run as run_controller};

/// Whether all is there.
const INFRASTRUCTURE: &str = "BaremetalInfrastructureReady";
/// The whole.
const READY: &str = "Ready";

/// After an error.
const RETRY: Duration = Duration::from_secs(2);
/// How often those are looked at that must go first, if nothing is heard of them.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Looks at Metal3Clusters.
pub struct Metal3ClusterReconciler {
    client: Client,
    cache: Cache<Slim<Metal3Cluster>>,
}

/// Machines that are read at once.
const PAGE: u32 = 50;
/// Other Metal3Clusters that are read to find who has an endpoint: what is known of more than one is seldom behind.
const READ: usize = 4;

/// The Cluster of a Metal3Cluster.
#[derive(Clone, Copy, Debug)]
enum OwnerCluster<'a> {
    /// Nobody has said yet which it is.
    Unsaid,
    /// It is not there.
    Gone,
    /// This one.
    Is(&'a Cluster),
}

/// Who has the endpoint of a Metal3Cluster besides it.
enum Holder {
    /// Nobody.
    None,
    /// This one.
    Is(String),
    /// What is known is behind: it is told at once when more is known.
    Unknown,
}

/// What a Metal3Cluster is looked at with.
#[derive(Clone, Copy, Debug)]
struct Metal3ClusterScope<'a> {
    owner: OwnerCluster<'a>,
    /// A machine that must go first, of one that goes.
    left: Option<&'a str>,
    /// Another one that has the endpoint.
    holder: Option<&'a str>,
}

impl Metal3ClusterReconciler {
    /// Nothing is looked at yet.
    pub fn new(client: Client, cache: Cache<Slim<Metal3Cluster>>) -> Self {
        Self { client, cache }
    }

    /// Looks at them until the shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        let cache = self.cache.clone();
        run_controller(Arc::new(self), &cache, stream::empty(), shutdown).await;
    }

    async fn look(&self, object: Metal3Cluster) -> Result<Action, kube::Error> {
        let namespace = object.namespace().unwrap_or_default();
        let reference = owners::of_kind(&object.metadata, GROUP, "Cluster");
        let cluster = match reference {
            Some(owner) => Api::<Cluster>::namespaced(self.client.clone(), &namespace).get_opt(&owner.name).await?,
            None => None,
        };
        let owner = match (&cluster, reference) {
            (Some(cluster), _) => OwnerCluster::Is(cluster),
            (None, Some(_)) => OwnerCluster::Gone,
            (None, None) => OwnerCluster::Unsaid,
        };
        let is_paused = pause::is_paused(cluster.as_ref(), &object);
        let left = match object.metadata.deletion_timestamp {
            Some(_) if !is_paused => self.left(&object).await?,
            _ => None,
        };
        let api = Api::<Metal3Cluster>::namespaced(self.client.clone(), &namespace);
        if object.metadata.deletion_timestamp.is_some() && !is_paused && left.is_none() {
            objects::release(&api, &object, FINALIZER_CLUSTER).await?;
            return Ok(Action::await_change());
        }
        let is_held = objects::is_held(&object, FINALIZER_CLUSTER);
        let held = if !is_held
            && !is_paused
            && matches!(owner, OwnerCluster::Is(_))
            && object.metadata.deletion_timestamp.is_none()
        {
            Some(objects::hold(&api, object.clone(), FINALIZER_CLUSTER).await?)
        } else {
            None
        };
        let holder = match owner {
            OwnerCluster::Is(_) if !is_paused && left.is_none() && !is_provisioned(&object) => {
                match self.holder(&object, &api).await? {
                    Holder::None => None,
                    Holder::Is(name) => Some(name),
                    Holder::Unknown => return Ok(Action::requeue(RETRY)),
                }
            }
            _ => None,
        };
        let now = Timestamp::now();
        let old = object.status.clone().unwrap_or_default();
        let around = Metal3ClusterScope { owner, left: left.as_deref(), holder: holder.as_deref() };
        let mut new = status(&object, around, now);
        if new != old {
            new.last_updated = Some(Time(whole(now)));
            write_status(&api, held.as_ref().unwrap_or(&object), Some(&old), &new).await?;
        }
        let waits = left.is_some() || holder.is_some();
        Ok(if waits { Action::requeue(LOOK_AGAIN) } else { Action::await_change() })
    }

    /// Another Metal3Cluster of the namespace that has the endpoint. Whose it is elsewhere is nobody's business here. Those that may
    /// have it are known by the endpoint; whether one has, it says itself.
    async fn holder(&self, object: &Metal3Cluster, api: &Api<Metal3Cluster>) -> Result<Holder, kube::Error> {
        let Some(endpoint) = endpoint_of(object) else { return Ok(Holder::None) };
        let own = key(object);
        // What came before this version of it is known with it.
        if self.cache.get(&own).and_then(|known| known.resource_version()) != object.resource_version() {
            return Ok(Holder::Unknown);
        }
        let mut read = 0;
        let age = |created: Option<&Time>, name: &str| (created.map(|created| created.0), name.to_owned());
        let own_age = age(object.metadata.creation_timestamp.as_ref(), &own.1);
        for (which, has_it) in [(has(&own.0, &endpoint), true), (claims(&own.0, &endpoint), false)] {
            let mut others = self.cache.walk_mentioning(&which);
            while let Some(known) = others.next().await {
                let name = known.name_any();
                let is_younger = age(known.meta().creation_timestamp.as_ref(), &name) >= own_age;
                if name == own.1 || !has_it && is_younger {
                    continue;
                }
                if read == READ {
                    return Ok(Holder::Unknown);
                }
                read += 1;
                let found = api.get_opt(&name).await?;
                if found.is_some_and(|other| holds_endpoint_of(&other, object)) {
                    return Ok(Holder::Is(name));
                }
            }
        }
        Ok(Holder::None)
    }

    /// A machine that must go before the Metal3Cluster does.
    async fn left(&self, object: &Metal3Cluster) -> Result<Option<String>, kube::Error> {
        let Some(cluster) = cluster_of(object) else { return Ok(None) };
        let params = ListParams::default().labels(&format!("{LABEL_CLUSTER}={cluster}"));
        let namespace = object.namespace().unwrap_or_default();
        let machines = Api::<Machine>::namespaced(self.client.clone(), &namespace);
        // The label may be wrong, and a machine of another cluster would stay.
        let machine = first(&machines, &params, |machine| machine.spec.cluster_name == cluster).await?;
        if let Some(machine) = machine {
            return Ok(Some(format!("Machine {}", machine.name_any())));
        }
        let machines = Api::<Metal3Machine>::namespaced(self.client.clone(), &namespace);
        // Without its Machine, nobody has one go that does not go already.
        let goes = |machine: &Metal3Machine| machine.metadata.deletion_timestamp.is_some();
        Ok(first(&machines, &params, goes).await?.map(|machine| format!("Metal3Machine {}", machine.name_any())))
    }
}

/// The first object that is so, looked for page by page.
async fn first<K>(api: &Api<K>, of: &ListParams, is: impl Fn(&K) -> bool) -> Result<Option<K>, kube::Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut params = of.clone().limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        let found = page.items.into_iter().find(|object| is(object));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if found.is_some() || params.continue_token.is_none() {
            return Ok(found);
        }
    }
}

/// The cluster that a Metal3Cluster is of: the one that owns it, or else the one that its label names.
pub(super) fn cluster_of(object: &Metal3Cluster) -> Option<&str> {
    let owner = owners::of_kind(&object.metadata, GROUP, "Cluster").map(|owner| owner.name.as_str());
    owner.or_else(|| object.labels().get(LABEL_CLUSTER).map(String::as_str))
}

pub(super) fn is_provisioned(object: &Metal3Cluster) -> bool {
    let status = object.status.as_ref();
    status.and_then(|status| status.initialization.as_ref()?.provisioned) == Some(true)
}

/// Whether another one has the endpoint of one that is not provisioned yet: it is provisioned itself, or a Cluster's and older.
fn holds_endpoint_of(other: &Metal3Cluster, object: &Metal3Cluster) -> bool {
    let endpoint = |one: &Metal3Cluster| {
        let endpoint = one.spec.control_plane_endpoint.as_ref()?;
        Some((endpoint.host.to_ascii_lowercase(), endpoint.port))
    };
    let age = |one: &Metal3Cluster| (one.metadata.creation_timestamp.as_ref().map(|created| created.0), one.name_any());
    let is_owned = owners::of_kind(&other.metadata, GROUP, "Cluster").is_some();
    other.metadata.name != object.metadata.name
        && endpoint(other).is_some_and(|its| Some(its) == endpoint(object))
        && (is_provisioned(other) || is_owned && age(other) < age(object))
}

/// What is said of a Metal3Cluster.
fn status(object: &Metal3Cluster, around: Metal3ClusterScope<'_>, now: Timestamp) -> Metal3ClusterStatus {
    let Metal3ClusterScope { owner, left, holder } = around;
    let mut status = object.status.clone().unwrap_or_default();
    let generation = object.metadata.generation;
    let cluster = match owner {
        OwnerCluster::Is(cluster) => Some(cluster),
        OwnerCluster::Unsaid | OwnerCluster::Gone => None,
    };
    set(&mut status.conditions, pause::PAUSED, &pause::verdict(cluster, object), generation, now);
    if pause::is_paused(cluster, object) {
        return status;
    }
    status.failure_domains.clone_from(&object.spec.failure_domains);
    let endpoint = object.spec.control_plane_endpoint.as_ref();
    let is_reachable = endpoint.is_some_and(|endpoint| !endpoint.host.is_empty() && endpoint.port > 0);
    let (verdict, severity) = match (owner, left) {
        (_, Some(left)) => (ConditionVerdict::no("Deleting", format!("{left} must go first")), Severity::Info),
        (OwnerCluster::Unsaid, _) => (
            ConditionVerdict::no("WaitingForClusterOwnerRef", "Waiting for a Cluster to own this object"),
            Severity::Info,
        ),
        (OwnerCluster::Gone, _) => (
            ConditionVerdict::no("FailedToGetOwnerCluster", "The Cluster that owns this object is not there"),
            Severity::Error,
        ),
        (OwnerCluster::Is(_), _) if !is_reachable => {
            let reason = "spec.controlPlaneEndpoint needs a host and a port";
            (ConditionVerdict::no("ControlPlaneEndpointFailed", reason), Severity::Error)
        }
        (OwnerCluster::Is(_), _) => match holder {
            None => (ConditionVerdict::yes("Ready"), Severity::Info),
            Some(holder) => {
                let reason = format!("spec.controlPlaneEndpoint is that of Metal3Cluster {holder} already");
                (ConditionVerdict::no("ControlPlaneEndpointInUse", reason), Severity::Error)
            }
        },
    };
    if matches!(owner, OwnerCluster::Is(_)) && left.is_none() {
        status.initialization =
            Some(InfrastructureInitialization { provisioned: Some(is_reachable && holder.is_none()) });
    }
    set(&mut status.conditions, INFRASTRUCTURE, &verdict, generation, now);
    let ready = find(&status.conditions, INFRASTRUCTURE).map(ConditionVerdict::of);
    let mut ready = summary(&[(INFRASTRUCTURE, ready, true)], ["Ready", "NotReady", "ReadyUnknown"]);
    if left.is_some() {
        ready.reason = "Deleting".to_owned();
    }
    set(&mut status.conditions, READY, &ready, generation, now);
    let old = older(&mut status.deprecated);
    set_old(old, INFRASTRUCTURE, &verdict, severity, now);
    set_old(old, READY, &ready, severity, now);
    if let Some(old) = status.deprecated.as_mut().and_then(|deprecated| deprecated.v1beta1.as_mut()) {
        let fault = verdict.reason == "ControlPlaneEndpointFailed";
        old.failure_reason = fault.then(|| "InvalidConfiguration".to_owned());
        old.failure_message = fault.then(|| "Invalid ControlPlaneEndpoint values".to_owned());
    }
    status
}

impl Reconcile for Metal3ClusterReconciler {
    type Object = Slim<Metal3Cluster>;
    type Error = kube::Error;

    const NAME: &'static str = "metal3cluster";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(300));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, object: Arc<Slim<Metal3Cluster>>) -> Result<Action, kube::Error> {
        let api = Api::<Metal3Cluster>::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
        match api.get_opt(&object.name_any()).await? {
            Some(object) => self.look(object).await,
            None => Ok(Action::await_change()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::runtime::conditions::is_true;

    fn object(change: Value) -> Metal3Cluster {
        let mut object = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3Cluster",
            "metadata": {"name": "m", "namespace": "rack", "generation": 3},
            "spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}, "failureDomains": [{"name": "row-1"}]}});
        json_patch::merge(&mut object, &change);
        serde_json::from_value(object).expect("a Metal3Cluster")
    }

    #[test]
    fn a_cluster_is_provisioned_when_it_has_an_endpoint_and_an_owner() {
        let now = Timestamp::UNIX_EPOCH;
        let cluster = Cluster::new("c", Default::default());
        let unreachable = || object(json!({"spec": {"controlPlaneEndpoint": {"port": 0}}}));
        let around = |owner| Metal3ClusterScope { owner, left: None, holder: None };
        let its = around(OwnerCluster::Is(&cluster));
        let rows: Vec<(Metal3Cluster, Metal3ClusterScope<'_>, Option<bool>, &str)> = vec![
            (object(json!({})), around(OwnerCluster::Unsaid), None, "WaitingForClusterOwnerRef"),
            (object(json!({})), around(OwnerCluster::Gone), None, "FailedToGetOwnerCluster"),
            (object(json!({})), its, Some(true), "Ready"),
            (unreachable(), its, Some(false), "ControlPlaneEndpointFailed"),
            (object(json!({})), Metal3ClusterScope { left: Some("Machine m"), ..its }, None, "Deleting"),
            (
                object(json!({})),
                Metal3ClusterScope { holder: Some("other"), ..its },
                Some(false),
                "ControlPlaneEndpointInUse",
            ),
        ];
        for (object, around, provisioned, reason) in rows {
            let said = status(&object, around, now);
            let initialization = said.initialization.as_ref().and_then(|one| one.provisioned);
            let condition = find(&said.conditions, INFRASTRUCTURE).expect("a condition");
            assert_eq!((initialization, condition.reason.as_str()), (provisioned, reason));
            assert_eq!(is_true(&said.conditions, READY), reason == "Ready", "{reason}");
            assert_eq!(said.failure_domains.len(), 1);
            let old = said.deprecated.clone().and_then(|deprecated| deprecated.v1beta1).expect("an old status");
            assert_eq!(old.failure_reason.is_some(), reason == "ControlPlaneEndpointFailed", "{reason}");
            // Twice is once.
            let again = Metal3Cluster { status: Some(said.clone()), ..object.clone() };
            assert_eq!(status(&again, around, now + jiff::SignedDuration::from_secs(60)), said);
        }
    }

    #[test]
    fn the_first_of_several_has_an_endpoint() {
        let owned = json!([{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": "u"}]);
        let made = |name: &str, second: u32, change: Value| {
            let created = format!("2026-01-01T00:00:0{second}Z");
            let mut base = json!({"metadata": {"name": name, "creationTimestamp": created, "ownerReferences": owned}});
            json_patch::merge(&mut base, &change);
            object(base)
        };
        let provisioned = json!({"status": {"initialization": {"provisioned": true}}});
        let elsewhere = json!({"spec": {"controlPlaneEndpoint": {"port": 7443}}});
        let alone = json!({"metadata": {"ownerReferences": null}});
        let name = json!({"spec": {"controlPlaneEndpoint": {"host": "API.test"}}});
        let same_name = json!({"spec": {"controlPlaneEndpoint": {"host": "api.test"}}});
        let new = made("m", 5, json!({}));
        for (other, object, holds) in [
            (made("old", 1, json!({})), &new, true),
            (made("young", 9, json!({})), &new, false),
            (made("a", 5, json!({})), &new, true),
            (made("z", 5, json!({})), &new, false),
            (made("young", 9, provisioned), &new, true),
            (made("old", 1, alone), &new, false),
            (made("old", 1, elsewhere), &new, false),
            (made("old", 1, name), &made("m", 5, same_name), true),
            (made("m", 1, json!({})), &new, false),
        ] {
            assert_eq!(holds_endpoint_of(&other, object), holds, "{other:?}");
        }
    }

    #[test]
    fn a_paused_cluster_stays_as_it_is() {
        let mut cluster = Cluster::new("c", Default::default());
        cluster.spec.paused = Some(true);
        let around = Metal3ClusterScope { owner: OwnerCluster::Is(&cluster), left: None, holder: None };
        let said = status(&object(json!({})), around, Timestamp::UNIX_EPOCH);
        assert!(is_true(&said.conditions, pause::PAUSED));
        assert_eq!((said.initialization, said.conditions.len()), (None, 1));
    }
}
