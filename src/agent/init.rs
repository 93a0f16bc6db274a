//! The duties of PID 1: file systems, consoles, orphans, the clock, and a shutdown that is never silent.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::Signal;
use nix::sys::time::TimeSpec;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::time::ClockId;
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, sethostname, sync};

use super::log::Consoles;

/// A clock that is off by more than this, in seconds, is set.
const CLOCK_TOLERANCE: i64 = 60;

/// Kernel file systems: type, where, flags.
const MOUNTS: [(&str, &str, MsFlags); 5] = [
    ("proc", "/proc", MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC)),
    ("sysfs", "/sys", MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC)),
    ("devtmpfs", "/dev", MsFlags::MS_NOSUID),
    ("tmpfs", "/run", MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV)),
    ("tmpfs", "/tmp", MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV)),
];

/// How the machine goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// Through the firmware again.
    Reboot,
    /// Into the kernel that was loaded; through the firmware when that fails.
    Kexec,
    /// Off.
    PowerOff,
}

/// Mounts the kernel's file systems and points the standard streams at the console. What fails is told to the
/// kernel's log, the only place that is there so early.
pub fn prepare() {
    for (kind, target, flags) in MOUNTS {
        if let Err(error) = std::fs::create_dir_all(target) {
            early(&format!("{target} cannot be made: {error}"));
        }
        match mount(Some(kind), target, Some(kind), flags, None::<&str>) {
            // The kernel mounts devtmpfs by itself when it was built to.
            Ok(()) | Err(Errno::EBUSY) => {}
            Err(error) => early(&format!("{kind} cannot be mounted on {target}: {error}")),
        }
    }
    match OpenOptions::new().read(true).write(true).open("/dev/console") {
        Ok(console) => {
            for result in [dup2_stdin(console.as_fd()), dup2_stdout(console.as_fd()), dup2_stderr(console.as_fd())] {
                if let Err(error) = result {
                    early(&format!("standard streams: {error}"));
                }
            }
        }
        Err(error) => early(&format!("/dev/console cannot be opened: {error}")),
    }
}

/// A line for the kernel's log.
fn early(line: &str) {
    if let Ok(mut kmsg) = OpenOptions::new().write(true).open("/dev/kmsg") {
        // There is nowhere left to tell of a failure.
        let _written = kmsg.write_all(format!("<3>slipway: {line}\n").as_bytes());
    }
}

/// Settings of the kernel that the agent depends on.
pub fn settle_kernel() {
    for (file, value) in [
        // Drivers' chatter would scroll the agent's lines off the screen; warnings stay.
        ("/proc/sys/kernel/printk", "5 4 1 7"),
        // A kernel that crashes must not sit there for ever.
        ("/proc/sys/kernel/panic", "60"),
        // Two interfaces in one subnet: each answers for its own address only.
        ("/proc/sys/net/ipv4/conf/all/arp_ignore", "1"),
        ("/proc/sys/net/ipv4/conf/all/arp_announce", "2"),
    ] {
        if let Err(error) = std::fs::write(file, value) {
            tracing::warn!(file, value, %error, "cannot set a kernel parameter");
        }
    }
}

/// Mounts the UEFI variables; nothing to do under BIOS. The module must be loaded.
pub fn mount_efi_variables() {
    let target = "/sys/firmware/efi/efivars";
    if !booted_by_uefi(Path::new("/")) || !Path::new(target).exists() {
        return;
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    match mount(Some("efivarfs"), target, Some("efivarfs"), flags, None::<&str>) {
        Ok(()) | Err(Errno::EBUSY) => {}
        Err(error) => tracing::warn!(%error, "cannot mount the UEFI variables"),
    }
}

/// Whether UEFI firmware started the kernel.
pub fn booted_by_uefi(root: &Path) -> bool {
    root.join("sys/firmware/efi").is_dir()
}

/// Buries the orphans that PID 1 inherits, until the process ends.
pub async fn reap() {
    let mut signals = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()) {
        Ok(signals) => signals,
        Err(error) => {
            tracing::warn!(%error, "cannot wait for ended processes: they stay in the process table");
            return;
        }
    };
    while signals.recv().await.is_some() {
        // One signal may stand for several.
        for _ in 0..1000 {
            match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) | Err(_) => break,
                Ok(WaitStatus::Signaled(process, Signal::SIGSEGV, _)) => tracing::warn!(%process, "a process crashed"),
                Ok(_) => {}
            }
        }
    }
}

