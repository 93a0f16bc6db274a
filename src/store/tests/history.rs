//! The history: how long it is kept, and lists of before.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn list_then_watch_misses_nothing() {
    list_then_watch(true).await;
    list_then_watch(false).await;
}

/// Lists and watches made at random moments while others write: list plus events is always what is there.
async fn list_then_watch(durable: bool) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions { history: 100_000, ..options(folder.path()) }).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let store = store.clone();
        tasks.spawn(async move {
            for step in 0..150 {
                let name = format!("{writer}-{}", step % 7);
                let change = match step % 5 {
                    4 => delete(HOSTS, "ns", &name, Expect::Any),
                    _ => put(HOSTS, "ns", &name, Expect::Any, step),
                };
                match if durable { store.write(change).await } else { store.publish(change).await } {
                    Ok(_) | Err(StoreWriteError::NotFound) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            let end = put(HOSTS, "end", &writer.to_string(), Expect::Absent, 0);
            if durable { store.write(end).await } else { store.publish(end).await }.unwrap();
        });
    }
    for reader in 0..4 {
        let store = store.clone();
        tasks.spawn(async move {
            while store.revision() < 100 * reader {
                tokio::task::yield_now().await;
            }
            let listing = store.list(HOSTS, None);
            let mut seen: BTreeMap<_, _> = listing
                .objects
                .iter()
                .map(|object| ((object.namespace.clone(), object.name.clone()), object.revision))
                .collect();
            let mut watch = store.watch(HOSTS, listing.revision).unwrap();
            let mut last = listing.revision;
            while seen.keys().filter(|(namespace, _)| namespace == "end").count() < 4 {
                let event = next(&mut watch).await.unwrap();
                let object = event.object();
                assert_eq!(object.revision, last + 1, "one resource: each revision is an event");
                last = object.revision;
                let key = (object.namespace.clone(), object.name.clone());
                let former = match &event {
                    StoreEvent::Added(_) => seen.insert(key, object.revision).map(|_| 0),
                    StoreEvent::Modified { previous, .. } => {
                        assert_eq!(seen.insert(key, object.revision), Some(previous.revision));
                        None
                    }
                    StoreEvent::Deleted(_) => seen.remove(&key).is_none().then_some(0),
                };
                assert_eq!(former, None, "{}", line(&event));
            }
            let now: BTreeMap<_, _> = store
                .list(HOSTS, None)
                .objects
                .iter()
                .map(|object| ((object.namespace.clone(), object.name.clone()), object.revision))
                .collect();
            assert_eq!(seen, now);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    store.close().await;
}

#[tokio::test]
async fn history_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let few = StoreOptions { history: 5, ..options(folder.path()) };
    let store = Store::open(few.clone()).unwrap();
    let mut slow = store.watch(HOSTS, 0).unwrap();
    store.write(put("/namespaces", "", "quiet", Expect::Any, 1)).await.unwrap();
    for step in 0..12 {
        store.write(put(HOSTS, "ns", "a", Expect::Any, step)).await.unwrap();
    }
    // Revisions 2 to 13; 9 to 13 are kept.
    let Err(Gone { asked: 0, oldest: 8 }) = next(&mut slow).await else { panic!("it missed events") };
    for after in [0, 7] {
        let Err(gone) = store.watch(HOSTS, after) else { panic!("{after} is too old") };
        assert_eq!((gone.asked, gone.oldest), (after, 8));
    }
    let mut watch = store.watch(HOSTS, 8).unwrap();
    let kept = lines(&mut watch, 5).await;
    assert_eq!(kept[0], "modified a@9 7 was a@8 6");
    assert_eq!(lines(&mut store.watch("/namespaces", 0).unwrap(), 1).await, ["added quiet@1 1"]);
    store.close().await;

    let store = Store::open(few).unwrap();
    assert!(store.watch(HOSTS, 7).is_err());
    assert_eq!(lines(&mut store.watch(HOSTS, 8).unwrap(), 5).await, kept);
    assert_eq!(lines(&mut store.watch("/namespaces", 0).unwrap(), 1).await, ["added quiet@1 1"]);
    store.close().await;

    // A shorter history takes effect. A longer one may have again what is still on disk, and nothing else.
    let store = Store::open(StoreOptions { history: 2, ..options(folder.path()) }).unwrap();
    assert!(store.watch(HOSTS, 10).is_err());
    assert_eq!(lines(&mut store.watch(HOSTS, 11).unwrap(), 2).await, kept[3..]);
    store.close().await;
    let store = open(folder.path());
    assert_eq!(lines(&mut store.watch(HOSTS, 8).unwrap(), 5).await, kept);
    assert_eq!(lines(&mut store.watch(HOSTS, 1).unwrap(), 12).await[7..], kept);
    store.close().await;
}

#[tokio::test]
async fn history_is_bounded_in_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    // Nothing in it can be packed.
    let next_word = |word: &u64| Some(word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    let words = std::iter::successors(Some(1_u64), next_word).map(|word| format!("{:08x}", word >> 32));
    let large: String = words.take(62_500).collect();
    for _ in 0..40 {
        store.write(put(HOSTS, "ns", "a", Expect::Any, large.as_str())).await.unwrap();
    }
    // 16 MiB hold 33 of them.
    assert!(store.watch(HOSTS, 6).is_err());
    let mut watch = store.watch(HOSTS, 7).unwrap();
    for revision in 8..=40 {
        assert_eq!(next(&mut watch).await.unwrap().object().revision, revision);
    }
    store.close().await;
    let store = open(folder.path());
    assert!(store.watch(HOSTS, 6).is_err());
    assert!(store.watch(HOSTS, 7).is_ok());
    store.close().await;
}

#[tokio::test]
async fn a_list_of_before_is_what_was_there_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path());
    let text = |list: Vec<Arc<Object>>| -> Vec<String> {
        list.iter()
            .map(|one| format!("{}/{}@{} {}", one.namespace, one.name, one.revision, one.value()["spec"]))
            .collect()
    };
    let mut known = vec![(0, Vec::new())];
    let steps = [
        put(HOSTS, "ns", "b", Expect::Absent, 1),
        put(HOSTS, "ns", "a", Expect::Absent, 1),
        put(HOSTS, "other", "a", Expect::Absent, 1),
        put(HOSTS, "ns", "b", Expect::Present, 2),
        delete(HOSTS, "ns", "b", Expect::Present),
        put("/secrets", "ns", "s", Expect::Absent, 1),
        put(HOSTS, "ns", "b", Expect::Absent, 3),
        put(HOSTS, "ns", "a", Expect::Present, 2),
        delete(HOSTS, "ns", "a", Expect::Present),
        delete(HOSTS, "other", "a", Expect::Present),
    ];
    for step in steps {
        let revision = store.write(step).await.unwrap().revision;
        known.push((revision, text(store.list(HOSTS, None).objects)));
    }
    for _ in 0..2 {
        for (revision, wanted) in &known {
            let listing = store.list_at(HOSTS, None, *revision).unwrap();
            assert_eq!((listing.revision, text(listing.objects)), (*revision, wanted.clone()));
            let mut here = wanted.clone();
            here.retain(|line| line.starts_with("ns/"));
            assert_eq!(text(store.list_at(HOSTS, Some("ns"), *revision).unwrap().objects), here);
        }
        let beyond = known.len() as u64 + 1;
        assert!(store.list_at(HOSTS, None, beyond).is_err());
        store.close().await;
        store = open(folder.path());
    }
    store.close().await;
}

