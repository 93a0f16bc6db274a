//! An open session: requests out, responses matched (sections 6.12 and 13.28).

use super::packet::{self, Frame, Ignored, IpmiMessage, payload};
use super::suite::{CipherSuite, Keys};

/// Retries of one request that may still be answered.
const MAX_OUTSTANDING: usize = 16;

/// The console's end of a session.
pub struct IpmiSession {
    keys: Keys,
    console: u32,
    bmc: u32,
    /// Last session sequence number sent; 0 is never used.
    sent: u32,
    window: SequenceWindow,
    request: u8,
    /// Sequence numbers under which the present request went out.
    outstanding: Vec<u8>,
    pending: Option<(u8, u8)>,
}

impl std::fmt::Debug for IpmiSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("suite", &self.keys.suite())
            .field("console", &self.console)
            .finish_non_exhaustive()
    }
}

/// A response to the present request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpmiResponse {
    /// Completion code; 0 is success.
    pub completion: u8,
    /// Data after it.
    pub data: Vec<u8>,
}

impl IpmiSession {
    /// A session that the handshake opened.
    pub fn new(keys: Keys, console: u32, bmc: u32) -> Self {
        let window = SequenceWindow::default();
        Self { keys, console, bmc, sent: 0, window, request: 0, outstanding: Vec::new(), pending: None }
    }

    /// The BMC's number for this session, as Close Session wants it.
    pub fn bmc_id(&self) -> u32 {
        self.bmc
    }

    /// The suite.
    pub fn suite(&self) -> CipherSuite {
        self.keys.suite()
    }

    /// A packet with a new request. Answers to the previous one are no longer taken.
    pub fn start(&mut self, net_fn: u8, command: u8, data: &[u8], iv: [u8; 16]) -> Vec<u8> {
        self.outstanding.clear();
        self.pending = Some((net_fn, command));
        self.again(data, iv)
    }

    /// The present request once more, under fresh sequence numbers.
    pub fn again(&mut self, data: &[u8], iv: [u8; 16]) -> Vec<u8> {
        let (net_fn, command) = self.pending.unwrap_or_default();
        self.request = (self.request + 1) & 0x3f;
        if self.outstanding.len() == MAX_OUTSTANDING {
            self.outstanding.remove(0);
        }
        self.outstanding.push(self.request);
        self.sent = self.sent.checked_add(1).unwrap_or(1);
        let message = IpmiMessage::request(net_fn, command, self.request, data).encode();
        self.keys.seal(self.bmc, self.sent, payload::IPMI, &message, iv)
    }

    /// Takes a packet. Only a protected, fresh response to the present request counts.
    pub fn on_packet(&mut self, bytes: &[u8]) -> Result<IpmiResponse, Ignored> {
        let Frame::V20(frame) = packet::decode(bytes)? else { return Err(Ignored::Unprotected) };
        if frame.session != self.console {
            return Err(Ignored::Session);
        }
        if frame.payload_type != payload::IPMI {
            return Err(Ignored::Payload(frame.payload_type));
        }
        let plain = self.keys.open(&frame)?;
        // Only what is authentic moves the window.
        self.window.accept(frame.sequence)?;
        let message = IpmiMessage::decode(&plain)?;
        let expected = self.pending.map(|(net_fn, command)| (net_fn | 1, command));
        if expected != Some((message.net_fn, message.command)) || !self.outstanding.contains(&message.sequence) {
            return Err(Ignored::Stale);
        }
        let (completion, data) = message.data.split_first().ok_or(Ignored::Short)?;
        let response = IpmiResponse { completion: *completion, data: data.to_vec() };
        self.pending = None;
        self.outstanding.clear();
        Ok(response)
    }
}

/// Sliding window over sequence numbers (section 6.12.13): the last 32 may come in any order, each once.
#[derive(Clone, Debug, Default)]
pub struct SequenceWindow {
    highest: Option<u32>,
    seen: u32,
}

