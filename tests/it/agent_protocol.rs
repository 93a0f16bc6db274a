//! The agent's session against an appliance on loopback: TLS pinned to a CA, restarts, refusals, cancelled steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::agent_appliance::{Appliance, GENERATION, TOKEN, poll};
use async_trait::async_trait;
use axum::http::StatusCode;
use sha2::{Digest, Sha256};
use slipway::agent::client::{ApplianceClient, ClientTiming};
use slipway::agent::log::LogRing;
use slipway::agent::session::{Executor, SessionEnd, StepDone, StepError, StepJob, run};
use slipway::api::metal3::{AutomatedCleaningMode, HardwareDetails, RootDeviceHints};
use slipway::protocol::{Action, AgentSession, AgentStep, Chunk, ImageManifest, MAX_LOG, OpenSession};
use tokio::sync::{Notify, watch};

const DIGEST: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A node without hardware. `erase` goes on until cancelled, or until told to end.
#[derive(Default)]
struct Fake {
    runs: AtomicUsize,
    started: AtomicBool,
    cancelled: AtomicBool,
    end: Notify,
    host: std::sync::Mutex<String>,
}

#[async_trait]
impl Executor for Fake {
    fn opened(&self, session: &AgentSession) {
        *self.host.lock().unwrap() = session.host.clone();
    }

    async fn run(&self, job: StepJob) -> Result<StepDone, StepError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        match job.action {
            Action::Inspect => {
                let inventory = HardwareDetails { hostname: "node-7".into(), ..HardwareDetails::default() };
                Ok(StepDone { message: "inspected".into(), inventory: Some(inventory), bmc: None })
            }
            Action::WriteImage { digest, .. } => {
                let manifest = job.client.manifest(&digest).await.map_err(|error| StepError(error.to_string()))?;
                let mut done = 0;
                for chunk in &manifest.chunks {
                    let bytes = job.client.chunk(&chunk.sha256).await.map_err(|error| StepError(error.to_string()))?;
                    done += bytes.len() as u64;
                    job.progress.report("writing", Some(done), Some(manifest.virtual_size));
                }
                // The last state is told only if the step lives long enough: wait for an event to be due.
                tokio::time::sleep(Duration::from_secs(2)).await;
                Ok(StepDone::new(format!("{done} bytes")))
            }
            Action::Erase { .. } => {
                self.started.store(true, Ordering::SeqCst);
                tokio::select! {
                    () = job.cancel.cancelled() => {
                        self.cancelled.store(true, Ordering::SeqCst);
                        Err(StepError("cancelled".into()))
                    }
                    () = self.end.notified() => Ok(StepDone::new("erased")),
                }
            }
            Action::SetBootEntry { .. } => panic!("no such firmware"),
            Action::Kexec { root_device_hints: None } => Ok(StepDone::new("starting /vmlinuz")),
            Action::Kexec { .. } => Err(StepError("no kernel was found".into())),
            other => Err(StepError(format!("{other:?} is not for this node"))),
        }
    }

    fn kernel_log(&self) -> Vec<String> {
        (0..2000).map(|index| format!("record {index} {}", "x".repeat(100))).collect()
    }
}

fn step(id: &str, action: Action) -> AgentStep {
    AgentStep { id: id.into(), generation: GENERATION, action }
}

fn erase(id: &str) -> AgentStep {
    step(id, Action::Erase { mode: AutomatedCleaningMode::Metadata })
}

fn reboot() -> AgentStep {
    step("the-end", Action::Reboot)
}

fn hello(token: &str) -> OpenSession {
    OpenSession {
        token: token.into(),
        version: "0.0.0".into(),
        mac_addresses: vec!["52:54:00:00:00:07".into()],
        uuid: String::new(),
        uefi: true,
    }
}

fn quick() -> ClientTiming {
    ClientTiming {
        retry_least: Duration::from_millis(10),
        retry_most: Duration::from_millis(50),
        unreachable: Duration::from_secs(30),
        untrusted: Duration::from_millis(200),
        call: Duration::from_secs(10),
        event_gap: Duration::from_millis(20),
        heartbeat: Duration::from_millis(60),
        cancel: Duration::from_secs(10),
        stalled: Duration::from_secs(60),
    }
}

fn client(url: &str, pin: [u8; 32], timing: ClientTiming) -> ApplianceClient {
    let (_, interfaces) = watch::channel(Vec::new());
    ApplianceClient::new(url.parse().unwrap(), pin, interfaces, timing).unwrap()
}

struct Running {
    end: tokio::task::JoinHandle<SessionEnd>,
    fake: Arc<Fake>,
    log: LogRing,
}

impl Running {
    fn start_as(client: ApplianceClient, token: &str) -> Self {
        let (fake, log, hello) = (Arc::new(Fake::default()), LogRing::default(), hello(token));
        let (executor, log_of_run) = (fake.clone(), log.clone());
        let end = tokio::spawn(async move { run(client, &hello, executor, &log_of_run).await });
        Self { end, fake, log }
    }

