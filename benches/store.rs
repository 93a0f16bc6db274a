//! Acknowledged writes a second, each of them on disk: 64 writers of objects, 64 writers of table entries, both at once,
//! and one writer alone. Runs about two seconds for each.
//!
//! The folder is made beside the build (`CARGO_TARGET_TMPDIR`), because `/tmp` is often in memory.
#![expect(clippy::print_stdout, reason = "a measurement is printed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use slipway::store::{Expect, Mutation, Store, StoreOptions};
use tokio::task::JoinSet;

const HOSTS: &str = "metal3.io/baremetalhosts";
const TIME: Duration = Duration::from_secs(2);

fn object(text: &str, name: String) -> Mutation {
    let value: Value = json!({"metadata": {"namespace": "ns", "name": name}, "spec": text});
    Mutation { resource: HOSTS.into(), namespace: "ns".to_owned(), name, expect: Expect::Any, value: Some(value) }
}

/// Runs the writers for a while; acknowledged writes a second of objects and of entries.
async fn measure(store: &Store, objects: usize, entries: usize) -> (f64, f64) {
    let counts = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let text: Arc<str> = "x".repeat(2048).into();
    let start = Instant::now();
    let end = start + TIME;
    let mut tasks = JoinSet::new();
    for writer in 0..objects {
        let (store, counts, text) = (store.clone(), Arc::clone(&counts), Arc::clone(&text));
        tasks.spawn(async move {
            for step in 0_u64.. {
                if Instant::now() >= end {
                    return;
                }
                store.write(object(&text, format!("host-{writer}-{}", step % 20))).await.expect("a write");
                counts.0.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let table = store.table("leases").expect("a table");
    for writer in 0..entries {
        let (table, counts) = (table.clone(), Arc::clone(&counts));
        tasks.spawn(async move {
            for step in 0_u64.. {
                if Instant::now() >= end {
                    return;
                }
                // An address and what a lease needs.
                let key = Bytes::from(format!("{:08x}", ((writer as u64) << 16) | (step % 200)));
                // Never the same twice: sled writes nothing for a value that is there already.
                let value = [&step.to_be_bytes()[..], &[7; 112]].concat();
                table.write(key, Some(value.into())).await.expect("a write");
                counts.1.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no writer panics");
    }
    let seconds = start.elapsed().as_secs_f64();
    (counts.0.load(Ordering::Relaxed) as f64 / seconds, counts.1.load(Ordering::Relaxed) as f64 / seconds)
}

fn main() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let options =
        StoreOptions { path: folder.path().join("db"), key_file: folder.path().join("store.key"), history: 1000 };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = Store::open(options.clone()).expect("a store");
        for (what, objects, entries) in [
            ("64 writers of 2 KiB objects", 64, 0),
            ("64 writers of table entries", 0, 64),
            ("256 writers of table entries", 0, 256),
            ("16 writers of objects and 64 of entries", 16, 64),
            ("1 writer of 2 KiB objects", 1, 0),
            ("1 writer of table entries", 0, 1),
        ] {
            let (object_rate, entry_rate) = measure(&store, objects, entries).await;
            println!("{what}: {object_rate:.0} objects/s, {entry_rate:.0} entries/s acknowledged");
        }
        for step in 0..5000 {
            // In memory: as many as a rack has leases.
            let view = Mutation { resource: "slipway.dev/views".into(), ..object("view", format!("view-{step}")) };
            store.publish(view).await.expect("a view");
        }
        let start = Instant::now();
        let count = (0..100).map(|_| store.list(HOSTS, None).objects.len()).sum::<usize>() / 100;
        println!("list of {count} objects: {:?}", start.elapsed() / 100);
        store.close().await;
        let start = Instant::now();
        let store = Store::open(options).expect("a store");
        println!("open with {} objects: {:?}", store.list(HOSTS, None).objects.len(), start.elapsed());
        store.close().await;
    });
}
