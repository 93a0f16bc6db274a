//! Addresses for machines, as two groups publish them: `ipam.metal3.io` has the pools and Metal3's claims, and
//! `ipam.cluster.x-k8s.io` the claims that Cluster API has for pools of any provider.
//!
//! What is alike in the versions of Cluster API's group stands here; each has a file of its own, and [`convert`] says how one
//! becomes another.

pub mod convert;
pub mod metal3;
pub mod v1alpha1;
pub mod v1beta1;
pub mod v1beta2;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Cluster API's group.
pub const GROUP: &str = "ipam.cluster.x-k8s.io";
/// Finalizer of a claim in Cluster API's group that has an address of a Metal3 pool.
pub const FINALIZER_CLAIM: &str = "ipam.metal3.io/ipaddressclaim";
/// Finalizer of an address in Cluster API's group that is of a Metal3 pool.
pub const FINALIZER_ADDRESS: &str = "ipam.metal3.io/ipaddress";
/// Condition of a claim that has its address.
pub const CONDITION_READY: &str = "Ready";
/// Annotation of a claim: the address that it wants.
pub const ANNOTATION_ADDRESS: &str = "ipAddress";

/// An object of the same namespace, as v1alpha1 and v1beta1 name it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LocalReference {
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// An object of the same namespace and of any kind, as v1alpha1 and v1beta1 name it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct TypedReference {
    /// Its API group; the core group when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}
