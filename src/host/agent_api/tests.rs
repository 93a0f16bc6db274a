//! Sessions through their own door: HTTP calls against the router, over a real store and API.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use kube::ResourceExt;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::steps::next_of;
use super::*;
use crate::api::metal3::{ANNOTATION_PAUSED, BareMetalHost, BareMetalHostSpec};
use crate::api::slipway::{BootIntentSpec, BootIntentStatus, BootTarget, IntentStep, StepAction, StepResult};
use crate::apiserver::ApiServer;
use crate::apiserver::tls::Peer;
use crate::host::directory::Directory;
use crate::modules::kinds;
use crate::protocol::{MAX_CALL, MAX_LOG, MAX_RESULT};
use crate::store::{Store, StoreOptions};

mod cards;

struct Site {
    router: Router,
    client: Client,
    tokens: Arc<BootTokens>,
    index: HostIndex,
    library: Library,
    uid: String,
    metrics: HostMetrics,
    shutdown: CancellationToken,
    sessions: Sessions,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Site {
    /// A site with one host, whose boot intent 7 is the ramdisk with these steps.
    async fn new(actions: &[StepAction]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let store =
            Store::open(StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 100 }).unwrap();
        let shutdown = CancellationToken::new();
        let client = ApiServer::new(store, &kinds(), shutdown.clone()).await.unwrap().client();
        let hosts = Api::<BareMetalHost>::namespaced(client.clone(), "default");
        let spec = BareMetalHostSpec { boot_mac_address: Some(MAC.into()), ..Default::default() };
        let host = hosts.create(&PostParams::default(), &BareMetalHost::new("h", spec)).await.unwrap();
        let Directory { index, intents, .. } = Directory::start(&client, &shutdown).await;
        let tokens = Arc::new(BootTokens::open(path).unwrap());
        let library = Library::open(path.join("images"), crate::image::Sources::of_tests()).unwrap();
        let sessions = Sessions::new(
            client.clone(),
            index.clone(),
            intents,
            tokens.clone(),
            library.clone(),
            Logs::new(path.join("logs")),
            DownloadScheduler::default(),
        );
        let metrics = HostMetrics::default();
        let sessions = sessions.with_metrics(metrics.clone());
        let uid = host.metadata.uid.unwrap();
        let site = Self {
            router: sessions.clone().router(),
            sessions,
            client,
            tokens,
            index,
            library,
            uid,
            metrics,
            shutdown,
            _folder: folder,
        };
        let steps = actions.iter().enumerate().map(|(number, action)| IntentStep {
            id: format!("7.{}", number + 1),
            action: *action,
            operation: "inspect@1".into(),
            ..IntentStep::default()
        });
        let spec =
            BootIntentSpec { generation: 7, target: BootTarget::Ramdisk, steps: steps.collect(), ..Default::default() };
        let metadata =
            ObjectMeta { name: Some("h".into()), namespace: Some("default".into()), ..ObjectMeta::default() };
        let intent = BootIntent { metadata, spec, status: None };
        site.intents().create(&PostParams::default(), &intent).await.unwrap();
        site
    }

    fn intents(&self) -> Api<BootIntent> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn status(&self) -> BootIntentStatus {
        self.intents().get("h").await.unwrap().status.unwrap_or_default()
    }

