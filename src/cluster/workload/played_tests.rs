//! A cluster's API server as a test plays it: objects by their paths, as JSON.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// The API server. Cheap to clone.
#[derive(Clone, Default)]
pub struct Played(Arc<Mutex<State>>);

/// What is behind it.
#[derive(Default)]
struct State {
    /// Objects by path: `/api/v1/nodes/web-1`.
    objects: BTreeMap<String, Value>,
    revision: u64,
    /// Why nothing is answered.
    silent: Option<&'static str>,
    /// Whether evictions are refused, as a disruption budget does.
    kept: bool,
    requests: Vec<String>,
}

impl Played {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        let played = self.clone();
        let answer = move |request: Request<Body>| {
            let played = played.clone();
            async move { played.answer(request).await }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    /// Puts an object at its path.
    pub fn put(&self, path: &str, mut object: Value) {
        let mut state = self.state();
        state.revision += 1;
        object["metadata"]["resourceVersion"] = state.revision.to_string().into();
        state.objects.insert(path.to_owned(), object);
    }

    /// The object at a path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.state().objects.get(path).cloned()
    }

    /// Paths of objects that begin so.
    pub fn paths(&self, front: &str) -> Vec<String> {
        self.state().objects.keys().filter(|path| path.starts_with(front)).cloned().collect()
    }

    /// Takes an object away.
    pub fn remove(&self, path: &str) {
        self.state().objects.remove(path);
    }

    /// From now on nothing is answered, or all is again.
    pub fn fall_silent(&self, reason: Option<&'static str>) {
        self.state().silent = reason;
    }

    /// From now on pods cannot be evicted, or can be.
    pub fn keep_pods(&self, kept: bool) {
        self.state().kept = kept;
    }

    /// What was asked of it: method and path.
    pub fn requests(&self) -> Vec<String> {
        self.state().requests.clone()
    }

    /// A node that is ready.
    pub fn node(&self, name: &str, provider_id: &str) {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {}},
            "spec": {"providerID": provider_id,
                "taints": [{"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]},
        });
        self.put(&format!("/api/v1/nodes/{name}"), node);
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default().to_owned());
        let mut state = self.state();
        state.requests.push(format!("{} {path}", head.method));
        if let Some(reason) = state.silent {
            return Err(reason.into());
        }
        let (status, answer) = state.respond(&head.method, &path, &query, body);
        let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
        *response.status_mut() = status;
        Ok::<_, Infallible>(response).map_err(Into::into)
    }
}

fn failure(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason,
        "reason": reason, "code": code.as_u16()});
    (code, status)
}

impl State {
    fn respond(&mut self, method: &Method, path: &str, query: &str, body: Value) -> (StatusCode, Value) {
        if path == "/version" {
            let version = json!({"major": "1", "minor": "35", "gitVersion": "v1.35.0", "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": ""});
            return (StatusCode::OK, version);
        }
        if let Some(pod) = path.strip_suffix("/eviction") {
            if self.kept {
                return failure(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests");
            }
            return match self.objects.remove(pod) {
                Some(_) => (StatusCode::CREATED, json!({"kind": "Status", "status": "Success"})),
                None => failure(StatusCode::NOT_FOUND, "NotFound"),
            };
        }
        let known = self.objects.get(path).cloned();
        match (method, known) {
            (&Method::GET, Some(object)) => (StatusCode::OK, object),
            (&Method::GET, None) if is_list(path) => (StatusCode::OK, self.list(path, query)),
            (&Method::PATCH, Some(mut object)) => {
                let wanted = &body["metadata"]["resourceVersion"];
                if wanted.is_string() && *wanted != object["metadata"]["resourceVersion"] {
                    return failure(StatusCode::CONFLICT, "Conflict");
                }
                json_patch::merge(&mut object, &body);
                self.revision += 1;
                object["metadata"]["resourceVersion"] = self.revision.to_string().into();
                self.objects.insert(path.to_owned(), object.clone());
                (StatusCode::OK, object)
            }
            (&Method::PATCH, None) if query.contains("fieldManager") && query.contains("force=true") => {
                // Server-side apply makes what is not there.
                self.revision += 1;
                let mut object = body;
                object["metadata"]["resourceVersion"] = self.revision.to_string().into();
                self.objects.insert(path.to_owned(), object.clone());
                (StatusCode::CREATED, object)
            }
            (&Method::DELETE, Some(object)) => {
                self.objects.remove(path);
                (StatusCode::OK, object)
            }
            (&Method::POST, None) => {
                let mut object = body;
                self.revision += 1;
                object["metadata"]["resourceVersion"] = self.revision.to_string().into();
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                self.objects.insert(format!("{path}/{name}"), object.clone());
                (StatusCode::CREATED, object)
            }
            _ => failure(StatusCode::NOT_FOUND, "NotFound"),
        }
    }

    /// All of a kind: what a field selector says of a pod's node counts.
    fn list(&self, path: &str, query: &str) -> Value {
        let kind = path.rsplit('/').next().unwrap_or_default();
        let below = format!("/{kind}/");
        let node = form_urlencoded::parse(query.as_bytes())
            .find(|(key, _)| key == "fieldSelector")
            .and_then(|(_, value)| Some(value.strip_prefix("spec.nodeName=")?.to_owned()));
        let items: Vec<&Value> = self
            .objects
            .iter()
            .filter(|(path, _)| path.contains(&below))
            .map(|(_, object)| object)
            .filter(|object| node.as_ref().is_none_or(|node| object["spec"]["nodeName"] == **node))
            .collect();
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
    }
}

fn is_list(path: &str) -> bool {
    let kinds = ["nodes", "pods", "volumeattachments", "configmaps", "secrets", "jobs", "workloadlocks"];
    kinds.iter().any(|kind| path.ends_with(kind))
}
