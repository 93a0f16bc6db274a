//! Addresses for machines: `ipam.metal3.io`, and the claims of `ipam.cluster.x-k8s.io` that are for its pools.
//!
//! An IPPool has ranges of addresses. A claim of either group gets one of them: an object whose name says which address it is, and
//! that is there as long as the claim is. What is decided is in [`plan`], as a pure function of what is known; what is written, in
//! [`effects`], in an order that leaves no address with two claims wherever it ends.

mod admission;
mod allocation;
mod effects;
mod groups;
mod index;
mod plan;
mod pools;
mod ranges;
mod strays;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::stream;
use kube::Client;
use tokio_util::sync::CancellationToken;

use self::groups::{ClusterApiGroup, Kinds, Metal3IpamGroup, PoolGroup};
use self::index::IpamIndex;
use self::pools::Pools;
use self::strays::StrayAddressClaims;
use crate::api::cluster::v1beta2::Cluster;
use crate::api::ipam::metal3::{IPAddress, IPClaim, IPPool};
use crate::api::ipam::{convert, metal3, v1alpha1, v1beta1, v1beta2};
use crate::api::{Declared, ServedVersion, StoragePolicy, ipam};
use crate::apiserver::AdmissionRules;
use crate::config::Config;
use crate::module::{Acting, KEEPS, Life, Module, Right, Service, service};
use crate::runtime::{Cache, Mention, ObjectKey, Slim, WatchChange, Watches, key, run};

/// What is kept of each claim and address beside the store.
const MEMORY: usize = 1500;

/// Pools, claims and addresses of both groups.
pub fn module() -> Module {
    let version = |version, from_storage, to_storage| ServedVersion { version, from_storage, to_storage };
    Module {
        kinds: [
            Declared::one::<IPPool>(StoragePolicy::Durable),
            Declared::one::<IPClaim>(StoragePolicy::Durable).costing(MEMORY),
            Declared::one::<IPAddress>(StoragePolicy::Durable).costing(MEMORY),
            Declared::three::<v1beta2::IPAddressClaim, v1beta1::IPAddressClaim, v1alpha1::IPAddressClaim>(
                StoragePolicy::Durable,
                [
                    version("v1beta1", convert::claim_from_storage, convert::claim_to_storage),
                    version("v1alpha1", convert::claim_alpha_from_storage, convert::claim_to_storage),
                ],
            )
            .costing(MEMORY),
            Declared::three::<v1beta2::IPAddress, v1beta1::IPAddress, v1alpha1::IPAddress>(
                StoragePolicy::Durable,
                [
                    version("v1beta1", convert::address_from_storage, convert::address_to_storage),
                    version("v1alpha1", convert::address_alpha_from_storage, convert::address_to_storage),
                ],
            )
            .costing(MEMORY),
        ]
        .into_iter()
        .map(Declared::kept_parsed)
        .collect(),
        rights: &[
            Right {
                group: metal3::GROUP,
                resources: &[
                    "ippools",
                    "ippools/status",
                    "ippools/finalizers",
                    "ipclaims",
                    "ipclaims/status",
                    "ipclaims/finalizers",
                    "ipaddresses",
                    "ipaddresses/finalizers",
                ],
                verbs: KEEPS,
                reason: "Addresses for machines.",
            },
            Right {
                group: ipam::GROUP,
                resources: &[
                    "ipaddressclaims",
                    "ipaddressclaims/status",
                    "ipaddressclaims/finalizers",
                    "ipaddresses",
                    "ipaddresses/finalizers",
                ],
                verbs: KEEPS,
                reason: "",
            },
            Right {
                group: crate::api::cluster::GROUP,
                resources: &["clusters"],
                verbs: &["get", "list", "watch"],
                reason: "A pool goes with its cluster, and rests while that does.",
            },
        ],
    }
}

/// Gives addresses to claims. Cheap to clone.
#[derive(Clone)]
pub struct IpamLife {
    pools: Cache<Slim<IPPool>>,
    claims: Cache<Slim<IPClaim>>,
    /// None where others answer them.
    contract_claims: Option<Cache<Slim<v1beta2::IPAddressClaim>>>,
    index: IpamIndex,
}

impl IpamLife {
    /// As the configuration says; `None` where others give addresses.
    pub fn new(watches: &mut Watches, config: &Config) -> Option<Self> {
        let elsewhere = config.engine.kubeconfig.is_some();
        let acts = |group: &str| config.cluster.acts_on(group, elsewhere);
        acts(metal3::GROUP).then(|| Self::watching(watches, acts(ipam::GROUP)))
    }

