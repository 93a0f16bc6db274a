//! Boot HTTP: plain, because firmware and many iPXE builds know nothing else. Nothing secret is kept here; a boot
//! token is made for the one script it is put in.
//!
//! | request | answer |
//! |---|---|
//! | `GET /boot/ipxe?mac=&uuid=&arch=` | the script; `arch` is DHCP option 93's number or iPXE's `${platform}` |
//! | `GET /boot/files/NAME` | a file of [`HTTP_FILES`], with Range and HEAD |
//! | `GET /boot/files/slipway-SHA256` | this very program, for nodes ([`super::Program`]), with Range and HEAD |
//! | `GET /boot/live/DIGEST.iso` | a live ISO that some host boots, with Range and HEAD ([`super::live`]) |
//! | `GET /boot/iso/TICKET.iso` | the ISO of one machine's one boot ([`super::iso`]), with Range and HEAD |
//! | `GET /boot/host/TICKET.cpio` | the archive with a machine's network data, for boot scripts |
//! | `GET /boot/ca.pem` | the appliance's CA certificate |
//! | `GET /boot/explain?mac=&arch=` | what the machine would boot and why |
//! | `GET /boot/explain/dhcp?mac=` | what DHCP does for the machine and why; asked on this box only |

mod server_config;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Extension, Path, Query, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Router, body::Body};
use serde::Deserialize;
use tower_http::services::ServeDir;
use tracing::field::display;
use tracing::{error, info, warn};

use crate::api::MacAddress;
use crate::image;
use crate::log::named;
use crate::network_data::NetworkPlan;
use crate::ration::Rank;

pub use server_config::{BootNetworks, BootServerConfig, BootServerConfigError, LeaseOwner};

use super::cached::Cached;
use super::download_scheduler::{DownloadClient, DownloadScheduler};
use super::files::{BINARY, HTTP_FILES, INITRD, KERNEL};
use super::first_use::FirstUses;
use super::home::{Home, SiteNetwork, home};
use super::if_range::if_range_holds;
use super::listener::Hangup;
use super::live;
use super::media::{self, NetworkData, local_address_to};
use super::neighbour::{ArpAnswers, Neighbours, another_card};
use super::script::{self, KernelArgsError, ScriptError, check_kernel_args};
use super::token::{BOOT_TOKEN_LIFE, FIRST_HOLDS, TokenBinding};
use super::{
    BootClient, BootFiles, BootHost, BootTokens, ClientKind, Firmware, HostIndex, MintError, NetworkBoot, decide,
    explain,
};

/// Bytes of a file read at once. Less costs more calls, more no longer fits the processor's cache.
const FILE_CHUNK: usize = 256 << 10;
/// What the log calls this program.
const PROGRAM: &str = "slipway";

/// The two ends of the connection that a request came on.
#[derive(Clone, Copy, Debug)]
pub struct ConnInfo {
    /// The address that the machine reached; scripts name it.
    pub local: SocketAddr,
    /// The machine.
    pub peer: SocketAddr,
}

impl ConnInfo {
    /// Whether both are on this box.
    pub(super) fn same(&self) -> bool {
        self.local.ip().to_canonical() == self.peer.ip().to_canonical()
    }
}

pub(super) struct ServerState {
    pub config: BootServerConfig,
    pub hosts: HostIndex,
    pub tokens: Arc<BootTokens>,
    pub files: BootFiles,
    pub downloads: DownloadScheduler,
    /// The first address that asked for a boot's script, where another server gives the addresses.
    pub first_uses: FirstUses,
    /// Who asked first for a medium. Apart: a machine can have as many tickets as it likes, and they push out no others' boots.
    pub media: FirstUses,
}

/// What whoever comes by with a browser is told.
async fn front() -> Html<&'static str> {
    Html(include_str!("front.html"))
}

