//! What became of objects, in the order in which it was stored: versions of all kinds of an API are of one row.

use std::sync::{Arc, Mutex, MutexGuard};

use futures::StreamExt;
use kube::ResourceExt;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use serde::Serialize;
use serde_json::{Value, json};

use super::site::{Object, Site};

/// Everything that was stored since it began. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Journal(Arc<Mutex<Vec<Entry>>>);

/// An object as it was stored once.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) version: u64,
    pub(super) kind: String,
    pub(super) object: Value,
}

impl Entry {
    pub(super) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }
}

impl Journal {
    /// Follows the objects of a kind from now on.
    pub(super) async fn follow<K: Object + Serialize>(&self, site: &Site) {
        let (api, journal) = (site.api::<K>(), self.clone());
        let begin = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
        tokio::spawn(async move { journal.keep(&api, &begin).await });
    }

    async fn keep<K: Object + Serialize>(&self, api: &Api<K>, begin: &str) {
        let params = WatchParams::default().timeout(290);
        let mut events = api.watch(&params, begin).await.unwrap().boxed();
        while let Some(Ok(event)) = events.next().await {
            if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event {
                let version = object.resource_version().unwrap().parse().unwrap();
                self.entries().push(Entry { version, kind: K::kind(&()).into_owned(), object: json!(object) });
            }
        }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap()
    }

    /// When an object of a kind was so for the first time.
    pub(super) fn first(&self, kind: &str, is: impl Fn(&Value) -> bool) -> Option<Entry> {
        let entries = self.entries();
        let so = entries.iter().filter(|entry| entry.kind == kind && is(&entry.object));
        so.min_by_key(|entry| entry.version).cloned()
    }

    /// When the object of this name was so for the first time.
    pub(super) fn first_of(&self, kind: &str, name: &str, is: impl Fn(&Value) -> bool) -> Option<u64> {
        self.first(kind, |object| object["metadata"]["name"] == name && is(object)).map(|entry| entry.version)
    }

    /// The objects of a kind, each as it was stored first, in this order.
    pub(super) fn made(&self, kind: &str) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.entries().iter().filter(|entry| entry.kind == kind).cloned().collect();
        entries.sort_by_key(|entry| entry.version);
        let mut made: Vec<Entry> = Vec::new();
        for entry in entries {
            if !made.iter().any(|one| one.name() == entry.name()) {
                made.push(entry);
            }
        }
        made
    }
}
