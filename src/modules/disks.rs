//! How much room there is where the appliance writes. The image library says it of itself.

use std::path::PathBuf;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::config::Config;
use crate::disk_space::DiskSpace;
use crate::module::Life;

/// The disks of database and logs, which may be the same.
pub(super) struct Disks([(&'static str, PathBuf); 2]);

impl Disks {
    pub(super) fn of(config: &Config) -> Self {
        Self([("database", config.data_dir.db()), ("logs", config.data_dir.logs())])
    }
}

impl Life for Disks {
    fn register(&self, registry: &mut Registry) {
        let (free, size) = (Family::default(), Family::default());
        let set = |family: &Family<[(&'static str, &'static str); 1], Gauge>, of, bytes: u64| {
            family.get_or_create(&[("of", of)]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        };
        for (of, folder) in &self.0 {
            // A folder that is not there yet has no series.
            if let Ok(found) = DiskSpace::at(folder) {
                set(&free, *of, found.free);
                set(&size, *of, found.size);
            }
        }
        registry.register("slipway_disk_free_bytes", "What the appliance may still write to the disk", free);
        registry.register("slipway_disk_size_bytes", "Size of the disk", size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_shown_of_each_disk_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let disks = Disks([("database", folder.path().into()), ("logs", folder.path().join("none"))]);
        let text = crate::metrics::shown(|registry| disks.register(registry));
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}{{of=\"database\"}} ")));
            line.and_then(|value| value.parse::<u64>().ok()).unwrap_or_default()
        };
        assert!(value("slipway_disk_size_bytes") >= value("slipway_disk_free_bytes"), "{text}");
        assert!(value("slipway_disk_size_bytes") > 0 && !text.contains("logs"), "{text}");
    }
}
