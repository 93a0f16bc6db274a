//! The agent at work: it follows its LCMMachine, works off the steps, keeps keys and token, and tells what it did. All of it on one
//! thread; what waits has a deadline, and what fails is tried again later each time.

mod follow;
mod keep;
mod reboot;
mod step;
mod tell;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::reboot::{RebootTurn, reboot_turn};
use super::client::{Client, SeenMachine};
use super::clock::Clock;
use super::config::{AgentPauses, NodeConfig};
use super::effect::NodeEffect;
use super::journal::{Journal, UpgradeRecord};
use super::plan::{self, NextStep};
use super::processes::{self, StepProcesses};
use super::upgrade::{self, OwnProgram, UpgradeTurn};
use super::{host, runner};
use crate::api::lcm::{AgentUpgradeStatus, StateItem};

/// How the agent came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgentEnd {
    /// It was told to stop.
    Stopped,
    /// Another program has its place.
    Replaced,
}

/// The agent of a node.
pub(super) struct Agent {
    config: NodeConfig,
    config_file: PathBuf,
    client: Rc<Client>,
    clock: Arc<Clock>,
    journal: RefCell<Journal>,
    program: OwnProgram,
    processes: StepProcesses,
    boot_id: String,
    /// The LCMMachine, as the appliance has it.
    seen: RefCell<Option<SeenMachine>>,
    /// Whether it is there no more.
    is_gone: Cell<bool>,
    is_on_trial: Cell<bool>,
    /// Why steps are not begun or not noted, by name.
    waits: RefCell<BTreeMap<String, String>>,
    /// Why keys are not as they are to be.
    key_trouble: RefCell<String>,
    /// Counts what came to be wanted.
    wanted: watch::Sender<u64>,
    to_tell: Notify,
}

impl Agent {
    /// The agent of a configuration. What its predecessor left running ends. `adopts` where this process is a program of its own.
    pub async fn start(
        config: NodeConfig,
        config_file: &Path,
        adopts: bool,
        tell: fn(NodeEffect),
    ) -> Result<Self, String> {
        let said = |what: &Path| {
            let what = what.display().to_string();
            move |error: io::Error| format!("{what}: {error}")
        };
        let journal = Journal::open(&config.state_folder, tell).map_err(said(&config.state_folder))?;
        if adopts {
            processes::adopt();
        }
        let processes = StepProcesses::of(&config.state_folder, adopts);
        processes.end(Duration::ZERO).await.map_err(|error| error.to_string())?;
        make_run_folder(&config.run_folder).map_err(said(&config.run_folder))?;
        runner::remove(&config.run_folder.join("step")).map_err(said(&config.run_folder))?;
        let clock = Arc::new(Clock::default());
        let agent = Self {
            client: Client::new(&config, clock.clone())?,
            program: OwnProgram::of(&config).map_err(|error| format!("this program: {error}"))?,
            boot_id: host::boot_id(&config.root),
            config_file: config_file.to_owned(),
            clock,
            journal: RefCell::new(journal),
            processes,
            seen: RefCell::default(),
            is_gone: Cell::new(false),
            is_on_trial: Cell::new(false),
            waits: RefCell::default(),
            key_trouble: RefCell::default(),
            wanted: watch::Sender::new(0),
            to_tell: Notify::new(),
            config,
        };
        agent.is_on_trial.set(agent.program.is_on_trial(&agent.config));
        agent.note_went_back();
        Ok(agent)
    }

    /// Works until `stop`, or until another program has its place.
    pub async fn run(&self, stop: &CancellationToken) -> AgentEnd {
        let end = tokio::select! {
            end = self.work() => end,
            () = self.follow() => AgentEnd::Stopped,
            () = self.tell() => AgentEnd::Stopped,
            () = self.keep_keys() => AgentEnd::Stopped,
            () = self.keep_token() => AgentEnd::Stopped,
            end = self.on_trial() => end,
            () = stop.cancelled() => AgentEnd::Stopped,
        };
        self.tidy().await;
        end
    }

    /// Ends what a step left, and removes its secrets.
    async fn tidy(&self) {
        if let Err(error) = self.processes.end(self.grace()).await {
            tracing::error!(%error, "a step does not end");
        }
        if let Err(error) = runner::remove(&self.config.run_folder.join("step")) {
            tracing::error!(%error, "the folder of a step cannot be removed");
        }
    }

