//! Metal3Remediation: a machine that is not well is switched off, its node taken out of service, and switched on again.
//!
//! What is next is decided in [`decide`]; here it is looked, and done. Each step may be done twice.

mod decide;
mod node;

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::info;

use self::decide::{
    Act, DELETING, FAILED, RUNNING, RemediatedNode, RemediationFacts, WAITING, decide, power_off_annotation,
};
use super::names::{COMPONENT, FINALIZER_REMEDIATION};
use crate::api::cluster::GROUP;
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::api::infrastructure::remediation::v1beta2::{Metal3Remediation, Metal3RemediationStatus};
use crate::api::infrastructure::v1beta2::Metal3Machine;
use crate::api::metal3::BareMetalHost;
use crate::cluster::contract::pause;
use crate::cluster::hosts::names::{ANNOTATION_HOST, ANNOTATION_UNHEALTHY};
use crate::cluster::hosts::{MachineId, MachineKind};
use crate::cluster::workload::{Workload, WorkloadError, Workloads};
use crate::log::named;
use crate::runtime::conditions::{ConditionVerdict, Severity, older, set, set_old, whole};
use crate::runtime::{Cache, Conflict, Note, Reconcile, Slim, changes, events, objects, owners, run as run_controller};

/// After an error.
const RETRY: Duration = Duration::from_secs(5);
/// How often a machine is looked at meanwhile.
pub const PAUSE: Duration = Duration::from_secs(10);
/// Condition of a machine that its owner is to replace.
const OWNER_REMEDIATED: &str = "OwnerRemediated";

/// Looks at Metal3Remediations.
pub struct Remediations {
    client: Client,
    workloads: Workloads,
    pause: Duration,
}

/// Why one could not be looked at to the end.
#[derive(Debug, thiserror::Error)]
pub enum RemediationError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The machine's cluster.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

impl Conflict for RemediationError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            // Of the machine's own cluster, whose nodes are looked at again.
            Self::Workload(_) => false,
        }
    }
}

/// What a remediation is about.
#[derive(Default)]
struct RemediationScope {
    machine: Option<Machine>,
    host: Option<BareMetalHost>,
    workload: Option<Workload>,
    node: NodeLookup,
}

/// What became of looking for the node.
#[derive(Default)]
enum NodeLookup {
    #[default]
    Absent,
    There(Box<Node>, bool),
    Forbidden,
    Unknown,
}

impl Remediations {
    /// Nothing is looked at yet.
    pub fn new(client: Client, workloads: Workloads, pause: Duration) -> Self {
        Self { client, workloads, pause }
    }

    /// Looks at them until the shutdown.
    pub async fn run(self, cache: Cache<Slim<Metal3Remediation>>, shutdown: CancellationToken) {
        run_controller(Arc::new(self), &cache, stream::empty(), shutdown).await;
    }

    async fn look(&self, remediation: Metal3Remediation) -> Result<Action, RemediationError> {
        let Some(subject) = self.subject(&remediation).await? else { return Ok(Action::requeue(self.pause)) };
        let node = match &subject.node {
            NodeLookup::Absent => RemediatedNode::Absent,
            NodeLookup::There(node, is_drained) => RemediatedNode::There { node, is_drained: *is_drained },
            NodeLookup::Forbidden => RemediatedNode::Forbidden,
            NodeLookup::Unknown => RemediatedNode::Unknown,
        };
        let now = whole(Timestamp::now());
        let act = decide(&RemediationFacts { remediation: &remediation, host: subject.host.as_ref(), node, now });
        self.act(act, &remediation, &subject, now).await?;
        Ok(match act {
            Act::Rest | Act::Finish if remediation.metadata.deletion_timestamp.is_some() => Action::await_change(),
            Act::Rest | Act::Fail(_) | Act::GiveUp(_) => Action::await_change(),
            Act::Await(_) => Action::requeue(self.pause),
            // What was done is seen by the watch; what is of the cluster is not.
            _ => Action::requeue(self.pause.min(Duration::from_secs(1))),
        })
    }

    /// What the remediation is about; none while nothing is to be done about it.
    async fn subject(&self, remediation: &Metal3Remediation) -> Result<Option<RemediationScope>, RemediationError> {
        let namespace = remediation.namespace().unwrap_or_default();
        let Some(owner) = owners::of_kind(&remediation.metadata, GROUP, "Machine") else {
            // Nobody said yet whose it is.
            return Ok(remediation.metadata.deletion_timestamp.is_some().then(RemediationScope::default));
        };
        let machines = Api::<Machine>::namespaced(self.client.clone(), &namespace);
        let Some(machine) = machines.get_opt(&owner.name).await? else { return Ok(Some(RemediationScope::default())) };
        let clusters = Api::<Cluster>::namespaced(self.client.clone(), &namespace);
        let cluster = clusters.get_opt(&machine.spec.cluster_name).await?;
        if pause::is_paused(cluster.as_ref(), remediation) {
            return Ok(None);
        }
        let host = self.host(&machine, &namespace).await?;
        let phase = remediation.status.as_ref().and_then(|status| status.phase.as_deref());
        let is_under_way =
            matches!(phase, Some(RUNNING | WAITING)) || remediation.metadata.deletion_timestamp.is_some();
        let named = machine.status.as_ref().and_then(|status| status.node_ref.as_ref()).map(|node| node.name.clone());
        let (workload, node) = match named.filter(|_| is_under_way) {
            Some(name) => self.node(&machine, &namespace, &name).await,
            None => (None, NodeLookup::Absent),
        };
        Ok(Some(RemediationScope { machine: Some(machine), host, workload, node }))
    }

