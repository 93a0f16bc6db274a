//! Create, update and patch: from a client's object to one change in the store.
//!
//! One pipeline for all: the object is shaped (unknown fields pruned, defaults set, the server's fields filled in),
//! checked (schema, rules of the kind, admission), and written on the condition that nothing changed meanwhile.

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::body::{self, parse_body};
use super::registry::Resource;
use super::request::{self, FieldValidation};
use super::status::{ApiError, FieldError};
use super::{AdmissionRequest, ApiServer, Call, Operation, meta, patch};
use crate::api::Keep;
use crate::store::{Change, Expect, Object, WriteError};

/// Tries of a change that does not name a revision, when others write at the same time.
const ATTEMPTS: usize = 16;
/// Tries of a generated name.
const NAME_ATTEMPTS: usize = 8;
/// Warnings sent with one answer.
const WARNINGS_MAX: usize = 16;

/// What a write ended with.
#[derive(Debug)]
pub(super) struct Written {
    /// The object as it is stored now, or would be.
    pub object: Arc<Object>,
    /// Whether it is new.
    pub created: bool,
    /// For `Warning` headers.
    pub warnings: Vec<String>,
}

/// The object as this version serves it.
pub(super) fn served(resource: &Resource, stored: &Value) -> Value {
    match &resource.conversion {
        Some(conversion) => (conversion.from_stored)(stored),
        None => stored.clone(),
    }
}

impl ApiServer {
    /// Makes one change, in memory for views and on disk for the rest.
    pub(super) async fn commit(&self, resource: &Resource, change: Change) -> Result<Arc<Object>, WriteError> {
        let touches_owners = change.value.is_none()
            || change.value.as_ref().is_some_and(|value| {
                let meta = &value["metadata"];
                meta.get("ownerReferences").is_some() || meta.get("deletionTimestamp").is_some()
            });
        let written = match resource.keep {
            Keep::View => self.store().publish(change).await,
            Keep::Durable | Keep::Internal | Keep::Review => self.store().write(change).await,
        };
        if written.is_ok() && touches_owners {
            self.wake_sweeper();
        }
        written
    }
}

