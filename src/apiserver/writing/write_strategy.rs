//! Pruning, defaulting and validation of an object before it is written.
//!
//! What becomes of an object before it is written: unknown fields go, defaults come, the server's fields are set, and
//! everything is checked.

use std::collections::HashSet;

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::apply::manager::ManagedFieldsEntry;
use super::managed_fields::{self, SentManagedFields};
use super::seal::{self, SealedValues};
use crate::apiserver::answers::status::{ApiError, FieldError, FieldFault};
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::objects::meta;
use crate::apiserver::requests::body;
use crate::apiserver::requests::request::FieldValidation;
use crate::apiserver::requests::request_context::RequestContext;
use crate::apiserver::schema::defaults;
use crate::apiserver::webhooks::Remarks;
use crate::apiserver::{AdmissionOperation, AdmissionRequest, crd};

/// Warnings sent with one answer.
const WARNINGS_MAX: usize = 16;

/// An object as a request wants it, and who manages its fields.
#[derive(Clone, Debug)]
pub(in crate::apiserver) struct ObjectDraft {
    /// The object without `managedFields`.
    pub value: Value,
    /// Its managers.
    pub managers: Managers,
    /// What was taken out of it, and goes into its Secret.
    pub sealed: SealedValues,
}

impl ObjectDraft {
    /// One of which nothing was taken out yet.
    pub fn new(value: Value, managers: Managers) -> Self {
        Self { value, managers, sealed: SealedValues::default() }
    }

    /// Takes out of it, of this name, what goes into its Secret.
    pub fn seal(&mut self, context: &RequestContext<'_>, name: &str) -> Result<(), ApiError> {
        self.sealed.extend(seal::take(context, &mut self.value, name)?);
        Ok(())
    }
}

/// Where an object's managers come from.
#[derive(Clone, Debug)]
pub(in crate::apiserver) enum Managers {
    /// From what differs, and from what the client sent.
    Track(SentManagedFields),
    /// From what was applied.
    Applied(Vec<ManagedFieldsEntry>),
    /// They were found before webhooks changed the object.
    Kept(Vec<ManagedFieldsEntry>),
}

/// The object that is there.
#[derive(Debug)]
pub(in crate::apiserver) struct Old<'o> {
    /// As this version serves it, without `managedFields`.
    pub value: &'o Value,
    /// Its metadata.
    pub meta: &'o ObjectMeta,
    /// Its managers.
    pub managers: &'o [ManagedFieldsEntry],
}

/// An object in the form in which it would be written, which is not checked yet.
pub(in crate::apiserver) struct Shaped {
    /// The object without `managedFields`.
    pub value: Value,
    /// Its metadata.
    pub meta: ObjectMeta,
    managers: Managers,
    errors: Vec<FieldError>,
}

impl Shaped {
    /// Finds who manages the object as it is now.
    pub fn settle_managers(&mut self, context: &RequestContext<'_>, old: Option<&Old<'_>>) {
        if let Managers::Track(sent) = &self.managers {
            let old = old.map(|old| (old.value, old.managers));
            self.managers = Managers::Kept(managed_fields::tracked(context, old, &self.value, sent));
        }
    }

    /// Who manages it, when that was found.
    pub fn managers(&self) -> &[ManagedFieldsEntry] {
        match &self.managers {
            Managers::Track(_) => &[],
            Managers::Applied(entries) | Managers::Kept(entries) => entries,
        }
    }
}

/// Prunes, completes and checks an object, and finds who manages it.
pub(in crate::apiserver) fn prepare(
    context: &RequestContext<'_>,
    draft: ObjectDraft,
    meta: ObjectMeta,
    old: Option<&Old<'_>>,
    warnings: &mut Warnings,
) -> Result<(Value, Vec<ManagedFieldsEntry>), ApiError> {
    finish(context, shape(context, draft, meta, old, warnings)?, old)
}

