//! Create, update, patch and apply: from a client's request to one change in the store.
//!
//! One pipeline for all: a draft of the object is made, prepared and checked (`write_strategy`), and written on the condition
//! that nothing changed meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;

use super::apply::manager::{self, ManagedFieldsEntry};
use super::managed_fields;
use super::patch::RequestPatch;
use super::seal;
use super::write_strategy::{self, Managers, ObjectDraft, Old, RejectionStyle, Warnings};
use crate::api::StoragePolicy;
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::kinds::resource::{Conversion, ServedResource};
use crate::apiserver::objects::meta;
use crate::apiserver::requests::body::{self, parse_body};
use crate::apiserver::requests::options::{self, WriteRequest};
use crate::apiserver::requests::request_context::RequestContext;
use crate::apiserver::shares::blocking;
use crate::apiserver::webhooks::{self, Manner, PreparedWrite, Remarks, converting};
use crate::apiserver::{ApiServer, auth, crd};
use crate::store::{Expect, Mutation, Object, StoreWriteError};

mod preconditions;

pub(in crate::apiserver) use preconditions::check_type;

use preconditions::{check_kind, check_namespace, check_revision, check_uid, revision_of};

/// How long a change that names no revision is tried when others write at the same time.
const PATIENCE: Duration = Duration::from_secs(30);
/// Tries of a change that webhooks are asked about each time.
const QUESTIONS_MAX: usize = 5;
/// Tries of a generated name.
const NAME_ATTEMPTS: usize = 8;

/// What a write ended with.
#[derive(Debug)]
pub(in crate::apiserver) struct WriteOutcome {
    /// The object as it is stored now, or would be.
    pub object: Arc<Object>,
    /// Whether it is new.
    pub created: bool,
    /// For `Warning` headers and the audit log.
    pub remarks: Remarks,
}

impl ApiServer {
    /// Makes one change, in memory for views and on disk for the rest.
    pub(in crate::apiserver) async fn commit(
        &self,
        resource: &ServedResource,
        change: Mutation,
    ) -> Result<Arc<Object>, StoreWriteError> {
        let gone = change.value.is_none();
        let written = match resource.policy {
            _ if crd::is_definition(resource) => self.commit_definition(change).await,
            _ if resource.group == webhooks::kinds::GROUP => self.commit_configuration(change).await,
            StoragePolicy::View => self.store().publish(change).await,
            StoragePolicy::Durable
            | StoragePolicy::Administrative
            | StoragePolicy::Internal
            | StoragePolicy::Review => self.store().write(change).await,
        };
        if let Ok(object) = &written {
            self.note_owners(object, gone);
        }
        written
    }

    /// Has the collection of orphans know of a change that was made.
    pub(in crate::apiserver) fn note_owners(&self, object: &Object, gone: bool) {
        if self.owner_graph().changed(object, gone) {
            self.wake_sweeper();
        }
    }
}

/// Creates the object of the body.
pub(in crate::apiserver) async fn create(context: &RequestContext<'_>, body: Bytes) -> Result<WriteOutcome, ApiError> {
    context.require_writable()?;
    if context.target.name.is_some() || (context.resource.namespaced && context.target.namespace.is_none()) {
        return Err(ApiError::method_not_allowed("the server does not allow this method on the requested resource"));
    }
    let dry_run = options::check(context, WriteRequest::Create)?;
    let (draft, warnings) = of_body(context, &body).await?;
    if revision_of(&draft.value).is_some() {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    insert(context, draft, warnings, dry_run).await
}

/// Replaces the object by that of the body.
pub(in crate::apiserver) async fn update(context: &RequestContext<'_>, body: Bytes) -> Result<WriteOutcome, ApiError> {
    context.require_writable()?;
    let dry_run = options::check(context, WriteRequest::Update)?;
    let (draft, warnings) = of_body(context, &body).await?;
    let ObjectDraft { value, managers: Managers::Track(sent), .. } = draft else {
        return Err(ApiError::internal("an update is no apply"));
    };
    if value["metadata"]["name"].as_str().unwrap_or_default().is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            context.name()?
        )));
    }
    let make = |_: Option<&CurrentObject>| Ok(ObjectDraft::new(value.clone(), Managers::Track(sent.clone())));
    change(context, warnings, WriteRequest::Update, dry_run, make).await
}

