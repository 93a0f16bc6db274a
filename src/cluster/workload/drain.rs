//! Draining of a node: it takes no more pods, and those that are there are evicted, as their disruption budgets allow.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, PodSpec, PodStatus, Volume};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::{PAGES_MAX, WorkloadError, said};
use crate::api::cluster::keys::LABEL_DRAIN;

/// Pods that are asked for at once, and evicted of one node in one round.
const PAGE: u32 = 16;
/// Pods of one node that are looked at.
const PODS_MAX: usize = 2000;
/// Evictions that are under way at once.
const AT_ONCE: usize = 2;
/// Volumes of one pod that are looked at.
const CLAIMS_MAX: usize = 50;
/// Of a pod that is a file of its node.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Volume attachments that are looked at.
const ATTACHMENTS_MAX: usize = 50_000;
/// Volumes of one node that are remembered.
const ATTACHED_MAX: usize = 1000;
/// Bytes of a name.
const NAME_MAX: usize = 253;
/// On a node that does not answer nobody ends a pod and says so: its time to end is this many seconds, and is waited for so long again.
const GRACE_SECONDS: u32 = 1;

/// What is done about a pod of a node that is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Treatment {
    /// It stays: it goes with the node.
    Leave,
    /// It is evicted.
    Evict,
    /// It goes already, or ends by itself.
    Wait,
}

/// What is done about a pod. Pure.
fn treat(pod: &Pod, silent: bool, now: Timestamp) -> Treatment {
    let mirrored = pod.annotations().contains_key(MIRROR);
    let of_daemon = pod.owner_references().iter().any(|owner| {
        owner.controller == Some(true) && owner.kind == "DaemonSet" && owner.api_version.starts_with("apps/")
    });
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let over = matches!(phase, "Succeeded" | "Failed");
    let own = pod.labels().get(LABEL_DRAIN).map(|value| value.to_ascii_lowercase());
    if mirrored || of_daemon && !over || own.as_deref() == Some("skip") {
        return Treatment::Leave;
    }
    if let Some(deleted) = &pod.metadata.deletion_timestamp {
        // The timestamp is when its time to end is over.
        let long = silent && now.duration_since(deleted.0) > SignedDuration::from_secs(GRACE_SECONDS.into());
        return if long { Treatment::Leave } else { Treatment::Wait };
    }
    if own.as_deref() == Some("wait-completed") && !over { Treatment::Wait } else { Treatment::Evict }
}

/// How far a drain is: empty when it is done, else what is waited for. Each call goes one round further.
///
/// # Errors
///
/// When the cluster does not answer, or lists too much.
pub async fn drain(client: &Client, node: &Node, now: Timestamp) -> Result<Vec<String>, WorkloadError> {
    let name = node.name_any();
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) != Some(true) {
        let cordon = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
        match Api::<Node>::all(client.clone()).patch(&name, &PatchParams::default(), &cordon).await {
            Err(kube::Error::Api(error)) if error.is_not_found() => return Ok(Vec::new()),
            patched => drop(patched?),
        }
    }
    let silent = is_silent(node);
    let pods = pods(client, &name).await?;
    let (mut waiting, mut evicted) = (Vec::new(), Vec::new());
    for pod in &pods {
        match treat(pod, silent, now) {
            Treatment::Leave => {}
            Treatment::Wait => waiting.push(format!("{} goes", title(pod))),
            Treatment::Evict => evicted.push(pod),
        }
    }
    let more = evicted.len().saturating_sub(PAGE as usize);
    evicted.truncate(PAGE as usize);
    let evictions: Vec<_> = evicted.into_iter().map(|pod| evict(client.clone(), pod.clone(), silent)).collect();
    let results: Vec<Option<Result<String, WorkloadError>>> = stream::iter(evictions).buffered(AT_ONCE).collect().await;
    for result in results.into_iter().flatten() {
        waiting.push(result?);
    }
    if more > 0 {
        waiting.push(format!("{more} more pods"));
    }
    Ok(waiting)
}

/// Lets pods onto a node again. One that is gone is well.
///
/// # Errors
///
/// When the cluster does not answer.
pub async fn uncordon(client: &Client, node: &str) -> Result<(), WorkloadError> {
    let patch = Patch::Merge(json!({ "spec": { "unschedulable": null } }));
    match Api::<Node>::all(client.clone()).patch(node, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
        patched => {
            patched?;
            Ok(())
        }
    }
}

/// Evicts a pod: nothing when it is gone, else what is waited for.
async fn evict(client: Client, pod: Pod, silent: bool) -> Option<Result<String, WorkloadError>> {
    let api = Api::<Pod>::namespaced(client, &pod.namespace().unwrap_or_default());
    let options = DeleteParams { grace_period_seconds: silent.then_some(GRACE_SECONDS), ..DeleteParams::default() };
    let params = EvictParams { delete_options: Some(options), ..EvictParams::default() };
    match api.evict(&pod.name_any(), &params).await {
        Ok(_) => Some(Ok(format!("{} goes", title(&pod)))),
        Err(kube::Error::Api(error)) if error.is_not_found() => None,
        // Its disruption budget, its namespace that goes, or rules of the cluster.
        Err(error @ kube::Error::Api(_)) => Some(Ok(format!("{} stays: {}", title(&pod), said(&error)))),
        Err(error) => Some(Err(error.into())),
    }
}

