//! The controller against an API in memory, with real imports.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch};
use axum::{Json, Router};
use http::StatusCode;

use tokio::sync::Notify;

mod full;
mod look;

use super::*;
use crate::image::Sources;
use crate::image::demand::{Demand, ImageRequester};
use crate::runtime::Watches;

const BASE: &str = "/apis/slipway.dev/v1alpha1";
const SHORT: ImportTimes = ImportTimes {
    back_off: (Duration::from_millis(20), Duration::from_millis(100)),
    reading: Duration::ZERO,
    unwanted: Duration::ZERO,
    look_pause: Duration::from_millis(5),
    checked: Duration::ZERO,
    ..TIMES
};

/// Images in memory, with list, watch, get and status patch.
#[derive(Clone, Default)]
struct Fake {
    state: Arc<Mutex<FakeState>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct FakeState {
    images: BTreeMap<String, Value>,
    intents: Vec<Value>,
    log: Vec<(u64, Value)>,
    /// How many lists have failed, when they are to fail.
    fail_lists: Option<usize>,
}

impl Fake {
    fn router(&self) -> Router {
        Router::new()
            .route(&format!("{BASE}/images"), get(list))
            .route(&format!("{BASE}/images/{{name}}"), get(read).delete(remove))
            .route(&format!("{BASE}/images/{{name}}/status"), patch(patch_status))
            .route(&format!("{BASE}/bootintents"), get(intents))
            .with_state(self.clone())
    }

    fn change(&self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut state = lock(&self.state);
        let version = state.log.len() as u64 + 1;
        let mut object = state.images.remove(name).unwrap_or(Value::Null);
        change(&mut object);
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        state.log.push((version, json!({ "type": kind, "object": object })));
        if kind != "DELETED" {
            state.images.insert(name.into(), object);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    fn create(&self, name: &str, url: &str) {
        let uid = uuid::Uuid::new_v4().to_string();
        self.change("ADDED", name, |object| {
            *object = json!({
                "apiVersion": "slipway.dev/v1alpha1", "kind": "Image",
                "metadata": { "name": name, "uid": uid, "generation": 1 }, "spec": { "url": url },
            });
        });
    }

    fn edit(&self, name: &str, url: &str) {
        self.change("MODIFIED", name, |object| {
            object["spec"]["url"] = json!(url);
            let generation = object["metadata"]["generation"].as_i64().expect("generation");
            object["metadata"]["generation"] = json!(generation + 1);
        });
    }

    fn delete(&self, name: &str) {
        self.change("DELETED", name, |_| {});
    }

    fn status(&self, name: &str) -> Value {
        lock(&self.state).images.get(name).map_or(Value::Null, |image| image["status"].clone())
    }

    /// The first event after a version.
    async fn next(&self, since: u64) -> (u64, Value) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let next = lock(&self.state).log.iter().find(|(version, _)| *version > since).cloned();
            match next {
                Some(next) => return next,
                None => changed.await,
            }
        }
    }

    /// Waits for a status.
    async fn until(&self, name: &str, what: &str, good: impl Fn(&Value) -> bool) -> Value {
        within(what, || {
            let status = self.status(name);
            good(&status).then_some(status)
        })
        .await
    }

    async fn until_phase(&self, name: &str, phase: &str) -> Value {
        self.until(name, phase, |status| status["phase"] == phase).await
    }
}

async fn within<T>(what: &str, mut good: impl FnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(value) = good() {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("in time: {what}"))
}

fn not_found() -> Response {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "message": "gone" });
    (StatusCode::NOT_FOUND, Json(status)).into_response()
}

