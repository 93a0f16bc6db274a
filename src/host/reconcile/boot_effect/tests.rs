//! Tests of booting a machine through its BMC.
//!
//! How a machine is booted by each kind of address, through the API that its users have: real store, real API server, a
//! simulated BMC over Redfish.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::super::reconciler::{Hardware, run};
use super::*;
use crate::apiserver::ApiServer;
use crate::bmc::address::Privilege;
use crate::bmc::sim::machine::PowerCommand;
use crate::bmc::sim::{Account, MediaFault, RedfishOptions, RedfishSim, SimulatedMachine, SimulatedProfile};
use crate::bmc::{BmcRegistry, BmcSettings};
use crate::boot::{BootFiles, BootTokens};
use crate::config::HostConfig;
use crate::engine::Fence;
use crate::host::directory::Directory;
use crate::host::media::{Media, ToMachines};
use crate::host::status::metrics::HostMetrics;
use crate::module::Acting;
use crate::modules::kinds;
use crate::runtime::Tasks;
use crate::store::{Store, StoreOptions};

struct Site {
    client: Client,
    machine: Arc<SimulatedMachine>,
    tokens: Arc<BootTokens>,
    folder: tempfile::TempDir,
    bmc: String,
    shutdown: CancellationToken,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Site {
    async fn start(options: RedfishOptions) -> Self {
        Self::start_with(options, ToMachines::default()).await
    }

    async fn start_with(options: RedfishOptions, machines: ToMachines) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let store = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 1000 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Store::open(store).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        let client = api.client();
        tokio::spawn(async move { api.run().await });

        let machine = Arc::new(SimulatedMachine::new(SimulatedProfile::default()));
        let account =
            Account { username: "admin".into(), password: "secret".into(), privilege: Privilege::Administrator };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bmc = listener.local_addr().unwrap().to_string();
        tokio::spawn(RedfishSim::new(vec![machine.clone()], account, options).run(listener, None, shutdown.clone()));

        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "rack" } });
        let namespace: Namespace = serde_json::from_value(namespace).unwrap();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let tokens = Arc::new(BootTokens::open(path).unwrap());
        let files = BootFiles::new(path);
        let media = Media { tokens: tokens.clone(), files, port: 8080, advertise: None, machines };
        let directory = Directory::start(&client, &shutdown).await;
        let settings = BmcSettings {
            poll: Duration::from_millis(20),
            media_deadline: Duration::from_millis(200),
            http_backoff: Duration::from_millis(5),
            ..BmcSettings::default()
        };
        let hardware = Hardware { bmcs: BmcRegistry::new(settings), media: Some(media), leases: None };
        let metrics = HostMetrics::default();
        let (fence, tasks, stop) = (Fence::open(), Tasks::default(), shutdown.clone());
        let acting = Acting { client: client.clone(), fence, tasks, store: None, stop };
        tokio::spawn(run(acting, directory, HostConfig::default(), hardware, metrics));
        Self { client, machine, tokens, folder, bmc, shutdown }
    }

    fn iso(&self) {
        let manifest =
            r#"{"iso": {"size": 3, "grub": {"offset": 0, "length": 1}, "host": {"offset": 1, "length": 1}}}"#;
        std::fs::write(self.folder.path().join("ramdisk.json"), manifest).unwrap();
        std::fs::write(self.folder.path().join("slipway.iso"), "iso").unwrap();
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), "rack")
    }

    async fn secret(&self, name: &str, data: serde_json::Value) {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data });
        let secret: Secret = serde_json::from_value(secret).unwrap();
        self.api::<Secret>().create(&PostParams::default(), &secret).await.unwrap();
    }

    async fn host(&self, scheme: &str, more: serde_json::Value) {
        self.secret("bmc", json!({ "username": "admin", "password": "secret" })).await;
        let mut host = json!({ "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": { "name": "h" },
            "spec": { "online": true, "bootMACAddress": "02:00:00:00:00:01",
                "bmc": { "address": format!("{scheme}+http://{}", self.bmc), "credentialsName": "bmc" } } });
        for (key, value) in more.as_object().into_iter().flatten() {
            host["spec"][key] = value.clone();
        }
        let host: BareMetalHost = serde_json::from_value(host).unwrap();
        self.api::<BareMetalHost>().create(&PostParams::default(), &host).await.unwrap();
    }

    async fn until<F: Future<Output = bool>>(&self, what: &str, met: impl Fn() -> F) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        while !met().await {
            if tokio::time::Instant::now() > deadline {
                panic!("not within 30 s: {what}; {:#?}", self.api::<BareMetalHost>().get_opt("h").await.unwrap());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn until_error(&self, part: &str) {
        let says = async || {
            let status = self.api::<BareMetalHost>().get("h").await.unwrap().status.unwrap_or_default();
            status.error_message.contains(part)
        };
        self.until(part, says).await;
    }

    /// The ticket of an ISO's URL, checked.
    fn ticket(&self, url: &str) -> crate::boot::BootTokenClaims {
        let ticket = url.strip_prefix("http://127.0.0.1:8080/boot/iso/").and_then(|rest| rest.strip_suffix(".iso"));
        self.tokens.verify_media(ticket.unwrap_or_else(|| panic!("{url}"))).unwrap()
    }
}

#[tokio::test]
async fn a_virtual_cd_is_put_in_for_the_ramdisk_and_taken_out_when_the_machine_is_off() {
    let site = Site::start(RedfishOptions::default()).await;
    site.iso();
    site.host("redfish-virtualmedia", json!({})).await;
    site.until("the machine starts", async || site.machine.is_on()).await;
    assert_eq!(site.machine.boots()[0].device, Some(BootDevice::Cd));
    let claims = site.ticket(&site.machine.media().expect("a CD"));
    let uid = site.api::<BareMetalHost>().get("h").await.unwrap().metadata.uid.unwrap();
    let intent = site.api::<crate::api::slipway::BootIntent>().get("h").await.unwrap();
    assert_eq!((claims.uid, claims.generation), (uid, intent.spec.generation));
    site.api::<BareMetalHost>().delete("h", &DeleteParams::default()).await.unwrap();
    site.until("the host is gone", async || site.api::<BareMetalHost>().get_opt("h").await.unwrap().is_none()).await;
    assert!(!site.machine.is_on());
    assert_eq!(site.machine.media(), None, "it would boot from it again");
}

#[tokio::test]
async fn a_cd_of_somebody_else_stays() {
    let site = Site::start(RedfishOptions::default()).await;
    let bmcs = BmcRegistry::new(BmcSettings::default());
    let address = BmcAddress::parse(&format!("redfish-virtualmedia+http://{}", site.bmc)).unwrap();
    let credentials = crate::bmc::Credentials { username: "admin".into(), password: "secret".into() };
    let bmc = bmcs.connect(&address, &credentials, true);
    let ticket = format!("{}.iso", site.tokens.mint_media("uid", 1).unwrap());
    for (url, stays) in
        [("http://x/data.iso", true), ("data.iso", true), ("http://10.0.0.1/boot/iso/t.iso", false), (&ticket, false)]
    {
        site.machine.set_media(Some(url.into()));
        eject_ours(bmc.as_ref()).await.unwrap();
        assert_eq!(site.machine.media().is_some(), stays, "{url}");
    }
}

#[tokio::test]
async fn a_url_is_handed_to_the_firmware() {
    let site = Site::start(RedfishOptions::default()).await;
    site.iso();
    site.host("redfish-uefihttp", json!({})).await;
    site.until("the machine starts", async || site.machine.is_on()).await;
    assert_eq!(site.machine.boots()[0].device, Some(BootDevice::UefiHttp));
    site.ticket(&site.machine.http_uri().expect("a URL"));
    assert_eq!(site.machine.media(), None);
}

#[tokio::test]
async fn the_firmware_is_told_the_address_for_machines_and_the_bmc_the_one_for_bmcs() {
    let network = json!({ "networkData": r#"{"links": [{"id": "a", "type": "phy", "ethernet_mac_address": "02:00:00:00:00:01"}],
        "networks": [{"id": "n", "type": "ipv4", "link": "a", "ip_address": "127.0.0.5/8"}]}"# });
    let (advertise, own) = (Some([192, 0, 2, 1].into()), || Some(std::net::IpAddr::from([192, 0, 2, 2])).into());
    for (scheme, machines, planned, told) in [
        ("redfish-virtualmedia", ToMachines { advertise, own: own() }, false, "127.0.0.1"),
        ("redfish-uefihttp", ToMachines { advertise, own: own() }, true, "192.0.2.1"),
        ("redfish-uefihttp", ToMachines { advertise: None, own: own() }, false, "192.0.2.2"),
        ("redfish-uefihttp", ToMachines { advertise: None, own: own() }, true, "127.0.0.1"),
        ("redfish-uefihttp", ToMachines::default(), false, "127.0.0.1"),
    ] {
        let site = Site::start_with(RedfishOptions::default(), machines.clone()).await;
        site.iso();
        site.secret("net", network.clone()).await;
        let more = if planned { json!({ "preprovisioningNetworkDataName": "net" }) } else { json!({}) };
        site.host(scheme, more).await;
        site.until("the machine starts", async || site.machine.is_on()).await;
        let url = site.machine.http_uri().or(site.machine.media()).expect("a URL");
        assert!(url.starts_with(&format!("http://{told}:8080/boot/iso/")), "{scheme} {machines:?}: {url}");
    }
}

#[tokio::test]
async fn a_machine_whose_power_must_not_go_off_is_reset() {
    for (on, boots, switches) in [(true, 2, 2), (false, 1, 1)] {
        let site = Site::start(RedfishOptions::default()).await;
        if on {
            site.machine.power(PowerCommand::On);
        }
        site.host("redfish", json!({ "disablePowerOff": true })).await;
        let intents = site.api::<BootIntent>();
        site.until("it has booted the ramdisk", async || {
            intents.get_opt("h").await.unwrap().is_some_and(|intent| intent.spec.started.is_some())
        })
        .await;
        let starts = site.machine.boots();
        assert_eq!((starts.len(), starts[boots - 1].device), (boots, Some(BootDevice::Pxe)), "{on}");
        assert_eq!(site.machine.switched(0).await.switches, switches, "{on}: it was never off in between");
    }
}

#[tokio::test]
async fn what_stands_in_the_way_is_said_before_a_machine_that_runs_is_touched() {
    for (scheme, more, error) in [
        ("redfish-virtualmedia", json!({}), "no ISO to boot from"),
        ("redfish-uefihttp", json!({ "bootMode": "legacy" }), "bootMode legacy cannot boot from a URL"),
        ("redfish-virtualmedia", json!({ "preprovisioningNetworkDataName": "net" }), "links must be a list"),
        ("redfish", json!({ "preprovisioningNetworkDataName": "none" }), "there is no secret none"),
    ] {
        let site = Site::start(RedfishOptions::default()).await;
        site.machine.power(PowerCommand::On);
        if error != "no ISO to boot from" {
            site.iso();
        }
        site.secret("net", json!({ "networkData": "links: 7" })).await;
        site.host(scheme, more).await;
        site.until_error(error).await;
        assert!(site.machine.is_on() && site.machine.boots().len() == 1, "{scheme} {error}");
    }
}

#[tokio::test]
async fn what_stands_in_the_way_is_said_and_the_machine_stays_off() {
    let site = Site::start(RedfishOptions::default()).await;
    site.host("redfish-virtualmedia", json!({})).await;
    site.until_error("no ISO to boot from").await;
    assert!(site.machine.boots().is_empty());

    let site =
        Site::start(RedfishOptions { media_fault: MediaFault::FailsAndShows, ..RedfishOptions::default() }).await;
    site.iso();
    site.host("redfish-virtualmedia", json!({})).await;
    site.until_error("insertion of a virtual CD").await;
    assert!(site.machine.boots().is_empty() && site.machine.media().is_none());

    let site = Site::start(RedfishOptions::default()).await;
    site.iso();
    site.secret("net", json!({ "networkData": "links: 7" })).await;
    site.host("redfish-virtualmedia", json!({ "preprovisioningNetworkDataName": "net" })).await;
    site.until_error("secret net: network data: links must be a list").await;
    assert!(site.machine.boots().is_empty());

    let site = Site::start(RedfishOptions::default()).await;
    site.iso();
    site.host("redfish-uefihttp", json!({ "bootMode": "legacy" })).await;
    site.until_error("bootMode legacy cannot boot from a URL").await;
    assert!(site.machine.boots().is_empty());
}