/// Volumes that are still attached to a node, but for those of pods that stay there.
///
/// # Errors
///
/// When the cluster does not answer, or lists too much.
pub async fn volumes(client: &Client, node: &Node, now: Timestamp) -> Result<Vec<String>, WorkloadError> {
    let name = node.name_any();
    let api = Api::<VolumeAttachment>::all(client.clone());
    let (mut attached, mut seen, mut pages, mut rest) = (BTreeSet::new(), 0, 0, None);
    loop {
        pages += 1;
        let params = ListParams { limit: Some(100), continue_token: rest, ..ListParams::default() };
        let page = api.list(&params).await?;
        seen += page.items.len();
        if seen > ATTACHMENTS_MAX || pages > PAGES_MAX {
            return Err(WorkloadError::TooMany { most: ATTACHMENTS_MAX });
        }
        let here = page.items.into_iter().filter(|one| one.spec.node_name == name);
        let names = here.filter_map(|one| one.spec.source.persistent_volume_name).filter(|name| name.len() <= NAME_MAX);
        attached.extend(names.take(ATTACHED_MAX.saturating_sub(attached.len())));
        rest = page.metadata.continue_.filter(|token| !token.is_empty());
        if rest.is_none() {
            break;
        }
    }
    if attached.is_empty() {
        return Ok(Vec::new());
    }
    let silent = is_silent(node);
    for pod in pods(client, &name).await?.iter().filter(|pod| treat(pod, silent, now) == Treatment::Leave) {
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        for claim in claimed(pod) {
            let claim = claims.get_opt(&claim).await?;
            if let Some(volume) = claim.and_then(|claim| claim.spec?.volume_name) {
                attached.remove(&volume);
            }
        }
    }
    Ok(attached.into_iter().take(20).collect())
}

fn claimed(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone()))
        .take(CLAIMS_MAX)
        .collect()
}

/// Whether the node's kubelet says nothing any more.
pub fn is_silent(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == "Unknown")
}

async fn pods(client: &Client, node: &str) -> Result<Vec<Pod>, WorkloadError> {
    let api = Api::<Pod>::all(client.clone());
    let (mut pods, mut pages, mut rest) = (Vec::new(), 0, None);
    loop {
        pages += 1;
        let params = ListParams { limit: Some(PAGE), continue_token: rest, ..ListParams::default() };
        let page = api.list(&params.fields(&format!("spec.nodeName={node}"))).await?;
        pods.extend(page.items.into_iter().map(slim));
        rest = page.metadata.continue_.filter(|token| !token.is_empty());
        if pods.len() > PODS_MAX || pages > PAGES_MAX {
            return Err(WorkloadError::TooMany { most: PODS_MAX });
        }
        if rest.is_none() {
            return Ok(pods);
        }
    }
}

/// What of a pod is looked at here, and no more: who answers may put much into each of very many.
fn slim(pod: Pod) -> Pod {
    let Pod { metadata, spec, status } = pod;
    let short = |text: Option<String>| text.filter(|text| text.len() <= NAME_MAX);
    // Made anew: a list that is only filtered keeps its room.
    let mut volumes = Vec::new();
    let all = spec.and_then(|spec| spec.volumes).unwrap_or_default().into_iter();
    let claims =
        all.filter_map(|volume| volume.persistent_volume_claim).filter(|claim| claim.claim_name.len() <= NAME_MAX);
    volumes.extend(
        claims.take(CLAIMS_MAX).map(|claim| Volume { persistent_volume_claim: Some(claim), ..Volume::default() }),
    );
    let kept = |all: Option<BTreeMap<String, String>>, key: &str| {
        all.and_then(|mut all| all.remove_entry(key))
            .filter(|(_, value)| value.len() <= NAME_MAX)
            .map(|one| [one].into())
    };
    let owner = metadata.owner_references.into_iter().flatten().find(|owner| owner.controller == Some(true));
    let metadata = ObjectMeta {
        name: short(metadata.name),
        namespace: short(metadata.namespace),
        uid: short(metadata.uid),
        deletion_timestamp: metadata.deletion_timestamp,
        labels: kept(metadata.labels, LABEL_DRAIN),
        annotations: kept(metadata.annotations, MIRROR),
        owner_references: owner.map(|owner| {
            vec![OwnerReference {
                api_version: short(Some(owner.api_version)).unwrap_or_default(),
                kind: short(Some(owner.kind)).unwrap_or_default(),
                controller: Some(true),
                ..OwnerReference::default()
            }]
        }),
        ..ObjectMeta::default()
    };
    let phase = short(status.and_then(|status| status.phase));
    Pod {
        metadata,
        spec: Some(PodSpec { volumes: Some(volumes), ..PodSpec::default() }),
        status: Some(PodStatus { phase, ..PodStatus::default() }),
    }
}

fn title(pod: &Pod) -> String {
    format!("pod {}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn pods_are_evicted_but_for_those_that_go_with_the_node() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let daemon =
            json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1", "controller": true}]);
        let rows = [
            (json!({"metadata": {}}), false, Treatment::Evict),
            (json!({"metadata": {"ownerReferences": daemon}}), false, Treatment::Leave),
            (json!({"metadata": {"ownerReferences": daemon}, "status": {"phase": "Failed"}}), false, Treatment::Evict),
            (json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}), false, Treatment::Leave),
            (json!({"metadata": {"labels": {LABEL_DRAIN: "Skip"}}}), false, Treatment::Leave),
            (json!({"metadata": {"labels": {LABEL_DRAIN: "wait-completed"}}}), false, Treatment::Wait),
            (
                json!({"metadata": {"labels": {LABEL_DRAIN: "wait-completed"}}, "status": {"phase": "Succeeded"}}),
                false,
                Treatment::Evict,
            ),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T01:00:30Z"}}), true, Treatment::Wait),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:59:59Z"}}), true, Treatment::Wait),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:59:58Z"}}), true, Treatment::Leave),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:30:00Z"}}), false, Treatment::Wait),
        ];
        for (value, silent, wanted) in rows {
            assert_eq!(treat(&pod(value.clone()), silent, now), wanted, "{value}");
        }
    }
}