/// The endpoints. `downloads` is where kernel and ramdisk wait for their permits. Requests must carry [`ConnInfo`] as an
/// extension; [`super::serve`] puts it there.
pub fn router(
    config: BootServerConfig,
    hosts: HostIndex,
    tokens: Arc<BootTokens>,
    files: BootFiles,
    downloads: DownloadScheduler,
) -> Router {
    Router::new()
        .route("/", get(front))
        .route("/boot/ipxe", get(ipxe).layer(from_fn(no_image)))
        .route("/boot/files/{name}", get(file))
        .route("/boot/iso/{name}", get(media::iso).layer(from_fn(no_image)))
        .route("/boot/host/{name}", get(media::archive).layer(from_fn(no_image)))
        .route("/boot/ca.pem", get(ca))
        .route("/boot/explain", get(explanation).layer(from_fn(no_image)))
        .route("/boot/explain/dhcp", get(dhcp).layer(from_fn(no_image)))
        .fallback(|| async { ErrorResponse::new(StatusCode::NOT_FOUND, "no such boot resource") })
        .with_state(Arc::new(ServerState {
            config,
            hosts,
            tokens,
            files,
            downloads,
            first_uses: FirstUses::default(),
            media: FirstUses::default(),
        }))
}

/// What is of one machine is no image: an appliance that fetches images for its users, this one or another, is refused.
async fn no_image(request: Request, next: Next) -> Response {
    let agent = request.headers().get(header::USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
    if agent.starts_with(image::USER_AGENT_NAME.as_bytes()) {
        let conn = request.extensions().get::<ConnInfo>();
        warn!(
            peer = conn.map(|conn| display(conn.peer)),
            path = request.uri().path(),
            "refused an image import: its URL leads to boot HTTP"
        );
        return ErrorResponse::new(StatusCode::FORBIDDEN, "this is of one machine, and no image").into_response();
    }
    next.run(request).await
}

#[derive(Deserialize)]
struct BootQuery {
    mac: Option<String>,
    arch: Option<String>,
}

impl BootQuery {
    fn client(&self) -> Result<BootClient, ErrorResponse> {
        let mac = self.mac.as_deref().ok_or_else(|| ErrorResponse::bad("say which machine: ?mac=52:54:00:12:34:56"))?;
        let mac: MacAddress = mac.parse().map_err(|error: crate::api::MacAddressError| ErrorResponse::bad(error))?;
        let arch =
            self.arch.as_deref().ok_or_else(|| ErrorResponse::bad("say which firmware: &arch=0 (BIOS), 7 (UEFI)"))?;
        Ok(BootClient { mac, firmware: firmware(arch)?, kind: ClientKind::Ipxe })
    }
}

/// DHCP option 93's number, or what iPXE calls its platform or build.
fn firmware(arch: &str) -> Result<Firmware, ErrorResponse> {
    match arch {
        "pcbios" | "i386" | "bios" => Ok(Firmware::Bios),
        "efi" | "uefi" | "x86_64" => Ok(Firmware::UefiX64),
        "arm64" => Ok(Firmware::UefiArm64),
        number => number.parse().map(Firmware::from_type).map_err(|_| {
            ErrorResponse::bad("arch is the number of DHCP option 93 (0 BIOS, 7 UEFI) or iPXE's ${platform}")
        }),
    }
}

async fn ipxe(
    State(state): State<Arc<ServerState>>,
    Extension(conn): Extension<ConnInfo>,
    Query(query): Query<BootQuery>,
) -> Result<Response, ErrorResponse> {
    let client = query.client().inspect_err(|refused| {
        warn!(peer = %conn.peer, reason = refused.message, "boot script refused");
    })?;
    let host = state.hosts.by_mac(client.mac);
    let unknown = state.hosts.unknown_machine(client.mac, state.config.discovers(conn.peer.ip()));
    let decision = decide(&client, host.as_deref(), &unknown);
    let reason = decision.reasons.last().map_or("", String::as_str);
    let script = match (&decision.boot, host.as_deref()) {
        (NetworkBoot::Ramdisk { generation }, Some(host)) => {
            let who = format!("{}/{}, boot intent {generation}", host.namespace, host.name);
            let network = match state.config.network_data(host).await {
                Ok(network) => network,
                Err(reason) => {
                    warn!(host = %named(&host.namespace, &host.name), mac = %client.mac, peer = %conn.peer, reason, "a machine gets no boot script but an error: its network data cannot be used");
                    // Who asks may be anybody: the host says why.
                    return Ok(text(script::error(client.mac, "its network data cannot be used, as its host says")?));
                }
            };
            let archive = match &network {
                Some(_) => Some(media::archive_path(&state.tokens.mint_media(&host.uid, *generation)?)),
                None => None,
            };
            state
                .ramdisk(&client, conn, Some(host), &who, archive.as_deref(), |bound| {
                    // Network data may give it another address, but to no program of this box.
                    let moves = network.as_deref().filter(|_| !conn.same());
                    let bound = moves.map_or(bound, media::bound_by);
                    state.tokens.mint_bound(&host.uid, *generation, bound)
                })
                .await?
        }
        (NetworkBoot::Discovery, _) => {
            let who = format!("{}, to report itself", client.mac);
            state
                .ramdisk(&client, conn, None, &who, None, |bound| state.tokens.mint_visit_bound(client.mac, bound))
                .await?
        }
        (NetworkBoot::LiveIso { generation, digest }, Some(host)) => {
            let who = format!("{}/{}, boot intent {generation}", host.namespace, host.name);
            info!(host = %named(&host.namespace, &host.name), mac = %client.mac, peer = %conn.peer, generation, digest = %digest, "a machine is told to boot a live ISO");
            script::live_iso(&who, &format!("{}{}", script::base_url(conn.local), live::path(digest)))?
        }
        _ => {
            let host = host.as_deref().map(|host| display(named(&host.namespace, &host.name)));
            info!(host, mac = %client.mac, peer = %conn.peer, reason, "a machine is told to boot its local disk");
            script::local_disk(reason)?
        }
    };
    Ok(text(script))
}

/// A script holds a token: no cache may keep it.
fn text(script: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::CACHE_CONTROL, "no-store")], script).into_response()
}

