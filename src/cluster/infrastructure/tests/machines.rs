//! Metal3Machines, from their wish for a host to their end.

use k8s_openapi::api::core::v1::Namespace;

use super::*;
use crate::api::metal3::ANNOTATION_PAUSED;

const REUSE: &str = "infrastructure.cluster.x-k8s.io/node-reuse";
const CLUSTER: &str = "cluster.x-k8s.io/cluster-name";

#[tokio::test]
async fn a_machine_becomes_a_node_and_lets_its_host_go() {
    let site = Site::new().await;
    let reference = json!({"kind": "Metal3Cluster", "name": "c", "apiGroup": "infrastructure.cluster.x-k8s.io"});
    let cluster: Cluster =
        site.create(json!({"metadata": {"name": "c"}, "spec": {"infrastructureRef": reference}})).await;
    site.create::<Metal3Machine>(json!({
        "metadata": {"name": "m", "labels": {CLUSTER: "c"}},
        "spec": {"image": {"url": "http://images.test/os.raw", "checksum": "aa"}, "automatedCleaningMode": "metadata"},
    }))
    .await;
    site.says("m", "AssociateBareMetalHost", "WaitingForMetal3MachineOwnerRef").await;
    let machine: Machine = site
        .create(json!({
            "metadata": {"name": "m", "labels": {CLUSTER: "c"}},
            "spec": {"clusterName": "c", "failureDomain": "row-2",
                "bootstrap": {"configRef": {"kind": "KubeadmConfig", "name": "m", "apiGroup": "bootstrap.cluster.x-k8s.io"}},
                "infrastructureRef": {"kind": "Metal3Machine", "name": "m", "apiGroup": "infrastructure.cluster.x-k8s.io"}},
        }))
        .await;
    site.change::<Metal3Machine>("m", json!({"metadata": {"ownerReferences": [owner(&machine)]}})).await;
    site.says("m", "AssociateBareMetalHost", "WaitingForClusterInfrastructureReady").await;
    site.change::<Cluster>("c", json!({"status": {"initialization": {"infrastructureProvisioned": true}}})).await;
    site.says("m", "AssociateBareMetalHost", "WaitingforMetal3Cluster").await;
    site.create::<Metal3Cluster>(json!({
        "metadata": {"name": "c", "ownerReferences": [owner(&cluster)]},
        "spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}},
    }))
    .await;
    site.says("m", "AssociateBareMetalHost", "WaitingForBootstrapData").await;
    site.change::<Machine>("m", json!({"spec": {"bootstrap": {"dataSecretName": "m-data"}}})).await;
    let reason = site.says("m", "AssociateBareMetalHost", "WaitingForBootstrapData").await;
    assert!(reason.contains("user data"), "{reason}");
    site.create::<Secret>(json!({"metadata": {"name": "m-data"}, "stringData": {"value": "#cloud-config"}})).await;
    site.says("m", "AssociateBareMetalHost", "AssociateBareMetalHostFailed").await;

    // A host comes: it is the machine's, with all that belongs to it.
    site.create::<Secret>(json!({"metadata": {"name": "h-bmc"}, "stringData": {"username": "u", "password": "p"}}))
        .await;
    let bmc = json!({"address": "ipmi://192.0.2.1", "credentialsName": "h-bmc"});
    site.free("h", json!({"spec": {"bmc": bmc}})).await;
    let host = site.host("h", "is told what to run", |host| host.spec.image.is_some()).await;
    assert!(is_of(&host, "m") && host.spec.online);
    assert_eq!(host.labels().get(CLUSTER).map(String::as_str), Some("c"));
    assert_eq!(json!(host.spec.user_data), json!({"name": "m-data", "namespace": NAMESPACE}));
    assert_eq!(json!(host.spec.image), json!({"url": "http://images.test/os.raw", "checksum": "aa"}));
    assert_eq!(json!(host.spec.automated_cleaning_mode), "metadata");
    site.until::<Secret>("h-bmc", "has the cluster's label", |secret| {
        secret.is_some_and(|secret| secret.labels().get(CLUSTER).is_some_and(|name| name == "c"))
    })
    .await;
    let machine = site
        .machine("m", "notes its host", |machine| machine.annotations().contains_key("metal3.io/BareMetalHost"))
        .await;
    assert_eq!(machine.annotations()["metal3.io/BareMetalHost"], "default/h");
    assert_eq!(machine.spec.failure_domain.as_deref(), Some("row-2"));

    // What goes wrong with the host is said.
    let failed = json!({"provisioning": {"state": "provisioning"}, "errorMessage": "404 Not Found"});
    site.change::<BareMetalHost>("h", json!({"status": failed})).await;
    let reason = site.says("m", "BareMetalHostProvisioned", "ProvisioningError").await;
    assert!(reason.contains("404 Not Found"), "{reason}");
    let addresses = json!([{"address": "10.0.0.7", "macAddress": "aa:bb:cc:dd:ee:ff", "network": "n"}]);
    let running = json!({"provisioning": {"state": "provisioned"}, "errorMessage": "", "addresses": addresses, "poweredOn": true});
    site.change::<BareMetalHost>("h", json!({"status": running})).await;
    let reason = site.says("m", "AssociateMetal3MachineMetaData", "SettingProviderIDOnNodeFailed").await;
    assert!(reason.contains("kubeconfig"), "{reason}");

    // Its node comes: both have the identity.
    let played = site.answers("c");
    let uid = host.uid().unwrap();
    put_node(&played, "n", json!({"metal3.io/uuid": uid}));
    let machine = site.machine("m", "is provisioned", is_provisioned).await;
    assert_eq!(machine.spec.provider_id.as_deref(), Some("metal3://default/h/m"));
    assert_eq!(node(&played, "n")["spec"]["providerID"], "metal3://default/h/m");
    let status = machine.status.unwrap();
    assert_eq!(json!(status.addresses), json!([{"type": "InternalIP", "address": "10.0.0.7"}]));
    site.says("m", "Ready", "Ready").await;
    let old = status.deprecated.and_then(|deprecated| deprecated.v1beta1).unwrap().conditions;
    assert!(old.iter().any(|one| one.type_ == "AssociateBMH" && one.status == "True"), "{old:?}");

    // It goes: the host has the time that it needs, and is nobody's only then.
    played.fall_silent(Some("no route to the cluster"));
    site.delete::<Metal3Machine>("m").await;
    let host = site.host("h", "is told to end", |host| host.spec.image.is_none()).await;
    assert!(is_of(&host, "m") && !host.spec.online && host.spec.user_data.is_none());
    let reason = site.says("m", "BareMetalHostProvisioned", "Deleting").await;
    assert!(reason.contains('h'), "{reason}");
    site.state("h", "deprovisioning").await;
    let reason =
        |machine: &Metal3Machine| json!(machine.status).to_string().contains("BareMetalHost h is deprovisioning");
    site.machine("m", "waits for its host", reason).await;
    assert!(is_of(&site.get::<BareMetalHost>("h").await.unwrap(), "m"));
    site.state("h", "available").await;
    site.gone::<Metal3Machine>("m").await;
    let host = site.get::<BareMetalHost>("h").await.unwrap();
    assert_eq!((consumer(&host), host.labels().len(), host.annotations().len()), (None, 0, 0));
    let secret = site.get::<Secret>("h-bmc").await.unwrap();
    assert_eq!(secret.labels().get(CLUSTER), None);
}

