//! What a cluster's machines are, put together of what is known of each. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::groups;
use super::locks;
use super::nodes::SeenNode;
use super::order::{Drain, Member, Reboot, Rules, Work, first};
use super::state::{Told, state};
use super::steps::{PHASES, StepsCluster, StepsDigest, StepsMachine, fault, of_phase, print, wanted};
use super::view::LcmMachineView;
use crate::api::lcm::{
    ANNOTATION_GRACEFUL_REBOOT, ANNOTATION_WAS_DEPLOYED, LCMCluster, LCMClusterState, MachineRole, MaintenanceScope,
    NodeState, StateItem,
};
use crate::runtime::conditions::is_true;
use crate::runtime::owners;

/// Workers that prepare at once where nobody says.
const PREPARE_AT_ONCE: usize = 50;
/// The condition that a cluster was begun.
pub(super) const INITIALIZED: &str = "ControlPlaneInitialized";
/// Clusters that kubeadm makes.
const KUBEADM: &str = "kubeadm";

/// The steps that a machine is to have.
#[derive(Debug)]
pub(super) struct WantedSteps {
    pub items: Vec<StateItem>,
    /// Names and hashes, by phase.
    keys: [Vec<(String, String)>; 3],
    /// Digests of all that they say, by phase.
    pub prints: [StepsDigest; 3],
}

impl WantedSteps {
    fn of(items: Vec<StateItem>) -> Self {
        let keys = |phase| of_phase(&items, phase).map(|item| (item.name.clone(), item.hash())).collect();
        let (keys, prints) = (PHASES.map(keys), PHASES.map(|phase| print(of_phase(&items, phase))));
        Self { items, keys, prints }
    }
}

/// A machine, and all that is known of it.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub view: LcmMachineView,
    pub wanted: Arc<WantedSteps>,
    pub member: Member,
    pub state: NodeState,
    pub seen: SeenNode,
    /// What is asked of its cluster for it.
    pub request: Option<Arc<LCMClusterState>>,
    /// Whether it begins, or began, the cluster.
    pub first: bool,
    /// Whether it reboots for the release that its cluster is to have.
    pub reboots: bool,
    /// What applications on its node are asked for, where it is drained.
    pub scope: MaintenanceScope,
}

/// A cluster, and its machines in the order of their names.
#[derive(Debug)]
pub(super) struct Survey {
    pub machines: Vec<Machine>,
    pub rules: Rules,
    pub kubeadm: bool,
    /// Why nothing can be handed out.
    pub fault: Option<String>,
    /// Where the cluster's API server is reached, as host and port.
    pub endpoint: Option<String>,
    /// What applications of the cluster are asked for, where nodes are drained.
    pub scope: MaintenanceScope,
}

/// What is looked at besides the machines.
pub(super) struct SurveyInputs<'a> {
    pub cluster: &'a LCMCluster,
    /// What is asked of the cluster as a whole.
    pub asked: Option<&'a LCMClusterState>,
    /// What is asked of the cluster, by the machine for which it is.
    pub requests: &'a HashMap<String, Arc<LCMClusterState>>,
    /// The nodes of machines, by the names of machines.
    pub seen: &'a HashMap<String, SeenNode>,
    /// How long an agent that says nothing is not silent.
    pub patience: SignedDuration,
    pub now: Timestamp,
}

/// Whether kubeadm makes a cluster; else its steps make whatever they make.
pub(super) fn is_kubeadm(cluster: &LCMCluster) -> bool {
    cluster.spec.lcm_type.is_empty() || cluster.spec.lcm_type == KUBEADM
}

fn at_once(count: Option<i32>, default: usize) -> usize {
    count.and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0).unwrap_or(default)
}

