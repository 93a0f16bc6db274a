//! Frames: RMCP, the two session headers, the IPMI message inside (sections 13.1 to 13.8).

/// Largest datagram that is read or written; IPMI messages are far smaller.
pub const MAX_PACKET: usize = 1024;

/// Payload types of RMCP+ (table 13-16).
pub mod payload {
    /// An IPMI message.
    pub const IPMI: u8 = 0x00;
    /// Open Session Request.
    pub const OPEN_REQUEST: u8 = 0x10;
    /// Open Session Response.
    pub const OPEN_RESPONSE: u8 = 0x11;
    /// RAKP message 1.
    pub const RAKP1: u8 = 0x12;
    /// RAKP message 2.
    pub const RAKP2: u8 = 0x13;
    /// RAKP message 3.
    pub const RAKP3: u8 = 0x14;
    /// RAKP message 4.
    pub const RAKP4: u8 = 0x15;
}

const RMCP: [u8; 4] = [0x06, 0x00, 0xff, 0x07];
/// RMCP header and RMCP+ session header.
const V20_HEADER: usize = 16;
/// RMCP header and IPMI 1.5 session header without authentication.
const V15_HEADER: usize = 14;
const AUTH_NONE: u8 = 0x00;
const AUTH_RMCP_PLUS: u8 = 0x06;

/// Why a packet was passed over. It is counted and logged, never an error of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// Shorter than its headers or its payload.
    #[error("too short")]
    Short,
    /// Lengths inside do not agree with the length of the packet.
    #[error("lengths do not agree")]
    Length,
    /// Not RMCP, or not IPMI inside.
    #[error("not an IPMI packet")]
    Foreign,
    /// Authentication of a kind that was not agreed on.
    #[error("unexpected authentication type {0:#04x}")]
    AuthType(u8),
    /// A checksum is wrong.
    #[error("wrong checksum")]
    Checksum,
    /// For another session.
    #[error("for another session")]
    Session,
    /// Another payload than the one that is waited for.
    #[error("unexpected payload type {0:#04x}")]
    Payload(u8),
    /// Answer to an earlier request.
    #[error("answer to another request")]
    Stale,
    /// Sequence number seen before or too old.
    #[error("sequence number {0} was seen or is too old")]
    Replay(u32),
    /// Not protected although the session is.
    #[error("not signed or not encrypted")]
    Unprotected,
    /// Integrity check failed.
    #[error("integrity check failed")]
    Integrity,
    /// Decryption failed.
    #[error("cannot be decrypted")]
    Cipher,
}

/// An RMCP+ packet (section 13.6), checked for lengths only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V20<'a> {
    /// One of [`payload`].
    pub payload_type: u8,
    /// Payload is encrypted.
    pub encrypted: bool,
    /// Packet is signed.
    pub authenticated: bool,
    /// Session, in the numbering of the receiver.
    pub session: u32,
    /// Session sequence number.
    pub sequence: u32,
    /// Payload.
    pub payload: &'a [u8],
    /// All after the RMCP header, for the integrity check.
    pub after_rmcp: &'a [u8],
    /// All after the payload: padding, pad length, next header, code.
    pub trailer: &'a [u8],
}

/// A packet of either session header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// IPMI 1.5, without authentication: only used before a session.
    V15 {
        /// Session, 0 before one is open.
        session: u32,
        /// The IPMI message.
        payload: &'a [u8],
    },
    /// RMCP+.
    V20(V20<'a>),
}

/// Reads the frame of a packet.
pub fn decode(packet: &[u8]) -> Result<Frame<'_>, Ignored> {
    let after_rmcp = packet.get(4..).ok_or(Ignored::Short)?;
    // Byte 2 is the RMCP sequence number, FFh where no acknowledgement is wanted.
    if packet[0] != RMCP[0] || packet[3] & 0x9f != RMCP[3] {
        return Err(Ignored::Foreign);
    }
    match after_rmcp.first().copied().ok_or(Ignored::Short)? {
        AUTH_NONE => {
            let header = packet.get(..V15_HEADER).ok_or(Ignored::Short)?;
            let len = usize::from(header[13]);
            let body = &packet[V15_HEADER..];
            // Some controllers add a pad byte after the payload (section 13.6, "legacy pad").
            let payload = body.get(..len).ok_or(Ignored::Length)?;
            if body.len() > len + 1 {
                return Err(Ignored::Length);
            }
            Ok(Frame::V15 { session: le32(&header[9..13]), payload })
        }
        AUTH_RMCP_PLUS => {
            let header = packet.get(..V20_HEADER).ok_or(Ignored::Short)?;
            let kind = header[5];
            if kind & 0x3f == 0x02 {
                // OEM explicit payloads have a longer header; nothing here uses them.
                return Err(Ignored::Payload(kind));
            }
            let len = usize::from(u16::from_le_bytes([header[14], header[15]]));
            let body = &packet[V20_HEADER..];
            let payload = body.get(..len).ok_or(Ignored::Length)?;
            Ok(Frame::V20(V20 {
                payload_type: kind & 0x3f,
                encrypted: kind & 0x80 != 0,
                authenticated: kind & 0x40 != 0,
                session: le32(&header[6..10]),
                sequence: le32(&header[10..14]),
                payload,
                after_rmcp,
                trailer: &body[len..],
            }))
        }
        other => Err(Ignored::AuthType(other)),
    }
}