async fn list(State(fake): State<Fake>, Query(query): Query<BTreeMap<String, String>>) -> Response {
    if query.get("watch").map(String::as_str) == Some("true") {
        let since: u64 = query["resourceVersion"].parse().expect("version");
        let stream = futures::stream::unfold((fake, since), |(fake, since)| async move {
            let (version, event) = fake.next(since).await;
            Some((Ok::<_, Infallible>(format!("{event}\n")), (fake, version)))
        });
        return Body::from_stream(stream).into_response();
    }
    let mut state = lock(&fake.state);
    if let Some(failed) = &mut state.fail_lists {
        *failed += 1;
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let items: Vec<_> = state.images.values().cloned().collect();
    let version = state.log.len().to_string();
    Json(json!({ "apiVersion": "slipway.dev/v1alpha1", "kind": "ImageList", "metadata": { "resourceVersion": version }, "items": items }))
        .into_response()
}

async fn read(State(fake): State<Fake>, Path(name): Path<String>) -> Response {
    lock(&fake.state).images.get(&name).map_or_else(not_found, |image| Json(image.clone()).into_response())
}

async fn remove(State(fake): State<Fake>, Path(name): Path<String>) -> Response {
    if !lock(&fake.state).images.contains_key(&name) {
        return not_found();
    }
    fake.delete(&name);
    Json(json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" })).into_response()
}

async fn patch_status(State(fake): State<Fake>, Path(name): Path<String>, Json(body): Json<Value>) -> Response {
    if !lock(&fake.state).images.contains_key(&name) {
        return not_found();
    }
    fake.change("MODIFIED", &name, |object| json_patch::merge(&mut object["status"], &body["status"]));
    read(State(fake), Path(name)).await
}

async fn intents(State(fake): State<Fake>) -> Response {
    let items = lock(&fake.state).intents.clone();
    Json(json!({ "apiVersion": "slipway.dev/v1alpha1", "kind": "BootIntentList", "metadata": {}, "items": items }))
        .into_response()
}

struct Rig {
    folder: tempfile::TempDir,
    fake: Fake,
    library: Library,
    wanted: Arc<Wanted>,
    known: Images,
    tasks: Tasks,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Rig {
    fn start() -> Self {
        Self::start_in(tempfile::tempdir().expect("folder"), Fake::default())
    }

    fn start_in(folder: tempfile::TempDir, fake: Fake) -> Self {
        Self::start_with(folder, fake, SHORT)
    }

    /// With Images that are of the namespace that their names begin with.
    fn start_with(folder: tempfile::TempDir, fake: Fake, times: ImportTimes) -> Self {
        Self::start_of(folder, fake, times, Sources::of_tests())
    }

    fn start_of(folder: tempfile::TempDir, fake: Fake, times: ImportTimes, sources: Sources) -> Self {
        let library = Library::open(folder.path().join("images"), sources).expect("library");
        let client = Client::new(fake.router(), "default");
        let (shutdown, wanted) = (CancellationToken::new(), Arc::new(Wanted::default()));
        let mut watches = Watches::default();
        let (known, tasks) = (Images::new(&mut watches, wanted.clone()), Tasks::default());
        tokio::spawn(watches.run(client.clone(), shutdown.clone()));
        let run = run_with(client, library.clone(), 1, known.clone(), tasks.clone(), shutdown.clone(), times);
        Self { folder, fake, library, wanted, known, tasks, shutdown, task: tokio::spawn(run) }
    }

    async fn stop(self) -> (tempfile::TempDir, Fake) {
        self.shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(120), self.task).await.expect("ends").expect("no panic");
        (self.folder, self.fake)
    }

    fn source(&self, name: &str, seed: u8) -> String {
        source(self.folder.path(), name, seed)
    }
}

/// One host of the namespace that an Image's name begins with names it, unless it is told otherwise. What begins with
/// `hand` was made by hand.
#[derive(Default)]
struct Wanted {
    unwanted: Mutex<HashSet<String>>,
    provisioned: Mutex<HashSet<String>>,
    changed: Notify,
}

impl Wanted {
    fn put(&self, set: &Mutex<HashSet<String>>, name: &str) {
        lock(set).insert(name.to_owned());
        self.changed.notify_one();
    }
}

impl Demands for Wanted {
    fn of(&self, image: &Image) -> Demand {
        let name = image.name_any();
        let namespace = name.split('-').next().unwrap_or_default();
        if namespace == "hand" {
            return Demand { requesters: vec![ImageRequester::ByHand], ..Demand::default() };
        }
        if lock(&self.unwanted).contains(&name) {
            return Demand { requesters: vec![ImageRequester::LeftOver], ..Demand::default() };
        }
        let unfinished = usize::from(!lock(&self.provisioned).contains(&name));
        let requesters = vec![ImageRequester::Namespace(namespace.to_owned())];
        Demand { requesters, namespaces: vec![namespace.to_owned()], hosts: 1, unfinished }
    }

    fn complete(&self) -> bool {
        true
    }

    fn changed(&self) -> &Notify {
        &self.changed
    }
}

/// A server whose file comes in pieces of this size, with pauses; how often it was asked.
struct Slow {
    url: String,
    asked: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Slow {
    async fn start(total: usize, piece: usize, pause: Duration) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let url = format!("http://{}/disk", listener.local_addr().expect("address"));
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let task = tokio::spawn(async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n");
                    // A request that is left unread would turn the end into a reset.
                    let _ = stream.read(&mut [0; 4096]).await;
                    let mut open = stream.write_all(head.as_bytes()).await.is_ok();
                    let mut sent = 0;
                    // Until the client hangs up.
                    while open && sent < total {
                        let piece = vec![b'x'; piece.min(total - sent)];
                        sent += piece.len();
                        open = stream.write_all(&piece).await.is_ok();
                        tokio::time::sleep(pause).await;
                    }
                });
            }
        });
        Self { url, asked, task }
    }
}

