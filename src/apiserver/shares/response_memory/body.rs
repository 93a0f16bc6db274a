//! Bodies whose text is counted while the peer has not taken it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};

use super::{ConnectionHandle, PIECE, ResponseReservation, ResponseTable, lock};

/// What makes an answer.
pub(in crate::apiserver) trait BodySource:
    Body<Data = Bytes, Error = Infallible> + Unpin + Send + 'static
{
    /// Bytes of objects that are still to be sent and that the store has let go of.
    fn retired(&self) -> usize;

    /// Bytes that it holds of its own.
    fn own(&self) -> usize;

    /// Whether it is to end in time. A watch is not, once it has sent what there was at first.
    fn is_bounded(&self) -> bool {
        true
    }
}

/// An answer that is there already.
pub(in crate::apiserver) struct FullBody(pub Bytes);

impl Body for FullBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let text = std::mem::take(&mut self.0);
        Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(text))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

impl BodySource for FullBody {
    fn retired(&self) -> usize {
        0
    }

    fn own(&self) -> usize {
        self.0.len()
    }
}

/// An answer as those see it who may break it off.
pub(super) trait Abortable: Send + Sync {
    /// Bytes of objects that the store has let go of. Nothing while it is being taken: then it goes on.
    fn retired(&self) -> usize;

    /// Bytes of its own.
    fn own(&self) -> usize;

    /// Whether it has to end in time; not while it is being taken.
    fn is_bounded(&self) -> bool;

    /// Lets go of everything. Who takes it finds an error in place of the rest.
    fn end(&self);
}

/// An answer that is under way.
pub(super) struct PendingResponse<S> {
    // std's lock: held while a piece is made.
    pub(super) content: Mutex<PendingContent<S>>,
    pub(super) own: AtomicUsize,
    /// What it holds besides its text.
    pub(super) base: usize,
    pub(super) table: Arc<ResponseTable>,
    pub(super) connection: ConnectionHandle,
}

pub(super) struct PendingContent<S> {
    pub(super) source: Option<S>,
    /// Made, and not taken yet.
    pub(super) rest: Bytes,
    /// Length of the piece that the connection got last, until it asks for another.
    pub(super) handed: usize,
    /// Whether `rest` is a part of something larger.
    pub(super) is_cut: bool,
    pub(super) broken: bool,
    pub(super) waker: Option<Waker>,
}

/// The answer was broken off.
#[derive(Debug, thiserror::Error)]
#[error("the answer was broken off, because it was taken too slowly")]
pub(super) struct Aborted;

/// A body of which is counted what it holds.
pub(super) struct AccountedBody<S: BodySource> {
    pub(super) pending: Arc<PendingResponse<S>>,
    pub(super) number: u64,
}

/// The body of an answer; what it holds is counted when it has a reservation for that.
pub(in crate::apiserver) fn body(source: impl BodySource, hold: Option<ResponseReservation>) -> axum::body::Body {
    match hold {
        Some(hold) => axum::body::Body::new(hold.begin(source)),
        None => axum::body::Body::new(source),
    }
}

impl<S: BodySource> PendingResponse<S> {
    /// Counts what there is.
    pub(super) fn count(&self, content: &PendingContent<S>) {
        let own = content.source.as_ref().map_or(0, |source| source.own() + self.base);
        let own = own + content.rest.len() + content.handed;
        self.table.count(&self.own, own);
    }

    /// The next piece.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Aborted>>> {
        let mut content = lock(&self.content);
        if content.broken {
            return Poll::Ready(Some(Err(Aborted)));
        }
        content.handed = 0;
        while content.rest.is_empty() {
            let polled = content.source.as_mut().map_or(Poll::Ready(None), |source| Pin::new(source).poll_frame(cx));
            match polled {
                Poll::Ready(Some(Ok(frame))) => content.rest = frame.into_data().unwrap_or_default(),
                Poll::Ready(_) => {
                    content.source = None;
                    self.count(&content);
                    return Poll::Ready(None);
                }
                Poll::Pending => {
                    content.waker = Some(cx.waker().clone());
                    self.count(&content);
                    return Poll::Pending;
                }
            }
            content.is_cut = false;
        }
        let is_last = content.rest.len() <= PIECE;
        let piece = if is_last && !content.is_cut {
            std::mem::take(&mut content.rest)
        } else {
            // A copy, for a part would keep the whole.
            let length = content.rest.len().min(PIECE);
            let piece = Bytes::copy_from_slice(&content.rest[..length]);
            content.rest.advance(length);
            content.is_cut = true;
            piece
        };
        if is_last {
            content.rest = Bytes::new();
        }
        content.handed = piece.len();
        self.count(&content);
        Poll::Ready(Some(Ok(piece)))
    }
}

impl<S: BodySource> Abortable for PendingResponse<S> {
    fn retired(&self) -> usize {
        match self.content.try_lock() {
            Ok(content) => content.source.as_ref().map_or(0, BodySource::retired),
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => 0,
        }
    }

    fn own(&self) -> usize {
        self.own.load(Ordering::Relaxed)
    }

    fn is_bounded(&self) -> bool {
        match self.content.try_lock() {
            Ok(content) => content.source.as_ref().is_some_and(BodySource::is_bounded),
            Err(_) => false,
        }
    }

    fn end(&self) {
        let mut content = lock(&self.content);
        let (source, waker) = (content.source.take(), content.waker.take());
        content.rest = Bytes::new();
        content.broken = true;
        let handed = std::mem::take(&mut content.handed);
        self.count(&content);
        drop(content);
        drop(source);
        if handed > 0 {
            self.connection.cut();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<S: BodySource> Body for AccountedBody<S> {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        let polled = self.pending.poll(cx);
        if self.pending.table.is_crowded() {
            self.pending.table.make_room();
        }
        polled.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        let content = lock(&self.pending.content);
        let is_over = content.source.as_ref().is_none_or(Body::is_end_stream);
        // The last piece counts until the connection asks for more.
        !content.broken && content.rest.is_empty() && content.handed == 0 && is_over
    }

    fn size_hint(&self) -> SizeHint {
        let content = lock(&self.pending.content);
        let left = content.source.as_ref().map_or(Some(0), |source| source.size_hint().exact());
        match left {
            Some(left) if !content.broken => SizeHint::with_exact(left + content.rest.len() as u64),
            _ => SizeHint::default(),
        }
    }
}

impl<S: BodySource> Drop for AccountedBody<S> {
    fn drop(&mut self) {
        let entry = lock(&self.pending.table.entries).remove(&self.number);
        drop(entry);
        self.pending.table.count(&self.pending.own, 0);
    }
}
