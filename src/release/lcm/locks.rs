//! Workload locks: what applications in a cluster are asked before its nodes change, and what they are waited for. Pure.
//!
//! The cluster is asked first, as a whole and once for an update (the LCMClusterState `cm-CLUSTER`), then node by node, with the drain of
//! each (`cd-NAME`). Whoever has a lock there answers with it: `inactive`, for the release that he was asked for. What is in the cluster
//! was written by whoever may write there, and brings about nothing but a wait.

use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::api::lcm::{
    LCMClusterState, LCMClusterStateSpec, LCMClusterStateStatus, LOCKS_ACTIVE, LOCKS_ASKED, LOCKS_INACTIVE,
    LOCKS_NOT_ASKED, LocksState, MaintenanceScope, Request,
};
use crate::cluster::workload::brief;
use crate::hex::hex;
use crate::runtime::conditions::ConditionVerdict;

/// Longest name of a request.
const NAME_MAX: usize = 63;
/// Characters of a name that somebody in the cluster gave.
const SAID_MAX: usize = 100;

/// Name of the request to drain a machine's node.
pub(super) fn drain_name(machine: &str) -> String {
    bounded("cd", machine)
}

/// Name of the request that a cluster as a whole be ready.
pub(super) fn cluster_name(cluster: &str) -> String {
    bounded("cm", cluster)
}

fn bounded(front: &str, of: &str) -> String {
    let name = format!("{front}-{of}");
    if name.len() <= NAME_MAX {
        return name;
    }
    let digest: String = hex(&Sha256::digest(of)[..5]);
    let mut end = NAME_MAX - 1 - digest.len();
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{digest}", name.get(..end).unwrap_or_default().trim_end_matches(['-', '.']))
}

/// Whether what a request asks now was answered: what an older one was answered counts for nothing.
pub(super) fn is_answered(request: &LCMClusterState) -> bool {
    let status = request.status.as_ref();
    status.is_some_and(|status| {
        status.value == request.spec.value && status.observed_generation == request.metadata.generation
    })
}

/// Whether what a request asks of applications is enough for a scope and a release.
pub(super) fn is_enough(asked: &LCMClusterStateSpec, scope: MaintenanceScope, release: &str) -> bool {
    match (asked.scope, scope) {
        // It was made before applications were asked.
        (None, _) => true,
        (Some(asked), MaintenanceScope::Deletion) => asked == MaintenanceScope::Deletion,
        (Some(MaintenanceScope::Deletion), _) => false,
        (Some(is), wanted) => is >= wanted && asked.release == release,
    }
}

/// Whether applications hold a node that is to be drained, and its request says so.
pub(super) fn held(request: &LCMClusterState) -> Option<String> {
    let holds = |status: &&LCMClusterStateStatus| status.locks == Some(LocksState::Active);
    let status = request.status.as_ref().filter(holds).filter(|_| request.spec.value == "true")?;
    Some(format!("waits for applications in the cluster: {}", status.message))
}

/// What all nodes wait for before one of them is drained; none once the cluster's applications are ready for a scope and a release.
pub(super) fn cluster_held(
    request: Option<&LCMClusterState>,
    scope: MaintenanceScope,
    release: &str,
) -> Option<String> {
    let asks = "waits until applications in the cluster were asked whether its nodes may change";
    let request = request.filter(|one| one.spec.value == "true" && is_enough(&one.spec, scope, release));
    let Some(request) = request else { return Some(asks.to_owned()) };
    if is_answered(request) {
        return None;
    }
    let message = request.status.as_ref().map(|status| status.message.as_str()).filter(|text| !text.is_empty());
    Some(message.map_or_else(|| asks.to_owned(), |text| format!("waits for applications in the cluster: {text}")))
}

