//! Encoding of DHCP answers.

use std::net::Ipv4Addr;

use dhcproto::v4::{DhcpOption, MessageType};

use super::netboot::Netboot;
use super::network::{ServedNetwork, encode};
use super::packet::{BROADCAST, DhcpRequest, FILE, HEADER, MAGIC, code};

/// BOOTP's minimum (RFC 1542 section 2.1): some PXE ROMs drop what is shorter.
const MIN_REPLY: usize = 300;

/// What an answer says.
#[derive(Debug)]
pub struct ReplyContent<'a> {
    /// Message type.
    pub kind: MessageType,
    /// The client's address.
    pub yiaddr: Ipv4Addr,
    /// How long the lease holds, in seconds; `None` when there is none.
    pub lease: Option<u32>,
    /// Host name of the client.
    pub hostname: Option<&'a str>,
    /// What to boot.
    pub netboot: Option<&'a Netboot>,
    /// Whether the network's parameters go with it: mask, router and so on.
    pub parameters: bool,
    /// For the operator of the client (option 56).
    pub message: Option<&'a str>,
}

impl ReplyContent<'_> {
    /// An answer of a type that says nothing yet.
    pub fn new(kind: MessageType) -> Self {
        Self {
            kind,
            yiaddr: Ipv4Addr::UNSPECIFIED,
            lease: None,
            hostname: None,
            netboot: None,
            parameters: true,
            message: None,
        }
    }

    /// The UDP payload: at least 300 bytes, at most what the client takes. Options come in the order that the client
    /// asked for them (RFC 2132 section 9.8), after those that every answer has; what does not fit is left out.
    pub fn encode(&self, request: &DhcpRequest<'_>, network: &ServedNetwork) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(576);
        bytes.extend_from_slice(&self.header(request));
        let mut writer = OptionWriter { bytes, limit: request.reply_limit(), written: [false; 256] };

        let relay = request.get(code::RELAY);
        // The relay's data comes last and must fit (RFC 3046 section 2.1).
        let chunks = relay.as_deref().map_or(0, |data| data.len() + 2 * data.len().div_ceil(255).max(1));
        writer.limit = writer.limit.saturating_sub(chunks + 1);
        writer.put_short(code::MESSAGE_TYPE, &[u8::from(self.kind)]);
        writer.put_short(code::SERVER_ID, &network.server_id(request).octets());
        if let Some(seconds) = self.lease {
            writer.put_short(code::LEASE_TIME, &seconds.to_be_bytes());
        }
        // RFC 6842.
        if let Some(id) = request.get(code::CLIENT_ID) {
            writer.put(&DhcpOption::ClientIdentifier(id.into_owned()));
        }
        if let Some(text) = self.message {
            writer.put(&DhcpOption::Message(text.to_owned()));
        }
        let boot = self.netboot.map(|netboot| netboot.options(request)).unwrap_or_default();
        boot.iter().for_each(|option| writer.put(option));
        if self.parameters {
            self.write_parameters(request, network, &mut writer);
        }
        if let Some(data) = relay.as_deref() {
            for chunk in data.chunks(255) {
                writer.bytes.extend([code::RELAY, u8::try_from(chunk.len()).unwrap_or(0)]);
                writer.bytes.extend_from_slice(chunk);
            }
            if data.is_empty() {
                writer.bytes.extend([code::RELAY, 0]);
            }
        }
        writer.bytes.push(255);
        if writer.bytes.len() < MIN_REPLY {
            writer.bytes.resize(MIN_REPLY, 0);
        }
        writer.bytes
    }

    /// The fixed fields (RFC 2131 section 2). Written by hand, as it is read: it is most of an answer.
    fn header(&self, request: &DhcpRequest<'_>) -> [u8; HEADER] {
        let nak = self.kind == MessageType::Nak;
        // A relay has to broadcast a NAK: the client's address is wrong (RFC 2131 section 4.3.2).
        let broadcast = nak && !request.giaddr.is_unspecified();
        let flags = if broadcast { request.flags | BROADCAST } else { request.flags };
        let ciaddr = if nak { Ipv4Addr::UNSPECIFIED } else { request.ciaddr };
        let siaddr = self.netboot.map_or(Ipv4Addr::UNSPECIFIED, |netboot| netboot.server);
        let mut header = [0; HEADER];
        // BOOTREPLY, Ethernet.
        header[0..3].copy_from_slice(&[2, 1, 6]);
        header[4..8].copy_from_slice(&request.xid.to_be_bytes());
        header[10..12].copy_from_slice(&flags.to_be_bytes());
        for (at, address) in [(12, ciaddr), (16, self.yiaddr), (20, siaddr), (24, request.giaddr)] {
            header[at..at + 4].copy_from_slice(&address.octets());
        }
        header[28..34].copy_from_slice(&request.mac.0);
        if let Some(file) = self.netboot.map(|netboot| netboot.file.as_bytes()).filter(|file| file.len() < FILE.len()) {
            header[FILE.start..FILE.start + file.len()].copy_from_slice(file);
        }
        header[HEADER - MAGIC.len()..].copy_from_slice(&MAGIC);
        header
    }

    fn write_parameters(&self, request: &DhcpRequest<'_>, network: &ServedNetwork, writer: &mut OptionWriter) {
        let mut one = |wanted: u8| match wanted {
            code::HOSTNAME => {
                if let Some(name) = self.hostname {
                    writer.put(&DhcpOption::Hostname(name.to_owned()));
                }
            }
            // T1 and T2 are half and seven eighths of the lease (RFC 2131 section 4.4.5).
            code::RENEWAL => {
                if let Some(lease) = self.lease {
                    writer.put_short(code::RENEWAL, &(lease / 2).to_be_bytes());
                }
            }
            code::REBINDING => {
                if let Some(lease) = self.lease {
                    writer.put_short(code::REBINDING, &(lease - lease / 8).to_be_bytes());
                }
            }
            other => {
                if let Some(bytes) = network.option(other) {
                    writer.put_bytes(other, bytes);
                }
            }
        };
        let requested = request.get(code::PARAMETERS);
        match requested.as_deref() {
            Some(list) => list.iter().for_each(|wanted| one(*wanted)),
            None => {
                network.option_codes().for_each(&mut one);
                one(code::HOSTNAME);
            }
        }
        // Without its mask an address is of no use, and T1 and T2 hold the renewing together.
        [code::SUBNET_MASK, code::RENEWAL, code::REBINDING].into_iter().for_each(one);
    }
}

struct OptionWriter {
    bytes: Vec<u8>,
    limit: usize,
    written: [bool; 256],
}

impl OptionWriter {
    fn put(&mut self, option: &DhcpOption) {
        if let Some(bytes) = encode(option) {
            self.put_bytes(bytes[0], &bytes);
        }
    }

    /// An option of at most 255 bytes.
    fn put_short(&mut self, code: u8, data: &[u8]) {
        let Ok(length) = u8::try_from(data.len()) else { return };
        if !self.written[usize::from(code)] && self.bytes.len() + 2 + data.len() <= self.limit {
            self.written[usize::from(code)] = true;
            self.bytes.extend_from_slice(&[code, length]);
            self.bytes.extend_from_slice(data);
        }
    }

    /// An option with its code and length.
    fn put_bytes(&mut self, code: u8, bytes: &[u8]) {
        if !self.written[usize::from(code)] && self.bytes.len() + bytes.len() <= self.limit {
            self.written[usize::from(code)] = true;
            self.bytes.extend_from_slice(bytes);
        }
    }
}
