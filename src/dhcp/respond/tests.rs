//! The server without sockets: whole exchanges, mode by mode.

mod boot;
mod pool;

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddrV4};

use dhcproto::v4::{Architecture, DhcpOption, Flags, Message, MessageType, OptionCode, UnknownOption, relay};
use dhcproto::{Decodable, Decoder};

use crate::api::MacAddress;
use crate::api::slipway::BootTarget;
use crate::boot::{BootHost, HostIndex, IndexedIntent, Ownership};
use crate::config::{Config, NetworkConfig};

use crate::dhcp::ServicePorts;
use crate::dhcp::network::{ServedNetwork, empty_table, select};
use crate::dhcp::outcome::{Destination, Disposition, DropReason, MessageOutcome, NakReason};
use crate::dhcp::packet::DhcpRequest;
use crate::dhcp::packet::tests::{bytes, message_of};
use crate::dhcp::record;
use crate::dhcp::respond::{NetworkContext, PacketInfo, Port, respond};
use crate::dhcp::table::{LeaseState, LeaseTable, OFFER_HOLD, QUARANTINE};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

fn at(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

fn config(more: &str) -> NetworkConfig {
    let text = format!(
        "[[network]]\nname='lab'\ninterface='eth0'\nsubnet='10.0.0.0/24'\nrouter='10.0.0.254'\ndns=['10.0.0.253']\n\
         ntp=['10.0.0.252']\ndomain='lab.example'\n{more}"
    );
    let mut config = Config::parse(&text, std::path::Path::new("x.toml")).expect("a good configuration");
    config.networks.remove(0)
}

/// A network, its leases and its hosts.
struct World {
    network: ServedNetwork,
    table: LeaseTable,
    hosts: HostIndex,
    now: u64,
    /// Whether the network is in force no more.
    ending: bool,
}

/// What came back, read by dhcproto.
struct Back {
    outcome: MessageOutcome,
    message: Option<Message>,
}

impl Back {
    fn message(&self) -> &Message {
        self.message.as_ref().unwrap_or_else(|| panic!("an answer, not {:?}", self.outcome.disposition))
    }

    fn kind(&self) -> Option<MessageType> {
        self.message.as_ref().and_then(|message| message.opts().msg_type())
    }

    fn option(&self, code: OptionCode) -> Option<&DhcpOption> {
        self.message().opts().get(code)
    }

    fn to(&self) -> Option<Destination> {
        self.outcome.reply.as_ref().map(|reply| reply.to)
    }
}

/// Of a host with this boot address, whose BMC let the appliance in.
fn registered(number: u8) -> Ownership {
    Ownership { boot_mac: Some(MacAddress(mac(number))), registered: true, paused: false, ..Ownership::default() }
}

impl World {
    fn new(more: &str) -> Self {
        let config = config(more);
        let mut table = empty_table(&config);
        table.exclude(SERVER);
        let service_ports = ServicePorts { http_port: 80, tftp_port: 69, dhcp_port: 67 };
        Self {
            network: ServedNetwork::new(&config, SERVER, service_ports),
            table,
            hosts: HostIndex::default(),
            now: 1_000_000,
            ending: false,
        }
    }

    fn host(self, number: u8, target: Option<BootTarget>) -> Self {
        self.hosts.insert(BootHost {
            namespace: "default".into(),
            created: 0,
            ownership: registered(number),
            name: format!("web-{number}"),
            uid: format!("u{number}"),
            macs: vec![MacAddress(mac(number))],
            intent: target.map(|target| IndexedIntent { generation: 1, target, session_open: false, live_iso: None }),
            boot_interface: Default::default(),
            discovery: Default::default(),
        });
        self
    }

    fn send(&mut self, message: &Message) -> Back {
        self.send_by(message, Port::Server, SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68))
    }

    fn send_by(&mut self, message: &Message, port: Port, source: SocketAddrV4) -> Back {
        let packet = bytes(message);
        let request = DhcpRequest::parse(&packet).expect("well formed");
        let network = &self.network;
        let hosts = &self.hosts;
        let known = |mac: MacAddress| network.knows(mac, hosts, |name| name == "elsewhere");
        let host = hosts.by_mac(request.mac);
        let unknown = hosts.unknown_machine(request.mac, network.discovery);
        let (host, ending) = (host.as_deref(), self.ending);
        let context = NetworkContext { network, host, hosts, unknown: &unknown, known: &known, ending };
        self.table.advance(self.now, &known);
        let outcome = respond(self.now, &request, PacketInfo { source, port }, context, &mut self.table);
        let message = outcome.reply.as_ref().map(|reply| {
            assert!((300..=548).contains(&reply.message.len()), "{} bytes", reply.message.len());
            let message = Message::decode(&mut Decoder::new(&reply.message)).expect("decodes");
            assert_eq!(message.xid(), request.xid);
            message
        });
        Back { outcome, message }
    }

    fn discover(&mut self, number: u8) -> Back {
        self.send(&message_of(mac(number), MessageType::Discover, Vec::new()))
    }

    /// Asks for an address as after an offer.
    fn select(&mut self, number: u8, address: Ipv4Addr, more: Vec<DhcpOption>) -> Back {
        let mut options = vec![DhcpOption::ServerIdentifier(SERVER), DhcpOption::RequestedIpAddress(address)];
        options.extend(more);
        self.send(&message_of(mac(number), MessageType::Request, options))
    }

    /// DISCOVER, REQUEST; the address.
    fn lease(&mut self, number: u8, more: Vec<DhcpOption>) -> Option<Ipv4Addr> {
        let offer = self.send(&message_of(mac(number), MessageType::Discover, more.clone()));
        let address = offer.message?.yiaddr();
        let ack = self.select(number, address, more);
        assert_eq!(ack.kind(), Some(MessageType::Ack), "{:?}", ack.outcome.disposition);
        assert_eq!(ack.message().yiaddr(), address);
        let written = ack.outcome.writes.last().expect("a lease to write");
        let record = record::decode(&record::key(address), written.record.as_deref().expect("a record"));
        assert_eq!(record.as_ref().ok(), self.table.get(address));
        Some(address)
    }

    /// Says it has an address, as when it renews.
    fn renew(&mut self, number: u8, address: Ipv4Addr) -> Back {
        let mut message = message_of(mac(number), MessageType::Request, Vec::new());
        message.set_ciaddr(address);
        self.send(&message)
    }

    /// Says which address it had before it was switched off.
    fn reboot(&mut self, number: u8, address: Ipv4Addr) -> Back {
        self.send(&message_of(mac(number), MessageType::Request, vec![DhcpOption::RequestedIpAddress(address)]))
    }
}

