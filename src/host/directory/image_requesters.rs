//! Image demand: which namespaces want an image.
//!
//! Whose import an Image is: the namespaces whose hosts name its source now. Nothing that is written on the Image counts,
//! for whoever may make Images may write that.
//!
//! An Image that somebody made by hand is *published*: hosts of every namespace may use it, by its name or because its content
//! is what they name. One that Slipway made for hosts is for the namespaces whose hosts name its source, and for no other.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use tokio::sync::Notify;

use crate::api::metal3::{BareMetalHost, ProvisioningState};
use crate::api::slipway::Image;
use crate::host::lifecycle;
use crate::image::demand::{Demand, Demands, ImageRequester};
use crate::image::identity::named;
use crate::runtime::{ObjectKey, WatchChange, Watches, key};

/// Who asks for which Image. Cheap to clone.
#[derive(Clone, Default)]
pub struct ImageRequesters(Arc<SharedRequesters>);

/// Images of which is remembered whether hosts named them.
const REMEMBERED: usize = 32_768;

#[derive(Default)]
struct SharedRequesters {
    known: Mutex<RequesterIndex>,
    /// Whether Images have the names that hosts give, by UID and generation: that takes two hashes of their URLs, and of all
    /// that wait for their import it is asked every second.
    of_hosts: Mutex<HashMap<(String, i64), bool>>,
    changed: Notify,
}

#[derive(Default)]
struct RequesterIndex {
    /// What a host asks for.
    hosts: HashMap<ObjectKey, HostImageRequest>,
    /// By what they ask for: namespaces, and their hosts.
    images: HashMap<WantedImage, BTreeMap<String, RequesterCount>>,
    /// Whether all hosts were listed once.
    complete: bool,
}

/// What a host asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostImageRequest {
    image: WantedImage,
    /// Whether it is provisioned.
    provisioned: bool,
}

/// An Image that hosts ask for. One by its name is not the same as one of a source, or whoever names another namespace's Image
/// would have a share of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum WantedImage {
    /// Published under this name.
    Published(String),
    /// Made for hosts, under this name.
    OfHosts(String),
}

/// Hosts of a namespace that ask for an Image.
#[derive(Clone, Copy, Debug, Default)]
struct RequesterCount {
    hosts: usize,
    provisioned: usize,
}

impl ImageRequesters {
    /// Knows who asks as the watch of hosts tells.
    pub fn new(watches: &mut Watches) -> Self {
        let requesters = Self::default();
        let told = requesters.clone();
        watches.observe(move |change| told.take(change));
        requesters
    }

    pub(super) fn take(&self, change: &WatchChange<'_, BareMetalHost>) {
        let mut known = self.known();
        let news = match change {
            WatchChange::Put(host) => known.put(key(*host), asked(host)),
            WatchChange::Gone(key) => known.put((*key).clone(), None),
            WatchChange::Listed => {
                known.complete = true;
                true
            }
        };
        drop(known);
        if news {
            self.0.changed.notify_one();
        }
    }

    fn known(&self) -> MutexGuard<'_, RequesterIndex> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether hosts of a namespace may use an Image that they do not name by its source.
    pub(in crate::host) fn may_use(&self, namespace: &str, image: &Image) -> bool {
        self.is_published(image) || self.has_named_source_of(namespace, &image.name_any())
    }

    /// Whether somebody made an Image by hand, who had the right to in the whole cluster: then it is for everybody's hosts.
    pub(super) fn is_published(&self, image: &Image) -> bool {
        !self.is_of_hosts(image)
    }

    /// Whether a host of a namespace names the source of the Image that was made for hosts under this name.
    pub(super) fn has_named_source_of(&self, namespace: &str, image: &str) -> bool {
        let wanted = WantedImage::OfHosts(image.to_owned());
        self.known().images.get(&wanted).is_some_and(|namespaces| namespaces.contains_key(namespace))
    }

    fn is_of_hosts(&self, image: &Image) -> bool {
        let Some(uid) = image.uid() else { return lifecycle::is_of_hosts(image) };
        let which = (uid, image.metadata.generation.unwrap_or_default());
        let mut remembered = self.0.of_hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = remembered.get(&which) {
            return *known;
        }
        if remembered.len() >= REMEMBERED {
            remembered.clear();
        }
        let found = lifecycle::is_of_hosts(image);
        remembered.insert(which, found);
        found
    }
}

