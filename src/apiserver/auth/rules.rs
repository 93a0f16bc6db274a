//! Rules of roles, and whether some cover others. Pure.
//!
//! The meaning is that of `rbac.authorization.k8s.io/v1`: `*` for every verb, group, resource or path, `*/scale` for a
//! subresource of every resource, a path ending in `*` for everything below it.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::compiled::CompiledRule;
use crate::apiserver::shares::blocking;

/// What a request wants, for the decision whether it may.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes<'r> {
    /// Kubernetes verb (`get`, `list`, `impersonate`, …), or the HTTP method in lower case for a path.
    pub verb: &'r str,
    /// Group of the resource.
    pub group: &'r str,
    /// Version of the resource; decides nothing.
    pub version: &'r str,
    /// The resource; empty when a path is asked for.
    pub resource: &'r str,
    /// The subresource, or empty.
    pub subresource: &'r str,
    /// The namespace, or empty for all of them and for resources that have none.
    pub namespace: &'r str,
    /// The object's name, or empty.
    pub name: &'r str,
    /// The path, when it names no resource.
    pub path: &'r str,
}

impl Attributes<'_> {
    /// Whether a resource is asked for, not a path.
    pub fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }
}

/// `rbac.authorization.k8s.io/v1` PolicyRule.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    /// API groups; `*` for all.
    #[serde(rename = "apiGroups", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Paths that are no resources; `*` at the end for everything below.
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Names of objects; empty for all.
    #[serde(rename = "resourceNames", skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// `resource`, `resource/subresource`, `*/subresource` or `*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// Verbs; `*` for all.
    pub verbs: Vec<String>,
}

/// Everything.
pub const ALL: &str = "*";

impl PolicyRule {
    /// Bytes of text in it.
    pub fn text_len(&self) -> usize {
        let lists = [&self.groups, &self.paths, &self.names, &self.resources, &self.verbs];
        lists.into_iter().flatten().map(String::len).sum()
    }

    /// How many entries its lists have.
    pub fn values(&self) -> usize {
        let lists = [&self.groups, &self.paths, &self.names, &self.resources, &self.verbs];
        lists.into_iter().map(Vec::len).sum()
    }

    /// How many single permissions it has.
    fn singles(&self) -> usize {
        let resources = self.groups.len().saturating_mul(self.resources.len()).saturating_mul(self.names.len().max(1));
        self.verbs.len().saturating_mul(resources.saturating_add(self.paths.len()))
    }

    /// Single permissions: each has one verb and one path, or one verb, group, resource and at most one name.
    fn split(&self, into: &mut Vec<Self>) {
        for verb in &self.verbs {
            let verbs = || vec![verb.clone()];
            for path in &self.paths {
                into.push(Self { verbs: verbs(), paths: vec![path.clone()], ..Self::default() });
            }
            for group in &self.groups {
                for resource in &self.resources {
                    let one = Self {
                        verbs: verbs(),
                        groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        ..Self::default()
                    };
                    match self.names.as_slice() {
                        [] => into.push(one),
                        names => {
                            into.extend(names.iter().map(|name| Self { names: vec![name.clone()], ..one.clone() }))
                        }
                    }
                }
            }
        }
    }
}

/// Most single permissions that rules are split into; what has more is not compared.
const SINGLES_MAX: usize = 100_000;
/// Most bytes of text in them: each has its own copy of what it says.
const SINGLES_BYTES: usize = 32 << 20;

/// Most comparisons of a single permission with a rule.
const COMPARISONS_MAX: usize = 2_000_000;
/// From so many on they are made off the worker (`blocking`).
const COMPARISONS_LONG: usize = 20_000;

/// What of `asked` is not allowed by `owned`, each in words, sorted; `None` when there is too much to compare.
pub fn missing(owned: &[&CompiledRule], asked: &[impl Borrow<PolicyRule>]) -> Option<Vec<String>> {
    let longest = |rule: &PolicyRule| -> usize {
        let lists = [&rule.groups, &rule.resources, &rule.names, &rule.verbs, &rule.paths];
        lists.into_iter().filter_map(|list| list.iter().map(String::len).max()).sum()
    };
    let sum = |each: &dyn Fn(&PolicyRule) -> usize| {
        asked.iter().map(|rule| each(rule.borrow())).fold(0, usize::saturating_add)
    };
    let singles = sum(&PolicyRule::singles);
    let comparisons = singles.saturating_mul(owned.len().max(1));
    if singles > SINGLES_MAX
        || comparisons > COMPARISONS_MAX
        || sum(&|rule| rule.singles().saturating_mul(longest(rule))) > SINGLES_BYTES
    {
        return None;
    }
    Some(blocking::in_place_if(comparisons >= COMPARISONS_LONG, || {
        let lacking = lacking(asked, |single| owned.iter().any(|rule| rule.covers(single)));
        compact(lacking).iter().map(describe).collect::<BTreeSet<_>>().into_iter().collect()
    }))
}

