//! The state of a run: what its folder says and who is alive make its phase, and what is to be done next.

use serde::{Deserialize, Serialize};

use super::progress::PlaybookProgress;

/// A supervisor, as it noted itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Started {
    /// Its process id.
    pub(super) pid: i32,
    /// When that process began, in clock ticks since the kernel did (`starttime` in proc_pid_stat(5)).
    pub(super) start_time: u64,
    /// When, in seconds since 1970.
    pub(super) at: i64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunEnd {
    /// In which way.
    pub cause: Cause,
    /// When, in seconds since 1970.
    pub at: i64,
}

/// In which way a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// Ansible ended by itself, with this code.
    Exited(i32),
    /// Somebody or the kernel ended Ansible with this signal.
    Killed(i32),
    /// It took too long.
    TimedOut,
    /// It was cancelled.
    Cancelled,
    /// The box shuts down, or somebody ended the supervisor with SIGTERM.
    Interrupted,
    /// It filled its folder, and was ended.
    Filled,
    /// Ansible could not be started.
    NotStarted(String),
}

/// Everything that is known of a run from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RunFiles {
    pub(super) started: Option<Started>,
    pub(super) ended: Option<RunEnd>,
    /// Whether it is to end.
    pub(super) cancelled: bool,
    /// Whether a supervisor has the lock.
    pub(super) supervised: bool,
    /// Processes of the run, without its supervisor.
    pub(super) members: usize,
}

/// Where a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunPhase {
    /// It is about to be started.
    Starting,
    /// It is under way.
    Running,
    /// It was cancelled, and its processes end.
    Cancelling,
    /// It ended.
    Ended(RunEnd),
    /// It was cancelled before it was started.
    NeverStarted,
    /// Its supervisor died, or the box did. How far it came is in its events; it is never started again.
    Lost,
}

impl RunPhase {
    /// Whether nothing will change any more.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::NeverStarted | Self::Lost)
    }
}

/// What the appliance does about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunStep {
    /// Starts a supervisor.
    Supervise,
    /// Nothing: a supervisor does.
    Watch,
    /// Ends processes that nobody looks after any more.
    End,
    /// Takes away keys and what else only a run needs.
    Tidy,
}

