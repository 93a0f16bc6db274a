//! Work that takes a worker of the runtime for long is done aside, so that the other requests of that worker go on.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Bytes that a request works on from which on it counts as long.
pub(super) const LONG_FROM: usize = 64 * 1024;

/// Does work on this many bytes.
pub(super) fn on_bytes<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    when(bytes >= LONG_FROM, work)
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
