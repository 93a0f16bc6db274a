//! A host's machine beside the appliance, on loopback: a simulated BMC, and an address that the appliance leased to it.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode, OptionCode, UnknownOption};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, PostParams};
use serde_json::json;
use slipway::api::MacAddress;
use slipway::api::metal3::BareMetalHost;
use slipway::bmc::address::Privilege;
use slipway::bmc::sim::{Account, RedfishOptions, RedfishSim, SimulatedMachine as Simulated, SimulatedProfile};
use tokio::net::{TcpListener, UdpSocket};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::process::{Appliance, free_port, until};

/// The network card.
pub const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x20]);
/// The address that DHCP has for it, the only one of its pool.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 20);
/// The relay through which it asks: loopback has no broadcasts.
const RELAY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 200);
const SERVER: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// An appliance that gives addresses on loopback, and a host on it that is about to be inspected.
pub struct Machine {
    dhcp: u16,
    _bmc: DropGuard,
}

/// The part of the appliance's configuration for it.
pub fn settings(dhcp: u16) -> String {
    format!(
        "[bmc]\nallow = [\"127.0.0.0/8\"]\n[dhcp]\nport = {dhcp}\n[[network]]\nname = \"lo\"\ninterface = \"lo\"\n\
         subnet = \"127.0.0.0/24\"\nserver = \"{SERVER}\"\npool = [\"{ADDRESS}-{ADDRESS}\"]\ncheck_cards = false\n"
    )
}

impl Machine {
    /// Starts an appliance with limits of its process, as sh's `ulimit` takes them; then the machine's host is made, and
    /// DHCP gives it its address.
    pub async fn beside(ulimit: &str) -> (Appliance, Self) {
        let dhcp = free_port();
        let appliance = Appliance::limited_with(ulimit, &settings(dhcp)).await;
        // What its boot script names.
        std::fs::create_dir_all(appliance.data().join("boot")).unwrap();
        for name in ["vmlinuz", "initrd", "ramdisk.json"] {
            std::fs::write(appliance.data().join("boot").join(name), "no secret").unwrap();
        }
        let client = appliance.client().await;
        let listener = TcpListener::bind((SERVER, 0)).await.unwrap();
        let bmc: SocketAddr = listener.local_addr().unwrap();
        let account =
            Account { username: "admin".into(), password: "secret".into(), privilege: Privilege::Administrator };
        let simulated = Arc::new(Simulated::new(SimulatedProfile::default()));
        let service = RedfishSim::new(vec![simulated], account, RedfishOptions::default());
        let stop = CancellationToken::new();
        tokio::spawn(service.run(listener, None, stop.clone()));
        let secrets: Api<Secret> = Api::default_namespaced(client.clone());
        let text = json!({"metadata": {"name": "bmc"}, "stringData": {"username": "admin", "password": "secret"}});
        secrets.create(&PostParams::default(), &serde_json::from_value(text).unwrap()).await.unwrap();
        let host = json!({
            "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": "known", "namespace": "default"},
            "spec": {"online": true, "bootMACAddress": MAC,
                     "bmc": {"address": format!("redfish+http://{bmc}"), "credentialsName": "bmc"}},
        });
        let hosts: Api<BareMetalHost> = Api::default_namespaced(client);
        hosts.create(&PostParams::default(), &serde_json::from_value(host).unwrap()).await.unwrap();
        let machine = Self { dhcp, _bmc: stop.drop_guard() };
        let leased = until("DHCP gives an address", async || machine.lease().await).await;
        assert_eq!(leased, ADDRESS);
        (appliance, machine)
    }

    async fn lease(&self) -> Option<Ipv4Addr> {
        lease(self.dhcp, MAC).await
    }

    /// The token in its boot script, once there is one.
    pub async fn token(&self, appliance: &Appliance) -> String {
        let http = reqwest::Client::builder().no_proxy().local_address(std::net::IpAddr::V4(ADDRESS)).build().unwrap();
        let url = format!("http://{}/boot/ipxe?mac={}&uuid=&arch=7", appliance.boot, MAC.hyphenated());
        until("a boot script with a token", async || {
            let script = http.get(&url).send().await.ok()?.text().await.ok()?;
            script.split("slipway.token=").nth(1)?.split_whitespace().next().map(str::to_owned)
        })
        .await
    }

    /// What an agent sends to open its session.
    pub fn hello(token: &str) -> String {
        json!({ "token": token, "version": "0", "macAddresses": [MAC], "uuid": "", "uefi": true }).to_string()
    }
}

