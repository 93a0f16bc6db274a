//! What a node's root can do to the appliance with its agent's token: what the agent must, and nothing else.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::machine::{NAMESPACE, Site, bash};
use crate::process::until;

struct Attacker {
    http: reqwest::Client,
    server: String,
    token: String,
}

impl Attacker {
    async fn status(&self, method: reqwest::Method, path: &str, body: Option<Value>) -> u16 {
        let kind = match (&method, path) {
            (&reqwest::Method::PATCH, _) => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut request = self.http.request(method, format!("{}{path}", self.server)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.header("content-type", kind).body(body.to_string());
        }
        request.send().await.map_or(413, |answer| answer.status().as_u16())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_token_opens_one_machines_own_doors_only() {
    use reqwest::Method;
    let site = Site::new("").await;
    let (one, _two) = (site.node("n1").await, site.node("n2").await);
    let secret = Secret {
        metadata: ObjectMeta { name: Some("n1-deployment".into()), ..ObjectMeta::default() },
        ..Secret::default()
    };
    Api::namespaced(site.admin.clone(), NAMESPACE).create(&PostParams::default(), &secret).await.unwrap();
    let ca = std::fs::read(site.appliance.data().join("pki/ca.crt")).unwrap();
    let http = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(&ca).unwrap()])
        .no_proxy()
        .build()
        .unwrap();
    let attacker = Attacker { http, server: format!("https://{}", site.appliance.address), token: one.read("token") };
    let machines = format!("/apis/lcm.mirantis.com/v1alpha1/namespaces/{NAMESPACE}/lcmmachines");
    let core = format!("/api/v1/namespaces/{NAMESPACE}");
    let status = json!({"status": {"agentVersion": "x"}});
    let spec = json!({"spec": {"stateItems": []}});
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let rows = [
        // What it must.
        (Method::GET, format!("{machines}/n1"), None, 200),
        (Method::GET, format!("{machines}?fieldSelector=metadata.name%3Dn1"), None, 200),
        (Method::PATCH, format!("{machines}/n1/status"), Some(&status), 200),
        (Method::POST, format!("{core}/serviceaccounts/lcm-n1/token"), Some(&token), 201),
        // Its neighbour.
        (Method::GET, format!("{machines}/n2"), None, 403),
        (Method::GET, format!("{machines}/n2/status"), None, 403),
        (Method::GET, format!("{machines}/n2/deployment"), None, 403),
        (Method::PATCH, format!("{machines}/n2/status"), Some(&status), 403),
        (Method::GET, machines.clone(), None, 403),
        (Method::GET, format!("{machines}?watch=1"), None, 403),
        (Method::GET, format!("{machines}?fieldSelector=metadata.name%3Dn2"), None, 403),
        (Method::POST, format!("{core}/serviceaccounts/lcm-n2/token"), Some(&token), 403),
        // What it is to do is not its own to say.
        (Method::PATCH, format!("{machines}/n1"), Some(&spec), 403),
        (Method::DELETE, format!("{machines}/n1"), None, 403),
        // Secrets.
        (Method::GET, format!("{core}/secrets"), None, 403),
        (Method::GET, format!("{core}/secrets/n1-deployment"), None, 403),
        // What others are made of.
        (Method::GET, "/apis/metal3.io/v1alpha1/baremetalhosts".to_owned(), None, 403),
        (Method::GET, "/apis/rbac.authorization.k8s.io/v1/roles".to_owned(), None, 403),
        (Method::GET, "/api/v1/namespaces".to_owned(), None, 403),
    ];
    for (method, path, body, wanted) in rows {
        let found = attacker.status(method.clone(), &path, body.cloned()).await;
        assert_eq!(found, wanted, "{method} {path}");
    }
    // A status that is a spec's, too, changes no spec.
    let both = json!({"spec": {"haltAgent": true}, "status": {"agentVersion": "y"}});
    assert_eq!(attacker.status(Method::PATCH, &format!("{machines}/n1/status"), Some(both)).await, 200);
    assert!(!site.machines().get("n1").await.unwrap().spec.halt_agent);
    // Too much at once.
    let huge = json!({"status": {"stateItemStatuses": {"a": {"message": "x".repeat(8 << 20)}}}});
    let refused = attacker.status(Method::PATCH, &format!("{machines}/n1/status"), Some(huge)).await;
    assert!((400..500).contains(&refused), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_given_a_neighbours_token_does_nothing_of_the_neighbours() {
    let site = Site::new("").await;
    let (one, two) = (site.node("n1").await, site.node("n2").await);
    two.write_spec(json!({"stateItems": [bash("a", "prepare", "true")]})).await;
    two.write("token", &one.read("token"));
    let agent = two.start();
    let text = until("it says why", async || {
        let text = two.read("run/contact.json") + &two.read("log");
        text.contains("HTTP 403").then_some(text)
    })
    .await;
    assert!(text.contains("refuses"), "{text}");
    assert!(!two.path("state/machine.json").exists());
    agent.end(Signal::SIGTERM).await;
    // An appliance with another CA is none.
    let other = Site::new("").await;
    two.set("server", json!(format!("https://{}", other.appliance.address)));
    let checked = two.slipway(&["--check"]).await;
    let text = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(!checked.status.success() && text.contains("certificate"), "{text}");
}
