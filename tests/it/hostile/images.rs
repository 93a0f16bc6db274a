//! Images of others: what hosts of one namespace had imported is not found by those of another, by its name or by its
//! checksum. What an administrator publishes is everybody's.

use kube::Client;
use kube::api::Api;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use slipway::api::metal3::BareMetalHost;
use slipway::api::slipway::{BootIntent, Image, ImagePhase};
use slipway::host::lifecycle::image_name;

use super::{Acting, GOOD, MINE, PRIVATE, Site, THEIRS, complaint, create, host, until};

/// What the agent of a host of his is to write.
async fn written(admin: &Client, name: &str) -> Option<String> {
    let intent = Api::<BootIntent>::namespaced(admin.clone(), MINE).get_opt(name).await.unwrap()?;
    intent.spec.steps.iter().find_map(|step| step.image.clone())
}

async fn digest(library: &Api<Image>, name: &str) -> String {
    until(&format!("{name} is there"), async || {
        let status = library.get_opt(name).await.unwrap()?.status?;
        assert_ne!(status.phase, ImagePhase::Failed, "{name}: {:?}", status.message);
        status.digest.filter(|_| status.phase == ImagePhase::Ready)
    })
    .await
}

/// `first` is the number of the first of these hosts.
pub(super) async fn rows(admin: &Client, mallory: &Client, site: &mut Site, acting: &Acting<'_>, first: usize) {
    let library = Api::<Image>::all(admin.clone());
    let checksum: String = Sha256::digest([PRIVATE; GOOD]).iter().map(|byte| format!("{byte:02x}")).collect();
    let source = format!("http://{}/private.raw", site.web);
    let mut owned = host(
        "owner",
        first,
        json!({
            "bmc": {"address": site.bmc(), "credentialsName": "private"},
            "image": {"url": source, "checksum": checksum, "format": "raw"}
        }),
    );
    owned["metadata"]["namespace"] = THEIRS.into();
    let owner = create(&Api::<BareMetalHost>::namespaced(admin.clone(), THEIRS), owned).await;
    let private = image_name(owner.spec.image.as_ref().unwrap());
    let content = digest(&library, &private).await;

    // He knows its name and its checksum, and not where it is.
    let hosts = Api::<BareMetalHost>::namespaced(mallory.clone(), MINE);
    let by_sum = json!({"url": format!("http://{}/nothing.raw", site.web), "checksum": checksum, "format": "raw"});
    let images = [
        ("by-name", json!({"url": format!("slipway://{private}")})),
        ("by-sum", by_sum),
        ("published", json!({"url": "slipway://published", "checksum": checksum})),
    ];
    for (at, (name, image)) in images.into_iter().enumerate() {
        let bmc = json!({"address": site.bmc(), "credentialsName": "bmc"});
        create(&hosts, host(name, first + 1 + at, json!({"bmc": bmc, "image": image}))).await;
    }
    complaint(&hosts, "by-sum", "404", acting).await;
    for name in ["by-name", "published"] {
        until(&format!("{name} says what it waits for"), async || {
            let progress = hosts.get(name).await.unwrap().status?.progress?;
            progress.reason.contains("not in the library").then_some(())
        })
        .await;
    }
    for name in ["by-name", "by-sum", "published"] {
        assert_eq!(written(admin, name).await, None, "{name}");
    }
    let status = until("who names it is noted", async || {
        library.get(&private).await.unwrap().status.filter(|status| status.hosts.is_some())
    })
    .await;
    assert_eq!((status.hosts, status.namespaces), (Some(1), vec![THEIRS.to_owned()]), "he has no share of it");

    // What is published is for all, and hosts that waited go on by themselves.
    let spec = json!({"url": source, "format": "raw"});
    create::<Image>(&library, json!({"metadata": {"name": "published"}, "spec": spec})).await;
    assert_eq!(digest(&library, "published").await, content);
    for name in ["published", "by-sum"] {
        let found = until(&format!("{name} gets it"), async || written(admin, name).await).await;
        assert_eq!(found, content, "{name}");
    }
    assert_eq!(written(admin, "by-name").await, None);
    // Not as the source that he named: nothing came from there.
    let named: Value = json!(library.get("published").await.unwrap().status);
    assert_eq!(named["sha256"], checksum);
}