#[tokio::test]
async fn what_keeps_a_machine_waiting_is_said_and_heard_of() {
    let site = Site::new().await;
    site.cluster("c").await;
    let hardware = json!({"cpu": {"count": 4}, "ramMebibytes": 8192});
    site.free("small", json!({"status": {"hardware": hardware}})).await;
    site.free("busy", json!({"status": {"provisioning": {"state": "inspecting"}}})).await;
    let annotations = json!({"annotations": {"slipway.dev/min-cpus": "8"}});
    site.wish("m", "c", json!({"metadata": annotations})).await;
    let both = |machine: &Metal3Machine| {
        let text = json!(machine.status).to_string();
        text.contains("with less than 8 processors (small: 4)") && text.contains("not available (busy: inspecting)")
    };
    site.machine("m", "says why it has no host", both).await;
    let told = async || {
        let events = site.api::<Event>().list(&ListParams::default()).await.unwrap();
        events.items.iter().any(|event| {
            event.involved_object.name.as_deref() == Some("m") && event.reason.as_deref() == Some("NoBareMetalHost")
        })
    };
    assert!(told().await, "there is no event");
    // Whatever changes is enough: here another host's hardware.
    let hardware = json!({"cpu": {"count": 8}, "ramMebibytes": 8192});
    site.change::<BareMetalHost>("small", json!({"status": {"hardware": hardware}})).await;
    site.host("small", "is the machine's", |host| is_of(host, "m")).await;
    // What makes no sense is said, too.
    site.wish("odd", "c", json!({"metadata": {"annotations": {"slipway.dev/min-memory": "much"}}})).await;
    let reason = site.says("odd", "AssociateBareMetalHost", "InvalidConfiguration").await;
    assert!(reason.contains("slipway.dev/min-memory"), "{reason}");
}

