//! The three kinds of request that the client sends, each of which may go out several times.

use rand::Rng;

use super::commands::APP;
use super::packet::{self, Frame, Ignored, IpmiMessage};
use super::rakp::{Handshake, RakpError, RakpProgress};
use super::session::{IpmiResponse, IpmiSession};
use crate::bmc::metrics::BmcOutcome;

/// One request that may go out several times.
pub(super) trait Exchange {
    /// What an answer gives.
    type Out;
    /// The packet for one sending, with fresh numbers.
    fn packet(&mut self) -> Vec<u8>;
    /// Takes a packet, or says why it is passed over.
    fn receive(&mut self, bytes: &[u8]) -> Result<Self::Out, Ignored>;
    /// What an answer counts as.
    fn outcome(out: &Self::Out) -> BmcOutcome;
}

impl Exchange for Handshake {
    type Out = RakpProgress;
    fn packet(&mut self) -> Vec<u8> {
        self.send()
    }
    fn receive(&mut self, bytes: &[u8]) -> Result<RakpProgress, Ignored> {
        self.on_packet(bytes)
    }
    fn outcome(progress: &RakpProgress) -> BmcOutcome {
        match progress {
            RakpProgress::Next | RakpProgress::Open(_) => BmcOutcome::Ok,
            RakpProgress::Failed(error, _) => match error {
                RakpError::UnknownUser { .. }
                | RakpError::WrongPassword(_)
                | RakpError::Role { .. }
                | RakpError::BmcKey => BmcOutcome::LoginFailed,
                RakpError::Busy { .. } => BmcOutcome::Busy,
                RakpError::SuiteRefused { .. }
                | RakpError::Refused { .. }
                | RakpError::Downgrade(_)
                | RakpError::TooLong(_) => BmcOutcome::Refused,
            },
        }
    }
}

/// What a completion code counts as.
fn completed(response: &IpmiResponse) -> BmcOutcome {
    match response.completion {
        0 => BmcOutcome::Ok,
        // Node busy.
        0xc0 => BmcOutcome::Busy,
        _ => BmcOutcome::Refused,
    }
}

/// A command outside a session.
pub(super) struct SessionlessRequest<'a> {
    command: u8,
    data: &'a [u8],
    sequence: u8,
    sent: Vec<u8>,
}

impl<'a> SessionlessRequest<'a> {
    pub(super) fn new(command: u8, data: &'a [u8], sequence: u8) -> Self {
        Self { command, data, sequence, sent: Vec::new() }
    }
}

impl Exchange for SessionlessRequest<'_> {
    type Out = IpmiResponse;

    fn packet(&mut self) -> Vec<u8> {
        self.sequence = self.sequence.wrapping_add(1) & 0x3f;
        self.sent.push(self.sequence);
        packet::encode_v15(&IpmiMessage::request(APP, self.command, self.sequence, self.data).encode())
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<IpmiResponse, Ignored> {
        let payload = match packet::decode(bytes)? {
            Frame::V15 { session: 0, payload } => payload,
            // Some controllers answer in the RMCP+ form.
            Frame::V20(f) if f.session == 0 && f.payload_type == packet::payload::IPMI && !f.encrypted => f.payload,
            _ => return Err(Ignored::Session),
        };
        let message = IpmiMessage::decode(payload)?;
        if message.net_fn != APP | 1 || message.command != self.command || !self.sent.contains(&message.sequence) {
            return Err(Ignored::Stale);
        }
        let (completion, data) = message.data.split_first().ok_or(Ignored::Short)?;
        Ok(IpmiResponse { completion: *completion, data: data.to_vec() })
    }

    fn outcome(response: &IpmiResponse) -> BmcOutcome {
        completed(response)
    }
}

/// A command inside a session.
pub(super) struct SessionRequest<'a> {
    session: &'a mut IpmiSession,
    net_fn: u8,
    command: u8,
    data: &'a [u8],
    started: bool,
}

impl<'a> SessionRequest<'a> {
    pub(super) fn new(session: &'a mut IpmiSession, net_fn: u8, command: u8, data: &'a [u8]) -> Self {
        Self { session, net_fn, command, data, started: false }
    }
}

impl Exchange for SessionRequest<'_> {
    type Out = IpmiResponse;

    fn packet(&mut self) -> Vec<u8> {
        let iv = rand::rng().random();
        if std::mem::replace(&mut self.started, true) {
            self.session.again(self.data, iv)
        } else {
            self.session.start(self.net_fn, self.command, self.data, iv)
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<IpmiResponse, Ignored> {
        self.session.on_packet(bytes)
    }

    fn outcome(response: &IpmiResponse) -> BmcOutcome {
        completed(response)
    }
}
