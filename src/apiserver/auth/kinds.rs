//! Kinds of authentication and authorisation.
//!
//! The kinds of this room: ServiceAccount, the four of `rbac.authorization.k8s.io`, and the reviews, which are answered
//! and not kept.

use serde_json::{Value, json};

use super::index::{self, BindingSubject, GROUP};
use super::{accounts, bounds};
use crate::api::{StoragePolicy, is_dns_subdomain};
use crate::apiserver::answers::columns::PrinterColumn;
use crate::apiserver::answers::status::{FieldError, FieldFault};
use crate::apiserver::kinds::resource::{CoreKind, Prepare};

/// Group of the reviews about permissions.
pub const AUTHORIZATION: &str = "authorization.k8s.io";
/// Group of the reviews about callers.
pub const AUTHENTICATION: &str = "authentication.k8s.io";

/// How objects of a core kind are kept.
pub fn storage_policy(group: &str) -> StoragePolicy {
    if matches!(group, AUTHORIZATION | AUTHENTICATION) { StoragePolicy::Review } else { StoragePolicy::Durable }
}

/// Each kind, without its schema.
pub fn all() -> Vec<CoreKind> {
    let core = |group, kind, plural, namespaced, columns, prepare| CoreKind {
        group,
        kind,
        plural,
        short_names: &[],
        namespaced,
        status: false,
        columns,
        conversion: None,
        prepare,
    };
    let stored =
        |kind, plural, namespaced, columns, prepare| core(GROUP, kind, plural, namespaced, columns, Some(prepare));
    let unkept = || vec![PrinterColumn::name(), PrinterColumn::age()];
    let review = |group, kind, plural, namespaced| core(group, kind, plural, namespaced, unkept, None);
    let account = CoreKind {
        short_names: &["sa"],
        ..core("", "ServiceAccount", "serviceaccounts", true, accounts::columns, None)
    };
    vec![
        account,
        stored("ClusterRole", "clusterroles", false, role_columns, prepare_cluster_role),
        stored("ClusterRoleBinding", "clusterrolebindings", false, binding_columns, prepare_cluster_binding as Prepare),
        stored("Role", "roles", true, role_columns, prepare_role),
        stored("RoleBinding", "rolebindings", true, binding_columns, prepare_binding),
        review(AUTHENTICATION, "SelfSubjectReview", "selfsubjectreviews", false),
        review(AUTHENTICATION, "TokenReview", "tokenreviews", false),
        review(AUTHORIZATION, "LocalSubjectAccessReview", "localsubjectaccessreviews", true),
        review(AUTHORIZATION, "SelfSubjectAccessReview", "selfsubjectaccessreviews", false),
        review(AUTHORIZATION, "SelfSubjectRulesReview", "selfsubjectrulesreviews", false),
        review(AUTHORIZATION, "SubjectAccessReview", "subjectaccessreviews", false),
    ]
}

fn role_columns() -> Vec<PrinterColumn> {
    let created =
        PrinterColumn::cell("Created At", "date", 0, |object, _| object["metadata"]["creationTimestamp"].clone());
    vec![PrinterColumn::name(), created]
}

fn binding_columns() -> Vec<PrinterColumn> {
    fn named(binding: &Value, kind: &str) -> Value {
        let subjects = index::subjects_of(binding);
        let name = |one: &BindingSubject| match kind {
            "ServiceAccount" => format!("{}/{}", one.namespace, one.name),
            _ => one.name.clone(),
        };
        let names: Vec<String> = subjects.iter().filter(|one| one.kind == kind).map(name).collect();
        names.join(", ").into()
    }
    let role = PrinterColumn::cell("Role", "string", 0, |object, _| {
        let role = index::role_of(object);
        format!("{}/{}", role.kind, role.name).into()
    });
    vec![
        PrinterColumn::name(),
        role,
        PrinterColumn::age(),
        PrinterColumn::cell("Users", "string", 1, |object, _| named(object, "User")),
        PrinterColumn::cell("Groups", "string", 1, |object, _| named(object, "Group")),
        PrinterColumn::cell("ServiceAccounts", "string", 1, |object, _| named(object, "ServiceAccount")),
    ]
}

