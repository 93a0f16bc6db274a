//! The API as real kubectl sees it, over a real TLS listener.
//!
//! kubectl is `$KUBECTL` (several with colons between them: the journeys are made with each), or the one on the
//! path, or the one that `make unit` keeps under `~/.cache/slipway`.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use serde_json::json;
use slipway::api::metal3::BareMetalHost;
use slipway::apiserver::{ApiServer, FieldError, tls};
use slipway::pki::{self, CLIENT_LIFETIME, Pki};
use slipway::store::{Store, StoreOptions};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// No single kubectl command takes longer.
const DEADLINE: Duration = Duration::from_secs(120);

fn clients() -> Vec<PathBuf> {
    if let Some(list) = std::env::var_os("KUBECTL").filter(|list| !list.is_empty()) {
        return std::env::split_paths(&list).collect();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("kubectl"));
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let kept = home.join(".cache/slipway/kubectl-1.33/kubectl");
    let found = on_path.chain([PathBuf::from("/usr/bin/kubectl"), kept]).find(|file| file.is_file());
    vec![found.expect("kubectl is needed: `make unit` fetches one, or name yours in $KUBECTL")]
}

/// An API server on a port of its own.
struct Lab {
    folder: tempfile::TempDir,
    api: ApiServer,
    pki: Pki,
    endpoint: String,
    kubectl: PathBuf,
    shutdown: CancellationToken,
}

impl Lab {
    async fn new(kubectl: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreOptions {
            path: folder.path().join("db"),
            key_file: folder.path().join("key"),
            history: 1000,
        })
        .unwrap();
        let shutdown = CancellationToken::new();
        let api = ApiServer::new(store, &slipway::modules::kinds(), shutdown.clone()).await.unwrap();
        let pki = Pki::open(&folder.path().join("pki"), &[]).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("https://{}", listener.local_addr().unwrap());
        let config = pki.server_config().unwrap();
        tokio::spawn(tls::serve(listener, config, api.router(), shutdown.clone()));
        let sweeper = api.clone();
        tokio::spawn(async move { sweeper.run().await });
        std::fs::write(folder.path().join("config"), pki.authority().kubeconfig(&endpoint, CLIENT_LIFETIME).unwrap())
            .unwrap();
        Self { folder, api, pki, endpoint, kubectl: kubectl.to_owned(), shutdown }
    }

    fn command(&self, args: &str) -> Command {
        let mut command = Command::new(&self.kubectl);
        command
            .args(args.split_whitespace())
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

    async fn run(&self, mut command: Command, input: &str) -> Output {
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.ok();
        drop(stdin);
        timeout(DEADLINE, child.wait_with_output()).await.expect("kubectl hangs").unwrap()
    }

    /// What kubectl prints; it must succeed.
    async fn ok(&self, args: &str, input: &str) -> String {
        let output = self.run(self.command(args), input).await;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {args}\n{out}{err}");
        out.into_owned()
    }

    /// What kubectl complains; it must fail.
    async fn fails(&self, args: &str, input: &str) -> String {
        let output = self.run(self.command(args), input).await;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success(), "kubectl {args}\n{out}{err}");
        err.into_owned()
    }

    async fn ends(self) {
        self.shutdown.cancel();
    }
}

fn host(name: &str, online: bool) -> String {
    format!(
        "apiVersion: metal3.io/v1alpha1\nkind: BareMetalHost\nmetadata:\n  name: {name}\n  namespace: rack\n\
         spec:\n  online: {online}\n  bootMACAddress: 52:54:00:12:34:56\n  bmc:\n    address: ipmi://10.0.0.1\n    \
         credentialsName: bmc\n"
    )
}

