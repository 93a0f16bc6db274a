//! Hosts as the host controller has them, and the clusters that their machines make: both played.
//!
//! Of a host only the status is written. A machine that starts does what is on its config drive; what no kubeadm would stand, as a
//! second beginning of a cluster or a token that is not there, is a fault that tests look at in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::boot::{Booted, boot};
use super::site::NAMESPACE;
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::metal3::{BareMetalHost, ProvisioningState, SecretReference};
use crate::cluster::certificates::hashes;
use crate::cluster::control_plane::played_tests::{PlayedEtcds, kubeadm_leaves};
use crate::cluster::workload::Workloads;
use crate::cluster::workload::played_tests::Played;
use crate::image::configdrive;

/// Between two rounds along the rack.
const ROUND: Duration = Duration::from_millis(10);
/// Where kubeadm keeps what it was told.
pub(super) const KUBEADM_CONFIG: &str = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config";

/// The rack. Cheap to clone.
#[derive(Clone)]
pub(super) struct Rack(Arc<Parts>);

struct Parts {
    client: Client,
    clusters: BTreeMap<String, Played>,
    etcds: PlayedEtcds,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What inspection finds, by host.
    hardware: BTreeMap<String, Value>,
    /// Hosts on which no image can be written.
    broken: BTreeSet<String>,
    /// Hosts whose machines do not start yet.
    held: BTreeSet<String>,
    /// Cluster and node of each machine that started, by host, with the user data that it started with.
    started: BTreeMap<String, Started>,
    faults: Vec<String>,
}

#[derive(Clone)]
struct Started {
    user_data: String,
    cluster: String,
    node: String,
}

