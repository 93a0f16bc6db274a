//! A registry to pull from, by the OCI distribution specification 1.1.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v2/` | that there is one |
//! | `GET /v2/NAME/manifests/REFERENCE` | a manifest or an index by tag or digest, as the media type that it has |
//! | `GET /v2/NAME/blobs/DIGEST` | anything that the names of this repository lead to, with Range |
//! | `GET /v2/NAME/tags/list?n=&last=` | the tags, in order |
//!
//! HEAD where there is GET. A query of containerd's, which says of which registry this is a mirror (`?ns=`), changes nothing.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, StatusCode};
use serde_json::json;

use super::{PublishedRequest, PublishedService, TagPage, UNREAD, UnsentReason, below, too_early};
use crate::image::archive::{is_repository, is_tag, sha256_of};
use crate::image::publish::LibraryEntry;
use crate::image::publish::table::{PublishedTable, Repository};

const VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
/// Most tags in one answer.
const TAGS_MAX: usize = 1000;
const BLOB_TYPE: &str = "application/octet-stream";

/// What a path asks for.
#[derive(Debug, PartialEq, Eq)]
enum RegistryPath<'p> {
    Version,
    Manifest { name: &'p str, reference: &'p str },
    Blob { name: &'p str, digest: &'p str },
    Tags { name: &'p str },
}

impl<'p> RegistryPath<'p> {
    /// Of a path below `/v2/`. Names have slashes, so it is read from its end.
    fn of(path: &'p str) -> Option<Self> {
        if path.is_empty() {
            return Some(Self::Version);
        }
        let (rest, last) = path.rsplit_once('/')?;
        let (name, kind) = rest.rsplit_once('/')?;
        match kind {
            "manifests" => Some(Self::Manifest { name, reference: last }),
            "blobs" => Some(Self::Blob { name, digest: last }),
            "tags" if last == "list" => Some(Self::Tags { name }),
            _ => None,
        }
    }
}

/// Why a request has no better answer, with the specification's code.
struct RegistryRefusal(StatusCode, &'static str, String);

impl IntoResponse for RegistryRefusal {
    fn into_response(self) -> Response {
        let Self(status, code, message) = self;
        (status, axum::Json(json!({ "errors": [{ "code": code, "message": message }] }))).into_response()
    }
}

fn unknown(code: &'static str, what: &str) -> RegistryRefusal {
    RegistryRefusal(StatusCode::NOT_FOUND, code, format!("{what} is not published here"))
}

fn unavailable(message: &str) -> RegistryRefusal {
    RegistryRefusal(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message.to_owned())
}

fn invalid(code: &'static str, message: &str) -> RegistryRefusal {
    RegistryRefusal(StatusCode::BAD_REQUEST, code, message.to_owned())
}

pub(super) async fn answer(State(serving): State<PublishedService>, request: Request) -> Response {
    let asked = PublishedRequest::of(&serving, request);
    let mut answer = match judged(&serving, &asked).await {
        Ok(answer) => answer,
        Err(refusal) => {
            let early = refusal.0 == StatusCode::SERVICE_UNAVAILABLE;
            let answer = refusal.into_response();
            if early { too_early(answer) } else { answer }
        }
    };
    answer.headers_mut().insert(VERSION, HeaderValue::from_static("registry/2.0"));
    answer
}

async fn judged(serving: &PublishedService, asked: &PublishedRequest) -> Result<Response, RegistryRefusal> {
    if asked.method != Method::GET && asked.method != Method::HEAD {
        let message = "this registry is read only".to_owned();
        let refusal = RegistryRefusal(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", message).into_response();
        return Ok(([(ALLOW, "GET, HEAD")], refusal).into_response());
    }
    let path = below(&asked.path, "/v2").ok_or_else(|| invalid("NAME_INVALID", "the path is no text"))?;
    let other = || RegistryRefusal(StatusCode::NOT_FOUND, "UNSUPPORTED", "there is no such endpoint here".to_owned());
    match RegistryPath::of(&path).ok_or_else(other)? {
        RegistryPath::Version => Ok(axum::Json(json!({})).into_response()),
        RegistryPath::Tags { name } => tags(name, repository(serving.table().as_deref(), name)?, &asked.query),
        RegistryPath::Manifest { name, reference } => {
            let (found, digest) = manifest(serving.table().as_deref(), name, reference)?;
            sent(serving, asked, found, &digest).await
        }
        RegistryPath::Blob { name, digest } => {
            let found = blob(serving.table().as_deref(), name, digest)?;
            sent(serving, asked, found, digest).await
        }
    }
}

/// A repository of the table; of none while nobody knows what is published.
fn repository<'t>(table: Option<&'t PublishedTable>, name: &str) -> Result<&'t Repository, RegistryRefusal> {
    if !is_repository(name) {
        return Err(invalid("NAME_INVALID", "this is no name of a repository"));
    }
    let table = table.ok_or_else(|| unavailable("the appliance does not know yet what is published"))?;
    table.repository(name).ok_or_else(|| unknown("NAME_UNKNOWN", name))
}

