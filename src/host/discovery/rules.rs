//! Discovery rules: what `[discovery]` says about a machine, as a pure function of rules and inventory.

use std::collections::BTreeMap;

use crate::api::MacAddress;
use crate::api::metal3::{HardwareDetails, Lldp};
use crate::config::{DiscoveryConfig, DiscoveryMatch, NameFacts};
use crate::glob;

/// Longest name made of a template; a host's objects have names a little longer.
const NAME_MAX: usize = 63;

/// What firmware says where nobody wrote a serial number.
const FILLERS: [&str; 14] = [
    "0",
    "00000000",
    "0123456789",
    "1234567890",
    "123456789",
    "default string",
    "empty",
    "n/a",
    "none",
    "not available",
    "not specified",
    "system serial number",
    "to be filled by o.e.m.",
    "unknown",
];

/// What becomes of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveryVerdict {
    /// Name of its host.
    pub name: String,
    /// Namespace of its host.
    pub namespace: String,
    /// Labels of its host.
    pub labels: BTreeMap<String, String>,
    /// Secret with the BMC's credentials.
    pub credentials_name: Option<String>,
    /// Scheme of the BMC's address.
    pub bmc_scheme: Option<String>,
    /// Whether the BMC's certificate is not checked.
    pub disable_certificate_verification: bool,
    /// Whether it is taken into use without being asked about.
    pub accept: bool,
    /// Whether its host is externally provisioned.
    pub externally_provisioned: bool,
    /// Whether its disks are not erased.
    pub keep_disks: bool,
    /// What could not be done as the rules say, for the log.
    pub faults: Vec<String>,
}

/// Judges a machine that booted from `mac`.
pub fn judge(config: &DiscoveryConfig, mac: MacAddress, hardware: &HardwareDetails) -> DiscoveryVerdict {
    let serial = serial(hardware);
    let vendor = hardware.system_vendor.clone().unwrap_or_default();
    let lldp = boot_neighbour(hardware, mac).cloned().unwrap_or_default();
    let switch = if lldp.switch_system_name.is_empty() { &lldp.switch_id } else { &lldp.switch_system_name };
    let facts = NameFacts {
        serial: serial.unwrap_or_default(),
        manufacturer: &vendor.manufacturer,
        product: &vendor.product_name,
        switch,
        port: &lldp.port_id,
    };
    let mut verdict = DiscoveryVerdict {
        name: default_name(mac, serial),
        namespace: config.namespace.clone(),
        ..DiscoveryVerdict::default()
    };
    for rule in config.rules.iter().filter(|rule| matches(&rule.matches, mac, hardware)) {
        if let Some(template) = &rule.name {
            match template.render(mac, &facts).map(|text| (plain(&text), text)) {
                Ok((Some(name), _)) => verdict.name = name,
                Ok((None, text)) => verdict.faults.push(format!("discovery rule: {text:?} is no name for a host")),
                Err(error) => verdict.faults.push(error),
            }
        }
        verdict.namespace = rule.namespace.clone().unwrap_or(verdict.namespace);
        verdict.labels.extend(rule.labels.clone());
        verdict.credentials_name = rule.credentials_name.clone().or(verdict.credentials_name);
        verdict.bmc_scheme = rule.bmc_scheme.clone().or(verdict.bmc_scheme);
        verdict.disable_certificate_verification =
            rule.disable_certificate_verification.unwrap_or(verdict.disable_certificate_verification);
        verdict.accept = rule.accept.unwrap_or(verdict.accept);
        verdict.externally_provisioned = rule.externally_provisioned.unwrap_or(verdict.externally_provisioned);
        verdict.keep_disks = rule.keep_disks.unwrap_or(verdict.keep_disks);
    }
    verdict
}

/// The machine's serial number, when it is one.
pub fn serial(hardware: &HardwareDetails) -> Option<&str> {
    worth(&hardware.system_vendor.as_ref()?.serial_number)
}

/// A serial number that tells one machine from another: not what boards have that were never given one.
pub fn worth(serial: &str) -> Option<&str> {
    let serial = serial.trim();
    let worth = !serial.is_empty() && !FILLERS.contains(&serial.to_lowercase().as_str());
    worth.then_some(serial)
}

fn default_name(mac: MacAddress, serial: Option<&str>) -> String {
    let by_serial = serial.and_then(|serial| plain(&format!("discovered-{serial}")));
    by_serial.unwrap_or_else(|| format!("discovered-{}", digits(mac)))
}

/// A name that is not taken yet.
pub fn another_name(name: &str, mac: MacAddress) -> String {
    let tail = digits(mac);
    let head: String = name.chars().take(NAME_MAX - tail.len() - 1).collect();
    format!("{}-{tail}", head.trim_end_matches(['-', '.']))
}

