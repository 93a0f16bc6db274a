//! Tests of RBAC through the router.

use futures::StreamExt;

use super::*;

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/rack/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/rack/rolebindings";
const CLUSTER_ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const CLUSTER_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const ACCOUNTS: &str = "/api/v1/namespaces/rack/serviceaccounts";
const CAN_I: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

pub(super) fn user(name: &str, groups: &[&str]) -> Option<UserIdentity> {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    Some(UserIdentity::new(name, groups, auth::Proof::Certificate))
}

pub(super) fn role(kind: &str, name: &str, rules: &Value) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "rules": rules})
}

pub(super) fn rule(verbs: &[&str], group: &str, resource: &str) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": [resource]})
}

pub(super) fn binding(kind: &str, name: &str, role: &str, subject: &Value) -> Value {
    let (role_kind, role) = role.split_once('/').unwrap();
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role}, "subjects": [subject],
    })
}

pub(super) fn named(kind: &str, name: &str) -> Value {
    json!({"kind": kind, "name": name})
}

impl Rig {
    pub(super) async fn as_user(
        &self,
        identity: Option<UserIdentity>,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(identity, http::Request::builder().method(method).uri(path), body).await
    }

    pub(super) async fn with_token(&self, token: &str, method: &str, path: &str, body: &Value) -> Answer {
        let request = http::Request::builder().method(method).uri(path);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(None, request.header("authorization", format!("Bearer {token}")), body).await
    }

    pub(super) async fn token(&self, account: &str, spec: &Value) -> String {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let answer = self.call("POST", &format!("{ACCOUNTS}/{account}/token"), &request).await.expect(201);
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    pub(super) async fn account(&self, name: &str) {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        self.call("POST", ACCOUNTS, &account).await.expect(201);
    }
}

#[tokio::test]
async fn a_binding_counts_from_the_next_request_on_and_so_does_its_end() {
    let rig = Rig::new().await;
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let eve = || user("eve", &["readers"]);
    let list = async || rig.as_user(eve(), "GET", HOSTS, &Value::Null).await;
    let refused = list().await.expect(403);
    assert_eq!(
        refused["message"],
        "baremetalhosts.metal3.io is forbidden: User \"eve\" cannot list resource \"baremetalhosts\" in API group \
         \"metal3.io\" in the namespace \"rack\""
    );
    assert_eq!(refused["details"], json!({"group": "metal3.io", "kind": "baremetalhosts"}));
    rig.call("POST", BINDINGS, &binding("RoleBinding", "see", "ClusterRole/view", &named("Group", "readers")))
        .await
        .expect(201);
    assert_eq!(list().await.expect(200)["items"].as_array().unwrap().len(), 1);
    rig.as_user(eve(), "GET", "/apis/metal3.io/v1alpha1/baremetalhosts", &Value::Null).await.expect(403);
    rig.as_user(eve(), "GET", SECRETS, &Value::Null).await.expect(403);
    rig.as_user(eve(), "DELETE", &path(HOSTS, "a"), &Value::Null).await.expect(403);
    rig.as_user(eve(), "GET", "/api/v1/namespaces/rack", &Value::Null).await.expect(200);
    rig.as_user(eve(), "GET", "/api/v1/namespaces/default", &Value::Null).await.expect(403);
    rig.as_user(eve(), "GET", "/apis", &Value::Null).await.expect(200);
    rig.as_user(eve(), "GET", "/metrics", &Value::Null).await.expect(403);
    rig.call("DELETE", &path(BINDINGS, "see"), &json!({})).await.expect(200);
    list().await.expect(403);

    // A role that is not there allows nothing, and says so.
    rig.call("POST", BINDINGS, &binding("RoleBinding", "odd", "Role/none", &named("User", "eve"))).await.expect(201);
    let refused = list().await.expect(403)["message"].as_str().unwrap().to_owned();
    assert!(refused.ends_with(": RBAC: role.rbac.authorization.k8s.io \"none\" not found"), "{refused}");
}

#[tokio::test]
async fn nobody_grants_what_they_do_not_have() {
    let rig = Rig::new().await;
    let ann = || user("ann", &[]);
    rig.call("POST", BINDINGS, &binding("RoleBinding", "ann", "ClusterRole/admin", &named("User", "ann")))
        .await
        .expect(201);
    let as_ann = async |method: &str, path: &str, body: &Value| rig.as_user(ann(), method, path, body).await;
    as_ann("POST", ROLES, &role("Role", "good", &json!([rule(&["get"], "", "secrets")]))).await.expect(201);
    let refused = as_ann("POST", ROLES, &role("Role", "bad", &json!([rule(&["get", "escalate"], "x.y", "z")]))).await;
    assert_eq!(
        refused.expect(403)["message"],
        "roles.rbac.authorization.k8s.io \"bad\" is forbidden: user \"ann\" (groups=[\"system:authenticated\"]) is \
         attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"x.y\"], Resources:[\"z\"], \
         Verbs:[\"get\" \"escalate\"]}"
    );
    let widened = role("Role", "good", &json!([rule(&["*"], "*", "*")]));
    as_ann("PUT", &path(ROLES, "good"), &widened).await.expect(403);
    as_ann("POST", BINDINGS, &binding("RoleBinding", "b", "Role/good", &named("User", "bob"))).await.expect(201);
    let all = binding("RoleBinding", "c", "ClusterRole/cluster-admin", &named("User", "ann"));
    as_ann("POST", BINDINGS, &all).await.expect(403);
    as_ann("POST", CLUSTER_ROLES, &role("ClusterRole", "x", &json!([]))).await.expect(403);
    as_ann("POST", CLUSTER_BINDINGS, &binding("ClusterRoleBinding", "x", "ClusterRole/view", &named("User", "ann")))
        .await
        .expect(403);
    let absent = binding("RoleBinding", "d", "Role/none", &named("User", "bob"));
    let answer = as_ann("POST", BINDINGS, &absent).await.expect(404);
    assert_eq!(answer["message"], "rolebindings.rbac.authorization.k8s.io \"none\" not found");
    // Who may bind, binds.
    let bind = json!([{"verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"],
        "resourceNames": ["cluster-admin"]}]);
    rig.call("POST", ROLES, &role("Role", "bind", &bind)).await.expect(201);
    rig.call("POST", BINDINGS, &binding("RoleBinding", "bind", "Role/bind", &named("User", "ann"))).await.expect(201);
    as_ann("POST", BINDINGS, &all).await.expect(201);
    // With all rights in one namespace, what is internal stays internal.
    as_ann("POST", "/apis/slipway.dev/v1alpha1/namespaces/rack/bootintents", &json!({})).await.expect(405);

