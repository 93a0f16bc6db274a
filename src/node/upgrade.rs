//! How the agent is replaced by another program.
//!
//! The new program is fetched beside the old one, checked, and tried by the old one: as a child it must reach the appliance, and tell
//! it of itself, before it gets the old one's place. So the program in that place is always one that came up. What it does later is
//! watched, too: a file `trial` names it until it has reported from its place. Its unit, which is started again and again where it
//! crashes, counts in that file, and puts the old program back (`systemd/slipway-node.service`); so does the new one itself where it
//! does not report in time.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use tokio::process::Command;

use super::client::Client;
use super::config::{AgentPauses, NodeConfig};
use super::files;
use super::journal::UpgradeRecord;
use super::processes::MARK;
use super::runner::{fetch, sha256_of};
use crate::api::lcm::AgentConfig;
use crate::log;

/// Largest program in bytes.
const MOST: u64 = 1 << 30;
/// How long a new program has to check itself.
const CHECK: Duration = Duration::from_secs(90);
/// How often it is tried before it is not tried any more.
const TRIALS: usize = 2;
/// What `slipway node --check` ends with where the appliance is away: no fault of the program (EX_TEMPFAIL of sysexits.h).
pub const AWAY: u8 = 75;
/// Longest output of a program that is told, in characters.
const WORDS: usize = 500;

/// The agent's program.
#[derive(Debug)]
pub(super) struct OwnProgram {
    path: PathBuf,
    sha256: String,
}

/// Why a program does not take the old one's place.
#[derive(Debug)]
pub(super) struct UpgradeFault {
    pub text: String,
    /// Whether another try is of no use.
    pub is_final: bool,
}

/// Whether the agent is to be replaced now.
#[derive(Debug, PartialEq)]
pub(super) enum UpgradeTurn {
    No,
    Later(Duration),
    Now,
}

/// Decides that.
pub(super) fn turn(
    wanted: Option<&AgentConfig>,
    own: &str,
    record: Option<&UpgradeRecord>,
    now: Timestamp,
    pauses: &AgentPauses,
) -> UpgradeTurn {
    let Some(wanted) = wanted.filter(|wanted| !wanted.sha256.is_empty()) else { return UpgradeTurn::No };
    if wanted.sha256.eq_ignore_ascii_case(own) {
        return UpgradeTurn::No;
    }
    let Some(record) = record.filter(|record| record.sha256.eq_ignore_ascii_case(&wanted.sha256)) else {
        return UpgradeTurn::Now;
    };
    if record.is_refused {
        return UpgradeTurn::No;
    }
    let Some(since) = record.status.finished_at.as_ref().or(record.status.started_at.as_ref()) else {
        return UpgradeTurn::Now;
    };
    let whole = AgentPauses::after(pauses.retry_least, pauses.retry_most, record.status.attempt);
    let passed = Duration::try_from(now.duration_since(since.0)).unwrap_or(Duration::ZERO);
    match whole.saturating_sub(passed) {
        pause if pause.is_zero() => UpgradeTurn::Now,
        pause => UpgradeTurn::Later(pause),
    }
}

impl OwnProgram {
    /// The program that runs, with its place.
    pub fn of(config: &NodeConfig) -> io::Result<Self> {
        let path = match &config.program {
            Some(path) => path.clone(),
            None => std::env::current_exe()?,
        };
        Ok(Self { path, sha256: sha256_of(File::open("/proc/self/exe")?)? })
    }

