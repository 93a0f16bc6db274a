//! What is done about the Helm controller of a cluster, look by look. Each write may be done twice, and the next look goes on where one
//! ended.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use zeroize::Zeroizing;

use super::objects::{self, ControllerTarget, INSTALLER, InstallOutcome, LABEL, NAMESPACE, SECRET};
use super::turn::{HelmMachine, HelmTurn, turn};
use crate::api::lcm::{HelmBundle, LCMCluster, LCMMachine, MachineRole, NodeState};
use crate::apiserver::subdomain;
use crate::cluster::workload::{WorkloadError, Workloads};
use crate::release::provider::Reach;
use crate::runtime::changes::{delete, unless_gone, write_status};
use crate::runtime::conditions::{ConditionVerdict, clear, is_true, set};
use crate::runtime::{Conflict, Reconcile, Slim, key, objects as stored, owners};

/// Condition of an LCMCluster.
pub(super) const CONDITION: &str = "HelmControllerDeployed";
/// Jobs and pods that are asked for.
const PAGE: u32 = 20;

/// Times that tests have shorter.
#[derive(Clone, Copy, Debug)]
pub(super) struct HelmTimes {
    /// Between looks at a controller that comes up.
    pub pause: Duration,
    /// Between looks at one that runs, and at its token.
    pub look: Duration,
    /// After a Job that failed.
    pub retry: SignedDuration,
}

impl Default for HelmTimes {
    fn default() -> Self {
        Self { pause: Duration::from_secs(15), look: Duration::from_secs(300), retry: SignedDuration::from_mins(5) }
    }
}

/// A look cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeployFault {
    /// What the appliance's API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// What the cluster says.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// Somebody has to do something.
    #[error("{0}")]
    Open(String),
}

impl Conflict for DeployFault {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_conflict())
    }
}

/// Looks after Helm controllers.
pub(super) struct HelmDeployer {
    pub client: Client,
    pub workloads: Workloads,
    pub reach: Reach,
    pub times: HelmTimes,
}

impl HelmDeployer {
    /// The bundle of a cluster: of its name, and of the same Cluster.
    async fn bundle(&self, cluster: &LCMCluster, namespace: &str) -> Result<Option<HelmBundle>, kube::Error> {
        let bundles = Api::<HelmBundle>::namespaced(self.client.clone(), namespace);
        let found = bundles.get_opt(&cluster.name_any()).await?;
        let owner = owners::controller(&cluster.metadata).map(|owner| owner.uid.clone());
        let is_its = |bundle: &HelmBundle| {
            owner.is_some() && owners::controller(&bundle.metadata).map(|other| other.uid.clone()) == owner
        };
        Ok(found.filter(is_its))
    }

    async fn machines(&self, cluster: &str, namespace: &str) -> Result<Vec<HelmMachine>, kube::Error> {
        let mut machines = Vec::new();
        let api = Api::<LCMMachine>::namespaced(self.client.clone(), namespace);
        stored::each(&api, |machine: LCMMachine| {
            if machine.spec.cluster_name != cluster {
                return;
            }
            let status = machine.status.unwrap_or_default();
            let is_ready = status.state == Some(NodeState::Ready) && is_true(&status.conditions, "Ready");
            let role = machine.spec.role.unwrap_or(MachineRole::Worker);
            machines.push(HelmMachine { role, is_ready });
        })
        .await?;
        Ok(machines)
    }

    /// What is to be said, and when to look again.
    async fn look(
        &self,
        cluster: &LCMCluster,
        namespace: &str,
    ) -> Result<(Option<ConditionVerdict>, Action), DeployFault> {
        let name = cluster.name_any();
        let bundle = self.bundle(cluster, namespace).await?;
        let was_deployed = cluster.status.as_ref().is_some_and(|status| status.helm_controller_deployed);
        let machines = if was_deployed { Vec::new() } else { self.machines(&name, namespace).await? };
        match turn(bundle.as_ref(), was_deployed, &machines) {
            HelmTurn::NoCharts => return Ok((None, Action::await_change())),
            HelmTurn::Wait(reason) => {
                return Ok((Some(ConditionVerdict::no("Waiting", reason)), Action::await_change()));
            }
            HelmTurn::Go if cluster.spec.maintenance && !was_deployed => {
                let reason = "nothing is installed in maintenance";
                return Ok((Some(ConditionVerdict::no("Waiting", reason)), Action::await_change()));
            }
            HelmTurn::Go => {}
        }
        match self.deploy(cluster, namespace, bundle.as_ref()).await {
            Ok(None) => Ok((Some(ConditionVerdict::yes("Deployed")), Action::requeue(self.times.look))),
            Ok(Some(reason)) => {
                Ok((Some(ConditionVerdict::no("Installing", reason)), Action::requeue(self.times.pause)))
            }
            Err(error) if error.is_conflict() => Err(error),
            // It may run well; nobody knows.
            Err(DeployFault::Workload(error)) if was_deployed => {
                let verdict = ConditionVerdict::unknown("Unreachable", error.to_string());
                Ok((Some(verdict), Action::requeue(self.times.look)))
            }
            Err(error) => {
                let verdict = ConditionVerdict::no("NotPossible", error.to_string());
                Ok((Some(verdict), Action::requeue(self.times.pause)))
            }
        }
    }

