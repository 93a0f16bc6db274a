//! Tests of the store through its public functions, on real files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;

mod files;
mod history;
mod model;

const HOSTS: &str = "metal3.io/baremetalhosts";

/// Generous: only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(120);

fn options(folder: &Path) -> StoreOptions {
    StoreOptions { path: folder.join("db"), key_file: folder.join("store.key"), history: 1000 }
}

fn open(folder: &Path) -> Store {
    Store::open(options(folder)).unwrap()
}

fn refusal(options: StoreOptions) -> String {
    match Store::open(options) {
        Ok(_) => panic!("the store opened"),
        Err(error) => error.to_string(),
    }
}

fn put(resource: &str, namespace: &str, name: &str, expect: Expect, spec: impl Into<Value>) -> Mutation {
    let metadata = json!({"namespace": namespace, "name": name});
    Mutation {
        resource: resource.into(),
        namespace: namespace.into(),
        name: name.into(),
        expect,
        value: Some(json!({"metadata": metadata, "spec": spec.into()})),
    }
}

fn delete(resource: &str, namespace: &str, name: &str, expect: Expect) -> Mutation {
    Mutation { resource: resource.into(), namespace: namespace.into(), name: name.into(), expect, value: None }
}

/// An event in one line: kind, name, revision, spec now, spec before.
fn line(event: &StoreEvent) -> String {
    let show = |object: &Object| format!("{}@{} {}", object.name, object.revision, object.value()["spec"]);
    match event {
        StoreEvent::Added(object) => format!("added {}", show(object)),
        StoreEvent::Modified { object, previous } => format!("modified {} was {}", show(object), show(previous)),
        StoreEvent::Deleted(object) => format!("deleted {}", show(object)),
    }
}

async fn next(watch: &mut Watch) -> Result<StoreEvent, Gone> {
    timeout(DEADLINE, watch.next()).await.expect("an event in time")
}

async fn lines(watch: &mut Watch, count: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for _ in 0..count {
        lines.push(line(&next(watch).await.unwrap()));
    }
    lines
}

async fn is_idle(watch: &mut Watch) -> bool {
    futures::poll!(std::pin::pin!(watch.next())).is_pending()
}

#[tokio::test]
async fn of_two_changes_both_are_made_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let watch = |store: &Store| store.watch(HOSTS, 0).unwrap();
    let mut seen = watch(&store);
    let secret = |expect, spec: &str| put("/secrets", "rack", "a-secret", expect, spec);
    let host = |expect, spec: &str| put(HOSTS, "rack", "a", expect, spec);
    let made = store.write_both(secret(Expect::Absent, "s1"), host(Expect::Absent, "h1")).await.unwrap();
    let kept = store.get("/secrets", "rack", "a-secret").unwrap();
    assert_eq!((kept.revision, made.revision, store.revision()), (1, 2, 2), "whoever sees the second sees the first");
    assert_eq!(lines(&mut seen, 1).await, ["added a@2 \"h1\""]);
    // Whichever cannot be made: nothing is.
    let large = "x".repeat(OBJECT_LIMIT + 2000);
    for (first, second) in [
        (secret(Expect::Absent, "s2"), host(Expect::Revision(2), "h2")),
        (secret(Expect::Revision(1), "s2"), host(Expect::Absent, "h2")),
        (secret(Expect::Revision(1), "s2"), host(Expect::Revision(1), "h2")),
        (secret(Expect::Revision(1), "s2"), host(Expect::Revision(2), &large)),
        (secret(Expect::Revision(1), &large), host(Expect::Revision(2), "h2")),
        (secret(Expect::Revision(1), "s2"), delete(HOSTS, "rack", "b", Expect::Any)),
    ] {
        assert!(store.write_both(first, second).await.is_err());
        assert_eq!(store.revision(), 2);
        assert_eq!(store.get("/secrets", "rack", "a-secret").unwrap().value()["spec"], "s1");
        assert_eq!(store.get(HOSTS, "rack", "a").unwrap().value()["spec"], "h1");
    }
    assert!(is_idle(&mut seen).await);
    store.write_both(secret(Expect::Revision(1), "s2"), host(Expect::Revision(2), "h2")).await.unwrap();
    store.close().await;
    let store = open(folder.path());
    assert_eq!(store.get("/secrets", "rack", "a-secret").unwrap().value()["spec"], "s2");
    assert_eq!(store.get(HOSTS, "rack", "a").unwrap().value()["spec"], "h2");
    assert_eq!(lines(&mut watch(&store), 2).await, ["added a@2 \"h1\"", "modified a@4 \"h2\" was a@2 \"h1\""]);
}

