//! Roles by the names that Mirantis Container Cloud has for them, asked with real tokens of accounts that have these groups.

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::site::{Site, cluster, path};
use crate::api::iam::Scope;
use crate::api::machine_api::Cluster;

const KAAS: &str = "kaas.mirantis.com/v1alpha1";
const CLUSTERS: &str = "cluster.k8s.io/v1alpha1";
const METAL3: &str = "metal3.io/v1alpha1";

impl Site {
    /// A token of somebody who has this group, whom an administrator gave it.
    async fn member(&self, name: &str, group: &str) -> String {
        let groups = json!({"annotations": {"slipway.dev/groups": group}, "name": name});
        self.create::<ServiceAccount>(json!({ "metadata": groups })).await;
        let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
        let made = self.api::<ServiceAccount>().create_token_request(name, &PostParams::default(), &request).await;
        made.unwrap().status.unwrap().token
    }
}

fn credential(name: &str) -> Value {
    json!({"apiVersion": KAAS, "kind": "BareMetalHostCredential", "metadata": {"name": name},
        "spec": {"username": "root", "password": {"value": "s3cret"}}})
}

fn inventory(name: &str) -> Value {
    json!({"apiVersion": KAAS, "kind": "BareMetalHostInventory", "metadata": {"name": name}, "spec": {"online": false}})
}

fn key(name: &str) -> Value {
    json!({"apiVersion": KAAS, "kind": "PublicKey", "metadata": {"name": name}, "spec": {"publicKey": "ssh-ed25519 AAAA x"}})
}

fn host(name: &str) -> Value {
    json!({"apiVersion": METAL3, "kind": "BareMetalHost", "metadata": {"name": name}, "spec": {"online": false}})
}

/// Makes the body of a request, by the name of who sends it.
type Body<'b> = &'b dyn Fn(&str) -> Value;

