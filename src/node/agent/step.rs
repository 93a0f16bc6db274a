//! One try of one step: noted, done, noted.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::sleep;

use super::Agent;
use crate::api::lcm::{Phase, StateItem, StateItemStatus};
use crate::node::client::DeploymentSecret;
use crate::node::effect::NodeEffect;
use crate::node::report::{MAX_MESSAGE, bounded};
use crate::node::runner::{self, Bench, ItemOutcome};

/// What a step ends with that is not wanted any more: SIGTERM's.
const TAKEN_AWAY: i32 = 143;

impl Agent {
    /// Tries a step once, to its end or until it is not wanted any more. How long nothing is done then.
    pub(super) async fn step(&self, item: &StateItem) -> Duration {
        let deployment = match self.deployment(item).await {
            Ok(deployment) => deployment,
            Err(reason) => {
                self.waits_for(&item.name, reason);
                return self.retry_least();
            }
        };
        let scratch = self.config.run_folder.join("step");
        if let Err(error) = runner::scratch(&scratch, deployment.as_ref()) {
            self.waits_for(&item.name, format!("waiting to begin: cannot write {}: {error}", scratch.display()));
            runner::remove(&scratch).ok();
            return self.retry_least();
        }
        self.journal.borrow().tell(NodeEffect::DeploymentLaid);
        if let Err(error) = self.note_begin(item) {
            let reason = format!("waiting for room: cannot write {}: {error}", self.config.state_folder.display());
            self.waits_for(&item.name, reason);
            runner::remove(&scratch).ok();
            return self.retry_least();
        }
        self.journal.borrow().tell(NodeEffect::BeginNoted);
        self.waits.borrow_mut().remove(&item.name);
        self.to_tell.notify_one();
        tracing::info!(step = item.name, runner = ?item.runner, "begun");
        let outcome = self.outcome(item, deployment.as_ref()).await;
        // Whatever it left behind: daemons are systemd's children, not a step's.
        if let Err(error) = self.processes.end(self.grace()).await {
            tracing::error!(step = item.name, %error, "processes that it left behind");
        }
        self.journal.borrow().tell(NodeEffect::LeftoversEnded);
        if let Err(error) = runner::remove(&scratch) {
            tracing::error!(%error, "the folder of a step cannot be removed");
        }
        self.journal.borrow().tell(NodeEffect::DeploymentRemoved);
        self.note_end(item, &outcome).await;
        if outcome.code == 0 {
            tracing::info!(step = item.name, "done");
        } else {
            tracing::warn!(step = item.name, code = outcome.code, "failed");
        }
        Duration::ZERO
    }

    async fn outcome(&self, item: &StateItem, deployment: Option<&DeploymentSecret>) -> ItemOutcome {
        let tell = |effect| self.journal.borrow().tell(effect);
        let bench = Bench {
            client: &self.client,
            scratch: self.config.run_folder.join("step"),
            outputs: self.journal.borrow().file("output"),
            state: &self.config.state_folder,
            path: &self.config.path,
            deployment,
            processes: &self.processes,
            grace: self.grace(),
            tell: &tell,
        };
        tokio::select! {
            outcome = runner::run(item, &bench) => outcome,
            () = self.taken_away(item) => {
                ItemOutcome { code: TAKEN_AWAY, text: "was ended: the step was changed or taken away".into(), result: None }
            }
        }
    }

    /// Waits until a step is not wanted any more as it is.
    async fn taken_away(&self, item: &StateItem) {
        let mut wanted = self.wanted.subscribe();
        let hash = item.hash();
        loop {
            if !self.items().iter().any(|other| other.name == item.name && other.hash() == hash) {
                return;
            }
            wanted.changed().await.ok();
        }
    }

    /// What the machine needs to become a node, fetched anew for each try of a step that may need it.
    async fn deployment(&self, item: &StateItem) -> Result<Option<DeploymentSecret>, String> {
        let named = self.journal.borrow().machine.as_ref().map(|machine| machine.spec.deployment_secret_name.clone());
        if item.phase != Phase::Deploy || named.is_none_or(|name| name.is_empty()) {
            return Ok(None);
        }
        match self.client.deployment().await {
            Ok(data) => Ok(Some(data)),
            Err(error) if error.status() == 404 => {
                Err("waiting for the deployment data: the appliance has none for this machine yet".into())
            }
            Err(error) => Err(format!("waiting for the deployment data: {error}")),
        }
    }

    fn note_begin(&self, item: &StateItem) -> std::io::Result<()> {
        let (hash, now) = (item.hash(), Time(self.now()));
        let wanted: Vec<String> = self.items().into_iter().map(|item| item.name).collect();
        let mut journal = self.journal.borrow_mut();
        journal.forget(|name| wanted.iter().any(|wanted| wanted == name));
        journal.before(|records| {
            let before = records.steps.get(&item.name).filter(|step| step.hash == hash);
            let attempt = before.map_or(1, |step| step.attempt.saturating_add(1));
            let step = StateItemStatus { hash, attempt, started_at: Some(now), ..StateItemStatus::default() };
            records.steps.insert(item.name.clone(), step);
        })
    }

    /// Notes the end, however long that takes: it was done, and nothing else is begun before that is known after a crash, too.
    async fn note_end(&self, item: &StateItem, outcome: &ItemOutcome) {
        let finished = Time(self.now());
        let hash = item.hash();
        loop {
            let noted = self.journal.borrow_mut().after(|records| {
                let step = records.steps.entry(item.name.clone()).or_default();
                step.hash.clone_from(&hash);
                step.exit_code = Some(outcome.code);
                step.message = bounded(&outcome.text, MAX_MESSAGE);
                step.result.clone_from(&outcome.result);
                step.finished_at = Some(finished.clone());
            });
            match noted {
                Ok(()) => break,
                Err(error) => {
                    let folder = self.config.state_folder.display();
                    let reason = format!(
                        "ended with exit code {}; waiting for room to note that: cannot write {folder}: {error}",
                        outcome.code
                    );
                    self.waits_for(&item.name, reason);
                    sleep(self.retry_least()).await;
                }
            }
        }
        self.journal.borrow().tell(NodeEffect::EndNoted);
        self.waits.borrow_mut().remove(&item.name);
        self.to_tell.notify_one();
    }
}
