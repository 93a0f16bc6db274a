//! The host module: BareMetalHost and what belongs to it, and who acts on them.

use std::sync::Arc;

use prometheus_client::registry::Registry;

use crate::api::metal3::{BareMetalHost, DataImage, HardwareData, complete_hardware, complete_host};
use crate::api::slipway::BootIntent;
use crate::api::{Declared, StoragePolicy};
use crate::apiserver::{AdmissionRules, ObjectView};
use crate::bmc;
use crate::bmc::quirks::Quirks;
use crate::config::HostConfig;
use crate::dhcp::Leases;
use crate::host::admission;
use crate::host::directory::Directory;
use crate::host::logs::retention::Retention;
use crate::host::logs::{Logs, endpoint};
use crate::host::media::Media;
use crate::host::media::data_image::{self, DataImages};
use crate::host::reconcile::reconciler::{self, Hardware};
use crate::host::status::boot_refusals::{self, BootRefusals};
use crate::host::status::metrics::HostMetrics;
use crate::host::status::stall::{self, StallDetector};
use crate::live::Live;
use crate::module::{Acting, KEEPS, Life, Module, Right, RunningLife, Service, service};
use crate::outbound::Allowed;
use crate::runtime::Watches;

/// Where hosts are stored.
const HOSTS: &str = "metal3.io/baremetalhosts";

/// What is kept of a BareMetalHost in memory beside its object, in bytes, roughly: the controllers' views of it and its boot,
/// its place in queues and metrics. Measured: 6 KiB at rest, 10 KiB at most while thousands are read at a start.
const HOST_MEMORY: usize = 16 << 10;

/// BareMetalHost, HardwareData, DataImage and BootIntent.
pub fn module() -> Module {
    Module {
        kinds: vec![
            Declared::one::<BareMetalHost>(StoragePolicy::Durable).costing(HOST_MEMORY).completed_by(complete_host),
            Declared::one::<HardwareData>(StoragePolicy::Durable).of_hosts().completed_by(complete_hardware),
            Declared::one::<DataImage>(StoragePolicy::Durable).of_hosts(),
            Declared::one::<BootIntent>(StoragePolicy::Internal),
        ],
        rights: &[
            Right {
                group: "metal3.io",
                resources: &[
                    "baremetalhosts",
                    "baremetalhosts/status",
                    "baremetalhosts/finalizers",
                    "hardwaredata",
                    "hardwaredata/finalizers",
                    "dataimages",
                    "dataimages/status",
                    "dataimages/finalizers",
                ],
                verbs: KEEPS,
                reason: "",
            },
            Right {
                group: "slipway.dev",
                resources: &["bootintents", "bootintents/status", "bootintents/finalizers"],
                verbs: KEEPS,
                reason: "",
            },
            Right {
                group: "slipway.dev",
                resources: &["images"],
                verbs: &["get", "list", "watch", "create", "update", "patch"],
                reason: "Images that hosts name are imported for them.",
            },
            Right {
                group: "",
                resources: &["secrets"],
                verbs: &["get", "list", "watch", "update", "patch"],
                reason: "BMC credentials, user data, network data. Secrets of hosts are labelled and held while the host is there.",
            },
            Right { group: "", resources: &["namespaces"], verbs: &["get"], reason: "" },
            Right { group: "", resources: &["events"], verbs: &["get", "create", "update", "patch"], reason: "" },
        ],
    }
}

/// Acts on machines as their hosts say.
pub struct HostLife {
    /// Hosts that are known.
    pub directory: Directory,
    /// Their logs.
    pub logs: Logs,
    /// What machines boot without the network.
    pub media: Media,
    /// Limits and times.
    pub settings: Live<HostConfig>,
    /// Special addresses that hosts may name as their BMC's.
    pub bmc_allow: Live<Vec<Allowed>>,
    /// What particular BMCs do differently.
    pub quirks: Live<Quirks>,
    /// What hosts go through.
    pub metrics: HostMetrics,
    /// Boots that were refused to their machines.
    pub refusals: BootRefusals,
    /// Addresses that were given to machines; `None` before [`HostLife::with_leases`].
    pub leases: Option<Leases>,
    /// What is asked of their BMCs.
    bmc_metrics: bmc::BmcMetrics,
    /// Hosts that make no progress.
    stalls: StallDetector,
    data_images: DataImages,
    /// Logs of hosts that go.
    retention: Retention,
}

