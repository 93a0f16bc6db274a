//! Log lines of one interface, rationed.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use tracing::field::display;

use crate::api::MacAddress;
use crate::boot::BootHost;
use crate::log::named;

use super::conflict::ConflictCheck;
use super::leases::CommitError;
use super::log_rate_limit::LogRateLimit;
use super::network::ServedNetwork;
use super::outcome::{Disposition, Level, MessageOutcome};
use super::packet::{DhcpRequest, Malformed};
use super::socket::{Outgoing, SendFailure};

/// What the log has one line about in a while.
#[derive(Hash, PartialEq, Eq)]
enum LogSubject {
    Machine(MacAddress, std::mem::Discriminant<Disposition>),
    Conflict(MacAddress, bool),
    DuplicateMac(MacAddress),
    InUse(Ipv4Addr),
    OtherServer(Ipv4Addr),
    Peer(Ipv4Addr),
    Relay(Ipv4Addr),
    UnnamedRelay,
    Unsent(std::mem::Discriminant<SendFailure>),
    Store,
    Receive,
}

/// Writes lines about one interface.
pub(super) struct InterfaceLog {
    interface: String,
    said: LogRateLimit<LogSubject>,
    said_of_known: LogRateLimit<LogSubject>,
    /// Answers that were not sent since the last line about it.
    unsent: u64,
}

impl InterfaceLog {
    /// Nothing was said yet.
    pub fn new(interface: String) -> Self {
        Self { interface, said: LogRateLimit::default(), said_of_known: LogRateLimit::default(), unsent: 0 }
    }

    fn may_log(&mut self, subject: LogSubject) -> bool {
        self.said.may_log(Instant::now(), subject).0
    }

    /// A message that is none.
    pub fn malformed(&mut self, error: &Malformed, source: SocketAddrV4) {
        if matches!(error, Malformed::Bootp | Malformed::NotRequest(_)) {
            tracing::debug!(interface = %self.interface, peer = %source, %error, "ignored a packet that is no DHCP request");
        } else if self.may_log(LogSubject::Peer(*source.ip())) {
            tracing::warn!(interface = %self.interface, peer = %source, %error, "a DHCP message cannot be read");
        }
    }

    /// A message for a subnet that nobody here serves.
    pub fn unknown_relay(&mut self, request: &DhcpRequest<'_>) {
        let relay = request.giaddr;
        if self.may_log(LogSubject::Relay(relay)) {
            tracing::warn!(
                interface = %self.interface, %relay, mac = %request.mac,
                "a DHCP relay asks for a subnet that no network on this interface has"
            );
        }
    }

    /// A relayed message for a network that hears other relays.
    pub fn unnamed_relay(&mut self, network: &ServedNetwork, request: &DhcpRequest<'_>, source: SocketAddrV4) {
        if self.may_log(LogSubject::UnnamedRelay) {
            tracing::warn!(
                network = %network.name, relay = %request.giaddr, peer = %source, mac = %request.mac,
                "ignored a DHCP relay: `relays` of the network does not name it"
            );
        }
    }

    /// Answers of one send group that were not sent; at least one.
    pub fn unsent(&mut self, answers: &[Outgoing], reason: &SendFailure) {
        let Some(Outgoing { peer, reply, .. }) = answers.first() else { return };
        self.unsent = self.unsent.saturating_add(answers.len() as u64);
        // A subject for each reason, so that made-up relays do not use up what may be said of others. The server's own: whoever
        // sends names the addresses.
        if self.said_of_known.may_log(Instant::now(), LogSubject::Unsent(std::mem::discriminant(reason))).0 {
            let dropped = std::mem::take(&mut self.unsent);
            let error = reason.refused().map(display);
            tracing::warn!(interface = %self.interface, %peer, to = %reply.to, dropped, error, "{}", reason.summary());
        }
    }

    /// Leases that are not on disk.
    pub fn not_stored(&mut self, error: &CommitError) {
        if self.may_log(LogSubject::Store) {
            tracing::error!(%error, "DHCP leases could not be stored, so their clients are not answered");
        }
    }

