//! Data through the API that its users have: the test plays hosts, machines and who claims data for them; addresses are given by
//! their own room.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::infrastructure::data::{FINALIZER_CLAIM, FINALIZER_DATA, FINALIZER_TEMPLATE, SECRET_TYPE};
use crate::api::infrastructure::v1beta2::Metal3Machine;
use crate::api::ipam::metal3::{IPAddress, IPClaim};
use crate::api::ipam::v1beta2::{IPAddress as ContractAddress, IPAddressClaim};
use crate::apiserver::ApiServer;
use crate::cluster::ipam::IpamLife;
use crate::image::configdrive;
use crate::modules::kinds;
use crate::network_data::NetworkPlan;
use crate::store::{Store, StoreOptions};

struct Site {
    client: Client,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Site {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 10_000 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        for (kind, rules) in rules() {
            api.add_admission(kind, rules);
        }
        let client = api.client();
        tokio::spawn(async move { api.run().await });
        let mut watches = Watches::default();
        let data = MachineData::watching(&mut watches);
        let addresses = IpamLife::watching(&mut watches, true);
        tokio::spawn(watches.run(client.clone(), shutdown.clone()));
        let services = data.services(&client, &shutdown).into_iter().chain(addresses.services(&client, &shutdown));
        services.for_each(|(_, run)| drop(tokio::spawn(run)));
        Self { client, shutdown, _folder: folder }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Creates an object of any kind, whose plural is the kind's with an s.
    async fn create(&self, object: Value) -> DynamicObject {
        let (group, version) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap();
        let kind = object["kind"].as_str().unwrap();
        let gvk = kube::core::GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, &format!("{}s", kind.to_lowercase()));
        let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), "default", &resource);
        let made: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        api.create(&PostParams::default(), &made).await.unwrap_or_else(|error| panic!("{object}: {error}"))
    }

    async fn template(&self, spec: Value) {
        self.create(json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3DataTemplate",
            "metadata": {"name": "tmpl"}, "spec": spec}))
            .await;
    }

    async fn pool(&self, name: &str, first: &str, last: &str) {
        self.create(
            json!({"apiVersion": "ipam.metal3.io/v1alpha1", "kind": "IPPool", "metadata": {"name": name}, "spec": {
            "namePrefix": name, "prefix": 24, "gateway": "10.0.0.254", "dnsServers": ["10.0.0.253"],
            "pools": [{"start": first, "end": last}]}}),
        )
        .await;
    }

    /// A machine of Cluster API, its Metal3Machine, and the claim of data that Metal3's controller makes for it.
    async fn machine(&self, name: &str) {
        let machine = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": format!("{name}-machine"), "labels": {"role": "worker"}},
            "spec": {"clusterName": "c", "bootstrap": {"dataSecretName": "x"}, "infrastructureRef":
                {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Metal3Machine", "name": name}}});
        let machine = self.create(machine).await;
        let owner = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": machine.name_any(),
            "uid": machine.uid(), "controller": true});
        let metal3 = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3Machine",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {"customDeploy": {"method": "x"}, "dataTemplate": {"name": "tmpl"}}});
        let metal3 = self.create(metal3).await;
        let owner = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3Machine",
            "name": name, "uid": metal3.uid(), "controller": true});
        self.create(json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3DataClaim",
            "metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": "c"}, "ownerReferences": [owner]},
            "spec": {"template": {"name": "tmpl"}}}))
            .await;
    }

    /// A host is found for it.
    async fn associate(&self, name: &str) {
        let host = self.create(json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": format!("{name}-host"), "annotations": {"rack": "r7"}},
            "spec": {"online": true, "bootMACAddress": "52:54:00:00:00:01"}}));
        let host = host.await;
        let status = json!({"status": {"hardware": {"nics": [{"name": "eno1", "mac": "52:54:00:00:00:01"}]},
            "poweredOn": true, "errorCount": 0, "errorMessage": "", "operationalStatus": "OK",
            "provisioning": {"state": "available", "ID": ""}}});
        let hosts = self.api::<crate::api::metal3::BareMetalHost>();
        hosts.patch_status(&host.name_any(), &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        let annotation =
            json!({"metadata": {"annotations": {"metal3.io/BareMetalHost": format!("default/{name}-host")}}});
        self.api::<Metal3Machine>().patch(name, &PatchParams::default(), &Patch::Merge(annotation)).await.unwrap();
    }

    async fn rendered(&self, claim: &str) -> Option<String> {
        let claim = self.api::<Metal3DataClaim>().get_opt(claim).await.unwrap()?;
        Some(claim.status?.rendered_data?.name)
    }

    async fn is_ready(&self, data: &str) -> bool {
        let data = self.api::<Metal3Data>().get_opt(data).await.unwrap();
        data.and_then(|data| data.status?.ready).unwrap_or_default()
    }

    async fn error(&self, data: &str) -> String {
        let data = self.api::<Metal3Data>().get_opt(data).await.unwrap();
        data.and_then(|data| data.status?.error_message).unwrap_or_default()
    }

    async fn secret(&self, name: &str, key: &str) -> Vec<u8> {
        let secret = self.api::<Secret>().get(name).await.unwrap();
        assert_eq!(secret.type_.as_deref(), Some(SECRET_TYPE));
        assert_eq!(secret.labels()["cluster.x-k8s.io/cluster-name"], "c");
        secret.data.unwrap().remove(key).unwrap().0
    }

    async fn indexes(&self) -> Value {
        let template = self.api::<Metal3DataTemplate>().get("tmpl").await.unwrap();
        json!(template.status.unwrap_or_default().indexes)
    }

    async fn delete<K>(&self, name: &str)
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        self.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn until(&self, what: &str, met: impl AsyncFn() -> bool) {
        let wait = async {
            while !met().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(240), wait).await.unwrap_or_else(|_| panic!("not in time: {what}"));
    }
}

