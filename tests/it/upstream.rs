//! `[cluster] controllers`: a group that is off is left to another manager, which has the rights that it was given and no others.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use slipway::api::cluster::v1beta2::Cluster;
use slipway::api::infrastructure::data::v1beta2::Metal3DataTemplate;
use slipway::api::infrastructure::v1beta2::{Metal3Cluster, Metal3Machine};

use crate::process::{Appliance, until};

const OFF: &str = "[cluster.controllers]\n\"infrastructure.cluster.x-k8s.io\" = \"off\"\n";
const FINALIZER: &str = "metal3cluster.infrastructure.cluster.x-k8s.io";

/// The client of a manager, with the token of a service account that has this role.
async fn manager(appliance: &Appliance, role: &str) -> Client {
    let made = appliance.slipway(&["token", "create", "manager", "--role", role, "-o", "kubeconfig"]).await;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let config = Kubeconfig::from_yaml(&String::from_utf8(made.stdout).unwrap()).unwrap();
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

fn read<K: serde::de::DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

#[tokio::test]
async fn a_group_that_is_off_is_another_managers_until_it_is_on_again() {
    slipway::appliance::install_tls_provider();
    let mut appliance = Appliance::with(OFF).await;
    let client = appliance.client().await;
    let role = json!({"metadata": {"name": "infrastructure-manager"}, "rules": [
        {"apiGroups": ["infrastructure.cluster.x-k8s.io"], "resources": ["metal3clusters", "metal3clusters/status"],
            "verbs": ["get", "list", "watch", "update", "patch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
    ]});
    Api::<ClusterRole>::all(client.clone()).create(&PostParams::default(), &read(role)).await.unwrap();
    let manager = manager(&appliance, "infrastructure-manager").await;

    let reference = json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Metal3Cluster", "name": "c"});
    let cluster = json!({"metadata": {"name": "c"}, "spec": {"infrastructureRef": reference}});
    let endpoint = json!({"host": "192.0.2.1", "port": 6443});
    let infrastructure = json!({"metadata": {"name": "c"}, "spec": {"controlPlaneEndpoint": endpoint}});
    let clusters = Api::<Cluster>::default_namespaced(client.clone());
    clusters.create(&PostParams::default(), &read(cluster)).await.unwrap();
    Api::default_namespaced(client.clone())
        .create(&PostParams::default(), &read::<Metal3Cluster>(infrastructure))
        .await
        .unwrap();

    // Who acts on Clusters is on.
    let theirs = Api::<Metal3Cluster>::default_namespaced(manager.clone());
    until("the Cluster owns it", async || {
        let found = theirs.get("c").await.unwrap();
        found.owner_references().iter().any(|owner| owner.kind == "Cluster").then_some(())
    })
    .await;
    // The other manager does its part, as one of several that elect who acts.
    let lease = json!({"metadata": {"name": "manager"}, "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15}});
    Api::default_namespaced(manager.clone()).create(&PostParams::default(), &read::<Lease>(lease)).await.unwrap();
    let done = Patch::Merge(json!({"status": {"initialization": {"provisioned": true}}}));
    theirs.patch_status("c", &PatchParams::default(), &done).await.unwrap();
    until("the Cluster believes it", async || {
        let cluster = clusters.get("c").await.unwrap();
        let status = cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
        let provisioned = status.and_then(|done| done.infrastructure_provisioned) == Some(true);
        (provisioned && cluster.spec.control_plane_endpoint.is_some()).then_some(())
    })
    .await;
    let refused = Api::<Secret>::default_namespaced(manager).list(&ListParams::default()).await.unwrap_err();
    assert!(refused.to_string().contains("cannot list resource \"secrets\""), "{refused}");
    // What nobody here acts on is bounded all the same: others read it.
    let each = |more: Value| -> Vec<Value> {
        let one = |number: usize| {
            let mut entry = more.clone();
            entry["key"] = format!("k{number}").into();
            entry
        };
        (0..512).map(one).collect()
    };
    let meta = json!({"strings": each(json!({"value": "v"})), "namespaces": each(json!({})), "indexes": each(json!({})),
        "objectNames": each(json!({"object": "machine"})),
        "fromLabels": each(json!({"object": "machine", "label": "l"}))});
    let template = json!({"metadata": {"name": "t"}, "spec": {"clusterName": "c", "metaData": meta}});
    let templates = Api::<Metal3DataTemplate>::default_namespaced(client.clone());
    let large = templates.create(&PostParams::default(), &read(template)).await.unwrap_err();
    assert!(large.to_string().contains("has more than 2048 objects and lists"), "{large}");
    // Nobody here has written into it, and the rules are asked all the same.
    let found = theirs.get("c").await.unwrap();
    let said = found.status.as_ref().map(|status| status.conditions.len());
    assert_eq!((found.finalizers().len(), said), (0, Some(0)));
    let secret = json!({"name": "s", "namespace": "kube-system"});
    let machine = json!({"metadata": {"name": "m"},
        "spec": {"image": {"url": "http://192.0.2.1/x", "checksum": "aa"}, "userData": secret}});
    let refused = Api::default_namespaced(client)
        .create(&PostParams::default(), &read::<Metal3Machine>(machine))
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("cross-namespace secret references are not allowed"), "{refused}");

    appliance.restart_with("").await;
    let ours = Api::<Metal3Cluster>::default_namespaced(appliance.client().await);
    until("it is Slipway's", async || {
        let found = ours.get("c").await.ok()?;
        found.finalizers().iter().any(|finalizer| finalizer == FINALIZER).then_some(())
    })
    .await;
}
