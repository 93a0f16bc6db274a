//! Slow readers: what answers hold while clients take them, and which are broken off when that is too much.
//!
//! A list's objects are the store's, so a list of any length costs a piece's memory. But what is written anew meanwhile is
//! held by the list alone, and whoever takes it byte by byte could hold as many former selves of a namespace as they begin
//! lists. So both are counted: what the store has let go of ([`Retired`]), and what answers hold of their own: text that is
//! made and not taken, positions in a list. Over a bound the answers of the caller who holds most are broken off, those
//! that hold most first, until there is room again; and one that is taken too slowly is broken off in any case.
//!
//! What is handed over to the connection is out of reach, so that is never more than a small piece, and the connection is
//! closed when the answer is broken off before it is taken.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderMap, header};
use http_body::{Body, Frame, SizeHint};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::caller_shares;
use crate::store::{Retired, Store};

#[cfg(test)]
mod tests;

/// What answers may hold of objects that the store has let go of, in bytes: 64 MiB.
const RETIRED_MAX: usize = 64 << 20;
/// What all answers may hold of their own, in bytes: 256 MiB.
const OWN_MAX: usize = 256 << 20;
/// Answers from this length on are counted, in bytes; a connection holds as much of each in any case.
pub(in crate::apiserver) const COUNTED_FROM: usize = 16 << 10;
/// Bytes after which a piece is sent.
pub(in crate::apiserver) const PIECE: usize = 64 * 1024;
/// What an answer holds while it is compressed, in bytes: the windows and tables of a gzip encoder.
const COMPRESSING: usize = 300 << 10;
/// Answers that a caller may have under way and still get another one compressed. Each piece of a compressed one takes a
/// processor for a millisecond or two, and those of hundreds of answers would stand before everybody's small requests.
const COMPRESSED_AT_ONCE: usize = 16;
/// When all answers together hold less than this part of what is retired, others hold it, and no answer is broken off.
const PART: usize = 4;
/// While nothing can be broken off, it is looked again only when so many bytes more are held.
const LOOK_AGAIN: usize = 4 << 20;

/// A caller has this long to take an answer, and a second more for each [`RATE`] bytes of its objects' text.
const TIME: Duration = Duration::from_secs(60);
const RATE: usize = 256 << 10;
/// How often it is looked for answers that take too long.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// At most one line in so long tells of answers that were broken off.
const TELL_EVERY: Duration = Duration::from_secs(60);

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

/// The answers under way. Cheap to clone.
#[derive(Clone)]
pub(in crate::apiserver) struct ResponseMemory(Arc<Table>);

struct Table {
    retired: Retired,
    retired_max: usize,
    own: AtomicUsize,
    own_max: usize,
    next: AtomicU64,
    /// In the order in which they began.
    // std's lock, as all of these: held for map operations only.
    entries: Mutex<BTreeMap<u64, Entry>>,
    /// Held while answers are broken off.
    busy: Mutex<()>,
    /// When nothing could be broken off, what has to be retired until it is looked again.
    futile: AtomicUsize,
    ended: Counter,
    told: Mutex<Told>,
}

#[derive(Clone)]
struct Entry {
    answer: Arc<dyn Abortable>,
    caller: Arc<str>,
    what: Arc<str>,
    /// When it is to be taken, if it is to end.
    deadline: Instant,
}

/// What a caller holds.
#[derive(Default)]
struct CallerUsage {
    bytes: usize,
    /// With what each holds, the one that holds most at the end.
    answers: Vec<(usize, Entry)>,
}

#[derive(Default)]
struct Told {
    at: Option<Instant>,
    left_out: u64,
}

/// An answer as those see it who may break it off.
trait Abortable: Send + Sync {
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
struct PendingResponse<S> {
    // std's lock: held while a piece is made.
    content: Mutex<PendingContent<S>>,
    own: AtomicUsize,
    /// What it holds besides its text.
    base: usize,
    table: Arc<Table>,
    connection: ConnectionHandle,
}

struct PendingContent<S> {
    source: Option<S>,
    /// Made, and not taken yet.
    rest: Bytes,
    /// Length of the piece that the connection got last, until it asks for another.
    handed: usize,
    /// Whether `rest` is a part of something larger.
    is_cut: bool,
    broken: bool,
    waker: Option<Waker>,
}

/// The connection on which an answer goes out, put into the extensions of the answer for the listener to fill in.
#[derive(Clone, Default)]
pub(in crate::apiserver) struct ConnectionHandle {
    cut: Arc<OnceLock<CancellationToken>>,
    may_compress: bool,
}

impl ConnectionHandle {
    /// Cancelling this token closes the connection.
    pub fn is_cut_by(&self, token: CancellationToken) {
        // An answer goes out once.
        self.cut.set(token).ok();
    }

