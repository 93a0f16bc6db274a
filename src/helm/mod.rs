//! The Helm controller: what keeps the Helm releases of a cluster as its HelmBundle says, by the real `helm`.
//!
//! It runs in the cluster, as a Deployment of a chart of ours, in an image with this program and `helm` and nothing else. It reads its
//! HelmBundle from the appliance, with an account that may do no more, and writes its status there.
//!
//! | file | idea |
//! |---|---|
//! | `plan` | what is to be done next, of the bundle and of what Helm says is there; pure |
//! | `command` | a call of `helm`: its arguments, its bounds, its answer |
//! | `controller` | the loop: reads, decides, runs, writes |
//! | `login` | logins of repositories, for a call |
//! | `chart` | the chart that installs it, as a package |
//! | `install` | what installs it in a cluster |
//! | `container` | its image, as an OCI archive |

mod chart;
mod command;
mod container;
mod controller;
mod install;
mod login;
mod plan;

pub use chart::{CHART_NAME, package as package_chart};
pub use command::Helm;
pub use container::{Contents as ContainerContents, archive as container_archive};
pub use controller::{ControllerSettings, run};
pub use install::install;
