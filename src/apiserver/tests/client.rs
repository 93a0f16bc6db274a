//! kube-rs on the router in this process: what Slipway's own rooms use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{Event as Finalizer, finalizer};
use kube::runtime::watcher;

use super::*;
use crate::api::metal3::{BareMetalHost, BareMetalHostSpec, BareMetalHostStatus, ProvisioningState};

fn typed(name: &str) -> BareMetalHost {
    BareMetalHost::new(name, BareMetalHostSpec { online: true, ..Default::default() })
}

#[tokio::test]
async fn the_client_does_all_it_can_do() {
    let rig = Rig::new().await;
    let hosts: Api<BareMetalHost> = Api::namespaced(rig.api.client(), "rack");
    let made = hosts.create(&PostParams::default(), &typed("a")).await.unwrap();
    assert!(hosts.get_opt("none").await.unwrap().is_none());
    let again = hosts.create(&PostParams::default(), &typed("a")).await.unwrap_err();
    assert!(matches!(again, kube::Error::Api(status) if status.is_already_exists()));

    let mut changed = made.clone();
    changed.spec.online = false;
    let changed = hosts.replace("a", &PostParams::default(), &changed).await.unwrap();
    let stale = hosts.replace("a", &PostParams::default(), &made).await.unwrap_err();
    assert!(matches!(stale, kube::Error::Api(status) if status.is_conflict()));

    let mut with_status = changed.clone();
    with_status.status = Some(BareMetalHostStatus { powered_on: true, ..Default::default() });
    let with_status = hosts.replace_status("a", &PostParams::default(), &with_status).await.unwrap();
    assert!(with_status.status.as_ref().unwrap().powered_on);
    let patch = Patch::Merge(json!({"status": {"provisioning": {"state": "match profile"}}}));
    let patched = hosts.patch_status("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.status.unwrap().provisioning.state, ProvisioningState::MatchProfile);

    let list = hosts.list(&ListParams::default().limit(1)).await.unwrap();
    assert_eq!(list.items.len(), 1);
    let meta: PartialObjectMeta<BareMetalHost> = hosts.get_metadata("a").await.unwrap();
    assert_eq!(meta.metadata.name.as_deref(), Some("a"));
    assert!(hosts.delete("a", &DeleteParams::background()).await.unwrap().is_right());
    let discovery = kube::Discovery::new(rig.api.client()).run().await.unwrap();
    assert!(discovery.has_group("metal3.io"));
}

#[tokio::test]
async fn watchers_list_and_stream() {
    let rig = Rig::new().await;
    let hosts: Api<BareMetalHost> = Api::all(rig.api.client());
    let write: Api<BareMetalHost> = Api::namespaced(rig.api.client(), "rack");
    write.create(&PostParams::default(), &typed("a")).await.unwrap();
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut stream = std::pin::pin!(watcher(hosts.clone(), config));
        let mut seen = Vec::new();
        while !matches!(seen.last(), Some(watcher::Event::InitDone)) {
            seen.push(tokio::time::timeout(DEADLINE, stream.next()).await.unwrap().unwrap().unwrap());
        }
        assert!(matches!(&seen[..], [watcher::Event::Init, watcher::Event::InitApply(_), watcher::Event::InitDone]));
        write.create(&PostParams::default(), &typed("b")).await.unwrap();
        let event = tokio::time::timeout(DEADLINE, stream.next()).await.unwrap().unwrap().unwrap();
        assert!(matches!(event, watcher::Event::Apply(host) if host.metadata.name.as_deref() == Some("b")));
        write.delete("b", &DeleteParams::default()).await.unwrap();
        let event = tokio::time::timeout(DEADLINE, stream.next()).await.unwrap().unwrap().unwrap();
        assert!(matches!(event, watcher::Event::Delete(_)));
    }
}

#[tokio::test]
async fn a_controller_reconciles_and_cleans_up() {
    let rig = Rig::new().await;
    let client = rig.api.client();
    let hosts: Api<BareMetalHost> = Api::namespaced(client.clone(), "rack");
    let cleaned = Arc::new(AtomicUsize::new(0));
    let context = Arc::new((hosts.clone(), Arc::clone(&cleaned)));
    let reconcile = |host: Arc<BareMetalHost>, context: Arc<(Api<BareMetalHost>, Arc<AtomicUsize>)>| async move {
        finalizer(&context.0, "x/test", host, |event| async {
            match event {
                Finalizer::Apply(host) => {
                    let name = host.metadata.name.clone().unwrap();
                    let status = Patch::Merge(json!({"status": {"provisioning": {"state": "registering"}}}));
                    context.0.patch_status(&name, &PatchParams::default(), &status).await?;
                }
                Finalizer::Cleanup(_) => {
                    context.1.fetch_add(1, Ordering::SeqCst);
                }
            }
            Ok::<_, kube::Error>(Action::await_change())
        })
        .await
    };
    let controller = Controller::new(hosts.clone(), watcher::Config::default())
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(50)), context)
        .for_each(|_| async {});
    let controller = tokio::spawn(controller);
    for n in 0..20 {
        hosts.create(&PostParams::default(), &typed(&format!("h{n}"))).await.unwrap();
    }
    let state = |host: &BareMetalHost| host.status.as_ref().map(|status| status.provisioning.state);
    eventually(async || {
        let list = hosts.list(&ListParams::default()).await.unwrap();
        list.iter().all(|host| state(host) == Some(ProvisioningState::Registering))
    })
    .await;
    hosts.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    eventually(async || hosts.list(&ListParams::default()).await.unwrap().items.is_empty()).await;
    assert_eq!(cleaned.load(Ordering::SeqCst), 20);
    controller.abort();
}

#[tokio::test]
async fn the_sweeper_runs_by_itself() {
    let rig = Rig::new().await;
    let sweeper = rig.api.clone();
    let running = tokio::spawn(async move { sweeper.run().await });
    let owner = rig.call("POST", HOSTS, &host("a")).await.expect(201);
    let mut dependent = secret("s", &json!({}));
    dependent["metadata"]["ownerReferences"] = json!([{"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
        "name": "a", "uid": owner["metadata"]["uid"]}]);
    rig.call("POST", SECRETS, &dependent).await.expect(201);
    rig.call("DELETE", &path(HOSTS, "a"), &json!({})).await.expect(200);
    eventually(async || rig.get(&path(SECRETS, "s")).await.code == 404).await;
    rig.call("DELETE", "/api/v1/namespaces/rack", &json!({})).await.expect(200);
    eventually(async || rig.get("/api/v1/namespaces/rack").await.code == 404).await;
    rig.api.shutdown().cancel();
    tokio::time::timeout(DEADLINE, running).await.unwrap().unwrap();
}
