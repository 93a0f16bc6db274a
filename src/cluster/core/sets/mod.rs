//! The controller of MachineSet: as many machines as are wished for, each with objects made from the set's templates.
//!
//! A machine is made before its objects, which are made for it by its name: so nothing is left over when the appliance ends in
//! between, and the next look makes what lacks.

mod choice;
mod make;
mod preflight;
mod status;
mod unseen;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use kube::core::{ObjectMeta, PartialObjectMeta, PartialObjectMetaExt, Selector};
use kube::runtime::controller::Action;
use serde_json::{Value, json};
use tokio::task::consume_budget;

use self::choice::ScaleDownCandidate;
use self::make::labels;
use self::status::MachineSetStatusInput;
use self::unseen::{UnseenMachines, UnseenQuery};
use super::kit::{CoreFault, Kit, kept_by, nobodys};
use super::numbers::scaled;
use super::seen::{NamedObject, ReferenceRole};
use super::template::{has, in_place, is_same, selector, selects};
use crate::api::cluster::keys::FINALIZER_SET;
use crate::api::cluster::v1beta2::{Cluster, Machine, MachineDeployment, MachineSet};
use crate::api::cluster::{GROUP, LABEL_CLUSTER};
use crate::cluster::contract::pause;
use crate::runtime::changes::{change, delete, write_status};
use crate::runtime::conditions::{self, ConditionVerdict};
use crate::runtime::objects::ControllerMarks;
use crate::runtime::{Reconcile, key, objects, owners};

/// Who keeps labels, annotations and times of machines.
const MANAGER: &str = "slipway-machineset";
/// Machines that are made in one look.
const AT_ONCE: usize = 20;

/// Machines of which is known what was applied to them.
const APPLIED: usize = 16 << 10;

/// Keeps MachineSets.
pub(super) struct MachineSetReconciler {
    kit: Kit,
    /// What was applied to a machine last, by its UID.
    applied: Mutex<HashMap<String, u64>>,
    unseen: UnseenMachines,
}

impl MachineSetReconciler {
    pub(super) fn new(kit: Kit) -> Self {
        Self { kit, applied: Mutex::default(), unseen: UnseenMachines::default() }
    }
}

impl Reconcile for MachineSetReconciler {
    type Object = MachineSet;
    type Error = CoreFault;

    const NAME: &'static str = "machineset";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(super::kit::LOOK_MAX);

    fn retry_after(&self) -> Duration {
        self.kit.pause
    }

    async fn reconcile(&self, known: Arc<MachineSet>) -> Result<Action, CoreFault> {
        let Self { kit, .. } = self;
        let (namespace, name) = key(known.as_ref());
        let api = kit.api::<MachineSet>(&namespace);
        let Some(set) = api.get_opt(&name).await? else { return Ok(Action::await_change()) };
        let cluster = kit.caches.clusters.get(&(namespace.clone(), set.spec.cluster_name.clone()));
        let cluster = cluster.as_deref();
        if pause::rests(&api, &set, cluster, |status| &mut status.conditions).await? {
            return Ok(Action::await_change());
        }
        if set.metadata.deletion_timestamp.is_some() {
            return self.delete(&api, &set, cluster).await;
        }
        let Some(cluster) = cluster else { return Ok(Action::requeue(kit.pause)) };
        let Some(selector) = selector(&set.spec.selector) else { return Ok(Action::await_change()) };
        let set = hold(&api, set, cluster).await?;
        let machines = self.machines(&set, &selector).await?;
        let lacking = self.complete(&set, &machines).await?;
        let deployment = self.deployment(&set).await?;
        self.apply_in_place(&set, deployment.as_ref(), &machines).await?;
        self.remediate(&set, deployment.as_ref(), &machines).await?;
        let objection = self.scale(&set, cluster, &machines, &selector).await?.or(lacking);
        let waits = objection.is_some();
        self.say(&api, &set, Some(cluster), objection).await?;
        Ok(if waits { Action::requeue(kit.pause) } else { Action::requeue(kit.pause * 4) })
    }

    fn gone(self: Arc<Self>, namespace: &str, name: &str) {
        self.unseen.forget(&(namespace.to_owned(), name.to_owned()));
    }
}

/// A set that is held by its finalizer, and has an owner: its deployment, or else its cluster.
async fn hold(api: &Api<MachineSet>, set: MachineSet, cluster: &Cluster) -> Result<MachineSet, CoreFault> {
    let owner = owners::owner(cluster, false);
    let owners = owners::with(&set.metadata, &owner).filter(|_| owners::controller(&set.metadata).is_none());
    let of = set.spec.cluster_name.clone();
    let labels = [(LABEL_CLUSTER, of.as_str())];
    Ok(objects::mark(api, set, &ControllerMarks { finalizer: Some(FINALIZER_SET), labels: &labels, owners }).await?)
}

