//! The agent's steps, done on a real machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use bytes::Bytes;

use super::client::ApplianceClient;
use super::disk::write::{ChunkSource, SourceError};
use super::disk::{DiskError, bootentry, config, device_path, erase, hints, write};
use super::drivers::{self, Activity};
use super::init;
use super::inventory::{self, ObservedNetwork, disks, nics};
use super::kexec;
use super::log::kernel_messages;
use super::net::AgentNetwork;
use super::session::{Executor, StepDone, StepError, StepJob, StepReporter};
use crate::api::MacAddress;
use crate::api::metal3::{AutomatedCleaningMode, RootDeviceHints, Storage};
use crate::protocol::{Action, AgentSession};

/// No device for this long counts as settled.
const QUIET: Duration = Duration::from_millis(500);
/// Longest wait for devices to settle: RAID controllers with many drives.
const SETTLE: Duration = Duration::from_secs(120);
/// How long is waited for a first disk once all drivers are loaded.
const FIRST_DISK: Duration = Duration::from_secs(20);
/// How long after its link came up a switch may take to say what it is.
const NEIGHBOUR: Duration = Duration::from_secs(5);

/// The machine that the agent runs on.
pub struct AgentNode {
    root: PathBuf,
    network: AgentNetwork,
    drivers: Activity,
    boot: Option<MacAddress>,
}

impl AgentNode {
    /// The machine whose sysfs is below `root`. `boot` is the interface that the firmware booted from.
    pub fn new(root: &Path, network: AgentNetwork, drivers: Activity, boot: Option<MacAddress>) -> Self {
        Self { root: root.to_owned(), network, drivers, boot }
    }

