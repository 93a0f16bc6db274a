//! The runs of an appliance: started, found again, followed, cancelled and removed.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use secrecy::SecretString;
use tokio::time::{Instant, sleep};

use super::command::{Plan, plan, utf8};
use super::events::LINE_MAX;
use super::folder::{self, ARTIFACTS, CANCELLED, EVENTS, LOG, PLAN};
use super::installation::Installation;
use super::processes::{end_all, members, signal};
use super::progress::{Lines, Progress};
use super::request::{Request, RequestFault, RunId};
use super::state::{Found, Phase, RunVerdict, Step, judge, verdict};
use super::supervise::Effect;
use crate::files;

/// Most bytes of events that are read; the plugin writes fewer.
const EVENTS_MAX: u64 = 64 << 20;
/// Most bytes of a log that are read at once.
const LOG_PART_MAX: usize = 1 << 20;
/// Most bytes of a kubeconfig.
const KUBECONFIG_MAX: u64 = 1 << 20;
/// How long processes have after SIGTERM that nobody looks after any more.
const GRACE: Duration = Duration::from_secs(10);
/// How long a supervisor may take to note that it starts: it reads and writes a few small files.
const BEGIN: Duration = Duration::from_secs(60);
/// Between two looks at a run that is followed.
const LOOK: Duration = Duration::from_millis(500);
/// Between two looks at a supervisor that begins.
const LOOK_SOON: Duration = Duration::from_millis(10);

/// The program that looks after a run, started in the run's folder without any environment.
#[derive(Clone, Debug)]
pub struct Supervisor {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl Supervisor {
    /// This program, also where its file was replaced meanwhile.
    pub fn this_program() -> Self {
        Self { program: "/proc/self/exe".into(), arguments: ["kubespray", "supervise"].map(Into::into).into() }
    }
}

/// The runs below a folder. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Runs {
    root: PathBuf,
    supervisor: Supervisor,
    tell: fn(Effect),
}

