//! Rules made ready for decisions: what a rule lists is looked up, however long the list is. Pure.

use std::borrow::Borrow;
use std::ops::Deref;

use super::rules::{ALL, Attributes, PolicyRule};

/// Entries from which on a list is looked up in its order.
const LONG: usize = 8;

/// A rule with the order of its long lists.
#[derive(Clone, Debug)]
pub struct CompiledRule {
    rule: PolicyRule,
    verbs: SortedIndex,
    groups: SortedIndex,
    resources: SortedIndex,
    names: SortedIndex,
    paths: SortedIndex,
    /// What paths begin with that end in `*`, in order; none begins with another one.
    heads: Box<[Box<str>]>,
}

impl Deref for CompiledRule {
    type Target = PolicyRule;

    fn deref(&self) -> &PolicyRule {
        &self.rule
    }
}

impl Borrow<PolicyRule> for CompiledRule {
    fn borrow(&self) -> &PolicyRule {
        &self.rule
    }
}

impl From<PolicyRule> for CompiledRule {
    fn from(rule: PolicyRule) -> Self {
        let mut all: Vec<&str> = rule.paths.iter().filter_map(|path| path.strip_suffix(ALL)).collect();
        all.iter_mut().for_each(|head| *head = head.trim_end_matches(ALL));
        all.sort_unstable();
        let mut heads: Vec<Box<str>> = Vec::new();
        for head in all {
            if heads.last().is_none_or(|last| !head.starts_with(&**last)) {
                heads.push(head.into());
            }
        }
        Self {
            verbs: SortedIndex::of(&rule.verbs),
            groups: SortedIndex::of(&rule.groups),
            resources: SortedIndex::of(&rule.resources),
            names: SortedIndex::of(&rule.names),
            paths: SortedIndex::of(&rule.paths),
            heads: heads.into(),
            rule,
        }
    }
}

impl CompiledRule {
    /// Whether this rule allows the request.
    pub fn allows(&self, wanted: &Attributes<'_>) -> bool {
        let rule = &self.rule;
        if !self.verbs.has_or_all(&rule.verbs, wanted.verb) {
            return false;
        }
        if !wanted.is_resource() {
            return self.has_path(wanted.path);
        }
        self.groups.has_or_all(&rule.groups, wanted.group)
            && (rule.names.is_empty() || self.names.has(&rule.names, wanted.name))
            && self.has_resource(wanted)
    }

    /// Whether everything that a single permission allows is allowed by this rule.
    pub fn covers(&self, single: &PolicyRule) -> bool {
        let rule = &self.rule;
        let each = |order: &SortedIndex, mine: &[String], theirs: &[String]| {
            order.has(mine, ALL) || theirs.iter().all(|one| order.has(mine, one))
        };
        let resource = |one: &String| {
            self.resources.has_or_all(&rule.resources, one)
                || one.split_once('/').is_some_and(|(_, sub)| self.resources.has(&rule.resources, &format!("*/{sub}")))
        };
        each(&self.verbs, &rule.verbs, &single.verbs)
            && each(&self.groups, &rule.groups, &single.groups)
            && single.resources.iter().all(resource)
            && single.paths.iter().all(|path| self.has_path(path))
            && (rule.names.is_empty()
                || (!single.names.is_empty() && single.names.iter().all(|name| self.names.has(&rule.names, name))))
    }

    fn has_resource(&self, wanted: &Attributes<'_>) -> bool {
        let list = &self.rule.resources;
        if !self.resources.is_long() {
            return list.iter().any(|resource| resource_matches(resource, wanted));
        }
        let has = |one: &str| self.resources.has(list, one);
        // A rule's resource ends at its first slash.
        let is_one = !wanted.resource.contains('/');
        has(ALL)
            || match wanted.subresource {
                "" => is_one && has(wanted.resource),
                sub => has(&format!("{ALL}/{sub}")) || (is_one && has(&format!("{}/{sub}", wanted.resource))),
            }
    }

