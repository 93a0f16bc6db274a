//! Request dispatch: authentication, authorisation, a place among the requests, and the handler.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::FutureExt;
use http::request::Parts;
use http::{Method, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, Collected};
use serde_json::{Value, json};
use tower_http::catch_panic::CatchPanicLayer;

use super::body;
use super::request::{self, Params, RequestRoute, RequestTarget};
use super::request_context::{NOT_ALLOWED, REQUEST_MAX, RequestContext, within};
use crate::api::StoragePolicy;
use crate::apiserver::answers::list_body;
use crate::apiserver::answers::status::{self, ApiError};
use crate::apiserver::audit;
use crate::apiserver::auth::{self, AuthenticationRefusal, ImpersonationRequest, UserIdentity};
use crate::apiserver::discovery::groups;
use crate::apiserver::endpoints::{backup, metrics};
use crate::apiserver::extensions::admission::{ObjectView, ViewRequest};
use crate::apiserver::extensions::{face, upload};
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::listener::{exchange_memory, tls};
use crate::apiserver::reading::{guarded, list, read, watch};
use crate::apiserver::server::{ApiServer, ServedApis};
use crate::apiserver::shares::inflight::InflightPermit;
use crate::apiserver::shares::{blocking, inflight, response_memory};
use crate::apiserver::webhooks::converting;
use crate::apiserver::writing::{delete, delete_request, scale, write};

/// Bytes of a stored object's text that count as one value, while nobody has counted them.
const VALUE_BYTES: usize = 10;

impl ApiServer {
    /// Everything under `/`: the API, discovery, OpenAPI, version and health.
    pub fn router(&self) -> Router {
        let noted = tower::util::MapResponseLayer::new(exchange_memory::noted::<Body>);
        Router::new().fallback(dispatch).with_state(self.clone()).layer(noted).layer(list_body::compression()).layer(
            CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
                ApiError::internal("the request could not be served because of a fault in the server").into_response()
            }),
        )
    }

    /// A client on the router in this process, with all rights. To be called inside a tokio runtime.
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.router().layer(axum::Extension(UserIdentity::in_process())), "default")
    }
}

/// Answers every request.
async fn dispatch(State(api): State<ApiServer>, request: Request) -> Response {
    let started = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let caller = api.auth().identify(request.extensions().get::<UserIdentity>(), request.headers());
    let identity = match (caller, ImpersonationRequest::read(request.headers())) {
        (Ok(Some(by)), Ok(Some(wish))) => {
            speak_for(&api, &method, by, wish).await.map(Some).map_err(AuthenticationRefusal::from)
        }
        (Ok(Some(_)), Err(error)) => Err(error.into()),
        (caller, _) => caller,
    };
    if let (Ok(Some(identity)), Some(connection)) = (&identity, request.extensions().get::<tls::PeerConnection>()) {
        connection.vouch(&identity.impersonator.as_deref().unwrap_or(identity).user);
    }
    // Names of objects come from other objects, and a client puts them into its paths as they are: one that is none is nobody's.
    let route = match &identity {
        Ok(Some(identity)) if identity.is_in_process() && !is_of_names(request.uri()) => RequestRoute::Unknown,
        _ => RequestRoute::parse(&path),
    };
    let asks = request.uri().query().is_some_and(request::asks_to_watch);
    let watches = method == Method::GET
        && matches!(&route, RequestRoute::Resource(target) if target.watch || (asks && target.name.is_none()));
    let about = metrics::RequestLabels::of(&api.registry(), &route, &method, watches);
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
            ApiError::clone(&refusal.error).into_response()
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
        "the API answered a request"
    );
    response
}

/// Whether a path is as this program's own clients make them of names: none is empty, and who names an object watches none.
fn is_of_names(uri: &http::Uri) -> bool {
    let path = uri.path();
    let is_whole = path == "/" || !(path.ends_with('/') || path.contains("//"));
    let watches = uri.query().is_some_and(request::asks_to_watch);
    let names_one = matches!(RequestRoute::parse(path), RequestRoute::Resource(target) if target.name.is_some());
    is_whole && !(watches && names_one)
}

/// Whom the caller speaks for, when they may.
async fn speak_for(
    api: &ApiServer,
    method: &Method,
    by: UserIdentity,
    wish: ImpersonationRequest,
) -> Result<UserIdentity, ApiError> {
    let _permit = permit_to_be_judged(api, method, &by, wish.namespace()).await?;
    api.auth().impersonate(by, wish)
}