#[tokio::test]
async fn what_was_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let first = store.write(put(HOSTS, "metal3", "node-0", Expect::Absent, 1)).await.unwrap();
    assert_eq!(first.revision, 1);
    assert_eq!(first.value()["metadata"]["resourceVersion"], "1");
    assert_eq!(serde_json::from_slice::<Value>(&first.json()).unwrap(), first.value());
    let second = store.write(put(HOSTS, "metal3", "node-0", Expect::Revision(1), 2)).await.unwrap();
    assert_eq!(second.revision, 2);
    assert!(Arc::ptr_eq(&store.get(HOSTS, "metal3", "node-0").unwrap(), &second));
    assert!(store.get(HOSTS, "metal3", "node-1").is_none());
    assert!(store.get(HOSTS, "", "node-0").is_none());
    assert!(store.get("/secrets", "metal3", "node-0").is_none());
    let last = store.write(delete(HOSTS, "metal3", "node-0", Expect::Any)).await.unwrap();
    assert_eq!((last.revision, &last.value()["spec"]), (3, &json!(2)));
    assert_eq!(last.value()["metadata"]["resourceVersion"], "3");
    assert!(store.get(HOSTS, "metal3", "node-0").is_none());
    assert_eq!(store.revision(), 3);
}

/// What each expectation makes of each state of the object, for a put and for a deletion.
#[tokio::test]
async fn rules_of_conflict() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    // (object exists, expectation relative to its revision, deletes) and the outcome.
    let table = [
        (false, Expect::Absent, false, "done"),
        (false, Expect::Present, false, "not found"),
        (false, Expect::Revision(0), false, "not found"),
        (false, Expect::Any, false, "done"),
        (false, Expect::Absent, true, "not found"),
        (false, Expect::Present, true, "not found"),
        (false, Expect::Revision(0), true, "not found"),
        (false, Expect::Any, true, "not found"),
        (true, Expect::Absent, false, "already exists"),
        (true, Expect::Present, false, "done"),
        (true, Expect::Revision(0), false, "done"),
        (true, Expect::Revision(1), false, "conflict"),
        (true, Expect::Any, false, "done"),
        (true, Expect::Absent, true, "already exists"),
        (true, Expect::Present, true, "done"),
        (true, Expect::Revision(0), true, "done"),
        (true, Expect::Revision(1), true, "conflict"),
        (true, Expect::Any, true, "done"),
    ];
    for (durable, resource) in [(true, HOSTS), (false, "slipway.dev/views")] {
        for (row, (exists, expect, deletes, outcome)) in table.into_iter().enumerate() {
            let name = format!("{durable}-{row}");
            let base = match exists {
                true => {
                    store.change(None, put(resource, "ns", &name, Expect::Absent, 1), durable).await.unwrap().revision
                }
                false => 0,
            };
            let expect = match expect {
                Expect::Revision(offset) => Expect::Revision(base + offset),
                other => other,
            };
            let change = match deletes {
                true => delete(resource, "ns", &name, expect),
                false => put(resource, "ns", &name, expect, 2),
            };
            let before = store.revision();
            let got = match store.change(None, change, durable).await {
                Ok(object) => {
                    assert_eq!(object.revision, before + 1);
                    "done"
                }
                Err(error) => {
                    assert_eq!(store.revision(), before, "a refused change takes no revision");
                    match error {
                        StoreWriteError::Exists => "already exists",
                        StoreWriteError::NotFound => "not found",
                        StoreWriteError::Conflict { expected, actual } => {
                            assert_eq!((expected, actual), (base + 1, base));
                            "conflict"
                        }
                        other => panic!("{other}"),
                    }
                }
            };
            assert_eq!(got, outcome, "row {row}: {:?}", table[row]);
            let there = store.get(resource, "ns", &name).is_some();
            assert_eq!(there, if outcome == "done" { !deletes } else { exists }, "row {row}");
        }
    }
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for name in ["b", "a", "c"] {
        store.write(put(HOSTS, "ns", name, Expect::Absent, 1)).await.unwrap();
    }
    store.write(put(HOSTS, "", "cluster-wide", Expect::Any, 1)).await.unwrap();
    store.write(put(HOSTS, "ns", "b", Expect::Present, 2)).await.unwrap();
    store.write(delete(HOSTS, "ns", "c", Expect::Present)).await.unwrap();
    store.write(put(HOSTS, "ns", "c", Expect::Absent, 3)).await.unwrap();
    store.write(put("/namespaces", "", "ns", Expect::Absent, 1)).await.unwrap();
    let mut before = store.watch(HOSTS, 0).unwrap();
    let before = lines(&mut before, 7).await;
    store.close().await;
    assert!(matches!(store.write(delete(HOSTS, "ns", "a", Expect::Any)).await, Err(StoreWriteError::Failed(_))));

    let store = open(folder.path());
    assert_eq!(store.revision(), 8);
    let listing = store.list(HOSTS, None);
    assert_eq!(listing.revision, 8);
    let names: Vec<_> = listing.objects.iter().map(|object| (&*object.namespace, &*object.name)).collect();
    assert_eq!(names, [("", "cluster-wide"), ("ns", "a"), ("ns", "b"), ("ns", "c")]);
    assert_eq!(store.list(HOSTS, Some("ns")).objects.len(), 3);
    assert_eq!(store.list(HOSTS, Some("")).objects.len(), 1);
    assert_eq!(store.list(HOSTS, Some("other")).objects.len(), 0);
    for object in &listing.objects {
        assert_eq!(serde_json::from_slice::<Value>(&object.json()).unwrap(), object.value());
        assert_eq!(object.value()["metadata"]["resourceVersion"], object.revision.to_string());
    }
    let mut watch = store.watch(HOSTS, 0).unwrap();
    assert_eq!(lines(&mut watch, 7).await, before);
    assert!(is_idle(&mut watch).await);
    // And from the middle on, with the former self of an object whose earlier events are not asked for.
    let mut watch = store.watch(HOSTS, 4).unwrap();
    assert_eq!(lines(&mut watch, 3).await, ["modified b@5 2 was b@1 1", "deleted c@6 1", "added c@7 3"]);
    assert_eq!(store.write(put(HOSTS, "ns", "d", Expect::Any, 1)).await.unwrap().revision, 9);
    store.close().await;
}