/// Patches the object, or applies a configuration to it.
pub(in crate::apiserver) async fn patch(context: &RequestContext<'_>, body: Bytes) -> Result<WriteOutcome, ApiError> {
    context.require_writable()?;
    let content_type = body::content_type(context.headers);
    if content_type == APPLY {
        return apply(context, &body).await;
    }
    let (patch, rejection_style) = read(context, &body, || {
        let patch = RequestPatch::parse(context.resource, &content_type, &body)?;
        let rejection_style = patch.rejection_style();
        Ok((patch, rejection_style))
    })
    .await?;
    let dry_run = options::check(context, WriteRequest::Patch)?;
    let mut warnings = Warnings::new(context, rejection_style);
    warnings.duplicates(patch.duplicates())?;
    change(context, warnings, WriteRequest::Patch, dry_run, |live| {
        let live = live.ok_or_else(|| ApiError::internal("there is nothing to patch"))?;
        let mut value = live.whole(context.resource);
        patch.apply(context.resource, &mut value)?;
        check_type(context.resource, &mut value)?;
        let sent = managed_fields::extract_sent(&mut value)?;
        Ok(ObjectDraft::new(value, Managers::Track(sent)))
    })
    .await
}

/// Media type of a configuration to apply.
pub(in crate::apiserver) const APPLY: &str = "application/apply-patch+yaml";

