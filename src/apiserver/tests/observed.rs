//! Tests of health, metrics and overload answers.

use super::*;

#[tokio::test]
async fn health_is_told_to_everybody_and_metrics_to_those_who_may() {
    let rig = Rig::new().await;
    let nobody = async |at: &str| rig.send(None, http::Request::get(at), Body::empty()).await;
    let verbose = nobody("/readyz?verbose").await;
    assert_eq!(
        (verbose.code, verbose.text.as_str()),
        (200, "[+]ping ok\n[+]store ok\n[+]shutdown ok\nreadyz check passed\n")
    );
    for (at, code) in [
        ("/livez/store", 200),
        ("/livez/shutdown", 404),
        ("/healthz/none", 404),
        ("/healthz/a/b", 404),
        ("/metrics", 401),
    ] {
        assert_eq!(nobody(at).await.code, code, "{at}");
    }
    rig.api.add_check("informer-sync", health::HealthScope::Readiness, Arc::new(|| Err("hosts are not listed".into())));
    let failed = nobody("/readyz").await;
    assert_eq!(failed.code, 500);
    assert!(
        failed.text.contains("[-]informer-sync failed: reason withheld\n") && !failed.text.contains("hosts"),
        "{}",
        failed.text
    );
    assert_eq!(nobody("/readyz?exclude=informer-sync").await.text, "ok");
    rig.api.store().close().await;
    assert_eq!(nobody("/livez").await.code, 500);
}

#[tokio::test]
async fn a_check_that_fails_is_told_once_for_each_reason_however_often_anybody_asks() {
    let rig = Rig::new().await;
    let reason = Arc::new(std::sync::Mutex::new(Err("the first reason".to_owned())));
    let now = Arc::clone(&reason);
    rig.api.add_check("informer-sync", health::HealthScope::Readiness, Arc::new(move || now.lock().unwrap().clone()));
    let ask = async |code| {
        for at in ["/readyz", "/readyz/informer-sync", "/readyz?verbose"] {
            for _ in 0..100 {
                assert_eq!(rig.send(None, http::Request::get(at), Body::empty()).await.code, code, "{at}");
            }
        }
    };
    let log = crate::log::tests::log_while(async {
        ask(500).await;
        *reason.lock().unwrap() = Err("the second reason".to_owned());
        ask(500).await;
        *reason.lock().unwrap() = Ok(());
        ask(200).await;
    });
    let log = log.await;
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("informer-sync")).collect();
    assert_eq!(lines.len(), 3, "{log}");
    for (line, part) in lines.iter().zip(["the first reason", "the second reason", "passes again"]) {
        assert!(line.contains(part), "{line}");
    }
}

#[tokio::test]
async fn metrics_count_what_was_asked_and_kept() {
    let rig = Rig::new().await;
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    rig.call("POST", HOSTS, &host("a")).await.expect(409);
    rig.get(&path(HOSTS, "none")).await.expect(404);
    rig.get("/apis/evil.example/v1/evils").await.expect(404);
    let mut request = http::Request::get(format!("{HOSTS}?watch=true")).body(Body::empty()).unwrap();
    request.extensions_mut().insert(admin().unwrap());
    let watching = rig.api.router().oneshot(request).await.unwrap();
    let text = rig.get("/metrics").await.text;
    for line in [
        "apiserver_request_total{verb=\"POST\",group=\"metal3.io\",version=\"v1alpha1\",resource=\"baremetalhosts\",\
         subresource=\"\",scope=\"namespace\",component=\"apiserver\",code=\"409\"} 1",
        "apiserver_request_duration_seconds_count{verb=\"GET\",group=\"metal3.io\",version=\"v1alpha1\",\
         resource=\"baremetalhosts\",subresource=\"\",scope=\"resource\",component=\"apiserver\"} 1",
        "apiserver_longrunning_requests{verb=\"WATCH\",group=\"metal3.io\",version=\"v1alpha1\",\
         resource=\"baremetalhosts\",subresource=\"\",scope=\"namespace\",component=\"apiserver\"} 1",
        "apiserver_storage_objects{resource=\"metal3.io/baremetalhosts\"} 1",
        "slipway_store_writable 1",
        "# EOF",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("evil"), "{text}");
    let resident = text.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes ")).unwrap();
    assert!(resident.parse::<f64>().unwrap() > 1e6, "{resident}");
    drop(watching);
    let text = rig.get("/metrics").await.text;
    assert!(text.contains("scope=\"namespace\",component=\"apiserver\"} 0"), "{text}");
}

