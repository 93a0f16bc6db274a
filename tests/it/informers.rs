//! kube-rs's watcher and reflector against the appliance as a process, while it is killed and started again.
//!
//! A writer makes objects, brings each to its final state and deletes some, and repeats what was not answered. Whoever
//! watches must end with what is there, and must have been told of every object that lives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::process::{Appliance, DEADLINE, PAUSE};

/// Objects made, and how many of them are deleted again.
const MANY: usize = 300;
const GONE: usize = 100;
/// The appliance ends after each so many objects.
const LIFE: usize = 75;

/// Repeats a write until it is answered; a status of `fine` says that an unanswered try had been done.
async fn insist<T, F>(fine: &[u16], mut act: impl FnMut() -> F)
where
    F: Future<Output = kube::Result<T>>,
{
    let until = Instant::now() + DEADLINE;
    loop {
        match act().await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if fine.contains(&status.code) => return,
            Err(kube::Error::Api(status)) if ![429, 500, 503, 504].contains(&status.code) => {
                panic!("refused: {status:?}")
            }
            Err(error) => assert!(Instant::now() < until, "no answer: {error}"),
        }
        sleep(PAUSE).await;
    }
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"state": "new"}})).unwrap()
}

fn state(item: &ConfigMap) -> String {
    item.data.as_ref().and_then(|data| data.get("state")).cloned().unwrap_or_default()
}

/// Somebody who watches: the reflector's store, and every name that came by.
struct Follower {
    what: &'static str,
    store: Store<ConfigMap>,
    seen: Arc<Mutex<BTreeSet<String>>>,
    lists: Arc<Mutex<usize>>,
    task: JoinHandle<()>,
}

impl Follower {
    fn new(what: &'static str, api: Api<ConfigMap>, config: watcher::Config) -> Self {
        let (store, writer) = reflector::store();
        let (seen, lists) = <(Arc<Mutex<BTreeSet<String>>>, Arc<Mutex<usize>>)>::default();
        let (names, inits) = (seen.clone(), lists.clone());
        let task = tokio::spawn(async move {
            let stream = watcher(api, config).default_backoff().reflect(writer);
            let mut stream = std::pin::pin!(stream);
            // A watcher's stream goes on after an error; it ends only when it is dropped.
            while let Some(event) = stream.next().await {
                match event {
                    Ok(watcher::Event::Apply(item) | watcher::Event::InitApply(item)) => {
                        names.lock().unwrap().insert(item.name_any());
                    }
                    Ok(watcher::Event::Init) => *inits.lock().unwrap() += 1,
                    _ => {}
                }
            }
        });
        Self { what, store, seen, lists, task }
    }

    fn cached(&self) -> BTreeMap<String, String> {
        self.store.state().iter().map(|item| (item.name_any(), state(item))).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn informers_survive_restarts_without_missing_an_event() {
    let mut appliance = Appliance::new().await;
    let client = appliance.client().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let followers = [
        Follower::new("list and watch", api.clone(), watcher::Config::default()),
        Follower::new("streaming list", api.clone(), watcher::Config::default().streaming_lists()),
        Follower::new("small pages", api.clone(), watcher::Config::default().page_size(7)),
    ];

    let (told, mut progress) = mpsc::channel(1);
    let writer = api.clone();
    let writing = tokio::spawn(async move {
        for i in 0..MANY {
            let name = format!("m{i}");
            insist(&[409], || async { writer.create(&PostParams::default(), &map(&name)).await }).await;
            let patch = Patch::Merge(json!({"data": {"state": "final"}}));
            insist(&[], || async { writer.patch(&name, &PatchParams::default(), &patch).await }).await;
            if i < GONE {
                insist(&[404], || async { writer.delete(&name, &DeleteParams::default()).await }).await;
            }
            if i % LIFE == LIFE - 1 {
                told.send(i).await.unwrap();
            }
        }
    });
    // The writer does not wait: its next writes meet the end.
    let mut hard = false;
    while progress.recv().await.is_some() {
        hard = !hard;
        appliance.restart(hard).await;
    }
    writing.await.unwrap();

    let wanted: BTreeMap<String, String> = (GONE..MANY).map(|i| (format!("m{i}"), "final".to_owned())).collect();
    appliance.client().await;
    let listed = api.list(&ListParams::default()).await.unwrap();
    let actual: BTreeMap<String, String> = listed.iter().map(|item| (item.name_any(), state(item))).collect();
    assert_eq!(actual, wanted, "what was acknowledged is there");
    for follower in &followers {
        let until = Instant::now() + DEADLINE;
        while follower.cached() != wanted {
            assert!(Instant::now() < until, "{} has {:?}", follower.what, follower.cached());
            sleep(PAUSE).await;
        }
        let seen = follower.seen.lock().unwrap();
        let missed: Vec<&String> = wanted.keys().filter(|name| !seen.contains(*name)).collect();
        assert!(missed.is_empty(), "{} was never told of {missed:?}", follower.what);
        println!("{}: {} lists", follower.what, follower.lists.lock().unwrap());
        follower.task.abort();
    }
}
