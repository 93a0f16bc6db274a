//! Takes a host for a Machine, has it run what the Machine should run, and lets it go again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeAddress, Secret};
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::draft::{MachineDraft, MachineProgress};
use super::names::{ANNOTATION_PAUSED, COMPONENT, INVALID_CONFIGURATION, UPDATE_ERROR};
use super::preparer::{HostDeparture, Preparation, Prepared, Preparer};
use super::shape::{self, ProviderSpecRequest};
use super::view::ClaimView;
use crate::api::cluster::keys;
use crate::api::infrastructure::v1beta2::MachineImage;
use crate::api::machine_api::Machine;
use crate::api::metal3::{BareMetalHost, ProvisioningState};
use crate::cluster::hosts::choose::{HostWish, Needs};
use crate::cluster::hosts::patches::{self, HostInstructions, HostSpecPatch, ReleaseProgress};
use crate::cluster::hosts::{
    HostPool, HostTake, HostTaker, MachineId, MachineKind, NoHost, TakeError, addresses, change,
};
use crate::log::named;
use crate::runtime::{Cache, Note, Reconcile, events, run as run_controller};

/// After an error.
const RETRY: Duration = Duration::from_secs(2);
/// How long a Machine that got no host waits at most for a change that it is not told of.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// The same while others are about to take hosts, of which nobody tells if they do not.
const LOOK_SOON: Duration = Duration::from_secs(5);
/// How often a host is looked at that is not through yet, if it says nothing.
const LOOK_AT_HOST: Duration = Duration::from_secs(60);
/// Letters of a host's error that are repeated.
const SHOWN: usize = 1000;
/// How often a Secret that is not there yet is looked for, outside of tests.
pub const PAUSE: Duration = Duration::from_secs(10);

/// Looks at Machines.
pub struct HostClaims {
    client: Client,
    hosts: HostPool,
    /// What Machines run that need not say it.
    default_image: Option<MachineImage>,
    /// How often a Secret that is not there yet is looked for.
    pause: Duration,
    /// Makes Machines nodes, where somebody does.
    preparer: Option<Arc<dyn Preparer>>,
}

impl HostClaims {
    /// Nothing is looked at yet.
    pub fn new(client: Client, hosts: HostPool, default_image: Option<MachineImage>, pause: Duration) -> Self {
        Self { client, hosts, default_image, pause, preparer: None }
    }

    /// Asks this one what Machines of clusters are to run.
    #[must_use]
    pub fn prepared_by(self, preparer: Option<Arc<dyn Preparer>>) -> Self {
        Self { preparer, ..self }
    }

    /// Looks at Machines until the shutdown.
    pub async fn run(self, cache: Cache<ClaimView>, shutdown: CancellationToken) {
        run_controller(Arc::new(self), &cache, stream::empty(), shutdown).await;
    }

    async fn look(&self, machine: Machine) -> Result<Action, TakeError> {
        if !shape::is_ours(&machine.spec.provider_spec) {
            return Ok(Action::await_change());
        }
        let namespace = machine.namespace().unwrap_or_default();
        let preparation = match &self.preparer {
            Some(preparer) if machine.metadata.deletion_timestamp.is_none() => {
                preparer.prepare(&self.client, &machine).await?
            }
            _ => Preparation::Own,
        };
        let image = match &preparation {
            Preparation::Ready(prepared) => prepared.image.as_ref(),
            Preparation::Own | Preparation::Wait(..) => None,
        };
        // What it is to run may not be known yet, and is told to nobody until it is.
        let unknown = matches!(preparation, Preparation::Wait(..)).then(MachineImage::default);
        let image = image.or(self.default_image.as_ref()).or(unknown.as_ref());
        let asked = match shape::read(&machine.spec.provider_spec, &namespace, image) {
            Ok(None) => return Ok(Action::await_change()),
            Ok(Some(asked)) => Ok(told_by(asked, &preparation)),
            Err(fault) => Err(fault.to_string()),
        };
        let mut draft = MachineDraft::new(machine, Timestamp::now());
        let looked = match self.advance(&mut draft, asked, &preparation).await {
            // It is gone.
            Ok(None) => return Ok(Action::await_change()),
            Ok(Some(action)) => Ok(action),
            Err(error) => Err(error),
        };
        // What was found out until then is said even so.
        draft.store(&self.client).await?;
        looked
    }

