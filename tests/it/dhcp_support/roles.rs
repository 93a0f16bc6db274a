//! The roles that this binary plays inside a namespace.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dhcproto::v4::{DhcpOption, Message, MessageType};
use dhcproto::{Decodable, Decoder};
use rand::Rng;
use slipway::api::MacAddress;
use slipway::api::slipway::BootTarget;
use slipway::boot::{self, BootHost, HostIndex, IndexedIntent, Ownership, neighbour};
use slipway::config::Config;
use slipway::dhcp::{DhcpServer, LeaseViews, Leases, ServicePorts};
use slipway::store::{Store, StoreOptions};

use super::{CLIENT, DEADLINE, ROLE, discover, encode, message, unhex};

/// Plays the role that the environment names; nothing without one.
pub fn play_role() {
    match std::env::var(ROLE).as_deref() {
        Ok("server") => serve(),
        Ok("bind") => bind_only(),
        Ok("exchange") => exchange(),
        Ok("hostile") => attack(),
        Ok("storm") => storm(),
        Ok("forge") => forge(),
        Ok("relays") => made_up_relays(),
        Ok("fetch") => fetch(),
        Ok("squat") => {
            let _socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67)).expect("binds");
            ready();
            std::io::stdin().read_to_end(&mut Vec::new()).ok();
        }
        _ => eprintln!("no role: this is started by other tests"),
    }
}

pub(super) fn ready() {
    println!("\nready");
    std::io::stdout().flush().ok();
}

pub(super) fn folder() -> PathBuf {
    std::env::var_os("SLIPWAY_TEST_FOLDER").expect("set").into()
}

pub(super) fn open(folder: &Path) -> (Config, Store) {
    let config = Config::load(&folder.join("slipway.toml")).expect("a good configuration");
    let options = StoreOptions { path: config.data_dir.db(), key_file: folder.join("key"), history: 1000 };
    let store = Store::open(options).expect("opens");
    (config, store)
}

fn bind_only() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let (config, store) = open(&folder());
    let leases = Leases::load(&store, &config.networks).expect("loads");
    match DhcpServer::bind(
        ServicePorts { http_port: 80, tftp_port: 69, dhcp_port: 67 },
        leases,
        HostIndex::default(),
        LeaseViews::store(&store),
    ) {
        Ok(_) => println!("bound"),
        Err(error) => println!("{error}"),
    }
}

fn serve() {
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let (config, store) = open(&folder());
    let hosts = HostIndex::default();
    let known = std::env::var("SLIPWAY_TEST_HOSTS").unwrap_or_default();
    for host in known.split(',').filter(|host| !host.is_empty()) {
        let [mac, name, boots] = host.split('=').collect::<Vec<_>>().try_into().expect("three parts");
        let intent = IndexedIntent { generation: 1, target: BootTarget::Ramdisk, session_open: false, live_iso: None };
        let mac = mac.parse().expect("a MAC address");
        hosts.insert(BootHost {
            namespace: "default".into(),
            created: 0,
            ownership: Ownership { boot_mac: Some(mac), registered: true, ..Ownership::default() },
            name: name.into(),
            uid: name.into(),
            macs: vec![mac],
            intent: (boots == "true").then_some(intent),
            boot_interface: Default::default(),
            discovery: Default::default(),
        });
    }
    let leases = Leases::load(&store, &config.networks).expect("loads");
    let site = ServicePorts { http_port: 80, tftp_port: 69, dhcp_port: 67 };
    let server = DhcpServer::bind(site, leases.clone(), hosts.clone(), LeaseViews::store(&store)).expect("binds");
    let networks: Vec<_> = config.networks.iter().map(|one| (one.subnet, one.interface.clone())).collect();
    let cards = neighbour::cached(networks.clone());
    let server = server.with_cards(cards.clone());
    let shutdown = tokio_util::sync::CancellationToken::new();
    let serving = runtime.spawn(server.run(shutdown.clone()));
    let ranks: slipway::ration::Ranks = {
        let (config, leases, hosts) = (config.clone(), leases.clone(), hosts.clone());
        Arc::new(move |address| slipway::dhcp::rank(&config.networks, Some(&leases), &hosts, &*cards, address))
    };
    runtime.spawn(boot_http(&config, &leases, &hosts, ranks.clone(), shutdown.clone()));
    ready();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let answer = match line.split_once(' ') {
            Some(("address", mac)) => {
                leases.address_of(mac.parse().expect("a MAC address")).map(|it| it.to_string()).unwrap_or_default()
            }
            Some(("view", name)) => {
                let view = store.get("slipway.dev/dhcpleases", "", name);
                view.map(|view| view.value().to_string()).unwrap_or_default()
            }
            Some(("card", address)) => {
                let address = address.parse().expect("an address");
                neighbour::cached(networks.clone())(address).map_or_else(|| "none".to_owned(), |card| card.to_string())
            }
            Some(("answers", address)) => {
                let address = address.parse().expect("an address");
                match runtime.block_on(neighbour::kernel(networks.clone())(address)) {
                    neighbour::ArpAnswers::Card(card) => card.to_string(),
                    other => format!("{other:?}"),
                }
            }
            Some(("probe", keep)) => {
                let done = runtime.block_on(slipway::dhcp::find_servers(&leases, keep.parse().expect("seconds")));
                done.err().unwrap_or_else(|| "done".to_owned())
            }
            Some(("rank", address)) => format!("{:?}", ranks(address.parse().expect("an address"))),
            Some(("explain", mac)) => leases.explain(mac.parse().expect("a MAC address"), &hosts),
            _ => panic!("{line}"),
        };
        println!("{}", answer.replace('\n', "\t"));
    }
    shutdown.cancel();
    runtime.block_on(serving).expect("no panic").expect("ends well");
    runtime.block_on(store.close());
}

