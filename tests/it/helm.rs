//! The Helm controller with the real helm: one appliance has the bundle and the charts, another one is the cluster.
//!
//! To helm an appliance is a cluster as any other, of one that has no pods. Where pods are waited for it is a real kube-apiserver.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use slipway::api::lcm::{HelmBundle, HelmBundleStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::needs;
use crate::peer::peer;
use crate::process::{Appliance, program};

const NAMESPACE: &str = "edge";

/// The appliance, the cluster, and what the controller is told.
struct Rig {
    appliance: Appliance,
    client: Client,
    in_cluster: Client,
    helm: PathBuf,
    folder: tempfile::TempDir,
}

/// A chart of one ConfigMap, with the text of `values.text` in it.
fn chart(folder: &Path, name: &str, version: &str, template: &str) {
    let folder = folder.join(name);
    std::fs::create_dir_all(folder.join("templates")).unwrap();
    std::fs::write(folder.join("Chart.yaml"), format!("apiVersion: v2\nname: {name}\nversion: {version}\n")).unwrap();
    std::fs::write(folder.join("values.yaml"), "text: none\n").unwrap();
    std::fs::write(folder.join("templates/all.yaml"), template).unwrap();
}

/// What no cluster here ever makes ready: nobody makes its pods.
const STUCK: &str = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {{ .Release.Name }}\nspec:\n  replicas: 1\n  selector:\n    matchLabels: {app: stuck}\n  template:\n    metadata:\n      labels: {app: stuck}\n    spec:\n      containers: [{name: one, image: none}]\n";

const CONFIG_MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}\ndata:\n  text: {{ .Values.text | quote }}\n";

