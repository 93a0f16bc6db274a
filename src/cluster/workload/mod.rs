//! Clusters that were made: a client for each, by the kubeconfig that is in its Secret.
//!
//! Where a kubeconfig leads is judged by [`crate::outbound`] with `cluster.allow`, for whoever may write the Secret chose it. Each
//! cluster has its own connections and its own bounds: one that hangs holds up no other.

mod answer;
mod connection;
pub mod drain;
mod kubeconfig;
mod nodes;
mod pages;
mod tunnel;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::Api;
use kube::{Client, ResourceExt};
use tokio::time::Instant;

use answer::{AnswerRoom, Rooms, UNDER_WAY};
use connection::{Patience, WorkloadConnection};
pub use nodes::Nodes;
use nodes::{GOOD_FOR, KEPT_OF_ALL, LastListing, NodeListing};
pub use pages::{PAGES_MAX, pages};
pub use tunnel::Forward;

use crate::apiserver::subdomain;
use crate::live::Live;
use crate::outbound::{Allowed, Guard};
use crate::runtime::ObjectKey;

/// Clusters whose connections are kept; of more, those of whoever has most that were asked for least lately are made anew.
const KEPT: usize = 1000;
/// How long an answer shows that a cluster answers.
const ANSWERED_FOR: Duration = Duration::from_secs(30);

/// A cluster cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The API server that keeps the Secret fails.
    #[error("the Secret {name:?} cannot be read: {error}")]
    Unread {
        /// Its name.
        name: String,
        /// Why.
        error: String,
    },
    /// Nobody has made the Secret yet.
    #[error("there is no Secret {name:?} yet")]
    NoSecret {
        /// Its name.
        name: String,
    },
    /// What is in the Secret cannot be used.
    #[error("the kubeconfig in the Secret {name:?} cannot be used: {reason}")]
    Kubeconfig {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// The cluster does not answer, or refuses.
    #[error("the cluster's API server: {}", said(.0))]
    Api(#[from] kube::Error),
    /// It did not answer when it was asked a moment ago.
    #[error("{reason}")]
    Silent {
        /// What it was.
        reason: String,
    },
    /// Two nodes say to be the same machine.
    #[error("the nodes {one:?} and {other:?} both have the provider ID {id}")]
    Ambiguous {
        /// The identity.
        id: String,
        /// One of them.
        one: String,
        /// Another one.
        other: String,
    },
    /// It has more nodes, or whatever else is listed, than are looked at.
    #[error("the cluster lists more than {most} objects, or does not come to an end")]
    TooMany {
        /// So many are.
        most: usize,
    },
}

/// Most characters of a peer's text that are shown.
const TEXT_MAX: usize = 400;

/// A peer's text for people: on one line, without control characters, and cut where it is long.
pub fn brief(text: &str) -> String {
    let (mut line, mut count, mut gap) = (String::new(), 0, false);
    for char in text.chars() {
        if char.is_whitespace() || char.is_control() {
            gap = count > 0;
            continue;
        }
        if count + usize::from(gap) >= TEXT_MAX {
            line.push('…');
            break;
        }
        if std::mem::take(&mut gap) {
            line.push(' ');
            count += 1;
        }
        line.push(char);
        count += 1;
    }
    line
}

/// What an API server says, in its own words, as [`brief`] shows them.
pub fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.message.is_empty() => format!("it answers {}", status.code),
        kube::Error::Api(status) => brief(&status.message),
        kube::Error::Service(error) => brief(&error.to_string()),
        error => brief(&error.to_string()),
    }
}

/// Name of the Secret with a cluster's kubeconfig.
pub fn secret_name(cluster: &str) -> String {
    format!("{cluster}-kubeconfig")
}

/// A cluster's kubeconfig for whoever runs `kubectl` with it: its current context, without anything that would be run, read or gone by.
///
/// # Errors
///
/// Why it cannot be used: whoever may write its Secret has written it.
pub fn plain_kubeconfig(text: &[u8]) -> Result<String, String> {
    kubeconfig::plain(text)
}

