//! Progress of a connection: what is under way on it, and for whom it waits.
//!
//! A request that is being answered keeps its connection, and so does a watch that has nothing to say. An answer of which
//! the peer takes nothing does not: with a window of HTTP/2 at zero it could be held for ever, for TCP sees nothing wrong.
//! The server asks a body for its next piece when the last one has found room on its way, so an answer waits for its peer
//! from the moment it has given a piece until it is asked for another.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

/// The exchanges of a connection.
#[derive(Debug)]
pub(super) struct ConnectionActivity {
    started: Instant,
    // std's lock: held to put in and to take out.
    under_way: Mutex<OpenExchanges>,
}

#[derive(Debug, Default)]
struct OpenExchanges {
    next: u64,
    /// For each the time since when its peer is waited for, see [`ConnectionActivity::now`]; 0: it is not.
    exchanges: HashMap<u64, Arc<AtomicU64>>,
    /// When the last one ended.
    last: u64,
}

/// A request, from its head to the end of its answer.
#[derive(Debug)]
pub(super) struct ActiveExchange {
    activity: Arc<ConnectionActivity>,
    number: u64,
    waits: Arc<AtomicU64>,
}

impl ConnectionActivity {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), under_way: Mutex::default() })
    }

    /// A request begins.
    pub fn begin(self: &Arc<Self>) -> ActiveExchange {
        let waits = Arc::<AtomicU64>::default();
        let mut under_way = self.lock();
        let number = under_way.next;
        under_way.next += 1;
        under_way.exchanges.insert(number, waits.clone());
        ActiveExchange { activity: Arc::clone(self), number, waits }
    }

    /// How long the connection has been without a request.
    pub fn idle(&self) -> Duration {
        let under_way = self.lock();
        if under_way.exchanges.is_empty() { self.since(under_way.last) } else { Duration::ZERO }
    }

    /// How long the peer has taken nothing of the answer that has waited for it longest.
    pub fn stalled(&self) -> Duration {
        let under_way = self.lock();
        let waits = under_way.exchanges.values().map(|waits| waits.load(Ordering::Relaxed)).filter(|since| *since > 0);
        waits.min().map_or(Duration::ZERO, |since| self.since(since))
    }

    /// Milliseconds, 1 at least.
    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    fn since(&self, then: u64) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_millis(then))
    }

    fn lock(&self) -> MutexGuard<'_, OpenExchanges> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActiveExchange {
    /// The answer's body; the exchange ends with it.
    pub fn answer<B: Body<Data = Bytes>>(self, body: B) -> TrackedBody<B> {
        self.waits_for_peer();
        TrackedBody { body: Box::pin(body), exchange: self }
    }

    fn waits_for_peer(&self) {
        self.waits.store(self.activity.now(), Ordering::Relaxed);
    }
}

impl Drop for ActiveExchange {
    fn drop(&mut self) {
        let now = self.activity.now();
        let mut under_way = self.activity.lock();
        under_way.exchanges.remove(&self.number);
        under_way.last = now;
    }
}

/// A body that notes for whom it waits.
pub(super) struct TrackedBody<B> {
    body: Pin<Box<B>>,
    exchange: ActiveExchange,
}

impl<B: Body<Data = Bytes>> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.exchange.waits.store(0, Ordering::Relaxed);
        let polled = self.body.as_mut().poll_frame(cx);
        if polled.is_ready() {
            self.exchange.waits_for_peer();
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

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http_body_util::{BodyExt, StreamBody};
    use tokio::sync::mpsc;

    use super::*;

    /// Whether nobody asks for anything, and whether some answer waits for its peer.
    fn look(activity: &ConnectionActivity) -> (bool, bool) {
        let under_way = activity.lock();
        let waits = under_way.exchanges.values().any(|waits| waits.load(Ordering::Relaxed) > 0);
        (under_way.exchanges.is_empty(), waits)
    }

    #[tokio::test]
    async fn an_answer_waits_for_its_peer_or_for_what_there_is_to_say() {
        let activity = ConnectionActivity::new();
        assert_eq!(look(&activity), (true, false));
        // While a request is worked on, nobody is idle.
        let exchange = activity.begin();
        assert_eq!(look(&activity), (false, false));
        assert_eq!((activity.idle(), activity.stalled()), (Duration::ZERO, Duration::ZERO));
        let (say, mut said) = mpsc::unbounded_channel::<Bytes>();
        let pieces = futures::stream::poll_fn(move |cx| {
            said.poll_recv(cx).map(|piece| piece.map(|piece| Ok::<_, std::convert::Infallible>(Frame::data(piece))))
        });
        let mut answer = exchange.answer(StreamBody::new(pieces));
        // Its head is there, and nobody asks for the body.
        assert_eq!(look(&activity), (false, true));
        // It is asked for, and there is nothing to say yet.
        assert!(answer.frame().now_or_never().is_none());
        assert_eq!(look(&activity), (false, false));
        // A piece is given, and no other one asked for, whatever goes on beside it.
        say.send(Bytes::from_static(b"piece")).expect("said");
        assert!(answer.frame().now_or_never().is_some());
        drop(activity.begin());
        assert_eq!(look(&activity), (false, true));
        drop(answer);
        assert_eq!(look(&activity), (true, false));
        assert_eq!(activity.stalled(), Duration::ZERO);
    }
}
