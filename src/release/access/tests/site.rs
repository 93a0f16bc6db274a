//! The API with this room alone.

use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api::kaas::{BareMetalHostCredential, BareMetalHostInventory};
use crate::apiserver::ApiServer;
use crate::engine::Fence;
use crate::module::{Acting, Life};
use crate::modules::kinds;
use crate::release::access::AccessLife;
use crate::runtime::{Tasks, Watches, conditions};
use crate::store::{Store, StoreOptions};

pub const NAMESPACE: &str = "rack";
/// Nothing that a test waits for takes longer.
const DEADLINE: Duration = Duration::from_secs(120);

pub struct AccessSite {
    pub client: Client,
    shutdown: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for AccessSite {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

pub trait Kept:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + std::fmt::Debug
    + Serialize
    + DeserializeOwned
    + Send
    + 'static
{
}

impl<K> Kept for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned
        + Send
        + 'static
{
}

impl AccessSite {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 10_000 };
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), shutdown.clone()).await.unwrap();
        let mut watches = Watches::default();
        let access = AccessLife::new(&mut watches);
        access.admission().into_iter().for_each(|(resource, rules)| api.add_admission(resource, rules));
        let client = api.client();
        tokio::spawn(async move { api.run().await });
        tokio::spawn(watches.run(client.clone(), shutdown.clone()));
        let (tasks, stop) = (Tasks::default(), shutdown.clone());
        let acting = Acting { client: client.clone(), fence: Fence::open(), tasks, store: None, stop };
        for (_, service) in access.act(&acting).unwrap() {
            tokio::spawn(service);
        }
        let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).unwrap();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        Self { client, shutdown, _folder: folder }
    }

    pub fn api<K: Kept>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub async fn try_create<K: Kept>(&self, mut object: Value) -> Result<K, kube::Error> {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        self.api::<K>().create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await
    }

    pub async fn create<K: Kept>(&self, object: Value) -> K {
        self.try_create(object).await.unwrap()
    }

    pub async fn get<K: Kept>(&self, name: &str) -> Option<K> {
        self.api::<K>().get_opt(name).await.unwrap()
    }

    pub async fn change<K: Kept>(&self, name: &str, patch: Value) {
        let api = self.api::<K>();
        let params = PatchParams::default();
        if patch.get("status").is_some() {
            api.patch_status(name, &params, &Patch::Merge(&patch)).await.unwrap();
        } else {
            api.patch(name, &params, &Patch::Merge(&patch)).await.unwrap();
        }
    }

    pub async fn delete<K: Kept>(&self, name: &str) {
        self.api::<K>().delete(name, &DeleteParams::background()).await.unwrap();
    }

    pub async fn until<K: Kept>(&self, name: &str, what: &str, met: impl Fn(Option<&K>) -> bool) -> Option<K> {
        let wait = async {
            loop {
                let object = self.get::<K>(name).await;
                if met(object.as_ref()) {
                    return object;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        match tokio::time::timeout(DEADLINE, wait).await {
            Ok(object) => object,
            Err(_) => panic!("not in time: {name} {what}: {}", json!(self.get::<K>(name).await)),
        }
    }

    pub async fn there<K: Kept>(&self, name: &str, what: &str, met: impl Fn(&K) -> bool) -> K {
        self.until(name, what, |object| object.is_some_and(&met)).await.unwrap()
    }

    pub async fn gone<K: Kept>(&self, name: &str) {
        self.until::<K>(name, "is gone", |object| object.is_none()).await;
    }

    /// Waits until a condition of an inventory says this.
    pub async fn says(&self, name: &str, type_: &str, reason: &str, text: &str) -> BareMetalHostInventory {
        let met = |one: &BareMetalHostInventory| {
            let all = one.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            conditions::find(all, type_).is_some_and(|found| found.reason == reason && found.message.contains(text))
        };
        self.there(name, &format!("{type_} is {reason}: {text}"), met).await
    }

    pub async fn credential(&self, name: &str, password: Value) {
        let spec = json!({"username": "root", "password": password});
        self.create::<BareMetalHostCredential>(json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    /// User and password that a host has.
    pub async fn login(&self, host: &str) -> Option<(String, String)> {
        let secret = self.get::<Secret>(&format!("{host}-bmhi-bmc")).await?;
        let data = secret.data?;
        let text = |key: &str| Some(String::from_utf8(data.get(key)?.0.clone()).unwrap());
        Some((text("username")?, text("password")?))
    }

    pub async fn logs_in(&self, host: &str, password: &str) {
        let wait = async {
            while self.login(host).await != Some(("root".into(), password.into())) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("the host has the password in time");
    }
}
