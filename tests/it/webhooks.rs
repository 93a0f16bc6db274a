//! Webhooks of the API with the whole program: none is called before the operator has allowed it, and a reload is enough.

use std::fs;
use std::sync::Arc;

use axum::routing::post;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, PostParams};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::process::{Appliance, until};

/// What the webhook answers: it labels what it is asked about.
async fn label(Json(review): Json<Value>) -> Json<Value> {
    let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]);
    Json(json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {
            "uid": review["request"]["uid"], "allowed": true,
            "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string()),
        },
    }))
}

/// A webhook on loopback: its port, and its certificate as `caBundle`.
async fn webhook() -> (u16, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new().route("/label", post(label));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, router) = (acceptor.clone(), router.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await.ok();
            });
        }
    });
    (port, STANDARD.encode(made.cert.pem()))
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

#[tokio::test]
async fn a_webhook_is_asked_once_a_reload_has_allowed_it() {
    slipway::appliance::install_tls_provider();
    let (port, bundle) = webhook().await;
    let appliance = Appliance::new().await;
    let client = appliance.client().await;
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": {"name": "m"},
        "webhooks": [{
            "name": "label.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/label"), "caBundle": bundle},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        }],
    });
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let request = http::Request::post(path).header("content-type", "application/json");
    client.request::<Value>(request.body(configuration.to_string().into_bytes()).unwrap()).await.unwrap();

    let maps = Api::<ConfigMap>::default_namespaced(client.clone());
    let refused = maps.create(&PostParams::default(), &map("before")).await.unwrap_err().to_string();
    assert!(refused.contains("failed calling webhook") && refused.contains("api.webhooks.allow"), "{refused}");
    assert!(maps.get_opt("before").await.unwrap().is_none());

    let file = appliance.folder().join("slipway.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}\n[api.webhooks]\nallow = [\"127.0.0.1:{port}\"]\n")).unwrap();
    appliance.signal(Signal::SIGHUP);
    let made =
        until("the webhook is asked", async || maps.create(&PostParams::default(), &map("after")).await.ok()).await;
    assert_eq!(made.metadata.labels.unwrap_or_default()["seen"], "yes");

    // Its configuration can be taken away whatever becomes of it.
    let request = http::Request::delete(format!("{path}/m")).body(Vec::new()).unwrap();
    client.request::<Value>(request).await.unwrap();
    let plain = until("it is asked no more", async || {
        let made = maps.create(&PostParams::default(), &map("plain")).await.unwrap();
        if made.metadata.labels.is_none() {
            return Some(made);
        }
        maps.delete("plain", &DeleteParams::default()).await.unwrap();
        None
    })
    .await;
    assert!(plain.metadata.labels.is_none());
}
