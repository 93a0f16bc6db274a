//! Keeps the library as the Image objects want it.
//!
//! Each Image goes from `Pending` over `Importing` to `Ready` or `Failed`. A failure that may pass is tried again
//! after 1 minute, then 2, 4 and so on up to an hour; one that cannot waits for a change of the spec. `Ready` is
//! believed only while the library holds every chunk, so an Image whose files were lost is imported again.
//!
//! Some imports run at once. The next is of the namespace that has least under way, and a source that brings next to
//! nothing while others wait gives its place away.
//!
//! What no Image and no boot intent names is removed from the library. That is decided while no import runs, and
//! never when the objects cannot be listed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{Notify, RwLock, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::turns::{LeastRate, Pace, Turns};
use super::{ImportError, ImportProgress, Imported, Library};
use crate::api::slipway::{ANNOTATION_ASKED_BY, BootIntent, Image, ImagePhase};
use crate::engine::ending::to_its_end;

/// First pause after a failure, and the longest.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));
/// Least that a source brings while others wait: with less, 2 GB take half a day.
const LEAST_RATE: LeastRate = LeastRate { bytes: 40_000, over: Duration::from_secs(60) };
/// Shortest time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How often chunks of Images that are `Ready` are looked for.
const CHECK_EVERY: Duration = Duration::from_secs(3600);
/// How often what nothing names is removed, besides the times when an Image goes.
const COLLECT_EVERY: Duration = Duration::from_secs(600);
/// After the API failed.
const API_RETRY: Duration = Duration::from_secs(5);

/// Runs until `shutdown`, with at most `imports` imports at once. Imports under way end there and begin again at
/// the next start.
pub async fn run(client: Client, library: Library, imports: usize, shutdown: CancellationToken) {
    run_with(client, library, imports, shutdown, BACK_OFF, LEAST_RATE).await;
}

async fn run_with(
    client: Client,
    library: Library,
    imports: usize,
    shutdown: CancellationToken,
    back_off: (Duration, Duration),
    least: LeastRate,
) {
    let images: Api<Image> = Api::all(client.clone());
    let context = Arc::new(Context {
        images: images.clone(),
        intents: Api::all(client),
        library,
        turns: Turns::new(imports),
        gate: RwLock::new(()),
        running: Mutex::default(),
        failed: Mutex::default(),
        collect: Notify::new(),
        shutdown: shutdown.clone(),
        back_off,
        least,
    });
    let controller = Controller::new(images, watcher::Config::default());
    let store = controller.store();
    let controller = controller
        .graceful_shutdown_on(shutdown.clone().cancelled_owned())
        .run(
            reconcile,
            |image, error, _| {
                tracing::warn!(image = image.name_any(), %error, "the API failed while an image was looked after");
                Action::requeue(API_RETRY)
            },
            context.clone(),
        )
        .for_each(|result| async move {
            if let Err(error) = result {
                tracing::debug!(%error, "image controller");
            }
        });
    let controller = to_its_end(controller, store, shutdown);
    tokio::join!(controller, context.follow(), context.collect_when_needed());
}

struct Context {
    images: Api<Image>,
    intents: Api<BootIntent>,
    library: Library,
    turns: Turns,
    /// Held shared from before an import until its digest is in the object's status, alone while collecting.
    gate: RwLock<()>,
    running: Mutex<HashMap<String, Running>>,
    /// By UID: the generation that failed, and when to try it again.
    failed: Mutex<HashMap<String, (i64, Option<Instant>)>>,
    collect: Notify,
    shutdown: CancellationToken,
    back_off: (Duration, Duration),
    least: LeastRate,
}

