//! `slipway simulate` against an appliance that runs already: what it did not make stays as it is.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use slipway::api::metal3::BareMetalHost;
use slipway::simulate::appliance_process::ApplianceProcess;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

/// Nothing that is waited for takes longer.
const DEADLINE: Duration = Duration::from_secs(120);
/// Nothing that a host waits for in life is waited for here.
const SETTINGS: &str = "[host]\nretry = \"1s\"\nboot_deadline = \"20s\"\nagent_deadline = \"10s\"\n";
/// What was there before, and what a run must not touch.
const REAL: &str = "\
apiVersion: v1
kind: Secret
metadata: {name: prod-bmc}
stringData: {username: admin, password: secret}
---
apiVersion: metal3.io/v1alpha1
kind: BareMetalHost
metadata: {name: prod-1}
spec:
  online: true
  externallyProvisioned: true
  bootMACAddress: 02:00:00:00:00:01
  bmc: {address: 'redfish+http://127.0.0.1:9/redfish/v1/Systems/1', credentialsName: prod-bmc}
---
apiVersion: metal3.io/v1alpha1
kind: BareMetalHost
metadata: {name: prod-2}
spec:
  online: true
  externallyProvisioned: true
  bootMACAddress: 02:00:00:00:00:02
  bmc: {address: 'redfish+http://127.0.0.1:9/redfish/v1/Systems/2', credentialsName: prod-bmc}
  image: {url: 'http://127.0.0.1:9/os.raw', checksum: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}
";

/// An appliance with a network, and a folder for files.
struct Site {
    folder: tempfile::TempDir,
    kubeconfig: PathBuf,
    own: ApplianceProcess,
}

/// What a command did.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Site {
    async fn new() -> Self {
        slipway::appliance::install_tls_provider();
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("settings.toml");
        std::fs::write(&settings, SETTINGS).unwrap();
        let own =
            ApplianceProcess::start(Path::new(env!("CARGO_BIN_EXE_slipway")), Some(&settings), 1, false).await.unwrap();
        let output = slipway(&["kubeconfig", "--config", own.config.to_str().unwrap()], None).await;
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, output.out).unwrap();
        std::fs::write(folder.path().join("real.yaml"), REAL).unwrap();
        Self { folder, kubeconfig, own }
    }

    fn client(&self) -> Client {
        self.own.client.clone()
    }

    fn file(&self) -> String {
        self.folder.path().join("real.yaml").display().to_string()
    }

    async fn run(&self, arguments: &str) -> Ran {
        slipway(&arguments.split_whitespace().collect::<Vec<_>>(), Some(&self.kubeconfig)).await
    }

    /// Applies what was there before.
    async fn apply(&self, namespace: &str) {
        let namespaces = Api::<Namespace>::all(self.client());
        let new = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        namespaces.create(&PostParams::default(), &new).await.unwrap();
        let ran = self.run(&format!("apply -n {namespace} -f {}", self.file())).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }

    async fn simulate(&self, arguments: &str) -> Ran {
        let network = self.own.network;
        self.run(&format!(
            "simulate --kubeconfig {} --relay {} --dhcp {} --tftp-port {} --boot ipxe --bmc redfish --download head {arguments}",
            self.kubeconfig.display(),
            network.relay,
            network.dhcp,
            network.tftp_port
        ))
        .await
    }

    /// UID and generation of everything of a kind; none of it is being deleted.
    async fn all<K>(&self) -> Vec<(String, String, Option<i64>)>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let list = Api::<K>::all(self.client()).list(&ListParams::default()).await.unwrap();
        let mut all: Vec<_> = list
            .iter()
            .map(|one| {
                assert!(one.meta().deletion_timestamp.is_none(), "{} is being deleted", one.name_any());
                (one.name_any(), one.uid().unwrap(), one.meta().generation)
            })
            .collect();
        all.sort();
        all
    }

    async fn hosts(&self) -> Vec<(String, String, Option<i64>)> {
        self.all::<BareMetalHost>().await
    }

    async fn names(&self) -> Vec<String> {
        self.hosts().await.into_iter().map(|(name, ..)| name).collect()
    }
}

