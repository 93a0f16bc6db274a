//! Tests of overload: what one caller can take of what all share.

use std::convert::Infallible;

use bytes::Bytes;
use futures::StreamExt;
use tokio::task::JoinSet;

use super::*;

const MAPS: &str = "/api/v1/namespaces/rack/configmaps";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

const JSON_PATCH: &str = "application/json-patch+json";

fn user(name: &str) -> Option<UserIdentity> {
    Some(UserIdentity::new(name, vec![auth::ADMIN_GROUP.into()], auth::Proof::Certificate))
}

/// A body that begins and goes on when it is told to.
fn late_body(first: &'static str, rest: tokio::sync::oneshot::Receiver<String>) -> Body {
    let first = futures::stream::iter([Bytes::from_static(first.as_bytes())]);
    let rest = futures::stream::once(async { rest.await.map(Bytes::from).unwrap_or_default() });
    Body::from_stream(first.chain(rest).map(Ok::<_, Infallible>))
}

#[tokio::test]
async fn a_request_whose_body_does_not_come_holds_up_nobody() {
    let rig = Rig::new().await;
    let mut hanging = JoinSet::new();
    let mut rests = Vec::new();
    for _ in 0..inflight::WRITES + 20 {
        let (rest, comes) = tokio::sync::oneshot::channel();
        rests.push(rest);
        let mut request = http::Request::post(REVIEWS).body(late_body("{", comes)).unwrap();
        request.extensions_mut().insert(user("slow").unwrap());
        hanging.spawn(rig.api.router().oneshot(request));
    }
    while hanging.try_join_next().is_none() && rig.api.inner.inflight.bodies() < inflight::WRITES + 20 {
        tokio::task::yield_now().await;
    }
    rig.call("POST", MAPS, &json!({"metadata": {"name": "a"}})).await.expect(201);
    let own = rig.send(user("slow"), http::Request::post(MAPS), json!({"metadata": {"name": "b"}}).to_string()).await;
    assert_eq!(own.code, 201, "{}", own.text);
}

