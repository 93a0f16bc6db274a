//! Every published shape of `providerSpec.value` ends in a host that runs an image.

use super::*;

/// Makes the Machine, plays its host, and waits until it runs.
async fn runs_on(site: &Site, machine: Machine, host: &str, url: &str) {
    let name = machine.name_any();
    let found = site.runs(host).await;
    assert!(is_of(&found, &name) && found.spec.online, "{}", json!(found.spec));
    assert_eq!(found.spec.image.map(|image| image.url).as_deref(), Some(url));
    let machine = site.says(&name, "Running", "").await;
    assert_eq!(machine.annotations()["metal3.io/BareMetalHost"], format!("{NAMESPACE}/{host}"));
}

/// The two Machines of MetalKube's first description, as it prints them.
#[tokio::test]
async fn the_machines_that_metalkube_began_with() {
    let site = Site::new().await;
    site.free("a-spare", json!({})).await;
    site.free("m", json!({"metadata": {"labels": {"node-profile": "master"}}})).await;
    site.free("n", json!({"metadata": {"labels": {"node-profile": "node"}}})).await;
    let master = site.apply(include_str!("metalkube-master.yaml")).await;
    let node = site.apply(include_str!("metalkube-node.yaml")).await;
    assert!(master.name_any().starts_with("baremetal-master-"), "{}", master.name_any());
    assert_eq!(node.labels()["set"], "node");
    runs_on(&site, master, "m", "http://images.test/default.raw").await;
    runs_on(&site, node, "n", "http://images.test/default.raw").await;
    assert_eq!(consumer(&site.get::<BareMetalHost>("a-spare").await.unwrap()), None);
}

#[tokio::test]
async fn a_machine_that_needs_an_image_of_the_site_says_so() {
    let site = Site::with(1, None).await;
    site.free("m", json!({"metadata": {"labels": {"node-profile": "master"}}})).await;
    let master = site.apply(include_str!("metalkube-master.yaml")).await;
    let machine = site.says(&master.name_any(), "Failed", "[cluster.default_image]").await;
    let status = machine.status.unwrap();
    assert_eq!(status.error_reason.as_deref(), Some("InvalidConfiguration"));
    assert_eq!(consumer(&site.get::<BareMetalHost>("m").await.unwrap()), None);
}

#[tokio::test]
async fn the_machine_of_metal3s_first_provider() {
    let site = Site::new().await;
    site.create::<Secret>(json!({"metadata": {"name": "u"}, "stringData": {"userData": "#cloud-config"}})).await;
    site.free("a", json!({"metadata": {"labels": {"rack": "1"}}})).await;
    site.free("b", json!({"metadata": {"labels": {"rack": "2", "gpu": ""}}})).await;
    let expressions =
        json!([{"key": "gpu", "operator": "exists"}, {"key": "rack", "operator": "In", "values": ["2", "3"]}]);
    let selector = json!({"matchLabels": {"rack": "2"}, "matchExpressions": expressions});
    let machine = site.wish("m", json!({"hostSelector": selector, "userData": {"name": "u"}})).await;
    runs_on(&site, machine, "b", "http://images.test/os.raw").await;
    let host = site.get::<BareMetalHost>("b").await.unwrap();
    assert_eq!(json!(host.spec.user_data), json!({"name": "u", "namespace": NAMESPACE}));
    let reference =
        json!({"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", "name": "m", "namespace": NAMESPACE});
    assert_eq!(json!(host.spec.consumer_ref), reference);
}

#[tokio::test]
async fn a_machine_that_brings_its_own_method() {
    let site = Site::new().await;
    site.free("a", json!({})).await;
    site.wish("m", json!({"image": null, "customDeploy": {"method": "boot-disk"}})).await;
    let host = site.host("a", "is told what to run", |host| host.spec.custom_deploy.is_some()).await;
    assert!(is_of(&host, "m") && host.spec.image.is_none());
    site.state("a", "provisioned").await;
    site.says("m", "Running", "").await;
}

#[tokio::test]
async fn the_machine_of_container_cloud() {
    let site = Site::new().await;
    let id = json!({"kaas.mirantis.com/baremetalhost-id": "edge-cp-0"});
    site.free("a", json!({})).await;
    site.free("b", json!({"metadata": {"labels": id}})).await;
    let machine: Machine = site
        .create(json!({
            "metadata": {"name": "edge-cp-0", "labels": {"cluster.sigs.k8s.io/cluster-name": "edge"}},
            "spec": {"providerSpec": {"value": {
                "apiVersion": "baremetal.k8s.io/v1alpha1",
                "kind": "BareMetalMachineProviderSpec",
                "hostSelector": {"matchLabels": id},
                "bareMetalHostProfile": {"name": "prof-a", "namespace": "proj"},
                "distribution": "ubuntu/jammy",
            }}},
        }))
        .await;
    runs_on(&site, machine, "b", "http://images.test/default.raw").await;
    assert!(site.told("edge-cp-0", "FieldsWithoutEffect").await);
}

#[tokio::test]
async fn machines_of_other_providers_are_left_alone() {
    let site = Site::new().await;
    site.free("a", json!({})).await;
    let value = json!({"apiVersion": "example.test/v1alpha1", "kind": "Any", "hostSelector": {}, "odd": {"a": [1]}});
    let theirs: Machine =
        site.create(json!({"metadata": {"name": "a-theirs"}, "spec": {"providerSpec": {"value": value}}})).await;
    site.create::<Machine>(json!({"metadata": {"name": "b-none"}, "spec": {"providerSpec": {}}})).await;
    // One that comes later has the host.
    site.wish("ours", json!({})).await;
    site.host("a", "is ours", |host| is_of(host, "ours")).await;
    let found = site.get::<Machine>("a-theirs").await.unwrap();
    assert_eq!((found.resource_version(), found.spec.provider_spec.value), (theirs.resource_version(), Some(value)));
    site.delete::<Machine>("a-theirs").await;
    site.gone::<Machine>("a-theirs").await;
}
