//! Which machine has which address: leases that are selected, and hosts that show what their machines have.

use std::net::Ipv4Addr;

use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use slipway::api::MacAddress;
use slipway::api::metal3::BareMetalHost;
use slipway::api::slipway::{DHCPLease, Network, Reservation, ReservationSpec};

use crate::process::machine::{self, ADDRESS, MAC, Machine};
use crate::process::{Appliance, free_port, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_found_by_what_it_says_and_its_host_shows_the_address() {
    slipway::appliance::install_tls_provider();
    let (mut appliance, _machine) = Machine::beside("ulimit -n 4096").await;
    for _ in 0..2 {
        let client = appliance.client().await;
        let leases: Api<DHCPLease> = Api::all(client.clone());
        let find = async |fields: &str, labels: &str| {
            let selected = ListParams::default().fields(fields).labels(labels);
            leases.list(&selected).await.unwrap().items
        };
        until("the lease of the host is shown", async || {
            find("spec.host=default/known,spec.state=bound", "").await.pop()
        })
        .await;
        for (fields, labels, found) in [
            (&*format!("spec.macAddress={MAC}"), "", true),
            ("spec.macAddress=02:00:00:00:00:21", "", false),
            (&*format!("spec.address={ADDRESS},spec.network=lo"), "", true),
            ("spec.network!=lo", "", false),
            ("spec.hostname=", "", true),
            ("", "slipway.dev/host=known,slipway.dev/host-namespace=default,slipway.dev/network=lo", true),
            ("", "slipway.dev/host=unknown", false),
        ] {
            let names: Vec<_> = find(fields, labels).await.into_iter().map(|lease| lease.spec.address).collect();
            assert_eq!(names, if found { vec![ADDRESS.to_string()] } else { vec![] }, "{fields} {labels}");
        }
        let hosts: Api<BareMetalHost> = Api::default_namespaced(client);
        let shown = until("the host shows its address", async || {
            let status = hosts.get("known").await.unwrap().status?;
            status.addresses.first().cloned()
        })
        .await;
        let shown = (shown.address, shown.mac_address, shown.network);
        assert_eq!(shown, (ADDRESS.to_string(), MAC.to_string(), "lo".to_owned()));
        for (arguments, wanted) in [
            (&["get", "hosts"][..], "ADDRESS"),
            (&["get", "hosts"], "127.0.0.20"),
            (&["get", "bmh", "-o", "wide"], "127.0.0.20"),
            (&["describe", "host", "known"], "127.0.0.20 (02:00:00:00:00:20, network lo)"),
        ] {
            let output = appliance.slipway(arguments).await;
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains(wanted), "{arguments:?}: {text}");
        }
        // Leases outlive the process, and so does what is shown of them.
        appliance.restart(false).await;
    }
}

fn mac(last: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, last])
}

fn at(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, last)
}

fn reservation(name: &str, mac: MacAddress, address: &str) -> Reservation {
    let spec = ReservationSpec { mac_address: mac.to_string(), address: address.into(), hostname: None };
    Reservation::new(name, spec)
}