fn contains(text: &str, wanted: &[&str]) {
    for part in wanted {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_there_is_can_be_found_out() {
    for kubectl in clients() {
        let lab = Lab::new(&kubectl).await;
        contains(&lab.ok("version", "").await, &["Server Version", "v1.34.0+slipway"]);
        let resources = lab.ok("api-resources -o wide", "").await;
        for (short, kind) in
            [("bmh,bmhost", "BareMetalHost"), ("ns", "Namespace"), ("hd", "HardwareData"), ("img", "Image")]
        {
            let line =
                resources.lines().find(|line| line.split_whitespace().any(|word| word == kind)).unwrap_or_default();
            contains(line, &[short, "watch"]);
        }
        contains(&lab.ok("api-versions", "").await, &["metal3.io/v1alpha1", "slipway.dev/v1alpha1", "v1\n"]);
        contains(
            &lab.ok("explain bmh.spec.image", "").await,
            &["BareMetalHost", "metal3.io", "image <Object>", "checksumType", "Where the image is.", "-required-"],
        );
        contains(&lab.ok("explain secret.metadata", "").await, &["ownerReferences", "finalizers"]);
        contains(&lab.ok("explain bmh --recursive", "").await, &["rootDeviceHints", "minSizeGigabytes"]);
        contains(&lab.ok("get --raw /readyz", "").await, &["ok"]);
        lab.ends().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_applied_and_changed_in_every_way() {
    for kubectl in clients() {
        let lab = Lab::new(&kubectl).await;
        lab.ok("create namespace rack", "").await;
        contains(&lab.ok("apply -f -", &host("a", true)).await, &["baremetalhost.metal3.io/a created"]);
        contains(&lab.ok("apply -f -", &host("a", true)).await, &["unchanged"]);
        contains(&lab.ok("apply -f -", &host("a", false)).await, &["configured"]);
        let get = async |path: &str| lab.ok(&format!("get bmh a -n rack -o jsonpath={{{path}}}"), "").await;
        assert_eq!(get(".spec.online").await, "false");
        assert_eq!(get(".metadata.generation").await, "2");

        contains(&lab.ok("label bmh a -n rack tier=edge", "").await, &["labeled"]);
        contains(&lab.ok("annotate bmh a -n rack note=x", "").await, &["annotate"]);
        contains(&lab.ok("label bmh a -n rack tier=core --overwrite", "").await, &["labeled"]);
        assert_eq!(get(".metadata.labels.tier").await, "core");
        lab.ok("label bmh a -n rack tier-", "").await;
        assert_eq!(get(".metadata.labels.tier").await, "");

        lab.ok(r#"patch bmh a -n rack --type=merge -p {"spec":{"description":"front"}}"#, "").await;
        assert_eq!(get(".spec.description").await, "front");
        lab.ok(r#"patch bmh a -n rack --type=json -p [{"op":"remove","path":"/spec/description"}]"#, "").await;
        assert_eq!(get(".spec.description").await, "");
        lab.ok(
            r#"patch bmh a -n rack --type=merge --subresource=status -p {"status":{"poweredOn":true,"provisioning":{"state":"available"}}}"#,
            "",
        )
        .await;
        assert_eq!(get(".status.provisioning.state").await, "available");
        assert_eq!(get(".metadata.generation").await, "4", "a status is no new generation");

        let mut edit = lab.command("edit bmh a -n rack");
        edit.env("KUBE_EDITOR", "sed -i s/ipmi:/redfish:/");
        let edited = lab.run(edit, "").await;
        assert!(edited.status.success(), "{}", String::from_utf8_lossy(&edited.stderr));
        assert_eq!(get(".spec.bmc.address").await, "redfish://10.0.0.1");
        let yaml = lab.ok("get bmh a -n rack -o yaml", "").await.replace("redfish:", "idrac:");
        contains(&lab.ok("replace -f -", &yaml).await, &["replaced"]);
        contains(&lab.fails("replace -f -", &yaml).await, &["the object has been modified"]);
        contains(&lab.ok("apply --dry-run=server -f -", &host("b", true)).await, &["created (server dry run)"]);
        contains(&lab.fails("get bmh b -n rack", "").await, &["NotFound", "baremetalhosts.metal3.io \"b\" not found"]);
        let difference = lab.run(lab.command("diff -f -"), &host("a", true)).await;
        assert_eq!(difference.status.code(), Some(1), "{}", String::from_utf8_lossy(&difference.stderr));
        contains(&String::from_utf8_lossy(&difference.stdout), &["+  online: true"]);

        lab.ok("create secret generic s -n rack --from-literal=username=root --from-literal=password=calvin", "").await;
        let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: t, namespace: rack}\nstringData: {a: x, b: w}\n";
        contains(&lab.ok("apply -f -", secret).await, &["secret/t created"]);
        contains(&lab.ok("apply -f -", secret).await, &["secret/t "]);
        contains(&lab.ok("apply -f -", &secret.replace("a: x", "a: z")).await, &["secret/t configured"]);
        assert_eq!(lab.ok("get secret t -n rack -o jsonpath={.data.a}", "").await, "eg==");
        let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m, namespace: rack}\ndata: {a: x, b: w}\n";
        contains(&lab.ok("apply -f -", map).await, &["configmap/m created"]);
        contains(&lab.ok("apply -f -", map).await, &["configmap/m unchanged"]);
        contains(&lab.ok("apply -f -", &map.replace(", b: w", "")).await, &["configmap/m configured"]);
        assert_eq!(lab.ok("get cm m -n rack -o jsonpath={.data}", "").await, r#"{"a":"x"}"#);
        lab.ok(r#"patch cm m -n rack -p {"data":{"c":"z"}}"#, "").await;
        assert_eq!(lab.ok("get cm m -n rack -o jsonpath={.data.c}", "").await, "z");
        let table = lab.ok("get secrets -n rack", "").await;
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(table.lines().next().unwrap()), ["NAME", "TYPE", "DATA", "AGE"]);
        assert_eq!(words(table.lines().nth(1).unwrap())[..3], ["s", "Opaque", "2"]);
        lab.ends().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_watches_and_descriptions_say_what_is_going_on() {
    for kubectl in clients() {
        let lab = Lab::new(&kubectl).await;
        lab.ok("create ns rack", "").await;
        lab.ok("apply -f -", &host("a", true)).await;
        let hosts: Api<BareMetalHost> = Api::namespaced(lab.api.client(), "rack");
        let state = |state: &str| {
            Patch::Merge(json!({"status": {"operationalStatus": "OK", "provisioning": {"state": state}}}))
        };
        hosts.patch_status("a", &PatchParams::default(), &state("externally provisioned")).await.unwrap();
        let wide = lab.ok("get bmh -n rack -o wide", "").await;
        let mut lines = wide.lines();
        let headings: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
        assert_eq!(headings, ["NAME", "STATUS", "STATE", "CONSUMER", "BMC", "ADDRESS", "ONLINE", "ERROR", "AGE"]);
        contains(lines.next().unwrap(), &["a", "OK", "externally provisioned", "ipmi://10.0.0.1", "true"]);
        let narrow = lab.ok("get baremetalhosts -A", "").await;
        let headings: Vec<&str> = narrow.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(headings, ["NAMESPACE", "NAME", "STATE", "CONSUMER", "ONLINE", "ERROR", "AGE"]);
        contains(&lab.ok("get bmh -n rack --show-labels -l tier!=x", "").await, &["LABELS", "<none>"]);
        contains(&lab.ok("get bmh,secrets -n rack", "").await, &["baremetalhost.metal3.io/a"]);
        contains(&lab.ok("get bmh -n rack --sort-by=.metadata.name -o name", "").await, &["baremetalhost.metal3.io/a"]);

        let mut watching = lab.command("get bmh -n rack -w").spawn().unwrap();
        let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
        let mut next = async || {
            timeout(DEADLINE, lines.next_line()).await.expect("the watch is silent").unwrap().expect("the watch ended")
        };
        contains(&next().await, &["NAME", "STATE"]);
        contains(&next().await, &["a", "externally provisioned"]);
        hosts.patch_status("a", &PatchParams::default(), &state("deprovisioning")).await.unwrap();
        contains(&next().await, &["a", "deprovisioning"]);
        lab.ok("apply -f -", &host("b", true)).await;
        contains(&next().await, &["b"]);
        watching.kill().await.unwrap();

        let subject = hosts.get("a").await.unwrap();
        let recorder = Recorder::new(lab.api.client(), Reporter::from("slipway"));
        let reference: ObjectReference = kube::Resource::object_ref(&subject, &());
        let event = Event {
            type_: EventType::Warning,
            reason: "RegistrationError".into(),
            note: Some("BMC at 10.0.0.1 refused the password".into()),
            action: "Registering".into(),
            secondary: None,
        };
        recorder.publish(&event, &reference).await.unwrap();
        recorder.publish(&event, &reference).await.unwrap();
        let described = lab.ok("describe bmh a -n rack", "").await;
        contains(&described, &["Events:", "RegistrationError", "refused the password", "slipway", "x2 over"]);
        let events = lab.ok("get events -n rack", "").await;
        let headings: Vec<&str> = events.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(headings, ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
        contains(&events, &["Warning", "baremetalhost/a"]);
        contains(&lab.ok("events -n rack --for bmh/a", "").await, &["RegistrationError"]);
        contains(&lab.ok("get events.events.k8s.io -n rack -o yaml", "").await, &["regarding:", "note: BMC at"]);
        contains(&lab.ok("describe ns rack", "").await, &["Active"]);
        lab.ends().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_and_deleting_end() {
    for kubectl in clients() {
        let lab = Lab::new(&kubectl).await;
        lab.ok("create ns rack", "").await;
        lab.ok("apply -f -", &host("a", true)).await;
        let hosts: Api<BareMetalHost> = Api::namespaced(lab.api.client(), "rack");

        let waiting =
            lab.command("wait bmh/a -n rack --for=jsonpath={.status.provisioning.state}=available --timeout=90s");
        let waiting = lab.run(waiting, "");
        let status = json!({"status": {"provisioning": {"state": "available"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let (params, status) = (PatchParams::default(), Patch::Merge(&status));
        let (waited, changed) = tokio::join!(waiting, hosts.patch_status("a", &params, &status));
        changed.unwrap();
        assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));
        contains(&lab.ok("wait bmh/a -n rack --for=condition=Ready --timeout=60s", "").await, &["condition met"]);

        let held = Patch::Merge(json!({"metadata": {"finalizers": ["baremetalhost.metal3.io"]}}));
        hosts.patch("a", &PatchParams::default(), &held).await.unwrap();
        contains(&lab.ok("delete bmh a -n rack --wait=false", "").await, &["deleted"]);
        let dying = hosts.get("a").await.unwrap();
        assert!(dying.metadata.deletion_timestamp.is_some());
        let gone = lab.run(lab.command("wait bmh/a -n rack --for=delete --timeout=90s"), "");
        let freed = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let (gone, released) = tokio::join!(gone, hosts.patch("a", &params, &freed));
        released.unwrap();
        assert!(gone.status.success(), "{}", String::from_utf8_lossy(&gone.stderr));
        assert!(hosts.get_opt("a").await.unwrap().is_none());

        lab.ok("apply -f -", &host("b", true)).await;
        lab.ok("create secret generic s -n rack --from-literal=a=b", "").await;
        contains(&lab.ok("delete ns rack --timeout=90s", "").await, &["deleted"]);
        contains(&lab.fails("get ns rack", "").await, &["NotFound"]);
        assert_eq!(lab.ok("get bmh,secrets -A -o name", "").await, "");
        contains(&lab.fails("delete ns default", "").await, &["forbidden"]);
        lab.ends().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_input_and_strangers_are_told_why() {
    for kubectl in clients() {
        let lab = Lab::new(&kubectl).await;
        lab.api.add_admission(
            "metal3.io/baremetalhosts",
            Arc::new(|request| match request.object["spec"]["bmc"]["address"].as_str() {
                Some(address) if address.starts_with("smoke:") => {
                    Err(vec![FieldError::invalid("spec.bmc.address", &address.into(), "unknown scheme")])
                }
                _ => Ok(()),
            }),
        );
        contains(&lab.fails("apply -f -", &host("a", true)).await, &["namespaces \"rack\" not found"]);
        lab.ok("create ns rack", "").await;
        for (manifest, wanted) in [
            (host("a", true).replace("online: true", "online: perhaps"), "spec.online"),
            (host("a", true).replace("  online: true\n", ""), "spec.online: Required value"),
            (host("a", true).replace("52:54:00:12:34:56", "nonsense"), "spec.bootMACAddress"),
            (host("a", true) + "  bootMode: BIOS\n", "spec.bootMode: Unsupported value: \"BIOS\""),
            (host("a", true) + "  imgae: {}\n", "unknown field \"spec.imgae\""),
            (host("A_b", true), "metadata.name"),
            (host("a", true).replace("ipmi:", "smoke:"), "unknown scheme"),
        ] {
            contains(&lab.fails("apply -f -", &manifest).await, &[wanted]);
        }
        let warned = host("a", true) + "  imgae: {}\n";
        let mut command = lab.command("apply --validate=warn -f -");
        command.env("NO_COLOR", "1");
        let output = lab.run(command, &warned).await;
        assert!(output.status.success());
        contains(&String::from_utf8_lossy(&output.stderr), &["Warning: unknown field \"spec.imgae\""]);
        // The first field manager is `kubectl apply` itself, from above.
        let other = host("a", true).replace("online: true", "online: false");
        contains(
            &lab.fails("apply --server-side --field-manager=other -f -", &other).await,
            &["conflict with \"kubectl-client-side-apply\"", ".spec.online"],
        );
        contains(&lab.fails("create -f -", &host("a", true)).await, &["AlreadyExists"]);
        contains(&lab.fails("get widgets", "").await, &["doesn't have a resource type"]);

        let config = lab.folder.path().join("config");
        let stranger = lab.pki.authority().client("eve", "guests", CLIENT_LIFETIME).unwrap();
        std::fs::write(&config, pki::kubeconfig(&lab.endpoint, lab.pki.ca_pem(), "eve", &stranger)).unwrap();
        contains(
            &lab.fails("get --raw /apis/metal3.io/v1alpha1/baremetalhosts", "").await,
            &["Forbidden", "User \"eve\" cannot list resource \"baremetalhosts\""],
        );
        let nobody = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: '{}', insecure-skip-tls-verify: true}}}}]\n\
             users: [{{name: u, user: {{token: guessed}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
             current-context: x\n",
            lab.endpoint
        );
        std::fs::write(&config, nobody).unwrap();
        contains(&lab.fails("get --raw /api/v1/secrets", "").await, &["Unauthorized"]);
        contains(&lab.fails("get ns", "").await, &["logged in to the server"]);
        contains(&lab.fails("get --raw /version", "").await, &["Unauthorized"]);
        let anonymous = std::fs::read_to_string(&config).unwrap().replace("token: guessed", "username: a, password: b");
        std::fs::write(&config, anonymous).unwrap();
        contains(&lab.ok("get --raw /version", "").await, &["v1.34.0+slipway"]);
        lab.ends().await;
    }
}

const WIDGETS: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.example.org
spec:
  group: example.org
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wd], categories: [all, toys]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}
    schema:
      openAPIV3Schema:
        description: A thing to play with.
        type: object
        properties:
          spec:
            description: What it should be.
            type: object
            required: [size]
            x-kubernetes-validations:
            - {rule: self.size < 100, message: too large to play with}
            properties:
              size: {description: Inches., type: integer, minimum: 1}
              replicas: {type: integer, default: 1}
          status:
            type: object
            x-kubernetes-preserve-unknown-fields: true
"#;

fn widget(size: i64) -> String {
    format!(
        "apiVersion: example.org/v1\nkind: Widget\nmetadata: {{name: a, namespace: rack}}\nspec: {{size: {size}}}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn users_define_kinds_of_their_own() {
    for kubectl in clients() {
        let lab = Lab::new(&kubectl).await;
        lab.ok("create namespace rack", "").await;
        contains(&lab.ok("apply -f -", WIDGETS).await, &["widgets.example.org created"]);
        lab.ok("wait --for=condition=Established --timeout=60s crd/widgets.example.org", "").await;
        contains(&lab.ok("apply -f -", WIDGETS).await, &["unchanged"]);
        contains(
            &lab.ok("get crd", "").await,
            &["CREATED AT", "widgets.example.org", "baremetalhosts.metal3.io", "images.slipway.dev"],
        );
        contains(&lab.ok("api-resources --api-group=example.org", "").await, &["widgets", "wd", "Widget"]);
        contains(&lab.ok("explain wd.spec", "").await, &["What it should be.", "Inches.", "-required-"]);

        contains(&lab.ok("apply -f -", &widget(3)).await, &["widget.example.org/a created"]);
        contains(
            &lab.fails("apply -f -", &widget(0)).await,
            &["spec.size in body should be greater than or equal to 1"],
        );
        contains(&lab.fails("apply -f -", &widget(500)).await, &["too large to play with"]);
        contains(
            &lab.fails("create -f -", &widget(1).replace("size: 1", "size: 1, sise: 2").replace("name: a", "name: b"))
                .await,
            &["unknown field \"spec.sise\""],
        );
        lab.ok(
            r#"patch wd a -n rack --type=merge --subresource=status -p {"status":{"conditions":[{"type":"Ready","status":"True"}]}}"#,
            "",
        )
        .await;
        for listed in ["wd", "all", "toys"] {
            let row = lab.ok(&format!("get {listed} -n rack"), "").await;
            contains(&row, &["SIZE", "READY", "3", "True"]);
        }
        contains(&lab.ok("scale --replicas=4 widget/a -n rack", "").await, &["scaled"]);
        assert_eq!(lab.ok("get wd a -n rack -o jsonpath={.spec.replicas}", "").await, "4");
        contains(&lab.fails("delete crd images.slipway.dev", "").await, &["built into Slipway"]);
        contains(&lab.ok("delete crd widgets.example.org --timeout=60s", "").await, &["deleted"]);
        contains(&lab.fails("get widgets -n rack", "").await, &["the server"]);
        lab.ends().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_the_old_form_are_read_by_kubectl() {
    for kubectl in clients() {
        let lab = Lab::new(&kubectl).await;
        let old = "--output=plaintext-openapiv2";
        // The whole of a field: its kind, what it is for, each field below it with its type and its words.
        let said = lab.ok(&format!("explain bmh.spec.image {old}"), "").await;
        contains(&said, &["KIND:     BareMetalHost", "VERSION:  metal3.io/v1alpha1", "RESOURCE: image <Object>"]);
        let fields: Vec<&str> = said.lines().filter(|line| line.starts_with("   ") && line.contains('<')).collect();
        let wanted = ["checksum", "checksumType", "format", "ociAuthSecretName", "url"];
        assert_eq!(fields.len(), wanted.len(), "{said}");
        for (line, field) in fields.iter().zip(wanted) {
            assert!(line.trim_start().starts_with(&format!("{field}\t<string>")), "{field}: {said}");
        }
        contains(&said, &["url\t<string> -required-", "Where the image is."]);
        let deep = lab.ok(&format!("explain bmh.spec.rootDeviceHints.minSizeGigabytes {old}"), "").await;
        contains(&deep, &["FIELD:    minSizeGigabytes <integer>", "Smallest size, in GiB."]);
        contains(&lab.fails(&format!("explain bmh.spec.imagination {old}"), "").await, &["imagination"]);
        contains(&lab.ok("explain crd.spec.names", "").await, &["CustomResourceDefinition", "plural", "shortNames"]);
        contains(&lab.ok("cluster-info", "").await, &["is running at"]);
        lab.ends().await;
    }
}

const CLUSTER: &str = "apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata:
  name: edge
  namespace: rack
spec:
  clusterNetwork:
    pods:
      cidrBlocks: [192.168.0.0/18]
  controlPlaneRef:
    apiVersion: controlplane.cluster.x-k8s.io/v1beta1
    kind: KubeadmControlPlane
    name: edge
  infrastructureRef:
    apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
    kind: Metal3Cluster
    name: edge
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: Metal3Cluster
metadata:
  name: edge
  namespace: rack
spec:
  controlPlaneEndpoint:
    host: 192.168.111.249
    port: 6443
  noCloudProvider: true
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: Metal3MachineTemplate
metadata:
  name: edge
  namespace: rack
spec:
  template:
    spec:
      image:
        url: http://172.22.0.1/images/debian.qcow2
        checksum: http://172.22.0.1/images/debian.qcow2.sha256sum
        checksumType: sha256
        format: qcow2
      dataTemplate:
        name: edge
";

#[tokio::test(flavor = "multi_thread")]
async fn two_versions_of_a_kind_are_one_object() {
    for kubectl in clients() {
        let lab = Lab::new(&kubectl).await;
        lab.ok("create namespace rack", "").await;
        let made = lab.ok("apply -f -", CLUSTER).await;
        contains(&made, &["cluster.cluster.x-k8s.io/edge created", "metal3machinetemplate", "metal3cluster"]);
        let again = lab.ok("apply -f -", CLUSTER).await;
        assert_eq!(again.matches("unchanged").count(), 3, "{again}");
        let get =
            async |what: &str, path: &str| lab.ok(&format!("get {what} edge -n rack -o jsonpath={{{path}}}"), "").await;
        assert_eq!(get("cl", ".apiVersion").await, "cluster.x-k8s.io/v1beta2");
        assert_eq!(get("cl", ".spec.infrastructureRef.apiGroup").await, "infrastructure.cluster.x-k8s.io");
        assert_eq!(get("m3c", ".spec.cloudProviderEnabled").await, "false");
        assert_eq!(get("m3mt", ".spec.template.spec.image.diskFormat").await, "qcow2");
        let old = "metal3machinetemplates.v1beta1.infrastructure.cluster.x-k8s.io";
        assert_eq!(get(old, ".spec.template.spec.image.format").await, "qcow2");
        // What the new version says, the old manifest does not take away.
        let status =
            r#"{"status":{"initialization":{"infrastructureProvisioned":true},"workers":{"desiredReplicas":2}}}"#;
        lab.ok(&format!("patch cl edge -n rack --subresource=status --type=merge -p {status}"), "").await;
        lab.ok("patch cl edge -n rack --type=merge -p {\"spec\":{\"paused\":true}}", "").await;
        lab.ok("apply -f -", &CLUSTER.replace("192.168.0.0/18", "10.0.0.0/8")).await;
        assert_eq!(get("cl", ".spec.clusterNetwork.pods.cidrBlocks[0]").await, "10.0.0.0/8");
        assert_eq!(get("cl", "['.spec.paused','.status.workers.desiredReplicas']").await, "true 2");
        let old = "clusters.v1beta1.cluster.x-k8s.io";
        assert_eq!(get(old, ".status.infrastructureReady").await, "true");
        contains(
            &lab.ok("get cl -n rack", "").await,
            &["NAME", "CLUSTERCLASS", "AVAILABLE", "CP DESIRED", "W DESIRED"],
        );
        contains(&lab.ok(&format!("get {old} -n rack"), "").await, &["CLUSTERCLASS   PHASE   AGE   VERSION"]);
        contains(
            &lab.ok("get cluster-api -n rack -o name", "").await,
            &["metal3cluster", "metal3machinetemplate", "cluster."],
        );
        contains(
            &lab.ok("explain machine.spec.nodeDrainTimeout --api-version=cluster.x-k8s.io/v1beta1", "").await,
            &["<string>"],
        );
        contains(&lab.ok("explain machine.spec.deletion", "").await, &["nodeDrainTimeoutSeconds"]);
        let wrong = CLUSTER.replace("host: 192.168.111.249", "host: \"\"");
        contains(&lab.fails("apply -f -", &wrong).await, &["spec.controlPlaneEndpoint", "is required"]);
        lab.ok("delete -f - --wait=true", CLUSTER).await;
        assert_eq!(lab.ok("get cluster-api -n rack -o name", "").await, "");
        lab.ends().await;
    }
}