/// A permit for a request while it is judged: it is under way. When that takes long, others have their turn before, and
/// those of the same caller come to know how many there are.
async fn permit_to_be_judged(
    api: &ApiServer,
    method: &Method,
    identity: &UserIdentity,
    namespace: &str,
) -> Result<InflightPermit, ApiError> {
    let kind = if inflight::is_read(method) { "readOnly" } else { "mutating" };
    let permit = api.inner.inflight.for_request(method, identity).inspect_err(|_| api.inner.metrics.refused(kind))?;
    if api.auth().is_long(identity, namespace) {
        tokio::task::yield_now().await;
    }
    Ok(permit)
}

async fn serve(
    api: &ApiServer,
    identity: Option<&UserIdentity>,
    route: RequestRoute,
    watches: bool,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    if let RequestRoute::Resource(target) = route {
        let pending = match (api.inner.audit.get(), identity) {
            (Some(audit), Some(identity)) => {
                audit::PendingAudit::begin(audit, identity, &parts, &target, &api.registry()).await?
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
    if route == RequestRoute::Backup {
        return backup::serve(api, identity, &parts).await;
    }
    if let Some(face) = api.face(path) {
        let identity = identity.ok_or_else(ApiError::unauthorized)?;
        return Ok(face::answer(&face, api.router(), identity, parts, body).await);
    }
    let verb = parts.method.as_str().to_ascii_lowercase();
    api.auth().authorize(identity, &auth::Attributes { verb: &verb, path, ..auth::Attributes::default() })?;
    if parts.method != Method::GET {
        return Err(ApiError::method_not_allowed("only GET is served here"));
    }
    // How the server does is told however much else is asked.
    let _place = match (identity, &route) {
        (Some(identity), route)
            if !matches!(route, RequestRoute::Health | RequestRoute::Version | RequestRoute::Metrics) =>
        {
            let refused = |_: &ApiError| api.inner.metrics.refused("readOnly");
            api.inner.inflight.for_request(&parts.method, identity).inspect_err(refused)?
        }
        _ => None,
    };
    let ServedApis { registry, documents } = api.served_apis();
    let ok = |value: Value| status::json_response(StatusCode::OK, value.to_string());
    match route {
        RequestRoute::Version => Ok(ok(groups::version())),
        RequestRoute::Health => api.inner.checks.serve(path, parts.uri.query().unwrap_or_default()),
        RequestRoute::Metrics => api.inner.metrics.serve(api.store(), &api.inner.inflight, &registry),
        RequestRoute::Root => Ok(ok(
            json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v3", "/readyz", "/version"]}),
        )),
        RequestRoute::CoreVersions => groups::core_versions(&registry, &|of| api.views(of), &parts.headers),
        RequestRoute::Groups => {
            let _one = making(api, documents.groups.has(&parts.headers)).await;
            let made =
                blocking::in_place_if(true, || documents.groups.send(&registry, &|of| api.views(of), &parts.headers));
            made.map(|made| counted(api, identity, &parts, made))
        }
        RequestRoute::Group(group) => groups::group(&registry, &group).map(ok),
        RequestRoute::Resources(group, version) => {
            groups::resources(&registry, &|of| api.views(of), &group, &version).map(ok)
        }
        RequestRoute::TokenKeys => Ok(ok(api.auth().key_set())),
        RequestRoute::TokenIssuer => {
            let named = parts.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
            Ok(ok(auth::openid_configuration(
                parts.uri.authority().map(http::uri::Authority::as_str).or(named).unwrap_or_default(),
            )))
        }
        // They are made when they are first asked for.
        RequestRoute::OpenApiV2 => {
            let _one = making(api, documents.has_v2()).await;
            blocking::in_place_if(true, || documents.v2(&parts.headers))
                .map(|made| counted(api, identity, &parts, made))
        }
        RequestRoute::OpenApiV3 => {
            let _one = making(api, documents.has_index()).await;
            Ok(counted(api, identity, &parts, blocking::in_place_if(true, || documents.index(&parts.headers))))
        }
        RequestRoute::OpenApiV3Of(name) => {
            let _one = making(api, documents.has(&name)).await;
            let made = blocking::in_place_if(true, || documents.of(&name, parts.uri.query(), &parts.headers));
            made.map(|made| counted(api, identity, &parts, made))
        }
        RequestRoute::Resource(_) | RequestRoute::Backup | RequestRoute::Unknown => Err(ApiError::no_such_path()),
    }
}

/// An answer from a document that many may share. It is out of date when a definition changes, and who takes it slowly keeps it
/// in memory: so it counts for who takes it.
fn counted(api: &ApiServer, identity: Option<&UserIdentity>, parts: &Parts, answer: Response) -> Response {
    let length = answer.body().size_hint().exact().and_then(|length| usize::try_from(length).ok()).unwrap_or_default();
    if length <= response_memory::COUNTED_FROM || identity.is_some_and(UserIdentity::is_in_process) {
        return exchange_memory::shared(answer);
    }
    let user = identity.map_or("", |identity| identity.user.as_str());
    let hold = response_memory::ResponseReservation::new(
        &api.inner.response_memory,
        user,
        parts.uri.path(),
        &parts.headers,
        length,
    );
    let connection = hold.connection();
    let mut answer = answer.map(|body| response_memory::body(response_memory::FullBody(all(body)), Some(hold)));
    answer.extensions_mut().insert(connection);
    exchange_memory::shared(answer)
}

/// The text of a body that is there as a whole.
fn all(body: Body) -> Bytes {
    body.collect().now_or_never().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default()
}

/// Waits until nobody else makes a document, unless it is there.
async fn making(api: &ApiServer, is_there: bool) -> Option<tokio::sync::MutexGuard<'_, ()>> {
    if is_there { None } else { Some(api.inner.documenting.lock().await) }
}

/// Ends a request that takes too long. What it began to write may be written all the same.
async fn in_time<T>(uri: &http::Uri, serving: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    within(request::deadline(uri)?.unwrap_or(REQUEST_MAX).min(REQUEST_MAX), serving).await
}

async fn serve_resource(
    api: &ApiServer,
    identity: Option<&UserIdentity>,
    parts: &http::request::Parts,
    target: &RequestTarget,
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
    let identity = identity.ok_or_else(ApiError::unauthorized)?;
    let mut permit = Some(permit_to_be_judged(api, &parts.method, identity, wanted.namespace).await?);
    api.auth().authorize(Some(identity), &wanted)?;
    let registry = api.registry();
    let resource = registry.find(&target.group, &target.version, &target.plural).ok_or_else(ApiError::no_such_path)?;
    if target.namespace.is_some() && !resource.namespaced {
        return Err(ApiError::no_such_path());
    }
    if named && resource.namespaced && target.namespace.is_none() {
        return Err(ApiError::no_such_path());
    }
    if let Some(upload) = target.subresource.as_deref().and_then(|name| api.upload(resource, name)) {
        drop(permit);
        return upload::serve(api, resource, target, (identity, parts, &params), (verb, body), upload).await;
    }
    // Neither a body nor a revision that is still to come holds a permit while it is waited for.
    let refused = |kind| move |_: &ApiError| api.inner.metrics.refused(kind);
    let (body, _room) = match verb {
        "get" | "list" | "watch" | "other" => (Bytes::new(), None),
        _ => {
            drop(permit);
            let mut room = api.inner.inflight.for_body(identity)?;
            let body = body::read_body(body, &mut room).await.inspect_err(refused("mutating"))?;
            // It may have taken its time, and who was somebody when it began to come may be nobody now.
            permit = Some(permit_to_be_judged(api, &parts.method, identity, wanted.namespace).await?);
            if !api.auth().holds(identity) {
                return Err(ApiError::unauthorized());
            }
            api.auth().authorize(Some(identity), &wanted)?;
            (body, room)
        }
    };
    if let Some(revision) = read::awaited(verb, &params).filter(|revision| *revision > api.store().revision()) {
        permit = None;
        let _waits = api.inner.inflight.for_wait(identity).inspect_err(refused("readOnly"))?;
        read::reach(api.store(), revision).await?;
    }
    let _place = match (verb, permit) {
        ("watch", _) => None,
        (_, Some(permit)) => permit,
        (_, None) => {
            let kind = if inflight::is_read(&parts.method) { "readOnly" } else { "mutating" };
            api.inner.inflight.for_request(&parts.method, identity).inspect_err(refused(kind))?
        }
    };
    let values = || values_under_way(api, resource, target, verb, &body);
    let _values = api.inner.inflight.for_values(identity, values).inspect_err(refused("mutating"))?;
    match target.subresource.as_deref() {
        None => {}
        Some("status") if resource.status => {}
        Some("scale") if resource.scale.is_some() => {}
        Some("token") if &*resource.storage == auth::accounts::STORAGE => {}
        Some(view) => {
            let view = api.view(resource, view).ok_or_else(ApiError::no_such_path)?;
            let place = api.inner.inflight.for_log(identity).inspect_err(refused("log"))?;
            let answer = answer_view(api, resource, target, parts, verb, view).await?;
            if identity.is_in_process() {
                return Ok(answer);
            }
            let (api, identity, target, params) = (api.clone(), identity.clone(), target.clone(), params.clone());
            let may_go_on = move || {
                // It is given back with the end of the answer.
                let _place = &place;
                let wanted = auth::attributes("get", &target, &params, "");
                api.auth().holds(&identity) && api.auth().authorize(Some(&identity), &wanted).is_ok()
            };
            return Ok(guarded::guard(answer, may_go_on));
        }
    }
    let (representation, encoding) = request::negotiate(&parts.headers, params.pretty)?;
    let context = RequestContext {
        api,
        resource,
        target,
        params: &params,
        identity,
        headers: &parts.headers,
        representation,
        encoding,
    };
    let answer = answer(&context, verb, body).await;
    match resource.deprecation.as_deref() {
        Some(warning) => answer.map(|response| status::with_warning(response, warning)),
        None => answer,
    }
}

/// How many JSON values a write works on: those of its body and of the object that is there.
fn values_under_way(
    api: &ApiServer,
    resource: &ServedResource,
    target: &RequestTarget,
    verb: &str,
    body: &[u8],
) -> usize {
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
    resource: &ServedResource,
    target: &RequestTarget,
    parts: &http::request::Parts,
    verb: &str,
    view: ObjectView,
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
async fn answer(context: &RequestContext<'_>, verb: &str, body: Bytes) -> Result<Response, ApiError> {
    let subresource = context.target.subresource.as_deref();
    let scale = subresource == Some("scale");
    match verb {
        _ if subresource == Some("token") || context.resource.policy == StoragePolicy::Review => {
            if verb != "create" {
                return Err(ApiError::method_not_allowed(NOT_ALLOWED));
            }
            match context.resource.policy {
                StoragePolicy::Review => {
                    auth::reviews::answer(context, &body).await.map(|answer| auth::reviews::send(&answer))
                }
                _ => auth::reviews::make_token(context, &body).await,
            }
        }
        "get" if scale => scale::get(context).await,
        "update" | "patch" if scale => scale::write(context, body, verb == "patch").await,
        _ if scale => Err(ApiError::method_not_allowed(NOT_ALLOWED)),
        "watch" => watch::watch(context).await,
        "get" => read::get(context).await,
        "list" => list::list(context).await,
        "create" => {
            let written = write::create(context, body).await?;
            let made = audit::CreatedName(written.object.name.clone());
            let mut response = read::send_written(context, written).await?;
            response.extensions_mut().insert(made);
            Ok(response)
        }
        "update" => {
            let written = write::update(context, body).await?;
            read::send_written(context, written).await
        }
        "patch" => {
            let written = write::patch(context, body).await?;
            read::send_written(context, written).await
        }
        "delete" => {
            let (deleted, remarks) = delete_request::delete(context, body).await?;
            let held = match &deleted {
                delete::Deleted::Held(object) => {
                    converting::served_one(context.api, context.resource, Arc::clone(object)).await.ok()
                }
                delete::Deleted::Gone(_) => None,
            };
            let success = || delete::success(context.resource, deleted.object()).to_string();
            // It is done, even where it cannot be shown.
            let response = held.map_or_else(
                || status::json_response(StatusCode::OK, success()),
                |object| read::send(context, StatusCode::OK, &object),
            );
            Ok(remarks.put_on(response))
        }
        // All namespaces at once is what nobody means.
        "deletecollection" if &*context.resource.storage != "/namespaces" => {
            let (deleted, remarks) = delete_request::delete_collection(context, body, list::names(context)).await?;
            let shown = match deleted {
                Some(deleted) => converting::served(context.api, context.resource, deleted).await.ok(),
                None => None,
            };
            let response = match shown {
                Some(deleted) => {
                    read::send_list(context, deleted, &list_body::ListHead::at(context.api.store().revision()))
                }
                None => status::json_response(StatusCode::OK, delete::success_of_many(context.resource).to_string()),
            };
            Ok(remarks.put_on(response))
        }
        _ => Err(ApiError::method_not_allowed(NOT_ALLOWED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_is_no_list_and_no_watch() {
        for (uri, wanted) in [
            ("/", true),
            ("/api/v1/namespaces/a/secrets", true),
            ("/api/v1/namespaces/a/secrets?limit=7", true),
            ("/api/v1/namespaces/a/secrets?watch=true", true),
            ("/api/v1/namespaces/a/secrets/x", true),
            ("/api/v1/namespaces/a/secrets/x?watch=true", false),
            ("/api/v1/namespaces/a/secrets/?", false),
            ("/api/v1/namespaces/a/secrets/?x", false),
            ("/api/v1/namespaces/a/secrets//x", false),
        ] {
            assert_eq!(is_of_names(&uri.parse().unwrap()), wanted, "{uri}");
        }
    }
}
