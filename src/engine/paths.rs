//! Paths that are asked of the API server.
//!
//! Names of objects come from other objects, whoever wrote those. A name that is none would lead elsewhere where something between
//! here and the server makes paths canonical: such a path is not asked for at all, wherever the name came from.

use http::Request;
use kube::client::Body;
use tower::BoxError;
use tower::filter::FilterLayer;

/// A part of a path is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name in the path of the request is none")]
struct NoName;

/// Lets only requests through whose paths are made of names.
pub(super) fn layer() -> FilterLayer<impl Fn(Request<Body>) -> Result<Request<Body>, BoxError> + Clone + Send + 'static>
{
    FilterLayer::new(
        |request: Request<Body>| {
            if is_of_names(request.uri().path()) { Ok(request) } else { Err(NoName.into()) }
        },
    )
}

/// Whether no part of a path leads up, stays, or is escaped. Names of objects have no `%`.
fn is_of_names(path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else { return false };
    let is_whole = path.is_empty() || !(path.ends_with('/') || path.contains("//"));
    is_whole && !path.contains(['%', '\\']) && !path.split('/').any(|part| matches!(part, "." | ".."))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::{Layer, ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn a_path_that_leads_elsewhere_is_not_asked_for() {
        for (path, passes) in [
            ("/", true),
            ("/api/v1/namespaces/default/secrets/a.b-c", true),
            ("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node", true),
            ("/api/v1/namespaces/a/secrets/x?limit=%2e", true),
            ("/api/v1/namespaces/a/secrets/a..b", true),
            ("/api/v1/namespaces/a/secrets/../../b/secrets/x", false),
            ("/api/v1/namespaces/a/secrets/..", false),
            ("/api/v1/namespaces/a/secrets/./x", false),
            ("/api/v1/namespaces/a/secrets/%2e%2e/x", false),
            ("/api/v1/namespaces/a/secrets//x", false),
            ("/api/v1/namespaces/a/secrets/?x", false),
        ] {
            let service = layer().layer(service_fn(async |_: Request<Body>| Ok::<_, Infallible>(())));
            let asked = service.oneshot(Request::get(path).body(Body::empty()).unwrap()).await;
            assert_eq!(asked.is_ok(), passes, "{path}");
        }
    }
}
