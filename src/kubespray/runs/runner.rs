//! The runs of an appliance: started, found again, followed, cancelled and removed.

mod kept;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use ring::rand::{SecureRandom, SystemRandom};
use rustix::process::Signal;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::command::{SupervisorPlan, plan, utf8, vars};
use super::events::LINE_MAX;
use super::folder::{self, CANCELLED, EVENTS, PLAN, PRIVATE};
use super::installation::Installation;
use super::processes::{end_all, members, signal};
use super::progress::{LineSplitter, PlaybookProgress};
use super::request::{RequestFault, RunId, RunOwner, RunRequest};
use super::state::{RunFiles, RunPhase, RunStep, RunVerdict, judge, verdict};
use super::supervise::CrashPoint;
use super::vars::VariablesTooLong;
use crate::files;
use crate::hex::hex;

/// Most bytes of events that are read; the plugin writes fewer.
const EVENTS_MAX: u64 = 64 << 20;
/// In the folder of all runs: which appliance's they are.
const APPLIANCE: &str = ".appliance";
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
pub struct RunSupervisor {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl RunSupervisor {
    /// This program, also where its file was replaced meanwhile.
    pub fn this_program() -> Self {
        Self { program: "/proc/self/exe".into(), arguments: ["kubespray", "supervise"].map(Into::into).into() }
    }
}

/// The runs below a folder. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Runs {
    root: PathBuf,
    supervisor: RunSupervisor,
    tell: fn(CrashPoint),
}

