//! The controller of MachineHealthCheck: says which machines have failed, and gives them to their owners or to who remediates them.

mod judge;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::controller::Action;
use tokio::task::consume_budget;

use self::judge::{HealthJudgement, allowed, is_target, judge};
use super::kit::{CoreFault, Kit, of_cluster};
use super::template::{selector, selects};
use crate::api::cluster::v1beta2::{
    Cluster, ContractReference, Machine, MachineHealthCheck, MachineHealthCheckStatus, RemediationTemplate,
};
use crate::api::cluster::{DeprecatedStatus, LABEL_CLUSTER};
use crate::cluster::contract::template::{self, Clone as Made};
use crate::cluster::contract::{ReferenceError, pause};
use crate::cluster::workload::Nodes;
use crate::runtime::changes::write_status;
use crate::runtime::conditions::{self, ConditionVerdict, Severity};
use crate::runtime::objects::ControllerMarks;
use crate::runtime::{Reconcile, key, objects, owners};

/// Checks of a cluster; who comes after so many by name looks at no machine.
const CHECKS: usize = 16;
/// Machines that one check looks at.
const TARGETS: usize = 10_000;
/// What a machine says that waits for its owner, or for who remediates it.
const WAITING: &str = "WaitingForRemediation";

/// Keeps MachineHealthChecks.
pub(super) struct MachineHealthCheckReconciler(pub Kit);

/// A machine, and what is to be said of it.
struct HealthCheckTarget {
    machine: Arc<Machine>,
    judgement: HealthJudgement,
}

impl Reconcile for MachineHealthCheckReconciler {
    type Object = MachineHealthCheck;
    type Error = CoreFault;

    const NAME: &'static str = "machinehealthcheck";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(super::kit::LOOK_MAX);

    fn retry_after(&self) -> Duration {
        self.0.pause
    }

    async fn reconcile(&self, known: Arc<MachineHealthCheck>) -> Result<Action, CoreFault> {
        let Self(kit) = self;
        let (namespace, name) = key(known.as_ref());
        let api = kit.api::<MachineHealthCheck>(&namespace);
        let Some(check) = api.get_opt(&name).await? else { return Ok(Action::await_change()) };
        if check.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let cluster = kit.caches.clusters.get(&(namespace.clone(), check.spec.cluster_name.clone()));
        let Some(cluster) = cluster else { return Ok(Action::requeue(kit.pause)) };
        if pause::rests(&api, &check, Some(&cluster), |status| &mut status.conditions).await? {
            return Ok(Action::await_change());
        }
        let check = hold(&api, check, &cluster).await?;
        let now = Timestamp::now();
        let machines = self.machines(&check, &cluster).await;
        let nodes = match self.nodes(&machines, &namespace, &check.spec.cluster_name).await {
            Ok(nodes) => nodes,
            // Nobody is to blame for what cannot be seen.
            Err(reason) => {
                self.say_unseen(&api, &check, reason).await?;
                return Ok(Action::requeue(kit.pause));
            }
        };
        let mut targets = Vec::new();
        for machine in machines {
            let named = machine.status.as_ref().and_then(|status| status.node_ref.as_ref());
            let node = named.and_then(|node| nodes.named(&node.name));
            let judgement = judge(&check, &cluster, &machine, node.map(Arc::as_ref), now);
            targets.push(HealthCheckTarget { machine, judgement });
            // There may be thousands: others have their turn.
            consume_budget().await;
        }
        let failed = targets.iter().filter(|target| matches!(target.judgement, HealthJudgement::Failed(_))).count();
        let room = allowed(&check, targets.len(), failed);
        for target in &targets {
            self.act(&check, target, room.is_ok()).await?;
            consume_budget().await;
        }
        let soonest = targets.iter().filter_map(|target| match target.judgement {
            HealthJudgement::Well(next) => next,
            HealthJudgement::Failed(_) => None,
        });
        let soonest = soonest.min().map(|seconds| Duration::from_secs(seconds.unsigned_abs()));
        self.say(&api, &check, &cluster, &targets, failed, &room).await?;
        Ok(Action::requeue(soonest.map_or(kit.pause * 4, |soonest| soonest.min(kit.pause * 4))))
    }
}

/// A check that is owned by its cluster.
async fn hold(
    api: &Api<MachineHealthCheck>,
    check: MachineHealthCheck,
    cluster: &Cluster,
) -> Result<MachineHealthCheck, CoreFault> {
    let owners = owners::with(&check.metadata, &owners::owner(cluster, false));
    let of = check.spec.cluster_name.clone();
    let labels = [(LABEL_CLUSTER, of.as_str())];
    Ok(objects::mark(api, check, &ControllerMarks { finalizer: None, labels: &labels, owners }).await?)
}