/// Creates the object of the body.
pub(super) async fn create(call: &Call<'_>, body: Bytes) -> Result<Written, ApiError> {
    let resource = call.resource;
    call.require_writable()?;
    if call.target.name.is_some() || (resource.namespaced && call.target.namespace.is_none()) {
        return Err(ApiError::method_not_allowed("the server does not allow this method on the requested resource"));
    }
    let parsed = parse_body(call.headers, &body)?;
    let dry_run = request::is_dry_run(&call.params.dry_run)?;
    let mut warnings = Warnings::new(call);
    warnings.duplicates(&parsed.duplicates)?;
    let mut value = parsed.value;
    check_type(resource, &mut value)?;
    let meta = own_place(call, meta::read(&value)?)?;
    if meta.resource_version.as_deref().is_some_and(|version| !version.is_empty() && version != "0") {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let generated = match (&meta.name, &meta.generate_name) {
        (None, Some(prefix)) if !prefix.is_empty() => Some(prefix.clone()),
        _ => None,
    };
    // Held until the write is done, so that a namespace cannot end in between.
    let _gate = call.api.namespace_gate().read().await;
    if resource.namespaced {
        check_namespace(call, meta.namespace.as_deref().unwrap_or_default())?;
    }
    for attempt in 1.. {
        let mut meta = meta.clone();
        if let Some(prefix) = &generated {
            meta.name = Some(meta::generate_name(prefix));
        }
        let name = meta.name.clone().unwrap_or_default();
        meta::set_new(&mut meta, resource);
        let mut value = value.clone();
        if resource.status
            && !resource.core
            && let Some(map) = value.as_object_mut()
        {
            map.remove("status");
        }
        let value = shape(call, value, meta, None, &mut warnings)?;
        let stored = to_stored(resource, value);
        let namespace = call.target.namespace.clone().unwrap_or_default();
        if dry_run {
            if call.api.store().get(&resource.storage, &namespace, &name).is_some() {
                return Err(ApiError::exists(resource, &name));
            }
            let object = unwritten(call, &namespace, &name, &stored)?;
            return Ok(Written { object, created: true, warnings: warnings.list });
        }
        let change = Change {
            resource: Arc::clone(&resource.storage),
            namespace,
            name: name.clone(),
            expect: Expect::Absent,
            value: Some(stored),
        };
        match call.api.commit(resource, change).await {
            Ok(object) => return Ok(Written { object, created: true, warnings: warnings.list }),
            Err(WriteError::Exists) if generated.is_some() && attempt < NAME_ATTEMPTS => {}
            Err(error) => return Err(ApiError::from_write(&error, resource, &name)),
        }
    }
    Err(ApiError::internal("no free name was found"))
}

/// Replaces the object by that of the body.
pub(super) async fn update(call: &Call<'_>, body: Bytes) -> Result<Written, ApiError> {
    call.require_writable()?;
    let parsed = parse_body(call.headers, &body)?;
    let mut warnings = Warnings::new(call);
    warnings.duplicates(&parsed.duplicates)?;
    let mut value = parsed.value;
    check_type(call.resource, &mut value)?;
    change(call, warnings, false, |_| Ok(value.clone())).await
}

/// Patches the object.
pub(super) async fn patch(call: &Call<'_>, body: Bytes) -> Result<Written, ApiError> {
    call.require_writable()?;
    let patch = patch::Patch::parse(call.resource, &body::content_type(call.headers), &body)?;
    change(call, Warnings::new(call), true, |old| {
        let mut new = old.clone();
        patch.apply(&mut new)?;
        check_type(call.resource, &mut new)?;
        Ok(new)
    })
    .await
}

/// Changes one object: `make` gives the new form from the old one and may be asked again.
async fn change(
    call: &Call<'_>,
    mut warnings: Warnings,
    is_patch: bool,
    make: impl Fn(&Value) -> Result<Value, ApiError> + Send + Sync,
) -> Result<Written, ApiError> {
    let resource = call.resource;
    let name = call.name()?;
    let namespace = call.target.namespace.clone().unwrap_or_default();
    let dry_run = request::is_dry_run(&call.params.dry_run)?;
    for attempt in 1.. {
        let current = call
            .api
            .store()
            .get(&resource.storage, &namespace, name)
            .ok_or_else(|| ApiError::not_found(resource, name))?;
        let old = served(resource, &current.value());
        let old_meta = meta::read(&old)?;
        let new = make(&old)?;
        let mut new_meta = own_place(call, meta::read(&new)?)?;
        let named_revision = check_revision(call, &new_meta, &current, is_patch)?;
        check_uid(resource, &new_meta, &old_meta)?;
        meta::set_kept(&mut new_meta, &old_meta);
        warnings.list.clear();
        let mut value = shape(call, new, new_meta, Some((&old, &old_meta)), &mut warnings)?;
        value["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        if value == old {
            return Ok(Written { object: current, created: false, warnings: warnings.list });
        }
        let ends = ends_now(&value);
        let stored = to_stored(resource, value);
        if dry_run {
            let object = unwritten(call, &namespace, name, &stored)?;
            return Ok(Written { object, created: false, warnings: warnings.list });
        }
        let write = Change {
            resource: Arc::clone(&resource.storage),
            namespace: namespace.clone(),
            name: name.to_owned(),
            expect: Expect::Revision(current.revision),
            value: (!ends).then_some(stored),
        };
        match call.api.commit(resource, write).await {
            Ok(object) => return Ok(Written { object, created: false, warnings: warnings.list }),
            Err(WriteError::Conflict { .. }) if !named_revision && attempt < ATTEMPTS => {}
            Err(error) => return Err(ApiError::from_write(&error, resource, name)),
        }
    }
    Err(ApiError::stale(resource, name))
}

/// Whether the object is being deleted and nothing holds it any longer.
fn ends_now(value: &Value) -> bool {
    let meta = &value["metadata"];
    let held = |list: &Value| list.as_array().is_some_and(|entries| !entries.is_empty());
    let occupied = value["kind"] == "Namespace" && held(&value["spec"]["finalizers"]);
    !meta["deletionTimestamp"].is_null() && !held(&meta["finalizers"]) && !occupied
}

/// An object that a dry run did not write.
pub(super) fn unwritten(call: &Call<'_>, namespace: &str, name: &str, value: &Value) -> Result<Arc<Object>, ApiError> {
    let (storage, revision) = (Arc::clone(&call.resource.storage), call.api.store().revision());
    Object::new(storage, namespace.to_owned(), name.to_owned(), revision, value.to_string().into())
        .map(Arc::new)
        .map_err(|error| ApiError::internal(error.to_string()))
}

fn to_stored(resource: &Resource, value: Value) -> Value {
    match &resource.conversion {
        Some(conversion) => (conversion.to_stored)(value),
        None => value,
    }
}

/// The body must be an object of the kind that the path names. Core kinds may leave it out.
pub(super) fn check_type(resource: &Resource, value: &mut Value) -> Result<(), ApiError> {
    let Some(map) = value.as_object_mut() else {
        return Err(ApiError::bad_request("the object provided is unrecognized: not an object"));
    };
    for (field, wanted) in [("apiVersion", resource.api_version()), ("kind", resource.kind.clone())] {
        match map.get(field).and_then(Value::as_str) {
            None | Some("") if resource.core => {
                map.insert(field.into(), wanted.into());
            }
            Some(found) if found == wanted => {}
            found => {
                let found = super::status::shorten(found.unwrap_or_default(), 64);
                return Err(ApiError::bad_request(format!(
                    "{field} in the data ({found}) does not match the expected {field} ({wanted})"
                )));
            }
        }
    }
    Ok(())
}

/// Name and namespace of the body must be those of the path; where the body is silent, the path speaks.
fn own_place(call: &Call<'_>, mut meta: ObjectMeta) -> Result<ObjectMeta, ApiError> {
    let given = meta.namespace.take().filter(|namespace| !namespace.is_empty());
    let wanted = call.target.namespace.as_ref().filter(|_| call.resource.namespaced);
    if let (Some(given), Some(wanted)) = (&given, wanted)
        && given != wanted
    {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    meta.namespace = wanted.cloned();
    meta.name = meta.name.filter(|name| !name.is_empty());
    if let Some(name) = &call.target.name {
        match &meta.name {
            Some(given) if given != name => {
                return Err(ApiError::bad_request(format!(
                    "the name of the object ({}) does not match the name on the URL ({name})",
                    super::status::shorten(given, 253)
                )));
            }
            _ => meta.name = Some(name.clone()),
        }
    }
    Ok(meta)
}

/// The revision that the client expects; whether it named one.
fn check_revision(call: &Call<'_>, meta: &ObjectMeta, current: &Object, is_patch: bool) -> Result<bool, ApiError> {
    let given = meta.resource_version.as_deref().filter(|version| !version.is_empty() && *version != "0");
    match given {
        Some(given) if given == current.revision.to_string() => Ok(!is_patch),
        Some(_) => Err(ApiError::stale(call.resource, &current.name)),
        None if is_patch || call.resource.core => Ok(false),
        None => Err(ApiError::invalid(
            call.resource,
            &current.name,
            &[FieldError::invalid("metadata.resourceVersion", &Value::from(0), "must be specified for an update")],
        )),
    }
}

fn check_uid(resource: &Resource, new: &ObjectMeta, old: &ObjectMeta) -> Result<(), ApiError> {
    match (&new.uid, &old.uid) {
        (Some(new_uid), Some(old_uid)) if !new_uid.is_empty() && new_uid != old_uid => Err(ApiError::conflict(
            resource,
            old.name.as_deref().unwrap_or_default(),
            format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {old_uid}",
                super::status::shorten(new_uid, 64)
            ),
        )),
        _ => Ok(()),
    }
}

fn check_namespace(call: &Call<'_>, namespace: &str) -> Result<(), ApiError> {
    let missing = || {
        let message = format!("namespaces \"{namespace}\" not found");
        let mut error = ApiError::new(http::StatusCode::NOT_FOUND, "NotFound", message);
        error.details = serde_json::json!({"name": namespace, "kind": "namespaces"});
        error
    };
    let found = call.api.store().get("/namespaces", "", namespace).ok_or_else(missing)?;
    if found.is_ending() {
        return Err(ApiError::forbidden(
            call.resource,
            "",
            format!("unable to create new content in namespace {namespace} because it is being terminated"),
        ));
    }
    Ok(())
}

/// Prunes, completes and checks an object.
fn shape(
    call: &Call<'_>,
    mut new: Value,
    mut meta: ObjectMeta,
    old: Option<(&Value, &ObjectMeta)>,
    warnings: &mut Warnings,
) -> Result<Value, ApiError> {
    let resource = call.resource;
    let name = meta.name.clone().unwrap_or_default();
    if body::too_deep(&new) {
        return Err(ApiError::bad_request("the object is nested too deeply"));
    }
    if resource.core {
        resource.schema.drop_nulls(&mut new);
    }
    let unknown = resource.schema.prune(&mut new);
    warnings.unknown(&unknown)?;
    let is_status = call.target.subresource.is_some();
    if let Some((old, old_meta)) = old {
        if is_status {
            // Only the status is taken; the rest stays as it was.
            let status = new.get_mut("status").map(Value::take);
            new = old.clone();
            set_or_remove(&mut new, "status", status);
            meta = old_meta.clone();
            meta.resource_version = None;
        } else if resource.status {
            set_or_remove(&mut new, "status", old.get("status").cloned());
        }
    }
    resource.schema.apply_defaults(&mut new);
    if let Some((old, old_meta)) = old
        && !resource.core
        && !is_status
        && differs(&new, old, resource.status)
    {
        meta.generation = Some(old_meta.generation.unwrap_or(0) + 1);
    }
    let mut errors = meta::validate(resource, &meta, old.map(|(_, meta)| meta));
    meta::write(&mut new, &meta)?;
    if let Some(prepare) = resource.prepare {
        prepare(&mut new, old.map(|(old, _)| old), &mut errors);
    }
    // What this request does not write was checked when it was written.
    let mine = |error: &FieldError| {
        let on_status =
            error.path == "status" || error.path.starts_with("status.") || error.path.starts_with("status[");
        !resource.status || on_status == is_status
    };
    errors.extend(resource.schema.validate(&new).into_iter().filter(mine));
    if errors.is_empty() {
        let request = AdmissionRequest {
            resource,
            operation: if old.is_some() { Operation::Update } else { Operation::Create },
            status: is_status,
            object: &new,
            old: old.map(|(old, _)| old),
            identity: call.identity,
        };
        errors = call.api.admit(&request);
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid(resource, &name, &errors));
    }
    call.api.auth().check_escalation(call.identity, resource, &new, old.map(|(old, _)| old))?;
    Ok(new)
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
    let relevant = |value: &Value| -> Option<serde_json::Map<String, Value>> {
        let mut map = value.as_object()?.clone();
        map.remove("metadata");
        if ignore_status {
            map.remove("status");
        }
        Some(map)
    };
    relevant(new) != relevant(old)
}