    /// The disks, once the drivers are done and at least one has been found or waited for.
    async fn disks(&self, progress: &StepReporter) -> Vec<Storage> {
        progress.report("waiting for disks", None, None);
        if !self.drivers.settled(QUIET, SETTLE).await {
            tracing::warn!(seconds = SETTLE.as_secs(), "devices have not settled in time: going on");
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

    /// The device of the root disk, by the same rule for every step of an intent.
    async fn root_disk(&self, hints: Option<&RootDeviceHints>, progress: &StepReporter) -> Result<PathBuf, StepError> {
        let disks = self.disks(progress).await;
        let removable = |disk: &Storage| disks::is_removable(&self.root, disk);
        let chosen = hints::choose(&disks, hints, removable).map_err(|error| StepError(error.to_string()))?;
        let device = device_path(chosen);
        tracing::info!(disk = %device.display(), name = chosen.name, bytes = chosen.size_bytes, "chose the root disk");
        Ok(device)
    }

    async fn inspect(&self, progress: &StepReporter) -> Result<StepDone, StepError> {
        self.disks(progress).await;
        progress.report("waiting for switches", None, None);
        self.network.wait_for_neighbours(NEIGHBOUR).await;
        progress.report("reading the inventory", None, None);
        let observed =
            ObservedNetwork { addresses: nics::addresses(), neighbours: self.network.neighbours(), boot: self.boot };
        let root = self.root.clone();
        let (hardware, bmc) =
            blocking(move || (inventory::read(&root, &observed), inventory::bmc::read(&root))).await?;
        let message = match &bmc {
            Some(bmc) => format!("{}, {}", hardware.summary(), inventory::bmc::summary(bmc)),
            None => hardware.summary(),
        };
        Ok(StepDone { message, inventory: Some(hardware), bmc })
    }

    async fn erase(&self, mode: AutomatedCleaningMode, job: &StepJob) -> Result<StepDone, StepError> {
        if mode == AutomatedCleaningMode::Disabled {
            return Ok(StepDone::new("cleaning is disabled, nothing was erased"));
        }
        self.disks(&job.progress).await;
        let disks = erase::candidates(&self.root.join("sys/block"))?;
        let (progress, cancel) = (job.progress.clone(), job.cancel.clone());
        let goes_on = move |disk: &Path| {
            let goes_on = !cancel.is_cancelled();
            if goes_on {
                progress.report(&format!("erasing {}", disk.display()), None, None);
            }
            goes_on
        };
        let erased = blocking(move || erase::erase_all(&disks, goes_on)).await??;
        Ok(StepDone::new(match erased.as_str() {
            "" => "no disk to erase".to_owned(),
            erased => format!("metadata erased: {erased}"),
        }))
    }

    async fn write_image(
        &self,
        digest: &str,
        hints: Option<&RootDeviceHints>,
        client: &ApplianceClient,
        progress: &StepReporter,
    ) -> Result<StepDone, StepError> {
        let disk = self.root_disk(hints, progress).await?;
        progress.report("fetching the manifest", None, None);
        let manifest = client.manifest(digest).await.map_err(|error| StepError(error.to_string()))?;
        let told = progress.clone();
        let summary = write::write_image(Arc::new(ApplianceChunks(client.clone())), &manifest, &disk, move |now| {
            told.report("writing the image", Some(now.done), Some(now.total));
        })
        .await?;
        Ok(StepDone::new(format!(
            "{} holds the image: {} bytes, {} fetched, {} written; the agent's memory peaked at {}",
            disk.display(),
            summary.total,
            summary.fetched,
            summary.written,
            peak_memory(&self.root)
        )))
    }

    async fn write_config_drive(
        &self,
        iso: &str,
        hints: Option<&RootDeviceHints>,
        progress: &StepReporter,
    ) -> Result<StepDone, StepError> {
        let iso = base64::engine::general_purpose::STANDARD
            .decode(iso)
            .map_err(|error| StepError(format!("the config drive is not base64: {error}")))?;
        let disk = self.root_disk(hints, progress).await?;
        progress.report("writing the config drive", None, None);
        let device = disk.clone();
        let partition = blocking(move || config::write_config_drive(&device, &iso)).await??;
        Ok(StepDone::new(format!("{} partition {} holds the config drive", disk.display(), partition.number)))
    }

    async fn set_boot_entry(
        &self,
        hints: Option<&RootDeviceHints>,
        progress: &StepReporter,
    ) -> Result<StepDone, StepError> {
        let disk = self.root_disk(hints, progress).await?;
        progress.report("setting the boot entry", None, None);
        let entry = blocking(move || {
            init::mount_efi_variables();
            bootentry::set_boot_entry(Path::new(bootentry::EFIVARS), &disk)
        })
        .await??;
        Ok(StepDone::new(match entry {
            Some(entry) => format!("the firmware boots {entry}"),
            None => "BIOS: the boot order is the firmware's".to_owned(),
        }))
    }

    async fn kexec(&self, hints: Option<&RootDeviceHints>, progress: &StepReporter) -> Result<StepDone, StepError> {
        let disk = self.root_disk(hints, progress).await?;
        progress.report("loading the installed system's kernel", None, None);
        let root = self.root.clone();
        let kernel = blocking(move || {
            drivers::load(&root, &kexec::FILE_SYSTEMS);
            kexec::load(&root.join("sys/block"), &disk)
        })
        .await?
        .map_err(|error| StepError(error.to_string()))?;
        Ok(StepDone::new(format!("starting {kernel} without the firmware")))
    }

    async fn act(&self, job: &StepJob) -> Result<StepDone, StepError> {
        let progress = &job.progress;
        match &job.action {
            Action::Inspect => self.inspect(progress).await,
            Action::Erase { mode } => self.erase(*mode, job).await,
            Action::WriteImage { digest, root_device_hints } => {
                self.write_image(digest, root_device_hints.as_ref(), &job.client, progress).await
            }
            Action::WriteConfigDrive { iso, root_device_hints } => {
                self.write_config_drive(iso, root_device_hints.as_ref(), progress).await
            }
            Action::SetBootEntry { root_device_hints } => {
                self.set_boot_entry(root_device_hints.as_ref(), progress).await
            }
            Action::Kexec { root_device_hints } => self.kexec(root_device_hints.as_ref(), progress).await,
            Action::Reboot | Action::PowerOff | Action::CollectLogs => {
                Err(StepError(format!("{} is not a step of the machine", job.action.kind())))
            }
        }
    }
}

#[async_trait]
impl Executor for AgentNode {
    fn opened(&self, session: &AgentSession) {
        init::set_clock(session.now);
        let named = std::fs::read_to_string(self.root.join("proc/sys/kernel/hostname")).unwrap_or_default();
        if ["", "(none)"].contains(&named.trim())
            && let Some((_, name)) = session.host.split_once('/')
        {
            init::set_hostname(name);
        }
    }

    async fn run(&self, job: StepJob) -> Result<StepDone, StepError> {
        tokio::select! {
            biased;
            () = job.cancel.cancelled() => Err(StepError("cancelled".into())),
            done = self.act(&job) => done,
        }
    }

    fn kernel_log(&self) -> Vec<String> {
        kernel_messages(&self.root)
    }
}

impl From<DiskError> for StepError {
    fn from(error: DiskError) -> Self {
        Self(error.to_string())
    }
}

/// Runs what blocks on a thread for it.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StepError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| StepError(format!("fault in the agent: {error}")))
}

/// Chunks from the appliance. The client has tried for as long as it is worth trying.
struct ApplianceChunks(ApplianceClient);

#[async_trait]
impl ChunkSource for ApplianceChunks {
    async fn chunk(&self, sha256: &str) -> Result<Bytes, SourceError> {
        self.0.chunk(sha256).await.map_err(|error| SourceError { message: error.to_string(), fatal: true })
    }
}

/// The most memory that this process ever held, as the kernel says it (`VmHWM`, proc(5)).
fn peak_memory(root: &Path) -> String {
    let status = std::fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or_else(|| "an unknown size".to_owned(), |size| size.split_whitespace().collect::<Vec<_>>().join(" "))
}