async fn ran(command: &mut Command) -> Output {
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

impl Rig {
    /// With a cluster that lives as long as what comes with it.
    async fn new(helm: PathBuf) -> (Self, Appliance) {
        slipway::appliance::install_tls_provider();
        let cluster = Appliance::new().await;
        (Self::with(helm, cluster.client().await, &cluster.kubeconfig().await).await, cluster)
    }

    async fn with(helm: PathBuf, in_cluster: Client, kubeconfig: &str) -> Self {
        let appliance = Appliance::new().await;
        let client = appliance.client().await;
        let rig = Self { appliance, client, in_cluster, helm, folder: tempfile::tempdir().unwrap() };
        rig.publish_charts().await;
        rig.account().await;
        std::fs::write(rig.path("cluster.conf"), kubeconfig).unwrap();
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The charts that nodes get from the appliance, packed and listed by helm.
    async fn publish_charts(&self) {
        let (sources, packed) = (self.path("sources"), self.path("charts"));
        std::fs::create_dir_all(&packed).unwrap();
        chart(&sources, "settings", "1.0.0", CONFIG_MAP);
        chart(&sources, "app", "1.0.0", CONFIG_MAP);
        chart(&sources, "broken", "1.0.0", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: Not_A_Name\n");
        chart(&sources, "stuck", "1.0.0", &format!("{CONFIG_MAP}{STUCK}"));
        for name in ["settings", "app", "broken", "stuck"] {
            ran(Command::new(&self.helm).arg("package").arg(sources.join(name)).arg("-d").arg(&packed)).await;
        }
        ran(Command::new(&self.helm).args(["repo", "index"]).arg(&packed)).await;
        let charts = packed.display().to_string();
        let output =
            self.appliance.slipway(&["image", "import", "charts", &charts, "--format", "packages", "--publish"]).await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The controller's account: it may read its bundle and write its status.
    async fn account(&self) {
        let namespace = object::<Namespace>(json!({"metadata": {"name": NAMESPACE}}));
        Api::<Namespace>::all(self.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let (params, client) = (PostParams::default(), &self.client);
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), NAMESPACE);
        accounts.create(&params, &object(json!({"metadata": {"name": "helm-edge"}}))).await.unwrap();
        let role = json!({"metadata": {"name": "helm-edge"}, "rules": [
            {"apiGroups": ["lcm.mirantis.com"], "resources": ["helmbundles"], "resourceNames": ["edge"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["lcm.mirantis.com"], "resources": ["helmbundles/status"], "resourceNames": ["edge"], "verbs": ["get", "patch"]},
        ]});
        Api::<Role>::namespaced(client.clone(), NAMESPACE).create(&params, &object(role)).await.unwrap();
        let binding = json!({"metadata": {"name": "helm-edge"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "helm-edge"},
            "subjects": [{"kind": "ServiceAccount", "name": "helm-edge", "namespace": NAMESPACE}]});
        Api::<RoleBinding>::namespaced(client.clone(), NAMESPACE).create(&params, &object(binding)).await.unwrap();
        let request = object::<TokenRequest>(json!({"spec": {"audiences": []}}));
        let token = accounts.create_token_request("helm-edge", &params, &request).await.unwrap().status.unwrap().token;
        std::fs::write(self.path("token"), token).unwrap();
        std::fs::copy(self.appliance.data().join("pki/ca.crt"), self.path("ca.crt")).unwrap();
    }

    fn bundles(&self) -> Api<HelmBundle> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn says(&self, name: &str, releases: Value) {
        let repository = json!([{"name": "ours", "url": format!("http://{}/packages/charts", self.appliance.boot)}]);
        let bundle = json!({"apiVersion": "lcm.mirantis.com/v1alpha1", "kind": "HelmBundle", "metadata": {"name": name},
            "spec": {"repositories": repository, "releases": releases}});
        let params = PatchParams::apply("test").force();
        self.bundles().patch(name, &params, &Patch::Apply(bundle)).await.unwrap();
    }

    /// Runs the controller until nothing is to be done; whether all is as the bundle says.
    async fn once(&self, name: &str) -> (bool, String) {
        self.once_within(name, "60s").await
    }

    /// The same, where a chart is waited for so long.
    async fn once_within(&self, name: &str, timeout: &str) -> (bool, String) {
        let mut command = Command::new(program());
        command.args([
            "helm-controller",
            "run",
            "--once",
            "--timeout",
            timeout,
            "--namespace",
            NAMESPACE,
            "--bundle",
            name,
        ]);
        command.arg("--server").arg(format!("https://{}", self.appliance.address));
        command.arg("--ca").arg(self.path("ca.crt")).arg("--token").arg(self.path("token"));
        command.arg("--helm").arg(&self.helm).arg("--kubeconfig").arg(self.path("cluster.conf"));
        std::fs::create_dir_all(self.path("scratch")).unwrap();
        command.arg("--scratch").arg(self.path("scratch")).arg("--logins").arg(self.path(""));
        let output = tokio::time::timeout(crate::process::DEADLINE, command.kill_on_drop(true).output()).await;
        let output = output.expect("it ends").unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    async fn status(&self) -> HelmBundleStatus {
        self.bundles().get_status("edge").await.unwrap().status.unwrap_or_default()
    }

    async fn map(&self, name: &str) -> Option<ConfigMap> {
        let maps = Api::<ConfigMap>::namespaced(self.in_cluster.clone(), "apps");
        maps.get_opt(name).await.unwrap()
    }

    async fn text(&self, name: &str) -> Option<String> {
        self.map(name).await?.data.and_then(|data| data.get("text").cloned())
    }

    /// When a release's ConfigMap was written, as the cluster counts writes.
    async fn age(&self, name: &str) -> u64 {
        self.map(name).await.unwrap().resource_version().unwrap().parse().unwrap()
    }
}

fn release(name: &str, chart: &str, text: &str, requires: &[&str]) -> Value {
    json!({"name": name, "namespace": "apps", "chart": format!("ours/{chart}"), "version": "1.0.0", "values": {"text": text}, "requires": requires})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_is_installed_in_order_upgraded_and_taken_away_by_the_real_helm() {
    let Some(helm) = needs::helm() else { return };
    let (rig, _cluster) = Rig::new(helm).await;
    rig.says(
        "edge",
        json!([release("app", "app", "one", &["settings"]), release("settings", "settings", "blue", &[])]),
    )
    .await;
    let (done, said) = rig.once("edge").await;
    assert!(done, "{said}");
    assert_eq!((rig.text("app").await.as_deref(), rig.text("settings").await.as_deref()), (Some("one"), Some("blue")));
    let status = rig.status().await;
    assert!(rig.age("settings").await < rig.age("app").await, "the one that is required was made first");
    let app = &status.release_statuses["app"];
    assert!(app.ready && app.revision == 1 && app.status == "deployed" && app.version == "1.0.0", "{app:#?}");
    assert_eq!(status.conditions[0].status, "True");
    // Nothing changed: nothing is done.
    assert!(rig.once("edge").await.0);
    assert_eq!(rig.status().await.release_statuses["app"].revision, 1);
    // Other values, and one that is not wanted any more.
    rig.says("edge", json!([release("app", "app", "two", &[])])).await;
    let (done, said) = rig.once("edge").await;
    assert!(done, "{said}");
    assert_eq!((rig.text("app").await.as_deref(), rig.text("settings").await), (Some("two"), None));
    let status = rig.status().await;
    assert_eq!(status.release_statuses["app"].revision, 2);
    assert!(!status.release_statuses.contains_key("settings"), "{status:#?}");
    // Somebody changed it by hand: it comes back.
    let mut by_hand = Command::new(&rig.helm);
    by_hand.arg("--kubeconfig").arg(rig.path("cluster.conf")).args([
        "-n",
        "apps",
        "upgrade",
        "app",
        "--set",
        "text=theirs",
    ]);
    ran(by_hand.arg(rig.path("sources/app"))).await;
    assert_eq!(rig.text("app").await.as_deref(), Some("theirs"));
    assert!(rig.once("edge").await.0);
    assert_eq!(rig.text("app").await.as_deref(), Some("two"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_told_and_leaves_what_was_there() {
    let Some(helm) = needs::helm() else { return };
    let (rig, _cluster) = Rig::new(helm).await;
    rig.says("edge", json!([release("app", "app", "one", &[])])).await;
    assert!(rig.once("edge").await.0);
    let broken = json!([
        {"name": "app", "namespace": "apps", "chart": "ours/broken", "version": "1.0.0"},
        {"name": "lost", "namespace": "apps", "chart": "ours/nowhere", "version": "1.0.0"},
        release("good", "settings", "green", &[]),
        release("after", "settings", "red", &["app"]),
    ]);
    rig.says("edge", broken).await;
    let (done, said) = rig.once("edge").await;
    assert!(!done && said.contains("not everything is as the bundle says"), "{said}");
    let status = rig.status().await;
    let of = |name: &str| &status.release_statuses[name];
    assert!(!of("app").ready && of("app").message.contains("Not_A_Name"), "{status:#?}");
    assert!(!of("lost").ready && of("lost").message.contains("nowhere"), "{status:#?}");
    assert!(of("good").ready && of("after").message.contains("waits for app"), "{status:#?}");
    assert_eq!(status.conditions[0].reason, "Failed");
    assert_eq!((rig.text("app").await.as_deref(), rig.text("good").await.as_deref()), (Some("one"), Some("green")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chart_that_never_becomes_ready_is_told_and_taken_back() {
    let Some(helm) = needs::helm() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (_peer, kubeconfig) = match peer(folder.path()).await {
        Ok(peer) => peer,
        Err(reason) => return needs::lacks_what_takes_long(&reason),
    };
    let config = Kubeconfig::read_from(&kubeconfig).unwrap();
    slipway::appliance::install_tls_provider();
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    let kubeconfig = std::fs::read_to_string(kubeconfig).unwrap();
    let rig = Rig::with(helm, Client::try_from(config).unwrap(), &kubeconfig).await;
    rig.says("edge", json!([release("app", "app", "one", &[])])).await;
    assert!(rig.once("edge").await.0);
    let stuck = json!([
        release("app", "stuck", "two", &[]),
        release("new", "stuck", "three", &[]),
        release("good", "settings", "green", &[]),
        release("after", "settings", "red", &["app"]),
    ]);
    rig.says("edge", stuck).await;
    let (done, said) = rig.once_within("edge", "5s").await;
    assert!(!done && said.contains("not everything is as the bundle says"), "{said}");
    let status = rig.status().await;
    let of = |name: &str| &status.release_statuses[name];
    for name in ["app", "new"] {
        assert!(
            !of(name).ready && of(name).message.contains("not ready within 5 s; `kubectl get events -n apps`"),
            "{status:#?}"
        );
    }
    assert!(of("good").ready && of("after").message.contains("waits for app"), "{status:#?}");
    assert_eq!(status.conditions[0].reason, "Failed");
    // What ran before runs; of what never ran nothing is left.
    assert_eq!((rig.text("app").await.as_deref(), rig.text("new").await), (Some("one"), None));
    let deployments = Api::<Deployment>::namespaced(rig.in_cluster.clone(), "apps");
    assert_eq!(deployments.list(&ListParams::default()).await.unwrap().items.len(), 0);
    // A chart that becomes ready is installed though the one before was waited for in vain.
    rig.says("edge", json!([release("app", "app", "two", &[]), release("after", "settings", "red", &["app"])])).await;
    let (done, said) = rig.once("edge").await;
    assert!(done, "{said}");
    assert_eq!((rig.text("app").await.as_deref(), rig.text("after").await.as_deref()), (Some("two"), Some("red")));
}

/// A server of a folder that wants a login; how many were refused.
async fn guarded(folder: PathBuf) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, refused) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = refused.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut head, mut piece) = (Vec::new(), [0; 4096]);
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut piece).await {
                    Ok(0) | Err(_) => break,
                    Ok(count) => head.extend_from_slice(&piece[..count]),
                }
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let name = head.split(' ').nth(1).unwrap_or_default().trim_start_matches("/charts/").to_owned();
            let file = std::fs::read(folder.join(name.replace('/', "")));
            let (status, content) = match file {
                // user:pass word
                _ if !head.contains("Basic dXNlcjpwYXNzIHdvcmQ=") => {
                    counted.fetch_add(1, Ordering::Relaxed);
                    ("401 Unauthorized", Vec::new())
                }
                Ok(content) => ("200 OK", content),
                Err(_) => ("404 Not Found", Vec::new()),
            };
            let front = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", content.len());
            drop(stream.write_all(&[front.as_bytes(), &content[..]].concat()).await);
        }
    });
    (address, refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_that_wants_a_login_gets_it_and_nobody_sees_it() {
    let Some(helm) = needs::helm() else { return };
    let (rig, _cluster) = Rig::new(helm).await;
    let (address, refused) = guarded(rig.path("charts")).await;
    let bundle = json!({"spec": {
        "repositories": [{"name": "ours", "url": format!("http://{address}/charts"), "authSecret": "login"}],
        "releases": [release("app", "app", "one", &[])]}});
    rig.says("edge", json!([])).await;
    rig.bundles().patch("edge", &PatchParams::default(), &Patch::Merge(bundle)).await.unwrap();
    let (done, _) = rig.once("edge").await;
    let message = rig.status().await.release_statuses["app"].message.clone();
    assert!(!done && message.contains("login.username"), "{message}");
    std::fs::write(rig.path("login.username"), "user").unwrap();
    std::fs::write(rig.path("login.password"), "pass word").unwrap();
    // It is tried again at once: helm's pause is over when the bundle says something new.
    rig.says("edge", json!([])).await;
    assert!(rig.once("edge").await.0);
    let again = json!({"spec": {
        "repositories": [{"name": "ours", "url": format!("http://{address}/charts"), "authSecret": "login"}],
        "releases": [release("app", "app", "two", &[])]}});
    rig.bundles().patch("edge", &PatchParams::default(), &Patch::Merge(again)).await.unwrap();
    let (done, said) = rig.once("edge").await;
    assert!(done, "{said} {:#?}", rig.status().await);
    assert_eq!(rig.text("app").await.as_deref(), Some("two"));
    assert_eq!(refused.load(Ordering::Relaxed), 0, "it asked without its login");
    let status = serde_json::to_string(&rig.status().await).unwrap();
    assert!(!said.contains("pass word") && !status.contains("pass word"), "{said} {status}");
    let left = std::fs::read_dir(rig.path("scratch")).unwrap().flatten();
    let left: Vec<_> =
        left.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().contains("login")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_of_a_controller_opens_its_bundle_and_nothing_else() {
    let Some(helm) = needs::helm() else { return };
    let (rig, _cluster) = Rig::new(helm).await;
    rig.says("theirs", json!([release("app", "app", "one", &[])])).await;
    // It does not even learn whether there is one.
    let mut command = Command::new("curl");
    let read = async |command: &mut Command, path: &str| {
        let url = format!("https://{}{path}", rig.appliance.address);
        command.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert"]).arg(rig.path("ca.crt"));
        let token = std::fs::read_to_string(rig.path("token")).unwrap();
        let output = command.arg("-H").arg(format!("Authorization: Bearer {token}")).arg(url).output().await.unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let bundles = "/apis/lcm.mirantis.com/v1alpha1/namespaces/edge/helmbundles";
    assert_eq!(read(&mut command, &format!("{bundles}/edge")).await, "404", "its own, which is not there yet");
    for path in [format!("{bundles}/theirs"), bundles.to_owned(), "/api/v1/namespaces/edge/secrets".to_owned()] {
        assert_eq!(read(&mut Command::new("curl"), &path).await, "403", "{path}");
    }
}
