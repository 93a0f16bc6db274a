//! `GET …/baremetalhosts/NAME/log`: the log of a host's boot, as `kubectl get --raw` and `slipway host log` read it.
//!
//! Parameters are those of a pod's log where they mean the same: `follow`, `previous`, `tailLines`; `boot=N` names a boot
//! by its generation, `list=true` gives the boots there are.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use http::{StatusCode, header};

use super::Logs;
use crate::apiserver::{ApiError, ObjectView, ViewRequest};
use crate::host::directory::boot_index_feeder::Intents;
use crate::host::logs;
use crate::log::escaped_lines;

/// How often a followed log is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// What is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct LogQuery {
    boot: Option<i64>,
    previous: bool,
    follow: bool,
    list: bool,
    tail: Option<usize>,
}

impl LogQuery {
    fn parse(query: &str) -> Result<Self, String> {
        let mut wanted = Self::default();
        let number = |key: &str, value: &str| format!("{key}: {value:?} is not a number");
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let flag = || !(value == "0" || value.eq_ignore_ascii_case("false"));
            match key.as_ref() {
                "boot" => wanted.boot = Some(value.parse().map_err(|_| number("boot", &value))?),
                "tailLines" => wanted.tail = Some(value.parse().map_err(|_| number("tailLines", &value))?),
                "previous" => wanted.previous = flag(),
                "follow" => wanted.follow = flag(),
                "list" => wanted.list = flag(),
                _ => {}
            }
        }
        Ok(wanted)
    }
}

/// The view, for the API server. Follows boots through `intents`.
pub fn view(logs: Logs, intents: Intents) -> ObjectView {
    Arc::new(move |request| {
        let (logs, intents) = (logs.clone(), intents.clone());
        Box::pin(async move { answer(logs, intents, request).await })
    })
}

async fn answer(logs: Logs, intents: Intents, request: ViewRequest) -> Result<Response, ApiError> {
    let ViewRequest { namespace, name, query } = request;
    let wanted = LogQuery::parse(&query).map_err(ApiError::bad_request)?;
    let boots = {
        let (logs, namespace, name) = (logs.clone(), namespace.clone(), name.clone());
        blocking(move || logs.boots(&namespace, &name)).await?
    };
    if wanted.list {
        let lines: String = boots.iter().map(|boot| format!("{} {}\n", boot.generation, boot.size)).collect();
        return Ok(text(Body::from(lines)));
    }
    let chosen = match wanted.boot {
        Some(generation) => boots.iter().find(|boot| boot.generation == generation),
        None => boots.get(usize::from(wanted.previous)),
    };
    let Some(boot) = chosen.map(|boot| boot.generation) else {
        let known: Vec<String> = boots.iter().map(|boot| boot.generation.to_string()).collect();
        let message = if known.is_empty() {
            format!("host {name} has no log yet: its machine did not boot the ramdisk, or reported nothing from it")
        } else {
            format!("host {name} has no log of that boot; it has those of the boots {}", known.join(", "))
        };
        return Err(ApiError::new(StatusCode::NOT_FOUND, "NotFound", message));
    };
    let mut source = FollowedLog { logs, intents, namespace, name, boot, at: 0 };
    let first = source.more().await?;
    let shown = wanted.tail.map_or(&first[..], |lines| logs::tail(&first, lines)).to_vec();
    if !wanted.follow {
        return Ok(text(Body::from(shown)));
    }
    let rest = stream::unfold(source, |mut source| async move {
        let piece = source.wait().await?;
        Some((piece, source))
    });
    let whole = futures::StreamExt::chain(stream::iter([Ok(Bytes::from(shown))]), rest);
    Ok(text(Body::from_stream(whole)))
}

fn text(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::CACHE_CONTROL, "no-store")], body).into_response()
}

/// A log that is read on.
struct FollowedLog {
    logs: Logs,
    intents: Intents,
    namespace: String,
    name: String,
    boot: i64,
    at: u64,
}

impl FollowedLog {
    /// What has come since.
    async fn more(&mut self) -> Result<Vec<u8>, ApiError> {
        let (logs, namespace, name) = (self.logs.clone(), self.namespace.clone(), self.name.clone());
        let (boot, at) = (self.boot, self.at);
        let read = move || {
            let (from, text) = logs.read(&namespace, &name, boot, at)?.unwrap_or_default();
            // It may have been stored before it was escaped when it came.
            Ok((from + text.len() as u64, escaped_lines(&text)))
        };
        let (end, text) = blocking(read).await?;
        self.at = end;
        Ok(text)
    }

