//! Lists page by page, and finalizers with what else marks an object as looked after: what every controller does with its objects.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ListParams, PartialObjectMeta};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::changes::{change, unless_gone};

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

/// Whether an object has a finalizer.
pub fn is_held(object: &impl ResourceExt, finalizer: &str) -> bool {
    object.finalizers().iter().any(|one| one == finalizer)
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
    if !is_held(object, finalizer) {
        all.push(finalizer.to_owned());
    }
    all
}

/// What a controller has in the metadata of an object that it looks after.
#[derive(Default)]
pub struct ControllerMarks<'m> {
    /// Finalizer by which the object is held.
    pub finalizer: Option<&'m str>,
    /// Labels, and their values.
    pub labels: &'m [(&'m str, &'m str)],
    /// All owner references, when they are not what they should be ([`owners::with`](super::owners::with)).
    pub owners: Option<Vec<OwnerReference>>,
}

impl ControllerMarks<'_> {
    /// What is to be changed of an object, so that it has them; `None` when it does.
    pub fn missing(&self, object: &impl ResourceExt) -> Option<Value> {
        let mut metadata = Map::new();
        if let Some(finalizer) = self.finalizer.filter(|finalizer| !is_held(object, finalizer)) {
            metadata.insert("finalizers".into(), json!(with(object, finalizer)));
        }
        let has = |(label, value): &(&str, &str)| object.labels().get(*label).is_some_and(|is| is == value);
        let labels = self.labels.iter().filter(|one| !has(one));
        let labels: Map<String, Value> = labels.map(|(label, value)| ((*label).to_owned(), json!(value))).collect();
        if !labels.is_empty() {
            metadata.insert("labels".into(), labels.into());
        }
        if let Some(owners) = &self.owners {
            metadata.insert("ownerReferences".into(), json!(owners));
        }
        (!metadata.is_empty()).then(|| json!({ "metadata": metadata }))
    }
}

/// Puts marks on the object at hand: as it is stored then. One that has them is not written.
///
/// # Errors
///
/// What the API says; a conflict when the object is not the one at hand any more.
pub async fn mark<K>(api: &Api<K>, object: K, marks: &ControllerMarks<'_>) -> Result<K, kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    match marks.missing(&object) {
        Some(patch) => change(api, &object, patch).await,
        None => Ok(object),
    }
}

/// Puts a finalizer on the object at hand, so that it stays until it is [released](release): as it is stored then.
///
/// # Errors
///
/// What the API says; a conflict when the object is not the one at hand any more.
pub async fn hold<K>(api: &Api<K>, object: K, finalizer: &str) -> Result<K, kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    mark(api, object, &ControllerMarks { finalizer: Some(finalizer), ..ControllerMarks::default() }).await
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
    unless_gone(change(api, object, json!({ "metadata": { "finalizers": kept } })).await).map(drop)
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
        assert!(is_held(&secret, "b") && !is_held(&secret, "c"));
    }

    #[test]
    fn only_marks_that_are_missing_are_written() {
        let object = |metadata: Value| serde_json::from_value::<Secret>(json!({ "metadata": metadata })).unwrap();
        let owner = OwnerReference { name: "o".into(), uid: "1".into(), ..OwnerReference::default() };
        let labels = [("a", "1"), ("b", "2")];
        let all = ControllerMarks { finalizer: Some("f"), labels: &labels, owners: Some(vec![owner.clone()]) };
        let unowned = ControllerMarks { finalizer: Some("f"), labels: &labels, owners: None };
        let marked = json!({"finalizers": ["g", "f"], "labels": {"a": "1", "b": "2", "c": "3"}});
        for (of, marks, wanted) in [
            (
                json!({"finalizers": ["g"], "labels": {"a": "0", "c": "3"}}),
                &all,
                Some(json!({"finalizers": ["g", "f"], "labels": {"a": "1", "b": "2"}, "ownerReferences": [owner]})),
            ),
            (marked.clone(), &all, Some(json!({"ownerReferences": [owner]}))),
            (marked.clone(), &unowned, None),
            (
                json!({}),
                &ControllerMarks { finalizer: Some("f"), ..ControllerMarks::default() },
                Some(json!({"finalizers": ["f"]})),
            ),
            (
                json!({"labels": {"a": "1"}}),
                &ControllerMarks { labels: &labels, ..ControllerMarks::default() },
                Some(json!({"labels": {"b": "2"}})),
            ),
            (json!({}), &ControllerMarks::default(), None),
        ] {
            let wanted = wanted.map(|metadata| json!({ "metadata": metadata }));
            assert_eq!(marks.missing(&object(of.clone())), wanted, "{of}");
        }
    }
}
