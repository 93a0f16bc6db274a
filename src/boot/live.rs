//! Live ISOs over boot HTTP: an image of the library as one file, with Range, for iPXE's `sanboot` and for BMCs that
//! fetch a virtual CD. Everybody on the network may ask, so only what some host's boot intent names now is served, and
//! only what is an ISO 9660 image: whatever else came into the library is nobody's to read without a login.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, RANGE};
use http::{HeaderMap, StatusCode};
use tracing::warn;

use super::if_range::if_range_holds;
use super::parts::{ImageReader, PIECE, RequestedRange, cannot_be_read, range};
use super::{ConnInfo, HostIndex};
use crate::image::{self, Library};
use crate::protocol::ImageManifest;
use crate::ration::{Rank, Ranks};

/// Images of which is remembered whether they are ISOs.
const KNOWN_ISOS: usize = 64;
#[derive(Clone)]
struct LiveState {
    hosts: HostIndex,
    parts: ImageReader,
    ranks: Ranks,
    /// Whether the last that were looked at are ISOs: a digest never stands for anything else.
    isos: Arc<Mutex<VecDeque<(String, bool)>>>,
}

/// `GET /boot/live/DIGEST.iso`.
pub fn router(hosts: HostIndex, library: Library, ranks: Ranks) -> Router {
    Router::new().route("/boot/live/{file}", get(iso)).with_state(LiveState {
        hosts,
        parts: ImageReader::new(library),
        ranks,
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
    let library = state.parts.library().clone();
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
    let sent = state.parts.read(rank, manifest, part.clone(), PIECE, peer);
    let mut answer = Body::from_stream(sent).into_response();
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
async fn is_iso(state: &LiveState, rank: Rank, digest: &str, manifest: &Arc<ImageManifest>) -> io::Result<bool> {
    let lock = || state.isos.lock().unwrap_or_else(PoisonError::into_inner);
    let known = lock().iter().find(|(known, _)| known == digest).map(|(_, is_iso)| *is_iso);
    if let Some(known) = known {
        return Ok(known);
    }
    // A piece is larger than where the identifier stands; an ISO is, too.
    let head = state.parts.piece(rank, manifest, 0, manifest.virtual_size, PIECE).await?;
    let found = image::is_iso(&head);
    let mut isos = lock();
    // Several may have looked at once.
    if isos.iter().all(|(known, _)| known != digest) {
        isos.truncate(KNOWN_ISOS - 1);
        isos.push_front((digest.to_owned(), found));
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
