//! The garbage collector: dependents go with their owners (API concepts, "Garbage Collection"), and owners that wait
//! for theirs, or that leave them behind, are let go.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::ApiServer;
use super::delete::DeleteOptions;
use super::dependents::{Key, Look, owners};
use super::meta;
use super::registry::Registry;
use super::resource::Resource;
use super::status::ApiError;
use super::sweep::Removed;
use crate::store::Object;

/// Whether an owner is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Alive,
    /// Waits for its dependents (`foregroundDeletion`).
    Waiting,
    /// Leaves its dependents behind (`orphan`).
    Orphaning,
    Gone,
    /// Of a kind that is not served here; its dependents are left alone.
    Unknown,
}

/// An object and the resource of its stored form.
type Found = (Arc<Resource>, Arc<Object>);

impl ApiServer {
    /// Looks at what concerns it since the last time.
    pub(super) async fn collect_garbage(&self) -> Result<(), ApiError> {
        let look = self.dependents().take();
        if look.is_empty() {
            return Ok(());
        }
        let collected = self.collect(&look).await;
        if collected.is_err() {
            // What was not done is not noted anywhere else.
            self.dependents().look_at_everything();
        }
        collected
    }

    async fn collect(&self, look: &Look) -> Result<(), ApiError> {
        let registry = self.registry();
        let found = if look.everything { self.everything(&registry) } else { self.concerned(&registry, look) };
        let mut known = HashMap::new();
        // Owners that wait, by uid, and that something still holds.
        let mut blocked: HashSet<String> = HashSet::new();
        for (resource, object) in found.iter().filter(|(_, object)| object.is_owned()) {
            let meta = object.metadata();
            let states: Vec<(&Value, Owner)> = owners(&meta)
                .map(|reference| (reference, self.owner_state(&registry, &object.namespace, reference, &mut known)))
                .collect();
            let any = |wanted: &[Owner]| states.iter().any(|(_, state)| wanted.contains(state));
            let keep: Vec<Value> = states
                .iter()
                .filter(|(_, state)| !matches!(state, Owner::Gone | Owner::Orphaning))
                .map(|(reference, _)| (*reference).clone())
                .collect();
            let left_behind = any(&[Owner::Orphaning]) && keep.is_empty();
            if any(&[Owner::Gone, Owner::Waiting]) && !any(&[Owner::Alive, Owner::Unknown]) && !left_behind {
                let options = DeleteOptions::of_uid(meta["uid"].as_str().map(str::to_owned));
                if !matches!(self.remove(resource, object, &options).await?, Removed::Gone) {
                    let holds = |(reference, state): &&(&Value, Owner)| {
                        *state == Owner::Waiting && reference["blockOwnerDeletion"] == true
                    };
                    let held = states.iter().filter(holds).filter_map(|(reference, _)| reference["uid"].as_str());
                    blocked.extend(held.map(str::to_owned));
                }
            } else if keep.len() < states.len() {
                self.rewrite(resource, object, |value| set_owners(value, &keep)).await?;
            }
        }
        for (resource, object) in found.iter().filter(|(_, object)| waits(object)) {
            let uid = object.metadata()["uid"].as_str().unwrap_or_default().to_owned();
            if !blocked.contains(&uid) {
                self.rewrite(resource, object, |value| drop_finalizers(value, &[meta::FOREGROUND, meta::ORPHAN]))
                    .await?;
            }
        }
        Ok(())
    }

    /// Everything that may concern the collector.
    fn everything(&self, registry: &Registry) -> Vec<Found> {
        let mut found = Vec::new();
        self.dependents().begin_anew();
        for resource in registry.stored() {
            for object in self.store().list(&resource.storage, None).objects {
                self.dependents().note(&object);
                if object.is_ending() || object.is_owned() {
                    found.push((Arc::clone(resource), object));
                }
            }
        }
        found
    }

    /// What was named, what depends on it, and of owners that wait all that they wait for.
    fn concerned(&self, registry: &Registry, look: &Look) -> Vec<Found> {
        let resources: HashMap<&str, &Arc<Resource>> = registry.stored().map(|one| (&*one.storage, one)).collect();
        let dependents = |uid: &str| self.dependents().of(uid);
        let mut keys: Vec<Key> = look.objects.iter().cloned().collect();
        keys.extend(look.owners.iter().flat_map(|uid| dependents(uid)));
        let owner_key = |(namespace, reference): &(String, Value)| {
            let resource = registry.find_kind(reference["apiVersion"].as_str()?, reference["kind"].as_str()?)?;
            let namespace = if resource.namespaced { namespace.clone() } else { String::new() };
            let name = reference["name"].as_str()?.to_owned();
            Some(Key { storage: Arc::clone(&resource.storage), namespace, name })
        };
        keys.extend(look.references.iter().filter_map(owner_key));
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        while let Some(key) = keys.pop() {
            let Some(resource) = resources.get(&*key.storage).filter(|_| !seen.contains(&key)) else { continue };
            if let Some(object) = self.store().get(&key.storage, &key.namespace, &key.name) {
                if waits(&object) {
                    keys.extend(object.metadata()["uid"].as_str().map(dependents).unwrap_or_default());
                }
                if object.is_ending() || object.is_owned() {
                    found.push((Arc::clone(resource), object));
                }
            }
            seen.insert(key);
        }
        found
    }

    fn owner_state(
        &self,
        registry: &Registry,
        namespace: &str,
        reference: &Value,
        known: &mut HashMap<[String; 4], Owner>,
    ) -> Owner {
        let text = |key: &str| reference[key].as_str().unwrap_or_default().to_owned();
        let key = [namespace.to_owned(), text("kind"), text("name"), text("uid")];
        if let Some(state) = known.get(&key) {
            return *state;
        }
        let [_, kind, name, uid] = &key;
        let Some(resource) = registry.find_kind(&text("apiVersion"), kind) else { return Owner::Unknown };
        // What lies in no namespace cannot name an owner that does: which one would it be?
        if resource.namespaced && namespace.is_empty() {
            return Owner::Unknown;
        }
        let namespace = if resource.namespaced { namespace } else { "" };
        let state = match self.store().get(&resource.storage, namespace, name) {
            Some(owner) => match owner.metadata() {
                meta if meta["uid"] != **uid => Owner::Gone,
                meta if owner.is_ending() && has_finalizer(&meta, meta::ORPHAN) => Owner::Orphaning,
                meta if owner.is_ending() && has_finalizer(&meta, meta::FOREGROUND) => Owner::Waiting,
                _ => Owner::Alive,
            },
            None => Owner::Gone,
        };
        known.insert(key, state);
        state
    }
}

/// Whether an object waits for its dependents to go, or to be left behind.
fn waits(object: &Object) -> bool {
    object.is_ending() && {
        let meta = object.metadata();
        has_finalizer(&meta, meta::FOREGROUND) || has_finalizer(&meta, meta::ORPHAN)
    }
}

fn has_finalizer(meta: &Value, name: &str) -> bool {
    meta["finalizers"].as_array().is_some_and(|list| list.iter().any(|one| one == name))
}

fn set_owners(value: &mut Value, owners: &[Value]) {
    if let Some(meta) = value["metadata"].as_object_mut() {
        if owners.is_empty() {
            meta.remove("ownerReferences");
        } else {
            meta.insert("ownerReferences".into(), owners.into());
        }
    }
}

fn drop_finalizers(value: &mut Value, names: &[&str]) {
    if let Some(Value::Array(list)) = value["metadata"].get_mut("finalizers") {
        list.retain(|one| !names.iter().any(|name| one == name));
    }
}
