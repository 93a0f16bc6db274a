//! The releases in `config/releases`: written from the scripts of their steps and this table, with the checksums of their channel.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use kube::ResourceExt;
use sha2::{Digest, Sha256};

use super::channel::{ChannelIndex, INDEX};
use super::join::{available_upgrades, distribution, supported};
use crate::api::definitions::held_text;
use crate::api::kaas::{ClusterRelease, KaaSRelease};
use crate::api::lcm::Phase;
use crate::hex::hex;
use crate::needs;

/// The channel's folder in this repository.
const CHANNEL: &str = "config/releases";
/// Kubernetes of each release, the oldest first, with the pause container of its kubeadm.
const VERSIONS: [(&str, &str); 2] = [("1.34.3", "3.10.1"), ("1.34.4", "3.10.1")];
/// Version of the KaaSRelease.
const KAAS: &str = "1.0.0";
const PREPARE: &str = include_str!("../../../config/releases/steps/prepare.sh");
const DEPLOY: &str = include_str!("../../../config/releases/steps/deploy.sh");
const LABELS: &str = include_str!("../../../config/releases/steps/labels.sh");

const HEAD: &str =
    "# Written from config/releases/steps by a test (SLIPWAY_WRITE_SCHEMAS=1 cargo test --lib the_written).\n";

fn dashed(version: &str) -> String {
    version.replace(['.', '+'], "-")
}

fn step(text: &mut String, name: &str, phase: &str, version: &str, params: &[(&str, &str)], script: &str) {
    _ = write!(
        text,
        "      - name: {name}\n        runner: bash\n        version: {version}\n        phase: {phase}\n        params:\n"
    );
    for (name, value) in params {
        _ = writeln!(text, "          {name}: \"{value}\"");
    }
    text.push_str("          script: |\n");
    for line in script.lines() {
        let indent = if line.is_empty() { "" } else { "            " };
        _ = writeln!(text, "{indent}{line}");
    }
}

fn cluster_release(version: &str, pause: &str) -> String {
    let name = dashed(version);
    let mut text = format!(
        "{HEAD}apiVersion: kaas.mirantis.com/v1alpha1
kind: ClusterRelease
metadata:
  name: kubernetes-{name}
spec:
  version: {version}
  lcmType: kubeadm
  description: |
    kubernetes: {version}
    pause: {pause}
  releaseNotes:
    - version: {version}
      notes:
        - text: Kubernetes {version} by kubeadm, with containerd from the packages of the appliance
  allowedDistributions:
    - id: debian/12
      version: \"12\"
      description: Debian 12 (bookworm)
      default: true
      image:
        url: slipway://debian-12
  allowedNodeLabels:
    - key: node.kubernetes.io/exclude-from-external-load-balancers
      value: \"true\"
      displayName: Behind no load balancer
    - key: example.org/role
      displayName: What it is for
  machineTypes:
"
    );
    let packages = format!("node-packages-{version}");
    let pause = format!("registry.k8s.io/pause:{pause}");
    for kind in ["control", "worker"] {
        _ = writeln!(text, "    {kind}:");
        let params =
            [("kubernetes", version), ("packages", packages.as_str()), ("pause", pause.as_str()), ("mirror", "true")];
        step(&mut text, "packages", "prepare", version, &[&params[..], &[("timeout", "30m")]].concat(), PREPARE);
        let params = [("kubernetes", version), ("virtualIP", "true"), ("conntrackMaxPerCore", "0"), ("timeout", "30m")];
        step(&mut text, "kubernetes", "deploy", version, &params, DEPLOY);
        step(&mut text, "labels", "reconfigure", "1", &[("timeout", "5m"), ("nodeLabels", "")], LABELS);
    }
    text
}