/// Sets the clock to the appliance's when it is off by more than a minute. Nothing depends on it but the times in
/// the operating system's first log lines.
pub fn set_clock(now: i64) {
    let Ok(held) = ClockId::CLOCK_REALTIME.now() else { return };
    let off = now.saturating_sub(held.tv_sec());
    if off.abs() <= CLOCK_TOLERANCE || now <= 0 {
        return;
    }
    match ClockId::CLOCK_REALTIME.set_time(TimeSpec::new(now, 0)) {
        Ok(()) => tracing::info!(seconds = off, "the clock was wrong and is set"),
        Err(error) => tracing::warn!(seconds = off, %error, "cannot set the clock, which is wrong"),
    }
}

/// Gives the machine its name.
pub fn set_hostname(name: &str) {
    match sethostname(name) {
        Ok(()) => tracing::info!(name, "host name set"),
        Err(error) => tracing::warn!(name, %error, "cannot set the host name"),
    }
}

/// Tells of a panic on every console; where it happened decides what comes of it. A panic in a step fails the step,
/// one in the agent itself ends in a reboot.
pub fn tell_panics(consoles: Consoles) {
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.to_string().replace('\n', " ");
        tracing::error!(panic = text, "fault in the agent");
        consoles.banner(&["FAULT in the Slipway agent, please report it:", &text]);
        early(&text);
    }));
}

/// Writes back what is not on disk yet, lets go of what is mounted from disks, and goes down. When the kernel refuses
/// that, says so and tries again every minute: PID 1 must not end.
pub fn go_down(how: Down, consoles: &Consoles) -> ! {
    sync();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for target in disk_mounts(&mounts) {
        if let Err(error) = umount2(target, MntFlags::MNT_DETACH) {
            consoles.line(&format!("{target} was not unmounted: {error}"));
        }
    }
    sync();
    consoles.line(match how {
        Down::Reboot => "Restarting now.",
        Down::Kexec => "Starting the installed system now.",
        Down::PowerOff => "Powering off now.",
    });
    // The consoles write on threads of their own.
    std::thread::sleep(Duration::from_millis(200));
    let mut refused = false;
    loop {
        let mode = match how {
            Down::Reboot => RebootMode::RB_AUTOBOOT,
            Down::Kexec if !refused => RebootMode::RB_KEXEC,
            Down::Kexec => RebootMode::RB_AUTOBOOT,
            Down::PowerOff => RebootMode::RB_POWER_OFF,
        };
        match reboot(mode) {
            Ok(never) => match never {},
            Err(error) if mode == RebootMode::RB_KEXEC => {
                consoles.line(&format!("The kernel refused: {error}. Restarting through the firmware."));
                refused = true;
                continue;
            }
            Err(error) => consoles.line(&format!("The kernel refused: {error}. Trying again in a minute.")),
        }
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Where devices are mounted, the last mounted first.
fn disk_mounts(mounts: &str) -> Vec<&str> {
    let mut targets: Vec<&str> = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let device = words.next()?;
            words.next().filter(|target| device.starts_with("/dev/") && *target != "/")
        })
        .collect();
    targets.reverse();
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_mounted_from_disks_is_let_go() {
        let mounts = "rootfs / rootfs rw 0 0\nproc /proc proc rw 0 0\n/dev/sda2 /tmp/root ext4 rw 0 0\n\
                      /dev/sda1 /tmp/root/boot/efi vfat rw 0 0\n/dev/root / ext4 rw 0 0\nodd\n";
        assert_eq!(disk_mounts(mounts), ["/tmp/root/boot/efi", "/tmp/root"]);
    }
}