#[test]
fn only_the_relays_of_the_configuration_are_heard_when_it_names_some() {
    let (any, named) = ("", "relays=['10.0.0.254']\n");
    let elsewhere = Ipv4Addr::new(10, 1, 0, 1);
    // lines, our address, relay, whether it is heard
    let rows = [
        (any, SERVER, 253, true),
        (any, elsewhere, 0, true),
        (named, SERVER, 254, true),
        (named, SERVER, 253, false),
        (named, SERVER, 0, true),
        (named, elsewhere, 254, true),
        (named, elsewhere, 253, false),
        // A client that says itself which network it wants (RFC 3011).
        (named, elsewhere, 0, false),
    ];
    for (text, server, relay, heard) in rows {
        let service_ports = ServicePorts { http_port: 80, tftp_port: 69, dhcp_port: 67 };
        let network = ServedNetwork::new(&config(text), server, service_ports);
        let mut message = message_of(mac(1), MessageType::Discover, vec![]);
        message.set_giaddr(if relay == 0 { Ipv4Addr::UNSPECIFIED } else { at(relay) });
        let packet = bytes(&message);
        let request = DhcpRequest::parse(&packet).expect("well formed");
        assert_eq!(network.takes(&request), heard, "{text} {server} {relay}");
    }
}

/// Four for anybody, and one that is kept for known machines; no shorter leases for others.
const POOL: &str = "pool=['10.0.0.100-10.0.0.104']\nunknown_lease='1h'\n";

fn id(bytes: &[u8]) -> DhcpOption {
    DhcpOption::ClientIdentifier(bytes.to_vec())
}