#[tokio::test]
async fn one_callers_bodies_leave_room_for_those_of_others() {
    let rig = Rig::new().await;
    let large = format!("{{\"a\":\"{}", "x".repeat(2 << 20)).leak();
    let (mut hanging, mut rests) = (JoinSet::new(), Vec::new());
    // More than there is room for.
    for _ in 0..70 {
        let (rest, comes) = tokio::sync::oneshot::channel();
        rests.push(rest);
        let mut request = http::Request::post(REVIEWS).body(late_body(large, comes)).unwrap();
        request.extensions_mut().insert(user("greedy").unwrap());
        hanging.spawn(rig.api.router().oneshot(request));
    }
    let refused = tokio::time::timeout(DEADLINE, hanging.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(refused.status(), 429);
    assert!(rig.api.inner.inflight.bodies() <= 96 << 20);
    let object = json!({"metadata": {"name": "a"}, "data": {"a": "x".repeat(900_000)}});
    rig.call("POST", MAPS, &object).await.expect(201);
}

#[tokio::test]
async fn who_waits_for_a_revision_holds_up_no_reader() {
    let rig = Rig::new().await;
    let mut waiting = JoinSet::new();
    for _ in 0..inflight::READS + 20 {
        let request = http::Request::get(format!("{MAPS}?resourceVersionMatch=NotOlderThan&resourceVersion=99999999"));
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(user("patient").unwrap());
        waiting.spawn(rig.api.router().oneshot(request));
    }
    for _ in 0..20 {
        tokio::task::yield_now().await;
        rig.get(MAPS).await.expect(200);
    }
    let late = tokio::time::timeout(DEADLINE, waiting.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(late.status(), 504);
}

#[tokio::test]
async fn one_token_leaves_watches_for_the_others() {
    let rig = Rig::new().await;
    let at = format!("{MAPS}?watch=true&resourceVersion={}", rig.api.store().revision());
    let watch = async |name: &str| {
        let user = user(&format!("system:serviceaccount:slipway-system:{name}"));
        let mut request = http::Request::get(&at).body(Body::empty()).unwrap();
        request.extensions_mut().insert(user.unwrap());
        rig.api.router().oneshot(request).await.unwrap()
    };
    let mut greedy = Vec::new();
    let last = loop {
        let response = watch("greedy").await;
        match response.status().as_u16() {
            200 => greedy.push(response),
            code => break code,
        }
        assert!(greedy.len() <= inflight::WATCHES);
    };
    assert_eq!((greedy.len(), last), (inflight::WATCHES * 3 / 4, 429));
    let other = watch("other").await;
    assert_eq!(other.status(), 200);
    assert_eq!(watch("greedy").await.status(), 429);
}

/// Each change of a kind is held against the selectors of all its watches.
#[tokio::test]
async fn a_watch_with_a_long_selector_counts_as_several() {
    let rig = Rig::new().await;
    let revision = rig.api.store().revision();
    let watch = async |selector: &str| {
        let uri = format!("{MAPS}?watch=true&resourceVersion={revision}&labelSelector={selector}");
        let mut request = http::Request::get(uri).body(Body::empty()).unwrap();
        request.extensions_mut().insert(user("system:serviceaccount:rack:bot").unwrap());
        rig.api.router().oneshot(request).await.unwrap()
    };
    let long: Vec<String> = (0..60).map(|number| format!("k{number}%20notin%20(a,b,c)")).collect();
    let long = long.join(",");
    let mut greedy = Vec::new();
    let last = loop {
        let response = watch(&long).await;
        match response.status().as_u16() {
            200 => greedy.push(response),
            code => break code,
        }
        assert!(greedy.len() <= inflight::WATCHES);
    };
    // 60 keys and 180 values.
    assert_eq!((greedy.len(), last), (inflight::WATCHES * 3 / 4 / 31, 429));
    drop(greedy);
    assert_eq!(watch("app=a").await.status(), 200);
}

#[tokio::test]
async fn who_lost_a_right_while_the_body_came_has_lost_it() {
    let rig = Rig::new().await;
    let object = |kind: &str, name: &str, rest: Value| {
        let mut object = json!({"kind": kind, "metadata": {"name": name}});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    };
    let rbac = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let binding = object(
        "ClusterRoleBinding",
        "mallory",
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}],
        }),
    );
    rig.call("POST", rbac, &binding).await.expect(201);
    let mallory = UserIdentity::new("mallory", Vec::new(), auth::Proof::Certificate);
    eventually(async || rig.send(Some(mallory.clone()), http::Request::get(MAPS), Body::empty()).await.code == 200)
        .await;
    let (rest, comes) = tokio::sync::oneshot::channel();
    let mut request = http::Request::post(MAPS).body(late_body("{", comes)).unwrap();
    request.extensions_mut().insert(mallory.clone());
    let begun = tokio::spawn(rig.api.router().oneshot(request));
    eventually(async || rig.api.inner.inflight.bodies() > 0).await;
    rig.send(admin(), http::Request::delete(path(rbac, "mallory")), Body::empty()).await.expect(200);
    eventually(async || rig.send(Some(mallory.clone()), http::Request::get(MAPS), Body::empty()).await.code == 403)
        .await;
    rest.send("\"metadata\":{\"name\":\"a\"}}".into()).unwrap();
    assert_eq!(begun.await.unwrap().unwrap().status(), 403);
    rig.get(&path(MAPS, "a")).await.expect(404);
}

#[tokio::test]
async fn an_object_has_no_more_values_than_are_taken() {
    let rig = Rig::new().await;
    let many = |each: &str, count: usize| format!("[{}]", vec![each; count].join(","));
    let post = async |field: &str, values: String| {
        let body = format!("{{\"metadata\":{{\"name\":\"x\"{field}:{values}}}}}");
        rig.send(admin(), http::Request::post(MAPS), body).await
    };
    for each in ["{}", "[]", "{\"\":0}", "0"] {
        let refused = post("},\"foo\":{\"a\"", many(each, body::VALUES_MAX)).await;
        assert_eq!(refused.code, 400, "{}", refused.text);
        assert!(refused.text.contains("the object has too many values: at most 100000 are taken"), "{}", refused.text);
    }
    let large = json!({"metadata": {"annotations": {"a": "[,{".repeat(40_000)}}});
    rig.call("POST", MAPS, &json!({"metadata": {"name": "text"}})).await.expect(201);
    for (kind, patch) in [
        (MERGE, json!({"x": vec![0; body::VALUES_MAX]})),
        (
            JSON_PATCH,
            json!([{"op": "add", "path": "/x",
        "value": vec![0; body::VALUES_MAX]}]),
        ),
    ] {
        let refused = rig.patch(&path(MAPS, "text"), kind, &patch).await;
        assert!(refused.code == 400 && refused.text.contains("too many values"), "{}", refused.text);
    }
    // What only looks like many values in a text is one.
    rig.patch(&path(MAPS, "text"), MERGE, &large).await.expect(200);
    // As many as are taken are not told as many faults.
    for (field, each, told) in [(",\"ownerReferences\"", "{}", 64), (",\"finalizers\"", "\"\"", 1)] {
        let refused = post(field, many(each, body::VALUES_MAX - 10)).await;
        assert_eq!(refused.code, 422, "{}", refused.text);
        assert_eq!(refused.json()["details"]["causes"].as_array().unwrap().len(), told);
    }
    // Nor does an object grow to them by and by.
    let hosts = "/apis/metal3.io/v1alpha1/namespaces/rack/hardwaredata";
    let made = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "HardwareData", "metadata": {"name": "h"},
        "spec": {}});
    rig.call("POST", hosts, &made).await.expect(201);
    let add = json!([{"op": "add", "path": "/metadata/labels", "value": {}},
        {"op": "add", "path": "/x", "value": vec![0; 40_000]},
        {"op": "copy", "from": "/x", "path": "/y"}, {"op": "copy", "from": "/x", "path": "/z"}]);
    let refused = rig.patch(&path(hosts, "h"), JSON_PATCH, &add).await;
    assert!(refused.code == 400 && refused.text.contains("too many values"), "{}", refused.text);
}