/// A manifest by a tag or a digest, and its digest.
fn manifest(
    table: Option<&PublishedTable>,
    name: &str,
    reference: &str,
) -> Result<(LibraryEntry, String), RegistryRefusal> {
    let repository = repository(table, name)?;
    let digest = match sha256_of(reference) {
        Some(_) => Some(reference),
        None if is_tag(reference) => repository.digest(reference),
        None => return Err(invalid("MANIFEST_INVALID", "this is neither a tag nor a digest by SHA-256")),
    };
    let found = digest.and_then(|digest| Some((repository.blob(digest)?.clone(), digest.to_owned())));
    let found = found.filter(|(found, _)| found.media_type.is_some());
    found.ok_or_else(|| unknown("MANIFEST_UNKNOWN", &format!("{name}: {reference}")))
}

fn blob(table: Option<&PublishedTable>, name: &str, digest: &str) -> Result<LibraryEntry, RegistryRefusal> {
    let repository = repository(table, name)?;
    if sha256_of(digest).is_none() {
        return Err(invalid("DIGEST_INVALID", "this is no digest by SHA-256"));
    }
    repository.blob(digest).cloned().ok_or_else(|| unknown("BLOB_UNKNOWN", digest))
}

async fn sent(
    serving: &PublishedService,
    asked: &PublishedRequest,
    found: LibraryEntry,
    digest: &str,
) -> Result<Response, RegistryRefusal> {
    let kind = found.media_type.clone();
    let kind = kind.as_deref().unwrap_or(BLOB_TYPE);
    let sent = serving.send(asked, found, digest, &[(CONTENT_TYPE, kind), (DIGEST, digest)]).await;
    sent.map_err(|unsent| match unsent {
        UnsentReason::Busy(message) => RegistryRefusal(StatusCode::TOO_MANY_REQUESTS, "TOOMANYREQUESTS", message),
        UnsentReason::Unread => unavailable(UNREAD),
    })
}

/// Tags from after `last`, at most `n`, and where the rest is.
fn tags(name: &str, repository: &Repository, query: &str) -> Result<Response, RegistryRefusal> {
    let page = TagPage::of(query, TAGS_MAX).ok_or_else(|| invalid("UNSUPPORTED", "n is no number"))?;
    let mut rest = repository.tags_after(&page.last);
    let tags: Vec<&str> = rest.by_ref().take(page.most).collect();
    let next = tags.last().filter(|_| rest.next().is_some());
    let link = next.and_then(|last| page.link(&format!("/v2/{name}/tags/list"), last));
    let mut answer = axum::Json(json!({ "name": name, "tags": tags })).into_response();
    answer.headers_mut().extend(link);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_from_its_end() {
        let manifest = |name, reference| Some(RegistryPath::Manifest { name, reference });
        for (path, wanted) in [
            ("", Some(RegistryPath::Version)),
            ("pause/manifests/3.10", manifest("pause", "3.10")),
            ("a/b/c/manifests/sha256:0", manifest("a/b/c", "sha256:0")),
            ("a/manifests/manifests/x", manifest("a/manifests", "x")),
            ("tags/list/manifests/list", manifest("tags/list", "list")),
            ("a/b/blobs/x", Some(RegistryPath::Blob { name: "a/b", digest: "x" })),
            ("a/b/tags/list", Some(RegistryPath::Tags { name: "a/b" })),
            ("a/b/tags/other", None),
            ("_catalog", None),
            ("a/b", None),
            ("a/referrers/sha256:0", None),
            ("manifests/x", None),
        ] {
            assert_eq!(RegistryPath::of(path), wanted, "{path}");
        }
    }
}