#[test]
fn four_messages_give_an_address_and_the_networks_parameters() {
    let mut world = World::new(POOL);
    let offer = world.discover(1);
    assert_eq!(offer.kind(), Some(MessageType::Offer));
    assert_eq!(offer.message().yiaddr(), at(100));
    assert!(offer.outcome.writes.is_empty(), "an offer is kept in memory");
    assert_eq!(offer.to(), Some(Destination::Hardware { mac: MacAddress(mac(1)), address: at(100) }));
    let ack = world.select(1, at(100), vec![]);
    assert_eq!(ack.kind(), Some(MessageType::Ack));
    assert_eq!(ack.outcome.disposition, Disposition::Bound { address: at(100), renewed: false, boot: None });
    let expected = [
        DhcpOption::ServerIdentifier(SERVER),
        DhcpOption::AddressLeaseTime(3600),
        DhcpOption::Renewal(1800),
        DhcpOption::Rebinding(3150),
        DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
        DhcpOption::Router(vec![at(254)]),
        DhcpOption::DomainNameServer(vec![at(253)]),
        DhcpOption::NtpServers(vec![at(252)]),
        DhcpOption::DomainName("lab.example".into()),
        DhcpOption::BroadcastAddr(at(255)),
    ];
    for option in expected {
        assert_eq!(ack.option(OptionCode::from(&option)), Some(&option));
    }
    assert_eq!(ack.message().siaddr(), Ipv4Addr::UNSPECIFIED, "nothing to boot");
    let renewed = world.renew(1, at(100));
    assert_eq!(renewed.outcome.disposition, Disposition::Bound { address: at(100), renewed: true, boot: None });
    assert_eq!(renewed.to(), Some(Destination::Client { mac: MacAddress(mac(1)), to: SocketAddrV4::new(at(100), 68) }));
}

#[test]
fn answers_keep_the_clients_order_its_limit_and_what_must_be_sent_back() {
    let mut world = World::new(POOL).host(1, None);
    let wanted = [6, 3, 12, 15].map(OptionCode::from).to_vec();
    let back = world.send(&message_of(
        mac(1),
        MessageType::Discover,
        vec![
            DhcpOption::ParameterRequestList(wanted),
            id(b"\0abc"),
            DhcpOption::RelayAgentInformation({
                let mut info = relay::RelayAgentInformation::default();
                info.insert(relay::RelayInfo::AgentCircuitId(b"port 7".to_vec()));
                info
            }),
        ],
    ));
    let raw = &back.outcome.reply.as_ref().expect("an answer").message;
    let (mut codes, mut rest) = (Vec::new(), &raw[240..]);
    while let [code, length, tail @ ..] = rest {
        if *code == 255 {
            break;
        }
        codes.push(*code);
        rest = &tail[usize::from(*length)..];
    }
    assert_eq!(codes, [53, 54, 51, 61, 6, 3, 12, 15, 1, 58, 59, 82]);
    assert_eq!(back.option(OptionCode::Hostname), Some(&DhcpOption::Hostname("web-1".into())));
    assert_eq!(back.option(OptionCode::ClientIdentifier), Some(&id(b"\0abc")));
    // A client identifier that leaves no room: what does not fit is left out, the relay's data is not.
    let big = vec![id(&[7; 230]), raw_option(97, &[0; 17]), DhcpOption::MaxMessageSize(100)];
    let back = world.send(&message_of(mac(1), MessageType::Discover, big));
    assert!(back.option(OptionCode::SubnetMask).is_some());
}

fn raw_option(code: u8, data: &[u8]) -> DhcpOption {
    DhcpOption::Unknown(UnknownOption::new(OptionCode::Unknown(code), data.to_vec()))
}

#[test]
fn a_known_machine_has_one_address_whatever_client_id_it_sends() {
    let mut world = World::new(POOL).host(1, None);
    let first = world.lease(1, vec![]);
    assert_eq!(first, Some(at(100)));
    for client_id in [&b"\x00firmware-uuid"[..], b"\xff\0\0\0\x01ipxe", &[1, 2, 0, 0, 0, 0, 1]] {
        assert_eq!(world.lease(1, vec![id(client_id)]), first, "{client_id:?}");
    }
    // Unknown machines go by client identifier (RFC 2131), where hardware type and address are no identifier.
    assert_eq!(world.lease(2, vec![id(b"\x00one")]), Some(at(101)));
    assert_eq!(world.lease(2, vec![id(b"\x00two")]), Some(at(102)));
    assert_eq!(world.lease(2, vec![id(b"\x00one")]), Some(at(101)));
    assert_eq!(world.lease(3, vec![]), Some(at(103)));
    assert_eq!(world.lease(3, vec![id(&[1, 2, 0, 0, 0, 0, 3])]), Some(at(103)));
}

