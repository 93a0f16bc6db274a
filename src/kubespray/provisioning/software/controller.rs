//! Looks at Softwares: begins runs, follows them, and tells what they changed.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, PostParams};
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use serde_json::{Map, json};
use tracing::{info, warn};

use super::super::cluster_inventory::USER;
use super::super::controller::{LookError, Provisionings};
use super::super::installer::{Installer, RunState, is_open, run_id};
use super::super::known_hosts::{read, text, valid};
use super::super::made::{self, MadeError};
use super::super::next::{LOST, STARTING, kept};
use super::super::places::RunPlace;
use super::super::progress::{self, short};
use super::super::rack::RackHost;
use super::super::running::{END, is_cancelled, marks_of, owner, unmarked};
use super::changes;
use super::inventory::inventory;
use super::next::{SoftwareAction, cluster, next, stuck};
use super::packages::{self, ByNode};
use crate::api::bpa::software::{NodePackages, Software, SoftwareStatus};
use crate::api::bpa::{ANNOTATION_RUN, Provisioning, RunProgress};
use crate::kubespray::runs::{HostKeys, Playbook, RunOwner, RunRequest, RunStatus, RunVars};
use crate::log::named;
use crate::runtime::conditions::{self, ConditionVerdict};
use crate::runtime::{Note, Reconcile, Slim, events, objects};

/// Holds a Software until its run has ended.
const FINALIZER: &str = "software.bpa.akraino.org";
/// Who tells events.
const COMPONENT: &str = "slipway-kubespray";
/// After an error.
const RETRY: Duration = Duration::from_secs(2);
/// Between two looks at what is under way, or waited for.
const SOON: Duration = Duration::from_secs(10);
/// Between two looks at a run that is to end.
const ENDING: Duration = Duration::from_secs(1);
/// Nodes may come and go.
const LATER: Duration = Duration::from_secs(60);
/// Letters of what the whole says.
const SAYS: usize = 1000;
/// Whether every node has what it is to have.
const CURRENT: &str = "Current";

/// Looks at Softwares.
pub struct Softwares {
    keeper: Arc<Provisionings>,
    /// Between two looks at what is under way.
    soon: Duration,
    /// Further variables of runs.
    vars: Map<String, serde_json::Value>,
    /// The inventory of nodes that are played.
    #[cfg(test)]
    played: Option<String>,
}

/// A run that is to be begun when it is noted.
struct SoftwareStart {
    request: RunRequest,
    place: RunPlace,
}

impl Softwares {
    /// Runs are those of the keeper of Provisionings.
    pub fn new(keeper: Arc<Provisionings>) -> Self {
        Self {
            keeper,
            soon: SOON,
            vars: Map::new(),
            #[cfg(test)]
            played: None,
        }
    }

    /// Looks often, gives runs these variables, and takes this inventory, if one is given, for that of the hosts.
    #[cfg(test)]
    pub fn played(self, soon: Duration, vars: Map<String, serde_json::Value>, played: Option<String>) -> Self {
        Self { soon, vars, played, ..self }
    }

    fn api(&self, namespace: &str) -> Api<Software> {
        Api::namespaced(self.keeper.client.clone(), namespace)
    }

    /// Who its runs are to be found under.
    fn me(object: &Software) -> RunOwner {
        let uid = object.uid().unwrap_or_default();
        RunOwner { namespace: object.namespace().unwrap_or_default(), name: object.name_any(), uid }
    }

    async fn look(&self, object: Software) -> Result<Action, LookError> {
        let api = self.api(&object.namespace().unwrap_or_default());
        if object.metadata.deletion_timestamp.is_some() {
            return self.end(&api, &object).await;
        }
        let object = objects::hold(&api, object, FINALIZER).await?;
        let mut status = object.status.clone().unwrap_or_default();
        let looked = self.advance(&object, &mut status).await;
        status.observed_generation = object.metadata.generation;
        self.store(&api, &object, status).await?;
        let (begin, pause) = looked?;
        if let (Some(begin), Some(installer)) = (begin, &self.keeper.installer) {
            // Its name is on disk: whoever comes after a crash knows it.
            installer.begin(&begin.request).await?;
            drop(begin.place);
        }
        Ok(Action::requeue(pause))
    }

