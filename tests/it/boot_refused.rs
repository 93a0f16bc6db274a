//! Who owns a host sees on it why its machine was refused its boot.

use k8s_openapi::api::core::v1::Event;
use kube::{Api, ResourceExt};

use crate::process::machine::{MAC, Machine};
use crate::process::until;

#[tokio::test(flavor = "multi_thread")]
async fn the_host_tells_why_its_machine_was_refused_its_boot() {
    slipway::appliance::install_tls_provider();
    let (appliance, machine) = Machine::beside("ulimit -n 4096").await;
    // There is a boot now.
    machine.token(&appliance).await;
    let stranger = std::net::IpAddr::from([127, 0, 0, 77]);
    let http = reqwest::Client::builder().no_proxy().local_address(stranger).build().unwrap();
    let url = format!("http://{}/boot/ipxe?mac={}&uuid=&arch=7", appliance.boot, MAC.hyphenated());
    let script = http.get(&url).send().await.unwrap().text().await.unwrap();
    let reason = format!("{stranger} asks for the script of {MAC}, which did not get that address here");
    assert!(script.contains(&reason) && !script.contains("slipway.token"), "{script}");
    let events: Api<Event> = Api::default_namespaced(appliance.client().await);
    until("an event", async || {
        let events = events.list(&Default::default()).await.unwrap();
        events.items.into_iter().find(|event| {
            let message = event.message.as_deref().unwrap_or_default();
            event.reason.as_deref() == Some("BootRefused")
                && event.involved_object.name.as_deref() == Some("known")
                && message == format!("A boot of the machine was refused: {reason}")
                && event.name_any().starts_with("known.")
        })
    })
    .await;
}