#[test]
fn a_machine_keeps_its_address_when_it_becomes_known_and_when_it_is_forgotten() {
    let mut world = World::new(POOL);
    assert_eq!(world.lease(1, vec![id(b"\0os")]), Some(at(100)));
    let mut world = world.host(1, None);
    assert_eq!(world.lease(1, vec![]), Some(at(100)));
    world.hosts.remove("default", "web-1");
    assert_eq!(world.lease(1, vec![id(b"\0os")]), Some(at(100)));
}

#[test]
fn reservations_are_kept_for_their_machine() {
    let mut world = World::new(
        "pool=['10.0.0.100-10.0.0.102']\n[[network.reservation]]\nmac='02:00:00:00:00:01'\naddress='10.0.0.100'\n\
         hostname='db-1'\n",
    );
    assert_eq!(world.lease(2, vec![]), Some(at(101)), "the reserved address is not in the pool");
    let back = world.select(3, at(100), vec![]);
    assert_eq!(back.outcome.disposition, Disposition::Refused { address: at(100), reason: NakReason::Taken });
    assert_eq!(world.lease(1, vec![]), Some(at(100)));
    let back = world.discover(1);
    assert_eq!(back.option(OptionCode::Hostname), Some(&DhcpOption::Hostname("db-1".into())));
    let back = world.select(1, at(101), vec![]);
    assert_eq!(back.outcome.disposition, Disposition::Refused { address: at(101), reason: NakReason::Other(at(100)) });
    // Declining a reservation changes nothing; the operator is told.
    let back = world.send(&message_of(mac(1), MessageType::Decline, vec![DhcpOption::RequestedIpAddress(at(100))]));
    assert_eq!(back.outcome.disposition, Disposition::Declined { address: at(100), reserved: true });
    assert_eq!(world.lease(1, vec![]), Some(at(100)));
}

#[test]
fn a_new_reservation_waits_until_its_address_is_free() {
    let mut world = World::new(POOL);
    assert_eq!(world.lease(2, vec![]), Some(at(100)));
    let leases = std::mem::take(&mut world.table);
    let mut world =
        World::new(&format!("{POOL}[[network.reservation]]\nmac='02:00:00:00:00:01'\naddress='10.0.0.100'\n"));
    world.table.put(leases.get(at(100)).expect("leased").clone());
    assert_eq!(world.lease(1, vec![]), Some(at(101)), "another one meanwhile");
    let back = world.renew(2, at(100));
    assert_eq!(back.kind(), Some(MessageType::Nak), "it is reserved for another machine");
    assert_eq!(world.lease(2, vec![]), Some(at(102)));
    let back = world.renew(1, at(101));
    assert_eq!(back.outcome.disposition, Disposition::Refused { address: at(101), reason: NakReason::Other(at(100)) });
    assert_eq!(world.lease(1, vec![]), Some(at(100)));
    assert!(world.table.get(at(101)).is_none(), "one client, one address");
}

#[test]
fn requests_are_refused_or_passed_over_as_the_mode_says() {
    // (mode, known, what it asks, answer)
    let reboot = |world: &mut World, address| world.reboot(1, address);
    let renew = |world: &mut World, address| world.renew(1, address);
    type Ask = fn(&mut World, Ipv4Addr) -> Back;
    let away = Ipv4Addr::new(192, 168, 1, 5);
    let nak = Some(MessageType::Nak);
    let ack = Some(MessageType::Ack);
    let rows: [(&str, bool, Ask, Ipv4Addr, Option<MessageType>); 14] = [
        ("authoritative", false, reboot, away, nak),
        ("authoritative", false, renew, away, nak),
        ("authoritative", false, reboot, at(50), nak),
        ("authoritative", false, renew, at(50), nak),
        ("authoritative", false, reboot, SERVER, nak),
        // Free addresses of the pool are confirmed: so a lost database heals.
        ("authoritative", false, reboot, at(101), ack),
        ("authoritative", false, renew, at(101), ack),
        ("authoritative", false, renew, at(103), nak),
        ("reservations", false, reboot, away, None),
        ("reservations", false, renew, at(101), None),
        ("reservations", true, reboot, away, nak),
        ("reservations", true, renew, at(101), ack),
        ("off", true, renew, at(101), None),
        ("proxy", true, renew, at(101), None),
    ];
    for (mode, known, ask, address, expected) in rows {
        let mut world = World::new(&format!("mode='{mode}'\n{POOL}"));
        if known {
            world = world.host(1, None);
        }
        // Another machine's.
        if mode == "authoritative" {
            assert_eq!(world.select(9, at(103), vec![]).kind(), ack);
        }
        let back = ask(&mut world, address);
        assert_eq!(back.kind(), expected, "{mode} known {known} {address}: {:?}", back.outcome.disposition);
        if expected == nak {
            assert_eq!(back.to(), Some(Destination::Broadcast));
            assert_eq!(back.message().yiaddr(), Ipv4Addr::UNSPECIFIED);
            assert_eq!(back.message().ciaddr(), Ipv4Addr::UNSPECIFIED);
            assert!(back.option(OptionCode::AddressLeaseTime).is_none());
            assert!(back.outcome.writes.is_empty());
        }
    }
}

