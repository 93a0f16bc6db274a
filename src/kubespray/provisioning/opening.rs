//! Machines that others installed have no user of the cluster. With a login that the object names, each is opened to the cluster's key,
//! once: a machine that said no is asked again when the login is another one.

use std::collections::HashMap;
use std::net::IpAddr;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Resource, ResourceExt};
use tracing::{info, warn};

use super::cluster_inventory::NodePlace;
use super::controller::{LookError, Provisionings, ReachableCluster};
use super::installer::Installer;
use super::known_hosts::{mark, read, text, valid};
use super::login::{LoginError, SshLogin, login};
use super::made::{self, MadeError};
use super::next::kept;
use super::progress;
use super::running::{asked, unmarked};
use super::seats::NodeSeat;
use super::wanted::WantedNode;
use crate::api::bpa::{NodeLogin, Provisioning, ProvisioningStatus};
use crate::apiserver::subdomain;
use crate::log::named;

/// Machines that are logged in to at once, and in one look.
const AT_ONCE: usize = 4;
const IN_A_LOOK: usize = 16;
/// A machine that has the key.
const OPENED: &str = "Opened";
/// One that does not take the login.
const REFUSED: &str = "Refused";

/// The place of a node, whose machine may have been opened to the key. `machine` is its [mark]; without one, whichever it was.
pub fn opened(place: NodePlace, status: &ProvisioningStatus, node: &WantedNode, machine: Option<&str>) -> NodePlace {
    let is_its =
        |login: &NodeLogin| login.node == node.name.as_str() && machine.is_none_or(|mark| mark == login.machine);
    let is_open = status.logins.iter().any(|login| is_its(login) && login.state == OPENED);
    NodePlace { has_user: place.has_user || is_open, ..place }
}

/// Where the nodes are that have their hosts, in the order of the nodes.
///
/// # Errors
///
/// The first node that has no host, or whose host is not well.
pub fn places<'n>(
    nodes: &'n [WantedNode],
    seats: &[NodeSeat<'_>],
    status: &ProvisioningStatus,
    user_data: &str,
) -> Result<Vec<(&'n WantedNode, NodePlace)>, String> {
    let placed = |(node, seat): (&'n WantedNode, &NodeSeat<'_>)| {
        let NodeSeat::Has(host) = seat else { return Err(format!("node {} has no host", node.name)) };
        let place = progress::place(host, node.mac, user_data)?;
        Ok((node, opened(place, status, node, Some(&mark(host, user_data)))))
    };
    nodes.iter().zip(seats).map(placed).collect()
}

/// What is known of machines whose nodes are wanted no more is forgotten.
pub fn forget(status: &mut ProvisioningStatus) {
    let ProvisioningStatus { logins, nodes, installed, .. } = status;
    logins.retain(|login| nodes.iter().any(|node| node.name == login.node) || installed.contains(&login.node));
}

impl Provisionings {
    /// Opens machines of new nodes to the cluster's key. What is to be waited for, if anything is: a new inventory, or another login.
    pub(super) async fn open_machines(
        &self,
        installer: &Installer,
        object: &Provisioning,
        status: &mut ProvisioningStatus,
        ready: &ReachableCluster<'_>,
    ) -> Result<Option<String>, LookError> {
        let Some(name) = object.spec.credentials_name.as_deref().filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let closed: Vec<_> = ready.closed.iter().filter(|(node, _)| !status.installed.contains(node)).collect();
        if closed.is_empty() {
            return Ok(None);
        }
        let namespace = object.namespace().unwrap_or_default();
        let secret = match subdomain(name).is_empty() {
            true => Api::<Secret>::namespaced(self.client.clone(), &namespace).get_opt(name).await?,
            false => None,
        };
        let Some(secret) = secret else { return Ok(Some(format!("there is no Secret {name} (spec.credentialsName)"))) };
        let version = secret.meta().resource_version.clone().unwrap_or_default();
        let granted = match login(&secret) {
            Ok(granted) => granted,
            Err(reason) => return Ok(Some(reason)),
        };
        let asked = kept(asked(object));
        let machine = |at: &IpAddr| ready.marks.get(&at.to_canonical()).cloned().unwrap_or_default();
        let is_tried = |(node, at): &&(String, IpAddr)| {
            let so = |one: &NodeLogin| one.node == *node && one.machine == machine(at);
            status.logins.iter().any(|one| so(one) && one.secret_version == version && one.asked == asked)
        };
        let due: Vec<_> = closed.into_iter().filter(|one| !is_tried(one)).take(IN_A_LOOK).cloned().collect();
        let machines: HashMap<String, String> = due.iter().map(|(node, at)| (node.clone(), machine(at))).collect();
        let tried = self.log_in(installer, object, ready, &granted, due).await?;
        let mut told = Vec::new();
        for (node, result) in tried {
            let (state, message) = match result {
                Ok(()) => (OPENED, String::new()),
                Err(LoginError::Refused(reason)) => (REFUSED, reason),
                Err(LoginError::Unreached(reason)) => {
                    told.push(format!("{node} cannot be logged in to: {reason}"));
                    continue;
                }
            };
            info!(provisioning = %named(&namespace, &object.name_any()), %node, state, "a machine of others was logged in to");
            status.logins.retain(|one| one.node != node);
            let machine = machines.get(&node).cloned().unwrap_or_default();
            let (secret_version, asked) = (version.clone(), asked.clone());
            status.logins.push(NodeLogin { node, state: state.into(), machine, secret_version, asked, message });
        }
        let refused = status.logins.iter().filter(|one| one.state == REFUSED);
        told.extend(refused.map(|one| format!("{}: {}. Mend the Secret {name}", one.node, one.message)));
        Ok(Some(match told.is_empty() {
            true => "the machines of others were opened to the cluster's key".into(),
            false => told.join("; "),
        }))
    }

