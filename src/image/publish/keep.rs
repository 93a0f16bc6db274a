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

use super::settle::{NOT_PUBLISHED, PublishRank, PublishVerdict, PublishedArchive, Settling};
use super::table::Published;
use crate::api::slipway::Image;
use crate::image::formats::is_archive;
use crate::image::identity::ready;
use crate::image::library::is_lost;
use crate::image::{Library, clean};
use crate::runtime::{SupervisedTask, WatchChange, Watches};

/// How often the table is made anew, besides the times when an Image changes.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Shortest time between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// How soon an archive that could not be read is tried again; twice as long each further time, up to [`LOOK_EVERY`].
const READ_AGAIN: Duration = Duration::from_secs(1);
/// Longest message that is compared with another: what is longer is none that is written here.
const MESSAGE_MAX: usize = 2048;

/// Knows the Images that are to be published. Cheap to clone.
#[derive(Clone)]
pub struct Publishing {
    published: Published,
    known: Arc<KnownImages>,
}

#[derive(Default)]
struct KnownImages {
    /// By name.
    images: Mutex<BTreeMap<String, PublishWish>>,
    changed: Notify,
    /// Whether all are known.
    listed: AtomicBool,
}

/// What an Image says of being published.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PublishWish {
    /// None when it is not to be published, or not there yet.
    digest: Option<String>,
    rank: PublishRank,
    version: Option<String>,
    /// Whether something may be said here in its status.
    is_ready: bool,
    /// What was said here.
    message: Option<String>,
}

impl PublishWish {
    /// None of what has nothing to do with it.
    fn of(image: &Image) -> Option<Self> {
        let status = image.status.clone().unwrap_or_default();
        let digest = ready(image).map(str::to_owned);
        let is_wanted = image.spec.publish == Some(true) && image.metadata.deletion_timestamp.is_none();
        let is_archive = is_archive(status.format.as_deref());
        let (is_ready, since) = (digest.is_some(), status.published_since.map(|time| time.0));
        let message = status.message.filter(|message| message.starts_with(NOT_PUBLISHED));
        let says = since.is_some() || (is_ready && is_archive && message.is_some());
        let created = image.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let rank = PublishRank { is_new: since.is_none(), since, created, uid: image.uid().unwrap_or_default() };
        ((is_wanted && is_archive && is_ready) || says).then(|| Self {
            digest: digest.filter(|_| is_wanted && is_archive),
            rank,
            version: image.resource_version(),
            is_ready,
            message: message.map(|message| clean(&message, MESSAGE_MAX)),
        })
    }

