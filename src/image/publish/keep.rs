//! Keeps the table of what is published as the Images say, and says on each what became of it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::settle::{Archive, Rank, Settling, Verdict};
use super::table::Published;
use crate::api::slipway::Image;
use crate::image::formats::is_archive;
use crate::image::identity::ready;
use crate::image::{Library, clean};
use crate::runtime::{Change, Task, Watches};

/// How often the table is made anew, besides the times when an Image changes.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Shortest time between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Longest message that is compared with another: what is longer is none that is written here.
const MESSAGE_MAX: usize = 2048;

/// Knows the Images that are to be published. Cheap to clone.
#[derive(Clone)]
pub struct Publishing {
    published: Published,
    known: Arc<Known>,
}

#[derive(Default)]
struct Known {
    /// By name.
    images: Mutex<BTreeMap<String, Wish>>,
    changed: Notify,
    /// Whether all are known.
    listed: AtomicBool,
}

/// What an Image says of being published.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish {
    /// None when it is not to be published, or not there yet.
    digest: Option<String>,
    rank: Rank,
    version: Option<String>,
    /// Whether a message of its status is of what is said here.
    is_ready: bool,
    message: Option<String>,
}

impl Wish {
    /// None of what has nothing to do with it.
    fn of(image: &Image) -> Option<Self> {
        let status = image.status.clone().unwrap_or_default();
        let digest = ready(image).map(str::to_owned);
        let is_wanted = image.spec.publish == Some(true) && image.metadata.deletion_timestamp.is_none();
        let is_archive = is_archive(status.format.as_deref());
        let (is_ready, since) = (digest.is_some(), status.published_since.map(|time| time.0));
        let says = since.is_some() || (is_ready && is_archive && status.message.is_some());
        let created = image.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let rank = Rank { is_new: since.is_none(), since, created, uid: image.uid().unwrap_or_default() };
        ((is_wanted && is_archive && is_ready) || says).then(|| Self {
            digest: digest.filter(|_| is_wanted && is_archive),
            rank,
            version: image.resource_version(),
            is_ready,
            message: status.message.map(|message| clean(&message, MESSAGE_MAX)),
        })
    }

    /// What its status should say, where it says something else.
    fn correction(&self, verdict: Option<&Verdict>, now: Timestamp) -> Option<Value> {
        let since = match verdict {
            Some(Verdict::Published) => Some(self.rank.since.unwrap_or(now)),
            _ => None,
        };
        let message = verdict.and_then(Verdict::message);
        // While it is not there, the message is the import's.
        let is_said = since == self.rank.since && (!self.is_ready || message == self.message);
        let mut status = json!({ "publishedSince": since.map(|since| since.to_string()) });
        if self.is_ready {
            status["message"] = json!(message);
        }
        (!is_said).then_some(status)
    }
}

impl Publishing {
    /// Knows Images as their watch tells; `published` is what others serve.
    pub fn new(watches: &mut Watches, published: Published) -> Self {
        let publishing = Self { published, known: Arc::default() };
        let known = publishing.known.clone();
        watches.observe(move |change: &Change<'_, Image>| known.take(change));
        publishing
    }

    /// Runs until `stop`; then nothing is known to be published.
    pub async fn run(self, client: Client, library: Library, task: Task, stop: CancellationToken) {
        let images = Api::<Image>::all(client);
        let mut loaded = HashMap::new();
        let mut tick = interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.known.changed.notified() => {}
                _ = tick.tick() => {}
            }
            let start = Instant::now();
            if self.known.listed.load(Ordering::Acquire)
                && let Err(error) = task.run(self.look(&images, &library, &mut loaded)).await
            {
                tracing::warn!(%error, "cannot say on an image whether it is published: trying again");
            }
            task.next_in(LOOK_EVERY);
            // Images that change all the time do not keep this busy.
            let pause = LOOK_PAUSE.max(start.elapsed() * 4);
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep(pause) => {}
            }
        }
        self.published.set(None);
    }

    async fn look(
        &self,
        images: &Api<Image>,
        library: &Library,
        loaded: &mut HashMap<String, Arc<Archive>>,
    ) -> Result<(), kube::Error> {
        let mut line: Vec<(String, Wish)> =
            self.known.lock().iter().map(|(name, wish)| (name.clone(), wish.clone())).collect();
        line.sort_by(|(_, a), (_, b)| a.rank.cmp(&b.rank));
        let (mut settling, mut verdicts, mut used) = (Settling::default(), Vec::new(), HashMap::new());
        for (name, wish) in &line {
            let Some(digest) = &wish.digest else {
                verdicts.push(None);
                continue;
            };
            let archive = match loaded.get(digest) {
                Some(archive) => Some(archive.clone()),
                None => load(library, digest).await,
            };
            let verdict = archive.as_ref().map(|archive| settling.add(name, archive));
            if let (Some(archive), Some(Verdict::Published)) = (archive, &verdict) {
                used.insert(digest.clone(), archive);
            }
            verdicts.push(verdict);
        }
        *loaded = used;
        self.published.set(Some(settling.table));
        let mut failed = Ok(());
        for ((name, wish), verdict) in line.iter().zip(verdicts) {
            let Some(status) = wish.correction(verdict.as_ref(), Timestamp::now()) else { continue };
            if let Some(Verdict::Clash { by, name: taken }) = &verdict {
                tracing::warn!(image = name, by, name = taken, "an image is not published: another one has its name");
            }
            // Of this very version: what came since is looked at again.
            let patch = json!({ "metadata": { "resourceVersion": wish.version }, "status": status });
            match images.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                Err(error) => failed = Err(error),
                Ok(_) => {}
            }
        }
        failed
    }
}

