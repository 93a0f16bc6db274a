//! What firmware and iPXE do: two DHCP exchanges, the boot script, its files.

use std::net::Ipv4Addr;

use http::Method;
use reqwest::Url;

use super::dice::Dice;
use super::plan::Download;
use super::relay::{Asker, Identity, Relay};
use super::wire::Wire;

/// Tries of a download, as the boot script has it.
const TRIES: usize = 3;
/// Bytes of a boot file that a sample is.
const SAMPLE: usize = 64 << 10;

/// Where network boot led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Booted {
    /// The ramdisk, with this kernel command line and the address that the machine has.
    Ramdisk {
        /// Kernel command line.
        command_line: String,
        /// The machine's address.
        address: Ipv4Addr,
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

/// Boots over the network as UEFI firmware with iPXE does.
pub async fn boot(relay: &Relay, who: Identity, wire: &Wire, download: Download, dice: &mut Dice) -> Booted {
    let Some(lease) = relay.acquire(who, Asker::Firmware, dice).await else { return Booted::Nowhere };
    if lease.file.is_none() {
        return Booted::Disk;
    }
    let Some(lease) = relay.acquire(who, Asker::Ipxe, dice).await else { return Booted::Nowhere };
    let Some(file) = lease.file else { return Booted::Disk };
    let uuid = uuid::Uuid::from_bytes(who.uuid).to_string();
    let Ok(url) = file.replace("${uuid}", &uuid).parse::<Url>() else { return Booted::Nowhere };
    let wire = Wire { source: Some(lease.address).filter(Ipv4Addr::is_loopback), ..wire.clone() };
    for _ in 0..TRIES {
        let Ok(fetched) = wire.fetch(Method::GET, &url, None, dice).await else { continue };
        wire.counts.script();
        wire.counts.fetched(fetched.bytes);
        let Some(script) = read(&String::from_utf8_lossy(&fetched.text)) else { return Booted::Disk };
        if load(&wire, &script.files, download, dice).await {
            return Booted::Ramdisk { command_line: script.command_line, address: lease.address };
        }
    }
    Booted::Nowhere
}

/// Fetches kernel and initrd, as far as wanted.
async fn load(wire: &Wire, files: &[Url], download: Download, dice: &mut Dice) -> bool {
    let (method, most) = match download {
        Download::Head => (Method::HEAD, None),
        Download::Sample => (Method::GET, Some(SAMPLE)),
        Download::All => (Method::GET, None),
    };
    for url in files {
        let mut loaded = false;
        for _ in 0..TRIES {
            if let Ok(fetched) = wire.fetch(method.clone(), url, most, dice).await {
                wire.counts.fetched(fetched.bytes);
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
        let boot = crate::agent::cmdline::Boot::parse(&read.command_line).unwrap();
        assert_eq!((boot.server.as_str(), boot.mac), ("https://127.64.0.2:8443/", Some(mac)));
        assert_eq!(super::read(&script::local_disk("the intent is the disk").unwrap()), None);
    }
}
