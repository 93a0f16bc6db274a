//! The controller of templates: gives each claim an index, and makes its Metal3Data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use super::index::{DataIndex, template_of};
use super::plan::{DataClaim, DataPlan, DataStep, data_name, plan};
use crate::api::infrastructure::data::v1beta2::{
    IndexEntry, Metal3Data, Metal3DataClaim, Metal3DataSpec, Metal3DataTemplate,
};
use crate::api::infrastructure::data::{FINALIZER_CLAIM, FINALIZER_TEMPLATE};
use crate::api::infrastructure::v1beta2::Metal3Reference;
use crate::cluster::contract::pause;
use crate::runtime::{ObjectKey, Reconcile, Slim, changes, key, objects, owners};

/// Claims of a template that are written for at once.
const AT_ONCE: usize = 16;
/// Claims of a template that are answered at once; then others of its namespace have their turn.
const IN_ONE_LOOK: usize = 512;
/// How soon it goes on with the next ones: what is known of the first has arrived by then, or arrives meanwhile.
const GO_ON: Duration = Duration::from_millis(50);
/// So often in one look another index is tried whose name is somebody else's.
const ROUNDS: usize = 64;
/// Most characters of a message that are kept.
pub(super) const MESSAGE_MAX: usize = 512;
/// How soon it is tried again after an error.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// Gives indexes.
pub(super) struct Templates {
    /// The API.
    pub client: Client,
    /// What is known of claims and data.
    pub index: DataIndex,
}

impl Reconcile for Templates {
    type Object = Slim<Metal3DataTemplate>;
    type Error = kube::Error;

    const NAME: &'static str = "metal3datatemplate";

    const OF_A_NAMESPACE: u16 = crate::cluster::contract::OF_A_NAMESPACE;

    const DEADLINE: Option<Duration> = Some(Duration::from_secs(600));

    fn retry_after(&self) -> Duration {
        RETRY
    }

    async fn reconcile(&self, template: Arc<Slim<Metal3DataTemplate>>) -> Result<Action, kube::Error> {
        let place = key(template.as_ref());
        let templates = Api::<Metal3DataTemplate>::namespaced(self.client.clone(), &place.0);
        let Some(template) = templates.get_opt(&place.1).await? else { return Ok(Action::await_change()) };
        if pause::is_annotated(&template) {
            return Ok(Action::await_change());
        }
        let deleted = template.metadata.deletion_timestamp.is_some();
        let template = if deleted { template } else { objects::hold(&templates, template, FINALIZER_TEMPLATE).await? };
        let closed = deleted.then(|| format!("the Metal3DataTemplate {} is being deleted", place.1));
        // What is missing wakes it.
        let Some(TemplateOutcome { indexes, failed, is_all }) = self.answer(&place, closed.as_deref()).await else {
            return Ok(Action::await_change());
        };
        if let Some(status) = status(&template, &indexes, Timestamp::now()) {
            templates.patch_status(&place.1, &PatchParams::default(), &Patch::Merge(status)).await?;
        }
        if deleted
            && indexes.is_empty()
            && failed.is_none()
            && is_all
            && let Some(template) = templates.get_opt(&place.1).await?
        {
            objects::release(&templates, &template, FINALIZER_TEMPLATE).await?;
        }
        match failed {
            Some(failed) => Err(failed),
            None if is_all => Ok(Action::await_change()),
            None => Ok(Action::requeue(GO_ON)),
        }
    }
}

/// What came of a look at a template's claims.
struct TemplateOutcome {
    /// Who had which index.
    indexes: BTreeMap<i32, String>,
    /// What failed first.
    failed: Option<kube::Error>,
    /// Whether all claims had their turn.
    is_all: bool,
}

impl Templates {
    /// Brings claims to where they belong, as many as have their turn in one look; `None` before anything is known.
    async fn answer(&self, place: &ObjectKey, closed: Option<&str>) -> Option<TemplateOutcome> {
        let writer = DataWriter { client: &self.client, index: &self.index, namespace: &place.0 };
        let mut foreign = BTreeSet::new();
        for round in 0.. {
            let (claims, data) = self.index.of(place)?;
            let paused = |cluster: &str| self.index.is_paused(&(place.0.clone(), cluster.to_owned()));
            let mut plan = plan(closed, claims, &data, paused, &foreign);
            let is_all = plan.keep(IN_ONE_LOOK);
            let DataPlan { steps, indexes } = plan;
            let (mut taken, mut error) = (Vec::new(), None);
            let mut steps = stream::iter(steps).map(|step| writer.do_step(&place.1, step)).buffer_unordered(AT_ONCE);
            while let Some(done) = steps.next().await {
                match done {
                    Ok(index) => taken.extend(index),
                    Err(failed) => error = error.or(Some(failed)),
                }
            }
            if taken.is_empty() || round == ROUNDS || error.is_some() {
                return Some(TemplateOutcome { indexes, failed: error, is_all });
            }
            foreign.extend(taken);
        }
        None
    }
}

/// Writes for the claims of a namespace. Each write may be done twice, and be cut off anywhere.
pub(super) struct DataWriter<'a> {
    /// The API.
    pub client: &'a Client,
    /// What is known of claims and data.
    pub index: &'a DataIndex,
    /// The namespace.
    pub namespace: &'a str,
}

