//! What is done about a control plane, look by look.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::controller::Action;
use tokio::time::Instant;

use super::act::{self, Hands};
use super::budget::ReconcileBudget;
use super::etcd::{EtcdConnector, EtcdMembers};
use super::fault::ControlPlaneFault;
use super::health::{self, Contact, NODE_MARKED, Verdicts};
use super::plan::{self, ControlPlaneDecision};
use super::scope::{ControlPlaneScope, Owned};
use super::secrets::Provided;
use super::status::{self, ControlPlaneStatusInput, OWNER_REMEDIATED, ShownMachine};
use super::{admission, deletion, inside, make, secrets, settle};
use crate::api::cluster;
use crate::api::cluster::v1beta2::Cluster;
use crate::api::control_plane::v1beta2::{KubeadmControlPlane, KubeadmControlPlaneStatus};
use crate::api::control_plane::{ANNOTATION_REMEDIATING, FINALIZER};
use crate::cluster::contract::{FoundObject, KubeVersion, ReferencedObjects, fields, pause};
use crate::cluster::workload::{Workload, Workloads};
use crate::runtime::conditions::{self, ConditionVerdict, Truth};
use crate::runtime::throttle::{MessageThrottle, again};
use crate::runtime::{Conflict, ObjectKey, Reconcile, Slim, key, objects, owners};

/// When something was done.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// How often things are looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct ControlPlaneTimes {
    /// What changes unseen.
    pub(super) pause: Duration,
    /// A control plane that is as it should be.
    pub(super) settled: Duration,
    /// So long a cluster that does not answer counts as it was.
    pub(super) grace: Duration,
    /// So long a status stays in which only messages have become other ones.
    pub(super) messages: Duration,
    /// For all that a look asks of the cluster; shorter than a whole look may take, by what the appliance's own API takes.
    pub(super) budget: Duration,
}

/// Keeps control planes.
pub(super) struct ControlPlaneReconciler {
    pub(super) objects: ReferencedObjects,
    pub(super) workloads: Workloads,
    pub(super) door: Arc<dyn EtcdConnector>,
    pub(super) times: ControlPlaneTimes,
    /// When statuses of control planes and of their machines were written.
    pub(super) throttle: MessageThrottle,
    /// Since when clusters do not answer.
    pub(super) silent: Mutex<HashMap<ObjectKey, Instant>>,
}

/// What a look has found out, for the status.
#[derive(Default)]
pub(super) struct ControlPlaneFindings {
    pub(super) initialized: bool,
    pub(super) certificates: Option<ConditionVerdict>,
    pub(super) shown: Vec<ShownMachine>,
    pub(super) ready_nodes: Option<usize>,
    pub(super) etcd: Option<plan::EtcdStatus>,
    pub(super) contact: Option<Contact>,
    pub(super) decision: Option<ControlPlaneDecision>,
    pub(super) blocked: Option<String>,
    pub(super) deleting: Option<status::Deleting>,
    /// How long a machine's messages wait to be written.
    pub(super) held: Option<Duration>,
}

impl Reconcile for ControlPlaneReconciler {
    type Object = Slim<KubeadmControlPlane>;
    type Error = ControlPlaneFault;

    const NAME: &'static str = "kubeadmcontrolplane";

    // A look holds all machines of a control plane, and has tunnels.
    const OF_A_NAMESPACE: u16 = 4;

    const AT_ONCE: u16 = 64;
    const DEADLINE: Option<Duration> = Some(Duration::from_secs(180));

    fn retry_after(&self) -> Duration {
        self.times.pause.min(Duration::from_secs(5))
    }

    async fn reconcile(&self, known: Arc<Slim<KubeadmControlPlane>>) -> Result<Action, ControlPlaneFault> {
        let (namespace, name) = key(known.as_ref());
        let planes = self.planes(&namespace);
        let Some(plane) = planes.get_opt(&name).await? else { return Ok(Action::await_change()) };
        let owner = owners::of_kind(&plane.metadata, cluster::GROUP, "Cluster");
        let of = match owner {
            Some(owner) => {
                Api::<Cluster>::namespaced(self.objects.client().clone(), &namespace).get_opt(&owner.name).await?
            }
            None => None,
        };
        if pause::rests(&planes, &plane, of.as_ref(), |status| &mut status.conditions).await? {
            return Ok(Action::await_change());
        }
        if plane.metadata.deletion_timestamp.is_some() {
            return deletion::delete(self, &plane, of.as_ref()).await;
        }
        // The controller of clusters makes it one of its cluster.
        let Some(of) = of else { return Ok(Action::requeue(self.times.settled)) };
        if !objects::is_held(&plane, FINALIZER) {
            objects::hold(&planes, plane, FINALIZER).await?;
            return Ok(Action::await_change());
        }
        let scope = ControlPlaneScope::read(&self.objects, plane, of).await?;
        let mut findings =
            ControlPlaneFindings { initialized: scope.is_initialized(), ..ControlPlaneFindings::default() };
        let done = self.look(&scope, &mut findings).await;
        if let Err(fault) = &done
            && !fault.is_conflict()
            && findings.blocked.is_none()
        {
            findings.blocked = Some(fault.to_string());
        }
        let held = self.show(&scope, &findings).await?.into_iter().chain(findings.held).min();
        Ok(again(done?, held))
    }

