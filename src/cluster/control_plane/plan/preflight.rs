//! Whether a control plane has settled enough for a machine to come or go.

use super::{ETCD_MEMBER_HEALTHY, Plane, WellState, quorum};

/// What keeps machines from being made or deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preflight {
    /// Certificates are lacking.
    pub certificates: bool,
    /// A machine is being deleted.
    pub deleting: bool,
    /// Parts of the control plane are not well.
    pub components: bool,
    /// etcd is not well.
    pub etcd: bool,
    /// What exactly.
    pub faults: Vec<String>,
}

impl Preflight {
    /// What is waited for, a line each.
    pub fn messages(&self) -> Vec<&'static str> {
        let all = [
            (self.deleting, "* waiting for a control plane Machine to complete deletion"),
            (self.certificates, "* cluster certificates are missing or unknown"),
            (self.components, "* waiting for control plane components to become healthy"),
            (self.etcd, "* waiting for etcd cluster to become healthy"),
        ];
        all.into_iter().filter(|(set, _)| *set).map(|(_, message)| message).collect()
    }

    /// What is waited for.
    pub(super) fn words(&self) -> String {
        let faults = self.faults.iter().map(String::as_str);
        let lines = self.messages().into_iter().map(|line| line.trim_start_matches("* "));
        lines.chain(faults).collect::<Vec<_>>().join("; ")
    }
}

/// Whether a machine may come (`joins`), or the excluded one go.
pub(super) fn check(plane: &Plane, joins: bool, excluded: Option<&str>) -> Result<(), Preflight> {
    let mut preflight = Preflight::default();
    if joins && !plane.certificates {
        preflight.certificates = true;
        return Err(preflight);
    }
    if plane.is_deleting() {
        preflight.deleting = true;
        return Err(preflight);
    }
    all_well(plane, excluded, &mut preflight);
    // With several ill machines nothing would ever be well again: a replacement comes as long as the rest stands.
    if joins && plane.remediation.is_some() && !preflight.faults.is_empty() {
        preflight = Preflight::default();
        stands(plane, &mut preflight);
    }
    if preflight.faults.is_empty() { Ok(()) } else { Err(preflight) }
}

/// Every machine has its node, and every part on it is well.
fn all_well(plane: &Plane, excluded: Option<&str>, preflight: &mut Preflight) {
    for machine in plane.machines.iter().filter(|machine| Some(machine.name.as_str()) != excluded) {
        if machine.node.is_none() {
            preflight.components = true;
            preflight.etcd |= plane.etcd_managed;
            preflight.faults.push(format!("Machine {} has no Node yet", machine.name));
            continue;
        }
        for (part, state) in machine.health.parts(plane.etcd_managed) {
            let how = match state {
                WellState::True => continue,
                WellState::False => "false",
                WellState::Unknown => "unknown",
            };
            if part == ETCD_MEMBER_HEALTHY {
                preflight.etcd = true
            } else {
                preflight.components = true
            }
            preflight.faults.push(format!("Machine {}: {part} is {how}", machine.name));
        }
    }
}

/// What is there stands a further machine that is ill.
fn stands(plane: &Plane, preflight: &mut Preflight) {
    if !quorum::components_stand(plane, None) {
        preflight.components = true;
        preflight.faults.push("no Machine has all of its control plane components in health".into());
    }
    if !plane.etcd_managed {
        return;
    }
    if plane.members().is_empty() {
        preflight.etcd = true;
        preflight.faults.push("the members of etcd are not known".into());
    } else if !quorum::etcd_stands(plane, true, None) {
        preflight.etcd = true;
        preflight.faults.push("etcd could lose its quorum with a further member".into());
    }
}