/// What is left out is empty, and told as that.
fn require(object: &mut Value, field: &str, empty: Value) {
    if let Some(map) = object.as_object_mut() {
        map.entry(field).or_insert(empty);
    }
}

fn prepare_role(new: &mut Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    check_rules(new, old, true, errors);
}

fn prepare_cluster_role(new: &mut Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    check_rules(new, old, false, errors);
    if new.get("aggregationRule").is_some_and(Value::is_object)
        && new["aggregationRule"]["clusterRoleSelectors"].as_array().is_none_or(Vec::is_empty)
    {
        errors.push(FieldError::required(
            "aggregationRule.clusterRoleSelectors",
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        ));
    }
}

fn check_rules(role: &mut Value, old: Option<&Value>, namespaced: bool, errors: &mut Vec<FieldError>) {
    for rule in role.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
        require(rule, "verbs", json!([]));
    }
    let rules = index::rules_of(role);
    errors.extend(bounds::role_faults(&rules, &old.map(index::rules_of).unwrap_or_default()));
    for (at, rule) in rules.iter().enumerate() {
        let mut required = |field: &str, detail: &str| {
            errors.push(FieldError::required(format!("rules[{at}].{field}"), detail));
        };
        if rule.verbs.is_empty() {
            required("verbs", "verbs must contain at least one value");
        }
        if rule.paths.is_empty() {
            if rule.groups.is_empty() {
                required("apiGroups", "resource rules must supply at least one api group");
            }
            if rule.resources.is_empty() {
                required("resources", "resource rules must supply at least one resource");
            }
            continue;
        }
        let mixed = !(rule.groups.is_empty() && rule.resources.is_empty() && rule.names.is_empty());
        for (wrong, detail) in [
            (namespaced, "namespaced rules cannot apply to non-resource URLs"),
            (mixed && !namespaced, "rules cannot apply to both regular resources and non-resource URLs"),
        ] {
            if wrong {
                let path = format!("rules[{at}].nonResourceURLs");
                errors.push(invalid(path, &json!(rule.paths), detail));
            }
        }
    }
}

/// A fault that shows a list or an object, which [`FieldError::invalid`] leaves out.
fn invalid(path: String, value: &Value, detail: &str) -> FieldError {
    let shown = crate::apiserver::answers::status::shorten(&value.to_string(), 256);
    FieldError { fault: FieldFault::Invalid, path, message: format!("Invalid value: {shown}: {detail}") }
}

fn prepare_binding(new: &mut Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    check_binding(new, old, &["Role", "ClusterRole"], errors);
}

fn prepare_cluster_binding(new: &mut Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    check_binding(new, old, &["ClusterRole"], errors);
}

fn check_binding(new: &mut Value, old: Option<&Value>, kinds: &[&str], errors: &mut Vec<FieldError>) {
    if new["roleRef"].is_null() {
        new["roleRef"] = json!({});
    }
    let role = &mut new["roleRef"];
    if !role.is_object() {
        return;
    }
    require(role, "kind", "".into());
    require(role, "name", "".into());
    if role["apiGroup"].as_str().is_none_or(str::is_empty) {
        role["apiGroup"] = GROUP.into();
    }
    if role["apiGroup"] != GROUP {
        errors.push(not_supported("roleRef.apiGroup", &role["apiGroup"], &[GROUP]));
    }
    if !kinds.iter().any(|kind| role["kind"] == *kind) {
        errors.push(not_supported("roleRef.kind", &role["kind"], kinds));
    }
    match role["name"].as_str().unwrap_or_default() {
        "" => errors.push(FieldError::required("roleRef.name", "")),
        name => errors
            .extend(path_segment_fault(name).map(|fault| FieldError::invalid("roleRef.name", &name.into(), fault))),
    }
    let namespaced = kinds.contains(&"Role");
    let count = |binding: &Value| binding["subjects"].as_array().map_or(0, Vec::len);
    errors.extend(bounds::binding_fault(count(new), old.map_or(0, count)));
    let subjects = new.get_mut("subjects").and_then(Value::as_array_mut);
    for (at, subject) in subjects.into_iter().flatten().enumerate() {
        check_subject(subject, &format!("subjects[{at}]"), namespaced, errors);
    }
    if old.is_some_and(|old| old["roleRef"] != new["roleRef"]) {
        // Upstream shows the fields by the names that its code has for them.
        let role = &new["roleRef"];
        let shown = json!({"APIGroup": role["apiGroup"], "Kind": role["kind"], "Name": role["name"]});
        errors.push(invalid("roleRef".into(), &shown, "cannot change roleRef"));
    }
}

