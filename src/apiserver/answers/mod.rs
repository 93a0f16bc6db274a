//! What is answered, and in which form.
//!
//! [`status`] is every error. [`encoding`] chooses between JSON for programs, [`indent`]ed JSON and [`yaml`] for people. A list of any
//! length is written piece by piece: [`list_body`], and [`pretty_body`] for people. [`table`] is what `kubectl get` prints, by
//! [`columns`] of the kind, for which [`projection`] reads of an object only what they look at.

pub(super) mod columns;
pub(super) mod encoding;
mod indent;
pub(super) mod list_body;
pub(super) mod pretty_body;
mod projection;
pub(super) mod status;
pub(super) mod table;
mod yaml;