/// Boot HTTP on port 80, with what it knows of the network.
fn boot_http(
    config: &Config,
    leases: &Leases,
    hosts: &HostIndex,
    ranks: slipway::ration::Ranks,
    shutdown: tokio_util::sync::CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let files = folder().join("boot");
    fs::create_dir_all(&files).expect("a folder");
    for name in ["vmlinuz", "initrd", "ramdisk.json"] {
        fs::write(files.join(name), "a file").expect("a file");
    }
    let networks: Vec<_> = config.networks.iter().map(|one| (one.subnet, one.interface.clone())).collect();
    let (all, leases) = (config.networks.clone(), leases.clone());
    let boot_networks = boot::BootNetworks {
        lease_owner: Some(Arc::new(move |address| slipway::dhcp::lease_owner(&all, Some(&leases), address))),
        neighbours: Some(neighbour::kernel(networks)),
        ..boot::BootNetworks::default()
    };
    let key = rcgen::KeyPair::generate().expect("a key");
    let ca = rcgen::CertificateParams::new(["ca".to_owned()]).and_then(|ca| ca.self_signed(&key)).expect("a CA");
    let site = boot::BootServerConfig::new(8443, &ca.pem(), "").expect("a site").with_networks(boot_networks);
    let tokens = Arc::new(boot::BootTokens::open(&folder()).expect("a key"));
    let router =
        boot::router(site, hosts.clone(), tokens, boot::BootFiles::new(&files), boot::DownloadScheduler::default());
    async move {
        let listener = tokio::net::TcpListener::bind("0.0.0.0:80").await.expect("a port");
        let metrics = boot::BootHttpMetrics::default();
        boot::serve(listener, router, ranks, boot::MAX_CONNECTIONS, metrics, shutdown).await.expect("an orderly end");
    }
}

fn socket(how: &str) -> (UdpSocket, SocketAddrV4) {
    let server = Ipv4Addr::new(10, 77, 0, 1);
    let (from, to) = match how {
        "Broadcast" => (SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68), SocketAddrV4::new(Ipv4Addr::BROADCAST, 67)),
        "Relay" => (SocketAddrV4::new(CLIENT, 67), SocketAddrV4::new(server, 67)),
        "ProxyPort" => (SocketAddrV4::new(CLIENT, 68), SocketAddrV4::new(server, 4011)),
        other => panic!("{other}"),
    };
    let socket = UdpSocket::bind(from).expect("binds");
    socket.set_broadcast(true).expect("may broadcast");
    socket2::SockRef::from(&socket).bind_device(Some(b"c0")).expect("binds to the interface");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    (socket, to)
}

/// Sends the message of each line, some times, and prints what comes back.
pub(super) fn exchange() {
    ready();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (how, packet) = line.split_once(' ').expect("two words");
        let (packet, (socket, to)) = (unhex(packet), socket(how));
        let mut buffer = [0; 2048];
        let answer = (0..10).find_map(|_| {
            socket.send_to(&packet, to).expect("sends");
            let end = Instant::now() + Duration::from_secs(1);
            while Instant::now() < end {
                let (length, _) = socket.recv_from(&mut buffer).ok()?;
                // An answer to this message: its transaction.
                if buffer[0] == 2 && buffer[4..8] == packet[4..8] {
                    return Some(buffer[..length].to_vec());
                }
            }
            None
        });
        let hex: String = answer.unwrap_or_default().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{hex}");
    }
}

