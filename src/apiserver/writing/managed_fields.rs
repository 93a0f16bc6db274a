//! Field managers of the requests that write: where the rules of [`apply`](super::apply) are asked.

use std::sync::Arc;

use http::{StatusCode, header};
use serde_json::{Value, json};

use super::apply::manager::{self, ManagedFieldsEntry, Manager, ManagerOperation};
use super::apply::set::Set;
use super::apply::update::{self, ApplyConflict, ApplyFault, ApplyResult, VersionedObject};
use super::apply::{markers, typed};
use crate::apiserver::answers::status::{ApiError, shorten};
use crate::apiserver::kinds::resource::{Conversion, ServedResource};
use crate::apiserver::objects::meta;
use crate::apiserver::requests::request_context::RequestContext;
use crate::apiserver::schema::MergeType;

/// The annotation in which `kubectl apply` without `--server-side` keeps what it applied.
pub(super) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager for which that annotation is honoured.
const KUBECTL: &str = "kubectl";
/// Manager of writes of this process.
const OWN: &str = "slipway";
/// Managers that a client may send, which sends what it read: those who apply, and those who write.
const SENT_MAX: usize = 2 * manager::MANAGERS_MAX;
/// Conflicts listed in one answer.
const CONFLICTS_MAX: usize = 256;
/// Letters of the field of one of them.
const FIELD_SHOWN: usize = 512;

/// `managedFields` as the client sent them.
#[derive(Clone, Debug)]
pub(in crate::apiserver) enum SentManagedFields {
    /// Not at all.
    Nothing,
    /// Empty: they are to be forgotten.
    Reset,
    /// These.
    Entries(Vec<ManagedFieldsEntry>),
}

/// Takes `managedFields` out of an object.
pub(in crate::apiserver) fn extract_sent(object: &mut Value) -> Result<SentManagedFields, ApiError> {
    let meta = object.get_mut("metadata").and_then(Value::as_object_mut);
    match meta.and_then(|meta| meta.remove("managedFields")) {
        None | Some(Value::Null) => Ok(SentManagedFields::Nothing),
        Some(Value::Array(entries)) if entries.is_empty() => Ok(SentManagedFields::Reset),
        Some(Value::Array(entries)) if entries == [json!({})] => Ok(SentManagedFields::Reset),
        Some(Value::Array(entries)) if entries.len() > SENT_MAX => Err(ApiError::bad_request(format!(
            "metadata cannot be read: managedFields: {}: must have at most {SENT_MAX} items",
            entries.len()
        ))),
        // What cannot be read is passed over, as upstream does.
        Some(list @ Value::Array(_)) => {
            Ok(manager::decode(&list).map_or(SentManagedFields::Nothing, SentManagedFields::Entries))
        }
        Some(_) => Err(ApiError::bad_request("metadata cannot be read: managedFields: not a list")),
    }
}

/// Takes the managers out of an object that was stored.
pub(super) fn extract_stored(object: &mut Value) -> Vec<ManagedFieldsEntry> {
    let meta = object.get_mut("metadata").and_then(Value::as_object_mut);
    meta.and_then(|meta| meta.remove("managedFields")).and_then(|list| manager::decode(&list)).unwrap_or_default()
}

/// Puts managers into an object.
pub(in crate::apiserver) fn insert(object: &mut Value, entries: &mut [ManagedFieldsEntry]) {
    let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    if entries.is_empty() {
        meta.remove("managedFields");
    } else {
        meta.insert("managedFields".into(), manager::encode(entries));
    }
}

/// Paths that a request cannot change.
fn reset(resource: &ServedResource, subresource: &str) -> Set {
    match subresource {
        "" if resource.core && resource.kind == "Namespace" => Set::of_fields(&[&["spec"], &["status"]]),
        "" if resource.status => Set::of_fields(&[&["status"]]),
        "status" => Set::of_fields(&[&["metadata"], &["spec"]]),
        _ => Set::default(),
    }
}

/// An object without anything.
pub(in crate::apiserver) fn empty(resource: &ServedResource) -> Value {
    markers::empty(&resource.kind, resource.core, &resource.api_version())
}

