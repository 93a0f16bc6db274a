//! The controller of MachineDeployment: a MachineSet for each template, of which the newest grows as the others shrink.

mod rollout;
mod status;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use kube::runtime::controller::Action;
use serde_json::{Map, json};

use self::rollout::{DesiredDeployment, SetCount, plan};
use self::status::MachineDeploymentStatusInput;
use super::kit::{CoreFault, Kit, kept_by, nobodys};
use super::numbers::scaled;
use super::template::{hash, is_same, selector, selects};
use crate::api::cluster::keys::{
    ANNOTATION_REVISION, FINALIZER_DEPLOYMENT, FINALIZER_SET, LABEL_DEPLOYMENT, LABEL_TEMPLATE_HASH,
};
use crate::api::cluster::v1beta2::{
    Cluster, Machine, MachineDeployment, MachineSet, MachineSetSpec, MachineTemplateSpec,
};
use crate::api::cluster::{LABEL_CLUSTER, RolloutType};
use crate::cluster::contract::pause;
use crate::runtime::changes::{change, delete, difference, write_status};
use crate::runtime::objects::ControllerMarks;
use crate::runtime::{Reconcile, conditions, key, objects, owners};

/// Keeps MachineDeployments.
pub(super) struct MachineDeploymentReconciler(pub Kit);

impl Reconcile for MachineDeploymentReconciler {
    type Object = MachineDeployment;
    type Error = CoreFault;

    const NAME: &'static str = "machinedeployment";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(super::kit::LOOK_MAX);

    fn retry_after(&self) -> Duration {
        self.0.pause
    }

    async fn reconcile(&self, known: Arc<MachineDeployment>) -> Result<Action, CoreFault> {
        let Self(kit) = self;
        let (namespace, name) = key(known.as_ref());
        let api = kit.api::<MachineDeployment>(&namespace);
        let Some(deployment) = api.get_opt(&name).await? else { return Ok(Action::await_change()) };
        let cluster = kit.caches.clusters.get(&(namespace.clone(), deployment.spec.cluster_name.clone()));
        let cluster = cluster.as_deref();
        if pause::rests(&api, &deployment, cluster, |status| &mut status.conditions).await? {
            return Ok(Action::await_change());
        }
        if deployment.metadata.deletion_timestamp.is_some() {
            return self.delete(&api, &deployment, cluster).await;
        }
        let Some(cluster) = cluster else { return Ok(Action::requeue(kit.pause)) };
        let deployment = hold(&api, deployment, cluster).await?;
        let sets = self.sets(&deployment).await?;
        let (newest, sets) = self.newest(&deployment, sets).await?;
        let deployment = note_revision(&api, deployment, newest.as_deref()).await?;
        self.roll(&deployment, newest.as_deref(), &sets).await?;
        self.say(&api, &deployment, Some(cluster), &sets, newest.as_deref()).await?;
        Ok(Action::requeue(next_look(&deployment, kit.pause * 4)))
    }
}

/// All machines are to be replaced at a time that may be yet to come.
fn next_look(deployment: &MachineDeployment, pause: Duration) -> Duration {
    let after = deployment.spec.rollout.as_ref().and_then(|rollout| rollout.after.as_ref());
    let until = after.map(|after| after.0.duration_since(Timestamp::now())).filter(|until| until.is_positive());
    until.and_then(|until| Duration::try_from(until).ok()).map_or(pause, |until| pause.min(until))
}

/// A deployment that is held by its finalizer, and owned by its cluster.
async fn hold(
    api: &Api<MachineDeployment>,
    deployment: MachineDeployment,
    cluster: &Cluster,
) -> Result<MachineDeployment, CoreFault> {
    let owners = owners::with(&deployment.metadata, &owners::owner(cluster, false));
    let of = deployment.spec.cluster_name.clone();
    let labels = [(LABEL_CLUSTER, of.as_str())];
    Ok(objects::mark(
        api,
        deployment,
        &ControllerMarks { finalizer: Some(FINALIZER_DEPLOYMENT), labels: &labels, owners },
    )
    .await?)
}

