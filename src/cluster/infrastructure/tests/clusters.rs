//! Metal3Clusters.

use std::sync::{Arc, Mutex};

use super::*;

fn provisioned(cluster: Option<&Metal3Cluster>) -> Option<bool> {
    cluster.and_then(|cluster| cluster.status.as_ref()?.initialization.as_ref()?.provisioned)
}

#[tokio::test]
async fn a_cluster_is_there_with_its_owner_and_goes_after_its_machines() {
    let site = Site::new().await;
    site.create::<Metal3Cluster>(json!({
        "metadata": {"name": "c"},
        "spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}, "failureDomains": [{"name": "row-1"}]},
    }))
    .await;
    let waiting = |cluster: Option<&Metal3Cluster>| {
        let status = cluster.and_then(|cluster| cluster.status.as_ref());
        status.is_some_and(|status| {
            find(&status.conditions, "Ready").is_some_and(|ready| ready.message.contains("Waiting for a Cluster"))
        })
    };
    site.until("c", "waits for its Cluster", waiting).await;
    let reference = json!({"kind": "Metal3Cluster", "name": "c", "apiGroup": "infrastructure.cluster.x-k8s.io"});
    let cluster: Cluster =
        site.create(json!({"metadata": {"name": "c"}, "spec": {"infrastructureRef": reference}})).await;
    site.change::<Metal3Cluster>("c", json!({"metadata": {"ownerReferences": [owner(&cluster)]}})).await;
    let there = site.until("c", "is provisioned", |cluster| provisioned(cluster) == Some(true)).await.unwrap();
    assert_eq!(there.status.as_ref().map(|status| status.failure_domains.len()), Some(1));
    assert_eq!(there.finalizers(), ["metal3cluster.infrastructure.cluster.x-k8s.io"]);
    // It stays as long as there is a machine, and goes when that has gone.
    site.wish("m", "c", json!({})).await;
    site.delete::<Metal3Cluster>("c").await;
    let waiting = |cluster: Option<&Metal3Cluster>| {
        let status = cluster.and_then(|cluster| cluster.status.as_ref());
        status.is_some_and(|status| {
            find(&status.conditions, "Ready").is_some_and(|ready| ready.message.contains("Machine m must go first"))
        })
    };
    site.until("c", "waits for its machines", waiting).await;
    site.delete::<Machine>("m").await;
    site.gone::<Metal3Machine>("m").await;
    site.gone::<Metal3Cluster>("c").await;
}

/// A client that keeps the paths of what is read of Metal3Clusters.
fn noted(client: &Client, paths: &Arc<Mutex<Vec<String>>>) -> Client {
    let (client, paths) = (client.clone(), paths.clone());
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, paths) = (client.clone(), paths.clone());
        async move {
            let path = request.uri().path().to_owned();
            if request.method() == http::Method::GET && path.contains("/metal3clusters") {
                paths.lock().unwrap().push(path);
            }
            client.send(request).await
        }
    });
    Client::new(service, NAMESPACE)
}

/// However many there are, who has an endpoint is found by the endpoint.
#[tokio::test]
async fn an_endpoint_in_use_is_found_without_reading_the_others() {
    const OTHERS: usize = 60;
    let site = Site::with_controllers(0).await;
    let mut watches = Watches::default();
    let hosts = HostPool::new(&mut watches);
    let InfrastructureCaches { clusters, .. } = InfrastructureCaches::new(&mut watches, hosts);
    tokio::spawn(watches.run(site.client.clone(), site.shutdown.clone()));
    let paths = Arc::default();
    tokio::spawn(Metal3ClusterReconciler::new(noted(&site.client, &paths), clusters).run(site.shutdown.clone()));
    let cluster: Cluster = site.create(json!({"metadata": {"name": "c"}, "spec": {"paused": false}})).await;
    let make = async |name: &str, host: &str| {
        let spec = json!({"controlPlaneEndpoint": {"host": host, "port": 6443}});
        let metadata = json!({"name": name, "ownerReferences": [owner(&cluster)]});
        site.create::<Metal3Cluster>(json!({"metadata": metadata, "spec": spec})).await;
    };
    for number in 0..OTHERS {
        make(&format!("other-{number}"), &format!("10.0.1.{number}")).await;
    }
    make("first", "api.test").await;
    site.until("first", "is provisioned", |cluster| provisioned(cluster) == Some(true)).await;
    make("second", "API.test").await;
    let waits = |cluster: Option<&Metal3Cluster>| json!(cluster).to_string().contains("that of Metal3Cluster first");
    site.until("second", "says whose its endpoint is", waits).await;
    for number in 0..OTHERS {
        let is_there = |cluster: Option<&Metal3Cluster>| provisioned(cluster) == Some(true);
        site.until(&format!("other-{number}"), "is provisioned", is_there).await;
    }
    let lists = paths.lock().unwrap().iter().filter(|path| path.ends_with("/metal3clusters")).count();
    assert_eq!(lists, 0, "of {OTHERS} others");
    // Whoever waits is told when the endpoint is let go, by a change as by a deletion.
    let elsewhere = json!({"spec": {"controlPlaneEndpoint": {"host": "other.test"}}});
    site.change::<Metal3Cluster>("first", elsewhere).await;
    site.until("second", "has it", |cluster| provisioned(cluster) == Some(true)).await;
}

#[tokio::test]
async fn one_without_a_cluster_goes_all_the_same() {
    let site = Site::new().await;
    site.cluster("c").await;
    site.until("c", "is provisioned", |cluster| provisioned(cluster) == Some(true)).await;
    site.delete::<Cluster>("c").await;
    site.gone::<Cluster>("c").await;
    site.gone::<Metal3Cluster>("c").await;
}

#[tokio::test]
async fn the_rules_of_the_webhooks_hold() {
    let site = Site::new().await;
    let refused = |error: kube::Error| error.to_string();
    let spec = json!({"image": {"url": "http://x/y", "checksum": "aa"}, "userData": {"name": "s", "namespace": "kube-system"}});
    let reason =
        site.try_create::<Metal3Machine>(json!({"metadata": {"name": "m"}, "spec": spec})).await.map_err(refused);
    assert!(reason.unwrap_err().contains("cross-namespace secret references are not allowed"));
    let reason = site
        .try_create::<v1beta2::Metal3ClusterTemplate>(
            json!({"metadata": {"name": "t"}, "spec": {"template": {"spec": {}}}}),
        )
        .await
        .map_err(refused);
    assert!(reason.unwrap_err().contains("spec.template.spec.controlPlaneEndpoint.host"));
    let template = json!({"metadata": {"name": "t"}, "spec": {"template": {"spec": {}}}});
    let made: remediation_v1beta2::Metal3RemediationTemplate = site.create(template).await;
    let strategy = json!(made.spec.template.spec.strategy);
    assert_eq!(strategy, json!({"type": "Reboot", "retryLimit": 1, "timeoutSeconds": 600}));
    let old = site.api::<remediation_v1beta1::Metal3RemediationTemplate>().get("t").await.unwrap();
    assert_eq!(json!(old.spec.template.spec.strategy)["timeout"], "10m0s");
    let short = json!({"metadata": {"name": "r"}, "spec": {"strategy": {"type": "Reboot", "timeout": "5s"}}});
    let reason = site.try_create::<remediation_v1beta1::Metal3Remediation>(short).await.map_err(refused);
    assert!(reason.unwrap_err().contains("min duration is 100 seconds"));
}
