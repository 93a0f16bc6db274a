//! What opening makes of damaged files: everything that was acknowledged is there, or the store refuses and says what to do.
//! That anything is missing without a word is the one outcome that must not be.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use slipway::store::{Expect, Mutation, Store, StoreOptions};

const HOSTS: &str = "metal3.io/baremetalhosts";
const SECRETS: &str = "/secrets";

/// Damages of each kind, to each of the two states of the files.
const ROUNDS: usize = 14;

fn options(folder: &Path) -> StoreOptions {
    StoreOptions { path: folder.join("db"), key_file: folder.join("store.key"), history: 100 }
}

fn change(resource: &str, name: String, length: usize, random: &mut StdRng) -> Mutation {
    let noise: String = (0..length).map(|_| char::from(random.random_range(b'A'..=b'Z'))).collect();
    let value = Some(json!({"metadata": {"name": name}, "spec": noise}));
    Mutation { resource: resource.into(), namespace: "ns".into(), name, expect: Expect::Any, value }
}

/// All that a store holds that was acknowledged.
type Content = (BTreeMap<String, Value>, Vec<(Bytes, Bytes)>);

fn content(store: &Store) -> Content {
    let objects = [HOSTS, SECRETS].into_iter().flat_map(|resource| store.list(resource, None).objects);
    let objects = objects.map(|object| (format!("{} {}", object.resource, object.name), object.value())).collect();
    (objects, store.table("leases").unwrap().scan())
}

/// Small, middling and large ones, changed again and again, and some deleted.
async fn fill(store: &Store, random: &mut StdRng) {
    let leases = store.table("leases").unwrap();
    for step in 0..500 {
        let length = match step % 25 {
            0 => 120_000,
            1..5 => 20_000,
            _ => 700,
        };
        let resource = if step % 7 == 0 { SECRETS } else { HOSTS };
        let name = format!("n{}", random.random_range(0..120));
        store.write(change(resource, name, if resource == SECRETS { 400 } else { length }, random)).await.unwrap();
        let lease = Bytes::from(format!("lease-{}", random.random_range(0..60)));
        leases.write(lease, Some(Bytes::from(format!("until {step}")))).await.unwrap();
        if step % 20 == 19 {
            let name = format!("n{}", random.random_range(0..120));
            let gone = Mutation { value: None, ..change(HOSTS, name, 0, random) };
            store.write(gone).await.ok();
        }
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Every file with its size and when it was written last.
fn listing(folder: &Path) -> io::Result<Vec<(PathBuf, u64, SystemTime)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        match about.is_dir() {
            true => found.extend(listing(&entry.path())?),
            false => found.push((entry.path(), about.len(), about.modified()?)),
        }
    }
    found.sort();
    Ok(found)
}

/// A copy of a folder as it was at one moment, though a store that tidies up by itself is open in it.
async fn copy_at_rest(from: &Path, to: &Path) {
    let rest = async {
        loop {
            let before = listing(from);
            let copied = copy(from, to);
            // What is removed meanwhile cannot be found.
            if let (Ok(before), Ok(()), Ok(after)) = (before, copied, listing(from))
                && before == after
            {
                return;
            }
            fs::remove_dir_all(to).unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), rest).await.expect("the store comes to rest");
}

/// The files of a database, but for those that hold nothing of it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false if entry.file_name() == "lock" || entry.file_name().to_string_lossy().starts_with("ballast") => {}
            false => found.push(entry.path()),
        }
    }
    found.sort();
    found
}

