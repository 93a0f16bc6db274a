//! The server's loops: receive, answer, write, send.
//!
//! One task for each interface takes messages in batches, answers offers at once, hands lease writes to the store
//! without waiting for the one before, and sends each ACK when its write is on disk. So a thousand machines that power
//! on together share the store's flushes. When too many writes are under way it stops reading, and the kernel's queue
//! drops what does not fit, as any full queue on the way does; clients ask again.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use futures::future::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::api::MacAddress;
use crate::boot::HostIndex;
use crate::config::NetworkMode;

use super::BootSite;
use super::interface::{Interface, interfaces};
use super::leases::{CommitError, Leases, unix_now};
use super::network::{Network, select};
use super::outcome::{LeaseWrite, Level, Outcome, Reply};
use super::packet::{Malformed, Request, SERVER_PORT};
use super::publish::{self, Views};
use super::quiet::Quiet;
use super::respond::{Arrival, Ground, Port, respond};
use super::seen::Message;
use super::socket::{Inbox, Outgoing, Sockets};

/// Lease writes under way for one interface before it stops reading.
const IN_FLIGHT: usize = 4096;
/// Messages and finished writes in one turn that count as busy.
const BUSY: usize = 8;
/// Finished writes taken in one turn: answers do not leave in bursts that overrun a relay's or a client's buffers.
const TURN: usize = 128;
/// How long a busy server lets more arrive before it looks again: fewer wake-ups, larger batches, fuller flushes. Two
/// hundred messages a millisecond are more than a machine can answer.
const BREATH: Duration = Duration::from_millis(1);
/// UDP port of proxyDHCP.
const PROXY_PORT: u16 = 4011;
/// Time between looks at what ended and at the interface.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// How long the last writes may take when the server stops.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// DHCP cannot serve a network.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The kernel does not tell its interfaces.
    #[error("cannot list the network interfaces: {0}")]
    Interfaces(#[source] io::Error),
    /// There is no such interface.
    #[error("network {network:?}: there is no interface {interface:?}; there are {}", .present.join(", "))]
    NoInterface {
        /// The network.
        network: String,
        /// Its interface.
        interface: String,
        /// Interfaces that exist.
        present: Vec<String>,
    },
    /// The interface has no address in the subnet.
    #[error(
        "network {network:?}: interface {interface:?} has no address in {subnet} (it has {}): give it one, or set \
         `server`", list(.present)
    )]
    NoAddress {
        /// The network.
        network: String,
        /// Its interface.
        interface: String,
        /// Its subnet.
        subnet: ipnetwork::Ipv4Network,
        /// Addresses that the interface has.
        present: Vec<Ipv4Addr>,
    },
    /// The port cannot be had.
    #[error("cannot serve DHCP on {interface:?}, UDP port {port}: {source}{}", hint(.source))]
    Socket {
        /// The interface.
        interface: String,
        /// The port.
        port: u16,
        /// Why.
        source: io::Error,
    },
}

fn list(addresses: &[Ipv4Addr]) -> String {
    if addresses.is_empty() {
        return "none".into();
    }
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another DHCP server runs on this machine: `ss -ulpn` shows which)",
        io::ErrorKind::PermissionDenied => " (it takes the capabilities CAP_NET_BIND_SERVICE and CAP_NET_RAW, or root)",
        _ => "",
    }
}

/// The server ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("the DHCP server ended: {0}")]
pub struct ServeError(String);

/// A DHCP server with its sockets open.
pub struct Server {
    lines: Vec<Line>,
    leases: Leases,
    hosts: HostIndex,
    views: Views,
}

