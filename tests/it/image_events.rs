//! What happened to an image is told by `slipway describe image`.

use std::os::unix::fs::PermissionsExt;

use crate::process::{Appliance, until};

#[tokio::test(flavor = "multi_thread")]
async fn an_image_tells_its_history() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let here = folder.path().join("good.raw");
    std::fs::write(&here, vec![7_u8; 3 << 20]).unwrap();
    let appliance = Appliance::with(&format!("[image]\nfile_folder = {:?}\n", folder.path())).await;
    appliance.client().await;
    let url = |name: &str| format!("file://{}", folder.path().join(name).display());
    for name in ["good", "missing"] {
        let image = ["image", "import", name, &url(&format!("{name}.raw")), "--format", "raw", "--no-wait"];
        let ran = appliance.slipway(&image).await;
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
    let told = async |name: &str, reason: &str| {
        until(&format!("{name} tells {reason}"), async || {
            let ran = appliance.slipway(&["describe", "image", name]).await;
            let text = String::from_utf8(ran.stdout).unwrap();
            let (_, events) = text.split_once("\nEvents:")?;
            events.contains(&format!(" {reason} ")).then(|| events.to_owned())
        })
        .await
    };
    let events = told("good", "Imported").await;
    assert!(events.contains("ImportStarted") && events.contains("3 MiB"), "{events}");
    let events = told("missing", "ImportFailed").await;
    assert!(events.contains("Warning") && events.contains("The import failed: its source"), "{events}");
    // Whoever reads events may not be one who reads Images.
    assert!(!events.contains("file://"), "{events}");
}