impl Rack {
    /// An empty rack, whose machines make clusters of these names.
    pub(super) fn new(client: Client, workloads: &Workloads, clusters: &[&str], stop: CancellationToken) -> Self {
        let played = |name: &&str| {
            let played = Played::default();
            played.fall_silent(Some("connection refused"));
            workloads.play(NAMESPACE, name, played.client());
            ((*name).to_owned(), played)
        };
        let clusters = clusters.iter().map(played).collect();
        let parts = Parts { client, clusters, etcds: PlayedEtcds::default(), state: Mutex::default() };
        let rack = Self(Arc::new(parts));
        let rounds = rack.clone();
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                rounds.round().await;
                tokio::time::sleep(ROUND).await;
            }
        });
        rack
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    fn hosts(&self) -> Api<BareMetalHost> {
        Api::namespaced(self.0.client.clone(), NAMESPACE)
    }

    pub(super) fn etcds(&self) -> &PlayedEtcds {
        &self.0.etcds
    }

    /// The cluster of a name.
    pub(super) fn cluster(&self, name: &str) -> &Played {
        &self.0.clusters[name]
    }

    /// What no kubeadm would have stood.
    pub(super) fn faults(&self) -> Vec<String> {
        self.state().faults.clone()
    }

    /// Puts hosts with these names into the rack.
    pub(super) async fn hosts_called(&self, names: &[&str]) {
        for name in names {
            let host = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": name},
                "spec": {"online": false, "bmc": {"address": format!("ipmi://{name}.example"), "credentialsName": format!("{name}-bmc")}}});
            let host: BareMetalHost = serde_json::from_value(host).unwrap();
            self.credentials(&format!("{name}-bmc")).await;
            self.hosts().create(&PostParams::default(), &host).await.unwrap();
        }
    }

    /// The Secret that a host's BMC is reached with.
    pub(super) async fn credentials(&self, name: &str) {
        let secret = json!({"metadata": {"name": name}, "stringData": {"username": "u", "password": "p"}});
        let secret: Secret = serde_json::from_value(secret).unwrap();
        let secrets = Api::<Secret>::namespaced(self.0.client.clone(), NAMESPACE);
        secrets.create(&PostParams::default(), &secret).await.unwrap();
    }

    /// Inspection of a host finds this.
    pub(super) fn inspect_as(&self, host: &str, hardware: Value) {
        self.state().hardware.insert(host.to_owned(), hardware);
    }

    /// No image can be written on a host.
    pub(super) fn break_down(&self, host: &str) {
        self.state().broken.insert(host.to_owned());
    }

    /// The machine of a host does not start, though its image is written.
    pub(super) fn hold(&self, host: &str) {
        self.state().held.insert(host.to_owned());
    }

    /// It does now.
    pub(super) fn let_go(&self, host: &str) {
        self.state().held.remove(host);
    }

    /// The machine of a node dies.
    pub(super) fn die(&self, cluster: &str, node: &str) {
        self.0.etcds.die(cluster, node);
        self.hear(cluster, node, "Unknown");
    }

    /// It is there again.
    pub(super) fn come_back(&self, cluster: &str, node: &str) {
        self.0.etcds.come_back(cluster, node);
        self.hear(cluster, node, "True");
    }

    /// Whether a node is ready.
    fn hear(&self, cluster: &str, node: &str, ready: &str) {
        let (played, path) = (self.cluster(cluster), format!("/api/v1/nodes/{node}"));
        let Some(mut found) = played.get(&path) else { return };
        found["status"]["conditions"][0]["status"] = ready.into();
        played.put(&path, found);
    }

    async fn round(&self) {
        let Ok(hosts) = self.hosts().list(&ListParams::default()).await else { return };
        for host in hosts.items {
            if let Err(error) = self.step(&host).await {
                // It may be deleted meanwhile.
                tracing::debug!(%error, "a played host");
            }
        }
    }

    /// One step of a host's life, as Metal3's states have it.
    async fn step(&self, host: &BareMetalHost) -> Result<(), kube::Error> {
        let name = host.name_any();
        let status = host.status.clone().unwrap_or_default();
        let (broken, held) = {
            let state = self.state();
            (state.broken.contains(&name), state.held.contains(&name))
        };
        let image = host.spec.image.is_some();
        match (status.provisioning.state, image) {
            (ProvisioningState::None, _) => {
                let hardware = self.state().hardware.get(&name).cloned();
                let hardware =
                    hardware.unwrap_or_else(|| json!({"hostname": name, "cpu": {"count": 8}, "ramMebibytes": 8192}));
                self.say(
                    &name,
                    json!({"provisioning": {"state": "available"}, "hardware": hardware, "poweredOn": false}),
                )
                .await
            }
            (ProvisioningState::Available, true) if host.spec.online => {
                self.say(&name, json!({"provisioning": {"state": "provisioning"}, "poweredOn": true})).await
            }
            (ProvisioningState::Provisioning, true) if broken => {
                if !status.error_message.is_empty() && status.powered_on == is_on(host) {
                    return Ok(());
                }
                let error = json!({"errorType": "provisioning error", "errorMessage": "the disk does not answer",
                    "operationalStatus": "error", "poweredOn": is_on(host)});
                self.say(&name, error).await
            }
            (ProvisioningState::Provisioning, true) => {
                let done = json!({"provisioning": {"state": "provisioned", "image": host.spec.image}, "poweredOn": true,
                    "errorType": null, "errorMessage": "", "operationalStatus": "OK"});
                self.say(&name, done).await
            }
            (ProvisioningState::Provisioning | ProvisioningState::Provisioned, false) => {
                if let Some(started) = { self.state().started.remove(&name) } {
                    self.die(&started.cluster, &started.node);
                }
                self.say(&name, json!({"provisioning": {"state": "deprovisioning"}})).await
            }
            (ProvisioningState::Deprovisioning, _) => {
                let done = json!({"provisioning": {"state": "available", "image": null}, "poweredOn": false,
                    "errorType": null, "errorMessage": "", "operationalStatus": "OK"});
                self.say(&name, done).await
            }
            (ProvisioningState::Provisioned, true) if status.powered_on != is_on(host) => {
                self.say(&name, json!({"poweredOn": is_on(host)})).await
            }
            (ProvisioningState::Provisioned, true) if !held => self.start(host).await,
            _ => Ok(()),
        }
    }

    async fn say(&self, host: &str, status: Value) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.hosts().patch_status(host, &PatchParams::default(), &patch).await.map(drop)
    }

    /// What a Secret of a host has under a key.
    async fn content(&self, reference: Option<&SecretReference>, key: &str) -> Result<Option<Vec<u8>>, kube::Error> {
        let Some(name) = reference.and_then(|reference| reference.name.as_deref()) else { return Ok(None) };
        let secret = Api::<Secret>::namespaced(self.0.client.clone(), NAMESPACE).get(name).await?;
        Ok(secret.data.and_then(|mut data| data.remove(key)).map(|content| content.0))
    }

    /// The machine starts from its disk, once with each user data.
    async fn start(&self, host: &BareMetalHost) -> Result<(), kube::Error> {
        let name = host.name_any();
        let user_data = host.spec.user_data.as_ref().and_then(|reference| reference.name.clone()).unwrap_or_default();
        if self.state().started.get(&name).is_some_and(|started| started.user_data == user_data) {
            return Ok(());
        }
        let content = self.content(host.spec.user_data.as_ref(), "value").await?.unwrap_or_default();
        let meta_data = self.content(host.spec.meta_data.as_ref(), "metaData").await?;
        let uid = host.uid().unwrap_or_default();
        let meta_data = configdrive::meta_data(&uid, NAMESPACE, &name, meta_data.as_deref()).unwrap();
        let cluster = host.labels().get(LABEL_CLUSTER).cloned().unwrap_or_default();
        let booted = match boot(&String::from_utf8_lossy(&content), &meta_data) {
            Ok(booted) => booted,
            Err(reason) => {
                self.fault(&name, &reason);
                return Ok(());
            }
        };
        let node = booted.node["metadata"]["name"].as_str().unwrap().to_owned();
        let is_plane = booted.is_plane;
        if let Err(reason) = self.become_node(&cluster, booted).await? {
            self.fault(&name, &reason);
        } else if is_plane {
            self.0.etcds.join(&cluster, &node);
        }
        self.state().started.insert(name, Started { user_data, cluster, node });
        Ok(())
    }

    /// Says it once, so that the faults of a long test can be read.
    fn fault(&self, host: &str, reason: &str) {
        let (mut state, fault) = (self.state(), format!("{host}: {reason}"));
        if !state.faults.contains(&fault) {
            state.faults.push(fault);
        }
    }

    /// kubeadm runs on a machine.
    async fn become_node(&self, cluster: &str, booted: Booted) -> Result<Result<(), String>, kube::Error> {
        let Some(played) = self.0.clusters.get(cluster) else {
            return Ok(Err(format!("there is no cluster {cluster:?}")));
        };
        let Booted { begins, discovery, is_plane, mut node } = booted;
        let begun = played.get(KUBEADM_CONFIG).is_some();
        if let Some(text) = begins {
            if begun {
                return Ok(Err("a second machine begins the cluster".into()));
            }
            let metadata = json!({"name": "kubeadm-config", "namespace": "kube-system"});
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
                "data": {"ClusterConfiguration": text}});
            played.put(KUBEADM_CONFIG, map);
            played.fall_silent(None);
        } else {
            if !begun {
                return Ok(Err("it joins before the cluster has begun".into()));
            }
            let reference = SecretReference { name: Some(format!("{cluster}-ca")), namespace: None };
            let authority = self.content(Some(&reference), "tls.crt").await?.unwrap_or_default();
            let found = &discovery["bootstrapToken"];
            if found["caCertHashes"] != json!(hashes(&String::from_utf8_lossy(&authority)).unwrap_or_default()) {
                return Ok(Err("it looks for another authority than the cluster's".into()));
            }
            let token = found["token"].as_str().and_then(|token| token.split_once('.')).unwrap_or_default();
            let path = format!("/api/v1/namespaces/kube-system/secrets/bootstrap-token-{}", token.0);
            if played.get(&path).is_none() {
                return Ok(Err(format!("the cluster has no token {}", token.0)));
            }
        }
        let name = node["metadata"]["name"].as_str().unwrap().to_owned();
        if is_plane {
            kubeadm_leaves(&mut node).into_iter().for_each(|(path, pod)| played.put(&path, pod));
        }
        played.put(&format!("/api/v1/nodes/{name}"), node);
        Ok(Ok(()))
    }
}

/// Whether a host is to be on: as long as nobody keeps it off.
fn is_on(host: &BareMetalHost) -> bool {
    let kept_off = host.annotations().keys().any(|key| key.starts_with("reboot.metal3.io/"));
    host.spec.online && !kept_off
}
