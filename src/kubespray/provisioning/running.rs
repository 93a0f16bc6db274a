//! What a Provisioning has to do with its run: it is followed, concluded, begun, and ended before hosts are let go.
//!
//! A run is noted in the status before it is begun, under a name that follows from the object and the run's number. So whoever comes
//! after a crash between the two begins it, and after a crash behind both finds it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use secrecy::ExposeSecret;
use serde_json::{Map, Value, json};
use tracing::{info, warn};

use super::answers;
use super::cluster_inventory::USER;
use super::controller::{LookError, Provisionings, ReachableCluster};
use super::installer::{Installer, RunState, is_open, run_id};
use super::known_hosts::{InstallationIds, SshHostKey, learned, marks, read, text, valid};
use super::made::{self, MadeError};
use super::next::{LOST, PlaybookAction, PlaybookKind, STARTING, SUCCEEDED, Standing, WishedRun, kept, next};
use super::places::RunPlace;
use super::progress::{self, ClusterSummary, ProvisioningPhase};
use crate::api::bpa::{ANNOTATION_CANCEL, ANNOTATION_RUN, Provisioning, ProvisioningStatus, RunProgress};
use crate::cluster::workload::{brief, plain_kubeconfig, secret_name};
use crate::kubespray::runs::{HostKeys, RunOwner, RunRequest, RunStatus, RunVars};
use crate::log::named;
use crate::runtime::conditions::ConditionVerdict;

/// Most nodes that are noted as installed.
const INSTALLED_MAX: usize = 1000;
/// How long hosts wait for the end of a run when their object is deleted: a run has ten seconds, and what does not end then is killed.
pub const END: jiff::SignedDuration = jiff::SignedDuration::from_secs(120);

/// A run to be begun when it is noted.
pub struct RunStart {
    /// What is run.
    pub request: RunRequest,
    /// Until it can be seen.
    pub place: RunPlace,
}

/// What comes of a cluster whose hosts are all there.
pub enum Going {
    /// Nothing is to be done, and what to say.
    Rests(ClusterSummary),
    /// It waits for its turn.
    Waits(ClusterSummary),
    /// A run.
    Begins(ClusterSummary, Box<RunStart>),
}

/// Whose runs an object's are.
pub fn owner(object: &Provisioning) -> RunOwner {
    let uid = object.uid().unwrap_or_default();
    RunOwner { namespace: object.namespace().unwrap_or_default(), name: object.name_any(), uid }
}

/// What the annotation asks for.
pub fn asked(object: &Provisioning) -> Option<&str> {
    object.annotations().get(ANNOTATION_RUN).map(String::as_str).filter(|asked| !asked.is_empty())
}

/// Whether somebody asks for the end of this run.
pub fn is_cancelled<K: Resource>(object: &K, run: &RunProgress) -> bool {
    object.annotations().get(ANNOTATION_CANCEL).is_some_and(|id| *id == run.id)
}

/// What the API will say again, however often it is asked.
fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(error) if (400..500).contains(&error.code) && ![404, 408, 409, 429].contains(&error.code))
}

impl Provisionings {
    /// Sees to the run that was begun last; `None` when none is under way.
    pub(super) async fn follow_run(
        &self,
        object: &Provisioning,
        status: &mut ProvisioningStatus,
    ) -> Result<Option<ClusterSummary>, LookError> {
        let ProvisioningStatus { run, nodes, .. } = &mut *status;
        let (Some(installer), Some(run)) = (&self.installer, run.as_mut().filter(|run| is_open(run))) else {
            return Ok(None);
        };
        let (owner, now) = (owner(object), Timestamp::now());
        let installing = |what: String| Some(ClusterSummary::of_cluster(ProvisioningPhase::Installing, what));
        Ok(match installer.see(&owner, run, now).await? {
            RunState::Unbegun => None,
            RunState::Elsewhere => installing(format!("{} is under way on the appliance {}", of(run), run.appliance)),
            RunState::UnderWay(seen) => {
                progress::run(run, &seen, now);
                progress::tasks(nodes, &seen);
                let mut is_ending = seen.phase == crate::kubespray::runs::RunPhase::Cancelling;
                if !is_ending && is_cancelled(object, run) {
                    installer.cancel(&owner, run).await?;
                    is_ending = true;
                }
                installing(format!("{} is {}", of(run), if is_ending { "being ended" } else { "under way" }))
            }
            RunState::Gone => {
                run.state = LOST.into();
                run.ended_at = Some(Time(now));
                run.message = "is lost: nothing of it is there any more".into();
                None
            }
            RunState::Over(seen) => {
                self.conclude(installer, object, status, &seen, now).await?;
                None
            }
        })
    }

