//! What the kernel says of this process, under the names that every client library of Prometheus has.

use std::collections::HashMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Linux counts for programs in hundredths of a second on every machine (USER_HZ).
const TICKS: f64 = 100.0;

/// This process. Zero is what the kernel does not say.
#[derive(Debug, Default)]
pub(super) struct Process {
    resident: u64,
    size: u64,
    threads: u64,
    open_files: u64,
    max_files: u64,
    cpu_seconds: f64,
    /// Unix time in seconds.
    started: f64,
}

impl Process {
    pub fn read() -> Self {
        let read = |name| std::fs::read_to_string(name).unwrap_or_default();
        let mut process = Self::parse(&read("/proc/self/status"), &read("/proc/self/stat"), &read("/proc/stat"));
        process.open_files = std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64);
        let limits = read("/proc/self/limits");
        let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        process.max_files = files.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0);
        process
    }

    fn parse(status: &str, stat: &str, system: &str) -> Self {
        let fields: HashMap<&str, u64> = status
            .lines()
            .filter_map(|line| {
                let (key, value) = line.split_once(':')?;
                Some((key, value.split_whitespace().next()?.parse().ok()?))
            })
            .collect();
        let field = |key: &str| fields.get(key).copied().unwrap_or(0);
        // After the name, which may have spaces: state is the third field, user and system time the 14th and 15th, and the
        // 22nd is when it was started, since the system was.
        let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: Vec<f64> = after.split_whitespace().map(|ticks| ticks.parse().unwrap_or_default()).collect();
        let seconds = |field: usize| ticks.get(field - 3).map_or(0.0, |ticks| ticks / TICKS);
        let booted = system.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
        Self {
            resident: field("VmRSS") * 1024,
            size: field("VmSize") * 1024,
            threads: field("Threads"),
            cpu_seconds: seconds(14) + seconds(15),
            started: booted.map_or(0.0, |booted| booted + seconds(22)),
            ..Self::default()
        }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut one = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        one("process_resident_memory_bytes", "Resident memory size in bytes", self.resident as f64)?;
        one("process_virtual_memory_bytes", "Virtual memory size in bytes", self.size as f64)?;
        one("process_open_fds", "Number of open file descriptors", self.open_files as f64)?;
        one("process_max_fds", "Maximum number of open file descriptors", self.max_files as f64)?;
        one("process_threads", "Number of threads", self.threads as f64)?;
        one("process_start_time_seconds", "Start of the process since the Unix epoch in seconds", self.started)?;
        let (cpu, help) = (ConstCounter::new(self.cpu_seconds), "Total user and system CPU time spent in seconds");
        cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read() {
        let status = "Name:\tslip way\nVmSize:\t  2048 kB\nVmRSS:\t     512 kB\nThreads:\t7\n";
        let stat = "42 (slip ) way) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 7 0 100 2097152 128";
        let process = Process::parse(status, stat, "cpu  1 2\nbtime 1700000000\nprocesses 9\n");
        assert_eq!((process.size, process.resident, process.threads), (2 << 20, 512 << 10, 7));
        assert!((process.cpu_seconds - 2.0).abs() < 1e-9);
        assert!((process.started - 1_700_000_001.0).abs() < 1e-6);
        let nothing = Process::parse("", "", "");
        assert!(nothing.cpu_seconds.abs() < 1e-9 && nothing.started.abs() < 1e-9);
    }
}
