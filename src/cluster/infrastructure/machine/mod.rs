//! Metal3Machine: takes a host, has it run what the machine should run, and lets it go again.
//!
//! A machine waits until its cluster has what it runs on, and its user data is there. Then a host is chosen
//! ([`choose`](crate::cluster::hosts::choose)) and noted in the machine before it is taken, so that whatever happens in between no
//! machine ever has two. It is taken by writing into the very version of the host that was judged: of many that try, one has it.
//! What it is to run is written once. When the host runs it, the machine's node is looked for in the cluster, and the machine has
//! its identity from then on.
//!
//! A machine that goes has its host deprovisioned, and lets it go when that is done. What it claimed of addresses is let go after
//! that, for until then the host may use them.

mod credentials;
mod data;
mod draft;
mod identity;
mod labels;
mod node;
mod release;
mod take;
mod template;
mod view;
mod wait;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Client, Resource, ResourceExt};
use tokio_util::sync::CancellationToken;
use tracing::debug;

pub use labels::ANNOTATION_PREFIXES;
pub use view::{MachineView, made_from, of_cluster};

use self::data::DataProgress;
use self::draft::{ASSOCIATED, DATA, HOST, Metal3MachineDraft, NODE};
use self::identity::NodeMarks;
use self::node::{NodeIdentitySource, NodeMatch};
use self::take::TakeOutcome;
use self::wait::MachineWait;
use super::names::COMPONENT;
use crate::api::cluster::AddressType;
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::api::infrastructure::v1beta2::{Metal3Cluster, Metal3Machine, Metal3MachineTemplate, Metal3Reference};
use crate::api::metal3::{BareMetalHost, ProvisioningState, SecretReference};
use crate::cluster::contract::pause;
use crate::cluster::hosts::{HostPool, HostTaker, MachineId, MachineKind, TakeError, addresses, change, patches};
use crate::cluster::workload::Workloads;
use crate::runtime::conditions::{ConditionVerdict, Severity};
use crate::runtime::{Cache, Conflict, Note, Reconcile, events, owners, run as run_controller};

/// After an error.
const RETRY: Duration = Duration::from_secs(2);
/// Letters of a host's error that are repeated.
const SHOWN: usize = 1000;

/// How soon a node is looked for again, of a machine that starts just now.
const NODE_SOON: Duration = Duration::from_secs(1);
/// It is looked for after such a part of the time that the machine has been starting.
const NODE_PART: u32 = 4;

/// How often what cannot be watched is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// The nodes of a cluster, at most.
    pub node: Duration,
    /// Secrets that are not there yet.
    pub data: Duration,
}

/// As it is outside of tests.
pub const PAUSES: Pauses = Pauses { node: Duration::from_secs(15), data: Duration::from_secs(10) };

/// Why a machine could not be looked at to the end.
#[derive(Debug, thiserror::Error)]
pub enum Metal3MachineError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// Something is not any more what it was when it was chosen.
    #[error("the host that was chosen is another's meanwhile")]
    Meanwhile,
}

impl Conflict for Metal3MachineError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Meanwhile => true,
        }
    }
}

impl From<TakeError> for Metal3MachineError {
    fn from(error: TakeError) -> Self {
        match error {
            TakeError::Api(error) => Self::Api(error),
            TakeError::Meanwhile => Self::Meanwhile,
        }
    }
}

/// Looks at Metal3Machines.
pub struct Metal3MachineReconciler {
    client: Client,
    hosts: HostPool,
    workloads: Workloads,
    pauses: Pauses,
}

/// What a machine that stays is looked at with.
struct Metal3MachineScope<'a> {
    owner: &'a Machine,
    cluster: &'a Cluster,
    metal3_cluster: &'a Metal3Cluster,
    template: Option<&'a Metal3MachineTemplate>,
}

impl Metal3MachineReconciler {
    /// Nothing is looked at yet.
    pub fn new(client: Client, hosts: HostPool, workloads: Workloads, pauses: Pauses) -> Self {
        Self { client, hosts, workloads, pauses }
    }

    /// Looks at machines until the shutdown.
    pub async fn run(self, cache: Cache<MachineView>, shutdown: CancellationToken) {
        run_controller(Arc::new(self), &cache, stream::empty(), shutdown).await;
    }

