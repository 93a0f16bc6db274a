//! CustomResourceDefinitions (apiextensions.k8s.io/v1): kinds that users define while the server runs.
//!
//! The patterns and rules of what a client writes are compiled first ([`precompile`]); then it is completed and checked
//! ([`rules`], [`structural`]), then settled: names are accepted or refused ([`names`]), the accepted kinds are compiled into
//! resources ([`compiled`]) as far as there is memory for them ([`weight`]), and a new [`super::ResourceRegistry`] takes the
//! old one's place. All of that is done when the write is answered, so that a kind can be used at once. Upstream takes a
//! moment, and clients that wait for `Established` do not wait here.
//!
//! The kinds that are built in have definitions too, because charts and operators look for them. The server writes
//! these itself; a client may label and annotate them, and add fields to their schemas ([`extension`]). What else it writes
//! is dropped with a warning.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use extension::{complete_spec, is_extended, mark, own_fields, set_marks};
use names::{BUILT_IN, is_built_in};

use super::ApiServer;
use super::answers::columns::PrinterColumn;
use super::answers::status::{ApiError, FieldError};
use super::auth::UserIdentity;
use super::kinds::registry::ResourceRegistry;
use super::kinds::resource::{CoreKind, ServedResource};
use super::objects::meta;
use super::upkeep::round::{SweepOutcome, SweepRound, from_anywhere};
use super::writing::delete::DeleteOptions;
use crate::api::Kind;
use crate::store::{Expect, Mutation, Object, StoreWriteError};

mod compiled;
mod extension;
mod names;
mod precompile;
mod rules;
mod structural;
mod weight;

pub(super) use compiled::CompiledDefinitions;
pub(super) use precompile::{PrecompiledDefinition, ready};
pub(super) use weight::value as weight_of_value;

/// Group of definitions.
pub(super) use super::kinds::resource::APIEXTENSIONS as GROUP;
/// Name in the store.
pub(super) const STORAGE: &str = "apiextensions.k8s.io/customresourcedefinitions";
/// Holds a definition until its objects are gone.
pub(super) const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// Definitions made by users. Each costs memory for as long as it is there.
const DEFINITIONS_MAX: usize = 1000;
/// Tries of a change of a definition's status while others write.
const ATTEMPTS: usize = 16;

/// The kind as the registry wants it.
pub(super) fn core_kind() -> CoreKind {
    CoreKind {
        group: GROUP,
        kind: "CustomResourceDefinition",
        plural: "customresourcedefinitions",
        short_names: &["crd", "crds"],
        namespaced: false,
        status: true,
        columns: || {
            let mut created = PrinterColumn::cell("Created At", "date", 0, |object, _| {
                object["metadata"]["creationTimestamp"].clone()
            });
            created.description = "CreationTimestamp is a timestamp representing the server time when this object \
                                   was created."
                .into();
            vec![PrinterColumn::name(), created]
        },
        conversion: None,
        prepare: Some(prepare),
    }
}

/// Whether this is the kind of definitions.
pub(super) fn is_definition(resource: &ServedResource) -> bool {
    &*resource.storage == STORAGE
}

/// Fills in what a client may leave out, and puts back what it may not change. Returns a warning when it did that.
pub(super) fn complete(new: &mut Value, old: Option<&Value>) -> Option<String> {
    let mut warning = None;
    if let Some(old) = old.filter(|old| is_built_in(old)) {
        complete_spec(new);
        if new["spec"] != old["spec"] {
            let name = old["metadata"]["name"].as_str().unwrap_or_default();
            let built_in = extension::built_in_spec(name);
            let spec = built_in.as_ref().map(|built_in| extension::extended(built_in, &new["spec"]));
            let spec = spec.unwrap_or_else(|| old["spec"].clone());
            if spec != new["spec"] {
                let added = if built_in.is_some_and(|built_in| built_in != spec) {
                    "fields that are new are added, and the rest of "
                } else {
                    ""
                };
                warning = Some(format!("{name} is built into Slipway: {added}its spec stays as it is"));
            }
            new["spec"] = spec;
        }
    } else {
        complete_spec(new);
    }
    let storage = storage_version(&new["spec"]).map(str::to_owned);
    if old.is_none() {
        new["status"] = json!({
            "conditions": [],
            "acceptedNames": {"plural": "", "kind": ""},
            "storedVersions": storage.into_iter().collect::<Vec<_>>(),
        });
    } else if let (Some(storage), Some(Value::Array(stored))) = (storage, new["status"].get_mut("storedVersions"))
        && !stored.iter().any(|version| *version == *storage)
    {
        stored.push(storage.into());
    }
    warning
}

/// Bytes of a definition that somebody writes: what the server writes into it, as the names that are accepted, fits beside.
const WRITTEN_MAX: usize = (1 << 20) - (64 << 10);

