//! The processes of a step: all that have its mark in their environment, whatever session they are in, and all that came of this
//! process, which is the parent of those that lost theirs.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// In the environment of a step's processes: the agent's folder of state.
pub(super) const MARK: &str = "SLIPWAY_NODE";
/// Most bytes of an environment that are looked at.
const ENVIRONMENT_MAX: u64 = 256 << 10;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// How long processes may take to be gone after SIGKILL: one that is in the kernel, on a disk that hangs, takes its time.
const KILLED: Duration = Duration::from_secs(30);

/// Makes this process the parent of what its children leave behind. For a program of its own only: its children are all a step's.
pub(super) fn adopt() {
    if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
        tracing::warn!(%error, "processes that steps leave behind are known by their environment only");
    }
}

/// The agent whose steps these are.
#[derive(Clone, Debug)]
pub(super) struct StepProcesses {
    mark: Vec<u8>,
    adopts: bool,
}

impl StepProcesses {
    /// Those of the agent with this folder of state. `adopts` where this process is [their parent](adopt).
    pub fn of(folder: &Path, adopts: bool) -> Self {
        let mark = [MARK.as_bytes(), b"=", folder.as_os_str().as_encoded_bytes()].concat();
        Self { mark, adopts }
    }

    fn members(&self) -> Vec<i32> {
        let me = i32::try_from(std::process::id()).unwrap_or_default();
        let came = if self.adopts { descendants(me) } else { Vec::new() };
        let mut found: Vec<i32> = pids().filter(|pid| *pid != me && is_alive(*pid) && self.marks(*pid)).collect();
        found.extend(came);
        found.sort_unstable();
        found.dedup();
        found
    }

    fn marks(&self, pid: i32) -> bool {
        let mut text = Vec::new();
        let read = File::open(format!("/proc/{pid}/environ"))
            .and_then(|file| file.take(ENVIRONMENT_MAX).read_to_end(&mut text));
        read.is_ok() && text.split(|byte| *byte == 0).any(|entry| entry == self.mark)
    }

    fn signal_all(&self, signal: Signal) -> usize {
        let found = self.members();
        let open =
            found.iter().filter_map(|pid| Some((*pid, pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok()?)));
        let open: Vec<_> = open.collect();
        // Now that they are open their numbers can be nobody else's; who is one still is.
        let still = self.members();
        for (_, process) in open.iter().filter(|(pid, _)| still.contains(pid)) {
            pidfd_send_signal(process, signal).ok();
        }
        found.len()
    }

    /// Ends all of them: with SIGTERM, and with SIGKILL those that are there after `grace`.
    ///
    /// # Errors
    /// When some are there even half a minute after that.
    pub async fn end(&self, grace: Duration) -> io::Result<()> {
        let begun = Instant::now();
        if grace.is_zero() {
            self.signal_all(Signal::KILL);
        } else if self.signal_all(Signal::TERM) == 0 {
            self.reap();
            return Ok(());
        }
        loop {
            self.reap();
            let left = if begun.elapsed() < grace { self.members().len() } else { self.signal_all(Signal::KILL) };
            if left == 0 {
                return Ok(());
            }
            if begun.elapsed() > grace + KILLED {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{left} processes do not end")));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Takes note of the end of those that were adopted.
    fn reap(&self) {
        use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
        while self.adopts && !matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(_)) {
        }
    }
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// State and parent of a process (proc_pid_stat(5)); the name before them may have blanks and brackets.
fn state(pid: i32) -> Option<(char, i32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = text.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

/// Whether it has not ended: one that has, and nobody has asked how, is none.
fn is_alive(pid: i32) -> bool {
    state(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// The processes that came of one and have not ended.
fn descendants(of: i32) -> Vec<i32> {
    let all: Vec<(i32, char, i32)> =
        pids().filter_map(|pid| state(pid).map(|(state, parent)| (pid, state, parent))).collect();
    let (mut found, mut at) = (vec![of], 0);
    while let Some(parent) = found.get(at).copied() {
        found.extend(all.iter().filter(|one| one.2 == parent && one.0 != of).map(|one| one.0));
        at += 1;
    }
    found.remove(0);
    found.retain(|pid| is_alive(*pid));
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[tokio::test]
    async fn whoever_has_the_mark_is_ended_and_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, other) = (folder.path().join("a"), folder.path().join("ab"));
        let shell = |folder: &Path, script: &str| {
            let mut child = Command::new("/bin/sh")
                .env(MARK, folder)
                .args(["-c", script])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            // It says that it is ready.
            child.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
            child
        };
        let mut deaf = shell(&ours, "trap '' TERM; echo; while :; do sleep 1; done");
        let mut apart = shell(&ours, "setsid sh -c 'echo; exec sleep 600' & wait");
        let mut stranger = shell(&other, "echo; exec sleep 600");
        let those = StepProcesses::of(&ours, false);
        assert!(those.members().len() >= 3, "{:?}", those.members());
        those.end(Duration::from_millis(200)).await.unwrap();
        assert_eq!(those.members(), Vec::<i32>::new());
        assert!(!deaf.wait().unwrap().success() && !apart.wait().unwrap().success());
        assert_eq!(stranger.try_wait().unwrap(), None, "it has another mark");
        StepProcesses::of(&other, false).end(Duration::ZERO).await.unwrap();
        stranger.wait().unwrap();
        those.end(Duration::ZERO).await.unwrap();
    }
}
