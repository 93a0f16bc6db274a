//! Each rule of the reference as a client meets it: through the API, with the answer's causes.

use axum::body::Body;
use axum::extract::Extension;
use http_body_util::BodyExt;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::*;
use crate::apiserver::{ApiServer, UserIdentity};
use crate::modules::kinds;
use crate::store::{Store, StoreOptions};

mod spec;

const HOSTS: &str = "/apis/metal3.io/v1alpha1/namespaces/rack/baremetalhosts";
const SHA256: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

struct Rig {
    router: axum::Router,
    _folder: tempfile::TempDir,
}

impl Rig {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let options = StoreOptions { path: path.join("db"), key_file: path.join("key"), history: 100 };
        let api = ApiServer::new(Store::open(options).unwrap(), &kinds(), CancellationToken::new()).await.unwrap();
        api.add_admission("metal3.io/baremetalhosts", std::sync::Arc::new(admit));
        let router = api.router().layer(Extension(UserIdentity::in_process()));
        let rig = Self { router, _folder: folder };
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "rack"}});
        assert_eq!(rig.call("POST", "/api/v1/namespaces", &namespace).await.0, 201);
        rig
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.body(Body::from(body.to_string())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&body).unwrap_or_default())
    }

    /// A new host.
    async fn create(&self, host: &Value) -> Result<Value, String> {
        let (code, answer) = self.call("POST", HOSTS, host).await;
        self.outcome(code, answer)
    }

    /// A host that has been where its status says, changed.
    async fn change(&self, from: &Value, status: &Value, to: impl FnOnce(&mut Value)) -> Result<Value, String> {
        let mut host = self.create(from).await.unwrap_or_else(|fault| panic!("{from}: {fault}"));
        let path = format!("{HOSTS}/{}", host["metadata"]["name"].as_str().unwrap());
        host["status"] = status.clone();
        let (code, mut host) = self.call("PUT", &format!("{path}/status"), &host).await;
        assert_eq!(code, 200, "{host}");
        to(&mut host);
        let (code, answer) = self.call("PUT", &path, &host).await;
        let outcome = self.outcome(code, answer);
        assert_eq!(self.call("DELETE", &path, &json!({})).await.0, 200);
        outcome
    }

    /// The object, or `field: message` of the only cause.
    fn outcome(&self, code: u16, answer: Value) -> Result<Value, String> {
        if code < 300 {
            return Ok(answer);
        }
        assert_eq!((code, &answer["reason"]), (422, &json!("Invalid")), "{answer}");
        let causes = answer["details"]["causes"].as_array().unwrap();
        let told: Vec<_> = causes.iter().map(|c| format!("{}: {}", text(&c["field"]), text(&c["message"]))).collect();
        assert!(told.iter().all(|cause| text(&answer["message"]).contains(cause)), "{answer}");
        Err(told.join("; "))
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn host(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": name}, "spec": spec})
}

/// A spec that is fine, with these fields over it.
fn spec(over: Value) -> Value {
    let mut spec = json!({"online": true, "bootMACAddress": "02:00:00:00:00:01",
        "bmc": {"address": "redfish://10.0.0.1", "credentialsName": "s"}});
    for (key, value) in over.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

fn image(image: Value) -> Value {
    spec(json!({ "image": image }))
}

fn raid(raid: Value) -> Value {
    spec(json!({ "raid": raid }))
}

fn bmc(address: &str) -> Value {
    spec(json!({"bmc": {"address": address, "credentialsName": "s"}}))
}

/// What must be accepted.
const OK: &str = "";
const NO_URL: &str = "spec.image.url: Invalid value: ";

async fn judge(rig: &Rig, rule: &str, object: &Value, want: &str) {
    let outcome = rig.create(object).await;
    match (want, outcome) {
        (OK, Ok(made)) => {
            let path = format!("{HOSTS}/{}", text(&made["metadata"]["name"]));
            assert_eq!(rig.call("DELETE", &path, &json!({})).await.0, 200);
        }
        (OK, Err(fault)) => panic!("{rule}: {object} was refused: {fault}"),
        (want, Ok(_)) => panic!("{rule}: {object} was accepted, want {want}"),
        (want, Err(fault)) => assert!(fault.starts_with(want) && !fault.contains("; "), "{rule}: {object}: {fault}"),
    }
}

#[tokio::test]
async fn every_rule_of_names_and_annotations() {
    let rig = Rig::new().await;
    for (rule, name, want) in [
        ("1.1 a name", "rack-1.host", OK),
        ("1.1 a name with other letters", "host/1", "metadata.name: Invalid value"),
        (
            "1.1 a name as Kubernetes has them",
            "Host_1",
            "metadata.name: Invalid value: \"Host_1\": a lowercase RFC 1123 subdomain",
        ),
        (
            "1.1 a UUID",
            "3f3a0b3e-7a8e-4a4e-9f3e-0f6d3f1c2b1a",
            "metadata.name: Invalid value: \"3f3a0b3e-7a8e-4a4e-9f3e-0f6d3f1c2b1a\": a host's name must not be a UUID",
        ),
        ("1.1 a UUID without its hyphens", "3f3a0b3e7a8e4a4e9f3e0f6d3f1c2b1a", "metadata.name: Invalid value"),
    ] {
        judge(&rig, rule, &host(name, spec(json!({}))), want).await;
    }
    let (agent, disabled) = (json!({}), json!({"inspectionMode": "disabled"}));
    let told = json!({"inspectionMode": "agent"});
    let status = "baremetalhost.metal3.io/status";
    let details = "inspect.metal3.io/hardwaredetails";
    let moved = json!({"operationalStatus": "OK", "errorMessage": "", "errorCount": 0, "poweredOn": true, "errorType": "",
        "provisioning": {"state": "provisioned", "ID": "x", "image": {"url": "http://x/i"}}, "hardware": {"nics": [{"mac": "02:00:00:00:00:01"}]},
        "operationHistory": {"register": {"start": "2024-01-01T00:00:00Z", "end": null}}, "goodCredentials": {}, "triedCredentials": {}})
    .to_string();
    let rows: Vec<(&str, &str, &str, &Value, &str)> = vec![
        ("1.3 paused holds anything", "baremetalhost.metal3.io/paused", "metal3.io/capm3", &agent, OK),
        ("1.3 detached holds anything", "baremetalhost.metal3.io/detached", "{\"deleteAction\":", &agent, OK),
        ("1.3 reboot", "reboot.metal3.io", "", &agent, OK),
        ("1.3 reboot", "reboot.metal3.io", "{\"mode\":\"hard\",\"force\":true}", &agent, OK),
        ("1.3 reboot with a holder", "reboot.metal3.io/capm3", "{\"mode\":\"soft\"}", &agent, OK),
        (
            "1.3 reboot: JSON",
            "reboot.metal3.io",
            "hard",
            &agent,
            "metadata.annotations[reboot.metal3.io]: Invalid value: \"hard\": must be empty, or JSON like {\"mode\":\"hard\"}",
        ),
        (
            "1.3 reboot: JSON",
            "reboot.metal3.io/me",
            "{\"force\":\"yes\"}",
            &agent,
            "metadata.annotations[reboot.metal3.io/me]: Invalid value",
        ),
        (
            "1.3 reboot: mode",
            "reboot.metal3.io/me",
            "{\"mode\":\"medium\"}",
            &agent,
            "metadata.annotations[reboot.metal3.io/me]: Unsupported value: \"medium\": supported values of mode: \"\", \"hard\", \"soft\"",
        ),
        ("1.3 something else", "reboot.metal3.iota", "hard", &agent, OK),
        ("1.3 unhealthy holds anything", "capm3.metal3.io/unhealthy", "{", &agent, OK),
        ("1.3 unhealthy holds anything", "capi.metal3.io/unhealthy", "", &agent, OK),
        ("1.3 inspect", "inspect.metal3.io", "", &agent, OK),
        ("1.3 inspect", "inspect.metal3.io", "disabled", &agent, OK),
        ("1.3 inspect", "inspect.metal3.io", "disabled", &disabled, OK),
        (
            "1.3 inspect",
            "inspect.metal3.io",
            "twice",
            &agent,
            "metadata.annotations[inspect.metal3.io]: Unsupported value: \"twice\": supported values: \"\", \"disabled\"",
        ),
        (
            "1.3 inspect against inspectionMode",
            "inspect.metal3.io",
            "disabled",
            &told,
            "metadata.annotations[inspect.metal3.io]: Forbidden: contradicts spec.inspectionMode",
        ),
        ("1.3 status", status, "", &agent, OK),
        ("1.3 status", status, &moved, &agent, OK),
        (
            "1.3 status: no JSON",
            status,
            "provisioned",
            &agent,
            "metadata.annotations[baremetalhost.metal3.io/status]: Invalid value: is not JSON",
        ),
        (
            "1.3 status: strict",
            status,
            "{\"provisioning\":{\"state\":\"available\",\"ID\":\"\",\"colour\":\"red\"}}",
            &agent,
            "metadata.annotations[baremetalhost.metal3.io/status]: Invalid value: has an unknown field \"provisioning.colour\"",
        ),
        (
            "1.3 status: operationalStatus",
            status,
            "{\"operationalStatus\":\"fine\"}",
            &agent,
            "metadata.annotations[baremetalhost.metal3.io/status]: Invalid value: cannot be read: unknown variant `fine`",
        ),
        (
            "status: a time that cannot be written",
            status,
            "{\"operationHistory\":{\"register\":{\"start\":\"-009999-01-02T01:59:59Z\"}}}",
            &agent,
            "metadata.annotations[baremetalhost.metal3.io/status]: Invalid value: has a value that an object cannot hold",
        ),
        (
            "1.3 status: errorType",
            status,
            "{\"errorType\":\"fatal\"}",
            &agent,
            "metadata.annotations[baremetalhost.metal3.io/status]: Invalid value",
        ),
        (
            "10 a whatever Slipway itself may have written",
            status,
            "{\"operationalStatus\":\"servicing\",\"errorType\":\"detach error\"}",
            &agent,
            OK,
        ),
        ("1.3 hardwaredetails", details, "{\"cpu\":{\"arch\":\"x86_64\"},\"ramMebibytes\":1024}", &disabled, OK),
        ("1.3 hardwaredetails", details, "", &agent, OK),
        (
            "1.3 hardwaredetails: strict",
            details,
            "{\"ram\":1024}",
            &disabled,
            "metadata.annotations[inspect.metal3.io/hardwaredetails]: Invalid value: has an unknown field \"ram\"",
        ),
        (
            "1.3 hardwaredetails need inspection disabled",
            details,
            "{}",
            &agent,
            "metadata.annotations[inspect.metal3.io/hardwaredetails]: Forbidden: hardware can be given only with inspection disabled",
        ),
    ];
    for (rule, key, value, over, want) in rows {
        let mut object = host("h", spec(over.clone()));
        object["metadata"]["annotations"] = json!({ key: value });
        judge(&rig, rule, &object, want).await;
    }
    let mut both = host("h", spec(json!({})));
    both["metadata"]["annotations"] = json!({ details: "{}", "inspect.metal3.io": "disabled" });
    judge(&rig, "1.3 hardwaredetails with the old annotation", &both, OK).await;
}

#[tokio::test]
async fn what_may_change_depends_on_the_state() {
    let rig = Rig::new().await;
    let state = |state: &str| json!({"operationalStatus": "OK", "provisioning": {"state": state, "ID": ""}});
    let detached = json!({"operationalStatus": "detached", "provisioning": {"state": "provisioned", "ID": ""}});
    let address = |host: &mut Value| host["spec"]["bmc"]["address"] = json!("redfish://10.0.0.2");
    let refused = "spec.bmc.address: Forbidden: can be changed only while the host is registering or detached";
    for (status, want) in [
        (state(""), OK),
        (state("registering"), OK),
        (detached, OK),
        (state("inspecting"), refused),
        (state("preparing"), refused),
        (state("available"), refused),
        (state("provisioned"), refused),
        (state("externally provisioned"), refused),
        (state("deprovisioning"), refused),
    ] {
        let outcome = rig.change(&host("h", spec(json!({}))), &status, address).await;
        assert_eq!(outcome.err().unwrap_or_default(), want, "1.1 bmc.address in {status}");
    }
    let first = |host: &mut Value| {
        host["spec"]["bmc"] = json!({"address": "redfish://10.0.0.2", "credentialsName": "s"});
    };
    let outcome = rig.change(&host("h", json!({"online": true})), &state("unmanaged"), first).await;
    assert!(outcome.is_ok(), "1.1 the first bmc.address: {outcome:?}");

    let mac = "spec.bootMACAddress: Forbidden: cannot be changed once set";
    let set = |mac: Value| move |host: &mut Value| host["spec"]["bootMACAddress"] = mac;
    for (to, want) in [(json!("02:00:00:00:00:02"), mac), (json!(null), mac), (json!("02:00:00:00:00:01"), OK)] {
        let outcome = rig.change(&host("h", spec(json!({}))), &state("registering"), set(to.clone())).await;
        assert_eq!(outcome.err().unwrap_or_default(), want, "1.1 bootMACAddress to {to}");
    }
    let letters = host("h", spec(json!({"bootMACAddress": "aa:bb:cc:00:00:01"})));
    assert!(rig.change(&letters, &state("available"), set(json!("AA:BB:CC:00:00:01"))).await.is_ok());
    let without = host("h", json!({"online": true}));
    assert!(rig.change(&without, &state("available"), set(json!("02:00:00:00:00:01"))).await.is_ok());

    let adopt = |host: &mut Value| host["spec"]["externallyProvisioned"] = json!(true);
    let refused = "spec.externallyProvisioned: Forbidden: can become true only on creation, or while the host is unmanaged or available";
    for (status, want) in [
        ("available", OK),
        ("unmanaged", OK),
        ("", OK),
        ("ready", refused),
        ("registering", refused),
        ("inspecting", refused),
        ("provisioned", refused),
    ] {
        let outcome = rig.change(&host("h", spec(json!({}))), &state(status), adopt).await;
        assert_eq!(outcome.err().unwrap_or_default(), want, "1.1 externallyProvisioned in {status}");
    }
    let adopted = host("h", spec(json!({"externallyProvisioned": true})));
    let back = |host: &mut Value| host["spec"]["externallyProvisioned"] = json!(false);
    let outcome = rig.change(&adopted, &state("externally provisioned"), back).await;
    assert!(outcome.is_ok(), "1.1 externallyProvisioned back to false: {outcome:?}");
}

/// A host of before a rule can still lose its finalizer; what is broken anew is refused.
#[test]
fn a_rule_binds_from_the_next_change_on() {
    let old = host("h", json!({"online": true, "image": {"url": "file:///x", "checksum": "y"}, "firmware": {"a": 1}}));
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!(["a/b"]);
    assert_eq!(check(Some(&old), &new), []);
    assert_eq!(check(None, &new).len(), 2);
    new["spec"]["image"]["url"] = json!("file:///z");
    let faults: Vec<_> = check(Some(&old), &new).into_iter().map(|fault| fault.path).collect();
    assert_eq!(faults, ["spec.image.url"]);
}
