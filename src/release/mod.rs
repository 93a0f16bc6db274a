//! Clusters that are made of releases: what they are, room by room. `docs/design/release.md` is the contract between the rooms.
//!
//! A room imports rooms of its own floor or below, and never in circles; the tests in `walls` read this table too.
//!
//! | floor | room | what it is |
//! |---|---|---|
//! | user | [`access`] | BareMetalHostCredential and BareMetalHostInventory: servers as their owners describe them |
//! | work | [`provider`] | Cluster and Machine: makes LCMCluster, LCMMachines, accounts, user data, HelmBundle |
//! |  | [`updates`] | UpdateGroup, ClusterUpdatePlan, GracefulRebootRequest: from release to release, and reboots |
//! |  | [`lcm`] | LCMCluster and LCMMachine: whose turn it is, tokens to join, states, drains |
//! |  | [`helm`] | the Helm controller of a cluster: installed, with a token and logins, and whether it runs |
//! | base | [`wish`] | what a Cluster wants, and whether it may have that |
//! |  | [`catalogue`] | KaaSRelease and ClusterRelease: what they may be, and what follows from them |
//! |  | [`keep`] | objects that are made for others, and whose they are |
//! |  | [`names`] | labels, annotations, finalizers, and what objects are called |
//! |  | [`words`] | what of a sentence everybody may read |

pub mod access;
pub mod catalogue;
pub mod helm;
pub mod keep;
pub mod lcm;
pub mod names;
pub mod provider;
pub mod updates;
pub mod wish;
pub mod words;