struct Running {
    uid: String,
    generation: i64,
    stop: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Only single inserts and removals happen under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn generation(image: &Image) -> i64 {
    image.metadata.generation.unwrap_or(0)
}

async fn reconcile(image: Arc<Image>, context: Arc<Context>) -> Result<Action, kube::Error> {
    // The cache may be older than our own last write, and an import is too dear to be done twice.
    let Some(image) = context.images.get_opt(&image.name_any()).await? else {
        return Ok(Action::await_change());
    };
    if image.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let uid = image.uid().unwrap_or_default();
    let status = image.status.clone().unwrap_or_default();
    let current = status.observed_generation == Some(generation(&image));
    if let Some(digest) = status.digest.clone().filter(|_| current && status.phase == ImagePhase::Ready) {
        let library = context.library.clone();
        let holds = tokio::task::spawn_blocking(move || library.holds(&digest)).await.unwrap_or(false);
        if holds {
            return Ok(Action::requeue(CHECK_EVERY));
        }
        tracing::warn!(image = image.name_any(), "parts of an image are gone from the library; importing it again");
    }
    if current && status.phase == ImagePhase::Failed {
        let known = lock(&context.failed).get(&uid).copied();
        match known.filter(|(of, _)| *of == generation(&image)) {
            Some((_, None)) => return Ok(Action::await_change()),
            Some((_, Some(at))) if at > Instant::now() => return Ok(Action::requeue(at - Instant::now())),
            // Time to try again, or this program has started since.
            _ => {}
        }
    }
    let failures = if current { status.fail_count } else { 0 };
    context.import(&image, &uid, failures).await
}

impl Context {
    async fn import(&self, image: &Image, uid: &str, failures: i64) -> Result<Action, kube::Error> {
        let (name, stop) = (image.name_any(), self.shutdown.child_token());
        let running = Running { uid: uid.to_owned(), generation: generation(image), stop: stop.clone() };
        lock(&self.running).insert(name.clone(), running);
        let result = tokio::select! {
            // The object has gone or changed, or the program ends: what is known of it is decided anew.
            () = stop.cancelled() => Ok(Action::requeue(Duration::ZERO)),
            result = self.import_now(image, uid, failures) => result,
        };
        lock(&self.running).remove(&name);
        // A collection that found the gate shut comes now.
        self.collect.notify_one();
        result
    }

    async fn import_now(&self, image: &Image, uid: &str, failures: i64) -> Result<Action, kube::Error> {
        let base = json!({ "observedGeneration": generation(image), "failCount": failures, "digest": null });
        let with = |over: Value| merged(&base, over);
        // Those that no host asked for are one party more.
        let owner = image.annotations().get(ANNOTATION_ASKED_BY).map_or("", String::as_str);
        let _turn = match self.turns.try_enter(owner) {
            Some(turn) => turn,
            None => {
                let waiting = json!({ "phase": "Pending", "percent": null, "message": "waiting for other imports" });
                self.report(image, with(waiting)).await?;
                self.turns.enter(owner).await
            }
        };
        let _gate = self.gate.read().await;
        self.report(image, with(json!({ "phase": "Importing", "percent": 0, "message": null }))).await?;
        tracing::info!(image = image.name_any(), "importing an image");
        let started = Instant::now();
        match self.import_reporting(image).await {
            Ok(imported) => {
                let Imported { digest, virtual_size, stored_size } = imported;
                tracing::info!(image = image.name_any(), digest, stored_size, took = ?started.elapsed(), "imported an image");
                lock(&self.failed).remove(uid);
                self.report(
                    image,
                    with(json!({
                        "phase": "Ready", "percent": 100, "message": null, "failCount": 0,
                        "digest": digest, "virtualSize": virtual_size, "storedSize": stored_size,
                    })),
                )
                .await?;
                Ok(Action::requeue(CHECK_EVERY))
            }
            Err(ImportError { message, retry }) => {
                tracing::warn!(image = image.name_any(), %message, retry, "an image was not imported");
                let pause = retry.then(|| pause(self.back_off, failures));
                let outlook = match pause {
                    Some(pause) => format!("trying again in {} s", pause.as_secs().max(1)),
                    None => "not trying again until the spec changes".into(),
                };
                let next = pause.map(|pause| Instant::now() + pause);
                lock(&self.failed).insert(uid.to_owned(), (generation(image), next));
                self.report(
                    image,
                    with(json!({
                        "phase": "Failed", "percent": null, "message": format!("{message} ({outlook})"),
                        "failCount": failures.saturating_add(1),
                    })),
                )
                .await?;
                Ok(pause.map_or_else(Action::await_change, Action::requeue))
            }
        }
    }

    /// Imports, and reports how far it is once a second. Fails when the source is slow and others wait.
    async fn import_reporting(&self, image: &Image) -> Result<Imported, ImportError> {
        let (send, mut progress) = watch::channel(ImportProgress::default());
        let import = self.library.import(&image.spec, move |now| _ = send.send_replace(now));
        tokio::pin!(import);
        let mut tick = interval(REPORT_EVERY.min(self.least.over));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said = 0;
        let mut pace = Pace::new(self.least, Instant::now());
        loop {
            tokio::select! {
                result = &mut import => return result,
                _ = tick.tick() => {
                    let now = *progress.borrow_and_update();
                    if pace.is_slow(Instant::now(), now.read) && !now.ended && self.turns.others_wait() {
                        let LeastRate { bytes, over } = self.least;
                        return Err(ImportError::passing(format!(
                            "the source brought less than {bytes} bytes a second over {over:?}, and other imports wait"
                        )));
                    }
                    let percent = percent(now);
                    if percent > said {
                        said = percent;
                        // The next report says the same and more.
                        if let Err(error) = self.report(image, json!({ "percent": percent })).await {
                            tracing::debug!(image = image.name_any(), %error, "progress was not reported");
                        }
                    }
                }
            }
        }
    }

