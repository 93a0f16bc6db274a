//! The session: asks for steps, has them done, tells how they went.
//!
//! A step of another generation than the session's is never done. When any answer says that the session has ended,
//! the running step is cancelled at once.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::client::{AgentCallError, ApplianceClient};
use super::log::LogRing;
use crate::api::metal3::HardwareDetails;
use crate::protocol::{Action, AgentSession, AgentStep, FoundBmc, MAX_LOG, OpenSession, StepEvent, StepOutcome};

/// Lines of log sent with a failure.
const LOG_LINES: usize = 200;
/// How often the log is sent while there is something new in it.
const SHIP_EVERY: std::time::Duration = std::time::Duration::from_secs(5);
/// Longest message of an outcome in bytes.
const MAX_MESSAGE: usize = 4000;

/// How a session ended, and so what the machine does next.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The appliance wants a reboot.
    Reboot,
    /// The appliance wants the installed system started, which is loaded.
    Kexec,
    /// The appliance wants the power off.
    PowerOff,
    /// The session is not the current one any more.
    Revoked(String),
    /// The appliance does not want this machine.
    Refused(String),
    /// The server's certificate was not issued by the pinned CA.
    Untrusted(String),
    /// The appliance did not answer for too long.
    Unreachable(String),
}

/// Why a step failed, with its causes, for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StepError(pub String);

/// What a step did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepDone {
    /// For the operator.
    pub message: String,
    /// The hardware, from `inspect`.
    pub inventory: Option<HardwareDetails>,
    /// The machine's BMC, from `inspect`.
    pub bmc: Option<FoundBmc>,
}

impl StepDone {
    /// Something was done that needs only words.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

/// How far the running step is. Cheap to clone; reporting never waits.
#[derive(Clone)]
pub struct StepReporter {
    sender: Arc<watch::Sender<StepEvent>>,
}

impl StepReporter {
    /// Tells how far the step is: its phase in a word or two, bytes done, bytes in all.
    pub fn report(&self, phase: &str, bytes_done: Option<u64>, bytes_total: Option<u64>) {
        self.sender.send_modify(|event| {
            if event.phase != phase {
                event.phase = phase.chars().take(80).collect();
                event.message = None;
            }
            event.bytes_done = bytes_done;
            event.bytes_total = bytes_total;
        });
    }

    /// Adds words for the operator to the phase.
    pub fn message(&self, message: &str) {
        self.sender.send_modify(|event| event.message = Some(message.chars().take(500).collect()));
    }
}

/// A step to be done.
pub struct StepJob {
    /// What to do. Never `reboot`, `power-off` or `collect-logs`: the session does these itself.
    pub action: Action,
    /// The appliance, for the image.
    pub client: ApplianceClient,
    /// Where to tell how far it is.
    pub progress: StepReporter,
    /// When cancelled, no disk may be touched any more.
    pub cancel: CancellationToken,
}

/// Does steps.
#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// The session is open; may set what depends on it (clock, host name). Called once.
    fn opened(&self, session: &AgentSession);
    /// Does one step. A panic counts as a failure.
    ///
    /// # Errors
    /// Why the step failed.
    async fn run(&self, job: StepJob) -> Result<StepDone, StepError>;
    /// The kernel's messages, for `collect-logs`.
    fn kernel_log(&self) -> Vec<String>;
}

/// Opens a session and does its steps until it ends. Returns in bounded time once the appliance stops answering.
pub async fn run(
    client: ApplianceClient,
    hello: &OpenSession,
    executor: Arc<dyn Executor>,
    log: &LogRing,
) -> SessionEnd {
    let opened = client.retry("a session", || client.open(hello)).await;
    let session = match opened {
        Ok(session) => session,
        Err(error) => return SessionEnd::from(error),
    };
    tracing::info!(host = session.host, generation = session.generation, "session opened");
    executor.opened(&session);
    let shipper = LogShipper { client: client.clone(), log: log.clone(), sent: Arc::default() };
    let mut runner = Runner { client, session, executor, log, shipper: shipper.clone(), last: None };
    let end = tokio::select! {
        steps = runner.steps() => steps,
        never = shipper.keep_sending() => match never {},
    };
    match end {
        Ok(end) => end,
        Err(error) => SessionEnd::from(error),
    }
}