fn not_supported(path: impl Into<String>, value: &Value, allowed: &[&str]) -> FieldError {
    let list: Vec<String> = allowed.iter().map(|one| format!("{one:?}")).collect();
    let detail = format!("supported values: {}", list.join(", "));
    FieldError::with_value(FieldFault::NotSupported, path, value, detail)
}

/// The account of a namespaced binding may be of the binding's own namespace, which it then need not name.
fn check_subject(subject: &mut Value, at: &str, namespaced: bool, errors: &mut Vec<FieldError>) {
    if !subject.is_object() {
        return;
    }
    require(subject, "kind", "".into());
    require(subject, "name", "".into());
    let group = subject["apiGroup"].as_str().unwrap_or_default().to_owned();
    let name = subject["name"].as_str().unwrap_or_default().to_owned();
    if name.is_empty() {
        errors.push(FieldError::required(format!("{at}.name"), ""));
    }
    match subject["kind"].as_str().unwrap_or_default() {
        "ServiceAccount" => {
            if !name.is_empty() && !is_dns_subdomain(&name) {
                let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
                            '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used \
                            for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
                errors.push(FieldError::invalid(format!("{at}.name"), &name.into(), rule));
            }
            if !group.is_empty() {
                errors.push(not_supported(format!("{at}.apiGroup"), &group.into(), &[""]));
            }
            if !namespaced && subject["namespace"].as_str().is_none_or(str::is_empty) {
                errors.push(FieldError::required(format!("{at}.namespace"), ""));
            }
        }
        "User" | "Group" if group.is_empty() => subject["apiGroup"] = GROUP.into(),
        "User" | "Group" if group == GROUP => {}
        "User" | "Group" => errors.push(not_supported(format!("{at}.apiGroup"), &group.into(), &[GROUP])),
        other => {
            let kinds = ["ServiceAccount", "User", "Group"];
            errors.push(not_supported(format!("{at}.kind"), &other.into(), &kinds));
        }
    }
}