/// A new object has no status but what its subresource is given later.
pub(in crate::apiserver) fn drop_new_status(resource: &ServedResource, object: &mut Value) {
    if resource.status
        && !resource.core
        && let Some(map) = object.as_object_mut()
    {
        map.remove("status");
    }
}

/// Prunes and completes an object.
pub(in crate::apiserver) fn shape(
    context: &RequestContext<'_>,
    draft: ObjectDraft,
    mut meta: ObjectMeta,
    old: Option<&Old<'_>>,
    warnings: &mut Warnings,
) -> Result<Shaped, ApiError> {
    let ObjectDraft { value: mut new, managers, .. } = draft;
    let resource = context.resource;
    let name = meta.name.clone().unwrap_or_default();
    if body::too_deep(&new) {
        return Err(ApiError::bad_request("the object is nested too deeply"));
    }
    if !context.identity.is_in_process() {
        body::check_values(&new)?;
    }
    if resource.core {
        resource.schema.drop_nulls(&mut new);
    }
    let unpruned = warnings.shows_object().then(|| new.to_string());
    let unknown = resource.schema.prune(&mut new);
    warnings.unknown(&unknown, unpruned)?;
    let is_status = context.target.subresource.as_deref() == Some("status");
    if let Some(old) = old {
        if is_status {
            // Only the status is taken; the rest stays as it was.
            let status = new.get_mut("status").map(Value::take);
            new = old.value.clone();
            set_or_remove(&mut new, "status", status);
            meta = old.meta.clone();
            meta.resource_version = None;
        } else if resource.status {
            set_or_remove(&mut new, "status", old.value.get("status").cloned());
        }
    }
    // What is on its way out is let go as it is.
    if !resource.schema.apply_defaults(&mut new) && meta.deletion_timestamp.is_none() {
        return Err(overfilled(resource, &name));
    }
    if !resource.core {
        drop_nulls(resource, &mut new, matches!(managers, Managers::Applied(_)));
    }
    if let Some(complete) = resource.complete {
        complete(&mut new);
    }
    if crd::is_definition(resource) {
        warnings.list.extend(crd::complete(&mut new, old.map(|old| old.value)));
    }
    if let Some(old) = old
        && resource.counts_generation()
        && !is_status
        && differs(&new, old.value, resource.status)
    {
        meta.generation = Some(old.meta.generation.unwrap_or(0) + 1);
    }
    let mut errors = meta::validate(resource, &meta, old.map(|old| old.meta));
    meta::write(&mut new, &meta)?;
    if let Some(prepare) = resource.prepare {
        prepare(&mut new, old.map(|old| old.value), &mut errors);
    }
    Ok(Shaped { value: new, meta, managers, errors })
}

/// Checks an object that has its form, and finds who manages it.
pub(in crate::apiserver) fn finish(
    context: &RequestContext<'_>,
    shaped: Shaped,
    old: Option<&Old<'_>>,
) -> Result<(Value, Vec<ManagedFieldsEntry>), ApiError> {
    let Shaped { value: new, meta, managers, mut errors } = shaped;
    let resource = context.resource;
    let is_status = context.target.subresource.as_deref() == Some("status");
    // What this request does not write was checked when it was written.
    let mine = |error: &FieldError| {
        let on_status =
            error.path == "status" || error.path.starts_with("status.") || error.path.starts_with("status[");
        // Of what was not checked nobody knows which part it is.
        !resource.status || on_status == is_status || error.fault == FieldFault::Unchecked
    };
    let old_value = old.map(|old| old.value);
    let of_schema = resource.schema.validate_change(&new, old_value).into_iter().filter(mine);
    // What is missing is told once, and best by who knows why.
    let told: HashSet<String> = errors.iter().map(|error| error.path.clone()).collect();
    errors.extend(of_schema.filter(|error| error.fault != FieldFault::Required || !told.contains(&error.path)));
    resource.schema.check_rules(&new, old_value, &mut errors);
    if errors.is_empty() {
        let request = AdmissionRequest {
            resource,
            operation: if old.is_some() { AdmissionOperation::Update } else { AdmissionOperation::Create },
            status: is_status,
            object: &new,
            old: old.map(|old| old.value),
            identity: context.identity,
            rights: context.api.rights(context.identity),
        };
        errors = context.api.admit(&request);
        if errors.is_empty() && resource.brings_back(&new) {
            errors = judge_stored(context, &request).into_iter().filter(mine).collect();
        }
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid(resource, meta.name.as_deref().unwrap_or_default(), &errors));
    }
    context.api.auth().check_escalation(context.identity, resource, &new, old.map(|old| old.value))?;
    seal::check(context, &new, old.map(|old| old.value), meta.name.as_deref().unwrap_or_default())?;
    let managers = match managers {
        Managers::Applied(entries) | Managers::Kept(entries) => entries,
        Managers::Track(sent) => {
            managed_fields::tracked(context, old.map(|old| (old.value, old.managers)), &new, &sent)
        }
    };
    Ok((new, managers))
}