impl MachineHealthCheckReconciler {
    /// The machines that a check is for, by name.
    async fn machines(&self, check: &MachineHealthCheck, cluster: &Cluster) -> Vec<Arc<Machine>> {
        let Some(own) = selector(&check.spec.selector) else { return Vec::new() };
        let of = of_cluster(&key(cluster));
        // Of several checks that select a machine the first by name judges it: else each would take back what another said.
        let mut before = self.0.caches.checks.mentioning(&of);
        before.retain(|other| other.metadata.deletion_timestamp.is_none() && other.metadata.name < check.metadata.name);
        if before.len() >= CHECKS {
            return Vec::new();
        }
        let before: Vec<_> = before.iter().filter_map(|other| selector(&other.spec.selector)).collect();
        let is_wanted = |machine: &Machine| {
            selects(&own, &machine.metadata)
                && !before.iter().any(|other| selects(other, &machine.metadata))
                && machine.metadata.deletion_timestamp.is_none()
                && is_target(machine, cluster)
        };
        let (mut machines, mut all) = (Vec::new(), self.0.caches.machines.walk_mentioning(&of));
        while machines.len() < TARGETS
            && let Some(machine) = all.next().await
        {
            if is_wanted(&machine) {
                machines.push(machine);
            }
        }
        machines
    }

    /// The nodes of the cluster, where one of the machines is a node.
    async fn nodes(&self, machines: &[Arc<Machine>], namespace: &str, cluster: &str) -> Result<Arc<Nodes>, String> {
        let is = |machine: &Machine| machine.status.as_ref().is_some_and(|status| status.node_ref.is_some());
        if !machines.iter().any(|machine| is(machine)) {
            return Ok(Arc::default());
        }
        let asked = async { self.0.workloads.get(&self.0.client, namespace, cluster).await?.nodes().await };
        asked.await.map_err(|error| error.to_string())
    }

    /// Says of a machine whether it has failed, and has something done about it where that is allowed.
    async fn act(
        &self,
        check: &MachineHealthCheck,
        target: &HealthCheckTarget,
        allowed: bool,
    ) -> Result<(), CoreFault> {
        let machine = &target.machine;
        let Some(mut status) = machine.status.clone() else { return Ok(()) };
        let (generation, now) = (machine.metadata.generation, Timestamp::now());
        let template = check.spec.remediation.as_ref().and_then(|remediation| remediation.template_ref.as_ref());
        let mut said: Vec<(&str, ConditionVerdict)> = Vec::new();
        let waits = |status: &crate::api::cluster::v1beta2::MachineStatus, type_: &str| {
            conditions::find(&status.conditions, type_)
                .is_some_and(|found| found.status == "False" && found.reason == WAITING)
        };
        match &target.judgement {
            HealthJudgement::Well(_) => {
                said.push(("HealthCheckSucceeded", ConditionVerdict::yes("HealthCheckSucceeded")));
                let was_asked = waits(&status, "ExternallyRemediated");
                for type_ in ["OwnerRemediated", "ExternallyRemediated"] {
                    if waits(&status, type_) {
                        conditions::clear(&mut status.conditions, type_);
                        conditions::clear_old(conditions::older(&mut status.deprecated), type_);
                    }
                }
                if let Some(template) = template.filter(|_| was_asked) {
                    self.withdraw(machine, template).await?;
                }
            }
            HealthJudgement::Failed(verdict) => {
                said.push(("HealthCheckSucceeded", verdict.clone()));
                match template {
                    _ if !allowed => {}
                    Some(template) => said.push(("ExternallyRemediated", self.request(machine, template).await?)),
                    // Once its owner has begun, the owner says how far it is.
                    None if conditions::find(&status.conditions, "OwnerRemediated").is_none() => {
                        said.push(("OwnerRemediated", ConditionVerdict::no(WAITING, "the owner is to replace it")));
                    }
                    None => {}
                }
            }
        }
        for (type_, verdict) in &said {
            conditions::set(&mut status.conditions, type_, verdict, generation, now);
            conditions::set_old(conditions::older(&mut status.deprecated), type_, verdict, Severity::Warning, now);
        }
        let api = self.0.api::<Machine>(&machine.namespace().unwrap_or_default());
        write_status(&api, machine.as_ref(), machine.status.as_ref(), &status).await?;
        Ok(())
    }