/// What is wrong with a name of one of the four kinds, which may hold whatever a path segment can.
pub fn path_segment_fault(name: &str) -> Option<&'static str> {
    match name {
        "." => Some("may not be '.'"),
        ".." => Some("may not be '..'"),
        other if other.contains('/') => Some("may not contain '/'"),
        other if other.contains('%') => Some("may not contain '%'"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(prepare: Prepare, mut new: Value, old: Option<Value>) -> Vec<String> {
        let mut errors = Vec::new();
        prepare(&mut new, old.as_ref(), &mut errors);
        errors.into_iter().map(|error| format!("{}: {}", error.path, error.message)).collect()
    }

    #[test]
    fn rules_are_whole() {
        let good = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]});
        let path = json!({"verbs": ["get"], "nonResourceURLs": ["/x"]});
        let mixed = json!({"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["a"]});
        for (prepare, rule, wanted) in [
            (prepare_role as Prepare, good.clone(), ""),
            (prepare_cluster_role, good, ""),
            (prepare_cluster_role, path.clone(), ""),
            (prepare_role, path, "namespaced rules cannot apply to non-resource URLs"),
            (prepare_cluster_role, mixed, "cannot apply to both regular resources and non-resource URLs"),
            (
                prepare_role,
                json!({"apiGroups": [""], "resources": ["a"]}),
                "rules[0].verbs: Required value: verbs must",
            ),
            (prepare_role, json!({"verbs": ["get"], "resources": ["a"]}), "at least one api group"),
            (prepare_role, json!({"verbs": ["get"], "apiGroups": [""]}), "rules[0].resources: Required value"),
        ] {
            let found = faults(prepare, json!({"rules": [rule.clone()]}), None);
            assert_eq!(found.len(), usize::from(!wanted.is_empty()), "{rule}: {found:?}");
            assert!(found.iter().all(|fault| fault.contains(wanted)), "{rule}: {found:?}");
        }
        let empty = json!({"aggregationRule": {}});
        assert_eq!(faults(prepare_cluster_role, empty, None).len(), 1);
    }

    #[test]
    fn bindings_name_a_role_and_subjects() {
        let binding = |role: Value, subject: Value| json!({"roleRef": role, "subjects": [subject]});
        let role = json!({"kind": "ClusterRole", "name": "view"});
        let eve = json!({"kind": "User", "name": "eve"});
        let account = |fields: Value| {
            let mut subject = json!({"kind": "ServiceAccount", "name": "bot", "namespace": "ci"});
            subject.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            subject
        };
        for (value, wanted) in [
            (binding(role.clone(), eve.clone()), ""),
            (binding(role.clone(), account(json!({}))), ""),
            (binding(role.clone(), account(json!({"namespace": ""}))), ""),
            (
                binding(role.clone(), account(json!({"apiGroup": GROUP}))),
                "subjects[0].apiGroup: Unsupported value: \"rbac.authorization.k8s.io\": supported values: \"\"",
            ),
            (binding(role.clone(), account(json!({"name": "A"}))), "subjects[0].name: Invalid value"),
            (binding(role.clone(), json!({"kind": "Robot", "name": "r"})), "subjects[0].kind: Unsupported value"),
            (binding(role.clone(), json!({"kind": "Group"})), "subjects[0].name: Required value"),
            (binding(json!({"kind": "Rule", "name": "a"}), eve.clone()), "roleRef.kind: Unsupported value: \"Rule\""),
            (binding(json!({"kind": "Role", "name": ""}), eve.clone()), "roleRef.name: Required value"),
            (binding(json!({"kind": "Role", "name": "a/b"}), eve.clone()), "may not contain '/'"),
        ] {
            let found = faults(prepare_binding, value.clone(), None);
            assert_eq!(found.len(), usize::from(!wanted.is_empty()), "{value}: {found:?}");
            assert!(found.iter().all(|fault| fault.contains(wanted)), "{value}: {found:?}");
        }
        let local = binding(json!({"kind": "Role", "name": "a"}), eve.clone());
        assert_eq!(faults(prepare_cluster_binding, local.clone(), None).len(), 1);
        let homeless = binding(role.clone(), account(json!({"namespace": ""})));
        assert_eq!(faults(prepare_cluster_binding, homeless, None), ["subjects[0].namespace: Required value"]);
        let mut bare = json!({"roleRef": role, "metadata": {}});
        prepare_binding(&mut bare, None, &mut Vec::new());
        assert_eq!(bare.get("subjects"), None);
        let mut bare = json!({"metadata": {}});
        prepare_cluster_role(&mut bare, None, &mut Vec::new());
        assert_eq!(bare, json!({"metadata": {}}));
        let mut before = binding(role, eve);
        let mut errors = Vec::new();
        prepare_binding(&mut before, None, &mut errors);
        assert_eq!(before["subjects"][0]["apiGroup"], GROUP);
        let changed = faults(prepare_binding, local, Some(before));
        assert_eq!(
            changed,
            [format!(
                "roleRef: Invalid value: {{\"APIGroup\":\"{GROUP}\",\"Kind\":\"Role\",\"Name\":\"a\"}}: cannot change roleRef"
            )]
        );
    }
}