fn source(folder: &FilePath, name: &str, seed: u8) -> String {
    let path = folder.join(name);
    std::fs::write(&path, vec![seed; 3 << 20]).expect("written");
    format!("file://{}", path.display())
}

#[tokio::test]
async fn an_image_becomes_ready_survives_a_restart_and_goes_with_its_object() {
    let rig = Rig::start();
    let (a, b) = (rig.source("a", 1), rig.source("b", 2));
    rig.fake.create("a", &a);
    rig.fake.create("b", &b);
    let status = rig.fake.until_phase("a", "Ready").await;
    assert_eq!(
        (&status["percent"], &status["virtualSize"], &status["observedGeneration"], &status["failCount"]),
        (&json!(100), &json!(3 << 20), &json!(1), &json!(0)),
        "{status}"
    );
    let digest = status["digest"].as_str().expect("digest").to_owned();
    assert!(rig.library.holds(&digest).expect("looked at"));
    rig.fake.until_phase("b", "Ready").await;
    // Ready is believed by the next start, without another import.
    let written = |fake: &Fake| lock(&fake.state).log.len();
    let (folder, fake) = rig.stop().await;
    let before = written(&fake);
    std::fs::remove_file(folder.path().join("a")).expect("removed");
    let rig = Rig::start_in(folder, fake);
    rig.fake.create("c", &rig.source("c", 3));
    rig.fake.until_phase("c", "Ready").await;
    assert_eq!(rig.fake.status("a")["digest"], digest);
    assert!(lock(&rig.fake.state).log[before..].iter().all(|(_, e)| e["object"]["metadata"]["name"] == "c"));
    // Its chunks are lost: imported again, and the reason is plain when that fails.
    let chunk = rig.library.manifest(&digest).expect("manifest").chunks[0].sha256.clone();
    std::fs::remove_file(rig.library.chunk_file(&chunk).expect("chunk")).expect("removed");
    rig.fake.change("MODIFIED", "a", |_| {});
    let status = rig.fake.until_phase("a", "Failed").await;
    assert!(status["message"].as_str().expect("text").contains("No such file"), "{status}");
    assert!(status.get("digest").is_none(), "{status}");
    source(rig.folder.path(), "a", 1);
    let status = rig.fake.until_phase("a", "Ready").await;
    assert_eq!(status["digest"], digest);
    assert!(rig.library.holds(&digest).expect("looked at"));
    // An object goes; its image goes, unless a boot intent needs it.
    lock(&rig.fake.state).intents.push(json!({
        "apiVersion": "slipway.dev/v1alpha1", "kind": "BootIntent", "metadata": { "name": "n", "namespace": "d" },
        "spec": { "generation": 1, "target": "ramdisk", "steps": [{ "id": "1.1", "action": "write-image", "image": digest }] },
    }));
    let other = rig.fake.status("b")["digest"].as_str().expect("digest").to_owned();
    rig.fake.delete("a");
    rig.fake.delete("b");
    within("b is collected", || rig.library.manifest(&other).is_none().then_some(())).await;
    assert!(rig.library.holds(&digest).expect("looked at"));
    // Objects that cannot be listed may be anything: nothing is removed.
    lock(&rig.fake.state).fail_lists = Some(0);
    lock(&rig.fake.state).intents.clear();
    rig.fake.delete("c");
    within("a list fails", || (lock(&rig.fake.state).fail_lists > Some(0)).then_some(())).await;
    assert_eq!(rig.library.list().len(), 2);
    lock(&rig.fake.state).fail_lists = None;
    rig.fake.create("d", &rig.source("d", 4));
    rig.fake.until_phase("d", "Ready").await;
    within("a is collected", || (rig.library.list().len() == 1).then_some(())).await;
    rig.stop().await;
}

