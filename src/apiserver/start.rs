//! Start of the server: what it writes into its store before it serves.

use std::sync::Arc;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::auth;
use super::endpoints::health;
use super::kinds::built_in;
use super::kinds::from_definition::RegistryError;
use super::objects::meta;
use super::server::ApiServer;
use super::writing::delete;
use crate::api::Kind;
use crate::store::{Expect, Mutation, Store, StoreWriteError};

/// The server cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ApiServerError {
    /// A kind is defined wrongly.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Tokens cannot be signed.
    #[error(transparent)]
    TokenKey(#[from] auth::JwtKeyError),
    /// The default roles cannot be written.
    #[error("cannot write the default roles: {0}")]
    Roles(StoreWriteError),
    /// The definitions of the built-in kinds cannot be written.
    #[error("cannot write the definitions of the built-in kinds: {0}")]
    Definitions(StoreWriteError),
    /// The permanent namespaces cannot be written.
    #[error("cannot create namespace {name}: {source}")]
    Namespace {
        /// Its name.
        name: &'static str,
        /// Why.
        source: StoreWriteError,
    },
}

impl ApiServer {
    /// A server for these kinds and the core kinds. Watches end when `shutdown` is cancelled.
    ///
    /// # Errors
    ///
    /// [`ApiServerError`] when a kind is defined wrongly or the store refuses to write.
    pub async fn new(store: Store, kinds: &[Kind], shutdown: CancellationToken) -> Result<Self, ApiServerError> {
        Self::with_auth(store, kinds, auth::AuthOptions::default(), shutdown).await
    }

    /// As [`ApiServer::new`], with a key for tokens that outlives the process.
    ///
    /// # Errors
    ///
    /// As [`ApiServer::new`].
    pub async fn with_auth(
        store: Store,
        kinds: &[Kind],
        auth: auth::AuthOptions,
        shutdown: CancellationToken,
    ) -> Result<Self, ApiServerError> {
        let server = Self::of(store, built_in::registry(kinds)?, auth, shutdown)?;
        // Nobody has looked yet.
        server.owner_graph().check_everything();
        server.add_own_checks();
        let memory = server.inner.response_memory.clone();
        server.add_metrics(Arc::new(move |registry| memory.register(registry)));
        for name in delete::PERMANENT_NAMESPACES {
            server.make_namespace(name).await.map_err(|source| ApiServerError::Namespace { name, source })?;
        }
        server.make_default_roles().await.map_err(ApiServerError::Roles)?;
        server.install_definitions(kinds).await.map_err(ApiServerError::Definitions)?;
        server.read_configurations().await;
        Ok(server)
    }

    /// Writes a namespace unless it is there.
    pub(super) async fn make_namespace(&self, name: &str) -> Result<(), StoreWriteError> {
        let value = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "uid": uuid::Uuid::new_v4().to_string(),
                "creationTimestamp": meta::now(),
                "labels": {"kubernetes.io/metadata.name": name},
            },
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        });
        let change = Mutation {
            resource: "/namespaces".into(),
            namespace: String::new(),
            name: name.to_owned(),
            expect: Expect::Absent,
            value: Some(value),
        };
        match self.store().write(change).await {
            Ok(_) | Err(StoreWriteError::Exists) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn add_own_checks(&self) {
        self.add_check("ping", health::HealthScope::Life, Arc::new(|| Ok(())));
        let store = self.store().clone();
        let writable = move || store.writable().map_err(|error| error.to_string());
        self.add_check("store", health::HealthScope::Life, Arc::new(writable));
        let shutdown = self.shutdown().clone();
        let stays = move || if shutdown.is_cancelled() { Err("process is shutting down".to_owned()) } else { Ok(()) };
        self.add_check("shutdown", health::HealthScope::Readiness, Arc::new(stays));
    }
}
