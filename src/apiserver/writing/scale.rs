//! The scale subresource.
//!
//! The scale subresource (autoscaling/v1 `Scale`) of kinds that have one: a small view of the wished and the actual
//! number, so that `kubectl scale` and autoscalers need not know the kind.

pub(in crate::apiserver) mod form;

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::managed_fields::{self, SentManagedFields};
use super::patch::RequestPatch;
use super::write::{self, CurrentObject};
use super::write_strategy::{Managers, ObjectDraft, RejectionStyle, Warnings};
use crate::apiserver::answers::columns;
use crate::apiserver::answers::columns::PrinterColumn;
use crate::apiserver::answers::status::ApiError;
use crate::apiserver::kinds::resource::{ScalePaths, ServedResource};
use crate::apiserver::requests::body::{self, parse_body};
use crate::apiserver::requests::options::{self, WriteRequest};
use crate::apiserver::requests::request::Include;
use crate::apiserver::requests::request::Representation;
use crate::apiserver::requests::request_context::RequestContext;
use crate::apiserver::webhooks::converting;
use crate::store::Object;
use form::{merge, view};

/// `Scale` as the path's object has it.
pub(in crate::apiserver) async fn get(context: &RequestContext<'_>) -> Result<Response, ApiError> {
    let name = context.name()?;
    let namespace = context.target.namespace.as_deref().unwrap_or_default();
    let object = context
        .api
        .store()
        .get(&context.resource.storage, namespace, name)
        .ok_or_else(|| ApiError::not_found(context.resource, name))?;
    send_of(context, object).await
}

/// Takes the wished number from a `Scale` or from a patch of one.
pub(in crate::apiserver) async fn write(
    context: &RequestContext<'_>,
    body: Bytes,
    is_patch: bool,
) -> Result<Response, ApiError> {
    context.require_writable()?;
    let scale = scale(context)?;
    if is_patch && body::content_type(context.headers) == write::APPLY {
        return apply(context, scale, &body).await;
    }
    let warnings = Warnings::new(context, RejectionStyle::Outcome);
    let draft = |live: Option<&CurrentObject>, wished: &dyn Fn(&Value) -> Result<Value, ApiError>| {
        let live = live.ok_or_else(|| ApiError::internal("there is nothing to scale"))?;
        let value = merge(context.resource, scale, &live.value, &wished(&live.value)?)?;
        Ok(ObjectDraft::new(value, Managers::Track(SentManagedFields::Nothing)))
    };
    // Like a patch in both cases: a revision is compared when the client names one, and it need not.
    let written = if is_patch {
        let dry_run = options::check(context, WriteRequest::Patch)?;
        let patch = write::read(context, &body, || {
            RequestPatch::parse(context.resource, &body::content_type(context.headers), &body)
        })
        .await?;
        let wished = |old: &Value| {
            let mut view = view(scale, old)?;
            patch.apply(context.resource, &mut view)?;
            Ok(view)
        };
        write::change(context, warnings, WriteRequest::Patch, dry_run, |live| draft(live, &wished)).await?
    } else {
        let dry_run = options::check(context, WriteRequest::Update)?;
        let given = write::read(context, &body, || parse_body(context.headers, &body)).await?.value;
        check_type(&given)?;
        let wished = |_: &Value| Ok(given.clone());
        write::change(context, warnings, WriteRequest::Patch, dry_run, |live| draft(live, &wished)).await?
    };
    Ok(written.remarks.put_on(send_of(context, written.object).await?))
}

/// Applies a `Scale`: the manager owns the wished number of the object, or leaves it when the configuration does not
/// have it.
async fn apply(context: &RequestContext<'_>, scale: &ScalePaths, body: &[u8]) -> Result<Response, ApiError> {
    let dry_run = options::check(context, WriteRequest::Apply)?;
    let given = write::read(context, body, || body::parse_config(body)).await?.value;
    check_type(&given)?;
    let config = config_of(context.resource, scale, context.name()?, &given)?;
    let force = context.params.force.unwrap_or(false);
    let warnings = Warnings::new(context, RejectionStyle::Object);
    let written = write::change(context, warnings, WriteRequest::Apply, dry_run, |live| {
        let live = live.ok_or_else(|| ApiError::internal("there is nothing to scale"))?;
        let applied = managed_fields::applied(context, Some(live.parts()), &config, force)?;
        let value = applied.object.unwrap_or_else(|| live.value.clone());
        Ok(ObjectDraft::new(value, Managers::Applied(applied.managers)))
    });
    let written = written.await?;
    Ok(written.remarks.put_on(send_of(context, written.object).await?))
}

