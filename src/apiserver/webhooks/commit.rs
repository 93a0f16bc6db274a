//! Configurations are written one at a time, and are in force when the write is answered.

use std::sync::Arc;

use super::super::server::ApiServer;
use super::weight;
use crate::store::{Mutation, Object, StoreWriteError};

impl ApiServer {
    /// Writes a configuration, which is in force then. The caller may be dropped meanwhile: both are done.
    pub(in crate::apiserver) async fn commit_configuration(
        &self,
        change: Mutation,
    ) -> Result<Arc<Object>, StoreWriteError> {
        let api = self.clone();
        let both = async move {
            let webhooks = &api.inner.webhooks;
            let mut known = webhooks.known.lock().await;
            if let Some(value) = &change.value {
                known.check_room(&change.resource, &change.name, weight::of(value))?;
            }
            let written = api.store().write(change).await?;
            webhooks.read(&mut known, api.store()).await;
            Ok(written)
        };
        match tokio::spawn(both).await {
            Ok(result) => result,
            Err(panic) => Err(StoreWriteError::Failed(panic.to_string())),
        }
    }

    /// Puts the configurations that are stored into force.
    pub(in crate::apiserver) async fn read_configurations(&self) {
        let webhooks = &self.inner.webhooks;
        webhooks.read(&mut *webhooks.known.lock().await, self.store()).await;
    }
}