    /// Makes the object that remediates a machine; says how far that is.
    async fn request(&self, machine: &Machine, from: &RemediationTemplate) -> Result<ConditionVerdict, CoreFault> {
        let namespace = machine.namespace().unwrap_or_default();
        let objects = &self.0.objects;
        if let Some(reason) = judge::no_remediation(&from.kind) {
            return Ok(ConditionVerdict::no("RemediationTemplateNotFound", reason));
        }
        let found = match objects.get(&namespace, &reference(from, &from.kind, &from.name)).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                let reason = format!("there is no {} {:?}", from.kind, from.name);
                return Ok(ConditionVerdict::no("RemediationTemplateNotFound", reason));
            }
            Err(ReferenceError::Api(error)) => return Err(error.into()),
            Err(error) => return Ok(ConditionVerdict::no("RemediationTemplateNotFound", error.to_string())),
        };
        let name = machine.name_any();
        let kind = template::kind(&from.kind);
        let there = objects.get(&namespace, &reference(from, kind, &name)).await;
        match there {
            Ok(Some(there)) if judge::is_request(&there.object.metadata, machine) => {
                return Ok(ConditionVerdict::no(WAITING, format!("{kind} {name:?} is to remediate it")));
            }
            Ok(Some(_)) => {
                let reason = format!("there is a {kind} {name:?} already that was not made to remediate it");
                return Ok(ConditionVerdict::no("RemediationRequestCreationFailed", reason));
            }
            Ok(None) | Err(_) => {}
        }
        let made = Made {
            name: &name,
            cluster: &machine.spec.cluster_name,
            owner: Some(owners::owner(machine, false)),
            ..Made::default()
        };
        let failed = |reason: String| Ok(ConditionVerdict::no("RemediationRequestCreationFailed", reason));
        let object = match template::instance(&found, made) {
            Ok(object) => object,
            Err(reason) => return failed(reason),
        };
        let resource = match objects.resource(&found.resource.group, kind).await {
            Ok(resource) => resource,
            Err(ReferenceError::Api(error)) => return Err(error.into()),
            Err(error) => return failed(error.to_string()),
        };
        match objects.create(&resource, &object).await {
            Ok(_) => {
                let message = format!("{kind} {name:?} is to remediate it");
                self.0.tell(machine, "RemediationRequested", message.clone()).await;
                Ok(ConditionVerdict::no(WAITING, message))
            }
            Err(ReferenceError::Api(error)) => Err(error.into()),
            Err(error) => failed(error.to_string()),
        }
    }

    /// Takes away the object that was to remediate a machine that is well again: what was made for that, and nothing else of the machine.
    async fn withdraw(&self, machine: &Machine, from: &RemediationTemplate) -> Result<(), CoreFault> {
        if judge::no_remediation(&from.kind).is_some() {
            return Ok(());
        }
        let namespace = machine.namespace().unwrap_or_default();
        let kind = template::kind(&from.kind);
        let found = match self.0.objects.get(&namespace, &reference(from, kind, &machine.name_any())).await {
            Ok(found) => found,
            Err(ReferenceError::Api(error)) => return Err(error.into()),
            Err(_) => None,
        };
        if let Some(found) = found.filter(|found| judge::is_request(&found.object.metadata, machine)) {
            self.0.objects.delete(&found).await?;
        }
        Ok(())
    }

    async fn say(
        &self,
        api: &Api<MachineHealthCheck>,
        check: &MachineHealthCheck,
        cluster: &Cluster,
        targets: &[HealthCheckTarget],
        failed: usize,
        room: &Result<usize, String>,
    ) -> Result<(), CoreFault> {
        let count = |number: usize| Some(i32::try_from(number).unwrap_or(i32::MAX));
        let allowed = match room {
            Ok(_) => ConditionVerdict::yes("RemediationAllowed"),
            Err(reason) => ConditionVerdict::no("TooManyUnhealthy", reason.clone()),
        };
        let mut status = check.status.clone().unwrap_or_default();
        status.expected_machines = count(targets.len());
        status.current_healthy = count(targets.len() - failed);
        status.remediations_allowed = count(*room.as_ref().unwrap_or(&0));
        status.targets = targets.iter().map(|target| target.machine.name_any()).collect();
        set(&mut status, check, &allowed, Some(cluster));
        write_status(api, check, check.status.as_ref(), &status).await?;
        Ok(())
    }

    async fn say_unseen(
        &self,
        api: &Api<MachineHealthCheck>,
        check: &MachineHealthCheck,
        reason: String,
    ) -> Result<(), CoreFault> {
        let mut status = check.status.clone().unwrap_or_default();
        let unseen = ConditionVerdict::unknown("ConnectionDown", reason);
        set(&mut status, check, &unseen, None);
        write_status(api, check, check.status.as_ref(), &status).await?;
        Ok(())
    }
}

fn set(
    status: &mut MachineHealthCheckStatus,
    check: &MachineHealthCheck,
    allowed: &ConditionVerdict,
    cluster: Option<&Cluster>,
) {
    let (generation, now) = (check.metadata.generation, Timestamp::now());
    status.observed_generation = generation;
    conditions::set(&mut status.conditions, "RemediationAllowed", allowed, generation, now);
    conditions::set(&mut status.conditions, pause::PAUSED, &pause::verdict(cluster, check), generation, now);
    let deprecated: &mut Option<DeprecatedStatus> = &mut status.deprecated;
    conditions::set_old(conditions::older(deprecated), "RemediationAllowed", allowed, Severity::Warning, now);
}

fn reference(from: &RemediationTemplate, kind: &str, name: &str) -> ContractReference {
    ContractReference {
        kind: kind.to_owned(),
        name: name.to_owned(),
        api_group: owners::group_of(&from.api_version).to_owned(),
    }
}