#[test]
fn an_offer_is_given_up_when_the_client_chooses_another_server_or_waits_too_long() {
    let mut world = World::new("pool=['10.0.0.100-10.0.0.100']\n");
    assert_eq!(world.discover(1).kind(), Some(MessageType::Offer));
    assert_eq!(world.discover(2).outcome.disposition, Disposition::Dropped(DropReason::PoolEmpty));
    let other = vec![DhcpOption::ServerIdentifier(at(9)), DhcpOption::RequestedIpAddress(at(100))];
    let back = world.send(&message_of(mac(1), MessageType::Request, other));
    assert_eq!(back.outcome.disposition, Disposition::Dropped(DropReason::OtherServer(at(9))));
    assert_eq!(world.discover(2).kind(), Some(MessageType::Offer));
    world.now += OFFER_HOLD;
    assert_eq!(world.discover(3).kind(), Some(MessageType::Offer));
    // The late client's request fails, because the address is another's now.
    assert_eq!(world.select(2, at(100), vec![]).kind(), Some(MessageType::Nak));
}

fn release(number: u8, address: Ipv4Addr) -> Message {
    let mut release = message_of(mac(number), MessageType::Release, vec![DhcpOption::ServerIdentifier(SERVER)]);
    release.set_ciaddr(address);
    release
}

fn decline(number: u8, address: Ipv4Addr) -> Message {
    message_of(mac(number), MessageType::Decline, vec![DhcpOption::RequestedIpAddress(address)])
}

fn from(address: Ipv4Addr) -> SocketAddrV4 {
    SocketAddrV4::new(address, 68)
}

#[test]
fn release_decline_and_their_limits() {
    let mut world = World::new("pool=['10.0.0.100-10.0.0.102']\n").host(9, None);
    assert_eq!(world.lease(1, vec![]), Some(at(100)));
    let disposition = |back: Back| back.outcome.disposition;
    let anothers = world.send_by(&release(2, at(100)), Port::Server, from(at(100)));
    assert_eq!(disposition(anothers), Disposition::Dropped(DropReason::NotTheirs(at(100))), "a stranger's");
    let mut other_id = message_of(mac(1), MessageType::Release, vec![id(&[7, 7, 7])]);
    other_id.set_ciaddr(at(100));
    let back = world.send_by(&other_id, Port::Server, from(at(100)));
    assert_eq!(
        disposition(back),
        Disposition::Dropped(DropReason::NotTheirs(at(100))),
        "under another client identifier"
    );
    for source in [Ipv4Addr::UNSPECIFIED, at(66), Ipv4Addr::new(192, 0, 2, 1)] {
        let back = world.send_by(&release(1, at(100)), Port::Server, from(source));
        assert_eq!(disposition(back), Disposition::Dropped(DropReason::NotFrom(at(100))), "{source}");
    }
    let back = world.send_by(&release(1, at(100)), Port::Server, from(at(100)));
    assert_eq!((back.outcome.disposition, back.outcome.writes.len()), (Disposition::Released(at(100)), 1));
    assert!(back.message.is_none());
    assert_eq!(world.lease(1, vec![]), Some(at(100)), "it returns to its address");
    // Some relays pass on what a client sends to the server.
    let mut relayed = release(1, at(100));
    relayed.set_giaddr(at(254));
    assert_eq!(disposition(world.send_by(&relayed, Port::Server, from(at(254)))), Disposition::Released(at(100)));
    assert_eq!(world.lease(1, vec![]), Some(at(100)));

    assert_eq!(disposition(world.send(&decline(2, at(100)))), Disposition::Dropped(DropReason::NotTheirs(at(100))));
    assert_eq!(disposition(world.send(&decline(1, at(101)))), Disposition::Dropped(DropReason::NotTheirs(at(101))));
    let back = world.send(&decline(1, at(100)));
    assert_eq!(back.outcome.disposition, Disposition::Declined { address: at(100), reserved: false });
    assert_eq!(back.outcome.writes.len(), 1);
    assert_eq!(world.lease(1, vec![]), Some(at(101)), "another address");
    assert!(world.discover(3).message.is_none(), "declined addresses are nobody's");
    assert_eq!(world.discover(9).message().yiaddr(), at(102), "what is kept for hosts");
    assert_eq!(world.discover(9).message().yiaddr(), at(102));
    world.now += QUARANTINE;
    assert_eq!(world.select(3, at(100), vec![]).kind(), Some(MessageType::Ack));
}

