//! Chunks and manifests over HTTP. The caller mounts and authorises the routes.
//!
//! Both are named by their SHA-256, so they never change: the name is the ETag and caches may keep them for ever.

use std::io;
use std::path::PathBuf;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use tokio_util::io::ReaderStream;

use super::Library;

/// Bytes read from a file at once.
const PIECE: usize = 256 << 10;

/// The stored bytes of a chunk: one zstd frame. 404 when there is no such chunk, 304 when `If-None-Match` names it.
pub async fn serve_chunk(library: &Library, sha256: &str, headers: &HeaderMap) -> Response {
    serve(library.chunk_file(sha256), sha256, headers, "application/zstd").await
}

/// A manifest's JSON, exactly the bytes that its digest is of. Answers as [`serve_chunk`] does.
pub async fn serve_manifest(library: &Library, digest: &str, headers: &HeaderMap) -> Response {
    serve(library.manifest_file(digest), digest, headers, "application/json").await
}

async fn serve(file: Option<PathBuf>, name: &str, headers: &HeaderMap, kind: &'static str) -> Response {
    let Some(path) = file else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let tag = format!("\"{name}\"");
    let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    if known.flat_map(|value| value.split(',')).any(|one| one.trim() == tag || one.trim() == "*") {
        return (StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response();
    }
    let opened = async {
        let file = tokio::fs::File::open(&path).await?;
        let length = file.metadata().await?.len();
        Ok::<_, io::Error>((file, length))
    };
    match opened.await {
        Ok((file, length)) => {
            let headers = [
                (CONTENT_TYPE, kind.to_owned()),
                (CONTENT_LENGTH, length.to_string()),
                (CACHE_CONTROL, "private, max-age=31536000, immutable".to_owned()),
                (ETAG, tag),
            ];
            (headers, Body::from_stream(ReaderStream::with_capacity(file, PIECE))).into_response()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => StatusCode::NOT_FOUND.into_response(),
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "cannot read the image library");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
