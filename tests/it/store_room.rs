//! Room: what the database takes of the disk, and what happens when there is none left, or no file descriptors.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use slipway::store::{Expect, Mutation, Store, StoreOptions, StoreWriteError};

/// How long the size is watched, in seconds; 10 unless this says otherwise.
const SECONDS: &str = "SLIPWAY_STORE_SECONDS";

/// Events kept for watches.
const HISTORY: usize = 1000;

/// Set in a child: the folder that it is to work in.
const FOLDER: &str = "SLIPWAY_STORE_FOLDER";

fn options(folder: &Path, history: usize) -> StoreOptions {
    StoreOptions { path: folder.join("db"), key_file: folder.join("store.key"), history }
}

fn put(name: String, length: usize, random: &mut StdRng) -> Mutation {
    // Random, so that it cannot be packed.
    let noise: String = (0..length).map(|_| char::from(random.random_range(b'A'..=b'Z'))).collect();
    let value = Some(json!({"metadata": {"name": name}, "spec": noise}));
    Mutation { resource: "/configmaps".into(), namespace: "ns".into(), name, expect: Expect::Any, value }
}

fn delete(name: String) -> Mutation {
    Mutation { resource: "/configmaps".into(), namespace: "ns".into(), name, expect: Expect::Any, value: None }
}

/// What a folder and all below it take of the disk, as the file system counts it (`du`).
fn taken(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .filter_map(Result::ok)
        // Files come and go meanwhile.
        .filter_map(|entry| entry.metadata().ok().map(|metadata| (entry, metadata)))
        .map(|(entry, metadata)| metadata.blocks() * 512 + if metadata.is_dir() { taken(&entry.path()) } else { 0 })
        .sum()
}

/// Kept for a full disk: two files, the ballast, of 8 MiB each.
const BALLAST: u64 = 16 << 20;

/// Kept for a full disk in the journal: 4 MiB, and of two journals while the database is written anew.
const RESERVE: u64 = 2 * (4 << 20);

/// Half empty segments of sled's log, and what is not worth to be written anew.
const SLACK: u64 = 12 << 20;

/// The most that the database may take: three times what is in it (objects, the events kept for watches, tables), and what
/// does not depend on that.
fn bound(live: u64) -> u64 {
    3 * live + SLACK + BALLAST + RESERVE
}

/// The same in words.
fn accounts(taken: u64, live: u64) -> String {
    format!(
        "{taken} bytes of the disk, and at most {} may be: three times {live} of objects, events and tables, {SLACK} of \
         slack, {BALLAST} of ballast, {RESERVE} of the journal's reserve",
        bound(live)
    )
}

/// What the test itself wrote and did not delete: no more than this may be said to be in the database.
#[derive(Default)]
struct Model {
    objects: HashMap<String, u64>,
    /// Former selves that events have, newest last.
    events: VecDeque<u64>,
}

impl Model {
    /// What an entry has beside the object's text: names, numbers, a nonce.
    const ENTRY: u64 = 1024;

    fn put(&mut self, name: &str, length: usize) {
        let former = self.objects.insert(name.to_owned(), length as u64).unwrap_or(0);
        self.events.push_back(former);
    }

    fn delete(&mut self, name: &str) {
        let former = self.objects.remove(name);
        self.events.extend(former);
    }

    fn bytes(&mut self, history: usize) -> u64 {
        while self.events.len() > history {
            self.events.pop_front();
        }
        let all = || self.objects.values().chain(&self.events);
        all().map(|length| length + Self::ENTRY).sum()
    }
}

fn live(store: &Store) -> u64 {
    u64::try_from(store.meters().live_bytes.get()).unwrap()
}

