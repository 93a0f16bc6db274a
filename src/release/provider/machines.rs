//! What is done about a Machine of a cluster with a release, look by look: its agent's account, its LCMMachine, and the user data of its
//! host are made, and it says how far its node is. Its host is `cluster::machine_api`'s.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::accounts::{self, AgentAccount};
use super::lcm_machine;
use super::machine_secret::{self, SecretError, WantedUserData};
use super::machine_spec::{self, MachineWish};
use super::machine_status::{self, FoundMachine};
use super::reach::Reach;
use crate::api::kaas::ClusterRelease;
use crate::api::lcm::{LCMCluster, LCMMachine};
use crate::api::machine_api::{Cluster, Machine};
use crate::api::metal3::BareMetalHost;
use crate::cluster::hosts;
use crate::release::catalogue::join::distribution;
use crate::release::catalogue::known::Releases;
use crate::release::keep::{self, KeepError};
use crate::release::names::COMPONENT;
use crate::release::updates::histories;
use crate::release::wish::shape;
use crate::runtime::changes::{change_status, delete, difference};
use crate::runtime::{Cache, Conflict, Note, Reconcile, Slim, events, key, owners, run};

/// After an error.
const RETRY: Duration = Duration::from_secs(2);
/// How often what is waited for is looked at that changes unseen.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// How often user data is looked at whose host is not told yet: the token in it ends.
const LOOK_AT_TOKEN: Duration = Duration::from_secs(6 * 3600);

/// Looks at Machines.
pub struct Machines {
    client: Client,
    releases: Releases,
    reach: Reach,
}

/// A look cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// What is made cannot be.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// Somebody must mend it, or it is early.
    #[error("{0}")]
    Waits(String),
}

impl From<SecretError> for MachineError {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::Api(error) => Self::Api(error),
            SecretError::Keep(error) => Self::Keep(error),
            SecretError::Waits(reason) => Self::Waits(reason),
        }
    }
}

impl Conflict for MachineError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Api(error) => error.is_conflict(),
            Self::Keep(error) => error.is_conflict(),
            Self::Waits(_) => false,
        }
    }
}

fn waits(reason: impl ToString) -> MachineError {
    MachineError::Waits(reason.to_string())
}

/// A Machine and its cluster.
struct MachineScope {
    machine: Machine,
    cluster: Cluster,
    namespace: String,
}

impl Machines {
    /// Nothing is looked at yet.
    pub fn new(client: Client, releases: Releases, reach: Reach) -> Self {
        Self { client, releases, reach }
    }