#[tokio::test]
async fn a_template_says_what_its_machines_need() {
    let site = Site::new().await;
    site.cluster("c").await;
    let hardware = |cpus| json!({"status": {"hardware": {"cpu": {"count": cpus}}}});
    site.free("a", hardware(2)).await;
    site.free("b", hardware(16)).await;
    site.create::<v1beta2::Metal3MachineTemplate>(json!({
        "metadata": {"name": "t"},
        "spec": {"template": {"metadata": {"annotations": {"slipway.dev/min-cpus": "8"}},
            "spec": {"image": {"url": "http://x/y", "checksum": "aa"}, "automatedCleaningMode": "disabled"}}},
    }))
    .await;
    let cloned = json!({"cluster.x-k8s.io/cloned-from-name": "t",
        "cluster.x-k8s.io/cloned-from-groupkind": "Metal3MachineTemplate.infrastructure.cluster.x-k8s.io"});
    site.wish("m", "c", json!({"metadata": {"annotations": cloned}})).await;
    let host = site.host("b", "is told what to run", |host| host.spec.image.is_some()).await;
    assert!(is_of(&host, "m"));
    assert_eq!(json!(host.spec.automated_cleaning_mode), "disabled");
    assert_eq!(consumer(&site.get::<BareMetalHost>("a").await.unwrap()), None);
    // A template that changes its mind changes its machines'.
    let cleaning = json!({"spec": {"template": {"spec": {"automatedCleaningMode": "metadata"}}}});
    site.change::<v1beta2::Metal3MachineTemplate>("t", cleaning).await;
    site.host("b", "is cleaned", |host| json!(host.spec.automated_cleaning_mode) == "metadata").await;
}