/// Looks at the size again and again until it is told to stop, also while the database is written anew. Gives back the
/// largest, and the worst relation to what is in it (of at least 4 MB), without what is kept for a full disk.
fn observe(store: Store, database: PathBuf, stop: Arc<AtomicBool>) -> (u64, f64) {
    let (mut largest, mut worst, mut before) = (0, 0.0_f64, live(&store));
    while !stop.load(Ordering::Relaxed) {
        let taken = taken(&database);
        let now = live(&store);
        let most = before.max(now);
        assert!(taken <= bound(most), "{}", accounts(taken, most));
        largest = largest.max(taken);
        worst = worst.max(taken.saturating_sub(BALLAST + RESERVE / 2) as f64 / most.max(4 << 20) as f64);
        before = now;
        // How often, not what is waited for.
        thread::sleep(Duration::from_millis(1));
    }
    (largest, worst)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_stays_within_three_times_of_what_is_in_it() {
    let seconds = env::var(SECONDS).ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(10);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let store = Store::open(options(folder.path(), HISTORY)).unwrap();
    let database = folder.path().join("db");
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut writes, mut bytes) = (0_u64, 0_u64);
    let mut model = Model::default();
    let stop = Arc::new(AtomicBool::new(false));
    let observer = {
        let (store, database, stop) = (store.clone(), database.clone(), Arc::clone(&stop));
        thread::spawn(move || observe(store, database, stop))
    };
    // Each mix for a while: how many objects, and how large they are.
    let mixes: [(u32, std::ops::Range<usize>); 6] = [
        (50, 20_000..20_001),
        (20, 100_000..100_001),
        (10, 0..1_000_000),
        (400, 200..5_000),
        (4, 1_000_000..1_040_000),
        (60, 5_500..70_000),
    ];
    for (objects, lengths) in mixes.iter().cycle() {
        if Instant::now() >= until || observer.is_finished() {
            break;
        }
        for _ in 0..40 {
            let name = format!("m{}", random.random_range(0..*objects));
            if random.random_ratio(1, 8) {
                store.write(delete(name.clone())).await.ok();
                model.delete(&name);
            } else {
                let length = random.random_range(lengths.clone());
                store.write(put(name.clone(), length, &mut random)).await.unwrap();
                model.put(&name, length);
                bytes += length as u64;
            }
            writes += 1;
        }
        let (live, model) = (live(&store), model.bytes(HISTORY));
        assert!(live <= model, "the store says that {live} bytes are in it, and at most {model} can be");
    }
    for object in store.list("/configmaps", None).objects {
        store.write(delete(object.name.clone())).await.unwrap();
    }
    store.write(put("last".into(), 10, &mut random)).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let (largest, worst) = observer.join().unwrap();
    let (live, left) = (live(&store), taken(&database));
    assert!(left <= bound(live), "after all was deleted: {}", accounts(left, live));
    store.close().await;
    let again = Store::open(options(folder.path(), 1000)).unwrap();
    assert_eq!(again.list("/configmaps", None).objects.len(), 1);
    again.close().await;
    println!(
        "{writes} writes, {} MB: at most {} MB of the disk, {worst:.2} times what was in it (of at least 4 MB, and without \
         what is kept for a full disk); {} MB in the end",
        bytes / 1_000_000,
        largest / 1_000_000,
        left / 1_000_000
    );
}

/// The base that is being written, if there is one.
fn unfinished(database: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(database).ok()?.filter_map(Result::ok);
    entries.map(|entry| entry.path().join("base.new")).find(|base| base.exists())
}

/// Who deletes much has the database written anew again and again. What others write is acknowledged meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_writes_go_on_while_a_large_database_is_written_anew() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut random = StdRng::seed_from_u64(5);
    let store = Store::open(options(folder.path(), 100)).unwrap();
    for number in 0..120 {
        store.write(put(format!("large-{number}"), 700_000, &mut random)).await.unwrap();
    }
    let before = store.meters().rewrites.get();
    let deletions = {
        let store = store.clone();
        tokio::spawn(async move {
            for number in 0..120 {
                store.write(delete(format!("large-{number}"))).await.unwrap();
            }
        })
    };
    let (table, database) = (store.table("leases").unwrap(), folder.path().join("db"));
    let (mut number, mut objects, mut entries) = (0_u32, 0, 0);
    while !deletions.is_finished() {
        number += 1;
        let base = unfinished(&database);
        let is_still = || base.is_some() && unfinished(&database) == base;
        table.write(number.to_be_bytes().to_vec().into(), Some("lease".into())).await.unwrap();
        entries += u32::from(is_still());
        store.write(put(format!("small-{number}"), 100, &mut random)).await.unwrap();
        objects += u32::from(is_still());
    }
    deletions.await.unwrap();
    let rewrites = store.meters().rewrites.get() - before;
    println!("{number} written, {objects} objects and {entries} entries of them during {rewrites} rewritings");
    assert!(rewrites > 1 && objects > 0 && entries > 0, "{objects} and {entries} during {rewrites}");
    store.close().await;
    let again = Store::open(options(folder.path(), 100)).unwrap();
    assert_eq!(again.list("/configmaps", None).objects.len(), number as usize);
    assert_eq!(again.table("leases").unwrap().scan().len(), number as usize);
    again.close().await;
}

