//! The node of a machine in its cluster: found, and given the machine's identity.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::identity::{Identity, Marks, by_name, identify};
use crate::cluster::workload::{WorkloadError, Workloads};

/// How a node gets its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A cloud provider in the cluster gives it.
    Provider,
    /// It is found by a label, and given here.
    Label,
    /// It is found by its name, and given here: nobody told its kubelet of the host.
    Name,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The node has this identity.
    Is(String),
    /// There is none yet, and why.
    Not(String),
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
    marks: &Marks<'_>,
    (source, names): (Source, &BTreeSet<&str>),
) -> Result<Found, WorkloadError> {
    let workload = workloads.get(client, marks.namespace, cluster).await?;
    let nodes = workload.nodes().await?;
    let nodes: Vec<&Node> = nodes.all().map(AsRef::as_ref).collect();
    let mut identity = identify(marks, &nodes);
    if identity == Identity::Missing && source == Source::Name {
        identity = by_name(marks, names, &nodes);
    }
    match identity {
        Identity::Has { provider_id, .. } => Ok(Found::Is(provider_id)),
        Identity::Unclear(why) => Ok(Found::Not(why)),
        _ if source == Source::Provider => {
            let id = marks.provider_id();
            Ok(Found::Not(format!("Waiting for the cluster's cloud provider to give a node the provider ID {id:?}")))
        }
        Identity::Missing if source == Source::Name => {
            let names: Vec<&str> = names.iter().copied().collect();
            Ok(Found::Not(format!("Waiting for a node with the host name {}", names.join(" or "))))
        }
        Identity::Missing => {
            let uid = marks.host_uid;
            let id = marks.provider_id();
            Ok(Found::Not(format!("Waiting for a node with the label metal3.io/uuid={uid} or the provider ID {id:?}")))
        }
        Identity::Lacks { node } => {
            let id = marks.provider_id();
            let patch = json!({ "spec": { "providerID": id } });
            let api = Api::<Node>::all(workload.client().clone());
            let patched = api.patch(&node, &PatchParams::default(), &Patch::Merge(patch)).await;
            workload.node_changed().await;
            patched?;
            Ok(Found::Is(id))
        }
    }
}
