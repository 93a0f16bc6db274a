//! The IPMI side of a simulated BMC: sessions with cipher suites 3 and 17, chassis commands.

use std::collections::VecDeque;
use std::sync::Arc;

use rand::Rng;
use secrecy::ExposeSecret;
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::machine::{Account, BootOverride, FaultScope, Override, PowerCommand, SimulatedFault, SimulatedMachine};
use crate::bmc::BootDevice;
use crate::bmc::ipmi::commands::{APP, BootFlags, CHASSIS, SELECT_CD, SELECT_DISK, SELECT_PXE, cmd};
use crate::bmc::ipmi::packet::{self, Frame, Ignored, IpmiMessage, MAX_PACKET, V20, le32, payload};
use crate::bmc::ipmi::session::SequenceWindow;
use crate::bmc::ipmi::suite::{CipherSuite, Keys, same};

/// Sessions at a time, half-open ones included; the oldest makes room.
const MAX_SESSIONS: usize = 16;
/// Get System GUID (application).
const GET_SYSTEM_GUID: u8 = 0x37;
/// Get Device ID answers with these revisions.
const DEVICE: [u8; 6] = [0x20, 0x01, 0x01, 0x00, 0x02, 0x80];

/// A BMC that speaks IPMI 2.0.
pub struct IpmiSim {
    machine: Arc<SimulatedMachine>,
    accounts: Vec<Account>,
    suites: Vec<CipherSuite>,
    kg: Option<Vec<u8>>,
    silent_to_strangers: bool,
    guid: [u8; 16],
    sessions: VecDeque<SimulatedSession>,
    /// Boot option parameters 0 to 4, as written.
    options: [Vec<u8>; 5],
    flags: Option<BootFlags>,
}

struct SimulatedSession {
    id: u32,
    console: u32,
    suite: CipherSuite,
    stage: SessionStage,
}

enum SessionStage {
    Opened,
    Challenged { random: [u8; 16], challenge: [u8; 16], role: u8, account: usize },
    Active { keys: Keys, window: SequenceWindow, sent: u32, account: usize },
}

/// What goes back, and how.
enum IpmiReply {
    Packet(Vec<u8>),
    /// A fault: the answer, if any, after a while.
    Faulty(SimulatedFault, Option<Vec<u8>>),
}

impl IpmiSim {
    /// With these accounts and suites.
    pub fn new(machine: Arc<SimulatedMachine>, accounts: Vec<Account>, suites: &[CipherSuite]) -> Self {
        Self {
            machine,
            accounts,
            suites: suites.to_vec(),
            kg: None,
            silent_to_strangers: false,
            guid: rand::rng().random(),
            sessions: VecDeque::new(),
            options: Default::default(),
            flags: None,
        }
    }

    /// With a BMC key.
    pub fn with_kg(mut self, kg: &[u8]) -> Self {
        self.kg = Some(kg.to_vec());
        self
    }

    /// Does not answer unknown users, as some controllers do.
    pub fn silent_to_strangers(mut self) -> Self {
        self.silent_to_strangers = true;
        self
    }

    /// Serves until the token is cancelled or the socket fails.
    pub async fn run(mut self, socket: UdpSocket, token: CancellationToken) -> std::io::Result<()> {
        let mut buffer = [0u8; MAX_PACKET];
        loop {
            let received = tokio::select! {
                () = token.cancelled() => return Ok(()),
                received = socket.recv_from(&mut buffer) => received,
            };
            let (len, peer) = match received {
                Ok(received) => received,
                // A peer that went away shows as an error of the next read.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error),
            };
            let packet = match self.on_packet(&buffer[..len]) {
                Ok(IpmiReply::Packet(packet)) => packet,
                Ok(IpmiReply::Faulty(SimulatedFault::Slow(delay), Some(packet))) => {
                    tokio::select! {
                        () = token.cancelled() => return Ok(()),
                        () = tokio::time::sleep(delay) => packet,
                    }
                }
                Ok(IpmiReply::Faulty(SimulatedFault::Garbage, _)) => rand::rng().random::<[u8; 23]>().to_vec(),
                Ok(IpmiReply::Faulty(_, Some(packet))) => packet,
                Ok(IpmiReply::Faulty(_, None)) => continue,
                Err(reason) => {
                    tracing::debug!(%peer, %reason, len, "ignored an IPMI packet");
                    continue;
                }
            };
            if let Err(error) = socket.send_to(&packet, peer).await {
                tracing::debug!(%peer, %error, "cannot send an IPMI answer");
            }
        }
    }

