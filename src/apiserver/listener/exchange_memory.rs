//! Memory accounting of requests: what one and its answer weigh, from its head until the answer's end.
//!
//! A head of a few bytes on the wire may be large in memory, and all that HTTP/2 lets a peer do (open streams, leave bodies
//! unfinished and answers waiting) keeps it there. So each head, what was read of each body, and each answer count as
//! something that the connection [holds](ConnectionSlot::hold). A piece of an answer counts until it is sent, and not only until it is
//! handed on: HTTP/2 keeps it for as long as the peer opens no window for it, also when the answer has ended with it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, header};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connections::ConnectionSlot;

/// Bytes that a stream holds whatever its head: its task and what HTTP/2 notes of it.
const STREAM: usize = 6 * 1024;
/// Bytes of a field of a head beside its text.
const FIELD: usize = 128;
/// Bytes of a compressor's state.
const COMPRESSOR: usize = 256 * 1024;

/// What an exchange holds, until it is dropped.
pub(super) struct ExchangeMemory {
    slot: Arc<ConnectionSlot>,
    bytes: AtomicUsize,
    /// What it held when its body began to be handed on, and one more; nothing of it is kept since then.
    handed_on: AtomicUsize,
}

/// Put into the extensions of a request: what it holds.
#[derive(Clone)]
pub(super) struct Holding(pub Arc<ExchangeMemory>);

/// What comes of a request's body is handed on as it comes.
pub(in crate::apiserver) fn hands_on(extensions: &http::Extensions) {
    if let Some(Holding(memory)) = extensions.get() {
        memory.hands_on();
    }
}

/// Put into the extensions of an answer whose length does not say what it holds: bytes in memory before it is sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::apiserver) struct InMemory(pub usize);

impl ExchangeMemory {
    /// An exchange whose head weighs so much.
    pub fn new(slot: &Arc<ConnectionSlot>, bytes: usize) -> Arc<Self> {
        let memory = Self { slot: Arc::clone(slot), bytes: AtomicUsize::new(0), handed_on: AtomicUsize::new(0) };
        memory.set(bytes);
        Arc::new(memory)
    }