#[tokio::test]
async fn a_host_is_kept_for_the_next_machine_of_a_deployment() {
    let site = Site::new().await;
    site.cluster("c").await;
    site.free("h", json!({})).await;
    site.create::<v1beta2::Metal3MachineTemplate>(json!({
        "metadata": {"name": "t"},
        "spec": {"nodeReuse": true, "template": {"spec": {"image": {"url": "http://x/y", "checksum": "aa"}}}},
    }))
    .await;
    let cloned = json!({"metadata": {"annotations": {"cluster.x-k8s.io/cloned-from-name": "t",
        "cluster.x-k8s.io/cloned-from-groupkind": "Metal3MachineTemplate.infrastructure.cluster.x-k8s.io"}}});
    let deployment = |name: &str| json!({"cluster.x-k8s.io/deployment-name": name});
    site.wish_of("m", "c", deployment("w"), cloned.clone()).await;
    site.host("h", "is the machine's", |host| is_of(host, "m")).await;
    site.delete::<Metal3Machine>("m").await;
    site.gone::<Metal3Machine>("m").await;
    let kept = site.get::<BareMetalHost>("h").await.unwrap();
    assert_eq!(consumer(&kept).as_deref(), Some("Cluster c"));
    assert_eq!(kept.labels().get(REUSE).map(String::as_str), Some("md-w"));
    // Another deployment's machine does not get it; the same one's does, though there is another host.
    site.wish_of("other", "c", deployment("x"), cloned.clone()).await;
    let reason = site.says("other", "AssociateBareMetalHost", "AssociateBareMetalHostFailed").await;
    assert!(reason.contains("kept for reuse by others (h: md-w)"), "{reason}");
    site.wish_of("next", "c", deployment("w"), cloned).await;
    let host = site.host("h", "is the next machine's", |host| is_of(host, "next")).await;
    assert_eq!(host.labels().get(REUSE), None);
    site.says("next", "AssociateBareMetalHost", "AssociateBareMetalHostViaNodeReuseSuccess").await;
}

#[tokio::test]
async fn a_machine_whose_host_is_gone_takes_another_until_it_ran_once() {
    let site = Site::new().await;
    site.cluster("c").await;
    let played = site.answers("c");
    site.free("a", json!({})).await;
    site.wish("m", "c", json!({})).await;
    site.host("a", "is the machine's", |host| is_of(host, "m")).await;
    site.delete::<BareMetalHost>("a").await;
    site.gone::<BareMetalHost>("a").await;
    site.free("b", json!({})).await;
    site.node("m", "b", &played).await;
    site.free("c", json!({})).await;
    site.delete::<BareMetalHost>("b").await;
    site.gone::<BareMetalHost>("b").await;
    let reason = site.says("m", "AssociateBareMetalHost", "MissingBMH").await;
    assert!(reason.contains("is gone"), "{reason}");
    assert_eq!(consumer(&site.get::<BareMetalHost>("c").await.unwrap()), None);
    // Nothing keeps it, though host, Machine and Cluster are all gone.
    site.delete::<Cluster>("c").await;
    site.delete::<Machine>("m").await;
    site.gone::<Metal3Machine>("m").await;
}

#[tokio::test]
async fn hosts_and_secrets_of_other_namespaces_are_nobodys_here() {
    let site = Site::new().await;
    site.cluster("c").await;
    let namespace = serde_json::from_value(json!({"metadata": {"name": "other"}}));
    let namespaces = Api::<Namespace>::all(site.client.clone());
    namespaces.create(&PostParams::default(), &namespace.unwrap()).await.unwrap();
    let other = Api::<BareMetalHost>::namespaced(site.client.clone(), "other");
    let host = serde_json::from_value(json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
        "metadata": {"name": "h"}, "spec": {"online": false}}));
    other.create(&PostParams::default(), &host.unwrap()).await.unwrap();
    let available = json!({"status": {"provisioning": {"state": "available"}}});
    other.patch_status("h", &PatchParams::default(), &Patch::Merge(&available)).await.unwrap();
    // Not even when the machine says that it has it.
    site.wish("m", "c", json!({"metadata": {"annotations": {"metal3.io/BareMetalHost": "other/h"}}})).await;
    let reason = site.says("m", "AssociateBareMetalHost", "AssociateBareMetalHostFailed").await;
    assert_eq!(reason, "There is no BareMetalHost in this namespace");
    assert_eq!(consumer(&other.get("h").await.unwrap()), None);
}

