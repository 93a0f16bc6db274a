//! etcd on the machines of a control plane.
//!
//! It listens where only the cluster's own machines come: it is reached by a tunnel through the cluster's API server to its pod, and
//! talked to with a certificate of the cluster's CA for etcd, as kubeadm's own tools do.

mod identity;
mod rpc;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Client;
use kube::api::Api;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

pub(super) use identity::EtcdIdentity;
use rpc::Channel;

use super::plan::{EtcdMember, EtcdStatus};
use crate::cluster::workload::{Forward, Workload, brief, said};

/// Namespace of kubeadm's pods.
pub(super) const SYSTEM: &str = "kube-system";
/// Where etcd listens for clients.
const PORT: u16 = 2379;
/// How long everything takes that is asked at once.
const DEADLINE: Duration = Duration::from_secs(15);
/// How long one node may take until another one is asked.
const TURN: Duration = Duration::from_secs(6);
/// Members that are asked at once. What is asked of them all ends before [`DEADLINE`] though sixteen are silent.
const ASKED_AT_ONCE: usize = 8;

/// etcd of a cluster.
#[async_trait]
pub(super) trait EtcdMembers: Send + Sync {
    /// What it says. The members on all of these nodes are asked: one that is listed may be dead.
    async fn look(&self, nodes: &[String]) -> Result<EtcdStatus, String>;

    /// Has the member of another node lead, where that of a node does.
    async fn hand_over(&self, from: &str, to: &str) -> Result<(), String>;

    /// Removes a member, asked at the first of these nodes that answers. One that is not there is well.
    async fn remove(&self, id: u64, nodes: &[String]) -> Result<(), String>;
}

/// Opens the way to etcd of clusters.
#[async_trait]
pub(super) trait EtcdConnector: Send + Sync {
    /// etcd of the cluster that `workload` is, with the key that the Secret of its CA has.
    async fn open(
        &self,
        client: &Client,
        workload: &Workload,
        namespace: &str,
        cluster: &str,
    ) -> Result<Arc<dyn EtcdMembers>, String>;
}

/// Through the cluster's API server.
pub(super) struct Tunnels;

#[async_trait]
impl EtcdConnector for Tunnels {
    async fn open(
        &self,
        client: &Client,
        workload: &Workload,
        namespace: &str,
        cluster: &str,
    ) -> Result<Arc<dyn EtcdMembers>, String> {
        let name = format!("{cluster}-etcd");
        let secret = Api::<Secret>::namespaced(client.clone(), namespace).get_opt(&name).await;
        let secret = secret.map_err(|error| format!("the Secret {name:?} cannot be read: {}", said(&error)))?;
        let secret = secret.ok_or_else(|| format!("there is no Secret {name:?}"))?;
        let identity =
            EtcdIdentity::of_authority(&secret).map_err(|reason| format!("the Secret {name:?}: {reason}"))?;
        let tunnel = workload.tunnel().ok_or("the cluster cannot be tunnelled to")?;
        Ok(Arc::new(Tunnelled { pods: Api::namespaced(tunnel, SYSTEM), identity }))
    }
}

struct Tunnelled {
    pods: Api<Pod>,
    identity: EtcdIdentity,
}

impl Tunnelled {
    async fn channel(&self, node: &str) -> Result<Channel, String> {
        let pod = format!("etcd-{node}");
        let ports = self.pods.portforward(&pod, &[PORT]).await.map_err(|error| said(&error))?;
        let mut ports = Forward(ports);
        let stream = ports.0.take_stream(PORT).ok_or("the tunnel has no stream")?;
        connect(stream, &self.identity, Some(ports)).await
    }

    /// A channel to the first node that answers.
    async fn first(&self, nodes: &[String]) -> Result<Channel, String> {
        let mut reason = "no Machine has a Node".to_owned();
        for node in nodes {
            match timeout(TURN, self.channel(node)).await {
                Ok(Ok(channel)) => return Ok(channel),
                Ok(Err(error)) => reason = format!("{node}: {error}"),
                Err(_) => reason = format!("{node}: no answer within {} s", TURN.as_secs()),
            }
        }
        Err(reason)
    }
}

/// TLS and HTTP/2 over a tunnel, which lives as long as the channel.
async fn connect<S, T>(stream: S, identity: &EtcdIdentity, tunnel: T) -> Result<Channel, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    T: Send + 'static,
{
    let connector = TlsConnector::from(Arc::new(identity.tls()?));
    // kubeadm puts this name into the certificate of each member.
    let name = rustls_pki_types::ServerName::try_from("localhost").map_err(|error| error.to_string())?;
    let stream = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
    Channel::open(stream, tunnel).await
}

