//! What the image library brings into the house: Image, and who keeps the library as the Images want it.

use std::sync::Arc;

use super::controller::{Images, run};
use super::{Library, Sources, admission};
use crate::api::slipway::Image;
use crate::api::{Declared, Keep};
use crate::apiserver::Admission;
use crate::module::{Acting, KEEPS, Life, Module, Right, Service, service};

/// Image.
pub fn module() -> Module {
    Module {
        name: "images",
        kinds: vec![Declared::one::<Image>(Keep::Durable)],
        rights: &[
            Right { group: "slipway.dev", resources: &["images", "images/status"], verbs: KEEPS, why: "" },
            Right {
                group: "slipway.dev",
                resources: &["bootintents"],
                verbs: &["get", "list", "watch"],
                why: "What a machine is to write stays in the library.",
            },
        ],
    }
}

/// Imports Images.
pub struct Importing {
    /// Where they are kept.
    pub library: Library,
    /// Those that are known.
    pub images: Images,
    /// Where they may come from.
    pub sources: Sources,
    /// How many are imported at once.
    pub at_once: usize,
}

impl Life for Importing {
    fn admission(&self) -> Vec<(&'static str, Admission)> {
        let sources = self.sources.clone();
        vec![("slipway.dev/images", Arc::new(move |request| admission::admit(&sources, request)))]
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let (library, images) = (self.library.clone(), self.images.clone());
        let run = run(acting.client.clone(), library, self.at_once, images, acting.stop.clone());
        Ok(vec![service("images", run)])
    }
}
