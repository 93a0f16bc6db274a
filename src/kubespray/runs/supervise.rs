//! The supervisor of a run: a process that starts Ansible once, bounds it, keeps what it prints, and notes how it ended.
//!
//! It is this program again, in the run's folder and in a session of its own, so that it outlives who started it. What it does has
//! an order, and whoever is killed between two steps leaves what the next one understands: the lock, `started.json`, Ansible,
//! the end of all that Ansible left, `ended.json`, and then secrets are removed.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::libc;
use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit, setsid};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, interval_at, sleep_until, timeout};

use super::command::SupervisorPlan;
use super::confine::rules;
use super::folder::{self, CANCELLED, ENDED, LOG, PLAN, STARTED};
use super::output::{BoundedLog, HEAD};
use super::processes::{end_all, end_descendants, start_time};
use super::state::{Cause, RunEnd, Started};

/// How long Ansible has after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
/// How often it is looked whether the run is cancelled, should the signal be lost.
const LOOK: Duration = Duration::from_secs(1);
/// How often it is looked how much is in the run's folder.
const MEASURE: Duration = Duration::from_secs(10);
/// Most bytes, files and folders that a run may have in its folder: kubespray's downloads for a cluster are below a gibibyte.
const FOLDER_MAX: (u64, usize) = (3 << 30, 50_000);
/// How long what was printed last is read for, when all who print are gone.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How much less than others a run gets of the processor (setpriority(2)). Other tests beside it would leave it nothing.
const NICE: i32 = if cfg!(test) { 0 } else { 10 };
/// How much sooner it is ended than others where memory runs out (proc_pid_oom_score_adj(5)).
const OOM_SCORE: &str = "500";
/// More capabilities than there are (capabilities(7)).
const CAPABILITIES: libc::c_ulong = 64;
/// Bounds of each process of a run (setrlimit(2)): address space and longest file, in bytes; open files.
const LIMITS: [(Resource, u64); 4] =
    [(Resource::As, 4 << 30), (Resource::Fsize, 4 << 30), (Resource::Nofile, 4096), (Resource::Core, 0)];

/// What has just been done about a run, where a crash would leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// The appliance has made the folder without its name.
    Made,
    /// Everything is in it.
    Filled,
    /// It has its name.
    Named,
    /// A supervisor is started.
    SupervisorStarted,
    /// The supervisor has the lock.
    Locked,
    /// It has noted that it starts Ansible.
    StartNoted,
    /// It has started Ansible.
    AnsibleStarted,
    /// Ansible has ended.
    AnsibleEnded,
    /// What it left behind has ended.
    LeftoversEnded,
    /// The end is noted.
    EndNoted,
    /// Secrets are removed.
    Tidied,
    /// The appliance has noted that it is to end.
    CancelNoted,
}