impl Demands for ImageRequesters {
    fn of(&self, image: &Image) -> Demand {
        let nobody = |requester| Demand { requesters: vec![requester], ..Demand::default() };
        let of_hosts = self.is_of_hosts(image);
        let name = image.name_any();
        let wanted = if of_hosts { WantedImage::OfHosts(name) } else { WantedImage::Published(name) };
        let known = self.known();
        let Some(namespaces) = known.images.get(&wanted) else {
            return nobody(if of_hosts { ImageRequester::LeftOver } else { ImageRequester::ByHand });
        };
        Demand {
            requesters: match of_hosts {
                true => namespaces.keys().cloned().map(ImageRequester::Namespace).collect(),
                false => vec![ImageRequester::ByHand],
            },
            namespaces: namespaces.keys().cloned().collect(),
            hosts: namespaces.values().map(|count| count.hosts).sum(),
            unfinished: namespaces.values().map(|count| count.hosts - count.provisioned).sum(),
        }
    }

    fn complete(&self) -> bool {
        self.known().complete
    }

    fn changed(&self) -> &Notify {
        &self.0.changed
    }
}

impl RequesterIndex {
    /// Whether that is news.
    fn put(&mut self, key: ObjectKey, asked: Option<HostImageRequest>) -> bool {
        let before = match &asked {
            Some(asked) => self.hosts.insert(key.clone(), asked.clone()),
            None => self.hosts.remove(&key),
        };
        if before == asked {
            return false;
        }
        if let Some(before) = before
            && let Some(namespaces) = self.images.get_mut(&before.image)
        {
            if let Some(count) = namespaces.get_mut(&key.0) {
                count.hosts -= 1;
                count.provisioned -= usize::from(before.provisioned);
                if count.hosts == 0 {
                    namespaces.remove(&key.0);
                }
            }
            if namespaces.is_empty() {
                self.images.remove(&before.image);
            }
        }
        if let Some(asked) = asked {
            let count = self.images.entry(asked.image).or_default().entry(key.0).or_default();
            count.hosts += 1;
            count.provisioned += usize::from(asked.provisioned);
        }
        true
    }
}

