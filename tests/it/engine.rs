//! Two appliances on a real kube-apiserver: the same controllers, one acting.
//!
//! What users write there past Slipway's admission is judged where it is acted on: the rows are in `hostile`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use slipway::api::metal3::{BareMetalHost, BareMetalHostSpec, BmcDetails, ProvisioningState};
use slipway::api::slipway::BootIntent;
use slipway::bmc::address::Privilege;
use slipway::bmc::ipmi::suite::CipherSuite;
use slipway::bmc::sim::{Account, IpmiSim, SimulatedMachine as Machine, SimulatedProfile};
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

use crate::peer::{DEADLINE, Process, peer, until};
use crate::process::free_port;
use crate::{hostile, needs, scraped};

/// An appliance that keeps its objects in that API server.
struct Appliance {
    process: Process,
    folder: PathBuf,
    port: u16,
    boot: u16,
}

impl Appliance {
    fn start(folder: PathBuf, kubeconfig: &Path) -> Self {
        Self::with(folder, kubeconfig, "[bmc]\nallow = [\"127.0.0.1\"]\n")
    }

    /// With these tables more in its configuration.
    fn with(folder: PathBuf, kubeconfig: &Path, more: &str) -> Self {
        std::fs::create_dir_all(&folder).unwrap();
        let (port, boot) = (free_port(), free_port());
        let config = format!(
            "data_dir = {data:?}\n[api]\nlisten = \"127.0.0.1:{port}\"\n[boot]\nlisten = \"127.0.0.1:{boot}\"\n\
             tftp = \"127.0.0.1:{boot}\"\n[engine]\nkubeconfig = {kubeconfig:?}\nlease = \"6s\"\n{more}",
            data = folder.join("data"),
        );
        std::fs::write(folder.join("slipway.toml"), config).unwrap();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("slipway"));
        command.args(["serve", "--config"]).arg(folder.join("slipway.toml")).env_remove("SLIPWAY_LOG");
        let process = Process(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap());
        Self { process, folder, port, boot }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }

    /// How often the log has said this.
    fn said(&self, words: &str) -> usize {
        self.log().matches(words).count()
    }

    async fn says(&self, words: &str, times: usize) {
        let give_up = Instant::now() + DEADLINE;
        while self.said(words) < times {
            assert!(Instant::now() < give_up, "not said in time: {words}; its log:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("slipway"));
        command.args(arguments).arg("--config").arg(self.folder.join("slipway.toml")).env_remove("KUBECONFIG");
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }
}

struct Rack {
    client: kube::Client,
    /// Of a BMC for each host.
    addresses: Vec<String>,
    machine: Arc<Machine>,
}

impl Rack {
    fn hosts(&self) -> Api<BareMetalHost> {
        Api::namespaced(self.client.clone(), "rack")
    }

    async fn add(&self, name: &str, number: u8) {
        let spec = BareMetalHostSpec {
            online: true,
            bmc: Some(BmcDetails {
                address: self.addresses[usize::from(number) - 1].clone(),
                credentials_name: "bmc".into(),
                ..BmcDetails::default()
            }),
            boot_mac_address: Some(format!("02:00:00:00:00:{number:02x}")),
            ..BareMetalHostSpec::default()
        };
        self.hosts().create(&PostParams::default(), &BareMetalHost::new(name, spec)).await.unwrap();
    }

    /// The host was registered: its BMC took the credentials, and it went on.
    async fn is_registered(&self, name: &str) -> Option<BareMetalHost> {
        let host = self.hosts().get(name).await.unwrap();
        let state = host.status.as_ref().map(|status| status.provisioning.state);
        (state == Some(ProvisioningState::Inspecting)).then_some(host)
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), "slipway-system")
    }

    async fn holder(&self) -> String {
        let lease = self.leases().get("slipway").await.unwrap();
        lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_appliances_on_a_real_api_server_one_acts() {
    slipway::appliance::install_tls_provider();
    let folder = tempfile::tempdir().unwrap();
    let (_peer, kubeconfig) = match peer(folder.path()).await {
        Ok(peer) => peer,
        Err(reason) => return needs::lacks_what_takes_long(&reason),
    };
    let config = Kubeconfig::read_from(&kubeconfig).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    let client = kube::Client::try_from(config).unwrap();
    // The appliances have the rights that the documentation gives them.
    let mut own: serde_json::Value = serde_saphyr::from_str(&std::fs::read_to_string(&kubeconfig).unwrap()).unwrap();
    own["users"][0]["user"]["as"] = "slipway".into();
    let own_file = folder.path().join("own");
    std::fs::write(&own_file, own.to_string()).unwrap();
    let admin = |arguments: &[&str]| {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("slipway"));
        let output =
            command.args(arguments).env_remove("SLIPWAY_CONFIG").env("KUBECONFIG", &kubeconfig).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };

    // It waits for its kinds, and says what to do about it.
    let mut first = Appliance::start(folder.path().join("a"), &own_file);
    first.says("Apply what `slipway crds` prints", 1).await;
    assert_eq!(first.said("this appliance leads"), 0);
    let crds = folder.path().join("crds");
    admin(&["crds", "--output-dir", crds.to_str().unwrap()]);
    admin(&["apply", "-f", crds.to_str().unwrap(), "--wait"]);
    first.says("a watch broke", 1).await;
    admin(&["apply", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/config/engine-rbac.yaml")]);
    first.says("this appliance leads", 1).await;

    // The API is over there, and this box's commands know it.
    let client_of_port = reqwest::Client::builder().danger_accept_invalid_certs(true).build().unwrap();
    let answer =
        client_of_port.get(format!("https://127.0.0.1:{}/api/v1/namespaces", first.port)).send().await.unwrap();
    assert_eq!(answer.status(), 404);
    assert!(answer.text().await.unwrap().contains("keeps its objects in the API server at https://"));
    let ready =
        async || client_of_port.get(format!("https://127.0.0.1:{}/readyz", first.port)).send().await.unwrap().status();
    assert_eq!(ready().await, 200);
    scraped(&client, &client_of_port, first.port).await;
    let (printed, said) = first.run(&["kubeconfig"]);
    assert!(!printed && said.contains("engine.kubeconfig"), "{said}");

    // A host is registered through a BMC, and everything about it stands in that API server.
    let account =
        Account { username: "admin".into(), password: "secret".to_owned().into(), privilege: Privilege::Administrator };
    let stop = CancellationToken::new();
    let machine = Arc::new(Machine::new(SimulatedProfile::default()));
    let others = [(); 2].map(|()| Arc::new(Machine::new(SimulatedProfile::default())));
    let mut addresses = Vec::new();
    for machine in std::iter::once(&machine).chain(&others) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        addresses.push(format!("ipmi://{}", socket.local_addr().unwrap()));
        let bmc = IpmiSim::new(machine.clone(), vec![account.clone()], &[CipherSuite::Sha256]);
        tokio::spawn(bmc.run(socket, stop.clone()));
    }
    let rack = Rack { client: client.clone(), addresses, machine };
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "rack"}})).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let secret = json!({"metadata": {"name": "bmc"}, "stringData": {"username": "admin", "password": "secret"}});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    Api::namespaced(client.clone(), "rack").create(&PostParams::default(), &secret).await.unwrap();
    rack.add("one", 1).await;
    let host = until("the first host is registered", || rack.is_registered("one")).await;
    assert!(host.status.unwrap().conditions.iter().any(|one| one.type_ == "Manageable" && one.status == "True"));
    let intents = Api::<BootIntent>::namespaced(client.clone(), "rack");
    let intent = until("its boot intent", async || intents.get_opt("one").await.unwrap()).await;
    assert!(intent.spec.generation >= 1 && intent.metadata.owner_references.is_some(), "{intent:?}");
    until("the machine is on", async || rack.machine.is_on().then_some(())).await;
    let events = Api::<Event>::namespaced(client.clone(), "rack");
    until("events are there", async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        all.items.iter().any(|event| event.reason.as_deref() == Some("Registered")).then_some(())
    })
    .await;
    let (shown, said) = first.run(&["get", "hosts", "-n", "rack", "--no-headers"]);
    assert!(shown && said.starts_with("one   inspecting"), "{said}");

    // A second appliance waits until the first is dead, and not longer than the lease.
    let mut second = Appliance::start(folder.path().join("b"), &own_file);
    second.says("another appliance leads", 1).await;
    let of_first = rack.holder().await;
    assert_eq!(second.said("this appliance leads"), 0);
    first.process.0.kill().unwrap();
    first.process.end();
    second.says("this appliance leads", 1).await;
    let of_second = rack.holder().await;
    assert_ne!(of_first, of_second);
    rack.add("two", 2).await;
    until("the second host is registered", || rack.is_registered("two")).await;

    // Somebody else's name in the lease ends the lead at once.
    let hold = |holder: &str| {
        let spec =
            json!({"holderIdentity": holder, "leaseDurationSeconds": 3600, "renewTime": "2026-01-01T00:00:00.000000Z"});
        Patch::Merge(json!({ "spec": spec }))
    };
    let parameters = PatchParams::default();
    rack.leases().patch("slipway", &parameters, &hold("somebody")).await.unwrap();
    second.says("does not lead any more", 1).await;
    rack.add("three", 3).await;
    // A host that nobody looks at: everything that acts has ended before the log says so.
    second.says("holder=somebody", 1).await;
    assert!(rack.hosts().get("three").await.unwrap().status.is_none());
    rack.leases().patch("slipway", &parameters, &hold("")).await.unwrap();
    second.says("this appliance leads", 2).await;
    until("the third host is registered", || rack.is_registered("three")).await;

    applying(&client, &kubeconfig).await;

    // Who goes in peace leaves the lease free.
    second.process.end();
    assert_eq!(rack.holder().await, "", "{}", second.log());
    stop.cancel();
}

