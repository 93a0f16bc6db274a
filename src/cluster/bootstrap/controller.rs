//! What is done about a KubeadmConfig, look by look.
//!
//! The first machine of a control plane that has the cluster's lock begins the cluster; every other one waits until the control
//! plane answers, and joins. User data is made once. Until the node is there its token is kept good.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::{Client, ResourceExt};

use super::fault::BootstrapFault;
use super::join;
use super::lock::{self, InitLock};
use super::status::{self, BootstrapCondition, BootstrapFindings};
use super::store;
use super::{data, token};
use crate::api::bootstrap::GROUP;
use crate::api::bootstrap::v1beta2::KubeadmConfig;
use crate::api::cluster;
use crate::api::cluster::keys::LABEL_CONTROL_PLANE;
use crate::api::cluster::v1beta2::{Cluster, Machine};
use crate::cluster::certificates::{self, CertificateError, CertificatePurpose, Certificates, ClusterCertificates};
use crate::cluster::contract::{ReferencedObjects, pause};
use crate::cluster::workload::Workloads;
use crate::runtime::throttle::{MessageThrottle, again};
use crate::runtime::{Conflict, Reconcile, Slim, conditions, key, owners};

/// How often things are looked at that change unseen.
#[derive(Clone, Copy, Debug)]
pub(super) struct BootstrapTimes {
    /// What is waited for.
    pub(super) pause: Duration,
    /// A token that a node has not used yet.
    pub(super) token: Duration,
    /// So long a status stays in which only messages have become other ones.
    pub(super) messages: Duration,
}

/// Keeps KubeadmConfigs.
pub(super) struct KubeadmConfigReconciler {
    pub(super) objects: ReferencedObjects,
    pub(super) workloads: Workloads,
    pub(super) times: BootstrapTimes,
    /// When statuses were written.
    pub(super) throttle: MessageThrottle,
}

/// A KubeadmConfig, and whom it is for.
pub(super) struct KubeadmConfigScope {
    pub(super) config: KubeadmConfig,
    pub(super) machine: Machine,
    pub(super) cluster: Cluster,
    pub(super) namespace: String,
}

impl KubeadmConfigScope {
    pub(super) fn place(&self) -> ClusterCertificates<'_> {
        ClusterCertificates { namespace: &self.namespace, cluster: &self.machine.spec.cluster_name }
    }

    fn is_control_plane(&self) -> bool {
        self.machine.labels().contains_key(LABEL_CONTROL_PLANE)
    }

    /// Version of Kubernetes of the machine.
    pub(super) fn version(&self) -> Result<&str, BootstrapFault> {
        let version = self.machine.spec.version.as_deref();
        version.ok_or_else(|| BootstrapFault::spec("spec.version", "the Machine says no version of Kubernetes"))
    }

    fn is_provisioned(&self) -> bool {
        let done = self.cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
        done.and_then(|done| done.infrastructure_provisioned) == Some(true)
    }

    fn is_initialized(&self) -> bool {
        let Some(status) = &self.cluster.status else { return false };
        let done = status.initialization.as_ref().and_then(|done| done.control_plane_initialized);
        done == Some(true) || conditions::is_true(&status.conditions, "ControlPlaneInitialized")
    }

    fn is_made(&self) -> bool {
        let status = self.config.status.as_ref();
        let done = status.and_then(|status| status.initialization.as_ref()).and_then(|done| done.data_secret_created);
        done == Some(true) && status.is_some_and(|status| status.data_secret_name.is_some())
    }

    fn has_node(&self) -> bool {
        self.machine.status.as_ref().is_some_and(|status| status.node_ref.is_some())
    }
}

impl Reconcile for KubeadmConfigReconciler {
    type Object = Slim<KubeadmConfig>;
    type Error = BootstrapFault;

    const NAME: &'static str = "kubeadmconfig";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const AT_ONCE: u16 = 64;
    const DEADLINE: Option<Duration> = Some(Duration::from_secs(120));

    fn retry_after(&self) -> Duration {
        self.times.pause.min(Duration::from_secs(2))
    }