impl ServerState {
    /// What answers at the address of whoever asks, and the cards that he may have as this machine.
    async fn observed_cards(
        &self,
        mac: MacAddress,
        conn: ConnInfo,
        address: Ipv4Addr,
    ) -> (ArpAnswers, Vec<MacAddress>) {
        let host = self.hosts.by_mac(mac);
        let own = [&[mac][..], host.as_deref().map_or(&[][..], |host| &host.macs)].concat();
        let answers = match &self.config.networks.neighbours {
            Some(neighbours) if !conn.same() => neighbours(address).await,
            _ => ArpAnswers::Unseen,
        };
        (answers, own)
    }

    /// What a token for the machine that asks is bound to.
    ///
    /// # Errors
    ///
    /// Why it cannot be the machine, as far as its address says: it was leased to another, it has none of the machine's
    /// network cards, or another one was first.
    async fn token_binding(&self, mac: MacAddress, conn: ConnInfo) -> Result<TokenBinding, String> {
        let (bound, elsewhere) = self.config.binding(mac, conn)?;
        let Some(address) = bound.address() else { return Ok(bound) };
        let (answers, own) = self.observed_cards(mac, conn, address).await;
        if let Some(reason) = another_card(address, answers, &own) {
            return Err(reason);
        }
        let host = self.hosts.by_mac(mac);
        let recorded = host.as_deref().map_or("", |host| &host.ownership.home);
        match home(&self.config.networks.site.get(), mac, recorded, address) {
            _ if conn.same() => {}
            Home::Here => {}
            Home::Elsewhere(name) => {
                return Err(format!(
                    "{address} asks for the script of {mac}, and that machine reported itself from the network {name}: if it was moved, say so in the host's annotation slipway.dev/network"
                ));
            }
            Home::Unknown => {
                if let Some(other) = elsewhere {
                    let (answers, own) = self.observed_cards(mac, conn, other).await;
                    if answers.card().is_some_and(|card| own.contains(&card)) {
                        return Err(format!(
                            "{address} asks for the script of {mac} through a relay, and {mac} answers at {other} on a network that this appliance is attached to"
                        ));
                    }
                }
            }
        }
        let intent = host.as_deref().and_then(|host| Some((host, host.intent.as_ref()?.generation)));
        // Unknown machines have as many names as anybody likes: who is first is remembered of hosts only.
        if let (TokenBinding::First(_), Some((host, generation))) = (bound, intent) {
            let (proven, what) = (answers.card().is_some(), format!("{} {generation}", host.uid));
            let lasts = if proven { BOOT_TOKEN_LIFE } else { FIRST_HOLDS };
            let asked = self.first_uses.claim(&what, address.into(), lasts, proven, Instant::now());
            asked.map_err(|taken| format!("{address} asks for the script of {mac}, and {taken}"))?;
        }
        Ok(bound)
    }

