//! The IPMI client over UDP: sends what the protocol core says, waits, tries again, gives up.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use rand::Rng;
use tokio::net::UdpSocket;
use tokio::time::Instant;

use super::commands::{self, APP, AuthCapabilities, THIS_CHANNEL, TooShort, cmd};
use super::exchange::{Exchange, SessionRequest, SessionlessRequest};
use super::packet::{Ignored, MAX_PACKET};
use super::rakp::{Handshake, RakpError, RakpLogin, RakpProgress};
use super::session::{IpmiResponse, IpmiSession};
use super::suite::CipherSuite;
use crate::bmc::address::{BmcEndpoint, Privilege};
use crate::bmc::locate::locate;
use crate::bmc::metrics::{BmcOutcome, Protocol};
use crate::bmc::{BmcAddress, BmcError, BmcMetrics, BmcSettings, Credentials};
use crate::outbound::Guard;

/// Packets passed over per try, so that a flood cannot keep an exchange alive.
const MAX_IGNORED: u32 = 256;
/// How often a "busy" answer is asked again.
const BUSY_TRIES: u32 = 5;

/// Why a command brought no data.
#[derive(Debug)]
pub enum IpmiCallError {
    /// The exchange failed.
    Bmc(BmcError),
    /// The BMC answered with this completion code.
    Completion(u8),
}

impl From<BmcError> for IpmiCallError {
    fn from(error: BmcError) -> Self {
        Self::Bmc(error)
    }
}

/// Why no usable answer came.
enum NoResponse {
    Timeout { ignored: u32, last: Option<Ignored> },
    Io(std::io::Error),
}

/// Opens sessions with one BMC.
pub struct IpmiClient {
    peer: String,
    address: BmcAddress,
    /// Where that is; empty: it is resolved for each session.
    places: Vec<SocketAddr>,
    login: RakpLogin,
    timeout: Duration,
    tries: u32,
    guard: Option<Guard>,
    metrics: BmcMetrics,
    /// The suite that worked last.
    known_suite: Mutex<Option<CipherSuite>>,
}

impl IpmiClient {
    /// For this address, at these places where it was resolved before; nothing is sent yet.
    pub fn new(address: &BmcAddress, places: &[SocketAddr], credentials: &Credentials, settings: &BmcSettings) -> Self {
        let privilege = match address.endpoint {
            BmcEndpoint::Ipmi { privilege } => privilege,
            BmcEndpoint::Redfish { .. } => Privilege::Administrator,
        };
        let login = RakpLogin {
            username: credentials.username.clone(),
            password: credentials.password.clone(),
            kg: settings.ipmi_kg.clone(),
            privilege,
        };
        Self {
            peer: address.peer(),
            address: address.clone(),
            places: places.to_vec(),
            login,
            timeout: settings.ipmi_timeout,
            tries: settings.ipmi_tries.max(1),
            guard: settings.guard.clone(),
            metrics: settings.metrics.clone(),
            known_suite: Mutex::new(None),
        }
    }

