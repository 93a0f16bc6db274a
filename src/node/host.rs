//! What the node is: its system, its hardware, its addresses. What cannot be read is left out.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use ipnetwork::IpNetwork;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::clock::{Clock, uptime};
use super::journal::BootRecord;
use super::report;
use crate::api::lcm::{HostInfo, LCMMachineSpec};
use crate::log;

/// Longest text that is read of one file, in bytes.
const MOST: u64 = 64 << 10;
/// Longest word that is told, in characters.
const WORD: usize = 200;
/// Longest reason for a reboot, in characters.
const REASON: usize = 1000;
/// Most disks and network cards that are told.
const PARTS: usize = 64;

fn text(root: &Path, path: &str) -> String {
    let text = crate::files::read(&root.join(path), MOST).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

fn word(root: &Path, path: &str) -> String {
    log::clean(text(root, path).trim(), WORD)
}

/// What the kernel calls this boot.
pub(super) fn boot_id(root: &Path) -> String {
    word(root, "proc/sys/kernel/random/boot_id")
}

/// When the kernel began. By the appliance's time where that is known, else by the node's clock.
pub(super) fn boot_record(root: &Path, clock: &Clock) -> BootRecord {
    let counted = SignedDuration::try_from(uptime()).unwrap_or(SignedDuration::ZERO);
    let by_clock = || {
        let stat = text(root, "proc/stat");
        let btime = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())?;
        Timestamp::from_second(btime).ok()
    };
    let told = || clock.now().checked_sub(counted).ok();
    let time = if clock.is_told() { told() } else { by_clock().or_else(told) };
    BootRecord { boot_id: boot_id(root), time: Time(time.unwrap_or_default()) }
}

/// What there is to tell of the system. `hardware` is read less often.
pub(super) fn info(root: &Path, boot: Time, hardware: Value) -> HostInfo {
    let required = root.join("run/reboot-required").exists();
    let packages = text(root, "run/reboot-required.pkgs");
    let mut packages: Vec<&str> = packages.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    packages.dedup();
    HostInfo {
        boot_time: Some(boot),
        architecture: std::env::consts::ARCH.into(),
        kernel_version: word(root, "proc/sys/kernel/osrelease"),
        os: os(&text(root, "etc/os-release")),
        timezone: timezone(root),
        reboot_required: required,
        reboot_reason: if required { log::clean(&packages.join(", "), REASON) } else { String::new() },
        hardware: Some(hardware),
    }
}

/// `PRETTY_NAME` of os-release(5).
fn os(release: &str) -> String {
    let value = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or_default();
    log::clean(value.trim().trim_matches(['"', '\'']), WORD)
}

fn timezone(root: &Path) -> String {
    let named = word(root, "etc/timezone");
    if !named.is_empty() {
        return named;
    }
    let link = fs::read_link(root.join("etc/localtime")).unwrap_or_default();
    let link = link.to_string_lossy();
    log::clean(link.split_once("zoneinfo/").map_or("", |(_, zone)| zone), WORD)
}

/// Processors, memory, disks and network cards.
pub(super) fn hardware(root: &Path) -> Value {
    let cpuinfo = crate::files::read(&root.join("proc/cpuinfo"), 16 << 20).unwrap_or_default();
    let cpuinfo = String::from_utf8_lossy(&cpuinfo);
    let of_key = |key: &'static str| {
        cpuinfo.lines().filter_map(move |line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_owned())
        })
    };
    let sockets: std::collections::BTreeSet<String> = of_key("physical id").collect();
    let memory = text(root, "proc/meminfo");
    let memory: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok())
        .unwrap_or(0);
    report::without_nulls(json!({
        "cpu": {
            "count": sockets.len().max(1),
            "threads": of_key("processor").count(),
            "model": of_key("model name").next().map(|model| log::clean(&model, WORD)),
        },
        "memory": {"total": memory * 1024},
        "storage": {"disks": disks(root)},
        "network": {"nics": nics(root)},
    }))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

fn disks(root: &Path) -> Vec<Value> {
    let block = root.join("sys/block");
    // Only what has a device behind it: no loop, no memory.
    let real = names(&block).into_iter().filter(|name| block.join(name).join("device").exists()).take(PARTS);
    real.map(|name| {
        let read = |what: &str| word(root, &format!("sys/block/{name}/{what}"));
        let sectors: u64 = read("size").parse().unwrap_or(0);
        json!({
            "name": format!("/dev/{name}"),
            "size": sectors.saturating_mul(512),
            "rotational": read("queue/rotational") == "1",
            "model": read("device/model"),
        })
    })
    .collect()
}

fn nics(root: &Path) -> Vec<Value> {
    let net = root.join("sys/class/net");
    let real = names(&net).into_iter().filter(|name| net.join(name).join("device").exists()).take(PARTS);
    real.map(|name| {
        let read = |what: &str| word(root, &format!("sys/class/net/{name}/{what}"));
        json!({"name": name, "mac": read("address"), "speed": read("speed").parse::<i64>().ok().filter(|speed| *speed > 0)})
    })
    .collect()
}

