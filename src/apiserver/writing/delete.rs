//! Delete: preconditions, finalizers, propagation, and the end of namespaces.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::apiserver::answers::status::{ApiError, FieldError, FieldFault};
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::requests::body::parse_body;
use crate::apiserver::requests::options;

use crate::apiserver::objects::meta;
use crate::apiserver::requests::request_context::RequestContext;
use crate::apiserver::{AdmissionOperation, AdmissionRequest, ApiServer, UserIdentity};
use crate::store::{Expect, Mutation, Object, StoreWriteError};

/// Namespaces that stay.
pub(in crate::apiserver) const PERMANENT_NAMESPACES: [&str; 2] = ["default", "kube-system"];
/// Tries when others write at the same time.
const ATTEMPTS: usize = 16;

/// `metav1.DeleteOptions`, as far as they mean something here. There is no grace period to wait for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::apiserver) struct DeleteOptions {
    preconditions: Option<Preconditions>,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    dry_run: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// Asks others whether an object may go. Nothing is locked meanwhile, and it may be asked again of what the object became.
pub(in crate::apiserver) type DeleteQuestion<'q> =
    &'q (dyn Fn(Arc<Object>) -> BoxFuture<'q, Result<(), ApiError>> + Send + Sync);

/// What deleting ended with.
#[derive(Debug)]
pub(in crate::apiserver) enum Deleted {
    /// The object is gone; this was its last self.
    Gone(Arc<Object>),
    /// Finalizers hold it.
    Held(Arc<Object>),
}

impl Deleted {
    pub(in crate::apiserver) fn object(&self) -> &Arc<Object> {
        match self {
            Self::Gone(object) | Self::Held(object) => object,
        }
    }
}

impl DeleteOptions {
    /// Reads the options of a request: its body, or else its query.
    pub(in crate::apiserver) fn parse(context: &RequestContext<'_>, body: &Bytes) -> Result<Self, ApiError> {
        let mut options: Self = if body.iter().all(u8::is_ascii_whitespace) {
            Self { orphan_dependents: context.params.orphan_dependents, ..Self::default() }
        } else {
            let value = parse_body(context.headers, body)?.value;
            if !value.is_object() {
                return Err(ApiError::bad_request("the delete options are not an object"));
            }
            // Clients give whatever version the object has.
            if let Some(kind) = value.get("kind").filter(|kind| **kind != "DeleteOptions" && **kind != "") {
                let kind = crate::apiserver::answers::status::shorten(kind.as_str().unwrap_or_default(), 64);
                let version =
                    crate::apiserver::answers::status::shorten(value["apiVersion"].as_str().unwrap_or_default(), 64);
                return Err(ApiError::bad_request(format!(
                    "no kind {kind:?} is registered for version {version:?} among the options of a deletion: it must be \
                     DeleteOptions"
                )));
            }
            serde_json::from_value(value)
                .map_err(|error| ApiError::bad_request(format!("the delete options cannot be read: {error}")))?
        };
        if options.propagation_policy.is_none() {
            options.propagation_policy.clone_from(&context.params.propagation);
        }
        if options.dry_run.as_ref().is_none_or(Vec::is_empty) {
            options.dry_run = Some(context.params.dry_run.clone());
        }
        options.check()?;
        Ok(options)
    }

