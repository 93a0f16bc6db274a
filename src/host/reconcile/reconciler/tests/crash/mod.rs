//! Crash tests: the appliance killed before and after every effect of a host's whole life.
//!
//! Everything is real but the hardware: store, API, reconciler, sessions and their tokens. Each host lives with a
//! reconciler of its own, which dies at one point: from there on none of its calls comes through or comes back. Another
//! one goes on with what is stored. What happens on the machine's disk is checked as it happens.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use axum::body::Body;
use axum::{Extension, Router};
use futures::StreamExt;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{Event, Namespace, Secret};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::super::*;
use crate::api::metal3::{
    BareMetalHostSpec, BmcDetails, HardwareData, HardwareDetails, HardwareSystemVendor, HostImage, Nic,
};
use crate::api::slipway::{BootIntent, BootTarget, Image, ImagePhase};
use crate::apiserver::{ApiServer, UserIdentity};
use crate::bmc::sim::machine::{BootOverride, Override, PowerCommand};
use crate::bmc::sim::{SimulatedMachine, SimulatedProfile};
use crate::bmc::{Bmc, BmcError, BootDevice, FirmwareMode, PowerAction, PowerState};
use crate::boot::{BootTokens, DownloadScheduler, HostIndex};
use crate::config::Span;
use crate::engine::Fence;
use crate::host::agent_api::Sessions;
use crate::host::directory::Directory;
use crate::host::logs::Logs;
use crate::image::{Library, Sources};
use crate::modules::kinds;
use crate::protocol::{Action as AgentAction, AgentSession, AgentStep, OpenSession, StepOutcome};
use crate::store::{Store as Database, StoreOptions};

/// Longest life of a host here, in real time.
const DEADLINE: Duration = Duration::from_secs(900);
/// Hosts that live at once.
const AT_ONCE: usize = 8;
const DIGEST: &str = "d1d1";

/// Kills a process at one of its effects.
struct Crash {
    /// Number of the effect's edge; each effect has one before and one behind it.
    at: usize,
    /// At that edge the disk becomes full, and the process is killed later.
    fills: bool,
    full: AtomicBool,
    edges: Mutex<Vec<String>>,
    dead: AtomicBool,
    died: Notify,
}

impl Crash {
    fn at(at: usize) -> Arc<Self> {
        Arc::new(Self::new(at, false))
    }

    fn new(at: usize, fills: bool) -> Self {
        let (full, dead) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { at, fills, full, edges: Mutex::default(), dead, died: Notify::new() }
    }

    fn never() -> Arc<Self> {
        Self::at(usize::MAX)
    }

    /// Comes back only while the process lives.
    async fn edge(&self, name: impl FnOnce() -> String) {
        self.alive().await;
        let reached = {
            let mut edges = self.edges.lock().unwrap();
            edges.push(name());
            edges.len() - 1 == self.at
        };
        if reached && self.fills {
            self.full.store(true, Ordering::SeqCst);
        } else if reached {
            self.die();
        }
        self.alive().await;
    }

    fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.died.notify_one();
    }

    /// Whether the disk takes nothing more.
    fn is_full(&self) -> bool {
        self.full.load(Ordering::SeqCst)
    }

    async fn alive(&self) {
        if self.dead.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    /// A client whose calls are this process's.
    fn client(self: &Arc<Self>, router: Router) -> Client {
        let crash = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (router, crash) = (router.clone(), crash.clone());
            async move {
                let name = format!("{} {}", request.method(), request.uri().path());
                let writes = request.method() != Method::GET;
                let effect = writes && !name.contains("/events");
                crash.alive().await;
                if effect {
                    crash.edge(|| format!("before {name}")).await;
                }
                if writes && crash.is_full() {
                    return Ok(disk_full::refusal());
                }
                let response = router.oneshot(request).await;
                if effect {
                    crash.edge(|| format!("after {name}")).await;
                }
                crash.alive().await;
                // What was refused in the middle may be there all the same.
                if writes && crash.is_full() { Ok(disk_full::refusal()) } else { response }
            }
        });
        Client::new(service, "default")
    }
}

/// A process's connection to a machine.
struct Plug {
    machine: Arc<SimulatedMachine>,
    asked: Arc<Mutex<Vec<PowerAction>>>,
    crash: Arc<Crash>,
    /// What happens before the machine is asked for its power, or before it is switched: once.
    meanwhile: Mutex<Option<(Moment, Meanwhile)>>,
}

/// When something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Before the power is read in order to boot the ramdisk.
    Looked,
    /// Before the machine is switched off for that.
    Off,
}

