//! The reconciler through the API that its users have: real store, real API server, a simulated BMC over IPMI.

use std::future::Future;

use futures::StreamExt;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, watcher};
use kube::{Client, Resource};
use serde_json::json;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::super::boot_effect;
use super::*;
use crate::api::metal3::{
    ANNOTATION_DETACHED, ANNOTATION_STATUS, BareMetalHostSpec, BareMetalHostStatus, BmcDetails,
    FINALIZER_HARDWARE_DATA, HardwareData, HardwareDataSpec, HardwareDetails, HostImage, Nic, OperationalStatus,
    ProvisionStatus,
};
use crate::api::slipway::{
    BootIntent, BootIntentSpec, BootIntentStatus, BootTarget, Image, ImagePhase, ImageStatus, SessionStatus,
    StepAction, StepResult,
};
use crate::apiserver::ApiServer;
use crate::bmc::address::Privilege;
use crate::bmc::ipmi::suite::CipherSuite;
use crate::bmc::sim::machine::PowerCommand;
use crate::bmc::sim::{Account, IpmiSim, RedfishOptions, RedfishSim, SimulatedMachine, SimulatedProfile};
use crate::bmc::{BmcSettings, Health};
use crate::boot::HostIndex;
use crate::engine::Fence;
use crate::host::status::conditions;
use crate::modules::kinds;
use crate::runtime::Tasks;
use crate::store::{Store as Database, StoreOptions};

const URL: &str = "http://images.test/a.qcow2";

mod bad_bmc;
mod claim;
mod crash;
mod data_image;
mod gone;
mod login;
mod profile;
mod reboot;
mod rest;
mod secret;
mod share;
mod twin;
mod unsupported;

