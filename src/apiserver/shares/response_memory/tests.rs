//! Tests of the bound on what answers hold: who gives way, and who is told.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame};
use http_body_util::BodyExt;

use super::*;

fn begin(memory: &ResponseMemory, caller: &str, bytes: usize) -> axum::body::Body {
    let hold = ResponseReservation {
        table: Arc::clone(&memory.0),
        caller: caller.into(),
        what: "texts".into(),
        time: time_for(bytes),
        base: 0,
        connection: ConnectionHandle::default(),
    };
    body(FullBody(vec![b' '; bytes].into()), Some(hold))
}

/// Length of what comes, and whether it is whole.
async fn read(mut body: axum::body::Body) -> (usize, bool) {
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => length += frame.into_data().map_or(0, |data| data.len()),
            Err(_) => return (length, false),
        }
    }
    (length, true)
}

#[tokio::test]
async fn who_holds_most_gives_way_the_oldest_first() {
    let memory = ResponseMemory::bounded(Retired::default(), usize::MAX, 1_000_000);
    let honest = begin(&memory, "alice", 200_000);
    let many: Vec<_> = (0..20).map(|_| begin(&memory, "mallory", 100_000)).collect();
    assert!(memory.0.own.load(Ordering::Relaxed) <= 1_000_000);
    assert_eq!(read(honest).await, (200_000, true));
    let mut whole = Vec::new();
    for body in many {
        whole.push(read(body).await == (100_000, true));
    }
    assert!(whole.is_sorted() && !whole[0] && whole[19], "{whole:?}");
    // An error is told once for all: nothing of it is left.
    assert_eq!((memory.0.own.load(Ordering::Relaxed), lock(&memory.0.entries).len()), (0, 0));
    assert_eq!(memory.0.ended.get(), whole.iter().filter(|whole| !**whole).count() as u64);
}

#[tokio::test]
async fn what_is_long_has_more_time_and_not_for_ever() {
    let memory = ResponseMemory::bounded(Retired::default(), usize::MAX, usize::MAX);
    let long = 10 * RATE;
    let (mut first, other) = (begin(&memory, "alice", long), begin(&memory, "alice", 2 * long));
    let taken = first.frame().await.unwrap().unwrap().into_data().unwrap().len();
    assert_eq!(taken, PIECE);
    let begun = Instant::now();
    memory.end_overdue(begun + Duration::from_secs(65));
    assert_eq!(first.frame().await.unwrap().unwrap().into_data().unwrap().len(), PIECE);
    memory.end_overdue(begun + Duration::from_secs(71));
    assert_eq!((read(first).await, read(other).await), ((0, false), (2 * long, true)));
}

#[tokio::test]
async fn who_waits_for_more_is_told() {
    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    impl BodySource for Silent {
        fn retired(&self) -> usize {
            0
        }

        fn own(&self) -> usize {
            1
        }
    }

    let memory = ResponseMemory::bounded(Retired::default(), usize::MAX, usize::MAX);
    let hold = ResponseReservation {
        table: Arc::clone(&memory.0),
        caller: "alice".into(),
        what: "nothing".into(),
        time: TIME,
        base: 0,
        connection: ConnectionHandle::default(),
    };
    let waiting = tokio::spawn(read(body(Silent, Some(hold))));
    while memory.0.entries.lock().unwrap().values().all(|entry| entry.answer.own() == 0) {
        tokio::task::yield_now().await;
    }
    tokio::task::yield_now().await;
    memory.end_overdue(Instant::now() + TIME);
    assert_eq!(waiting.await.unwrap(), (0, false));
}
