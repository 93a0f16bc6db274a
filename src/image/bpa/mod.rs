//! Images by the REST interface of Akraino's Binary Provisioning Agent: `/v1/baremetalcluster/OWNER/CLUSTER/COLLECTION/NAME`.
//!
//! It is a face of the API (see [`crate::apiserver::Face`]): an image is an Image of the library with an upload, and its labels and an
//! annotation say whose it is and what was said of it. So roles, rations, limits and the store are those of uploads ([`super::upload`]).
//! Beside the agent's own protocol, in which a `PATCH` brings all the rest, clients of tus may send any part of it
//! (<https://tus.io/protocols/resumable-upload>, version 1.0.0, with its extension `creation`).

mod describe;
mod record;
mod send;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, LOCATION};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use serde_json::{Value, json};

use self::describe::described;
pub(super) use self::record::PATH;
use self::record::{CollectionKey, LABELS, Metadata, annotations, image_of, name_of, parse, record, said_of};
use super::Library;
use super::identity::ready;
use super::upload::{ReceivedBytes, told};
use crate::api::slipway::Image;
use crate::apiserver::{ApiError, Face, FaceCaller};

/// Where Images are.
const IMAGES: &str = "/apis/slipway.dev/v1alpha1/images";
const JSON: &str = "application/json";
/// Longest answer of the API that is read, in bytes: a list of Images is the longest.
const ANSWER_MAX: usize = 32 << 20;
/// Header of the protocol, and the headers of tus.
pub(super) const OFFSET: &str = "upload-offset";
const LENGTH: &str = "upload-length";
const TUS: &str = "tus-resumable";
const TUS_VERSION: &str = "1.0.0";

/// The face.
pub(super) fn face(library: Library) -> Face {
    Arc::new(move |request, caller| {
        let library = library.clone();
        Box::pin(async move {
            let speaks_tus = request.headers().contains_key(TUS);
            let mut response = answer(&library, request, &caller).await.unwrap_or_else(CallRefused::into_response);
            if speaks_tus {
                response.headers_mut().insert(TUS, HeaderValue::from_static(TUS_VERSION));
            }
            response
        })
    })
}

/// Why something was not done: what the API said, or what is said here.
enum CallRefused {
    Api(Response),
    Here(ApiError),
}

impl CallRefused {
    fn into_response(self) -> Response {
        match self {
            Self::Api(response) => response,
            Self::Here(error) => error.into_response(),
        }
    }
}

impl From<ApiError> for CallRefused {
    fn from(error: ApiError) -> Self {
        Self::Here(error)
    }
}

fn refused(code: StatusCode, reason: &'static str, message: impl Into<String>) -> CallRefused {
    CallRefused::Here(ApiError::new(code, reason, message))
}

fn conflict(message: impl Into<String>) -> CallRefused {
    refused(StatusCode::CONFLICT, "Conflict", message)
}

fn no_such(what: &str) -> CallRefused {
    refused(StatusCode::NOT_FOUND, "NotFound", format!("there is no {what}"))
}

async fn answer(library: &Library, request: Request, caller: &FaceCaller) -> Result<Response, CallRefused> {
    let path = request.uri().path().to_owned();
    let Some((place, name)) = parse(&path) else {
        return Err(no_such(
            "such path: it is OWNER/CLUSTER/COLLECTION[/NAME], where COLLECTION is binary_images, container_images or os_images, and no name begins with a dot",
        ));
    };
    let desk = Desk { library, caller, place };
    match (request.method().clone(), name) {
        (Method::OPTIONS, _) => Ok((
            StatusCode::NO_CONTENT,
            [("tus-version", TUS_VERSION), ("tus-extension", "creation"), (TUS, TUS_VERSION)],
        )
            .into_response()),
        (Method::GET, None) => desk.list().await,
        (Method::POST, None) => desk.create(request).await,
        (Method::GET, Some(name)) => desk.show(&name).await,
        (Method::HEAD, Some(name)) => desk.head(&name).await,
        (Method::PUT, Some(name)) => desk.describe(&name, request).await,
        (Method::PATCH, Some(name)) => desk.send(&name, request).await,
        (Method::DELETE, Some(name)) => desk.remove(&name).await,
        _ => Err(ApiError::method_not_allowed(
            "a collection takes GET and POST, an image GET, HEAD, PUT, PATCH and DELETE",
        )
        .into()),
    }
}

