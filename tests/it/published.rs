//! What an appliance publishes, through the clients that nodes and their administrators have: containerd, skopeo, and HTTP.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use slipway::api::slipway::{Image, ImagePhase, ImageStatus};
use tokio::process::{Child, Command};

use crate::needs;
use crate::process::{Appliance, until};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn hex(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tar_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, &**content).unwrap();
    }
    tar.into_inner().unwrap()
}

/// An OCI image layout that is being written.
#[derive(Default)]
pub struct Layout {
    files: Vec<(String, Vec<u8>)>,
    roots: Vec<Value>,
}

impl Layout {
    fn blob(&mut self, kind: &str, content: &[u8]) -> Value {
        self.files.push((format!("blobs/sha256/{}", hex(content)), content.to_vec()));
        json!({ "mediaType": kind, "digest": format!("sha256:{}", hex(content)), "size": content.len() })
    }

    /// An image of one layer with this file, for an architecture.
    fn image(&mut self, architecture: &str, file: &[u8]) -> Value {
        let layer = tar_of(&[("content".to_owned(), file.to_vec())]);
        let config = json!({
            "architecture": architecture, "os": "linux", "config": {},
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(&layer))] },
        });
        let config = self.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
        let layer = self.blob("application/vnd.oci.image.layer.v1.tar", &layer);
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer] });
        let mut named = self.blob(MANIFEST, manifest.to_string().as_bytes());
        named["platform"] = json!({ "architecture": architecture, "os": "linux" });
        named
    }

    /// An index of two platforms under a name; its digest.
    pub fn index(&mut self, name: &str, file: &[u8]) -> String {
        let children = [self.image("amd64", file), self.image("arm64", b"for another machine")];
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": children });
        let mut root = self.blob(INDEX, index.to_string().as_bytes());
        root["annotations"] = json!({ "io.containerd.image.name": name });
        self.roots.push(root.clone());
        root["digest"].as_str().unwrap().to_owned()
    }

    pub fn write(mut self, path: &Path) {
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": self.roots }).to_string();
        self.files.push(("index.json".to_owned(), index.into_bytes()));
        self.files.push(("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));
        std::fs::write(path, tar_of(&self.files)).unwrap();
    }
}

struct Rig {
    appliance: Appliance,
    images: Api<Image>,
    kubeconfig: String,
    http: reqwest::Client,
}

impl Rig {
    async fn new() -> Self {
        let appliance = Appliance::new().await;
        let images = Api::all(appliance.client().await);
        let file = appliance.folder().join("kubeconfig");
        std::fs::write(&file, appliance.kubeconfig().await).unwrap();
        let kubeconfig = file.to_str().unwrap().to_owned();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { appliance, images, kubeconfig, http }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.appliance.folder().join(name)
    }

    /// `slipway image import`; what it says.
    async fn import(&self, name: &str, source: &Path, more: &[&str]) -> String {
        let arguments = ["image", "import", name, source.to_str().unwrap(), "--kubeconfig", &self.kubeconfig];
        let done = self.appliance.slipway(&[&arguments, more].concat()).await;
        assert!(done.status.success(), "{}\n{}", String::from_utf8_lossy(&done.stderr), self.appliance.log());
        String::from_utf8(done.stdout).unwrap()
    }

    async fn until(&self, name: &str, what: &str, good: impl Fn(&ImageStatus) -> bool) -> ImageStatus {
        until(what, async || self.images.get(name).await.ok()?.status.filter(|status| good(status))).await
    }

    async fn until_published(&self, name: &str) -> ImageStatus {
        self.until(name, "it is published", |status| status.published_since.is_some()).await
    }

    async fn publish(&self, name: &str, publish: bool) {
        let patch = Patch::Merge(json!({ "spec": { "publish": publish } }));
        self.images.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.appliance.boot)
    }

    /// Status and body; 0 while nobody listens.
    async fn get(&self, path: &str) -> (u16, Vec<u8>) {
        let answer = match self.http.get(self.url(path)).send().await {
            Err(error) if error.is_connect() => return (0, Vec::new()),
            answer => answer.unwrap(),
        };
        (answer.status().as_u16(), answer.bytes().await.unwrap().to_vec())
    }
}