/// What is said of what applications are asked for a release, or for good.
pub(super) fn verdict(request: Option<&LCMClusterState>, release: &str) -> ConditionVerdict {
    let asks = |spec: &LCMClusterStateSpec| match spec.scope {
        None => false,
        Some(MaintenanceScope::Deletion) => true,
        Some(MaintenanceScope::Drain | MaintenanceScope::Os) => spec.release == release,
    };
    let Some(request) = request.filter(|one| one.spec.value == "true" && asks(&one.spec)) else {
        return ConditionVerdict::yes(LOCKS_NOT_ASKED);
    };
    let status = request.status.clone().unwrap_or_default();
    match status.locks {
        Some(LocksState::Active) => ConditionVerdict::no(LOCKS_ACTIVE, status.message),
        Some(LocksState::Inactive) if request.spec.request == Request::CordonDrain || is_answered(request) => {
            ConditionVerdict::yes(LOCKS_INACTIVE)
        }
        _ => ConditionVerdict::no(LOCKS_ASKED, status.message),
    }
}

/// What of a cluster counts for whether its applications are asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterNeeds<'a> {
    /// What stands.
    pub asked: Option<&'a LCMClusterStateSpec>,
    /// Whether somebody's turn waits for it.
    pub wanted: bool,
    /// Whether nodes change, or are about to.
    pub under_way: bool,
    /// Whether a node of the control plane is ready.
    pub reachable: bool,
    pub scope: MaintenanceScope,
    pub release: &'a str,
}

/// What is to be asked of the cluster's applications; none where nothing is to be written. One that asks nothing is there from the
/// beginning: with it come the definitions, by which applications can make locks.
pub(super) fn cluster_wish(cluster: &str, needs: &ClusterNeeds<'_>) -> Option<LCMClusterStateSpec> {
    let wish = |value: bool| LCMClusterStateSpec {
        cluster_name: cluster.to_owned(),
        request: Request::ClusterMaintenance,
        arg: String::new(),
        value: value.to_string(),
        release: if value { needs.release.to_owned() } else { String::new() },
        scope: value.then_some(needs.scope),
    };
    let Some(asked) = needs.asked else { return (needs.wanted || needs.reachable).then(|| wish(needs.wanted)) };
    let stands = asked.value == "true";
    match (needs.wanted || stands && needs.under_way, stands) {
        (true, true) if is_enough(asked, needs.scope, needs.release) => None,
        (true, _) => Some(wish(true)),
        (false, true) => Some(wish(false)),
        (false, false) => None,
    }
}

/// A lock, as somebody in the cluster wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkloadLock {
    pub kind: &'static str,
    pub name: String,
    pub controller: String,
    pub node: String,
    pub state: String,
    pub release: String,
    pub error: String,
    pub progress: String,
}

impl WorkloadLock {
    /// What is not as it is published is left out.
    pub(super) fn read(kind: &'static str, object: &DynamicObject) -> Self {
        let text = |at: &str| object.data.pointer(at).and_then(Value::as_str).unwrap_or_default();
        let percent = object.data.pointer("/status/inactivationProgress/percentage").and_then(Value::as_i64);
        let percent = percent.filter(|percent| (0..=100).contains(percent)).map(|percent| format!("{percent} %"));
        let does = brief(text("/status/inactivationProgress/description"));
        let parts: Vec<String> = percent.into_iter().chain(Some(does).filter(|does| !does.is_empty())).collect();
        Self {
            kind,
            name: short(&object.name_any()),
            controller: short(text("/spec/controllerName")),
            node: text("/spec/nodeName").to_owned(),
            state: short(text("/status/state")),
            release: text("/status/release").to_owned(),
            error: brief(text("/status/errorMessage")),
            progress: parts.join(", "),
        }
    }
}

fn short(text: &str) -> String {
    brief(text).chars().take(SAID_MAX).collect()
}

