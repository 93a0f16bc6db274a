//! The runs of Provisionings on this appliance: begun, seen, cancelled, and looked after.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::api::Api;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tracing::{info, warn};

use super::answers::{self, Probe};
use super::login::{self, Opener};
use super::meters::RunMeters;
use super::next::{RUNNING, STARTING};
use super::places::{RunPlace, RunPlaces};
use crate::api::bpa::software::Software;
use crate::api::bpa::{Provisioning, RunProgress};
use crate::hex::hex;
use crate::kubespray::runs::{
    Installation, RunId, RunLimits, RunOwner, RunReader, RunRequest, RunStatus, Runs, RunsError,
};
use crate::log::named;

/// How long it is believed whether kubespray can be used here.
const INSPECTED_FOR: Duration = Duration::from_secs(60);
/// Runs that are over and kept.
const KEPT: usize = 50;
/// After its longest time a run of another appliance is taken for lost when nothing is heard of it for so long.
const ELSEWHERE: Duration = Duration::from_secs(600);

/// Runs kubespray for Provisionings.
pub struct Installer {
    runs: Runs,
    installation: Installation,
    /// How long and how much a run may be.
    pub bounds: RunLimits,
    appliance: String,
    places: RunPlaces,
    meters: RunMeters,
    /// Whether machines answer yet.
    pub probe: Probe,
    /// Opens machines that others installed.
    pub opener: Opener,
    // std's lock: held for a look, never across an await.
    readers: Mutex<HashMap<String, RunReader>>,
    // Held while it is looked.
    inspected: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

/// A run, as it is found.
#[derive(Debug)]
pub enum RunState {
    /// It was noted, and not begun.
    Unbegun,
    /// It goes on.
    UnderWay(Box<RunStatus>),
    /// It goes on, as far as is known, on another appliance.
    Elsewhere,
    /// It is over.
    Over(Box<RunStatus>),
    /// It was begun, and nothing of it is there.
    Gone,
}

impl Installer {
    /// Runs of this checkout, so many of objects at once.
    ///
    /// # Errors
    ///
    /// When the folder of runs cannot be written.
    pub fn new(runs: Runs, installation: Installation, bounds: RunLimits, at_once: u16) -> Result<Self, RunsError> {
        let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let host: String = host.chars().take(64).collect();
        let appliance = format!("{host}/{}", runs.appliance()?);
        let places = RunPlaces::new(at_once.into());
        let (readers, inspected, meters) = Default::default();
        let (probe, opener) = (answers::ssh(), login::ssh());
        Ok(Self { runs, installation, bounds, appliance, places, meters, probe, opener, readers, inspected })
    }

    /// Runs are counted here.
    pub fn counted_by(self, meters: RunMeters) -> Self {
        Self { meters, ..self }
    }

    /// Machines that are played answer so.
    #[cfg(test)]
    pub fn answered(self, answers: bool) -> Self {
        Self { probe: Arc::new(move |_| Box::pin(std::future::ready(answers))), ..self }
    }

    /// Machines that are played are opened so.
    #[cfg(test)]
    pub fn opened_by(self, opener: Opener) -> Self {
        Self { opener, ..self }
    }

    /// The runs of this box.
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// How it is called in a status.
    pub fn appliance(&self) -> &str {
        &self.appliance
    }