    async fn look(&self, machine: Metal3Machine) -> Result<Action, Metal3MachineError> {
        let mut draft = Metal3MachineDraft::new(machine, Timestamp::now());
        let looked = match self.advance(&mut draft).await {
            // It is gone.
            Ok(None) => return Ok(Action::await_change()),
            Ok(Some(action)) => Ok(action),
            Err(error) => Err(error),
        };
        // What was found out until then is said even so.
        draft.store(&self.client).await?;
        looked
    }

    /// One step further. None when the machine is gone.
    async fn advance(&self, draft: &mut Metal3MachineDraft) -> Result<Option<Action>, Metal3MachineError> {
        let namespace = draft.new.namespace().unwrap_or_default();
        let owner = self.owner(&draft.new).await?;
        let cluster = match &owner {
            Some(owner) => self.get::<Cluster>(&namespace, &owner.spec.cluster_name).await?,
            None => None,
        };
        if self.paused(draft, cluster.as_ref()).await? {
            return Ok(Some(Action::await_change()));
        }
        if draft.is_deleted() {
            return self.release(draft, owner.as_ref(), cluster.as_ref()).await;
        }
        let Some(owner) = owner else {
            wait(draft, &MachineWait::Machine);
            return Ok(Some(Action::await_change()));
        };
        draft.new.spec.failure_domain.clone_from(&owner.spec.failure_domain);
        let infrastructure = cluster.as_ref().and_then(|cluster| cluster.spec.infrastructure_ref.as_ref());
        let metal3_cluster = match infrastructure {
            Some(reference) if reference.kind == "Metal3Cluster" => {
                self.get::<Metal3Cluster>(&namespace, &reference.name).await?
            }
            _ => None,
        };
        let user_data = wait::user_data(&draft.new, &owner, cluster.as_ref(), metal3_cluster.as_ref());
        let (Some(cluster), Some(metal3_cluster), Ok(user_data)) = (&cluster, &metal3_cluster, &user_data) else {
            // A machine that runs is not taken back for that.
            if let Err(waiting) = &user_data
                && !draft.is_provisioned()
            {
                wait(draft, waiting);
            }
            return Ok(Some(Action::await_change()));
        };
        let template = template::of(&self.client, &draft.new).await?;
        if let Some(mode) = template.as_ref().and_then(|template| template.spec.template.spec.automated_cleaning_mode) {
            draft.new.spec.automated_cleaning_mode = Some(mode);
        }
        draft.hold(&self.client, draft.host().as_deref()).await?;
        let around = Metal3MachineScope { owner: &owner, cluster, metal3_cluster, template: template.as_ref() };
        self.normal(draft, &around, user_data).await.map(Some)
    }

    async fn normal(
        &self,
        draft: &mut Metal3MachineDraft,
        around: &Metal3MachineScope<'_>,
        user_data: &SecretReference,
    ) -> Result<Action, Metal3MachineError> {
        if !draft.is_provisioned() && !self.is_there(&draft.new, user_data).await? {
            wait(draft, &MachineWait::Secret(user_data.name.clone().unwrap_or_default()));
            return Ok(Action::requeue(self.pauses.data));
        }
        let found = match self.take(draft, around).await? {
            TakeOutcome::Host(found) => *found,
            TakeOutcome::None(pause) => return Ok(Action::requeue(pause)),
        };
        draft.status().addresses = addresses::addresses(&found);
        draft.status().user_data.get_or_insert_with(|| user_data.clone());
        if !self.data(draft).await? {
            return Ok(Action::requeue(self.pauses.data));
        }
        // What the host is told is noted first: whoever lets it go takes back what is noted.
        draft.store(&self.client).await?;
        if patches::runs_nothing(&found) {
            self.clear_nodes(&draft.new, around.cluster, &found).await;
        }
        let found = match self.deploy(draft, found).await {
            // What a host may run is judged where it is told so.
            Err(Metal3MachineError::Api(kube::Error::Api(refused))) if refused.code == 422 => {
                let reason = format!("the host refuses what it is to run: {}", refused.message);
                draft.say(HOST, &ConditionVerdict::no("ProvisioningError", reason), Severity::Error);
                return Ok(Action::await_change());
            }
            deployed => deployed?,
        };
        if !is_running(draft, &found) {
            return Ok(Action::await_change());
        }
        self.identify(draft, around, &found).await
    }

