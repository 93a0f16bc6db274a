//! Chunks and manifests over HTTP. The caller mounts and authorises the routes.
//!
//! Both are named by their SHA-256, so they never change: the name is the ETag and caches may keep them for ever. What is not what its
//! name says any more, because the disk changed it, is served to nobody.

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};

use super::Library;
use super::library::is_lost;

/// The stored bytes of a chunk: one zstd frame. 404 when there is no such chunk, or it is damaged; 304 when `If-None-Match` names it.
pub async fn serve_chunk(library: &Library, sha256: &str, headers: &HeaderMap) -> Response {
    serve(library, sha256, headers, "application/zstd", Library::stored_chunk).await
}

/// A manifest's JSON, exactly the bytes that its digest is of. Answers as [`serve_chunk`] does.
pub async fn serve_manifest(library: &Library, digest: &str, headers: &HeaderMap) -> Response {
    serve(library, digest, headers, "application/json", Library::stored_manifest).await
}

/// Reads what is stored under a name, whole and as it was written; `None` where nothing is.
type Read = fn(&Library, &str) -> std::io::Result<Option<Vec<u8>>>;

async fn serve(library: &Library, name: &str, headers: &HeaderMap, kind: &'static str, read: Read) -> Response {
    if !library.has(name) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let tag = format!("\"{name}\"");
    let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    if known.flat_map(|value| value.split(',')).any(|one| one.trim() == tag || one.trim() == "*") {
        return (StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response();
    }
    let (of, wanted) = (library.clone(), name.to_owned());
    match tokio::task::spawn_blocking(move || read(&of, &wanted)).await {
        Ok(Ok(Some(bytes))) => {
            let headers = [
                (CONTENT_TYPE, kind.to_owned()),
                (CONTENT_LENGTH, bytes.len().to_string()),
                (CACHE_CONTROL, "private, max-age=31536000, immutable".to_owned()),
                (ETAG, tag),
            ];
            (headers, bytes).into_response()
        }
        Ok(Ok(None)) => StatusCode::NOT_FOUND.into_response(),
        Ok(Err(error)) => {
            tracing::error!(name, %error, "cannot read the image library");
            // Another try finds nothing else until it is imported again.
            if is_lost(&error) { StatusCode::NOT_FOUND } else { StatusCode::INTERNAL_SERVER_ERROR }.into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
