//! A host for a machine: chosen, noted, and taken.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::Value;
use tracing::info;

use super::claims::NoHost;
use super::draft::{ASSOCIATED, Draft};
use super::wait::{Waiting, reuse};
use super::{Around, Error, Machines, host, template};
use crate::api::infrastructure::v1beta2::Metal3Machine;
use crate::api::metal3::BareMetalHost;
use crate::cluster::contract::{Severity, Verdict};
use crate::cluster::infrastructure::choose::{Candidate, HostView, Needs, Selector, Way, Wish, refusal};
use crate::log::named;
use crate::runtime::{Note, key};

/// How long a machine that got no host waits at most for a change that it is not told of.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// The same while others are about to take hosts: what is said of these is of a moment.
const LOOK_SOON: Duration = Duration::from_secs(5);

/// What a machine has.
pub(super) enum Taken {
    /// This host.
    Host(Box<BareMetalHost>),
    /// None, which its conditions explain; it is looked again after so long.
    None(Duration),
}

impl Machines {
    /// The machine's host, which it takes now if it has none.
    pub(super) async fn take(&self, draft: &mut Draft, around: &Around<'_>) -> Result<Taken, Error> {
        let hosts = self.hosts_of(&draft.new);
        if let Some(name) = draft.host() {
            match hosts.get_opt(&name).await? {
                Some(found) if host::is_of(&found, &draft.new) => return self.own(draft, found, around).await,
                Some(found) if draft.is_provisioned() && found.spec.consumer_ref.is_some() => {
                    missing(draft, &format!("BareMetalHost {name:?} is another's by now"));
                    return Ok(Taken::None(LOOK_AGAIN));
                }
                Some(found) if draft.is_provisioned() => return self.own(draft, found, around).await,
                None if draft.is_provisioned() => {
                    missing(draft, &format!("BareMetalHost {name:?} is gone"));
                    return Ok(Taken::None(LOOK_AGAIN));
                }
                Some(found) => {
                    let Some(wish) = self.wish(draft, around).await? else { return Ok(Taken::None(LOOK_AGAIN)) };
                    if self.may_have(&wish, &found) {
                        return self.own(draft, found, around).await;
                    }
                    // Somebody was faster, or it is not to be had any more.
                    draft.hold(&self.client, None).await?;
                }
                None => draft.hold(&self.client, None).await?,
            }
        }
        let Some(wish) = self.wish(draft, around).await? else { return Ok(Taken::None(LOOK_AGAIN)) };
        // What it is about to take is others' again wherever this ends.
        let pick = match self.hosts.pick(&wish) {
            Ok(pick) => pick,
            Err(NoHost { why, is_passing }) => {
                self.none(draft, why).await;
                return Ok(Taken::None(if is_passing { LOOK_SOON } else { LOOK_AGAIN }));
            }
        };
        let (name, way) = (pick.name().to_owned(), pick.way);
        draft.hold(&self.client, Some(&name)).await?;
        let found = hosts.get_opt(&name).await?.ok_or(Error::Meanwhile)?;
        // What is known may be of before somebody else took it.
        let is_own = way == Way::Had && host::is_of(&found, &draft.new);
        if !is_own && !self.may_have(&wish, &found) {
            return Err(Error::Meanwhile);
        }
        let taken = self.own(draft, found, around).await?;
        pick.taken();
        let (reason, how) = match way {
            // It was so before.
            Way::Had => return Ok(taken),
            Way::Kept => ("AssociateBareMetalHostViaNodeReuseSuccess", "it was kept for this machine"),
            Way::Free => ("AssociateBareMetalHostSuccess", "it was free"),
        };
        draft.say(ASSOCIATED, &Verdict::yes(reason), Severity::Info);
        let message = format!("Claimed BareMetalHost {name}: {how}");
        self.tell(&draft.new, &Note { reason: "BareMetalHostClaimed", message, warning: false }).await;
        let namespace = draft.new.namespace().unwrap_or_default();
        info!(host = %named(&namespace, &name), machine = %named(&namespace, &draft.new.name_any()), "a machine claimed a host");
        Ok(taken)
    }

