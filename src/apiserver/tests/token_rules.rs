//! What a token was made with is all that it ever has: groups that its account gets later are not for it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::access_rules::{binding, named, role, rule, user};
use super::*;

const ACCOUNTS: &str = "/api/v1/namespaces/rack/serviceaccounts";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/rack/rolebindings";
const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const CLUSTER_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const ALL_SECRETS: &str = "/api/v1/secrets";
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

fn account(name: &str, groups: &str) -> Value {
    let annotations = if groups.is_empty() { json!({}) } else { json!({ auth::accounts::GROUPS: groups }) };
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "annotations": annotations}})
}

impl Rig {
    /// A group whose members read every Secret, and mallory, who has `edit` in one namespace.
    async fn with_keepers() -> Self {
        let rig = Self::new().await;
        rig.call("POST", SECRETS, &secret("prize", &json!({"password": "x"}))).await.expect(201);
        let all = role("ClusterRole", "keepers", &json!([rule(&["list"], "", "secrets")]));
        rig.call("POST", CLUSTER_ROLES, &all).await.expect(201);
        let keepers = binding("ClusterRoleBinding", "keepers", "ClusterRole/keepers", &named("Group", "keepers"));
        rig.call("POST", CLUSTER_BINDINGS, &keepers).await.expect(201);
        let edit = binding("RoleBinding", "mallory", "ClusterRole/edit", &named("User", "mallory"));
        rig.call("POST", BINDINGS, &edit).await.expect(201);
        rig
    }

    async fn mallory(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.as_user(user("mallory", &[]), method, path, body).await
    }

    async fn groups(&self, token: &str) -> Vec<String> {
        let who = self.with_token(token, "POST", WHO_AM_I, &json!({})).await.expect(201);
        serde_json::from_value(who["status"]["userInfo"]["groups"].clone()).unwrap()
    }

    async fn lists_all_secrets(&self, token: &str) -> bool {
        self.with_token(token, "GET", ALL_SECRETS, &Value::Null).await.code == 200
    }
}

#[tokio::test]
async fn groups_that_an_account_gets_later_do_not_reach_its_tokens() {
    let rig = Rig::with_keepers().await;
    rig.mallory("POST", ACCOUNTS, &account("before", "")).await.expect(201);
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let at = format!("{ACCOUNTS}/before/token");
    let made = rig.mallory("POST", &at, &request).await.expect(201);
    let old = made["status"]["token"].as_str().unwrap().to_owned();
    assert!(!rig.lists_all_secrets(&old).await);

    let annotate = async |groups: Value| {
        let patch = json!({"metadata": {"annotations": {auth::accounts::GROUPS: groups}}});
        rig.patch(&path(ACCOUNTS, "before"), MERGE, &patch).await.expect(200);
    };
    annotate(json!("keepers, ops")).await;
    assert!(!rig.lists_all_secrets(&old).await, "the token was made before the account had the group");
    assert!(!rig.groups(&old).await.contains(&"keepers".to_owned()));
    rig.mallory("POST", &at, &request).await.expect(403);

    // A token made now has the groups, for as long as the account has them.
    let new = rig.token("before", &json!({})).await;
    assert!(rig.lists_all_secrets(&new).await);
    assert!(rig.groups(&new).await.starts_with(&[
        "system:serviceaccounts".to_owned(),
        "system:serviceaccounts:rack".to_owned(),
        "keepers".to_owned(),
        "ops".to_owned()
    ]));
    annotate(json!("ops,other")).await;
    assert!(!rig.lists_all_secrets(&new).await);
    let groups = rig.groups(&new).await;
    assert!(groups.contains(&"ops".to_owned()) && !groups.contains(&"other".to_owned()), "{groups:?}");
    annotate(Value::Null).await;
    assert!(!rig.groups(&new).await.contains(&"ops".to_owned()));
    // To review a token says no other thing than to use it.
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": old}});
    annotate(json!("keepers")).await;
    let status = rig.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", &review).await.expect(201);
    assert!(!status["status"]["user"]["groups"].to_string().contains("keepers"), "{status}");
}

#[tokio::test]
async fn a_secret_that_waits_for_its_account_gets_none_of_its_groups() {
    let rig = Rig::with_keepers().await;
    let running = tokio::spawn({
        let api = rig.api.clone();
        async move { api.run().await }
    });
    let mut waiting = secret("waiting", &json!({}));
    waiting["type"] = auth::accounts::SECRET_TYPE.into();
    waiting["metadata"]["annotations"] = json!({auth::accounts::SECRET_ACCOUNT: "later"});
    rig.mallory("POST", SECRETS, &waiting).await.expect(201);
    // The administrator makes the account, with a group.
    rig.call("POST", ACCOUNTS, &account("later", "keepers")).await.expect(201);
    let token = async |name: &str| {
        let found = rig.mallory("GET", &path(SECRETS, name), &Value::Null).await;
        let token = STANDARD.decode(found.json()["data"]["token"].as_str()?).ok()?;
        String::from_utf8(token).ok()
    };
    eventually(async || token("waiting").await.is_some()).await;
    let kept = token("waiting").await.unwrap();
    assert!(!rig.lists_all_secrets(&kept).await, "nobody who may give the group asked for this token");
    assert!(!rig.groups(&kept).await.contains(&"keepers".to_owned()));

    // An account made anew is another one: the token ends, and its Secret with it.
    rig.call("DELETE", &path(ACCOUNTS, "later"), &json!({})).await.expect(200);
    rig.call("POST", ACCOUNTS, &account("later", "")).await.expect(201);
    assert_eq!(rig.with_token(&kept, "POST", WHO_AM_I, &json!({})).await.code, 401);
    eventually(async || token("waiting").await.as_deref() != Some(&kept)).await;
    rig.api.shutdown().cancel();
    tokio::time::timeout(DEADLINE, running).await.unwrap().unwrap();
}
