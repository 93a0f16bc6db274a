//! What is published, over boot HTTP: container images as a registry, and files for nodes.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v2/` and below | the pulling part of the OCI distribution specification ([`registry`]) |
//! | `GET /packages/` and below | files by name, and lists of them ([`packages`]) |
//!
//! Nobody shows who he is, so only what [`Published`] has is found, and nothing can be written. What is larger than a piece waits
//! for a permit, as boot files do, and is unpacked by rank, as live ISOs are. An answer holds nothing of the table: what is small was
//! read before it began, a list was made, and what is larger has its permit and the manifest of its archive.

mod packages;
mod registry;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures::TryStreamExt;
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LINK, RANGE, RETRY_AFTER,
};
use http::request::Parts as Head;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tracing::warn;

use super::ConnInfo;
use super::download_scheduler::{DownloadClient, DownloadScheduler};
use super::if_range::if_range_holds;
use super::listener::Hangup;
use super::parts::{ImageReader, PIECE, RequestedRange, range};
use crate::image::Library;
use crate::image::publish::table::PublishedTable;
use crate::image::publish::{LibraryEntry, Published};
use crate::protocol::CHUNK_SIZE;
use crate::ration::{Rank, Ranks};

/// In how many seconds who came too early is to come again.
const COME_AGAIN: &str = "2";

#[derive(Clone)]
struct PublishedService {
    published: Published,
    parts: ImageReader,
    downloads: DownloadScheduler,
    ranks: Ranks,
}

/// What is published, from a library. Requests must carry [`ConnInfo`] as an extension, else they are a stranger's.
pub fn router(published: Published, library: Library, downloads: DownloadScheduler, ranks: Ranks) -> Router {
    let serving = PublishedService { published, parts: ImageReader::new(library), downloads, ranks };
    let mut router = Router::new();
    for path in ["/v2", "/v2/", "/v2/{*rest}"] {
        router = router.route(path, any(registry::answer));
    }
    for path in ["/packages", "/packages/", "/packages/{*rest}"] {
        router = router.route(path, any(packages::answer));
    }
    router.with_state(serving)
}

/// A request, as far as it counts here.
struct PublishedRequest {
    method: Method,
    /// With its escapes, without the query.
    path: String,
    query: String,
    headers: HeaderMap,
    peer: Option<SocketAddr>,
    hangup: Hangup,
    rank: Rank,
}

impl PublishedRequest {
    fn of(serving: &PublishedService, request: Request) -> Self {
        let (head, _) = request.into_parts();
        let peer = head.extensions.get::<ConnInfo>().map(|conn| conn.peer);
        let known = head.extensions.get::<Rank>().copied();
        let rank = known.or_else(|| peer.map(|peer| (serving.ranks)(peer.ip()))).unwrap_or(Rank::Stranger);
        let hangup = head.extensions.get::<Hangup>().cloned().unwrap_or_else(|| Hangup(<_>::default()));
        let Head { method, uri, headers, .. } = head;
        let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
        Self { method, path, query, headers, peer, hangup, rank }
    }

    fn is_head(&self) -> bool {
        self.method == Method::HEAD
    }
}

/// A path below a prefix, without its escapes; none of what is no text.
fn below<'p>(path: &'p str, prefix: &str) -> Option<std::borrow::Cow<'p, str>> {
    let rest = path.strip_prefix(prefix)?;
    percent_encoding::percent_decode_str(rest.strip_prefix('/').unwrap_or(rest)).decode_utf8().ok()
}

/// Why content is not sent.
enum UnsentReason {
    /// This address has too much in line.
    Busy(String),
    /// It cannot be read now, or is published no longer.
    Unread,
}

/// What it is answered by, besides its code.
const UNREAD: &str = "what is published cannot be read at the moment";

/// What a query escapes.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Which part of a list is asked for: `?n=&last=`, as the OCI distribution specification has it for tags.
struct TagPage {
    /// How many entries, no more than a list has at once.
    most: usize,
    /// After which one; the first ones where it is empty.
    last: String,
}

impl TagPage {
    /// Of a list that has at most so many entries at once. `None` where `n` is no number.
    fn of(query: &str, most: usize) -> Option<Self> {
        let said: BTreeMap<_, _> = form_urlencoded::parse(query.as_bytes()).collect();
        let asked = said.get("n").map(|n| n.parse::<usize>()).transpose().ok()?;
        let last = said.get("last").map_or_else(String::new, |last| last.to_string());
        Some(Self { most: asked.unwrap_or(most).min(most), last })
    }

