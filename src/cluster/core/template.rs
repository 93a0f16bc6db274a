//! What a template says of a machine: which part of it asks for another machine, and which is changed in place. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::core::{Selector, SelectorExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::cluster::v1beta2::{Machine, MachineSpec, MachineTemplateSpec};
use crate::api::cluster::{SELECTOR_REQUIREMENTS, SELECTOR_VALUES};

/// Letters of a hash, of which names are made too.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// What of a template asks for another machine. The rest is changed in place: labels and annotations, times, gates and taints.
pub(super) fn essence(template: &MachineTemplateSpec) -> MachineSpec {
    let mut spec = template.spec.clone();
    if spec.bootstrap.config_ref.is_some() {
        spec.bootstrap.data_secret_name = None;
    }
    spec.deletion = None;
    spec.min_ready_seconds = None;
    spec.readiness_gates.clear();
    spec.taints.clear();
    spec
}

/// Whether machines of one template need not be replaced for the other.
pub(super) fn is_same(one: &MachineTemplateSpec, other: &MachineTemplateSpec) -> bool {
    essence(one) == essence(other)
}

/// A short name for what a template says, and for when all machines were to be replaced last.
pub(super) fn hash(template: &MachineTemplateSpec, after: Option<i64>) -> String {
    let text = serde_json::to_string(&essence(template)).unwrap_or_default();
    let digest = Sha256::digest(format!("{text}\0{after:?}"));
    let letters = digest.iter().take(10).filter_map(|byte| LETTERS.get(usize::from(*byte) % LETTERS.len()));
    letters.map(|letter| char::from(*letter)).collect()
}

/// Which objects a selector is for; `None` when it selects nothing, or everything, or is none, or has more requirements than may
/// be written.
pub(super) fn selector(selector: &LabelSelector) -> Option<Selector> {
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    let labels = selector.match_labels.as_ref().map_or(0, BTreeMap::len);
    let values = expressions.iter().map(|one| one.values.as_ref().map_or(0, Vec::len)).max().unwrap_or(0);
    if labels.max(expressions.len()) > SELECTOR_REQUIREMENTS || values > SELECTOR_VALUES {
        return None;
    }
    let selector = Selector::try_from(selector.clone()).ok()?;
    (!selector.selects_all()).then_some(selector)
}

/// Whether an object's labels are those that a selector is for.
pub(super) fn selects(selector: &Selector, meta: &ObjectMeta) -> bool {
    let none = BTreeMap::new();
    selector.matches(meta.labels.as_ref().unwrap_or(&none))
}

/// What of a machine is kept as its template says, in place: to be applied, so that what the template has no more goes.
pub(super) fn in_place(template: &MachineTemplateSpec, labels: &BTreeMap<String, String>) -> Value {
    let annotations = template.metadata.as_ref().map(|meta| meta.annotations.clone()).unwrap_or_default();
    let spec = &template.spec;
    let mut kept = json!({ "metadata": { "labels": labels, "annotations": annotations }, "spec": {} });
    if let Some(deletion) = &spec.deletion {
        kept["spec"]["deletion"] = json!(deletion);
    }
    if let Some(seconds) = spec.min_ready_seconds {
        kept["spec"]["minReadySeconds"] = json!(seconds);
    }
    if !spec.readiness_gates.is_empty() {
        kept["spec"]["readinessGates"] = json!(spec.readiness_gates);
    }
    if !spec.taints.is_empty() {
        kept["spec"]["taints"] = json!(spec.taints);
    }
    kept
}

/// Whether a machine has all of what its template says.
pub(super) fn has(machine: &Machine, kept: &Value) -> bool {
    fn holds(there: &Value, wanted: &Value) -> bool {
        match (there, wanted) {
            (Value::Object(there), Value::Object(wanted)) => {
                wanted.iter().all(|(key, value)| there.get(key).is_some_and(|there| holds(there, value)))
            }
            (there, wanted) => there == wanted,
        }
    }
    let empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
    let there = json!({ "labels": machine.metadata.labels, "annotations": machine.metadata.annotations });
    let meta = ["labels", "annotations"].iter().all(|part| {
        let wanted = &kept["metadata"][*part];
        empty(wanted) || holds(&there[*part], wanted)
    });
    meta && serde_json::to_value(&machine.spec).is_ok_and(|spec| holds(&spec, &kept["spec"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cluster::TemplateMeta;
    use crate::api::cluster::v1beta2::{ContractReference, MachineDeletion};

    fn template(version: &str) -> MachineTemplateSpec {
        let spec = MachineSpec { version: Some(version.into()), ..MachineSpec::default() };
        MachineTemplateSpec { metadata: None, spec }
    }

    #[test]
    fn some_changes_ask_for_another_machine_and_some_do_not() {
        let one = template("v1.35.0");
        let mut in_place = one.clone();
        in_place.metadata = Some(TemplateMeta { labels: [("a".into(), "b".into())].into(), ..TemplateMeta::default() });
        in_place.spec.deletion =
            Some(MachineDeletion { node_drain_timeout_seconds: Some(7), ..MachineDeletion::default() });
        in_place.spec.min_ready_seconds = Some(7);
        assert!(is_same(&one, &in_place));
        assert_eq!(hash(&one, None), hash(&in_place, None));
        let mut other = one.clone();
        other.spec.infrastructure_ref = ContractReference { name: "other".into(), ..ContractReference::default() };
        for different in [template("v1.36.0"), other] {
            assert!(!is_same(&one, &different));
            assert_ne!(hash(&one, None), hash(&different, None));
        }
        assert_ne!(hash(&one, None), hash(&one, Some(1)));
        assert_eq!(hash(&one, None).len(), 10);
    }

    #[test]
    fn what_is_kept_in_place_is_compared() {
        let mut wanted = template("v1");
        wanted.spec.min_ready_seconds = Some(7);
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let kept = in_place(&wanted, &labels);
        let mut machine = Machine::new("m", MachineSpec::default());
        assert!(!has(&machine, &kept));
        machine.metadata.labels = Some([("a".to_owned(), "b".to_owned()), ("c".to_owned(), "d".to_owned())].into());
        assert!(!has(&machine, &kept));
        machine.spec.min_ready_seconds = Some(7);
        assert!(has(&machine, &kept));
    }

    #[test]
    fn a_selector_that_selects_everything_selects_nothing() {
        assert!(selector(&LabelSelector::default()).is_none());
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let one = selector(&LabelSelector { match_labels: Some(labels.clone()), match_expressions: None }).unwrap();
        assert!(selects(&one, &ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }));
        assert!(!selects(&one, &ObjectMeta::default()));
    }

    #[test]
    fn a_selector_with_more_than_may_be_written_selects_nothing() {
        use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

        let expressions = |count: usize, values: usize| {
            let one = LabelSelectorRequirement {
                key: "a".to_owned(),
                operator: "In".to_owned(),
                values: Some((0..values).map(|value| value.to_string()).collect()),
            };
            LabelSelector { match_labels: None, match_expressions: Some(vec![one; count]) }
        };
        let labels = |count: usize| LabelSelector {
            match_labels: Some((0..count).map(|label| (format!("l{label}"), String::new())).collect()),
            match_expressions: None,
        };
        for (given, wanted) in [
            (expressions(64, 256), true),
            (expressions(65, 1), false),
            (expressions(1, 257), false),
            (labels(64), true),
            (labels(65), false),
        ] {
            assert_eq!(selector(&given).is_some(), wanted);
        }
    }
}