    fn start(appliance: &Appliance) -> Self {
        Self::start_as(client(&appliance.url(), appliance.pin(), quick()), TOKEN)
    }

    async fn end(self) -> SessionEnd {
        tokio::time::timeout(Duration::from_secs(60), self.end).await.expect("an end in time").expect("no panic")
    }

    async fn step_started(&self) {
        poll("the step to start", async || self.fake.started.load(Ordering::SeqCst).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_is_done_once_and_told_and_the_reboot_comes_last() {
    let piece = |offset| Chunk { offset, length: 4096, sha256: DIGEST.into(), stored: 500 };
    let image = ImageManifest { virtual_size: 1000, chunks: vec![piece(0), piece(4096)], catalog: None };
    let mut foreign = erase("old");
    foreign.generation = GENERATION - 1;
    let appliance = Appliance::start(vec![
        step("1", Action::Inspect),
        foreign,
        step("2", Action::WriteImage { digest: digest_of(&image), root_device_hints: None }),
        step("3", Action::SetBootEntry { root_device_hints: None }),
        step("4", Action::WriteConfigDrive { iso: String::new(), root_device_hints: None }),
        step("5", Action::CollectLogs),
        reboot(),
    ])
    .await;
    {
        let mut book = appliance.book();
        book.manifest = Some(image);
        book.chunk = vec![7; 500];
    }
    let running = Running::start(&appliance);
    running.log.push("a line of the node's log");
    let fake = running.fake.clone();
    assert_eq!(running.end().await, SessionEnd::Reboot);
    assert_eq!(*fake.host.lock().unwrap(), "default/node-7");
    assert_eq!(fake.runs.load(Ordering::SeqCst), 4, "inspect, write-image, set-boot-entry, write-config-drive");

    let book = appliance.book();
    assert_eq!(book.hello, Some(hello(TOKEN)));
    let told: Vec<(&str, bool)> =
        book.outcomes.iter().map(|outcome| (outcome.step.as_str(), outcome.succeeded)).collect();
    assert_eq!(
        told,
        [("1", true), ("old", false), ("2", true), ("3", false), ("4", false), ("5", true), ("the-end", true)]
    );
    assert_eq!(book.asked_after, ["", "1", "old", "2", "3", "4", "5"]);
    assert_eq!(book.outcomes[0].inventory.as_ref().unwrap().hostname, "node-7");
    assert!(book.outcomes[1].message.contains("generation 6"), "{}", book.outcomes[1].message);
    assert_eq!(book.outcomes[2].message, "1000 bytes");
    assert_eq!(book.outcomes[3].message, "fault in the agent: no such firmware");
    assert_eq!(book.outcomes[4].log, ["a line of the node's log"]);
    assert!(book.events.iter().any(|event| event.step == "2" && event.bytes_done == Some(1000)), "{:?}", book.events);
    assert!(book.log.starts_with("a line of the node's log\nkernel: record 0 "));
    assert!(book.log.len() > 2 * MAX_LOG && book.log.contains("record 1999"), "in pieces, and all of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_ca_is_refused_before_anything_is_said() {
    let appliance = Appliance::start(vec![reboot()]).await;
    let other = Appliance::start(Vec::new()).await;
    let running = Running::start_as(client(&appliance.url(), other.pin(), quick()), TOKEN);
    let end = running.end().await;
    assert!(matches!(&end, SessionEnd::Untrusted(reason) if reason.contains("slipway.ca")), "{end:?}");
    assert_eq!(appliance.book().calls, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_good_ends_the_session_with_the_appliances_reason() {
    let appliance = Appliance::start(vec![reboot()]).await;
    let refused = SessionEnd::Refused("the boot token was used before".into());
    let wrong = Running::start_as(client(&appliance.url(), appliance.pin(), quick()), "some other token");
    assert_eq!(wrong.end().await, refused);
    assert_eq!(Running::start(&appliance).end().await, SessionEnd::Reboot);
    assert_eq!(Running::start(&appliance).end().await, refused, "good once");
    assert_eq!(appliance.book().outcomes.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_appliance_that_is_restarted_in_the_middle_is_told_all_the_same() {
    let mut appliance = Appliance::start(vec![erase("1"), step("2", Action::Inspect), reboot()]).await;
    let running = Running::start(&appliance);
    running.step_started().await;
    appliance.stop();
    running.fake.end.notify_one();
    appliance.start_again().await;
    let fake = running.fake.clone();
    assert_eq!(running.end().await, SessionEnd::Reboot);
    let book = appliance.book();
    let told: Vec<&str> = book.outcomes.iter().map(|outcome| outcome.step.as_str()).collect();
    assert_eq!(told, ["1", "2", "the-end"]);
    assert!(book.outcomes[0].succeeded && !fake.cancelled.load(Ordering::SeqCst));
    assert_eq!(fake.runs.load(Ordering::SeqCst), 2, "no step twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_appliance_are_waited_out() {
    let appliance = Appliance::start(vec![step("1", Action::Inspect), reboot()]).await;
    let faults = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS, StatusCode::BAD_GATEWAY];
    appliance.book().faults = faults.into();
    assert_eq!(Running::start(&appliance).end().await, SessionEnd::Reboot);
    assert_eq!(appliance.book().outcomes.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_appliance_that_never_answers_ends_the_session_with_the_reason() {
    let mut appliance = Appliance::start(Vec::new()).await;
    appliance.stop();
    let timing = ClientTiming { unreachable: Duration::from_millis(100), ..quick() };
    let end = Running::start_as(client(&appliance.url(), appliance.pin(), timing), TOKEN).end().await;
    assert!(matches!(end, SessionEnd::Unreachable(_)), "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_session_cancels_the_running_step() {
    let appliance = Appliance::start(vec![erase("1"), reboot()]).await;
    let running = Running::start(&appliance);
    running.step_started().await;
    appliance.book().revoked = true;
    let fake = running.fake.clone();
    assert_eq!(running.end().await, SessionEnd::Revoked("another boot has taken over".into()));
    assert!(fake.cancelled.load(Ordering::SeqCst));
    assert!(appliance.book().outcomes.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_session_is_heard_while_waiting_for_a_step() {
    let appliance = Appliance::start(Vec::new()).await;
    let running = Running::start(&appliance);
    poll("the first call for a step", async || (!appliance.book().asked_after.is_empty()).then_some(())).await;
    appliance.book().revoked = true;
    assert!(matches!(running.end().await, SessionEnd::Revoked(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_goes_down_though_the_answer_to_its_last_word_is_lost() {
    for (action, end) in [(Action::PowerOff, SessionEnd::PowerOff), (Action::Reboot, SessionEnd::Reboot)] {
        let appliance = Appliance::start(vec![step("1", action)]).await;
        appliance.book().lost = true;
        assert_eq!(Running::start(&appliance).end().await, end);
        assert_eq!(appliance.book().outcomes.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_taken_back_is_cancelled_and_the_next_one_done() {
    let appliance = Appliance::start(vec![erase("1"), step("2", Action::Inspect), reboot()]).await;
    let running = Running::start(&appliance);
    running.step_started().await;
    appliance.book().gone = true;
    let fake = running.fake.clone();
    assert_eq!(running.end().await, SessionEnd::Reboot);
    assert!(fake.cancelled.load(Ordering::SeqCst));
    let book = appliance.book();
    let told: Vec<&str> = book.outcomes.iter().map(|outcome| outcome.step.as_str()).collect();
    assert_eq!(told, ["2", "the-end"]);
    assert_eq!(book.asked_after, ["", "1", "2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_without_progress_is_cancelled_and_fails() {
    let appliance = Appliance::start(vec![erase("1"), step("2", Action::PowerOff)]).await;
    // Long beside the pace of its reports, also on a machine that is busy with something else.
    let timing = ClientTiming { stalled: Duration::from_secs(2), ..quick() };
    let running = Running::start_as(client(&appliance.url(), appliance.pin(), timing), TOKEN);
    assert_eq!(running.end().await, SessionEnd::PowerOff);
    let book = appliance.book();
    assert!(!book.outcomes[0].succeeded && book.outcomes[0].message.contains("no progress"), "{:?}", book.outcomes);
    assert!(book.events.len() > 1, "the appliance hears that the step is alive");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installed_system_starts_by_kexec_or_through_the_firmware() {
    let hints = RootDeviceHints { device_name: Some("/dev/sdz".into()), ..RootDeviceHints::default() };
    for (root_device_hints, end, message) in [
        (None, SessionEnd::Kexec, "starting /vmlinuz"),
        (Some(hints), SessionEnd::Reboot, "the installed system is started through the firmware: no kernel was found"),
    ] {
        let appliance = Appliance::start(vec![step("1", Action::Kexec { root_device_hints })]).await;
        assert_eq!(Running::start(&appliance).end().await, end);
        let book = appliance.book();
        assert!(book.outcomes[0].succeeded, "the system starts either way");
        assert_eq!(book.outcomes[0].message, message);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_not_there_fails_its_step_with_the_reason() {
    let action = Action::WriteImage { digest: DIGEST.into(), root_device_hints: None };
    let appliance = Appliance::start(vec![step("1", action), reboot()]).await;
    assert_eq!(Running::start(&appliance).end().await, SessionEnd::Reboot);
    let book = appliance.book();
    assert_eq!(book.outcomes[0].message, "no such image (HTTP 404)");
    assert!(!book.outcomes[0].succeeded);
}

/// The digest that names a manifest: SHA-256 of its JSON.
fn digest_of(manifest: &ImageManifest) -> String {
    let text = serde_json::to_vec(manifest).unwrap();
    Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect()
}
