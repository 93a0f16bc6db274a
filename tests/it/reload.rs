//! SIGHUP, as `systemctl reload` sends it: what is applied, what needs a restart, and what a faulty file does.

use std::fs;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use nix::sys::signal::Signal;
use serde_json::json;
use slipway::api::metal3::BareMetalHost;

use crate::process::{Appliance, until};

/// Changes the configuration file.
fn edit(appliance: &Appliance, changes: &[(&str, &str)]) {
    let file = appliance.folder().join("slipway.toml");
    let mut text = fs::read_to_string(&file).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{from}: {text}");
        text = text.replacen(from, to, 1);
    }
    fs::write(file, text).unwrap();
}

/// Has it read, and gives the lines that are logged about it, the last of which has `end`.
async fn reload(appliance: &mut Appliance, end: &str) -> String {
    let before = appliance.log().len();
    appliance.signal(Signal::SIGHUP);
    until(&format!("a line with {end}"), async || {
        assert!(appliance.runs(), "SIGHUP ended it: {}", appliance.log());
        Some(appliance.log()[before..].to_owned()).filter(|lines| lines.contains(end))
    })
    .await
}

#[tokio::test]
async fn a_reload_applies_what_it_can_and_names_the_rest() {
    slipway::appliance::install_tls_provider();
    let mut appliance = Appliance::with("[host]\nbusy_limit = 5\n[dhcp]\nport = 6767\n").await;
    let client = appliance.client().await;
    let hosts: Api<BareMetalHost> = Api::default_namespaced(client.clone());
    let secrets: Api<Secret> = Api::default_namespaced(client);
    let secret = json!({"metadata": {"name": "bmc"}, "stringData": {"username": "admin", "password": "secret"}});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let host = json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": "web-1"},
        "spec": {"online": false, "bmc": {"address": "ipmi://127.0.0.9", "credentialsName": "bmc"}},
    });
    let host: BareMetalHost = serde_json::from_value(host).unwrap();
    let refused = hosts.create(&PostParams::default(), &host).await.unwrap_err().to_string();
    assert!(refused.contains("bmc.allow"), "{refused}");

    let quirks = appliance.folder().join("quirks.toml");
    let profile = "[[profile]]\nname = 'ours'\nsource = 'the bench'\n[profile.match]\nmodel = 'x'\n";
    fs::write(&quirks, profile).unwrap();
    let bmc = format!("port = 6868\n[bmc]\nallow = [\"127.0.0.9\"]\nquirks = {quirks:?}");
    edit(
        &appliance,
        &[
            ("level = \"warn\"", "level = \"info\""),
            ("busy_limit = 5", "busy_limit = 7"),
            ("port = 6767", bmc.as_str()),
        ],
    );
    let end = "the configuration was read again";
    let lines = reload(&mut appliance, end).await;
    for part in [
        "holds from now on change=log.level: \"warn\" -> \"info\"",
        "holds from now on change=host.busy_limit: 5 -> 7",
        "holds from now on change=bmc.allow: left out -> [\"127.0.0.9\"]",
        &format!("BMC quirk profiles hold from now on file={}", quirks.display()),
        "needs a restart change=dhcp.port: 6767 -> 6868",
    ] {
        assert_eq!(lines.matches(part).count(), 1, "{part}: {lines}");
    }
    hosts.create(&PostParams::default(), &host).await.unwrap();

    // A file with faults changes nothing, not even what is right in it.
    edit(
        &appliance,
        &[("level = \"info\"", "level = \"chatty\""), ("busy_limit = 7", "busy_limit = 0"), ("127.0.0.9", "127.0.0.8")],
    );
    let lines = reload(&mut appliance, "the configuration is not reloaded").await;
    assert!(lines.contains("log.level") && lines.contains("chatty") && lines.contains("host.busy_limit"), "{lines}");
    assert!(!lines.contains("holds from now on") && !lines.contains("needs a restart"), "{lines}");
    hosts.delete("web-1", &kube::api::DeleteParams::default()).await.unwrap();

    // What was applied is not told again; what was not is, until the restart. The same profiles are not loaded anew.
    edit(
        &appliance,
        &[("level = \"chatty\"", "level = \"info\""), ("busy_limit = 0", "busy_limit = 7"), ("127.0.0.8", "127.0.0.9")],
    );
    let lines = reload(&mut appliance, end).await;
    assert!(!lines.contains("holds from now on") && !lines.contains("hold from now on"), "{lines}");
    assert!(lines.contains("needs a restart change=dhcp.port: 6767 -> 6868"), "{lines}");
    // The profiles are read again where the file is the same and its content is not.
    fs::write(&quirks, profile.replace("'x'", "'y'")).unwrap();
    let lines = reload(&mut appliance, end).await;
    assert!(lines.contains("BMC quirk profiles hold from now on"), "{lines}");

    appliance.restart(false).await;
    appliance.client().await;
    let lines = reload(&mut appliance, end).await;
    assert!(!lines.contains("restart"), "{lines}");
}

#[tokio::test]
async fn a_pipe_or_a_device_in_place_of_a_file_holds_up_nothing() {
    slipway::appliance::install_tls_provider();
    let mut appliance = Appliance::new().await;
    appliance.client().await;
    let file = appliance.folder().join("slipway.toml");
    let good = fs::read_to_string(&file).unwrap();
    let (pipe, long) = (appliance.folder().join("pipe"), appliance.folder().join("long"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(&long, "#".repeat((1 << 20) + 1)).unwrap();
    let put = |target: &std::path::Path| {
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(target, &file).unwrap();
    };
    for (target, wanted) in [
        (pipe.as_path(), "not a regular file"),
        ("/dev/zero".as_ref(), "not a regular file"),
        (long.as_path(), "longer than 1 MiB"),
    ] {
        put(target);
        let lines = reload(&mut appliance, "the configuration is not reloaded").await;
        assert!(lines.contains(wanted), "{}: {lines}", target.display());
    }
    // What it names is looked at as well.
    fs::remove_file(&file).unwrap();
    let kubeconfig = appliance.folder().join("kubeconfig");
    let of = |authority: &str| {
        fs::write(
            &kubeconfig,
            format!(
                "{{clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1', certificate-authority: {authority:?}}}}}], \
                 users: [{{name: u, user: {{}}}}], contexts: [{{name: x, context: {{cluster: c, user: u}}}}], current-context: x}}"
            ),
        )
        .unwrap();
    };
    of(pipe.to_str().unwrap());
    for key in [
        format!("[bmc]\nquirks = {pipe:?}"),
        format!("[image]\nca_file = {pipe:?}"),
        "[image]\nca_file = '/dev/zero'".into(),
        format!("[engine]\nkubeconfig = {pipe:?}"),
        format!("[engine]\nkubeconfig = {kubeconfig:?}"),
    ] {
        fs::write(&file, format!("{good}{key}\n")).unwrap();
        let lines = reload(&mut appliance, "the configuration is not reloaded").await;
        assert!(lines.contains("not a regular file"), "{key}: {lines}");
    }
    // It ends when it is told to.
    appliance.signal(Signal::SIGTERM);
    until("it ended", async || (!appliance.runs()).then_some(())).await;
}
