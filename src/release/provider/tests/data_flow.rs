//! The provider's data flow, step by step: what it consumes, what it makes of it, and what becomes of a node.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::site::{NAMESPACE, Site, cluster, machine, noted, of, path};
use crate::api::lcm::{HelmBundle, LCMCluster, LCMMachine, LcmEndpoint, MachineRole};
use crate::api::machine_api::{Cluster, Machine};
use crate::api::metal3::BareMetalHost;

const LCM: &str = "lcm.mirantis.com/v1alpha1";
const MERGE: &str = "application/merge-patch+json";

/// A step that holds, by its name in the description of the provider.
fn check(step: &str, holds: bool) {
    assert!(holds, "the provider's data flow: {step}");
}

/// The user data of a host, as its node gets it: the user's part, and ours.
async fn parts(site: &Site, secret: &str) -> (String, Value) {
    let secret: Secret = site.get(secret).await.unwrap();
    let text = String::from_utf8(secret.data.unwrap()["userData"].0.clone()).unwrap();
    let boundary = text.split('"').nth(1).unwrap().to_owned();
    let decoded = |part: &str| {
        let body: String = part.split_once("\n\n").unwrap().1.split_whitespace().collect();
        String::from_utf8(STANDARD.decode(body).unwrap()).unwrap()
    };
    let all: Vec<&str> = text.split(&format!("--{boundary}")).collect();
    let ours = decoded(all[2]);
    (decoded(all[1]), serde_saphyr::from_str(ours.strip_prefix("#cloud-config\n").unwrap()).unwrap())
}

