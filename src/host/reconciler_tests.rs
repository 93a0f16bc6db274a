//! The reconciler through the API that its users have: real store, real API server, a simulated BMC over IPMI.

use std::future::Future;

use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams};
use serde_json::json;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tower::ServiceExt;

use super::*;
use crate::api::kinds;
use crate::api::metal3::{
    BareMetalHostSpec, BmcDetails, FINALIZER_HARDWARE_DATA, HardwareDataSpec, Image as HostImage, ProvisionStatus,
};
use crate::api::slipway::{BootIntentSpec, BootIntentStatus, BootTarget, SessionStatus, StepAction, StepResult};
use crate::apiserver::ApiServer;
use crate::bmc::address::Privilege;
use crate::bmc::ipmi::suite::CipherSuite;
use crate::bmc::sim::{Account, IpmiSim, Machine, Profile, RedfishOptions, RedfishSim};
use crate::bmc::{Health, Settings};
use crate::host::watches::{self, Intents};
use crate::store::{Store as Database, StoreOptions};

const URL: &str = "http://images.test/a.qcow2";

struct Site {
    api: ApiServer,
    client: Client,
    machine: Arc<Machine>,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Site {
    /// A namespace `rack` with one provisioned host `h`, whose reconciler runs.
    async fn provisioned() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 1000 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Database::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        let client = api.client();
        let server = api.clone();
        tokio::spawn(async move { server.run().await });

        let machine = Arc::new(Machine::new(Profile::default()));
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = format!("ipmi://{}", socket.local_addr().unwrap());
        let account = Account {
            username: "admin".into(),
            password: "secret".to_owned().into(),
            privilege: Privilege::Administrator,
        };
        let bmc = IpmiSim::new(machine.clone(), vec![account], &[CipherSuite::Sha256]);
        tokio::spawn(bmc.run(socket, shutdown.clone()));

        let site =
            Self { api: api.clone(), client: client.clone(), machine, shutdown: shutdown.clone(), _folder: folder };
        let metadata = ObjectMeta { name: Some("rack".into()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "bmc" },
            "stringData": { "username": "admin", "password": "secret" } });
        site.api::<Secret>().create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
        let image = HostImage { url: URL.into(), checksum: Some("c".repeat(64)), ..HostImage::default() };
        let spec = BareMetalHostSpec {
            online: true,
            bmc: Some(BmcDetails { address, credentials_name: "bmc".into(), ..BmcDetails::default() }),
            boot_mac_address: Some("02:00:00:00:00:01".into()),
            image: Some(image.clone()),
            ..BareMetalHostSpec::default()
        };
        let hosts = site.api::<BareMetalHost>();
        let mut host = hosts.create(&PostParams::default(), &BareMetalHost::new("h", spec)).await.unwrap();
        host.status = Some(BareMetalHostStatus {
            provisioning: ProvisionStatus {
                state: ProvisioningState::Provisioned,
                image: Some(image),
                ..ProvisionStatus::default()
            },
            ..BareMetalHostStatus::default()
        });
        let host = hosts.replace_status("h", &PostParams::default(), &host).await.unwrap();
        let metadata = ObjectMeta {
            name: Some("h".into()),
            owner_references: host.controller_owner_ref(&()).map(|owner| vec![owner]),
            finalizers: Some(vec![crate::api::slipway::FINALIZER_INTENT.into()]),
            ..ObjectMeta::default()
        };
        let spec = BootIntentSpec { generation: 3, target: BootTarget::Disk, ..BootIntentSpec::default() };
        let intent = BootIntent { metadata, spec, status: None };
        site.api::<BootIntent>().create(&PostParams::default(), &intent).await.unwrap();

