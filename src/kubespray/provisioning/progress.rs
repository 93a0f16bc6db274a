//! What a Provisioning's status says. Pure.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::cluster_inventory::NodePlace;
use super::next::{LOST, RUNNING, SUCCEEDED};
use super::rack::RackHost;
use super::seats::NodeSeat;
use super::wanted::{ClusterSpecFault, WantedNode};
use crate::ansible::Reachable;
use crate::api::MacAddress;
use crate::api::bpa::{NodeProgress, NodeTasks, ProvisioningStatus, RunFailure, RunProgress};
use crate::api::metal3::ProvisioningState;
use crate::kubespray::runs::{PlaybookProgress, RunStatus, RunVerdict};
use crate::runtime::conditions::{self, ConditionVerdict};

/// Letters of what a node says, and of what the whole says.
const NODE_SAYS: usize = 300;
const WHOLE_SAYS: usize = 1000;
/// Faults of a spec that are said.
const FAULTS: usize = 8;

const CLAIMED: &str = "HostsClaimed";
const PROVISIONED: &str = "HostsProvisioned";
/// Whether kubespray has installed every node.
const INSTALLED: &str = "Installed";
/// Whether the cluster's kubeconfig is kept.
pub const KUBECONFIG: &str = "KubeconfigKept";
/// Whether all nodes are ready that are installed.
const NODES: &str = "NodesReady";
/// Letters of a task of a run.
const RUN_SAYS: usize = 200;
/// Whether there is an inventory to run kubespray with.
pub const INVENTORY: &str = "InventoryReady";

/// How far a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProvisioningPhase {
    /// What it asks for makes no sense.
    Invalid,
    /// Not every node has a host.
    Choosing,
    /// Not every host runs a system, or has an address.
    Provisioning,
    /// kubespray can be run.
    InventoryReady,
    /// It is.
    Installing,
    /// It installed every node.
    Ready,
    /// It did not, and is not run again by itself.
    Failed,
}

impl ProvisioningPhase {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Invalid,
        Self::Choosing,
        Self::Provisioning,
        Self::InventoryReady,
        Self::Installing,
        Self::Ready,
        Self::Failed,
    ];

    /// As the status and events say it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid",
            Self::Choosing => "Choosing",
            Self::Provisioning => "Provisioning",
            Self::InventoryReady => "InventoryReady",
            Self::Installing => "Installing",
            Self::Ready => "Ready",
            Self::Failed => "Failed",
        }
    }
}

/// Where a node's host is, or what it waits for. `card` is the MAC address that names it, if one does: what is leased to that card is
/// the node's address.
pub fn place(host: &RackHost, card: Option<MacAddress>, user_data: &str) -> Result<NodePlace, String> {
    let view = &host.view;
    if !view.error.is_empty() {
        return Err(format!("BareMetalHost {} has an error: {}", host.name(), view.error));
    }
    match view.state {
        ProvisioningState::Provisioned | ProvisioningState::ExternallyProvisioned => {}
        _ if view.is_available() && !view.has_image => {
            return Err(format!("BareMetalHost {} is told to run nothing any more", host.name()));
        }
        state => return Err(format!("BareMetalHost {} is {}", host.name(), state.as_str())),
    }
    let Some(address) = host.address(card) else {
        let of =
            card.filter(|_| !host.leases.is_empty()).map_or_else(|| "machine".into(), |card| format!("card {card}"));
        return Err(format!("no address is leased to the {of} of BareMetalHost {}", host.name()));
    };
    let address = Reachable::new(address).map_err(|reason| reason.to_string())?;
    Ok(NodePlace { address, has_user: host.user_data.as_deref() == Some(user_data) })
}

