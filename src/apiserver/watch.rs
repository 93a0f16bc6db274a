//! Watch: a stream of JSON lines from the store's events.
//!
//! A client names a revision and gets everything after it, or names none and gets what there is first. An object
//! that leaves the selector is `DELETED` for that client, one that enters it is `ADDED`. A revision that is no longer
//! kept ends the stream with an `ERROR` event of code 410, upon which clients list again.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use http::{Method, StatusCode};
use http_body::{Body, Frame};
use jiff::Timestamp;
use rand::Rng;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::Call;
use super::call::{REQUEST_MAX, within};
use super::columns::definitions;
use super::held::{self, Hold, Source};
use super::items::{self, ListHead};
use super::list::invalid_options;
use super::metrics::Watching;
use super::overload::Place;
use super::read::{self, reach};
use super::request::{Form, Params, Target, parse_revision};
use super::selectors::Selector;
use super::status::{ApiError, FieldError, FieldFault, json_response};
use super::table::Rows;
use super::{ApiServer, Identity, Resource, auth};
use crate::store::{Object, StoreEvent, Watch};

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

/// Annotation of the bookmark that ends the initial events.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// Starts a watch.
pub(super) async fn watch(call: &Call<'_>) -> Result<Response, ApiError> {
    let params = call.params;
    let mut selector = Selector::parse(call.resource, &params.labels, &params.fields)?;
    if let Some(name) = &call.target.name {
        // The old path of a single object's watch.
        selector.only(name);
    }
    let initial = initial_wish(params)?;
    let places = &call.api.inner.places;
    let place = places.for_watch(call.identity).inspect_err(|_| call.api.inner.metrics.refused("watch"))?;
    let store = call.api.store();
    let storage = &call.resource.storage;
    let from = parse_revision(&params.resource_version)?;
    let mut state = State {
        api: call.api.clone(),
        resource: Arc::clone(call.resource),
        target: call.target.clone(),
        params: params.clone(),
        identity: call.identity.clone(),
        judged: None,
        form: call.form,
        selector,
        source: None,
        first: First::default(),
        headings_sent: false,
        last: from.unwrap_or(0),
        end_of_initial: false,
        shutdown: call.api.shutdown().clone(),
        deadline: Instant::now() + length(params),
        bookmark: Instant::now() + BOOKMARK_EVERY,
        recheck: Instant::now() + RECHECK,
        over: false,
        counted: call.api.inner.metrics.watching(call.resource, call.target),
        _place: place,
    };
    let wants_list = initial.unwrap_or(from.is_none());
    let mut text = 0;
    let after = if wants_list || from.is_none() {
        reach(store, from.unwrap_or(0)).await?;
        if wants_list {
            // Until its objects are found it is a read as any other.
            let refused = |_: &ApiError| call.api.inner.metrics.refused("readOnly");
            let _read = places.for_request(&Method::GET, call.identity).inspect_err(refused)?;
            let (objects, revision) = within(length(params).min(REQUEST_MAX), first(call, &state.selector)).await?;
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
    let stream = futures::stream::unfold((state, early), |(mut state, early)| async move {
        let chunk = match early {
            Some(chunk) => Some(chunk),
            None => state.next_chunk().await,
        };
        chunk.map(|chunk| (chunk, (state, None)))
    });
    let hold = read::hold(call, text);
    let line = hold.as_ref().map(Hold::line);
    let mut response = json_response(StatusCode::OK, held::body(Chunks { stream: stream.boxed(), first }, hold));
    if let Some(line) = line {
        response.extensions_mut().insert(line);
    }
    if call.form == Form::Table {
        let media = http::HeaderValue::from_static("application/json;as=Table;g=meta.k8s.io;v=v1");
        response.headers_mut().insert(http::header::CONTENT_TYPE, media);
    }
    Ok(response)
}

/// The objects that are there, and the revision that they are at.
async fn first(call: &Call<'_>, selector: &Selector) -> Result<(VecDeque<Arc<Object>>, u64), ApiError> {
    let list = || call.api.store().list(&call.resource.storage, call.target.namespace.as_deref());
    if selector.is_everything() {
        let listing = list();
        return Ok((listing.objects.into(), listing.revision));
    }
    let scan = call.api.inner.turns.begin(call.identity).await;
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
    let forbidden = |why: &str| FieldError::forbidden("resourceVersionMatch", why);
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

/// One line of the stream.
fn line(kind: &str, object: &str) -> Bytes {
    let mut line = BytesMut::with_capacity(object.len() + 40);
    put_line(&mut line, kind, object.as_bytes());
    line.freeze()
}

/// A chunk as it waits for its client, without the room that it grew by.
fn sealed(chunk: &BytesMut) -> Bytes {
    Bytes::copy_from_slice(chunk)
}

fn put_line(chunk: &mut BytesMut, kind: &str, object: &[u8]) {
    chunk.put_slice(b"{\"type\":\"");
    chunk.put_slice(kind.as_bytes());
    chunk.put_slice(b"\",\"object\":");
    chunk.put_slice(object);
    chunk.put_slice(b"}\n");
}

/// What there was at the start and was not sent yet, for the watch and for who counts what it holds.
#[derive(Clone, Default)]
struct First(Arc<Mutex<VecDeque<Arc<Object>>>>);

impl First {
    // std's lock: held for these.
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Object>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one.
    fn pop(&self) -> Option<Arc<Object>> {
        let mut objects = self.lock();
        let object = objects.pop_front();
        if object.is_none() {
            // It had room for every object.
            *objects = VecDeque::new();
        }
        object
    }
}

/// The body of a watch.
struct Chunks {
    stream: BoxStream<'static, Bytes>,
    first: First,
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        self.stream.poll_next_unpin(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

impl Source for Chunks {
    fn retired(&self) -> usize {
        self.first.lock().iter().map(|object| object.retired()).sum()
    }

    fn own(&self) -> usize {
        self.first.lock().capacity() * size_of::<Arc<Object>>()
    }

    fn is_bounded(&self) -> bool {
        !self.first.lock().is_empty()
    }
}

/// One client's watch.
struct State {
    api: ApiServer,
    resource: Arc<Resource>,
    target: Target,
    params: Params,
    identity: Identity,
    /// At which state of the roles it was allowed last.
    judged: Option<u64>,
    form: Form,
    selector: Selector,
    source: Option<Watch>,
    /// What there was at the start, not sent yet.
    first: First,
    headings_sent: bool,
    /// Everything up to this revision has been sent.
    last: u64,
    /// Whether the bookmark that ends the initial events is still to be sent.
    end_of_initial: bool,
    shutdown: CancellationToken,
    deadline: Instant,
    bookmark: Instant,
    recheck: Instant,
    over: bool,
    counted: Watching,
    _place: Place,
}

/// Why a wait ended.
enum Woken {
    Event(StoreEvent),
    Gone(ApiError),
    Bookmark,
    Recheck,
    Deadline,
    /// The kind was defined anew, or is gone: clients come back and find out.
    Replaced,
    End,
}

impl State {
    /// The next lines; `None` when the watch is over.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        let mut chunk = BytesMut::new();
        if !self.may_go_on() {
            return None;
        }
        while let Some(object) = self.first.pop() {
            self.put(&mut chunk, "ADDED", &object);
            if chunk.len() >= CHUNK {
                return Some(sealed(&chunk));
            }
        }
        if std::mem::take(&mut self.end_of_initial) {
            self.put_bookmark(&mut chunk, self.last, true);
        }
        if !chunk.is_empty() {
            return Some(sealed(&chunk));
        }
        // An event that the selector hides yields no line: wait on.
        while chunk.is_empty() {
            if self.over {
                return None;
            }
            let woken = self.wait().await;
            if !self.may_go_on() {
                return None;
            }
            match woken {
                Woken::Recheck => self.recheck = Instant::now() + RECHECK,
                Woken::Event(event) => {
                    self.put_event(&mut chunk, &event);
                    self.drain(&mut chunk);
                }
                Woken::Gone(error) => self.put_gone(&mut chunk, &error),
                Woken::Bookmark => {
                    self.bookmark = Instant::now() + BOOKMARK_EVERY;
                    self.put_progress(&mut chunk);
                }
                // A last bookmark lets the client go on from here.
                Woken::Deadline if self.params.bookmarks => {
                    self.put_progress(&mut chunk);
                    self.over = true;
                }
                // What happened to the objects before is still told.
                Woken::Replaced => {
                    self.drain(&mut chunk);
                    self.over = true;
                }
                Woken::Deadline | Woken::End => {
                    self.over = true;
                    return None;
                }
            }
        }
        Some(sealed(&chunk))
    }

    /// Whether the caller is still who it was and still may; the watch is over when not.
    fn may_go_on(&mut self) -> bool {
        let wanted = auth::attributes("watch", &self.target, &self.params, "");
        let auth = self.api.auth();
        // Before the decision: what changes meanwhile is seen the next time.
        let stamp = auth.stamp();
        let may = auth.holds(&self.identity)
            && (self.judged == Some(stamp) || auth.authorize(Some(&self.identity), &wanted).is_ok());
        self.judged = Some(stamp);
        self.over |= !may;
        may
    }

    async fn wait(&mut self) -> Woken {
        let bookmark = if self.params.bookmarks { self.bookmark } else { self.deadline };
        let Some(source) = &mut self.source else { return Woken::End };
        let replaced = async {
            match &self.resource.custom {
                Some(custom) => custom.replaced.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => Woken::End,
            event = source.next() => match event {
                Ok(event) => Woken::Event(event),
                Err(gone) => Woken::Gone(gone.into()),
            },
            () = replaced => Woken::Replaced,
            () = tokio::time::sleep_until(self.deadline) => Woken::Deadline,
            () = tokio::time::sleep_until(bookmark) => Woken::Bookmark,
            () = tokio::time::sleep_until(self.recheck) => Woken::Recheck,
        }
    }

    /// Puts in what is ready without waiting.
    fn drain(&mut self, chunk: &mut BytesMut) {
        while chunk.len() < CHUNK && !self.over {
            let Some(source) = &mut self.source else { return };
            match source.next().now_or_never() {
                Some(Ok(event)) => self.put_event(chunk, &event),
                Some(Err(gone)) => self.put_gone(chunk, &gone.into()),
                None => return,
            }
        }
    }

    /// Sends what is ready and a bookmark behind it.
    fn put_progress(&mut self, chunk: &mut BytesMut) {
        // Read before the events are drained: what was committed up to here has then been sent, unless the chunk is
        // full; then the bookmark stands at the last event.
        let revision = self.api.store().revision();
        self.drain(chunk);
        if !self.over {
            if chunk.len() < CHUNK {
                self.last = self.last.max(revision);
            }
            self.put_bookmark(chunk, self.last, false);
        }
    }

    fn put_gone(&mut self, chunk: &mut BytesMut, error: &ApiError) {
        self.over = true;
        // A closed store ends its watches; the client need not hear of an error.
        if !self.shutdown.is_cancelled() {
            put_line(chunk, "ERROR", error.status().to_string().as_bytes());
        }
    }

    fn put_event(&mut self, chunk: &mut BytesMut, event: &StoreEvent) {
        let selected = |object: &Object| self.selector.matches(object);
        let (kind, object) = match event {
            StoreEvent::Added(object) => (selected(object).then_some("ADDED"), object),
            StoreEvent::Deleted(object) => (selected(object).then_some("DELETED"), object),
            StoreEvent::Modified { object, previous } => {
                let kind = match (selected(previous), selected(object)) {
                    (true, true) => Some("MODIFIED"),
                    (false, true) => Some("ADDED"),
                    (true, false) => Some("DELETED"),
                    (false, false) => None,
                };
                (kind, object)
            }
        };
        self.last = self.last.max(object.revision);
        let here = self.target.namespace.as_ref().is_none_or(|namespace| *namespace == object.namespace);
        if let Some(kind) = kind.filter(|_| here) {
            let object = Arc::clone(object);
            self.put(chunk, kind, &object);
        }
    }

    fn put(&mut self, chunk: &mut BytesMut, kind: &str, object: &Object) {
        self.counted.sent();
        if self.form == Form::Json && self.resource.conversion.is_none() {
            return put_line(chunk, kind, &object.json());
        }
        let mut text = Vec::new();
        if self.form == Form::Table {
            text = items::table_head(&self.headings(), &ListHead::at(object.revision));
            let include = self.params.include.unwrap_or_default();
            Rows::new(&self.resource, include, Timestamp::now()).put(&mut text, &self.resource, object);
            text.extend_from_slice(items::TAIL);
        } else {
            items::put_object(&mut text, &self.resource, self.form, object);
        }
        put_line(chunk, kind, &text);
    }

    /// Headings go with the first table only.
    fn headings(&mut self) -> Value {
        if std::mem::replace(&mut self.headings_sent, true) { Value::Null } else { definitions(&self.resource.columns) }
    }

    fn put_bookmark(&mut self, chunk: &mut BytesMut, revision: u64, initial_end: bool) {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial_end {
            metadata["annotations"] = json!({ INITIAL_END: "true" });
        }
        let bookmark = match self.form {
            Form::Table => {
                let partial =
                    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
                let cells: Vec<Value> = self.resource.columns.iter().map(|_| Value::Null).collect();
                json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": revision.to_string()},
                    "columnDefinitions": self.headings(),
                    "rows": [{"cells": cells, "object": partial}],
                })
            }
            Form::Partial => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            Form::Json => {
                json!({"kind": self.resource.kind, "apiVersion": self.resource.api_version(), "metadata": metadata})
            }
        };
        put_line(chunk, "BOOKMARK", bookmark.to_string().as_bytes());
    }
}
