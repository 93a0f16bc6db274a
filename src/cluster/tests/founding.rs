//! The manifests with which Metal3 explains its architecture, before and after: `docs/architecture.md` of
//! <https://github.com/metal3-io/cluster-api-provider-metal3>, as it was when a control plane was made machine by machine.
//!
//! They stand in `founding/` as they were printed. What the API versions have changed since is in two tables here, each row with
//! its reason: what is written otherwise, and what is read otherwise. Everything else is compared field by field.

use std::collections::BTreeSet;

use kube::ResourceExt;
use serde_json::{Value, json};

use super::boot::documents;
use super::site::{NAMESPACE, Site};
use crate::api::cluster::v1beta2::{Cluster, Machine};

const BEFORE: &str = include_str!("founding/before.yaml");
const AFTER: &str = include_str!("founding/after.yaml");
const MACHINE: &str = "test1-controlplane-0";
/// A version of Kubernetes that there is a kubeadm for.
const VERSION: &str = "v1.34.0";

/// A field that is written otherwise than it was printed.
struct Written {
    kind: &'static str,
    path: &'static str,
    /// What was printed; null where nothing was.
    printed: Value,
    /// What is written now; null where nothing is.
    now: Value,
    /// What the API says to what was printed, where it refuses it.
    refused: Option<&'static str>,
    /// Why.
    reason: &'static str,
}

fn written() -> Vec<Written> {
    let commands = |command: &str| json!([command]);
    let row = |kind, path, printed, now, refused, reason| Written { kind, path, printed, now, refused, reason };
    vec![
        row(
            "Metal3Cluster",
            "/spec/apiEndpoint",
            json!("https://192.168.111.249:6443"),
            Value::Null,
            None,
            "it is controlPlaneEndpoint since v1alpha3; a field that is not known is dropped",
        ),
        row(
            "Metal3Cluster",
            "/spec/controlPlaneEndpoint",
            Value::Null,
            json!({"host": "192.168.111.249", "port": 6443}),
            Some("controlPlaneEndpoint"),
            "it was apiEndpoint",
        ),
        row(
            "Machine",
            "/spec/clusterName",
            Value::Null,
            json!("test1"),
            Some("clusterName"),
            "required since v1alpha3; the label said it before",
        ),
        row(
            "Machine",
            "/spec/version",
            json!("v1.17.0"),
            json!(VERSION),
            None,
            "kubeadm's configuration is read since 1.22 in a form that is made here; see a_version_without_a_kubeadm_is_named in input.rs",
        ),
        row(
            "Metal3Machine",
            "/spec/dataTemplate",
            Value::Null,
            json!({"name": "test1-workers-template", "namespace": NAMESPACE}),
            None,
            "printed only afterwards, as if a controller added it; it is its user's",
        ),
        row(
            "KubeadmConfig",
            "/spec/preKubeadmCommands",
            json!("<list of commands>"),
            commands("echo before"),
            Some("preKubeadmCommands"),
            "a gap to be filled in",
        ),
        row(
            "KubeadmConfig",
            "/spec/postKubeadmCommands",
            json!("<list of commands>"),
            commands("echo after"),
            Some("postKubeadmCommands"),
            "a gap to be filled in",
        ),
        row(
            "KubeadmConfig",
            "/spec/files",
            json!("<list of files>"),
            json!([{"path": "/etc/motd", "content": "welcome"}]),
            Some("files"),
            "a gap to be filled in",
        ),
    ]
}

