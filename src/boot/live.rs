//! Live ISOs over boot HTTP: an image of the library as one file, with Range, for iPXE's `sanboot` and for BMCs that
//! fetch a virtual CD. Everybody on the network may ask, so only what some host's boot intent names now is served, and
//! only what is an ISO 9660 image: whatever else came into the library is nobody's to read without a login.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, RANGE};
use http::{HeaderMap, StatusCode};
use tokio::sync::Semaphore;
use tracing::warn;

use super::if_range::if_range_holds;
use super::{ConnInfo, HostIndex};
use crate::image::{self, Library};
use crate::protocol::{Chunk, Manifest};
use crate::ration::{Rank, Ranks};

/// Images of which is remembered whether they are ISOs.
const KNOWN_ISOS: usize = 64;
/// Bytes that are sent at once, and that wait for a client that takes none.
const PIECE: u64 = 256 << 10;
/// Chunks that are kept unpacked for all of one rank: whoever reads an ISO asks for small parts of one, again and again.
const KEPT_CHUNKS: usize = 16;
/// The same for strangers.
const KEPT_FOR_STRANGERS: usize = 4;
/// Chunks that are unpacked at once for all of one rank, whoever asks for how many: each takes a processor.
const AT_ONCE: usize = 2;
/// The same for strangers.
const AT_ONCE_FOR_STRANGERS: usize = 1;
static ZEROS: [u8; PIECE as usize] = [0; PIECE as usize];

#[derive(Clone)]
struct LiveState {
    hosts: HostIndex,
    library: Library,
    ranks: Ranks,
    chunks: Arc<ChunkCache>,
    /// Whether the last that were looked at are ISOs: a digest never stands for anything else.
    isos: Arc<Mutex<VecDeque<(String, bool)>>>,
}

/// Chunks that were unpacked, by the rank of who asked: nobody waits for who is known less, or loses to him what is kept.
struct ChunkCache {
    known: Unpacked,
    untold: Unpacked,
    strangers: Unpacked,
}

impl Default for ChunkCache {
    fn default() -> Self {
        Self {
            known: Unpacked::new(AT_ONCE, KEPT_CHUNKS),
            untold: Unpacked::new(AT_ONCE, KEPT_CHUNKS),
            strangers: Unpacked::new(AT_ONCE_FOR_STRANGERS, KEPT_FOR_STRANGERS),
        }
    }
}

impl ChunkCache {
    fn of(&self, rank: Rank) -> &Unpacked {
        match rank {
            Rank::Own | Rank::Known => &self.known,
            Rank::Untold => &self.untold,
            Rank::Stranger => &self.strangers,
        }
    }

    /// A chunk, unpacked. What is kept for others is used too, and stays theirs.
    async fn get(&self, rank: Rank, library: &Library, chunk: &Chunk) -> io::Result<Bytes> {
        let mut all = [&self.known, &self.untold, &self.strangers].into_iter();
        match all.find_map(|unpacked| unpacked.kept(&chunk.sha256)) {
            Some(bytes) => Ok(bytes),
            None => self.of(rank).get(library, chunk).await,
        }
    }
}

/// The chunks that were unpacked last, under the names that they have in the library.
struct Unpacked {
    turns: Semaphore,
    most: usize,
    // std's lock: held for a look, never across an await.
    kept: Mutex<VecDeque<(String, Bytes)>>,
}

impl Unpacked {
    fn new(at_once: usize, most: usize) -> Self {
        Self { turns: Semaphore::new(at_once), most, kept: Mutex::default() }
    }

    fn kept(&self, name: &str) -> Option<Bytes> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == name)?;
        let found = kept.remove(at)?;
        let bytes = found.1.clone();
        kept.push_front(found);
        Some(bytes)
    }

    fn keep(&self, name: &str, bytes: &Bytes) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(self.most - 1);
        kept.push_front((name.to_owned(), bytes.clone()));
    }

    async fn get(&self, library: &Library, chunk: &Chunk) -> io::Result<Bytes> {
        let _turn = self.turns.acquire().await.map_err(io::Error::other)?;
        // Others may have asked for the same.
        if let Some(bytes) = self.kept(&chunk.sha256) {
            return Ok(bytes);
        }
        let (library, wanted) = (library.clone(), chunk.clone());
        let bytes = tokio::task::spawn_blocking(move || unpacked(&library, &wanted)).await;
        let bytes = bytes.map_err(io::Error::other).flatten()?;
        self.keep(&chunk.sha256, &bytes);
        Ok(bytes)
    }
}