    /// The machine's host, if it is the machine's.
    async fn host(&self, machine: &Machine, namespace: &str) -> Result<Option<BareMetalHost>, RemediationError> {
        let reference = &machine.spec.infrastructure_ref;
        if reference.kind != MachineKind::Metal3.kind() {
            return Ok(None);
        }
        let machines = Api::<Metal3Machine>::namespaced(self.client.clone(), namespace);
        let Some(metal3) = machines.get_opt(&reference.name).await? else { return Ok(None) };
        let noted = metal3.annotations().get(ANNOTATION_HOST);
        let Some(name) = noted.and_then(|noted| noted.rsplit('/').next()).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let host = Api::<BareMetalHost>::namespaced(self.client.clone(), namespace).get_opt(name).await?;
        let metal3 = MachineId::of(MachineKind::Metal3, &metal3);
        Ok(host.filter(|host| metal3.has(host)))
    }

    async fn node(&self, machine: &Machine, namespace: &str, name: &str) -> (Option<Workload>, NodeLookup) {
        let workload = match self.workloads.get(&self.client, namespace, &machine.spec.cluster_name).await {
            Ok(workload) => workload,
            Err(_) => return (None, NodeLookup::Unknown),
        };
        let looked = match workload.node(name).await {
            Ok(Some(node)) => {
                let is_drained = node::is_drained(workload.client(), &node).await.unwrap_or(false);
                NodeLookup::There(Box::new(node), is_drained)
            }
            Ok(None) => NodeLookup::Absent,
            Err(WorkloadError::Api(kube::Error::Api(error))) if error.is_forbidden() => NodeLookup::Forbidden,
            Err(_) => NodeLookup::Unknown,
        };
        (Some(workload), looked)
    }

    async fn act(
        &self,
        act: Act,
        remediation: &Metal3Remediation,
        on: &RemediationScope,
        now: Timestamp,
    ) -> Result<(), RemediationError> {
        let status = remediation.status.clone().unwrap_or_default();
        let off = power_off_annotation(remediation);
        match act {
            Act::Rest | Act::Await(_) => Ok(()),
            Act::Begin => {
                self.tell(remediation, "RemediationStarted", "The machine is rebooted".into(), false).await;
                let last_remediated = Some(Time(now));
                self.status(remediation, Metal3RemediationStatus { phase: phase(RUNNING), last_remediated, ..status })
                    .await
            }
            Act::Fail(reason) => {
                self.tell(remediation, "RemediationFailed", reason.into(), true).await;
                self.status(remediation, Metal3RemediationStatus { phase: phase(FAILED), ..status }).await
            }
            Act::Hold => {
                let held = objects::hold(&self.api(remediation), remediation.clone(), FINALIZER_REMEDIATION).await;
                Ok(changes::unless_gone(held).map(drop)?)
            }
            Act::PowerOff => self.annotate(on, &off, json!("{\"mode\":\"hard\"}")).await,
            Act::PowerOn => self.annotate(on, &off, Value::Null).await,
            Act::Wait => self.status(remediation, Metal3RemediationStatus { phase: phase(WAITING), ..status }).await,
            Act::Retry => {
                self.tell(
                    remediation,
                    "RemediationRetried",
                    "The machine is not well: it is rebooted again".into(),
                    true,
                )
                .await;
                let retry_count = Some(status.retry_count.unwrap_or_default().saturating_add(1));
                let last_remediated = Some(Time(now));
                let status = Metal3RemediationStatus { phase: phase(RUNNING), last_remediated, retry_count };
                self.status(remediation, status).await
            }
            Act::GiveUp(reason) => {
                self.tell(
                    remediation,
                    "RemediationGivenUp",
                    format!("The machine is left to its owner: {reason}"),
                    true,
                )
                .await;
                // Before its owner is told, who takes the machine away: afterwards nobody knows any more which host it had.
                if on.host.is_some() {
                    self.annotate(on, ANNOTATION_UNHEALTHY, json!("capm3/UnhealthyNode")).await?;
                }
                self.leave_to_owner(on, reason, now).await?;
                self.status(remediation, Metal3RemediationStatus { phase: phase(DELETING), ..status }).await
            }
            Act::Finish => {
                let kept = objects::without(remediation, FINALIZER_REMEDIATION).unwrap_or_default();
                let annotations = json!({ decide::LABELS_BACKUP: null, decide::ANNOTATIONS_BACKUP: null });
                self.metadata(remediation, json!({ "finalizers": kept, "annotations": annotations })).await
            }
            Act::BackUp => match &on.node {
                NodeLookup::There(node, _) => {
                    self.metadata(remediation, json!({ "annotations": node::backup(node) })).await
                }
                _ => Ok(()),
            },
            Act::Restore => {
                self.on_node(on, async |client, found| node::restore(client, found, remediation).await).await?;
                let annotations = json!({ decide::LABELS_BACKUP: null, decide::ANNOTATIONS_BACKUP: null });
                self.metadata(remediation, json!({ "annotations": annotations })).await
            }
            Act::Taint => self.on_node(on, async |client, found| node::taint(client, found, now).await).await,
            Act::Untaint => self.on_node(on, async |client, found| node::untaint(client, found).await).await,
            Act::DeleteNode => self.on_node(on, async |client, found| node::delete(client, found).await).await,
        }
    }

