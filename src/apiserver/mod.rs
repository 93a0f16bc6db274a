//! The Kubernetes-shaped REST API over the store: what kubectl and every Kubernetes client library talk to.
//!
//! A request goes through: [`tls`] (who is it), [`request`] (what does it want), [`auth`] (may it), then one of
//! `read`, `watch`, `write`, `delete`, or `discovery` and `openapi`. What there is to serve is one table, the
//! [`registry`]; a new kind needs nothing here, and `crd` makes a new table when a kind is defined at run time.
//! `sweep` does what nobody asks for: garbage collection, the end of namespaces, forgetting events.
//!
//! The same router serves the network and, without a socket, this process ([`ApiServer::client`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;

use crate::api::{Keep, Kind};
use crate::store::{Change, Expect, Store, WriteError};

pub mod audit;
pub mod auth;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod health;
pub mod registry;
mod resource;
pub mod tls;

mod apply;
mod aside;
mod backup;
mod body;
mod built_in;
mod columns;
mod connections;
mod core_kinds;
mod core_schemas;
mod crd;
mod delete;
mod dependents;
mod discovery;
mod events;
mod garbage;
mod guarded;
mod held;
mod holdings;
mod indent;
mod items;
mod lines;
mod linger;
mod list;
mod meta;
pub mod metrics;
mod names;
mod of_definition;
mod openapi;
mod options;
mod overload;
mod ownership;
mod patch;
mod pick;
mod progress;
mod protobuf;
mod read;
mod request;
mod scale;
mod schema;
mod selectors;
mod shape;
mod shares;
mod status;
mod strategic;
mod sweep;
mod table;
mod text;
mod versions;
mod watch;
mod weight;
mod write;
mod yaml;

#[cfg(test)]
mod tests;

pub use auth::Identity;
pub use built_in::registry;
pub(crate) use columns::age;
pub(crate) use names::subdomain;
pub use of_definition::RegistryError;
pub use registry::Registry;
pub use request::Target;
pub use resource::Resource;
pub use status::{ApiError, FieldError, FieldFault};

use request::{Form, Params, Route};

/// Seconds that events are kept unless [`ApiServer::keep_events`] says otherwise, as upstream.
const EVENT_SECONDS: i64 = 3600;

/// A request that is no watch is answered within this time, as upstream's `--request-timeout`.
const REQUEST_MAX: Duration = Duration::from_secs(60);

/// What is being done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is new.
    Create,
    /// It changes.
    Update,
    /// It is to go.
    Delete,
}

/// A change that a room may refuse.
#[derive(Debug)]
pub struct AdmissionRequest<'r> {
    /// What kind of object.
    pub resource: &'r Resource,
    /// What is being done.
    pub operation: Operation,
    /// Whether only the status changes.
    pub status: bool,
    /// The new object, complete; for a deletion the one that is to go.
    pub object: &'r Value,
    /// Its former self; `None` for a creation.
    pub old: Option<&'r Value>,
    /// Who asks.
    pub identity: &'r Identity,
}

/// Rules of a room for a kind: what is wrong with the change. Called under no lock, possibly many times at once.
pub type Admission = Arc<dyn Fn(&AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> + Send + Sync>;

/// Who asks for a room's view of an object, see [`ApiServer::add_view`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewRequest {
    /// Namespace of the object, empty when it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The query, as it came.
    pub query: String,
}

/// Answers `GET …/NAME/VIEW`, a subresource that can only be read. The object is there, and the caller may read the view.
pub type View = Arc<dyn Fn(ViewRequest) -> BoxFuture<'static, Result<Response, ApiError>> + Send + Sync>;

/// Answers a path beside the API that is for administrators only, see [`ApiServer::set_backup`].
pub type AdministratorsPage = Arc<dyn Fn() -> BoxFuture<'static, Result<Response, ApiError>> + Send + Sync>;

