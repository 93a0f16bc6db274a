//! Whether a machine has failed. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::api::cluster::keys::{ANNOTATION_REMEDIATE, ANNOTATION_SKIP_REMEDIATION};
use crate::api::cluster::v1beta2::{Cluster, HealthChecks, Machine, MachineHealthCheck};
use crate::cluster::contract::pause;
use crate::cluster::core::numbers::{range, scaled};
use crate::runtime::conditions::{self, ConditionVerdict};
use crate::runtime::owners;

/// Seconds that a machine may take to become a node, where nothing is said.
const STARTUP: i32 = 600;

/// What is to be said of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HealthJudgement {
    /// It is well; it may have failed in so many seconds, if nothing changes.
    Well(Option<i64>),
    /// It has failed: why.
    Failed(ConditionVerdict),
}

/// Whether a machine is looked at.
pub(super) fn is_target(machine: &Machine, cluster: &Cluster) -> bool {
    !pause::is_paused(Some(cluster), machine) && !machine.annotations().contains_key(ANNOTATION_SKIP_REMEDIATION)
}

/// Why a kind is no template of what remediates machines, if it is none.
pub(super) fn no_remediation(kind: &str) -> Option<String> {
    (!kind.ends_with("RemediationTemplate")).then(|| {
        format!("{kind} is no template of what remediates machines: the kind of one ends in RemediationTemplate")
    })
}

/// Whether an object was made to remediate a machine: the machine owns it, as it owns no part of itself, which it controls.
pub(super) fn is_request(object: &ObjectMeta, machine: &Machine) -> bool {
    let uid = machine.uid().unwrap_or_default();
    owners::is_owned(object, &uid) && owners::controller(object).is_none_or(|controller| controller.uid != uid)
}

/// Judges a machine; `node` is the one that it says to be, if that is there.
pub(super) fn judge(
    check: &MachineHealthCheck,
    cluster: &Cluster,
    machine: &Machine,
    node: Option<&Node>,
    now: Timestamp,
) -> HealthJudgement {
    let failed = |reason: &str, message: String| HealthJudgement::Failed(ConditionVerdict::no(reason, message));
    if machine.annotations().contains_key(ANNOTATION_REMEDIATE) {
        return failed("HasRemediateAnnotation", format!("the machine has the annotation {ANNOTATION_REMEDIATE}"));
    }
    let old = machine.status.as_ref().and_then(|status| status.deprecated.as_ref()?.v1beta1.as_ref());
    if let Some(old) = old.filter(|old| old.failure_reason.is_some() || old.failure_message.is_some()) {
        let message = old.failure_message.clone().or_else(|| old.failure_reason.clone()).unwrap_or_default();
        return failed("UnhealthyMachine", message);
    }
    let none = HealthChecks::default();
    let checks = check.spec.checks.as_ref().unwrap_or(&none);
    let mut soonest: Option<i64> = None;
    let own = machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    for wanted in checks.unhealthy_machine_conditions.iter().take(100) {
        let Some(found) = conditions::find(own, &wanted.type_).filter(|found| found.status == wanted.status) else {
            continue;
        };
        match left(found.last_transition_time.0, wanted.timeout_seconds, now) {
            0 => {
                let text =
                    format!("{} has been {} for longer than {} s", wanted.type_, wanted.status, wanted.timeout_seconds);
                return failed("UnhealthyMachine", text);
            }
            seconds => soonest = sooner(soonest, seconds),
        }
    }
    // Without an API server no machine can be a node: none of them is to blame.
    let Some(since) = begun(cluster) else { return HealthJudgement::Well(soonest) };
    let named = machine.status.as_ref().and_then(|status| status.node_ref.as_ref());
    let Some(named) = named else {
        let seconds = checks.node_startup_timeout_seconds.unwrap_or(STARTUP);
        let made = machine.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
        return match left(since.max(made), seconds, now) {
            _ if seconds == 0 => HealthJudgement::Well(soonest),
            0 => failed("NodeStartupTimeout", format!("it has no node after {seconds} s")),
            seconds => HealthJudgement::Well(sooner(soonest, seconds)),
        };
    };
    let Some(node) = node else { return failed("NodeDeleted", format!("the node {:?} is gone", named.name)) };
    let of_node = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    for found in of_node {
        let wanted = checks.unhealthy_node_conditions.iter().take(100);
        for wanted in wanted.filter(|wanted| wanted.type_ == found.type_ && wanted.status == found.status) {
            let since = found.last_transition_time.as_ref().map_or(now, |time| time.0);
            match left(since, wanted.timeout_seconds, now) {
                0 => {
                    let text = format!(
                        "the node's {} has been {} for longer than {} s",
                        found.type_, found.status, wanted.timeout_seconds
                    );
                    return failed("UnhealthyNode", text);
                }
                seconds => soonest = sooner(soonest, seconds),
            }
        }
    }
    HealthJudgement::Well(soonest)
}

