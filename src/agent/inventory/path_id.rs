//! Persistent disk names (udev's `path_id`).
//!
//! Names below `/dev/disk/by-path`, as udev's `path_id` makes them: the ramdisk has no udev, and operators write these
//! names into root device hints.

use std::path::Path;

/// By-path names of a block device, udev's own first, then the older ones that it still links. `device` is its
/// canonical folder in sysfs, `kernel` its kernel name. Empty when the way to it has no stable name.
pub fn names(root: &Path, device: &Path, kernel: &str) -> Vec<String> {
    let devices = match std::fs::canonicalize(root.join("sys/devices")) {
        Ok(devices) => devices,
        Err(_) => return Vec::new(),
    };
    let mut walk = PathIdWalk { parts: Vec::new(), older: None, transport: false, bus: false };
    let mut ancestors = device.ancestors().skip(1).take_while(|path| path.starts_with(&devices)).peekable();
    while let Some(path) = ancestors.next() {
        let subsystem = subsystem(path);
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { break };
        let understood = match subsystem.as_deref() {
            Some("scsi") => match hctl(name) {
                Some(address) => walk.scsi(path, address),
                None => true,
            },
            Some("nvme") => walk.nvme(device),
            Some("virtio") => {
                walk.transport = true;
                true
            }
            Some("usb") => {
                // The interface names the port; the devices and hubs above it say the same again.
                if let Some((_, port)) = name.split_once('-') {
                    walk.push(format!("usb-0:{port}"));
                    walk.transport = true;
                }
                true
            }
            Some("pci") => {
                walk.push(format!("pci-{name}"));
                walk.bus = true;
                true
            }
            Some("platform") => {
                walk.push(format!("platform-{name}"));
                walk.bus = true;
                true
            }
            _ => true,
        };
        if !understood {
            return Vec::new();
        }
        // Bridges, hubs and controllers of the same kind above it add nothing.
        if let Some(passed) =
            subsystem.filter(|name| ["pci", "usb", "nvme", "virtio", "platform"].contains(&name.as_str()))
        {
            while ancestors.peek().is_some_and(|path| self::subsystem(path).as_deref() == Some(&passed)) {
                ancestors.next();
            }
        }
    }
    walk.finish(kernel)
}

struct PathIdWalk {
    /// From the device upwards.
    parts: Vec<String>,
    /// What stands for the last part in older names.
    older: Option<(usize, String)>,
    transport: bool,
    bus: bool,
}

impl PathIdWalk {
    fn push(&mut self, part: String) {
        self.parts.push(part);
    }

    fn finish(self, kernel: &str) -> Vec<String> {
        if !(self.transport && self.bus) {
            return Vec::new();
        }
        let join = |parts: &[String]| parts.iter().rev().map(String::as_str).collect::<Vec<_>>().join("-");
        let mut names = vec![join(&self.parts)];
        if let Some((index, part)) = self.older {
            let mut parts = self.parts.clone();
            parts[index] = part;
            names.push(join(&parts));
        }
        if kernel.starts_with("vd") && names[0].starts_with("pci-") {
            names.push(format!("virtio-{}", names[0]));
        }
        names
    }

    fn nvme(&mut self, device: &Path) -> bool {
        let Some(namespace) = read(&device.join("nsid")) else { return false };
        self.push(format!("nvme-{namespace}"));
        self.transport = true;
        true
    }

    /// A SCSI device; false when its transport has no name.
    fn scsi(&mut self, path: &Path, [host, channel, target, lun]: [u64; 4]) -> bool {
        self.transport = true;
        let above = |prefix: &str| {
            path.ancestors().find(|path| {
                path.file_name().and_then(|name| name.to_str()).is_some_and(|name| match name.strip_prefix(prefix) {
                    Some(rest) => rest.starts_with(|first: char| first.is_ascii_digit()),
                    None => false,
                })
            })
        };
        let lun_name = if lun < 256 {
            format!("lun-{lun}")
        } else {
            format!("lun-0x{:04x}{:04x}00000000", lun & 0xffff, lun >> 16)
        };
        if let Some(port) = above("rport-") {
            let Some(name) = class(port, "fc_remote_ports", "port_name") else { return false };
            self.push(format!("fc-{name}-{lun_name}"));
        } else if let Some(end) = above("end_device-") {
            return self.sas(end, &lun_name);
        } else if above("session").is_some() {
            return false;
        } else if let Some(port) = above("ata") {
            let Some(number) = class(port, "ata_port", "port_no") else { return false };
            // Behind a port multiplier the channel is the port; else the target tells master from slave.
            self.push(if channel != 0 {
                format!("ata-{number}.{channel}.0")
            } else {
                format!("ata-{number}.{target}")
            });
            self.older = Some((self.parts.len() - 1, format!("ata-{number}")));
        } else {
            let Some(adapter) = above("host") else { return false };
            // Host numbers count up over the machine: what is stable is the number within the adapter.
            let first = adapter
                .parent()
                .and_then(|parent| std::fs::read_dir(parent).ok())
                .into_iter()
                .flatten()
                .flatten()
                .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("host")?.parse::<u64>().ok())
                .min()
                .unwrap_or(host);
            self.push(format!("scsi-{}:{channel}:{target}:{lun}", host.saturating_sub(first)));
        }
        true
    }

    fn sas(&mut self, end: &Path, lun: &str) -> bool {
        let Some(port) = end.parent() else { return false };
        if class(port, "sas_port", "num_phys").as_deref() != Some("1") {
            let Some(address) = class(end, "sas_device", "sas_address") else { return false };
            self.push(format!("sas-{address}-{lun}"));
            return true;
        }
        let Some(phy) = class(end, "sas_device", "phy_identifier") else { return false };
        let expander = port.parent().and_then(|expander| class(expander, "sas_device", "sas_address"));
        self.push(match expander {
            Some(address) => format!("sas-exp{address}-phy{phy}-{lun}"),
            None => format!("sas-phy{phy}-{lun}"),
        });
        true
    }
}

/// An attribute of the class device that a device has under its own name.
fn class(device: &Path, class: &str, attribute: &str) -> Option<String> {
    read(&device.join(class).join(device.file_name()?).join(attribute))
}

fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty() && text.len() <= 64 && !text.contains('/')).then(|| text.to_owned())
}

fn subsystem(path: &Path) -> Option<String> {
    std::fs::read_link(path.join("subsystem")).ok()?.file_name()?.to_str().map(str::to_owned)
}

/// Host, channel, target and LUN from `0:0:1:0`.
pub fn hctl(name: &str) -> Option<[u64; 4]> {
    let numbers: Vec<u64> = name.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}
