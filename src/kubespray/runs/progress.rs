//! How far a run is: its events, folded.

use std::collections::BTreeMap;

use super::events::{AnsibleEvent, HostResult, LINE_MAX, parse};

/// Most hosts that are kept; further ones are counted.
const HOSTS_MAX: usize = 5000;
/// Most failures that are kept: the first ones say why.
const FAILURES_MAX: usize = 100;

/// How far a run is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaybookProgress {
    /// Plays of the playbook; 0 until it is known.
    pub plays: u32,
    /// Plays that began.
    pub plays_begun: u32,
    /// The play that is under way.
    pub play: String,
    /// Tasks that began.
    pub tasks_begun: u32,
    /// The task that is under way.
    pub task: String,
    /// Hosts by their names.
    pub hosts: BTreeMap<String, PlaybookHostProgress>,
    /// What failed, in its order; the first hundred.
    pub failures: Vec<TaskFailure>,
    /// Plays that no host is in.
    pub plays_without_hosts: u32,
    /// Whether the playbook came to its end; then the hosts' figures are sums.
    pub complete: bool,
    /// Hosts that are not kept, for there are too many.
    pub hosts_left_out: u32,
    /// Lines that were not understood.
    pub not_understood: u32,
}

/// How far a host is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaybookHostProgress {
    /// Tasks that did not fail, with those that changed something.
    pub ok: u32,
    /// Of these, those that changed something.
    pub changed: u32,
    /// Tasks that failed. Until the end, with those that the playbook rescues.
    pub failures: u32,
    /// Tasks for which it could not be reached.
    pub unreachable: u32,
    /// Tasks that were not for it.
    pub skipped: u32,
    /// The last task that ended on it.
    pub task: String,
    /// Whether its sums came, at the end.
    pub summed: bool,
}

impl PlaybookHostProgress {
    /// Whether something went wrong on it.
    pub fn is_bad(&self) -> bool {
        self.failures > 0 || self.unreachable > 0
    }
}

/// A task that failed on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFailure {
    /// The host.
    pub host: String,
    /// The task's name.
    pub task: String,
    /// Why, shortened; nothing of it where the task has `no_log`.
    pub message: String,
    /// Whether the host could not be reached.
    pub unreachable: bool,
}

impl PlaybookProgress {
    /// Takes an event.
    pub fn add(&mut self, event: AnsibleEvent) {
        match event {
            AnsibleEvent::Start { plays } => self.plays = plays,
            AnsibleEvent::Play(name) => {
                self.plays_begun = self.plays_begun.saturating_add(1);
                self.play = name;
                self.task.clear();
            }
            AnsibleEvent::Task(name) => {
                self.tasks_begun = self.tasks_begun.saturating_add(1);
                self.task = name;
            }
            AnsibleEvent::NoHosts => self.plays_without_hosts = self.plays_without_hosts.saturating_add(1),
            AnsibleEvent::End { .. } => self.complete = true,
            AnsibleEvent::Host { host, result } => self.result(host, result),
            AnsibleEvent::Sums { host, ok, changed, failures, unreachable } => {
                if let Some(found) = self.host(&host) {
                    *found = PlaybookHostProgress {
                        ok,
                        changed,
                        failures,
                        unreachable,
                        summed: true,
                        ..std::mem::take(found)
                    };
                }
            }
        }
    }

    /// Takes a line, whatever it is.
    pub(super) fn add_line(&mut self, line: &[u8]) {
        match parse(line) {
            Some(event) => self.add(event),
            None => self.not_understood = self.not_understood.saturating_add(1),
        }
    }

    /// 0 to 100, by plays; `None` until their number is known. Only the end is 100.
    pub fn percent(&self) -> Option<u8> {
        let before = u64::from(self.plays_begun.saturating_sub(1));
        match self.plays {
            _ if self.complete => Some(100),
            0 => None,
            plays => u8::try_from((before * 100 / u64::from(plays)).min(99)).ok(),
        }
    }

    fn host(&mut self, name: &str) -> Option<&mut PlaybookHostProgress> {
        if !self.hosts.contains_key(name) && self.hosts.len() >= HOSTS_MAX {
            self.hosts_left_out = self.hosts_left_out.saturating_add(1);
            return None;
        }
        Some(self.hosts.entry(name.to_owned()).or_default())
    }

    fn result(&mut self, name: String, result: HostResult) {
        let under_way = self.task.clone();
        let Some(host) = self.host(&name) else { return };
        let one_more = |count: &mut u32| *count = count.saturating_add(1);
        host.task = under_way;
        let (task, message, unreachable) = match result {
            HostResult::Ok | HostResult::Ignored => return one_more(&mut host.ok),
            HostResult::Changed => {
                one_more(&mut host.ok);
                return one_more(&mut host.changed);
            }
            HostResult::Skipped => return one_more(&mut host.skipped),
            HostResult::Failed { task, message } => {
                one_more(&mut host.failures);
                (task, message, false)
            }
            HostResult::Unreachable { task, message } => {
                one_more(&mut host.unreachable);
                (task, message, true)
            }
        };
        host.task.clone_from(&task);
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(TaskFailure { host: name, task, message, unreachable });
        }
    }
}

/// Makes lines of bytes that come piece by piece. A line that is too long is one that is not understood.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    begun: Vec<u8>,
    too_long: bool,
}