    /// `host:port`.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Opens a session at the wanted privilege level.
    pub async fn open(&self) -> Result<IpmiConnection<'_>, BmcError> {
        let mut last = None;
        for address in self.places().await? {
            match self.open_at(address).await {
                // Another address of the same name may still answer.
                Err(error @ BmcError::Unreachable { .. }) => last = Some(error),
                other => return other,
            }
        }
        Err(last.unwrap_or_else(|| self.unreachable("its name has no address".into())))
    }

    async fn places(&self) -> Result<Vec<SocketAddr>, BmcError> {
        if self.places.is_empty() {
            return locate(&self.address, self.guard.as_ref()).await;
        }
        // What is this box's own may have changed since.
        if let Some(guard) = &self.guard {
            self.places.iter().try_for_each(|place| guard.judge(*place))?;
        }
        Ok(self.places.clone())
    }

    async fn open_at(&self, address: SocketAddr) -> Result<IpmiConnection<'_>, BmcError> {
        let local = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let io = |error| self.io(error);
        let socket = UdpSocket::bind(local).await.map_err(io)?;
        // Connected: only this peer is heard, and "port unreachable" comes back as an error.
        socket.connect(address).await.map_err(io)?;
        let wire = IpmiSocket { client: self, socket };
        let known = *self.known_suite.lock().unwrap_or_else(|e| e.into_inner());
        let offered = wire.probe(known.is_none()).await?;
        let mut failure = None;
        for suite in order(known, &offered) {
            match wire.handshake(suite).await {
                Ok(session) => {
                    *self.known_suite.lock().unwrap_or_else(|e| e.into_inner()) = Some(suite);
                    tracing::debug!(bmc = %self.peer, suite = suite.id(), "opened an IPMI session");
                    let mut connection = IpmiConnection { wire, session };
                    connection.raise().await?;
                    return Ok(connection);
                }
                Err(HandshakeFailure::NextSuite(error)) => {
                    tracing::debug!(bmc = %self.peer, suite = suite.id(), %error, "the BMC refused a cipher suite: trying the next one");
                    failure.get_or_insert(error);
                }
                Err(HandshakeFailure::Final(error)) => return Err(error),
            }
        }
        Err(match failure {
            // Silence to every suite: a broken network rather than a choice of algorithms.
            Some(error @ BmcError::Unreachable { .. }) => error,
            Some(error) => BmcError::Unsupported {
                peer: self.peer.clone(),
                what: format!(
                    "open a session with cipher suite 17 or 3 (it offers {offered:?}); enable one of them: {error}"
                ),
            },
            None => self.unreachable("no cipher suite was tried".into()),
        })
    }

    fn unreachable(&self, reason: String) -> BmcError {
        BmcError::Unreachable { peer: self.peer.clone(), reason }
    }

    fn protocol(&self, reason: String) -> BmcError {
        BmcError::Protocol { peer: self.peer.clone(), reason }
    }

    fn short(&self, error: TooShort) -> BmcError {
        self.protocol(error.to_string())
    }

    fn io(&self, error: std::io::Error) -> BmcError {
        use std::io::ErrorKind::*;
        self.unreachable(match error.kind() {
            ConnectionRefused => {
                format!(
                    "nothing listens on UDP port {}: check the port and that IPMI over LAN is enabled",
                    self.address.port
                )
            }
            HostUnreachable | NetworkUnreachable => format!("no route to it: {error}"),
            _ => error.to_string(),
        })
    }

    fn no_response(&self, no_response: NoResponse) -> BmcError {
        match no_response {
            NoResponse::Io(error) => self.io(error),
            NoResponse::Timeout { ignored: 0, .. } => self.unreachable(format!(
                "no answer to {} requests, {:?} each: check the address, that IPMI over LAN is enabled and that UDP port {} is open",
                self.tries, self.timeout, self.address.port
            )),
            NoResponse::Timeout { ignored, last } => self.protocol(format!(
                "with {ignored} packets, none of them usable: {}",
                last.map_or_else(String::new, |reason| reason.to_string())
            )),
        }
    }

    /// The session was agreed on, and the user name met silence.
    fn stranger(&self) -> BmcError {
        let user = &self.login.username;
        let reason = format!(
            "it answered until user {user:?} was named and not after: that user is probably not known there or may not log in over the network"
        );
        BmcError::Credentials { peer: self.peer.clone(), reason, logins: 1 }
    }

    fn rakp(&self, error: RakpError) -> BmcError {
        let (peer, reason) = (self.peer.clone(), error.to_string());
        match error {
            RakpError::UnknownUser { .. }
            | RakpError::WrongPassword(_)
            | RakpError::Role { .. }
            | RakpError::BmcKey => BmcError::Credentials { peer, reason, logins: 1 },
            // It was not even sent.
            RakpError::TooLong(_) => BmcError::Credentials { peer, reason, logins: 0 },
            RakpError::SuiteRefused { .. }
            | RakpError::Busy { .. }
            | RakpError::Refused { .. }
            | RakpError::Downgrade(_) => {
                BmcError::Protocol { peer, reason: format!("the login with an error: {reason}") }
            }
        }
    }
}

/// Known good first, then what the BMC lists, then the rest: lists are sometimes wrong.
fn order(known: Option<CipherSuite>, offered: &[u8]) -> Vec<CipherSuite> {
    let mut suites = CipherSuite::ALL.to_vec();
    suites.sort_by_key(|s| (Some(*s) != known, !offered.is_empty() && !offered.contains(&s.id())));
    suites
}

enum HandshakeFailure {
    NextSuite(BmcError),
    Final(BmcError),
}

struct IpmiSocket<'a> {
    client: &'a IpmiClient,
    socket: UdpSocket,
}