/// What the configuration says of machines, also after it was read again.
pub struct MachineSettings {
    /// Limits and times.
    pub host: Live<HostConfig>,
    /// Special addresses that hosts may name as their BMC's.
    pub bmc_allow: Live<Vec<Allowed>>,
    /// What particular BMCs do differently.
    pub quirks: Live<Quirks>,
}

impl HostLife {
    /// Of nothing yet, until the watches run.
    pub fn new(
        watches: &mut Watches,
        directory: Directory,
        logs: Logs,
        media: Media,
        settings: MachineSettings,
        metrics: HostMetrics,
        refusals: BootRefusals,
    ) -> Self {
        let MachineSettings { host: settings, bmc_allow, quirks } = settings;
        let (stalls, data_images) = (StallDetector::new(watches), DataImages::new(watches));
        let retention = Retention::new(watches, directory.index.clone(), logs.clone());
        let bmc_metrics = bmc::BmcMetrics::default();
        Self {
            directory,
            logs,
            media,
            settings,
            bmc_allow,
            quirks,
            metrics,
            refusals,
            leases: None,
            bmc_metrics,
            stalls,
            data_images,
            retention,
        }
    }

    /// Shows at each host what is leased to its machine.
    #[must_use]
    pub fn with_leases(self, leases: &Leases) -> Self {
        leases.tell_of_changes(self.directory.waking_by_mac());
        Self { leases: Some(leases.clone()), ..self }
    }
}

impl Life for HostLife {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        let guard = admission::bmc_addresses::guard(self.bmc_allow.clone());
        vec![
            (HOSTS, Arc::new(admission::admit)),
            (HOSTS, admission::bmc_addresses::admission(guard)),
            ("metal3.io/dataimages", Arc::new(data_image::admit)),
        ]
    }

    fn views(&self) -> Vec<(&'static str, &'static str, ObjectView)> {
        vec![(HOSTS, "log", endpoint::view(self.logs.clone(), self.directory.intents.clone()))]
    }

    fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
        self.bmc_metrics.register(registry);
        self.stalls.register(registry);
    }

    fn run(&self, running: &RunningLife) -> anyhow::Result<Vec<Service>> {
        let task = running.tasks.task("log-retention");
        Ok(vec![service("removal of logs", self.retention.clone().run(task))])
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        let (client, stop) = (&acting.client, &acting.stop);
        let guard = Some(admission::bmc_addresses::guard(self.bmc_allow.clone()));
        let metrics = self.bmc_metrics.clone();
        let quirks = self.quirks.clone();
        let bmcs = bmc::BmcRegistry::new(bmc::BmcSettings { guard, metrics, quirks, ..bmc::BmcSettings::default() });
        let hardware = Hardware { bmcs, media: Some(self.media.clone()), leases: self.leases.clone() };
        let (settings, metrics) = (self.settings.clone(), self.metrics.clone());
        let hosts = reconciler::run(acting.clone(), self.directory.clone(), settings, hardware, metrics);
        let data_images = data_image::run(client.clone(), self.data_images.clone(), stop.clone());
        let (settings, looks) = (self.settings.clone(), acting.tasks.task("stuck-hosts"));
        let watch = stall::run(client.clone(), self.stalls.clone(), settings, looks, stop.clone());
        let refused = acting.tasks.task("refused-boots");
        let refused = boot_refusals::run(client.clone(), self.refusals.clone(), refused, stop.clone());
        Ok(vec![
            service("data images", data_images),
            service("hosts", hosts),
            service("watch for stuck hosts", watch),
            service("events of refused boots", refused),
        ])
    }
}