impl LineSplitter {
    /// Takes a piece, and gives the lines that ended in it to `progress`.
    pub(super) fn take(&mut self, mut piece: &[u8], progress: &mut PlaybookProgress) {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            self.keep(&piece[..end]);
            let line: &[u8] = if self.too_long { b"" } else { &self.begun };
            progress.add_line(line);
            (self.begun, self.too_long) = (Vec::new(), false);
            piece = &piece[end + 1..];
        }
        self.keep(piece);
    }

    fn keep(&mut self, piece: &[u8]) {
        if self.begun.len() + piece.len() > LINE_MAX {
            (self.begun, self.too_long) = (Vec::new(), true);
        }
        if !self.too_long {
            self.begun.extend_from_slice(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(lines: &str) -> PlaybookProgress {
        let mut progress = PlaybookProgress::default();
        LineSplitter::default().take(lines.as_bytes(), &mut progress);
        progress
    }

    const RUN: &str = "{\"event\":\"start\",\"plays\":2}
{\"event\":\"play\",\"name\":\"one\"}
{\"event\":\"task\",\"name\":\"a\"}
{\"event\":\"host\",\"host\":\"x\",\"result\":\"ok\"}
{\"event\":\"host\",\"host\":\"y\",\"result\":\"changed\"}
{\"event\":\"task\",\"name\":\"b\"}
{\"event\":\"host\",\"host\":\"x\",\"result\":\"failed\",\"task\":\"b\",\"message\":\"why\"}
{\"event\":\"host\",\"host\":\"y\",\"result\":\"unreachable\",\"task\":\"b\",\"message\":\"no route\"}
garbage
{\"event\":\"play\",\"name\":\"two\"}
{\"event\":\"no-hosts\"}
";
    const SUMS: &str = "{\"event\":\"sums\",\"host\":\"x\",\"ok\":1,\"changed\":0,\"failures\":0,\"unreachable\":0}
{\"event\":\"sums\",\"host\":\"y\",\"ok\":1,\"changed\":1,\"failures\":0,\"unreachable\":1}
{\"event\":\"end\",\"hosts\":2}
";

    #[test]
    fn events_become_progress() {
        let half = folded(RUN);
        assert_eq!((half.play.as_str(), half.plays_begun, half.tasks_begun), ("two", 2, 2));
        assert_eq!(
            (half.percent(), half.complete, half.not_understood, half.plays_without_hosts),
            (Some(50), false, 1, 1)
        );
        assert_eq!(
            half.hosts["x"],
            PlaybookHostProgress { ok: 1, failures: 1, task: "b".into(), ..Default::default() }
        );
        assert_eq!(
            half.hosts["y"],
            PlaybookHostProgress { ok: 1, changed: 1, unreachable: 1, task: "b".into(), ..Default::default() }
        );
        let failure = |host: &str, message: &str, unreachable| TaskFailure {
            host: host.into(),
            task: "b".into(),
            message: message.into(),
            unreachable,
        };
        assert_eq!(half.failures, [failure("x", "why", false), failure("y", "no route", true)]);
        // What was rescued is known at the end.
        let whole = folded(&format!("{RUN}{SUMS}"));
        assert!(whole.complete && !whole.hosts["x"].is_bad() && whole.hosts["y"].is_bad());
        assert_eq!(whole.percent(), Some(100));
    }

    #[test]
    fn pieces_make_the_same_lines() {
        let whole = folded(RUN);
        for size in [1, 2, 7, 100] {
            let (mut progress, mut lines) = (PlaybookProgress::default(), LineSplitter::default());
            RUN.as_bytes().chunks(size).for_each(|piece| lines.take(piece, &mut progress));
            assert_eq!(progress, whole, "{size}");
        }
    }

    #[test]
    fn a_flood_is_bounded() {
        let (mut progress, mut lines) = (PlaybookProgress::default(), LineSplitter::default());
        lines.take(&vec![b'x'; 10 * LINE_MAX], &mut progress);
        assert!(lines.begun.len() <= LINE_MAX);
        lines.take(b"\n{\"event\":\"play\",\"name\":\"p\"}\n", &mut progress);
        assert_eq!((progress.not_understood, progress.play.as_str()), (1, "p"));
        for number in 0..HOSTS_MAX + 10 {
            let result = HostResult::Failed { task: "t".into(), message: "m".into() };
            progress.add(AnsibleEvent::Host { host: format!("h{number}"), result });
        }
        assert_eq!((progress.hosts.len(), progress.hosts_left_out), (HOSTS_MAX, 10));
        assert_eq!(progress.failures.len(), FAILURES_MAX);
    }

    #[test]
    fn percent_is_by_plays_and_only_the_end_is_all() {
        for (plays, begun, complete, wanted) in [
            (0, 0, false, None),
            (0, 3, false, None),
            (10, 0, false, Some(0)),
            (10, 1, false, Some(0)),
            (10, 6, false, Some(50)),
            (2, 900, false, Some(99)),
            (0, 0, true, Some(100)),
        ] {
            let progress = PlaybookProgress { plays, plays_begun: begun, complete, ..Default::default() };
            assert_eq!(progress.percent(), wanted, "{plays} {begun} {complete}");
        }
    }
}
