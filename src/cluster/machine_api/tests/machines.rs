//! Machines, from their wish for a host to their end.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Namespace;

use super::*;
use crate::api::cluster::v1beta2::{Cluster, Machine as Owner};
use crate::api::infrastructure::v1beta2::{Metal3Cluster, Metal3Machine};

#[tokio::test]
async fn a_machine_runs_and_lets_its_host_go() {
    let site = Site::new().await;
    site.wish("m", json!({"userData": {"name": "u"}})).await;
    site.says("m", "Pending", "Secret \"u\"").await;
    site.create::<Secret>(json!({"metadata": {"name": "u"}, "stringData": {"userData": "#cloud-config"}})).await;
    site.says("m", "Pending", "no BareMetalHost in this namespace").await;
    assert!(site.told("m", "NoBareMetalHost").await);

    site.free("h", json!({"spec": {"hardwareProfile": "unknown"}})).await;
    let host = site.host("h", "is told what to run", |host| host.spec.image.is_some()).await;
    assert!(is_of(&host, "m") && host.spec.online);
    let machine = site.says("m", "Provisioning", "").await;
    assert_eq!(machine.finalizers(), ["machine.cluster.k8s.io"]);

    // What goes wrong with the host is said, and is nothing that the Machine's owner could mend.
    let failed = json!({"provisioning": {"state": "provisioning"}, "errorMessage": "404 Not Found"});
    site.change::<BareMetalHost>("h", json!({"status": failed})).await;
    let machine = site.says("m", "Provisioning", "404 Not Found").await;
    assert_eq!(machine.status.unwrap().error_reason, None);
    let nics = json!([{"name": "eno1", "mac": "aa:bb:cc:dd:ee:ff", "ip": "10.0.0.7"}]);
    let hardware = json!({"hostname": "node-1", "nics": nics});
    let running = json!({"provisioning": {"state": "provisioned"}, "errorMessage": "", "hardware": hardware});
    site.change::<BareMetalHost>("h", json!({"status": running})).await;
    let machine = site.says("m", "Running", "").await;
    assert_eq!(machine.labels()["metal3.io/instance-type"], "unknown");
    assert_eq!(machine.annotations()["metal3.io/instance-state"], "provisioned");
    let addresses = json!([{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "Hostname", "address": "node-1"},
        {"type": "InternalDNS", "address": "node-1"}]);
    assert_eq!(json!(machine.status.unwrap().addresses), addresses);

    // What it asks for afterwards is another Machine's matter.
    let image = json!({"spec": {"providerSpec": {"value": {"image": {"url": "http://images.test/new.raw"}}}}});
    site.change::<Machine>("m", image).await;

    // It goes: the host has the time that it needs, and is nobody's only then.
    site.delete::<Machine>("m").await;
    let host = site.host("h", "is told to end", |host| host.spec.image.is_none()).await;
    assert!(is_of(&host, "m") && !host.spec.online && host.spec.user_data.is_none());
    site.state("h", "deprovisioning").await;
    site.says("m", "Terminating", "BareMetalHost h is deprovisioning").await;
    assert!(is_of(&site.get::<BareMetalHost>("h").await.unwrap(), "m"));
    site.state("h", "available").await;
    site.gone::<Machine>("m").await;
    let host = site.get::<BareMetalHost>("h").await.unwrap();
    assert_eq!((consumer(&host), host.annotations().len()), (None, 0));
}