    /// Says how it stands, and gives the run that is to be begun, if one is.
    async fn advance(
        &self,
        object: &Software,
        status: &mut SoftwareStatus,
    ) -> Result<(Option<SoftwareStart>, Duration), LookError> {
        let told = |status: &mut SoftwareStatus, phase: &str, message: String, pause| {
            tell(status, phase, message, object.metadata.generation);
            Ok((None, pause))
        };
        let lists = match packages::read(object) {
            Ok(lists) => lists,
            Err(faults) => {
                let faults: Vec<String> = faults.iter().map(|(path, reason)| format!("{path}: {reason}")).collect();
                return told(status, "Invalid", faults.join("; "), LATER);
            }
        };
        let Some(installer) = &self.keeper.installer else {
            return told(status, "Waiting", "[kubespray] of slipway.toml names no checkout".into(), LATER);
        };
        if let Some(message) = self.follow(installer, object, status).await? {
            return told(status, "Updating", message, self.soon);
        }
        let namespace = object.namespace().unwrap_or_default();
        let api = Api::<Provisioning>::namespaced(self.keeper.client.clone(), &namespace);
        let mut all = Vec::new();
        objects::each(&api, |one| all.push(one)).await?;
        let of = match cluster(object.labels().get("cluster").map(String::as_str), &all) {
            Ok(of) => of,
            Err(reason) => return told(status, "Waiting", reason, self.soon),
        };
        status.cluster = Some(of.name_any());
        let asked = object.annotations().get(ANNOTATION_RUN).map(String::as_str).filter(|asked| !asked.is_empty());
        let asked = kept(asked);
        let (number, packages, hash) = match next(status, asked.as_deref(), of, &lists) {
            SoftwareAction::Invalid(reason) => return told(status, "Invalid", reason, LATER),
            SoftwareAction::Waits(reason) => return told(status, "Waiting", reason, self.soon),
            SoftwareAction::Current => {
                let message = changes::sentence(&status.nodes);
                return told(status, CURRENT, message, LATER);
            }
            SoftwareAction::Stuck => {
                let message = status.run.as_ref().map(|run| stuck(&object.name_any(), run)).unwrap_or_default();
                return told(status, "Failed", message, LATER);
            }
            SoftwareAction::Begin { number, packages, hash } => (number, packages, hash),
        };
        let rack = self.keeper.rack(&namespace).await?;
        let inventory = match self.inventory(of, &rack, &packages) {
            Ok(inventory) => inventory,
            Err(reason) => return told(status, "Waiting", reason, self.soon),
        };
        if !installer.is_usable().await {
            let reason =
                "kubespray cannot be run on this appliance: its administrator sees why by slipway kubespray check";
            return told(status, "Waiting", reason.into(), self.soon);
        }
        let request = match self.request(installer, object, (of, &rack, inventory), number, packages).await {
            Err(LookError::Made(MadeError::Api(error))) => return Err(error.into()),
            Err(reason @ (LookError::Made(_) | LookError::Runs(_))) => {
                return told(status, "Waiting", reason.to_string(), self.soon);
            }
            built => built?,
        };
        // In the name of the cluster, of which there is one run at a time.
        let Some(place) = installer.place(&owner(of)).await? else {
            let reason = "waits for its turn: another run for this cluster, or as many as may be, are under way";
            return told(status, "Waiting", reason.into(), self.soon);
        };
        let is_known = status.run.as_ref().is_some_and(|run| run.number == number);
        if !is_known {
            status.nodes.clear();
            status.run = Some(RunProgress {
                number,
                id: request.id.to_string(),
                playbook: "packages".into(),
                appliance: installer.appliance().into(),
                asked,
                state: STARTING.into(),
                started_at: Some(Time(Timestamp::now())),
                ..RunProgress::default()
            });
        }
        status.wanted = Some(hash);
        tell(status, "Updating", format!("run {} begins", request.id), object.metadata.generation);
        Ok((Some(SoftwareStart { request, place }), self.soon))
    }

    /// Sees to the run that was begun last; what to say while it is under way.
    async fn follow(
        &self,
        installer: &Installer,
        object: &Software,
        status: &mut SoftwareStatus,
    ) -> Result<Option<String>, LookError> {
        let Some(run) = status.run.as_mut().filter(|run| is_open(run)) else { return Ok(None) };
        let (me, now) = (Self::me(object), Timestamp::now());
        Ok(match installer.see(&me, run, now).await? {
            RunState::Unbegun => None,
            RunState::Elsewhere => Some(format!("run {} is under way on the appliance {}", run.id, run.appliance)),
            RunState::UnderWay(seen) => {
                progress::run(run, &seen, now);
                if is_cancelled(object, run) {
                    installer.cancel(&me, run).await?;
                    return Ok(Some(format!("run {} is being ended", run.id)));
                }
                Some(format!("run {} is under way: {}", run.id, run.task))
            }
            RunState::Gone => {
                run.state = LOST.into();
                run.ended_at = Some(Time(now));
                run.message = "is lost: nothing of it is there any more".into();
                None
            }
            RunState::Over(seen) => {
                progress::run(run, &seen, now);
                status.nodes = self.changed(installer, object, run.number, &seen).await?;
                info!(software = %named(&me.namespace, &me.name), run = %run.id, state = %run.state, "a run of packages is over");
                None
            }
        })
    }

    /// What a run changed on each node that it was for.
    async fn changed(
        &self,
        installer: &Installer,
        object: &Software,
        number: i64,
        seen: &RunStatus,
    ) -> Result<Vec<NodePackages>, LookError> {
        let id = run_id(&object.uid().unwrap_or_default(), number)?;
        let (runs, nodes) = (installer.runs().clone(), seen.expected.clone());
        let read = tokio::task::spawn_blocking(move || {
            let one =
                |name: &String| changes::of_node(name, runs.artifact(&id, &format!("packages-{name}.json")).as_deref());
            nodes.iter().map(one).collect()
        });
        Ok(changes::bounded(read.await.unwrap_or_default()))
    }

