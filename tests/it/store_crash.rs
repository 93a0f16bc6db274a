//! A `kill -9` at any moment loses nothing that was acknowledged.
//!
//! The test runs itself again as a child that opens the store and writes as fast as it can: objects, secrets and table
//! entries from several writers, one of them with values that go to files of their own, and one that only publishes.
//! Each acknowledged write is a line on the child's output. The parent kills the child at a random moment, some of them
//! while it opens the store, opens the store itself and compares.
//!
//! What each writer does in its n-th step is a pure function, so the parent can tell exactly what must be there: the
//! result of the steps up to the last acknowledged one, or of one more, which was under way.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{env, io, process, thread};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use slipway::store::{Expect, Mutation, Store, StoreEvent, StoreOptions, StoreWriteError};

/// Set in the child: `folder;steps done by each writer`.
const LOAD: &str = "SLIPWAY_STORE_LOAD";

/// Set in the child that is to meet a disk that refuses: `folder`.
const REFUSED: &str = "SLIPWAY_STORE_REFUSED";

const ROUNDS: usize = 54;

/// Rounds whose kill comes so early that it mostly hits the opening of the store.
const EARLY: usize = 18;

/// A child or a wait that takes longer is stuck.
const DEADLINE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Object(&'static str),
    Table(&'static str),
    Published,
}

const HOSTS: Kind = Kind::Object("metal3.io/baremetalhosts");
const SECRETS: Kind = Kind::Object("/secrets");
const LEASES: Kind = Kind::Table("leases");

/// Each writer has keys of its own.
const WRITERS: [Kind; 12] = [
    HOSTS,
    HOSTS,
    HOSTS,
    HOSTS,
    SECRETS,
    SECRETS,
    LEASES,
    LEASES,
    LEASES,
    LEASES,
    Kind::Table("other"),
    Kind::Published,
];

/// What a writer does in a step.
struct Step {
    key: String,
    /// `None` removes.
    value: Option<String>,
}

fn step(writer: usize, number: u64) -> Step {
    let mut random = StdRng::seed_from_u64(number << 8 | writer as u64);
    let key = format!("w{writer:02}-{}", random.random_range(0..8));
    let length = match (WRITERS[writer], random.random_range(0..100)) {
        (_, 0..60) => random.random_range(0..500),
        // Small ones: sealing is slow in a build without optimisation.
        (SECRETS, _) => 500,
        (_, 60..98) => random.random_range(500..10_000),
        // Large enough for a file of its own.
        (HOSTS | LEASES, _) => random.random_range(150_000..300_000),
        _ => 30_000,
    };
    let value = (random.random_range(0..5) > 0).then(|| {
        // No two are alike, or packing would leave nothing of them.
        let noise: String = (0..length).map(|_| char::from(random.random_range(b'0'..=b'z'))).collect();
        format!("{number} {noise}")
    });
    Step { key, value }
}

fn options(folder: &Path) -> StoreOptions {
    StoreOptions { path: folder.join("db"), key_file: folder.join("store.key"), history: 300 }
}

fn change(resource: &str, step: Step) -> Mutation {
    let value = step.value.map(|text| json!({"metadata": {"name": step.key}, "spec": text}));
    Mutation { resource: resource.into(), namespace: "ns".into(), name: step.key, expect: Expect::Any, value }
}

/// One line in one `write`, so that a kill cannot cut it.
fn say(line: &str) {
    // The parent is gone: so is the reason to go on.
    if io::stdout().lock().write_all(format!("{line}\n").as_bytes()).is_err() {
        process::exit(0);
    }
}

/// Runs one writer's step; `Ok` is the revision (0 for tables), once it is acknowledged.
async fn run_step(store: &Store, writer: usize, number: u64) -> Result<u64, StoreWriteError> {
    let step = step(writer, number);
    let outcome = match WRITERS[writer] {
        Kind::Object(resource) => store.write(change(resource, step)).await.map(|object| object.revision),
        Kind::Published => store.publish(change("slipway.dev/views", step)).await.map(|object| object.revision),
        Kind::Table(name) => {
            let key = Bytes::from(step.key);
            store.table(name)?.write(key, step.value.map(Bytes::from)).await.map(|()| 0)
        }
    };
    match outcome {
        // Removing what is not there.
        Err(StoreWriteError::NotFound) => Ok(0),
        other => other,
    }
}

/// The child of the kill test. Bounded in time, should the parent be gone without a trace.
fn load(arguments: &str) {
    let (folder, starts) = arguments.split_once(';').expect("folder;starts");
    let starts: Vec<u64> = starts.split(',').map(|start| start.parse().expect("a number")).collect();
    say("ack opening");
    let store = Store::open(options(Path::new(folder))).expect("the store opens");
    say(&format!("ack open {}", store.revision()));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for (writer, start) in starts.into_iter().enumerate() {
            let store = store.clone();
            tasks.spawn(async move {
                for number in start.. {
                    let revision = run_step(&store, writer, number).await.expect("a write");
                    say(&format!("ack {writer} {number} {revision}"));
                }
            });
        }
        tokio::time::timeout(DEADLINE, tasks.join_all()).await.ok();
    });
}

