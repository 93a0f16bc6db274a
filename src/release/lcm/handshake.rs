//! A cluster's applications as a whole: asked before the first of its nodes is drained, and let go when none is to change any more.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use serde_json::json;

use super::clusters::{ClusterLook, Fault, Keeper};
use super::locks::{self, ClusterNeeds};
use super::order::{MachineTurn, Reboot};
use super::survey::Machine;
use crate::api::lcm::{
    LCMCluster, LCMClusterSpec, LCMClusterState, LCMClusterStateSpec, MachineRole, MaintenanceScope,
};
use crate::runtime::changes::{change, delete, difference};
use crate::runtime::owners;

/// Whether a node changes with its pods gone, or is about to. One in maintenance may stay as it is for long.
fn changes(one: &Machine) -> bool {
    let member = &one.member;
    let drained = one.request.as_ref().is_some_and(|request| request.spec.scope != Some(MaintenanceScope::Deletion));
    let is_open = member.was_deployed && (!member.deploy.handed || member.is_behind);
    member.role != MachineRole::Bastion
        && !member.leaving
        && (drained || !member.held && (is_open || member.reboot != Reboot::None))
}

impl Keeper {
    /// Keeps what is asked of a cluster's applications.
    ///
    /// # Errors
    ///
    /// What the API says.
    pub(super) async fn maintain(&self, look: &ClusterLook<'_>) -> Result<(), Fault> {
        if !look.survey.kubeadm || !look.survey.rules.initialized {
            return Ok(());
        }
        let cluster = look.cluster.name_any();
        let needs = ClusterNeeds {
            asked: look.asked.as_ref().map(|one| &one.spec),
            wanted: look.turns.iter().any(|turn: &MachineTurn| turn.asks),
            under_way: look.survey.machines.iter().any(changes),
            reachable: look
                .survey
                .machines
                .iter()
                .any(|one| one.member.role == MachineRole::Control && one.member.was_deployed && one.member.ready),
            scope: look.survey.scope,
            release: &look.cluster.spec.release,
        };
        let Some(wish) = locks::cluster_wish(&cluster, &needs) else { return Ok(()) };
        let api = Api::<LCMClusterState>::namespaced(self.client.clone(), look.namespace);
        if let Some(asked) = &look.asked {
            let patch = difference(&json!(asked.spec), &json!(wish)).unwrap_or_default();
            change(&api, asked.as_ref(), json!({ "spec": patch })).await?;
            return Ok(());
        }
        let name = locks::cluster_name(&cluster);
        let mut owner = LCMCluster::new(&cluster, LCMClusterSpec::default());
        owner.metadata.uid = look.cluster.uid();
        self.make_request(look.namespace, &name, owners::owner(&owner, false), wish).await
    }

    /// Makes a request that goes with its owner. One of this name that is not its is of an object that had its owner's name before.
    ///
    /// # Errors
    ///
    /// What the API says.
    pub(super) async fn make_request(
        &self,
        namespace: &str,
        name: &str,
        owner: OwnerReference,
        spec: LCMClusterStateSpec,
    ) -> Result<(), Fault> {
        let api = Api::<LCMClusterState>::namespaced(self.client.clone(), namespace);
        let old = self.requests.get(&(namespace.to_owned(), name.to_owned()));
        if let Some(old) = old.filter(|old| !owners::is_owned(&old.metadata, &owner.uid)) {
            delete(&api, old.as_ref()).await?;
        }
        let mut request = LCMClusterState::new(name, spec);
        request.metadata.namespace = Some(namespace.to_owned());
        request.metadata.owner_references = Some(vec![owner]);
        api.create(&PostParams::default(), &request).await?;
        Ok(())
    }
}
