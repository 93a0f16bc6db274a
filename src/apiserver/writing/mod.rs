//! Requests that write.
//!
//! [`write`](mod@write) is the pipeline of create, update, patch and apply: a draft, what becomes of it ([`write_strategy`]), one change
//! in the store. How a draft is made of an object: [`patch`], [`strategic`] for Kubernetes' own kind of patch, [`apply`] for server-side
//! apply, whose owners of fields [`managed_fields`] keeps for all requests. [`scale`] writes an object through its small view.
//! [`delete`] is what becomes of an object that goes, whoever asks for it, and [`delete_request`] a client that does.

pub(super) mod apply;
pub(super) mod delete;
pub(super) mod delete_request;
pub(super) mod managed_fields;
pub(super) mod patch;
pub(super) mod scale;
mod seal;
mod strategic;
pub(super) mod write;
pub(super) mod write_strategy;
