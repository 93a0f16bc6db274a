//! Rules of roles: whether one allows a request, and whether some cover others. Pure.
//!
//! The meaning is that of `rbac.authorization.k8s.io/v1`: `*` for every verb, group, resource or path, `*/scale` for a
//! subresource of every resource, a path ending in `*` for everything below it.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

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
pub struct Rule {
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

const ALL: &str = "*";

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == wanted)
}

fn has_or_all(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == wanted || one == ALL)
}

fn path_matches(rule: &str, path: &str) -> bool {
    rule == path || rule.strip_suffix(ALL).is_some_and(|prefix| path.starts_with(prefix.trim_end_matches('*')))
}

impl Rule {
    /// Bytes of text in it.
    pub fn text_len(&self) -> usize {
        let lists = [&self.groups, &self.paths, &self.names, &self.resources, &self.verbs];
        lists.into_iter().flatten().map(String::len).sum()
    }

    /// Whether this rule allows the request.
    pub fn allows(&self, wanted: &Attributes<'_>) -> bool {
        if !has_or_all(&self.verbs, wanted.verb) {
            return false;
        }
        if !wanted.is_resource() {
            return self.paths.iter().any(|path| path_matches(path, wanted.path));
        }
        has_or_all(&self.groups, wanted.group)
            && self.resources.iter().any(|resource| resource_matches(resource, wanted))
            && (self.names.is_empty() || has(&self.names, wanted.name))
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

    /// Whether everything that a single permission allows is allowed by this rule.
    fn covers(&self, single: &Self) -> bool {
        let each = |mine: &[String], theirs: &[String]| has(mine, ALL) || theirs.iter().all(|one| has(mine, one));
        let resource = |one: &String| {
            has_or_all(&self.resources, one)
                || one.split_once('/').is_some_and(|(_, sub)| has(&self.resources, &format!("*/{sub}")))
        };
        let names = self.names.is_empty()
            || (!single.names.is_empty() && single.names.iter().all(|name| has(&self.names, name)));
        each(&self.verbs, &single.verbs)
            && each(&self.groups, &single.groups)
            && single.resources.iter().all(resource)
            && single.paths.iter().all(|path| self.paths.iter().any(|mine| path_matches(mine, path)))
            && names
    }
}

fn resource_matches(rule: &str, wanted: &Attributes<'_>) -> bool {
    if rule == ALL {
        return true;
    }
    match (rule.split_once('/'), wanted.subresource) {
        (None, "") => rule == wanted.resource,
        (Some((resource, subresource)), wanted_sub) if !wanted_sub.is_empty() => {
            subresource == wanted_sub && (resource == wanted.resource || resource == ALL)
        }
        _ => false,
    }
}

/// Most single permissions that rules are split into; what has more is not compared.
const SINGLES_MAX: usize = 100_000;
/// Most bytes of text in them: each has its own copy of what it says.
const SINGLES_BYTES: usize = 32 << 20;

/// What of `asked` is not allowed by `owned`, each in words, sorted; `None` when there is too much to compare.
pub fn missing(owned: &[impl Borrow<Rule>], asked: &[Rule]) -> Option<Vec<String>> {
    let count = |rule: &Rule| {
        let resources = rule.groups.len() * rule.resources.len() * rule.names.len().max(1);
        rule.verbs.len() * (resources + rule.paths.len())
    };
    let longest = |rule: &Rule| -> usize {
        let lists = [&rule.groups, &rule.resources, &rule.names, &rule.verbs, &rule.paths];
        lists.into_iter().filter_map(|list| list.iter().map(String::len).max()).sum()
    };
    if asked.iter().map(count).sum::<usize>() * owned.len().max(1) > SINGLES_MAX * 100
        || asked.iter().map(count).sum::<usize>() > SINGLES_MAX
        || asked.iter().map(|rule| count(rule) * longest(rule)).sum::<usize>() > SINGLES_BYTES
    {
        return None;
    }
    let mut singles = Vec::new();
    asked.iter().for_each(|rule| rule.split(&mut singles));
    singles.retain(|single| !owned.iter().any(|rule| rule.borrow().covers(single)));
    Some(compact(singles).iter().map(describe).collect::<BTreeSet<_>>().into_iter().collect())
}

/// Rules that are not in `rules` yet, as the keeper of the default roles adds them.
pub fn additions(rules: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let mut singles = Vec::new();
    wanted.iter().for_each(|rule| rule.split(&mut singles));
    singles.retain(|single| !rules.iter().any(|rule| rule.covers(single)));
    compact(singles)
}

/// Joins the verbs of single permissions for the same thing.
fn compact(singles: Vec<Rule>) -> Vec<Rule> {
    // What the rules are about, and all verbs for it.
    let mut joined: BTreeMap<Rule, Vec<String>> = BTreeMap::new();
    let mut rest = Vec::new();
    for mut single in singles {
        if single.paths.is_empty() {
            let mut asked = std::mem::take(&mut single.verbs);
            let verbs = joined.entry(single).or_default();
            asked.retain(|verb| !verbs.contains(verb));
            verbs.append(&mut asked);
        } else if !rest.contains(&single) {
            rest.push(single);
        }
    }
    rest.extend(joined.into_iter().map(|(rule, verbs)| Rule { verbs, ..rule }));
    rest
}

/// One rule as upstream writes it in refusals.
fn describe(rule: &Rule) -> String {
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

    pub(super) fn rule(value: serde_json::Value) -> Rule {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_rule_allows_what_it_says() {
        let reader =
            rule(json!({"verbs": ["get", "list"], "apiGroups": ["metal3.io"], "resources": ["baremetalhosts"]}));
        let named =
            rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]}));
        let sub = rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*/status", "hosts/scale"]}));
        let all = rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        let paths = rule(json!({"verbs": ["get"], "nonResourceURLs": ["/apis/*", "/version"]}));
        let on = |verb, group, resource, subresource, name| Attributes {
            verb,
            group,
            resource,
            subresource,
            name,
            ..Attributes::default()
        };
        for (rule, wanted, allowed) in [
            (&reader, on("get", "metal3.io", "baremetalhosts", "", "a"), true),
            (&reader, on("get", "metal3.io", "baremetalhosts", "status", "a"), false),
            (&reader, on("watch", "metal3.io", "baremetalhosts", "", ""), false),
            (&reader, on("get", "", "baremetalhosts", "", ""), false),
            (&named, on("get", "", "secrets", "", "a"), true),
            (&named, on("get", "", "secrets", "", "b"), false),
            (&named, on("get", "", "secrets", "", ""), false),
            (&sub, on("patch", "g", "x", "status", "a"), true),
            (&sub, on("patch", "g", "hosts", "scale", "a"), true),
            (&sub, on("patch", "g", "x", "scale", "a"), false),
            (&sub, on("patch", "g", "x", "", "a"), false),
            (&all, on("frobnicate", "g", "x", "y", "z"), true),
            (&paths, on("get", "", "apis", "", ""), false),
        ] {
            assert_eq!(rule.allows(&wanted), allowed, "{rule:?} {wanted:?}");
        }
        for (rule, verb, path, allowed) in [
            (&paths, "get", "/apis/x/v1", true),
            (&paths, "get", "/apis", false),
            (&paths, "get", "/version", true),
            (&paths, "get", "/versions", false),
            (&paths, "post", "/version", false),
            (&all, "get", "/version", false),
        ] {
            let wanted = Attributes { verb, path, ..Attributes::default() };
            assert_eq!(rule.allows(&wanted), allowed, "{rule:?} {path}");
        }
    }

    #[test]
    fn what_is_missing_is_named_as_upstream_names_it() {
        let owned = [
            rule(json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps", "*/status"]})),
            rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"]})),
            rule(json!({"verbs": ["get"], "nonResourceURLs": ["/apis/*"]})),
        ];
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