/// The server cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ApiServerError {
    /// A kind is defined wrongly.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Tokens cannot be signed.
    #[error(transparent)]
    TokenKey(#[from] auth::KeyError),
    /// The default roles cannot be written.
    #[error("cannot write the default roles: {0}")]
    Roles(WriteError),
    /// The definitions of the built-in kinds cannot be written.
    #[error("cannot write the definitions of the built-in kinds: {0}")]
    Definitions(WriteError),
    /// The permanent namespaces cannot be written.
    #[error("cannot create namespace {name}: {source}")]
    Namespace {
        /// Its name.
        name: &'static str,
        /// Why.
        source: WriteError,
    },
}

/// The API server. Cheap to clone.
#[derive(Clone)]
pub struct ApiServer {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    auth: auth::Auth,
    audit: OnceLock<audit::Audit>,
    backup: OnceLock<AdministratorsPage>,
    // std's lock: held to take or to exchange the pointers only.
    offer: RwLock<Offer>,
    /// Kinds defined at run time, as they were last compiled. Held while definitions are settled.
    definitions: tokio::sync::Mutex<crd::Compiled>,
    // std's lock: held for a look-up only.
    admissions: RwLock<HashMap<String, Vec<Admission>>>,
    /// Of these resources, the views with these names.
    // std's lock: held for a look-up only.
    views: RwLock<HashMap<(String, String), View>>,
    /// Read by creations, written by the end of a namespace.
    namespace_gate: tokio::sync::RwLock<()>,
    sweeper: tokio::sync::Notify,
    dependents: dependents::Dependents,
    shutdown: CancellationToken,
    /// Seconds that an event is kept after it was last seen.
    event_seconds: AtomicI64,
    checks: health::Checks,
    metrics: metrics::Metrics,
    places: overload::Places,
    answers: held::Answers,
}

/// What is served now, and its documentation.
#[derive(Clone)]
struct Offer {
    registry: Arc<Registry>,
    documents: Arc<openapi::Documents>,
}

impl ApiServer {
    /// A server for these kinds and the core kinds. Watches end when `shutdown` is cancelled.
    ///
    /// # Errors
    ///
    /// [`ApiServerError`] when a kind is defined wrongly or the store refuses to write.
    pub async fn new(store: Store, kinds: &[Kind], shutdown: CancellationToken) -> Result<Self, ApiServerError> {
        Self::with_auth(store, kinds, auth::AuthOptions::default(), shutdown).await
    }

    /// As [`ApiServer::new`], with a key for tokens that outlives the process.
    ///
    /// # Errors
    ///
    /// As [`ApiServer::new`].
    pub async fn with_auth(
        store: Store,
        kinds: &[Kind],
        auth: auth::AuthOptions,
        shutdown: CancellationToken,
    ) -> Result<Self, ApiServerError> {
        let registry = Arc::new(built_in::registry(kinds)?);
        let documents = Arc::new(openapi::Documents::new(&registry, None));
        let server = Self {
            inner: Arc::new(Inner {
                answers: held::Answers::over(&store),
                auth: auth::Auth::new(&store, auth)?,
                audit: OnceLock::new(),
                backup: OnceLock::new(),
                store,
                offer: RwLock::new(Offer { registry, documents }),
                definitions: tokio::sync::Mutex::default(),
                admissions: RwLock::default(),
                views: RwLock::default(),
                namespace_gate: tokio::sync::RwLock::default(),
                sweeper: tokio::sync::Notify::new(),
                dependents: dependents::Dependents::default(),
                shutdown,
                event_seconds: AtomicI64::new(EVENT_SECONDS),
                checks: health::Checks::default(),
                metrics: metrics::Metrics::default(),
                places: overload::Places::default(),
            }),
        };
        // Nobody has looked yet.
        server.dependents().look_at_everything();
        server.add_own_checks();
        let answers = server.inner.answers.clone();
        server.add_metrics(Arc::new(move |registry| answers.register(registry)));
        for name in delete::PERMANENT_NAMESPACES {
            server.make_namespace(name).await.map_err(|source| ApiServerError::Namespace { name, source })?;
        }
        server.make_default_roles().await.map_err(ApiServerError::Roles)?;
        server.install_definitions(kinds).await.map_err(ApiServerError::Definitions)?;
        Ok(server)
    }

