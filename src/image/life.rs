//! The image module: its kind Image, and who keeps the library as the Images want it.

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::controller::{Images, run};
use super::publish::Publishing;
use super::upload::endpoint;
use super::{Library, Sources, admission, bpa};
use crate::api::slipway::Image;
use crate::api::{Declared, StoragePolicy};
use crate::apiserver::{AdmissionRules, Face, Upload};
use crate::module::{Acting, KEEPS, Life, Module, Right, Service, service};

/// Image.
pub fn module() -> Module {
    Module {
        kinds: vec![Declared::one::<Image>(StoragePolicy::Durable)],
        rights: &[
            Right { group: "slipway.dev", resources: &["images", "images/status"], verbs: KEEPS, reason: "" },
            Right {
                group: "slipway.dev",
                resources: &["bootintents"],
                verbs: &["get", "list", "watch"],
                reason: "What a machine is to write stays in the library.",
            },
            Right { group: "", resources: &["events"], verbs: &["get", "create", "update"], reason: "" },
        ],
    }
}

/// Imports Images.
pub struct Importing {
    /// Where they are kept.
    pub library: Library,
    /// Those that are known.
    pub images: Images,
    /// Those that are to be published.
    pub publishing: Publishing,
    /// Where they may come from.
    pub sources: Sources,
    /// How many are imported at once.
    pub at_once: usize,
}

impl Life for Importing {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        let sources = self.sources.clone();
        vec![("slipway.dev/images", Arc::new(move |request| admission::admit(&sources, request)))]
    }

    fn uploads(&self) -> Vec<(&'static str, &'static str, Upload)> {
        vec![("slipway.dev/images", "upload", endpoint::upload(self.library.clone(), self.images.clone()))]
    }

    fn faces(&self) -> Vec<(&'static str, Face)> {
        vec![(bpa::PATH, bpa::face(self.library.clone()))]
    }

    fn register(&self, registry: &mut Registry) {
        let mut gauge = |name: &str, help: &str, value: u64| {
            let gauge = Gauge::<i64>::default();
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
            registry.register(name, help, gauge);
        };
        let count = |length: usize| length as u64;
        gauge("slipway_image_imports", "Imports under way", count(self.images.imports()));
        let help = "Imports under way that wait until others give them a place";
        gauge("slipway_image_imports_waiting", help, count(self.images.waiting()));
        gauge("slipway_image_library_images", "Images that are there", count(self.library.list().len()));
        // Without it nothing is known of the disk, and no series says otherwise.
        let Ok(space) = self.library.space() else { return };
        gauge("slipway_image_library_bytes", "What the chunks of all images take of the disk", space.stored);
        gauge("slipway_image_library_chunks_left", "Chunks that may still be added", count(space.chunks));
        gauge("slipway_image_library_free_bytes", "What the disk with the library has free", space.free);
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let (library, images) = (self.library.clone(), self.images.clone());
        let (client, tasks, stop) = (acting.client.clone(), acting.tasks.clone(), acting.stop.clone());
        let task = tasks.task("image-publishing");
        let publish = self.publishing.clone().run(client.clone(), library.clone(), task, stop.clone());
        let run = run(client, library, self.at_once, images, tasks, stop);
        Ok(vec![service("images", run), service("published images", publish)])
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Notify;

    use super::*;
    use crate::image::demand::{Demand, Demands};
    use crate::runtime::Watches;

    #[derive(Default)]
    struct Nobody(Notify);

    impl Demands for Nobody {
        fn of(&self, _: &Image) -> Demand {
            Demand::default()
        }

        fn complete(&self) -> bool {
            true
        }

        fn changed(&self) -> &Notify {
            &self.0
        }
    }

    #[test]
    fn how_full_the_library_is_can_be_seen() {
        let folder = tempfile::tempdir().unwrap();
        let sources = Sources::of_tests();
        let library = Library::open(folder.path().join("images"), sources.clone()).unwrap();
        let images = Images::new(&mut Watches::default(), Arc::<Nobody>::default());
        let publishing = Publishing::new(&mut Watches::default(), <_>::default());
        let importing = Importing { library, images, publishing, sources, at_once: 1 };
        let text = crate::metrics::shown(|registry| importing.register(registry));
        for zero in ["imports", "imports_waiting", "library_images", "library_bytes"] {
            assert!(text.contains(&format!("\nslipway_image_{zero} 0\n")), "{text}");
        }
        let free = text.lines().find_map(|line| line.strip_prefix("slipway_image_library_free_bytes "));
        assert!(free.unwrap().parse::<u64>().unwrap() > 0);
    }
}
