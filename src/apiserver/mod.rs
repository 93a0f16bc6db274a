//! The Kubernetes-shaped REST API over the store: what kubectl and every Kubernetes client library talk to.
//!
//! A request goes through: [`tls`] (who is it), [`request`] (what does it want), [`auth`] (may it), then one of
//! `read`, `watch`, `write`, `delete`, or `discovery` and `openapi`. What there is to serve is one table, the
//! [`registry`]; a new kind needs nothing here, and `crd` makes a new table when a kind is defined at run time.
//! `sweep` does what nobody asks for: garbage collection, the end of namespaces, forgetting events.
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
mod aside;
mod backup;
mod body;
mod built_in;
mod call;
mod columns;
mod connections;
mod core_kinds;
mod core_schemas;
mod crd;
mod delete;
mod dependents;
mod discovery;
mod dispatch;
mod events;
mod garbage;
mod guarded;
mod held;
mod holdings;
mod indent;
mod items;
mod lines;
mod linger;
mod list;
mod meta;
pub mod metrics;
mod names;
mod of_definition;
mod openapi;
mod options;
mod overload;
mod ownership;
mod patch;
mod pick;
mod progress;
mod protobuf;
mod read;
mod request;
mod scale;
mod schema;
mod selectors;
mod server;
mod shape;
mod shares;
mod start;
mod status;
mod strategic;
mod sweep;
mod table;
mod text;
mod turns;
mod versions;
mod watch;
mod weight;
mod write;
mod yaml;

#[cfg(test)]
mod tests;

pub use admission::{AdministratorsPage, Admission, AdmissionRequest, Operation, View, ViewRequest};
pub use auth::Identity;
pub use built_in::registry;
pub(crate) use columns::age;
pub(crate) use names::subdomain;
pub use of_definition::RegistryError;
pub use registry::Registry;
pub use request::Target;
pub use resource::Resource;
pub use server::ApiServer;
pub(crate) use shares::PEOPLE;
pub use start::ApiServerError;
pub use status::{ApiError, FieldError, FieldFault};
