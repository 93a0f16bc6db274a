//! Requests to the server, made by hand: tables and raw objects are nothing that typed clients ask for.

use futures::io::AsyncBufReadExt;
use futures::{Stream, StreamExt, TryStreamExt};
use http::{Method, Request, StatusCode, header};
use kube::client::Body;
use kube::core::Status;
use kube::core::discovery::v2::{ACCEPT_AGGREGATED_DISCOVERY_V2, APIGroupDiscoveryList};
use serde_json::{Value, json};

use super::connect::ClientSession;
use super::errors::{ApiRequestError, unreachable};
use super::types::ServedTypes;

/// Objects asked for at once; the rest follows page by page.
const PAGE: usize = 500;
/// Objects as they are.
pub(super) const JSON: &str = "application/json";
/// Tables, where the server makes them.
pub(super) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
/// Names, labels and the like, where the server leaves the rest out.
pub(super) const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";
/// Server-side apply; the body may be JSON.
const APPLY: &str = "application/apply-patch+yaml";
/// JSON merge patch (RFC 7386).
pub(super) const MERGE: &str = "application/merge-patch+json";

/// Who changes a host by a verb: another than who applies files, so that a conflict of the two says which it was.
pub(super) const HOST_MANAGER: &str = "slipway-host";
/// The same of clusters.
pub(super) const CLUSTER_MANAGER: &str = "slipway-cluster";

/// Parameters of a request.
pub(super) type Query<'q> = &'q [(&'q str, &'q str)];

/// The path with its parameters; empty ones are left out.
pub(super) fn uri(path: &str, query: Query<'_>) -> String {
    let mut encoded = form_urlencoded::Serializer::new(String::new());
    encoded.extend_pairs(query.iter().filter(|(_, value)| !value.is_empty()));
    let encoded = encoded.finish();
    if encoded.is_empty() { path.to_owned() } else { format!("{path}?{encoded}") }
}

impl ClientSession {
    /// Sends a request; the answer's status and body.
    async fn send(
        &self,
        request: http::request::Builder,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Value), ApiRequestError> {
        let nonsense = |error: &dyn std::fmt::Display| ApiRequestError::Nonsense(error.to_string());
        let request = request.body(Body::from(body)).map_err(|error| nonsense(&error))?;
        let answer = match self.client.send(request).await {
            Err(kube::Error::Api(status)) => return Err(ApiRequestError::Refused(status)),
            answer => answer.map_err(|error| ApiRequestError::Unreachable(unreachable(self, &error)))?,
        };
        for warning in answer.headers().get_all(header::WARNING) {
            eprintln!("Warning: {}", warning_text(warning.to_str().unwrap_or_default()));
        }
        let status = answer.status();
        let body = answer.into_body().collect_bytes().await;
        let body = body.map_err(|error| ApiRequestError::Unreachable(unreachable(self, &error)))?;
        if status.is_success() {
            return serde_json::from_slice(&body).map(|value| (status, value)).map_err(|error| nonsense(&error));
        }
        Err(ApiRequestError::Refused(Box::new(serde_json::from_slice(&body).unwrap_or_else(|_| Status {
            code: status.as_u16(),
            message: String::from_utf8_lossy(&body).trim().chars().take(200).collect(),
            reason: status.canonical_reason().unwrap_or_default().to_owned(),
            ..Status::default()
        }))))
    }

    /// Reads one thing.
    pub(super) async fn get(&self, path: &str, query: Query<'_>, accept: &str) -> Result<Value, ApiRequestError> {
        let request = Request::get(uri(path, query)).header(header::ACCEPT, accept);
        self.send(request, Vec::new()).await.map(|(_, value)| value)
    }