    /// Logs in to machines, and keeps the host keys that they have.
    async fn log_in(
        &self,
        installer: &Installer,
        object: &Provisioning,
        ready: &ReachableCluster<'_>,
        granted: &SshLogin,
        due: Vec<(String, IpAddr)>,
    ) -> Result<Vec<(String, Result<(), LoginError>)>, LookError> {
        let public = made::ssh_key(&self.client, object).await?;
        let known = valid(read(&made::known_hosts(&self.client, object).await?), &ready.marks);
        let one = |(node, address): (String, IpAddr)| {
            let own = known.iter().filter(|key| key.address == address).cloned().collect();
            let (own, public, folder) = (text(&unmarked(own)), &public, installer.runs().root());
            async move {
                let opened = (installer.opener)(address, granted, public, &own, folder).await;
                (node, opened)
            }
        };
        let tried: Vec<_> = stream::iter(due.into_iter().map(one)).buffered(AT_ONCE).collect().await;
        let keys: Vec<_> =
            tried.iter().filter_map(|(_, opened)| opened.as_ref().ok()).flat_map(|text| read(text)).collect();
        match self.learn(object, keys).await {
            Err(MadeError::Api(error)) => return Err(error.into()),
            Err(reason) => {
                let namespace = object.namespace().unwrap_or_default();
                warn!(provisioning = %named(&namespace, &object.name_any()), reason = %reason, "keys of hosts cannot be kept");
            }
            Ok(()) => {}
        }
        Ok(tried.into_iter().map(|(node, opened)| (node, opened.map(drop))).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::wanted::{read as read_spec, tests::object};
    use super::*;
    use crate::ansible::Reachable;
    use crate::api::bpa::NodeProgress;

    #[test]
    fn another_machine_in_a_nodes_place_is_not_open() {
        let login = NodeLogin { node: "m".into(), state: OPENED.into(), machine: "aa".into(), ..NodeLogin::default() };
        let status = ProvisioningStatus { logins: vec![login], ..ProvisioningStatus::default() };
        let cluster = read_spec(&object(json!({"masters": [{"m": {"cpu": 1}}]}))).expect("a cluster");
        let place = NodePlace { address: Reachable::new("10.0.0.1").expect("an address"), has_user: false };
        let is_open = |machine| opened(place, &status, &cluster.nodes[0], machine).has_user;
        assert_eq!([Some("aa"), Some("bb"), None].map(is_open), [true, false, true]);
    }

    #[test]
    fn a_node_that_goes_takes_its_login_along() {
        let login =
            |node: &str, state: &str| NodeLogin { node: node.into(), state: state.into(), ..NodeLogin::default() };
        let nodes = vec![NodeProgress { name: "a".into(), ..NodeProgress::default() }];
        let logins = vec![login("a", OPENED), login("b", OPENED), login("c", REFUSED)];
        let mut status =
            ProvisioningStatus { nodes, logins, installed: vec!["b".into()], ..ProvisioningStatus::default() };
        forget(&mut status);
        assert_eq!(status.logins.iter().map(|login| login.node.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }
}