fn is_own(set: &MachineSet, machine: &ObjectMeta) -> bool {
    let owner = owners::controller(machine);
    owner.is_some_and(|owner| Some(owner.uid.as_str()) == set.metadata.uid.as_deref())
}

impl MachineSetReconciler {
    /// The set's own machines, as far as is known.
    fn known(&self, set: &MachineSet) -> Vec<Arc<Machine>> {
        let mut own = self.kit.caches.machines.mentioning(&kept_by(set));
        own.retain(|machine| is_own(set, &machine.metadata));
        own
    }

    /// The set's machines, those of nobody that its selector is for among them: they are its own from now on.
    async fn machines(&self, set: &MachineSet, selector: &Selector) -> Result<Vec<Arc<Machine>>, CoreFault> {
        let namespace = set.namespace().unwrap_or_default();
        let mut own = self.known(set);
        let mut orphans =
            self.kit.caches.machines.mentioning(&nobodys(&(namespace.clone(), set.spec.cluster_name.clone())));
        orphans.retain(|machine| {
            owners::controller(&machine.metadata).is_none()
                && machine.metadata.deletion_timestamp.is_none()
                && selects(selector, &machine.metadata)
        });
        let api = self.kit.api::<Machine>(&namespace);
        for orphan in orphans {
            let Some(all) = owners::with(&orphan.metadata, &owners::owner(set, true)) else { continue };
            let patch = json!({ "metadata": { "ownerReferences": all } });
            own.push(Arc::new(change(&api, orphan.as_ref(), patch).await?));
        }
        own.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        Ok(own)
    }

    /// Keeps in place what needs no other machine, and says whether each is as it should be.
    async fn apply_in_place(
        &self,
        set: &MachineSet,
        deployment: Option<&MachineDeployment>,
        machines: &[Arc<Machine>],
    ) -> Result<(), CoreFault> {
        let kept = in_place(&set.spec.template, &labels(set));
        let mut hasher = DefaultHasher::new();
        kept.to_string().hash(&mut hasher);
        let wanted = hasher.finish();
        let api = self.kit.api::<Machine>(&set.namespace().unwrap_or_default());
        let up_to_date = is_up_to_date(set, deployment);
        for machine in machines.iter().filter(|machine| machine.metadata.deletion_timestamp.is_none()) {
            let uid = machine.uid().unwrap_or_default();
            let last = self.applied.lock().unwrap_or_else(PoisonError::into_inner).get(&uid).copied();
            if last != Some(wanted) || !has(machine, &kept) {
                self.apply(&api, &machine.name_any(), &uid, &kept).await?;
                let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
                applied.insert(uid, wanted);
            }
            say_up_to_date(&api, machine, &up_to_date).await?;
            // There may be thousands: others have their turn.
            consume_budget().await;
        }
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        // What is forgotten is applied once more.
        if applied.len() > APPLIED {
            applied.clear();
        }
        Ok(())
    }