    /// Has the data that the host gets. False while it is not there.
    async fn data(&self, draft: &mut Metal3MachineDraft) -> Result<bool, Metal3MachineError> {
        let own = wait::own(&draft.new, "metaData", draft.new.spec.meta_data.as_ref()).and_then(|meta_data| {
            Ok((meta_data, wait::own(&draft.new, "networkData", draft.new.spec.network_data.as_ref())?))
        });
        let (meta_data, network_data) = match own {
            Ok(own) => own,
            Err(waiting) => {
                let (verdict, old, severity) = waiting.verdicts();
                draft.say_both(DATA, &verdict, &old, severity);
                return Ok(false);
            }
        };
        let rendered = match data::obtain(&self.client, &draft.new).await? {
            DataProgress::Unwanted => {
                draft.say(DATA, &ConditionVerdict::yes("SecretsSetExternally"), Severity::Info);
                None
            }
            // What was there once is not waited for again.
            DataProgress::Wait(_) if draft.status().rendered_data.is_some() => None,
            // What becomes of it wakes the machine.
            DataProgress::Wait(reason) => {
                draft.say(DATA, &ConditionVerdict::no("WaitingForMetal3Data", reason), Severity::Info);
                return Ok(false);
            }
            DataProgress::Ready(rendered) => {
                draft.say(DATA, &ConditionVerdict::yes("Metal3DataSecretsReady"), Severity::Info);
                Some(rendered)
            }
        };
        let namespace = draft.new.namespace();
        let status = draft.status();
        if let Some(rendered) = rendered {
            status.rendered_data = Some(Metal3Reference { name: rendered.name, namespace });
            status.meta_data = status.meta_data.take().or(rendered.meta_data);
            status.network_data = status.network_data.take().or(rendered.network_data);
        }
        status.meta_data = meta_data.or(status.meta_data.take());
        status.network_data = network_data.or(status.network_data.take());
        Ok(true)
    }

    /// Tells the host what to run.
    async fn deploy(
        &self,
        draft: &Metal3MachineDraft,
        found: BareMetalHost,
    ) -> Result<BareMetalHost, Metal3MachineError> {
        let status = draft.new.status.clone().unwrap_or_default();
        let spec = &draft.new.spec;
        let patch = match &status.user_data {
            Some(user_data) if !draft.is_provisioned() => patches::deploy(
                &found,
                &draft.id(),
                spec.automated_cleaning_mode,
                patches::HostSpecPatch {
                    image: spec.image.as_ref(),
                    custom_deploy: spec.custom_deploy.as_ref(),
                    user_data: Some(user_data),
                    meta_data: status.meta_data.as_ref(),
                    network_data: status.network_data.as_ref(),
                },
            ),
            _ => patches::maintain(&found, spec.automated_cleaning_mode),
        };
        match patch {
            None => Ok(found),
            Some(patch) => Ok(change(&self.client, &found, patch).await?),
        }
    }

    /// Deletes what machines that had the host before left in the cluster. One that does not answer holds nobody up: what is left is
    /// looked for again when the machine's node is.
    async fn clear_nodes(&self, machine: &Metal3Machine, cluster: &Cluster, found: &BareMetalHost) {
        let done = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
        if done.and_then(|done| done.control_plane_initialized) != Some(true) {
            return;
        }
        let (namespace, machine, host) = (found.namespace().unwrap_or_default(), machine.name_any(), found.name_any());
        let host_uid = found.uid().unwrap_or_default();
        let marks = NodeMarks { namespace: &namespace, host: &host, host_uid: &host_uid, machine: &machine };
        if let Err(error) = node::clear(&self.workloads, &self.client, &cluster.name_any(), &marks).await {
            debug!(host, %error, "cannot look for nodes that were left behind");
        }
    }

