//! Clusters that kubespray installs: Ansible playbooks which Slipway runs, follows and ends ([`runs`]).

pub mod runs;