    async fn reconcile(&self, known: Arc<Slim<KubeadmConfig>>) -> Result<Action, BootstrapFault> {
        let (namespace, name) = key(known.as_ref());
        let configs = Api::<KubeadmConfig>::namespaced(self.client().clone(), &namespace);
        let Some(config) = configs.get_opt(&name).await? else { return Ok(Action::await_change()) };
        // Whatever it has made goes with it, for it is the owner.
        if config.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let Some(mut scope) = self.scope(config, namespace).await? else { return Ok(Action::await_change()) };
        let before = scope.config.status.clone().unwrap_or_default();
        let generation = scope.config.metadata.generation;
        let paused = pause::is_paused(Some(&scope.cluster), &scope.config);
        let mut findings = BootstrapFindings::default();
        let done = if paused { Ok(None) } else { self.look(&mut scope, &mut findings).await };
        if let Err(fault) = &done
            && !fault.is_conflict()
        {
            say(fault, &mut findings);
        }
        let now = Timestamp::now();
        let mut status = if paused { before.clone() } else { status::report(&before, &findings, generation, now) };
        let verdict = pause::verdict(Some(&scope.cluster), &scope.config);
        conditions::set(&mut status.conditions, pause::PAUSED, &verdict, generation, now);
        let held = self.throttle.write_status(&configs, &scope.config, Some(&before), &status).await?;
        Ok(again(done?, held))
    }
}

/// Whether a machine says that this is how it becomes a node: anybody can name it as an owner.
fn names(machine: &Machine, config: &KubeadmConfig) -> bool {
    let reference = machine.spec.bootstrap.config_ref.as_ref();
    reference.is_some_and(|one| one.api_group == GROUP && one.kind == "KubeadmConfig" && one.name == config.name_any())
}

/// What a fault says of the conditions.
fn say(fault: &BootstrapFault, findings: &mut BootstrapFindings) {
    if matches!(fault, BootstrapFault::Certificate(_)) {
        findings.data.get_or_insert_with(|| BootstrapCondition::failed("Waiting for the cluster's certificates"));
    }
    match fault {
        BootstrapFault::Certificate(error @ CertificateError::Missing(_)) => {
            findings.certificates = Some(BootstrapCondition::uncertified(error.to_string()));
        }
        BootstrapFault::Certificate(CertificateError::Api(error)) => {
            findings.certificates = Some(BootstrapCondition::unknown(crate::cluster::workload::said(error)));
        }
        BootstrapFault::Certificate(error) => {
            findings.certificates = Some(BootstrapCondition::corrupted(error.to_string()))
        }
        // User data that is there stays there, whatever becomes of its token.
        _ if findings.data.is_some() => {}
        fault => findings.data = Some(BootstrapCondition::failed(fault.to_string())),
    }
}

impl KubeadmConfigReconciler {
    pub(super) fn client(&self) -> &Client {
        self.objects.client()
    }

    /// Whom a KubeadmConfig is for: the Machine that owns it, and its Cluster. Without them there is nothing to do yet.
    async fn scope(
        &self,
        config: KubeadmConfig,
        namespace: String,
    ) -> Result<Option<KubeadmConfigScope>, BootstrapFault> {
        let Some(owner) = owners::of_kind(&config.metadata, cluster::GROUP, "Machine") else { return Ok(None) };
        let machines = Api::<Machine>::namespaced(self.client().clone(), &namespace);
        let Some(machine) = machines.get_opt(&owner.name).await? else { return Ok(None) };
        if machine.uid().as_ref() != Some(&owner.uid) || !names(&machine, &config) {
            return Ok(None);
        }
        let clusters = Api::<Cluster>::namespaced(self.client().clone(), &namespace);
        let cluster = clusters.get_opt(&machine.spec.cluster_name).await?;
        Ok(cluster.map(|cluster| KubeadmConfigScope { config, machine, cluster, namespace }))
    }