/// Sends the log to the appliance as it grows. Cheap to clone; clones go on where another stopped.
#[derive(Clone)]
struct LogShipper {
    client: ApplianceClient,
    log: LogRing,
    /// Lines sent. Locked while a piece is on its way, so that no line goes twice.
    sent: Arc<tokio::sync::Mutex<u64>>,
}

impl LogShipper {
    async fn keep_sending(&self) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(SHIP_EVERY).await;
            self.send().await;
        }
    }

    /// Sends what is new. What cannot be sent waits for the next time: a log is not worth stopping for.
    async fn send(&self) {
        let mut sent = self.sent.lock().await;
        loop {
            let (piece, next) = self.log.since(*sent);
            if piece.is_empty() {
                return;
            }
            match self.client.log(&piece).await {
                Ok(()) => *sent = next,
                // It will not be taken later either.
                Err(AgentCallError::Refused { .. }) => {
                    *sent = next;
                    return;
                }
                Err(error) => return tracing::debug!(%error, "cannot deliver the log"),
            }
        }
    }
}

impl From<AgentCallError> for SessionEnd {
    fn from(error: AgentCallError) -> Self {
        match error {
            AgentCallError::Unreachable(reason) => Self::Unreachable(reason),
            AgentCallError::Untrusted(reason) => Self::Untrusted(reason),
            AgentCallError::Revoked(reason) => Self::Revoked(reason),
            AgentCallError::Gone(reason) => Self::Revoked(reason),
            AgentCallError::Refused { reason, .. } => Self::Refused(reason),
        }
    }
}

struct Runner<'a> {
    client: ApplianceClient,
    session: AgentSession,
    executor: Arc<dyn Executor>,
    log: &'a LogRing,
    shipper: LogShipper,
    /// Outcome of the last step. Its id is what the next step comes after.
    last: Option<StepOutcome>,
}

/// Why a running step is cancelled.
enum Stop {
    Revoked(String),
    Gone(String),
    Stalled,
}

