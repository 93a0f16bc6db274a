//! Changes that every controller makes to the objects it keeps.

use std::fmt::Debug;

use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

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
