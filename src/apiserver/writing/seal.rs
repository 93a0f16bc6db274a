//! Sealed fields: what is written in them goes into a Secret of the object's own, and the object keeps where that is.
//!
//! A value is taken out of what a client sends before anybody else sees that: before managers are told apart, webhooks are asked,
//! a dry run is answered, or a fault is told. So no history, no watch, no line of a log has it. The Secret and the object are one
//! change of the store: there is never one without the other. What is applied twice comes to the same object, and the Secret is
//! written only where its value is another one.
//!
//! `kubectl apply` keeps what it applied in an annotation; the values are taken out of that, too.
//!
//! A reference to a Secret that somebody makes instead is judged with the rights of whoever writes it: it must be one that he may read.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use super::managed_fields::LAST_APPLIED;
use crate::api::{FieldSealing, SealedField};
use crate::apiserver::ApiServer;
use crate::apiserver::answers::status::{ApiError, FieldError, FieldFault};
use crate::apiserver::auth::rules::Attributes;
use crate::apiserver::kinds::resource::ServedResource;
use crate::apiserver::objects::meta;
use crate::apiserver::objects::names::subdomain;
use crate::apiserver::requests::request_context::RequestContext;
use crate::store::{Expect, Mutation, Object, StoreWriteError};

/// Secrets in the store.
const SECRETS: &str = "/secrets";
/// Longest value, in bytes: those of management controllers are much shorter.
const VALUE_MAX: usize = 1024;

/// Values by their keys in the Secret.
pub(in crate::apiserver) type SealedValues = BTreeMap<&'static str, SecretString>;

/// Takes out of an object of this name what goes into its Secret, and says there where it will be.
pub(in crate::apiserver) fn take(
    context: &RequestContext<'_>,
    object: &mut Value,
    name: &str,
) -> Result<SealedValues, ApiError> {
    let Some(sealing) = context.resource.sealing else { return Ok(SealedValues::default()) };
    let taken = take_out(sealing, object, name).map_err(|fault| ApiError::invalid(context.resource, name, &[fault]))?;
    // A subresource takes nothing of the spec.
    Ok(if context.target.subresource.is_some() { SealedValues::default() } else { taken })
}

/// Takes out of an object what `kubectl apply` keeps of the values: before anybody reads its metadata.
pub(in crate::apiserver) fn strip(resource: &ServedResource, object: &mut Value) {
    if let Some(sealing) = resource.sealing {
        strip_last_applied(sealing, object);
    }
}

fn take_out(sealing: &FieldSealing, object: &mut Value, name: &str) -> Result<SealedValues, FieldError> {
    strip_last_applied(sealing, object);
    let mut taken = SealedValues::new();
    for field in sealing.fields {
        let path = || field.path.join(".");
        let map = match at(object, field) {
            None | Some(Value::Null) => continue,
            Some(Value::Object(map)) => map,
            // It may be the value itself, which no fault is to show.
            Some(_) => return Err(FieldError::new(FieldFault::Type, path(), "must have value, or secret")),
        };
        if map.keys().any(|key| !matches!(key.as_str(), "value" | "secret")) {
            return Err(FieldError::new(FieldFault::Forbidden, path(), "has value or secret, and nothing else"));
        }
        let fault = |detail: &str| FieldError::new(FieldFault::Type, format!("{}.value", path()), detail);
        match map.remove("value") {
            None | Some(Value::Null) => {}
            Some(Value::String(value)) if value.trim().is_empty() => return Err(fault("must not be empty")),
            Some(Value::String(value)) if value.len() > VALUE_MAX => {
                return Err(fault(&format!("has {VALUE_MAX} bytes at most")));
            }
            Some(Value::String(value)) => {
                map.insert("secret".into(), json!({"name": sealing.secret(name), "key": field.key}));
                taken.insert(field.key, SecretString::from(value));
            }
            Some(_) => return Err(fault("must be a string: put it in quotes")),
        }
    }
    Ok(taken)
}