    /// One step further. None when the Machine is gone.
    async fn advance(
        &self,
        draft: &mut MachineDraft,
        asked: Result<ProviderSpecRequest, String>,
        preparation: &Preparation,
    ) -> Result<Option<Action>, TakeError> {
        let paused = pausing(&draft.new);
        draft.say_paused(paused);
        if paused.is_some() {
            return Ok(Some(Action::await_change()));
        }
        if draft.is_deleted() {
            return self.release(draft).await;
        }
        let asked = match asked {
            Ok(asked) => asked,
            Err(reason) => {
                draft.say(MachineProgress::Failed(INVALID_CONFIGURATION, reason));
                return Ok(Some(Action::await_change()));
            }
        };
        self.normal(draft, &asked, preparation).await.map(Some)
    }

    async fn normal(
        &self,
        draft: &mut MachineDraft,
        asked: &ProviderSpecRequest,
        preparation: &Preparation,
    ) -> Result<Action, TakeError> {
        // One that was told something goes on with that.
        let is_told = draft.is_provisioned() || draft.notes.user_data.is_some();
        if let Preparation::Wait(reason, message) = preparation
            && !is_told
        {
            draft.say(MachineProgress::Pending(reason, message.clone()));
            return Ok(Action::requeue(self.pause));
        }
        if let Some(name) = asked.user_data.as_ref().and_then(|reference| reference.name.as_deref())
            && !draft.is_provisioned()
            && !self.is_there(&draft.id().namespace, name).await?
        {
            let reason = format!("Waiting for the Secret {name:?} with the user data, which is not there");
            draft.say(MachineProgress::Pending("WaitingForUserData", reason));
            return Ok(Action::requeue(self.pause));
        }
        let wish = wish(draft, asked);
        let found = match self.hosts.take(&self.client, draft, None, wish).await? {
            HostTake::Had(found) => *found,
            HostTake::New(found, _) => {
                self.claimed(draft, &found, asked).await;
                *found
            }
            HostTake::Lost(reason) => {
                draft.say(MachineProgress::Failed(UPDATE_ERROR, reason));
                return Ok(Action::requeue(LOOK_AGAIN));
            }
            HostTake::Fault(reason) => {
                draft.say(MachineProgress::Failed(INVALID_CONFIGURATION, reason));
                return Ok(Action::await_change());
            }
            HostTake::None(NoHost { reason, is_passing, .. }) => {
                if draft.said() != Some(reason.as_str()) {
                    self.tell(draft, "NoBareMetalHost", reason.clone(), true).await;
                }
                draft.say(MachineProgress::Pending("NoBareMetalHost", reason));
                return Ok(Action::requeue(if is_passing { LOOK_SOON } else { LOOK_AGAIN }));
            }
        };
        self.deploy(draft, asked, preparation, found).await
    }

    /// Tells the host what to run, and says what became of it.
    async fn deploy(
        &self,
        draft: &mut MachineDraft,
        asked: &ProviderSpecRequest,
        preparation: &Preparation,
        found: BareMetalHost,
    ) -> Result<Action, TakeError> {
        let is_told = found.spec.image.is_some() || found.spec.custom_deploy.is_some();
        if let Preparation::Wait(reason, message) = preparation
            && !is_told
            && !draft.is_provisioned()
        {
            draft.say(MachineProgress::Pending(reason, message.clone()));
            return Ok(Action::requeue(self.pause));
        }
        let patch = if draft.is_provisioned() || is_told {
            patches::maintain(&found, None)
        } else {
            draft.notes.user_data = asked.user_data.as_ref().and_then(|reference| reference.name.clone());
            // What the host is told is noted first: whoever lets it go takes back what is noted.
            draft.say(MachineProgress::Provisioning("Provisioning", String::new()));
            draft.store(&self.client).await?;
            let deployment = HostSpecPatch {
                image: asked.image.as_ref(),
                custom_deploy: asked.custom_deploy.as_ref(),
                user_data: asked.user_data.as_ref(),
                ..HostSpecPatch::default()
            };
            patches::deploy(&found, &draft.id(), None, deployment)
        };
        let found = match patch {
            None => found,
            Some(patch) => match change(&self.client, &found, patch).await {
                // What a host may run is judged where it is told so.
                Err(kube::Error::Api(refused)) if refused.code == 422 => {
                    let reason = format!("the host refuses what it is to run: {}", refused.message);
                    draft.say(MachineProgress::Failed(INVALID_CONFIGURATION, reason.chars().take(SHOWN).collect()));
                    return Ok(Action::await_change());
                }
                changed => changed?,
            },
        };
        let addresses = addresses::addresses(&found)
            .into_iter()
            .filter_map(|one| Some(NodeAddress { type_: json!(one.type_).as_str()?.to_owned(), address: one.address }));
        draft.status().addresses = addresses.collect();
        draft.describe(&found);
        let progress = progress(&found);
        if progress == MachineProgress::Running && !draft.notes.provisioned {
            draft.notes.provisioned = true;
            self.tell(draft, "Provisioned", format!("BareMetalHost {} runs its image", found.name_any()), false).await;
        }
        draft.say(progress);
        Ok(Action::await_change())
    }

