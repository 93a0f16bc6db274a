//! What webhooks may take: places of requests that wait and of calls, shared among callers, and memory.

use super::hook_server::{HookServer, Reply, allowed, patched};
use super::webhook_rules::{VALIDATING, configuration, message, mutating, rig, validating};
use super::*;

/// A configuration with so many webhooks that nothing is about.
fn many(name: &str, hooks: usize) -> Value {
    let hook = |at: usize| {
        json!({"name": format!("h{at}.example.org"), "clientConfig": {"url": "https://192.0.2.1/"}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]}]})
    };
    configuration("Validating", name, &(0..hooks).map(hook).collect::<Vec<_>>())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_slow_webhook_keeps_nobody_elses_writes_out() {
    let server = HookServer::start(|_, request| match request["object"]["metadata"]["name"].as_str() {
        Some(name) if name.starts_with("slow") => Reply::Silence,
        _ => allowed(),
    })
    .await;
    let (rig, _) = rig(&server).await;
    for namespace in ["other", "third"] {
        let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        rig.call("POST", "/api/v1/namespaces", &made).await.expect(201);
    }
    // One for all of them but the third.
    let of = json!({"timeoutSeconds": 30, "namespaceSelector": {"matchExpressions":
        [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["third"]}]}});
    validating(&rig, "policy", &[server.hook("a.example.org", of)]).await.expect(201);
    let user = |name: &str| Some(UserIdentity::new(name, vec![auth::ADMIN_GROUP.into()], auth::Proof::Certificate));
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..100 {
        let body = secret(&format!("slow-{number}"), &json!({})).to_string();
        let mut request = http::Request::post(SECRETS).body(Body::from(body)).unwrap();
        request.extensions_mut().insert(user("alice").unwrap());
        waiting.spawn(rig.api.router().oneshot(request));
    }
    // Three quarters of those who may wait are hers, and so are three quarters of the calls; the others are refused.
    for _ in 0..25 {
        let refused = tokio::time::timeout(DEADLINE, waiting.join_next()).await.expect("an answer");
        assert_eq!(refused.unwrap().unwrap().unwrap().status(), 429);
    }
    let calls = async {
        while server.paths().len() < 12 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, calls).await.expect("her calls");
    assert_eq!((server.paths().len(), waiting.len()), (12, 75));
    let write = async |name: &str, namespace: &str| {
        let path = format!("/api/v1/namespaces/{namespace}/secrets");
        let body = secret(&format!("of-{name}"), &json!({}));
        let sent = rig.as_user(user(name), "POST", &path, &body);
        tokio::time::timeout(DEADLINE, sent).await.expect("an answer").expect(201)
    };
    // By the same configuration, and where none is about.
    write("bob", "other").await;
    write("bob", "rack").await;
    write("carol", "third").await;
    write("alice", "third").await;
    assert_eq!(server.paths().len(), 14);
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_have_bounds_and_go_with_what_they_took() {
    let server = HookServer::start(|_, _| allowed()).await;
    let (rig, _) = rig(&server).await;
    for number in 0..7 {
        rig.call("POST", VALIDATING, &many(&format!("m{number}"), 128)).await.expect(201);
    }
    let refused = rig.call("POST", VALIDATING, &many("more", 105)).await;
    assert!(refused.code == 507 && message(&refused).contains("there may be 1000 webhooks"), "{}", refused.text);
    rig.call("POST", VALIDATING, &many("more", 104)).await.expect(201);
    let in_force = || rig.api.inner.webhooks.in_force().hooks();
    assert_eq!(in_force(), 1000);
    // One may not become larger then, and may be changed otherwise, and become smaller.
    let add = json!([{"op": "copy", "from": "/webhooks/0", "path": "/webhooks/0"},
        {"op": "replace", "path": "/webhooks/0/name", "value": "x.example.org"}]);
    let patch = "application/json-patch+json";
    rig.patch(&path(VALIDATING, "more"), patch, &add).await.expect(507);
    let label = json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]);
    rig.patch(&path(VALIDATING, "more"), patch, &label).await.expect(200);
    let fewer = json!([{"op": "remove", "path": "/webhooks/0"}]);
    rig.patch(&path(VALIDATING, "more"), patch, &fewer).await.expect(200);
    assert_eq!(in_force(), 999);
    // Nobody else has to write for them to be let go.
    rig.call("DELETE", VALIDATING, &json!({})).await.expect(200);
    assert_eq!(in_force(), 0);
    rig.call("POST", SECRETS, &secret("s", &json!({}))).await.expect(201);
    // And of memory.
    let conditions: Vec<Value> = (0..64)
        .map(|at| json!({"name": format!("c{at}"), "expression": format!("object.a == '{}'", "x".repeat(1000 + at))}))
        .collect();
    let mut large = many("large", 8);
    for hook in large["webhooks"].as_array_mut().unwrap() {
        hook["matchConditions"] = json!(conditions);
    }
    rig.call("POST", VALIDATING, &large).await.expect(201);
    large["metadata"]["name"] = "large2".into();
    let refused = rig.call("POST", VALIDATING, &large).await;
    assert!(refused.code == 507 && message(&refused).contains("64 MiB of memory"), "{}", refused.text);
}

