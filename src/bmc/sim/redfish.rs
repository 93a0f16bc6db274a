//! The Redfish side of a simulated BMC.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use base64::Engine;
use http::header::{AUTHORIZATION, CONTENT_TYPE, ETAG, IF_MATCH, LOCATION};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use rand::Rng;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::machine::{Account, FaultScope, PowerCommand, SimulatedFault, SimulatedMachine};
use super::redfish_views as views;
use crate::bmc::ipmi::suite::same;

/// Connections at a time.
const MAX_CONNECTIONS: usize = 64;
/// Sessions at a time; the oldest makes room.
const MAX_SESSIONS: usize = 16;
/// Largest request body, in bytes.
const MAX_BODY: usize = 64 << 10;
const HEADER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// Where a service has its virtual CD drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediaStyle {
    /// None at all.
    None,
    /// Below the system, with actions (since Redfish 2020.3).
    #[default]
    System,
    /// Below the manager, with actions.
    Manager,
    /// Below the manager, written by PATCH.
    ManagerPatch,
}

/// What is wrong with a virtual CD drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MediaFault {
    /// Nothing.
    #[default]
    None,
    /// Refuses an insertion that names more than the image.
    ImageOnly,
    /// Refuses an insertion without the transfer protocol.
    TransferRequired,
    /// Answers an insertion with 500, and shows the image as inserted all the same.
    FailsAndShows,
    /// Accepts an insertion and never shows it.
    AcceptsAndForgets,
    /// Refuses an insertion while something else is in the drive.
    FullRefuses,
}

/// How the simulated service differs from the plain one.
#[derive(Clone, Debug)]
pub struct RedfishOptions {
    /// It has sessions; otherwise only basic authentication.
    pub sessions: bool,
    /// Writes need a fitting `If-Match`.
    pub if_match: bool,
    /// ETags are weak.
    pub weak_etags: bool,
    /// `ResetType` values.
    pub reset_types: Vec<String>,
    /// The boot override is written to a settings resource.
    pub settings_resource: bool,
    /// `BootSourceOverrideMode` cannot be written.
    pub mode_read_only: bool,
    /// `Once` becomes `Continuous`.
    pub no_once: bool,
    /// Properties left out of a write fall back to defaults.
    pub forgets_unsent: bool,
    /// The boot override changes only while the machine is off.
    pub boot_needs_power_off: bool,
    /// Refuses so many writes of the boot override with `UnableToModifyDuringSystemPOST`.
    pub post_refusals: u32,
    /// Where the virtual CD drive is and how it is written.
    pub media: MediaStyle,
    /// What is wrong with its virtual CD drive.
    pub media_fault: MediaFault,
    /// The CD drive is the boot device `UsbCd`, not `Cd`.
    pub cd_on_usb: bool,
    /// It takes `UefiHttp` with an `HttpBootUri`.
    pub uefi_http: bool,
    /// After so many wrong logins it locks the account: the right password is refused too, until [`RedfishSim::unlock`].
    pub lock_after: Option<u32>,
}

impl Default for RedfishOptions {
    fn default() -> Self {
        let types = ["On", "ForceOff", "GracefulShutdown", "ForceRestart", "PowerCycle"];
        Self {
            sessions: true,
            if_match: true,
            weak_etags: false,
            reset_types: types.map(String::from).to_vec(),
            settings_resource: false,
            mode_read_only: false,
            no_once: false,
            forgets_unsent: false,
            boot_needs_power_off: false,
            post_refusals: 0,
            media: MediaStyle::default(),
            media_fault: MediaFault::default(),
            cd_on_usb: false,
            uefi_http: true,
            lock_after: None,
        }
    }
}

/// A Redfish service over one or more machines.
pub struct RedfishSim {
    machines: Vec<Arc<SimulatedMachine>>,
    account: Account,
    options: RedfishOptions,
    state: Mutex<RedfishState>,
}

#[derive(Default)]
struct RedfishState {
    tokens: VecDeque<(u64, String)>,
    next: u64,
    post_refusals: u32,
    /// Logins refused since the account was unlocked, and the password that it has by now, when it is another one.
    refused: u32,
    password: Option<SecretString>,
}

