//! A machine's hardware in few words, as its status or its HardwareData has it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use super::own_table::OwnColumn;
use crate::apiserver::age;

/// What a table of HardwareData shows.
pub(super) const COLUMNS: [OwnColumn; 13] = [
    ("Name", |data, _| text(data, "/metadata/name").to_owned(), false),
    ("Model", |data, _| model(of(data)), false),
    ("Serial", |data, _| text(of(data), "/systemVendor/serialNumber").to_owned(), true),
    ("CPUs", |data, _| processors(of(data)), false),
    ("Processor", |data, _| text(of(data), "/cpu/model").to_owned(), true),
    ("Arch", |data, _| text(of(data), "/cpu/arch").to_owned(), false),
    ("Memory", |data, _| memory(of(data)), false),
    ("Disks", |data, _| disks(of(data)), false),
    (
        "NICs",
        |data, _| {
            Some(cards(of(data)).len()).filter(|count| *count > 0).map(|count| count.to_string()).unwrap_or_default()
        },
        false,
    ),
    ("MAC", |data, _| addresses(of(data)).join(","), true),
    ("Firmware", |data, _| firmware(of(data)), true),
    ("Hostname", |data, _| text(of(data), "/hostname").to_owned(), true),
    ("Age", |data, now| since(&data["metadata"]["creationTimestamp"], now), false),
];

/// The hardware in a HardwareData.
pub(super) fn of(data: &Value) -> &Value {
    &data["spec"]["hardware"]
}

fn since(stamp: &Value, now: Timestamp) -> String {
    age(stamp, now).as_str().unwrap_or_default().to_owned()
}

fn text<'a>(hardware: &'a Value, pointer: &str) -> &'a str {
    hardware.pointer(pointer).and_then(Value::as_str).unwrap_or_default().trim()
}

fn list<'a>(hardware: &'a Value, field: &str) -> &'a [Value] {
    hardware[field].as_array().map_or(&[], Vec::as_slice)
}

