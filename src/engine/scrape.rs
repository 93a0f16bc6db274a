//! `/metrics` of an appliance on an external API server.
//!
//! `/metrics` where the objects are in another API server: that one says who a caller is and whether he may read them, as for its
//! own metrics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::ANSWER_DEADLINE;
use crate::metrics::{self, RegisterMetrics};

/// Callers that the API server is asked about at once. Anybody can send a token.
const ASKED_AT_ONCE: usize = 4;
/// Callers that are remembered.
const REMEMBERED: usize = 64;
/// How long who may read metrics is believed to.
const BELIEVED_FOR: Duration = Duration::from_secs(60);
/// Longest token, in bytes.
const TOKEN_MAX: usize = 16 << 10;

/// Answers scrapes. Cheap to clone.
#[derive(Clone)]
pub(super) struct MetricsEndpoint(Arc<Inner>);

struct Inner {
    client: Client,
    meters: RegisterMetrics,
    asking: Semaphore,
    /// Who may read metrics, by the hash of the token, and since when that is known.
    readers: Mutex<HashMap<[u8; 32], Instant>>,
}

/// Why metrics are not shown.
#[derive(Debug, thiserror::Error)]
enum ScrapeRefusal {
    #[error("give a token of the API server that keeps the objects: Authorization: Bearer …")]
    NoToken,
    #[error("the API server does not know this token")]
    Unknown,
    #[error(
        "the user {0:?} may not get the path /metrics; a ClusterRole with nonResourceURLs: [/metrics], verbs: [get] allows it"
    )]
    Forbidden(String),
    #[error("the API server does not say who may read metrics: {0}; `slipway crds --rbac` has the rights for it")]
    NotTold(String),
}

impl IntoResponse for ScrapeRefusal {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NoToken | Self::Unknown => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotTold(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, format!("{self}\n")).into_response()
    }
}

impl MetricsEndpoint {
    pub(super) fn new(client: Client, meters: RegisterMetrics) -> Self {
        let (asking, readers) = (Semaphore::new(ASKED_AT_ONCE), Mutex::default());
        Self(Arc::new(Inner { client, meters, asking, readers }))
    }