#[tokio::test]
async fn watches_see_each_event_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.write(put(HOSTS, "ns", "a", Expect::Any, 1)).await.unwrap();
    let mut watch = store.watch(HOSTS, store.list(HOSTS, None).revision).unwrap();
    assert!(is_idle(&mut watch).await);
    store.write(put("/namespaces", "", "other", Expect::Any, 0)).await.unwrap();
    assert!(is_idle(&mut watch).await);
    store.write(put(HOSTS, "ns", "a", Expect::Any, 2)).await.unwrap();
    store.write(put(HOSTS, "ns", "b", Expect::Any, 1)).await.unwrap();
    store.write(delete(HOSTS, "ns", "a", Expect::Any)).await.unwrap();
    assert_eq!(lines(&mut watch, 3).await, ["modified a@3 2 was a@1 1", "added b@4 1", "deleted a@5 2"]);
    assert!(is_idle(&mut watch).await);
    // One that sleeps is woken.
    let sleeper = tokio::spawn(async move { next(&mut watch).await.map(|event| line(&event)) });
    tokio::task::yield_now().await;
    store.write(put(HOSTS, "ns", "c", Expect::Any, 1)).await.unwrap();
    assert_eq!(sleeper.await.unwrap().unwrap(), "added c@6 1");
    let Err(Gone { asked: 7, oldest: 0 }) = store.watch(HOSTS, 7).map(|_| ()) else { panic!("a revision to come") };
}