    async fn report(&self, image: &Image, status: Value) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.images.patch_status(&image.name_any(), &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Stops imports of objects that have gone or changed.
    async fn follow(&self) {
        let events = watcher(self.images.clone(), watcher::Config::default()).default_backoff();
        tokio::pin!(events);
        let mut listed = HashSet::new();
        loop {
            let event = tokio::select! {
                () = self.shutdown.cancelled() => return,
                event = events.next() => event,
            };
            match event {
                None => return,
                Some(Ok(Event::Apply(image))) => self.stop(&image, false),
                Some(Ok(Event::Delete(image))) => {
                    self.stop(&image, true);
                    lock(&self.failed).remove(&image.uid().unwrap_or_default());
                    self.collect.notify_one();
                }
                Some(Ok(Event::Init)) => listed.clear(),
                Some(Ok(Event::InitApply(image))) => {
                    self.stop(&image, false);
                    listed.insert(image.uid().unwrap_or_default());
                }
                Some(Ok(Event::InitDone)) => {
                    for gone in lock(&self.running).values().filter(|r| !listed.contains(&r.uid)) {
                        gone.stop.cancel();
                    }
                    lock(&self.failed).retain(|uid, _| listed.contains(uid));
                    self.collect.notify_one();
                }
                Some(Err(error)) => tracing::debug!(%error, "watching images"),
            }
        }
    }

    fn stop(&self, image: &Image, gone: bool) {
        if let Some(running) = lock(&self.running).get(&image.name_any()) {
            let same = image.uid().as_deref() == Some(running.uid.as_str());
            if !same || gone || generation(image) > running.generation || image.metadata.deletion_timestamp.is_some() {
                running.stop.cancel();
            }
        }
    }

    async fn collect_when_needed(&self) {
        let mut tick = interval(COLLECT_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                () = self.collect.notified() => {}
                _ = tick.tick() => {}
            }
            // An import whose digest is in no status yet would lose it; its end brings us here again.
            let Ok(_gate) = self.gate.try_write() else { continue };
            match self.wanted().await {
                Ok(keep) => {
                    let library = self.library.clone();
                    match tokio::task::spawn_blocking(move || library.collect(&keep)).await {
                        Ok(Ok(gone)) if gone.images > 0 => {
                            tracing::info!(
                                images = gone.images,
                                bytes = gone.bytes,
                                "removed images that nothing names"
                            );
                        }
                        Ok(Ok(_)) => {}
                        Ok(Err(error)) => tracing::warn!(%error, "images that nothing names cannot be removed"),
                        Err(error) => tracing::warn!(%error, "images that nothing names were not removed"),
                    }
                }
                Err(error) => tracing::warn!(%error, "images and boot intents cannot be listed; nothing is removed"),
            }
        }
    }

    /// Digests that an Image or a boot intent names.
    async fn wanted(&self) -> Result<HashSet<String>, kube::Error> {
        let all = ListParams::default();
        let images = self.images.list(&all).await?.items.into_iter();
        let mut keep: HashSet<String> = images.filter_map(|image| image.status?.digest).collect();
        let intents = self.intents.list(&all).await?.items.into_iter();
        keep.extend(intents.flat_map(|intent| intent.spec.steps).filter_map(|step| step.image));
        Ok(keep)
    }
}

/// The pause before the next try: doubles with each failure before.
fn pause((first, longest): (Duration, Duration), failures: i64) -> Duration {
    let doublings = u32::try_from(failures.clamp(0, 16)).unwrap_or(16);
    first.saturating_mul(1 << doublings).min(longest)
}

/// 0 to 99; 100 is for an image that is ready.
fn percent(progress: ImportProgress) -> u64 {
    progress.total.filter(|total| *total > 0).map_or(0, |total| (progress.read.saturating_mul(100) / total).min(99))
}

fn merged(base: &Value, over: Value) -> Value {
    let mut merged = base.clone();
    if let (Value::Object(merged), Value::Object(over)) = (&mut merged, over) {
        merged.extend(over);
    }
    merged
}

#[cfg(test)]
mod tests;
