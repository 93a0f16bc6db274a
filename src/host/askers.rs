//! Whose import an Image is: the namespaces whose hosts name its source now. Nothing that is written on the Image counts,
//! for whoever may make Images may write that. Kept by a watch of its own, because it is the images' affair, not the
//! hosts'.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use super::machine;
use super::view::HostView;
use crate::api::metal3;
use crate::api::slipway::Image;
use crate::image;
use crate::image::controller::Party;

type Key = (String, String);

/// Who asks for which Image. Cheap to clone.
#[derive(Clone, Default)]
pub struct Askers(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// The name of the Image that a host asks for.
    hosts: HashMap<Key, String>,
    /// By that name: namespaces, and how many of their hosts ask for it.
    images: HashMap<String, BTreeMap<String, usize>>,
    /// What a relist in progress has named so far; the rest is gone when it ends.
    relisted: HashSet<Key>,
}

impl Askers {
    /// As the image controller asks.
    pub fn parties(&self) -> image::controller::Askers {
        let askers = self.clone();
        Arc::new(move |image| askers.of(image))
    }

    /// Follows the hosts until the shutdown.
    pub async fn keep(self, client: Client, shutdown: CancellationToken) {
        let events = watcher(Api::<HostView>::all(client), Config::default()).default_backoff();
        tokio::pin!(events);
        loop {
            let event = tokio::select! {
                () = shutdown.cancelled() => return,
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => self.take(&event),
                Some(Err(error)) => tracing::debug!(%error, "watching who asks for images"),
                None => return,
            }
        }
    }

    fn take(&self, event: &Event<HostView>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Init => known.relisted.clear(),
            Event::Apply(host) => known.put(key(host), asked(host)),
            Event::InitApply(host) => {
                known.put(key(host), asked(host));
                known.relisted.insert(key(host));
            }
            Event::InitDone => {
                let relisted = std::mem::take(&mut known.relisted);
                let gone: Vec<Key> = known.hosts.keys().filter(|key| !relisted.contains(*key)).cloned().collect();
                gone.into_iter().for_each(|key| known.put(key, None));
            }
            Event::Delete(host) => known.put(key(host), None),
        }
    }

    fn of(&self, image: &Image) -> Vec<Party> {
        if !is_of_hosts(image) {
            return vec![Party::ByHand];
        }
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.images.get(&image.name_any()) {
            Some(namespaces) => namespaces.keys().cloned().map(Party::Namespace).collect(),
            None => vec![Party::LeftOver],
        }
    }
}

impl Known {
    fn put(&mut self, key: Key, image: Option<String>) {
        let before = match &image {
            Some(image) => self.hosts.insert(key.clone(), image.clone()),
            None => self.hosts.remove(&key),
        };
        if before == image {
            return;
        }
        if let Some(namespaces) = before.as_ref().and_then(|before| self.images.get_mut(before)) {
            if let Some(hosts) = namespaces.get_mut(&key.0) {
                *hosts -= 1;
            }
            namespaces.retain(|_, hosts| *hosts > 0);
        }
        self.images.retain(|_, namespaces| !namespaces.is_empty());
        if let Some(image) = image {
            *self.images.entry(image).or_default().entry(key.0).or_default() += 1;
        }
    }
}

fn key(host: &HostView) -> Key {
    (host.namespace().unwrap_or_default(), host.name_any())
}

/// The name of the Image that a host asks for.
fn asked(host: &HostView) -> Option<String> {
    host.image_name().map(str::to_owned)
}

/// Whether it has the name that hosts give to an Image of this source. Another source under such a name is somebody's
/// own doing.
fn is_of_hosts(image: &Image) -> bool {
    let spec = &image.spec;
    let of_host = |format: Option<String>| metal3::Image {
        url: spec.url.clone(),
        checksum: spec.checksum.clone(),
        checksum_type: spec.checksum_type,
        format,
        oci_auth_secret_name: None,
    };
    // An empty format, which hosts may have, is none here.
    let empty = spec.format.is_none().then(String::new);
    [spec.format.clone(), empty].into_iter().any(|format| machine::image_name(&of_host(format)) == image.name_any())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::slipway::ImageSpec;

    fn host(namespace: &str, name: &str, url: &str) -> HostView {
        let image = (!url.is_empty()).then(|| json!({ "url": url, "checksum": "c", "format": "" }));
        let host = json!({ "metadata": { "namespace": namespace, "name": name }, "spec": { "image": image } });
        serde_json::from_value(host).expect("a host")
    }

    /// The Image that such hosts have imported.
    fn image(url: &str) -> Image {
        let asked = asked(&host("x", "x", url)).expect("an image");
        let (url, checksum) = (url.to_owned(), Some("c".to_owned()));
        Image::new(&asked, ImageSpec { url, checksum, ..ImageSpec::default() })
    }

    fn namespaces(names: &[&str]) -> Vec<Party> {
        names.iter().map(|name| Party::Namespace((*name).to_owned())).collect()
    }

    #[test]
    fn an_image_is_whose_hosts_name_its_source_now() {
        let askers = Askers::default();
        let (one, two) = (image("http://x/1"), image("http://x/2"));
        assert_eq!(askers.of(&one), [Party::LeftOver]);
        askers.take(&Event::Apply(host("b", "h1", "http://x/1")));
        askers.take(&Event::Apply(host("b", "h2", "http://x/1")));
        askers.take(&Event::Apply(host("a", "h1", "http://x/1")));
        assert_eq!((askers.of(&one), askers.of(&two)), (namespaces(&["a", "b"]), vec![Party::LeftOver]));
        askers.take(&Event::Apply(host("a", "h1", "http://x/2")));
        askers.take(&Event::Delete(host("b", "h1", "http://x/1")));
        assert_eq!((askers.of(&one), askers.of(&two)), (namespaces(&["b"]), namespaces(&["a"])));
        askers.take(&Event::Apply(host("b", "h2", "")));
        assert_eq!(askers.of(&one), [Party::LeftOver]);
        // What a list does not name any more has gone.
        askers.take(&Event::Init);
        askers.take(&Event::InitApply(host("c", "h1", "http://x/1")));
        askers.take(&Event::InitDone);
        assert_eq!((askers.of(&one), askers.of(&two)), (namespaces(&["c"]), vec![Party::LeftOver]));
        assert_eq!(askers.0.lock().unwrap().images.len(), 1);
    }

    #[test]
    fn nothing_that_is_written_on_an_image_makes_it_anothers() {
        let askers = Askers::default();
        askers.take(&Event::Apply(host("victim", "h", "http://x/1")));
        let taken =
            Image { spec: ImageSpec { url: "http://slow/".into(), ..ImageSpec::default() }, ..image("http://x/1") };
        let mut marked = Image::new("mine", ImageSpec { url: "http://x/1".into(), ..ImageSpec::default() });
        marked.annotations_mut().insert("slipway.dev/asked-by".into(), "victim".into());
        for image in [taken, marked] {
            assert_eq!(askers.of(&image), [Party::ByHand], "{image:?}");
        }
    }
}
