//! How far a machine is. Pure.

use crate::api::lcm::{MachineRole, NodeState, Phase};

/// What a state is computed of.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Whether its agent reported an address.
    pub has_address: bool,
    /// What it is in its cluster.
    pub role: Option<MachineRole>,
    /// Its steps: the phase of each, and whether it is done.
    pub steps: Vec<(Phase, bool)>,
    /// Whether it was deployed once.
    pub was_deployed: bool,
    /// Whether a reboot is asked for, or required.
    pub reboot_required: bool,
    /// Whether it has come up since.
    pub reboot_completed: bool,
}

/// The state, by the rules of the design in their order.
pub(super) fn state(told: &Told) -> NodeState {
    let has = |phase| told.steps.iter().any(|(of, _)| *of == phase);
    let open = |phase| told.steps.iter().any(|(of, done)| *of == phase && !done);
    if !told.has_address {
        NodeState::Uninitialized
    } else if told.role == Some(MachineRole::Bastion) {
        NodeState::Ready
    } else if told.steps.is_empty() {
        NodeState::Pending
    } else if !has(Phase::Deploy) && !has(Phase::Reconfigure) {
        NodeState::Prepare
    } else if open(Phase::Deploy) {
        if told.was_deployed { NodeState::Upgrade } else { NodeState::Deploy }
    } else if open(Phase::Reconfigure) {
        NodeState::Reconfigure
    } else if told.reboot_required && !told.reboot_completed {
        NodeState::Reboot
    } else {
        NodeState::Ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_as_far_as_its_steps_say() {
        use Phase::{Deploy as D, Prepare as P, Reconfigure as R};
        let base = || Told { has_address: true, role: Some(MachineRole::Worker), ..Told::default() };
        let with = |steps: &[(Phase, bool)]| Told { steps: steps.to_vec(), ..base() };
        for (told, wanted) in [
            (Told::default(), NodeState::Uninitialized),
            (Told { has_address: false, ..with(&[(D, true)]) }, NodeState::Uninitialized),
            (Told { role: Some(MachineRole::Bastion), ..base() }, NodeState::Ready),
            (Told { role: Some(MachineRole::Bastion), ..with(&[(D, false)]) }, NodeState::Ready),
            (base(), NodeState::Pending),
            (with(&[(P, false)]), NodeState::Prepare),
            // Not before it was handed what makes it a node.
            (with(&[(P, true)]), NodeState::Prepare),
            (with(&[(P, true), (D, false)]), NodeState::Deploy),
            (Told { was_deployed: true, ..with(&[(P, true), (D, false), (R, false)]) }, NodeState::Upgrade),
            (with(&[(P, true), (D, true)]), NodeState::Ready),
            // It gets ready for another release while it runs.
            (with(&[(P, false), (D, true)]), NodeState::Ready),
            (with(&[(P, true), (D, true), (R, false)]), NodeState::Reconfigure),
            (with(&[(R, false)]), NodeState::Reconfigure),
            (with(&[(R, true)]), NodeState::Ready),
            (with(&[(P, true), (D, true), (R, true)]), NodeState::Ready),
            (with(&[(D, true), (D, false)]), NodeState::Deploy),
            (Told { reboot_required: true, ..with(&[(D, true)]) }, NodeState::Reboot),
            (Told { reboot_required: true, ..with(&[(D, false)]) }, NodeState::Deploy),
            (Told { reboot_required: true, reboot_completed: true, ..with(&[(D, true)]) }, NodeState::Ready),
            (Told { reboot_completed: true, ..with(&[(D, true)]) }, NodeState::Ready),
        ] {
            assert_eq!(state(&told), wanted, "{told:?}");
        }
    }
}