#[tokio::test]
async fn whoever_defines_kinds_makes_no_series() {
    let rig = Rig::new().await;
    for plural in ["widgets", "gadgets"] {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.example.org")},
            "spec": {
                "group": "example.org", "scope": "Namespaced",
                "names": {"plural": plural, "singular": plural, "kind": plural},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
            },
        });
        rig.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.expect(201);
        let all = format!("/apis/example.org/v1/namespaces/rack/{plural}");
        let object = json!({"apiVersion": "example.org/v1", "kind": plural, "metadata": {"name": "a"}});
        rig.call("POST", &all, &object).await.expect(201);
        let mut request = http::Request::get(format!("{all}?watch=true")).body(Body::empty()).unwrap();
        request.extensions_mut().insert(admin().unwrap());
        drop(rig.api.router().oneshot(request).await.unwrap());
    }
    let text = rig.get("/metrics").await.text;
    for line in [
        "verb=\"POST\",group=\"custom\",version=\"custom\",resource=\"custom\"",
        "apiserver_storage_objects{resource=\"custom\"} 2",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("dgets") && !text.contains("example.org"), "{text}");
}

#[tokio::test]
async fn too_much_at_once_is_refused_and_may_come_again() {
    let rig = Rig::new().await;
    let inflight = &rig.api.inner.inflight;
    // Of many callers: nobody has them all.
    let all = |method: Method| {
        let users = (0..50).map(|i| UserIdentity::new(format!("user {i}"), Vec::new(), auth::Proof::Certificate));
        let take = |user: UserIdentity| std::iter::from_fn(move || inflight.for_request(&method.clone(), &user).ok());
        users.flat_map(move |user| take.clone()(user)).collect::<Vec<_>>()
    };
    let held = all(Method::POST);
    assert_eq!(held.len(), inflight::WRITES);
    let refused = rig.call("POST", HOSTS, &host("a")).await;
    assert_eq!((refused.code, &refused.headers["retry-after"]), (429, &"1".parse::<http::HeaderValue>().unwrap()));
    assert_eq!((&refused.json()["reason"], &refused.json()["kind"]), (&json!("TooManyRequests"), &json!("Status")));
    // Reads have permits of their own, and so have those who ask how the server does, and Slipway itself.
    rig.get(HOSTS).await.expect(200);
    let own = Some(UserIdentity::in_process());
    let made = rig.send(own, http::Request::post(HOSTS), host("own").to_string()).await;
    assert_eq!(made.code, 201);
    drop(held);
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let held = all(Method::GET);
    assert_eq!(held.len(), inflight::READS);
    rig.get(HOSTS).await.expect(429);
    assert_eq!(rig.get("/livez").await.code, 200);
    assert!(
        rig.get("/metrics").await.text.contains("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 400")
    );
    drop(held);
    let all: Vec<_> = std::iter::from_fn(|| {
        inflight.for_watch(&admin().unwrap(), &crate::apiserver::objects::selectors::ObjectSelector::default()).ok()
    })
    .collect();
    rig.get(&format!("{HOSTS}?watch=true")).await.expect(429);
    rig.get(HOSTS).await.expect(200);
    drop(all);
}

#[tokio::test]
async fn logs_that_are_followed_are_counted_until_they_end() {
    let rig = Rig::new().await;
    rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let endless: crate::apiserver::ObjectView = Arc::new(|_| {
        let pieces = futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
        Box::pin(async move { Ok(http::Response::new(Body::from_stream(pieces))) })
    });
    rig.api.add_view("metal3.io/baremetalhosts", "log", endless);
    let follow = async |user: &str| {
        let mut request = http::Request::get(format!("{HOSTS}/a/log?follow=true")).body(Body::empty()).unwrap();
        let identity = UserIdentity::new(user.to_owned(), vec!["system:masters".to_owned()], auth::Proof::Certificate);
        request.extensions_mut().insert(identity);
        rig.api.router().oneshot(request).await.unwrap()
    };
    let mut held = Vec::new();
    let refused = loop {
        let answer = follow("one").await;
        if answer.status() != 200 {
            break answer.status();
        }
        held.push(answer);
        assert!(held.len() <= inflight::LOGS, "one caller follows any number of logs");
    };
    assert_eq!(refused, 429);
    // A share is kept for others, and a place is there again when somebody leaves.
    assert_eq!(follow("other").await.status(), 200);
    held.pop();
    assert_eq!(follow("one").await.status(), 200);
}