#[tokio::test]
async fn each_group_may_what_its_role_says_and_nothing_else() {
    let site = Site::new().await;
    site.releases().await;
    site.create::<Secret>(json!({"metadata": {"name": "edge-kubeconfig"}, "stringData": {"value": "k"}})).await;
    site.create::<Secret>(json!({"metadata": {"name": "other-kubeconfig"}, "stringData": {"value": "k"}})).await;
    let roles = ["user", "member", "operator", "bm-pool-operator"];
    let mut tokens = Vec::new();
    for role in roles {
        tokens.push((role, site.member(role, &format!("m:kaas:proj@{role}")).await));
    }
    tokens.push(("cluster-admin", site.member("admin", "m:k8s:proj:edge@cluster-admin").await));
    let other = site.member("other", "m:kaas:elsewhere@operator").await;
    let clusters = path(CLUSTERS, "clusters", "");
    for (_, token) in &tokens {
        assert_eq!(site.ask(token, "GET", &clusters, None).await.0, 403, "without a cluster nobody has a right");
    }
    let edge: Cluster = site.create(cluster("edge", json!({}))).await;
    site.says("edge", "Provider", "Provided", "").await;
    let scope = site.there("edge", "is made", |_: &Scope| true).await;
    assert_eq!(scope.spec.scope_fqn, "m:k8s:proj:edge");
    assert!(scope.spec.roles.contains(&"m:kaas:proj@bm-pool-operator".to_owned()), "{:?}", scope.spec.roles);
    assert_eq!(scope.owner_references()[0].uid, edge.uid().unwrap());

    let keys = path(KAAS, "publickeys", "");
    let histories = path(KAAS, "clusterdeploymentstatuses", "");
    let inventories = path(KAAS, "baremetalhostinventories", "");
    let credentials = path(KAAS, "baremetalhostcredentials", "");
    let secret = |name: &str| path("", "secrets", &format!("/{name}"));
    let bindings = path("rbac.authorization.k8s.io/v1", "rolebindings", "");
    let all = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "x"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    let forged =
        json!({"apiVersion": "iam.mirantis.com/v1alpha1", "kind": "Scope", "metadata": {"name": "x"}, "spec": {}});
    let lcm = path("lcm.mirantis.com/v1alpha1", "lcmclusters", "/edge");
    let account = path("", "serviceaccounts", "/helm-edge/token");
    let far = format!("/apis/{CLUSTERS}/namespaces/default/clusters");
    // Of user, member, operator, bm-pool-operator and cluster-admin, in this order.
    let rows: [(&str, &str, Option<Body<'_>>, &str); 7] = [
        ("GET", &clusters, None, "yyyyn"),
        ("GET", &histories, None, "yyyyn"),
        ("POST", &keys, Some(&key), "nyynn"),
        ("POST", &inventories, Some(&inventory), "nnyyn"),
        ("POST", &credentials, Some(&credential), "nnyyn"),
        ("GET", &far, None, "nnnnn"),
        ("GET", &lcm, None, "nnnnn"),
    ];
    for (method, path, body, who) in rows {
        for ((role, token), wanted) in tokens.iter().zip(who.chars()) {
            let body = body.map(|body| ("application/json", body(role)));
            let (code, answer) = site.ask(token, method, path, body).await;
            assert_eq!(code < 400, wanted == 'y', "{role}: {method} {path}: {answer}");
            assert!(code < 400 || code == 403, "{role}: {method} {path}: {answer}");
        }
        assert_eq!(site.ask(&other, method, path, body.map(|body| ("application/json", body("o")))).await.0, 403);
    }
    let one = path(CLUSTERS, "clusters", "/edge");
    for (role, token) in &tokens {
        let may = |wanted: &str| *role == wanted;
        let get = async |path: &str| site.ask(token, "GET", path, None).await.0;
        let post =
            async |path: &str, body: Value| site.ask(token, "POST", path, Some(("application/json", body))).await.0;
        assert_eq!(get(&one).await, 200, "{role}");
        assert_eq!(get(&secret("edge-kubeconfig")).await == 200, may("cluster-admin"), "{role}");
        for name in ["other-kubeconfig", "operator-bmhc-passwords"] {
            assert_eq!(get(&secret(name)).await, 403, "{role} {name}");
        }
        assert_eq!(get(&path("", "secrets", "")).await, 403, "{role}");
        assert_eq!(post(&path(METAL3, "baremetalhosts", ""), host(role)).await, 403, "{role}");
        assert_eq!(post(&bindings, all.clone()).await, 403, "{role}");
        assert!(matches!(post(&path("iam.mirantis.com/v1alpha1", "scopes", ""), forged.clone()).await, 403 | 405));
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        assert_eq!(post(&account, request).await, 403, "{role}");
    }
    // What a member makes of the machines' keys he may take away again, and an operator cannot name a Secret that he may not read.
    let (_, operator) = &tokens[2];
    let mut prize = credential("prize");
    prize["spec"]["password"] = json!({"secret": {"name": "other-kubeconfig", "key": "value"}});
    let (code, said) = site.ask(operator, "POST", &credentials, Some(("application/json", prize))).await;
    assert!(code == 403 && said.to_string().contains("may not read"), "{said}");

    // With the Cluster its rights go.
    site.delete::<Cluster>("edge").await;
    site.gone::<RoleBinding>("iam-operator-edge").await;
    site.gone::<Scope>("edge").await;
    assert_eq!(site.ask(operator, "GET", &clusters, None).await.0, 403);
}

#[tokio::test]
async fn rights_of_a_role_are_put_right_and_nobody_elses_are_taken() {
    let site = Site::new().await;
    site.releases().await;
    let wide = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    site.create::<Role>(json!({"metadata": {"name": "iam-user-edge"}, "rules": wide})).await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.says("edge", "Provider", "NameTaken", "the Role \"iam-user-edge\" is not of the Cluster edge").await;
    assert!(site.get::<RoleBinding>("iam-user-edge").await.is_none(), "nobody is bound to what somebody else wrote");
    site.delete::<Role>("iam-user-edge").await;
    site.change::<Cluster>("edge", json!({"metadata": {"labels": {"again": "1"}}})).await;
    site.says("edge", "Provider", "Provided", "").await;
    let api = site.api::<Role>();
    let patch = kube::api::Patch::Merge(json!({ "rules": wide }));
    api.patch("iam-member-edge", &kube::api::PatchParams::default(), &patch).await.unwrap();
    site.there("iam-member-edge", "is put right", |role: &Role| !json!(role.rules).to_string().contains('*')).await;
    for name in ["iam-member-edge", "iam-cluster-admin-edge"] {
        let uid = site.get::<RoleBinding>(name).await.unwrap().uid();
        site.delete::<RoleBinding>(name).await;
        site.there(name, "is there again", |binding: &RoleBinding| binding.uid() != uid).await;
    }
    let uid = site.get::<Scope>("edge").await.unwrap().uid();
    site.delete::<Scope>("edge").await;
    site.there("edge", "is there again", |scope: &Scope| scope.uid() != uid).await;
}

#[tokio::test]
async fn no_two_clusters_have_rights_of_one_name() {
    let site = Site::new().await;
    site.releases().await;
    for name in ["edge", "edge-bm-pool", "operator"] {
        site.create::<Cluster>(cluster(name, json!({}))).await;
        site.says(name, "Provider", "Provided", "").await;
    }
}

#[tokio::test]
async fn whoever_may_edit_gives_himself_no_group() {
    let site = Site::new().await;
    site.releases().await;
    site.create::<RoleBinding>(json!({
        "metadata": {"name": "eve"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": "eve", "namespace": "proj"}],
    }))
    .await;
    site.create::<ServiceAccount>(json!({"metadata": {"name": "eve"}})).await;
    let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
    let made = site.api::<ServiceAccount>().create_token_request("eve", &PostParams::default(), &request).await;
    let eve = made.unwrap().status.unwrap().token;
    let body = |object: Value| Some(("application/json", object));
    // A cluster is hers to make, and a group is not hers to have.
    let mut own = cluster("edge", json!({}));
    own["apiVersion"] = CLUSTERS.into();
    own["kind"] = "Cluster".into();
    assert_eq!(site.ask(&eve, "POST", &path(CLUSTERS, "clusters", ""), body(own)).await.0, 201);
    site.says("edge", "Provider", "Provided", "").await;
    for group in
        ["m:kaas:proj@operator", "m:k8s:proj:edge@cluster-admin", "m:kaas@global-admin", "m:kaas@management-admin"]
    {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "puppet", "annotations": {"slipway.dev/groups": group}}});
        let (code, said) = site.ask(&eve, "POST", &path("", "serviceaccounts", ""), body(account)).await;
        assert_eq!(code, 403, "{group}: {said}");
    }
    for (method, path) in [
        ("PATCH", path("rbac.authorization.k8s.io/v1", "rolebindings", "/iam-user-edge")),
        ("PATCH", path("rbac.authorization.k8s.io/v1", "roles", "/iam-user-edge")),
        ("DELETE", path("rbac.authorization.k8s.io/v1", "rolebindings", "/iam-user-edge")),
    ] {
        let change = Some(("application/merge-patch+json", json!({"metadata": {"labels": {"a": "b"}}})));
        assert_eq!(site.ask(&eve, method, &path, change).await.0, 403, "{path}");
    }
    let scope = path("iam.mirantis.com/v1alpha1", "scopes", "/edge");
    let change = Some(("application/merge-patch+json", json!({"spec": {"roles": []}})));
    assert!(matches!(site.ask(&eve, "PATCH", &scope, change).await.0, 403 | 405));
}

#[tokio::test]
async fn groups_of_the_whole_appliance_are_bound_from_the_start() {
    let site = Site::new().await;
    let global = site.member("global", "m:kaas@global-admin").await;
    let management = site.member("management", "m:kaas@management-admin").await;
    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let release = |name: &str| json!({"apiVersion": KAAS, "kind": "ClusterRelease", "metadata": {"name": name}, "spec": {"version": "1.0.0"}});
    let releases = format!("/apis/{KAAS}/clusterreleases");
    for (token, path, object, wanted) in [
        (&global, "/api/v1/namespaces", namespace("a"), 201),
        (&management, "/api/v1/namespaces", namespace("b"), 403),
        (&global, releases.as_str(), release("a"), 403),
        (&management, releases.as_str(), release("b"), 201),
    ] {
        let (code, said) = site.ask(token, "POST", path, Some(("application/json", object))).await;
        assert_eq!(code, wanted, "{path}: {said}");
    }
    for token in [&global, &management] {
        for path in [path("", "secrets", ""), path(CLUSTERS, "clusters", ""), "/api/v1/secrets".to_owned()] {
            assert_eq!(site.ask(token, "GET", &path, None).await.0, 403, "{path}");
        }
    }
}