    /// What the last run left of secrets is not needed any more once the status says what it came to.
    pub(super) async fn tidy(&self, object: &Provisioning) {
        let status = object.status.as_ref();
        let over = status.and_then(|status| Some((status, status.run.as_ref().filter(|run| !is_open(run))?)));
        if let (Some(installer), Some((status, run))) = (&self.installer, over) {
            installer.forget_secrets(&owner(object), run, status.kubeconfig.is_some()).await;
        }
    }

    /// Keeps what a run leaves that is over.
    async fn conclude(
        &self,
        installer: &Installer,
        object: &Provisioning,
        status: &mut ProvisioningStatus,
        seen: &RunStatus,
        now: Timestamp,
    ) -> Result<(), LookError> {
        let Some(mut run) = status.run.clone() else { return Ok(()) };
        progress::run(&mut run, seen, now);
        progress::tasks(&mut status.nodes, seen);
        let owner = owner(object);
        let keys = read(&installer.known_hosts(&owner, &run)?);
        match self.learn(object, keys).await {
            Err(MadeError::Api(error)) if !is_final(&error) => return Err(error.into()),
            Err(reason) => {
                warn!(provisioning = %named(&owner.namespace, &owner.name), %reason, "keys of hosts cannot be kept");
            }
            Ok(()) => {}
        }
        let kind = PlaybookKind::of(&run.playbook).unwrap_or(PlaybookKind::Cluster);
        if run.state == SUCCEEDED && kind.removes() {
            status.installed.retain(|name| !seen.expected.contains(name));
        } else if run.state == SUCCEEDED {
            let new = seen.expected.iter().filter(|name| !status.installed.contains(name)).cloned();
            let new: Vec<String> = new.take(INSTALLED_MAX.saturating_sub(status.installed.len())).collect();
            status.installed.extend(new);
            if let Some(verdict) =
                self.keep_kubeconfig(installer, object, &owner, &run, status.kubeconfig.is_some()).await?
            {
                status.kubeconfig = verdict.is_true().then(|| secret_name(&owner.name));
                progress::kubeconfig(status, &verdict, object.metadata.generation, now);
            }
        }
        info!(provisioning = %named(&owner.namespace, &owner.name), run = %run.id, state = %run.state, "a run of kubespray is over");
        status.run = Some(run);
        Ok(())
    }

