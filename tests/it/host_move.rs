//! Hosts go from one appliance to another with `slipway host move`: their machines notice nothing.
//!
//! Two appliances on loopback and simulated BMCs; no rights are needed.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use crate::process::{Appliance, DEADLINE, until};
use futures::StreamExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use serde_json::json;
use slipway::api::metal3::{BareMetalHost, HardwareData, OperationalStatus, ProvisioningState};
use slipway::api::slipway::BootIntent;
use slipway::bmc::address::Privilege;
use slipway::bmc::sim::{Account, RedfishOptions, RedfishSim, SimulatedMachine as Machine, SimulatedProfile};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const PAUSED: &str = "baremetalhost.metal3.io/paused";

/// Two appliances and the machines between them.
struct Lab {
    folder: tempfile::TempDir,
    old: Site,
    new: Site,
    machines: Vec<Arc<Machine>>,
    port: u16,
    stop: CancellationToken,
}

struct Site {
    client: Client,
    kubeconfig: PathBuf,
    _appliance: Appliance,
}

/// What a command did.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Site {
    async fn new(kubeconfig: PathBuf) -> Self {
        let appliance = Appliance::with("[bmc]\nallow = [\"127.0.0.1\"]\n").await;
        let client = appliance.client().await;
        std::fs::write(&kubeconfig, appliance.kubeconfig().await).unwrap();
        Self { client, kubeconfig, _appliance: appliance }
    }

    fn hosts(&self, namespace: &str) -> Api<BareMetalHost> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn names(&self, namespace: &str) -> Vec<String> {
        let all = self.hosts(namespace).list(&ListParams::default()).await.unwrap();
        all.iter().map(ResourceExt::name_any).collect()
    }

    async fn host(&self, name: &str) -> BareMetalHost {
        self.hosts("rack").get(name).await.unwrap()
    }

    async fn annotate(&self, name: &str, key: &str, value: Option<&str>) {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { key: value } } }));
        self.hosts("rack").patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
}

fn state(host: &BareMetalHost) -> ProvisioningState {
    host.status.as_ref().map(|status| status.provisioning.state).unwrap_or_default()
}

impl Lab {
    async fn new() -> Self {
        slipway::appliance::install_tls_provider();
        let folder = tempfile::tempdir().unwrap();
        let machine =
            |name: &str| Arc::new(Machine::new(SimulatedProfile { name: name.into(), ..SimulatedProfile::default() }));
        let machines: Vec<_> = ["1", "2", "3"].map(machine).into();
        let account =
            Account { username: "admin".into(), password: "secret".into(), privilege: Privilege::Administrator };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let service = RedfishSim::new(machines.clone(), account, RedfishOptions::default());
        tokio::spawn(service.run(listener, None, stop.clone()));
        let (old, new) = tokio::join!(Site::new(folder.path().join("old")), Site::new(folder.path().join("new")));
        Self { folder, old, new, machines, port, stop }
    }

    async fn slipway(&self, site: &Site, arguments: &str, input: &str) -> Ran {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_slipway"));
        command.args(arguments.split_whitespace()).env_remove("SLIPWAY_CONFIG").env("KUBECONFIG", &site.kubeconfig);
        command.current_dir(self.folder.path()).kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).await.ok();
        let output = timeout(DEADLINE, child.wait_with_output()).await.expect("it hangs").unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    async fn ok(&self, site: &Site, arguments: &str) -> String {
        let ran = self.slipway(site, arguments, "").await;
        assert_eq!(ran.code, 0, "slipway {arguments}\n{}{}", ran.out, ran.err);
        ran.out
    }

    async fn fails(&self, site: &Site, arguments: &str, wanted: &str) {
        let ran = self.slipway(site, arguments, "").await;
        assert!(ran.code == 1 && ran.err.contains(wanted), "slipway {arguments}\n{}{}", ran.out, ran.err);
    }