    /// Whether the answer may be compressed: not when its caller has many under way.
    pub fn may_compress(&self) -> bool {
        self.may_compress
    }

    fn cut(&self) {
        if let Some(token) = self.cut.get() {
            token.cancel();
        }
    }
}

/// The answer was broken off.
#[derive(Debug, thiserror::Error)]
#[error("the answer was broken off, because it was taken too slowly")]
pub(super) struct Aborted;

/// Room for an answer that is about to begin.
pub(in crate::apiserver) struct ResponseReservation {
    table: Arc<Table>,
    caller: Arc<str>,
    what: Arc<str>,
    time: Duration,
    base: usize,
    connection: ConnectionHandle,
}

/// A body of which is counted what it holds.
struct AccountedBody<S: BodySource> {
    pending: Arc<PendingResponse<S>>,
    number: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long an answer with so many bytes of text may take.
fn time_for(text: usize) -> Duration {
    TIME + Duration::from_secs((text / RATE) as u64)
}

impl ResponseMemory {
    /// Those of a server on this store.
    pub fn new(store: &Store) -> Self {
        let memory = Self::bounded(store.retired(), RETIRED_MAX, OWN_MAX);
        let table = Arc::clone(&memory.0);
        store.set_on_retired(Arc::new(move || table.make_room()));
        memory
    }

    fn bounded(retired: Retired, retired_max: usize, own_max: usize) -> Self {
        Self(Arc::new(Table {
            retired,
            retired_max,
            own: AtomicUsize::new(0),
            own_max,
            next: AtomicU64::new(0),
            entries: Mutex::default(),
            busy: Mutex::default(),
            futile: AtomicUsize::new(0),
            ended: Counter::default(),
            told: Mutex::default(),
        }))
    }

    /// Breaks off answers that take too long until the server is shut down.
    pub async fn keep_moving(&self, shutdown: &CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => self.end_overdue(Instant::now()),
            }
        }
    }

    /// Breaks off answers that have taken too long by now.
    pub fn end_overdue(&self, now: Instant) {
        let all: Vec<Entry> = lock(&self.0.entries).values().filter(|entry| entry.deadline <= now).cloned().collect();
        for entry in all.iter().filter(|entry| entry.answer.is_bounded()) {
            self.0.end(entry, "it took too long");
        }
    }

    /// Adds what is held to a scrape.
    pub fn register(&self, registry: &mut Registry) {
        let gauge = |bytes: usize| {
            let gauge = Gauge::<i64>::default();
            gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
            gauge
        };
        let of_answers = gauge(self.0.own.load(Ordering::Relaxed));
        registry.register("slipway_answer_bytes", "What answers hold until they are taken", of_answers);
        let retired = gauge(self.0.retired.bytes());
        registry.register("slipway_retired_bytes", "Objects that are gone or replaced, and held by somebody", retired);
        registry.register("slipway_answers_broken_off", "Answers that were taken too slowly", self.0.ended.clone());
    }
}

impl Table {
    fn count(&self, own: &AtomicUsize, now: usize) {
        let before = own.swap(now, Ordering::Relaxed);
        self.own.fetch_add(now, Ordering::Relaxed);
        self.own.fetch_sub(before, Ordering::Relaxed);
    }

    /// Answers of a caller that come to an end by themselves, up to so many as count.
    fn bounded_of(&self, caller: &str) -> usize {
        let entries = lock(&self.entries);
        let own = entries.values().filter(|entry| &*entry.caller == caller && entry.answer.is_bounded());
        own.take(COMPRESSED_AT_ONCE).count()
    }

    fn is_crowded(&self) -> bool {
        self.own.load(Ordering::Relaxed) > self.own_max
    }

    /// Breaks answers off until what is held is under the bounds again.
    fn make_room(&self) {
        let retired = || self.retired.bytes();
        let own = || self.own.load(Ordering::Relaxed);
        if retired() <= self.retired_max {
            self.futile.store(0, Ordering::Relaxed);
            if own() <= self.own_max {
                return;
            }
        }
        // Somebody else is at it.
        let Ok(_busy) = self.busy.try_lock() else { return };
        if retired() > self.retired_max.max(self.futile.load(Ordering::Relaxed)) {
            // Some more, so that not each of the next writes finds too much again.
            let enough = || retired() <= self.retired_max / 4 * 3;
            self.end_most(|answer| answer.retired(), enough, self.retired_max / PART, "objects that were replaced");
            let futile = if retired() > self.retired_max { retired() + LOOK_AGAIN } else { 0 };
            self.futile.store(futile, Ordering::Relaxed);
        }
        if own() > self.own_max {
            self.end_most(|answer| answer.own(), || own() <= self.own_max / 4 * 3, 0, "text that was not taken");
        }
    }