    // The reference of a binding stays.
    let changed = binding("RoleBinding", "b", "ClusterRole/view", &named("User", "bob"));
    let refused = rig.call("PUT", &path(BINDINGS, "b"), &changed).await.expect(422);
    assert!(refused["message"].as_str().unwrap().ends_with("cannot change roleRef"), "{refused}");
    // A group for an account is given by who may speak for it.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "sly", "annotations": {"slipway.dev/groups": "system:masters"}}});
    let ben = binding("RoleBinding", "ben", "ClusterRole/edit", &named("User", "ben"));
    rig.call("POST", BINDINGS, &ben).await.expect(201);
    rig.as_user(user("ben", &[]), "POST", ACCOUNTS, &account).await.expect(403);
    rig.call("POST", ACCOUNTS, &account).await.expect(201);
    // Nor may others have tokens made for it.
    let asked = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}});
    rig.as_user(user("ben", &[]), "POST", &format!("{ACCOUNTS}/sly/token"), &asked).await.expect(403);
    let kept = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "kept", "annotations": {"kubernetes.io/service-account.name": "sly"}}});
    rig.as_user(user("ben", &[]), "POST", SECRETS, &kept).await.expect(403);
    rig.call("POST", SECRETS, &kept).await.expect(201);
    let plain = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "plain"}});
    rig.call("POST", ACCOUNTS, &plain).await.expect(201);
    rig.as_user(user("ben", &[]), "POST", &format!("{ACCOUNTS}/plain/token"), &asked).await.expect(201);
}

