//! Webhooks (`admissionregistration.k8s.io/v1`): who else is asked before something is written.
//!
//! The configurations are objects ([`kinds`], [`location`]), read when they were written ([`configurations`], [`hook`]) as far as
//! there is memory for them ([`weight`]). A write
//! asks them between its draft and the store ([`write`]), a deletion before it is done ([`deletion`]); [`admit`] says who is asked and in which
//! order, [`review`] reads what they answer, [`endpoint`] is the way to them, and [`calls`] shares that way
//! among callers. [`conversion`] asks those that bring objects
//! of users' kinds into another version.
//!
//! Slipway's own rooms are not asked about: a webhook that is down must not keep machines from booting. Nor are the
//! configurations themselves, so that whoever may write them can always mend them.

mod admit;
mod calls;
mod commit;
mod configurations;
pub(super) mod conversion;
pub(super) mod converting;
mod deletion;
mod endpoint;
mod hook;
pub(super) mod kinds;
pub(super) mod location;
pub(super) mod meters;
mod remarks;
mod review;
mod weight;
mod write;

pub(super) use configurations::Webhooks;
pub(super) use deletion::WebhookDeletion;
pub(super) use endpoint::bundle_fault;
pub(super) use remarks::Remarks;
pub(super) use write::{Manner, PreparedWrite, prepare};
