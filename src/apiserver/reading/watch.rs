//! Watch: a stream of JSON lines from the store's events.
//!
//! A client names a revision and gets everything after it, or names none and gets what there is first. An object
//! that leaves the selector is `DELETED` for that client, one that enters it is `ADDED`. A revision that is no longer
//! kept ends the stream with an `ERROR` event of code 410, upon which clients list again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use futures::StreamExt;
use http::{Method, StatusCode};
use rand::Rng;
use tokio::time::Instant;

use super::list::invalid_options;
use super::read::{self, reach};
use crate::apiserver::answers::status::{ApiError, FieldError, FieldFault, json_response};
use crate::apiserver::objects::selectors::ObjectSelector;
use crate::apiserver::requests::request::{Params, Representation, parse_revision};
use crate::apiserver::requests::request_context::RequestContext;
use crate::apiserver::requests::request_context::{REQUEST_MAX, within};
use crate::apiserver::shares::response_memory::{self, ResponseReservation};
use crate::apiserver::webhooks::converting;
use crate::store::Object;

mod stream;

use stream::{Chunks, First, WatchState, line};

/// How often a bookmark is sent to those who ask for them.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How long a watch may go on, while nothing happens, after its caller's token ended or its permission was taken.
/// Events are held back at once.
const RECHECK: Duration = Duration::from_secs(5);
/// Shortest time of a watch that does not say how long it wants; a random part comes on top, so that clients do not
/// all return at once.
const DEFAULT_SECONDS: u64 = 1800;
/// Longest time of a watch.
const SECONDS_MAX: u64 = 24 * 3600;
/// Bytes after which a chunk is sent though more events are ready. One waits for a client that does not read.
const CHUNK: usize = 16 * 1024;

/// How long events are put into a chunk that are there already, while others wait for their turn.
const DRAIN: Duration = Duration::from_millis(2);
/// Bytes of an object's text from which on it is long for a watch that has to read it.
const READ_LONG_FROM: usize = 4 << 10;

/// Annotation of the bookmark that ends the initial events.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// Starts a watch.
pub(in crate::apiserver) async fn watch(context: &RequestContext<'_>) -> Result<Response, ApiError> {
    let params = context.params;
    let mut selector = ObjectSelector::parse(context.resource, &params.labels, &params.fields)?;
    if let Some(name) = &context.target.name {
        // The old path of a single object's watch.
        selector.only(name);
    }
    let initial = initial_wish(params)?;
    let places = &context.api.inner.inflight;
    let permit =
        places.for_watch(context.identity, &selector).inspect_err(|_| context.api.inner.metrics.refused("watch"))?;
    let store = context.api.store();
    let storage = &context.resource.storage;
    let from = parse_revision(&params.resource_version)?;
    let mut state = Box::new(WatchState {
        api: context.api.clone(),
        resource: Arc::clone(context.resource),
        target: context.target.clone(),
        params: params.clone(),
        identity: context.identity.clone(),
        judged: None,
        may: true,
        form: context.representation,
        selector,
        source: None,
        first: First::default(),
        headings_sent: false,
        last: from.unwrap_or(0),
        end_of_initial: false,
        shutdown: context.api.shutdown().clone(),
        deadline: Instant::now() + length(params),
        bookmark: Instant::now() + BOOKMARK_EVERY,
        recheck: Instant::now() + RECHECK,
        over: false,
        counted: context.api.inner.metrics.watching(context.resource, context.target),
        _permit: permit,
    });
    let wants_list = initial.unwrap_or(from.is_none());
    let mut text = 0;
    let after = if wants_list || from.is_none() {
        reach(store, from.unwrap_or(0)).await?;
        if wants_list {
            // Until its objects are found it is a read as any other.
            let refused = |_: &ApiError| context.api.inner.metrics.refused("readOnly");
            let _read = places.for_request(&Method::GET, context.identity).inspect_err(refused)?;
            let (objects, revision) = within(length(params).min(REQUEST_MAX), first(context, &state.selector)).await?;
            let objects =
                within(REQUEST_MAX, converting::served(context.api, context.resource, objects.into())).await?;
            let objects = VecDeque::from(objects);
            text = objects.iter().map(|object| object.json_len()).sum();
            *state.first.lock() = objects;
            state.end_of_initial = initial == Some(true) && params.bookmarks;
            revision
        } else {
            store.revision()
        }
    } else {
        state.last
    };
    state.last = after;
    let mut early = None;
    match store.watch(storage, after) {
        Ok(source) => state.source = Some(source),
        Err(gone) => {
            state.over = true;
            early = Some(line("ERROR", &ApiError::from(gone).status().to_string()));
        }
    }
    let first = state.first.clone();
    let stream = futures::stream::unfold((state, early), |(state, early)| async move {
        let (chunk, state) = match early {
            Some(chunk) => (chunk, state),
            None => state.next_chunk().await?,
        };
        Some((chunk, (state, None)))
    });
    let hold = read::hold(context, text);
    let connection = hold.as_ref().map(ResponseReservation::connection);
    let mut response =
        json_response(StatusCode::OK, response_memory::body(Chunks { stream: stream.boxed(), first }, hold));
    if let Some(connection) = connection {
        response.extensions_mut().insert(connection);
    }
    if context.representation == Representation::Table {
        let media = http::HeaderValue::from_static("application/json;as=Table;g=meta.k8s.io;v=v1");
        response.headers_mut().insert(http::header::CONTENT_TYPE, media);
    }
    Ok(response)
}

/// The objects that are there, and the revision that they are at.
async fn first(
    context: &RequestContext<'_>,
    selector: &ObjectSelector,
) -> Result<(VecDeque<Arc<Object>>, u64), ApiError> {
    let list = || context.api.store().list(&context.resource.storage, context.target.namespace.as_deref());
    if selector.is_everything() {
        let listing = list();
        return Ok((listing.objects.into(), listing.revision));
    }
    let scan = context.api.inner.scans.begin(context.identity).await;
    let listing = list();
    let mut selected = VecDeque::new();
    let look = |object: Arc<Object>| {
        if selector.matches(&object) {
            selected.push_back(object);
        }
        true
    };
    scan.each(listing.objects, look).await;
    Ok((selected, listing.revision))
}

/// Whether the client says that it wants, or does not want, what there is first (`sendInitialEvents`), when its
/// parameters keep the rules of `metav1.ListOptions` for a watch.
fn initial_wish(params: &Params) -> Result<Option<bool>, ApiError> {
    let version_match = params.resource_version_match.as_str();
    let mut errors = Vec::new();
    let forbidden = |reason: &str| FieldError::forbidden("resourceVersionMatch", reason);
    if params.send_initial.is_some() && version_match != "NotOlderThan" {
        errors.push(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
    }
    if !version_match.is_empty() {
        if params.send_initial.is_none() {
            errors.push(forbidden("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"));
        }
        if version_match != "NotOlderThan" {
            let value = version_match.into();
            let supported = "supported values: \"NotOlderThan\"";
            errors.push(FieldError::with_value(FieldFault::NotSupported, "resourceVersionMatch", &value, supported));
        }
        if !params.continue_token.is_empty() {
            errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
    }
    invalid_options(&errors)?;
    Ok(params.send_initial)
}

fn length(params: &Params) -> Duration {
    let seconds = match params.timeout {
        Some(seconds) if seconds > 0 => seconds.min(SECONDS_MAX),
        _ => DEFAULT_SECONDS + rand::rng().random_range(0..DEFAULT_SECONDS),
    };
    Duration::from_secs(seconds)
}