/// Waits until the object says this, of the spec that it has; the message.
async fn says(api: &Api<Reservation>, name: &str, ready: &str, reason: &str) -> String {
    until(&format!("{name} is {ready}, {reason}"), async || {
        let object = api.get_opt(name).await.unwrap()?;
        let condition = object.status?.conditions.pop()?;
        let current = condition.observed_generation == object.metadata.generation;
        (current && condition.type_ == "Ready" && condition.status == ready && condition.reason == reason)
            .then_some(condition.message)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_comes_changes_and_goes_while_the_appliance_serves() {
    slipway::appliance::install_tls_provider();
    let dhcp = free_port();
    let fixed = "[[network.reservation]]\nmac = \"02:00:00:00:00:77\"\naddress = \"127.0.0.77\"\n";
    let mut appliance = Appliance::with(&(machine::settings(dhcp) + fixed)).await;
    let api: Api<Reservation> = Api::all(appliance.client().await);

    // That of the file is there, and is changed there.
    let of_file = "slipway.toml-127.0.0.77";
    says(&api, of_file, "True", "InConfiguration").await;
    let other = Patch::Merge(json!({"spec": {"address": "127.0.0.78"}}));
    let created = reservation("slipway.toml-127.0.0.79", mac(9), "127.0.0.79");
    for refused in [
        api.patch(of_file, &PatchParams::default(), &other).await.map(drop),
        api.delete(of_file, &DeleteParams::default()).await.map(drop),
        api.create(&PostParams::default(), &created).await.map(drop),
    ] {
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("slipway.toml: change it there"), "{message}");
    }

    // One that is made is in force at once.
    let make = async |name: &str, mac, address: &str| {
        api.create(&PostParams::default(), &reservation(name, mac, address)).await.unwrap();
    };
    make("a", mac(0x30), "127.0.0.30").await;
    says(&api, "a", "True", "InForce").await;
    assert_eq!(machine::lease(dhcp, mac(0x30)).await, Some(at(30)));

    // What is wrong with one is said there, and changes nothing of the others.
    assert_eq!(machine::lease(dhcp, mac(0x40)).await, Some(ADDRESS));
    for (name, card, address, reason) in [
        ("outside", mac(0x50), "10.9.9.9", "NoNetwork"),
        ("twice", mac(0x30), "127.0.0.51", "DuplicateMACAddress"),
        ("taken", mac(0x51), "127.0.0.30", "DuplicateAddress"),
        ("of-the-file", mac(0x52), "127.0.0.77", "DuplicateAddress"),
        ("server", mac(0x53), "127.0.0.1", "AddressTaken"),
        ("broadcast", mac(0x54), "127.0.0.255", "AddressTaken"),
        ("none", mac(0x55), "127.0.0.999", "InvalidAddress"),
        ("leased", mac(0x56), "127.0.0.20", "AddressInUse"),
    ] {
        make(name, card, address).await;
        let message = says(&api, name, "False", reason).await;
        assert!(!message.is_empty(), "{name}");
    }
    assert_eq!(machine::lease(dhcp, mac(0x30)).await, Some(at(30)));
    api.delete("leased", &DeleteParams::default()).await.unwrap();

    // A changed one counts as it is now, also after a crash.
    let changed = Patch::Merge(json!({"spec": {"address": "127.0.0.31"}}));
    api.patch("a", &PatchParams::default(), &changed).await.unwrap();
    says(&api, "a", "True", "InForce").await;
    assert_eq!(machine::lease(dhcp, mac(0x30)).await, Some(at(31)));
    says(&api, "taken", "True", "InForce").await;
    assert_eq!(machine::lease(dhcp, mac(0x51)).await, Some(at(30)));
    appliance.restart(true).await;
    let api: Api<Reservation> = Api::all(appliance.client().await);
    let leased = until("DHCP serves again", async || machine::lease(dhcp, mac(0x30)).await).await;
    assert_eq!(leased, at(31));

    // One that is gone reserves nothing, and the one that it stood in the way of is in force.
    api.delete("a", &DeleteParams::default()).await.unwrap();
    says(&api, "twice", "True", "InForce").await;
    assert_eq!(machine::lease(dhcp, mac(0x30)).await, Some(at(51)));
    api.delete("twice", &DeleteParams::default()).await.unwrap();
    // The pool has no address left for its machine.
    until("the reservation is gone", async || machine::lease(dhcp, mac(0x30)).await.is_none().then_some(())).await;
    assert_eq!(machine::lease(dhcp, mac(0x40)).await, Some(ADDRESS));

    // A file without it shows it no more.
    appliance.restart_with(&machine::settings(dhcp)).await;
    let api: Api<Reservation> = Api::all(appliance.client().await);
    until("that of the file is gone", async || api.get_opt(of_file).await.unwrap().is_none().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_shows_how_it_is_served_and_that_machines_chose_another_server() {
    slipway::appliance::install_tls_provider();
    let dhcp = free_port();
    let appliance = Appliance::with(&machine::settings(dhcp)).await;
    let networks: Api<Network> = Api::all(appliance.client().await);
    let said = async |kind: &str, wanted: &str| {
        until(&format!("{kind} is {wanted}"), async || {
            let network = networks.get_opt("lo").await.unwrap()?;
            let mut conditions = network.status.clone()?.conditions.into_iter();
            let condition = conditions.find(|one| one.type_ == kind && one.status == wanted)?;
            Some((network, condition.message))
        })
        .await
    };
    let (network, _) = said("OnlyServer", "True").await;
    let spec = &network.spec;
    assert_eq!(
        (spec.subnet.as_str(), spec.mode.as_str(), spec.server.as_deref(), &*spec.pool),
        ("127.0.0.0/24", "authoritative", Some("127.0.0.1"), &["127.0.0.20-127.0.0.20".to_owned()][..])
    );
    assert_eq!(network.status.and_then(|status| status.pool_addresses), Some(1));
    let change = Patch::Merge(json!({"spec": {"mode": "off"}}));
    networks.patch("lo", &PatchParams::default(), &change).await.unwrap_err();

    let other = at(9);
    machine::choose(dhcp, mac(1), other).await;
    machine::choose(dhcp, mac(2), other).await;
    let (_, message) = said("OnlyServer", "False").await;
    assert!(message.contains("127.0.0.9"), "{message}");
    let log = appliance.log_with("another DHCP server answers here", 1).await;
    assert_eq!(log.matches("another DHCP server answers here").count(), 1, "{log}");
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let text = networks.clone().into_client().request_text(request).await.unwrap();
    assert!(text.contains("slipway_dhcp_other_servers{network=\"lo\"} 1"), "{text}");
}