#[tokio::test]
async fn user_data_of_the_host_itself_stays_its_own() {
    let site = Site::new().await;
    let own = json!({"name": "own", "namespace": NAMESPACE});
    site.free("h", json!({"spec": {"userData": own}})).await;
    site.wish("m", json!({})).await;
    let host = site.runs("h").await;
    assert_eq!(json!(host.spec.user_data), own);
    site.says("m", "Running", "").await;
    site.delete::<Machine>("m").await;
    let host = site.host("h", "is told to end", |host| host.spec.image.is_none()).await;
    assert_eq!(json!(host.spec.user_data), own);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_or_said() {
    let site = Site::new().await;
    site.free("h", json!({})).await;
    for (change, said) in [
        (json!({"userData": {"name": "u", "namespace": "kube-system"}}), "kube-system"),
        (json!({"hostSelector": {"matchExpressions": [{"key": "a", "operator": "like"}]}}), "like"),
        (json!({"odd": 1}), "odd"),
    ] {
        match site.try_create::<Machine>(wished("m", change.clone())).await {
            Err(kube::Error::Api(status)) if status.code == 422 => assert!(status.message.contains(said), "{status:?}"),
            other => panic!("{change}: {other:?}"),
        }
    }
    site.wish("m", json!({"image": null})).await;
    let status = site.says("m", "Failed", "Missing fields: image.url, image.checksum").await.status.unwrap();
    let error = (status.error_reason.as_deref(), status.error_message.as_deref());
    assert_eq!(error, (Some("InvalidConfiguration"), Some("Missing fields: image.url, image.checksum")));
    assert_eq!(consumer(&site.get::<BareMetalHost>("h").await.unwrap()), None);
    // It is mended, and goes on.
    let image = json!({"url": "http://images.test/os.raw", "checksum": "aa"});
    site.change::<Machine>("m", json!({"spec": {"providerSpec": {"value": {"image": image}}}})).await;
    site.runs("h").await;
    let status = site.says("m", "Running", "").await.status.unwrap();
    assert_eq!((status.error_reason, status.error_message), (None, None));
    // Whose it is does not change while it has a host.
    let other = json!({"spec": {"providerSpec": {"value": {"apiVersion": "example.test/v1"}}}});
    let refused = site.try_change::<Machine>("m", other).await;
    assert!(
        matches!(&refused, Err(kube::Error::Api(status)) if status.message.contains("another provider's")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn hosts_of_other_namespaces_are_nobodys_here() {
    let site = Site::new().await;
    let namespace = serde_json::from_value(json!({"metadata": {"name": "other"}}));
    let namespaces = Api::<Namespace>::all(site.client.clone());
    namespaces.create(&PostParams::default(), &namespace.unwrap()).await.unwrap();
    let other = Api::<BareMetalHost>::namespaced(site.client.clone(), "other");
    let host = serde_json::from_value(json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
        "metadata": {"name": "h"}, "spec": {"online": false}}));
    other.create(&PostParams::default(), &host.unwrap()).await.unwrap();
    let available = json!({"status": {"provisioning": {"state": "available"}}});
    other.patch_status("h", &PatchParams::default(), &Patch::Merge(&available)).await.unwrap();
    // Not even when the Machine says that it has it.
    let mut machine = wished("m", json!({}));
    machine["metadata"]["annotations"] = json!({"metal3.io/BareMetalHost": "other/h"});
    site.create::<Machine>(machine).await;
    site.says("m", "Pending", "no BareMetalHost in this namespace").await;
    assert_eq!(consumer(&other.get("h").await.unwrap()), None);
}

#[tokio::test]
async fn a_host_that_a_machine_names_itself_must_suit_it() {
    let site = Site::new().await;
    site.free("h", json!({"metadata": {"labels": {"role": "db"}}})).await;
    let mut machine = wished("m", json!({"hostSelector": {"matchLabels": {"role": "web"}}}));
    machine["metadata"]["annotations"] = json!({"metal3.io/BareMetalHost": "default/h"});
    site.create::<Machine>(machine).await;
    let machine = site.says("m", "Pending", "without the label role=web (h: db)").await;
    assert!(!machine.annotations().contains_key("metal3.io/BareMetalHost"));
    assert_eq!(consumer(&site.get::<BareMetalHost>("h").await.unwrap()), None);
}

#[tokio::test]
async fn a_machine_whose_host_is_gone_takes_another_until_it_ran_once() {
    let site = Site::new().await;
    site.free("a", json!({})).await;
    site.wish("m", json!({})).await;
    site.host("a", "is the machine's", |host| is_of(host, "m")).await;
    site.delete::<BareMetalHost>("a").await;
    site.gone::<BareMetalHost>("a").await;
    site.free("b", json!({})).await;
    site.runs("b").await;
    site.says("m", "Running", "").await;
    site.free("c", json!({})).await;
    site.delete::<BareMetalHost>("b").await;
    site.gone::<BareMetalHost>("b").await;
    let status = site.says("m", "Running", "is gone").await.status.unwrap();
    assert_eq!(status.error_reason.as_deref(), Some("UpdateError"));
    assert_eq!(consumer(&site.get::<BareMetalHost>("c").await.unwrap()), None);
    // Nothing keeps it.
    site.delete::<Machine>("m").await;
    site.gone::<Machine>("m").await;
}

#[tokio::test]
async fn nothing_is_done_about_one_that_is_paused() {
    let site = Site::new().await;
    site.free("h", json!({})).await;
    let mut machine = wished("m", json!({}));
    machine["metadata"]["annotations"] = json!({"cluster.x-k8s.io/paused": ""});
    site.create::<Machine>(machine).await;
    let paused = |machine: &Machine| {
        let conditions = machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions.iter().any(|one| one.type_ == "Paused" && one.status == "True")
    };
    site.machine("m", "is paused", paused).await;
    // One that is not paused has the host.
    site.wish("n", json!({})).await;
    site.host("h", "is the other one's", |host| is_of(host, "n")).await;
    site.free("i", json!({})).await;
    site.change::<Machine>("m", json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": null}}})).await;
    site.host("i", "is the machine's", |host| is_of(host, "m")).await;
    site.machine("m", "is not paused", |machine| !paused(machine)).await;
}

/// A Metal3Machine that wants a host now.
async fn metal3(site: &Site, name: &str) {
    let owner: Owner = site
        .create(json!({"metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": "c"}},
            "spec": {"clusterName": "c", "bootstrap": {"dataSecretName": "data"},
                "infrastructureRef": {"kind": "Metal3Machine", "name": name, "apiGroup": "infrastructure.cluster.x-k8s.io"}}}))
        .await;
    let owner = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": name, "uid": owner.uid()});
    site.create::<Metal3Machine>(json!({
        "metadata": {"name": name, "ownerReferences": [owner], "labels": {"cluster.x-k8s.io/cluster-name": "c"}},
        "spec": {"image": {"url": "http://images.test/metal3.raw", "checksum": "aa"}},
    }))
    .await;
}

/// Machines of both kinds, of the same names, several appliances, and fewer hosts.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_host_is_claimed_twice_by_machines_of_two_kinds() {
    const HOSTS: usize = 6;
    const MACHINES: usize = 5;
    let site = Site::with(2, None).await;
    let reference = json!({"kind": "Metal3Cluster", "name": "c", "apiGroup": "infrastructure.cluster.x-k8s.io"});
    let cluster: Cluster =
        site.create(json!({"metadata": {"name": "c"}, "spec": {"infrastructureRef": reference}})).await;
    let owner = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": cluster.uid()});
    site.create::<Metal3Cluster>(json!({"metadata": {"name": "c", "ownerReferences": [owner]},
        "spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}}))
        .await;
    site.change::<Cluster>("c", json!({"status": {"initialization": {"infrastructureProvisioned": true}}})).await;
    site.create::<Secret>(json!({"metadata": {"name": "data"}, "stringData": {"value": "#cloud-config"}})).await;
    for number in 0..MACHINES {
        metal3(&site, &format!("m{number}")).await;
        site.wish(&format!("m{number}"), json!({})).await;
    }
    for number in 0..HOSTS {
        site.free(&format!("h{number}"), json!({})).await;
    }
    let told = async || {
        let hosts = site.api::<BareMetalHost>().list(&ListParams::default()).await.unwrap();
        hosts.items.into_iter().filter(|host| host.spec.image.is_some()).collect::<Vec<_>>()
    };
    let wait = async {
        while told().await.len() < HOSTS {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // Who got none looks again after five minutes at the latest.
    tokio::time::timeout(Duration::from_secs(400), wait).await.expect("every host is claimed in time");
    let hosts = told().await;
    let owners: BTreeSet<String> = hosts.iter().filter_map(consumer).collect();
    assert_eq!(owners.len(), HOSTS, "a machine has two hosts: {owners:?}");
    for host in hosts {
        // Whoever told it what to run is whose it is.
        let image = host.spec.image.as_ref().map(|image| image.url.clone());
        let owner = consumer(&host).unwrap_or_default();
        let wanted = if owner.starts_with("Metal3Machine ") {
            "http://images.test/metal3.raw"
        } else {
            "http://images.test/os.raw"
        };
        assert_eq!(image.as_deref(), Some(wanted), "{owner}");
    }
}
