//! Lists page by page, and finalizers: what every controller does with its objects.

use std::fmt::Debug;

use kube::api::{Api, ListParams, PartialObjectMeta, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

/// Objects that are asked for at once.
const PAGE: u32 = 16;

/// Looks at every object of a kind, part by part: together they may be larger than the memory.
///
/// # Errors
///
/// What the API says; some may have been looked at then. Too many changes meanwhile are an error, too.
pub async fn each<K>(api: &Api<K>, mut look: impl FnMut(K)) -> Result<(), kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut rest = None;
    loop {
        let params = ListParams { limit: Some(PAGE), continue_token: rest, ..ListParams::default() };
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(&mut look);
        rest = page.metadata.continue_.filter(|token| !token.is_empty());
        if rest.is_none() {
            return Ok(());
        }
    }
}

/// Looks at the metadata of every object of a kind, part by part: the API server sends nothing else.
///
/// # Errors
///
/// The same.
pub async fn each_metadata<K>(api: &Api<K>, mut look: impl FnMut(PartialObjectMeta<K>)) -> Result<(), kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut rest = None;
    loop {
        let params = ListParams { limit: Some(PAGE), continue_token: rest, ..ListParams::default() };
        let page = api.list_metadata(&params).await?;
        page.items.into_iter().for_each(&mut look);
        rest = page.metadata.continue_.filter(|token| !token.is_empty());
        if rest.is_none() {
            return Ok(());
        }
    }
}

/// An object's finalizers without this one, when it has it.
pub fn without(object: &impl ResourceExt, finalizer: &str) -> Option<Vec<String>> {
    let all = object.finalizers();
    let kept: Vec<_> = all.iter().filter(|other| *other != finalizer).cloned().collect();
    (kept.len() < all.len()).then_some(kept)
}

/// An object's finalizers with this one, which it gets as the last one when it does not have it.
pub fn with(object: &impl ResourceExt, finalizer: &str) -> Vec<String> {
    let mut all = object.finalizers().to_vec();
    if !all.iter().any(|other| other == finalizer) {
        all.push(finalizer.to_owned());
    }
    all
}

/// Takes a finalizer off, after which an object that was deleted is gone. One without it, or that is gone, is well.
///
/// # Errors
///
/// What the API says; a conflict when the object is not the one at hand any more.
pub async fn release<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<(), kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let Some(kept) = without(object, finalizer) else { return Ok(()) };
    let patch = json!({ "metadata": { "resourceVersion": object.resource_version(), "finalizers": kept } });
    match api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(error)) if error.is_not_found() => Ok(()),
        patched => patched.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;

    use super::*;

    #[test]
    fn a_finalizer_is_put_on_once_and_taken_off_whole() {
        let mut secret = Secret::default();
        assert_eq!((with(&secret, "a"), without(&secret, "a")), (vec!["a".to_owned()], None));
        secret.metadata.finalizers = Some(vec!["a".into(), "b".into(), "a".into()]);
        assert_eq!(with(&secret, "a"), ["a", "b", "a"]);
        assert_eq!(with(&secret, "c"), ["a", "b", "a", "c"]);
        assert_eq!(without(&secret, "a"), Some(vec!["b".to_owned()]));
        assert_eq!(without(&secret, "c"), None);
    }
}
