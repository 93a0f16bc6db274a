//! Prevention of privilege escalation: checks of changes to roles, bindings and the groups of an account.
//!
//! A user who writes a role must hold all that is in it, or be allowed to `escalate`; one who writes a binding must hold all
//! that its role gives, or be allowed to `bind` it. Members of `system:masters` need neither.

use std::borrow::Borrow;

use serde_json::Value;

use super::accounts;
use super::authorizer::Authorizer;
use super::compiled::CompiledRule;
use super::identity::UserIdentity;
use super::index::{self, GROUP};
use super::rules::{self, Attributes, PolicyRule};
use crate::apiserver::answers::status::{ApiError, shorten};
use crate::apiserver::kinds::resource::ServedResource;

/// Letters of a refusal that name what is missing.
const MISSING_MAX: usize = 128 * 1024;

/// Refuses a change by which the caller would gain or give more than it has.
pub fn check(
    authorizer: &Authorizer,
    identity: &UserIdentity,
    resource: &ServedResource,
    new: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let is_account = &*resource.storage == accounts::STORAGE;
    if (resource.group != GROUP && !is_account) || identity.is_superuser() {
        return Ok(());
    }
    // The garbage collector's fields give nothing.
    if old.is_some_and(|old| same_but_metadata(new, old)) && !is_account {
        return Ok(());
    }
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    let namespace = new["metadata"]["namespace"].as_str().unwrap_or_default();
    let may = |wanted: Attributes<'_>| authorizer.decide(identity, &wanted).allowed;
    if is_account {
        let before = old.map(|old| accounts::given_groups(&old["metadata"])).unwrap_or_default();
        let mut given = accounts::given_groups(&new["metadata"]);
        given.retain(|group| !before.contains(group));
        return check_groups(authorizer, identity, resource, name, &given);
    }
    if new.get("roleRef").is_some() {
        let role = index::role_of(new);
        let plural = if role.kind == "ClusterRole" { "clusterroles" } else { "roles" };
        let bind = Attributes {
            verb: "bind",
            group: GROUP,
            resource: plural,
            namespace,
            name: &role.name,
            ..Attributes::default()
        };
        if may(bind) {
            return Ok(());
        }
        let index = authorizer.index();
        let Some(asked) = index.role(&role, namespace) else {
            // Upstream, too, calls it one of the resource that is written.
            return Err(ApiError::not_found(resource, &role.name));
        };
        return confirm(&index, identity, namespace, asked)
            .map_err(|reason| ApiError::forbidden(resource, name, reason));
    }
    let escalate = Attributes {
        verb: "escalate",
        group: GROUP,
        resource: &resource.plural,
        namespace,
        name: if old.is_some() { name } else { "" },
        ..Attributes::default()
    };
    if may(escalate) {
        return Ok(());
    }
    let index = authorizer.index();
    let aggregates = |role: &Value| role.get("aggregationRule").is_some_and(|rule| !rule.is_null());
    if aggregates(new) || old.is_some_and(aggregates) {
        confirm(&index, identity, "", &everything()).map_err(|_| {
            ApiError::forbidden(resource, name, "must have cluster-admin privileges to use the aggregationRule")
        })?;
    }
    confirm(&index, identity, namespace, &index::rules_of(new))
        .map_err(|reason| ApiError::forbidden(resource, name, reason))
}

/// Refuses to give groups that the caller may not impersonate.
pub fn check_groups(
    authorizer: &Authorizer,
    identity: &UserIdentity,
    resource: &ServedResource,
    name: &str,
    groups: &[String],
) -> Result<(), ApiError> {
    for group in groups {
        let wanted = Attributes { verb: "impersonate", resource: "groups", name: group, ..Attributes::default() };
        if !identity.is_superuser() && !authorizer.decide(identity, &wanted).allowed {
            let user = &identity.user;
            let detail =
                format!("user {user:?} may not impersonate group {group:?}, so it cannot be given to an account");
            return Err(ApiError::forbidden(resource, name, detail));
        }
    }
    Ok(())
}

/// What `cluster-admin` has.
pub fn everything() -> Vec<PolicyRule> {
    let all = || vec!["*".to_owned()];
    vec![
        PolicyRule { verbs: all(), groups: all(), resources: all(), ..PolicyRule::default() },
        PolicyRule { verbs: all(), paths: all(), ..PolicyRule::default() },
    ]
}

fn same_but_metadata(new: &Value, old: &Value) -> bool {
    let rest = |value: &Value| {
        let mut map = value.as_object().cloned().unwrap_or_default();
        map.remove("metadata");
        map
    };
    // Labels decide what is aggregated where.
    rest(new) == rest(old) && new["metadata"]["labels"] == old["metadata"]["labels"]
}

/// Whether the caller holds all of these rules; otherwise what it lacks, in upstream's words.
fn confirm(
    index: &index::RbacIndex,
    identity: &UserIdentity,
    namespace: &str,
    asked: &[impl Borrow<PolicyRule>],
) -> Result<(), String> {
    let (roles, faults) = index.rules(identity.caller(), namespace);
    let owned: Vec<&CompiledRule> = roles.iter().flat_map(|rules| rules.iter()).collect();
    let missing = rules::missing(&owned, asked).ok_or("there are too many rules to compare")?;
    if missing.is_empty() {
        return Ok(());
    }
    let mut message = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        identity.user,
        rules::quoted(&identity.groups),
        shorten(&missing.join("\n"), MISSING_MAX)
    );
    if !faults.is_empty() {
        message += &format!("; resolution errors: [{}]", faults.join(", "));
    }
    Err(message)
}