#[tokio::test]
async fn who_follows_sees_all_that_is_written_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let next_word = |word: &u64| Some(word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    let words = std::iter::successors(Some(1_u64), next_word).map(|word| format!("{:08x}", word >> 32));
    let large: String = words.take(130_000).collect();
    let mut watch = store.watch(HOSTS, 0).unwrap();
    // In one or two groups, before anybody who follows has a look.
    let writes = (0..8).map(|number| store.write(put(HOSTS, "ns", &number.to_string(), Expect::Any, large.as_str())));
    let written = futures::future::join_all(writes).await;
    assert!(written.iter().all(Result::is_ok));
    for revision in 1..=8 {
        assert_eq!(next(&mut watch).await.unwrap().object().revision, revision);
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_neither_lost_nor_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let mut new = NewStore::create(options(folder.path())).unwrap();
    let whole = json!({"metadata": {"name": "whole", "resourceVersion": "5"}}).to_string();
    new.object(&Object::new(HOSTS.into(), "ns".into(), "whole".into(), 5, whole.as_bytes()).unwrap()).unwrap();
    new.damaged(HOSTS, "ns", "torn");
    new.damaged("/secrets", "ns", "torn");
    new.finish(20, []).unwrap();
    let torn = |resource: &str| (resource.into(), "ns".to_owned(), "torn".to_owned());
    for _ in 0..2 {
        let store = open(folder.path());
        assert_eq!(store.unreadable(), [torn("/secrets"), torn(HOSTS)]);
        assert!(store.get(HOSTS, "ns", "torn").is_none() && store.list(HOSTS, None).objects.len() == 1);
        let stored = store.stored_in("ns");
        assert!(stored.contains(&(HOSTS.into(), 2)) && stored.contains(&("/secrets".into(), 1)), "{stored:?}");
        // Nothing takes its place.
        for (expect, refused) in
            [(Expect::Absent, "already exists"), (Expect::Any, "already exists"), (Expect::Present, "not found")]
        {
            let outcome = store.write(put(HOSTS, "ns", "torn", expect, 1)).await;
            assert_eq!(outcome.unwrap_err().to_string(), refused, "{expect:?}");
        }
        // It is there after the database was written anew.
        let large = "x".repeat(400_000);
        let rewrites = store.meters().rewrites.clone();
        for step in 0..500 {
            if rewrites.get() > 0 {
                break;
            }
            let noise: String = (0..50_000).map(|_| char::from(rand::random_range(b'a'..=b'z'))).collect();
            store.write(put("/configmaps", "ns", "m", Expect::Any, format!("{step}{noise}{large}"))).await.unwrap();
        }
        assert!(rewrites.get() > 0);
        store.close().await;
    }
    let store = open(folder.path());
    let before = store.revision();
    let gone = store.write(delete(HOSTS, "ns", "torn", Expect::Any)).await.unwrap();
    assert_eq!((gone.revision, store.revision()), (before + 1, before + 1));
    assert!(matches!(store.write(delete(HOSTS, "ns", "torn", Expect::Any)).await, Err(StoreWriteError::NotFound)));
    store.write(put(HOSTS, "ns", "torn", Expect::Absent, 1)).await.unwrap();
    store.close().await;
    let store = open(folder.path());
    assert_eq!(store.unreadable(), [torn("/secrets")]);
    assert!(store.get(HOSTS, "ns", "torn").is_some());
    assert!(store.watch(HOSTS, before).is_ok() && store.watch("/secrets", before).is_err());
}

#[tokio::test]
async fn published_objects_stay_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    const LEASES: &str = "slipway.dev/dhcpleases";
    let store = open(folder.path());
    store.write(put(HOSTS, "ns", "kept", Expect::Any, 1)).await.unwrap();
    let lease = store.publish(put(LEASES, "", "lease", Expect::Absent, "unwritten-text")).await.unwrap();
    assert_eq!(lease.revision, 2);
    for step in 0..50 {
        store.publish(put(LEASES, "", "lease", Expect::Present, step)).await.unwrap();
    }
    let last = store.revision();
    assert_eq!(last, 52);
    assert!(store.watch(LEASES, 0).is_ok());
    let refused = [
        store.write(put(LEASES, "", "other", Expect::Any, 1)).await,
        store.publish(put(HOSTS, "ns", "other", Expect::Any, 1)).await,
    ];
    assert!(refused.iter().all(|outcome| matches!(outcome, Err(StoreWriteError::Malformed(_)))), "{refused:?}");
    store.close().await;
    assert!(!files::files_contain(&folder.path().join("db"), b"unwritten-text"));

    let store = open(folder.path());
    assert!(store.get(LEASES, "", "lease").is_none());
    assert!(store.revision() > last, "revisions that were never on disk are not used again");
    assert!(store.watch(LEASES, last).is_err(), "its events are lost");
    assert!(store.watch(LEASES, store.revision()).is_ok());
    assert!(store.watch(HOSTS, 0).is_ok(), "other resources have all of theirs");
    let before = store.revision();
    assert!(store.publish(put(LEASES, "", "lease", Expect::Absent, 1)).await.unwrap().revision > before);
    store.close().await;
    assert!(open(folder.path()).revision() > before + 1);
}

