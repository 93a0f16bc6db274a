//! Selectors over many objects, and who gets on meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinSet;

use super::*;

const MAPS: &str = "/api/v1/namespaces/rack/configmaps";
const OTHERS: &str = "/api/v1/namespaces/other/configmaps";
const OBJECTS: usize = 2000;
const SCANS: usize = 24;

fn user(name: &str) -> UserIdentity {
    UserIdentity::new(name, vec![auth::ADMIN_GROUP.into()], auth::Proof::Certificate)
}

/// Many objects with many labels, and one of another namespace.
async fn fill(rig: &Rig) {
    rig.api.make_namespace("other").await.unwrap();
    let labels: Value =
        (0..40).map(|label| (format!("l{label:02}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let write = |namespace: &str, name: String| {
        let value = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace, "labels": labels},
        });
        rig.api.store().write(Mutation {
            resource: "/configmaps".into(),
            namespace: namespace.into(),
            name,
            expect: Expect::Absent,
            value: Some(value),
        })
    };
    let many = (0..OBJECTS).map(|number| write("rack", format!("o{number:04}")));
    futures::future::join_all(many).await.into_iter().for_each(|written| drop(written.unwrap()));
    write("other", "mine".into()).await.unwrap();
}

/// Requirements that all objects meet, and one that none does.
fn heavy() -> String {
    let all: Vec<_> = (0..60).map(|number| format!("l{:02}!=x{number}", number % 40)).collect();
    format!("labelSelector={},l00=zz", all.join(","))
}

/// The ways to have many objects looked at.
fn ways() -> [(http::Method, String); 4] {
    [
        (Method::GET, format!("{MAPS}?limit=1&{}", heavy())),
        (Method::GET, format!("{MAPS}?watch=true&resourceVersion=0&{}", heavy())),
        (
            Method::GET,
            format!("{MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&{}", heavy()),
        ),
        (Method::DELETE, format!("{MAPS}?{}", heavy())),
    ]
}

/// Many requests of one caller; how many of them are answered.
fn flood(rig: &Rig, method: &Method, at: &str) -> (JoinSet<()>, Arc<AtomicUsize>) {
    let (mut scans, answered) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for _ in 0..SCANS {
        let mut request = http::Request::builder().method(method).uri(at).body(Body::empty()).unwrap();
        request.extensions_mut().insert(user("mallory"));
        let (serving, answered) = (rig.api.router().oneshot(request), Arc::clone(&answered));
        scans.spawn(async move {
            assert_eq!(serving.await.unwrap().status(), 200);
            answered.fetch_add(1, Ordering::SeqCst);
        });
    }
    (scans, answered)
}

fn under_way(rig: &Rig) -> usize {
    let (reads, writes) = rig.api.inner.inflight.taken();
    reads + writes
}

#[tokio::test]
async fn others_are_answered_while_one_caller_selects() {
    let rig = Rig::new().await;
    fill(&rig).await;
    for (method, at) in ways() {
        let (mut scans, answered) = flood(&rig, &method, &at);
        while under_way(&rig) < SCANS && answered.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let small = format!("{OTHERS}?labelSelector=l00%3Dv");
        for (asked, body) in [("/healthz".to_owned(), "ok"), (path(OTHERS, "mine"), "mine"), (small, "mine")] {
            let answer = rig.get(&asked).await;
            assert!(answer.code == 200 && answer.text.contains(body), "{asked}: {}", answer.text);
            tokio::task::yield_now().await;
        }
        let name = format!("new-{}", answered.load(Ordering::SeqCst));
        rig.call("POST", OTHERS, &json!({"metadata": {"name": name}})).await.expect(201);
        rig.call("DELETE", &path(OTHERS, &name), &json!({})).await.expect(200);
        let done = answered.load(Ordering::SeqCst);
        assert!(done < SCANS, "all {done} were answered first: {method} {}", &at[..90]);
        while scans.join_next().await.transpose().unwrap().is_some() {}
        assert_eq!(under_way(&rig), 0);
    }
}

#[tokio::test]
async fn who_goes_away_is_not_worked_for() {
    let rig = Rig::new().await;
    fill(&rig).await;
    for (method, at) in ways() {
        let (mut scans, answered) = flood(&rig, &method, &at);
        while under_way(&rig) < SCANS && answered.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        scans.abort_all();
        while scans.join_next().await.is_some() {}
        let done = answered.load(Ordering::SeqCst);
        assert!(done < SCANS, "all {done} were answered: {method} {}", &at[..90]);
        assert_eq!(under_way(&rig), 0);
        let (mut again, answered) = flood(&rig, &method, &at);
        while again.join_next().await.transpose().unwrap().is_some() {}
        assert_eq!(answered.load(Ordering::SeqCst), SCANS);
    }
}

#[tokio::test]
async fn who_waits_for_a_turn_waits_no_longer_than_a_request_may_take() {
    let rig = Rig::new().await;
    fill(&rig).await;
    let ask = async |method: &Method, at: &str| {
        let mut request = http::Request::builder().method(method).uri(at).body(Body::empty()).unwrap();
        request.extensions_mut().insert(user("mallory"));
        rig.api.router().oneshot(request).await.unwrap().status()
    };
    let busy = rig.api.inner.scans.begin(&user("mallory")).await;
    for (method, at) in ways() {
        let at = format!("{at}&timeout=10ms&timeoutSeconds=1");
        assert_eq!(ask(&method, &at).await, 504, "{method} {}", &at[..90]);
    }
    drop(busy);
    for (method, at) in ways() {
        assert_eq!(ask(&method, &at).await, 200, "{method} {}", &at[..90]);
    }
    assert_eq!(rig.api.inner.scans.callers(), 0);
}

#[tokio::test]
async fn what_no_client_asks_is_refused() {
    let rig = Rig::new().await;
    let many = |count: usize| (0..count).map(|number| format!("l{number}!=x")).collect::<Vec<_>>().join(",");
    let values = |count: usize| (0..count).map(|number| format!("v{number}")).collect::<Vec<_>>().join(",");
    rig.get(&format!("{MAPS}?labelSelector={}", many(64))).await.expect(200);
    rig.get(&format!("{MAPS}?labelSelector=a%20in%20({})", values(256))).await.expect(200);
    for (selector, reason) in [
        (many(65), "a label selector may have at most 64 requirements"),
        (format!("a%20in%20({})", values(257)), "a label selector may name at most 256 values"),
        (
            format!("a%20in%20({}),b%20notin%20({})", values(200), values(57)),
            "a label selector may name at most 256 values",
        ),
    ] {
        for at in [format!("{MAPS}?labelSelector={selector}"), format!("{MAPS}?watch=true&labelSelector={selector}")] {
            let refused = rig.get(&at).await;
            assert!(refused.code == 400 && refused.text.contains(reason), "{}", refused.text);
        }
    }
}
