//! The command line as a person meets it: help, exit codes, errors that say what to do.

use assert_cmd::Command;

fn slipway(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::cargo_bin("slipway").unwrap().args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn help_names_every_command_and_a_first_machine() {
    let (code, out, _) = slipway(&["--help"]);
    assert_eq!(code, 0);
    for word in [
        "serve",
        "kubeconfig",
        "token",
        "check-config",
        "ramdisk",
        "debug",
        "image",
        "apply",
        "get",
        "describe",
        "delete",
        "wait",
        "watch",
        "crds",
        "backup",
        "restore",
        "completion",
        "A first machine",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
}

#[test]
fn who_has_read_enough_gets_no_complaint() {
    for arguments in [&["crds"][..], &["completion", "zsh"]] {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("slipway"));
        let pipe = std::process::Stdio::piped;
        let mut child = command.args(arguments).stdout(pipe()).stderr(pipe()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn wrong_usage_is_two_and_a_failure_is_one() {
    assert_eq!(slipway(&["fly"]).0, 2);
    assert_eq!(slipway(&["explain", "boot", "not-a-mac"]).0, 2);
    let (code, _, error) = slipway(&["check-config", "--config", "/does/not/exist.toml"]);
    assert_eq!(code, 1);
    assert_eq!(error, "slipway: cannot read /does/not/exist.toml: No such file or directory (os error 2)\n");
}

#[test]
fn check_config_takes_the_shipped_file_and_names_every_fault_of_a_bad_one() {
    let (code, out, _) = slipway(&["check-config", "--config", "config/slipway.toml"]);
    assert_eq!((code, out.as_str()), (0, "config/slipway.toml: no fault, 0 network(s)\n"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slipway.toml");
    let network = "[[network]]\nname = 'a'\ninterface = 'eth0'\nsubnet = '10.0.0.0/24'\npool = ['10.9.0.1-10.9.0.2']\n";
    std::fs::write(&file, format!("data_dir = 'here'\n{network}")).unwrap();
    let (code, _, error) = slipway(&["check-config", "--config", file.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(error.contains("data_dir \"here\" must be an absolute path"), "{error}");
    assert!(error.contains("pool address 10.9.0.1 is not a host address of 10.0.0.0/24"), "{error}");
}

#[test]
fn the_agent_does_nothing_as_an_ordinary_process() {
    let (code, _, error) = slipway(&["agent"]);
    assert_eq!(code, 2);
    assert!(!error.is_empty());
}

#[test]
fn explaining_without_an_appliance_asks_whether_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slipway.toml");
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::fs::write(&file, format!("[boot]\nlisten = '127.0.0.1:{port}'\n")).unwrap();
    // `explain` is what it was called before.
    for verb in ["debug", "explain"] {
        let (code, _, error) = slipway(&[verb, "boot", "--config", file.to_str().unwrap(), "52:54:00:12:34:56"]);
        assert_eq!(code, 1);
        assert!(error.contains("is slipway running"), "{error}");
    }
}