    /// Has the controller be there, with what it needs; why it does not run yet, where it does not.
    async fn deploy(
        &self,
        cluster: &LCMCluster,
        namespace: &str,
        bundle: Option<&HelmBundle>,
    ) -> Result<Option<String>, DeployFault> {
        let name = cluster.name_any();
        let server = self.reach.server().map_err(|nowhere| DeployFault::Open(nowhere.to_string()))?;
        let workload = self.workloads.get(&self.client, namespace, &name).await?;
        let inside = workload.client();
        self.keep_secret(inside, cluster, namespace, bundle).await?;
        // Nothing but what it lives by changes in maintenance.
        if !cluster.spec.maintenance {
            let version = env!("CARGO_PKG_VERSION");
            let target = ControllerTarget { server: &server, ca_pem: &self.reach.ca_pem, namespace, bundle: &name };
            if let Some(reason) = self.install(inside, &objects::job(&target, version), version).await? {
                return Ok(Some(reason));
            }
        }
        let deployments = Api::<Deployment>::namespaced(inside.clone(), NAMESPACE);
        let deployment = deployments.get_opt(objects::CONTROLLER).await.map_err(WorkloadError::from)?;
        Ok(objects::runs(deployment.as_ref()).err())
    }

    /// Keeps token and logins.
    async fn keep_secret(
        &self,
        inside: &Client,
        cluster: &LCMCluster,
        namespace: &str,
        bundle: Option<&HelmBundle>,
    ) -> Result<(), DeployFault> {
        let account = self.account(cluster, namespace).await?;
        let uid = account.uid().unwrap_or_default();
        let secrets = Api::<Secret>::namespaced(inside.clone(), NAMESPACE);
        let present = secrets.get_opt(SECRET).await.map_err(WorkloadError::from)?;
        let token = match objects::has_good_token(present.as_ref(), &uid, Timestamp::now()) {
            true => None,
            false => Some(self.token(&account.name_any(), namespace).await?),
        };
        let mut logins = BTreeMap::new();
        let wanted = bundle.into_iter().flat_map(|bundle| &bundle.spec.repositories);
        for name in wanted.map(|one| one.auth_secret.as_str()).filter(|name| !name.is_empty()) {
            if !subdomain(name).is_empty() {
                return Err(DeployFault::Open(format!("authSecret {name:?} of a repository is no name of a Secret")));
            }
            let found = Api::<Secret>::namespaced(self.client.clone(), namespace).get_opt(name).await?;
            logins.insert(name.to_owned(), objects::login(name, found.as_ref()).map_err(DeployFault::Open)?);
        }
        let token = token.as_ref().map(|(text, expires)| (text.as_str(), *expires, uid.as_str()));
        let wanted = objects::secret(present.as_ref(), token, &logins);
        put(&secrets, present, &wanted).await?;
        Ok(())
    }