    /// What comes of the request's body from now on is handed on as it comes: only the part counts that is on its way.
    pub fn hands_on(&self) {
        self.handed_on.store(self.bytes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A part of the request's body is there.
    fn came(&self, bytes: usize) {
        match self.handed_on.load(Ordering::Relaxed).checked_sub(1) {
            Some(base) => self.set(base + bytes),
            None => self.add(bytes),
        }
    }

    /// The request is not served, and its head gone.
    pub fn refused(&self) {
        self.set(STREAM);
    }

    fn set(&self, bytes: usize) {
        self.slot.hold(self.bytes.swap(bytes, Ordering::Relaxed), bytes);
    }

    fn add(&self, bytes: usize) {
        // The slot first, so that it is never told of less before it was told of more.
        self.slot.hold(0, bytes);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts what is read of the request's body, until the answer is there, or it is [handed on](Self::hands_on).
    pub fn request<B: Body<Data = Bytes>>(self: &Arc<Self>, body: B) -> CountedRequestBody<B> {
        CountedRequestBody { body: Box::pin(body), memory: Arc::clone(self) }
    }

    /// From now on the answer counts, and the request no longer.
    pub fn answer<B: Body<Data = Bytes>>(self: Arc<Self>, answer: Response<B>) -> Response<CountedResponseBody<B>> {
        let mut base = in_memory(&answer).unwrap_or_default();
        if answer.headers().contains_key(header::CONTENT_ENCODING) {
            base += COMPRESSOR;
        }
        self.set(STREAM + base);
        answer.map(|body| CountedResponseBody { body: Box::pin(body), memory: self })
    }
}

impl Drop for ExchangeMemory {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Bytes of an answer that are in memory before it is sent, where that is known.
fn in_memory<B: Body>(answer: &Response<B>) -> Option<usize> {
    let said = answer.extensions().get::<InMemory>().map(|said| said.0);
    said.or_else(|| answer.body().size_hint().exact().map(|exact| usize::try_from(exact).unwrap_or(usize::MAX / 2)))
}

/// Notes it, before a compressor takes the answer's length away.
pub(in crate::apiserver) fn noted<B: Body>(mut answer: Response<B>) -> Response<B> {
    if let Some(bytes) = in_memory(&answer) {
        answer.extensions_mut().insert(InMemory(bytes));
    }
    answer
}

/// An answer from what is in memory anyhow.
pub(in crate::apiserver) fn shared<B>(mut answer: Response<B>) -> Response<B> {
    answer.extensions_mut().insert(InMemory(0));
    answer
}

/// The head in memory of its own, and its weight in bytes. As it was read it keeps all that came in one buffer with it.
pub(super) fn weighed<B>(request: Request<B>) -> (Request<B>, usize) {
    let (mut parts, body) = request.into_parts();
    let uri = parts.uri.to_string();
    let mut weight = STREAM + uri.len();
    if let Ok(own) = uri.parse::<Uri>() {
        parts.uri = own;
    }
    let mut own = HeaderMap::with_capacity(parts.headers.keys_len());
    for (name, value) in &parts.headers {
        weight += FIELD + name.as_str().len() + value.len();
        let Ok(own_name) = HeaderName::from_bytes(name.as_str().as_bytes()) else { continue };
        let Ok(mut own_value) = HeaderValue::from_bytes(value.as_bytes()) else { continue };
        own_value.set_sensitive(value.is_sensitive());
        own.append(own_name, own_value);
    }
    parts.headers = own;
    (Request::from_parts(parts, body), weight)
}

/// A request's body, of which what is read is counted.
pub(super) struct CountedRequestBody<B> {
    body: Pin<Box<B>>,
    memory: Arc<ExchangeMemory>,
}

impl<B: Body<Data = Bytes>> Body for CountedRequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = self.body.as_mut().poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            // Trailers hold no more than a head does.
            self.memory.came(frame.data_ref().map_or(FIELD, Bytes::len));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A piece of an answer that is on its way, and counts until nobody keeps it any more.
struct Sent {
    piece: Bytes,
    memory: Arc<ExchangeMemory>,
}

impl Sent {
    /// The same piece, counted.
    fn counted(piece: Bytes, memory: &Arc<ExchangeMemory>) -> Bytes {
        memory.slot.hold(0, piece.len());
        Bytes::from_owner(Self { piece, memory: Arc::clone(memory) })
    }
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.memory.slot.hold(self.piece.len(), 0);
    }
}

/// An answer's body: what it has in memory counts while it is there, and its pieces until they are sent.
pub(super) struct CountedResponseBody<B> {
    body: Pin<Box<B>>,
    memory: Arc<ExchangeMemory>,
}

impl<B> Drop for CountedResponseBody<B> {
    fn drop(&mut self) {
        // What is left of it is on its way.
        self.memory.set(STREAM);
    }
}

impl<B: Body<Data = Bytes>> Body for CountedResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = self.body.as_mut().poll_frame(cx);
        polled.map_ok(|frame| frame.map_data(|piece| Sent::counted(piece, &self.memory)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream whose [connection](ConnectionSlot) is told what was read.
pub(super) struct MeteredConnection<S> {
    stream: S,
    slot: Arc<ConnectionSlot>,
}

impl<S> MeteredConnection<S> {
    pub fn new(stream: S, slot: Arc<ConnectionSlot>) -> Self {
        Self { stream, slot }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredConnection<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.slot.received(buf.filled().len() - before);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredConnection<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};

    use super::super::connections::ListenerConnections;
    use super::*;
    use crate::ration::Rank;

    #[tokio::test]
    async fn a_piece_counts_until_it_is_sent_also_when_the_answer_has_ended_with_it() {
        let connections = ListenerConnections::new(10, 10, [1 << 20, 1 << 20]);
        let slot = Arc::new(connections.admit("10.0.0.1".parse().unwrap(), Rank::Untold).unwrap());
        let before = slot.held_bytes();
        let memory = ExchangeMemory::new(&slot, 10);
        let mut body =
            memory.answer(Response::new(http_body_util::Full::new(Bytes::from(vec![0; 100_000])))).into_body();
        let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        assert!(slot.held_bytes() >= before + 100_000, "{}", slot.held_bytes());
        let (half, rest) = (piece.slice(..50_000), piece);
        drop(rest);
        assert!(slot.held_bytes() >= before + 100_000, "a part keeps the whole");
        drop(half);
        assert_eq!(slot.held_bytes(), before);
    }

    #[tokio::test]
    async fn of_a_body_that_is_handed_on_only_the_part_counts_that_is_on_its_way() {
        let connections = ListenerConnections::new(10, 10, [1 << 20, 1 << 20]);
        let slot = Arc::new(connections.admit("10.0.0.1".parse().unwrap(), Rank::Untold).unwrap());
        for (is_handed_on, most) in [(false, 10 + 3 * 1000), (true, 10 + 1000)] {
            let memory = ExchangeMemory::new(&slot, 10);
            let parts = (0..3).map(|_| Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(&[0; 1000]))));
            let mut body = memory.request(StreamBody::new(futures::stream::iter(parts)));
            if is_handed_on {
                memory.hands_on();
            }
            while body.frame().await.is_some() {}
            assert_eq!(memory.bytes.load(Ordering::Relaxed), most);
        }
    }
}
