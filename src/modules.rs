//! The list of modules. A new one is a line here; everything else about it stands in its own room.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;

use self::certificate::CertificateNames;
use self::disks::Disks;
use crate::api::infrastructure::v1beta2::MachineImage;
use crate::api::{self, Declared, Kind, StoragePolicy};
use crate::apiserver::AdmissionRules;
use crate::backup::ScheduledBackups;
use crate::bmc::quirks::{Quirks, QuirksError};
use crate::boot;
use crate::cluster;
use crate::cluster::contract::size;
use crate::cluster::hosts::HostPool;
use crate::cluster::hosts::patches::image_of;
use crate::cluster::workload::Workloads;
use crate::config::{Config, DefaultImage, HostConfig, WebhooksConfig};
use crate::dhcp::{self, Leases, Reservations, ServicePorts};
use crate::host::directory::Directory;
use crate::host::logs::Logs;
use crate::host::media::Media;
use crate::host::status::boot_refusals::BootRefusals;
use crate::host::status::metrics::HostMetrics;
use crate::host::{self, HostLife, MachineSettings};
use crate::image::controller::Images;
use crate::image::publish::{Published, Publishing};
use crate::image::{self, Importing, Library, Sources};
use crate::kubespray;
use crate::live::Live;
use crate::module::{Acting, KEEPS, Life, Module, Right, Service, rules, service};
use crate::outbound::Allowed;
use crate::pki::Pki;
use crate::release;
use crate::release::catalogue::known::Releases;
use crate::release::provider::{NodePreparer, Reach};
use crate::runtime::ClusterScopedViews;
use crate::runtime::tasks::{MANAGER, TaskView, publish};
use crate::runtime::{Tasks, Watches};
use crate::store::Store;

mod certificate;
mod disks;

/// Every life.
const LIVES: &[LifeEntry] = &[
    entry(host::module, |house| Some(Box::new(machines(house)))),
    of_clusters(cluster::core::module, clusters),
    of_clusters(cluster::control_plane::module, |house| Some(Box::new(control_planes(house)))),
    of_clusters(cluster::infrastructure::module, |house| Some(Box::new(infrastructure(house)))),
    of_clusters(cluster::certificates::module, certificates),
    of_clusters(cluster::bootstrap::module, bootstrap),
    of_clusters(cluster::data::module, |house| {
        Some(Box::new(cluster::data::MachineData::new(house.watches, house.config)?))
    }),
    of_clusters(cluster::ipam::module, |house| {
        Some(Box::new(cluster::ipam::IpamLife::new(house.watches, house.config)?))
    }),
    // After Cluster API's group: of two kinds of one name a client takes the one that it hears of first.
    of_clusters(cluster::machine_api::module, |house| Some(Box::new(machine_api(house)))),
    of_clusters(release::provider::module, |house| Some(Box::new(provider(house)))),
    entry(kubespray::provisioning::module, |house| {
        let (config, folder) = (&house.config.kubespray, house.config.data_dir.kubespray());
        let workloads = house.workloads.clone();
        let agent = kubespray::provisioning::ProvisioningAgent::new(house.watches, config, folder, workloads);
        let image = default_image(house.config).map(|image| image_of(&image));
        Some(Box::new(agent.with_default_image(image).hiding(house.config.private_paths())))
    }),
    embedded(release::catalogue::module, |house| {
        Some(Box::new(release::catalogue::Catalogue::new(house.store.clone())))
    }),
    embedded(release::updates::module, |house| Some(Box::new(updates(house)))),
    embedded(release::access::module, access),
    embedded(release::provider::of_access, |_| None),
    embedded(release::lcm::module, lcm),
    entry(Module::default, helm_controllers),
    entry(image::module, |house| Some(Box::new(importing(house)))),
    entry(dhcp::module, |house| Some(Box::new(addresses(house)))),
    entry(Module::default, |house| Some(Box::new(ScheduledBackups::of(house.config)))),
    entry(Module::default, |house| Some(Box::new(certificate_names(house)))),
    entry(Module::default, |house| Some(Box::new(Disks::of(house.config)))),
    entry(tasks, |house| Some(Box::new(Supervised(house.tasks.clone())))),
];

/// A life: what is known of it, and how it begins in a process.
struct LifeEntry {
    module: fn() -> Module,
    begin: BeginLife,
    /// Who may keep its kinds.
    keeper: KindKeeper,
}