/// Metadata of a built-in kind's definition that stays in any case.
const KEPT_METADATA: [&str; 5] = ["name", "uid", "creationTimestamp", "generation", "deletionTimestamp"];

fn prepare(new: &mut Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let size = |value: &Value| serde_json::to_vec(value).map_or(0, |text| text.len());
    let length = size(new);
    // One that was stored with more may shrink.
    if length > WRITTEN_MAX && old.is_none_or(|old| size(old) < length) {
        let detail = format!("{length} bytes are more than the {WRITTEN_MAX} that a definition may have");
        errors.push(FieldError::forbidden("spec", detail));
        return;
    }
    if old.is_none_or(|old| old["spec"] != new["spec"]) {
        rules::check_spec(new, errors);
        if let Some(old) = old {
            rules::check_change(new, old, errors);
        }
    }
    rules::check_stored_versions(new, errors);
    rules::check_approval(new, old, errors);
    if let Some(old) = old.filter(|old| is_built_in(old)) {
        mark(new, old);
    }
    let claims = |value: &Value| value["metadata"]["annotations"].get(BUILT_IN).cloned();
    if claims(new) != old.and_then(claims) {
        errors.push(FieldError::forbidden(format!("metadata.annotations[{BUILT_IN}]"), "is set by Slipway itself"));
    }
}

fn storage_version(spec: &Value) -> Option<&str> {
    spec["versions"].as_array()?.iter().find(|version| version["storage"] == true)?["name"].as_str()
}

/// The definitions of built-in kinds stay.
pub(super) fn check_deletable(resource: &ServedResource, definition: &Object) -> Result<(), ApiError> {
    if is_built_in(&json!({ "metadata": definition.metadata() })) {
        return Err(ApiError::forbidden(
            resource,
            &definition.name,
            "this kind is built into Slipway and cannot be deleted",
        ));
    }
    Ok(())
}

/// One more definition must not be one too many.
pub(super) fn check_room(api: &ApiServer, resource: &ServedResource) -> Result<(), ApiError> {
    if is_definition(resource) && api.store().list(STORAGE, None).objects.len() >= DEFINITIONS_MAX {
        return Err(ApiError::forbidden(resource, "", format!("there are {DEFINITIONS_MAX} definitions already")));
    }
    Ok(())
}

/// Says in the status that the objects are going.
pub(super) fn set_terminating(definition: &mut Value) {
    meta::set_condition(
        definition,
        meta::StatusCondition {
            kind: "Terminating",
            status: "True",
            reason: "InstanceDeletionPending",
            message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        },
        meta::now(),
    );
}

impl ApiServer {
    /// Writes a definition and settles what follows from it. The caller may be dropped meanwhile: both are done.
    pub(super) async fn commit_definition(&self, change: Mutation) -> Result<Arc<Object>, StoreWriteError> {
        let api = self.clone();
        let both = async move {
            // The request keeps it only for as long as it is there. What was stored with more than it may ask for is weighed
            // and compiled as far as it can be.
            let _ready = match &change.value {
                Some(value) => api.make_ahead(&UserIdentity::in_process(), value).await.ok(),
                None => None,
            };
            let mut compiled = api.inner.definitions.lock().await;
            if let Some(value) = &change.value {
                compiled.check_room(&change.name, value)?;
            }
            // What a kind of the same name was before is no history of this one.
            if let (Expect::Absent, Some(value), None) =
                (change.expect, &change.value, api.store().get(STORAGE, "", &change.name))
                && let Some(storage) = own_storage(&api.registry(), value)
            {
                api.store().forget(&storage).await?;
            }
            let written = api.store().write(change).await?;
            api.settle(&mut compiled).await?;
            Ok(written)
        };
        match tokio::spawn(both).await {
            Ok(result) => result,
            Err(panic) => Err(StoreWriteError::Failed(panic.to_string())),
        }
    }