    fn readers(&self) -> MutexGuard<'_, HashMap<String, RunReader>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run that was noted and is not known to be over. Its name is never read out of a status.
    ///
    /// # Errors
    ///
    /// When its files cannot be read, or it cannot be looked after.
    pub async fn see(&self, owner: &RunOwner, run: &RunProgress, now: Timestamp) -> Result<RunState, RunsError> {
        let id = run_id(&owner.uid, run.number)?;
        match self.runs.settle(&id).await {
            Err(RunsError::Unknown(_)) => {
                let is_here = run.appliance == self.appliance;
                let begun = run.started_at.as_ref().map_or(now, |at| at.0);
                let long = self.bounds.whole + ELSEWHERE;
                let is_late = begun.checked_add(long).is_ok_and(|end| now > end);
                return Ok(match run.state == STARTING && is_here {
                    true => RunState::Unbegun,
                    false if is_here || is_late => RunState::Gone,
                    false => RunState::Elsewhere,
                });
            }
            settled => settled.map(drop)?,
        }
        let mut reader = self.readers().remove(id.as_str()).unwrap_or_default();
        let (runs, of) = (self.runs.clone(), id.clone());
        let read = tokio::task::spawn_blocking(move || {
            let status = runs.status_with(&of, &mut reader);
            (status, reader)
        });
        let Ok((status, reader)) = read.await else { return Ok(RunState::Elsewhere) };
        let status = Box::new(status?);
        if status.verdict.is_some() {
            return Ok(RunState::Over(status));
        }
        self.readers().insert(id.as_str().to_owned(), reader);
        Ok(RunState::UnderWay(status))
    }

    /// A place for a run, if it is its object's turn.
    ///
    /// # Errors
    ///
    /// When the folder of runs cannot be read.
    pub async fn place(&self, owner: &RunOwner) -> Result<Option<RunPlace>, RunsError> {
        let runs = self.runs.clone();
        let Ok(under_way) = tokio::task::spawn_blocking(move || runs.under_way()).await else { return Ok(None) };
        let under_way: Vec<_> = under_way?.into_iter().map(|(_, owner)| owner).collect();
        Ok(self.places.ask(owner, &under_way, Instant::now()))
    }

    /// Whether the checkout and its environment can be used. Why not, the administrator is told.
    pub async fn is_usable(&self) -> bool {
        // One looks, and all others wait for what it finds.
        let mut known = self.inspected.lock().await;
        if let Some((_, usable)) = known.filter(|(at, _)| at.elapsed() < INSPECTED_FOR) {
            return usable;
        }
        let installation = self.installation.clone();
        let faults = tokio::task::spawn_blocking(move || installation.inspect().err().unwrap_or_default()).await;
        let usable = matches!(&faults, Ok(faults) if faults.is_empty());
        // It is looked again and again, and told once.
        if known.is_none_or(|(_, usable)| usable) {
            for fault in faults.into_iter().flatten() {
                warn!(%fault, "kubespray cannot be run");
            }
        }
        *known = Some((Instant::now(), usable));
        usable
    }

    /// Begins a run that is noted in its object's status, or finds it.
    ///
    /// # Errors
    ///
    /// When it cannot be run.
    pub async fn begin(&self, request: &RunRequest) -> Result<(), RunsError> {
        let runs = self.runs.clone();
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || runs.prune(KEPT)).await {
            warn!(%error, "old runs cannot be removed");
        }
        self.runs.start(&self.installation, request).await?;
        self.meters.begun(&request.id);
        Ok(())
    }

    /// Has a run end; whether it has.
    ///
    /// # Errors
    ///
    /// When that cannot be noted.
    pub async fn cancel(&self, owner: &RunOwner, run: &RunProgress) -> Result<bool, RunsError> {
        let id = run_id(&owner.uid, run.number)?;
        self.readers().remove(id.as_str());
        match self.runs.cancel(&id).await {
            Err(RunsError::Unknown(_)) => Ok(true),
            cancelled => Ok(cancelled?.is_over()),
        }
    }

    /// Has every run over an object's nodes end, whichever object asked for it; whether all have.
    ///
    /// # Errors
    ///
    /// When runs cannot be read, or that cannot be noted.
    pub async fn cancel_all(&self, owner: &RunOwner) -> Result<bool, RunsError> {
        let runs = self.runs.clone();
        let Ok(under_way) = tokio::task::spawn_blocking(move || runs.under_way()).await else { return Ok(false) };
        let mut are_over = true;
        for (id, _) in under_way?.into_iter().filter(|(_, of)| of.as_ref().is_some_and(|of| of.uid == owner.uid)) {
            self.readers().remove(id.as_str());
            are_over &= match self.runs.cancel(&id).await {
                Err(RunsError::Unknown(_)) => true,
                cancelled => cancelled?.is_over(),
            };
        }
        Ok(are_over)
    }