/// Who may keep the kinds of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KindKeeper {
    /// Either API server, and with an API server of Kubernetes Slipway acts on them all the same.
    Either,
    /// Either API server; one of Kubernetes has them of Cluster API. They are kinds of clusters: there is a bound of how much may be
    /// in an object.
    ClusterApi,
    /// The embedded API server alone.
    Embedded,
}

/// Makes what runs of a life, if anything does.
type BeginLife = fn(&mut House<'_>) -> Option<Box<dyn Life>>;

const fn entry(module: fn() -> Module, begin: BeginLife) -> LifeEntry {
    LifeEntry { module, begin, keeper: KindKeeper::Either }
}

/// One whose kinds are those of Cluster API's and Metal3's managers.
const fn of_clusters(module: fn() -> Module, begin: BeginLife) -> LifeEntry {
    LifeEntry { module, begin, keeper: KindKeeper::ClusterApi }
}

/// One whose kinds are not offered where another API server keeps the objects.
const fn embedded(module: fn() -> Module, begin: BeginLife) -> LifeEntry {
    LifeEntry { module, begin, keeper: KindKeeper::Embedded }
}

/// What lives share in a process.
pub struct House<'a> {
    /// Tell what happens to objects.
    pub watches: &'a mut Watches,
    /// What is done by itself.
    pub tasks: &'a Tasks,
    /// The configuration.
    pub config: &'a Config,
    /// Keys and certificates.
    pub pki: &'a Pki,
    /// This appliance's database. The embedded API server keeps its objects in it.
    pub store: &'a Store,
    /// Settings that a reload changes.
    pub live: &'a LiveSettings,
    /// Hosts that are known.
    pub directory: &'a Directory,
    /// Logs of hosts.
    pub logs: &'a Logs,
    /// What machines boot without the network.
    pub media: &'a Media,
    /// What hosts go through.
    pub metrics: &'a HostMetrics,
    /// Boots that were refused to their machines.
    pub refusals: &'a BootRefusals,
    /// Images that are there.
    pub library: &'a Library,
    /// What of them is served without a login.
    pub published: &'a Published,
    /// Where images may come from.
    pub sources: &'a Sources,
    /// Addresses that were given.
    pub leases: &'a Leases,
    /// Whose an address always is.
    pub reservations: &'a Reservations,
    /// What other rooms go by of the networks.
    pub site: &'a dhcp::Site,
    /// This appliance's address on the first network.
    pub own: &'a Live<Option<IpAddr>>,
    /// Clusters that were made.
    pub workloads: &'a Workloads,
    /// Hosts that machines choose from, once somebody does.
    pub hosts: Option<HostPool>,
    /// Releases of clusters, once somebody goes by them.
    pub releases: Option<Releases>,
}

/// The settings that a reload of the configuration changes in the running process.
#[derive(Clone, Debug)]
pub struct LiveSettings {
    /// `[host]`
    pub host: Live<HostConfig>,
    /// `bmc.allow`
    pub bmc_allow: Live<Vec<Allowed>>,
    /// `bmc.quirks` with the profiles in the binary.
    pub quirks: Live<Quirks>,
    /// `image.allow`
    pub image_allow: Live<Vec<Allowed>>,
    /// `cluster.allow`
    pub cluster_allow: Live<Vec<Allowed>>,
    /// `[api.webhooks]`
    pub webhooks: Live<WebhooksConfig>,
}

impl LiveSettings {
    /// As the configuration has them.
    ///
    /// # Errors
    ///
    /// When the site's BMC profiles cannot be used.
    pub fn of(config: &Config) -> Result<Self, QuirksError> {
        Ok(Self {
            host: config.host.clone().into(),
            bmc_allow: config.bmc.allow.clone().into(),
            quirks: Quirks::load(config.bmc.quirks.as_deref())?.into(),
            image_allow: config.image.allow.clone().into(),
            cluster_allow: config.cluster.allow.clone().into(),
            webhooks: config.api.webhooks.clone().into(),
        })
    }
}

/// All that run.
pub fn begin(house: &mut House<'_>) -> Vec<Box<dyn Life>> {
    LIVES.iter().filter_map(|life| (life.begin)(house)).collect()
}