#[tokio::test]
async fn roles_that_aggregate_follow_those_they_choose() {
    let rig = Rig::new().await;
    let running = tokio::spawn({
        let api = rig.api.clone();
        async move { api.run().await }
    });
    let rules = async |name: &str| rig.get(&path(CLUSTER_ROLES, name)).await.expect(200)["rules"].to_string();
    assert!(rules("view").await.contains("baremetalhosts") && !rules("view").await.contains("secrets"));
    assert!(rules("edit").await.contains("baremetalhosts") && rules("edit").await.contains("secrets"));
    assert!(rules("admin").await.contains("rolebindings") && rules("admin").await.contains("secrets"));
    let mut more = role("ClusterRole", "widgets", &json!([rule(&["get"], "acme.example", "widgets")]));
    more["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    rig.call("POST", CLUSTER_ROLES, &more).await.expect(201);
    eventually(async || rules("admin").await.contains("widgets")).await;
    rig.call("DELETE", &path(CLUSTER_ROLES, "widgets"), &json!({})).await.expect(200);
    eventually(async || !rules("admin").await.contains("widgets")).await;
    rig.api.shutdown().cancel();
    tokio::time::timeout(DEADLINE, running).await.unwrap().unwrap();
}

#[tokio::test]
async fn tokens_say_who_calls_until_what_they_hang_on_is_gone() {
    let rig = Rig::new().await;
    rig.account("bot").await;
    rig.call("POST", SECRETS, &secret("anchor", &json!({}))).await.expect(201);
    let subject = json!({"kind": "ServiceAccount", "name": "bot", "namespace": "rack"});
    rig.call("POST", BINDINGS, &binding("RoleBinding", "bot", "ClusterRole/view", &subject)).await.expect(201);
    let free = rig.token("bot", &json!({})).await;
    let bound =
        rig.token("bot", &json!({"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "anchor"}})).await;
    let other = rig.token("bot", &json!({"audiences": ["vault"]})).await;
    let list = async |token: &str| rig.with_token(token, "GET", HOSTS, &Value::Null).await.code;
    assert_eq!((list(&free).await, list(&bound).await, list(&other).await), (200, 200, 401));
    assert_eq!(rig.with_token(&free, "GET", SECRETS, &Value::Null).await.code, 403);
    let mut cut = free.clone();
    cut.pop();
    for bad in ["guessed", "a.b.c", cut.as_str(), &"x".repeat(100_000)] {
        let answer = rig.with_token(bad, "GET", "/version", &Value::Null).await;
        assert_eq!(answer.expect(401)["message"], "Unauthorized");
    }
    let who = rig.with_token(&bound, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).await;
    let who = who.expect(201)["status"]["userInfo"].clone();
    assert_eq!(who["username"], "system:serviceaccount:rack:bot");
    assert_eq!(who["groups"], json!(["system:serviceaccounts", "system:serviceaccounts:rack", "system:authenticated"]));
    assert!(who["extra"]["authentication.kubernetes.io/credential-id"][0].as_str().unwrap().starts_with("JTI="));

    let review = |token: &str, audiences: Value| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences}})
    };
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let status = rig.call("POST", reviews, &review(&other, json!(["vault", "x"]))).await.expect(201)["status"].clone();
    assert_eq!((&status["authenticated"], &status["audiences"]), (&json!(true), &json!(["vault"])));
    let status = rig.call("POST", reviews, &review(&other, json!([]))).await.expect(201)["status"].clone();
    assert!(status.get("authenticated").is_none());

    // A watch of a token ends with it, and shows nothing more.
    let request = http::Request::get(format!("{HOSTS}?watch=true")).header("authorization", format!("Bearer {bound}"));
    let response = rig.api.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut lines = response.into_body().into_data_stream();
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let line = tokio::time::timeout(DEADLINE, lines.next()).await.unwrap().unwrap().unwrap();
    assert!(line.starts_with(b"{\"type\":\"ADDED\""));
    rig.call("DELETE", &path(SECRETS, "anchor"), &json!({})).await.expect(200);
    assert_eq!((list(&free).await, list(&bound).await), (200, 401));
    rig.call("POST", HOSTS, &host("b")).await.expect(201);
    assert!(tokio::time::timeout(DEADLINE, lines.next()).await.unwrap().is_none());
    rig.call("DELETE", &path(ACCOUNTS, "bot"), &json!({})).await.expect(200);
    assert_eq!(list(&free).await, 401);
    // A new account of the same name is another one.
    rig.account("bot").await;
    assert_eq!(list(&free).await, 401);
}

