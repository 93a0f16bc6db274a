//! The rest of a request's body that nobody read.
//!
//! A request may be answered before its body is read to the end: nobody may send it, or there is no place for it. HTTP/2 then resets
//! the stream behind the answer (RFC 9113, section 8.1), and clients that still send lose the answer with it. So a refusal waits until
//! the body is over, as long as that takes little. On HTTP/1 the [end of the connection](crate::apiserver::listener::lingering_close) waits.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

use super::body::BODY_MAX;

/// How long the rest is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of it that are thrown away: as many as a body may have that is read.
const REST_MAX: usize = BODY_MAX;

/// A body that is lent to who serves the request. It comes back when that drops it.
pub(in crate::apiserver) struct LentBody<B> {
    body: Option<B>,
    back: Arc<Mutex<Option<B>>>,
}

/// Where a lent body comes back to.
pub(in crate::apiserver) struct UnreadBody<B>(Arc<Mutex<Option<B>>>);

/// The body to be served, and where it comes back to.
pub(in crate::apiserver) fn lend<B>(body: B) -> (LentBody<B>, UnreadBody<B>) {
    let back = Arc::default();
    (LentBody { body: Some(body), back: Arc::clone(&back) }, UnreadBody(back))
}

impl<B> Drop for LentBody<B> {
    fn drop(&mut self) {
        *self.back.lock().unwrap_or_else(PoisonError::into_inner) = self.body.take();
    }
}

impl<B: Body + Unpin> Body for LentBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        self.body.as_mut().map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl<B: Body + Unpin> UnreadBody<B> {
    /// Reads and throws away what is left, within bounds. Nothing, when somebody still has the body.
    pub async fn throw_away(self) {
        let body = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut body) = body.filter(|body| !body.is_end_stream()) else { return };
        let rest = async {
            let mut left = REST_MAX;
            while let Some(Ok(frame)) = body.frame().await {
                let length = frame.data_ref().map_or(0, bytes::Buf::remaining);
                match left.checked_sub(length) {
                    Some(rest) => left = rest,
                    None => return,
                }
            }
        };
        tokio::time::timeout(PATIENCE, rest).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use futures::stream;
    use http_body_util::{Full, StreamBody};

    use super::*;

    #[tokio::test]
    async fn what_is_left_is_thrown_away_within_bounds() {
        let taken = Arc::new(AtomicUsize::new(0));
        let count = taken.clone();
        let endless = stream::repeat_with(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[0; 1 << 16])))
        });
        let (mut lent, unread) = lend(StreamBody::new(endless));
        lent.frame().await.unwrap().unwrap();
        drop(lent);
        unread.throw_away().await;
        assert_eq!(taken.load(Ordering::Relaxed), 2 + (REST_MAX >> 16));
        let never = stream::pending::<Result<Frame<Bytes>, Infallible>>();
        let (lent, unread) = lend(StreamBody::new(never));
        drop(lent);
        let began = tokio::time::Instant::now();
        unread.throw_away().await;
        assert!(began.elapsed() >= PATIENCE);
        // What somebody still reads is theirs.
        let (mut lent, unread) = lend(Full::new(Bytes::from_static(b"a")));
        unread.throw_away().await;
        assert!(lent.frame().await.is_some() && lent.is_end_stream());
    }
}
