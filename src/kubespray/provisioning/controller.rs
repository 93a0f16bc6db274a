//! Looks at Provisionings: gives their nodes hosts, makes the inventory when all of them can be reached, and runs kubespray with it.
//!
//! Hosts are taken all at once or not at all, so that no two objects wait for each other's: those of one namespace are looked at one
//! after the other, and what was chosen is read again before any of it is taken. Each host is taken in the very version that was
//! judged.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::{Client, Resource, ResourceExt};
use tracing::{info, warn};

use super::claim;
use super::cluster_inventory::cluster_inventory;
use super::installer::Installer;
use super::known_hosts::InstallationIds;
use super::made::{self, MadeError};
use super::next::{SUCCEEDED, Standing};
use super::opening;
use super::progress::{self, ClusterSummary, ProvisioningPhase};
use super::rack::RackHost;
use super::running::{Going, RunStart, is_ready, marks_of};
use super::seats::{NodeSeat, seats};
use super::wanted::{self, WantedCluster, WantedNode};
use crate::ansible::Inventory;
use crate::api::bpa::{Provisioning, ProvisioningStatus};
use crate::api::metal3::{BareMetalHost, HostImage};
use crate::cluster::workload::Workloads;
use crate::kubespray::runs::RunsError;
use crate::log::named;
use crate::runtime::{Conflict, Note, ObjectKey, Reconcile, Slim, events, key, objects};

/// Holds a Provisioning until its hosts are let go.
const FINALIZER: &str = "provisioning.bpa.akraino.org";
/// Who tells events.
const COMPONENT: &str = "slipway-kubespray";
/// After an error.
const RETRY: Duration = Duration::from_secs(2);
/// Between two looks at a run that is under way.
const FOLLOW: Duration = Duration::from_secs(5);
/// Between two looks at a run that is to end.
const ENDING: Duration = Duration::from_secs(1);
/// Between two asks whether it is a run's turn.
const TURN: Duration = Duration::from_secs(10);
/// Least time between two writes of a status that say nothing decisive: what tasks are under way, and what others' hosts lack.
const QUIET: Duration = Duration::from_secs(10);
/// Whoever waits is told of changes of hosts; this is for what nobody tells.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Why an object could not be looked at to the end.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// Something is not any more what it was when it was chosen.
    #[error("a host that was chosen has changed meanwhile")]
    Meanwhile,
    /// A host may not run what it was to.
    #[error("BareMetalHost {host} refuses what it is to run: {reason}")]
    Refused {
        /// The host.
        host: String,
        /// Why.
        reason: String,
    },
    /// Something of its own cannot be had.
    #[error(transparent)]
    Made(#[from] MadeError),
    /// Its run cannot be begun, seen or ended.
    #[error(transparent)]
    Runs(#[from] RunsError),
}

impl Conflict for LookError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Meanwhile => true,
            Self::Api(error) => error.is_conflict(),
            Self::Made(error) => error.is_conflict(),
            Self::Refused { .. } | Self::Runs(_) => false,
        }
    }
}

/// Looks at Provisionings.
pub struct Provisionings {
    pub(super) client: Client,
    pub(super) installer: Option<Arc<Installer>>,
    /// The clusters that were made.
    pub(super) workloads: Workloads,
    /// What free hosts run where the object names nothing.
    default_image: Option<HostImage>,
    /// Least time between two writes of a status that say nothing decisive.
    quiet: Duration,
    // std's lock: held for a look, never across an await.
    written: Mutex<HashMap<ObjectKey, Instant>>,
}

/// One look: the object, and what it is to say.
struct ProvisioningReconcile<'l> {
    object: &'l Provisioning,
    namespace: String,
    name: String,
    status: &'l mut ProvisioningStatus,
}

/// What is to be done when the status is written.
enum AfterStatus {
    /// It is looked at again then, without a change.
    Again(Duration),
    /// A run is begun that stands in it.
    Begin(Box<RunStart>),
}

/// A cluster whose hosts can all be reached.
pub struct ReachableCluster<'r> {
    /// Its nodes.
    pub nodes: &'r [WantedNode],
    /// Those whose machines have no user of the cluster, and their addresses.
    pub closed: Vec<(String, IpAddr)>,
    /// Those that are in the cluster, are wanted no more, and are in the inventory all the same.
    pub leaving: Vec<String>,
    /// The inventory, as it was made just now.
    pub inventory: Inventory,
    /// What is installed at which address.
    pub marks: InstallationIds,
}