impl Server {
    /// Opens the sockets for every network that the leases were loaded for; `views` is where leases are shown. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// The first network that cannot be served, and why.
    pub fn bind(site: BootSite, leases: Leases, hosts: HostIndex, views: Views) -> Result<Self, BindError> {
        let present = interfaces().map_err(BindError::Interfaces)?;
        let mut lines: Vec<Line> = Vec::new();
        for (index, served) in leases.networks().iter().enumerate() {
            let config = &served.config;
            let Some(interface) = present.get(&config.interface) else {
                return Err(BindError::NoInterface {
                    network: config.name.clone(),
                    interface: config.interface.clone(),
                    present: present.keys().cloned().collect(),
                });
            };
            // A network behind a relay has no address here: there this machine goes by the one that the relay reaches.
            let neighbour = || {
                let line = lines.iter().find(|line| line.interface == config.interface)?;
                line.networks.first().map(|(_, network)| network.server)
            };
            let found = config.server.or_else(|| interface.address_in(config.subnet)).or_else(neighbour);
            let Some(server) = found else {
                return Err(BindError::NoAddress {
                    network: config.name.clone(),
                    interface: config.interface.clone(),
                    subnet: config.subnet,
                    present: interface.addresses.clone(),
                });
            };
            served.table().exclude(server);
            let ports: &[Port] = match config.mode {
                NetworkMode::Proxy => &[Port::Server, Port::Proxy],
                _ => &[Port::Server],
            };
            tracing::info!(
                network = %config.name, interface = %config.interface, subnet = %config.subnet, %server,
                mode = ?config.mode, "DHCP serves"
            );
            for port in ports {
                let network = Network::new(config, server, site);
                let same = |line: &&mut Line| line.interface == config.interface && line.port == *port;
                if let Some(line) = lines.iter_mut().find(same) {
                    line.networks.push((index, network));
                    continue;
                }
                lines.push(Line {
                    interface: config.interface.clone(),
                    port: *port,
                    networks: vec![(index, network)],
                    number: site.number(*port),
                    sockets: open(&config.interface, interface, site.number(*port))?,
                    leases: leases.clone(),
                    hosts: hosts.clone(),
                    said: Quiet::default(),
                    down: false,
                });
            }
        }
        if site.dhcp_port != SERVER_PORT && !lines.is_empty() {
            tracing::warn!(port = site.dhcp_port, "DHCP clients ask port 67 only; this server hears relays alone");
        }
        if site.tftp_port != 69 && !lines.is_empty() {
            tracing::warn!(port = site.tftp_port, "PXE firmware asks TFTP on port 69 only; it will find nothing there");
        }
        Ok(Self { lines, leases, hosts, views })
    }

    /// Serves until told to stop; then finishes the writes under way.
    ///
    /// # Errors
    ///
    /// When a part of it ends before that. The process should end, too.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), ServeError> {
        let mut tasks = JoinSet::new();
        tasks.spawn(publish::run(self.leases, self.hosts, self.views, shutdown.clone()));
        for line in self.lines {
            tasks.spawn(line.run(shutdown.clone()));
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                return Err(ServeError(error.to_string()));
            }
            if !shutdown.is_cancelled() {
                return Err(ServeError("a task stopped".into()));
            }
        }
        Ok(())
    }
}

fn open(name: &str, interface: &Interface, port: u16) -> Result<Sockets, BindError> {
    Sockets::open(name, interface, port).map_err(|source| BindError::Socket {
        interface: name.to_owned(),
        port,
        source,
    })
}

impl BootSite {
    fn number(self, port: Port) -> u16 {
        match port {
            Port::Server => self.dhcp_port,
            Port::Proxy => PROXY_PORT,
        }
    }
}

/// What the log is quiet about for a while.
#[derive(Hash, PartialEq, Eq)]
enum Subject {
    Machine(MacAddress, std::mem::Discriminant<super::outcome::Note>),
    Twin(MacAddress),
    Peer(Ipv4Addr),
    Relay(Ipv4Addr),
    Store,
    Receive,
}

/// One interface and port.
struct Line {
    interface: String,
    port: Port,
    /// Its number.
    number: u16,
    /// The networks on it, with their number in the leases.
    networks: Vec<(usize, Network)>,
    sockets: Sockets,
    leases: Leases,
    hosts: HostIndex,
    said: Quiet<Subject>,
    /// Whether the interface is gone.
    down: bool,
}

/// A write and the answer that waits for it.
struct Written {
    result: Result<(), CommitError>,
    answer: Option<Outgoing>,
}

async fn write(leases: Leases, writes: Vec<LeaseWrite>, answer: Option<Outgoing>) -> Written {
    Written { result: leases.commit(writes).await, answer }
}

