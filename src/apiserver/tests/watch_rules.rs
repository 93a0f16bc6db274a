//! Tests of watches through the router.

use axum::body::BodyDataStream;
use futures::StreamExt;

use super::*;

/// Lines of a watch.
pub(super) struct Lines {
    stream: BodyDataStream,
    buffer: String,
}

impl Lines {
    pub(super) fn of(response: http::Response<Body>) -> Self {
        Self { stream: response.into_body().into_data_stream(), buffer: String::new() }
    }

    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((line, rest)) = self.buffer.split_once('\n') {
                let value = serde_json::from_str(line).unwrap();
                self.buffer = rest.to_owned();
                return Some(value);
            }
            let chunk = tokio::time::timeout(DEADLINE, self.stream.next()).await.expect("the watch is silent")?;
            self.buffer.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
        }
    }

    async fn expect(&mut self, kind: &str, name: &str) -> Value {
        let event = self.next().await.expect("the watch ended");
        assert_eq!((event["type"].as_str(), event["object"]["metadata"]["name"].as_str()), (Some(kind), Some(name)));
        event["object"].clone()
    }
}

pub(super) async fn watch(rig: &Rig, at: &str, accept: &str) -> Lines {
    let mut request = http::Request::get(at).header("accept", accept).body(Body::empty()).unwrap();
    request.extensions_mut().insert(admin().unwrap());
    let response = rig.api.router().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    Lines::of(response)
}

#[tokio::test]
async fn changes_come_in_order_from_a_revision_or_from_the_start() {
    let rig = Rig::new().await;
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let revision = rig.get(HOSTS).await.expect(200)["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut after = watch(&rig, &format!("{HOSTS}?&watch=true&resourceVersion={revision}"), "application/json").await;
    let mut first = watch(&rig, &format!("{HOSTS}?watch=1"), "application/json").await;
    rig.call("POST", HOSTS, &host("b")).await.expect(201);
    rig.patch(&path(HOSTS, "a"), MERGE, &json!({"spec": {"online": false}})).await.expect(200);
    rig.call("DELETE", &path(HOSTS, "b"), &json!({})).await.expect(200);
    first.expect("ADDED", "a").await;
    for lines in [&mut after, &mut first] {
        lines.expect("ADDED", "b").await;
        assert_eq!(lines.expect("MODIFIED", "a").await["spec"]["online"], false);
        let last = lines.expect("DELETED", "b").await;
        assert_eq!(last["metadata"]["resourceVersion"], rig.api.store().revision().to_string());
    }
}

#[tokio::test]
async fn a_selector_sees_objects_enter_and_leave() {
    let rig = Rig::new().await;
    rig.api.make_namespace("other").await.unwrap();
    let mut lines = watch(&rig, &format!("{HOSTS}?watch=true&labelSelector=in%3Dyes"), "application/json").await;
    rig.call("POST", &HOSTS.replace("rack", "other"), &host("z")).await.expect(201);
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    for value in [json!("yes"), json!("no"), json!("maybe"), json!("yes")] {
        rig.patch(&path(HOSTS, "a"), MERGE, &json!({"metadata": {"labels": {"in": value}}})).await.expect(200);
    }
    rig.patch(&path(HOSTS, "a"), MERGE, &json!({"spec": {"online": false}})).await.expect(200);
    for kind in ["ADDED", "DELETED", "ADDED", "MODIFIED"] {
        lines.expect(kind, "a").await;
    }
}

#[tokio::test]
async fn a_revision_that_is_not_kept_ends_the_watch() {
    let rig = Rig::new().await;
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    for n in 0..150 {
        rig.patch(&path(HOSTS, "a"), MERGE, &json!({"metadata": {"labels": {"n": n.to_string()}}})).await.expect(200);
    }
    for revision in ["1", "999999"] {
        let at = format!("{HOSTS}?watch=true&resourceVersion={revision}");
        let mut lines = watch(&rig, &at, "application/json").await;
        let event = lines.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)), "{revision}");
        assert_eq!(event["object"]["reason"], "Expired");
        assert!(lines.next().await.is_none());
    }
}

#[tokio::test]
async fn bookmarks_and_time_limits_are_kept() {
    let rig = Rig::new().await;
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let initial = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut lines = watch(&rig, &format!("{HOSTS}?{initial}&timeoutSeconds=1"), "application/json").await;
    lines.expect("ADDED", "a").await;
    let end = lines.next().await.unwrap();
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    // Something else was written: the bookmark that ends the watch is behind it.
    let revision = rig.api.make_namespace("other").await.map(|()| rig.api.store().revision()).unwrap();
    let bookmark = lines.next().await.unwrap();
    assert_eq!((&bookmark["type"], &bookmark["object"]["kind"]), (&json!("BOOKMARK"), &json!("BareMetalHost")));
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], revision.to_string());
    assert!(lines.next().await.is_none());
    for query in ["watch=true&sendInitialEvents=true", "watch=true&resourceVersionMatch=NotOlderThan"] {
        rig.get(&format!("{HOSTS}?{query}")).await.expect(422);
    }
}

#[tokio::test]
async fn a_watched_table_has_its_headings_once_and_a_shutdown_ends_it() {
    let rig = Rig::new().await;
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut lines = watch(&rig, &format!("{HOSTS}?watch=true"), accept).await;
    rig.call("POST", HOSTS, &host("b")).await.expect(201);
    for (name, headings) in [("a", true), ("b", false)] {
        let event = lines.next().await.unwrap();
        assert_eq!(event["object"]["columnDefinitions"].is_array(), headings);
        assert_eq!(event["object"]["rows"][0]["cells"][0], name);
    }
    rig.api.shutdown().cancel();
    assert!(lines.next().await.is_none());
    for (at, code) in [("/readyz", 500), ("/readyz/shutdown", 500), ("/livez", 200), ("/healthz", 200)] {
        assert_eq!(rig.get(at).await.code, code, "{at}");
    }
}

