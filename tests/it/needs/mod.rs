//! What a test needs of the machine that it runs on, and not every machine has: a program, root.
//!
//! Without it the test passes over, and says so past the harness's capture. With `SLIPWAY_TESTS_REQUIRE_TOOLS=1`, which
//! `make unit` sets, it fails instead, so that nothing is believed to be tested that was not. `all` asks for more: for what
//! takes long to build, too.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;

const REQUIRE: &str = "SLIPWAY_TESTS_REQUIRE_TOOLS";

/// Says that something is not tested.
///
/// # Panics
/// When nothing may be left out.
pub fn lacks(what: &str) {
    let required = std::env::var_os(REQUIRE).is_some_and(|value| !value.is_empty() && value != "0");
    assert!(!required, "{what}: {REQUIRE} wants it; `make unit` fetches what is missing");
    tell(what);
}

/// The same of what takes minutes to build, which only `all` wants.
///
/// # Panics
/// When nothing may be left out, not even this.
pub fn lacks_what_takes_long(what: &str) {
    assert!(std::env::var_os(REQUIRE).is_none_or(|value| value != "all"), "{what}: {REQUIRE}=all wants it");
    tell(what);
}

/// The same of what the kernel lacks: nobody can install it, so nobody is asked to.
pub fn kernel_lacks(what: &str) {
    tell(what);
}

fn tell(what: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    // The handle itself is not captured, as what `eprintln!` writes is.
    writeln!(std::io::stderr(), "skipped: {test}: {what}").ok();
}

/// Whether this is root; says so when it is not.
pub fn root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        lacks("this is not root (sudo)");
    }
    root
}

/// Whether a program is installed; says so when it is not.
pub fn program(name: &str) -> bool {
    let found = on_path(name).is_some();
    if !found {
        lacks(&format!("{name} is not installed"));
    }
    found
}

/// The real kubeadm: `$KUBEADM`, which `make unit` sets, or the one on the path; says so when there is none.
pub fn kubeadm() -> Option<PathBuf> {
    let named = std::env::var_os("KUBEADM").filter(|name| !name.is_empty()).map(PathBuf::from);
    let found = named.or_else(|| on_path("kubeadm"));
    if found.is_none() {
        lacks(
            "no kubeadm in $KUBEADM or on the path; `python3 tests/lab/programs.py kubeadm` builds it and says where it is",
        );
    }
    found
}

/// The real helm: `$HELM`, which `make unit` sets, or the one on the path; says so when there is none.
pub fn helm() -> Option<PathBuf> {
    let named = std::env::var_os("HELM").filter(|name| !name.is_empty()).map(PathBuf::from);
    let found = named.or_else(|| on_path("helm"));
    if found.is_none() {
        lacks("no helm in $HELM or on the path; `python3 tests/lab/programs.py helm` builds it and says where it is");
    }
    found
}

/// A virtual environment with the real Ansible: `$ANSIBLE_VENV`, which `make unit` sets; says so when there is none.
pub fn ansible() -> Option<PathBuf> {
    let named = std::env::var_os("ANSIBLE_VENV").filter(|name| !name.is_empty()).map(PathBuf::from);
    let found = named.filter(|folder| folder.join("bin/ansible-playbook").is_file());
    if found.is_none() {
        lacks("no Ansible in $ANSIBLE_VENV; `python3 tests/lab/tools.py ansible` fetches it and says where it is");
    }
    found
}

/// A port below those that the kernel gives to outgoing connections: none takes it while a server is restarted. None is given twice.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = rand::random_range(20_000..32_000);
        let here = ("127.0.0.1", port);
        let is_free = std::net::TcpListener::bind(here).is_ok() && std::net::UdpSocket::bind(here).is_ok();
        if is_free && GIVEN.lock().unwrap().insert(port) {
            return port;
        }
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder: PathBuf| folder.join(name)).find(|file| file.is_file())
}
