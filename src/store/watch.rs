//! Watches: a position in the history of a resource, and nothing else.
//!
//! A watcher has no queue of its own. It reads the shared history at its own pace, so a slow one costs no memory and
//! never holds up the committer; when the history has moved on past its position, it is told so.

use std::sync::Arc;

use tokio::sync::watch;

use super::index::SharedStore;
use super::{Gone, StoreEvent};

/// Events of one resource, in order, none missing.
pub struct Watch {
    shared: Arc<SharedStore>,
    resource: Arc<str>,
    /// Revision of the last event given out.
    position: u64,
    news: watch::Receiver<()>,
}

impl Watch {
    pub(super) fn new(shared: &Arc<SharedStore>, name: &str, after: u64) -> Result<Self, Gone> {
        let resource: Arc<str> = name.into();
        // Before looking: an event that comes meanwhile is kept in the history, behind `after`.
        let news = shared.subscribe(&resource);
        let index = shared.read();
        let oldest = index.resource(name).map_or(0, |resource| resource.trimmed());
        // A revision that was never given is of another database; its holder must list again.
        if after < oldest || after > index.revision() || index.is_closed() {
            return Err(Gone { asked: after, oldest });
        }
        drop(index);
        Ok(Self { shared: Arc::clone(shared), resource, position: after, news })
    }

    /// The next event; [`Gone`] when this watcher fell too far behind or the store was closed. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Gone`]: list again and watch from there.
    pub async fn next(&mut self) -> Result<StoreEvent, Gone> {
        loop {
            // Marked as seen before looking, so that an event that comes after the look wakes the wait below.
            self.news.borrow_and_update();
            if let Some(event) = self.ready()? {
                return Ok(event);
            }
            if self.news.changed().await.is_err() {
                return Err(Gone { asked: self.position, oldest: self.position });
            }
        }
    }

    /// The next event if there is one already.
    fn ready(&mut self) -> Result<Option<StoreEvent>, Gone> {
        let index = self.shared.read();
        if let Some(resource) = index.resource(&self.resource) {
            if self.position < resource.trimmed() {
                return Err(Gone { asked: self.position, oldest: resource.trimmed() });
            }
            if let Some(logged) = resource.event_after(self.position) {
                self.position = logged.revision;
                return Ok(Some(logged.event.clone()));
            }
        }
        match index.is_closed() {
            true => Err(Gone { asked: self.position, oldest: self.position }),
            false => Ok(None),
        }
    }
}
