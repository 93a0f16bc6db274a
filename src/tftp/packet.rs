//! TFTP packets (RFC 1350 section 5, RFC 2347).

use std::borrow::Cow;

/// Longest request that is looked at, in bytes. RFC 2347 section 4 limits requests to 512.
pub const MAX_REQUEST: usize = 1024;

/// Bytes before the data in a DATA packet.
pub const DATA_HEADER: usize = 4;

/// Error codes (RFC 1350 section 5, RFC 2347 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum ErrorCode {
    /// See the message.
    NotDefined = 0,
    /// File not found.
    NotFound = 1,
    /// Access violation.
    AccessViolation = 2,
    /// Illegal TFTP operation.
    IllegalOperation = 4,
    /// Unknown transfer ID.
    UnknownTransfer = 5,
}

/// A request to read, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest<'a> {
    /// File name; any bytes but NUL.
    pub name: &'a [u8],
    /// The options that are known and well formed.
    pub options: RequestedOptions,
}

/// Options a client asked for. An option that is unknown, malformed or out of its range is left out: the client
/// then finds it missing in the OACK and goes on without (RFC 2347 section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestedOptions {
    /// `blksize`: 8 to 65464 bytes (RFC 2348).
    pub block_size: Option<u16>,
    /// `timeout`: 1 to 255 seconds (RFC 2349).
    pub timeout: Option<u8>,
    /// `tsize`: the client wants the size of the file (RFC 2349).
    pub size: bool,
    /// `windowsize`: 1 to 65535 blocks (RFC 7440).
    pub window: Option<u16>,
}

/// A packet at the server's well-known port that is no read request we serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadRequestError {
    /// Not a request at all: answering would only feed a loop.
    #[error("no TFTP request")]
    NotARequest,
    /// RFC 1350 section 5: opcode 2.
    #[error("write request: this server is read only")]
    Write,
    /// No NUL-terminated name and mode.
    #[error("malformed read request")]
    Malformed,
    /// `netascii` or something unknown; boot programs are binary.
    #[error("transfer mode {0:?}: only octet is served")]
    Mode(String),
}

impl ReadRequestError {
    /// Code for the client; `None` when it gets no answer.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::NotARequest => None,
            Self::Write => Some(ErrorCode::AccessViolation),
            Self::Malformed | Self::Mode(_) => Some(ErrorCode::IllegalOperation),
        }
    }
}

/// Reads a packet that came to the well-known port.
pub fn parse_request(packet: &[u8]) -> Result<ReadRequest<'_>, ReadRequestError> {
    let body = match packet {
        [0, 1, body @ ..] if packet.len() <= MAX_REQUEST => body,
        [0, 1, ..] => return Err(ReadRequestError::Malformed),
        [0, 2, ..] => return Err(ReadRequestError::Write),
        _ => return Err(ReadRequestError::NotARequest),
    };
    let (name, rest) = string(body).ok_or(ReadRequestError::Malformed)?;
    let (mode, mut rest) = string(rest).ok_or(ReadRequestError::Malformed)?;
    if name.is_empty() {
        return Err(ReadRequestError::Malformed);
    }
    if !mode.eq_ignore_ascii_case(b"octet") {
        return Err(ReadRequestError::Mode(printable(mode).into_owned()));
    }
    // Some PXE ROMs take option 67 to its end-of-options byte into the name.
    let end = name.iter().rposition(|byte| *byte != 0xff).map_or(0, |at| at + 1);
    let name = &name[..end];
    let mut options = RequestedOptions::default();
    // An odd tail is left alone: the name and what came before it are good.
    while let Some((key, value, tail)) =
        string(rest).and_then(|(key, rest)| string(rest).map(|(value, rest)| (key, value, rest)))
    {
        options.set(key, value);
        rest = tail;
    }
    Ok(ReadRequest { name, options })
}

impl RequestedOptions {
    fn set(&mut self, key: &[u8], value: &[u8]) {
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
        let Some(number) = number else { return };
        let small = u16::try_from(number).ok();
        if key.eq_ignore_ascii_case(b"blksize") {
            self.block_size = self.block_size.or(small.filter(|n| (8..=65464).contains(n)));
        } else if key.eq_ignore_ascii_case(b"timeout") {
            self.timeout = self.timeout.or(u8::try_from(number).ok().filter(|n| *n > 0));
        } else if key.eq_ignore_ascii_case(b"windowsize") {
            self.window = self.window.or(small.filter(|n| *n > 0));
        } else if key.eq_ignore_ascii_case(b"tsize") {
            self.size = true;
        }
    }
}

/// A packet at a transfer's own port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientPacket {
    /// ACK of a block number.
    Ack(u16),
    /// ERROR: the client ends the transfer.
    Error {
        /// Its code.
        code: u16,
        /// Its text, printable and short.
        message: String,
    },
    /// Anything else.
    Other,
}

