//! The node of a machine in its cluster: found, and given the machine's identity.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::json;
use tracing::info;

use super::identity::{NodeIdentity, NodeMarks, by_name, identify, left_behind, of_host};
use crate::cluster::workload::{Workload, WorkloadError, Workloads};
use crate::log::named;

/// How a node gets its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeIdentitySource {
    /// A cloud provider in the cluster gives it.
    Provider,
    /// It is found by a label, and given here.
    Label,
    /// It is found by its name, and given here: nobody told its kubelet of the host.
    Name,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeMatch {
    /// The node has this identity.
    Is(String),
    /// There is none yet, and why.
    Not(String),
}

/// Deletes the nodes that machines left behind that had a host before. Nothing runs on it: a machine that comes as a node of one
/// of their names would take over an identity that nobody can change.
///
/// # Errors
///
/// When the cluster cannot be asked.
pub async fn clear(
    workloads: &Workloads,
    client: &Client,
    cluster: &str,
    marks: &NodeMarks<'_>,
) -> Result<(), WorkloadError> {
    let workload = workloads.get(client, marks.namespace, cluster).await?;
    let nodes = workload.nodes().await?;
    let nodes: Vec<&Node> = nodes.all().map(AsRef::as_ref).collect();
    delete(&workload, (marks.namespace, cluster), &of_host(marks, &nodes)).await
}

async fn delete(workload: &Workload, of: (&str, &str), nodes: &[&Node]) -> Result<(), WorkloadError> {
    let api = Api::<Node>::all(workload.client().clone());
    for node in nodes {
        let preconditions = Some(Preconditions { uid: node.uid(), ..Preconditions::default() });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        let deleted = api.delete(&node.name_any(), &params).await;
        workload.node_changed().await;
        match deleted {
            // It is gone, or another one of its name came.
            Err(kube::Error::Api(error)) if error.is_not_found() || error.is_conflict() => {}
            deleted => drop(deleted?),
        }
        info!(cluster = %named(of.0, of.1), node = node.name_any(), "deleted a node of a machine that had its host before");
    }
    Ok(())
}

/// Finds the machine's node, and gives it its identity.
///
/// # Errors
///
/// When the cluster cannot be asked.
pub async fn find(
    workloads: &Workloads,
    client: &Client,
    cluster: &str,
    marks: &NodeMarks<'_>,
    (source, names): (NodeIdentitySource, &BTreeSet<&str>),
) -> Result<NodeMatch, WorkloadError> {
    let workload = workloads.get(client, marks.namespace, cluster).await?;
    let nodes = workload.nodes().await?;
    let nodes: Vec<&Node> = nodes.all().map(AsRef::as_ref).collect();
    delete(&workload, (marks.namespace, cluster), &left_behind(marks, &nodes)).await?;
    let mut identity = identify(marks, &nodes);
    if identity == NodeIdentity::Missing && source == NodeIdentitySource::Name {
        identity = by_name(marks, names, &nodes);
    }
    match identity {
        NodeIdentity::Has { provider_id, .. } => Ok(NodeMatch::Is(provider_id)),
        NodeIdentity::Unclear(reason) => Ok(NodeMatch::Not(reason)),
        _ if source == NodeIdentitySource::Provider => {
            let id = marks.provider_id();
            Ok(NodeMatch::Not(format!(
                "Waiting for the cluster's cloud provider to give a node the provider ID {id:?}"
            )))
        }
        NodeIdentity::Missing if source == NodeIdentitySource::Name => {
            let names: Vec<&str> = names.iter().copied().collect();
            Ok(NodeMatch::Not(format!("Waiting for a node with the host name {}", names.join(" or "))))
        }
        NodeIdentity::Missing => {
            let uid = marks.host_uid;
            let id = marks.provider_id();
            Ok(NodeMatch::Not(format!(
                "Waiting for a node with the label metal3.io/uuid={uid} or the provider ID {id:?}"
            )))
        }
        NodeIdentity::Lacks { node } => {
            let id = marks.provider_id();
            let patch = json!({ "spec": { "providerID": id } });
            let api = Api::<Node>::all(workload.client().clone());
            let patched = api.patch(&node, &PatchParams::default(), &Patch::Merge(patch)).await;
            workload.node_changed().await;
            patched?;
            Ok(NodeMatch::Is(id))
        }
    }
}
