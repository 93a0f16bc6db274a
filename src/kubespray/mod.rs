//! Clusters that kubespray installs: the kinds of Akraino's Binary Provisioning Agent.

pub mod provisioning;