/// This test program again, for one test, with one variable.
fn again(test: &str, variable: &str, value: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the path of this program"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(variable, value);
    command
}

/// Kills the child when a check fails, so that none is left behind.
struct Reaper(Child);

impl Drop for Reaper {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn spawn(mut command: Command) -> (Reaper, Receiver<String>) {
    let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("a child");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let (sender, lines) = channel();
    thread::spawn(move || {
        // A last line without its end was not acknowledged.
        for line in output.lines().map_while(Result::ok) {
            // The first line comes after the test's name.
            if let Some((_, ack)) = line.split_once("ack ")
                && sender.send(ack.to_owned()).is_err()
            {
                return;
            }
        }
    });
    (Reaper(child), lines)
}

type State = BTreeMap<String, String>;

/// What the parent knows.
#[derive(Default)]
struct Known {
    /// Steps that are in `states`.
    done: Vec<u64>,
    /// What each writer's keys hold.
    states: Vec<State>,
    revision: u64,
    acknowledged: u64,
    replayed: usize,
    opens_hit: usize,
}

fn apply(state: &mut State, step: Step) {
    match step.value {
        Some(value) => state.insert(step.key, value),
        None => state.remove(&step.key),
    };
}

/// What a writer's keys hold in the store.
fn found(store: &Store, writer: usize) -> State {
    let prefix = format!("w{writer:02}-");
    match WRITERS[writer] {
        Kind::Object(resource) => store
            .list(resource, Some("ns"))
            .objects
            .iter()
            .filter(|object| object.name.starts_with(&prefix))
            .map(|object| {
                assert_eq!(object.value()["metadata"]["resourceVersion"], object.revision.to_string());
                (object.name.clone(), object.value()["spec"].as_str().expect("text").to_owned())
            })
            .collect(),
        Kind::Table(name) => store
            .table(name)
            .expect("the table")
            .scan()
            .into_iter()
            .map(|(key, value)| {
                let text = |bytes: Bytes| String::from_utf8(bytes.into()).expect("text");
                (text(key), text(value))
            })
            .filter(|(key, _)| key.starts_with(&prefix))
            .collect(),
        Kind::Published => State::new(),
    }
}

/// Objects of a resource by name, with revisions.
fn listing(store: &Store, resource: &str) -> BTreeMap<String, u64> {
    store.list(resource, None).objects.iter().map(|object| (object.name.clone(), object.revision)).collect()
}

/// The events since the last look lead from what was there to what is there, with each event's revision after the last.
fn replay(store: &Store, resource: &str, after: u64, mut before: BTreeMap<String, u64>) -> bool {
    // More happened than is kept.
    let Ok(mut watch) = store.watch(resource, after) else { return false };
    let mut last = after;
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while let std::task::Poll::Ready(event) = std::pin::pin!(watch.next()).as_mut().poll(&mut context) {
        let event = event.expect("nothing is dropped while nobody writes");
        let object = event.object();
        assert!(object.revision > last);
        last = object.revision;
        match &event {
            StoreEvent::Added(_) => assert_eq!(before.insert(object.name.clone(), last), None),
            StoreEvent::Modified { previous, .. } => {
                assert_eq!(before.insert(object.name.clone(), last), Some(previous.revision));
            }
            StoreEvent::Deleted(_) => assert!(before.remove(&object.name).is_some()),
        }
    }
    assert_eq!(before, listing(store, resource), "the events of {resource} after {after} do not lead to its objects");
    true
}

fn round(
    folder: &Path,
    delay: Duration,
    while_loading: bool,
    known: &mut Known,
    before: &mut [BTreeMap<String, u64>; 2],
) {
    let starts: Vec<String> = known.done.iter().map(u64::to_string).collect();
    let arguments = format!("{};{}", folder.display(), starts.join(","));
    let (mut child, lines) = spawn(again("store_crash::a_kill_loses_nothing_acknowledged", LOAD, &arguments));
    let mut acks = Vec::new();
    let from = if while_loading { "open " } else { "opening" };
    loop {
        let line = lines.recv_timeout(DEADLINE).expect("the child opens the store");
        let is_it = line.starts_with(from);
        acks.push(line);
        if is_it {
            break;
        }
    }
    let moment = Instant::now() + delay;
    loop {
        match lines.recv_timeout(moment.saturating_duration_since(Instant::now())) {
            Ok(line) => acks.push(line),
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => panic!("the child ended by itself: {:?}", child.0.wait()),
        }
    }
    child.0.kill().expect("a kill");
    child.0.wait().expect("its end");
    // What was in the pipe when it died was acknowledged, too.
    acks.extend(lines.iter());

    let mut revision = known.revision;
    let (mut opening, mut opened) = (false, false);
    for ack in &acks {
        let words: Vec<&str> = ack.split(' ').collect();
        match words[..] {
            ["opening"] => opening = true,
            ["open", at] => {
                opened = true;
                let at: u64 = at.parse().expect("a revision");
                assert!(at >= revision, "the revision went back from {revision} to {at}");
                revision = at;
            }
            [writer, number, at] => {
                let writer: usize = writer.parse().expect("a writer");
                let number: u64 = number.parse().expect("a step");
                assert_eq!(number, known.done[writer], "writer {writer} skipped a step");
                apply(&mut known.states[writer], step(writer, number));
                known.done[writer] += 1;
                known.acknowledged += 1;
                revision = revision.max(at.parse().expect("a revision"));
            }
            _ => panic!("what is {ack:?}?"),
        }
    }
    known.opens_hit += usize::from(opening && !opened);

    let store = Store::open(options(folder)).expect("the store opens after a kill");
    assert!(store.revision() >= revision, "the revision went back from {revision} to {}", store.revision());
    for (writer, kind) in WRITERS.into_iter().enumerate() {
        if kind == Kind::Published {
            continue;
        }
        let found = found(&store, writer);
        if found != known.states[writer] {
            // The step under way may have been made, and no other.
            apply(&mut known.states[writer], step(writer, known.done[writer]));
            known.done[writer] += 1;
        }
        let names = |state: &State| -> Vec<String> {
            state.iter().map(|(key, value)| format!("{key}={}", value.split(' ').next().unwrap_or(""))).collect()
        };
        assert!(
            found == known.states[writer],
            "writer {writer} {kind:?}: after step {} there is {:?}, not {:?}",
            known.done[writer],
            names(&found),
            names(&known.states[writer])
        );
    }
    for (kind, before) in [HOSTS, SECRETS].into_iter().zip(before) {
        let Kind::Object(resource) = kind else { continue };
        known.replayed += usize::from(replay(&store, resource, known.revision, std::mem::take(before)));
        *before = listing(&store, resource);
    }
    known.revision = store.revision();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(store.close());
}

#[test]
fn a_kill_loses_nothing_acknowledged() {
    if let Ok(arguments) = env::var(LOAD) {
        return load(&arguments);
    }
    let seed =
        env::var("SLIPWAY_STORE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random::<u32>);
    println!("seed {seed} (set SLIPWAY_STORE_SEED to have the same moments again)");
    let mut random = StdRng::seed_from_u64(seed.into());
    let folder = tempfile::tempdir().expect("a folder");
    let mut known =
        Known { done: vec![0; WRITERS.len()], states: vec![State::new(); WRITERS.len()], ..Known::default() };
    let mut before = [BTreeMap::new(), BTreeMap::new()];
    for number in 0..ROUNDS {
        let early = number % (ROUNDS / EARLY) == 0;
        let delay = Duration::from_micros(random.random_range(0..if early { 15_000 } else { 200_000 }));
        round(folder.path(), delay, !early, &mut known, &mut before);
        if number % 9 == 8 {
            println!(
                "{} kills ({} while opening): {} acknowledged writes are all there, revision {}, events replayed {} times",
                number + 1,
                known.opens_hit,
                known.acknowledged,
                known.revision,
                known.replayed
            );
        }
    }
    assert!(known.acknowledged > 0, "nothing was ever acknowledged, so nothing was tested");
    assert!(known.replayed > 0, "no events were compared");
}

/// The child that may not write files over a size: the disk refuses, as it does when it is full.
fn meet_a_refusal(folder: &Path) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let store = Store::open(options(folder)).expect("the store opens");
    runtime.block_on(async {
        let writers = [0, 1, 4, 6].map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                for number in 0.. {
                    match run_step(&store, writer, number).await {
                        Ok(revision) => say(&format!("ack {writer} {number} {revision}")),
                        Err(StoreWriteError::Failed(reason)) => return reason,
                        Err(other) => panic!("{other}"),
                    }
                }
                String::new()
            })
        });
        let reason = tokio::time::timeout(DEADLINE, store.failed()).await.expect("it says that it failed");
        assert!(!reason.is_empty());
        for writer in writers {
            let seen =
                tokio::time::timeout(DEADLINE, writer).await.expect("no writer hangs").expect("no writer panics");
            assert!(!seen.is_empty());
        }
        // Read-only: what is there can be read, nothing can be written, memory included.
        assert!(!store.list("metal3.io/baremetalhosts", None).objects.is_empty());
        let view = Mutation { value: Some(json!({})), ..change("slipway.dev/views", step(0, 0)) };
        assert!(matches!(store.publish(view).await, Err(StoreWriteError::Failed(_))));
        tokio::time::timeout(DEADLINE, store.close()).await.expect("it can be closed");
    });
    say("ack closed");
}

