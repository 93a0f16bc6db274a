//! `infrastructure.cluster.x-k8s.io`: what Metal3 adds for clusters and machines.
//!
//! A Metal3Cluster says where its cluster is reached ([`metal3_cluster`]). A Metal3Machine has a host of its namespace, has it run
//! an image, and is a node of its cluster then ([`machine`]). A Metal3Remediation brings one back that is not well
//! ([`remediation`]).

mod admission;
pub mod machine;
pub mod metal3_cluster;
mod names;
pub mod remediation;
#[cfg(test)]
mod tests;
mod waking;

use std::sync::Arc;
use std::time::Duration;

use self::machine::{MachineView, Metal3MachineReconciler, PAUSES, Pauses};
use self::metal3_cluster::Metal3ClusterReconciler;
use self::remediation::{PAUSE, Remediations};
use crate::api::infrastructure::remediation::v1beta2::Metal3Remediation;
use crate::api::infrastructure::remediation::{
    self as remediations, v1beta1 as remediation_v1beta1, v1beta2 as remediation_v1beta2,
};
use crate::api::infrastructure::v1beta2::{Metal3Cluster, Metal3Machine};
use crate::api::infrastructure::{convert, v1beta1, v1beta2};
use crate::api::{Declared, ServedVersion, StoragePolicy};
use crate::apiserver::AdmissionRules;
use crate::cluster::hosts::{HostPool, MachineKind};
use crate::cluster::workload::Workloads;
use crate::module::{Acting, KEEPS, Life, Module, Right, Service, service};
use crate::runtime::{Cache, Slim, Watches};

/// What is kept of a Metal3Machine in memory beside its object, in bytes, roughly.
const MACHINE_MEMORY: usize = 2 << 10;

/// Metal3's clusters, machines, remediations and their templates: stored as v1beta2 and served as v1beta1 too.
pub fn module() -> Module {
    macro_rules! both {
        ($new:ident, $old:ident, $kind:ident, $convert:ident, $from_storage:ident, $to_storage:ident) => {
            Declared::both::<$new::$kind, $old::$kind>(
                StoragePolicy::Durable,
                ServedVersion {
                    version: "v1beta1",
                    from_storage: $convert::$from_storage,
                    to_storage: $convert::$to_storage,
                },
            )
        };
        ($kind:ident, $from_storage:ident, $to_storage:ident) => {
            both!(v1beta2, v1beta1, $kind, convert, $from_storage, $to_storage)
        };
        (remediation, $kind:ident, $from_storage:ident, $to_storage:ident) => {
            both!(remediation_v1beta2, remediation_v1beta1, $kind, remediations, $from_storage, $to_storage)
        };
    }
    Module {
        kinds: [
            both!(Metal3Cluster, cluster_from_storage, cluster_to_storage),
            both!(Metal3ClusterTemplate, cluster_template_from_storage, cluster_template_to_storage),
            both!(Metal3Machine, machine_from_storage, machine_to_storage).costing(MACHINE_MEMORY),
            both!(Metal3MachineTemplate, machine_template_from_storage, machine_template_to_storage),
            both!(remediation, Metal3Remediation, from_storage, to_storage),
            both!(remediation, Metal3RemediationTemplate, template_from_storage, template_to_storage)
                .completed_by(remediations::complete_template),
        ]
        .into_iter()
        .map(Declared::kept_parsed)
        .collect(),
        rights: RIGHTS,
    }
}

const RIGHTS: &[Right] = &[
    Right {
        group: "infrastructure.cluster.x-k8s.io",
        resources: &[
            "metal3clusters",
            "metal3clusters/status",
            "metal3clusters/finalizers",
            "metal3machines",
            "metal3machines/status",
            "metal3machines/finalizers",
            "metal3remediations",
            "metal3remediations/status",
            "metal3remediations/finalizers",
        ],
        verbs: KEEPS,
        reason: "",
    },
    Right {
        group: "infrastructure.cluster.x-k8s.io",
        resources: &["metal3machinetemplates"],
        verbs: &["get", "list", "watch"],
        reason: "What machines are made from says whether their hosts are kept for the next one.",
    },
    Right {
        group: "infrastructure.cluster.x-k8s.io",
        resources: &["metal3dataclaims"],
        verbs: &["get", "list", "watch", "create", "patch", "delete"],
        reason: "Machines claim their meta data and network data.",
    },
    Right {
        group: "infrastructure.cluster.x-k8s.io",
        resources: &["metal3datas"],
        verbs: &["get", "list", "watch"],
        reason: "",
    },
    Right {
        group: "cluster.x-k8s.io",
        resources: &["clusters", "machines"],
        verbs: &["get", "list", "watch"],
        reason: "What is made here is made for them.",
    },
    Right {
        group: "cluster.x-k8s.io",
        resources: &["machines/status"],
        verbs: &["patch"],
        reason: "A machine that cannot be brought back is said to be so.",
    },
    Right {
        group: "controlplane.cluster.x-k8s.io",
        resources: &["kubeadmcontrolplanes"],
        verbs: &["get"],
        reason: "The template that a control plane has now says whether hosts are kept for its next machine.",
    },
    Right {
        group: "metal3.io",
        resources: &["baremetalhosts", "hardwaredata"],
        verbs: &["get", "list", "watch", "patch"],
        reason: "Machines take hosts, and let them go.",
    },
    Right {
        group: "",
        resources: &["secrets"],
        verbs: &["get", "patch"],
        reason: "Kubeconfigs of clusters; BMC credentials have the label of the cluster that has the host.",
    },
    Right { group: "", resources: &["events"], verbs: &["get", "create", "update", "patch"], reason: "" },
];

