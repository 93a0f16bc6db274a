//! What the steps of a machine type must be. Pure.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use super::faults::Faults;
use crate::api::lcm::{MAX_ITEMS, StateItem, StepRunner};

/// Longest name of a step, in letters.
const NAME_MAX: usize = 128;
/// Parameters of a step.
const PARAMS_MAX: usize = 64;
/// All parameters of a machine type's steps, in bytes: every machine's object carries them.
const TOTAL_MAX: usize = 256 << 10;
/// Longest value that Linux takes as one variable of an environment (`MAX_ARG_STRLEN`) with its name, in bytes.
const VALUE_MAX: usize = 96 << 10;
/// The agent's own variables begin so.
const OWN_VARIABLES: &str = "SLIPWAY_";

/// Judges the steps of a machine type.
pub(super) fn judge(path: &str, steps: &[StateItem], faults: &mut Faults) {
    faults.too_many(path, steps.len(), MAX_ITEMS);
    let mut names = BTreeSet::new();
    let mut total = 0;
    for (at, step) in steps.iter().enumerate().take(MAX_ITEMS) {
        let path = format!("{path}[{at}]");
        if step.name.is_empty() || step.name.chars().count() > NAME_MAX || step.name.contains(char::is_control) {
            faults.invalid(format!("{path}.name"), &step.name, format!("has 1 to {NAME_MAX} letters"));
        }
        faults.once(format!("{path}.name"), &step.name, &mut names);
        total += step.params.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        params(&path, step, faults);
    }
    if total > TOTAL_MAX {
        faults.too_long(path, total, TOTAL_MAX);
    }
}

fn params(path: &str, step: &StateItem, faults: &mut Faults) {
    let at = |name: &str| format!("{path}.params[{name}]");
    faults.too_many(format!("{path}.params"), step.params.len(), PARAMS_MAX);
    for (name, value) in step.params.iter().take(PARAMS_MAX) {
        if !is_variable(name) || name.starts_with(OWN_VARIABLES) {
            let detail =
                format!("is no name of a variable: letters, digits and _, and not beginning with {OWN_VARIABLES}");
            faults.invalid(at(name), name, detail);
        }
        faults.too_long(at(name), value.len(), VALUE_MAX);
        if value.contains('\0') {
            faults.forbidden(at(name), "has a NUL in it");
        }
    }
    let get = |name: &str| step.params.get(name).map(String::as_str).filter(|value| !value.is_empty());
    let must = |name: &str, faults: &mut Faults| {
        if get(name).is_none() {
            let runner = format!("{:?}", step.runner).to_lowercase();
            faults.required(at(name), format!("the runner {runner} needs it"));
        }
    };
    let absolute = |name: &str, faults: &mut Faults| {
        if let Some(value) = get(name)
            && !is_absolute(value)
        {
            faults.invalid(at(name), value, "is no absolute path without . and ..");
        }
    };
    match step.runner {
        StepRunner::Downloader => {
            for name in ["url", "sha256", "path"] {
                must(name, faults);
            }
            if let Some(url) = get("url") {
                faults.url(at("url"), url, &["http", "https"]);
            }
            if let Some(sha256) = get("sha256") {
                faults.sha256(at("sha256"), sha256);
            }
            absolute("path", faults);
            if let Some(mode) = get("mode").filter(|mode| !is_mode(mode)) {
                faults.invalid(at("mode"), mode, "is no mode of a file, such as 0644");
            }
        }
        StepRunner::Bash => {
            match (get("script"), get("path")) {
                (None, None) => faults.required(at("script"), "the runner bash needs it, or path"),
                (Some(_), Some(_)) => faults.forbidden(at("path"), "there is a script already: one of them is done"),
                _ => {}
            }
            absolute("path", faults);
            timeout(&at("timeout"), get("timeout"), faults);
        }
        StepRunner::Ansible => {
            must("playbook", faults);
            absolute("playbook", faults);
            timeout(&at("timeout"), get("timeout"), faults);
        }
    }
}

fn timeout(path: &str, text: Option<&str>, faults: &mut Faults) {
    if let Some(text) = text {
        let digits = text.trim_end_matches(['s', 'm', 'h']);
        let is_one = text.len() - digits.len() == 1 && digits.parse::<u32>().is_ok_and(|number| number > 0);
        if !is_one {
            faults.invalid(path, text, "is no length of time, such as 90s, 30m or 2h");
        }
    }
}

fn is_variable(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.bytes().next().is_some_and(letter) && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
}

fn is_absolute(path: &str) -> bool {
    let parts = Path::new(path).components();
    path.starts_with('/') && parts.skip(1).all(|part| matches!(part, Component::Normal(_))) && !path.contains("/./")
}

fn is_mode(mode: &str) -> bool {
    (3..=4).contains(&mode.len()) && mode.bytes().all(|byte| matches!(byte, b'0'..=b'7'))
}
