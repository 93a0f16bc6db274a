//! Whose turn it is among workers: after the control plane, group by group, and in each so many at once.

use super::{Drain, MachineRole, Member, Reboot, RolloutPlan, WorkerGroup, first};

impl RolloutPlan<'_> {
    fn group(&self, at: usize) -> Option<&WorkerGroup> {
        let one = &self.members[at];
        self.rules.groups.get(one.group).filter(|_| one.role == MachineRole::Worker)
    }

    /// The place of a machine's group.
    pub(super) fn place(&self, at: usize) -> i32 {
        self.group(at).map_or(0, |group| group.index)
    }

    /// Why a worker does not begin with the release that its cluster is to have.
    pub(super) fn paused(&self, at: usize) -> Option<String> {
        self.group(at)?.paused.clone().filter(|_| self.members[at].is_behind)
    }

    /// For which group before its own a worker waits: one in which something is open. Who is in maintenance keeps nobody waiting.
    fn before(&self, at: usize, workers: &[usize], is_open: impl Fn(&Member) -> bool) -> Option<String> {
        if self.members[at].drain != Drain::None {
            return None;
        }
        let place = self.place(at);
        let is_before = |other: &&usize| {
            let one = &self.members[**other];
            self.place(**other) < place
                && one.was_deployed
                && !one.held
                && (is_open(one) || self.begun.contains(*other))
        };
        let all: Vec<usize> = workers.iter().filter(is_before).copied().collect();
        if let Some(stuck) = all.iter().find(|at| self.members[**at].fault.is_some()) {
            return Some(self.members[*stuck].blocks());
        }
        let group = &self.group(*all.first()?)?.name;
        Some(format!(
            "waits for the update group {group}, which comes before: {} of its machines are not through",
            all.len()
        ))
    }

    /// The control plane is as the release says; else for whom workers wait.
    fn managers_behind(&self, managers: &[usize]) -> Option<String> {
        let all = || managers.iter().map(|at| &self.members[*at]);
        let behind = all().find(|one| one.fault.is_some() && !(one.ready && Self::is_current(one)));
        let behind = behind.or_else(|| all().find(|one| !one.ready || !Self::is_current(one)))?;
        Some(behind.blocks())
    }

    pub(super) fn worker(&mut self, at: usize, managers: &[usize], workers: &[usize]) {
        let one = &self.members[at];
        if one.held {
            if !Self::is_current(one) {
                self.waits(at, "it is in maintenance: nothing is changed on it");
            }
            return;
        }
        if !one.deploy.handed && !one.was_deployed {
            self.join_worker(at, managers, workers);
        } else if let Some(reason) = self.paused(at) {
            self.waits(at, reason);
        } else if !one.deploy.handed || (!one.reconfigure.handed && one.deploy.done) {
            self.upgrade_worker(at, managers, workers);
        } else if !one.reconfigure.handed {
            self.hand(at);
        } else if one.reboot == Reboot::Wanted {
            let pending = managers.iter().map(|at| &self.members[*at]).find(|one| one.reboot != Reboot::None);
            if let Some(pending) = pending {
                let reason = format!("waits until manager {} has rebooted", pending.name);
                self.waits(at, reason);
            } else if let Some(reason) = self.before(at, workers, |one| one.reboot != Reboot::None) {
                self.waits(at, reason);
            } else if self.has_place(at, workers) {
                self.drain_and_reboot(at);
            }
        }
    }

    fn join_worker(&mut self, at: usize, managers: &[usize], workers: &[usize]) {
        let one = &self.members[at];
        let all = || managers.iter().map(|at| &self.members[*at]);
        if !one.is_prepared() {
            self.waits(at, "works off the steps of the phase prepare");
            return;
        }
        let reason = if managers.is_empty() {
            // Whoever brings the control plane has no machine of it here.
            self.rules.drains.then(|| "waits for a manager, and the cluster has none".to_owned())
        } else if !all().any(|one| one.was_deployed && one.ready) {
            first(self.members).map(Member::blocks)
        } else if let Some(late) = self.managers_late(managers) {
            Some(late)
        } else if self.rules.dedicated {
            None
        } else {
            all().find(|one| !one.ready || !one.is_in()).map(Member::blocks)
        };
        if let Some(reason) = reason {
            self.waits(at, reason);
            return;
        }
        let busy = |at: &usize| {
            let one = &self.members[*at];
            !one.was_deployed && one.deploy.handed && !one.ready && !one.silent || self.begun.contains(at)
        };
        if workers.iter().filter(|at| busy(at)).count() < self.rules.prepare_at_once {
            self.hand(at);
        } else {
            let most = self.rules.prepare_at_once;
            self.waits(
                at,
                format!("{most} other workers are deployed: it is the next one's turn when one of them is Ready"),
            );
        }
    }

    /// Whether one more worker may be drained; else for whom it waits.
    fn has_place(&mut self, at: usize, workers: &[usize]) -> bool {
        if self.members[at].drain != Drain::None {
            return true;
        }
        let busy = |other: &&usize| {
            let one = &self.members[**other];
            **other != at
                && one.group == self.members[at].group
                && (one.drain != Drain::None
                    || one.reboot == Reboot::Asked
                    || one.was_deployed && one.deploy.handed && !one.ready
                    || self.begun.contains(*other))
        };
        let all: Vec<usize> = workers.iter().filter(busy).copied().collect();
        if all.len() < self.group(at).map_or(1, |group| group.at_once) {
            return true;
        }
        let stuck = all.iter().find(|at| self.members[**at].fault.is_some()).or(all.first());
        let reason = stuck.map_or_else(String::new, |at| self.members[*at].blocks());
        self.waits(at, reason);
        false
    }

    fn upgrade_worker(&mut self, at: usize, managers: &[usize], workers: &[usize]) {
        if let Some(reason) = self.managers_behind(managers) {
            self.waits(at, reason);
        } else if !self.members[at].is_prepared() {
            self.waits(at, "works off the steps of the phase prepare");
        } else if self.members[at].deploy.handed {
            // What is beside what runs on it: nothing is drained.
            self.hand(at);
        } else if let Some(reason) = self.before(at, workers, |one| {
            !one.ready || !Self::is_current(one) || one.drain != Drain::None || one.reboot != Reboot::None
        }) {
            self.waits(at, reason);
        } else if self.has_place(at, workers) {
            self.drain_and_hand(at);
        }
    }
}