    /// A system that Slipway has started, one that somebody else installed, an empty machine, and one without a BMC.
    async fn rack(&self) {
        let bmc = |number: u8| {
            let address = format!("redfish+http://127.0.0.1:{}/redfish/v1/Systems/{number}", self.port);
            json!({ "address": address, "credentialsName": "bmc" })
        };
        let host = |name: &str, spec: serde_json::Value| {
            json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
                "metadata": {"name": name, "namespace": "rack", "labels": {"row": "7"}}, "spec": spec})
        };
        let secret = |name: &str, data: serde_json::Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "rack"}, "stringData": data});
        let calm = json!({"inspectionMode": "disabled", "automatedCleaningMode": "disabled"});
        let spec = |over: serde_json::Value| {
            let mut spec = calm.clone();
            spec.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
            spec
        };
        let objects = [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "rack"}}),
            secret("bmc", json!({"username": "admin", "password": "secret"})),
            secret("web-1-user-data", json!({"userData": "#cloud-config"})),
            host(
                "web-1",
                spec(json!({"online": true, "bootMACAddress": "02:00:00:00:00:01", "bmc": bmc(1),
                "customDeploy": {"method": "boot-disk"}, "userData": {"name": "web-1-user-data"}})),
            ),
            host(
                "db-1",
                spec(json!({"online": true, "bootMACAddress": "02:00:00:00:00:02", "bmc": bmc(2),
                "externallyProvisioned": true})),
            ),
            host("spare-1", spec(json!({"online": false, "bootMACAddress": "02:00:00:00:00:03", "bmc": bmc(3)}))),
            host("new-1", json!({"online": false})),
        ];
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let ran = self.slipway(&self.old, "apply -f -", &list).await;
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        for (name, state) in [
            ("web-1", "provisioned"),
            ("db-1", "externally provisioned"),
            ("spare-1", "available"),
            ("new-1", "unmanaged"),
        ] {
            let mut arguments = vec!["wait", "-n", "rack", "--timeout=90s"];
            let (host, wish) = (format!("host/{name}"), format!("--for=state={state}"));
            arguments.extend([host.as_str(), wish.as_str()]);
            let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_slipway"))
                .args(arguments)
                .env("KUBECONFIG", &self.old.kubeconfig)
                .output()
                .await
                .unwrap();
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        }
        // What inspection would have found.
        let hardware = json!({"hardware": {"hostname": "web-1", "ramMebibytes": 4096}});
        let data = json!({"apiVersion": "metal3.io/v1alpha1", "kind": "HardwareData", "spec": hardware,
            "metadata": {"name": "web-1", "namespace": "rack"}});
        let ran = self.slipway(&self.old, "apply -f -", &data.to_string()).await;
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        until("the machines are on", async || (self.machines[0].is_on() && self.machines[1].is_on()).then_some(()))
            .await;
    }

    /// Numbers that change with every write to a BMC: power, boot device, medium.
    fn written(&self) -> Vec<u64> {
        self.machines.iter().map(|machine| machine.generation()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rack_moves_to_another_appliance_and_its_machines_run_on() {
    let lab = Lab::new().await;
    lab.rack().await;
    let (old, new) = (&lab.old, &lab.new);
    let before = lab.written();

    // Nothing is touched while one of them cannot go.
    old.annotate("db-1", PAUSED, Some("")).await;
    lab.fails(old, "host move --all -n rack --to-kubeconfig new", "host rack/db-1 is paused").await;
    let dry = lab.slipway(old, "host move --all -n rack --to-kubeconfig new --dry-run", "").await;
    assert_eq!((dry.code, dry.out.lines().count()), (1, 3), "{}{}", dry.out, dry.err);
    assert_eq!((old.names("rack").await.len(), new.names("rack").await.len()), (4, 0));
    assert!(!old.host("web-1").await.annotations().contains_key("baremetalhost.metal3.io/detached"));
    old.annotate("db-1", PAUSED, None).await;
    lab.fails(old, "host move web-1 -n rack --to-namespace rack", "is to go where it is").await;
    lab.fails(old, "host move web-2 -n rack --to-kubeconfig new", "did you mean \"web-1\"").await;
    // A file with a status is no way: a new host has none.
    let yaml = lab.ok(old, "get host web-1 -n rack -o yaml").await;
    let nameless =
        regex::Regex::new(r"(?m)^  (uid|resourceVersion): .*\n").unwrap().replace_all(&yaml, "").into_owned();
    let ran = lab.slipway(new, "apply -f -", &nameless).await;
    assert!(ran.code == 1 && ran.err.contains("its disks would be erased"), "{}{}", ran.out, ran.err);

    // Every state that the moved hosts are seen in, from the first on.
    let seen: Arc<std::sync::Mutex<Vec<(String, ProvisioningState)>>> = Arc::default();
    let watched = seen.clone();
    let stream = watcher::watcher(Api::<BareMetalHost>::all(new.client.clone()), watcher::Config::default());
    let watching = tokio::spawn(async move {
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            if let Ok(watcher::Event::Apply(host) | watcher::Event::InitApply(host)) = event {
                watched.lock().unwrap().push((host.name_any(), state(&host)));
            }
        }
    });
    let said = lab.ok(old, "host move --all -n rack --to-kubeconfig new").await;
    assert_eq!(said.lines().filter(|line| line.contains(" moved to https://")).count(), 4, "{said}");
    assert!(old.names("rack").await.is_empty());
    for (name, wanted) in [
        ("web-1", ProvisioningState::Provisioned),
        ("db-1", ProvisioningState::ExternallyProvisioned),
        ("spare-1", ProvisioningState::Available),
        ("new-1", ProvisioningState::Unmanaged),
    ] {
        let host = until(name, async || {
            let host = new.host(name).await;
            let managed = wanted == ProvisioningState::Unmanaged
                || host.status.as_ref().is_some_and(|status| {
                    status.operational_status == OperationalStatus::OK
                        && Some(&status.provisioning.id) == host.metadata.uid.as_ref()
                });
            let restored = !host.annotations().keys().any(|key| key.contains("metal3.io"));
            (state(&host) == wanted && managed && restored).then_some(host)
        });
        let host = host.await;
        assert_eq!(host.labels().get("row").map(String::as_str), Some("7"));
        let seen = seen.lock().unwrap();
        let states: Vec<_> = seen.iter().filter(|(seen, _)| seen == name).map(|(_, state)| *state).collect();
        assert!(states.iter().all(|state| [ProvisioningState::None, wanted].contains(state)), "{name}: {states:?}");
    }
    watching.abort();
    assert_eq!(lab.written(), before, "nothing was written to a BMC");
    assert!(lab.machines[0].is_on() && lab.machines[1].is_on());

    // What belongs to them came along, and the power is the new appliance's to manage.
    let data = Api::<HardwareData>::namespaced(new.client.clone(), "rack").get("web-1").await.unwrap();
    assert_eq!(data.spec.hardware.map(|hardware| hardware.ram_mebibytes), Some(4096));
    assert_eq!(data.metadata.owner_references.unwrap()[0].uid, new.host("web-1").await.uid().unwrap());
    lab.ok(new, "get secret web-1-user-data bmc -n rack -o name").await;
    until("the old appliance forgets the password", async || {
        let left = lab.slipway(old, "get secret bmc -n rack", "").await;
        (left.code == 1).then_some(())
    })
    .await;
    lab.ok(new, "host power db-1 off -n rack").await;
    until("the new appliance switches it off", async || (!lab.machines[1].is_on()).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_was_broken_off_is_finished_and_never_two_act() {
    let lab = Lab::new().await;
    lab.rack().await;
    let (old, new) = (&lab.old, &lab.new);
    let hold = |finalizers: serde_json::Value| {
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
        async move { old.hosts("rack").patch("web-1", &PatchParams::default(), &patch).await.unwrap() }
    };
    let before = lab.written();
    hold(json!(["baremetalhost.metal3.io", "example.org/hold"])).await;
    lab.fails(old, "host move web-1 -n rack --to-kubeconfig new --timeout=15s", "held by [\"example.org/hold\"]").await;
    // The copy is there, and nobody acts on it before the original is gone.
    let copy = new.host("web-1").await;
    assert!(copy.status.is_none() && copy.annotations().contains_key(PAUSED), "{copy:?}");
    lab.fails(old, "host move web-1 -n rack --to-kubeconfig new --timeout=3s", "is not gone here in time").await;
    hold(json!([])).await;
    until("the original is gone", async || (!old.names("rack").await.contains(&"web-1".to_owned())).then_some(()))
        .await;
    assert!(new.host("web-1").await.status.is_none());
    assert_eq!(lab.ok(old, "host move --all -n rack --to-kubeconfig new").await.lines().count(), 4);
    until("it is managed", async || (state(&new.host("web-1").await) == ProvisioningState::Provisioned).then_some(()))
        .await;

    // To another namespace of the same server. Since when it has its machine goes along, so that nobody is before it.
    let since = async |namespace: &str| {
        let intents = Api::<BootIntent>::namespaced(new.client.clone(), namespace);
        let intent = intents.get_opt("web-1").await.unwrap();
        intent.and_then(|intent| intent.registration()).map_or(0, |record| record.since)
    };
    let first = until("it is registered", async || Some(since("rack").await).filter(|since| *since > 0)).await;
    lab.ok(new, "host move web-1 -n rack --to-namespace lab").await;
    until("it is managed there", async || {
        let host = new.hosts("lab").get("web-1").await.unwrap();
        let status = host.status.as_ref()?;
        let fine = status.operational_status == OperationalStatus::OK && status.error_message.is_empty();
        (fine
            && state(&host) == ProvisioningState::Provisioned
            && Some(&status.provisioning.id) == host.metadata.uid.as_ref())
        .then_some(())
    })
    .await;
    assert_eq!(since("lab").await, first);
    assert_eq!(new.names("rack").await, ["db-1", "new-1", "spare-1"]);
    assert_eq!(lab.written(), before, "nothing was written to a BMC");
}