impl Provisionings {
    /// Nothing is looked at yet. Without an installer inventories are made, and nothing is run.
    pub fn new(client: Client, installer: Option<Arc<Installer>>, workloads: Workloads) -> Self {
        Self { client, installer, workloads, default_image: None, quiet: QUIET, written: Mutex::default() }
    }

    /// Free hosts run this image where the object names none.
    pub fn with_default_image(self, default_image: Option<HostImage>) -> Self {
        Self { default_image, ..self }
    }

    /// What free hosts are to run for an object.
    fn image<'o>(&'o self, object: &'o Provisioning) -> Option<&'o HostImage> {
        object.spec.image.as_ref().or(self.default_image.as_ref())
    }

    /// Writes also what is not decisive so often.
    #[cfg(test)]
    pub fn quiet_for(self, quiet: Duration) -> Self {
        Self { quiet, ..self }
    }

    fn objects(&self, namespace: &str) -> Api<Provisioning> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn hosts(&self, namespace: &str) -> Api<BareMetalHost> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(super) async fn rack(&self, namespace: &str) -> Result<Vec<RackHost>, kube::Error> {
        let mut rack = Vec::new();
        objects::each(&self.hosts(namespace), |host| rack.push(RackHost::from(&host))).await?;
        Ok(rack)
    }

    async fn look(&self, object: Provisioning) -> Result<Action, LookError> {
        let namespace = object.namespace().unwrap_or_default();
        if object.metadata.deletion_timestamp.is_some() {
            if !self.end_run(&object).await? {
                return Ok(Action::requeue(ENDING));
            }
            self.release(&object, &namespace).await?;
            self.workloads.forget(&namespace, &object.name_any());
            return Ok(Action::await_change());
        }
        let object = objects::hold(&self.objects(&namespace), object, FINALIZER).await?;
        let mut status = object.status.clone().unwrap_or_default();
        let name = object.name_any();
        let look = ProvisioningReconcile { object: &object, namespace, name, status: &mut status };
        let looked = self.advance(look).await;
        // What was found out until then is said even so.
        let is_told = self.store(&object, status).await?;
        let pause = match looked? {
            AfterStatus::Again(pause) => pause,
            AfterStatus::Begin(begin) => {
                let Some(installer) = &self.installer else { return Ok(Action::requeue(LOOK_AGAIN)) };
                // Its name is on disk: whoever comes after a crash knows it.
                installer.begin(&begin.request).await?;
                drop(begin.place);
                FOLLOW.min(self.quiet)
            }
        };
        Ok(Action::requeue(if is_told { pause } else { pause.min(self.quiet) }))
    }

    async fn advance(&self, mut look: ProvisioningReconcile<'_>) -> Result<AfterStatus, LookError> {
        let (generation, runs) = (look.object.metadata.generation, self.installer.is_some());
        self.tidy(look.object).await;
        let (told, after) = match self.follow_run(look.object, look.status).await? {
            // Hosts and nodes are looked at again when it is over.
            Some(told) => (told, AfterStatus::Again(FOLLOW.min(self.quiet))),
            None => match wanted::read(look.object) {
                Err(faults) => (
                    ClusterSummary::of_hosts(ProvisioningPhase::Invalid, progress::faults(&faults)),
                    AfterStatus::Again(LOOK_AGAIN),
                ),
                Ok(cluster) => {
                    let judged = self.judge(&mut look, &cluster).await?;
                    let are_ready = self.see_nodes(look.object, look.status).await;
                    match judged {
                        (told, AfterStatus::Again(pause)) if !are_ready => {
                            (told, AfterStatus::Again(pause.min(TURN).min(self.quiet)))
                        }
                        judged => judged,
                    }
                }
            },
        };
        progress::whole(look.status, &told, runs, generation, Timestamp::now());
        Ok(after)
    }

