//! What a host gets of the image library: the Image that it names, one that was made for its source, or one of equal content.

use super::deployment::{self, Deployment};
use super::{AfterStore, Decider, Effect, image_name};
use crate::api::metal3::{ErrorType, HostImage};
use crate::api::slipway::{BootTarget, Image as Known, ImagePhase, ImageSpec, StepAction};
use crate::image::identity::{agrees, named, ready};
use crate::outbound::masked;

/// Why a host does not get the Image that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ImageLack {
    /// It is not there yet; goes on by itself.
    NotYet(String),
    /// It is another one than the host says.
    Other(String),
}

/// The digest of the Image that a host names. `known` is what has this name, when the host may use it: what it may not is as if
/// it were not there, so that nobody learns what others have.
fn named_image(name: &str, wanted: &HostImage, known: Option<&Known>) -> Result<String, ImageLack> {
    let Some(known) = known else {
        let how = format!("`slipway image import {name} SOURCE` brings it there");
        return Err(ImageLack::NotYet(format!("waiting for image {name}, which is not in the library yet: {how}")));
    };
    if let Some(digest) = ready(known) {
        return agrees(known, wanted).map(|()| digest.to_owned()).map_err(ImageLack::Other);
    }
    let status = known.status.as_ref();
    let doing = match status.map(|status| status.phase).unwrap_or_default() {
        // Why says where it is read from: that is for whoever may see Images.
        ImagePhase::Failed => "which could not be imported: `slipway image list` says why".to_owned(),
        ImagePhase::Importing => {
            let percent = status.and_then(|status| status.percent);
            format!("which is being imported{}", percent.map(|percent| format!(", {percent} %")).unwrap_or_default())
        }
        ImagePhase::Pending | ImagePhase::Ready => "which is waiting to be imported".to_owned(),
    };
    Err(ImageLack::NotYet(format!("waiting for image {name}, {doing}")))
}

impl super::HostObservation<'_> {
    /// What lacks for the Image of the library that the host names; none when it names a source, or it can have the Image.
    pub(super) fn lack(&self) -> Option<ImageLack> {
        let Ok(Some(Deployment::Write { image, .. } | Deployment::Live(image))) =
            deployment::deployment(&self.host.spec)
        else {
            return None;
        };
        named_image(named(&image.url)?, image, self.image).err()
    }

    /// Whether a host that is available waits for the Image that it names.
    pub(in crate::host) fn waits_for_image(&self) -> bool {
        self.host.spec.online && matches!(self.lack(), Some(ImageLack::NotYet(_)))
    }
}

impl Decider<'_> {
    /// The image's digest once it is in the library. What an operation has begun with is gone on with, while it is there.
    pub(super) fn library_image(&mut self, operation: &str, image: &HostImage) -> Result<String, AfterStore> {
        let begun = self.begun_with(operation);
        if let Some(name) = named(&image.url) {
            return match (named_image(name, image, self.observed.image), begun) {
                (Ok(digest), _) | (Err(ImageLack::NotYet(_)), Some(digest)) => Ok(digest),
                (Err(ImageLack::NotYet(reason)), None) => Err(self.poll(reason)),
                (Err(ImageLack::Other(message)), _) => Err(self.failed(ErrorType::Provisioning, &message)),
            };
        }
        let equal = self.observed.equal.and_then(ready);
        let own = self.observed.image.filter(|known| known.spec == image_spec(image)).and_then(ready);
        let both = [own, equal];
        let digest = both.iter().flatten().find(|digest| begun.as_deref() == Some(**digest));
        if let Some(digest) = digest.or(both.iter().flatten().next()) {
            return Ok((*digest).to_owned());
        }
        let name = image_name(image);
        let Some(known) = self.observed.image else {
            return Err(match ensure_image(image) {
                Ok(effect) => AfterStore::Do(effect),
                Err(message) => self.failed(ErrorType::Provisioning, &message),
            });
        };
        if known.spec != image_spec(image) {
            let message = foreign(&name);
            return Err(self.failed(ErrorType::Provisioning, &message));
        }
        // What is known of an earlier spec says nothing of this one.
        let is_current = |image: &&Known| {
            image.status.as_ref().is_some_and(|status| status.observed_generation == image.metadata.generation)
        };
        let status = Some(known).filter(is_current).and_then(|known| known.status.clone()).unwrap_or_default();
        if status.phase == ImagePhase::Failed {
            let error = status.message.unwrap_or_else(|| "the import failed".into());
            let again = format!("when the file is repaired, `slipway image remove {name}` has it read again");
            let message = format!("image {}: {error} ({again})", masked(&image.url));
            return Err(self.failed(ErrorType::Provisioning, &message));
        }
        let percent = status.percent.map(|p| format!(", {p} %")).unwrap_or_default();
        let doing = if status.phase == ImagePhase::Importing { "being imported" } else { "waiting to be imported" };
        Err(self.poll(format!("image {name} is {doing}{percent}")))
    }

    /// The digest that an operation writes, or that it boots.
    fn begun_with(&self, operation: &str) -> Option<String> {
        let planned = self.planned(operation);
        let written = planned.iter().find(|step| step.action == StepAction::WriteImage);
        let live = self.observed.intent.map(|intent| &intent.spec);
        let live = live.filter(|spec| spec.target == BootTarget::LiveIso && spec.operation == operation);
        written.and_then(|step| step.image.clone()).or_else(|| live?.live_iso.clone())
    }

    /// The digest of a live ISO that is installed, when it is there.
    pub(super) fn live_digest(&self, image: &HostImage) -> Option<String> {
        if let Some(name) = named(&image.url) {
            return named_image(name, image, self.observed.image).ok();
        }
        let own = self.observed.image.filter(|known| known.spec == image_spec(image)).and_then(ready);
        own.or(self.observed.equal.and_then(ready)).map(str::to_owned)
    }

    /// Has a source imported that the library has nothing of, unless it must not be read.
    pub(super) fn import_missing(&self, image: &HostImage) -> Option<AfterStore> {
        let missing = self.observed.image.is_none() && self.observed.equal.is_none() && named(&image.url).is_none();
        missing.then(|| ensure_image(image))?.ok().map(AfterStore::Do)
    }

    /// Begins the import early: it runs while the machine's firmware starts.
    pub(super) fn prefetch_image(&self) -> Option<AfterStore> {
        let image = deployment::image(self.observed.host.spec.image.as_ref())?;
        // What is wrong with its source is said when the host is to be provisioned.
        if self.deleting() { None } else { self.import_missing(image) }
    }
}

/// Has the library import a host's image, unless it must not be read.
fn ensure_image(image: &HostImage) -> Result<Effect, String> {
    deployment::source(image)?;
    Ok(Effect::EnsureImage { name: image_name(image), spec: Box::new(image_spec(image)) })
}

/// What the library's Image of a host's image says.
pub(super) fn image_spec(image: &HostImage) -> ImageSpec {
    ImageSpec {
        url: image.url.clone(),
        checksum: image.checksum.clone(),
        checksum_type: image.checksum_type,
        format: image.format.clone().filter(|format| !format.is_empty()),
        publish: None,
    }
}

/// Why an Image under the right name is not used.
pub(super) fn foreign(name: &str) -> String {
    format!(
        "image {name} in the library is not what spec.image says: somebody else made it, or another release of Slipway; \
         `slipway image remove {name}` lets this host have its own"
    )
}