/// `GET /boot/live/DIGEST.iso`.
pub fn router(hosts: HostIndex, library: Library, ranks: Ranks) -> Router {
    Router::new().route("/boot/live/{file}", get(iso)).with_state(LiveState {
        hosts,
        library,
        ranks,
        chunks: Arc::default(),
        isos: Arc::default(),
    })
}

/// Where a live ISO is, below the address of boot HTTP.
pub fn path(digest: &str) -> String {
    format!("/boot/live/{digest}.iso")
}

async fn iso(
    State(state): State<LiveState>,
    conn: Option<Extension<ConnInfo>>,
    Path(file): Path<String>,
    headers: HeaderMap,
) -> Response {
    let not_found = || (StatusCode::NOT_FOUND, "no such live ISO\n").into_response();
    let Some(digest) = file.strip_suffix(".iso").map(str::to_owned) else { return not_found() };
    if !state.hosts.boots_live(&digest) {
        return not_found();
    }
    let library = state.library.clone();
    let name = digest.clone();
    let Ok(Some(manifest)) = tokio::task::spawn_blocking(move || library.manifest(&name)).await else {
        return not_found();
    };
    let peer = conn.map(|Extension(conn)| conn.peer);
    let rank = peer.map_or(Rank::Stranger, |peer| (state.ranks)(peer.ip()));
    match is_iso(&state, rank, &digest, &manifest).await {
        Ok(true) => {}
        Ok(false) => {
            let peer = peer.map(tracing::field::display);
            warn!(peer, digest, "refused a live ISO: the image is to be booted as one, and it is none");
            return not_found();
        }
        Err(error) => {
            cannot_be_read(peer, &error);
            return not_found();
        }
    }
    let total = manifest.virtual_size;
    let tag = format!("\"{digest}\"");
    let mut present = HeaderMap::new();
    present.extend(tag.parse().ok().map(|tag| (ETAG, tag)));
    let allowed = headers.get(RANGE).filter(|_| if_range_holds(&headers, &present));
    let asked = allowed.and_then(|range| range.to_str().ok()).map(|text| range(text, total));
    let (status, part) = match asked {
        None | Some(RequestedRange::Whole) => (StatusCode::OK, 0..total),
        Some(RequestedRange::Part(part)) => (StatusCode::PARTIAL_CONTENT, part),
        Some(RequestedRange::Outside) => {
            return (StatusCode::RANGE_NOT_SATISFIABLE, [(CONTENT_RANGE, format!("bytes */{total}"))]).into_response();
        }
    };
    let mut answer = Body::from_stream(read(state.clone(), rank, manifest, part.clone(), peer)).into_response();
    *answer.status_mut() = status;
    let mut fields = vec![
        (CONTENT_TYPE, "application/x-iso9660-image".to_owned()),
        (ACCEPT_RANGES, "bytes".to_owned()),
        (CACHE_CONTROL, "public, max-age=31536000, immutable".to_owned()),
        (CONTENT_LENGTH, (part.end - part.start).to_string()),
        (ETAG, tag),
    ];
    if status == StatusCode::PARTIAL_CONTENT {
        fields.push((CONTENT_RANGE, format!("bytes {}-{}/{total}", part.start, part.end - 1)));
    }
    for (name, value) in fields {
        if let Ok(value) = value.parse() {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}

/// Whether the image is an ISO 9660 one. It is looked at once, whoever asks how often.
async fn is_iso(state: &LiveState, rank: Rank, digest: &str, manifest: &Arc<Manifest>) -> io::Result<bool> {
    let lock = || state.isos.lock().unwrap_or_else(PoisonError::into_inner);
    let known = lock().iter().find(|(known, _)| known == digest).map(|(_, is_iso)| *is_iso);
    if let Some(known) = known {
        return Ok(known);
    }
    // A piece is larger than where the identifier stands; an ISO is, too.
    let head = piece(state, rank, manifest, 0, manifest.virtual_size).await?;
    let found = image::is_iso(&head);
    let mut isos = lock();
    // Several may have looked at once.
    if isos.iter().all(|(known, _)| known != digest) {
        isos.truncate(KNOWN_ISOS - 1);
        isos.push_front((digest.to_owned(), found));
    }
    Ok(found)
}

fn cannot_be_read(peer: Option<SocketAddr>, error: &io::Error) {
    warn!(peer = peer.map(tracing::field::display), %error, "cannot read a live ISO from the image library");
}

#[derive(Debug, PartialEq, Eq)]
enum RequestedRange {
    Whole,
    Part(Range<u64>),
    Outside,
}

/// One range of bytes (RFC 9110 section 14.1.2). What is malformed, or asks for several, is answered with the whole.
fn range(text: &str, total: u64) -> RequestedRange {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return RequestedRange::Whole;
    };
    let part = match (first.trim(), last.trim()) {
        ("", length) => match length.parse::<u64>() {
            Ok(length) => total.saturating_sub(length)..total,
            Err(_) => return RequestedRange::Whole,
        },
        (first, "") => match first.parse() {
            Ok(first) => first..total,
            Err(_) => return RequestedRange::Whole,
        },
        (first, last) => match (first.parse::<u64>(), last.parse::<u64>()) {
            (Ok(first), Ok(last)) if first <= last => first..last.saturating_add(1).min(total),
            _ => return RequestedRange::Whole,
        },
    };
    if part.start >= part.end { RequestedRange::Outside } else { RequestedRange::Part(part) }
}

/// The bytes of this part, a piece at a time.
fn read(
    state: LiveState,
    rank: Rank,
    manifest: Arc<Manifest>,
    part: Range<u64>,
    peer: Option<SocketAddr>,
) -> impl futures::Stream<Item = io::Result<Bytes>> + Send {
    futures::stream::try_unfold(part.start, move |at| {
        let (state, manifest, end) = (state.clone(), manifest.clone(), part.end);
        async move {
            if at >= end {
                return Ok(None);
            }
            let read = piece(&state, rank, &manifest, at, end).await;
            let bytes = read.inspect_err(|error| cannot_be_read(peer, error))?;
            let next = at + bytes.len() as u64;
            Ok(Some((bytes, next)))
        }
    })
}

/// The bytes from here to the end of the chunk or the hole that they are in, at most to `end` and no more than a piece. At least
/// one.
async fn piece(state: &LiveState, rank: Rank, manifest: &Manifest, at: u64, end: u64) -> io::Result<Bytes> {
    let end = end.min(at + PIECE);
    let after = manifest.chunks.partition_point(|chunk| chunk.offset <= at);
    let within = after.checked_sub(1).and_then(|index| manifest.chunks.get(index));
    let Some(chunk) = within.filter(|chunk| at < chunk.offset + u64::from(chunk.length)) else {
        let next = manifest.chunks.get(after).map_or(end, |chunk| chunk.offset.min(end));
        let length = usize::try_from(next - at).map_err(io::Error::other)?;
        return Ok(Bytes::from_static(&ZEROS[..length.min(ZEROS.len())]));
    };
    let plain = state.chunks.get(rank, &state.library, chunk).await?;
    let last = (chunk.offset + u64::from(chunk.length)).min(end);
    let skip = usize::try_from(at - chunk.offset).map_err(io::Error::other)?;
    let until = usize::try_from(last - chunk.offset).map_err(io::Error::other)?;
    // A copy: who takes nothing keeps no more than this.
    Ok(Bytes::copy_from_slice(&plain[skip..until]))
}

fn unpacked(library: &Library, chunk: &Chunk) -> io::Result<Bytes> {
    let path = library.chunk_file(&chunk.sha256).ok_or_else(|| io::Error::other("a chunk is missing"))?;
    let length = usize::try_from(chunk.length).map_err(io::Error::other)?;
    let plain = zstd::bulk::decompress(&std::fs::read(path)?, length)?;
    if plain.len() != length {
        return Err(io::Error::other(format!("chunk {} has {} bytes", chunk.sha256, plain.len())));
    }
    Ok(plain.into())
}

#[cfg(test)]
mod tests;
