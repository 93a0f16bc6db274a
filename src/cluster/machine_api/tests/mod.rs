//! Machines through the API that their users have; hosts are played.

mod machines;
mod shapes;

use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::metal3::BareMetalHost;
use crate::apiserver::ApiServer;
use crate::cluster::infrastructure::Infrastructure;
use crate::cluster::workload::Workloads;
use crate::engine::Fence;
use crate::modules::kinds;
use crate::runtime::Tasks;
use crate::store::{Store, StoreOptions};

const NAMESPACE: &str = "default";
const SHORT: Duration = Duration::from_millis(50);

/// An appliance's API, with the controllers of this room and of Metal3's machines.
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

/// An object of a kind that has a namespace.
trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + std::fmt::Debug
    + Serialize
    + DeserializeOwned
    + Send
    + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned
        + Send
        + 'static
{
}

impl Site {
    async fn new() -> Self {
        let image = MachineImage {
            url: "http://images.test/default.raw".into(),
            checksum: Some("dd".into()),
            ..MachineImage::default()
        };
        Self::with(1, Some(image)).await
    }

    /// So many appliances, each with what it knows itself.
    async fn with(many: usize, default_image: Option<MachineImage>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 10_000 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        let rules = MachineApi { caches: None, default_image: default_image.clone(), preparer: None };
        rules.admission().into_iter().for_each(|(resource, admission)| api.add_admission(resource, admission));
        let client = api.client();
        tokio::spawn(async move { api.run().await });
        for _ in 0..many {
            let mut watches = Watches::default();
            let hosts = HostPool::new(&mut watches);
            let workloads = Workloads::new(Vec::new());
            let metal3 = Infrastructure::new(&mut watches, Some(hosts.clone()), workloads);
            let cache = watched(&mut watches, &hosts);
            let claims = HostClaims::new(client.clone(), hosts, default_image.clone(), SHORT);
            tokio::spawn(watches.run(client.clone(), shutdown.clone()));
            let acting = Acting {
                client: client.clone(),
                fence: Fence::open(),
                tasks: Tasks::default(),
                store: None,
                stop: shutdown.clone(),
            };
            for (_, service) in metal3.act(&acting).unwrap() {
                tokio::spawn(service);
            }
            tokio::spawn(claims.run(cache, shutdown.clone()));
        }
        Self { client, shutdown, _folder: folder }
    }

    fn api<K: Object>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn create<K: Object>(&self, object: Value) -> K {
        self.try_create(object).await.unwrap()
    }

    async fn try_create<K: Object>(&self, mut object: Value) -> Result<K, kube::Error> {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        let object: K = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await
    }

    /// Makes an object of a text as clients send it.
    async fn apply(&self, yaml: &str) -> Machine {
        let path = format!("/apis/cluster.k8s.io/v1alpha1/namespaces/{NAMESPACE}/machines");
        let request = http::Request::post(path).header("content-type", "application/yaml");
        self.client.request(request.body(yaml.as_bytes().to_vec()).unwrap()).await.unwrap()
    }

    async fn get<K: Object>(&self, name: &str) -> Option<K> {
        self.api::<K>().get_opt(name).await.unwrap()
    }

    /// Merges a patch, and the status of it into the status.
    async fn change<K: Object>(&self, name: &str, patch: Value) {
        self.try_change::<K>(name, patch).await.unwrap();
    }

    async fn try_change<K: Object>(&self, name: &str, patch: Value) -> Result<(), kube::Error> {
        let api = self.api::<K>();
        if patch.get("status").is_some() {
            api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        }
        if patch.get("spec").is_some() || patch.get("metadata").is_some() {
            api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        }
        Ok(())
    }

    async fn delete<K: Object>(&self, name: &str) {
        self.api::<K>().delete(name, &DeleteParams::background()).await.unwrap();
    }

