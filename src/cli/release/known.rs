//! The releases of a server, and which clusters use them.

use anyhow::{Context, bail};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::api::kaas::{ClusterRelease, KaaSRelease};
use crate::cli::client::ServerArgs;
use crate::release::catalogue::join::{NoActive, active};
use crate::release::catalogue::users::{ReleaseUser, users};

/// What a server knows.
pub(super) struct ServerReleases {
    /// By name.
    pub kaas: Vec<KaaSRelease>,
    /// By name.
    pub clusters: Vec<ClusterRelease>,
    /// `None` when the caller may not see clusters.
    pub users: Option<Vec<ReleaseUser>>,
}

impl ServerReleases {
    pub(super) async fn read(client: &Client) -> anyhow::Result<Self> {
        let all = ListParams::default();
        let kaas = match Api::<KaaSRelease>::all(client.clone()).list(&all).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                bail!(
                    "this API server has no releases: clusters from releases are the appliance's own (docs/releases.md)"
                );
            }
            kaas => kaas.context("KaaSReleases")?.items,
        };
        let clusters = Api::<ClusterRelease>::all(client.clone()).list(&all).await.context("ClusterReleases")?.items;
        let of = async |group: &str, kind: &str| objects(client, group, kind).await;
        let (objects, lcm) = (of("cluster.k8s.io", "Cluster").await?, of("lcm.mirantis.com", "LCMCluster").await?);
        let users = objects.zip(lcm).map(|(clusters, lcm)| users(&clusters, &lcm));
        Ok(Self { kaas, clusters, users })
    }

    /// The active KaaSRelease.
    pub(super) fn active(&self) -> Result<&KaaSRelease, NoActive> {
        active(&self.kaas)
    }

    /// A ClusterRelease by its name.
    pub(super) fn cluster(&self, name: &str) -> Option<&ClusterRelease> {
        self.clusters.iter().find(|release| release.name_any() == name)
    }

    /// Clusters that use a ClusterRelease.
    pub(super) fn users_of(&self, name: &str) -> Option<Vec<String>> {
        self.users.as_ref().map(|users| crate::release::catalogue::users::of(users, name))
    }
}

/// A client of the server.
pub(super) async fn connect(server: &ServerArgs) -> anyhow::Result<Client> {
    Ok(server.connect().await?.client)
}

/// Objects of all namespaces as they are; none where the server has no such kind, `None` when the caller may not see them.
async fn objects(client: &Client, group: &str, kind: &str) -> anyhow::Result<Option<Vec<Value>>> {
    let resource = ApiResource {
        group: group.into(),
        version: "v1alpha1".into(),
        api_version: format!("{group}/v1alpha1"),
        kind: kind.into(),
        plural: format!("{}s", kind.to_lowercase()),
    };
    match Api::<DynamicObject>::all_with(client.clone(), &resource).list(&ListParams::default()).await {
        Ok(list) => {
            let values: Result<Vec<Value>, _> = list.items.iter().map(serde_json::to_value).collect();
            Ok(Some(values?))
        }
        Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Some(Vec::new())),
        Err(error) => Err(error).with_context(|| resource.plural),
    }
}