    async fn apply(&self, api: &Api<Machine>, name: &str, uid: &str, kept: &Value) -> Result<(), CoreFault> {
        let mut object = kept.clone();
        object["apiVersion"] = json!(format!("{GROUP}/v1beta2"));
        object["kind"] = json!("Machine");
        object["metadata"]["name"] = json!(name);
        object["metadata"]["uid"] = json!(uid);
        match api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object)).await {
            // It is gone, or another one has its name.
            Err(kube::Error::Api(error)) if error.is_not_found() || error.is_conflict() => Ok(()),
            applied => applied.map(drop).map_err(Into::into),
        }
    }

    /// The deployment that the set is of.
    async fn deployment(&self, set: &MachineSet) -> Result<Option<MachineDeployment>, kube::Error> {
        let Some(owner) = owners::of_kind(&set.metadata, GROUP, "MachineDeployment") else { return Ok(None) };
        self.kit.api::<MachineDeployment>(&set.namespace().unwrap_or_default()).get_opt(&owner.name).await
    }

    /// Deletes machines that their health check gave to their owner, as many at once as the deployment says.
    async fn remediate(
        &self,
        set: &MachineSet,
        deployment: Option<&MachineDeployment>,
        machines: &[Arc<Machine>],
    ) -> Result<(), CoreFault> {
        // An old set's machines go anyway, the unhealthy ones first.
        if deployment.is_some_and(|one| !is_same(&one.spec.template, &set.spec.template)) {
            return Ok(());
        }
        let wished = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0);
        let most = deployment
            .and_then(|one| one.spec.remediation.as_ref()?.max_in_flight.clone())
            .and_then(|most| scaled(&most, wished, true));
        let waits = |machine: &Machine| {
            let status = machine.status.as_ref();
            status.is_some_and(|status| {
                conditions::is_false(&status.conditions, "HealthCheckSucceeded")
                    && conditions::is_false(&status.conditions, "OwnerRemediated")
            })
        };
        let going = machines.iter().filter(|one| one.metadata.deletion_timestamp.is_some() && waits(one)).count();
        let room = most.map_or(usize::MAX, |most| most.saturating_sub(going));
        let mut next: Vec<&Arc<Machine>> =
            machines.iter().filter(|one| one.metadata.deletion_timestamp.is_none() && waits(one)).collect();
        next.sort_by(|one, other| one.metadata.creation_timestamp.cmp(&other.metadata.creation_timestamp));
        let api = self.kit.api::<Machine>(&set.namespace().unwrap_or_default());
        for machine in next.into_iter().take(room) {
            delete(&api, machine).await?;
            let message = format!("Deleted machine {}, whose health check failed", machine.name_any());
            self.kit.tell(set, "SuccessfulDelete", message).await;
        }
        Ok(())
    }

    /// Makes or deletes machines until there are as many as are wished for; says what speaks against making one.
    async fn scale(
        &self,
        set: &MachineSet,
        cluster: &Cluster,
        machines: &[Arc<Machine>],
        selector: &Selector,
    ) -> Result<Option<String>, CoreFault> {
        let wished = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0);
        let namespace = set.namespace().unwrap_or_default();
        if machines.len() > wished {
            let going = machines.iter().filter(|machine| machine.metadata.deletion_timestamp.is_some()).count();
            if machines.len() - going <= wished {
                return Ok(None);
            }
            let own = self.listed(set).await?;
            let known: HashMap<_, _> = machines.iter().map(|machine| (&machine.metadata.uid, machine)).collect();
            let candidates = own.iter().map(|machine| {
                let is_well = known.get(&machine.metadata.uid).is_some_and(|known| choice::is_well(known));
                ScaleDownCandidate { meta: &machine.metadata, is_well }
            });
            let order = set.spec.deletion.as_ref().and_then(|deletion| deletion.order).unwrap_or_default();
            let victims = choice::victims(candidates.collect(), own.len().saturating_sub(wished), order);
            let api = self.kit.api::<PartialObjectMeta<Machine>>(&namespace);
            for victim in victims {
                delete(&api, &victim.meta.clone().into_response_partial()).await?;
                let name = victim.meta.name.as_deref().unwrap_or_default();
                self.kit.tell(set, "SuccessfulDelete", format!("Deleted machine {name}")).await;
            }
            return Ok(None);
        }
        if machines.len() == wished {
            return Ok(None);
        }
        let labels = labels(set);
        let meta = ObjectMeta { labels: Some(labels.clone()), ..Default::default() };
        if !selects(selector, &meta) {
            return Ok(Some("the selector is not for the template's labels".to_owned()));
        }
        let plane = NamedObject::find(
            &self.kit.objects,
            &namespace,
            ReferenceRole::ControlPlane,
            cluster.spec.control_plane_ref.as_ref(),
        )
        .await?;
        if let Some(objection) = preflight::objection(set, plane.data()) {
            return Ok(Some(objection));
        }
        if let Some(objection) = self.templates(set).await? {
            return Ok(Some(objection));
        }
        let mut unseen = self.unseen(set, machines).await?;
        let there = machines.len() + unseen.len();
        let mut objection = None;
        for _ in 0..wished.saturating_sub(there).min(AT_ONCE) {
            if let Err(reason) = self.make(set, &labels, &mut unseen).await? {
                objection = Some(reason);
                break;
            }
        }
        self.unseen.keep(key(set), set.metadata.uid.as_deref().unwrap_or_default(), unseen);
        Ok(objection)
    }

    /// The names of the set's machines that are there, and are not known yet.
    async fn unseen(&self, set: &MachineSet, machines: &[Arc<Machine>]) -> Result<BTreeSet<String>, kube::Error> {
        let known: HashSet<&str> = machines.iter().filter_map(|machine| machine.metadata.name.as_deref()).collect();
        let mut unseen = BTreeSet::new();
        match self.unseen.take(&key(set), set.metadata.uid.as_deref().unwrap_or_default(), &known) {
            UnseenQuery::Names(names) => {
                let api = self.kit.api::<Machine>(&set.namespace().unwrap_or_default());
                for name in names {
                    if api.get_metadata_opt(&name).await?.is_some_and(|machine| is_own(set, &machine.metadata)) {
                        unseen.insert(name);
                    }
                }
            }
            UnseenQuery::All => {
                let names = self.listed(set).await?.into_iter().map(|machine| machine.name_any());
                unseen.extend(names.filter(|name| !known.contains(name.as_str())));
            }
        }
        Ok(unseen)
    }

    /// Which machines the set has, as the API says now: what is known may be behind, and what is there counts.
    async fn listed(&self, set: &MachineSet) -> Result<Vec<PartialObjectMeta<Machine>>, kube::Error> {
        let api = self.kit.api::<Machine>(&set.namespace().unwrap_or_default());
        let mut own = Vec::new();
        let keep = |machine: PartialObjectMeta<Machine>| {
            if is_own(set, &machine.metadata) {
                own.push(machine);
            }
        };
        objects::each_metadata(&api, keep).await?;
        Ok(own)
    }

    async fn delete(
        &self,
        api: &Api<MachineSet>,
        set: &MachineSet,
        cluster: Option<&Cluster>,
    ) -> Result<Action, CoreFault> {
        if !objects::is_held(set, FINALIZER_SET) {
            return Ok(Action::await_change());
        }
        let own = self.known(set);
        let namespace = set.namespace().unwrap_or_default();
        if own.is_empty() {
            let left = self.listed(set).await?;
            if left.is_empty() {
                objects::release(api, set, FINALIZER_SET).await?;
                self.unseen.forget(&key(set));
                return Ok(Action::await_change());
            }
            let machines = self.kit.api::<PartialObjectMeta<Machine>>(&namespace);
            for machine in &left {
                delete(&machines, machine).await?;
            }
        }
        let machines = self.kit.api::<Machine>(&namespace);
        for machine in own {
            delete(&machines, machine.as_ref()).await?;
        }
        self.say(api, set, cluster, None).await?;
        Ok(Action::requeue(self.kit.pause))
    }

    async fn say(
        &self,
        api: &Api<MachineSet>,
        set: &MachineSet,
        cluster: Option<&Cluster>,
        objection: Option<String>,
    ) -> Result<(), CoreFault> {
        let mut machines = self.known(set);
        machines.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        let selector = selector(&set.spec.selector).map(|selector| selector.to_string()).unwrap_or_default();
        let view = MachineSetStatusInput { set, cluster, machines: &machines, selector, objection };
        let status = status::status(&view, Timestamp::now());
        write_status(api, set, set.status.as_ref(), &status).await?;
        Ok(())
    }
}