/// The field in an object.
fn at<'o>(object: &'o mut Value, field: &SealedField) -> Option<&'o mut Value> {
    field.path.iter().try_fold(object, |inner, part| inner.as_object_mut()?.get_mut(*part))
}

/// Leaves of the sealed fields in what `kubectl apply` keeps only which Secret they name. What cannot be read is dropped, for nobody
/// knows what is in it.
fn strip_last_applied(sealing: &FieldSealing, object: &mut Value) {
    let annotations = object.get_mut("metadata").and_then(|meta| meta.get_mut("annotations"));
    let Some(annotations) = annotations.and_then(Value::as_object_mut) else { return };
    let Some(kept) = annotations.get(LAST_APPLIED) else { return };
    let config = kept.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()).filter(Value::is_object);
    let Some(mut config) = config else {
        annotations.remove(LAST_APPLIED);
        return;
    };
    let mut changed = false;
    for field in sealing.fields {
        let Some(value) = at(&mut config, field) else { continue };
        let mut left = Map::new();
        for part in ["name", "key"] {
            if let Some(text) = value["secret"][part].as_str() {
                left.insert(part.into(), text.into());
            }
        }
        let left = if left.is_empty() { json!({}) } else { json!({ "secret": left }) };
        changed |= *value != left;
        *value = left;
    }
    if changed {
        // As kubectl writes it.
        annotations.insert(LAST_APPLIED.into(), format!("{config}\n").into());
    }
}

/// Refuses an object that has a value still, which only a webhook can have put there, or that names a Secret which its writer may not read.
pub(in crate::apiserver) fn check(
    context: &RequestContext<'_>,
    new: &Value,
    old: Option<&Value>,
    name: &str,
) -> Result<(), ApiError> {
    let Some(sealing) = context.resource.sealing else { return Ok(()) };
    let namespace = context.target.namespace.as_deref().unwrap_or_default();
    for field in sealing.fields {
        let pointer = format!("/{}", field.path.join("/"));
        let there = |object: &Value| object.pointer(&pointer).cloned().unwrap_or_default();
        let (value, path) = (there(new), field.path.join("."));
        let refuse = |fault: FieldError| ApiError::invalid(context.resource, name, &[fault]);
        if !value["value"].is_null() {
            return Err(refuse(FieldError::forbidden(format!("{path}.value"), "webhooks may not set it")));
        }
        let secret = value["secret"]["name"].as_str().unwrap_or_default();
        let is_kept = old.is_some_and(|old| there(old)["secret"] == value["secret"]);
        if secret.is_empty() || secret == sealing.secret(name) || is_kept {
            continue;
        }
        if let Some(fault) = subdomain(secret).into_iter().next() {
            return Err(refuse(FieldError::invalid(format!("{path}.secret.name"), &json!(secret), fault)));
        }
        let wanted = Attributes {
            verb: "get",
            version: "v1",
            resource: "secrets",
            namespace,
            name: secret,
            ..Attributes::default()
        };
        if let Err(refusal) = context.api.auth().authorize(Some(context.identity), &wanted) {
            let reason = format!("{path}.secret names a Secret that you may not read: {}", refusal.message);
            return Err(ApiError::forbidden(context.resource, name, reason));
        }
    }
    Ok(())
}