impl Line {
    async fn run(mut self, shutdown: CancellationToken) {
        let mut writes = FuturesUnordered::new();
        let mut inbox = Inbox::default();
        let mut answers = Vec::new();
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let room = writes.len() < IN_FLIGHT;
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(written) = writes.next(), if !writes.is_empty() => self.finish(written, &mut answers),
                ready = self.sockets.readable(), if room && !self.down => {
                    if let Err(error) = ready {
                        self.receive_failed(&error);
                    }
                }
                _ = housekeeping.tick() => {
                    for (index, gone) in self.keep_house() {
                        tracing::debug!(network = index, leases = gone.len(), "old leases are forgotten");
                        writes.push(write(self.leases.clone(), gone, None));
                    }
                }
            }
            let mut done = 0;
            while done < TURN
                && let Some(Some(written)) = writes.next().now_or_never()
            {
                self.finish(written, &mut answers);
                done += 1;
            }
            if room && !self.down {
                match self.sockets.receive(&mut inbox) {
                    Ok(0) => {}
                    Ok(arrived) => {
                        done += arrived;
                        let now = unix_now();
                        for (message, source) in inbox.messages() {
                            let Some((answer, changes)) = self.answer(now, message, source) else { continue };
                            if changes.is_empty() {
                                answers.extend(answer);
                            } else {
                                writes.push(write(self.leases.clone(), changes, answer));
                            }
                        }
                    }
                    Err(error) => self.receive_failed(&error),
                }
            }
            self.sockets.send(&answers).await;
            answers.clear();
            if done >= BUSY {
                tokio::time::sleep(BREATH).await;
            }
        }
        let last = async {
            while let Some(written) = writes.next().await {
                self.finish(written, &mut answers);
            }
        };
        if tokio::time::timeout(LAST_WRITES, last).await.is_err() {
            tracing::warn!(interface = %self.interface, "DHCP stops with leases unwritten; nobody was told of them");
        }
        self.sockets.send(&answers).await;
    }

    /// Answers one message. `None` when there is nothing to do.
    fn answer(
        &mut self,
        now: u64,
        message: &[u8],
        source: SocketAddrV4,
    ) -> Option<(Option<Outgoing>, Vec<LeaseWrite>)> {
        let request = match Request::parse(message) {
            Ok(request) => request,
            Err(error) => {
                self.malformed(&error, source);
                return None;
            }
        };
        let Some(&(index, ref network)) = select_indexed(&self.networks, &request) else {
            let relay = request.giaddr;
            if self.said.may_say(Instant::now(), Subject::Relay(relay)).0 {
                tracing::warn!(
                    interface = %self.interface, %relay, mac = %request.mac,
                    "a DHCP relay asks for a subnet that no network on this interface has"
                );
            }
            return None;
        };
        let leases = self.leases.networks().get(index)?;
        let hosts = &self.hosts;
        let known = |mac: MacAddress| network.reservation(mac).is_some() || hosts.by_mac(mac).is_some();
        let host = hosts.by_mac(request.mac);
        let stranger = hosts.stranger(request.mac, network.discovery);
        let ground = Ground { network, host: host.as_deref(), stranger: &stranger, known: &known };
        let arrival = Arrival { source, port: self.port };
        let outcome = {
            let mut table = leases.table();
            respond(now, &request, arrival, ground, &mut table)
        };
        log(&mut self.said, network, &request, source, host.as_deref(), &outcome);
        let message = Message { at: now, network: index, kind: request.kind, note: outcome.note.clone() };
        self.leases.saw(request.mac, message);
        let Outcome { reply, writes, .. } = outcome;
        let server = network.server;
        Some((reply.map(|reply: Reply| Outgoing { server, reply }), writes))
    }

    fn malformed(&mut self, error: &Malformed, source: SocketAddrV4) {
        if matches!(error, Malformed::Bootp | Malformed::NotRequest(_)) {
            tracing::debug!(interface = %self.interface, peer = %source, %error, "not a DHCP request");
        } else if self.said.may_say(Instant::now(), Subject::Peer(*source.ip())).0 {
            tracing::warn!(interface = %self.interface, peer = %source, %error, "a DHCP message cannot be read");
        }
    }

    fn finish(&mut self, written: Written, answers: &mut Vec<Outgoing>) {
        match written.result {
            Ok(()) => answers.extend(written.answer),
            Err(error) => {
                if self.said.may_say(Instant::now(), Subject::Store).0 {
                    tracing::error!(%error, "a DHCP lease could not be stored, so its client is not answered");
                }
            }
        }
    }

    fn receive_failed(&mut self, error: &io::Error) {
        if self.said.may_say(Instant::now(), Subject::Receive).0 {
            tracing::warn!(interface = %self.interface, %error, "DHCP cannot receive");
        }
        // Not again before the next look at the interface: an error that stays would keep a processor busy.
        self.down = true;
    }

    /// Lets leases end, and follows the interface when it is made anew. Returns the records to remove.
    fn keep_house(&mut self) -> Vec<(usize, Vec<LeaseWrite>)> {
        let now = unix_now();
        let mut all = Vec::new();
        for (index, network) in self.networks.iter().filter(|_| self.port == Port::Server) {
            let Some(leases) = self.leases.networks().get(*index) else { continue };
            let known = |mac: MacAddress| network.reservation(mac).is_some() || self.hosts.by_mac(mac).is_some();
            let gone = leases.table().advance(now, &known);
            let gone: Vec<_> = gone.into_iter().map(|address| LeaseWrite { address, record: None }).collect();
            if !gone.is_empty() {
                all.push((*index, gone));
            }
        }
        self.follow_interface();
        all
    }

    fn follow_interface(&mut self) {
        let index = nix::net::if_::if_nametoindex(self.interface.as_str()).ok();
        if index == Some(self.sockets.index) {
            self.down = false;
            return;
        }
        if !self.down {
            tracing::warn!(interface = %self.interface, "the interface is gone; DHCP waits for it");
        }
        self.down = true;
        if index.is_none() {
            return;
        }
        let found = interfaces().ok().and_then(|all| all.get(&self.interface).cloned()).unwrap_or_default();
        match open(&self.interface, &found, self.number) {
            Ok(sockets) => {
                tracing::info!(interface = %self.interface, "the interface is back; DHCP serves it again");
                self.sockets = sockets;
                self.down = false;
            }
            Err(error) => tracing::debug!(%error, "the interface cannot be served yet"),
        }
    }
}