fn machines(house: &mut House<'_>) -> HostLife {
    let (directory, logs, media) = (house.directory.clone(), house.logs.clone(), house.media.clone());
    let (metrics, refusals) = (house.metrics.clone(), house.refusals.clone());
    let LiveSettings { host, bmc_allow, quirks, .. } = house.live.clone();
    let settings = MachineSettings { host, bmc_allow, quirks };
    HostLife::new(house.watches, directory, logs, media, settings, metrics, refusals).with_leases(house.leases)
}

/// Where control planes are kept here, their certificates are, too.
fn certificates(house: &mut House<'_>) -> Option<Box<dyn Life>> {
    let acts = acts_on(house, "controlplane.cluster.x-k8s.io");
    acts.then(|| Box::new(cluster::certificates::ClusterSecrets::new(house.watches)) as Box<dyn Life>)
}

fn bootstrap(house: &mut House<'_>) -> Option<Box<dyn Life>> {
    let acts = acts_on(house, api::bootstrap::GROUP);
    let workloads = house.workloads.clone();
    acts.then(|| Box::new(cluster::bootstrap::BootstrapLife::new(house.watches, workloads)) as Box<dyn Life>)
}

/// Whether controllers of a group of Cluster API run here.
fn acts_on(house: &House<'_>, group: &str) -> bool {
    house.config.cluster.acts_on(group, house.config.engine.kubeconfig.is_some())
}

fn control_planes(house: &mut House<'_>) -> cluster::control_plane::ControlPlanes {
    let acts = acts_on(house, api::control_plane::GROUP);
    cluster::control_plane::ControlPlanes::new(house.watches, house.workloads.clone(), acts)
}

fn clusters(house: &mut House<'_>) -> Option<Box<dyn Life>> {
    let acts = house.config.cluster.acts_on(api::cluster::GROUP, house.config.engine.kubeconfig.is_some());
    acts.then(|| Box::new(cluster::core::ClusterLife::new(house.watches, house.workloads.clone())) as Box<dyn Life>)
}

/// Agents on nodes reach this appliance and nothing else: where another API server keeps the objects, there is nobody to act for.
fn lcm(house: &mut House<'_>) -> Option<Box<dyn Life>> {
    let acts = house.config.engine.kubeconfig.is_none();
    acts.then(|| Box::new(release::lcm::Lcm::new(house.watches, house.workloads.clone())) as Box<dyn Life>)
}

/// As clusters from releases, these are for machines that this appliance installs.
fn access(house: &mut House<'_>) -> Option<Box<dyn Life>> {
    let acts = house.config.engine.kubeconfig.is_none();
    acts.then(|| Box::new(release::access::AccessLife::new(house.watches)) as Box<dyn Life>)
}

/// The same holds for Helm controllers in clusters.
fn helm_controllers(house: &mut House<'_>) -> Option<Box<dyn Life>> {
    let acts = house.config.engine.kubeconfig.is_none() && acts_on(house, api::machine_api::GROUP);
    let reach = Reach::new(house.config, house.own.clone(), house.pki.ca_pem());
    let workloads = house.workloads.clone();
    acts.then(|| Box::new(release::helm::HelmControllers::new(house.watches, workloads, reach)) as Box<dyn Life>)
}

fn importing(house: &mut House<'_>) -> Importing {
    let requesters = Arc::new(house.directory.requesters.clone());
    Importing {
        library: house.library.clone(),
        images: Images::new(house.watches, requesters),
        publishing: Publishing::new(house.watches, house.published.clone()),
        sources: house.sources.clone(),
        at_once: house.config.image.imports,
    }
}

fn infrastructure(house: &mut House<'_>) -> cluster::infrastructure::Infrastructure {
    let hosts = acts_on(house, api::infrastructure::GROUP).then(|| hosts(house));
    cluster::infrastructure::Infrastructure::new(house.watches, hosts, house.workloads.clone())
}

fn machine_api(house: &mut House<'_>) -> cluster::machine_api::MachineApi {
    let hosts = acts_on(house, api::machine_api::GROUP).then(|| hosts(house));
    let machines = cluster::machine_api::MachineApi::new(house.watches, hosts, default_image(house.config));
    match releases(house) {
        Some(releases) => machines.prepared_by(Arc::new(NodePreparer::new(releases))),
        None => machines,
    }
}

