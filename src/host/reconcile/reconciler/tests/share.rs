//! Tests of fairness: hosts of one namespace that take long do not hold up those of another.

use super::*;
use crate::api::metal3::{ANNOTATION_PAUSED, AutomatedCleaningMode, ErrorType, InspectionMode};
use crate::config::Span;

/// More hosts than are looked at at once.
const CROWD: usize = 170;

/// A namespace `tenant` with good credentials.
async fn tenant(site: &Site) -> Api<BareMetalHost> {
    let metadata = ObjectMeta { name: Some("tenant".into()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::<Namespace>::all(site.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "bmc" },
        "stringData": { "username": "admin", "password": "secret" } });
    let secrets = Api::<Secret>::namespaced(site.client.clone(), "tenant");
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    Api::namespaced(site.client.clone(), "tenant")
}

/// A host with this number, and a boot address of its own.
fn host(name: &str, number: usize, bmc: &str) -> BareMetalHost {
    let spec = BareMetalHostSpec {
        online: true,
        bmc: Some(BmcDetails { address: bmc.into(), credentials_name: "bmc".into(), ..BmcDetails::default() }),
        boot_mac_address: Some(format!("02:00:00:00:{:02x}:{:02x}", number / 256, number % 256)),
        ..BareMetalHostSpec::default()
    };
    BareMetalHost::new(name, spec)
}

/// A BMC that takes every connection and says nothing.
async fn silent_bmc(site: &Site) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let end = site.shutdown.clone();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Some(Ok((connection, _))) = end.run_until_cancelled(listener.accept()).await {
            kept.push(connection);
        }
    });
    format!("redfish+http://{address}/redfish/v1/Systems/")
}

async fn state(hosts: &Api<BareMetalHost>, name: &str) -> (ProvisioningState, OperationalStatus) {
    let status = hosts.get(name).await.unwrap().status.unwrap_or_default();
    (status.provisioning.state, status.operational_status)
}

const INSPECTED: (ProvisioningState, OperationalStatus) = (ProvisioningState::Inspecting, OperationalStatus::OK);

/// One place, of which hosts of two namespaces have need.
struct Rivals {
    site: Site,
    /// Of the other namespace.
    hosts: Api<BareMetalHost>,
    /// The host that has the place first.
    first: BareMetalHost,
}

impl Rivals {
    async fn new(settings: HostConfig) -> Self {
        let mut site = Site::idle().await;
        let first = host("first", 7, &site.bmc);
        site.machine = Arc::new(SimulatedMachine::new(SimulatedProfile::default()));
        site.redfish(RedfishOptions::default()).await;
        let hosts = tenant(&site).await;
        let bmcs = BmcSettings { poll: Duration::from_millis(20), ..BmcSettings::default() };
        let power_poll = Span(Duration::from_millis(200));
        site.reconcile_with(HostConfig { busy_limit: 1, power_poll, ..settings }, bmcs).await;
        Self { site, hosts, first }
    }

    /// The first host takes the place, in this state.
    async fn take(&self, wanted: (ProvisioningState, OperationalStatus)) {
        self.hosts.create(&PostParams::default(), &self.first).await.unwrap();
        self.site.until("theirs is busy", async || state(&self.hosts, "first").await == wanted).await;
        self.site.create(&self.site.host()).await;
    }

    async fn other_is_inspected(&self) {
        self.site.until("the other is inspected", async || state(&self.site.api(), "h").await == INSPECTED).await;
    }

    /// The first one gives its place back when it has this annotation.
    async fn give_back(&self, annotation: &str, value: &str) {
        self.take(INSPECTED).await;
        let waits = async || state(&self.site.api(), "h").await.1 == OperationalStatus::Delayed;
        self.site.until("the other waits", waits).await;
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { annotation: value } } }));
        self.hosts.patch("first", &PatchParams::default(), &patch).await.unwrap();
        self.other_is_inspected().await;
    }
}

#[tokio::test]
async fn a_paused_host_gives_its_place_back() {
    Rivals::new(HostConfig::default()).await.give_back(ANNOTATION_PAUSED, "").await;
}

#[tokio::test]
async fn a_host_that_is_held_off_gives_its_place_back() {
    Rivals::new(HostConfig::default()).await.give_back("reboot.metal3.io/holder", "{\"force\":true}").await;
}

/// Its machine's agent never calls, or calls for ever; here the image is never imported.
#[tokio::test]
async fn a_place_does_not_keep_other_namespaces_out_for_ever() {
    let settings = HostConfig { boot_deadline: Span(Duration::from_secs(3)), ..HostConfig::default() };
    let mut rivals = Rivals::new(settings).await;
    let spec = &mut rivals.first.spec;
    spec.inspection_mode = Some(InspectionMode::Disabled);
    spec.automated_cleaning_mode = Some(AutomatedCleaningMode::Disabled);
    spec.image = Some(Site::image());
    let writes = (ProvisioningState::Provisioning, OperationalStatus::OK);
    rivals.take(writes).await;
    rivals.other_is_inspected().await;
    assert_eq!(state(&rivals.hosts, "first").await, writes, "and nothing was taken from the first");
}

#[tokio::test]
async fn slow_bmcs_of_one_namespace_hold_up_no_other() {
    let site = Site::idle().await;
    let hosts = tenant(&site).await;
    let slow = silent_bmc(&site).await;
    site.reconcile().await;
    for number in 0..CROWD {
        let host = host(&format!("slow-{number}"), 256 + number, &format!("{slow}{number}"));
        hosts.create(&PostParams::default(), &host).await.unwrap();
    }
    site.create(&site.host()).await;
    site.until("the other is inspected", async || {
        site.status().await.provisioning.state == ProvisioningState::Inspecting
    })
    .await;
    let metrics = site.metrics().await;
    assert!(metrics.contains("slipway_host_looks_waiting "), "{metrics}");
}

#[tokio::test]
async fn new_hosts_with_slow_bmcs_hold_up_no_known_host_of_their_namespace() {
    let site = Site::idle().await;
    site.provision().await;
    let slow = silent_bmc(&site).await;
    site.reconcile().await;
    site.until("the host is taken over", async || site.status().await.powered_on).await;
    for number in 0..CROWD {
        site.create(&host(&format!("slow-{number}"), 256 + number, &format!("{slow}{number}"))).await;
    }
    for online in [false, true] {
        site.patch(json!({ "spec": { "online": online } })).await;
        site.until("its power follows", async || site.machine.is_on() == online).await;
    }
}

#[tokio::test]
async fn a_bmc_that_comes_to_no_end_has_failed() {
    let mut site = Site::idle().await;
    site.bmc = silent_bmc(&site).await;
    site.create(&site.host()).await;
    let patience = Deadlines { read: Duration::from_millis(50), ..Deadlines::default() };
    let reconciler = Reconciler { patience, ..site.reconciler() };
    reconciler.look_after("rack", "h").await.unwrap();
    let status = site.status().await;
    let message = status.error_message;
    assert_eq!((status.error_type, status.error_count), (Some(ErrorType::Registration), 1), "{message}");
    assert!(message.contains("answered too slowly: what it was asked for was not done within 0.05 s"), "{message}");
}
