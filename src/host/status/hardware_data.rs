//! The HardwareData of a host (docs/design/host.md, "Inspection and HardwareData"): its own object with its own life.
//! Each inspection makes a new one; users may read it, and delete it without harm to the host.

use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, Resource};

use crate::api::metal3::{
    ANNOTATION_PAUSED, BareMetalHost, FINALIZER_HARDWARE_DATA, HardwareData, HardwareDataSpec, HardwareDetails,
};
use crate::log::escape_all;
use crate::runtime::objects;

/// On HardwareData: the inspection it came from.
const ANNOTATION_OPERATION: &str = "slipway.dev/operation";

/// The host's HardwareData. One that somebody deleted, or whose host is to go, is let go and counts as gone.
pub(in crate::host) async fn read(client: &Client, host: &BareMetalHost) -> Result<Option<HardwareData>, kube::Error> {
    let api = api(client, host);
    let Some(data) = api.get_opt(&host.name_any()).await? else { return Ok(None) };
    let gone = data.metadata.deletion_timestamp.is_some();
    let paused = host.annotations().contains_key(ANNOTATION_PAUSED);
    if !paused && (gone || host.metadata.deletion_timestamp.is_some()) {
        objects::release(&api, &data, FINALIZER_HARDWARE_DATA).await?;
    }
    Ok((!gone).then_some(data))
}

/// The inspection that it came from.
pub(in crate::host) fn operation(data: &HardwareData) -> Option<&str> {
    data.annotations().get(ANNOTATION_OPERATION).map(String::as_str)
}

/// Stores what an inspection found, as a new object with another UID.
pub(in crate::host) async fn save(
    client: &Client,
    host: &BareMetalHost,
    operation: &str,
    hardware: &HardwareDetails,
) -> Result<(), kube::Error> {
    remove(client, host).await?;
    let new = new(host, operation, safe(hardware).map_err(kube::Error::SerdeError)?);
    api(client, host).create(&PostParams::default(), &new).await.map(drop)
}

/// The HardwareData of a host, not stored yet.
pub(in crate::host) fn new(host: &BareMetalHost, operation: &str, hardware: HardwareDetails) -> HardwareData {
    let mut new = HardwareData::new(&host.name_any(), HardwareDataSpec { hardware: Some(hardware) });
    new.metadata.namespace = host.namespace();
    new.metadata.owner_references = host.controller_owner_ref(&()).map(|owner| vec![owner]);
    new.metadata.finalizers = Some(vec![FINALIZER_HARDWARE_DATA.to_owned()]);
    new.metadata.annotations = Some([(ANNOTATION_OPERATION.to_owned(), operation.to_owned())].into());
    new
}

/// What a BMC or an annotation says of the hardware, as it can be shown on a terminal.
fn safe(hardware: &HardwareDetails) -> Result<HardwareDetails, serde_json::Error> {
    let mut value = serde_json::to_value(hardware)?;
    escape_all(&mut value);
    serde_json::from_value(value)
}

/// Lets it go when it is to go; none is fine.
pub(in crate::host) async fn let_go(api: &Api<HardwareData>, name: &str) -> Result<(), kube::Error> {
    let Some(data) = api.get_opt(name).await? else { return Ok(()) };
    if data.metadata.deletion_timestamp.is_none() {
        return Ok(());
    }
    objects::release(api, &data, FINALIZER_HARDWARE_DATA).await
}

/// Deletes it; none is fine.
pub(in crate::host) async fn remove(client: &Client, host: &BareMetalHost) -> Result<(), kube::Error> {
    let api = api(client, host);
    let Some(old) = api.get_opt(&host.name_any()).await? else { return Ok(()) };
    objects::release(&api, &old, FINALIZER_HARDWARE_DATA).await?;
    let this = Preconditions { uid: old.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
    match api.delete(&host.name_any(), &params).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
        deleted => deleted.map(drop),
    }
}

fn api(client: &Client, host: &BareMetalHost) -> Api<HardwareData> {
    Api::namespaced(client.clone(), &host.namespace().unwrap_or_default())
}