/// Why something about a run could not be done.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    /// It cannot be run.
    #[error(transparent)]
    Request(#[from] RequestFault),
    /// A path cannot stand in Ansible's settings.
    #[error("{0:?} cannot be a folder for Ansible: its path is not absolute, no text, or has one of : % $ {{ \"")]
    Path(PathBuf),
    /// There is no such run.
    #[error("there is no run {0}")]
    Unknown(RunId),
    /// It is under way.
    #[error("run {0} is under way: cancel it first")]
    UnderWay(RunId),
    /// The supervisor ended before it began.
    #[error("the supervisor of run {id} did not begin: {why}")]
    Supervisor {
        /// The run.
        id: RunId,
        /// How it ended.
        why: String,
    },
    /// A file or a process of the run.
    #[error("run {id}: cannot {what}: {source}")]
    Io {
        /// The run.
        id: RunId,
        /// What could not be done.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The folder of all runs.
    #[error("{path}: {source}")]
    Root {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A run, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunStatus {
    /// The playbook's file.
    pub playbook: String,
    /// Where it is.
    pub phase: Phase,
    /// When Ansible was started, in seconds since 1970.
    pub started_at: Option<i64>,
    /// How far it is.
    pub progress: Progress,
    /// What it came to, once it will not change any more.
    pub verdict: Option<RunVerdict>,
}

/// A part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPart {
    /// Lines, without what would rule a terminal.
    pub bytes: Vec<u8>,
    /// Where the next part begins.
    pub next: u64,
    /// Whether nothing will come after this.
    pub last: bool,
}

/// The events of a run, read as they come.
#[derive(Debug, Default)]
struct Reader {
    at: u64,
    lines: Lines,
    progress: Progress,
}

impl Reader {
    fn read_on(&mut self, folder: &Path) -> io::Result<&Progress> {
        let mut file = match files::open(&folder.join(EVENTS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(&self.progress),
            opened => opened?,
        };
        file.seek(SeekFrom::Start(self.at))?;
        let mut piece = vec![0; 4 * LINE_MAX];
        while self.at < EVENTS_MAX {
            let length = file.read(&mut piece)?;
            if length == 0 {
                break;
            }
            self.at += length as u64;
            self.lines.take(&piece[..length], &mut self.progress);
        }
        Ok(&self.progress)
    }
}

impl Runs {
    /// The runs below this folder, which is made if it is not there, for this user alone.
    ///
    /// # Errors
    ///
    /// When it cannot be made or read, or its path cannot stand in Ansible's settings.
    pub fn open(root: &Path, supervisor: Supervisor) -> Result<Self, RunsError> {
        let fail = |source| RunsError::Root { path: root.to_owned(), source };
        if !utf8(root) {
            return Err(RunsError::Path(root.to_owned()));
        }
        match folder::make(root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(fail(error)),
            _ => {}
        }
        if let Some(above) = root.parent() {
            folder::sync(above).map_err(fail)?;
        }
        Ok(Self { root: root.to_owned(), supervisor, tell: |_| {} })
    }

    /// Has each effect told, for whoever tries what a crash leaves between two of them.
    #[must_use]
    pub fn telling(self, tell: fn(Effect)) -> Self {
        Self { tell, ..self }
    }

    /// The folder of a run.
    pub fn folder(&self, id: &RunId) -> PathBuf {
        self.root.join(id.as_str())
    }

    /// Has a run begin that is not there yet, and finds the one that is: a name is one run, whatever is asked for. When this
    /// returns, the run survives this process. Blocks for as long as the disk takes.
    ///
    /// # Errors
    ///
    /// When it cannot be run as it is asked for, or nothing can be written.
    pub async fn start(&self, installation: &Installation, request: &Request) -> Result<Phase, RunsError> {
        request.check()?;
        let folder = self.folder(&request.id);
        if !folder.exists() {
            for path in [&installation.tree, &installation.environment] {
                if !utf8(path) {
                    return Err(RunsError::Path(path.clone()));
                }
            }
            self.make(&folder, &plan(installation, &folder, request), request)
                .map_err(failed(&request.id, "make its folder"))?;
        }
        self.settle(&request.id).await
    }

    pub(super) fn make(&self, folder: &Path, plan: &Plan, request: &Request) -> io::Result<()> {
        let at = folder::unfinished(&self.root, request.id.as_str());
        folder::remove(&at)?;
        folder::make(&at)?;
        (self.tell)(Effect::Made);
        folder::fill(&at, plan, folder, request)?;
        (self.tell)(Effect::Filled);
        fs::rename(&at, folder)?;
        folder::sync(&self.root)?;
        (self.tell)(Effect::Named);
        Ok(())
    }

    fn found(&self, id: &RunId) -> Result<Found, RunsError> {
        let folder = self.folder(id);
        if !folder.exists() {
            return Err(RunsError::Unknown(id.clone()));
        }
        folder::look(&folder, || members(&folder).len()).map_err(failed(id, "read its state"))
    }

    /// Does what is to be done about a run and returns where it is then: a supervisor is started where there never was one, what
    /// a dead one left is ended, and secrets of a run that is over are removed. May be called as often as one likes.
    ///
    /// # Errors
    ///
    /// When there is no such run, its files cannot be read, or its supervisor does not begin.
    pub async fn settle(&self, id: &RunId) -> Result<Phase, RunsError> {
        let folder = self.folder(id);
        let (phase, step) = judge(&self.found(id)?);
        match step {
            Step::Watch => return Ok(phase),
            Step::Tidy => {
                folder::tidy(&folder).map_err(failed(id, "remove its secrets"))?;
                return Ok(phase);
            }
            Step::Supervise => self.supervise(id, &folder).await?,
            Step::End => end_all(&folder, GRACE).await.map_err(failed(id, "end what it left behind"))?,
        }
        let (phase, step) = judge(&self.found(id)?);
        if step == Step::Tidy {
            folder::tidy(&folder).map_err(failed(id, "remove its secrets"))?;
        }
        Ok(phase)
    }

    /// Starts a supervisor, and waits until the run has one.
    async fn supervise(&self, id: &RunId, folder: &Path) -> Result<(), RunsError> {
        let mut command = Command::new(&self.supervisor.program);
        command.args(&self.supervisor.arguments).env_clear().current_dir(folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(failed(id, "start its supervisor"))?;
        (self.tell)(Effect::SupervisorStarted);
        let deadline = Instant::now() + BEGIN;
        let fault = |why: String| RunsError::Supervisor { id: id.clone(), why };
        loop {
            // First: one that has ended has noted what it noted.
            let exited = child.try_wait().map_err(failed(id, "wait for its supervisor"))?;
            let found = self.found(id)?;
            if judge(&found).1 != Step::Supervise && (found.started.is_some() || exited.is_some()) {
                break;
            }
            match exited {
                // Another one was quicker, and has not noted it yet.
                Some(_) if found.supervised => {}
                Some(status) => return Err(fault(format!("it ended with {status}"))),
                None if Instant::now() > deadline => return Err(fault("it takes too long".to_owned())),
                None => {}
            }
            sleep(LOOK_SOON).await;
        }
        // It outlives this process, but is a child of it while both live.
        std::thread::spawn(move || child.wait());
        Ok(())
    }

    /// Has a run end: with SIGTERM, and what does not obey with SIGKILL, ten seconds later. Returns when that is noted, which a
    /// crash does not change; [`Self::follow`] waits for the end. A run that is over stays as it is.
    ///
    /// # Errors
    ///
    /// When there is no such run, or it cannot be noted.
    pub async fn cancel(&self, id: &RunId) -> Result<Phase, RunsError> {
        let folder = self.folder(id);
        if matches!(judge(&self.found(id)?).0, Phase::Starting | Phase::Running) {
            folder::write(&folder, CANCELLED, b"").map_err(failed(id, "note that it is cancelled"))?;
            (self.tell)(Effect::CancelNoted);
        }
        let found = self.found(id)?;
        if let Some(started) = found.started.filter(|_| found.supervised) {
            // One that misses it looks for the file.
            signal(started.pid, started.start_time, Signal::TERM);
        }
        self.settle(id).await
    }

    /// A run as it is now.
    ///
    /// # Errors
    ///
    /// When there is no such run, or its files cannot be read.
    pub fn status(&self, id: &RunId) -> Result<RunStatus, RunsError> {
        self.status_with(id, &mut Reader::default())
    }

    fn status_with(&self, id: &RunId, reader: &mut Reader) -> Result<RunStatus, RunsError> {
        let folder = self.folder(id);
        let found = self.found(id)?;
        let plan: Option<Plan> = folder::read_json(&folder, PLAN).map_err(failed(id, "read its plan"))?;
        // After the state: what was told before an end is read then.
        let progress = reader.read_on(&folder).map_err(failed(id, "read its events"))?.clone();
        let (playbook, expected) = plan.map(|plan| (plan.playbook, plan.expected)).unwrap_or_default();
        let phase = judge(&found).0;
        let verdict = match &phase {
            Phase::Ended(ended) => Some(verdict(ended, &progress, &expected)),
            Phase::NeverStarted => Some(RunVerdict::Cancelled),
            Phase::Lost if found.cancelled => Some(RunVerdict::Cancelled),
            Phase::Lost => Some(RunVerdict::Failed("was under way when its supervisor died, or the box did".into())),
            Phase::Starting | Phase::Running | Phase::Cancelling => None,
        };
        Ok(RunStatus { playbook, phase, started_at: found.started.map(|started| started.at), progress, verdict })
    }

    /// Follows a run to its end, and settles it on the way; `see` is shown each change. The run goes on when this is dropped.
    ///
    /// # Errors
    ///
    /// As [`Self::settle`].
    pub async fn follow(&self, id: &RunId, mut see: impl FnMut(&RunStatus)) -> Result<RunStatus, RunsError> {
        let (mut reader, mut before) = (Reader::default(), None);
        loop {
            self.settle(id).await?;
            let status = self.status_with(id, &mut reader)?;
            if before.as_ref() != Some(&status) {
                see(&status);
            }
            if status.verdict.is_some() {
                return Ok(status);
            }
            before = Some(status);
            sleep(LOOK).await;
        }
    }

    /// The log from this byte on, at most a mebibyte of it.
    ///
    /// # Errors
    ///
    /// When there is no such run, or its log cannot be read.
    pub fn log(&self, id: &RunId, from: u64) -> Result<LogPart, RunsError> {
        // First: what was printed before an end is there then.
        let over = matches!(judge(&self.found(id)?).0, Phase::Ended(_) | Phase::NeverStarted | Phase::Lost);
        let read = || -> io::Result<(u64, Vec<u8>)> {
            let mut file = files::open(&self.folder(id).join(LOG))?;
            let from = from.min(file.metadata()?.len());
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.take(LOG_PART_MAX as u64).read_to_end(&mut bytes)?;
            Ok((from, bytes))
        };
        let (from, bytes) = read().map_err(failed(id, "read its log"))?;
        let (next, last) = (from + bytes.len() as u64, over && bytes.len() < LOG_PART_MAX);
        Ok(LogPart { bytes, next, last })
    }

    /// The administrator's kubeconfig, where the run made one (`kubeconfig_localhost`).
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is longer than a mebibyte.
    pub fn kubeconfig(&self, id: &RunId) -> Result<Option<SecretString>, RunsError> {
        match files::read_text(&self.folder(id).join(ARTIFACTS).join("admin.conf"), KUBECONFIG_MAX) {
            Ok(text) => Ok(Some(text.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(id, "read its kubeconfig")(error)),
        }
    }

    /// All runs by name.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn list(&self) -> Result<Vec<RunId>, RunsError> {
        let fail = |source| RunsError::Root { path: self.root.clone(), source };
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            if entry.file_type().map_err(fail)?.is_dir() {
                found.extend(entry.file_name().to_str().and_then(|name| name.parse::<RunId>().ok()));
            }
        }
        found.sort();
        Ok(found)
    }

    /// Removes a run that is over, with all that it left.
    ///
    /// # Errors
    ///
    /// When it is under way, or cannot be removed.
    pub fn remove(&self, id: &RunId) -> Result<(), RunsError> {
        if matches!(judge(&self.found(id)?).0, Phase::Starting | Phase::Running | Phase::Cancelling) {
            return Err(RunsError::UnderWay(id.clone()));
        }
        let remove = || -> io::Result<()> {
            let old = folder::removed(&self.root, id.as_str());
            folder::remove(&old)?;
            // At once: half a folder would be a run that was never started.
            fs::rename(self.folder(id), &old)?;
            folder::sync(&self.root)?;
            folder::remove(&old)
        };
        remove().map_err(failed(id, "remove it"))
    }

    /// Removes those that are over but the last `keep`, by when they were started.
    ///
    /// # Errors
    ///
    /// When one cannot be read or removed.
    pub fn prune(&self, keep: usize) -> Result<(), RunsError> {
        let mut over = Vec::new();
        for id in self.list()? {
            let found = self.found(&id)?;
            if matches!(judge(&found).0, Phase::Ended(_) | Phase::NeverStarted | Phase::Lost) {
                over.push((found.started.map(|started| started.at), id));
            }
        }
        over.sort();
        let old = over.len().saturating_sub(keep);
        over.iter().take(old).try_for_each(|(_, id)| self.remove(id))
    }
}

fn failed(id: &RunId, what: &'static str) -> impl FnOnce(io::Error) -> RunsError {
    let id = id.clone();
    move |source| RunsError::Io { id, what, source }
}