/// A store of before may have more than there may be.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_beyond_the_bounds_is_not_in_force() {
    let server = HookServer::start(|_, _| Reply::Fields(json!({"allowed": false}))).await;
    let (rig, _) = rig(&server).await;
    let hooks = |name: &str| [server.hook(&format!("{name}.example.org"), json!({}))];
    for name in ["b", "c"] {
        validating(&rig, name, &hooks(name)).await.expect(201);
    }
    rig.api.inner.webhooks.set_most(1).await;
    // What was in force stays so as long as it is not written.
    let in_force = || rig.api.inner.webhooks.in_force().hooks();
    rig.api.read_configurations().await;
    assert_eq!(in_force(), 2);
    validating(&rig, "a", &hooks("a")).await.expect(507);
    rig.call("DELETE", &path(VALIDATING, "b"), &json!({})).await.expect(200);
    assert_eq!(in_force(), 1);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    rig.patch(&path(VALIDATING, "c"), MERGE, &label).await.expect(200);
    assert_eq!(in_force(), 1, "there is room for it");
    rig.api.inner.webhooks.set_most(0).await;
    rig.patch(&path(VALIDATING, "c"), MERGE, &json!({"metadata": {"labels": {"a": "c"}}})).await.expect(200);
    assert_eq!(in_force(), 0);
    rig.call("POST", SECRETS, &secret("s", &json!({}))).await.expect(201);
    assert!(server.paths().is_empty());
    // Once there is room, it is in force.
    rig.api.inner.webhooks.set_most(2).await;
    rig.api.read_configurations().await;
    assert_eq!(in_force(), 1);
    rig.call("POST", SECRETS, &secret("t", &json!({}))).await.expect(400);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_webhook_gives_an_account_groups() {
    let server = HookServer::start(|_, _| {
        let groups = json!({"slipway.dev/groups": "system:masters"});
        patched(&json!([{"op": "add", "path": "/metadata/annotations", "value": groups}]))
    })
    .await;
    let (rig, _) = rig(&server).await;
    let rules = json!({"rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["serviceaccounts"]}],
        "failurePolicy": "Ignore"});
    mutating(&rig, "m", &[server.hook("a.example.org", rules)]).await.expect(201);
    let accounts = "/api/v1/namespaces/rack/serviceaccounts";
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bot"}});
    let refused = rig.call("POST", accounts, &account).await;
    assert!(refused.code == 500 && message(&refused).contains("changes the groups of an account"), "{}", refused.text);
    rig.get(&path(accounts, "bot")).await.expect(404);
}