    /// The keys of hosts that a run knows.
    ///
    /// # Errors
    ///
    /// When they cannot be read.
    pub fn known_hosts(&self, owner: &RunOwner, run: &RunProgress) -> Result<String, RunsError> {
        self.runs.known_hosts(&run_id(&owner.uid, run.number)?)
    }

    /// The kubeconfig that a run left.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn kubeconfig(&self, owner: &RunOwner, run: &RunProgress) -> Result<Option<secrecy::SecretString>, RunsError> {
        self.runs.kubeconfig(&run_id(&owner.uid, run.number)?)
    }

    /// Counts a run as it is found.
    async fn count(&self, id: &RunId, is_under_way: bool) {
        if is_under_way {
            return self.meters.begun(id);
        }
        if self.meters.is_over(id) {
            let (runs, id) = (self.runs.clone(), id.clone());
            // What cannot be read, or went meanwhile, came to nothing that anybody knows.
            if let Ok(Ok(status)) = tokio::task::spawn_blocking(move || runs.status(&id)).await {
                self.meters.ended(&status);
            }
        }
    }

    /// Removes what a run left of secrets that is over and concluded.
    pub async fn forget_secrets(&self, owner: &RunOwner, run: &RunProgress, with_kubeconfig: bool) {
        let (Ok(id), runs) = (run_id(&owner.uid, run.number), self.runs.clone()) else { return };
        let removed = tokio::task::spawn_blocking(move || runs.forget_secrets(&id, with_kubeconfig)).await;
        if let Ok(Err(error)) = removed {
            warn!(run = %run.id, %error, "secrets that a run left cannot be removed");
        }
    }

    /// Looks after all runs of this box: tells those that are lost, and ends those of objects that are gone.
    ///
    /// # Errors
    ///
    /// When the folder of runs or the API cannot be read.
    pub async fn look_after(self: Arc<Self>, client: Client) -> anyhow::Result<()> {
        let all = self.runs.settle_all().await?;
        let under_way = all.iter().filter(|run| run.is_under_way).count();
        self.meters.are(under_way, self.places.waiting(Instant::now()));
        for run in all {
            let id = &run.id;
            self.count(id, run.is_under_way).await;
            if run.is_newly_lost {
                warn!(run = %id, "a run of kubespray is lost: its supervisor died, or the box did");
            }
            let Some(owner) = run.owner.filter(|_| run.is_under_way) else { continue };
            let is_there = match &run.requester {
                Some(requester) => {
                    is_there::<Provisioning>(&client, &owner).await? && is_there::<Software>(&client, requester).await?
                }
                None => is_there::<Provisioning>(&client, &owner).await?,
            };
            if !is_there {
                info!(run = %id, provisioning = %named(&owner.namespace, &owner.name), "a run is cancelled, for its object is gone");
                self.runs.cancel(id).await?;
            }
        }
        Ok(())
    }
}

/// Whether the object of a run is there, and no other one of its name.
async fn is_there<K>(client: &Client, of: &RunOwner) -> Result<bool, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let found = Api::<K>::namespaced(client.clone(), &of.namespace).get_opt(&of.name).await?;
    Ok(found.and_then(|found| found.uid()).as_ref() == Some(&of.uid))
}

/// Whether a run is not known to be over.
pub fn is_open(run: &RunProgress) -> bool {
    [STARTING, RUNNING].contains(&run.state.as_str())
}

/// The name of an object's run: the same object and number are the same run, whoever asks.
///
/// # Errors
///
/// Never, for what is made is a name.
pub fn run_id(uid: &str, number: i64) -> Result<RunId, RunsError> {
    let digest = Sha256::digest(format!("{uid}\0{number}"));
    let digits: String = hex(&digest[..12]);
    Ok(format!("p-{digits}").parse()?)
}
