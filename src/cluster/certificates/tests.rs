//! The Secrets of clusters through the API: clusters and control planes are played.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Secret};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::ClusterSecrets;
use super::pair::{self, CertificatePurpose, PairRequest};
use crate::api::cluster::v1beta2::Cluster;
use crate::api::{Kind, StoragePolicy};
use crate::apiserver::ApiServer;
use crate::engine::Fence;
use crate::module::{Acting, Life};
use crate::modules::kinds;
use crate::runtime::{Tasks, Watches};
use crate::store::{Store, StoreOptions};

const NAMESPACE: &str = "default";
const DEADLINE: Duration = Duration::from_secs(240);

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

fn plane() -> ApiResource {
    ApiResource {
        group: "controlplane.cluster.x-k8s.io".into(),
        version: "v1beta2".into(),
        api_version: "controlplane.cluster.x-k8s.io/v1beta2".into(),
        kind: "KubeadmControlPlane".into(),
        plural: "kubeadmcontrolplanes".into(),
    }
}

/// The kind of control planes, as far as it goes here.
fn definition() -> Kind {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = json!({
        "metadata": {"name": "kubeadmcontrolplanes.controlplane.cluster.x-k8s.io", "labels": {"cluster.x-k8s.io/v1beta2": "v1beta2"}},
        "spec": {
            "group": plane().group, "scope": "Namespaced",
            "names": {"kind": plane().kind, "plural": plane().plural, "singular": "kubeadmcontrolplane"},
            "versions": [{"name": "v1beta2", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any}}}}],
        },
    });
    Kind::new(serde_json::from_value(crd).unwrap(), StoragePolicy::Durable)
}

impl Site {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 1000 };
        let shutdown = CancellationToken::new();
        let mut all = kinds();
        all.retain(|kind| kind.crd.spec.group != plane().group);
        all.push(definition());
        let api = ApiServer::new(Store::open(options).unwrap(), &all, shutdown.clone()).await.unwrap();
        let client = api.client();
        tokio::spawn(async move { api.run().await });
        let mut watches = Watches::default();
        let life = ClusterSecrets::new(&mut watches).within(Duration::from_millis(50));
        tokio::spawn(watches.run(client.clone(), shutdown.clone()));
        let (tasks, stop) = (Tasks::default(), shutdown.clone());
        let acting = Acting { client: client.clone(), fence: Fence::open(), tasks, store: None, stop };
        for (_, service) in life.act(&acting).unwrap() {
            tokio::spawn(service);
        }
        Self { client, shutdown, _folder: folder }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn cluster(&self, spec: Value) -> Cluster {
        let cluster: Cluster =
            serde_json::from_value(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "c"}, "spec": spec}))
            .unwrap();
        let cluster = self.api().create(&PostParams::default(), &cluster).await.unwrap();
        self.tell(json!({"infrastructureProvisioned": true})).await;
        cluster
    }

    async fn tell(&self, initialization: Value) {
        let patch = Patch::Merge(json!({"status": {"initialization": initialization}}));
        self.api::<Cluster>().patch_status("c", &PatchParams::default(), &patch).await.unwrap();
    }

    async fn plane(&self, spec: Value) -> DynamicObject {
        let planes = Api::<DynamicObject>::namespaced_with(self.client.clone(), NAMESPACE, &plane());
        let object = DynamicObject::new("p", &plane()).data(json!({ "spec": spec }));
        planes.create(&PostParams::default(), &object).await.unwrap()
    }

    async fn secret(&self, name: &str) -> Secret {
        until(&self.api::<Secret>(), name, name, |_| true).await
    }

    async fn bring(&self, name: &str, certificate: &str, key: &str) {
        let secret = json!({"metadata": {"name": name}, "stringData": {"tls.crt": certificate, "tls.key": key}});
        let secret: Secret = serde_json::from_value(secret).unwrap();
        self.api().create(&PostParams::default(), &secret).await.unwrap();
    }
}