    /// The next piece; `None` when the boot is over and everything was read.
    async fn wait(&mut self) -> Option<Result<Bytes, ApiError>> {
        let mut intent = self.intents.follow(&self.namespace, &self.name);
        loop {
            let now = intent.borrow_and_update().clone();
            let over = now.is_none_or(|intent| intent.spec.generation != self.boot);
            match self.more().await {
                Ok(text) if text.is_empty() && over => return None,
                Ok(text) if text.is_empty() => {}
                Ok(text) => return Some(Ok(text.into())),
                Err(error) => return Some(Err(error)),
            }
            // A change of the intent is no reason to wait longer, nor one to look more often.
            tokio::time::sleep(LOOK).await;
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other).and_then(|done| done);
    done.map_err(|error| ApiError::internal(format!("the log cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use futures::AsyncReadExt;
    use kube::Api;
    use kube::api::PostParams;
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::api::metal3::BareMetalHost;
    use crate::apiserver::ApiServer;
    use crate::modules::kinds;
    use crate::store::{Store, StoreOptions};

    #[tokio::test]
    async fn a_log_is_read_through_the_api_by_boot_by_line_and_as_it_grows() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = StoreOptions { path: folder.path().join("db"), key_file: folder.path().join("key"), history: 10 };
        let store = Store::open(options).expect("opens");
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(store, &kinds(), shutdown.clone()).await.expect("a server");
        let logs = Logs::new(folder.path().join("logs"));
        api.add_view("metal3.io/baremetalhosts", "log", view(logs.clone(), Intents::default()));
        let client = api.client();
        let hosts = Api::<BareMetalHost>::namespaced(client.clone(), "default");
        hosts.create(&PostParams::default(), &BareMetalHost::new("h", Default::default())).await.expect("created");
        let base = "/apis/metal3.io/v1alpha1/namespaces/default/baremetalhosts";
        let request = |method: &str, path: &str| {
            http::Request::builder().method(method).uri(format!("{base}/{path}")).body(Vec::new()).expect("a request")
        };
        let read = async |path: &str| client.request_text(request("GET", path)).await;
        let refused = async |method: &str, path: &str| match client.request_text(request(method, path)).await {
            Err(kube::Error::Api(status)) => (status.code, status.message),
            other => panic!("{path}: {other:?}"),
        };
        let (code, message) = refused("GET", "h/log").await;
        assert!(code == 404 && message.contains("has no log yet"), "{message}");
        for (generation, text) in [(3, "old\n"), (4, "one\ntwo\n")] {
            logs.append("default", "h", generation, text.as_bytes()).expect("written");
        }
        logs.append("default", "h", 2, b"\x1b]0;x\x07\ta\xe2\x80\xaeb\n\xff\n").expect("written");
        for (query, wanted) in [
            ("", "one\ntwo\n"),
            ("?tailLines=1", "two\n"),
            ("?previous=true", "old\n"),
            ("?boot=3", "old\n"),
            ("?list=true", "4 8\n3 4\n2 15\n"),
            // The boot is over: what is there is all.
            ("?follow=true", "one\ntwo\n"),
            // Of an earlier version, which kept what came.
            ("?boot=2", "\\u001b]0;x\\u0007\ta\\u202eb\n\u{fffd}\n"),
        ] {
            assert_eq!(read(&format!("h/log{query}")).await.expect("read"), wanted, "{query}");
        }
        for (method, path, code) in [
            ("GET", "h/log?boot=9", 404),
            ("GET", "h/log?boot=x", 400),
            ("GET", "nobody/log", 404),
            ("GET", "h/console", 404),
            ("PUT", "h/log", 405),
        ] {
            assert_eq!(refused(method, path).await.0, code, "{method} {path}");
        }
        // Listed as a pod's log is: in the old form and in the one that kubectl asks for.
        let listed = http::Request::get("/apis/metal3.io/v1alpha1").body(Vec::new()).expect("a request");
        let listed: Value = client.request(listed).await.expect("read");
        let log = listed["resources"].as_array().expect("a list").iter().find(|r| r["name"] == "baremetalhosts/log");
        let wanted = json!({ "name": "baremetalhosts/log", "singularName": "", "namespaced": true,
            "kind": "BareMetalHost", "verbs": ["get"] });
        assert_eq!(log, Some(&wanted));
        let kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let listed = http::Request::get("/apis").header("accept", kind).body(Vec::new()).expect("a request");
        let listed: Value = client.request(listed).await.expect("read");
        let groups = listed["items"].as_array().expect("a list");
        let metal3 = groups.iter().find(|group| group["metadata"]["name"] == "metal3.io").expect("the group");
        let hosts = metal3["versions"][0]["resources"].as_array().expect("a list");
        let hosts = hosts.iter().find(|resource| resource["resource"] == "baremetalhosts").expect("the hosts");
        let log = hosts["subresources"].as_array().expect("a list").iter().find(|sub| sub["subresource"] == "log");
        assert_eq!(log.map(|log| &log["verbs"]), Some(&json!(["get"])));
        let mut followed = Vec::new();
        let stream = client.request_stream(request("GET", "h/log?follow=true")).await.expect("a stream");
        Box::pin(stream).read_to_end(&mut followed).await.expect("read");
        assert_eq!(followed, b"one\ntwo\n");
        shutdown.cancel();
    }
}