    /// Checks as upstream checks `DeleteOptions`.
    fn check(&self) -> Result<(), ApiError> {
        let mut errors = Vec::new();
        if let Some(policy) = &self.propagation_policy {
            let shown = crate::apiserver::answers::status::shorten(policy, 32);
            if self.orphan_dependents.is_some() {
                errors.push(FieldError::invalid(
                    "propagationPolicy",
                    &shown.clone().into(),
                    "orphanDependents and deletionPropagation cannot be both set",
                ));
            }
            if !["Background", "Foreground", "Orphan"].contains(&policy.as_str()) {
                let message = format!(
                    "Unsupported value: {shown:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
                );
                let path = "propagationPolicy".into();
                errors.push(FieldError { fault: FieldFault::NotSupported, path, message });
            }
        }
        options::dry_run(self.dry_run.as_deref().unwrap_or_default(), &mut errors);
        if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid_options("DeleteOptions", &errors)) }
    }

    /// Deletes the object with this uid only, and only as it was at this revision.
    pub(in crate::apiserver) fn of(uid: Option<&str>, revision: u64) -> Self {
        let preconditions = Preconditions { uid: uid.map(str::to_owned), resource_version: Some(revision.to_string()) };
        Self { preconditions: Some(preconditions), ..Self::default() }
    }

    /// The finalizer that the propagation policy asks for; `None` when it asks for nothing.
    fn propagation(&self) -> Option<Option<&'static str>> {
        match (self.propagation_policy.as_deref(), self.orphan_dependents) {
            (Some("Foreground"), _) => Some(Some(meta::FOREGROUND)),
            (Some("Orphan"), _) | (None, Some(true)) => Some(Some(meta::ORPHAN)),
            (Some("Background"), _) | (None, Some(false)) => Some(None),
            (None | Some(_), _) => None,
        }
    }

    /// As an object of `meta.k8s.io/v1`.
    pub(in crate::apiserver) fn as_object(&self) -> Value {
        let mut options = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"});
        if let Some(wanted) = &self.preconditions {
            let fields = [("uid", &wanted.uid), ("resourceVersion", &wanted.resource_version)];
            let given = fields.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value.clone()?.into())));
            options["preconditions"] = Value::Object(given.collect());
        }
        if let Some(policy) = &self.propagation_policy {
            options["propagationPolicy"] = policy.as_str().into();
        }
        if let Some(orphan) = self.orphan_dependents {
            options["orphanDependents"] = orphan.into();
        }
        if let Some(dry_run) = self.dry_run.as_ref().filter(|values| !values.is_empty()) {
            options["dryRun"] = json!(dry_run);
        }
        options
    }

    pub(super) fn is_dry_run(&self) -> bool {
        self.dry_run.as_ref().is_some_and(|values| !values.is_empty())
    }
}