#[tokio::test]
async fn token_requests_are_checked() {
    let rig = Rig::new().await;
    rig.account("bot").await;
    let at = format!("{ACCOUNTS}/bot/token");
    let ask = |spec: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    for (spec, code, wanted) in [
        (json!({"expirationSeconds": 60}), 422, "may not specify a duration less than 10 minutes"),
        (json!({"expirationSeconds": 1_i64 << 40}), 422, "may not specify a duration larger than 2^32 seconds"),
        (json!({"expirationSeconds": "x"}), 400, "no number"),
        (json!({"audiences": 5}), 400, "no list"),
        (json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "a"}}), 404, "pods \"a\" not found"),
        (json!({"boundObjectRef": {"kind": "Gadget", "apiVersion": "v1", "name": "a"}}), 400, "cannot bind token"),
        (json!({"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "a"}}), 404, "\"a\" not found"),
    ] {
        let answer = rig.call("POST", &at, &ask(spec.clone())).await.expect(code);
        assert!(answer["message"].as_str().unwrap().contains(wanted), "{spec}: {answer}");
    }
    rig.call("POST", &format!("{ACCOUNTS}/none/token"), &ask(json!({}))).await.expect(404);
    rig.get(&at).await.expect(405);
    rig.call("POST", &format!("{SECRETS}/bot/token"), &ask(json!({}))).await.expect(404);
    let mut wrong = ask(json!({}));
    wrong["kind"] = "Secret".into();
    rig.call("POST", &at, &wrong).await.expect(400);
    rig.call("POST", &at, &json!({})).await.expect(201);
    let keys = rig.get("/openid/v1/jwks").await.expect(200);
    assert_eq!(keys["keys"][0]["alg"], "ES256");
    let issuer = rig.get("/.well-known/openid-configuration").await.expect(200);
    assert_eq!(issuer["issuer"], auth::ISSUER);
}

#[tokio::test]
async fn no_token_is_made_for_longer_than_a_year() {
    const YEAR: i64 = 365 * 24 * 3600;
    let rig = Rig::new().await;
    rig.account("bot").await;
    let at = format!("{ACCOUNTS}/bot/token");
    for (asked, given) in [(YEAR - 1, YEAR - 1), (YEAR, YEAR), (YEAR + 1, YEAR), (1 << 32, YEAR)] {
        let spec = json!({ "spec": { "expirationSeconds": asked } });
        let now = jiff::Timestamp::now().as_second();
        let answer = rig.call("POST", &at, &spec).await;
        let warning = answer.headers.get("warning").map(|text| text.to_str().unwrap().to_owned());
        let wanted = format!("299 - \"requested expiration of {asked} seconds shortened to {YEAR} seconds\"");
        assert_eq!(warning, (asked > YEAR).then_some(wanted), "{asked}");
        let made = answer.expect(201);
        assert_eq!(made["spec"]["expirationSeconds"], given);
        let end: jiff::Timestamp = made["status"]["expirationTimestamp"].as_str().unwrap().parse().unwrap();
        assert!((0..=60).contains(&(end.as_second() - now - given)), "{made}");
    }
}

