//! A host for a machine: chosen, noted, and taken.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::Api;

use super::draft::{ASSOCIATED, Metal3MachineDraft};
use super::wait::{MachineWait, reuse};
use super::{Metal3MachineError, Metal3MachineReconciler, Metal3MachineScope, template};
use crate::api::infrastructure::v1beta2::Metal3Machine;
use crate::api::metal3::BareMetalHost;
use crate::cluster::hosts::choose::{ChoiceReason, CompiledSelector, HostWish, Needs};
use crate::cluster::hosts::{HostTake, HostTaker, NoHost};
use crate::runtime::Note;
use crate::runtime::conditions::{ConditionVerdict, Severity};

/// How long a machine that got no host waits at most for a change that it is not told of.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// The same while others are about to take hosts, of which nobody tells if they do not.
const LOOK_SOON: Duration = Duration::from_secs(5);

/// What becomes of a wish for a host.
pub(super) enum TakeOutcome {
    /// This host is the machine's.
    Host(Box<BareMetalHost>),
    /// There is none, which its conditions explain; it is looked again after so long.
    None(Duration),
}

impl Metal3MachineReconciler {
    /// The machine's host, which it takes now if it has none.
    pub(super) async fn take(
        &self,
        draft: &mut Metal3MachineDraft,
        around: &Metal3MachineScope<'_>,
    ) -> Result<TakeOutcome, Metal3MachineError> {
        let cluster = &around.owner.spec.cluster_name;
        let wish = wish(draft, around);
        match self.hosts.take(&self.client, draft, Some(cluster), wish).await? {
            HostTake::Had(found) => {
                self.label_secret(&found, cluster, false).await?;
                if draft.verdict(ASSOCIATED).is_none_or(|verdict| !verdict.is_true()) {
                    draft.say(ASSOCIATED, &ConditionVerdict::yes("AssociateBareMetalHostSuccess"), Severity::Info);
                }
                Ok(TakeOutcome::Host(found))
            }
            HostTake::New(found, way) => {
                self.label_secret(&found, cluster, false).await?;
                let (reason, how) = match way {
                    ChoiceReason::Kept => ("AssociateBareMetalHostViaNodeReuseSuccess", "it was kept for this machine"),
                    ChoiceReason::Had | ChoiceReason::Free => ("AssociateBareMetalHostSuccess", "it was free"),
                };
                draft.say(ASSOCIATED, &ConditionVerdict::yes(reason), Severity::Info);
                let message = format!("Claimed BareMetalHost {}: {how}", found.name_any());
                self.tell(&draft.new, &Note { reason: "BareMetalHostClaimed", message, warning: false }).await;
                Ok(TakeOutcome::Host(found))
            }
            HostTake::Lost(message) => {
                missing(draft, &message);
                Ok(TakeOutcome::None(LOOK_AGAIN))
            }
            HostTake::None(NoHost { reason: message, is_passing, .. }) => {
                self.none(draft, message).await;
                Ok(TakeOutcome::None(if is_passing { LOOK_SOON } else { LOOK_AGAIN }))
            }
            HostTake::Fault(message) => {
                let (verdict, old, severity) = MachineWait::Spec(message).verdicts();
                draft.say_both(ASSOCIATED, &verdict, &old, severity);
                Ok(TakeOutcome::None(LOOK_AGAIN))
            }
        }
    }

    /// There is no host for it: its condition says why, and an event whenever that is another reason.
    async fn none(&self, draft: &mut Metal3MachineDraft, message: String) {
        let verdict = ConditionVerdict::no("AssociateBareMetalHostFailed", message.clone());
        if draft.verdict(ASSOCIATED).is_none_or(|before| before != verdict) {
            self.tell(&draft.new, &Note { reason: "NoBareMetalHost", message: message.clone(), warning: true }).await;
        }
        draft.say_both(ASSOCIATED, &verdict, &ConditionVerdict::no("AssociateBMHFailed", message), Severity::Error);
    }

    pub(super) fn hosts_of(&self, machine: &Metal3Machine) -> Api<BareMetalHost> {
        Api::namespaced(self.client.clone(), &machine.namespace().unwrap_or_default())
    }
}

/// What the machine wants, or why that makes no sense.
fn wish(draft: &Metal3MachineDraft, around: &Metal3MachineScope<'_>) -> Result<HostWish, String> {
    let machine = &draft.new;
    let by_template = template::annotations(around.template);
    Ok(HostWish {
        machine: draft.id(),
        cluster: Some(around.owner.spec.cluster_name.clone()),
        selector: CompiledSelector::new(machine.spec.host_selector.as_ref()).map_err(|fault| fault.to_string())?,
        needs: Needs::new(machine.annotations(), &by_template).map_err(|fault| fault.to_string())?,
        reuse: reuse(around.owner),
        failure_domain: machine.spec.failure_domain.clone(),
    })
}

/// The host of a machine that runs is not there. Whoever looks after machines replaces it.
fn missing(draft: &mut Metal3MachineDraft, reason: &str) {
    let verdict = ConditionVerdict::no("MissingBMH", reason);
    draft.say(ASSOCIATED, &verdict, Severity::Error);
    draft.say(super::draft::HOST, &verdict, Severity::Error);
}