/// Where a run is, and what is to be done about it.
pub(super) fn judge(found: &RunFiles) -> (RunPhase, RunStep) {
    let under_way = if found.cancelled { RunPhase::Cancelling } else { RunPhase::Running };
    match (&found.ended, found.started, found.supervised) {
        (Some(ended), ..) => (RunPhase::Ended(ended.clone()), RunStep::Tidy),
        (None, Some(_), true) => (under_way, RunStep::Watch),
        (None, None, true) => (if found.cancelled { under_way } else { RunPhase::Starting }, RunStep::Watch),
        // Before it is lost for whoever may want it anew, nothing of it may work any more.
        (None, Some(_), false) if found.members > 0 => (RunPhase::Cancelling, RunStep::End),
        (None, Some(_), false) => (RunPhase::Lost, RunStep::Tidy),
        (None, None, false) if found.cancelled => (RunPhase::NeverStarted, RunStep::Tidy),
        (None, None, false) => (RunPhase::Starting, RunStep::Supervise),
    }
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunVerdict {
    /// It did on every host what it was to.
    Succeeded,
    /// It did not, and why. The first failure of a host is among [`PlaybookProgress::failures`].
    Failed(String),
    /// It was cancelled.
    Cancelled,
}

/// What a run that ended came to. Ansible's exit code alone does not tell: it is 0 where no host matched.
pub fn verdict(ended: &RunEnd, progress: &PlaybookProgress, expected: &[String]) -> RunVerdict {
    let failed = RunVerdict::Failed;
    let exited = match &ended.cause {
        Cause::Cancelled => return RunVerdict::Cancelled,
        Cause::TimedOut => return failed("took too long and was ended".into()),
        Cause::Interrupted => {
            return failed("was ended by a signal to its supervisor, as a box sends that shuts down".into());
        }
        Cause::Filled => {
            return failed("filled its folder on the appliance with more than it may, and was ended".into());
        }
        Cause::NotStarted(reason) => return failed(format!("Ansible could not be started: {reason}")),
        Cause::Killed(signal) => return failed(format!("Ansible was ended by signal {signal}")),
        Cause::Exited(code) => *code,
    };
    let bad = progress.hosts.values().filter(|host| host.is_bad()).count();
    if bad > 0 {
        let first = progress.failures.first();
        let first = first.map(|first| format!("; first {}: {}: {}", first.host, first.task, first.message));
        return failed(format!("failed on {bad} of {} hosts{}", progress.hosts.len(), first.unwrap_or_default()));
    }
    if exited != 0 {
        return failed(format!("Ansible ended with code {exited} ({})", exit_code(exited)));
    }
    if !progress.complete {
        return failed("Ansible ended without telling what its hosts came to".into());
    }
    if progress.hosts.is_empty() {
        return failed("no host of the inventory was in any play".into());
    }
    let missing = expected.iter().find(|host| progress.hosts.get(*host).is_none_or(|found| !found.summed));
    missing.map_or(RunVerdict::Succeeded, |host| failed(format!("nothing was done on {host}, which was expected")))
}

/// Ansible's exit codes (`ExitCode` in `ansible.constants` of 2.18, and `RUN_…` of its task queue manager).
fn exit_code(code: i32) -> &'static str {
    match code {
        1 => "an error before any task; the log says more",
        2 => "hosts failed, or a wrong option",
        4 => "hosts not reached, or a playbook that is no YAML",
        5 => "a wrong option",
        8 => "a play was broken off",
        99 | 130 | 250 => "interrupted or unexpected",
        _ => "the log says more",
    }
}

#[cfg(test)]
mod tests {
    use super::super::progress::{PlaybookHostProgress, TaskFailure};
    use super::*;

    #[test]
    fn what_is_found_makes_phase_and_step() {
        let started = Some(Started { pid: 1, start_time: 2, at: 3 });
        let ended = RunEnd { cause: Cause::Exited(0), at: 4 };
        let none = RunFiles::default();
        let rows = [
            (none.clone(), RunPhase::Starting, RunStep::Supervise),
            (RunFiles { supervised: true, ..none.clone() }, RunPhase::Starting, RunStep::Watch),
            (RunFiles { cancelled: true, ..none.clone() }, RunPhase::NeverStarted, RunStep::Tidy),
            (RunFiles { cancelled: true, supervised: true, ..none.clone() }, RunPhase::Cancelling, RunStep::Watch),
            (RunFiles { started, supervised: true, members: 3, ..none.clone() }, RunPhase::Running, RunStep::Watch),
            (
                RunFiles { started, supervised: true, cancelled: true, ..none.clone() },
                RunPhase::Cancelling,
                RunStep::Watch,
            ),
            (RunFiles { started, members: 1, ..none.clone() }, RunPhase::Cancelling, RunStep::End),
            (RunFiles { started, ..none.clone() }, RunPhase::Lost, RunStep::Tidy),
            (RunFiles { started, cancelled: true, ..none.clone() }, RunPhase::Lost, RunStep::Tidy),
            (
                RunFiles { started, ended: Some(ended.clone()), ..none.clone() },
                RunPhase::Ended(ended.clone()),
                RunStep::Tidy,
            ),
            // It noted its end a moment ago.
            (
                RunFiles { started, ended: Some(ended.clone()), supervised: true, ..none },
                RunPhase::Ended(ended),
                RunStep::Tidy,
            ),
        ];
        for (found, phase, step) in rows {
            assert_eq!(judge(&found), (phase, step), "{found:?}");
        }
    }

