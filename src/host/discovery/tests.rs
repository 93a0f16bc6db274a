//! Visits through their own door: HTTP calls against the router, over a real store and API.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::DiscoveryService;
use crate::api::MacAddress;
use crate::api::metal3::{BareMetalHost, BareMetalHostSpec, HardwareData};
use crate::api::slipway::{ANNOTATION_DISCOVERED, ANNOTATION_REPORTED, ANNOTATION_VISIT};
use crate::apiserver::ApiServer;
use crate::apiserver::tls::Peer;
use crate::boot::{BootTokens, HostIndex, UnknownMachine};
use crate::config::Config;
use crate::host::agent_api::Sessions;
use crate::host::directory::Directory;
use crate::host::logs::Logs;
use crate::image::{Library, Sources};
use crate::modules::kinds;
use crate::store::{Store, StoreOptions};

const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const NODE: &str = "10.0.0.5";
const STRANGER: &str = "10.0.0.66";
const DEADLINE: Duration = Duration::from_secs(120);

struct Site {
    router: Router,
    client: Client,
    index: HostIndex,
    tokens: Arc<BootTokens>,
    store: Store,
    shutdown: CancellationToken,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Site {
    async fn new(folder: &Path, config: &str) -> Self {
        let options = StoreOptions { path: folder.join("db"), key_file: folder.join("key"), history: 100 };
        let store = Store::open(options).expect("opens");
        let shutdown = CancellationToken::new();
        let client = ApiServer::new(store.clone(), &kinds(), shutdown.clone()).await.expect("a server").client();
        let Directory { index, intents, .. } = Directory::start(&client, &shutdown).await;
        let tokens = Arc::new(BootTokens::open(folder).expect("a key"));
        let library = Library::open(folder.join("images"), Sources::of_tests()).expect("a library");
        let config = Config::parse(config, Path::new("x.toml")).expect("good").discovery;
        let discovery = DiscoveryService::new(client.clone(), index.clone(), config, &store).expect("discovery");
        let sessions = Sessions::new(
            client.clone(),
            index.clone(),
            intents,
            tokens.clone(),
            library,
            Logs::new(folder.join("logs")),
            crate::boot::DownloadScheduler::default(),
        )
        .with_discovery(discovery);
        Self { router: sessions.router(), client, index, tokens, store, shutdown }
    }

    async fn close(self) {
        self.shutdown.cancel();
        self.store.close().await;
    }

    async fn call(&self, peer: &str, bearer: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(format!("/agent/v1/{path}"));
        if !bearer.is_empty() {
            request = request.header("authorization", format!("Bearer {bearer}"));
        }
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let mut request = request.header("content-type", "application/json").body(body).expect("a request");
        let peer: SocketAddr = format!("{peer}:1234").parse().expect("an address");
        request.extensions_mut().insert(Peer(peer));
        let answer = tokio::time::timeout(DEADLINE, self.router.clone().oneshot(request)).await.expect("in time");
        let answer = answer.expect("an answer");
        let status = answer.status().as_u16();
        let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.expect("a body");
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn open(&self, peer: &str, token: &str, mac: MacAddress) -> (u16, Value) {
        let hello = json!({ "token": token, "version": "0", "macAddresses": [mac], "uuid": "", "uefi": true });
        self.call(peer, "", "POST", "session", hello).await
    }

    /// A whole visit up to the report.
    async fn visit(&self, mac: MacAddress, inventory: Value) -> String {
        let token = self.tokens.mint_visit(mac, None).expect("a token");
        let (status, session) = self.open(NODE, &token, mac).await;
        assert_eq!(status, 200, "{session}");
        let bearer = session["session"].as_str().expect("a session").to_owned();
        let (status, step) = self.call(NODE, &bearer, "GET", "step", Value::Null).await;
        assert_eq!((status, &step["action"]), (200, &json!("inspect")));
        let outcome = json!({ "step": step["id"], "succeeded": true, "message": "", "inventory": inventory,
            "bmc": { "address": "10.1.0.5", "ipmi": true } });
        assert_eq!(self.call(NODE, &bearer, "POST", "result", outcome.clone()).await.0, 204);
        // Once more, as when the answer was lost.
        assert_eq!(self.call(NODE, &bearer, "POST", "result", outcome).await.0, 204);
        bearer
    }

    async fn hosts(&self) -> Vec<BareMetalHost> {
        Api::all(self.client.clone()).list(&Default::default()).await.expect("a list").items
    }

    async fn events(&self, reason: &str) -> Vec<Event> {
        let all = Api::<Event>::all(self.client.clone()).list(&Default::default()).await.expect("a list").items;
        all.into_iter().filter(|event| event.reason.as_deref() == Some(reason)).collect()
    }

    async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = tokio::time::Instant::now() + DEADLINE;
        while !holds() {
            assert!(tokio::time::Instant::now() < end, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn inventory(serial: &str, mac: MacAddress) -> Value {
    json!({
        "systemVendor": { "manufacturer": "Maker", "productName": "Box", "serialNumber": serial },
        "ramMebibytes": 4096, "cpu": { "arch": "x86_64", "count": 4 },
        "nics": [{ "name": "eth0", "mac": mac }, { "name": "eth1", "mac": "02:00:00:00:00:f1" }],
    })
}

#[tokio::test]
async fn an_unknown_machine_becomes_a_host_that_waits_and_goes_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules =
        "[[discovery.rule]]\nmatch = { manufacturer = 'maker' }\nlabels = { rack = 'a' }\ncredentials_name = 'bmc'";
    let site = Site::new(folder.path(), rules).await;
    let bearer = site.visit(MAC, inventory("S 1", MAC)).await;
    let hosts = site.hosts().await;
    let [host] = hosts.as_slice() else { panic!("{hosts:?}") };
    assert_eq!((host.namespace().as_deref(), host.name_any().as_str()), (Some("default"), "discovered-s-1"));
    assert_eq!(host.annotations()[ANNOTATION_DISCOVERED], "pending");
    assert_eq!(host.labels()["rack"], "a");
    let bmc = host.spec.bmc.as_ref().expect("a BMC");
    assert_eq!((bmc.address.as_str(), bmc.credentials_name.as_str()), ("ipmi://10.1.0.5", "bmc"));
    assert_eq!(host.spec.boot_mac_address.as_deref(), Some("02:00:00:00:00:01"));
    assert!(!host.spec.online);
    let found = host.status.as_ref().and_then(|status| status.hardware.clone()).expect("hardware");
    let data = Api::<HardwareData>::namespaced(site.client.clone(), "default").get("discovered-s-1").await;
    assert_eq!(data.expect("HardwareData").spec.hardware, Some(found));
    assert_eq!(site.events("Discovered").await.len(), 1);
    let (status, step) = site.call(NODE, &bearer, "GET", "step?after=0.1", Value::Null).await;
    assert_eq!((status, &step["action"]), (200, &json!("power-off")));
    // Its next boot is from its disk.
    site.until("the host to be known", || site.index.by_mac(MAC).is_some()).await;
    assert_eq!(site.index.unknown_machine(MAC, true), UnknownMachine::Ignored);
    let token = site.tokens.mint_visit(MAC, None).expect("a token");
    assert_eq!(site.open(NODE, &token, MAC).await.0, 403, "it is a host's by now");
    // What it said of its second port binds no other machine before it is accepted.
    assert_eq!(site.index.unknown_machine(MacAddress([2, 0, 0, 0, 0, 0xf1]), true), UnknownMachine::Discovered);
}

#[tokio::test]
async fn a_token_is_for_one_machine_one_address_and_one_session_also_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::new(folder.path(), "").await;
    let token = site.tokens.mint_visit(MAC, None).expect("a token");
    assert_eq!(site.open(NODE, &token, MacAddress([2, 0, 0, 0, 0, 9])).await.0, 403, "another machine");
    let bound = site.tokens.mint_visit(MAC, Some([10, 0, 0, 5].into())).expect("a token");
    let (status, refusal) = site.open(STRANGER, &bound, MAC).await;
    assert!(
        status == 403 && refusal["reason"].as_str().is_some_and(|it| it.contains("given to 10.0.0.5")),
        "{refusal}"
    );
    let (status, session) = site.open(NODE, &token, MAC).await;
    assert_eq!(status, 200);
    assert_eq!(site.open(NODE, &token, MAC).await.0, 200, "the answer may be lost");
    assert_eq!(site.open(STRANGER, &token, MAC).await.0, 403);
    let bearer = session["session"].as_str().expect("a session").to_owned();
    assert_eq!(site.call(NODE, &bearer, "GET", "step", Value::Null).await.0, 200);
    assert_eq!(site.open(NODE, &token, MAC).await.0, 403, "used");
    site.close().await;
    let site = Site::new(folder.path(), "").await;
    assert_eq!(site.open(NODE, &token, MAC).await.0, 403, "used before the restart");
    assert_eq!(site.call(NODE, &bearer, "GET", "step", Value::Null).await.0, 200, "and its session goes on");
}

#[tokio::test]
async fn a_visitor_gets_nothing_and_a_hosts_token_is_no_visitors() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::new(folder.path(), "").await;
    let token = site.tokens.mint_visit(MAC, None).expect("a token");
    let (_, session) = site.open(NODE, &token, MAC).await;
    let bearer = session["session"].as_str().expect("a session");
    let digest = "0".repeat(64);
    for path in [format!("chunk/{digest}"), format!("manifest/{digest}")] {
        assert_eq!(site.call(NODE, bearer, "GET", &path, Value::Null).await.0, 401, "{path}");
    }
    assert_eq!(site.call(NODE, bearer, "POST", "log", json!("noise")).await.0, 204);
    assert!(!folder.path().join("logs").exists(), "taken, not kept");
    for bearer in ["", "x", &token] {
        assert_eq!(site.call(NODE, bearer, "GET", "step", Value::Null).await.0, 401);
    }
    let hosts = site.tokens.mint("some-uid", 1).expect("a token");
    assert_eq!(site.open(NODE, &hosts, MAC).await.0, 403);
    // Steps that were not asked for and results without an inventory make nothing.
    for outcome in [
        json!({ "step": "9.9", "succeeded": true, "message": "", "inventory": inventory("x", MAC) }),
        json!({ "step": "0.1", "succeeded": false, "message": "no disk" }),
        json!({ "step": "0.1", "succeeded": true, "message": "", "inventory": inventory("x", MAC) }),
    ] {
        assert_eq!(site.call(NODE, bearer, "POST", "result", outcome).await.0, 204);
    }
    assert!(site.hosts().await.is_empty());
}

#[tokio::test]
async fn a_machine_that_is_a_host_makes_no_second_one_and_is_not_asked_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::new(folder.path(), "").await;
    site.visit(MAC, inventory("S1", MAC)).await;
    let other = MacAddress([2, 0, 0, 0, 0, 2]);
    site.visit(other, inventory("s1", other)).await;
    let hosts = site.hosts().await;
    let [host] = hosts.as_slice() else { panic!("{hosts:?}") };
    assert_eq!(host.annotations()[ANNOTATION_REPORTED], "02:00:00:00:00:02");
    let events = site.events("DiscoveredAgain").await;
    let [event] = events.as_slice() else { panic!("{events:?}") };
    assert!(
        event
            .message
            .as_deref()
            .is_some_and(|text| text.contains("02:00:00:00:00:02") && text.contains("02:00:00:00:00:f1"))
    );
    site.until("the address to be known", || site.index.unknown_machine(other, true) != UnknownMachine::Discovered)
        .await;
    assert_eq!(site.index.unknown_machine(other, true), UnknownMachine::Reported("default/discovered-s1".into()));
    assert!(site.index.by_mac(other).is_none(), "nothing of the host is that address'");
    // Gone with its host: then it is new again.
    let all = Api::<BareMetalHost>::namespaced(site.client.clone(), "default");
    all.delete("discovered-s1", &Default::default()).await.expect("deleted");
    site.until("the host to be gone", || site.index.unknown_machine(other, true) == UnknownMachine::Discovered).await;
}

#[tokio::test]
async fn what_was_begun_before_a_crash_is_finished_and_names_and_namespaces_that_fail_are_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = "[discovery]\nnamespace = 'nowhere'\n[[discovery.rule]]\nname = 'taken'";
    let site = Site::new(folder.path(), rules).await;
    let all = Api::<BareMetalHost>::namespaced(site.client.clone(), "default");
    all.create(&PostParams::default(), &BareMetalHost::new("taken", BareMetalHostSpec::default())).await.expect("made");
    site.visit(MAC, inventory("", MAC)).await;
    let host = all.get("taken-020000000001").await.expect("another name");
    let warned = site.events("DiscoveryRule").await;
    assert!(warned.iter().any(|event| event.message.as_deref().is_some_and(|text| text.contains("nowhere"))));
    // As if the process had ended after the first write.
    let data = Api::<HardwareData>::namespaced(site.client.clone(), "default");
    let again = MacAddress([2, 0, 0, 0, 0, 7]);
    let token = site.tokens.mint_visit(again, None).expect("a token");
    let nonce = site.tokens.verify_visit(&token).expect("good").nonce_hex();
    let mut begun = BareMetalHost::new("begun", host.spec.clone());
    begun.spec.boot_mac_address = Some(again.to_string());
    begun.annotations_mut().insert(ANNOTATION_VISIT.into(), nonce);
    let (_, session) = site.open(NODE, &token, again).await;
    all.create(&PostParams::default(), &begun).await.expect("made");
    let bearer = session["session"].as_str().expect("a session");
    let outcome = json!({ "step": "0.1", "succeeded": true, "message": "", "inventory": inventory("", again) });
    assert_eq!(site.call(NODE, bearer, "POST", "result", outcome).await.0, 204);
    assert!(data.get("begun").await.is_ok() && site.hosts().await.len() == 3);
}

