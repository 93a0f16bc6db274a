//! Work that takes a worker of the runtime for long is done aside, so that the other requests of that worker go on.

use std::sync::{Condvar, Mutex, PoisonError};

use tokio::runtime::{Handle, RuntimeFlavor};

/// Bytes that a request works on from which on it counts as long.
pub(super) const LONG_FROM: usize = 64 * 1024;

/// Bytes of text that are worked on at once, all together: unpacked each may take a hundred times as much.
const AT_ONCE: usize = 1 << 20;

static GATE: Gate = Gate { bytes: Mutex::new(0), left: Condvar::new() };

/// Does work on this many bytes, when those of the others leave room for it. To be done without waiting for anything.
pub(super) fn on_bytes<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes < LONG_FROM {
        return work();
    }
    when(true, || {
        let _turn = GATE.enter(bytes.min(AT_ONCE));
        work()
    })
}

/// Lets in as much as is worked on at once.
struct Gate {
    bytes: Mutex<usize>,
    left: Condvar,
}

struct Turn<'g>(&'g Gate, usize);

impl Gate {
    fn enter(&self, bytes: usize) -> Turn<'_> {
        let within = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |within: &mut usize| *within + bytes > AT_ONCE;
        *self.left.wait_while(within, full).unwrap_or_else(PoisonError::into_inner) += bytes;
        Turn(self, bytes)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= self.1;
        self.0.left.notify_all();
    }
}

/// Does work that may be long.
pub(super) fn when<T>(long: bool, work: impl FnOnce() -> T) -> T {
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
        assert_eq!(on_bytes(usize::MAX, || 5), 5);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_go_on_meanwhile() {
        let (tell, told) = mpsc::channel();
        let long = tokio::spawn(async move {
            tokio::spawn(async move { tell.send(()).unwrap() });
            // The only worker is here: without somebody in its place the other would never come to its turn.
            on_bytes(LONG_FROM, || told.recv().unwrap());
        });
        long.await.unwrap();
    }
}
