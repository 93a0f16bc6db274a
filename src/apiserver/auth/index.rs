//! Who may do what: roles and bindings, arranged so that a decision needs a few look-ups. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::rules::{Attributes, Rule};

/// Group of the four kinds.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// What a binding refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleRef {
    /// `Role` or `ClusterRole`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// To whom a binding gives a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subject {
    /// `User`, `Group` or `ServiceAccount`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Namespace of a service account.
    pub namespace: String,
}

/// A subject as a caller shows itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    User(String),
    Group(String),
}

impl Subject {
    /// As the caller shows itself. The account of a namespaced binding is of its namespace unless it says another.
    fn who(&self, namespace: &str) -> Option<Who> {
        match self.kind.as_str() {
            "User" => Some(Who::User(self.name.clone())),
            "Group" => Some(Who::Group(self.name.clone())),
            "ServiceAccount" => {
                let namespace = if self.namespace.is_empty() { namespace } else { &self.namespace };
                (!namespace.is_empty()).then(|| Who::User(super::accounts::user_name(namespace, &self.name)))
            }
            _ => None,
        }
    }

    fn describe(&self) -> String {
        match self.kind.as_str() {
            "ServiceAccount" => format!("{} \"{}/{}\"", self.kind, self.name, self.namespace),
            _ => format!("{} \"{}\"", self.kind, self.name),
        }
    }
}

/// One binding.
#[derive(Debug)]
struct Binding {
    namespace: String,
    name: String,
    role: RoleRef,
    subjects: Vec<Subject>,
}

/// The bindings of one namespace, or of the cluster.
#[derive(Clone, Debug, Default)]
struct Scope {
    bindings: HashMap<String, Arc<Binding>>,
    by_subject: HashMap<Who, Vec<(Arc<Binding>, usize)>>,
}

impl Scope {
    fn rebuild(&mut self) {
        self.by_subject.clear();
        let mut bindings: Vec<_> = self.bindings.values().collect();
        bindings.sort_by(|a, b| a.name.cmp(&b.name));
        for binding in bindings {
            for (at, subject) in binding.subjects.iter().enumerate() {
                if let Some(who) = subject.who(&binding.namespace) {
                    let found = self.by_subject.entry(who).or_default();
                    // A subject that is named again adds nothing.
                    if found.last().is_none_or(|(last, _)| !Arc::ptr_eq(last, binding)) {
                        found.push((Arc::clone(binding), at));
                    }
                }
            }
        }
    }
}

/// Who asks, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'c> {
    /// User name.
    pub user: &'c str,
    /// Groups.
    pub groups: &'c [String],
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may be served.
    pub allowed: bool,
    /// Which binding allows it, or what is wrong with the bindings that might have; often empty.
    pub reason: String,
}

/// Every role and binding.
#[derive(Clone, Debug, Default)]
pub struct Index {
    /// By namespace (empty: ClusterRole) and name.
    roles: HashMap<String, HashMap<String, Arc<[Rule]>>>,
    /// By namespace (empty: ClusterRoleBinding).
    scopes: HashMap<String, Scope>,
}

/// Rules of a stored role. What cannot be read allows nothing.
pub fn rules_of(role: &Value) -> Vec<Rule> {
    Vec::deserialize(&role["rules"]).unwrap_or_default()
}

/// Subjects of a stored binding.
pub fn subjects_of(binding: &Value) -> Vec<Subject> {
    Vec::deserialize(&binding["subjects"]).unwrap_or_default()
}

/// Role of a stored binding.
pub fn role_of(binding: &Value) -> RoleRef {
    RoleRef::deserialize(&binding["roleRef"]).unwrap_or_default()
}

impl Index {
    /// Puts in a role, or takes it out when there is none. The namespace is empty for a ClusterRole.
    pub fn set_role(&mut self, namespace: &str, name: &str, role: Option<&Value>) {
        let roles = self.roles.entry(namespace.to_owned()).or_default();
        match role {
            Some(role) => drop(roles.insert(name.to_owned(), rules_of(role).into())),
            None => drop(roles.remove(name)),
        }
        if roles.is_empty() {
            self.roles.remove(namespace);
        }
    }

