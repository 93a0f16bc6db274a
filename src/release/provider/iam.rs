//! Who may do what with a cluster and in its namespace, by the names that Mirantis Container Cloud has for it: groups
//! `m:APP[:NAMESPACE[:CLUSTER]]@ROLE`. There is no Keycloak: groups are those of certificates and accounts, which administrators give.
//!
//! For each Cluster a Role and a RoleBinding are made for each group, which belong to the Cluster and go with it, and a Scope, which says so.
//! What a group may is a table here, and written anew at each look: no one who makes a Cluster chooses any of it, for neither `:` nor `@`
//! can be in the name of a Cluster or of a namespace. Groups without a namespace are bound when the API server starts
//! (`apiserver::auth::defaults`).

use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::Api;

use crate::api::iam::{self, Scope, ScopeSpec};
use crate::api::{kaas, lcm, machine_api};
use crate::release::keep::{KeepError, keep};
use crate::release::names;

const RBAC: &str = "rbac.authorization.k8s.io";
const METAL3: &str = "metal3.io";
const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];

/// A group and what it may do.
#[derive(Clone, Debug)]
pub struct ScopeRole {
    /// The role, as its name ends.
    pub role: &'static str,
    /// The group.
    pub group: String,
    /// What it may do in the namespace.
    pub rules: Vec<PolicyRule>,
}

/// Every group that has rights in a cluster or in its namespace.
pub fn roles(namespace: &str, cluster: &str) -> Vec<ScopeRole> {
    let of_project = |role: &'static str, more: Vec<PolicyRule>| ScopeRole {
        role,
        group: format!("m:kaas:{namespace}@{role}"),
        rules: [seen(), more].concat(),
    };
    let clusters = || {
        vec![
            rule(machine_api::GROUP, &["clusters", "machines"], WRITE),
            rule(kaas::GROUP, &["publickeys", "updategroups", "gracefulrebootrequests"], WRITE),
            // The appliance makes them; whoever may change the Cluster says which of its steps begin.
            rule(kaas::GROUP, &["clusterupdateplans"], &["patch", "update"]),
        ]
    };
    // Not BareMetalHosts themselves: one may name Secrets that its machine then gets.
    let hosts = || vec![rule(kaas::GROUP, &["baremetalhostcredentials", "baremetalhostinventories"], WRITE)];
    let of_cluster = vec![
        named(machine_api::GROUP, "clusters", cluster),
        named(lcm::GROUP, "helmbundles", cluster),
        named(iam::GROUP, "scopes", cluster),
        named("", "secrets", &names::kubeconfig(cluster)),
    ];
    vec![
        of_project("user", Vec::new()),
        of_project("member", clusters()),
        of_project("operator", [clusters(), hosts()].concat()),
        of_project("bm-pool-operator", hosts()),
        ScopeRole {
            role: "cluster-admin",
            group: format!("m:k8s:{namespace}:{cluster}@cluster-admin"),
            rules: of_cluster,
        },
    ]
}

