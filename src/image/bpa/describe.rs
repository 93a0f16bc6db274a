//! What is said of an image when it is created: as the agent took it (a form of several parts, whose part `metadata` is JSON), as JSON
//! alone, or in the headers of tus.

use std::future::Future;
use std::time::Duration;

use axum::extract::{FromRequest, Multipart, Request};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::record::Metadata;
use super::{CallRefused, LENGTH, refused};
use crate::apiserver::ApiError;

/// Longest text that says what an image is, in bytes.
const SAID_MAX: usize = 256 << 10;
/// How long it may take to come, as other bodies: no other part of a form is waited for longer, however many there are.
const PATIENCE: Duration = Duration::from_secs(50);

/// What a request says of an image.
pub(super) async fn described(request: Request) -> Result<Metadata, CallRefused> {
    if request.headers().contains_key(LENGTH) {
        return Ok(of_tus(request.headers()).map_err(ApiError::bad_request)?);
    }
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_form = kind.starts_with("multipart/form-data");
    let read = async { if is_form { of_form(request).await } else { whole(request).await } };
    let text = within(PATIENCE, read).await?;
    let unreadable =
        |reason: String| refused(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", format!("metadata: {reason}"));
    // Not a list, which would be one of fields without their names.
    let fields: Map<String, Value> = serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
    serde_json::from_value(fields.into()).map_err(|error| unreadable(error.to_string()))
}

async fn within<T>(patience: Duration, read: impl Future<Output = Result<T, CallRefused>>) -> Result<T, CallRefused> {
    match timeout(patience, read).await {
        Ok(read) => read,
        Err(_) => {
            Err(refused(StatusCode::REQUEST_TIMEOUT, "Timeout", "what is said of the image did not arrive in time"))
        }
    }
}

async fn whole(request: Request) -> Result<Vec<u8>, CallRefused> {
    let read = Limited::new(request.into_body(), SAID_MAX).collect().await;
    Ok(read.map_err(|_| too_long())?.to_bytes().to_vec())
}

fn too_long() -> CallRefused {
    let message = format!("what is said of an image has at most {SAID_MAX} bytes");
    refused(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
}

/// The part `metadata`. What comes after it is not read: the agent wanted a part `file`, and did nothing with it.
async fn of_form(request: Request) -> Result<Vec<u8>, CallRefused> {
    let unreadable = |reason: String| refused(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", reason);
    let mut form = Multipart::from_request(request, &()).await.map_err(|error| unreadable(error.body_text()))?;
    loop {
        let part = form.next_field().await.map_err(|error| unreadable(error.body_text()))?;
        let Some(mut part) = part else {
            return Err(ApiError::bad_request("the form has no part metadata").into());
        };
        let is_it = part.name() == Some("metadata");
        let mut text = Vec::new();
        while let Some(data) = part.chunk().await.map_err(|error| unreadable(error.body_text()))? {
            if is_it {
                text.extend_from_slice(&data);
            }
            if text.len() > SAID_MAX {
                return Err(too_long());
            }
        }
        if is_it {
            return Ok(text);
        }
    }
}

/// `Upload-Length`, and of `Upload-Metadata` `filename` and `sha256`.
fn of_tus(headers: &HeaderMap) -> Result<Metadata, String> {
    let text = |header: &str| headers.get(header).and_then(|value| value.to_str().ok());
    let length = text(LENGTH).and_then(|length| length.parse().ok()).ok_or("Upload-Length: is no number")?;
    let mut said = Metadata { image_length: length, ..Metadata::default() };
    for pair in text("upload-metadata").unwrap_or_default().split(',') {
        let (key, value) = pair.trim().split_once(' ').unwrap_or((pair.trim(), ""));
        let value = STANDARD.decode(value).ok().and_then(|value| String::from_utf8(value).ok());
        let value = value.ok_or_else(|| format!("Upload-Metadata: {key} is no base64 of a text"))?;
        match key {
            "filename" | "name" => said.image_name = value,
            "sha256" => said.image_sha256 = Some(value),
            _ => {}
        }
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures::StreamExt;
    use serde_json::json;

    use super::*;

    async fn said(headers: &[(&str, &str)], body: impl Into<Body>) -> Result<Metadata, StatusCode> {
        let mut request = Request::new(body.into());
        for (name, value) in headers {
            request.headers_mut().insert(
                http::HeaderName::from_bytes(name.as_bytes()).unwrap(),
                http::HeaderValue::from_str(value).unwrap(),
            );
        }
        *request.method_mut() = http::Method::POST;
        described(request).await.map_err(|refused| refused.into_response().status())
    }

    #[tokio::test]
    async fn three_ways_say_the_same() {
        let wanted = Metadata { image_name: "a.img".into(), image_length: 7, ..Metadata::default() };
        let text = json!({"image_name": "a.img", "image_length": 7}).to_string();
        assert_eq!(said(&[("content-type", "application/json")], text.clone()).await, Ok(wanted.clone()));
        assert_eq!(said(&[], text.clone()).await, Ok(wanted.clone()));
        let part = |name: &str, text: &str| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"f\"\r\n\r\n{text}\r\n")
        };
        let form = [("content-type", "multipart/form-data; boundary=b")];
        let body = part("file", "x") + &part("metadata", &text) + "--b--\r\n";
        assert_eq!(said(&form, body).await, Ok(wanted.clone()));
        // Nothing after it is waited for.
        let body = part("metadata", &text) + &part("file", "it breaks off");
        assert_eq!(said(&form, body).await, Ok(wanted.clone()));
        let tus = [("upload-length", "7"), ("upload-metadata", "filename YS5pbWc=,is_confidential,sha256 eHk=")];
        assert_eq!(said(&tus, "").await, Ok(Metadata { image_sha256: Some("xy".into()), ..wanted }));
        for (headers, body, code) in [
            (&form[..], part("file", "x") + "--b--\r\n", 400),
            (&form[..], "nothing".into(), 422),
            (&[("content-type", "multipart/form-data")], part("metadata", &text), 422),
            (&[], "{".into(), 422),
            (&[], "[]".into(), 422),
            (&[], "x".repeat(SAID_MAX + 1), 413),
            (&form[..], part("metadata", &"x".repeat(SAID_MAX + 1)) + "--b--\r\n", 413),
            (&[("upload-length", "-1")], String::new(), 400),
            (&[("upload-length", "1"), ("upload-metadata", "filename ?")], String::new(), 400),
        ] {
            assert_eq!(said(headers, body).await.map_err(|code| code.as_u16()), Err(code), "{headers:?}");
        }
    }

    #[tokio::test]
    async fn what_does_not_come_to_an_end_is_not_waited_for() {
        let part = bytes::Bytes::from_static(b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx");
        let body = futures::stream::iter([Ok::<_, std::io::Error>(part)]).chain(futures::stream::pending());
        let mut request = Request::new(Body::from_stream(body));
        request.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("multipart/form-data; boundary=b"));
        let read = within(Duration::from_millis(20), of_form(request)).await;
        assert_eq!(read.map_err(|refused| refused.into_response().status()), Err(StatusCode::REQUEST_TIMEOUT));
    }
}
