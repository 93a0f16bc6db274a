//! A machine's hardware in few words, as its status or its HardwareData has it.

use std::collections::BTreeMap;

use serde_json::Value;

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
    // One card has an entry for each of its addresses.
    let cards: std::collections::BTreeSet<&str> = list(hardware, "nics").iter().map(|nic| text(nic, "/name")).collect();
    match cards.len() {
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
}