/// One damage; says what it did.
fn damage(kind: usize, database: &Path, random: &mut StdRng) -> String {
    let all = files(database);
    // Mostly the largest, which is the log with the data.
    let largest = all.iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap().clone();
    let file = if random.random_bool(0.6) { largest } else { all[random.random_range(0..all.len())].clone() };
    let mut bytes = fs::read(&file).unwrap();
    let length = bytes.len();
    let name = file.strip_prefix(database).unwrap().display().to_string();
    let what = match kind {
        0 if length > 0 => {
            let at = random.random_range(0..length);
            bytes[at] ^= 1 << random.random_range(0..8);
            format!("a bit at {at} of {length} in {name}")
        }
        // Where the newest writes are.
        1 if length > 0 => {
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
            let at = random.random_range(used - (used / 20).max(1)..used);
            bytes[at] ^= 1 << random.random_range(0..8);
            format!("a bit at {at} of {length} in {name}")
        }
        2 if length > 0 => {
            let from = random.random_range(0..length.div_ceil(4096)) * 4096;
            let to = (from + 4096).min(length);
            bytes[from..to].fill(0);
            format!("a block of zeros at {from} of {length} in {name}")
        }
        3 => {
            let to = length - (length / 1000).max(1).min(length);
            bytes.truncate(to);
            format!("{name} cut from {length} to {to}")
        }
        4 => {
            bytes.truncate(random.random_range(0..=length));
            format!("{name} cut from {length} to {}", bytes.len())
        }
        5 => {
            bytes.clear();
            format!("{name} emptied")
        }
        6 => {
            fs::remove_file(&file).unwrap();
            return format!("{name} removed");
        }
        _ => {
            let folder = file.parent().unwrap();
            fs::remove_dir_all(folder).unwrap();
            return format!("folder of {name} removed");
        }
    };
    fs::write(&file, bytes).unwrap();
    what
}

/// What came of a damage.
#[derive(Debug, PartialEq)]
enum Outcome {
    Whole,
    Refused(String),
    Lost,
}

async fn try_open(folder: &Path, expected: &Content, revision: u64) -> Outcome {
    let store = match Store::open(options(folder)) {
        Ok(store) => store,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    let whole = content(&store) == *expected && store.revision() >= revision;
    // It must also go on from there, and be whole the next time.
    let written = store.write(change(HOSTS, "after".into(), 10, &mut StdRng::seed_from_u64(1))).await;
    store.close().await;
    if !whole || written.is_err() {
        return Outcome::Lost;
    }
    let again = Store::open(options(folder)).unwrap();
    let mut more = content(&again);
    again.close().await;
    more.0.remove(&format!("{HOSTS} after"));
    if more == *expected { Outcome::Whole } else { Outcome::Lost }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_healed_or_refused_and_never_kept_quiet() {
    let seed: u64 =
        std::env::var("SLIPWAY_STORE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("seed {seed} (set SLIPWAY_STORE_SEED to have the same damages again)");
    let mut random = StdRng::seed_from_u64(seed);
    let original = tempfile::tempdir().unwrap();
    let killed = tempfile::tempdir().unwrap();
    let store = Store::open(options(original.path())).unwrap();
    fill(&store, &mut random).await;
    let (expected, revision) = (content(&store), store.revision());
    // Every write is acknowledged: what a `kill -9` would leave.
    copy_at_rest(original.path(), killed.path()).await;
    store.close().await;

    let (mut whole, mut refused, mut lost) = (0, 0, Vec::new());
    for state in [original.path(), killed.path()] {
        assert_eq!(
            {
                let trial = tempfile::tempdir().unwrap();
                copy(state, trial.path()).unwrap();
                try_open(trial.path(), &expected, revision).await
            },
            Outcome::Whole,
            "without damage"
        );
        for kind in 0..8 {
            for _ in 0..ROUNDS {
                let trial = tempfile::tempdir().unwrap();
                copy(state, trial.path()).unwrap();
                let what = damage(kind, &trial.path().join("db"), &mut random);
                match try_open(trial.path(), &expected, revision).await {
                    Outcome::Whole => whole += 1,
                    Outcome::Refused(reason) => {
                        refused += 1;
                        let says = ["restore a backup", "put the former key file back"];
                        assert!(says.iter().any(|what| reason.contains(what)), "{what}: {reason}");
                    }
                    Outcome::Lost => lost.push(what),
                }
            }
        }
    }
    println!("{} damages: {whole} healed, {refused} refused, {} kept quiet", whole + refused + lost.len(), lost.len());
    assert!(lost.is_empty(), "something is missing without a word after: {lost:#?}");
    assert!(whole > 0 && refused > 0, "{whole} healed, {refused} refused");
}
