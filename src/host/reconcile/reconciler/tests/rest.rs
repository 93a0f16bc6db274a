//! Tests of idle hosts: nothing is asked or written again and again.

use super::*;
use crate::config::Span;

#[tokio::test(flavor = "multi_thread")]
async fn a_host_at_rest_is_looked_at_and_not_written() {
    let site = Site::idle().await;
    site.provision().await;
    let settings = HostConfig { power_poll: Span(Duration::from_millis(300)), ..HostConfig::default() };
    site.reconcile_with(settings, BmcSettings::default()).await;
    let message = |host: &BareMetalHost| {
        let status = host.status.clone().unwrap_or_default();
        conditions::waits_for(&status).map(str::to_owned)
    };
    site.until("it rests", async || message(&site.get().await).as_deref() == Some("powered on, as asked")).await;
    let (before, reads) = (site.get().await, site.machine.requests());
    site.until("it was looked at", async || site.machine.requests() > reads + 3).await;
    let after = site.get().await;
    assert_eq!(after.resource_version(), before.resource_version(), "{before:#?} {after:#?}");
}
