//! A machine that goes: its host is let go, then what it claimed.

use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use tracing::info;

use super::draft::{HOST, Metal3MachineDraft, NODE};
use super::wait::reuse;
use super::{Metal3MachineError, Metal3MachineReconciler, data, template};
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::cluster::hosts::patches::{self, HostInstructions, Keep, ReleaseProgress};
use crate::cluster::hosts::{HostTaker, change};
use crate::log::named;
use crate::runtime::conditions::{ConditionVerdict, Severity};

/// How often a host is looked at that is not through yet, if it says nothing.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

impl Metal3MachineReconciler {
    /// Lets go whatever the machine has. True when nothing is left, and the machine with it.
    pub(super) async fn release(
        &self,
        draft: &mut Metal3MachineDraft,
        owner: Option<&Machine>,
        cluster: Option<&Cluster>,
    ) -> Result<Option<Action>, Metal3MachineError> {
        self.hosts.forget(&draft.id());
        draft.say(NODE, &ConditionVerdict::no("Deleting", ""), Severity::Info);
        // A machine of another server's making may have a host that it has not noted.
        let name = draft.host().or_else(|| self.hosts.of(&draft.id()));
        let found = match &name {
            Some(name) => self.hosts_of(&draft.new).get_opt(name).await?,
            None => None,
        };
        if let Some(found) = found {
            let keep = self.keep(draft, owner, cluster).await?;
            let cluster = owner.map(|owner| owner.spec.cluster_name.as_str());
            let status = draft.new.status.clone().unwrap_or_default();
            let told = HostInstructions {
                user_data: status.user_data.as_ref(),
                meta_data: status.meta_data.as_ref(),
                network_data: status.network_data.as_ref(),
            };
            match patches::release(&found, &draft.id(), told, cluster, keep.as_ref()) {
                ReleaseProgress::NotOurs => {}
                ReleaseProgress::Tell(patch) => {
                    change(&self.client, &found, patch).await?;
                    let reason = format!("BareMetalHost {} was told to deprovision", found.name_any());
                    draft.say(HOST, &ConditionVerdict::no("Deleting", reason), Severity::Info);
                    return Ok(Some(Action::requeue(LOOK_AGAIN)));
                }
                ReleaseProgress::Wait(reason) => {
                    draft.say(HOST, &ConditionVerdict::no("Deleting", format!("Waiting: {reason}")), Severity::Info);
                    return Ok(Some(Action::requeue(LOOK_AGAIN)));
                }
                ReleaseProgress::LetGo(patch) => {
                    if let Some(cluster) = cluster {
                        self.label_secret(&found, cluster, true).await?;
                    }
                    change(&self.client, &found, patch).await?;
                    let namespace = draft.new.namespace().unwrap_or_default();
                    info!(host = %named(&namespace, &found.name_any()), machine = %named(&namespace, &draft.new.name_any()), "a machine let its host go");
                }
            }
        }
        data::release(&self.client, &draft.new).await?;
        draft.release(&self.client).await?;
        Ok(None)
    }

    /// For whom the host is kept. Nothing is while the cluster goes, too.
    async fn keep(
        &self,
        draft: &Metal3MachineDraft,
        owner: Option<&Machine>,
        cluster: Option<&Cluster>,
    ) -> Result<Option<Keep>, Metal3MachineError> {
        let (Some(owner), Some(cluster)) = (owner, cluster) else { return Ok(None) };
        let Some(for_whom) = reuse(owner).filter(|_| cluster.metadata.deletion_timestamp.is_none()) else {
            return Ok(None);
        };
        let keeps = template::keeps_hosts(&self.client, &draft.new, owner).await?;
        Ok(keeps.then(|| Keep { for_whom, cluster: cluster.name_any() }))
    }
}