/// What stands where something else was printed.
enum Now {
    /// This.
    Is(Value),
    /// Nothing; at another place of the object this does.
    At(&'static str, Value),
    /// Nothing.
    Gone,
    /// The host controller writes it, which is played here.
    Hosts,
}

struct Read {
    kind: &'static str,
    path: &'static str,
    now: Now,
    reason: &'static str,
}

/// What is read otherwise; `cluster` is the Cluster's UID.
fn read(cluster: &str) -> Vec<Read> {
    use Now::{At, Gone, Hosts, Is};
    let row = |kind, path, now, reason| Read { kind, path, now, reason };
    let id = format!("metal3://{NAMESPACE}/node-1/{MACHINE}");
    let owner = |kind: &str| Is(json!(format!("{kind}.x-k8s.io/v1beta2")));
    let owned = "owners are named in the version that is stored";
    let kubeadms_own = "kubeadm's own default, which it fills in itself";
    let hosts = "the host controller's";
    let filled = |path: &'static str| {
        let row = written().into_iter().find(|row| row.kind == "KubeadmConfig" && row.path == path).unwrap();
        Is(row.now)
    };
    vec![
        row(
            "Cluster",
            "/status/apiEndpoints",
            At("/spec/controlPlaneEndpoint", json!({"host": "192.168.111.249", "port": 6443})),
            "one endpoint, in the spec, since v1alpha3",
        ),
        row(
            "Cluster",
            "/status/controlPlaneInitialized",
            At("/status/conditions/ControlPlaneInitialized/status", json!("True")),
            "a condition since v1alpha4",
        ),
        row(
            "Cluster",
            "/spec/infrastructureRef/namespace",
            Gone,
            "it was written without one and is read as it was written: it is the Cluster's own",
        ),
        row("Cluster", "/status/phase", Is(json!("Provisioned")), "phases begin with a capital letter"),
        row("Metal3Cluster", "/metadata/ownerReferences/0/apiVersion", owner("cluster"), owned),
        row("Metal3Cluster", "/metadata/ownerReferences/0/uid", Is(json!(cluster)), "a UID is of its own"),
        row(
            "Metal3Cluster",
            "/spec/apiEndpoint",
            At("/spec/controlPlaneEndpoint", json!({"host": "192.168.111.249", "port": 6443})),
            "it is controlPlaneEndpoint",
        ),
        row("Metal3Cluster", "/status/apiEndpoints", Gone, "the spec has the endpoint"),
        row("Machine", "/metadata/ownerReferences/0/apiVersion", owner("cluster"), owned),
        row("Machine", "/metadata/ownerReferences/0/uid", Is(json!(cluster)), "a UID is of its own"),
        row("Machine", "/spec/providerID", Is(json!(id)), "namespace, host and machine instead of the host's UID"),
        row("Machine", "/spec/version", Is(json!(VERSION)), "as it is written now"),
        row("Machine", "/status/phase", Is(json!("Running")), "phases begin with a capital letter"),
        row("Metal3Machine", "/metadata/ownerReferences/0/apiVersion", owner("cluster"), owned),
        row("Metal3Machine", "/spec/hostSelector", Gone, "nobody adds an empty selector any more"),
        row(
            "Metal3Machine",
            "/spec/providerID",
            Is(json!(id)),
            "namespace, host and machine instead of the host's UID",
        ),
        row("BareMetalHost", "/spec/consumerRef/apiVersion", owner("infrastructure.cluster"), owned),
        row(
            "BareMetalHost",
            "/spec/userData/name",
            Is(json!(MACHINE)),
            "the bootstrap Secret itself, and no copy of it",
        ),
        row("BareMetalHost", "/status/goodCredentials", Hosts, hosts),
        row("BareMetalHost", "/status/triedCredentials", Hosts, hosts),
        row("BareMetalHost", "/status/hardware", Hosts, hosts),
        row("BareMetalHost", "/status/hardwareProfile", Hosts, hosts),
        row("BareMetalHost", "/status/operationHistory", Hosts, hosts),
        row("BareMetalHost", "/status/provisioning/ID", Hosts, hosts),
        row("KubeadmConfig", "/metadata/ownerReferences/0/apiVersion", owner("cluster"), owned),
        row(
            "KubeadmConfig",
            "/spec/clusterConfiguration",
            Gone,
            "it is told to kubeadm, and not written into the spec any more: it is compared by itself",
        ),
        row("KubeadmConfig", "/spec/files", filled("/spec/files"), "the gap is filled in"),
        row("KubeadmConfig", "/spec/postKubeadmCommands", filled("/spec/postKubeadmCommands"), "the gap is filled in"),
        row(
            "KubeadmConfig",
            "/status/bootstrapData",
            At("/status/dataSecretName", json!(MACHINE)),
            "user data is in a Secret since v1alpha3",
        ),
        row("ClusterConfiguration", "/apiServer", Gone, kubeadms_own),
        row(
            "ClusterConfiguration",
            "/apiVersion",
            Is(json!("kubeadm.k8s.io/v1beta4")),
            "as this version of kubeadm reads it",
        ),
        row("ClusterConfiguration", "/certificatesDir", Gone, kubeadms_own),
        row("ClusterConfiguration", "/controllerManager", Gone, kubeadms_own),
        row("ClusterConfiguration", "/dns", Gone, kubeadms_own),
        row("ClusterConfiguration", "/etcd", Gone, kubeadms_own),
        row("ClusterConfiguration", "/imageRepository", Gone, kubeadms_own),
        row("ClusterConfiguration", "/kubernetesVersion", Is(json!(VERSION)), "as it is written now"),
        row("ClusterConfiguration", "/scheduler", Gone, kubeadms_own),
    ]
}