/// Maker and model: `Dell Inc. PowerEdge R650`.
pub(super) fn model(hardware: &Value) -> String {
    let parts = [text(hardware, "/systemVendor/manufacturer"), text(hardware, "/systemVendor/productName")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// How many logical processors.
pub(super) fn processors(hardware: &Value) -> String {
    hardware["cpu"]["count"].as_i64().filter(|count| *count > 0).map(|count| count.to_string()).unwrap_or_default()
}

/// `256 GiB`
pub(super) fn memory(hardware: &Value) -> String {
    match hardware["ramMebibytes"].as_i64() {
        Some(mebibytes @ 1..1024) => format!("{mebibytes} MiB"),
        Some(mebibytes @ 1024..) => format!("{} GiB", (mebibytes + 512) / 1024),
        _ => String::new(),
    }
}

/// Disks by size, the most frequent first: `2 x 960 GB, 4.0 TB`.
pub(super) fn disks(hardware: &Value) -> String {
    let mut sizes: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (at, disk) in list(hardware, "storage").iter().enumerate() {
        sizes.entry(size(disk["sizeBytes"].as_i64().unwrap_or_default())).or_insert((0, at)).0 += 1;
    }
    let mut all: Vec<(String, (usize, usize))> = sizes.into_iter().collect();
    all.sort_by_key(|(_, (count, at))| (std::cmp::Reverse(*count), *at));
    let shown = all.into_iter().map(|(size, (count, _))| if count > 1 { format!("{count} x {size}") } else { size });
    shown.collect::<Vec<_>>().join(", ")
}

/// Names of network cards. One has an entry for each of its addresses.
fn cards(hardware: &Value) -> BTreeSet<&str> {
    list(hardware, "nics").iter().map(|nic| text(nic, "/name")).collect()
}

/// MAC addresses, in the order of the cards.
fn addresses(hardware: &Value) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for mac in list(hardware, "nics").iter().map(|nic| text(nic, "/mac")).filter(|mac| !mac.is_empty()) {
        if !all.contains(&mac) {
            all.push(mac);
        }
    }
    all
}

/// Vendor and version of the firmware.
fn firmware(hardware: &Value) -> String {
    let parts = [text(hardware, "/firmware/bios/vendor"), text(hardware, "/firmware/bios/version")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Each disk in a line: `/dev/sda: 960 GB SSD, Samsung PM9A3 (serial S1)`.
pub(super) fn each_disk(hardware: &Value) -> Vec<String> {
    let told = |disk: &Value| {
        let kind = match (text(disk, "/type"), disk["rotational"].as_bool()) {
            ("", Some(true)) => " HDD".to_owned(),
            ("", _) => String::new(),
            (kind, _) => format!(" {kind}"),
        };
        let parts = [text(disk, "/vendor"), text(disk, "/model")];
        let model = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        let model = if model.is_empty() { model } else { format!(", {model}") };
        let serial = match text(disk, "/serialNumber") {
            "" => String::new(),
            serial => format!(" (serial {serial})"),
        };
        let size = size(disk["sizeBytes"].as_i64().unwrap_or_default());
        format!("{}: {size}{kind}{model}{serial}", text(disk, "/name"))
    };
    list(hardware, "storage").iter().map(told).collect()
}

/// Each address of a network card in a line: `eno1: 52:54:00:00:00:01, 10.0.0.5, 25 Gb/s, PXE`.
pub(super) fn each_card(hardware: &Value) -> Vec<String> {
    let told = |nic: &Value| {
        let speed = nic["speedGbps"].as_i64().filter(|speed| *speed > 0).map(|speed| format!("{speed} Gb/s"));
        let pxe = (nic["pxe"] == true).then(|| "PXE".to_owned());
        let known = [text(nic, "/mac"), text(nic, "/ip")].into_iter().filter(|part| !part.is_empty());
        let parts: Vec<String> = known.map(str::to_owned).chain(speed).chain(pxe).collect();
        format!("{}: {}", text(nic, "/name"), parts.join(", "))
    };
    list(hardware, "nics").iter().map(told).collect()
}

/// All of it in a line; empty where nothing is known.
pub(super) fn line(hardware: &Value) -> String {
    let mut parts = Vec::new();
    let (model, serial) = (model(hardware), text(hardware, "/systemVendor/serialNumber"));
    match (model.is_empty(), serial.is_empty()) {
        (false, false) => parts.push(format!("{model} (serial {serial})")),
        (false, true) => parts.push(model),
        (true, false) => parts.push(format!("serial {serial}")),
        (true, true) => {}
    }
    let (count, processor) = (processors(hardware), text(hardware, "/cpu/model"));
    match (count.is_empty(), processor.is_empty()) {
        (false, false) => parts.push(format!("{count} CPUs ({processor})")),
        (false, true) => parts.push(format!("{count} CPUs")),
        _ => {}
    }
    parts.extend(Some(memory(hardware)).filter(|memory| !memory.is_empty()));
    match list(hardware, "storage").len() {
        0 => {}
        1 => parts.push(format!("1 disk ({})", disks(hardware))),
        many => parts.push(format!("{many} disks ({})", disks(hardware))),
    }
    match cards(hardware).len() {
        0 => {}
        1 => parts.push("1 NIC".into()),
        many => parts.push(format!("{many} NICs")),
    }
    parts.join(", ")
}

/// Bytes as disks are sold: in powers of ten, with one digit below ten.
fn size(bytes: i64) -> String {
    let (tenths, unit) = match bytes {
        ..=0 => return "unknown size".into(),
        1..1_000_000_000 => (bytes / 100_000, "MB"),
        1_000_000_000..1_000_000_000_000 => (bytes / 100_000_000, "GB"),
        _ => (bytes / 100_000_000_000, "TB"),
    };
    if tenths < 100 { format!("{}.{} {unit}", tenths / 10, tenths % 10) } else { format!("{} {unit}", tenths / 10) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hardware_is_told_in_a_line() {
        let disk = |bytes: i64| json!({ "name": "/dev/x", "sizeBytes": bytes });
        let hardware = json!({
            "systemVendor": { "manufacturer": "Dell Inc.", "productName": "PowerEdge R650", "serialNumber": "ABC" },
            "cpu": { "count": 64, "model": "Xeon Gold", "flags": ["aes"] }, "ramMebibytes": 262_000,
            "storage": [disk(4_000_787_030_016), disk(960_197_124_096), disk(960_197_124_096)],
            "nics": [{ "name": "eno1", "ip": "10.0.0.1" }, { "name": "eno1", "ip": "fe80::1" }, { "name": "eno2" }],
        });
        let wanted =
            "Dell Inc. PowerEdge R650 (serial ABC), 64 CPUs (Xeon Gold), 256 GiB, 3 disks (2 x 960 GB, 4.0 TB), 2 NICs";
        assert_eq!(line(&hardware), wanted);
        assert_eq!((model(&hardware).as_str(), processors(&hardware).as_str()), ("Dell Inc. PowerEdge R650", "64"));
        assert_eq!(
            line(&json!({ "ramMebibytes": 512, "storage": [disk(0)], "nics": [{}] })),
            "512 MiB, 1 disk (unknown size), 1 NIC"
        );
        assert_eq!(line(&Value::Null), "");
        assert_eq!(size(2_500_000), "2.5 MB");
    }

    #[test]
    fn a_machine_has_a_line_in_the_table_and_one_for_each_part() {
        let hardware = json!({
            "systemVendor": { "manufacturer": "Dell Inc.", "productName": "PowerEdge R650", "serialNumber": "ABC" },
            "cpu": { "count": 64, "model": "Xeon Gold", "arch": "x86_64" }, "ramMebibytes": 262_144, "hostname": "localhost",
            "firmware": { "bios": { "vendor": "Dell", "version": "1.2" } },
            "storage": [
                { "name": "/dev/sda", "sizeBytes": 960_197_124_096_i64, "type": "SSD", "vendor": "Samsung", "model": "PM9A3", "serialNumber": "S1" },
                { "name": "/dev/sdb", "sizeBytes": 4_000_787_030_016_i64, "rotational": true },
            ],
            "nics": [
                { "name": "eno1", "mac": "52:54:00:00:00:01", "ip": "10.0.0.1", "speedGbps": 25, "pxe": true },
                { "name": "eno1", "mac": "52:54:00:00:00:01", "ip": "fe80::1" },
                { "name": "eno2", "mac": "52:54:00:00:00:02" },
            ],
        });
        let data = json!({ "metadata": { "name": "web-1", "creationTimestamp": "2026-01-01T00:00:00Z" }, "spec": { "hardware": hardware } });
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let cells = |data: &Value, wide: bool| -> Vec<String> {
            COLUMNS.iter().filter(|column| wide || !column.2).map(|(_, cell, _)| cell(data, now)).collect()
        };
        assert_eq!(
            cells(&data, false),
            ["web-1", "Dell Inc. PowerEdge R650", "64", "x86_64", "256 GiB", "960 GB, 4.0 TB", "2", "10m"]
        );
        let wide = cells(&data, true);
        for part in ["ABC", "Xeon Gold", "52:54:00:00:00:01,52:54:00:00:00:02", "Dell 1.2", "localhost"] {
            assert!(wide.iter().any(|cell| cell == part), "{part}: {wide:?}");
        }
        assert_eq!(cells(&json!({ "metadata": { "name": "a" }, "spec": {} }), false)[..3], ["a", "", ""]);
        assert_eq!(each_disk(&hardware), ["/dev/sda: 960 GB SSD, Samsung PM9A3 (serial S1)", "/dev/sdb: 4.0 TB HDD"]);
        assert_eq!(
            each_card(&hardware),
            [
                "eno1: 52:54:00:00:00:01, 10.0.0.1, 25 Gb/s, PXE",
                "eno1: 52:54:00:00:00:01, fe80::1",
                "eno2: 52:54:00:00:00:02"
            ]
        );
    }
}
