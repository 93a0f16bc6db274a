//! What is done next about a control plane. Pure: what is known of it goes in, one action comes out.
//!
//! One thing is done at a time, and the next only when the control plane has settled: etcd stands a single loss at most while it
//! changes. In this order: members of etcd that nobody owns are removed; a machine that is being deleted is waited for, and lets
//! its member go; an unhealthy machine is replaced; outdated machines are rolled out; machines are added or taken away.

mod deletion;
mod preflight;
mod quorum;
mod remediation;
mod select;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

pub use preflight::Preflight;
pub(super) use remediation::RECOVERY;
pub use remediation::{Remediation, RemediationRefusal, Retries, remediated};
pub use select::{RolloutRules, rollout_dates};

/// Whether something is well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WellState {
    /// It is.
    True,
    /// It is not.
    False,
    /// Nobody knows.
    #[default]
    Unknown,
}

/// What is known of the parts of the control plane on a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComponentHealth {
    /// Pod of the API server.
    pub api_server: WellState,
    /// Pod of the controller manager.
    pub controller_manager: WellState,
    /// Pod of the scheduler.
    pub scheduler: WellState,
    /// Pod of etcd.
    pub etcd_pod: WellState,
    /// Member of etcd.
    pub etcd_member: WellState,
    /// Labels and taints of the node.
    pub node: WellState,
}

impl ComponentHealth {
    /// Everything is well.
    #[cfg(test)]
    pub const WELL: Self = Self {
        api_server: WellState::True,
        controller_manager: WellState::True,
        scheduler: WellState::True,
        etcd_pod: WellState::True,
        etcd_member: WellState::True,
        node: WellState::True,
    };

    /// The parts that must be well before anything is changed, by the condition that shows them.
    fn parts(&self, etcd_managed: bool) -> Vec<(&'static str, WellState)> {
        let mut parts = vec![
            ("APIServerPodHealthy", self.api_server),
            ("ControllerManagerPodHealthy", self.controller_manager),
            ("SchedulerPodHealthy", self.scheduler),
        ];
        if etcd_managed {
            parts.extend([("EtcdPodHealthy", self.etcd_pod), (ETCD_MEMBER_HEALTHY, self.etcd_member)]);
        }
        parts
    }
}

/// Condition of a machine whose member of etcd is well.
pub const ETCD_MEMBER_HEALTHY: &str = "EtcdMemberHealthy";

/// A machine of the control plane.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlannedMachine {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: Timestamp,
    /// When it was deleted.
    pub deleted: Option<Timestamp>,
    /// Where it is.
    pub failure_domain: Option<String>,
    /// Name of its node, which is the name of its member of etcd too.
    pub node: Option<String>,
    /// Why it is not as it should be; nothing when it is.
    pub outdated: Vec<String>,
    /// Somebody wants this one to go first.
    pub delete_first: bool,
    /// Somebody wants it replaced.
    pub remediate_first: bool,
    /// The hook is there that keeps it until its member has left.
    pub hook: bool,
    /// Other hooks of the same kind are there.
    pub other_hooks: bool,
    /// Its deletion has come to where hooks of this kind are waited for.
    pub awaits_hook: bool,
    /// A health check failed.
    pub unhealthy: bool,
    /// The health check leaves it to the control plane to replace it.
    pub to_remediate: bool,
    /// What it replaces.
    pub replaces: Option<Remediation>,
    /// How its parts are.
    pub health: ComponentHealth,
}

impl PlannedMachine {
    fn is_deleting(&self) -> bool {
        self.deleted.is_some()
    }

    /// Whether it is to be replaced because its spec is not the wanted one.
    fn needs_rollout(&self) -> bool {
        !self.outdated.is_empty() && !self.is_deleting()
    }
}

/// A member of etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdMember {
    /// Its number.
    pub id: u64,
    /// Its name; empty until it has started.
    pub name: String,
    /// It has no vote yet.
    pub learner: bool,
}

/// What etcd says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdStatus {
    /// Its members.
    pub members: Vec<EtcdMember>,
    /// Number of the member that leads.
    pub leader: u64,
    /// Alarms, by the number of the member and in a word.
    pub alarms: Vec<(u64, String)>,
    /// Nodes whose member was asked and does not answer, with why: it is listed whether it lives or not.
    pub silent: BTreeMap<String, String>,
}

/// What is known of a control plane, and what is wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plane {
    /// Machines wished for.
    pub replicas: usize,
    /// One more machine may be there while machines are rolled out.
    pub surge: bool,
    /// etcd runs on its machines.
    pub etcd_managed: bool,
    /// Its API server has answered once.
    pub initialized: bool,
    /// The certificates are there.
    pub certificates: bool,
    /// The hook of the control plane is the last one that goes.
    pub hook_is_last: bool,
    /// Where its machines may be.
    pub failure_domains: Vec<String>,
    /// How often an unhealthy machine is replaced.
    pub retries: Retries,
    /// A machine has been deleted because it was unhealthy, and its replacement is not there yet.
    pub remediation: Option<Remediation>,
    /// Its machines.
    pub machines: Vec<PlannedMachine>,
    /// What etcd says; nothing when it could not be asked.
    pub etcd: Option<EtcdStatus>,
    /// The time.
    pub now: Timestamp,
}

impl Plane {
    fn machine(&self, name: &str) -> Option<&PlannedMachine> {
        self.machines.iter().find(|machine| machine.name == name)
    }

    fn is_deleting(&self) -> bool {
        self.machines.iter().any(PlannedMachine::is_deleting)
    }