#[tokio::test]
async fn a_history_that_is_forgotten_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let first = store.write(put(HOSTS, "metal3", "a", Expect::Absent, 1)).await.unwrap().revision;
    let second = store.write(put(HOSTS, "metal3", "a", Expect::Present, 2)).await.unwrap().revision;
    let other = store.write(put("/others", "x", "b", Expect::Absent, 1)).await.unwrap().revision;
    let mut behind = store.watch(HOSTS, first).unwrap();
    store.forget(HOSTS).await.unwrap();
    next(&mut behind).await.unwrap_err();
    for revision in [first, second] {
        assert!(store.watch(HOSTS, revision).is_err() && store.list_at(HOSTS, None, revision).is_err());
    }
    let now = store.revision();
    let mut watch = store.watch(HOSTS, now).unwrap();
    assert_eq!(store.list_at(HOSTS, None, now).unwrap().objects.len(), 1, "the objects stay");
    assert!(store.watch("/others", other - 1).is_ok());
    store.write(put(HOSTS, "metal3", "c", Expect::Absent, 3)).await.unwrap();
    assert_eq!(lines(&mut watch, 1).await.len(), 1);
    store.close().await;

    let store = open(folder.path());
    assert!(store.watch(HOSTS, first).is_err() && store.watch(HOSTS, now).is_ok());
    assert!(store.watch("/others", other - 1).is_ok());
    assert_eq!(store.list(HOSTS, None).objects.len(), 2);
    // What nobody knew has no history to lose.
    store.forget("/never").await.unwrap();
}
