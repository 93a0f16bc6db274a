//! What a host's spec asks to have installed, and whether that is what is being done
//! (docs/design/host.md, "Provisioning: wanted, cancelled, given up").

use crate::api::metal3::{BareMetalHostSpec, CustomDeploy, HostImage, ProvisionStatus};
use crate::image::{check_host_source, is_archive};

/// Format of an image that is booted and not written.
pub(super) const LIVE_ISO: &str = "live-iso";

/// `spec.customDeploy.method`: what is done instead of the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// What is done without a method too: image, config drive, boot entry.
    WriteImage,
    /// The image alone: for one that brings its configuration itself.
    WriteImageOnly,
    /// Nothing is written: the machine starts the system that is on its disk.
    BootDisk,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::WriteImage, Self::WriteImageOnly, Self::BootDisk];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WriteImage => "write-image",
            Self::WriteImageOnly => "write-image-only",
            Self::BootDisk => "boot-disk",
        }
    }
}

/// How a host gets its system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Deployment<'a> {
    /// An image goes onto the root disk.
    Write {
        /// Which.
        image: &'a HostImage,
        /// Whether a config drive goes beside it.
        config_drive: bool,
    },
    /// An ISO is booted whenever the machine is powered on; no disk is touched.
    Live(&'a HostImage),
    /// What is on the disk is booted.
    Disk,
}

/// The image that is asked for: one without a URL is none.
pub(super) fn image(image: Option<&HostImage>) -> Option<&HostImage> {
    image.filter(|image| !image.url.is_empty())
}

/// Whether the appliance reads an image from where a host says that it is. The API server may have let everything through.
///
/// # Errors
///
/// What is wrong with which field.
pub(super) fn source(image: &HostImage) -> Result<(), String> {
    if is_archive(image.format.as_deref()) {
        return Err(
            "spec.image.format names an archive, and a host is installed with a disk: raw, qcow2 or live-iso".into()
        );
    }
    check_host_source(&image.url, image.checksum.as_deref())
        .map_err(|fault| format!("spec.image.{} {}", fault.field, fault.detail))
}

pub(super) fn is_live(image: &HostImage) -> bool {
    image.format.as_deref() == Some(LIVE_ISO)
}

fn method(custom: Option<&CustomDeploy>) -> Option<&str> {
    custom.map(|custom| custom.method.as_str()).filter(|method| !method.is_empty())
}

/// What the spec asks for; `None` when it asks for nothing.
///
/// # Errors
///
/// In words, when it asks for something that cannot be.
pub(super) fn deployment(spec: &BareMetalHostSpec) -> Result<Option<Deployment<'_>>, String> {
    let image = image(spec.image.as_ref());
    let read = |image| source(image).map(|()| image);
    let Some(name) = method(spec.custom_deploy.as_ref()) else {
        return Ok(image.map(read).transpose()?.map(|image| match is_live(image) {
            true => Deployment::Live(image),
            false => Deployment::Write { image, config_drive: true },
        }));
    };
    let Some(method) = Method::ALL.into_iter().find(|method| method.as_str() == name) else {
        let known = Method::ALL.map(Method::as_str).join(", ");
        return Err(format!("spec.customDeploy.method {name:?} is not known here; the methods are {known}"));
    };
    let to_write = || match image {
        None => Err(format!("spec.customDeploy.method {name} needs spec.image")),
        Some(image) if is_live(image) => {
            Err(format!("spec.customDeploy.method {name} writes a disk, and a live-iso is not written"))
        }
        Some(image) => read(image),
    };
    Ok(Some(match method {
        Method::WriteImage => Deployment::Write { image: to_write()?, config_drive: true },
        Method::WriteImageOnly => Deployment::Write { image: to_write()?, config_drive: false },
        Method::BootDisk => Deployment::Disk,
    }))
}

/// Whether an available host is to be provisioned.
pub(super) fn needs_provisioning(spec: &BareMetalHostSpec, done: &ProvisionStatus) -> bool {
    let by_image = image(spec.image.as_ref()).is_some() && image(done.image.as_ref()).is_none();
    let wanted = method(spec.custom_deploy.as_ref());
    let by_method = wanted.is_some() && method(done.custom_deploy.as_ref()) != wanted;
    spec.online && (by_image || by_method)
}

/// Whether what is installed, or being installed, is not wanted any more.
pub(super) fn cancelled(
    spec: &BareMetalHostSpec,
    done_image: Option<&HostImage>,
    done_custom: Option<&CustomDeploy>,
) -> bool {
    let url = |given: Option<&HostImage>| image(given).map(|image| image.url.clone());
    let (wanted, done) = (url(spec.image.as_ref()), url(done_image));
    match (method(spec.custom_deploy.as_ref()), method(done_custom)) {
        (Some(wanted), Some(done)) if wanted != done => true,
        (Some(_), _) => done.is_some() && wanted != done,
        (None, Some(_)) => true,
        (None, None) => wanted.is_none() || done.is_some_and(|done| wanted != Some(done)),
    }
}
