//! What clusters answer, bounded before anybody reads it.
//!
//! A cluster's API server may be anybody's program. A few bytes of JSON, an empty object say, become a value of some kilobytes, and
//! how many objects a list has is for the server to say, whatever `limit` asked for. So an answer's objects are counted first, and
//! all that are under way share the room that there is, each namespace a part of it. So does what is kept of them for a while.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Uri;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::json_marks::marks;

/// Bytes of an answer. A page of a hundred nodes, each with fifty images, has 5 MB.
pub(super) const ANSWER_MAX: usize = 8 << 20;
/// Objects and arrays of an answer. A page of a hundred nodes has 35,000, most of them in `managedFields`.
const CONTAINERS_MAX: usize = 60_000;
/// Values of an answer.
const VALUES_MAX: usize = 300_000;
/// Objects of a list for which no `limit` was asked.
const ITEMS_MAX: usize = 500;
/// The same of pods, each of which may become kilobytes. A page of sixteen has some thousands.
const OF_PODS_MAX: usize = 20_000;
/// Bytes of an answer that take no room: what is read of a cluster is mostly less.
pub(super) const FREE: usize = 64 << 10;
/// KiB of all answers that are under way.
pub(super) const UNDER_WAY: u32 = 128 << 10;
/// The part of a room that a namespace may take.
const PART: u32 = 4;

/// The room that all namespaces share.
#[derive(Clone)]
pub(super) struct Rooms {
    /// KiB of all.
    size: u32,
    all: Arc<Semaphore>,
    namespaces: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

impl Rooms {
    /// A room of so many KiB.
    pub(super) fn new(size: u32) -> Self {
        Self { size, all: Arc::new(Semaphore::new(size as usize)), namespaces: Arc::default() }
    }

    /// A namespace's part.
    pub(super) fn of(&self, namespace: &str) -> AnswerRoom {
        let size = self.size / PART;
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        let own = namespaces.get(namespace).and_then(Weak::upgrade).unwrap_or_else(|| {
            namespaces.retain(|_, part| part.strong_count() > 0);
            let own = Arc::new(Semaphore::new(size as usize));
            namespaces.insert(namespace.to_owned(), Arc::downgrade(&own));
            own
        });
        AnswerRoom { size, own, all: self.all.clone() }
    }
}

/// The room for what a namespace has. Cheap to clone.
#[derive(Clone)]
pub(super) struct AnswerRoom {
    /// KiB of it.
    size: u32,
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

/// What is taken of it, until it is dropped.
#[derive(Debug, Default)]
pub(super) struct RoomPermit {
    kib: u32,
    own: Option<OwnedSemaphorePermit>,
    all: Option<OwnedSemaphorePermit>,
}

impl AnswerRoom {
    /// Waits until there is room for what has grown to so many bytes. The namespace's part comes first: who has used that
    /// up waits in nobody else's way.
    pub(super) async fn grow(&self, taken: &mut RoomPermit, bytes: usize) {
        let (wanted, more) = self.lacks(taken, bytes);
        if more == 0 {
            return;
        }
        // Nobody closes them.
        let Ok(own) = self.own.clone().acquire_many_owned(more).await else { return };
        let Ok(all) = self.all.clone().acquire_many_owned(more).await else { return };
        taken.add(wanted, own, all);
    }

    /// Takes the room now, if there is any.
    pub(super) fn try_grow(&self, taken: &mut RoomPermit, bytes: usize) -> bool {
        let (wanted, more) = self.lacks(taken, bytes);
        if more == 0 {
            return true;
        }
        let Ok(own) = self.own.clone().try_acquire_many_owned(more) else { return false };
        let Ok(all) = self.all.clone().try_acquire_many_owned(more) else { return false };
        taken.add(wanted, own, all);
        true
    }