/// Puts together what is known.
pub(super) fn survey(views: Vec<LcmMachineView>, around: &SurveyInputs<'_>) -> Survey {
    let (cluster, spec) = (around.cluster, &around.cluster.spec);
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let mut steps = Steps::default();
    let nothing = StepsCluster { spec, control_node: String::new(), control_plane: Vec::new() };
    let mut machines: Vec<Machine> =
        views.into_iter().map(|view| machine(view, around, &nothing, &mut steps)).collect();
    machines.sort_by_key(|one| one.view.name_any());
    let initialized = is_true(conditions, INITIALIZED)
        || machines.iter().any(|one| one.member.role == MachineRole::Control && one.member.was_deployed);
    let members: Vec<Member> = machines.iter().map(|one| one.member.clone()).collect();
    let begins = first(&members).filter(|one| !initialized || one.was_deployed).map(|one| one.name.clone());
    let address = |one: &Machine| one.view.address().map(|address| address.to_string());
    let of_first = machines.iter().find(|one| Some(&one.member.name) == begins.as_ref()).and_then(address);
    let mut planes: Vec<&Machine> =
        machines.iter().filter(|one| one.member.role == MachineRole::Control && !one.member.leaving).collect();
    planes.sort_by_key(|one| &one.member.rank);
    let outside = Some(nothing.endpoint()).filter(|endpoint| !endpoint.is_empty());
    let known = StepsCluster {
        spec,
        control_node: of_first
            .clone()
            .or_else(|| spec.external_endpoint.as_ref().map(|endpoint| endpoint.host.clone()))
            .unwrap_or_default(),
        control_plane: planes.into_iter().filter_map(address).collect(),
    };
    let endpoint = outside.or_else(|| {
        let address = of_first?;
        Some(if address.contains(':') { format!("[{address}]:6443") } else { format!("{address}:6443") })
    });
    let mut steps = Steps::default();
    for one in &mut machines {
        one.first = Some(&one.member.name) == begins.as_ref();
        one.wanted = steps.of(&known, &one.view, one.member.role, one.first, needs_upgrade(one, &spec.release));
    }
    let kubeadm = is_kubeadm(cluster);
    let groups = groups::of_workers(&cluster.name_any(), spec);
    for one in &mut machines {
        one.member.group = groups::place(&groups, &one.view.spec.update_group);
        one.reboots = groups::reboots(&cluster.name_any(), spec, &groups, one);
        one.scope = scope(one);
        let is_enough = |request: &LCMClusterState| locks::is_enough(&request.spec, one.scope, &spec.release);
        if one.member.drain == Drain::Done && !one.request.as_deref().is_none_or(is_enough) {
            // It was drained for something else.
            one.member.drain = Drain::Asked;
        }
    }
    let reboots = machines.iter().any(|one| one.scope == MaintenanceScope::Os);
    let scope = if reboots { MaintenanceScope::Os } else { MaintenanceScope::Drain };
    let rules = Rules {
        dedicated: spec.dedicated_control_plane,
        prepare_at_once: at_once(spec.max_worker_prepare_count, PREPARE_AT_ONCE),
        groups,
        initialized,
        drains: kubeadm,
        held: locks::cluster_held(around.asked, scope, &spec.release),
    };
    let fault = spec.machine_types.values().find_map(|items| fault(items));
    Survey { machines, rules, kubeadm, fault, endpoint, scope }
}

/// What applications on a machine's node are asked for, where it is drained.
fn scope(one: &Machine) -> MaintenanceScope {
    match () {
        () if one.member.leaving => MaintenanceScope::Deletion,
        () if one.reboots || one.member.reboot != Reboot::None => MaintenanceScope::Os,
        () => MaintenanceScope::Drain,
    }
}

fn needs_upgrade(one: &Machine, target: &str) -> bool {
    let has = &one.view.status.release;
    one.member.was_deployed && !has.is_empty() && has != target
}

/// Steps, each made once for all machines that have the same.
#[derive(Default)]
struct Steps(HashMap<(MachineRole, bool, bool), Arc<WantedSteps>>);

impl Steps {
    fn of(
        &mut self,
        known: &StepsCluster<'_>,
        view: &LcmMachineView,
        role: MachineRole,
        first: bool,
        upgrades: bool,
    ) -> Arc<WantedSteps> {
        let overwrites = &view.spec.state_items_overwrites;
        let make = || Arc::new(WantedSteps::of(wanted(known, StepsMachine { role, first, upgrades, overwrites })));
        if overwrites.is_empty() { self.0.entry((role, first, upgrades)).or_insert_with(make).clone() } else { make() }
    }
}