#[tokio::test]
async fn failures_back_off_or_wait_for_the_spec() {
    let rig = Rig::start();
    // May be published later: tried again until it is there.
    let late = rig.folder.path().join("late");
    rig.fake.create("late", &format!("file://{}", late.display()));
    let status = rig.fake.until("late", "three failures", |s| s["failCount"].as_i64() >= Some(3)).await;
    assert!(status["message"].as_str().expect("text").contains("No such file"), "{status}");
    rig.source("late", 7);
    let status = rig.fake.until_phase("late", "Ready").await;
    assert_eq!((&status["failCount"], status.get("message")), (&json!(0), None));
    // Needs another spec: not tried again.
    rig.fake.create("bad", "gopher://h/x");
    let status = rig.fake.until_phase("bad", "Failed").await;
    assert!(
        status["message"].as_str().expect("text").ends_with("(not trying again until the spec changes)"),
        "{status}"
    );
    rig.fake.change("MODIFIED", "bad", |object| object["metadata"]["labels"] = json!({ "a": "b" }));
    rig.fake.edit("late", &rig.source("other", 8));
    rig.fake.until("late", "generation 2", |s| s["observedGeneration"] == 2 && s["phase"] == "Ready").await;
    assert_eq!(rig.fake.status("bad")["failCount"], 1);
    rig.fake.edit("bad", &rig.source("good", 9));
    let status = rig.fake.until_phase("bad", "Ready").await;
    assert_eq!((&status["observedGeneration"], &status["failCount"]), (&json!(2), &json!(0)));
    within("old content is collected", || (rig.library.list().len() == 2).then_some(())).await;
    rig.stop().await;
}

