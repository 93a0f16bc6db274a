//! Looks at Provisionings: gives their nodes hosts, and makes the inventory when all of them can be reached.
//!
//! Hosts are taken all at once or not at all, so that no two objects wait for each other's: those of one namespace are looked at one
//! after the other, and what was chosen is read again before any of it is taken. Each host is taken in the very version that was
//! judged.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use tracing::{info, warn};

use super::claim;
use super::cluster_inventory::cluster_inventory;
use super::made::{self, MadeError};
use super::progress::{self, Phase};
use super::rack::RackHost;
use super::seats::{Seat, seats};
use super::wanted::{self, WantedCluster, WantedNode};
use crate::api::bpa::{Provisioning, ProvisioningStatus};
use crate::api::metal3::BareMetalHost;
use crate::log::named;
use crate::runtime::{Note, Reconcile, Slim, events, objects};

/// Holds a Provisioning until its hosts are let go.
const FINALIZER: &str = "provisioning.bpa.akraino.org";
/// Who tells events.
const COMPONENT: &str = "slipway-kubespray";
/// After an error.
const RETRY: Duration = Duration::from_secs(2);
/// Whoever waits is told of changes of hosts; this is for what nobody tells.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Why an object could not be looked at to the end.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// Something is not any more what it was when it was chosen.
    #[error("a host that was chosen has changed meanwhile")]
    Meanwhile,
    /// A host may not run what it was to.
    #[error("BareMetalHost {host} refuses what it is to run: {why}")]
    Refused {
        /// The host.
        host: String,
        /// Why.
        why: String,
    },
}

/// Looks at Provisionings.
pub struct Provisionings {
    client: Client,
}

/// One look: the object, and what it is to say.
struct Look<'l> {
    object: &'l Provisioning,
    namespace: String,
    name: String,
    status: &'l mut ProvisioningStatus,
}