    pub(super) async fn answer(&self, headers: &HeaderMap) -> Response {
        if let Err(refusal) = self.judge(headers).await {
            return refusal.into_response();
        }
        let mut registry = Registry::default();
        (self.0.meters)(&mut registry);
        match metrics::answer(registry) {
            Ok(answer) => answer.into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }

    async fn judge(&self, headers: &HeaderMap) -> Result<(), ScrapeRefusal> {
        let token = bearer(headers).ok_or(ScrapeRefusal::NoToken)?;
        let hash: [u8; 32] = Sha256::digest(token).into();
        let is_believed = |since: &Instant| since.elapsed() < BELIEVED_FOR;
        if self.readers().get(&hash).is_some_and(is_believed) {
            return Ok(());
        }
        let asked = timeout(ANSWER_DEADLINE, self.ask(token)).await;
        asked.map_err(|_| ScrapeRefusal::NotTold(format!("no answer within {} s", ANSWER_DEADLINE.as_secs())))??;
        let mut readers = self.readers();
        readers.retain(|_, since| is_believed(since));
        if readers.len() < REMEMBERED {
            readers.insert(hash, Instant::now());
        }
        Ok(())
    }

    fn readers(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Instant>> {
        self.0.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, token: &str) -> Result<(), ScrapeRefusal> {
        let not_told = |error: kube::Error| ScrapeRefusal::NotTold(error.to_string());
        let _turn = self.0.asking.acquire().await.map_err(|error| ScrapeRefusal::NotTold(error.to_string()))?;
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews = Api::<TokenReview>::all(self.0.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await.map_err(not_told)?;
        let status = review.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).ok_or(ScrapeRefusal::Unknown)?;
        let name = user.username.clone().unwrap_or_default();
        let reviews = Api::<SubjectAccessReview>::all(self.0.client.clone());
        let review = reviews.create(&PostParams::default(), &may_read(user)).await.map_err(not_told)?;
        match review.status {
            Some(status) if status.allowed => Ok(()),
            _ => Err(ScrapeRefusal::Forbidden(name)),
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= TOKEN_MAX).then_some(token)
}

/// The question whether a user may read `/metrics`.
fn may_read(user: UserInfo) -> SubjectAccessReview {
    let path = NonResourceAttributes { path: Some("/metrics".to_owned()), verb: Some("get".to_owned()) };
    let UserInfo { username, uid, groups, extra } = user;
    let spec = SubjectAccessReviewSpec {
        user: username,
        uid,
        groups,
        extra,
        non_resource_attributes: Some(path),
        ..SubjectAccessReviewSpec::default()
    };
    SubjectAccessReview { spec, ..SubjectAccessReview::default() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use prometheus_client::metrics::counter::Counter;
    use serde_json::{Value, json};
    use tower::service_fn;

    use super::*;

    /// An API server that knows two tokens, of which one may read metrics.
    fn scrapes(asked: &Arc<AtomicUsize>) -> MetricsEndpoint {
        let asked = asked.clone();
        let service = service_fn(move |request: Request<Body>| {
            asked.fetch_add(1, Ordering::SeqCst);
            async move {
                let review = request.uri().path().to_owned();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let mut object: Value = serde_json::from_slice(&body).unwrap();
                object["status"] = if review.ends_with("/tokenreviews") {
                    match object["spec"]["token"].as_str() {
                        Some("broken") => {
                            return Ok(Response::builder().status(500).body(Body::from(Vec::new())).unwrap());
                        }
                        Some(name @ ("reader" | "other")) => {
                            json!({"authenticated": true, "user": {"username": name, "groups": ["g"]}})
                        }
                        _ => json!({"authenticated": false}),
                    }
                } else {
                    assert_eq!(object["spec"]["nonResourceAttributes"], json!({"path": "/metrics", "verb": "get"}));
                    assert_eq!(object["spec"]["groups"], json!(["g"]));
                    json!({"allowed": object["spec"]["user"] == "reader"})
                };
                Ok::<_, std::convert::Infallible>(Response::new(Body::from(object.to_string().into_bytes())))
            }
        });
        let meters = |registry: &mut Registry| registry.register("slipway_tries", "Tries", Counter::<u64>::default());
        MetricsEndpoint::new(Client::new(service, "default"), Arc::new(meters))
    }

    #[tokio::test]
    async fn metrics_are_for_whom_the_api_server_lets_read_them() {
        let asked = Arc::default();
        let scrapes = scrapes(&asked);
        let rows = [
            (None, 401, "give a token", 0),
            (Some("Basic cmVhZGVy"), 401, "give a token", 0),
            (Some("Bearer "), 401, "give a token", 0),
            (Some("Bearer nobody"), 401, "does not know", 1),
            (Some("Bearer other"), 403, "\"other\" may not", 2),
            (Some("Bearer broken"), 503, "does not say", 1),
            (Some("Bearer reader"), 200, "slipway_tries_total 0", 2),
            // Believed for a while; nobody else is.
            (Some("bearer reader"), 200, "# EOF", 0),
            (Some("Bearer other"), 403, "nonResourceURLs", 2),
        ];
        for (authorization, status, part, questions) in rows {
            let mut headers = HeaderMap::new();
            authorization.map(|value| headers.insert(header::AUTHORIZATION, value.parse().unwrap()));
            let before = asked.load(Ordering::SeqCst);
            let answer = scrapes.answer(&headers).await;
            assert_eq!(answer.status(), status, "{authorization:?}");
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let text = String::from_utf8_lossy(&body);
            assert!(text.contains(part), "{authorization:?}: {text}");
            assert_eq!(asked.load(Ordering::SeqCst) - before, questions, "{authorization:?}");
        }
    }
}
