//! The queue of lines before the file: who may have how many of its places.
//!
//! Whoever writes waits for a place, so the file may be slow and nobody else's. Of one caller only so many lines wait: their next
//! request waits for their own lines, and the others' goes on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::apiserver::answers::status::ApiError;

/// Lines that may wait.
pub(super) const PLACES: usize = 4096;

/// Lines of one caller that may wait: an eighth.
const OF_ONE: usize = PLACES / 8;

/// Callers that are remembered before it is looked who of them has no line any more.
const CALLERS: usize = 1024;

/// What the file's writer is told.
pub(super) enum AuditMessage {
    Line(AuditLine),
    Close(oneshot::Sender<()>),
}

/// A line, with what it takes of its caller's share until it is written.
pub(super) struct AuditLine {
    pub text: Vec<u8>,
    /// Whether it is beyond its caller's share of the file.
    pub is_beyond: bool,
    _share: Option<OwnedSemaphorePermit>,
}

impl AuditLine {
    /// One that counts for nobody.
    pub fn of_nobody(text: Vec<u8>) -> Self {
        Self { text, is_beyond: false, _share: None }
    }
}

/// A place in the queue.
pub(super) struct QueuePlace {
    place: mpsc::OwnedPermit<AuditMessage>,
    share: Option<OwnedSemaphorePermit>,
}

impl QueuePlace {
    /// Puts a line into it.
    pub fn put(self, text: Vec<u8>, is_beyond: bool) {
        self.place.send(AuditMessage::Line(AuditLine { text, is_beyond, _share: self.share }));
    }
}

/// The queue's door. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct AuditQueue {
    pub messages: mpsc::Sender<AuditMessage>,
    /// How long a change waits for a place.
    pub patience: Duration,
    // std's lock: held to look only.
    shares: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

impl AuditQueue {
    pub fn new(messages: mpsc::Sender<AuditMessage>, patience: Duration) -> Self {
        Self { messages, patience, shares: Arc::default() }
    }

    /// Takes a place for a line of a caller; of Slipway itself for nobody.
    ///
    /// # Errors
    ///
    /// 503 when there is none in time.
    pub async fn reserve(&self, caller: Option<&str>) -> Result<QueuePlace, ApiError> {
        let mut share = None;
        let place = async {
            if let Some(caller) = caller {
                // It is never closed.
                share = self.share(caller).acquire_owned().await.ok();
            }
            self.messages.clone().reserve_owned().await
        };
        match timeout(self.patience, place).await {
            Ok(Ok(place)) => Ok(QueuePlace { place, share }),
            Ok(Err(_)) => Err(ApiError::unavailable("the audit log is closed")),
            Err(_) if caller.is_some() && share.is_none() => Err(ApiError::unavailable(format!(
                "the audit log is slow, and {OF_ONE} lines of this caller wait to be written: make fewer requests at once"
            ))),
            Err(_) => Err(ApiError::unavailable(
                "the audit log cannot be written, so nothing may be changed and no Secret be read",
            )),
        }
    }

    fn share(&self, caller: &str) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if shares.len() >= CALLERS {
            // Nobody waits for it, and nothing of it is taken.
            shares.retain(|_, share| Arc::strong_count(share) > 1 || share.available_permits() < OF_ONE);
        }
        Arc::clone(shares.entry(caller.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(OF_ONE))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_lines_of_one_caller_leave_places_to_others() {
        let (sender, mut receiver) = mpsc::channel(PLACES);
        let queue = AuditQueue::new(sender, Duration::from_millis(5));
        for number in 0..OF_ONE {
            queue
                .reserve(Some("greedy"))
                .await
                .unwrap_or_else(|error| panic!("{number}: {error:?}"))
                .put(vec![1], false);
        }
        let error = queue.reserve(Some("greedy")).await.err().expect("a refusal");
        assert_eq!((error.code.as_u16(), error.message.contains("of this caller")), (503, true), "{error:?}");
        for caller in [Some("other"), None] {
            queue.reserve(caller).await.unwrap_or_else(|error| panic!("{error:?}")).put(vec![2], false);
        }
        // What was written makes room, and a place that was given back.
        let Some(AuditMessage::Line(line)) = receiver.recv().await else { panic!("a line") };
        assert!(queue.reserve(Some("greedy")).await.is_err(), "it is not written yet");
        drop(line);
        drop(queue.reserve(Some("greedy")).await.unwrap_or_else(|error| panic!("{error:?}")));
        assert!(queue.reserve(Some("greedy")).await.is_ok());
        // Callers who have no line are forgotten.
        for number in 0..2 * CALLERS {
            assert!(queue.reserve(Some(&number.to_string())).await.is_ok());
        }
        assert!(queue.shares.lock().unwrap().len() <= CALLERS + 2);
        assert!(queue.shares.lock().unwrap().contains_key("greedy"));
    }
}
