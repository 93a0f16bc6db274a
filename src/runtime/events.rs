//! Kubernetes Events of an object, as `kubectl describe` shows them.
//!
//! kube's own recorder counts a second event of the same reason into the first one and drops its text, which would
//! hide every reason but the first. Here an event is the same only when its text is. An object has only so many of each
//! reason, however many texts somebody thinks of: a further one takes the place of an older one.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Resource, ResourceExt};
use sha2::{Digest, Sha256};
use tracing::field::display;
use tracing::{info, warn};

use crate::log::named;

/// Something that happened to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// In one word, as controllers write them: CamelCase, and always the same.
    pub reason: &'static str,
    /// For the operator; what is over 1000 characters is cut.
    pub message: String,
    /// Whether something went wrong.
    pub warning: bool,
}

/// Longest text of an event, in characters (Kubernetes: 1024 bytes).
const MESSAGE_MAX: usize = 1000;

/// Events of one reason that an object has at once: who makes up a new text each time (a BMC, an image server) fills no store.
const TEXTS: u8 = 64;

/// Kind of hosts, whose name has a field of its own in the log.
const HOST: &str = "BareMetalHost";

/// Where the events of objects without a namespace are.
const CLUSTER_SCOPED: &str = "default";

/// Logs what happened to an object and stores it as an event. One that cannot be stored is a line of the log, and keeps nothing from
/// going on.
pub async fn tell<K>(client: &Client, component: &'static str, object: &K, note: &Note)
where
    K: Resource<DynamicType = ()>,
{
    let (kind, namespace) = (K::kind(&()), object.namespace().unwrap_or_default());
    let (name, reason) = (object.name_any(), note.reason);
    let object_name = named(&namespace, &name);
    if note.warning {
        warn!(%kind, object = %object_name, reason, "{}", note.message);
    } else {
        info!(%kind, object = %object_name, reason, "{}", note.message);
    }
    store(client, component, &object.object_ref(&()), note).await.ok();
}

/// Stores as an event what happened to an object, where the log has it already or has no need of it. One that cannot be stored is a
/// line of the log.
///
/// # Errors
///
/// What the API says, for whoever has to say how his work went: it is logged.
pub async fn store(client: &Client, component: &str, object: &ObjectReference, note: &Note) -> Result<(), kube::Error> {
    publish(client, component, object, note).await.inspect_err(|error| {
        let (kind, name) = (object.kind.as_deref().unwrap_or_default(), object.name.as_deref().unwrap_or_default());
        let name = named(object.namespace.as_deref().unwrap_or_default(), name);
        let (host, object) = if kind == HOST { (Some(name), None) } else { (None, Some(name)) };
        let (host, object) = (host.map(display), object.map(display));
        warn!(kind, host, object, reason = note.reason, %error, "cannot store an event");
    })
}

/// Stores an event that `component` tells, or counts it when the object had the same one before. That of an object without a
/// namespace is in `default`.
///
/// # Errors
///
/// What the API says.
pub async fn publish(
    client: &Client,
    component: &str,
    object: &ObjectReference,
    note: &Note,
) -> Result<(), kube::Error> {
    let api = Api::<Event>::namespaced(client.clone(), namespace(object));
    let event = event(component, object, note, Timestamp::now());
    let name = event.name_any();
    match api.create(&PostParams::default(), &event).await {
        Err(kube::Error::Api(error)) if error.is_already_exists() => {}
        created => return created.map(|_| ()),
    }
    // Expired meanwhile, or counted by somebody else: nothing is lost that matters.
    let Some(known) = api.get_opt(&name).await? else { return Ok(()) };
    match api.replace(&name, &PostParams::default(), &again(known, event)).await {
        Err(kube::Error::Api(error)) if error.is_conflict() || error.is_not_found() => Ok(()),
        replaced => replaced.map(|_| ()),
    }
}

fn namespace(object: &ObjectReference) -> &str {
    object.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or(CLUSTER_SCOPED)
}

/// What becomes of an event when this one comes in its place: it is counted, or another text begins.
fn again(known: Event, event: Event) -> Event {
    if known.message != event.message {
        return Event { metadata: known.metadata, ..event };
    }
    let count = known.count.unwrap_or(1).saturating_add(1);
    Event { count: Some(count), last_timestamp: event.last_timestamp, ..known }
}

fn event(component: &str, object: &ObjectReference, note: &Note, now: Timestamp) -> Event {
    let type_ = if note.warning { "Warning" } else { "Normal" };
    let message: String = note.message.chars().take(MESSAGE_MAX).collect();
    let text = Sha256::digest(&message)[0] % TEXTS;
    let identity = [object.uid.as_deref().unwrap_or_default(), type_, note.reason, &text.to_string()].join("\0");
    let digits: String = Sha256::digest(identity).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{digits}", object.name.as_deref().unwrap_or_default())),
            namespace: Some(namespace(object).to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: object.clone(),
        type_: Some(type_.to_owned()),
        reason: Some(note.reason.to_owned()),
        message: Some(message),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some(component.to_owned()), host: None }),
        reporting_component: Some(component.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::metal3::BareMetalHost;

    #[test]
    fn another_text_is_another_event() {
        let host = BareMetalHost::new("h", Default::default()).object_ref(&());
        let name = |message: &str| {
            let note = Note { reason: "ProvisioningError", message: message.to_owned(), warning: true };
            event("slipway-host", &host, &note, Timestamp::UNIX_EPOCH).name_any()
        };
        assert_eq!(name("404 Not Found"), name("404 Not Found"));
        assert_ne!(name("404 Not Found"), name("wrong checksum"));
        let names: BTreeSet<String> = (0..5000).map(|number| name(&format!("request {number} failed"))).collect();
        assert_eq!(names.len(), usize::from(TEXTS));
    }

    #[test]
    fn the_same_text_is_counted_and_another_one_begins_anew() {
        let host = BareMetalHost::new("h", Default::default()).object_ref(&());
        let at = |message: &str, second| {
            let note = Note { reason: "ProvisioningError", message: message.to_owned(), warning: true };
            event("slipway-host", &host, &note, Timestamp::from_second(second).unwrap())
        };
        let known =
            Event { metadata: ObjectMeta { resource_version: Some("7".into()), ..at("a", 1).metadata }, ..at("a", 1) };
        let counted = again(known.clone(), at("a", 2));
        assert_eq!((counted.count, &counted.first_timestamp), (Some(2), &known.first_timestamp));
        assert_eq!(counted.last_timestamp, at("a", 2).last_timestamp);
        let other = again(counted, at("b", 3));
        assert_eq!((other.count, other.message.as_deref()), (Some(1), Some("b")));
        assert_eq!((other.metadata, other.first_timestamp), (known.metadata, at("b", 3).first_timestamp));
    }
}