    /// Takes hosts, and runs kubespray when all can be reached.
    async fn judge(
        &self,
        look: &mut ProvisioningReconcile<'_>,
        cluster: &WantedCluster,
    ) -> Result<(ClusterSummary, AfterStatus), LookError> {
        let run = look.status.run.as_ref();
        let standing =
            Standing { nodes: &cluster.nodes, installed: &look.status.installed, leaving: &[], run, asked: None };
        if let Some(reason) = standing.refused_masters() {
            return Ok((ClusterSummary::of_hosts(ProvisioningPhase::Invalid, reason), AfterStatus::Again(LOOK_AGAIN)));
        }
        let is_whole = !look.status.installed.is_empty()
            && standing.new_nodes().is_empty()
            && run.is_some_and(|run| run.state == SUCCEEDED);
        let mut rack = self.rack(&look.namespace).await?;
        self.mend(look, &mut rack).await?;
        if let Some(going) = self.see_off(look.object, look.status, cluster, &mut rack).await? {
            return Ok(self.after(going));
        }
        let Followed { told, status, ready } = self.follow(look, cluster, rack).await?;
        *look.status = status;
        let Some(ready) = ready else {
            // What was installed is not gone for a host that is not well.
            let waits = format!("{}. Now: {}", is_ready(look.status).message, told.message);
            let stays_ready = is_whole && told.phase == ProvisioningPhase::Provisioning && self.installer.is_some();
            let told = if stays_ready {
                ClusterSummary { phase: ProvisioningPhase::Ready, message: waits, ..told }
            } else {
                told
            };
            return Ok((told, AfterStatus::Again(LOOK_AGAIN)));
        };
        let going = self.go_on(look.object, look.status, &ready).await?;
        Ok(self.after(going))
    }

    fn after(&self, going: Going) -> (ClusterSummary, AfterStatus) {
        match going {
            Going::Rests(told) => (told, AfterStatus::Again(LOOK_AGAIN)),
            Going::Waits(told) => (told, AfterStatus::Again(TURN.min(self.quiet))),
            Going::Begins(told, begin) => (told, AfterStatus::Begin(begin)),
        }
    }