#[tokio::test]
async fn the_limit_holds_for_visits_that_began_before_it_was_reached_and_for_hosts_that_a_rule_accepts() {
    let rule = "[[discovery.rule]]\naccept = true\ncredentials_name = 'bmc'";
    for (rules, waits) in [("", true), (rule, false)] {
        let folder = tempfile::tempdir().expect("a folder");
        let site = Site::new(folder.path(), &format!("[discovery]\nlimit = 2\n{rules}")).await;
        let mac = |last| MacAddress([2, 0, 0, 0, 1, last]);
        let mut visits = Vec::new();
        for last in 0..6 {
            let token = site.tokens.mint_visit(mac(last), None).expect("a token");
            let (status, session) = site.open(NODE, &token, mac(last)).await;
            assert_eq!(status, 200, "{session}");
            visits.push((last, session["session"].as_str().expect("a session").to_owned()));
        }
        let mut answers = Vec::new();
        for (last, bearer) in &visits {
            let inventory = json!({ "nics": [{ "mac": mac(*last) }] });
            let outcome = json!({ "step": "0.1", "succeeded": true, "message": "", "inventory": inventory,
                "bmc": { "address": format!("10.1.0.{last}"), "ipmi": true } });
            let (status, answer) = site.call(NODE, bearer, "POST", "result", outcome).await;
            let limited = answer["reason"].as_str().is_some_and(|reason| reason.contains("discovery.limit"));
            assert_eq!(limited, status == 401, "{answer}");
            answers.push(status);
        }
        assert_eq!(answers, [204, 204, 401, 401, 401, 401], "{rules}");
        let hosts = site.hosts().await;
        assert_eq!(hosts.len(), 2);
        assert!(hosts.iter().all(|host| host.annotations().contains_key(ANNOTATION_DISCOVERED) == waits));
        let full = || site.index.unknown_machine(mac(9), true) == UnknownMachine::TooMany(2);
        site.until("the limit to be known", full).await;
        // Once one is inspected there is room again.
        let all = Api::<BareMetalHost>::namespaced(site.client.clone(), "default");
        let name = hosts[0].name_any();
        let accepted = json!({ "metadata": { "annotations": { ANNOTATION_DISCOVERED: null } } });
        all.patch(&name, &PatchParams::default(), &Patch::Merge(accepted)).await.expect("accepted");
        let inspected = json!({ "status": { "provisioning": { "state": "available", "ID": "1" } } });
        all.patch_status(&name, &PatchParams::default(), &Patch::Merge(inspected)).await.expect("inspected");
        site.until("room", || !full()).await;
        let (last, bearer) = &visits[2];
        let outcome = json!({ "step": "0.1", "succeeded": true, "message": "",
            "inventory": { "nics": [{ "mac": mac(*last) }] } });
        assert_eq!(site.call(NODE, bearer, "POST", "result", outcome).await.0, 204);
        assert_eq!(site.hosts().await.len(), 3);
    }
}