/// What is asked of a collection by a caller.
struct Desk<'d> {
    library: &'d Library,
    caller: &'d FaceCaller,
    place: CollectionKey,
}

/// An image that is there.
struct FoundImage {
    image: Image,
    said: Metadata,
    received: ReceivedBytes,
}

impl Desk<'_> {
    /// Asks the API in the caller's name; what it refuses is the answer.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: Body,
    ) -> Result<Response, CallRefused> {
        let uri: Uri = path.parse().map_err(|_| no_such("such path"))?;
        let response = self.caller.ask(method, uri, content_type, body).await;
        if response.status().is_success() { Ok(response) } else { Err(CallRefused::Api(response)) }
    }

    async fn read(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: Body,
    ) -> Result<Value, CallRefused> {
        let response = self.ask(method, path, content_type, body).await?;
        let bytes = axum::body::to_bytes(response.into_body(), ANSWER_MAX).await;
        let bytes = bytes.map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(serde_json::from_slice(&bytes).map_err(|error| ApiError::internal(error.to_string()))?)
    }

    fn path_of(&self, name: &str) -> String {
        format!("{IMAGES}/{}", name_of(&self.place, name))
    }

    /// How much of an image has come.
    async fn received(&self, image: &Image, path: &str) -> Result<ReceivedBytes, CallRefused> {
        if ready(image).is_some() {
            return Ok(ReceivedBytes { bytes: 0, whole: true });
        }
        let received = self.read(Method::GET, &format!("{path}/upload"), JSON, Body::empty()).await?;
        Ok(serde_json::from_value(received).map_err(|error| ApiError::internal(error.to_string()))?)
    }

    async fn find(&self, name: &str) -> Result<FoundImage, CallRefused> {
        let path = self.path_of(name);
        let image = self.read(Method::GET, &path, JSON, Body::empty()).await?;
        let image: Image = serde_json::from_value(image).map_err(|error| ApiError::internal(error.to_string()))?;
        let Some(said) = said_of(&image, &self.place, name) else { return Err(no_such("image of this name here")) };
        let received = self.received(&image, &path).await?;
        Ok(FoundImage { image, said, received })
    }

    async fn list(&self) -> Result<Response, CallRefused> {
        let [owner, cluster, images] = LABELS;
        let selector = format!(
            "{owner}={},{cluster}={},{images}={}",
            self.place.owner,
            self.place.cluster,
            self.place.collection.word()
        );
        let selector: String = form_urlencoded::byte_serialize(selector.as_bytes()).collect();
        let list = self.read(Method::GET, &format!("{IMAGES}?labelSelector={selector}"), JSON, Body::empty()).await?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let mut records = Vec::new();
        for image in items.into_iter().filter_map(|image| serde_json::from_value::<Image>(image).ok()) {
            let name = image.spec.url.trim_start_matches("upload:").to_owned();
            let Some(said) = said_of(&image, &self.place, &name) else { continue };
            match self.received(&image, &self.path_of(&name)).await {
                Ok(received) => records.push(record(&image, &said, received)),
                // It was removed meanwhile.
                Err(CallRefused::Api(answer)) if answer.status() == StatusCode::NOT_FOUND => {}
                Err(refused) => return Err(refused),
            }
        }
        Ok(axum::Json(records).into_response())
    }

    async fn create(&self, request: Request) -> Result<Response, CallRefused> {
        let path = request.uri().path().trim_end_matches('/').to_owned();
        let said = described(request).await?.check(&self.place).map_err(ApiError::bad_request)?;
        let body = Body::from(image_of(&self.place, &said).to_string());
        let image = self.read(Method::POST, IMAGES, JSON, body).await?;
        let image: Image = serde_json::from_value(image).map_err(|error| ApiError::internal(error.to_string()))?;
        let record = record(&image, &said, ReceivedBytes { bytes: 0, whole: false });
        let location = format!("{path}/{}", said.image_name);
        Ok((StatusCode::CREATED, [(LOCATION, location)], axum::Json(record)).into_response())
    }

    async fn show(&self, name: &str) -> Result<Response, CallRefused> {
        let found = self.find(name).await?;
        Ok(axum::Json(record(&found.image, &found.said, found.received)).into_response())
    }

    async fn head(&self, name: &str) -> Result<Response, CallRefused> {
        let found = self.find(name).await?;
        let offset = if ready(&found.image).is_some() { found.said.image_length } else { found.received.bytes };
        let mut headers = offset_of(offset);
        headers.insert(LENGTH, found.said.image_length.into());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok((StatusCode::OK, headers).into_response())
    }

    /// Says something else of an image: what is in it. What it is stays.
    async fn describe(&self, name: &str, request: Request) -> Result<Response, CallRefused> {
        let found = self.find(name).await?;
        let said = described(request).await?.check(&self.place).map_err(ApiError::bad_request)?;
        let is_same = |said: &Metadata| (said.image_name.clone(), said.image_length, said.image_sha256.clone());
        if is_same(&said) != is_same(&found.said) {
            return Err(conflict(
                "name, length and SHA-256 of an image cannot be changed: delete it, and send it anew",
            ));
        }
        let patch = json!({"metadata": {"resourceVersion": found.image.metadata.resource_version, "annotations": annotations(&said)}});
        let body = Body::from(patch.to_string());
        let image = self.read(Method::PATCH, &self.path_of(name), "application/merge-patch+json", body).await?;
        let image: Image = serde_json::from_value(image).map_err(|error| ApiError::internal(error.to_string()))?;
        Ok((StatusCode::CREATED, axum::Json(record(&image, &said, found.received))).into_response())
    }

    async fn send(&self, name: &str, request: Request) -> Result<Response, CallRefused> {
        let (parts, body) = request.into_parts();
        let number = |header: &str| parts.headers.get(header)?.to_str().ok()?.parse::<u64>().ok();
        let offset =
            number(OFFSET).ok_or_else(|| ApiError::bad_request("Upload-Offset: say at which byte this goes on"))?;
        let found = self.find(name).await?;
        if found.received.whole || ready(&found.image).is_some() {
            return Err(refused(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", "the image is complete"));
        }
        if offset != found.received.bytes {
            let there = found.received.bytes;
            let error =
                ApiError::new(StatusCode::CONFLICT, "Conflict", format!("{there} bytes are there: go on from there"));
            return Err(CallRefused::Api((offset_of(there), error).into_response()));
        }
        let rest = found.said.image_length.saturating_sub(offset);
        let length = number(CONTENT_LENGTH.as_str());
        let is_part = parts.headers.contains_key(TUS);
        if !(length == Some(rest) || (is_part && length.is_none_or(|length| length < rest))) {
            let message = format!("Content-Length: {rest} bytes are missing, and one request brings all of them");
            return Err(ApiError::bad_request(message).into());
        }
        let path = self.path_of(name);
        if rest == 0 {
            // Whether it may be sent by whoever asks: nothing else would be asked for.
            let nothing = format!("{path}/upload?offset={offset}&size={offset}");
            self.ask(Method::POST, &nothing, send::BYTES, Body::empty()).await?;
        }
        let bytes = self.pieces(&path, offset, found.said.image_length, body).await?;
        if bytes == found.said.image_length {
            let uid = found.image.metadata.uid.as_deref().unwrap_or_default();
            self.complete(&path, uid, &found.said).await?;
        }
        Ok((StatusCode::NO_CONTENT, offset_of(bytes)).into_response())
    }

    /// All has come.
    async fn complete(&self, path: &str, uid: &str, said: &Metadata) -> Result<(), CallRefused> {
        let sha256 = match &said.image_sha256 {
            Some(sha256) => sha256.clone(),
            // Nothing to compare with: what came is what it is.
            None => self.library.sum_of_upload(uid, self.caller.share()).await.map_err(|refused| told(&refused))?,
        };
        let length = said.image_length;
        let last = format!("{path}/upload?offset={length}&size={length}&whole={sha256}");
        self.ask(Method::POST, &last, send::BYTES, Body::empty()).await.map(drop)
    }

    async fn remove(&self, name: &str) -> Result<Response, CallRefused> {
        let found = self.find(name).await?;
        let hosts = found.image.status.as_ref().and_then(|status| status.hosts).unwrap_or_default();
        if hosts > 0 {
            return Err(conflict(format!("{hosts} hosts use the image: slipway image remove names them")));
        }
        let options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": found.image.metadata.uid}});
        self.ask(Method::DELETE, &self.path_of(name), JSON, Body::from(options.to_string())).await?;
        Ok(StatusCode::NO_CONTENT.into_response())
    }
}

fn offset_of(bytes: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(OFFSET, bytes.into());
    headers
}