/// What an Image that is ready names, unless it cannot be read: then it is imported again when its Image is looked at.
async fn load(library: &Library, digest: &str) -> Option<Arc<Archive>> {
    let (library, of) = (library.clone(), digest.to_owned());
    let read = tokio::task::spawn_blocking(move || {
        let Some(manifest) = library.manifest(&of) else { return Ok(None) };
        Ok::<_, io::Error>(library.catalog(&manifest)?.map(|catalog| Arc::new(Archive::new(manifest, catalog))))
    });
    match read.await.map_err(io::Error::other).flatten() {
        Ok(archive) => archive,
        Err(error) => {
            tracing::warn!(digest, %error, "cannot read the catalog of an archive in the image library");
            None
        }
    }
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Wish>> {
        // Single inserts and removals.
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, change: &Change<'_, Image>) {
        let is_new = match change {
            Change::Put(image) => match Wish::of(image) {
                Some(wish) => {
                    let name = image.name_any();
                    self.lock().insert(name, wish.clone()) != Some(wish)
                }
                None => self.lock().remove(&image.name_any()).is_some(),
            },
            Change::Gone((_, name)) => self.lock().remove(name).is_some(),
            Change::Listed => !self.listed.swap(true, Ordering::AcqRel),
        };
        if is_new {
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(spec: Value, status: Value) -> Image {
        let metadata = json!({ "name": "i", "uid": "u", "generation": 2, "resourceVersion": "7" });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": status })).expect("an Image")
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1000).expect("a time")
    }

    #[test]
    fn only_an_archive_that_is_there_as_its_spec_says_is_published_and_only_when_it_asks() {
        let ready = json!({ "phase": "Ready", "digest": "d", "format": "oci", "observedGeneration": 2 });
        let with = |change: Value| {
            let mut status = ready.clone();
            if let (Value::Object(status), Value::Object(change)) = (&mut status, change) {
                status.extend(change);
            }
            status
        };
        let yes = json!({ "url": "http://x/i", "format": "oci", "publish": true });
        let no = json!({ "url": "http://x/i", "format": "oci", "publish": false });
        let served = json!({ "publishedSince": "2026-01-01T00:00:00Z" });
        for (spec, status, digest) in [
            (&yes, ready.clone(), Some(Some("d"))),
            (&yes, with(json!({ "format": "packages" })), Some(Some("d"))),
            // What it was found to be counts, not what the spec says.
            (&yes, with(json!({ "format": "raw" })), None),
            (&yes, with(json!({ "phase": "Importing" })), None),
            (&yes, with(json!({ "observedGeneration": 1 })), None),
            (&yes, with(json!({ "digest": null })), None),
            (&no, ready.clone(), None),
            // Not any more: its status has to say so.
            (&no, with(served.clone()), Some(None)),
            (&no, with(json!({ "message": "not published: x" })), Some(None)),
            (&yes, with(json!({ "observedGeneration": 1, "publishedSince": "2026-01-01T00:00:00Z" })), Some(None)),
        ] {
            let wish = Wish::of(&image(spec.clone(), status.clone()));
            assert_eq!(wish.as_ref().map(|wish| wish.digest.as_deref()), digest, "{spec} {status}");
        }
        let mut deleted = image(yes, ready);
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert_eq!(Wish::of(&deleted), None);
    }

    #[test]
    fn a_status_says_what_became_of_it_and_is_written_only_when_it_says_something_else() {
        let clash = Verdict::Clash { name: "a:1".into(), by: "b".into() };
        let said = clash.message();
        let early = Timestamp::from_second(5).expect("a time");
        let wish = |since: Option<Timestamp>, message: Option<&String>, is_ready| Wish {
            digest: Some("d".into()),
            rank: Rank { is_new: since.is_none(), since, created: None, uid: "u".into() },
            version: None,
            is_ready,
            message: message.cloned(),
        };
        let other = "no room".to_owned();
        for (wish, verdict, written) in [
            (
                wish(None, None, true),
                Some(&Verdict::Published),
                Some(json!({ "publishedSince": now().to_string(), "message": null })),
            ),
            (wish(Some(early), None, true), Some(&Verdict::Published), None),
            (
                wish(Some(early), said.as_ref(), true),
                Some(&Verdict::Published),
                Some(json!({ "publishedSince": early.to_string(), "message": null })),
            ),
            (wish(None, None, true), Some(&clash), Some(json!({ "publishedSince": null, "message": said }))),
            (wish(Some(early), None, true), Some(&clash), Some(json!({ "publishedSince": null, "message": said }))),
            (wish(None, said.as_ref(), true), Some(&clash), None),
            (wish(None, said.as_ref(), true), None, Some(json!({ "publishedSince": null, "message": null }))),
            (wish(None, None, true), None, None),
            // The import's own message stays.
            (wish(Some(early), Some(&other), false), None, Some(json!({ "publishedSince": null }))),
            (wish(None, Some(&other), false), None, None),
        ] {
            assert_eq!(wish.correction(verdict, now()), written, "{wish:?} {verdict:?}");
        }
    }
}