fn select_indexed<'n>(networks: &'n [(usize, Network)], request: &Request<'_>) -> Option<&'n (usize, Network)> {
    let chosen = select(networks.iter().map(|(_, network)| network), request)?;
    networks.iter().find(|(_, network)| std::ptr::eq(network, chosen))
}

fn log(
    said: &mut Quiet<Subject>,
    network: &Network,
    request: &Request<'_>,
    source: SocketAddrV4,
    host: Option<&crate::boot::BootHost>,
    outcome: &Outcome,
) {
    let mac = request.mac;
    if let Some((one, other)) = &outcome.twin
        && said.may_say(Instant::now(), Subject::Twin(mac)).0
    {
        tracing::warn!(
            network = %network.name, %mac, peer = %source, before = %one, now = %other,
            "two machines show the same MAC address; their UUIDs differ: change one of the addresses"
        );
    }
    let level = outcome.note.level(host.is_some() || network.reservation(mac).is_some());
    if level == Level::Debug {
        // Most messages; nothing is put together for lines that nobody reads.
        tracing::debug!(network = %network.name, %mac, peer = %source, kind = ?request.kind, "{}", outcome.note);
        return;
    }
    let host = host.map_or_else(String::new, |host| format!("{}/{}", host.namespace, host.name));
    if level == Level::Info {
        tracing::info!(network = %network.name, %mac, host, kind = ?request.kind, "{}", outcome.note);
        return;
    }
    let (may, dropped) = said.may_say(Instant::now(), Subject::Machine(mac, std::mem::discriminant(&outcome.note)));
    if may {
        tracing::warn!(
            network = %network.name, %mac, host, peer = %source, kind = ?request.kind, left_out = dropped,
            "{}", outcome.note
        );
    }
}