/// Warnings of one request, or the error when the client wants none.
struct Warnings {
    validation: FieldValidation,
    version: String,
    kind: String,
    list: Vec<String>,
}

impl Warnings {
    fn new(call: &Call<'_>) -> Self {
        Self {
            validation: call.params.field_validation,
            version: call.resource.version.clone(),
            kind: call.resource.kind.clone(),
            list: Vec::new(),
        }
    }

    fn duplicates(&mut self, fields: &[String]) -> Result<(), ApiError> {
        self.note("duplicate field", fields)
    }

    fn unknown(&mut self, fields: &[String]) -> Result<(), ApiError> {
        self.note("unknown field", fields)
    }

    fn note(&mut self, what: &str, fields: &[String]) -> Result<(), ApiError> {
        let notes = fields.iter().map(|field| format!("{what} {field:?}"));
        match self.validation {
            _ if fields.is_empty() => Ok(()),
            FieldValidation::Ignore => Ok(()),
            FieldValidation::Warn => {
                self.list.extend(notes);
                self.list.truncate(WARNINGS_MAX);
                Ok(())
            }
            FieldValidation::Strict => Err(ApiError::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
                notes.collect::<Vec<_>>().join(", "),
                kind = self.kind,
                version = self.version,
            ))),
        }
    }
}