/// Small entries take more of the disk than they hold, also when they were just written. That is no reason to write
/// them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_entries_are_not_rewritten_again_and_again() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = Store::open(options(folder.path(), 1000)).unwrap();
    let table = store.table("leases").unwrap();
    let entry = |number: u32, value: u8| (format!("{number:08x}").into(), Some(vec![value; 120].into()));
    let mut written = 0;
    for round in 0..6 {
        for first in (0..50_000).step_by(500) {
            table.write_all((first..first + 500).map(|number| entry(number, round)).collect()).await.unwrap();
            written += 500 * 130;
        }
    }
    let (live, disk) = (store.meters().live_bytes.get(), store.meters().disk_bytes.get());
    let rewrites = i64::try_from(store.meters().rewrites.get()).unwrap();
    println!("{written} bytes written, {live} there, {disk} of the disk, rewritten {rewrites} times");
    assert!(rewrites * live <= 2 * written, "{rewrites} times, with {live} bytes each, for {written} bytes written");
    store.close().await;
}

/// This test program again, for one test, in a file system of its own of that size.
fn on_a_small_disk(test: &str, folder: &Path, megabytes: u32) -> Command {
    let mut command = Command::new("unshare");
    let script = format!("mount -t tmpfs -o size={megabytes}m small \"$0\" && exec \"$@\"");
    command.args(["--mount", "--user", "--map-root-user", "sh", "-c", &script]).arg(folder);
    command.arg(env::current_exe().unwrap()).args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(FOLDER, folder).stdin(Stdio::null());
    command
}