    fn on_packet(&mut self, bytes: &[u8]) -> Result<IpmiReply, Ignored> {
        match packet::decode(bytes)? {
            Frame::V15 { session: 0, payload } => {
                let message = IpmiMessage::decode(payload)?;
                let answer = packet::encode_v15(&message.response(self.before_session(&message)).encode());
                Ok(self.with_fault(FaultScope::Login, answer))
            }
            Frame::V15 { .. } => Err(Ignored::Session),
            Frame::V20(frame) if frame.session == 0 => {
                let body = match frame.payload_type {
                    payload::OPEN_REQUEST => (payload::OPEN_RESPONSE, self.open_session(frame.payload)?),
                    payload::RAKP1 => (payload::RAKP2, self.rakp1(frame.payload)?),
                    payload::RAKP3 => match self.rakp3(frame.payload)? {
                        Some(body) => (payload::RAKP4, body),
                        None => return Err(Ignored::Session),
                    },
                    other => return Err(Ignored::Payload(other)),
                };
                let answer = packet::encode_v20(body.0, 0, 0, 0, &body.1);
                Ok(self.with_fault(FaultScope::Login, answer))
            }
            Frame::V20(frame) => self.in_session(&frame),
        }
    }

    fn with_fault(&self, scope: FaultScope, answer: Vec<u8>) -> IpmiReply {
        match self.machine.fault(scope) {
            None => IpmiReply::Packet(answer),
            Some(fault @ (SimulatedFault::Silence | SimulatedFault::Reset | SimulatedFault::Garbage)) => {
                IpmiReply::Faulty(fault, None)
            }
            Some(fault) => IpmiReply::Faulty(fault, Some(answer)),
        }
    }

    /// Data of an answer, completion code first.
    fn before_session(&self, message: &IpmiMessage) -> Vec<u8> {
        match (message.net_fn, message.command, message.data.as_slice()) {
            (APP, cmd::GET_AUTH_CAPABILITIES, [_, _, ..]) => {
                let kg = if self.kg.is_some() { 0x20 } else { 0 };
                // Channel 1; RMCP+ data; non-null users; IPMI 2.0 only.
                vec![0, 1, 0x80, 0x04 | kg, 0x02, 0, 0, 0, 0]
            }
            (APP, cmd::GET_CIPHER_SUITES, [_, _, index]) => {
                let mut records = Vec::new();
                for suite in &self.suites {
                    let [auth, integrity, confidentiality] = suite.algorithms();
                    records.extend_from_slice(&[0xc0, suite.id(), auth, 0x40 | integrity, 0x80 | confidentiality]);
                }
                let from = usize::from(index & 0x3f) * 16;
                let part = records.get(from..).unwrap_or_default();
                let mut out = vec![0, 1];
                out.extend_from_slice(&part[..part.len().min(16)]);
                out
            }
            (APP, GET_SYSTEM_GUID, _) => [&[0][..], &self.guid].concat(),
            _ => vec![0xd4],
        }
    }

