//! Applications in a cluster are asked before its nodes change: requests are made there, and locks read.
//!
//! A request is ours by its label; one of the same name that somebody else made is left alone. A cluster that has no locks is never
//! stopped: where it does not take definitions or requests, that is said only while there is a lock that holds.

use std::ops::ControlFlow;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::locks::{WorkloadLock, holds};
use crate::api::lcm::{GROUP, LCMClusterStateSpec, MaintenanceScope};
use crate::cluster::workload::{WorkloadError, pages, said};
use crate::runtime::changes::{change, delete, difference};
use crate::runtime::owners;

/// What is put into clusters: definitions, as a list of Kubernetes.
const DEFINITIONS: &str = include_str!("../../../config/workload-locks.yaml");
/// Version of all kinds here.
const VERSION: &str = "v1alpha1";
/// Label of what is ours in a cluster, and its value.
const OURS: (&str, &str) = ("app.kubernetes.io/managed-by", "slipway");
/// Who writes, for the API server there.
const MANAGER: &str = "slipway";
/// Locks that are asked for at once, and of a cluster: some for each of some hundred nodes.
const PAGE: u32 = 50;
const LOCKS_MAX: usize = 5000;
/// Locks that are told of.
const TOLD_MAX: usize = 20;

const CLUSTER_REQUEST: (&str, &str) = ("ClusterMaintenanceRequest", "clustermaintenancerequests");
const NODE_REQUEST: (&str, &str) = ("NodeMaintenanceRequest", "nodemaintenancerequests");
const NODE_DELETION: (&str, &str) = ("NodeDeletionRequest", "nodedeletionrequests");
const CLUSTER_LOCK: (&str, &str) = ("ClusterWorkloadLock", "clusterworkloadlocks");
const NODE_LOCK: (&str, &str) = ("NodeWorkloadLock", "nodeworkloadlocks");

fn resource((kind, plural): (&str, &str)) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), plural)
}

fn api(client: &Client, kind: (&str, &str)) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource(kind))
}

fn definitions() -> Vec<Value> {
    let list: Value = serde_saphyr::from_str(DEFINITIONS).unwrap_or_default();
    list["items"].as_array().cloned().unwrap_or_default()
}

/// What an API server says that refuses something for what it is; any other fault passes, or is the connection's.
fn refused(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Api(status) if matches!(status.code, 400 | 401 | 403 | 404 | 405 | 413 | 415 | 422) => {
            Some(said(error))
        }
        _ => None,
    }
}

fn is_ours(object: &DynamicObject) -> bool {
    object.labels().get(OURS.0).is_some_and(|value| value == OURS.1)
}

