//! A DHCP relay with all machines behind it: one socket, answers told apart by their transaction.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode, OptionCode, UnknownOption};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::counts::RunCounts;
use super::rng::SeededRng;
use crate::api::MacAddress;
use crate::boot::Firmware;

/// Pause before a message is sent again, as network boot programs have it; it doubles, and after so many they give up.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const TRIES: u32 = 5;
/// Kernel's buffer for answers, in bytes, as far as the system allows it.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Largest answer, in bytes.
const LONGEST: usize = 1500;
/// Option 82 with "answer the port that this came from" (RFC 8357).
const RELAY_DATA: [u8; 2] = [19, 0];

/// Which program asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhcpProgram {
    /// The firmware's PXE client.
    Pxe(Firmware),
    /// The HTTP boot client of UEFI firmware.
    HttpBoot,
    /// iPXE.
    Ipxe(Firmware),
    /// A running system: the ramdisk's, or the installed one.
    System,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub struct RelayClient {
    /// Hardware address.
    pub mac: MacAddress,
    /// SMBIOS UUID.
    pub uuid: [u8; 16],
}

/// What a machine was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayLease {
    /// Its address.
    pub address: Ipv4Addr,
    /// What it is to boot: a file, or a URL.
    pub file: Option<String>,
    /// Where the file is.
    pub server: Ipv4Addr,
    /// Vendor class of the answer.
    pub class: Option<String>,
}

/// The relay.
pub struct Relay {
    socket: UdpSocket,
    address: Ipv4Addr,
    server: SocketAddrV4,
    loss: f64,
    // std's lock: held for a map operation, never across an await.
    waiting: Mutex<HashMap<u32, mpsc::Sender<Vec<u8>>>>,
    counts: Arc<RunCounts>,
}

