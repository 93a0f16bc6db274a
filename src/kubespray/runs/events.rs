//! What a run tells: one line of JSON for each event, written by our callback plugin (`slipway_events.py`).
//!
//! Names and messages are what playbooks and nodes say, so every line is hostile: it is bounded, its texts are shortened and rid
//! of what would rule a terminal, and one that is not understood is counted and passed over.

use serde::Deserialize;

use super::request::HOST_MAX;
use crate::log::clean;

/// The plugin, as it is written into the run's folder.
pub(super) const PLUGIN_TEXT: &str = include_str!("slipway_events.py");
/// Longest line that is looked at, in bytes. The plugin's are shorter: a message has at most six bytes for a character.
pub(super) const LINE_MAX: usize = 16 << 10;
/// Longest name of a play or a task, in characters.
const NAME_MAX: usize = 200;
/// Longest message of a failure, in characters.
const MESSAGE_MAX: usize = 500;

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnsibleEvent {
    /// The playbook begins, with so many plays.
    Start {
        /// Plays, with those that playbooks import.
        plays: u32,
    },
    /// A play begins.
    Play(String),
    /// A task begins on the hosts of the play.
    Task(String),
    /// A task ended on a host.
    Host {
        /// The host's name in the inventory.
        host: String,
        /// How it ended.
        result: HostResult,
    },
    /// No host of the inventory is one of a play.
    NoHosts,
    /// What a host's tasks came to, at the end.
    Sums {
        /// The host's name in the inventory.
        host: String,
        /// Tasks that did not fail, with those that changed something.
        ok: u32,
        /// Of these, those that changed something.
        changed: u32,
        /// Tasks that failed, and were neither ignored nor rescued.
        failures: u32,
        /// Tasks for which it could not be reached.
        unreachable: u32,
    },
    /// The playbook came to its end, whichever it was.
    End {
        /// Hosts that anything was done on.
        hosts: u32,
    },
}

/// How a task ended on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostResult {
    /// Nothing was to be changed.
    Ok,
    /// Something was changed.
    Changed,
    /// It was not for this host.
    Skipped,
    /// It failed, which the playbook ignores.
    Ignored,
    /// It failed. A `rescue` of the playbook may mend it; the sums tell.
    Failed {
        /// The task's name.
        task: String,
        /// Why, shortened.
        message: String,
    },
    /// The host did not answer.
    Unreachable {
        /// The task's name.
        task: String,
        /// Why, shortened.
        message: String,
    },
}

#[derive(Deserialize)]
struct EventLine {
    event: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    host: String,
    #[serde(default)]
    result: String,
    #[serde(default)]
    task: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    plays: u32,
    #[serde(default)]
    hosts: u32,
    #[serde(default)]
    ok: u32,
    #[serde(default)]
    changed: u32,
    #[serde(default)]
    failures: u32,
    #[serde(default)]
    unreachable: u32,
}

/// The event of a line; `None` when it is none.
pub(super) fn parse(line: &[u8]) -> Option<AnsibleEvent> {
    if line.len() > LINE_MAX {
        return None;
    }
    let line: EventLine = serde_json::from_slice(line).ok()?;
    let name = |text: &str| clean(text, NAME_MAX);
    let host = || Some(line.host.as_str()).filter(|host| !host.is_empty()).map(|host| clean(host, HOST_MAX));
    Some(match line.event.as_str() {
        "start" => AnsibleEvent::Start { plays: line.plays },
        "play" => AnsibleEvent::Play(name(&line.name)),
        "task" => AnsibleEvent::Task(name(&line.name)),
        "no-hosts" => AnsibleEvent::NoHosts,
        "end" => AnsibleEvent::End { hosts: line.hosts },
        "sums" => AnsibleEvent::Sums {
            host: host()?,
            ok: line.ok,
            changed: line.changed,
            failures: line.failures,
            unreachable: line.unreachable,
        },
        "host" => {
            let (task, message) = (name(&line.task), clean(&line.message, MESSAGE_MAX));
            let result = match line.result.as_str() {
                "ok" => HostResult::Ok,
                "changed" => HostResult::Changed,
                "skipped" => HostResult::Skipped,
                "ignored" => HostResult::Ignored,
                "failed" => HostResult::Failed { task, message },
                "unreachable" => HostResult::Unreachable { task, message },
                _ => return None,
            };
            AnsibleEvent::Host { host: host()?, result }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_events_and_what_is_none_is_passed_over() {
        let host = |result: HostResult| Some(AnsibleEvent::Host { host: "w-1".into(), result });
        let failed = |task: &str, message: &str| HostResult::Failed { task: task.into(), message: message.into() };
        let rows: &[(&str, Option<AnsibleEvent>)] = &[
            (r#"{"event":"start","plays":15}"#, Some(AnsibleEvent::Start { plays: 15 })),
            (r#"{"event":"play","name":"Gather facts"}"#, Some(AnsibleEvent::Play("Gather facts".into()))),
            (r#"{"event":"task","name":"x","more":[1]}"#, Some(AnsibleEvent::Task("x".into()))),
            (r#"{"event":"host","host":"w-1","result":"ok"}"#, host(HostResult::Ok)),
            (r#"{"event":"host","host":"w-1","result":"changed"}"#, host(HostResult::Changed)),
            (r#"{"event":"host","host":"w-1","result":"failed","task":"t","message":"m"}"#, host(failed("t", "m"))),
            // A node that would rule a terminal or begin a line.
            (
                "{\"event\":\"host\",\"host\":\"w-1\",\"result\":\"failed\",\"task\":\"t\",\"message\":\"\\u001b[2J\\nx\"}",
                host(failed("t", " [2J x")),
            ),
            (
                r#"{"event":"sums","host":"w-1","ok":3,"changed":1,"failures":0,"unreachable":0,"rescued":1}"#,
                Some(AnsibleEvent::Sums { host: "w-1".into(), ok: 3, changed: 1, failures: 0, unreachable: 0 }),
            ),
            (r#"{"event":"no-hosts"}"#, Some(AnsibleEvent::NoHosts)),
            (r#"{"event":"end","hosts":2}"#, Some(AnsibleEvent::End { hosts: 2 })),
            (r#"{"event":"host","result":"ok"}"#, None),
            (r#"{"event":"host","host":"","result":"ok"}"#, None),
            (r#"{"event":"host","host":"w-1","result":"fine"}"#, None),
            (r#"{"event":"sums","host":"w-1","ok":-1}"#, None),
            (r#"{"event":"end","hosts":99999999999}"#, None),
            (r#"{"event":{}}"#, None),
            (r#"["event"]"#, None),
            ("PLAY [all] ****", None),
            ("", None),
        ];
        for (line, wanted) in rows {
            assert_eq!(&parse(line.as_bytes()), wanted, "{line}");
        }
        assert_eq!(parse(&[0xff, 0xfe]), None);
        let long = format!(r#"{{"event":"task","name":"{}"}}"#, "x".repeat(LINE_MAX));
        assert_eq!(parse(long.as_bytes()), None);
        let shortened = format!(r#"{{"event":"task","name":"{}"}}"#, "x".repeat(NAME_MAX + 1));
        assert_eq!(parse(shortened.as_bytes()), Some(AnsibleEvent::Task(format!("{}…", "x".repeat(NAME_MAX)))));
    }

    #[test]
    fn nesting_does_not_end_the_process() {
        assert_eq!(parse(&vec![b'['; LINE_MAX]), None);
        assert_eq!(parse(format!("{}{}", r#"{"event":"#, r#"{"a":"#.repeat(2000)).as_bytes()), None);
    }
}