    /// The script with a token for `who`, or one that says why there is none.
    async fn ramdisk(
        &self,
        client: &BootClient,
        conn: ConnInfo,
        host: Option<&BootHost>,
        who: &str,
        archive: Option<&str>,
        token: impl FnOnce(TokenBinding) -> Result<String, MintError>,
    ) -> Result<String, ErrorResponse> {
        let generation = host.and_then(|host| host.intent.as_ref()).map(|intent| intent.generation);
        let label = host.map(|host| display(named(&host.namespace, &host.name)));
        let has_ramdisk = {
            let files = self.files.clone();
            tokio::task::spawn_blocking(move || files.has_ramdisk()).await.unwrap_or(false)
        };
        let bound = match has_ramdisk {
            true => self.token_binding(client.mac, conn).await,
            false => Err("the appliance has no ramdisk, make one with slipway ramdisk build".to_owned()),
        };
        let bound = match bound {
            Ok(bound) => bound,
            Err(reason) => {
                warn!(host = label, mac = %client.mac, peer = %conn.peer, reason, "a machine gets no ramdisk");
                if let Some(host) = host {
                    (self.config.refused.0)(host, &reason);
                }
                return Ok(script::error(client.mac, &reason)?);
            }
        };
        info!(host = label, mac = %client.mac, peer = %conn.peer, generation, "a machine is told to boot the ramdisk");
        Ok(script::ramdisk(&script::Ramdisk {
            archive,
            who,
            boot: conn.local,
            api_port: self.config.api_port,
            ca_sha256: &self.config.ca_sha256,
            token: &token(bound)?,
            mac: client.mac,
            kernel_args: &self.config.kernel_args,
        })?)
    }
}

async fn explanation(
    State(state): State<Arc<ServerState>>,
    Query(query): Query<BootQuery>,
) -> Result<Response, ErrorResponse> {
    let query = BootQuery { arch: query.arch.or_else(|| Some("efi".into())), ..query };
    let client = query.client()?;
    let host = state.hosts.by_mac(client.mac);
    // Where the machine is, is not known here: discovery counts when it is on anywhere.
    let unknown = state.hosts.unknown_machine(client.mac, !state.config.networks.discovery.get().is_empty());
    let mut text = explain(&client, host.as_deref(), &unknown);
    let files = state.files.clone();
    if !tokio::task::spawn_blocking(move || files.has_ramdisk()).await.unwrap_or(false) {
        text.push_str("note: there is no ramdisk; make one with slipway ramdisk build\n");
    }
    Ok(text.into_response())
}

/// Told on this box only: it names addresses and what else was seen of a machine.
async fn dhcp(
    State(state): State<Arc<ServerState>>,
    Extension(conn): Extension<ConnInfo>,
    Query(query): Query<BootQuery>,
) -> Result<Response, ErrorResponse> {
    let (own, peer) = (conn.local.ip().to_canonical(), conn.peer.ip().to_canonical());
    if !peer.is_loopback() && own != peer {
        return Err(ErrorResponse::new(
            StatusCode::FORBIDDEN,
            "this is told on the appliance itself: slipway debug dhcp MAC",
        ));
    }
    let client = BootQuery { arch: Some("efi".into()), ..query }.client()?;
    let explain = state.config.networks.dhcp.as_ref();
    let explain = explain.ok_or_else(|| {
        ErrorResponse::new(StatusCode::NOT_FOUND, "no [[network]] is configured: DHCP answers nobody")
    })?;
    Ok(explain(client.mac).into_response())
}

async fn ca(State(state): State<Arc<ServerState>>) -> Response {
    ([(header::CONTENT_TYPE, "application/pem-certificate-chain")], state.config.ca_pem.clone()).into_response()
}

