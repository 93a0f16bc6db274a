//! How the parts of a control plane are, machine by machine. Pure.
//!
//! What is known comes from the cluster that was made: its nodes, the pods that kubeadm puts there, and etcd. It becomes conditions of
//! the machines, and the state that decisions go by.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod};
use kube::ResourceExt;

use super::plan::{self, EtcdStatus, WellState};
use crate::cluster::workload::brief;
use crate::runtime::conditions::{ConditionVerdict, Truth};

/// Label of nodes of a control plane.
pub(super) const NODE_LABEL: &str = "node-role.kubernetes.io/control-plane";

/// The parts that run as pods on each machine: the condition, and the name of the pod without that of the node.
pub(super) const PODS: [(&str, &str); 4] = [
    ("APIServerPodHealthy", "kube-apiserver"),
    ("ControllerManagerPodHealthy", "kube-controller-manager"),
    ("SchedulerPodHealthy", "kube-scheduler"),
    ("EtcdPodHealthy", "etcd"),
];
/// Condition of a machine: its node has what kubeadm gives to control planes.
pub(super) const NODE_MARKED: &str = "NodeKubeadmLabelsAndTaintsSet";
/// Condition of a machine: its member of etcd is well.
pub(super) const ETCD_MEMBER: &str = plan::ETCD_MEMBER_HEALTHY;

const INSPECTION_FAILED: &str = "InspectionFailed";
const CONNECTION_DOWN: &str = "ConnectionDown";

/// What a cluster said of itself.
#[derive(Clone, Debug, Default)]
pub struct ClusterReport {
    /// Nodes of the machines, by name.
    pub nodes: BTreeMap<String, Node>,
    /// The pods that were found, by name.
    pub pods: BTreeMap<String, Pod>,
    /// What etcd says, or why it could not be asked.
    pub etcd: Option<Result<EtcdStatus, String>>,
}

/// What is known of the cluster.
#[derive(Clone, Debug)]
pub(super) enum Contact {
    /// Its API server has not answered yet.
    Early,
    /// It cannot be reached.
    Down(String),
    /// It said this.
    Seen(Box<ClusterReport>),
}

impl Contact {
    /// Whether it cannot be reached.
    pub(super) fn is_down(&self) -> bool {
        matches!(self, Self::Down(_))
    }
}

/// A machine, as far as its parts go.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineHealth {
    pub(super) node: Option<String>,
    pub(super) deleted: bool,
    /// Its taints are somebody's own.
    pub(super) untainted: bool,
}

/// What the conditions of a machine say, by type.
pub(super) type Verdicts = BTreeMap<&'static str, ConditionVerdict>;

/// How the parts on a machine are.
pub(super) fn examine(host: &MachineHealth, contact: &Contact, etcd_managed: bool) -> Verdicts {
    let pods = PODS.iter().filter(|(_, pod)| etcd_managed || *pod != "etcd");
    let all = |verdict: &dyn Fn(&'static str) -> ConditionVerdict| -> Verdicts {
        let mut verdicts: Verdicts = pods.clone().map(|(type_, _)| (*type_, verdict(type_))).collect();
        verdicts.insert(NODE_MARKED, verdict(NODE_MARKED));
        if etcd_managed {
            verdicts.insert(ETCD_MEMBER, verdict(ETCD_MEMBER));
        }
        verdicts
    };
    let unknown = |reason: &'static str, message: &str| all(&|_| ConditionVerdict::unknown(reason, message));
    let seen = match contact {
        Contact::Early => return unknown(INSPECTION_FAILED, "Waiting for the control plane to be initialized"),
        Contact::Down(message) => return unknown(CONNECTION_DOWN, message),
        Contact::Seen(seen) => seen,
    };
    if host.deleted {
        return all(&|_| ConditionVerdict::no("Deleting", "The Machine is being deleted"));
    }
    let Some(name) = &host.node else { return unknown(INSPECTION_FAILED, "Waiting for the Machine's Node") };
    let Some(node) = seen.nodes.get(name) else {
        return unknown(INSPECTION_FAILED, &format!("There is no Node {name}"));
    };
    let mut verdicts = if is_unreachable(node) {
        unknown(INSPECTION_FAILED, &format!("The Node {name} is unreachable"))
    } else if ready(node) == Truth::Unknown {
        unknown(INSPECTION_FAILED, &format!("Nobody knows whether the Node {name} is ready"))
    } else {
        let mut verdicts: Verdicts =
            pods.map(|(type_, pod)| (*type_, examine_pod(seen.pods.get(&format!("{pod}-{name}"))))).collect();
        verdicts.insert(NODE_MARKED, examine_node(node, host.untainted));
        verdicts
    };
    if etcd_managed {
        verdicts.insert(ETCD_MEMBER, examine_member(name, seen.etcd.as_ref()));
    }
    verdicts
}

