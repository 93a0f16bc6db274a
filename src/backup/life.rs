//! Scheduled backups as a life: what is counted of them, and who makes them.

use std::path::PathBuf;
use std::sync::Arc;

use prometheus_client::registry::Registry;

use super::schedule::{self, BackupMeters};
use super::take::BackupSource;
use crate::config::{BackupConfig, Config};
use crate::module::{Life, RunningLife, Service, service};

/// Makes backups by itself, where a folder for them is configured.
pub struct ScheduledBackups {
    config: BackupConfig,
    /// The folder with the keys.
    pki: PathBuf,
    /// The configuration file.
    text: Arc<str>,
    meters: BackupMeters,
}

impl ScheduledBackups {
    /// As the configuration has it.
    pub fn of(config: &Config) -> Self {
        let (pki, text) = (config.data_dir.pki(), config.text.clone());
        Self { config: config.backup.clone(), pki, text, meters: BackupMeters::default() }
    }
}

impl Life for ScheduledBackups {
    fn register(&self, registry: &mut Registry) {
        self.meters.register(registry);
    }

    fn run(&self, running: &RunningLife) -> anyhow::Result<Vec<Service>> {
        let Some(folder) = self.config.folder.clone() else { return Ok(Vec::new()) };
        let RunningLife { tasks, store, in_memory, stop, .. } = running.clone();
        let source = BackupSource::new(store, self.pki.clone(), &self.text, in_memory);
        let run = schedule::run(self.config.clone(), folder, source, self.meters.clone(), tasks.task("backup"), stop);
        Ok(vec![service("backup", run)])
    }
}