/// Metrics are for those whom that API server lets read them.
async fn scraped(client: &kube::Client, of_port: &reqwest::Client, port: u16) {
    let answer = async |token: Option<&str>| {
        let request = of_port.get(format!("https://127.0.0.1:{port}/metrics"));
        let request = token.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    assert_eq!(answer(None).await.0, 401);
    assert_eq!(answer(Some("made-up")).await.0, 401);
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "scraper"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let asked = TokenRequest::default();
    let given = accounts.create_token_request("scraper", &PostParams::default(), &asked).await.unwrap();
    let token = given.status.unwrap().token;
    let (code, said) = answer(Some(&token)).await;
    assert_eq!(code, 403, "{said}");
    assert!(said.contains("system:serviceaccount:default:scraper"), "{said}");
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": "scrape"}, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    }))
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &role).await.unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "scrape"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "scrape"},
        "subjects": [{"kind": "ServiceAccount", "name": "scraper", "namespace": "default"}],
    }))
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &binding).await.unwrap();
    let shown = until("the token may read metrics", async || {
        let (code, text) = answer(Some(&token)).await;
        (code == 200).then_some(text)
    });
    scraped::is_complete(&shown.await);
}

/// The rows of `engine_hostile.rs`, on a kube-apiserver.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_to_a_real_api_server_is_judged_where_it_is_acted_on() {
    slipway::appliance::install_tls_provider();
    let folder = tempfile::tempdir().unwrap();
    let (_peer, kubeconfig) = match peer(folder.path()).await {
        Ok(peer) => peer,
        Err(reason) => return needs::lacks_what_takes_long(&reason),
    };
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let crds = folder.path().join("crds");
    let rbac = concat!(env!("CARGO_MANIFEST_DIR"), "/config/engine-rbac.yaml");
    for arguments in [
        ["crds", "--output-dir", crds.to_str().unwrap()].as_slice(),
        &["apply", "-f", crds.to_str().unwrap(), "--wait"],
        &["apply", "-f", rbac],
    ] {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("slipway"));
        let output =
            command.args(arguments).env_remove("SLIPWAY_CONFIG").env("KUBECONFIG", &kubeconfig).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let mut own: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    own["users"][0]["user"]["as"] = "slipway".into();
    let own_file = folder.path().join("own");
    std::fs::write(&own_file, own.to_string()).unwrap();

    let data = folder.path().join("a/data");
    let boot = data.join("boot");
    std::fs::create_dir_all(&boot).unwrap();
    for name in ["vmlinuz", "initrd", "ramdisk.json"] {
        std::fs::write(boot.join(name), "nothing").unwrap();
    }
    let mut site = hostile::Site::new(&data).await;
    let appliance = Appliance::with(folder.path().join("a"), &own_file, &site.tables());
    appliance.says("this appliance leads", 1).await;
    let log = || appliance.log();
    let local = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let acting = hostile::Acting { data, boot: local(appliance.boot), api: local(appliance.port), log: &log };
    hostile::rows(&text, &mut site, acting).await;
}

