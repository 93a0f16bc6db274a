//! How documents are sent: with a tag by which clients ask whether theirs is still good, and packed when they wish.

use std::io::Write;
use std::sync::OnceLock;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};

use crate::apiserver::answers::status::json_response;

/// Smaller documents are not worth packing.
const PACK_MIN: usize = 1024;

/// A document in both its forms.
#[derive(Debug)]
pub(in crate::apiserver) struct OpenApiDocument {
    /// SHA-256 of the text, in hex.
    pub hash: String,
    text: Bytes,
    packed: OnceLock<Option<Bytes>>,
}

impl OpenApiDocument {
    pub(in crate::apiserver) fn new(text: impl Into<Bytes>) -> Self {
        let text = text.into();
        let hash = Sha256::digest(&text).iter().map(|byte| format!("{byte:02X}")).collect();
        Self { hash, text, packed: OnceLock::new() }
    }

    /// Whether nothing is to be made any more for who asks so.
    pub(in crate::apiserver) fn is_ready_for(&self, headers: &HeaderMap) -> bool {
        !takes_gzip(headers) || self.packed.get().is_some()
    }

    /// The answer: `304` when the client has it.
    pub(in crate::apiserver) fn send(&self, headers: &HeaderMap, media: &str) -> Response {
        let tag = format!("\"{}\"", self.hash);
        let mut response = json_response(StatusCode::OK, Body::empty());
        let answer = response.headers_mut();
        let mut set = |name, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                answer.insert(name, value);
            }
        };
        set(header::ETAG, &tag);
        set(header::VARY, "Accept, Accept-Encoding");
        set(header::CONTENT_TYPE, media);
        if has_tag(headers, &tag) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        let packed = if takes_gzip(headers) { self.packed.get_or_init(|| pack(&self.text)).clone() } else { None };
        *response.body_mut() = match packed {
            Some(packed) => {
                response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                packed.into()
            }
            None => self.text.clone().into(),
        };
        response
    }
}

fn has_tag(headers: &HeaderMap, tag: &str) -> bool {
    let asked = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    asked
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let asked = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    asked.flat_map(|value| value.split(',')).any(|one| {
        let (name, weight) = one.split_once(';').unwrap_or((one, ""));
        name.trim() == "gzip" && !matches!(weight.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
    })
}

fn pack(text: &[u8]) -> Option<Bytes> {
    if text.len() < PACK_MIN {
        return None;
    }
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(text).ok()?;
    packer.finish().ok().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_what_they_can_read_and_nothing_twice() {
        let document = OpenApiDocument::new("x".repeat(PACK_MIN));
        let tag = format!("\"{}\"", document.hash);
        for (name, value, code, packed) in [
            ("accept", "*/*", 200, false),
            ("accept-encoding", "gzip", 200, true),
            ("accept-encoding", "br, gzip;q=0.5", 200, true),
            ("accept-encoding", "gzip;q=0", 200, false),
            ("if-none-match", tag.as_str(), 304, false),
            ("if-none-match", &format!("\"other\", W/{tag}"), 304, false),
            ("if-none-match", "\"other\"", 200, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
            let response = document.send(&headers, "application/json");
            assert_eq!(response.status(), code, "{name}: {value}");
            assert_eq!(response.headers().contains_key("content-encoding"), packed, "{name}: {value}");
            assert_eq!(response.headers()["etag"], *tag);
        }
    }
}
