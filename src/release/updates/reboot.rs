//! What a GracefulRebootRequest asks of which machine, and how far it is. Pure.
//!
//! A machine that is to reboot for a request gets two annotations in one write: the published one, which `release::lcm` works off and
//! takes away, and the request's UID, which stays. So nobody reboots twice for one request, whatever is killed when.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::api::kaas::GracefulRebootRequest;
use crate::api::lcm::{ANNOTATION_GRACEFUL_REBOOT, ANNOTATION_REBOOT_REQUEST, LCMCluster, LCMMachine};
use crate::release::words::public;
use crate::runtime::conditions::find;

/// Machines that a message names.
const TOLD: usize = 5;

/// What is to be done about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebootStep {
    /// It is early, or somebody must mend something.
    Wait(&'static str, String),
    /// These machines are to be marked.
    Mark(Vec<String>),
    /// Machines reboot: so many of so many have.
    Run(usize, usize, String),
    /// All of them have, so many.
    Done(usize),
}

/// Whether a machine was marked for a request.
pub fn is_marked(machine: &LCMMachine, uid: &str) -> bool {
    machine.annotations().get(ANNOTATION_REBOOT_REQUEST).is_some_and(|is| is == uid)
}

/// Whether a machine is marked, and has not been asked to reboot yet.
pub fn may_be_taken_back(machine: &LCMMachine, uid: &str) -> bool {
    let reboot = machine.status.as_ref().and_then(|status| status.reboot.as_ref());
    is_marked(machine, uid)
        && machine.annotations().contains_key(ANNOTATION_GRACEFUL_REBOOT)
        && reboot.is_none_or(|reboot| reboot.requested_at.is_none())
}

fn is_through(machine: &LCMMachine) -> bool {
    let reboot = machine.status.as_ref().and_then(|status| status.reboot.as_ref());
    !machine.annotations().contains_key(ANNOTATION_GRACEFUL_REBOOT) && reboot.is_none()
}

/// What is to be done about a request, with the machines of its cluster.
pub fn decide(
    request: &GracefulRebootRequest,
    lcm: Option<&LCMCluster>,
    ready: bool,
    machines: &[LCMMachine],
) -> RebootStep {
    let uid = request.uid().unwrap_or_default();
    let Some(lcm) = lcm else {
        let reason = format!("there is no Cluster {} that is made of a release", request.name_any());
        return RebootStep::Wait("NoCluster", reason);
    };
    let named: BTreeSet<&str> = request.spec.machines.iter().map(String::as_str).collect();
    let made = |meta: &ObjectMeta| meta.creation_timestamp.as_ref().map(|time| time.0);
    // Who comes later has just been installed.
    let is_old = |machine: &LCMMachine| made(&machine.metadata) <= made(&request.metadata);
    let is_meant = |machine: &&LCMMachine| match named.is_empty() {
        true => is_old(machine),
        false => named.contains(machine.name_any().as_str()),
    };
    let stays = |machine: &&LCMMachine| machine.metadata.deletion_timestamp.is_none();
    let meant: Vec<&LCMMachine> = machines.iter().filter(is_meant).filter(stays).collect();
    let (marked, open): (Vec<&LCMMachine>, Vec<&LCMMachine>) = meant.into_iter().partition(|one| is_marked(one, &uid));
    if marked.is_empty() {
        let there: BTreeSet<String> = machines.iter().map(ResourceExt::name_any).collect();
        let missing: Vec<&str> = named.iter().filter(|name| !there.contains(**name)).copied().take(TOLD).collect();
        if !missing.is_empty() {
            let reason = format!("the cluster has no machine {}: take it out of spec.machines", missing.join(", "));
            return RebootStep::Wait("NoMachine", reason);
        }
        let has = lcm.status.as_ref().map_or("", |status| status.release.as_str());
        if lcm.spec.maintenance {
            return RebootStep::Wait(
                "Maintenance",
                "the Cluster is in maintenance: it begins when that is over".into(),
            );
        }
        if !ready || has != lcm.spec.release {
            let reason = "the Cluster is not Ready: it begins when that is so; slipway describe says what it waits for";
            return RebootStep::Wait("NotReady", reason.into());
        }
    }
    if !open.is_empty() {
        return RebootStep::Mark(open.iter().map(|one| one.name_any()).collect());
    }
    let waiting: Vec<&&LCMMachine> = marked.iter().filter(|one| !is_through(one)).collect();
    if waiting.is_empty() {
        return RebootStep::Done(marked.len());
    }
    let told: Vec<String> = waiting.iter().take(TOLD).map(|one| said(one)).collect();
    RebootStep::Run(marked.len() - waiting.len(), marked.len(), told.join("; "))
}

