//! What is written into a host: that it is a node of a cluster and what it runs, and that it is neither any more. Pure.

use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::rack::{ANNOTATION_INSTALLED, ANNOTATION_NODE, RackHost};
use crate::api::bpa::Provisioning;
use crate::api::metal3::{BareMetalHost, HostImage};
use crate::cluster::hosts::host_changes::{HostChanges, consumer};

/// The host is a node from now on. One that runs nothing is told what to run.
pub fn claim(
    host: &BareMetalHost,
    owner: &Provisioning,
    node: &str,
    image: Option<&HostImage>,
    user_data: &str,
) -> Option<Value> {
    let view = RackHost::from(host);
    let mut changes = HostChanges::default();
    if !view.is_of(&owner.name_any()) {
        let (kind, version) = (Provisioning::kind(&()), Provisioning::api_version(&()));
        changes.spec("consumerRef", consumer(&kind, &version, owner.namespace(), &owner.name_any()));
    }
    if view.seat.as_ref().is_none_or(|(_, of)| of != node) {
        changes.annotation(ANNOTATION_NODE, json!(node));
    }
    if view.view.is_available()
        && !view.view.has_image
        && let Some(image) = image
    {
        changes.spec("image", json!(image));
        // Whose it is to take away again.
        changes.annotation(ANNOTATION_INSTALLED, json!(owner.uid()));
        changes.spec("userData", json!({"name": user_data, "namespace": host.namespace()}));
    }
    if !host.spec.online {
        changes.spec("online", json!(true));
    }
    changes.of(host)
}

/// The host is the node that it was, whatever somebody wrote there.
pub fn seat(host: &BareMetalHost, owner: &str, node: &str) -> Option<Value> {
    let view = RackHost::from(host);
    let mut changes = HostChanges::default();
    if view.is_of(owner) && view.seat.as_ref().is_none_or(|(_, of)| of != node) {
        changes.annotation(ANNOTATION_NODE, json!(node));
    }
    changes.of(host)
}

/// The host is nobody's. What it was told to run by [`claim`] it does not run any more: its disks are cleaned, and it is available
/// again. What others had it run stays.
pub fn release(host: &BareMetalHost, owner: &Provisioning, user_data: &str) -> Option<Value> {
    let view = RackHost::from(host);
    if !view.is_of(&owner.name_any()) {
        return None;
    }
    let mut changes = HostChanges::default();
    changes.spec("consumerRef", Value::Null);
    if host.annotations().contains_key(ANNOTATION_NODE) {
        changes.annotation(ANNOTATION_NODE, Value::Null);
    }
    if host.annotations().contains_key(ANNOTATION_INSTALLED) {
        changes.annotation(ANNOTATION_INSTALLED, Value::Null);
    }
    // Not by the name of its user data alone, which others may have given it.
    let is_own = view.installed_by.is_some() && view.installed_by == owner.uid();
    if is_own && view.user_data.as_deref() == Some(user_data) {
        changes.spec("image", Value::Null);
        changes.spec("userData", Value::Null);
        changes.spec("online", json!(host.spec.disable_power_off));
    }
    changes.of(host)
}

#[cfg(test)]
mod tests {
    use super::super::wanted::tests::object;
    use super::*;

    fn host(change: Value) -> BareMetalHost {
        let mut host = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": "h", "namespace": "rack", "resourceVersion": "7"},
            "spec": {"online": false}, "status": {"provisioning": {"state": "available"}}});
        json_patch::merge(&mut host, &change);
        serde_json::from_value(host).expect("a host")
    }

    fn after(host: &BareMetalHost, patch: Option<Value>) -> BareMetalHost {
        let mut value = json!(host);
        json_patch::merge(&mut value, &patch.expect("a patch"));
        serde_json::from_value(value).expect("a host")
    }

    fn claimed(host: &BareMetalHost) -> Option<Value> {
        let image = HostImage { url: "http://x/y".into(), ..HostImage::default() };
        claim(host, &owner("u-1"), "cp-1", Some(&image), "edge-user-data")
    }

    fn owner(uid: &str) -> Provisioning {
        let mut owner = object(json!({}));
        owner.metadata.uid = Some(uid.into());
        owner
    }

    #[test]
    fn a_seat_that_somebody_changed_is_what_it_was() {
        let free = host(json!({}));
        let ours = after(&free, claimed(&free));
        assert_eq!(seat(&ours, "edge", "cp-1"), None);
        let changed = after(&ours, Some(json!({"metadata": {"annotations": {ANNOTATION_NODE: "other"}}})));
        let mended = after(&changed, seat(&changed, "edge", "cp-1"));
        assert_eq!(RackHost::from(&mended).seat, Some(("edge".into(), "cp-1".into())));
        assert_eq!(seat(&changed, "elsewhere", "cp-1"), None);
    }

    #[test]
    fn a_free_host_is_claimed_in_its_version_runs_the_image_and_is_given_back_empty() {
        let free = host(json!({}));
        let patch = claimed(&free);
        assert_eq!(patch.as_ref().map(|patch| patch["metadata"]["resourceVersion"].clone()), Some(json!("7")));
        let ours = after(&free, patch);
        assert_eq!(ours.spec.image.as_ref().map(|image| image.url.as_str()), Some("http://x/y"));
        assert!(ours.spec.online && RackHost::from(&ours).seat == Some(("edge".into(), "cp-1".into())));
        assert_eq!(claimed(&ours), None, "twice is once");
        let given = after(&ours, release(&ours, &owner("u-1"), "edge-user-data"));
        assert_eq!(json!(given.spec), json!(free.spec));
        assert!(!given.annotations().contains_key(ANNOTATION_NODE));
        assert_eq!(release(&given, &owner("u-1"), "edge-user-data"), None);
        let mut other = owner("u-1");
        other.metadata.name = Some("other".into());
        assert_eq!(release(&ours, &other, "other-user-data"), None);
        // Of an object of the same name that is another one, nothing is taken away but the claim.
        let stays = after(&ours, release(&ours, &owner("u-2"), "edge-user-data"));
        assert!(stays.spec.image.is_some() && stays.spec.consumer_ref.is_none());
    }

    #[test]
    fn what_others_installed_stays() {
        let installed = host(
            json!({"spec": {"online": true, "image": {"url": "http://own"}, "userData": {"name": "own", "namespace": "rack"}},
            "status": {"provisioning": {"state": "provisioned"}}}),
        );
        let ours = after(&installed, claimed(&installed));
        let given = after(&ours, release(&ours, &owner("u-1"), "edge-user-data"));
        assert_eq!(json!(given.spec), json!(installed.spec));
        // A Secret of that name in another namespace is another Secret.
        let far = host(
            json!({"spec": {"image": {"url": "http://own"}, "userData": {"name": "edge-user-data", "namespace": "far"},
            "consumerRef": ours.spec.consumer_ref}, "status": {"provisioning": {"state": "provisioned"}}}),
        );
        assert!(after(&far, release(&far, &owner("u-1"), "edge-user-data")).spec.image.is_some());
    }
}
