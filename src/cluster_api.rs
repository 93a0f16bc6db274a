//! The kinds of Cluster API, kept for the managers of Cluster API that act on them. Nothing here acts.

use crate::api::cluster::convert as core;
use crate::api::infrastructure::convert as metal;
use crate::api::{Declared, Keep, Older, cluster, infrastructure};
use crate::module::Module;

/// Clusters and machines, and what Metal3 adds for each: stored as v1beta2 and served as v1beta1 too.
pub fn module() -> Module {
    macro_rules! both {
        ($group:ident :: $kind:ident, $down:expr, $up:expr) => {
            Declared::both::<$group::v1beta2::$kind, $group::v1beta1::$kind>(
                Keep::Durable,
                Older { version: "v1beta1", down: $down, up: $up },
            )
        };
    }
    Module {
        kinds: vec![
            both!(cluster::Cluster, core::cluster_down, core::cluster_up),
            both!(cluster::Machine, core::machine_down, core::machine_up).completed_by(core::complete_machine),
            both!(infrastructure::Metal3Cluster, metal::cluster_down, metal::cluster_up),
            both!(infrastructure::Metal3ClusterTemplate, metal::cluster_template_down, metal::cluster_template_up),
            both!(infrastructure::Metal3Machine, metal::machine_down, metal::machine_up),
            both!(infrastructure::Metal3MachineTemplate, metal::machine_template_down, metal::machine_template_up),
        ],
        rights: &[],
    }
}
