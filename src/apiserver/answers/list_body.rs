//! Streaming lists: their bodies are written piece by piece, so that a list of any length costs a piece's memory.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use jiff::Timestamp;
use serde_json::{Map, Value};
use tower_http::CompressionLevel;
use tower_http::compression::{CompressionLayer, Predicate};

use super::table::{TableRows, put_partial};
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::requests::request::Include;
use crate::apiserver::requests::request::Representation;
use crate::apiserver::shares::blocking;
use crate::apiserver::shares::response_memory::{self, BodySource, PIECE, ResponseReservation};

use crate::store::Object;

/// What closes lists and tables alike.
pub(in crate::apiserver) const TAIL: &[u8] = b"]}";

/// Marks an answer that may be compressed when it is large. Streams are not.
#[derive(Clone, Copy, Debug)]
pub(in crate::apiserver) struct Compressible;

/// Bytes from which on an answer is compressed, as upstream has it.
const COMPRESS_FROM: u64 = 128 * 1024;

/// Whether an answer is worth compressing: large ones, and those whose size nobody knows beforehand.
#[derive(Clone, Copy, Debug)]
pub(in crate::apiserver) struct WhenLarge;

impl Predicate for WhenLarge {
    fn should_compress<B: Body>(&self, response: &http::Response<B>) -> bool {
        let size = response.body().size_hint();
        response.extensions().get::<Compressible>().is_some() && size.upper().is_none_or(|upper| upper >= COMPRESS_FROM)
    }
}

/// Compresses large answers for those who accept gzip, as fast as it can.
pub(in crate::apiserver) fn compression() -> CompressionLayer<WhenLarge> {
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(WhenLarge)
}

/// `metadata` of a list (meta/v1 ListMeta).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::apiserver) struct ListHead {
    /// Revision that the list is at.
    pub revision: u64,
    /// What gives the next part; empty when this is the last.
    pub continue_token: String,
    /// How many objects come after this part, when that is known.
    pub remaining: Option<usize>,
}

impl ListHead {
    /// Of a list that is whole.
    pub fn at(revision: u64) -> Self {
        Self { revision, ..Self::default() }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let mut meta = Map::new();
        meta.insert("resourceVersion".into(), self.revision.to_string().into());
        if !self.continue_token.is_empty() {
            meta.insert("continue".into(), self.continue_token.clone().into());
        }
        if let Some(remaining) = self.remaining {
            meta.insert("remainingItemCount".into(), remaining.into());
        }
        meta.into()
    }
}

/// A list up to its first item.
pub(in crate::apiserver) fn list_head(kind: &str, api_version: &str, head: &ListHead) -> Vec<u8> {
    let (kind, api_version, meta) = (Value::from(kind), Value::from(api_version), head.json());
    format!("{{\"kind\":{kind},\"apiVersion\":{api_version},\"metadata\":{meta},\"items\":[").into_bytes()
}

/// A table up to its first row.
pub(in crate::apiserver) fn table_head(definitions: &Value, head: &ListHead) -> Vec<u8> {
    let meta = head.json();
    format!(
        "{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{meta},\"columnDefinitions\":{definitions},\"rows\":["
    )
    .into_bytes()
}

/// Adds one object as it is sent.
pub(in crate::apiserver) fn put_object(
    out: &mut Vec<u8>,
    resource: &ServedResource,
    form: Representation,
    object: &Object,
) {
    match form {
        Representation::Partial => put_partial(out, resource, object),
        _ if resource.conversion.is_none() => object.put_json(out),
        _ => out.extend_from_slice(resource.served(object.value()).to_string().as_bytes()),
    }
}

/// Adds one object as an item of a list: those of typed kinds leave apiVersion and kind to the list.
fn put_item(out: &mut Vec<u8>, resource: &ServedResource, form: Representation, object: &Object) {
    if form != Representation::Json || !resource.core {
        return put_object(out, resource, form, object);
    }
    if resource.conversion.is_none() {
        object.put_untyped_json(out);
    } else {
        out.extend_from_slice(item(resource, object).to_string().as_bytes());
    }
}

/// An object as an item of a list.
fn item(resource: &ServedResource, object: &Object) -> Value {
    let mut value = resource.served(object.value());
    if resource.core
        && let Some(map) = value.as_object_mut()
    {
        map.remove("apiVersion");
        map.remove("kind");
    }
    value
}

/// Objects on their way, each in the form that was negotiated.
pub(in crate::apiserver) struct EncodedItems {
    resource: Arc<ServedResource>,
    form: Representation,
    rows: TableRows,
    objects: std::vec::IntoIter<Arc<Object>>,
    /// How many objects there were.
    places: usize,
    /// One object, not a list with one.
    pub alone: bool,
}

