//! Requests that delete: one object, or all that are selected. Webhooks are asked about each.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::delete::{DeleteOptions, Deleted};
use crate::api::StoragePolicy;
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::requests::request_context::RequestContext;
use crate::apiserver::webhooks::{Remarks, WebhookDeletion};
use crate::store::Object;

/// Text of what a deletion of many shows, in bytes. What it shows is in memory for it alone.
const SHOWN_MAX: usize = 16 << 20;

/// Deletes the object of the path.
pub(in crate::apiserver) async fn delete(
    context: &RequestContext<'_>,
    body: Bytes,
) -> Result<(Deleted, Remarks), ApiError> {
    require_deletable(context)?;
    if context.target.subresource.is_some() {
        return Err(ApiError::method_not_allowed("a subresource cannot be deleted"));
    }
    let options = DeleteOptions::parse(context, &body)?;
    let namespace = context.target.namespace.as_deref().unwrap_or_default();
    one(context, namespace, context.name()?, &options).await
}

/// Deletes one object that webhooks let go.
async fn one(
    context: &RequestContext<'_>,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<(Deleted, Remarks), ApiError> {
    let deletion = WebhookDeletion::of(context, namespace, name, options.is_dry_run(), options.as_object());
    let ask = |object: Arc<Object>| -> BoxFuture<'_, Result<(), ApiError>> { deletion.ask(object).boxed() };
    let (api, resource) = (context.api, context.resource);
    let deleted = api.delete_object(resource, namespace, name, options, context.identity, Some(&ask)).await?;
    Ok((deleted, deletion.remarks()))
}

/// Deletes everything that is selected: `names` says what that is, by namespace and name, when all else is well. Returns what it
/// was, unless that is too much to be shown.
pub(in crate::apiserver) async fn delete_collection(
    context: &RequestContext<'_>,
    body: Bytes,
    names: impl Future<Output = Result<Vec<(String, String)>, ApiError>>,
) -> Result<(Option<Vec<Arc<Object>>>, Remarks), ApiError> {
    require_deletable(context)?;
    if context.resource.namespaced && context.target.namespace.is_none() {
        return Err(ApiError::method_not_allowed("deleting in all namespaces at once is not allowed"));
    }
    let options = DeleteOptions::parse(context, &body)?;
    let (mut deleted, mut all) = (Some(Vec::new()), Remarks::default());
    let mut shown = 0;
    for (namespace, name) in names.await? {
        match one(context, &namespace, &name, &options).await {
            Ok((done, remarks)) => {
                all.add(remarks);
                shown += done.object().json_len();
                deleted = deleted.filter(|_| shown <= SHOWN_MAX);
                if let Some(deleted) = &mut deleted {
                    deleted.push(Arc::clone(done.object()));
                }
            }
            Err(error) if error.code == http::StatusCode::NOT_FOUND => {}
            Err(error) => return Err(error),
        }
    }
    Ok((deleted, all))
}

fn require_deletable(context: &RequestContext<'_>) -> Result<(), ApiError> {
    if context.resource.policy == StoragePolicy::View && !context.identity.is_in_process() {
        return Err(context.read_only());
    }
    Ok(())
}