    /// Writes a namespace unless it is there.
    async fn make_namespace(&self, name: &str) -> Result<(), WriteError> {
        let value = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "uid": uuid::Uuid::new_v4().to_string(),
                "creationTimestamp": meta::now(),
                "labels": {"kubernetes.io/metadata.name": name},
            },
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        });
        let change = Change {
            resource: "/namespaces".into(),
            namespace: String::new(),
            name: name.to_owned(),
            expect: Expect::Absent,
            value: Some(value),
        };
        match self.store().write(change).await {
            Ok(_) | Err(WriteError::Exists) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Says how long events are kept after they were last seen; an hour otherwise.
    pub fn keep_events(&self, lifetime: Duration) {
        let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        self.inner.event_seconds.store(seconds, Ordering::Relaxed);
    }

    fn event_lifetime(&self) -> jiff::SignedDuration {
        jiff::SignedDuration::from_secs(self.inner.event_seconds.load(Ordering::Relaxed))
    }

    /// Adds a check to `/healthz`, `/livez` and `/readyz`, or to the last of them only.
    pub fn add_check(&self, name: &'static str, scope: health::Scope, check: health::Check) {
        self.inner.checks.add(name, scope, check);
    }

    fn add_own_checks(&self) {
        self.add_check("ping", health::Scope::Life, Arc::new(|| Ok(())));
        let store = self.store().clone();
        let writable = move || store.writable().map_err(|error| error.to_string());
        self.add_check("store", health::Scope::Life, Arc::new(writable));
        let shutdown = self.shutdown().clone();
        let stays = move || if shutdown.is_cancelled() { Err("process is shutting down".to_owned()) } else { Ok(()) };
        self.add_check("shutdown", health::Scope::Readiness, Arc::new(stays));
    }

    /// Writes a line for every change, reading of Secrets and failed login from now on. A second log is not taken.
    pub fn set_audit(&self, audit: audit::Audit) {
        self.inner.audit.set(audit).ok();
    }

    /// Serves backups from now on, to administrators only. A second page is not taken.
    pub fn set_backup(&self, page: AdministratorsPage) {
        self.inner.backup.set(page).ok();
    }

    /// Adds a room's rules for a resource, named `<group>/<plural>`.
    pub fn add_admission(&self, resource: &str, admission: Admission) {
        let mut all = self.inner.admissions.write().unwrap_or_else(PoisonError::into_inner);
        all.entry(resource.to_owned()).or_default().push(admission);
    }

    /// Adds what a room counts to `/metrics`.
    pub fn add_metrics(&self, meters: metrics::Meters) {
        self.inner.metrics.add(meters);
    }

    /// Adds a subresource that can only be read to a resource named `<group>/<plural>`. Who may read it is a matter of
    /// roles, as for any subresource.
    pub fn add_view(&self, resource: &str, name: &str, view: View) {
        let mut all = self.inner.views.write().unwrap_or_else(PoisonError::into_inner);
        all.insert((resource.to_owned(), name.to_owned()), view);
    }

    /// Names of a resource's views, in order.
    fn views(&self, resource: &Resource) -> Vec<String> {
        let all = self.inner.views.read().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<_> =
            all.keys().filter(|(of, _)| **of == *resource.storage).map(|(_, name)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    fn view(&self, resource: &Resource, name: &str) -> Option<View> {
        let all = self.inner.views.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&(resource.storage.to_string(), name.to_owned())).cloned()
    }

    /// Everything under `/`: the API, discovery, OpenAPI, version and health.
    pub fn router(&self) -> Router {
        let noted = tower::util::MapResponseLayer::new(weight::noted::<Body>);
        Router::new().fallback(dispatch).with_state(self.clone()).layer(noted).layer(items::compression()).layer(
            CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
                ApiError::internal("the request could not be served because of a fault in the server").into_response()
            }),
        )
    }

    /// A client on the router in this process, with all rights. To be called inside a tokio runtime.
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.router().layer(axum::Extension(Identity::in_process())), "default")
    }

    /// What is served now.
    pub fn registry(&self) -> Arc<Registry> {
        self.offer().registry
    }

    fn offer(&self) -> Offer {
        self.inner.offer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_registry(&self, registry: Registry) {
        let registry = Arc::new(registry);
        let documents = Arc::new(openapi::Documents::new(&registry, Some(&self.offer().documents)));
        *self.inner.offer.write().unwrap_or_else(PoisonError::into_inner) = Offer { registry, documents };
    }

    fn store(&self) -> &Store {
        &self.inner.store
    }

    fn auth(&self) -> &auth::Auth {
        &self.inner.auth
    }

    fn shutdown(&self) -> &CancellationToken {
        &self.inner.shutdown
    }

    fn namespace_gate(&self) -> &tokio::sync::RwLock<()> {
        &self.inner.namespace_gate
    }

    fn dependents(&self) -> &dependents::Dependents {
        &self.inner.dependents
    }

    fn wake_sweeper(&self) {
        self.inner.sweeper.notify_one();
    }

    async fn sweeper_woken(&self) {
        self.inner.sweeper.notified().await;
    }

    /// Whether rooms have rules for a resource.
    fn has_admission(&self, resource: &Resource) -> bool {
        self.inner.admissions.read().unwrap_or_else(PoisonError::into_inner).contains_key(&*resource.storage)
    }

    fn admit(&self, request: &AdmissionRequest<'_>) -> Vec<FieldError> {
        let rules = {
            let all = self.inner.admissions.read().unwrap_or_else(PoisonError::into_inner);
            all.get(&*request.resource.storage).cloned().unwrap_or_default()
        };
        rules.iter().filter_map(|rule| rule(request).err()).flatten().collect()
    }
}