    /// Puts in a binding, or takes it out when there is none. The namespace is empty for a ClusterRoleBinding.
    pub fn set_binding(&mut self, namespace: &str, name: &str, binding: Option<&Value>) {
        let scope = self.scopes.entry(namespace.to_owned()).or_default();
        match binding {
            Some(binding) => {
                let binding = Binding {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                    role: role_of(binding),
                    subjects: subjects_of(binding),
                };
                scope.bindings.insert(name.to_owned(), Arc::new(binding));
            }
            None => drop(scope.bindings.remove(name)),
        }
        scope.rebuild();
        if scope.bindings.is_empty() {
            self.scopes.remove(namespace);
        }
    }

    /// Rules of a role that a binding in this namespace (empty: of the cluster) refers to.
    pub fn role(&self, role: &RoleRef, namespace: &str) -> Option<&Arc<[Rule]>> {
        let namespace = if role.kind == "Role" { namespace } else { "" };
        self.roles.get(namespace)?.get(&role.name)
    }

    /// Calls back with every binding that is for the caller, of the cluster first, until told to stop.
    fn visit(&self, caller: Caller<'_>, namespace: &str, mut each: impl FnMut(&Binding, usize) -> bool) {
        let scopes = [Some(""), Some(namespace).filter(|namespace| !namespace.is_empty())];
        for scope in scopes.into_iter().flatten().filter_map(|namespace| self.scopes.get(namespace)) {
            let user = std::iter::once(Who::User(caller.user.to_owned()));
            for who in user.chain(caller.groups.iter().map(|group| Who::Group(group.clone()))) {
                for (binding, at) in scope.by_subject.get(&who).into_iter().flatten() {
                    if !each(binding, *at) {
                        return;
                    }
                }
            }
        }
    }

    /// Whether the caller may.
    pub fn decide(&self, caller: Caller<'_>, wanted: &Attributes<'_>) -> Decision {
        let namespace = if wanted.is_resource() { wanted.namespace } else { "" };
        let mut decision = Decision { allowed: false, reason: String::new() };
        let mut faults = Vec::new();
        self.visit(caller, namespace, |binding, at| {
            let Some(rules) = self.role(&binding.role, &binding.namespace) else {
                let fault = absent(&binding.role);
                if !faults.contains(&fault) {
                    faults.push(fault);
                }
                return true;
            };
            if !rules.iter().any(|rule| rule.allows(wanted)) {
                return true;
            }
            let place = if binding.namespace.is_empty() {
                format!("ClusterRoleBinding \"{}\"", binding.name)
            } else {
                format!("RoleBinding \"{}/{}\"", binding.name, binding.namespace)
            };
            let (role, subject) = (&binding.role, binding.subjects[at].describe());
            decision.allowed = true;
            decision.reason = format!("RBAC: allowed by {place} of {} \"{}\" to {subject}", role.kind, role.name);
            false
        });
        if !decision.allowed && !faults.is_empty() {
            decision.reason = match faults.as_slice() {
                [one] => format!("RBAC: {one}"),
                many => format!("RBAC: [{}]", many.join(", ")),
            };
        }
        decision
    }

    /// The rules of every role that is the caller's in a namespace (empty: in the cluster), each role once however often it
    /// is bound, and the faults met on the way.
    pub fn rules(&self, caller: Caller<'_>, namespace: &str) -> (Vec<Arc<[Rule]>>, Vec<String>) {
        let (mut roles, mut faults) = (Vec::new(), Vec::new());
        let (mut seen, mut missed) = (HashSet::new(), HashSet::new());
        self.visit(caller, namespace, |binding, _| {
            match self.role(&binding.role, &binding.namespace) {
                Some(found) if seen.insert(Arc::as_ptr(found)) => roles.push(Arc::clone(found)),
                Some(_) => {}
                None if missed.insert(binding.role.clone()) => faults.push(absent(&binding.role)),
                None => {}
            }
            true
        });
        (roles, faults)
    }
}

