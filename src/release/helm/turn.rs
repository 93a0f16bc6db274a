//! Whether a cluster is to have its Helm controller now. Pure.

use crate::api::lcm::{HelmBundle, MachineRole};

/// What of a machine counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HelmMachine {
    /// What it is to be.
    pub role: MachineRole,
    /// Whether it is a node that is ready.
    pub is_ready: bool,
}

/// What is to be done about a cluster's Helm controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HelmTurn {
    /// There is nothing that it would do.
    NoCharts,
    /// For this it waits.
    Wait(String),
    /// It is to be there.
    Go,
}

/// Of a cluster with this bundle. One that has had its controller keeps it: charts that are not wanted any more are to be taken away.
pub(super) fn turn(bundle: Option<&HelmBundle>, was_deployed: bool, machines: &[HelmMachine]) -> HelmTurn {
    if was_deployed {
        return HelmTurn::Go;
    }
    if bundle.is_none_or(|bundle| bundle.spec.releases.is_empty()) {
        return HelmTurn::NoCharts;
    }
    let any = |role: MachineRole| machines.iter().any(|one| one.role == role);
    let is_ready = |role: MachineRole| machines.iter().any(|one| one.role == role && one.is_ready);
    if !is_ready(MachineRole::Control) {
        return HelmTurn::Wait("a manager must be Ready first".into());
    }
    // What runs of charts runs on workers, where there are some.
    if any(MachineRole::Worker) && !is_ready(MachineRole::Worker) {
        return HelmTurn::Wait("a worker must be Ready first".into());
    }
    HelmTurn::Go
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_controller_comes_once_a_manager_and_a_worker_are_ready() {
        let bundle = |releases: serde_json::Value| -> HelmBundle {
            serde_json::from_value(
                json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "HelmBundle", "metadata": {"name": "c"},
                "spec": {"releases": releases}}),
            )
            .unwrap()
        };
        let (with, without) = (bundle(json!([{"name": "a", "chart": "r/a"}])), bundle(json!([])));
        let one = |role, is_ready| HelmMachine { role, is_ready };
        let (manager, worker) = (MachineRole::Control, MachineRole::Worker);
        let rows: [(Option<&HelmBundle>, bool, Vec<HelmMachine>, &str); 9] = [
            (None, false, vec![one(manager, true)], "no charts"),
            (Some(&without), false, vec![one(manager, true), one(worker, true)], "no charts"),
            (Some(&with), false, vec![], "a manager"),
            (Some(&with), false, vec![one(manager, false), one(worker, true)], "a manager"),
            (Some(&with), false, vec![one(manager, true), one(worker, false)], "a worker"),
            (Some(&with), false, vec![one(manager, true), one(worker, false), one(worker, true)], "go"),
            (Some(&with), false, vec![one(manager, true), one(MachineRole::Bastion, false)], "go"),
            // It is to take away what the last chart left.
            (Some(&without), true, vec![], "go"),
            (None, true, vec![one(manager, false)], "go"),
        ];
        for (bundle, was_deployed, machines, wanted) in rows {
            let said = match turn(bundle, was_deployed, &machines) {
                HelmTurn::NoCharts => "no charts".to_owned(),
                HelmTurn::Wait(reason) => reason,
                HelmTurn::Go => "go".to_owned(),
            };
            assert!(said.starts_with(wanted), "{said} instead of {wanted}: {machines:?}");
        }
    }
}