/// Why something about a run could not be done.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    /// It cannot be run.
    #[error(transparent)]
    Request(#[from] RequestFault),
    /// Its variables are too long.
    #[error(transparent)]
    Vars(#[from] VariablesTooLong),
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
    #[error("the supervisor of run {id} did not begin: {reason}")]
    Supervisor {
        /// The run.
        id: RunId,
        /// How it ended.
        reason: String,
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
    pub phase: RunPhase,
    /// When Ansible was started, in seconds since 1970.
    pub started_at: Option<i64>,
    /// How far it is.
    pub progress: PlaybookProgress,
    /// What it came to, once it will not change any more.
    pub verdict: Option<RunVerdict>,
    /// Hosts that are expected of it.
    pub expected: Vec<String>,
    /// The object that it is of.
    pub owner: Option<RunOwner>,
    /// The object that asked for it, where that is another one.
    pub requester: Option<RunOwner>,
}

/// A run that was [looked after](Runs::settle_all).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledRun {
    /// Its name.
    pub id: RunId,
    /// The object that it is of.
    pub owner: Option<RunOwner>,
    /// The object that asked for it, where that is another one.
    pub requester: Option<RunOwner>,
    /// Whether it is not over yet.
    pub is_under_way: bool,
    /// Whether it was found only now to be lost.
    pub is_newly_lost: bool,
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

/// The events of a run, read as they come: whoever looks at it again and again keeps one for it.
#[derive(Debug, Default)]
pub struct RunReader {
    at: u64,
    lines: LineSplitter,
    progress: PlaybookProgress,
}

impl RunReader {
    fn read_on(&mut self, folder: &Path) -> io::Result<&PlaybookProgress> {
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
    pub fn open(root: &Path, supervisor: RunSupervisor) -> Result<Self, RunsError> {
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

    /// The folder of all runs, which only this process's user reads.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Has each effect told, for whoever tries what a crash leaves between two of them.
    #[must_use]
    pub fn telling(self, tell: fn(CrashPoint)) -> Self {
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
    pub async fn start(&self, installation: &Installation, request: &RunRequest) -> Result<RunPhase, RunsError> {
        request.check()?;
        let folder = self.folder(&request.id);
        if !folder.exists() {
            for path in [&installation.tree, &installation.environment] {
                if !utf8(path) {
                    return Err(RunsError::Path(path.clone()));
                }
            }
            let (plan, vars) = (plan(installation, &folder, request), vars(installation, &folder, request));
            self.make(&folder, &plan, &vars, request).map_err(failed(&request.id, "make its folder"))?;
        }
        self.settle(&request.id).await
    }

    pub(super) fn make(
        &self,
        folder: &Path,
        plan: &SupervisorPlan,
        vars: &Map<String, Value>,
        request: &RunRequest,
    ) -> io::Result<()> {
        let at = folder::unfinished(&self.root, request.id.as_str());
        folder::remove(&at)?;
        folder::make(&at)?;
        (self.tell)(CrashPoint::Made);
        folder::fill(&at, plan, vars, request)?;
        (self.tell)(CrashPoint::Filled);
        fs::rename(&at, folder)?;
        folder::sync(&self.root)?;
        (self.tell)(CrashPoint::Named);
        Ok(())
    }

    fn found(&self, id: &RunId) -> Result<RunFiles, RunsError> {
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
    pub async fn settle(&self, id: &RunId) -> Result<RunPhase, RunsError> {
        let folder = self.folder(id);
        let (phase, step) = judge(&self.found(id)?);
        match step {
            RunStep::Watch => return Ok(phase),
            RunStep::Tidy => {
                folder::tidy(&folder).map_err(failed(id, "remove its secrets"))?;
                return Ok(phase);
            }
            RunStep::Supervise => self.supervise(id, &folder).await?,
            RunStep::End => end_all(&folder, GRACE).await.map_err(failed(id, "end what it left behind"))?,
        }
        let (phase, step) = judge(&self.found(id)?);
        if step == RunStep::Tidy {
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
        (self.tell)(CrashPoint::SupervisorStarted);
        let deadline = Instant::now() + BEGIN;
        let fault = |reason: String| RunsError::Supervisor { id: id.clone(), reason };
        loop {
            // First: one that has ended has noted what it noted.
            let exited = child.try_wait().map_err(failed(id, "wait for its supervisor"))?;
            let found = self.found(id)?;
            if judge(&found).1 != RunStep::Supervise && (found.started.is_some() || exited.is_some()) {
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
    pub async fn cancel(&self, id: &RunId) -> Result<RunPhase, RunsError> {
        let folder = self.folder(id);
        if matches!(judge(&self.found(id)?).0, RunPhase::Starting | RunPhase::Running) {
            folder::write(&folder, CANCELLED, b"").map_err(failed(id, "note that it is cancelled"))?;
            (self.tell)(CrashPoint::CancelNoted);
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
        self.status_with(id, &mut RunReader::default())
    }

    /// The same, for who has looked at it before.
    ///
    /// # Errors
    ///
    /// As [`Self::status`].
    pub fn status_with(&self, id: &RunId, reader: &mut RunReader) -> Result<RunStatus, RunsError> {
        let folder = self.folder(id);
        let found = self.found(id)?;
        let plan: Option<SupervisorPlan> = folder::read_json(&folder, PLAN).map_err(failed(id, "read its plan"))?;
        // After the state: what was told before an end is read then.
        let progress = reader.read_on(&folder).map_err(failed(id, "read its events"))?.clone();
        let (playbook, expected, owner, requester) =
            plan.map(|plan| (plan.playbook, plan.expected, plan.owner, plan.requester)).unwrap_or_default();
        let phase = judge(&found).0;
        let verdict = match &phase {
            RunPhase::Ended(ended) => Some(verdict(ended, &progress, &expected)),
            RunPhase::NeverStarted => Some(RunVerdict::Cancelled),
            RunPhase::Lost if found.cancelled => Some(RunVerdict::Cancelled),
            RunPhase::Lost => Some(RunVerdict::Failed("was under way when its supervisor died, or the box did".into())),
            RunPhase::Starting | RunPhase::Running | RunPhase::Cancelling => None,
        };
        let started_at = found.started.map(|started| started.at);
        Ok(RunStatus { playbook, phase, started_at, progress, verdict, expected, owner, requester })
    }

    /// Follows a run to its end, and settles it on the way; `see` is shown each change. The run goes on when this is dropped.
    ///
    /// # Errors
    ///
    /// As [`Self::settle`].
    pub async fn follow(&self, id: &RunId, mut see: impl FnMut(&RunStatus)) -> Result<RunStatus, RunsError> {
        let (mut reader, mut before) = (RunReader::default(), None);
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

    /// Looks after every run: what a crash left is put in order. Which there are; those whose files cannot be read are left out.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub async fn settle_all(&self) -> Result<Vec<SettledRun>, RunsError> {
        let mut all = Vec::new();
        if let Err(error) = folder::remove_leftovers(&self.root, SystemTime::now()) {
            warn!(%error, "what a crash left of runs cannot be removed");
        }
        for id in self.list()? {
            let has_secrets = self.folder(&id).join(PRIVATE).exists();
            let (owner, requester) = self.plan(&id).map(|plan| (plan.owner, plan.requester)).unwrap_or_default();
            match self.settle(&id).await {
                Ok(phase) => {
                    let is_newly_lost = has_secrets && phase == RunPhase::Lost;
                    all.push(SettledRun { id, owner, requester, is_under_way: !phase.is_over(), is_newly_lost });
                }
                Err(error) => warn!(run = %id, %error, "a run cannot be looked after"),
            }
        }
        Ok(all)
    }

    /// The runs that are not over, each with the object that it is of. Nothing is done about them.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn under_way(&self) -> Result<Vec<(RunId, Option<RunOwner>)>, RunsError> {
        let all = self.list()?.into_iter();
        let is_under_way = |id: &RunId| self.found(id).is_ok_and(|found| !judge(&found).0.is_over());
        Ok(all.filter(is_under_way).map(|id| (id.clone(), self.owner(&id))).collect())
    }

    /// The runs that are there of an object, or that it asked for, the oldest first.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn of_object(&self, uid: &str) -> Result<Vec<RunId>, RunsError> {
        let mut all = Vec::new();
        for id in self.list()? {
            let plan = self.plan(&id);
            let mut objects = plan.iter().flat_map(|plan| plan.owner.iter().chain(&plan.requester));
            if objects.any(|object| object.uid == uid) {
                let started = self.found(&id).ok().and_then(|found| Some(found.started?.at));
                all.push((started.is_none(), started, id));
            }
        }
        all.sort();
        Ok(all.into_iter().map(|(_, _, id)| id).collect())
    }

    fn owner(&self, id: &RunId) -> Option<RunOwner> {
        self.plan(id)?.owner
    }

    fn plan(&self, id: &RunId) -> Option<SupervisorPlan> {
        folder::read_json(&self.folder(id), PLAN).ok().flatten()
    }

    /// Which appliance's runs these are, in 16 digits that are made up once: runs of another one cannot be looked after from here.
    ///
    /// # Errors
    ///
    /// When it can be neither read nor made up.
    pub fn appliance(&self) -> Result<String, RunsError> {
        let fail = |source| RunsError::Root { path: self.root.join(APPLIANCE), source };
        if let Ok(text) = files::read_text(&self.root.join(APPLIANCE), 16)
            && text.len() == 16
            && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        {
            return Ok(text);
        }
        let mut bytes = [0; 8];
        let random = SystemRandom::new().fill(&mut bytes);
        random.map_err(|_| fail(io::Error::other("there is no randomness")))?;
        let text: String = hex(&bytes);
        folder::write(&self.root, APPLIANCE, text.as_bytes()).map_err(fail)?;
        Ok(text)
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
}

fn failed(id: &RunId, what: &'static str) -> impl FnOnce(io::Error) -> RunsError {
    let id = id.clone();
    move |source| RunsError::Io { id, what, source }
}