    /// KiB that so many bytes take, and how many of them are not taken yet.
    fn lacks(&self, taken: &RoomPermit, bytes: usize) -> (u32, u32) {
        let wanted = u32::try_from(bytes.saturating_sub(FREE).div_ceil(1 << 10)).unwrap_or(u32::MAX).min(self.size);
        (wanted, wanted.saturating_sub(taken.kib))
    }
}

impl RoomPermit {
    fn add(&mut self, kib: u32, own: OwnedSemaphorePermit, all: OwnedSemaphorePermit) {
        self.kib = kib;
        merge(&mut self.own, own);
        merge(&mut self.all, all);
    }
}

fn merge(before: &mut Option<OwnedSemaphorePermit>, more: OwnedSemaphorePermit) {
    match before {
        Some(before) => before.merge(more),
        None => *before = Some(more),
    }
}

/// An answer that holds its room until it was handed over.
pub(super) struct WorkloadAnswer {
    body: Full<Bytes>,
    _taken: RoomPermit,
}

impl WorkloadAnswer {
    pub(super) fn new(body: Bytes, taken: RoomPermit) -> Self {
        Self { body: Full::new(body), _taken: taken }
    }
}

impl Body for WorkloadAnswer {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// How many objects a request asks for at most.
pub(super) fn limit(uri: &Uri) -> usize {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.strip_prefix("limit="));
    pairs.filter_map(|limit| limit.parse().ok()).next().unwrap_or(ITEMS_MAX)
}

/// How many objects and arrays the answer to a request may have.
pub(super) fn containers(uri: &Uri) -> usize {
    if uri.path().ends_with("/pods") { OF_PODS_MAX } else { CONTAINERS_MAX }
}

/// Whether an answer may be read: it has not more values than real ones have, nor more objects than were asked for.
///
/// Only counts; whether it is JSON, its reader finds.
///
/// # Errors
///
/// What there is too much of.
pub(super) fn check(answer: &[u8], limit: usize, most: usize) -> Result<(), String> {
    let (mut depth, mut containers, mut values, mut items) = (0_usize, 0, 0, 0);
    let mut in_list = false;
    for mark in marks(answer) {
        match mark {
            b'{' | b'[' => {
                containers += 1;
                values += 1;
                // An array of the answer itself is what a list lists, however its key is written. Elements begin here,
                in_list = (in_list && depth >= 2) || (depth == 1 && mark == b'[');
                items += usize::from(in_list && depth == 1);
                depth += 1;
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' => {
                values += 1;
                // and here.
                items += usize::from(in_list && depth == 2);
            }
            _ => {}
        }
        if containers > most || values > VALUES_MAX {
            return Err(format!("its answer has more than {most} objects or {VALUES_MAX} values"));
        }
        if items > limit {
            return Err(format!("its answer lists more than the {limit} objects that were asked for"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn an_answer_has_so_many_values_and_what_was_asked_for() {
        let many = |one: &str, count: usize| vec![one; count].join(",");
        let list = |items: String| format!(r#"{{"metadata":{{}},"items":[{items}]}}"#);
        for (answer, limit, refused) in [
            (String::new(), 1, None),
            (r#"{"a":{"b":[1,2,3,{"c":[]}]}}"#.to_owned(), 1, None),
            (list(many("{}", 3)), 3, None),
            (list(many(r#"{"a":[1,2,3],"b":{"c":[4,5]}}"#, 3)), 3, None),
            (list(many("{}", 4)), 3, Some("more than the 3 objects")),
            (list(many("1", 4)), 3, Some("more than the 3 objects")),
            // However the key is written.
            (format!(r#"{{"\u0069tems":[{}]}}"#, many("{}", 4)), 3, Some("more than the 3 objects")),
            (format!(r#"{{"items":[{{}}],"items":[{}]}}"#, many("{}", 3)), 3, Some("more than the 3 objects")),
            // What is in strings are no values.
            (format!(r#"{{"a":"{}\"{}"}}"#, many("{[", CONTAINERS_MAX), many("[", 9)), 1, None),
            (format!(r#"{{"status":{{"conditions":[{}]}}}}"#, many("{}", CONTAINERS_MAX)), 1, Some("objects or")),
            (format!(r#"{{"status":{{"a":[{}]}}}}"#, many("1", VALUES_MAX)), 1, Some("objects or")),
            (format!(r#"{{"status":{{"a":[{}]}}}}"#, many("1", VALUES_MAX - 10)), 1, None),
            ("]]}}[[[[".to_owned(), 1, None),
        ] {
            let said = check(answer.as_bytes(), limit, CONTAINERS_MAX).err().unwrap_or_default();
            let is_right = refused.map_or(said.is_empty(), |words| said.contains(words));
            assert!(is_right, "{said:?}: {:?}", answer.chars().take(80).collect::<String>());
        }
    }

    #[test]
    fn what_is_asked_for_is_in_the_query() {
        for (uri, wanted) in
            [("/api/v1/nodes?limit=7", 7), ("/x?a=limit=3&limit=9", 9), ("/x?limit=-1", 500), ("/x", 500)]
        {
            assert_eq!(limit(&uri.parse().unwrap()), wanted, "{uri}");
        }
    }

    #[tokio::test]
    async fn a_namespace_takes_its_part_and_leaves_the_rest() {
        let rooms = Rooms::new(UNDER_WAY);
        let (one, other) = (rooms.of("one"), rooms.of("other"));
        let mut held = Vec::new();
        for _ in 0..(UNDER_WAY / PART) as usize / (ANSWER_MAX >> 10) {
            let mut taken = RoomPermit::default();
            one.grow(&mut taken, FREE + ANSWER_MAX / 2).await;
            one.grow(&mut taken, FREE + ANSWER_MAX).await;
            held.push(taken);
        }
        // The same part, whoever asks for it.
        let (mut small, mut large) = (RoomPermit::default(), RoomPermit::default());
        let again = rooms.of("one");
        again.grow(&mut small, FREE).await;
        assert!(again.try_grow(&mut small, FREE) && !again.try_grow(&mut small, FREE + 1));
        assert!(again.grow(&mut large, FREE + 1).now_or_never().is_none());
        let mut others = RoomPermit::default();
        assert!(other.grow(&mut others, FREE + ANSWER_MAX).now_or_never().is_some());
        held.pop();
        assert!(again.grow(&mut large, FREE + ANSWER_MAX).now_or_never().is_some());
        drop((held, small, large, others));
        assert_eq!(rooms.all.available_permits(), UNDER_WAY as usize);
    }
}