/// The state of each part, for decisions.
pub(super) fn states(verdicts: &Verdicts) -> plan::ComponentHealth {
    let state = |type_: &str| match verdicts.get(type_).map(|verdict| verdict.truth) {
        Some(Truth::True) => WellState::True,
        Some(Truth::False) => WellState::False,
        _ => WellState::Unknown,
    };
    let [api_server, controller_manager, scheduler, etcd_pod] = PODS.map(|(type_, _)| state(type_));
    let (etcd_member, node) = (state(ETCD_MEMBER), state(NODE_MARKED));
    plan::ComponentHealth { api_server, controller_manager, scheduler, etcd_pod, etcd_member, node }
}

fn examine_node(node: &Node, untainted: bool) -> ConditionVerdict {
    let labelled = node.labels().contains_key(NODE_LABEL);
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let tainted = untainted || taints.iter().any(|taint| taint.key == NODE_LABEL);
    match (labelled, tainted) {
        (true, true) => ConditionVerdict::yes("Set"),
        (false, _) => ConditionVerdict::no("NotSet", format!("The Node lacks the label {NODE_LABEL}")),
        (true, false) => ConditionVerdict::no("NotSet", format!("The Node lacks the taint {NODE_LABEL}")),
    }
}

/// Whether a node is ready.
pub(super) fn ready(node: &Node) -> Truth {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    ready.map_or(Truth::False, |ready| Truth::read(&ready.status))
}

fn is_unreachable(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == "node.kubernetes.io/unreachable")
}

fn examine_pod(pod: Option<&Pod>) -> ConditionVerdict {
    let Some(pod) = pod else { return ConditionVerdict::no("DoesNotExist", "The Pod does not exist") };
    let Some(status) = &pod.status else {
        return ConditionVerdict::unknown(INSPECTION_FAILED, "The Pod says nothing of itself");
    };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let holds = |type_: &str| conditions.iter().any(|one| one.type_ == type_ && one.status == "True");
    let provisioning = |reason: &str| ConditionVerdict::no("Provisioning", reason);
    match status.phase.as_deref().unwrap_or_default() {
        "Pending" if !holds("PodScheduled") => provisioning("The Pod has no Node yet"),
        "Pending" if !holds("Initialized") => provisioning("Init containers are running"),
        "Pending" => provisioning("The Pod is starting"),
        "Running" if holds("Ready") => ConditionVerdict::yes("Running"),
        "Running" => examine_containers(status.container_statuses.as_deref().unwrap_or_default()),
        "Succeeded" | "Failed" => ConditionVerdict::no("Failed", "All containers have ended"),
        _ => ConditionVerdict::unknown(INSPECTION_FAILED, "The Pod's phase is not known"),
    }
}

/// Why a pod that runs is not ready.
fn examine_containers(containers: &[ContainerStatus]) -> ConditionVerdict {
    let states = || containers.iter().filter_map(|container| container.state.as_ref());
    let waiting: Vec<&str> =
        states().filter_map(|state| state.waiting.as_ref()).filter_map(|state| state.reason.as_deref()).collect();
    if !waiting.is_empty() {
        let last = containers.iter().filter_map(|container| container.last_state.as_ref()?.terminated.as_ref());
        let failed = last.into_iter().any(|terminated| terminated.exit_code != 0);
        return ConditionVerdict::no(if failed { "Failed" } else { "Provisioning" }, brief(&waiting.join(", ")));
    }
    let ended: Vec<&str> =
        states().filter_map(|state| state.terminated.as_ref()).filter_map(|state| state.reason.as_deref()).collect();
    if ended.is_empty() {
        ConditionVerdict::no("Provisioning", "Waiting for its probes")
    } else {
        ConditionVerdict::no("Failed", brief(&ended.join(", ")))
    }
}

