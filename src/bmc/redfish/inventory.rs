//! Hardware as a Redfish service describes it: what inspection without an agent can know.

use serde_json::Value;

use super::controller::{Found, RedfishBmc};
use super::message::clean;
use super::model;
use crate::api::metal3::{
    Cpu, HardwareBios, HardwareDetails, HardwareFirmware, HardwareSystemVendor, Nic, Storage as Disk,
};
use crate::bmc::BmcError;

/// Resources of each kind that are read.
const MOST: usize = 64;
/// Controllers that are asked for their drives.
const MOST_CONTROLLERS: usize = 16;

impl RedfishBmc {
    /// Reads the hardware. A part that the service does not have, or refuses, is left out.
    pub(super) async fn read_hardware(&self, found: &Found) -> Result<HardwareDetails, BmcError> {
        let system = self.read_system(&found.path).await?.body;
        let processors = self.below(&system["Processors"]).await?;
        let interfaces = self.below(&system["EthernetInterfaces"]).await?;
        let mut drives = Vec::new();
        for controller in self.below(&system["Storage"]).await?.iter().take(MOST_CONTROLLERS) {
            for path in controller["Drives"].as_array().into_iter().flatten().filter_map(model::link) {
                if drives.len() < MOST
                    && let Some(drive) = self.readable(&path).await?
                {
                    drives.push(drive);
                }
            }
        }
        let simple = if drives.is_empty() { self.below(&system["SimpleStorage"]).await? } else { Vec::new() };
        Ok(hardware(&system, &processors, &interfaces, &drives, &simple))
    }

    /// The members of a collection that is linked to.
    async fn below(&self, collection: &Value) -> Result<Vec<Value>, BmcError> {
        let Some(path) = model::link(collection) else { return Ok(Vec::new()) };
        let Some(listed) = self.readable(&path).await? else { return Ok(Vec::new()) };
        let mut members = Vec::new();
        for path in model::members(&listed).into_iter().take(MOST) {
            members.extend(self.readable(&path).await?);
        }
        Ok(members)
    }