async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is().await {
        assert!(Instant::now() < end, "not in time: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn slipway(arguments: &[&str], kubeconfig: Option<&Path>) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
    command.args(arguments).env_remove("SLIPWAY_CONFIG").stdin(Stdio::null()).kill_on_drop(true);
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    let output = timeout(DEADLINE, command.output()).await.expect("it hangs").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_no_run_made_stop_a_run_before_it_begins() {
    let site = Site::new().await;
    site.apply("real").await;
    let (hosts, secrets, namespaces) = (site.hosts().await, site.all::<Secret>().await, site.all::<Namespace>().await);
    assert_eq!((hosts.len(), secrets.len()), (2, 1));
    let real = format!("--hosts {} -n real --deadline 10s", site.file());
    for (what, arguments) in [
        ("the same names", real.clone()),
        ("the same names, to be deprovisioned", format!("{real} --until deprovisioned")),
        ("the same namespace", "--machines 2 -n real --deadline 10s".to_owned()),
        ("another namespace", "--machines 2 --deadline 10s".to_owned()),
        ("another namespace, the same addresses", format!("--hosts {} -n trial --deadline 10s", site.file())),
    ] {
        let ran = site.simulate(&arguments).await;
        assert_eq!(site.hosts().await, hosts, "{what}: {ran:?}");
        assert_eq!(site.all::<Secret>().await, secrets, "{what}: {ran:?}");
        assert_eq!(site.all::<Namespace>().await, namespaces, "{what}: {ran:?}");
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{what}: {ran:?}");
        assert!(!ran.err.contains("Status {"), "{ran:?}");
        assert!(
            ran.err.contains("real/prod-1, real/prod-2") && ran.err.contains("leave --relay and --kubeconfig out"),
            "{ran:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_the_same_name_stops_a_run_before_it_begins() {
    let site = Site::new().await;
    let new = serde_json::from_value(json!({"metadata": {"name": "real"}})).unwrap();
    Api::<Namespace>::all(site.client()).create(&PostParams::default(), &new).await.unwrap();
    let secret = serde_json::from_value(json!({"metadata": {"name": "prod-bmc"}, "stringData": {"a": "b"}})).unwrap();
    Api::<Secret>::namespaced(site.client(), "real").create(&PostParams::default(), &secret).await.unwrap();
    let (before, namespaces) = (site.all::<Secret>().await, site.all::<Namespace>().await);

    let ran = site.simulate(&format!("--hosts {} -n real --deadline 10s", site.file())).await;
    assert_eq!(site.all::<Secret>().await, before, "{ran:?}");
    assert_eq!(site.all::<Namespace>().await, namespaces, "{ran:?}");
    assert_eq!(site.hosts().await, [], "{ran:?}");
    assert!(ran.code == Some(1) && ran.err.contains("Secret real/prod-bmc"), "{ran:?}");
    assert!(ran.err.contains("--namespace"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_takes_away_what_it_made_and_nothing_else() {
    let site = Site::new().await;
    let namespaces = site.all::<Namespace>().await;
    // A namespace of its own goes with it.
    let ran = site.simulate("--machines 2 --until deprovisioned --deadline 2m").await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!((site.hosts().await, site.all::<Secret>().await), (vec![], vec![]), "{ran:?}");
    let of_its_own = Api::<Namespace>::all(site.client());
    until("the namespace goes", async || of_its_own.get_opt("simulated").await.unwrap().is_none()).await;
    assert_eq!(site.all::<Namespace>().await, namespaces, "{ran:?}");

    // One that was there stays, with all that is in it.
    let new = serde_json::from_value(json!({"metadata": {"name": "trial"}})).unwrap();
    Api::<Namespace>::all(site.client()).create(&PostParams::default(), &new).await.unwrap();
    let secret = serde_json::from_value(json!({"metadata": {"name": "mine"}, "stringData": {"a": "b"}})).unwrap();
    Api::<Secret>::namespaced(site.client(), "trial").create(&PostParams::default(), &secret).await.unwrap();
    let map = serde_json::from_value(json!({"metadata": {"name": "mine"}})).unwrap();
    Api::<ConfigMap>::namespaced(site.client(), "trial").create(&PostParams::default(), &map).await.unwrap();
    let (secrets, namespaces) = (site.all::<Secret>().await, site.all::<Namespace>().await);
    let ran = site.simulate("--machines 2 -n trial --until available --deadline 2m").await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!((site.hosts().await, site.all::<Secret>().await), (vec![], secrets), "{ran:?}");
    assert_eq!(site.all::<Namespace>().await, namespaces, "{ran:?}");
    assert_eq!(site.all::<ConfigMap>().await.len(), 1, "{ran:?}");
}

/// What comes into the run's own namespace while it goes on is somebody else's.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_meanwhile_stays_and_keeps_the_namespace() {
    let site = Site::new().await;
    let late = async {
        until("the run begins", async || site.names().await.len() == 2).await;
        let ran = site.run(&format!("apply -n simulated -f {}", site.file())).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        // One of the run's is replaced by a host of the same name.
        let hosts = Api::<BareMetalHost>::namespaced(site.client(), "simulated");
        let free = json!({"metadata": {"finalizers": []}});
        hosts.delete("sim-00001", &DeleteParams::default()).await.unwrap();
        until("the host goes", async || {
            hosts.patch("sim-00001", &PatchParams::default(), &Patch::Merge(&free)).await.is_err()
        })
        .await;
        let mine = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": "sim-00001"}, "spec": {"online": false}});
        hosts.create(&PostParams::default(), &serde_json::from_value(mine).unwrap()).await.unwrap();
    };
    // Longer than all that: the machines never come out of their firmware.
    let (ran, ()) = tokio::join!(site.simulate("--machines 2 --deadline 40s --delay-firmware 1h"), late);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(site.names().await, ["prod-1", "prod-2", "sim-00001"], "{ran:?}");
    let secrets = Api::<Secret>::namespaced(site.client(), "simulated");
    assert!(secrets.get("prod-bmc").await.unwrap().metadata.deletion_timestamp.is_none(), "{ran:?}");
    assert!(secrets.get_opt("sim-00002-bmc").await.unwrap().is_none(), "{ran:?}");
    assert!(Api::<Namespace>::all(site.client()).get_opt("simulated").await.unwrap().is_some(), "{ran:?}");
    assert!(ran.err.contains("namespace simulated stays"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_kept_stops_the_next_one_which_says_how_to_remove_it() {
    let site = Site::new().await;
    let ran = site.simulate("--machines 2 --until available --keep --deadline 2m").await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let (hosts, secrets) = (site.hosts().await, site.all::<Secret>().await);
    assert_eq!((hosts.len(), secrets.len()), (2, 2));
    // A simulated ramdisk logs as a real one does.
    let log = site.run(&format!("host log {} -n simulated", hosts[0].0)).await;
    assert!(log.out.contains("step inspect done"), "{log:?}");
    let ran = site.simulate("--machines 2 --until deprovisioned --deadline 2m").await;
    assert_eq!((site.hosts().await, site.all::<Secret>().await), (hosts, secrets), "{ran:?}");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let command = ran.err.lines().find_map(|line| line.trim().strip_prefix("slipway delete hosts ")).map(str::to_owned);
    let command = command.unwrap_or_else(|| panic!("{ran:?}"));
    let removed = site.run(&format!("delete hosts {command}")).await;
    assert_eq!(removed.code, Some(0), "{removed:?}");
    let command =
        ran.err.lines().find_map(|line| line.trim().strip_prefix("slipway delete secrets ")).map(str::to_owned);
    let removed = site.run(&format!("delete secrets {}", command.unwrap_or_else(|| panic!("{ran:?}")))).await;
    assert_eq!(removed.code, Some(0), "{removed:?}");
    let ran = site.simulate("--machines 2 --until available --deadline 2m").await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(site.hosts().await, []);
}