/// What upstream says of a role that is not there.
pub fn absent(role: &RoleRef) -> String {
    format!("{}.{GROUP} \"{}\" not found", role.kind.to_lowercase(), role.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn index() -> Index {
        let mut index = Index::default();
        let rules = |verbs: &[&str], resource: &str| json!({"rules": [{"verbs": verbs, "apiGroups": [""], "resources": [resource]}]});
        index.set_role("", "reader", Some(&rules(&["get", "list"], "configmaps")));
        index.set_role("", "paths", Some(&json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/metrics"]}]})));
        index.set_role("rack", "keeper", Some(&rules(&["*"], "secrets")));
        let binding = |kind: &str, role: &str, subjects: Value| json!({"roleRef": {"apiGroup": GROUP, "kind": kind, "name": role}, "subjects": subjects});
        let group = json!([{"kind": "Group", "name": "readers"}]);
        index.set_binding("", "all-read", Some(&binding("ClusterRole", "reader", group.clone())));
        index.set_binding("rack", "paths", Some(&binding("ClusterRole", "paths", group)));
        let account = json!([{"kind": "ServiceAccount", "namespace": "ci", "name": "bot"}]);
        index.set_binding("rack", "bot", Some(&binding("Role", "keeper", account)));
        let own = json!([{"kind": "ServiceAccount", "name": "own"}]);
        index.set_binding("rack", "own", Some(&binding("Role", "keeper", own.clone())));
        index.set_binding("", "own", Some(&binding("ClusterRole", "reader", own)));
        let eve = json!([{"kind": "User", "name": "eve"}]);
        index.set_binding("rack", "eve", Some(&binding("ClusterRole", "reader", eve.clone())));
        index.set_binding("rack", "broken", Some(&binding("Role", "none", eve)));
        index
    }

    #[test]
    fn bindings_give_what_they_say_and_where() {
        let index = index();
        let readers = ["readers".to_owned()];
        for (user, groups, verb, namespace, resource, allowed, reason) in [
            (
                "ann",
                &readers[..],
                "get",
                "x",
                "configmaps",
                true,
                "RBAC: allowed by ClusterRoleBinding \"all-read\" of ClusterRole \"reader\" to Group \"readers\"",
            ),
            ("ann", &readers, "list", "", "configmaps", true, ""),
            ("ann", &readers, "delete", "x", "configmaps", false, ""),
            ("ann", &[], "get", "x", "configmaps", false, ""),
            (
                "system:serviceaccount:ci:bot",
                &[],
                "delete",
                "rack",
                "secrets",
                true,
                "RBAC: allowed by RoleBinding \"bot/rack\" of Role \"keeper\" to ServiceAccount \"bot/ci\"",
            ),
            ("system:serviceaccount:ci:bot", &[], "delete", "ci", "secrets", false, ""),
            ("system:serviceaccount:ci:bot", &[], "list", "", "secrets", false, ""),
            ("system:serviceaccount:rack:own", &[], "get", "rack", "secrets", true, ""),
            ("system:serviceaccount:rack:own", &[], "get", "rack", "configmaps", false, ""),
            ("eve", &[], "get", "rack", "configmaps", true, ""),
            ("eve", &[], "get", "", "configmaps", false, ""),
            ("eve", &[], "get", "rack", "secrets", false, "RBAC: role.rbac.authorization.k8s.io \"none\" not found"),
            ("Group", &[], "get", "rack", "configmaps", false, ""),
        ] {
            let wanted = Attributes { verb, namespace, resource, ..Attributes::default() };
            let decision = index.decide(Caller { user, groups }, &wanted);
            assert_eq!(decision.allowed, allowed, "{user} {verb} {namespace}/{resource}");
            if !allowed || !reason.is_empty() {
                assert_eq!(decision.reason, reason);
            }
        }
        // A path is the cluster's, whatever a namespace's binding says.
        let wanted = Attributes { verb: "get", path: "/metrics", ..Attributes::default() };
        assert!(!index.decide(Caller { user: "ann", groups: &readers }, &wanted).allowed);
    }

    #[test]
    fn what_is_taken_out_counts_no_longer() {
        let mut index = index();
        let readers = ["readers".to_owned()];
        let caller = Caller { user: "ann", groups: &readers };
        let wanted = Attributes { verb: "get", namespace: "x", resource: "configmaps", ..Attributes::default() };
        assert_eq!(index.rules(caller, "").0.len(), 1);
        index.set_role("", "reader", None);
        let refused = index.decide(caller, &wanted);
        assert_eq!(refused.reason, "RBAC: clusterrole.rbac.authorization.k8s.io \"reader\" not found");
        index.set_binding("", "all-read", None);
        assert_eq!(index.decide(caller, &wanted), Decision { allowed: false, reason: String::new() });
    }
}
