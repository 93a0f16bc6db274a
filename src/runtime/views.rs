//! Views: objects that only show what is kept elsewhere. They are written, and never read by who writes them.
//!
//! In the embedded API they are in memory only, and begin empty. In another API server they are what whoever led before left.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::store::{Expect, Mutation, Store, StoreWriteError};

/// How long another API server may take for one view.
const API_DEADLINE: Duration = Duration::from_secs(10);

/// Where the views of a cluster-scoped kind are. Cheap to clone.
#[derive(Clone)]
pub struct ClusterScopedViews<K>(Backend<K>);

#[derive(Clone)]
enum Backend<K> {
    Store { store: Store, resource: Arc<str> },
    Api { api: Arc<Api<K>>, manager: &'static str },
}

/// A view was not written.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The store refused it.
    #[error(transparent)]
    Store(#[from] StoreWriteError),
    /// The view cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The API server refused it.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The API server is slow, or away.
    #[error("the API server did not answer within {} s", API_DEADLINE.as_secs())]
    Deadline,
}

impl<K> ClusterScopedViews<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    /// In the embedded API when there is a store, else in another API server, where `manager` writes them.
    pub fn new(store: Option<&Store>, client: &Client, manager: &'static str) -> Self {
        store.map_or_else(|| Self(Backend::Api { api: Arc::new(Api::all(client.clone())), manager }), Self::store)
    }

    /// In the embedded API.
    pub fn store(store: &Store) -> Self {
        let resource = format!("{}/{}", K::group(&()), K::plural(&())).into();
        Self(Backend::Store { store: store.clone(), resource })
    }

    /// Writes a view.
    ///
    /// # Errors
    ///
    /// When it was not written.
    pub async fn put(&self, view: &K) -> Result<(), ViewError> {
        let name = view.name_any();
        match &self.0 {
            Backend::Store { store, resource } => {
                let former = store.get(resource, "", &name).map(|object| object.metadata());
                let value = Some(object(serde_json::to_value(view)?, former.as_ref()));
                store.publish(change(resource, name, value)).await?;
            }
            Backend::Api { api, manager } => {
                let (parameters, patch) = (PatchParams::apply(manager).force(), Patch::Apply(view));
                in_time(api.patch(&name, &parameters, &patch)).await?;
                if serde_json::to_value(view)?.get("status").is_some() {
                    in_time(api.patch_status(&name, &parameters, &patch)).await?;
                }
            }
        }
        Ok(())
    }

    /// Removes a view, if there is one.
    ///
    /// # Errors
    ///
    /// When it was not removed.
    pub async fn remove(&self, name: &str) -> Result<(), ViewError> {
        match &self.0 {
            Backend::Store { store, resource } => match store.publish(change(resource, name.to_owned(), None)).await {
                Ok(_) | Err(StoreWriteError::NotFound) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Backend::Api { api, .. } => match in_time(api.delete(name, &DeleteParams::default())).await {
                Err(ViewError::Api(kube::Error::Api(status))) if status.code == 404 => Ok(()),
                other => other.map(|_| ()),
            },
        }
    }

    /// What whoever led before may have left: nothing in the embedded API.
    ///
    /// # Errors
    ///
    /// When the API server does not tell.
    pub async fn left(&self) -> Result<Vec<K>, ViewError> {
        match &self.0 {
            Backend::Store { .. } => Ok(Vec::new()),
            Backend::Api { api, .. } => Ok(in_time(api.list(&ListParams::default())).await?.items),
        }
    }

    /// Ends their history in the embedded API, which is in memory.
    pub async fn forget_history(&self) {
        if let Backend::Store { store, resource } = &self.0 {
            // A store that cannot write has told so.
            store.forget(resource).await.ok();
        }
    }
}

fn change(resource: &Arc<str>, name: String, value: Option<Value>) -> Mutation {
    Mutation { resource: Arc::clone(resource), namespace: String::new(), name, expect: Expect::Any, value }
}

/// The object; it keeps the identity of its former self.
fn object(mut view: Value, former: Option<&Value>) -> Value {
    let kept = |field: &str| former.and_then(|metadata| metadata.get(field)).filter(|kept| !kept.is_null()).cloned();
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    view["metadata"]["uid"] = kept("uid").unwrap_or_else(|| uuid::Uuid::new_v4().to_string().into());
    view["metadata"]["creationTimestamp"] = kept("creationTimestamp").unwrap_or_else(|| json!(now.to_string()));
    view
}

async fn in_time<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ViewError> {
    Ok(tokio::time::timeout(API_DEADLINE, call).await.map_err(|_| ViewError::Deadline)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_keeps_its_identity() {
        let first = object(json!({"kind": "X", "metadata": {"name": "a"}, "spec": 1}), None);
        let second = object(json!({"kind": "X", "metadata": {"name": "a"}, "spec": 2}), Some(&first["metadata"]));
        assert_eq!(first["metadata"], second["metadata"]);
        assert!(first["metadata"]["uid"].is_string() && second["spec"] == 2);
    }
}
