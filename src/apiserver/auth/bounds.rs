//! Limits on the size of RBAC roles and bindings.
//!
//! What roles and bindings may come to: every request of a caller whom they are for has all of them looked through.
//!
//! The roles of a cluster stay far below: a handful of rules with a handful of names each, some dozens of roles and bindings
//! in a namespace. What is there already beyond a bound counts, may stay as it is and be made smaller.

use serde_json::Value;

use super::authorizer::Authorizer;
use super::index::{self, BindingsSize, GROUP, RolesSize};
use super::rules::PolicyRule;
use crate::apiserver::answers::status::{ApiError, FieldError, FieldFault};
use crate::apiserver::kinds::resource::ServedResource;

/// Rules of a role.
const RULES: usize = 1000;
/// Entries of one list of a rule: verbs, groups, resources, names, paths.
const LIST: usize = 1000;
/// Entries of all lists of a role.
const VALUES: usize = 10_000;
/// Subjects of a binding.
const SUBJECTS: usize = 1000;
/// Rules of all roles of a namespace, or of all ClusterRoles.
const ALL_RULES: usize = 5000;
/// Entries of all their lists.
const ALL_VALUES: usize = 100_000;
/// Bindings of a namespace, or ClusterRoleBindings.
const ALL_BINDINGS: usize = 2000;
/// Subjects of all of them.
const ALL_SUBJECTS: usize = 10_000;

fn too_many(path: String, count: usize, most: usize, what: &str) -> FieldError {
    FieldError::new(FieldFault::TooMany, path, format!("{count}: must have at most {most} {what}"))
}

/// What a role has too much of, and more than it had.
pub fn role_faults(new: &[PolicyRule], old: &[PolicyRule]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (size, before) = (RolesSize::of(new), RolesSize::of(old));
    if size.rules > RULES.max(before.rules) {
        errors.push(too_many("rules".into(), size.rules, RULES, "items"));
    }
    let lists = |rule: &PolicyRule| {
        let PolicyRule { groups, paths, names, resources, verbs } = rule;
        [
            ("apiGroups", groups.len()),
            ("nonResourceURLs", paths.len()),
            ("resourceNames", names.len()),
            ("resources", resources.len()),
            ("verbs", verbs.len()),
        ]
    };
    let longest = old.iter().flat_map(lists).map(|(_, length)| length).max().unwrap_or_default();
    for (at, rule) in new.iter().enumerate() {
        for (field, length) in lists(rule) {
            if length > LIST.max(longest) {
                errors.push(too_many(format!("rules[{at}].{field}"), length, LIST, "items"));
            }
        }
    }
    if errors.is_empty() && size.values > VALUES.max(before.values) {
        errors.push(too_many("rules".into(), size.values, VALUES, "entries in all their lists"));
    }
    errors
}

/// What a binding has too much of, and more than it had.
pub fn binding_fault(new: usize, old: usize) -> Option<FieldError> {
    (new > SUBJECTS.max(old)).then(|| too_many("subjects".into(), new, SUBJECTS, "items"))
}

/// Refuses what makes the roles or bindings of a namespace come to more than they may.
pub fn check_room(authorizer: &Authorizer, resource: &ServedResource, new: &Value) -> Result<(), ApiError> {
    if resource.group != GROUP {
        return Ok(());
    }
    let index = authorizer.index();
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = new["metadata"]["namespace"].as_str().unwrap_or_default();
    let (counts, kind) = if new.get("roleRef").is_some() {
        let size = BindingsSize { bindings: 1, subjects: index::subjects_of(new).len() };
        let (all, former) = index.bindings_size(namespace, name);
        let after = all.with(size, former);
        let counts = [
            (all.bindings, after.bindings, ALL_BINDINGS, "bindings"),
            (all.subjects, after.subjects, ALL_SUBJECTS, "subjects"),
        ];
        (counts, if namespace.is_empty() { "ClusterRoleBindings" } else { "RoleBindings" })
    } else {
        let size = RolesSize::of(&index::rules_of(new));
        let (all, former) = index.roles_size(namespace, name);
        let after = all.with(size, former);
        let counts = [
            (all.rules, after.rules, ALL_RULES, "rules"),
            (all.values, after.values, ALL_VALUES, "verbs, groups, resources, names and paths in their rules"),
        ];
        (counts, if namespace.is_empty() { "ClusterRoles" } else { "Roles" })
    };
    let whose = if namespace.is_empty() { kind.to_owned() } else { format!("{kind} of namespace {namespace:?}") };
    for (before, after, most, what) in counts {
        if after > most.max(before) {
            let reason = format!(
                "the {whose} would have {after} {what} together, and may have {most}: delete what is not needed, or grant \
                 with fewer"
            );
            return Err(ApiError::forbidden(resource, name, reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::index::RbacIndex;
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_there_may_stay_and_shrink() {
        let names = |count: usize| PolicyRule { names: vec!["a".into(); count], ..PolicyRule::default() };
        for (new, old, wanted) in [
            (vec![names(1000)], vec![], ""),
            (vec![names(1001)], vec![], "rules[0].resourceNames"),
            (vec![names(1001)], vec![names(1002)], ""),
            (vec![names(1001)], vec![names(1000)], "rules[0].resourceNames"),
            (vec![names(1000); 10], vec![], ""),
            (vec![names(1000); 11], vec![], "rules"),
            (vec![names(1000); 11], vec![names(1000); 11], ""),
            (vec![names(0); 1001], vec![], "rules"),
            (vec![names(0); 1001], vec![names(0); 1001], ""),
        ] {
            let found: Vec<String> = role_faults(&new, &old).into_iter().map(|error| error.path).collect();
            assert_eq!(found.join(" "), wanted, "{} rules", new.len());
        }
        assert!(binding_fault(1001, 1000).is_some() && binding_fault(1001, 1001).is_none());
    }

    #[test]
    fn the_size_follows_what_is_put_in_and_taken_out() {
        let mut index = RbacIndex::default();
        let role = |count: usize| json!({"rules": vec![json!({"verbs": ["get", "list"]}); count]});
        let binding =
            |count: usize| json!({"roleRef": {}, "subjects": vec![json!({"kind": "User", "name": "a"}); count]});
        index.set_role("a", "one", Some(&role(2)));
        index.set_role("a", "two", Some(&role(3)));
        index.set_role("a", "one", Some(&role(1)));
        assert_eq!(
            index.roles_size("a", "one"),
            (RolesSize { rules: 4, values: 8 }, RolesSize { rules: 1, values: 2 })
        );
        index.set_role("a", "one", None);
        index.set_role("a", "two", None);
        assert_eq!(index.roles_size("a", "two"), Default::default());
        index.set_binding("a", "one", Some(&binding(2)));
        index.set_binding("a", "two", Some(&binding(3)));
        index.set_binding("a", "one", Some(&binding(1)));
        let of = |bindings, subjects| BindingsSize { bindings, subjects };
        assert_eq!(index.bindings_size("a", "two"), (of(2, 4), of(1, 3)));
        index.set_binding("a", "one", None);
        index.set_binding("a", "two", None);
        assert_eq!(index.bindings_size("a", "one"), Default::default());
    }
}