/// Whether machines of the set are as its deployment wants them; nobody says so of a set of its own.
fn is_up_to_date(set: &MachineSet, deployment: Option<&MachineDeployment>) -> ConditionVerdict {
    let Some(deployment) = deployment else { return ConditionVerdict::yes("UpToDate") };
    if !is_same(&deployment.spec.template, &set.spec.template) {
        return ConditionVerdict::no("NotUpToDate", "the MachineDeployment has another template");
    }
    let after = deployment.spec.rollout.as_ref().and_then(|rollout| rollout.after.as_ref());
    let expired = after.is_some_and(|after| {
        after.0 <= Timestamp::now()
            && set.metadata.creation_timestamp.as_ref().is_some_and(|created| created.0 < after.0)
    });
    if expired {
        ConditionVerdict::no("NotUpToDate", "rollout.after has passed")
    } else {
        ConditionVerdict::yes("UpToDate")
    }
}

/// Says of a machine whether it is as it should be, where it says so not yet.
async fn say_up_to_date(api: &Api<Machine>, machine: &Machine, verdict: &ConditionVerdict) -> Result<(), CoreFault> {
    let mut status = machine.status.clone().unwrap_or_default();
    let known = conditions::find(&status.conditions, "UpToDate").map(ConditionVerdict::of);
    // The machine's own controller begins the status.
    if machine.status.is_none() || known.as_ref() == Some(verdict) {
        return Ok(());
    }
    conditions::set(&mut status.conditions, "UpToDate", verdict, machine.metadata.generation, Timestamp::now());
    match write_status(api, machine, machine.status.as_ref(), &status).await {
        // Its next version is on its way here.
        Err(kube::Error::Api(error)) if error.is_conflict() => Ok(()),
        written => Ok(written.map(drop)?),
    }
}
