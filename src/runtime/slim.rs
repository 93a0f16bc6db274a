//! Metadata-only copies of objects.
//!
//! Objects as a controller keeps them that reads each anew before it acts: which they are, and nothing that a user writes.
//! A megabyte of one letter takes a few bytes in the store, and all of it in a cache.

use std::borrow::Cow;
use std::fmt::Debug;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};

/// An object of kind `K`, of which only the name, the UID and the version are kept.
#[derive(Deserialize)]
#[serde(bound = "")]
pub struct Slim<K> {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    ObjectMeta::deserialize(deserializer).map(|whole| essence(&whole))
}

/// Which object it is, and in which version.
pub fn essence(whole: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: whole.name.clone(),
        namespace: whole.namespace.clone(),
        uid: whole.uid.clone(),
        resource_version: whole.resource_version.clone(),
        generation: whole.generation,
        creation_timestamp: whole.creation_timestamp.clone(),
        deletion_timestamp: whole.deletion_timestamp.clone(),
        ..ObjectMeta::default()
    }
}

impl<K: Resource> From<&K> for Slim<K> {
    fn from(whole: &K) -> Self {
        Self { metadata: essence(whole.meta()), kind: PhantomData }
    }
}

impl<K> Clone for Slim<K> {
    fn clone(&self) -> Self {
        Self { metadata: self.metadata.clone(), kind: PhantomData }
    }
}

impl<K> Debug for Slim<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.metadata.fmt(f)
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Slim<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
