//! Networks that come, change and go over the API while the appliance serves.

use std::net::Ipv4Addr;

use dhcproto::v4::{DhcpOption, MessageType, OptionCode};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use slipway::api::MacAddress;
use slipway::api::slipway::{Network, Reservation};

use crate::process::machine::{self, ADDRESS, Wire, asks_again, lease_in, offer_to_ipxe};
use crate::process::{Appliance, free_port, until};

fn mac(last: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, last])
}

/// An address of the network that comes and goes.
fn at(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, last)
}

fn wire(dhcp: u16) -> Wire {
    Wire { dhcp, server: at(1), relay: at(200) }
}

/// A Network on loopback, as somebody writes it for kubectl.
fn network(name: &str, more: Value) -> Value {
    let mut spec = json!({
        "interface": "lo", "subnet": "127.0.1.0/24", "server": "127.0.1.1", "pool": ["127.0.1.100-127.0.1.110"],
        "checkCards": false, "discovery": true, "unknownLeaseSeconds": 600,
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    json!({"apiVersion": "slipway.dev/v1alpha1", "kind": "Network", "metadata": {"name": name}, "spec": spec})
}

struct Networks(Api<Network>);

impl Networks {
    async fn of(appliance: &Appliance) -> Self {
        Self(Api::all(appliance.client().await))
    }

    /// As `kubectl apply --server-side` does it.
    async fn apply(&self, name: &str, more: Value) -> Result<(), String> {
        let parameters = PatchParams::apply("kubectl").force();
        let applied = self.0.patch(name, &parameters, &Patch::Apply(network(name, more))).await;
        applied.map(drop).map_err(|error| error.to_string())
    }

    async fn delete(&self, name: &str) {
        self.0.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until the object says this, of the spec that it has; the message.
    async fn says(&self, name: &str, ready: &str, reason: &str) -> String {
        until(&format!("{name} is {ready}, {reason}"), async || {
            let object = self.0.get_opt(name).await.unwrap()?;
            let condition = object.status?.conditions.into_iter().find(|one| one.type_ == "Ready")?;
            let current = condition.observed_generation == object.metadata.generation;
            (current && condition.status == ready && condition.reason == reason).then_some(condition.message)
        })
        .await
    }

    /// Waits until the status says this of a number.
    async fn counts(&self, name: &str, wanted: impl Fn(&slipway::api::slipway::NetworkStatus) -> bool) {
        until(&format!("the numbers of {name}"), async || {
            let status = self.0.get_opt(name).await.unwrap()?.status?;
            wanted(&status).then_some(())
        })
        .await;
    }
}

async fn metrics(client: &Client) -> String {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    client.request_text(request).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_comes_changes_and_goes_while_the_appliance_serves() {
    slipway::appliance::install_tls_provider();
    let dhcp = free_port();
    let mut appliance = Appliance::with(&machine::settings(dhcp)).await;
    let networks = Networks::of(&appliance).await;
    for name in ["vmlinuz", "initrd", "ramdisk.json"] {
        std::fs::create_dir_all(appliance.data().join("boot")).unwrap();
        std::fs::write(appliance.data().join("boot").join(name), "no secret").unwrap();
    }

    // That of the file is there, and is changed there.
    networks.says("lo", "True", "Served").await;
    let change = Patch::Merge(json!({"spec": {"mode": "off"}}));
    for refused in [
        networks.0.patch("lo", &PatchParams::default(), &change).await.map(drop).map_err(|error| error.to_string()),
        networks.0.delete("lo", &DeleteParams::default()).await.map(drop).map_err(|error| error.to_string()),
        networks.apply("lo", json!({})).await,
    ] {
        let message = refused.unwrap_err();
        assert!(message.contains("slipway.toml: change it there") && message.contains("SIGHUP"), "{message}");
    }

    // What is wrong in itself is refused.
    for (more, wanted) in [
        (json!({"network": "x"}), "spec.network"),
        (json!({"subnet": "127.0.1.1/24"}), "write 127.0.1.0/24"),
        (json!({"router": "10.0.0.1"}), "router 10.0.0.1 is not a host address of 127.0.1.0/24"),
        (json!({"pool": ["127.0.2.1-127.0.2.9"]}), "pool address 127.0.2.1 is not a host address"),
        (json!({"pool": ["127.0.1.5-127.0.1.9", "127.0.1.9-127.0.1.12"]}), "overlap"),
        (json!({"mode": "on"}), "spec.mode"),
        (json!({"interface": "a-name-of-seventeen"}), "spec.interface"),
        (json!({"leaseSeconds": 1}), "spec.leaseSeconds"),
    ] {
        let message = networks.apply("wrong", more.clone()).await.unwrap_err();
        assert!(message.contains(wanted), "{more}: {message}");
    }

    // One that is made is served at once, to the boot script.
    let http = reqwest::Client::builder().no_proxy().local_address(std::net::IpAddr::V4(at(100))).build().unwrap();
    let url = format!("http://{}/boot/ipxe?mac={}&uuid=&arch=7", appliance.boot, mac(0x30).hyphenated());
    let script = async || http.get(&url).send().await.unwrap().text().await.unwrap();
    let before = script().await;
    assert!(!before.contains("slipway.token="), "{before}");
    networks.apply("rack", json!({})).await.unwrap();
    networks.says("rack", "True", "Served").await;
    assert_eq!(lease_in(wire(dhcp), mac(0x30)).await, Some(at(100)));
    let offer = offer_to_ipxe(wire(dhcp), mac(0x30)).await.expect("an offer");
    let file = format!("http://127.0.1.1:{}/boot/ipxe?mac={}&arch=uefi", appliance.boot.port(), mac(0x30).hyphenated());
    assert_eq!(offer.opts().get(OptionCode::BootfileName), Some(&DhcpOption::BootfileName(file.into_bytes())));
    assert_eq!((offer.siaddr(), offer.yiaddr()), (at(1), at(100)));
    let told = script().await;
    assert!(told.contains("slipway.token="), "{told}");
    let client = appliance.client().await;
    assert!(metrics(&client).await.contains("slipway_dhcp_pool_addresses{network=\"rack\"} 11"));
    let explained = appliance.slipway(&["debug", "dhcp", &mac(0x30).to_string()]).await;
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(explained.contains("network rack (127.0.1.0/24 on lo)"), "{explained}");

    // Reservations find it.
    let reservations: Api<Reservation> = Api::all(client.clone());
    let reservation = json!({
        "apiVersion": "slipway.dev/v1alpha1", "kind": "Reservation", "metadata": {"name": "r"},
        "spec": {"macAddress": mac(0x77), "address": "127.0.1.77"},
    });
    reservations.create(&Default::default(), &serde_json::from_value(reservation).unwrap()).await.unwrap();
    until("the reservation is given", async || (lease_in(wire(dhcp), mac(0x77)).await == Some(at(77))).then_some(()))
        .await;

    // What is wrong with another one is said there, and changes nothing of the others.
    for (name, more, reason, wanted) in [
        ("young", json!({"subnet": "127.0.1.128/25", "server": null, "pool": []}), "SubnetOverlap", "Network rack"),
        ("file", json!({"subnet": "127.0.0.0/25", "server": null, "pool": []}), "SubnetOverlap", "slipway.toml"),
        (
            "away",
            json!({"subnet": "10.99.0.0/24", "interface": "no0", "server": null, "pool": []}),
            "NoInterface",
            "no0",
        ),
    ] {
        networks.apply(name, more).await.unwrap();
        let message = networks.says(name, "False", reason).await;
        assert!(message.contains(wanted), "{name}: {message}");
    }
    networks.says("rack", "True", "Served").await;
    assert_eq!(lease_in(wire(dhcp), mac(0x30)).await, Some(at(100)));
    assert_eq!(machine::lease(dhcp, mac(0x40)).await, Some(ADDRESS));

    // A smaller pool renews nothing that is outside of it.
    networks.apply("rack", json!({"pool": ["127.0.1.105-127.0.1.110"]})).await.unwrap();
    networks.counts("rack", |status| (status.pool_addresses, status.not_renewed) == (Some(6), Some(1))).await;
    assert_eq!(asks_again(wire(dhcp), mac(0x30), at(100)).await, Some(MessageType::Nak));
    assert_eq!(lease_in(wire(dhcp), mac(0x30)).await, Some(at(105)));
    networks.counts("rack", |status| status.not_renewed.is_none()).await;

    // It is in force after a crash before anybody is answered.
    appliance.restart(true).await;
    let answered = until("DHCP serves again", async || asks_again(wire(dhcp), mac(0x30), at(105)).await).await;
    assert_eq!(answered, MessageType::Ack);
    let networks = Networks::of(&appliance).await;
    networks.says("rack", "True", "Served").await;

    // The one that it stood in the way of is in force once it has gone; the machine is told that it has its address no longer.
    networks.delete("rack").await;
    networks.says("young", "True", "Served").await;
    let young = Wire { server: Ipv4Addr::LOCALHOST, ..wire(dhcp) };
    assert_eq!(asks_again(young, mac(0x30), at(105)).await, Some(MessageType::Nak));
    let client = appliance.client().await;
    until("its metrics are gone", async || {
        let text = metrics(&client).await;
        (!text.contains("network=\"rack\"") && text.contains("network=\"young\"")).then_some(())
    })
    .await;
    assert!(networks.0.get_opt("rack").await.unwrap().is_none());
    networks.delete("young").await;
    let gone = networks.0.list(&Default::default()).await.unwrap();
    assert_eq!(gone.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["away", "file", "lo"]);
}

/// No socket is open for it before, and none after.
#[tokio::test(flavor = "multi_thread")]
async fn an_appliance_without_networks_in_its_file_serves_those_of_the_api() {
    slipway::appliance::install_tls_provider();
    let dhcp = free_port();
    let mut appliance = Appliance::with(&format!("[dhcp]\nport = {dhcp}\n")).await;
    let networks = Networks::of(&appliance).await;
    let free = || std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, dhcp)).is_ok();
    assert!(free());
    let squatter = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, dhcp)).unwrap();
    networks.apply("rack", json!({})).await.unwrap();
    let message = networks.says("rack", "False", "NotListening").await;
    assert!(message.contains("another DHCP server runs on this machine"), "{message}");
    drop(squatter);
    networks.says("rack", "True", "Served").await;
    assert_eq!(lease_in(wire(dhcp), mac(0x30)).await, Some(at(100)));
    assert!(!free());
    let text = metrics(&appliance.client().await).await;
    assert!(text.contains("slipway_dhcp_leases{network=\"rack\"} 1"), "{text}");

    // Deleted, it refuses who has an address still, and hears nobody else.
    networks.delete("rack").await;
    until("the machine is refused", async || {
        (asks_again(wire(dhcp), mac(0x30), at(100)).await == Some(MessageType::Nak)).then_some(())
    })
    .await;
    assert_eq!(lease_in(wire(dhcp), mac(0x31)).await, None);
    assert!(networks.0.get_opt("rack").await.unwrap().is_none(), "its end waits for nothing");

    // It returns, and so do its leases.
    networks.apply("rack", json!({})).await.unwrap();
    networks.says("rack", "True", "Served").await;
    assert_eq!(asks_again(wire(dhcp), mac(0x30), at(100)).await, Some(MessageType::Ack));
    // With the file's network of another name and the same subnet it is not in force any more, and says so.
    let settings = format!(
        "[dhcp]\nport = {dhcp}\n[[network]]\nname = \"file\"\ninterface = \"lo\"\nsubnet = \"127.0.1.0/24\"\n\
         server = \"127.0.1.1\"\npool = [\"127.0.1.100-127.0.1.110\"]\ncheck_cards = false\n"
    );
    appliance.restart_with(&settings).await;
    let networks = Networks::of(&appliance).await;
    let message = networks.says("rack", "False", "SubnetOverlap").await;
    assert!(message.contains("slipway.toml"), "{message}");
    let answered = until("DHCP serves again", async || asks_again(wire(dhcp), mac(0x30), at(100)).await).await;
    assert_eq!(answered, MessageType::Ack);
}
