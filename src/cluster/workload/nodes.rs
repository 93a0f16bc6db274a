//! The nodes of a cluster, as they were a moment ago: whoever looks for one looks at the same list.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus};
use kube::api::{Api, ListParams};
use kube::core::ObjectMeta;
use kube::{Client, ResourceExt};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::WorkloadError;
use super::answer::{AnswerRoom, RoomPermit};
use super::pages::pages;
use crate::json_marks::marks;

/// How long a list of nodes is good, at most.
pub(super) const GOOD_FOR: Duration = Duration::from_secs(5);
/// So long it is good at least, where `GOOD_FOR` is not less: of a small cluster another one costs nothing.
const GOOD_AT_LEAST: Duration = Duration::from_millis(500);
/// Between these it is good so many times as long as it took: that share of the time nodes are listed, at most.
const GOOD_TIMES: u32 = 50;
/// Nodes that are asked for at once; one has up to 50 KiB, most of it the images that it has.
const PAGE: u32 = 100;
/// Nodes of one cluster.
const MOST: usize = 10_000;
/// Bytes of what is kept of all nodes of a cluster, as it is parsed.
const KEPT_MAX: usize = 16 << 20;
/// What a value takes besides its text, in bytes: a string and its place in a map.
const VALUE_WEIGHT: usize = 96;
/// Bytes of a condition's message.
const MESSAGE_MAX: usize = 1024;

/// KiB of all lists that are kept, as they are parsed.
pub(super) const KEPT_OF_ALL: u32 = 64 << 10;
/// There is no room for a list now. Others are kept for [`GOOD_FOR`].
const CROWDED: &str = "too many nodes of clusters are looked at at once";

/// The nodes of a cluster.
#[derive(Debug, Default)]
pub struct Nodes {
    by_name: HashMap<String, Arc<Node>>,
    by_provider: HashMap<String, Vec<Arc<Node>>>,
    _taken: RoomPermit,
}

impl Nodes {
    /// Those of a list.
    pub fn new(list: impl IntoIterator<Item = Node>) -> Self {
        let mut nodes = Self::default();
        for node in list {
            let node = Arc::new(node);
            let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).filter(|id| !id.is_empty());
            if let Some(id) = id {
                nodes.by_provider.entry(id).or_default().push(node.clone());
            }
            nodes.by_name.insert(node.name_any(), node);
        }
        nodes
    }

    /// The node of this name.
    pub fn named(&self, name: &str) -> Option<&Arc<Node>> {
        self.by_name.get(name)
    }

    /// The node with this identity.
    ///
    /// # Errors
    ///
    /// When several have it: which one the machine is, nobody can tell.
    pub fn provided(&self, id: &str) -> Result<Option<&Arc<Node>>, WorkloadError> {
        match self.by_provider.get(id).map(Vec::as_slice) {
            None | Some([]) => Ok(None),
            Some([one]) => Ok(Some(one)),
            Some([one, other, ..]) => {
                Err(WorkloadError::Ambiguous { id: id.to_owned(), one: one.name_any(), other: other.name_any() })
            }
        }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.by_name.values()
    }
}

/// What was heard last, or why nothing was, and a time that belongs to it.
pub(super) type LastListing<T> = Option<(Instant, Result<T, String>)>;

/// The last list, and until when it is good. It goes then, whether somebody asks for another one or not.
pub(super) struct NodeListing {
    last: Arc<Mutex<LastListing<Arc<Nodes>>>>,
    good_for: Duration,
    room: AnswerRoom,
}

impl NodeListing {
    /// None yet.
    pub(super) fn new(good_for: Duration, room: AnswerRoom) -> Self {
        Self { last: Arc::default(), good_for, room }
    }

    /// How long a list, or why there is none, is good at most.
    pub(super) fn good_for(&self) -> Duration {
        self.good_for
    }