fn sooner(soonest: Option<i64>, seconds: i64) -> Option<i64> {
    Some(soonest.map_or(seconds, |before| before.min(seconds)))
}

/// Since when machines can become nodes: what they run on is there, and the API server answers.
fn begun(cluster: &Cluster) -> Option<Timestamp> {
    let status = cluster.status.as_ref()?;
    let done = status.initialization.as_ref()?;
    if done.infrastructure_provisioned != Some(true) || done.control_plane_initialized != Some(true) {
        return None;
    }
    let initialized = conditions::find(&status.conditions, "ControlPlaneInitialized");
    Some(initialized.map_or(Timestamp::UNIX_EPOCH, |condition| condition.last_transition_time.0))
}

/// Seconds until something has been so for so long; 0 when it has.
fn left(since: Timestamp, seconds: i32, now: Timestamp) -> i64 {
    let over = now.duration_since(since) - SignedDuration::from_secs(i64::from(seconds));
    if over.is_negative() { (-over.as_secs()).max(1) } else { 0 }
}

/// Of so many machines, so many may have failed and something is done about them; `None` when nothing is.
pub(super) fn allowed(check: &MachineHealthCheck, expected: usize, failed: usize) -> Result<usize, String> {
    let trigger = check.spec.remediation.as_ref().and_then(|remediation| remediation.trigger_if.as_ref());
    let text = trigger.and_then(|trigger| trigger.unhealthy_in_range.as_deref());
    if let Some(text) = text {
        let (low, high) = range(text).ok_or_else(|| format!("{text:?} is no range, such as [3-5]"))?;
        if failed == 0 || (low..=high).contains(&failed) {
            return Ok(high.min(expected).saturating_sub(failed));
        }
        return Err(format!("{failed} of {expected} machines have failed, which is not within {text}"));
    }
    let most = trigger.and_then(|trigger| trigger.unhealthy_less_than_or_equal_to.as_ref());
    let most = match most {
        None => expected,
        Some(value) => {
            scaled(value, expected, false).ok_or("unhealthyLessThanOrEqualTo is neither a number nor a part")?
        }
    };
    if failed <= most {
        return Ok(most.min(expected) - failed.min(most.min(expected)));
    }
    Err(format!("{failed} of {expected} machines have failed, more than {most}"))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    use serde_json::json;

    use super::*;
    use crate::api::cluster::v1beta2::{
        ClusterInitialization, ClusterStatus, HealthCheckRemediation, MachineStatus, NodeReference, RemediationTrigger,
        UnhealthyMachineCondition, UnhealthyNodeCondition,
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn check() -> MachineHealthCheck {
        let mut check = MachineHealthCheck::new("h", Default::default());
        check.spec.checks = Some(HealthChecks {
            node_startup_timeout_seconds: Some(100),
            unhealthy_node_conditions: vec![UnhealthyNodeCondition {
                type_: "Ready".into(),
                status: "Unknown".into(),
                timeout_seconds: 50,
            }],
            unhealthy_machine_conditions: vec![UnhealthyMachineCondition {
                type_: "NodeReady".into(),
                status: "False".into(),
                timeout_seconds: 30,
            }],
        });
        check
    }

    fn cluster(initialized: bool) -> Cluster {
        let mut cluster = Cluster::new("c", Default::default());
        let mut status = ClusterStatus {
            initialization: Some(ClusterInitialization {
                infrastructure_provisioned: Some(true),
                control_plane_initialized: Some(initialized),
            }),
            ..ClusterStatus::default()
        };
        conditions::set(&mut status.conditions, "ControlPlaneInitialized", &ConditionVerdict::yes("x"), None, at(1000));
        cluster.status = Some(status);
        cluster
    }

    fn machine(node: bool) -> Machine {
        let mut machine = Machine::new("m", Default::default());
        machine.metadata.creation_timestamp = Some(Time(at(900)));
        let node_ref = node.then(|| NodeReference { name: "n".into() });
        machine.status = Some(MachineStatus { node_ref, ..MachineStatus::default() });
        machine
    }

    fn node(ready: &str) -> Node {
        let since = at(1000).to_string();
        let status = json!({"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]});
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap()
    }

    #[test]
    fn machines_fail_by_their_nodes_their_conditions_and_their_time() {
        let reason = |cluster: &Cluster, machine: &Machine, node: Option<&Node>, second| match judge(
            &check(),
            cluster,
            machine,
            node,
            at(second),
        ) {
            HealthJudgement::Well(next) => Err(next),
            HealthJudgement::Failed(verdict) => Ok(verdict.reason),
        };
        let (ready, early) = (cluster(true), cluster(false));
        // It must become a node, once it can.
        assert_eq!(reason(&ready, &machine(false), None, 1099), Err(Some(1)));
        assert_eq!(reason(&ready, &machine(false), None, 1100), Ok("NodeStartupTimeout".into()));
        assert_eq!(reason(&early, &machine(false), None, 9999), Err(None));
        assert_eq!(reason(&ready, &machine(true), None, 1000), Ok("NodeDeleted".into()));
        // Its node's conditions.
        let (well, silent) = (node("True"), node("Unknown"));
        assert_eq!(reason(&ready, &machine(true), Some(&well), 9999), Err(None));
        assert_eq!(reason(&ready, &machine(true), Some(&silent), 1040), Err(Some(10)));
        assert_eq!(reason(&ready, &machine(true), Some(&silent), 1050), Ok("UnhealthyNode".into()));
        // Its own.
        let mut own = machine(true);
        let status = own.status.get_or_insert_default();
        conditions::set(&mut status.conditions, "NodeReady", &ConditionVerdict::no("x", ""), None, at(1000));
        assert_eq!(reason(&ready, &own, Some(&well), 1029), Err(Some(1)));
        assert_eq!(reason(&ready, &own, Some(&well), 1030), Ok("UnhealthyMachine".into()));
        // Somebody says so.
        let mut marked = machine(false);
        marked.metadata.annotations = Some([(ANNOTATION_REMEDIATE.to_owned(), String::new())].into());
        assert_eq!(reason(&early, &marked, None, 1), Ok("HasRemediateAnnotation".into()));
        let mut broken = machine(true);
        let old = broken.status.get_or_insert_default().deprecated.get_or_insert_default();
        old.v1beta1.get_or_insert_default().failure_reason = Some("Broken".into());
        assert_eq!(reason(&early, &broken, None, 1), Ok("UnhealthyMachine".into()));
    }

    #[test]
    fn who_is_exempt_is_no_target() {
        let mut machine = machine(true);
        assert!(is_target(&machine, &cluster(true)));
        machine.metadata.annotations = Some([(ANNOTATION_SKIP_REMEDIATION.to_owned(), String::new())].into());
        assert!(!is_target(&machine, &cluster(true)));
    }

    #[test]
    fn something_is_done_while_few_have_failed() {
        let with = |most: Option<IntOrString>, range: Option<&str>| {
            let mut check = check();
            let trigger_if = Some(RemediationTrigger {
                unhealthy_less_than_or_equal_to: most,
                unhealthy_in_range: range.map(str::to_owned),
            });
            check.spec.remediation = Some(HealthCheckRemediation { trigger_if, template_ref: None });
            check
        };
        let part = |text: &str| Some(IntOrString::String(text.to_owned()));
        let rows = [
            (check(), 5, 5, Ok(0)),
            (check(), 0, 0, Ok(0)),
            (with(part("40%"), None), 5, 2, Ok(0)),
            (with(part("40%"), None), 5, 1, Ok(1)),
            (with(part("40%"), None), 5, 3, Err("more than 2")),
            (with(Some(IntOrString::Int(0)), None), 5, 1, Err("more than 0")),
            (with(part("much"), None), 5, 1, Err("neither")),
            (with(part("0%"), Some("[2-3]")), 5, 2, Ok(1)),
            (with(None, Some("[2-3]")), 5, 1, Err("not within [2-3]")),
            (with(None, Some("[2-3]")), 5, 4, Err("not within [2-3]")),
            (with(None, Some("[2-3]")), 5, 0, Ok(3)),
            (with(None, Some("[3-2]")), 5, 1, Err("no range")),
        ];
        for (check, expected, failed, wanted) in rows {
            match (allowed(&check, expected, failed), wanted) {
                (Ok(left), Ok(wanted)) => assert_eq!(left, wanted),
                (Err(reason), Err(wanted)) => assert!(reason.contains(wanted), "{reason}"),
                (was, wanted) => panic!("{was:?}, not {wanted:?}"),
            }
        }
    }

    #[test]
    fn a_part_of_a_machine_is_no_request_to_remediate_it() {
        let mut machine = Machine::new("m", Default::default());
        machine.metadata.uid = Some("1".into());
        let owned = |controller: bool| ObjectMeta {
            owner_references: Some(vec![owners::owner(&machine, controller)]),
            ..ObjectMeta::default()
        };
        assert!(is_request(&owned(false), &machine));
        assert!(!is_request(&owned(true), &machine), "what it runs on");
        assert!(!is_request(&ObjectMeta::default(), &machine), "anybody's");
        assert_eq!(no_remediation("Metal3RemediationTemplate"), None);
        for kind in ["Metal3MachineTemplate", "KubeadmConfigTemplate", "Metal3Remediation", ""] {
            assert!(no_remediation(kind).is_some(), "{kind}");
        }
    }
}