#[tokio::test]
async fn a_node_has_the_labels_of_its_host_that_its_cluster_wants() {
    let site = Site::new().await;
    site.cluster("c").await;
    let played = site.answers("c");
    site.free("h", json!({"metadata": {"labels": {"rack.test/row": "2", "other": "x"}}})).await;
    site.wish("m", "c", json!({})).await;
    site.node("m", "h", &played).await;
    site.change::<Machine>("m", json!({"status": {"nodeRef": {"name": "m"}}})).await;
    let annotations = json!({"metal3.io/metal3-label-sync-prefixes": "rack.test"});
    site.change::<Metal3Cluster>("c", json!({"metadata": {"annotations": annotations}})).await;
    let has = async |value: &str| {
        let wait = async {
            while node(&played, "m")["metadata"]["labels"]["rack.test/row"] != *value {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), wait).await.expect("the label");
    };
    has("2").await;
    assert_eq!(node(&played, "m")["metadata"]["labels"].get("other"), None);
    site.change::<BareMetalHost>("h", json!({"metadata": {"labels": {"rack.test/row": "3"}}})).await;
    has("3").await;
}

#[tokio::test]
async fn a_paused_cluster_pauses_its_hosts() {
    let site = Site::new().await;
    site.cluster("c").await;
    site.free("h", json!({})).await;
    site.wish("m", "c", json!({})).await;
    site.host("h", "is told what to run", |host| host.spec.image.is_some()).await;
    site.change::<Cluster>("c", json!({"spec": {"paused": true}})).await;
    let paused =
        |host: &BareMetalHost| host.annotations().get(ANNOTATION_PAUSED).is_some_and(|by| by == "metal3.io/capm3");
    let host = site.host("h", "is paused", paused).await;
    assert!(host.annotations().contains_key("baremetalhost.metal3.io/status"));
    site.says("m", "Paused", "Paused").await;
    site.change::<Cluster>("c", json!({"spec": {"paused": false}})).await;
    site.host("h", "is not paused", |host| !paused(host)).await;
    site.says("m", "Paused", "NotPaused").await;
}

#[tokio::test]
async fn a_machine_with_user_data_of_its_own_needs_no_node() {
    let site = Site::new().await;
    site.cluster("c").await;
    site.free("h", json!({"status": {"hardware": {"hostname": "node-1"}}})).await;
    let machine = site.wish("m", "c", json!({})).await;
    let mut spec = json!(machine.spec);
    spec["bootstrap"]["configRef"] = Value::Null;
    site.change::<Machine>("m", json!({"spec": spec})).await;
    site.host("h", "is told what to run", |host| host.spec.image.is_some()).await;
    site.state("h", "provisioned").await;
    let machine = site.machine("m", "is provisioned", is_provisioned).await;
    assert_eq!(machine.spec.provider_id.as_deref(), Some("metal3://default/h/m"));
    // Its node is found by its name, when it comes.
    let played = site.answers("c");
    put_node(&played, "n", json!({"kubernetes.io/hostname": "node-1"}));
    site.says("m", "AssociateMetal3MachineMetaData", "AssociateMetal3MachineMetaDataSuccess").await;
    assert_eq!(node(&played, "n")["spec"]["providerID"], "metal3://default/h/m");
}

#[tokio::test]
async fn a_cloud_provider_gives_nodes_their_identity_itself() {
    let site = Site::new().await;
    site.cluster("c").await;
    site.change::<Metal3Cluster>("c", json!({"spec": {"cloudProviderEnabled": true}})).await;
    site.free("h", json!({})).await;
    site.wish("m", "c", json!({})).await;
    let host = site.host("h", "is told what to run", |host| host.spec.image.is_some()).await;
    site.state("h", "provisioned").await;
    let played = site.answers("c");
    put_node(&played, "n", json!({"metal3.io/uuid": host.uid().unwrap()}));
    let waits = |machine: &Metal3Machine| json!(machine.status).to_string().contains("cloud provider");
    site.machine("m", "waits for the cloud provider", waits).await;
    assert_eq!(node(&played, "n")["spec"].get("providerID"), None);
    let mut given = node(&played, "n");
    given["spec"]["providerID"] = json!("metal3://default/h/m");
    played.put("/api/v1/nodes/n", given);
    site.machine("m", "is provisioned", is_provisioned).await;
}