#[test]
fn values_are_counted_without_reading_them() {
    for text in [
        "1",
        "[]",
        "{}",
        "[1,2,[3,{\"a\":[]}]]",
        "{\"a\":{\"b\":{\"c\":[[[1]]]}},\"d\":\",[{\\\",[{\\\\\"}",
        " [ { \"\" : 0 } , null , \"x\" ] ",
    ] {
        fn count(value: &Value) -> usize {
            match value {
                Value::Array(entries) => 1 + entries.iter().map(count).sum::<usize>(),
                Value::Object(map) => 1 + map.values().map(count).sum::<usize>(),
                _ => 1,
            }
        }
        let values = count(&serde_json::from_str(text).unwrap());
        assert_eq!(body::count_values(text.as_bytes()), values, "{text}");
    }
}

#[tokio::test]
async fn long_lists_are_not_ordered_for_minutes() {
    let rig = Rig::new().await;
    let accounts = "/api/v1/namespaces/rack/serviceaccounts";
    let names: Vec<Value> = (0..20_000).map(|i| json!({"name": format!("s{i}")})).collect();
    rig.call("POST", accounts, &json!({"metadata": {"name": "a"}, "secrets": names})).await.expect(201);
    let patch = json!({"$setElementOrder/secrets": names, "secrets": [{"name": "s1"}]});
    let refused = rig.patch(&path(accounts, "a"), "application/strategic-merge-patch+json", &patch).await;
    assert!(refused.code == 400 && refused.text.contains("the lists are too long to be merged"), "{}", refused.text);
}

#[tokio::test]
async fn two_namespaces_leave_room_for_the_others() {
    let rig = Rig::new().await;
    for name in ["lab", "small"] {
        rig.api.make_namespace(name).await.unwrap();
    }
    // As if much were kept of each.
    rig.api.store().add_weight("/configmaps", 64 << 20);
    let maps = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    let text: String = (0..256).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
    let object = |name: &str| json!({"metadata": {"name": name}, "data": {"a": text}});
    for name in ["a", "b", "c"] {
        for namespace in ["rack", "lab"] {
            rig.call("POST", &maps(namespace), &object(name)).await.expect(201);
        }
    }
    let refused = rig.call("POST", &maps("rack"), &object("d")).await.expect(507);
    assert!(refused["message"].as_str().unwrap().contains("namespace rack"), "{refused}");
    let secrets = |namespace: &str| format!("/api/v1/namespaces/{namespace}/secrets");
    let kept = json!({"metadata": {"name": "s"}, "stringData": {"a": text}});
    rig.call("POST", &secrets("lab"), &kept).await.expect(507);
    // Who has little, and what is of no namespace.
    rig.call("POST", &secrets("small"), &kept).await.expect(201);
    let annotated = json!({"metadata": {"name": "new", "annotations": {"a": text}}});
    rig.call("POST", "/api/v1/namespaces", &annotated).await.expect(201);
    rig.patch(&path(&maps("rack"), "a"), MERGE, &json!({"data": {"a": "less"}})).await.expect(200);
    rig.call("DELETE", &path(&maps("rack"), "a"), &json!({})).await.expect(200);
    rig.call("POST", &secrets("lab"), &kept).await.expect(201);
}
