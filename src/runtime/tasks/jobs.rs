//! Long work for objects: started once, found again, cancelled with its object.
//!
//! Whoever looks at an object asks for its work with [`Jobs::start`], as often as he likes. What is under way for this version of
//! the object is what he gets; what is under way for another version ends first. The work does not end with who asked for it, but
//! with [`Handle::cancel`], which whoever sees the object go calls, and with its [`JobRunner`].
//!
//! What is under way is known in memory only. After a restart nothing is, and the object's status, which the work keeps, says that
//! something was: whoever looks at the object asks again, and the work must know how to go on with or to repeat what was half done.

use std::collections::HashMap;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::ResourceExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::SupervisedTask;
use crate::runtime::controller::words;
use crate::runtime::watches::ObjectKey;

/// How long work may take to end once the process ends. Then it ends wherever it is, as in a crash.
const UNDER_WAY: Duration = Duration::from_secs(5);

/// Long work of one sort, and what it shows while it is under way.
pub trait Job: Send + Sync + 'static {
    /// What it comes to.
    type Done: Clone + Send + Sync + 'static;
    /// Why it did not.
    type Error: Display + Clone + Send + Sync + 'static;

    /// How long it may take to end after it was cancelled; then it is dropped, wherever it is.
    const GRACE: Duration = UNDER_WAY;

    /// How far it is, 0 to 100, where it knows.
    fn percent(&self) -> Option<u8> {
        None
    }
}

/// Which object work is for: one that was made anew under the same name is another, and so is one whose spec changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.generation`
    pub generation: i64,
}

impl ObjectVersion {
    /// Of an object.
    pub fn of(object: &impl ResourceExt) -> Self {
        Self { uid: object.uid().unwrap_or_default(), generation: object.meta().generation.unwrap_or_default() }
    }
}

/// Why work came to no end of its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobUnfinished<E> {
    /// It says so itself.
    #[error("{0}")]
    Failed(E),
    /// A fault of this program.
    #[error("a fault of this program: {0}")]
    Panicked(String),
    /// It was cancelled, or nobody supervises such work now.
    #[error("it was cancelled")]
    Cancelled,
}

/// How work ended.
type JobOutcome<J> = Result<<J as Job>::Done, JobUnfinished<<J as Job>::Error>>;

/// Work of one sort that is under way, by object. Cheap to clone; all clones are the same.
pub struct Jobs<J: Job>(Arc<Mutex<JobsState<J>>>);

struct JobsState<J: Job> {
    /// Which are numbered, so that who ends removes only himself.
    begun: u64,
    under_way: HashMap<ObjectKey, (u64, Handle<J>)>,
    /// Where work is supervised, and as what; `None` while nobody does.
    supervised: Option<(SupervisedTask, mpsc::UnboundedSender<BoxFuture<'static, ()>>)>,
}

impl<J: Job> Clone for Jobs<J> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<J: Job> Default for Jobs<J> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(JobsState { begun: 0, under_way: HashMap::new(), supervised: None })))
    }
}

/// Work that was started, for whoever asked for it or found it. Work goes on when it is dropped.
pub struct Handle<J: Job> {
    /// The object.
    pub version: ObjectVersion,
    /// What the work shows of itself.
    pub work: Arc<J>,
    stop: CancellationToken,
    /// Closed without a value when the work was dropped.
    ended: watch::Receiver<Option<JobOutcome<J>>>,
}

impl<J: Job> Clone for Handle<J> {
    fn clone(&self) -> Self {
        let Self { version, work, stop, ended } = self;
        Self { version: version.clone(), work: work.clone(), stop: stop.clone(), ended: ended.clone() }
    }
}

impl<J: Job> Handle<J> {
    /// Has it end, soon.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// Why it came to none of its own.
    pub async fn ended(mut self) -> JobOutcome<J> {
        match self.ended.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            _ => Err(JobUnfinished::Cancelled),
        }
    }
}

impl<J: Job> Jobs<J> {
    fn state(&self) -> MutexGuard<'_, JobsState<J>> {
        // Only whole steps happen under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are under way.
    pub fn len(&self) -> usize {
        self.state().under_way.len()
    }

    /// Whether none is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is under way for an object.
    pub fn find(&self, key: &ObjectKey) -> Option<Handle<J>> {
        self.state().under_way.get(key).map(|(_, handle)| handle.clone())
    }