/// Bytes of a stored object's text that count as one value, while nobody has counted them.
const VALUE_BYTES: usize = 10;

/// The message of a 405.
const NOT_ALLOWED: &str = "the server does not allow this method on the requested resource";

/// One request about a resource.
struct Call<'c> {
    api: &'c ApiServer,
    resource: &'c Arc<Resource>,
    target: &'c Target,
    params: &'c Params,
    identity: &'c Identity,
    headers: &'c HeaderMap,
    form: Form,
    text: text::Text,
}

impl Call<'_> {
    fn name(&self) -> Result<&str, ApiError> {
        self.target.name.as_deref().ok_or_else(|| ApiError::method_not_allowed(NOT_ALLOWED))
    }

    /// Whether a write may take long on an object of this size: what is large, and what has rules of users.
    fn is_long(&self, live: usize) -> bool {
        if self.identity.is_in_process() {
            return false;
        }
        let length =
            self.headers.get(http::header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        // Who does not say how much it sends may send much.
        let given: usize = length.unwrap_or(usize::MAX);
        given.max(live) >= aside::LONG_FROM || self.resource.schema.has_rules()
    }

    /// Clients may not write what only Slipway's own rooms write.
    fn require_writable(&self) -> Result<(), ApiError> {
        if self.resource.keep != Keep::Durable && !self.identity.is_in_process() {
            return Err(self.read_only());
        }
        Ok(())
    }

    fn read_only(&self) -> ApiError {
        ApiError::method_not_allowed(format!("{} are written by Slipway itself", self.resource.qualified()))
            .about(self.resource, self.target.name.as_deref().unwrap_or_default())
    }
}

