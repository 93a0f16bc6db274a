//! `bpa.akraino.org` Provisionings: which hosts are a cluster's nodes, and the inventory with which kubespray makes it.
//!
//! What is asked for is read and checked ([`wanted`]); each node gets a host ([`seats`]), which is claimed ([`claim`]) as machines
//! of Cluster API claim theirs; when all of them run and have addresses, and those that others installed were opened to the cluster's key ([`opening`]), the inventory is made ([`cluster_inventory`]). Then it is
//! decided which playbook is run ([`next`]) and whose turn it is ([`places`]); the run is begun, followed and concluded ([`running`]).
//! The cluster that it made is asked whether its nodes are ready ([`readiness`]).

mod admission;
mod answers;
mod claim;
mod cluster_inventory;
mod controller;
mod installer;
mod known_hosts;
mod leaving;
mod log_view;
mod login;
mod made;
mod meters;
mod next;
mod opening;
mod places;
mod progress;
mod rack;
mod readiness;
mod removal;
mod running;
mod seats;
mod software;
mod ssh_key;
#[cfg(test)]
mod tests;
mod waking;
mod wanted;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use prometheus_client::registry::Registry;
use tracing::{error, warn};

use self::controller::Provisionings;
use self::installer::Installer;
pub use self::installer::is_open;
use self::meters::RunMeters;
use self::software::Softwares;
use crate::api::bpa::Provisioning;
use crate::api::bpa::software::Software;
use crate::api::metal3::HostImage;
use crate::api::{Declared, StoragePolicy};
use crate::apiserver::{AdmissionRules, ObjectView};
use crate::cluster::workload::Workloads;
use crate::config::KubesprayConfig;
use crate::kubespray::runs::{Installation, RunLimits, RunSupervisor, Runs};
use crate::module::{Acting, KEEPS, Life, Module, Right, Service, service};
use crate::runtime::{Cache, Slim, Watches, run};

/// The task that looks after runs.
const TASK: &str = "kubespray-runs";
/// Between two of its times.
const LOOK_AFTER: Duration = Duration::from_secs(30);
/// What is kept of a Provisioning in memory beside its object, in bytes, roughly.
const MEMORY: usize = 1 << 10;

/// Provisionings, and Softwares, which install packages on their nodes.
pub fn module() -> Module {
    Module {
        kinds: vec![
            Declared::one::<Provisioning>(StoragePolicy::Durable).costing(MEMORY).kept_parsed(),
            Declared::one::<Software>(StoragePolicy::Durable).costing(MEMORY),
        ],
        rights: RIGHTS,
    }
}

const RIGHTS: &[Right] = &[
    Right {
        group: "bpa.akraino.org",
        resources: &[
            "provisionings",
            "provisionings/status",
            "provisionings/finalizers",
            "softwares",
            "softwares/status",
            "softwares/finalizers",
        ],
        verbs: KEEPS,
        reason: "",
    },
    Right {
        group: "metal3.io",
        resources: &["baremetalhosts"],
        verbs: &["get", "list", "watch", "patch"],
        reason: "Clusters of kubespray take hosts, and let them go.",
    },
    Right {
        group: "",
        resources: &["secrets", "configmaps"],
        verbs: &["get", "create", "update"],
        reason: "The SSH key of a cluster of kubespray, the user data and keys of its hosts, its inventory and its kubeconfig.",
    },
    Right { group: "", resources: &["events"], verbs: &["get", "create", "update", "patch"], reason: "" },
];

/// Acts on Provisionings.
pub struct ProvisioningAgent {
    provisionings: Cache<Slim<Provisioning>>,
    softwares: Cache<Slim<Software>>,
    kubespray: KubesprayConfig,
    folder: PathBuf,
    workloads: Workloads,
    default_image: Option<HostImage>,
    hidden: Vec<PathBuf>,
    runs: log_view::KnownRuns,
    meters: RunMeters,
}

impl ProvisioningAgent {
    /// Nothing is known until the watches run. Runs are in this folder.
    pub fn new(watches: &mut Watches, kubespray: &KubesprayConfig, folder: PathBuf, workloads: Workloads) -> Self {
        let wants =
            |object: &Provisioning| vec![waking::hosts_of(object.metadata.namespace.as_deref().unwrap_or_default())];
        let provisionings = Cache::indexed(watches, |object: &Provisioning| Slim::from(object), wants);
        waking::hosts(watches, &provisionings);
        let softwares = Cache::new(watches, |object: &Software| Slim::from(object));
        Self {
            provisionings,
            softwares,
            kubespray: kubespray.clone(),
            folder,
            workloads,
            default_image: None,
            hidden: Vec::new(),
            runs: log_view::KnownRuns::default(),
            meters: RunMeters::default(),
        }
    }

