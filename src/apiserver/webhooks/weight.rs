//! What a configuration takes of the memory for as long as it is there: its webhooks, as they are compiled. Reckoned from its
//! text, so that it is known before anything is made. Pure.

use std::iter::Sum;
use std::ops::Add;

use serde_json::Value;

use super::super::crd::weight_of_value;
use crate::store::json_len;

/// What all configurations may have together: 1,000 webhooks, and 64 MiB of the memory. A cluster with many operators has a
/// hundred, which are reckoned at 2 MiB.
pub(super) const MOST: Size = Size { hooks: 1000, bytes: 64 << 20 };

/// A configuration, and a webhook, however small: with the way to it, and connections that are kept.
const CONFIGURATION: usize = 4 << 10;
const HOOK: usize = 8 << 10;
/// Copies of what a webhook has: as it is read, and in the index.
const COPIES: usize = 3;
/// A match condition, and a byte of its text, as of a rule in a schema.
const CONDITION: usize = 4 << 10;
const CONDITION_TEXT: usize = 100;

/// How much there is of configurations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::apiserver) struct Size {
    /// Webhooks; a configuration without any counts as one.
    pub hooks: usize,
    /// Bytes of the memory.
    pub bytes: usize,
}

impl Size {
    /// Whether it is no more than another in any way.
    pub fn is_within(self, other: Self) -> bool {
        self.hooks <= other.hooks && self.bytes <= other.bytes
    }
}

impl Add for Size {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { hooks: self.hooks.saturating_add(other.hooks), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl Sum for Size {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), Self::add)
    }
}

/// What a configuration takes.
pub(super) fn of(configuration: &Value) -> Size {
    let hooks = configuration["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
    Size { hooks: hooks.len().max(1), bytes: CONFIGURATION + hooks.iter().map(hook).sum::<usize>() }
}

fn hook(hook: &Value) -> usize {
    let conditions = hook["matchConditions"].as_array().into_iter().flatten();
    let conditions: usize = conditions.map(|one| CONDITION + CONDITION_TEXT * json_len(&one["expression"])).sum();
    HOOK + COPIES * weight_of_value(hook) + conditions
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_part_of_a_configuration_weighs() {
        let hook = |more: Value| {
            let mut hook = json!({"name": "a.example.org", "clientConfig": {"url": "https://a.example.org/"},
                "sideEffects": "None", "admissionReviewVersions": ["v1"]});
            hook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            hook
        };
        let of_hooks = |hooks: &[Value]| of(&json!({ "webhooks": hooks }));
        assert_eq!(of(&json!({})), Size { hooks: 1, bytes: CONFIGURATION });
        let one = of_hooks(&[hook(json!({}))]);
        assert!(one.hooks == 1 && (12 << 10..24 << 10).contains(&one.bytes), "{one:?}");
        let two = of_hooks(&[hook(json!({})), hook(json!({}))]);
        assert_eq!(two, Size { hooks: 2, bytes: 2 * one.bytes - CONFIGURATION });
        for (more, least) in [
            (json!({"rules": [{"resources": vec!["a"; 1000]}]}), 3 * 1000 * 48),
            (json!({"clientConfig": {"caBundle": "x".repeat(10_000)}}), 3 * 9_900),
            (json!({"matchConditions": vec![json!({"name": "a", "expression": "true"}); 64]}), 64 * CONDITION),
            (json!({"matchConditions": [{"name": "a", "expression": "x".repeat(10_000)}]}), 1_000_000),
        ] {
            let found = of_hooks(&[hook(more.clone())]).bytes - one.bytes;
            assert!((least..4 * least).contains(&found), "{found} is not {least} to {}: {more:.100}", 4 * least);
        }
    }

    #[test]
    fn a_cluster_with_many_operators_fits() {
        let rules = json!([{"operations": ["CREATE", "UPDATE"], "apiGroups": ["example.org"], "apiVersions": ["v1", "v1beta1"],
            "resources": ["widgets", "widgets/status"], "scope": "*"}]);
        let hook = json!({"name": "default.widgets.example.org", "rules": rules, "clientConfig": {
            "caBundle": "x".repeat(2000), "service": {"name": "webhook-service", "namespace": "a-system", "path": "/mutate"}}});
        let one = of(&json!({ "webhooks": vec![hook; 10] }));
        let all: Size = (0..20).map(|_| one).sum();
        assert!((all + all).is_within(MOST) && all.hooks == 200, "{all:?}");
    }
}