    /// Which node the machine is.
    async fn identify(
        &self,
        draft: &mut Metal3MachineDraft,
        around: &Metal3MachineScope<'_>,
        found: &BareMetalHost,
    ) -> Result<Action, Metal3MachineError> {
        let has_node = around.owner.status.as_ref().is_some_and(|status| status.node_ref.is_some());
        let is_known = draft.is_provisioned() && draft.new.spec.provider_id.is_some();
        let is_settled = draft.verdict(NODE).is_some_and(|verdict| verdict.is_true());
        if is_known && (has_node || is_settled) {
            draft.say(NODE, &ConditionVerdict::yes("AssociateMetal3MachineMetaDataSuccess"), Severity::Info);
            return Ok(self.label(around, found).await);
        }
        let (namespace, machine, host) =
            (found.namespace().unwrap_or_default(), draft.new.name_any(), found.name_any());
        let host_uid = found.uid().unwrap_or_default();
        let marks = NodeMarks { namespace: &namespace, host: &host, host_uid: &host_uid, machine: &machine };
        let source = if around.metal3_cluster.spec.cloud_provider_enabled == Some(true) {
            NodeIdentitySource::Provider
        } else if around.owner.spec.bootstrap.config_ref.is_some() {
            NodeIdentitySource::Label
        } else {
            NodeIdentitySource::Name
        };
        if source == NodeIdentitySource::Name && !is_known {
            // Nobody told its kubelet: it may never have a node, and is there all the same.
            draft.provisioned(marks.provider_id());
        }
        let all = draft.new.status.clone().unwrap_or_default().addresses;
        let names = all.iter().filter(|one| one.type_ == AddressType::Hostname).map(|one| one.address.as_str());
        let names: BTreeSet<&str> = names.collect();
        let cluster = around.cluster.name_any();
        match node::find(&self.workloads, &self.client, &cluster, &marks, (source, &names)).await {
            Ok(NodeMatch::Is(provider_id)) => {
                draft.provisioned(provider_id);
                draft.say(NODE, &ConditionVerdict::yes("AssociateMetal3MachineMetaDataSuccess"), Severity::Info);
                Ok(Action::await_change())
            }
            Ok(NodeMatch::Not(reason)) => {
                draft.say(NODE, &ConditionVerdict::no("SettingProviderIDOnNodeFailed", reason), Severity::Info);
                Ok(Action::requeue(next_look(draft.starting(), self.pauses.node)))
            }
            Err(error) => {
                let reason = format!("Waiting for the machine's node: {error}");
                draft.say(NODE, &ConditionVerdict::no("SettingProviderIDOnNodeFailed", reason), Severity::Warning);
                Ok(Action::requeue(next_look(draft.starting(), self.pauses.node)))
            }
        }
    }

    /// Gives the machine's node the labels of its host, where the cluster wants that. A cluster that does not answer is asked
    /// again.
    async fn label(&self, around: &Metal3MachineScope<'_>, found: &BareMetalHost) -> Action {
        let prefixes = around.metal3_cluster.annotations().get(labels::ANNOTATION_PREFIXES);
        let node = around.owner.status.as_ref().and_then(|status| status.node_ref.as_ref());
        let (Some(prefixes), Some(node)) = (prefixes, node) else { return Action::await_change() };
        let on = (around.cluster.name_any(), node.name.as_str());
        let synced = labels::sync(&self.workloads, &self.client, (&on.0, on.1), prefixes, found).await;
        if let Err(error) = synced {
            debug!(node = on.1, %error, "cannot give a node the labels of its host yet");
        }
        Action::requeue(labels::PAUSE)
    }

    /// Whether nothing is to be done about the machine. Its host is paused and unpaused with the cluster.
    async fn paused(
        &self,
        draft: &mut Metal3MachineDraft,
        cluster: Option<&Cluster>,
    ) -> Result<bool, Metal3MachineError> {
        let by_cluster = cluster.is_some_and(|cluster| cluster.spec.paused == Some(true));
        if let Some(name) = draft.host().filter(|_| cluster.is_some())
            && let Some(found) = self.hosts_of(&draft.new).get_opt(&name).await?
            && draft.id().has(&found)
            && let Some(patch) = patches::pause(&found, by_cluster)
        {
            change(&self.client, &found, patch).await?;
        }
        draft.say_paused(&pause::verdict(cluster, &draft.new));
        Ok(pause::is_paused(cluster, &draft.new))
    }

