//! Clusters that kubespray installs: their hosts and inventories, as Akraino's Binary Provisioning Agent has them
//! ([`provisioning`]), and Ansible playbooks which Slipway runs, follows and ends ([`runs`]).

pub mod provisioning;
pub mod runs;
