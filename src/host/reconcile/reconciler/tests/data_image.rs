//! Tests of DataImages of hosts that are deleted, or whose BMC is gone.

use super::*;
use crate::api::metal3::{DataImage, DataImageSpec};
use crate::config::Span;
use crate::host::media::data_image;
use crate::runtime::Watches;

const ISO: &str = "http://images.test/data.iso";

/// A provisioned host that is on and has its DataImage in the drive.
async fn with_a_cd() -> (Site, CancellationToken) {
    let mut site = Site::idle().await;
    let (_, bmc) = site.redfish(RedfishOptions::default()).await;
    site.provision().await;
    let mut watches = Watches::default();
    let images = data_image::DataImages::new(&mut watches);
    tokio::spawn(watches.run(site.client.clone(), site.shutdown.clone()));
    let pause = Duration::from_millis(50);
    tokio::spawn(data_image::keep(site.client.clone(), images, pause, site.shutdown.clone()));
    let image = DataImage::new("h", DataImageSpec { url: ISO.into() });
    site.api::<DataImage>().create(&PostParams::default(), &image).await.unwrap();
    let hosts = HostConfig {
        retry: Span(Duration::from_millis(20)),
        power_poll: Span(Duration::from_millis(100)),
        ..HostConfig::default()
    };
    let bmcs = BmcSettings {
        poll: Duration::from_millis(20),
        http_backoff: Duration::from_millis(5),
        ..BmcSettings::default()
    };
    site.reconcile_with(hosts, bmcs).await;
    // The host says so, not only the machine: until then its power is still waited for, at a BMC that is to go.
    site.until("it is on with its CD", async || {
        let held = site.api::<DataImage>().get("h").await.unwrap();
        site.status().await.powered_on && held.status.is_some_and(|status| status.attached_image.is_some())
    })
    .await;
    assert_eq!(site.machine.media().as_deref(), Some(ISO));
    (site, bmc)
}

async fn until_the_image_is_gone(site: &Site) {
    let gone = async || site.api::<DataImage>().get_opt("h").await.unwrap().is_none();
    site.until("the DataImage is gone", gone).await;
}

#[tokio::test]
async fn a_host_that_is_deleted_takes_its_cd_out() {
    let (site, _bmc) = with_a_cd().await;
    site.delete().await;
    tokio::select! {
        () = site.play_agent() => site.until_gone().await,
        () = site.until_gone() => {}
    }
    assert_eq!((site.machine.media(), site.machine.is_on()), (None, false));
    until_the_image_is_gone(&site).await;
}

#[tokio::test]
async fn an_image_goes_although_the_bmc_is_gone_and_so_does_its_host() {
    let (site, bmc) = with_a_cd().await;
    site.api::<DataImage>().delete("h", &DeleteParams::default()).await.unwrap();
    bmc.cancel();
    until_the_image_is_gone(&site).await;
    // It may be stored after the image is gone.
    let events = site.api::<k8s_openapi::api::core::v1::Event>();
    let is_told = |event: &k8s_openapi::api::core::v1::Event| {
        let reason = event.message.as_deref().unwrap_or_default();
        event.reason.as_deref() == Some("DataImageAbandoned") && reason.contains("cannot reach the BMC")
    };
    let told = async || events.list(&Default::default()).await.unwrap().iter().any(is_told);
    site.until("what was left undone is said with its reason", told).await;
    assert_eq!(site.status().await.provisioning.state, ProvisioningState::Provisioned);

    let (site, bmc) = with_a_cd().await;
    bmc.cancel();
    site.delete().await;
    site.until_gone().await;
    until_the_image_is_gone(&site).await;
}
