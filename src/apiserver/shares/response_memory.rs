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
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, header};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::caller_shares;
use crate::store::{Retired, Store};

mod body;

pub(in crate::apiserver) use body::{BodySource, FullBody, body};

use body::{Abortable, AccountedBody, PendingContent, PendingResponse};

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

/// The answers under way. Cheap to clone.
#[derive(Clone)]
pub(in crate::apiserver) struct ResponseMemory(Arc<ResponseTable>);

struct ResponseTable {
    retired: Retired,
    retired_max: usize,
    own: AtomicUsize,
    own_max: usize,
    next: AtomicU64,
    /// In the order in which they began.
    // std's lock, as all of these: held for map operations only.
    entries: Mutex<BTreeMap<u64, HeldResponse>>,
    /// Held while answers are broken off.
    busy: Mutex<()>,
    /// When nothing could be broken off, what has to be retired until it is looked again.
    futile: AtomicUsize,
    ended: Counter,
    told: Mutex<LastTold>,
}

#[derive(Clone)]
struct HeldResponse {
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
    answers: Vec<(usize, HeldResponse)>,
}

#[derive(Default)]
struct LastTold {
    at: Option<Instant>,
    left_out: u64,
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

/// Room for an answer that is about to begin.
pub(in crate::apiserver) struct ResponseReservation {
    table: Arc<ResponseTable>,
    caller: Arc<str>,
    what: Arc<str>,
    time: Duration,
    base: usize,
    connection: ConnectionHandle,
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
        Self(Arc::new(ResponseTable {
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
        let all: Vec<HeldResponse> =
            lock(&self.0.entries).values().filter(|entry| entry.deadline <= now).cloned().collect();
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

impl ResponseTable {
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
        let all: Vec<HeldResponse> = lock(&self.entries).values().cloned().collect();
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

    fn end(&self, entry: &HeldResponse, reason: &str) {
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
            reason = reason,
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
        let entry = HeldResponse {
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

#[cfg(test)]
mod tests;