/// Sends the messages, again what is not answered, and gives back each with its answer.
fn ask_all(socket: &UdpSocket, to: SocketAddrV4, messages: Vec<Message>) -> Vec<(Message, Message)> {
    let mut open: HashMap<u32, Message> = messages.into_iter().map(|message| (message.xid(), message)).collect();
    let mut answered = Vec::new();
    let mut buffer = [0; 2048];
    let end = Instant::now() + DEADLINE;
    while !open.is_empty() && Instant::now() < end {
        for message in open.values() {
            socket.send_to(&encode(message), to).expect("sends");
        }
        while !open.is_empty() {
            let Ok((length, _)) = socket.recv_from(&mut buffer) else { break };
            let answer = Message::decode(&mut Decoder::new(&buffer[..length])).expect("a DHCP message");
            answered.extend(open.remove(&answer.xid()).map(|message| (message, answer)));
        }
    }
    answered
}

/// As many machines as the line says get an address together; prints who got which.
pub(super) fn storm() {
    let (socket, to) = socket("Relay");
    ready();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let relayed = |mac: &str, kind, options| {
            let mut message = message(mac, kind, options);
            message.set_giaddr(CLIENT);
            message
        };
        let machines: u8 = line.parse().expect("a number");
        let discover = |machine| relayed(&format!("02:00:00:00:05:{machine:02x}"), MessageType::Discover, Vec::new());
        let offers = ask_all(&socket, to, (0..machines).map(discover).collect());
        let mac = |asked: &Message| MacAddress(encode(asked)[28..34].try_into().expect("six bytes")).to_string();
        let request = |(asked, offer): (Message, Message)| {
            relayed(&mac(&asked), MessageType::Request, vec![DhcpOption::RequestedIpAddress(offer.yiaddr())])
        };
        let leased = ask_all(&socket, to, offers.into_iter().map(request).collect());
        let line = leased.iter().filter(|(_, answer)| answer.opts().msg_type() == Some(MessageType::Ack));
        let line = line.map(|(asked, answer)| format!("{} {}", mac(asked), answer.yiaddr()));
        println!("{}", line.collect::<Vec<_>>().join("\t"));
    }
}

/// Gets what each line names from boot HTTP; prints it in one line.
pub(super) fn fetch() {
    ready();
    for path in std::io::stdin().lines().map_while(Result::ok) {
        let mut answer = String::new();
        let got = std::net::TcpStream::connect("10.77.0.1:80").and_then(|mut stream| {
            stream.set_read_timeout(Some(DEADLINE))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
            stream.read_to_string(&mut answer)
        });
        let answer = got.map_or_else(|error| error.to_string(), |_| answer);
        println!("{}", answer.replace('\r', "").replace('\n', "\t"));
    }
}

/// In another machine's name, from a card of its own: gives back and declines each of the addresses, with what a client
/// would ask before, from its own address and from that of the machine, until the input closes.
pub(super) fn forge() {
    let victim = std::env::var("SLIPWAY_TEST_VICTIM").expect("set");
    let addresses = std::env::var("SLIPWAY_TEST_ADDRESSES").expect("set");
    let addresses: Vec<Ipv4Addr> = addresses.split(',').map(|it| it.parse().expect("an address")).collect();
    let to = SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 67);
    let broadcast = SocketAddrV4::new(Ipv4Addr::BROADCAST, 67);
    let own = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("binds");
    own.set_broadcast(true).expect("may broadcast");
    socket2::SockRef::from(&own).bind_device(Some(b"c0")).expect("binds to the interface");
    // From an address that is not its own: what root may do on any machine.
    let posing = addresses.iter().map(|address| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).expect("a socket");
        socket.set_ip_transparent_v4(true).expect("root may");
        socket.bind(&SocketAddrV4::new(*address, 0).into()).expect("binds");
        (*address, UdpSocket::from(socket))
    });
    let posing: Vec<_> = posing.collect();
    let round = || {
        own.send_to(&encode(&discover(&victim, Vec::new())), broadcast).ok();
        for (address, posing) in &posing {
            let server = || DhcpOption::ServerIdentifier(*to.ip());
            let decline = vec![server(), DhcpOption::RequestedIpAddress(*address)];
            own.send_to(&encode(&message(&victim, MessageType::Decline, decline)), broadcast).ok();
            let mut release = message(&victim, MessageType::Release, vec![server()]);
            release.set_ciaddr(*address);
            own.send_to(&encode(&release), to).ok();
            posing.send_to(&encode(&release), to).ok();
        }
    };
    (0..50).for_each(|_| round());
    ready();
    let (closed, is_closed) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        drop(closed);
    });
    let end = Instant::now() + 2 * DEADLINE;
    let open = || is_closed.recv_timeout(Duration::from_millis(20)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    while Instant::now() < end && open() {
        round();
    }
}