    /// Keeps the first keys of hosts.
    pub(super) async fn learn(&self, object: &Provisioning, keys: Vec<SshHostKey>) -> Result<(), MadeError> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let rack = self.rack(&namespace).await?;
        let marks = marks_of(&rack, &name);
        let known = read(&made::known_hosts(&self.client, object).await?);
        made::keep_known_hosts(&self.client, object, text(&learned(known, keys, &marks))).await
    }

    /// Judges the kubeconfig that a run left, and keeps it; `None` where there is none, and need be none.
    async fn keep_kubeconfig(
        &self,
        installer: &Installer,
        object: &Provisioning,
        owner: &RunOwner,
        run: &RunProgress,
        has_one: bool,
    ) -> Result<Option<ConditionVerdict>, LookError> {
        let refused = |reason: &str| Ok(Some(ConditionVerdict::no("Refused", brief(reason))));
        let text = match installer.kubeconfig(owner, run) {
            Ok(Some(text)) => text,
            // That of an earlier run holds.
            Ok(None) if has_one => return Ok(None),
            Ok(None) => {
                return Ok(Some(ConditionVerdict::no("Missing", "the run left no kubeconfig (kubeconfig_localhost)")));
            }
            Err(error) => return refused(&error.to_string()),
        };
        let plain = match plain_kubeconfig(text.expose_secret().as_bytes()) {
            Ok(plain) => plain,
            Err(reason) => return refused(&format!("the kubeconfig that the first master gave is not kept: {reason}")),
        };
        match made::kubeconfig(&self.client, object, plain).await {
            Err(MadeError::Api(error)) if !is_final(&error) => Err(error.into()),
            Err(reason) => Ok(Some(ConditionVerdict::no("NotKept", brief(&reason.to_string())))),
            Ok(()) => Ok(Some(ConditionVerdict::yes("Kept"))),
        }
    }

    /// What comes next of a cluster whose hosts are all there. What is to be begun stands in the status.
    pub(super) async fn go_on(
        &self,
        object: &Provisioning,
        status: &mut ProvisioningStatus,
        ready: &ReachableCluster<'_>,
    ) -> Result<Going, LookError> {
        let rests = |told| Ok(Going::Rests(told));
        let waits =
            |reason: String| Ok(Going::Waits(ClusterSummary::of_cluster(ProvisioningPhase::InventoryReady, reason)));
        let Some(installer) = &self.installer else { return rests(by_hand(object)) };
        let (run, asked) = (status.run.clone(), asked(object));
        let run = run.as_ref();
        let standing =
            Standing { nodes: ready.nodes, installed: &status.installed, leaving: &ready.leaving, run, asked };
        let wish = match next(&standing) {
            PlaybookAction::Rest => return rests(is_ready(status)),
            PlaybookAction::Stuck => return rests(is_stuck(object, status)),
            PlaybookAction::Refuse(reason) => {
                let is_done = run.is_some_and(|run| run.state == SUCCEEDED)
                    && standing.new_nodes().is_empty()
                    && ready.leaving.is_empty();
                return rests(ClusterSummary::of_cluster(
                    if is_done { ProvisioningPhase::Ready } else { ProvisioningPhase::Failed },
                    reason,
                ));
            }
            PlaybookAction::Begin(wish) => wish,
        };
        let owner = owner(object);
        if !installer.is_usable().await {
            return waits(
                "kubespray cannot be run on this appliance: its administrator sees why by slipway kubespray check"
                    .into(),
            );
        }
        if !wish.is_asked && !wish.kind.removes() {
            let new: Vec<&str> = standing.new_nodes().iter().map(|node| node.name.as_str()).collect();
            let silent = silent(installer, status, &new).await;
            if let Some(reason) = silent {
                return waits(reason);
            }
        }
        if !wish.kind.removes()
            && let Some(reason) = self.open_machines(installer, object, status, ready).await?
        {
            return waits(reason);
        }
        let request = match self.request(installer, object, &owner, ready, &wish).await {
            Err(LookError::Made(MadeError::Api(error))) => return Err(error.into()),
            Err(reason @ (LookError::Made(_) | LookError::Runs(_))) => return waits(reason.to_string()),
            built => built?,
        };
        let Some(place) = installer.place(&owner).await? else {
            return waits("waits for its turn: other runs of kubespray are under way on the appliance".into());
        };
        let begun = RunProgress {
            number: wish.number,
            id: request.id.to_string(),
            playbook: wish.kind.word().into(),
            appliance: installer.appliance().into(),
            asked: if wish.is_asked { kept(asked) } else { run.and_then(|run| run.asked.clone()) },
            state: STARTING.into(),
            started_at: Some(Time(Timestamp::now())),
            ..RunProgress::default()
        };
        let told = ClusterSummary::of_cluster(ProvisioningPhase::Installing, format!("{} begins", of(&begun)));
        // One that was noted, and could not be begun, is the same.
        let is_known = run.is_some_and(|run| run.number == begun.number && run.appliance == begun.appliance);
        if !is_known {
            status.run = Some(begun);
            status.nodes.iter_mut().for_each(|node| node.tasks = None);
        }
        Ok(Going::Begins(told, Box::new(RunStart { request, place })))
    }

    async fn request(
        &self,
        installer: &Installer,
        object: &Provisioning,
        owner: &RunOwner,
        ready: &ReachableCluster<'_>,
        wish: &WishedRun,
    ) -> Result<RunRequest, LookError> {
        let key = made::private_key(&self.client, object).await?;
        let known = valid(read(&made::known_hosts(&self.client, object).await?), &ready.marks);
        let vars = match wish.kind {
            PlaybookKind::Remove => json!({}),
            // Nothing is emptied on a machine that does not answer, and its pods end when somebody says so.
            PlaybookKind::RemoveUngraceful => json!({"reset_nodes": false, "allow_ungraceful_removal": true}),
            _ => json!({"kubeconfig_localhost": true, "kubectl_localhost": false}),
        };
        // Nothing is downloaded on the appliance, by which programs would be run there.
        let here = json!({"download_localhost": false, "download_run_once": false, "download_force_cache": false});
        let vars: Map<_, _> =
            [vars, here].iter().filter_map(Value::as_object).flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        let expected = match wish.kind {
            PlaybookKind::Remove | PlaybookKind::RemoveUngraceful => ready.leaving.clone(),
            _ if wish.limit.is_empty() => ready.nodes.iter().map(|node| node.name.to_string()).collect(),
            _ => wish.limit.clone(),
        };
        let request = RunRequest {
            id: run_id(&owner.uid, wish.number)?,
            playbook: wish.kind.playbook(&ready.leaving),
            inventory: ready.inventory.yaml(),
            vars: RunVars::of_administrator(vars).map_err(crate::kubespray::runs::RunsError::from)?,
            limit: wish.limit.clone(),
            expected,
            user: Some(USER.to_owned()),
            ssh_key: Some(key),
            host_keys: HostKeys::Recorded(text(&unmarked(known))),
            secrets: Vec::new(),
            bounds: installer.bounds,
            owner: Some(owner.clone()),
            requester: None,
        };
        request.check().map_err(crate::kubespray::runs::RunsError::from)?;
        Ok(request)
    }

    /// Has the runs over the nodes of an object end that is deleted; whether its hosts may be let go.
    pub(super) async fn end_run(&self, object: &Provisioning) -> Result<bool, LookError> {
        let (Some(status), Some(installer)) = (&object.status, &self.installer) else { return Ok(true) };
        let owner = owner(object);
        let whose = named(&owner.namespace, &owner.name);
        match installer.cancel_all(&owner).await {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => warn!(provisioning = %whose, %error, "its runs cannot be cancelled"),
        }
        let deleted = object.metadata.deletion_timestamp.as_ref().map_or_else(Timestamp::now, |at| at.0);
        if deleted.checked_add(END).is_ok_and(|end| Timestamp::now() > end) {
            warn!(provisioning = %whose, "a run does not end in time: its hosts are let go");
            return Ok(true);
        }
        let message = "its run is ended before hosts are let go".into();
        self.store(object, ProvisioningStatus { message, ..status.clone() }).await?;
        Ok(false)
    }
}