/// Answers every request.
async fn dispatch(State(api): State<ApiServer>, request: Request) -> Response {
    let started = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let identity = api.auth().identify(request.extensions().get::<Identity>(), request.headers());
    if let (Ok(Some(_)), Some(standing)) = (&identity, request.extensions().get::<tls::Standing>()) {
        standing.vouch();
    }
    let route = Route::parse(&path);
    let asks = request.uri().query().is_some_and(request::asks_to_watch);
    let watches = method == Method::GET
        && matches!(&route, Route::Resource(target) if target.watch || (asks && target.name.is_none()));
    let about = metrics::About::of(&api.registry(), &route, &method, watches);
    let may_leave_body = request.version() < http::Version::HTTP_2 && !matches!(method, Method::GET | Method::HEAD);
    let mut response = match &identity {
        Ok(identity) => {
            let answer = serve(&api, identity.as_ref(), route, watches, request).await;
            answer.unwrap_or_else(IntoResponse::into_response)
        }
        Err(refusal) => {
            if let (Some(audit), Some(login)) = (api.inner.audit.get(), &refusal.login) {
                audit.login_failed(&request, &route, login);
            }
            refusal.error.clone().into_response()
        }
    };
    // An answer may come before the whole body was read. Then the connection ends, and the client is to know.
    if may_leave_body && response.status().is_client_error() {
        response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    api.inner.metrics.answered(about, response.status(), started.elapsed());
    tracing::debug!(
        %method,
        path,
        user = identity.as_ref().ok().and_then(Option::as_ref).map(|identity| identity.user.as_str()),
        status = response.status().as_u16(),
        elapsed_us = started.elapsed().as_micros() as u64,
        "api request"
    );
    response
}

async fn serve(
    api: &ApiServer,
    identity: Option<&Identity>,
    route: Route,
    watches: bool,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    if let Route::Resource(target) = route {
        let pending = match (api.inner.audit.get(), identity) {
            (Some(audit), Some(identity)) => {
                audit::Pending::begin(audit, identity, &parts, &target, &api.registry()).await?
            }
            _ => None,
        };
        let serving = serve_resource(api, identity, &parts, &target, body);
        // A watch says by itself how long it wants to be.
        let answer = if watches { serving.await } else { in_time(&parts.uri, serving).await };
        if let Some(pending) = pending {
            pending.end(&answer);
        }
        return answer;
    }
    if route == Route::Backup {
        return backup::serve(api, identity, &parts).await;
    }
    let verb = parts.method.as_str().to_ascii_lowercase();
    api.auth().authorize(identity, &auth::Attributes { verb: &verb, path, ..auth::Attributes::default() })?;
    if parts.method != Method::GET {
        return Err(ApiError::method_not_allowed("only GET is served here"));
    }
    let Offer { registry, documents } = api.offer();
    let ok = |value: Value| status::json_response(StatusCode::OK, value.to_string());
    match route {
        Route::Version => Ok(ok(discovery::version())),
        Route::Health => api.inner.checks.serve(path, parts.uri.query().unwrap_or_default()),
        Route::Metrics => api.inner.metrics.serve(api.store(), &api.inner.places),
        Route::Root => Ok(ok(
            json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v3", "/readyz", "/version"]}),
        )),
        Route::CoreVersions => discovery::core_versions(&registry, &|of| api.views(of), &parts.headers),
        Route::Groups => discovery::groups(&registry, &|of| api.views(of), &parts.headers),
        Route::Group(group) => discovery::group(&registry, &group).map(ok),
        Route::Resources(group, version) => {
            discovery::resources(&registry, &|of| api.views(of), &group, &version).map(ok)
        }
        Route::TokenKeys => Ok(ok(api.auth().key_set())),
        Route::TokenIssuer => {
            let named = parts.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
            Ok(ok(auth::openid_configuration(
                parts.uri.authority().map(http::uri::Authority::as_str).or(named).unwrap_or_default(),
            )))
        }
        // They are made when they are first asked for.
        Route::OpenApiV2 => aside::when(true, || documents.v2(&parts.headers)).map(weight::shared),
        Route::OpenApiV3 => Ok(weight::shared(aside::when(true, || documents.index(&parts.headers)))),
        Route::OpenApiV3Of(name) => {
            aside::when(true, || documents.of(&name, parts.uri.query(), &parts.headers)).map(weight::shared)
        }
        Route::Resource(_) | Route::Backup | Route::Unknown => Err(ApiError::no_such_path()),
    }
}

/// Ends a request that takes too long. What it began to write may be written all the same.
async fn in_time<T>(uri: &http::Uri, serving: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    let most = request::deadline(uri)?.unwrap_or(REQUEST_MAX).min(REQUEST_MAX);
    tokio::time::timeout(most, serving).await.unwrap_or_else(|_| {
        let message = "request did not complete within requested timeout - context deadline exceeded";
        Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message))
    })
}