#[tokio::test]
async fn who_does_not_read_is_told_so_and_keeps_nothing() {
    let rig = Rig::new().await;
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let revision = rig.api.store().revision();
    let mut slow = watch(&rig, &format!("{HOSTS}?watch=true&resourceVersion={revision}"), "application/json").await;
    for n in 0..150 {
        rig.patch(&path(HOSTS, "a"), MERGE, &json!({"metadata": {"labels": {"n": n.to_string()}}})).await.expect(200);
    }
    let event = slow.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert!(slow.next().await.is_none());
}

#[tokio::test]
async fn a_watch_goes_on_after_a_restart_without_a_gap() {
    let mut rig = Rig::new().await;
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let revision = rig.get(HOSTS).await.expect(200)["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    rig.patch(&path(HOSTS, "a"), MERGE, &json!({"spec": {"online": false}})).await.expect(200);
    rig.call("POST", HOSTS, &host("b")).await.expect(201);
    for _ in 0..2 {
        rig.restart().await;
        let mut lines =
            watch(&rig, &format!("{HOSTS}?watch=true&resourceVersion={revision}"), "application/json").await;
        assert_eq!(lines.expect("MODIFIED", "a").await["spec"]["online"], false);
        lines.expect("ADDED", "b").await;
    }
    rig.call("DELETE", &path(HOSTS, "b"), &json!({})).await.expect(200);
    rig.restart().await;
    let mut lines = watch(&rig, &format!("{HOSTS}?watch=true&resourceVersion={revision}"), "application/json").await;
    for (kind, name) in [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "b")] {
        lines.expect(kind, name).await;
    }
    // Views live in memory only: what happened to them before the restart is not known, and said to be so.
    let views = "/apis/slipway.dev/v1alpha1/dhcpleases";
    let lease = json!({"apiVersion": "slipway.dev/v1alpha1", "kind": "DHCPLease", "metadata": {"name": "10.0.0.1"},
        "spec": {"address": "10.0.0.1", "mac": "00:00:00:00:00:01", "network": "n", "state": "bound"}});
    let change = Mutation {
        resource: "slipway.dev/dhcpleases".into(),
        namespace: String::new(),
        name: "10.0.0.1".into(),
        expect: Expect::Absent,
        value: Some(lease),
    };
    let before = rig.api.store().publish(change).await.unwrap().revision - 1;
    rig.restart().await;
    let mut lines = watch(&rig, &format!("{views}?watch=true&resourceVersion={before}"), "application/json").await;
    assert_eq!(lines.next().await.unwrap()["object"]["code"], 410);
}

#[tokio::test]
async fn a_list_as_a_stream_ends_with_its_bookmark_and_waits_for_its_revision() {
    let rig = Rig::new().await;
    for name in ["a", "b"] {
        rig.call("POST", HOSTS, &host(name)).await.expect(201);
    }
    let next = rig.api.store().revision() + 1;
    let initial = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let at = format!("{HOSTS}?{initial}&resourceVersion={next}&labelSelector=x%3Dy");
    let accept = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let (mut lines, _) = tokio::join!(watch(&rig, &at, accept), async {
        tokio::task::yield_now().await;
        rig.patch(&path(HOSTS, "b"), MERGE, &json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200)
    });
    let first = lines.expect("ADDED", "b").await;
    assert_eq!((&first["kind"], first.get("spec")), (&json!("PartialObjectMetadata"), None));
    let end = lines.next().await.unwrap();
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(end["object"]["metadata"]["resourceVersion"], next.to_string());
    let late = rig.get(&format!("{HOSTS}?{initial}&resourceVersion=999999")).await;
    assert_eq!((late.code, &late.json()["reason"]), (504, &json!("Timeout")));
}

#[tokio::test]
async fn of_all_that_want_a_lease_one_gets_it() {
    let rig = Rig::new().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/rack/leases";
    let held = |who: &str, transitions: i64| {
        json!({"holderIdentity": who, "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseTransitions": transitions})
    };
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "leader"}, "spec": held("nobody", 0)});
    let made = rig.call("POST", leases, &lease).await.expect(201);
    for round in 1..4 {
        let seen = rig.get(&path(leases, "leader")).await.expect(200);
        let candidates = (0..8).map(|number| {
            let mut wish = seen.clone();
            wish["spec"] = held(&format!("candidate-{number}"), round);
            let rig = &rig;
            async move { rig.call("PUT", &path(leases, "leader"), &wish).await }
        });
        let answers = futures::future::join_all(candidates).await;
        let won: Vec<&Answer> = answers.iter().filter(|answer| answer.code == 200).collect();
        assert_eq!(won.len(), 1);
        assert!(answers.iter().all(|answer| answer.code == 200 || answer.json()["reason"] == "Conflict"));
        let now = rig.get(&path(leases, "leader")).await.expect(200);
        assert_eq!((&now["spec"], &now["metadata"]["uid"]), (&won[0].json()["spec"], &made["metadata"]["uid"]));
    }
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = rig.send(admin(), http::Request::get(leases).header("accept", accept), Body::empty()).await.expect(200);
    let names: Vec<&str> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!((names, &table["rows"][0]["cells"][0]), (vec!["Name", "Holder", "Age"], &json!("leader")));
}
