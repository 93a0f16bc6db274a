//! What is inside of clusters that kubeadm made, as tests of several rooms play it: members of etcd, and pods of a control plane.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use kube::Client;
use serde_json::{Value, json};

use super::ControlPlanes;
use super::controller::ControlPlaneTimes;
use super::etcd::{EtcdConnector, EtcdMembers};
use super::health::{NODE_LABEL, PODS};
use super::plan::{EtcdMember, EtcdStatus};
use crate::cluster::workload::Workload;

/// etcd of clusters, by their names. Cheap to clone.
#[derive(Clone, Default)]
pub(in crate::cluster) struct PlayedEtcds(Arc<Mutex<BTreeMap<String, Played>>>);

/// etcd of a cluster.
#[derive(Default)]
struct Played {
    etcd: EtcdStatus,
    /// Members whose machines are dead, by name.
    dead: BTreeSet<String>,
    /// Number of the last member.
    last: u64,
}

impl Played {
    /// Whether more than half of the members answer.
    fn has_quorum(&self) -> bool {
        let members = &self.etcd.members;
        let alive = members.iter().filter(|member| !self.dead.contains(&member.name)).count();
        alive > members.len() / 2
    }

    fn of(&self, name: &str) -> Result<u64, String> {
        let member = self.etcd.members.iter().find(|member| member.name == name);
        member.map(|member| member.id).ok_or_else(|| format!("no member {name}"))
    }

    fn asked(&self, nodes: &[String]) -> Result<(), String> {
        if !nodes.iter().any(|node| !self.dead.contains(node)) {
            return Err("no node answers".into());
        }
        if self.has_quorum() { Ok(()) } else { Err("etcdserver: no leader".into()) }
    }
}

impl PlayedEtcds {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Played>> {
        self.0.lock().unwrap()
    }

    /// A machine of a cluster becomes a member.
    pub(in crate::cluster) fn join(&self, cluster: &str, node: &str) {
        let mut all = self.all();
        let played = all.entry(cluster.to_owned()).or_default();
        played.last += 1;
        if played.etcd.members.is_empty() {
            played.etcd.leader = played.last;
        }
        played.etcd.members.push(EtcdMember { id: played.last, name: node.to_owned(), learner: false });
    }

    /// A machine of a cluster is dead. Another one leads, if a quorum is left.
    pub(in crate::cluster) fn die(&self, cluster: &str, node: &str) {
        let mut all = self.all();
        let Some(played) = all.get_mut(cluster) else { return };
        played.dead.insert(node.to_owned());
        let alive =
            played.etcd.members.iter().find(|member| !played.dead.contains(&member.name)).map(|member| member.id);
        if played.of(node) == Ok(played.etcd.leader)
            && let Some(next) = alive
        {
            played.etcd.leader = next;
        }
    }

    /// It is there again.
    pub(in crate::cluster) fn come_back(&self, cluster: &str, node: &str) {
        if let Some(played) = self.all().get_mut(cluster) {
            played.dead.remove(node);
        }
    }

    /// Names of the members of a cluster.
    pub(in crate::cluster) fn members(&self, cluster: &str) -> BTreeSet<String> {
        let all = self.all();
        let members = all.get(cluster).map(|played| played.etcd.members.as_slice()).unwrap_or_default();
        members.iter().map(|member| member.name.clone()).collect()
    }
}

#[async_trait]
impl EtcdConnector for PlayedEtcds {
    async fn open(&self, _: &Client, _: &Workload, _: &str, cluster: &str) -> Result<Arc<dyn EtcdMembers>, String> {
        Ok(Arc::new(PlayedMembers { all: self.clone(), cluster: cluster.to_owned() }))
    }
}

/// The way to etcd of one cluster.
struct PlayedMembers {
    all: PlayedEtcds,
    cluster: String,
}

impl PlayedMembers {
    fn with<T>(&self, work: impl FnOnce(&mut Played) -> Result<T, String>) -> Result<T, String> {
        work(self.all.all().entry(self.cluster.clone()).or_default())
    }
}

#[async_trait]
impl EtcdMembers for PlayedMembers {
    async fn look(&self, nodes: &[String]) -> Result<EtcdStatus, String> {
        self.with(|played| played.asked(nodes).map(|()| played.etcd.clone()))
    }

    async fn hand_over(&self, from: &str, to: &str) -> Result<(), String> {
        self.with(|played| {
            played.asked(&[from.to_owned()])?;
            if played.of(from)? == played.etcd.leader {
                played.etcd.leader = played.of(to)?;
            }
            Ok(())
        })
    }

    async fn remove(&self, id: u64, nodes: &[String]) -> Result<(), String> {
        self.with(|played| {
            played.asked(nodes)?;
            played.etcd.members.retain(|member| member.id != id);
            Ok(())
        })
    }
}

/// What kubeadm leaves in a cluster for a machine of its control plane: label and taint of its node, and pods by their paths.
pub(in crate::cluster) fn kubeadm_leaves(node: &mut Value) -> Vec<(String, Value)> {
    let name = node["metadata"]["name"].as_str().unwrap().to_owned();
    node["metadata"]["labels"][NODE_LABEL] = "".into();
    node["spec"]["taints"] = json!([{"key": NODE_LABEL, "effect": "NoSchedule"}]);
    let pod = |(_, part): (&str, &str)| {
        let pod = format!("{part}-{name}");
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        let metadata =
            json!({"name": pod, "namespace": "kube-system", "annotations": {"kubernetes.io/config.mirror": "x"}});
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"nodeName": name, "containers": []}, "status": status});
        (format!("/api/v1/namespaces/kube-system/pods/{pod}"), object)
    };
    PODS.into_iter().map(pod).collect()
}

/// Control planes that look at everything after this pause, and at this etcd.
pub(in crate::cluster) fn hurried(planes: ControlPlanes, etcds: &PlayedEtcds, pause: Duration) -> ControlPlanes {
    planes.with(
        Arc::new(etcds.clone()),
        ControlPlaneTimes {
            pause,
            settled: pause,
            grace: Duration::ZERO,
            messages: Duration::ZERO,
            budget: Duration::from_secs(90),
        },
    )
}