    /// The query of the page that begins after an entry.
    fn after(&self, last: &str) -> String {
        format!("?n={}&last={}", self.most, utf8_percent_encode(last, RESERVED))
    }

    /// The header that says where that page is; `path` is as a URL has it.
    fn link(&self, path: &str, last: &str) -> Option<(HeaderName, HeaderValue)> {
        Some((LINK, HeaderValue::try_from(format!("<{path}{}>; rel=\"next\"", self.after(last))).ok()?))
    }
}

impl PublishedService {
    /// What is published; `None` while nobody knows.
    fn table(&self) -> Option<Arc<PublishedTable>> {
        self.published.table()
    }

    /// Sends what was found, or the part of it that is asked for. `tag` is what its content is named by.
    async fn send(
        &self,
        asked: &PublishedRequest,
        found: LibraryEntry,
        tag: &str,
        fields: &[(HeaderName, &str)],
    ) -> Result<Response, UnsentReason> {
        let mut headers = HeaderMap::new();
        let mut field = |name: HeaderName, value: &str| {
            headers.extend(HeaderValue::try_from(value).ok().map(|value| (name, value)));
        };
        field(ETAG, &format!("\"{tag}\""));
        fields.iter().for_each(|(name, value)| field(name.clone(), value));
        field(ACCEPT_RANGES, "bytes");
        if is_known(&asked.headers, tag) {
            headers.remove(CONTENT_TYPE);
            return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
        }
        let allowed = asked
            .headers
            .get(RANGE)
            .filter(|_| asked.method == Method::GET && if_range_holds(&asked.headers, &headers));
        let mut field = |name: HeaderName, value: String| {
            headers.extend(HeaderValue::try_from(value).ok().map(|value| (name, value)));
        };
        let (status, part) = match allowed.and_then(|asked| asked.to_str().ok()).map(|text| range(text, found.size)) {
            None | Some(RequestedRange::Whole) => (StatusCode::OK, 0..found.size),
            Some(RequestedRange::Part(part)) => {
                field(CONTENT_RANGE, format!("bytes {}-{}/{}", part.start, part.end - 1, found.size));
                (StatusCode::PARTIAL_CONTENT, part)
            }
            Some(RequestedRange::Outside) => {
                let range = [(CONTENT_RANGE, format!("bytes */{}", found.size))];
                return Ok((StatusCode::RANGE_NOT_SATISFIABLE, range).into_response());
            }
        };
        let length = part.end - part.start;
        field(CONTENT_LENGTH, length.to_string());
        let body = match asked.is_head() {
            true => Body::empty(),
            false => self.body(asked, found, part).await?,
        };
        Ok((status, headers, body).into_response())
    }

    async fn body(
        &self,
        asked: &PublishedRequest,
        found: LibraryEntry,
        part: std::ops::Range<u64>,
    ) -> Result<Body, UnsentReason> {
        let LibraryEntry { manifest, offset, .. } = found;
        let whole = offset.saturating_add(part.start)..offset.saturating_add(part.end);
        if part.end - part.start <= PIECE {
            let pieces = self.parts.read(asked.rank, manifest, whole, PIECE, asked.peer).try_collect::<Vec<_>>().await;
            return Ok(pieces.map_err(|_| UnsentReason::Unread)?.concat().into());
        }
        let Some(peer) = asked.peer else {
            return Ok(Body::from_stream(self.parts.read(asked.rank, manifest, whole, PIECE, None)));
        };
        // Very many may wait, and for long.
        let held = Arc::downgrade(&manifest);
        drop(manifest);
        let permit = self.downloads.acquire(DownloadClient::Machine(peer.ip()), asked.rank).await;
        let permit = permit.map_err(|full| {
            warn!(%peer, path = asked.path, error = %full, "published content refused for now");
            UnsentReason::Busy(full.to_string())
        })?;
        let manifest = held.upgrade().ok_or(UnsentReason::Unread)?;
        // Of those with a permit there are few: each may have a chunk that waits for it.
        let sent = self.parts.read(asked.rank, manifest, whole, CHUNK_SIZE, asked.peer);
        Ok(permit.hold(Body::from_stream(sent), asked.hangup.0.clone()))
    }
}

/// Whether the client has it already.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let held = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    held.flat_map(|value| value.split(',')).map(str::trim).any(|one| one == "*" || one.trim_matches('"') == tag)
}

/// Nobody knows yet what is published: the appliance has just started, or another one acts.
fn too_early(mut answer: Response) -> Response {
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(COME_AGAIN));
    answer
}

#[cfg(test)]
mod tests;
