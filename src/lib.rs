//! Slipway: bare-metal provisioning in one static binary.
//!
//! The map of the house, from the top. A room imports rooms of its own floor or below, and never in circles; the test in
//! `walls` reads this table. `docs/design/README.md` says how a packet and an object walk through.
//!
//! | floor | room | what it is |
//! |---|---|---|
//! | house | [`cli`] | the command line, one file for each command |
//! |  | [`simulate`] | a simulated rack to rehearse and to measure with |
//! |  | [`appliance`] | `slipway serve`: builds every service, runs them, shuts them down |
//! |  | [`agent`] | what runs in the ramdisk, as process 1 |
//! |  | [`helm`] | the Helm controller, which runs in clusters |
//! |  | [`node`] | what runs on an installed node, as its agent |
//! |  | [`modules`] | the list of lives, for everybody above |
//! | life | [`host`] | a machine's life: state machine, reconciler, agents' sessions, admission rules |
//! |  | [`cluster`] | a cluster's life: the objects of Cluster API and Metal3 |
//! |  | [`kubespray`] | clusters that kubespray installs: their hosts, inventories and playbooks |
//! |  | [`release`] | clusters from releases: the catalogue of releases, and what nodes run, in which order |
//! | machinery | [`backup`] | everything that must not be lost as one file, and a new appliance made of it |
//! |  | [`apiserver`] | the Kubernetes-shaped REST API over the store |
//! |  | [`dhcp`] | DHCP server: packet in, packet out; leases |
//! |  | [`tftp`] | TFTP server |
//! |  | [`ramdisk`] | builds kernel and initrd from a kernel package and this binary |
//! |  | [`boot`] | what a machine boots: the pure decision, boot scripts, tokens, boot HTTP |
//! |  | [`image`] | image library: import, verify, chunk, serve |
//! |  | [`module`] | what a life brings into the house: kinds, rights, rules, metrics, controllers |
//! |  | [`runtime`] | what controllers stand on: one watch of each kind, caches, how they run and end; supervised tasks |
//! |  | [`engine`] | the controllers on a Kubernetes API server instead of the embedded one; leader election |
//! |  | [`bmc`] | Redfish and IPMI behind one trait; quirk profiles |
//! | ground | [`protocol`] | what the agent and the appliance say to each other |
//! |  | [`log`] | the log: lines that cannot be forged, rationed by who brings them about |
//! |  | [`metrics`] | `/metrics` as Prometheus reads it |
//! |  | [`config`] | `slipway.toml` |
//! |  | [`pki`] | the appliance's own CA, certificates and kubeconfig |
//! |  | [`store`] | sled: objects, revisions, leases |
//! |  | [`network_data`] | a site's network without DHCP: OpenStack's `network_data.json` |
//! |  | [`api`] | the resource kinds as plain types |
//! |  | [`outbound`] | where the appliance may connect to when somebody else chose the address |
//! |  | [`live`] | settings that a reload changes under those who hold them |
//! |  | [`ration`] | who goes first when not everybody can be served |
//! |  | [`files`] | files that somebody names: regular ones, of bounded size |
//! |  | [`disk_space`] | how much room a file system has |
//! |  | [`descriptors`] | how many files and connections may be open, and whose they are |
//! |  | [`netlink`] | single questions to the kernel about its networks |
//! |  | [`hex`] | bytes as digits |
//! |  | [`json_marks`] | what JSON text has in it, counted before it is parsed |
//! |  | [`jsonpath`] | JSONPath as kubectl has it |
//! |  | [`glob`] | shell patterns |
//! |  | [`origin`] | of which source this program was built |
//! |  | [`ansible`] | inventories of Ansible, that mean what they say |

#![deny(missing_docs)]

pub mod agent;
pub mod ansible;
pub mod api;
pub mod apiserver;
pub mod appliance;
pub mod backup;
pub mod bmc;
pub mod boot;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod descriptors;
pub mod dhcp;
pub mod disk_space;
pub mod engine;
pub mod files;
pub mod glob;
pub mod helm;
pub mod hex;
pub mod host;
pub mod image;
pub mod json_marks;
pub mod jsonpath;
pub mod kubespray;
pub mod live;
pub mod log;
pub mod metrics;
pub mod module;
pub mod modules;
#[cfg(test)]
#[path = "../tests/it/needs/mod.rs"]
mod needs;
pub mod netlink;
pub mod network_data;
pub mod node;
pub mod origin;
pub mod outbound;
#[cfg(test)]
#[path = "../tests/it/pages/mod.rs"]
mod pages;
pub mod pki;
pub mod protocol;
pub mod ramdisk;
pub mod ration;
pub mod release;
pub mod runtime;
pub mod simulate;
pub mod store;
pub mod tftp;
#[cfg(test)]
mod walls;