/// What a path leads to; of a list it takes an element by its number or its type.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('/').skip(1).try_fold(value, |value, part| match value {
        Value::Array(all) => match part.parse::<usize>() {
            Ok(number) => all.get(number),
            Err(_) => all.iter().find(|one| one["type"] == part),
        },
        value => value.get(part),
    })
}

/// Writes a field of an object, or takes it away.
fn put(object: &mut Value, path: &str, value: &Value) {
    let (parent, field) = path.rsplit_once('/').unwrap();
    let fields = object.pointer_mut(parent).and_then(Value::as_object_mut).unwrap();
    if value.is_null() {
        fields.remove(field);
    } else {
        fields.insert(field.to_owned(), value.clone());
    }
}

/// Compares what was printed with what is there.
struct Comparison<'a> {
    ours: &'a Value,
    rows: &'a [&'a Read],
    /// Rows that were needed, by their paths.
    used: BTreeSet<&'static str>,
    faults: Vec<String>,
}

impl Comparison<'_> {
    fn is(&mut self, path: &str, found: Option<&Value>, wanted: &Value) {
        if found != Some(wanted) {
            self.faults.push(format!("{path}: {}, and should be {wanted}", found.unwrap_or(&Value::Null)));
        }
    }

    /// Field by field.
    fn compare(&mut self, path: &str, printed: &Value, found: Option<&Value>) {
        let rows = self.rows;
        if let Some(row) = rows.iter().find(|row| row.path == path) {
            self.used.insert(row.path);
            if let (Now::Gone | Now::At(..), Some(found)) = (&row.now, found) {
                self.faults.push(format!("{path}: {found}, and should be gone ({})", row.reason));
            }
            match &row.now {
                Now::Hosts | Now::Gone => {}
                Now::Is(wanted) if wanted == printed => self.faults.push(format!("{path}: the row is not needed")),
                Now::Is(wanted) => self.is(path, found, wanted),
                Now::At(place, wanted) => self.is(place, at(self.ours, place), wanted),
            }
            return;
        }
        match printed {
            Value::Object(fields) if !fields.is_empty() => {
                for (field, printed) in fields {
                    self.compare(&format!("{path}/{field}"), printed, found.and_then(|found| found.get(field)));
                }
            }
            Value::Array(all) => {
                let count = found.and_then(Value::as_array).map_or(0, Vec::len);
                self.is(&format!("length of {path}"), Some(&json!(count)), &json!(all.len()));
                for (number, printed) in all.iter().enumerate() {
                    self.compare(&format!("{path}/{number}"), printed, found.and_then(|found| found.get(number)));
                }
            }
            printed => self.is(path, found, printed),
        }
    }
}