#[tokio::test]
async fn what_follows_from_a_change_is_a_run_that_ends() {
    let rig = Rig::new().await;
    let running = tokio::spawn({
        let api = rig.api.clone();
        async move { api.run().await }
    });
    let ended = || {
        let text = crate::metrics::shown(|registry| rig.api.tasks().register(registry));
        let wanted = "slipway_task_runs_total{task=\"account-upkeep\",result=\"succeeded\"} ";
        text.lines().find_map(|line| line.strip_prefix(wanted)?.parse::<u64>().ok()).unwrap_or_default()
    };
    eventually(async || ended() > 0).await;
    let before = ended();
    rig.call("DELETE", &path(ACCOUNTS, "default"), &json!({})).await.expect(200);
    eventually(async || ended() > before && rig.get(&path(ACCOUNTS, "default")).await.code == 200).await;
    rig.api.shutdown().cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn secrets_keep_tokens_of_accounts() {
    let rig = Rig::new().await;
    let running = tokio::spawn({
        let api = rig.api.clone();
        async move { api.run().await }
    });
    // Every namespace has its account, and gets it back.
    eventually(async || rig.get(&path(ACCOUNTS, "default")).await.code == 200).await;
    let uid = rig.get(&path(ACCOUNTS, "default")).await.json()["metadata"]["uid"].clone();
    rig.call("DELETE", &path(ACCOUNTS, "default"), &json!({})).await.expect(200);
    eventually(async || {
        let found = rig.get(&path(ACCOUNTS, "default")).await;
        found.code == 200 && found.json()["metadata"]["uid"] != uid
    })
    .await;
    rig.account("bot").await;
    let mut kept = secret("kept", &json!({}));
    kept["type"] = "kubernetes.io/service-account-token".into();
    rig.call("POST", SECRETS, &kept).await.expect(422);
    kept["metadata"]["annotations"] = json!({"kubernetes.io/service-account.name": "bot"});
    // One that has no room for a token costs itself alone.
    let mut full = kept.clone();
    (full["metadata"]["name"], full["data"]) = ("full".into(), json!({"x": "A".repeat((1 << 20) - 1200)}));
    rig.call("POST", SECRETS, &full).await.expect(201);
    rig.call("POST", SECRETS, &kept).await.expect(201);
    eventually(async || rig.get(&path(SECRETS, "kept")).await.json()["data"]["token"].is_string()).await;
    use base64::Engine;
    let data = rig.get(&path(SECRETS, "kept")).await.json()["data"].clone();
    let decode = |key: &str| {
        let bytes = base64::engine::general_purpose::STANDARD.decode(data[key].as_str().unwrap()).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    assert_eq!(decode("namespace"), "rack");
    let whoami = async |token: &str| {
        rig.with_token(token, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).await
    };
    let answer = whoami(&decode("token")).await.expect(201);
    assert_eq!(answer["status"]["userInfo"]["username"], "system:serviceaccount:rack:bot");
    // With the account its Secret goes; the token has gone before.
    rig.call("DELETE", &path(ACCOUNTS, "bot"), &json!({})).await.expect(200);
    assert_eq!(whoami(&decode("token")).await.code, 401);
    eventually(async || rig.get(&path(SECRETS, "kept")).await.code == 404).await;
    rig.api.shutdown().cancel();
    tokio::time::timeout(DEADLINE, running).await.unwrap().unwrap();
}

#[tokio::test]
async fn another_name_is_taken_on_by_who_may() {
    let rig = Rig::new().await;
    let ask = async |identity: Option<UserIdentity>, headers: &[(&str, &str)]| {
        let mut request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        rig.send(identity, request, "{}").await
    };
    let eve = [("impersonate-user", "eve"), ("impersonate-group", "readers")];
    let info = ask(admin(), &eve).await.expect(201)["status"]["userInfo"].clone();
    assert_eq!(info, json!({"username": "eve", "groups": ["readers", "system:authenticated"]}));
    let refused = ask(user("bob", &[]), &eve).await.expect(403);
    assert_eq!(
        refused["message"],
        "users \"eve\" is forbidden: User \"bob\" cannot impersonate resource \"users\" in API group \"\" at the \
         cluster scope"
    );
    let rules =
        json!([{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["eve"]}]);
    rig.call("POST", CLUSTER_ROLES, &role("ClusterRole", "as-eve", &rules)).await.expect(201);
    rig.call(
        "POST",
        CLUSTER_BINDINGS,
        &binding("ClusterRoleBinding", "b", "ClusterRole/as-eve", &named("User", "bob")),
    )
    .await
    .expect(201);
    ask(user("bob", &[]), &eve[..1]).await.expect(201);
    ask(user("bob", &[]), &eve).await.expect(403);
    ask(user("bob", &[]), &[("impersonate-group", "system:masters")]).await.expect(400);
    ask(None, &eve).await.expect(401);
    // The name of Slipway itself is a name.
    let request = http::Request::post("/apis/slipway.dev/v1alpha1/namespaces/rack/bootintents");
    let request = request.header("impersonate-user", "system:slipway").header("impersonate-group", "system:masters");
    rig.send(admin(), request, "{}").await.expect(405);
}

#[tokio::test]
async fn a_watch_in_another_name_ends_with_the_right_to_take_it() {
    let rig = Rig::new().await;
    let rules =
        json!([{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"], "resourceNames": ["eve"]}]);
    rig.call("POST", CLUSTER_ROLES, &role("ClusterRole", "as-eve", &rules)).await.expect(201);
    let may = binding("ClusterRoleBinding", "b", "ClusterRole/as-eve", &named("User", "bob"));
    rig.call("POST", CLUSTER_BINDINGS, &may).await.expect(201);
    let sees = binding("RoleBinding", "see", "ClusterRole/view", &named("User", "eve"));
    rig.call("POST", BINDINGS, &sees).await.expect(201);
    let request = http::Request::get(format!("{HOSTS}?watch=true")).header("impersonate-user", "eve");
    let mut request = request.body(Body::empty()).unwrap();
    request.extensions_mut().insert(user("bob", &[]).unwrap());
    let response = rig.api.router().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut lines = super::watch_rules::Lines::of(response);
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    assert_eq!(lines.next().await.unwrap()["object"]["metadata"]["name"], "a");
    rig.call("DELETE", &path(CLUSTER_BINDINGS, "b"), &json!({})).await.expect(200);
    rig.call("POST", HOSTS, &host("b")).await.expect(201);
    assert_eq!(lines.next().await, None);
}

#[tokio::test]
async fn questions_about_permissions_are_answered() {
    let rig = Rig::new().await;
    rig.call("POST", BINDINGS, &binding("RoleBinding", "see", "ClusterRole/view", &named("User", "eve")))
        .await
        .expect(201);
    let can = async |identity: Option<UserIdentity>, spec: Value| {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec});
        rig.as_user(identity, "POST", CAN_I, &review).await
    };
    let hosts = |verb: &str, namespace: &str| json!({"resourceAttributes": {"verb": verb, "group": "metal3.io", "resource": "baremetalhosts", "namespace": namespace}});
    for (spec, allowed) in [
        (hosts("list", "rack"), true),
        (hosts("delete", "rack"), false),
        (hosts("list", ""), false),
        (json!({"nonResourceAttributes": {"verb": "get", "path": "/apis/x"}}), true),
        (json!({"nonResourceAttributes": {"verb": "get", "path": "/metrics"}}), false),
        (json!({"resourceAttributes": {"verb": "get", "namespace": "rack"}}), false),
    ] {
        let answer = can(user("eve", &[]), spec.clone()).await.expect(201);
        assert_eq!(answer["status"]["allowed"], allowed, "{spec}");
        assert_eq!(can(admin(), spec).await.expect(201)["status"]["allowed"], true);
    }
    can(user("eve", &[]), json!({})).await.expect(422);
    can(None, hosts("list", "rack")).await.expect(401);
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": "eve", "resourceAttributes": hosts("list", "rack")["resourceAttributes"]}});
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let status = rig.call("POST", reviews, &review).await.expect(201)["status"].clone();
    assert_eq!(
        status,
        json!({"allowed": true,
            "reason": "RBAC: allowed by RoleBinding \"see/rack\" of ClusterRole \"view\" to User \"eve\""})
    );
    rig.as_user(user("eve", &[]), "POST", reviews, &review).await.expect(403);
    let mut local = review.clone();
    local["kind"] = "LocalSubjectAccessReview".into();
    let at =
        |namespace: &str| format!("/apis/authorization.k8s.io/v1/namespaces/{namespace}/localsubjectaccessreviews");
    rig.call("POST", &at("rack"), &local).await.expect(201);
    rig.call("POST", &at("default"), &local).await.expect(422);
    let rules = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "rack"}});
    let at = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let status = rig.as_user(user("eve", &[]), "POST", at, &rules).await.expect(201)["status"].to_string();
    assert!(status.contains("baremetalhosts") && status.contains("/apis/*") && !status.contains("secrets"), "{status}");
    rig.get(reviews).await.expect(405);
}