    /// Members of etcd, where they are known.
    fn members(&self) -> &[EtcdMember] {
        self.etcd.as_ref().map(|etcd| etcd.members.as_slice()).unwrap_or_default()
    }

    /// Nodes that may lead etcd in the place of a machine's, best first.
    fn heirs(&self, machine: &PlannedMachine) -> Vec<String> {
        let others = self.machines.iter().filter(|other| other.name != machine.name && !other.is_deleting());
        let mut heirs: Vec<&PlannedMachine> = others.filter(|other| other.node.is_some()).collect();
        heirs.sort_by_key(|other| {
            let ill = other.health.etcd_member != WellState::True;
            (ill, other.unhealthy, !other.outdated.is_empty(), std::cmp::Reverse(other.created))
        });
        heirs.iter().filter_map(|heir| heir.node.clone()).collect()
    }

    /// Whether a machine leads etcd.
    fn leads(&self, machine: &PlannedMachine) -> bool {
        let Some(etcd) = &self.etcd else { return false };
        let leader = etcd.members.iter().find(|member| member.id == etcd.leader);
        leader.zip(machine.node.as_ref()).is_some_and(|(leader, node)| leader.name == *node)
    }
}

/// Hands the lead of etcd on, where it is held by a machine that is to go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    /// Node that leads.
    pub from: String,
    /// Nodes that may lead instead, best first.
    pub to: Vec<String>,
}

/// What is done.
#[derive(Clone, Debug, PartialEq)]
pub enum ControlPlaneAction {
    /// The first machine is made.
    Initialize {
        /// Where.
        failure_domain: Option<String>,
    },
    /// A further machine is made.
    Join {
        /// Where.
        failure_domain: Option<String>,
    },
    /// A machine is deleted.
    Delete {
        /// Its name.
        machine: String,
        /// The lead of etcd is handed on before.
        handover: Option<Handover>,
    },
    /// An unhealthy machine is deleted, for another will take its place.
    Replace {
        /// What is noted at the control plane before, for the replacement.
        remediation: Remediation,
        /// The lead of etcd is handed on before.
        handover: Option<Handover>,
    },
    /// A member of etcd is removed that belongs to no machine.
    RemoveMember(EtcdMember),
    /// The hook is taken off a machine whose deletion waits for it.
    Release {
        /// Its name.
        machine: String,
        /// The lead of etcd is handed on before.
        handover: Option<Handover>,
        /// Its member of etcd is removed before.
        member: Option<EtcdMember>,
    },
    /// Nothing before something else has happened.
    Wait(String),
    /// Nothing: all machines are there, and as they should be.
    Settle,
}

/// What is done, and what there is to say about it.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlPlaneDecision {
    /// What is done.
    pub action: ControlPlaneAction,
    /// Outdated machines are the reason.
    pub rolling_out: bool,
    /// Why an unhealthy machine is not replaced now.
    pub refusal: Option<RemediationRefusal>,
    /// Why machines are neither made nor deleted now.
    pub preflight: Preflight,
}

/// What is done next.
pub fn next(plane: &Plane) -> ControlPlaneDecision {
    let plain =
        |action| ControlPlaneDecision { action, rolling_out: false, refusal: None, preflight: Preflight::default() };
    if let Some(action) = deletion::stray_member(plane) {
        return plain(action);
    }
    if let Some(action) = deletion::deleting(plane) {
        let preflight = Preflight { deleting: true, ..Preflight::default() };
        return ControlPlaneDecision { preflight, ..plain(action) };
    }
    let mut refusal = None;
    match remediation::next(plane) {
        remediation::RemediationStep::Nothing => {}
        remediation::RemediationStep::Replace(action) => return plain(action),
        remediation::RemediationStep::Refuse(reason) => refusal = Some(reason),
    }
    let outdated = plane.machines.iter().filter(|machine| machine.needs_rollout()).count();
    let rolling_out = outdated > 0;
    let room = plane.replicas + usize::from(rolling_out && plane.surge);
    let count = plane.machines.len();
    let (action, preflight) = if count == 0 {
        (ControlPlaneAction::Initialize { failure_domain: select::fewest(plane) }, Preflight::default())
    } else if count < room {
        match preflight::check(plane, true, None) {
            Ok(()) => (ControlPlaneAction::Join { failure_domain: select::fewest(plane) }, Preflight::default()),
            Err(preflight) => (ControlPlaneAction::Wait(preflight.words()), preflight),
        }
    } else if count > plane.replicas || rolling_out {
        scale_down(plane)
    } else {
        (ControlPlaneAction::Settle, Preflight::default())
    };
    ControlPlaneDecision { action, rolling_out, refusal, preflight }
}

/// Takes a machine away.
fn scale_down(plane: &Plane) -> (ControlPlaneAction, Preflight) {
    let Some(machine) = select::to_delete(plane) else {
        return (ControlPlaneAction::Wait("there is no machine to delete".into()), Preflight::default());
    };
    if let Err(preflight) = preflight::check(plane, false, Some(&machine.name)) {
        return (ControlPlaneAction::Wait(preflight.words()), preflight);
    }
    match deletion::handover(plane, machine) {
        Ok(handover) => (ControlPlaneAction::Delete { machine: machine.name.clone(), handover }, Preflight::default()),
        Err(reason) => (ControlPlaneAction::Wait(reason), Preflight { etcd: true, ..Preflight::default() }),
    }
}

/// Names of the nodes that machines have.
fn nodes(plane: &Plane) -> BTreeSet<&str> {
    plane.machines.iter().filter_map(|machine| machine.node.as_deref()).collect()
}
