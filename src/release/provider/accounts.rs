//! Accounts of those who work for a cluster from outside: the agent of each node, and the Helm controller. Each may do what it needs with
//! the one object that is its own, and nothing else.

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::{Api, PostParams};

use crate::api::lcm;
use crate::release::keep::{KeepError, keep};
use crate::release::names;

/// Annotation by which an account has groups beside its own: its tokens could do more than its role says.
const GROUPS: &str = crate::apiserver::auth::accounts::GROUPS;
const RBAC: &str = "rbac.authorization.k8s.io";

/// An account with its rights.
#[derive(Clone, Debug)]
pub struct AgentAccount {
    /// Its name, and that of its role and binding.
    pub name: String,
    /// What it may do.
    pub rules: Vec<PolicyRule>,
}

/// The agent of a machine: reads its LCMMachine and what that needs to become a node, writes its status, and renews its own token.
pub fn agent(machine: &str) -> AgentAccount {
    let name = names::agent(machine);
    let rules = vec![
        rule(lcm::GROUP, "lcmmachines", machine, &["get", "list", "watch"]),
        rule(lcm::GROUP, "lcmmachines/status", machine, &["get", "patch"]),
        rule(lcm::GROUP, "lcmmachines/deployment", machine, &["get"]),
        rule("", "serviceaccounts/token", &name, &["create"]),
    ];
    AgentAccount { name, rules }
}

/// The Helm controller of a cluster: reads its HelmBundle and writes its status.
pub fn helm(cluster: &str) -> AgentAccount {
    let rules = vec![
        rule(lcm::GROUP, "helmbundles", cluster, &["get", "list", "watch"]),
        rule(lcm::GROUP, "helmbundles/status", cluster, &["patch"]),
    ];
    AgentAccount { name: names::helm(cluster), rules }
}

fn rule(group: &str, resource: &str, name: &str, verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: Some(vec![name.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}

/// Has an account be there with its rights and no others: the account as it is stored.
///
/// # Errors
///
/// When a name is somebody else's; what the API says.
pub async fn provide(
    client: &Client,
    namespace: &str,
    account: &AgentAccount,
    owner: &OwnerReference,
) -> Result<ServiceAccount, KeepError> {
    let metadata = || ObjectMeta {
        name: Some(account.name.clone()),
        namespace: Some(namespace.to_owned()),
        ..ObjectMeta::default()
    };
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let wanted = ServiceAccount { metadata: metadata(), ..ServiceAccount::default() };
    let made = keep(&accounts, &wanted, owner, &[]).await?;
    if made.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(GROUPS)) {
        let owner = format!("the {} {} alone: it has the annotation {GROUPS}", owner.kind, owner.name);
        return Err(KeepError::Taken { kind: "ServiceAccount".into(), name: account.name.clone(), owner });
    }
    let roles = Api::<Role>::namespaced(client.clone(), namespace);
    let role = Role { metadata: metadata(), rules: Some(account.rules.clone()) };
    keep(&roles, &role, owner, &["rules"]).await?;
    let bindings = Api::<RoleBinding>::namespaced(client.clone(), namespace);
    let binding = RoleBinding {
        metadata: metadata(),
        role_ref: RoleRef { api_group: RBAC.into(), kind: "Role".into(), name: account.name.clone() },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: account.name.clone(),
            namespace: Some(namespace.to_owned()),
            ..Subject::default()
        }]),
    };
    keep(&bindings, &binding, owner, &["roleRef", "subjects"]).await?;
    Ok(made)
}

/// A token of an account, and when it ends.
pub struct Token {
    /// What shows who one is.
    pub text: String,
    /// When it ends, in RFC 3339.
    pub expires: jiff::Timestamp,
}

/// Makes a token of an account, good for so many seconds. None is made where the API gives none, which it does not say why.
///
/// # Errors
///
/// What the API says.
pub async fn token(
    client: &Client,
    namespace: &str,
    account: &str,
    seconds: i64,
) -> Result<Option<Token>, kube::Error> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    let spec = TokenRequestSpec { expiration_seconds: Some(seconds), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let made = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    Ok(made.status.map(|status| Token { text: status.token, expires: status.expiration_timestamp.0 }))
}