async fn run(program: &str, arguments: &[&str]) -> Vec<u8> {
    let done = Command::new(program).args(arguments).output().await.unwrap();
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// A containerd with nothing but what a pull needs, in a folder. It ends with this.
struct Containerd {
    folder: PathBuf,
    _process: Child,
}

impl Containerd {
    async fn start(folder: PathBuf, mirror: &str) -> Self {
        let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let off = ["grpc.v1.cri", "internal.v1.opt"].map(|plugin| format!("io.containerd.{plugin}"));
        let snapshotters = ["btrfs", "devmapper", "zfs", "aufs", "overlayfs"];
        let off = off.into_iter().chain(snapshotters.map(|plugin| format!("io.containerd.snapshotter.v1.{plugin}")));
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = {:?}\n[grpc]\naddress = {:?}\n",
            at("root"),
            at("state"),
            off.collect::<Vec<_>>(),
            at("socket")
        );
        std::fs::create_dir_all(folder.join("hosts/registry.k8s.io")).unwrap();
        std::fs::write(folder.join("config.toml"), config).unwrap();
        // As a node is told to ask the appliance in place of a registry.
        let hosts = format!("server = \"{mirror}\"\n[host.\"{mirror}\"]\ncapabilities = [\"pull\", \"resolve\"]\n");
        std::fs::write(folder.join("hosts/registry.k8s.io/hosts.toml"), hosts).unwrap();
        let mut command = Command::new("containerd");
        command.args(["--config", &at("config.toml")]).kill_on_drop(true);
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let made = Self { folder, _process: process };
        until("containerd answers", async || {
            let asked = made.command(&["version"]).output().await.unwrap();
            asked.status.success().then_some(())
        })
        .await;
        made
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.folder.join("socket")).args(arguments);
        command
    }

    async fn ctr(&self, arguments: &[&str]) -> Vec<u8> {
        let done = self.command(arguments).output().await.unwrap();
        let log = || std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        assert!(done.status.success(), "ctr {arguments:?}: {}\n{}", String::from_utf8_lossy(&done.stderr), log());
        done.stdout
    }
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    rand::fill(&mut noise[..]);
    noise
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_and_skopeo_pull_what_was_imported() {
    if !needs::root() || !needs::program("containerd") || !needs::program("ctr") || !needs::program("skopeo") {
        return;
    }
    let rig = Rig::new().await;
    let (content, archive) = (noise(5 << 20), rig.path("images.tar"));
    let mut layout = Layout::default();
    let pause = layout.index("registry.k8s.io/pause:3.10", &content);
    layout.index("registry.k8s.io/coredns/coredns:v1", b"small");
    layout.write(&archive);
    let said = rig.import("k8s", &archive, &["--format", "oci", "--publish"]).await;
    assert!(said.contains("2 container images") && said.contains("nodes pull them"), "{said}");
    let status = rig.until_published("k8s").await;
    let names: Vec<_> = status.contents.iter().map(|content| content.name.as_str()).collect();
    assert_eq!((names, status.content_count), (vec!["coredns/coredns:v1", "pause:3.10"], Some(2)));
    assert!(status.contents[1].digest == pause && status.contents[1].size > 5 << 20, "{:?}", status.contents);

    let containerd = Containerd::start(rig.path("containerd"), &rig.url("")).await;
    let hosts = containerd.folder.join("hosts");
    let image = "registry.k8s.io/pause:3.10";
    let pull = ["images", "pull", "--hosts-dir", hosts.to_str().unwrap(), "--snapshotter", "native", "--all-platforms"];
    containerd.ctr(&[&pull[..], &[image]].concat()).await;
    let listed = String::from_utf8(containerd.ctr(&["images", "list"]).await).unwrap();
    assert!(
        listed.lines().any(|line| line.starts_with(image) && line.contains(&pause) && line.contains("linux/arm64")),
        "{listed}"
    );
    let index: Value = serde_json::from_slice(&containerd.ctr(&["content", "get", &pause]).await).unwrap();
    let manifest = index["manifests"][0]["digest"].as_str().unwrap();
    let manifest: Value = serde_json::from_slice(&containerd.ctr(&["content", "get", manifest]).await).unwrap();
    let layer = containerd.ctr(&["content", "get", manifest["layers"][0]["digest"].as_str().unwrap()]).await;
    assert!(layer == tar_of(&[("content".to_owned(), content.clone())]), "the layer is another one");
    // By its digest, as who pins an image asks.
    containerd.ctr(&[&pull[..], &[&format!("registry.k8s.io/pause@{pause}")]].concat()).await;

    let out = rig.path("out");
    let source = format!("docker://{}/pause:3.10", rig.appliance.boot);
    // Into a folder, for which it packs nothing anew.
    let target = format!("dir:{}", out.display());
    run("skopeo", &["copy", "--insecure-policy", "--all", "--src-tls-verify=false", &source, &target]).await;
    let copied = |name: &str| std::fs::read(out.join(name)).unwrap();
    assert_eq!(hex(&copied("manifest.json")), pause[7..]);
    assert!(copied(&hex(&layer)) == layer);
    let tags = run("skopeo", &["list-tags", "--tls-verify=false", source.trim_end_matches(":3.10")]).await;
    assert_eq!(serde_json::from_slice::<Value>(&tags).unwrap()["Tags"], json!(["3.10"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn skopeo_pulls_what_an_old_docker_saved() {
    if !needs::program("skopeo") {
        return;
    }
    let rig = Rig::new().await;
    let layer = tar_of(&[("content".to_owned(), b"old".to_vec())]);
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(&layer))] },
    });
    let saved = json!([{ "Config": "c.json", "RepoTags": ["busybox:1"], "Layers": ["1/layer.tar"] }]);
    let file = |name: &str, content: Vec<u8>| (name.to_owned(), content);
    let archive = rig.path("saved.tar");
    let files = [
        file("1/layer.tar", layer.clone()),
        file("c.json", config.to_string().into_bytes()),
        file("manifest.json", saved.to_string().into_bytes()),
    ];
    std::fs::write(&archive, zstd::encode_all(&tar_of(&files)[..], 3).unwrap()).unwrap();
    rig.import("busybox", &archive, &["--format", "oci", "--publish"]).await;
    rig.until_published("busybox").await;
    let out = rig.path("out");
    let source = format!("docker://{}/library/busybox:1", rig.appliance.boot);
    let target = format!("dir:{}", out.display());
    run("skopeo", &["copy", "--insecure-policy", "--src-tls-verify=false", &source, &target]).await;
    assert!(std::fs::read(out.join(hex(&layer))).unwrap() == layer);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_asked_for_is_served_and_who_came_first_keeps_a_name() {
    let mut rig = Rig::new().await;
    let archive = |file: &str, content: &[u8]| {
        let path = rig.path(file);
        let mut layout = Layout::default();
        let digest = layout.index("registry.k8s.io/etcd:3.6", content);
        layout.write(&path);
        (path, digest)
    };
    let ((first, first_digest), (second, second_digest)) =
        (archive("first.tar", b"first"), archive("second.tar", b"second"));
    let manifest = |reference: &str| format!("/v2/etcd/manifests/{reference}");
    rig.import("b", &first, &["--format", "oci"]).await;
    assert_eq!(rig.get(&manifest("3.6")).await.0, 404);
    assert_eq!(rig.get(&manifest(&first_digest)).await.0, 404);
    rig.publish("b", true).await;
    let since = rig.until_published("b").await.published_since;
    assert_eq!(hex(&rig.get(&manifest("3.6")).await.1), first_digest[7..]);

    // An Image that sorts before it, and says the same name.
    let said = rig.import("a", &second, &["--format", "oci", "--publish"]).await;
    assert!(said.contains("image a is ready"), "{said}");
    let told = rig.until("a", "the other one is told", |status| status.message.is_some()).await;
    assert!(told.message.as_ref().is_some_and(|message| message.contains("image b publishes etcd:3.6")), "{told:?}");
    assert_eq!((told.phase, told.published_since), (ImagePhase::Ready, None));
    rig.appliance.restart(true).await;
    until("it serves again", async || (rig.get(&manifest("3.6")).await.0 == 200).then_some(())).await;
    assert_eq!(hex(&rig.get(&manifest("3.6")).await.1), first_digest[7..]);
    assert_eq!(rig.get(&manifest(&second_digest)).await.0, 404);
    assert_eq!(rig.images.get("b").await.unwrap().status.unwrap().published_since, since);

    // Nothing is imported anew for it, whose upload is gone, and the name is free.
    rig.publish("b", false).await;
    let taken = rig.until_published("a").await;
    assert_eq!((taken.message, taken.phase), (None, ImagePhase::Ready));
    assert_eq!(hex(&rig.get(&manifest("3.6")).await.1), second_digest[7..]);
    assert_eq!(rig.get(&manifest(&first_digest)).await.0, 404);
    let seen = async || {
        let kept = rig.images.get("b").await.unwrap();
        let status = kept.status.unwrap();
        (status.observed_generation == kept.metadata.generation).then_some(status.phase)
    };
    assert_eq!(until("what b says is seen", seen).await, ImagePhase::Ready);
    rig.images.delete("a", &<_>::default()).await.unwrap();
    until("it goes with its Image", async || (rig.get(&manifest("3.6")).await.0 == 404).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_packages_is_served_by_its_paths() {
    let rig = Rig::new().await;
    let folder = rig.path("debs");
    std::fs::create_dir_all(folder.join("pool")).unwrap();
    let large = noise((3 << 20) + 11);
    std::fs::write(folder.join("Packages"), "Package: a\n").unwrap();
    std::fs::write(folder.join("pool/a_1_amd64.deb"), &large).unwrap();
    let refused = rig
        .appliance
        .slipway(&["image", "import", "debs", folder.to_str().unwrap(), "--kubeconfig", &rig.kubeconfig])
        .await;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--format packages"));
    let said = rig.import("debs", &folder, &["--format", "packages", "--publish"]).await;
    assert!(said.contains("2 files") && said.contains("/packages/debs/"), "{said}");
    rig.until_published("debs").await;
    assert_eq!(rig.get("/packages/debs/./Packages").await, (200, b"Package: a\n".to_vec()));
    assert!(rig.get("/packages/debs/pool/a_1_amd64.deb").await == (200, large.clone()));
    let part = rig.http.get(rig.url("/packages/debs/pool/a_1_amd64.deb")).header("range", "bytes=3145720-").send();
    assert!(part.await.unwrap().bytes().await.unwrap() == large[3_145_720..]);
    assert_eq!(rig.get("/packages/debs/").await, (200, b"Packages\npool/\n".to_vec()));
    // A disk is not published, whatever is asked.
    let disk = Image::new("disk", serde_json::from_value(json!({ "url": "upload:disk", "publish": true })).unwrap());
    let refused = rig.images.create(&<_>::default(), &disk).await.unwrap_err().to_string();
    assert!(refused.contains("spec.publish"), "{refused}");
}
