//! In which network a machine is: what it said from where is recorded with its host, where only Slipway writes.

use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use slipway::api::slipway::{ANNOTATION_REGISTRATION, BootIntent};

use crate::process::machine::{self, MAC, Machine};
use crate::process::until;

#[tokio::test(flavor = "multi_thread")]
async fn the_network_that_a_machine_reported_itself_from_is_recorded() {
    slipway::appliance::install_tls_provider();
    let (appliance, machine) = Machine::beside("ulimit -n 4096").await;
    let token = machine.token(&appliance).await;
    let agent = reqwest::Client::builder()
        .no_proxy()
        .local_address(std::net::IpAddr::V4(machine::ADDRESS))
        .danger_accept_invalid_certs(true)
        .build()
        .unwrap();
    let call = async |path: &str, bearer: &str, body: String| {
        let url = format!("https://{}/agent/v1/{path}", appliance.address);
        let request = if body.is_empty() { agent.get(url) } else { agent.post(url).body(body) };
        let request = request.header("content-type", "application/json").bearer_auth(bearer);
        let answer = request.send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{path}: {status} {text}");
        serde_json::from_str::<Value>(&text).unwrap_or_default()
    };
    let session = call("session", "", Machine::hello(&token)).await;
    let bearer = session["session"].as_str().unwrap();
    let intents: Api<BootIntent> = Api::default_namespaced(appliance.client().await);
    let intent = intents.get("known").await.unwrap();
    let session = intent.status.and_then(|status| status.session).expect("a session");
    assert_eq!(session.network, "lo");
    let step = call("step", bearer, String::new()).await;
    assert_eq!(step["action"], "inspect", "{step}");
    let inventory = json!({
        "systemVendor": {"manufacturer": "m", "productName": "p", "serialNumber": "s"},
        "ramMebibytes": 4096, "cpu": {"arch": "x86_64", "model": "m", "count": 4},
        "nics": [{"name": "e0", "mac": MAC, "pxe": true}],
        "storage": [{"name": "/dev/sda", "sizeBytes": 960_197_124_096_u64, "type": "SSD"}],
    });
    let result = json!({"step": step["id"], "succeeded": true, "message": "", "inventory": inventory});
    call("result", bearer, result.to_string()).await;
    until("the network is recorded", async || {
        let intent = intents.get("known").await.unwrap();
        let record: Value = serde_json::from_str(intent.annotations().get(ANNOTATION_REGISTRATION)?).ok()?;
        (record["network"] == "lo" && record["cards"].get(MAC.to_string()).is_some()).then_some(())
    })
    .await;
}
