//! What the appliance tells systemd: sd_notify(3), with the test in systemd's place.

use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::net::UnixDatagram;
use tokio::time::timeout;

use crate::process::{Appliance, DEADLINE};

/// Waits until something is told; all that was told until then.
async fn hear(socket: &UnixDatagram, wanted: &str) -> Vec<String> {
    let mut heard = Vec::new();
    let listening = async {
        let mut message = [0; 4096];
        loop {
            let length = socket.recv(&mut message).await.unwrap();
            let text = String::from_utf8_lossy(&message[..length]);
            heard.extend(text.lines().map(str::to_owned));
            if text.lines().any(|line| line == wanted) {
                return;
            }
        }
    };
    let done = timeout(DEADLINE, listening).await;
    assert!(done.is_ok(), "not told: {wanted}, but {heard:?}");
    heard
}

#[tokio::test]
async fn systemd_is_told_that_it_serves_that_it_runs_and_that_it_stops() {
    slipway::appliance::install_tls_provider();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut appliance = Appliance::notifying(&path, Duration::from_secs(3), "").await;
    hear(&socket, "READY=1").await;
    // At once, not after some tries: it serves.
    let address = appliance.address;
    tokio::net::TcpStream::connect(address).await.unwrap();
    tokio::net::TcpStream::connect(appliance.boot).await.unwrap();
    for _ in 0..2 {
        hear(&socket, "WATCHDOG=1").await;
    }
    appliance.signal(Signal::SIGTERM);
    hear(&socket, "STOPPING=1").await;
    assert!(appliance.ended().await, "{}", appliance.log());
}

#[tokio::test]
async fn whoever_starts_it_does_not_wait_for_another_api_server() {
    // Nobody listens there.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let file = folder.path().join("kubeconfig");
    let text = "{apiVersion: v1, kind: Config, current-context: a, users: [{name: a, user: {token: t}}], contexts: [{name: a, \
                context: {cluster: a, user: a}}], clusters: [{name: a, cluster: {server: \"http://127.0.0.1:1\"}}]}";
    std::fs::write(&file, text).unwrap();
    let engine = format!("[engine]\nkubeconfig = {:?}\n", file.display().to_string());
    let mut appliance = Appliance::notifying(&path, Duration::from_secs(3), &engine).await;
    hear(&socket, "READY=1").await;
    hear(&socket, "WATCHDOG=1").await;
    appliance.signal(Signal::SIGTERM);
    assert!(appliance.ended().await, "{}", appliance.log());
}