        let (index, intents) = (HostIndex::default(), Intents::default());
        let (ready, mut listed) = watch::channel(false);
        tokio::spawn(watches::keep(client.clone(), index.clone(), intents, ready, shutdown.clone()));
        listed.wait_for(|listed| *listed).await.unwrap();
        let bmcs = Registry::new(Settings { poll: Duration::from_millis(20), ..Settings::default() });
        let metrics = Metrics::default();
        api.add_metrics({
            let metrics = metrics.clone();
            Arc::new(move |registry| metrics.register(registry))
        });
        tokio::spawn(run(client, index, HostConfig::default(), bmcs, Fence::open(), metrics, shutdown));
        site.until("the host is taken over", async || {
            let host = site.api::<BareMetalHost>().get("h").await.unwrap();
            !host.finalizers().is_empty() && host.status.is_some_and(|status| status.powered_on)
        })
        .await;
        site
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), "rack")
    }

    async fn metrics(&self) -> String {
        let router = self.api.router().layer(axum::Extension(crate::apiserver::Identity::in_process()));
        let request = http::Request::get("/metrics").body(axum::body::Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    async fn until<F: Future<Output = bool>>(&self, what: &str, met: impl Fn() -> F) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while !met().await {
            if tokio::time::Instant::now() > deadline {
                let host = self.api::<BareMetalHost>().get_opt("h").await.unwrap();
                let intent = self.api::<BootIntent>().get_opt("h").await.unwrap();
                panic!("not within 30 s: {what}; {host:#?} {intent:#?}");
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
                let status =
                    BootIntentStatus { session: Some(session), results: done.collect(), ..BootIntentStatus::default() };
                let patch = Patch::Merge(json!({ "status": status }));
                match intents.patch_status("h", &PatchParams::default(), &patch).await {
                    Err(kube::Error::Api(error)) if error.is_not_found() => return,
                    patched => drop(patched.unwrap()),
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn a_namespace_that_ends_takes_its_host_through_the_wipe() {
    let site = Site::provisioned().await;
    let namespaces = Api::<Namespace>::all(site.client.clone());
    namespaces.delete("rack", &DeleteParams::default()).await.unwrap();
    site.until("the agent is to clean the disks", async || {
        let intent = site.api::<BootIntent>().get_opt("h").await.unwrap();
        let steps = intent.map(|intent| intent.spec.steps).unwrap_or_default();
        steps.iter().any(|step| step.action == StepAction::Erase)
    })
    .await;
    assert!(namespaces.get_opt("rack").await.unwrap().is_some());
    tokio::select! {
        () = site.play_agent() => {}
        () = site.until("never", async || false) => {}
    }
    site.until("the namespace is gone", async || namespaces.get_opt("rack").await.unwrap().is_none()).await;
    assert!(!site.machine.is_on());
}

#[tokio::test]
async fn an_intent_that_a_user_deletes_goes_and_one_without_its_host_too() {
    let site = Site::provisioned().await;
    let intents = site.api::<BootIntent>();
    let first = intents.get("h").await.unwrap().uid();
    intents.delete("h", &DeleteParams::default()).await.unwrap();
    site.until("the old intent is gone", async || {
        intents.get_opt("h").await.unwrap().and_then(|intent| intent.uid()) != first
    })
    .await;

    let site = Site::provisioned().await;
    let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let pause = Patch::Merge(json!({ "metadata": { "annotations": { "baremetalhost.metal3.io/paused": "" } } }));
    let hosts = site.api::<BareMetalHost>();
    hosts.patch("h", &PatchParams::default(), &pause).await.unwrap();
    hosts.delete("h", &DeleteParams::default()).await.unwrap();
    hosts.patch("h", &PatchParams::default(), &patch).await.unwrap();
    site.until("the intent follows its host", async || site.api::<BootIntent>().get_opt("h").await.unwrap().is_none())
        .await;
}

#[tokio::test]
async fn hardware_data_may_be_deleted_and_goes_with_its_host() {
    let site = Site::provisioned().await;
    let (hosts, all) = (site.api::<BareMetalHost>(), site.api::<HardwareData>());
    let host = hosts.get("h").await.unwrap();
    let create = async || {
        let mut data = HardwareData::new("h", HardwareDataSpec::default());
        data.metadata.owner_references = host.controller_owner_ref(&()).map(|owner| vec![owner]);
        data.metadata.finalizers = Some(vec![FINALIZER_HARDWARE_DATA.into()]);
        all.create(&PostParams::default(), &data).await.unwrap()
    };
    let starts = site.machine.boots();
    create().await;
    all.delete("h", &DeleteParams::default()).await.unwrap();
    site.until("a deleted one ends", async || all.get_opt("h").await.unwrap().is_none()).await;
    let status = hosts.get("h").await.unwrap().status.unwrap();
    assert_eq!((status.provisioning.state, status.error_type), (ProvisioningState::Provisioned, None));
    assert!(site.machine.is_on() && site.machine.boots() == starts, "nothing was done to the machine");

    create().await;
    hosts.delete("h", &DeleteParams::default()).await.unwrap();
    let gone = async || hosts.get_opt("h").await.unwrap().is_none() && all.get_opt("h").await.unwrap().is_none();
    tokio::select! {
        () = site.until("both are gone", gone) => {}
        () = site.play_agent() => site.until("both are gone", gone).await,
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
