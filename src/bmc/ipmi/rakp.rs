//! Opening a session: Open Session and RAKP messages 1 to 4 (sections 13.17 to 13.24), as seen by the console.

use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

use super::packet::{self, Frame, Ignored, le32, payload};
use super::session::IpmiSession;
use super::suite::{CipherSuite, Keys, same};
use crate::bmc::address::Privilege;

/// Longest user name (section 22.28).
pub const MAX_USERNAME: usize = 16;
/// Longest password and K_G (section 22.30).
pub const MAX_PASSWORD: usize = 20;
/// Role byte: look the user up by name alone.
const NAME_ONLY: u8 = 0x10;

/// Who opens a session, and how.
#[derive(Clone, Debug)]
pub struct RakpLogin {
    /// User name, at most 16 bytes.
    pub username: String,
    /// Password, at most 20 bytes.
    pub password: SecretString,
    /// The BMC key K_G, where one is set.
    pub kg: Option<SecretString>,
    /// Privilege level of the session.
    pub privilege: Privilege,
}

/// Why a session was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RakpError {
    /// The suite is not spoken by the BMC.
    #[error("cipher suite {suite} is refused: {}", status_text(*status))]
    SuiteRefused {
        /// Number of the suite.
        suite: u8,
        /// RAKP status code.
        status: u8,
    },
    /// The user is not known, or may not use this channel.
    #[error("user {user:?} is not known there or may not log in over the network ({})", status_text(*status))]
    UnknownUser {
        /// User name.
        user: String,
        /// RAKP status code.
        status: u8,
    },
    /// The codes do not agree: the password differs.
    #[error("wrong password for user {0:?}")]
    WrongPassword(String),
    /// The account may not have this privilege level.
    #[error(
        "user {user:?} may not open a session as {role:?}: give the account that role or set ?privilegelevel= in the address ({})",
        status_text(*status)
    )]
    Role {
        /// User name.
        user: String,
        /// Level asked for.
        role: Privilege,
        /// RAKP status code.
        status: u8,
    },
    /// The password is right and the session key is not.
    #[error("the password is right but the session keys differ: the BMC key K_G is set on one side only or differs")]
    BmcKey,
    /// No room for another session.
    #[error("no free session: close other IPMI sessions or wait until they expire ({})", status_text(*status))]
    Busy {
        /// RAKP status code.
        status: u8,
    },
    /// Anything else.
    #[error("{message} was refused: {}", status_text(*status))]
    Refused {
        /// Which message.
        message: &'static str,
        /// RAKP status code.
        status: u8,
    },
    /// The BMC chose algorithms that were not offered.
    #[error("chose other algorithms than those of cipher suite {0}")]
    Downgrade(u8),
    /// User name or password do not fit into the protocol.
    #[error("{0}")]
    TooLong(&'static str),
}

/// Text of an RMCP+ status code (table 13-15).
pub fn status_text(status: u8) -> String {
    let text = match status {
        0x00 => "no errors",
        0x01 => "insufficient resources to create a session",
        0x02 => "invalid session id",
        0x03 => "invalid payload type",
        0x04 => "invalid authentication algorithm",
        0x05 => "invalid integrity algorithm",
        0x06 => "no matching authentication payload",
        0x07 => "no matching integrity payload",
        0x08 => "inactive session id",
        0x09 => "invalid role",
        0x0a => "unauthorized role or privilege level",
        0x0b => "insufficient resources to create a session at the requested role",
        0x0c => "invalid name length",
        0x0d => "unauthorized name",
        0x0e => "unauthorized GUID",
        0x0f => "invalid integrity check value",
        0x10 => "invalid confidentiality algorithm",
        0x11 => "no cipher suite match with proposed security algorithms",
        0x12 => "illegal or unrecognized parameter",
        _ => "reserved status",
    };
    format!("status {status:02x}h, {text}")
}

/// What a packet led to.
#[derive(Debug)]
pub enum RakpProgress {
    /// Send the next message.
    Next,
    /// The session is open.
    Open(Box<IpmiSession>),
    /// It will not be; the packet, if any, tells the BMC so.
    Failed(RakpError, Option<Vec<u8>>),
}