/// What is wrong with the stored form of an object that says itself what it has besides: as if it had been written in that
/// version.
fn judge_stored(context: &RequestContext<'_>, request: &AdmissionRequest<'_>) -> Vec<FieldError> {
    let resource = context.resource;
    let registry = context.api.registry();
    let Some(storing) = registry.stored().find(|other| other.storage == resource.storage) else { return Vec::new() };
    let old = request.old.map(|old| resource.to_stored(old.clone()));
    let object = resource.to_stored_over(request.object.clone(), || old.clone(), request.status);
    let errors = storing.schema.validate_change(&object, old.as_ref());
    if !errors.is_empty() {
        return errors;
    }
    context.api.admit(&AdmissionRequest { resource: storing, object: &object, old: old.as_ref(), ..*request })
}

/// Drops nulls where there is to be a value. Of what was applied, as upstream, only those of the metadata: a null that
/// somebody applies to a field that takes none is refused.
fn drop_nulls(resource: &ServedResource, object: &mut Value, applied: bool) {
    if !applied {
        return resource.schema.drop_nulls(object);
    }
    let Some(metadata) = object.get_mut("metadata").map(Value::take) else { return };
    let mut only = serde_json::json!({ "metadata": metadata });
    resource.schema.drop_nulls(&mut only);
    set_or_remove(object, "metadata", only.get_mut("metadata").map(Value::take));
}

fn set_or_remove(object: &mut Value, field: &str, value: Option<Value>) {
    if let Some(map) = object.as_object_mut() {
        match value {
            Some(value) => map.insert(field.into(), value),
            None => map.remove(field),
        };
    }
}

/// Whether anything but metadata (and status, where it has its own subresource) differs.
fn differs(new: &Value, old: &Value, ignore_status: bool) -> bool {
    let counts = |key: &str| key != "metadata" && !(ignore_status && key == "status");
    let fields = |value: &Value| value.as_object().map_or(0, |map| map.keys().filter(|key| counts(key)).count());
    let same = |(key, value): (&String, &Value)| !counts(key) || old.get(key) == Some(value);
    fields(new) != fields(old) || !new.as_object().into_iter().flatten().all(same)
}

/// How a client is told that it sent what the schema does not know, when it wants none of it.
#[derive(Clone, Debug)]
pub(in crate::apiserver) enum RejectionStyle {
    /// The object of a body: 400.
    Object,
    /// The outcome of a patch: 422 that shows it.
    Outcome,
    /// The outcome of a patch: 422 that shows the patch.
    Patch(String),
}

/// Warnings of one request, or the error when the client wants none.
#[derive(Debug)]
pub(in crate::apiserver) struct Warnings {
    validation: FieldValidation,
    version: String,
    kind: String,
    rejection_style: RejectionStyle,
    /// What was found in the body itself; it stays when the object is shaped again.
    of_body: Vec<String>,
    list: Vec<String>,
    /// What webhooks said of the object as it was shaped last.
    remarks: Remarks,
}