fn examine_member(node: &str, etcd: Option<&Result<EtcdStatus, String>>) -> ConditionVerdict {
    let etcd = match etcd {
        None => return ConditionVerdict::unknown(INSPECTION_FAILED, "etcd was not asked yet"),
        Some(Err(reason)) => {
            return ConditionVerdict::unknown(INSPECTION_FAILED, format!("etcd cannot be asked: {reason}"));
        }
        Some(Ok(etcd)) => etcd,
    };
    let Some(member) = etcd.members.iter().find(|member| member.name == node) else {
        return ConditionVerdict::no("NotHealthy", format!("etcd has no member {node}"));
    };
    if member.learner {
        return ConditionVerdict::no("NotHealthy", "The member of etcd has no vote yet");
    }
    if let Some(reason) = etcd.silent.get(node) {
        return ConditionVerdict::unknown(INSPECTION_FAILED, format!("The member of etcd does not answer: {reason}"));
    }
    let alarms: Vec<&str> =
        etcd.alarms.iter().filter(|(id, _)| *id == member.id).map(|(_, alarm)| alarm.as_str()).collect();
    if alarms.is_empty() {
        return ConditionVerdict::yes("Healthy");
    }
    ConditionVerdict::no("NotHealthy", brief(&format!("etcd raises alarms: {}", alarms.join(", "))))
}