    /// What its status should say, where it says something else.
    fn correction(&self, verdict: Option<&PublishVerdict>, now: Timestamp) -> Option<Value> {
        let since = match verdict {
            Some(PublishVerdict::Published) => Some(self.rank.since.unwrap_or(now)),
            Some(PublishVerdict::Unread(_)) => self.rank.since,
            _ => None,
        };
        let message = verdict.and_then(PublishVerdict::message).map(|message| clean(&message, MESSAGE_MAX));
        // While it is not there, the message is the import's; and others say something of what is there, too.
        let says_another = self.is_ready && message != self.message;
        let is_said = since == self.rank.since && !says_another;
        let mut status = json!({ "publishedSince": since.map(|since| since.to_string()) });
        if says_another {
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
        watches.observe(move |change: &WatchChange<'_, Image>| known.take(change));
        publishing
    }

    /// Runs until `stop`; then nothing is known to be published.
    pub async fn run(self, client: Client, library: Library, task: SupervisedTask, stop: CancellationToken) {
        let images = Api::<Image>::all(client);
        let mut loaded = HashMap::new();
        let mut tick = interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // How often in a row something could not be read.
        let mut unread = 0_u32;
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.known.changed.notified() => {}
                () = sleep(read_again(unread)), if unread > 0 => {}
                _ = tick.tick() => {}
            }
            let start = Instant::now();
            if self.known.listed.load(Ordering::Acquire)
                && let Err(error) = task.run(self.look(&images, &library, &mut loaded, &mut unread)).await
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
        loaded: &mut HashMap<String, Arc<PublishedArchive>>,
        unread: &mut u32,
    ) -> Result<(), kube::Error> {
        let settled = self.settle(library, loaded).await;
        let is_unread = settled.iter().any(|(.., verdict)| matches!(verdict, Some(PublishVerdict::Unread(_))));
        *unread = if is_unread { unread.saturating_add(1) } else { 0 };
        say(images, settled).await
    }

    /// Makes the table anew: who wants to be published, in order, and what becomes of each.
    async fn settle(
        &self,
        library: &Library,
        loaded: &mut HashMap<String, Arc<PublishedArchive>>,
    ) -> Vec<(String, PublishWish, Option<PublishVerdict>)> {
        let mut line: Vec<(String, PublishWish)> =
            self.known.lock().iter().map(|(name, wish)| (name.clone(), wish.clone())).collect();
        line.sort_by(|(_, a), (_, b)| a.rank.cmp(&b.rank));
        let (mut settling, mut settled, mut used) = (Settling::default(), Vec::new(), HashMap::new());
        for (name, wish) in line {
            let Some(digest) = &wish.digest else {
                settled.push((name, wish, None));
                continue;
            };
            let archive = match loaded.get(digest) {
                Some(archive) => Ok(archive.clone()),
                None => load(library, digest).await,
            };
            let verdict = match archive {
                Ok(archive) => {
                    let verdict = settling.add(&name, &wish.rank, &archive);
                    if verdict == PublishVerdict::Published {
                        used.insert(digest.clone(), archive);
                    }
                    verdict
                }
                Err(error) if is_lost(&error) => PublishVerdict::Lost(error.to_string()),
                Err(error) => settling.pass_over(&name, &wish.rank, error.to_string()),
            };
            settled.push((name, wish, Some(verdict)));
        }
        *loaded = used;
        self.published.set(Some(settling.table));
        settled
    }
}

/// The pause before what could not be read so often is tried again.
fn read_again(unread: u32) -> Duration {
    READ_AGAIN.saturating_mul(1 << unread.saturating_sub(1).min(16)).min(LOOK_EVERY)
}

/// Says on each Image what became of it.
async fn say(
    images: &Api<Image>,
    settled: Vec<(String, PublishWish, Option<PublishVerdict>)>,
) -> Result<(), kube::Error> {
    let mut failed = Ok(());
    for (name, wish, verdict) in &settled {
        let Some(status) = wish.correction(verdict.as_ref(), Timestamp::now()) else { continue };
        if let Some(PublishVerdict::Clash { by, name: taken }) = verdict {
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

/// What an Image that is ready has in the library.
///
/// # Errors
///
/// [`is_lost`] when it is gone or damaged: then it is imported again when its Image is looked at.
async fn load(library: &Library, digest: &str) -> io::Result<Arc<PublishedArchive>> {
    let (library, of) = (library.clone(), digest.to_owned());
    let gone = || io::Error::new(io::ErrorKind::NotFound, "it is not there");
    let read = tokio::task::spawn_blocking(move || {
        let manifest = library.find(&of)?.ok_or_else(gone)?;
        let catalog = library.catalog(&manifest)?.ok_or_else(gone)?;
        Ok(Arc::new(PublishedArchive::new(manifest, catalog)))
    });
    read.await.map_err(io::Error::other).flatten().inspect_err(|error| {
        tracing::warn!(digest, %error, "cannot read the catalog of an archive in the image library");
    })
}

impl KnownImages {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PublishWish>> {
        // Single inserts and removals.
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, change: &WatchChange<'_, Image>) {
        let is_new = match change {
            WatchChange::Put(image) => match PublishWish::of(image) {
                Some(wish) => {
                    let name = image.name_any();
                    self.lock().insert(name, wish.clone()) != Some(wish)
                }
                None => self.lock().remove(&image.name_any()).is_some(),
            },
            WatchChange::Gone((_, name)) => self.lock().remove(name).is_some(),
            WatchChange::Listed => !self.listed.swap(true, Ordering::AcqRel),
        };
        if is_new {
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::slipway::ImageSpec;
    use crate::image::Sources;

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
            let wish = PublishWish::of(&image(spec.clone(), status.clone()));
            assert_eq!(wish.as_ref().map(|wish| wish.digest.as_deref()), digest, "{spec} {status}");
        }
        let mut deleted = image(yes, ready);
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert_eq!(PublishWish::of(&deleted), None);
    }

    #[test]
    fn a_status_says_what_became_of_it_and_is_written_only_when_it_says_something_else() {
        let clash = PublishVerdict::Clash { name: "a:1".into(), by: "b".into() };
        let said = clash.message();
        let early = Timestamp::from_second(5).expect("a time");
        let wish = |since: Option<Timestamp>, message: Option<&String>, is_ready| PublishWish {
            digest: Some("d".into()),
            rank: PublishRank { is_new: since.is_none(), since, created: None, uid: "u".into() },
            version: None,
            is_ready,
            message: message.cloned(),
        };
        let other = "no room".to_owned();
        let unread = PublishVerdict::Unread("the disk".into());
        for (wish, verdict, written) in [
            (
                wish(None, None, true),
                Some(&PublishVerdict::Published),
                Some(json!({ "publishedSince": now().to_string() })),
            ),
            (wish(Some(early), None, true), Some(&PublishVerdict::Published), None),
            (
                wish(Some(early), said.as_ref(), true),
                Some(&PublishVerdict::Published),
                Some(json!({ "publishedSince": early.to_string(), "message": null })),
            ),
            (wish(None, None, true), Some(&clash), Some(json!({ "publishedSince": null, "message": said }))),
            (wish(Some(early), None, true), Some(&clash), Some(json!({ "publishedSince": null, "message": said }))),
            (wish(None, said.as_ref(), true), Some(&clash), None),
            (wish(None, said.as_ref(), true), None, Some(json!({ "publishedSince": null, "message": null }))),
            (wish(None, None, true), None, None),
            // Nobody loses his place because a disk fails for a moment.
            (
                wish(Some(early), None, true),
                Some(&unread),
                Some(json!({ "publishedSince": early.to_string(), "message": unread.message() })),
            ),
            (wish(Some(early), unread.message().as_ref(), true), Some(&unread), None),
            // The import's own message stays.
            (wish(Some(early), Some(&other), false), None, Some(json!({ "publishedSince": null }))),
            (wish(None, Some(&other), false), None, None),
        ] {
            assert_eq!(wish.correction(verdict, now()), written, "{wish:?} {verdict:?}");
        }
    }

    /// What `docker save` writes of an image `a:1`.
    fn saved(config: &str) -> Vec<u8> {
        let names = json!([{ "Config": "c.json", "RepoTags": ["a:1"], "Layers": [] }]).to_string();
        let mut tar = tar::Builder::new(Vec::new());
        for (name, content) in [("c.json", config), ("manifest.json", &names)] {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, name, content.as_bytes()).expect("a file");
        }
        tar.into_inner().expect("a tar file")
    }

    #[tokio::test]
    async fn what_cannot_be_read_for_a_moment_keeps_its_name_and_what_is_gone_loses_it() {
        let folder = tempfile::tempdir().expect("folder");
        let library = Library::open(folder.path().join("images"), Sources::of_tests()).expect("library");
        let import = async |config: &str| {
            let path = folder.path().join("saved.tar");
            std::fs::write(&path, saved(config)).expect("written");
            let url = format!("file://{}", path.display());
            let spec = ImageSpec { url, format: Some("oci".into()), ..ImageSpec::default() };
            library.import(&spec, |_| {}).await.expect("imported").digest
        };
        let (served, other) = (import("one").await, import("two").await);
        let publishing = Publishing { published: Published::default(), known: Arc::default() };
        let since = "2026-01-01T00:00:00Z";
        for (name, digest, since) in [("served", &served, Some(since)), ("other", &other, None)] {
            let status = json!({ "phase": "Ready", "digest": digest, "format": "oci", "observedGeneration": 2, "publishedSince": since });
            let mut image = image(json!({ "url": "http://x/i", "format": "oci", "publish": true }), status);
            image.metadata.name = Some(name.into());
            publishing.known.take(&WatchChange::Put(&image));
        }
        let mut loaded = HashMap::new();
        let verdicts = async |loaded: &mut HashMap<String, Arc<PublishedArchive>>| {
            let settled = publishing.settle(&library, loaded).await;
            settled.into_iter().map(|(name, wish, verdict)| (name, (wish, verdict))).collect::<BTreeMap<_, _>>()
        };
        let digest = || publishing.published.table()?.repository("library/a")?.digest("1").map(str::to_owned);
        // A link that leads to itself: there, and not to be read.
        let path = folder.path().join(format!("images/manifests/{served}.json"));
        let aside = folder.path().join("aside");
        std::fs::rename(&path, &aside).expect("moved");
        std::os::unix::fs::symlink(&path, &path).expect("a link");
        let now = verdicts(&mut loaded).await;
        assert!(matches!(&now["served"].1, Some(PublishVerdict::Unread(_))), "{now:?}");
        assert_eq!(now["other"].1, Some(PublishVerdict::Waits { before: "served".into() }));
        let (wish, verdict) = &now["served"];
        let said = wish.correction(verdict.as_ref(), Timestamp::now()).expect("it says so");
        assert_eq!(said["publishedSince"], since);
        assert!(
            said["message"].as_str().is_some_and(|message| message.contains("cannot be read at the moment")),
            "{said}"
        );
        assert_eq!(digest(), None);
        // It can be read again: it has what it had.
        std::fs::rename(&aside, &path).expect("moved");
        let now = verdicts(&mut loaded).await;
        assert_eq!(now["served"].1, Some(PublishVerdict::Published));
        assert!(matches!(&now["other"].1, Some(PublishVerdict::Clash { by, .. }) if by == "served"), "{now:?}");
        let kept = digest().expect("it is served");
        // Gone: another one may have the name.
        for chunk in &library.find(&served).expect("it reads").expect("there").chunks {
            std::fs::remove_file(library.chunk_file(&chunk.sha256).expect("known")).expect("removed");
        }
        let now = verdicts(&mut HashMap::new()).await;
        assert!(matches!(&now["served"].1, Some(PublishVerdict::Lost(_))), "{now:?}");
        assert_eq!(now["other"].1, Some(PublishVerdict::Published));
        assert_ne!(digest().expect("it is served"), kept);
    }

    #[test]
    fn what_cannot_be_read_is_tried_again_later_each_time() {
        let pauses: Vec<u64> = [1, 2, 3, 6, 7, 100, u32::MAX].map(|unread| read_again(unread).as_secs()).into();
        assert_eq!(pauses, [1, 2, 4, 32, 60, 60, 60]);
    }
}