/// The clusters that were made. Cheap to clone.
#[derive(Clone)]
pub struct Workloads {
    guard: Guard,
    /// For answers that are under way.
    under_way: Rooms,
    /// For lists of nodes that are kept for a while.
    lists: Rooms,
    known: Arc<Mutex<HashMap<ObjectKey, KnownWorkload>>>,
}

struct KnownWorkload {
    /// Version of the Secret that the connections were made of.
    version: Option<String>,
    workload: Workload,
    asked: Instant,
}

/// A cluster that was made. Cheap to clone.
#[derive(Clone)]
pub struct Workload {
    client: Client,
    tunnel: Option<Client>,
    server: String,
    nodes: Arc<NodeListing>,
    answered: Arc<Mutex<LastListing<()>>>,
}

impl Workloads {
    /// None yet. `allow` is `cluster.allow`.
    pub fn new(allow: impl Into<Live<Vec<Allowed>>>) -> Self {
        Self {
            guard: Guard::new("cluster.allow", allow),
            under_way: Rooms::new(UNDER_WAY),
            lists: Rooms::new(KEPT_OF_ALL),
            known: Arc::default(),
        }
    }

    /// A cluster, as its Secret says now. `client` reads the Secret; nothing is asked of the cluster yet.
    ///
    /// # Errors
    ///
    /// When there is no Secret, or its kubeconfig cannot be used.
    pub async fn get(&self, client: &Client, namespace: &str, cluster: &str) -> Result<Workload, WorkloadError> {
        let key = (namespace.to_owned(), cluster.to_owned());
        #[cfg(test)]
        if let Some(played) = self.played(&key) {
            return Ok(played);
        }
        let name = secret_name(cluster);
        if !subdomain(&name).is_empty() {
            return Err(WorkloadError::NoSecret { name });
        }
        let secret = Api::<Secret>::namespaced(client.clone(), namespace).get_opt(&name).await;
        let secret = secret.map_err(|error| WorkloadError::Unread { name: name.clone(), error: said(&error) })?;
        let Some(secret) = secret else {
            self.forget(namespace, cluster);
            return Err(WorkloadError::NoSecret { name });
        };
        let version = secret.resource_version();
        if let Some(workload) = self.kept(&key, version.as_deref()) {
            return Ok(workload);
        }
        let text = secret.data.as_ref().and_then(|data| data.get("value"));
        // It takes its time, while others ask for their clusters.
        let target =
            text.ok_or_else(|| "it has no key \"value\"".to_owned()).and_then(|text| kubeconfig::read(&text.0));
        let target = target.map_err(|reason| WorkloadError::Kubeconfig { name, reason })?;
        let connection =
            WorkloadConnection::new(target, self.guard.clone(), Patience::default(), self.under_way.of(namespace));
        let server = connection.server().to_string();
        let tunnel = Client::new(connection.tunnel(), "default");
        let workload = Workload::new(Client::new(connection, "default"), server, GOOD_FOR, self.lists.of(namespace))
            .with_tunnel(tunnel);
        Ok(self.keep(key, version, workload))
    }