    /// A resource, or none when the service refuses it. That it does not answer at all is an error.
    async fn readable(&self, path: &str) -> Result<Option<Value>, BmcError> {
        match self.client.get(path).await {
            Ok(answer) => Ok(Some(answer.body)),
            Err(BmcError::Protocol { reason, .. }) => {
                tracing::debug!(bmc = %self.client.peer(), path, %reason, "left out of the inventory");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn text(object: &Value, key: &str) -> String {
    clean(object[key].as_str().unwrap_or_default(), 128).trim().to_owned()
}

fn number(object: &Value, key: &str) -> i64 {
    object[key].as_i64().filter(|number| *number > 0).unwrap_or(0)
}

/// HardwareDetails of what was read.
fn hardware(
    system: &Value,
    processors: &[Value],
    interfaces: &[Value],
    drives: &[Value],
    simple: &[Value],
) -> HardwareDetails {
    let vendor = HardwareSystemVendor {
        manufacturer: text(system, "Manufacturer"),
        product_name: text(system, "Model"),
        serial_number: text(system, "SerialNumber"),
    };
    let version = text(system, "BiosVersion");
    let bios = HardwareBios { version, ..HardwareBios::default() };
    let known_disks = simple.iter().flat_map(|one| one["Devices"].as_array().into_iter().flatten());
    HardwareDetails {
        system_vendor: (vendor != HardwareSystemVendor::default()).then_some(vendor),
        firmware: (!bios.version.is_empty()).then_some(HardwareFirmware { bios: Some(bios) }),
        ram_mebibytes: memory(system),
        nics: interfaces.iter().filter_map(nic).collect(),
        storage: drives.iter().chain(known_disks).take(MOST).filter_map(disk).collect(),
        cpu: cpu(system, processors),
        hostname: text(system, "HostName"),
    }
}

fn memory(system: &Value) -> i64 {
    let gib = system["MemorySummary"]["TotalSystemMemoryGiB"].as_f64().filter(|gib| (0.0..1e7).contains(gib));
    gib.map_or(0, |gib| (gib * 1024.0).round() as i64)
}

fn cpu(system: &Value, all: &[Value]) -> Option<Cpu> {
    let summary = &system["ProcessorSummary"];
    let is_cpu = |one: &&Value| one["ProcessorType"].as_str().is_none_or(|kind| kind == "CPU");
    // An empty socket is listed too.
    let present = |one: &&Value| one["Status"]["State"].as_str().is_none_or(|state| state != "Absent");
    let processors: Vec<&Value> = all.iter().filter(is_cpu).filter(present).collect();
    let threads: i64 = processors.iter().map(|one| number(one, "TotalThreads")).sum();
    let logical = number(summary, "LogicalProcessorCount");
    let first = processors.first().copied().unwrap_or(&Value::Null);
    let arch = match (first["InstructionSet"].as_str(), first["ProcessorArchitecture"].as_str()) {
        (Some("x86-64"), _) | (None, Some("x86")) => "x86_64",
        (Some("ARM-A64"), _) | (None, Some("ARM")) => "aarch64",
        _ => "",
    };
    let speed = match number(first, "OperatingSpeedMHz") {
        0 => number(first, "MaxSpeedMHz"),
        known => known,
    };
    let cpu = Cpu {
        arch: arch.into(),
        model: Some(text(first, "Model")).filter(|model| !model.is_empty()).unwrap_or(text(summary, "Model")),
        clock_megahertz: speed as f64,
        flags: Vec::new(),
        count: [logical, threads, number(summary, "Count")].into_iter().find(|count| *count > 0).unwrap_or(0),
    };
    (cpu != Cpu::default()).then_some(cpu)
}

/// An interface with a hardware address; virtual ones of the BMC itself are not listed below a system.
fn nic(interface: &Value) -> Option<Nic> {
    let mac = ["MACAddress", "PermanentMACAddress"].into_iter().find_map(|key| {
        let mac: crate::api::MacAddress = interface[key].as_str()?.trim().parse().ok()?;
        (mac.0 != [0; 6]).then_some(mac)
    })?;
    let address = &interface["IPv4Addresses"][0]["Address"];
    let ip = address.as_str().and_then(|ip| ip.parse::<std::net::Ipv4Addr>().ok()).filter(|ip| !ip.is_unspecified());
    Some(Nic {
        name: text(interface, "Id"),
        mac: mac.to_string(),
        ip: ip.map(|ip| ip.to_string()).unwrap_or_default(),
        speed_gbps: number(interface, "SpeedMbps") / 1000,
        ..Nic::default()
    })
}

/// A drive. What the kernel will call it is not known: its name is the service's own.
fn disk(drive: &Value) -> Option<Disk> {
    if drive["Status"]["State"].as_str().is_some_and(|state| state == "Absent") {
        return None;
    }
    let rotational = drive["MediaType"] == "HDD" || number(drive, "RotationSpeedRPM") > 0;
    let type_ = match (rotational, drive["Protocol"].as_str(), drive["MediaType"].as_str()) {
        (true, ..) => "HDD",
        (_, Some("NVMe"), _) => "NVME",
        (_, _, Some("SSD")) => "SSD",
        _ => "",
    };
    let name = text(drive, "Name");
    Some(Disk {
        name: if name.is_empty() { text(drive, "Id") } else { name },
        rotational,
        type_: type_.into(),
        size_bytes: number(drive, "CapacityBytes"),
        vendor: text(drive, "Manufacturer"),
        model: text(drive, "Model"),
        serial_number: text(drive, "SerialNumber"),
        wwn: wwn(drive).unwrap_or_default(),
        ..Disk::default()
    })
}

/// The name by which the kernel knows the drive too, as it writes it.
fn wwn(drive: &Value) -> Option<String> {
    let named = drive["Identifiers"].as_array()?.iter().find(|one| one["DurableNameFormat"] == "NAA")?;
    let digits: String = named["DurableName"].as_str()?.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    (!digits.is_empty()).then(|| format!("0x{}", digits.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_whole_machine() {
        let system = json!({ "Manufacturer": "Acme", "Model": "R1", "SerialNumber": "S1", "BiosVersion": "2.1",
            "MemorySummary": { "TotalSystemMemoryGiB": 127.5 }, "ProcessorSummary": { "Count": 2 } });
        let core = json!({ "ProcessorType": "CPU", "InstructionSet": "x86-64", "Model": "Xeon", "MaxSpeedMHz": 3100,
            "TotalThreads": 32 });
        let gpu = json!({ "ProcessorType": "GPU", "TotalThreads": 9999, "Model": "H" });
        let empty = json!({ "Status": { "State": "Absent" }, "TotalThreads": 32 });
        let nics = [
            json!({ "Id": "NIC.1", "MACAddress": "AA:BB:CC:00:11:22", "SpeedMbps": 25000,
                "IPv4Addresses": [{ "Address": "10.0.0.9" }] }),
            json!({ "Id": "NIC.2", "MACAddress": "", "PermanentMACAddress": "aa:bb:cc:00:11:23", "SpeedMbps": null }),
            json!({ "Id": "NIC.3", "MACAddress": "00:00:00:00:00:00" }),
        ];
        let drives = [
            json!({ "Name": "Disk 0", "MediaType": "SSD", "Protocol": "NVMe", "CapacityBytes": 960_197_124_096_i64,
                "Model": "PM", "SerialNumber": " X9 ", "Manufacturer": "Sam",
                "Identifiers": [{ "DurableNameFormat": "NAA", "DurableName": "5002:538A-0000-0001" }] }),
            json!({ "Id": "D1", "MediaType": "HDD", "CapacityBytes": -4 }),
            json!({ "Name": "bay 7", "Status": { "State": "Absent" } }),
        ];
        let found = hardware(&system, &[empty, gpu, core.clone(), core], &nics, &drives, &[]);
        assert_eq!(
            serde_json::to_value(&found).unwrap(),
            json!({
                "systemVendor": { "manufacturer": "Acme", "productName": "R1", "serialNumber": "S1" },
                "firmware": { "bios": { "version": "2.1" } },
                "ramMebibytes": 130_560,
                "cpu": { "arch": "x86_64", "model": "Xeon", "clockMegahertz": 3100.0, "count": 64 },
                "nics": [
                    { "name": "NIC.1", "mac": "aa:bb:cc:00:11:22", "ip": "10.0.0.9", "speedGbps": 25 },
                    { "name": "NIC.2", "mac": "aa:bb:cc:00:11:23" }
                ],
                "storage": [
                    { "name": "Disk 0", "type": "NVME", "sizeBytes": 960_197_124_096_i64, "vendor": "Sam", "model": "PM",
                      "serialNumber": "X9", "wwn": "0x5002538a00000001" },
                    { "name": "D1", "rotational": true, "type": "HDD" }
                ]
            })
        );
    }

    #[test]
    fn what_is_not_said_or_nonsense_is_left_out() {
        assert_eq!(hardware(&json!({}), &[], &[], &[], &[]), HardwareDetails::default());
        let odd = json!({ "Manufacturer": 7, "MemorySummary": { "TotalSystemMemoryGiB": -1e300 },
            "ProcessorSummary": { "LogicalProcessorCount": "many" } });
        assert_eq!(
            hardware(&odd, &[json!(null)], &[json!([])], &[], &[json!({ "Devices": {} })]),
            HardwareDetails::default()
        );
        let simple = json!({ "Devices": [{ "Name": "vda", "CapacityBytes": 1024 }] });
        let found = hardware(&json!({}), &[], &[], &[], &[simple]);
        assert_eq!((found.storage[0].name.as_str(), found.storage[0].size_bytes), ("vda", 1024));
    }
}
