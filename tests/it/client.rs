//! The built-in client against a running API, beside real kubectl: the same words, the same tables.
//!
//! kubectl is the first of `$KUBECTL`, or the one on the path, or the one that `make unit` keeps.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use slipway::apiserver::{ApiServer, tls};
use slipway::pki::{CLIENT_LIFETIME, Pki};
use slipway::store::{Store, StoreOptions};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// No single command takes longer.
const DEADLINE: Duration = Duration::from_secs(120);

/// An API server on a port of its own.
struct Lab {
    folder: tempfile::TempDir,
    api: ApiServer,
    shutdown: CancellationToken,
}

/// What a command did.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Lab {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (path, key_file) = (folder.path().join("db"), folder.path().join("key"));
        let store = Store::open(StoreOptions { path, key_file, history: 1000 }).unwrap();
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(store, &slipway::modules::kinds(), shutdown.clone()).await.unwrap();
        let pki = Pki::open(&folder.path().join("pki"), &[]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("https://{}", listener.local_addr().unwrap());
        tokio::spawn(tls::serve(listener, pki.server_config().unwrap(), api.router(), shutdown.clone()));
        let sweeper = api.clone();
        tokio::spawn(async move { sweeper.run().await });
        std::fs::write(folder.path().join("config"), pki.authority().kubeconfig(&endpoint, CLIENT_LIFETIME).unwrap())
            .unwrap();
        Self { folder, api, shutdown }
    }

    /// A rack with two hosts, and a spare in another namespace.
    async fn with_rack() -> Self {
        let lab = Self::new().await;
        for namespace in ["rack", "lab"] {
            lab.create("", "Namespace", "", json!({"metadata": {"name": namespace}})).await;
        }
        for (namespace, name, online) in [("rack", "web-01", true), ("rack", "web-02", false), ("lab", "spare", true)] {
            let spec = json!({"online": online, "bootMACAddress": format!("52:54:00:00:00:{:02x}", name.len()),
                "bmc": {"address": "ipmi://192.0.2.1", "credentialsName": "bmc"}});
            let metadata = json!({"name": name, "labels": {"example.org/row": namespace}});
            lab.create("metal3.io", "BareMetalHost", namespace, json!({"metadata": metadata, "spec": spec})).await;
        }
        let metadata = json!({"name": "bmc"});
        lab.create(
            "",
            "Secret",
            "rack",
            json!({"metadata": metadata, "stringData": {"username": "u", "password": "hunter2"}}),
        )
        .await;
        lab
    }

    fn objects(&self, group: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let version = if group.is_empty() { "v1" } else { "v1alpha1" };
        let resource = kube::discovery::ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        if namespace.is_empty() {
            Api::all_with(self.api.client(), &resource)
        } else {
            Api::namespaced_with(self.api.client(), namespace, &resource)
        }
    }

    fn hosts(&self) -> Api<DynamicObject> {
        self.objects("metal3.io", "BareMetalHost", "rack")
    }

    async fn create(&self, group: &str, kind: &str, namespace: &str, mut object: Value) {
        let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1alpha1") };
        object["apiVersion"] = version.into();
        object["kind"] = kind.into();
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.objects(group, kind, namespace).create(&PostParams::default(), &object).await.unwrap();
    }

    async fn set_state(&self, name: &str, state: &str) {
        let status = json!({"status": {"provisioning": {"state": state, "ID": ""}, "poweredOn": true, "operationalStatus": "OK",
            "errorMessage": "", "errorCount": 0, "goodCredentials": {}, "triedCredentials": {}, "operationHistory": {}}});
        self.hosts().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    fn command(&self, program: &std::path::Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", self.folder.path().join("config"))
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    fn slipway(&self, arguments: &[&str]) -> Command {
        self.command(&assert_cmd::cargo::cargo_bin("slipway"), arguments)
    }

    async fn run(&self, arguments: &str) -> Ran {
        self.run_with(arguments, "").await
    }

    async fn run_with(&self, arguments: &str, input: &str) -> Ran {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        finish(self.slipway(&arguments), input).await
    }

    /// What slipway prints; it must succeed.
    async fn ok(&self, arguments: &str) -> String {
        let ran = self.run(arguments).await;
        assert_eq!(ran.code, 0, "slipway {arguments}\n{}{}", ran.out, ran.err);
        ran.out
    }

    /// What slipway complains; it must fail with this code.
    async fn fails(&self, code: i32, arguments: &str) -> String {
        let ran = self.run(arguments).await;
        assert_eq!(ran.code, code, "slipway {arguments}\n{}{}", ran.out, ran.err);
        ran.err
    }
}

async fn finish(mut command: Command, input: &str) -> Ran {
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.ok();
    drop(stdin);
    let output = timeout(DEADLINE, child.wait_with_output()).await.expect("it hangs").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

fn kubectl() -> PathBuf {
    if let Some(list) = std::env::var_os("KUBECTL").filter(|list| !list.is_empty()) {
        return std::env::split_paths(&list).next().unwrap();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("kubectl"));
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let found = on_path.chain([home.join(".cache/slipway/kubectl-1.33/kubectl")]).find(|file| file.is_file());
    found.expect("kubectl is needed: `make unit` fetches one, or name yours in $KUBECTL")
}

/// Ages are of the moment, so they are not compared.
fn without_ages(text: &str) -> String {
    // With the blanks after them, which are as many as the longest age wants.
    let age = regex::Regex::new(r"(?m)\b\d+[smh](\d+s)?( +|$)").unwrap();
    age.replace_all(text, "AGE ").into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_those_of_kubectl() {
    let lab = Lab::with_rack().await;
    lab.set_state("web-01", "provisioned").await;
    let kubectl = kubectl();
    for arguments in [
        "get bmh -n rack",
        "get bmh -A",
        "get bmh -A -o wide",
        "get bmh,secrets -n rack",
        "get bmh/web-01 secret/bmc -n rack",
        "get bmh web-01 web-02 -n rack --no-headers",
        "get bmh -n rack -L example.org/row --show-labels",
        "get bmh -A -l example.org/row=lab",
        "get bmh -A --field-selector metadata.name=spare",
        "get bmh -A --sort-by=.metadata.name",
        "get bmh -A --sort-by={.spec.bootMACAddress}",
        "get bmh -n rack -o name",
        "get bmh,secret -n rack -o name",
        "get bmh -n rack -o json",
        "get bmh web-01 -n rack -o json",
        "get secret bmc -n rack -o yaml",
        "get bmh -A -o jsonpath={.items[*].metadata.name}",
        "get bmh -A -o jsonpath={range.items[?(@.spec.online==true)]}{.metadata.name}{end}",
        "get bmh -A -o jsonpath={..name}",
        "get bmh -A -o custom-columns=NAME:.metadata.name,ON:.spec.online,NONE:.spec.none,BMC:.spec.bmc",
        "get ns",
        "get namespaces -o wide",
        "get img",
        "get hardwaredata -n rack",
    ] {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let (ours, theirs) = tokio::join!(finish(lab.slipway(&words), ""), finish(lab.command(&kubectl, &words), ""));
        let shown = format!("{arguments}\n{}{}", ours.err, theirs.err);
        assert_eq!(without_ages(&ours.out), without_ages(&theirs.out), "{shown}");
        assert_eq!(ours.code, theirs.code, "{shown}");
        let quiet = !arguments.contains("img") && !arguments.contains("hardwaredata");
        assert_eq!(ours.out.is_empty(), !quiet, "{shown}");
        // "No resources found …" stands in both.
        assert_eq!(ours.err, theirs.err, "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_prints_what_happens_and_outlives_its_connection() {
    let lab = Lab::with_rack().await;
    let mut child = lab.slipway(&["watch", "hosts", "-n", "rack", "--output-watch-events"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || timeout(DEADLINE, lines.next_line()).await.expect("no line").unwrap().unwrap();
    assert!(next().await.starts_with("EVENT   NAME     STATE"));
    assert!(next().await.starts_with("ADDED   web-01"));
    assert!(next().await.starts_with("ADDED   web-02"));
    lab.set_state("web-02", "inspecting").await;
    let line = next().await;
    assert!(line.starts_with("MODIFIED   web-02   inspecting"), "{line}");
    lab.hosts().delete("web-01", &Default::default()).await.unwrap();
    let line = next().await;
    assert!(line.starts_with("DELETED    web-01"), "{line}");
    child.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn describing_shows_state_conditions_and_events() {
    let lab = Lab::with_rack().await;
    lab.set_state("web-01", "inspecting").await;
    let host = lab.hosts().get("web-01").await.unwrap();
    let event = json!({"metadata": {"name": "web-01.1"}, "type": "Warning", "reason": "InspectionError", "message": "no call back",
        "count": 2, "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": "slipway-host"},
        "involvedObject": {"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "namespace": "rack", "name": "web-01",
            "uid": host.metadata.uid}});
    lab.create("", "Event", "rack", event).await;
    let text = lab.ok("describe host web-01 -n rack").await;
    for part in [
        "Name:         web-01\n",
        "State:        inspecting\n",
        "Power:        on\n",
        "Boot MAC Address:",
        "InspectionError",
    ] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
    let other = lab.ok("describe host/web-02 -n rack").await;
    assert!(other.ends_with("Events:  <none>\n"), "{other}");
    let secret = lab.ok("describe secret bmc -n rack").await;
    assert!(secret.contains("Password:  7 bytes") && !secret.contains("aHVudGVyMg"), "{secret}");
    assert_eq!(lab.ok("describe hosts -A").await.matches("Kind:         BareMetalHost").count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_when_the_wish_holds_and_says_why_it_did_not() {
    let lab = Lab::with_rack().await;
    let arguments = "wait host/web-01 -n rack --for=state=provisioned --timeout=60s";
    let (ran, ()) = tokio::join!(lab.run(arguments), lab.set_state("web-01", "provisioned"));
    assert_eq!((ran.code, ran.out.as_str()), (0, "baremetalhost.metal3.io/web-01 condition met\n"), "{}", ran.err);
    lab.ok("wait hosts -n rack -l example.org/row=rack --for=create --timeout=5s").await;
    lab.ok("wait host web-01 -n rack --for=jsonpath={.status.poweredOn}=true --timeout=0").await;
    let late = lab.fails(1, "wait host/web-01 -n rack --for=state=available --timeout=1s").await;
    assert!(
        late.contains("timed out waiting for the condition on baremetalhosts/web-01; its state is provisioned"),
        "{late}"
    );
    let none = lab.fails(1, "wait host/web-1 -n rack --for=state=available --timeout=60s").await;
    assert!(none.contains("did you mean \"web-01\"?"), "{none}");
    let gone = "wait host/web-02 -n rack --for=delete --timeout=60s";
    let hosts = lab.hosts();
    let parameters = Default::default();
    let (gone, deleted) = tokio::join!(lab.run(gone), hosts.delete("web-02", &parameters));
    deleted.unwrap();
    assert_eq!(gone.out, "baremetalhost.metal3.io/web-02 deleted\n", "{}", gone.err);
    lab.fails(2, "wait hosts -n rack --for=delete").await;
    lab.fails(2, "wait host/web-01 -n rack --for=ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_waits_until_it_is_gone_and_says_what_holds_it() {
    let lab = Lab::with_rack().await;
    let held = json!({"metadata": {"finalizers": ["example.org/hold"]}});
    lab.hosts().patch("web-01", &PatchParams::default(), &Patch::Merge(held)).await.unwrap();
    let dry = lab.ok("delete host web-02 -n rack --dry-run").await;
    assert_eq!(dry, "baremetalhost.metal3.io \"web-02\" deleted from rack namespace (server dry run)\n");
    assert_eq!(
        lab.ok("delete host web-02 -n rack").await,
        "baremetalhost.metal3.io \"web-02\" deleted from rack namespace\n"
    );
    let late = lab.fails(1, "delete host web-01 -n rack --timeout=1s").await;
    assert!(late.contains("is not gone in time; held by example.org/hold"), "{late}");
    let free = json!({"metadata": {"finalizers": null}});
    let (hosts, parameters, free) = (lab.hosts(), PatchParams::default(), Patch::Merge(free));
    let (ran, freed) = tokio::join!(lab.run("delete hosts --all -n rack"), hosts.patch("web-01", &parameters, &free));
    freed.unwrap();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(lab.fails(1, "delete host web-01 -n rack").await.contains("no host named \"web-01\""));
    lab.ok("delete host web-01 -n rack --ignore-not-found").await;
    assert_eq!(lab.ok("delete secrets -l a=b -n rack").await, "No resources found\n");
    let manifest = "apiVersion: v1\nkind: Secret\nmetadata: {name: bmc, namespace: rack}\n";
    let ran = lab.run_with("delete -f - -o name", manifest).await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "secret/bmc\n"), "{}", ran.err);
    lab.ok("delete ns lab").await;
    assert!(lab.fails(1, "get host spare -n lab").await.contains("no host named"));
    for wrong in ["delete", "delete hosts -n rack", "delete host a --all"] {
        lab.fails(2, wrong).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verb_is_for_many_hosts_and_waits_for_them() {
    let lab = Lab::with_rack().await;
    for name in ["web-01", "web-02"] {
        lab.set_state(name, "available").await;
    }
    let host = async |name: &str| serde_json::to_value(lab.hosts().get(name).await.unwrap()).unwrap();

    // Labels, set for all and removed from one.
    assert_eq!(lab.ok("host label --all -n rack tier=web").await, "host web-01 is labelled\nhost web-02 is labelled\n");
    let refused = lab.fails(1, "host label web-01 -n rack tier=db").await;
    assert!(refused.contains("host web-01 has the label tier=web already: give --overwrite"), "{refused}");
    lab.ok("host label web-01 tier- -n rack").await;
    assert_eq!(lab.ok("get hosts -n rack -l tier=web -o name").await, "baremetalhost.metal3.io/web-02\n");

    // Nobody acts on these hosts: the wait ends when the status says so, or at the deadline with a reason.
    let arguments = "host power off -l example.org/row=rack -n rack --wait --timeout 60s";
    let off = async {
        for name in ["web-01", "web-02"] {
            let status = json!({"status": {"poweredOn": false}});
            lab.hosts().patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        }
    };
    let (ran, ()) = tokio::join!(lab.run(arguments), off);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(
        ran.out.contains("host web-01 is powered off\n") && ran.out.contains("host web-02 is powered off\n"),
        "{}",
        ran.out
    );
    assert_eq!(host("web-01").await["spec"]["online"], false);
    let late = lab.fails(1, "host power on web-01 -n rack --wait --timeout 1s").await;
    assert!(late.contains("host web-01 is not yet as it was asked for"), "{late}");
    // The second is begun only when the first is on, or its time is over.
    let ran = lab.run("host power web-01 web-02 on -n rack --max-parallel 1 --stagger 0 --timeout 1s").await;
    assert_eq!((ran.code, host("web-02").await["spec"]["online"] == true), (1, true), "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("web-01") && ran.out == "host web-02 is to be powered on\n", "{}{}", ran.out, ran.err);

    let missing = lab.run("host pause web-1 web-02 -n rack").await;
    assert_eq!((missing.code, missing.out.as_str()), (1, "host web-02 is paused\n"));
    assert!(missing.err.contains("did you mean \"web-01\"?"), "{}", missing.err);
    lab.fails(1, "host pause -l tier=none -n rack").await;
    for wrong in ["host power web-01", "host pause", "host pause a --all", "host label web-01", "host pause -l,"] {
        let code = if wrong.ends_with("-l,") { 1 } else { 2 };
        lab.fails(code, wrong).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_deployed_from_files_and_released() {
    let lab = Lab::with_rack().await;
    lab.set_state("web-01", "available").await;
    std::fs::write(lab.folder.path().join("user.yaml"), "#cloud-config\n").unwrap();
    let host = async || serde_json::to_value(lab.hosts().get("web-01").await.unwrap()).unwrap();
    // A host that does not take the image keeps nothing of it, the Secret neither.
    let refused =
        "host deploy web-01 -n rack --image http://x/i --checksum 0 --checksum-type sha1 --user-data user.yaml";
    let refused = lab.fails(1, refused).await;
    assert!(refused.contains("host web-01 cannot be changed") && refused.contains("checksumType"), "{refused}");
    let secrets = lab.objects("", "Secret", "rack");
    assert!(secrets.get_opt("web-01-user-data").await.unwrap().is_none());

    let sum = "0".repeat(64);
    let arguments = format!("host deploy web-01 -n rack --image http://192.0.2.9/i.raw --checksum {sum} --user-data -");
    let ran = lab.run_with(&arguments, "#cloud-config\n").await;
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "host web-01 is to be provisioned with http://192.0.2.9/i.raw\n"),
        "{}",
        ran.err
    );
    let deployed = host().await;
    assert_eq!(deployed["spec"]["image"], json!({"url": "http://192.0.2.9/i.raw", "checksum": sum}));
    assert_eq!(deployed["spec"]["userData"], json!({"name": "web-01-user-data", "namespace": "rack"}));
    let secret = serde_json::to_value(secrets.get("web-01-user-data").await.unwrap()).unwrap();
    assert_eq!(secret["data"]["userData"], "I2Nsb3VkLWNvbmZpZwo=");
    assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], deployed["metadata"]["uid"]);

    let again = lab.fails(1, "host deploy web-01 -n rack --image http://192.0.2.9/j.raw").await;
    assert!(
        again.contains("has the image http://192.0.2.9/i.raw already: `slipway host release web-01` first"),
        "{again}"
    );
    lab.set_state("web-01", "provisioned").await;
    assert_eq!(lab.ok("host release web-01 -n rack").await, "host web-01 is to be released: ITS DISKS ARE ERASED\n");
    let released = host().await;
    assert_eq!((&released["spec"]["image"], &released["spec"]["userData"]), (&Value::Null, &Value::Null));
    assert_eq!(released["spec"]["online"], true);
}

/// As bash asks while somebody types.
#[tokio::test(flavor = "multi_thread")]
async fn a_shell_is_told_types_and_names_of_the_server() {
    let lab = Lab::with_rack().await;
    let asks = async |line: &str, kubeconfig: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = lab.slipway(&[&["--"], &words[..]].concat());
        command.env("SLIPWAY_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        command.env("_CLAP_IFS", "\n").env("KUBECONFIG", lab.folder.path().join(kubeconfig));
        let ran = finish(command, "").await;
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{line}");
        ran.out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let kinds = ["baremetalhosts", "baremetalhostcredentials", "baremetalhostinventories"];
    assert_eq!(asks("slipway get baremetalh", "config").await, kinds);
    assert_eq!(asks("slipway get host -n rack we", "config").await, ["web-01", "web-02"]);
    assert_eq!(asks("slipway describe -n rack secret/b", "config").await, ["secret/bmc"]);
    assert_eq!(asks("slipway host reboot web-01 web-02 -n rack web-0", "config").await, ["web-01", "web-02"]);
    assert_eq!(asks("slipway get hosts -n ra", "config").await, ["rack"]);
    assert_eq!(asks("slipway host rele", "config").await, ["release"]);
    // Without a server there is nothing to tell, and nobody is told off for it.
    let none = asks("slipway get hosts we", "missing").await;
    assert!(none.is_empty(), "{none:?}");
    // What is printed for a shell asks for them by that name.
    let script = "source <(slipway completion bash) && COMP_WORDS=(slipway get host -n rack web-) COMP_CWORD=5 \
        && _clap_complete_slipway slipway web- rack && echo \"${COMPREPLY[*]}\"";
    let folder = assert_cmd::cargo::cargo_bin("slipway").parent().unwrap().to_owned();
    let mut bash = lab.command(std::path::Path::new("bash"), &["-c", script]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(folder).chain(std::env::split_paths(&path))).unwrap();
    bash.env("PATH", path);
    let ran = finish(bash, "").await;
    assert_eq!(
        (ran.code, ran.out.split_whitespace().collect::<Vec<_>>()),
        (0, vec!["web-01", "web-02"]),
        "{}",
        ran.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_are_an_inventory_for_ansible() {
    let lab = Lab::with_rack().await;
    for (namespace, name, address) in [("rack", "web-01", "10.0.0.5"), ("lab", "spare", "10.1.0.5")] {
        let addresses = json!([{"address": address, "macAddress": "52:54:00:00:00:06", "network": "n"}]);
        let status = json!({"status": {"provisioning": {"state": "provisioned", "ID": ""}, "addresses": addresses,
            "poweredOn": true, "operationalStatus": "OK", "errorMessage": "", "errorCount": 0, "goodCredentials": {},
            "triedCredentials": {}, "operationHistory": {}}});
        let hosts = lab.objects("metal3.io", "BareMetalHost", namespace);
        hosts.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }
    let ini = lab.run("get hosts -n rack -o ansible").await;
    assert_eq!(ini.code, 0, "{}", ini.err);
    for wanted in [
        "# web-02: no address is leased to it\n[all]\nweb-01 ansible_host=10.0.0.5 ",
        "\n[label_example_org_row_rack]\nweb-01\n",
        "\n[state_provisioned]\nweb-01\n",
    ] {
        assert!(ini.out.contains(wanted), "{wanted}: {}", ini.out);
    }
    assert_eq!(ini.err, "slipway: not in the inventory: web-02: no address is leased to it\n");
    let yaml = lab.ok("get hosts -A -l example.org/row=lab -o ansible-yaml").await;
    assert!(yaml.starts_with("all:\n  hosts:\n    \"spare.lab\":\n"), "{yaml}");
    // Nobody is nobody, and says so.
    let none = lab.run("get hosts -n rack -l a=b -o ansible").await;
    assert_eq!((none.code, none.out.as_str()), (0, "[all]\n"));
    assert_eq!(none.err, "slipway: no host is in the inventory\n");
    for wrong in [
        "get hosts,secrets -n rack -o ansible",
        "get secrets -o ansible",
        "watch hosts -o ansible-yaml",
        "get hosts -o ansible=x",
    ] {
        lab.fails(2, wrong).await;
    }
    let missing = lab.fails(1, "get hosts web-01 web-1 -n rack -o ansible").await;
    assert!(missing.contains("no host named"), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_left_alone_and_who_changed_a_field_is_told() {
    let lab = Lab::with_rack().await;
    lab.set_state("web-01", "available").await;
    lab.ok("host pause web-01 -n rack").await;
    let table = lab.ok("get hosts -n rack").await;
    assert!(table.contains("paused (slipway host pause), so nothing is done with it"), "{table}");
    let described = lab.ok("describe host web-01 -n rack").await;
    assert!(described.contains("Now:          paused (slipway host pause)"), "{described}");

    let slip = lab.fails(1, "patch host web-02 -n rack -p {\"spec\":{\"onlin\":false}}").await;
    assert_eq!(slip, "slipway: BareMetalHost \"web-02\": spec.onlin: there is no such field; did you mean online?\n");

    let host = "apiVersion: metal3.io/v1alpha1\nkind: BareMetalHost\nmetadata: {name: web-03}\nspec:\n  online: true\n  \
        bootMACAddress: 52:54:00:00:00:33\n  bmc: {address: 'ipmi://192.0.2.3', credentialsName: bmc}\n";
    std::fs::write(lab.folder.path().join("web-03.yaml"), host).unwrap();
    lab.ok("apply -f web-03.yaml -n rack").await;
    lab.set_state("web-03", "available").await;
    lab.ok("host power off web-03 -n rack").await;
    let conflict = lab.fails(1, "apply -f web-03.yaml -n rack").await;
    assert!(conflict.contains(".spec.online") && conflict.contains("`slipway host …` set these fields"), "{conflict}");
    lab.ok("apply -f web-03.yaml -n rack --force-conflicts").await;

    let types = lab.ok("types bmh").await;
    assert!(types.contains("host,hosts,bmh") && types.contains("metal3.io/v1alpha1"), "{types}");
    let instead = lab.fails(2, "create ns x").await;
    assert!(instead.contains("slipway apply -f FILE") && !instead.contains("restore"), "{instead}");
    let asked = lab.fails(2, "cluster delete demo").await;
    assert!(asked.contains("give --yes"), "{asked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_in_use_stays_and_events_are_in_order() {
    let lab = Lab::with_rack().await;
    let image = json!({"metadata": {"name": "deb"}, "spec": {"url": "http://192.0.2.9/deb.raw"}});
    lab.create("slipway.dev", "Image", "", image).await;
    let wanted = json!({"spec": {"image": {"url": "slipway://deb"}}});
    lab.hosts().patch("web-01", &PatchParams::default(), &Patch::Merge(wanted)).await.unwrap();
    let refused = lab.fails(1, "delete image deb").await;
    assert!(refused.contains("image deb is used by rack/web-01; --force removes it all the same"), "{refused}");
    let gone: Value = serde_json::from_str(&lab.ok("delete image deb --force -o json").await).unwrap();
    assert_eq!((&gone[0]["name"], &gone[0]["result"]), (&json!("deb"), &json!("deleted")), "{gone}");

    for (name, at) in [("a", "2026-01-01T00:02:00Z"), ("b", "2026-01-01T00:01:00Z")] {
        let event = json!({"metadata": {"name": name}, "reason": name.to_uppercase(), "message": "m", "type": "Normal", "lastTimestamp": at,
            "involvedObject": {"kind": "BareMetalHost", "name": "web-01", "namespace": "rack"}});
        lab.create("", "Event", "rack", event).await;
    }
    let listed = lab.ok("get events -n rack --no-headers").await;
    let reasons: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(reasons, ["B", "A"], "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_say_what_was_meant() {
    let lab = Lab::with_rack().await;
    for (arguments, wanted) in [
        ("get host web-1 -n rack", "no host named \"web-1\" in namespace \"rack\"; did you mean \"web-01\"?"),
        (
            "get host web-01",
            "no host named \"web-01\" in namespace \"default\"; there is one in namespace rack: -n rack",
        ),
        ("get host spares", "did you mean \"spare\" in namespace lab?"),
        ("get baremetalhots", "the server has no type \"baremetalhots\"; did you mean baremetalhosts?"),
        ("describe ns rock", "no namespace named \"rock\"; did you mean \"rack\"?"),
        ("delete secret bcm -n rack", "no secret named \"bcm\" in namespace \"rack\"; did you mean \"bmc\"?"),
        ("get ns --kubeconfig none", "none"),
    ] {
        let error = lab.fails(1, arguments).await;
        assert!(error.contains(wanted), "{arguments}: {error}");
    }
    for wrong in
        ["get", "get hosts/a b", "get hosts web-01 -l a=b", "get hosts -o xml", "watch hosts secrets/a", "apply"]
    {
        lab.fails(2, wrong).await;
    }
    // What was found is printed, and the failure is not forgotten.
    let ran = lab.run("get hosts web-01 web-1 -n rack").await;
    assert!(ran.code == 1 && ran.out.contains("web-01") && ran.err.contains("did you mean"), "{}{}", ran.out, ran.err);
    assert_eq!(lab.ok("get host web-1 -n rack --ignore-not-found -o json").await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_had_is_named() {
    let lab = Lab::new().await;
    let file = lab.folder.path().join("config");
    let config = std::fs::read_to_string(&file).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = regex::Regex::new(r"https://[0-9.:]+").unwrap();
    let elsewhere = format!("https://127.0.0.1:{port}");
    std::fs::write(lab.folder.path().join("closed"), address.replace(&config, elsewhere.as_str()).as_ref()).unwrap();
    let error = lab.fails(1, "get ns --kubeconfig closed").await;
    for part in [elsewhere.as_str(), "kubeconfig closed", "is `slipway serve` running?", "--kubeconfig FILE"] {
        assert!(error.contains(part), "{part:?}: {error}");
    }
    // The credentials of another appliance: its CA has not signed this server's certificate.
    let other = Pki::open(&lab.folder.path().join("other"), &[]).unwrap();
    let here = address.find(&config).unwrap().as_str();
    std::fs::write(lab.folder.path().join("foreign"), other.authority().kubeconfig(here, CLIENT_LIFETIME).unwrap())
        .unwrap();
    let error = lab.fails(1, "get ns --kubeconfig foreign").await;
    assert!(error.contains("is not signed by the CA of the credentials"), "{error}");
    let mut none = lab.slipway(&["get", "ns"]);
    none.env_remove("KUBECONFIG");
    let ran = finish(none, "").await;
    assert!(
        ran.code == 1 && (ran.err.contains("no server to talk to") || ran.err.contains("slipway.toml")),
        "{}",
        ran.err
    );
}

#[test]
fn definitions_and_completions_are_printed() {
    let slipway = |arguments: &[&str]| {
        let output = assert_cmd::Command::cargo_bin("slipway").unwrap().args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let files = slipway(&["crds", "--output-dir", path]);
    assert!(files.contains("metal3.io_baremetalhosts.yaml"), "{files}");
    let all: Vec<Value> = serde_saphyr::from_multiple(&slipway(&["crds"])).unwrap();
    assert_eq!(all.len(), slipway::modules::acted_on().len());
    for crd in all {
        let plural = crd["spec"]["names"]["plural"].as_str().unwrap();
        let file = folder.path().join(format!("{}_{plural}.yaml", crd["spec"]["group"].as_str().unwrap()));
        let same: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert_eq!(same, crd);
    }
    for (shell, word) in
        [("bash", "-F _clap_complete_slipway slipway"), ("zsh", "#compdef slipway"), ("fish", "--command slipway")]
    {
        assert!(slipway(&["completion", shell]).contains(word), "{shell}");
    }
}