/// Looks after the run whose folder this is, to its end. Does nothing where another one does, did, or nobody shall. `tell` is told of
/// each effect.
///
/// # Errors
///
/// When the folder cannot be read or written. Why Ansible could not be started is noted in it instead.
pub async fn supervise(folder: &Path, tell: fn(CrashPoint)) -> io::Result<()> {
    let Some(_lock) = folder::lock(folder)? else { return Ok(()) };
    tell(CrashPoint::Locked);
    if folder.join(STARTED).exists() || folder.join(CANCELLED).exists() {
        return Ok(());
    }
    let plan: SupervisorPlan =
        folder::read_json(folder, PLAN)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let secrets = folder::secrets(folder)?;
    // Before Ansible: whoever cancels then knows whom to tell.
    let mut term = signal(SignalKind::terminate())?;
    confine();
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    let started = Started { pid, start_time: start_time(pid).unwrap_or_default(), at: now() };
    folder::write_json(folder, STARTED, &started)?;
    tell(CrashPoint::StartNoted);
    let file = OpenOptions::new().append(true).create(true).open(folder.join(LOG))?;
    let mut log = BoundedLog::new(file, HEAD, &secrets);
    let deadline = Instant::now() + Duration::from_secs(plan.seconds);
    let cause = match prepare(folder, &plan, deadline, &mut log, &mut term).await {
        Some(cause) => cause,
        None => match start(folder, &plan, &plan.command, &plan.environment) {
            Err(error) => not_started(&plan.command, &error),
            Ok((child, output)) => {
                tell(CrashPoint::AnsibleStarted);
                let cause = look_after(folder, deadline, child, output, &mut log, &mut term).await;
                tell(CrashPoint::AnsibleEnded);
                cause
            }
        },
    };
    let left = end_all(folder, GRACE).await.and(end_descendants().await);
    if let Err(error) = &left {
        log.take(format!("\n[slipway: {error}]\n").as_bytes()).ok();
    }
    tell(CrashPoint::LeftoversEnded);
    if plan.owner.is_some() {
        folder::shorten(folder).ok();
    }
    // A disk without room for the log has some for the end.
    log.finish().and_then(|file| file.sync_all()).ok();
    folder::write_json(folder, ENDED, &RunEnd { cause, at: now() })?;
    tell(CrashPoint::EndNoted);
    folder::tidy(folder)?;
    tell(CrashPoint::Tidied);
    Ok(())
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

fn not_started(command: &[String], error: &io::Error) -> Cause {
    Cause::NotStarted(format!("{}: {error}", command.first().map_or("", String::as_str)))
}

/// Does what comes before the playbook, and tells why nothing comes after it, if so.
async fn prepare(
    folder: &Path,
    plan: &SupervisorPlan,
    deadline: Instant,
    log: &mut BoundedLog<File>,
    term: &mut tokio::signal::unix::Signal,
) -> Option<Cause> {
    if plan.before.is_empty() {
        return None;
    }
    let mut environment = plan.environment.clone();
    // Its events would be taken for those of the playbook.
    let events = folder.join(folder::SCRATCH).join(folder::EVENTS);
    environment.insert("SLIPWAY_EVENTS".to_owned(), events.to_string_lossy().into_owned());
    let cause = match start(folder, plan, &plan.before, &environment) {
        Err(error) => not_started(&plan.before, &error),
        Ok((child, output)) => look_after(folder, deadline, child, output, log, term).await,
    };
    // A node that is not there may be none of those that the playbook is for.
    Some(cause).filter(|cause| !matches!(cause, Cause::Exited(_) | Cause::Killed(_)))
}

/// Starts Ansible, with nothing of this process but the pipe for what it prints.
fn start(
    folder: &Path,
    plan: &SupervisorPlan,
    command: &[String],
    environment: &BTreeMap<String, String>,
) -> io::Result<(Child, pipe::Receiver)> {
    let (program, arguments) = command.split_first().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let (read, write) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(environment).current_dir(folder.join(folder::SCRATCH));
    command.stdin(Stdio::null()).stdout(write.try_clone()?).stderr(write);
    if let Some(rules) = rules(folder, &plan.hidden, &plan.shown)? {
        // SAFETY: between fork and exec, only calls of the kernel, with numbers. It wants that no rights can be gained (landlock(7)),
        // which `confine` has seen to.
        unsafe {
            command.pre_exec(move || {
                let (flags, rules): (libc::c_ulong, _) = (0, rules.as_raw_fd());
                match libc::syscall(libc::SYS_landlock_restrict_self, rules, flags) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
        }
    }
    let child = command.spawn()?;
    Ok((child, pipe::Receiver::from_owned_fd(read.into())?))
}

/// Until Ansible has ended, whoever it is that ends it.
async fn look_after(
    folder: &Path,
    deadline: Instant,
    mut child: Child,
    mut output: pipe::Receiver,
    log: &mut BoundedLog<File>,
    term: &mut tokio::signal::unix::Signal,
) -> Cause {
    let mut measure = interval_at(Instant::now() + MEASURE, MEASURE);
    let mut look = interval_at(Instant::now() + LOOK, LOOK);
    let mut piece = vec![0; 64 << 10];
    let (mut open, mut reason) = (true, None);
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            read = output.read(&mut piece), if open => match read {
                // Without room on the disk Ansible goes on, and its events say less, too.
                Ok(length) if length > 0 => drop(log.take(&piece[..length])),
                _ => open = false,
            },
            _ = term.recv() => {
                let cancelled = folder.join(CANCELLED).exists();
                reason = Some(if cancelled { Cause::Cancelled } else { Cause::Interrupted });
            }
            _ = look.tick() => {
                if folder.join(CANCELLED).exists() {
                    reason = Some(Cause::Cancelled);
                }
            }
            _ = measure.tick() => {
                let at = folder.to_owned();
                let is_larger = move || folder::is_larger(&at, FOLDER_MAX.0, FOLDER_MAX.1);
                if tokio::task::spawn_blocking(is_larger).await.unwrap_or(false) {
                    reason = Some(Cause::Filled);
                }
            }
            () = sleep_until(deadline) => reason = Some(Cause::TimedOut),
        }
        if reason.is_some() {
            // Whether it ended is told by the caller, who ends what is left.
            end_all(folder, GRACE).await.ok();
            let too_long = || Err(io::Error::from(io::ErrorKind::TimedOut));
            break timeout(LAST_WORDS, child.wait()).await.unwrap_or_else(|_| too_long());
        }
    };
    // What it left may have the pipe open.
    end_all(folder, GRACE).await.ok();
    let rest = async {
        while let Ok(length @ 1..) = output.read(&mut piece).await {
            log.take(&piece[..length]).ok();
        }
    };
    timeout(LAST_WORDS, rest).await.ok();
    reason.unwrap_or_else(|| ended(status))
}

fn ended(status: io::Result<ExitStatus>) -> Cause {
    match status {
        Err(error) => Cause::NotStarted(error.to_string()),
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => Cause::Exited(code),
            (None, signal) => Cause::Killed(signal.unwrap_or_default()),
        },
    }
}

/// Bounds what Ansible may take: a session of its own, no rights of the appliance's beyond its user's, little of the processor, and no
/// more memory, files and bytes than it needs. Where the kernel or the service's unit refuses one of them, its own bounds hold.
fn confine() {
    setsid().ok();
    setpriority_process(None, NICE).ok();
    std::fs::write("/proc/self/oom_score_adj", OOM_SCORE).ok();
    for (resource, most) in LIMITS {
        let highest = getrlimit(resource).maximum;
        let most = highest.map_or(most, |highest| highest.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }).ok();
    }
    nix::sys::prctl::set_no_new_privs().ok();
    let none: libc::c_ulong = 0;
    // SAFETY: takes numbers only. The appliance has capabilities for its ports and packets in this set, which a program that is
    // started inherits (capabilities(7)).
    unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, none, none, none);
        // What loses its parent is this one's child, and is found.
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1 as libc::c_ulong, none, none, none);
        // What root's programs would have: those beyond the last one are none.
        for capability in 0..CAPABILITIES {
            libc::prctl(libc::PR_CAPBSET_DROP, capability, none, none, none);
        }
    }
}