    /// Brings the status of all definitions, and what is served, in line with what is stored.
    async fn settle(&self, compiled: &mut CompiledDefinitions) -> Result<(), StoreWriteError> {
        let mut settled = false;
        for _ in 0..ATTEMPTS {
            compiled.note(&self.store().list(STORAGE, None).objects);
            let outlines = compiled.unsettled();
            let changes = names::settle(&outlines, &self.registry(), meta::now());
            if changes.is_empty() {
                settled = true;
                break;
            }
            for (_, mut outline) in changes {
                let name = outline["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let Some(object) = self.store().get(STORAGE, "", &name) else { continue };
                let mut value = object.value();
                value["status"] = outline["status"].take();
                let change = Mutation {
                    resource: STORAGE.into(),
                    namespace: String::new(),
                    name,
                    expect: Expect::Revision(object.revision),
                    value: Some(value),
                };
                match self.store().write(change).await {
                    // Only this function and those that hold its lock write definitions.
                    Ok(_) | Err(StoreWriteError::Conflict { .. } | StoreWriteError::NotFound) => {}
                    // It costs itself alone: all others are settled and served.
                    Err(error @ StoreWriteError::TooLarge { .. }) => {
                        tracing::warn!(definition = object.name, %error, "cannot write the status of a definition: it is too large");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if settled {
            compiled.set_settled();
        } else {
            tracing::warn!("the definitions still changed after many rounds: their statuses may be old");
        }
        let objects = self.store().list(STORAGE, None).objects;
        compiled.note(&objects);
        let extended = compiled.extend(&objects);
        if compiled.compile(&objects) || extended {
            self.set_registry(self.registry().with_custom(&compiled.extended(), compiled.resources()));
        }
        compiled.retire();
        Ok(())
    }

    /// Writes the definitions of the built-in kinds, and serves what users defined before.
    pub(super) async fn install_definitions(&self, kinds: &[Kind]) -> Result<(), StoreWriteError> {
        let mut compiled = self.inner.definitions.lock().await;
        let mut own = Vec::new();
        for kind in kinds {
            let name = format!("{}.{}", kind.crd.spec.names.plural, kind.crd.spec.group);
            let mut whole = json!({ "spec": kind.crd.spec });
            complete_spec(&mut whole);
            compiled.set_built_in(&name, kind, &whole["spec"]);
            self.install_definition(&name, &whole["spec"], kind.crd.metadata.labels.as_ref()).await?;
            own.push(name);
        }
        // A kind that this version no longer has stays reachable, as its user's.
        let registry = self.registry();
        for object in self.store().list(STORAGE, None).objects {
            let mut value = object.value();
            if !own.contains(&object.name) && own_storage(&registry, &value).is_none() {
                tracing::warn!(
                    definition = object.name,
                    "a definition names a kind that is built in: it is not served, and deleting it deletes nothing else"
                );
            }
            if is_built_in(&value) && !own.contains(&object.name) {
                if let Some(Value::Object(annotations)) = value["metadata"].get_mut("annotations") {
                    annotations.remove(BUILT_IN);
                }
                match self.write_definition(&object.name, Expect::Revision(object.revision), value).await {
                    Err(error @ StoreWriteError::TooLarge { .. }) => {
                        tracing::warn!(definition = object.name, %error, "cannot change a definition, which is too large: it stays marked as built in");
                    }
                    written => written?,
                }
            }
        }
        self.settle(&mut compiled).await
    }

    async fn install_definition(
        &self,
        name: &str,
        spec: &Value,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Result<(), StoreWriteError> {
        let object = self.store().get(STORAGE, "", name);
        let before = object.as_deref().map(Object::value);
        let mut value = match &before {
            Some(before) => before.clone(),
            None => json!({
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {
                    "name": name,
                    "uid": uuid::Uuid::new_v4().to_string(),
                    "creationTimestamp": meta::now(),
                    "generation": 1,
                },
            }),
        };
        let former = before.as_ref().filter(|before| is_extended(before));
        value["spec"] = former.map_or_else(|| spec.clone(), |former| extension::extended(spec, &former["spec"]));
        let extended = value["spec"] != *spec;
        complete(&mut value, before.as_ref().filter(|old| !is_built_in(old)));
        if let Some(before) = &before {
            value["status"] = before["status"].clone();
            if value["spec"] != before["spec"] {
                let generation = before["metadata"]["generation"].as_i64().unwrap_or(0);
                value["metadata"]["generation"] = (generation + 1).into();
            }
        }
        if let Some(storage) = storage_version(&value["spec"]).map(str::to_owned) {
            value["status"]["storedVersions"] = json!([storage]);
        }
        set_marks(&mut value, extended);
        if value["metadata"]["managedFields"].is_null() {
            value["metadata"]["managedFields"] = own_fields();
        }
        stay(&mut value);
        for (label, text) in labels.into_iter().flatten() {
            value["metadata"]["labels"][label] = text.as_str().into();
        }
        let Some(object) = object else { return self.write_definition(name, Expect::Absent, value).await };
        if before.as_ref() == Some(&value) {
            return Ok(());
        }
        let expect = Expect::Revision(object.revision);
        match self.write_definition(name, expect, value.clone()).await {
            Err(error @ StoreWriteError::TooLarge { .. }) => {
                // Rather without what users added to it than not at all: the program needs its kinds.
                tracing::warn!(definition = name, %error, "a definition is too large: it is written without the annotations, labels and managers of others");
                if let Some(metadata) = value["metadata"].as_object_mut() {
                    metadata.retain(|field, _| KEPT_METADATA.contains(&field.as_str()));
                    metadata.insert("labels".into(), json!(labels.cloned().unwrap_or_default()));
                }
                set_marks(&mut value, extended);
                self.write_definition(name, expect, value).await
            }
            written => written,
        }
    }

    async fn write_definition(&self, name: &str, expect: Expect, mut value: Value) -> Result<(), StoreWriteError> {
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        let change = Mutation {
            resource: STORAGE.into(),
            namespace: String::new(),
            name: name.to_owned(),
            expect,
            value: Some(value),
        };
        self.store().write(change).await.map(|_| ())
    }

    /// Deletes the objects of kinds whose definition is being deleted, and then the definition.
    pub(super) async fn end_definitions(&self) -> Result<(), ApiError> {
        let (registry, mut round) = (self.registry(), SweepRound::default());
        let Some(resource) = registry.find(GROUP, "v1", "customresourcedefinitions") else { return Ok(()) };
        let all = self.store().list(STORAGE, None).objects;
        for definition in from_anywhere(&all).filter(|definition| definition.is_ending()) {
            if round.is_over() {
                self.wake_sweeper();
                break;
            }
            let value = definition.value();
            let metadata = &value["metadata"];
            let waits = metadata["finalizers"].as_array().is_some_and(|list| list.iter().any(|one| one == FINALIZER));
            if !waits {
                continue;
            }
            let storage = own_storage(&registry, &value);
            let kind = registry.stored().find(|kind| Some(&*kind.storage) == storage.as_deref());
            let mut left = 0;
            for object in storage.iter().flat_map(|storage| self.store().list(storage, None).objects) {
                round.yield_now().await;
                let outcome = match kind {
                    Some(kind) => self.remove(kind, &object, &DeleteOptions::default(), &mut round).await?,
                    None => SweepOutcome::Held,
                };
                left += usize::from(outcome != SweepOutcome::Done);
                if outcome == SweepOutcome::Changed {
                    self.wake_sweeper();
                }
                if !(outcome == SweepOutcome::Held && object.is_ending()) && round.is_over() {
                    left += 1;
                    self.wake_sweeper();
                    break;
                }
            }
            if left == 0
                && self.end_definition(resource, storage.as_deref(), definition, &mut round).await?
                    == SweepOutcome::Changed
            {
                self.wake_sweeper();
            }
        }
        round.end()
    }

    async fn end_definition(
        &self,
        resource: &ServedResource,
        storage: Option<&str>,
        definition: &Object,
        round: &mut SweepRound,
    ) -> Result<SweepOutcome, ApiError> {
        // Creations that passed their check are done once the gate was ours; later ones find the kind ending. Nobody waits for
        // what is written then: it may have to be compiled.
        drop(self.namespace_gate().write().await);
        if storage.is_some_and(|storage| !self.store().list(storage, None).objects.is_empty()) {
            return Ok(SweepOutcome::Changed);
        }
        if self.store().unreadable().iter().any(|(of, _, _)| Some(&**of) == storage) {
            tracing::warn!(
                definition = definition.name,
                "cannot delete a definition yet: there are objects of its kind that cannot be read"
            );
            return Ok(SweepOutcome::Held);
        }
        self.rewrite(resource, definition, round, |value| {
            if let Some(Value::Array(finalizers)) = value["metadata"].get_mut("finalizers") {
                finalizers.retain(|one| one != FINALIZER);
            }
            let done = meta::StatusCondition {
                kind: "Terminating",
                status: "False",
                reason: "InstanceDeletionCompleted",
                message: "removed all instances",
            };
            meta::set_condition(value, done, meta::now());
        })
        .await
    }
}

/// Name in the store of the objects that a definition is about; `None` when they are a built-in kind's. Those are never
/// touched for a definition's sake, however it came into the store.
fn own_storage(registry: &ResourceRegistry, definition: &Value) -> Option<String> {
    let spec = &definition["spec"];
    let (group, plural) = (spec["group"].as_str()?, spec["names"]["plural"].as_str()?);
    (!registry.has_built_in(group, plural)).then(|| format!("{group}/{plural}"))
}

/// A definition that a user made and was deleting before the kind was built in stays.
fn stay(definition: &mut Value) {
    if definition["metadata"]["deletionTimestamp"].is_null() {
        return;
    }
    if let Some(metadata) = definition["metadata"].as_object_mut() {
        metadata.remove("deletionTimestamp");
        metadata.remove("deletionGracePeriodSeconds");
        metadata.remove("finalizers");
    }
    if let Some(Value::Array(conditions)) = definition["status"].get_mut("conditions") {
        conditions.retain(|one| one["type"] != "Terminating");
    }
}