fn provider(house: &mut House<'_>) -> release::provider::Provider {
    let provider = release::provider::Provider::new(house.store.clone());
    let reach = Reach::new(house.config, house.own.clone(), house.pki.ca_pem());
    match releases(house) {
        Some(releases) => provider.acting(house.watches, releases, reach),
        None => provider,
    }
}

/// Clusters are told of updates where they are acted on.
fn updates(house: &mut House<'_>) -> release::updates::Updates {
    let updates = release::updates::Updates::default();
    if releases(house).is_some() { updates.acting(house.watches) } else { updates }
}

/// Releases of clusters, where those are offered: on the appliance's own API server, for agents reach no other one.
fn releases(house: &mut House<'_>) -> Option<Releases> {
    let offered = house.config.engine.kubeconfig.is_none() && acts_on(house, api::machine_api::GROUP);
    let House { releases, watches, .. } = house;
    offered.then(|| releases.get_or_insert_with(|| Releases::new(watches)).clone())
}

/// What machines run of which nobody says it.
fn default_image(config: &Config) -> Option<MachineImage> {
    config.cluster.default_image.as_ref().map(DefaultImage::image)
}

/// The hosts that machines of every kind choose from.
fn hosts(house: &mut House<'_>) -> HostPool {
    let House { hosts, watches, .. } = house;
    hosts.get_or_insert_with(|| HostPool::new(watches)).clone()
}

fn addresses(house: &mut House<'_>) -> dhcp::DhcpService {
    let (config, cards) = (house.config, house.site.checked.clone());
    dhcp::DhcpService {
        leases: house.leases.clone(),
        reservations: house.reservations.clone(),
        service_ports: ServicePorts {
            http_port: config.boot.listen.port(),
            tftp_port: config.boot.tftp.port(),
            dhcp_port: config.dhcp.port,
        },
        server_probe: Some(Duration::from_secs(config.dhcp.server_probe_minutes * 60)).filter(|pause| !pause.is_zero()),
        hosts: house.directory.index.clone(),
        cards: Arc::new(move || boot::neighbour::cached(cards.clone())),
    }
}

fn certificate_names(house: &House<'_>) -> CertificateNames {
    let certificate = house.pki.server_certificate().clone();
    CertificateNames { certificate, site: house.site.clone(), own: house.own.clone() }
}

/// Every life, whether it runs or not.
pub fn modules() -> Vec<Module> {
    LIVES.iter().map(|life| (life.module)()).collect()
}

/// Every kind that is not a Kubernetes core kind.
pub fn kinds() -> Vec<Kind> {
    api::define(declared())
}

/// Every kind, as its room declares it.
pub fn declared() -> impl Iterator<Item = Declared> {
    declared_where(|_| true)
}

fn declared_where(is_asked: impl Fn(KindKeeper) -> bool) -> impl Iterator<Item = Declared> {
    LIVES.iter().filter(move |life| is_asked(life.keeper)).flat_map(|life| (life.module)().kinds)
}

/// The kinds of clusters, as `<group>/<plural>`, with the rule of how much may be in one of them. It is asked whoever acts on its
/// group: controllers of other groups read it, too.
pub fn bounded() -> impl Iterator<Item = (String, AdmissionRules)> {
    let kinds = declared_where(|keeper| keeper == KindKeeper::ClusterApi);
    kinds.map(|kind| (kind.storage(), size::rule()))
}

/// The kinds that Slipway's own controllers act on in any case. A Kubernetes API server that keeps the objects must have these;
/// those of Cluster API and of Metal3's managers for it are its own there, and must not be replaced.
pub fn acted_on() -> Vec<Kind> {
    api::define(declared_where(|keeper| keeper == KindKeeper::Either))
}

/// What the user of `engine.kubeconfig` may do in another API server: roles and bindings, as YAML.
pub fn rbac() -> String {
    let modules = modules();
    let rights = modules.iter().flat_map(|module| module.rights);
    format!("{ROLE}{}{BINDINGS}", rules(rights.chain(OF_METRICS)))
}

/// Who scrapes the appliance is known to that API server.
const OF_METRICS: &[Right] = &[
    Right {
        group: "authentication.k8s.io",
        resources: &["tokenreviews"],
        verbs: &["create"],
        reason: "Who reads /metrics of the appliance is a user of that API server.",
    },
    Right { group: "authorization.k8s.io", resources: &["subjectaccessreviews"], verbs: &["create"], reason: "" },
];

