//! Images that are sent to the appliance: what has come, and when it is not needed any more.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use kube::ResourceExt;
use kube::runtime::controller::Action;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{CHECK_EVERY, ImageContext, generation};
use crate::api::slipway::{Image, ImagePhase, ImageStatus};
use crate::image::ImportError;
use crate::image::scheme::uploaded_file;
use crate::image::upload::WholeUpload;
use crate::runtime::{SupervisedTask, objects};

/// What an Image says while its content is still to be sent.
const AWAITED: &str =
    "waiting for its content: `slipway image import NAME FILE` sends it, and goes on where it was cut off";

/// How often what is of no use is removed, besides the times when an Image goes or an upload begins.
const COLLECT_EVERY: Duration = Duration::from_secs(600);
/// Shortest time between two such looks.
const COLLECT_PAUSE: Duration = Duration::from_millis(200);

impl ImageContext {
    /// What was sent for an Image; none of another kind of source.
    pub(super) async fn uploaded(&self, image: &Image) -> Result<Option<WholeUpload>, ImportError> {
        if uploaded_file(&image.spec.url).is_none() {
            return Ok(None);
        }
        let again = "its content was sent once and is gone: `slipway image import` sends it again";
        match self.whole(image).await {
            Ok(Some(whole)) => Ok(Some(whole)),
            Ok(None) => Err(ImportError::lasting(again)),
            Err(error) => Err(ImportError::passing(format!("what was sent cannot be read: {error}"))),
        }
    }

    async fn whole(&self, image: &Image) -> io::Result<Option<WholeUpload>> {
        let (library, uid) = (self.library.clone(), image.uid().unwrap_or_default());
        tokio::task::spawn_blocking(move || library.inner.uploads.whole(&uid)).await.map_err(io::Error::other)?
    }

    /// Bytes that were sent for an Image and are not imported.
    pub(super) async fn upload_bytes(&self, image: &Image) -> u64 {
        self.whole(image).await.ok().flatten().map_or(0, |whole| whole.bytes)
    }

    /// When to look again at an Image whose content is still to be sent. It says so.
    pub(super) async fn awaits_upload(
        &self,
        image: &Image,
        status: &ImageStatus,
    ) -> Result<Option<Action>, Arc<kube::Error>> {
        // What cannot be read is not what was never sent: the import says why, and is tried again.
        if uploaded_file(&image.spec.url).is_none() || !matches!(self.whole(image).await, Ok(None)) {
            return Ok(None);
        }
        let says = status.phase == ImagePhase::Pending
            && status.message.as_deref() == Some(AWAITED)
            && status.observed_generation == Some(generation(image));
        if !says {
            let waiting = json!({ "phase": "Pending", "percent": null, "message": AWAITED });
            self.report(image, super::merged(&super::base(image, 0), waiting)).await?;
        }
        Ok(Some(Action::requeue(CHECK_EVERY)))
    }

    /// What was sent is in the library now, or of no use.
    pub(super) async fn drop_upload(&self, uid: Option<String>) {
        let (library, uid) = (self.library.clone(), uid.unwrap_or_default());
        let removed = tokio::task::spawn_blocking(move || library.inner.uploads.remove(&uid)).await;
        if let Err(error) = removed.map_err(io::Error::other).and_then(|removed| removed) {
            tracing::warn!(%error, "cannot remove what was sent for an image");
        }
    }

    /// Removes what was sent for Images that are gone: as soon as one goes, for it keeps a place and room from others. Where an
    /// upload begins for one that went meanwhile, too.
    pub(super) async fn collect_uploads_when_needed(&self, task: SupervisedTask) {
        let mut tick = interval(COLLECT_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                () = self.shared.uploads.notified() => {}
                () = self.library.upload_begins() => {}
                _ = tick.tick() => {}
            }
            let start = Instant::now();
            if let Err(error) = task.run(self.collect_uploads()).await {
                tracing::warn!(%error, "cannot remove what was sent for images that are gone");
            }
            task.next_in(COLLECT_EVERY);
            // Who begins uploads all the time does not keep this busy.
            let pause = COLLECT_PAUSE.max(start.elapsed() * 8);
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }

    async fn collect_uploads(&self) -> anyhow::Result<()> {
        if !self.library.has_uploads() {
            return Ok(());
        }
        let (listed, mut uids) = (Instant::now(), HashSet::new());
        objects::each(&self.images, |image| uids.extend(image.metadata.uid)).await?;
        let (library, now) = (self.library.clone(), SystemTime::now());
        let gone = tokio::task::spawn_blocking(move || library.collect_uploads(&uids, listed, now)).await??;
        if gone > 0 {
            tracing::info!(uploads = gone, "removed what was sent for images that are gone, or not sent on");
        }
        Ok(())
    }
}
