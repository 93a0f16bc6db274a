//! Drivers: every device says what it is (its modalias), `modules.alias` says which module serves it.
//!
//! The ramdisk holds `/lib/modules/<module>.ko`, `modules.alias` and `modules.dep`, names with underscores. Devices
//! that are there are served first (coldplug), until nothing new appears; then the kernel's uevents tell of late ones.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::glob;

/// Modules that no device asks for.
const ALWAYS: [&str; 10] = [
    "efivarfs",
    "sd_mod",
    "sr_mod",
    "isofs",
    "button",
    "evdev",
    "ipmi_si",
    "ipmi_devintf",
    "virtio_rng",
    "usb_storage",
];
/// Deepest folder of `/sys/devices` looked into.
const MAX_DEPTH: usize = 32;
/// Most devices looked at in one pass.
const MAX_DEVICES: usize = 20_000;
/// Most passes over the devices at start.
const MAX_PASSES: usize = 10;

/// `modules.alias` and `modules.dep`.
#[derive(Debug, Default)]
pub struct ModuleCatalogue {
    /// Pattern and module, by the pattern's part before the colon.
    aliases: HashMap<String, Vec<(String, String)>>,
    needs: HashMap<String, Vec<String>>,
}

impl ModuleCatalogue {
    /// Reads both files; lines that make no sense are skipped.
    pub fn parse(alias: &str, dep: &str) -> Self {
        let mut catalogue = Self::default();
        for line in alias.lines() {
            let mut words = line.split_ascii_whitespace();
            if let (Some("alias"), Some(pattern), Some(module), None) =
                (words.next(), words.next(), words.next(), words.next())
            {
                let entry = (pattern.to_owned(), underscored(module));
                catalogue.aliases.entry(bus(pattern).to_owned()).or_default().push(entry);
            }
        }
        for line in dep.lines() {
            if let Some((module, needs)) = line.split_once(':') {
                let needs = needs.split_ascii_whitespace().map(underscored).collect();
                catalogue.needs.insert(underscored(module.trim()), needs);
            }
        }
        catalogue
    }

    /// Modules that serve a device, in the order of the file, each once.
    pub fn modules(&self, modalias: &str) -> Vec<&str> {
        let mut found: Vec<&str> = Vec::new();
        for (pattern, module) in self.aliases.get(bus(modalias)).into_iter().flatten() {
            if !found.contains(&module.as_str()) && glob::matches(pattern.as_bytes(), modalias.as_bytes()) {
                found.push(module);
            }
        }
        found
    }

    /// A module with all that it needs, what is needed first. Circles are broken.
    pub fn with_needs(&self, module: &str) -> Vec<String> {
        let mut order = Vec::new();
        self.collect(module, &mut HashSet::new(), &mut order);
        order
    }

    fn collect(&self, module: &str, seen: &mut HashSet<String>, order: &mut Vec<String>) {
        if !seen.insert(module.to_owned()) {
            return;
        }
        // modprobe loads the list from its end.
        for needed in self.needs.get(module).into_iter().flatten().rev() {
            self.collect(needed, seen, order);
        }
        order.push(module.to_owned());
    }
}

fn underscored(module: &str) -> String {
    module.replace('-', "_")
}

fn bus(modalias: &str) -> &str {
    modalias.split_once(':').map_or("", |(bus, _)| bus)
}

/// What the devices below `sys/devices` ask for, network interfaces first: their link and their address take time.
pub fn modaliases(root: &Path) -> Vec<String> {
    let mut found = HashSet::new();
    let mut folders = vec![(root.join("sys/devices"), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < MAX_DEPTH {
                folders.push((entry.path(), depth + 1));
            } else if kind.is_file()
                && entry.file_name() == "modalias"
                && found.len() < MAX_DEVICES
                && let Ok(text) = std::fs::read_to_string(entry.path())
                && !text.trim().is_empty()
            {
                found.insert(text.trim().to_owned());
            }
        }
    }
    let mut found: Vec<String> = found.into_iter().collect();
    found.sort_by_key(|modalias| (!is_network(modalias), modalias.clone()));
    found
}