const ROLE: &str = "\
# What the user of engine.kubeconfig may do in the API server that keeps the objects, and no more.
# `slipway crds --rbac` prints it. The user is \"slipway\"; the Lease is in the namespace \"slipway-system\", as engine.namespace says.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: slipway
rules:
";

const BINDINGS: &str = "\
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: slipway
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: slipway
subjects:
  - apiGroup: rbac.authorization.k8s.io
    kind: User
    name: slipway
---
apiVersion: v1
kind: Namespace
metadata:
  name: slipway-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: slipway-lease
  namespace: slipway-system
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [create]
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [slipway]
    verbs: [get, update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: slipway-lease
  namespace: slipway-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: slipway-lease
subjects:
  - apiGroup: rbac.authorization.k8s.io
    kind: User
    name: slipway
";

/// Task.
fn tasks() -> Module {
    Module {
        kinds: vec![Declared::one::<TaskView>(StoragePolicy::View)],
        rights: &[Right {
            group: "slipway.dev",
            resources: &["tasks"],
            verbs: KEEPS,
            reason: "What became of the appliance's own work.",
        }],
    }
}

/// Shows what is done by itself.
struct Supervised(Tasks);

impl Life for Supervised {
    fn register(&self, registry: &mut Registry) {
        self.0.register(registry);
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let views = ClusterScopedViews::new(acting.store.as_ref(), &acting.client, MANAGER);
        Ok(vec![service("views of tasks", publish(self.0.clone(), views, acting.stop.clone()))])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use serde_json::Value;

    use super::*;
    use crate::api::definitions::{held_against, held_text};

    fn has_null(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Object(map) => map.values().any(has_null),
            Value::Array(list) => list.iter().any(has_null),
            _ => false,
        }
    }

    #[test]
    fn definitions_have_no_nulls_that_a_real_api_server_refuses() {
        for kind in kinds() {
            let name = kind.crd.metadata.name.clone().unwrap();
            assert!(!has_null(&serde_json::to_value(&kind.crd.spec).unwrap()), "{name}");
        }
    }

    #[test]
    fn who_keeps_a_kind_goes_by_its_group() {
        for life in LIVES {
            for kind in (life.module)().kinds {
                let name = kind.name();
                let is_of = |groups: &[&str]| groups.iter().any(|group| name.ends_with(group));
                let wanted = if is_of(&["cluster.x-k8s.io", ".cluster.k8s.io", ".ipam.metal3.io"]) {
                    KindKeeper::ClusterApi
                } else if is_of(&[".mirantis.com"]) {
                    KindKeeper::Embedded
                } else {
                    KindKeeper::Either
                };
                assert_eq!(life.keeper, wanted, "{name}");
            }
        }
    }

    #[test]
    fn of_two_kinds_of_one_name_cluster_apis_is_heard_of_first() {
        let kinds = kinds();
        let machines = kinds.iter().map(|kind| &kind.crd.spec).filter(|spec| spec.names.plural == "machines");
        let groups: Vec<&str> = machines.map(|spec| spec.group.as_str()).collect();
        assert_eq!(groups, ["cluster.x-k8s.io", "cluster.k8s.io"]);
    }

    #[test]
    fn the_written_definitions_are_those_of_the_types() {
        let generated: BTreeMap<&str, CustomResourceDefinition> =
            declared().map(|kind| (kind.name(), kind.generated())).collect();
        held_against("src/api/definitions.json", &generated);
        for (kind, declared) in kinds().into_iter().zip(declared()) {
            assert!(kind.crd == declared.generated(), "the build packed another file");
        }
    }

    #[test]
    fn the_written_rights_are_those_that_rooms_declare() {
        held_text("config/engine-rbac.yaml", &rbac());
        for kind in acted_on() {
            let (group, plural) = (&kind.crd.spec.group, &kind.crd.spec.names.plural);
            let is_its = |right: &Right| {
                right.group == group && right.resources.contains(&plural.as_str()) && right.verbs.contains(&"watch")
            };
            assert!(
                modules().iter().any(|module| module.rights.iter().any(is_its)),
                "nobody may watch {plural}.{group}"
            );
        }
    }
}
