//! `slipway simulate`: machines with bad luck arrive all the same, and go again.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Nothing that a run waits for in life is waited for here.
const IMPATIENT: &str = "\
[host]
retry = \"1s\"
boot_deadline = \"20s\"
agent_deadline = \"10s\"
";

/// A boot that is late is waited for, so that none is counted twice.
const PATIENT: &str = "[host]\nretry = \"1s\"\n";

fn simulate(settings: &str, arguments: &[&str]) -> (bool, Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("slipway.toml");
    std::fs::write(&config, settings).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .arg("simulate")
        .arg("--config")
        .arg(&config)
        .args(["-o", "json"])
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let summary = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    (output.status.success(), summary, said)
}

#[test]
fn a_rack_with_bad_luck_arrives_and_goes() {
    let arguments = "--machines 25 --until deleted --deadline 10m --seed 4 --bmc-failures 1% --packet-loss 2%";
    let (succeeded, summary, said) = simulate(IMPATIENT, &arguments.split(' ').collect::<Vec<_>>());
    assert!(succeeded, "{summary:#}\n{said}");
    let goals: Vec<_> = summary["goals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|goal| (goal["goal"].as_str().unwrap(), &goal["arrived"]))
        .collect();
    assert_eq!(goals, [("provisioned", &25.into()), ("deprovisioned", &25.into()), ("deleted", &25.into())]);
    let count = |name: &str| summary["counted"][name].as_u64().unwrap();
    // That there was bad luck at all.
    assert!(count("packetsLost") > 0 && count("bmcFaults") > 0, "{summary:#}");
    // Ramdisk, disk and ramdisk again, each with its addresses and its script.
    assert!(count("boots") >= 75 && count("sessions") >= 50, "{summary:#}");
    assert!(count("bootScripts") + count("mediaBoots") + count("urlBoots") >= 50, "{summary:#}");
    assert!(count("dhcpExchanges") >= 100, "{summary:#}");
    // Every way to the ramdisk was gone; each needs a program, a medium or a URL each time.
    let programs = count("tftpPrograms") + count("httpPrograms");
    assert!(count("tftpPrograms") >= 30 && count("httpPrograms") >= 6, "{summary:#}");
    assert!(count("mediaBoots") >= 6 && count("urlBoots") >= 6, "{summary:#}");
    assert!(programs >= count("bootScripts"), "{summary:#}");
    assert!(count("imagesWritten") >= 25 && count("systemsStarted") >= 25, "{summary:#}");
    // Inspect, wipe, write, config drive, boot entry; then the wipe of the way back.
    assert!(count("steps") >= 150 && count("bytes") > 25 << 20, "{summary:#}");
}

#[test]
fn each_way_is_gone_alone_when_it_is_asked_for_and_a_medium_needs_no_dhcp() {
    const WAYS: [&str; 4] = ["tftpPrograms", "httpPrograms", "mediaBoots", "urlBoots"];
    for (way, counter) in [
        ("uefi-pxe", Some("tftpPrograms")),
        ("bios-pxe", Some("tftpPrograms")),
        ("uefi-http", Some("httpPrograms")),
        ("virtual-media", Some("mediaBoots")),
        ("boot-url", Some("urlBoots")),
        ("ipxe", None),
    ] {
        let arguments = format!("--machines 2 --deadline 5m --download all --boot {way}");
        let (succeeded, summary, said) = simulate(PATIENT, &arguments.split(' ').collect::<Vec<_>>());
        assert!(succeeded, "{way}: {summary:#}\n{said}");
        let count = |name: &str| summary["counted"][name].as_u64().unwrap();
        for other in WAYS {
            assert_eq!(count(other), if counter == Some(other) { 2 } else { 0 }, "{way}: {other}: {summary:#}");
        }
        let scripts = if matches!(way, "virtual-media" | "boot-url") { 0 } else { 2 };
        assert_eq!(count("bootScripts"), scripts, "{way}: {summary:#}");
        assert_eq!(count("dhcpExchanges") == 0, way == "virtual-media", "{way}: {summary:#}");
    }
    let refused = Command::new(env!("CARGO_BIN_EXE_slipway"))
        .args(["simulate", "--bmc", "ipmi", "--boot", "virtual-media"])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--bmc redfish"));
}

#[test]
fn machines_that_lose_power_in_the_middle_or_never_wake_up_get_there() {
    let arguments = "--machines 6 --deadline 10m --seed 2 --power-loss 40% --stuck 20% --delay-step 200ms";
    let (succeeded, summary, said) = simulate(IMPATIENT, &arguments.split(' ').collect::<Vec<_>>());
    assert!(succeeded, "{summary:#}\n{said}");
    let count = |name: &str| summary["counted"][name].as_u64().unwrap();
    assert!(count("powerLosses") > 0 && count("stuck") > 0, "{summary:#}");
    assert!(summary["errors"].as_u64().unwrap() > 0, "{summary:#}");
}

#[test]
fn a_run_that_is_too_short_says_who_is_missing() {
    let arguments = "--machines 2 --deadline 3s --delay-firmware 1h";
    let (succeeded, summary, _) = simulate(IMPATIENT, &arguments.split(' ').collect::<Vec<_>>());
    assert!(!succeeded);
    let missing = summary["missing"].as_array().unwrap();
    assert_eq!(missing.len(), 2, "{summary:#}");
    assert_eq!(missing[0]["host"], "sim-00001");
}

/// The processes that this one started.
fn children(pid: u32) -> Vec<i32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn however_it_is_ended_its_own_appliance_ends_too() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    // Whoever is killed cannot remove a folder.
    for (signal, folder_stays) in [(Signal::SIGTERM, false), (Signal::SIGHUP, false), (Signal::SIGKILL, true)] {
        let folder = tempfile::tempdir().unwrap();
        let mut simulator = Command::new(env!("CARGO_BIN_EXE_slipway"))
            .args(["simulate", "--machines", "1", "--until", "available", "--stay"])
            .env("TMPDIR", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(simulator.stderr.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().contains("machines go on until")), "{signal}: it ended");
        let appliance = match children(simulator.id()).as_slice() {
            [one] => Pid::from_raw(*one),
            other => panic!("{signal}: children {other:?}"),
        };
        kill(Pid::from_raw(simulator.id().try_into().unwrap()), signal).unwrap();
        let status = simulator.wait().unwrap();
        assert!(folder_stays || status.success(), "{signal}: {status}");
        let until = Instant::now() + Duration::from_secs(60);
        // A process that nobody waited for yet is a zombie, which has no files.
        while std::fs::read_link(format!("/proc/{appliance}/exe")).is_ok() {
            assert!(Instant::now() < until, "{signal}: the appliance runs on");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count() > 0, folder_stays, "{signal}");
    }
}
