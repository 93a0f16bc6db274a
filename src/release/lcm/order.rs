//! Whose turn it is: which machines are handed which phases now, and which are drained or rebooted before. Pure.
//!
//! One manager at a time, and none while another one is not as it should be: whatever happens to the one that changes, the others
//! hold the cluster. Workers follow in batches. Who waits says for what.

use crate::api::lcm::MachineRole;

/// Where a machine stands in the order: index, creation, name.
pub(super) type MachineRank = (i64, i64, String);

/// Steps of a phase on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Whether its steps are those of the release.
    pub handed: bool,
    /// Whether the release's steps are done on it.
    pub done: bool,
}

/// How far a machine is drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Drain {
    /// Nobody asked.
    #[default]
    None,
    /// It was asked for.
    Asked,
    /// It is drained.
    Done,
    /// Pods are let onto it again.
    Undoing,
}

/// How far a reboot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reboot {
    /// None is wanted.
    #[default]
    None,
    /// It is to be asked for when it is its turn.
    Wanted,
    /// It was asked for.
    Asked,
}

/// What of a machine counts for whose turn it is.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// Its name.
    pub name: String,
    /// What it is.
    pub role: MachineRole,
    /// Where it stands.
    pub rank: MachineRank,
    /// Whether its agent reported an address.
    pub heard: bool,
    /// Whether its agent is not heard any more.
    pub silent: bool,
    /// Whether nothing may be changed on it.
    pub held: bool,
    /// Whether it has begun to leave the cluster.
    pub leaving: bool,
    /// Whether it was deployed once.
    pub was_deployed: bool,
    /// Its group among those of the rules, where it is a worker.
    pub group: usize,
    /// Whether it is a node of another release than the one that the cluster is to have.
    pub is_behind: bool,
    /// Phase `prepare`.
    pub prepare: Work,
    /// Phase `deploy`.
    pub deploy: Work,
    /// Phase `reconfigure`.
    pub reconfigure: Work,
    /// Whether all that it was handed is done, and its node is ready.
    pub ready: bool,
    /// How far it is drained.
    pub drain: Drain,
    /// How far its reboot is.
    pub reboot: Reboot,
    /// Why it does not get on, where it does not.
    pub fault: Option<String>,
}

impl Member {
    fn takes_part(&self) -> bool {
        !self.leaving
    }

    fn is_prepared(&self) -> bool {
        self.prepare.handed && self.prepare.done
    }

    /// Whether it is, or becomes, a node.
    pub(super) fn is_in(&self) -> bool {
        self.was_deployed || self.deploy.handed
    }

    /// Whether something happens to it, or happened that nobody asked for.
    fn is_under_way(&self) -> bool {
        self.is_in() && (!self.ready || self.leaving) || self.drain != Drain::None || self.reboot == Reboot::Asked
    }

    /// One sentence on why others wait for it, and what to do.
    pub(super) fn blocks(&self) -> String {
        let what = if self.role == MachineRole::Control { "manager" } else { "worker" };
        match &self.fault {
            Some(fault) => format!(
                "{what} {} does not get on: {fault}; no other {what} is touched until it is Ready: mend it, for its agent tries \
                 again, or delete its Machine",
                self.name
            ),
            None if self.leaving => format!("waits until {what} {} has left the cluster", self.name),
            None => format!("waits for {what} {}, which is not Ready yet", self.name),
        }
    }
}

/// Workers that get another release together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkerGroup {
    /// Its name.
    pub name: String,
    /// Lower ones come first, equal ones at the same time.
    pub index: i32,
    /// Workers of it that are drained at once.
    pub at_once: usize,
    /// Whether they reboot for a release that requires it.
    pub reboots: bool,
    /// Why none of them begins with another release now.
    pub paused: Option<String>,
}

/// What a cluster says of the order.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// Whether control plane nodes run nothing else.
    pub dedicated: bool,
    /// Workers that prepare, or are deployed, at once.
    pub prepare_at_once: usize,
    /// Groups of workers; the first one is of those that are of no other.
    pub groups: Vec<WorkerGroup>,
    /// Whether the cluster was begun once: nobody begins it again.
    pub initialized: bool,
    /// Whether it has nodes of Kubernetes that can be drained.
    pub drains: bool,
    /// What nodes wait for before one of them is drained: applications of the cluster that are not ready for it.
    pub held: Option<String>,
}

/// What is done about a machine now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MachineTurn {
    /// It is handed the release's steps of `prepare`.
    pub prepare: bool,
    /// The same of `deploy`.
    pub deploy: bool,
    /// The same of `reconfigure`.
    pub reconfigure: bool,
    /// It is to be drained; or, `false`, to take pods again.
    pub drain: Option<bool>,
    /// Applications of the cluster are to be asked before it is drained.
    pub asks: bool,
    /// Its agent is to reboot it.
    pub reboot: bool,
    /// What it waits for.
    pub waits: Option<String>,
}

