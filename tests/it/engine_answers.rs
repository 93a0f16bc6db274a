//! An API server that keeps the objects and answers without end.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures::stream;
use http::{StatusCode, header};
use serde_json::{Value, json};
use slipway::modules;
use tokio::net::TcpListener;

use crate::process::{Appliance, until};

/// More of one answer than a process may keep, in MiB; the test is not to take all memory where it is kept.
const WITHOUT_END: usize = 1024;
/// Most that the process may have of memory, in kB.
const MOST: u64 = 500 << 10;

fn without_end(begin: &'static str) -> Response {
    static MIB: [u8; 1 << 20] = [b'x'; 1 << 20];
    let pieces = std::iter::once(Bytes::from_static(begin.as_bytes()))
        .chain(std::iter::repeat_n(Bytes::from_static(&MIB), WITHOUT_END));
    let body = Body::from_stream(stream::iter(pieces.map(Ok::<_, std::io::Error>)));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// What is served of a group, so that the appliance begins to list and to watch.
fn resources(version: &str) -> Value {
    let kinds = modules::acted_on();
    let of = kinds.iter().filter(|kind| version.starts_with(&format!("{}/", kind.crd.spec.group)));
    let one =
        |name: &str| json!({"name": name, "singularName": "", "namespaced": true, "kind": "Any", "verbs": ["list"]});
    let names: Vec<Value> = of.map(|kind| one(&kind.crd.spec.names.plural)).collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": names})
}

async fn answer(request: Request) -> Response {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    if query.contains("watch=true") {
        return without_end(r#"{"type":"ADDED","object":{"metadata":{"name":""#);
    }
    if query.contains("limit=") {
        return match path.ends_with("/baremetalhosts") {
            true => without_end(r#"{"kind":"List","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":""#),
            false => axum::Json(
                json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}),
            )
            .into_response(),
        };
    }
    match path.strip_prefix("/apis/") {
        Some(version) if version.split('/').count() == 2 => axum::Json(resources(version)).into_response(),
        _ => (StatusCode::NOT_FOUND, "").into_response(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_end_takes_no_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = axum::serve(listener, Router::new().fallback(answer));
    tokio::spawn(async move { server.await.unwrap() });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": endpoint}}], "users": [{"name": "it", "user": {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}]});
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let mut appliance =
        Appliance::with_data(folder.path().join("data"), &format!("[engine]\nkubeconfig = {file:?}\n")).await;
    let peak = |pid: u32| -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = text.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let pid = appliance.pid();
    until("both are broken off", async || {
        assert!(peak(pid) < MOST, "{} kB", peak(pid));
        let log = appliance.log();
        let said = ["the answer has more than 32 MiB", "an event of the watch has more than 4 MiB"];
        said.iter().all(|words| log.contains(words)).then_some(())
    })
    .await;
    assert!(appliance.runs());
    assert!(peak(pid) < MOST, "{} kB", peak(pid));
}