#[tokio::test]
async fn the_printed_manifests_end_in_the_printed_shape() {
    let site = Site::new(&["test1"]).await;
    let nic = |name: &str, mac: &str, ip: &str| json!({"name": name, "mac": mac, "ip": ip});
    let nics = [nic("eno1", "00:b2:8c:ee:22:98", "172.22.0.10"), nic("eno2", "00:b2:8c:ee:22:99", "192.168.111.21")];
    site.rack.inspect_as("node-1", json!({"hostname": "node-1", "nics": nics}));
    site.rack.credentials("node-1-bmc-secret").await;
    site.apply(&json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "Metal3DataTemplate",
        "metadata": {"name": "test1-workers-template"},
        "spec": {"clusterName": "test1", "metaData": {"strings": [{"key": "rack", "value": "r7"}]}}}))
        .await;

    let changes = written();
    for printed in documents(BEFORE).unwrap() {
        let kind = printed["kind"].as_str().unwrap().to_owned();
        let own: Vec<&Written> = changes.iter().filter(|row| row.kind == kind).collect();
        let complete = |but: Option<&str>| {
            let mut object = printed.clone();
            for row in own.iter().filter(|row| Some(row.path) != but) {
                assert_eq!(printed.pointer(row.path).unwrap_or(&Value::Null), &row.printed, "{kind} {}", row.path);
                put(&mut object, row.path, &row.now);
            }
            object
        };
        // What is changed has to be.
        for (row, reason) in own.iter().filter_map(|row| Some((row, row.refused?))) {
            let refused = site.try_apply(&complete(Some(row.path))).await;
            let refused = refused.err().unwrap_or_else(|| panic!("{kind} {}: not needed: {}", row.path, row.reason));
            assert!(refused.to_string().contains(reason), "{kind} {}: {refused}", row.path);
        }
        site.apply(&complete(None)).await;
    }
    site.until("the machine runs", async || {
        let machine = json!(site.get::<Machine>(MACHINE).await);
        let cluster = json!(site.get::<Cluster>("test1").await);
        machine["status"]["phase"] == "Running"
            && cluster["status"]["initialization"]["controlPlaneInitialized"] == true
    })
    .await;

    let cluster = site.get::<Cluster>("test1").await.unwrap().uid().unwrap();
    let begun = site.rack.cluster("test1").get(super::rack::KUBEADM_CONFIG).unwrap();
    let text = begun["data"]["ClusterConfiguration"].as_str().unwrap();
    let kubeadm = documents(text).unwrap().remove(0);
    let rows = read(&cluster);
    let mut faults = Vec::new();
    let mut hold = |kind: &str, printed: &Value, ours: &Value| {
        let own: Vec<&Read> = rows.iter().filter(|row| row.kind == kind).collect();
        let mut comparison = Comparison { ours, rows: &own, used: BTreeSet::new(), faults: Vec::new() };
        comparison.compare("", printed, Some(ours));
        let unused = own.iter().filter(|row| !comparison.used.contains(row.path));
        let unused: Vec<String> = unused.map(|row| format!("{}: nothing like it was printed", row.path)).collect();
        faults.extend(comparison.faults.into_iter().chain(unused).map(|fault| format!("{kind} {fault}")));
    };
    for printed in documents(AFTER).unwrap() {
        let (version, kind) = (printed["apiVersion"].as_str().unwrap(), printed["kind"].as_str().unwrap());
        let ours = site.seen(version, kind, printed["metadata"]["name"].as_str().unwrap()).await;
        hold(kind, &printed, &ours);
        if kind == "KubeadmConfig" {
            hold("ClusterConfiguration", &printed["spec"]["clusterConfiguration"], &kubeadm);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(site.rack.faults(), Vec::<String>::new());
}