impl DataWriter<'_> {
    /// The index, when the name of its data is somebody else's.
    async fn do_step(&self, template: &str, step: DataStep) -> Result<Option<i32>, kube::Error> {
        match step {
            DataStep::Make(claim, machine, index) => return self.make(template, &claim, machine, index).await,
            DataStep::Tell(claim, name) => self.tell(&claim, &name).await?,
            DataStep::Refuse(claim, reason) => self.refuse(&claim, &reason).await?,
            DataStep::Release(claim, names) => self.release(&claim, &names).await?,
        }
        Ok(None)
    }

    /// Holds the claim, stores its data, and tells it, in this order: the data's name says which index it is, so that the API
    /// server itself stores no second one.
    async fn make(
        &self,
        template: &str,
        claim: &DataClaim,
        machine: OwnerReference,
        index: i32,
    ) -> Result<Option<i32>, kube::Error> {
        let Some(object) = self.hold(claim).await? else { return Ok(None) };
        let name = data_name(template, index);
        let reference =
            |name: &str| Some(Metal3Reference { name: name.to_owned(), namespace: Some(self.namespace.to_owned()) });
        let spec = Metal3DataSpec {
            index: Some(index),
            template: reference(template),
            claim: reference(&claim.name),
            ..Metal3DataSpec::default()
        };
        let mut data = Metal3Data::new(&name, spec);
        data.metadata = ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(self.namespace.to_owned()),
            labels: object.metadata.labels.clone(),
            finalizers: Some(vec![FINALIZER_CLAIM.to_owned()]),
            owner_references: Some(vec![
                owners::owner(&object, true),
                OwnerReference { controller: None, block_owner_deletion: None, ..machine },
            ]),
            ..ObjectMeta::default()
        };
        let all = self.data();
        match all.create(&PostParams::default(), &data).await {
            Ok(stored) => self.index.stored(&stored),
            Err(kube::Error::Api(error)) if error.is_already_exists() => {
                let Some(there) = all.get_opt(&name).await? else { return Ok(None) };
                self.index.stored(&there);
                let of = template_of(self.namespace, there.spec.template.as_ref());
                let of_claim = there.spec.claim.as_ref().is_some_and(|its| its.name == claim.name)
                    && owners::is_owned(&there.metadata, &claim.uid);
                if of.is_none_or(|(_, of)| of != template) || !of_claim {
                    return Ok(Some(index));
                }
            }
            Err(kube::Error::Api(error)) if error.is_invalid() => {
                let reason = format!("Failed to create associated Metal3Data object: {}", error.message);
                return self.refuse(claim, &reason).await.map(|()| None);
            }
            Err(error) => return Err(error),
        }
        self.say(&object, json!({"renderedData": reference(&name), "errorMessage": null})).await?;
        Ok(None)
    }

    async fn tell(&self, claim: &DataClaim, name: &str) -> Result<(), kube::Error> {
        let Some(object) = self.hold(claim).await? else { return Ok(()) };
        let rendered = Metal3Reference { name: name.to_owned(), namespace: Some(self.namespace.to_owned()) };
        self.say(&object, json!({"renderedData": rendered, "errorMessage": null})).await
    }

    /// Says that a claim gets no data.
    ///
    /// # Errors
    ///
    /// What the API says.
    pub async fn refuse(&self, claim: &DataClaim, reason: &str) -> Result<(), kube::Error> {
        let Some(object) = self.read(claim).await?.filter(|object| object.metadata.deletion_timestamp.is_none()) else {
            return Ok(());
        };
        let reason: String = reason.chars().take(MESSAGE_MAX).collect();
        self.say(&object, json!({"renderedData": null, "errorMessage": reason})).await
    }

    /// Has a claim's data go, and then lets it go. Data waits for its claim to be gone before it gives anything back.
    ///
    /// # Errors
    ///
    /// What the API says.
    pub async fn release(&self, claim: &DataClaim, names: &[String]) -> Result<(), kube::Error> {
        let all = self.data();
        for name in names {
            let Some(data) = all.get_opt(name).await? else { continue };
            if data.spec.claim.as_ref().is_none_or(|its| its.name != claim.name) {
                continue;
            }
            objects::release(&all, &data, FINALIZER_CLAIM).await?;
            if data.metadata.deletion_timestamp.is_none() {
                match all.delete(name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(error)) if error.is_not_found() => {}
                    deleted => drop(deleted?),
                }
            }
        }
        match self.read(claim).await? {
            Some(object) => objects::release(&self.claims(), &object, FINALIZER_CLAIM).await,
            None => Ok(()),
        }
    }

    fn claims(&self) -> Api<Metal3DataClaim> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    fn data(&self) -> Api<Metal3Data> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// The claim, when it is still the one that was looked at.
    async fn read(&self, claim: &DataClaim) -> Result<Option<Metal3DataClaim>, kube::Error> {
        let object = self.claims().get_opt(&claim.name).await?;
        Ok(object.filter(|object| object.uid().unwrap_or_default() == claim.uid))
    }

    /// The claim, held, unless it is to go.
    async fn hold(&self, claim: &DataClaim) -> Result<Option<Metal3DataClaim>, kube::Error> {
        let Some(object) = self.read(claim).await?.filter(|object| object.meta().deletion_timestamp.is_none()) else {
            return Ok(None);
        };
        changes::unless_gone(objects::hold(&self.claims(), object, FINALIZER_CLAIM).await)
    }

    async fn say(&self, claim: &Metal3DataClaim, status: Value) -> Result<(), kube::Error> {
        changes::change_status(&self.claims(), claim, status).await.map(drop)
    }
}

/// What is to be changed of a template's status.
fn status(template: &Metal3DataTemplate, indexes: &BTreeMap<i32, String>, now: Timestamp) -> Option<Value> {
    let known = template.status.clone().unwrap_or_default().indexes;
    let entries = indexes.iter().map(|(index, name)| IndexEntry { name: name.clone(), index: *index });
    let wanted: Vec<IndexEntry> = entries.collect();
    (known != wanted).then(|| json!({"status": {"indexes": wanted, "lastUpdated": now}}))
}
