//! Simulated network boot.
//!
//! What firmware and iPXE do: DHCP, the boot program by TFTP or HTTP, DHCP again, the boot script, its files; or one
//! medium that has it all.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::Method;
use reqwest::Url;

use super::lossy_link::LossyLink;
use super::plan::{BootMethod, SimulatedDownload};
use super::relay::{DhcpProgram, Relay, RelayClient};
use super::rng::SeededRng;
use super::tftp::{self, TftpOptions};
use super::virtual_cd;

/// Tries of a download, as the boot script has it.
const TRIES: usize = 3;
/// Bytes of a boot file that a sample is.
const SAMPLE: u64 = 64 << 10;

/// Where a start led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Booted {
    /// The ramdisk.
    Ramdisk {
        /// Kernel command line.
        command_line: String,
        /// The machine's address, when its network data gives it one.
        address: Option<Ipv4Addr>,
    },
    /// The machine's own disk.
    Disk,
    /// Nowhere: nobody answered, or a download failed.
    Nowhere,
}

/// What a boot script says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Script {
    command_line: String,
    files: Vec<Url>,
}

/// What network boot goes by.
#[derive(Clone, Copy)]
pub struct NetbootContext<'a> {
    /// How firmware comes to its boot program.
    pub boot_method: BootMethod,
    /// The way to DHCP.
    pub relay: &'a Relay,
    /// Port of the TFTP server.
    pub tftp_port: u16,
    /// What is fetched.
    pub download: SimulatedDownload,
}

/// Boots over the network as firmware with iPXE does.
pub async fn boot(context: NetbootContext<'_>, who: RelayClient, link: &LossyLink, rng: &mut SeededRng) -> Booted {
    match program(context, who, link, rng).await {
        FirmwareProgram::Loaded => ipxe(context, who, link, rng).await,
        FirmwareProgram::None => Booted::Disk,
        FirmwareProgram::Failed => Booted::Nowhere,
    }
}

/// The firmware's boot program.
enum FirmwareProgram {
    Loaded,
    /// There is none for it.
    None,
    Failed,
}

async fn program(
    context: NetbootContext<'_>,
    who: RelayClient,
    link: &LossyLink,
    rng: &mut SeededRng,
) -> FirmwareProgram {
    let firmware = context.boot_method.firmware();
    let program =
        if context.boot_method == BootMethod::UefiHttp { DhcpProgram::HttpBoot } else { DhcpProgram::Pxe(firmware) };
    let Some(lease) = context.relay.acquire(who, program, rng).await else { return FirmwareProgram::Failed };
    let link = own(link, lease.address);
    let Some(file) = lease.file else { return FirmwareProgram::None };
    if context.boot_method == BootMethod::Ipxe {
        return FirmwareProgram::Loaded;
    }
    let whole = context.download != SimulatedDownload::Head;
    let fetched = if program == DhcpProgram::HttpBoot {
        // HTTP boot takes no answer that is not marked for it (UEFI 2.10, 24.7.2).
        if lease.class.as_deref() != Some("HTTPClient") {
            return FirmwareProgram::None;
        }
        let Ok(url) = file.parse::<Url>() else { return FirmwareProgram::Failed };
        let (method, part) = part_of(context.download);
        link.fetch(method, &url, part, rng).await.map(|fetched| fetched.bytes)
    } else {
        let manner = if firmware.is_uefi() { TftpOptions::UEFI } else { TftpOptions::BIOS };
        let server = SocketAddr::from((lease.server, context.tftp_port));
        tftp::fetch(&link, server, &file, manner, whole, rng).await
    };
    match fetched {
        Ok(bytes) => {
            link.counts.fetched(bytes);
            if program == DhcpProgram::HttpBoot {
                link.counts.http_program()
            } else {
                link.counts.tftp_program()
            }
            FirmwareProgram::Loaded
        }
        Err(error) => {
            tracing::debug!(%error, file, "cannot fetch the boot program");
            FirmwareProgram::Failed
        }
    }
}

/// The link as it is with this address.
fn own(link: &LossyLink, address: Ipv4Addr) -> LossyLink {
    LossyLink { source: Some(address).filter(Ipv4Addr::is_loopback), ..link.clone() }
}

