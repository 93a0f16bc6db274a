//! One transfer: packets and time in, packets out.
//!
//! The caller owns the socket and the clock. It calls [`FileTransfer::start`] once, [`FileTransfer::on_packet`] for every
//! packet of the client, [`FileTransfer::on_time`] when [`FileTransfer::deadline`] has come, sends what lands in the
//! [`SendBuffer`], and stops at [`TransferProgress::Ended`].

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::packet::{ClientPacket, DATA_HEADER, ErrorCode, RequestedOptions, error, parse_client_packet};

/// Largest block when nothing smaller is asked for, in bytes (RFC 1350).
const DEFAULT_BLOCK: u16 = 512;
/// Largest `blksize` that is granted: what UEFI firmware asks for, 1500 less IPv4, UDP and TFTP headers.
pub const MAX_BLOCK: u16 = 1468;
/// Largest `windowsize` that is granted, in blocks. One small packet buys at most this many large ones.
pub const MAX_WINDOW: u16 = 16;
/// Largest `timeout` that is granted, in seconds. Longer ones are not confirmed.
pub const MAX_TIMEOUT: u8 = 8;
/// First wait for an answer when the client asked for none; doubles at every repetition up to [`MAX_TIMEOUT`].
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Repetitions without progress before the client is given up.
pub const MAX_REPEATS: u32 = 5;
/// The longest a transfer may take, however much progress it makes.
pub const MAX_DURATION: Duration = Duration::from_secs(600);

/// Packets to send, in order, in one buffer.
#[derive(Debug, Default)]
pub struct SendBuffer {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    repeated: u64,
}

impl SendBuffer {
    /// The packets in order.
    pub fn packets(&self) -> impl Iterator<Item = &[u8]> {
        self.ends.iter().scan(0, |start, end| {
            let packet = &self.bytes[*start..*end];
            *start = *end;
            Some(packet)
        })
    }

    /// All packets end to end, and the length of the first: all but the last have that length.
    pub fn segments(&self) -> Option<(&[u8], usize)> {
        self.ends.first().map(|first| (self.bytes.as_slice(), *first))
    }

    /// How many packets there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// How many of them were sent before.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Length of all packets together, in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Forgets the packets and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.repeated = 0;
    }

    fn packet(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }
}

/// What a transfer is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferProgress {
    /// Wait for the client.
    Waiting,
    /// It is over.
    Ended(TransferEnd),
}

/// How a transfer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferEnd {
    /// The last block was acknowledged.
    Complete,
    /// The client sent ERROR. UEFI firmware does so after it learnt the size.
    Aborted {
        /// Its code.
        code: u16,
        /// Its text.
        message: String,
    },
    /// Nothing was heard in [`MAX_REPEATS`] repetitions.
    Silent,
    /// [`MAX_DURATION`] is over.
    TooLong,
}

/// A file on its way to one client.
#[derive(Debug)]
pub struct FileTransfer {
    data: Bytes,
    block_size: u16,
    window: u16,
    wait: Duration,
    doubling: bool,
    oack: Option<Vec<u8>>,
    oack_sent: bool,
    /// Blocks acknowledged: the next to be acknowledged is `acked + 1`. Counted without rollover.
    acked: u64,
    /// Last block sent.
    sent: u64,
    /// Blocks in all; the last one is shorter than the rest, or empty.
    blocks: u64,
    heard: bool,
    repeats: u32,
    /// A window is sent again once for the client's repeated ACK; more than that would answer duplicates with
    /// duplicates (RFC 1123 section 4.2.3.1).
    asked_again: bool,
    next: Instant,
    end: Instant,
}

impl FileTransfer {
    /// A transfer of `data` with what can be granted of the options. `path_mtu` is the largest IP packet on the way
    /// to the client, in bytes.
    pub fn new(data: Bytes, asked: &RequestedOptions, path_mtu: u32, now: Instant) -> Self {
        // IPv4 20, UDP 8, TFTP 4. IPv6 would need 20 more, but its smallest MTU is 1280.
        let room = u16::try_from(path_mtu.saturating_sub(32)).unwrap_or(u16::MAX);
        let largest = MAX_BLOCK.min(room.max(DEFAULT_BLOCK));
        let granted = asked.block_size.map(|size| size.min(largest));
        let block_size = granted.unwrap_or(DEFAULT_BLOCK);
        let window = asked.window.map(|window| window.min(MAX_WINDOW));
        let timeout = asked.timeout.filter(|seconds| *seconds <= MAX_TIMEOUT);
        let mut options: Vec<(&str, u64)> = Vec::new();
        if asked.size {
            options.push(("tsize", data.len() as u64));
        }
        if let Some(size) = granted {
            options.push(("blksize", size.into()));
        }
        if let Some(seconds) = timeout {
            options.push(("timeout", seconds.into()));
        }
        if let Some(window) = window {
            options.push(("windowsize", window.into()));
        }
        let oack = (!options.is_empty()).then(|| {
            let mut packet = vec![0, 6];
            for (name, value) in options {
                packet.extend_from_slice(name.as_bytes());
                packet.push(0);
                packet.extend_from_slice(value.to_string().as_bytes());
                packet.push(0);
            }
            packet
        });
        let wait = timeout.map_or(FIRST_WAIT, |seconds| Duration::from_secs(seconds.into()));
        Self {
            blocks: data.len() as u64 / u64::from(block_size) + 1,
            data,
            block_size,
            window: window.unwrap_or(1),
            wait,
            doubling: timeout.is_none(),
            oack,
            oack_sent: false,
            acked: 0,
            sent: 0,
            heard: false,
            repeats: 0,
            asked_again: false,
            next: now + wait,
            end: now + MAX_DURATION,
        }
    }