async fn until<K>(api: &Api<K>, what: &str, name: &str, met: impl Fn(&K) -> bool) -> K
where
    K: Clone + Debug + DeserializeOwned,
{
    let wait = async {
        loop {
            if let Some(object) = api.get_opt(name).await.unwrap().filter(&met) {
                return object;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

fn text(secret: &Secret, key: &str) -> String {
    String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap()
}

fn reference() -> Value {
    json!({"controlPlaneRef": {"apiGroup": plane().group, "kind": plane().kind, "name": "p"},
        "controlPlaneEndpoint": {"host": "fd00::1", "port": 6443}})
}

#[tokio::test]
async fn a_control_plane_gets_what_it_needs_and_keeps_what_was_brought() {
    let site = Site::new().await;
    let brought = pair::make(CertificatePurpose::Proxy, PairRequest::default(), std::time::SystemTime::now()).unwrap();
    site.bring("c-proxy", &brought.certificate, &brought.key).await;
    let plane = site
        .plane(json!({"kubeadmConfigSpec": {"clusterConfiguration": {"caCertificateValidityPeriodDays": 20}}}))
        .await;
    site.cluster(reference()).await;
    let kubeconfig = site.secret("c-kubeconfig").await;
    for name in ["c-ca", "c-etcd", "c-sa", "c-kubeconfig"] {
        let secret = site.secret(name).await;
        assert_eq!(secret.type_.as_deref(), Some("cluster.x-k8s.io/secret"), "{name}");
        assert_eq!(secret.labels()["cluster.x-k8s.io/cluster-name"], "c", "{name}");
        assert_eq!(secret.owner_references()[0].uid, plane.metadata.uid.clone().unwrap(), "{name}");
    }
    let proxy = site.secret("c-proxy").await;
    assert_eq!((text(&proxy, "tls.crt"), proxy.owner_references().len()), (brought.certificate, 0));
    let days = pair::ends(&text(&site.secret("c-ca").await, "tls.crt")).unwrap();
    assert!(days < std::time::SystemTime::now() + Duration::from_secs(21 * 24 * 3600));
    let config: Value = serde_saphyr::from_str(&text(&kubeconfig, "value")).unwrap();
    assert_eq!(config["clusters"][0]["cluster"]["server"], "https://[fd00::1]:6443");
}

#[tokio::test]
async fn nothing_is_made_anew_once_the_cluster_is_there() {
    let site = Site::new().await;
    site.plane(json!({})).await;
    site.cluster(reference()).await;
    site.secret("c-kubeconfig").await;
    site.tell(json!({"controlPlaneInitialized": true})).await;
    let secrets = site.api::<Secret>();
    let told = async {
        loop {
            // A look of before the cluster was there may be under way, and makes it once more.
            match secrets.delete("c-etcd", &Default::default()).await {
                Err(kube::Error::Api(error)) if error.is_not_found() => {}
                deleted => drop(deleted.unwrap()),
            }
            let events = site.api::<Event>().list(&ListParams::default()).await.unwrap();
            if events.iter().any(|event| event.message.as_deref() == Some("there is no Secret \"c-etcd\"")) {
                return;
            }
            // Something that does not count has it looked at.
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"touched": events.items.len().to_string()}}}));
            site.api::<Cluster>().patch("c", &PatchParams::default(), &patch).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, told).await.expect("it is said");
    assert!(secrets.get_opt("c-etcd").await.unwrap().is_none());
}

#[tokio::test]
async fn without_a_control_plane_only_the_kubeconfig_is_made() {
    let site = Site::new().await;
    let cluster = site.cluster(json!({"controlPlaneEndpoint": {"host": "c.test", "port": 443}})).await;
    let ca = pair::make(CertificatePurpose::Ca, PairRequest::default(), std::time::SystemTime::now()).unwrap();
    site.bring("c-ca", &ca.certificate, &ca.key).await;
    let kubeconfig = site.secret("c-kubeconfig").await;
    assert_eq!(kubeconfig.owner_references()[0].uid, cluster.metadata.uid.unwrap());
    assert!(site.api::<Secret>().get_opt("c-sa").await.unwrap().is_none());
}