fn asked(host: &BareMetalHost) -> Option<HostImageRequest> {
    let image = host.spec.image.as_ref().filter(|image| !image.url.is_empty())?;
    let provisioned =
        host.status.as_ref().is_some_and(|status| status.provisioning.state == ProvisioningState::Provisioned);
    let name = lifecycle::image_name(image);
    let image = if named(&image.url).is_some() { WantedImage::Published(name) } else { WantedImage::OfHosts(name) };
    Some(HostImageRequest { image, provisioned })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::slipway::ImageSpec;

    fn host(namespace: &str, name: &str, url: &str) -> BareMetalHost {
        let image = (!url.is_empty()).then(|| json!({ "url": url, "checksum": "c", "format": "" }));
        let host =
            json!({ "metadata": { "namespace": namespace, "name": name }, "spec": { "online": true, "image": image } });
        serde_json::from_value(host).expect("a host")
    }

    /// The Image that such hosts have imported.
    fn image(url: &str) -> Image {
        let asked = match asked(&host("x", "x", url)).expect("an image").image {
            WantedImage::OfHosts(name) | WantedImage::Published(name) => name,
        };
        let (url, checksum) = (url.to_owned(), Some("c".to_owned()));
        Image::new(&asked, ImageSpec { url, checksum, ..ImageSpec::default() })
    }

    fn namespaces(names: &[&str]) -> Vec<ImageRequester> {
        names.iter().map(|name| ImageRequester::Namespace((*name).to_owned())).collect()
    }

    fn of(requesters: &ImageRequesters, image: &Image) -> Vec<ImageRequester> {
        requesters.of(image).requesters
    }

    #[test]
    fn an_image_is_whose_hosts_name_its_source_now() {
        let requesters = ImageRequesters::default();
        let (one, two) = (image("http://x/1"), image("http://x/2"));
        assert_eq!(of(&requesters, &one), [ImageRequester::LeftOver]);
        requesters.take(&WatchChange::Put(&host("b", "h1", "http://x/1")));
        requesters.take(&WatchChange::Put(&host("b", "h2", "http://x/1")));
        requesters.take(&WatchChange::Put(&host("a", "h1", "http://x/1")));
        assert_eq!(
            (of(&requesters, &one), of(&requesters, &two)),
            (namespaces(&["a", "b"]), vec![ImageRequester::LeftOver])
        );
        requesters.take(&WatchChange::Put(&host("a", "h1", "http://x/2")));
        requesters.take(&WatchChange::Gone(&("b".into(), "h1".into())));
        assert_eq!((of(&requesters, &one), of(&requesters, &two)), (namespaces(&["b"]), namespaces(&["a"])));
        requesters.take(&WatchChange::Put(&host("b", "h2", "")));
        assert_eq!(of(&requesters, &one), [ImageRequester::LeftOver]);
        requesters.take(&WatchChange::Put(&host("c", "h1", "http://x/1")));
        requesters.take(&WatchChange::Gone(&("a".into(), "h1".into())));
        assert_eq!(
            (of(&requesters, &one), of(&requesters, &two)),
            (namespaces(&["c"]), vec![ImageRequester::LeftOver])
        );
        assert!(!requesters.complete());
        requesters.take(&WatchChange::Listed);
        assert!(requesters.complete());
        assert_eq!(requesters.known().images.len(), 1);
    }

    #[test]
    fn what_was_made_for_the_hosts_of_a_namespace_is_for_no_other() {
        let requesters = ImageRequesters::default();
        let theirs = image("http://x/private");
        let published = Image::new("debian", ImageSpec { url: "http://x/debian".into(), ..ImageSpec::default() });
        requesters.take(&WatchChange::Put(&host("owner", "h", "http://x/private")));
        let name = theirs.name_any();
        for (namespace, url) in [("thief", format!("slipway://{name}")), ("user", "slipway://debian".into())] {
            requesters.take(&WatchChange::Put(&host(namespace, "h", &url)));
        }
        let may = |namespace: &str, image: &Image| requesters.may_use(namespace, image);
        assert!(may("owner", &theirs) && !may("thief", &theirs) && !may("user", &theirs));
        assert!(["owner", "thief", "user"].iter().all(|namespace| may(namespace, &published)));
        // Whoever names it has no share of it and is not counted.
        let demand = requesters.of(&theirs);
        assert_eq!((demand.requesters, demand.hosts), (namespaces(&["owner"]), 1));
        let demand = requesters.of(&published);
        assert_eq!((demand.requesters, demand.hosts, demand.unfinished), (vec![ImageRequester::ByHand], 1, 1));
        assert_eq!(demand.namespaces, ["user"]);
        requesters.take(&WatchChange::Gone(&("owner".into(), "h".into())));
        assert!(!may("owner", &theirs));
        assert_eq!(of(&requesters, &theirs), [ImageRequester::LeftOver]);
    }

    #[test]
    fn nothing_that_is_written_on_an_image_makes_it_anothers() {
        let requesters = ImageRequesters::default();
        requesters.take(&WatchChange::Put(&host("victim", "h", "http://x/1")));
        let taken =
            Image { spec: ImageSpec { url: "http://slow/".into(), ..ImageSpec::default() }, ..image("http://x/1") };
        let mut marked = Image::new("mine", ImageSpec { url: "http://x/1".into(), ..ImageSpec::default() });
        marked.annotations_mut().insert("slipway.dev/asked-by".into(), "victim".into());
        for image in [taken, marked] {
            assert_eq!(of(&requesters, &image), [ImageRequester::ByHand], "{image:?}");
        }
        // What is remembered of an Image is of its spec at that time.
        let mut turned = image("http://x/1");
        turned.metadata.uid = Some("u".into());
        for (generation, url, want) in [
            (1, "http://x/1", ImageRequester::Namespace("victim".into())),
            (2, "http://slow/", ImageRequester::ByHand),
            (1, "http://x/1", ImageRequester::Namespace("victim".into())),
        ] {
            turned.metadata.generation = Some(generation);
            turned.spec.url = url.into();
            assert_eq!(of(&requesters, &turned), [want], "{generation}");
        }
    }
}
