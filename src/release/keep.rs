//! Objects that are made for a Cluster or a Machine: made where they are not there, put right where they are, and never taken from
//! somebody else.
//!
//! Whose an object is, its owner reference with the controller's mark says, by UID. Users choose names freely, so a name says nothing.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, PostParams};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::runtime::changes::{change, difference};
use crate::runtime::{Conflict, owners};

/// An object cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// What the API says.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// Somebody else has an object of this name.
    #[error("the {kind} {name:?} is not of {owner}: rename it, or delete it")]
    Taken {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// Whose it should be.
        owner: String,
    },
    /// One of before goes.
    #[error("the {kind} {name:?} of before is still there, and goes")]
    Leaving {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
    },
}

impl Conflict for KeepError {
    fn is_conflict(&self) -> bool {
        match self {
            // Somebody else made it in between, or wrote it.
            Self::Api(kube::Error::Api(status)) => status.is_conflict() || status.is_already_exists(),
            Self::Api(_) | Self::Taken { .. } | Self::Leaving { .. } => false,
        }
    }
}

/// Whether an object is of this owner.
pub fn is_of(object: &impl ResourceExt, owner: &OwnerReference) -> bool {
    !owner.uid.is_empty() && owners::controller(object.meta()).is_some_and(|is| is.uid == owner.uid)
}

/// The object of this name, if it is of the owner.
///
/// # Errors
///
/// When it is somebody else's, or goes; what the API says.
pub async fn own<K>(api: &Api<K>, name: &str, owner: &OwnerReference) -> Result<Option<K>, KeepError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let Some(found) = api.get_opt(name).await? else { return Ok(None) };
    let kind = || K::kind(&()).into_owned();
    let of_before = owners::controller(found.meta())
        .is_some_and(|is| (&is.kind, &is.name) == (&owner.kind, &owner.name) && is.uid != owner.uid);
    match is_of(&found, owner) {
        true if found.meta().deletion_timestamp.is_none() => Ok(Some(found)),
        // Whoever collects what nobody owns takes it.
        true => Err(KeepError::Leaving { kind: kind(), name: name.to_owned() }),
        false if of_before => Err(KeepError::Leaving { kind: kind(), name: name.to_owned() }),
        false => {
            let owner = format!("the {} {}", owner.kind, owner.name);
            Err(KeepError::Taken { kind: kind(), name: name.to_owned(), owner })
        }
    }
}

/// Has an object be there as it is wanted in these parts (`spec`, `rules`), and in its labels and annotations as far as it names some.
/// What others have put there beside stays.
///
/// # Errors
///
/// When it is somebody else's, or goes; what the API says.
pub async fn keep<K>(api: &Api<K>, wanted: &K, owner: &OwnerReference, parts: &[&str]) -> Result<K, KeepError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let Some(found) = own(api, &wanted.name_any(), owner).await? else {
        let mut made = wanted.clone();
        made.meta_mut().owner_references = Some(vec![owner.clone()]);
        return Ok(api.create(&PostParams::default(), &made).await?);
    };
    let value = |object: &K| serde_json::to_value(object).map_err(kube::Error::SerdeError);
    match missing(&value(&found)?, &value(wanted)?, parts) {
        Some(patch) => Ok(change(api, &found, patch).await?),
        None => Ok(found),
    }
}

/// What makes an object what is wanted of it.
fn missing(found: &Value, wanted: &Value, parts: &[&str]) -> Option<Value> {
    let mut patch = Map::new();
    for part in parts {
        patch.extend(difference(&found[part], &wanted[part]).map(|changed| ((*part).to_owned(), changed)));
    }
    let mut metadata = Map::new();
    for field in ["labels", "annotations"] {
        let named = wanted["metadata"][field].as_object().into_iter().flatten();
        let other = named.filter(|(key, value)| found["metadata"][field][key.as_str()] != **value);
        let other: Map<String, Value> = other.map(|(key, value)| (key.clone(), value.clone())).collect();
        if !other.is_empty() {
            metadata.insert(field.to_owned(), other.into());
        }
    }
    if !metadata.is_empty() {
        patch.insert("metadata".to_owned(), metadata.into());
    }
    (!patch.is_empty()).then(|| json!(patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_other_is_written() {
        let found = json!({"metadata": {"labels": {"a": "1", "x": "y"}}, "spec": {"a": 1, "b": 2}, "rules": [1]});
        for (wanted, patch) in [
            (json!({"metadata": {"labels": {"a": "1"}}, "spec": {"a": 1, "b": 2}}), None),
            (json!({"spec": {"a": 1}}), Some(json!({"spec": {"b": null}}))),
            (
                json!({"metadata": {"labels": {"a": "2"}}, "spec": {"a": 1, "b": 2}}),
                Some(json!({"metadata": {"labels": {"a": "2"}}})),
            ),
            (
                json!({"metadata": {"annotations": {"c": "d"}}, "spec": {"a": 1, "b": 2}}),
                Some(json!({"metadata": {"annotations": {"c": "d"}}})),
            ),
        ] {
            assert_eq!(missing(&found, &wanted, &["spec"]), patch, "{wanted}");
        }
    }
}