/// Applies a configuration; the object is made when it is not there.
async fn apply(context: &RequestContext<'_>, body: &[u8]) -> Result<WriteOutcome, ApiError> {
    let dry_run = options::check(context, WriteRequest::Apply)?;
    let (parsed, fault) = read(context, body, || {
        let parsed = body::parse_config(body)?;
        let fault = if parsed.duplicates.is_empty() { None } else { body::duplicate_in_yaml(body) };
        Ok((parsed, fault))
    })
    .await?;
    let mut warnings = Warnings::new(context, RejectionStyle::Object);
    if let Some(fault) = fault {
        warnings.duplicate_in_yaml(fault)?;
    }
    let mut config = parsed.value;
    check_config(context.resource, &config)?;
    let sealed = seal::take(context, &mut config, context.name()?)?;
    let force = context.params.force.unwrap_or(false);
    change(context, warnings, WriteRequest::Apply, dry_run, |live| {
        let old = live.map(CurrentObject::parts);
        let applied = managed_fields::applied(context, old, &config, force)?;
        let value = match (applied.object, live) {
            (Some(value), _) => value,
            (None, Some(live)) => live.value.clone(),
            (None, None) => config.clone(),
        };
        if let (None, Some(uid)) = (live, value["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty())) {
            let uid = crate::apiserver::answers::status::shorten(uid, 64);
            return Err(ApiError::conflict(
                context.resource,
                context.name()?,
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found"),
            ));
        }
        Ok(ObjectDraft { sealed: sealed.clone(), ..ObjectDraft::new(value, Managers::Applied(applied.managers)) })
    })
    .await
}

/// A configuration names its kind and leaves the managers to the server.
fn check_config(resource: &ServedResource, config: &Value) -> Result<(), ApiError> {
    let text = |field: &str| crate::apiserver::answers::status::shorten(config[field].as_str().unwrap_or_default(), 64);
    let (version, kind) = (text("apiVersion"), text("kind"));
    if version != resource.api_version() || kind != resource.kind {
        let slash = if version.contains('/') { "" } else { "/" };
        return Err(ApiError::bad_request(format!("invalid object type: {slash}{version}, Kind={kind}")));
    }
    if !config["metadata"]["managedFields"].is_null() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    Ok(())
}

/// Reads a body, in its caller's turn when it is long.
pub(in crate::apiserver) async fn read<T>(
    context: &RequestContext<'_>,
    body: &[u8],
    read: impl FnOnce() -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let long = body.len() >= blocking::LONG_FROM;
    let _turn = context.turn(long).await;
    blocking::in_place_if(long, read)
}

/// The object of a body and what is to be warned of.
async fn of_body(context: &RequestContext<'_>, body: &[u8]) -> Result<(ObjectDraft, Warnings), ApiError> {
    let parse = || {
        if context.identity.is_in_process() {
            body::parse_own(context.headers, body)
        } else {
            parse_body(context.headers, body)
        }
    };
    let parsed = read(context, body, parse).await?;
    let mut warnings = Warnings::new(context, RejectionStyle::Object);
    warnings.duplicates(&parsed.duplicates)?;
    let mut value = parsed.value;
    if body::too_deep(&value) {
        return Err(ApiError::bad_request("the object is nested too deeply"));
    }
    check_type(context.resource, &mut value)?;
    let sent = managed_fields::extract_sent(&mut value)?;
    Ok((ObjectDraft::new(value, Managers::Track(sent)), warnings))
}

/// Writes a new object.
async fn insert(
    context: &RequestContext<'_>,
    mut draft: ObjectDraft,
    mut warnings: Warnings,
    dry_run: bool,
) -> Result<WriteOutcome, ApiError> {
    let resource = context.resource;
    seal::strip(resource, &mut draft.value);
    let given = context.own_place(meta::read(&draft.value)?)?;
    let generated = match (&given.name, &given.generate_name) {
        (None, Some(prefix)) if !prefix.is_empty() => Some(prefix.clone()),
        _ => None,
    };
    // Before anybody waits for this one.
    let mut ready = crd::ready(context, &draft.value, None).await?;
    let (into, named) = (given.namespace.clone().unwrap_or_default(), given.name.clone().unwrap_or_default());
    let may_come = || {
        check_kind(context)?;
        crd::check_room(context.api, resource)?;
        if resource.namespaced { check_namespace(context, &into, &named) } else { Ok(()) }
    };
    may_come()?;
    let namespace = context.target.namespace.clone().unwrap_or_default();
    write_strategy::drop_new_status(resource, &mut draft.value);
    let mut once = Some(draft);
    let mut meta = given;
    meta::set_new(&mut meta, resource);
    let long = context.is_long(0);
    let manner = Manner { dry_run, long, generated: generated.is_some() };
    let mut attempt = 1;
    loop {
        if let Some(prefix) = &generated {
            meta.name = Some(meta::generate_name(prefix));
        }
        // It is needed again where another name may have to be made.
        let draft = if generated.is_some() { once.clone() } else { once.take() };
        let mut draft = draft.ok_or_else(|| ApiError::internal("an object is made once"))?;
        draft.seal(context, meta.name.as_deref().unwrap_or_default())?;
        let sealed = std::mem::take(&mut draft.sealed);
        let prepared =
            webhooks::prepare(context, draft, meta.clone(), None, &mut warnings, manner, ready.take()).await?;
        let PreparedWrite { value, mut managers, turn, _ready, .. } = prepared;
        drop(turn);
        let secret = seal::secret_of(context, &sealed, &value, None)?;
        let value = converting::stored(context.api, resource, value).await?;
        // Held until the write is done, so that a namespace cannot end in between. Nobody waits for a turn meanwhile: the end of
        // a namespace waits for this, and everybody else's creations for that.
        let _gate = context.api.namespace_gate().read().await;
        may_come()?;
        let name = value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let outcome = loop {
            let stored = blocking::in_place_if(long, || {
                let mut stored = resource.to_stored_over(value.clone(), || None, false);
                managed_fields::insert(&mut stored, &mut managers);
                stored
            });
            let outcome = if dry_run {
                match context.api.store().get(&resource.storage, &namespace, &name) {
                    Some(_) => Err(StoreWriteError::Exists),
                    None => unwritten(context, &namespace, &name, &stored),
                }
            } else {
                let change = Mutation {
                    resource: Arc::clone(&resource.storage),
                    namespace: namespace.clone(),
                    name: name.clone(),
                    expect: Expect::Absent,
                    value: Some(stored),
                };
                seal::commit(context.api, resource, secret.clone(), change).await
            };
            // Rather an object without its managers than none.
            match outcome {
                Err(StoreWriteError::TooLarge { .. }) if !managers.is_empty() => managers.clear(),
                outcome => break outcome,
            }
        };
        match outcome {
            Ok(object) => return Ok(WriteOutcome { object, created: true, remarks: warnings.told() }),
            Err(StoreWriteError::Exists) => {
                if generated.is_none() {
                    return Err(ApiError::exists(resource, &name));
                }
                attempt += 1;
                if attempt > NAME_ATTEMPTS {
                    let mut error = ApiError::exists(resource, &name);
                    error.message.push_str(", the server was not able to generate a unique name for the object");
                    error.details["retryAfterSeconds"] = 1.into();
                    return Err(error);
                }
                ready = _ready;
            }
            Err(error) => return Err(ApiError::from_write(&error, resource, &name)),
        }
    }
}

/// The object that a change is made of.
pub(in crate::apiserver) struct CurrentObject {
    object: Arc<Object>,
    /// As this version serves it, without `managedFields`.
    pub(in crate::apiserver) value: Value,
    managers: Vec<ManagedFieldsEntry>,
}

impl CurrentObject {
    fn new(resource: &ServedResource, object: Arc<Object>) -> Self {
        let mut value = resource.served(object.value());
        let managers = managed_fields::extract_stored(&mut value);
        Self { object, value, managers }
    }

    /// The object without its managers, and its managers.
    pub(in crate::apiserver) fn parts(&self) -> (&Value, &[ManagedFieldsEntry]) {
        (&self.value, &self.managers)
    }

    /// With `managedFields`, as clients see it.
    fn whole(&self, resource: &ServedResource) -> Value {
        resource.served(self.object.value())
    }
}

/// Changes one object: `make` gives the new form from the old one and may be asked again.
pub(in crate::apiserver) async fn change(
    context: &RequestContext<'_>,
    mut warnings: Warnings,
    write: WriteRequest,
    dry_run: bool,
    make: impl Fn(Option<&CurrentObject>) -> Result<ObjectDraft, ApiError> + Send + Sync,
) -> Result<WriteOutcome, ApiError> {
    let resource = context.resource;
    let name = context.name()?;
    let namespace = context.target.namespace.clone().unwrap_or_default();
    let started = Instant::now();
    let mut with_managers = true;
    let mut questions = 0;
    while questions < QUESTIONS_MAX && started.elapsed() < PATIENCE {
        let Some(current) = context.api.store().get(&resource.storage, &namespace, name) else {
            if !creates(context, write) {
                return Err(ApiError::not_found(resource, name));
            }
            context
                .api
                .auth()
                .authorize(Some(context.identity), &auth::attributes("create", context.target, context.params, ""))?;
            return insert(context, make(None)?, warnings, dry_run).await;
        };
        let long = context.is_long(current.json_len());
        let migrates = stored_in_old_version(resource, &current);
        let current = converting::served_one(context.api, resource, current).await?;
        let turn = context.turn(long).await;
        let (live, old_meta, mut draft) = blocking::in_place_if(long, || {
            let live = CurrentObject::new(resource, current);
            let old_meta = meta::read(&live.value)?;
            let mut draft = make(Some(&live))?;
            draft.seal(context, name)?;
            Ok::<_, ApiError>((live, old_meta, draft))
        })?;
        drop(turn);
        let mut new_meta = context.own_place(meta::read(&draft.value)?)?;
        let named_revision = check_revision(context, &new_meta, &live.object, write)?;
        check_uid(resource, &new_meta, &old_meta, write)?;
        meta::set_kept(&mut new_meta, &old_meta);
        let old = Old { value: &live.value, meta: &old_meta, managers: &live.managers };
        let ready = crd::ready(context, &draft.value, Some(&live.value)).await?;
        let manner = Manner { dry_run, long, generated: false };
        let sealed = std::mem::take(&mut draft.sealed);
        let prepared = webhooks::prepare(context, draft, new_meta, Some(&old), &mut warnings, manner, ready).await?;
        let PreparedWrite { mut value, mut managers, asked, turn, _ready } = prepared;
        questions += usize::from(asked);
        let secret = seal::secret_of(context, &sealed, &value, Some(&live.value))?;
        let secret = secret.filter(|_| !dry_run && !ends_now(&value));
        let shaped = blocking::in_place_if(long, || {
            value["metadata"]["resourceVersion"] = live.value["metadata"]["resourceVersion"].clone();
            // A manager's time alone is no change.
            if value == live.value && manager::same(&managers, &live.managers) && !migrates {
                return None;
            }
            let is_status = context.target.subresource.as_deref() == Some("status");
            let ends = ends_now(&value);
            let managed = !managers.is_empty();
            if !with_managers {
                managers.clear();
            }
            let mut stored = resource.to_stored_over(value, || Some(live.object.value()), is_status);
            managed_fields::insert(&mut stored, &mut managers);
            Some((stored, ends, managed && with_managers))
        });
        drop(turn);
        let Some((stored, ends, managed)) = shaped else {
            if !seal::commit_alone(context, secret).await? {
                continue;
            }
            return Ok(WriteOutcome { object: live.object, created: false, remarks: warnings.told() });
        };
        let stored = converting::stored(context.api, resource, stored).await?;
        match commit_change(context, &live.object, secret, (stored, ends), dry_run).await {
            Ok(object) => return Ok(WriteOutcome { object, created: false, remarks: warnings.told() }),
            Err(StoreWriteError::Conflict { .. }) if !named_revision => {}
            Err(StoreWriteError::NotFound) if creates(context, write) => {}
            // Rather an object without its managers than none.
            Err(StoreWriteError::TooLarge { .. }) if write != WriteRequest::Apply && managed => with_managers = false,
            Err(error) => return Err(ApiError::from_write(&error, resource, name)),
        }
    }
    Err(ApiError::stale(resource, name))
}

async fn commit_change(
    context: &RequestContext<'_>,
    current: &Object,
    secret: Option<Mutation>,
    (stored, ends): (Value, bool),
    dry_run: bool,
) -> Result<Arc<Object>, StoreWriteError> {
    let Object { namespace, name, revision, .. } = current;
    if dry_run {
        return unwritten(context, namespace, name, &stored);
    }
    let change = Mutation {
        resource: Arc::clone(&context.resource.storage),
        namespace: namespace.clone(),
        name: name.clone(),
        expect: Expect::Revision(*revision),
        value: (!ends).then_some(stored),
    };
    seal::commit(context.api, context.resource, secret, change).await
}

/// Whether a request makes the object when it is not there: what is applied always, and some kinds by an update.
fn creates(context: &RequestContext<'_>, write: WriteRequest) -> bool {
    if context.target.subresource.is_some() {
        return false;
    }
    let by_update = ["Event", "Lease", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"];
    match write {
        WriteRequest::Apply => true,
        WriteRequest::Update => context.resource.core && by_update.contains(&context.resource.kind.as_str()),
        WriteRequest::Create | WriteRequest::Patch => false,
    }
}

/// Whether the object is being deleted and nothing holds it any longer.
fn ends_now(value: &Value) -> bool {
    let meta = &value["metadata"];
    let held = |list: &Value| list.as_array().is_some_and(|entries| !entries.is_empty());
    let occupied = value["kind"] == "Namespace" && held(&value["spec"]["finalizers"]);
    !meta["deletionTimestamp"].is_null() && !held(&meta["finalizers"]) && !occupied
}

/// An object that a dry run does not write.
fn unwritten(
    context: &RequestContext<'_>,
    namespace: &str,
    name: &str,
    value: &Value,
) -> Result<Arc<Object>, StoreWriteError> {
    let (storage, revision) = (Arc::clone(&context.resource.storage), context.api.store().revision());
    Object::new(storage, namespace.to_owned(), name.to_owned(), revision, value.to_string().as_bytes())
        .map(Arc::new)
        .map_err(|_| StoreWriteError::Malformed("it cannot be written as JSON"))
}

/// Whether the object is stored in another version than it would be now: then a write that changes nothing else is
/// made all the same, which is how objects are migrated.
fn stored_in_old_version(resource: &ServedResource, object: &Object) -> bool {
    match &resource.conversion {
        Some(Conversion::Version { stored } | Conversion::Webhook { stored, .. }) => {
            object.value()["apiVersion"] != **stored
        }
        _ => false,
    }
}