impl MachineTurn {
    /// Whether it changes something.
    pub(super) fn acts(&self) -> bool {
        self.prepare || self.deploy || self.reconfigure || self.drain.is_some() || self.reboot
    }

    /// What it changes, in words.
    pub(super) fn does(&self) -> String {
        let all = [
            (self.prepare, "steps of prepare"),
            (self.deploy, "steps of deploy"),
            (self.reconfigure, "steps of reconfigure"),
            (self.drain == Some(true), "drain"),
            (self.drain == Some(false), "uncordon"),
            (self.reboot, "reboot"),
        ];
        all.iter().filter(|(so, _)| *so).map(|(_, word)| *word).collect::<Vec<_>>().join(", ")
    }
}

/// The machine that begins, or began, a cluster: the first of the control plane that is a node, else that becomes one, else of all.
pub(super) fn first(members: &[Member]) -> Option<&Member> {
    let managers = || members.iter().filter(|one| one.role == MachineRole::Control && !one.leaving);
    let lowest = |is: fn(&Member) -> bool| managers().filter(|one| is(one)).min_by_key(|one| &one.rank);
    lowest(|one| one.was_deployed).or_else(|| lowest(|one| one.deploy.handed)).or_else(|| lowest(|_| true))
}

/// What is done about each machine, in the order of `members`.
pub(super) fn decide(members: &[Member], rules: &Rules) -> Vec<MachineTurn> {
    let mut plan =
        RolloutPlan { members, rules, turns: vec![MachineTurn::default(); members.len()], begun: Vec::new() };
    let managers = plan.sorted(MachineRole::Control);
    let workers = plan.sorted(MachineRole::Worker);
    let others = plan.sorted(MachineRole::Bastion);
    plan.prepare(&managers, usize::MAX);
    plan.prepare(&workers, rules.prepare_at_once);
    plan.prepare(&others, usize::MAX);
    for at in others {
        plan.hand(at);
    }
    for at in &managers {
        plan.manager(*at, &managers);
    }
    for at in &workers {
        plan.worker(*at, &managers, &workers);
    }
    plan.undrain();
    plan.turns
}

pub(super) struct RolloutPlan<'a> {
    members: &'a [Member],
    rules: &'a Rules,
    turns: Vec<MachineTurn>,
    /// Whose turn began in this decision.
    begun: Vec<usize>,
}