    fn inventory(&self, of: &Provisioning, rack: &[RackHost], packages: &ByNode) -> Result<String, String> {
        #[cfg(test)]
        if let Some(played) = &self.played {
            return Ok(played.clone());
        }
        inventory(of, rack, packages).map(|made| made.yaml())
    }

    async fn request(
        &self,
        installer: &Installer,
        object: &Software,
        (of, rack, inventory): (&Provisioning, &[RackHost], String),
        number: i64,
        packages: ByNode,
    ) -> Result<RunRequest, LookError> {
        let client = &self.keeper.client;
        let key = made::private_key(client, of).await?;
        let known = valid(read(&made::known_hosts(client, of).await?), &marks_of(rack, &of.name_any()));
        let mut vars = self.vars.clone();
        let expected: Vec<String> = packages.keys().cloned().collect();
        vars.insert("slipway_packages".into(), json!(packages));
        let request = RunRequest {
            id: run_id(&object.uid().unwrap_or_default(), number)?,
            playbook: Playbook::Packages,
            inventory,
            vars: RunVars::of_administrator(vars).map_err(crate::kubespray::runs::RunsError::from)?,
            limit: Vec::new(),
            expected,
            user: Some(USER.to_owned()),
            ssh_key: Some(key),
            host_keys: HostKeys::Recorded(text(&unmarked(known))),
            secrets: Vec::new(),
            bounds: installer.bounds,
            owner: Some(owner(of)),
            requester: Some(Self::me(object)),
        };
        request.check().map_err(crate::kubespray::runs::RunsError::from)?;
        Ok(request)
    }

    /// Has the run end of an object that is deleted, and lets it go. Packages stay.
    async fn end(&self, api: &Api<Software>, object: &Software) -> Result<Action, LookError> {
        let run = object.status.as_ref().and_then(|status| status.run.as_ref()).filter(|run| is_open(run));
        if let (Some(installer), Some(run)) = (&self.keeper.installer, run) {
            let deleted = object.metadata.deletion_timestamp.as_ref().map_or_else(Timestamp::now, |at| at.0);
            let is_late = deleted.checked_add(END).is_ok_and(|end| Timestamp::now() > end);
            match installer.cancel(&Self::me(object), run).await {
                Ok(true) => {}
                _ if is_late => warn!(run = %run.id, "a run does not end in time"),
                Ok(false) => return Ok(Action::requeue(ENDING)),
                Err(error) => {
                    warn!(run = %run.id, %error, "a run cannot be cancelled");
                    return Ok(Action::requeue(ENDING));
                }
            }
        }
        objects::release(api, object, FINALIZER).await?;
        Ok(Action::await_change())
    }

    async fn store(&self, api: &Api<Software>, object: &Software, status: SoftwareStatus) -> Result<(), kube::Error> {
        let before = object.status.clone().unwrap_or_default();
        if status == before {
            return Ok(());
        }
        let note = (status.phase != before.phase && status.phase != "Updating").then(|| Note {
            reason: match status.phase.as_str() {
                "Failed" => "PackagesFailed",
                CURRENT => "PackagesCurrent",
                "Invalid" => "PackagesInvalid",
                _ => "PackagesWaiting",
            },
            message: status.message.clone(),
            warning: matches!(status.phase.as_str(), "Failed" | "Invalid"),
        });
        let changed = Software { status: Some(status), ..object.clone() };
        api.replace_status(&object.name_any(), &PostParams::default(), &changed).await?;
        if let Some(note) = note {
            events::store(&self.keeper.client, COMPONENT, &object.object_ref(&()), &note).await.ok();
        }
        Ok(())
    }
}

/// Says how it stands.
fn tell(status: &mut SoftwareStatus, phase: &str, message: String, generation: Option<i64>) {
    status.phase = phase.into();
    status.message = short(&message, SAYS);
    let verdict = if phase == CURRENT {
        ConditionVerdict::yes("Installed")
    } else {
        ConditionVerdict::no(phase, status.message.clone())
    };
    conditions::set(&mut status.conditions, CURRENT, &verdict, generation, Timestamp::now());
}

impl Reconcile for Softwares {
    type Object = Slim<Software>;
    type Error = LookError;

    const NAME: &'static str = "software";

    const OF_A_NAMESPACE: u16 = 1;
    const DEADLINE: Option<Duration> = Some(Duration::from_secs(600));

    async fn reconcile(&self, object: Arc<Self::Object>) -> Result<Action, Self::Error> {
        let meta = object.meta();
        let api = self.api(meta.namespace.as_deref().unwrap_or_default());
        match api.get_opt(meta.name.as_deref().unwrap_or_default()).await? {
            Some(found) => self.look(found).await,
            None => Ok(Action::await_change()),
        }
    }

    fn retry_after(&self) -> Duration {
        RETRY
    }
}

#[cfg(test)]
mod tests;