/// DISCOVER, OFFER, REQUEST, ACK (RFC 2131, 3.1), by the DHCP server on this port of loopback.
pub async fn lease(dhcp: u16, mac: MacAddress) -> Option<Ipv4Addr> {
    lease_in(Wire { dhcp, server: SERVER, relay: RELAY }, mac).await
}

/// A network of the appliance on loopback, where machines are asked for through a relay.
#[derive(Clone, Copy)]
pub struct Wire {
    /// UDP port of DHCP.
    pub dhcp: u16,
    /// The appliance's address there.
    pub server: Ipv4Addr,
    /// The relay's.
    pub relay: Ipv4Addr,
}

impl Wire {
    async fn socket(self) -> UdpSocket {
        let socket = UdpSocket::bind((self.relay, 0)).await.unwrap();
        socket.connect(SocketAddrV4::new(self.server, self.dhcp)).await.unwrap();
        socket
    }
}

/// As [`lease`], on any network.
pub async fn lease_in(wire: Wire, mac: MacAddress) -> Option<Ipv4Addr> {
    let socket = wire.socket().await;
    let offer = ask(&socket, wire.relay, mac, MessageType::Discover, vec![]).await?;
    let chosen = vec![DhcpOption::RequestedIpAddress(offer.yiaddr()), DhcpOption::ServerIdentifier(wire.server)];
    let answer = ask(&socket, wire.relay, mac, MessageType::Request, chosen).await?;
    (answer.opts().msg_type() == Some(MessageType::Ack)).then(|| answer.yiaddr())
}

/// What a machine is offered that is iPXE.
pub async fn offer_to_ipxe(wire: Wire, mac: MacAddress) -> Option<Message> {
    let ipxe = vec![
        DhcpOption::ClassIdentifier(b"PXEClient:Arch:00007:UNDI:003010".to_vec()),
        DhcpOption::UserClass(b"iPXE".to_vec()),
    ];
    ask(&wire.socket().await, wire.relay, mac, MessageType::Discover, ipxe).await
}

/// What a machine is answered that asks for an address that it has (INIT-REBOOT, RFC 2131, 3.2).
pub async fn asks_again(wire: Wire, mac: MacAddress, address: Ipv4Addr) -> Option<MessageType> {
    let asks = vec![DhcpOption::RequestedIpAddress(address)];
    ask(&wire.socket().await, wire.relay, mac, MessageType::Request, asks).await?.opts().msg_type()
}

/// A machine tells everybody that it takes the offer of another server, which nobody answers here.
pub async fn choose(dhcp: u16, mac: MacAddress, server: Ipv4Addr) {
    let socket = UdpSocket::bind((RELAY, 0)).await.unwrap();
    socket.connect(SocketAddrV4::new(SERVER, dhcp)).await.unwrap();
    let chosen =
        vec![DhcpOption::RequestedIpAddress(Ipv4Addr::new(127, 0, 0, 99)), DhcpOption::ServerIdentifier(server)];
    let answer = ask(&socket, RELAY, mac, MessageType::Request, chosen).await;
    assert!(answer.is_none(), "{answer:?}");
}

async fn ask(
    socket: &UdpSocket,
    relay: Ipv4Addr,
    mac: MacAddress,
    kind: MessageType,
    more: Vec<DhcpOption>,
) -> Option<Message> {
    let none = Ipv4Addr::UNSPECIFIED;
    let xid = rand::random();
    let mut message = Message::new_with_id(xid, none, none, none, relay, &mac.0);
    message.set_opcode(Opcode::BootRequest).set_hops(1);
    let options = message.opts_mut();
    options.insert(DhcpOption::MessageType(kind));
    for option in more {
        options.insert(option);
    }
    // "Answer the port that this came from" (RFC 8357), since no other program's port 67 is wanted here.
    let data = UnknownOption::new(OptionCode::from(82), vec![19, 0]);
    options.insert(DhcpOption::Unknown(data));
    let mut bytes = Vec::new();
    message.encode(&mut Encoder::new(&mut bytes)).unwrap();
    socket.send(&bytes).await.ok()?;
    let mut buffer = [0; 1500];
    loop {
        let length = timeout(Duration::from_secs(10), socket.recv(&mut buffer)).await.ok()?.ok()?;
        let answer = Message::decode(&mut Decoder::new(&buffer[..length])).ok()?;
        if answer.xid() == xid {
            return Some(answer);
        }
    }
}