#[tokio::test]
async fn an_import_ends_when_its_object_goes_or_changes_and_others_wait_their_turn() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let slow = format!("http://{}/slow", listener.local_addr().expect("address"));
    // A source that sends its head and no more.
    let server = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            use tokio::io::AsyncWriteExt;
            // The client may be gone already.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nabc").await;
            open.push(stream);
        }
    });
    let rig = Rig::start();
    rig.fake.create("slow", &slow);
    rig.fake.until_phase("slow", "Importing").await;
    rig.fake.create("next", &rig.source("next", 1));
    let status = rig.fake.until_phase("next", "Pending").await;
    assert_eq!(status["message"], "waiting for other imports");
    rig.fake.delete("slow");
    rig.fake.until_phase("next", "Ready").await;
    rig.fake.create("again", &slow);
    rig.fake.until_phase("again", "Importing").await;
    rig.fake.edit("again", &rig.source("again", 2));
    rig.fake.until_phase("again", "Ready").await;
    // A shutdown does not wait for an import either.
    rig.fake.create("last", &slow);
    rig.fake.until_phase("last", "Importing").await;
    let (_folder, fake) = rig.stop().await;
    assert_eq!(fake.status("last")["phase"], "Importing");
    server.abort();
}

#[tokio::test]
async fn an_import_that_is_asked_for_twice_runs_once_and_ends_with_its_image() {
    let slow = Slow::start(10 << 20, 1000, Duration::from_millis(10)).await;
    let rig = Rig::start();
    rig.fake.create("slow", &slow.url);
    rig.fake.until_phase("slow", "Importing").await;
    let (imports, key) = (&rig.known.shared.imports, (String::new(), "slow".to_owned()));
    let found = imports.find(&key).expect("under way");
    let twice = |_, _| async { panic!("it is under way") };
    let again = imports.start(&key, &found.version, Import::default(), twice).await;
    assert!(Arc::ptr_eq(&again.work, &found.work));
    within("it to read", || (found.work.read.load(Ordering::Relaxed) > 0).then_some(())).await;
    assert_eq!((rig.known.imports(), slow.asked.load(Ordering::Relaxed)), (1, 1));
    rig.fake.delete("slow");
    let ended = tokio::time::timeout(Duration::from_secs(60), again.ended()).await.expect("in time");
    assert!(matches!(ended, Err(JobUnfinished::Cancelled)), "{ended:?}");
    let (mut registry, mut text) = (prometheus_client::registry::Registry::default(), String::new());
    rig.tasks.register(&mut registry);
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
    for line in ["runs_total{task=\"image-import\",result=\"cancelled\"} 1\n", "running{task=\"image-import\"} 0\n"] {
        assert!(text.contains(&format!("slipway_task_{line}")), "{text}");
    }
    // The place is free again.
    rig.fake.create("next", &rig.source("next", 1));
    rig.fake.until_phase("next", "Ready").await;
    assert_eq!(slow.asked.load(Ordering::Relaxed), 1);
    rig.stop().await;
}

#[tokio::test]
async fn sources_that_drip_do_not_hold_up_the_others() {
    let drip = Slow::start(1_000_000, 1, Duration::from_millis(10)).await;
    let least = LeastRate { bytes: 10_000, over: Duration::from_millis(200) };
    let rig = Rig::start_with(tempfile::tempdir().expect("folder"), Fake::default(), ImportTimes { least, ..SHORT });
    for number in 0..5 {
        rig.fake.create(&format!("drip-{number}"), &drip.url);
    }
    rig.fake.until("drip-0", "it to be under way or in line", |status| status["phase"] != Value::Null).await;
    rig.fake.create("honest", &rig.source("honest", 1));
    rig.fake.until_phase("honest", "Ready").await;
    let message =
        rig.fake.until("drip-0", "its reason", |status| status["phase"] == "Failed").await["message"].to_string();
    assert!(message.contains("less than 10000 bytes a second") && message.contains("trying again"), "{message}");
    rig.stop().await;
}

