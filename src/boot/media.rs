//! Boot ISOs and archives made for one machine.
//!
//! The ISO and the archive for one machine, over boot HTTP. A name that nobody can guess stands for one boot: it is
//! made when the machine's BMC is given the URL, and is good until the agent has opened its session.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tracing::{error, info, warn};

use crate::api::slipway::BootTarget;
use crate::hex::hex;
use crate::log::named;
use crate::network_data::NetworkPlan;
use crate::protocol::{CMDLINE_CA, CMDLINE_MAC, CMDLINE_SERVER, CMDLINE_TOKEN};

use super::http::{ConnInfo, ErrorResponse, ServerState};
use super::iso::{self, ARCHIVE_LENGTH, IsoBootParameters, IsoLayout, IsoPatch};
use super::token::BOOT_TOKEN_LIFE;
use super::{BootFiles, BootHost, BootTokenClaims, ISO, MANIFEST, TokenBinding};

/// Bytes of the ISO read at once.
const PIECE: u64 = 256 << 10;
/// Largest manifest that is read, in bytes.
const MAX_MANIFEST: u64 = 1 << 20;
/// What UEFI firmware takes for a bootable ISO (UEFI 2.6, 24.7.3.1).
const EFI_ISO: &str = "application/vnd.efi-iso";

/// Where a host's network data comes from.
#[async_trait]
pub trait NetworkData: Send + Sync + std::fmt::Debug {
    /// The network data that a host's ramdisk gets, fit for use; none when the host names none. Else why it cannot be
    /// had, for the operator.
    async fn for_host(&self, namespace: &str, name: &str) -> Result<Option<Vec<u8>>, String>;
}

/// Path of a machine's ISO below boot HTTP's root.
pub fn iso_path(ticket: &str) -> String {
    format!("/boot/iso/{ticket}.iso")
}

/// Path of a machine's archive.
pub fn archive_path(ticket: &str) -> String {
    format!("/boot/host/{ticket}.cpio")
}

/// Whether a URL, or what a controller shows of it, is that of an ISO of ours.
pub fn is_ours(url: &str) -> bool {
    url.contains("/boot/iso/") || url.contains("/boot/live/")
}

#[derive(Deserialize)]
struct RamdiskManifest {
    #[serde(default)]
    iso: Option<IsoLayout>,
}

