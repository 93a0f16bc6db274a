//! The table of hosts as operators want it: what each does, how far it is, how fast, how long still, and why.
//!
//! Shown for the words `host` and `hosts`; `bmh` and `baremetalhosts` give the table that kubectl gives.

use serde_json::Value;

use super::hardware;
use super::held::held;
use super::own_table::OwnColumn;
use super::relative::relative;

/// The words that ask for this table.
pub(super) const WORDS: [&str; 2] = ["host", "hosts"];

/// What `host` and `hosts` show.
pub(super) const COLUMNS: [OwnColumn; 17] = [
    ("Name", |host, _| text(host, "/metadata/name"), false),
    ("State", |host, _| text(host, "/status/provisioning/state"), false),
    ("Phase", |host, _| phase(host), false),
    ("Progress", |host, _| number(host, "percent").map(|percent| format!("{percent}%")).unwrap_or_default(), false),
    ("Rate", |host, _| number(host, "bytesPerSecond").map(rate).unwrap_or_default(), false),
    ("Left", |host, _| number(host, "secondsLeft").map(length).unwrap_or_default(), false),
    ("Online", |host, _| flag(host, "/spec/online"), true),
    ("Power", |host, _| power(host).to_owned(), true),
    ("Error", |host, _| text(host, "/status/errorType"), true),
    ("Consumer", |host, _| text(host, "/spec/consumerRef/name"), true),
    ("BMC", |host, _| text(host, "/spec/bmc/address"), true),
    ("Address", |host, _| addresses(host).join(","), false),
    ("Model", |host, _| hardware::model(&host["status"]["hardware"]), true),
    ("CPUs", |host, _| hardware::processors(&host["status"]["hardware"]), true),
    ("Memory", |host, _| hardware::memory(&host["status"]["hardware"]), true),
    ("Disks", |host, _| hardware::disks(&host["status"]["hardware"]), true),
    ("Reason", |host, now| relative(&reason(host), now), false),
];

fn text(host: &Value, path: &str) -> String {
    host.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// What DHCP leases to its machine now.
fn addresses(host: &Value) -> Vec<&str> {
    let all = host.pointer("/status/addresses").and_then(Value::as_array);
    all.into_iter().flatten().filter_map(|one| one["address"].as_str()).collect()
}

fn flag(host: &Value, path: &str) -> String {
    host.pointer(path).and_then(Value::as_bool).map(|flag| flag.to_string()).unwrap_or_default()
}

/// Whether its machine is on, as far as its BMC ever said.
pub(super) fn power(host: &Value) -> &'static str {
    let answered = host["status"]["goodCredentials"]["credentials"].is_object();
    match host["status"]["poweredOn"].as_bool() {
        Some(true) => "on",
        Some(false) if answered => "off",
        _ => "unknown",
    }
}

/// What is done with it, or that it is left alone.
fn phase(host: &Value) -> String {
    held(host).map_or_else(|| text(host, "/status/progress/phase"), |held| held.word.to_owned())
}

/// How far it is. What was true when it was paused is not any more.
fn number(host: &Value, field: &str) -> Option<i64> {
    if held(host).is_some() {
        return None;
    }
    host["status"]["progress"][field].as_i64()
}

/// Why it is not further: that it is left alone, else the error.
fn reason(host: &Value) -> String {
    if let Some(held) = held(host) {
        return held.reason;
    }
    let error = text(host, "/status/errorMessage");
    if error.is_empty() { text(host, "/status/progress/reason") } else { error }
}

/// `22 MB/s`, `1.4 GB/s`: in powers of ten, with one digit below ten.
fn rate(bytes: i64) -> String {
    let (value, unit) = match bytes {
        ..1_000 => return format!("{bytes} B/s"),
        1_000..1_000_000 => (bytes / 100, "kB/s"),
        1_000_000..1_000_000_000 => (bytes / 100_000, "MB/s"),
        _ => (bytes / 100_000_000, "GB/s"),
    };
    if value < 100 { format!("{}.{} {unit}", value / 10, value % 10) } else { format!("{} {unit}", value / 10) }
}

