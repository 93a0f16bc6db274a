//! What is to be done next to bring a machine back. Pure.
//!
//! The machine is switched off first, and only then is its node taken out of service: nothing that ran on it may run elsewhere
//! while it may still run there.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;

use crate::api::infrastructure::remediation::v1beta2::{Metal3Remediation, Metal3RemediationStrategy};
use crate::api::infrastructure::remediation::{LEAST_TIMEOUT_SECONDS, REBOOT, RETRY_LIMIT, TIMEOUT_SECONDS};
use crate::api::metal3::BareMetalHost;
use crate::cluster::contract::KubeVersion;
use crate::cluster::infrastructure::names::FINALIZER_REMEDIATION;
use crate::runtime::objects;

/// Under way.
pub const RUNNING: &str = "Running";
/// The machine has to become well.
pub const WAITING: &str = "Waiting";
/// It did not, and its owner replaces it.
pub const DELETING: &str = "Deleting machine";
/// Nothing can be done.
pub const FAILED: &str = "Failed";

/// Taint of a node whose machine is off.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Value of that taint.
pub const OUT_OF_SERVICE_VALUE: &str = "nodeshutdown";
/// First version of Kubernetes that goes by it.
const KNOWS_TAINT: KubeVersion = KubeVersion { major: 1, minor: 28, patch: 0 };
/// So long after the taint pods have been told to end.
const TOLD: SignedDuration = SignedDuration::from_secs(2);

/// Kept on the remediation while the node is deleted.
pub const ANNOTATIONS_BACKUP: &str = "remediation.metal3.io/node-annotations-backup";
/// Kept on the remediation while the node is deleted.
pub const LABELS_BACKUP: &str = "remediation.metal3.io/node-labels-backup";

/// What is known of the machine's node.
#[derive(Clone, Copy, Debug)]
pub enum RemediatedNode<'a> {
    /// There is none.
    Absent,
    /// It is there; whether everything on it has ended.
    There {
        /// The node.
        node: &'a Node,
        /// Whether no pod is ending and no volume is attached.
        is_drained: bool,
    },
    /// The cluster lets nobody look at nodes.
    Forbidden,
    /// The cluster does not answer.
    Unknown,
}