/// The connection is to be dropped without an answer.
#[derive(Debug, thiserror::Error)]
#[error("connection dropped on purpose")]
struct Dropped;

type SimulatedResponse = Result<Response<Body>, Dropped>;

impl RedfishSim {
    /// Over these machines, which must have different names.
    pub fn new(machines: Vec<Arc<SimulatedMachine>>, account: Account, options: RedfishOptions) -> Arc<Self> {
        let state = RedfishState { post_refusals: options.post_refusals, ..RedfishState::default() };
        Arc::new(Self { machines, account, options, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, RedfishState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sessions that are open.
    pub fn sessions(&self) -> usize {
        self.state().tokens.len()
    }

    /// Forgets all sessions, as a restart of the BMC does.
    pub fn drop_sessions(&self) {
        self.state().tokens.clear();
    }

    /// Logins that were refused since the start or the last [`RedfishSim::unlock`].
    pub fn refused_logins(&self) -> u32 {
        self.state().refused
    }

    /// Gives the account another password and ends its sessions.
    pub fn set_password(&self, password: &str) {
        let mut state = self.state();
        state.password = Some(password.to_owned().into());
        state.tokens.clear();
    }

    /// Unlocks the account.
    pub fn unlock(&self) {
        self.state().refused = 0;
    }

    /// Serves until the token is cancelled or the listener fails; over TLS when an acceptor is given.
    pub async fn run(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        token: CancellationToken,
    ) -> std::io::Result<()> {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let (stream, _) = tokio::select! {
                () = token.cancelled() => return Ok(()),
                accepted = listener.accept() => accepted?,
            };
            let Ok(permit) = permits.clone().try_acquire_owned() else { continue };
            let (sim, tls) = (self.clone(), tls.clone());
            connections.spawn(async move {
                let _permit = permit;
                match tls {
                    None => sim.serve(TokioIo::new(stream)).await,
                    Some(acceptor) => match tokio::time::timeout(HEADER_TIMEOUT, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => sim.serve(TokioIo::new(stream)).await,
                        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                        Err(_) => tracing::debug!("a TLS handshake took too long"),
                    },
                }
            });
        }
    }

    async fn serve<I>(self: Arc<Self>, io: I)
    where
        I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let service = hyper::service::service_fn(move |request| {
            let sim = self.clone();
            async move { sim.handle(request).await }
        });
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        if let Err(error) = http.serve_connection(io, service).await {
            tracing::debug!(%error, "a connection to the simulated BMC broke");
        }
    }

    async fn handle(&self, request: Request<Incoming>) -> SimulatedResponse {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().trim_end_matches('/').to_string();
        let login = path.ends_with("/Sessions") && parts.method == Method::POST;
        let scope = match (login || matches!(path.as_str(), "/redfish" | "/redfish/v1"), &parts.method) {
            (true, _) => FaultScope::Login,
            (_, &Method::GET | &Method::HEAD) => FaultScope::Read,
            _ => FaultScope::Write,
        };
        let fault = self.machines.first().and_then(|m| m.fault(scope));
        match &fault {
            Some(SimulatedFault::Reset) => return Err(Dropped),
            Some(SimulatedFault::Silence) => match std::future::pending::<Infallible>().await {},
            Some(SimulatedFault::Slow(delay)) => tokio::time::sleep(*delay).await,
            Some(SimulatedFault::Garbage) => return Ok(raw(StatusCode::OK, "<html>\u{1}not what you think")),
            Some(SimulatedFault::Busy) => {
                return Ok(views::error(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "ServiceTemporarilyUnavailable",
                    "Try again.",
                ));
            }
            Some(SimulatedFault::Fail) => {
                return Ok(views::error(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "InternalError",
                    "The request failed due to an internal service error.",
                ));
            }
            Some(SimulatedFault::WrongPassword) if !matches!(path.as_str(), "/redfish" | "/redfish/v1") => {
                return Ok(views::unauthorized());
            }
            _ => {}
        }
        let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
            return Ok(views::error(StatusCode::PAYLOAD_TOO_LARGE, "PayloadTooLarge", "The body is too large."));
        };
        let body = body.to_bytes();
        let body = if body.is_empty() {
            Value::Null
        } else {
            match serde_json::from_slice(&body) {
                Ok(body) => body,
                Err(_) => return Ok(views::error(StatusCode::BAD_REQUEST, "MalformedJSON", "The body is not JSON.")),
            }
        };
        Ok(self.answer(&parts.method, &path, &parts.headers, &body, fault == Some(SimulatedFault::Ignore)))
    }