#[tokio::test]
async fn limits_of_size_and_form() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let overhead = store.write(put(HOSTS, "ns", "fits", Expect::Any, "")).await.unwrap().json_len();
    let largest = "x".repeat(OBJECT_LIMIT - overhead);
    let fits = store.write(put(HOSTS, "ns", "fits", Expect::Any, largest.as_str())).await.unwrap();
    assert_eq!(fits.json_len(), OBJECT_LIMIT);
    let revision = store.revision();
    match store.write(put(HOSTS, "ns", "fits", Expect::Any, format!("{largest}x"))).await {
        Err(StoreWriteError::TooLarge { size, limit }) => assert_eq!((size, limit), (OBJECT_LIMIT + 1, OBJECT_LIMIT)),
        other => panic!("{other:?}"),
    }
    // It can be marked for its deletion all the same, when it is there.
    let marked = || {
        let mut change = put(HOSTS, "ns", "mark", Expect::Any, largest.as_str());
        let metadata = &mut change.value.as_mut().unwrap()["metadata"];
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        change
    };
    assert!(matches!(store.write(marked()).await, Err(StoreWriteError::TooLarge { .. })));
    store.write(put(HOSTS, "ns", "mark", Expect::Absent, largest.as_str())).await.unwrap();
    assert!(store.write(marked()).await.unwrap().json_len() > OBJECT_LIMIT);
    let revision = revision + 2;
    let long = "n".repeat(KEY_LIMIT);
    assert!(matches!(
        store.write(put(HOSTS, "ns", &long, Expect::Any, 1)).await,
        Err(StoreWriteError::TooLarge { .. })
    ));
    let mut deep = json!(1);
    for _ in 0..5000 {
        deep = json!([deep]);
    }
    let malformed = [
        put(HOSTS, "n\0s", "a", Expect::Any, 1),
        put(HOSTS, "ns", "a\0", Expect::Any, 1),
        put("\0", "ns", "a", Expect::Any, 1),
        put("", "ns", "a", Expect::Any, 1),
        put(HOSTS, "ns", "", Expect::Any, 1),
        Mutation { value: Some(json!([1])), ..put(HOSTS, "ns", "a", Expect::Any, 1) },
        Mutation { value: Some(json!({"metadata": 1})), ..put(HOSTS, "ns", "a", Expect::Any, 1) },
        put(HOSTS, "ns", "a", Expect::Any, deep),
    ];
    for change in malformed {
        assert!(matches!(store.write(change).await, Err(StoreWriteError::Malformed(_))));
    }
    assert_eq!(store.revision(), revision);
    // A value without metadata gets some; 98 levels below `spec` can be read back.
    let mut deep = json!(1);
    for _ in 0..98 {
        deep = json!([deep]);
    }
    let plain = Mutation { value: Some(json!({"spec": deep})), ..put(HOSTS, "ns", "plain", Expect::Any, 1) };
    let plain = store.write(plain).await.unwrap();
    assert_eq!(plain.value()["metadata"]["resourceVersion"], plain.revision.to_string());
    // More of nearly that size than one page of the database or one group of the committer would hold.
    let large = &largest[100..];
    let many = (0..20).map(|step| store.write(put(HOSTS, "large", &step.to_string(), Expect::Any, large)));
    let outcome: Vec<_> = futures::future::join_all(many).await.into_iter().map(Result::unwrap).collect();
    store.close().await;

    let store = open(folder.path());
    assert_eq!(store.get(HOSTS, "ns", "fits").unwrap().json_len(), OBJECT_LIMIT);
    assert_eq!(store.get(HOSTS, "ns", "plain").unwrap().json(), plain.json());
    for (step, done) in outcome.iter().enumerate() {
        assert_eq!(store.get(HOSTS, "large", &step.to_string()).unwrap().json(), done.json());
    }
    store.close().await;
}