fn digits(mac: MacAddress) -> String {
    mac.hyphenated().replace('-', "")
}

/// A text as the name of an object (RFC 1123 label with dots); `None` when nothing is left of it.
fn plain(text: &str) -> Option<String> {
    let mut name = String::new();
    for char in text.trim().to_lowercase().chars() {
        let char = if char.is_ascii_lowercase() || char.is_ascii_digit() || char == '.' { char } else { '-' };
        // Nothing but letters and digits stands beside a dot.
        let doubled = !char.is_ascii_alphanumeric() && name.ends_with(['-', '.']);
        if name.len() < NAME_MAX && !doubled {
            name.push(char);
        }
    }
    let name = name.trim_matches(['-', '.']).to_owned();
    (!name.is_empty() && uuid::Uuid::parse_str(&name).is_err()).then_some(name)
}

/// What the switch says on the port that the machine booted from, else on the first port with a switch that talks.
fn boot_neighbour(hardware: &HardwareDetails, mac: MacAddress) -> Option<&Lldp> {
    let own = hardware.nics.iter().filter(|nic| nic.mac.parse() == Ok(mac));
    own.chain(&hardware.nics).find_map(|nic| nic.lldp.as_ref())
}

fn matches(wanted: &DiscoveryMatch, mac: MacAddress, hardware: &HardwareDetails) -> bool {
    let vendor = hardware.system_vendor.clone().unwrap_or_default();
    let text = |pattern: &Option<String>, text: &str| pattern.as_deref().is_none_or(|pattern| like(pattern, text));
    let least = |least: Option<i64>, found: i64| least.is_none_or(|least| found >= least);
    let largest = hardware.storage.iter().map(|disk| disk.size_bytes / 1_000_000_000).max().unwrap_or(0);
    let neighbour = |fits: &dyn Fn(&Lldp) -> bool| hardware.nics.iter().filter_map(|nic| nic.lldp.as_ref()).any(fits);
    // Switch and port speak of one and the same neighbour.
    let connected = (wanted.switch.is_none() && wanted.port.is_none())
        || neighbour(&|lldp: &Lldp| {
            let switch = wanted.switch.as_deref();
            switch.is_none_or(|switch| like(switch, &lldp.switch_system_name) || like(switch, &lldp.switch_id))
                && text(&wanted.port, &lldp.port_id)
        });
    text(&wanted.manufacturer, &vendor.manufacturer)
        && text(&wanted.product, &vendor.product_name)
        && text(&wanted.serial, &vendor.serial_number)
        && wanted.mac.as_ref().is_none_or(|prefix| prefix.covers(mac))
        && least(wanted.memory_mib, hardware.ram_mebibytes)
        && least(wanted.cpus, hardware.cpu.as_ref().map_or(0, |cpu| cpu.count))
        && wanted.disks.is_none_or(|disks| hardware.storage.len() >= disks)
        && least(wanted.disk_gb, largest)
        && connected
}