async fn ipxe(context: NetbootContext<'_>, who: RelayClient, link: &LossyLink, rng: &mut SeededRng) -> Booted {
    let program = DhcpProgram::Ipxe(context.boot_method.firmware());
    let Some(lease) = context.relay.acquire(who, program, rng).await else { return Booted::Nowhere };
    let Some(file) = lease.file else { return Booted::Disk };
    let uuid = uuid::Uuid::from_bytes(who.uuid).to_string();
    let Ok(url) = file.replace("${uuid}", &uuid).parse::<Url>() else { return Booted::Nowhere };
    let link = own(link, lease.address);
    for _ in 0..TRIES {
        let Ok(fetched) = link.fetch(Method::GET, &url, None, rng).await else { continue };
        link.counts.script();
        link.counts.fetched(fetched.bytes);
        let Some(script) = read(&String::from_utf8_lossy(&fetched.text)) else { return Booted::Disk };
        if load(&link, &script.files, context.download, rng).await {
            return Booted::Ramdisk { command_line: script.command_line, address: None };
        }
    }
    Booted::Nowhere
}

/// Boots from a virtual CD, or from the URL that the BMC was given.
pub async fn from_url(url: &str, link: &LossyLink, download: SimulatedDownload, rng: &mut SeededRng) -> Booted {
    let Ok(url) = url.parse::<Url>() else { return Booted::Nowhere };
    match virtual_cd::boot(link, &url, download, rng).await {
        Ok(orders) => Booted::Ramdisk { command_line: orders.command_line, address: orders.network.and_then(fixed) },
        Err(error) => {
            tracing::debug!(%error, %url, "cannot boot from the virtual CD");
            Booted::Nowhere
        }
    }
}

/// The first IPv4 address of network data.
fn fixed(network: Vec<u8>) -> Option<Ipv4Addr> {
    let plan = crate::network_data::NetworkPlan::parse(&network).ok()??;
    plan.addresses().find_map(|address| match address.ip() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    })
}

/// How a boot file is asked for, and which part of it.
fn part_of(download: SimulatedDownload) -> (Method, Option<std::ops::Range<u64>>) {
    match download {
        SimulatedDownload::Head => (Method::HEAD, None),
        SimulatedDownload::Sample => (Method::GET, Some(0..SAMPLE)),
        SimulatedDownload::All => (Method::GET, None),
    }
}

/// Fetches kernel and initrd, as far as wanted.
async fn load(link: &LossyLink, files: &[Url], download: SimulatedDownload, rng: &mut SeededRng) -> bool {
    let (method, part) = part_of(download);
    for url in files {
        let mut loaded = false;
        for _ in 0..TRIES {
            if let Ok(fetched) = link.fetch(method.clone(), url, part.clone(), rng).await {
                link.counts.fetched(fetched.bytes);
                loaded = true;
                break;
            }
        }
        if !loaded {
            return false;
        }
    }
    true
}

/// Kernel, its command line and the initrd of a boot script; `None` when it goes on to the disk.
fn read(script: &str) -> Option<Script> {
    let command = |name: &str| {
        let line = script.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(' '))?;
        Some(line.split(" || ").next().unwrap_or(line).trim())
    };
    let (kernel, command_line) = command("kernel")?.split_once(' ')?;
    let initrd = command("initrd")?.split(' ').find(|word| word.starts_with("http://"))?;
    let files = vec![kernel.parse().ok()?, initrd.parse().ok()?];
    Some(Script { command_line: command_line.trim().to_owned(), files })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::api::MacAddress;
    use crate::boot::script;

    #[test]
    fn the_scripts_that_the_appliance_writes_are_understood() {
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        let written = script::ramdisk(&script::Ramdisk {
            who: "rack/web-1, generation 3",
            archive: None,
            boot: SocketAddr::from(([127, 64, 0, 2], 8080)),
            api_port: 8443,
            ca_sha256: &"a0".repeat(32),
            token: "token-of-this-boot",
            mac,
            kernel_args: "console=ttyS0",
        })
        .unwrap();
        let read = read(&written).unwrap();
        let files: Vec<_> = read.files.iter().map(Url::as_str).collect();
        assert_eq!(files, ["http://127.64.0.2:8080/boot/files/vmlinuz", "http://127.64.0.2:8080/boot/files/initrd"]);
        let boot = crate::agent::cmdline::BootParameters::parse(&read.command_line).unwrap();
        assert_eq!((boot.server.as_str(), boot.mac), ("https://127.64.0.2:8443/", Some(mac)));
        assert_eq!(super::read(&script::local_disk("the intent is the disk").unwrap()), None);
    }
}
