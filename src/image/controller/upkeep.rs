//! Eviction and garbage collection of images.
//!
//! What the controller does for the library as a whole: it makes room, says for whom images are, and lets go of imports
//! that nobody wants any more.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::ImageContext;
use super::told::ImageEvent;
use crate::api::slipway::{BootIntent, Image, ImagePhase};
use crate::image::demand::{Demand, Demands, ImageRequester};
use crate::image::room::{EvictionRefusal, SpaceHolder, SpaceRequest, Tie, give_way};
use crate::image::{ImportError, ImportProgress, Scarce, SpaceLack};
use crate::runtime::{SupervisedTask, key, objects};

/// Namespaces that an Image's status names.
const NAMESPACES_SHOWN: usize = 8;
/// How often Images that nobody wants are looked for, besides the times when hosts change.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// An image that was put in place so long ago is in its object's status, if there is one.
const SETTLED: Duration = Duration::from_secs(900);
/// How often what nothing names is removed, besides the times when an Image goes.
const COLLECT_EVERY: Duration = Duration::from_secs(600);
/// How long imports that were ended may take to give back what they stored.
const GIVEN_BACK: Duration = Duration::from_secs(10);

/// Something that takes room, and what to do to it.
struct SpaceTaker {
    held: SpaceHolder,
    images: Vec<Image>,
    /// Of what is in the library; none of what is being imported.
    digest: Option<String>,
}

impl ImageContext {
    /// Has other images give way to one whose import found too little room, after it gave back what it had stored. When
    /// none do, the error says why.
    pub(super) async fn make_room(
        &self,
        image: &Image,
        progress: ImportProgress,
        lack: SpaceLack,
        error: ImportError,
    ) -> Result<Result<(), ImportError>, kube::Error> {
        // Two that look at the same time would have more give way than they need.
        let _alone = self.making_room.lock().await;
        if !self.demands.complete() {
            return Ok(Err(error));
        }
        let takers = self.takers(image, lack.of).await?;
        let upload = self.upload_bytes(image).await;
        let space = || self.library.space_beside(upload);
        let Ok(now) = space() else { return Ok(Err(error)) };
        let room = now.room_of(lack.of);
        let own = room.saturating_sub(lack.room);
        let amount = own.saturating_add(lack.needed.max(rest(own, progress)));
        let requesters = self.demands.of(image).requesters;
        let request = SpaceRequest { requesters, amount, lacking: amount.saturating_sub(room).max(1) };
        let held: Vec<SpaceHolder> = takers.iter().map(|taker| taker.held.clone()).collect();
        let chosen = match give_way(&held, &request, now.total_of(lack.of)) {
            Ok(chosen) => chosen,
            Err(EvictionRefusal::Full) => return Ok(Err(error)),
            Err(EvictionRefusal::OverShare { would, share }) => {
                // Every host that asks for the image shows this: it names nobody's images, and nobody.
                let message = over_share(lack.of, would, share);
                return Ok(Err(ImportError { message, ..error }));
            }
        };
        // An import that ends gives back what it stored some moments later.
        let mut deadline = Instant::now();
        for taker in chosen.into_iter().filter_map(|at| takers.get(at)) {
            self.remove(taker, &image.name_any()).await?;
            if taker.digest.is_none() {
                deadline = Instant::now() + GIVEN_BACK;
            }
        }
        while space().is_ok_and(|space| space.room_of(lack.of) < amount) && Instant::now() < deadline {
            sleep(Duration::from_millis(20)).await;
        }
        Ok(Ok(()))
    }

    /// All that takes room beside an image, and how much of what is scarce.
    async fn takers(&self, for_image: &Image, scarce: Scarce) -> Result<Vec<SpaceTaker>, kube::Error> {
        let images = self.images.list(&ListParams::default()).await?.items;
        let booted = self.booted().await?;
        let mut takers = Vec::new();
        // What has the same content is there once.
        let mut by_digest = BTreeMap::<String, (u64, Vec<Image>)>::new();
        for image in images {
            let name = image.name_any();
            let status = image.status.clone().unwrap_or_default();
            let import = self.shared.imports.find(&key(&image));
            let under_way = import.map(|import| match scarce {
                Scarce::Bytes => import.work.read.load(Ordering::Relaxed),
                Scarce::Parts => import.work.parts.load(Ordering::Relaxed),
            });
            match (under_way, status.digest) {
                _ if name == for_image.name_any() => {}
                // What waits for its first turn has nothing.
                (Some(0), _) => {}
                (Some(amount), _) => {
                    let Demand { requesters, .. } = self.demands.of(&image);
                    let held = SpaceHolder { requesters, amount, used: SystemTime::now(), tie: Tie::Needed };
                    takers.push(SpaceTaker { held, images: vec![image], digest: None });
                }
                (None, Some(digest)) => {
                    let amount = match scarce {
                        Scarce::Bytes => status.stored_size.and_then(|bytes| bytes.try_into().ok()).unwrap_or_default(),
                        Scarce::Parts => self.library.parts(&digest),
                    };
                    let entry = by_digest.entry(digest).or_insert_with(|| (amount, Vec::new()));
                    entry.1.push(image);
                }
                (None, None) => {}
            }
        }
        for (digest, (amount, images)) in by_digest {
            let demands: Vec<Demand> = images.iter().map(|image| self.demands.of(image)).collect();
            let mut requesters: Vec<ImageRequester> =
                demands.iter().flat_map(|demand| demand.requesters.clone()).collect();
            requesters.sort();
            requesters.dedup();
            // Whoever names it by another URL keeps it.
            if requesters.iter().any(|requester| *requester != ImageRequester::LeftOver) {
                requesters.retain(|requester| *requester != ImageRequester::LeftOver);
            }
            let (library, name, time) = (self.library.clone(), digest.clone(), self.times.reading);
            let read = tokio::task::spawn_blocking(move || (library.is_read(&name, time), library.used(&name)));
            let (read, used) = read.await.unwrap_or((true, SystemTime::now()));
            let needed = booted.contains(&digest) || demands.iter().any(|demand| demand.unfinished > 0);
            let tie = match (read, needed) {
                (true, _) => Tie::Read,
                (false, true) => Tie::Needed,
                (false, false) => Tie::Idle,
            };
            takers.push(SpaceTaker {
                held: SpaceHolder { requesters, amount, used, tie },
                images,
                digest: Some(digest),
            });
        }
        Ok(takers)
    }