impl Runner<'_> {
    async fn steps(&mut self) -> Result<SessionEnd, AgentCallError> {
        loop {
            let client = &self.client;
            let after = self.last.as_ref().map(|outcome| outcome.step.as_str()).unwrap_or_default();
            let step = match client.retry("the next step", || client.next_step(after)).await {
                Ok(Some(step)) => step,
                Ok(None) => continue,
                Err(AgentCallError::Gone(reason)) => {
                    tracing::info!(reason, "the appliance no longer wants the last step");
                    // The appliance answers 410 at once: do not ask again at once.
                    tokio::time::sleep(self.client.timing().event_gap).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Some(outcome) = self.last.clone().filter(|outcome| outcome.step == step.id) {
                // The appliance lost an outcome that it had taken: tell again, do not do again.
                self.tell(outcome).await?;
                tokio::time::sleep(self.client.timing().event_gap).await;
                continue;
            }
            if let Some(end) = self.step(step).await? {
                return Ok(end);
            }
        }
    }

    /// Does one step; `Some` when the machine is to go down after it.
    async fn step(&mut self, step: AgentStep) -> Result<Option<SessionEnd>, AgentCallError> {
        let name = step.action.kind();
        tracing::info!(step = step.id, "step {name} started");
        if step.generation != self.session.generation {
            let message = format!(
                "{name} belongs to generation {} of the host and this boot to generation {}: not done",
                step.generation, self.session.generation
            );
            self.finish(&step, Err(StepError(message))).await?;
            return Ok(None);
        }
        let (outcome, end) = match step.action {
            Action::Reboot => (Ok(StepDone::new("rebooting")), Some(SessionEnd::Reboot)),
            Action::PowerOff => (Ok(StepDone::new("powering off")), Some(SessionEnd::PowerOff)),
            Action::CollectLogs => (self.send_log().await?, None),
            Action::Kexec { .. } => match self.execute(&step).await? {
                Some(Ok(done)) => (Ok(done), Some(SessionEnd::Kexec)),
                // The firmware boots the root disk too: that is only slower.
                Some(Err(error)) => {
                    let message = format!("the installed system is started through the firmware: {error}");
                    (Ok(StepDone::new(message)), Some(SessionEnd::Reboot))
                }
                None => return Ok(self.taken_back(step.id)),
            },
            _ => match self.execute(&step).await? {
                Some(outcome) => (outcome, None),
                None => return Ok(self.taken_back(step.id)),
            },
        };
        match self.finish(&step, outcome).await {
            // It was taken, only its answer was lost: the host has gone on and waits for the machine to go down.
            Err(AgentCallError::Revoked(reason)) if matches!(end, Some(SessionEnd::PowerOff | SessionEnd::Reboot)) => {
                tracing::info!(reason, "the appliance has the outcome of {name} already");
            }
            told => told?,
        }
        Ok(end)
    }

    /// A step that the appliance does not want any more has no outcome to tell.
    fn taken_back(&mut self, step: String) -> Option<SessionEnd> {
        let message = "taken back by the appliance".to_owned();
        self.last = Some(StepOutcome { step, message, ..StepOutcome::default() });
        None
    }

    /// Runs a step on a task of its own, sends its events, cancels it when it is not wanted any more or stalls.
    /// `None` when the appliance has taken it back.
    async fn execute(&self, step: &AgentStep) -> Result<Option<Result<StepDone, StepError>>, AgentCallError> {
        let timing = self.client.timing().clone();
        let first = StepEvent { step: step.id.clone(), phase: step.action.kind().to_string(), ..StepEvent::default() };
        let (sender, mut progress) = watch::channel(first);
        let cancel = CancellationToken::new();
        // Whatever ends this function also ends the step.
        let guard = cancel.clone().drop_guard();
        let job = StepJob {
            action: step.action.clone(),
            client: self.client.clone(),
            progress: StepReporter { sender: Arc::new(sender) },
            cancel,
        };
        let executor = self.executor.clone();
        let mut task = tokio::spawn(async move { executor.run(job).await });
        let mut tick = tokio::time::interval(timing.event_gap);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut sent: Option<Instant> = None;
        let mut moved = Instant::now();
        let stop = loop {
            // Events are sent one at a time, and neither they nor the ticks hold up the end of the step.
            let event = async {
                tick.tick().await;
                if progress.has_changed().unwrap_or(false) {
                    moved = Instant::now();
                } else if moved.elapsed() > timing.stalled {
                    return Some(Stop::Stalled);
                } else if sent.is_some_and(|sent| sent.elapsed() < timing.heartbeat) {
                    return None;
                }
                sent = Some(Instant::now());
                let event = progress.borrow_and_update().clone();
                match self.client.event(&event).await {
                    Err(AgentCallError::Revoked(reason)) => Some(Stop::Revoked(reason)),
                    Err(AgentCallError::Gone(reason)) => Some(Stop::Gone(reason)),
                    // A lost event is not worth stopping for: the next one says more.
                    Err(error) => {
                        tracing::debug!(%error, "cannot deliver an event");
                        None
                    }
                    Ok(()) => None,
                }
            };
            tokio::select! {
                biased;
                joined = &mut task => return Ok(Some(joined.unwrap_or_else(|error| Err(crash(error))))),
                () = self.client.revoked().cancelled() => break Stop::Revoked("in the middle of a step".into()),
                stop = event => if let Some(stop) = stop {
                    break stop;
                }
            }
        };
        drop(guard);
        if tokio::time::timeout(timing.cancel, &mut task).await.is_err() {
            tracing::error!(seconds = timing.cancel.as_secs(), "the cancelled step did not end in time");
            task.abort();
        }
        match stop {
            Stop::Revoked(reason) => Err(AgentCallError::Revoked(reason)),
            Stop::Gone(reason) => {
                tracing::warn!(step = step.id, reason, "the appliance cancelled the step");
                Ok(None)
            }
            Stop::Stalled => {
                let phase = progress.borrow().phase.clone();
                let message = format!("{phase}: no progress for {} s; cancelled", timing.stalled.as_secs());
                Ok(Some(Err(StepError(message))))
            }
        }
    }

    async fn send_log(&self) -> Result<Result<StepDone, StepError>, AgentCallError> {
        // What was sent as it came is not sent again.
        let mut sent = self.shipper.sent.lock().await;
        let (pieces, total) = self.log.pieces(*sent, &self.executor.kernel_log());
        let count = pieces.len();
        for piece in pieces {
            match self.client.retry("sending the log", || self.client.log(&piece)).await {
                Ok(()) => {}
                Err(AgentCallError::Refused { status, reason }) => {
                    return Ok(Err(StepError(format!("the log was refused: {reason} (HTTP {status})"))));
                }
                Err(error) => return Err(error),
            }
        }
        *sent = total;
        Ok(Ok(StepDone::new(format!("log sent in {count} pieces"))))
    }

    async fn finish(&mut self, step: &AgentStep, result: Result<StepDone, StepError>) -> Result<(), AgentCallError> {
        let name = step.action.kind();
        let outcome = match result {
            Ok(done) => {
                tracing::info!(step = step.id, "step {name} done: {}", done.message);
                StepOutcome {
                    step: step.id.clone(),
                    succeeded: true,
                    message: cut(&done.message),
                    inventory: done.inventory,
                    bmc: done.bmc,
                    log: Vec::new(),
                }
            }
            Err(error) => {
                tracing::error!(step = step.id, "step {name} failed: {error}");
                StepOutcome {
                    step: step.id.clone(),
                    succeeded: false,
                    message: cut(&error.0),
                    log: self.log.tail(LOG_LINES),
                    ..StepOutcome::default()
                }
            }
        };
        // Before the outcome: when that is known, so is all that led to it. And a machine that goes down sends no more.
        if tokio::time::timeout(self.client.timing().call, self.shipper.send()).await.is_err() {
            tracing::warn!("cannot send the log in time");
        }
        self.tell(outcome).await
    }

    /// Sends an outcome until it is acknowledged. One that the appliance refuses is sent once more without its log.
    async fn tell(&mut self, mut outcome: StepOutcome) -> Result<(), AgentCallError> {
        loop {
            let client = &self.client;
            match client.retry("taking a result", || client.result(&outcome)).await {
                Ok(()) => break,
                Err(AgentCallError::Gone(reason)) => {
                    tracing::info!(step = outcome.step, reason, "the appliance no longer wants the result");
                    break;
                }
                Err(AgentCallError::Refused { status, reason }) if !outcome.log.is_empty() => {
                    tracing::warn!(
                        step = outcome.step,
                        %status,
                        reason,
                        "the appliance refused the result: it is sent again without the log"
                    );
                    outcome.log.clear();
                }
                Err(error) => return Err(error),
            }
        }
        // What is kept to be told again needs neither.
        outcome.log.clear();
        self.last = Some(outcome);
        Ok(())
    }
}

fn crash(error: tokio::task::JoinError) -> StepError {
    match error.try_into_panic() {
        Ok(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            StepError(format!("fault in the agent: {}", text.unwrap_or_else(|| "panic".into())))
        }
        Err(_) => StepError("the step was cancelled".into()),
    }
}

fn cut(message: &str) -> String {
    let limit = MAX_MESSAGE.min(MAX_LOG);
    let mut end = message.len().min(limit);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message[..end].to_owned()
}