struct Site {
    api: ApiServer,
    client: Client,
    machine: Arc<SimulatedMachine>,
    /// Address of its BMC.
    bmc: String,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Site {
    /// A namespace `rack` and a machine with its BMC. Nobody reconciles yet.
    async fn idle() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 1000 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Database::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        let client = api.client();
        let server = api.clone();
        tokio::spawn(async move { server.run().await });

        let machine = Arc::new(SimulatedMachine::new(SimulatedProfile::default()));
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = format!("ipmi://{}", socket.local_addr().unwrap());
        let account = Account {
            username: "admin".into(),
            password: "secret".to_owned().into(),
            privilege: Privilege::Administrator,
        };
        let bmc = IpmiSim::new(machine.clone(), vec![account], &[CipherSuite::Sha256]);
        tokio::spawn(bmc.run(socket, shutdown.clone()));

        let site = Self { api, client: client.clone(), machine, bmc: address, shutdown, _folder: folder };
        let metadata = ObjectMeta { name: Some("rack".into()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::<Namespace>::all(client).create(&PostParams::default(), &namespace).await.unwrap();
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "bmc" },
            "stringData": { "username": "admin", "password": "secret" } });
        site.api::<Secret>().create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
        site
    }

    /// The host `h` for the machine, without a status.
    fn host(&self) -> BareMetalHost {
        let spec = BareMetalHostSpec {
            online: true,
            bmc: Some(BmcDetails {
                address: self.bmc.clone(),
                credentials_name: "bmc".into(),
                ..BmcDetails::default()
            }),
            boot_mac_address: Some("02:00:00:00:00:01".into()),
            ..BareMetalHostSpec::default()
        };
        BareMetalHost::new("h", spec)
    }

    async fn create(&self, host: &BareMetalHost) -> BareMetalHost {
        self.api::<BareMetalHost>().create(&PostParams::default(), host).await.unwrap()
    }

    fn image() -> HostImage {
        HostImage { url: URL.into(), checksum: Some("c".repeat(64)), ..HostImage::default() }
    }

    /// Another BMC for the machine, over Redfish, until the token is cancelled.
    async fn redfish(&mut self, options: RedfishOptions) -> (Arc<RedfishSim>, CancellationToken) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.bmc = format!("redfish+http://{}", listener.local_addr().unwrap());
        let account = Account {
            username: "admin".into(),
            password: "secret".to_owned().into(),
            privilege: Privilege::Administrator,
        };
        let end = self.shutdown.child_token();
        let service = RedfishSim::new(vec![self.machine.clone()], account, options);
        tokio::spawn(service.clone().run(listener, None, end.clone()));
        (service, end)
    }

    /// A reconciler that does nothing by itself.
    fn reconciler(&self) -> Reconciler {
        let (places, _woken) = ProvisioningSlots::new(20, Duration::from_secs(900));
        let context = HostContext {
            client: self.client.clone(),
            bmcs: BmcRegistry::default(),
            index: HostIndex::default(),
            settings: HostConfig::default().into(),
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
            places,
            looks: ReconcileSlots::new(Default::default()).0,
            intents: Default::default(),
            at_rest: Default::default(),
            interrupts: Default::default(),
            patience: Deadlines::default(),
            hearing: UpSince::from(Timestamp::now(), Instant::now()),
            turns: tokio::sync::Semaphore::new(1),
            leases: None,
            orphans: mpsc::unbounded_channel().0,
        }
    }

    /// Starts the reconciler.
    async fn reconcile(&self) {
        let bmcs = BmcSettings { poll: Duration::from_millis(20), ..BmcSettings::default() };
        self.reconcile_with(HostConfig::default(), bmcs).await;
    }

    async fn reconcile_with(&self, settings: HostConfig, bmcs: BmcSettings) {
        let client = self.client.clone();
        let directory = Directory::start(&client, &self.shutdown).await;
        let bmcs = BmcRegistry::new(bmcs);
        let metrics = HostMetrics::default();
        self.api.add_metrics({
            let metrics = metrics.clone();
            Arc::new(move |registry| metrics.register(registry))
        });
        let (fence, tasks, stop) = (Fence::open(), Tasks::default(), self.shutdown.clone());
        let acting = Acting { client, fence, tasks, store: None, stop };
        tokio::spawn(run(acting, directory, settings, bmcs, metrics));
    }

    /// With one provisioned host `h`, whose reconciler runs.
    async fn provisioned() -> Self {
        let site = Self::idle().await;
        site.provision().await;
        site.reconcile().await;
        site.until("the host is taken over", async || {
            let host = site.get().await;
            !host.finalizers().is_empty() && host.status.is_some_and(|status| status.powered_on)
        })
        .await;
        site
    }

    /// Creates the host `h` as a provisioned one.
    async fn provision(&self) {
        let mut host = self.host();
        host.spec.image = Some(Self::image());
        let mut host = self.create(&host).await;
        host.status = Some(BareMetalHostStatus {
            provisioning: ProvisionStatus {
                state: ProvisioningState::Provisioned,
                image: Some(Self::image()),
                ..ProvisionStatus::default()
            },
            ..BareMetalHostStatus::default()
        });
        let host = self.api::<BareMetalHost>().replace_status("h", &PostParams::default(), &host).await.unwrap();
        let metadata = ObjectMeta {
            name: Some("h".into()),
            owner_references: host.controller_owner_ref(&()).map(|owner| vec![owner]),
            finalizers: Some(vec![crate::api::slipway::FINALIZER_INTENT.into()]),
            ..ObjectMeta::default()
        };
        let spec = BootIntentSpec { generation: 3, target: BootTarget::Disk, ..BootIntentSpec::default() };
        let intent = BootIntent { metadata, spec, status: None };
        self.api::<BootIntent>().create(&PostParams::default(), &intent).await.unwrap();
    }

    async fn get(&self) -> BareMetalHost {
        self.api::<BareMetalHost>().get("h").await.unwrap()
    }

    async fn status(&self) -> BareMetalHostStatus {
        self.get().await.status.unwrap_or_default()
    }

    async fn patch(&self, patch: serde_json::Value) {
        self.api::<BareMetalHost>().patch("h", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn annotate(&self, key: &str, value: Option<&str>) {
        self.patch(json!({ "metadata": { "annotations": { key: value } } })).await;
    }

    async fn delete(&self) {
        self.api::<BareMetalHost>().delete("h", &DeleteParams::default()).await.unwrap();
    }

    async fn until_gone(&self) {
        self.until("the host is gone", async || self.api::<BareMetalHost>().get_opt("h").await.unwrap().is_none())
            .await;
    }

    /// Every state that a watch sees from now on, each once in a row, until `last`.
    async fn watch_states(&self, last: ProvisioningState) -> tokio::task::JoinHandle<Vec<&'static str>> {
        let hosts = self.api::<BareMetalHost>();
        let (ready, mut listed) = watch::channel(false);
        let watching = tokio::spawn(async move {
            let mut seen = Vec::new();
            let mut events = std::pin::pin!(watcher(hosts, watcher::Config::default()));
            while let Some(event) = events.next().await {
                let host = match event.unwrap() {
                    watcher::Event::Apply(host) | watcher::Event::InitApply(host) => host,
                    watcher::Event::Delete(_) => return seen,
                    watcher::Event::InitDone => {
                        ready.send_replace(true);
                        continue;
                    }
                    watcher::Event::Init => continue,
                };
                let state = host.status.unwrap_or_default().provisioning.state;
                if seen.last() != Some(&state.as_str()) {
                    seen.push(state.as_str());
                }
                if state == last {
                    return seen;
                }
            }
            seen
        });
        listed.wait_for(|listed| *listed).await.unwrap();
        watching
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), "rack")
    }

    async fn metrics(&self) -> String {
        let router = self.api.router().layer(axum::Extension(crate::apiserver::UserIdentity::in_process()));
        let request = http::Request::get("/metrics").body(axum::body::Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    async fn until<F: Future<Output = bool>>(&self, what: &str, met: impl Fn() -> F) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        while !met().await {
            if tokio::time::Instant::now() > deadline {
                let host = self.api::<BareMetalHost>().get_opt("h").await.unwrap();
                let intent = self.api::<BootIntent>().get_opt("h").await.unwrap();
                panic!("not within two minutes: {what}; {host:#?} {intent:#?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What an agent reports that does its steps as soon as its machine is on.
    async fn play_agent(&self) {
        let intents = self.api::<BootIntent>();
        loop {
            let Some(intent) = intents.get_opt("h").await.unwrap() else { return };
            let now = Some(Time(Timestamp::now()));
            let spec = &intent.spec;
            let powers_off = spec.steps.iter().any(|step| step.action == StepAction::PowerOff);
            if spec.target == BootTarget::Ramdisk && spec.started.is_some() && self.machine.is_on() {
                let done = spec.steps.iter().map(|step| StepResult {
                    id: step.id.clone(),
                    succeeded: true,
                    message: String::new(),
                    finished: now.clone(),
                });
                let session = SessionStatus {
                    generation: spec.generation,
                    opened: now.clone(),
                    last_seen: now.clone(),
                    ..SessionStatus::default()
                };
                let nic = |last: u8| Nic { mac: format!("02:00:00:00:00:{last:02x}"), ..Nic::default() };
                let nics = vec![nic(1), nic(2)];
                let status = BootIntentStatus {
                    session: Some(session),
                    results: done.collect(),
                    inventory: Some(HardwareDetails { hostname: "h".into(), nics, ..HardwareDetails::default() }),
                    ..BootIntentStatus::default()
                };
                let patch = Patch::Merge(json!({ "status": status }));
                match intents.patch_status("h", &PatchParams::default(), &patch).await {
                    Err(kube::Error::Api(error)) if error.is_not_found() => return,
                    patched => drop(patched.unwrap()),
                }
                if powers_off {
                    self.machine.power(PowerCommand::Off);
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn what_hosts_go_through_is_counted_under_metal3s_names() {
    let site = Site::provisioned().await;
    let patch = Patch::Merge(json!({ "spec": { "online": false } }));
    site.api::<BareMetalHost>().patch("h", &PatchParams::default(), &patch).await.unwrap();
    site.until("it is off", async || !site.machine.is_on()).await;
    site.until("the status says so", async || {
        !site.api::<BareMetalHost>().get("h").await.unwrap().status.unwrap().powered_on
    })
    .await;
    let patch = Patch::Merge(json!({ "spec": { "bmc": { "credentialsName": "none" } } }));
    site.api::<BareMetalHost>().patch("h", &PatchParams::default(), &patch).await.unwrap();
    let counted = async |line: &str| site.metrics().await.lines().any(|given| given.starts_with(line));
    for line in [
        "metal3_reconcile_total{namespace=\"rack\",host=\"h\"} ",
        "metal3_reconcile_error_total 0",
        "metal3_operation_power_change_total{namespace=\"rack\",host=\"h\",on_off=\"off\"} 1",
        "metal3_credentials_missing_total ",
        "metal3_host_error_total{error_type=\"registration error\"} 1",
        "metal3_host_unmanaged_total 0",
    ] {
        site.until(line, async || counted(line).await).await;
    }
}

#[tokio::test]
async fn a_bmcs_health_is_a_condition() {
    let site = Site::provisioned().await;
    let healthy = async || {
        let status = site.api::<BareMetalHost>().get("h").await.unwrap().status.unwrap();
        status.conditions.into_iter().find(|condition| condition.type_ == "Healthy")
    };
    site.until("IPMI says nothing of it", async || healthy().await.is_some_and(|told| told.status == "Unknown")).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("redfish+http://{}", listener.local_addr().unwrap());
    let account =
        Account { username: "admin".into(), password: "secret".to_owned().into(), privilege: Privilege::Administrator };
    let service = RedfishSim::new(vec![site.machine.clone()], account, RedfishOptions::default());
    tokio::spawn(service.run(listener, None, site.shutdown.clone()));
    site.machine.set_health(Health::Warning);
    let patch = Patch::Merge(json!({ "spec": { "bmc": { "address": address } } }));
    site.api::<BareMetalHost>().patch("h", &PatchParams::default(), &patch).await.unwrap();
    let secret = Patch::Merge(json!({ "stringData": { "note": "another version, so that the BMC is asked at once" } }));
    site.api::<Secret>().patch("bmc", &PatchParams::default(), &secret).await.unwrap();
    site.until("the warning is shown", async || healthy().await.is_some_and(|told| told.reason == "Warning")).await;
}

#[tokio::test]
async fn every_state_on_the_way_is_seen_by_a_watch() {
    let site = Site::idle().await;
    site.reconcile().await;
    let seen = site.watch_states(ProvisioningState::Provisioned).await;
    let mut host = site.host();
    host.spec.image = Some(Site::image());
    site.create(&host).await;
    let intents = site.api::<BootIntent>();
    site.until("it has a boot intent", async || intents.get_opt("h").await.unwrap().is_some()).await;
    let import = async {
        let images = Api::<Image>::all(site.client.clone());
        let name = lifecycle::image_name(&Site::image());
        site.until("the image is asked for", async || images.get_opt(&name).await.unwrap().is_some()).await;
        let status = ImageStatus {
            phase: ImagePhase::Ready,
            digest: Some("d".repeat(64)),
            observed_generation: Some(1),
            ..ImageStatus::default()
        };
        let patch = Patch::Merge(json!({ "status": status }));
        images.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
        site.until("it is provisioned", async || {
            site.status().await.provisioning.state == ProvisioningState::Provisioned
        })
        .await;
    };
    tokio::select! {
        () = site.play_agent() => panic!("the intent is gone"),
        () = import => {}
    }
    let seen = seen.await.unwrap();
    let on_the_way = ["registering", "inspecting", "preparing", "available", "provisioning", "provisioned"];
    assert_eq!(seen.iter().filter(|state| !state.is_empty()).copied().collect::<Vec<_>>(), on_the_way);
    assert!(site.machine.is_on());
    let seen = site.watch_states(ProvisioningState::Deleting).await;
    site.delete().await;
    tokio::select! {
        () = site.play_agent() => site.until_gone().await,
        () = site.until_gone() => {}
    }
    let way_out = ["provisioned", "deprovisioning", "powering off before delete", "deleting"];
    assert_eq!(seen.await.unwrap(), way_out);
}

#[tokio::test]
async fn a_restored_host_is_provisioned_from_the_first_and_its_machine_runs_on() {
    let site = Site::idle().await;
    site.machine.power(PowerCommand::On);
    let boots = site.machine.boots().len();
    site.reconcile().await;
    let seen = site.watch_states(ProvisioningState::Deleting).await;
    let mut host = site.host();
    host.spec.image = Some(Site::image());
    let status = json!({ "operationalStatus": "OK", "errorMessage": "", "errorCount": 0, "poweredOn": true,
        "provisioning": { "state": "provisioned", "ID": "elsewhere", "image": Site::image() } });
    host.annotations_mut().insert(ANNOTATION_STATUS.into(), status.to_string());
    site.create(&host).await;
    site.until("it is registered in place", async || {
        let host = site.get().await;
        let id = host.status.clone().unwrap_or_default().provisioning.id;
        host.uid() == Some(id) && !host.annotations().contains_key(ANNOTATION_STATUS)
    })
    .await;
    // Detached, so that its deletion ends the watch without anything being done to the machine.
    site.annotate(ANNOTATION_DETACHED, Some("")).await;
    site.delete().await;
    site.until_gone().await;
    let seen = seen.await.unwrap();
    assert_eq!(seen.iter().filter(|state| !state.is_empty()).collect::<Vec<_>>(), [&"provisioned", &"deleting"]);
    assert!(site.machine.is_on());
    assert_eq!(site.machine.boots().len(), boots);
}

#[tokio::test]
async fn a_detached_host_keeps_its_state_and_comes_back_with_another_bmc_address() {
    let site = Site::provisioned().await;
    let boots = site.machine.boots().len();
    site.annotate(ANNOTATION_DETACHED, Some("")).await;
    site.until("it is detached", async || site.status().await.operational_status == OperationalStatus::Detached).await;
    let moved = format!("{}?privilegelevel=ADMINISTRATOR", site.bmc);
    site.patch(json!({ "spec": { "bmc": { "address": moved } } })).await;
    site.annotate(ANNOTATION_DETACHED, None).await;
    site.until("it is back", async || {
        let status = site.status().await;
        status.operational_status == OperationalStatus::OK && !status.provisioning.id.is_empty()
    })
    .await;
    assert_eq!(site.status().await.provisioning.state, ProvisioningState::Provisioned);
    assert_eq!((site.machine.is_on(), site.machine.boots().len()), (true, boots));
}

#[tokio::test]
async fn what_was_decided_on_an_old_host_is_not_stored() {
    let site = Site::idle().await;
    let reconciler = site.reconciler();
    let mut host = site.host();
    host.finalizers_mut().push(crate::api::metal3::FINALIZER_HOST.into());
    let host = site.create(&host).await;
    let around = look_around(&reconciler.context, &host).await.unwrap();
    let transition = reconciler.decide(&host, &around);
    assert_eq!(transition.status.provisioning.state, ProvisioningState::Registering);
    site.annotate("somebody", Some("was faster")).await;
    let refused = reconciler.save(&host, &transition).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(error) if error.is_conflict()));
    assert_eq!(site.status().await.provisioning.state, ProvisioningState::None);
    let events = site.api::<k8s_openapi::api::core::v1::Event>().list(&Default::default()).await.unwrap();
    assert!(events.items.is_empty(), "nothing is told that did not come to be");
}

#[tokio::test]
async fn two_hosts_cannot_have_one_bmc() {
    let site = Site::provisioned().await;
    let hosts = site.api::<BareMetalHost>();
    let (first, starts) = (hosts.get("h").await.unwrap(), site.machine.boots());
    let spec = BareMetalHostSpec {
        bmc: first.spec.bmc.clone(),
        boot_mac_address: Some("02:00:00:00:00:02".into()),
        ..BareMetalHostSpec::default()
    };
    // A creation time has seconds: the second one must be younger.
    let made = first.creation_timestamp().unwrap().0;
    site.until("the next second", async || Timestamp::now() > made + Duration::from_secs(1)).await;
    hosts.create(&PostParams::default(), &BareMetalHost::new("twin", spec)).await.unwrap();
    let error = async || hosts.get("twin").await.unwrap().status.unwrap_or_default().error_message;
    let reason = "is already that of BareMetalHost rack/h: correct one of the two";
    site.until("the second is refused", async || error().await.ends_with(reason)).await;
    assert_eq!(site.machine.boots(), starts, "the machine is the first one's");
    hosts.delete("twin", &DeleteParams::default()).await.unwrap();
    site.until("the second is gone", async || hosts.get_opt("twin").await.unwrap().is_none()).await;
    assert!(site.machine.is_on(), "and stays as it was");
}

#[tokio::test]
async fn a_system_that_the_agent_starts_finds_no_cd_of_ours() {
    let mut site = Site::idle().await;
    site.redfish(RedfishOptions::default()).await;
    let reconciler = site.reconciler();
    let spec = BootIntentSpec { generation: 2, target: BootTarget::Disk, ..BootIntentSpec::default() };
    for (scheme, url, stays) in [
        ("redfish-virtualmedia", "http://10.0.0.1/boot/iso/ticket.iso", false),
        ("redfish-virtualmedia", "http://x/data.iso", true),
        ("redfish", "http://10.0.0.1/boot/iso/ticket.iso", true),
    ] {
        site.machine.set_media(Some(url.into()));
        let mut host = site.host();
        host.spec.bmc.as_mut().unwrap().address = site.bmc.replacen("redfish", scheme, 1);
        let host = site.create(&host).await;
        let effect = lifecycle::Effect::HandOver(Box::new(spec.clone()));
        effects::perform(&reconciler.context, &host, None, &effect).await.unwrap();
        assert_eq!(site.machine.media().is_some(), stays, "{scheme} {url}");
        assert_eq!(site.api::<BootIntent>().get("h").await.unwrap().spec, spec);
        site.delete().await;
        let intents = site.api::<BootIntent>();
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        intents.patch("h", &PatchParams::default(), &free).await.unwrap();
        intents.delete("h", &DeleteParams::default()).await.ok();
        site.until("the intent is gone", async || intents.get_opt("h").await.unwrap().is_none()).await;
    }
    // A BMC that cannot be reached does not hold up what runs already.
    let mut host = site.host();
    host.spec.bmc.as_mut().unwrap().credentials_name = "none".into();
    let host = site.create(&host).await;
    effects::perform(&reconciler.context, &host, None, &lifecycle::Effect::HandOver(Box::new(spec))).await.unwrap();
}