/// Fills the disk: `true` when the store said that it is full, before the disk did.
async fn fill(store: &Store, random: &mut StdRng) -> usize {
    for number in 0..100_000 {
        match store.write(put(format!("fill-{number}"), 30_000, random)).await {
            Ok(_) => {}
            Err(StoreWriteError::Full) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the disk is never full");
}

async fn meet_a_full_disk(folder: &Path) {
    let mut random = StdRng::seed_from_u64(3);
    let store = Store::open(options(folder, 100)).unwrap();
    let made = fill(&store, &mut random).await;
    assert!(made > 100, "{made}");
    // What somebody else writes beside it.
    let rest = folder.join("of somebody else");
    let block = vec![7; 4096];
    let mut file = fs::File::create(&rest).unwrap();
    while std::io::Write::write_all(&mut file, &block).is_ok() {}
    drop(file);
    store.close().await;

    // Nothing is free, and it is opened, read, and told that it is full.
    let count = |store: &Store| store.list("/configmaps", None).objects.len();
    let store = Store::open(options(folder, 100)).unwrap();
    assert_eq!(count(&store), made);
    let refused = store.write(put("one-more".into(), 30_000, &mut random)).await;
    assert!(matches!(refused, Err(StoreWriteError::Full)), "{refused:?}");
    // What needs no more room is written, as long as there is some to write it beside what was there.
    store.write(put("fill-0".into(), 30_000, &mut random)).await.unwrap();
    let leases = store.table("leases").unwrap();
    let mut refused = (0, 0);
    for turn in 0..400_u32 {
        match store.write(put("fill-0".into(), 30_000, &mut random)).await {
            Ok(_) => {}
            Err(StoreWriteError::Full) => refused.0 += 1,
            Err(error) => panic!("{error}"),
        }
        match leases.write(turn.to_be_bytes().to_vec().into(), Some(vec![7; 30_000].into())).await {
            Ok(()) => {}
            Err(StoreWriteError::Full) => refused.1 += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused.0 > 0 && refused.1 > 0, "{refused:?}");
    store.close().await;
    let store = Store::open(options(folder, 100)).unwrap();
    assert_eq!(count(&store), made);
    // And what gives room back, always.
    for (key, _) in store.table("leases").unwrap().scan() {
        store.table("leases").unwrap().write(key, None).await.unwrap();
    }
    for number in 0..made - 10 {
        store.write(delete(format!("fill-{number}"))).await.unwrap();
    }
    assert_eq!(count(&store), 10);
    fs::remove_file(&rest).unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    while let Err(error) = store.write(put("fill-0".into(), 30_000, &mut random)).await {
        assert!(matches!(error, StoreWriteError::Full) && Instant::now() < until, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.close().await;
    let store = Store::open(options(folder, 100)).unwrap();
    assert_eq!(count(&store), 11);
    store.close().await;
}

#[tokio::test]
async fn a_full_disk_is_opened_read_deleted_from_and_recovers() {
    if let Ok(folder) = env::var(FOLDER) {
        return meet_a_full_disk(Path::new(&folder)).await;
    }
    for megabytes in [24, 96] {
        let folder = tempfile::tempdir().unwrap();
        let test = "store_room::a_full_disk_is_opened_read_deleted_from_and_recovers";
        let mut command = on_a_small_disk(test, folder.path(), megabytes);
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && text.contains("1 passed"), "{megabytes} MB: {text}");
    }
}

/// A large one; it is sealed, so that it is not packed on disk.
fn secret(number: usize) -> Mutation {
    let name = format!("s{number}");
    let value = Some(json!({"metadata": {"name": name}, "spec": "x".repeat(1_000_000)}));
    Mutation { resource: "/secrets".into(), namespace: "ns".into(), name, expect: Expect::Any, value }
}

async fn update_many_on_a_full_disk(folder: &Path) {
    let store = Store::open(options(folder, 100)).unwrap();
    let mut made = 0;
    while store.write(secret(made)).await.is_ok() {
        made += 1;
    }
    assert!(made > 20, "{made}");
    for _ in 0..3 {
        let changes: Vec<Mutation> = (0..100).map(|turn| secret(turn % made)).collect();
        for outcome in futures::future::join_all(changes.into_iter().map(|change| store.write(change))).await {
            assert!(matches!(outcome, Ok(_) | Err(StoreWriteError::Full)), "{outcome:?}");
        }
    }
    store.close().await;
    let store = Store::open(options(folder, 100)).unwrap();
    assert_eq!(store.list("/secrets", None).objects.len(), made);
    for number in 0..made {
        let gone = Mutation { value: None, ..secret(number) };
        store.write(gone).await.unwrap();
    }
    store.write(secret(0)).await.unwrap();
    store.close().await;
}

/// Of one length, so that nothing grows, and each is written beside what was there.
#[tokio::test]
async fn large_updates_at_once_do_not_take_the_last_of_a_disk() {
    if let Ok(folder) = env::var(FOLDER) {
        return update_many_on_a_full_disk(Path::new(&folder)).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command =
        on_a_small_disk("store_room::large_updates_at_once_do_not_take_the_last_of_a_disk", folder.path(), 200);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

async fn run_out_of_descriptors(folder: &Path) {
    let mut random = StdRng::seed_from_u64(3);
    let store = Store::open(options(folder, 100)).unwrap();
    store.write(put("a".into(), 10, &mut random)).await.unwrap();
    let mut taken = Vec::new();
    let refused = loop {
        match fs::File::open("/dev/null") {
            Ok(file) => taken.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.raw_os_error(), Some(24), "{refused}");
    // Enough for the database to be rewritten, if it could.
    for number in 0..120_u32 {
        store.write(put(format!("m{}", number % 3), 900_000, &mut random)).await.unwrap();
    }
    drop(taken);
    // Once it can be, it is.
    let until = Instant::now() + Duration::from_secs(60);
    for number in 0_u32.. {
        store.write(put(format!("m{}", number % 3), 900_000, &mut random)).await.unwrap();
        let live = live(&store);
        let size = self::taken(&folder.join("db"));
        if size <= bound(live) {
            break;
        }
        assert!(Instant::now() < until, "{}", accounts(size, live));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    store.close().await;
    let store = Store::open(options(folder, 100)).unwrap();
    assert_eq!(store.list("/configmaps", None).objects.len(), 4);
    store.close().await;
}

#[tokio::test]
async fn without_file_descriptors_the_store_goes_on() {
    if let Ok(folder) = env::var(FOLDER) {
        return run_out_of_descriptors(Path::new(&folder)).await;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new("sh");
    let test = "store_room::without_file_descriptors_the_store_goes_on";
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]).arg(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(FOLDER, folder.path());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