    /// Lets go whatever the Machine has. None when nothing is left, and the Machine with it.
    async fn release(&self, draft: &mut MachineDraft) -> Result<Option<Action>, TakeError> {
        let id = draft.id();
        self.hosts.forget(&id);
        // Another appliance may have taken a host that the Machine has not noted.
        let name = draft.host().or_else(|| self.hosts.of(&id));
        if let Some(preparer) = &self.preparer
            && name.is_some()
            && let HostDeparture::Wait(message) = preparer.leave(&self.client, &draft.new).await?
        {
            draft.say(MachineProgress::Terminating(format!("Waiting: {message}")));
            return Ok(Some(Action::requeue(self.pause)));
        }
        let hosts = Api::<BareMetalHost>::namespaced(self.client.clone(), &id.namespace);
        let found = match &name {
            Some(name) => hosts.get_opt(name).await?,
            None => None,
        };
        if let Some(found) = found {
            let told = draft.notes.told();
            let told = HostInstructions { user_data: told.as_ref(), ..HostInstructions::default() };
            match patches::release(&found, &id, told, None, None) {
                ReleaseProgress::NotOurs => {}
                ReleaseProgress::Tell(patch) => {
                    let found = change(&self.client, &found, patch).await?;
                    draft.describe(&found);
                    let reason = format!("BareMetalHost {} was told to deprovision", found.name_any());
                    draft.say(MachineProgress::Terminating(reason));
                    return Ok(Some(Action::requeue(LOOK_AT_HOST)));
                }
                ReleaseProgress::Wait(reason) => {
                    draft.describe(&found);
                    draft.say(MachineProgress::Terminating(format!("Waiting: {reason}")));
                    return Ok(Some(Action::requeue(LOOK_AT_HOST)));
                }
                ReleaseProgress::LetGo(patch) => {
                    change(&self.client, &found, patch).await?;
                    info!(host = %named(&id.namespace, &found.name_any()), machine = %named(&id.namespace, &id.name), kind = id.kind.kind(), "a machine let its host go");
                }
            }
        }
        draft.release(&self.client).await?;
        Ok(None)
    }

    /// The Machine has a host as of now.
    async fn claimed(&self, draft: &MachineDraft, found: &BareMetalHost, asked: &ProviderSpecRequest) {
        self.tell(draft, "BareMetalHostClaimed", format!("Claimed BareMetalHost {}", found.name_any()), false).await;
        if !asked.idle.is_empty() {
            let message = format!("Without effect here: {} of providerSpec.value", asked.idle.join(", "));
            self.tell(draft, "FieldsWithoutEffect", message, true).await;
        }
    }

    async fn is_there(&self, namespace: &str, secret: &str) -> Result<bool, kube::Error> {
        // It becomes part of a path, and the API server may have let anything through.
        if !crate::apiserver::subdomain(secret).is_empty() {
            return Ok(false);
        }
        Ok(Api::<Secret>::namespaced(self.client.clone(), namespace).get_opt(secret).await?.is_some())
    }