/// The nodes with what each waits for.
pub fn nodes(status: &mut ProvisioningStatus, nodes: &[WantedNode], seats: &[NodeSeat<'_>], user_data: &str) {
    let mut ready = 0;
    // A machine that is dead has no lease after a while, and is to be known all the same when its node is taken out of the cluster.
    let before = std::mem::take(&mut status.nodes);
    let last = |name: &str, host: Option<&RackHost>| {
        before.iter().find(|node| node.name == name && node.host.as_deref() == host.map(RackHost::name))
    };
    let one = |(node, seat): (&WantedNode, &NodeSeat<'_>)| {
        let waits = match seat {
            NodeSeat::None(reason) => Some(reason.clone()),
            NodeSeat::Takes(host) => Some(format!("takes BareMetalHost {} when every node has a host", host.name())),
            NodeSeat::Has(host) => place(host, node.mac, user_data).err(),
        };
        ready += i64::from(waits.is_none());
        let roles = [(node.is_master, "master"), (node.is_worker, "worker")];
        let had = match seat {
            NodeSeat::Has(host) => Some(*host),
            _ => None,
        };
        let last = last(node.name.as_str(), had);
        NodeProgress {
            name: node.name.to_string(),
            roles: roles.iter().filter(|(is, _)| *is).map(|(_, role)| (*role).to_owned()).collect(),
            host: had.map(|host| host.name().to_owned()),
            state: had.map(|host| host.view.state.as_str().to_owned()),
            address: had.and_then(|host| {
                let leased = host.address(node.mac).and_then(|address| Reachable::new(address).ok());
                leased.map(|address| address.to_string()).or_else(|| last?.address.clone())
            }),
            tasks: last.and_then(|last| last.tasks.clone()),
            message: short(&waits.unwrap_or_default(), NODE_SAYS),
            ..NodeProgress::default()
        }
    };
    let all: Vec<NodeProgress> = nodes.iter().zip(seats).map(one).collect();
    (status.nodes_wanted, status.nodes_ready) = (count(all.len()), ready);
    status.nodes = all;
}

/// What is said of the whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSummary {
    /// How far hosts and inventory are.
    pub hosts: ProvisioningPhase,
    /// How far the cluster is.
    pub phase: ProvisioningPhase,
    /// What it waits for, or what to do next.
    pub message: String,
}

impl ClusterSummary {
    /// Where nothing is installed yet, hosts say how far the cluster is.
    pub fn of_hosts(phase: ProvisioningPhase, message: impl Into<String>) -> Self {
        Self { hosts: phase, phase, message: message.into() }
    }

    /// Of a cluster whose hosts are all there.
    pub fn of_cluster(phase: ProvisioningPhase, message: impl Into<String>) -> Self {
        Self { hosts: ProvisioningPhase::InventoryReady, phase, message: message.into() }
    }
}

/// The whole; `runs` says whether kubespray is run here.
pub fn whole(
    status: &mut ProvisioningStatus,
    told: &ClusterSummary,
    runs: bool,
    generation: Option<i64>,
    now: Timestamp,
) {
    let message = short(&told.message, WHOLE_SAYS);
    let verdict = |is: bool, yes: &str, no: &str| {
        if is { ConditionVerdict::yes(yes) } else { ConditionVerdict::no(no, message.clone()) }
    };
    let (claimed, provisioned, ready) = match told.hosts {
        ProvisioningPhase::Invalid | ProvisioningPhase::Choosing => (false, false, false),
        ProvisioningPhase::Provisioning => (true, false, false),
        _ => (true, true, true),
    };
    let no = if told.hosts == ProvisioningPhase::Invalid { "Invalid" } else { "Waiting" };
    for (type_, is, yes) in
        [(CLAIMED, claimed, "Claimed"), (PROVISIONED, provisioned, "Provisioned"), (INVENTORY, ready, "Checked")]
    {
        conditions::set(&mut status.conditions, type_, &verdict(is, yes, no), generation, now);
    }
    let reason = match told.phase {
        ProvisioningPhase::Invalid => "Invalid",
        ProvisioningPhase::Installing => RUNNING,
        ProvisioningPhase::Failed => {
            status.run.as_ref().map_or(ProvisioningPhase::Failed.word(), |run| run.state.as_str())
        }
        ProvisioningPhase::InventoryReady if !runs => "NotConfigured",
        _ => "Waiting",
    };
    let verdict = verdict(told.phase == ProvisioningPhase::Ready, INSTALLED, reason);
    conditions::set(&mut status.conditions, INSTALLED, &verdict, generation, now);
    status.phase = told.phase.word().into();
    status.message = message;
    status.observed_generation = generation;
}