impl SequenceWindow {
    /// Takes a number, or says that it was seen or is too old.
    pub fn accept(&mut self, sequence: u32) -> Result<(), Ignored> {
        let Some(highest) = self.highest else {
            *self = Self { highest: Some(sequence), seen: 1 };
            return Ok(());
        };
        let ahead = sequence.wrapping_sub(highest);
        if ahead == 0 {
            return Err(Ignored::Replay(sequence));
        }
        if ahead < 1 << 31 {
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
            self.highest = Some(sequence);
            return Ok(());
        }
        let behind = highest.wrapping_sub(sequence);
        let bit = 1u32.checked_shl(behind).unwrap_or(0);
        if bit == 0 || self.seen & bit != 0 {
            return Err(Ignored::Replay(sequence));
        }
        self.seen |= bit;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair() -> (IpmiSession, Keys) {
        let keys = Keys::derive(CipherSuite::Sha256, b"key");
        (IpmiSession::new(keys.clone(), 11, 22), keys)
    }

    /// What the BMC answers to a packet of the session.
    fn answer(keys: &Keys, packet: &[u8], sequence: u32, data: &[u8]) -> Vec<u8> {
        let Frame::V20(frame) = packet::decode(packet).unwrap() else { panic!("not 2.0") };
        assert_eq!(frame.session, 22);
        let request = IpmiMessage::decode(&keys.open(&frame).unwrap()).unwrap();
        keys.seal(11, sequence, payload::IPMI, &request.response(data.to_vec()).encode(), [3; 16])
    }

    #[test]
    fn late_and_double_answers_are_passed_over() {
        let (mut session, keys) = pair();
        let first = session.start(0, 1, &[], [1; 16]);
        let again = session.again(&[], [2; 16]);
        let to_first = answer(&keys, &first, 1, &[0, 0x21]);
        let to_again = answer(&keys, &again, 2, &[0, 0x21]);
        // The answer to either sending will do, once.
        assert_eq!(session.on_packet(&to_first), Ok(IpmiResponse { completion: 0, data: vec![0x21] }));
        assert_eq!(session.on_packet(&to_first), Err(Ignored::Replay(1)));
        assert_eq!(session.on_packet(&to_again), Err(Ignored::Stale));
        let next = session.start(0, 2, &[1], [1; 16]);
        assert_eq!(session.on_packet(&to_again), Err(Ignored::Replay(2)));
        let reply = answer(&keys, &next, 3, &[0xd5]);
        assert_eq!(session.on_packet(&reply).unwrap().completion, 0xd5);
    }

    #[test]
    fn an_unprotected_answer_is_no_answer() {
        let (mut session, _) = pair();
        session.start(0, 1, &[], [1; 16]);
        let message = IpmiMessage::request(0, 1, 1, &[]).response(vec![0, 1]).encode();
        let forged = packet::encode_v20(payload::IPMI, 0, 11, 1, &message);
        assert_eq!(session.on_packet(&forged), Err(Ignored::Unprotected));
    }

    #[test]
    fn the_window_takes_each_number_once() {
        let mut w = SequenceWindow::default();
        for (n, ok) in [(5, true), (5, false), (7, true), (6, true), (6, false), (60, true), (29, true), (28, false)] {
            assert_eq!(w.accept(n).is_ok(), ok, "{n}");
        }
        let mut w = SequenceWindow::default();
        assert!(w.accept(u32::MAX).is_ok() && w.accept(1).is_ok() && w.accept(u32::MAX).is_err());
    }

    proptest! {
        #[test]
        fn no_packet_breaks_a_session(noise in proptest::collection::vec(any::<u8>(), 0..200), cut: usize, at: usize, flip: u8) {
            let (mut session, keys) = pair();
            let packet = session.start(6, 1, &[], [1; 16]);
            prop_assert!(session.on_packet(&noise).is_err());
            let good = answer(&keys, &packet, 9, &[0, 1, 2, 3]);
            let mut bad = good.clone();
            let n = bad.len();
            bad[at % n] ^= flip;
            bad.truncate(cut % (n + 1));
            if bad[4.min(bad.len())..] != good[4..] {
                prop_assert!(session.on_packet(&bad).is_err());
            }
            prop_assert_eq!(session.on_packet(&good).unwrap().data, vec![1, 2, 3]);
        }
    }
}
