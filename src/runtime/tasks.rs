//! Supervised tasks: what this process does by itself, in one place, with the result of each.
//!
//! A [`SupervisedTask`] is work under a fixed name that comes again: a sweep, the scheduled backup. Each time is a *run*. When
//! the last one ended, how long it took, what came of it and when the next one is due is in `/metrics` ([`Tasks::register`])
//! and in the kind `Task` ([`publish`]). A panic in a run is that run's result: it ends neither the loop that the run is of,
//! nor the process. A run that does not end is seen by how long it has been under way.
//!
//! ```text
//! let task = tasks.task("image-collection");      // the name is a label of metrics and the name of an object
//!
//! task.every(PERIOD, &stop, || collect()).await;  // a plain loop; one run after the other
//! let done = task.run(collect()).await?;          // one run of a loop that has rules of its own,
//! task.next_in(pause);                            // and when the next one is due, if anybody knows
//! let run = task.begin();                         // a run of which only the end tells what it was:
//! run.end(result);                                // `end`, or `forget` when nothing was to be done
//! ```
//!
//! Long work for an object, as the import of an image, is a run too, of which several may be under way: [`Jobs`] start it once
//! however often it is asked for, and find it again.
//!
//! No tasks are pauses of a protocol, what answers a request, and controllers, whose work is looking at objects.

mod jobs;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use jobs::{Handle, Job, JobRunner, JobUnfinished, Jobs, ObjectVersion};
pub use view::{MANAGER, TaskView, publish};

use super::controller::words;
use crate::log::clean;

/// Longest text of a result, in characters.
const MESSAGE_MAX: usize = 500;
/// Seconds that divide runs by how long they took.
const SECONDS: [f64; 7] = [0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0];

type TaskLabel = [(&'static str, &'static str); 1];
/// Name, help and value of a gauge of a task.
type Gauged = (&'static str, &'static str, fn(&TaskRecord) -> Option<i64>);

/// The tasks of a process. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct Tasks(Arc<SharedTasks>);

struct SharedTasks {
    // std's lock: held for the bookkeeping of one run only.
    records: Mutex<BTreeMap<&'static str, TaskRecord>>,
    /// Told when a run ended otherwise than the one before it.
    news: Notify,
    runs: Family<[(&'static str, &'static str); 2], Counter>,
    seconds: Family<TaskLabel, Histogram, fn() -> Histogram>,
}

impl Default for SharedTasks {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(SECONDS);
        let seconds = Family::new_with_constructor(histogram);
        Self { records: Mutex::default(), news: Notify::new(), runs: Family::default(), seconds }
    }
}

