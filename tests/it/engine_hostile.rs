//! An appliance whose objects are in another API server, and what its users write there: judged again where it acts.
//!
//! The API server is Slipway's own, from its library, with the schemas of its kinds and without its admission, as a
//! kube-apiserver has them; nothing acts there. The appliance that acts is a process. `engine.rs` has the same rows on a
//! kube-apiserver.

use std::path::Path;

use slipway::api::{Kind, StoragePolicy};
use slipway::apiserver::auth::AuthOptions;
use slipway::apiserver::{ApiServer, tls};
use slipway::modules::kinds;
use slipway::pki::Pki;
use slipway::store::{Store, StoreOptions};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::hostile;
use crate::process::{Appliance, until};

/// An API server without admission, and its administrator's kubeconfig.
async fn api_server(folder: &Path, shutdown: &CancellationToken) -> String {
    let options = StoreOptions { path: folder.join("db"), key_file: folder.join("key"), history: 1000 };
    let store = Store::open(options).unwrap();
    let pki = Pki::open(&folder.join("pki"), &["127.0.0.1".to_owned()]).unwrap();
    let access = AuthOptions {
        ca_pem: pki.ca_pem().to_owned(),
        series: Some(pki.authority().series().clone()),
        ..AuthOptions::default()
    };
    // Slipway's own server lets nobody but its own process write boot intents and leases; others take them as any object.
    let kinds: Vec<Kind> = kinds().into_iter().map(|kind| Kind { policy: StoragePolicy::Durable, ..kind }).collect();
    let api = ApiServer::with_auth(store, &kinds, access, shutdown.clone()).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(tls::serve(listener, pki.server_config().unwrap(), api.router(), shutdown.clone()));
    tokio::spawn(async move { api.run().await });
    pki.authority().kubeconfig(&endpoint, std::time::Duration::from_secs(3600)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_past_admission_is_judged_where_it_is_acted_on() {
    slipway::appliance::install_tls_provider();
    let folder = tempfile::tempdir().unwrap();
    let shutdown = CancellationToken::new();
    let _shutdown = shutdown.clone().drop_guard();
    let kubeconfig = api_server(folder.path(), &shutdown).await;
    // With the rights that the documentation gives it.
    let file = folder.path().join("admin");
    std::fs::write(&file, &kubeconfig).unwrap();
    let rbac = concat!(env!("CARGO_MANIFEST_DIR"), "/config/engine-rbac.yaml");
    let mut apply = tokio::process::Command::new(env!("CARGO_BIN_EXE_slipway"));
    let apply = apply.args(["apply", "-f", rbac]).env("KUBECONFIG", &file).env_remove("SLIPWAY_CONFIG");
    let applied = apply.output().await.unwrap();
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let mut own: serde_json::Value = serde_saphyr::from_str(&kubeconfig).unwrap();
    own["users"][0]["user"]["as"] = "slipway".into();
    let own_file = folder.path().join("own");
    std::fs::write(&own_file, own.to_string()).unwrap();

    let data = folder.path().join("data");
    let boot = data.join("boot");
    std::fs::create_dir_all(&boot).unwrap();
    for name in ["vmlinuz", "initrd", "ramdisk.json"] {
        std::fs::write(boot.join(name), "nothing").unwrap();
    }
    let mut site = hostile::Site::new(&data).await;
    let tables = format!("{}[engine]\nkubeconfig = {own_file:?}\n", site.tables());
    let appliance = Appliance::with_data(data.clone(), &tables).await;
    let admin = hostile::client(&kubeconfig, None).await;
    let leases = kube::Api::<k8s_openapi::api::coordination::v1::Lease>::namespaced(admin, "slipway-system");
    until("the appliance leads", async || leases.get_opt("slipway").await.unwrap()).await;
    let log = || appliance.log();
    let acting = hostile::Acting { data, boot: appliance.boot, api: appliance.address, log: &log };
    hostile::rows(&kubeconfig, &mut site, acting).await;
}