/// A packet of the IPMI 1.5 form without session, for what is asked before one is open.
pub fn encode_v15(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(V15_HEADER + message.len());
    out.extend_from_slice(&RMCP);
    out.push(AUTH_NONE);
    out.extend_from_slice(&[0; 8]);
    out.push(u8::try_from(message.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(message);
    out
}

/// The head of an RMCP+ packet and its payload, without trailer.
pub fn encode_v20(payload_type: u8, flags: u8, session: u32, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(V20_HEADER + payload.len() + 32);
    out.extend_from_slice(&RMCP);
    out.push(AUTH_RMCP_PLUS);
    out.push(payload_type | flags);
    out.extend_from_slice(&session.to_le_bytes());
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&u16::try_from(payload.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend_from_slice(payload);
    out
}

/// Address of the BMC on its bus.
pub const BMC_ADDRESS: u8 = 0x20;
/// Address of remote console software.
pub const CONSOLE_ADDRESS: u8 = 0x81;

/// An IPMI message as on the LAN (section 13.8). In a response the data begin with the completion code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpmiMessage {
    /// Address of the receiver.
    pub to: u8,
    /// Network function, 0 to 63; even in a request, odd in its response.
    pub net_fn: u8,
    /// Address of the sender.
    pub from: u8,
    /// Sequence number, 0 to 63.
    pub sequence: u8,
    /// Command.
    pub command: u8,
    /// Data.
    pub data: Vec<u8>,
}

impl IpmiMessage {
    /// A request of ours.
    pub fn request(net_fn: u8, command: u8, sequence: u8, data: &[u8]) -> Self {
        let sequence = sequence & 0x3f;
        Self { to: BMC_ADDRESS, net_fn, from: CONSOLE_ADDRESS, sequence, command, data: data.to_vec() }
    }

    /// The response to a request; `data` begins with the completion code.
    pub fn response(&self, data: Vec<u8>) -> Self {
        Self { to: self.from, from: self.to, net_fn: self.net_fn | 1, data, ..*self }
    }

    /// Bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.to, self.net_fn << 2];
        out.push(checksum(&out));
        out.extend_from_slice(&[self.from, self.sequence << 2, self.command]);
        out.extend_from_slice(&self.data);
        out.push(checksum(&out[3..]));
        out
    }

    /// Reads bytes and checks both checksums.
    pub fn decode(bytes: &[u8]) -> Result<Self, Ignored> {
        let (head, rest) = bytes.split_at_checked(3).ok_or(Ignored::Short)?;
        if rest.len() < 4 {
            return Err(Ignored::Short);
        }
        if sum(head) != 0 || sum(rest) != 0 {
            return Err(Ignored::Checksum);
        }
        Ok(Self {
            to: head[0],
            net_fn: head[1] >> 2,
            from: rest[0],
            sequence: rest[1] >> 2,
            command: rest[2],
            data: rest[3..rest.len() - 1].to_vec(),
        })
    }
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Two's complement of the sum (section 13.8).
fn checksum(bytes: &[u8]) -> u8 {
    sum(bytes).wrapping_neg()
}

/// Little-endian number of the first four bytes; missing ones count as 0.
pub fn le32(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).rev().fold(0, |n, b| n << 8 | u32::from(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authentication_capabilities_request_is_the_one_of_ipmitool() {
        // Captured from `ipmitool -I lanplus`, its first packet.
        let want = [
            0x06, 0x00, 0xff, 0x07, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x09, 0x20, 0x18, 0xc8, 0x81, 0x00, 0x38, 0x8e, 0x04,
            0xb5,
        ];
        assert_eq!(encode_v15(&IpmiMessage::request(6, 0x38, 0, &[0x8e, 0x04]).encode()), want);
        let Frame::V15 { session, payload } = decode(&want).unwrap() else { panic!("not 1.5") };
        assert_eq!((session, IpmiMessage::decode(payload).unwrap().command), (0, 0x38));
    }

    #[test]
    fn a_message_survives_the_round_trip_and_no_changed_byte_does() {
        let m = IpmiMessage::request(0, 2, 9, &[1, 2, 3]);
        let bytes = m.encode();
        assert_eq!(IpmiMessage::decode(&bytes).unwrap(), m);
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x40;
            assert_eq!(IpmiMessage::decode(&bad), Err(Ignored::Checksum), "byte {at}");
            assert!(IpmiMessage::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn lengths_are_believed_only_when_they_fit() {
        let packet = encode_v20(payload::IPMI, 0, 1, 2, &[7; 9]);
        for cut in 0..packet.len() {
            assert!(decode(&packet[..cut]).is_err(), "cut at {cut}");
        }
        let mut long = packet.clone();
        long[15] = 0xff;
        assert_eq!(decode(&long), Err(Ignored::Length));
        assert_eq!(decode(&[0x06, 0, 0xff, 0x06, 0, 0, 0x11, 0xbe]), Err(Ignored::Foreign));
        assert_eq!(decode(&[0x06, 0, 0xff, 0x07, 2]), Err(Ignored::AuthType(2)));
    }
}
