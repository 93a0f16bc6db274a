//! `slipway image`: what it says when the API refuses, and what a failed import leaves.

use std::path::Path;
use std::process::{Command, Output};

use kube::Api;
use kube::api::ListParams;
use slipway::api::slipway::{Image, ImagePhase};
use slipway::simulate::appliance_process::ApplianceProcess;

use crate::process::until;

async fn until_failed(images: &Api<Image>, name: &str) {
    until("its import fails", async || {
        let status = images.get(name).await.unwrap().status?;
        (status.phase == ImagePhase::Failed).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_said_plainly_and_a_failed_import_leaves_nothing() {
    slipway::appliance::install_tls_provider();
    let program = env!("CARGO_BIN_EXE_slipway");
    let own = ApplianceProcess::start(Path::new(program), None, 1, false).await.unwrap();
    let image = |arguments: &str| -> Output {
        let mut command = Command::new(program);
        command.arg("image").args(arguments.split_whitespace()).arg("--config").arg(&own.config);
        command.output().unwrap()
    };
    let fails = |arguments: &str, wanted: &str| {
        let output = image(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(wanted), "image {arguments}: {said}");
        assert!(!said.contains("ApiError") && !said.contains("Status {"), "image {arguments}: {said}");
    };
    fails("remove nope", "image nope: there is none of this name");
    fails("import Debian_12 http://192.0.2.1/x.raw", "image Debian_12: Image.slipway.dev \"Debian_12\" is invalid");
    let images = Api::<Image>::all(own.client.clone());
    // It is refused before anything is made or sent.
    fails("import x http://192.0.2.1/x.raw --checksum deadbeef", "image x: checksum \"deadbeef\": it has 8 digits");
    let wrong = format!("import x http://127.0.0.1:1/x.raw --checksum {}", "a".repeat(64));
    for _ in 0..2 {
        fails(&wrong, "Nothing is left of it");
        assert_eq!(images.list(&ListParams::default()).await.unwrap().items.len(), 0);
    }
    assert!(image(&format!("{wrong} --no-wait")).status.success());
    let left = images.get("x").await.unwrap().metadata.uid;
    until_failed(&images, "x").await;
    // What failed is in nobody's way.
    assert!(image(&format!("{wrong} --no-wait")).status.success());
    assert_ne!(images.get("x").await.unwrap().metadata.uid, left, "it was replaced");
    until_failed(&images, "x").await;
    let listed = String::from_utf8(image("list").stdout).unwrap();
    assert!(listed.contains("Failed") && listed.contains("cannot be fetched"), "{listed}");
    // What is wrong with one keeps none of the others.
    let removed = image("remove nope x -o json");
    assert_eq!(removed.status.code(), Some(1));
    let outcomes: serde_json::Value = serde_json::from_slice(&removed.stdout).unwrap();
    assert_eq!((&outcomes[0]["result"], &outcomes[1]["result"]), (&"failed".into(), &"removed".into()), "{outcomes}");
    assert_eq!(images.list(&ListParams::default()).await.unwrap().items.len(), 0);
}