impl IpmiSocket<'_> {
    /// Sends until an answer is taken; each sending is made anew, so that it has fresh numbers.
    async fn exchange<E: Exchange + Send>(&self, state: &mut E, tries: u32) -> Result<E::Out, NoResponse> {
        let began = Instant::now();
        let result = self.hear(state, tries).await;
        let outcome = match &result {
            Ok(out) => E::outcome(out),
            Err(NoResponse::Timeout { ignored: 0, .. }) => BmcOutcome::Timeout,
            Err(NoResponse::Timeout { .. }) => BmcOutcome::Invalid,
            Err(NoResponse::Io(_)) => BmcOutcome::Unreachable,
        };
        self.client.metrics.asked(Protocol::Ipmi, outcome, began.elapsed());
        result
    }

    async fn hear<E: Exchange + Send>(&self, state: &mut E, tries: u32) -> Result<E::Out, NoResponse> {
        let (mut ignored, mut last) = (0, None);
        let mut buffer = [0u8; MAX_PACKET];
        for _ in 0..tries {
            self.socket.send(&state.packet()).await.map_err(NoResponse::Io)?;
            let deadline = Instant::now() + self.client.timeout;
            while ignored < MAX_IGNORED {
                let received = tokio::time::timeout_at(deadline, self.socket.recv(&mut buffer)).await;
                let len = match received {
                    Err(_) => break,
                    Ok(result) => result.map_err(NoResponse::Io)?,
                };
                match state.receive(&buffer[..len]) {
                    Ok(out) => return Ok(out),
                    Err(reason) => {
                        tracing::debug!(bmc = %self.client.peer, %reason, len, "ignored an IPMI packet");
                        (ignored, last) = (ignored + 1, Some(reason));
                    }
                }
            }
        }
        Err(NoResponse::Timeout { ignored, last })
    }

    /// A command before there is a session.
    async fn ask(&self, command: u8, data: &[u8], tries: u32) -> Result<IpmiResponse, NoResponse> {
        let mut question = SessionlessRequest::new(command, data, rand::rng().random());
        self.exchange(&mut question, tries).await
    }

    /// Checks for IPMI 2.0 and, if asked to, reads which cipher suites are offered; an empty list means unknown.
    async fn probe(&self, suites: bool) -> Result<Vec<u8>, BmcError> {
        let client = self.client;
        let request = [0x80 | THIS_CHANNEL, client.login.privilege as u8];
        let answer =
            self.ask(cmd::GET_AUTH_CAPABILITIES, &request, client.tries).await.map_err(|s| client.no_response(s))?;
        if answer.completion == 0 {
            let found = AuthCapabilities::parse(&answer.data).map_err(|e| client.short(e))?;
            if !found.ipmi_2 {
                return Err(BmcError::Unsupported {
                    peer: client.peer.clone(),
                    what: "speak IPMI 2.0 over LAN (it answers with version 1.5 only)".into(),
                });
            }
            if found.kg_set && client.login.kg.is_none() {
                tracing::debug!(bmc = %client.peer, "the BMC says that a key K_G is set: none is configured here");
            }
        }
        let mut records = Vec::new();
        for index in 0..if suites { 0x40u8 } else { 0 } {
            // Old controllers do not know the command; then both suites are tried.
            let request = [THIS_CHANNEL, 0, 0x80 | index];
            let Ok(answer) = self.ask(cmd::GET_CIPHER_SUITES, &request, client.tries.min(2)).await else { break };
            let part = if answer.completion == 0 { answer.data.get(1..).unwrap_or_default() } else { &[] };
            records.extend_from_slice(part);
            if part.len() < 16 {
                break;
            }
        }
        Ok(commands::cipher_suites(&records))
    }

    async fn handshake(&self, suite: CipherSuite) -> Result<IpmiSession, HandshakeFailure> {
        let client = self.client;
        let mut failure = None;
        // When an answer is lost, the BMC's half may be ahead of ours: then one fresh start.
        for _ in 0..2 {
            let console = rand::rng().random_range(1..=u32::MAX);
            let mut handshake = Handshake::new(client.login.clone(), suite, console, rand::rng().random())
                .map_err(|e| HandshakeFailure::Final(client.rakp(e)))?;
            for step in 0..3 {
                match self.exchange(&mut handshake, client.tries).await {
                    Ok(RakpProgress::Next) => {}
                    Ok(RakpProgress::Open(session)) => return Ok(*session),
                    Ok(RakpProgress::Failed(error, goodbye)) => {
                        if let Some(goodbye) = goodbye {
                            self.socket.send(&goodbye).await.ok();
                        }
                        let next = matches!(error, RakpError::SuiteRefused { .. } | RakpError::Downgrade(_));
                        let again = matches!(error, RakpError::Refused { .. } | RakpError::Busy { .. });
                        let error = client.rakp(error);
                        if next {
                            return Err(HandshakeFailure::NextSuite(error));
                        }
                        if !again {
                            return Err(HandshakeFailure::Final(error));
                        }
                        failure = Some(error);
                        break;
                    }
                    Err(no_response @ NoResponse::Timeout { .. }) => {
                        let quiet = matches!(no_response, NoResponse::Timeout { ignored: 0, .. });
                        let error = client.no_response(no_response);
                        match step {
                            // Some controllers say nothing to a suite that they do not have,
                            0 => return Err(HandshakeFailure::NextSuite(error)),
                            // and some nothing to a user whom they do not know.
                            1 if quiet => return Err(HandshakeFailure::Final(client.stranger())),
                            _ => failure = Some(error),
                        }
                        break;
                    }
                    Err(no_response) => return Err(HandshakeFailure::Final(client.no_response(no_response))),
                }
            }
        }
        Err(HandshakeFailure::Final(failure.unwrap_or_else(|| client.protocol("the login out of order".into()))))
    }
}

