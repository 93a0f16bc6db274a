//! The kinds that are served.
//!
//! [`registry`] is the table of all, and each row a [`resource`]. The rows are [`built_in`]: Kubernetes' own ([`core_kinds`],
//! [`core_schemas`], [`events`]) and this program's; or made of a definition, of this program or of a user ([`from_definition`]).

pub mod registry;

pub(super) mod built_in;
mod core_kinds;
pub(super) mod core_schemas;
pub(super) mod events;
pub(super) mod from_definition;
pub(super) mod resource;
