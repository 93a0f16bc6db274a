//! The context of decisions and effects: clients, caches and settings that they share.

use std::sync::Arc;

use kube::{Api, Client, Resource};

use super::recording::Recording;
use super::resets::Resets;
use crate::bmc::BmcRegistry;
use crate::boot::HostIndex;
use crate::config::HostConfig;
use crate::engine::Fence;
use crate::host::bmc_access::login_limits::LoginLimits;
use crate::host::bmc_access::status_cache::StatusCache;
use crate::host::directory::conflicts::ConflictIndex;
use crate::host::directory::equal_images::EqualImages;
use crate::host::media::Media;
use crate::host::status::metrics::HostMetrics;
use crate::live::Live;

/// What decisions about a host and their effects work with.
pub(in crate::host) struct HostContext {
    pub client: Client,
    pub bmcs: BmcRegistry,
    pub index: HostIndex,
    pub settings: Live<HostConfig>,
    pub power: StatusCache,
    pub fence: Fence,
    pub metrics: HostMetrics,
    /// What machines boot without the network; none where no boot HTTP runs.
    pub media: Option<Media>,
    pub conflicts: Arc<ConflictIndex>,
    pub equal: EqualImages,
    pub logins: Arc<LoginLimits>,
    pub resets: Resets,
    pub recording: Recording,
    /// Held by who lets go of Secrets.
    pub releasing: tokio::sync::Mutex<()>,
}

impl HostContext {
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}