impl Provisionings {
    /// Nothing is looked at yet.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    fn hosts(&self, namespace: &str) -> Api<BareMetalHost> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn rack(&self, namespace: &str) -> Result<Vec<RackHost>, kube::Error> {
        let mut rack = Vec::new();
        objects::each(&self.hosts(namespace), |host| rack.push(RackHost::from(&host))).await?;
        Ok(rack)
    }

    async fn look(&self, object: Provisioning) -> Result<Action, LookError> {
        let namespace = object.namespace().unwrap_or_default();
        if object.metadata.deletion_timestamp.is_some() {
            self.release(&object, &namespace).await?;
            return Ok(Action::await_change());
        }
        let object = self.hold(object, &namespace).await?;
        let mut status = object.status.clone().unwrap_or_default();
        let name = object.name_any();
        let look = Look { object: &object, namespace, name, status: &mut status };
        let looked = self.advance(look).await;
        // What was found out until then is said even so.
        self.store(&object, status).await?;
        looked.map(|()| Action::requeue(LOOK_AGAIN))
    }

    async fn hold(&self, object: Provisioning, namespace: &str) -> Result<Provisioning, kube::Error> {
        if object.finalizers().iter().any(|one| one == FINALIZER) {
            return Ok(object);
        }
        let finalizers = objects::with(&object, FINALIZER);
        let patch = json!({"metadata": {"resourceVersion": object.resource_version(), "finalizers": finalizers}});
        let api = Api::<Provisioning>::namespaced(self.client.clone(), namespace);
        api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
    }

    async fn advance(&self, look: Look<'_>) -> Result<(), LookError> {
        let (generation, now) = (look.object.metadata.generation, Timestamp::now());
        let (phase, message) = match wanted::read(look.object) {
            Err(faults) => (Phase::Invalid, progress::faults(&faults)),
            Ok(cluster) => {
                let Followed { phase, message, status } = self.follow(&look, &cluster).await?;
                *look.status = status;
                (phase, message)
            }
        };
        progress::whole(look.status, phase, &message, generation, now);
        Ok(())
    }

    /// Takes hosts, and makes the inventory when all can be reached.
    async fn follow(&self, look: &Look<'_>, cluster: &WantedCluster) -> Result<Followed, LookError> {
        let mut status = look.status.clone();
        status.hosts_yaml = None;
        let user_data = made::user_data_name(&look.name);
        let mut rack = self.rack(&look.namespace).await?;
        let has_image = look.object.spec.image.is_some();
        let mut given = seats((&look.namespace, &look.name), &cluster.nodes, &rack, has_image);
        progress::nodes(&mut status, &cluster.nodes, &given, &user_data);
        if given.iter().all(|seat| seat.host().is_some()) && given.iter().any(|seat| matches!(seat, Seat::Takes(_))) {
            match self.secrets(look, &mut status).await {
                Err(MadeError::Api(error)) => return Err(error.into()),
                Err(why) => return Ok(Followed { phase: Phase::Invalid, message: why.to_string(), status }),
                Ok(()) => {}
            }
            match self.take(look, &cluster.nodes, &given, &user_data).await {
                Err(refused @ LookError::Refused { .. }) => {
                    return Ok(Followed { phase: Phase::Invalid, message: refused.to_string(), status });
                }
                taken => taken?,
            }
            rack = self.rack(&look.namespace).await?;
            given = seats((&look.namespace, &look.name), &cluster.nodes, &rack, has_image);
            progress::nodes(&mut status, &cluster.nodes, &given, &user_data);
        }
        if given.iter().any(|seat| !matches!(seat, Seat::Has(_))) {
            let message = progress::waiting(&status);
            return Ok(Followed { phase: Phase::Choosing, message, status });
        }
        let placed = |(node, seat): (_, &Seat<'_>)| Some((node, progress::place(seat.host()?, &user_data).ok()?));
        let places: Vec<_> = cluster.nodes.iter().zip(&given).filter_map(placed).collect();
        if places.len() < cluster.nodes.len() {
            let message = progress::waiting(&status);
            return Ok(Followed { phase: Phase::Provisioning, message, status });
        }
        let inventory = match cluster_inventory(cluster, &places) {
            Ok(inventory) => inventory,
            Err(why) => return Ok(Followed { phase: Phase::Provisioning, message: why.to_string(), status }),
        };
        match made::inventory(&self.client, look.object, &inventory).await {
            Err(MadeError::Api(error)) => return Err(error.into()),
            Err(why) => return Ok(Followed { phase: Phase::Provisioning, message: why.to_string(), status }),
            Ok(()) => {}
        }
        status.hosts_yaml = Some(inventory.yaml());
        let name = made::inventory_name(&look.name);
        let message = format!(
            "The inventory is ready, and nothing is installed yet: run kubespray by hand with status.hostsYaml (or the ConfigMap {name}, which \
             others may write) and the key of the Secret {} (docs/kubespray.md)",
            made::ssh_key_name(&look.name)
        );
        status.inventory = Some(name);
        Ok(Followed { phase: Phase::InventoryReady, message, status })
    }

    /// The key that opens the nodes, and the user data that says so.
    async fn secrets(&self, look: &Look<'_>, status: &mut ProvisioningStatus) -> Result<(), MadeError> {
        let public = made::ssh_key(&self.client, look.object).await?;
        made::user_data(&self.client, look.object, &public).await?;
        status.ssh_key = Some(made::ssh_key_name(&look.name));
        status.ssh_public_key = Some(public);
        Ok(())
    }

    /// Takes every host that was chosen, after all of them were seen to be what they were.
    async fn take(
        &self,
        look: &Look<'_>,
        nodes: &[WantedNode],
        given: &[Seat<'_>],
        user_data: &str,
    ) -> Result<(), LookError> {
        let hosts = self.hosts(&look.namespace);
        let mut chosen = Vec::new();
        for (node, seat) in nodes.iter().zip(given) {
            let Seat::Takes(host) = seat else { continue };
            let found = hosts.get_opt(host.name()).await?.ok_or(LookError::Meanwhile)?;
            if found.resource_version() != host.view.metadata.resource_version {
                return Err(LookError::Meanwhile);
            }
            chosen.push((node, found));
        }
        for (node, found) in chosen {
            let image = look.object.spec.image.as_ref();
            let Some(patch) = claim::claim(&found, look.object, node.name.as_str(), image, user_data) else { continue };
            let host = found.name_any();
            match hosts.patch(&host, &PatchParams::default(), &Patch::Merge(patch)).await {
                // What a host may run is judged where it is told so.
                Err(kube::Error::Api(refused)) if refused.code == 422 => {
                    return Err(LookError::Refused { host, why: refused.message.clone() });
                }
                patched => patched.map(drop)?,
            }
            info!(host = %named(&look.namespace, &host), provisioning = %named(&look.namespace, &look.name), node = %node.name, "a host became a node");
        }
        Ok(())
    }

    /// Lets all hosts go, and the object after them. A host whose letting go is refused is left to whoever can mend it.
    async fn release(&self, object: &Provisioning, namespace: &str) -> Result<(), LookError> {
        let name = object.name_any();
        let user_data = made::user_data_name(&name);
        let hosts = self.hosts(namespace);
        for host in self.rack(namespace).await?.iter().filter(|host| host.is_of(&name)) {
            let Some(found) = hosts.get_opt(host.name()).await? else { continue };
            let Some(patch) = claim::release(&found, &name, &user_data) else { continue };
            match hosts.patch(host.name(), &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => {
                    info!(host = %named(namespace, host.name()), provisioning = %named(namespace, &name), "a node's host was let go");
                }
                Err(kube::Error::Api(error)) if error.is_not_found() => {}
                Err(kube::Error::Api(error)) if error.code == 422 => {
                    warn!(host = %named(namespace, host.name()), provisioning = %named(namespace, &name), %error, "a host cannot be let go: take its consumerRef away by hand");
                }
                Err(error) => return Err(error.into()),
            }
        }
        let api = Api::<Provisioning>::namespaced(self.client.clone(), namespace);
        Ok(objects::release(&api, object, FINALIZER).await?)
    }

    /// Writes the status where it says something new, and tells of a new phase.
    async fn store(&self, object: &Provisioning, status: ProvisioningStatus) -> Result<(), kube::Error> {
        let before = object.status.clone().unwrap_or_default();
        if status == before {
            return Ok(());
        }
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let reason = [Phase::Invalid, Phase::Choosing, Phase::Provisioning, Phase::InventoryReady]
            .into_iter()
            .find(|phase| phase.word() == status.phase && status.phase != before.phase);
        let (message, warning) = (status.message.clone(), reason == Some(Phase::Invalid));
        let changed = Provisioning { status: Some(status), ..object.clone() };
        let api = Api::<Provisioning>::namespaced(self.client.clone(), &namespace);
        api.replace_status(&name, &PostParams::default(), &changed).await?;
        if let Some(phase) = reason {
            let note = Note { reason: phase.word(), message, warning };
            if let Err(error) = events::publish(&self.client, COMPONENT, &object.object_ref(&()), &note).await {
                warn!(provisioning = %named(&namespace, &name), %error, "cannot store an event");
            }
        }
        Ok(())
    }
}

/// How far a cluster came.
struct Followed {
    phase: Phase,
    message: String,
    status: ProvisioningStatus,
}

impl Reconcile for Provisionings {
    type Object = Slim<Provisioning>;
    type Error = LookError;

    const OF_A_NAMESPACE: u16 = 1;
    const DEADLINE: Option<Duration> = Some(Duration::from_secs(600));

    async fn reconcile(&self, object: Arc<Self::Object>) -> Result<Action, Self::Error> {
        let meta = object.meta();
        let namespace = meta.namespace.clone().unwrap_or_default();
        let api = Api::<Provisioning>::namespaced(self.client.clone(), &namespace);
        match api.get_opt(meta.name.as_deref().unwrap_or_default()).await? {
            Some(found) => self.look(found).await,
            None => Ok(Action::await_change()),
        }
    }

    fn retry_after(&self) -> Duration {
        RETRY
    }

    fn is_conflict(error: &Self::Error) -> bool {
        match error {
            LookError::Meanwhile => true,
            LookError::Api(kube::Error::Api(error)) => error.is_conflict(),
            LookError::Api(_) | LookError::Refused { .. } => false,
        }
    }
}
