//! Hosts for machines: which one a machine gets ([`choose`]), how it takes it ([`HostPool::take`]), who has one ([`consumer`]),
//! and what a machine writes into its host ([`patches`]).
//!
//! Two kinds of machines ask: Metal3Machine (`infrastructure.cluster.x-k8s.io`) and the Machine of `cluster.k8s.io`. They
//! choose from the same [`HostPool`], by the same rules, and a host is taken in the very version that was judged, so that none
//! is ever taken twice.

pub mod addresses;
pub mod choose;
mod claims;
pub mod consumer;
pub mod host_changes;
pub mod names;
pub mod patches;
mod take;
pub mod waking;

pub use claims::{HostPool, NoHost, Pick};
pub use consumer::{Consumer, MachineId, MachineKind};
pub use take::{HostTake, HostTaker, TakeError, change};

/// The name in the annotation [`names::ANNOTATION_HOST`] of a machine. The namespace that is said with it counts for nothing: hosts
/// are of the machine's own.
pub fn noted(machine: &impl kube::ResourceExt) -> Option<String> {
    let noted = machine.annotations().get(names::ANNOTATION_HOST)?;
    let name = noted.split_once('/').map_or(noted.as_str(), |(_, name)| name);
    // A name is a part of a path: what no object is called leads nowhere.
    crate::apiserver::subdomain(name).is_empty().then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::metal3::BareMetalHost;

    #[test]
    fn the_namespace_of_a_noted_host_counts_for_nothing() {
        for (text, host) in [
            ("rack/h", Some("h")),
            ("kube-system/h", Some("h")),
            ("h", Some("h")),
            ("rack/", None),
            ("", None),
            ("rack/?x", None),
            ("h/log", Some("log")),
            ("..", None),
        ] {
            let mut machine = BareMetalHost::new("m", Default::default());
            machine.metadata.annotations = Some([(names::ANNOTATION_HOST.to_owned(), text.to_owned())].into());
            assert_eq!(noted(&machine).as_deref(), host, "{text}");
        }
    }
}