    /// The nodes, listed anew when the last list is too old. Who comes while they are listed waits for that list.
    pub(super) async fn get(&self, client: &Client) -> Result<Arc<Nodes>, WorkloadError> {
        let mut last = self.last.lock().await;
        if let Some((_, known)) = last.as_ref().filter(|(until, _)| Instant::now() < *until) {
            return known.clone().map_err(|reason| WorkloadError::Silent { reason });
        }
        // Not beside the next one.
        *last = None;
        let began = Instant::now();
        let listed = list(client, &self.room).await.map(Arc::new);
        let known = listed.as_ref().map(Arc::clone).map_err(WorkloadError::to_string);
        let until = Instant::now() + good_for(began.elapsed(), self.good_for);
        *last = Some((until, known));
        drop(last);
        let last = self.last.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            let mut last = last.lock().await;
            if last.as_ref().is_some_and(|(until, _)| Instant::now() >= *until) {
                *last = None;
            }
        });
        listed
    }

    /// Somebody changed a node: the next list is a new one.
    pub(super) async fn forget(&self) {
        *self.last.lock().await = None;
    }
}

/// How long a list is good that took so long.
fn good_for(took: Duration, most: Duration) -> Duration {
    took.saturating_mul(GOOD_TIMES).max(GOOD_AT_LEAST).min(most)
}

async fn list(client: &Client, room: &AnswerRoom) -> Result<Nodes, WorkloadError> {
    let (mut all, mut kept, mut taken, mut fits) = (Vec::new(), 0, RoomPermit::default(), true);
    pages(&Api::<Node>::all(client.clone()), &ListParams::default(), (PAGE, MOST), |node| {
        let node = slim(node);
        kept += serde_json::to_vec(&node).map_or(0, |json| weight(&json));
        all.push(node);
        fits = room.try_grow(&mut taken, kept);
        if kept > KEPT_MAX || !fits { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .await
    .map_err(|error| if fits { error } else { WorkloadError::Silent { reason: CROWDED.to_owned() } })?;
    Ok(Nodes { _taken: taken, ..Nodes::new(all) })
}

/// What takes so much JSON in memory, roughly.
fn weight(json: &[u8]) -> usize {
    json.len() + VALUE_WEIGHT * marks(json).filter(|mark| matches!(mark, b',' | b'{')).count()
}

/// What of a node is looked at here.
fn slim(node: Node) -> Node {
    let Node { metadata, spec, status } = node;
    let metadata = ObjectMeta {
        name: metadata.name,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        labels: metadata.labels,
        annotations: metadata.annotations,
        ..ObjectMeta::default()
    };
    let spec = spec.map(|spec| NodeSpec {
        provider_id: spec.provider_id,
        taints: spec.taints,
        unschedulable: spec.unschedulable,
        ..NodeSpec::default()
    });
    let status = status.map(|status| NodeStatus {
        addresses: status.addresses,
        conditions: status.conditions.map(|all| all.into_iter().map(short).collect()),
        node_info: status.node_info,
        ..NodeStatus::default()
    });
    Node { metadata, spec, status }
}

fn short(mut condition: NodeCondition) -> NodeCondition {
    if let Some(message) = &mut condition.message {
        message.truncate(message.floor_char_boundary(MESSAGE_MAX));
    }
    condition
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_good_the_longer_the_longer_it_took() {
        let millis = Duration::from_millis;
        for (took, most, wanted) in [(0, 5000, 500), (9, 5000, 500), (40, 5000, 2000), (3000, 5000, 5000), (40, 0, 0)] {
            assert_eq!(good_for(millis(took), millis(most)), millis(wanted), "{took} {most}");
        }
    }

    fn node(name: &str, id: &str) -> Node {
        let spec = NodeSpec { provider_id: Some(id.to_owned()), ..NodeSpec::default() };
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        Node { metadata, spec: Some(spec), status: None }
    }

    #[test]
    fn a_node_is_found_by_its_identity_unless_two_have_it() {
        let nodes =
            Nodes::new([node("a", "metal3://1"), node("b", "metal3://2"), node("c", "metal3://2"), node("d", "")]);
        let name = |id: &str| nodes.provided(id).map(|found| found.map(|node| node.name_any()));
        assert_eq!(name("metal3://1").unwrap().as_deref(), Some("a"));
        assert_eq!(name("metal3://3").unwrap(), None);
        assert_eq!(name("").unwrap(), None);
        assert!(name("metal3://2").unwrap_err().to_string().contains("metal3://2"));
        assert!(nodes.named("d").is_some());
        assert_eq!(nodes.all().count(), 4);
    }
}