/// The journal has the former selves, too: what is small now may be much there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_ones_that_shrink_together_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let large = "x".repeat(1_000_000);
    let all = |spec: &str| (0..80).map(|step| put("/secrets", "ns", &step.to_string(), Expect::Any, spec)).collect();
    for spec in [large.as_str(), ""] {
        let changes: Vec<Mutation> = all(spec);
        for done in futures::future::join_all(changes.into_iter().map(|change| store.write(change))).await {
            done.unwrap();
        }
    }
    store.close().await;
    let store = open(folder.path());
    assert_eq!(store.list("/secrets", None).objects.len(), 80);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_keep_their_entries() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let leases = store.table("leases").unwrap();
    assert!(leases.scan().is_empty());
    let writes = (0..500_u32).map(|number| {
        let leases = leases.clone();
        tokio::spawn(async move {
            let key = Bytes::copy_from_slice(&number.to_be_bytes());
            leases.write(key.clone(), Some(Bytes::from(format!("first {number}")))).await?;
            match number % 3 {
                0 => leases.write(key, None).await,
                1 => leases.write(key, Some(Bytes::from(format!("second {number}")))).await,
                _ => Ok(()),
            }
        })
    });
    for done in futures::future::join_all(writes).await {
        done.unwrap().unwrap();
    }
    store.table("other").unwrap().write(Bytes::from_static(b"k"), Some(Bytes::new())).await.unwrap();
    leases.write(Bytes::from_static(b"never there"), None).await.unwrap();
    let turn = Bytes::from_static(b"turn");
    let say = |value: &'static [u8]| (turn.clone(), Some(Bytes::from_static(value)));
    leases.write_all(vec![say(b"1"), (turn.clone(), None), say(b"2")]).await.unwrap();
    assert_eq!(leases.scan().last(), Some(&(turn.clone(), Bytes::from_static(b"2"))));
    leases.write_all(vec![say(b"3"), (turn.clone(), None)]).await.unwrap();
    assert_eq!(store.revision(), 0);
    let expected: Vec<_> = (0..500_u32)
        .filter(|number| number % 3 != 0)
        .map(|number| {
            let order = if number % 3 == 1 { "second" } else { "first" };
            (Bytes::copy_from_slice(&number.to_be_bytes()), Bytes::from(format!("{order} {number}")))
        })
        .collect();
    assert_eq!(leases.scan(), expected);
    store.close().await;
    assert!(matches!(leases.write(Bytes::new(), None).await, Err(StoreWriteError::Failed(_))));
    assert!(matches!(store.table("leases"), Err(StoreWriteError::Failed(_))));

    let store = open(folder.path());
    assert_eq!(store.table("leases").unwrap().scan(), expected);
    assert_eq!(store.table("other").unwrap().scan(), [(Bytes::from_static(b"k"), Bytes::new())]);
    for name in ["", "a\0b", &"x".repeat(65)] {
        assert!(matches!(store.table(name), Err(StoreWriteError::Malformed(_))));
    }
    let leases = store.table("leases").unwrap();
    let long = Bytes::from(vec![0; KEY_LIMIT + 1]);
    assert!(matches!(leases.write(long, None).await, Err(StoreWriteError::TooLarge { .. })));
    let many = (0..5_u8).map(|key| (Bytes::from(vec![key]), Some(Bytes::from(vec![0; OBJECT_LIMIT])))).collect();
    assert!(matches!(leases.write_all(many).await, Err(StoreWriteError::TooLarge { .. })));
    let large = Bytes::from(vec![0; OBJECT_LIMIT + 1]);
    let half = vec![(Bytes::from_static(b"small"), Some(Bytes::new())), (Bytes::new(), Some(large))];
    assert!(matches!(leases.write_all(half).await, Err(StoreWriteError::TooLarge { .. })));
    assert_eq!(leases.scan(), expected);
    store.close().await;
}

