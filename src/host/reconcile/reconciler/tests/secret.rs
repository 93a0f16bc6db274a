//! Tests of the labels and owners on BMC Secrets.
//!
//! What the reconciler writes on a BMC's secret (docs/design/host.md, "Access to the BMC"), and that it goes with the
//! last host that uses it.

use super::*;
use crate::api::metal3::{ANNOTATION_PAUSED, FINALIZER_SECRET};

#[tokio::test]
async fn a_secret_is_marked_held_and_goes_with_its_last_host() {
    let site = Site::idle().await;
    site.reconcile().await;
    let secrets = site.api::<Secret>();
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "team": "a" }, "finalizers": ["example.com/own"] } }));
    secrets.patch("bmc", &PatchParams::default(), &patch).await.unwrap();
    let mut host = site.host();
    host.spec.externally_provisioned = true;
    host.annotations_mut().insert(ANNOTATION_PAUSED.into(), String::new());
    let first = site.create(&host).await;
    host.annotations_mut().clear();
    // It has no machine of its own: what counts is that it names the same secret.
    host.metadata.name = Some("second".into());
    host.spec.boot_mac_address = Some("02:00:00:00:00:02".into());
    host.spec.bmc.as_mut().unwrap().address = "ipmi://127.0.0.1:1".into();
    let second = site.create(&host).await;
    let owners = async || {
        let secret = secrets.get("bmc").await.unwrap();
        let mut owners: Vec<_> = secret.owner_references().iter().map(|owner| owner.uid.clone()).collect();
        owners.sort();
        owners
    };
    site.until("the second owns it", async || !owners().await.is_empty()).await;
    assert_eq!(owners().await, [second.uid().unwrap()], "the first one is paused");
    let unpause = json!({ "metadata": { "annotations": { ANNOTATION_PAUSED: null } } });
    site.api::<BareMetalHost>().patch("h", &PatchParams::default(), &Patch::Merge(unpause)).await.unwrap();
    let mut both = [first.uid().unwrap(), second.uid().unwrap()];
    both.sort();
    site.until("both hosts own it", async || owners().await == both).await;
    let secret = secrets.get("bmc").await.unwrap();
    assert_eq!(secret.labels().get("environment.metal3.io").map(String::as_str), Some("baremetal"));
    assert_eq!(secret.labels().get("team").map(String::as_str), Some("a"), "what users wrote stays");
    assert_eq!(secret.finalizers(), ["example.com/own", FINALIZER_SECRET]);
    assert!(secret.owner_references().iter().all(|owner| owner.controller != Some(true)));

    for name in ["second", "h"] {
        let hosts = site.api::<BareMetalHost>();
        let detach = json!({ "metadata": { "annotations": { ANNOTATION_DETACHED: "" } } });
        hosts.patch(name, &PatchParams::default(), &Patch::Merge(detach)).await.unwrap();
        hosts.delete(name, &DeleteParams::default()).await.unwrap();
        site.until("the host is gone", async || hosts.get_opt(name).await.unwrap().is_none()).await;
        if name == "second" {
            assert_eq!(owners().await, [first.uid().unwrap()], "the other host still needs it");
            let secret = secrets.get("bmc").await.unwrap();
            assert!(secret.finalizers().contains(&FINALIZER_SECRET.to_owned()));
        }
    }
    site.until("it is to go", async || secrets.get("bmc").await.unwrap().metadata.deletion_timestamp.is_some()).await;
    assert_eq!(secrets.get("bmc").await.unwrap().finalizers(), ["example.com/own"], "held by whoever else holds it");
}

#[tokio::test]
async fn a_secret_is_let_go_among_many_others_of_the_same_label() {
    let site = Site::idle().await;
    let secrets = site.api::<Secret>();
    let secret = |name: String| {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": name, "labels": { "environment.metal3.io": "baremetal" } },
            "stringData": { "username": "admin", "password": "secret" } });
        serde_json::from_value::<Secret>(secret).unwrap()
    };
    let all = (0..251).map(|number| format!("a{number}")).chain(["zz".to_owned()]);
    let created = futures::stream::iter(all).map(|name| {
        let (secrets, secret) = (secrets.clone(), secret(name));
        async move { secrets.create(&PostParams::default(), &secret).await.map(drop) }
    });
    let failed: Vec<_> = created.buffer_unordered(32).filter_map(async |created| created.err()).collect().await;
    assert!(failed.is_empty(), "{failed:?}");
    let mut host = site.host();
    host.spec.bmc.as_mut().unwrap().credentials_name = "zz".into();
    host.spec.externally_provisioned = true;
    site.create(&host).await;
    site.reconcile().await;
    let held = async || {
        let secret = secrets.get_opt("zz").await.unwrap();
        secret.is_some_and(|secret| secret.finalizers().contains(&FINALIZER_SECRET.to_owned()))
    };
    site.until("it is held", held).await;
    site.annotate(ANNOTATION_DETACHED, Some("")).await;
    site.delete().await;
    site.until_gone().await;
    assert!(!held().await);
}

#[tokio::test]
async fn a_secret_that_cannot_be_marked_is_said() {
    use crate::apiserver::{AdmissionOperation, AdmissionRequest, FieldError};
    let site = Site::idle().await;
    let frozen = |request: &AdmissionRequest<'_>| match request.operation {
        AdmissionOperation::Update => Err(vec![FieldError::forbidden("metadata.labels", "nothing is marked here")]),
        _ => Ok(()),
    };
    site.api.add_admission("/secrets", Arc::new(frozen));
    site.create(&site.host()).await;
    site.reconcile().await;
    let error = async || site.status().await.error_message;
    let said = "secret bmc cannot be marked as the host's";
    site.until("it is said", async || error().await.starts_with(said)).await;
    assert!(error().await.contains("nothing is marked here"));
}