    /// Does the next thing. After which time it is looked at again; nothing where a change brings that about.
    async fn look(
        &self,
        scope: &mut KubeadmConfigScope,
        findings: &mut BootstrapFindings,
    ) -> Result<Option<Duration>, BootstrapFault> {
        if !scope.is_provisioned() {
            findings.data = Some(BootstrapCondition::waits(
                "WaitingForClusterInfrastructure",
                "Waiting for the cluster's infrastructure to be provisioned",
            ));
            return Ok(None);
        }
        if !scope.is_made()
            && let Some(secret) = scope.machine.spec.bootstrap.data_secret_name.clone()
        {
            // It was brought here from elsewhere, without its status.
            findings.secret = Some(secret);
        }
        if scope.is_made() || findings.secret.is_some() {
            findings.data = Some(BootstrapCondition::available());
            findings.certificates = Some(BootstrapCondition::available());
            store::own(self.client(), scope).await?;
            return self.keep_token(scope).await;
        }
        if scope.machine.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        if scope.is_initialized() {
            lock::release(self.client(), &scope.cluster, None).await?;
            return join::join(self, scope, findings).await;
        }
        self.wait_or_begin(scope, findings).await
    }

    /// A token is good until its node is there.
    pub(super) async fn keep_token(&self, scope: &KubeadmConfigScope) -> Result<Option<Duration>, BootstrapFault> {
        let token = join::token(&scope.config);
        let Some(token) = token.filter(|_| !scope.has_node() && scope.machine.metadata.deletion_timestamp.is_none())
        else {
            return Ok(None);
        };
        if !scope.is_initialized() {
            return Ok(None);
        }
        let place = scope.place();
        let workload = self.workloads.get(self.client(), place.namespace, place.cluster).await?;
        token::ensure(workload.client(), token, token::SHORT, Timestamp::now()).await?;
        Ok(Some(self.times.token))
    }

    /// Nobody has begun the cluster yet.
    async fn wait_or_begin(
        &self,
        scope: &mut KubeadmConfigScope,
        findings: &mut BootstrapFindings,
    ) -> Result<Option<Duration>, BootstrapFault> {
        const WAITS: &str = "WaitingForControlPlaneAvailable";
        if !scope.is_control_plane() {
            findings.data = Some(BootstrapCondition::waits(
                WAITS,
                "Waiting for the control plane of the cluster to be initialized",
            ));
            return Ok(None);
        }
        if scope.cluster.spec.control_plane_ref.is_some() {
            // Whoever keeps the control plane makes them; before that nobody can begin.
            let needed = certificates::needed(scope.config.spec.cluster_configuration.as_ref());
            self.certificates(scope, &needed, findings).await?;
        }
        let machine = scope.machine.name_any();
        match lock::take(self.client(), &scope.cluster, &machine).await? {
            InitLock::Held => {}
            InitLock::Of(other) => {
                findings.data = Some(BootstrapCondition::waits(
                    WAITS,
                    format!("Waiting for the Machine {other} to begin the cluster"),
                ));
                return Ok(Some(self.times.pause));
            }
            InitLock::Unreadable(name) => {
                findings.data =
                    Some(BootstrapCondition::failed(format!("The ConfigMap {name:?} says not who begins the cluster")));
                return Ok(Some(self.times.pause));
            }
        }
        // Whoever cannot begin it holds up nobody else.
        let made = match data::init(self, scope, findings).await {
            Ok(made) => made,
            Err(fault) => {
                lock::release(self.client(), &scope.cluster, Some(&machine)).await?;
                return Err(fault);
            }
        };
        store::store(self.client(), scope, &made, findings).await?;
        Ok(None)
    }

    /// Certificates that somebody has made.
    pub(super) async fn certificates(
        &self,
        scope: &KubeadmConfigScope,
        purposes: &[CertificatePurpose],
        findings: &mut BootstrapFindings,
    ) -> Result<Certificates, BootstrapFault> {
        let config = scope.config.spec.cluster_configuration.as_ref();
        let found = certificates::read(self.client(), scope.place(), purposes, config).await?;
        findings.certificates = Some(BootstrapCondition::available());
        Ok(found)
    }
}