/// Name of the manager that a request writes as.
fn name(context: &RequestContext<'_>) -> String {
    if !context.params.field_manager.is_empty() {
        return context.params.field_manager.clone();
    }
    let agent = context.headers.get(header::USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes()));
    match manager::name_of_agent(&agent.unwrap_or_default()) {
        name if !name.is_empty() => name,
        _ if context.identity.is_in_process() => OWN.into(),
        _ => "unknown".into(),
    }
}

/// Calls with what the rules need to know of a resource.
fn with_types<R>(context: &RequestContext<'_>, rules: impl FnOnce(&VersionedObject<'_>) -> R) -> R {
    let resource = context.resource;
    let convert = |value: &Value, version: &str| -> Option<(Value, Arc<ServedResource>)> {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let registry = context.api.registry();
        let other = registry.find(group, version, &resource.plural)?;
        if other.storage != resource.storage {
            return None;
        }
        let mut value = other.served(resource.to_stored(value.clone()));
        if matches!(other.conversion, Some(Conversion::Webhook { .. })) {
            // A webhook is not asked for the sake of managers: what they own is looked for by the same names.
            value["apiVersion"] = other.api_version().into();
        }
        Some((value, Arc::clone(other)))
    };
    let api_version = resource.api_version();
    let reset = reset(resource, context.target.subresource.as_deref().unwrap_or_default());
    rules(&VersionedObject { api_version: &api_version, schema: &resource.schema, convert: &convert, reset: &reset })
}

/// Managers of an object that a request creates or changes.
pub(super) fn tracked(
    context: &RequestContext<'_>,
    old: Option<(&Value, &[ManagedFieldsEntry])>,
    new: &Value,
    sent: &SentManagedFields,
) -> Vec<ManagedFieldsEntry> {
    let subresource = context.target.subresource.as_deref().unwrap_or_default();
    let entries = match sent {
        SentManagedFields::Reset if subresource.is_empty() => Vec::new(),
        SentManagedFields::Entries(entries) if subresource.is_empty() && !entries.is_empty() => entries.clone(),
        _ => old.map(|(_, entries)| entries.to_vec()).unwrap_or_default(),
    };
    // An object whose managers were forgotten stays without until something is applied to it.
    if entries.is_empty() && old.is_some() {
        return entries;
    }
    // Slipway's own events, of which a rack has very many: nobody else changes them.
    if context.identity.is_in_process() && context.resource.core && context.resource.kind == "Event" {
        return Vec::new();
    }
    let nothing = empty(context.resource);
    let before = old.map_or(&nothing, |(old, _)| old);
    with_types(context, |types| {
        update::updated(types, before, new, entries, &name(context), subresource, meta::now().0)
    })
}

/// A configuration that was applied to an object; `None` as the object when it stays as it is.
pub(in crate::apiserver) fn applied(
    context: &RequestContext<'_>,
    old: Option<(&Value, &[ManagedFieldsEntry])>,
    config: &Value,
    force: bool,
) -> Result<ApplyResult, ApiError> {
    let resource = context.resource;
    let who = Manager {
        name: context.params.field_manager.clone(),
        operation: ManagerOperation::Apply,
        api_version: resource.api_version(),
        subresource: context.target.subresource.clone().unwrap_or_default(),
    };
    let nothing = empty(resource);
    let (live, entries) = old.unwrap_or((&nothing, &[]));
    let apply = |force| {
        with_types(context, |types| {
            let request =
                update::ApplyRequest { live, empty: &nothing, config, managers: entries, manager: &who, force };
            update::applied(types, &request, meta::now().0)
        })
    };
    let mut outcome = apply(force);
    if who.name == KUBECTL
        && let Err(ApplyFault::Conflicts(conflicts)) = &outcome
    {
        // What `kubectl apply` set before and nobody changed since, it may set again.
        let allowed = of_last_applied(resource, live);
        let left: Vec<ApplyConflict> =
            conflicts.iter().filter(|conflict| !allowed.has(&conflict.path)).cloned().collect();
        outcome = if left.is_empty() { apply(true) } else { Err(ApplyFault::Conflicts(left)) };
    }
    let mut applied = outcome.map_err(|fault| refused(context, live, config, fault))?;
    if applied.managers.len() > manager::MANAGERS_MAX.max(entries.len()) {
        return Err(ApiError::bad_request(format!(
            "the object has too many field managers: at most {} are taken",
            manager::MANAGERS_MAX
        )));
    }
    if who.name == KUBECTL {
        keep_last_applied(live, config, &mut applied.object);
    }
    Ok(applied)
}