/// Whether the kubeconfig is kept, or why not.
pub fn kubeconfig(
    status: &mut ProvisioningStatus,
    verdict: &ConditionVerdict,
    generation: Option<i64>,
    now: Timestamp,
) {
    judged(status, KUBECONFIG, verdict, generation, now);
}

/// Whether all nodes are ready, as their cluster says.
pub fn nodes_ready(
    status: &mut ProvisioningStatus,
    verdict: &ConditionVerdict,
    generation: Option<i64>,
    now: Timestamp,
) {
    judged(status, NODES, verdict, generation, now);
}

fn judged(
    status: &mut ProvisioningStatus,
    type_: &str,
    verdict: &ConditionVerdict,
    generation: Option<i64>,
    now: Timestamp,
) {
    let verdict = ConditionVerdict { message: short(&verdict.message, WHOLE_SAYS), ..verdict.clone() };
    conditions::set(&mut status.conditions, type_, &verdict, generation, now);
}

/// How far a run is, as it was seen.
pub fn run(run: &mut RunProgress, seen: &RunStatus, now: Timestamp) {
    let progress = &seen.progress;
    let task = if progress.task.is_empty() { &progress.play } else { &progress.task };
    run.task = short(task, RUN_SAYS);
    run.percent = progress.percent().map(i64::from);
    // Not the box itself, to which kubespray delegates.
    let hosts = progress.hosts.iter().filter(|(name, _)| *name != "localhost");
    let (failed, ok): (Vec<_>, Vec<_>) = hosts.partition(|(_, host)| host.is_bad());
    (run.hosts_ok, run.hosts_failed) = (count(ok.len()), count(failed.len()));
    run.state = match &seen.verdict {
        None => return run.state = RUNNING.to_owned(),
        Some(_) if seen.phase == crate::kubespray::runs::RunPhase::Lost => LOST,
        Some(RunVerdict::Succeeded) => SUCCEEDED,
        Some(RunVerdict::Failed(_)) => "Failed",
        Some(RunVerdict::Cancelled) => "Cancelled",
    }
    .to_owned();
    run.ended_at = Some(Time(now));
    match &seen.verdict {
        Some(RunVerdict::Failed(reason)) => {
            run.message = short(reason, NODE_SAYS);
            run.failure = failure(progress);
        }
        Some(RunVerdict::Cancelled) => run.message = "was cancelled".into(),
        _ => {}
    }
}

/// What a run did on each node, as it was seen.
pub fn tasks(nodes: &mut [NodeProgress], seen: &RunStatus) {
    for node in nodes {
        let Some(host) = seen.progress.hosts.get(&node.name) else { continue };
        let [ok, changed, failed, unreachable] =
            [host.ok, host.changed, host.failures, host.unreachable].map(i64::from);
        node.tasks = Some(NodeTasks { ok, changed, failed, unreachable });
    }
}

/// What failed first and was not mended.
fn failure(progress: &PlaybookProgress) -> Option<RunFailure> {
    let is_bad = |host: &String| progress.hosts.get(host).is_some_and(|host| host.is_bad());
    let found = progress.failures.iter().find(|one| is_bad(&one.host))?;
    let (host, task) = (short(&found.host, NODE_SAYS), short(&found.task, RUN_SAYS));
    Some(RunFailure { host, task, message: short(&found.message, NODE_SAYS) })
}

/// What of a status is told at once; the rest changes often, and is told now and then.
pub fn decisive(status: &ProvisioningStatus) -> ProvisioningStatus {
    let mut status = status.clone();
    status.message.clear();
    status.conditions.iter_mut().for_each(|one| one.message.clear());
    for node in &mut status.nodes {
        node.message.clear();
        node.tasks = None;
    }
    if let Some(run) = &mut status.run {
        run.task.clear();
        (run.percent, run.hosts_ok, run.hosts_failed) = (None, 0, 0);
    }
    status
}