/// Reads a packet of a transfer's client.
pub fn parse_client_packet(packet: &[u8]) -> ClientPacket {
    match packet {
        // Longer ACKs exist in the field; the number is what counts.
        [0, 4, high, low, ..] => ClientPacket::Ack(u16::from_be_bytes([*high, *low])),
        [0, 5, high, low, text @ ..] => {
            let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
            ClientPacket::Error { code: u16::from_be_bytes([*high, *low]), message: printable(text).into_owned() }
        }
        _ => ClientPacket::Other,
    }
}

/// Appends an ERROR packet. `message` must hold no NUL.
pub fn error(out: &mut Vec<u8>, code: ErrorCode, message: &str) {
    out.extend_from_slice(&[0, 5]);
    out.extend_from_slice(&(code as u16).to_be_bytes());
    out.extend(message.bytes().filter(|byte| *byte != 0));
    out.push(0);
}

/// Text from the wire for a log line or a message: printable ASCII, at most 128 bytes of it.
pub fn printable(text: &[u8]) -> Cow<'_, str> {
    const MOST: usize = 128;
    let cut = &text[..text.len().min(MOST)];
    match std::str::from_utf8(cut) {
        Ok(plain) if cut.len() == text.len() && plain.bytes().all(|b| b.is_ascii_graphic() || b == b' ') => {
            Cow::Borrowed(plain)
        }
        _ => Cow::Owned(format!("{}{}", cut.escape_ascii(), if cut.len() < text.len() { "…" } else { "" })),
    }
}

fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_requests_of_real_clients() {
        // OVMF 2022.11, the size probe.
        let probe = b"\0\x01snponly.efi\0octet\0tsize\x000\0blksize\x001468\0windowsize\x004\0";
        let asked = RequestedOptions { block_size: Some(1468), timeout: None, size: true, window: Some(4) };
        assert_eq!(parse_request(probe), Ok(ReadRequest { name: b"snponly.efi", options: asked }));
        // A ROM that takes the end-of-options byte into the name, upper-case mode, and an odd tail.
        let odd = b"\0\x01undionly.kpxe\xff\0OCTET\0TSIZE\x000\0blk";
        let asked = RequestedOptions { size: true, ..RequestedOptions::default() };
        assert_eq!(parse_request(odd), Ok(ReadRequest { name: b"undionly.kpxe", options: asked }));
    }

    #[test]
    fn options_out_of_range_are_left_out() {
        let packet = b"\0\x01f\0octet\0blksize\x007\0timeout\x000\0windowsize\x0065536\0blksize\x001024\0multicast\0\0";
        let asked = RequestedOptions { block_size: Some(1024), ..RequestedOptions::default() };
        assert_eq!(parse_request(packet).map(|request| request.options), Ok(asked));
    }

    #[test]
    fn what_is_refused_and_how() {
        let rows: [(&[u8], ReadRequestError, Option<ErrorCode>); 7] = [
            (b"", ReadRequestError::NotARequest, None),
            (b"\0\x03\0\x01data", ReadRequestError::NotARequest, None),
            (b"\0\x05\0\x01no\0", ReadRequestError::NotARequest, None),
            (b"\0\x02f\0octet\0", ReadRequestError::Write, Some(ErrorCode::AccessViolation)),
            (b"\0\x01f\0octet", ReadRequestError::Malformed, Some(ErrorCode::IllegalOperation)),
            (b"\0\x01\0octet\0", ReadRequestError::Malformed, Some(ErrorCode::IllegalOperation)),
            (b"\0\x01f\0netascii\0", ReadRequestError::Mode("netascii".into()), Some(ErrorCode::IllegalOperation)),
        ];
        for (packet, error, code) in rows {
            let got = parse_request(packet).expect_err("refused");
            assert_eq!(got, error);
            assert_eq!(got.code(), code);
        }
    }

    #[test]
    fn text_from_the_wire_is_printable_and_short() {
        assert_eq!(printable(b"plain text"), "plain text");
        assert_eq!(printable(b"a\nb\x1b[31m"), "a\\nb\\x1b[31m");
        assert!(printable(&[b'x'; 4000]).len() < 140);
    }

    proptest! {
        #[test]
        fn no_packet_panics(packet in proptest::collection::vec(any::<u8>(), 0..1200)) {
            let _ = parse_request(&packet);
            let mut request = vec![0, 1];
            request.extend_from_slice(&packet);
            let _ = parse_request(&request);
            if let ClientPacket::Error { message, .. } = parse_client_packet(&packet) {
                prop_assert!(message.is_ascii() || message.ends_with('…'));
            }
        }
    }
}