type Meanwhile = Box<dyn Fn() -> futures::future::BoxFuture<'static, bool> + Send + Sync>;

impl Plug {
    /// Does what is to be done now, when it can be done now.
    async fn happen(&self, moment: Moment) {
        let due = self.meanwhile.lock().unwrap().take_if(|(at, _)| *at == moment);
        if let Some((_, happen)) = due
            && !happen().await
        {
            *self.meanwhile.lock().unwrap() = Some((moment, happen));
        }
    }
}

#[async_trait]
impl Bmc for Plug {
    async fn power(&self) -> Result<PowerState, BmcError> {
        self.crash.alive().await;
        self.happen(Moment::Looked).await;
        Ok(if self.machine.is_on() { PowerState::On } else { PowerState::Off })
    }

    async fn set_power(&self, action: PowerAction) -> Result<(), BmcError> {
        self.crash.edge(|| format!("before power {action:?}")).await;
        self.asked.lock().unwrap().push(action);
        if action == PowerAction::ForceOff {
            self.happen(Moment::Off).await;
        }
        self.machine.power(match action {
            PowerAction::On => PowerCommand::On,
            PowerAction::ForceOff => PowerCommand::Off,
            PowerAction::SoftOff => PowerCommand::Soft,
            PowerAction::Reset => PowerCommand::Reset,
        });
        self.crash.edge(|| format!("after power {action:?}")).await;
        Ok(())
    }

    async fn set_boot_device(&self, device: BootDevice, mode: FirmwareMode) -> Result<(), BmcError> {
        self.crash.edge(|| format!("before boot device {device:?}")).await;
        let uefi = mode == FirmwareMode::Uefi;
        self.machine.set_boot(BootOverride { enabled: Override::Once, device: Some(device), uefi });
        self.crash.edge(|| format!("after boot device {device:?}")).await;
        Ok(())
    }
}

/// What is on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Disk {
    Old,
    Torn,
    Blank,
    Image,
}

/// A machine with its disk and whatever runs on it.
struct Node {
    name: String,
    mac: String,
    machine: Arc<SimulatedMachine>,
    disk: Mutex<Disk>,
    /// Disk-changing steps as they began: state of the host, what.
    changes: Mutex<Vec<String>>,
    /// What was asked of its BMC.
    asked: Arc<Mutex<Vec<PowerAction>>>,
    /// Starts of the system on the disk.
    systems: AtomicUsize,
    /// Loses power in the middle of the next image.
    faint: AtomicBool,
}

/// The agent of one boot.
struct Agent {
    session: String,
    generation: i64,
    after: String,
}

struct Site {
    router: Router,
    sessions: Router,
    client: Client,
    index: HostIndex,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Site {
    async fn new() -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 10_000 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Database::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        let client = api.client();
        let router = api.router().layer(Extension(UserIdentity::in_process()));
        tokio::spawn(async move { api.run().await });
        let metadata = ObjectMeta { name: Some("rack".into()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let Directory { index, intents, .. } = Directory::start(&client, &shutdown).await;
        let library = Library::open(path.join("images"), Sources::of_tests()).unwrap();
        let tokens = Arc::new(BootTokens::open(path).unwrap());
        let logs = Logs::new(path.join("logs"));
        let sessions =
            Sessions::new(client.clone(), index.clone(), intents, tokens, library, logs, DownloadScheduler::default())
                .router();
        let site = Self { router, sessions, client, index, shutdown: shutdown.clone(), _folder: folder };
        tokio::spawn(site.images().run_until_cancelled_owned(shutdown));
        Arc::new(site)
    }

    /// Imports every image at once.
    fn images(&self) -> Importer {
        Importer(Api::all(self.client.clone()))
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), "rack")
    }