fn with_pools() -> Value {
    json!({
        "metaData": {
            "strings": [{"key": "site", "value": "lab"}],
            "objectNames": [{"key": "name", "object": "machine"}],
            "indexes": [{"key": "local-hostname", "prefix": "node-"}],
            "ipAddressesFromPool": [{"key": "ip", "name": "net"}],
            "fromLabels": [{"key": "role", "object": "machine", "label": "role"}],
            "fromAnnotations": [{"key": "rack", "object": "baremetalhost", "annotation": "rack"}],
        },
        "networkData": {
            "links": {"ethernets": [{"type": "phy", "id": "eno1", "macAddress": {"fromHostInterface": "eno1"}}]},
            "networks": {"ipv4": [
                {"id": "a", "link": "eno1", "ipAddressFromIPPool": "net", "routes": [{"network": "0.0.0.0", "gateway": {"fromIPPool": "net"}}]},
                {"id": "b", "link": "eno1", "fromPoolRef": {"name": "other", "kind": "InClusterIPPool", "apiGroup": "ipam.example.org"}},
            ]},
            "services": {"dnsFromIPPool": "net"},
        },
    })
}

/// Plays the provider of another group's pools.
async fn answer_elsewhere(site: &Site, claim: &str, address: &str) {
    let its: ContractAddress = serde_json::from_value(json!({"metadata": {"name": format!("of-{claim}")}, "spec": {
        "address": address, "prefix": 16, "gateway": "10.9.0.1", "claimRef": {"name": claim},
        "poolRef": {"apiGroup": "ipam.example.org", "kind": "InClusterIPPool", "name": "other"}}}))
    .unwrap();
    site.api().create(&PostParams::default(), &its).await.unwrap();
    let status = json!({"status": {"addressRef": {"name": format!("of-{claim}")}}});
    site.api::<IPAddressClaim>().patch_status(claim, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

#[tokio::test]
async fn a_machine_gets_its_data_and_gives_everything_back() {
    let site = Site::new().await;
    site.pool("net", "10.0.0.1", "10.0.0.9").await;
    site.template(with_pools()).await;
    site.machine("m").await;
    site.until("the claim hears of its data", async || site.rendered("m").await.as_deref() == Some("tmpl-0")).await;
    site.until("the template says so", async || site.indexes().await == json!([{"name": "m", "index": 0}])).await;
    site.until("the data waits for a host", async || {
        site.error("tmpl-0").await == "waiting for BareMetalHost to become available"
    })
    .await;
    site.associate("m").await;
    site.until("addresses are claimed of both groups", async || {
        site.api::<IPAddressClaim>().get_opt("tmpl-0-other").await.unwrap().is_some()
            && site.api::<IPClaim>().get_opt("tmpl-0-net").await.unwrap().is_some()
    })
    .await;
    assert!(!site.is_ready("tmpl-0").await);
    answer_elsewhere(&site, "tmpl-0-other", "10.9.0.7").await;
    site.until("the data is there", async || site.is_ready("tmpl-0").await).await;
    assert_eq!(site.error("tmpl-0").await, "");

    let meta =
        configdrive::meta_data("u", "default", "m-host", Some(&site.secret("m-metadata", "metaData").await)).unwrap();
    for (key, value) in [
        ("site", "lab"),
        ("name", "m-machine"),
        ("local-hostname", "node-0"),
        ("ip", "10.0.0.1"),
        ("role", "worker"),
        ("rack", "r7"),
        ("providerid", "default/m-host/m"),
    ] {
        assert_eq!(meta[key], value, "{meta}");
    }
    let network = site.secret("m-networkdata", "networkData").await;
    let plan = NetworkPlan::parse(&network).unwrap().unwrap();
    let addresses: Vec<String> = plan.addresses().map(|address| address.to_string()).collect();
    assert_eq!(addresses, ["10.0.0.1/24", "10.9.0.7/16"]);
    let document = configdrive::network_data(&network).unwrap().unwrap();
    assert_eq!(document["services"], json!([{"type": "dns", "address": "10.0.0.253"}]));

    let data = site.api::<Metal3Data>().get("tmpl-0").await.unwrap();
    let claim = site.api::<Metal3DataClaim>().get("m").await.unwrap();
    assert_eq!(claim.finalizers(), [FINALIZER_CLAIM]);
    assert_eq!(data.finalizers(), [FINALIZER_CLAIM, FINALIZER_DATA]);
    let owners: Vec<_> = data.owner_references().iter().map(|owner| (owner.kind.as_str(), owner.controller)).collect();
    assert_eq!(owners, [("Metal3DataClaim", Some(true)), ("Metal3Machine", None)]);
    assert_eq!(data.spec.meta_data.unwrap().name.as_deref(), Some("m-metadata"));
    assert_eq!(site.api::<Metal3DataTemplate>().get("tmpl").await.unwrap().finalizers(), [FINALIZER_TEMPLATE]);
    assert_eq!(site.api::<IPClaim>().get("tmpl-0-net").await.unwrap().owner_references()[0].kind, "Metal3Data");

    // A template that is deleted stays as long as there is data.
    site.delete::<Metal3DataTemplate>("tmpl").await;
    site.machine("late").await;
    site.until("who comes late hears why", async || {
        let claim = site.api::<Metal3DataClaim>().get("late").await.unwrap();
        claim.status.and_then(|status| status.error_message).as_deref()
            == Some("the Metal3DataTemplate tmpl is being deleted")
    })
    .await;
    assert!(site.api::<Metal3DataTemplate>().get_opt("tmpl").await.unwrap().is_some());
    site.delete::<Metal3DataClaim>("m").await;
    site.until("everything is given back", async || {
        site.api::<Metal3DataClaim>().get_opt("m").await.unwrap().is_none()
            && site.api::<Metal3Data>().get_opt("tmpl-0").await.unwrap().is_none()
            && site.api::<IPClaim>().list(&ListParams::default()).await.unwrap().items.is_empty()
            && site.api::<IPAddress>().list(&ListParams::default()).await.unwrap().items.is_empty()
            && site.api::<IPAddressClaim>().list(&ListParams::default()).await.unwrap().items.is_empty()
            && site.api::<Metal3DataTemplate>().get_opt("tmpl").await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn indexes_are_the_lowest_that_are_free_and_gaps_are_filled() {
    let site = Site::new().await;
    site.template(json!({"clusterName": "c", "metaData": {"indexes": [{"key": "index"}]}})).await;
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        site.machine(name).await;
        site.until("there is an index", async || site.rendered(name).await == Some(format!("tmpl-{at}"))).await;
    }
    site.delete::<Metal3DataClaim>("b").await;
    site.until("the data is gone", async || site.api::<Metal3Data>().get_opt("tmpl-1").await.unwrap().is_none()).await;
    site.machine("d").await;
    site.until("the gap is filled", async || site.rendered("d").await.as_deref() == Some("tmpl-1")).await;
    let wanted = json!([{"name": "a", "index": 0}, {"name": "d", "index": 1}, {"name": "c", "index": 2}]);
    site.until("the template says so", async || site.indexes().await == wanted).await;
    // As clients of v1beta1 see it.
    let old: Api<v1beta1::Metal3DataTemplate> = site.api();
    let indexes = old.get("tmpl").await.unwrap().status.unwrap().indexes;
    assert_eq!(json!(indexes), json!({"a": 0, "d": 1, "c": 2}));
}

#[tokio::test]
async fn claims_end_without_their_template_and_hear_why_they_wait() {
    let site = Site::new().await;
    site.machine("m").await;
    let error =
        async || site.api::<Metal3DataClaim>().get("m").await.unwrap().status.and_then(|status| status.error_message);
    site.until("it hears why", async || error().await.as_deref() == Some("there is no Metal3DataTemplate tmpl")).await;
    site.template(json!({"metaData": {}})).await;
    site.until("it is answered", async || site.rendered("m").await.as_deref() == Some("tmpl-0")).await;
    assert_eq!(error().await, None);
    site.associate("m").await;
    site.until("the data is there", async || site.is_ready("tmpl-0").await).await;
    // Somebody tears the template away.
    site.delete::<Metal3DataTemplate>("tmpl").await;
    let release = json!({"metadata": {"finalizers": null}});
    site.api::<Metal3DataTemplate>().patch("tmpl", &PatchParams::default(), &Patch::Merge(release)).await.unwrap();
    site.delete::<Metal3DataClaim>("m").await;
    site.until("all is gone", async || {
        site.api::<Metal3DataClaim>().get_opt("m").await.unwrap().is_none()
            && site.api::<Metal3Data>().get_opt("tmpl-0").await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn what_is_there_is_not_written_again_and_another_secret_is_not_taken() {
    let site = Site::new().await;
    site.template(json!({"metaData": {"strings": [{"key": "a", "value": "b"}]}, "networkData": {}})).await;
    let secret = |name: &str, type_: &str, key: &str| {
        let secret = json!({"metadata": {"name": name, "labels": {"cluster.x-k8s.io/cluster-name": "c"}}, "type": type_,
            "stringData": {key: "kept: yes"}});
        serde_json::from_value::<Secret>(secret).unwrap()
    };
    let kept = secret("m-metadata", SECRET_TYPE, "metaData");
    site.api().create(&PostParams::default(), &kept).await.unwrap();
    let other = secret("m-networkdata", "Opaque", "password");
    site.api().create(&PostParams::default(), &other).await.unwrap();
    site.machine("m").await;
    site.associate("m").await;
    site.until("it says what is wrong", async || site.error("tmpl-0").await.contains("it has another type")).await;
    site.delete::<Secret>("m-networkdata").await;
    site.until("the data is there", async || site.is_ready("tmpl-0").await).await;
    assert_eq!(site.secret("m-metadata", "metaData").await, b"kept: yes");
    let network = configdrive::network_data(&site.secret("m-networkdata", "networkData").await).unwrap();
    assert_eq!(network, Some(json!({"links": [], "networks": [], "services": []})));
}

#[tokio::test]
async fn what_was_made_for_an_earlier_machine_is_not_used() {
    let site = Site::new().await;
    site.template(json!({"metaData": {"strings": [{"key": "a", "value": "b"}]}})).await;
    let before = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3Data",
        "metadata": {"name": "elsewhere-7"},
        "spec": {"index": 7, "template": {"name": "elsewhere"}, "claim": {"name": "x"}}});
    let before = site.create(before).await;
    let owner = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3Data",
        "name": before.name_any(), "uid": before.uid(), "controller": true});
    let secret = json!({"metadata": {"name": "m-metadata", "ownerReferences": [owner]}, "type": SECRET_TYPE,
        "stringData": {"metaData": "before: yes"}});
    let secret = serde_json::from_value::<Secret>(secret).unwrap();
    site.api().create(&PostParams::default(), &secret).await.unwrap();
    site.machine("m").await;
    site.associate("m").await;
    site.until("it says so", async || {
        site.error("tmpl-0").await.contains("the Secret m-metadata was made for an earlier Metal3Data")
    })
    .await;
    assert!(!site.is_ready("tmpl-0").await);
}

#[tokio::test]
async fn a_pool_that_has_no_more_is_said_where_the_machine_waits() {
    let site = Site::new().await;
    site.pool("net", "10.0.0.1", "10.0.0.1").await;
    site.template(json!({"metaData": {"ipAddressesFromPool": [{"key": "ip", "name": "net"}]}})).await;
    for name in ["a", "b"] {
        site.machine(name).await;
        site.until("there is an index", async || site.rendered(name).await.is_some()).await;
        site.associate(name).await;
    }
    // Whoever asked first has it.
    let waits = async |data: &str| site.error(data).await == "IP Allocation for net failed : Exhausted IP Pools";
    site.until("one is there, the other waits", async || {
        let first = site.is_ready("tmpl-0").await && waits("tmpl-1").await;
        first || site.is_ready("tmpl-1").await && waits("tmpl-0").await
    })
    .await;
    let (first, second) = if site.is_ready("tmpl-0").await { ("a", "tmpl-1") } else { ("b", "tmpl-0") };
    site.delete::<Metal3DataClaim>(first).await;
    site.until("the other one is there, too", async || site.is_ready(second).await).await;
}
