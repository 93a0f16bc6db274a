//! `slipway host …` against an appliance with simulated BMCs: what was asked for is done to the machines.

use std::sync::Arc;

use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use slipway::api::metal3::BareMetalHost;
use slipway::bmc::address::Privilege;
use slipway::bmc::sim::{Account, RedfishOptions, RedfishSim, SimulatedMachine as Machine, SimulatedProfile};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::process::{Appliance, until};

/// An appliance, and machines behind one Redfish service.
struct Lab {
    appliance: Appliance,
    client: Client,
    machines: Vec<Arc<Machine>>,
    port: u16,
    stop: CancellationToken,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Lab {
    async fn new() -> Self {
        slipway::appliance::install_tls_provider();
        let machine =
            |name: &str| Arc::new(Machine::new(SimulatedProfile { name: name.into(), ..SimulatedProfile::default() }));
        let machines: Vec<_> = ["1", "2"].map(machine).into();
        let account =
            Account { username: "admin".into(), password: "secret".into(), privilege: Privilege::Administrator };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let service = RedfishSim::new(machines.clone(), account, RedfishOptions::default());
        tokio::spawn(service.run(listener, None, stop.clone()));
        let appliance = Appliance::with("[bmc]\nallow = [\"127.0.0.1\"]\n[host]\npower_poll = \"1s\"\n").await;
        let client = appliance.client().await;
        Self { appliance, client, machines, port, stop }
    }

    fn hosts(&self) -> Api<BareMetalHost> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Exit code, standard output, standard error.
    async fn slipway(&self, arguments: &str) -> (i32, String, String) {
        let output = self.appliance.slipway(&arguments.split_whitespace().collect::<Vec<_>>()).await;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    }

    async fn ok(&self, arguments: &str) -> String {
        let (code, out, err) = self.slipway(arguments).await;
        assert_eq!(code, 0, "slipway {arguments}\n{out}{err}");
        out
    }

    async fn fails(&self, arguments: &str, wanted: &str) {
        let (code, out, err) = self.slipway(arguments).await;
        assert!(code == 1 && err.contains(wanted), "slipway {arguments}: {code}\n{out}{err}");
    }

    async fn apply(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let file = self.appliance.folder().join("objects.json");
        std::fs::write(&file, list).unwrap();
        self.ok(&format!("apply -f {}", file.display())).await;
    }

    fn host(&self, name: &str, number: u8, port: u16) -> Value {
        let address = format!("redfish+http://127.0.0.1:{port}/redfish/v1/Systems/{number}");
        json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": name, "namespace": "default", "labels": {"rack": "7"}},
            "spec": {"online": true, "bootMACAddress": format!("02:00:00:00:00:0{number}"), "externallyProvisioned": true,
                "bmc": {"address": address, "credentialsName": "bmc"}}})
    }

    fn secret() -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bmc", "namespace": "default"},
            "stringData": {"username": "admin", "password": "secret"}})
    }

    async fn events(&self, reason: &str) -> usize {
        let events = Api::<k8s_openapi::api::core::v1::Event>::namespaced(self.client.clone(), "default");
        let all = events.list(&ListParams::default()).await.unwrap().items;
        all.iter().filter(|event| event.reason.as_deref() == Some(reason)).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rack_is_powered_rebooted_detached_and_paused_by_its_label() {
    let lab = Lab::new().await;
    lab.apply(&[Lab::secret(), lab.host("web-1", 1, lab.port), lab.host("web-2", 2, lab.port)]).await;
    lab.ok("wait hosts --all --for=jsonpath={.status.poweredOn}=true --timeout=90s").await;

    let out = lab.ok("host power off -l rack=7 --wait --max-parallel 1 --timeout 90s").await;
    assert_eq!(out, "host web-1 is powered off\nhost web-2 is powered off\n");
    assert!(lab.machines.iter().all(|machine| !machine.is_on()));
    assert_eq!(lab.ok("host power web-1 off").await, "host web-1 is powered off\n");
    lab.fails("host reboot web-1", "host web-1 is to be off (spec.online is false)").await;

    let out = lab.ok("host power on web-1 web-2 --wait --stagger 0 --timeout 90s -o json").await;
    let outcomes: Vec<Value> = serde_json::from_str(&out).unwrap();
    assert_eq!(outcomes.len(), 2);
    assert!(outcomes.iter().all(|one| one["result"] == "done" && one["namespace"] == "default"), "{out}");
    assert!(lab.machines.iter().all(|machine| machine.is_on()));

    let before = lab.machines[0].generation();
    assert_eq!(lab.ok("host reboot web-1 --hard --wait --timeout 90s").await, "host web-1 was rebooted\n");
    assert!(lab.machines[0].is_on() && lab.machines[0].generation() > before);

    // What cannot be done is said, and the other host has its turn.
    assert_eq!(lab.ok("host detach web-1 --wait --timeout 90s").await, "host web-1 is detached\n");
    let (code, out, err) = lab.slipway("host power off web-1 web-2 --wait --timeout 90s").await;
    assert_eq!((code, out.as_str()), (1, "host web-2 is powered off\n"), "{err}");
    assert!(err.contains("host web-1 is detached, so its machine is left alone"), "{err}");
    assert!(lab.machines[0].is_on() && !lab.machines[1].is_on());
    assert_eq!(lab.ok("host attach web-1 --wait --timeout 90s").await, "host web-1 is attached\n");
    lab.ok("host pause --all").await;
    lab.fails("host inspect web-1", "is paused").await;
    assert_eq!(lab.ok("host unpause -l rack=7 -o name").await.lines().count(), 2);
    lab.fails("host accept web-1", "host web-1 does not wait to be accepted: it is externally provisioned").await;
    lab.fails("host deploy web-1 --image http://x/i", "keeps the system that runs on it").await;
}

/// A BMC that takes connections and never says a word: each request to it takes its whole deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_bmc_does_not_answer_is_deleted_by_force_without_waiting_for_it() {
    let lab = Lab::new().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let mut host = lab.host("web-1", 1, lab.port);
    lab.apply(&[Lab::secret(), host.clone()]).await;
    lab.ok("wait host/web-1 --for=jsonpath={.status.poweredOn}=true --timeout=90s").await;
    host["spec"]["bmc"]["address"] = format!("redfish+http://127.0.0.1:{port}/redfish/v1/Systems/1").into();
    lab.ok("host detach web-1 --wait --timeout 90s").await;
    lab.apply(&[host]).await;
    lab.ok("host attach web-1").await;
    lab.ok("delete host web-1 --wait=false").await;
    // The appliance asks, and waits for an answer.
    let (_asking, _) = tokio::time::timeout(crate::process::DEADLINE, silent.accept()).await.unwrap().unwrap();
    let stays = lab.hosts().get("web-1").await.unwrap();
    assert!(stays.metadata.deletion_timestamp.is_some());
    let out = lab.ok("host delete web-1 --force --timeout 60s").await;
    assert!(out.contains("its machine is not erased and not powered off"), "{out}");
    assert!(lab.hosts().get_opt("web-1").await.unwrap().is_none());
    assert!(lab.machines[0].is_on(), "nobody has touched it");
    until("an event says so", async || (lab.events("MachineLeftAsItIs").await == 1).then_some(())).await;
    // What was asked of the BMC was broken off; it did not fail in the end.
    for reason in ["RegistrationError", "ProvisionedRegistrationError", "PowerManagementError", "PowerOffAbandoned"] {
        assert_eq!(lab.events(reason).await, 0, "{reason}");
    }
}