    /// The controller's account on the appliance: one that is of the same Cluster.
    async fn account(&self, cluster: &LCMCluster, namespace: &str) -> Result<ServiceAccount, DeployFault> {
        let name = &cluster.spec.helm_controller_service_account_name;
        let owner = owners::controller(&cluster.metadata).map(|owner| owner.uid.clone()).unwrap_or_default();
        let found = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace).get_opt(name).await?;
        let found = found.filter(|found| owners::is_owned(&found.metadata, &owner));
        found.ok_or_else(|| DeployFault::Open(format!("the account {name:?} of the Helm controller is not there yet")))
    }

    async fn token(&self, account: &str, namespace: &str) -> Result<(Zeroizing<String>, Timestamp), DeployFault> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace);
        let seconds = Some(objects::TOKEN_SECONDS);
        let spec = TokenRequestSpec { expiration_seconds: seconds, ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let made = accounts.create_token_request(account, &PostParams::default(), &request).await?;
        let status = made.status.ok_or_else(|| DeployFault::Open(format!("there is no token of {account}")))?;
        Ok((Zeroizing::new(status.token), status.expiration_timestamp.0))
    }

    /// Has the Job run that installs the controller; why it is not done, where it is not.
    async fn install(&self, inside: &Client, wanted: &Value, version: &str) -> Result<Option<String>, DeployFault> {
        let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
        let jobs = Api::<Job>::namespaced(inside.clone(), NAMESPACE);
        let Some(job) = jobs.get_opt(name).await.map_err(WorkloadError::from)? else {
            let accounts = Api::<ServiceAccount>::namespaced(inside.clone(), NAMESPACE);
            let present = accounts.get_opt(INSTALLER).await.map_err(WorkloadError::from)?;
            put(&accounts, present, &objects::account()).await?;
            let bindings = Api::<ClusterRoleBinding>::all(inside.clone());
            let present = bindings.get_opt(INSTALLER).await.map_err(WorkloadError::from)?;
            put(&bindings, present, &objects::binding()).await?;
            put(&jobs, None, wanted).await?;
            return Ok(Some("installing the Helm controller".into()));
        };
        match objects::outcome(&job) {
            InstallOutcome::Done => {
                // Of versions and addresses before.
                let params = ListParams::default().labels(&format!("{LABEL}={}", objects::CONTROLLER)).limit(PAGE);
                for old in jobs.list(&params).await.map_err(WorkloadError::from)? {
                    if old.name_any() != name {
                        delete(&jobs, &old).await.map_err(WorkloadError::from)?;
                    }
                }
                Ok(None)
            }
            InstallOutcome::Running => {
                let pods = Api::<Pod>::namespaced(inside.clone(), NAMESPACE);
                let params = ListParams::default().labels(&format!("{LABEL}={}", objects::CONTROLLER)).limit(PAGE);
                let pods = pods.list(&params).await.map_err(WorkloadError::from)?.items;
                let reason = objects::trouble(&pods, version);
                Ok(Some(reason.unwrap_or_else(|| format!("the Job {NAMESPACE}/{name} installs it"))))
            }
            InstallOutcome::Failed(since, reason) => {
                if since.is_none_or(|since| Timestamp::now().duration_since(since) >= self.times.retry) {
                    delete(&jobs, &job).await.map_err(WorkloadError::from)?;
                }
                Ok(Some(format!(
                    "the Job {NAMESPACE}/{name} failed, and is tried again: {reason} (`kubectl logs -n {NAMESPACE} job/{name}`)"
                )))
            }
        }
    }
}

/// Has an object of a cluster be as it is wanted, in what is said of it.
async fn put<K>(api: &Api<K>, present: Option<K>, wanted: &Value) -> Result<(), DeployFault>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let odd = |error: serde_json::Error| DeployFault::Api(kube::Error::SerdeError(error));
    let Some(present) = present else {
        let made = serde_json::from_value(wanted.clone()).map_err(odd)?;
        api.create(&PostParams::default(), &made).await.map_err(WorkloadError::from)?;
        return Ok(());
    };
    let before = serde_json::to_value(&present).map_err(odd)?;
    let mut after = before.clone();
    json_patch::merge(&mut after, wanted);
    if after != before {
        let patched = api.patch(&present.name_any(), &PatchParams::default(), &Patch::Merge(wanted)).await;
        unless_gone(patched).map_err(WorkloadError::from)?;
    }
    Ok(())
}

impl Reconcile for HelmDeployer {
    type Object = Slim<LCMCluster>;
    type Error = DeployFault;

    const NAME: &'static str = "helm-controller";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(120));

    fn retry_after(&self) -> Duration {
        self.times.pause.min(Duration::from_secs(5))
    }

    async fn reconcile(&self, known: Arc<Slim<LCMCluster>>) -> Result<Action, DeployFault> {
        let (namespace, name) = key(known.as_ref());
        let api = Api::<LCMCluster>::namespaced(self.client.clone(), &namespace);
        let Some(cluster) = api.get_opt(&name).await? else { return Ok(Action::await_change()) };
        if cluster.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let (verdict, again) = self.look(&cluster, &namespace).await?;
        let mut status = cluster.status.clone().unwrap_or_default();
        match verdict {
            None => clear(&mut status.conditions, CONDITION),
            Some(verdict) => {
                status.helm_controller_deployed |= verdict.is_true();
                set(&mut status.conditions, CONDITION, &verdict, cluster.metadata.generation, Timestamp::now());
            }
        }
        write_status(&api, &cluster, cluster.status.as_ref(), &status).await?;
        Ok(again)
    }
}
