//! The steps as a real node does them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

use super::drivers::Activity;
use super::init;
use super::inventory::{self, Observed, disks, nics};
use super::log::kernel_messages;
use super::net::Network;
use super::protocol::{Action, Session};
use super::session::{Done, Executor, Job, Progress, StepError, action_name};
use crate::api::MacAddress;
use crate::api::metal3::Storage;

/// No device for this long counts as settled.
const QUIET: Duration = Duration::from_millis(500);
/// Longest wait for devices to settle: RAID controllers with many drives.
const SETTLE: Duration = Duration::from_secs(120);
/// How long is waited for a first disk once all drivers are loaded.
const FIRST_DISK: Duration = Duration::from_secs(20);
/// How long after its link came up a switch may take to say what it is.
const NEIGHBOUR: Duration = Duration::from_secs(5);

/// The machine that the agent runs on.
pub struct Node {
    root: PathBuf,
    network: Network,
    drivers: Activity,
    boot: Option<MacAddress>,
}

impl Node {
    /// The machine whose sysfs is below `root`. `boot` is the interface that the firmware booted from.
    pub fn new(root: &Path, network: Network, drivers: Activity, boot: Option<MacAddress>) -> Self {
        Self { root: root.to_owned(), network, drivers, boot }
    }

    /// The disks, once the drivers are done and at least one has been found or waited for.
    async fn disks(&self, progress: &Progress) -> Vec<Storage> {
        progress.report("waiting for disks", None, None);
        if !self.drivers.settled(QUIET, SETTLE).await {
            tracing::warn!("devices have not settled within {} s", SETTLE.as_secs());
        }
        let until = tokio::time::Instant::now() + FIRST_DISK;
        loop {
            let found = disks::disks(&self.root);
            if !found.is_empty() || tokio::time::Instant::now() >= until {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    async fn inspect(&self, progress: &Progress) -> Done {
        self.disks(progress).await;
        progress.report("waiting for switches", None, None);
        self.network.wait_for_neighbours(NEIGHBOUR).await;
        progress.report("reading the inventory", None, None);
        let observed =
            Observed { addresses: nics::addresses(), neighbours: self.network.neighbours(), boot: self.boot };
        let hardware = inventory::read(&self.root, &observed);
        Done { message: inventory::summary(&hardware), inventory: Some(hardware) }
    }
}

#[async_trait]
impl Executor for Node {
    fn opened(&self, session: &Session) {
        init::set_clock(session.now);
        let named = std::fs::read_to_string(self.root.join("proc/sys/kernel/hostname")).unwrap_or_default();
        if ["", "(none)"].contains(&named.trim())
            && let Some((_, name)) = session.host.split_once('/')
        {
            init::set_hostname(name);
        }
    }

    async fn run(&self, job: Job) -> Result<Done, StepError> {
        match job.action {
            Action::Inspect => Ok(self.inspect(&job.progress).await),
            ref other => Err(StepError(format!("{} cannot be done by this agent", action_name(other)))),
        }
    }

    fn kernel_log(&self) -> Vec<String> {
        kernel_messages(&self.root)
    }
}
