//! The table of hosts as operators want it: what each does, how far it is, how fast, how long still, and why.
//!
//! Shown for the words `host` and `hosts`; `bmh` and `baremetalhosts` give the table that kubectl gives.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::hardware;
use super::relative::relative;

/// The words that ask for this table.
pub(super) const WORDS: [&str; 2] = ["host", "hosts"];

/// Name, where it is in the host, whether it is only for `-o wide`.
type Column = (&'static str, fn(&Value) -> String, bool);

const COLUMNS: [Column; 17] = [
    ("Name", |host| text(host, "/metadata/name"), false),
    ("State", |host| text(host, "/status/provisioning/state"), false),
    ("Phase", |host| text(host, "/status/progress/phase"), false),
    ("Progress", |host| number(host, "percent").map(|percent| format!("{percent}%")).unwrap_or_default(), false),
    ("Rate", |host| number(host, "bytesPerSecond").map(rate).unwrap_or_default(), false),
    ("Left", |host| number(host, "secondsLeft").map(length).unwrap_or_default(), false),
    ("Online", |host| flag(host, "/spec/online"), true),
    ("Power", |host| flag(host, "/status/poweredOn"), true),
    ("Error", |host| text(host, "/status/errorType"), true),
    ("Consumer", |host| text(host, "/spec/consumerRef/name"), true),
    ("BMC", |host| text(host, "/spec/bmc/address"), true),
    ("Address", |host| addresses(host).join(","), false),
    ("Model", |host| hardware::model(&host["status"]["hardware"]), true),
    ("CPUs", |host| hardware::processors(&host["status"]["hardware"]), true),
    ("Memory", |host| hardware::memory(&host["status"]["hardware"]), true),
    ("Disks", |host| hardware::disks(&host["status"]["hardware"]), true),
    ("Reason", reason, false),
];

/// The server's table with these columns. One whose rows lack the objects stays as it is.
pub(super) fn table(mut table: Value, now: Timestamp) -> Value {
    let rows = table["rows"].as_array().map_or(&[][..], Vec::as_slice);
    if rows.iter().any(|row| row["object"].get("spec").is_none()) {
        return table;
    }
    let cell = |host: &Value, (name, cell, _): &Column| match *name {
        "Reason" => relative(&cell(host), now),
        _ => cell(host),
    };
    let cells: Vec<Value> =
        rows.iter().map(|row| COLUMNS.iter().map(|column| cell(&row["object"], column)).collect()).collect();
    if let Some(rows) = table["rows"].as_array_mut() {
        for (row, cells) in rows.iter_mut().zip(cells) {
            row["cells"] = cells;
        }
    }
    let column = |&(name, _, wide): &Column| {
        let format = if name == "Name" { "name" } else { "" };
        json!({ "name": name, "type": "string", "format": format, "priority": i64::from(wide) })
    };
    table["columnDefinitions"] = COLUMNS.iter().map(column).collect();
    table
}

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

fn number(host: &Value, field: &str) -> Option<i64> {
    host["status"]["progress"][field].as_i64()
}

/// Why it is not further: the error first.
fn reason(host: &Value) -> String {
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
    use super::super::table::{Printer, Show};
    use super::*;

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
            host("c", found),
        ]});
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let lines = Printer::new(Show::default()).lines(&table(sent.clone(), now), "");
        insta::assert_snapshot!(lines, @r"
        NAME   STATE          PHASE               PROGRESS   RATE      LEFT    ADDRESS             REASON
        a      provisioning   writing the image   45%        22 MB/s   3m20s   10.0.0.5,10.1.0.5   write-image
        b      inspecting     failed                                                               no call, next try in 10m
        c
        ");
        let wide = Printer::new(Show { wide: true, ..Show::default() }).lines(&table(sent, now), "");
        assert!(
            wide.contains("inspection error") && wide.contains("2.0 TB") && wide.starts_with("NAME   STATE"),
            "{wide}"
        );
        let bare = json!({ "columnDefinitions": [{ "name": "Name" }], "rows": [{ "cells": ["a"], "object": { "metadata": {} } }] });
        assert_eq!(table(bare.clone(), now), bare);
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