    /// The Machine that the machine is for.
    async fn owner(&self, machine: &Metal3Machine) -> Result<Option<Machine>, Metal3MachineError> {
        let owner = owners::of_kind(&machine.metadata, crate::api::cluster::GROUP, "Machine");
        let Some(owner) = owner else { return Ok(None) };
        self.get::<Machine>(&machine.namespace().unwrap_or_default(), &owner.name).await
    }

    async fn is_there(&self, machine: &Metal3Machine, secret: &SecretReference) -> Result<bool, Metal3MachineError> {
        let name = secret.name.as_deref().unwrap_or_default();
        Ok(self.get::<Secret>(&machine.namespace().unwrap_or_default(), name).await?.is_some())
    }

    async fn get<K>(&self, namespace: &str, name: &str) -> Result<Option<K>, Metal3MachineError>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        if name.is_empty() {
            return Ok(None);
        }
        Ok(Api::<K>::namespaced(self.client.clone(), namespace).get_opt(name).await?)
    }

    async fn tell(&self, machine: &Metal3Machine, note: &Note) {
        events::tell(&self.client, COMPONENT, machine, note).await;
    }
}

/// After which time the node is looked for again of a machine that has been starting for so long, with the longest pause. What comes
/// within seconds is seen within seconds, and one that takes minutes is not asked for every second.
fn next_look(starting: Option<Duration>, pause: Duration) -> Duration {
    starting.map_or(pause, |starting| (starting / NODE_PART).max(NODE_SOON)).min(pause)
}

fn wait(draft: &mut Metal3MachineDraft, waiting: &MachineWait) {
    let (verdict, old, severity) = waiting.verdicts();
    draft.say_both(ASSOCIATED, &verdict, &old, severity);
}

/// Whether the host runs what it should; the condition says so, or what it is about, and what went wrong.
fn is_running(draft: &mut Metal3MachineDraft, found: &BareMetalHost) -> bool {
    let status = found.status.clone().unwrap_or_default();
    let (name, state) = (found.name_any(), status.provisioning.state);
    if matches!(state, ProvisioningState::Provisioned | ProvisioningState::ExternallyProvisioned) {
        draft.say(HOST, &ConditionVerdict::yes("Provisioned"), Severity::Info);
        return true;
    }
    let verdict = if status.error_message.is_empty() {
        ConditionVerdict::no("Provisioning", format!("BareMetalHost {name} is {}", state.as_str()))
    } else {
        let error: String = status.error_message.chars().take(SHOWN).collect();
        ConditionVerdict::no("ProvisioningError", format!("BareMetalHost {name} is {}: {error}", state.as_str()))
    };
    let severity = if status.error_message.is_empty() { Severity::Info } else { Severity::Error };
    draft.say(HOST, &verdict, severity);
    // What ran once is not taken back.
    draft.is_provisioned()
}

impl Reconcile for Metal3MachineReconciler {
    type Object = MachineView;
    type Error = Metal3MachineError;

    const NAME: &'static str = "metal3machine";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(300));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, machine: Arc<MachineView>) -> Result<Action, Metal3MachineError> {
        let namespace = machine.namespace().unwrap_or_default();
        match self.get::<Metal3Machine>(&namespace, &machine.name_any()).await? {
            Some(machine) => self.look(machine).await,
            None => Ok(Action::await_change()),
        }
    }

    fn gone(self: Arc<Self>, namespace: &str, name: &str) {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.hosts.forget(&MachineId { kind: MachineKind::Metal3, namespace, name });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_looked_for_the_seldomer_the_longer_its_machine_starts() {
        let seconds = Duration::from_secs;
        for (starting, wanted) in [(Some(0), 1), (Some(4), 1), (Some(20), 5), (Some(3600), 15), (None, 15)] {
            assert_eq!(next_look(starting.map(seconds), PAUSES.node), seconds(wanted), "{starting:?}");
        }
        assert_eq!(next_look(Some(seconds(3600)), Duration::from_millis(50)), Duration::from_millis(50));
    }
}