/// The answer to a delete that ended at once.
pub(in crate::apiserver) fn success(resource: &ServedResource, object: &Object) -> Value {
    let mut details = json!({
        "name": object.name,
        "kind": resource.plural,
        "uid": object.metadata()["uid"],
    });
    if !resource.group.is_empty() {
        details["group"] = resource.group.clone().into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// The answer to a deletion of more than can be shown.
pub(in crate::apiserver) fn success_of_many(resource: &ServedResource) -> Value {
    let mut details = json!({ "kind": resource.plural });
    if !resource.group.is_empty() {
        details["group"] = resource.group.clone().into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

impl ApiServer {
    /// Deletes one object, or marks it for deletion when finalizers hold it. Asks the question of it as it is then, if there is
    /// one.
    pub(in crate::apiserver) async fn delete_object(
        &self,
        resource: &ServedResource,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
        identity: &UserIdentity,
        question: Option<DeleteQuestion<'_>>,
    ) -> Result<Deleted, ApiError> {
        let is_namespace = &*resource.storage == "/namespaces";
        if is_namespace && PERMANENT_NAMESPACES.contains(&name) {
            return Err(ApiError::forbidden(resource, name, "this namespace may not be deleted"));
        }
        let is_definition = crate::apiserver::crd::is_definition(resource);
        let dry_run = options.is_dry_run();
        for _ in 0..ATTEMPTS {
            let Some(current) = self.store().get(&resource.storage, namespace, name) else {
                return self.delete_unreadable(resource, namespace, name, options).await;
            };
            // An object may be many times its text, and more with its defaults: only who needs the whole reads it.
            let mut object_meta = meta::read(&json!({ "metadata": current.metadata() }))?;
            check_preconditions(resource, name, options, &object_meta, current.revision)?;
            if self.has_admission(resource) {
                let old = resource.served(current.value());
                let request = AdmissionRequest {
                    resource,
                    operation: AdmissionOperation::Delete,
                    status: false,
                    object: &old,
                    old: Some(&old),
                    identity,
                    rights: self.rights(identity),
                };
                let errors = self.admit(&request);
                if !errors.is_empty() {
                    return Err(ApiError::invalid(resource, name, &errors));
                }
            }
            if let Some(ask) = question {
                ask(Arc::clone(&current)).await?;
            }
            let before = object_meta.clone();
            let mut finalizers = object_meta.finalizers.take().unwrap_or_default();
            if let Some(wanted) = options.propagation() {
                finalizers.retain(|one| one != meta::ORPHAN && one != meta::FOREGROUND);
                finalizers.extend(wanted.map(str::to_owned));
            }
            if is_definition {
                crate::apiserver::crd::check_deletable(resource, &current)?;
                if object_meta.deletion_timestamp.is_none() {
                    finalizers.retain(|one| one != crate::apiserver::crd::FINALIZER);
                    finalizers.push(crate::apiserver::crd::FINALIZER.to_owned());
                }
            }
            let held = is_namespace || !finalizers.is_empty();
            object_meta.finalizers = (!finalizers.is_empty()).then_some(finalizers);
            let value = if held {
                if object_meta.deletion_timestamp.is_none() {
                    object_meta.deletion_timestamp = Some(meta::now());
                    object_meta.deletion_grace_period_seconds = Some(0);
                    object_meta.generation = object_meta.generation.map(|generation| generation + 1);
                }
                if before.deletion_timestamp.is_some() && object_meta == before {
                    return Ok(Deleted::Held(current));
                }
                let mut marked = current.value();
                meta::write(&mut marked, &object_meta)?;
                if is_namespace {
                    marked["status"]["phase"] = "Terminating".into();
                }
                if is_definition {
                    crate::apiserver::crd::set_terminating(&mut marked);
                }
                Some(marked)
            } else {
                None
            };
            if dry_run {
                let Some(marked) = value else { return Ok(Deleted::Gone(current)) };
                let (storage, text) = (Arc::clone(&resource.storage), marked.to_string());
                let marked =
                    Object::new(storage, namespace.to_owned(), name.to_owned(), current.revision, text.as_bytes())
                        .map_err(|error| ApiError::internal(error.to_string()))?;
                return Ok(Deleted::Held(Arc::new(marked)));
            }
            let change = Mutation {
                resource: Arc::clone(&resource.storage),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                expect: Expect::Revision(current.revision),
                value,
            };
            match self.commit(resource, change).await {
                Ok(object) if held => return Ok(Deleted::Held(object)),
                Ok(object) => return Ok(Deleted::Gone(object)),
                Err(StoreWriteError::Conflict { .. }) => {}
                Err(error) => return Err(ApiError::from_write(&error, resource, name)),
            }
        }
        Err(ApiError::stale(resource, name))
    }

    /// Why an object is not to be had.
    pub(in crate::apiserver) fn missing(&self, resource: &ServedResource, namespace: &str, name: &str) -> ApiError {
        if !self.store().is_unreadable(&resource.storage, namespace, name) {
            return ApiError::not_found(resource, name);
        }
        let message = format!(
            "{} \"{name}\" is damaged and cannot be read: restore a backup, or delete it by its name",
            resource.qualified()
        );
        ApiError::internal(message).about(resource, name)
    }

    /// Deletes an object of which nothing can be read, not even what holds it: it must be named without conditions.
    async fn delete_unreadable(
        &self,
        resource: &ServedResource,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        let missing = self.missing(resource, namespace, name);
        if missing.code == http::StatusCode::NOT_FOUND || options.preconditions.is_some() || options.is_dry_run() {
            return Err(missing);
        }
        // Whoever made a namespace of this name then would have what is in it.
        if &*resource.storage == "/namespaces" && !self.store().stored_in(name).is_empty() {
            return Err(ApiError::forbidden(
                resource,
                name,
                "it is damaged, and there are objects in it: delete these first",
            ));
        }
        tracing::warn!(resource = resource.plural, object = %crate::log::named(namespace, name), "deleting an object that cannot be read");
        let change = Mutation {
            resource: Arc::clone(&resource.storage),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            expect: Expect::Any,
            value: None,
        };
        let written = self.commit(resource, change).await;
        written.map(Deleted::Gone).map_err(|error| ApiError::from_write(&error, resource, name))
    }
}

fn check_preconditions(
    resource: &ServedResource,
    name: &str,
    options: &DeleteOptions,
    meta: &ObjectMeta,
    revision: u64,
) -> Result<(), ApiError> {
    let Some(wanted) = &options.preconditions else { return Ok(()) };
    let fail = |what: &str, wanted: &str, found: &str, guess: &str| {
        let wanted = crate::apiserver::answers::status::shorten(wanted, 64);
        let mut error = ApiError::conflict(resource, name, "");
        // Upstream names the kind here, not the resource.
        error.message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": the {what} in the precondition ({wanted}) does not match \
             the {what} in record ({found}). The object might have been {guess}",
            crate::apiserver::answers::status::qualify(&resource.kind, &resource.group)
        );
        error.details["kind"] = resource.kind.clone().into();
        Err(error)
    };
    if let Some(uid) = &wanted.uid
        && Some(uid) != meta.uid.as_ref()
    {
        return fail("UID", uid, meta.uid.as_deref().unwrap_or_default(), "deleted and then recreated");
    }
    if let Some(version) = &wanted.resource_version
        && *version != revision.to_string()
    {
        return fail("ResourceVersion", version, &revision.to_string(), "modified");
    }
    Ok(())
}