impl Tasks {
    /// The task of this name, which is known from now on. Two of the same name are the same.
    pub fn task(&self, name: &'static str) -> SupervisedTask {
        self.records().entry(name).or_default();
        SupervisedTask { tasks: self.clone(), name }
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<&'static str, TaskRecord>> {
        self.0.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names what is known of them, for a scrape.
    pub fn register(&self, registry: &mut Registry) {
        let SharedTasks { runs, seconds, .. } = &*self.0;
        registry.register("slipway_task_runs", "Runs of a task that ended, by result", runs.clone());
        registry.register("slipway_task_duration_seconds", "How long runs of a task took", seconds.clone());
        let gauges: [Gauged; 4] = [
            ("slipway_task_running", "Runs of a task that are under way", |record| {
                i64::try_from(record.under_way.len()).ok()
            }),
            ("slipway_task_last_run_timestamp_seconds", "When the last run of a task ended", |record| {
                record.last.as_ref().map(|last| last.ended.as_second())
            }),
            ("slipway_task_last_success_timestamp_seconds", "When the last run that succeeded ended", |record| {
                record.last_success.map(Timestamp::as_second)
            }),
            (
                "slipway_task_next_run_timestamp_seconds",
                "When the next run of a task is due, where that is known",
                |record| record.next.map(Timestamp::as_second),
            ),
        ];
        let records = self.records();
        for (name, help, value) in gauges {
            let family = Family::<TaskLabel, Gauge>::default();
            for (task, record) in records.iter() {
                if let Some(value) = value(record) {
                    family.get_or_create(&[("task", *task)]).set(value);
                }
            }
            registry.register(name, help, family);
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunOutcome {
    Succeeded,
    Failed,
    Panicked,
    /// It was told to end, or the loop that it was of ended.
    Cancelled,
}

impl RunOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Panicked => "panicked",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What is known of a task.
#[derive(Default)]
struct TaskRecord {
    /// Runs that ever began, which number them.
    begun: u64,
    under_way: BTreeMap<u64, RunInProgress>,
    last: Option<Last>,
    last_success: Option<Timestamp>,
    /// Runs that ended.
    runs: u64,
    /// Of these, those that failed or panicked.
    failures: u64,
    next: Option<Timestamp>,
}

struct RunInProgress {
    since: Timestamp,
    /// The object that it is for; empty for recurring work.
    object: String,
    percent: Percent,
}

/// How far a run is, 0 to 100, where it knows.
type Percent = Box<dyn Fn() -> Option<u8> + Send + Sync>;

struct Last {
    ended: Timestamp,
    /// Unknown of a run before this process began.
    took: Option<Duration>,
    outcome: RunOutcome,
    message: String,
}

impl TaskRecord {
    fn begin(&mut self, since: Timestamp, object: String, percent: Percent) -> u64 {
        self.begun += 1;
        self.under_way.insert(self.begun, RunInProgress { since, object, percent });
        self.begun
    }

    /// Notes the end of a run; whether it is other than that of the run before.
    fn end(&mut self, number: u64, now: Timestamp, took: Duration, outcome: RunOutcome, message: &str) -> bool {
        self.under_way.remove(&number);
        self.runs += 1;
        self.failures += u64::from(matches!(outcome, RunOutcome::Failed | RunOutcome::Panicked));
        // Until somebody says so.
        self.next = None;
        if outcome == RunOutcome::Succeeded {
            self.last_success = Some(now);
        }
        let news = self.last.as_ref().is_none_or(|last| last.outcome != outcome);
        self.last = Some(Last { ended: now, took: Some(took), outcome, message: clean(message, MESSAGE_MAX) });
        news
    }
}

/// A task. Cheap to clone.
#[derive(Clone)]
pub struct SupervisedTask {
    tasks: Tasks,
    name: &'static str,
}

/// Why a run came to no good end.
#[derive(Debug, thiserror::Error)]
pub enum RunFault<E> {
    /// It says so itself.
    #[error("{0}")]
    Failed(E),
    /// A fault of this program.
    #[error("a fault of this program: {0}")]
    Panicked(String),
}

impl<E> RunFault<E> {
    /// As an error of the work's own; `panicked` makes one of a panic's text.
    pub fn into_error(self, panicked: impl FnOnce(String) -> E) -> E {
        match self {
            Self::Failed(error) => error,
            Self::Panicked(text) => panicked(text),
        }
    }
}

impl SupervisedTask {
    fn record<T>(&self, change: impl FnOnce(&mut TaskRecord) -> T) -> T {
        change(self.tasks.records().entry(self.name).or_default())
    }

    /// Begins a run.
    pub fn begin(&self) -> TaskRun {
        self.begin_for(String::new(), || None)
    }

    /// Begins a run for an object, of which several may be under way.
    fn begin_for(&self, object: String, percent: impl Fn() -> Option<u8> + Send + Sync + 'static) -> TaskRun {
        let now = Timestamp::now();
        let number = self.record(|record| record.begin(now, object, Box::new(percent)));
        TaskRun { task: self.clone(), number, started: Instant::now(), open: true }
    }

    /// One run: the work to its end, or to its panic, which is in the log then.
    ///
    /// # Errors
    ///
    /// What the work says, or that it panicked.
    pub async fn run<T, E: Display>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, RunFault<E>> {
        let run = self.begin();
        match AssertUnwindSafe(work).catch_unwind().await {
            Ok(done) => {
                run.end(done.as_ref().map(|_| ()));
                done.map_err(RunFault::Failed)
            }
            Err(panic) => {
                let text = words(&*panic);
                run.panicked(&text);
                Err(RunFault::Panicked(text))
            }
        }
    }

    /// A run at once and others after it, each this long after the end of the one before, until `stop`. What is under way then
    /// is done first. The work logs its own errors.
    pub async fn every<F, E>(&self, pause: Duration, stop: &CancellationToken, mut work: impl FnMut() -> F)
    where
        F: Future<Output = Result<(), E>>,
        E: Display,
    {
        while !stop.is_cancelled() {
            // Its result is known where tasks are shown.
            self.run(work()).await.ok();
            self.next_in(pause);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// The next run is due in so long.
    pub fn next_in(&self, pause: Duration) {
        self.next_at(Timestamp::now().checked_add(pause).unwrap_or(Timestamp::MAX));
    }

    /// The next run is due then.
    pub fn next_at(&self, next: Timestamp) {
        self.record(|record| record.next = Some(next));
    }

    /// A run succeeded then, before this process began. Later ones are known better.
    pub fn recall(&self, ended: Timestamp) {
        let news = self.record(|record| {
            if record.last.is_some() {
                return false;
            }
            let last = Last { ended, took: None, outcome: RunOutcome::Succeeded, message: String::new() };
            (record.last, record.last_success) = (Some(last), Some(ended));
            true
        });
        if news {
            self.tasks.0.news.notify_one();
        }
    }
}

/// A run under way. One that is dropped was cancelled, or panicked.
#[must_use = "it ends when it is dropped"]
pub struct TaskRun {
    task: SupervisedTask,
    number: u64,
    started: Instant,
    open: bool,
}

impl TaskRun {
    /// It came to its end.
    pub fn end<E: Display>(mut self, result: Result<(), E>) {
        match result {
            Ok(()) => self.close(RunOutcome::Succeeded, ""),
            Err(error) => self.close(RunOutcome::Failed, &error.to_string()),
        }
    }

    /// Nothing was to be done: it was none.
    pub fn forget(mut self) {
        self.open = false;
        self.task.record(|record| record.under_way.remove(&self.number));
    }

    fn panicked(mut self, text: &str) {
        tracing::error!(task = self.task.name, panic = text, "a fault of this program: a run of a task panicked");
        self.close(RunOutcome::Panicked, text);
    }

    fn close(&mut self, outcome: RunOutcome, message: &str) {
        self.open = false;
        let (now, took) = (Timestamp::now(), self.started.elapsed());
        let news = self.task.record(|record| record.end(self.number, now, took, outcome, message));
        let (shared, task) = (&self.task.tasks.0, self.task.name);
        shared.runs.get_or_create(&[("task", task), ("result", outcome.as_str())]).inc();
        shared.seconds.get_or_create(&[("task", task)]).observe(took.as_secs_f64());
        if news {
            shared.news.notify_one();
        }
    }
}

impl Drop for TaskRun {
    fn drop(&mut self) {
        if self.open {
            let outcome = if std::thread::panicking() { RunOutcome::Panicked } else { RunOutcome::Cancelled };
            self.close(outcome, "");
        }
    }
}