/// When all machines were to be replaced last; nothing while that is yet to come.
fn replaced_after(deployment: &MachineDeployment, now: Timestamp) -> Option<Timestamp> {
    let after = deployment.spec.rollout.as_ref()?.after.as_ref()?.0;
    (after <= now).then_some(after)
}

/// The set that is of the deployment's template: the oldest of them, unless all were to be replaced since it was made.
fn current<'s>(
    deployment: &MachineDeployment,
    sets: &'s [Arc<MachineSet>],
    now: Timestamp,
) -> Option<&'s Arc<MachineSet>> {
    let after = replaced_after(deployment, now);
    let young = |set: &MachineSet| {
        let created = set.metadata.creation_timestamp.as_ref().map(|created| created.0);
        after.is_none_or(|after| created.is_some_and(|created| created >= after))
    };
    let fits = |set: &&Arc<MachineSet>| {
        set.metadata.deletion_timestamp.is_none()
            && is_same(&set.spec.template, &deployment.spec.template)
            && young(set)
    };
    let age = |set: &&Arc<MachineSet>| (set.metadata.creation_timestamp.clone(), set.metadata.name.clone());
    sets.iter().filter(fits).min_by_key(age)
}

fn revision(annotations: &std::collections::BTreeMap<String, String>) -> i64 {
    annotations.get(ANNOTATION_REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The template of a set of this hash.
fn template(deployment: &MachineDeployment, hash: &str) -> MachineTemplateSpec {
    let mut template = deployment.spec.template.clone();
    let labels = &mut template.metadata.get_or_insert_default().labels;
    // One that was adopted has none.
    if !hash.is_empty() {
        labels.insert(LABEL_TEMPLATE_HASH.to_owned(), hash.to_owned());
    }
    labels.insert(LABEL_CLUSTER.to_owned(), deployment.spec.cluster_name.clone());
    template
}

/// The set that there must be for the deployment's template.
fn set_of(deployment: &MachineDeployment, hash: &str, revision: i64) -> MachineSet {
    let mut selector = deployment.spec.selector.clone();
    selector.match_labels.get_or_insert_default().insert(LABEL_TEMPLATE_HASH.to_owned(), hash.to_owned());
    let spec = MachineSetSpec {
        cluster_name: deployment.spec.cluster_name.clone(),
        replicas: Some(0),
        machine_naming: deployment.spec.machine_naming.clone(),
        selector,
        template: template(deployment, hash),
        deletion: deployment.spec.deletion.clone(),
    };
    let mut front = deployment.name_any();
    // With a machine's own five letters it is still a name.
    let mut keep = front.len().min(63 - 2 * 6 - hash.len());
    while !front.is_char_boundary(keep) {
        keep -= 1;
    }
    front.truncate(keep);
    let mut set = MachineSet::new(&format!("{front}-{hash}"), spec);
    set.metadata.namespace = deployment.namespace();
    let mut labels = deployment.spec.template.metadata.as_ref().map(|meta| meta.labels.clone()).unwrap_or_default();
    labels.extend([
        (LABEL_TEMPLATE_HASH.to_owned(), hash.to_owned()),
        (LABEL_DEPLOYMENT.to_owned(), deployment.name_any()),
        (LABEL_CLUSTER.to_owned(), deployment.spec.cluster_name.clone()),
    ]);
    set.metadata.labels = Some(labels);
    set.metadata.annotations = Some([(ANNOTATION_REVISION.to_owned(), revision.to_string())].into());
    set.metadata.owner_references = Some(vec![owners::owner(deployment, true)]);
    set.metadata.finalizers = Some(vec![FINALIZER_SET.to_owned()]);
    set
}

/// The deployment is of the newest set's revision.
async fn note_revision(
    api: &Api<MachineDeployment>,
    deployment: MachineDeployment,
    newest: Option<&MachineSet>,
) -> Result<MachineDeployment, CoreFault> {
    let Some(wanted) = newest.map(|set| revision(set.annotations())) else { return Ok(deployment) };
    if revision(deployment.annotations()) == wanted {
        return Ok(deployment);
    }
    let patch = json!({ "metadata": { "annotations": { ANNOTATION_REVISION: wanted.to_string() } } });
    Ok(change(api, &deployment, patch).await?)
}

fn is_own(deployment: &MachineDeployment, set: &MachineSet) -> bool {
    let owner = owners::controller(&set.metadata);
    owner.is_some_and(|owner| Some(owner.uid.as_str()) == deployment.metadata.uid.as_deref())
}

/// What the deployment wishes for.
fn wish(deployment: &MachineDeployment) -> DesiredDeployment {
    let replicas = usize::try_from(deployment.spec.replicas.unwrap_or(1)).unwrap_or(0);
    let strategy = deployment.spec.rollout.as_ref().and_then(|rollout| rollout.strategy.as_ref());
    let update = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let part =
        |value: Option<&_>, round_up, unset| value.and_then(|value| scaled(value, replicas, round_up)).unwrap_or(unset);
    let by = strategy.map(|strategy| strategy.type_).unwrap_or_default();
    let rolling = by == RolloutType::RollingUpdate;
    DesiredDeployment {
        replicas,
        surge: if rolling { part(update.and_then(|update| update.max_surge.as_ref()), true, 1) } else { 0 },
        lacking: if rolling { part(update.and_then(|update| update.max_unavailable.as_ref()), false, 0) } else { 0 },
        by,
        paused: deployment.spec.paused == Some(true),
    }
}

impl MachineDeploymentReconciler {
    /// The machines of a set, as far as is known.
    fn machines(&self, set: &MachineSet) -> Vec<Arc<Machine>> {
        self.0.caches.machines.mentioning(&kept_by(set))
    }

    /// The deployment's sets, those of nobody that its selector is for among them; the oldest first.
    async fn sets(&self, deployment: &MachineDeployment) -> Result<Vec<Arc<MachineSet>>, CoreFault> {
        let namespace = deployment.namespace().unwrap_or_default();
        let Some(selector) = selector(&deployment.spec.selector) else { return Ok(Vec::new()) };
        let (api, known) = (self.0.api::<MachineSet>(&namespace), &self.0.caches.sets);
        let mut found = known.mentioning(&kept_by(deployment));
        let mut orphans = known.mentioning(&nobodys(&(namespace, deployment.spec.cluster_name.clone())));
        let is_free = |set: &MachineSet| {
            owners::controller(&set.metadata).is_none()
                && set.metadata.deletion_timestamp.is_none()
                && selects(&selector, &set.metadata)
        };
        orphans.retain(|set| is_free(set));
        found.append(&mut orphans);
        let mut sets = Vec::new();
        // What is known has no templates, and may be behind. A set that is not known yet is found by its name when it is to be made.
        for known in found {
            let Some(set) = api.get_opt(&known.name_any()).await? else { continue };
            if is_own(deployment, &set) {
                sets.push(Arc::new(set));
            } else if is_free(&set)
                && let Some(all) = owners::with(&set.metadata, &owners::owner(deployment, true))
            {
                let patch = json!({ "metadata": { "ownerReferences": all } });
                sets.push(Arc::new(change(&api, &set, patch).await?));
            }
        }
        sets.sort_by_key(|set| (set.metadata.creation_timestamp.clone(), set.metadata.name.clone()));
        Ok(sets)
    }

    /// The set of the deployment's template, made when there is none, and kept as the deployment is in place.
    async fn newest(
        &self,
        deployment: &MachineDeployment,
        mut sets: Vec<Arc<MachineSet>>,
    ) -> Result<(Option<Arc<MachineSet>>, Vec<Arc<MachineSet>>), CoreFault> {
        let now = Timestamp::now();
        let last = sets.iter().map(|set| revision(set.annotations())).max().unwrap_or(0);
        let own = self.0.api::<MachineSet>(&deployment.namespace().unwrap_or_default());
        let newest = match current(deployment, &sets, now) {
            Some(set) => {
                let set = set.clone();
                // One of an earlier template comes back: it is the newest again.
                let wanted = if revision(set.annotations()) < last { last + 1 } else { last };
                self.keep_in_place(&own, deployment, &set, wanted).await?
            }
            None if deployment.spec.paused == Some(true) && !sets.is_empty() => {
                // Nothing is replaced for now: the one that was the newest is scaled.
                let newest = sets.iter().max_by_key(|set| revision(set.annotations())).cloned();
                return Ok((newest, sets));
            }
            None => {
                let after = replaced_after(deployment, now).map(Timestamp::as_second);
                let made = set_of(deployment, &hash(&deployment.spec.template, after), last + 1);
                match own.create(&PostParams::default(), &made).await {
                    Ok(made) => {
                        let message = format!("Created MachineSet {}", made.name_any());
                        self.0.tell(deployment, "SuccessfulCreate", message).await;
                        Arc::new(made)
                    }
                    Err(kube::Error::Api(error)) if error.is_already_exists() => {
                        // It was made a moment ago, or goes.
                        let there = own.get(&made.name_any()).await?;
                        if !is_own(deployment, &there) || there.metadata.deletion_timestamp.is_some() {
                            return Ok((None, sets));
                        }
                        Arc::new(there)
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        sets.retain(|set| set.metadata.uid != newest.metadata.uid);
        for set in &mut sets {
            let own_revision = revision(set.annotations());
            *set = self.keep_in_place(&own, deployment, set, own_revision).await?;
        }
        sets.push(newest.clone());
        Ok((Some(newest), sets))
    }

    /// Writes to a set what needs no other machines.
    async fn keep_in_place(
        &self,
        api: &Api<MachineSet>,
        deployment: &MachineDeployment,
        set: &Arc<MachineSet>,
        wanted: i64,
    ) -> Result<Arc<MachineSet>, CoreFault> {
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(set.clone());
        }
        let hash = set.labels().get(LABEL_TEMPLATE_HASH).cloned().unwrap_or_default();
        let from = template(deployment, &hash);
        let mut spec = set.spec.clone();
        spec.deletion.clone_from(&deployment.spec.deletion);
        spec.machine_naming.clone_from(&deployment.spec.machine_naming);
        spec.template.metadata = from.metadata;
        spec.template.spec.deletion = from.spec.deletion;
        spec.template.spec.min_ready_seconds = from.spec.min_ready_seconds;
        spec.template.spec.readiness_gates = from.spec.readiness_gates;
        spec.template.spec.taints = from.spec.taints;
        let mut patch = Map::new();
        let value = |spec: &MachineSetSpec| serde_json::to_value(spec).map_err(kube::Error::SerdeError);
        if let Some(spec) = difference(&value(&set.spec)?, &value(&spec)?) {
            patch.insert("spec".into(), spec);
        }
        let mut metadata = Map::new();
        if revision(set.annotations()) != wanted {
            metadata.insert("annotations".into(), json!({ ANNOTATION_REVISION: wanted.to_string() }));
        }
        // Its machines have it from the set. One that was adopted has it not yet.
        let name = deployment.name_any();
        if set.labels().get(LABEL_DEPLOYMENT) != Some(&name) {
            metadata.insert("labels".into(), json!({ LABEL_DEPLOYMENT: name }));
        }
        if !metadata.is_empty() {
            patch.insert("metadata".into(), metadata.into());
        }
        if patch.is_empty() {
            return Ok(set.clone());
        }
        Ok(Arc::new(change(api, set.as_ref(), patch.into()).await?))
    }

    /// Has the newest set grow and the others shrink, and takes away those that have nothing left.
    async fn roll(
        &self,
        deployment: &MachineDeployment,
        newest: Option<&MachineSet>,
        sets: &[Arc<MachineSet>],
    ) -> Result<(), CoreFault> {
        let api = self.0.api::<MachineSet>(&deployment.namespace().unwrap_or_default());
        let old: Vec<&Arc<MachineSet>> =
            sets.iter().filter(|set| newest.is_none_or(|newest| newest.metadata.uid != set.metadata.uid)).collect();
        let counted: Vec<SetCount> = old.iter().map(|set| count(set, &self.machines(set))).collect();
        let next = plan(wish(deployment), newest.map(|set| count(set, &self.machines(set))).as_ref(), &counted);
        for (name, replicas) in &next {
            let Some(set) = sets.iter().find(|set| set.metadata.name.as_ref() == Some(name)) else { continue };
            if set.metadata.deletion_timestamp.is_none() {
                change(&api, set.as_ref(), json!({ "spec": { "replicas": replicas } })).await?;
                self.0.tell(deployment, "SuccessfulScale", format!("Scaled MachineSet {name} to {replicas}")).await;
            }
        }
        for (set, count) in old.iter().zip(&counted) {
            let seen = set.status.as_ref().and_then(|status| status.observed_generation) == set.metadata.generation;
            let empty = count.wished == 0 && count.there == 0 && seen;
            if empty && set.metadata.deletion_timestamp.is_none() && deployment.spec.paused != Some(true) {
                delete(&api, set).await?;
            }
        }
        Ok(())
    }

    async fn delete(
        &self,
        api: &Api<MachineDeployment>,
        deployment: &MachineDeployment,
        cluster: Option<&Cluster>,
    ) -> Result<Action, CoreFault> {
        if !objects::is_held(deployment, FINALIZER_DEPLOYMENT) {
            return Ok(Action::await_change());
        }
        let mut sets = self.sets(deployment).await?;
        let namespace = deployment.namespace().unwrap_or_default();
        if sets.is_empty() {
            let own = self.0.listed::<MachineSet>(&namespace, |set| is_own(deployment, set)).await?;
            sets = own.into_iter().map(Arc::new).collect();
        }
        if sets.is_empty() {
            objects::release(api, deployment, FINALIZER_DEPLOYMENT).await?;
            return Ok(Action::await_change());
        }
        let own = self.0.api::<MachineSet>(&namespace);
        for set in &sets {
            delete(&own, set).await?;
        }
        self.say(api, deployment, cluster, &sets, None).await?;
        Ok(Action::requeue(self.0.pause))
    }

    async fn say(
        &self,
        api: &Api<MachineDeployment>,
        deployment: &MachineDeployment,
        cluster: Option<&Cluster>,
        sets: &[Arc<MachineSet>],
        newest: Option<&MachineSet>,
    ) -> Result<(), CoreFault> {
        let mut machines: Vec<_> = sets.iter().flat_map(|set| self.machines(set)).collect();
        machines.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        let selector = selector(&deployment.spec.selector).map(|selector| selector.to_string()).unwrap_or_default();
        let view = MachineDeploymentStatusInput {
            deployment,
            cluster,
            sets,
            newest,
            machines: &machines,
            selector,
            wish: wish(deployment),
        };
        let status = status::status(&view, Timestamp::now());
        write_status(api, deployment, deployment.status.as_ref(), &status).await?;
        Ok(())
    }
}

/// How many machines a set has, which are these.
fn count(set: &MachineSet, own: &[Arc<Machine>]) -> SetCount {
    let is = |machine: &Machine| {
        machine.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, "Available"))
    };
    let going = own.iter().filter(|machine| machine.metadata.deletion_timestamp.is_some()).count();
    let available = own.iter().filter(|one| one.metadata.deletion_timestamp.is_none() && is(one)).count();
    SetCount {
        name: set.name_any(),
        wished: usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0),
        there: own.len(),
        available,
        going,
    }
}