impl RolloutPlan<'_> {
    fn sorted(&self, role: MachineRole) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.members.len())
            .filter(|at| self.members[*at].role == role && self.members[*at].takes_part())
            .collect();
        all.sort_by_key(|at| (self.place(*at), &self.members[*at].rank));
        all
    }

    fn waits(&mut self, at: usize, reason: impl Into<String>) {
        self.turns[at].waits.get_or_insert(reason.into());
    }

    fn prepare(&mut self, of: &[usize], at_once: usize) {
        let busy = |one: &Member| one.prepare.handed && !one.prepare.done && !one.silent;
        let mut places = at_once.saturating_sub(of.iter().filter(|at| busy(&self.members[**at])).count());
        for at in of {
            let one = &self.members[*at];
            if one.prepare.handed || !one.heard {
                continue;
            }
            if one.held {
                self.waits(*at, "it is in maintenance: nothing is changed on it");
            } else if let Some(reason) = self.paused(*at) {
                self.waits(*at, reason);
            } else if places == 0 {
                self.waits(
                    *at,
                    format!("{at_once} other workers prepare: it is the next one's turn when one of them is done"),
                );
            } else {
                places -= 1;
                self.turns[*at].prepare = true;
            }
        }
    }

    /// Hands what is left: deploy, and what follows it.
    fn hand(&mut self, at: usize) {
        let one = &self.members[at];
        if one.held || !one.heard {
            return;
        }
        self.turns[at].deploy = !one.deploy.handed;
        self.turns[at].reconfigure = !one.reconfigure.handed;
        self.begun.push(at);
    }

    /// The first other one of the control plane to which something happens, whether it is to stay or not.
    fn busy_manager(&self, but: usize) -> Option<&Member> {
        let all = self.members.iter().enumerate().filter(|(at, one)| *at != but && one.role == MachineRole::Control);
        let mut busy = all.filter(|(at, one)| one.is_under_way() || self.begun.contains(at));
        // One with a fault says more.
        let first = busy.next()?;
        let first =
            if first.1.fault.is_some() { first } else { busy.find(|(_, one)| one.fault.is_some()).unwrap_or(first) };
        Some(first.1)
    }

    /// Whether a machine has nothing more to get or to do before it is as the release says.
    fn is_current(one: &Member) -> bool {
        one.deploy.handed && one.reconfigure.handed
    }

    fn manager(&mut self, at: usize, managers: &[usize]) {
        let one = &self.members[at];
        if one.held {
            if !Self::is_current(one) {
                self.waits(at, "it is in maintenance: nothing is changed on it");
            }
            return;
        }
        if one.deploy.handed {
            if !one.reconfigure.handed {
                self.reconfigure_manager(at);
            } else if one.reboot == Reboot::Wanted {
                self.reboot_manager(at);
            }
            return;
        }
        if one.was_deployed {
            self.upgrade_manager(at, managers);
        } else if self.rules.initialized {
            self.join_manager(at, managers);
        } else {
            self.begin(at, managers);
        }
    }

    /// Nobody has begun the cluster yet.
    fn begin(&mut self, at: usize, managers: &[usize]) {
        let chosen = first(self.members).map(|one| one.name.clone()).unwrap_or_default();
        let late = managers.iter().map(|at| &self.members[*at]).find(|one| !one.is_prepared());
        if self.members[at].name != chosen {
            self.waits(at, format!("waits for manager {chosen}, which begins the cluster"));
        } else if let Some(late) = late {
            let reason = late.fault.as_ref().map(|fault| format!(": {fault}")).unwrap_or_default();
            let reason = format!("waits until all managers have prepared; {} has not{reason}", late.name);
            self.waits(at, reason);
        } else {
            self.hand(at);
        }
    }

    fn join_manager(&mut self, at: usize, managers: &[usize]) {
        let one = &self.members[at];
        if !one.is_prepared() {
            self.waits(at, "works off the steps of the phase prepare");
        } else if let Some(busy) = self.busy_manager(at) {
            let reason = busy.blocks();
            self.waits(at, reason);
        } else if let Some(late) = self.managers_late(managers) {
            self.waits(at, late);
        } else if !managers.iter().any(|at| self.members[*at].was_deployed && self.members[*at].ready) {
            self.waits(
                at,
                "the cluster was begun once, and none of its managers is left that could take another one: bring one of them back, or \
                 make the cluster anew",
            );
        } else {
            self.hand(at);
        }
    }

    /// Which node of the control plane has not got the release yet: nobody joins with a newer one than those have whom it joins.
    fn managers_late(&self, managers: &[usize]) -> Option<String> {
        let mut all = managers.iter().map(|at| &self.members[*at]);
        let late = all.find(|one| one.was_deployed && !(one.deploy.handed && one.deploy.done))?;
        Some(match &late.fault {
            Some(_) => late.blocks(),
            None => {
                format!("waits until manager {} has the release: no node joins with a newer one than it has", late.name)
            }
        })
    }

    fn upgrade_manager(&mut self, at: usize, managers: &[usize]) {
        let late = managers.iter().map(|at| &self.members[*at]).find(|one| one.is_in() && !one.is_prepared());
        if let Some(late) = late {
            let reason = late.fault.as_ref().map(|fault| format!(": {fault}")).unwrap_or_default();
            let reason =
                format!("waits until all managers have prepared for the release; {} has not{reason}", late.name);
            self.waits(at, reason);
        } else if let Some(busy) = self.busy_manager(at) {
            let reason = busy.blocks();
            self.waits(at, reason);
        } else {
            self.drain_and_hand(at);
        }
    }

    fn drain_and_hand(&mut self, at: usize) {
        if self.rules.drains && self.members[at].drain != Drain::Done {
            self.drain(at);
        } else {
            self.hand(at);
        }
    }

    fn drain(&mut self, at: usize) {
        self.begun.push(at);
        if self.members[at].drain != Drain::Asked {
            if let Some(reason) = self.rules.held.clone() {
                self.turns[at].asks = true;
                self.waits(at, reason);
                return;
            }
            self.turns[at].drain = Some(true);
        }
        self.waits(at, "waits until its node is drained");
    }

    fn reconfigure_manager(&mut self, at: usize) {
        let one = &self.members[at];
        if !one.deploy.done {
            self.hand(at);
        } else if let Some(busy) = self.busy_manager(at) {
            let reason = busy.blocks();
            self.waits(at, reason);
        } else {
            self.hand(at);
        }
    }

    fn reboot_manager(&mut self, at: usize) {
        if let Some(busy) = self.busy_manager(at) {
            let reason = busy.blocks();
            self.waits(at, reason);
        } else {
            self.drain_and_reboot(at);
        }
    }

    fn drain_and_reboot(&mut self, at: usize) {
        let one = &self.members[at];
        if self.rules.drains && one.was_deployed && one.drain != Drain::Done {
            self.drain(at);
        } else if one.heard {
            self.turns[at].reboot = true;
            self.begun.push(at);
        }
    }

    /// Who is through takes pods again.
    fn undrain(&mut self) {
        for (at, one) in self.members.iter().enumerate() {
            let drained = matches!(one.drain, Drain::Asked | Drain::Done);
            let through = one.ready && Self::is_current(one) && one.reboot == Reboot::None && !one.leaving;
            if drained && through && !self.begun.contains(&at) {
                self.turns[at].drain = Some(false);
            }
        }
    }
}

mod workers;

#[cfg(test)]
mod tests;
