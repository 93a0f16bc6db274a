//! Which hosts use an image.

use kube::ResourceExt;

use crate::api::metal3::BareMetalHost;
use crate::api::slipway::{Image, ImagePhase};
use crate::host::lifecycle::{image_name, is_of_hosts};
use crate::image::identity::is_equal;

/// Hosts that name an image, are installed with it, or name what it is a copy of: `namespace/name`, in order.
pub(super) fn of(image: &Image, hosts: &[BareMetalHost]) -> Vec<String> {
    let name = image.name_any();
    // What was made for the hosts of a namespace is no copy for others.
    let published = !is_of_hosts(image);
    let uses = |host: &&BareMetalHost| {
        let installed = host.status.as_ref().and_then(|status| status.provisioning.image.as_ref());
        let named = host.spec.image.iter().chain(installed).filter(|image| !image.url.is_empty());
        named.into_iter().any(|named| image_name(named) == name || (published && is_equal(image, named)))
    };
    let users = hosts.iter().filter(uses);
    let mut users: Vec<String> =
        users.map(|host| format!("{}/{}", host.namespace().unwrap_or_default(), host.name_any())).collect();
    users.sort();
    users
}

/// Hosts that would be without their image if this one went: none that another one of the library serves. `all` may have
/// the image itself.
pub(super) fn needing(image: &Image, all: &[Image], hosts: &[BareMetalHost]) -> Vec<String> {
    let name = image.name_any();
    let is_ready = |other: &&Image| other.status.as_ref().is_some_and(|status| status.phase == ImagePhase::Ready);
    let others: Vec<&Image> =
        all.iter().filter(|other| other.name_any() != name && !is_of_hosts(other)).filter(is_ready).collect();
    let needs = |host: &&BareMetalHost| {
        let installed = host.status.as_ref().and_then(|status| status.provisioning.image.as_ref());
        let mut named = host.spec.image.iter().chain(installed).filter(|image| !image.url.is_empty());
        named.any(|wanted| {
            let by_name = image_name(wanted) == name;
            let equal = !is_of_hosts(image) && is_equal(image, wanted);
            by_name || (equal && !others.iter().any(|other| is_equal(other, wanted)))
        })
    };
    let hosts: Vec<BareMetalHost> = hosts.iter().filter(needs).cloned().collect();
    of(image, &hosts)
}

/// Up to so many of them, and how many more there are.
pub(super) fn some(users: &[String], most: usize) -> String {
    let shown = users[..users.len().min(most)].join(", ");
    match users.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hosts_use_an_image_by_its_name_by_its_source_and_by_equal_content() {
        let sum = "a".repeat(64);
        let host = |name: &str, image: serde_json::Value, installed: serde_json::Value| {
            let host = json!({ "metadata": { "namespace": "n", "name": name }, "spec": { "online": true, "image": image },
                "status": { "provisioning": { "state": "provisioned", "ID": "", "image": installed } } });
            serde_json::from_value::<BareMetalHost>(host).unwrap()
        };
        let source = json!({ "url": "http://x/i", "checksum": sum });
        let none = json!(null);
        let hosts = [
            host("e", json!({ "url": "http://y/i", "checksum": "b".repeat(64) }), none.clone()),
            host("d", json!({ "url": "" }), json!({ "url": "slipway://debian" })),
            host("c", json!({ "url": "http://mirror/i", "checksum": sum }), none.clone()),
            host("b", source.clone(), source.clone()),
            host("a", json!({ "url": "slipway://debian" }), none.clone()),
        ];
        let image = |name: &str, spec: serde_json::Value| {
            let image = json!({ "metadata": { "name": name }, "spec": spec,
                "status": { "phase": "Ready", "digest": "d", "sha256": sum, "format": "raw" } });
            serde_json::from_value::<Image>(image).unwrap()
        };
        let published = image("debian", json!({ "url": "http://its/own" }));
        assert_eq!(of(&published, &hosts), ["n/a", "n/b", "n/c", "n/d"]);
        let name = image_name(&serde_json::from_value(source.clone()).unwrap());
        assert_eq!(of(&image(&name, source), &hosts), ["n/b"]);
        assert_eq!(some(&of(&published, &hosts), 2), "n/a, n/b and 2 more");
        assert_eq!(some(&of(&published, &hosts), 4), "n/a, n/b, n/c, n/d");
        // What another image of the library has too is not needed, but by its name.
        let twin = image("twin", json!({ "url": "upload:x" }));
        assert_eq!(needing(&twin, std::slice::from_ref(&twin), &hosts), ["n/b", "n/c"]);
        assert_eq!(needing(&twin, &[twin.clone(), published.clone()], &hosts), [""; 0]);
        assert_eq!(needing(&published, &[twin, published.clone()], &hosts), ["n/a", "n/d"]);
    }
}