#[tokio::test]
async fn what_a_caller_may_is_answered_once_however_often_it_is_bound() {
    const RBAC: &str = "rbac.authorization.k8s.io";
    let rig = Rig::new().await;
    let about =
        |kind: &str, name: &str| json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": name}});
    let names: Vec<String> = (0..900).map(|number| format!("a-name-of-a-map-{number:0100}")).collect();
    let make_role = async |name: String| {
        let mut role = about("Role", &name);
        role["rules"] =
            json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": names}]);
        rig.call("POST", ROLES, &role).await.expect(201);
    };
    let bind = async |name: String, role: &str, times: usize| {
        let mut binding = about("RoleBinding", &name);
        binding["roleRef"] = json!({"apiGroup": RBAC, "kind": "Role", "name": role});
        binding["subjects"] = vec![json!({"apiGroup": RBAC, "kind": "User", "name": "eve"}); times].into();
        rig.call("POST", BINDINGS, &binding).await.expect(201);
    };
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "rack"}});
    let ask = async || {
        let reviews = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
        let answer = rig.as_user(user("eve", &[]), "POST", reviews, &review).await;
        (answer.text.len(), answer.expect(201)["status"]["incomplete"].clone())
    };
    make_role("large".into()).await;
    bind("often".into(), "large", 50).await;
    bind("again".into(), "large", 50).await;
    bind("none".into(), "none", 50).await;
    let (length, incomplete) = ask().await;
    assert!(length < 200_000 && incomplete == false, "{length} bytes");
    for number in 0..25 {
        make_role(format!("large-{number}")).await;
        bind(format!("large-{number}"), &format!("large-{number}"), 1).await;
    }
    let (length, incomplete) = ask().await;
    assert!(length < 3 << 20 && incomplete == true, "{length} bytes");
}