/// `slipway apply` as a real API server takes it.
async fn applying(client: &kube::Client, kubeconfig: &Path) {
    let apply = |arguments: &str, manifest: &str| {
        let mut command = assert_cmd::Command::cargo_bin("slipway").unwrap();
        command.args(["apply", "-f", "-"]).args(arguments.split_whitespace()).write_stdin(manifest);
        let output = command.env_remove("SLIPWAY_CONFIG").env("KUBECONFIG", kubeconfig).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let map = |data: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c, namespace: rack}}\ndata: {{{data}}}\n")
    };
    let maps = Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(client.clone(), "rack");
    let data = async || serde_json::to_value(maps.get("c").await.unwrap().data).unwrap();
    for (arguments, wish, said, stored) in [
        ("", r#"a: "1", b: "2""#, "configmap/c created\n", json!({"a": "1", "b": "2"})),
        ("", r#"a: "1", b: "2""#, "configmap/c unchanged\n", json!({"a": "1", "b": "2"})),
        // What is not wished for any more goes.
        ("", r#"a: "1""#, "configmap/c configured\n", json!({"a": "1"})),
        ("--dry-run", r#"a: "2""#, "configmap/c configured (server dry run)\n", json!({"a": "1"})),
        ("-o name", r#"a: "1""#, "configmap/c\n", json!({"a": "1"})),
        ("-o jsonpath={.data.a}", r#"a: "1""#, "1", json!({"a": "1"})),
    ] {
        let (code, out, err) = apply(arguments, &map(wish));
        assert_eq!((code, out.as_str()), (0, said), "{arguments} {wish}: {err}");
        assert_eq!(data().await, stored, "{arguments} {wish}");
    }
    let theirs = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "9"}});
    maps.patch("c", &PatchParams::apply("somebody").force(), &Patch::Apply(theirs)).await.unwrap();
    let (code, _, err) = apply("", &map(r#"a: "1""#));
    assert!(code == 1 && err.contains("\"somebody\"") && err.contains("--force-conflicts takes them over"), "{err}");
    assert_eq!(apply("--force-conflicts", &map(r#"a: "1""#)).1, "configmap/c configured\n");
    assert_eq!(data().await, json!({"a": "1"}));

    let host = "apiVersion: metal3.io/v1alpha1\nkind: BareMetalHost\nmetadata: {name: x, namespace: rack}\nspec: {online: false, bogus: 1}\n";
    let (code, _, err) = apply("", host);
    assert!(code == 1 && err.contains("spec.bogus: there is no such field"), "{err}");
    let (code, _, err) = apply("-n other", &map(""));
    assert!(code == 1 && err.contains("is in namespace \"rack\", and -n says \"other\""), "{err}");
    // One of two is wrong: the other is done.
    let both = format!("apiVersion: v1\nkind: ConfigMop\nmetadata: {{name: d}}\n---\n{}", map(r#"a: "3""#));
    let (code, out, err) = apply("", &both);
    assert!(code == 1 && err.contains("did you mean ConfigMap?") && out == "configmap/c configured\n", "{out}{err}");
    assert_eq!(data().await, json!({"a": "3"}));
}
