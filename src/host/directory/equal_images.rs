//! Equal images: which Images of the library have the content that a host names by its checksum.
//!
//! A host whose image is there already does not wait for its source. Which Images it may use so is [`ImageRequesters::may_use`].

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::{Api, ResourceExt};

use super::image_requesters::ImageRequesters;
use crate::api::metal3;
use crate::api::slipway::Image;
use crate::host::lifecycle;
use crate::image::identity::{is_equal, proof, proofs};
use crate::runtime::{WatchChange, Watches};

/// Images that are read to find one. More with one checksum are of sources that the host's own namespace names.
const TRIED: usize = 4;

/// Images that are there, by checksum. Cheap to clone.
#[derive(Clone, Default)]
pub struct EqualImages {
    requesters: ImageRequesters,
    known: Arc<Mutex<ChecksumIndex>>,
}

#[derive(Default)]
struct ChecksumIndex {
    /// Names by checksum: published ones first.
    names: HashMap<String, BTreeSet<(ImageOrigin, String)>>,
    /// By name, where it is in `names`.
    images: HashMap<String, (ImageOrigin, Vec<String>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ImageOrigin {
    Published,
    OfHosts,
}

impl EqualImages {
    /// Knows Images as their watch tells.
    pub(super) fn new(watches: &mut Watches, requesters: ImageRequesters) -> Self {
        let equal = Self { requesters, ..Self::default() };
        let told = equal.clone();
        watches.observe(move |change| told.take(change));
        equal
    }

    fn take(&self, change: &WatchChange<'_, Image>) {
        match change {
            WatchChange::Put(image) => {
                let proofs = proofs(image);
                let published = || self.requesters.is_published(image);
                let kind =
                    if !proofs.is_empty() && published() { ImageOrigin::Published } else { ImageOrigin::OfHosts };
                self.known().put(image.name_any(), kind, proofs);
            }
            WatchChange::Gone((_, name)) => self.known().put(name.clone(), ImageOrigin::OfHosts, Vec::new()),
            WatchChange::Listed => {}
        }
    }

    fn known(&self) -> MutexGuard<'_, ChecksumIndex> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Images that hosts of a namespace may use for this one, by name.
    fn candidates(&self, namespace: &str, wanted: &metal3::HostImage) -> Vec<String> {
        let Some(proof) = proof(wanted.checksum.as_deref(), wanted.checksum_type) else { return Vec::new() };
        let own = lifecycle::image_name(wanted);
        let known = self.known();
        let names = known.names.get(&proof).into_iter().flatten().filter(|(_, name)| *name != own);
        let may = |kind: &ImageOrigin, name: &str| {
            *kind == ImageOrigin::Published || self.requesters.has_named_source_of(namespace, name)
        };
        names.filter(|(kind, name)| may(kind, name)).map(|(_, name)| name.clone()).take(TRIED).collect()
    }

    /// An Image that is there, has this content, and may be used by hosts of the namespace.
    pub(in crate::host) async fn find(
        &self,
        images: &Api<Image>,
        namespace: &str,
        wanted: &metal3::HostImage,
    ) -> Result<Option<Image>, kube::Error> {
        for name in self.candidates(namespace, wanted) {
            let found = images.get_opt(&name).await?;
            let found = found.filter(|image| is_equal(image, wanted) && self.requesters.may_use(namespace, image));
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The Image of this name, when hosts of the namespace may use it by its name.
    pub(in crate::host) async fn named(
        &self,
        images: &Api<Image>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Image>, kube::Error> {
        Ok(images.get_opt(name).await?.filter(|image| self.requesters.may_use(namespace, image)))
    }
}

impl ChecksumIndex {
    fn put(&mut self, name: String, kind: ImageOrigin, proofs: Vec<String>) {
        if let Some((kind, before)) = self.images.remove(&name) {
            let entry = (kind, name.clone());
            for proof in before {
                if let Some(names) = self.names.get_mut(&proof) {
                    names.remove(&entry);
                    if names.is_empty() {
                        self.names.remove(&proof);
                    }
                }
            }
        }
        if proofs.is_empty() {
            return;
        }
        for proof in &proofs {
            self.names.entry(proof.clone()).or_default().insert((kind, name.clone()));
        }
        self.images.insert(name, (kind, proofs));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::metal3::BareMetalHost;
    use crate::api::slipway::{ImagePhase, ImageSpec, ImageStatus};

    fn asked(url: &str, checksum: &str) -> metal3::HostImage {
        metal3::HostImage { url: url.into(), checksum: Some(checksum.into()), ..metal3::HostImage::default() }
    }

    fn ready(name: &str, source: &metal3::HostImage, sha256: Option<&str>) -> Image {
        let spec = ImageSpec { url: source.url.clone(), checksum: source.checksum.clone(), ..ImageSpec::default() };
        let status = ImageStatus {
            phase: ImagePhase::Ready,
            digest: Some("d".into()),
            sha256: sha256.map(str::to_owned),
            ..ImageStatus::default()
        };
        Image { status: Some(status), ..Image::new(name, spec) }
    }

    fn host(namespace: &str, name: &str, image: &metal3::HostImage) -> BareMetalHost {
        let mut host = BareMetalHost::new(name, metal3::BareMetalHostSpec::default());
        host.spec.image = Some(image.clone());
        host.metadata.namespace = Some(namespace.into());
        host
    }

    #[test]
    fn a_host_finds_what_is_published_and_what_its_own_namespace_names() {
        let equal = EqualImages::default();
        let sum = "a".repeat(64);
        let (mine, mirror) = (asked("http://x/i", &sum), asked("http://mirror/i", &sum));
        let found = |namespace| equal.candidates(namespace, &mine);
        let private = ready(&lifecycle::image_name(&mirror), &mirror, None);
        equal.take(&WatchChange::Put(&private));
        assert_eq!(found("victim"), [""; 0], "nobody names it any more");
        equal.requesters.take(&WatchChange::Put(&host("victim", "h", &mirror)));
        // Whoever knows the checksum only, finds it out of its own source.
        assert_eq!((found("victim"), found("thief")), (vec![private.name_any()], vec![]));
        let of_none = metal3::HostImage { checksum: None, ..mine.clone() };
        let published = ready("published", &of_none, Some(&sum));
        equal.take(&WatchChange::Put(&published));
        assert_eq!(found("thief"), ["published"]);
        assert_eq!(found("victim"), ["published".to_owned(), private.name_any()]);
        // Its own is looked at as such.
        equal.take(&WatchChange::Put(&ready(&lifecycle::image_name(&mine), &mine, None)));
        equal.requesters.take(&WatchChange::Put(&host("thief", "h", &mine)));
        assert_eq!(found("thief"), ["published"]);
        // It is read anew, and then gone.
        equal.take(&WatchChange::Put(&Image { status: None, ..published.clone() }));
        assert_eq!(found("thief"), [""; 0]);
        equal.take(&WatchChange::Put(&published));
        equal.take(&WatchChange::Gone(&(String::new(), "published".into())));
        assert_eq!(found("thief"), [""; 0]);
        equal.take(&WatchChange::Gone(&(String::new(), private.name_any())));
        equal.take(&WatchChange::Gone(&(String::new(), lifecycle::image_name(&mine))));
        assert!(equal.known().names.is_empty() && equal.known().images.is_empty());
    }

    #[test]
    fn as_many_equal_images_as_somebody_likes_hide_no_published_one() {
        let equal = EqualImages::default();
        let sum = "a".repeat(64);
        for number in 0..20 {
            let source = asked(&format!("http://x/{number}"), &sum);
            equal.requesters.take(&WatchChange::Put(&host("ns", &format!("h{number}"), &source)));
            equal.take(&WatchChange::Put(&ready(&lifecycle::image_name(&source), &source, None)));
        }
        equal.take(&WatchChange::Put(&ready("zz-published", &asked("http://y/", &sum), None)));
        let found = equal.candidates("ns", &asked("http://down/", &sum));
        assert_eq!((found.len(), found[0].as_str()), (TRIED, "zz-published"));
    }
}
