//! Watch.

use axum::body::BodyDataStream;
use futures::StreamExt;

use super::*;

/// Lines of a watch.
struct Lines {
    stream: BodyDataStream,
    buffer: String,
}

impl Lines {
    async fn next(&mut self) -> Option<Value> {
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

async fn watch(rig: &Rig, at: &str, accept: &str) -> Lines {
    let mut request = http::Request::get(at).header("accept", accept).body(Body::empty()).unwrap();
    request.extensions_mut().insert(admin().unwrap());
    let response = rig.api.router().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    Lines { stream: response.into_body().into_data_stream(), buffer: String::new() }
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
