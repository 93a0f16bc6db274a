//! The command line as a person meets it: help, exit codes, errors that say what to do.

use assert_cmd::Command;

use crate::needs;

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
        "edit",
        "patch",
        "get",
        "describe",
        "delete",
        "wait",
        "watch",
        "crds",
        "backup",
        "restore",
        "completion",
        "man",
        "version",
        "help",
        "A first machine",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
}

#[test]
fn help_and_version_are_words_too() {
    let (code, out, _) = slipway(&["help", "get"]);
    assert!(code == 0 && out.contains("slipway get hosts -A -o wide"), "{out}");
    let (code, out, _) = slipway(&["host", "help", "power"]);
    assert!(code == 0 && out.contains("--max-parallel"), "{out}");
    assert_eq!(slipway(&["help", "gte"]).0, 2);
    let (code, out, _) = slipway(&["version"]);
    assert_eq!((code, out), (0, slipway(&["--version"]).1));
    let (_, out, _) = slipway(&["version", "-o", "json"]);
    let version: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

/// Headings of options that several commands share do not swallow the options of one.
#[test]
fn options_stand_below_their_own_headings() {
    for arguments in [&["host", "power", "--help"][..], &["host", "deploy", "--help"], &["get", "--help"]] {
        let (_, out, _) = slipway(arguments);
        let (own, server) = out.split_once("\nServer:\n").expect("it talks to a server");
        assert!(own.contains("--output"), "{out}");
        let server = server.split("\nExamples:").next().unwrap();
        let listed: Vec<&str> = server.lines().filter_map(|line| line.trim_start().strip_prefix("--")).collect();
        let of_servers =
            listed.iter().all(|option| ["kubeconfig", "context", "config"].iter().any(|of| option.starts_with(of)));
        assert!(of_servers, "{listed:?}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let (code, _, error) = slipway(&["man", "--out", pages.to_str().unwrap()]);
    assert_eq!(code, 0, "{error}");
    for (page, words) in [
        ("slipway.1", "slipway\\-get(1)"),
        ("slipway-get.1", "all\\-namespaces"),
        ("slipway-host-power.1", "max\\-parallel"),
        ("slipway-token-create.1", "CLUSTERROLE"),
    ] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.starts_with(".ie") && text.contains(".TH ") && text.contains(words), "{page}: {text}");
    }
    assert!(!pages.join("slipway-agent.1").exists() && !pages.join("slipway-help.1").exists());
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
    assert_eq!(
        error,
        "slipway: cannot read /does/not/exist.toml: No such file or directory (os error 2); --config FILE names another\n"
    );
}

/// Before anybody is asked: there is no server here.
#[test]
fn a_verb_without_a_host_is_wrong_usage() {
    let verbs = [
        &["power", "on"][..],
        &["reboot"],
        &["inspect"],
        &["deploy", "--image", "http://x/i"],
        &["release"],
        &["detach"],
        &["attach"],
        &["pause"],
        &["unpause"],
        &["label", "a=b"],
        &["delete"],
        &["accept"],
        &["move", "--to-kubeconfig", "/nowhere/other"],
        &["log"],
        &["resume"],
    ];
    for verb in verbs {
        let arguments: Vec<&str> =
            ["host"].iter().chain(verb).chain(&["--kubeconfig", "/nowhere/config"]).copied().collect();
        let (code, _, error) = slipway(&arguments);
        assert_eq!(code, 2, "{verb:?}: {error}");
        assert!(
            ["name hosts", "name the hosts", "<HOST>"].iter().any(|said| error.contains(said)),
            "{verb:?}: {error}"
        );
    }
    for selection in [&["-l", ""][..], &["web-1", "-l", "a=b"], &["web-1", "--all"]] {
        let arguments: Vec<&str> =
            ["host", "pause", "--kubeconfig", "/nowhere/config"].iter().chain(selection).copied().collect();
        assert_eq!(slipway(&arguments).0, 2, "{selection:?}");
    }
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

#[test]
fn debug_says_that_it_is_for_the_appliances_own_box() {
    for of in ["boot", "dhcp"] {
        let (code, _, err) = slipway(&["debug", of, "52:54:00:12:34:56", "--config", "/nonexistent/slipway.toml"]);
        assert_eq!(code, 1, "{err}");
        assert!(err.contains("run it on the appliance") && err.contains("slipway describe host NAME"), "{err}");
    }
}

#[test]
fn version_is_for_people_and_for_programs() {
    let (code, out, _) = slipway(&["version"]);
    assert!(code == 0 && out.starts_with(concat!("slipway ", env!("CARGO_PKG_VERSION"), "\n")), "{out}");
    let (_, out, _) = slipway(&["version", "-o", "json"]);
    let all: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(all["version"], env!("CARGO_PKG_VERSION"));
}

/// The ramdisk's `/init` is this program, too: as the first process of a container it does what it is told all the same.
#[test]
fn the_first_process_of_a_container_does_what_it_is_told() {
    if !needs::root() {
        return;
    }
    let program = assert_cmd::cargo::cargo_bin("slipway");
    let output = std::process::Command::new("timeout")
        .args(["--signal=KILL", "30", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"])
        .arg(program)
        .arg("version")
        .output()
        .expect("unshare runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.starts_with("slipway "), "{output:?}");
}