async fn serve_resource(
    api: &ApiServer,
    identity: Option<&Identity>,
    parts: &http::request::Parts,
    target: &Target,
    body: Body,
) -> Result<Response, ApiError> {
    let params = Params::parse(&parts.uri)?;
    let named = target.name.is_some();
    let verb = match parts.method {
        // A single object is watched through its list, or by the old path.
        Method::GET if target.watch || (params.watch && !named) => "watch",
        Method::GET if named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => "other",
    };
    let wanted = auth::attributes(verb, target, &params, parts.uri.path());
    api.auth().authorize(identity, &wanted)?;
    let identity = identity.ok_or_else(ApiError::unauthorized)?;
    let registry = api.registry();
    let resource = registry.find(&target.group, &target.version, &target.plural).ok_or_else(ApiError::no_such_path)?;
    if target.namespace.is_some() && !resource.namespaced {
        return Err(ApiError::no_such_path());
    }
    if named && resource.namespaced && target.namespace.is_none() {
        return Err(ApiError::no_such_path());
    }
    // Neither a body nor a revision that is still to come holds a place while it is waited for.
    let refused = |kind| move |_: &ApiError| api.inner.metrics.refused(kind);
    let (body, _room) = match verb {
        "get" | "list" | "watch" | "other" => (Bytes::new(), None),
        _ => {
            let mut room = api.inner.places.for_body(identity)?;
            let body = body::read_body(body, &mut room).await.inspect_err(refused("mutating"))?;
            // It may have taken its time, and who was somebody when it began to come may be nobody now.
            if !api.auth().holds(identity) {
                return Err(ApiError::unauthorized());
            }
            api.auth().authorize(Some(identity), &wanted)?;
            (body, room)
        }
    };
    if let Some(revision) = read::awaited(verb, &params).filter(|revision| *revision > api.store().revision()) {
        let _waits = api.inner.places.for_wait(identity).inspect_err(refused("readOnly"))?;
        read::reach(api.store(), revision).await?;
    }
    let _place = match verb {
        "watch" => None,
        _ => {
            let kind = if overload::is_read(&parts.method) { "readOnly" } else { "mutating" };
            api.inner.places.for_request(&parts.method, identity).inspect_err(refused(kind))?
        }
    };
    let values = values_under_way(api, resource, target, verb, &body);
    let _values = api.inner.places.for_values(identity, values).inspect_err(refused("mutating"))?;
    match target.subresource.as_deref() {
        None => {}
        Some("status") if resource.status => {}
        Some("scale") if resource.scale.is_some() => {}
        Some("token") if &*resource.storage == auth::accounts::STORAGE => {}
        Some(view) => {
            let view = api.view(resource, view).ok_or_else(ApiError::no_such_path)?;
            let answer = answer_view(api, resource, target, parts, verb, view).await?;
            if identity.is_in_process() {
                return Ok(answer);
            }
            let (api, identity, target, params) = (api.clone(), identity.clone(), target.clone(), params.clone());
            let may_go_on = move || {
                let wanted = auth::attributes("get", &target, &params, "");
                api.auth().holds(&identity) && api.auth().authorize(Some(&identity), &wanted).is_ok()
            };
            return Ok(guarded::guard(answer, may_go_on));
        }
    }
    let (form, text) = request::negotiate(&parts.headers, params.pretty)?;
    let call = Call { api, resource, target, params: &params, identity, headers: &parts.headers, form, text };
    let answer = answer(&call, verb, body).await;
    match resource.deprecation.as_deref() {
        Some(warning) => answer.map(|response| read::with_warning(response, warning)),
        None => answer,
    }
}

