//! What a scrape of `/metrics` shows.

use prometheus_client::registry::Registry;

/// Series of each part that counts, which are there before anything was counted.
const OF_EACH_PART: [&str; 8] = [
    "metal3_reconcile_error_total",
    "slipway_image_imports",
    "slipway_tftp_transfers_total{outcome=\"completed\"}",
    "slipway_boot_connections{state=\"waiting\",rank=\"known\"}",
    "slipway_agent_sessions",
    "slipway_bmc_requests_total{protocol=\"ipmi\",outcome=\"timeout\"}",
    "slipway_backup_last_size_bytes",
    "process_start_time_seconds",
];

/// Whatever keeps the objects, each part of an appliance is in the scrape.
pub fn is_complete(text: &str) {
    for series in OF_EACH_PART {
        assert!(of(text, series).is_some(), "{series} is not in {text}");
    }
}

/// The value of a series of something that counts; 0 when there is no such series.
pub fn value(register: impl FnOnce(&mut Registry), series: &str) -> f64 {
    let mut registry = Registry::default();
    register(&mut registry);
    of(slipway::metrics::answer(registry).unwrap().body(), series).unwrap_or_default()
}

/// The value of a series in the text of a scrape.
pub fn of(text: &str, series: &str) -> Option<f64> {
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(value.parse().unwrap())
}
