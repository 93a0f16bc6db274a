//! Whether an Image that is `Ready` is still in the library.
//!
//! Only what is gone or damaged is imported again. A disk that fails for a moment, or too many open files, say nothing of an image:
//! it stays `Ready`, and keeps its names.

use std::io;
use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use serde_json::json;
use tokio::time::Instant;

use super::known::UnseenImage;
use super::{CHECK_EVERY, ImageContext, MAX_MESSAGE, lock, pause};
use crate::api::slipway::Image;
use crate::image::clean;

/// How what is said of an image begins that cannot be looked at.
const UNSEEN: &str = "its files in the library cannot be looked at: ";

impl ImageContext {
    /// When to look again at an Image that is ready; `None` when what it had in the library is gone.
    pub(super) async fn keeps(&self, image: &Image, digest: String) -> Result<Option<Action>, Arc<kube::Error>> {
        let (name, now) = (image.name_any(), Instant::now());
        let before = lock(&self.shared.unseen).get(&name).cloned().filter(|unseen| unseen.digest == digest);
        if let Some(again) = before.as_ref().map(|unseen| unseen.again).filter(|again| *again > now) {
            return Ok(Some(Action::requeue(again - now)));
        }
        let said = image.status.as_ref().and_then(|status| status.message.as_deref());
        match self.holds(&name, &digest).await {
            Ok(holds) => {
                lock(&self.shared.unseen).remove(&name);
                if holds && said.is_some_and(|said| said.starts_with(UNSEEN)) {
                    self.report(image, json!({ "message": null })).await?;
                }
                Ok(holds.then(|| Action::requeue(CHECK_EVERY)))
            }
            Err(error) => {
                let times = before.map_or(0, |unseen| unseen.times);
                let pause = pause(self.times.back_off, times);
                tracing::warn!(image = name, %error, ?pause, "cannot look at the files of an image in the library");
                let unseen = UnseenImage { digest, times: times.saturating_add(1), again: Instant::now() + pause };
                lock(&self.shared.unseen).insert(name, unseen);
                let message =
                    clean(&format!("{UNSEEN}{error} (trying again in {} s)", pause.as_secs().max(1)), MAX_MESSAGE);
                // What else it says, as that it is not published, matters more.
                if said.is_none_or(|said| said.starts_with(UNSEEN) && said != message) {
                    self.report(image, json!({ "message": message })).await?;
                }
                Ok(Some(Action::requeue(pause)))
            }
        }
    }

    /// Whether the library holds all of an image. Looking at every file takes long, and hosts change their Image's status
    /// as often as they like.
    async fn holds(&self, name: &str, digest: &str) -> io::Result<bool> {
        let is_fresh = |(of, at): &(String, Instant)| *of == digest && at.elapsed() < self.times.checked;
        if lock(&self.shared.checked).get(name).is_some_and(is_fresh) && self.library.knows(digest) {
            return Ok(true);
        }
        let (library, of) = (self.library.clone(), digest.to_owned());
        let holds = tokio::task::spawn_blocking(move || library.holds(&of)).await.map_err(io::Error::other)??;
        if holds {
            lock(&self.shared.checked).insert(name.to_owned(), (digest.to_owned(), Instant::now()));
        }
        Ok(holds)
    }
}