    /// A host and its machine.
    async fn host(&self, name: &str, number: usize) -> Arc<Node> {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
            "stringData": { "username": "admin", "password": "secret" } });
        self.api::<Secret>().create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
        let mac = format!("02:00:00:00:{:02x}:{:02x}", number / 256, number % 256);
        let url = format!("http://images.test/{name}.raw");
        let address = format!("ipmi://bmc-{name}");
        let spec = BareMetalHostSpec {
            online: true,
            bmc: Some(BmcDetails { address, credentials_name: name.into(), ..BmcDetails::default() }),
            boot_mac_address: Some(mac.clone()),
            image: Some(HostImage { url, checksum: Some("c".repeat(64)), ..HostImage::default() }),
            ..BareMetalHostSpec::default()
        };
        let host = BareMetalHost::new(name, spec);
        self.api::<BareMetalHost>().create(&PostParams::default(), &host).await.unwrap();
        Arc::new(Node {
            name: name.to_owned(),
            mac,
            machine: Arc::new(SimulatedMachine::new(SimulatedProfile::default())),
            disk: Mutex::new(Disk::Old),
            changes: Mutex::default(),
            asked: Arc::default(),
            systems: AtomicUsize::new(0),
            faint: AtomicBool::new(false),
        })
    }

    /// A process, from its start.
    fn process(&self, node: &Node, crash: &Arc<Crash>) -> Reconciler {
        self.process_with(node, crash, None)
    }

    fn process_with(&self, node: &Node, crash: &Arc<Crash>, meanwhile: Option<(Moment, Meanwhile)>) -> Reconciler {
        let plug = Plug {
            machine: node.machine.clone(),
            asked: node.asked.clone(),
            crash: crash.clone(),
            meanwhile: Mutex::new(meanwhile),
        };
        let context = HostContext {
            client: crash.client(self.router.clone()),
            bmcs: BmcRegistry::always(Arc::new(plug)),
            index: self.index.clone(),
            settings: HostConfig {
                boot_deadline: Span(Duration::from_secs(30)),
                // A machine that is off has lost its session; one that only waits for the processor has not.
                agent_deadline: Span(Duration::from_secs(15)),
                retry: Span(Duration::from_millis(10)),
                ..HostConfig::default()
            }
            .into(),
            power: StatusCache::default(),
            fence: Fence::open(),
            metrics: HostMetrics::default(),
            media: None,
            conflicts: Arc::default(),
            equal: Default::default(),
            logins: Arc::default(),
            resets: Resets::default(),
            recording: Default::default(),
            releasing: tokio::sync::Mutex::default(),
        };
        Reconciler {
            context,
            hearing: UpSince::from(Timestamp::now(), Instant::now()),
            places: ProvisioningSlots::new(AT_ONCE, Duration::from_secs(900)).0,
            looks: ReconcileSlots::new(Default::default()).0,
            intents: Default::default(),
            at_rest: Default::default(),
            interrupts: Default::default(),
            patience: Deadlines::default(),
            turns: Semaphore::new(1),
            leases: None,
            orphans: mpsc::unbounded_channel().0,
        }
    }

    /// Runs a host's processes, one after the other, until `done`.
    async fn live(&self, node: &Arc<Node>, crash: &Arc<Crash>, user: impl AsyncFn(Option<BareMetalHost>) -> bool) {
        let stop = CancellationToken::new();
        let _stop = stop.clone().drop_guard();
        let running = {
            let node = node.clone();
            let (sessions, index, client) = (self.sessions.clone(), self.index.clone(), self.client.clone());
            let tokens = BootTokens::open(self._folder.path()).unwrap();
            tokio::spawn(async move {
                let yard = Yard { sessions, index, tokens, client };
                stop.run_until_cancelled(node.run(&yard)).await;
            })
        };
        let life = async {
            let mut crash = crash.clone();
            loop {
                let process = self.process(node, &crash);
                let lived = async {
                    let mut refused = 0;
                    loop {
                        match process.look_after("rack", &node.name).await {
                            Ok(_) => {}
                            Err(ReconcileError::Api(kube::Error::Api(status))) if status.is_conflict() => {}
                            Err(error) if crash.is_full() => {
                                assert!(error.to_string().contains(disk_full::REASON), "{}: {error}", node.name);
                                refused += 1;
                                if refused == disk_full::TRIES {
                                    crash.die();
                                }
                            }
                            Err(error) => panic!("{}: {error}", node.name),
                        }
                        let host = self.api::<BareMetalHost>().get_opt(&node.name).await.unwrap();
                        if user(host).await {
                            return;
                        }
                        assert!(!running.is_finished(), "{}: what it did to its disk was wrong", node.name);
                        tokio::time::sleep(Duration::from_millis(3)).await;
                    }
                };
                tokio::select! {
                    () = lived => return,
                    () = crash.died.notified() => {}
                }
                crash = Crash::never();
            }
        };
        if tokio::time::timeout(DEADLINE, life).await.is_err() {
            let host = self.api::<BareMetalHost>().get_opt(&node.name).await.unwrap();
            let intent = self.api::<BootIntent>().get_opt(&node.name).await.unwrap();
            let edge = crash.edges.lock().unwrap().last().cloned();
            panic!("{} did not arrive; killed {edge:?}: {host:#?} {intent:#?}", node.name);
        }
    }
}

/// Marks images as imported.
struct Importer(Api<Image>);