    /// Takes hosts, and makes the inventory when all can be reached.
    async fn follow<'r>(
        &self,
        look: &ProvisioningReconcile<'_>,
        cluster: &'r WantedCluster,
        mut rack: Vec<RackHost>,
    ) -> Result<Followed<'r>, LookError> {
        let mut status = look.status.clone();
        status.hosts_yaml = None;
        let stays = |phase: ProvisioningPhase, message: String, status| {
            Ok(Followed { told: ClusterSummary::of_hosts(phase, message), status, ready: None })
        };
        let user_data = made::user_data_name(&look.name);
        let has_image = self.image(look.object).is_some();
        let mut given = seats((&look.namespace, &look.name), &cluster.nodes, &rack, has_image);
        progress::nodes(&mut status, &cluster.nodes, &given, &user_data);
        if given.iter().all(|seat| seat.host().is_some()) && given.iter().any(|seat| matches!(seat, NodeSeat::Takes(_)))
        {
            match self.secrets(look, &mut status).await {
                Err(MadeError::Api(error)) => return Err(error.into()),
                Err(reason) => return stays(ProvisioningPhase::Invalid, reason.to_string(), status),
                Ok(()) => {}
            }
            match self.take(look, &cluster.nodes, &given, &user_data).await {
                Err(refused @ LookError::Refused { .. }) => {
                    return stays(ProvisioningPhase::Invalid, refused.to_string(), status);
                }
                taken => taken?,
            }
            rack = self.rack(&look.namespace).await?;
            given = seats((&look.namespace, &look.name), &cluster.nodes, &rack, has_image);
            progress::nodes(&mut status, &cluster.nodes, &given, &user_data);
        }
        if given.iter().any(|seat| !matches!(seat, NodeSeat::Has(_))) {
            let message = progress::waiting(&status);
            return stays(ProvisioningPhase::Choosing, message, status);
        }
        opening::forget(&mut status);
        let Ok(places) = opening::places(&cluster.nodes, &given, &status, &user_data) else {
            let message = progress::waiting(&status);
            return stays(ProvisioningPhase::Provisioning, message, status);
        };
        let inventory = match cluster_inventory(cluster, &places) {
            Ok(inventory) => inventory,
            Err(reason) => return stays(ProvisioningPhase::Provisioning, reason.to_string(), status),
        };
        match made::inventory(&self.client, look.object, &inventory).await {
            Err(MadeError::Api(error)) => return Err(error.into()),
            Err(reason) => return stays(ProvisioningPhase::Provisioning, reason.to_string(), status),
            Ok(()) => {}
        }
        status.hosts_yaml = Some(inventory.yaml());
        status.inventory = Some(made::inventory_name(&look.name));
        let marks = marks_of(&rack, &look.name);
        let closed = places.iter().filter(|(_, place)| !place.has_user);
        let closed = closed.map(|(node, place)| (node.name.to_string(), place.address.address())).collect();
        let ready = Some(ReachableCluster { nodes: &cluster.nodes, closed, leaving: Vec::new(), inventory, marks });
        Ok(Followed { told: ClusterSummary::of_hosts(ProvisioningPhase::InventoryReady, ""), status, ready })
    }

    /// Has each host be the node that the status says it is: whoever may write hosts may have written something else there, and a host
    /// that is no node would be nobody's.
    async fn mend(&self, look: &ProvisioningReconcile<'_>, rack: &mut [RackHost]) -> Result<(), LookError> {
        let hosts = self.hosts(&look.namespace);
        let known = look.status.nodes.iter().filter_map(|node| Some((node.host.as_deref()?, node.name.as_str())));
        let known: HashMap<&str, &str> = known.collect();
        for host in rack.iter_mut().filter(|host| host.is_of(&look.name)) {
            let Some(node) = known.get(host.name()).copied() else { continue };
            if host.seat.as_ref().is_some_and(|(_, of)| of == node) {
                continue;
            }
            let Some(found) = hosts.get_opt(host.name()).await? else { continue };
            if let Some(patch) = claim::seat(&found, &look.name, node) {
                hosts.patch(host.name(), &PatchParams::default(), &Patch::Merge(patch)).await?;
                warn!(host = %named(&look.namespace, host.name()), node, "a host said to be another node than it is: that is mended");
            }
            host.seat = Some((look.name.clone(), node.to_owned()));
        }
        Ok(())
    }

    /// The key that opens the nodes, and the user data that says so.
    async fn secrets(
        &self,
        look: &ProvisioningReconcile<'_>,
        status: &mut ProvisioningStatus,
    ) -> Result<(), MadeError> {
        let public = made::ssh_key(&self.client, look.object).await?;
        made::user_data(&self.client, look.object, &public).await?;
        status.ssh_key = Some(made::ssh_key_name(&look.name));
        status.ssh_public_key = Some(public);
        Ok(())
    }

    /// Takes every host that was chosen, after all of them were seen to be what they were.
    async fn take(
        &self,
        look: &ProvisioningReconcile<'_>,
        nodes: &[WantedNode],
        given: &[NodeSeat<'_>],
        user_data: &str,
    ) -> Result<(), LookError> {
        let hosts = self.hosts(&look.namespace);
        let mut chosen = Vec::new();
        for (node, seat) in nodes.iter().zip(given) {
            let NodeSeat::Takes(host) = seat else { continue };
            let found = hosts.get_opt(host.name()).await?.ok_or(LookError::Meanwhile)?;
            if found.resource_version() != host.view.metadata.resource_version {
                return Err(LookError::Meanwhile);
            }
            chosen.push((node, found));
        }
        let mut taken: Vec<String> = Vec::new();
        for (node, found) in chosen {
            let image = self.image(look.object);
            let Some(patch) = claim::claim(&found, look.object, node.name.as_str(), image, user_data) else { continue };
            let host = found.name_any();
            let patched = hosts.patch(&host, &PatchParams::default(), &Patch::Merge(patch)).await;
            let error = match patched {
                Ok(_) => None,
                // What a host may run is judged where it is told so.
                Err(kube::Error::Api(refused)) if refused.code == 422 => {
                    Some(LookError::Refused { host: host.clone(), reason: refused.message.clone() })
                }
                Err(kube::Error::Api(changed)) if changed.is_conflict() => {
                    let now = hosts.get_opt(&host).await?.map(|now| RackHost::from(&now));
                    let seat = now.and_then(|now| now.seat);
                    let is_its = seat.is_some_and(|(of, is)| of == look.name && is == node.name.as_str());
                    (!is_its).then_some(LookError::Meanwhile)
                }
                Err(error) => return Err(error.into()),
            };
            if let Some(error) = error {
                // All or none: whoever was quicker for this one may have too few without those.
                for host in &taken {
                    self.let_go(look.object, &look.namespace, host).await?;
                }
                return Err(error);
            }
            info!(host = %named(&look.namespace, &host), provisioning = %named(&look.namespace, &look.name), node = %node.name, "a host became a node");
            taken.push(host);
        }
        Ok(())
    }

    /// Lets all hosts go, and the object after them. A host whose letting go is refused is left to whoever can mend it.
    async fn release(&self, object: &Provisioning, namespace: &str) -> Result<(), LookError> {
        for host in self.rack(namespace).await?.iter().filter(|host| host.is_of(&object.name_any())) {
            self.let_go(object, namespace, host.name()).await?;
        }
        Ok(objects::release(&self.objects(namespace), object, FINALIZER).await?)
    }

    pub(super) async fn let_go(&self, object: &Provisioning, namespace: &str, host: &str) -> Result<(), LookError> {
        let (name, hosts) = (object.name_any(), self.hosts(namespace));
        let Some(found) = hosts.get_opt(host).await? else { return Ok(()) };
        let Some(patch) = claim::release(&found, object, &made::user_data_name(&name)) else { return Ok(()) };
        match hosts.patch(host, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => {
                info!(host = %named(namespace, host), provisioning = %named(namespace, &name), "a node's host was let go");
            }
            Err(kube::Error::Api(error)) if error.is_not_found() => {}
            Err(kube::Error::Api(error)) if error.code == 422 => {
                warn!(host = %named(namespace, host), provisioning = %named(namespace, &name), %error, "a host cannot be let go: take its consumerRef away by hand");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Writes the status where it says something new, and tells of a new phase. Whether all is told: what is not decisive waits a
    /// while.
    pub(super) async fn store(&self, object: &Provisioning, status: ProvisioningStatus) -> Result<bool, kube::Error> {
        let before = object.status.clone().unwrap_or_default();
        if status == before {
            return Ok(true);
        }
        let key = key(object);
        let (namespace, name) = &key;
        let is_decisive = progress::decisive(&status) != progress::decisive(&before);
        if !is_decisive && self.written().get(&key).is_some_and(|at| at.elapsed() < self.quiet) {
            return Ok(false);
        }
        let reason = ProvisioningPhase::ALL
            .into_iter()
            .find(|phase| phase.word() == status.phase && status.phase != before.phase);
        let (message, warning) =
            (status.message.clone(), matches!(reason, Some(ProvisioningPhase::Invalid | ProvisioningPhase::Failed)));
        let changed = Provisioning { status: Some(status), ..object.clone() };
        self.objects(namespace).replace_status(name, &PostParams::default(), &changed).await?;
        self.written().insert(key.clone(), Instant::now());
        if let Some(phase) = reason {
            let note = Note { reason: phase.word(), message, warning };
            events::store(&self.client, COMPONENT, &object.object_ref(&()), &note).await.ok();
        }
        Ok(true)
    }

    fn written(&self) -> MutexGuard<'_, HashMap<ObjectKey, Instant>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far a cluster came.
struct Followed<'r> {
    told: ClusterSummary,
    status: ProvisioningStatus,
    ready: Option<ReachableCluster<'r>>,
}

impl Reconcile for Provisionings {
    type Object = Slim<Provisioning>;
    type Error = LookError;

    const NAME: &'static str = "provisioning";

    const OF_A_NAMESPACE: u16 = 1;
    const DEADLINE: Option<Duration> = Some(Duration::from_secs(600));

    async fn reconcile(&self, object: Arc<Self::Object>) -> Result<Action, Self::Error> {
        let meta = object.meta();
        let namespace = meta.namespace.clone().unwrap_or_default();
        match self.objects(&namespace).get_opt(meta.name.as_deref().unwrap_or_default()).await? {
            Some(found) => self.look(found).await,
            None => {
                self.written().remove(&key(object.as_ref()));
                Ok(Action::await_change())
            }
        }
    }

    fn retry_after(&self) -> Duration {
        RETRY
    }

    fn gone(self: Arc<Self>, namespace: &str, name: &str) {
        self.written().remove(&(namespace.to_owned(), name.to_owned()));
    }
}
