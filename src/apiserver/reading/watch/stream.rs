//! The stream of a watch: a line for each event that is the client's, as long as nobody ends it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use http_body::{Body, Frame};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{BOOKMARK_EVERY, CHUNK, DRAIN, INITIAL_END, READ_LONG_FROM, RECHECK};
use crate::apiserver::answers::columns::definitions;
use crate::apiserver::answers::list_body::{self, ListHead};
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::answers::table::TableRows;
use crate::apiserver::endpoints::metrics::Watching;
use crate::apiserver::objects::selectors::ObjectSelector;
use crate::apiserver::requests::request::{Params, Representation, RequestTarget};
use crate::apiserver::shares::blocking;
use crate::apiserver::shares::inflight::InflightPermit;
use crate::apiserver::shares::response_memory::BodySource;
use crate::apiserver::webhooks::converting;
use crate::apiserver::{ApiServer, ServedResource, UserIdentity, auth};
use crate::store::{Object, StoreEvent, Watch};

/// One line of the stream.
pub(super) fn line(kind: &str, object: &str) -> Bytes {
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
pub(super) struct First(Arc<Mutex<VecDeque<Arc<Object>>>>);

impl First {
    // std's lock: held for these.
    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Object>>> {
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
pub(super) struct Chunks {
    pub(super) stream: BoxStream<'static, Bytes>,
    pub(super) first: First,
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

impl BodySource for Chunks {
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

/// The object that an event is about.
fn of_event(event: &StoreEvent) -> &Arc<Object> {
    match event {
        StoreEvent::Added(object) | StoreEvent::Deleted(object) | StoreEvent::Modified { object, .. } => object,
    }
}

/// One client's watch.
pub(super) struct WatchState {
    pub(super) api: ApiServer,
    pub(super) resource: Arc<ServedResource>,
    pub(super) target: RequestTarget,
    pub(super) params: Params,
    pub(super) identity: UserIdentity,
    /// At which state of the roles it was allowed last.
    pub(super) judged: Option<u64>,
    /// Whether it was.
    pub(super) may: bool,
    pub(super) form: Representation,
    pub(super) selector: ObjectSelector,
    pub(super) source: Option<Watch>,
    /// What there was at the start, not sent yet.
    pub(super) first: First,
    pub(super) headings_sent: bool,
    /// Everything up to this revision has been sent.
    pub(super) last: u64,
    /// Whether the bookmark that ends the initial events is still to be sent.
    pub(super) end_of_initial: bool,
    pub(super) shutdown: CancellationToken,
    pub(super) deadline: Instant,
    pub(super) bookmark: Instant,
    pub(super) recheck: Instant,
    pub(super) over: bool,
    pub(super) counted: Watching,
    pub(super) _permit: InflightPermit,
}

/// Why a wait ended.
enum WakeReason {
    Event(StoreEvent),
    Gone(ApiError),
    Bookmark,
    Recheck,
    Deadline,
    /// The kind was defined anew, or is gone: clients come back and find out.
    Replaced,
    End,
}

impl WatchState {
    /// The next lines; `None` when the watch is over.
    pub(super) async fn next_chunk(self: Box<Self>) -> Option<(Bytes, Box<Self>)> {
        let (mut state, mut chunk) = self.judged(BytesMut::new()).await?;
        while let Some(object) = state.first.pop() {
            let long = state.is_long(&object);
            let put = move |state: &mut Self, chunk: &mut BytesMut| state.put(chunk, "ADDED", &object);
            (state, chunk) = state.in_turn(long, chunk, put).await?;
            if chunk.len() >= CHUNK {
                return Some((sealed(&chunk), state));
            }
        }
        if std::mem::take(&mut state.end_of_initial) {
            let last = state.last;
            state.put_bookmark(&mut chunk, last, true);
        }
        if !chunk.is_empty() {
            return Some((sealed(&chunk), state));
        }
        // An event that the selector hides yields no line: wait on.
        while chunk.is_empty() {
            if state.over {
                return None;
            }
            let woken = state.wait().await;
            (state, chunk) = state.judged(chunk).await?;
            match woken {
                WakeReason::Recheck => state.recheck = Instant::now() + RECHECK,
                WakeReason::Event(event) if converting::converts(&state.resource) => {
                    let converted = tokio::select! {
                        biased;
                        () = state.shutdown.cancelled() => return None,
                        converted = state.converted(event) => converted,
                    };
                    match converted {
                        Ok(event) => state.put_event(&mut chunk, &event),
                        Err(error) => state.put_gone(&mut chunk, &error),
                    }
                }
                WakeReason::Event(event) => {
                    // It comes to all watches at once: what is long is done for one after the other.
                    let long = state.is_here(of_event(&event)) && state.is_long(of_event(&event));
                    let put = move |state: &mut Self, chunk: &mut BytesMut| {
                        state.put_event(chunk, &event);
                        state.drain(chunk, DRAIN);
                    };
                    (state, chunk) = state.in_turn(long, chunk, put).await?;
                }
                WakeReason::Gone(error) => state.put_gone(&mut chunk, &error),
                WakeReason::Bookmark => {
                    state.bookmark = Instant::now() + BOOKMARK_EVERY;
                    state.put_progress(&mut chunk);
                }
                // A last bookmark lets the client go on from here.
                WakeReason::Deadline if state.params.bookmarks => {
                    state.put_progress(&mut chunk);
                    state.over = true;
                }
                // What happened to the objects before is still told.
                WakeReason::Replaced if converting::converts(&state.resource) => state.over = true,
                WakeReason::Replaced => {
                    state.drain(&mut chunk, Duration::MAX);
                    state.over = true;
                }
                WakeReason::Deadline | WakeReason::End => return None,
            }
        }
        Some((sealed(&chunk), state))
    }

    /// Does something, in the caller's turn when it is long.
    async fn in_turn(
        self: Box<Self>,
        long: bool,
        mut chunk: BytesMut,
        work: impl FnOnce(&mut Self, &mut BytesMut) + Send + 'static,
    ) -> Option<(Box<Self>, BytesMut)> {
        let mut state = self;
        if !long {
            work(&mut state, &mut chunk);
            return Some((state, chunk));
        }
        // In a task of its own: a body whose client takes nothing is not asked for more, and would keep the turn that it was
        // given. The task ends with the watch.
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            let (api, identity) = (state.api.clone(), state.identity.clone());
            let _turn = api.inner.long.whole(&identity).await;
            work(&mut state, &mut chunk);
            (state, chunk)
        });
        // It ends otherwise only with the runtime.
        tasks.join_next().await?.ok()
    }

    /// Goes on if the caller is still who it was and still may.
    pub(super) async fn judged(self: Box<Self>, chunk: BytesMut) -> Option<(Box<Self>, BytesMut)> {
        let namespace = self.target.namespace.as_deref().unwrap_or_default();
        // All watches of a caller are judged anew when a role changes.
        let auth = self.api.auth();
        let long = self.judged != Some(auth.stamp()) && auth.is_long(&self.identity, namespace);
        let judge = |state: &mut Self, _: &mut BytesMut| state.may = state.may_go_on();
        let (state, chunk) = self.in_turn(long, chunk, judge).await?;
        state.may.then_some((state, chunk))
    }

    /// Whether it takes long to show an object, for as many as may watch it.
    fn is_long(&self, object: &Object) -> bool {
        let is_read =
            self.form == Representation::Table || self.resource.conversion.is_some() || self.selector.looks_inside();
        object.json_len() >= if is_read { READ_LONG_FROM } else { blocking::LONG_FROM }
    }

    fn is_here(&self, object: &Object) -> bool {
        self.target.namespace.as_ref().is_none_or(|namespace| *namespace == object.namespace)
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

    async fn wait(&mut self) -> WakeReason {
        let bookmark = if self.params.bookmarks { self.bookmark } else { self.deadline };
        let Some(source) = &mut self.source else { return WakeReason::End };
        let replaced = async {
            match &self.resource.custom {
                Some(custom) => custom.replaced.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => WakeReason::End,
            event = source.next() => match event {
                Ok(event) => WakeReason::Event(event),
                Err(gone) => WakeReason::Gone(gone.into()),
            },
            () = replaced => WakeReason::Replaced,
            () = tokio::time::sleep_until(self.deadline) => WakeReason::Deadline,
            () = tokio::time::sleep_until(bookmark) => WakeReason::Bookmark,
            () = tokio::time::sleep_until(self.recheck) => WakeReason::Recheck,
        }
    }

    /// Puts in what is ready without waiting, for so long; whether that was all of it.
    fn drain(&mut self, chunk: &mut BytesMut, most: Duration) -> bool {
        let began = Instant::now();
        while chunk.len() < CHUNK && !self.over {
            if began.elapsed() >= most {
                return false;
            }
            // What a webhook converts is waited for, one event after the other.
            if converting::converts(&self.resource) {
                return false;
            }
            let Some(source) = &mut self.source else { return true };
            match source.next().now_or_never() {
                Some(Ok(event)) => self.put_event(chunk, &event),
                Some(Err(gone)) => self.put_gone(chunk, &gone.into()),
                None => return true,
            }
        }
        chunk.len() < CHUNK
    }

    /// Sends what is ready and a bookmark behind it.
    fn put_progress(&mut self, chunk: &mut BytesMut) {
        // Read before the events are drained: what was committed up to here has then been sent, unless there were too
        // many; then the bookmark stands at the last event.
        let revision = self.api.store().revision();
        let all = self.drain(chunk, DRAIN);
        if !self.over {
            if all {
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

    /// An event with its object in the version that the client wants.
    async fn converted(&self, event: StoreEvent) -> Result<StoreEvent, ApiError> {
        if !self.is_here(of_event(&event)) {
            return Ok(event);
        }
        let convert = |object| converting::watched(&self.api, &self.resource, object);
        Ok(match event {
            StoreEvent::Added(object) => StoreEvent::Added(convert(object).await?),
            StoreEvent::Deleted(object) => StoreEvent::Deleted(convert(object).await?),
            StoreEvent::Modified { object, previous } => {
                StoreEvent::Modified { object: convert(object).await?, previous }
            }
        })
    }

    fn put_event(&mut self, chunk: &mut BytesMut, event: &StoreEvent) {
        let object = of_event(event);
        self.last = self.last.max(object.revision);
        if !self.is_here(object) {
            return;
        }
        let selected = |object: &Object| self.selector.matches_shared(object);
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
        if let Some(kind) = kind {
            let object = Arc::clone(object);
            self.put(chunk, kind, &object);
        }
    }

    fn put(&mut self, chunk: &mut BytesMut, kind: &str, object: &Object) {
        self.counted.sent();
        if self.form == Representation::Json && self.resource.conversion.is_none() {
            return put_line(chunk, kind, &object.json());
        }
        let mut text = Vec::new();
        if self.form == Representation::Table {
            text = list_body::table_head(&self.headings(), &ListHead::at(object.revision));
            let include = self.params.include.unwrap_or_default();
            TableRows::new(&self.resource, include, Timestamp::now()).put(&mut text, &self.resource, object);
            text.extend_from_slice(list_body::TAIL);
        } else {
            list_body::put_object(&mut text, &self.resource, self.form, object);
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
            Representation::Table => {
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
            Representation::Partial => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            Representation::Json => {
                json!({"kind": self.resource.kind, "apiVersion": self.resource.api_version(), "metadata": metadata})
            }
        };
        put_line(chunk, "BOOKMARK", bookmark.to_string().as_bytes());
    }
}
