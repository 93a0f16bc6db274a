//! A cluster's life, room by room: the objects of Cluster API and Metal3, and who acts on them.
//!
//! Each room is a module of its own (`src/modules.rs`), and the controllers of each API group can be left to upstream's managers
//! (`[cluster] controllers`). A room imports rooms of its own floor or below, and never in circles; the tests in `walls` read this
//! table too.
//!
//! | floor | room | what it is |
//! |---|---|---|
//! | work | [`core`] | `cluster.x-k8s.io`: clusters and machines |
//! |  | [`control_plane`] | `controlplane.cluster.x-k8s.io`: control planes that kubeadm makes |
//! |  | [`data`] | Metal3's templates of meta data and network data, and what is made of them |
//! |  | [`infrastructure`] | `infrastructure.cluster.x-k8s.io`: what Metal3 adds for each |
//! |  | [`machine_api`] | `cluster.k8s.io`: Machines of old that ask for a host |
//! |  | [`ipam`] | `ipam.metal3.io` and `ipam.cluster.x-k8s.io`: addresses for machines |
//! |  | [`bootstrap`] | `bootstrap.cluster.x-k8s.io`: how kubeadm makes machines nodes |
//! | base | [`certificates`] | certificates of clusters, and the kubeconfig of their administrators |
//! |  | [`hosts`] | hosts for machines: choice, claim, and what a host is told |
//! |  | [`contract`] | what objects of these groups have in common: pause, references, templates |
//! |  | [`workload`] | the client of a cluster that was made |

pub mod bootstrap;
pub mod certificates;
pub mod contract;
pub mod control_plane;
pub mod core;
pub mod data;
pub mod hosts;
pub mod infrastructure;
pub mod ipam;
pub mod machine_api;
pub mod workload;

#[cfg(test)]
mod tests;