enum RakpPhase {
    Opening,
    /// RAKP 1 goes out.
    Challenge {
        bmc: u32,
    },
    /// RAKP 3 goes out.
    Proof {
        bmc: u32,
        code: Zeroizing<Vec<u8>>,
        sik: Zeroizing<Vec<u8>>,
        guid: [u8; 16],
    },
}

/// The console's side of the handshake.
pub struct Handshake {
    login: RakpLogin,
    suite: CipherSuite,
    console: u32,
    random: [u8; 16],
    tag: u8,
    phase: RakpPhase,
}

impl Handshake {
    /// `console` is our session number, not 0; `random` our challenge.
    pub fn new(login: RakpLogin, suite: CipherSuite, console: u32, random: [u8; 16]) -> Result<Self, RakpError> {
        if login.username.len() > MAX_USERNAME {
            return Err(RakpError::TooLong("IPMI takes user names of at most 16 bytes"));
        }
        if login.password.expose_secret().len() > MAX_PASSWORD {
            return Err(RakpError::TooLong("IPMI takes passwords of at most 20 bytes"));
        }
        Ok(Self { login, suite, console: console.max(1), random, tag: 0, phase: RakpPhase::Opening })
    }

    fn role(&self) -> u8 {
        NAME_ONLY | self.login.privilege as u8
    }

    /// User name with its length before it, as it is sent and signed.
    fn name(&self) -> Vec<u8> {
        let name = self.login.username.as_bytes();
        let mut out = vec![name.len() as u8];
        out.extend_from_slice(name);
        out
    }

    fn password(&self) -> &[u8] {
        self.login.password.expose_secret().as_bytes()
    }

    /// The message to send now. Each call uses a fresh tag, so a retry cannot be taken for its predecessor.
    pub fn send(&mut self) -> Vec<u8> {
        self.tag = self.tag.wrapping_add(1);
        match &self.phase {
            RakpPhase::Opening => {
                let mut body = vec![self.tag, self.login.privilege as u8, 0, 0];
                body.extend_from_slice(&self.console.to_le_bytes());
                for (kind, algorithm) in (0u8..).zip(self.suite.algorithms()) {
                    body.extend_from_slice(&[kind, 0, 0, 8, algorithm, 0, 0, 0]);
                }
                packet::encode_v20(payload::OPEN_REQUEST, 0, 0, 0, &body)
            }
            RakpPhase::Challenge { bmc } => {
                let mut body = vec![self.tag, 0, 0, 0];
                body.extend_from_slice(&bmc.to_le_bytes());
                body.extend_from_slice(&self.random);
                body.extend_from_slice(&[self.role(), 0, 0]);
                body.extend_from_slice(&self.name());
                packet::encode_v20(payload::RAKP1, 0, 0, 0, &body)
            }
            RakpPhase::Proof { bmc, code, .. } => self.rakp3(*bmc, 0, code),
        }
    }

    fn rakp3(&self, bmc: u32, status: u8, code: &[u8]) -> Vec<u8> {
        let mut body = vec![self.tag, status, 0, 0];
        body.extend_from_slice(&bmc.to_le_bytes());
        body.extend_from_slice(code);
        packet::encode_v20(payload::RAKP3, 0, 0, 0, &body)
    }