async fn within<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = || format!("etcd did not answer within {} s", DEADLINE.as_secs());
    timeout(DEADLINE, work).await.unwrap_or_else(|_| Err(late())).map_err(|reason| brief(&reason))
}

#[async_trait]
impl EtcdMembers for Tunnelled {
    async fn look(&self, nodes: &[String]) -> Result<EtcdStatus, String> {
        within(look_at(nodes, TURN, |node| async move { look(&mut self.channel(&node).await?).await })).await
    }

    async fn hand_over(&self, from: &str, to: &str) -> Result<(), String> {
        within(async { hand_over(&mut self.first(&[from.to_owned()]).await?, from, to).await }).await
    }

    async fn remove(&self, id: u64, nodes: &[String]) -> Result<(), String> {
        within(async { remove(&mut self.first(nodes).await?, id).await }).await
    }
}

/// What the first of these nodes says that answers, and which do not. Who answers has a quorum: it lists the members only then.
async fn look_at<L>(nodes: &[String], turn: Duration, look: impl Fn(String) -> L) -> Result<EtcdStatus, String>
where
    L: Future<Output = Result<EtcdStatus, String>>,
{
    let asked: Vec<_> = nodes.iter().map(|node| timeout(turn, look(node.clone()))).collect();
    let late = |_| Err(format!("no answer within {} s", turn.as_secs()));
    let answers: Vec<_> =
        stream::iter(asked).buffered(ASKED_AT_ONCE).map(|answer| answer.unwrap_or_else(late)).collect().await;
    let (mut etcd, mut silent) = (None, BTreeMap::new());
    for (node, answer) in nodes.iter().zip(answers) {
        match answer {
            Ok(said) => etcd = etcd.or(Some(said)),
            Err(reason) => drop(silent.insert(node.clone(), brief(&reason))),
        }
    }
    let reason = || silent.iter().map(|(node, reason)| format!("{node}: {reason}")).collect::<Vec<_>>().join("; ");
    let etcd = etcd.ok_or_else(reason)?;
    Ok(EtcdStatus { silent, ..etcd })
}

/// Members, leader and alarms.
async fn look(channel: &mut Channel) -> Result<EtcdStatus, String> {
    let status: rpc::StatusResponse = channel.call(rpc::STATUS, &rpc::EmptyRequest {}).await?;
    let members = members(channel).await?;
    let alarms: rpc::AlarmResponse = channel.call(rpc::ALARM, &rpc::AlarmRequest::default()).await?;
    let word = |alarm: i32| match alarm {
        1 => "NOSPACE".to_owned(),
        2 => "CORRUPT".to_owned(),
        other => format!("alarm {other}"),
    };
    let alarms =
        alarms.alarms.iter().filter(|alarm| alarm.alarm != 0).map(|alarm| (alarm.member_id, word(alarm.alarm)));
    Ok(EtcdStatus { members, leader: status.leader, alarms: alarms.collect(), silent: BTreeMap::new() })
}

/// The members, as a quorum of them says.
async fn members(channel: &mut Channel) -> Result<Vec<EtcdMember>, String> {
    let request = rpc::MemberListRequest { linearizable: true };
    let list: rpc::MemberListResponse = channel.call(rpc::MEMBER_LIST, &request).await?;
    let member = |one: rpc::MemberMessage| EtcdMember { id: one.id, name: one.name, learner: one.is_learner };
    Ok(list.members.into_iter().map(member).collect())
}

async fn hand_over(channel: &mut Channel, from: &str, to: &str) -> Result<(), String> {
    let etcd = look(channel).await?;
    let id = |name: &str| etcd.members.iter().find(|member| member.name == name).map(|member| member.id);
    if id(from) != Some(etcd.leader) {
        return Ok(());
    }
    let target_id = id(to).ok_or_else(|| format!("etcd has no member {to}"))?;
    channel.call::<rpc::MoveLeaderResponse>(rpc::MOVE_LEADER, &rpc::MoveLeaderRequest { target_id }).await.map(drop)
}

async fn remove(channel: &mut Channel, id: u64) -> Result<(), String> {
    let members = members(channel).await?;
    if !members.iter().any(|member| member.id == id) {
        return Ok(());
    }
    if members.len() < 2 {
        return Err("the last member of etcd is never removed".into());
    }
    channel.call::<rpc::MemberRemoveResponse>(rpc::MEMBER_REMOVE, &rpc::MemberRemoveRequest { id }).await.map(drop)
}