    /// Watches everything that counts.
    pub(in crate::cluster) fn watching(watches: &mut Watches, contract: bool) -> Self {
        let cluster = |pool: &IPPool| {
            let (namespace, _) = key(pool);
            let name = pool.spec.cluster_name.as_deref().filter(|name| !name.is_empty());
            name.map(|name| of_cluster(&namespace, name)).into_iter().collect()
        };
        let pools = Cache::indexed(watches, |pool: &IPPool| Slim::from(pool), cluster);
        let wakes = || pools.wakes().clone();
        let index = IpamIndex::default();
        index.follow_addresses::<Metal3IpamGroup>(watches, wakes());
        index.follow_addresses::<ClusterApiGroup>(watches, wakes());
        index.follow_claims::<Metal3IpamGroup>(watches, wakes());
        let claims = Cache::new(watches, |claim: &IPClaim| Slim::from(claim));
        let contract_claims = contract.then(|| {
            index.follow_claims::<ClusterApiGroup>(watches, wakes());
            Cache::new(watches, |claim: &v1beta2::IPAddressClaim| Slim::from(claim))
        });
        let addresses = Self { pools, claims, contract_claims, index };
        addresses.follow_pools(watches);
        addresses.follow_clusters(watches);
        addresses
    }

    /// Without their pool, claims are looked at themselves.
    fn follow_pools(&self, watches: &mut Watches) {
        let known = self.clone();
        watches.observe(move |change: &WatchChange<'_, IPPool>| {
            let WatchChange::Gone(pool) = change else { return };
            let wake = |group: PoolGroup, claims: &crate::runtime::Wakes| {
                let names = known.index.claims_of(pool, group);
                names.into_iter().for_each(|name| claims.wake((pool.0.clone(), name)));
            };
            wake(Metal3IpamGroup::GROUP, known.claims.wakes());
            if let Some(claims) = &known.contract_claims {
                wake(ClusterApiGroup::GROUP, claims.wakes());
            }
        });
    }

    /// A cluster that comes, or is no longer paused, may be waited for.
    fn follow_clusters(&self, watches: &mut Watches) {
        let pools = self.pools.clone();
        let mut known: std::collections::HashMap<ObjectKey, (Option<String>, bool)> = Default::default();
        watches.observe(move |change: &WatchChange<'_, Cluster>| {
            let (namespace, name) = match change {
                WatchChange::Put(cluster) => {
                    let place = key(*cluster);
                    let now = (cluster.metadata.uid.clone(), cluster.spec.paused == Some(true));
                    if known.insert(place.clone(), now.clone()) == Some(now) {
                        return;
                    }
                    place
                }
                WatchChange::Gone(place) => {
                    known.remove(*place);
                    return;
                }
                WatchChange::Listed => return,
            };
            pools.wake_mentioning(&of_cluster(&namespace, &name));
        });
    }
}

/// A cluster, as the one that a pool is of.
fn of_cluster(namespace: &str, name: &str) -> Mention {
    Mention::new("Cluster", namespace, name)
}

impl Life for IpamLife {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        rules()
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        Ok(self.services(&acting.client, &acting.stop))
    }
}

impl IpamLife {
    /// What gives addresses until it is stopped.
    pub(in crate::cluster) fn services(&self, client: &Client, stop: &CancellationToken) -> Vec<Service> {
        let index = &self.index;
        let Self { pools, claims, contract_claims, .. } = self.clone();
        let giving = Arc::new(Pools { client: client.clone(), index: index.clone() });
        let strays = Arc::new(StrayAddressClaims::<Metal3IpamGroup>::new(client.clone(), index.clone()));
        let token = stop.clone();
        let mut services =
            vec![service("address pools", async move { run(giving, &pools, stream::empty(), token).await })];
        let token = stop.clone();
        services.push(service("address claims", async move { run(strays, &claims, stream::empty(), token).await }));
        if let Some(claims) = contract_claims {
            let strays = Arc::new(StrayAddressClaims::<ClusterApiGroup>::new(client.clone(), index.clone()));
            let token = stop.clone();
            services.push(service("address claims of Cluster API", async move {
                run(strays, &claims, stream::empty(), token).await;
            }));
        }
        services
    }
}

fn rules() -> Vec<(&'static str, AdmissionRules)> {
    let rules = admission::RULES.into_iter();
    let admission = |rules| -> AdmissionRules { Arc::new(move |request| admission::admit(rules, request)) };
    rules.map(|(kind, rules)| (kind, admission(rules))).collect()
}