/// Rules that are not in `rules` yet, as the keeper of the default roles adds them.
pub fn additions(rules: Vec<PolicyRule>, wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    let rules: Vec<CompiledRule> = rules.into_iter().map(CompiledRule::from).collect();
    compact(lacking(wanted, |single| rules.iter().any(|rule| rule.covers(single))))
}

fn lacking(asked: &[impl Borrow<PolicyRule>], is_covered: impl Fn(&PolicyRule) -> bool) -> Vec<PolicyRule> {
    let mut singles = Vec::new();
    asked.iter().for_each(|rule| rule.borrow().split(&mut singles));
    singles.retain(|single| !is_covered(single));
    singles
}

/// Joins the verbs of single permissions for the same thing.
fn compact(singles: Vec<PolicyRule>) -> Vec<PolicyRule> {
    // What the rules are about, and all verbs for it.
    let mut joined: BTreeMap<PolicyRule, Vec<String>> = BTreeMap::new();
    let (mut rest, mut known) = (Vec::new(), BTreeSet::new());
    for mut single in singles {
        if single.paths.is_empty() {
            let mut asked = std::mem::take(&mut single.verbs);
            let verbs = joined.entry(single).or_default();
            asked.retain(|verb| !verbs.contains(verb));
            verbs.append(&mut asked);
        } else if known.insert(single.clone()) {
            rest.push(single);
        }
    }
    rest.extend(joined.into_iter().map(|(rule, verbs)| PolicyRule { verbs, ..rule }));
    rest
}

/// One rule as upstream writes it in refusals.
fn describe(rule: &PolicyRule) -> String {
    let parts = [
        ("APIGroups", &rule.groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.paths),
        ("ResourceNames", &rule.names),
        ("Verbs", &rule.verbs),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| format!("{name}:{}", quoted(list)))
        .collect();
    format!("{{{}}}", parts.join(", "))
}

/// A list of texts as upstream's messages show one: `["a" "b"]`.
pub fn quoted(list: &[String]) -> String {
    format!("[{}]", list.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(value: serde_json::Value) -> PolicyRule {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_is_missing_is_named_as_upstream_names_it() {
        let owned = [
            rule(json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps", "*/status"]})),
            rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"]})),
            rule(json!({"verbs": ["get"], "nonResourceURLs": ["/apis/*"]})),
        ]
        .map(CompiledRule::from);
        let owned: Vec<&CompiledRule> = owned.iter().collect();
        for (asked, wanted) in [
            (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps", "hosts/status"]}), vec![]),
            (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["b"]}), vec![]),
            (json!({"verbs": ["get"], "nonResourceURLs": ["/apis/x", "/apis/y/*"]}), vec![]),
            (
                json!({"verbs": ["get", "delete", "watch"], "apiGroups": [""], "resources": ["configmaps"]}),
                vec![r#"{APIGroups:[""], Resources:["configmaps"], Verbs:["delete" "watch"]}"#],
            ),
            (
                json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}),
                vec![r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#],
            ),
            (
                json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["c"]}),
                vec![r#"{APIGroups:[""], Resources:["secrets"], ResourceNames:["c"], Verbs:["get"]}"#],
            ),
            (
                json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
                vec![r#"{APIGroups:["*"], Resources:["*"], Verbs:["*"]}"#],
            ),
            (json!({"verbs": ["get"], "nonResourceURLs": ["*"]}), vec![r#"{NonResourceURLs:["*"], Verbs:["get"]}"#]),
        ] {
            assert_eq!(missing(&owned, &[rule(asked.clone())]).unwrap(), wanted, "{asked}");
        }
        let huge: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let huge = rule(json!({"verbs": huge, "apiGroups": [""], "resources": huge}));
        assert!(missing(&owned, &[huge]).is_none());
        let some: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let long = rule(
            json!({"verbs": ["get"], "apiGroups": some, "resources": some, "resourceNames": ["a".repeat(100_000)]}),
        );
        assert!(missing(&owned, &[long]).is_none(), "a gigabyte of text");
    }
}