/// What new nodes a run would wait for in vain: those whose machines do not answer SSH yet.
async fn silent(installer: &Installer, status: &ProvisioningStatus, new: &[&str]) -> Option<String> {
    let known = status.nodes.iter().filter(|node| new.contains(&node.name.as_str()));
    let known: Vec<_> =
        known.filter_map(|node| Some((node.name.as_str(), node.address.as_ref()?.parse().ok()?))).collect();
    let silent = answers::silent(&known, &installer.probe).await;
    let (first, rest) = silent.split_first()?;
    let verb = if rest.is_empty() { "does" } else { "do" };
    let others: String = rest.iter().map(|name| format!(", {name}")).collect();
    Some(format!("{first}{others} {verb} not answer SSH yet: a machine whose system is installed is still starting"))
}

fn of(run: &RunProgress) -> String {
    format!("run {} of {}", run.id, run.playbook)
}

/// Marks say nothing to ssh.
pub fn unmarked(keys: Vec<SshHostKey>) -> Vec<SshHostKey> {
    keys.into_iter().map(|key| SshHostKey { mark: String::new(), ..key }).collect()
}

fn by_hand(object: &Provisioning) -> ClusterSummary {
    let name = object.name_any();
    let message = format!(
        "The inventory is ready, and nothing is installed yet: Slipway runs kubespray when [kubespray] of slipway.toml names a checkout. Or \
         run it by hand with status.hostsYaml (or the ConfigMap {}, which others may write) and the key of the Secret {} (docs/kubespray.md)",
        made::inventory_name(&name),
        made::ssh_key_name(&name)
    );
    ClusterSummary::of_hosts(ProvisioningPhase::InventoryReady, message)
}

/// Every node is installed.
pub fn is_ready(status: &ProvisioningStatus) -> ClusterSummary {
    let by = status.run.as_ref().map(of).unwrap_or_default();
    let message = match &status.kubeconfig {
        Some(secret) => format!("installed by {by}; its kubeconfig is in the Secret {secret}"),
        None => format!("installed by {by}; no kubeconfig is kept (condition {})", progress::KUBECONFIG),
    };
    ClusterSummary::of_cluster(ProvisioningPhase::Ready, message)
}

fn is_stuck(object: &Provisioning, status: &ProvisioningStatus) -> ClusterSummary {
    let run = status.run.clone().unwrap_or_default();
    let (name, playbook) = (object.name_any(), &run.playbook);
    let by_force = match PlaybookKind::of(playbook).is_some_and(PlaybookKind::removes) {
        true => {
            format!(". For machines that are dead: slipway kubespray retry {name} --playbook remove-node-ungraceful")
        }
        false => String::new(),
    };
    let message = format!(
        "{} {}. It is not repeated by itself: slipway kubespray retry {name}, or the annotation {ANNOTATION_RUN}={playbook}/{}{by_force}",
        of(&run),
        run.message,
        run.number.saturating_add(1)
    );
    ClusterSummary::of_cluster(ProvisioningPhase::Failed, message)
}

/// The installations of an object's hosts.
pub fn marks_of(rack: &[super::rack::RackHost], name: &str) -> InstallationIds {
    marks(rack.iter().filter(|host| host.is_of(name)), &made::user_data_name(name))
}