fn said(machine: &LCMMachine) -> String {
    let conditions = machine.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let name = machine.name_any();
    if machine.spec.maintenance {
        return format!("{name} is in maintenance, and reboots after it");
    }
    match find(conditions, "Ready").filter(|ready| !ready.message.is_empty()) {
        Some(ready) => format!("{name}: {}", public(&ready.message)),
        None => format!("{name} is to reboot"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn request(machines: &[&str]) -> GracefulRebootRequest {
        serde_json::from_value(json!({"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "GracefulRebootRequest",
            "metadata": {"name": "c", "uid": "u", "creationTimestamp": "2026-01-01T00:00:10Z"}, "spec": {"machines": machines}}))
        .unwrap()
    }

    fn lcm(change: Value) -> LCMCluster {
        let mut lcm = json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMCluster", "metadata": {"name": "c"},
            "spec": {"release": "r1"}, "status": {"release": "r1"}});
        json_patch::merge(&mut lcm, &change);
        serde_json::from_value(lcm).unwrap()
    }

    /// `.` untouched, `m` marked, `a` asked to reboot, `d` through, `o` marked for another request, `l` younger than the request.
    fn machine(name: &str, is: char) -> LCMMachine {
        let mut one = json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "LCMMachine", "spec": {},
            "metadata": {"name": name, "annotations": {}, "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {}});
        if "mado".contains(is) {
            one["metadata"]["annotations"][ANNOTATION_REBOOT_REQUEST] = json!(if is == 'o' { "other" } else { "u" });
        }
        if "ma".contains(is) {
            one["metadata"]["annotations"][ANNOTATION_GRACEFUL_REBOOT] = json!("true");
        }
        match is {
            'a' => one["status"]["reboot"] = json!({"requestedAt": "2026-01-01T00:00:00Z"}),
            'l' => one["metadata"]["creationTimestamp"] = json!("2026-01-01T00:01:00Z"),
            _ => {}
        }
        serde_json::from_value(one).unwrap()
    }

    #[test]
    fn a_request_marks_each_machine_once_and_ends() {
        let good = lcm(json!({}));
        for (machines, lcm, ready, states, wanted) in [
            (&[][..], None, true, ".", "NoCluster"),
            (&["x"], Some(&good), true, "..", "no machine x"),
            (&[], Some(&lcm(json!({"spec": {"maintenance": true}}))), true, "..", "maintenance"),
            (&[], Some(&good), false, "..", "not Ready"),
            (&[], Some(&lcm(json!({"spec": {"release": "r2"}}))), true, "..", "not Ready"),
            (&[], Some(&good), true, "..", "Mark([\"m0\", \"m1\"])"),
            (&["m1"], Some(&good), true, "..", "Mark([\"m1\"])"),
            (&[], Some(&good), true, ".o", "Mark([\"m0\", \"m1\"])"),
            (&[], Some(&good), true, ".l", "Mark([\"m0\"])"),
            // Killed after the first one; once it has begun the cluster is not ready, of course.
            (&[], Some(&good), false, "a.", "Mark([\"m1\"])"),
            (&[], Some(&good), false, "am", "Run(0, 2"),
            (&[], Some(&good), false, "dm", "Run(1, 2"),
            (&[], Some(&good), false, "dd", "Done(2)"),
            (&["m0"], Some(&good), false, "d.", "Done(1)"),
            (&[], Some(&good), false, "ddl", "Done(2)"),
            // A machine that it named went meanwhile.
            (&["m0", "gone"], Some(&good), false, "d", "Done(1)"),
            (&[], Some(&good), true, "", "Done(0)"),
        ] {
            let all: Vec<LCMMachine> =
                states.chars().enumerate().map(|(at, is)| machine(&format!("m{at}"), is)).collect();
            let said = format!("{:?}", decide(&request(machines), lcm, ready, &all));
            assert!(said.contains(wanted), "{machines:?} {states}: {said}, not {wanted}");
        }
        // Whoever may view a request may not read what scripts print.
        let mut ill = machine("m0", 'a');
        let failed = json!([{"type": "Ready", "status": "False", "reason": "Failed", "lastTransitionTime": "2026-01-01T00:00:00Z",
            "message": "step a failed with exit code 1 (attempt 1): s3cret"}]);
        ill.status.as_mut().unwrap().conditions = serde_json::from_value(failed).unwrap();
        let said = format!("{:?}", decide(&request(&[]), Some(&good), false, &[ill]));
        assert!(said.contains("m0: step a failed with exit code 1 (attempt 1)") && !said.contains("s3cret"), "{said}");
        for (is, wanted) in [('.', false), ('m', true), ('a', false), ('d', false), ('o', false)] {
            assert_eq!(may_be_taken_back(&machine("m", is), "u"), wanted, "{is}");
        }
    }
}