    /// A call from a peer; the answer's status and JSON.
    async fn call(&self, peer: &str, bearer: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(format!("/agent/v1/{path}"));
        if !bearer.is_empty() {
            request = request.header("authorization", format!("Bearer {bearer}"));
        }
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let mut request = request.header("content-type", "application/json").body(body).unwrap();
        let peer: SocketAddr = format!("{peer}:1234").parse().unwrap();
        request.extensions_mut().insert(Peer(peer));
        let answer = tokio::time::timeout(Duration::from_secs(120), self.router.clone().oneshot(request));
        let answer = answer.await.expect("an answer in time").unwrap();
        let status = answer.status().as_u16();
        let bytes = axum::body::to_bytes(answer.into_body(), MAX_RESULT).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    fn scrape(&self) -> String {
        crate::metrics::shown(|registry| self.metrics.register(registry))
    }

    async fn until(&self, what: &str, met: impl Fn() -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        while !met() {
            assert!(tokio::time::Instant::now() < deadline, "not within 30 s: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn open(&self, peer: &str, token: &str) -> (u16, Value) {
        self.open_by(&[MAC], peer, token).await
    }

    /// From a machine with these MAC addresses.
    async fn open_by(&self, macs: &[&str], peer: &str, token: &str) -> (u16, Value) {
        let hello = json!({ "token": token, "version": "0", "macAddresses": macs, "uuid": "", "uefi": false });
        self.call(peer, "", "POST", "session", hello).await
    }
}

const MAC: &str = "02:00:00:00:00:01";
const NODE: &str = "10.0.0.5";
const STRANGER: &str = "10.0.0.66";

#[tokio::test]
async fn a_boot_token_opens_one_session_and_no_second() {
    let site = Site::new(&[StepAction::Inspect]).await;
    let token = site.tokens.mint(&site.uid, 7).unwrap();
    let (status, session) = site.open(NODE, &token).await;
    assert_eq!((status, &session["host"], &session["generation"]), (200, &json!("default/h"), &json!(7)));
    // The same machine may repeat a call whose answer got lost; nobody else may.
    assert_eq!(site.open(NODE, &token).await.0, 200);
    let (status, refusal) = site.open(STRANGER, &token).await;
    assert_eq!(status, 403);
    let reason = refusal["reason"].as_str().unwrap();
    assert!(reason.contains("used already, from 10.0.0.5"), "{reason}");
    // Nor does another token of the same boot help, nor the first one once the session has done something.
    let other = site.tokens.mint(&site.uid, 7).unwrap();
    assert_eq!(site.open(STRANGER, &other).await.0, 403);
    let bearer = session["session"].as_str().unwrap();
    let (status, step) = site.call(NODE, bearer, "GET", "step", Value::Null).await;
    assert_eq!((status, &step["id"], &step["action"]), (200, &json!("7.1"), &json!("inspect")));
    assert_eq!(site.open(NODE, &token).await.0, 403);
}

/// s6: whoever runs an agent, and has read a digest somewhere.
#[tokio::test]
async fn a_session_gets_the_images_that_its_boots_steps_name_and_no_others() {
    let site = Site::new(&[StepAction::Inspect, StepAction::WriteImage]).await;
    // Two images, which have a chunk in common.
    let mut images = Vec::new();
    for seed in [1u8, 2] {
        let file = site._folder.path().join(format!("{seed}.raw"));
        let disk: Vec<u8> =
            (0..3u8).flat_map(|part| vec![if part == 0 { 9 } else { seed * 10 + part }; 1 << 20]).collect();
        std::fs::write(&file, disk).unwrap();
        let spec = crate::api::slipway::ImageSpec { url: format!("file://{}", file.display()), ..Default::default() };
        let imported = site.library.import(&spec, |_| {}).await.unwrap();
        images.push((imported.digest.clone(), site.library.manifest(&imported.digest).unwrap()));
    }
    let [(own, own_parts), (other, other_parts)] = &images[..] else { panic!() };
    assert_eq!(own_parts.chunks[0].sha256, other_parts.chunks[0].sha256);
    let token = site.tokens.mint(&site.uid, 7).unwrap();
    let (_, session) = site.open(NODE, &token).await;
    let bearer = session["session"].as_str().unwrap().to_owned();
    let get = async |path: String| site.call(NODE, &bearer, "GET", &path, Value::Null).await.0;
    let get_all = async |digest: &str, manifest: &crate::protocol::ImageManifest| {
        let mut answers = vec![get(format!("manifest/{digest}")).await];
        for chunk in &manifest.chunks {
            answers.push(get(format!("chunk/{}", chunk.sha256)).await);
        }
        answers
    };
    // As long as no step names one, none.
    assert_eq!(get_all(own, own_parts).await, [404; 4]);
    assert_eq!(get(format!("manifest/{}", "0".repeat(64))).await, 404, "as of one that is not there");
    // The step names one now: at once, whatever the memory of intents has heard.
    let mut intent = site.intents().get("h").await.unwrap();
    intent.spec.steps[1].image = Some(own.clone());
    site.intents().replace("h", &PostParams::default(), &intent).await.unwrap();
    assert_eq!(get_all(own, own_parts).await, [200; 4]);
    // Of the other what both have, and no more.
    assert_eq!(get_all(other, other_parts).await, [404, 200, 404, 404]);
    // Not by a name that is none, nor by the digest of the other kind.
    for path in ["chunk/0", "chunk/..", "manifest/x", &format!("chunk/{own}")] {
        assert_eq!(get(path.to_owned()).await, 404, "{path}");
    }
    // The image that the boot reads is imported again under another name, and the other one goes: nothing changes for it.
    site.library.remove(other).unwrap();
    assert_eq!(get_all(own, own_parts).await, [200; 4]);
    assert_eq!(get_all(other, other_parts).await, [404, 200, 404, 404]);
    // The host's next boot writes the other one.
    let mut intent = site.intents().get("h").await.unwrap();
    intent.spec.generation = 8;
    intent.spec.steps[1].image = Some(other.clone());
    site.intents().replace("h", &PostParams::default(), &intent).await.unwrap();
    assert!(matches!(get(format!("manifest/{other}")).await, 401 | 404));
}

#[tokio::test]
async fn another_machine_than_the_hosts_gets_nothing_and_the_boot_ends_with_the_reason() {
    let site = Site::new(&[StepAction::Inspect, StepAction::Erase]).await;
    // A boot by a virtual CD: the token is bound to no address, the BMC is whose the operator typed.
    let token = site.tokens.mint(&site.uid, 7).unwrap();
    for macs in [&["02:00:00:00:00:66", "02:00:00:00:00:67"][..], &[]] {
        let (status, refusal) = site.open_by(macs, NODE, &token).await;
        let reason = refusal["reason"].as_str().unwrap();
        assert!(status == 403 && reason.contains("spec.bootMACAddress is 02:00:00:00:00:01"), "{reason}");
    }
    let status = site.status().await;
    assert_eq!(status.session, None);
    let [StepResult { id, succeeded: false, message, .. }] = &status.results[..] else { panic!("{status:?}") };
    assert_eq!(id, "7.1");
    assert!(message.contains("the machine has 02:00:00:00:00:66, 02:00:00:00:00:67"), "{message}");
    // The host's own is taken all the same, and then nothing that another one says ends its work.
    let (status, session) = site.open_by(&["02:00:00:00:00:02", "02-00-00-00-00-01"], NODE, &token).await;
    assert_eq!(status, 200);
    assert_eq!(site.status().await.results, []);
    assert_eq!(site.open_by(&["02:00:00:00:00:66"], NODE, &token).await.0, 403);
    assert_eq!(site.status().await.results, []);
    let bearer = session["session"].as_str().unwrap();
    assert_eq!(site.call(NODE, bearer, "GET", "step", Value::Null).await.0, 200);
}

#[tokio::test]
async fn a_machine_that_is_another_registered_hosts_as_well_gets_nothing() {
    let site = Site::new(&[StepAction::Inspect, StepAction::Erase]).await;
    let token = site.tokens.mint(&site.uid, 7).unwrap();
    // The host names the second port of a machine that another host has: a slip.
    let hosts = Api::<BareMetalHost>::namespaced(site.client.clone(), "default");
    let spec = BareMetalHostSpec { boot_mac_address: Some("02:00:00:00:00:0B".into()), ..Default::default() };
    let mut other = hosts.create(&PostParams::default(), &BareMetalHost::new("other", spec)).await.unwrap();
    let mut status = crate::api::metal3::BareMetalHostStatus::default();
    status.provisioning.id = other.metadata.uid.clone().unwrap();
    other.status = Some(status);
    hosts.replace_status("other", &PostParams::default(), &other).await.unwrap();
    let mut intent = BootIntent::new("other", BootIntentSpec::default());
    let record = json!({ "bootMACAddress": "02:00:00:00:00:0B", "since": 1 }).to_string();
    intent
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(crate::api::slipway::ANNOTATION_REGISTRATION.into(), record);
    let intents = Api::<BootIntent>::namespaced(site.client.clone(), "default");
    intents.create(&PostParams::default(), &intent).await.unwrap();
    let known = || site.index.by_name("default", "other").is_some_and(|other| other.ownership.registered);
    site.until("the other host is known", known).await;
    let (status, refusal) = site.open_by(&[MAC, "02:00:00:00:00:0b"], NODE, &token).await;
    let reason = refusal["reason"].as_str().unwrap();
    assert!(status == 403 && reason.contains("boot address of BareMetalHost default/other"), "{reason}");
    assert_eq!(site.status().await.results[0].message, reason);
    assert_eq!(site.open_by(&[MAC], NODE, &token).await.0, 200);
}

#[tokio::test]
async fn a_paused_host_opens_no_session_and_begins_no_step() {
    let site = Site::new(&[StepAction::Inspect, StepAction::Erase]).await;
    let pause = async |paused: bool| {
        let value = if paused { json!("") } else { Value::Null };
        let patch = json!({ "metadata": { "annotations": { ANNOTATION_PAUSED: value } } });
        let hosts = Api::<BareMetalHost>::namespaced(site.client.clone(), "default");
        hosts.patch("h", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        site.until("it is known", || site.index.by_name("default", "h").unwrap().ownership.paused == paused).await;
    };
    pause(true).await;
    let token = site.tokens.mint(&site.uid, 7).unwrap();
    let (status, refusal) = site.open(NODE, &token).await;
    assert!(status == 503 && refusal["reason"].as_str().unwrap().contains("paused"), "{status} {refusal}");
    pause(false).await;
    let session = site.open(NODE, &token).await.1["session"].as_str().unwrap().to_owned();
    assert_eq!(site.call(NODE, &session, "GET", "step", Value::Null).await.1["id"], "7.1");
    pause(true).await;
    // What was begun may end.
    let done = json!({ "step": "7.1", "succeeded": true, "message": "" });
    assert_eq!(site.call(NODE, &session, "POST", "result", done).await.0, 204);
    assert_eq!(site.call(NODE, &session, "GET", "step?after=7.1", Value::Null).await, (204, Value::Null));
    pause(false).await;
    assert_eq!(site.call(NODE, &session, "GET", "step?after=7.1", Value::Null).await.1["id"], "7.2");
}

#[tokio::test]
async fn tokens_of_another_boot_another_host_or_no_key_open_nothing() {
    let site = Site::new(&[]).await;
    for token in [
        site.tokens.mint(&site.uid, 6).unwrap(),
        site.tokens.mint(&site.uid, 8).unwrap(),
        site.tokens.mint("another", 7).unwrap(),
        "nonsense".to_owned(),
        String::new(),
    ] {
        let (status, refusal) = site.open(NODE, &token).await;
        assert_eq!(status, 403, "{token}");
        assert!(!refusal["reason"].as_str().unwrap().is_empty());
    }
    assert_eq!(site.call(NODE, "nonsense", "GET", "step", Value::Null).await.0, 401);
    assert_eq!(site.call(NODE, "", "POST", "event", json!({ "step": "", "phase": "" })).await.0, 401);
}

#[tokio::test]
async fn results_are_kept_once_and_a_failure_ends_its_operation() {
    let site = Site::new(&[StepAction::Inspect, StepAction::Erase, StepAction::PowerOff]).await;
    let token = site.tokens.mint(&site.uid, 7).unwrap();
    let session = site.open(NODE, &token).await.1["session"].as_str().unwrap().to_owned();
    let result = |step: &str, succeeded: bool, message: &str| json!({ "step": step, "succeeded": succeeded, "message": message, "inventory": { "hostname": "h" }, "log": ["last line"] });
    assert_eq!(site.call(NODE, &session, "GET", "step", Value::Null).await.1["id"], "7.1");
    assert_eq!(site.call(NODE, &session, "POST", "result", result("7.1", true, "seen")).await.0, 204);
    assert_eq!(site.call(NODE, &session, "POST", "result", result("7.1", false, "late")).await.0, 204);
    let status = site.status().await;
    assert_eq!(status.results.len(), 1);
    assert!(status.results[0].succeeded, "the first word counts");
    assert_eq!(status.inventory.unwrap().hostname, "h");
    let event = json!({ "step": "7.2", "phase": "wiping", "bytesDone": 50, "bytesTotal": 200 });
    assert_eq!(site.call(NODE, &session, "POST", "event", event).await.0, 204);
    assert_eq!(site.status().await.progress.unwrap().percent, Some(25));
    assert_eq!(site.call(NODE, &session, "POST", "result", result("7.2", false, "the disk is gone")).await.0, 204);
    let told = [result("7.1", true, "seen"), result("7.1", false, "late"), result("7.2", false, "the disk is gone")];
    let reported: usize = told.iter().map(|result| result.to_string().len()).sum();
    let status = site.status().await;
    assert_eq!(status.results[1].message, "the disk is gone");
    assert_eq!(status.log, ["last line"]);
    let text = site.scrape();
    for line in [
        "slipway_agent_sessions 1",
        "slipway_agent_requests_total{kind=\"session\",code=\"2xx\"} 1",
        "slipway_agent_requests_total{kind=\"result\",code=\"2xx\"} 3",
        "slipway_agent_steps_total{action=\"inspect\",outcome=\"succeeded\"} 1",
        "slipway_agent_steps_total{action=\"erase\",outcome=\"failed\"} 1",
        "slipway_agent_step_duration_seconds_count{action=\"inspect\",outcome=\"succeeded\"} 1",
        &format!("slipway_agent_report_bytes_total {reported}"),
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} is not in {text}");
    }
    let intent = site.intents().get("h").await.unwrap();
    assert!(next_of(&intent, "7.2").is_none(), "nothing follows a failed step of the same operation");
    // A step that was never planned, or is not any more, is refused as such.
    assert_eq!(site.call(NODE, &session, "POST", "result", result("7.9", true, "")).await.0, 410);
    assert_eq!(site.call(NODE, &session, "POST", "event", json!({ "step": "7.9", "phase": "" })).await.0, 410);
}

#[tokio::test]
async fn however_often_an_agent_tells_its_progress_it_is_written_now_and_then() {
    let site = Site::new(&[StepAction::Inspect, StepAction::Erase]).await;
    let token = site.tokens.mint(&site.uid, 7).unwrap();
    let session = site.open(NODE, &token).await.1["session"].as_str().unwrap().to_owned();
    let revision = async || {
        let intent = site.intents().get("h").await.unwrap();
        intent.resource_version().unwrap().parse::<u64>().unwrap()
    };
    let tell = async |step: &str, phase: String| {
        let event = json!({ "step": step, "phase": phase, "message": phase });
        assert_eq!(site.call(NODE, &session, "POST", "event", event).await.0, 204);
    };
    let (before, began) = (revision().await, Instant::now());
    for number in 0..500 {
        tell("7.1", format!("phase {number}")).await;
    }
    let (writes, seconds) = (revision().await - before, began.elapsed().as_secs());
    assert!(writes <= seconds + 2, "{writes} writes in {seconds} s");
    // The last word is not lost.
    let deadline = Instant::now() + Duration::from_secs(120);
    while site.status().await.progress.is_none_or(|progress| progress.phase != "phase 499") {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // What was still to be written of a step that ended is not written behind its end.
    tell("7.1", "one more".into()).await;
    tell("7.1", "and another".into()).await;
    let result = json!({ "step": "7.1", "succeeded": true, "message": "" });
    assert_eq!(site.call(NODE, &session, "POST", "result", result.clone()).await.0, 204);
    // Nor is its result, told again and again, nor what is told of it afterwards.
    let before = revision().await;
    for _ in 0..20 {
        assert_eq!(site.call(NODE, &session, "POST", "result", result.clone()).await.0, 204);
        tell("7.1", "late".into()).await;
    }
    assert_eq!(revision().await, before);
    tell("7.2", "next".into()).await;
    while site.status().await.progress.is_none_or(|progress| progress.step != "7.2") {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(site.status().await.progress.unwrap().phase, "next");
}

#[tokio::test]
async fn what_an_agent_says_rules_no_terminal() {
    let site = Site::new(&[StepAction::Inspect, StepAction::Erase]).await;
    let token = site.tokens.mint(&site.uid, 7).unwrap();
    let session = site.open(NODE, &token).await.1["session"].as_str().unwrap().to_owned();
    let evil = "a\u{1b}]0;owned\u{7}\u{202e}b\nc";
    let shown = "a\\u001b]0;owned\\u0007\\u202eb\\nc";
    let event = json!({ "step": "7.1", "phase": evil, "message": evil });
    assert_eq!(site.call(NODE, &session, "POST", "event", event).await.0, 204);
    let progress = site.status().await.progress.unwrap();
    assert_eq!((progress.phase.as_str(), progress.message.as_deref()), (shown, Some(shown)));
    let inventory = json!({ "hostname": evil, "systemVendor": { "manufacturer": evil }, "nics": [{ "name": evil }] });
    let result =
        json!({ "step": "7.1", "succeeded": false, "message": evil, "inventory": inventory, "log": [evil, "plain"] });
    assert_eq!(site.call(NODE, &session, "POST", "result", result).await.0, 204);
    let status = site.status().await;
    assert_eq!(status.results[0].message, shown);
    assert_eq!(status.log, [shown, "plain"]);
    let hardware = status.inventory.unwrap();
    let maker = hardware.system_vendor.unwrap().manufacturer;
    assert_eq!((hardware.hostname.as_str(), maker.as_str(), hardware.nics[0].name.as_str()), (shown, shown, shown));
    // What is a log keeps its lines.
    let sent = Body::from("\u{1b}[2J\tx\n\u{202e}y\n");
    let request = Request::post("/agent/v1/log").header("authorization", format!("Bearer {session}")).body(sent);
    assert_eq!(site.router.clone().oneshot(request.unwrap()).await.unwrap().status(), 204);
    assert!(site.scrape().contains("\nslipway_agent_log_bytes_total 12\n"), "{}", site.scrape());
    let (_, kept) = site.sessions.0.logs.read("default", "h", 7, 0).unwrap().unwrap();
    assert!(kept.ends_with(b"\\u001b[2J\tx\n\\u202ey\n"), "{}", String::from_utf8_lossy(&kept));
}

#[tokio::test]
async fn another_boot_intent_ends_the_session_and_its_steps() {
    let site = Site::new(&[StepAction::Erase]).await;
    let token = site.tokens.mint(&site.uid, 7).unwrap();
    let session = site.open(NODE, &token).await.1["session"].as_str().unwrap().to_owned();
    let mut intent = site.intents().get("h").await.unwrap();
    intent.spec.generation = 8;
    site.intents().replace("h", &PostParams::default(), &intent).await.unwrap();
    for (method, path, body) in [
        ("GET", "step", Value::Null),
        ("POST", "event", json!({ "step": "7.1", "phase": "wiping" })),
        ("POST", "result", json!({ "step": "7.1", "succeeded": true, "message": "" })),
    ] {
        // The memory of the intent may be a moment behind; what is stored decides.
        let status = site.call(NODE, &session, method, path, body).await.0;
        assert!(status == 401 || status == 410, "{path}: {status}");
    }
    assert!(site.status().await.results.is_empty(), "a late result of an old boot changes nothing");
}

#[tokio::test]
async fn a_step_that_cannot_be_rendered_fails_with_its_reason() {
    let site = Site::new(&[StepAction::WriteConfigDrive]).await;
    let hosts = Api::<BareMetalHost>::namespaced(site.client.clone(), "default");
    let mut host = hosts.get("h").await.unwrap();
    host.spec.user_data = Some(crate::api::metal3::SecretReference { name: Some("absent".into()), namespace: None });
    hosts.replace("h", &PostParams::default(), &host).await.unwrap();
    let token = site.tokens.mint(&site.uid, 7).unwrap();
    let session = site.open(NODE, &token).await.1["session"].as_str().unwrap().to_owned();
    let asking = site.call(NODE, &session, "GET", "step", Value::Null);
    assert_eq!(asking.await.0, 204, "there is nothing that the agent could do");
    let status = site.status().await;
    assert_eq!(status.results[0].message, "secret default/absent of spec.userData does not exist");
}

#[tokio::test]
async fn data_that_a_secret_lacks_is_counted_and_no_fault() {
    let site = Site::new(&[StepAction::WriteConfigDrive]).await;
    let secrets = Api::<k8s_openapi::api::core::v1::Secret>::namespaced(site.client.clone(), "default");
    for (name, key) in [("full", "value"), ("bare", "note")] {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
            "stringData": { key: "#cloud-config" } });
        secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    }
    let hosts = Api::<BareMetalHost>::namespaced(site.client.clone(), "default");
    let mut host = hosts.get("h").await.unwrap();
    let secret = |name: &str| Some(crate::api::metal3::SecretReference { name: Some(name.into()), namespace: None });
    (host.spec.user_data, host.spec.meta_data, host.spec.network_data) =
        (secret("full"), secret("bare"), secret("bare"));
    hosts.replace("h", &PostParams::default(), &host).await.unwrap();
    let token = site.tokens.mint(&site.uid, 7).unwrap();
    let session = site.open(NODE, &token).await.1["session"].as_str().unwrap().to_owned();
    let (code, step) = site.call(NODE, &session, "GET", "step", Value::Null).await;
    assert_eq!((code, &step["id"]), (200, &json!("7.1")));
    let text = site.scrape();
    let counted: Vec<_> = text.lines().filter(|line| line.starts_with("metal3_host_config_data_error_total")).collect();
    let series = |kind: &str| format!("metal3_host_config_data_error_total{{host_data_type=\"{kind}\"}} 1");
    assert!(
        counted.len() == 2
            && counted.iter().all(|line| [series("metaData"), series("networkData")].contains(&line.to_string())),
        "{counted:?}"
    );
}

#[tokio::test]
async fn of_nobodys_body_a_byte_is_read_and_of_a_hosts_no_more_than_its_calls_need() {
    let site = Site::new(&[StepAction::Inspect]).await;
    for path in ["event", "result", "log"] {
        let polled = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = polled.clone();
        let body = Body::from_stream(futures::stream::poll_fn(move |_| {
            seen.store(true, std::sync::atomic::Ordering::Relaxed);
            std::task::Poll::Ready(None::<Result<bytes::Bytes, std::io::Error>>)
        }));
        let request = Request::post(format!("/agent/v1/{path}")).header("content-type", "application/json");
        let answer = site.router.clone().oneshot(request.body(body).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 401, "{path}");
        assert!(!polled.load(std::sync::atomic::Ordering::Relaxed), "{path}");
    }
    let token = site.tokens.mint(&site.uid, 7).unwrap();
    let session = site.open(NODE, &token).await.1["session"].as_str().unwrap().to_owned();
    let outcome = |text: usize| json!({ "step": "7.1", "succeeded": true, "message": "", "log": ["x".repeat(text)] });
    let hello =
        |text: usize| json!({ "token": "x".repeat(text), "version": "", "macAddresses": [], "uuid": "", "uefi": true });
    let event = |text: usize| json!({ "step": "7.1", "phase": "x".repeat(text) });
    for (path, body, status) in [
        ("event", event(MAX_CALL), 413),
        ("event", event(MAX_CALL - 100), 204),
        ("session", hello(MAX_CALL), 413),
        ("session", hello(MAX_CALL - 100), 403),
        ("log", json!("x".repeat(MAX_LOG)), 413),
        ("result", outcome(MAX_RESULT), 413),
        ("result", outcome(MAX_RESULT - 100), 204),
    ] {
        assert_eq!(site.call(NODE, &session, "POST", path, body).await.0, status, "{path}");
    }
}