    #[test]
    fn only_a_run_without_supervisor_and_start_is_started() {
        let started = Some(Started { pid: 1, start_time: 2, at: 3 });
        let ended = Some(RunEnd { cause: Cause::Cancelled, at: 4 });
        let mut supervises = Vec::new();
        for number in 0..32_usize {
            let found = RunFiles {
                started: started.filter(|_| number & 1 != 0),
                ended: ended.clone().filter(|_| number & 2 != 0),
                cancelled: number & 4 != 0,
                supervised: number & 8 != 0,
                members: number >> 4,
            };
            if judge(&found).1 == RunStep::Supervise {
                supervises.push(found);
            }
        }
        let right = |found: &RunFiles| {
            found.started.is_none() && found.ended.is_none() && !found.cancelled && !found.supervised
        };
        assert!(supervises.iter().all(right) && supervises.len() == 2, "{supervises:?}");
    }

    #[test]
    fn a_verdict_is_by_hosts_and_not_by_the_exit_code() {
        let host = |failures, summed| PlaybookHostProgress { ok: 1, failures, summed, ..Default::default() };
        let progress = |hosts: &[(&str, PlaybookHostProgress)], complete| PlaybookProgress {
            hosts: hosts.iter().map(|(name, host)| ((*name).to_owned(), host.clone())).collect(),
            failures: vec![TaskFailure { host: "b".into(), task: "t".into(), message: "m".into(), unreachable: false }],
            complete,
            ..Default::default()
        };
        let good = progress(&[("a", host(0, true)), ("b", host(0, true))], true);
        let bad = progress(&[("a", host(0, true)), ("b", host(1, true))], true);
        type Row<'r> = (Cause, &'r PlaybookProgress, &'r [&'r str], Result<(), &'r str>);
        let rows: Vec<Row<'_>> = vec![
            (Cause::Exited(0), &good, &[], Ok(())),
            (Cause::Exited(0), &good, &["a", "b"], Ok(())),
            (Cause::Exited(0), &good, &["a", "c"], Err("nothing was done on c")),
            (Cause::Exited(2), &bad, &[], Err("failed on 1 of 2 hosts; first b: t: m")),
            (Cause::Exited(0), &bad, &[], Err("failed on 1 of 2 hosts")),
            (Cause::Exited(4), &good, &[], Err("code 4 (hosts not reached")),
            (Cause::Killed(9), &good, &[], Err("signal 9")),
            (Cause::TimedOut, &good, &[], Err("too long")),
            (Cause::Filled, &good, &[], Err("more than it may")),
            (Cause::Interrupted, &good, &[], Err("shuts down")),
            (Cause::NotStarted("gone".into()), &good, &[], Err("gone")),
        ];
        for (cause, progress, expected, wanted) in rows {
            let expected: Vec<String> = expected.iter().map(|name| (*name).to_owned()).collect();
            let found = verdict(&RunEnd { cause: cause.clone(), at: 0 }, progress, &expected);
            match (&found, wanted) {
                (RunVerdict::Succeeded, Ok(())) => {}
                (RunVerdict::Failed(reason), Err(part)) => assert!(reason.contains(part), "{cause:?}: {reason}"),
                _ => panic!("{cause:?}: {found:?}"),
            }
        }
        let ended = RunEnd { cause: Cause::Exited(0), at: 0 };
        let nobody = progress(&[], true);
        assert_eq!(
            verdict(&ended, &nobody, &[]),
            RunVerdict::Failed("no host of the inventory was in any play".into())
        );
        let half = progress(&[("a", host(0, false))], false);
        assert!(
            matches!(verdict(&ended, &half, &[]), RunVerdict::Failed(reason) if reason.contains("without telling"))
        );
        let stopped = RunEnd { cause: Cause::Cancelled, at: 0 };
        assert_eq!(verdict(&stopped, &bad, &[]), RunVerdict::Cancelled);
    }
}
