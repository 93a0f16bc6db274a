//! A request, from its head to its handler.
//!
//! [`dispatch`] is the way of each: who is it, may they, is there a place, which handler. [`request`] reads the head (path, parameters,
//! what the answer is to be), [`options`] those of writing requests, [`body`] the body, in JSON, YAML or [`protobuf`], after
//! [`json_values`] has counted what it would be in memory; [`unread_body`] throws away what nobody read of it. [`request_context`] is
//! what a handler gets.

pub(super) mod body;
pub(super) mod dispatch;
pub(super) mod json_values;
pub(super) mod options;
pub(super) mod protobuf;
pub(super) mod request;
pub(super) mod request_context;
pub(super) mod unread_body;
