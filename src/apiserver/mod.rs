//! The Kubernetes-shaped REST API over the store: what kubectl and every Kubernetes client library talk to.
//!
//! A request goes through: [`tls`] (who is it), [`request`] (what does it want), [`auth`] (may it), then one of
//! `read`, `watch`, `write`, `delete`, or `discovery` and `openapi`. What there is to serve is one table, the
//! [`registry`]; a new kind needs nothing here, and `crd` makes a new table when a kind is defined at run time.
//! `background` does what nobody asks for: garbage collection, the end of namespaces, forgetting events.
//!
//! The same router serves the network and, without a socket, this process ([`ApiServer::client`]).

pub mod audit;
pub mod auth;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod health;
pub mod registry;
mod resource;
pub mod tls;

mod admission;
mod apply;
mod background;
mod backup;
mod blocking;
mod body;
mod built_in;
mod caller_shares;
mod columns;
mod connection_activity;
mod connection_memory;
mod connection_meters;
mod connections;
mod core_kinds;
mod core_schemas;
mod crd;
mod delete;
mod delete_request;
mod discovery;
mod dispatch;
mod encoding;
mod events;
mod exchange_memory;
mod face;
mod from_definition;
mod garbage;
mod guarded;
mod indent;
mod inflight;
mod json_values;
mod lingering_close;
mod list;
mod list_body;
mod managed_fields;
mod meta;
pub mod metrics;
mod names;
mod openapi;
mod options;
mod owner_graph;
mod patch;
mod plain_http;
mod pretty_body;
mod projection;
mod protobuf;
mod read;
mod request;
mod request_context;
mod response_memory;
mod scale;
mod scan_scheduler;
mod schema;
mod selectors;
mod server;
mod start;
mod status;
mod strategic;
mod table;
mod unread_body;
mod upload;
mod versions;
mod watch;
mod webhooks;
mod write;
mod write_strategy;
mod yaml;

#[cfg(test)]
mod tests;

pub use admission::{
    AdministratorsPage, Admission, AdmissionRequest, Operation, Upload, UploadRequest, View, ViewRequest,
};
pub use auth::Identity;
pub use built_in::registry;
pub(crate) use caller_shares::PEOPLE;
pub(crate) use columns::age;
pub use face::{Face, FaceCaller};
pub use from_definition::RegistryError;
pub(crate) use names::subdomain;
pub use registry::Registry;
pub use request::Target;
pub use resource::Resource;
pub(crate) use selectors::is_label_value;
pub use server::ApiServer;
pub use start::ApiServerError;
pub use status::{ApiError, FieldError, FieldFault};
