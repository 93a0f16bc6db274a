//! The resource kinds as plain types, a file per group. No behaviour lives here.
//!
//! Who acts on a kind declares it ([`Declared`]) in its own room, `module()`. A kind with two versions is a type in each of its
//! group's two, and the change of shape between them.

pub mod bootstrap;
pub mod bpa;
pub mod cluster;
pub mod control_plane;
pub mod iam;
pub mod infrastructure;
pub mod ipam;
pub mod kaas;
pub mod lcm;
pub mod machine_api;
pub mod metal3;
pub mod slipway;

pub(crate) mod bounded;
mod conversion;
pub(crate) mod definitions;
mod dns;
#[cfg(test)]
pub(crate) mod generated;
mod mac;
#[cfg(test)]
mod narrowed;

pub use conversion::Convert;
pub use dns::{is_dns_label, is_dns_part, is_dns_subdomain};
pub use mac::{MacAddress, MacAddressError};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

/// How the objects of a kind are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoragePolicy {
    /// On disk; clients may write them.
    Durable,
    /// On disk; clients may write them whom an administrator gives the right for this kind: the default role `edit` has none.
    Administrative,
    /// On disk; clients may read and delete them, only Slipway's own rooms write them.
    Internal,
    /// In memory, published by the room that owns the truth; read-only for clients.
    View,
    /// Not at all: what a client creates is answered and forgotten.
    Review,
}

impl StoragePolicy {
    /// Whether clients write such objects, as far as their rights go.
    pub fn is_writable(self) -> bool {
        matches!(self, Self::Durable | Self::Administrative)
    }
}

/// A kind as its room declares it: everything but the definition, which the binary brings written.
#[derive(Clone, Debug)]
pub struct Declared {
    name: &'static str,
    policy: StoragePolicy,
    also_served: Vec<ServedVersion>,
    complete: Option<Complete>,
    sealing: Option<&'static FieldSealing>,
    belongs_to_host: bool,
    memory: usize,
    is_kept_parsed: bool,
    #[cfg(test)]
    generate: fn() -> CustomResourceDefinition,
}

impl Declared {
    /// A kind with one version.
    pub fn one<T: CustomResourceExt>(policy: StoragePolicy) -> Self {
        Self {
            name: T::crd_name(),
            policy,
            also_served: Vec::new(),
            complete: None,
            sealing: None,
            belongs_to_host: false,
            memory: 0,
            is_kept_parsed: false,
            #[cfg(test)]
            generate: generated::one::<T>,
        }
    }

    /// A kind that is stored as `New` and served as `Old` too.
    pub fn both<New: CustomResourceExt, Old: CustomResourceExt>(
        policy: StoragePolicy,
        also_served: ServedVersion,
    ) -> Self {
        Self {
            also_served: vec![also_served],
            #[cfg(test)]
            generate: generated::both::<New, Old>,
            ..Self::one::<New>(policy)
        }
    }

    /// A kind that is stored as `New` and served as `Old` and `Oldest` too.
    pub fn three<New: CustomResourceExt, Old: CustomResourceExt, Oldest: CustomResourceExt>(
        policy: StoragePolicy,
        also_served: [ServedVersion; 2],
    ) -> Self {
        Self {
            also_served: also_served.into(),
            #[cfg(test)]
            generate: generated::three::<New, Old, Oldest>,
            ..Self::one::<New>(policy)
        }
    }

    /// Fills in what a schema's defaults cannot say.
    pub fn completed_by(self, complete: Complete) -> Self {
        Self { complete: Some(complete), ..self }
    }

    /// What is written in these fields goes into a Secret, and is never read.
    pub fn sealed_by(self, sealing: &'static FieldSealing) -> Self {
        Self { sealing: Some(sealing), ..self }
    }

    /// Its objects have the name of their BareMetalHost, and move to another server with it.
    pub fn of_hosts(self) -> Self {
        Self { belongs_to_host: true, ..self }
    }

    /// Controllers keep so many bytes of each object beside it.
    pub fn costing(self, memory: usize) -> Self {
        Self { memory, ..self }
    }

    /// Controllers keep its objects parsed, as large as whoever writes them makes them.
    pub fn kept_parsed(self) -> Self {
        Self { is_kept_parsed: true, ..self }
    }

    /// Whether controllers keep its objects parsed.
    pub fn is_kept_parsed(&self) -> bool {
        self.is_kept_parsed
    }

    /// Bytes that controllers keep of each object beside it.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Group and plural, as `metal3.io/baremetalhosts`.
    pub fn storage(&self) -> String {
        let (plural, group) = self.name.split_once('.').unwrap_or((self.name, ""));
        format!("{group}/{plural}")
    }

    /// Plural and group, as `baremetalhosts.metal3.io`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether its objects move with their hosts.
    pub fn belongs_to_host(&self) -> bool {
        self.belongs_to_host
    }
}

/// A kind that Slipway defines beside the core kinds.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Names, schema, printer columns and subresources.
    pub crd: CustomResourceDefinition,
    /// How its objects are kept.
    pub policy: StoragePolicy,
    /// The versions that are served beside the stored one.
    pub also_served: Vec<ServedVersion>,
    /// What is filled in that a schema's defaults cannot say. Asked in every version.
    pub complete: Option<Complete>,
    /// What of its objects goes into a Secret.
    pub sealing: Option<&'static FieldSealing>,
}

/// A version of a kind that is served and not stored.
#[derive(Clone, Copy, Debug)]
pub struct ServedVersion {
    /// Its name.
    pub version: &'static str,
    /// Stored version to this one.
    pub from_storage: Convert,
    /// This version to the stored one.
    pub to_storage: Convert,
}

/// Fields of a kind whose content goes into a Secret of each object's own before the object is stored: nobody who reads the object,
/// its history or its events ever sees it.
#[derive(Debug)]
pub struct FieldSealing {
    /// What the Secret's name has behind that of the object.
    pub suffix: &'static str,
    /// The fields.
    pub fields: &'static [SealedField],
}

impl FieldSealing {
    /// Name of the Secret of an object.
    pub fn secret(&self, name: &str) -> String {
        format!("{name}{}", self.suffix)
    }
}

/// A field of the form `{value | secret{name, key}}`: `value` is written, `secret` is kept.
#[derive(Debug)]
pub struct SealedField {
    /// Where it is in an object.
    pub path: &'static [&'static str],
    /// Key in the Secret.
    pub key: &'static str,
}

/// Fills in what a client left out.
pub type Complete = fn(&mut Value);

impl Kind {
    /// A kind whose versions, when it has several, differ in name only.
    pub fn new(crd: CustomResourceDefinition, policy: StoragePolicy) -> Self {
        Self { crd, policy, also_served: Vec::new(), complete: None, sealing: None }
    }
}

/// The kinds that rooms declare, with their definitions.
pub fn define(declared: impl IntoIterator<Item = Declared>) -> Vec<Kind> {
    let mut written = definitions::written();
    let define = |one: Declared| Kind {
        // The test of the written definitions would have missed it.
        crd: written.remove(one.name).unwrap_or_default(),
        policy: one.policy,
        also_served: one.also_served,
        complete: one.complete,
        sealing: one.sealing,
    };
    declared.into_iter().map(define).collect()
}
