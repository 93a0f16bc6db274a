//! The contract between the rooms of a cluster, and with providers that run elsewhere.
//!
//! An object names another one by group, kind and name; whoever keeps the other says in fields that the contract names how far
//! it is. Nobody here needs the other's type: [`ReferencedObjects`] finds it, [`fields`] reads it in the shape of either
//! version of the contract. [`pause`] is what all of them have alike, [`template`] makes objects from templates, and [`size`]
//! says what is too large to be read.

pub mod fields;
mod names;
mod objects;
pub mod pause;
pub mod size;
pub mod template;
mod version;

pub use names::{fresh, named_by};
pub use objects::{FoundObject, ReferenceError, ReferencedObjects};
pub use version::{KubeVersion, count_versions, version_of};

/// Objects of one kind and one namespace that are looked at at once: clusters of others are not to wait for those of one.
pub const OF_A_NAMESPACE: u16 = 16;