async fn file(
    State(state): State<Arc<ServerState>>,
    Extension(conn): Extension<ConnInfo>,
    hangup: Option<Extension<Hangup>>,
    rank: Option<Extension<Rank>>,
    Path(name): Path<String>,
    mut request: Request,
) -> Result<Response, ErrorResponse> {
    let listed = HTTP_FILES.iter().find(|(known, _)| *known == name);
    let (name, media_type, path) = if let Some((name, media_type)) = listed {
        (*name, *media_type, state.files.path(name))
    } else if let Some(path) = state.config.program.named(&name).await {
        (PROGRAM, BINARY, path.to_owned())
    } else {
        warn!(peer = %conn.peer, file = ?name.chars().take(64).collect::<String>(), "boot file refused: there is none of this name");
        return Err(ErrorResponse::new(StatusCode::NOT_FOUND, "no such boot file"));
    };
    if request.method() == Method::GET && request.headers().get(header::RANGE).is_none() {
        info!(peer = %conn.peer, file = name, "boot file asked for by HTTP");
    }
    let rank = rank.map_or(Rank::Untold, |Extension(rank)| rank);
    // What is large waits for a permit; a machine that asks only whether it is there does not.
    let bulky = [KERNEL, INITRD, PROGRAM].contains(&name) && request.method() == Method::GET;
    let permit = match bulky {
        true => {
            Some(state.downloads.acquire(DownloadClient::Machine(conn.peer.ip()), rank).await.map_err(|error| {
                warn!(peer = %conn.peer, file = name, %error, "boot file refused for now");
                ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, error)
            })?)
        }
        false => None,
    };
    // The file is all there is of the folder that is served: what it is called there adds nothing to its path.
    *request.uri_mut() = Uri::default();
    let mut answer = match serve_file(&path, request).await {
        Ok(answer) => answer,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            warn!(peer = %conn.peer, path = %path.display(), "cannot serve a boot file, which is missing: make it with `slipway ramdisk build`");
            return Err(ErrorResponse::new(StatusCode::NOT_FOUND, "the boot file is missing on the appliance"));
        }
        Err(error) => {
            warn!(peer = %conn.peer, path = %path.display(), %error, "cannot read a boot file");
            return Err(ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "the boot file cannot be read"));
        }
    };
    if answer.status().is_success() {
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    }
    Ok(match permit {
        Some(permit) => {
            let hangup = hangup.map(|Extension(Hangup(token))| token).unwrap_or_default();
            answer.map(|body| permit.hold(body, hangup))
        }
        None => answer,
    })
}

/// A file, or the part of it that is asked for and that `If-Range` allows, which `ServeDir` does not look at.
async fn serve_file(path: &std::path::Path, request: Request) -> std::io::Result<Response> {
    let serve = async |request: Request| {
        let folder = ServeDir::with_backend(path, Cached).append_index_html_on_directories(false);
        let answer = folder.with_buf_chunk_size(FILE_CHUNK).try_call(request).await?;
        Ok::<_, std::io::Error>(answer.map(Body::new).into_response())
    };
    if !request.headers().contains_key(header::IF_RANGE) {
        return serve(request).await;
    }
    let (part, _) = request.into_parts();
    let (mut head, mut whole) = (part.clone(), part.clone());
    head.method = Method::HEAD;
    for parts in [&mut head, &mut whole] {
        parts.headers.remove(header::RANGE);
    }
    let of = |parts| Request::from_parts(parts, Body::empty());
    let present = serve(of(head)).await?;
    if if_range_holds(&part.headers, present.headers()) {
        let answer = serve(of(part)).await?;
        let replaced = present.headers().get(header::ETAG) != answer.headers().get(header::ETAG);
        if answer.status() != StatusCode::PARTIAL_CONTENT || !replaced {
            return Ok(answer);
        }
    }
    serve(of(whole)).await
}

/// Why a request was refused, as the machine's console or an operator's curl shows it.
#[derive(Debug)]
pub(super) struct ErrorResponse {
    status: StatusCode,
    message: String,
}

impl ErrorResponse {
    pub(super) fn new(status: StatusCode, message: impl ToString) -> Self {
        Self { status, message: message.to_string() }
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    fn bad(message: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        (self.status, format!("{}\n", self.message)).into_response()
    }
}

impl From<ScriptError> for ErrorResponse {
    fn from(error: ScriptError) -> Self {
        error!(%error, "cannot make a boot script");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error)
    }
}

impl From<MintError> for ErrorResponse {
    fn from(error: MintError) -> Self {
        error!(%error, "cannot make a boot token");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "no boot token could be made")
    }
}

#[cfg(test)]
mod tests;