/// `45s`, `3m20s`, `2h5m`.
fn length(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds}s"),
        120..7200 => format!("{}m{}s", seconds / 60, seconds % 60),
        _ => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::super::own_table;
    use super::super::table::{Show, TablePrinter};
    use super::*;
    use jiff::Timestamp;
    use serde_json::json;

    #[test]
    fn what_a_host_does_is_on_its_line() {
        let host = |name: &str, status: Value| json!({ "object": { "metadata": { "name": name }, "spec": { "online": true }, "status": status }, "cells": [] });
        let progress = json!({ "phase": "writing the image", "percent": 45, "bytesPerSecond": 22_460_000, "secondsLeft": 200,
            "reason": "write-image" });
        let found = json!({ "hardware": { "storage": [{ "sizeBytes": 2_000_000_000_000_i64 }] } });
        let failed = json!({ "provisioning": { "state": "inspecting" }, "errorMessage": "no call, next try at 2026-01-01T00:10:00Z", "errorType": "inspection error",
            "progress": { "phase": "failed", "reason": "next try" } });
        let sent = json!({ "kind": "Table", "columnDefinitions": [{ "name": "Name" }], "rows": [
            host("a", json!({ "provisioning": { "state": "provisioning" }, "progress": progress,
                "addresses": [{ "address": "10.0.0.5" }, { "address": "10.1.0.5" }] })),
            host("b", failed),
            json!({ "object": { "metadata": { "name": "d", "annotations": { "baremetalhost.metal3.io/paused": "" } }, "spec": {},
                "status": { "errorMessage": "old", "progress": { "phase": "writing", "percent": 5 } } }, "cells": [] }),
            host("c", found),
        ]});
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let lines = TablePrinter::new(Show::default()).lines(&own_table::table(sent.clone(), &COLUMNS, now), "");
        insta::assert_snapshot!(lines, @r"
        NAME   STATE          PHASE               PROGRESS   RATE      LEFT    ADDRESS             REASON
        a      provisioning   writing the image   45%        22 MB/s   3m20s   10.0.0.5,10.1.0.5   write-image
        b      inspecting     failed                                                               no call, next try in 10m
        d                     paused                                                               paused, so nothing is done with it: `slipway host unpause d` ends that
        c
        ");
        let wide =
            TablePrinter::new(Show { wide: true, ..Show::default() }).lines(&own_table::table(sent, &COLUMNS, now), "");
        assert!(
            wide.contains("inspection error") && wide.contains("2.0 TB") && wide.starts_with("NAME   STATE"),
            "{wide}"
        );
        let bare = json!({ "columnDefinitions": [{ "name": "Name" }], "rows": [{ "cells": ["a"], "object": { "metadata": {} } }] });
        assert_eq!(own_table::table(bare.clone(), &COLUMNS, now), bare);
    }

    #[test]
    fn the_power_is_unknown_until_a_bmc_has_answered() {
        let good = json!({ "credentials": { "name": "s" } });
        for (status, wanted) in [
            (json!({ "poweredOn": true }), "on"),
            (json!({ "poweredOn": false, "goodCredentials": good }), "off"),
            (json!({ "poweredOn": false, "goodCredentials": {} }), "unknown"),
            (json!({}), "unknown"),
        ] {
            assert_eq!(power(&json!({ "status": status })), wanted);
        }
    }

    #[test]
    fn rates_and_times_are_short() {
        for (bytes, wanted) in [
            (0, "0 B/s"),
            (999, "999 B/s"),
            (1_500, "1.5 kB/s"),
            (9_990_000, "9.9 MB/s"),
            (22_460_000, "22 MB/s"),
            (999_999_999, "999 MB/s"),
            (1_400_000_000, "1.4 GB/s"),
        ] {
            assert_eq!(rate(bytes), wanted);
        }
        for (seconds, wanted) in [(0, "0s"), (119, "119s"), (200, "3m20s"), (7500, "2h5m")] {
            assert_eq!(length(seconds), wanted);
        }
    }
}