impl EncodedItems {
    /// Those of a list, or the rows of a table.
    pub fn new(
        resource: Arc<ServedResource>,
        form: Representation,
        include: Include,
        objects: Vec<Arc<Object>>,
    ) -> Self {
        let rows = TableRows::new(&resource, include, Timestamp::now());
        let places = objects.len();
        Self { resource, form, rows, objects: objects.into_iter(), places, alone: false }
    }

    /// One object, which is no row.
    pub fn alone(resource: Arc<ServedResource>, form: Representation, object: Arc<Object>) -> Self {
        Self { alone: true, ..Self::new(resource, form, Include::None, vec![object]) }
    }

    /// Length of their text, in bytes.
    pub fn text(&self) -> usize {
        self.objects.as_slice().iter().map(|object| object.json_len()).sum()
    }

    /// Bytes of those that the store has let go of.
    pub fn retired(&self) -> usize {
        self.objects.as_slice().iter().map(|object| object.retired()).sum()
    }

    /// What their places take, in bytes.
    pub fn own(&self) -> usize {
        self.places * size_of::<Arc<Object>>()
    }

    /// Bytes that an answer of them holds: a piece, and where the objects are.
    pub fn weight(&self) -> usize {
        PIECE + self.own()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.objects.as_slice().is_empty()
    }

    /// The next one.
    pub fn next(&mut self) -> Option<Arc<Object>> {
        self.objects.next()
    }

    /// Adds one of them as JSON.
    pub fn put(&self, out: &mut Vec<u8>, object: &Object) {
        match self.form {
            Representation::Table => self.rows.put(out, &self.resource, object),
            form if self.alone => put_object(out, &self.resource, form, object),
            form => put_item(out, &self.resource, form, object),
        }
    }

    /// Bytes of the next one that are worked on to write it: most are copied as they are.
    fn work(&self) -> usize {
        let next = self
            .objects
            .as_slice()
            .first()
            .filter(|_| self.form == Representation::Table || self.resource.conversion.is_some());
        next.map_or(0, |object| object.json_len())
    }

    /// The same when its text is written anew.
    pub fn next_len(&self) -> usize {
        self.objects.as_slice().first().map_or(0, |object| object.json_len())
    }

    /// Length of them all as JSON, where that is known beforehand.
    fn length(&self) -> Option<usize> {
        (self.form == Representation::Json && self.resource.conversion.is_none()).then(|| {
            let length = |object: &Arc<Object>| match self.resource.core {
                true => object.untyped_json_len(),
                false => object.json_len(),
            };
            self.objects.as_slice().iter().map(length).sum()
        })
    }
}

/// The body of a list as JSON without spaces.
pub(in crate::apiserver) struct ListBody {
    parts: EncodedItems,
    /// The next piece.
    piece: Vec<u8>,
    /// Whether an item was written.
    begun: bool,
    ended: bool,
    /// Bytes still to come, when that is known.
    left: Option<u64>,
}

impl ListBody {
    pub fn new(parts: EncodedItems, head: Vec<u8>) -> Self {
        let commas = parts.objects.len().saturating_sub(1);
        let tail = if parts.alone { 0 } else { TAIL.len() };
        let left = parts.length().map(|length| (head.len() + length + commas + tail) as u64);
        Self { parts, piece: head, begun: false, ended: false, left }
    }

    /// What is sent. Its length is told when that is known or short.
    pub fn body(mut self, hold: Option<ResponseReservation>) -> axum::body::Body {
        let limit =
            if self.left.is_some_and(|left| left <= response_memory::COUNTED_FROM as u64) { usize::MAX } else { PIECE };
        while self.piece.len() < limit && !self.ended && self.parts.work() < blocking::LONG_FROM {
            self.put_next();
        }
        if self.ended && self.piece.len() <= response_memory::COUNTED_FROM {
            self.piece.into()
        } else {
            response_memory::body(self, hold)
        }
    }

    fn put_next(&mut self) {
        let Some(object) = self.parts.next() else {
            if !self.parts.alone {
                self.piece.extend_from_slice(TAIL);
            }
            self.ended = true;
            return;
        };
        if std::mem::replace(&mut self.begun, true) {
            self.piece.push(b',');
        }
        self.parts.put(&mut self.piece, &object);
    }
}

impl Body for ListBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while self.piece.len() < PIECE && !self.ended {
            let work = self.parts.work();
            ready!(blocking::poll(cx, work, || self.put_next()));
        }
        if self.piece.is_empty() {
            return Poll::Ready(None);
        }
        let next = Vec::with_capacity(if self.ended { 0 } else { PIECE + PIECE / 4 });
        let piece = std::mem::replace(&mut self.piece, next);
        self.left = self.left.map(|left| left.saturating_sub(piece.len() as u64));
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.piece.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl BodySource for ListBody {
    fn retired(&self) -> usize {
        self.parts.retired()
    }

    fn own(&self) -> usize {
        self.parts.own() + self.piece.capacity()
    }
}
