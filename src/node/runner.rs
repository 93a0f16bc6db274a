//! Runners: what does a step.
//!
//! Each ends with an exit code and its last lines. Codes of the agent's own are those of a shell and of timeout(1): 124 took too long,
//! 126 could not be run as it is written, 127 a program is missing, 128 and the signal's number.

mod download;
mod program;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

pub(super) use download::{fetch, sha256_of};
pub(super) use program::{remove, scratch};

use super::client::{Client, DeploymentSecret};
use super::effect::NodeEffect;
use super::processes::StepProcesses;
use crate::api::lcm::{StateItem, StepRunner};

/// How long a step may take that does not say it.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Longest time that a step can say.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// It took too long.
pub(super) const TOOK_TOO_LONG: i32 = 124;
/// It cannot be run as it is written.
pub(super) const NOT_RUN: i32 = 126;
/// A program is not there.
pub(super) const NOT_FOUND: i32 = 127;

/// How a step ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ItemOutcome {
    pub code: i32,
    /// Its last lines.
    pub text: String,
    pub result: Option<Value>,
}

impl ItemOutcome {
    fn failed(code: i32, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), result: None }
    }
}

/// What runners need of the agent.
pub(super) struct Bench<'a> {
    pub client: &'a Client,
    /// In memory, for this step alone; removed after it.
    pub scratch: PathBuf,
    /// Where output is kept.
    pub outputs: PathBuf,
    /// Folder of state, which marks the step's processes.
    pub state: &'a Path,
    /// `PATH`.
    pub path: &'a str,
    pub deployment: Option<&'a DeploymentSecret>,
    pub processes: &'a StepProcesses,
    pub grace: Duration,
    pub tell: &'a dyn Fn(NodeEffect),
}

/// Runs a step to its end, or until it has taken too long.
pub(super) async fn run(item: &StateItem, bench: &Bench<'_>) -> ItemOutcome {
    let limit = match timeout(item) {
        Ok(limit) => limit,
        Err(fault) => return ItemOutcome::failed(NOT_RUN, fault),
    };
    match item.runner {
        StepRunner::Downloader => {
            let done = tokio::time::timeout(limit, download::run(item, bench)).await;
            done.unwrap_or_else(|_| ItemOutcome::failed(TOOK_TOO_LONG, too_long(limit)))
        }
        StepRunner::Bash => program::bash(item, bench, limit).await,
        StepRunner::Ansible => program::ansible(item, bench, limit).await,
    }
}

fn too_long(limit: Duration) -> String {
    format!("took longer than its timeout of {} s and was ended", limit.as_secs_f64())
}

/// A parameter that must be there.
fn needed<'a>(item: &'a StateItem, name: &str) -> Result<&'a str, ItemOutcome> {
    match item.params.get(name).map(String::as_str).filter(|value| !value.is_empty()) {
        Some(value) => Ok(value),
        None => Err(ItemOutcome::failed(NOT_RUN, format!("the parameter {name} is missing"))),
    }
}

/// `timeout`: a number with a unit (`s`, `m`, `h`), or several.
fn timeout(item: &StateItem) -> Result<Duration, String> {
    let Some(text) = item.params.get("timeout").filter(|text| !text.is_empty()) else { return Ok(TIMEOUT) };
    let fault = || format!("the parameter timeout is {text:?}, and must be as 90s, 30m or 1h30m, at most 24h");
    let mut whole = Duration::ZERO;
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = rest[..digits].parse().map_err(|_| fault())?;
        let unit = rest[digits..].len() - rest[digits..].trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let one = match &rest[digits..digits + unit] {
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            "m" => Duration::from_secs(number.saturating_mul(60)),
            "h" => Duration::from_secs(number.saturating_mul(3600)),
            _ => return Err(fault()),
        };
        whole = whole.saturating_add(one);
        rest = &rest[digits + unit..];
    }
    if whole.is_zero() || whole > TIMEOUT_MAX { Err(fault()) } else { Ok(whole) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_go_writes_them() {
        let of = |text: &str| {
            let params = [("timeout".to_owned(), text.to_owned())].into();
            timeout(&StateItem { params, ..StateItem::default() }).map(|limit| limit.as_secs()).ok()
        };
        for (text, wanted) in [
            ("", Some(1800)),
            ("90s", Some(90)),
            ("1h30m", Some(5400)),
            ("24h", Some(86_400)),
            ("25h", None),
            ("0s", None),
            ("30", None),
            ("m", None),
            ("1d", None),
            ("99999999999999999999s", None),
            ("18446744073709551615h", None),
            ("-1s", None),
            ("1ä", None),
        ] {
            assert_eq!(of(text), wanted, "{text}");
        }
    }
}