impl Warnings {
    pub(in crate::apiserver) fn new(context: &RequestContext<'_>, rejection_style: RejectionStyle) -> Self {
        Self {
            validation: context.params.field_validation.clone(),
            version: context.resource.version.clone(),
            kind: context.resource.kind.clone(),
            rejection_style,
            of_body: Vec::new(),
            list: Vec::new(),
            remarks: Remarks::default(),
        }
    }

    /// Those of an object that no client sent.
    pub(in crate::apiserver) fn of_nobody(&self) -> Self {
        Self {
            validation: FieldValidation::Ignore,
            version: self.version.clone(),
            kind: self.kind.clone(),
            rejection_style: RejectionStyle::Object,
            of_body: Vec::new(),
            list: Vec::new(),
            remarks: Remarks::default(),
        }
    }

    /// Takes note of what webhooks said.
    pub(in crate::apiserver) fn said(&mut self, remarks: Remarks) {
        self.remarks = remarks;
    }

    /// What the client is to be told, but for what webhooks said.
    pub(in crate::apiserver) fn so_far(&self) -> &[String] {
        &self.list
    }

    /// Fields that a body has twice.
    pub(in crate::apiserver) fn duplicates(&mut self, fields: &[String]) -> Result<(), ApiError> {
        self.of_body = fields.iter().map(|field| format!("duplicate field {field:?}")).collect();
        if self.validation == FieldValidation::Ignore {
            self.of_body.clear();
        }
        // A patch's outcome may have more to tell.
        if matches!(self.rejection_style, RejectionStyle::Object) { self.unknown(&[], None) } else { Ok(()) }
    }

    /// The fault of a configuration that is applied.
    pub(in crate::apiserver) fn duplicate_in_yaml(&mut self, fault: String) -> Result<(), ApiError> {
        match self.validation {
            FieldValidation::Strict => Err(ApiError::bad_request(format!("error strict decoding YAML: {fault}"))),
            FieldValidation::Ignore => Ok(()),
            _ => {
                let line = fault.lines().last().unwrap_or_default();
                self.of_body = vec![line.trim().to_owned()];
                Ok(())
            }
        }
    }

    /// Whether [`Warnings::unknown`] wants to show the object.
    fn shows_object(&self) -> bool {
        self.validation == FieldValidation::Strict && matches!(self.rejection_style, RejectionStyle::Outcome)
    }

    /// Fields that the schema does not know.
    fn unknown(&mut self, fields: &[String], object: Option<String>) -> Result<(), ApiError> {
        self.list.clear();
        if self.validation == FieldValidation::Ignore {
            return Ok(());
        }
        self.list.extend(self.of_body.iter().cloned());
        self.list.extend(fields.iter().map(|field| format!("unknown field {field:?}")));
        self.list.truncate(WARNINGS_MAX);
        if self.validation != FieldValidation::Strict || self.list.is_empty() {
            return Ok(());
        }
        let (kind, version) = (&self.kind, &self.version);
        let faults = format!("strict decoding error: {}", self.list.join(", "));
        Err(match &self.rejection_style {
            RejectionStyle::Object => {
                ApiError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {faults}"))
            }
            RejectionStyle::Outcome => ApiError::invalid_patch(&object.unwrap_or_default(), faults),
            RejectionStyle::Patch(patch) => ApiError::invalid_patch(patch, faults),
        })
    }

    /// What is to be told, of the client's own doing and by webhooks.
    pub(in crate::apiserver) fn told(self) -> Remarks {
        let Self { mut list, remarks, .. } = self;
        list.extend(remarks.warnings);
        Remarks { warnings: list, annotations: remarks.annotations }
    }
}

/// The defaults of the schema would make too much of an object.
fn overfilled(resource: &ServedResource, name: &str) -> ApiError {
    let message = format!(
        "the defaults of its schema would add more than {} bytes or {} values to the object: it must have fewer items \
         that lack what has a default, or the CustomResourceDefinition smaller defaults",
        defaults::BYTES_MAX,
        defaults::VALUES_MAX
    );
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message).about(resource, name)
}