fn like(pattern: &str, text: &str) -> bool {
    glob::matches(pattern.trim().to_lowercase().as_bytes(), text.trim().to_lowercase().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::metal3::{Cpu, HardwareSystemVendor, Nic, Storage};
    use crate::config::Config;
    use std::path::Path;

    const MAC: MacAddress = MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

    fn hardware() -> HardwareDetails {
        let lldp = |switch: &str, port: &str| {
            Some(Lldp {
                switch_id: "02:00:00:00:00:aa".into(),
                port_id: port.into(),
                switch_system_name: switch.into(),
            })
        };
        let nic = |mac: &str, lldp| Nic { mac: mac.into(), lldp, ..Nic::default() };
        HardwareDetails {
            system_vendor: Some(HardwareSystemVendor {
                manufacturer: "Dell Inc.".into(),
                product_name: "PowerEdge R650 (SKU=0)".into(),
                serial_number: "ABC 1234".into(),
            }),
            ram_mebibytes: 65536,
            nics: vec![nic("52:54:00:99:99:99", lldp("spine", "1")), nic("52:54:00:12:34:56", lldp("ToR-7", "Eth1/4"))],
            storage: vec![Storage { size_bytes: 480_000_000_000, ..Storage::default() }; 2],
            cpu: Some(Cpu { count: 32, ..Cpu::default() }),
            ..HardwareDetails::default()
        }
    }

    fn config(rules: &str) -> DiscoveryConfig {
        Config::parse(rules, Path::new("x.toml")).expect("good").discovery
    }

    #[test]
    fn a_rule_counts_when_everything_that_it_names_holds() {
        let rows = [
            ("", true),
            ("manufacturer = 'dell*'", true),
            ("manufacturer = 'Dell'", false),
            ("product = '*r6?0*'", true),
            ("serial = 'ABC*'", true),
            ("serial = 'XYZ*'", false),
            ("mac = '52:54:00:12'", true),
            ("mac = '52:54:00:99'", false),
            ("memory_mib = 65536", true),
            ("memory_mib = 65537", false),
            ("cpus = 32", true),
            ("cpus = 33", false),
            ("disks = 2", true),
            ("disks = 3", false),
            ("disk_gb = 480", true),
            ("disk_gb = 481", false),
            ("switch = 'tor-*'", true),
            ("switch = '02:00:00:00:00:AA'", true),
            ("switch = 'tor-*'\nport = '1'", false),
            ("switch = 'spine'\nport = '1'", true),
            ("switch = 'leaf*'", false),
            ("manufacturer = 'dell*'\ncpus = 64", false),
        ];
        for (wanted, fits) in rows {
            let config = config(&format!("[[discovery.rule]]\nname = 'fits'\n[discovery.rule.match]\n{wanted}"));
            assert_eq!(judge(&config, MAC, &hardware()).name == "fits", fits, "{wanted}");
        }
    }

    #[test]
    fn a_machine_that_says_nothing_matches_only_rules_that_ask_nothing() {
        let nothing = HardwareDetails::default();
        for wanted in ["manufacturer = '?*'", "memory_mib = 1", "cpus = 1", "disks = 1", "disk_gb = 1", "switch = '*'"]
        {
            let config = config(&format!("[[discovery.rule]]\nname = 'fits'\n[discovery.rule.match]\n{wanted}"));
            assert_eq!(judge(&config, MAC, &nothing).name, "discovered-525400123456", "{wanted}");
        }
    }

    #[test]
    fn rules_add_up_and_the_later_one_goes_first() {
        let config = config(
            "
            [discovery]
            namespace = 'new'
            [[discovery.rule]]
            namespace = 'rack-a'
            labels = { rack = 'a', kind = 'any' }
            credentials_name = 'bmc'
            accept = true
            [[discovery.rule]]
            match = { manufacturer = 'HPE' }
            namespace = 'hpe'
            [[discovery.rule]]
            match = { manufacturer = 'dell*' }
            name = '{{ switch }}-{{ port }}'
            labels = { kind = 'dell' }
            bmc_scheme = 'idrac-redfish'
            disable_certificate_verification = true
            externally_provisioned = true
            keep_disks = true
            [[discovery.rule]]
            match = { serial = 'abc*' }
            accept = false
            externally_provisioned = false
            ",
        );
        let wanted = DiscoveryVerdict {
            name: "tor-7-eth1-4".into(),
            namespace: "rack-a".into(),
            labels: [("rack".into(), "a".into()), ("kind".into(), "dell".into())].into(),
            credentials_name: Some("bmc".into()),
            bmc_scheme: Some("idrac-redfish".into()),
            disable_certificate_verification: true,
            accept: false,
            externally_provisioned: false,
            keep_disks: true,
            faults: Vec::new(),
        };
        assert_eq!(judge(&config, MAC, &hardware()), wanted);
    }

    #[test]
    fn names_are_names_whatever_the_machine_says() {
        let config = config("");
        let named = |serial: &str| {
            let mut hardware = hardware();
            hardware.system_vendor.as_mut().expect("there").serial_number = serial.into();
            judge(&config, MAC, &hardware).name
        };
        for (serial, name) in [
            ("ABC 1234", "discovered-abc-1234"),
            ("../..//x", "discovered-x"),
            ("a.-.b", "discovered-a.b"),
            (" Default string ", "discovered-525400123456"),
            ("", "discovered-525400123456"),
            ("é", "discovered"),
        ] {
            assert_eq!(named(serial), name, "{serial}");
        }
        assert_eq!(named(&"9".repeat(500)).len(), NAME_MAX);
        assert_eq!(another_name(&"9".repeat(63), MAC).len(), NAME_MAX);
        assert_eq!(another_name("web", MAC), "web-525400123456");
        let by_template = |template: &str| {
            let config = self::config(&format!("[[discovery.rule]]\nname = '{template}'"));
            judge(&config, MAC, &hardware())
        };
        assert_eq!(by_template("{{ manufacturer }}_{{ mac }}").name, "dell-inc.525400123456");
        for useless in ["---", "b7f6bb1c-36c1-4b0e-8c0b-5d1a5f3a9b10"] {
            let verdict = by_template(useless);
            assert_eq!((verdict.name.as_str(), verdict.faults.len()), ("discovered-abc-1234", 1), "{useless}");
        }
    }
}