    /// Takes a packet. What does not belong to the message sent last is passed over with its reason.
    pub fn on_packet(&mut self, bytes: &[u8]) -> Result<RakpProgress, Ignored> {
        let Frame::V20(frame) = packet::decode(bytes)? else { return Err(Ignored::AuthType(0)) };
        if frame.session != 0 || frame.authenticated || frame.encrypted {
            return Err(Ignored::Session);
        }
        let want = match self.phase {
            RakpPhase::Opening => payload::OPEN_RESPONSE,
            RakpPhase::Challenge { .. } => payload::RAKP2,
            RakpPhase::Proof { .. } => payload::RAKP4,
        };
        if frame.payload_type != want {
            return Err(Ignored::Payload(frame.payload_type));
        }
        let body = frame.payload;
        let &[tag, status, ..] = body else { return Err(Ignored::Short) };
        if tag != self.tag {
            return Err(Ignored::Stale);
        }
        if status != 0 {
            return Ok(RakpProgress::Failed(self.refusal(status), None));
        }
        // All three answers carry our session number in bytes 5 to 8.
        let own = body.get(4..8).ok_or(Ignored::Short)?;
        if le32(own) != self.console {
            return Err(Ignored::Session);
        }
        match &self.phase {
            RakpPhase::Opening => self.on_open(body),
            RakpPhase::Challenge { bmc } => self.on_rakp2(*bmc, body),
            RakpPhase::Proof { bmc, sik, guid, .. } => {
                let want = self.suite.hmac(sik, &[&self.random, &bmc.to_le_bytes(), guid]);
                let want = want.get(..self.suite.integrity_len()).unwrap_or_default();
                let code = body.get(8..8 + self.suite.integrity_len()).ok_or(Ignored::Short)?;
                if !same(want, code) {
                    return Ok(RakpProgress::Failed(RakpError::BmcKey, None));
                }
                let keys = Keys::derive(self.suite, sik);
                Ok(RakpProgress::Open(Box::new(IpmiSession::new(keys, self.console, *bmc))))
            }
        }
    }

    fn on_open(&mut self, body: &[u8]) -> Result<RakpProgress, Ignored> {
        let rest = body.get(8..36).ok_or(Ignored::Short)?;
        let chosen = [rest[8] & 0x3f, rest[16] & 0x3f, rest[24] & 0x3f];
        if chosen != self.suite.algorithms() {
            return Ok(RakpProgress::Failed(RakpError::Downgrade(self.suite.id()), None));
        }
        self.phase = RakpPhase::Challenge { bmc: le32(&rest[..4]) };
        Ok(RakpProgress::Next)
    }

    fn on_rakp2(&mut self, bmc: u32, body: &[u8]) -> Result<RakpProgress, Ignored> {
        let challenge: [u8; 16] = field(body, 8)?;
        let guid: [u8; 16] = field(body, 24)?;
        let code = body.get(40..40 + self.suite.digest_len()).ok_or(Ignored::Short)?;
        let (role, name) = (self.role(), self.name());
        let (console_id, bmc_id) = (self.console.to_le_bytes(), bmc.to_le_bytes());
        let parts: [&[u8]; 7] = [&console_id, &bmc_id, &self.random, &challenge, &guid, &[role], &name];
        if !same(&self.suite.hmac(self.password(), &parts), code) {
            // Tell the BMC, so that it frees the half-open session (section 13.23).
            let goodbye = self.rakp3(bmc, 0x0f, &[]);
            return Ok(RakpProgress::Failed(RakpError::WrongPassword(self.login.username.clone()), Some(goodbye)));
        }
        let kg = self.login.kg.as_ref().map_or(self.password(), |kg| kg.expose_secret().as_bytes());
        let sik = self.suite.hmac(kg, &[&self.random, &challenge, &[role], &name]);
        let code = self.suite.hmac(self.password(), &[&challenge, &console_id, &[role], &name]);
        self.phase = RakpPhase::Proof { bmc, code, sik, guid };
        Ok(RakpProgress::Next)
    }

    fn refusal(&self, status: u8) -> RakpError {
        let user = || self.login.username.clone();
        let message = match self.phase {
            RakpPhase::Opening => "Open Session",
            RakpPhase::Challenge { .. } => "RAKP message 1",
            RakpPhase::Proof { .. } => "RAKP message 3",
        };
        match (status, &self.phase) {
            (0x03..=0x07 | 0x10 | 0x11, RakpPhase::Opening) => {
                RakpError::SuiteRefused { suite: self.suite.id(), status }
            }
            (0x01 | 0x0b, _) => RakpError::Busy { status },
            (0x09 | 0x0a, _) => RakpError::Role { user: user(), role: self.login.privilege, status },
            (0x0c | 0x0d, _) => RakpError::UnknownUser { user: user(), status },
            (0x0f, RakpPhase::Challenge { .. } | RakpPhase::Proof { .. }) => RakpError::WrongPassword(user()),
            _ => RakpError::Refused { message, status },
        }
    }
}

fn field<const N: usize>(body: &[u8], at: usize) -> Result<[u8; N], Ignored> {
    body.get(at..at + N).and_then(|b| b.try_into().ok()).ok_or(Ignored::Short)
}