#[test]
fn a_refused_write_makes_it_read_only_and_loses_nothing() {
    if let Ok(folder) = env::var(REFUSED) {
        return meet_a_refusal(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let test = "store_crash::a_refused_write_makes_it_read_only_and_loses_nothing";
    let itself = again(test, REFUSED, &folder.path().display().to_string());
    // A file over 8192 blocks of 512 bytes gets EFBIG; signal 25, SIGXFSZ, would end the process instead.
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", "trap '' 25; ulimit -f 8192; exec \"$0\" \"$@\""]).arg(itself.get_program());
    limited.args(itself.get_args()).env(REFUSED, folder.path());
    let (mut child, lines) = spawn(limited);
    let mut states = vec![State::new(); WRITERS.len()];
    let mut done = vec![0; WRITERS.len()];
    let mut closed = false;
    loop {
        let line = match lines.recv_timeout(DEADLINE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => panic!("the child hangs"),
        };
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["closed"] => closed = true,
            [writer, number, _] => {
                let (writer, number) = (writer.parse().expect("a writer"), number.parse().expect("a step"));
                apply(&mut states[writer], step(writer, number));
                done[writer] = number + 1;
            }
            _ => panic!("what is {line:?}?"),
        }
    }
    assert!(child.0.wait().expect("its end").success() && closed);
    assert!(done.iter().sum::<u64>() > 20, "the disk refused too early to tell anything: {done:?}");

    let store = Store::open(options(folder.path())).expect("the store opens again");
    for writer in [0, 1, 4, 6] {
        let found = found(&store, writer);
        if found != states[writer] {
            apply(&mut states[writer], step(writer, done[writer]));
        }
        assert!(found == states[writer], "writer {writer} lost something acknowledged before step {}", done[writer]);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let written = runtime.block_on(run_step(&store, 0, done[0] + 1));
    assert!(written.is_ok(), "{written:?}");
    runtime.block_on(store.close());
}
