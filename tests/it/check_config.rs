//! `slipway check-config` and the start of `slipway serve`: what one of them refuses, the other does.

use std::path::Path;
use std::process::Output;

use crate::needs;
use crate::process::free_port;

fn slipway(arguments: &[&str], config: &Path) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_slipway"));
    command.args(arguments).arg("--config").arg(config).env_remove("SLIPWAY_LOG").output().unwrap()
}

/// The faults that a command names, one a line.
fn faults(output: &Output) -> Vec<String> {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said.lines().filter_map(|line| line.strip_prefix("  - ").map(str::to_owned)).collect()
}

/// A file with a fault of each kind, and what is said of each; true: it holds wherever one looks.
fn faulty(folder: &Path) -> Vec<(&'static str, bool)> {
    let port = free_port();
    let text = format!(
        "data_dir = {data:?}\n[api]\nlisten = \"127.0.0.1:{port}\"\nnames = [\"not a name\"]\n\
         [boot]\nlisten = \"0.0.0.0:{port}\"\ntftp = \"127.0.0.1:{port}\"\nkernel_args = \"console=tty0 ${{evil}}\"\n\
         [engine]\nkubeconfig = \"/nowhere/kubeconfig\"\n[image]\nca_file = \"/nowhere/ca.pem\"\n\
         [bmc]\nquirks = \"/nowhere/quirks.toml\"\n[log]\nlevel = \"chatty\"\n\
         [[network]]\nname = \"a\"\ninterface = \"nosuch0\"\nsubnet = \"10.9.0.0/24\"\n\
         pool = [\"10.9.0.10-10.9.0.20\", \"10.9.0.20-10.9.0.30\"]\n\
         [[network]]\nname = \"b\"\ninterface = \"lo\"\nsubnet = \"192.0.2.0/24\"\n",
        data = folder.join("data"),
    );
    std::fs::write(folder.join("slipway.toml"), text).unwrap();
    vec![
        ("api.names: \"not a name\"", true),
        ("are the same TCP port", true),
        ("boot.kernel_args: the character '$'", true),
        ("log.level: \"chatty\"", true),
        ("network \"a\": the pools", true),
        ("engine.kubeconfig /nowhere/kubeconfig", false),
        ("image.ca_file /nowhere/ca.pem", false),
        ("bmc.quirks /nowhere/quirks.toml", false),
        ("network \"a\": there is no interface \"nosuch0\"", false),
        ("network \"b\": interface \"lo\" has no address in 192.0.2.0/24", false),
    ]
}

#[test]
fn every_fault_is_named_at_once_by_the_check_and_by_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = faulty(folder.path());
    let file = folder.path().join("slipway.toml");
    let checked = faults(&slipway(&["check-config"], &file));
    for (fault, _) in &wanted {
        assert_eq!(checked.iter().filter(|line| line.contains(fault)).count(), 1, "{fault}: {checked:#?}");
    }
    assert_eq!(checked.len(), wanted.len(), "{checked:#?}");
    assert_eq!(faults(&slipway(&["serve"], &file)), checked);
    assert!(!folder.path().join("data").exists(), "nothing was begun");
    let elsewhere = faults(&slipway(&["check-config", "--offline"], &file));
    for (fault, anywhere) in &wanted {
        assert_eq!(elsewhere.iter().any(|line| line.contains(fault)), *anywhere, "{fault}: {elsewhere:#?}");
    }
}

#[test]
fn a_backup_that_cannot_be_made_is_a_fault_that_keeps_no_machine_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slipway.toml");
    let text = "[backup]\nfolder = \"/nowhere\"\npassphrase_file = \"/nowhere/passphrase\"\n";
    std::fs::write(&file, format!("{text}[engine]\nkubeconfig = \"/nowhere/kubeconfig\"\n")).unwrap();
    let checked = faults(&slipway(&["check-config"], &file));
    assert!(checked.iter().any(|line| line.starts_with("backup.passphrase_file")), "{checked:?}");
    let started = faults(&slipway(&["serve"], &file));
    assert!(started.iter().all(|line| !line.starts_with("backup.")) && started.len() == 1, "{started:?}");
}

#[test]
fn a_level_of_the_environment_with_a_slip_does_not_switch_the_log_off() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slipway.toml");
    std::fs::write(&file, format!("data_dir = {:?}\n", folder.path().join("data"))).unwrap();
    let mut serve = std::process::Command::new(env!("CARGO_BIN_EXE_slipway"));
    let output = serve.args(["serve", "--config"]).arg(&file).env("SLIPWAY_LOG", "chatty").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("SLIPWAY_LOG in the environment: \"chatty\" is neither a level"), "{said}");
}

#[test]
fn root_looks_at_files_as_the_service_would() {
    use std::os::unix::fs::{PermissionsExt, chown};
    if !needs::root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(at("data")).unwrap();
    std::fs::write(at("quirks.toml"), "").unwrap();
    std::fs::set_permissions(at("quirks.toml"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let text = format!("data_dir = {:?}\n[bmc]\nquirks = {:?}\n", at("data"), at("quirks.toml"));
    std::fs::write(at("slipway.toml"), text).unwrap();
    let output = slipway(&["check-config"], &at("slipway.toml"));
    assert!(output.status.success(), "root's own: {}", String::from_utf8_lossy(&output.stderr));
    chown(at("data"), Some(65534), Some(65534)).unwrap();
    let refused = faults(&slipway(&["check-config"], &at("slipway.toml")));
    assert!(refused.len() == 1 && refused[0].contains("Permission denied"), "{refused:?}");
}

#[test]
fn only_a_regular_file_of_some_size_is_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, long) = (folder.path().join("pipe"), folder.path().join("long"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::write(&long, "#".repeat((1 << 20) + 1)).unwrap();
    for (file, wanted) in [
        (pipe.as_path(), "not a regular file"),
        (Path::new("/dev/zero"), "not a regular file"),
        (long.as_path(), "longer than 1 MiB"),
    ] {
        for command in ["check-config", "serve"] {
            let output = slipway(&[command], file);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(1) && said.contains(wanted), "{command} {}: {said}", file.display());
        }
    }
}