fn kaas_release() -> String {
    let mut text = format!(
        "{HEAD}apiVersion: kaas.mirantis.com/v1alpha1
kind: KaaSRelease
metadata:
  name: slipway-{}
spec:
  version: {KAAS}
  supportedClusterReleases:
",
        dashed(KAAS)
    );
    for (at, (version, _)) in VERSIONS.iter().enumerate() {
        let providers = "providers: {supported: [baremetal]}";
        _ = writeln!(text, "    - name: kubernetes-{}\n      version: {version}\n      {providers}", dashed(version));
        let later = &VERSIONS[at + 1..];
        if !later.is_empty() {
            text.push_str("      availableUpgrades:\n");
        }
        for (to, _) in later {
            _ = writeln!(text, "        - {{version: {to}, rebootRequired: false}}");
        }
    }
    text
}

/// The files of the channel by their paths, without the index.
fn files() -> Vec<(&'static str, String, String, String)> {
    let cluster = VERSIONS.iter().map(|(version, pause)| {
        let path = format!("releases/cluster/{version}.yaml");
        ("clusterReleases", (*version).to_owned(), path, cluster_release(version, pause))
    });
    let kaas = ("kaasReleases", KAAS.to_owned(), format!("releases/kaas/{KAAS}.yaml"), kaas_release());
    cluster.chain([kaas]).collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(CHANNEL)
}

#[test]
fn the_written_channel_is_that_of_its_steps() {
    let mut index = "apiVersion: kaas.mirantis.com/v1alpha1\nkind: Index\n".to_owned();
    for list in ["kaasReleases", "clusterReleases"] {
        _ = writeln!(index, "{list}:");
        for (_, version, path, text) in files().iter().filter(|(of, ..)| *of == list) {
            let sum = hex(&Sha256::digest(text.as_bytes()));
            _ = writeln!(index, "  - version: {version}\n    path: {path}\n    sha256: {sum}");
        }
    }
    for (_, _, path, text) in files() {
        let path = format!("{CHANNEL}/{path}");
        std::fs::create_dir_all(folder().join(&path).parent().unwrap()).unwrap();
        held_text(&path, &text);
    }
    held_text(&format!("{CHANNEL}/{INDEX}"), &index);
}

#[test]
fn the_written_releases_are_ones_that_the_appliance_takes() {
    let read = |path: &str| std::fs::read(folder().join(path)).unwrap();
    let index = ChannelIndex::parse(&read(INDEX)).unwrap();
    let mut releases: Vec<ClusterRelease> = Vec::new();
    for entry in &index.cluster_releases {
        entry.check(&read(&entry.path)).unwrap();
        releases.push(entry.cluster_release(&read(&entry.path)).unwrap());
    }
    let entry = &index.kaas_releases[0];
    entry.check(&read(&entry.path)).unwrap();
    let kaas: KaaSRelease = entry.kaas_release(&read(&entry.path)).unwrap();
    assert!(releases.iter().all(|release| supported(&kaas, &release.name_any(), "baremetal")));
    let next = available_upgrades(&kaas, &releases[0].name_any());
    assert_eq!(next.iter().map(|to| to.name.as_str()).collect::<Vec<_>>(), [releases[1].name_any()]);
    for release in &releases {
        assert_eq!(distribution(release, None).unwrap().id, "debian/12");
        for steps in release.spec.machine_types.values() {
            let phases: Vec<Phase> = steps.iter().map(|step| step.phase).collect();
            assert_eq!(phases, [Phase::Prepare, Phase::Deploy, Phase::Reconfigure]);
            // As it was written: the text of YAML is the text of the script.
            assert_eq!(steps[1].params["script"], DEPLOY);
        }
    }
    // Another version has every step of these phases done again.
    let hash = |release: &ClusterRelease, at: usize| release.spec.machine_types["worker"][at].hash();
    assert_ne!(hash(&releases[0], 1), hash(&releases[1], 1));
    assert_eq!(hash(&releases[0], 2), hash(&releases[1], 2), "labels are as before");
}

#[test]
fn the_scripts_of_steps_have_no_fault_that_a_machine_finds() {
    for name in ["prepare", "deploy", "labels"] {
        let file = folder().join("steps").join(format!("{name}.sh"));
        let read = Command::new("bash").arg("-n").arg(&file).output().unwrap();
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        match Command::new("shellcheck").arg(&file).output() {
            Ok(found) => assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout)),
            Err(_) => needs::kernel_lacks("shellcheck is not installed"),
        }
    }
}
