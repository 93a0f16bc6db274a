//! Registrations of hosts that are older than their record (docs/design/host.md, "Whose machine it is").

use std::collections::HashMap;
use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::machine;
use crate::api::metal3::BareMetalHost;
use crate::api::slipway::{ANNOTATION_REGISTRATION, BootIntent, BootIntentSpec, Registration};

/// Between two tries, when the API is away.
const PAUSE: Duration = Duration::from_secs(5);

/// A registration as the annotation holds it.
pub(super) fn text(registration: &Registration) -> String {
    serde_json::json!(registration).to_string()
}

/// Records for every host that was registered before registrations were recorded what it names now: once, before anything
/// is decided, and never again, because each intent has a record afterwards and is made with one. So a host that names
/// something else later was never registered with that.
pub(super) async fn complete(client: &Client, shutdown: &CancellationToken) {
    loop {
        match try_complete(client).await {
            Ok(0) => return,
            Ok(count) => {
                info!(count, "what hosts were registered with is recorded now");
                return;
            }
            Err(error) => warn!(%error, "what hosts were registered with cannot be recorded yet"),
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

async fn try_complete(client: &Client) -> Result<usize, kube::Error> {
    // Whose they are is all that matters here.
    let intents = Api::<PartialObjectMeta<BootIntent>>::all(client.clone()).list(&Default::default()).await?.items;
    let unrecorded =
        |intent: &PartialObjectMeta<BootIntent>| !intent.annotations().contains_key(ANNOTATION_REGISTRATION);
    let old: Vec<_> = intents.into_iter().filter(unrecorded).map(|intent| intent.metadata).collect();
    if old.is_empty() {
        return Ok(0);
    }
    let hosts = Api::<BareMetalHost>::all(client.clone()).list(&Default::default()).await?.items;
    let hosts: HashMap<_, _> = hosts.iter().map(|host| ((host.namespace(), host.name_any()), host)).collect();
    for metadata in &old {
        let intent = BootIntent { metadata: metadata.clone(), ..BootIntent::new("", BootIntentSpec::default()) };
        let registration = hosts.get(&(intent.namespace(), intent.name_any())).and_then(|host| of(host, &intent));
        let registration = registration.unwrap_or_default();
        let patch = json!({ "metadata": {
            "resourceVersion": intent.resource_version(),
            "annotations": { ANNOTATION_REGISTRATION: text(&registration) },
        }});
        let api = Api::<BootIntent>::namespaced(client.clone(), &intent.namespace().unwrap_or_default());
        match api.patch(&intent.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(error)) if error.is_not_found() => {}
            patched => drop(patched?),
        }
    }
    Ok(old.len())
}

/// What an older version registered a host with. Its age says when: so those versions decided, too.
fn of(host: &BareMetalHost, intent: &BootIntent) -> Option<Registration> {
    let uid = host.uid().unwrap_or_default();
    (intent.is_of(&uid) && machine::says_registered(host)).then(|| Registration {
        boot_mac_address: host.spec.boot_mac_address.clone().unwrap_or_default(),
        bmc_address: host.spec.bmc.as_ref().map(|bmc| bmc.address.clone()).unwrap_or_default(),
        since: host.creation_timestamp().map_or(1, |made| made.0.as_millisecond()),
    })
}
