//! The kinds of Cluster API, kept for the managers of Cluster API that act on them. Nothing here acts.

use crate::api::cluster::convert as core;
use crate::api::infrastructure::convert as metal;
use crate::api::{Declared, ServedVersion, StoragePolicy, cluster, infrastructure};
use crate::module::Module;

/// Clusters and machines, and what Metal3 adds for each: stored as v1beta2 and served as v1beta1 too.
pub fn module() -> Module {
    macro_rules! both {
        ($group:ident :: $kind:ident, $from_storage:expr, $to_storage:expr) => {
            Declared::both::<$group::v1beta2::$kind, $group::v1beta1::$kind>(
                StoragePolicy::Durable,
                ServedVersion { version: "v1beta1", from_storage: $from_storage, to_storage: $to_storage },
            )
        };
    }
    Module {
        kinds: vec![
            both!(cluster::Cluster, core::cluster_from_storage, core::cluster_to_storage),
            both!(cluster::Machine, core::machine_from_storage, core::machine_to_storage)
                .completed_by(core::complete_machine),
            both!(infrastructure::Metal3Cluster, metal::cluster_from_storage, metal::cluster_to_storage),
            both!(
                infrastructure::Metal3ClusterTemplate,
                metal::cluster_template_from_storage,
                metal::cluster_template_to_storage
            ),
            both!(infrastructure::Metal3Machine, metal::machine_from_storage, metal::machine_to_storage),
            both!(
                infrastructure::Metal3MachineTemplate,
                metal::machine_template_from_storage,
                metal::machine_template_to_storage
            ),
        ],
        rights: &[],
    }
}
