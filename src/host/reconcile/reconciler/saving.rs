//! What was decided is stored and told: a host's status, its conditions, its events.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::{Resource, ResourceExt};
use tracing::{info, warn};

use super::Reconciler;
use crate::api::MacAddress;
use crate::api::metal3::{BareMetalHost, BareMetalHostStatus, HostAddress};
use crate::api::slipway::BootIntent;
use crate::host::lifecycle::{self, AfterStore, Effect, Transition};
use crate::host::reconcile::effects;
use crate::host::status::{conditions, progress};
use crate::host::{COMPONENT, label};
use crate::runtime::{Note, events};

impl Reconciler {
    /// Stores the status when it changed, then publishes the events.
    pub(super) async fn save(
        &self,
        host: &BareMetalHost,
        transition: &Transition,
    ) -> Result<BareMetalHost, kube::Error> {
        let before = host.status.clone().unwrap_or_default();
        let mut status = transition.status.clone();
        let waiting = match &transition.next {
            AfterStore::Wait { reason, .. } => Some(reason.as_str()),
            // To look is no progress, or a host at rest would be written twice at each look; and what is done at once, as the
            // agent's next step, ends no wait that is told until the state does: that would be two writes for nothing.
            AfterStore::Do(effect) if status.provisioning.state == before.provisioning.state => {
                conditions::waits_for(&before).filter(|_| {
                    *effect == Effect::ReadPower || (progress::is_moving(&status) && status.error_type.is_none())
                })
            }
            _ => None,
        };
        let health = self.context.power.health(&host.uid().unwrap_or_default());
        let vendor = status.hardware.as_ref().and_then(|hardware| hardware.system_vendor.as_ref());
        let twin = vendor.and_then(|vendor| self.context.conflicts.twin(host, vendor));
        status.conditions = conditions::of(host, &status, waiting, health, twin.as_deref(), Timestamp::now());
        let mut notes = transition.notes.clone();
        if let Some(twin) = twin.filter(|_| !conditions::knows_twin(&before)) {
            let message = conditions::twin_message(&twin);
            notes.push(Note { reason: conditions::DUPLICATE_SERIAL_NUMBER, message, warning: true });
        }
        if progress::says_the_same(status.progress.as_ref(), before.progress.as_ref()) {
            status.progress = before.progress.clone();
        }
        if let Some(addresses) = self.addresses(host) {
            status.addresses = addresses;
        }
        let same = BareMetalHostStatus { last_updated: before.last_updated.clone(), ..status.clone() } == before;
        if same || transition.next == AfterStore::Gone {
            self.publish(host, &notes).await;
            return Ok(host.clone());
        }
        // A change of the conditions, the progress or the addresses alone must not prolong a rest, which counts from `lastUpdated`.
        let shown = BareMetalHostStatus {
            conditions: before.conditions.clone(),
            progress: before.progress.clone(),
            addresses: before.addresses.clone(),
            ..status.clone()
        };
        if shown != before {
            status.last_updated = Some(Time(Timestamp::now()));
        }
        if status.provisioning.state != before.provisioning.state {
            info!(host = %label(host), from = before.provisioning.state.as_str(), to = status.provisioning.state.as_str(), "the host changed its state");
        }
        let changed = BareMetalHost { status: Some(status), ..host.clone() };
        let api = self.context.api::<BareMetalHost>(&host.namespace().unwrap_or_default());
        let saved = api.replace_status(&host.name_any(), &PostParams::default(), &changed).await?;
        let after = saved.status.clone().unwrap_or_default();
        self.context.metrics.stored(&host.namespace().unwrap_or_default(), &host.name_any(), &before, &after);
        self.publish(host, &notes).await;
        Ok(saved)
    }

    /// What DHCP leases to the host's machine now; `None` while nobody can say. A card that another host has a better claim of
    /// is that one's.
    fn addresses(&self, host: &BareMetalHost) -> Option<Vec<HostAddress>> {
        let Some(leases) = &self.leases else { return Some(Vec::new()) };
        let known = self.context.index.by_uid(host.metadata.uid.as_deref()?)?;
        let is_its = |mac: &MacAddress| self.context.index.by_mac(*mac).is_some_and(|of| of.uid == known.uid);
        let macs: Vec<_> = known.macs.iter().copied().filter(is_its).collect();
        leases.addresses_of(&macs)
    }

    pub(super) async fn publish(&self, host: &BareMetalHost, notes: &[Note]) {
        for note in notes {
            if note.warning {
                warn!(host = %label(host), reason = note.reason, details = note.message, "the host needs attention");
            }
            events::store(&self.context.client, COMPONENT, &host.object_ref(&()), note).await.ok();
        }
    }

    /// Notes that an effect failed: first that this spec was tried, then the error, so that a newer spec ends the rest.
    pub(super) async fn record_failure(
        &self,
        host: &BareMetalHost,
        intent: Option<&BootIntent>,
        effect: &Effect,
        message: &str,
    ) -> Result<(), kube::Error> {
        if *effect == Effect::ReadPower {
            self.context.metrics.no_access();
        }
        effects::note_tried(&self.context, host, intent).await?;
        let status = host.status.clone().unwrap_or_default();
        let error_type = effect.error_type(status.provisioning.state);
        let (status, note) = lifecycle::fail(&status, error_type, message);
        let until = Timestamp::now();
        let transition =
            Transition { status, notes: vec![note], next: AfterStore::Wait { reason: message.to_owned(), until } };
        match self.save(host, &transition).await {
            Err(kube::Error::Api(error)) if error.is_conflict() => Ok(()),
            saved => saved.map(|_| ()),
        }
    }
}