    fn answer(&self, method: &Method, path: &str, headers: &HeaderMap, body: &Value, ignore: bool) -> Response<Body> {
        let not_found =
            || views::error(StatusCode::NOT_FOUND, "ResourceMissingAtURI", "There is no resource at this URI.");
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        match (method, segments.as_slice()) {
            (&Method::GET, ["redfish"]) => return views::ok(&json!({"v1": "/redfish/v1/"})),
            (&Method::GET, ["redfish", "v1"]) => return views::ok(&views::root(self.options.sessions)),
            (&Method::POST, ["redfish", "v1", "SessionService", "Sessions"]) if self.options.sessions => {
                return self.log_in(body);
            }
            (_, ["redfish", "v1", "SessionService", ..]) if !self.options.sessions => return not_found(),
            _ => {}
        }
        if !self.authorized(headers) {
            return views::unauthorized();
        }
        match (method, segments.as_slice()) {
            (&Method::DELETE, ["redfish", "v1", "SessionService", "Sessions", id]) => {
                self.state().tokens.retain(|(n, _)| n.to_string() != *id);
                views::no_content()
            }
            (&Method::GET, ["redfish", "v1", "Systems"]) => views::ok(&views::systems(&self.names())),
            (method, ["redfish", "v1", "Managers", rest @ ..]) => {
                self.manager(method, rest, headers, body, ignore).unwrap_or_else(not_found)
            }
            (method, ["redfish", "v1", "Systems", name, rest @ ..]) => {
                match self.machines.iter().find(|m| m.profile.name == *name) {
                    Some(machine) => {
                        self.system(machine, method, rest, headers, body, ignore).unwrap_or_else(not_found)
                    }
                    None => not_found(),
                }
            }
            _ => not_found(),
        }
    }

    fn system(
        &self,
        machine: &SimulatedMachine,
        method: &Method,
        rest: &[&str],
        headers: &HeaderMap,
        body: &Value,
        ignore: bool,
    ) -> Option<Response<Body>> {
        let settings = self.options.settings_resource;
        match (method, rest) {
            (&Method::GET, []) => Some(self.tagged(machine, views::system(machine, &self.options))),
            (&Method::GET, ["Settings"]) if settings => {
                Some(self.tagged(machine, views::settings(machine, &self.options)))
            }
            (&Method::PATCH, ["Settings"]) if settings => Some(self.patch(machine, headers, body, ignore)),
            (&Method::PATCH, []) if !settings => Some(self.patch(machine, headers, body, ignore)),
            (&Method::POST, ["Actions", "ComputerSystem.Reset"]) => Some(self.reset(machine, body, ignore)),
            (method, ["VirtualMedia", rest @ ..]) if self.options.media == MediaStyle::System => {
                self.media(machine, method, rest, headers, body, ignore)
            }
            (&Method::GET, rest) => self.hardware(machine, rest),
            _ => None,
        }
    }

    fn etag(&self, machine: &SimulatedMachine) -> String {
        let weak = if self.options.weak_etags { "W/" } else { "" };
        format!("{weak}\"{}\"", machine.generation())
    }

    fn tagged(&self, machine: &SimulatedMachine, body: Value) -> Response<Body> {
        let mut response = views::ok(&body);
        if let Ok(value) = self.etag(machine).parse() {
            response.headers_mut().insert(ETAG, value);
        }
        response
    }