    /// Waits until an object is so; `None` when it is gone.
    async fn until<K: Object>(&self, name: &str, what: &str, met: impl Fn(Option<&K>) -> bool) -> Option<K> {
        let wait = async {
            loop {
                let object = self.get::<K>(name).await;
                if met(object.as_ref()) {
                    return object;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(240), wait).await {
            Ok(object) => object,
            Err(_) => panic!("not in time: {name} {what}: {}", json!(self.get::<K>(name).await)),
        }
    }

    async fn gone<K: Object>(&self, name: &str) {
        self.until::<K>(name, "is gone", |object| object.is_none()).await;
    }

    async fn host(&self, name: &str, what: &str, met: impl Fn(&BareMetalHost) -> bool) -> BareMetalHost {
        self.until(name, what, |host| host.is_some_and(&met)).await.unwrap()
    }

    async fn machine(&self, name: &str, what: &str, met: impl Fn(&Machine) -> bool) -> Machine {
        self.until(name, what, |machine| machine.is_some_and(&met)).await.unwrap()
    }

    /// Waits until a Machine is in a phase, and its condition `Ready` says this.
    async fn says(&self, machine: &str, phase: &str, text: &str) -> Machine {
        let said = |machine: &Machine| {
            let Some(status) = &machine.status else { return false };
            let ready = status.conditions.iter().find(|one| one.type_ == "Ready");
            status.phase.as_deref() == Some(phase)
                && ready.is_some_and(|one| one.message.as_deref().unwrap_or_default().contains(text))
        };
        self.machine(machine, &format!("is {phase}, {text:?}"), said).await
    }

    /// A Machine as Metal3's first provider has it; `change` is merged into its value.
    async fn wish(&self, name: &str, change: Value) -> Machine {
        self.create(wished(name, change)).await
    }

    /// A free host; `change` is merged into it.
    async fn free(&self, name: &str, change: Value) {
        let mut host = json!({"metadata": {"name": name}, "spec": {"online": false}});
        json_patch::merge(&mut host, &change);
        let status = host.as_object_mut().unwrap().remove("status");
        self.create::<BareMetalHost>(host).await;
        let mut played = json!({"status": {"provisioning": {"state": "available"}}});
        json_patch::merge(&mut played["status"], &status.unwrap_or(json!({})));
        self.change::<BareMetalHost>(name, played).await;
    }

    async fn state(&self, host: &str, state: &str) {
        self.change::<BareMetalHost>(host, json!({"status": {"provisioning": {"state": state}}})).await;
    }

    /// Plays what becomes of a host that is told what to run.
    async fn runs(&self, host: &str) -> BareMetalHost {
        let found = self.host(host, "is told what to run", |host| host.spec.image.is_some()).await;
        self.state(host, "provisioned").await;
        found
    }

    /// Whether an event of this reason was told of a Machine.
    async fn told(&self, machine: &str, reason: &str) -> bool {
        let events = self.api::<Event>().list(&ListParams::default()).await.unwrap();
        events.items.iter().any(|event| {
            event.involved_object.name.as_deref() == Some(machine) && event.reason.as_deref() == Some(reason)
        })
    }
}

fn wished(name: &str, change: Value) -> Value {
    let mut value = json!({
        "apiVersion": "baremetal.cluster.k8s.io/v1alpha1",
        "kind": "BareMetalMachineProviderSpec",
        "image": {"url": "http://images.test/os.raw", "checksum": "aa"},
    });
    json_patch::merge(&mut value, &change);
    json!({"metadata": {"name": name}, "spec": {"providerSpec": {"value": value}}})
}

fn consumer(host: &BareMetalHost) -> Option<String> {
    let consumer = host.spec.consumer_ref.as_ref()?;
    Some(format!("{} {}", consumer.kind.as_deref().unwrap_or_default(), consumer.name.as_deref().unwrap_or_default()))
}

fn is_of(host: &BareMetalHost, machine: &str) -> bool {
    consumer(host) == Some(format!("Machine {machine}"))
}