    /// Free hosts run this image where a Provisioning names none.
    pub fn with_default_image(self, default_image: Option<HostImage>) -> Self {
        Self { default_image, ..self }
    }

    /// Runs do not see these files and folders.
    pub fn hiding(self, hidden: Vec<PathBuf>) -> Self {
        Self { hidden, ..self }
    }

    /// What runs kubespray here, where a checkout is configured.
    fn installer(&self) -> Option<Arc<Installer>> {
        let installation = Installation::of(&self.kubespray)?.hiding(self.hidden.clone());
        let runs = Runs::open(&self.folder, RunSupervisor::this_program());
        let bounds = RunLimits::of(&self.kubespray);
        match runs.and_then(|runs| Installer::new(runs, installation, bounds, self.kubespray.runs)) {
            Ok(installer) => {
                let installer = installer.counted_by(self.meters.clone());
                self.runs.set(installer.runs().clone()).ok();
                Some(Arc::new(installer))
            }
            Err(error) => {
                error!(%error, "kubespray is not run");
                None
            }
        }
    }
}

/// Ends the runs of objects, where nobody follows them any more, and looks after those of people.
async fn unattended(folder: PathBuf) -> anyhow::Result<()> {
    let runs = Runs::open(&folder, RunSupervisor::this_program())?;
    for run in runs.settle_all().await? {
        if run.is_under_way && run.owner.is_some() {
            warn!(run = %run.id, "a run is cancelled, for [kubespray] of the configuration names no checkout any more");
            runs.cancel(&run.id).await?;
        }
    }
    Ok(())
}

impl Life for ProvisioningAgent {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        vec![
            ("bpa.akraino.org/provisionings", Arc::new(admission::provisioning)),
            ("bpa.akraino.org/softwares", Arc::new(software::admission)),
        ]
    }

    fn views(&self) -> Vec<(&'static str, &'static str, ObjectView)> {
        let (provisionings, softwares) = (self.provisionings.clone(), self.softwares.clone());
        let of = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let cluster = move |namespace: &str, name: &str| provisionings.get(&of(namespace, name))?.uid();
        let software = move |namespace: &str, name: &str| softwares.get(&of(namespace, name))?.uid();
        vec![
            ("bpa.akraino.org/provisionings", "log", log_view::view(self.runs.clone(), Arc::new(cluster))),
            ("bpa.akraino.org/softwares", "log", log_view::view(self.runs.clone(), Arc::new(software))),
        ]
    }

    fn register(&self, registry: &mut Registry) {
        self.meters.register(registry);
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let (provisionings, client, stop) = (self.provisionings.clone(), acting.client.clone(), acting.stop.clone());
        let installer = self.installer();
        let mut services = Vec::new();
        if installer.is_none() && self.folder.is_dir() {
            let (task, folder, stop) = (acting.tasks.task(TASK), self.folder.clone(), stop.clone());
            services.push(service("runs of kubespray", async move {
                task.every(LOOK_AFTER, &stop, || unattended(folder.clone())).await;
            }));
        }
        if let Some(installer) = &installer {
            let (task, client, stop, installer) =
                (acting.tasks.task(TASK), client.clone(), stop.clone(), installer.clone());
            services.push(service("runs of kubespray", async move {
                task.every(LOOK_AFTER, &stop, || installer.clone().look_after(client.clone())).await;
            }));
        }
        let keeper = Provisionings::new(client, installer, self.workloads.clone());
        let keeper = Arc::new(keeper.with_default_image(self.default_image.clone()));
        let (softwares, packages, end) =
            (self.softwares.clone(), Arc::new(Softwares::new(keeper.clone())), stop.clone());
        let provision = async move { run(keeper, &provisionings, futures::stream::empty(), stop).await };
        services.push(service("Provisionings", provision));
        let install = async move { run(packages, &softwares, futures::stream::empty(), end).await };
        services.push(service("Softwares", install));
        Ok(services)
    }
}
