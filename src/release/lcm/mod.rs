//! LCMCluster and LCMMachine: whose turn it is, tokens to join, states, drains.
//!
//! `provider` makes an LCMCluster, and LCMMachines that are empty. Here the machines are filled: each is handed the steps of its
//! cluster's release, phase by phase, when it is its turn (`order`), and its agent works them off. What the cluster alone knows stands
//! in their parameters (`steps`), and what only one machine may know is the answer of its subresource `deployment`.
//!
//! Before a node is drained the applications on it are asked (`locks`, `applications`): whoever holds it by a lock is waited for.
//!
//! Each decision is a pure function of what is known of all machines of a cluster (`survey`), in one place (`clusters`), and what
//! follows of it may be written twice (`effects`).

mod admission;
mod applications;
mod clusters;
mod deployment;
mod deployments;
mod effects;
mod groups;
mod handshake;
mod leave;
mod life;
mod locks;
mod material;
mod nodes;
mod order;
mod orphans;
mod requests;
mod said;
mod state;
mod steps;
mod survey;
#[cfg(test)]
mod tests;
mod view;

pub use life::Lcm;

use crate::api::lcm::{HelmBundle, LCMCluster, LCMClusterState, LCMMachine};
use crate::api::{Declared, StoragePolicy};
use crate::module::Module;

/// Bytes that controllers keep of a machine besides its text.
const MACHINE_MEMORY: usize = 8 << 10;

/// LCMCluster, LCMMachine and LCMClusterState. Slipway writes them, and of the status of its own machine the agent: the default role
/// `edit` has no right to. They are in the embedded API server only, so there are no rights in another one.
pub fn module() -> Module {
    Module {
        kinds: vec![
            Declared::one::<LCMCluster>(StoragePolicy::Administrative),
            Declared::one::<LCMMachine>(StoragePolicy::Administrative).costing(MACHINE_MEMORY),
            Declared::one::<LCMClusterState>(StoragePolicy::Administrative),
            Declared::one::<HelmBundle>(StoragePolicy::Durable),
        ],
        rights: &[],
    }
}