#[tokio::test]
async fn a_refusal_does_not_name_megabytes_of_rights() {
    let rig = Rig::new().await;
    let mut binding =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "ann"}});
    binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"});
    binding["subjects"] = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}]);
    rig.call("POST", BINDINGS, &binding).await.expect(201);
    let names: Vec<String> = (0..1000).map(|number| format!("{number:0900}")).collect();
    let mut role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "x"}});
    role["rules"] =
        json!([{"verbs": ["get"], "apiGroups": ["a", "b"], "resources": ["c", "d"], "resourceNames": names}]);
    let refused = rig.as_user(user("ann", &[]), "POST", ROLES, &role).await;
    assert!(refused.code == 403 && refused.text.contains("attempting to grant"), "{}", refused.code);
    assert!(refused.text.len() < 300_000, "{} bytes", refused.text.len());
}

#[tokio::test]
async fn reviews_take_what_go_clients_send() {
    let rig = Rig::new().await;
    let reviews = |kind: &str| format!("/apis/authorization.k8s.io/v1/{kind}");
    // Types without pointers are written whole: lists that are not there as null, also those that the schema requires.
    let meta = json!({"creationTimestamp": null});
    for (path, body, answered) in [
        (
            reviews("selfsubjectrulesreviews"),
            json!({"metadata": meta, "spec": {"namespace": "rack"},
                "status": {"resourceRules": null, "nonResourceRules": null, "incomplete": false}}),
            "/status/resourceRules",
        ),
        (
            reviews("subjectaccessreviews"),
            json!({"metadata": meta, "spec": {"resourceAttributes": {"verb": "get"}, "user": "eve", "groups": null,
                "extra": null}, "status": {"allowed": false}}),
            "/status/allowed",
        ),
        (
            "/apis/authentication.k8s.io/v1/tokenreviews".to_owned(),
            json!({"metadata": meta, "spec": {"token": "x", "audiences": null}, "status": {"user": {}}}),
            "/status/error",
        ),
        (
            "/apis/authentication.k8s.io/v1/selfsubjectreviews".to_owned(),
            json!({"metadata": meta, "status": {"userInfo": {"groups": null}}}),
            "/status/userInfo/username",
        ),
    ] {
        let answer = rig.call("POST", &path, &body).await.expect(201);
        assert!(answer.pointer(answered).is_some(), "{path}: {answer}");
    }
}
