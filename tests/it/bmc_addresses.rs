//! Where the appliance takes a BMC's password, when whoever writes a host chooses the address: not to the box itself.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use slipway::api::metal3::BareMetalHost;
use slipway::bmc::address::Privilege;
use slipway::bmc::sim::{Account, RedfishOptions, RedfishSim, SimulatedMachine as Machine, SimulatedProfile};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::process::{Appliance, until};
use crate::trap::Trap;

/// A failed host is tried again soon.
const QUICK: &str = "[host]\nretry = \"1s\"\n";

async fn put(client: &Client, name: &str, address: &str) -> Result<BareMetalHost, kube::Error> {
    let mac = format!("52:54:00:00:{:02x}:{:02x}", rand::random::<u8>(), rand::random::<u8>());
    let host = json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": name, "namespace": "default"},
        "spec": {"online": false, "bootMACAddress": mac, "inspectionMode": "disabled",
                 "bmc": {"address": address, "credentialsName": "bmc"}},
    });
    let hosts: Api<BareMetalHost> = Api::default_namespaced(client.clone());
    hosts.create(&PostParams::default(), &serde_json::from_value(host).unwrap()).await
}

async fn secret(client: &Client) {
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let text = json!({"metadata": {"name": "bmc"}, "stringData": {"username": "admin", "password": "secret"}});
    secrets.create(&PostParams::default(), &serde_json::from_value(text).unwrap()).await.unwrap();
}

/// The host's status, once it has an error or a state behind registering.
async fn judged(client: &Client, name: &str) -> Value {
    let hosts: Api<BareMetalHost> = Api::default_namespaced(client.clone());
    until(&format!("{name} is registered, or not"), async || {
        let status = serde_json::to_value(hosts.get(name).await.ok()?.status?).unwrap();
        let state = status["provisioning"]["state"].as_str().unwrap_or_default();
        let over = !matches!(state, "" | "unmanaged" | "registering") || status["errorMessage"] != "";
        over.then_some(status)
    })
    .await
}

#[tokio::test]
async fn a_host_cannot_send_the_appliance_to_itself() {
    slipway::appliance::install_tls_provider();
    // A port for each host: one BMC is one host's.
    let mut traps = Vec::new();
    let mut port = |ip: IpAddr| {
        let trap = Trap::new(ip);
        let port = trap.port;
        traps.push(trap);
        port
    };
    let local = IpAddr::from([127, 0, 0, 1]);
    let loopback = "127.0.0.1 is a loopback address";
    let mut literal = vec![
        (format!("ipmi://127.0.0.1:{}", port(local)), loopback),
        (format!("redfish+http://127.0.0.1:{}/redfish/v1/Systems/1", port(local)), loopback),
        (format!("redfish://127.0.0.1:{}", port(local)), loopback),
        (format!("ipmi://[::ffff:127.0.0.1]:{}", port(local)), loopback),
        (format!("redfish+http://[::ffff:7f00:1]:{}", port(local)), loopback),
        (format!("redfish+http://0.0.0.0:{}", port(local)), "0.0.0.0 is an unspecified address"),
        ("redfish+http://169.254.169.254".to_owned(), "169.254.169.254 is a link-local address"),
        ("ipmi://224.0.0.1".to_owned(), "224.0.0.1 is a multicast address"),
    ];
    // An address that this box has besides loopback, if it has one.
    let own = slipway::outbound::own_addresses().unwrap().iter().copied().find(|ip| ip.is_ipv4() && !ip.is_loopback());
    if let Some(own) = own {
        let reason = "is an address of the appliance itself";
        literal.push((format!("idrac-redfish+http://{own}:{}", port(own)), reason));
    }
    let named =
        [format!("ipmi://localhost:{}", port(local)), format!("redfish-virtualmedia+http://localhost:{}", port(local))];
    let visitors = || traps.iter().flat_map(Trap::visitors).collect::<Vec<_>>();

    // While the configuration lets them, they can be written …
    let mut appliance = Appliance::with(&format!("{QUICK}[bmc]\nallow = [\"0.0.0.0/0\", \"::/0\"]\n")).await;
    let client = appliance.client().await;
    secret(&client).await;
    for (index, (address, _)) in literal.iter().enumerate() {
        let written = put(&client, &format!("old-{index}"), address).await;
        written.unwrap_or_else(|error| panic!("{address}: {error}"));
    }
    until("the appliance comes, where it may", async || (!visitors().is_empty()).then_some(())).await;
    appliance.restart_with(QUICK).await;
    while !visitors().is_empty() {}

    // … and when it does not, nobody goes there: neither for those that are there, nor for new ones.
    let client = appliance.client().await;
    for (index, (address, reason)) in literal.iter().enumerate() {
        let error = put(&client, &format!("new-{index}"), address).await.expect_err(address).to_string();
        assert!(error.contains(reason) && error.contains("bmc.allow"), "{address}: {error}");
    }
    for (index, address) in named.iter().enumerate() {
        put(&client, &format!("named-{index}"), address).await.unwrap();
    }
    let hosts: Api<BareMetalHost> = Api::default_namespaced(client.clone());
    let all = (0..literal.len()).map(|index| (format!("old-{index}"), literal[index].1));
    for (name, reason) in all.chain((0..named.len()).map(|index| (format!("named-{index}"), "is a loopback address"))) {
        let message = until(&format!("{name} says why"), async || {
            let status = serde_json::to_value(hosts.get(&name).await.ok()?.status?).unwrap();
            let message = status["errorMessage"].as_str()?.to_owned();
            (message.contains("bmc.allow")).then_some(message)
        })
        .await;
        assert!(message.contains(reason), "{name}: {message}");
    }
    assert_eq!(visitors(), Vec::<String>::new());

    // A host that is there can still be changed and deleted; only another such address is refused.
    let patch = |value: Value| Patch::Merge(value);
    let change = patch(json!({"metadata": {"labels": {"a": "b"}}}));
    hosts.patch("old-0", &PatchParams::default(), &change).await.unwrap();
    let change = patch(json!({"spec": {"bmc": {"address": "ipmi://127.0.0.2"}}}));
    let error = hosts.patch("old-0", &PatchParams::default(), &change).await.unwrap_err().to_string();
    assert!(error.contains("127.0.0.2 is a loopback address"), "{error}");
}

#[tokio::test]
async fn what_the_configuration_names_is_driven() {
    slipway::appliance::install_tls_provider();
    let account = Account { username: "admin".into(), password: "secret".into(), privilege: Privilege::Administrator };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let service =
        RedfishSim::new(vec![Arc::new(Machine::new(SimulatedProfile::default()))], account, RedfishOptions::default());
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(service.run(listener, None, stop));
    let appliance = Appliance::with(&format!("[bmc]\nallow = [\"{address}\"]\n")).await;
    let client = appliance.client().await;
    secret(&client).await;
    put(&client, "good", &format!("redfish+http://{address}")).await.unwrap();
    let status = judged(&client, "good").await;
    assert_eq!(status["errorMessage"], "", "{status}");
    // The port beside it is not.
    let beside = format!("redfish+http://{}:{}", address.ip(), address.port().wrapping_add(1).max(1));
    let error = put(&client, "beside", &beside).await.unwrap_err().to_string();
    assert!(error.contains("bmc.allow"), "{error}");
}
