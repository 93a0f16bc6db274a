//! The Kubernetes-shaped REST API over the store: what kubectl and every Kubernetes client library talk to.
//!
//! The rooms in the order in which a request comes through them. What there is to serve is one table, the [`registry`]; a new kind
//! needs nothing here, and `crd` makes a new table when a kind is defined at run time.
//!
//! | room | what it is |
//! |---|---|
//! | [`listener`] | the port: TLS, how many connections there may be, what they hold in memory |
//! | [`requests`] | a request from its head to its handler: path, parameters, body, dispatch |
//! | [`auth`] | who calls, and what they may do: certificates, tokens, roles |
//! | [`audit`] | a line for each change, and for each reading of Secrets |
//! | [`shares`] | what requests take of the appliance, divided among callers |
//! | [`reading`] | get, list, watch |
//! | [`writing`] | create, update, patch, apply, scale, delete |
//! | [`webhooks`] | who else is asked before something is written |
//! | [`answers`] | status, JSON, YAML, tables, lists piece by piece |
//! | [`objects`] | what all objects have: metadata, names, labels and selectors, versions |
//! | [`schema`] | structural schemas and CEL: pruning, defaults, validation |
//! | [`kinds`] | the kinds that are served: the registry, core kinds, those of a definition |
//! | [`crd`] | kinds that users define at run time |
//! | [`discovery`] | which kinds there are, and OpenAPI documents of them |
//! | [`endpoints`] | paths beside those of objects: health, metrics, the backup |
//! | [`extensions`] | what rooms above the API bring: rules, views, pages, uploads, faces |
//! | [`upkeep`] | what nobody asks for: garbage collection, the end of namespaces, old events |
//!
//! [`server`] is what all handlers know, and [`start`] what is written before anything is served. The same router serves the network
//! and, without a socket, this process ([`ApiServer::client`]).

pub mod audit;
pub mod auth;
#[cfg(any(test, fuzzing))]
pub mod fuzz;

mod answers;
mod crd;
mod discovery;
mod endpoints;
mod extensions;
mod kinds;
mod listener;
mod objects;
mod reading;
mod requests;
mod schema;
mod server;
mod shares;
mod start;
mod upkeep;
mod webhooks;
mod writing;

#[cfg(test)]
mod tests;

pub(crate) use answers::columns::age;
pub use answers::status::{ApiError, FieldError, FieldFault};
pub use auth::UserIdentity;
pub use endpoints::{health, metrics};
pub use extensions::admission::{
    AdministratorsPage, AdmissionOperation, AdmissionRequest, AdmissionRules, CallerRights, ObjectView, Upload,
    UploadRequest, ViewRequest,
};
pub use extensions::face::{Face, FaceCaller};
pub use kinds::built_in::registry;
pub use kinds::from_definition::RegistryError;
pub use kinds::registry::{self, ResourceRegistry};
pub use kinds::resource::ServedResource;
pub use listener::tls;
pub(crate) use objects::names::subdomain;
pub(crate) use objects::selectors::is_label_value;
pub use requests::request::RequestTarget;
pub use server::ApiServer;
pub(crate) use shares::caller_shares::PEOPLE;
pub use start::ApiServerError;