    /// The cluster, if its connections were made of this version of the Secret.
    fn kept(&self, key: &ObjectKey, version: Option<&str>) -> Option<Workload> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let one = known.get_mut(key).filter(|one| one.version.as_deref() == version)?;
        one.asked = Instant::now();
        Some(one.workload.clone())
    }

    /// Keeps a cluster's connections; of those that were made of one version of the Secret at the same time, the first ones.
    fn keep(&self, key: ObjectKey, version: Option<String>, workload: Workload) -> Workload {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = known.get(&key).filter(|one| one.version == version) {
            return one.workload.clone();
        }
        if known.len() >= KEPT {
            make_room(&mut known);
        }
        known.insert(key, KnownWorkload { version, workload: workload.clone(), asked: Instant::now() });
        workload
    }

    /// The cluster is gone.
    pub fn forget(&self, namespace: &str, cluster: &str) {
        let key = (namespace.to_owned(), cluster.to_owned());
        #[cfg(test)]
        if self.played(&key).is_some() {
            return;
        }
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    /// A test's client stands for the cluster.
    #[cfg(test)]
    pub fn play(&self, namespace: &str, cluster: &str, client: Client) {
        let key = (namespace.to_owned(), cluster.to_owned());
        let known = KnownWorkload {
            version: Some(PLAYED.to_owned()),
            workload: Workload::new(client, PLAYED.to_owned(), Duration::ZERO, self.lists.of(namespace)),
            asked: Instant::now(),
        };
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, known);
    }

    #[cfg(test)]
    fn played(&self, key: &ObjectKey) -> Option<Workload> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).filter(|one| one.version.as_deref() == Some(PLAYED)).map(|one| one.workload.clone())
    }
}

/// Forgets the cluster that was asked for least lately, of those of the namespace that has most.
fn make_room(known: &mut HashMap<ObjectKey, KnownWorkload>) {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for (namespace, _) in known.keys() {
        *counts.entry(namespace).or_default() += 1;
    }
    let Some(most) = counts.into_iter().max_by_key(|(_, count)| *count).map(|(namespace, _)| namespace.to_owned())
    else {
        return;
    };
    let own = known.iter().filter(|((namespace, _), _)| *namespace == most);
    if let Some(oldest) = own.min_by_key(|(_, one)| one.asked).map(|(key, _)| key.clone()) {
        known.remove(&oldest);
    }
}

#[cfg(test)]
const PLAYED: &str = "played";

impl Workload {
    fn new(client: Client, server: String, good_for: Duration, room: AnswerRoom) -> Self {
        let nodes = Arc::new(NodeListing::new(good_for, room));
        Self { client, tunnel: None, server, nodes, answered: Arc::default() }
    }

    fn with_tunnel(self, tunnel: Client) -> Self {
        Self { tunnel: Some(tunnel), ..self }
    }

    /// Its API. Each answer comes whole and within seconds, so nothing can be watched.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its API for streams to pods: each request has a connection of its own. None where a test's client stands for the cluster.
    pub fn tunnel(&self) -> Option<Client> {
        self.tunnel.clone()
    }

    /// Where it is reached.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Whether it answers: it did within the last half minute, or does now.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub async fn probe(&self) -> Result<(), WorkloadError> {
        let last = self.answered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match last {
            Some((at, Ok(()))) if at.elapsed() < ANSWERED_FOR => return Ok(()),
            // Whoever answers with another fault each time is not asked, and told of, each time.
            Some((at, Err(reason))) if at.elapsed() < self.nodes.good_for() => {
                return Err(WorkloadError::Silent { reason });
            }
            _ => {}
        }
        let answered = self.client.apiserver_version().await.map(drop).map_err(WorkloadError::from);
        let known = answered.as_ref().copied().map_err(WorkloadError::to_string);
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), known));
        answered
    }

    /// Its nodes, as they were some seconds ago at most.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub async fn nodes(&self) -> Result<Arc<Nodes>, WorkloadError> {
        self.nodes.get(&self.client).await
    }

    /// A node as it is now.
    ///
    /// # Errors
    ///
    /// When the cluster does not answer.
    pub async fn node(&self, name: &str) -> Result<Option<Node>, WorkloadError> {
        Ok(Api::<Node>::all(self.client.clone()).get_opt(name).await?)
    }

    /// A node was changed or deleted here: the list of nodes is of before.
    pub async fn node_changed(&self) {
        self.nodes.forget().await;
    }
}

#[cfg(test)]
pub mod played_tests;
#[cfg(test)]
mod tests;