    fn gone(self: Arc<Self>, namespace: &str, name: &str) {
        self.silences().remove(&(namespace.to_owned(), name.to_owned()));
    }
}

impl ControlPlaneReconciler {
    pub(super) fn planes(&self, namespace: &str) -> Api<KubeadmControlPlane> {
        Api::namespaced(self.objects.client().clone(), namespace)
    }

    fn silences(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, Instant>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at everything, and does the next thing. After which time it is looked at again; nothing where a change brings that about.
    async fn look(
        &self,
        scope: &ControlPlaneScope,
        findings: &mut ControlPlaneFindings,
    ) -> Result<Option<Duration>, ControlPlaneFault> {
        findings.shown = scope.owned.iter().map(Owned::shown).collect();
        let wait = Ok(Some(self.times.pause));
        let template = make::template(&self.objects, scope).await?;
        findings.blocked = template.as_ref().err().cloned();
        let initialization = scope.cluster.status.as_ref().and_then(|status| status.initialization.as_ref());
        if initialization.and_then(|done| done.infrastructure_provisioned) != Some(true) {
            findings.blocked = Some("Waiting for the cluster's infrastructure to be provisioned".into());
            return wait;
        }
        let version = match admission::version(&scope.plane.spec.version) {
            Ok(version) => version,
            Err(reason) => {
                findings.blocked = Some(format!("spec.version: {reason}"));
                return wait;
            }
        };
        let certificates = secrets::certificates(&self.objects, scope).await?;
        findings.certificates = Some(certificates.verdict());
        if let Some(pause) = certificates.pause(self.times).filter(|_| !findings.initialized) {
            return Ok(Some(pause));
        }
        let available = certificates == Provided::Available;
        let endpoint = serde_json::to_value(&scope.cluster).ok().and_then(|cluster| fields::endpoint(&cluster));
        if endpoint.is_none() {
            findings.blocked = Some("Waiting for spec.controlPlaneEndpoint of the cluster".into());
            return wait;
        }
        if !scope.foreign.is_empty() {
            findings.blocked =
                Some(format!("Machines of the control plane belong to somebody else: {}", few(&scope.foreign)));
            return wait;
        }
        if !scope.orphans.is_empty() {
            for machine in &scope.orphans {
                make::adopt(&self.objects, scope, machine, version).await?;
            }
            return Ok(Some(Duration::ZERO));
        }
        if self.keep(scope).await? {
            return Ok(Some(self.times.pause.min(SOON)));
        }
        self.decide(scope, findings, version, available, &template).await
    }

    /// Machines have what changes in place. Whether something was written: it is looked at anew then.
    async fn keep(&self, scope: &ControlPlaneScope) -> Result<bool, ControlPlaneFault> {
        let mut wrote = false;
        for owned in &scope.owned {
            if owned.machine.metadata.deletion_timestamp.is_some() {
                make::keep_going(&self.objects, scope, owned).await?;
            } else {
                wrote |= make::keep(&self.objects, scope, owned).await?.is_some();
            }
        }
        Ok(wrote)
    }

    async fn decide(
        &self,
        scope: &ControlPlaneScope,
        findings: &mut ControlPlaneFindings,
        version: KubeVersion,
        certificates: bool,
        template: &Result<FoundObject, String>,
    ) -> Result<Option<Duration>, ControlPlaneFault> {
        let budget = ReconcileBudget::begin(self.times.budget);
        let inside = self.inside(scope, findings, budget).await;
        let hosts: Vec<health::MachineHealth> = scope.owned.iter().map(Owned::host).collect();
        let examined = |contact: &Contact| -> Vec<Verdicts> {
            hosts.iter().map(|host| health::examine(host, contact, scope.etcd_managed())).collect()
        };
        let parts = examined(&inside.contact);
        let mut plane = scope.planned(version, &parts, inside.etcd(), certificates, Timestamp::now());
        plane.initialized = findings.initialized;
        findings.etcd.clone_from(&plane.etcd);
        if let Contact::Seen(seen) = &inside.contact {
            let ready = seen.nodes.values().filter(|node| health::ready(node) == Truth::True).count();
            findings.ready_nodes = Some(ready);
        }
        // A cluster that is silent for a moment only counts as it was.
        let kept = inside.contact.is_down() && inside.in_grace;
        let shown: Option<&[Verdicts]> = (!kept).then_some(parts.as_slice());
        self.say(scope, findings, &plane, shown).await?;
        findings.contact = Some(if kept { Contact::Seen(Box::default()) } else { inside.contact.clone() });
        if scope.plane.annotations().contains_key(ANNOTATION_REMEDIATING)
            && (plan::remediated(&plane) || plane.remediation.is_none())
        {
            act::forget(&self.objects, &scope.plane).await?;
            return Ok(None);
        }
        let decision = plan::next(&plane);
        if let Some(refusal) = &decision.refusal {
            act::say(&self.objects, scope, refusal).await?;
        }
        let hands = Hands {
            objects: &self.objects,
            scope,
            version,
            template,
            workload: inside.workload.as_ref(),
            members: inside.members.as_ref(),
            budget,
        };
        let settled = decision.action == plan::ControlPlaneAction::Settle;
        findings.decision = Some(decision.clone());
        let acted = act::act(&hands, &decision).await?;
        if settled && findings.initialized {
            if let (Some(workload), Contact::Seen(_)) = (&inside.workload, &inside.contact) {
                settle::settle(&self.objects, scope, workload, budget, findings).await?;
            }
            let all_well = findings.shown.iter().all(|shown| shown.parts.values().all(ConditionVerdict::is_true));
            return Ok(Some(if all_well { self.times.settled } else { self.times.pause }));
        }
        Ok(Some(if acted { self.times.pause.min(SOON) } else { self.times.pause }))
    }

    /// Looks at the cluster that was made.
    async fn inside(
        &self,
        scope: &ControlPlaneScope,
        findings: &mut ControlPlaneFindings,
        budget: ReconcileBudget,
    ) -> Inside {
        let (namespace, name) = (scope.namespace(), scope.name_of_cluster());
        let workload = match self.workloads.get(self.objects.client(), &namespace, &name).await {
            Ok(workload) => workload,
            Err(error) => return self.silence(scope, findings, error.to_string()),
        };
        if !findings.initialized {
            // A machine that goes does not begin a cluster any more.
            let goes = matches!(scope.owned.as_slice(), [one] if one.machine.metadata.deletion_timestamp.is_some()
                || conditions::is_false(one.conditions(), OWNER_REMEDIATED));
            let begun =
                !scope.owned.is_empty() && !goes && budget.within(inside::is_begun(&workload)).await == Ok(true);
            findings.initialized = begun;
            return Inside { workload: Some(workload), ..Inside::early() };
        }
        let members = if scope.etcd_managed() {
            Some(self.door.open(self.objects.client(), &workload, &namespace, &name).await)
        } else {
            None
        };
        let nodes: Vec<String> = scope.owned.iter().filter_map(Owned::node).collect();
        match budget.within(inside::look(&workload, &nodes, members.clone())).await {
            Ok(seen) => {
                self.silences().remove(&key(&scope.plane));
                let members = members.and_then(Result::ok);
                Inside { contact: Contact::Seen(Box::new(seen)), workload: Some(workload), members, in_grace: false }
            }
            Err(reason) => Inside { workload: Some(workload), ..self.silence(scope, findings, reason) },
        }
    }

    fn silence(&self, scope: &ControlPlaneScope, findings: &ControlPlaneFindings, reason: String) -> Inside {
        if !findings.initialized {
            return Inside::early();
        }
        let since = *self.silences().entry(key(&scope.plane)).or_insert_with(Instant::now);
        let in_grace = since.elapsed() < self.times.grace;
        Inside { contact: Contact::Down(reason), in_grace, ..Inside::early() }
    }

    /// Says at each machine how it is.
    async fn say(
        &self,
        scope: &ControlPlaneScope,
        findings: &mut ControlPlaneFindings,
        plane: &plan::Plane,
        parts: Option<&[Verdicts]>,
    ) -> Result<(), ControlPlaneFault> {
        for (index, owned) in scope.owned.iter().enumerate() {
            let Some(planned) = plane.machines.get(index) else { continue };
            let generation = owned.machine.metadata.generation;
            let well = conditions::is_true(owned.conditions(), "HealthCheckSucceeded");
            let current = up_to_date(owned, &planned.outdated);
            let parts = parts.and_then(|parts| parts.get(index));
            let held = act::change_conditions(&self.objects, &self.throttle, &owned.machine, |all| {
                for (type_, verdict) in parts.into_iter().flatten() {
                    // Clients of the older version do not know this one.
                    let set = if *type_ == NODE_MARKED { act::set_new } else { act::set };
                    set(all, type_, verdict, generation);
                }
                act::set_new(all, "UpToDate", &current, generation);
                if well && conditions::is_false(&all.new, OWNER_REMEDIATED) {
                    act::clear(all, OWNER_REMEDIATED);
                }
            })
            .await?;
            findings.held = findings.held.into_iter().chain(held).min();
            if let Some(shown) = findings.shown.get_mut(index) {
                shown.said.insert("UpToDate", current);
                if let Some(parts) = parts {
                    shown.parts.clone_from(parts);
                }
            }
        }
        Ok(())
    }

    /// Shows what was found. How long that waits, where only messages are new.
    async fn show(
        &self,
        scope: &ControlPlaneScope,
        findings: &ControlPlaneFindings,
    ) -> Result<Option<Duration>, ControlPlaneFault> {
        let status = report(
            &scope.plane,
            Some(&scope.cluster),
            &scope.name_of_cluster(),
            scope.desired(),
            scope.etcd_managed(),
            findings,
        );
        // It may have been written meanwhile, its annotations at least.
        let planes = self.planes(&scope.namespace());
        let Some(now) = planes.get_opt(&scope.plane.name_any()).await? else { return Ok(None) };
        if now.status != scope.plane.status {
            return Ok(None);
        }
        Ok(self.throttle.write_status(&planes, &now, now.status.as_ref(), &status).await?)
    }
}

/// Whether a machine is as it should be.
fn up_to_date(owned: &Owned, outdated: &[String]) -> ConditionVerdict {
    if !outdated.is_empty() {
        let lines: Vec<String> = outdated.iter().map(|reason| format!("* {reason}")).collect();
        return ConditionVerdict::no("NotUpToDate", lines.join("\n"));
    }
    let kubelet = owned
        .machine
        .status
        .as_ref()
        .and_then(|status| status.node_info.as_ref())
        .map(|info| info.kubelet_version.as_str());
    match (kubelet.filter(|version| !version.is_empty()), owned.machine.spec.version.as_deref()) {
        (Some(has), Some(wanted)) if has != wanted => {
            ConditionVerdict::no("Updating", format!("* The kubelet is {has}, {wanted} required"))
        }
        _ => ConditionVerdict::yes("UpToDate"),
    }
}

fn few(names: &[String]) -> String {
    names.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The status of a control plane with what was found.
pub(super) fn report(
    plane: &KubeadmControlPlane,
    of: Option<&Cluster>,
    cluster: &str,
    desired: usize,
    etcd_managed: bool,
    findings: &ControlPlaneFindings,
) -> KubeadmControlPlaneStatus {
    let remediation = plane.annotations().get(ANNOTATION_REMEDIATING).and_then(|text| plan::Remediation::read(text));
    let contact = findings.contact.clone().unwrap_or(Contact::Early);
    status::status(
        plane.status.clone().unwrap_or_default(),
        &ControlPlaneStatusInput {
            cluster,
            generation: plane.metadata.generation,
            desired,
            etcd_managed,
            initialized: findings.initialized,
            paused: pause::verdict(of, plane),
            certificates: findings.certificates.clone(),
            machines: &findings.shown,
            ready_nodes: findings.ready_nodes,
            etcd: findings.etcd.as_ref(),
            contact: &contact,
            decision: findings.decision.as_ref(),
            blocked: findings.blocked.clone(),
            deleting: findings.deleting.clone(),
            remediation,
            now: Timestamp::now(),
        },
    )
}

/// What is known of the cluster that was made.
struct Inside {
    contact: Contact,
    workload: Option<Workload>,
    members: Option<Arc<dyn EtcdMembers>>,
    /// It has been silent for a moment only.
    in_grace: bool,
}

impl Inside {
    fn early() -> Self {
        Self { contact: Contact::Early, workload: None, members: None, in_grace: false }
    }

    fn etcd(&self) -> Option<plan::EtcdStatus> {
        match &self.contact {
            Contact::Seen(seen) => seen.etcd.clone()?.ok(),
            _ => None,
        }
    }
}
