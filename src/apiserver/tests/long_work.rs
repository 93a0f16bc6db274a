//! Work on large objects leaves room for everybody else.

use super::*;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WORKS: &str = "/apis/example.org/v1/namespaces/rack/works";
const APPLY: &str = "application/apply-patch+yaml";

fn mallory() -> Option<UserIdentity> {
    Some(UserIdentity::new("mallory", vec![auth::ADMIN_GROUP.into()], auth::Proof::Certificate))
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "works.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": {"plural": "works", "singular": "work", "kind": "Work"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                    "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                        "items": {"type": "object", "required": ["k"], "properties": {
                            "k": {"type": "integer"}, "v": {"type": "string", "maxLength": 5}}}},
                    "ruled": {"type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": [
                        {"rule": "self.all(x, self.all(y, x + y >= 0))"}, {"rule": "self.map(x, x + 1).size() >= 0"}]},
                }}},
            }}}],
        },
    })
}

fn work(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "example.org/v1", "kind": "Work", "metadata": {"name": name}, "spec": spec})
}

/// A member with a very long path, of very many.
fn deep() -> Value {
    let mut value: Value =
        (0..35_000).map(|one| (format!("m{one}"), json!(one))).collect::<serde_json::Map<_, _>>().into();
    let name = "n".repeat(4000);
    for _ in 0..90 {
        value = json!({ &*name: value });
    }
    json!({ "free": value })
}

fn keyed(entries: usize, v: &str) -> Value {
    (0..entries).map(|k| json!({"k": k, "v": v})).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_are_answered_while_a_caller_sends_the_worst_that_there_is() {
    let rig = Arc::new(Rig::new().await);
    rig.call("POST", CRDS, &definition()).await.expect(201);
    rig.call("POST", WORKS, &work("keyed", &json!({"keyed": keyed(6_000, "a")}))).await.expect(201);
    let at = path(WORKS, "keyed");
    let mut reversed = keyed(6_000, "b");
    reversed.as_array_mut().unwrap().reverse();
    let reversed = work("keyed", &json!({ "keyed": reversed })).to_string();
    let deep = work("deep", &deep()).to_string();
    let ruled = work("ruled", &json!({"ruled": (0..20_000).collect::<Vec<u32>>()})).to_string();
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "x".repeat(1 << 20), "verb": "get"}}});
    let applied = format!("{at}?fieldManager=m&force=true");
    let bodies = [
        ("POST", WORKS.to_owned(), "application/json", deep),
        ("PATCH", applied, APPLY, reversed.clone()),
        ("PATCH", at.clone(), MERGE, reversed),
        ("POST", WORKS.to_owned(), "application/json", ruled),
        (
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned(),
            "application/json",
            review.to_string(),
        ),
    ];
    let mut flood = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let (rig, bodies, at) = (Arc::clone(&rig), bodies.clone(), at.clone());
        flood.spawn(async move {
            let mut codes = Vec::new();
            for (method, at, media, body) in bodies {
                let request = http::Request::builder().method(method).uri(at).header("content-type", media);
                codes.push(rig.send(mallory(), request, body).await.code);
            }
            let read = http::Request::get(&at).header("accept", "application/yaml");
            codes.push(rig.send(mallory(), read, Body::empty()).await.code);
            codes
        });
    }
    let others = async {
        for round in 0..5 {
            for at in ["/healthz", SECRETS, HOSTS] {
                let answer = rig.get(at).await;
                assert_eq!(answer.code, 200, "{at} {}", answer.text);
            }
            rig.call("POST", HOSTS, &host(&format!("h{round}"))).await.expect(201);
        }
    };
    // Who asks for little has had all of it before.
    tokio::select! {
        biased;
        () = others => {}
        _ = flood.join_next() => panic!("others wait for the long work of one"),
    }
    while let Some(codes) = tokio::time::timeout(DEADLINE * 3, flood.join_next()).await.expect("it ends") {
        // What is too much at once may be refused as such.
        let codes = codes.unwrap();
        let wanted: [&[u16]; 6] = [&[201, 409], &[200, 409], &[200], &[422], &[201, 422], &[200]];
        let meant = codes.iter().zip(wanted).all(|(code, wanted)| *code == 429 || wanted.contains(code));
        assert!(meant && codes.iter().filter(|code| **code != 429).count() > 1, "{codes:?}");
    }
    assert_eq!(rig.api.inner.long.callers(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_that_waits_for_its_turn_keeps_no_namespace_from_ending() {
    let rig = Rig::new().await;
    rig.call("POST", CRDS, &definition()).await.expect(201);
    rig.api.make_namespace("ends").await.unwrap();
    let other = UserIdentity::new("other", vec![], auth::Proof::Certificate);
    let turn = rig.api.inner.long.whole(&other).await;
    let waits = work("a", &json!({"free": {"text": "x".repeat(200_000)}}));
    let mut post = std::pin::pin!(rig.call("POST", WORKS, &waits));
    tokio::select! {
        biased;
        _ = &mut post => panic!("it did not wait"),
        gate = rig.api.namespace_gate().write() => drop(gate),
    }
    drop(turn);
    post.await.expect(201);
}

#[tokio::test]
async fn managers_of_an_object_are_so_many() {
    let rig = Rig::new().await;
    let entry = |one: usize| {
        json!({"apiVersion": "v1", "fieldsType": "FieldsV1", "operation": "Apply", "manager": format!("m{one}"),
            "fieldsV1": {"f:data": {format!("f:k{one}"): {}}}})
    };
    let maps = "/api/v1/namespaces/rack/configmaps";
    let with = |name: &str, managers: usize| {
        let entries: Vec<Value> = (0..managers).map(entry).collect();
        let data: serde_json::Map<_, _> = (0..managers).map(|one| (format!("k{one}"), json!("v"))).collect();
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "managedFields": entries}, "data": data})
    };
    let refused = rig.call("POST", maps, &with("many", 600)).await.expect(400);
    assert!(refused["message"].as_str().unwrap().contains("at most 512"), "{refused}");
    let apply = async |manager: &str| {
        let config =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "few"}, "data": {manager: "v"}});
        rig.patch(&format!("{maps}/few?fieldManager={manager}"), APPLY, &config).await.code
    };
    for one in 0..256 {
        assert!(matches!(apply(&format!("m{one}")).await, 200 | 201), "{one}");
    }
    assert_eq!((apply("one-too-many").await, apply("m1").await), (400, 200));
    // What was written by others meanwhile is no matter of managers.
    rig.patch(&format!("{maps}/few"), MERGE, &json!({"data": {"m7": "w"}})).await.expect(200);
}

#[tokio::test]
async fn a_status_that_cannot_be_checked_is_refused() {
    let rig = Rig::new().await;
    let mut definition = definition();
    let version = &mut definition["spec"]["versions"][0];
    let choices: Vec<Value> = (0..20_000).map(|one| json!(one)).collect();
    version["subresources"] = json!({"status": {}});
    version["schema"]["openAPIV3Schema"]["properties"]["status"] = json!({"type": "object", "properties":
        {"l": {"type": "array", "items": {"type": "integer", "enum": choices}}}});
    rig.call("POST", CRDS, &definition).await.expect(201);
    rig.call("POST", WORKS, &work("a", &json!({}))).await.expect(201);
    let status = format!("{WORKS}/a/status");
    rig.patch(&status, MERGE, &json!({"status": {"l": [1, 2]}})).await.expect(200);
    let refused = rig.patch(&status, MERGE, &json!({"status": {"l": vec![19_999; 50_000]}})).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("would take too long"), "{refused:.500}");
}