/// Has the definitions be there, by which applications make locks. Those that somebody else has put there stay as they are.
///
/// # Errors
///
/// When the cluster does not answer. One that refuses them has no locks.
pub(super) async fn define(client: &Client) -> Result<(), WorkloadError> {
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let resource = ApiResource::from_gvk_with_plural(&kind, "customresourcedefinitions");
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    for definition in definitions() {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default();
        let done = async {
            if api
                .get_metadata_opt(name)
                .await?
                .is_some_and(|found| found.labels().get(OURS.0).is_none_or(|value| value != OURS.1))
            {
                return Ok(());
            }
            api.patch_metadata(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&definition)).await.map(drop)
        };
        if let Err(error) = done.await {
            match refused(&error) {
                Some(reason) => {
                    tracing::info!(definition = name, reason, "a cluster does not take a definition of workload locks")
                }
                None => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Has a request be there; else why it is not, where that is for somebody to mend.
async fn ask(
    client: &Client,
    kind: (&str, &str),
    name: &str,
    (spec, node): (Value, Option<&Node>),
) -> Result<Option<String>, WorkloadError> {
    let api = api(client, kind);
    let not_there = |error: kube::Error| match refused(&error) {
        Some(reason) => Ok(Some(format!("the {} {name} cannot be made: {reason}", kind.0))),
        None => Err(error.into()),
    };
    let found = match api.get_opt(name).await {
        Ok(found) => found,
        Err(error) => return not_there(error),
    };
    let written = match found {
        Some(found) if !is_ours(&found) => {
            return Ok(Some(format!("the {} {name} is somebody else's: delete it", kind.0)));
        }
        Some(found) => match difference(&found.data["spec"], &spec) {
            Some(patch) => change(&api, &found, json!({ "spec": patch })).await,
            None => return Ok(None),
        },
        None => {
            let mut object = DynamicObject::new(name, &resource(kind)).data(json!({ "spec": spec }));
            object.labels_mut().insert(OURS.0.to_owned(), OURS.1.to_owned());
            // It goes with its node, however that goes.
            let owner = node.filter(|node| node.uid().is_some()).map(|node| owners::owner(node, false));
            object.metadata.owner_references = owner.map(|owner| vec![owner]);
            api.create(&PostParams::default(), &object).await
        }
    };
    match written {
        Ok(_) => {
            tracing::info!(request = name, kind = kind.0, spec = %spec, "applications in a cluster are asked");
            Ok(None)
        }
        Err(error) => not_there(error),
    }
}

/// Takes a request back, if it is ours.
async fn take_back(client: &Client, kind: (&str, &str), name: &str) -> Result<(), WorkloadError> {
    let api = api(client, kind);
    match api.get_opt(name).await {
        Ok(Some(found)) if is_ours(&found) => Ok(delete(&api, &found).await?),
        Err(error) if refused(&error).is_none() => Err(error.into()),
        _ => Ok(()),
    }
}

/// What locks say that hold; of many some, and how many more there are.
async fn locks(
    client: &Client,
    kind: (&'static str, &str),
    node: Option<&str>,
    release: Option<&str>,
) -> Result<Vec<String>, WorkloadError> {
    let (mut held, mut more) = (Vec::new(), 0_usize);
    let listed = pages(&api(client, kind), &ListParams::default(), (PAGE, LOCKS_MAX), |object| {
        let lock = WorkloadLock::read(kind.0, &object);
        if node.is_none_or(|node| lock.node == node)
            && let Some(reason) = holds(&lock, release)
        {
            if held.len() < TOLD_MAX { held.push(reason) } else { more += 1 }
        }
        ControlFlow::Continue(())
    })
    .await;
    match listed {
        // Whoever knows no such kind has no locks.
        Err(WorkloadError::Api(kube::Error::Api(status))) if status.is_not_found() => return Ok(Vec::new()),
        listed => listed?,
    }
    if more > 0 {
        held.push(format!("{more} more locks"));
    }
    Ok(held)
}

/// What is wrong with the request, where there are locks that hold, and those.
fn with_fault(mut held: Vec<String>, fault: Option<String>) -> Vec<String> {
    if let Some(fault) = fault.filter(|_| !held.is_empty()) {
        held.insert(0, fault);
    }
    held
}

fn maintenance(asked: &LCMClusterStateSpec) -> (Option<&str>, MaintenanceScope) {
    let release = Some(asked.release.as_str()).filter(|release| !release.is_empty());
    (release, asked.scope.unwrap_or_default())
}

/// Asks the applications of a cluster to be ready for another release, or for reboots: who is not, and what to do.
///
/// # Errors
///
/// When the cluster does not answer, or lists too much.
pub(super) async fn ask_cluster(client: &Client, asked: &LCMClusterStateSpec) -> Result<Vec<String>, WorkloadError> {
    // Once for an update, and not in each round of a wait.
    if api(client, CLUSTER_REQUEST).get_metadata_opt(&asked.cluster_name).await?.is_none() {
        define(client).await?;
    }
    let (release, scope) = maintenance(asked);
    let spec = json!({"scope": scope, "release": asked.release});
    let fault = ask(client, CLUSTER_REQUEST, &asked.cluster_name, (spec, None)).await?;
    Ok(with_fault(locks(client, CLUSTER_LOCK, None, release).await?, fault))
}

/// The cluster's applications need not be ready any more.
///
/// # Errors
///
/// When the cluster does not answer.
pub(super) async fn leave_cluster(client: &Client, asked: &LCMClusterStateSpec) -> Result<(), WorkloadError> {
    define(client).await?;
    take_back(client, CLUSTER_REQUEST, &asked.cluster_name).await
}

/// Asks the applications on a node to let go of it: who does not, and what to do.
///
/// # Errors
///
/// When the cluster does not answer, or lists too much.
pub(super) async fn ask_node(
    client: &Client,
    node: &Node,
    asked: &LCMClusterStateSpec,
) -> Result<Vec<String>, WorkloadError> {
    let name = node.name_any();
    let (release, scope) = maintenance(asked);
    if scope == MaintenanceScope::Deletion {
        let fault = ask(client, NODE_DELETION, &name, (json!({ "nodeName": name }), Some(node))).await?;
        return Ok(with_fault(locks(client, NODE_LOCK, Some(&name), None).await?, fault));
    }
    // Whoever was to leave stays.
    take_back(client, NODE_DELETION, &name).await?;
    let spec = json!({"nodeName": name, "scope": scope, "release": asked.release});
    let fault = ask(client, NODE_REQUEST, &name, (spec, Some(node))).await?;
    let mut held = locks(client, CLUSTER_LOCK, None, release).await?;
    held.extend(locks(client, NODE_LOCK, Some(&name), release).await?);
    Ok(with_fault(held, fault))
}

/// The applications on a node may use it again.
///
/// # Errors
///
/// When the cluster does not answer.
pub(super) async fn leave_node(client: &Client, node: &str) -> Result<(), WorkloadError> {
    take_back(client, NODE_REQUEST, node).await?;
    take_back(client, NODE_DELETION, node).await
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

    use super::*;

    #[test]
    fn the_definitions_are_of_the_kinds_that_are_used() {
        let all: Vec<CustomResourceDefinition> =
            definitions().into_iter().map(|one| serde_json::from_value(one).unwrap()).collect();
        let mut named: Vec<(String, String)> =
            all.iter().map(|one| (one.spec.names.kind.clone(), one.spec.names.plural.clone())).collect();
        named.sort();
        let mut used = [CLUSTER_REQUEST, NODE_REQUEST, NODE_DELETION, CLUSTER_LOCK, NODE_LOCK]
            .map(|(kind, plural)| (kind.to_owned(), plural.to_owned()));
        used.sort();
        assert_eq!(named, used);
        for one in all {
            let spec = &one.spec;
            assert_eq!(one.name_any(), format!("{}.{GROUP}", spec.names.plural));
            assert_eq!((spec.scope.as_str(), spec.versions[0].name.as_str()), ("Cluster", VERSION));
            assert_eq!(one.labels()[OURS.0], OURS.1);
            let has_status = spec.versions[0].subresources.as_ref().is_some_and(|all| all.status.is_some());
            assert_eq!(has_status, spec.names.kind.ends_with("Lock"), "{}", spec.names.kind);
        }
    }

    #[test]
    fn what_a_fault_is_said_only_where_a_lock_holds() {
        let fault = || Some("the NodeMaintenanceRequest n is somebody else's".to_owned());
        assert_eq!(with_fault(Vec::new(), fault()), Vec::<String>::new());
        assert_eq!(with_fault(vec!["x".into()], fault()).len(), 2);
        assert_eq!(with_fault(vec!["x".into()], None), ["x"]);
    }
}
