//! Faces: the API in the words of another program, below a path of its own, for that program's clients.
//!
//! What a face does it asks this API for, request by request, with the credentials of its caller's request. So whoever may not do
//! something by `kubectl` may not do it by a face, each request is audited as what it is, and a token that is taken away ends what goes on.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderValue, Method, Uri};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tower::ServiceExt;

use crate::apiserver::auth::UserIdentity;
use crate::apiserver::listener::exchange_memory;
use crate::apiserver::shares::caller_shares;

/// What is taken over of a request's headers: who asks, and in whose name.
const IMPERSONATE: &str = "impersonate-";
/// What is read of a body that nobody wants, so that its sender reads the answer: many clients send all of it first. Of more the
/// stream, or the connection, ends.
const DISCARDED: usize = 64 << 20;
/// How long it is read.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers what is asked below a path, see [`crate::apiserver::ApiServer::add_face`]. Who asks is known.
pub type Face = Arc<dyn Fn(Request, FaceCaller) -> BoxFuture<'static, Response> + Send + Sync>;

/// Whoever asks a face. Cheap to clone.
#[derive(Clone)]
pub struct FaceCaller {
    api: Router,
    credentials: HeaderMap,
    share: String,
    /// The connection, and whose certificate it has.
    connection: Extensions,
}

impl FaceCaller {
    fn of(api: Router, identity: &UserIdentity, parts: &Parts) -> Self {
        let is_credential = |name: &str| name == AUTHORIZATION.as_str() || name.starts_with(IMPERSONATE);
        let credentials = parts.headers.iter().filter(|(name, _)| is_credential(name.as_str()));
        Self {
            api,
            share: caller_shares::caller(&identity.user).to_owned(),
            credentials: credentials.map(|(name, value)| (name.clone(), value.clone())).collect(),
            connection: parts.extensions.clone(),
        }
    }

    /// Under which name it has its share of what callers share.
    pub fn share(&self) -> &str {
        &self.share
    }

    /// Asks the API as this caller would; `body` is of this type.
    pub async fn ask(&self, method: Method, uri: Uri, content_type: &'static str, body: Body) -> Response {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.credentials.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        *request.extensions_mut() = self.connection.clone();
        // It may come here again.
        let answered: BoxFuture<'_, Response> =
            self.api.clone().oneshot(request).map(IntoResponse::into_response).boxed();
        answered.await
    }
}

/// Has a face answer. What it leaves of the body of a request that it refuses is read, within bounds.
pub(in crate::apiserver) async fn answer(
    face: &Face,
    api: Router,
    identity: &UserIdentity,
    parts: Parts,
    body: Body,
) -> Response {
    exchange_memory::hands_on(&parts.extensions);
    let caller = FaceCaller::of(api, identity, &parts);
    let whole = Arc::new(Mutex::new(body.into_data_stream()));
    let response = face(Request::from_parts(parts, lent(whole.clone())), caller).await;
    if response.status().is_client_error() {
        discard(&whole).await;
    }
    response
}

/// A body that leaves what nobody reads of it.
fn lent(whole: Arc<Mutex<BodyDataStream>>) -> Body {
    let next = |whole: Arc<Mutex<BodyDataStream>>| async move {
        let part: Option<Result<Bytes, axum::Error>> = whole.lock().await.next().await;
        Some((part?.map_err(io::Error::other), whole))
    };
    Body::from_stream(stream::unfold(whole, next).fuse())
}

async fn discard(whole: &Mutex<BodyDataStream>) {
    let read = async {
        let mut bytes = 0;
        while let Some(Ok(part)) = whole.lock().await.next().await {
            bytes += part.len();
            if bytes > DISCARDED {
                break;
            }
        }
    };
    timeout(PATIENCE, read).await.ok();
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[tokio::test]
    async fn what_a_face_refuses_is_read_and_what_it_takes_is_not_read_twice() {
        for (code, reads, left) in [(409, 1, 0), (409, 0, 0), (200, 1, 2), (200, 9, 0)] {
            let sent = Arc::new(std::sync::Mutex::new(3));
            let rest = sent.clone();
            let parts = stream::iter(0..3).map(move |_| {
                *rest.lock().unwrap() -= 1;
                Ok::<_, io::Error>(Bytes::from_static(b"x"))
            });
            let face: Face = Arc::new(move |request, _| {
                Box::pin(async move {
                    let mut body = request.into_body().into_data_stream();
                    for _ in 0..reads {
                        body.next().await;
                    }
                    StatusCode::from_u16(code).unwrap().into_response()
                })
            });
            let (head, _) = Request::new(Body::empty()).into_parts();
            let response =
                answer(&face, Router::new(), &UserIdentity::in_process(), head, Body::from_stream(parts)).await;
            assert_eq!((response.status().as_u16(), *sent.lock().unwrap()), (code, left), "{reads}");
        }
    }
}