/// Its MAC address is all that it takes to send them.
#[test]
fn no_release_and_no_decline_takes_a_known_machines_address() {
    let reserved = "[[network.reservation]]\nmac='02:00:00:00:00:02'\naddress='10.0.0.50'\n";
    let mut world = World::new(&format!("pool=['10.0.0.100-10.0.0.101']\n{reserved}")).host(1, None);
    for (number, address) in [(1, at(100)), (2, at(50))] {
        assert_eq!(world.lease(number, vec![]), Some(address));
        let before = world.table.get(address).expect("leased").clone();
        for round in 0..30 {
            for (message, source) in [
                (release(number, address), at(66)),
                (release(number, address), address),
                (decline(number, address), Ipv4Addr::UNSPECIFIED),
                (message_of(mac(number), MessageType::Discover, vec![]), Ipv4Addr::UNSPECIFIED),
                (decline(number, at(101)), Ipv4Addr::UNSPECIFIED),
            ] {
                let back = world.send_by(&message, Port::Server, from(source));
                assert!(back.outcome.writes.is_empty(), "{:?}", back.outcome.disposition);
                assert_eq!(world.table.get(address), Some(&before), "{number} {round}: {:?}", back.outcome.disposition);
            }
        }
        let back = world.send_by(&release(number, address), Port::Server, from(address));
        assert_eq!(back.outcome.disposition, Disposition::Kept(address));
        // Whoever sent it: the machine finds its address again, and renews it.
        assert_eq!(world.discover(number).message().yiaddr(), address);
        assert_eq!(world.renew(number, address).kind(), Some(MessageType::Ack));
    }
    assert_eq!(world.send(&decline(1, at(100))).outcome.disposition, Disposition::ConflictReported(at(100)));
    // An offer that it did not take yet is no different.
    let mut world = World::new("pool=['10.0.0.100-10.0.0.101']\n").host(1, None);
    for _ in 0..30 {
        assert_eq!(world.discover(1).message().yiaddr(), at(100));
        assert_eq!(world.send(&decline(1, at(100))).outcome.disposition, Disposition::ConflictReported(at(100)));
    }
    assert_eq!(world.lease(1, vec![]), Some(at(100)));
}

#[test]
fn inform_gives_parameters_and_nothing_else() {
    let mut world = World::new(POOL);
    let mut inform = message_of(mac(1), MessageType::Inform, vec![]);
    inform.set_ciaddr(at(77));
    let back = world.send(&inform);
    assert_eq!(back.kind(), Some(MessageType::Ack));
    assert_eq!(back.to(), Some(Destination::Client { mac: MacAddress(mac(1)), to: SocketAddrV4::new(at(77), 68) }));
    assert_eq!(back.message().yiaddr(), Ipv4Addr::UNSPECIFIED);
    for code in [OptionCode::AddressLeaseTime, OptionCode::Renewal, OptionCode::Rebinding] {
        assert!(back.option(code).is_none(), "{code:?}");
    }
    assert!(back.option(OptionCode::Router).is_some());
    assert!(back.outcome.writes.is_empty());
    // Nobody makes this server send to another network.
    inform.set_ciaddr(Ipv4Addr::new(192, 0, 2, 1));
    assert_eq!(world.send(&inform).outcome.disposition, Disposition::Dropped(DropReason::NoAddress));
}

