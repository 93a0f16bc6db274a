//! A hardware profile that there is not, through the API that its users have.

use super::*;
use crate::api::metal3::ErrorType;

#[tokio::test]
async fn a_profile_that_there_is_not_is_said_and_ends_with_its_correction() {
    let site = Site::idle().await;
    site.reconcile().await;
    let mut host = site.host();
    host.spec.hardware_profile = Some("warp-drive".into());
    site.create(&host).await;
    site.until("it is said", async || site.status().await.error_type == Some(ErrorType::Registration)).await;
    let status = site.status().await;
    assert!(status.error_message.contains("no hardware profile named \"warp-drive\""), "{}", status.error_message);
    assert_eq!(status.provisioning.state, ProvisioningState::Registering);
    assert!(site.machine.boots().is_empty(), "nothing is begun");
    site.patch(json!({ "spec": { "hardwareProfile": "dell-raid" } })).await;
    site.until("it goes on", async || site.status().await.provisioning.state == ProvisioningState::Inspecting).await;
    let status = site.status().await;
    assert_eq!((status.hardware_profile.as_deref(), status.error_type), (Some("dell-raid"), None));
}