fn machine(view: LcmMachineView, around: &SurveyInputs<'_>, known: &StepsCluster<'_>, steps: &mut Steps) -> Machine {
    let spec = &around.cluster.spec;
    let (name, role) = (view.name_any(), view.role());
    let wanted = steps.of(known, &view, role, false, false);
    let work = |at: usize| {
        let has = view.steps.iter().filter(|step| step.phase == PHASES[at]).map(|step| (&step.name, &step.hash));
        let keys = &wanted.keys[at];
        Work {
            handed: has.eq(keys.iter().map(|(name, hash)| (name, hash))),
            done: keys.iter().all(|(name, hash)| view.is_done(name, hash)),
        }
    };
    let [prepare, deploy, reconfigure] = [work(0), work(1), work(2)];
    let through = deploy.handed && deploy.done && !wanted.keys[1].is_empty();
    let was_deployed = view.has(ANNOTATION_WAS_DEPLOYED) || through;
    let reboot = view.status.reboot.clone().unwrap_or_default();
    let (asked, required) =
        (reboot.requested_at.is_some(), view.spec.reboot_required || view.has(ANNOTATION_GRACEFUL_REBOOT));
    let told = Told {
        has_address: view.address().is_some(),
        role: Some(role),
        steps: view.steps.iter().map(|step| (step.phase, view.is_done(&step.name, &step.hash))).collect(),
        was_deployed,
        reboot_required: asked || view.spec.reboot_required,
        reboot_completed: asked && reboot.completed,
    };
    let state = state(&told);
    let seen = around.seen.get(&name).cloned().unwrap_or(SeenNode::Unasked);
    let has_node = match &seen {
        _ if role == MachineRole::Bastion || !is_kubeadm(around.cluster) => true,
        SeenNode::Unasked => is_true(&view.status.conditions, "Ready"),
        SeenNode::Ready(_) => true,
        SeenNode::None | SeenNode::Unready(_) | SeenNode::Unknown(_) => false,
    };
    let silent =
        view.status.last_heard.as_ref().is_some_and(|time| around.now.duration_since(time.0) > around.patience);
    let settled = matches!(state, NodeState::Ready | NodeState::Reboot);
    // One of the same name that was there before asked.
    let request = around.requests.get(&name).filter(|one| {
        view.uid().is_some_and(|uid| owners::is_owned(&one.metadata, &uid)) && one.metadata.deletion_timestamp.is_none()
    });
    let drain = match request {
        // What is not there has no pods.
        None if seen == SeenNode::None && was_deployed => Drain::Done,
        None => Drain::None,
        Some(one) if one.spec.value != "true" => Drain::Undoing,
        Some(one) if locks::is_answered(one) => Drain::Done,
        Some(_) => Drain::Asked,
    };
    let begun = matches!(view.status.prepare_deletion_phase.as_str(), "started" | "completed" | "failed");
    let ready = settled && has_node && !silent;
    let member = Member {
        rank: view.rank(),
        heard: told.has_address,
        silent,
        held: spec.maintenance || view.spec.maintenance || view.spec.halt_agent,
        leaving: view.is_deleted() || view.spec.prepare_deletion && begun,
        was_deployed,
        // Once the names of groups are known.
        group: 0,
        is_behind: was_deployed && !view.spec.release.is_empty() && view.spec.release != around.cluster.spec.release,
        prepare,
        deploy,
        reconfigure,
        ready,
        drain,
        reboot: match () {
            () if asked && !reboot.completed => Reboot::Asked,
            () if required && !asked => Reboot::Wanted,
            () => Reboot::None,
        },
        fault: reason(&view, &seen, silent && !(settled && has_node), settled),
        name,
        role,
    };
    let (request, scope) = (request.cloned(), MaintenanceScope::Drain);
    Machine { wanted, state, seen, request, first: false, reboots: false, scope, member, view }
}

/// Why a machine does not get on; none when it does, or has nothing to do.
fn reason(view: &LcmMachineView, seen: &SeenNode, silent: bool, settled: bool) -> Option<String> {
    if let Some(failed) = &view.failed {
        let message = if failed.message.is_empty() { String::new() } else { format!(": {}", failed.message) };
        return Some(format!(
            "step {} failed with exit code {} (attempt {}){message}",
            failed.step, failed.code, failed.attempt
        ));
    }
    if silent {
        let since = view.status.last_heard.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
        return Some(format!("its agent was not heard since {since}: see whether it runs and reaches the appliance"));
    }
    match seen {
        SeenNode::Unknown(reason) if settled => Some(reason.clone()),
        _ => None,
    }
}

impl Survey {
    /// Those who count for the order.
    pub(super) fn members(&self) -> Vec<Member> {
        self.machines.iter().map(|one| one.member.clone()).collect()
    }

