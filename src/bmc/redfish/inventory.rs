//! Hardware as a Redfish service describes it: what inspection without an agent can know.

use serde_json::Value;

use super::controller::{FoundSystem, RedfishBmc};
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
    pub(super) async fn read_hardware(&self, found: &FoundSystem) -> Result<HardwareDetails, BmcError> {
        let system = self.read_system(&found.path).await?.body;
        let processors = self.below(&system["Processors"], |one| Some(processor(one))).await?;
        let interfaces = self.below(&system["EthernetInterfaces"], nic).await?;
        let controllers = self.below(&system["Storage"], |one| Some(drives(one))).await?;
        let (mut read, mut disks) = (0, Vec::new());
        for path in controllers.into_iter().take(MOST_CONTROLLERS).flatten() {
            if read < MOST
                && let Some(drive) = self.readable(&path).await?
            {
                read += 1;
                disks.extend(disk(&drive));
            }
        }
        if read == 0 {
            let simple = self.below(&system["SimpleStorage"], |one| Some(devices(one))).await?;
            disks = simple.into_iter().flatten().take(MOST).collect();
        }
        Ok(hardware(&system, &processors, interfaces, disks))
    }

    /// What is wanted of each member of a collection that is linked to. Only that is kept: a service may say more of each
    /// than all of them together should take.
    async fn below<T>(&self, collection: &Value, wanted: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>, BmcError> {
        let Some(path) = model::link(collection) else { return Ok(Vec::new()) };
        let Some(listed) = self.readable(&path).await? else { return Ok(Vec::new()) };
        let paths: Vec<String> = model::members(&listed).into_iter().take(MOST).collect();
        drop(listed);
        let mut members = Vec::new();
        for path in paths {
            members.extend(self.readable(&path).await?.as_ref().and_then(&wanted));
        }
        Ok(members)
    }

    /// A resource, or none when the service refuses it. That it does not answer at all is an error.
    async fn readable(&self, path: &str) -> Result<Option<Value>, BmcError> {
        match self.client.get(path).await {
            Ok(answer) => Ok(Some(answer.body)),
            Err(BmcError::Protocol { reason, .. }) => {
                tracing::debug!(bmc = %self.client.peer(), path, %reason, "the BMC refused a resource: the inventory does not have it");
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

/// The drives of a controller.
fn drives(controller: &Value) -> Vec<String> {
    controller["Drives"].as_array().into_iter().flatten().filter_map(model::link).take(MOST).collect()
}

/// The drives of a controller that has them in itself.
fn devices(controller: &Value) -> Vec<Disk> {
    controller["Devices"].as_array().into_iter().flatten().take(MOST).filter_map(disk).collect()
}

/// HardwareDetails of what was read.
fn hardware(system: &Value, processors: &[Processor], nics: Vec<Nic>, storage: Vec<Disk>) -> HardwareDetails {
    let vendor = HardwareSystemVendor {
        manufacturer: text(system, "Manufacturer"),
        product_name: text(system, "Model"),
        serial_number: text(system, "SerialNumber"),
    };
    let version = text(system, "BiosVersion");
    let bios = HardwareBios { version, ..HardwareBios::default() };
    HardwareDetails {
        system_vendor: (vendor != HardwareSystemVendor::default()).then_some(vendor),
        firmware: (!bios.version.is_empty()).then_some(HardwareFirmware { bios: Some(bios) }),
        ram_mebibytes: memory(system),
        nics,
        storage,
        cpu: cpu(system, processors),
        hostname: text(system, "HostName"),
    }
}

fn memory(system: &Value) -> i64 {
    let gib = system["MemorySummary"]["TotalSystemMemoryGiB"].as_f64().filter(|gib| (0.0..1e7).contains(gib));
    gib.map_or(0, |gib| (gib * 1024.0).round() as i64)
}

/// What is wanted of a processor.
#[derive(Default)]
struct Processor {
    /// Whether it is a CPU, and in its socket: an empty one is listed too.
    counts: bool,
    arch: &'static str,
    model: String,
    megahertz: i64,
    threads: i64,
}

fn processor(one: &Value) -> Processor {
    let is_cpu = one["ProcessorType"].as_str().is_none_or(|kind| kind == "CPU");
    let present = one["Status"]["State"].as_str().is_none_or(|state| state != "Absent");
    let arch = match (one["InstructionSet"].as_str(), one["ProcessorArchitecture"].as_str()) {
        (Some("x86-64"), _) | (None, Some("x86")) => "x86_64",
        (Some("ARM-A64"), _) | (None, Some("ARM")) => "aarch64",
        _ => "",
    };
    let megahertz = match number(one, "OperatingSpeedMHz") {
        0 => number(one, "MaxSpeedMHz"),
        known => known,
    };
    let (model, threads) = (text(one, "Model"), number(one, "TotalThreads"));
    Processor { counts: is_cpu && present, arch, model, megahertz, threads }
}

fn cpu(system: &Value, all: &[Processor]) -> Option<Cpu> {
    let summary = &system["ProcessorSummary"];
    let processors = || all.iter().filter(|one| one.counts);
    let threads = processors().fold(0_i64, |sum, one| sum.saturating_add(one.threads));
    let logical = number(summary, "LogicalProcessorCount");
    let none = Processor::default();
    let first = processors().next().unwrap_or(&none);
    let cpu = Cpu {
        arch: first.arch.into(),
        model: Some(first.model.clone()).filter(|model| !model.is_empty()).unwrap_or(text(summary, "Model")),
        clock_megahertz: first.megahertz as f64,
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
        let processors = [empty, gpu, core.clone(), core].map(|one| processor(&one));
        let nics = nics.iter().filter_map(nic).collect();
        let found = hardware(&system, &processors, nics, drives.iter().filter_map(disk).collect());
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
        assert_eq!(hardware(&json!({}), &[], vec![], vec![]), HardwareDetails::default());
        let odd = json!({ "Manufacturer": 7, "MemorySummary": { "TotalSystemMemoryGiB": -1e300 },
            "ProcessorSummary": { "LogicalProcessorCount": "many" } });
        assert_eq!(hardware(&odd, &[processor(&json!(null))], vec![], vec![]), HardwareDetails::default());
        assert_eq!(nic(&json!([])), None);
        assert_eq!((devices(&json!({ "Devices": {} })), drives(&json!({ "Drives": 7 }))), (vec![], vec![]));
        let simple = devices(&json!({ "Devices": [{ "Name": "vda", "CapacityBytes": 1024 }] }));
        assert_eq!((simple[0].name.as_str(), simple[0].size_bytes), ("vda", 1024));
    }
}