    async fn remove(&self, taker: &SpaceTaker, for_image: &str) -> Result<(), kube::Error> {
        for image in &taker.images {
            let (name, of) = (image.name_any(), &taker.held.requesters);
            if taker.digest.is_none() {
                tracing::info!(image = name, ?of, for_image, "stopping an import to make room for another image");
                if let Some(import) = self.shared.imports.find(&key(image)) {
                    import.work.give_way.cancel();
                }
                continue;
            }
            tracing::info!(image = name, ?of, for_image, "removing an image to make room for another one");
            self.tell(image, ImageEvent::GaveWay).await;
            self.delete(image).await?;
        }
        let Some(digest) = taker.digest.clone() else { return Ok(()) };
        let library = self.library.clone();
        match tokio::task::spawn_blocking(move || library.remove(&digest)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot remove an image that should make room"),
            Err(error) => tracing::warn!(%error, "cannot remove an image that should make room"),
        }
        Ok(())
    }

    async fn delete(&self, image: &Image) -> Result<(), kube::Error> {
        let preconditions = Some(Preconditions { uid: image.uid(), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        match self.images.delete(&image.name_any(), &params).await {
            // Gone, or another one by now.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            deleted => deleted.map(|_| ()),
        }
    }

    /// Removes what nothing names, when something may be named by nobody any more, and now and then.
    pub(super) async fn collect_when_needed(&self, task: SupervisedTask) {
        let mut tick = interval(COLLECT_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                () = self.shared.collect.notified() => {}
                _ = tick.tick() => {}
            }
            let start = Instant::now();
            if let Err(error) = task.run(self.collect()).await {
                tracing::warn!(%error, "cannot remove images that nothing names");
            }
            task.next_in(COLLECT_EVERY);
            // Imports that end all the time do not keep this busy.
            let pause = self.times.look_pause.max(start.elapsed() * 8);
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// An import whose digest is in no status yet would lose it. While some run, which may be always, what was put in place
    /// lately stays; their end brings us here again.
    async fn collect(&self) -> anyhow::Result<()> {
        let alone = self.gate.try_write();
        let settled = if alone.is_ok() { Duration::ZERO } else { SETTLED };
        let keep = self.wanted().await;
        let keep = keep.map_err(|error| anyhow!("images and boot intents cannot be listed: {error}"))?;
        let library = self.library.clone();
        let gone = tokio::task::spawn_blocking(move || library.collect(&keep, settled)).await??;
        if gone.images > 0 {
            tracing::info!(images = gone.images, bytes = gone.bytes, "removed images that nothing names");
        }
        Ok(())
    }

    /// Digests that an Image or a boot intent names.
    async fn wanted(&self) -> Result<HashSet<String>, kube::Error> {
        let mut keep = HashSet::new();
        objects::each(&self.images, |image| keep.extend(image.status.and_then(|status| status.digest))).await?;
        keep.extend(self.booted().await?);
        Ok(keep)
    }

    /// Digests that a boot intent names.
    async fn booted(&self) -> Result<HashSet<String>, kube::Error> {
        let mut booted = HashSet::new();
        objects::each(&self.intents, |intent: BootIntent| booted.extend(super::digests(intent.spec))).await?;
        Ok(booted)
    }

    /// Keeps the statuses of Images as who wants them, and lets go of imports that nobody wants.
    pub(super) async fn look_after_users(&self, task: SupervisedTask) {
        let mut tick = interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                () = self.demands.changed().notified() => {}
                () = self.shared.look.notified() => {}
                _ = tick.tick() => {}
            }
            let start = Instant::now();
            if self.demands.complete()
                && let Err(error) = task.run(self.look_at_users()).await
            {
                tracing::warn!(%error, "cannot note in the images which namespaces use them: trying again");
            }
            task.next_in(LOOK_EVERY);
            // Hosts that change all the time do not keep this busy, however many Images there are.
            let pause = self.times.look_pause.max(start.elapsed() * 8);
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }

    async fn look_at_users(&self) -> Result<(), kube::Error> {
        let grace = self.times.unwanted;
        for image in self.images.list(&ListParams::default()).await?.items {
            let demand = self.demands.of(&image);
            let status = image.status.clone().unwrap_or_default();
            let made = image.metadata.creation_timestamp.as_ref().map(|made| SystemTime::from(made.0));
            let is_old = made.is_none_or(|made| made.elapsed().is_ok_and(|age| age >= grace));
            if demand.requesters == [ImageRequester::LeftOver] && status.phase != ImagePhase::Ready && is_old {
                tracing::info!(
                    image = image.name_any(),
                    "removed an image that was not imported yet: no host names it any more"
                );
                self.tell(&image, ImageEvent::Unused).await;
                self.delete(&image).await?;
                continue;
            }
            if !says_its_users(self.demands.as_ref(), &image) {
                let (hosts, namespaces) = users(&demand);
                let namespaces = (!namespaces.is_empty()).then_some(namespaces);
                let patch = Patch::Merge(json!({ "status": { "hosts": hosts, "namespaces": namespaces } }));
                match self.images.patch_status(&image.name_any(), &PatchParams::default(), &patch).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => {}
                    patched => drop(patched?),
                }
            }
        }
        Ok(())
    }
}

/// Whether its status says who wants it.
pub(super) fn says_its_users(demands: &dyn Demands, image: &Image) -> bool {
    let (hosts, namespaces) = users(&demands.of(image));
    let status = image.status.as_ref();
    let said = status.map(|status| (status.hosts, status.namespaces.as_slice())).unwrap_or_default();
    (hosts, namespaces.as_slice()) == said
}

/// As an Image's status says it. What was made by hand says nothing while no host names it.
fn users(demand: &Demand) -> (Option<i64>, Vec<String>) {
    if demand.hosts == 0 && demand.requesters.contains(&ImageRequester::ByHand) {
        return <_>::default();
    }
    let mut namespaces = demand.namespaces.clone();
    namespaces.sort();
    namespaces.truncate(NAMESPACES_SHOWN);
    (i64::try_from(demand.hosts).ok(), namespaces)
}

/// Why an image of a namespace that has its share already is not imported.
fn over_share(what: Scarce, would: u64, share: u64) -> String {
    let (would, share, repair) = match what {
        Scarce::Bytes => {
            (format!("{} MiB", would >> 20), format!("{} MiB", share >> 20), "have the file system enlarged")
        }
        Scarce::Parts => (
            format!("{would} parts of a MiB, however little is in them,"),
            format!("{share} parts"),
            "have a file system with more inodes, if that is what it lacks",
        ),
    };
    format!(
        "no room in the image library: with this image the namespace that asks for it would have about {would} there, and its \
         share is {share}; have fewer images there, or {repair}"
    )
}

/// About how much more an import would have stored than it had when it found too little room. When that is too little, more
/// gives way in the next round.
fn rest(own: u64, progress: ImportProgress) -> u64 {
    match progress.total {
        Some(_) if progress.ended || progress.read == 0 => 0,
        Some(total) => {
            let left = u128::from(total.saturating_sub(progress.read));
            let rest = u64::try_from(u128::from(own) * left / u128::from(progress.read)).unwrap_or(u64::MAX);
            // What was read is told now and then, and may be more.
            rest.min(total.saturating_sub(own))
        }
        // Twice as much each time is soon enough.
        None => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_import_would_have_stored_is_guessed_by_what_it_had() {
        for (own, read, total, ended, expected) in [
            (0, 0, Some(1000), false, 0),
            (50, 100, Some(1000), false, 450),
            (900, 100, Some(1000), false, 100),
            (50, 1000, Some(1000), true, 0),
            (50, 100, None, false, 50),
            (u64::MAX, 1, Some(u64::MAX), false, 0),
        ] {
            assert_eq!(rest(own, ImportProgress { read, total, ended }), expected, "{own} {read} {total:?}");
        }
    }

    #[test]
    fn a_status_names_eight_namespaces_and_counts_all_hosts() {
        let namespaces: Vec<String> = (0..20).rev().map(|number| format!("n{number:02}")).collect();
        for requesters in
            [namespaces.iter().cloned().map(ImageRequester::Namespace).collect(), vec![ImageRequester::ByHand]]
        {
            let demand = Demand { requesters, namespaces: namespaces.clone(), hosts: 700, unfinished: 3 };
            let (hosts, namespaces) = users(&demand);
            assert_eq!((hosts, namespaces.len(), namespaces[0].as_str()), (Some(700), 8, "n00"));
        }
        let nobody = |requester| users(&Demand { requesters: vec![requester], ..Demand::default() });
        assert_eq!(
            (nobody(ImageRequester::LeftOver), nobody(ImageRequester::ByHand)),
            ((Some(0), vec![]), (None, vec![]))
        );
    }
}
