//! Webhooks in the way of writes: who is asked what, in which order, and what becomes of the answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;

use super::hook_server::{HookServer, Reply, allowed, patched};
use super::*;
use crate::config::WebhooksConfig;
use crate::live::Live;

const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
pub(super) const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

pub(super) fn configuration(kind: &str, name: &str, hooks: &[Value]) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"),
        "metadata": {"name": name}, "webhooks": hooks,
    })
}

/// A server, and settings that allow webhooks on loopback.
pub(super) async fn rig(server: &HookServer) -> (Rig, Live<WebhooksConfig>) {
    let rig = Rig::new().await;
    let settings = Live::from(WebhooksConfig {
        allow: vec![format!("127.0.0.1:{}", server.port).parse().unwrap()],
        ..WebhooksConfig::default()
    });
    rig.api.set_webhooks(settings.clone());
    (rig, settings)
}

pub(super) async fn mutating(rig: &Rig, name: &str, hooks: &[Value]) -> Answer {
    rig.call("POST", MUTATING, &configuration("Mutating", name, hooks)).await
}

pub(super) async fn validating(rig: &Rig, name: &str, hooks: &[Value]) -> Answer {
    rig.call("POST", VALIDATING, &configuration("Validating", name, hooks)).await
}

fn warnings(answer: &Answer) -> Vec<String> {
    let all = answer.headers.get_all("warning").iter().map(|value| value.to_str().unwrap());
    let quoted = |text: &str| text.strip_prefix("299 - \"")?.strip_suffix('"').map(str::to_owned);
    all.map(|text| quoted(text).expect("a warning")).collect()
}

