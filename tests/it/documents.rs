//! The pages against the program and each other: each configuration that they show is accepted, each object passes the admission
//! of an appliance, each key exists, each link leads somewhere. Command lines are held in `src/cli/documents.rs`.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::PostParams;
use serde_json::Value;

use crate::pages::{self, Block, Page};
use crate::process::Appliance;

/// Somebody's own in a page, and what stands for it here.
const OWN: [(&str, &str); 1] = [("age1…", "age1pe9sxm5vytdtx9juypunzssmhjft44wp0upjyahnw3rp7dj9fcxqz88vyj")];
/// A network, for blocks that go on below one.
const NETWORK: &str = "[[network]]\nname = \"n\"\ninterface = \"eth1\"\nsubnet = \"172.22.0.0/24\"\npool = []\n";

fn blocks(languages: &[&str]) -> Vec<Block> {
    let pages = pages::all();
    let all = pages.iter().flat_map(Page::blocks);
    all.filter(|block| languages.contains(&block.language.as_str())).cloned().collect()
}

fn slipway(arguments: &[&str], config: &Path) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command.args(arguments).arg("--config").arg(config).env_remove("SLIPWAY_LOG").output().unwrap()
}

#[test]
fn every_configuration_of_a_page_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let (config, quirks) = (folder.path().join("slipway.toml"), folder.path().join("quirks.toml"));
    let all = blocks(&["toml"]);
    assert!(all.len() > 6, "{all:?}");
    for Block { place, text, .. } in all {
        let mut text = OWN.iter().fold(text, |text, (own, real)| text.replace(own, real));
        let arguments: &[&str] = if text.contains("[[profile]]") {
            std::fs::write(&quirks, &text).unwrap();
            text = format!("data_dir = {:?}\n[bmc]\nquirks = {quirks:?}\n", folder.path());
            &["check-config"]
        } else {
            if text.trim_start().starts_with("[[network.") {
                text.insert_str(0, NETWORK);
            }
            &["check-config", "--offline"]
        };
        std::fs::write(&config, text).unwrap();
        let output = slipway(arguments, &config);
        assert!(output.status.success(), "{place}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The objects of a block, as JSON. A block that shows only a part of a spec is one of a host.
fn objects(block: &Block) -> Vec<Value> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&block.text).unwrap_or_else(|error| panic!("{}: {error}", block.place));
    let complete = |document: Value| {
        if document.get("apiVersion").is_some() {
            return Some(document);
        }
        let mut spec = document.get("spec")?.clone();
        spec["online"] = true.into();
        let metadata = serde_json::json!({"name": "web-1"});
        Some(
            serde_json::json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": metadata, "spec": spec}),
        )
    };
    documents.into_iter().filter_map(complete).collect()
}

#[tokio::test]
async fn every_object_of_a_page_passes_admission() {
    let appliance = Appliance::new().await;
    let client = appliance.client().await;
    let namespaces: Api<Namespace> = Api::all(client);
    let file = appliance.folder().join("object.json");
    let mut made = BTreeSet::from(["default".to_owned()]);
    let mut tried = 0;
    for block in blocks(&["yaml"]) {
        for object in objects(&block) {
            if let Some(name) = object.pointer("/metadata/namespace").and_then(Value::as_str)
                && made.insert(name.to_owned())
            {
                let namespace: Namespace =
                    serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap();
                namespaces.create(&PostParams::default(), &namespace).await.unwrap();
            }
            std::fs::write(&file, object.to_string()).unwrap();
            let output = appliance.slipway(&["apply", "--dry-run", "-f", file.to_str().unwrap()]).await;
            assert!(output.status.success(), "{}: {}", block.place, String::from_utf8_lossy(&output.stderr));
            tried += 1;
        }
    }
    assert!(tried > 8, "only {tried} were found");
}

#[test]
fn every_link_leads_to_a_page_and_a_heading() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = pages::all();
    let mut faults = Vec::new();
    let mut tried = 0;
    for page in &pages {
        for (place, target) in page.links().into_iter().filter(|(_, target)| !target.contains("://")) {
            tried += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { page.path.clone() } else { plain(&page.path.parent().unwrap().join(file)) };
            if !top.join(&path).exists() {
                faults.push(format!("{place}: {target}: there is no {}", path.display()));
            } else if !anchor.is_empty()
                && !pages.iter().any(|page| page.path == path && page.anchors().contains(anchor))
            {
                faults.push(format!("{place}: {target}: no such heading"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(tried > 100, "only {tried} were found");
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    plain
}

/// The keys of the configuration, each behind its section and a point, as the shipped file names them.
fn keys() -> BTreeSet<String> {
    let mut section = String::new();
    let mut keys = BTreeSet::new();
    for line in include_str!("../../config/slipway.toml").lines() {
        let line = line.trim_start_matches(['#', ' ']);
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            section = name.trim_matches('[').to_owned();
            keys.insert(section.clone());
        } else if let Some((key, _)) = line.split_once('=') {
            keys.insert(format!("{section}.{}", key.trim()));
        }
    }
    keys
}

#[test]
fn every_key_of_the_configuration_that_a_page_names_exists() {
    // Fields of a host that are written without their `spec`, names of files, and keys of other files.
    const OTHERS: [&str; 6] = ["bmc.address", "image.url", "audit.log", "backup.key", "profile", "lints"];
    let keys = keys();
    let sections: BTreeSet<&str> =
        keys.iter().filter_map(|key| key.rsplit_once('.')).map(|(section, _)| section).collect();
    let is_key = |text: &str| {
        !text.is_empty() && text.chars().all(|letter| letter.is_ascii_lowercase() || "_.".contains(letter))
    };
    let mut faults = Vec::new();
    let mut tried = 0;
    for (place, code) in pages::all().iter().flat_map(Page::code) {
        let name = code.split(" = ").next().unwrap();
        let key = match name.trim_start_matches('[').split_once(']') {
            Some((section, rest)) if name.starts_with('[') => {
                let rest = rest.trim_start_matches(']').trim();
                if rest.is_empty() { section.to_owned() } else { format!("{section}.{rest}") }
            }
            _ => match name.rsplit_once('.') {
                Some((section, _)) if !section.is_empty() && sections.contains(section) => name.to_owned(),
                _ => continue,
            },
        };
        if !is_key(&key) || OTHERS.contains(&key.as_str()) {
            continue;
        }
        tried += 1;
        if !keys.contains(&key) {
            faults.push(format!("{place}: {code}"));
        }
    }
    assert!(faults.is_empty(), "no such key:\n{}", faults.join("\n"));
    assert!(tried > 60, "only {tried} were found");
}