impl BootFiles {
    /// Where the parts of the ISO are, if one was built. Blocks on the disk.
    ///
    /// # Errors
    /// The manifest cannot be read, or the ISO is not the one it speaks of.
    pub fn iso_layout(&self) -> io::Result<Option<IsoLayout>> {
        let file = match std::fs::File::open(self.path(MANIFEST)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let manifest: RamdiskManifest = serde_json::from_reader(io::Read::take(file, MAX_MANIFEST))?;
        let Some(layout) = manifest.iso else { return Ok(None) };
        let size = std::fs::metadata(self.path(ISO))?.len();
        if size != layout.size {
            return Err(io::Error::other(format!("{ISO} has {size} bytes, {MANIFEST} says {}", layout.size)));
        }
        Ok(Some(layout))
    }
}

/// What the token of a machine with this network data is bound to: the one fixed address that it names. Of several, or of
/// none, nobody here knows which one the machine will call from.
pub(super) fn bound_by(network: &[u8]) -> TokenBinding {
    let plan = NetworkPlan::parse(network).ok().flatten();
    let mut fixed = plan.iter().flat_map(NetworkPlan::addresses).map(|one| one.ip());
    match (fixed.next(), fixed.next()) {
        (Some(IpAddr::V4(address)), None) => TokenBinding::First(address),
        _ => TokenBinding::Nowhere,
    }
}

/// Binds a ticket to the address that used it first. A program on this box looks at whatever it likes; the machine itself,
/// where the neighbour table knows its card, is not kept out by who was faster.
async fn claim(
    state: &ServerState,
    conn: ConnInfo,
    claims: &BootTokenClaims,
    host: &BootHost,
) -> Result<(), ErrorResponse> {
    if conn.same() {
        return Ok(());
    }
    let peer = conn.peer.ip().to_canonical();
    let card = match (peer, &state.config.networks().neighbours) {
        (IpAddr::V4(peer), Some(neighbours)) => neighbours(peer).await.card(),
        _ => None,
    };
    let proven = card.is_some_and(|card| host.macs.contains(&card));
    let asked = state.media.claim(&claims.nonce_hex(), peer, BOOT_TOKEN_LIFE, proven, Instant::now());
    asked.map_err(|taken| ErrorResponse::new(StatusCode::FORBIDDEN, format!("this medium is another's: {taken}")))
}

/// The host that a ticket was made for, as long as its boot intent is the ramdisk and nobody opened its session.
fn redeem(state: &ServerState, ticket: &str) -> Result<(BootTokenClaims, Arc<BootHost>), ErrorResponse> {
    // All alike for who guesses.
    let unknown = || ErrorResponse::new(StatusCode::NOT_FOUND, "no such boot resource");
    let claims = state.tokens.verify_media(ticket).map_err(|_| unknown())?;
    let host = state.hosts.by_uid(&claims.uid).ok_or_else(unknown)?;
    let intent = host.intent.as_ref().filter(|intent| intent.generation == claims.generation);
    match intent {
        Some(intent) if intent.target == BootTarget::Ramdisk && !intent.session_open => Ok((claims, host)),
        _ => Err(ErrorResponse::new(StatusCode::GONE, "this medium was for a boot that is over")),
    }
}

pub(super) async fn iso(
    State(state): State<Arc<ServerState>>,
    Extension(conn): Extension<ConnInfo>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ErrorResponse> {
    let ticket = name.strip_suffix(".iso").unwrap_or_default();
    let refused = |refused: &ErrorResponse| warn!(peer = %conn.peer, reason = refused.message(), "boot ISO refused");
    let (claims, host) = redeem(&state, ticket).inspect_err(refused)?;
    claim(&state, conn, &claims, &host).await.inspect_err(refused)?;
    let files = state.files.clone();
    let layout = tokio::task::spawn_blocking(move || files.iso_layout()).await.map_err(internal)?.map_err(internal)?;
    let layout = layout.ok_or_else(|| ErrorResponse::new(StatusCode::NOT_FOUND, "there is no ISO on the appliance"))?;
    let parameters = boot_parameters(&state, &host, &claims, conn.local).await?;
    let patches = layout.patches(state.config.kernel_args(), &parameters).map_err(internal)?;
    let mut hash = Sha256::new();
    hash.update(layout.size.to_be_bytes());
    patches.iter().for_each(|patch| hash.update(&patch.bytes));
    let tag: String = hex(&hash.finalize()[..16]);
    let tag = format!("\"{tag}\"");
    let range = match headers.get(header::IF_RANGE) {
        Some(wanted) if wanted.as_bytes() != tag.as_bytes() => None,
        _ => headers.get(header::RANGE),
    };
    let range = match range.map(|range| one_range(range, layout.size)) {
        None | Some(Ranges::Ignored) => None,
        Some(Ranges::One(from, to)) => Some((from, to)),
        Some(Ranges::Outside) => {
            let mut refused =
                ErrorResponse::new(StatusCode::RANGE_NOT_SATISFIABLE, "there is no such part").into_response();
            if let Ok(value) = format!("bytes */{}", layout.size).parse() {
                refused.headers_mut().insert(header::CONTENT_RANGE, value);
            }
            return Ok(refused);
        }
    };
    let (from, to) = range.unwrap_or((0, layout.size.saturating_sub(1)));
    if from == 0 {
        info!(host = %named(&host.namespace, &host.name), peer = %conn.peer, generation = claims.generation, "boot ISO asked for by the BMC");
    }
    let mut file = tokio::fs::File::open(state.files.path(ISO)).await.map_err(internal)?;
    file.seek(io::SeekFrom::Start(from)).await.map_err(internal)?;
    let length = to + 1 - from;
    let mut response = Response::new(Body::from_stream(stream(file, from, length, patches)));
    let answer = response.headers_mut();
    let mut put = |name, value: String| {
        if let Ok(value) = value.parse::<HeaderValue>() {
            answer.insert(name, value);
        }
    };
    put(header::CONTENT_TYPE, EFI_ISO.into());
    put(header::CONTENT_LENGTH, length.to_string());
    put(header::ACCEPT_RANGES, "bytes".into());
    put(header::CACHE_CONTROL, "no-store".into());
    put(header::ETAG, tag);
    if range.is_some() {
        put(header::CONTENT_RANGE, format!("bytes {from}-{to}/{}", layout.size));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// The archive that a boot script loads beside the initrd, for a host with network data.
pub(super) async fn archive(
    State(state): State<Arc<ServerState>>,
    Extension(conn): Extension<ConnInfo>,
    Path(name): Path<String>,
) -> Result<Response, ErrorResponse> {
    let ticket = name.strip_suffix(".cpio").unwrap_or_default();
    let refused = |refused: &ErrorResponse| warn!(peer = %conn.peer, reason = refused.message(), "archive with network data refused");
    let (claims, host) = redeem(&state, ticket).inspect_err(refused)?;
    claim(&state, conn, &claims, &host).await.inspect_err(refused)?;
    let network =
        state.config.network_data(&host).await.map_err(|reason| ErrorResponse::new(StatusCode::CONFLICT, reason))?;
    let parameters = IsoBootParameters { args: String::new(), network };
    let bytes = iso::archive(&parameters, ARCHIVE_LENGTH as u64).map_err(internal)?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream"), (header::CACHE_CONTROL, "no-store")], bytes)
        .into_response())
}

/// What a machine is told: the same for all requests with one ticket.
async fn boot_parameters(
    state: &ServerState,
    host: &BootHost,
    claims: &BootTokenClaims,
    local: SocketAddr,
) -> Result<IsoBootParameters, ErrorResponse> {
    let network = state.config.network_data(host).await.map_err(|reason| {
        warn!(host = %named(&host.namespace, &host.name), reason, "cannot use the host's network data: its medium is refused");
        ErrorResponse::new(StatusCode::CONFLICT, reason)
    })?;
    let plan = network.as_deref().map(NetworkPlan::parse).transpose().map_err(internal)?.flatten();
    let api = SocketAddr::new(state.config.address_for(plan.as_ref(), local.ip()), state.config.api_port());
    let mut args = format!(
        "{CMDLINE_SERVER}=https://{api} {CMDLINE_CA}={} {CMDLINE_TOKEN}={}",
        state.config.ca_sha256(),
        state.tokens.boot_token(&claims.bound_to(network.as_deref().map_or(TokenBinding::Nowhere, bound_by)))
    );
    if let Some(mac) = host.macs.first() {
        args.push_str(&format!(" {CMDLINE_MAC}={mac}"));
    }
    args.push('\n');
    Ok(IsoBootParameters { args, network })
}

/// The appliance's address on the way to another; nothing is sent.
pub fn local_address_to(other: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if other.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
    socket.connect((other, 9)).ok()?;
    socket.local_addr().ok().map(|local| local.ip()).filter(|ip| !ip.is_unspecified())
}

enum Ranges {
    /// Not a range of bytes, or several: the whole will do (RFC 9110, 14.2).
    Ignored,
    /// From and to, both included.
    One(u64, u64),
    /// Beyond the end.
    Outside,
}

fn one_range(value: &HeaderValue, size: u64) -> Ranges {
    let Some(text) = value.to_str().ok().and_then(|text| text.trim().strip_prefix("bytes=")) else {
        return Ranges::Ignored;
    };
    let Some((from, to)) = text.split_once('-') else { return Ranges::Ignored };
    let number = |text: &str| -> Option<Option<u64>> {
        match text.trim() {
            "" => Some(None),
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok().map(Some),
            _ => None,
        }
    };
    match (number(from), number(to)) {
        (Some(Some(from)), Some(to)) if from < size && to.is_none_or(|to| from <= to) => {
            Ranges::One(from, to.unwrap_or(u64::MAX).min(size - 1))
        }
        (Some(Some(from)), Some(to)) if to.is_none_or(|to| from <= to) => Ranges::Outside,
        (Some(None), Some(Some(last))) if last > 0 && size > 0 => Ranges::One(size.saturating_sub(last), size - 1),
        (Some(None), Some(Some(_))) => Ranges::Outside,
        _ => Ranges::Ignored,
    }
}

/// The file from an offset on, with the patches in it.
fn stream(
    file: tokio::fs::File,
    from: u64,
    length: u64,
    patches: Vec<IsoPatch>,
) -> impl futures::Stream<Item = io::Result<Bytes>> {
    futures::stream::try_unfold((file, from, length, patches), |(mut file, at, left, patches)| async move {
        if left == 0 {
            return Ok(None);
        }
        let mut piece = vec![0; left.min(PIECE) as usize];
        file.read_exact(&mut piece).await?;
        iso::apply(&patches, at, &mut piece);
        let read = piece.len() as u64;
        Ok(Some((Bytes::from(piece), (file, at + read, left - read, patches))))
    })
}

fn internal(error: impl std::fmt::Display) -> ErrorResponse {
    error!(%error, "cannot make a boot medium");
    ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, "the medium cannot be made: the appliance's log says why")
}

#[cfg(test)]
mod tests;