#[test]
fn answers_go_where_rfc_2131_sends_them() {
    let mut world = World::new(POOL);
    let mut message = message_of(mac(1), MessageType::Discover, vec![]);
    message.set_flags(Flags::default().set_broadcast());
    assert_eq!(world.send(&message).to(), Some(Destination::Broadcast));
    message.set_giaddr(at(254));
    let back = world.send(&message);
    assert_eq!(back.to(), Some(Destination::Address(SocketAddrV4::new(at(254), 67))));
    assert_eq!(back.message().giaddr(), at(254));
    // A relay that says so hears the answer where it sent from, and finds its own words in it.
    message.opts_mut().insert(DhcpOption::Unknown(UnknownOption::new(OptionCode::RelayAgentInformation, vec![19, 0])));
    let back = world.send(&message);
    assert_eq!(back.to(), Some(Destination::Address(SocketAddrV4::new(at(254), 68))));
    assert!(back.option(OptionCode::RelayAgentInformation).is_some());
    // A refusal through a relay has to be broadcast by it.
    let mut message = message_of(mac(1), MessageType::Request, vec![DhcpOption::RequestedIpAddress(at(50))]);
    message.set_giaddr(at(254));
    let back = world.send(&message);
    assert_eq!((back.kind(), back.to().is_some()), (Some(MessageType::Nak), true));
    assert_eq!(back.to(), Some(Destination::Address(SocketAddrV4::new(at(254), 67))));
    assert!(back.message().flags().broadcast());
    // A made-up address of the client is not written to.
    let mut message = message_of(mac(1), MessageType::Discover, vec![]);
    message.set_ciaddr(Ipv4Addr::new(192, 0, 2, 1));
    assert!(matches!(world.send(&message).to(), Some(Destination::Hardware { .. })));
}

#[test]
fn the_relay_says_which_network_a_message_is_for() {
    let one = World::new(POOL).network;
    let mut other = config(POOL);
    other.subnet = "10.7.0.0/24".parse().expect("a subnet");
    let other = ServedNetwork::new(
        &other,
        Ipv4Addr::new(10, 7, 0, 1),
        ServicePorts { http_port: 80, tftp_port: 69, dhcp_port: 67 },
    );
    let chosen = |giaddr: Ipv4Addr, options: Vec<DhcpOption>| {
        let mut message = message_of(mac(1), MessageType::Discover, options);
        message.set_giaddr(giaddr);
        let packet = bytes(&message);
        let request = DhcpRequest::parse(&packet).expect("reads");
        select([&one, &other], &request).map(|network| network.subnet.to_string())
    };
    assert_eq!(chosen(Ipv4Addr::UNSPECIFIED, vec![]).as_deref(), Some("10.0.0.0/24"));
    assert_eq!(chosen(Ipv4Addr::new(10, 7, 0, 3), vec![]).as_deref(), Some("10.7.0.0/24"));
    assert_eq!(chosen(Ipv4Addr::new(10, 8, 0, 3), vec![]), None);
    let mut info = relay::RelayAgentInformation::default();
    info.insert(relay::RelayInfo::LinkSelection(Ipv4Addr::new(10, 7, 0, 0)));
    let options = vec![DhcpOption::RelayAgentInformation(info)];
    assert_eq!(chosen(at(254), options.clone()).as_deref(), Some("10.7.0.0/24"));
    assert_eq!(chosen(Ipv4Addr::UNSPECIFIED, options).as_deref(), Some("10.0.0.0/24"), "only a relay selects links");
}

fn firmware(class: &str, architecture: u16) -> Vec<DhcpOption> {
    vec![
        DhcpOption::ClassIdentifier(format!("{class}:Arch:{architecture:05}:UNDI:003016").into_bytes()),
        DhcpOption::ClientSystemArchitecture(Architecture::from(architecture)),
        DhcpOption::ClientMachineIdentifier([&[0][..], &[5; 16]].concat()),
        DhcpOption::ParameterRequestList([1, 3, 43, 60, 66, 67].map(OptionCode::from).to_vec()),
    ]
}

