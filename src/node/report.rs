//! What the agent tells the appliance: merge patches (RFC 7396) of its own fields of the status, of bounded size.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::journal::Records;
use crate::api::lcm::{HostInfo, StateItem, StateItemStatus};
use crate::log;

/// Longest message of a step in bytes.
pub(super) const MAX_MESSAGE: usize = 4 << 10;
/// Longest result of a step in bytes.
pub(super) const MAX_RESULT: usize = 16 << 10;
/// Most bytes of all steps' statuses together: an object has bounds of its own.
const MAX_STATUSES: usize = 512 << 10;
/// Longest message of a step where they are too long together.
const SHORT_MESSAGE: usize = 256;

/// What there is to tell.
pub(super) struct Parts<'a> {
    pub records: &'a Records,
    pub items: &'a [StateItem],
    /// Why steps are not begun, by name.
    pub waits: &'a BTreeMap<String, String>,
    pub addresses: &'a [(String, String)],
    pub host: &'a HostInfo,
    pub generation: Option<i64>,
    /// Whether the reboot that was asked for last has come about, where one was asked for.
    pub reboot: Option<(bool, String)>,
}

/// The agent's own fields of the status.
pub(super) fn status(parts: &Parts<'_>) -> Value {
    let mut steps = parts.records.steps.clone();
    for (name, reason) in parts.waits {
        let Some(item) = parts.items.iter().find(|item| item.name == *name) else { continue };
        let step = steps.entry(name.clone()).or_default();
        let hash = item.hash();
        if step.hash != hash {
            *step = StateItemStatus { hash, ..StateItemStatus::default() };
        }
        step.message = bounded(reason, MAX_MESSAGE);
    }
    let addresses: Vec<Value> =
        parts.addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address})).collect();
    let mut status = json!({
        "stateItemStatuses": fitting(steps),
        "addresses": addresses,
        "hostInfo": parts.host,
        "agentVersion": env!("CARGO_PKG_VERSION"),
    });
    if let Some(generation) = parts.generation {
        status["observedGeneration"] = generation.into();
    }
    if let Some(upgrade) = &parts.records.upgrade {
        status["lcmAgentUpgradeStatus"] = json!(upgrade.status);
    }
    if let Some((is_completed, error)) = &parts.reboot {
        status["reboot"] = json!({"completed": is_completed, "errorMessage": error});
    }
    status
}

/// Statuses that fit together: where they are too long, those that went well say less, and then all.
fn fitting(mut steps: BTreeMap<String, StateItemStatus>) -> Value {
    let size = |steps: &BTreeMap<String, StateItemStatus>| json!(steps).to_string().len();
    for all in [false, true] {
        if size(&steps) <= MAX_STATUSES {
            break;
        }
        for step in steps.values_mut().filter(|step| all || step.exit_code == Some(0)) {
            step.message = bounded(&step.message, SHORT_MESSAGE);
            if step.result.as_ref().is_some_and(|result| result.to_string().len() > SHORT_MESSAGE) {
                step.result = None;
            }
        }
    }
    json!(steps)
}

/// What must be merged into a status so that it has these fields; none where it has them. Fields that are not named stay.
pub(super) fn patch(seen: &Value, wanted: &Value) -> Map<String, Value> {
    let empty = Map::new();
    let (seen, wanted) = (seen.as_object().unwrap_or(&empty), wanted.as_object().unwrap_or(&empty));
    let mut patch = Map::new();
    for (field, wanted) in wanted {
        let found = seen.get(field).unwrap_or(&Value::Null);
        // The appliance writes in it, too.
        let is_shared = field == "reboot";
        if let Some(difference) = difference(found, wanted, !is_shared) {
            patch.insert(field.clone(), difference);
        }
    }
    patch
}

fn difference(found: &Value, wanted: &Value, removes: bool) -> Option<Value> {
    if found == wanted {
        return None;
    }
    let (Value::Object(found), Value::Object(wanted)) = (found, wanted) else { return Some(wanted.clone()) };
    let mut patch = Map::new();
    for (field, wanted) in wanted {
        if let Some(other) = difference(found.get(field).unwrap_or(&Value::Null), wanted, removes) {
            patch.insert(field.clone(), other);
        }
    }
    if removes {
        patch.extend(
            found.keys().filter(|field| !wanted.contains_key(*field)).map(|field| (field.clone(), Value::Null)),
        );
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// A value without nulls: a merge patch would take each for a field to remove.
pub(super) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(list) => list.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// The last lines of a text that fit, on one line, without what would rule a terminal.
pub(super) fn bounded(text: &str, most: usize) -> String {
    let lines: Vec<String> =
        text.lines().map(|line| line.trim_end()).filter(|line| !line.is_empty()).map(without_controls).collect();
    let joined = lines.join(" | ");
    if joined.len() <= most {
        return joined;
    }
    let mut from = joined.len() - (most - '…'.len_utf8());
    while !joined.is_char_boundary(from) {
        from += 1;
    }
    format!("…{}", &joined[from..])
}

fn without_controls(line: &str) -> String {
    line.chars().map(|c| if log::is_safe(c) { c } else { ' ' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_has_what_is_other_and_takes_away_only_what_is_the_agents() {
        let seen = json!({"state": "Deploy", "agentVersion": "1", "reboot": {"requestedAt": "t", "completed": false},
            "stateItemStatuses": {"a": {"hash": "x", "exitCode": 0}, "gone": {"hash": "y"}}});
        let wanted = json!({"agentVersion": "2", "reboot": {"completed": true},
            "stateItemStatuses": {"a": {"hash": "x"}, "b": {"hash": "z"}}});
        let patch = patch(&seen, &wanted);
        let expected = json!({"agentVersion": "2", "reboot": {"completed": true},
            "stateItemStatuses": {"a": {"exitCode": null}, "b": {"hash": "z"}, "gone": null}});
        assert_eq!(Value::Object(patch), expected);
        assert!(super::patch(&wanted, &wanted).is_empty());
        assert!(!super::patch(&Value::Null, &wanted).is_empty());
    }

    #[test]
    fn a_message_is_the_last_lines_without_controls_and_bounded() {
        assert_eq!(bounded("one\r\n\n two\x1b[31m\x07\n", 100), "one |  two [31m ");
        let long = "ä".repeat(5000);
        let short = bounded(&long, MAX_MESSAGE);
        assert!(short.len() <= MAX_MESSAGE && short.starts_with('…') && short.ends_with('ä'));
        assert!(!bounded("a\u{202e}b\u{85}", 99).contains(|c| !log::is_safe(c)));
    }

    #[test]
    fn statuses_fit_together() {
        let step = |exit_code| StateItemStatus {
            hash: "h".repeat(64),
            exit_code: Some(exit_code),
            message: "m".repeat(MAX_MESSAGE),
            result: Some("r".repeat(MAX_RESULT - 10).into()),
            ..StateItemStatus::default()
        };
        let steps: BTreeMap<_, _> =
            (0..400).map(|number| (format!("s{number}"), step(i32::from(number == 7)))).collect();
        let value = fitting(steps);
        assert!(value.to_string().len() <= MAX_STATUSES);
        assert_eq!(value["s7"]["message"].as_str().unwrap().len(), MAX_MESSAGE, "the one that failed says all");
        assert_eq!(value.as_object().unwrap().len(), 400);
    }
}
