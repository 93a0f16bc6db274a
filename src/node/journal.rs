//! What the agent must not forget, on its disk: the spec that it goes by, and what became of each step.
//!
//! | file | what it is |
//! |---|---|
//! | `machine.json` | the last spec that was read; the agent goes on by it while the appliance is away |
//! | `steps.json` | what became of steps, of the agent's replacement, of a reboot |
//! | `reserve` | room for the end of a step where the disk is full by then |
//! | `lock` | held by the agent that runs |
//!
//! Each file is written beside its place, synced, and renamed. A step is noted before it begins and after it ended: what is noted as
//! done was done, and a step that was not noted as ended is done again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::client::SeenMachine;
use super::effect::NodeEffect;
use super::files;
use crate::api::lcm::{AgentUpgradeStatus, LCMMachineSpec, MAX_ITEMS, StateItemStatus};

/// Most steps that are remembered and not asked for any more: they may be handed out again.
const MAX_OLD: usize = MAX_ITEMS;
/// Largest file of the journal in bytes.
const MAX_FILE: u64 = 32 << 20;
/// Least room that is kept for the end of a step, in bytes.
const RESERVE: u64 = 128 << 10;

/// What of the LCMMachine the agent goes by.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct KnownMachine {
    pub generation: i64,
    pub spec: LCMMachineSpec,
    /// When a reboot was asked for that has not come about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reboot_requested: Option<Time>,
}

impl KnownMachine {
    /// What was read.
    pub fn of(seen: &SeenMachine) -> Self {
        let reboot = &seen.status["reboot"];
        // Whether a release requires it or somebody asked: the appliance says so when it is the machine's turn.
        let asked = !reboot["completed"].as_bool().unwrap_or(false);
        let requested = reboot["requestedAt"].as_str().filter(|_| asked).and_then(|time| {
            // Of whole seconds, as it is on the disk: it is compared with that.
            let time: Timestamp = time.parse().ok()?;
            Timestamp::from_second(time.as_second()).ok()
        });
        Self { generation: seen.metadata.generation, spec: seen.spec.clone(), reboot_requested: requested.map(Time) }
    }
}

/// What became of everything.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Records {
    pub steps: BTreeMap<String, StateItemStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<UpgradeRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reboot: Option<RebootRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootRecord>,
    /// Lines that were put into `authorized_keys` last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
}

/// How it went to replace the agent by the program with a checksum.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct UpgradeRecord {
    pub sha256: String,
    /// Whether it is not tried any more.
    pub is_refused: bool,
    pub status: AgentUpgradeStatus,
}

/// A reboot that the agent brought about.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RebootRecord {
    /// When it was asked for, as the appliance wrote it.
    pub requested_at: Option<Time>,
    /// The boot in which the command was given.
    pub boot_id: String,
    /// Why it did not come about.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// When the kernel began, by the appliance's time: told once for each boot, so that it does not waver.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(super) struct BootRecord {
    pub boot_id: String,
    pub time: Time,
}

/// The agent's memory, and its place on the disk.
pub(super) struct Journal {
    folder: PathBuf,
    _lock: Option<File>,
    tell: fn(NodeEffect),
    pub machine: Option<KnownMachine>,
    pub records: Records,
}