    /// The first packets: the OACK, or the first block.
    pub fn start(&mut self, now: Instant, out: &mut SendBuffer) {
        self.send(out);
        self.rest(now);
    }

    /// When [`Self::on_time`] wants to be called.
    pub fn deadline(&self) -> Instant {
        self.next.min(self.end)
    }

    /// Whether the client has answered anything.
    pub fn is_under_way(&self) -> bool {
        self.heard
    }

    /// Size of the file in bytes.
    pub fn size(&self) -> usize {
        self.data.len()
    }

    /// Takes a packet of the client.
    pub fn on_packet(&mut self, now: Instant, packet: &[u8], out: &mut SendBuffer) -> TransferProgress {
        let number = match parse_client_packet(packet) {
            ClientPacket::Ack(number) => number,
            ClientPacket::Error { code, message } => {
                return TransferProgress::Ended(TransferEnd::Aborted { code, message });
            }
            ClientPacket::Other => return TransferProgress::Waiting,
        };
        if self.oack.is_some() {
            if number != 0 {
                return TransferProgress::Waiting;
            }
            self.oack = None;
        } else {
            // Block numbers roll over to 0. Windows are far smaller than the half of their range, so that the
            // distance from the last acknowledged one is unambiguous.
            let distance = number.wrapping_sub(self.acked as u16);
            let outstanding = self.sent - self.acked;
            if distance == 0 {
                if self.window == 1 || self.asked_again || outstanding == 0 {
                    return TransferProgress::Waiting;
                }
                self.asked_again = true;
                self.send(out);
                return TransferProgress::Waiting;
            }
            if u64::from(distance) > outstanding {
                return TransferProgress::Waiting;
            }
            self.acked += u64::from(distance);
        }
        self.heard = true;
        if self.acked == self.blocks {
            return TransferProgress::Ended(TransferEnd::Complete);
        }
        self.repeats = 0;
        self.asked_again = false;
        self.send(out);
        self.rest(now);
        TransferProgress::Waiting
    }

    /// Looks whether an answer is overdue.
    pub fn on_time(&mut self, now: Instant, out: &mut SendBuffer) -> TransferProgress {
        if now >= self.end {
            out.packet(|bytes| error(bytes, ErrorCode::NotDefined, "transfer takes too long"));
            return TransferProgress::Ended(TransferEnd::TooLong);
        }
        if now < self.next {
            return TransferProgress::Waiting;
        }
        if self.repeats == MAX_REPEATS {
            out.packet(|bytes| error(bytes, ErrorCode::NotDefined, "no answer"));
            return TransferProgress::Ended(TransferEnd::Silent);
        }
        self.repeats += 1;
        self.send(out);
        self.rest(now);
        TransferProgress::Waiting
    }

    /// The client repeated its request before it answered: it missed the first packet.
    pub fn on_repeated_request(&mut self, out: &mut SendBuffer) {
        if !self.is_under_way() {
            self.send(out);
        }
    }

    fn rest(&mut self, now: Instant) {
        let longest = Duration::from_secs(MAX_TIMEOUT.into());
        let factor = if self.doubling { 1 << self.repeats.min(8) } else { 1 };
        self.next = now + self.wait.saturating_mul(factor).min(longest);
    }

    fn send(&mut self, out: &mut SendBuffer) {
        if let Some(oack) = &self.oack {
            out.packet(|bytes| bytes.extend_from_slice(oack));
            out.repeated += u64::from(self.oack_sent);
            self.oack_sent = true;
            return;
        }
        let last = self.blocks.min(self.acked + u64::from(self.window));
        let size = usize::from(self.block_size);
        out.bytes.reserve(usize::from(self.window) * (size + DATA_HEADER));
        for block in self.acked + 1..=last {
            let start = (block - 1) as usize * size;
            let data = &self.data[start..self.data.len().min(start + size)];
            out.packet(|bytes| {
                bytes.extend_from_slice(&[0, 3]);
                bytes.extend_from_slice(&(block as u16).to_be_bytes());
                bytes.extend_from_slice(data);
            });
        }
        out.repeated += self.sent.min(last).saturating_sub(self.acked);
        self.sent = self.sent.max(last);
    }
}

#[cfg(test)]
mod tests;