impl Importer {
    async fn run_until_cancelled_owned(self, shutdown: CancellationToken) {
        let run = async {
            loop {
                for image in self.0.list(&Default::default()).await.unwrap() {
                    if image.status.is_none() {
                        let status = json!({ "status": { "phase": ImagePhase::Ready, "digest": DIGEST,
                            "observedGeneration": image.metadata.generation } });
                        let patch = Patch::Merge(status);
                        self.0.patch_status(&image.name_any(), &PatchParams::default(), &patch).await.unwrap();
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        shutdown.run_until_cancelled(run).await;
    }
}

/// What a machine finds around it.
struct Yard {
    sessions: Router,
    index: HostIndex,
    tokens: BootTokens,
    client: Client,
}

impl Yard {
    async fn call(&self, method: Method, path: &str, session: &str, body: &Value) -> (StatusCode, Vec<u8>) {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {session}"));
        let answer = self.sessions.clone().oneshot(request.body(Body::from(body.to_string())).unwrap()).await.unwrap();
        let code = answer.status();
        (code, answer.into_body().collect().await.unwrap().to_bytes().to_vec())
    }

    /// The next step, when there is one now.
    async fn step(&self, session: &str, after: &str) -> Result<Option<AgentStep>, StatusCode> {
        let path = format!("/agent/v1/step?after={after}");
        let asked = self.call(Method::GET, &path, session, &Value::Null);
        match tokio::time::timeout(Duration::from_millis(100), asked).await {
            Err(_) | Ok((StatusCode::NO_CONTENT, _)) => Ok(None),
            Ok((StatusCode::OK, body)) => Ok(Some(serde_json::from_slice(&body).unwrap())),
            Ok((code, _)) => Err(code),
        }
    }
}

/// What a user does with a host: has it provisioned, takes the image away, deletes it.
struct User<'s> {
    site: &'s Site,
    node: &'s Node,
    asked: AtomicUsize,
}

impl<'s> User<'s> {
    fn of(site: &'s Site, node: &'s Node) -> Self {
        Self { site, node, asked: AtomicUsize::new(0) }
    }

    /// Goes on when the host is where it was to be; true at the end.
    async fn look(&self, host: Option<BareMetalHost>) -> bool {
        let name = &self.node.name;
        let Some(host) = host else {
            assert_eq!(self.asked.load(Ordering::SeqCst), 2, "{name} went before its time");
            return self.nothing_is_left().await;
        };
        let hosts = self.site.api::<BareMetalHost>();
        let state = host.status.unwrap_or_default().provisioning.state;
        match (self.asked.load(Ordering::SeqCst), state) {
            (0, ProvisioningState::Provisioned) => {
                if !self.node.machine.is_on() || self.node.systems.load(Ordering::SeqCst) == 0 {
                    return false;
                }
                assert_eq!(self.node.disk(), Disk::Image, "{name} is provisioned");
                let patch = Patch::Merge(json!({ "spec": { "image": null } }));
                hosts.patch(name, &PatchParams::default(), &patch).await.unwrap();
                self.asked.store(1, Ordering::SeqCst);
            }
            (1, ProvisioningState::Available) => {
                assert_eq!(self.node.disk(), Disk::Blank, "{name} is deprovisioned");
                hosts.delete(name, &DeleteParams::default()).await.unwrap();
                self.asked.store(2, Ordering::SeqCst);
            }
            _ => {}
        }
        false
    }

    async fn nothing_is_left(&self) -> bool {
        let name = &self.node.name;
        let intent = self.site.api::<BootIntent>().get_opt(name).await.unwrap().is_some();
        let data = self.site.api::<HardwareData>().get_opt(name).await.unwrap().is_some();
        let secret = self.site.api::<Secret>().get_opt(name).await.unwrap().is_some();
        !(intent || data || secret)
    }
}

/// Each run's edges are those of the run before: the world is the same until the process dies.
#[tokio::test]
async fn killed_before_and_after_every_effect_a_host_arrives() {
    let site = Site::new().await;
    let node = site.host("whole", 0).await;
    let (crash, user) = (Crash::never(), User::of(&site, &node));
    site.live(&node, &crash, async |host| user.look(host).await).await;
    assert_eq!(
        node.changes(),
        ["erase while preparing", "write while provisioning", "erase while deprovisioning"],
        "undisturbed, each disk is written once"
    );
    assert!(!node.machine.is_on(), "off before it is forgotten");
    let starts = node.machine.boots().len();
    let edges = crash.edges.lock().unwrap().clone();
    assert!(edges.len() > 40, "{edges:#?}");

    let runs = futures::stream::iter(0..edges.len()).map(|at| {
        let site = site.clone();
        async move {
            let node = site.host(&format!("h{at}"), at + 1).await;
            let (crash, user) = (Crash::at(at), User::of(&site, &node));
            site.live(&node, &crash, async |host| user.look(host).await).await;
            let killed = crash.edges.lock().unwrap().last().cloned();
            let changes = node.changes();
            assert!(changes.iter().any(|change| change.starts_with("write")), "killed {killed:?}: {changes:?}");
            assert_eq!(changes.last().unwrap(), "erase while deprovisioning", "killed {killed:?}");
            assert!(!node.machine.is_on(), "killed {killed:?}");
            assert_eq!(node.machine.boots().len(), starts, "killed {killed:?}: each start is asked for once");
        }
    });
    runs.buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// A machine whose former session ended starts itself anew, and so may be there for the boot that it is about to be
/// given.
#[tokio::test]
async fn an_agent_that_calls_while_its_machine_is_being_booted_costs_neither_the_boot_nor_another() {
    for (moment, starts) in [(Moment::Looked, 1), (Moment::Off, 2)] {
        let site = Site::new().await;
        let node = site.host("early", 1).await;
        node.machine.power(PowerCommand::On);
        let yard = Arc::new(Yard {
            sessions: site.sessions.clone(),
            index: site.index.clone(),
            tokens: BootTokens::open(site._folder.path()).unwrap(),
            client: site.client.clone(),
        });
        let (early, here) = (node.clone(), yard.clone());
        let calls: Meanwhile = Box::new(move || {
            let (node, yard) = (early.clone(), here.clone());
            Box::pin(async move { node.start(&yard, Some(BootDevice::Pxe)).await.is_some() })
        });
        let process = site.process_with(&node, &Crash::never(), Some((moment, calls)));
        let until = tokio::time::Instant::now() + DEADLINE;
        let intent = loop {
            process.look_after("rack", "early").await.unwrap();
            let intent = node.intent(&yard).await;
            match intent.filter(|it| it.spec.target == BootTarget::Ramdisk && it.spec.started.is_some()) {
                Some(intent) => break intent,
                None => assert!(tokio::time::Instant::now() < until, "{moment:?}: it was not started"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let open = intent.status.is_some_and(|status| status.session.is_some());
        assert_eq!(open, moment == Moment::Looked, "{moment:?}: the session is the running agent's, or there is none");
        assert_eq!(node.machine.boots().len(), starts, "{moment:?}");
        assert!(node.machine.is_on());
    }
}

#[tokio::test]
async fn a_machine_that_loses_power_while_it_is_written_is_written_again() {
    let site = Site::new().await;
    let node = site.host("faint", 1).await;
    node.faint.store(true, Ordering::SeqCst);
    let user = User::of(&site, &node);
    site.live(&node, &Crash::never(), async |host| user.look(host).await).await;
    let writes = node.changes().iter().filter(|change| change.starts_with("write")).count();
    assert_eq!(writes, 2, "{:?}", node.changes());
    let events = site.api::<Event>().list(&ListParams::default()).await.unwrap();
    let told = events.iter().filter(|event| event.reason.as_deref() == Some("ProvisioningError"));
    let told: Vec<_> = told.filter_map(|event| event.message.as_deref()).collect();
    assert!(matches!(told[..], [reason] if reason.contains("may have lost power")), "one clear reason: {told:?}");
}

#[tokio::test]
async fn power_that_flips_behind_our_back_is_put_right_and_costs_no_data() {
    let site = Site::new().await;
    let node = site.host("flips", 1).await;
    let flipped = AtomicBool::new(false);
    let starts = AtomicUsize::new(0);
    site.live(&node, &Crash::never(), async |host| {
        let status = host.and_then(|host| host.status).unwrap_or_default();
        if status.provisioning.state != ProvisioningState::Provisioned || node.systems.load(Ordering::SeqCst) == 0 {
            return false;
        }
        if !flipped.swap(true, Ordering::SeqCst) {
            starts.store(node.machine.boots().len(), Ordering::SeqCst);
            node.machine.power(PowerCommand::Off);
            // The secret's version is the reading's: another one has the power read at once.
            let patch = Patch::Merge(json!({ "stringData": { "note": "read again" } }));
            site.api::<Secret>().patch("flips", &PatchParams::default(), &patch).await.unwrap();
        }
        node.machine.is_on() && status.powered_on
    })
    .await;
    assert_eq!(node.machine.boots().len(), starts.load(Ordering::SeqCst) + 1);
    assert_eq!((node.disk(), node.changes().len()), (Disk::Image, 2), "{:?}", node.changes());
}

mod disk_full;
mod machine_alone;