#[tokio::test]
async fn changes_queued_together_see_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let outcome = futures::future::join_all([
        store.write(put(HOSTS, "ns", "a", Expect::Absent, 1)),
        store.write(put(HOSTS, "ns", "a", Expect::Absent, 2)),
        store.write(put(HOSTS, "ns", "a", Expect::Revision(1), 3)),
        store.write(delete(HOSTS, "ns", "a", Expect::Revision(2))),
        store.write(put(HOSTS, "ns", "a", Expect::Present, 4)),
        store.write(put(HOSTS, "ns", "a", Expect::Absent, 5)),
    ])
    .await;
    let seen: Vec<_> = outcome
        .iter()
        .map(|done| match done {
            Ok(object) => object.revision.to_string(),
            Err(error) => error.to_string(),
        })
        .collect();
    assert_eq!(seen, ["1", "already exists", "2", "3", "not found", "4"]);
    let expected = ["added a@1 1", "modified a@2 3 was a@1 1", "deleted a@3 3", "added a@4 5"];
    assert_eq!(lines(&mut store.watch(HOSTS, 0).unwrap(), 4).await, expected);
    store.close().await;
    let store = open(folder.path());
    assert_eq!(lines(&mut store.watch(HOSTS, 0).unwrap(), 4).await, expected);
    store.close().await;
}

#[tokio::test]
async fn closing_ends_everything() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.write(put(HOSTS, "ns", "a", Expect::Any, 1)).await.unwrap();
    let mut watch = store.watch(HOSTS, 0).unwrap();
    let mut idle = store.watch("/namespaces", 1).unwrap();
    let waits = tokio::spawn(async move { next(&mut idle).await });
    tokio::task::yield_now().await;
    timeout(DEADLINE, store.close()).await.unwrap();
    timeout(DEADLINE, store.close()).await.unwrap();
    assert_eq!(line(&next(&mut watch).await.unwrap()), "added a@1 1");
    assert!(next(&mut watch).await.is_err());
    assert!(waits.await.unwrap().is_err());
    assert!(store.watch(HOSTS, 1).is_err());
    assert!(store.get(HOSTS, "ns", "a").is_some(), "reads go on");
    assert!(futures::poll!(std::pin::pin!(store.failed())).is_pending(), "closing is no failure");
    // Dropping all handles ends the thread, too, and frees the files.
    drop(open(folder.path()));
    open(folder.path()).close().await;
}
