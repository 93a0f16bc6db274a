//! Hosts of one namespace that take long do not hold up those of another.

use super::*;
use crate::api::metal3::{ANNOTATION_PAUSED, ErrorType};
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

/// One place; a host of another namespace has it, and is to give it back.
async fn gives_back(settings: HostConfig, change: Option<serde_json::Value>) {
    let mut site = Site::idle().await;
    let theirs = site.bmc.clone();
    site.machine = Arc::new(Machine::new(Profile::default()));
    site.redfish(RedfishOptions::default()).await;
    let hosts = tenant(&site).await;
    let bmcs = Settings { poll: Duration::from_millis(20), ..Settings::default() };
    let power_poll = Span(Duration::from_millis(200));
    site.reconcile_with(HostConfig { busy_limit: 1, power_poll, ..settings }, bmcs).await;
    hosts.create(&PostParams::default(), &host("first", 7, &theirs)).await.unwrap();
    let inspected = (ProvisioningState::Inspecting, OperationalStatus::OK);
    site.until("theirs is busy", async || state(&hosts, "first").await == inspected).await;
    site.create(&site.host()).await;
    site.until("the other waits", async || state(&site.api(), "h").await.1 == OperationalStatus::Delayed).await;
    if let Some(change) = change {
        hosts.patch("first", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }
    site.until("the other is inspected", async || state(&site.api(), "h").await == inspected).await;
}

#[tokio::test]
async fn a_paused_host_gives_its_place_back() {
    gives_back(HostConfig::default(), Some(json!({ "metadata": { "annotations": { ANNOTATION_PAUSED: "" } } }))).await;
}

#[tokio::test]
async fn a_host_that_is_held_off_gives_its_place_back() {
    let holder = json!({ "reboot.metal3.io/holder": "{\"force\":true}" });
    gives_back(HostConfig::default(), Some(json!({ "metadata": { "annotations": holder } }))).await;
}

/// Its machine is powered on and its agent never calls, or calls for ever; here the image is never imported.
#[tokio::test]
async fn a_place_does_not_keep_other_namespaces_out_for_ever() {
    let mut site = Site::idle().await;
    let theirs = site.bmc.clone();
    site.machine = Arc::new(Machine::new(Profile::default()));
    site.redfish(RedfishOptions::default()).await;
    let hosts = tenant(&site).await;
    let bmcs = Settings { poll: Duration::from_millis(20), ..Settings::default() };
    let settings = HostConfig {
        busy_limit: 1,
        power_poll: Span(Duration::from_millis(200)),
        boot_deadline: Span(Duration::from_secs(3)),
        ..HostConfig::default()
    };
    site.reconcile_with(settings, bmcs).await;
    let mut first = host("first", 7, &theirs);
    first.spec.inspection_mode = Some(crate::api::metal3::InspectionMode::Disabled);
    first.spec.automated_cleaning_mode = Some(crate::api::metal3::AutomatedCleaningMode::Disabled);
    first.spec.image = Some(Site::image());
    hosts.create(&PostParams::default(), &first).await.unwrap();
    let writes = (ProvisioningState::Provisioning, OperationalStatus::OK);
    site.until("theirs is busy", async || state(&hosts, "first").await == writes).await;
    site.create(&site.host()).await;
    site.until("the other is inspected", async || {
        state(&site.api(), "h").await == (ProvisioningState::Inspecting, OperationalStatus::OK)
    })
    .await;
    assert_eq!(state(&hosts, "first").await, writes, "and nothing was taken from the first");
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
    let patience = Patience { read: Duration::from_millis(50), ..Patience::default() };
    let reconciler = Reconciler { patience, ..site.reconciler() };
    reconciler.reconcile("rack", "h").await.unwrap();
    let status = site.status().await;
    let message = status.error_message;
    assert_eq!((status.error_type, status.error_count), (Some(ErrorType::Registration), 1), "{message}");
    assert!(message.contains("answered too slowly: what it was asked for was not done within 0.05 s"), "{message}");
}
