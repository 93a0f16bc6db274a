//! Tests of watches: relists, and observers that panic.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;

fn map(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    (map.metadata.namespace, map.metadata.name) = (Some("n".into()), Some(name.into()));
    map
}

fn said(change: &WatchChange<'_, ConfigMap>) -> String {
    match change {
        WatchChange::Put(object) => format!("+{}", object.name_any()),
        WatchChange::Gone((namespace, name)) => format!("-{namespace}/{name}"),
        WatchChange::Listed => "listed".into(),
    }
}

/// What a feed comes to know.
enum Step {
    Begin,
    Page(&'static str),
    Put(&'static str),
    Gone(&'static str),
    End,
}

#[test]
fn a_relist_is_told_as_what_it_changed() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let mut feed = WatchFeed::<ConfigMap>::default();
    let tell = told.clone();
    feed.observers.push(Box::new(move |change| tell.lock().unwrap().push(said(change))));
    let rows: [(Step, &[&str]); 19] = [
        (Step::Begin, &[]),
        (Step::Page("a"), &["+a"]),
        (Step::Page("b"), &["+b"]),
        (Step::End, &["listed"]),
        (Step::Put("c"), &["+c"]),
        (Step::Gone("b"), &["-n/b"]),
        // The watch broke, and a was deleted meanwhile. A listing that broke, too, counts for nothing.
        (Step::Begin, &[]),
        (Step::Page("a"), &["+a"]),
        (Step::Begin, &[]),
        (Step::Page("c"), &["+c"]),
        // What the watch told since is newer than a page.
        (Step::Put("d"), &["+d"]),
        (Step::Page("d"), &[]),
        (Step::Gone("d"), &["-n/d"]),
        (Step::Page("d"), &[]),
        (Step::Gone("e"), &[]),
        (Step::Page("e"), &[]),
        (Step::Page("f"), &["+f"]),
        (Step::End, &["-n/a", "listed"]),
        (Step::Put("d"), &["+d"]),
    ];
    for (step, wanted) in rows {
        let object = |name| Readable::Read(map(name));
        match step {
            Step::Begin => feed.listing = Some(ListingInProgress::default()),
            Step::Page(name) => feed.listed(object(name)),
            Step::Put(name) => feed.happened(WatchEvent::Put(object(name))),
            Step::Gone(name) => feed.happened(WatchEvent::Gone(object(name))),
            Step::End => feed.end_listing(),
        }
        assert_eq!(std::mem::take(&mut *told.lock().unwrap()), wanted);
    }
    assert_eq!(feed.known.len(), 3);
}

#[test]
fn an_observer_that_panics_keeps_nothing_from_the_others() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let mut feed = WatchFeed::<ConfigMap>::default();
    let tell = told.clone();
    feed.observers
        .push(Box::new(|change| assert!(!matches!(change, WatchChange::Put(object) if object.name_any() == "bad"))));
    feed.observers.push(Box::new(move |change| tell.lock().unwrap().push(said(change))));
    for name in ["bad", "good"] {
        feed.happened(WatchEvent::Put(Readable::Read(map(name))));
    }
    assert_eq!(*told.lock().unwrap(), ["+bad", "+good"]);
}

#[test]
fn a_kind_is_watched_once_however_many_ask() {
    let mut watches = Watches::default();
    for _ in 0..3 {
        watches.observe::<ConfigMap>(|_| {});
    }
    watches.observe::<Secret>(|_| {});
    assert_eq!(watches.0.len(), 2);
}

/// Follows the ConfigMaps of an API server until `enough` was told; all that was.
async fn follow<Answer>(
    answer: impl Fn(String, watch::Receiver<Vec<String>>) -> Answer + Clone + Send + 'static,
    enough: impl Fn(&[String]) -> bool,
) -> Vec<String>
where
    Answer: Future<Output = (u16, String)> + Send + 'static,
{
    let (tell, mut told) = watch::channel(Vec::new());
    let told_too = told.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer(request.uri().query().unwrap_or_default().to_owned(), told_too.clone());
        async move {
            let (code, text) = answer.await;
            Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(text.into_bytes())).unwrap())
        }
    });
    let mut watches = Watches::default();
    watches.observe(move |change: &WatchChange<'_, ConfigMap>| tell.send_modify(|told| told.push(said(change))));
    let shutdown = CancellationToken::new();
    let run = tokio::spawn(watches.run(Client::new(service, "default"), shutdown.clone()));
    let all = tokio::time::timeout(Duration::from_secs(60), told.wait_for(|told| enough(told))).await;
    let all = all.expect("it was told").expect("the watches run").clone();
    shutdown.cancel();
    run.await.unwrap();
    all
}

fn page(names: &[&str], revision: &str, rest: &str) -> (u16, String) {
    let object = |name: &&str| match name.strip_prefix('!') {
        Some(name) => json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": "1"}, "data": 5}),
        None => json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": "1"}}),
    };
    let items: Vec<Value> = names.iter().map(object).collect();
    let metadata = json!({"resourceVersion": revision, "continue": rest});
    (200, json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}).to_string())
}

fn gone(rest: &str) -> (u16, String) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {"continue": rest}, "status": "Failure",
        "message": "too old", "reason": "Expired", "code": 410});
    (410, status.to_string())
}

#[tokio::test]
async fn a_listing_ends_however_much_is_written_and_whatever_cannot_be_read() {
    let answer = async |query: String, _| match query.as_str() {
        query if query.contains("watch=") => gone(""),
        query if query.contains("continue=old") => gone("new"),
        query if query.contains("continue=new") => page(&["!bad", "b"], "9", ""),
        _ => page(&["a", "!worse"], "5", "old"),
    };
    let told = follow(answer, |told| told.iter().any(|said| said == "listed")).await;
    assert_eq!(told, ["+a", "+b", "listed"]);
}

#[tokio::test]
async fn what_is_told_during_a_listing_counts_more_than_its_pages() {
    let event = |kind: &str, name: &str| {
        let object = json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": "7"}});
        json!({"type": kind, "object": object}).to_string() + "\n"
    };
    let answer = move |query: String, mut told: watch::Receiver<Vec<String>>| async move {
        match query.as_str() {
            query if query.contains("resourceVersion=7") => std::future::pending().await,
            query if query.contains("watch=") => {
                (200, [event("DELETED", "b"), event("ADDED", "c"), event("MODIFIED", "a")].concat())
            }
            query if query.contains("continue=") => {
                told.wait_for(|told| told.iter().filter(|said| *said == "+a").count() == 2).await.unwrap();
                page(&["b", "c"], "5", "")
            }
            _ => page(&["a"], "5", "rest"),
        }
    };
    let told = follow(answer, |told| told.iter().any(|said| said == "listed")).await;
    assert_eq!(told, ["+a", "+c", "+a", "listed"]);
}