/// Acts on Metal3's clusters and machines.
pub struct Infrastructure {
    /// None where others act.
    caches: Option<InfrastructureCaches>,
    workloads: Workloads,
}

/// What is known of objects.
#[derive(Clone)]
struct InfrastructureCaches {
    clusters: Cache<Slim<Metal3Cluster>>,
    machines: Cache<MachineView>,
    remediations: Cache<Slim<Metal3Remediation>>,
    hosts: HostPool,
}

impl InfrastructureCaches {
    /// Nothing yet, until the watches run. Hosts are watched already.
    fn new(watches: &mut Watches, hosts: HostPool) -> Self {
        let clusters = Cache::indexed(watches, |object: &Metal3Cluster| Slim::from(object), waking::mentions);
        let machines = Cache::indexed(watches, |object: &Metal3Machine| object.into(), MachineView::mentions);
        let remediations = Cache::new(watches, |object: &Metal3Remediation| Slim::from(object));
        // What is woken looks into the caches, so these are told first.
        waking::clusters(watches, &clusters);
        waking::machines(watches, &machines);
        hosts.wake_by(MachineKind::Metal3, machines.wakes().clone());
        Self { clusters, machines, remediations, hosts }
    }
}

impl Infrastructure {
    /// Acts where there are hosts to choose from; the rules of the API are the same.
    pub fn new(watches: &mut Watches, hosts: Option<HostPool>, workloads: Workloads) -> Self {
        Self { caches: hosts.map(|hosts| InfrastructureCaches::new(watches, hosts)), workloads }
    }
}

impl Life for Infrastructure {
    fn admission(&self) -> Vec<(&'static str, AdmissionRules)> {
        let rules: [(&'static str, AdmissionRules); 5] = [
            ("infrastructure.cluster.x-k8s.io/metal3clustertemplates", Arc::new(admission::cluster_template)),
            ("infrastructure.cluster.x-k8s.io/metal3machines", Arc::new(admission::machine)),
            ("infrastructure.cluster.x-k8s.io/metal3machinetemplates", Arc::new(admission::machine_template)),
            ("infrastructure.cluster.x-k8s.io/metal3remediations", Arc::new(admission::remediation)),
            ("infrastructure.cluster.x-k8s.io/metal3remediationtemplates", Arc::new(admission::remediation_template)),
        ];
        rules.into()
    }

    fn act(&self, acting: &Acting) -> anyhow::Result<Vec<Service>> {
        Ok(self.services(acting, PAUSES, PAUSE))
    }
}

impl Infrastructure {
    /// What acts until it is stopped. What cannot be watched is looked at after these pauses: of machines, and of remediations.
    pub(in crate::cluster) fn services(&self, acting: &Acting, pauses: Pauses, remediation: Duration) -> Vec<Service> {
        let Some(InfrastructureCaches { clusters, machines, remediations, hosts }) = self.caches.clone() else {
            return Vec::new();
        };
        let (client, stop) = (acting.client.clone(), acting.stop.clone());
        let keeper = Metal3MachineReconciler::new(client.clone(), hosts, self.workloads.clone(), pauses);
        let healer = Remediations::new(client.clone(), self.workloads.clone(), remediation);
        vec![
            service("Metal3Clusters", Metal3ClusterReconciler::new(client, clusters).run(stop.clone())),
            service("Metal3Machines", keeper.run(machines, stop.clone())),
            service("Metal3Remediations", healer.run(remediations, stop)),
        ]
    }
}
