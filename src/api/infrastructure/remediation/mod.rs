//! Metal3Remediation and its template, in both of their versions, and how one becomes the other.

pub mod v1beta1;
pub mod v1beta2;

use serde_json::{Value, json};

use super::convert::{NEW, OLD};
use crate::api::cluster::convert::{duration, seconds};
use crate::api::conversion::{Moves, alter, newer, older};

/// The one strategy.
pub const REBOOT: &str = "Reboot";
/// How often a machine is tried again when nothing is said.
pub const RETRY_LIMIT: i32 = 1;
/// Seconds that a machine has when nothing is said.
pub const TIMEOUT_SECONDS: i32 = 600;
/// Seconds that a machine has at least.
pub const LEAST_TIMEOUT_SECONDS: i32 = 100;

const STRATEGY: Moves = &[("spec.strategy.timeout", "spec.strategy.timeoutSeconds")];
const TEMPLATE_STRATEGY: Moves =
    &[("spec.template.spec.strategy.timeout", "spec.template.spec.strategy.timeoutSeconds")];

/// A Metal3Remediation of v1beta1 in v1beta2.
pub fn to_storage(old: &Value) -> Value {
    timeout_to_storage(newer(old, NEW, STRATEGY), "spec.strategy")
}

/// A Metal3Remediation of v1beta2 in v1beta1.
pub fn from_storage(new: &Value) -> Value {
    timeout_from_storage(older(new, OLD, STRATEGY), "spec.strategy")
}

/// A Metal3RemediationTemplate of v1beta1 in v1beta2.
pub fn template_to_storage(old: &Value) -> Value {
    timeout_to_storage(newer(old, NEW, TEMPLATE_STRATEGY), "spec.template.spec.strategy")
}

/// A Metal3RemediationTemplate of v1beta2 in v1beta1.
pub fn template_from_storage(new: &Value) -> Value {
    timeout_from_storage(older(new, OLD, TEMPLATE_STRATEGY), "spec.template.spec.strategy")
}

fn timeout_to_storage(mut object: Value, strategy: &str) -> Value {
    alter(&mut object, &format!("{strategy}.timeoutSeconds"), |text| Some(seconds(text.as_str()?)?.into()));
    object
}

fn timeout_from_storage(mut object: Value, strategy: &str) -> Value {
    alter(&mut object, &format!("{strategy}.timeout"), |seconds| Some(duration(seconds.as_u64()?).into()));
    object
}

/// The field of a strategy that says how long a machine has, and how many seconds; what cannot be read is none.
pub fn timeout_seconds(strategy: &Value) -> Option<(&'static str, i64)> {
    if let Some(number) = strategy.get("timeoutSeconds") {
        return Some(("timeoutSeconds", number.as_i64().unwrap_or_default()));
    }
    let text = strategy.get("timeout")?.as_str().unwrap_or_default();
    Some(("timeout", seconds(text).and_then(|seconds| seconds.try_into().ok()).unwrap_or_default()))
}

/// A template says all of its strategy: what is left out is filled in.
pub fn complete_template(template: &mut Value) {
    let timeout = if template["apiVersion"] == OLD {
        ("timeout", json!(duration(TIMEOUT_SECONDS.unsigned_abs().into())))
    } else {
        ("timeoutSeconds", json!(TIMEOUT_SECONDS))
    };
    let place = ["spec", "template", "spec"].iter().try_fold(template, |place, name| place.get_mut(name));
    let Some(Value::Object(spec)) = place else { return };
    let Value::Object(strategy) = spec.entry("strategy").or_insert_with(|| json!({})) else { return };
    for (field, value) in [("type", json!(REBOOT)), ("retryLimit", json!(RETRY_LIMIT)), timeout] {
        strategy.entry(field).or_insert(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remediation_in_both_versions() {
        let object = |version: &str, strategy: Value| {
            json!({"apiVersion": version, "metadata": {"name": "m"}, "spec": {"strategy": strategy},
                "status": {"phase": "Running", "retryCount": 1}})
        };
        let template = |version: &str, strategy: Value| json!({"apiVersion": version, "spec": {"template": {"spec": {"strategy": strategy}}}});
        let old = json!({"type": "Reboot", "retryLimit": 2, "timeout": "5m0s"});
        let new = json!({"type": "Reboot", "retryLimit": 2, "timeoutSeconds": 300});
        assert_eq!(to_storage(&object(OLD, old.clone())), object(NEW, new.clone()));
        assert_eq!(from_storage(&object(NEW, new.clone())), object(OLD, old.clone()));
        assert_eq!(template_to_storage(&template(OLD, old.clone())), template(NEW, new.clone()));
        assert_eq!(template_from_storage(&template(NEW, new)), template(OLD, old));
        assert_eq!(to_storage(&json!({"apiVersion": OLD, "spec": {}})), json!({"apiVersion": NEW, "spec": {}}));
    }

    #[test]
    fn a_template_is_completed_in_its_own_version() {
        for (version, field, value) in [(OLD, "timeout", json!("10m0s")), (NEW, "timeoutSeconds", json!(600))] {
            let mut template = json!({"apiVersion": version, "spec": {"template": {"spec": {}}}});
            complete_template(&mut template);
            let strategy = &template["spec"]["template"]["spec"]["strategy"];
            assert_eq!(strategy, &json!({"type": "Reboot", "retryLimit": 1, field: value}));
            let mut given =
                json!({"apiVersion": version, "spec": {"template": {"spec": {"strategy": {"retryLimit": 3}}}}});
            complete_template(&mut given);
            assert_eq!(given["spec"]["template"]["spec"]["strategy"]["retryLimit"], 3);
        }
        for mut odd in [json!({}), json!([]), json!({"spec": {"template": {"spec": {"strategy": 1}}}})] {
            let before = odd.clone();
            complete_template(&mut odd);
            assert_eq!(odd, before);
        }
    }
}
