//! What a decision on a host needs besides the host.

use kube::ResourceExt;
use kube::api::Api;

use crate::api::metal3::{self, BareMetalHost, HardwareData};
use crate::api::slipway::{BootIntent, Image};
use crate::host::lifecycle;
use crate::host::media::data_image;
use crate::host::reconcile::context::HostContext;
use crate::host::reconcile::credentials;
use crate::host::status::hardware_data;
use crate::image::identity;

/// What is decided with besides the host itself.
pub(super) struct HostSurroundings {
    pub intent: Option<BootIntent>,
    pub access: lifecycle::Access,
    pub image: Option<Image>,
    /// Another one of the same content.
    pub equal: Option<Image>,
    pub hardware: Option<HardwareData>,
    /// Whether a DataImage of a host that is to go is still in its drive.
    pub data_cd: bool,
}

/// Reads what a decision on a host needs besides the host.
pub(super) async fn look_around(context: &HostContext, host: &BareMetalHost) -> Result<HostSurroundings, kube::Error> {
    let namespace = host.namespace().unwrap_or_default();
    let intent = context.api::<BootIntent>(&namespace).get_opt(&host.name_any()).await?;
    let access = credentials::read(context, host).await.inspect_err(|_| context.metrics.credentials_unread())?;
    let (image, equal) = match host.spec.image.as_ref().filter(|image| !image.url.is_empty()) {
        Some(image) => library(context, &namespace, image).await?,
        None => (None, None),
    };
    let hardware = hardware_data::read(&context.client, host).await?;
    let going = host.metadata.deletion_timestamp.is_some();
    let data_cd = going && data_image::is_attached(&context.api(&namespace), &host.name_any()).await?;
    Ok(HostSurroundings { intent, access, image, equal, hardware, data_cd })
}

/// What the library has for a host's image: its Image, and another one of the same content.
async fn library(
    context: &HostContext,
    namespace: &str,
    image: &metal3::HostImage,
) -> Result<(Option<Image>, Option<Image>), kube::Error> {
    let (images, equal) = (Api::<Image>::all(context.client.clone()), &context.equal);
    match identity::named(&image.url) {
        Some(name) => Ok((equal.named(&images, namespace, name).await?, None)),
        None => {
            let own = images.get_opt(&lifecycle::image_name(image)).await?;
            Ok((own, equal.find(&images, namespace, image).await?))
        }
    }
}