/// All that is wrong with a spec, bounded.
pub fn faults(faults: &[ClusterSpecFault]) -> String {
    let mut said: Vec<String> = faults.iter().take(FAULTS).map(ToString::to_string).collect();
    if faults.len() > FAULTS {
        said.push(format!("and {} more", faults.len() - FAULTS));
    }
    said.join("; ")
}

/// What nodes wait for, those that wait for the same together.
pub fn waiting(status: &ProvisioningStatus) -> String {
    let mut order = Vec::new();
    let mut by_reason: HashMap<&str, Vec<&str>> = HashMap::new();
    for node in status.nodes.iter().filter(|node| !node.message.is_empty()) {
        by_reason.entry(&node.message).or_insert_with(|| {
            order.push(node.message.as_str());
            Vec::new()
        });
        by_reason.entry(&node.message).and_modify(|names| names.push(&node.name));
    }
    let one = |reason: &&str| {
        let names = &by_reason[*reason];
        let more = names.len().saturating_sub(3);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}: {reason}", names.iter().take(3).copied().collect::<Vec<_>>().join(", "))
    };
    order.iter().take(FAULTS).map(one).collect::<Vec<_>>().join("; ")
}

/// The first letters of a text.
pub fn short(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::wanted::{read, tests::object};
    use super::*;
    use crate::api::metal3::BareMetalHost;

    fn host(status: Value) -> RackHost {
        let host = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": "h", "namespace": "rack"},
            "spec": {"online": true, "userData": {"name": "edge-user-data"}}, "status": status});
        RackHost::from(&serde_json::from_value::<BareMetalHost>(host).expect("a host"))
    }

    #[test]
    fn a_node_is_ready_when_its_host_runs_and_has_an_address() {
        let leased = json!([{"address": "10.0.0.5", "macAddress": "52:54:00:00:00:01", "network": "n"}]);
        let rows: &[(Value, &str)] = &[
            (
                json!({"provisioning": {"state": "provisioning"}, "addresses": leased}),
                "BareMetalHost h is provisioning",
            ),
            (json!({"provisioning": {"state": "available"}}), "BareMetalHost h is told to run nothing any more"),
            (json!({"provisioning": {"state": "provisioned"}, "errorMessage": "x"}), "BareMetalHost h has an error: x"),
            (
                json!({"provisioning": {"state": "provisioned"}}),
                "no address is leased to the machine of BareMetalHost h",
            ),
            (
                json!({"provisioning": {"state": "provisioned"}, "addresses": [{"address": "127.0.0.1"}]}),
                "no other machine is reached at 127.0.0.1",
            ),
        ];
        for (status, said) in rows {
            assert_eq!(place(&host(status.clone()), None, "edge-user-data"), Err((*said).to_owned()));
        }
        for state in ["provisioned", "externally provisioned"] {
            let ready = host(json!({"provisioning": {"state": state}, "addresses": leased}));
            let place = place(&ready, None, "edge-user-data").expect("a place");
            assert_eq!((place.address.to_string().as_str(), place.has_user), ("10.0.0.5", true));
        }
    }

    #[test]
    fn a_node_that_a_card_names_is_where_that_card_is() {
        let leased = json!([{"address": "10.0.0.5", "macAddress": "52:54:00:00:00:01", "network": "n"},
            {"address": "10.1.0.5", "macAddress": "52:54:00:00:00:02", "network": "m"}]);
        let host = host(json!({"provisioning": {"state": "provisioned"}, "addresses": leased}));
        let at = |card: Option<&str>| {
            let card = card.map(|card| card.parse().expect("a MAC address"));
            place(&host, card, "edge-user-data").map(|place| place.address.to_string())
        };
        assert_eq!(at(None), Ok("10.0.0.5".into()));
        assert_eq!(at(Some("52:54:00:00:00:01")), Ok("10.0.0.5".into()));
        assert_eq!(at(Some("52:54:00:00:00:02")), Ok("10.1.0.5".into()));
        // Not that of another card: what is installed at an address stays there.
        let none = "no address is leased to the card 52:54:00:00:00:03 of BareMetalHost h";
        assert_eq!(at(Some("52:54:00:00:00:03")), Err(none.into()));
    }

    #[test]
    fn the_last_address_of_a_machine_that_is_dead_stays_known() {
        let cluster = read(&object(json!({"masters": [{"m": {"cpu": 1}}]}))).expect("a cluster");
        let state = json!({"state": "provisioned"});
        let leased = host(
            json!({"provisioning": state, "addresses": [{"address": "10.0.0.5", "macAddress": "52:54:00:00:00:01", "network": "n"}]}),
        );
        let dead = host(json!({"provisioning": state, "errorMessage": "no power"}));
        let mut status = ProvisioningStatus::default();
        let mut address = |seat: NodeSeat<'_>| {
            nodes(&mut status, &cluster.nodes, &[seat], "u");
            status.nodes[0].address.clone()
        };
        assert_eq!(address(NodeSeat::Has(&dead)), None);
        assert_eq!(address(NodeSeat::Has(&leased)).as_deref(), Some("10.0.0.5"));
        assert_eq!(address(NodeSeat::Has(&dead)).as_deref(), Some("10.0.0.5"));
        assert_eq!(address(NodeSeat::None("gone".into())), None);
    }

    #[test]
    fn what_is_said_of_many_nodes_is_bounded() {
        let workers: Vec<Value> = (0..400).map(|number| json!({format!("w{number}"): {"cpu": 1}})).collect();
        let cluster = read(&object(json!({"masters": [{"m": {"cpu": 1}}], "workers": workers}))).expect("a cluster");
        let seats: Vec<NodeSeat<'_>> =
            (0..cluster.nodes.len()).map(|at| NodeSeat::None("x".repeat(900 + at % 7))).collect();
        let mut status = ProvisioningStatus::default();
        nodes(&mut status, &cluster.nodes, &seats, "u");
        assert_eq!((status.nodes_wanted, status.nodes_ready), (401, 0));
        let text = waiting(&status);
        assert!(text.starts_with("m, w0, w1 and 398 more: xxx"), "{text}");
        let told = ClusterSummary::of_hosts(ProvisioningPhase::Choosing, "x".repeat(9999));
        whole(&mut status, &told, true, Some(3), Timestamp::UNIX_EPOCH);
        assert_eq!((status.message.len(), status.conditions.len()), (WHOLE_SAYS, 4));
        assert!(serde_json::to_vec(&status).unwrap().len() < 256 << 10);
        assert!(status.conditions.iter().all(|one| one.status == "False" && one.reason == "Waiting"));
        let is = |status: &ProvisioningStatus, type_: &str| {
            let found = conditions::find(&status.conditions, type_).unwrap();
            (found.status.clone(), found.reason.clone())
        };
        for (phase, runs, installed) in [
            (ProvisioningPhase::InventoryReady, false, ("False", "NotConfigured")),
            (ProvisioningPhase::InventoryReady, true, ("False", "Waiting")),
            (ProvisioningPhase::Installing, true, ("False", "Running")),
            (ProvisioningPhase::Failed, true, ("False", "Failed")),
            (ProvisioningPhase::Ready, true, ("True", "Installed")),
        ] {
            whole(&mut status, &ClusterSummary::of_cluster(phase, "m"), runs, Some(3), Timestamp::UNIX_EPOCH);
            assert_eq!(is(&status, INSTALLED), (installed.0.to_owned(), installed.1.to_owned()), "{phase:?}");
            assert_eq!(is(&status, INVENTORY).0, "True", "{phase:?}");
        }
        assert!(status.conditions.iter().all(|one| one.status == "True"));
    }
}