    /// Works off what there is, each step once; whether all of it is done.
    pub async fn once(&self) -> Result<(), String> {
        match tokio::time::timeout(Duration::from_secs(60), self.client.get()).await {
            Ok(Ok(seen)) => self.learn(seen),
            Ok(Err(error)) => tracing::warn!(%error, "going by the last spec that was read"),
            Err(_) => tracing::warn!("the appliance does not answer: going by the last spec that was read"),
        }
        if self.journal.borrow().machine.is_none() {
            return Err("there is no spec, neither from the appliance nor on this disk".into());
        }
        self.look_at_keys();
        let mut failed = None;
        if !self.is_halted() {
            for item in self.items() {
                if plan::is_done(&item, &self.journal.borrow().records.steps) {
                    continue;
                }
                self.step(&item).await;
                if !plan::is_done(&item, &self.journal.borrow().records.steps) {
                    let reason = self.waits.borrow().get(&item.name).cloned();
                    let reason =
                        reason.or_else(|| Some(self.journal.borrow().records.steps.get(&item.name)?.message.clone()));
                    failed = Some(format!("the step {} is not done: {}", item.name, reason.unwrap_or_default()));
                    break;
                }
            }
        }
        self.tidy().await;
        let is_seen = self.seen.borrow().is_some();
        if is_seen && let Err(error) = self.tell_once().await {
            tracing::warn!(%error, "the appliance does not have the status yet");
        }
        failed.map_or(Ok(()), Err)
    }

    /// The first report of a program that is to take another one's place.
    pub async fn trial(client: &Client, clock: &Clock, pauses: &AgentPauses) -> Result<(), String> {
        let mut tries = 0;
        let limit = Duration::from_millis(pauses.trial);
        let come_up = async {
            loop {
                let error = match client.get().await {
                    Ok(_) => {
                        let patch = serde_json::json!({"status":
                            {"agentVersion": env!("CARGO_PKG_VERSION"), "lastHeard": Time(clock.now())}});
                        match client.patch_status(&patch).await {
                            Ok(_) => return,
                            Err(error) => error,
                        }
                    }
                    Err(error) => error,
                };
                tries += 1;
                tracing::warn!(%error, "not reported yet");
                sleep(AgentPauses::after(pauses.call_least, pauses.call_most, tries)).await;
            }
        };
        tokio::time::timeout(limit, come_up).await.map_err(|_| "the appliance was not reached in time".to_owned())
    }

    fn grace(&self) -> Duration {
        Duration::from_millis(self.config.pauses.grace)
    }

