//! Webhooks in the way of a write: between the draft of an object and its form in the store.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::super::answers::status::ApiError;
use super::super::crd;
use super::super::extensions::admission::AdmissionOperation;
use super::super::objects::meta;
use super::super::requests::request::FieldValidation;
use super::super::requests::request_context::RequestContext;
use super::super::shares::blocking;
use super::super::shares::scan_scheduler::ExclusiveTurn;
use super::super::writing::apply::manager::ManagedFieldsEntry;
use super::super::writing::managed_fields::{self, SentManagedFields};
use super::super::writing::scale::form;
use super::super::writing::write_strategy::{self, Managers, ObjectDraft, Old, Shaped, Warnings};
use super::admit::ConfiguredRequest;
use super::conversion::Converter;
use super::endpoint::WebhookEndpoint;
use super::kinds::GROUP;
use super::remarks::Remarks;

/// An object that may be written.
pub(in crate::apiserver) struct PreparedWrite<'c> {
    /// The object without `managedFields`.
    pub value: Value,
    /// Its managers.
    pub managers: Vec<ManagedFieldsEntry>,
    /// Whether anybody was asked, so that time has passed.
    pub asked: bool,
    /// The caller's turn, where the work is long.
    pub turn: Option<ExclusiveTurn<'c>>,
    /// What is ready of a definition.
    pub _ready: Option<crd::PrecompiledDefinition<'c>>,
}

/// How a request writes.
#[derive(Clone, Copy)]
pub(in crate::apiserver) struct Manner {
    pub dry_run: bool,
    /// Whether its work is long.
    pub long: bool,
    /// Whether the name was made by the server, which webhooks see later.
    pub generated: bool,
}

/// Prunes, completes and checks an object as [`write_strategy::prepare`], and asks webhooks about it. Nothing is locked
/// meanwhile: whoever writes the outcome looks whether the old object is still the same.
pub(in crate::apiserver) async fn prepare<'c>(
    context: &RequestContext<'c>,
    draft: ObjectDraft,
    meta: ObjectMeta,
    old: Option<&Old<'_>>,
    warnings: &mut Warnings,
    manner: Manner,
    mut ready: Option<crd::PrecompiledDefinition<'c>>,
) -> Result<PreparedWrite<'c>, ApiError> {
    let long = manner.long;
    let subject = subject(context, &meta, old.is_some(), manner);
    let round = subject.round();
    let turn = context.turn(long).await;
    let Some(round) = round else {
        let prepared = blocking::in_place_if(long, || write_strategy::prepare(context, draft, meta, old, warnings));
        let (value, managers) = prepared?;
        warnings.said(advice(context, &value));
        return Ok(PreparedWrite { value, managers, asked: false, turn, _ready: ready });
    };
    let mut shaped = blocking::in_place_if(long, || {
        let mut shaped = write_strategy::shape(context, draft, meta, old, warnings)?;
        shaped.settle_managers(context, old);
        Ok::<_, ApiError>(shaped)
    })?;
    drop(turn);
    let mut remarks = Remarks::default();
    let view = |value: &Value, managers: &[ManagedFieldsEntry]| shown(context, value, managers, old);
    let before = old.map(|old| view(old.value, old.managers)).transpose()?;
    if round.mutates() {
        let mut draft = view(&shaped.value, shaped.managers())?;
        if old.is_none() {
            unborn(&mut draft, manner.generated);
        }
        let mutated = round.mutate(Some(draft), before.as_ref(), &mut remarks).await;
        if let Some(mutated) = mutated.map_err(|error| with(error, warnings, &remarks))? {
            let turn = context.turn(long).await;
            shaped = blocking::in_place_if(long, || reshape(context, shaped, mutated, old, warnings))?;
            drop(turn);
            // One of a caller's definitions at a time: this one takes the place of what the client sent.
            drop(ready.take());
            ready = crd::ready(context, &shaped.value, old.map(|old| old.value)).await?;
        }
    }
    let turn = context.turn(long).await;
    let (value, managers) = blocking::in_place_if(long, || write_strategy::finish(context, shaped, old))
        .map_err(|error| with(error, warnings, &remarks))?;
    drop(turn);
    let after = view(&value, &managers)?;
    let judged = round.validate(Some(&after), before.as_ref(), &mut remarks).await;
    judged.map_err(|error| with(error, warnings, &remarks))?;
    remarks.add(advice(context, &value));
    warnings.said(remarks);
    Ok(PreparedWrite { value, managers, asked: true, turn: context.turn(long).await, _ready: ready })
}

/// What keeps the webhooks of a configuration, or of a definition, from being called.
fn advice(context: &RequestContext<'_>, object: &Value) -> Remarks {
    let mut remarks = Remarks::default();
    if context.resource.group != GROUP && !crd::is_definition(context.resource) {
        return remarks;
    }
    let settings = context.api.inner.webhooks.settings();
    let conversion = &object["spec"]["conversion"];
    if crd::is_definition(context.resource)
        && conversion["strategy"] == "Webhook"
        && object["spec"]["versions"].as_array().is_some_and(|versions| versions.len() > 1)
    {
        let reason = Converter::of(&conversion["webhook"]).unreachable(&settings);
        remarks.warnings.extend(reason.map(|reason| format!("the conversion webhook cannot be called: {reason}")));
    }
    let hooks = object["webhooks"].as_array().into_iter().flatten();
    let faults = hooks.filter_map(|hook| {
        let reason = WebhookEndpoint::of(&hook["clientConfig"]).unreachable(&settings)?;
        Some(format!("webhook {} cannot be called: {reason}", hook["name"]))
    });
    remarks.add(Remarks { warnings: faults.collect(), annotations: Vec::new() });
    remarks
}