impl Relay {
    /// A relay at `address`, an address of this machine, for the server.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn open(address: Ipv4Addr, server: SocketAddrV4, loss: f64, counts: Arc<RunCounts>) -> io::Result<Arc<Self>> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        socket.bind(&SocketAddrV4::new(address, 0).into())?;
        let socket = UdpSocket::from_std(socket.into())?;
        Ok(Arc::new(Self { socket, address, server, loss, waiting: Mutex::default(), counts }))
    }

    /// Hands answers to whoever waits for them, until the token is cancelled.
    pub async fn run(self: Arc<Self>, token: CancellationToken) {
        let mut buffer = [0; LONGEST];
        loop {
            let received = tokio::select! {
                () = token.cancelled() => return,
                received = self.socket.recv_from(&mut buffer) => received,
            };
            // An unreachable server shows as an error of the next read.
            let Ok((length, _)) = received else { continue };
            let Some(xid) = buffer.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes) else {
                continue;
            };
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).get(&xid).cloned();
            if let Some(waiting) = waiting {
                // A machine that has not taken the one before needs no second.
                waiting.try_send(buffer[..length].to_vec()).ok();
            }
        }
    }

    /// Gets an address: DISCOVER, OFFER, REQUEST, ACK. `None` when nobody answers.
    pub async fn acquire(&self, who: RelayClient, program: DhcpProgram, rng: &mut SeededRng) -> Option<RelayLease> {
        loop {
            let offer = self.ask(who, program, MessageType::Discover, None, rng).await?;
            let server = match offer.opts().get(OptionCode::ServerIdentifier) {
                Some(DhcpOption::ServerIdentifier(server)) => *server,
                _ => return None,
            };
            let answer = self.ask(who, program, MessageType::Request, Some((offer.yiaddr(), server)), rng).await?;
            if answer.opts().msg_type() == Some(MessageType::Ack) {
                self.counts.exchange();
                return Some(RelayLease {
                    address: answer.yiaddr(),
                    file: file(&answer),
                    server: answer.siaddr(),
                    class: class(&answer),
                });
            }
        }
    }

    async fn ask(
        &self,
        who: RelayClient,
        program: DhcpProgram,
        kind: MessageType,
        offered: Option<(Ipv4Addr, Ipv4Addr)>,
        rng: &mut SeededRng,
    ) -> Option<Message> {
        let xid = rng.number();
        let bytes = self.message(xid, who, program, kind, offered)?;
        let (sender, mut answers) = mpsc::channel(1);
        let _waiting = RelaySlot::new(self, xid, sender);
        for attempt in 0..TRIES {
            if attempt > 0 {
                self.counts.ask_again();
            }
            if !self.loses(rng) {
                // A full buffer is a lost packet.
                self.socket.send_to(&bytes, self.server).await.ok();
            }
            let until = Instant::now() + FIRST_PAUSE * 2u32.pow(attempt);
            while let Ok(Some(answer)) = tokio::time::timeout_at(until, answers.recv()).await {
                if !self.loses(rng)
                    && let Ok(message) = Message::decode(&mut Decoder::new(&answer))
                    && fits(kind, &message)
                {
                    return Some(message);
                }
            }
        }
        None
    }

    fn loses(&self, rng: &mut SeededRng) -> bool {
        let lost = rng.happens(self.loss);
        if lost {
            self.counts.lose();
        }
        lost
    }

    fn message(
        &self,
        xid: u32,
        who: RelayClient,
        program: DhcpProgram,
        kind: MessageType,
        offered: Option<(Ipv4Addr, Ipv4Addr)>,
    ) -> Option<Vec<u8>> {
        let none = Ipv4Addr::UNSPECIFIED;
        let mut message = Message::new_with_id(xid, none, none, none, self.address, &who.mac.0);
        message.set_opcode(Opcode::BootRequest).set_hops(1);
        let options = message.opts_mut();
        let mut other = |code: u8, data: Vec<u8>| {
            options.insert(DhcpOption::Unknown(UnknownOption::new(code.into(), data)));
        };
        let uuid = [&[0][..], &who.uuid].concat();
        // Options 93, 94, 97 and 60 are those of PXE (RFC 4578).
        let asks = match program {
            DhcpProgram::Pxe(firmware) | DhcpProgram::Ipxe(firmware) => Some(("PXEClient", firmware)),
            DhcpProgram::HttpBoot => Some(("HTTPClient", Firmware::UefiX64Http)),
            DhcpProgram::System => None,
        };
        match asks {
            Some((class, firmware)) => {
                let undi = if firmware.is_uefi() { [1, 3, 16] } else { [1, 2, 1] };
                other(93, firmware.number().to_be_bytes().to_vec());
                other(94, undi.to_vec());
                other(97, uuid);
                let [_, major, minor] = undi;
                let class = format!("{class}:Arch:{:05}:UNDI:{major:03}{minor:03}", firmware.number());
                other(60, class.into_bytes());
                other(55, vec![1, 3, 6, 12, 15, 28, 42, 43, 54, 60, 66, 67, 97]);
            }
            None => other(55, vec![1, 3, 6, 12, 15, 28, 42]),
        }
        if let DhcpProgram::Ipxe(_) = program {
            other(77, b"iPXE".to_vec());
        }
        other(82, RELAY_DATA.to_vec());
        options.insert(DhcpOption::MessageType(kind));
        if let Some((address, server)) = offered {
            options.insert(DhcpOption::RequestedIpAddress(address));
            options.insert(DhcpOption::ServerIdentifier(server));
        }
        let mut bytes = Vec::with_capacity(400);
        message.encode(&mut Encoder::new(&mut bytes)).ok()?;
        Some(bytes)
    }
}

/// Whether a message answers one of this type.
fn fits(asked: MessageType, answer: &Message) -> bool {
    match (asked, answer.opts().msg_type()) {
        (MessageType::Discover, kind) => kind == Some(MessageType::Offer),
        (_, kind) => matches!(kind, Some(MessageType::Ack | MessageType::Nak)),
    }
}

fn file(message: &Message) -> Option<String> {
    let option = match message.opts().get(OptionCode::BootfileName) {
        Some(DhcpOption::BootfileName(name)) => Some(String::from_utf8_lossy(name).into_owned()),
        _ => None,
    };
    let header = || message.fname_str().and_then(Result::ok).map(str::to_owned);
    let name = option.or_else(header)?.trim_end_matches('\0').to_owned();
    (!name.is_empty()).then_some(name)
}

fn class(message: &Message) -> Option<String> {
    match message.opts().get(OptionCode::ClassIdentifier) {
        Some(DhcpOption::ClassIdentifier(class)) => Some(String::from_utf8_lossy(class).into_owned()),
        _ => None,
    }
}

/// A place in the relay's list, until it is dropped.
struct RelaySlot<'a> {
    relay: &'a Relay,
    xid: u32,
}

impl<'a> RelaySlot<'a> {
    fn new(relay: &'a Relay, xid: u32, sender: mpsc::Sender<Vec<u8>>) -> Self {
        relay.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(xid, sender);
        Self { relay, xid }
    }
}

impl Drop for RelaySlot<'_> {
    fn drop(&mut self) {
        self.relay.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.xid);
    }
}