/// How many JSON values a write works on: those of its body and of the object that is there.
fn values_under_way(api: &ApiServer, resource: &Resource, target: &Target, verb: &str, body: &[u8]) -> usize {
    let live = match (verb, &target.name) {
        ("update" | "patch", Some(name)) => {
            api.store().get(&resource.storage, target.namespace.as_deref().unwrap_or_default(), name)
        }
        _ => None,
    };
    // What has more is refused, unless it is no JSON and only looks like it.
    body::count_values(body).min(body::VALUES_MAX) + live.map_or(0, |object| object.json_len() / VALUE_BYTES)
}

async fn answer_view(
    api: &ApiServer,
    resource: &Resource,
    target: &Target,
    parts: &http::request::Parts,
    verb: &str,
    view: View,
) -> Result<Response, ApiError> {
    if verb != "get" {
        return Err(ApiError::method_not_allowed(NOT_ALLOWED));
    }
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (namespace, name) = (text(&target.namespace), text(&target.name));
    if api.store().get(&resource.storage, &namespace, &name).is_none() {
        return Err(ApiError::not_found(resource, &name));
    }
    view(ViewRequest { namespace, name, query: parts.uri.query().unwrap_or_default().to_owned() }).await
}

/// Does what a request about a resource asks for.
async fn answer(call: &Call<'_>, verb: &str, body: Bytes) -> Result<Response, ApiError> {
    let subresource = call.target.subresource.as_deref();
    let scale = subresource == Some("scale");
    match verb {
        _ if subresource == Some("token") || call.resource.keep == Keep::Review => {
            if verb != "create" {
                return Err(ApiError::method_not_allowed(NOT_ALLOWED));
            }
            match call.resource.keep {
                Keep::Review => auth::reviews::answer(call, &body).map(|answer| auth::reviews::send(&answer)),
                _ => auth::reviews::make_token(call, &body),
            }
        }
        "get" if scale => scale::get(call),
        "update" | "patch" if scale => scale::write(call, body, verb == "patch").await,
        _ if scale => Err(ApiError::method_not_allowed(NOT_ALLOWED)),
        "watch" => watch::watch(call).await,
        "get" => read::get(call).await,
        "list" => list::list(call).await,
        "create" => {
            let written = write::create(call, body).await?;
            let mut response = read::send_written(call, &written);
            response.extensions_mut().insert(audit::Made(written.object.name.clone()));
            Ok(response)
        }
        "update" => {
            let written = write::update(call, body).await?;
            Ok(read::send_written(call, &written))
        }
        "patch" => {
            let written = write::patch(call, body).await?;
            Ok(read::send_written(call, &written))
        }
        "delete" => {
            let deleted = delete::delete(call, body).await?;
            Ok(match &deleted {
                delete::Deleted::Held(object) => read::send(call, StatusCode::OK, object),
                delete::Deleted::Gone(object) => {
                    status::json_response(StatusCode::OK, delete::success(call.resource, object).to_string())
                }
            })
        }
        // All namespaces at once is what nobody means.
        "deletecollection" if &*call.resource.storage != "/namespaces" => {
            let deleted = delete::delete_collection(call, body).await?;
            Ok(match deleted {
                Some(deleted) => read::send_list(call, deleted, &items::ListHead::at(call.api.store().revision())),
                None => status::json_response(StatusCode::OK, delete::success_of_many(call.resource).to_string()),
            })
        }
        _ => Err(ApiError::method_not_allowed(NOT_ALLOWED)),
    }
}