/// A PCI device of class 02, or virtio device type 1.
fn is_network(modalias: &str) -> bool {
    (modalias.starts_with("pci:") && modalias.contains("bc02")) || modalias.starts_with("virtio:d00000001")
}

/// How the modules are doing, for those who wait for devices.
#[derive(Clone)]
pub struct Activity(Arc<Mutex<DriverState>>);

struct DriverState {
    /// Module being loaded, since when.
    loading: Option<(String, Instant)>,
    /// When a module was loaded, or the kernel told of a device, last.
    last: Instant,
    /// Whether the devices that were there at the start have been served.
    coldplugged: bool,
    loaded: usize,
}

impl Activity {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(DriverState { loading: None, last: Instant::now(), coldplugged: false, loaded: 0 })))
    }

    fn update(&self, change: impl FnOnce(&mut DriverState)) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.last = Instant::now();
        change(&mut state);
    }

    /// Waits until all devices have been served and none has appeared for `quiet`, at most for `limit`. Whether they
    /// have; tells on the console which module is slow.
    pub async fn settled(&self, quiet: Duration, limit: Duration) -> bool {
        let started = Instant::now();
        let mut told = started;
        loop {
            let (settled, slow) = {
                let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                let settled = state.coldplugged && state.loading.is_none() && state.last.elapsed() >= quiet;
                (settled, state.loading.as_ref().map(|(name, since)| (name.clone(), since.elapsed().as_secs())))
            };
            if settled || started.elapsed() >= limit {
                return settled;
            }
            if told.elapsed() >= Duration::from_secs(5) {
                told = Instant::now();
                match slow {
                    Some((module, seconds)) => tracing::info!(%module, seconds, "waiting for a driver to load"),
                    None => tracing::info!("waiting for devices to settle"),
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Loads modules, each once, whether that worked or not.
struct Loader<'a> {
    folder: PathBuf,
    catalogue: ModuleCatalogue,
    tried: HashSet<String>,
    activity: Activity,
    insert: &'a mut dyn FnMut(&Path) -> io::Result<()>,
}

impl Loader<'_> {
    /// Loads what serves a device; whether any module was new.
    fn serve(&mut self, modalias: &str) -> bool {
        let modules: Vec<String> = self.catalogue.modules(modalias).into_iter().map(str::to_owned).collect();
        let mut new = false;
        for module in modules {
            new |= self.load(&module);
        }
        new
    }

    fn load(&mut self, module: &str) -> bool {
        let mut new = false;
        for module in self.catalogue.with_needs(module) {
            let path = self.folder.join(format!("{module}.ko"));
            // Built into the kernel, or left out of the ramdisk.
            if !self.tried.insert(module.clone()) || !path.exists() {
                continue;
            }
            new = true;
            let since = Instant::now();
            self.activity.update(|state| state.loading = Some((module.clone(), since)));
            let result = (self.insert)(&path);
            self.activity.update(|state| {
                state.loading = None;
                state.loaded += usize::from(result.is_ok());
            });
            match result {
                Ok(()) => tracing::debug!(module, milliseconds = since.elapsed().as_millis() as u64, "driver loaded"),
                // The usual answer of drivers for hardware that is not there after all.
                Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => {
                    tracing::debug!(module, %error, "driver found no device");
                }
                Err(error) => tracing::warn!(module, %error, "cannot load a driver"),
            }
        }
        new
    }

    /// Serves all devices there are, and those that their drivers bring to light.
    fn coldplug(&mut self, root: &Path) {
        for _ in 0..MAX_PASSES {
            let mut new = false;
            for modalias in modaliases(root) {
                new |= self.serve(&modalias);
            }
            if !new {
                return;
            }
        }
        tracing::warn!(
            passes = MAX_PASSES,
            "devices still appear: drivers for later ones are loaded as the kernel reports them"
        );
    }
}

fn insert_module(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    match finit_module(&file, c"", ModuleInitFlags::empty()) {
        // Already there.
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Loads modules that no device asks for, when they are needed, with what these need.
pub fn load(root: &Path, modules: &[&str]) {
    let folder = root.join("lib/modules");
    let dependencies = std::fs::read_to_string(folder.join("modules.dep")).unwrap_or_default();
    let catalogue = ModuleCatalogue::parse("", &dependencies);
    let (activity, mut insert) = (Activity::new(), insert_module);
    let mut loader = Loader { folder, catalogue, tried: HashSet::new(), activity, insert: &mut insert };
    for module in modules {
        loader.load(module);
    }
}

/// Serves devices on a thread of its own until the process ends.
pub fn start(root: &Path) -> Activity {
    let activity = Activity::new();
    let shared = activity.clone();
    let root = root.to_owned();
    let spawned = std::thread::Builder::new().name("drivers".into()).spawn(move || {
        let folder = root.join("lib/modules");
        let read = |name: &str| {
            std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| {
                tracing::error!(file = name, %error, "cannot read the ramdisk's list of drivers");
                String::new()
            })
        };
        let catalogue = ModuleCatalogue::parse(&read("modules.alias"), &read("modules.dep"));
        let mut insert = insert_module;
        let mut loader =
            Loader { folder, catalogue, tried: HashSet::new(), activity: shared.clone(), insert: &mut insert };
        // Open before the first pass: no device is missed between the two.
        let events = Uevents::open();
        loader.coldplug(&root);
        for module in ALWAYS {
            loader.load(module);
        }
        loader.coldplug(&root);
        let mut loaded = 0;
        shared.update(|state| {
            state.coldplugged = true;
            loaded = state.loaded;
        });
        tracing::info!(count = loaded, "drivers loaded");
        match events {
            Ok(events) => watch(&events, &mut loader, &root, &shared),
            Err(error) => tracing::warn!(%error, "cannot receive the kernel's device events: devices that appear late get no driver"),
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "cannot load drivers");
        activity.update(|state| state.coldplugged = true);
    }
    activity
}

fn watch(events: &Uevents, loader: &mut Loader<'_>, root: &Path, activity: &Activity) {
    let mut buffer = vec![0; 8192];
    loop {
        match events.next(&mut buffer) {
            Ok(Some(event)) => {
                if let Some(event) = Uevent::parse(event) {
                    activity.update(|_| {});
                    if event.action == "add" && event.modalias.is_some_and(|modalias| loader.serve(modalias)) {
                        loader.coldplug(root);
                    }
                }
            }
            Ok(None) => {}
            // Events were lost: look at everything.
            Err(Errno::ENOBUFS) => loader.coldplug(root),
            Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::warn!(%error, "the kernel's device events ended: devices that appear late get no driver");
                return;
            }
        }
    }
}

/// The kernel's device events (netlink(7), NETLINK_KOBJECT_UEVENT).
struct Uevents {
    socket: std::os::fd::OwnedFd,
}

impl Uevents {
    fn open() -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkKObjectUEvent,
        )?;
        setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20))?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(5))?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 1))?;
        Ok(Self { socket })
    }

    fn next<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>, Errno> {
        match recv(self.socket.as_raw_fd(), buffer, MsgFlags::empty()) {
            Ok(length) => Ok(buffer.get(..length)),
            Err(Errno::EAGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Uevent<'a> {
    action: &'a str,
    modalias: Option<&'a str>,
}

impl<'a> Uevent<'a> {
    /// `add@/devices/…`, then `KEY=value`, each ended by a zero byte.
    fn parse(message: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(message).ok()?;
        let mut parts = text.split('\0');
        let (action, _) = parts.next()?.split_once('@')?;
        Some(Self { action, modalias: parts.find_map(|part| part.strip_prefix("MODALIAS=")) })
    }
}

#[cfg(test)]
mod tests;
