//! What is done once all machines are there: what runs on all nodes follows the version, and it is noted when certificates end.

use kube::ResourceExt;
use serde_json::json;

use super::budget::ReconcileBudget;
use super::controller::ControlPlaneFindings;
use super::fault::ControlPlaneFault;
use super::inside;
use super::scope::ControlPlaneScope;
use crate::api::control_plane::{ANNOTATION_SKIP_COREDNS, ANNOTATION_SKIP_KUBE_PROXY};
use crate::cluster::contract::ReferencedObjects;
use crate::cluster::workload::Workload;
use crate::runtime::conditions;

/// Annotation of a KubeadmConfig: when the certificates of its machine end.
const ANNOTATION_EXPIRY: &str = "machine.cluster.x-k8s.io/certificates-expiry";

/// Brings the addons of a cluster to what its control plane says, and looks at its certificates.
///
/// # Errors
///
/// What the appliance's own API says. What the cluster refuses is among the findings: the control plane is well all the same.
pub(super) async fn settle(
    objects: &ReferencedObjects,
    scope: &ControlPlaneScope,
    workload: &Workload,
    budget: ReconcileBudget,
    findings: &mut ControlPlaneFindings,
) -> Result<(), ControlPlaneFault> {
    let skips = |annotation: &str| scope.plane.annotations().contains_key(annotation);
    let mut faults = Vec::new();
    if !skips(ANNOTATION_SKIP_KUBE_PROXY) {
        faults.extend(budget.within(inside::update_kube_proxy(workload, &scope.spec)).await.err());
    }
    if !skips(ANNOTATION_SKIP_COREDNS) {
        faults.extend(budget.within(inside::update_coredns(workload, &scope.spec)).await.err());
    }
    expiries(objects, scope, workload, budget).await?;
    for reason in &faults {
        // The condition says it, too, and this is seen at each look.
        let plane = crate::log::named(&scope.namespace(), &scope.plane.name_any()).to_string();
        tracing::debug!(plane, reason = reason, "an addon of a cluster is not as its control plane says");
    }
    findings.blocked = findings.blocked.take().or_else(|| faults.into_iter().next());
    Ok(())
}

/// Notes when the certificates of each machine end, once.
async fn expiries(
    objects: &ReferencedObjects,
    scope: &ControlPlaneScope,
    workload: &Workload,
    budget: ReconcileBudget,
) -> Result<(), ControlPlaneFault> {
    for owned in &scope.owned {
        let (Some(node), Some(config), Some(told)) = (owned.node(), &owned.config, owned.told) else { continue };
        if config.object.annotations().contains_key(ANNOTATION_EXPIRY)
            || owned.machine.metadata.deletion_timestamp.is_some()
        {
            continue;
        }
        let (namespace, cluster) = (scope.namespace(), scope.name_of_cluster());
        let of = (namespace.as_str(), cluster.as_str());
        let asked = inside::certificate_end(objects.client(), workload, of, &node, told.port);
        match budget.within(asked).await {
            Ok(ends) => {
                let patch = json!({"metadata": {"annotations": {ANNOTATION_EXPIRY: conditions::whole(ends)}}});
                objects.patch(config, &patch).await?;
            }
            // The others most likely neither, and each takes its time.
            Err(reason) => {
                tracing::debug!(cluster = %crate::log::named(&namespace, &cluster), node, reason = reason, "cannot see when the certificates of a machine end");
                break;
            }
        }
    }
    Ok(())
}
