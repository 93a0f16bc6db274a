//! How many hosts may be busy at once (docs/design/host.md, "Capacity").

use super::{Life, Next, World};
use crate::api::metal3::{BareMetalHost, BareMetalHostStatus, OperationalStatus, ProvisioningState as State};
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

impl World<'_> {
    fn holds_place(&self) -> bool {
        self.host.status.as_ref().is_some_and(|status| takes_place(self.host, status))
    }
}

impl Life<'_> {
    /// Waits for a place, unless the host has one: who is busy goes on.
    pub(super) fn without_capacity(&mut self) -> Option<Next> {
        let limit = self.world.settings.busy_limit;
        if self.world.busy < limit || self.world.holds_place() || self.boots_from(BootInterface::VirtualMedia) {
            return None;
        }
        self.status.operational_status = OperationalStatus::Delayed;
        Some(self.poll(format!("{limit} hosts are busy, which is host.busy_limit; this one goes on when one is done")))
    }
}