/// What everybody sees who has any right in a namespace. Nothing of it holds a secret.
fn seen() -> Vec<PolicyRule> {
    vec![
        rule("", &["events"], READ),
        rule(machine_api::GROUP, &["clusters", "clusters/status", "machines", "machines/status"], READ),
        rule(kaas::GROUP, &["baremetalhostcredentials", "baremetalhostinventories", "publickeys"], READ),
        rule(kaas::GROUP, &["updategroups", "clusterupdateplans", "gracefulrebootrequests"], READ),
        rule(kaas::GROUP, &["clusterdeploymentstatuses", "clusterupgradestatuses"], READ),
        rule(kaas::GROUP, &["machinedeploymentstatuses", "machineupgradestatuses"], READ),
        rule(METAL3, &["baremetalhosts", "dataimages", "hardwaredata"], READ),
        rule(METAL3, &["baremetalhosts/log"], &["get"]),
        rule(lcm::GROUP, &["lcmclusterstates"], READ),
        rule(iam::GROUP, &["scopes"], READ),
    ]
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

fn named(group: &str, resource: &str, name: &str) -> PolicyRule {
    PolicyRule { resource_names: Some(vec![name.to_owned()]), ..rule(group, &[resource], &["get"]) }
}

/// Has all of it be there for a cluster.
///
/// # Errors
///
/// When a name is somebody else's; what the API says.
pub async fn provide(client: &Client, namespace: &str, cluster: &str, owner: &OwnerReference) -> Result<(), KeepError> {
    let all = roles(namespace, cluster);
    let (made, bindings) =
        (Api::<Role>::namespaced(client.clone(), namespace), Api::<RoleBinding>::namespaced(client.clone(), namespace));
    for ScopeRole { role, group, rules } in &all {
        let name = names::iam(cluster, role);
        let metadata =
            || ObjectMeta { name: Some(name.clone()), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() };
        // The binding comes last: nobody may do anything by rules that somebody else left there.
        keep(&made, &Role { metadata: metadata(), rules: Some(rules.clone()) }, owner, &["rules"]).await?;
        let binding = RoleBinding {
            metadata: metadata(),
            role_ref: RoleRef { api_group: RBAC.into(), kind: "Role".into(), name: name.clone() },
            subjects: Some(vec![Subject {
                api_group: Some(RBAC.into()),
                kind: "Group".into(),
                name: group.clone(),
                ..Subject::default()
            }]),
        };
        keep(&bindings, &binding, owner, &["roleRef", "subjects"]).await?;
    }
    let scope = ScopeSpec {
        scope_fqn: format!("m:k8s:{namespace}:{cluster}"),
        roles: all.into_iter().map(|role| role.group).collect(),
        oidc_required: false,
    };
    let mut scope = Scope::new(cluster, scope);
    scope.metadata.namespace = Some(namespace.to_owned());
    keep(&Api::<Scope>::namespaced(client.clone(), namespace), &scope, owner, &["spec"]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(role: &str, verb: &str, group: &str, resource: &str, name: &str) -> bool {
        let all = roles("proj", "edge");
        let rules = &all.iter().find(|one| one.role == role).unwrap().rules;
        let has = |list: &Option<Vec<String>>, wanted: &str| list.iter().flatten().any(|one| one == wanted);
        rules.iter().any(|rule| {
            has(&rule.api_groups, group)
                && has(&rule.resources, resource)
                && rule.verbs.iter().any(|one| one == verb)
                && (rule.resource_names.is_none() || has(&rule.resource_names, name))
        })
    }

    #[test]
    fn each_role_may_what_its_name_says_and_nothing_else() {
        let (kaas, cluster) = ("kaas.mirantis.com", "cluster.k8s.io");
        // Of user, member, operator, bm-pool-operator and cluster-admin.
        for (verb, group, resource, name, who) in [
            ("list", cluster, "machines", "", "umob-"),
            ("create", cluster, "clusters", "", "-mo--"),
            ("delete", cluster, "machines", "", "-mo--"),
            ("patch", kaas, "publickeys", "", "-mo--"),
            ("create", kaas, "baremetalhostinventories", "", "--ob-"),
            ("update", kaas, "baremetalhostcredentials", "", "--ob-"),
            ("delete", METAL3, "baremetalhosts", "", "-----"),
            ("watch", METAL3, "baremetalhosts", "", "umob-"),
            ("get", cluster, "clusters", "edge", "umobc"),
            ("get", cluster, "clusters", "other", "umob-"),
            ("get", "", "secrets", "edge-kubeconfig", "----c"),
            ("get", "", "secrets", "other-kubeconfig", "-----"),
            ("get", "", "secrets", "edge-bmhi-bmc", "-----"),
            ("list", "", "secrets", "", "-----"),
            ("create", "", "secrets", "", "-----"),
            ("get", "lcm.mirantis.com", "lcmmachines", "m", "-----"),
            ("get", "lcm.mirantis.com", "helmbundles", "edge", "----c"),
            ("create", "", "serviceaccounts/token", "lcm-m", "-----"),
            ("create", RBAC, "rolebindings", "", "-----"),
            ("create", "iam.mirantis.com", "scopes", "", "-----"),
            ("impersonate", "", "groups", "", "-----"),
        ] {
            for (role, letter) in
                ["user", "member", "operator", "bm-pool-operator", "cluster-admin"].iter().zip(who.chars())
            {
                assert_eq!(may(role, verb, group, resource, name), letter != '-', "{role}: {verb} {resource} {name}");
            }
        }
    }

    #[test]
    fn no_rule_is_for_everything() {
        for role in roles("proj", "edge") {
            assert!(role.group.starts_with("m:") && role.group.contains("proj"), "{}", role.group);
            for rule in role.rules {
                let words = [rule.api_groups, rule.resources, Some(rule.verbs)];
                assert!(!words.iter().flatten().flatten().any(|word| word.contains('*')), "{}", role.role);
            }
        }
    }
}
