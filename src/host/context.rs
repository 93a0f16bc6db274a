//! The context of decisions and effects: clients, caches and settings that they share.

use std::sync::Arc;

use kube::{Api, Client, Resource, ResourceExt};

use super::crowd::Crowd;
use super::logins::Logins;
use super::media::Media;
use super::metrics::Metrics;
use super::readings::Readings;
use super::resets::Resets;
use crate::bmc::Registry;
use crate::boot::HostIndex;
use crate::config::HostConfig;
use crate::engine::Fence;

/// What decisions about a host and their effects work with.
pub(super) struct Context {
    pub client: Client,
    pub bmcs: Registry,
    pub index: HostIndex,
    pub settings: HostConfig,
    pub power: Readings,
    pub fence: Fence,
    pub metrics: Metrics,
    /// What machines boot without the network; none where no boot HTTP runs.
    pub media: Option<Media>,
    pub crowd: Arc<Crowd>,
    pub logins: Arc<Logins>,
    pub resets: Resets,
    /// Held by who lets go of Secrets.
    pub releasing: tokio::sync::Mutex<()>,
}

impl Context {
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// How the log names a host.
pub(super) fn label(host: &impl ResourceExt) -> String {
    format!("{}/{}", host.namespace().unwrap_or_default(), host.name_any())
}