/// What is wrong with etcd as a whole: members without a machine.
pub(super) fn strays(hosts: &[MachineHealth], etcd: Option<&EtcdStatus>) -> Vec<String> {
    let owned = |name: &str| hosts.iter().any(|host| host.node.as_deref() == Some(name));
    let members = etcd.map(|etcd| etcd.members.as_slice()).unwrap_or_default();
    let strays = members.iter().filter(|member| !owned(&member.name));
    strays
        .map(|member| match member.name.as_str() {
            "" => format!("The member {:x} of etcd has not started", member.id),
            name => format!("The member {} of etcd belongs to no Machine", brief(name)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::control_plane::plan::EtcdMember;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    fn fine(name: &str) -> Node {
        node(json!({
            "metadata": {"name": name, "labels": {NODE_LABEL: ""}},
            "spec": {"taints": [{"key": NODE_LABEL, "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
    }

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap()
    }

    fn running() -> Pod {
        pod(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}))
    }

    fn seen() -> ClusterReport {
        let pods = PODS.map(|(_, name)| (format!("{name}-n1"), running()));
        let member = EtcdMember { id: 1, name: "n1".into(), learner: false };
        ClusterReport {
            nodes: [("n1".to_owned(), fine("n1"))].into(),
            pods: pods.into(),
            etcd: Some(Ok(EtcdStatus { members: vec![member], leader: 1, ..EtcdStatus::default() })),
        }
    }

    fn host() -> MachineHealth {
        MachineHealth { node: Some("n1".into()), ..MachineHealth::default() }
    }

    fn examined(host: &MachineHealth, seen: ClusterReport) -> plan::ComponentHealth {
        states(&examine(host, &Contact::Seen(Box::new(seen)), true))
    }

    #[test]
    fn machines_are_well_when_all_of_their_parts_are() {
        assert_eq!(examined(&host(), seen()), plan::ComponentHealth::WELL);
        let none = plan::ComponentHealth::default();
        for (contact, what) in [(Contact::Early, "early"), (Contact::Down("no route".into()), "down")] {
            assert_eq!(states(&examine(&host(), &contact, true)), none, "{what}");
        }
        assert_eq!(examined(&MachineHealth { node: None, ..host() }, seen()), none);
        assert_eq!(
            examined(&host(), ClusterReport { nodes: BTreeMap::new(), ..seen() }).api_server,
            WellState::Unknown
        );
        let going = examined(&MachineHealth { deleted: true, ..host() }, seen());
        assert_eq!(
            (going.api_server, going.etcd_member, going.node),
            (WellState::False, WellState::False, WellState::False)
        );
        let external = examine(&host(), &Contact::Seen(Box::new(seen())), false);
        assert_eq!(
            external.keys().copied().collect::<Vec<_>>(),
            ["APIServerPodHealthy", "ControllerManagerPodHealthy", NODE_MARKED, "SchedulerPodHealthy",]
        );
    }

    #[test]
    fn nodes_that_nobody_hears_of_say_nothing_of_their_pods() {
        let mut lost = seen();
        lost.nodes.insert(
            "n1".into(),
            node(json!({"metadata": {"name": "n1"},
            "spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}})),
        );
        let health = examined(&host(), lost);
        assert_eq!((health.api_server, health.etcd_member), (WellState::Unknown, WellState::True));
        let mut silent = seen();
        silent.nodes.insert(
            "n1".into(),
            node(json!({"metadata": {"name": "n1"},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})),
        );
        assert_eq!(examined(&host(), silent).scheduler, WellState::Unknown);
    }

    #[test]
    fn nodes_have_the_labels_and_taints_of_kubeadm() {
        let bare = node(json!({"metadata": {"name": "n"}}));
        assert_eq!(examine_node(&bare, true).reason, "NotSet");
        let labelled = node(json!({"metadata": {"labels": {NODE_LABEL: ""}}}));
        assert_eq!(
            (examine_node(&labelled, false).reason.as_str(), examine_node(&labelled, true).reason.as_str()),
            ("NotSet", "Set")
        );
    }

    #[test]
    fn pods_say_how_they_are() {
        let waiting = |reason: &str, code: Option<i32>| {
            let last = code.map(|code| json!({"terminated": {"exitCode": code}})).unwrap_or(json!({}));
            json!({"phase": "Running", "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false,
                "restartCount": 1, "state": {"waiting": {"reason": reason}}, "lastState": last}]})
        };
        let ended = json!({"phase": "Running", "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false,
            "restartCount": 1, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]});
        for (status, truth, reason) in [
            (json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}), Truth::True, "Running"),
            (json!({"phase": "Pending"}), Truth::False, "Provisioning"),
            (json!({"phase": "Running"}), Truth::False, "Provisioning"),
            (waiting("CrashLoopBackOff", Some(1)), Truth::False, "Failed"),
            (waiting("ErrImagePull", None), Truth::False, "Provisioning"),
            (ended, Truth::False, "Failed"),
            (json!({"phase": "Failed"}), Truth::False, "Failed"),
            (json!({"phase": "Succeeded"}), Truth::False, "Failed"),
            (json!({"phase": "Unknown"}), Truth::Unknown, INSPECTION_FAILED),
            (json!({}), Truth::Unknown, INSPECTION_FAILED),
        ] {
            let verdict = examine_pod(Some(&pod(status.clone())));
            assert_eq!((verdict.truth, verdict.reason.as_str()), (truth, reason), "{status}");
        }
        assert_eq!(examine_pod(None).reason, "DoesNotExist");
    }

    #[test]
    fn members_say_how_they_are() {
        let etcd = |change: fn(&mut EtcdStatus)| {
            let member = EtcdMember { id: 7, name: "n1".into(), learner: false };
            let mut etcd = EtcdStatus { members: vec![member], leader: 7, ..EtcdStatus::default() };
            change(&mut etcd);
            Some(Ok(etcd))
        };
        for (etcd, truth) in [
            (etcd(|_| {}), Truth::True),
            (etcd(|etcd| etcd.members[0].learner = true), Truth::False),
            (etcd(|etcd| etcd.alarms.push((7, "NOSPACE".into()))), Truth::False),
            (etcd(|etcd| etcd.alarms.push((8, "NOSPACE".into()))), Truth::True),
            (etcd(|etcd| etcd.members.clear()), Truth::False),
            (etcd(|etcd| drop(etcd.silent.insert("n1".into(), "no answer".into()))), Truth::Unknown),
            (etcd(|etcd| drop(etcd.silent.insert("n2".into(), "no answer".into()))), Truth::True),
            (Some(Err("no route".into())), Truth::Unknown),
            (None, Truth::Unknown),
        ] {
            assert_eq!(examine_member("n1", etcd.as_ref()).truth, truth, "{etcd:?}");
        }
        let stray = |name: &str| EtcdMember { id: 255, name: name.into(), learner: false };
        let all = EtcdStatus { members: vec![stray("n1"), stray("n2"), stray("")], ..EtcdStatus::default() };
        let told = strays(&[host()], Some(&all));
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("n2") && told[1].contains("ff"), "{told:?}");
        assert!(strays(&[host()], None).is_empty());
    }
}
