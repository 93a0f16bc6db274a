//! The RBAC index: roles and bindings, arranged so that a decision needs a few look-ups. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use serde_json::Value;

use super::compiled::CompiledRule;
use super::rules::{Attributes, PolicyRule};

/// Rules of a role, or roles of a subject with theirs, from which on it takes long to look through them.
const LONG: usize = 500;
/// Roles that are not there, of which an answer tells.
const ABSENT_TOLD: usize = 8;

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
pub struct BindingSubject {
    /// `User`, `Group` or `ServiceAccount`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Namespace of a service account.
    pub namespace: String,
}

/// A subject as a caller shows itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum SubjectMatch {
    User(String),
    Group(String),
}

impl BindingSubject {
    /// As the caller shows itself. The account of a namespaced binding is of its namespace unless it says another.
    fn who(&self, namespace: &str) -> Option<SubjectMatch> {
        match self.kind.as_str() {
            "User" => Some(SubjectMatch::User(self.name.clone())),
            "Group" => Some(SubjectMatch::Group(self.name.clone())),
            "ServiceAccount" => {
                let namespace = if self.namespace.is_empty() { namespace } else { &self.namespace };
                (!namespace.is_empty()).then(|| SubjectMatch::User(super::accounts::user_name(namespace, &self.name)))
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
struct RoleBinding {
    namespace: String,
    name: String,
    role: RoleRef,
    subjects: Vec<BindingSubject>,
}

/// The roles of one namespace, or of the cluster.
#[derive(Clone, Debug, Default)]
struct Roles {
    by_name: HashMap<String, Arc<[CompiledRule]>>,
    size: RolesSize,
}

/// What roles come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolesSize {
    /// Rules.
    pub rules: usize,
    /// What these list: verbs, groups, resources, names, paths.
    pub values: usize,
}

impl RolesSize {
    /// Of one role.
    pub fn of<R: std::ops::Deref<Target = PolicyRule>>(rules: impl IntoIterator<Item = R>) -> Self {
        let add = |sum: Self, rule: R| Self { rules: sum.rules + 1, values: sum.values + rule.values() };
        rules.into_iter().fold(Self::default(), add)
    }

    /// When one of them changes.
    pub fn with(self, new: Self, former: Self) -> Self {
        Self { rules: self.rules + new.rules - former.rules, values: self.values + new.values - former.values }
    }
}

/// What bindings come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindingsSize {
    /// Bindings.
    pub bindings: usize,
    /// Their subjects.
    pub subjects: usize,
}

impl BindingsSize {
    /// When one of them changes.
    pub fn with(self, new: Self, former: Self) -> Self {
        Self {
            bindings: self.bindings + new.bindings - former.bindings,
            subjects: self.subjects + new.subjects - former.subjects,
        }
    }
}

/// The bindings of one namespace, or of the cluster.
#[derive(Clone, Debug, Default)]
struct BindingScope {
    bindings: HashMap<String, Arc<RoleBinding>>,
    /// The bindings of each subject by name, with its place in them.
    by_subject: HashMap<SubjectMatch, BTreeMap<String, (Arc<RoleBinding>, usize)>>,
    size: BindingsSize,
}

impl BindingScope {
    fn put(&mut self, binding: RoleBinding) {
        let binding = Arc::new(binding);
        for (at, subject) in binding.subjects.iter().enumerate() {
            if let Some(who) = subject.who(&binding.namespace) {
                let of = self.by_subject.entry(who).or_default();
                // A subject that is named again adds nothing.
                of.entry(binding.name.clone()).or_insert_with(|| (Arc::clone(&binding), at));
            }
        }
        self.size = self.size.with(binding.size(), BindingsSize::default());
        self.bindings.insert(binding.name.clone(), binding);
    }

    fn take(&mut self, name: &str) {
        let Some(binding) = self.bindings.remove(name) else { return };
        self.size = self.size.with(BindingsSize::default(), binding.size());
        for who in binding.subjects.iter().filter_map(|subject| subject.who(&binding.namespace)) {
            if let Some(of) = self.by_subject.get_mut(&who) {
                of.remove(name);
                if of.is_empty() {
                    self.by_subject.remove(&who);
                }
            }
        }
    }
}

impl RoleBinding {
    fn size(&self) -> BindingsSize {
        BindingsSize { bindings: 1, subjects: self.subjects.len() }
    }
}

/// The caller, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct AuthorizedCaller<'c> {
    /// User name.
    pub user: &'c str,
    /// Groups.
    pub groups: &'c [String],
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationDecision {
    /// Whether the request may be served.
    pub allowed: bool,
    /// Which binding allows it, or what is wrong with the bindings that might have; often empty.
    pub reason: String,
}

/// Every role and binding. A copy is cheap: the namespaces are shared until they change.
#[derive(Clone, Debug, Default)]
pub struct RbacIndex {
    /// By namespace (empty: ClusterRole) and name.
    roles: HashMap<String, Arc<Roles>>,
    /// By namespace (empty: ClusterRoleBinding).
    scopes: HashMap<String, Arc<BindingScope>>,
    /// Of this state of it.
    stamp: u64,
}

/// Of the last state of any index.
static STAMP: AtomicU64 = AtomicU64::new(0);

/// Roles that are not there: which ones, and of how many an answer tells.
#[derive(Default)]
struct Absent {
    known: HashSet<RoleRef>,
    told: Vec<String>,
}

impl Absent {
    fn add(&mut self, role: &RoleRef) {
        if !self.known.contains(role) {
            self.known.insert(role.clone());
            if self.told.len() < ABSENT_TOLD {
                self.told.push(absent(role));
            }
        }
    }

    fn tell(mut self) -> Vec<String> {
        match self.known.len() - self.told.len() {
            0 => {}
            more => self.told.push(format!("and {more} more")),
        }
        self.told
    }
}

/// Rules of a stored role. What cannot be read allows nothing.
pub fn rules_of(role: &Value) -> Vec<PolicyRule> {
    Vec::deserialize(&role["rules"]).unwrap_or_default()
}

/// Subjects of a stored binding.
pub fn subjects_of(binding: &Value) -> Vec<BindingSubject> {
    Vec::deserialize(&binding["subjects"]).unwrap_or_default()
}

/// Role of a stored binding.
pub fn role_of(binding: &Value) -> RoleRef {
    RoleRef::deserialize(&binding["roleRef"]).unwrap_or_default()
}

impl RbacIndex {
    /// Puts in a role, or takes it out when there is none. The namespace is empty for a ClusterRole.
    pub fn set_role(&mut self, namespace: &str, name: &str, role: Option<&Value>) {
        self.stamp = STAMP.fetch_add(1, Ordering::Relaxed) + 1;
        let roles = Arc::make_mut(self.roles.entry(namespace.to_owned()).or_default());
        let rules: Option<Arc<[CompiledRule]>> =
            role.map(|role| rules_of(role).into_iter().map(CompiledRule::from).collect());
        let size = |rules: &Option<Arc<[CompiledRule]>>| {
            RolesSize::of(rules.iter().flat_map(|rules| rules.iter().map(|rule| &**rule)))
        };
        let new = size(&rules);
        let former = match rules {
            Some(rules) => roles.by_name.insert(name.to_owned(), rules),
            None => roles.by_name.remove(name),
        };
        roles.size = roles.size.with(new, size(&former));
        if roles.by_name.is_empty() {
            self.roles.remove(namespace);
        }
    }

    /// Puts in a binding, or takes it out when there is none. The namespace is empty for a ClusterRoleBinding.
    pub fn set_binding(&mut self, namespace: &str, name: &str, binding: Option<&Value>) {
        self.stamp = STAMP.fetch_add(1, Ordering::Relaxed) + 1;
        let scope = Arc::make_mut(self.scopes.entry(namespace.to_owned()).or_default());
        scope.take(name);
        if let Some(binding) = binding {
            scope.put(RoleBinding {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                role: role_of(binding),
                subjects: subjects_of(binding),
            });
        }
        if scope.bindings.is_empty() {
            self.scopes.remove(namespace);
        }
    }

    /// A number that changes with every role and binding.
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// What the roles of a namespace (empty: of the cluster) come to, and one of them.
    pub fn roles_size(&self, namespace: &str, name: &str) -> (RolesSize, RolesSize) {
        let Some(roles) = self.roles.get(namespace) else { return Default::default() };
        let one = roles.by_name.get(name).into_iter().flat_map(|rules| rules.iter());
        (roles.size, RolesSize::of(one.map(|rule| &**rule)))
    }

    /// What the bindings of a namespace (empty: of the cluster) come to, and one of them.
    pub fn bindings_size(&self, namespace: &str, name: &str) -> (BindingsSize, BindingsSize) {
        let Some(scope) = self.scopes.get(namespace) else { return Default::default() };
        (scope.size, scope.bindings.get(name).map_or_else(Default::default, |binding| binding.size()))
    }

    /// Rules of a role that a binding in this namespace (empty: of the cluster) refers to.
    pub fn role(&self, role: &RoleRef, namespace: &str) -> Option<&Arc<[CompiledRule]>> {
        let namespace = if role.kind == "Role" { namespace } else { "" };
        self.roles.get(namespace)?.by_name.get(&role.name)
    }

    /// Calls back with every binding that is for the caller, of the cluster first, until told to stop.
    fn visit(&self, caller: AuthorizedCaller<'_>, namespace: &str, mut each: impl FnMut(&RoleBinding, usize) -> bool) {
        let scopes = [Some(""), Some(namespace).filter(|namespace| !namespace.is_empty())];
        for scope in scopes.into_iter().flatten().filter_map(|namespace| self.scopes.get(namespace)) {
            let user = std::iter::once(SubjectMatch::User(caller.user.to_owned()));
            // Whoever asks about others names their groups as often as they like.
            let mut named = HashSet::new();
            let groups = caller.groups.iter().filter(|group| named.insert(group.as_str()));
            for who in user.chain(groups.map(|group| SubjectMatch::Group(group.clone()))) {
                for (binding, at) in scope.by_subject.get(&who).into_iter().flat_map(BTreeMap::values) {
                    if !each(binding, *at) {
                        return;
                    }
                }
            }
        }
    }

    /// Whether it takes long to decide what the caller may in a namespace (empty: in the cluster).
    pub fn is_long(&self, caller: AuthorizedCaller<'_>, namespace: &str) -> bool {
        let mut sum = 0;
        self.visit(caller, namespace, |binding, _| {
            sum += 1 + self.role(&binding.role, &binding.namespace).map_or(0, |rules| rules.len());
            sum < LONG
        });
        sum >= LONG
    }

    /// Whether the caller may.
    pub fn decide(&self, caller: AuthorizedCaller<'_>, wanted: &Attributes<'_>) -> AuthorizationDecision {
        let namespace = if wanted.is_resource() { wanted.namespace } else { "" };
        let mut decision = AuthorizationDecision { allowed: false, reason: String::new() };
        let (mut seen, mut faults) = (HashSet::new(), Absent::default());
        self.visit(caller, namespace, |binding, at| {
            let Some(rules) = self.role(&binding.role, &binding.namespace) else {
                faults.add(&binding.role);
                return true;
            };
            // However often a role is bound, it is looked through once.
            if !seen.insert(Arc::as_ptr(rules)) || !rules.iter().any(|rule| rule.allows(wanted)) {
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
        if !decision.allowed {
            decision.reason = match faults.tell().as_slice() {
                [] => String::new(),
                [one] => format!("RBAC: {one}"),
                many => format!("RBAC: [{}]", many.join(", ")),
            };
        }
        decision
    }

    /// The rules of every role that is the caller's in a namespace (empty: in the cluster), each role once however often it
    /// is bound, and the faults met on the way.
    pub fn rules(&self, caller: AuthorizedCaller<'_>, namespace: &str) -> (Vec<Arc<[CompiledRule]>>, Vec<String>) {
        let (mut roles, mut seen, mut faults) = (Vec::new(), HashSet::new(), Absent::default());
        self.visit(caller, namespace, |binding, _| {
            match self.role(&binding.role, &binding.namespace) {
                Some(found) if seen.insert(Arc::as_ptr(found)) => roles.push(Arc::clone(found)),
                Some(_) => {}
                None => faults.add(&binding.role),
            }
            true
        });
        (roles, faults.tell())
    }
}

/// What upstream says of a role that is not there.
pub fn absent(role: &RoleRef) -> String {
    format!("{}.{GROUP} \"{}\" not found", role.kind.to_lowercase(), role.name)
}

#[cfg(test)]
mod tests;