/// Why a lock holds the cluster or its node, and what to do; none when it does not. Whoever leaves for good leaves with any release.
pub(super) fn holds(lock: &WorkloadLock, release: Option<&str>) -> Option<String> {
    let who = format!("the application controller {:?}", lock.controller);
    let what = if lock.node.is_empty() { "the cluster".to_owned() } else { format!("node {}", short(&lock.node)) };
    let otherwise = format!("delete its {} {} to go on without it", lock.kind, lock.name);
    match lock.state.as_str() {
        "inactive" if release.is_none_or(|release| lock.release == release) => None,
        "inactive" => Some(format!(
            "{who} has let go of {what} for release {:?}, and not for {:?} yet; {otherwise}",
            short(&lock.release),
            release.unwrap_or_default()
        )),
        "failed" => {
            let error = if lock.error.is_empty() { "it does not say why" } else { &lock.error };
            Some(format!("{who} cannot let go of {what}: {error}; mend that, or {otherwise}"))
        }
        _ => {
            let progress = if lock.progress.is_empty() { String::new() } else { format!(" ({})", lock.progress) };
            Some(format!("{who} has not let go of {what} yet{progress}; {otherwise}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(spec: Value, generation: i64, status: Value) -> LCMClusterState {
        serde_json::from_value(json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMClusterState",
            "metadata": {"name": "cm-c", "generation": generation}, "spec": spec, "status": status}))
        .unwrap()
    }

    fn asked(value: &str, release: &str, scope: Value) -> Value {
        let mut spec = json!({"clusterName": "c", "type": "cluster-maintenance", "value": value, "release": release});
        if !scope.is_null() {
            spec["scope"] = scope;
        }
        spec
    }

    #[test]
    fn requests_have_names_of_bounded_length_and_their_own() {
        assert_eq!((drain_name("m"), cluster_name("m")), ("cd-m".to_owned(), "cm-m".to_owned()));
        let (one, other) = (format!("{}a", "x".repeat(100)), format!("{}b", "x".repeat(100)));
        assert!(drain_name(&one).len() <= NAME_MAX && drain_name(&one) != drain_name(&other));
        assert_eq!(drain_name(&"x".repeat(60)).len(), 63);
        assert!(drain_name(&"x".repeat(61)).len() <= NAME_MAX);
    }

    #[test]
    fn an_answer_counts_for_what_was_asked_and_for_nothing_else() {
        let true_for = |generation: i64| json!({"value": "true", "observedGeneration": generation});
        for (spec, generation, status, scope, release, wanted) in [
            (asked("true", "r2", json!("drain")), 2, true_for(2), MaintenanceScope::Drain, "r2", None),
            (asked("true", "r2", json!("os")), 2, true_for(2), MaintenanceScope::Drain, "r2", None),
            (asked("true", "r2", json!("drain")), 2, true_for(2), MaintenanceScope::Os, "r2", Some("were asked")),
            (asked("true", "r2", json!("drain")), 2, true_for(2), MaintenanceScope::Drain, "r3", Some("were asked")),
            // The request has changed since.
            (asked("true", "r3", json!("drain")), 3, true_for(2), MaintenanceScope::Drain, "r3", Some("were asked")),
            (asked("false", "", json!(null)), 3, true_for(3), MaintenanceScope::Drain, "r3", Some("were asked")),
            (
                asked("true", "r2", json!("drain")),
                2,
                json!({"message": "x holds it", "locks": "active"}),
                MaintenanceScope::Drain,
                "r2",
                Some("applications in the cluster: x holds it"),
            ),
        ] {
            let one = request(spec, generation, status);
            let said = cluster_held(Some(&one), scope, release);
            match wanted {
                None => assert_eq!(said, None, "{one:?}"),
                Some(part) => assert!(said.as_ref().is_some_and(|said| said.contains(part)), "{said:?} {one:?}"),
            }
        }
        assert!(cluster_held(None, MaintenanceScope::Drain, "r2").is_some());
        // A node that leaves is asked for that, and one that stays is not asked as if it left.
        let leaves = request(asked("true", "", json!("deletion")), 1, json!({})).spec;
        assert!(is_enough(&leaves, MaintenanceScope::Deletion, "r2"));
        assert!(!is_enough(&leaves, MaintenanceScope::Drain, ""));
        let stays = request(asked("true", "r2", json!("os")), 1, json!({})).spec;
        assert!(!is_enough(&stays, MaintenanceScope::Deletion, "r2"));
    }

    #[test]
    fn the_cluster_is_asked_once_and_for_as_long_as_nodes_change() {
        let off = request(asked("false", "", json!(null)), 1, json!({})).spec;
        let on = request(asked("true", "r2", json!("drain")), 1, json!({})).spec;
        for (asked, wanted, under_way, reachable, release, wish) in [
            // Before the cluster is there nobody can be asked.
            (None, false, false, false, "r1", None),
            (None, false, false, true, "r1", Some(("false", ""))),
            (None, true, true, true, "r2", Some(("true", "r2"))),
            (Some(&off), false, false, true, "r1", None),
            // What changes without a drain asks nobody.
            (Some(&off), false, true, true, "r2", None),
            (Some(&off), true, true, true, "r2", Some(("true", "r2"))),
            (Some(&on), true, true, true, "r2", None),
            (Some(&on), false, true, true, "r2", None),
            (Some(&on), false, true, false, "r2", None),
            (Some(&on), false, true, true, "r3", Some(("true", "r3"))),
            (Some(&on), false, false, true, "r2", Some(("false", ""))),
        ] {
            let scope = MaintenanceScope::Drain;
            let needs = ClusterNeeds { asked, wanted, under_way, reachable, scope, release };
            let made = cluster_wish("c", &needs);
            let said = made.as_ref().map(|made| (made.value.as_str(), made.release.as_str()));
            assert_eq!(said, wish, "{needs:?}");
        }
    }

    #[test]
    fn a_lock_holds_until_it_is_inactive_for_the_release() {
        let object = |spec: Value, status: Value| -> DynamicObject {
            serde_json::from_value(json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "NodeWorkloadLock",
                "metadata": {"name": "storage-n1"}, "spec": spec, "status": status}))
            .unwrap()
        };
        let spec = json!({"controllerName": "storage", "nodeName": "n1"});
        for (spec, status, release, wanted) in [
            (spec.clone(), json!({"state": "inactive", "release": "r2"}), Some("r2"), None),
            (spec.clone(), json!({"state": "inactive"}), None, None),
            (
                spec.clone(),
                json!({"state": "inactive", "release": "r1"}),
                Some("r2"),
                Some(
                    "has let go of node n1 for release \"r1\", and not for \"r2\" yet; delete its NodeWorkloadLock storage-n1 to go on without it",
                ),
            ),
            (
                spec.clone(),
                json!({"state": "active", "inactivationProgress": {"percentage": 40, "description": "moves\nservers"}}),
                Some("r2"),
                Some(
                    "the application controller \"storage\" has not let go of node n1 yet (40 %, moves servers); delete its",
                ),
            ),
            (
                spec.clone(),
                json!({"state": "failed", "errorMessage": "two disks are lost"}),
                Some("r2"),
                Some(
                    "cannot let go of node n1: two disks are lost; mend that, or delete its NodeWorkloadLock storage-n1",
                ),
            ),
            (spec.clone(), json!({"state": "failed"}), None, Some("cannot let go of node n1: it does not say why")),
            (json!({"controllerName": "db"}), json!({}), Some("r2"), Some("\"db\" has not let go of the cluster yet;")),
            // Whoever writes locks writes what they like.
            (
                json!({"controllerName": ["x"]}),
                json!("inactive"),
                Some("r2"),
                Some("\"\" has not let go of the cluster"),
            ),
            (
                spec,
                json!({"state": "inactive ", "release": {"r2": 1}, "inactivationProgress": {"percentage": 4e9}}),
                Some("r2"),
                None,
            ),
        ] {
            let lock = WorkloadLock::read("NodeWorkloadLock", &object(spec, status.clone()));
            let said = holds(&lock, release);
            match wanted {
                None if status["state"] == "inactive " => assert!(said.is_some(), "{lock:?}"),
                None => assert_eq!(said, None, "{lock:?}"),
                Some(part) => assert!(said.as_ref().is_some_and(|said| said.contains(part)), "{said:?}"),
            }
        }
        let long = object(
            json!({"controllerName": "x".repeat(5000), "nodeName": "n"}),
            json!({"state": "failed", "errorMessage": "y\n".repeat(5000)}),
        );
        let said = holds(&WorkloadLock::read("NodeWorkloadLock", &long), None).unwrap();
        assert!(said.len() < 1000 && !said.contains('\n'), "{said}");
    }
}