    /// Starts work for a version of an object; what is under way for it already is found instead. What is under way for another
    /// version is cancelled, and has ended when this returns. `begin` gets what the work shows, and the token that tells it to end.
    pub async fn start<F>(
        &self,
        key: &ObjectKey,
        version: &ObjectVersion,
        work: J,
        begin: impl FnOnce(Arc<J>, CancellationToken) -> F,
    ) -> Handle<J>
    where
        F: Future<Output = Result<J::Done, J::Error>> + Send + 'static,
    {
        loop {
            let former = {
                let mut state = self.state();
                match state.under_way.get(key) {
                    Some((_, handle)) if handle.version == *version && !handle.stop.is_cancelled() => {
                        return handle.clone();
                    }
                    Some((_, former)) => former.clone(),
                    None => return self.begin(&mut state, key, version, work, begin),
                }
            };
            former.cancel();
            // How it ended was for somebody else.
            former.ended().await.ok();
        }
    }

    fn begin<F>(
        &self,
        state: &mut JobsState<J>,
        key: &ObjectKey,
        version: &ObjectVersion,
        work: J,
        begin: impl FnOnce(Arc<J>, CancellationToken) -> F,
    ) -> Handle<J>
    where
        F: Future<Output = Result<J::Done, J::Error>> + Send + 'static,
    {
        let (tell, ended) = watch::channel(None);
        let handle = Handle { version: version.clone(), work: Arc::new(work), stop: CancellationToken::new(), ended };
        let Some((task, supervisor)) = state.supervised.clone() else { return handle };
        state.begun += 1;
        let (number, jobs, key) = (state.begun, self.clone(), key.clone());
        state.under_way.insert(key.clone(), (number, handle.clone()));
        let (shown, stop) = (handle.work.clone(), handle.stop.clone());
        let future = begin(handle.work.clone(), stop.clone());
        let run = task.begin_for(name(&key), move || shown.percent());
        let whole = async move {
            let outcome = to_its_end(future, J::GRACE, stop).await;
            match &outcome {
                Ok(_) => run.end(Ok::<_, String>(())),
                Err(JobUnfinished::Failed(error)) => run.end(Err(format!("{}: {error}", name(&key)))),
                Err(JobUnfinished::Panicked(text)) => run.panicked(&format!("{}: {text}", name(&key))),
                Err(JobUnfinished::Cancelled) => drop(run),
            }
            let mut state = jobs.state();
            if state.under_way.get(&key).is_some_and(|(of, _)| *of == number) {
                state.under_way.remove(&key);
            }
            drop(state);
            tell.send_replace(Some(outcome));
        };
        // A supervisor that has ended meanwhile drops it, which its handle tells.
        supervisor.send(whole.boxed()).ok();
        handle
    }

    /// Has work supervised as this task, until the supervisor is dropped: before, what is started is cancelled at once.
    pub fn supervisor(&self, task: SupervisedTask) -> JobRunner<J> {
        let (send, started) = mpsc::unbounded_channel();
        let mut state = self.state();
        state.under_way.clear();
        state.supervised = Some((task, send));
        JobRunner { jobs: self.clone(), started }
    }
}

/// The work's end, in whichever way. Work that was cancelled has its grace.
async fn to_its_end<D, E>(
    work: impl Future<Output = Result<D, E>>,
    grace: Duration,
    stop: CancellationToken,
) -> Result<D, JobUnfinished<E>> {
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    let ended = tokio::select! {
        ended = AssertUnwindSafe(work).catch_unwind() => ended,
        () = too_late => return Err(JobUnfinished::Cancelled),
    };
    match ended {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) if stop.is_cancelled() => Err(JobUnfinished::Cancelled),
        Ok(Err(error)) => Err(JobUnfinished::Failed(error)),
        Err(panic) => Err(JobUnfinished::Panicked(words(&*panic))),
    }
}

/// `namespace/name`, or the name where there is no namespace.
fn name((namespace, name): &ObjectKey) -> String {
    if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") }
}

/// Runs what is started, each in a task of its own. All of it ends when this is dropped.
pub struct JobRunner<J: Job> {
    jobs: Jobs<J>,
    started: mpsc::UnboundedReceiver<BoxFuture<'static, ()>>,
}

impl<J: Job> JobRunner<J> {
    /// Runs it until `stop`, and then to its end, which comes within seconds.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut all = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(work) = self.started.recv() => drop(all.spawn(work)),
                Some(_) = all.join_next() => {}
            }
        }
        self.jobs.state().under_way.values().for_each(|(_, handle)| handle.cancel());
        let ended = async { while all.join_next().await.is_some() {} };
        if tokio::time::timeout(UNDER_WAY, ended).await.is_err() {
            tracing::warn!("long work that is under way takes too long to end; it ends where it is");
        }
    }
}

impl<J: Job> Drop for JobRunner<J> {
    fn drop(&mut self) {
        let mut state = self.jobs.state();
        state.supervised = None;
        state.under_way.clear();
    }
}
