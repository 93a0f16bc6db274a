//! Capacity: how many hosts may be busy at once (docs/design/host.md, "Capacity").

use super::{AfterStore, Decider, Transition, annotations, seconds};
use crate::api::metal3::{
    ANNOTATION_PAUSED, BareMetalHost, BareMetalHostStatus, ErrorType, InspectionMode, OperationalStatus,
    ProvisioningState as State,
};
use crate::api::slipway::BootTarget;
use crate::bmc::{BmcAddress, BootInterface};

/// Whether a host with this status takes one of the places. One that boots from a virtual CD never does: it does not
/// share the boot network's first minutes with the others, as in Metal3.
pub fn takes_place(host: &BareMetalHost, status: &BareMetalHostStatus) -> bool {
    let address = host.spec.bmc.as_ref().map(|bmc| bmc.address.as_str()).unwrap_or_default();
    is_busy(status.operational_status, status.provisioning.state) && !is_exempt(address)
}

/// Whether a host in this state is inspected, written or cleaned.
pub fn is_busy(operational: OperationalStatus, state: State) -> bool {
    operational == OperationalStatus::OK
        && matches!(state, State::Inspecting | State::Provisioning | State::Deprovisioning)
}

/// Whether a host with this BMC needs no place.
pub fn is_exempt(address: &str) -> bool {
    BmcAddress::parse(address).is_ok_and(|address| address.capabilities().boot == BootInterface::VirtualMedia)
}

/// What a decision makes of a host among those that want to be busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// It has a place.
    Takes,
    /// It waits for one.
    Waits,
    /// It is in the middle of something that is not gone on with as long as somebody says so: it needs none until then.
    Rests,
    /// What it needs is not known before the next decision.
    Undecided,
    /// It needs none.
    Neither,
}

/// What a decision makes of a host.
pub fn slot_state(host: &BareMetalHost, transition: &Transition) -> SlotState {
    let status = &transition.status;
    let paused = host.metadata.annotations.iter().flatten().any(|(key, _)| key == ANNOTATION_PAUSED);
    if paused || is_held_off(host, status) {
        SlotState::Rests
    } else if takes_place(host, status) {
        SlotState::Takes
    } else if status.operational_status == OperationalStatus::Delayed {
        SlotState::Waits
    } else if matches!(transition.next, AfterStore::Again | AfterStore::Do(_)) {
        SlotState::Undecided
    } else {
        SlotState::Neither
    }
}

/// Whether a client keeps the host off that is inspected or written otherwise.
fn is_held_off(host: &BareMetalHost, status: &BareMetalHostStatus) -> bool {
    let by_ramdisk = match status.provisioning.state {
        State::Inspecting => host.spec.inspection_mode != Some(InspectionMode::Fast),
        State::Provisioning => true,
        _ => false,
    };
    by_ramdisk
        && status.error_type != Some(ErrorType::Provisioning)
        && annotations::reboots(host).any(|reboot| reboot.held && reboot.force)
}

impl Decider<'_> {
    /// Waits for a place, unless the host has one or one is free for it.
    pub(super) fn without_capacity(&mut self) -> Option<AfterStore> {
        if self.observed.room || self.boots_from(BootInterface::VirtualMedia) {
            return None;
        }
        self.status.operational_status = OperationalStatus::Delayed;
        let limit = self.observed.settings.busy_limit;
        Some(self.poll(format!(
            "{limit} hosts are busy, which is host.busy_limit; this one goes on when one is done, after hosts of namespaces that have fewer"
        )))
    }

    /// The same in the middle of an operation, where a host may have given its place back: a machine that boots or has an
    /// agent is not stopped, and one that is held off needs no place.
    pub(super) fn without_capacity_to_go_on(&mut self) -> Option<AfterStore> {
        let was_busy = self.observed.host.status.as_ref().is_some_and(|status| takes_place(self.observed.host, status));
        if (was_busy && self.is_under_way()) || is_held_off(self.observed.host, &self.status) {
            return None;
        }
        self.without_capacity()
    }

    fn is_under_way(&self) -> bool {
        let Some(intent) = self.observed.intent else { return false };
        if intent.spec.target == BootTarget::Ramdisk {
            return self.agent_is_up() || self.is_awaited(intent);
        }
        let operation = format!("provision@{}", seconds(&self.status.operation_history.provision));
        let written = self.status.provisioning.state == State::Provisioning && intent.spec.started.is_some();
        written && intent.spec.operation.starts_with(&operation)
    }
}