    fn retry_least(&self) -> Duration {
        Duration::from_millis(self.config.pauses.retry_least)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The steps, in order.
    fn items(&self) -> Vec<StateItem> {
        self.journal.borrow().machine.as_ref().map(|machine| machine.spec.items()).unwrap_or_default()
    }

    /// Whether nothing is done but to keep keys.
    fn is_halted(&self) -> bool {
        let journal = self.journal.borrow();
        self.is_gone.get()
            || journal.machine.as_ref().is_none_or(|machine| machine.spec.halt_agent || machine.spec.maintenance)
    }

    /// Says why a step is not begun or not noted.
    fn waits_for(&self, name: &str, reason: String) {
        let before = self.waits.borrow_mut().insert(name.to_owned(), reason.clone());
        if before.as_ref() != Some(&reason) {
            tracing::warn!(step = name, reason, "waiting");
            self.to_tell.notify_one();
        }
    }

    /// Works off steps, reboots, and makes room for another program.
    async fn work(&self) -> AgentEnd {
        let mut wanted = self.wanted.subscribe();
        loop {
            wanted.mark_unchanged();
            let pause = match self.turn() {
                WorkTurn::Idle => None,
                WorkTurn::Later(pause) => Some(pause),
                WorkTurn::Reboot(asked) => {
                    self.reboot(asked).await;
                    Some(self.retry_least())
                }
                WorkTurn::Replace => {
                    if self.replace().await {
                        return AgentEnd::Replaced;
                    }
                    Some(Duration::ZERO)
                }
                WorkTurn::Step(item) => Some(self.step(&item).await),
            };
            match pause {
                None => {
                    wanted.changed().await.ok();
                }
                Some(pause) if pause.is_zero() => tokio::task::yield_now().await,
                Some(pause) => {
                    tokio::time::timeout(pause, wanted.changed()).await.ok();
                }
            }
        }
    }

    fn turn(&self) -> WorkTurn {
        if self.is_halted() {
            return WorkTurn::Idle;
        }
        let journal = self.journal.borrow();
        let Some(machine) = &journal.machine else { return WorkTurn::Idle };
        let boot = self.boot();
        let asked = machine.reboot_requested.as_ref();
        if let RebootTurn::Now(asked) = reboot_turn(asked, journal.records.reboot.as_ref(), &boot, &self.boot_id) {
            return WorkTurn::Reboot(asked);
        }
        let (own, record, pauses) = (self.program.sha256(), journal.records.upgrade.as_ref(), &self.config.pauses);
        let wanted = machine.spec.agent_config.as_ref();
        let limit = match upgrade::turn(wanted, own, record, self.now(), pauses) {
            UpgradeTurn::Now => return WorkTurn::Replace,
            UpgradeTurn::Later(pause) => Some(pause),
            UpgradeTurn::No => None,
        };
        match plan::next(&machine.spec.items(), &journal.records.steps, self.now(), pauses) {
            NextStep::Step(item) => WorkTurn::Step(item),
            NextStep::Later(pause) => WorkTurn::Later(limit.map_or(pause, |limit| limit.min(pause))),
            NextStep::Idle => limit.map_or(WorkTurn::Idle, WorkTurn::Later),
        }
    }

    /// When the kernel began, where the appliance's time is known.
    fn boot(&self) -> Option<Time> {
        let journal = self.journal.borrow();
        journal.records.boot.as_ref().filter(|boot| boot.boot_id == self.boot_id).map(|boot| boot.time.clone())
    }

    /// Replaces this program by the one that is wanted; whether it has.
    async fn replace(&self) -> bool {
        let wanted = self.journal.borrow().machine.as_ref().and_then(|machine| machine.spec.agent_config.clone());
        let Some(wanted) = wanted else { return false };
        let started = Time(self.now());
        let attempt = {
            let journal = self.journal.borrow();
            let before = journal.records.upgrade.as_ref().filter(|record| record.sha256 == wanted.sha256);
            before.map_or(1, |record| record.status.attempt.saturating_add(1))
        };
        let record = |is_refused, error: &str, finished_at| UpgradeRecord {
            sha256: wanted.sha256.clone(),
            is_refused,
            status: AgentUpgradeStatus {
                error: error.to_owned(),
                attempt,
                started_at: Some(started.clone()),
                finished_at,
            },
        };
        let noted = self.journal.borrow_mut().before(|records| records.upgrade = Some(record(false, "", None)));
        if let Err(error) = noted {
            tracing::error!(%error, "the agent is not replaced: that cannot be noted");
            sleep(self.retry_least()).await;
            return false;
        }
        self.to_tell.notify_one();
        tracing::info!(sha256 = wanted.sha256, "fetching another agent");
        let replaced = self.program.replace(&self.client, &wanted, &self.config_file, &self.config).await;
        let after = match &replaced {
            Ok(()) => {
                self.journal.borrow().tell(NodeEffect::ProgramPlaced);
                record(false, "", Some(Time(self.now())))
            }
            Err(fault) => {
                tracing::error!(fault.text, "the agent is not replaced");
                record(fault.is_final, &fault.text, Some(Time(self.now())))
            }
        };
        if let Err(error) = self.journal.borrow_mut().after(|records| records.upgrade = Some(after)) {
            tracing::error!(%error, "how it went to replace the agent cannot be noted");
        }
        self.to_tell.notify_one();
        replaced.is_ok()
    }

    /// A program that does not report from its place makes room for the old one.
    async fn on_trial(&self) -> AgentEnd {
        if !self.is_on_trial.get() {
            std::future::pending::<()>().await;
        }
        sleep(Duration::from_millis(self.config.pauses.trial)).await;
        if self.is_on_trial.get() {
            match self.program.go_back(&self.config) {
                Ok(()) => return AgentEnd::Replaced,
                Err(error) => tracing::error!(%error, "this program did not report, and the old one is not there"),
            }
        }
        std::future::pending().await
    }

    /// Notes that a program that had its place did not stay.
    fn note_went_back(&self) {
        let Some(sha256) = upgrade::went_back(&self.config) else { return };
        let error = "the new program did not report from its place: the old one is back".to_owned();
        let status = AgentUpgradeStatus { error, attempt: 1, started_at: None, finished_at: Some(Time(self.now())) };
        let record = UpgradeRecord { sha256, is_refused: true, status };
        match self.journal.borrow_mut().after(|records| records.upgrade = Some(record)) {
            Ok(()) => upgrade::forget_went_back(&self.config),
            Err(error) => tracing::error!(%error, "a program did not stay, and that cannot be noted"),
        }
    }
}

/// What is to be done.
enum WorkTurn {
    Idle,
    Later(Duration),
    Step(Box<StateItem>),
    Reboot(Time),
    Replace,
}

fn make_run_folder(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    // One that was there.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}
