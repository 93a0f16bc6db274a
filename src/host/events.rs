//! Events of a host, as `kubectl describe` shows them.
//!
//! kube's own recorder counts a second event of the same reason into the first one and drops its text, which would
//! hide every reason but the first. Here an event is the same only when its text is.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};
use sha2::{Digest, Sha256};

use super::machine::Note;

/// Who reports.
const COMPONENT: &str = "slipway-host";
/// Longest text of an event, in characters (Kubernetes: 1024 bytes).
const MESSAGE_MAX: usize = 1000;

/// Stores an event, or counts it when the host had the same one before.
pub(super) async fn publish(client: &Client, host: &ObjectReference, note: &Note) -> Result<(), kube::Error> {
    let api = Api::<Event>::namespaced(client.clone(), host.namespace.as_deref().unwrap_or_default());
    let event = event(host, note, Timestamp::now());
    let name = event.name_any();
    match api.create(&PostParams::default(), &event).await {
        Err(kube::Error::Api(error)) if error.is_already_exists() => {}
        created => return created.map(|_| ()),
    }
    // Expired meanwhile, or counted by somebody else: nothing is lost that matters.
    let Some(known) = api.get_opt(&name).await? else { return Ok(()) };
    let counted = Event { count: Some(known.count.unwrap_or(1) + 1), last_timestamp: event.last_timestamp, ..known };
    api.replace(&name, &PostParams::default(), &counted).await.map(|_| ())
}

fn event(host: &ObjectReference, note: &Note, now: Timestamp) -> Event {
    let type_ = if note.warning { "Warning" } else { "Normal" };
    let message: String = note.message.chars().take(MESSAGE_MAX).collect();
    let identity = [host.uid.as_deref().unwrap_or_default(), type_, note.reason, &message].join("\0");
    let digits: String = Sha256::digest(identity).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{digits}", host.name.as_deref().unwrap_or_default())),
            namespace: host.namespace.clone(),
            ..ObjectMeta::default()
        },
        involved_object: host.clone(),
        type_: Some(type_.to_owned()),
        reason: Some(note.reason.to_owned()),
        message: Some(message),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: None }),
        reporting_component: Some(COMPONENT.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use kube::Resource;

    use super::*;
    use crate::api::metal3::BareMetalHost;

    #[test]
    fn another_text_is_another_event() {
        let host = BareMetalHost::new("h", Default::default()).object_ref(&());
        let name = |message: &str| {
            let note = Note { reason: "ProvisioningError", message: message.to_owned(), warning: true };
            event(&host, &note, Timestamp::UNIX_EPOCH).name_any()
        };
        assert_eq!(name("404 Not Found"), name("404 Not Found"));
        assert_ne!(name("404 Not Found"), name("wrong checksum"));
    }
}