    async fn on_node(
        &self,
        on: &RemediationScope,
        work: impl AsyncFnOnce(&Client, &Node) -> Result<(), kube::Error>,
    ) -> Result<(), RemediationError> {
        let (Some(workload), NodeLookup::There(node, _)) = (&on.workload, &on.node) else { return Ok(()) };
        let done = work(workload.client(), node).await;
        workload.node_changed().await;
        Ok(done.map_err(WorkloadError::from)?)
    }

    async fn annotate(&self, on: &RemediationScope, key: &str, value: Value) -> Result<(), RemediationError> {
        let Some(host) = &on.host else { return Ok(()) };
        let api = Api::<BareMetalHost>::namespaced(self.client.clone(), &host.namespace().unwrap_or_default());
        changes::change(&api, host, json!({ "metadata": { "annotations": { key: value } } })).await?;
        info!(host = %named(&host.namespace().unwrap_or_default(), &host.name_any()), annotation = key, "a remediation changed a host");
        Ok(())
    }

    /// The machine's owner replaces it.
    async fn leave_to_owner(
        &self,
        on: &RemediationScope,
        reason: &str,
        now: Timestamp,
    ) -> Result<(), RemediationError> {
        let Some(machine) = &on.machine else { return Ok(()) };
        let before = machine.status.clone().unwrap_or_default();
        let mut status = before.clone();
        let verdict =
            ConditionVerdict::no("WaitingForRemediation", format!("Metal3 could not bring the machine back: {reason}"));
        set(&mut status.conditions, OWNER_REMEDIATED, &verdict, machine.metadata.generation, now);
        set_old(older(&mut status.deprecated), OWNER_REMEDIATED, &verdict, Severity::Warning, now);
        let api = Api::<Machine>::namespaced(self.client.clone(), &machine.namespace().unwrap_or_default());
        changes::write_status(&api, machine, Some(&before), &status).await?;
        Ok(())
    }

    async fn metadata(&self, remediation: &Metal3Remediation, metadata: Value) -> Result<(), RemediationError> {
        let changed = changes::change(&self.api(remediation), remediation, json!({ "metadata": metadata })).await;
        Ok(changes::unless_gone(changed).map(drop)?)
    }

    async fn status(
        &self,
        remediation: &Metal3Remediation,
        status: Metal3RemediationStatus,
    ) -> Result<(), RemediationError> {
        changes::write_status(&self.api(remediation), remediation, remediation.status.as_ref(), &status).await?;
        Ok(())
    }

    fn api(&self, remediation: &Metal3Remediation) -> Api<Metal3Remediation> {
        Api::namespaced(self.client.clone(), &remediation.namespace().unwrap_or_default())
    }

    async fn tell(&self, remediation: &Metal3Remediation, reason: &'static str, message: String, warning: bool) {
        events::tell(&self.client, COMPONENT, remediation, &Note { reason, message, warning }).await;
    }
}

fn phase(phase: &str) -> Option<String> {
    Some(phase.to_owned())
}

impl Reconcile for Remediations {
    type Object = Slim<Metal3Remediation>;
    type Error = RemediationError;

    const NAME: &'static str = "metal3remediation";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(300));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, remediation: Arc<Slim<Metal3Remediation>>) -> Result<Action, RemediationError> {
        let namespace = remediation.namespace().unwrap_or_default();
        let api = Api::<Metal3Remediation>::namespaced(self.client.clone(), &namespace);
        match api.get_opt(&remediation.name_any()).await? {
            Some(remediation) => self.look(remediation).await,
            None => Ok(Action::await_change()),
        }
    }
}
