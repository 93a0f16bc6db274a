//! What the program does, through the doors that its users have: processes, files, the API, the wire.
//!
//! One program for all of it, because it takes longer to link one than to run most of these. A module for each subject;
//! `cargo test --test it engine::` runs those of one.
#![expect(
    clippy::exit,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by a panic and says what it measured; some of them end as a crash would"
)]

mod abuse;
mod access;
mod agent_appliance;
mod agent_network;
mod agent_protocol;
mod backup;
mod backup_support;
mod bmc_addresses;
mod bmc_ipmi;
mod bmc_media;
mod bmc_redfish;
mod boot_flood;
mod boot_refused;
mod check_config;
mod cli;
mod client;
mod descriptors;
mod dhcp_clients;
mod dhcp_support;
mod disk_full;
mod documents;
mod edit;
mod engine;
mod engine_answers;
mod engine_hostile;
mod full_file_system;
mod heads;
mod helm;
mod home_network;
mod host_crash;
mod host_move;
mod host_spec;
mod host_verbs;
mod hostile;
mod image_bpa;
mod image_cli;
mod image_events;
mod image_sources;
mod image_upload;
mod image_upload_shares;
mod informers;
mod journal;
mod kubeadm;
mod kubeconfig_merge;
mod kubectl;
mod kubespray;
mod leases;
mod library_hosts;
mod log_flood;
mod monitoring;
mod needs;
mod networks;
mod node_agent;
mod pages;
mod peer;
mod process;
mod published;
mod release_cli;
mod reload;
mod rights;
mod scraped;
mod security;
mod service_manager;
mod signals;
mod simulate;
mod simulate_running;
mod store_crash;
mod store_damage;
mod store_room;
mod strangers;
mod tasks;
mod tftp_async_tftp;
mod trap;
mod unit_file;
mod upstream;
mod webhooks;