    fn open_session(&mut self, body: &[u8]) -> Result<Vec<u8>, Ignored> {
        let &[tag, role, _, _, ..] = body else { return Err(Ignored::Short) };
        let console = le32(body.get(4..8).ok_or(Ignored::Short)?);
        let algorithms = body.get(8..32).ok_or(Ignored::Short)?;
        let wanted = [algorithms[4] & 0x3f, algorithms[12] & 0x3f, algorithms[20] & 0x3f];
        let refuse = |status: u8| {
            let mut out = vec![tag, status, 0, 0];
            out.extend_from_slice(&console.to_le_bytes());
            out
        };
        let Some(suite) = CipherSuite::from_algorithms(wanted).filter(|s| self.suites.contains(s)) else {
            return Ok(refuse(0x11));
        };
        if console == 0 {
            return Ok(refuse(0x02));
        }
        if self.sessions.len() == MAX_SESSIONS {
            self.sessions.pop_front();
        }
        let id = rand::rng().random_range(1..=u32::MAX);
        self.sessions.push_back(SimulatedSession { id, console, suite, stage: SessionStage::Opened });
        let level = if role & 0x0f == 0 { 4 } else { role & 0x0f };
        let mut out = vec![tag, 0, level, 0];
        out.extend_from_slice(&console.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(algorithms);
        Ok(out)
    }

    fn rakp1(&mut self, body: &[u8]) -> Result<Vec<u8>, Ignored> {
        let &[tag, ..] = body else { return Err(Ignored::Short) };
        let id = le32(body.get(4..8).ok_or(Ignored::Short)?);
        let random: [u8; 16] = body.get(8..24).and_then(|b| b.try_into().ok()).ok_or(Ignored::Short)?;
        let &[role, _, _, len] = body.get(24..28).ok_or(Ignored::Short)? else { return Err(Ignored::Short) };
        let name = body.get(28..28 + usize::from(len)).ok_or(Ignored::Short)?;
        let (machine, guid) = (self.machine.clone(), self.guid);
        let account = self.accounts.iter().position(|a| a.username.as_bytes() == name);
        let allowed = account.map(|at| self.accounts[at].privilege as u8);
        let Some(session) = self.sessions.iter_mut().find(|s| s.id == id) else { return Err(Ignored::Session) };
        let mut out = vec![tag, 0, 0, 0];
        out.extend_from_slice(&session.console.to_le_bytes());
        match allowed {
            None if self.silent_to_strangers => return Err(Ignored::Session),
            None => out[1] = 0x0d,
            Some(level) if role & 0x0f > level => out[1] = 0x0a,
            Some(_) => {}
        }
        let Some(account) = account.filter(|_| out[1] == 0) else { return Ok(out) };
        let challenge: [u8; 16] = rand::rng().random();
        let mut key = Zeroizing::new(self.accounts[account].password.expose_secret().as_bytes().to_vec());
        if machine.fault(FaultScope::Login) == Some(SimulatedFault::WrongPassword) {
            key.push(b'!');
        }
        let (console, id) = (session.console.to_le_bytes(), session.id.to_le_bytes());
        let signed: [&[u8]; 8] = [&console, &id, &random, &challenge, &guid, &[role], &[len], name];
        out.extend_from_slice(&challenge);
        out.extend_from_slice(&guid);
        out.extend_from_slice(&session.suite.hmac(&key, &signed));
        session.stage = SessionStage::Challenged { random, challenge, role, account };
        Ok(out)
    }

    fn rakp3(&mut self, body: &[u8]) -> Result<Option<Vec<u8>>, Ignored> {
        let &[tag, status, ..] = body else { return Err(Ignored::Short) };
        let id = le32(body.get(4..8).ok_or(Ignored::Short)?);
        let code = body.get(8..).ok_or(Ignored::Short)?;
        let at = self.sessions.iter().position(|s| s.id == id).ok_or(Ignored::Session)?;
        if status != 0 {
            // The console gave up.
            self.sessions.remove(at);
            return Ok(None);
        }
        let session = &mut self.sessions[at];
        let SessionStage::Challenged { random, challenge, role, account } = &session.stage else {
            return Err(Ignored::Stale);
        };
        let mut out = vec![tag, 0, 0, 0];
        out.extend_from_slice(&session.console.to_le_bytes());
        let user = &self.accounts[*account];
        let name = user.username.as_bytes();
        let len = [name.len() as u8];
        let password = user.password.expose_secret().as_bytes();
        let suite = session.suite;
        let console = session.console.to_le_bytes();
        let want = suite.hmac(password, &[challenge, &console, &[*role], &len, name]);
        if !same(&want, code) {
            out[1] = 0x0f;
            self.sessions.remove(at);
            return Ok(Some(out));
        }
        let key = self.kg.as_deref().unwrap_or(password);
        let sik = suite.hmac(key, &[random, challenge, &[*role], &len, name]);
        let proof = suite.hmac(&sik, &[random, &id.to_le_bytes(), &self.guid]);
        out.extend_from_slice(&proof[..suite.integrity_len()]);
        let keys = Keys::derive(suite, &sik);
        session.stage = SessionStage::Active { keys, window: SequenceWindow::default(), sent: 0, account: *account };
        Ok(Some(out))
    }

    fn in_session(&mut self, frame: &V20<'_>) -> Result<IpmiReply, Ignored> {
        let at = self.sessions.iter().position(|s| s.id == frame.session).ok_or(Ignored::Session)?;
        let SessionStage::Active { keys, window, account, .. } = &mut self.sessions[at].stage else {
            return Err(Ignored::Session);
        };
        let plain = keys.open(frame)?;
        window.accept(frame.sequence)?;
        let account = *account;
        let message = IpmiMessage::decode(&plain)?;
        let write =
            message.net_fn == CHASSIS && matches!(message.command, cmd::CHASSIS_CONTROL | cmd::SET_BOOT_OPTIONS);
        let session_command =
            message.net_fn == APP && matches!(message.command, cmd::SET_PRIVILEGE | cmd::CLOSE_SESSION);
        let fault = match (write, session_command) {
            (_, true) => None,
            (true, _) => self.machine.fault(FaultScope::Write),
            (false, _) => self.machine.fault(FaultScope::Read),
        };
        let data = match &fault {
            Some(SimulatedFault::Ignore) if write => vec![0],
            Some(SimulatedFault::Busy) => vec![0xc0],
            Some(SimulatedFault::Fail) => vec![0xff],
            Some(fault @ (SimulatedFault::Silence | SimulatedFault::Reset | SimulatedFault::Garbage)) => {
                return Ok(IpmiReply::Faulty(fault.clone(), None));
            }
            _ => self.command(&message, account),
        };
        let close = message.net_fn == APP && message.command == cmd::CLOSE_SESSION && data == [0];
        let session = &mut self.sessions[at];
        let SessionStage::Active { keys, sent, .. } = &mut session.stage else { return Err(Ignored::Session) };
        *sent += 1;
        let body = message.response(data).encode();
        let packet = keys.seal(session.console, *sent, payload::IPMI, &body, rand::rng().random());
        if close {
            self.sessions.remove(at);
        }
        Ok(match fault {
            Some(fault @ SimulatedFault::Slow(_)) => IpmiReply::Faulty(fault, Some(packet)),
            _ => IpmiReply::Packet(packet),
        })
    }

    /// Runs a command; data of the answer, completion code first.
    fn command(&mut self, message: &IpmiMessage, account: usize) -> Vec<u8> {
        let level = self.accounts.get(account).map_or(0, |a| a.privilege as u8);
        match (message.net_fn, message.command, message.data.as_slice()) {
            (APP, cmd::SET_PRIVILEGE, [wanted]) if wanted & 0x0f > level => vec![0x81],
            (APP, cmd::SET_PRIVILEGE, [wanted]) => vec![0, (wanted & 0x0f).max(2)],
            (APP, cmd::CLOSE_SESSION, [..]) => vec![0],
            (APP, cmd::GET_AUTH_CAPABILITIES | cmd::GET_CIPHER_SUITES | GET_SYSTEM_GUID, _) => {
                self.before_session(message)
            }
            (APP, cmd::GET_DEVICE_ID, _) => {
                let profile = &self.machine.profile;
                let mut out = vec![0];
                out.extend_from_slice(&DEVICE);
                out.extend_from_slice(&profile.ipmi_manufacturer_id.to_le_bytes()[..3]);
                out.extend_from_slice(&profile.ipmi_product_id.to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                out
            }
            (CHASSIS, cmd::CHASSIS_STATUS, _) => vec![0, u8::from(self.machine.is_on()), 0, 0],
            (CHASSIS, cmd::CHASSIS_CONTROL | cmd::SET_BOOT_OPTIONS, _) if level < 3 => vec![0xd4],
            (CHASSIS, cmd::CHASSIS_CONTROL, [control]) => self.control(*control),
            (CHASSIS, cmd::SET_BOOT_OPTIONS, [parameter, rest @ ..]) => self.set_option(parameter & 0x7f, rest),
            (CHASSIS, cmd::GET_BOOT_OPTIONS, [parameter, ..]) => self.option(parameter & 0x7f),
            _ => vec![0xc1],
        }
    }

    fn control(&mut self, control: u8) -> Vec<u8> {
        let on = self.machine.is_on();
        let command = match control {
            0 => PowerCommand::Off,
            1 => PowerCommand::On,
            2 | 3 | 5 if !on => return vec![0xd5],
            2 => PowerCommand::Cycle,
            3 => PowerCommand::Reset,
            5 => PowerCommand::Soft,
            _ => return vec![0xcc],
        };
        self.machine.power(command);
        vec![0]
    }

    fn set_option(&mut self, parameter: u8, data: &[u8]) -> Vec<u8> {
        match (parameter, data) {
            (0..=4, [_, ..]) => {
                if let Some(slot) = self.options.get_mut(usize::from(parameter)) {
                    *slot = data[..data.len().min(4)].to_vec();
                }
            }
            (5, &[first, second, _, _, _]) => {
                let Ok(flags) = BootFlags::parse(&[1, 5, first, second]) else { return vec![0xcc] };
                let device = match flags.selector {
                    0 => None,
                    SELECT_PXE => Some(BootDevice::Pxe),
                    SELECT_DISK | 0x24 => Some(BootDevice::Disk),
                    SELECT_CD => Some(BootDevice::Cd),
                    _ => return vec![0xcc],
                };
                let enabled = match (flags.valid && device.is_some(), flags.persistent) {
                    (false, _) => Override::Disabled,
                    (true, false) => Override::Once,
                    (true, true) => Override::Continuous,
                };
                self.machine.set_boot(BootOverride { enabled, device, uefi: flags.uefi });
                self.flags = Some(flags);
            }
            _ => return vec![0x80],
        }
        vec![0]
    }

    fn option(&self, parameter: u8) -> Vec<u8> {
        let mut out = vec![0, 1, parameter];
        match parameter {
            0..=4 => out.extend_from_slice(self.options.get(usize::from(parameter)).map_or(&[], Vec::as_slice)),
            5 => {
                let boot = self.machine.boot();
                let selector = match (boot.device, self.flags) {
                    (None, _) => 0,
                    (Some(BootDevice::Pxe), _) => SELECT_PXE,
                    // As it was written, for there are two ways to say it.
                    (Some(BootDevice::Disk), Some(flags)) if flags.selector == 0x24 => 0x24,
                    (Some(BootDevice::Disk), _) => SELECT_DISK,
                    (Some(BootDevice::Cd), _) => SELECT_CD,
                    // Set by another protocol; IPMI has no word for it.
                    (Some(BootDevice::UefiHttp), _) => 0,
                };
                let valid = boot.enabled != Override::Disabled;
                let persistent = boot.enabled == Override::Continuous;
                let flags = BootFlags { valid, persistent, uefi: valid && boot.uefi, selector };
                out.extend_from_slice(&flags.encode()[1..]);
            }
            _ => return vec![0x80],
        }
        out
    }
}
