//! Sees to nodes that are wanted no more: a run takes those out of the cluster that are in it, and their hosts are let go after it.

use kube::ResourceExt;

use super::cluster_inventory::cluster_inventory;
use super::controller::{LookError, Provisionings, ReachableCluster};
use super::leaving::{last_place, leaving};
use super::made;
use super::next::{PlaybookKind, STARTING};
use super::progress::{ClusterSummary, ProvisioningPhase};
use super::rack::RackHost;
use super::running::{Going, marks_of};
use super::wanted::{WantedCluster, WantedNode};
use crate::api::bpa::{Provisioning, ProvisioningStatus};

impl Provisionings {
    /// Before anything else is done about a cluster. `None` when there is nothing to wait for; hosts that were let go are in `rack` no
    /// more.
    pub(super) async fn see_off(
        &self,
        object: &Provisioning,
        status: &mut ProvisioningStatus,
        cluster: &WantedCluster,
        rack: &mut Vec<RackHost>,
    ) -> Result<Option<Going>, LookError> {
        // What was noted with these nodes is begun with them.
        let noted = status.run.as_ref().filter(|run| run.state == STARTING);
        if noted.is_some_and(|run| !PlaybookKind::of(&run.playbook).is_some_and(PlaybookKind::removes)) {
            return Ok(None);
        }
        let name = object.name_any();
        let seen = leaving(&name, status, cluster, rack);
        if let Some(master) = seen.master {
            return Ok(Some(Going::Rests(ClusterSummary::of_hosts(
                ProvisioningPhase::Invalid,
                refused_master(&master),
            ))));
        }
        for host in &seen.free {
            self.let_go(object, &object.namespace().unwrap_or_default(), host).await?;
        }
        rack.retain(|host| !seen.free.iter().any(|name| name == host.name()));
        let Some(first) = seen.workers.first() else { return Ok(None) };
        let waits = |reason: String| {
            let reason = format!("{} is to leave the cluster: {reason}", first.name);
            Ok(Some(Going::Rests(ClusterSummary::of_cluster(ProvisioningPhase::InventoryReady, reason))))
        };
        if self.installer.is_none() {
            return waits("[kubespray] of slipway.toml names no checkout to take it out by".into());
        }
        let is_there = |node: &&WantedNode| status.installed.iter().any(|name| name == node.name.as_str());
        let nodes: Vec<WantedNode> = cluster.nodes.iter().filter(is_there).chain(&seen.workers).cloned().collect();
        let user_data = made::user_data_name(&name);
        let place = |node| last_place(&name, node, status, rack, &user_data).map(|place| (node, place));
        let places: Vec<_> = match nodes.iter().map(place).collect() {
            Ok(places) => places,
            Err(reason) => return waits(reason),
        };
        let inventory = match cluster_inventory(cluster, &places) {
            Ok(inventory) => inventory,
            Err(reason) => return waits(reason.to_string()),
        };
        let leaving = seen.workers.iter().map(|node| node.name.to_string()).collect();
        let ready =
            ReachableCluster { nodes: &nodes, closed: Vec::new(), leaving, inventory, marks: marks_of(rack, &name) };
        self.go_on(object, status, &ready).await.map(Some)
    }
}

fn refused_master(master: &str) -> String {
    format!(
        "{master} is a master of the cluster, and no Provisioning takes one out of it: each is a member of etcd. \
         Add it again, or make the cluster anew"
    )
}
