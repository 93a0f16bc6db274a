//! The processes of a run: found by what is in their environment, whoever started them and in whichever session they are; and by whose
//! children they are, while the supervisor lives, which is the parent of all of them that lost theirs.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::command::MARK;

/// Most bytes of an environment that are looked at.
const ENVIRONMENT_MAX: u64 = 256 << 10;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// How long processes may take to be gone after SIGKILL: one that is in the kernel, on a disk that hangs, takes its time.
const KILLED: Duration = Duration::from_secs(30);

/// When a process began, in clock ticks since the kernel did (field 22 of proc_pid_stat(5)).
pub(super) fn start_time(pid: i32) -> Option<u64> {
    field(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn field(stat: &str) -> Option<u64> {
    // The name before it may have blanks and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Sends a signal to a process, if it is still the one that began then.
pub(super) fn signal(pid: i32, began: u64, signal: Signal) -> bool {
    let Some(process) = Pid::from_raw(pid) else { return false };
    // Once it is open, its number can be nobody else's.
    let Ok(descriptor) = pidfd_open(process, PidfdFlags::empty()) else { return false };
    start_time(pid) == Some(began) && pidfd_send_signal(descriptor, signal).is_ok()
}

/// What tells the processes of a run from others, in their environment.
fn mark(folder: &Path) -> Vec<u8> {
    [MARK.as_bytes(), b"=", folder.as_os_str().as_encoded_bytes()].concat()
}

fn has(pid: i32, mark: &[u8]) -> bool {
    // Somebody else's cannot be read, and is none.
    read(pid, "environ", ENVIRONMENT_MAX).split(|byte| *byte == 0).any(|entry| entry == mark)
}

fn read(pid: i32, what: &str, most: u64) -> Vec<u8> {
    let mut text = Vec::new();
    let read = File::open(format!("/proc/{pid}/{what}")).and_then(|file| file.take(most).read_to_end(&mut text));
    if read.is_ok() { text } else { Vec::new() }
}

/// The processes of a run but this one.
pub(super) fn members(folder: &Path) -> Vec<i32> {
    let (mark, me) = (mark(folder), i32::try_from(std::process::id()).ok());
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| Some(*pid) != me && has(*pid, &mark)).collect()
}

/// Sends a signal to all of them; how many there are.
fn signal_all(folder: &Path, with: Signal) -> usize {
    let (found, mark) = (members(folder), mark(folder));
    for pid in &found {
        // After its start time is known its number may have become another's: it is looked at again.
        if let Some(began) = start_time(*pid).filter(|_| has(*pid, &mark)) {
            signal(*pid, began, with);
        }
    }
    found.len()
}

/// Ends at once whatever came of this process, whatever it made of its environment.
///
/// # Errors
///
/// When some are there even half a minute after that.
pub(super) async fn end_descendants() -> io::Result<()> {
    let begun = Instant::now();
    loop {
        let left = descendants(i32::try_from(std::process::id()).unwrap_or_default());
        if left.is_empty() {
            return Ok(());
        }
        for (pid, began) in left {
            signal(pid, began, Signal::KILL);
        }
        if begun.elapsed() > KILLED {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "a process that it left does not end"));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The processes that came of one and have not ended, each with when it began.
fn descendants(of: i32) -> Vec<(i32, u64)> {
    let stat = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut words = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let (state, parent) = (words.next()?.to_owned(), words.next()?.parse::<i32>().ok()?);
        // One that has ended, and nobody has asked how.
        (!matches!(state.as_str(), "Z" | "X")).then_some((pid, parent, field(&text)?))
    };
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let all: Vec<(i32, i32, u64)> = pids.filter_map(stat).collect();
    let (mut found, mut at) = (vec![(of, 0)], 0);
    while let Some((parent, _)) = found.get(at).copied() {
        found.extend(all.iter().filter(|one| one.1 == parent && one.0 != of).map(|one| (one.0, one.2)));
        at += 1;
    }
    found.split_off(1)
}

/// Ends all processes of a run: with SIGTERM, and with SIGKILL those that are there after `grace`.
///
/// # Errors
///
/// When some are there even half a minute after that.
pub(super) async fn end_all(folder: &Path, grace: Duration) -> io::Result<()> {
    let begun = Instant::now();
    if signal_all(folder, Signal::TERM) == 0 {
        return Ok(());
    }
    loop {
        tokio::time::sleep(PAUSE).await;
        let left = if begun.elapsed() < grace { members(folder).len() } else { signal_all(folder, Signal::KILL) };
        if left == 0 {
            return Ok(());
        }
        if begun.elapsed() > grace + KILLED {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("{left} processes do not end")));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn the_start_time_is_behind_a_name_with_brackets() {
        let numbers = (3..=52).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(field(&format!("7 (a) b (c)) {numbers}")), Some(22));
        assert_eq!(field("7 a S 1"), None);
        assert_eq!(field("7 (a) S 1"), None);
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(start_time(me).is_some_and(|ticks| ticks > 0));
        assert_eq!(start_time(i32::MAX), None);
    }

    fn shell(folder: &Path, script: &str) -> Child {
        let mut command = Command::new("/bin/sh");
        command.env(MARK, folder).args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until the script says that it is ready.
    fn ready(child: &mut Child) {
        let mut line = [0; 1];
        child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
    }

    #[tokio::test]
    async fn whoever_has_the_mark_is_ended_and_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, other) = (folder.path().join("a"), folder.path().join("ab"));
        let mut deaf = shell(&ours, "trap '' TERM; echo; while :; do sleep 1; done");
        let mut apart = shell(&ours, "setsid sh -c 'echo; exec sleep 600' & wait");
        let mut stranger = shell(&other, "echo; exec sleep 600");
        [&mut deaf, &mut apart, &mut stranger].into_iter().for_each(ready);
        assert!(members(&ours).len() >= 3, "{:?}", members(&ours));
        end_all(&ours, Duration::from_millis(200)).await.unwrap();
        assert_eq!(members(&ours), Vec::<i32>::new());
        assert!(!deaf.wait().unwrap().success() && !apart.wait().unwrap().success());
        assert_eq!(stranger.try_wait().unwrap(), None, "it has another mark");
        let pid = i32::try_from(stranger.id()).unwrap();
        let began = start_time(pid).unwrap();
        assert!(!signal(pid, began + 1, Signal::KILL), "another one with that number");
        assert!(signal(pid, began, Signal::KILL));
        stranger.wait().unwrap();
        end_all(&ours, Duration::ZERO).await.unwrap();
    }
}