#[tokio::test]
async fn hardware_that_somebody_wrote_into_a_host_keeps_no_machine_from_being_discovered() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::new(folder.path(), "").await;
    let all = Api::<BareMetalHost>::namespaced(site.client.clone(), "default");
    // As the annotation with hardware leaves it, and with a visit that never was.
    let mut claims = BareMetalHost::new("claims-all", BareMetalHostSpec::default());
    claims.annotations_mut().insert(ANNOTATION_VISIT.into(), "00".into());
    let made = all.create(&PostParams::default(), &claims).await.expect("made");
    let nics: Vec<_> = (0..200).map(|last| json!({ "mac": MacAddress([2, 0, 0, 0, 0, last]) })).collect();
    let vendor = inventory("S1", MAC)["systemVendor"].clone();
    let hardware = |id: &str| {
        json!({ "status": { "hardware": { "nics": nics, "systemVendor": vendor },
        "provisioning": { "state": "unmanaged", "ID": id } } })
    };
    let patch = Patch::Merge(hardware(""));
    all.patch_status("claims-all", &PatchParams::default(), &patch).await.expect("patched");
    site.until("it is known", || site.index.by_name("default", "claims-all").is_some()).await;
    site.visit(MAC, inventory("S1", MAC)).await;
    assert_eq!(site.hosts().await.len(), 2);
    assert!(site.events("DiscoveredAgain").await.is_empty());
    // Of one that its BMC let in it is its machine's.
    let patch = Patch::Merge(hardware(&made.metadata.uid.expect("a UID")));
    all.patch_status("claims-all", &PatchParams::default(), &patch).await.expect("patched");
    let card = MacAddress([2, 0, 0, 0, 0, 77]);
    site.until("its cards are known", || site.index.unknown_machine(card, true) == UnknownMachine::Ignored).await;
}