    /// The socket refuses.
    pub fn receive_failed(&mut self, error: &io::Error) {
        if self.may_log(LogSubject::Receive) {
            tracing::warn!(interface = %self.interface, %error, "cannot receive by DHCP");
        }
    }

    /// What came of checking an address that a known machine declined.
    pub fn conflict_checked(
        &mut self,
        network: &ServedNetwork,
        host: Option<&BootHost>,
        check: &ConflictCheck,
        taken: bool,
    ) {
        let ConflictCheck { mac, address, .. } = *check;
        if !self.said_of_known.may_log(Instant::now(), LogSubject::Conflict(mac, taken)).0 {
            return;
        }
        let host = host.map(|host| display(named(&host.namespace, &host.name)));
        if taken {
            let summary = Disposition::Declined { address, reserved: false }.summary();
            tracing::warn!(network = %network.name, %mac, host, %address, "{summary}");
        } else {
            tracing::warn!(
                network = %network.name, %mac, host, %address,
                "a message in this machine's name says that another one uses its address, and no other is seen there: the address stays the machine's"
            );
        }
    }

    /// A machine chose another server where there should be none.
    pub fn other_server(&mut self, network: &ServedNetwork, mac: MacAddress, server: Ipv4Addr) {
        if self.may_log(LogSubject::OtherServer(server)) {
            tracing::warn!(
                network = %network.name, %mac, %server,
                "another DHCP server answers here: a machine says that it chose it; stop that server, or set mode = \"proxy\""
            );
        }
    }

    /// A card answered by ARP for an address that was about to be offered to a machine.
    pub fn in_use(&mut self, network: &ServedNetwork, mac: MacAddress, address: Ipv4Addr, card: MacAddress) {
        if self.may_log(LogSubject::InUse(address)) {
            let summary = Disposition::Declined { address, reserved: false }.summary();
            tracing::warn!(network = %network.name, %mac, %card, %address, "{summary}");
        }
    }

    /// What was done about a message.
    pub fn outcome(
        &mut self,
        network: &ServedNetwork,
        request: &DhcpRequest<'_>,
        source: SocketAddrV4,
        host: Option<&BootHost>,
        outcome: &MessageOutcome,
    ) {
        let mac = request.mac;
        // What only reported itself is a stranger still.
        let host = host.filter(|host| !host.discovery.waiting);
        let known = host.is_some() || network.reservation(mac).is_some();
        if let Some((one, other)) = &outcome.duplicate_mac
            && self.said_of_known.may_log(Instant::now(), LogSubject::DuplicateMac(mac)).0
        {
            tracing::warn!(
                network = %network.name, %mac, peer = %source, before = %one, now = %other,
                "two machines have the same MAC address and different UUIDs: change one of the addresses"
            );
        }
        let level = outcome.disposition.level(known);
        if level == Level::Debug {
            // Most messages; nothing is put together for lines that nobody reads.
            tracing::debug!(network = %network.name, %mac, peer = %source, kind = ?request.kind, "{}", outcome.disposition);
            return;
        }
        let (summary, address) = (outcome.disposition.summary(), outcome.disposition.address().map(display));
        let (boot, reason) = (outcome.disposition.boot(), outcome.disposition.reason());
        let host = host.map(|host| display(named(&host.namespace, &host.name)));
        if level == Level::Info {
            tracing::info!(network = %network.name, %mac, host, kind = ?request.kind, address, boot, reason, "{summary}");
            return;
        }
        let subject = LogSubject::Machine(mac, std::mem::discriminant(&outcome.disposition));
        // Strangers cannot use up what known machines may say.
        let said = if known { &mut self.said_of_known } else { &mut self.said };
        let (may, dropped) = said.may_log(Instant::now(), subject);
        if may {
            tracing::warn!(
                network = %network.name, %mac, host, peer = %source, kind = ?request.kind, address, boot, reason,
                left_out = dropped, "{summary}"
            );
        }
    }
}
