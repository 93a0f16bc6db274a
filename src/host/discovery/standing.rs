//! Discovery status of a host, by its annotations.

use kube::ResourceExt;

use crate::api::metal3::{BareMetalHost, ProvisioningState};
use crate::api::slipway::{ANNOTATION_DISCOVERED, ANNOTATION_VISIT, DISCOVERED_PENDING};

/// Whether a host waits to be accepted.
pub(in crate::host) fn waits(host: &BareMetalHost) -> bool {
    host.annotations().get(ANNOTATION_DISCOVERED).is_some_and(|value| value == DISCOVERED_PENDING)
}

/// Whether the BMC of a host let the appliance in, so that its hardware is that of a machine: whoever may write hosts can give
/// any to others. A detached host stays one.
pub(in crate::host) fn was_let_in(host: &BareMetalHost) -> bool {
    let id = host.status.as_ref().map(|status| &status.provisioning.id);
    host.metadata.uid.is_some() && id == host.metadata.uid.as_ref()
}

/// Whether a discovered host counts towards `discovery.limit`: it waits, or was accepted and Slipway has not been through
/// with its inspection yet, so that there may be no such machine.
pub(in crate::host) fn counts(host: &BareMetalHost) -> bool {
    use ProvisioningState as State;
    let state = host.status.as_ref().map(|status| status.provisioning.state).unwrap_or_default();
    let unseen = [State::None, State::Unmanaged, State::Registering, State::MatchProfile, State::Inspecting];
    waits(host) || (host.annotations().contains_key(ANNOTATION_VISIT) && unseen.contains(&state))
}