    /// Whether the machine may have a host, as it is now.
    fn may_have(&self, wish: &Wish, found: &BareMetalHost) -> bool {
        let view = HostView::from(found);
        let inspected = self.hosts.hardware(&key(found));
        let capacity = inspected.as_ref().and_then(|one| one.capacity.as_ref()).or(view.capacity.as_ref());
        refusal(wish, &Candidate { host: &view, capacity, taken: false }).is_none()
    }

    /// Takes the host in this very version, and whatever else is the machine's then.
    async fn own(&self, draft: &mut Draft, found: BareMetalHost, around: &Around<'_>) -> Result<Taken, Error> {
        let cluster = &around.owner.spec.cluster_name;
        let found = match host::claim(&found, &draft.new, cluster) {
            None => found,
            Some(patch) => self.patch_host(&found, patch).await?,
        };
        self.label_secret(&found, cluster, false).await?;
        if draft.verdict(ASSOCIATED).is_none_or(|verdict| !verdict.is_true()) {
            draft.say(ASSOCIATED, &Verdict::yes("AssociateBareMetalHostSuccess"), Severity::Info);
        }
        Ok(Taken::Host(Box::new(found)))
    }

    /// What the machine wants; none when that makes no sense, which its conditions say.
    async fn wish(&self, draft: &mut Draft, around: &Around<'_>) -> Result<Option<Wish>, Error> {
        let machine = &draft.new;
        let selector = Selector::new(machine.spec.host_selector.as_ref()).map_err(|fault| fault.to_string());
        let by_template = template::annotations(around.template);
        let needs = Needs::new(machine.annotations(), &by_template).map_err(|fault| fault.to_string());
        match (selector, needs) {
            (Ok(selector), Ok(needs)) => Ok(Some(Wish {
                namespace: machine.namespace().unwrap_or_default(),
                name: machine.name_any(),
                cluster: around.owner.spec.cluster_name.clone(),
                selector,
                needs,
                reuse: reuse(around.owner),
                failure_domain: machine.spec.failure_domain.clone(),
            })),
            (Err(why), _) | (_, Err(why)) => {
                let (verdict, old, severity) = Waiting::Spec(why).verdicts();
                draft.say_both(ASSOCIATED, &verdict, &old, severity);
                Ok(None)
            }
        }
    }

    /// There is no host for it: its condition says why, and an event whenever that is another reason.
    async fn none(&self, draft: &mut Draft, why: String) {
        let verdict = Verdict::no("AssociateBareMetalHostFailed", why.clone());
        if draft.verdict(ASSOCIATED).is_none_or(|before| before != verdict) {
            self.tell(&draft.new, &Note { reason: "NoBareMetalHost", message: why.clone(), warning: true }).await;
        }
        draft.say_both(ASSOCIATED, &verdict, &Verdict::no("AssociateBMHFailed", why), Severity::Error);
    }

    pub(super) fn hosts_of(&self, machine: &Metal3Machine) -> Api<BareMetalHost> {
        Api::namespaced(self.client.clone(), &machine.namespace().unwrap_or_default())
    }

    pub(super) async fn patch_host(&self, found: &BareMetalHost, patch: Value) -> Result<BareMetalHost, Error> {
        let api = Api::<BareMetalHost>::namespaced(self.client.clone(), &found.namespace().unwrap_or_default());
        Ok(api.patch(&found.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?)
    }
}

/// The host of a machine that runs is not there. Whoever looks after machines replaces it.
fn missing(draft: &mut Draft, why: &str) {
    let verdict = Verdict::no("MissingBMH", why);
    draft.say(ASSOCIATED, &verdict, Severity::Error);
    draft.say(super::draft::HOST, &verdict, Severity::Error);
}