/// Fields that the last `kubectl apply` set and that are still as it set them.
fn of_last_applied(resource: &ServedResource, live: &Value) -> Set {
    let kind = MergeType::root(&resource.schema);
    live["metadata"]["annotations"][LAST_APPLIED]
        .as_str()
        .and_then(|text| serde_json::from_str::<Value>(text).ok())
        .filter(|config| config["apiVersion"] == resource.api_version() && typed::fault(kind, config, false).is_none())
        .map(|config| update::unchanged_since(kind, &config, live))
        .unwrap_or_default()
}

/// Where the annotation is kept, it follows what is applied.
fn keep_last_applied(live: &Value, config: &Value, object: &mut Option<Value>) {
    let annotation = |object: &Value| object["metadata"]["annotations"][LAST_APPLIED].as_str().map(str::to_owned);
    let Some(kept) = annotation(object.as_ref().unwrap_or(live)).filter(|kept| !kept.is_empty()) else { return };
    let mut config = config.clone();
    if let Some(annotations) = config["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
    let text = format!("{config}\n");
    if text == kept {
        return;
    }
    let mut changed = object.take().unwrap_or_else(|| live.clone());
    if let Some(annotations) = changed["metadata"]["annotations"].as_object_mut() {
        annotations.insert(LAST_APPLIED.into(), text.into());
        let size: usize = annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
        if size > meta::ANNOTATIONS_MAX {
            annotations.remove(LAST_APPLIED);
        }
    }
    *object = Some(changed);
}

/// The answer to a configuration that was not applied.
fn refused(context: &RequestContext<'_>, live: &Value, config: &Value, fault: ApplyFault) -> ApiError {
    match fault {
        ApplyFault::Type { applied, reason } => {
            let (what, object) = if applied { ("patch", config) } else { ("live", live) };
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            let resource = context.resource;
            let version =
                if resource.group.is_empty() { format!("/{}", resource.version) } else { resource.api_version() };
            let message = format!(
                "failed to create typed {what} object ({}/{}; {version}, Kind={}): {}",
                text("namespace"),
                text("name"),
                resource.kind,
                shorten(&reason, 4096)
            );
            // Upstream has neither a better code nor a reason for it.
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
        }
        ApplyFault::Conflicts(conflicts) => conflict(conflicts),
    }
}

/// The field of a conflict, as it is told.
fn shown(conflict: &ApplyConflict) -> String {
    shorten(&conflict.field(), FIELD_SHOWN)
}

/// 409 in the words of KEP-555.
fn conflict(mut conflicts: Vec<ApplyConflict>) -> ApiError {
    let key = |conflict: &ApplyConflict| {
        let Manager { name, operation, api_version, subresource } = &conflict.manager;
        (name.clone(), *operation, api_version.clone(), subresource.clone())
    };
    conflicts.sort_by_key(key);
    let count = conflicts.len();
    conflicts.truncate(CONFLICTS_MAX);
    let message = match conflicts.as_slice() {
        [one] => format!("Apply failed with 1 conflict: conflict with {}: {}", one.manager.shown(), shown(one)),
        many => {
            let mut lines = Vec::new();
            for group in many.chunk_by(|a, b| a.manager == b.manager) {
                lines.extend(group.first().map(|one| format!("conflicts with {}:", one.manager.shown())));
                lines.extend(group.iter().map(|one| format!("- {}", shown(one))));
            }
            format!("Apply failed with {count} conflicts: {}", lines.join("\n"))
        }
    };
    let causes: Vec<Value> = conflicts
        .iter()
        .map(|one| {
            json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {}", one.manager.shown()),
                "field": shown(one),
            })
        })
        .collect();
    let mut error = ApiError::new(StatusCode::CONFLICT, "Conflict", message);
    error.details = json!({ "causes": causes });
    error
}
