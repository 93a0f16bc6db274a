//! Registrations of hosts that are older than their record (docs/design/host.md, "Whose machine it is").

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::context::HostContext;
use crate::api::metal3::BareMetalHost;
use crate::api::slipway::{
    ANNOTATION_MOVED_TO, ANNOTATION_REGISTRATION, BootIntent, BootIntentSpec, FINALIZER_INTENT, Registration,
};
use crate::apiserver::subdomain;
use crate::host::{label, lifecycle};
use crate::log::named;
use crate::runtime::{SupervisedTask, objects};

/// Between two tries, when the API is away.
const PAUSE: Duration = Duration::from_secs(5);

/// How long the copy of a host keeps its machine while its BMC does not answer.
const HANDED_OVER: Duration = Duration::from_secs(3600);
/// How long is waited at most until that is known in memory, and how often it is looked at.
const KNOWN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// A registration as the annotation holds it.
pub(super) fn text(registration: &Registration) -> String {
    serde_json::json!(registration).to_string()
}

/// Records for every host that was registered before registrations were recorded what it names now: once, before anything
/// is decided (each try is a run of the task), and never again, because each intent has a record afterwards and is made with one. So a host that names
/// something else later was never registered with that.
pub(super) async fn complete(client: &Client, task: &SupervisedTask, shutdown: &CancellationToken) {
    loop {
        match task.run(try_complete(client)).await {
            Ok(0) => return,
            Ok(count) => {
                info!(count, "recorded what hosts were registered with before this version");
                return;
            }
            Err(error) => warn!(%error, "cannot record yet what hosts were registered with: trying again"),
        }
        task.next_in(PAUSE);
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

async fn try_complete(client: &Client) -> Result<usize, kube::Error> {
    // Whose they are is all that matters here.
    let mut old = Vec::new();
    objects::each(&Api::<PartialObjectMeta<BootIntent>>::all(client.clone()), |intent| {
        if !intent.annotations().contains_key(ANNOTATION_REGISTRATION) {
            old.push(intent.metadata);
        }
    })
    .await?;
    for metadata in &old {
        let intent = BootIntent { metadata: metadata.clone(), ..BootIntent::new("", BootIntentSpec::default()) };
        let hosts = Api::<BareMetalHost>::namespaced(client.clone(), &intent.namespace().unwrap_or_default());
        let host = match hosts.get_opt(&intent.name_any()).await {
            // Nothing is done about it while that is so, and the others do not wait for it.
            Err(error @ kube::Error::SerdeError(_)) => {
                warn!(host = %label(&intent), %error, "cannot read a host: nothing is done about it");
                continue;
            }
            host => host?,
        };
        let registration = host.and_then(|host| of(&host, &intent));
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
    (intent.is_of(&uid) && lifecycle::says_registered(host)).then(|| Registration {
        boot_mac_address: host.spec.boot_mac_address.clone().unwrap_or_default(),
        bmc_address: host.spec.bmc.as_ref().map(|bmc| bmc.address.clone()).unwrap_or_default(),
        since: host.creation_timestamp().map_or(1, |made| made.0.as_millisecond()),
        ..Registration::default()
    })
}

/// What a host that goes was registered with becomes its copy's, when it was moved and the copy names the same machine: or
/// somebody else who names it as well would be faster than the copy's BMC. May be done twice.
///
/// Only who may write the host could name the copy, and the copy has it until [`HANDED_OVER`] is over or its BMC answered.
pub(super) async fn hand_over(context: &HostContext, host: &BareMetalHost) -> Result<(), kube::Error> {
    let Some((namespace, name, uid)) = host.annotations().get(ANNOTATION_MOVED_TO).and_then(|to| destination(to))
    else {
        return Ok(());
    };
    let own = context.api::<BootIntent>(&host.namespace().unwrap_or_default()).get_opt(&host.name_any()).await?;
    let Some(registration) = own.and_then(|intent| inherited(host, &intent)) else { return Ok(()) };
    let hosts = context.api::<BareMetalHost>(namespace);
    let Some(copy) = hosts.get_opt(name).await?.filter(|copy| copy.uid().as_deref() == Some(uid)) else {
        return Ok(());
    };
    if !fits(&registration, &copy) {
        return Ok(());
    }
    let until = Timestamp::now().as_millisecond().saturating_add(HANDED_OVER.as_millis() as i64);
    let registration = Registration { until, ..registration };
    let intents = context.api::<BootIntent>(namespace);
    match intents.get_opt(name).await? {
        // It is somebody by itself.
        Some(intent) if !intent.is_of(uid) || intent.registration().is_some_and(|own| own.since > 0) => return Ok(()),
        Some(intent) => {
            let annotations = json!({ ANNOTATION_REGISTRATION: text(&registration) });
            let patch =
                json!({ "metadata": { "resourceVersion": intent.resource_version(), "annotations": annotations } });
            intents.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        None => {
            let spec = BootIntentSpec { generation: 1, ..BootIntentSpec::default() };
            intents.create(&PostParams::default(), &new(&copy, spec, &registration)).await?;
        }
    }
    // The host goes from one watch, its heir comes by another.
    let known = async {
        let has = || context.index.by_uid(uid)?.ownership.record.clone().filter(|record| record.since > 0);
        while has().is_none() {
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(KNOWN, known).await.is_err() {
        warn!(host = %named(namespace, name), "the watch has not shown in time that this moved host has its machine: going on");
    }
    Ok(())
}

/// `namespace/name/UID`
fn destination(text: &str) -> Option<(&str, &str, &str)> {
    let mut parts = text.split('/');
    let found = (parts.next()?, parts.next()?, parts.next()?);
    let names = subdomain(found.0).is_empty() && subdomain(found.1).is_empty() && !found.2.is_empty();
    (names && parts.next().is_none()).then_some(found)
}

fn inherited(host: &BareMetalHost, intent: &BootIntent) -> Option<Registration> {
    let own = intent.is_of(&host.uid()?) && lifecycle::says_registered(host);
    intent.registration().filter(|registration| own && fits(registration, host))
}

fn fits(registration: &Registration, host: &BareMetalHost) -> bool {
    let mac = host.spec.boot_mac_address.as_deref().and_then(|mac| mac.parse().ok());
    registration.fits(mac, host.spec.bmc.as_ref().map(|bmc| bmc.address.as_str()).unwrap_or_default())
}

/// A boot intent as it is made for a host.
pub(super) fn new(host: &BareMetalHost, spec: BootIntentSpec, registration: &Registration) -> BootIntent {
    let metadata = ObjectMeta {
        name: host.metadata.name.clone(),
        namespace: host.metadata.namespace.clone(),
        owner_references: host.controller_owner_ref(&()).map(|owner| vec![owner]),
        finalizers: Some(vec![FINALIZER_INTENT.to_owned()]),
        annotations: Some([(ANNOTATION_REGISTRATION.to_owned(), text(registration))].into()),
        ..ObjectMeta::default()
    };
    BootIntent { metadata, spec, status: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_named_with_its_uid() {
        for (text, wanted) in [
            ("lab/web-1/u", Some(("lab", "web-1", "u"))),
            ("lab/web-1", None),
            ("lab/web-1/", None),
            ("lab/../u", None),
            ("lab/web-1/u/v", None),
            ("", None),
        ] {
            assert_eq!(destination(text), wanted, "{text}");
        }
    }
}