    /// Reads a list, page by page: `each` gets every page. The revision that the list is of.
    pub(super) async fn pages(
        &self,
        path: &str,
        query: Query<'_>,
        accept: &str,
        mut each: impl FnMut(Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<String> {
        let limit = PAGE.to_string();
        let mut next = String::new();
        loop {
            let mut all = vec![("limit", limit.as_str()), ("continue", next.as_str())];
            all.extend_from_slice(query);
            let page = self.get(path, &all, accept).await?;
            let text = |field: &str| page["metadata"][field].as_str().unwrap_or_default().to_owned();
            let (revision, more) = (text("resourceVersion"), text("continue"));
            each(page)?;
            if more.is_empty() {
                return Ok(revision);
            }
            next = more;
        }
    }

    /// Creates or changes an object by server-side apply. Whether it is new, and what it is now.
    pub(super) async fn apply(
        &self,
        path: &str,
        query: Query<'_>,
        object: &Value,
    ) -> Result<(bool, Value), ApiRequestError> {
        let request = Request::patch(uri(path, query)).header(header::CONTENT_TYPE, APPLY).header(header::ACCEPT, JSON);
        let (status, value) = self.send(request, object.to_string().into_bytes()).await?;
        Ok((status == StatusCode::CREATED, value))
    }

    /// Creates an object; what it is now.
    pub(super) async fn create(&self, path: &str, query: Query<'_>, object: &Value) -> Result<Value, ApiRequestError> {
        self.write(Method::POST, path, query, object).await
    }

    /// Puts an object in the place of the one with its name; what it is now.
    pub(super) async fn replace(&self, path: &str, query: Query<'_>, object: &Value) -> Result<Value, ApiRequestError> {
        self.write(Method::PUT, path, query, object).await
    }

    async fn write(
        &self,
        method: Method,
        path: &str,
        query: Query<'_>,
        object: &Value,
    ) -> Result<Value, ApiRequestError> {
        let request = Request::builder().method(method).uri(uri(path, query));
        let request = request.header(header::CONTENT_TYPE, JSON).header(header::ACCEPT, JSON);
        self.send(request, object.to_string().into_bytes()).await.map(|(_, value)| value)
    }

    /// Changes a host by a merge patch (RFC 7386); what it is now.
    pub(super) async fn merge(&self, path: &str, patch: &Value) -> Result<Value, ApiRequestError> {
        self.merge_as(path, patch, false).await
    }

    /// The same; with `dry_run` the server only says whether it would, and what the object would be.
    pub(super) async fn merge_as(&self, path: &str, patch: &Value, dry_run: bool) -> Result<Value, ApiRequestError> {
        let dry_run = if dry_run { "All" } else { "" };
        self.patch(path, &[("fieldManager", HOST_MANAGER), ("dryRun", dry_run)], MERGE, patch).await
    }

    /// Changes an object by a patch of this content type; what it is now.
    pub(super) async fn patch(
        &self,
        path: &str,
        query: Query<'_>,
        content_type: &str,
        patch: &Value,
    ) -> Result<Value, ApiRequestError> {
        let request = Request::patch(uri(path, query));
        let request = request.header(header::CONTENT_TYPE, content_type).header(header::ACCEPT, JSON);
        self.send(request, patch.to_string().into_bytes()).await.map(|(_, value)| value)
    }

    /// Deletes one object, or a collection.
    pub(super) async fn delete(&self, path: &str, query: Query<'_>, options: &Value) -> Result<Value, ApiRequestError> {
        let request = Request::builder().method(Method::DELETE).uri(uri(path, query));
        let request = request.header(header::CONTENT_TYPE, JSON).header(header::ACCEPT, JSON);
        self.send(request, options.to_string().into_bytes()).await.map(|(_, value)| value)
    }

    /// Follows changes: events as `{"type": …, "object": …}`. Ends when the server ends it.
    pub(super) async fn watch(
        &self,
        path: &str,
        query: Query<'_>,
        accept: &str,
    ) -> Result<impl Stream<Item = Result<Value, ApiRequestError>> + use<'_>, ApiRequestError> {
        let mut all = vec![("watch", "true"), ("allowWatchBookmarks", "true")];
        all.extend_from_slice(query);
        let request = Request::get(uri(path, &all)).header(header::ACCEPT, accept).body(Vec::new());
        let request = request.map_err(|error| ApiRequestError::Nonsense(error.to_string()))?;
        let body = match self.client.request_stream(request).await {
            Err(kube::Error::Api(status)) => return Err(ApiRequestError::Refused(status)),
            body => body.map_err(|error| ApiRequestError::Unreachable(unreachable(self, &error)))?,
        };
        let lines = Box::pin(body).lines().map_err(|error| ApiRequestError::Unreachable(unreachable(self, &error)));
        Ok(lines.map(|line| {
            let event: Value = serde_json::from_str(&line?).map_err(|e| ApiRequestError::Nonsense(e.to_string()))?;
            if event["type"] == "ERROR" {
                let status = serde_json::from_value(event["object"].clone()).unwrap_or_default();
                return Err(ApiRequestError::Refused(Box::new(status)));
            }
            Ok(event)
        }))
    }

    /// What the server serves.
    pub(super) async fn types(&self) -> Result<ServedTypes, ApiRequestError> {
        let read = async |path: &str| -> Result<APIGroupDiscoveryList, ApiRequestError> {
            let value = self.get(path, &[], ACCEPT_AGGREGATED_DISCOVERY_V2).await?;
            if value["kind"] != "APIGroupDiscoveryList" {
                let reason = format!("{} is no server of Kubernetes 1.27 or newer", self.endpoint);
                return Err(ApiRequestError::Nonsense(reason));
            }
            serde_json::from_value(value).map_err(|error| ApiRequestError::Nonsense(error.to_string()))
        };
        Ok(ServedTypes::new(read("/api").await?, read("/apis").await?))
    }
}

/// The text of a `Warning` header: `299 - "text"`.
fn warning_text(header: &str) -> String {
    let quoted = header.splitn(3, ' ').nth(2).unwrap_or(header).trim();
    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(quoted);
    super::table::harmless(&inner.replace("\\\"", "\"").replace("\\\\", "\\"))
}

/// The body of a deletion.
pub(super) fn delete_options(propagation: &str, dry_run: bool) -> Value {
    let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation});
    if dry_run {
        options["dryRun"] = json!(["All"]);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_encoded_and_warnings_read() {
        assert_eq!(
            uri("/api/v1/secrets", &[("limit", "5"), ("labelSelector", "a in (b,c)"), ("continue", "")]),
            "/api/v1/secrets?limit=5&labelSelector=a+in+%28b%2Cc%29"
        );
        assert_eq!(uri("/version", &[]), "/version");
        assert_eq!(warning_text("299 - \"unknown field \\\"spec.x\\\"\""), "unknown field \"spec.x\"");
    }
}
