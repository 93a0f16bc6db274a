//! What is written of an object: only what is other than before, and only of the version at hand, so that another's write in between
//! is a conflict and not lost. [`retry`] is for writes that are not decided anew then.

use std::fmt::Debug;

use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::conflict::Conflict;

/// Tries of a write that collides with others.
const TRIES: usize = 8;

/// What makes `new` of `old`, as a merge patch; `None` when they are alike. Lists are replaced whole.
pub fn difference(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(before), Value::Object(after)) = (old, new) else { return Some(new.clone()) };
    let mut patch = Map::new();
    for (key, value) in after {
        match before.get(key) {
            Some(old) => patch.extend(difference(old, value).map(|inner| (key.clone(), inner))),
            None => _ = patch.insert(key.clone(), value.clone()),
        }
    }
    patch.extend(before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key.clone(), Value::Null)));
    Some(patch.into())
}

/// Writes the status of the object at hand, if it is other than before; the object as it is stored then, if it was written.
///
/// # Errors
///
/// What the API says; a conflict when somebody wrote it in between. One that is gone is well.
pub async fn write_status<K, S>(api: &Api<K>, object: &K, old: Option<&S>, new: &S) -> Result<Option<K>, kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
    S: Serialize + PartialEq,
{
    let Some((before, after)) = unlike(old, new)? else { return Ok(None) };
    let Some(status) = difference(&before, &after) else { return Ok(None) };
    change_status(api, object, status).await
}

/// Both statuses as JSON; `None` when they say the same.
///
/// # Errors
///
/// When one cannot be written as JSON.
pub(super) fn unlike<S>(old: Option<&S>, new: &S) -> Result<Option<(Value, Value)>, kube::Error>
where
    S: Serialize + PartialEq,
{
    // Mostly they do, and a controller says so of thousands of objects in a look.
    if old == Some(new) {
        return Ok(None);
    }
    let value = |status: &S| serde_json::to_value(status).map_err(kube::Error::SerdeError);
    let (before, after) = (old.map_or_else(|| Ok(json!({})), value)?, value(new)?);
    Ok((before != after).then_some((before, after)))
}

/// Changes the status of the object at hand by a merge patch; `None` when the object is gone.
///
/// # Errors
///
/// What the API says; a conflict when somebody wrote it in between.
pub async fn change_status<K>(api: &Api<K>, object: &K, status: Value) -> Result<Option<K>, kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let patch = json!({ "metadata": { "resourceVersion": object.resource_version() }, "status": status });
    unless_gone(api.patch_status(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await)
}

/// What was written; `None` when it is gone, which is well.
///
/// # Errors
///
/// What else the API says.
pub fn unless_gone<T>(written: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match written {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(None),
        written => written.map(Some),
    }
}

/// Changes the object at hand by a merge patch of its metadata or spec.
///
/// # Errors
///
/// What the API says; a conflict when somebody wrote it in between.
pub async fn change<K>(api: &Api<K>, object: &K, mut patch: Value) -> Result<K, kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    patch["metadata"]["resourceVersion"] = json!(object.resource_version());
    api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
}

/// Does what reads an object and writes it, and does so again as long as somebody else wrote it in between; `None` when that was so
/// eight times in a row.
///
/// # Errors
///
/// What it fails with otherwise.
pub async fn retry<T, E, F>(mut attempt: impl FnMut() -> F) -> Result<Option<T>, E>
where
    E: Conflict,
    F: Future<Output = Result<T, E>>,
{
    for _ in 0..TRIES {
        match attempt().await {
            Err(error) if error.is_conflict() => {}
            done => return done.map(Some),
        }
    }
    Ok(None)
}

/// Deletes the object at hand, and no other of its name. One that goes already, or is gone, is well.
///
/// # Errors
///
/// What the API says.
pub async fn delete<K>(api: &Api<K>, object: &K) -> Result<(), kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    if object.meta().deletion_timestamp.is_some() {
        return Ok(());
    }
    let preconditions = Some(Preconditions { uid: object.uid(), ..Preconditions::default() });
    let params = DeleteParams { preconditions, ..DeleteParams::background() };
    unless_gone(api.delete(&object.name_any(), &params).await).map(drop)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[tokio::test]
    async fn a_write_is_tried_again_while_others_write_but_not_for_ever() {
        let refused = |reason: &str, code| kube::Error::Api(Status::failure("", reason).with_code(code).boxed());
        for (conflicts, wanted, tries) in
            [(0, Some(()), 1), (1, Some(()), 2), (TRIES - 1, Some(()), TRIES), (TRIES, None, TRIES)]
        {
            let mut tried = 0;
            let done = retry(|| {
                tried += 1;
                std::future::ready(if tried <= conflicts { Err(refused("Conflict", 409)) } else { Ok(()) })
            });
            assert_eq!(done.await.unwrap(), wanted, "{conflicts}");
            assert_eq!(tried, tries, "{conflicts}");
        }
        let mut tried = 0;
        let failed = retry(|| {
            tried += 1;
            std::future::ready(Err::<(), _>(refused("Forbidden", 403)))
        });
        assert!(failed.await.is_err());
        assert_eq!(tried, 1, "another error will not pass");
    }

    #[test]
    fn a_difference_is_what_makes_the_new_of_the_old() {
        let rows = [
            (json!({"a": 1}), json!({"a": 1}), None),
            (
                json!({"a": 1, "b": {"c": 1, "d": 2}}),
                json!({"b": {"c": 1, "d": 3}}),
                Some(json!({"a": null, "b": {"d": 3}})),
            ),
            (json!({"a": [1, 2]}), json!({"a": [1]}), Some(json!({"a": [1]}))),
            (json!({}), json!({"a": {"b": 1}}), Some(json!({"a": {"b": 1}}))),
            (json!({"a": {"b": 1}}), json!({"a": {}}), Some(json!({"a": {"b": null}}))),
        ];
        for (old, new, wanted) in rows {
            let patch = difference(&old, &new);
            assert_eq!(patch, wanted);
            let mut made = old.clone();
            patch.iter().for_each(|patch| json_patch::merge(&mut made, patch));
            assert_eq!(made, new);
        }
    }
}
