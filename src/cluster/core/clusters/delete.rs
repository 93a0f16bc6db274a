//! How a cluster goes: first what its machines come from, then its workers, then the control plane, then what it all runs on. Each
//! is waited for.
//!
//! What belongs to a cluster is what says so in `spec.clusterName`, which nobody can change. The label
//! `cluster.x-k8s.io/cluster-name` is made of it, and counts for nothing here: whoever writes a wrong one keeps no cluster from going,
//! has nothing left behind, and nothing of another cluster deleted.

use std::collections::HashSet;

use kube::api::Api;
use kube::runtime::controller::Action;

use super::status::is_control_plane;
use super::{ClusterParts, ClusterReconciler, owner};
use crate::api::cluster::keys::FINALIZER_CLUSTER;
use crate::api::cluster::v1beta2::{Cluster, Machine, MachineDeployment, MachineSet};
use crate::cluster::core::kit::CoreFault;
use crate::cluster::core::seen::{NamedObject, ReferenceRole};
use crate::runtime::conditions::ConditionVerdict;
use crate::runtime::{ObjectKey, changes, objects, owners};

/// What goes next, and is waited for.
#[derive(Debug, PartialEq, Eq)]
enum DeletionStep {
    /// These MachineDeployments, MachineSets and Machines, which no other object deletes.
    Workers { deployments: Vec<String>, sets: Vec<String>, machines: Vec<String> },
    /// The control plane's object.
    ControlPlane,
    /// Machines of a control plane that has no object.
    Planes(Vec<String>),
    /// What the cluster runs on.
    Infrastructure,
    /// Nothing is left.
    Nothing,
}

/// What goes next. An object that another of these controls goes with it; whatever else controls one would not have it go.
fn next(parts: &ClusterParts, control_plane: bool, infrastructure: bool) -> DeletionStep {
    let keepers = parts.deployments.iter().map(|one| &one.metadata).chain(parts.sets.iter().map(|one| &one.metadata));
    let keepers: HashSet<&str> = keepers.filter_map(|meta| meta.uid.as_deref()).collect();
    let free = |meta: &kube::core::ObjectMeta| {
        owners::controller(meta).is_none_or(|owner| !keepers.contains(owner.uid.as_str()))
    };
    let name = |meta: &kube::core::ObjectMeta| meta.name.clone().unwrap_or_default();
    let (planes, workers): (Vec<_>, Vec<_>) = parts.machines.iter().partition(|machine| is_control_plane(machine));
    if !parts.deployments.is_empty() || !parts.sets.is_empty() || !workers.is_empty() {
        return DeletionStep::Workers {
            deployments: parts.deployments.iter().map(|one| name(&one.metadata)).collect(),
            sets: parts.sets.iter().filter(|one| free(&one.metadata)).map(|one| name(&one.metadata)).collect(),
            machines: workers.iter().filter(|one| free(&one.metadata)).map(|one| name(&one.metadata)).collect(),
        };
    }
    if control_plane {
        return DeletionStep::ControlPlane;
    }
    if !planes.is_empty() {
        // Whoever owned them is gone.
        return DeletionStep::Planes(planes.iter().map(|one| name(&one.metadata)).collect());
    }
    if infrastructure { DeletionStep::Infrastructure } else { DeletionStep::Nothing }
}

impl ClusterReconciler {
    pub(super) async fn delete(
        &self,
        api: &Api<Cluster>,
        cluster: Cluster,
        key: &ObjectKey,
    ) -> Result<Action, CoreFault> {
        let Self(kit) = self;
        let infrastructure = NamedObject::find(
            &kit.objects,
            &key.0,
            ReferenceRole::Infrastructure,
            cluster.spec.infrastructure_ref.as_ref(),
        )
        .await?;
        let control_plane = NamedObject::find(
            &kit.objects,
            &key.0,
            ReferenceRole::ControlPlane,
            cluster.spec.control_plane_ref.as_ref(),
        )
        .await?;
        let parts = ClusterParts::of(kit, key);
        let owner = owner(&cluster);
        let step = next(&parts, control_plane.own(&owner).is_some(), infrastructure.own(&owner).is_some());
        let (namespace, name) = key;
        let verdict = match &step {
            DeletionStep::Workers { deployments, sets, machines } => {
                self.delete_all::<MachineDeployment>(namespace, deployments).await?;
                self.delete_all::<MachineSet>(namespace, sets).await?;
                self.delete_all::<Machine>(namespace, machines).await?;
                ConditionVerdict {
                    message: format!(
                        "waiting for {} MachineDeployments, {} MachineSets, {} Machines",
                        parts.deployments.len(),
                        parts.sets.len(),
                        parts.machines.iter().filter(|machine| !is_control_plane(machine)).count()
                    ),
                    ..ConditionVerdict::yes("WaitingForWorkersDeletion")
                }
            }
            DeletionStep::ControlPlane | DeletionStep::Infrastructure => {
                let named = if step == DeletionStep::ControlPlane { &control_plane } else { &infrastructure };
                if let Some(found) = named.own(&owner) {
                    kit.objects.delete(found).await?;
                }
                let (reason, what) = match step {
                    DeletionStep::ControlPlane => {
                        ("WaitingForControlPlaneDeletion", cluster.spec.control_plane_ref.as_ref())
                    }
                    _ => ("WaitingForInfrastructureDeletion", cluster.spec.infrastructure_ref.as_ref()),
                };
                let what = what.map(|what| format!("waiting for {} {:?}", what.kind, what.name)).unwrap_or_default();
                ConditionVerdict { message: what, ..ConditionVerdict::yes(reason) }
            }
            DeletionStep::Planes(machines) => {
                self.delete_all::<Machine>(namespace, machines).await?;
                let message = format!("waiting for {} Machines", machines.len());
                ConditionVerdict { message, ..ConditionVerdict::yes("WaitingForControlPlaneDeletion") }
            }
            // What is known may be behind: somebody made a machine in between.
            DeletionStep::Nothing if self.is_any_left(namespace, name).await? => ConditionVerdict {
                message: "looking for what is left".into(),
                ..ConditionVerdict::yes("WaitingForWorkersDeletion")
            },
            DeletionStep::Nothing => {
                objects::release(api, &cluster, FINALIZER_CLUSTER).await?;
                kit.workloads.forget(namespace, name);
                return Ok(Action::await_change());
            }
        };
        self.say(api, &cluster, key, &infrastructure, &control_plane, Some(verdict)).await?;
        Ok(Action::requeue(kit.pause))
    }