/// Addresses of this machine, each with its interface.
pub(super) fn own_addresses() -> Vec<(String, IpAddr)> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let address = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::from(v4.ip()),
            (_, Some(v6)) => IpAddr::from(v6.ip()),
            _ => return None,
        };
        Some((interface.interface_name, address))
    });
    addresses.collect()
}

/// The machine's address in the cluster: by the interface that is named, else by the network, else from which the appliance is
/// reached. Of several the first, IPv4 before IPv6.
pub(super) fn internal(spec: &LCMMachineSpec, own: &[(String, IpAddr)], source: Option<IpAddr>) -> Option<IpAddr> {
    let usable = |address: &IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && !v6.is_unspecified(),
    };
    let first = |wanted: &dyn Fn(&str, &IpAddr) -> bool| {
        let mut found: Vec<IpAddr> =
            own.iter().filter(|(name, ip)| wanted(name, ip)).map(|(_, address)| *address).collect();
        found.sort_by_key(IpAddr::is_ipv6);
        found.first().copied()
    };
    if !spec.interface.is_empty() {
        return first(&|name, address| name == spec.interface && usable(address));
    }
    if !spec.cidr.is_empty() {
        let network: IpNetwork = spec.cidr.parse().ok()?;
        return first(&|_, address| network.contains(*address));
    }
    source
}

/// The addresses to report.
pub(super) fn addresses(root: &Path, internal: Option<IpAddr>) -> Vec<(String, String)> {
    let hostname = word(root, "proc/sys/kernel/hostname");
    let mut addresses = Vec::new();
    addresses.extend(internal.map(|address| ("InternalIP".to_owned(), address.to_string())));
    if !hostname.is_empty() {
        addresses.push(("Hostname".to_owned(), hostname));
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_by_interface_then_network_then_how_the_appliance_is_reached() {
        let own: Vec<(String, IpAddr)> = [
            ("lo", "127.0.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "2001:db8::5"),
            ("eth0", "192.0.2.5"),
            ("eth1", "169.254.1.1"),
            ("eth1", "198.51.100.7"),
        ]
        .map(|(name, address)| (name.to_owned(), address.parse().unwrap()))
        .into();
        let source = Some("203.0.113.1".parse().unwrap());
        for (interface, cidr, wanted) in [
            ("eth0", "", Some("192.0.2.5")),
            ("eth1", "192.0.2.0/24", Some("198.51.100.7")),
            ("eth9", "192.0.2.0/24", None),
            ("", "192.0.2.0/24", Some("192.0.2.5")),
            ("", "2001:db8::/32", Some("2001:db8::5")),
            ("", "10.0.0.0/8", None),
            ("", "nonsense", None),
            ("", "", Some("203.0.113.1")),
        ] {
            let spec = LCMMachineSpec { interface: interface.into(), cidr: cidr.into(), ..LCMMachineSpec::default() };
            let found = internal(&spec, &own, source).map(|address| address.to_string());
            assert_eq!(found.as_deref(), wanted, "{interface} {cidr}");
        }
    }

    #[test]
    fn the_system_is_read_below_a_root() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("etc/os-release", "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12\x1b[2J\"\n");
        write("etc/timezone", "Europe/Berlin\n");
        write("run/reboot-required", "*** System restart required ***\n");
        write("run/reboot-required.pkgs", "linux-image\nlinux-image\nlibc6\n");
        write("proc/sys/kernel/osrelease", "6.1.0\n");
        write("proc/sys/kernel/hostname", "n1\n");
        write("proc/stat", "cpu 1\nbtime 1700000000\n");
        write("proc/meminfo", "MemTotal: 1000 kB\n");
        write("proc/cpuinfo", "processor : 0\nphysical id : 0\nprocessor : 1\nphysical id : 0\nmodel name : X\n");
        write("sys/block/sda/size", "2048\n");
        write("sys/block/sda/device/model", "Disk\n");
        write("sys/block/loop0/size", "8\n");
        let boot = boot_record(root.path(), &Clock::default());
        assert_eq!(boot.time.0.as_second(), 1_700_000_000);
        let clock = Clock::default();
        clock.heard("Sun, 06 Nov 1994 08:49:37 GMT");
        assert!(boot_record(root.path(), &clock).time.0.as_second() < 800_000_000, "the appliance's time counts");
        let info = info(root.path(), boot.time, hardware(root.path()));
        assert_eq!(info.os, "Debian GNU/Linux 12 [2J");
        assert_eq!((info.timezone.as_str(), info.kernel_version.as_str()), ("Europe/Berlin", "6.1.0"));
        assert!(info.reboot_required);
        assert_eq!(info.reboot_reason, "linux-image, libc6");
        let hardware = info.hardware.unwrap();
        assert_eq!(hardware["cpu"], json!({"count": 1, "threads": 2, "model": "X"}));
        assert_eq!(hardware["memory"]["total"], 1_024_000);
        assert_eq!(hardware["storage"]["disks"][0]["size"], 1_048_576);
        assert_eq!(hardware["storage"]["disks"].as_array().unwrap().len(), 1);
        assert_eq!(addresses(root.path(), None), [("Hostname".to_owned(), "n1".to_owned())]);
    }
}