#[test]
fn two_machines_with_one_mac_address_are_told_to_the_operator() {
    let mut world = World::new(POOL).host(1, None);
    let with_uuid = |byte: u8| {
        let mut options = firmware("PXEClient", 0);
        options.retain(|option| !matches!(option, DhcpOption::ClientMachineIdentifier(_)));
        options.push(DhcpOption::ClientMachineIdentifier([&[0][..], &[byte; 16]].concat()));
        message_of(mac(1), MessageType::Discover, options)
    };
    assert_eq!(world.send(&with_uuid(5)).outcome.duplicate_mac, None);
    assert_eq!(world.send(&with_uuid(5)).outcome.duplicate_mac, None);
    let duplicate_mac = world.send(&with_uuid(6)).outcome.duplicate_mac.expect("another machine");
    assert!(duplicate_mac.0.starts_with("05050505-") && duplicate_mac.1.starts_with("06060606-"), "{duplicate_mac:?}");
}

#[test]
fn what_a_server_does_not_answer() {
    let mut world = World::new(POOL);
    for kind in [MessageType::Offer, MessageType::Ack, MessageType::Nak, MessageType::LeaseQuery] {
        let back = world.send(&message_of(mac(1), kind, vec![]));
        assert_eq!(back.outcome.disposition, Disposition::Dropped(DropReason::Kind(kind)));
    }
    let back = world.send(&message_of(mac(1), MessageType::Request, vec![]));
    assert_eq!(back.outcome.disposition, Disposition::Dropped(DropReason::NoAddress));
    let back = world.send_by(&release(1, at(100)), Port::Server, from(at(100)));
    assert_eq!(back.outcome.disposition, Disposition::Dropped(DropReason::NotTheirs(at(100))));
}

#[test]
fn a_client_that_wants_a_shorter_lease_gets_it() {
    let mut world = World::new(POOL);
    for (wanted, given) in [(600, 600), (7200, 3600), (1, 60), (u32::MAX, 3600)] {
        let back = world.select(1, at(100), vec![DhcpOption::AddressLeaseTime(wanted)]);
        assert_eq!(back.option(OptionCode::AddressLeaseTime), Some(&DhcpOption::AddressLeaseTime(given)));
        let lease = world.table.get(at(100)).expect("leased");
        assert_eq!((lease.ends, lease.state), (world.now + u64::from(given), LeaseState::Bound));
    }
}

/// Its leases are their machines' until they are over, and nobody renews them.
#[test]
fn a_network_in_force_no_more_refuses_who_has_an_address_and_hears_nobody_else() {
    for mode in ["authoritative", "reservations"] {
        let mut world = World::new(&format!("{POOL}mode = '{mode}'\n")).host(1, None);
        assert_eq!(world.lease(1, vec![]), Some(at(100)));
        world.ending = true;
        let mut renewal = message_of(mac(1), MessageType::Request, vec![]);
        renewal.set_ciaddr(at(100));
        let refused = Disposition::Refused { address: at(100), reason: NakReason::Ended };
        for (message, wanted) in [
            (renewal.clone(), Some(&refused)),
            (message_of(mac(1), MessageType::Request, vec![DhcpOption::RequestedIpAddress(at(100))]), Some(&refused)),
            (message_of(mac(1), MessageType::Request, vec![DhcpOption::RequestedIpAddress(at(101))]), None),
            (message_of(mac(2), MessageType::Request, vec![DhcpOption::RequestedIpAddress(at(100))]), None),
            (message_of(mac(1), MessageType::Discover, vec![]), None),
            (message_of(mac(2), MessageType::Discover, vec![]), None),
        ] {
            let back = world.send(&message);
            assert_eq!(back.kind(), wanted.map(|_| MessageType::Nak), "{message}");
            let wanted = wanted.unwrap_or(&Disposition::Dropped(DropReason::Ended));
            assert_eq!(back.outcome.disposition, *wanted, "{message}");
            assert!(back.outcome.writes.is_empty(), "the lease stays as it is");
        }
        assert_eq!(world.table.get(at(100)).map(|lease| lease.state), Some(LeaseState::Bound));
        // It is told of another server's offer that it took, and gives back what it has, as ever.
        let chosen = vec![DhcpOption::ServerIdentifier(at(9)), DhcpOption::RequestedIpAddress(at(100))];
        let back = world.send(&message_of(mac(1), MessageType::Request, chosen));
        assert_eq!(back.outcome.disposition, Disposition::Dropped(DropReason::OtherServer(at(9))));
        world.ending = false;
        assert_eq!(world.send(&renewal).kind(), Some(MessageType::Ack), "it is back");
    }
}
