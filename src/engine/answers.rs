//! Bounds on what the API server answers.
//!
//! The API server keeps the objects and is trusted with them, but not with this process's memory: an answer without end, or an
//! event without end, is broken off with an error that says so.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame};
use http_body_util::{BodyExt, StreamBody};
use kube::client::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tower::{BoxError, Layer, Service};

/// Most of an answer that is no watch, in bytes. An object has at most 1.5 MiB in etcd, and who lists asks for fewer objects
/// when a page is too long.
const ANSWER_MAX: usize = 32 << 20;
/// How much of it is read at any time, in bytes. Of answers that have more, one is read after the other.
const WITHOUT_A_TURN: usize = 1 << 20;
/// How long such an answer may take from its head to its end.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// Longest event of a watch, in bytes.
const EVENT_MAX: usize = 4 << 20;

/// Why an answer is not read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum AnswerTooMuch {
    #[error("the answer has more than {} MiB", ANSWER_MAX >> 20)]
    Answer,
    #[error("the answer did not end within {} s", ANSWER_TIME.as_secs())]
    Time,
    #[error("an event of the watch has more than {} MiB", EVENT_MAX >> 20)]
    Event,
}

/// Bounds the answers of a client's API server. Clones, and so all clients that it is given to, share one turn.
#[derive(Clone)]
pub(super) struct BoundedAnswers(Arc<Semaphore>);

impl Default for BoundedAnswers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl<S> Layer<S> for BoundedAnswers {
    type Service = Bounding<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Bounding { inner, turn: self.0.clone() }
    }
}

/// A service whose answers are bounded.
#[derive(Clone)]
pub(super) struct Bounding<S> {
    inner: S,
    turn: Arc<Semaphore>,
}

impl<S, B> Service<Request<Body>> for Bounding<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<BoundedBody>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let watches = is_watch(request.uri().query().unwrap_or_default());
        let (answer, turn) = (self.inner.call(request), self.turn.clone());
        Box::pin(async move {
            let bounded = |body: B| {
                let pieces = body.into_data_stream().map_err(Into::into).boxed();
                let pieces = if watches { events(pieces) } else { whole(pieces, turn) };
                StreamBody::new(pieces.map_ok(Frame::data).boxed())
            };
            Ok(answer.await?.map(bounded))
        })
    }
}

/// The body of a bounded answer.
type BoundedBody = StreamBody<BoxStream<'static, Result<Frame<Bytes>, BoxError>>>;
/// A body, piece by piece.
type BodyPieces = BoxStream<'static, Result<Bytes, BoxError>>;

pub(super) fn is_watch(query: &str) -> bool {
    query.split('&').any(|part| matches!(part, "watch=true" | "watch=1"))
}

/// An answer that is read to its end.
fn whole(pieces: BodyPieces, turn: Arc<Semaphore>) -> BodyPieces {
    struct BodyReading {
        pieces: BodyPieces,
        until: Instant,
        length: usize,
        turn: Arc<Semaphore>,
        mine: Option<OwnedSemaphorePermit>,
    }
    let reading = BodyReading { pieces, until: Instant::now() + ANSWER_TIME, length: 0, turn, mine: None };
    let next = async |mut reading: BodyReading| {
        let piece = timeout_at(reading.until, async {
            if reading.length > WITHOUT_A_TURN && reading.mine.is_none() {
                // Nobody closes it.
                reading.mine = reading.turn.clone().acquire_owned().await.ok();
            }
            reading.pieces.try_next().await
        });
        let Some(piece) = piece.await.map_err(|_| AnswerTooMuch::Time)?? else { return Ok(None) };
        reading.length = reading.length.saturating_add(piece.len());
        if reading.length > ANSWER_MAX { Err(AnswerTooMuch::Answer.into()) } else { Ok(Some((piece, reading))) }
    };
    stream::try_unfold(reading, next).boxed()
}

/// A watch: events, each a line.
fn events(pieces: BodyPieces) -> BodyPieces {
    let mut length = 0_usize;
    let bounded = move |piece: Bytes| {
        let longest = piece.split(|byte| *byte == b'\n').enumerate().map(|(at, line)| {
            length = if at == 0 { length.saturating_add(line.len()) } else { line.len() };
            length
        });
        let longest = longest.max().unwrap_or_default();
        std::future::ready(if longest > EVENT_MAX { Err(AnswerTooMuch::Event.into()) } else { Ok(piece) })
    };
    pieces.and_then(bounded).boxed()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::{ServiceExt, service_fn};

    use super::*;

    const PIECE: usize = 64 << 10;

    /// What came of a body of these pieces: its length, or why it was broken off.
    async fn read(
        bounds: &BoundedAnswers,
        query: &str,
        pieces: impl Iterator<Item = Bytes> + Send + 'static,
    ) -> String {
        let mut pieces = Some(pieces);
        let service = bounds.layer(service_fn(move |_: Request<Body>| {
            let frames = pieces.take().unwrap().map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
            async { Ok::<_, Infallible>(Response::new(StreamBody::new(stream::iter(frames)))) }
        }));
        let request = Request::builder().uri(format!("/api/v1/pods?{query}")).body(Body::empty()).unwrap();
        match BodyExt::collect(service.oneshot(request).await.unwrap().into_body()).await {
            Ok(all) => all.to_bytes().len().to_string(),
            Err(error) => error.to_string(),
        }
    }

    fn pieces(of: &'static [u8], count: usize) -> impl Iterator<Item = Bytes> + Send + 'static {
        std::iter::repeat_n(Bytes::from_static(of), count)
    }

    #[tokio::test]
    async fn what_does_not_end_is_broken_off() {
        static BLANK: [u8; PIECE] = [b' '; PIECE];
        static LINE: [u8; PIECE] = {
            let mut line = [b' '; PIECE];
            line[PIECE / 2] = b'\n';
            line
        };
        let bounds = BoundedAnswers::default();
        let length = |count: usize| (count * PIECE).to_string();
        let endless = usize::MAX;
        for (query, of, count, wanted) in [
            ("limit=50", &BLANK, 512, length(512)),
            ("limit=50", &BLANK, endless, AnswerTooMuch::Answer.to_string()),
            ("limit=50&xwatch=true", &LINE, endless, AnswerTooMuch::Answer.to_string()),
            // A watch may be as long as it likes.
            ("watch=true&resourceVersion=5", &LINE, 2000, length(2000)),
            ("a=b&watch=1", &BLANK, 64, length(64)),
            ("watch=true", &BLANK, endless, AnswerTooMuch::Event.to_string()),
        ] {
            assert_eq!(read(&bounds, query, pieces(of, count)).await, wanted, "{query}");
        }
    }

    #[tokio::test]
    async fn of_long_answers_one_is_read_after_the_other() {
        static BLANK: [u8; PIECE] = [b' '; PIECE];
        let bounds = BoundedAnswers::default();
        let (short, long) = (WITHOUT_A_TURN / PIECE, WITHOUT_A_TURN / PIECE * 2);
        let turn = bounds.0.clone().acquire_owned().await.unwrap();
        let waiting = tokio::spawn({
            let bounds = bounds.clone();
            async move { read(&bounds, "", pieces(&BLANK, long)).await }
        });
        assert_eq!(read(&bounds, "", pieces(&BLANK, short)).await, (short * PIECE).to_string());
        assert!(!waiting.is_finished());
        drop(turn);
        assert_eq!(waiting.await.unwrap(), (long * PIECE).to_string());
        assert_eq!(bounds.0.available_permits(), 1);
    }
}