    /// Breaks off the answers of the caller who holds most, those that hold most first, until it is enough. When all together
    /// hold less than `least`, it is not they who hold too much.
    fn end_most(
        &self,
        measure: impl Fn(&dyn Abortable) -> usize,
        is_enough: impl Fn() -> bool,
        least: usize,
        of: &str,
    ) {
        let all: Vec<Entry> = lock(&self.entries).values().cloned().collect();
        let mut callers: HashMap<Arc<str>, CallerUsage> = HashMap::new();
        // The youngest first, so that of those that hold the same the oldest is at the end.
        for entry in all.into_iter().rev() {
            let bytes = measure(&*entry.answer);
            if bytes > 0 {
                let own = callers.entry(Arc::clone(&entry.caller)).or_default();
                own.bytes += bytes;
                own.answers.push((bytes, entry));
            }
        }
        if callers.values().map(|own| own.bytes).sum::<usize>() < least {
            return;
        }
        callers.values_mut().for_each(|own| own.answers.sort_by_key(|(bytes, _)| *bytes));
        while !is_enough()
            && let Some(own) = callers.values_mut().max_by_key(|own| own.bytes)
            && let Some((bytes, entry)) = own.answers.pop()
        {
            own.bytes -= bytes;
            self.end(&entry, &format!("it held {bytes} bytes of {of}, and all too much"));
        }
    }

    fn end(&self, entry: &Entry, why: &str) {
        entry.answer.end();
        self.ended.inc();
        let left_out = {
            let mut told = lock(&self.told);
            if told.at.is_some_and(|at| at.elapsed() < TELL_EVERY) {
                told.left_out += 1;
                return;
            }
            told.at = Some(Instant::now());
            std::mem::take(&mut told.left_out)
        };
        let (user, what) = (&*entry.caller, &*entry.what);
        tracing::warn!(
            user,
            request = what,
            reason = why,
            left_out,
            "broke off an answer that its client takes too slowly"
        );
    }
}

impl ResponseReservation {
    /// For an answer to `user` that shows objects with so many bytes of text; `what` names them for the log.
    pub fn new(memory: &ResponseMemory, user: &str, what: &str, headers: &HeaderMap, text: usize) -> Self {
        let accepts = headers.get_all(header::ACCEPT_ENCODING).iter();
        let compresses = accepts.filter_map(|one| one.to_str().ok()).any(|one| one.contains("gzip"));
        let caller = caller_shares::caller(user);
        let may_compress = compresses && memory.0.bounded_of(caller) < COMPRESSED_AT_ONCE;
        Self {
            table: Arc::clone(&memory.0),
            caller: caller.into(),
            what: what.into(),
            time: time_for(text),
            base: if may_compress { COMPRESSING } else { 0 },
            connection: ConnectionHandle { may_compress, ..ConnectionHandle::default() },
        }
    }

    /// What is put into the extensions of the answer.
    pub fn connection(&self) -> ConnectionHandle {
        self.connection.clone()
    }

    fn begin<S: BodySource>(self, source: S) -> AccountedBody<S> {
        let content = PendingContent {
            source: Some(source),
            rest: Bytes::new(),
            handed: 0,
            is_cut: false,
            broken: false,
            waker: None,
        };
        let (own, table) = (AtomicUsize::new(0), self.table);
        let number = table.next.fetch_add(1, Ordering::Relaxed);
        let pending = Arc::new(PendingResponse {
            content: Mutex::new(content),
            own,
            base: self.base,
            table: Arc::clone(&table),
            connection: self.connection,
        });
        pending.count(&lock(&pending.content));
        let deadline = Instant::now() + self.time;
        let entry = Entry {
            answer: Arc::clone(&pending) as Arc<dyn Abortable>,
            caller: self.caller,
            what: self.what,
            deadline,
        };
        lock(&table.entries).insert(number, entry);
        if table.is_crowded() {
            table.make_room();
        }
        AccountedBody { pending, number }
    }
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
    fn count(&self, content: &PendingContent<S>) {
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