impl Journal {
    /// Opens the journal of the one agent that writes it. `tell` is told of each effect.
    pub fn open(folder: &Path, tell: fn(NodeEffect)) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let lock = File::options().create(true).truncate(false).write(true).open(folder.join("lock"))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| io::Error::new(io::ErrorKind::WouldBlock, "another agent runs here"))?;
        Ok(Self { _lock: Some(lock), tell, ..Self::read(folder)? })
    }

    /// Reads it, for whoever only looks.
    pub fn read(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            folder: folder.to_owned(),
            _lock: None,
            tell: |_| {},
            machine: load(folder, "machine.json")?,
            records: load(folder, "steps.json")?.unwrap_or_default(),
        })
    }

    /// Keeps a spec that was read. In memory it counts even if it cannot be kept.
    pub fn keep(&mut self, machine: KnownMachine) -> io::Result<()> {
        if self.machine.as_ref() == Some(&machine) {
            return Ok(());
        }
        let text = serde_json::to_vec(&machine)?;
        self.machine = Some(machine);
        self.write("machine.json", &text)?;
        (self.tell)(NodeEffect::SpecKept);
        Ok(())
    }

    /// Notes what is to be done, with room to note its end.
    pub fn before(&mut self, change: impl FnOnce(&mut Records)) -> io::Result<()> {
        let mut records = self.records.clone();
        change(&mut records);
        self.reserve(&records)?;
        self.write("steps.json", &serde_json::to_vec(&records)?)?;
        self.records = records;
        Ok(())
    }

    /// Notes what was done, if need be into the room that was kept. In memory it counts only when it is on the disk: nobody is told
    /// what a crash would have forgotten.
    pub fn after(&mut self, change: impl FnOnce(&mut Records)) -> io::Result<()> {
        let mut records = self.records.clone();
        change(&mut records);
        let text = serde_json::to_vec(&records)?;
        if self.write("steps.json", &text).is_err() {
            std::fs::remove_file(self.folder.join("reserve")).ok();
            self.write("steps.json", &text)?;
        }
        self.records = records;
        Ok(())
    }

    /// Forgets steps that nobody asks for, where there are too many.
    pub fn forget(&mut self, wanted: impl Fn(&str) -> bool) {
        let mut old: Vec<_> = self
            .records
            .steps
            .iter()
            .filter(|(name, _)| !wanted(name))
            .map(|(name, step)| (step.started_at.clone(), name.clone()))
            .collect();
        old.sort_unstable();
        for (_, name) in old.iter().take(old.len().saturating_sub(MAX_OLD)) {
            self.records.steps.remove(name);
        }
    }

    /// A file of the journal's folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Told of effects.
    pub fn tell(&self, effect: NodeEffect) {
        (self.tell)(effect);
    }

    /// Room for the end of what is to begin: the records with a longer message, written beside their place.
    fn reserve(&self, records: &Records) -> io::Result<()> {
        let path = self.folder.join("reserve");
        let wanted = RESERVE + 2 * serde_json::to_vec(records)?.len() as u64;
        if std::fs::metadata(&path).is_ok_and(|about| about.len() >= wanted) {
            return Ok(());
        }
        let file = File::options().create(true).truncate(false).write(true).open(&path)?;
        let length = i64::try_from(wanted).unwrap_or(i64::MAX);
        nix::fcntl::posix_fallocate(&file, 0, length)?;
        file.sync_all()
    }

    fn write(&self, name: &str, text: &[u8]) -> io::Result<()> {
        files::replace(&self.folder.join(name), text, 0o600)
    }
}

/// Reads a file of the journal. One that cannot be understood is put aside: its steps are done again, which every step must bear.
fn load<T: DeserializeOwned>(folder: &Path, name: &str) -> io::Result<Option<T>> {
    let path = folder.join(name);
    let text = match crate::files::read(&path, MAX_FILE) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match serde_json::from_slice(&text) {
        Ok(read) => Ok(Some(read)),
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "cannot be understood: it is put aside, and steps are done again");
            std::fs::rename(&path, folder.join(format!("{name}.broken"))).ok();
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_there_again_and_only_one_agent_writes() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path(), |_| {}).unwrap();
        journal.keep(KnownMachine { generation: 3, ..KnownMachine::default() }).unwrap();
        let step = StateItemStatus { hash: "h".into(), attempt: 1, ..StateItemStatus::default() };
        journal.before(|records| drop(records.steps.insert("a".into(), step.clone()))).unwrap();
        journal.after(|records| records.steps.get_mut("a").unwrap().exit_code = Some(0)).unwrap();
        assert!(Journal::open(folder.path(), |_| {}).is_err(), "locked");
        drop(journal);
        let journal = Journal::open(folder.path(), |_| {}).unwrap();
        assert_eq!(journal.machine.as_ref().unwrap().generation, 3);
        assert_eq!(journal.records.steps["a"].exit_code, Some(0));
        drop(journal);
        std::fs::write(folder.path().join("steps.json"), "{\"steps\": [").unwrap();
        let journal = Journal::open(folder.path(), |_| {}).unwrap();
        assert!(journal.records.steps.is_empty() && journal.machine.is_some());
        assert!(folder.path().join("steps.json.broken").exists());
    }

    #[test]
    fn steps_of_old_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path(), |_| {}).unwrap();
        for number in 0..MAX_OLD + 10 {
            let started = jiff::Timestamp::from_second(number as i64).unwrap();
            let step = StateItemStatus { started_at: Some(Time(started)), ..StateItemStatus::default() };
            journal.records.steps.insert(format!("s{number:04}"), step);
        }
        journal.forget(|name| name == "s0000");
        assert_eq!(journal.records.steps.len(), MAX_OLD + 1);
        assert!(journal.records.steps.contains_key("s0000"), "it is wanted");
        assert!(!journal.records.steps.contains_key("s0001"), "the oldest went");
    }
}
