//! Data for machines: `infrastructure.cluster.x-k8s.io` Metal3DataTemplate, Metal3DataClaim and Metal3Data.
//!
//! A Metal3Machine claims data of a template. The claim gets the lowest index that no other has, and with it a Metal3Data whose
//! name says which index that is. For a Metal3Data addresses are claimed of each pool that the template names, in whichever group;
//! when they are there, meta data and network data are rendered, and stored as Secrets that a config drive is made of.

mod addresses;
mod admission;
mod index;
mod machine;
mod meta_data;
mod network_data;
mod plan;
mod pools;
mod render;
mod secrets;
mod strays;
mod templates;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::stream;
use kube::Client;
use tokio_util::sync::CancellationToken;

use self::index::{DataIndex, WakeTargets};
use self::render::Rendering;
use self::strays::StrayDataClaims;
use self::templates::Templates;
use crate::api::infrastructure::data::v1beta2::{Metal3Data, Metal3DataClaim, Metal3DataTemplate};
use crate::api::infrastructure::data::{convert, v1beta1};
use crate::api::{Declared, ServedVersion, StoragePolicy, cluster, infrastructure, ipam};
use crate::apiserver::AdmissionRules;
use crate::config::Config;
use crate::module::{Acting, KEEPS, Life, Module, Right, Service, service};
use crate::runtime::{Cache, Mention, Slim, WatchChange, Watches, key, run};

/// What is kept of each claim and data beside the store.
const MEMORY: usize = 2000;

/// Templates, claims and data: stored as v1beta2 and served as v1beta1 too.
pub fn module() -> Module {
    let old = |from_storage, to_storage| ServedVersion { version: "v1beta1", from_storage, to_storage };
    let durable = StoragePolicy::Durable;
    Module {
        kinds: [
            Declared::both::<Metal3DataTemplate, v1beta1::Metal3DataTemplate>(
                durable,
                old(convert::template_from_storage, convert::template_to_storage),
            ),
            Declared::both::<Metal3DataClaim, v1beta1::Metal3DataClaim>(
                durable,
                old(convert::claim_from_storage, convert::claim_to_storage),
            )
            .costing(MEMORY),
            Declared::both::<Metal3Data, v1beta1::Metal3Data>(
                durable,
                old(convert::data_from_storage, convert::data_to_storage),
            )
            .costing(MEMORY),
        ]
        .into_iter()
        .map(Declared::kept_parsed)
        .collect(),
        rights: &[
            Right {
                group: infrastructure::GROUP,
                resources: &[
                    "metal3datatemplates",
                    "metal3datatemplates/status",
                    "metal3datatemplates/finalizers",
                    "metal3dataclaims",
                    "metal3dataclaims/status",
                    "metal3dataclaims/finalizers",
                    "metal3datas",
                    "metal3datas/status",
                    "metal3datas/finalizers",
                ],
                verbs: KEEPS,
                reason: "Data for machines.",
            },
            Right {
                group: infrastructure::GROUP,
                resources: &["metal3machines"],
                verbs: &["get", "list", "watch"],
                reason: "",
            },
            Right {
                group: cluster::GROUP,
                resources: &["clusters", "machines"],
                verbs: &["get", "list", "watch"],
                reason: "Data is made of the names, labels and annotations of a machine's objects.",
            },
            Right {
                group: "metal3.io",
                resources: &["baremetalhosts", "hardwaredata"],
                verbs: &["get"],
                reason: "And of its host's network interfaces.",
            },
            Right {
                group: ipam::metal3::GROUP,
                resources: &["ipclaims"],
                verbs: KEEPS,
                reason: "And of addresses, which are claimed for it.",
            },
            Right { group: ipam::metal3::GROUP, resources: &["ipaddresses"], verbs: &["get"], reason: "" },
            Right { group: ipam::GROUP, resources: &["ipaddressclaims"], verbs: KEEPS, reason: "" },
            Right { group: ipam::GROUP, resources: &["ipaddresses"], verbs: &["get"], reason: "" },
            Right { group: "", resources: &["secrets"], verbs: &["get", "create"], reason: "The data is a Secret." },
        ],
    }
}

