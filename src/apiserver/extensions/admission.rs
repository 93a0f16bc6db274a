//! What rooms above the API bring: rules for changes of a kind, views of its objects, pages beside the API.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::apiserver::answers::status::{ApiError, FieldError};
use crate::apiserver::auth::{Attributes, Auth, UserIdentity};
use crate::apiserver::kinds::resource::ServedResource;

/// What is being done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionOperation {
    /// It is new.
    Create,
    /// It changes.
    Update,
    /// It is to go.
    Delete,
}

/// What else a caller may do.
#[derive(Clone, Copy)]
pub struct CallerRights<'r> {
    pub(in crate::apiserver) auth: &'r Auth,
    pub(in crate::apiserver) identity: &'r UserIdentity,
}

impl CallerRights<'_> {
    /// Whether the caller's roles allow this, too: what a room does because of a change must not be more than who made it might do.
    pub fn allow(&self, wanted: &Attributes<'_>) -> bool {
        self.auth.authorize(Some(self.identity), wanted).is_ok()
    }
}

impl std::fmt::Debug for CallerRights<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.identity.fmt(f)
    }
}

/// A change that a room may refuse.
#[derive(Debug)]
pub struct AdmissionRequest<'r> {
    /// What kind of object.
    pub resource: &'r ServedResource,
    /// What is being done.
    pub operation: AdmissionOperation,
    /// Whether only the status changes.
    pub status: bool,
    /// The new object, complete; for a deletion the one that is to go.
    pub object: &'r Value,
    /// Its former self; `None` for a creation.
    pub old: Option<&'r Value>,
    /// Who asks.
    pub identity: &'r UserIdentity,
    /// What else they may do.
    pub rights: CallerRights<'r>,
}

/// Rules of a room for a kind: what is wrong with the change. Called under no lock, possibly many times at once.
pub type AdmissionRules = Arc<dyn Fn(&AdmissionRequest<'_>) -> Result<(), Vec<FieldError>> + Send + Sync>;

/// The caller of a room's view of an object, see [`ApiServer::add_view`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewRequest {
    /// Namespace of the object, empty when it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The query, as it came.
    pub query: String,
}

/// Answers `GET …/NAME/VIEW`, a subresource that can only be read. The object is there, and the caller may read the view.
pub type ObjectView = Arc<dyn Fn(ViewRequest) -> BoxFuture<'static, Result<Response, ApiError>> + Send + Sync>;

/// The caller of a room's upload, see [`ApiServer::add_upload`].
#[derive(Debug)]
pub struct UploadRequest {
    /// The object, as it is stored.
    pub object: Value,
    /// The query, as it came.
    pub query: String,
    /// The piece; none when it is asked what has come.
    pub piece: Option<Body>,
    /// As whom the caller counts where something is shared among callers.
    pub caller: String,
}

/// Takes what is sent to an object. The object is there, and the caller may do so.
pub type Upload = Arc<dyn Fn(UploadRequest) -> BoxFuture<'static, Result<Response, ApiError>> + Send + Sync>;

/// Answers a path beside the API that is for administrators only, see [`ApiServer::set_backup`].
pub type AdministratorsPage = Arc<dyn Fn() -> BoxFuture<'static, Result<Response, ApiError>> + Send + Sync>;
