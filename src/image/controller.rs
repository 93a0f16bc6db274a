//! The image controller: keeps the library as the Image objects want it.
//!
//! Each Image goes from `Pending` over `Importing` to `Ready` or `Failed`. A failure that may pass is tried again
//! after 1 minute, then 2, 4 and so on up to an hour; one that cannot waits for a change of the spec. `Ready` is
//! believed only while the library holds every chunk, so an Image whose files were lost is imported again; one whose files
//! cannot be looked at stays as it is, says so, and is looked at again, later each time.
//!
//! Imports are supervised ([`Jobs`](crate::runtime::Jobs)): one for each Image, which ends when its object goes or changes, and
//! is found again by whoever looks at the Image. Some run at once. Namespaces take turns at the places ([`super::turns`]):
//! what gives its place back keeps what it has read and goes on later. A source that brings next to nothing while others
//! wait ends, and so does one that takes longer than its size explains.
//!
//! When there is no room for an image, others give way ([`super::room`]): their objects go, and what they are in the
//! library. An Image that hosts asked for and none names any more is not imported further.
//!
//! What no Image and no boot intent names is removed from the library: at once while no import runs, else when it has been
//! there for a while; never when the objects cannot be listed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, stream};
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{RwLock, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::brake::Brake;
use super::demand::Demands;
use super::turns::{ImportTurn, LeastRate, Longest, PartialSource, SourcePace, TurnRules, Turns};
use super::upload::WholeUpload;
use super::{ImportError, ImportProgress, Imported, Library, SourceRead, clean};
use crate::api::slipway::{BootIntent, Image, ImagePhase};
use crate::runtime::tasks::{JobUnfinished, ObjectVersion};
use crate::runtime::{Reconcile, Slim, Tasks, key, run as run_controller};

/// How long things may take. Fixed outside of tests.
#[derive(Clone, Copy, Debug)]
struct ImportTimes {
    /// First pause after a failure, and the longest.
    back_off: (Duration, Duration),
    /// Least that a source brings while others wait.
    least: LeastRate,
    /// How long a place is its holder's while others wait.
    turn: Duration,
    /// How long an import may hold places in all.
    longest: Longest,
    /// So long after it was read last an image counts as being read.
    reading: Duration,
    /// So long an Image that no host names may be there before its import ends: the host that has it imported may be
    /// known here later than the Image.
    unwanted: Duration,
    /// Shortest time between two looks at who wants images.
    look_pause: Duration,
    /// So long an image whose files were all there is believed to have them.
    checked: Duration,
}

const TIMES: ImportTimes = ImportTimes {
    back_off: (Duration::from_secs(60), Duration::from_secs(3600)),
    // With less, 2 GB take half a day.
    least: LeastRate { bytes: 40_000, over: Duration::from_secs(60) },
    turn: Duration::from_secs(300),
    // 2 GB have half a day, 256 GiB two days.
    longest: Longest { base: Duration::from_secs(12 * 3600), rate: 2_000_000 },
    reading: Duration::from_secs(600),
    unwanted: Duration::from_secs(10),
    look_pause: Duration::from_secs(1),
    checked: Duration::from_secs(300),
};
/// Imports that keep what they have read while others have their turn.
const KEPT: usize = 8;
/// Shortest time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How often chunks of Images that are `Ready` are looked for.
const CHECK_EVERY: Duration = Duration::from_secs(3600);
/// Longest message of a failure, in characters: the URLs in it may be long, and hosts repeat it.
const MAX_MESSAGE: usize = 32 << 10;
/// After the API failed.
const API_RETRY: Duration = Duration::from_secs(5);

/// Runs until `shutdown`, with at most `imports` imports at once. Imports under way end there and begin again at the next
/// start.
pub async fn run(
    client: Client,
    library: Library,
    imports: usize,
    known: Images,
    tasks: Tasks,
    shutdown: CancellationToken,
) {
    run_with(client, library, imports, known, tasks, shutdown, TIMES).await;
}

async fn run_with(
    client: Client,
    library: Library,
    imports: usize,
    known: Images,
    tasks: Tasks,
    shutdown: CancellationToken,
    times: ImportTimes,
) {
    let images: Api<Image> = Api::all(client.clone());
    let Images { cache, shared, demands } = known;
    let supervisor = shared.imports.supervisor(tasks.task("image-import"));
    let wanted = demands.clone();
    let requesters_of = Arc::new(move |image: &Image| wanted.of(image).requesters);
    let context = Arc::new(ImageContext {
        images,
        intents: Api::all(client.clone()),
        client,
        library,
        turns: Turns::new(TurnRules { places: imports, turn: times.turn, kept: KEPT }, requesters_of),
        demands,
        making_room: tokio::sync::Mutex::new(()),
        gate: RwLock::new(()),
        shared,
        shutdown: shutdown.clone(),
        times,
    });
    let controller = run_controller(Arc::new(Importer(context.clone())), &cache, stream::empty(), shutdown.clone());
    tokio::join!(
        controller,
        supervisor.run(shutdown),
        context.collect_when_needed(tasks.task("image-collection")),
        context.collect_uploads_when_needed(tasks.task("upload-collection")),
        context.look_after_users(tasks.task("image-users")),
    );
}

struct ImageContext {
    images: Api<Image>,
    intents: Api<BootIntent>,
    /// For events.
    client: Client,
    library: Library,
    turns: Turns,
    demands: Arc<dyn Demands>,
    making_room: tokio::sync::Mutex<()>,
    /// Held shared from before an import until its digest is in the object's status, alone while collecting.
    gate: RwLock<()>,
    shared: Arc<SharedImports>,
    shutdown: CancellationToken,
    times: ImportTimes,
}

/// An import that has begun. It goes on only while somebody polls it.
struct ImportWork {
    import: BoxFuture<'static, Result<(Imported, SourceRead), ImportError>>,
    progress: watch::Receiver<ImportProgress>,
    brake: Brake,
    /// How long it had a place.
    held: Duration,
}

impl ImportWork {
    /// `shown` is kept at how far it is.
    fn begin(library: Library, image: Arc<Image>, upload: Option<WholeUpload>, shown: Arc<Import>) -> Self {
        let (send, progress) = watch::channel(ImportProgress::default());
        let brake = Brake::default();
        let stops = brake.clone();
        let parts = shown.parts.clone();
        let report = move |now: ImportProgress| {
            shown.read.store(now.read, Ordering::Relaxed);
            shown.percent.store(u8::try_from(percent(now)).unwrap_or_default(), Ordering::Relaxed);
            send.send_replace(now);
        };
        let import = async move { library.import_with(&image.spec, upload, report, stops, parts).await };
        Self { import: import.boxed(), progress, brake, held: Duration::ZERO }
    }

    fn kept(&self) -> PartialSource {
        let rate = u128::from(self.progress.borrow().read) * 1000 / self.held.as_millis().max(1);
        PartialSource { rate: u64::try_from(rate).unwrap_or(u64::MAX), lost: CancellationToken::new() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Only single inserts and removals happen under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at Images.
struct Importer(Arc<ImageContext>);

impl Reconcile for Importer {
    type Object = Slim<Image>;
    type Error = Arc<kube::Error>;

    const NAME: &'static str = "image";

    /// An import has as long as its image is large.
    const DEADLINE: Option<Duration> = None;

    fn retry_after(&self) -> Duration {
        API_RETRY
    }

    async fn reconcile(&self, image: Arc<Slim<Image>>) -> Result<Action, Arc<kube::Error>> {
        let ImageContext { images, shared, .. } = &*self.0;
        // The cache may be older than our own last write, and an import is too dear to be done twice.
        let Some(image) = images.get_opt(&image.name_any()).await? else {
            return Ok(Action::await_change());
        };
        if image.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let version = ObjectVersion::of(&image);
        let mut status = image.status.clone().unwrap_or_default();
        if is_of_this_source(&image) && status.observed_generation != Some(version.generation) {
            // Only whether it is published is another now.
            self.0.report(&image, json!({ "observedGeneration": version.generation })).await?;
            status.observed_generation = Some(version.generation);
        }
        let current = status.observed_generation == Some(version.generation);
        if let Some(digest) = status.digest.clone().filter(|_| current && status.phase == ImagePhase::Ready) {
            if let Some(action) = self.0.keeps(&image, digest).await? {
                return Ok(action);
            }
            tracing::warn!(image = image.name_any(), "parts of an image are gone from the library: importing it again");
            self.0.tell(&image, ImageEvent::Lost).await;
        }
        if current && status.phase == ImagePhase::Failed {
            let known = lock(&shared.failed).get(&image.name_any()).cloned();
            match known.filter(|failed| failed.version == version).map(|failed| failed.again) {
                Some(None) => return Ok(Action::await_change()),
                Some(Some(at)) if at > Instant::now() => return Ok(Action::requeue(at - Instant::now())),
                // Time to try again, or this program has started since.
                _ => {}
            }
        }
        let failures = if current { status.fail_count } else { 0 };
        if let Some(action) = self.0.awaits_upload(&image, &status).await? {
            return Ok(action);
        }
        self.import(Arc::new(image), &version, failures).await
    }
}

impl Importer {
    /// Has an Image imported, and hears how that ended.
    async fn import(
        &self,
        image: Arc<Image>,
        version: &ObjectVersion,
        failures: i64,
    ) -> Result<Action, Arc<kube::Error>> {
        let (context, of) = (self.0.clone(), image.clone());
        let begin = |import: Arc<Import>, _| async move { context.import(&of, failures, &import).await };
        let import = self.0.shared.imports.start(&key(&*image), version, Import::default(), begin).await;
        let reason = match import.ended().await {
            Ok(action) => return Ok(action),
            // The object has gone or changed, or the program ends: what is known of it is decided anew.
            Err(JobUnfinished::Cancelled) => return Ok(Action::requeue(Duration::ZERO)),
            Err(JobUnfinished::Failed(reason)) => reason,
            Err(fault @ JobUnfinished::Panicked(_)) => {
                self.0.fail(&image, failures, ImportError::passing(fault.to_string())).await
            }
        };
        match reason {
            NotImported::Told(_, action) => Ok(action),
            NotImported::Api(error) => Err(error),
        }
    }
}

impl ImageContext {
    async fn import(&self, image: &Arc<Image>, failures: i64, import: &Arc<Import>) -> Result<Action, NotImported> {
        // When it has ended in whichever way, a collection comes that found the gate shut.
        let _collect = Collect(&self.shared);
        tokio::select! {
            () = import.give_way.cancelled() => {
                let reason = "the image library has no room for it: its namespace has more than its share there, and another one less";
                Err(self.fail(image, failures, ImportError::passing(reason)).await)
            }
            result = self.import_now(image, failures, import) => result,
        }
    }

    async fn import_now(&self, image: &Arc<Image>, failures: i64, import: &Arc<Import>) -> Result<Action, NotImported> {
        let with = |over: Value| merged(&base(image, failures), over);
        let started = Instant::now();
        let mut work = None;
        let mut place = None;
        let mut begun = false;
        // Place and gate are held until the object says how it ended.
        let (result, _turn, _gate) = loop {
            let turn = match place.take() {
                Some(turn) => turn,
                None => self.turn(image, &mut work, with).await?,
            };
            let gate = self.gate.read().await;
            let mut importing = json!({ "phase": "Importing", "message": null });
            if work.is_none() {
                importing["percent"] = json!(0);
                tracing::info!(image = image.name_any(), "importing an image");
            }
            self.report(image, with(importing)).await?;
            if !std::mem::replace(&mut begun, true) {
                self.tell(image, ImageEvent::Began).await;
            }
            let upload = if work.is_some() { Ok(None) } else { self.uploaded(image).await };
            let upload = match upload {
                Ok(upload) => upload,
                Err(error) => return Err(self.fail(image, failures, error).await),
            };
            let begin = || ImportWork::begin(self.library.clone(), image.clone(), upload, import.clone());
            let under_way = work.get_or_insert_with(begin);
            let Some(result) = self.go_on(image, &turn, under_way).await else {
                tracing::info!(image = image.name_any(), "an import was paused: one of another namespace has its turn");
                continue;
            };
            let progress = *under_way.progress.borrow();
            work = None;
            let result = match result {
                Err(error) => match error.lack {
                    Some(lack) => match self.make_room(image, progress, lack, error).await? {
                        Ok(()) => {
                            place = Some(turn);
                            continue;
                        }
                        Err(error) => Err(error),
                    },
                    None => Err(error),
                },
                imported => imported,
            };
            break (result, turn, gate);
        };
        match result {
            Ok((imported, SourceRead { sha256, format, contents })) => {
                let Imported { digest, virtual_size, stored_size, .. } = imported;
                let took = started.elapsed();
                tracing::info!(image = image.name_any(), digest, stored_size, ?took, "imported an image");
                lock(&self.shared.failed).remove(&image.name_any());
                let uid = image.uid();
                let (contents, count) = contents.unzip();
                self.report(
                    image,
                    with(json!({
                        "phase": "Ready", "percent": 100, "message": null, "failCount": 0,
                        "digest": digest, "virtualSize": virtual_size, "storedSize": stored_size,
                        "format": format, "sha256": sha256, "sourceHash": source_hash(&image.spec),
                        "contents": contents, "contentCount": count,
                    })),
                )
                .await?;
                self.tell(image, ImageEvent::Imported { size: virtual_size, stored: stored_size, took }).await;
                self.drop_upload(uid).await;
                Ok(Action::requeue(CHECK_EVERY))
            }
            Err(error) => Err(self.fail(image, failures, error).await),
        }
    }

    /// Says why an import failed, and when it is tried again.
    async fn fail(&self, image: &Image, failures: i64, error: ImportError) -> NotImported {
        let ImportError { message, retry, .. } = error;
        let message = clean(&message, MAX_MESSAGE);
        tracing::warn!(image = image.name_any(), error = %message, retry, "cannot import an image");
        let pause = retry.then(|| pause(self.times.back_off, failures));
        let outlook = match pause {
            Some(pause) => format!("trying again in {} s", pause.as_secs().max(1)),
            None => "not trying again until the spec changes".into(),
        };
        let next = pause.map(|pause| Instant::now() + pause);
        let known = FailedImport { version: ObjectVersion::of(image), again: next };
        lock(&self.shared.failed).insert(image.name_any(), known);
        if !retry {
            self.drop_upload(image.uid()).await;
        }
        let failed = json!({
            "phase": "Failed", "percent": null, "message": format!("{message} ({outlook})"),
            "failCount": failures.saturating_add(1),
        });
        match self.report(image, merged(&base(image, failures), failed)).await {
            Ok(()) => {
                self.tell(image, ImageEvent::Failed { message: message.clone(), again: retry }).await;
                NotImported::Told(message, pause.map_or_else(Action::await_change, Action::requeue))
            }
            Err(error) => error.into(),
        }
    }

    /// A place for an import, which may have begun. It may have to begin anew then.
    async fn turn(
        &self,
        image: &Arc<Image>,
        work: &mut Option<ImportWork>,
        with: impl Fn(Value) -> Value,
    ) -> Result<ImportTurn, kube::Error> {
        let (kept, waiting) = match work {
            None => match self.turns.try_enter(image) {
                Some(turn) => return Ok(turn),
                None => (None, json!({ "percent": null, "message": "waiting for other imports" })),
            },
            Some(work) => (Some(work.kept()), json!({ "message": "had its turn, and goes on after those of others" })),
        };
        let waiting = merged(&json!({ "phase": "Pending" }), waiting);
        let lost = kept.as_ref().map(|kept| kept.lost.clone()).unwrap_or_default();
        self.report(image, with(waiting)).await?;
        let _waits = self.shared.waits();
        let turn = self.turns.enter(image, kept);
        tokio::pin!(turn);
        loop {
            tokio::select! {
                turn = &mut turn => return Ok(turn),
                () = lost.cancelled(), if work.is_some() => {
                    *work = None;
                    let message = "had its turn, and begins anew after those of others: too many wait with what they have read";
                    self.report(image, with(json!({ "phase": "Pending", "percent": null, "message": message }))).await?;
                }
            }
        }
    }

    /// Goes on with an import, and reports how far it is once a second; how it ends. `None` when its turn is over first.
    ///
    /// It fails when the source is slow and others wait, and when it has had all the time that it may have.
    async fn go_on(
        &self,
        image: &Image,
        turn: &ImportTurn,
        work: &mut ImportWork,
    ) -> Option<Result<(Imported, SourceRead), ImportError>> {
        let ImportTimes { least, longest, turn: length, .. } = self.times;
        let mut tick = interval(REPORT_EVERY.min(least.over).min(length));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (start, before) = (Instant::now(), work.held);
        let mut pace = SourcePace::new(least, start, work.progress.borrow().read);
        let mut said = percent(*work.progress.borrow());
        work.brake.let_go();
        loop {
            tokio::select! {
                result = &mut work.import => return Some(result),
                _ = tick.tick() => {
                    let progress = *work.progress.borrow_and_update();
                    let now = Instant::now();
                    work.held = before + now.saturating_duration_since(start);
                    // What was read whole does not wait for its source any more.
                    if !progress.ended && pace.is_slow(now, progress.read) && self.turns.others_wait() {
                        let LeastRate { bytes, over } = least;
                        return Some(Err(ImportError::passing(format!(
                            "the source brought less than {bytes} bytes a second over {over:?}, and other imports wait"
                        ))));
                    }
                    let most = longest.of(progress.total, self.library.most_unpacked());
                    if work.held > most {
                        return Some(Err(ImportError::passing(format!(
                            "the source brought {} bytes in {most:?}, which is all the time that an image of its size has",
                            progress.read
                        ))));
                    }
                    if self.turns.is_over(turn, now) {
                        work.brake.hold();
                        return None;
                    }
                    let percent = percent(progress);
                    if percent > said {
                        said = percent;
                        // The next report says the same and more.
                        if let Err(error) = self.report(image, json!({ "percent": percent })).await {
                            tracing::debug!(image = image.name_any(), %error, "cannot report the progress of an import");
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
}

mod known;
mod look;
mod reports;
mod told;
mod upkeep;
mod uploads;

pub use known::Images;
use known::{Collect, FailedImport, Import, NotImported, SharedImports};
use reports::{base, digests, generation, is_of_this_source, merged, pause, percent, source_hash};
use told::ImageEvent;

#[cfg(test)]
mod tests;
