//! Groups of machines that get another release together, as their cluster names them. Pure.

use super::order::WorkerGroup;
use super::survey::{Machine, Survey};
use crate::api::kaas::{control_group, default_group};
use crate::api::lcm::{LCMClusterSpec, LcmUpdateGroup, LcmUpdateGroupStatus, MachineRole, NodeState};

/// Workers that are drained at once where nobody says.
const AT_ONCE: i32 = 1;

/// The groups of a cluster's workers. The first one is of those that are of no other, whether anybody names it or not.
pub(super) fn of_workers(cluster: &str, spec: &LCMClusterSpec) -> Vec<WorkerGroup> {
    let (default, control) = (default_group(cluster), control_group(cluster));
    let named = spec.update_groups.iter().find(|group| group.name == default);
    let first = named.cloned().unwrap_or_else(|| LcmUpdateGroup {
        name: default.clone(),
        index: 1,
        concurrent_updates: spec.max_worker_upgrade_count.unwrap_or(AT_ONCE),
        ..LcmUpdateGroup::default()
    });
    let others = spec.update_groups.iter().filter(|group| group.name != default && group.name != control);
    std::iter::once(&first).chain(others).map(worker_group).collect()
}

fn worker_group(group: &LcmUpdateGroup) -> WorkerGroup {
    WorkerGroup {
        name: group.name.clone(),
        index: group.index,
        at_once: usize::try_from(group.concurrent_updates).unwrap_or_default().max(1),
        reboots: group.reboot_if_update_requires,
        paused: Some(group.paused.clone()).filter(|reason| !reason.is_empty()),
    }
}

/// Which of the groups a worker is of that names one.
pub(super) fn place(groups: &[WorkerGroup], named: &str) -> usize {
    groups.iter().position(|group| group.name == named).unwrap_or_default()
}

/// Whether a machine reboots once it has the release that its cluster is to have.
pub(super) fn reboots(cluster: &str, spec: &LCMClusterSpec, groups: &[WorkerGroup], one: &Machine) -> bool {
    if !spec.nodes_reboot_required || !one.member.is_behind {
        return false;
    }
    match one.member.role {
        MachineRole::Control => {
            let control = control_group(cluster);
            spec.update_groups.iter().any(|group| group.name == control && group.reboot_if_update_requires)
        }
        MachineRole::Worker => groups.get(one.member.group).is_some_and(|group| group.reboots),
        MachineRole::Bastion | MachineRole::Unassigned => false,
    }
}

/// How far each group is; `waits` says for each machine what it waits for.
pub(super) fn progress<'a>(
    cluster: &str,
    release: &str,
    survey: &Survey,
    waits: impl Fn(usize) -> Option<&'a str>,
) -> Vec<LcmUpdateGroupStatus> {
    let one = |name: &str, is_of: &dyn Fn(&Machine) -> bool| {
        let of = survey.machines.iter().enumerate();
        let of: Vec<(usize, &Machine)> = of.filter(|(_, one)| !one.member.leaving && is_of(one)).collect();
        let is_through =
            |one: &Machine| one.view.status.release == release && one.member.ready && one.state == NodeState::Ready;
        let open: Vec<&(usize, &Machine)> = of.iter().filter(|(_, one)| !is_through(one)).collect();
        let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        let stuck = open.iter().find(|(_, one)| one.member.fault.is_some()).map(|(_, one)| one.member.blocks());
        let waiting = || {
            let (at, one) = open.first()?;
            Some(format!("{}: {}", one.member.name, waits(*at).filter(|reason| !reason.is_empty())?))
        };
        LcmUpdateGroupStatus {
            name: name.to_owned(),
            machines: count(of.len()),
            updated: count(of.len() - open.len()),
            under_way: count(open.iter().filter(|(_, one)| one.view.spec.release == release).count()),
            message: stuck.or_else(waiting).unwrap_or_default(),
        }
    };
    let control = one(&control_group(cluster), &|one| one.member.role == MachineRole::Control);
    let of_group = |at: usize| move |one: &Machine| one.member.role == MachineRole::Worker && one.member.group == at;
    let groups = survey.rules.groups.iter().enumerate().map(|(at, group)| one(&group.name, &of_group(at)));
    std::iter::once(control).chain(groups).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(change: Value) -> LCMClusterSpec {
        serde_json::from_value(change).unwrap()
    }

    #[test]
    fn workers_are_of_the_group_that_they_name_or_of_the_default_one() {
        let groups = of_workers("c", &spec(json!({})));
        assert_eq!((groups.len(), groups[0].name.as_str(), groups[0].index, groups[0].at_once), (1, "c-default", 1, 1));
        assert_eq!(of_workers("c", &spec(json!({"maxWorkerUpgradeCount": 4})))[0].at_once, 4);
        let named = json!([
            {"name": "c-control", "index": 1, "concurrentUpdates": 1},
            {"name": "db", "index": 3, "concurrentUpdates": 2, "paused": "not yet"},
            {"name": "c-default", "index": 2, "concurrentUpdates": 0},
        ]);
        let groups = of_workers("c", &spec(json!({"maxWorkerUpgradeCount": 4, "updateGroups": named})));
        let said: Vec<_> =
            groups.iter().map(|one| (one.name.as_str(), one.index, one.at_once, one.paused.as_deref())).collect();
        assert_eq!(said, [("c-default", 2, 1, None), ("db", 3, 2, Some("not yet"))]);
        assert_eq!((place(&groups, "db"), place(&groups, ""), place(&groups, "gone")), (1, 0, 0));
        assert_eq!(place(&groups, "c-control"), 0, "a worker is never of the control plane's");
    }
}
