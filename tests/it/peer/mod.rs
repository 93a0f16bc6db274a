//! A real kube-apiserver: that of `tests/api/servers.py peer`, built once into the user's cache folder.
//!
//! Where it is not there a test says so and does nothing: building it takes minutes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// No single step takes longer; the machine may be busy.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// A process that is told to end when it is dropped.
pub struct Process(pub Child);

impl Process {
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.0.id().try_into().unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    pub fn end(&mut self) {
        if self.0.try_wait().unwrap().is_none() {
            self.signal(nix::sys::signal::Signal::SIGTERM);
        }
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until a look has an answer.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let give_up = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = look().await {
            return answer;
        }
        assert!(Instant::now() < give_up, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The real API server and its kubeconfig, or why there is none.
pub async fn peer(folder: &Path) -> Result<(Process, PathBuf), String> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/programs.py");
    let wanted = ["--kept", "etcd", "kube-apiserver", "kube-controller-manager"];
    let kept = Command::new("python3").arg(programs).args(wanted).output().unwrap();
    if !kept.status.success() {
        return Err("no kube-apiserver is built: `python3 tests/api/servers.py peer FOLDER` builds it".to_owned());
    }
    let said = std::fs::File::create(folder.join("peer.out")).unwrap();
    let complaints = std::fs::File::create(folder.join("peer.err")).unwrap();
    let mut command = Command::new("python3");
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api/servers.py"))
        .arg("peer")
        .arg(folder.join("peer"));
    let mut process = Process(command.stdout(said).stderr(complaints).spawn().unwrap());
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let ready = until("the real API server is ready", || {
        let line = read("peer.out").lines().map(PathBuf::from).find(|line| line.is_absolute());
        let ended = process.0.try_wait().unwrap();
        async move {
            assert!(ended.is_none(), "it ended: {ended:?}\n{}", read("peer.err"));
            line
        }
    });
    let kubeconfig = ready.await;
    Ok((process, kubeconfig))
}
