//! The router as clients see it, in this process.

mod access_rules;
mod apply_rules;
mod audit_shares;
mod client;
mod conversion_rules;
mod crd_bounds;
mod crd_claims;
mod crd_compiling;
mod crd_extended;
mod crd_rules;
mod crd_validation;
mod delete_rules;
mod hook_server;
mod hostile;
mod listener;
mod load_rules;
mod long_work;
mod model;
mod observed;
mod protobuf_rules;
mod read_rules;
mod refused_rules;
mod rights_rules;
mod sealed_rules;
mod selecting;
mod slow_answers;
mod sweep_rules;
mod token_rules;
mod unreadable;
mod version_rules;
mod watch_rules;
mod webhook_bounds;
mod webhook_rules;
mod write_rules;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::objects::versions;
use super::requests::{body, protobuf};
use super::shares::{inflight, response_memory};
use super::*;
use crate::store::{Expect, Mutation, Store, StoreOptions};

/// Nothing that a test waits for takes longer.
const DEADLINE: Duration = Duration::from_secs(60);
const HOSTS: &str = "/apis/metal3.io/v1alpha1/namespaces/rack/baremetalhosts";
const SECRETS: &str = "/api/v1/namespaces/rack/secrets";
const MERGE: &str = "application/merge-patch+json";

struct Rig {
    api: ApiServer,
    _folder: tempfile::TempDir,
}

struct Answer {
    code: u16,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    #[track_caller]
    fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.text);
        self.json()
    }
}

fn admin() -> Option<UserIdentity> {
    Some(UserIdentity::new("root", vec![auth::ADMIN_GROUP.into()], auth::Proof::Certificate))
}

impl Rig {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options =
            StoreOptions { path: folder.path().join("db"), key_file: folder.path().join("key"), history: 100 };
        let store = Store::open(options).unwrap();
        let api = ApiServer::new(store, &crate::modules::kinds(), CancellationToken::new()).await.unwrap();
        api.make_namespace("rack").await.unwrap();
        Self { api, _folder: folder }
    }

    /// Ends the server and starts another one on its data.
    async fn restart(&mut self) {
        self.api.shutdown().cancel();
        self.api.store().close().await;
        let folder = self._folder.path();
        let options = StoreOptions { path: folder.join("db"), key_file: folder.join("key"), history: 100 };
        let store = Store::open(options).unwrap();
        self.api = ApiServer::new(store, &crate::modules::kinds(), CancellationToken::new()).await.unwrap();
    }

    async fn send(
        &self,
        identity: Option<UserIdentity>,
        request: http::request::Builder,
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = request.body(body.into()).unwrap();
        if let Some(identity) = identity {
            request.extensions_mut().insert(identity);
        }
        let response = self.api.router().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(DEADLINE, body.collect()).await.unwrap().unwrap().to_bytes();
        Answer {
            code: parts.status.as_u16(),
            headers: parts.headers,
            text: String::from_utf8_lossy(&body).into_owned(),
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(admin(), http::Request::get(path), Body::empty()).await
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.send(admin(), http::Request::builder().method(method).uri(path), body.to_string()).await
    }

    async fn patch(&self, path: &str, content_type: &str, body: &Value) -> Answer {
        let request = http::Request::patch(path).header("content-type", content_type);
        self.send(admin(), request, body.to_string()).await
    }
}

fn host(name: &str) -> Value {
    json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
        "metadata": {"name": name}, "spec": {"online": true},
    })
}

fn secret(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})
}

fn path(collection: &str, name: &str) -> String {
    format!("{collection}/{name}")
}

/// Waits until a condition holds.
async fn eventually(mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("it did not come about");
}