    /// The refusal of a write whose `If-Match` does not fit.
    fn precondition(&self, machine: &SimulatedMachine, headers: &HeaderMap) -> Option<Response<Body>> {
        if !self.options.if_match {
            return None;
        }
        match headers.get(IF_MATCH).and_then(|v| v.to_str().ok()) {
            None => {
                Some(views::error(StatusCode::PRECONDITION_REQUIRED, "PreconditionRequired", "If-Match is missing."))
            }
            // A weak tag never matches (RFC 9110, section 13.1.1).
            Some(tag) if tag != format!("\"{}\"", machine.generation()) => {
                Some(views::error(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", "The ETag does not match."))
            }
            Some(_) => None,
        }
    }

    fn patch(&self, machine: &SimulatedMachine, headers: &HeaderMap, body: &Value, ignore: bool) -> Response<Body> {
        if let Some(refusal) = self.precondition(machine, headers) {
            return refusal;
        }
        {
            let mut state = self.state();
            if state.post_refusals > 0 {
                state.post_refusals -= 1;
                let text = "The value cannot be changed while the computer system BIOS is in POST.";
                return views::error(StatusCode::BAD_REQUEST, "UnableToModifyDuringSystemPOST", text);
            }
        }
        let boot = match views::boot_from(&body["Boot"], machine.boot(), &self.options) {
            Ok(boot) => boot,
            Err((id, text)) => return views::error(StatusCode::BAD_REQUEST, id, &text),
        };
        let locked = self.options.boot_needs_power_off && machine.is_on();
        if !ignore && !locked {
            machine.set_boot(boot);
            if let Some(url) = body["Boot"]["HttpBootUri"].as_str() {
                machine.set_http_uri(Some(url.to_owned()).filter(|url| !url.is_empty()));
            }
        }
        self.tagged(machine, views::system(machine, &self.options))
    }

    fn names(&self) -> Vec<&str> {
        self.machines.iter().map(|machine| machine.profile.name.as_str()).collect()
    }

    /// `Managers` and what is below it. There is one, of all machines; its drive is the first one's.
    fn manager(
        &self,
        method: &Method,
        rest: &[&str],
        headers: &HeaderMap,
        body: &Value,
        ignore: bool,
    ) -> Option<Response<Body>> {
        match (method, rest) {
            (&Method::GET, []) => Some(views::ok(&views::managers())),
            (&Method::GET, ["1"]) => Some(views::ok(&views::manager(&self.names(), &self.options))),
            (method, ["1", "VirtualMedia", rest @ ..])
                if matches!(self.options.media, MediaStyle::Manager | MediaStyle::ManagerPatch) =>
            {
                self.media(self.machines.first()?, method, rest, headers, body, ignore)
            }
            _ => None,
        }
    }

    /// The virtual CD drive.
    fn media(
        &self,
        machine: &SimulatedMachine,
        method: &Method,
        rest: &[&str],
        headers: &HeaderMap,
        body: &Value,
        ignore: bool,
    ) -> Option<Response<Body>> {
        let style = self.options.media;
        let inserts = match (method, rest) {
            (&Method::GET, []) => return Some(views::ok(&views::drives(machine, style))),
            (&Method::GET, ["Cd"]) => return Some(self.tagged(machine, views::drive(machine, style))),
            (&Method::POST, ["Cd", "Actions", "VirtualMedia.InsertMedia"]) if style != MediaStyle::ManagerPatch => true,
            (&Method::POST, ["Cd", "Actions", "VirtualMedia.EjectMedia"]) if style != MediaStyle::ManagerPatch => false,
            (&Method::PATCH, ["Cd"]) if style == MediaStyle::ManagerPatch => {
                if let Some(refusal) = self.precondition(machine, headers) {
                    return Some(refusal);
                }
                body["Image"].is_string()
            }
            _ => return None,
        };
        if !inserts {
            if !ignore {
                machine.set_media(None);
            }
            return Some(views::no_content());
        }
        let refuse = |id: &str, text: &str| Some(views::error(StatusCode::BAD_REQUEST, id, text));
        let Some(url) = body["Image"].as_str() else { return refuse("ActionParameterMissing", "Image is missing.") };
        let extra = body.as_object().is_some_and(|body| body.len() > 1);
        match self.options.media_fault {
            MediaFault::ImageOnly if extra => {
                return refuse("ActionParameterUnknown", "The action does not take the parameter.");
            }
            MediaFault::TransferRequired if body["TransferProtocolType"].is_null() => {
                return refuse("ActionParameterMissing", "TransferProtocolType is missing.");
            }
            MediaFault::FullRefuses if machine.media().is_some() => {
                return refuse("ResourceInUse", "The change could not be completed because the resource is in use.");
            }
            MediaFault::FailsAndShows => {
                machine.set_media(Some(url.to_owned()));
                let text = "The request failed due to an internal service error.";
                return Some(views::error(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", text));
            }
            MediaFault::AcceptsAndForgets => return Some(views::no_content()),
            _ => {}
        }
        if !ignore {
            machine.set_media(Some(url.to_owned()));
        }
        Some(views::no_content())
    }

    /// What is below a system for an inventory.
    fn hardware(&self, machine: &SimulatedMachine, rest: &[&str]) -> Option<Response<Body>> {
        views::hardware(machine, rest).map(|body| views::ok(&body))
    }

    fn reset(&self, machine: &SimulatedMachine, body: &Value, ignore: bool) -> Response<Body> {
        let kind = body["ResetType"].as_str().unwrap_or_default();
        let allowed = self.options.reset_types.iter().any(|t| t == kind);
        let command = match kind {
            "On" | "ForceOn" => PowerCommand::On,
            "ForceOff" => PowerCommand::Off,
            "GracefulShutdown" => PowerCommand::Soft,
            "PushPowerButton" if machine.is_on() => PowerCommand::Soft,
            "PushPowerButton" => PowerCommand::On,
            "ForceRestart" => PowerCommand::Reset,
            "PowerCycle" => PowerCommand::Cycle,
            _ => {
                let text = format!("The value {kind:?} is not in the list of acceptable values.");
                return views::error(StatusCode::BAD_REQUEST, "ActionParameterNotSupported", &text);
            }
        };
        if !allowed {
            return views::error(StatusCode::BAD_REQUEST, "ActionParameterNotSupported", "Not an allowed reset type.");
        }
        if !ignore {
            machine.power(command);
        }
        views::no_content()
    }

    fn log_in(&self, body: &Value) -> Response<Body> {
        let (user, password) = (body["UserName"].as_str(), body["Password"].as_str());
        if !self.right(user.unwrap_or_default(), password.unwrap_or_default()) {
            return views::unauthorized();
        }
        let token: String = rand::rng().random::<[u8; 16]>().iter().map(|b| format!("{b:02x}")).collect();
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        if state.tokens.len() == MAX_SESSIONS {
            state.tokens.pop_front();
        }
        state.tokens.push_back((id, token.clone()));
        let path = format!("/redfish/v1/SessionService/Sessions/{id}");
        let mut response = views::json(StatusCode::CREATED, &json!({"@odata.id": path, "UserName": user}));
        for (name, value) in [("x-auth-token", token), (LOCATION.as_str(), path)] {
            if let (Ok(name), Ok(value)) = (http::HeaderName::try_from(name), value.parse()) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }

    fn right(&self, user: &str, password: &str) -> bool {
        let mut state = self.state();
        let locked = self.options.lock_after.is_some_and(|most| state.refused >= most);
        let wanted = state.password.as_ref().unwrap_or(&self.account.password);
        let fits = user == self.account.username && same(password.as_bytes(), wanted.expose_secret().as_bytes());
        if fits && !locked {
            return true;
        }
        state.refused = state.refused.saturating_add(1);
        false
    }

    fn authorized(&self, headers: &HeaderMap) -> bool {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        if let Some(token) = text("x-auth-token") {
            return self.state().tokens.iter().any(|(_, known)| same(known.as_bytes(), token.as_bytes()));
        }
        let Some(encoded) = text(AUTHORIZATION.as_str()).and_then(|v| v.strip_prefix("Basic ")) else { return false };
        let Ok(pair) = base64::engine::general_purpose::STANDARD.decode(encoded) else { return false };
        let pair = String::from_utf8_lossy(&pair).into_owned();
        pair.split_once(':').is_some_and(|(user, password)| self.right(user, password))
    }
}

fn raw(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(text.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}