    /// Whether something is to be known of the cluster's nodes: for as long as not all is as it is to be.
    pub(super) fn is_unsettled(&self) -> bool {
        self.machines.iter().filter(|one| one.member.role != MachineRole::Bastion).any(|one| {
            let (view, member) = (&one.view, &one.member);
            let current =
                [member.prepare, member.deploy, member.reconfigure].iter().all(|work| work.handed && work.done);
            !current
                || !is_true(&view.status.conditions, "Ready")
                || view.spec.prepare_deletion
                || member.reboot != Reboot::None
                || one.request.is_some()
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::view::LABEL_CONTROL_PLANE;
    use super::super::view::tests::view;
    use super::*;

    fn cluster(spec: Value) -> LCMCluster {
        let steps = json!([{"name": "fetch", "phase": "prepare"}, {"name": "join", "phase": "deploy"}]);
        let mut whole = json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMCluster", "metadata": {"name": "c"},
            "spec": {"release": "r1", "machineTypes": {"control": steps, "worker": steps}}});
        json_patch::merge(&mut whole["spec"], &spec);
        serde_json::from_value(whole).unwrap()
    }

    fn manager(name: &str, address: &str, annotations: Value) -> LcmMachineView {
        let labels = json!({LABEL_CONTROL_PLANE: ""});
        let addresses = json!([{"type": "InternalIP", "address": address}]);
        view(
            json!({"name": name, "uid": name, "labels": labels, "annotations": annotations}),
            json!({}),
            json!({"addresses": addresses}),
        )
    }

    fn look(cluster: &LCMCluster, views: Vec<LcmMachineView>, seen: &HashMap<String, SeenNode>) -> Survey {
        let (now, requests) = (Timestamp::from_second(1_790_000_000).unwrap(), HashMap::new());
        let patience = SignedDuration::from_mins(5);
        survey(views, &SurveyInputs { cluster, asked: None, requests: &requests, seen, patience, now })
    }

    #[test]
    fn who_begins_a_cluster_is_told_so_and_others_where_it_is() {
        let none = HashMap::new();
        let all = || {
            vec![manager("b", "10.0.0.2", json!({"lcm.mirantis.com/index": "1"})), manager("a", "10.0.0.1", json!({}))]
        };
        let one = look(&cluster(json!({})), all(), &none);
        let role = |survey: &Survey, at: usize| survey.machines[at].wanted.items[0].params["nodeRole"].clone();
        assert_eq!((role(&one, 0), role(&one, 1)), ("control".into(), "first".into()));
        let params = &one.machines[0].wanted.items[1].params;
        assert_eq!(
            (params["controlNodeIP"].as_str(), params["controlPlaneNodes"].as_str()),
            ("10.0.0.2", "10.0.0.2,10.0.0.1")
        );
        assert_eq!((one.endpoint.as_deref(), one.rules.initialized), (Some("10.0.0.2:6443"), false));
        // A cluster that was begun is not begun again, whoever is left.
        let mut begun = cluster(json!({"externalEndpoint": {"host": "10.0.0.9", "port": 6443}}));
        let condition = json!({"type": INITIALIZED, "status": "True", "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        begun.status = serde_json::from_value(json!({"conditions": [condition]})).unwrap();
        let one = look(&begun, all(), &none);
        assert!(one.rules.initialized && one.machines.iter().all(|one| !one.first));
        assert_eq!(one.machines[1].wanted.items[0].params["controlNodeIP"], "10.0.0.9");
        assert_eq!(one.endpoint.as_deref(), Some("10.0.0.9:6443"));
    }

    #[test]
    fn a_machine_is_ready_once_its_node_is() {
        let cluster = cluster(json!({}));
        let of = |seen: SeenNode, heard: &str| {
            let hashes: Vec<StateItem> = cluster.spec.machine_types["control"].clone();
            let items = look(&cluster, vec![manager("a", "10.0.0.1", json!({}))], &HashMap::new()).machines[0]
                .wanted
                .items
                .clone();
            let done = items.iter().map(|item| (item.name.clone(), json!({"hash": item.hash(), "exitCode": 0})));
            assert_eq!(items.len(), hashes.len());
            let status = json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}], "lastHeard": heard,
                "stateItemStatuses": done.collect::<serde_json::Map<_, _>>()});
            let labels = json!({LABEL_CONTROL_PLANE: ""});
            let view = view(json!({"name": "a", "labels": labels}), json!({"stateItems": items}), status);
            look(&cluster, vec![view], &HashMap::from([("a".to_owned(), seen)])).machines.remove(0)
        };
        let (now, old) = ("2026-09-21T14:13:19Z", "2026-09-21T13:13:19Z");
        for (seen, heard, ready, fault) in [
            (SeenNode::Ready("n".into()), now, true, ""),
            (SeenNode::Ready("n".into()), old, false, ""),
            (SeenNode::Unready("n".into()), now, false, ""),
            (SeenNode::Unready("n".into()), old, false, "not heard since 2026-09-21T13:13:19Z"),
            (SeenNode::None, now, false, ""),
            (SeenNode::Unknown("no route to host".into()), now, false, "no route"),
        ] {
            let one = of(seen.clone(), heard);
            assert!(one.member.was_deployed && one.state == NodeState::Ready, "{one:?}");
            assert_eq!(one.member.ready, ready, "{seen:?} {heard}");
            let said = one.member.fault.unwrap_or_default();
            assert!(said.contains(fault) && said.is_empty() == fault.is_empty(), "{seen:?} {heard}: {said}");
        }
    }
}
