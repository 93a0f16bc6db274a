//! A control plane that goes: after the workers, with all of its machines at once.
//!
//! Nothing is asked of the cluster, which may be dead: where all members of etcd go, none has to leave before.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::runtime::controller::Action;

use super::controller::{ControlPlaneFindings, ControlPlaneReconciler, report};
use super::fault::ControlPlaneFault;
use super::scope::{Owned, machines};
use super::status::{Deleting, ShownMachine, slow};
use super::{desired, make};
use crate::api::cluster::GROUP;
use crate::api::cluster::LABEL_CLUSTER;
use crate::api::cluster::keys::LABEL_CONTROL_PLANE;
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::api::control_plane::FINALIZER;
use crate::api::control_plane::v1beta2::KubeadmControlPlane;
use crate::runtime::changes::write_status;
use crate::runtime::{objects, owners};

/// Workers that are looked for: one is enough to wait.
const WORKERS: u32 = 50;
/// Names of workers that a message has.
const NAMED: usize = 5;

/// The next step of a deletion.
pub(super) async fn delete(
    keeper: &ControlPlaneReconciler,
    plane: &KubeadmControlPlane,
    of: Option<&Cluster>,
) -> Result<Action, ControlPlaneFault> {
    let namespace = plane.namespace().unwrap_or_default();
    let owner = owners::of_kind(&plane.metadata, GROUP, "Cluster").map(|owner| owner.name.clone());
    let cluster = owner.or_else(|| plane.labels().get(LABEL_CLUSTER).cloned());
    let uid = plane.uid().unwrap_or_default();
    let labels = match &cluster {
        Some(cluster) => format!("{LABEL_CLUSTER}={cluster},{LABEL_CONTROL_PLANE}"),
        // It never was of a cluster: whatever it made has its label.
        None => LABEL_CONTROL_PLANE.to_owned(),
    };
    let mut ours = machines(&keeper.objects, &namespace, &labels, usize::MAX).await?;
    ours.retain(|machine| owners::is_owned(&machine.metadata, &uid));
    let planes = keeper.planes(&namespace);
    if ours.is_empty() {
        objects::release(&planes, plane, FINALIZER).await?;
        return Ok(Action::await_change());
    }
    let workers = match &cluster {
        Some(cluster) => {
            let labels = format!("{LABEL_CLUSTER}={cluster},!{LABEL_CONTROL_PLANE}");
            let params = ListParams::default().labels(&labels).limit(WORKERS);
            let some = Api::<Machine>::namespaced(keeper.objects.client().clone(), &namespace).list(&params).await?;
            some.iter().map(ResourceExt::name_any).collect()
        }
        None => Vec::<String>::new(),
    };
    let owned: Vec<Owned> =
        ours.into_iter().map(|machine| Owned { machine, told: None, config: None, infrastructure: None }).collect();
    let shown: Vec<ShownMachine> = owned.iter().map(Owned::shown).collect();
    let deleting = if workers.is_empty() {
        for owned in &owned {
            make::release(&keeper.objects, &owned.machine).await?;
            make::delete(&keeper.objects, &owned.machine).await?;
        }
        let mut message = format!("Deleting {} Machines", owned.len());
        message.extend(slow(&shown, Timestamp::now()).map(|slow| format!("; {slow}")));
        Deleting { reason: "WaitingForMachineDeletion", message }
    } else {
        let named = workers.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = workers.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        Deleting {
            reason: "WaitingForWorkersDeletion",
            message: format!("Waiting for Machines {named}{more} to be deleted first"),
        }
    };
    let spec = serde_json::to_value(&plane.spec).map_err(kube::Error::SerdeError)?;
    let initialized = plane.status.as_ref().and_then(|status| status.initialization.as_ref());
    let findings = ControlPlaneFindings {
        initialized: initialized.and_then(|done| done.control_plane_initialized).unwrap_or(false),
        shown,
        contact: Some(super::health::Contact::Seen(Box::default())),
        deleting: Some(deleting),
        ..ControlPlaneFindings::default()
    };
    let cluster = cluster.unwrap_or_default();
    let status = report(plane, of, &cluster, 0, desired::etcd_managed(&spec), &findings);
    write_status(&planes, plane, plane.status.as_ref(), &status).await?;
    Ok(Action::requeue(keeper.times.pause.min(Duration::from_secs(15))))
}