/// Makes the data of machines. Cheap to clone.
#[derive(Clone)]
pub struct MachineData {
    templates: Cache<Slim<Metal3DataTemplate>>,
    claims: Cache<Slim<Metal3DataClaim>>,
    data: Cache<Slim<Metal3Data>>,
    index: DataIndex,
}

impl MachineData {
    /// As the configuration says; `None` where others make it.
    pub fn new(watches: &mut Watches, config: &Config) -> Option<Self> {
        let elsewhere = config.engine.kubeconfig.is_some();
        config.cluster.acts_on(infrastructure::GROUP, elsewhere).then(|| Self::watching(watches))
    }

    /// Watches everything that counts.
    pub(in crate::cluster) fn watching(watches: &mut Watches) -> Self {
        let templates = Cache::new(watches, |template: &Metal3DataTemplate| Slim::from(template));
        let claim = |data: &Metal3Data| {
            let claim = data.spec.claim.as_ref().filter(|_| data.metadata.deletion_timestamp.is_some());
            claim.map(|claim| goes_with(&key(data).0, &claim.name)).into_iter().collect()
        };
        let data = Cache::indexed(watches, |data: &Metal3Data| Slim::from(data), claim);
        let claims = Cache::new(watches, |claim: &Metal3DataClaim| Slim::from(claim));
        let index = DataIndex::default();
        index.follow(watches, &WakeTargets { templates: templates.wakes().clone(), data: data.wakes().clone() });
        let all = Self { templates, claims, data, index };
        let known = all.clone();
        watches.observe(move |change: &WatchChange<'_, Metal3DataTemplate>| match change {
            // Without their template, claims are looked at themselves.
            WatchChange::Gone(template) => {
                let names = known.index.claims_of(template);
                names.into_iter().for_each(|name| known.claims.wakes().wake((template.0.clone(), name)));
            }
            WatchChange::Put(_) | WatchChange::Listed => {}
        });
        let known = all.clone();
        watches.observe(move |change: &WatchChange<'_, Metal3DataClaim>| {
            // Data that is to go waits for its claim.
            if let WatchChange::Gone((namespace, claim)) = change {
                known.data.wake_mentioning(&goes_with(namespace, claim));
            }
        });
        all
    }

    fn services(&self, client: &Client, stop: &CancellationToken) -> Vec<Service> {
        let (client, index) = (client.clone(), self.index.clone());
        let Self { templates, claims, data, .. } = self.clone();
        let giving = Arc::new(Templates { client: client.clone(), index: index.clone() });
        let strays = Arc::new(StrayDataClaims { client: client.clone(), index: index.clone() });
        let rendering = Arc::new(Rendering { client, index });
        let stops = [stop.clone(), stop.clone(), stop.clone()];
        let [first, second, third] = stops;
        vec![
            service("data templates", async move { run(giving, &templates, stream::empty(), first).await }),
            service("data claims", async move { run(strays, &claims, stream::empty(), second).await }),
            service("data of machines", async move { run(rendering, &data, stream::empty(), third).await }),
        ]
    }
}

/// A claim, as the one that data goes with.
fn goes_with(namespace: &str, claim: &str) -> Mention {
    Mention::new("Metal3DataClaim", namespace, claim)
}

impl Life for MachineData {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        rules()
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        Ok(self.services(&acting.client, &acting.stop))
    }
}

fn rules() -> Vec<(&'static str, AdmissionRules)> {
    let admission = |rules| -> AdmissionRules { Arc::new(move |request| admission::admit(rules, request)) };
    admission::RULES.into_iter().map(|(kind, rules)| (kind, admission(rules))).collect()
}
