//! Which machine has which address: leases that are selected, and hosts that show what their machines have.

use kube::api::{Api, ListParams};
use slipway::api::metal3::BareMetalHost;
use slipway::api::slipway::DHCPLease;

use crate::process::machine::{ADDRESS, MAC, Machine};
use crate::process::until;

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_found_by_what_it_says_and_its_host_shows_the_address() {
    slipway::appliance::install_tls_provider();
    let (mut appliance, _machine) = Machine::beside("ulimit -n 4096").await;
    for _ in 0..2 {
        let client = appliance.client().await;
        let leases: Api<DHCPLease> = Api::all(client.clone());
        let find = async |fields: &str, labels: &str| {
            let selected = ListParams::default().fields(fields).labels(labels);
            leases.list(&selected).await.unwrap().items
        };
        until("the lease of the host is shown", async || {
            find("spec.host=default/known,spec.state=bound", "").await.pop()
        })
        .await;
        for (fields, labels, found) in [
            (&*format!("spec.macAddress={MAC}"), "", true),
            ("spec.macAddress=02:00:00:00:00:21", "", false),
            (&*format!("spec.address={ADDRESS},spec.network=lo"), "", true),
            ("spec.network!=lo", "", false),
            ("spec.hostname=", "", true),
            ("", "slipway.dev/host=known,slipway.dev/host-namespace=default,slipway.dev/network=lo", true),
            ("", "slipway.dev/host=unknown", false),
        ] {
            let names: Vec<_> = find(fields, labels).await.into_iter().map(|lease| lease.spec.address).collect();
            assert_eq!(names, if found { vec![ADDRESS.to_string()] } else { vec![] }, "{fields} {labels}");
        }
        let hosts: Api<BareMetalHost> = Api::default_namespaced(client);
        let shown = until("the host shows its address", async || {
            let status = hosts.get("known").await.unwrap().status?;
            status.addresses.first().cloned()
        })
        .await;
        let shown = (shown.address, shown.mac_address, shown.network);
        assert_eq!(shown, (ADDRESS.to_string(), MAC.to_string(), "lo".to_owned()));
        for (arguments, wanted) in [
            (&["get", "hosts"][..], "ADDRESS"),
            (&["get", "hosts"], "127.0.0.20"),
            (&["get", "bmh", "-o", "wide"], "127.0.0.20"),
            (&["describe", "host", "known"], "127.0.0.20 (02:00:00:00:00:20, network lo)"),
        ] {
            let output = appliance.slipway(arguments).await;
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains(wanted), "{arguments:?}: {text}");
        }
        // Leases outlive the process, and so does what is shown of them.
        appliance.restart(false).await;
    }
}
