//! What signals do to the appliance as a process.

use nix::sys::signal::Signal;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::process::{self, Appliance, DEADLINE, until};

#[tokio::test]
async fn no_signal_but_those_that_ask_for_it_ends_it() {
    slipway::appliance::install_tls_provider();
    let mut appliance = Appliance::new().await;
    let client = appliance.client().await;
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
        let before = appliance.log().matches(signal.as_str()).count();
        appliance.signal(signal);
        until(&format!("a line about {signal}"), async || {
            assert!(appliance.runs(), "{signal} ended it");
            (appliance.log().matches(signal.as_str()).count() > before).then_some(())
        })
        .await;
        client.apiserver_version().await.unwrap();
    }
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        appliance.signal(signal);
        assert!(appliance.ended().await, "{signal}: {}", appliance.log());
        appliance.start_again();
        appliance.client().await;
    }
}

#[tokio::test]
async fn an_end_before_it_is_ready_is_orderly_too() {
    // An API server that says nothing: the appliance waits for it before it is ready.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: a, users: [{{name: a, user: {{token: t}}}}], contexts: \
         [{{name: a, context: {{cluster: a, user: a}}}}], clusters: [{{name: a, cluster: {{server: \"http://{}\"}}}}]}}",
        silent.local_addr().unwrap()
    );
    std::fs::write(&file, text).unwrap();
    let engine = format!("[engine]\nkubeconfig = {:?}\n", file.display().to_string());
    let mut appliance = Appliance::with(&engine).await;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let before = appliance.log().matches("stopped before it was ready").count();
        let held = timeout(DEADLINE, silent.accept()).await.expect("it asks the API server").unwrap();
        appliance.signal(Signal::SIGHUP);
        appliance.signal(signal);
        assert!(appliance.ended().await, "{signal}: {}", appliance.log());
        assert!(appliance.log().matches("stopped before it was ready").count() > before, "{}", appliance.log());
        drop(held);
        // Whatever waits in the listener's queue is of the process that ended.
        while timeout(process::PAUSE, silent.accept()).await.is_ok() {}
        appliance.start_again();
    }
}