    /// Looks at Machines until the shutdown.
    pub async fn run(self, cache: Cache<Slim<Machine>>, shutdown: CancellationToken) {
        run(Arc::new(self), &cache, stream::empty(), shutdown).await;
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn look(&self, scope: MachineScope) -> Result<Action, MachineError> {
        let MachineScope { machine, cluster, namespace } = &scope;
        let wish = machine_spec::read(machine);
        let goes = machine.metadata.deletion_timestamp.is_some();
        if !goes && wish.as_ref().is_ok_and(|wish| wish.delete) {
            let message = "providerSpec.value.delete is true: it is deleted".to_owned();
            events::tell(&self.client, COMPONENT, machine, &Note { reason: "Deleted", message, warning: false }).await;
            delete(&self.api::<Machine>(namespace), machine).await?;
            return Ok(Action::await_change());
        }
        let made = match &wish {
            // What it has stays until it is gone.
            _ if goes => Ok(None),
            Ok(wish) => self.make(&scope, wish).await,
            Err(fault) => Err(waits(fault)),
        };
        if made.as_ref().is_err_and(Conflict::is_conflict) {
            return made.map(|_| Action::await_change());
        }
        let fault = made.as_ref().err().map(ToString::to_string);
        // What is known of the machine is not older than what is known of its cluster.
        let of_cluster: Option<LCMCluster> = self.api(namespace).get_opt(&cluster.name_any()).await?;
        let of_cluster = of_cluster.filter(|lcm| keep::is_of(lcm, &owners::owner(cluster, true)));
        let lcm: Option<LCMMachine> = self.api(namespace).get_opt(&machine.name_any()).await?;
        let lcm = lcm.filter(|lcm| keep::is_of(lcm, &owners::owner(machine, true)));
        let host = match hosts::noted(machine) {
            Some(name) => self.api::<BareMetalHost>(namespace).get_opt(&name).await?,
            None => None,
        };
        let found = FoundMachine {
            cluster: of_cluster.as_ref(),
            lcm: lcm.as_ref(),
            host: host.as_ref(),
            wish: wish.as_ref().ok(),
            fault: fault.as_deref(),
        };
        let told = self.say(machine, &found).await?;
        if let (Some(of_cluster), Some(lcm), false) = (&of_cluster, &lcm, goes) {
            histories::of_machine(&self.client, machine, &told, (of_cluster, lcm)).await?;
        }
        match made {
            Ok(Some(after)) => Ok(Action::requeue(after)),
            Ok(None) => Ok(Action::await_change()),
            // It says so, and waits for somebody.
            Err(MachineError::Waits(_) | MachineError::Keep(KeepError::Taken { .. } | KeepError::Leaving { .. })) => {
                Ok(Action::requeue(LOOK_AGAIN))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes what the agent needs, in the order in which each needs the one before. After which time it is looked at again.
    async fn make(&self, scope: &MachineScope, wish: &MachineWish) -> Result<Option<Duration>, MachineError> {
        let MachineScope { machine, cluster, namespace } = scope;
        let name = machine.name_any();
        if cluster.metadata.deletion_timestamp.is_some() {
            return Err(waits(format!("the Cluster {} is being deleted", cluster.name_any())));
        }
        let clusters = self.api::<LCMCluster>(namespace);
        let Some(lcm) = keep::own(&clusters, &cluster.name_any(), &owners::owner(cluster, true)).await? else {
            return Err(waits(format!(
                "the Cluster {} is not made of its release yet: it says why",
                cluster.name_any()
            )));
        };
        let release = self.releases.of(&lcm.spec.release).release;
        let release =
            release.ok_or_else(|| waits(format!("the ClusterRelease {:?} is not known", lcm.spec.release)))?;
        if let Some((key, value)) = machine_spec::forbidden_label(wish, &release.spec.allowed_node_labels) {
            return Err(waits(format!(
                "{key}={value} is not in allowedNodeLabels of the release {}",
                lcm.spec.release
            )));
        }
        let system = system(machine, wish, &release)?;
        let owner = owners::owner(machine, true);
        let account: AgentAccount = accounts::agent(&name);
        let known = accounts::provide(&self.client, namespace, &account, &owner).await?;
        let machines = self.api::<LCMMachine>(namespace);
        lcm_machine::provide(&machines, machine, &lcm, wish, &system, &owner).await?;
        let Some(agent) = &lcm.spec.agent_config else { return Err(waits("the LCMCluster names no agent")) };
        let server = self.reach.server().map_err(waits)?;
        let wanted = WantedUserData { machine, account: &known, agent, server: &server, ca_pem: &self.reach.ca_pem };
        let is_told = machine_secret::provide(&self.client, namespace, &wanted, &owner, Timestamp::now()).await?;
        Ok((!is_told).then_some(LOOK_AT_TOKEN))
    }

    /// Writes what was found out, where it is other than before.
    async fn say(&self, machine: &Machine, found: &FoundMachine<'_>) -> Result<Value, kube::Error> {
        let before = machine.status.as_ref().and_then(|status| status.provider_status.as_ref());
        let now = machine_status::report(before, found, Timestamp::now());
        let old = before.cloned().unwrap_or_else(|| json!({}));
        if let Some(patch) = difference(&old, &now) {
            let api = self.api::<Machine>(&machine.namespace().unwrap_or_default());
            change_status(&api, machine, json!({ "providerStatus": patch })).await?;
        }
        Ok(now)
    }
}

/// The system of a machine, by its id in the release; empty where an image is named and no system is.
fn system(machine: &Machine, wish: &MachineWish, release: &ClusterRelease) -> Result<String, MachineError> {
    let names_image =
        machine.spec.provider_spec.value.as_ref().is_some_and(|value| value["image"]["url"].as_str().is_some());
    match distribution(release, wish.distribution.as_deref()) {
        Ok(system) => Ok(system.id.clone()),
        Err(_) if names_image && wish.distribution.is_none() => Ok(String::new()),
        Err(fault) => Err(waits(fault)),
    }
}

impl Reconcile for Machines {
    type Object = Slim<Machine>;
    type Error = MachineError;

    const NAME: &'static str = "provider-machine";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(120));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, known: Arc<Slim<Machine>>) -> Result<Action, MachineError> {
        let (namespace, name) = key(known.as_ref());
        let Some(machine) = self.api::<Machine>(&namespace).get_opt(&name).await? else {
            return Ok(Action::await_change());
        };
        let Some(cluster) = machine_spec::cluster_of(&machine) else { return Ok(Action::await_change()) };
        let cluster: Option<Cluster> = self.api(&namespace).get_opt(cluster).await?;
        match cluster.filter(|cluster| shape::is_ours(&cluster.spec)) {
            Some(cluster) => self.look(MachineScope { machine, cluster, namespace }).await,
            None => Ok(Action::await_change()),
        }
    }
}

/// The Secret with a Machine's own user data, by the name that its value has for it.
pub fn own_user_data(machine: &Machine) -> Option<&str> {
    let reference = machine.spec.provider_spec.value.as_ref()?.get("userData")?;
    reference["name"].as_str().filter(|name| !name.is_empty())
}

/// The content of a Secret with user data.
pub fn content(secret: &Secret) -> Option<&[u8]> {
    let data = secret.data.as_ref()?;
    data.get("userData").or_else(|| data.get("value")).map(|content| content.0.as_slice())
}