/// What is known.
#[derive(Clone, Copy, Debug)]
pub struct RemediationFacts<'a> {
    /// The remediation.
    pub remediation: &'a Metal3Remediation,
    /// The machine's host, if it has one and that is there.
    pub host: Option<&'a BareMetalHost>,
    /// The machine's node.
    pub node: RemediatedNode<'a>,
    /// Now.
    pub now: Timestamp,
}

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing, ever.
    Rest,
    /// Nothing until something changes, or a while has passed.
    Await(&'static str),
    /// It begins.
    Begin,
    /// It cannot be done.
    Fail(&'static str),
    /// A finalizer holds it.
    Hold,
    /// The host is switched off and kept so.
    PowerOff,
    /// The node gets the taint.
    Taint,
    /// Labels and annotations of the node are kept.
    BackUp,
    /// The node is deleted.
    DeleteNode,
    /// The machine has to become well from now on.
    Wait,
    /// The host may be switched on again.
    PowerOn,
    /// The node loses the taint.
    Untaint,
    /// The node gets its labels and annotations again.
    Restore,
    /// Nothing holds it any more.
    Finish,
    /// It is done again.
    Retry,
    /// The machine is left to its owner.
    GiveUp(&'static str),
}

/// Annotation that keeps a host off.
pub fn power_off_annotation(remediation: &Metal3Remediation) -> String {
    format!("reboot.metal3.io/metal3-remediation-{}", remediation.uid().unwrap_or_default())
}

/// Whether it is the taint of nodes whose machines are off.
pub fn is_out_of_service(taint: &Taint) -> bool {
    taint.key == OUT_OF_SERVICE && taint.effect == "NoExecute"
}

/// Whether a cluster takes pods from a node with the taint; older ones need the node deleted.
fn knows_taint(node: &Node) -> bool {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let version = info.and_then(|info| info.kubelet_version.parse::<KubeVersion>().ok());
    version.is_none_or(|version| version >= KNOWS_TAINT)
}

fn taint(node: &Node) -> Option<&Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().find(|taint| is_out_of_service(taint))
}

/// Decides.
pub fn decide(seen: &RemediationFacts<'_>) -> Act {
    let remediation = seen.remediation;
    let status = remediation.status.clone().unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or_default();
    let is_held = objects::is_held(remediation, FINALIZER_REMEDIATION);
    if let Some(deleted) = &remediation.metadata.deletion_timestamp {
        return if is_held { leave(seen, deleted.0) } else { Act::Rest };
    }
    let Some(strategy) = remediation.spec.strategy.as_ref().filter(|one| one.type_.as_deref() == Some(REBOOT)) else {
        return Act::Rest;
    };
    if matches!(phase, DELETING | FAILED) {
        return Act::Rest;
    }
    let Some(host) = seen.host else { return Act::GiveUp("the machine has no host") };
    if !host.spec.online {
        return Act::Fail("spec.online of the host is false: somebody wants it off");
    }
    match phase {
        "" => Act::Begin,
        RUNNING if !is_held => Act::Hold,
        RUNNING => run(seen, host, is_over(seen, strategy)),
        WAITING => wait(seen, host, strategy, is_held),
        _ => Act::Rest,
    }
}

fn run(seen: &RemediationFacts<'_>, host: &BareMetalHost, is_over: bool) -> Act {
    if !host.annotations().contains_key(&power_off_annotation(seen.remediation)) {
        return Act::PowerOff;
    }
    if is_on(host) {
        // A BMC that is as dead as the machine: it is tried again, and given up.
        return if is_over { Act::Wait } else { Act::Await("the host is switched off") };
    }
    match seen.node {
        RemediatedNode::Absent | RemediatedNode::Forbidden => Act::Wait,
        // A machine that is off for ever helps nobody: it may be what the cluster needs to answer.
        RemediatedNode::Unknown | RemediatedNode::There { .. } if is_over => Act::Wait,
        RemediatedNode::Unknown => Act::Await("the cluster answers"),
        RemediatedNode::There { node, is_drained } if knows_taint(node) => match taint(node) {
            None => Act::Taint,
            Some(taint) => {
                let is_told = taint.time_added.as_ref().is_none_or(|added| seen.now.duration_since(added.0) >= TOLD);
                if is_told && is_drained { Act::Wait } else { Act::Await("everything on the node has ended") }
            }
        },
        RemediatedNode::There { node, .. } if node.metadata.deletion_timestamp.is_some() => {
            Act::Await("the node is gone")
        }
        RemediatedNode::There { .. } if !seen.remediation.annotations().contains_key(LABELS_BACKUP) => Act::BackUp,
        RemediatedNode::There { .. } => Act::DeleteNode,
    }
}

fn wait(seen: &RemediationFacts<'_>, host: &BareMetalHost, strategy: &Metal3RemediationStrategy, is_held: bool) -> Act {
    if host.annotations().contains_key(&power_off_annotation(seen.remediation)) {
        return Act::PowerOn;
    }
    if is_on(host) && is_held {
        match bring_back(seen) {
            Act::Await(_) => {}
            act => return act,
        }
    }
    if !is_over(seen, strategy) {
        return Act::Await("the machine is well");
    }
    let tried = seen.remediation.status.as_ref().and_then(|status| status.retry_count).unwrap_or_default();
    if tried < strategy.retry_limit.unwrap_or(RETRY_LIMIT) {
        return Act::Retry;
    }
    Act::GiveUp("it was tried as often as may be")
}

/// The node is in service again.
fn bring_back(seen: &RemediationFacts<'_>) -> Act {
    match seen.node {
        RemediatedNode::Forbidden => Act::Finish,
        RemediatedNode::There { node, .. } if taint(node).is_some() => Act::Untaint,
        RemediatedNode::There { .. } if seen.remediation.annotations().contains_key(LABELS_BACKUP) => Act::Restore,
        RemediatedNode::There { .. } => Act::Finish,
        RemediatedNode::Absent | RemediatedNode::Unknown => Act::Await("the node is there"),
    }
}

/// It goes: what it did is undone, as far as that can be within its time.
fn leave(seen: &RemediationFacts<'_>, deleted: Timestamp) -> Act {
    let Some(host) = seen.host else { return Act::Finish };
    if host.annotations().contains_key(&power_off_annotation(seen.remediation)) {
        return Act::PowerOn;
    }
    let strategy = seen.remediation.spec.strategy.clone().unwrap_or_default();
    let is_over = seen.now.duration_since(deleted) > timeout(&strategy);
    match bring_back(seen) {
        Act::Await(_) if is_over || matches!(seen.node, RemediatedNode::Absent) => Act::Finish,
        act => act,
    }
}

fn is_on(host: &BareMetalHost) -> bool {
    host.status.as_ref().is_some_and(|status| status.powered_on)
}

fn is_over(seen: &RemediationFacts<'_>, strategy: &Metal3RemediationStrategy) -> bool {
    let last = seen.remediation.status.as_ref().and_then(|status| status.last_remediated.as_ref());
    last.is_none_or(|last| seen.now.duration_since(last.0) > timeout(strategy))
}

fn timeout(strategy: &Metal3RemediationStrategy) -> SignedDuration {
    let seconds = strategy.timeout_seconds.unwrap_or(TIMEOUT_SECONDS).max(LEAST_TIMEOUT_SECONDS);
    SignedDuration::from_secs(seconds.into())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn merged<T: serde::de::DeserializeOwned>(mut base: Value, change: &Value) -> T {
        json_patch::merge(&mut base, change);
        serde_json::from_value(base).expect("an object")
    }

    fn remediation(change: &Value) -> Metal3Remediation {
        let base = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "Metal3Remediation",
            "metadata": {"name": "m", "uid": "u", "finalizers": [FINALIZER_REMEDIATION]},
            "spec": {"strategy": {"type": "Reboot", "retryLimit": 2, "timeoutSeconds": 300}}});
        merged(base, change)
    }

    fn at(phase: &str) -> Value {
        json!({"status": {"phase": phase, "lastRemediated": "1970-01-01T00:00:00Z"}})
    }

    fn host(change: &Value) -> BareMetalHost {
        let base = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": "h"},
            "spec": {"online": true}, "status": {"poweredOn": true}});
        merged(base, change)
    }

    fn node(version: &str, change: &Value) -> Node {
        let base = json!({"metadata": {"name": "n"}, "spec": {}, "status": {"nodeInfo": {
            "kubeletVersion": version, "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}}});
        merged(base, change)
    }

    const KEPT_OFF: &str = "reboot.metal3.io/metal3-remediation-u";

    #[test]
    fn a_machine_is_rebooted_step_by_step() {
        let tainted = json!({"spec": {"taints": [{"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute",
            "timeAdded": "1970-01-01T00:00:10Z"}]}});
        let (new, old, plain) = (node("v1.35.1", &tainted), node("v1.27.9", &json!({})), node("v1.35.1", &json!({})));
        let there = |node| RemediatedNode::There { node, is_drained: true };
        let busy = RemediatedNode::There { node: &new, is_drained: false };
        let going = node("v1.27.9", &json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:00Z"}}));
        let with = |mut base: Value, change: Value| {
            json_patch::merge(&mut base, &change);
            base
        };
        let unheld = json!({"metadata": {"finalizers": []}});
        let backup = json!({"metadata": {"annotations": {LABELS_BACKUP: "{}"}}});
        let tried = with(at(WAITING), json!({"status": {"retryCount": 2}}));
        let on = json!({});
        let dark = json!({"status": {"poweredOn": false}});
        let held_off = json!({"metadata": {"annotations": {KEPT_OFF: "{}"}}});
        let off = with(held_off.clone(), dark.clone());
        let (ending, well) = (Act::Await("everything on the node has ended"), Act::Await("the machine is well"));
        let rows: Vec<(Value, &Value, RemediatedNode<'_>, i64, Act)> = vec![
            (json!({}), &on, RemediatedNode::Absent, 0, Act::Begin),
            (with(at(RUNNING), unheld.clone()), &on, RemediatedNode::Absent, 0, Act::Hold),
            (at(RUNNING), &on, there(&plain), 0, Act::PowerOff),
            // Nothing is done with the node before the machine is off.
            (at(RUNNING), &held_off, there(&plain), 0, Act::Await("the host is switched off")),
            (at(RUNNING), &held_off, there(&plain), 300, Act::Await("the host is switched off")),
            (at(RUNNING), &held_off, there(&plain), 301, Act::Wait),
            (at(RUNNING), &off, there(&plain), 0, Act::Taint),
            (at(RUNNING), &off, there(&new), 11, ending),
            (at(RUNNING), &off, busy, 20, ending),
            (at(RUNNING), &off, there(&new), 20, Act::Wait),
            (at(RUNNING), &off, busy, 301, Act::Wait),
            (at(RUNNING), &off, there(&old), 0, Act::BackUp),
            (with(at(RUNNING), backup.clone()), &off, there(&old), 0, Act::DeleteNode),
            (with(at(RUNNING), backup.clone()), &off, there(&going), 0, Act::Await("the node is gone")),
            (at(RUNNING), &off, RemediatedNode::Absent, 0, Act::Wait),
            (at(RUNNING), &off, RemediatedNode::Forbidden, 0, Act::Wait),
            (at(RUNNING), &off, RemediatedNode::Unknown, 300, Act::Await("the cluster answers")),
            (at(RUNNING), &off, RemediatedNode::Unknown, 301, Act::Wait),
            (at(WAITING), &off, there(&new), 0, Act::PowerOn),
            (at(WAITING), &dark, there(&new), 0, well),
            (at(WAITING), &on, there(&new), 0, Act::Untaint),
            (with(at(WAITING), backup), &on, there(&plain), 0, Act::Restore),
            (at(WAITING), &on, there(&plain), 0, Act::Finish),
            (at(WAITING), &on, RemediatedNode::Forbidden, 0, Act::Finish),
            (at(WAITING), &on, RemediatedNode::Absent, 0, well),
            (with(at(WAITING), unheld.clone()), &on, there(&plain), 300, well),
            (with(at(WAITING), unheld), &on, there(&plain), 301, Act::Retry),
            (tried.clone(), &dark, RemediatedNode::Absent, 300, well),
            (tried, &on, RemediatedNode::Absent, 301, Act::GiveUp("it was tried as often as may be")),
            (at(DELETING), &on, RemediatedNode::Absent, 999, Act::Rest),
            (at(FAILED), &on, RemediatedNode::Absent, 999, Act::Rest),
            (json!({"spec": {"strategy": null}}), &on, RemediatedNode::Absent, 0, Act::Rest),
        ];
        for (change, of_host, node, second, wanted) in rows {
            let now = Timestamp::from_second(second).expect("a time");
            let (remediation, host) = (remediation(&change), host(of_host));
            let act = decide(&RemediationFacts { remediation: &remediation, host: Some(&host), node, now });
            assert_eq!(act, wanted, "{change} {of_host} {node:?} {second}");
        }
    }

    #[test]
    fn a_host_that_somebody_wants_off_stays_off_and_one_that_is_gone_is_not_waited_for() {
        let seen = |change: &Value, of_host: Option<&Value>| {
            let (remediation, host) = (remediation(change), of_host.map(host));
            let (node, now) = (RemediatedNode::Absent, Timestamp::UNIX_EPOCH);
            decide(&RemediationFacts { remediation: &remediation, host: host.as_ref(), node, now })
        };
        let off = json!({"spec": {"online": false}});
        assert!(matches!(seen(&at(RUNNING), Some(&off)), Act::Fail(_)));
        assert!(matches!(seen(&at(RUNNING), None), Act::GiveUp(_)));
    }

    #[test]
    fn one_that_goes_undoes_what_it_did_and_always_ends() {
        let deleted = json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:00Z"}, "status": {"phase": RUNNING}});
        let plain = node("v1.35.1", &json!({}));
        let tainted = node("v1.35.1", &json!({"spec": {"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]}}));
        let there = |node| RemediatedNode::There { node, is_drained: true };
        let (on, off) = (json!({}), json!({"metadata": {"annotations": {KEPT_OFF: "{}"}}}));
        let rows: Vec<(Option<&Value>, RemediatedNode<'_>, i64, Act)> = vec![
            (Some(&off), there(&tainted), 0, Act::PowerOn),
            (Some(&on), there(&tainted), 0, Act::Untaint),
            (Some(&on), there(&plain), 0, Act::Finish),
            (Some(&on), RemediatedNode::Absent, 0, Act::Finish),
            (Some(&on), RemediatedNode::Unknown, 300, Act::Await("the node is there")),
            (Some(&on), RemediatedNode::Unknown, 301, Act::Finish),
            (None, RemediatedNode::Unknown, 0, Act::Finish),
        ];
        for (of_host, node, second, wanted) in rows {
            let now = Timestamp::from_second(second).expect("a time");
            let (remediation, host) = (remediation(&deleted), of_host.map(host));
            let act = decide(&RemediationFacts { remediation: &remediation, host: host.as_ref(), node, now });
            assert_eq!(act, wanted, "{of_host:?} {node:?} {second}");
        }
    }
}