/// The request as webhooks are asked about it.
fn subject<'s>(
    context: &'s RequestContext<'_>,
    meta: &ObjectMeta,
    is_there: bool,
    manner: Manner,
) -> ConfiguredRequest<'s> {
    let name = meta.name.clone().filter(|_| !manner.generated).unwrap_or_default();
    ConfiguredRequest {
        api: context.api,
        resource: context.resource,
        operation: if is_there { AdmissionOperation::Update } else { AdmissionOperation::Create },
        namespace: context.target.namespace.as_deref().unwrap_or_default(),
        name,
        subresource: context.target.subresource.as_deref().unwrap_or_default(),
        identity: context.identity,
        dry_run: manner.dry_run,
        options: options(context, is_there, manner.dry_run),
    }
}

/// The options of a request as an object of `meta.k8s.io/v1`. As upstream, those of a patch are those of the update that comes of
/// it, without its `force`, and the object has what the client said.
fn options(context: &RequestContext<'_>, is_there: bool, dry_run: bool) -> Value {
    let kind = if is_there { "UpdateOptions" } else { "CreateOptions" };
    let params = context.params;
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    if dry_run {
        options["dryRun"] = json!(["All"]);
    }
    if !params.field_manager.is_empty() {
        options["fieldManager"] = params.field_manager.as_str().into();
    }
    match &params.field_validation {
        FieldValidation::Ignore => options["fieldValidation"] = "Ignore".into(),
        FieldValidation::Strict => options["fieldValidation"] = "Strict".into(),
        FieldValidation::Warn => options["fieldValidation"] = "Warn".into(),
        FieldValidation::Unset | FieldValidation::Unknown(_) => {}
    }
    options
}

/// The object as it is shown, or of its scale what a `Scale` has.
fn shown(
    context: &RequestContext<'_>,
    value: &Value,
    managers: &[ManagedFieldsEntry],
    old: Option<&Old<'_>>,
) -> Result<Value, ApiError> {
    let mut value = value.clone();
    if let Some(old) = old {
        value["metadata"]["resourceVersion"] = old.value["metadata"]["resourceVersion"].clone();
    }
    match (context.target.subresource.as_deref(), &context.resource.scale) {
        (Some("scale"), Some(scale)) => form::view(scale, &value),
        _ => {
            managed_fields::insert(&mut value, &mut managers.to_vec());
            Ok(value)
        }
    }
}

/// An object that is not there yet has nothing of what the server gives it when it is made.
fn unborn(object: &mut Value, generated: bool) {
    let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for field in ["uid", "creationTimestamp", "generation"] {
        meta.remove(field);
    }
    if generated {
        meta.remove("name");
    }
}

/// What webhooks made of an object, as it would be written.
fn reshape(
    context: &RequestContext<'_>,
    shaped: Shaped,
    mut mutated: Value,
    old: Option<&Old<'_>>,
    warnings: &mut Warnings,
) -> Result<Shaped, ApiError> {
    let mut managers = shaped.managers().to_vec();
    let mut value = match (context.target.subresource.as_deref(), &context.resource.scale) {
        (Some("scale"), Some(scale)) => form::merge(context.resource, scale, &shaped.value, &mutated)?,
        _ => {
            if let Ok(SentManagedFields::Entries(entries)) = managed_fields::extract_sent(&mut mutated) {
                managers = entries;
            }
            mutated
        }
    };
    let mut meta = context.own_place(meta::read(&value)?)?;
    match old {
        Some(old) => meta::set_kept(&mut meta, old.meta),
        None => {
            let (name, wanted) = (shaped.meta.name.clone(), meta.name.take());
            if let (Some(before), Some(after)) = (&name, &wanted)
                && shaped.meta.generate_name.is_none()
                && before != after
            {
                let reason = format!("webhooks may not change the name of an object from {before:?} to {after:?}");
                return Err(ApiError::internal(format!("Internal error occurred: {reason}")));
            }
            meta::set_new(&mut meta, context.resource);
            meta.name = wanted.or(name);
            meta.uid = shaped.meta.uid;
            meta.creation_timestamp = shaped.meta.creation_timestamp;
            write_strategy::drop_new_status(context.resource, &mut value);
        }
    }
    let draft = ObjectDraft::new(value, Managers::Kept(managers));
    write_strategy::shape(context, draft, meta, old, &mut warnings.of_nobody())
}

/// A refusal with what the client is told beside.
fn with(mut error: ApiError, warnings: &Warnings, remarks: &Remarks) -> ApiError {
    error.warnings = warnings.so_far().iter().chain(&remarks.warnings).cloned().collect();
    error
}