    /// Its checksum.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    fn beside(&self, what: &str) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(what);
        name.into()
    }

    /// Fetches a program, has it check itself and come up, and gives it this one's place.
    pub async fn replace(
        &self,
        client: &Client,
        wanted: &AgentConfig,
        config_file: &Path,
        config: &NodeConfig,
    ) -> Result<(), UpgradeFault> {
        let fault = |is_final| move |text: String| UpgradeFault { text, is_final };
        let new = self.beside(".new");
        let digits = wanted.sha256.len() == 64 && wanted.sha256.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !digits {
            return Err(fault(true)("agentConfig.sha256 must be 64 hexadecimal digits".into()));
        }
        if wanted.download_url.is_empty() {
            return Err(fault(false)("agentConfig.downloadURL is missing".into()));
        }
        // One that came before a crash is as good.
        let is_there =
            files::open(&new).and_then(sha256_of).is_ok_and(|sha256| sha256.eq_ignore_ascii_case(&wanted.sha256));
        if !is_there {
            let fetched = fetch(client, &wanted.download_url, &wanted.sha256, &new, 0o755, MOST).await;
            let fetched = fetched.map_err(|error| fault(false)(error.to_string()))?;
            fetched.place().map_err(|error| fault(false)(format!("{}: {error}", new.display())))?;
        }
        match self.run(&new, "--check", config_file, config, CHECK).await {
            Ok(()) => {}
            Err((Some(code), text)) if code == i32::from(AWAY) => return Err(fault(false)(text)),
            Err((_, text)) => {
                fs::remove_file(&new).ok();
                return Err(fault(true)(format!("the new program does not check: {text}")));
            }
        }
        let mut last = String::new();
        for _ in 0..TRIALS {
            let limit = Duration::from_millis(config.pauses.trial);
            match self.run(&new, "--trial", config_file, config, limit).await {
                Ok(()) => return self.place(&new, config).map_err(|error| fault(false)(error.to_string())),
                Err((code, text)) => {
                    last = text;
                    // It did not end: another try would take as long.
                    if code.is_none() {
                        break;
                    }
                }
            }
        }
        fs::remove_file(&new).ok();
        Err(fault(true)(format!("the new program does not come up: {last}. The old one goes on")))
    }

    fn place(&self, new: &Path, config: &NodeConfig) -> io::Result<()> {
        let text = format!("{}\n", sha256_of(files::open(new)?)?);
        files::replace(&config.state_folder.join("trial"), text.as_bytes(), 0o600)?;
        let old = self.beside(".old");
        fs::remove_file(&old)
            .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
        fs::hard_link(&self.path, &old)?;
        fs::rename(new, &self.path)?;
        File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }

    /// Runs it as a child; its exit code and its last words where it fails.
    async fn run(
        &self,
        program: &Path,
        how: &str,
        config_file: &Path,
        config: &NodeConfig,
        limit: Duration,
    ) -> Result<(), (Option<i32>, String)> {
        let child = Command::new(program)
            .args(["node", how, "--config"])
            .arg(config_file)
            .env(MARK, &config.state_folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| (Some(126), format!("cannot be started: {error}")))?;
        let waited = tokio::time::timeout(limit, child.wait_with_output()).await;
        let ended = waited.map_err(|_| (None, format!("it did not report within {} s", limit.as_secs_f64())))?;
        let ended = ended.map_err(|error| (None, error.to_string()))?;
        if ended.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&ended.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        Err((ended.status.code().or(Some(128)), log::clean(&format!("{}: {last}", ended.status), WORDS)))
    }

    /// Puts the old program back, and says so to it.
    pub fn go_back(&self, config: &NodeConfig) -> io::Result<()> {
        let trial = config.state_folder.join("trial");
        fs::rename(self.beside(".old"), &self.path)?;
        fs::rename(trial, config.state_folder.join("went-back"))
    }

    /// Whether it has its place on trial. One that another program was to have is none.
    pub fn is_on_trial(&self, config: &NodeConfig) -> bool {
        let named = first_line(&config.state_folder.join("trial"));
        if named.as_deref().is_some_and(|named| named != self.sha256) {
            fs::remove_file(config.state_folder.join("trial")).ok();
            return false;
        }
        named.is_some()
    }

    /// It reported from its place: it stays.
    pub fn stays(&self, config: &NodeConfig) {
        fs::remove_file(config.state_folder.join("trial")).ok();
    }
}

/// Which program had its place and did not stay, since this was asked last.
pub(super) fn went_back(config: &NodeConfig) -> Option<String> {
    first_line(&config.state_folder.join("went-back"))
}

/// It was noted.
pub(super) fn forget_went_back(config: &NodeConfig) {
    fs::remove_file(config.state_folder.join("went-back")).ok();
}

fn first_line(path: &Path) -> Option<String> {
    let text = crate::files::read_text(path, 1 << 20).ok()?;
    Some(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::api::lcm::AgentUpgradeStatus;

    #[test]
    fn a_program_is_tried_until_it_is_refused_and_another_one_at_once() {
        let at = |second| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let wanted = AgentConfig { sha256: "AA".into(), ..AgentConfig::default() };
        let record = |sha256: &str, is_refused, attempt, finished: Option<i64>| UpgradeRecord {
            sha256: sha256.into(),
            is_refused,
            status: AgentUpgradeStatus {
                attempt,
                finished_at: finished.map(|second| Time(at(second))),
                ..AgentUpgradeStatus::default()
            },
        };
        let pauses = AgentPauses::default();
        let turn = |wanted: Option<&AgentConfig>, own: &str, record: Option<&UpgradeRecord>| {
            super::turn(wanted, own, record, at(0), &pauses)
        };
        assert_eq!(turn(None, "bb", None), UpgradeTurn::No);
        assert_eq!(turn(Some(&AgentConfig::default()), "bb", None), UpgradeTurn::No, "no checksum");
        assert_eq!(turn(Some(&wanted), "aa", None), UpgradeTurn::No, "it is this one");
        assert_eq!(turn(Some(&wanted), "bb", None), UpgradeTurn::Now);
        assert_eq!(turn(Some(&wanted), "bb", Some(&record("cc", true, 1, Some(0)))), UpgradeTurn::Now);
        assert_eq!(turn(Some(&wanted), "bb", Some(&record("aa", true, 1, Some(-999)))), UpgradeTurn::No);
        let later = UpgradeTurn::Later(Duration::from_secs(15));
        assert_eq!(turn(Some(&wanted), "bb", Some(&record("aa", false, 2, Some(-5)))), later);
        assert_eq!(turn(Some(&wanted), "bb", Some(&record("aa", false, 2, Some(-20)))), UpgradeTurn::Now);
        assert_eq!(turn(Some(&wanted), "bb", Some(&record("aa", false, 1, None))), UpgradeTurn::Now);
    }
}
