//! Slipway: bare-metal provisioning in one static binary.
//!
//! The map of the house. `docs/design/README.md` has its floors: a room imports rooms of its own floor or below.
//!
//! | room | what it is |
//! |---|---|
//! | [`cli`] | the command line, one file for each command |
//! | [`appliance`] | `slipway serve`: builds every service, runs them, shuts them down |
//! | [`host`] | a machine's life: state machine, reconciler, agents' sessions, admission rules |
//! | [`engine`] | the controllers on a Kubernetes API server instead of the embedded one; leader election |
//! | [`apiserver`] | the Kubernetes-shaped REST API over the store |
//! | [`backup`] | everything that must not be lost as one file, and a new appliance made of it |
//! | [`pki`] | the appliance's own CA, certificates and kubeconfig |
//! | [`dhcp`] | DHCP server: packet in, packet out; leases |
//! | [`tftp`] | TFTP server |
//! | [`boot`] | what a machine boots: the pure decision, boot scripts, tokens, boot HTTP |
//! | [`image`] | image library: import, verify, chunk, serve |
//! | [`ramdisk`] | builds kernel and initrd from a kernel package and this binary |
//! | [`agent`] | what runs in the ramdisk; its protocol is shared with the appliance |
//! | [`bmc`] | Redfish and IPMI behind one trait; quirk profiles |
//! | [`store`] | sled: objects, revisions, leases |
//! | [`api`] | the resource kinds as plain types |
//! | [`simulate`] | a simulated rack to rehearse and to measure with |
//! | [`outbound`] | where the appliance may connect to when somebody else chose the address |
//! | [`jsonpath`] | JSONPath as kubectl has it |
//! | [`ration`] | who goes first when not everybody can be served |
//! | [`log`] | the log: lines that cannot be forged, rationed by who brings them about |
//! | [`config`] | `slipway.toml` |
//! | [`descriptors`] | how many files and connections may be open, and whose they are |

#![warn(missing_docs)]

pub mod agent;
pub mod api;
pub mod apiserver;
pub mod appliance;
pub mod backup;
pub mod bmc;
pub mod boot;
pub mod cli;
pub mod config;
pub mod descriptors;
pub mod dhcp;
pub mod engine;
pub mod host;
pub mod image;
pub mod jsonpath;
pub mod log;
#[cfg(test)]
#[path = "../tests/needs/mod.rs"]
mod needs;
pub mod outbound;
pub mod pki;
pub mod ramdisk;
pub mod ration;
pub mod simulate;
pub mod store;
pub mod tftp;