/// An open session.
pub struct IpmiConnection<'a> {
    wire: IpmiSocket<'a>,
    session: IpmiSession,
}

impl IpmiConnection<'_> {
    /// Sessions begin as user; this raises to the level of the login.
    async fn raise(&mut self) -> Result<(), BmcError> {
        let client = self.wire.client;
        let privilege = client.login.privilege;
        match self.call(APP, cmd::SET_PRIVILEGE, &[privilege as u8]).await {
            Ok(_) => Ok(()),
            Err(IpmiCallError::Bmc(error)) => Err(error),
            Err(IpmiCallError::Completion(code)) => {
                let (user, text) = (&client.login.username, commands::completion_text(code));
                self.say_goodbye().await;
                Err(BmcError::Credentials {
                    peer: client.peer.clone(),
                    reason: format!(
                        "user {user:?} may not act as {privilege:?}: give the account that role or set ?privilegelevel= in the address ({text})"
                    ),
                    logins: 0,
                })
            }
        }
    }

    /// Sends a command and waits for its answer; data come without the completion code.
    pub async fn call(&mut self, net_fn: u8, command: u8, data: &[u8]) -> Result<Vec<u8>, IpmiCallError> {
        let client = self.wire.client;
        let mut busy = 0;
        loop {
            let mut request = SessionRequest::new(&mut self.session, net_fn, command, data);
            let answer = self.wire.exchange(&mut request, client.tries).await.map_err(|s| client.no_response(s))?;
            match answer.completion {
                0 => return Ok(answer.data),
                // Node busy: the one code that asks for patience.
                0xc0 if busy < BUSY_TRIES => {
                    busy += 1;
                    tokio::time::sleep(client.timeout / 4).await;
                }
                code => return Err(IpmiCallError::Completion(code)),
            }
        }
    }

    /// As [`IpmiConnection::call`], with completion codes turned into errors; `what` follows "cannot".
    pub async fn demand(&mut self, net_fn: u8, command: u8, data: &[u8], what: &str) -> Result<Vec<u8>, BmcError> {
        let client = self.wire.client;
        let peer = client.peer.clone();
        self.call(net_fn, command, data).await.map_err(|error| match error {
            IpmiCallError::Bmc(error) => error,
            IpmiCallError::Completion(code @ 0xd4) => BmcError::Credentials {
                peer,
                reason: format!(
                    "user {:?} may not {what}; the account needs the role {:?} ({})",
                    client.login.username,
                    Privilege::Operator,
                    commands::completion_text(code)
                ),
                logins: 0,
            },
            IpmiCallError::Completion(code @ (0x80 | 0xc1 | 0xcc)) => {
                BmcError::Unsupported { peer, what: format!("{what} ({})", commands::completion_text(code)) }
            }
            IpmiCallError::Completion(code) => {
                BmcError::Protocol { peer, reason: format!("{} when told to {what}", commands::completion_text(code)) }
            }
        })
    }

    /// Which suite protects the session.
    pub fn suite(&self) -> CipherSuite {
        self.session.suite()
    }

    /// Ends the session. Its answer is not waited for long: an unclosed session expires by itself.
    pub async fn close(mut self) {
        self.say_goodbye().await;
    }

    async fn say_goodbye(&mut self) {
        let id = self.session.bmc_id().to_le_bytes();
        let mut request = SessionRequest::new(&mut self.session, APP, cmd::CLOSE_SESSION, &id);
        if self.wire.exchange(&mut request, 1).await.is_err() {
            tracing::debug!(bmc = %self.wire.client.peer, "cannot close an IPMI session: it is left to expire");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_tried_in_the_order_that_works() {
        use CipherSuite::*;
        assert_eq!(order(None, &[]), [Sha256, Sha1]);
        assert_eq!(order(None, &[3, 17]), [Sha256, Sha1]);
        assert_eq!(order(None, &[0, 1, 2, 3]), [Sha1, Sha256]);
        assert_eq!(order(Some(Sha1), &[3, 17]), [Sha1, Sha256]);
        assert_eq!(order(None, &[1]), [Sha256, Sha1]);
    }
}
