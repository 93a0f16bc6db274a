//! The state `registering`: access to the BMC.
//!
//! Access to the BMC (docs/design/host.md, "Access to the BMC"). The state `registering` is entered once; what it
//! checks is checked again in every state, so that new credentials, a restored status and an attached host are
//! registered in place.

use super::backoff::may_be_the_login;
use super::{Access, AfterStore, Decider, Effect, RARE_POLL, secret_reference};
use crate::api::MacAddress;
use crate::api::metal3::{ErrorType, InspectionMode, OperationMetric, OperationalStatus, ProvisioningState as State};
use crate::api::slipway::{ANNOTATION_DISCOVERED, BootIntent, DISCOVERED_PENDING, Registration};
use crate::bmc::{BmcAddress, BootInterface, PowerState};

/// Why a machine that boots from the network is not booted.
pub(super) const NO_ADDRESS: &str = "spec.bootMACAddress is missing: without it the machine cannot be told from others when it boots. Set it; or, where the BMC speaks Redfish and names the network cards, inspectionMode: fast";

impl Decider<'_> {
    pub(super) fn unmanaged(&mut self) -> AfterStore {
        if self.annotation(ANNOTATION_DISCOVERED) == Some(DISCOVERED_PENDING) {
            self.status.provisioning.state = State::Unmanaged;
            self.status.operational_status = OperationalStatus::Discovered;
            let erased = self.cleans() && !self.observed.host.spec.externally_provisioned;
            let fate = if erased { "then its disks are erased, unless told otherwise" } else { "its disks are kept" };
            return self.poll(format!(
                "the machine reported itself and waits to be accepted: `slipway host accept`, or remove the annotation {ANNOTATION_DISCOVERED}; {fate}"
            ));
        }
        let bmc = self.observed.host.spec.bmc.as_ref();
        if bmc.is_some_and(|bmc| !bmc.address.is_empty() || !bmc.credentials_name.is_empty()) {
            self.status.operation_history.register = OperationMetric { start: self.stamp(), end: None };
            self.status.provisioning.boot_mode = Some(self.boot_mode());
            return self.enter(State::Registering);
        }
        if self.status.provisioning.state == State::None {
            self.status.provisioning.state = State::Unmanaged;
            self.note("Discovered", "Discovered host with no BMC details");
        }
        self.status.operational_status = OperationalStatus::Discovered;
        let reason = "the host names no BMC: set spec.bmc.address and spec.bmc.credentialsName";
        self.wait(reason, self.observed.now + RARE_POLL)
    }

    /// Address and credentials must be good, the power readable, and the machine nobody else's.
    pub(super) fn ensure_registered(&mut self) -> Option<AfterStore> {
        let state = self.status.provisioning.state;
        if matches!(state, State::None | State::Unmanaged | State::MatchProfile | State::Deleting) {
            return None;
        }
        if self.deleting() && self.without_access() {
            return None;
        }
        let (secret, version) = match self.observed.access {
            Access::None => return Some(self.no_access("spec.bmc.address is missing")),
            Access::Broken(reason) => return Some(self.no_access(reason)),
            Access::Taken(reason) => {
                self.status.provisioning.id.clear();
                return Some(self.no_access(reason));
            }
            Access::Ready { secret, version } => (secret_reference(secret), version),
        };
        let tried = &mut self.status.tried_credentials;
        if tried.credentials.as_ref() != Some(&secret) || tried.credentials_version.as_deref() != Some(version) {
            tried.credentials = Some(secret);
            tried.credentials_version = Some(version.clone());
            if self.status.error_type.is_some_and(may_be_the_login) {
                self.clear_error();
            }
        }
        let power = match self.observed.power {
            Some(power) => power,
            // The agent answers, so the machine is on, and a BMC that stumbles now must not stop it.
            None if self.agent_is_up() => {
                if self.status.error_type == Some(ErrorType::Registration) {
                    self.clear_error();
                }
                return None;
            }
            None => return Some(AfterStore::Do(Effect::ReadPower)),
        };
        if self.status.powered_on != (power == PowerState::On) {
            self.status.powered_on = power == PowerState::On;
            if self.status.error_type == Some(ErrorType::PowerManagement) {
                self.clear_error();
            }
        }
        if self.status.good_credentials != self.status.tried_credentials {
            self.status.good_credentials = self.status.tried_credentials.clone();
            self.note("BMCAccessValidated", "Verified access to BMC");
        }
        if let Some(next) = self.match_profile() {
            return Some(next);
        }
        if state == State::Registering {
            return None;
        }
        if self.status.error_type == Some(ErrorType::Registration) {
            self.clear_error();
        }
        self.adopt_machine()
    }

    /// A host that this site does not know yet, though its life began before: restored from another site, or back
    /// from being detached. Nothing is done to its machine.
    fn adopt_machine(&mut self) -> Option<AfterStore> {
        let uid = self.observed.host.metadata.uid.clone().unwrap_or_default();
        if self.status.provisioning.id == uid && self.is_recorded() {
            return None;
        }
        if let Some(conflict) = self.conflict() {
            let installed = matches!(
                self.status.provisioning.state,
                State::Provisioned | State::ExternallyProvisioned | State::Deprovisioning
            );
            let kind = if installed { ErrorType::ProvisionedRegistration } else { ErrorType::Registration };
            return Some(self.failed(kind, &conflict));
        }
        if let Some(next) = self.record() {
            return Some(next);
        }
        self.status.provisioning.id = uid;
        if self.status.error_type == Some(ErrorType::ProvisionedRegistration) {
            self.clear_error();
        }
        Some(AfterStore::Again)
    }

    pub(super) fn registering(&mut self) -> AfterStore {
        if let Some(next) = self.refuse(ErrorType::Registration) {
            return next;
        }
        if let Some(conflict) = self.conflict() {
            return self.failed(ErrorType::Registration, &conflict);
        }
        let adopted = self.observed.host.spec.externally_provisioned;
        if !adopted && !self.inspects_out_of_band() && !self.is_told_from_others() {
            return self.failed(ErrorType::Registration, NO_ADDRESS);
        }
        let inspect = !adopted && !self.inspection_disabled();
        if inspect && let Some(next) = self.without_capacity() {
            return next;
        }
        if let Some(next) = self.record() {
            return next;
        }
        self.status.operation_history.register.end = self.stamp();
        self.status.provisioning.id = self.observed.host.metadata.uid.clone().unwrap_or_default();
        self.note("Registered", "Registered new host");
        match (adopted, inspect) {
            (true, _) => self.adopt(),
            (false, true) => self.begin_inspection(),
            (false, false) => self.enter(State::Preparing),
        }
    }

    /// Records what the host is registered with, where that is not recorded yet. From then on it goes before every host
    /// that only names the same.
    fn record(&self) -> Option<AfterStore> {
        let former = self.observed.intent.and_then(BootIntent::registration).unwrap_or_default();
        let is_same = former.has_mac(self.boot_mac());
        let registration = Registration {
            boot_mac_address: self.observed.host.spec.boot_mac_address.clone().unwrap_or_default(),
            bmc_address: self.bmc_address().to_owned(),
            // Another BMC makes nobody late for an address that he has.
            since: if is_same { former.since } else { self.observed.record_time },
            until: 0,
            cards: former.cards,
            network: if is_same { former.network } else { String::new() },
        };
        (!self.is_recorded()).then_some(AfterStore::Do(Effect::Register(registration)))
    }

    /// Whether it is recorded that the host was registered with what it names now. One that is going has no intent, or may
    /// have none, and nothing to gain.
    fn is_recorded(&self) -> bool {
        let uid = self.observed.host.metadata.uid.as_deref().unwrap_or_default();
        let Some(intent) = self.observed.intent.filter(|intent| intent.is_of(uid)) else { return true };
        let fits = |record: &Registration| record.until == 0 && record.fits(self.boot_mac(), self.bmc_address());
        intent.registration().as_ref().is_some_and(fits)
    }

    fn boot_mac(&self) -> Option<MacAddress> {
        self.observed.host.spec.boot_mac_address.as_deref()?.parse().ok()
    }

    fn bmc_address(&self) -> &str {
        self.observed.host.spec.bmc.as_ref().map(|bmc| bmc.address.as_str()).unwrap_or_default()
    }

    /// A host that got another one's boot address after it was registered is registered no more, and says so.
    pub(super) fn yield_to_the_first(&mut self) {
        if !self.deleting() && !self.agent_is_up() && self.conflict().is_some() {
            self.status.provisioning.id.clear();
        }
    }

    pub(super) fn conflict(&self) -> Option<String> {
        let owner = self.observed.mac_owner?;
        let mac = self.observed.host.spec.boot_mac_address.as_deref().unwrap_or_default();
        Some(format!("MAC address {mac} is already that of {owner}: correct one of the two"))
    }

    fn no_access(&mut self, reason: &str) -> AfterStore {
        if self.status.error_type == Some(ErrorType::Registration) && self.status.error_message == reason {
            return self.poll(format!("the BMC cannot be used: {reason}"));
        }
        let next = self.failed(ErrorType::Registration, reason);
        if let Some(note) = self.notes.last_mut() {
            note.reason = "BMCCredentialError";
        }
        next
    }

    /// Whether the machine is known on the wire when it boots. One that boots from a virtual CD need not be.
    pub(super) fn is_told_from_others(&self) -> bool {
        let found = self.observed.hardware.or(self.status.hardware.as_ref()).map_or(&[][..], |found| &found.nics);
        let known = || found.iter().any(|nic| nic.mac.parse::<MacAddress>().is_ok());
        !self.boots_from(BootInterface::Pxe) || self.boot_mac().is_some() || known()
    }

    /// Whether the next inspection asks the BMC alone, which names network cards and boots nothing.
    fn inspects_out_of_band(&self) -> bool {
        self.observed.host.spec.inspection_mode == Some(InspectionMode::Fast) && !self.inspection_disabled()
    }

    /// Whether the way to boot that goes with the BMC's address is this one.
    pub(super) fn boots_from(&self, way: BootInterface) -> bool {
        BmcAddress::parse(self.bmc_address()).is_ok_and(|address| address.capabilities().boot == way)
    }
}