    async fn is_any_left(&self, namespace: &str, cluster: &str) -> Result<bool, CoreFault> {
        let kit = &self.0;
        let left = kit.listed::<Machine>(namespace, |one| one.spec.cluster_name == cluster).await?.len()
            + kit.listed::<MachineSet>(namespace, |one| one.spec.cluster_name == cluster).await?.len()
            + kit.listed::<MachineDeployment>(namespace, |one| one.spec.cluster_name == cluster).await?.len();
        Ok(left > 0)
    }

    async fn delete_all<K>(&self, namespace: &str, names: &[String]) -> Result<(), CoreFault>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let api = self.0.api::<K>(namespace);
        for name in names {
            let Some(object) = api.get_opt(name).await? else { continue };
            changes::delete(&api, &object).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::api::cluster::keys::LABEL_CONTROL_PLANE;

    /// A machine that is controlled by the object of this UID.
    fn machine(name: &str, plane: bool, keeper: Option<&str>) -> Arc<Machine> {
        let mut machine = Machine::new(name, Default::default());
        if plane {
            machine.metadata.labels = Some([(LABEL_CONTROL_PLANE.to_owned(), String::new())].into());
        }
        if let Some(uid) = keeper {
            let mut owner = Machine::new("o", Default::default());
            owner.metadata.uid = Some(uid.to_owned());
            machine.metadata.owner_references = Some(vec![owners::owner(&owner, true)]);
        }
        Arc::new(machine)
    }

    #[test]
    fn workers_go_before_the_control_plane_and_that_before_what_it_runs_on() {
        let parts = |machines: &[Arc<Machine>], sets: bool| {
            let mut set = MachineSet::new("s", Default::default());
            set.metadata.uid = Some("set".into());
            let sets = if sets { vec![Arc::new(set)] } else { Vec::new() };
            ClusterParts { machines: machines.to_vec(), sets, deployments: Vec::new() }
        };
        let (free, owned) = (machine("free", false, None), machine("owned", false, Some("set")));
        let (plane, foreign) = (machine("plane", true, None), machine("foreign", false, Some("other")));
        let workers = |sets: &[&str], machines: &[&str]| DeletionStep::Workers {
            deployments: Vec::new(),
            sets: sets.iter().map(|name| (*name).to_owned()).collect(),
            machines: machines.iter().map(|name| (*name).to_owned()).collect(),
        };
        let rows = [
            (parts(&[free.clone(), owned.clone(), plane.clone()], true), true, true, workers(&["s"], &["free"])),
            // Whatever controls them does not have them go: nobody else would.
            (parts(&[foreign, plane.clone()], true), true, true, workers(&["s"], &["foreign"])),
            (parts(&[owned, plane.clone()], false), true, true, workers(&[], &["owned"])),
            (parts(std::slice::from_ref(&plane), false), true, true, DeletionStep::ControlPlane),
            (parts(&[plane], false), false, true, DeletionStep::Planes(vec!["plane".into()])),
            (parts(&[], false), true, true, DeletionStep::ControlPlane),
            (parts(&[], false), false, true, DeletionStep::Infrastructure),
            (parts(&[], false), false, false, DeletionStep::Nothing),
        ];
        for (parts, control_plane, infrastructure, wanted) in rows {
            assert_eq!(next(&parts, control_plane, infrastructure), wanted);
        }
    }
}
