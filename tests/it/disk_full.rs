//! The appliance as a process whose disk becomes full while a machine is on its way.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use slipway::api::metal3::{BareMetalHost, ProvisioningState};
use slipway::api::slipway::BootIntent;
use slipway::bmc::address::Privilege;
use slipway::bmc::ipmi::suite::CipherSuite;
use slipway::bmc::sim::{Account, IpmiSim, SimulatedMachine as Machine, SimulatedProfile};
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

use crate::process::{Appliance, until};

#[tokio::test]
async fn a_full_disk_ends_the_appliance_with_its_reason_and_costs_its_hosts_nothing() {
    let machine = Arc::new(Machine::new(SimulatedProfile::default()));
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = format!("ipmi://{}", socket.local_addr().unwrap());
    let account =
        Account { username: "admin".into(), password: "secret".to_owned().into(), privilege: Privilege::Administrator };
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(IpmiSim::new(machine.clone(), vec![account], &[CipherSuite::Sha256]).run(socket, stop));

    let mut appliance = Appliance::with("[bmc]\nallow = [\"127.0.0.1\"]\n").await;
    let client = appliance.client().await;
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "bmc" },
        "stringData": { "username": "admin", "password": "secret" } });
    let secrets = Api::<Secret>::default_namespaced(client.clone());
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let host = json!({ "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": { "name": "h" },
        "spec": { "online": true, "bootMACAddress": "02:00:00:00:00:01",
            "bmc": { "address": address, "credentialsName": "bmc" } } });
    let host: BareMetalHost = serde_json::from_value(host).unwrap();
    let hosts = Api::<BareMetalHost>::default_namespaced(client.clone());
    hosts.create(&PostParams::default(), &host).await.unwrap();
    let intents = Api::<BootIntent>::default_namespaced(client.clone());
    until("the machine starts", async || {
        let intent = intents.get_opt("h").await.unwrap();
        (machine.is_on() && intent.is_some_and(|intent| intent.spec.started.is_some())).then_some(())
    })
    .await;
    let before = hosts.get("h").await.unwrap();

    appliance.restart_full(1 << 20).await;
    let maps = Api::<ConfigMap>::default_namespaced(appliance.client().await);
    let mut refused = None;
    for number in 0..1000 {
        // Random, so that it cannot be kept in less room.
        let bytes: Vec<u8> = (0..50_000).map(|_| rand::random()).collect();
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("fill-{number}") },
            "data": { "text": format!("{bytes:02x?}") } });
        if let Err(error) = maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await {
            refused = Some(error.to_string());
            break;
        }
    }
    let refused = refused.expect("the disk is full");
    assert!(!appliance.ended().await, "a supervisor starts it again");
    let log = appliance.log();
    assert!(log.contains("the store cannot write any more"), "{refused}\n{log}");
    assert_eq!((machine.is_on(), machine.boots().len()), (true, 1), "the machine runs on");

    appliance.start_again();
    let hosts = Api::<BareMetalHost>::default_namespaced(appliance.client().await);
    let after = hosts.get("h").await.unwrap();
    assert_eq!(after.metadata.uid, before.metadata.uid);
    let status = after.status.unwrap_or_default();
    assert_eq!((status.provisioning.state, status.error_type), (ProvisioningState::Inspecting, None));
    hosts.delete("h", &DeleteParams::default()).await.unwrap();
    until("it goes on to its end", async || hosts.get_opt("h").await.unwrap().is_none().then_some(())).await;
    assert_eq!((machine.is_on(), machine.boots().len()), (false, 1));
}