/// The configuration of the object that a configuration of its `Scale` stands for.
fn config_of(resource: &ServedResource, scale: &ScalePaths, name: &str, given: &Value) -> Result<Value, ApiError> {
    if !given["metadata"]["managedFields"].is_null() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let mut config = json!({"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {"name": name}});
    // The rules for numbers and names are those of any other write.
    let whole = merge(resource, scale, &config, given)?;
    let wished = given["spec"].get("replicas").is_some();
    for field in ["name", "namespace", "uid", "resourceVersion"] {
        if let Some(value) = whole["metadata"].get(field) {
            config["metadata"][field] = value.clone();
        }
    }
    Ok(if wished { whole } else { config })
}

fn scale<'c>(context: &'c RequestContext<'_>) -> Result<&'c ScalePaths, ApiError> {
    context.resource.scale.as_ref().ok_or_else(ApiError::no_such_path)
}

fn check_type(given: &Value) -> Result<(), ApiError> {
    for (field, wanted) in [("apiVersion", "autoscaling/v1"), ("kind", "Scale")] {
        if given.get(field).is_some_and(|found| found != wanted) {
            let message = format!("the object provided is unrecognized: {field} must be {wanted}");
            return Err(ApiError::bad_request(message));
        }
    }
    Ok(())
}

/// Sends the `Scale` of an object of the store.
async fn send_of(context: &RequestContext<'_>, object: Arc<Object>) -> Result<Response, ApiError> {
    let object = converting::served_one(context.api, context.resource, object).await?;
    send(context, &context.resource.served(object.value()))
}

fn send(context: &RequestContext<'_>, object: &Value) -> Result<Response, ApiError> {
    let view = view(scale(context)?, object)?;
    let body = match context.representation {
        Representation::Json => view,
        Representation::Partial => partial(&view),
        Representation::Table => {
            let number = |name, cell| PrinterColumn::cell(name, "integer", 0, cell);
            let columns = [
                PrinterColumn::name(),
                number("Desired", |scale: &Value, _| scale["spec"]["replicas"].clone()),
                number("Available", |scale: &Value, _| scale["status"]["replicas"].clone()),
                PrinterColumn::age(),
            ];
            let mut row = json!({"cells": columns::cells(&columns, &view, Timestamp::now())});
            match context.params.include.unwrap_or_default() {
                Include::None => {}
                Include::Metadata => row["object"] = partial(&view),
                Include::Object => row["object"] = view.clone(),
            }
            json!({
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": view["metadata"]["resourceVersion"]},
                "columnDefinitions": columns::definitions(&columns),
                "rows": [row],
            })
        }
    };
    Ok(context.encoding.response(StatusCode::OK, context.encoding.render(body.to_string().into_bytes())))
}

fn partial(view: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": view["metadata"]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_wished_number_is_taken() {
        let registry = crate::apiserver::kinds::built_in::registry(&[]).unwrap();
        let resource = registry.find("", "v1", "secrets").unwrap();
        let scale = ScalePaths {
            spec_replicas: vec!["spec".into(), "deep".into(), "replicas".into()],
            status_replicas: vec!["status".into(), "replicas".into()],
            selector: Some(vec!["status".into(), "selector".into()]),
        };
        let object = json!({"metadata": {"name": "a", "labels": {}, "resourceVersion": "3"},
            "spec": {"deep": {"replicas": 2}}, "status": {"replicas": 1, "selector": "a=b"}});
        let shown = view(&scale, &object).unwrap();
        assert_eq!(shown["spec"]["replicas"], 2);
        assert_eq!(shown["status"], json!({"replicas": 1, "selector": "a=b"}));
        assert_eq!(shown["metadata"], json!({"name": "a", "resourceVersion": "3"}));
        for (wished, wanted) in [
            (json!({"spec": {"replicas": 5}, "status": {"replicas": 9}}), Ok(5)),
            (json!({"spec": {}}), Ok(0)),
            (json!({"spec": {"replicas": -1}}), Err(422)),
            (json!({"spec": {"replicas": 3_000_000_000_u32}}), Err(422)),
            (json!({"spec": {"replicas": "5"}}), Err(400)),
        ] {
            let merged = merge(resource, &scale, &object, &wished);
            let found = merged.map(|new| {
                assert_eq!(new["status"], object["status"]);
                new["spec"]["deep"]["replicas"].as_i64().unwrap()
            });
            assert_eq!(found.map_err(|error| error.code.as_u16()), wanted, "{wished}");
        }
        assert_eq!(view(&scale, &json!({"spec": {}})).unwrap_err().code, 500);
        let config = config_of(resource, &scale, "a", &json!({"kind": "Scale", "spec": {"replicas": 4}})).unwrap();
        let wanted =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "spec": {"deep": {"replicas": 4}}});
        assert_eq!(config, wanted);
        let config = config_of(resource, &scale, "a", &json!({"kind": "Scale", "spec": {}})).unwrap();
        assert_eq!(config, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}));
    }
}