/// DISCOVERs of one card, relayed from addresses of the network where nobody is, and INFORMs of clients with such addresses,
/// until the input closes.
pub(super) fn made_up_relays() {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("binds");
    socket2::SockRef::from(&socket).bind_device(Some(b"c0")).expect("binds to the interface");
    let mut next = (2..=99).chain(120..=240).cycle();
    let mut pass_on = || {
        let mut message = discover("02:00:00:00:00:66", Vec::new());
        let nobody = Ipv4Addr::new(10, 77, 0, next.next().expect("without end"));
        message.set_giaddr(nobody).set_hops(1);
        let mut inform = self::message("02:00:00:00:00:66", MessageType::Inform, Vec::new());
        inform.set_ciaddr(nobody);
        for message in [message, inform] {
            socket.send_to(&encode(&message), (Ipv4Addr::new(10, 77, 0, 1), 67)).ok();
        }
    };
    (0..1000).for_each(|_| pass_on());
    ready();
    let (closed, is_closed) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        drop(closed);
    });
    let end = Instant::now() + 2 * DEADLINE;
    let open = || is_closed.recv_timeout(Duration::from_millis(20)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    while Instant::now() < end && open() {
        (0..20).for_each(|_| pass_on());
    }
}

/// Cut and changed messages, and good ones of made-up clients that want an address each, until the input closes or the time is over.
fn attack() {
    let (socket, to) = socket("Broadcast");
    let seconds: u64 = std::env::var("SLIPWAY_TEST_SECONDS").ok().and_then(|it| it.parse().ok()).unwrap_or(1);
    let good = encode(&discover(
        "02:00:00:00:00:66",
        vec![
            DhcpOption::Hostname("x".into()),
            DhcpOption::ClassIdentifier(b"PXEClient:Arch:00007".to_vec()),
            DhcpOption::ClientIdentifier(vec![7; 40]),
            DhcpOption::ParameterRequestList((1..60).map(dhcproto::v4::OptionCode::from).collect()),
        ],
    ));
    ready();
    let (closed, is_closed) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        drop(closed);
    });
    let mut random = rand::rng();
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        for cut in 0..good.len() {
            let mut packet = good[..cut].to_vec();
            match cut % 3 {
                0 => {}
                // hlen over 16, which makes some decoders panic.
                1 if cut > 3 => packet[2] = 255,
                // The hardware address stays: random ones would use up the pool, which is another story.
                _ => (0..8).for_each(|_| {
                    let at = random.random_range(0..=cut.saturating_sub(1));
                    if !(28..34).contains(&at) && at < packet.len() {
                        packet[at] = random.random();
                    }
                }),
            }
            socket.send_to(&packet, to).ok();
            if cut % 16 == 0 {
                let mut name = || DhcpOption::ClientIdentifier(random.random::<[u8; 16]>().to_vec());
                let (mine, other) = (name(), name());
                socket.send_to(&encode(&discover("02:00:00:00:00:66", vec![mine])), to).ok();
                // As after a reboot (RFC 2131 section 4.3.2): no offer is needed for this one.
                let wanted = Ipv4Addr::new(10, 77, 0, random.random_range(100..=110));
                let wanted = vec![other, DhcpOption::RequestedIpAddress(wanted)];
                socket.send_to(&encode(&message("02:00:00:00:00:66", MessageType::Request, wanted)), to).ok();
            }
            // Some thousand a second: bad messages are tried here, not full queues.
            let pause = Duration::from_millis(if cut % 20 == 0 { 5 } else { 0 });
            let closed = is_closed.recv_timeout(pause);
            if !matches!(closed, Err(std::sync::mpsc::RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }
}