/// Each of them faster than it must be. The honest one needs more than one turn, and is asked for once.
#[tokio::test]
async fn ten_namespaces_with_slow_sources_take_turns_with_an_honest_one() {
    let slow = Slow::start(1 << 40, 100, Duration::from_millis(10)).await;
    let honest = Slow::start(3 << 20, 128 << 10, Duration::from_millis(40)).await;
    let turn = Duration::from_millis(300);
    let rig = Rig::start_with(tempfile::tempdir().expect("folder"), Fake::default(), ImportTimes { turn, ..SHORT });
    for number in 0..10 {
        for image in 0..5 {
            rig.fake.create(&format!("slow{number}-{image}"), &slow.url);
        }
    }
    let begun = || lock(&rig.fake.state).images.values().any(|image| image["status"]["phase"] == "Importing");
    within("one under way", || begun().then_some(())).await;
    rig.fake.create("honest-1", &honest.url);
    let status = rig.fake.until("honest-1", "its end", |s| s["phase"] == "Ready" || s["phase"] == "Failed").await;
    assert_eq!(status["phase"], "Ready", "{status}");
    assert_eq!(honest.asked.load(Ordering::Relaxed), 1, "nothing was read twice");
    let said = |name: &str, what: &str| {
        let state = lock(&rig.fake.state);
        let of = |object: &Value| object["metadata"]["name"].as_str().is_some_and(|of| of.starts_with(name));
        let says = |object: &Value| object["status"]["message"].as_str().is_some_and(|text| text.contains(what));
        state.log.iter().any(|(_, event)| of(&event["object"]) && says(&event["object"]))
    };
    assert!(said("honest", "goes on after those of others"), "it had more than one turn");
    assert!(said("slow", "goes on after those of others"));
    // What waits with what it has read is bounded, and the slow ones are those that begin anew.
    assert!(said("slow", "begins anew") && !said("honest", "begins anew"));
    rig.stop().await;
}

#[tokio::test]
async fn an_import_has_no_more_time_than_its_size_gives_it() {
    let slow = Slow::start(1 << 40, 100, Duration::from_millis(10)).await;
    let longest = Longest { base: Duration::from_millis(200), rate: u64::MAX };
    let least = LeastRate { bytes: 1, over: Duration::from_millis(20) };
    let times = ImportTimes { longest, least, ..SHORT };
    let rig = Rig::start_with(tempfile::tempdir().expect("folder"), Fake::default(), times);
    rig.fake.create("slow", &slow.url);
    let status = rig.fake.until_phase("slow", "Failed").await;
    let message = status["message"].as_str().expect("text");
    assert!(message.contains("all the time that an image of its size has"), "{message}");
    rig.fake.create("honest", &rig.source("honest", 1));
    rig.fake.until_phase("honest", "Ready").await;
    rig.stop().await;
}

#[tokio::test]
async fn a_slow_source_that_holds_up_nobody_is_read() {
    let slow = Slow::start(40, 1, Duration::from_millis(10)).await;
    let least = LeastRate { bytes: 10_000, over: Duration::from_millis(50) };
    let turn = Duration::from_millis(50);
    let rig =
        Rig::start_with(tempfile::tempdir().expect("folder"), Fake::default(), ImportTimes { least, turn, ..SHORT });
    rig.fake.create("slow", &slow.url);
    let status = rig.fake.until("slow", "its end", |s| s["phase"] == "Ready" || s["phase"] == "Failed").await;
    assert_eq!(status["phase"], "Ready", "{status}");
    rig.stop().await;
}

/// Bytes that cannot be compressed, others for each number.
#[test]
fn pauses_double_up_to_an_hour_and_percent_stays_below_the_end() {
    let seconds: Vec<u64> = (0..9).map(|failures| pause(TIMES.back_off, failures).as_secs()).collect();
    assert_eq!(seconds, [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]);
    assert_eq!(pause(TIMES.back_off, i64::MAX).as_secs(), 3600);
    assert_eq!(pause(TIMES.back_off, -5).as_secs(), 60);
    let of = |read, total| percent(ImportProgress { read, total, ended: false });
    assert_eq!(
        [of(0, None), of(5, Some(0)), of(50, Some(200)), of(200, Some(200)), of(9, Some(1))],
        [0, 0, 25, 99, 99]
    );
}