/// What is to become of the Secret of an object, which has its metadata: none, when it has these values. One that the object did not
/// name before is written in any case: somebody may be about to take it away.
pub(in crate::apiserver) fn secret_of(
    context: &RequestContext<'_>,
    values: &SealedValues,
    object: &Value,
    old: Option<&Value>,
) -> Result<Option<Mutation>, ApiError> {
    let Some(sealing) = context.resource.sealing.filter(|_| !values.is_empty()) else { return Ok(None) };
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (name, namespace, uid) = (text("name"), text("namespace"), text("uid"));
    let secret = sealing.secret(&name);
    if let Some(fault) = subdomain(&secret).into_iter().next() {
        let detail = format!("its Secret would be called {secret:?}, which is no name for one: {fault}");
        return Err(ApiError::invalid(
            context.resource,
            &name,
            &[FieldError::invalid("metadata.name", &json!(name), detail)],
        ));
    }
    let found = context.api.store().get(SECRETS, &namespace, &secret);
    let owner = json!({"apiVersion": context.resource.api_version(), "kind": context.resource.kind, "name": name,
        "uid": uid, "controller": true, "blockOwnerDeletion": true});
    let mut made = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": secret, "namespace": namespace, "uid": uuid::Uuid::new_v4().to_string(),
            "creationTimestamp": meta::now(), "ownerReferences": [owner]},
        "type": "Opaque", "data": {},
    });
    let expect = match &found {
        None => Expect::Absent,
        Some(found) => {
            let there = found.value();
            match ownership(&there, &owner) {
                SecretOwnership::Own => made = there,
                // Nobody has collected it yet.
                SecretOwnership::OfBefore => {}
                SecretOwnership::Foreign => {
                    let reason = format!(
                        "the Secret {secret:?}, into which its passwords would go, is not its own: delete that, or take another name"
                    );
                    return Err(ApiError::conflict(context.resource, &name, reason));
                }
            }
            Expect::Revision(found.revision)
        }
    };
    if !made["data"].is_object() {
        made["data"] = json!({});
    }
    let before = made["data"].clone();
    for (key, value) in values {
        made["data"][*key] = STANDARD.encode(value.expose_secret()).into();
    }
    let is_named = sealing.fields.iter().filter(|field| values.contains_key(field.key)).all(|field| {
        let pointer = format!("/{}/secret", field.path.join("/"));
        old.is_some_and(|old| old.pointer(&pointer).is_some_and(|is| Some(is) == object.pointer(&pointer)))
    });
    if expect != Expect::Absent && made["data"] == before && is_named {
        return Ok(None);
    }
    Ok(Some(Mutation { resource: SECRETS.into(), namespace, name: secret, expect, value: Some(made) }))
}

/// Whose a Secret is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecretOwnership {
    /// This object's.
    Own,
    /// That of an object of the same kind and name, which is gone.
    OfBefore,
    /// Anybody's.
    Foreign,
}