/// Who hangs up as soon as the report is sent lets the next one in before the first is there.
#[tokio::test]
async fn the_limit_holds_for_reports_that_are_given_up_and_what_is_written_elsewhere_does_not_count() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = Site::new(folder.path(), "[discovery]\nlimit = 2").await;
    let mac = |last| MacAddress([2, 0, 0, 0, 1, last]);
    let namespace = json!({ "metadata": { "name": "elsewhere" } });
    let namespace = serde_json::from_value(namespace).expect("a namespace");
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(site.client.clone());
    namespaces.create(&PostParams::default(), &namespace).await.expect("made");
    let elsewhere = Api::<BareMetalHost>::namespaced(site.client.clone(), "elsewhere");
    for number in 0..4 {
        let mut written = BareMetalHost::new(&format!("w{number}"), BareMetalHostSpec::default());
        written.annotations_mut().insert(ANNOTATION_DISCOVERED.into(), "pending".into());
        elsewhere.create(&PostParams::default(), &written).await.expect("made");
    }
    let known = || (0..4).all(|number| site.index.by_name("elsewhere", &format!("w{number}")).is_some());
    site.until("what was written is known", known).await;
    let mut visits = Vec::new();
    for last in 0..8 {
        let token = site.tokens.mint_visit(mac(last), None).expect("a token");
        let (status, session) = site.open(NODE, &token, mac(last)).await;
        assert_eq!(status, 200, "{session}");
        visits.push((last, session["session"].as_str().expect("a session").to_owned()));
    }
    for (last, bearer) in &visits {
        let outcome = json!({ "step": "0.1", "succeeded": true, "message": "",
            "inventory": { "nics": [{ "mac": mac(*last) }] } });
        let mut call = Box::pin(site.call(NODE, bearer, "POST", "result", outcome));
        // Some way into it.
        for _ in 0..2 * last {
            if futures::poll!(&mut call).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    // The next one is judged after all of them.
    let token = site.tokens.mint_visit(mac(9), None).expect("a token");
    let (status, session) = site.open(NODE, &token, mac(9)).await;
    if status == 200 {
        let bearer = session["session"].as_str().expect("a session");
        let outcome = json!({ "step": "0.1", "succeeded": true, "message": "",
            "inventory": { "nics": [{ "mac": mac(9) }] } });
        site.call(NODE, bearer, "POST", "result", outcome).await;
    }
    let discovered = site.hosts().await.into_iter().filter(|host| host.namespace().as_deref() == Some("default"));
    let discovered: Vec<_> = discovered.map(|host| host.name_any()).collect();
    assert!(!discovered.is_empty() && discovered.len() <= 2, "{discovered:?}");
}