    async fn tell(&self, draft: &MachineDraft, reason: &'static str, message: String, warning: bool) {
        events::tell(&self.client, COMPONENT, &draft.new, &Note { reason, message, warning }).await;
    }
}

/// What a Machine asks of its host, with what is ready for it.
fn told_by(mut asked: ProviderSpecRequest, preparation: &Preparation) -> ProviderSpecRequest {
    if let Preparation::Ready(Prepared { user_data, fields, .. }) = preparation {
        asked.user_data = Some(user_data.clone());
        asked.idle.retain(|field| !fields.contains(field));
    }
    asked
}

/// The annotation by which nothing is to be done about the Machine.
fn pausing(machine: &Machine) -> Option<&'static str> {
    [keys::ANNOTATION_PAUSED, ANNOTATION_PAUSED].into_iter().find(|one| machine.annotations().contains_key(*one))
}

/// What the Machine wants, or why that makes no sense.
fn wish(draft: &MachineDraft, asked: &ProviderSpecRequest) -> Result<HostWish, String> {
    Ok(HostWish {
        machine: draft.id(),
        cluster: None,
        selector: asked.selector.clone(),
        needs: Needs::new(draft.new.annotations(), &BTreeMap::new()).map_err(|fault| fault.to_string())?,
        reuse: None,
        failure_domain: None,
    })
}

/// How far a Machine's host is.
fn progress(host: &BareMetalHost) -> MachineProgress {
    let status = host.status.clone().unwrap_or_default();
    let (name, state) = (host.name_any(), status.provisioning.state);
    if matches!(state, ProvisioningState::Provisioned | ProvisioningState::ExternallyProvisioned) {
        return MachineProgress::Running;
    }
    if status.error_message.is_empty() {
        return MachineProgress::Provisioning("Provisioning", format!("BareMetalHost {name} is {}", state.as_str()));
    }
    let error: String = status.error_message.chars().take(SHOWN).collect();
    MachineProgress::Provisioning("ProvisioningError", format!("BareMetalHost {name} is {}: {error}", state.as_str()))
}

impl Reconcile for HostClaims {
    type Object = ClaimView;
    type Error = TakeError;

    const NAME: &'static str = "machine-api-machine";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(300));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, machine: Arc<ClaimView>) -> Result<Action, TakeError> {
        let api = Api::<Machine>::namespaced(self.client.clone(), &machine.namespace().unwrap_or_default());
        match api.get_opt(&machine.name_any()).await? {
            Some(machine) => self.look(machine).await,
            None => Ok(Action::await_change()),
        }
    }

    fn gone(self: Arc<Self>, namespace: &str, name: &str) {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.hosts.forget(&MachineId { kind: MachineKind::MachineApi, namespace, name });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_host_that_runs_its_image_is_what_a_machine_is_for() {
        let host = |status: Value| -> BareMetalHost {
            serde_json::from_value(json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
                "metadata": {"name": "h"}, "spec": {"online": true}, "status": status}))
            .expect("a host")
        };
        let state = |state: &str, error: &str| json!({"provisioning": {"state": state}, "errorMessage": error});
        let said = |reason, message: &str| MachineProgress::Provisioning(reason, message.to_owned());
        for (status, wanted) in [
            (state("provisioned", ""), MachineProgress::Running),
            (state("provisioned", "the BMC does not answer"), MachineProgress::Running),
            (state("externally provisioned", ""), MachineProgress::Running),
            (state("preparing", ""), said("Provisioning", "BareMetalHost h is preparing")),
            (state("provisioning", "404"), said("ProvisioningError", "BareMetalHost h is provisioning: 404")),
            (state("deprovisioning", ""), said("Provisioning", "BareMetalHost h is deprovisioning")),
        ] {
            assert_eq!(progress(&host(status.clone())), wanted, "{status}");
        }
    }

    #[test]
    fn either_annotation_pauses() {
        for (annotation, pauses) in
            [("cluster.x-k8s.io/paused", true), ("cluster.k8s.io/paused", true), ("cluster.x-k8s.io/pause", false)]
        {
            let mut machine = Machine::new("m", Default::default());
            machine.metadata.annotations = Some([(annotation.to_owned(), String::new())].into());
            assert_eq!(pausing(&machine).is_some(), pauses, "{annotation}");
        }
    }
}