fn ownership(secret: &Value, owner: &Value) -> SecretOwnership {
    let owners = secret["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let controller = owners.into_iter().find(|one| one["controller"] == true);
    match controller {
        Some(is) if is["uid"] == owner["uid"] => SecretOwnership::Own,
        Some(is) if ["apiVersion", "kind", "name"].iter().all(|field| is[*field] == owner[*field]) => {
            SecretOwnership::OfBefore
        }
        _ => SecretOwnership::Foreign,
    }
}

/// Makes a change of an object, and before it that of its Secret: both or none.
pub(in crate::apiserver) async fn commit(
    api: &ApiServer,
    resource: &ServedResource,
    secret: Option<Mutation>,
    change: Mutation,
) -> Result<Arc<Object>, StoreWriteError> {
    let Some(secret) = secret else { return api.commit(resource, change).await };
    let (namespace, name) = (secret.namespace.clone(), secret.name.clone());
    let written = api.store().write_both(secret, change).await?;
    let secret = api.store().get(SECRETS, &namespace, &name);
    for object in secret.iter().chain([&written]) {
        api.note_owners(object, false);
    }
    Ok(written)
}

/// Writes the Secret of an object that stays as it is. False when somebody else wrote it, or collected it, in between.
pub(in crate::apiserver) async fn commit_alone(
    context: &RequestContext<'_>,
    secret: Option<Mutation>,
) -> Result<bool, ApiError> {
    let Some(secret) = secret else { return Ok(true) };
    let name = secret.name.clone();
    match context.api.store().write(secret).await {
        Ok(written) => {
            context.api.note_owners(&written, false);
            Ok(true)
        }
        Err(StoreWriteError::Conflict { .. } | StoreWriteError::Exists | StoreWriteError::NotFound) => Ok(false),
        Err(error) => Err(ApiError::from_write(&error, context.resource, &name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kaas::SEALED_PASSWORDS;

    #[test]
    fn a_value_is_taken_and_where_it_goes_is_said() {
        let own = json!({"name": "a-bmhc-passwords", "key": "password"});
        for (password, left, taken) in [
            (json!({"value": "x"}), json!({ "secret": own }), Some("x")),
            (json!({"value": "x", "secret": {"name": "b", "key": "k"}}), json!({ "secret": own }), Some("x")),
            (json!({"secret": {"name": "b", "key": "k"}}), json!({"secret": {"name": "b", "key": "k"}}), None),
            (json!({"value": null}), json!({}), None),
        ] {
            let mut object = json!({"spec": {"password": password}});
            let values = take_out(&SEALED_PASSWORDS, &mut object, "a").unwrap();
            assert_eq!(object["spec"]["password"], left, "{password}");
            assert_eq!(values.get("password").map(|value| value.expose_secret()), taken, "{password}");
        }
    }

    #[test]
    fn no_fault_shows_what_was_written() {
        for password in [
            json!("hunter2"),
            json!(["hunter2"]),
            json!({"value": ["hunter2"]}),
            json!({"value": 7777}),
            json!({"valeu": "hunter2"}),
            json!({"value": " "}),
            json!({"value": "hunter2".repeat(200)}),
        ] {
            let fault = take_out(&SEALED_PASSWORDS, &mut json!({"spec": {"password": password}}), "a").unwrap_err();
            let said = format!("{fault:?}");
            assert!(!said.contains("hunter2") && !said.contains("7777"), "{said}");
        }
    }

    #[test]
    fn what_kubectl_keeps_has_no_value() {
        let kept = |text: Value| {
            let mut object = json!({"metadata": {"annotations": {LAST_APPLIED: text, "other": "stays"}}});
            take_out(&SEALED_PASSWORDS, &mut object, "a").unwrap();
            assert_eq!(object["metadata"]["annotations"]["other"], "stays");
            object["metadata"]["annotations"].get(LAST_APPLIED).cloned()
        };
        let config = |spec: Value| json!({"kind": "K", "spec": spec}).to_string().into();
        for (spec, left) in [
            (
                json!({"username": "u", "password": {"value": "x"}, "monitoringPassword": "y"}),
                json!({"username": "u", "password": {}, "monitoringPassword": {}}),
            ),
            (
                json!({"password": {"secret": {"name": "n", "key": "k", "odd": "x"}, "valeu": "x"}}),
                json!({"password": {"secret": {"name": "n", "key": "k"}}}),
            ),
        ] {
            let text = kept(config(spec.clone())).unwrap();
            let text = text.as_str().unwrap();
            assert_eq!(serde_json::from_str::<Value>(text).unwrap()["spec"], left, "{spec}");
        }
        // What has nothing of that stays as it is, to the letter.
        let plain: Value = "{\"spec\": {\"username\":\"u\"}}\n".into();
        assert_eq!(kept(plain.clone()), Some(plain));
        for unreadable in [json!("{\"spec\":{\"password\":{\"value\":\"x\""), json!("[1]"), json!(7)] {
            assert_eq!(kept(unreadable), None);
        }
    }

    #[test]
    fn a_secret_is_known_by_its_owner_and_not_by_its_name() {
        let owner = json!({"apiVersion": "g/v1", "kind": "K", "name": "a", "uid": "1", "controller": true});
        let of = |owner: Value| json!({"metadata": {"ownerReferences": [owner]}});
        let mut before = owner.clone();
        before["uid"] = "0".into();
        let mut not_controller = owner.clone();
        not_controller["controller"] = false.into();
        let mut other = before.clone();
        other["kind"] = "L".into();
        for (secret, wanted) in [
            (of(owner.clone()), SecretOwnership::Own),
            (of(before), SecretOwnership::OfBefore),
            (of(not_controller), SecretOwnership::Foreign),
            (of(other), SecretOwnership::Foreign),
            (json!({"metadata": {}}), SecretOwnership::Foreign),
        ] {
            assert_eq!(ownership(&secret, &owner), wanted, "{secret}");
        }
    }
}