    fn has_path(&self, path: &str) -> bool {
        // What the path begins with is the last that is not behind it: all between the two begin with that, too.
        let behind = self.heads.partition_point(|head| **head <= *path);
        let head = behind.checked_sub(1).and_then(|at| self.heads.get(at));
        head.is_some_and(|head| path.starts_with(&**head)) || self.paths.has(&self.rule.paths, path)
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

/// The order of a list: places in it. None for a short one, which is looked through.
#[derive(Clone, Debug)]
struct SortedIndex(Option<Box<[usize]>>);

impl SortedIndex {
    fn of(list: &[String]) -> Self {
        if list.len() < LONG {
            return Self(None);
        }
        let mut order: Box<[usize]> = (0..list.len()).collect();
        order.sort_unstable_by_key(|at| &list[*at]);
        Self(Some(order))
    }

    fn is_long(&self) -> bool {
        self.0.is_some()
    }

    fn has(&self, list: &[String], wanted: &str) -> bool {
        match &self.0 {
            None => list.iter().any(|one| one == wanted),
            Some(order) => order.binary_search_by(|at| list[*at].as_str().cmp(wanted)).is_ok(),
        }
    }

    fn has_or_all(&self, list: &[String], wanted: &str) -> bool {
        match &self.0 {
            None => list.iter().any(|one| one == wanted || one == ALL),
            Some(_) => self.has(list, ALL) || self.has(list, wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The rule, and the same with lists so long that they are looked up.
    fn both(value: serde_json::Value) -> [CompiledRule; 2] {
        let rule: PolicyRule = serde_json::from_value(value).unwrap();
        let mut long = rule.clone();
        for list in [&mut long.verbs, &mut long.groups, &mut long.resources, &mut long.names, &mut long.paths] {
            for number in 0..list.len() * 2 * LONG {
                list.insert(number / 2, format!("zz{}-{number}", number % 7));
            }
        }
        [rule.into(), long.into()]
    }

    #[test]
    fn a_rule_allows_what_it_says() {
        let reader =
            both(json!({"verbs": ["get", "list"], "apiGroups": ["metal3.io"], "resources": ["baremetalhosts"]}));
        let named =
            both(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]}));
        let sub = both(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*/status", "hosts/scale"]}));
        let all = both(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        let deep = both(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["a/b/c"]}));
        let paths = both(json!({"verbs": ["get"],
            "nonResourceURLs": ["/apis/*", "/version", "/api*", "/b/c/*", "/b**", "/b/"]}));
        let root = both(json!({"verbs": ["get"], "nonResourceURLs": ["/apis/*", "*"]}));
        let on = |verb, group, resource, subresource, name| Attributes {
            verb,
            group,
            resource,
            subresource,
            name,
            ..Attributes::default()
        };
        for (rules, wanted, allowed) in [
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
            (&sub, on("patch", "g", "hosts/scale", "", "a"), false),
            (&deep, on("patch", "g", "a", "b/c", "a"), true),
            (&deep, on("patch", "g", "a/b", "c", "a"), false),
            (&all, on("frobnicate", "g", "x", "y", "z"), true),
            (&paths, on("get", "", "apis", "", ""), false),
        ] {
            for rule in rules {
                assert_eq!(rule.allows(&wanted), allowed, "{rule:?} {wanted:?}");
            }
        }
        for (rules, verb, path, allowed) in [
            (&paths, "get", "/apis/x/v1", true),
            (&paths, "get", "/apis", true),
            (&paths, "get", "/ap", false),
            (&paths, "get", "/version", true),
            (&paths, "get", "/versions", false),
            (&paths, "get", "/b", true),
            (&paths, "get", "/b/c/d", true),
            (&paths, "get", "/a", false),
            (&paths, "get", "/c", false),
            (&paths, "post", "/version", false),
            (&root, "get", "/", true),
            (&root, "get", "", true),
            (&all, "get", "/version", false),
        ] {
            for rule in rules {
                let wanted = Attributes { verb, path, ..Attributes::default() };
                assert_eq!(rule.allows(&wanted), allowed, "{rule:?} {path}");
            }
        }
    }

    #[test]
    fn long_lists_cover_as_short_ones_do() {
        let owned = both(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["maps", "*/status"]}));
        let named = both(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "resourceNames": ["a"]}));
        for (rules, asked, covered) in [
            (&owned, json!({"verbs": ["get"], "apiGroups": [""], "resources": ["maps"]}), true),
            (&owned, json!({"verbs": ["get"], "apiGroups": [""], "resources": ["hosts/status"]}), true),
            (&owned, json!({"verbs": ["get"], "apiGroups": [""], "resources": ["maps/scale"]}), false),
            (&owned, json!({"verbs": ["*"], "apiGroups": [""], "resources": ["maps"]}), false),
            (&named, json!({"verbs": ["x"], "apiGroups": ["y"], "resources": ["z"], "resourceNames": ["a"]}), true),
            (&named, json!({"verbs": ["x"], "apiGroups": ["y"], "resources": ["z"], "resourceNames": ["b"]}), false),
            (&named, json!({"verbs": ["x"], "apiGroups": ["y"], "resources": ["z"]}), false),
        ] {
            let single: PolicyRule = serde_json::from_value(asked).unwrap();
            for rule in rules {
                assert_eq!(rule.covers(&single), covered, "{rule:?} {single:?}");
            }
        }
    }
}
