//! What a client can find out before it asks for objects: which [`groups`], versions and resources there are, and their schemas as
//! [`openapi`] documents.

pub(super) mod groups;
pub(super) mod openapi;