fn file(document: &Value, path: &str) -> String {
    let files = document["write_files"].as_array().unwrap();
    files.iter().find(|file| file["path"] == path).unwrap()["content"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_providers_data_flow() {
    let site = Site::new().await;
    // Everything at once, as one `kubectl apply` has it.
    site.releases().await;
    for name in ["edge-cp-0", "edge-w-0"] {
        site.free(name, of(name)).await;
    }
    site.create::<Secret>(
        json!({"metadata": {"name": "own"}, "stringData": {"userData": "#cloud-config\nruncmd: [echo mine]\n"}}),
    )
    .await;
    site.create::<Cluster>(cluster("edge", json!({}))).await;
    site.create::<Machine>(machine("edge-cp-0", "edge", true, json!({"userData": {"name": "own"}}))).await;
    let worker = json!({"distribution": "Ubuntu/Jammy", "nodeLabels": [{"key": "stacklight", "value": "enabled"}], "upgradeIndex": 1,
        "userData": {"name": "own"}});
    site.create::<Machine>(machine("edge-w-0", "edge", false, worker)).await;

    let host = site.there("edge-cp-0", "is told what to run", |host: &BareMetalHost| host.spec.image.is_some()).await;
    let other = site.there("edge-w-0", "is told what to run", |host: &BareMetalHost| host.spec.image.is_some()).await;
    check(
        "consumes credentials to connect to the provider backend",
        host.spec.bmc.as_ref().is_some_and(|bmc| bmc.credentials_name == "edge-cp-0-bmc") && host.spec.online,
    );

    let lcm: LCMCluster = site.get("edge").await.unwrap();
    let steps = |role: &str| lcm.spec.machine_types[role].iter().map(|step| step.name.as_str()).collect::<Vec<_>>();
    check(
        "consumes deployment instructions from the KaaSRelease and ClusterRelease objects",
        steps("control") == ["kubeadm"],
    );
    check(
        "consumes deployment instructions from the KaaSRelease and ClusterRelease objects",
        steps("worker") == ["kubeadm", "labels"],
    );
    let networks = (lcm.spec.pods_cidr.as_str(), lcm.spec.services_cidr.as_str());
    check(
        "consumes the cluster-level parameters",
        networks == ("10.244.0.0/16", "10.96.0.0/16") && lcm.spec.dedicated_control_plane,
    );
    check(
        "PublicKey is provided to every machine to obtain SSH access",
        lcm.spec.ssh_authorized_keys == ["ssh-ed25519 AAAA ops"],
    );
    let images = [&host, &other].map(|host| host.spec.image.clone().unwrap().url);
    check(
        "consumes the machine-level parameters",
        images == ["http://images.test/noble.qcow2", "http://images.test/jammy.qcow2"],
    );

    let endpoint = Some(LcmEndpoint { host: "192.0.2.5".into(), port: 6443 });
    check("creates the LCMCluster", lcm.spec.release == "mosk-1" && lcm.spec.external_endpoint == endpoint);
    check(
        "creates the LCMCluster",
        lcm.owner_references().iter().any(|owner| owner.kind == "Cluster" && owner.name == "edge"),
    );
    check("creates the LCMCluster", lcm.spec.helm_controller_service_account_name == "helm-edge");
    let agent = lcm.spec.agent_config.clone().unwrap();
    let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    check("creates the LCMCluster", agent.download_url == format!("http://10.20.0.2:80/boot/files/slipway-{sum}"));

    for name in ["edge-cp-0", "edge-w-0"] {
        let machine: LCMMachine = site.get(name).await.unwrap();
        let spec = &machine.spec;
        let is_empty = spec.state_items.is_empty()
            && spec.role.is_none()
            && spec.release.is_empty()
            && spec.agent_config.is_none();
        check("the LCMMachine custom resources are created empty to be later handled by the LCM Controller", is_empty);
        check("creates the LCMMachine", spec.cluster_name == "edge" && spec.service_account == format!("lcm-{name}"));
        let is_plane = machine.labels().contains_key("cluster.sigs.k8s.io/control-plane");
        check("creates the LCMMachine", is_plane == (name == "edge-cp-0"));
    }
    let worker: LCMMachine = site.get("edge-w-0").await.unwrap();
    check(
        "creates the LCMMachine",
        worker.annotations()["lcm.mirantis.com/index"] == "1" && worker.spec.distribution == "ubuntu/jammy",
    );
    check(
        "creates the LCMMachine",
        json!(worker.spec.state_items_overwrites) == json!({"labels": {"nodeLabels": "stacklight=enabled"}}),
    );

    let bundle: HelmBundle = site.get("edge").await.unwrap();
    let names: Vec<&str> = bundle.spec.releases.iter().map(|release| release.name.as_str()).collect();
    check("creates the HelmBundle custom resources using data from the releases", names == ["stacklight", "ingress"]);
    let values = json!({"size": "small", "logging": {"enabled": true, "days": 9}});
    check("creates the HelmBundle with the cluster's overrides merged", bundle.spec.releases[0].values == Some(values));
    check("charts of the management cluster are not the cluster's", !names.contains(&"kaas-ui"));

    for name in ["lcm-edge-cp-0", "lcm-edge-w-0", "helm-edge"] {
        let made = site.get::<ServiceAccount>(name).await.is_some()
            && site.get::<Role>(name).await.is_some()
            && site.get::<RoleBinding>(name).await.is_some();
        check("creates service accounts for these custom resources", made);
    }

    for (name, host) in [("edge-cp-0", &host), ("edge-w-0", &other)] {
        let reference = json!({"name": format!("{name}-lcm-user-data"), "namespace": NAMESPACE});
        check("provisions nodes", json!(host.spec.user_data) == reference);
    }
    let (theirs, ours) = parts(&site, "edge-cp-0-lcm-user-data").await;
    check("installs the LCM Agent using the cloud-init script, beside the user's own", theirs.contains("echo mine"));
    let config: Value = serde_json::from_str(&file(&ours, "/etc/slipway/node.json")).unwrap();
    let wanted = json!({"server": "https://10.20.0.2:8443", "namespace": NAMESPACE, "name": "edge-cp-0",
        "caCertificate": "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n", "tokenFile": "/etc/slipway/node.token"});
    check("installs the LCM Agent using the cloud-init script", config == wanted);
    check("installs the LCM Agent by its checksum", file(&ours, "/usr/local/lib/slipway/fetch").contains(sum));
    check(
        "enables the LCM Agent using the cloud-init script",
        ours["runcmd"][1] == json!(["systemctl", "enable", "slipway-node.service"]),
    );

    let token = file(&ours, "/etc/slipway/node.token");
    agents_do_what_they_need_and_nothing_else(&site, &token).await;
    nodes_become_ready(&site, &token).await;
}

/// With the real token of the first machine's agent, against the real authorizer.
async fn agents_do_what_they_need_and_nothing_else(site: &Site, token: &str) {
    let step = "service accounts whose tokens can do exactly what that agent needs";
    let machines = |rest: &str| path(LCM, "lcmmachines", rest);
    let (code, own) = site.ask(token, "GET", &machines("/edge-cp-0"), None).await;
    check(step, code == 200 && own["spec"]["clusterName"] == "edge");
    let listed = machines("?fieldSelector=metadata.name%3Dedge-cp-0");
    check(step, site.ask(token, "GET", &listed, None).await.0 == 200);
    let status = || {
        Some((
            MERGE,
            json!({"status": {"agentVersion": "0.1", "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}]}}),
        ))
    };
    check(step, site.ask(token, "PATCH", &machines("/edge-cp-0/status"), status()).await.0 == 200);
    let renewal = || {
        Some((
            "application/json",
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 2_592_000}}),
        ))
    };
    let (code, renewed) =
        site.ask(token, "POST", &path("", "serviceaccounts", "/lcm-edge-cp-0/token"), renewal()).await;
    check(step, code == 201 && renewed["status"]["token"].is_string());
    // Its own deployment data is granted; whoever looks after nodes serves them.
    let granted = site.ask(token, "GET", &machines("/edge-cp-0/deployment"), None).await.0;
    check(step, granted != 403);
    let core = |plural: &str, rest: &str| path("", plural, rest);
    let spec = || Some((MERGE, json!({"spec": {"maintenance": true}})));
    for (method, path, body) in [
        ("GET", machines("/edge-w-0"), None),
        ("GET", machines(""), None),
        ("GET", machines("?fieldSelector=metadata.name%3Dedge-w-0"), None),
        ("GET", machines("/edge-w-0/deployment"), None),
        ("PATCH", machines("/edge-w-0/status"), status()),
        ("PATCH", machines("/edge-cp-0"), spec()),
        ("DELETE", machines("/edge-cp-0"), None),
        ("GET", path(LCM, "lcmclusters", "/edge"), None),
        ("GET", path(LCM, "helmbundles", "/edge"), None),
        ("GET", core("secrets", ""), None),
        ("GET", core("secrets", "/edge-cp-0-lcm-user-data"), None),
        ("GET", core("secrets", "/edge-w-0-lcm-user-data"), None),
        ("GET", core("secrets", "/edge-cp-0-bmc"), None),
        ("GET", core("configmaps", ""), None),
        ("POST", core("serviceaccounts", "/lcm-edge-w-0/token"), renewal()),
        ("POST", core("serviceaccounts", "/helm-edge/token"), renewal()),
        ("POST", core("serviceaccounts", "/default/token"), renewal()),
        ("GET", path("cluster.k8s.io/v1alpha1", "machines", "/edge-cp-0"), None),
        ("GET", path("metal3.io/v1alpha1", "baremetalhosts", "/edge-cp-0"), None),
        ("GET", "/apis/kaas.mirantis.com/v1alpha1/clusterreleases/mosk-1".to_owned(), None),
    ] {
        let (code, _) = site.ask(token, method, &path, body).await;
        assert_eq!(code, 403, "{step}: {method} {path}");
    }
}

/// Played by who looks after nodes and by hosts: what the user sees of it, and what is left when a machine goes.
async fn nodes_become_ready(site: &Site, token: &str) {
    let before =
        site.there("edge-cp-0", "provisions", |machine: &Machine| noted(machine)["status"] == "Provision").await;
    check("a Machine says where it is", noted(&before)["ready"] == false);
    let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    for name in ["edge-cp-0", "edge-w-0"] {
        site.state(name, "provisioned").await;
        let role = if name == "edge-cp-0" { MachineRole::Control } else { MachineRole::Worker };
        site.change::<LCMMachine>(
            name,
            json!({"spec": {"type": role, "release": "mosk-1"},
            "status": {"state": "Ready", "conditions": [condition("Deployed"), condition("Ready")]}}),
        )
        .await;
        let is_ready = |machine: &Machine| {
            let phase = machine.status.as_ref().and_then(|status| status.phase.as_deref());
            let status = noted(machine);
            status["ready"] == true && status["provisioned"] == true && phase == Some("Running")
        };
        let status = noted(&site.there(name, "is ready", is_ready).await);
        let instance = &status["providerInstanceState"]["state"];
        check("a Machine says where it is", status["status"] == "Ready" && instance == "provisioned");
        // What is looked after by others stays as they have it.
        let lcm: LCMMachine = site.get(name).await.unwrap();
        check(
            "LCMMachines are filled by the LCM Controller",
            lcm.spec.role == Some(role) && lcm.spec.release == "mosk-1",
        );
    }
    let initialized = json!({"release": "mosk-1", "requestedNodes": 2, "readyNodes": 2, "helmControllerDeployed": true,
        "conditions": [condition("ControlPlaneInitialized")]});
    site.change::<LCMCluster>("edge", json!({ "status": initialized })).await;
    let bundle: HelmBundle = site.get("edge").await.unwrap();
    let helm = json!({"observedGeneration": bundle.metadata.generation, "conditions": [condition("Ready")]});
    site.change::<HelmBundle>("edge", json!({ "status": helm })).await;
    let ready = site.says("edge", "Ready", "Ready", "").await;
    let status = ready.status.unwrap();
    let published = status.provider_status.unwrap();
    check(
        "a Cluster says what it is",
        published["ready"] == true && published["nodes"] == json!({"requested": 2, "ready": 2}),
    );
    check("a Cluster says what it is", published["releaseRefs"]["current"]["name"] == "mosk-1");
    check("a Cluster says what may follow", published["releaseRefs"]["available"][0]["name"] == "mosk-2");
    check("a Cluster says where it is reached", status.api_endpoints[0].host == "192.0.2.5");

    // One machine goes: its node leaves first, then its host, then its account, and its token is worth nothing.
    site.delete::<Machine>("edge-cp-0").await;
    site.there("edge-cp-0", "is told to leave", |lcm: &LCMMachine| lcm.spec.prepare_deletion).await;
    let host: BareMetalHost = site.get("edge-cp-0").await.unwrap();
    check("a node leaves before its host is let go", host.spec.image.is_some());
    site.change::<LCMMachine>("edge-cp-0", json!({"status": {"prepareDeletionPhase": "completed"}})).await;
    site.there("edge-cp-0", "is told to deprovision", |host: &BareMetalHost| host.spec.image.is_none()).await;
    site.state("edge-cp-0", "available").await;
    site.gone::<Machine>("edge-cp-0").await;
    site.gone::<LCMMachine>("edge-cp-0").await;
    site.gone::<ServiceAccount>("lcm-edge-cp-0").await;
    site.gone::<Secret>("edge-cp-0-lcm-user-data").await;
    let (code, _) = site.ask(token, "GET", &path(LCM, "lcmmachines", "/edge-w-0"), None).await;
    check("the token of a machine that is gone is worth nothing", code == 401);
}