pub(super) fn message(answer: &Answer) -> String {
    answer.json()["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_write_is_asked_about_and_told_as_upstream_tells_it() {
    let server = HookServer::start(|_, _| allowed()).await;
    let (rig, _) = rig(&server).await;
    validating(&rig, "all", &[server.hook("a.example.org", json!({}))]).await.expect(201);

    let query = format!("{SECRETS}?fieldManager=tester&fieldValidation=Strict");
    rig.call("POST", &query, &secret("s", &json!({"a": "b"}))).await.expect(201);
    let asked = server.last();
    let resource = json!({"group": "", "version": "v1", "resource": "secrets"});
    let kind = json!({"group": "", "version": "v1", "kind": "Secret"});
    for (field, wanted) in [
        ("kind", kind.clone()),
        ("resource", resource.clone()),
        ("requestKind", kind),
        ("requestResource", resource),
        ("name", json!("s")),
        ("namespace", json!("rack")),
        ("operation", json!("CREATE")),
        ("userInfo", json!({"username": "root", "groups": ["system:masters", "system:authenticated"]})),
        ("oldObject", Value::Null),
        ("dryRun", json!(false)),
        (
            "options",
            json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "tester", "fieldValidation": "Strict"}),
        ),
    ] {
        assert_eq!(asked[field], wanted, "{field}");
    }
    assert_eq!(asked.get("subResource"), None);
    let object = &asked["object"];
    assert_eq!(object["data"], json!({"a": "Yg=="}));
    assert!(object["metadata"]["uid"].is_string() && object["metadata"]["managedFields"].is_array(), "{object}");

    let merge = json!({"data": {"c": "ZA=="}});
    rig.patch(&path(SECRETS, "s"), MERGE, &merge).await.expect(200);
    let asked = server.last();
    assert_eq!((&asked["operation"], &asked["options"]["kind"]), (&json!("UPDATE"), &json!("UpdateOptions")));
    assert_eq!(asked["oldObject"]["data"], json!({"a": "Yg=="}));
    assert_eq!(asked["object"]["data"], json!({"a": "Yg==", "c": "ZA=="}));

    let applied = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "t"}, "data": {"a": "Yg=="}});
    let apply = format!("{}?fieldManager=f&force=true", path(SECRETS, "t"));
    rig.patch(&apply, "application/apply-patch+yaml", &applied).await.expect(201);
    let asked = server.last();
    assert_eq!((&asked["operation"], &asked["options"]["kind"]), (&json!("CREATE"), &json!("CreateOptions")));

    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"});
    rig.call("DELETE", &path(SECRETS, "t"), &options).await.expect(200);
    let asked = server.last();
    assert_eq!((&asked["operation"], &asked["object"], &asked["name"]), (&json!("DELETE"), &Value::Null, &json!("t")));
    assert_eq!(asked["oldObject"]["data"], json!({"a": "Yg=="}));
    assert_eq!(asked["options"]["propagationPolicy"], "Background");

    rig.call("POST", SECRETS, &secret("u", &json!({}))).await.expect(201);
    let before = server.paths().len();
    rig.call("DELETE", SECRETS, &json!({})).await.expect(200);
    assert_eq!(server.paths().len(), before + 2, "one for each object");
    let query = server.asked.lock().unwrap()[0].0.clone();
    assert_eq!(query, "/a.example.org?timeout=10s");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_mutate_change_what_is_written_and_what_is_written_is_checked() {
    let server = HookServer::start(|path, request| match path {
        "label.example.org" => patched(&json!([
            {"op": "add", "path": "/metadata/labels", "value": {"seen": request["object"]["metadata"]["name"]}},
            {"op": "add", "path": "/metadata/uid", "value": "mine"},
            {"op": "add", "path": "/spec/unknown", "value": 1},
        ])),
        "fill.example.org" => patched(&json!([{"op": "add", "path": "/spec/bmc", "value": {"address": "ipmi://192.0.2.7", "credentialsName": "c"}}])),
        "break.example.org" => patched(&json!([{"op": "add", "path": "/spec/online", "value": "perhaps"}])),
        _ => patched(&json!([{"op": "remove", "path": "/none"}])),
    })
    .await;
    let (rig, _) = rig(&server).await;
    let rules = json!({"rules": [{"operations": ["CREATE"], "apiGroups": ["metal3.io"], "apiVersions": ["v1alpha1"],
        "resources": ["baremetalhosts"]}]});
    let hooks = ["label.example.org", "fill.example.org"].map(|name| server.hook(name, rules.clone()));
    mutating(&rig, "b", &hooks).await.expect(201);
    let made = rig.call("POST", &format!("{HOSTS}?fieldManager=t"), &host("a")).await.expect(201);
    assert_eq!(made["metadata"]["labels"], json!({"seen": "a"}));
    assert_eq!(made["spec"]["bmc"]["address"], "ipmi://192.0.2.7");
    assert_eq!(made["spec"].get("unknown"), None, "pruned");
    assert_ne!(made["metadata"]["uid"], "mine");
    assert_eq!(made["metadata"]["generation"], 1);
    // As upstream: what a webhook adds is nobody's.
    let fields = &made["metadata"]["managedFields"][0]["fieldsV1"];
    assert!(fields["f:spec"].get("f:bmc").is_none() && fields["f:spec"].get("f:online").is_some(), "{fields}");
    let shown = &server.asked.lock().unwrap()[0].1["request"]["object"]["metadata"].clone();
    assert!(shown.get("uid").is_none() && shown.get("creationTimestamp").is_none(), "{shown}");
    assert_eq!(server.paths(), ["label.example.org", "fill.example.org"]);

    mutating(&rig, "c", &[server.hook("break.example.org", rules.clone())]).await.expect(201);
    let refused = rig.call("POST", HOSTS, &host("x")).await;
    assert_eq!(refused.code, 422, "{}", refused.text);
    assert!(message(&refused).contains("spec.online"), "{}", refused.text);
    rig.call("DELETE", &path(MUTATING, "c"), &json!({})).await.expect(200);
    mutating(&rig, "a", &[server.hook("odd.example.org", rules)]).await.expect(201);
    let refused = rig.call("POST", HOSTS, &host("x")).await;
    assert_eq!(refused.code, 500);
    let told = message(&refused);
    assert!(told.starts_with("Internal error occurred: admission webhook \"odd.example.org\": its patch"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_told_with_what_was_warned_of_and_the_first_in_order_counts() {
    let server = HookServer::start(|path, _| match path {
        "no.example.org" => Reply::Fields(
            json!({"allowed": false, "status": {"code": 403, "message": "not here"}, "warnings": ["think twice"]}),
        ),
        "warn.example.org" => {
            Reply::Fields(json!({"allowed": true, "warnings": ["a \"word\""], "auditAnnotations": {"k": "v"}}))
        }
        _ => Reply::Fields(json!({"allowed": false})),
    })
    .await;
    let (rig, _) = rig(&server).await;
    validating(&rig, "b", &[server.hook("silent.example.org", json!({}))]).await.expect(201);
    let hooks = ["warn.example.org", "no.example.org"].map(|name| server.hook(name, json!({})));
    validating(&rig, "a", &hooks).await.expect(201);
    let refused = rig.call("POST", SECRETS, &secret("s", &json!({}))).await;
    assert_eq!(refused.code, 403);
    assert_eq!(message(&refused), "admission webhook \"no.example.org\" denied the request: not here");
    assert_eq!(warnings(&refused), ["a \\\"word\\\"", "think twice"]);
    assert_eq!(server.paths().len(), 3, "all are asked");
    rig.get(&path(SECRETS, "s")).await.expect(404);
    rig.call("DELETE", &path(VALIDATING, "a"), &json!({})).await.expect(200);
    let refused = rig.call("POST", SECRETS, &secret("s", &json!({}))).await;
    assert_eq!(refused.code, 400);
    assert_eq!(message(&refused), "admission webhook \"silent.example.org\" denied the request without explanation");
    rig.call("DELETE", &path(VALIDATING, "b"), &json!({})).await.expect(200);

    let (folder, log) = audit_log();
    rig.api.set_audit(log.clone());
    validating(&rig, "c", &[server.hook("warn.example.org", json!({}))]).await.expect(201);
    let made = rig.call("POST", SECRETS, &secret("s", &json!({}))).await;
    assert_eq!((made.code, warnings(&made)), (201, vec!["a \\\"word\\\"".to_owned()]));
    let gone = rig.call("DELETE", &path(SECRETS, "s"), &json!({})).await;
    assert_eq!((gone.code, warnings(&gone).len()), (200, 1));
    log.close().await;
    let lines = std::fs::read_to_string(folder.path().join("audit.log")).unwrap();
    assert_eq!(lines.matches("\"warn.example.org/k\":\"v\"").count(), 2, "{lines}");
}

fn audit_log() -> (tempfile::TempDir, audit::Audit) {
    let folder = tempfile::tempdir().unwrap();
    let options = audit::AuditOptions { path: folder.path().join("audit.log"), max_bytes: 1 << 20, max_files: 1 };
    let log = audit::Audit::start(options).unwrap();
    (folder, log)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_asked_is_passed_over_or_stands_in_the_way() {
    let server = HookServer::start(|path, _| match path {
        "slow.example.org" => Reply::Silence,
        "endless.example.org" => Reply::Endless,
        "away.example.org" => Reply::Redirect("https://127.0.0.1/other".into()),
        "faulty.example.org" => Reply::Other(StatusCode::INTERNAL_SERVER_ERROR, "boom"),
        _ => Reply::Other(StatusCode::OK, "{}"),
    })
    .await;
    let (rig, settings) = rig(&server).await;
    let at = |name: &str| format!("https://127.0.0.1:{}/{name}.example.org?timeout=1s", server.port);
    let posted = |name: &str, reason: &str| format!("failed to call webhook: Post \"{}\": {reason}", at(name));
    for (name, wanted) in [
        ("slow", posted("slow", "context deadline exceeded")),
        ("endless", posted("endless", "more than 4096 KiB came in answer to one request")),
        (
            "away",
            "failed to call webhook: the server answered with a redirect (302 Found), and redirects are not followed"
                .into(),
        ),
        (
            "faulty",
            "failed to call webhook: an error on the server (\"unknown\") has prevented the request from succeeding"
                .into(),
        ),
        ("strange", "received invalid webhook response: webhook response was absent".into()),
    ] {
        let hook = |policy: &str| {
            server.hook(&format!("{name}.example.org"), json!({"timeoutSeconds": 1, "failurePolicy": policy}))
        };
        validating(&rig, "v", &[hook("Fail")]).await.expect(201);
        let refused = rig.call("POST", SECRETS, &secret("s", &json!({}))).await;
        assert_eq!(refused.code, 500, "{}", refused.text);
        assert_eq!(
            message(&refused),
            format!("Internal error occurred: failed calling webhook \"{name}.example.org\": {wanted}")
        );
        rig.call("DELETE", &path(VALIDATING, "v"), &json!({})).await.expect(200);
        mutating(&rig, "m", &[hook("Ignore")]).await.expect(201);
        rig.call("POST", SECRETS, &secret("s", &json!({}))).await.expect(201);
        rig.call("DELETE", &path(MUTATING, "m"), &json!({})).await.expect(200);
        rig.call("DELETE", &path(SECRETS, "s"), &json!({})).await.expect(200);
    }
    assert!(!server.paths().contains(&"other".to_owned()), "redirects are not followed");

    // What is not allowed is not called, and says so when it is written.
    settings.set(WebhooksConfig::default());
    let asked = server.paths().len();
    let written = validating(&rig, "v", &[server.hook("any.example.org", json!({}))]).await;
    assert!(warnings(&written)[0].contains("api.webhooks.allow in slipway.toml is empty"), "{:?}", warnings(&written));
    let refused = rig.call("POST", SECRETS, &secret("s", &json!({}))).await;
    assert!(refused.code == 500 && message(&refused).contains("api.webhooks.allow"), "{}", refused.text);
    settings.set(WebhooksConfig { allow: vec!["127.0.0.0/8".parse().unwrap()], ..WebhooksConfig::default() });
    let refused = rig.call("POST", SECRETS, &secret("s", &json!({}))).await;
    assert!(message(&refused).contains("is a loopback address"), "{}", refused.text);
    assert_eq!(server.paths().len(), asked);
    // Whoever may do so can always take it away, and Slipway's own rooms are not in its power.
    let own = Some(UserIdentity::in_process());
    rig.send(own, http::Request::post(SECRETS), secret("own", &json!({})).to_string()).await.expect(201);
    rig.call("DELETE", &path(VALIDATING, "v"), &json!({})).await.expect(200);
    rig.call("POST", SECRETS, &secret("s", &json!({}))).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_where_the_configuration_says() {
    let server =
        HookServer::start(|_, _| Reply::Fields(json!({"allowed": false, "status": {"message": "here"}}))).await;
    let (rig, settings) = rig(&server).await;
    let service = |name: &str| {
        let config =
            json!({"service": {"namespace": "system", "name": name, "path": "/in"}, "caBundle": server.bundle});
        server.hook("svc.example.org", json!({ "clientConfig": config }))
    };
    let written = validating(&rig, "v", &[service("hooks")]).await;
    let wanted = "add \\\"system/hooks\\\" = \\\"HOST:PORT\\\"";
    assert!(written.code == 201 && warnings(&written)[0].contains(wanted), "{:?}", warnings(&written));
    let refused = rig.call("POST", SECRETS, &secret("s", &json!({}))).await;
    assert!(refused.code == 500 && message(&refused).contains("[api.webhooks.services]"), "{}", refused.text);
    let place = format!("127.0.0.1:{}", server.port).parse().unwrap();
    let services = ["system/hooks", "system/other:443"].map(|key| (key.to_owned(), Clone::clone(&place)));
    settings.set(WebhooksConfig { services: services.into(), ..WebhooksConfig::default() });
    let refused = rig.call("POST", SECRETS, &secret("s", &json!({}))).await;
    assert_eq!(message(&refused), "admission webhook \"svc.example.org\" denied the request: here");
    assert_eq!(server.paths(), ["in"]);
    // Its name is verified: the certificate is of hooks.system.svc.
    rig.call("DELETE", &path(VALIDATING, "v"), &json!({})).await.expect(200);
    validating(&rig, "v", &[service("other")]).await.expect(201);
    let refused = rig.call("POST", SECRETS, &secret("s", &json!({}))).await;
    assert!(refused.code == 500 && message(&refused).contains("certificate"), "{}", refused.text);
    assert!(message(&refused).contains("Post \"https://other.system.svc:443/in?timeout=10s\""), "{}", refused.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_wants_to_is_asked_again_when_others_changed_the_object_after_it() {
    let turn = AtomicUsize::new(0);
    let server = HookServer::start(move |path, _| match path {
        "last.example.org" => patched(&json!([{"op": "add", "path": "/metadata/annotations", "value": {"last": "1"}}])),
        "first.example.org" | "never.example.org" => allowed(),
        _ => {
            let turn = turn.fetch_add(1, Ordering::SeqCst).to_string();
            patched(&json!([{"op": "add", "path": "/metadata/labels", "value": {"turn": turn}}]))
        }
    })
    .await;
    let (rig, _) = rig(&server).await;
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    let hooks = [
        server.hook("first.example.org", again.clone()),
        server.hook("never.example.org", json!({})),
        server.hook("counts.example.org", again.clone()),
        server.hook("last.example.org", again),
    ];
    mutating(&rig, "m", &hooks).await.expect(201);
    let made = rig.call("POST", SECRETS, &secret("s", &json!({}))).await.expect(201);
    let wanted = ["first", "never", "counts", "last", "first", "counts"].map(|name| format!("{name}.example.org"));
    assert_eq!(server.paths(), wanted);
    assert_eq!(made["metadata"]["labels"]["turn"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_and_conditions_say_whose_matter_an_object_is() {
    let server = HookServer::start(|_, _| Reply::Fields(json!({"allowed": false}))).await;
    let (rig, _) = rig(&server).await;
    let labels = json!({"metadata": {"labels": {"env": "test"}}});
    for (more, object, wanted) in [
        (json!({"namespaceSelector": {"matchLabels": {"env": "test"}}}), json!({}), 201),
        (json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rack"}}}), json!({}), 400),
        (json!({"objectSelector": {"matchLabels": {"env": "test"}}}), json!({}), 201),
        (json!({"objectSelector": {"matchLabels": {"env": "test"}}}), labels.clone(), 400),
        (json!({"matchConditions": [{"name": "c", "expression": "object.metadata.name == 't'"}]}), json!({}), 201),
        (
            json!({"matchConditions": [{"name": "c", "expression": "request.userInfo.username == 'root'"}]}),
            json!({}),
            400,
        ),
        (json!({"matchConditions": [{"name": "c", "expression": "object.spec.none > 1"}]}), json!({}), 403),
        (
            json!({"matchConditions": [{"name": "c", "expression": "object.spec.none > 1"}], "failurePolicy": "Ignore"}),
            json!({}),
            201,
        ),
    ] {
        validating(&rig, "v", &[server.hook("a.example.org", more.clone())]).await.expect(201);
        let mut made = secret("s", &json!({}));
        json_patch::merge(&mut made, &object);
        let answer = rig.call("POST", SECRETS, &made).await;
        assert_eq!(answer.code, wanted, "{more}: {}", answer.text);
        rig.call("DELETE", &path(VALIDATING, "v"), &json!({})).await.expect(200);
        rig.call("DELETE", &path(SECRETS, "s"), &json!({})).await;
    }
    // A namespace is selected by its own labels.
    let hook = server.hook(
        "n.example.org",
        json!({"namespaceSelector": {"matchLabels": {"env": "test"}},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["namespaces"]}]}),
    );
    validating(&rig, "v", &[hook]).await.expect(201);
    let namespace = |name: &str, env: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"env": env}}});
    rig.call("POST", "/api/v1/namespaces", &namespace("x", "test")).await.expect(400);
    assert_eq!(server.last()["namespace"], "x");
    rig.call("POST", "/api/v1/namespaces", &namespace("x", "live")).await.expect(201);
    rig.call("DELETE", "/api/v1/namespaces/x", &json!({})).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_asks_and_writes_nothing() {
    let server =
        HookServer::start(|_, _| patched(&json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}])))
            .await;
    let (rig, _) = rig(&server).await;
    mutating(&rig, "m", &[server.hook("a.example.org", json!({"sideEffects": "NoneOnDryRun"}))]).await.expect(201);
    let made = rig.call("POST", &format!("{SECRETS}?dryRun=All"), &secret("s", &json!({}))).await.expect(201);
    assert_eq!(made["metadata"]["labels"], json!({"a": "b"}));
    assert_eq!((&server.last()["dryRun"], &server.last()["options"]["dryRun"]), (&json!(true), &json!(["All"])));
    rig.get(&path(SECRETS, "s")).await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_for_one_version_sees_the_others_converted_to_it() {
    let server = HookServer::start(|path, request| match path {
        "events.example.org" => {
            assert_eq!(request["object"]["regarding"]["name"], "a", "in the newer form");
            patched(&json!([{"op": "add", "path": "/note", "value": "changed"}]))
        }
        _ => Reply::Fields(json!({"allowed": false})),
    })
    .await;
    let (rig, _) = rig(&server).await;
    let rules = |version: &str, group: &str| json!([{"operations": ["CREATE"], "apiGroups": [group], "apiVersions": [version], "resources": ["events"]}]);
    let hook = server.hook("events.example.org", json!({"rules": rules("v1", "events.k8s.io")}));
    mutating(&rig, "m", &[hook]).await.expect(201);
    let exact = json!({"rules": rules("v1", "events.k8s.io"), "matchPolicy": "Exact"});
    validating(&rig, "v", &[server.hook("exact.example.org", exact)]).await.expect(201);
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "message": "m", "reason": "R",
        "type": "Normal", "involvedObject": {"kind": "Secret", "name": "a", "namespace": "rack"}});
    let made = rig.call("POST", "/api/v1/namespaces/rack/events", &event).await.expect(201);
    assert_eq!(made["message"], "changed");
    let asked = server.last();
    assert_eq!(asked["kind"], json!({"group": "events.k8s.io", "version": "v1", "kind": "Event"}));
    assert_eq!(asked["requestKind"], json!({"group": "", "version": "v1", "kind": "Event"}));
    assert_eq!(server.paths(), ["events.example.org"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn subresources_are_asked_about_by_their_own_names() {
    let server = HookServer::start(|path, _| match path {
        "scale.example.org" => patched(&json!([{"op": "replace", "path": "/spec/replicas", "value": 3}])),
        _ => Reply::Fields(json!({"allowed": false})),
    })
    .await;
    let (rig, _) = rig(&server).await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "sets.example.org"},
        "spec": {"group": "example.org", "scope": "Namespaced", "names": {"plural": "sets", "kind": "Set"}, "versions": [{
            "name": "v1", "served": true, "storage": true,
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    });
    rig.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.expect(201);
    let rules = |resource: &str| json!({"rules": [{"operations": ["UPDATE"], "apiGroups": ["example.org"], "apiVersions": ["*"], "resources": [resource]}]});
    mutating(&rig, "m", &[server.hook("scale.example.org", rules("sets/scale"))]).await.expect(201);
    validating(&rig, "v", &[server.hook("status.example.org", rules("sets/status"))]).await.expect(201);
    let sets = "/apis/example.org/v1/namespaces/rack/sets";
    let set =
        json!({"apiVersion": "example.org/v1", "kind": "Set", "metadata": {"name": "a"}, "spec": {"replicas": 1}});
    rig.call("POST", sets, &set).await.expect(201);
    let scaled = rig.patch(&format!("{sets}/a/scale"), MERGE, &json!({"spec": {"replicas": 2}})).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 3);
    let asked = server.last();
    assert_eq!(asked["kind"], json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}));
    assert_eq!((&asked["subResource"], &asked["object"]["spec"]["replicas"]), (&json!("scale"), &json!(2)));
    rig.patch(&format!("{sets}/a/status"), MERGE, &json!({"status": {"replicas": 2}})).await.expect(400);
    assert_eq!((&server.last()["subResource"], &server.last()["object"]["kind"]), (&json!("status"), &json!("Set")));
    rig.patch(&format!("{sets}/a"), MERGE, &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_may_do_everything_writes_configurations() {
    let server = HookServer::start(|_, _| allowed()).await;
    let (rig, _) = rig(&server).await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"kind": "User", "name": "eve"}]});
    rig.call("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/rack/rolebindings", &binding).await.expect(201);
    let mut everywhere = binding.clone();
    everywhere["kind"] = "ClusterRoleBinding".into();
    everywhere["subjects"][0]["name"] = "mallory".into();
    rig.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &everywhere).await.expect(201);
    let body = configuration("Validating", "v", &[server.hook("a.example.org", json!({}))]).to_string();
    for user in ["eve", "mallory"] {
        let identity = Some(UserIdentity::new(user, vec!["system:authenticated".into()], auth::Proof::Certificate));
        for method in ["POST", "GET"] {
            let request = http::Request::builder().method(method).uri(VALIDATING);
            rig.send(identity.clone(), request, body.clone()).await.expect(403);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_are_objects_as_any_other() {
    let server = HookServer::start(|_, _| allowed()).await;
    let (rig, _) = rig(&server).await;
    let made = mutating(&rig, "m", &[server.hook("a.example.org", json!({}))]).await.expect(201);
    assert_eq!((&made["metadata"]["generation"], &made["webhooks"][0]["timeoutSeconds"]), (&json!(1), &json!(10)));
    let patch = json!({"webhooks": [{"name": "a.example.org", "timeoutSeconds": 5}]});
    let changed = rig.patch(&path(MUTATING, "m"), "application/strategic-merge-patch+json", &patch).await.expect(200);
    assert_eq!((&changed["metadata"]["generation"], &changed["webhooks"][0]["timeoutSeconds"]), (&json!(2), &json!(5)));
    assert_eq!(changed["webhooks"][0]["failurePolicy"], "Fail");
    let mut unnamed = made.clone();
    unnamed["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let refused = rig.call("PUT", &path(MUTATING, "m"), &unnamed).await;
    assert!(refused.code == 422 && message(&refused).contains("must be specified for an update"), "{}", refused.text);
    let wrong = server.hook("a.example.org", json!({"timeoutSeconds": 40}));
    let refused = mutating(&rig, "x", &[wrong]).await;
    let wanted = "webhooks[0].timeoutSeconds: Invalid value: 40: the timeout value must be between 1 and 30 seconds";
    assert!(refused.code == 422 && message(&refused).contains(wanted), "{}", refused.text);
    let table = http::Request::get(MUTATING).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table = rig.send(admin(), table, Body::empty()).await.expect(200);
    assert_eq!(table["rows"][0]["cells"][1], 1, "{table}");
}
