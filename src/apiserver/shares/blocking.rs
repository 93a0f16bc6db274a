//! Blocking work, moved off the workers that serve requests.
//!
//! Work that takes a worker of the runtime for long blocks the thread in place, so that the other requests of that worker go
//! on.
//!
//! That alone is not enough: each piece of such work has a thread of its own, and hundreds of them would leave the
//! processors to nobody else, and in the end the runtime without a thread. So who has long work to do waits for it first,
//! without a thread: a request for its caller's [turn](super::scan_scheduler::ScanScheduler::whole), and a body that is written
//! piece by piece until [`poll`] lets it in.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::runtime::{Handle, RuntimeFlavor};

/// Bytes that a request works on from which on it counts as long.
pub(in crate::apiserver) const LONG_FROM: usize = 64 * 1024;

/// Bytes of text that are unpacked at once for bodies, all together: unpacked each may take a hundred times as much.
const AT_ONCE: usize = 1 << 20;
/// Bytes of one text from which on it waits with others of its size, so that small ones do not always go first.
const LARGE_FROM: usize = AT_ONCE / 2;

/// Large ones go one at a time.
static LARGE: BlockingLimit = BlockingLimit::of(1);
static SMALL: BlockingLimit = BlockingLimit::of(AT_ONCE);

/// Does work on so many bytes for a body that is polled, when those of the others leave room for it. The work is to wait for
/// nothing.
pub(in crate::apiserver) fn poll<T>(cx: &Context<'_>, bytes: usize, work: impl FnOnce() -> T) -> Poll<T> {
    let permit = match bytes {
        ..LONG_FROM => return Poll::Ready(work()),
        LONG_FROM..LARGE_FROM => SMALL.try_acquire(cx, bytes),
        LARGE_FROM.. => LARGE.try_acquire(cx, 1),
    };
    match permit {
        Some(_pass) => Poll::Ready(in_place_if(true, work)),
        None => Poll::Pending,
    }
}

/// Lets in as much as is worked on at once. Nothing is kept for who waits: a body whose client takes nothing is not
/// asked for more, and would keep what is meant for it.
struct BlockingLimit(Mutex<Free>);

struct Free {
    room: usize,
    waiting: Vec<Waker>,
}

struct BlockingPermit<'l>(&'l BlockingLimit, usize);

impl BlockingLimit {
    const fn of(room: usize) -> Self {
        Self(Mutex::new(Free { room, waiting: Vec::new() }))
    }

    // std's lock: held for these.
    fn lock(&self) -> MutexGuard<'_, Free> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_acquire(&self, cx: &Context<'_>, amount: usize) -> Option<BlockingPermit<'_>> {
        let mut free = self.lock();
        match free.room.checked_sub(amount) {
            Some(left) => {
                free.room = left;
                Some(BlockingPermit(self, amount))
            }
            None => {
                free.waiting.push(cx.waker().clone());
                None
            }
        }
    }
}

impl Drop for BlockingPermit<'_> {
    fn drop(&mut self) {
        let mut free = self.0.lock();
        free.room += self.1;
        let waiting = std::mem::take(&mut free.waiting);
        drop(free);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Does work that may be long.
pub(in crate::apiserver) fn in_place_if<T>(long: bool, work: impl FnOnce() -> T) -> T {
    // A runtime of one thread has nobody who could take over.
    let others = || Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if long && others() { tokio::task::block_in_place(work) } else { work() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn one_thread_does_it_itself() {
        assert_eq!(in_place_if(true, || 5), 5);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_go_on_meanwhile() {
        let (tell, told) = mpsc::channel();
        let long = tokio::spawn(async move {
            tokio::spawn(async move { tell.send(()).unwrap() });
            // The only worker is here: without somebody in its place the other would never come to its turn.
            in_place_if(true, || told.recv().unwrap());
        });
        long.await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn bodies_wait_without_a_thread() {
        let (tell, told) = mpsc::channel();
        let work = |told: Option<mpsc::Receiver<()>>| async move {
            let told = told.map(Mutex::new);
            let wait = || {
                if let Some(told) = &told {
                    told.lock().unwrap().recv().unwrap();
                }
            };
            std::future::poll_fn(|cx| poll(cx, AT_ONCE * 3, wait)).await;
        };
        let first = tokio::spawn(work(Some(told)));
        // More than there are threads.
        let others: Vec<_> = (0..2000).map(|_| tokio::spawn(work(None))).collect();
        tokio::spawn(async move { tell.send(()).unwrap() }).await.unwrap();
        first.await.unwrap();
        for other in others {
            other.await.unwrap();
        }
    }
}
